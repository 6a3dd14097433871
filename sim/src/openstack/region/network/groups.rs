//! Security groups and their rules.

use std::sync::Arc;

use jiff::Timestamp;

use super::NetworkState;
use crate::openstack::ids::Ids;

/// A security group.
#[derive(Clone, Debug)]
pub(crate) struct SecurityGroup {
    pub(crate) id: String,
    pub(crate) project_id: String,
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) stateful: bool,
    /// The IDs of its rules.
    pub(crate) rules: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) revision: u64,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
}

/// A rule of a security group.
#[derive(Clone, Debug)]
pub(crate) struct SecurityGroupRule {
    pub(crate) id: String,
    pub(crate) project_id: String,
    pub(crate) group_id: String,
    pub(crate) direction: String,
    pub(crate) ethertype: String,
    pub(crate) protocol: Option<String>,
    pub(crate) port_min: Option<i64>,
    pub(crate) port_max: Option<i64>,
    pub(crate) remote_prefix: Option<String>,
    pub(crate) remote_group: Option<String>,
    /// Null for the rules that are created with a group.
    pub(crate) description: Option<String>,
    pub(crate) created: Timestamp,
}

impl SecurityGroupRule {
    /// Whether both allow the same packets.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let what = |rule: &Self| {
            (
                rule.group_id.clone(),
                rule.direction.clone(),
                rule.ethertype.clone(),
                rule.protocol.clone(),
                rule.port_min,
                rule.port_max,
                rule.remote_prefix.clone(),
                rule.remote_group.clone(),
            )
        };
        what(self) == what(other)
    }
}

impl NetworkState {
    /// The ID of a project's security group `default`, which is created when it is first needed.
    pub(crate) fn default_group(&mut self, project: &str, at: Timestamp, ids: &Ids) -> String {
        if let Some(known) = self.default_groups.get(project) {
            return known.clone();
        }
        let id = self.create_group(project, "default", "Default security group", at, ids);
        for ethertype in ["IPv4", "IPv6"] {
            let rule = SecurityGroupRule {
                remote_group: Some(id.clone()),
                direction: "ingress".to_owned(),
                ..self.egress(project, &id, ethertype, at, ids)
            };
            self.list_rule(&rule);
            self.rules.insert(rule.id.clone(), Arc::new(rule));
        }
        self.default_groups.insert(project.to_owned(), id.clone());
        id
    }

    pub(crate) fn is_default_group(&self, id: &str) -> bool {
        self.default_groups.values().any(|known| known == id)
    }

    fn egress(
        &self,
        project: &str,
        group: &str,
        ethertype: &str,
        at: Timestamp,
        ids: &Ids,
    ) -> SecurityGroupRule {
        SecurityGroupRule {
            id: ids.uuid(),
            project_id: project.to_owned(),
            group_id: group.to_owned(),
            direction: "egress".to_owned(),
            ethertype: ethertype.to_owned(),
            protocol: None,
            port_min: None,
            port_max: None,
            remote_prefix: None,
            remote_group: None,
            description: None,
            created: crate::clock::seconds(at),
        }
    }

    /// Creates a group with the two rules that allow all egress.
    pub(crate) fn create_group(
        &mut self,
        project: &str,
        name: &str,
        description: &str,
        at: Timestamp,
        ids: &Ids,
    ) -> String {
        let id = ids.uuid();
        let created = crate::clock::seconds(at);
        let group = SecurityGroup {
            id: id.clone(),
            project_id: project.to_owned(),
            name: name.to_owned(),
            description: description.to_owned(),
            stateful: true,
            rules: Vec::new(),
            tags: Vec::new(),
            revision: 1,
            created,
            updated: created,
        };
        self.groups.insert(id.clone(), Arc::new(group));
        for ethertype in ["IPv6", "IPv4"] {
            let rule = self.egress(project, &id, ethertype, at, ids);
            self.rules.insert(rule.id.clone(), Arc::new(rule.clone()));
            self.list_rule(&rule);
        }
        id
    }

    fn list_rule(&mut self, rule: &SecurityGroupRule) {
        if let Some(group) = self.groups.get_mut(&rule.group_id) {
            let group = Arc::make_mut(group);
            group.rules.push(rule.id.clone());
            group.rules.sort();
        }
    }

    /// Adds a rule and increments the group's revision.
    pub(crate) fn insert_rule(&mut self, rule: SecurityGroupRule) {
        self.list_rule(&rule);
        let created = rule.created;
        self.change_group(&rule.group_id, |group| group.updated = created);
        self.rules.insert(rule.id.clone(), Arc::new(rule));
    }

    pub(crate) fn remove_rule(&mut self, id: &str, at: Timestamp) {
        if let Some(rule) = self.rules.remove(id) {
            self.change_group(&rule.group_id, |group| {
                group.rules.retain(|known| known != id);
                group.updated = crate::clock::seconds(at);
            });
        }
    }

    /// Changes a group and increments its revision.
    pub(crate) fn change_group(&mut self, id: &str, change: impl FnOnce(&mut SecurityGroup)) {
        if let Some(group) = self.groups.get_mut(id) {
            let group = Arc::make_mut(group);
            change(group);
            group.revision += 1;
        }
    }

    pub(crate) fn remove_group(&mut self, id: &str) {
        if let Some(group) = self.groups.remove(id) {
            for rule in &group.rules {
                self.rules.remove(rule);
            }
        }
    }

    /// Whether a port uses a group.
    pub(crate) fn is_group_in_use(&self, id: &str) -> bool {
        self.ports.values().any(|port| port.security_groups.iter().any(|known| known == id))
    }
}
