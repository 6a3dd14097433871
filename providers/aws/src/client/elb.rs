//! Reads of network load balancers, their listeners and target groups.

use std::collections::HashMap;

use aws_sdk_elasticloadbalancingv2::types::{
    IpAddressType, Listener, LoadBalancer, LoadBalancerSchemeEnum, LoadBalancerStateEnum,
    LoadBalancerTypeEnum, ProtocolEnum, Tag, TargetGroup, TargetHealthReasonEnum,
};
use ccm_core::{
    Result,
    plan::objects::{Attributes, Kind as _, Object},
};
use serde_json::Value;

use super::Client;
use crate::load_balancer::{
    kinds::{Entry, Kind},
    spec::transports,
};

/// Load balancers, target groups and listeners in one page.
const PAGE: i32 = 400;
/// Resources in one DescribeTags.
pub(crate) const TAGGED: usize = 20;

impl Client {
    /// All load balancers of the v2 API, without tags and attributes.
    pub(crate) async fn network_balancers(&self) -> Result<Vec<Object<Kind>>> {
        list!(self, LoadBalancers(set_marker, next_marker), load_balancers.filter_map(|one| balancer(&one)), .page_size(PAGE))
    }

    /// All target groups, without tags, attributes and targets.
    pub(crate) async fn target_groups(&self) -> Result<Vec<Object<Kind>>> {
        list!(self, TargetGroups(set_marker, next_marker), target_groups.filter_map(|one| target_group(&one)), .page_size(PAGE))
    }

    /// The listeners of a load balancer. `target_group` is an ARN.
    pub(crate) async fn listeners(&self, balancer: &str) -> Result<Vec<Object<Kind>>> {
        list!(self, Listeners(set_marker, next_marker), listeners.filter_map(|one| listener(&one)), .load_balancer_arn(balancer).page_size(PAGE))
    }

    /// The attributes of a load balancer or of a target group that are known.
    pub(crate) async fn attributes(&self, kind: Kind, arn: &str) -> Result<Attributes> {
        /// The attributes of a reply as pairs.
        macro_rules! pairs {
            ($reply:expr) => {{
                let attributes = $reply?.attributes.into_iter().flatten();
                attributes
                    .filter_map(|one| Some((one.key?, one.value.unwrap_or_default())))
                    .collect()
            }};
        }
        let mut pairs: HashMap<String, String> = match kind {
            Kind::TargetGroup => pairs!(send!(self, TargetGroupAttributes, .target_group_arn(arn))),
            _ => pairs!(send!(self, LoadBalancerAttributes, .load_balancer_arn(arn))),
        };
        let known = kind.schema().attributes.iter();
        let known = known.filter_map(|known| Some((known.name, pairs.remove(known.name)?.into())));
        Ok(known.collect())
    }

    /// The targets of a target group, without those that are leaving.
    pub(crate) async fn targets(&self, arn: &str) -> Result<Vec<Entry>> {
        let reply = send!(self, TargetHealth, .target_group_arn(arn))?;
        let all = reply.target_health_descriptions.into_iter().flatten();
        let targets = all.filter_map(|description| {
            let reason = description.target_health.and_then(|health| health.reason);
            let target = description.target?;
            let (instance, port) = (target.id?, u16::try_from(target.port?).ok()?);
            let stays = reason != Some(TargetHealthReasonEnum::DeregistrationInProgress);
            stays.then_some(Entry::Target { instance, port })
        });
        Ok(targets.collect())
    }

    /// The certificates of a TLS listener beside the default one.
    pub(crate) async fn certificates(&self, arn: &str) -> Result<Vec<Entry>> {
        let reply = send!(self, ListenerCertificates, .listener_arn(arn))?;
        let all = reply.certificates.into_iter().flatten();
        let further = all.filter(|one| one.is_default != Some(true));
        Ok(further
            .filter_map(|one| one.certificate_arn.map(Entry::Name))
            .collect())
    }

    /// The tags of load balancers, listeners and target groups by ARN.
    pub(crate) async fn load_balancer_tags(&self, arns: &[String]) -> Result<HashMap<String, Vec<Entry>>> {
        let mut all = HashMap::new();
        for chunk in arns.chunks(TAGGED) {
            let reply = send!(self, LoadBalancerTags, .set_resource_arns(Some(chunk.to_vec())))?;
            let tag = |tag: Tag| Entry::tag(&tag.key.unwrap_or_default(), &tag.value.unwrap_or_default());
            all.extend(reply.tag_descriptions.into_iter().flatten().filter_map(|one| {
                let tags = one.tags.into_iter().flatten().map(tag);
                Some((one.resource_arn?, tags.collect()))
            }));
        }
        Ok(all)
    }
}

pub(super) fn balancer(balancer: &LoadBalancer) -> Option<Object<Kind>> {
    let zones = || balancer.availability_zones().iter();
    let state = balancer.state().and_then(|state| state.code());
    Some(
        object!(Kind::Balancer, balancer.load_balancer_name()?, balancer.load_balancer_arn()?, {
            "type" => balancer.r#type().map(LoadBalancerTypeEnum::as_str),
            "scheme" => balancer.scheme().map(LoadBalancerSchemeEnum::as_str),
            "ip_address_type" => balancer.ip_address_type().map(IpAddressType::as_str),
            "dns_name" => balancer.dns_name(),
            "state" => state.map(LoadBalancerStateEnum::as_str),
            "subnets" => zones().filter_map(|zone| zone.subnet_id()).collect::<Value>(),
            "zones" => zones().filter_map(|zone| zone.zone_name()).collect::<Value>(),
            "security_groups" => balancer.security_groups(),
        }),
    )
}

pub(super) fn target_group(group: &TargetGroup) -> Option<Object<Kind>> {
    let check = group.health_check_protocol().map(ProtocolEnum::as_str);
    // Only HTTP has them, whatever is reported.
    let of_http =
        |text: Option<&str>| Value::from(text.filter(|_| check.is_some_and(|text| text.starts_with("HTTP"))));
    let codes = group.matcher().and_then(|matcher| matcher.http_code());
    Some(
        object!(Kind::TargetGroup, group.target_group_name()?, group.target_group_arn()?, {
            "port" => group.port(),
            "protocol" => group.protocol().map(ProtocolEnum::as_str),
            "balancers" => group.load_balancer_arns(),
            "health_check_protocol" => check,
            "health_check_port" => group.health_check_port(),
            "health_check_path" => of_http(group.health_check_path()),
            "health_check_codes" => of_http(codes),
            "health_check_interval" => group.health_check_interval_seconds(),
            "health_check_timeout" => group.health_check_timeout_seconds(),
            "healthy_threshold" => group.healthy_threshold_count(),
            "unhealthy_threshold" => group.unhealthy_threshold_count(),
        }),
    )
}

pub(super) fn listener(listener: &Listener) -> Option<Object<Kind>> {
    let protocol = listener.protocol().map(ProtocolEnum::as_str).unwrap_or_default();
    // Only TLS has them, whatever is reported.
    let of_tls = |text: Option<&str>| Value::from(text.filter(|_| protocol == "TLS"));
    let certificate = listener
        .certificates()
        .first()
        .and_then(|one| one.certificate_arn());
    let action = listener.default_actions().first();
    let port = listener.port()?.to_string();
    Some(object!(Kind::Listener, &port, listener.listener_arn()?, {
        "transport" => transports(protocol).join("+"),
        "protocol" => protocol,
        "certificate" => of_tls(certificate),
        "ssl_policy" => of_tls(listener.ssl_policy()),
        "alpn_policy" => of_tls(listener.alpn_policy().first().map(String::as_str)),
        "target_group" => action.and_then(|action| action.target_group_arn()),
    }))
}
