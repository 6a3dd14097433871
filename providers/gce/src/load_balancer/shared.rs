//! The desired state of the parts that Services share: health checks, instance groups, backend services.

use std::sync::Arc;

use ccm_core::plan::Plan;
use serde_json::json;

use super::{
    desired::{FirewallAccess, SHARED_PORT, check_firewall, diff, unchanged, with_check},
    fields,
    kinds::{INSTANCES, Object, ObjectChange, ObjectKind, Objects},
    members::NodeMembers,
    names,
    settings::BalancerSettings,
    spec::Scheme,
};

/// Whether a shared part is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// No Service stays in it: it is deleted.
    None,
    /// Only Services that keep what they have: it stays as it is.
    Unchanged,
    /// A Service needs it.
    Full,
}

/// The objects of a shared part. Those that could not be deleted since others use them are used again.
fn usable(observed: &Objects) -> Objects {
    let mut usable = observed.clone();
    for object in &mut usable.all {
        object.foreign = None;
    }
    usable
}

/// A health check with its firewall rule.
#[derive(Debug)]
pub(crate) struct DesiredCheck {
    /// `HttpCheck` or `Check`.
    pub(crate) kind: ObjectKind,
    pub(crate) need: Need,
    pub(crate) cluster_id: String,
    /// The network tags of the nodes.
    pub(crate) tags: Vec<String>,
    pub(crate) settings: Arc<BalancerSettings>,
    pub(crate) firewalls: FirewallAccess,
}

impl DesiredCheck {
    pub(crate) fn plan(&self, observed: &Objects) -> Plan<ObjectChange> {
        let mut objects = match self.need {
            Need::Unchanged => return diff(unchanged(observed, None), observed),
            // The firewall rule is deleted after the health check, which stays if others use it.
            Need::None => {
                let has_check = observed.of(self.kind).next().is_some();
                if has_check {
                    observed.of(ObjectKind::CheckFirewall).cloned().collect()
                } else {
                    Vec::new()
                }
            }
            Need::Full => self.objects(observed),
        };
        self.firewalls.apply(&mut objects, observed);
        if self.need == Need::Full {
            return diff(objects, &usable(observed));
        }
        diff(objects, observed)
    }

    fn objects(&self, observed: &Objects) -> Vec<Object> {
        let id = &self.cluster_id;
        let name = names::node_check(id);
        let (description, firewall, about) = match self.kind {
            ObjectKind::HttpCheck => (
                names::named_description(&name),
                names::node_http_check_firewall(id),
                names::node_firewall_description(id),
            ),
            _ => (String::new(), names::node_check_firewall(id), String::new()),
        };
        let check = Object::new(self.kind, name).with(fields::DESCRIPTION, description);
        // It serves the addresses of all load balancers, so it names none.
        let firewall = check_firewall(firewall, SHARED_PORT, &self.settings, &self.tags)
            .with(fields::DESCRIPTION, about)
            .with(fields::DESTINATIONS, json!([]));
        vec![with_check(check, SHARED_PORT, observed), firewall]
    }
}

/// The instance group of a zone.
#[derive(Debug)]
pub(crate) struct DesiredGroup {
    pub(crate) zone: String,
    pub(crate) need: Need,
    /// The nodes of the cluster; `None`: the members stay.
    pub(crate) members: Option<Arc<NodeMembers>>,
}

impl DesiredGroup {
    pub(crate) fn plan(&self, observed: &Objects) -> Plan<ObjectChange> {
        if self.need == Need::None {
            return diff(Vec::new(), observed);
        }
        let mut group = Object::new(ObjectKind::Group, &self.zone);
        group.if_present = self.need == Need::Unchanged;
        if let Some(members) = &self.members {
            let present = observed
                .get(ObjectKind::Group, &self.zone)
                .map(|group| group.set(INSTANCES))
                .unwrap_or_default();
            let desired = members.with_unplaced(members.in_zone(&self.zone).cloned(), present);
            // A backend service may still have the group when the last node of its zone leaves, so that it cannot be deleted.
            group.if_present |= desired.is_empty();
            group = group.entries(INSTANCES, desired);
        }
        diff(vec![group], &usable(observed))
    }
}

/// A shared backend service.
#[derive(Debug)]
pub(crate) struct DesiredSharedBackend {
    pub(crate) name: String,
    pub(crate) need: Need,
    /// `TCP` or `UDP`.
    pub(crate) protocol: &'static str,
    /// `NONE` or `CLIENT_IP`.
    pub(crate) affinity: &'static str,
    /// The resource path of the health check.
    pub(crate) check: String,
    /// The resource paths of the instance groups; `None`: they stay.
    pub(crate) groups: Option<Vec<String>>,
}

impl DesiredSharedBackend {
    pub(crate) fn plan(&self, observed: &Objects) -> Plan<ObjectChange> {
        let mut backend = match self.need {
            Need::None => return diff(Vec::new(), observed),
            Need::Unchanged => Object {
                if_present: true,
                ..Object::new(ObjectKind::Backend, &self.name)
            },
            Need::Full => Object::new(ObjectKind::Backend, &self.name)
                .with(fields::SCHEME, Scheme::Internal.as_str())
                .with(fields::PROTOCOL, self.protocol)
                .with(fields::AFFINITY, self.affinity)
                .with(fields::DESCRIPTION, "")
                .with(fields::HEALTH_CHECK, &*self.check),
        };
        if let Some(groups) = self.groups.as_ref().filter(|groups| !groups.is_empty()) {
            backend = backend.with(fields::GROUPS, json!(groups));
        }
        diff(vec![backend], &usable(observed))
    }
}
