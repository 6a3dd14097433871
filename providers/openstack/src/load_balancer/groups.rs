//! The security groups of Services, as objects.

use std::fmt;

use ccm_core::{
    Error, ErrorKind, Result, async_trait,
    plan::objects::{self, Attribute, ChangeReply, Object, ObjectCalls, Objects, Policy, Schema, Set},
};
use serde_json::json;

use super::{
    fields,
    responses::{Rule, SecurityGroup},
    writes::Writes,
};

/// The kind of security groups, with their name as key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group;

/// The set of a security group's rules.
pub(crate) const RULES: &str = "rule";

static SCHEMA: Schema<Group> = Schema {
    attributes: &[Attribute::new(fields::DESCRIPTION, Policy::CreateOnly)],
    sets: &[Set {
        initial: || ["IPv4", "IPv6"].map(allow_egress).to_vec(),
        ..Set::new(RULES, "security_group_rule_create", "security_group_rule_delete")
    }],
    ..Schema::new("security group", "security_group_create", "security_group_delete")
};

impl objects::Kind for Group {
    type Entry = Rule;
    type Update = &'static str;

    fn schema(self) -> &'static Schema<Self> {
        &SCHEMA
    }
}

/// The rule that Neutron adds to every new group, once for each family.
fn allow_egress(ethertype: &str) -> Rule {
    Rule {
        direction: "egress".to_owned(),
        ethertype: ethertype.to_owned(),
        ..Rule::default()
    }
}

impl objects::KeyedEntry for Rule {
    type Key = Self;

    /// The fields that identify a rule within its group.
    fn key(&self) -> Self {
        Self {
            id: String::new(),
            security_group_id: String::new(),
            description: String::new(),
            protocol: self.protocol.to_lowercase(),
            ..self.clone()
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.direction != "ingress" {
            write!(f, "{} {} ", self.direction, self.ethertype)?;
        }
        let [protocol, range] = [
            (&self.protocol, "everything"),
            (&self.remote_ip_prefix, "anywhere"),
        ]
        .map(|(text, other)| if text.is_empty() { other } else { text });
        let port = self.port_range_min.map(|port| format!(" {port}")).unwrap_or_default();
        let preposition = if self.direction == "egress" { "to" } else { "from" };
        write!(f, "{protocol}{port} {preposition} {range}")
    }
}

impl From<&SecurityGroup> for Object<Group> {
    fn from(group: &SecurityGroup) -> Self {
        let object = Self::new(Group, &group.name).with(fields::DESCRIPTION, group.description.as_str());
        Self {
            id: group.id.clone(),
            ..object.entries(RULES, group.rules.clone())
        }
    }
}

#[async_trait]
impl ObjectCalls<Group> for Writes<'_> {
    async fn create(
        &self,
        group: &Object<Group>,
        _: &[Object<Group>],
        _: &Objects<Group>,
    ) -> Result<ChangeReply<Group>> {
        let body = json!({"name": group.key, "description": group.text(fields::DESCRIPTION)});
        let created = self.create_security_group(&group.key, &body).await?;
        Ok(ChangeReply::object((&created).into()))
    }

    async fn delete(&self, group: &Object<Group>, _: bool) -> Result<()> {
        self.delete_security_group(&group.key, &group.id).await
    }

    async fn add(
        &self,
        group: &Object<Group>,
        _: &'static str,
        rules: &[Rule],
    ) -> Result<ChangeReply<Group>> {
        let mut reply = ChangeReply::default();
        for rule in rules {
            let port = rule.port_range_min.unwrap_or_default();
            let body = json!({
                "security_group_id": group.id,
                "direction": "ingress",
                "ethertype": rule.ethertype,
                "protocol": rule.protocol,
                "port_range_min": port,
                "port_range_max": port,
                "remote_ip_prefix": rule.remote_ip_prefix,
            });
            reply.entries.push(self.create_rule((&group.key, &group.id), &body).await?);
        }
        Ok(reply)
    }

    async fn remove(&self, group: &Object<Group>, _: &'static str, rules: &[Rule]) -> Result<()> {
        for rule in rules {
            if rule.id.is_empty() {
                return Err(Error::new(ErrorKind::Conflict, "the id of the rule is not known"));
            }
            self.delete_rule((&group.key, &group.id), &rule.id).await?;
        }
        Ok(())
    }
}
