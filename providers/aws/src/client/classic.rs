//! The calls for classic load balancers.

use std::collections::HashMap;

use aws_sdk_elasticloadbalancing::types::{
    AccessLog, BackendServerDescription, ConnectionDraining, ConnectionSettings, CrossZoneLoadBalancing,
    HealthCheck, Instance, Listener, LoadBalancerAttributes, LoadBalancerDescription, PolicyAttribute, Tag,
};
use ccm_core::{ErrorKind, Priority, Result, plan::objects::Object};
use serde_json::{Value, json};

use super::{Api, Op, elb::number};
use crate::load_balancer::{
    classic::{SSL_POLICY_PREFIX, listeners_of},
    kinds::{Entry, INSTANCES, Kind, PROXY_PORTS, TAGS},
};

/// Load balancers in one page.
const PAGE: i32 = 400;
/// Load balancers in one DescribeTags.
const TAGGED: usize = 20;
/// The policy with the PROXY protocol.
const PROXY_POLICY: &str = "k8s-proxyprotocol-enabled";

impl Api {
    /// All classic load balancers, without tags and attributes.
    pub(crate) async fn classic_balancers(&self, priority: Priority) -> Result<Vec<Object<Kind>>> {
        list!(load_balancer_descriptions.map(balancer), set_marker, next_marker, self, ClassicLoadBalancers, priority, elb.describe_load_balancers =>
            .page_size(PAGE))
    }

    /// The tags of classic load balancers by name.
    pub(crate) async fn classic_tags(
        &self,
        names: &[String],
        priority: Priority,
    ) -> Result<HashMap<String, Vec<Entry>>> {
        let mut all = HashMap::new();
        for chunk in names.chunks(TAGGED) {
            let reply = send!(self, ClassicTags, priority, elb.describe_tags =>
                .set_load_balancer_names(Some(chunk.to_vec())))?;
            for description in reply.tag_descriptions() {
                let tag = |tag: &Tag| Entry::tag(tag.key(), tag.value().unwrap_or_default());
                let tags = description.tags().iter().map(tag).collect();
                all.insert(
                    description.load_balancer_name().unwrap_or_default().to_owned(),
                    tags,
                );
            }
        }
        Ok(all)
    }

    /// Completes a listed load balancer with its attributes. Returns its listeners.
    pub(crate) async fn classic_details(
        &self,
        object: &mut Object<Kind>,
        priority: Priority,
    ) -> Result<Vec<Object<Kind>>> {
        let reply = send!(self, ClassicAttributes, priority, elb.describe_load_balancer_attributes =>
            .load_balancer_name(&object.key))?;
        if let Some(attributes) = reply.load_balancer_attributes() {
            let (log, draining) = (attributes.access_log(), attributes.connection_draining());
            let values: [(&'static str, Value); 8] = [
                (
                    "cross_zone",
                    attributes
                        .cross_zone_load_balancing()
                        .map(CrossZoneLoadBalancing::enabled)
                        .into(),
                ),
                ("access_log", log.map(AccessLog::enabled).into()),
                (
                    "access_log_bucket",
                    log.and_then(AccessLog::s3_bucket_name).into(),
                ),
                (
                    "access_log_prefix",
                    log.and_then(AccessLog::s3_bucket_prefix).into(),
                ),
                (
                    "access_log_interval",
                    log.and_then(AccessLog::emit_interval).into(),
                ),
                ("draining", draining.map(ConnectionDraining::enabled).into()),
                (
                    "draining_timeout",
                    draining.and_then(ConnectionDraining::timeout).into(),
                ),
                (
                    "idle_timeout",
                    attributes
                        .connection_settings()
                        .map(ConnectionSettings::idle_timeout)
                        .into(),
                ),
            ];
            object.attributes.extend(values);
        }
        Ok(listeners_of(object))
    }

    /// Creates a load balancer with its listeners. `groups`: the IDs of its security groups.
    pub(crate) async fn create_classic(
        &self,
        object: &Object<Kind>,
        listeners: &[Object<Kind>],
        groups: &[String],
        priority: Priority,
    ) -> Result<Object<Kind>> {
        let internal = (object.text("scheme") == "internal").then(|| "internal".to_owned());
        let reply = send!(self, ClassicCreate, priority, elb.create_load_balancer =>
            .load_balancer_name(&object.key)
            .set_listeners(Some(listeners.iter().filter_map(listener).collect()))
            .set_subnets(Some(owned(object.texts("subnets")))).set_security_groups(Some(groups.to_vec()))
            .set_scheme(internal.clone()).set_tags(tags(object.set(TAGS))))?;
        Ok(super::elb::object(
            Kind::Classic,
            Some(&object.key),
            Some(&object.key),
            [("dns_name", reply.dns_name.into())],
        ))
    }

    /// Deletes a load balancer with its listeners.
    pub(crate) async fn delete_classic(&self, name: &str, priority: Priority) -> Result<()> {
        send!(self, ClassicDelete, priority, elb.delete_load_balancer => .load_balancer_name(name)).map(drop)
    }

    /// Creates a listener.
    pub(crate) async fn create_classic_listener(
        &self,
        balancer: &str,
        object: &Object<Kind>,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        send!(self, ClassicListenersCreate, priority, elb.create_load_balancer_listeners =>
            .load_balancer_name(balancer).set_listeners(listener(object).map(|listener| vec![listener])))?;
        Ok(super::elb::object(
            Kind::ClassicListener,
            Some(&object.key),
            Some(&object.key),
            [],
        ))
    }

    /// Deletes a listener.
    pub(crate) async fn delete_classic_listener(
        &self,
        balancer: &str,
        port: &str,
        priority: Priority,
    ) -> Result<()> {
        send!(self, ClassicListenersDelete, priority, elb.delete_load_balancer_listeners =>
            .load_balancer_name(balancer).load_balancer_ports(port.parse().unwrap_or_default()))
        .map(drop)
    }

    /// Changes a load balancer or a listener by the call with this label. `groups`: the IDs of its security groups.
    pub(crate) async fn update_classic(
        &self,
        object: &Object<Kind>,
        call: &'static str,
        changes: &Object<Kind>,
        groups: &[String],
        priority: Priority,
    ) -> Result<()> {
        // Unchanged values are sent, too.
        let mut wanted = object.clone();
        wanted.attributes.extend(changes.attributes.clone());
        let name = object.key.as_str();
        match call {
            "AttachLoadBalancerToSubnets" => self.set_classic_subnets(object, &wanted, priority).await,
            "ApplySecurityGroupsToLoadBalancer" => {
                send!(self, ClassicSecurityGroupsSet, priority, elb.apply_security_groups_to_load_balancer =>
                .load_balancer_name(name).set_security_groups(Some(groups.to_vec())))
                .map(drop)
            }
            "ConfigureHealthCheck" => {
                let check = HealthCheck::builder()
                    .target(wanted.text("health_check"))
                    .set_interval(number(&wanted, "health_check_interval"))
                    .set_timeout(number(&wanted, "health_check_timeout"))
                    .set_healthy_threshold(number(&wanted, "healthy_threshold"))
                    .set_unhealthy_threshold(number(&wanted, "unhealthy_threshold"))
                    .build()
                    .map_err(incomplete)?;
                send!(self, ClassicHealthCheck, priority, elb.configure_health_check =>
                    .load_balancer_name(name).health_check(check.clone()))
                .map(drop)
            }
            "SetLoadBalancerPoliciesOfListener" => self.set_ssl_policy(&wanted, priority).await,
            _ => {
                let attributes = attributes(&wanted)?;
                send!(self, ClassicAttributesModify, priority, elb.modify_load_balancer_attributes =>
                    .load_balancer_name(name).load_balancer_attributes(attributes.clone()))
                .map(drop)
            }
        }
    }

    async fn set_classic_subnets(
        &self,
        object: &Object<Kind>,
        wanted: &Object<Kind>,
        priority: Priority,
    ) -> Result<()> {
        let (have, want) = (owned(object.texts("subnets")), owned(wanted.texts("subnets")));
        let without = |all: &[String], others: &[String]| -> Vec<String> {
            all.iter().filter(|id| !others.contains(id)).cloned().collect()
        };
        let (gone, new) = (without(&have, &want), without(&want, &have));
        let name = object.key.as_str();
        if !gone.is_empty() {
            send!(self, ClassicSubnetsDetach, priority, elb.detach_load_balancer_from_subnets =>
                .load_balancer_name(name).set_subnets(Some(gone.clone())))?;
        }
        if !new.is_empty() {
            send!(self, ClassicSubnetsAttach, priority, elb.attach_load_balancer_to_subnets =>
                .load_balancer_name(name).set_subnets(Some(new.clone())))?;
        }
        Ok(())
    }

    /// Gives a TLS listener a predefined policy.
    async fn set_ssl_policy(&self, listener: &Object<Kind>, priority: Priority) -> Result<()> {
        let balancer = listener.parent.as_deref().unwrap_or_default();
        let policy = listener.text("policy");
        let reference = policy.strip_prefix(SSL_POLICY_PREFIX).unwrap_or(policy);
        let attribute = ("Reference-Security-Policy", reference);
        self.create_classic_policy(balancer, policy, "SSLNegotiationPolicyType", attribute, priority)
            .await?;
        send!(self, ClassicListenerPoliciesSet, priority, elb.set_load_balancer_policies_of_listener =>
            .load_balancer_name(balancer).load_balancer_port(listener.key.parse().unwrap_or_default())
            .policy_names(policy))
        .map(drop)
    }

    async fn create_classic_policy(
        &self,
        balancer: &str,
        name: &str,
        kind: &str,
        (key, value): (&str, &str),
        priority: Priority,
    ) -> Result<()> {
        let attribute = || {
            PolicyAttribute::builder()
                .attribute_name(key)
                .attribute_value(value)
                .build()
        };
        let created = send!(self, ClassicPolicyCreate, priority, elb.create_load_balancer_policy =>
            .load_balancer_name(balancer).policy_name(name).policy_type_name(kind)
            .policy_attributes(attribute()));
        match created {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            result => result.map(drop),
        }
    }

    /// Adds entries to a set of a load balancer, or removes them.
    pub(crate) async fn change_classic_set(
        &self,
        object: &Object<Kind>,
        set: &'static str,
        entries: &[Entry],
        add: bool,
        priority: Priority,
    ) -> Result<()> {
        let name = object.key.as_str();
        let instance = |entry: &Entry| Instance::builder().instance_id(entry.to_string()).build();
        let instances = || Some(entries.iter().map(instance).collect());
        match (set, add) {
            (INSTANCES, true) => send!(self, ClassicInstancesRegister, priority, elb.register_instances_with_load_balancer =>
                .load_balancer_name(name).set_instances(instances())).map(drop),
            (INSTANCES, false) => send!(self, ClassicInstancesDeregister, priority, elb.deregister_instances_from_load_balancer =>
                .load_balancer_name(name).set_instances(instances())).map(drop),
            (PROXY_PORTS, _) => {
                if add {
                    let attribute = ("ProxyProtocol", "true");
                    self.create_classic_policy(
                        name,
                        PROXY_POLICY,
                        "ProxyProtocolPolicyType",
                        attribute,
                        priority,
                    )
                    .await?;
                }
                for entry in entries {
                    send!(self, ClassicBackendPoliciesSet, priority, elb.set_load_balancer_policies_for_backend_server =>
                        .load_balancer_name(name)
                        .instance_port(entry.to_string().parse().unwrap_or_default())
                        .set_policy_names(Some(add.then(|| PROXY_POLICY.to_owned()).into_iter().collect())))?;
                }
                Ok(())
            }
            _ => send!(self, ClassicTagsAdd, priority, elb.add_tags => .load_balancer_names(name)
                .set_tags(tags(entries))).map(drop),
        }
    }
}

fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

fn incomplete(error: impl std::fmt::Display) -> ccm_core::Error {
    ccm_core::Error::new(
        ErrorKind::Unexpected,
        format!("the request is not complete; this is a bug: {error}"),
    )
}

fn tags(entries: &[Entry]) -> Option<Vec<Tag>> {
    let tags = entries.iter().filter_map(Entry::as_tag);
    Some(
        tags.filter_map(|(key, value)| Tag::builder().key(key).value(value).build().ok())
            .collect(),
    )
}

fn listener(object: &Object<Kind>) -> Option<Listener> {
    let certificate = Some(object.text("certificate").to_owned()).filter(|arn| !arn.is_empty());
    let listener = Listener::builder()
        .protocol(object.text("protocol"))
        .load_balancer_port(object.key.parse().ok()?);
    let listener = listener.instance_protocol(object.text("instance_protocol"));
    listener
        .instance_port(number(object, "instance_port")?)
        .set_ssl_certificate_id(certificate)
        .build()
        .ok()
}

fn attributes(object: &Object<Kind>) -> Result<LoadBalancerAttributes> {
    let flag = |name: &str| {
        object
            .attributes
            .get(name)
            .and_then(Value::as_bool)
            .unwrap_or(false)
    };
    let text = |name: &str| Some(object.text(name).to_owned()).filter(|text| !text.is_empty());
    let logs = flag("access_log");
    let log = AccessLog::builder().enabled(logs);
    let log = if logs {
        log.set_s3_bucket_name(text("access_log_bucket"))
            .set_s3_bucket_prefix(text("access_log_prefix"))
            .set_emit_interval(number(object, "access_log_interval"))
    } else {
        log
    };
    let draining = ConnectionDraining::builder().enabled(flag("draining"));
    let timeout = number(object, "draining_timeout").filter(|_| flag("draining"));
    let cross_zone = CrossZoneLoadBalancing::builder()
        .enabled(flag("cross_zone"))
        .build();
    let idle = ConnectionSettings::builder()
        .set_idle_timeout(number(object, "idle_timeout"))
        .build();
    let attributes = LoadBalancerAttributes::builder()
        .access_log(log.build())
        .connection_draining(draining.set_timeout(timeout).build())
        .cross_zone_load_balancing(cross_zone)
        .connection_settings(idle.map_err(incomplete)?);
    Ok(attributes.build())
}

fn balancer(balancer: &LoadBalancerDescription) -> Object<Kind> {
    let name = balancer.load_balancer_name().unwrap_or_default();
    let listeners = balancer.listener_descriptions().iter().filter_map(|description| {
        let listener = description.listener()?;
        let instance_protocol = listener.instance_protocol().unwrap_or(listener.protocol());
        Some(json!({
            "port": listener.load_balancer_port().to_string(),
            "attributes": {
                "protocol": listener.protocol(),
                "instance_protocol": instance_protocol,
                "instance_port": listener.instance_port(),
                "certificate": listener.ssl_certificate_id(),
                "policy": description.policy_names().iter().find(|name| name.starts_with(SSL_POLICY_PREFIX)),
            },
        }))
    });
    let check = balancer.health_check();
    let instances = balancer
        .instances()
        .iter()
        .filter_map(|instance| instance.instance_id());
    let backends = balancer.backend_server_descriptions().iter();
    let proxied = backends.filter(|backend| backend.policy_names().iter().any(|name| name == PROXY_POLICY));
    let proxied = proxied.filter_map(BackendServerDescription::instance_port);
    let object = super::elb::object(
        Kind::Classic,
        Some(name),
        Some(name),
        [
            ("listeners", listeners.collect()),
            ("scheme", balancer.scheme().into()),
            ("dns_name", balancer.dns_name().into()),
            ("subnets", balancer.subnets().into()),
            ("security_groups", balancer.security_groups().into()),
            ("health_check", check.map(HealthCheck::target).into()),
            ("health_check_interval", check.map(HealthCheck::interval).into()),
            ("health_check_timeout", check.map(HealthCheck::timeout).into()),
            (
                "healthy_threshold",
                check.map(HealthCheck::healthy_threshold).into(),
            ),
            (
                "unhealthy_threshold",
                check.map(HealthCheck::unhealthy_threshold).into(),
            ),
        ],
    );
    object
        .entries(INSTANCES, instances.map(|id| Entry::Name(id.to_owned())))
        .entries(PROXY_PORTS, proxied.map(|port| Entry::Name(port.to_string())))
}
