//! Reads of load balancers, network and classic, with their listeners and target groups.

use std::collections::HashMap;

use aws_sdk_elasticloadbalancing::types as classic;
use aws_sdk_elasticloadbalancingv2::types as v2;
use ccm_core::{
    Result,
    plan::objects::{Attribute, Attributes, Kind as _},
};
use serde_json::Value;

use super::Client;
use crate::load_balancer::{
    classic::SSL_POLICY_PREFIX,
    kinds::{Entry, INSTANCES, Kind, Object, PROXY_PORTS},
    spec::transports,
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
        list!(self, LoadBalancers(set_marker, next_marker), load_balancers.flat_map(|one| balancer(&one)), .page_size(PAGE))
    }

    /// All target groups, without tags, attributes and targets.
    pub(crate) async fn target_groups(&self) -> Result<Vec<Object>> {
        list!(self, TargetGroups(set_marker, next_marker), target_groups.flat_map(|one| target_group(&one)), .page_size(PAGE))
    }

    /// The listeners of a load balancer. `target_group` is an ARN.
    pub(crate) async fn listeners(&self, balancer: &str) -> Result<Vec<Object>> {
        list!(self, Listeners(set_marker, next_marker), listeners.flat_map(|one| listener(&one)), .load_balancer_arn(balancer).page_size(PAGE))
    }

    /// The attributes of a load balancer or of a target group that are not listed.
    pub(crate) async fn attributes(&self, kind: Kind, id: &str) -> Result<Attributes> {
        /// The attributes of a reply as pairs.
        macro_rules! pairs {
            ($reply:expr) => {{
                let attributes = $reply?.attributes.into_iter().flatten();
                let pairs = attributes.filter_map(|one| Some((one.key?, one.value.unwrap_or_default())));
                pairs.collect()
            }};
        }
        let mut pairs: HashMap<String, String> = match kind {
            Kind::Classic => return self.classic_attributes(id).await,
            Kind::TargetGroup => pairs!(send!(self, TargetGroupAttributes, .target_group_arn(id))),
            _ => pairs!(send!(self, LoadBalancerAttributes, .load_balancer_arn(id))),
        };
        let value = |known: &Attribute| Some((known.name, pairs.remove(known.name)?.into()));
        Ok(kind.schema().attributes.iter().filter_map(value).collect())
    }

    /// The targets of a target group, without those that are leaving.
    pub(crate) async fn targets(&self, arn: &str) -> Result<Vec<Entry>> {
        let reply = send!(self, TargetHealth, .target_group_arn(arn))?;
        let all = reply.target_health_descriptions.into_iter().flatten();
        let targets = all.filter_map(|description| {
            let reason = description.target_health.and_then(|health| health.reason);
            let target = description.target?;
            let (instance, port) = (target.id?, u16::try_from(target.port?).ok()?);
            let stays = reason != Some(v2::TargetHealthReasonEnum::DeregistrationInProgress);
            stays.then_some(Entry::Target { instance, port })
        });
        Ok(targets.collect())
    }

    /// The certificates of a TLS listener beside the default one.
    pub(crate) async fn certificates(&self, arn: &str) -> Result<Vec<Entry>> {
        let reply = send!(self, ListenerCertificates, .listener_arn(arn))?;
        let all = reply.certificates.into_iter().flatten();
        let further = all.filter(|one| one.is_default != Some(true));
        let arns = further.filter_map(|one| one.certificate_arn);
        Ok(arns.map(Entry::Name).collect())
    }

    /// The tags of at most [`TAGGED`] load balancers, listeners and target groups by ARN.
    pub(crate) async fn load_balancer_tags(&self, arns: &[String]) -> Result<HashMap<String, Vec<Entry>>> {
        let reply = send!(self, LoadBalancerTags, .set_resource_arns(Some(arns.to_vec())))?;
        let tag = |tag: v2::Tag| Entry::tag(&tag.key.unwrap_or_default(), &tag.value.unwrap_or_default());
        let found = reply.tag_descriptions.into_iter().flatten().filter_map(|one| {
            let tags = one.tags.into_iter().flatten().map(tag);
            Some((one.resource_arn?, tags.collect()))
        });
        Ok(found.collect())
    }

    /// All classic load balancers with their listeners, without tags and attributes.
    pub(crate) async fn classic_balancers(&self) -> Result<Vec<Object>> {
        list!(self, ClassicLoadBalancers(set_marker, next_marker),
            load_balancer_descriptions.flat_map(|one| classic_balancer(&one)), .page_size(PAGE))
    }

    /// The tags of at most [`TAGGED`] classic load balancers by name.
    pub(crate) async fn classic_tags(&self, names: &[String]) -> Result<HashMap<String, Vec<Entry>>> {
        let reply = send!(self, ClassicTags, .set_load_balancer_names(Some(names.to_vec())))?;
        let found = reply.tag_descriptions().iter().filter_map(|one| {
            let tags = one.tags().iter();
            let tags = tags.map(|tag| Entry::tag(tag.key(), tag.value().unwrap_or_default()));
            Some((one.load_balancer_name()?.to_owned(), tags.collect()))
        });
        Ok(found.collect())
    }

    async fn classic_attributes(&self, name: &str) -> Result<Attributes> {
        let reply = send!(self, ClassicAttributes, .load_balancer_name(name))?;
        let Some(attributes) = reply.load_balancer_attributes() else {
            return Ok(Attributes::new());
        };
        let (log, draining) = (attributes.access_log(), attributes.connection_draining());
        let cross_zone = attributes.cross_zone_load_balancing();
        let object = object!(Kind::Classic, name, name, {
            "cross_zone" => cross_zone.map(classic::CrossZoneLoadBalancing::enabled),
            "access_log" => log.map(classic::AccessLog::enabled),
            "access_log_bucket" => log.and_then(classic::AccessLog::s3_bucket_name),
            "access_log_prefix" => log.and_then(classic::AccessLog::s3_bucket_prefix),
            "access_log_interval" => log.and_then(classic::AccessLog::emit_interval),
            "draining" => draining.map(classic::ConnectionDraining::enabled),
            "draining_timeout" => draining.and_then(classic::ConnectionDraining::timeout),
            "idle_timeout" => attributes.connection_settings().map(classic::ConnectionSettings::idle_timeout),
        });
        Ok(object.attributes)
    }
}

pub(super) fn balancer(balancer: &v2::LoadBalancer) -> Option<Object> {
    let zones = || balancer.availability_zones().iter();
    let state = balancer.state().and_then(|state| state.code());
    let (name, arn) = (balancer.load_balancer_name()?, balancer.load_balancer_arn()?);
    Some(object!(Kind::Balancer, name, arn, {
        "type" => balancer.r#type().map(v2::LoadBalancerTypeEnum::as_str),
        "scheme" => balancer.scheme().map(v2::LoadBalancerSchemeEnum::as_str),
        "ip_address_type" => balancer.ip_address_type().map(v2::IpAddressType::as_str),
        "dns_name" => balancer.dns_name(),
        "state" => state.map(v2::LoadBalancerStateEnum::as_str),
        "subnets" => zones().filter_map(|zone| zone.subnet_id()).collect::<Value>(),
        "zones" => zones().filter_map(|zone| zone.zone_name()).collect::<Value>(),
        "security_groups" => balancer.security_groups(),
    }))
}

pub(super) fn target_group(group: &v2::TargetGroup) -> Option<Object> {
    let check = group.health_check_protocol().map(v2::ProtocolEnum::as_str);
    // Only HTTP has them, regardless of the response.
    let is_http = check.is_some_and(|protocol| protocol.starts_with("HTTP"));
    let of_http = |text: Option<&str>| Value::from(text.filter(|_| is_http));
    let codes = group.matcher().and_then(|matcher| matcher.http_code());
    let (name, arn) = (group.target_group_name()?, group.target_group_arn()?);
    Some(object!(Kind::TargetGroup, name, arn, {
        "port" => group.port(),
        "protocol" => group.protocol().map(v2::ProtocolEnum::as_str),
        "balancers" => group.load_balancer_arns(),
        "health_check_protocol" => check,
        "health_check_port" => group.health_check_port(),
        "health_check_path" => of_http(group.health_check_path()),
        "health_check_codes" => of_http(codes),
        "health_check_interval" => group.health_check_interval_seconds(),
        "health_check_timeout" => group.health_check_timeout_seconds(),
        "healthy_threshold" => group.healthy_threshold_count(),
        "unhealthy_threshold" => group.unhealthy_threshold_count(),
    }))
}

pub(super) fn listener(listener: &v2::Listener) -> Option<Object> {
    let protocol = listener.protocol().map_or("", v2::ProtocolEnum::as_str);
    // Only TLS has them, regardless of the response.
    let of_tls = |text: Option<&str>| Value::from(text.filter(|_| protocol == "TLS"));
    let certificate = listener.certificates().first();
    let action = listener.default_actions().first();
    let port = listener.port()?.to_string();
    Some(object!(Kind::Listener, &port, listener.listener_arn()?, {
        "transport" => transports(protocol).join("+"),
        "protocol" => protocol,
        "certificate" => of_tls(certificate.and_then(|certificate| certificate.certificate_arn())),
        "ssl_policy" => of_tls(listener.ssl_policy()),
        "alpn_policy" => of_tls(listener.alpn_policy().first().map(String::as_str)),
        "target_group" => action.and_then(|action| action.target_group_arn()),
    }))
}

/// The ID of a classic listener: load balancer and port. AWS has no ID for it.
pub(super) fn listener_id(listener: &Object) -> String {
    let balancer = listener.parent.as_deref().unwrap_or_default();
    format!("{balancer}:{}", listener.key)
}

/// A classic load balancer and its listeners.
fn classic_balancer(balancer: &classic::LoadBalancerDescription) -> Vec<Object> {
    let name = balancer.load_balancer_name().unwrap_or_default();
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
    let proxied = proxied.filter_map(classic::BackendServerDescription::instance_port);
    let object = object!(Kind::Classic, name, name, {
        "scheme" => balancer.scheme(),
        "dns_name" => balancer.dns_name(),
        "subnets" => balancer.subnets(),
        "security_groups" => balancer.security_groups(),
        "health_check" => check.map(classic::HealthCheck::target),
        "health_check_interval" => check.map(classic::HealthCheck::interval),
        "health_check_timeout" => check.map(classic::HealthCheck::timeout),
        "healthy_threshold" => check.map(classic::HealthCheck::healthy_threshold),
        "unhealthy_threshold" => check.map(classic::HealthCheck::unhealthy_threshold),
    })
    .entries(INSTANCES, instances.map(Entry::Name));
    let ports = proxied.map(|port| Entry::Name(port.to_string()));
    listeners.chain([object.entries(PROXY_PORTS, ports)]).collect()
}
