//! One call for each change; IDs come from what was observed.

use ccm_core::{
    Error, ErrorKind, Priority, Result, async_trait,
    plan::objects::{Attributes, Object, ObjectCalls, Objects, Reply},
};

use super::{
    calls::group_id,
    kinds::{CERTIFICATES, Entry, Kind, RULES, Rule, TAGS, TARGETS},
};
use crate::client::Api;

/// Makes changes.
pub(super) struct Sender<'a> {
    pub(super) api: &'a Api,
    pub(super) vpc: &'a str,
    pub(super) priority: Priority,
}

fn bug(object: &Object<Kind>, what: &str) -> Error {
    let text = format!(
        "{} has no call to change its {what}; this is a bug",
        object.title()
    );
    Error::new(ErrorKind::Unexpected, text)
}

fn rules(entries: &[Entry]) -> Vec<&Rule> {
    entries.iter().filter_map(Entry::rule).collect()
}

/// The IDs of the security groups in an attribute, which knows our own by name.
fn groups(object: &Object<Kind>, observed: &Objects<Kind>) -> Vec<String> {
    object
        .texts("security_groups")
        .into_iter()
        .map(|name| group_id(observed, name))
        .collect()
}

#[async_trait]
impl ObjectCalls<Kind> for Sender<'_> {
    async fn create(
        &self,
        object: &Object<Kind>,
        children: &[Object<Kind>],
        observed: &Objects<Kind>,
    ) -> Result<Reply<Kind>> {
        let (api, priority) = (self.api, self.priority);
        let mut created = match object.kind {
            Kind::Group => Object {
                id: api.create_security_group(object, self.vpc, priority).await?,
                ..Object::new(Kind::Group, object.key.clone())
            },
            Kind::TargetGroup => api.create_target_group(object, self.vpc, priority).await?,
            Kind::Balancer => {
                let mut created = api
                    .create_balancer(object, &groups(object, observed), priority)
                    .await?;
                let names = object.attributes.get_key_value("security_groups");
                created
                    .attributes
                    .extend(names.map(|(name, value)| (*name, value.clone())));
                created
            }
            Kind::Listener => {
                let parent = object.parent.as_deref().unwrap_or_default();
                let balancer = observed.id(Kind::Balancer, parent)?;
                let group = observed.id(Kind::TargetGroup, object.text("target_group"))?;
                let created = api.create_listener(object, balancer, group, priority).await?;
                created.with("target_group", object.text("target_group"))
            }
            Kind::Classic => {
                let groups = groups(object, observed);
                api.create_classic(object, children, &groups, priority).await?
            }
            Kind::ClassicListener => {
                let parent = object.parent.as_deref().unwrap_or_default();
                api.create_classic_listener(parent, object, priority).await?
            }
            Kind::NodeGroup => return Err(bug(object, "existence")),
        };
        created.key.clone_from(&object.key);
        let mut reply = Reply::object(created);
        reply.objects.extend(children.iter().map(|child| Object {
            id: child.key.clone(),
            ..Object::new(child.kind, child.key.clone())
        }));
        Ok(reply)
    }

    async fn update(
        &self,
        object: &Object<Kind>,
        call: &'static str,
        changes: &Attributes,
        observed: &Objects<Kind>,
    ) -> Result<Reply<Kind>> {
        let (api, priority, id) = (self.api, self.priority, object.id.as_str());
        let wanted = Object {
            attributes: changes.clone(),
            ..Object::new(object.kind, object.key.clone())
        };
        match call {
            "ModifyTargetGroup" => api.modify_target_group(id, &wanted, priority).await?,
            "ModifyTargetGroupAttributes" | "ModifyLoadBalancerAttributes" => {
                api.modify_attributes(object.kind, id, changes, priority).await?;
            }
            "SetSecurityGroups" => {
                api.set_security_groups(id, &groups(&wanted, observed), priority)
                    .await?;
            }
            "SetSubnets" => api.set_subnets(id, &wanted.texts("subnets"), priority).await?,
            "ModifyListener" => {
                let group = match wanted.text("target_group") {
                    "" => None,
                    name => Some(observed.id(Kind::TargetGroup, name)?),
                };
                api.modify_listener(id, &wanted, group, priority).await?;
            }
            _ if matches!(object.kind, Kind::Classic | Kind::ClassicListener) => {
                let groups = groups(&wanted, observed);
                api.update_classic(object, call, &wanted, &groups, priority)
                    .await?;
            }
            _ => return Err(bug(object, call)),
        }
        Ok(Reply::default())
    }

    async fn delete(&self, object: &Object<Kind>, _: bool) -> Result<()> {
        let (api, priority, id) = (self.api, self.priority, object.id.as_str());
        let deleted = match object.kind {
            Kind::Group => api.delete_security_group(id, priority).await,
            Kind::Classic => api.delete_classic(&object.key, priority).await,
            Kind::ClassicListener => {
                let parent = object.parent.as_deref().unwrap_or_default();
                api.delete_classic_listener(parent, &object.key, priority).await
            }
            kind => api.delete_balancing(kind, id, priority).await,
        };
        match deleted {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) if object.kind == Kind::Balancer && error.kind() == ErrorKind::InvalidSpec => {
                let text = format!(
                    "AWS does not delete load balancer {}; turn off its deletion protection",
                    object.key
                );
                Err(Error::new(ErrorKind::InvalidSpec, text).with_source(error))
            }
            deleted => deleted,
        }
    }

    async fn add(&self, object: &Object<Kind>, set: &'static str, entries: &[Entry]) -> Result<Reply<Kind>> {
        let (api, priority, id) = (self.api, self.priority, object.id.as_str());
        match (set, object.kind) {
            (TARGETS, _) => api.change_targets(id, entries, true, priority).await?,
            (RULES, _) => self.add_rules(object, &rules(entries)).await?,
            (CERTIFICATES, _) => api.change_certificates(id, entries, true, priority).await?,
            (TAGS, Kind::Group) => api.tag_security_group(id, entries, priority).await?,
            (_, Kind::Classic) => {
                api.change_classic_set(object, set, entries, true, priority)
                    .await?;
            }
            (TAGS, _) => api.tag_balancing(id, entries, priority).await?,
            _ => return Err(bug(object, set)),
        }
        Ok(Reply::default())
    }

    async fn remove(&self, object: &Object<Kind>, set: &'static str, entries: &[Entry]) -> Result<()> {
        let (api, priority, id) = (self.api, self.priority, object.id.as_str());
        match (set, object.kind) {
            (TARGETS, _) => match api.change_targets(id, entries, false, priority).await {
                // An instance that does not exist is no target.
                Err(error) if error.kind() == ErrorKind::InvalidSpec && entries.len() == 1 => Ok(()),
                result => result,
            },
            (RULES, _) => api.revoke(id, &rules(entries), priority).await,
            (CERTIFICATES, _) => api.change_certificates(id, entries, false, priority).await,
            (_, Kind::Classic) => {
                api.change_classic_set(object, set, entries, false, priority)
                    .await
            }
            _ => Err(bug(object, set)),
        }
    }
}

impl Sender<'_> {
    /// Adds rules. Those that are there with another description only get theirs.
    async fn add_rules(&self, group: &Object<Kind>, rules: &[&Rule]) -> Result<()> {
        let known: Vec<_> = group
            .set(RULES)
            .iter()
            .filter_map(Entry::rule)
            .map(Rule::tuple)
            .collect();
        let (described, new): (Vec<&Rule>, Vec<&Rule>) =
            rules.iter().partition(|rule| known.contains(&rule.tuple()));
        let (api, priority, id) = (self.api, self.priority, group.id.as_str());
        if !described.is_empty() {
            match api.describe_rules(id, &described, priority).await {
                // Upstream may not call it either: traffic stops for a moment.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    api.revoke(id, &described, priority).await?;
                    api.authorize(id, &described, priority).await?;
                }
                result => result?,
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        api.authorize(id, &new, priority).await
    }
}
