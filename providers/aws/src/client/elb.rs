//! The calls for network load balancers, their listeners and target groups.

use std::collections::HashMap;

use aws_sdk_elasticloadbalancingv2::types::{
    Action, ActionTypeEnum, Certificate, IpAddressType, Listener, LoadBalancer, LoadBalancerAttribute,
    LoadBalancerSchemeEnum, LoadBalancerStateEnum, LoadBalancerTypeEnum, Matcher, ProtocolEnum,
    SubnetMapping, Tag, TargetDescription, TargetGroup, TargetGroupAttribute, TargetHealthReasonEnum,
    TargetTypeEnum,
};
use ccm_core::{
    Error, ErrorKind, Priority, Result,
    plan::objects::{Attributes, Kind as _, Object},
};
use serde_json::Value;

use super::{Api, Op};
use crate::load_balancer::{
    kinds::{Entry, Kind, TAGS},
    spec::transports,
};

/// Load balancers, target groups and listeners in one page.
const PAGE: i32 = 400;
/// Resources in one DescribeTags.
const TAGGED: usize = 20;

impl Api {
    /// All load balancers of the v2 API, without tags and attributes.
    pub(crate) async fn network_balancers(&self, priority: Priority) -> Result<Vec<Object<Kind>>> {
        list!(load_balancers.map(balancer), set_marker, next_marker, self, LoadBalancers, priority, elbv2.describe_load_balancers =>
            .page_size(PAGE))
    }

    /// All target groups, without tags, attributes and targets.
    pub(crate) async fn target_groups(&self, priority: Priority) -> Result<Vec<Object<Kind>>> {
        list!(target_groups.map(target_group), set_marker, next_marker, self, TargetGroups, priority, elbv2.describe_target_groups =>
            .page_size(PAGE))
    }

    /// The listeners of a load balancer. `target_group` is an ARN.
    pub(crate) async fn listeners(&self, balancer: &str, priority: Priority) -> Result<Vec<Object<Kind>>> {
        list!(listeners.map(listener), set_marker, next_marker, self, Listeners, priority, elbv2.describe_listeners =>
            .load_balancer_arn(balancer).page_size(PAGE))
    }

    /// The attributes of a load balancer or of a target group.
    pub(crate) async fn attributes(&self, kind: Kind, arn: &str, priority: Priority) -> Result<Attributes> {
        if kind == Kind::TargetGroup {
            let request = send!(self, TargetGroupAttributes, priority, elbv2.describe_target_group_attributes =>
                .target_group_arn(arn));
            return Ok(known(
                kind,
                request?.attributes().iter().map(|one| (one.key(), one.value())),
            ));
        }
        let request = send!(self, LoadBalancerAttributes, priority, elbv2.describe_load_balancer_attributes =>
            .load_balancer_arn(arn));
        Ok(known(
            kind,
            request?.attributes().iter().map(|one| (one.key(), one.value())),
        ))
    }

    /// The targets of a target group, without those that are leaving.
    pub(crate) async fn targets(&self, arn: &str, priority: Priority) -> Result<Vec<Entry>> {
        let reply = send!(self, TargetHealth, priority, elbv2.describe_target_health =>
            .target_group_arn(arn))?;
        let targets = reply
            .target_health_descriptions()
            .iter()
            .filter_map(|description| {
                let reason = description.target_health().and_then(|health| health.reason());
                let target = description.target()?;
                let (instance, port) = (target.id()?.to_owned(), u16::try_from(target.port()?).ok()?);
                let stays = reason != Some(&TargetHealthReasonEnum::DeregistrationInProgress);
                stays.then_some(Entry::Target { instance, port })
            });
        Ok(targets.collect())
    }

    /// The certificates of a TLS listener beside the default one.
    pub(crate) async fn certificates(&self, arn: &str, priority: Priority) -> Result<Vec<Entry>> {
        let reply = send!(self, ListenerCertificates, priority, elbv2.describe_listener_certificates =>
            .listener_arn(arn))?;
        let further = reply
            .certificates()
            .iter()
            .filter(|one| one.is_default() != Some(true));
        Ok(further
            .filter_map(|one| Some(Entry::Name(one.certificate_arn()?.to_owned())))
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
            let reply = send!(self, LoadBalancerTags, priority, elbv2.describe_tags =>
                .set_resource_arns(Some(chunk.to_vec())))?;
            for description in reply.tag_descriptions() {
                let tag =
                    |tag: &Tag| Entry::tag(tag.key().unwrap_or_default(), tag.value().unwrap_or_default());
                let tags = description.tags().iter().map(tag).collect();
                all.insert(description.resource_arn().unwrap_or_default().to_owned(), tags);
            }
        }
        Ok(all)
    }

    /// Creates a load balancer. `groups`: the IDs of its security groups.
    pub(crate) async fn create_balancer(
        &self,
        object: &Object<Kind>,
        groups: &[String],
        priority: Priority,
    ) -> Result<Object<Kind>> {
        let (allocations, addresses) = (object.texts("eip_allocations"), object.texts("private_addresses"));
        let mapping = |(at, subnet): (usize, &str)| {
            SubnetMapping::builder()
                .subnet_id(subnet)
                .set_allocation_id(allocations.get(at).map(ToString::to_string))
                .set_private_ipv4_address(addresses.get(at).map(ToString::to_string))
                .build()
        };
        let mappings: Vec<_> = object
            .texts("subnets")
            .into_iter()
            .enumerate()
            .map(mapping)
            .collect();
        let scheme = (object.text("scheme") == "internal").then_some(LoadBalancerSchemeEnum::Internal);
        let reply = send!(self, LoadBalancerCreate, priority, elbv2.create_load_balancer =>
            .name(&object.key).r#type(LoadBalancerTypeEnum::Network).set_scheme(scheme.clone())
            .set_ip_address_type(text(object, "ip_address_type").map(|text| text.as_str().into()))
            .set_subnet_mappings(Some(mappings.clone()))
            .set_security_groups((!groups.is_empty()).then(|| groups.to_vec()))
            .set_tags(tags(object.set(TAGS))))?;
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
        let reply = send!(self, TargetGroupCreate, priority, elbv2.create_target_group => .name(&object.key)
            .vpc_id(vpc).target_type(TargetTypeEnum::Instance).set_protocol(protocol(object, "protocol"))
            .set_port(number(object, "port"))
            .set_health_check_protocol(protocol(object, "health_check_protocol"))
            .set_health_check_port(text(object, "health_check_port"))
            .set_health_check_path(text(object, "health_check_path"))
            .set_health_check_interval_seconds(number(object, "health_check_interval"))
            .set_health_check_timeout_seconds(number(object, "health_check_timeout"))
            .set_healthy_threshold_count(number(object, "healthy_threshold"))
            .set_unhealthy_threshold_count(number(object, "unhealthy_threshold"))
            .set_matcher(matcher(object)).set_tags(tags(object.set(TAGS))))?;
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
        let reply = send!(self, ListenerCreate, priority, elbv2.create_listener =>
            .load_balancer_arn(balancer).set_port(object.key.parse().ok())
            .set_protocol(protocol(object, "protocol"))
            .set_certificates(certificate(text(object, "certificate")))
            .set_ssl_policy(text(object, "ssl_policy"))
            .set_alpn_policy(text(object, "alpn_policy").map(|policy| vec![policy]))
            .default_actions(forward(target_group)).set_tags(tags(object.set(TAGS))))?;
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
        changes: &Object<Kind>,
        target_group: Option<&str>,
        priority: Priority,
    ) -> Result<()> {
        send!(self, ListenerModify, priority, elbv2.modify_listener => .listener_arn(arn)
            .set_protocol(protocol(changes, "protocol"))
            .set_certificates(certificate(text(changes, "certificate")))
            .set_ssl_policy(text(changes, "ssl_policy"))
            .set_alpn_policy(text(changes, "alpn_policy").map(|policy| vec![policy]))
            .set_default_actions(target_group.map(|arn| vec![forward(arn)])))
        .map(drop)
    }

    /// Changes the health check of a target group.
    pub(crate) async fn modify_target_group(
        &self,
        arn: &str,
        changes: &Object<Kind>,
        priority: Priority,
    ) -> Result<()> {
        send!(self, TargetGroupModify, priority, elbv2.modify_target_group => .target_group_arn(arn)
            .set_health_check_protocol(protocol(changes, "health_check_protocol"))
            .set_health_check_port(text(changes, "health_check_port"))
            .set_health_check_path(text(changes, "health_check_path"))
            .set_health_check_interval_seconds(number(changes, "health_check_interval"))
            .set_health_check_timeout_seconds(number(changes, "health_check_timeout"))
            .set_healthy_threshold_count(number(changes, "healthy_threshold"))
            .set_unhealthy_threshold_count(number(changes, "unhealthy_threshold"))
            .set_matcher(matcher(changes)))
        .map(drop)
    }

    /// Changes attributes of a load balancer or of a target group.
    pub(crate) async fn modify_attributes(
        &self,
        kind: Kind,
        arn: &str,
        changes: &Attributes,
        priority: Priority,
    ) -> Result<()> {
        let pairs = || {
            changes
                .iter()
                .map(|(key, value)| (*key, value.as_str().unwrap_or_default()))
        };
        if kind == Kind::TargetGroup {
            let attribute = |(key, value)| TargetGroupAttribute::builder().key(key).value(value).build();
            return send!(self, TargetGroupAttributesModify, priority, elbv2.modify_target_group_attributes =>
                .target_group_arn(arn).set_attributes(Some(pairs().map(attribute).collect()))).map(drop);
        }
        let attribute = |(key, value)| LoadBalancerAttribute::builder().key(key).value(value).build();
        send!(self, LoadBalancerAttributesModify, priority, elbv2.modify_load_balancer_attributes =>
            .load_balancer_arn(arn).set_attributes(Some(pairs().map(attribute).collect())))
        .map(drop)
    }

    /// Gives a load balancer these security groups, by ID.
    pub(crate) async fn set_security_groups(
        &self,
        arn: &str,
        groups: &[String],
        priority: Priority,
    ) -> Result<()> {
        send!(self, SecurityGroupsSet, priority, elbv2.set_security_groups => .load_balancer_arn(arn)
            .set_security_groups(Some(groups.to_vec())))
        .map(drop)
    }

    /// Gives a load balancer these subnets.
    pub(crate) async fn set_subnets(&self, arn: &str, subnets: &[&str], priority: Priority) -> Result<()> {
        let subnets = || subnets.iter().map(ToString::to_string).collect();
        send!(self, SubnetsSet, priority, elbv2.set_subnets => .load_balancer_arn(arn)
            .set_subnets(Some(subnets())))
        .map(drop)
    }

    /// Deletes a load balancer with its listeners, a listener or a target group.
    pub(crate) async fn delete_balancing(&self, kind: Kind, arn: &str, priority: Priority) -> Result<()> {
        match kind {
            Kind::Listener => send!(self, ListenerDelete, priority, elbv2.delete_listener =>
                .listener_arn(arn))
            .map(drop),
            Kind::TargetGroup => send!(self, TargetGroupDelete, priority, elbv2.delete_target_group =>
                .target_group_arn(arn))
            .map(drop),
            _ => send!(self, LoadBalancerDelete, priority, elbv2.delete_load_balancer =>
                .load_balancer_arn(arn))
            .map(drop),
        }
    }

    /// Registers or deregisters targets.
    pub(crate) async fn change_targets(
        &self,
        arn: &str,
        entries: &[Entry],
        add: bool,
        priority: Priority,
    ) -> Result<()> {
        let target = |entry: &Entry| match entry {
            Entry::Target { instance, port } => Some(
                TargetDescription::builder()
                    .id(instance)
                    .port((*port).into())
                    .build(),
            ),
            _ => None,
        };
        let targets = || Some(entries.iter().filter_map(target).collect());
        if add {
            return send!(self, TargetsRegister, priority, elbv2.register_targets => .target_group_arn(arn)
                .set_targets(targets()))
            .map(drop);
        }
        send!(self, TargetsDeregister, priority, elbv2.deregister_targets => .target_group_arn(arn)
            .set_targets(targets()))
        .map(drop)
    }

    /// Adds or removes certificates of a listener.
    pub(crate) async fn change_certificates(
        &self,
        arn: &str,
        entries: &[Entry],
        add: bool,
        priority: Priority,
    ) -> Result<()> {
        let all = || {
            Some(
                entries
                    .iter()
                    .filter_map(|entry| certificate(Some(entry.to_string())))
                    .flatten()
                    .collect(),
            )
        };
        if add {
            return send!(self, ListenerCertificatesAdd, priority, elbv2.add_listener_certificates =>
                .listener_arn(arn).set_certificates(all()))
            .map(drop);
        }
        send!(self, ListenerCertificatesRemove, priority, elbv2.remove_listener_certificates =>
            .listener_arn(arn).set_certificates(all()))
        .map(drop)
    }

    /// Adds tags to a load balancer, listener or target group.
    pub(crate) async fn tag_balancing(&self, arn: &str, entries: &[Entry], priority: Priority) -> Result<()> {
        send!(self, LoadBalancerTagsAdd, priority, elbv2.add_tags => .resource_arns(arn)
            .set_tags(tags(entries)))
        .map(drop)
    }
}

fn no_object(kind: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("the answer has no {kind}"))
}

fn text(object: &Object<Kind>, name: &str) -> Option<String> {
    let text = object.text(name);
    (!text.is_empty()).then(|| text.to_owned())
}

pub(super) fn number(object: &Object<Kind>, name: &str) -> Option<i32> {
    i32::try_from(object.attributes.get(name)?.as_i64()?).ok()
}

fn protocol(object: &Object<Kind>, name: &str) -> Option<ProtocolEnum> {
    text(object, name).map(|text| ProtocolEnum::from(text.as_str()))
}

fn matcher(object: &Object<Kind>) -> Option<Matcher> {
    text(object, "health_check_codes").map(|codes| Matcher::builder().http_code(codes).build())
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

fn tags(entries: &[Entry]) -> Option<Vec<Tag>> {
    let tags = entries.iter().filter_map(Entry::as_tag);
    let tags: Vec<_> = tags
        .map(|(key, value)| Tag::builder().key(key).value(value).build())
        .collect();
    (!tags.is_empty()).then_some(tags)
}

/// The attributes that are known.
fn known<'a>(kind: Kind, pairs: impl Iterator<Item = (Option<&'a str>, Option<&'a str>)>) -> Attributes {
    let attributes = kind.schema().attributes;
    let pairs = pairs.filter_map(|(key, value)| {
        let attribute = attributes.iter().find(|attribute| Some(attribute.name) == key)?;
        Some((attribute.name, Value::from(value.unwrap_or_default())))
    });
    pairs.collect()
}

/// An object with the attributes that are set.
pub(super) fn object<const N: usize>(
    kind: Kind,
    key: Option<&str>,
    id: Option<&str>,
    values: [(&'static str, Value); N],
) -> Object<Kind> {
    Object {
        id: id.unwrap_or_default().to_owned(),
        attributes: values.into(),
        ..Object::new(kind, key.unwrap_or_default())
    }
}

fn balancer(balancer: &LoadBalancer) -> Object<Kind> {
    let zones = balancer.availability_zones().iter();
    let state = balancer.state().and_then(|state| state.code());
    object(
        Kind::Balancer,
        balancer.load_balancer_name(),
        balancer.load_balancer_arn(),
        [
            ("type", balancer.r#type().map(LoadBalancerTypeEnum::as_str).into()),
            (
                "scheme",
                balancer.scheme().map(LoadBalancerSchemeEnum::as_str).into(),
            ),
            (
                "ip_address_type",
                balancer.ip_address_type().map(IpAddressType::as_str).into(),
            ),
            ("dns_name", balancer.dns_name().into()),
            ("state", state.map(LoadBalancerStateEnum::as_str).into()),
            (
                "subnets",
                zones.clone().filter_map(|zone| zone.subnet_id()).collect(),
            ),
            ("zones", zones.filter_map(|zone| zone.zone_name()).collect()),
            ("security_groups", balancer.security_groups().into()),
        ],
    )
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
    object(
        Kind::TargetGroup,
        group.target_group_name(),
        group.target_group_arn(),
        [
            ("port", group.port().into()),
            ("protocol", protocol(group.protocol())),
            ("balancers", group.load_balancer_arns().into()),
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
        ],
    )
}

fn listener(listener: &Listener) -> Object<Kind> {
    let protocol = listener.protocol().map(ProtocolEnum::as_str).unwrap_or_default();
    // Only TLS has them, whatever is reported.
    let of_tls = |text: Option<&str>| Value::from(text.filter(|_| protocol == "TLS"));
    let certificate = listener
        .certificates()
        .first()
        .and_then(|certificate| certificate.certificate_arn());
    let target_group = listener
        .default_actions()
        .first()
        .and_then(|action| action.target_group_arn());
    let port = listener.port().unwrap_or_default().to_string();
    object(
        Kind::Listener,
        Some(&port),
        listener.listener_arn(),
        [
            ("transport", transports(protocol).join("+").into()),
            ("protocol", protocol.into()),
            ("certificate", of_tls(certificate)),
            ("ssl_policy", of_tls(listener.ssl_policy())),
            (
                "alpn_policy",
                of_tls(listener.alpn_policy().first().map(String::as_str)),
            ),
            ("target_group", target_group.into()),
        ],
    )
}
