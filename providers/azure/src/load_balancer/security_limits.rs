//! The limits of Azure for a network security group.
//!
//! Azure refuses a write of a group that would exceed one of them, with the rules of all Services in it. So the rules of a Service that have
//! no room are left out before the write, and the Service is refused. What stands in the group stays.

use std::iter::Sum;

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{ClusterView, ServiceId},
    plan::{Membership, document::Document},
};
use serde_json::Value;

use super::{
    model::{Model, PartInputs, PartMember},
    security::{DesiredSecurity, destinations, sources},
};
use crate::client::field;

/// The rules of a group.
const MAX_RULES: usize = 1000;
/// The sources of all rules of a group: addresses, networks and service tags. The destinations are counted apart, up to the same number.
const MAX_PREFIXES: usize = 4000;

/// What Azure counts in a group.
#[derive(Clone, Copy, Debug, Default)]
struct GroupSize {
    rules: usize,
    sources: usize,
    destinations: usize,
}

impl Sum for GroupSize {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), |one, other| Self {
            rules: one.rules + other.rules,
            sources: one.sources + other.sources,
            destinations: one.destinations + other.destinations,
        })
    }
}

impl GroupSize {
    fn of_rule(rule: &Value) -> Self {
        let fields = rule.get(field::PROPERTIES).and_then(Value::as_object);
        Self {
            rules: 1,
            sources: fields.map_or(0, |fields| sources(fields).count()),
            destinations: fields.map_or(0, |fields| destinations(fields).len()),
        }
    }

    /// The limit that is exceeded: `1001 rules, and Azure's limit is 1000`.
    fn excess(self) -> Option<String> {
        let text = |number: usize, what: &str, limit: usize| {
            (number > limit).then(|| format!("{number} {what}, and Azure's limit is {limit}"))
        };
        text(self.rules, "rules", MAX_RULES)
            .or_else(|| text(self.sources, "sources", MAX_PREFIXES))
            .or_else(|| text(self.destinations, "destinations", MAX_PREFIXES))
    }
}

/// The limit that a group would exceed with these rules.
fn excess(desired: &DesiredSecurity, group: &Document) -> Option<String> {
    let (rules, _) = desired.edited(group.fields());
    rules.iter().map(GroupSize::of_rule).sum::<GroupSize>().excess()
}

/// A Service whose rules are not in the group yet.
struct NewRules<'a> {
    service: &'a ServiceId,
    desired: DesiredSecurity,
    /// The same if the Service keeps what it has.
    kept: DesiredSecurity,
}

impl Model {
    /// The Services whose rules have no room in the group. A Service whose rules stand stays served; the others are served in the order of
    /// their names, as far as there is room for each.
    pub(crate) fn without_room(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
        group: &Document,
    ) -> Vec<(ServiceId, Error)> {
        if excess(&self.desired_security(part, members, cluster, inputs), group).is_none() {
            return Vec::new();
        }
        let mut certain = self.desired_security(part, &[], cluster, inputs);
        let mut new = Vec::new();
        for member in members {
            let of = |member: PartMember| self.desired_security(part, &[member], cluster, inputs);
            let frozen = || {
                let mut frozen = member.clone();
                frozen.membership = Membership::Frozen(String::new());
                of(frozen)
            };
            let desired = of(member.clone());
            if member.membership != Membership::Active || desired.stands_in(group.fields()) {
                certain.merge(&desired);
            } else if !member.spec.invalid.is_empty() {
                certain.merge(&frozen());
            } else {
                new.push(NewRules {
                    service: &member.service.id,
                    desired,
                    kept: frozen(),
                });
            }
        }
        new.sort_by_key(|new| new.service);
        let mut refused = Vec::new();
        for (at, next) in new.iter().enumerate() {
            let mut tried = certain.clone();
            tried.merge(&next.desired);
            for later in &new[at + 1..] {
                tried.merge(&later.kept);
            }
            match excess(&tried, group) {
                None => certain.merge(&next.desired),
                Some(excess) => {
                    certain.merge(&next.kept);
                    let name = part.rsplit('/').next().unwrap_or_default();
                    let text = format!(
                        "network security group {name} has no room for the rules of this Service: it would have {excess}; remove rules from it, ask for fewer sources or for those and the ports of another Service, or set azure-disable-load-balancer-nsg-rule to \"true\" and admit clients with a rule of your own"
                    );
                    refused.push((next.service.clone(), Error::new(ErrorKind::QuotaExceeded, text)));
                }
            }
        }
        refused
    }
}
