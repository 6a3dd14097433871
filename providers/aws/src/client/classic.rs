//! Reads of classic load balancers.

use std::collections::HashMap;

use aws_sdk_elasticloadbalancing::types::{
    AccessLog, BackendServerDescription, ConnectionDraining, ConnectionSettings, CrossZoneLoadBalancing,
    HealthCheck, LoadBalancerDescription, Tag,
};
use ccm_core::{
    Result,
    plan::objects::{Attributes, Object},
};

use super::Client;
use crate::load_balancer::{
    classic::SSL_POLICY_PREFIX,
    kinds::{Entry, INSTANCES, Kind, PROXY_PORTS},
};

/// Load balancers in one page.
const PAGE: i32 = 400;
/// Load balancers in one DescribeTags.
const TAGGED: usize = 20;
/// The policy with the PROXY protocol.
pub(super) const PROXY_POLICY: &str = "k8s-proxyprotocol-enabled";

impl Client {
    /// All classic load balancers with their listeners, without tags and attributes.
    pub(crate) async fn classic_balancers(&self) -> Result<Vec<(Object<Kind>, Vec<Object<Kind>>)>> {
        list!(self, ClassicLoadBalancers(set_marker, next_marker),
            load_balancer_descriptions.filter_map(|one| balancer(&one)), .page_size(PAGE))
    }

    /// The tags of classic load balancers by name.
    pub(crate) async fn classic_tags(&self, names: &[String]) -> Result<HashMap<String, Vec<Entry>>> {
        let mut all = HashMap::new();
        for chunk in names.chunks(TAGGED) {
            let reply = send!(self, ClassicTags, .set_load_balancer_names(Some(chunk.to_vec())))?;
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
        let reply = send!(self, ClassicAttributes, .load_balancer_name(name))?;
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

/// The ID of a listener, since AWS has none: load balancer and port.
pub(super) fn listener_id(listener: &Object<Kind>) -> String {
    let balancer = listener.parent.as_deref().unwrap_or_default();
    format!("{balancer}:{}", listener.key)
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
