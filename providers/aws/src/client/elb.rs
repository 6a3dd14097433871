//! The calls for network load balancers, their listeners and target groups.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_elasticloadbalancingv2::types::{
    Action, ActionTypeEnum, Certificate, Listener, LoadBalancer, LoadBalancerAttribute,
    LoadBalancerSchemeEnum, LoadBalancerTypeEnum, Matcher, ProtocolEnum, SubnetMapping, Tag,
    TargetDescription, TargetGroup, TargetGroupAttribute, TargetHealthReasonEnum, TargetTypeEnum,
};
use ccm_core::{
    Error, ErrorKind, Priority, Result,
    plan::objects::{Attributes, Kind as _, Object},
};
use serde_json::Value;

use super::{Api, Op};
use crate::load_balancer::kinds::{Entry, Kind, TAGS};

/// Load balancers, target groups and listeners in one page.
const PAGE: i32 = 400;
/// Resources in one DescribeTags.
const TAGGED: usize = 20;

impl Api {
    /// All load balancers of the v2 API, without tags and attributes.
    pub(crate) async fn network_balancers(&self, priority: Priority) -> Result<Vec<Object<Kind>>> {
        let mut all = Vec::new();
        let mut marker = None;
        loop {
            let page = self.call(Op::LoadBalancers, priority, |clients| {
                clients
                    .elbv2
                    .describe_load_balancers()
                    .page_size(PAGE)
                    .set_marker(marker.clone())
                    .send()
            });
            let page = page.await?;
            all.extend(page.load_balancers().iter().map(balancer));
            marker = page.next_marker;
            if marker.as_deref().unwrap_or_default().is_empty() {
                return Ok(all);
            }
        }
    }

    /// All target groups, without tags, attributes and targets.
    pub(crate) async fn target_groups(&self, priority: Priority) -> Result<Vec<Object<Kind>>> {
        let mut all = Vec::new();
        let mut marker = None;
        loop {
            let page = self.call(Op::TargetGroups, priority, |clients| {
                clients
                    .elbv2
                    .describe_target_groups()
                    .page_size(PAGE)
                    .set_marker(marker.clone())
                    .send()
            });
            let page = page.await?;
            all.extend(page.target_groups().iter().map(target_group));
            marker = page.next_marker;
            if marker.as_deref().unwrap_or_default().is_empty() {
                return Ok(all);
            }
        }
    }

    /// The listeners of a load balancer. `target_group` is an ARN.
    pub(crate) async fn listeners(&self, balancer: &str, priority: Priority) -> Result<Vec<Object<Kind>>> {
        let mut all = Vec::new();
        let mut marker = None;
        loop {
            let page = self.call(Op::Listeners, priority, |clients| {
                let request = clients.elbv2.describe_listeners().load_balancer_arn(balancer);
                request.page_size(PAGE).set_marker(marker.clone()).send()
            });
            let page = page.await?;
            all.extend(page.listeners().iter().map(listener));
            marker = page.next_marker;
            if marker.as_deref().unwrap_or_default().is_empty() {
                return Ok(all);
            }
        }
    }

    /// The attributes of a load balancer.
    pub(crate) async fn balancer_attributes(&self, arn: &str, priority: Priority) -> Result<Attributes> {
        let reply = self.call(Op::LoadBalancerAttributes, priority, |clients| {
            clients
                .elbv2
                .describe_load_balancer_attributes()
                .load_balancer_arn(arn)
                .send()
        });
        let reply = reply.await?;
        let pairs = reply
            .attributes()
            .iter()
            .map(|attribute| (attribute.key(), attribute.value()));
        Ok(attributes(Kind::Balancer, pairs))
    }

    /// The attributes of a target group.
    pub(crate) async fn target_group_attributes(&self, arn: &str, priority: Priority) -> Result<Attributes> {
        let reply = self.call(Op::TargetGroupAttributes, priority, |clients| {
            clients
                .elbv2
                .describe_target_group_attributes()
                .target_group_arn(arn)
                .send()
        });
        let reply = reply.await?;
        let pairs = reply
            .attributes()
            .iter()
            .map(|attribute| (attribute.key(), attribute.value()));
        Ok(attributes(Kind::TargetGroup, pairs))
    }

    /// The targets of a target group, without those that are leaving.
    pub(crate) async fn targets(&self, arn: &str, priority: Priority) -> Result<Vec<Entry>> {
        let reply = self.call(Op::TargetHealth, priority, |clients| {
            clients
                .elbv2
                .describe_target_health()
                .target_group_arn(arn)
                .send()
        });
        let reply = reply.await?;
        let leaves = Some(&TargetHealthReasonEnum::DeregistrationInProgress);
        let staying = reply
            .target_health_descriptions()
            .iter()
            .filter(|description| description.target_health().and_then(|health| health.reason()) != leaves);
        let targets = staying.filter_map(|description| {
            let target = description.target()?;
            Some(Entry::Target {
                instance: target.id()?.to_owned(),
                port: u16::try_from(target.port()?).ok()?,
            })
        });
        Ok(targets.collect())
    }

    /// The certificates of a TLS listener beside the default one.
    pub(crate) async fn certificates(&self, listener: &str, priority: Priority) -> Result<Vec<Entry>> {
        let reply = self.call(Op::ListenerCertificates, priority, |clients| {
            clients
                .elbv2
                .describe_listener_certificates()
                .listener_arn(listener)
                .page_size(PAGE)
                .send()
        });
        let reply = reply.await?;
        let further = reply
            .certificates()
            .iter()
            .filter(|certificate| !certificate.is_default().unwrap_or(false));
        Ok(further
            .filter_map(|certificate| Some(Entry::Name(certificate.certificate_arn()?.to_owned())))
            .collect())
    }

    /// The tags of load balancers, listeners and target groups by ARN.
    pub(crate) async fn load_balancer_tags(
        &self,
        arns: &[String],
        priority: Priority,
    ) -> Result<HashMap<String, Vec<Entry>>> {
        let mut all = HashMap::new();
        for chunk in arns.chunks(TAGGED) {
            let reply = self.call(Op::LoadBalancerTags, priority, |clients| {
                clients
                    .elbv2
                    .describe_tags()
                    .set_resource_arns(Some(chunk.to_vec()))
                    .send()
            });
            for description in reply.await?.tag_descriptions() {
                let tags = description.tags().iter();
                let tags = tags
                    .map(|tag| Entry::tag(tag.key().unwrap_or_default(), tag.value().unwrap_or_default()));
                all.insert(
                    description.resource_arn().unwrap_or_default().to_owned(),
                    tags.collect(),
                );
            }
        }
        Ok(all)
    }

    /// Creates a load balancer. `groups`: the IDs of its security groups.
    pub(crate) async fn create_balancer(
        &self,
        object: &Object<Kind>,
        groups: Vec<String>,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        let (allocations, addresses) = (
            texts(object, "eip_allocations"),
            texts(object, "private_addresses"),
        );
        let mappings = texts(object, "subnets")
            .into_iter()
            .enumerate()
            .map(|(at, subnet)| {
                SubnetMapping::builder()
                    .subnet_id(subnet)
                    .set_allocation_id(allocations.get(at).cloned())
                    .set_private_ipv4_address(addresses.get(at).cloned())
                    .build()
            });
        let mappings: Vec<_> = mappings.collect();
        let internal = object.text("scheme") == "internal";
        let address_type = Some(object.text("ip_address_type")).filter(|text| !text.is_empty());
        let reply = self.call(Op::LoadBalancerCreate, priority, |clients| {
            let request = clients
                .elbv2
                .create_load_balancer()
                .name(&object.key)
                .r#type(LoadBalancerTypeEnum::Network);
            request
                .set_scheme(internal.then_some(LoadBalancerSchemeEnum::Internal))
                .set_ip_address_type(address_type.map(Into::into))
                .set_subnet_mappings(Some(mappings.clone()))
                .set_security_groups(Some(groups.clone()).filter(|groups| !groups.is_empty()))
                .set_tags(tags(object))
                .send()
        });
        let reply = reply.await?;
        reply
            .load_balancers()
            .first()
            .map(balancer)
            .ok_or_else(|| no_object("load balancer"))
    }

    /// Creates a target group in a VPC.
    pub(crate) async fn create_target_group(
        &self,
        object: &Object<Kind>,
        vpc: &str,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        let reply = self.call(Op::TargetGroupCreate, priority, |clients| {
            let request = clients.elbv2.create_target_group().name(&object.key).vpc_id(vpc);
            request
                .target_type(TargetTypeEnum::Instance)
                .set_protocol(protocol(object, "protocol"))
                .set_port(number(object, "port"))
                .set_health_check_protocol(protocol(object, "health_check_protocol"))
                .set_health_check_port(text(object, "health_check_port"))
                .set_health_check_path(text(object, "health_check_path"))
                .set_health_check_interval_seconds(number(object, "health_check_interval"))
                .set_health_check_timeout_seconds(number(object, "health_check_timeout"))
                .set_healthy_threshold_count(number(object, "healthy_threshold"))
                .set_unhealthy_threshold_count(number(object, "unhealthy_threshold"))
                .set_matcher(matcher(text(object, "health_check_codes")))
                .set_tags(tags(object))
                .send()
        });
        let reply = reply.await?;
        reply
            .target_groups()
            .first()
            .map(target_group)
            .ok_or_else(|| no_object("target group"))
    }

    /// Creates a listener that forwards to a target group.
    pub(crate) async fn create_listener(
        &self,
        object: &Object<Kind>,
        balancer: &str,
        target_group: &str,
        priority: Priority,
    ) -> Result<Object<Kind>> {
        let port = object.key.parse().ok();
        let alpn = text(object, "alpn_policy").map(|policy| vec![policy]);
        let reply = self.call(Op::ListenerCreate, priority, |clients| {
            let request = clients
                .elbv2
                .create_listener()
                .load_balancer_arn(balancer)
                .set_port(port);
            request
                .set_protocol(protocol(object, "protocol"))
                .set_certificates(certificate(text(object, "certificate")))
                .set_ssl_policy(text(object, "ssl_policy"))
                .set_alpn_policy(alpn.clone())
                .default_actions(forward(target_group))
                .set_tags(tags(object))
                .send()
        });
        let reply = reply.await?;
        reply
            .listeners()
            .first()
            .map(listener)
            .ok_or_else(|| no_object("listener"))
    }

    /// Changes a listener. `target_group`: an ARN, if that changes.
    pub(crate) async fn modify_listener(
        &self,
        arn: &str,
        changes: &Attributes,
        target_group: Option<&str>,
        priority: Priority,
    ) -> Result<()> {
        let text = |name: &str| changes.get(name).and_then(Value::as_str).map(str::to_owned);
        let protocol = text("protocol").map(|text| ProtocolEnum::from(text.as_str()));
        let alpn = text("alpn_policy").map(|policy| vec![policy]);
        let reply = self.call(Op::ListenerModify, priority, |clients| {
            let request = clients.elbv2.modify_listener().listener_arn(arn);
            request
                .set_protocol(protocol.clone())
                .set_certificates(certificate(text("certificate")))
                .set_ssl_policy(text("ssl_policy"))
                .set_alpn_policy(alpn.clone())
                .set_default_actions(target_group.map(|arn| vec![forward(arn)]))
                .send()
        });
        reply.await.map(drop)
    }

    /// Changes the health check of a target group.
    pub(crate) async fn modify_target_group(
        &self,
        arn: &str,
        changes: &Object<Kind>,
        priority: Priority,
    ) -> Result<()> {
        let reply = self.call(Op::TargetGroupModify, priority, |clients| {
            let request = clients.elbv2.modify_target_group().target_group_arn(arn);
            request
                .set_health_check_protocol(protocol(changes, "health_check_protocol"))
                .set_health_check_port(text(changes, "health_check_port"))
                .set_health_check_path(text(changes, "health_check_path"))
                .set_health_check_interval_seconds(number(changes, "health_check_interval"))
                .set_health_check_timeout_seconds(number(changes, "health_check_timeout"))
                .set_healthy_threshold_count(number(changes, "healthy_threshold"))
                .set_unhealthy_threshold_count(number(changes, "unhealthy_threshold"))
                .set_matcher(matcher(text(changes, "health_check_codes")))
                .send()
        });
        reply.await.map(drop)
    }

    /// Changes attributes of a load balancer.
    pub(crate) async fn modify_balancer_attributes(
        &self,
        arn: &str,
        changes: &Attributes,
        priority: Priority,
    ) -> Result<()> {
        let pairs = changes.iter();
        let pairs = pairs.map(|(key, value)| {
            LoadBalancerAttribute::builder()
                .key(*key)
                .value(plain(value))
                .build()
        });
        let pairs: Vec<_> = pairs.collect();
        let reply = self.call(Op::LoadBalancerAttributesModify, priority, |clients| {
            let request = clients
                .elbv2
                .modify_load_balancer_attributes()
                .load_balancer_arn(arn);
            request.set_attributes(Some(pairs.clone())).send()
        });
        reply.await.map(drop)
    }

    /// Changes attributes of a target group.
    pub(crate) async fn modify_target_group_attributes(
        &self,
        arn: &str,
        changes: &Attributes,
        priority: Priority,
    ) -> Result<()> {
        let pairs = changes.iter();
        let pairs = pairs.map(|(key, value)| {
            TargetGroupAttribute::builder()
                .key(*key)
                .value(plain(value))
                .build()
        });
        let pairs: Vec<_> = pairs.collect();
        let reply = self.call(Op::TargetGroupAttributesModify, priority, |clients| {
            let request = clients
                .elbv2
                .modify_target_group_attributes()
                .target_group_arn(arn);
            request.set_attributes(Some(pairs.clone())).send()
        });
        reply.await.map(drop)
    }

    /// Gives a load balancer these security groups, by ID.
    pub(crate) async fn set_security_groups(
        &self,
        arn: &str,
        groups: Vec<String>,
        priority: Priority,
    ) -> Result<()> {
        let reply = self.call(Op::SecurityGroupsSet, priority, |clients| {
            let request = clients.elbv2.set_security_groups().load_balancer_arn(arn);
            request.set_security_groups(Some(groups.clone())).send()
        });
        reply.await.map(drop)
    }

    /// Gives a load balancer these subnets.
    pub(crate) async fn set_subnets(
        &self,
        arn: &str,
        subnets: Vec<String>,
        priority: Priority,
    ) -> Result<()> {
        let reply = self.call(Op::SubnetsSet, priority, |clients| {
            clients
                .elbv2
                .set_subnets()
                .load_balancer_arn(arn)
                .set_subnets(Some(subnets.clone()))
                .send()
        });
        reply.await.map(drop)
    }

    /// Deletes a load balancer with its listeners, a listener or a target group.
    pub(crate) async fn delete_balancing(&self, kind: Kind, arn: &str, priority: Priority) -> Result<()> {
        match kind {
            Kind::Listener => {
                let reply = self.call(Op::ListenerDelete, priority, |clients| {
                    clients.elbv2.delete_listener().listener_arn(arn).send()
                });
                reply.await.map(drop)
            }
            Kind::TargetGroup => {
                let reply = self.call(Op::TargetGroupDelete, priority, |clients| {
                    clients.elbv2.delete_target_group().target_group_arn(arn).send()
                });
                reply.await.map(drop)
            }
            _ => {
                let reply = self.call(Op::LoadBalancerDelete, priority, |clients| {
                    clients.elbv2.delete_load_balancer().load_balancer_arn(arn).send()
                });
                reply.await.map(drop)
            }
        }
    }

    /// Registers or deregisters targets.
    pub(crate) async fn change_targets(
        &self,
        arn: &str,
        entries: &[Entry],
        register: bool,
        priority: Priority,
    ) -> Result<()> {
        let targets = entries.iter().filter_map(|entry| match entry {
            Entry::Target { instance, port } => Some(
                TargetDescription::builder()
                    .id(instance)
                    .port(i32::from(*port))
                    .build(),
            ),
            _ => None,
        });
        let targets: Vec<_> = targets.collect();
        if register {
            let reply = self.call(Op::TargetsRegister, priority, |clients| {
                let request = clients.elbv2.register_targets().target_group_arn(arn);
                request.set_targets(Some(targets.clone())).send()
            });
            return reply.await.map(drop);
        }
        let reply = self.call(Op::TargetsDeregister, priority, |clients| {
            let request = clients.elbv2.deregister_targets().target_group_arn(arn);
            request.set_targets(Some(targets.clone())).send()
        });
        reply.await.map(drop)
    }

    /// Adds or removes certificates of a listener.
    pub(crate) async fn change_certificates(
        &self,
        arn: &str,
        entries: &[Entry],
        add: bool,
        priority: Priority,
    ) -> Result<()> {
        let certificates = entries
            .iter()
            .flat_map(|entry| certificate(Some(entry.to_string())))
            .flatten();
        let certificates: Vec<_> = certificates.collect();
        if add {
            let reply = self.call(Op::ListenerCertificatesAdd, priority, |clients| {
                let request = clients.elbv2.add_listener_certificates().listener_arn(arn);
                request.set_certificates(Some(certificates.clone())).send()
            });
            return reply.await.map(drop);
        }
        let reply = self.call(Op::ListenerCertificatesRemove, priority, |clients| {
            let request = clients.elbv2.remove_listener_certificates().listener_arn(arn);
            request.set_certificates(Some(certificates.clone())).send()
        });
        reply.await.map(drop)
    }

    /// Adds tags to a load balancer, listener or target group.
    pub(crate) async fn tag_balancing(&self, arn: &str, entries: &[Entry], priority: Priority) -> Result<()> {
        let object = Object::new(Kind::Balancer, "").entries(TAGS, entries.iter().cloned());
        let reply = self.call(Op::LoadBalancerTagsAdd, priority, |clients| {
            clients
                .elbv2
                .add_tags()
                .resource_arns(arn)
                .set_tags(tags(&object))
                .send()
        });
        reply.await.map(drop)
    }
}

fn no_object(kind: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the answer has no {kind}"))
}

fn text(object: &Object<Kind>, name: &str) -> Option<String> {
    let text = object.text(name);
    (!text.is_empty()).then(|| text.to_owned())
}

/// The texts in a list.
pub(super) fn texts(object: &Object<Kind>, name: &str) -> Vec<String> {
    let list = object.attributes.get(name).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

pub(super) fn number(object: &Object<Kind>, name: &str) -> Option<i32> {
    i32::try_from(object.attributes.get(name)?.as_i64()?).ok()
}

/// A value as the attributes of AWS have it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn protocol(object: &Object<Kind>, name: &str) -> Option<ProtocolEnum> {
    text(object, name).map(|text| ProtocolEnum::from(text.as_str()))
}

fn matcher(codes: Option<String>) -> Option<Matcher> {
    codes.map(|codes| Matcher::builder().http_code(codes).build())
}

fn certificate(arn: Option<String>) -> Option<Vec<Certificate>> {
    arn.map(|arn| vec![Certificate::builder().certificate_arn(arn).build()])
}

fn forward(target_group: &str) -> Action {
    Action::builder()
        .r#type(ActionTypeEnum::Forward)
        .target_group_arn(target_group)
        .build()
}

fn tags(object: &Object<Kind>) -> Option<Vec<Tag>> {
    let tags = object.set(TAGS).iter().filter_map(|entry| match entry {
        Entry::Tag { key, value } => Some(Tag::builder().key(key).value(value).build()),
        _ => None,
    });
    let tags: Vec<_> = tags.collect();
    (!tags.is_empty()).then_some(tags)
}

/// The attributes that are known.
fn attributes<'a>(kind: Kind, pairs: impl Iterator<Item = (Option<&'a str>, Option<&'a str>)>) -> Attributes {
    let known = kind.schema().attributes;
    let pairs = pairs.filter_map(|(key, value)| {
        let attribute = known.iter().find(|attribute| Some(attribute.name) == key)?;
        Some((attribute.name, Value::from(value.unwrap_or_default())))
    });
    pairs.collect()
}

fn balancer(balancer: &LoadBalancer) -> Object<Kind> {
    let zones = balancer.availability_zones();
    let list = |of: fn(&aws_sdk_elasticloadbalancingv2::types::AvailabilityZone) -> Option<&str>| {
        zones.iter().filter_map(of).collect::<Vec<_>>()
    };
    let state = balancer.state().and_then(|state| state.code());
    let attributes: BTreeMap<&'static str, Value> = [
        ("type", balancer.r#type().map(LoadBalancerTypeEnum::as_str).into()),
        (
            "scheme",
            balancer.scheme().map(LoadBalancerSchemeEnum::as_str).into(),
        ),
        (
            "ip_address_type",
            balancer.ip_address_type().map(|kind| kind.as_str()).into(),
        ),
        ("dns_name", balancer.dns_name().into()),
        ("state", state.map(|state| state.as_str()).into()),
        ("vpc", balancer.vpc_id().into()),
        ("subnets", list(|zone| zone.subnet_id()).into()),
        ("zones", list(|zone| zone.zone_name()).into()),
        ("security_groups", balancer.security_groups().to_vec().into()),
    ]
    .into();
    Object {
        id: balancer.load_balancer_arn().unwrap_or_default().to_owned(),
        attributes,
        ..Object::new(Kind::Balancer, balancer.load_balancer_name().unwrap_or_default())
    }
}

fn target_group(group: &TargetGroup) -> Object<Kind> {
    let protocol = |protocol: Option<&ProtocolEnum>| Value::from(protocol.map(ProtocolEnum::as_str));
    let is_http = group
        .health_check_protocol()
        .is_some_and(|protocol| protocol.as_str().starts_with("HTTP"));
    let codes = group
        .matcher()
        .and_then(|matcher| matcher.http_code())
        .filter(|_| is_http);
    let attributes: BTreeMap<&'static str, Value> = [
        ("port", group.port().into()),
        ("protocol", protocol(group.protocol())),
        ("vpc", group.vpc_id().into()),
        ("type", group.target_type().map(TargetTypeEnum::as_str).into()),
        ("balancers", group.load_balancer_arns().to_vec().into()),
        ("health_check_protocol", protocol(group.health_check_protocol())),
        ("health_check_port", group.health_check_port().into()),
        (
            "health_check_path",
            group.health_check_path().filter(|_| is_http).into(),
        ),
        ("health_check_codes", codes.into()),
        (
            "health_check_interval",
            group.health_check_interval_seconds().into(),
        ),
        (
            "health_check_timeout",
            group.health_check_timeout_seconds().into(),
        ),
        ("healthy_threshold", group.healthy_threshold_count().into()),
        ("unhealthy_threshold", group.unhealthy_threshold_count().into()),
    ]
    .into();
    Object {
        id: group.target_group_arn().unwrap_or_default().to_owned(),
        attributes,
        ..Object::new(Kind::TargetGroup, group.target_group_name().unwrap_or_default())
    }
}

fn listener(listener: &Listener) -> Object<Kind> {
    let protocol = listener.protocol().map(ProtocolEnum::as_str).unwrap_or_default();
    let is_tls = protocol == "TLS";
    let certificate = listener
        .certificates()
        .first()
        .and_then(|certificate| certificate.certificate_arn());
    let forwards = listener
        .default_actions()
        .first()
        .and_then(|action| action.target_group_arn());
    let transport = crate::load_balancer::spec::transports(protocol).join("+");
    let attributes: BTreeMap<&'static str, Value> = [
        ("transport", transport.into()),
        ("protocol", protocol.into()),
        // Only TLS has them, whatever is reported.
        ("certificate", certificate.filter(|_| is_tls).into()),
        ("ssl_policy", listener.ssl_policy().filter(|_| is_tls).into()),
        (
            "alpn_policy",
            listener
                .alpn_policy()
                .first()
                .map(String::as_str)
                .filter(|_| is_tls)
                .into(),
        ),
        ("target_group", forwards.into()),
    ]
    .into();
    Object {
        id: listener.listener_arn().unwrap_or_default().to_owned(),
        attributes,
        ..Object::new(Kind::Listener, listener.port().unwrap_or_default().to_string())
    }
}
