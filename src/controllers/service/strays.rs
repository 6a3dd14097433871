//! Parts that bear the mark of a Service that does not exist.
//!
//! Only those with our cluster's own mark are ever deleted, and not at once: a listing of Services that lags behind, for
//! whatever reason, must not cost a load balancer.

use std::{collections::HashMap, time::Duration};

use ccm_core::load_balancer::{PartKey, StrayPart};
use tokio::time::Instant;
use tracing::{info, warn};

use super::COMPONENT;

/// For so long a part must be seen without its Service.
const GRACE: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Stray {
    since: Instant,
    ours: bool,
    /// A pass over it was asked for.
    swept: bool,
}

/// Those that are known.
#[derive(Debug, Default)]
pub(super) struct Strays(HashMap<PartKey, Stray>);

impl Strays {
    /// These are listed now. `waiting`: passes do not know of every Service yet. Returns those that are to be run.
    pub(super) fn listed(&mut self, listed: Vec<StrayPart>, waiting: bool, at: Instant) -> Vec<PartKey> {
        let mut before = std::mem::take(&mut self.0);
        let mut due = Vec::new();
        for StrayPart { part, what, ours } in listed {
            let known = before.remove(&part);
            if known.is_none() {
                let fate = if ours {
                    "it is deleted soon"
                } else {
                    "it may serve others and is left alone"
                };
                warn!(controller = COMPONENT, %part, what, fate, "Belongs to a Service that does not exist");
            }
            let mut stray = known.unwrap_or(Stray {
                since: at,
                ours,
                swept: false,
            });
            stray.ours = ours;
            if ours && !stray.swept && !waiting && at >= stray.since + GRACE {
                info!(controller = COMPONENT, %part, what, "Deleting what no Service stands behind");
                stray.swept = true;
                due.push(part.clone());
            }
            self.0.insert(part, stray);
        }
        due
    }

    /// When to look at them again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0
            .values()
            .filter(|stray| stray.ours && !stray.swept)
            .map(|stray| stray.since + GRACE)
            .min()
    }

    /// How many are ours, and how many are not.
    pub(super) fn count(&self) -> (usize, usize) {
        let ours = self.0.values().filter(|stray| stray.ours).count();
        (ours, self.0.len() - ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stray(ours: bool) -> Vec<StrayPart> {
        vec![StrayPart {
            part: PartKey::new("lb/1"),
            what: "load balancer x".to_owned(),
            ours,
        }]
    }

    #[test]
    fn only_what_is_ours_goes_and_only_after_a_while_and_once() {
        let start = Instant::now();
        let later = start + GRACE;
        let mut strays = Strays::default();
        assert!(strays.listed(stray(true), false, start).is_empty());
        assert_eq!((strays.due(), strays.count()), (Some(later), (1, 0)));
        assert!(
            strays.listed(stray(true), true, later).is_empty(),
            "not all Services are known"
        );
        assert_eq!(strays.listed(stray(true), false, later), [PartKey::new("lb/1")]);
        assert!(strays.listed(stray(true), false, later).is_empty());
        assert_eq!(strays.due(), None);
        let mut strays = Strays::default();
        strays.listed(stray(false), false, start);
        assert!(strays.listed(stray(false), false, later).is_empty());
        assert_eq!((strays.due(), strays.count()), (None, (0, 1)));
    }

    #[test]
    fn one_whose_service_appears_begins_anew() {
        let start = Instant::now();
        let later = start + GRACE;
        let mut strays = Strays::default();
        strays.listed(stray(true), false, start);
        strays.listed(Vec::new(), false, start + GRACE / 2);
        assert!(strays.listed(stray(true), false, later).is_empty());
    }
}
