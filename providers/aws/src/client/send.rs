//! The writes of load balancers and security groups: one request for each change of an object. IDs come from the
//! observed state.

use std::{collections::BTreeSet, time::Duration};

use aws_sdk_ec2::types::{ResourceType, Tag, TagSpecification};
use aws_sdk_elasticloadbalancing::types as classic;
use aws_sdk_elasticloadbalancingv2::types as v2;
use ccm_core::{
    Error, ErrorKind, Result, Retry, async_trait,
    error::accept,
    plan::objects::{Attributes, ObjectCalls, Reply, unsupported},
};
use serde_json::Value;

use super::{
    Client,
    ec2::permissions,
    elb::{self, PROXY_POLICY, listener_id},
};
use crate::{
    error::code,
    load_balancer::{
        classic::SSL_POLICY_PREFIX,
        kinds::{
            CERTIFICATES, Entry, INSTANCES, Kind, OWNER_TAG, Object, Objects, PROXY_PORTS, RULES, Rule, TAGS,
            TARGETS, group_id, tag_map, texts,
        },
    },
    site::{LEGACY, has_any_cluster},
};

/// Applies changes.
pub(crate) struct Sender<'a> {
    pub(crate) client: Client,
    /// The VPC of new security groups and target groups.
    pub(crate) vpc: &'a str,
}

/// Creates or modifies a target group; both requests have the fields of the health check.
macro_rules! target_group {
    ($client:expr, $op:ident, $object:ident, $($fields:tt)*) => {
        send!($client, $op, $($fields)*
            .set_health_check_protocol(protocol($object, "health_check_protocol"))
            .set_health_check_port(text($object, "health_check_port"))
            .set_health_check_path(text($object, "health_check_path"))
            .set_health_check_interval_seconds(number($object, "health_check_interval"))
            .set_health_check_timeout_seconds(number($object, "health_check_timeout"))
            .set_healthy_threshold_count(number($object, "healthy_threshold"))
            .set_unhealthy_threshold_count(number($object, "unhealthy_threshold"))
            .set_matcher(text($object, "health_check_codes")
                .map(|codes| v2::Matcher::builder().http_code(codes).build())))
    };
}

/// Creates or modifies a listener; both requests have the fields of its protocol.
macro_rules! listener {
    ($client:expr, $op:ident, $object:ident, $($fields:tt)*) => {
        send!($client, $op, $($fields)*
            .set_protocol(protocol($object, "protocol"))
            .set_certificates(text($object, "certificate").map(|arn| vec![certificate(arn)]))
            .set_ssl_policy(text($object, "ssl_policy"))
            .set_alpn_policy(text($object, "alpn_policy").map(|policy| vec![policy])))
    };
}

#[async_trait]
impl ObjectCalls<Kind> for Sender<'_> {
    async fn create(&self, object: &Object, children: &[Object], observed: &Objects) -> Result<Reply<Kind>> {
        let (client, key) = (&self.client, object.key.as_str());
        let internal = object.text("scheme") == "internal";
        let groups = || groups(object, observed);
        let created = match object.kind {
            Kind::Group => {
                let tags = TagSpecification::builder().resource_type(ResourceType::SecurityGroup);
                let tags = tags.set_tags(key_values!(Tag, pairs(object.set(TAGS)))).build();
                let reply = send!(client, SecurityGroupCreate, .group_name(key).vpc_id(self.vpc)
                    .description(object.text("description")).tag_specifications(tags.clone()));
                match reply {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        Some(self.tag_again(object, error).await?)
                    }
                    reply => reply?.group_id.map(|id| object!(object.kind, key, id, {})),
                }
            }
            Kind::TargetGroup => {
                let reply = target_group!(client, TargetGroupCreate, object, .name(key).vpc_id(self.vpc)
                    .target_type(v2::TargetTypeEnum::Instance).set_protocol(protocol(object, "protocol"))
                    .set_port(number(object, "port")).set_tags(tags(object.set(TAGS))))?;
                reply.target_groups().iter().find_map(elb::target_group)
            }
            Kind::Balancer => {
                let reply = send!(client, LoadBalancerCreate, .name(key).set_security_groups(groups())
                    .r#type(v2::LoadBalancerTypeEnum::Network)
                    .set_scheme(internal.then_some(v2::LoadBalancerSchemeEnum::Internal))
                    .set_ip_address_type(text(object, "ip_address_type").map(|text| text.as_str().into()))
                    .set_subnet_mappings(Some(mappings(object))).set_tags(tags(object.set(TAGS))))?;
                reply.load_balancers().iter().find_map(elb::balancer)
            }
            Kind::Listener => {
                let balancer = observed.id(Kind::Balancer, object.parent.as_deref().unwrap_or_default())?;
                let group = object.text("target_group");
                let action = forward(observed.id(Kind::TargetGroup, group)?);
                let reply = listener!(client, ListenerCreate, object, .load_balancer_arn(balancer)
                    .set_port(key.parse().ok()).default_actions(action.clone()).set_tags(tags(object.set(TAGS))))?;
                let created = reply.listeners().iter().find_map(elb::listener);
                created.map(|listener| listener.with("target_group", group))
            }
            Kind::Classic => {
                let listeners = || children.iter().filter_map(classic_listener).collect();
                let reply = send!(client, ClassicCreate, .load_balancer_name(key).set_listeners(Some(listeners()))
                    .set_subnets(Some(texts(object, "subnets"))).set_security_groups(groups())
                    .set_scheme(internal.then(|| "internal".to_owned())).set_tags(classic_tags(object.set(TAGS))))?;
                Some(object!(object.kind, key, key, { "dns_name" => reply.dns_name, }))
            }
            Kind::ClassicListener => {
                send!(client, ClassicListenersCreate, .set_load_balancer_name(object.parent.clone())
                    .set_listeners(classic_listener(object).map(|listener| vec![listener])))?;
                Some(object!(object.kind, key, listener_id(object), {}))
            }
            Kind::NodeGroup => return Err(unsupported(object, "existence")),
        };
        let mut created = created.ok_or_else(|| {
            let text = format!("the response does not contain {}", object.title());
            Error::new(ErrorKind::Unexpected, text)
        })?;
        // The response contains IDs. The new load balancer refers to its own security group by name.
        created.attributes.remove("security_groups");
        let mut reply = Reply::object(created);
        let children = children.iter();
        let children = children.map(|child| object!(child.kind, &child.key, listener_id(child), {}));
        reply.objects.extend(children);
        Ok(reply)
    }

    async fn update(
        &self,
        object: &Object,
        call: &'static str,
        changes: &Attributes,
        observed: &Objects,
    ) -> Result<Reply<Kind>> {
        let (client, id) = (&self.client, object.id.as_str());
        let mut desired = object.clone();
        desired.attributes.clone_from(changes);
        let desired = &desired;
        // Classic load balancers get unchanged values, too.
        let mut all = object.clone();
        all.attributes.extend(changes.clone());
        let groups = || groups(desired, observed);
        let values = || changes.keys().map(|key| (*key, desired.text(key)));
        match call {
            "ModifyTargetGroup" => {
                target_group!(client, TargetGroupModify, desired, .target_group_arn(id)).map(drop)
            }
            "ModifyTargetGroupAttributes" => done!(client, TargetGroupAttributesModify, .target_group_arn(id)
                .set_attributes(key_values!(v2::TargetGroupAttribute, values()))),
            "ModifyLoadBalancerAttributes" => done!(client, LoadBalancerAttributesModify,
                .load_balancer_arn(id).set_attributes(key_values!(v2::LoadBalancerAttribute, values()))),
            "SetSecurityGroups" => done!(client, SecurityGroupsSet, .load_balancer_arn(id)
                .set_security_groups(groups())),
            "SetSubnets" => done!(client, SubnetsSet, .load_balancer_arn(id)
                .set_subnets(Some(texts(desired, "subnets")))),
            "ModifyListener" => {
                let group = text(desired, "target_group");
                let group = group.map(|name| observed.id(Kind::TargetGroup, &name));
                let group = group.transpose()?;
                listener!(client, ListenerModify, desired, .listener_arn(id)
                    .set_default_actions(group.map(|arn| vec![forward(arn)])))
                .map(drop)
            }
            "AttachLoadBalancerToSubnets" => self.set_classic_subnets(object, desired).await,
            "ApplySecurityGroupsToLoadBalancer" => done!(client, ClassicSecurityGroupsSet,
                .load_balancer_name(id).set_security_groups(groups())),
            "ConfigureHealthCheck" => {
                let check = health_check(&all)?;
                done!(client, ClassicHealthCheck, .load_balancer_name(id).health_check(check.clone()))
            }
            "SetLoadBalancerPoliciesOfListener" => {
                let balancer = object.parent.as_deref().unwrap_or_default();
                let policy = all.text("policy");
                self.create_policy(balancer, policy).await?;
                done!(client, ClassicListenerPoliciesSet, .load_balancer_name(balancer)
                    .load_balancer_port(port(&object.key)).policy_names(policy))
            }
            "ClassicModifyLoadBalancerAttributes" => {
                let attributes = classic_attributes(&all)?;
                done!(client, ClassicAttributesModify, .load_balancer_name(id)
                    .load_balancer_attributes(attributes.clone()))
            }
            _ => Err(unsupported(object, call)),
        }
        .map(|()| Reply::default())
    }

    async fn delete(&self, object: &Object, _: bool) -> Result<()> {
        let (client, id) = (&self.client, object.id.as_str());
        let deleted = match object.kind {
            Kind::Group => done!(client, SecurityGroupDelete, .group_id(id)),
            Kind::TargetGroup => done!(client, TargetGroupDelete, .target_group_arn(id)),
            Kind::Listener => done!(client, ListenerDelete, .listener_arn(id)),
            Kind::Balancer => done!(client, LoadBalancerDelete, .load_balancer_arn(id)),
            Kind::Classic => done!(client, ClassicDelete, .load_balancer_name(id)),
            Kind::ClassicListener => done!(client, ClassicListenersDelete,
                .set_load_balancer_name(object.parent.clone()).load_balancer_ports(port(&object.key))),
            Kind::NodeGroup => Err(unsupported(object, "existence")),
        };
        accept(deleted, ErrorKind::NotFound, ()).map_err(|error| {
            if object.kind != Kind::Balancer || error.kind() != ErrorKind::InvalidSpec {
                return error;
            }
            let key = &object.key;
            let text = format!("AWS does not delete load balancer {key}; turn off its deletion protection");
            Error::new(ErrorKind::InvalidSpec, text).with_source(error)
        })
    }

    async fn add(&self, object: &Object, set: &'static str, entries: &[Entry]) -> Result<Reply<Kind>> {
        let (client, id) = (&self.client, object.id.as_str());
        match (set, object.kind) {
            (TARGETS, _) => done!(client, TargetsRegister, .target_group_arn(id)
                .set_targets(targets(entries))),
            (RULES, _) => self.add_rules(object, entries).await,
            (CERTIFICATES, _) => done!(client, ListenerCertificatesAdd, .listener_arn(id)
                .set_certificates(certificates(entries))),
            (INSTANCES, _) => done!(client, ClassicInstancesRegister, .load_balancer_name(id)
                .set_instances(instances(entries))),
            (PROXY_PORTS, _) => {
                self.create_policy(id, PROXY_POLICY).await?;
                self.set_proxy_policy(id, entries, Some(PROXY_POLICY)).await
            }
            (TAGS, Kind::Group) => done!(client, TagsCreate, .resources(id)
                .set_tags(key_values!(Tag, pairs(entries)))),
            (TAGS, Kind::Classic) => done!(client, ClassicTagsAdd, .load_balancer_names(id)
                .set_tags(classic_tags(entries))),
            (TAGS, _) => done!(client, LoadBalancerTagsAdd, .resource_arns(id).set_tags(tags(entries))),
            _ => Err(unsupported(object, set)),
        }
        .map_err(|error| if_missing(object, error))
        .map(|()| Reply::default())
    }

    async fn remove(&self, object: &Object, set: &'static str, entries: &[Entry]) -> Result<()> {
        let (client, id) = (&self.client, object.id.as_str());
        match set {
            TARGETS => {
                match done!(client, TargetsDeregister, .target_group_arn(id).set_targets(targets(entries))) {
                    // An instance that does not exist is not a target.
                    Err(error) if error.kind() == ErrorKind::InvalidSpec && entries.len() == 1 => Ok(()),
                    result => result,
                }
            }
            RULES => client.revoke(id, &rules(entries)).await,
            CERTIFICATES => done!(client, ListenerCertificatesRemove, .listener_arn(id)
                .set_certificates(certificates(entries))),
            INSTANCES => done!(client, ClassicInstancesDeregister, .load_balancer_name(id)
                .set_instances(instances(entries))),
            PROXY_PORTS => self.set_proxy_policy(id, entries, None).await,
            _ => Err(unsupported(object, set)),
        }
    }
}

/// The error if AWS does not find the object itself, not one of its entries: it may find a new object only seconds later. The
/// part waits and is read again; another client may have deleted the object.
fn if_missing(object: &Object, error: Error) -> Error {
    let is_missing = match code(&error) {
        Some("InvalidGroup.NotFound") => error.message().contains(&object.id),
        Some(code) => ["TargetGroupNotFound", "LoadBalancerNotFound", "ListenerNotFound"].contains(&code),
        None => false,
    };
    if !is_missing {
        return error;
    }
    let text = "AWS does not find the object, which may be new";
    let busy = Error::new(ErrorKind::Conflict, text).with_source(error);
    busy.with_retry(Retry::Fixed(Duration::from_secs(2)))
}

impl Sender<'_> {
    /// Gives an existing security group the tags of a new one with its name. Somebody removed the cluster's tag.
    ///
    /// # Errors
    /// `refusal`: a tag says that the security group is another cluster's.
    async fn tag_again(&self, new: &Object, refusal: Error) -> Result<Object> {
        let name = ("group-name", vec![new.key.clone()]);
        let filter = [("vpc-id", vec![self.vpc.to_owned()]), name];
        let found = self.client.security_groups(&filter).await?;
        let is_ours = |group: &Object| {
            let (mut tags, new) = (tag_map(group), tag_map(new));
            tags.retain(|key, value| new.get(key) != Some(value));
            !has_any_cluster(&tags) && ![OWNER_TAG, LEGACY].iter().any(|key| tags.contains_key(*key))
        };
        let mut found = found.into_iter().find(is_ours).ok_or(refusal)?;
        done!(self.client, TagsCreate, .resources(&found.id).set_tags(key_values!(Tag, pairs(new.set(TAGS)))))?;
        found.sets.remove(TAGS);
        Ok(found)
    }

    /// Adds rules. If a rule exists with another description, only its description is updated.
    async fn add_rules(&self, group: &Object, entries: &[Entry]) -> Result<()> {
        let known: Vec<_> = rules(group.set(RULES)).into_iter().map(Rule::tuple).collect();
        let is_known = |rule: &&Rule| known.contains(&rule.tuple());
        let (described, new): (Vec<&Rule>, Vec<&Rule>) = rules(entries).into_iter().partition(is_known);
        let (client, id) = (&self.client, group.id.as_str());
        if !described.is_empty() {
            let permissions = || permissions(&described);
            match done!(client, IngressDescriptions, .group_id(id).set_ip_permissions(permissions())) {
                // Upstream's policy does not allow it either: traffic stops for a moment.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    client.revoke(id, &described).await?;
                    send!(client, IngressAuthorize, .group_id(id).set_ip_permissions(permissions()))?;
                }
                result => result?,
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        done!(client, IngressAuthorize, .group_id(id).set_ip_permissions(permissions(&new)))
    }

    async fn set_classic_subnets(&self, object: &Object, desired: &Object) -> Result<()> {
        let current: BTreeSet<_> = texts(object, "subnets");
        let desired: BTreeSet<_> = texts(desired, "subnets");
        let list = |ids: &BTreeSet<String>| (!ids.is_empty()).then(|| ids.iter().cloned().collect());
        let (surplus, missing) = (list(&(&current - &desired)), list(&(&desired - &current)));
        let (client, name) = (&self.client, object.key.as_str());
        if surplus.is_some() {
            send!(client, ClassicSubnetsDetach, .load_balancer_name(name).set_subnets(surplus.clone()))?;
        }
        if missing.is_some() {
            send!(client, ClassicSubnetsAttach, .load_balancer_name(name).set_subnets(missing.clone()))?;
        }
        Ok(())
    }

    /// Creates a policy of a classic load balancer, if it does not exist: [`PROXY_POLICY`], or one with a predefined TLS policy.
    async fn create_policy(&self, balancer: &str, name: &str) -> Result<()> {
        let (kind, key, value) = match name.strip_prefix(SSL_POLICY_PREFIX) {
            Some(tls) => ("SSLNegotiationPolicyType", "Reference-Security-Policy", tls),
            None => ("ProxyProtocolPolicyType", "ProxyProtocol", "true"),
        };
        let attribute = classic::PolicyAttribute::builder().attribute_name(key);
        let attribute = attribute.attribute_value(value).build();
        let created = done!(self.client, ClassicPolicyCreate, .load_balancer_name(balancer).policy_name(name)
            .policy_type_name(kind).policy_attributes(attribute.clone()));
        accept(created, ErrorKind::AlreadyExists, ())
    }

    /// Sets this policy, and no other, on instance ports of a classic load balancer.
    async fn set_proxy_policy(&self, balancer: &str, ports: &[Entry], policy: Option<&str>) -> Result<()> {
        for entry in ports {
            let policies = || policy.map(str::to_owned).into_iter().collect();
            send!(self.client, ClassicBackendPoliciesSet, .load_balancer_name(balancer)
                .instance_port(port(&entry.to_string())).set_policy_names(Some(policies())))?;
        }
        Ok(())
    }
}

fn rules(entries: &[Entry]) -> Vec<&Rule> {
    entries.iter().filter_map(Entry::rule).collect()
}

/// The keys and values of tags.
fn pairs(entries: &[Entry]) -> impl Iterator<Item = (&str, &str)> {
    entries.iter().filter_map(Entry::as_tag)
}

/// The IDs of the security groups in an attribute, where the load balancer's own has its name. `None`: it is empty.
fn groups(object: &Object, observed: &Objects) -> Option<Vec<String>> {
    let names = object.texts("security_groups").into_iter();
    let ids: Vec<_> = names.map(|name| group_id(observed, name)).collect();
    (!ids.is_empty()).then_some(ids)
}

fn text(object: &Object, name: &str) -> Option<String> {
    let text = object.text(name);
    (!text.is_empty()).then(|| text.to_owned())
}

fn number(object: &Object, name: &str) -> Option<i32> {
    let number = object.attributes.get(name).and_then(Value::as_i64)?;
    i32::try_from(number).ok()
}

fn port(text: &str) -> i32 {
    text.parse().unwrap_or_default()
}

fn protocol(object: &Object, name: &str) -> Option<v2::ProtocolEnum> {
    text(object, name).map(|text| v2::ProtocolEnum::from(text.as_str()))
}

fn certificate(arn: String) -> v2::Certificate {
    v2::Certificate::builder().certificate_arn(arn).build()
}

fn certificates(entries: &[Entry]) -> Option<Vec<v2::Certificate>> {
    let names = entries.iter().map(ToString::to_string);
    Some(names.map(certificate).collect())
}

/// The subnets of a new load balancer with the addresses in them.
fn mappings(object: &Object) -> Vec<v2::SubnetMapping> {
    let allocations: Vec<_> = texts(object, "eip_allocations");
    let addresses: Vec<_> = texts(object, "private_addresses");
    let subnets = object.texts("subnets").into_iter().enumerate();
    let mappings = subnets.map(|(at, subnet)| {
        let mapping = v2::SubnetMapping::builder().subnet_id(subnet);
        let mapping = mapping.set_allocation_id(allocations.get(at).cloned());
        let mapping = mapping.set_private_ipv4_address(addresses.get(at).cloned());
        mapping.build()
    });
    mappings.collect()
}

fn forward(target_group: &str) -> v2::Action {
    let action = v2::Action::builder().r#type(v2::ActionTypeEnum::Forward);
    action.target_group_arn(target_group).build()
}

fn targets(entries: &[Entry]) -> Option<Vec<v2::TargetDescription>> {
    let target = |entry: &Entry| match entry {
        Entry::Target { instance, port } => {
            let target = v2::TargetDescription::builder().id(instance);
            Some(target.port((*port).into()).build())
        }
        _ => None,
    };
    Some(entries.iter().filter_map(target).collect())
}

fn instances(entries: &[Entry]) -> Option<Vec<classic::Instance>> {
    let ids = entries.iter().map(ToString::to_string);
    let instance = |id: String| classic::Instance::builder().instance_id(id).build();
    Some(ids.map(instance).collect())
}

fn tags(entries: &[Entry]) -> Option<Vec<v2::Tag>> {
    key_values!(v2::Tag, pairs(entries))
}

fn classic_tags(entries: &[Entry]) -> Option<Vec<classic::Tag>> {
    let tag = |(key, value)| classic::Tag::builder().key(key).value(value).build().ok();
    Some(pairs(entries).filter_map(tag).collect())
}

fn incomplete(error: impl std::fmt::Display) -> Error {
    let text = format!("the request is incomplete; this is a bug: {error}");
    Error::new(ErrorKind::Unexpected, text)
}

fn classic_listener(object: &Object) -> Option<classic::Listener> {
    classic::Listener::builder()
        .protocol(object.text("protocol"))
        .load_balancer_port(object.key.parse().ok()?)
        .instance_protocol(object.text("instance_protocol"))
        .instance_port(number(object, "instance_port")?)
        .set_ssl_certificate_id(text(object, "certificate"))
        .build()
        .ok()
}

fn health_check(object: &Object) -> Result<classic::HealthCheck> {
    classic::HealthCheck::builder()
        .target(object.text("health_check"))
        .set_interval(number(object, "health_check_interval"))
        .set_timeout(number(object, "health_check_timeout"))
        .set_healthy_threshold(number(object, "healthy_threshold"))
        .set_unhealthy_threshold(number(object, "unhealthy_threshold"))
        .build()
        .map_err(incomplete)
}

fn classic_attributes(object: &Object) -> Result<classic::LoadBalancerAttributes> {
    let flag = |name: &str| object.attributes.get(name).and_then(Value::as_bool) == Some(true);
    let (has_log, drains) = (flag("access_log"), flag("draining"));
    let log_text = |name: &str| text(object, name).filter(|_| has_log);
    let log = classic::AccessLog::builder()
        .enabled(has_log)
        .set_s3_bucket_name(log_text("access_log_bucket"))
        .set_s3_bucket_prefix(log_text("access_log_prefix"))
        .set_emit_interval(number(object, "access_log_interval").filter(|_| has_log));
    let timeout = number(object, "draining_timeout").filter(|_| drains);
    let draining = classic::ConnectionDraining::builder().enabled(drains);
    let cross_zone = classic::CrossZoneLoadBalancing::builder().enabled(flag("cross_zone"));
    let idle = classic::ConnectionSettings::builder().set_idle_timeout(number(object, "idle_timeout"));
    let attributes = classic::LoadBalancerAttributes::builder()
        .access_log(log.build())
        .connection_draining(draining.set_timeout(timeout).build())
        .cross_zone_load_balancing(cross_zone.build())
        .connection_settings(idle.build().map_err(incomplete)?);
    Ok(attributes.build())
}
