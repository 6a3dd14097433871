//! The calls for classic load balancers.

use std::collections::{BTreeSet, HashMap};

use aws_sdk_elasticloadbalancing::types::{
    AccessLog, ConnectionDraining, ConnectionSettings, CrossZoneLoadBalancing, HealthCheck, Instance,
    Listener, LoadBalancerAttributes, LoadBalancerDescription, PolicyAttribute, Tag,
};
use ccm_core::{ErrorKind, Priority, Result, plan::objects::Object};
use serde_json::{Value, json};

use super::{
    Api, Op,
    elb::{number, texts},
};
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
        let mut all = Vec::new();
        let mut marker = None;
        loop {
            let page = self.call(Op::ClassicLoadBalancers, priority, |clients| {
                clients
                    .elb
                    .describe_load_balancers()
                    .page_size(PAGE)
                    .set_marker(marker.clone())
                    .send()
            });
            let page = page.await?;
            all.extend(page.load_balancer_descriptions().iter().map(balancer));
            marker = page.next_marker;
            if marker.as_deref().unwrap_or_default().is_empty() {
                return Ok(all);
            }
        }
    }

    /// The tags of classic load balancers by name.
    pub(crate) async fn classic_tags(
        &self,
        names: &[String],
        priority: Priority,
    ) -> Result<HashMap<String, Vec<Entry>>> {
        let mut all = HashMap::new();
        for chunk in names.chunks(TAGGED) {
            let reply = self.call(Op::ClassicTags, priority, |clients| {
                clients
                    .elb
                    .describe_tags()
                    .set_load_balancer_names(Some(chunk.to_vec()))
                    .send()
            });
            for description in reply.await?.tag_descriptions() {
                let tags = description.tags().iter();
                let tags = tags.map(|tag| Entry::tag(tag.key(), tag.value().unwrap_or_default()));
                all.insert(
                    description.load_balancer_name().unwrap_or_default().to_owned(),
                    tags.collect(),
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
        let reply = self.call(Op::ClassicAttributes, priority, |clients| {
            clients
                .elb
                .describe_load_balancer_attributes()
                .load_balancer_name(&object.key)
                .send()
        });
        if let Some(attributes) = reply.await?.load_balancer_attributes() {
            let log = attributes.access_log();
            let draining = attributes.connection_draining();
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
        groups: Vec<String>,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        let listeners: Vec<_> = listeners.iter().filter_map(listener).collect();
        let internal = object.text("scheme") == "internal";
        let subnets = texts(object, "subnets");
        let reply = self.call(Op::ClassicCreate, priority, |clients| {
            let request = clients.elb.create_load_balancer().load_balancer_name(&object.key);
            request
                .set_listeners(Some(listeners.clone()))
                .set_subnets(Some(subnets.clone()))
                .set_security_groups(Some(groups.clone()))
                .set_scheme(internal.then(|| "internal".to_owned()))
                .set_tags(Some(tags(object.set(TAGS))))
                .send()
        });
        let created = Object::new(Kind::Classic, object.key.clone()).with("dns_name", reply.await?.dns_name);
        Ok(Object {
            id: object.key.clone(),
            ..created
        })
    }

    /// Deletes a load balancer with its listeners.
    pub(crate) async fn delete_classic(&self, name: &str, priority: Priority) -> Result<()> {
        let reply = self.call(Op::ClassicDelete, priority, |clients| {
            clients.elb.delete_load_balancer().load_balancer_name(name).send()
        });
        reply.await.map(drop)
    }

    /// Creates a listener.
    pub(crate) async fn create_classic_listener(
        &self,
        balancer: &str,
        object: &Object<Kind>,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        let reply = self.call(Op::ClassicListenersCreate, priority, |clients| {
            let request = clients
                .elb
                .create_load_balancer_listeners()
                .load_balancer_name(balancer);
            request
                .set_listeners(listener(object).map(|listener| vec![listener]))
                .send()
        });
        reply.await?;
        Ok(Object {
            id: object.key.clone(),
            ..Object::new(Kind::ClassicListener, object.key.clone())
        })
    }

    /// Deletes a listener.
    pub(crate) async fn delete_classic_listener(
        &self,
        balancer: &str,
        port: &str,
        priority: Priority,
    ) -> Result<()> {
        let port = port.parse().unwrap_or_default();
        let reply = self.call(Op::ClassicListenersDelete, priority, |clients| {
            let request = clients
                .elb
                .delete_load_balancer_listeners()
                .load_balancer_name(balancer);
            request.load_balancer_ports(port).send()
        });
        reply.await.map(drop)
    }

    /// Changes a load balancer or a listener by the call with this label. `groups`: the IDs of its security groups.
    pub(crate) async fn update_classic(
        &self,
        object: &Object<Kind>,
        call: &'static str,
        changes: &Object<Kind>,
        groups: Vec<String>,
        priority: Priority,
    ) -> Result<()> {
        // Unchanged values are sent, too.
        let mut wanted = object.clone();
        wanted.attributes.extend(changes.attributes.clone());
        let name = object.key.as_str();
        match call {
            "AttachLoadBalancerToSubnets" => self.set_classic_subnets(object, &wanted, priority).await,
            "ApplySecurityGroupsToLoadBalancer" => {
                let reply = self.call(Op::ClassicSecurityGroupsSet, priority, |clients| {
                    let request = clients
                        .elb
                        .apply_security_groups_to_load_balancer()
                        .load_balancer_name(name);
                    request.set_security_groups(Some(groups.clone())).send()
                });
                reply.await.map(drop)
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
                let reply = self.call(Op::ClassicHealthCheck, priority, |clients| {
                    let request = clients.elb.configure_health_check().load_balancer_name(name);
                    request.health_check(check.clone()).send()
                });
                reply.await.map(drop)
            }
            "SetLoadBalancerPoliciesOfListener" => self.set_ssl_policy(&wanted, priority).await,
            _ => {
                let attributes = attributes(&wanted)?;
                let reply = self.call(Op::ClassicAttributesModify, priority, |clients| {
                    let request = clients
                        .elb
                        .modify_load_balancer_attributes()
                        .load_balancer_name(name);
                    request.load_balancer_attributes(attributes.clone()).send()
                });
                reply.await.map(drop)
            }
        }
    }

    async fn set_classic_subnets(
        &self,
        have: &Object<Kind>,
        want: &Object<Kind>,
        priority: Priority,
    ) -> Result<()> {
        let name = have.key.as_str();
        let (have, want): (BTreeSet<_>, BTreeSet<_>) = (
            texts(have, "subnets").into_iter().collect(),
            texts(want, "subnets").into_iter().collect(),
        );
        let (gone, new): (Vec<_>, Vec<_>) = (
            have.difference(&want).cloned().collect(),
            want.difference(&have).cloned().collect(),
        );
        if !gone.is_empty() {
            let reply = self.call(Op::ClassicSubnetsDetach, priority, |clients| {
                let request = clients
                    .elb
                    .detach_load_balancer_from_subnets()
                    .load_balancer_name(name);
                request.set_subnets(Some(gone.clone())).send()
            });
            reply.await?;
        }
        if !new.is_empty() {
            let reply = self.call(Op::ClassicSubnetsAttach, priority, |clients| {
                let request = clients
                    .elb
                    .attach_load_balancer_to_subnets()
                    .load_balancer_name(name);
                request.set_subnets(Some(new.clone())).send()
            });
            reply.await?;
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
        let port: i32 = listener.key.parse().unwrap_or_default();
        let reply = self.call(Op::ClassicListenerPoliciesSet, priority, |clients| {
            let request = clients
                .elb
                .set_load_balancer_policies_of_listener()
                .load_balancer_name(balancer);
            request.load_balancer_port(port).policy_names(policy).send()
        });
        reply.await.map(drop)
    }

    async fn create_classic_policy(
        &self,
        balancer: &str,
        name: &str,
        kind: &str,
        attribute: (&str, &str),
        priority: Priority,
    ) -> Result<()> {
        let attribute = PolicyAttribute::builder()
            .attribute_name(attribute.0)
            .attribute_value(attribute.1)
            .build();
        let reply = self.call(Op::ClassicPolicyCreate, priority, |clients| {
            let request = clients
                .elb
                .create_load_balancer_policy()
                .load_balancer_name(balancer)
                .policy_name(name);
            request
                .policy_type_name(kind)
                .policy_attributes(attribute.clone())
                .send()
        });
        match reply.await {
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
        let instances = entries
            .iter()
            .map(|entry| Instance::builder().instance_id(entry.to_string()).build());
        let instances: Vec<_> = instances.collect();
        match (set, add) {
            (INSTANCES, true) => {
                let reply = self.call(Op::ClassicInstancesRegister, priority, |clients| {
                    let request = clients
                        .elb
                        .register_instances_with_load_balancer()
                        .load_balancer_name(name);
                    request.set_instances(Some(instances.clone())).send()
                });
                reply.await.map(drop)
            }
            (INSTANCES, false) => {
                let reply = self.call(Op::ClassicInstancesDeregister, priority, |clients| {
                    let request = clients
                        .elb
                        .deregister_instances_from_load_balancer()
                        .load_balancer_name(name);
                    request.set_instances(Some(instances.clone())).send()
                });
                reply.await.map(drop)
            }
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
                let policies = if add {
                    vec![PROXY_POLICY.to_owned()]
                } else {
                    Vec::new()
                };
                for entry in entries {
                    let port: i32 = entry.to_string().parse().unwrap_or_default();
                    let reply = self.call(Op::ClassicBackendPoliciesSet, priority, |clients| {
                        let request = clients.elb.set_load_balancer_policies_for_backend_server();
                        let request = request.load_balancer_name(name).instance_port(port);
                        request.set_policy_names(Some(policies.clone())).send()
                    });
                    reply.await?;
                }
                Ok(())
            }
            _ => {
                let reply = self.call(Op::ClassicTagsAdd, priority, |clients| {
                    clients
                        .elb
                        .add_tags()
                        .load_balancer_names(name)
                        .set_tags(Some(tags(entries)))
                        .send()
                });
                reply.await.map(drop)
            }
        }
    }
}

fn incomplete(error: impl std::fmt::Display) -> ccm_core::Error {
    ccm_core::Error::new(
        ErrorKind::Unexpected,
        format!("the request is not complete; this is a bug: {error}"),
    )
}

fn tags(entries: &[Entry]) -> Vec<Tag> {
    let tags = entries.iter().filter_map(|entry| match entry {
        Entry::Tag { key, value } => Tag::builder().key(key).value(value).build().ok(),
        _ => None,
    });
    tags.collect()
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
    let proxied = balancer
        .backend_server_descriptions()
        .iter()
        .filter(|backend| backend.policy_names().iter().any(|name| name == PROXY_POLICY));
    let proxied = proxied.filter_map(|backend| backend.instance_port());
    let object = Object::new(Kind::Classic, name)
        .with("listeners", listeners.collect::<Vec<_>>())
        .with("scheme", balancer.scheme())
        .with("dns_name", balancer.dns_name())
        .with("vpc", balancer.vpc_id())
        .with("subnets", balancer.subnets().to_vec())
        .with("security_groups", balancer.security_groups().to_vec())
        .with("health_check", check.map(HealthCheck::target))
        .with("health_check_interval", check.map(HealthCheck::interval))
        .with("health_check_timeout", check.map(HealthCheck::timeout))
        .with("healthy_threshold", check.map(HealthCheck::healthy_threshold))
        .with("unhealthy_threshold", check.map(HealthCheck::unhealthy_threshold))
        .entries(INSTANCES, instances.map(|id| Entry::Name(id.to_owned())))
        .entries(PROXY_PORTS, proxied.map(|port| Entry::Name(port.to_string())));
    Object {
        id: name.to_owned(),
        ..object
    }
}
