//! The order in which the steps of a part are sent.
//!
//! A step waits for the steps before it that concern the same objects ([`StepObjects`](crate::load_balancer::StepObjects)). A
//! step without such a list waits for all steps before it, and all steps after it wait for it.

use std::collections::HashSet;

use crate::load_balancer::StepDescription;

/// The objects of steps that have not ended.
#[derive(Default)]
pub(super) struct ClaimedObjects<'a> {
    changed: HashSet<&'a str>,
    used: HashSet<&'a str>,
    /// One of the steps lists no objects.
    has_exclusive: bool,
    has_any: bool,
}

impl<'a> ClaimedObjects<'a> {
    /// The objects of these steps.
    pub(super) fn of(steps: impl IntoIterator<Item = &'a StepDescription>) -> Self {
        let mut claimed = Self::default();
        for step in steps {
            claimed.add(step);
        }
        claimed
    }

    pub(super) fn add(&mut self, step: &'a StepDescription) {
        self.has_any = true;
        match &step.objects {
            Some(objects) => {
                self.changed.extend(objects.changes.iter().map(String::as_str));
                self.used.extend(objects.uses.iter().map(String::as_str));
            }
            None => self.has_exclusive = true,
        }
    }

    /// Whether the step must wait until these steps have ended.
    pub(super) fn conflicts_with(&self, step: &StepDescription) -> bool {
        let Some(objects) = &step.objects else {
            return self.has_any;
        };
        let is_changed = |object: &String| self.changed.contains(object.as_str());
        let is_claimed = |object: &String| is_changed(object) || self.used.contains(object.as_str());
        self.has_exclusive || objects.changes.iter().any(is_claimed) || objects.uses.iter().any(is_changed)
    }

    /// Whether every step must wait.
    pub(super) fn has_exclusive(&self) -> bool {
        self.has_exclusive
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_balancer::{Effect, StepObjects};

    fn step(objects: Option<StepObjects>) -> StepDescription {
        StepDescription {
            objects,
            ..StepDescription::new("step", Effect::Change, "a step")
        }
    }

    #[test]
    fn a_step_waits_for_steps_on_the_same_objects() {
        let pool = step(Some(StepObjects::changing(["pool"]).using(["check"])));
        let check = step(Some(StepObjects::changing(["check"])));
        let rule = step(Some(StepObjects::changing(["rule"]).using(["pool"])));
        let other_pool = step(Some(StepObjects::changing(["other pool"]).using(["check"])));
        let alone = step(None);
        let cases = [
            (&check, &pool, true),
            (&pool, &check, true),
            (&pool, &rule, true),
            (&check, &rule, false),
            (&pool, &other_pool, false),
            (&pool, &alone, true),
            (&alone, &pool, true),
        ];
        for (earlier, later, waits) in cases {
            let claimed = ClaimedObjects::of([earlier]);
            assert_eq!(claimed.conflicts_with(later), waits, "{earlier:?}, {later:?}");
        }
        assert!(!ClaimedObjects::of([]).conflicts_with(&alone));
    }
}
