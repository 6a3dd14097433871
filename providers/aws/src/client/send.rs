//! The writes of load balancers and security groups: one request for each change of an object. IDs come from what was
//! observed.

use aws_sdk_ec2::types::{ResourceType, TagSpecification};
use aws_sdk_elasticloadbalancingv2::types::{
    Action, ActionTypeEnum, Certificate, LoadBalancerAttribute, LoadBalancerSchemeEnum, LoadBalancerTypeEnum,
    Matcher, ProtocolEnum, SubnetMapping, Tag, TargetDescription, TargetGroupAttribute, TargetTypeEnum,
};
use ccm_core::{
    Error, ErrorKind, Result, async_trait,
    plan::objects::{Attributes, Object, ObjectCalls, Objects, Reply},
};
use serde_json::Value;

use super::{Client, Op, classic, ec2::sdk_tags, elb};
use crate::load_balancer::kinds::{CERTIFICATES, Entry, Kind, RULES, Rule, TAGS, TARGETS, group_id};

/// Makes changes.
pub(crate) struct Sender<'a> {
    pub(crate) client: Client,
    /// The VPC of new security groups and target groups.
    pub(crate) vpc: &'a str,
}

/// Creates or modifies a target group; both requests have the fields of the health check.
macro_rules! target_group {
    ($client:expr, $op:ident, $method:ident, $object:ident => $($fields:tt)*) => {
        send!($client, $op, elbv2.$method => $($fields)*
            .set_health_check_protocol(protocol($object, "health_check_protocol"))
            .set_health_check_port(text($object, "health_check_port"))
            .set_health_check_path(text($object, "health_check_path"))
            .set_health_check_interval_seconds(number($object, "health_check_interval"))
            .set_health_check_timeout_seconds(number($object, "health_check_timeout"))
            .set_healthy_threshold_count(number($object, "healthy_threshold"))
            .set_unhealthy_threshold_count(number($object, "unhealthy_threshold"))
            .set_matcher(text($object, "health_check_codes").map(|codes| Matcher::builder().http_code(codes).build())))
    };
}

/// Creates or modifies a listener; both requests have the fields of its protocol.
macro_rules! listener {
    ($client:expr, $op:ident, $method:ident, $object:ident => $($fields:tt)*) => {
        send!($client, $op, elbv2.$method => $($fields)*
            .set_protocol(protocol($object, "protocol"))
            .set_certificates(text($object, "certificate").map(|arn| vec![certificate(&arn)]))
            .set_ssl_policy(text($object, "ssl_policy"))
            .set_alpn_policy(text($object, "alpn_policy").map(|policy| vec![policy])))
    };
}

#[async_trait]
impl ObjectCalls<Kind> for Sender<'_> {
    async fn create(
        &self,
        object: &Object<Kind>,
        children: &[Object<Kind>],
        observed: &Objects<Kind>,
    ) -> Result<Reply<Kind>> {
        let client = &self.client;
        let mut created = match object.kind {
            Kind::Group => {
                let tags = object.set(TAGS).iter().filter_map(Entry::as_tag);
                let with_tags = TagSpecification::builder().set_tags(sdk_tags(tags));
                let with_tags = with_tags.resource_type(ResourceType::SecurityGroup).build();
                let reply = send!(client, SecurityGroupCreate, ec2.create_security_group => .group_name(&object.key)
                    .vpc_id(self.vpc).description(object.text("description")).tag_specifications(with_tags.clone()))?;
                Object {
                    id: reply.group_id.unwrap_or_default(),
                    ..Object::new(object.kind, "")
                }
            }
            Kind::TargetGroup => {
                let reply = target_group!(client, TargetGroupCreate, create_target_group, object => .name(&object.key)
                    .vpc_id(self.vpc).target_type(TargetTypeEnum::Instance)
                    .set_protocol(protocol(object, "protocol")).set_port(number(object, "port"))
                    .set_tags(tags(object.set(TAGS))))?;
                answered(reply.target_groups, elb::target_group)
            }
            Kind::Balancer => {
                let scheme =
                    (object.text("scheme") == "internal").then_some(LoadBalancerSchemeEnum::Internal);
                let groups = groups(object, observed);
                let reply = send!(client, LoadBalancerCreate, elbv2.create_load_balancer => .name(&object.key)
                    .r#type(LoadBalancerTypeEnum::Network).set_scheme(scheme.clone())
                    .set_ip_address_type(text(object, "ip_address_type").map(|text| text.as_str().into()))
                    .set_subnet_mappings(Some(mappings(object))).set_security_groups(groups.clone())
                    .set_tags(tags(object.set(TAGS))))?;
                let mut created = answered(reply.load_balancers, elb::balancer);
                let names = object.attributes.get_key_value("security_groups");
                created
                    .attributes
                    .extend(names.map(|(name, value)| (*name, value.clone())));
                created
            }
            Kind::Listener => {
                let balancer = observed.id(Kind::Balancer, object.parent.as_deref().unwrap_or_default())?;
                let group = object.text("target_group");
                let action = forward(observed.id(Kind::TargetGroup, group)?);
                let reply = listener!(client, ListenerCreate, create_listener, object => .load_balancer_arn(balancer)
                    .set_port(object.key.parse().ok()).default_actions(action.clone())
                    .set_tags(tags(object.set(TAGS))))?;
                answered(reply.listeners, elb::listener).with("target_group", group)
            }
            Kind::Classic => {
                let groups = groups(object, observed);
                self.create_classic(object, children, groups).await?
            }
            Kind::ClassicListener => self.create_classic_listener(object).await?,
            Kind::NodeGroup => return Err(bug(object, "existence")),
        };
        if created.id.is_empty() {
            let text = format!("the answer does not have {}", object.title());
            return Err(Error::new(ErrorKind::Unexpected, text));
        }
        created.key.clone_from(&object.key);
        let mut reply = Reply::object(created);
        reply.objects.extend(children.iter().map(|child| Object {
            id: classic::listener_id(child),
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
        let (client, id) = (&self.client, object.id.as_str());
        let desired = &Object {
            attributes: changes.clone(),
            ..Object::new(object.kind, object.key.clone())
        };
        let pairs = || {
            let values = changes.iter();
            values.map(|(key, value)| (*key, value.as_str().unwrap_or_default()))
        };
        match call {
            "ModifyTargetGroup" => {
                target_group!(client, TargetGroupModify, modify_target_group, desired => .target_group_arn(id))
                    .map(drop)
            }
            "ModifyTargetGroupAttributes" => {
                let attribute = |(key, value)| TargetGroupAttribute::builder().key(key).value(value).build();
                send!(client, TargetGroupAttributesModify, elbv2.modify_target_group_attributes =>
                    .target_group_arn(id).set_attributes(Some(pairs().map(attribute).collect())))
                .map(drop)
            }
            "ModifyLoadBalancerAttributes" => {
                let attribute = |(key, value)| LoadBalancerAttribute::builder().key(key).value(value).build();
                send!(client, LoadBalancerAttributesModify, elbv2.modify_load_balancer_attributes =>
                    .load_balancer_arn(id).set_attributes(Some(pairs().map(attribute).collect())))
                .map(drop)
            }
            "SetSecurityGroups" => send!(client, SecurityGroupsSet, elbv2.set_security_groups =>
                .load_balancer_arn(id).set_security_groups(groups(desired, observed)))
            .map(drop),
            "SetSubnets" => send!(client, SubnetsSet, elbv2.set_subnets => .load_balancer_arn(id)
                .set_subnets(Some(desired.texts("subnets").into_iter().map(str::to_owned).collect())))
            .map(drop),
            "ModifyListener" => {
                let group = text(desired, "target_group");
                let group = group
                    .map(|name| observed.id(Kind::TargetGroup, &name))
                    .transpose()?;
                listener!(client, ListenerModify, modify_listener, desired => .listener_arn(id)
                    .set_default_actions(group.map(|arn| vec![forward(arn)])))
                .map(drop)
            }
            _ if matches!(object.kind, Kind::Classic | Kind::ClassicListener) => {
                let groups = groups(desired, observed);
                self.update_classic(object, call, desired, groups).await
            }
            _ => Err(bug(object, call)),
        }
        .map(|()| Reply::default())
    }

    async fn delete(&self, object: &Object<Kind>, _: bool) -> Result<()> {
        let (client, id) = (&self.client, object.id.as_str());
        let deleted = match object.kind {
            Kind::Group => {
                send!(client, SecurityGroupDelete, ec2.delete_security_group => .group_id(id)).map(drop)
            }
            Kind::TargetGroup => send!(client, TargetGroupDelete, elbv2.delete_target_group =>
                .target_group_arn(id))
            .map(drop),
            Kind::Listener => {
                send!(client, ListenerDelete, elbv2.delete_listener => .listener_arn(id)).map(drop)
            }
            Kind::Balancer => send!(client, LoadBalancerDelete, elbv2.delete_load_balancer =>
                .load_balancer_arn(id))
            .map(drop),
            Kind::Classic | Kind::ClassicListener => self.delete_classic(object).await,
            Kind::NodeGroup => Err(bug(object, "existence")),
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
        let (client, id) = (&self.client, object.id.as_str());
        match (set, object.kind) {
            (TARGETS, _) => send!(client, TargetsRegister, elbv2.register_targets => .target_group_arn(id)
                .set_targets(targets(entries)))
            .map(drop),
            (RULES, _) => self.add_rules(object, entries).await,
            (CERTIFICATES, _) => send!(client, ListenerCertificatesAdd, elbv2.add_listener_certificates =>
                .listener_arn(id).set_certificates(certificates(entries)))
            .map(drop),
            (TAGS, Kind::Group) => send!(client, TagsCreate, ec2.create_tags => .resources(id)
                .set_tags(sdk_tags(entries.iter().filter_map(Entry::as_tag))))
            .map(drop),
            (_, Kind::Classic) => self.change_classic_set(object, set, entries, true).await,
            (TAGS, _) => send!(client, LoadBalancerTagsAdd, elbv2.add_tags => .resource_arns(id)
                .set_tags(tags(entries)))
            .map(drop),
            _ => Err(bug(object, set)),
        }
        .map(|()| Reply::default())
    }

    async fn remove(&self, object: &Object<Kind>, set: &'static str, entries: &[Entry]) -> Result<()> {
        let (client, id) = (&self.client, object.id.as_str());
        match (set, object.kind) {
            (TARGETS, _) => {
                match send!(client, TargetsDeregister, elbv2.deregister_targets => .target_group_arn(id)
                    .set_targets(targets(entries)))
                {
                    // An instance that does not exist is no target.
                    Err(error) if error.kind() == ErrorKind::InvalidSpec && entries.len() == 1 => Ok(()),
                    result => result.map(drop),
                }
            }
            (RULES, _) => client.revoke(id, &rules(entries)).await,
            (CERTIFICATES, _) => {
                send!(client, ListenerCertificatesRemove, elbv2.remove_listener_certificates =>
                .listener_arn(id).set_certificates(certificates(entries)))
                .map(drop)
            }
            (_, Kind::Classic) => self.change_classic_set(object, set, entries, false).await,
            _ => Err(bug(object, set)),
        }
    }
}

impl Sender<'_> {
    /// Adds rules. Those that are there with another description only get theirs.
    async fn add_rules(&self, group: &Object<Kind>, entries: &[Entry]) -> Result<()> {
        let known = group.set(RULES).iter().filter_map(Entry::rule);
        let known: Vec<_> = known.map(Rule::tuple).collect();
        let is_known = |rule: &&Rule| known.contains(&rule.tuple());
        let (described, new): (Vec<&Rule>, Vec<&Rule>) = rules(entries).into_iter().partition(is_known);
        let (client, id) = (&self.client, group.id.as_str());
        if !described.is_empty() {
            match client.describe_rules(id, &described).await {
                // Upstream may not call it either: traffic stops for a moment.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    client.revoke(id, &described).await?;
                    client.authorize(id, &described).await?;
                }
                result => result?,
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        client.authorize(id, &new).await
    }
}

pub(super) fn bug(object: &Object<Kind>, what: &str) -> Error {
    let text = format!(
        "{} has no call to change its {what}; this is a bug",
        object.title()
    );
    Error::new(ErrorKind::Unexpected, text)
}

fn rules(entries: &[Entry]) -> Vec<&Rule> {
    entries.iter().filter_map(Entry::rule).collect()
}

/// The IDs of the security groups in an attribute, which knows our own by name. `None`: there are none.
fn groups(object: &Object<Kind>, observed: &Objects<Kind>) -> Option<Vec<String>> {
    let names = object.texts("security_groups").into_iter();
    let ids: Vec<_> = names.map(|name| group_id(observed, name)).collect();
    (!ids.is_empty()).then_some(ids)
}

/// The object in an answer. Without an ID if there is none.
fn answered<T>(objects: Option<Vec<T>>, convert: fn(&T) -> Option<Object<Kind>>) -> Object<Kind> {
    let object = objects.unwrap_or_default().iter().find_map(convert);
    object.unwrap_or_else(|| Object::new(Kind::Balancer, ""))
}

fn text(object: &Object<Kind>, name: &str) -> Option<String> {
    let text = object.text(name);
    (!text.is_empty()).then(|| text.to_owned())
}

pub(super) fn number(object: &Object<Kind>, name: &str) -> Option<i32> {
    let number = object.attributes.get(name).and_then(Value::as_i64)?;
    i32::try_from(number).ok()
}

fn protocol(object: &Object<Kind>, name: &str) -> Option<ProtocolEnum> {
    text(object, name).map(|text| ProtocolEnum::from(text.as_str()))
}

fn certificate(arn: &str) -> Certificate {
    Certificate::builder().certificate_arn(arn).build()
}

fn certificates(entries: &[Entry]) -> Option<Vec<Certificate>> {
    let names = entries.iter().map(ToString::to_string);
    Some(names.map(|arn| certificate(&arn)).collect())
}

/// The subnets of a new load balancer with the addresses in them.
fn mappings(object: &Object<Kind>) -> Vec<SubnetMapping> {
    let (allocations, addresses) = (object.texts("eip_allocations"), object.texts("private_addresses"));
    let mapping = |(at, subnet): (usize, &str)| {
        let mapping = SubnetMapping::builder().subnet_id(subnet);
        let mapping = mapping.set_allocation_id(allocations.get(at).map(ToString::to_string));
        mapping
            .set_private_ipv4_address(addresses.get(at).map(ToString::to_string))
            .build()
    };
    let subnets = object.texts("subnets").into_iter().enumerate();
    subnets.map(mapping).collect()
}

fn forward(target_group: &str) -> Action {
    let action = Action::builder().r#type(ActionTypeEnum::Forward);
    action.target_group_arn(target_group).build()
}

fn targets(entries: &[Entry]) -> Option<Vec<TargetDescription>> {
    let target = |entry: &Entry| match entry {
        Entry::Target { instance, port } => {
            let target = TargetDescription::builder().id(instance);
            Some(target.port((*port).into()).build())
        }
        _ => None,
    };
    Some(entries.iter().filter_map(target).collect())
}

fn tags(entries: &[Entry]) -> Option<Vec<Tag>> {
    let tags = entries.iter().filter_map(Entry::as_tag);
    let tags = tags.map(|(key, value)| Tag::builder().key(key).value(value).build());
    let tags: Vec<_> = tags.collect();
    (!tags.is_empty()).then_some(tags)
}
