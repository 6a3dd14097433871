//! The security groups of node ports.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::plan::{Plan, Step};

use super::site::blocked;
use crate::{
    instances::records::Port,
    load_balancer::{
        desired::{DesiredNodePorts, GroupRef},
        steps::{NodePort, PartChange},
    },
};

/// The pending changes of one port.
#[derive(Default)]
struct Due {
    add: Vec<GroupRef>,
    remove: Vec<GroupRef>,
    tags: Vec<GroupRef>,
}

/// Plans the security groups of all node ports, with one write for each port. `missing`: IDs of groups that do not exist.
pub(super) fn ports(
    desired: &DesiredNodePorts,
    have: &BTreeMap<String, Port>,
    missing: &BTreeSet<String>,
) -> Plan<PartChange> {
    let mut plan = Plan::default();
    // Sorted by address, which users know.
    let mut due: BTreeMap<(String, &str), Due> = BTreeMap::new();
    for (id, port) in have {
        // Without port security, Neutron accepts no group.
        let fixed_ips = if port.port_security_enabled != Some(false) {
            port.fixed_ips.as_slice()
        } else {
            &[]
        };
        let required = fixed_ips.iter().filter_map(|fixed| {
            let at = (port.device_id.clone(), fixed.ip_address.clone());
            desired.required.get(&at)
        });
        let mut add: Vec<GroupRef> = Vec::new();
        for group in required.flatten() {
            let id = group.id.to_string();
            if missing.contains(&id) {
                let field = format!("security group {}", group.name);
                let blocked = blocked(Some(&group.service), &field, "missing", "present");
                if !plan.blocked.contains(&blocked) {
                    plan.blocked.push(blocked);
                }
            } else if !port.security_groups.contains(&id) && !add.contains(group) {
                add.push(group.clone());
            }
        }
        let forbidden = desired.forbidden.iter();
        let remove: Vec<_> = forbidden
            .filter(|gone| gone.id.known().is_some_and(|id| port.security_groups.contains(id)))
            .cloned()
            .collect();
        let tags: Vec<_> = desired
            .forbidden
            .iter()
            .filter(|gone: &&GroupRef| gone.id.known().is_some_and(|id| port.tags.contains(id)))
            .cloned()
            .collect();
        if !add.is_empty() || !remove.is_empty() || !tags.is_empty() {
            let address =
                port.fixed_ips.first().map(|fixed| fixed.ip_address.clone()).unwrap_or_else(|| id.clone());
            due.insert((address, id.as_str()), Due { add, remove, tags });
        }
    }
    for ((address, id), Due { add, remove, tags }) in due {
        let refused = have.get(id).map_or("", |port| &port.refused);
        let id = id.to_owned();
        let port = NodePort { id, address };
        // Tags first: without the group, the port would not be observed again.
        for group in tags {
            let change = PartChange::DeletePortTag(port.clone(), group);
            plan.steps.push(Step::new(change));
        }
        if add.is_empty() && remove.is_empty() {
            continue;
        }
        let step = Step::new(PartChange::SetPortGroups { port, add, remove });
        match step.description.sentence.split_once(": ") {
            Some((field, groups)) if !refused.is_empty() => {
                let field = field.trim_start_matches("change ");
                plan.blocked.push(blocked(None, field, refused, groups));
            }
            _ => plan.steps.push(step),
        }
    }
    plan
}
