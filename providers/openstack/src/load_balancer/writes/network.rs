//! The changes of Neutron.

use ccm_core::Result;

use super::{Writes, noted_delete};
use crate::{
    client::{
        Op, Verb, Write,
        catalogue::Service,
        listing::{One, Resource},
    },
    instances::records::Port,
    load_balancer::{
        bodies::{Envelope, FloatingIpChange, NewFloatingIp, NewRule, NewSecurityGroup, PortChange},
        responses::{FloatingIp, Rule, SecurityGroup},
    },
};

impl Writes<'_> {
    /// Takes a floating address from its network, for a port if its body names one.
    pub(crate) async fn create_floating_ip(&self, body: &NewFloatingIp) -> Result<FloatingIp> {
        let result = self
            .send(
                Op::FloatingIpCreate,
                Verb::Post,
                FloatingIp::PATH,
                Some(body),
                None,
            )
            .await;
        self.note(&self.reads.floating_ips, &body.port_id, result)
    }

    /// Gives a floating address another port, or none. `port`: the one that it had or gets.
    pub(crate) async fn update_floating_ip(
        &self,
        port: &str,
        id: &str,
        body: &FloatingIpChange,
    ) -> Result<FloatingIp> {
        let path = ["floatingips", id];
        let result = self
            .send(Op::FloatingIpUpdate, Verb::Put, &path, Some(body), None)
            .await;
        self.note(&self.reads.floating_ips, port, result)
    }

    /// Gives a floating address back. That there is none is no error.
    pub(crate) async fn delete_floating_ip(&self, port: &str, id: &str) -> Result<()> {
        let path = ["floatingips", id];
        let result = self.delete(Op::FloatingIpDelete, Service::Network, &path).await;
        noted_delete(&self.reads.floating_ips, port, id, result)
    }

    /// Makes a security group. Neutron gives it two rules that let everything out.
    pub(crate) async fn create_security_group(&self, body: &NewSecurityGroup) -> Result<SecurityGroup> {
        let result = self
            .send(
                Op::SecurityGroupCreate,
                Verb::Post,
                SecurityGroup::PATH,
                Some(body),
                None,
            )
            .await;
        self.note(&self.reads.security_groups, &body.name, result)
    }

    /// Deletes a security group. That there is none is no error; that a port has it is one.
    pub(crate) async fn delete_security_group(&self, name: &str, id: &str) -> Result<()> {
        let path = ["security-groups", id];
        let result = self
            .delete(Op::SecurityGroupDelete, Service::Network, &path)
            .await;
        noted_delete(&self.reads.security_groups, name, id, result)
    }

    /// Makes a rule of a security group with this name; its body has the group's id.
    pub(crate) async fn create_rule(&self, group: &str, body: &NewRule) -> Result<Rule> {
        let result: Result<Rule> = self
            .send(
                Op::SecurityGroupRuleCreate,
                Verb::Post,
                Rule::PATH,
                Some(body),
                None,
            )
            .await;
        match &result {
            Ok(rule) => self
                .reads
                .security_groups
                .update(&body.security_group_id, |group| group.rules.push(rule.clone())),
            Err(_) => self.reads.security_groups.invalidate(group),
        }
        result
    }

    /// Deletes a rule of a security group with this name and id. That there is none is no error.
    pub(crate) async fn delete_rule(&self, group: (&str, &str), id: &str) -> Result<()> {
        let path = ["security-group-rules", id];
        let result = self
            .delete(Op::SecurityGroupRuleDelete, Service::Network, &path)
            .await;
        let (name, group) = group;
        match &result {
            Ok(()) => self
                .reads
                .security_groups
                .update(group, |group| group.rules.retain(|rule| rule.id != id)),
            Err(_) => self.reads.security_groups.invalidate(name),
        }
        result
    }

    /// Changes a port, if it is still as it was read; otherwise the error is [stale](ccm_core::plan::WriteConflict::Stale).
    pub(crate) async fn update_port(&self, port: &Port, body: &PortChange) -> Result<Port> {
        let path = ["ports", port.id.as_str()];
        let envelope = Envelope(Port::ONE, body);
        let write = Write {
            revision: port.revision_number,
            ..Write::new(Op::PortUpdate, Service::Network, Verb::Put, &path)
        };
        match self.api.write(&write.json(&envelope), self.priority).await {
            Ok(One::<Port>(now)) => {
                self.reads.insert_port(&port.device_id, &now);
                Ok(now)
            }
            Err(error) => {
                self.reads.invalidate_ports(&port.device_id);
                Err(error)
            }
        }
    }

    /// Takes a tag from a port. That it has no such tag is no error.
    pub(crate) async fn delete_port_tag(&self, port: &Port, tag: &str) -> Result<()> {
        let path = ["ports", port.id.as_str(), "tags", tag];
        let result = self.delete(Op::PortTagDelete, Service::Network, &path).await;
        self.reads.invalidate_ports(&port.device_id);
        result
    }
}
