//! The calls for classic load balancers.

use std::collections::HashMap;

use aws_sdk_elasticloadbalancing::types::{
    AccessLog, BackendServerDescription, ConnectionDraining, ConnectionSettings, CrossZoneLoadBalancing,
    HealthCheck, Instance, Listener, LoadBalancerAttributes, LoadBalancerDescription, PolicyAttribute, Tag,
};
use ccm_core::{
    Error, ErrorKind, Result,
    plan::objects::{Attributes, Object},
};
use serde_json::Value;

use super::{
    Client, Op,
    send::{Sender, bug, number},
};
use crate::load_balancer::{
    classic::SSL_POLICY_PREFIX,
    kinds::{Entry, INSTANCES, Kind, PROXY_PORTS, TAGS},
};

/// Load balancers in one page.
const PAGE: i32 = 400;
/// Load balancers in one DescribeTags.
const TAGGED: usize = 20;
/// The policy with the PROXY protocol.
const PROXY_POLICY: &str = "k8s-proxyprotocol-enabled";

impl Client {
    /// All classic load balancers with their listeners, without tags and attributes.
    pub(crate) async fn classic_balancers(&self) -> Result<Vec<(Object<Kind>, Vec<Object<Kind>>)>> {
        list!(self, ClassicLoadBalancers, elb.describe_load_balancers(set_marker, next_marker) =>
            load_balancer_descriptions.filter_map(|one| balancer(&one)), .page_size(PAGE))
    }

    /// The tags of classic load balancers by name.
    pub(crate) async fn classic_tags(&self, names: &[String]) -> Result<HashMap<String, Vec<Entry>>> {
        let mut all = HashMap::new();
        for chunk in names.chunks(TAGGED) {
            let reply = send!(self, ClassicTags, elb.describe_tags => .set_load_balancer_names(Some(chunk.to_vec())))?;
            let tag = |tag: &Tag| Entry::tag(tag.key(), tag.value().unwrap_or_default());
            all.extend(reply.tag_descriptions().iter().filter_map(|one| {
                let tags = one.tags().iter().map(tag);
                Some((one.load_balancer_name()?.to_owned(), tags.collect()))
            }));
        }
        Ok(all)
    }

    /// The attributes of a load balancer that are not listed.
    pub(crate) async fn classic_attributes(&self, name: &str) -> Result<Attributes> {
        let reply = send!(self, ClassicAttributes, elb.describe_load_balancer_attributes =>
            .load_balancer_name(name))?;
        let Some(attributes) = reply.load_balancer_attributes() else {
            return Ok(Attributes::new());
        };
        let (log, draining) = (attributes.access_log(), attributes.connection_draining());
        let cross_zone = attributes.cross_zone_load_balancing();
        let object = object!(Kind::Classic, name, name, {
            "cross_zone" => cross_zone.map(CrossZoneLoadBalancing::enabled),
            "access_log" => log.map(AccessLog::enabled),
            "access_log_bucket" => log.and_then(AccessLog::s3_bucket_name),
            "access_log_prefix" => log.and_then(AccessLog::s3_bucket_prefix),
            "access_log_interval" => log.and_then(AccessLog::emit_interval),
            "draining" => draining.map(ConnectionDraining::enabled),
            "draining_timeout" => draining.and_then(ConnectionDraining::timeout),
            "idle_timeout" => attributes.connection_settings().map(ConnectionSettings::idle_timeout),
        });
        Ok(object.attributes)
    }
}

/// The writes.
impl Sender<'_> {
    /// Creates a load balancer with its listeners. `groups`: the IDs of its security groups.
    pub(super) async fn create_classic(
        &self,
        object: &Object<Kind>,
        listeners: &[Object<Kind>],
        groups: Option<Vec<String>>,
    ) -> Result<Object<Kind>> {
        let internal = (object.text("scheme") == "internal").then(|| "internal".to_owned());
        let reply = send!(self.client, ClassicCreate, elb.create_load_balancer => .load_balancer_name(&object.key)
            .set_listeners(Some(listeners.iter().filter_map(listener).collect()))
            .set_subnets(Some(owned(object.texts("subnets")))).set_security_groups(groups.clone())
            .set_scheme(internal.clone()).set_tags(tags(object.set(TAGS))))?;
        Ok(object!(Kind::Classic, &object.key, &object.key, { "dns_name" => reply.dns_name, }))
    }

    /// Creates a listener.
    pub(super) async fn create_classic_listener(&self, object: &Object<Kind>) -> Result<Object<Kind>> {
        send!(self.client, ClassicListenersCreate, elb.create_load_balancer_listeners =>
            .set_load_balancer_name(object.parent.clone())
            .set_listeners(listener(object).map(|listener| vec![listener])))?;
        Ok(object!(
            Kind::ClassicListener,
            &object.key,
            listener_id(object),
            {}
        ))
    }

    /// Deletes a load balancer with its listeners, or a listener.
    pub(super) async fn delete_classic(&self, object: &Object<Kind>) -> Result<()> {
        if object.kind == Kind::Classic {
            return send!(self.client, ClassicDelete, elb.delete_load_balancer => .load_balancer_name(&object.key))
                .map(drop);
        }
        send!(self.client, ClassicListenersDelete, elb.delete_load_balancer_listeners =>
            .set_load_balancer_name(object.parent.clone()).load_balancer_ports(port(&object.key)))
        .map(drop)
    }

    /// Changes a load balancer or a listener by the call with this label. `groups`: the IDs of its security groups.
    pub(super) async fn update_classic(
        &self,
        object: &Object<Kind>,
        call: &'static str,
        changes: &Object<Kind>,
        groups: Option<Vec<String>>,
    ) -> Result<()> {
        // Unchanged values are sent, too.
        let mut desired = object.clone();
        desired.attributes.extend(changes.attributes.clone());
        let name = object.key.as_str();
        match call {
            "AttachLoadBalancerToSubnets" => self.set_classic_subnets(object, &desired).await,
            "ApplySecurityGroupsToLoadBalancer" => {
                send!(self.client, ClassicSecurityGroupsSet, elb.apply_security_groups_to_load_balancer =>
                    .load_balancer_name(name).set_security_groups(groups.clone()))
                .map(drop)
            }
            "ConfigureHealthCheck" => {
                let check = HealthCheck::builder()
                    .target(desired.text("health_check"))
                    .set_interval(number(&desired, "health_check_interval"))
                    .set_timeout(number(&desired, "health_check_timeout"))
                    .set_healthy_threshold(number(&desired, "healthy_threshold"))
                    .set_unhealthy_threshold(number(&desired, "unhealthy_threshold"))
                    .build()
                    .map_err(incomplete)?;
                send!(self.client, ClassicHealthCheck, elb.configure_health_check => .load_balancer_name(name)
                    .health_check(check.clone()))
                .map(drop)
            }
            "SetLoadBalancerPoliciesOfListener" => {
                let balancer = object.parent.as_deref().unwrap_or_default();
                let policy = desired.text("policy");
                let reference = policy.strip_prefix(SSL_POLICY_PREFIX).unwrap_or(policy);
                let attribute = ("Reference-Security-Policy", reference);
                self.create_policy(balancer, policy, "SSLNegotiationPolicyType", attribute)
                    .await?;
                send!(self.client, ClassicListenerPoliciesSet, elb.set_load_balancer_policies_of_listener =>
                    .load_balancer_name(balancer).load_balancer_port(port(name)).policy_names(policy))
                .map(drop)
            }
            _ => {
                let attributes = attributes(&desired)?;
                send!(self.client, ClassicAttributesModify, elb.modify_load_balancer_attributes =>
                    .load_balancer_name(name).load_balancer_attributes(attributes.clone()))
                .map(drop)
            }
        }
    }

    async fn set_classic_subnets(&self, object: &Object<Kind>, desired: &Object<Kind>) -> Result<()> {
        let (have, want) = (owned(object.texts("subnets")), owned(desired.texts("subnets")));
        let without = |all: &[String], others: &[String]| -> Vec<String> {
            all.iter().filter(|id| !others.contains(id)).cloned().collect()
        };
        let (gone, new) = (without(&have, &want), without(&want, &have));
        let name = object.key.as_str();
        if !gone.is_empty() {
            send!(self.client, ClassicSubnetsDetach, elb.detach_load_balancer_from_subnets =>
                .load_balancer_name(name).set_subnets(Some(gone.clone())))?;
        }
        if !new.is_empty() {
            send!(self.client, ClassicSubnetsAttach, elb.attach_load_balancer_to_subnets =>
                .load_balancer_name(name).set_subnets(Some(new.clone())))?;
        }
        Ok(())
    }

    async fn create_policy(
        &self,
        balancer: &str,
        name: &str,
        kind: &str,
        (key, value): (&str, &str),
    ) -> Result<()> {
        let attribute = PolicyAttribute::builder().attribute_name(key);
        let attribute = attribute.attribute_value(value).build();
        let created = send!(self.client, ClassicPolicyCreate, elb.create_load_balancer_policy =>
            .load_balancer_name(balancer).policy_name(name).policy_type_name(kind)
            .policy_attributes(attribute.clone()));
        match created {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            result => result.map(drop),
        }
    }

    /// Adds entries to a set of a load balancer, or removes them.
    pub(super) async fn change_classic_set(
        &self,
        object: &Object<Kind>,
        set: &'static str,
        entries: &[Entry],
        add: bool,
    ) -> Result<()> {
        let name = object.key.as_str();
        let instance = |entry: &Entry| Instance::builder().instance_id(entry.to_string()).build();
        let instances = || Some(entries.iter().map(instance).collect());
        match (set, add) {
            (INSTANCES, true) => {
                send!(self.client, ClassicInstancesRegister, elb.register_instances_with_load_balancer =>
                    .load_balancer_name(name).set_instances(instances()))
                .map(drop)
            }
            (INSTANCES, false) => {
                send!(self.client, ClassicInstancesDeregister, elb.deregister_instances_from_load_balancer =>
                    .load_balancer_name(name).set_instances(instances()))
                .map(drop)
            }
            (PROXY_PORTS, _) => {
                if add {
                    let attribute = ("ProxyProtocol", "true");
                    self.create_policy(name, PROXY_POLICY, "ProxyProtocolPolicyType", attribute)
                        .await?;
                }
                let policies: Vec<_> = add.then(|| PROXY_POLICY.to_owned()).into_iter().collect();
                for entry in entries {
                    send!(self.client, ClassicBackendPoliciesSet, elb.set_load_balancer_policies_for_backend_server =>
                        .load_balancer_name(name).instance_port(port(&entry.to_string()))
                        .set_policy_names(Some(policies.clone())))?;
                }
                Ok(())
            }
            (TAGS, true) => send!(self.client, ClassicTagsAdd, elb.add_tags => .load_balancer_names(name)
                .set_tags(tags(entries)))
            .map(drop),
            _ => Err(bug(object, set)),
        }
    }
}

fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

fn port(text: &str) -> i32 {
    text.parse().unwrap_or_default()
}

fn incomplete(error: impl std::fmt::Display) -> Error {
    let text = format!("the request is not complete; this is a bug: {error}");
    Error::new(ErrorKind::Unexpected, text)
}

fn tags(entries: &[Entry]) -> Option<Vec<Tag>> {
    let tags = entries.iter().filter_map(Entry::as_tag);
    let tags = tags.filter_map(|(key, value)| Tag::builder().key(key).value(value).build().ok());
    Some(tags.collect())
}

fn text(object: &Object<Kind>, name: &str) -> Option<String> {
    Some(object.text(name).to_owned()).filter(|text| !text.is_empty())
}

/// The ID of a listener, since AWS has none: load balancer and port.
pub(super) fn listener_id(listener: &Object<Kind>) -> String {
    let balancer = listener.parent.as_deref().unwrap_or_default();
    format!("{balancer}:{}", listener.key)
}

fn listener(object: &Object<Kind>) -> Option<Listener> {
    Listener::builder()
        .protocol(object.text("protocol"))
        .load_balancer_port(object.key.parse().ok()?)
        .instance_protocol(object.text("instance_protocol"))
        .instance_port(number(object, "instance_port")?)
        .set_ssl_certificate_id(text(object, "certificate"))
        .build()
        .ok()
}

fn attributes(object: &Object<Kind>) -> Result<LoadBalancerAttributes> {
    let flag = |name: &str| object.attributes.get(name).and_then(Value::as_bool) == Some(true);
    let mut log = AccessLog::builder().enabled(flag("access_log"));
    if flag("access_log") {
        log = log
            .set_s3_bucket_name(text(object, "access_log_bucket"))
            .set_s3_bucket_prefix(text(object, "access_log_prefix"))
            .set_emit_interval(number(object, "access_log_interval"));
    }
    let timeout = number(object, "draining_timeout").filter(|_| flag("draining"));
    let draining = ConnectionDraining::builder().enabled(flag("draining"));
    let cross_zone = CrossZoneLoadBalancing::builder().enabled(flag("cross_zone"));
    let idle = ConnectionSettings::builder().set_idle_timeout(number(object, "idle_timeout"));
    let attributes = LoadBalancerAttributes::builder()
        .access_log(log.build())
        .connection_draining(draining.set_timeout(timeout).build())
        .cross_zone_load_balancing(cross_zone.build())
        .connection_settings(idle.build().map_err(incomplete)?);
    Ok(attributes.build())
}

/// A load balancer and its listeners.
fn balancer(balancer: &LoadBalancerDescription) -> Option<(Object<Kind>, Vec<Object<Kind>>)> {
    let name = balancer.load_balancer_name()?;
    let descriptions = balancer.listener_descriptions().iter();
    let listeners = descriptions.filter_map(|description| {
        let listener = description.listener()?;
        let port = listener.load_balancer_port().to_string();
        let mut policies = description.policy_names().iter();
        let mut object = object!(Kind::ClassicListener, &port, &port, {
            "protocol" => listener.protocol(),
            "instance_protocol" => listener.instance_protocol().unwrap_or(listener.protocol()),
            "instance_port" => listener.instance_port(),
            "certificate" => listener.ssl_certificate_id(),
            "policy" => policies.find(|name| name.starts_with(SSL_POLICY_PREFIX)).map(String::as_str),
        });
        object.parent = Some(name.to_owned());
        object.id = listener_id(&object);
        Some(object)
    });
    let check = balancer.health_check();
    let instances = balancer.instances().iter();
    let instances = instances.filter_map(|instance| instance.instance_id.clone());
    let backends = balancer.backend_server_descriptions().iter();
    let proxied = backends.filter(|backend| backend.policy_names().iter().any(|name| name == PROXY_POLICY));
    let proxied = proxied.filter_map(BackendServerDescription::instance_port);
    let object = object!(Kind::Classic, name, name, {
        "scheme" => balancer.scheme(),
        "dns_name" => balancer.dns_name(),
        "subnets" => balancer.subnets(),
        "security_groups" => balancer.security_groups(),
        "health_check" => check.map(HealthCheck::target),
        "health_check_interval" => check.map(HealthCheck::interval),
        "health_check_timeout" => check.map(HealthCheck::timeout),
        "healthy_threshold" => check.map(HealthCheck::healthy_threshold),
        "unhealthy_threshold" => check.map(HealthCheck::unhealthy_threshold),
    });
    let object = object.entries(INSTANCES, instances.map(Entry::Name));
    let ports = proxied.map(|port| Entry::Name(port.to_string()));
    Some((object.entries(PROXY_PORTS, ports), listeners.collect()))
}
