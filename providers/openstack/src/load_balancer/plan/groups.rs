//! Security groups and the ports that have them.

use std::collections::BTreeMap;

use ccm_core::plan::Plan;

use super::blocked;
use crate::{
    instances::records::Port,
    load_balancer::{
        desired::{DesiredGroup, DesiredNodePorts, GroupRef, RuleTuple},
        responses::{Rule, SecurityGroup},
        steps::{Action, Change, step},
    },
};

fn same(have: &Rule, want: &RuleTuple) -> bool {
    have.direction == "ingress"
        && have.protocol.eq_ignore_ascii_case(&want.protocol)
        && have.ethertype == want.ethertype
        && have.port_range_min == Some(want.port)
        && have.port_range_max == Some(want.port)
        && have.remote_ip_prefix == want.range
        && have.remote_group_id.is_empty()
}

/// What a rule lets in or out.
pub(crate) fn sentence(rule: &Rule) -> String {
    let port = rule.port_range_min.map(|port| format!(" {port}"));
    let protocol = if rule.protocol.is_empty() {
        "everything"
    } else {
        rule.protocol.as_str()
    };
    let whom = if rule.remote_ip_prefix.is_empty() {
        "anywhere"
    } else {
        rule.remote_ip_prefix.as_str()
    };
    format!(
        "{} {} {protocol}{} and {whom}",
        rule.direction,
        rule.ethertype,
        port.unwrap_or_default()
    )
}

/// The security group of one Service.
pub(super) fn group(desired: &DesiredGroup, have: &[SecurityGroup]) -> Plan<Change> {
    let step = |action| step(&desired.name, action).for_service(desired.service.as_ref());
    let mut plan = Plan::default();
    if desired.is_leaving {
        plan.steps.extend(have.iter().map(|_| step(Action::DeleteGroup)));
        return plan;
    }
    let Some(rules) = &desired.rules else {
        return plan;
    };
    let none = SecurityGroup::default();
    let group = match have {
        [] => {
            plan.steps
                .push(step(Action::CreateGroup(desired.description.clone())));
            &none
        }
        [group] => group,
        several => {
            plan.blocked.push(blocked(
                desired.service.as_ref(),
                &format!("security group {}", desired.name),
                &format!("there {} times", several.len()),
                "there once",
            ));
            return plan;
        }
    };
    for rule in rules {
        if !group.rules.iter().any(|have| same(have, rule)) {
            plan.steps.push(step(Action::CreateRule(rule.clone())));
        }
    }
    for have in &group.rules {
        if !rules.iter().any(|rule| same(have, rule)) {
            plan.steps
                .push(step(Action::DeleteRule(sentence(have), have.id.clone())));
        }
    }
    plan
}

/// What has to change of one port.
#[derive(Default)]
struct Due {
    address: String,
    add: Vec<GroupRef>,
    remove: Vec<GroupRef>,
    tags: Vec<GroupRef>,
}

/// The groups of all nodes' ports: one write for each port.
pub(super) fn ports(desired: &DesiredNodePorts, have: &BTreeMap<String, Port>) -> Plan<Change> {
    let mut due: BTreeMap<&str, Due> = BTreeMap::new();
    for (id, port) in have {
        let secured = port.port_security_enabled != Some(false);
        let mut add: Vec<GroupRef> = Vec::new();
        for (address, server, group) in &desired.required {
            let there = port.security_groups.contains(&group.id.to_string()) || add.contains(group);
            let at =
                port.device_id == *server && port.fixed_ips.iter().any(|fixed| fixed.ip_address == *address);
            if secured && at && !there {
                add.push(group.clone());
            }
        }
        let forbidden = desired.forbidden.iter();
        let remove: Vec<_> = forbidden
            .filter(|gone| {
                gone.id
                    .known()
                    .is_some_and(|id| port.security_groups.contains(id))
            })
            .cloned()
            .collect();
        let tagged = |gone: &&GroupRef| gone.id.known().is_some_and(|id| port.tags.contains(id));
        let tags: Vec<_> = desired.forbidden.iter().filter(tagged).cloned().collect();
        if !add.is_empty() || !remove.is_empty() || !tags.is_empty() {
            let address = port.fixed_ips.first().map(|fixed| fixed.ip_address.clone());
            due.insert(
                id,
                Due {
                    address: address.unwrap_or_else(|| id.clone()),
                    add,
                    remove,
                    tags,
                },
            );
        }
    }
    let mut plan = Plan::default();
    for (id, due) in due {
        let mut push = |action| plan.steps.push(step(&due.address, action));
        let port = id.to_owned();
        // The tags first: once a port has the group no more it is not found any more.
        for group in due.tags {
            let port = port.clone();
            push(Action::DeletePortTag { port, group });
        }
        if !due.add.is_empty() || !due.remove.is_empty() {
            let (add, remove) = (due.add, due.remove);
            push(Action::SetPortGroups { port, add, remove });
        }
    }
    plan
}
