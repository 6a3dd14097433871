//! The changes of Neutron.

use std::collections::BTreeMap;

use ccm_core::{ErrorKind, Result};

use http::Method;
use serde::Serialize;
use tokio::time::Instant;

use super::{Writes, store, store_delete};
use crate::{
    client::{Op, call, catalog::Service, if_revision},
    instances::records::Port,
    load_balancer::responses::{FloatingIp, Rule, SecurityGroup},
};

impl Writes<'_> {
    /// Creates a floating IP for a port.
    pub(crate) async fn create_floating_ip(&self, port: &str, body: &impl Serialize) -> Result<FloatingIp> {
        let result = self.send(Op::FloatingIpCreate, Method::POST, "", body).await;
        store(&self.reads.floating_ips, port, result)
    }

    /// Moves a floating IP to another port, or detaches it. `port`: the old or new port.
    pub(crate) async fn update_floating_ip(
        &self,
        port: &str,
        id: &str,
        body: &impl Serialize,
    ) -> Result<FloatingIp> {
        let result = self.send(Op::FloatingIpUpdate, Method::PUT, id, body).await;
        store(&self.reads.floating_ips, port, result)
    }

    /// Deletes a floating IP. A missing one is no error.
    pub(crate) async fn delete_floating_ip(&self, port: &str, id: &str) -> Result<()> {
        let path = ["floatingips", id];
        let result = self.remove(Op::FloatingIpDelete, Service::Network, &path).await;
        store_delete(&self.reads.floating_ips, port, id, result)
    }

    /// Creates a security group. Neutron adds two rules that allow all egress.
    pub(crate) async fn create_security_group(
        &self,
        name: &str,
        body: &impl Serialize,
    ) -> Result<SecurityGroup> {
        let result = self.send(Op::SecurityGroupCreate, Method::POST, "", body).await;
        store(&self.reads.security_groups, name, result)
    }

    /// Deletes a security group. A missing one is no error; one in use is.
    pub(crate) async fn delete_security_group(&self, name: &str, id: &str) -> Result<()> {
        let path = ["security-groups", id];
        let result = self.remove(Op::SecurityGroupDelete, Service::Network, &path).await;
        store_delete(&self.reads.security_groups, name, id, result)
    }

    /// Creates a rule of the security group with this name and id.
    pub(crate) async fn create_rule(&self, (name, id): (&str, &str), body: &impl Serialize) -> Result<Rule> {
        let create = Op::SecurityGroupRuleCreate;
        let result: Result<Rule> = self.send(create, Method::POST, "", body).await;
        let rule = result.clone();
        self.rules_changed((name, id), rule, |group, rule| group.rules.push(rule));
        result
    }

    /// Deletes a rule of the security group with this name and ID. A missing one is no error.
    pub(crate) async fn delete_rule(&self, group: (&str, &str), id: &str) -> Result<()> {
        let path = ["security-group-rules", id];
        let delete = Op::SecurityGroupRuleDelete;
        let result = self.remove(delete, Service::Network, &path).await;
        self.rules_changed(group, result.clone(), |group, ()| {
            group.rules.retain(|rule| rule.id != id);
        });
        result
    }

    fn rules_changed<T>(
        &self,
        (name, id): (&str, &str),
        result: Result<T>,
        change: impl FnOnce(&mut SecurityGroup, T),
    ) {
        let groups = &self.reads.security_groups;
        match result {
            Ok(result) => groups.update(id, |group| change(group, result)),
            Err(_) => groups.invalidate(name),
        }
    }

    /// Sets the security groups of a port if it did not change since it was read; otherwise the error is
    /// [stale](ccm_core::plan::WriteConflict::Stale).
    pub(crate) async fn set_port_groups(&self, port: &Port, groups: &[String]) -> Result<Port> {
        let path = ["ports", port.id.as_str()];
        let write =
            if_revision(port.revision_number, call(Op::PortUpdate, Service::Network, Method::PUT, &path));
        let body = BTreeMap::from([("security_groups", groups)]);
        let result: Result<Port> = self.api.write_one(write, &body, self.priority).await;
        match &result {
            Ok(now) => self.reads.insert_port(&port.device_id, now),
            // The port has another project's security group: Neutron refuses every list with it.
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && port.security_groups.iter().any(|id| error.message().contains(id)) =>
            {
                let (id, why) = (port.id.clone(), error.message().to_owned());
                self.reads.refused_ports.insert(id, why.clone(), Instant::now());
                let port = Port {
                    refused: why,
                    ..port.clone()
                };
                return Ok(port);
            }
            Err(_) => self.reads.invalidate_ports(&port.device_id),
        }
        result
    }

    /// Removes a tag from a port. A missing tag is no error.
    pub(crate) async fn delete_port_tag(&self, port: &Port, tag: &str) -> Result<()> {
        let path = ["ports", port.id.as_str(), "tags", tag];
        let result = self.remove(Op::PortTagDelete, Service::Network, &path).await;
        self.reads.invalidate_ports(&port.device_id);
        result
    }
}
