//! Reads of load balancers, network and classic, with their listeners and target groups.

use std::collections::HashMap;

use aws_sdk_elasticloadbalancing::types as classic;
use aws_sdk_elasticloadbalancingv2::{primitives::DateTime, types as v2};
use ccm_core::{
    Result,
    client::{Page, collect},
    plan::objects::{Attributes, Kind as _},
};
use serde_json::Value;

use super::{Client, Op};
use crate::load_balancer::{
    classic::SSL_POLICY_PREFIX,
    fields,
    kinds::{Object, ObjectKind, SetEntry},
    spec::transports,
    updates::EntrySet,
};

/// Load balancers, target groups and listeners in one page.
const PAGE: i32 = 400;
/// The most resources of one DescribeTags of either API.
pub(crate) const TAGGED: usize = 20;
/// The policy of a classic load balancer with the PROXY protocol.
pub(super) const PROXY_POLICY: &str = "k8s-proxyprotocol-enabled";

impl Client {
    /// All load balancers of the v2 API, without tags and attributes.
    pub(crate) async fn network_balancers(&self) -> Result<Vec<Object>> {
        collect(|marker: Option<String>| async move {
            let reply = self
                .call(Op::LoadBalancers, |sdk| {
                    sdk.elbv2.describe_load_balancers().page_size(PAGE).set_marker(marker.clone()).send()
                })
                .await?;
            Ok(Page {
                items: reply.load_balancers().iter().filter_map(balancer).collect(),
                next: reply.next_marker,
            })
        })
        .await
    }

    /// All target groups, without tags, attributes and targets.
    pub(crate) async fn target_groups(&self) -> Result<Vec<Object>> {
        collect(|marker: Option<String>| async move {
            let reply = self
                .call(Op::TargetGroups, |sdk| {
                    sdk.elbv2.describe_target_groups().page_size(PAGE).set_marker(marker.clone()).send()
                })
                .await?;
            Ok(Page {
                items: reply.target_groups().iter().filter_map(target_group).collect(),
                next: reply.next_marker,
            })
        })
        .await
    }

    /// The listeners of a load balancer. `target_group` is an ARN.
    pub(crate) async fn listeners(&self, balancer: &str) -> Result<Vec<Object>> {
        collect(|marker: Option<String>| async move {
            let reply = self
                .call(Op::Listeners, |sdk| {
                    sdk.elbv2
                        .describe_listeners()
                        .load_balancer_arn(balancer)
                        .page_size(PAGE)
                        .set_marker(marker.clone())
                        .send()
                })
                .await?;
            Ok(Page {
                items: reply.listeners().iter().filter_map(listener).collect(),
                next: reply.next_marker,
            })
        })
        .await
    }

    /// The attributes of a load balancer or of a target group that are not listed.
    pub(crate) async fn attributes(&self, kind: ObjectKind, id: &str) -> Result<Attributes> {
        let values: HashMap<_, _> = match kind {
            ObjectKind::Classic => return self.classic_attributes(id).await,
            ObjectKind::TargetGroup => {
                let reply = self
                    .call(Op::TargetGroupAttributes, |sdk| {
                        sdk.elbv2.describe_target_group_attributes().target_group_arn(id).send()
                    })
                    .await?;
                let all = reply.attributes.unwrap_or_default();
                all.into_iter()
                    .filter_map(|one| Some((one.key?, one.value.unwrap_or_default())))
                    .collect()
            }
            _ => {
                let reply = self
                    .call(Op::LoadBalancerAttributes, |sdk| {
                        sdk.elbv2.describe_load_balancer_attributes().load_balancer_arn(id).send()
                    })
                    .await?;
                let all = reply.attributes.unwrap_or_default();
                all.into_iter()
                    .filter_map(|one| Some((one.key?, one.value.unwrap_or_default())))
                    .collect()
            }
        };
        let known = kind.schema().attributes.iter();
        Ok(known
            .filter_map(|known| Some((known.name, values.get(known.name)?.as_str().into())))
            .collect())
    }

    /// The targets of a target group, without those that are leaving.
    pub(crate) async fn targets(&self, arn: &str) -> Result<Vec<SetEntry>> {
        let reply = self
            .call(Op::TargetHealth, |sdk| sdk.elbv2.describe_target_health().target_group_arn(arn).send())
            .await?;
        let mut targets = Vec::new();
        for description in reply.target_health_descriptions.unwrap_or_default() {
            let reason = description.target_health.and_then(|health| health.reason);
            if reason == Some(v2::TargetHealthReasonEnum::DeregistrationInProgress) {
                continue;
            }
            if let Some(v2::TargetDescription {
                id: Some(instance),
                port: Some(port),
                ..
            }) = description.target
                && let Ok(port) = u16::try_from(port)
            {
                targets.push(SetEntry::Target { instance, port });
            }
        }
        Ok(targets)
    }

    /// The certificates of a TLS listener beside the default one.
    pub(crate) async fn certificates(&self, arn: &str) -> Result<Vec<SetEntry>> {
        let reply = self
            .call(Op::ListenerCertificates, |sdk| {
                sdk.elbv2.describe_listener_certificates().listener_arn(arn).send()
            })
            .await?;
        let all = reply.certificates.unwrap_or_default().into_iter();
        Ok(all
            .filter(|certificate| certificate.is_default != Some(true))
            .filter_map(|certificate| certificate.certificate_arn)
            .map(SetEntry::Name)
            .collect())
    }

    /// The tags of at most [`TAGGED`] load balancers, listeners and target groups by ARN.
    pub(crate) async fn load_balancer_tags(&self, arns: &[String]) -> Result<HashMap<String, Vec<SetEntry>>> {
        let reply = self
            .call(Op::LoadBalancerTags, |sdk| {
                sdk.elbv2.describe_tags().set_resource_arns(Some(arns.to_vec())).send()
            })
            .await?;
        let mut found = HashMap::new();
        for described in reply.tag_descriptions() {
            let tags = described.tags().iter();
            let tags =
                tags.map(|tag| SetEntry::tag(tag.key().unwrap_or_default(), tag.value().unwrap_or_default()));
            if let Some(arn) = described.resource_arn() {
                found.insert(arn.to_owned(), tags.collect());
            }
        }
        Ok(found)
    }

    /// All classic load balancers with their listeners, without tags and attributes.
    pub(crate) async fn classic_balancers(&self) -> Result<Vec<Object>> {
        collect(|marker: Option<String>| async move {
            let reply = self
                .call(Op::ClassicLoadBalancers, |sdk| {
                    sdk.elb.describe_load_balancers().page_size(PAGE).set_marker(marker.clone()).send()
                })
                .await?;
            Ok(Page {
                items: reply.load_balancer_descriptions().iter().flat_map(classic_balancer).collect(),
                next: reply.next_marker,
            })
        })
        .await
    }

    /// The tags of at most [`TAGGED`] classic load balancers by name.
    pub(crate) async fn classic_tags(&self, names: &[String]) -> Result<HashMap<String, Vec<SetEntry>>> {
        let reply = self
            .call(Op::ClassicTags, |sdk| {
                sdk.elb.describe_tags().set_load_balancer_names(Some(names.to_vec())).send()
            })
            .await?;
        let mut found = HashMap::new();
        for described in reply.tag_descriptions() {
            let tags = described.tags().iter();
            if let Some(name) = described.load_balancer_name() {
                let entries = tags.map(|tag| SetEntry::tag(tag.key(), tag.value().unwrap_or_default()));
                found.insert(name.to_owned(), entries.collect());
            }
        }
        Ok(found)
    }

    async fn classic_attributes(&self, name: &str) -> Result<Attributes> {
        let reply = self
            .call(Op::ClassicAttributes, |sdk| {
                sdk.elb.describe_load_balancer_attributes().load_balancer_name(name).send()
            })
            .await?;
        let Some(attributes) = reply.load_balancer_attributes() else {
            return Ok(Attributes::new());
        };
        let log = attributes.access_log();
        let draining = attributes.connection_draining();
        let cross_zone = attributes.cross_zone_load_balancing();
        let settings = attributes.connection_settings();
        Ok(Attributes::from([
            (fields::CROSS_ZONE, cross_zone.map(classic::CrossZoneLoadBalancing::enabled).into()),
            (fields::ACCESS_LOG, log.map(classic::AccessLog::enabled).into()),
            (fields::ACCESS_LOG_BUCKET, log.and_then(classic::AccessLog::s3_bucket_name).into()),
            (fields::ACCESS_LOG_PREFIX, log.and_then(classic::AccessLog::s3_bucket_prefix).into()),
            (fields::ACCESS_LOG_INTERVAL, log.and_then(classic::AccessLog::emit_interval).into()),
            (fields::DRAINING, draining.map(classic::ConnectionDraining::enabled).into()),
            (fields::DRAINING_TIMEOUT, draining.and_then(classic::ConnectionDraining::timeout).into()),
            (fields::IDLE_TIMEOUT, settings.map(classic::ConnectionSettings::idle_timeout).into()),
        ]))
    }
}

/// An object of this kind, key and ID.
pub(super) fn identified(kind: ObjectKind, key: &str, id: &str) -> Object {
    Object {
        id: id.to_owned(),
        ..Object::new(kind, key)
    }
}

pub(super) fn balancer(balancer: &v2::LoadBalancer) -> Option<Object> {
    let (name, arn) = (balancer.load_balancer_name()?, balancer.load_balancer_arn()?);
    let zones = balancer.availability_zones();
    let subnets: Value = zones.iter().filter_map(|zone| zone.subnet_id()).collect();
    let zone_names: Value = zones.iter().filter_map(|zone| zone.zone_name()).collect();
    let state = balancer.state().and_then(|state| state.code());
    Some(
        identified(ObjectKind::Balancer, name, arn)
            .with(fields::TYPE, balancer.r#type().map(v2::LoadBalancerTypeEnum::as_str))
            .with(fields::SCHEME, balancer.scheme().map(v2::LoadBalancerSchemeEnum::as_str))
            .with(fields::IP_ADDRESS_TYPE, balancer.ip_address_type().map(v2::IpAddressType::as_str))
            .with(fields::CREATED, balancer.created_time().map(DateTime::secs))
            .with(fields::DNS_NAME, balancer.dns_name())
            .with(fields::STATE, state.map(v2::LoadBalancerStateEnum::as_str))
            .with(fields::SUBNETS, subnets)
            .with(fields::ZONES, zone_names)
            .with(fields::SECURITY_GROUPS, balancer.security_groups()),
    )
}

pub(super) fn target_group(group: &v2::TargetGroup) -> Option<Object> {
    let (name, arn) = (group.target_group_name()?, group.target_group_arn()?);
    let check = group.health_check_protocol().map(v2::ProtocolEnum::as_str);
    let mut object = identified(ObjectKind::TargetGroup, name, arn)
        .with(fields::PORT, group.port())
        .with(fields::PROTOCOL, group.protocol().map(v2::ProtocolEnum::as_str))
        .with(fields::BALANCERS, group.load_balancer_arns())
        .with(fields::HEALTH_CHECK_PROTOCOL, check)
        .with(fields::HEALTH_CHECK_PORT, group.health_check_port())
        .with(fields::HEALTH_CHECK_PATH, Value::Null)
        .with(fields::HEALTH_CHECK_CODES, Value::Null)
        .with(fields::HEALTH_CHECK_INTERVAL, group.health_check_interval_seconds())
        .with(fields::HEALTH_CHECK_TIMEOUT, group.health_check_timeout_seconds())
        .with(fields::HEALTHY_THRESHOLD, group.healthy_threshold_count())
        .with(fields::UNHEALTHY_THRESHOLD, group.unhealthy_threshold_count());
    // Only HTTP has them, regardless of the response.
    if check.is_some_and(|protocol| protocol.starts_with("HTTP")) {
        let codes = group.matcher().and_then(|matcher| matcher.http_code());
        object = object
            .with(fields::HEALTH_CHECK_PATH, group.health_check_path())
            .with(fields::HEALTH_CHECK_CODES, codes);
    }
    Some(object)
}

pub(super) fn listener(listener: &v2::Listener) -> Option<Object> {
    let port = listener.port()?.to_string();
    let protocol = listener.protocol().map_or("", v2::ProtocolEnum::as_str);
    let action = listener.default_actions().first();
    let mut object = identified(ObjectKind::Listener, &port, listener.listener_arn()?)
        .with(fields::TRANSPORT, transports(protocol).join("+"))
        .with(fields::PROTOCOL, protocol)
        .with(fields::CERTIFICATE, Value::Null)
        .with(fields::SSL_POLICY, Value::Null)
        .with(fields::ALPN_POLICY, Value::Null)
        .with(fields::TARGET_GROUP, action.and_then(|action| action.target_group_arn()));
    // Only TLS has them, regardless of the response.
    if protocol == "TLS" {
        let certificate = listener.certificates().first();
        object = object
            .with(fields::CERTIFICATE, certificate.and_then(|certificate| certificate.certificate_arn()))
            .with(fields::SSL_POLICY, listener.ssl_policy())
            .with(fields::ALPN_POLICY, listener.alpn_policy().first().map(String::as_str));
    }
    Some(object)
}

/// The ID of a classic listener: load balancer and port. AWS has no ID for it.
pub(super) fn listener_id(listener: &Object) -> String {
    let balancer = listener.parent.as_deref().unwrap_or_default();
    format!("{balancer}:{}", listener.key)
}

/// The listeners of a classic load balancer, and the load balancer.
fn classic_balancer(balancer: &classic::LoadBalancerDescription) -> Vec<Object> {
    let name = balancer.load_balancer_name().unwrap_or_default();
    let descriptions = balancer.listener_descriptions().iter();
    let mut objects: Vec<_> =
        descriptions.filter_map(|description| classic_listener(name, description)).collect();
    let check = balancer.health_check();
    let instances = balancer.instances().iter().filter_map(|instance| instance.instance_id.clone());
    let proxy_ports = balancer
        .backend_server_descriptions()
        .iter()
        .filter(|backend| backend.policy_names().iter().any(|policy| policy == PROXY_POLICY))
        .filter_map(classic::BackendServerDescription::instance_port)
        .map(|port| SetEntry::Name(port.to_string()));
    let object = identified(ObjectKind::Classic, name, name)
        .with(fields::SCHEME, balancer.scheme())
        .with(fields::DNS_NAME, balancer.dns_name())
        .with(fields::SUBNETS, balancer.subnets())
        .with(fields::SECURITY_GROUPS, balancer.security_groups())
        .with(fields::HEALTH_CHECK, check.map(classic::HealthCheck::target))
        .with(fields::HEALTH_CHECK_INTERVAL, check.map(classic::HealthCheck::interval))
        .with(fields::HEALTH_CHECK_TIMEOUT, check.map(classic::HealthCheck::timeout))
        .with(fields::HEALTHY_THRESHOLD, check.map(classic::HealthCheck::healthy_threshold))
        .with(fields::UNHEALTHY_THRESHOLD, check.map(classic::HealthCheck::unhealthy_threshold))
        .entries(EntrySet::Instances.name(), instances.map(SetEntry::Name))
        .entries(EntrySet::ProxyPorts.name(), proxy_ports);
    objects.push(object);
    objects
}

/// A listener of the classic load balancer with this name.
fn classic_listener(balancer: &str, description: &classic::ListenerDescription) -> Option<Object> {
    let listener = description.listener()?;
    let port = listener.load_balancer_port().to_string();
    let policy = description.policy_names().iter().find(|name| name.starts_with(SSL_POLICY_PREFIX));
    let mut object = Object::new(ObjectKind::ClassicListener, &port)
        .with(fields::PROTOCOL, listener.protocol())
        .with(fields::INSTANCE_PROTOCOL, listener.instance_protocol().unwrap_or(listener.protocol()))
        .with(fields::INSTANCE_PORT, listener.instance_port())
        .with(fields::CERTIFICATE, listener.ssl_certificate_id())
        .with(fields::POLICY, policy.map(String::as_str));
    object.parent = Some(balancer.to_owned());
    object.id = listener_id(&object);
    Some(object)
}
