//! The trimmed Service.
//!
//! Most Services of a cluster do not concern a load balancer. The watch cannot filter them out, so they are received, but
//! not stored unless a controller [`Needs`] them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::Deserialize;

use super::{Needs, informer::Trimmed, interner::Interner};
use crate::load_balancer::{
    Condition, Ingress, IpFamily, IpMode, Policy, PortTarget, Protocol, ServiceId, ServicePort, ServiceType,
    ServiceView, SessionAffinity,
};

/// A long annotation of `kubectl apply` that does not concern load balancers.
const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The stored fields of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Wire")]
pub struct ServiceObject {
    /// Namespace, name, uid, resourceVersion; nothing else.
    pub meta: ObjectMeta,
    /// The fields that decide about its load balancer.
    pub view: Arc<ServiceView>,
}

impl Trimmed for ServiceObject {
    fn is_needed(&self, needs: &Needs) -> bool {
        self.is_concerned() || (needs.node_port_services && self.has_node_ports())
    }

    fn trim(&mut self, _: &Needs, interner: &mut Interner) {
        // An object from the watch has no other owner.
        let Some(view) = Arc::get_mut(&mut self.view) else {
            return;
        };
        view.annotations.share(|text| interner.share(text));
        view.labels.share(|text| interner.share(text));
        interner.share(&mut view.id.namespace);
        for finalizer in &mut view.finalizers {
            interner.share(finalizer);
        }
        for port in &mut view.ports {
            interner.share(&mut port.name);
        }
        interner.share(&mut view.load_balancer_ip);
        if let Some(class) = &mut view.class {
            interner.share(class);
        }
    }
}

impl ServiceObject {
    /// Whether it has, had or requests a load balancer.
    #[must_use]
    pub fn is_concerned(&self) -> bool {
        self.view.is_load_balancer() || self.view.has_finalizer() || !self.view.ingress.is_empty()
    }

    /// Whether one of its ports has a node port.
    #[must_use]
    pub fn has_node_ports(&self) -> bool {
        self.view.ports.iter().any(|port| port.node_port != 0)
    }
}

impl_resource!(ServiceObject, Service);

/// A string that becomes part of the view.
#[derive(Default, Deserialize)]
#[serde(from = "String")]
struct Text(Arc<str>);

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

#[derive(Deserialize)]
struct Wire {
    metadata: WireMeta,
    #[serde(default)]
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    annotations: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<Text>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    #[serde(rename = "type")]
    kind: Option<String>,
    load_balancer_class: Option<Text>,
    ports: Option<Vec<WirePort>>,
    session_affinity: Option<String>,
    session_affinity_config: Option<WireAffinity>,
    #[serde(rename = "loadBalancerIP")]
    load_balancer_ip: Option<Text>,
    load_balancer_source_ranges: Option<Vec<Text>>,
    #[serde(rename = "externalIPs")]
    external_ips: Option<Vec<Text>>,
    external_traffic_policy: Option<String>,
    health_check_node_port: Option<u16>,
    ip_families: Option<Vec<String>>,
    ip_family_policy: Option<String>,
    allocate_load_balancer_node_ports: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireAffinity {
    #[serde(rename = "clientIP")]
    client_ip: Option<WireClientIp>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireClientIp {
    timeout_seconds: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePort {
    name: Option<Text>,
    protocol: Option<String>,
    #[serde(default)]
    port: u16,
    node_port: Option<u16>,
    target_port: Option<WireTarget>,
    app_protocol: Option<Text>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WireTarget {
    Number(u16),
    Name(Text),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    load_balancer: Option<WireLoadBalancer>,
    conditions: Option<Vec<WireCondition>>,
}

#[derive(Default, Deserialize)]
struct WireLoadBalancer {
    ingress: Option<Vec<WireIngress>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireIngress {
    ip: Option<Text>,
    hostname: Option<Text>,
    ip_mode: Option<String>,
}

#[derive(Deserialize)]
struct WireCondition {
    #[serde(rename = "type")]
    kind: Text,
    #[serde(default)]
    status: String,
    #[serde(default)]
    reason: Text,
    #[serde(default)]
    message: Text,
}

/// An empty string counts as missing.
fn non_empty(text: Option<Text>) -> Option<Arc<str>> {
    text.map(|text| text.0).filter(|text| !text.is_empty())
}

fn texts(texts: Vec<Text>) -> Vec<Arc<str>> {
    texts.into_iter().map(|text| text.0).collect()
}

fn policy(text: Option<&str>) -> Policy {
    match text {
        Some("Local") => Policy::Local,
        _ => Policy::Cluster,
    }
}

impl From<WirePort> for ServicePort {
    fn from(wire: WirePort) -> Self {
        Self {
            name: wire.name.unwrap_or_default().0,
            protocol: wire.protocol.as_deref().and_then(Protocol::parse).unwrap_or_default(),
            port: wire.port,
            node_port: wire.node_port.unwrap_or_default(),
            target: match wire.target_port {
                None => PortTarget::default(),
                Some(WireTarget::Number(number)) => PortTarget::Number(number),
                Some(WireTarget::Name(name)) => PortTarget::Name(name.0),
            },
            app_protocol: non_empty(wire.app_protocol),
        }
    }
}

impl From<WireIngress> for Ingress {
    fn from(wire: WireIngress) -> Self {
        Self {
            ip: non_empty(wire.ip),
            hostname: non_empty(wire.hostname),
            ip_mode: match wire.ip_mode.as_deref() {
                Some("VIP") => Some(IpMode::Vip),
                Some("Proxy") => Some(IpMode::Proxy),
                _ => None,
            },
        }
    }
}

impl From<WireCondition> for Condition {
    fn from(wire: WireCondition) -> Self {
        Self {
            kind: wire.kind.0,
            is_true: wire.status == "True",
            reason: wire.reason.0,
            message: wire.message.0,
        }
    }
}

impl WireSpec {
    fn affinity(&self) -> SessionAffinity {
        if self.session_affinity.as_deref() != Some("ClientIP") {
            return SessionAffinity::None;
        }
        let config = self.session_affinity_config.as_ref();
        SessionAffinity::ClientIp {
            timeout_seconds: config
                .and_then(|config| config.client_ip.as_ref())
                .and_then(|client| client.timeout_seconds),
        }
    }

    fn families(&self) -> Vec<IpFamily> {
        let families = self.ip_families.iter().flatten();
        families
            .filter_map(|family| match family.as_str() {
                "IPv4" => Some(IpFamily::V4),
                "IPv6" => Some(IpFamily::V6),
                _ => None,
            })
            .collect()
    }
}

impl From<Wire> for ServiceObject {
    fn from(wire: Wire) -> Self {
        let Wire {
            metadata,
            spec,
            status,
        } = wire;
        let id = ServiceId::new(
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
            metadata.uid.as_deref().unwrap_or_default(),
        );
        let mut annotations = metadata.annotations.unwrap_or_default();
        annotations.remove(LAST_APPLIED_ANNOTATION);
        let view = ServiceView {
            id,
            annotations: annotations.into_iter().collect(),
            labels: metadata.labels.unwrap_or_default().into_iter().collect(),
            finalizers: texts(metadata.finalizers.unwrap_or_default()),
            deleting: metadata.deletion_timestamp.is_some(),
            service_type: spec.kind.as_deref().and_then(ServiceType::parse).unwrap_or_default(),
            session_affinity: spec.affinity(),
            ip_families: spec.families(),
            class: non_empty(spec.load_balancer_class),
            ports: spec.ports.unwrap_or_default().into_iter().map(ServicePort::from).collect(),
            load_balancer_ip: spec.load_balancer_ip.unwrap_or_default().0,
            source_ranges: spec.load_balancer_source_ranges.map(texts),
            external_ips: texts(spec.external_ips.unwrap_or_default()),
            external_policy: policy(spec.external_traffic_policy.as_deref()),
            health_check_node_port: spec.health_check_node_port.unwrap_or_default(),
            requires_dual_stack: spec.ip_family_policy.as_deref() == Some("RequireDualStack"),
            allocates_node_ports: spec.allocate_load_balancer_node_ports.unwrap_or(true),
            ingress: status
                .load_balancer
                .and_then(|balancer| balancer.ingress)
                .unwrap_or_default()
                .into_iter()
                .map(Ingress::from)
                .collect(),
            conditions: status.conditions.unwrap_or_default().into_iter().map(Condition::from).collect(),
        };
        Self {
            meta: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                ..ObjectMeta::default()
            },
            view: Arc::new(view),
        }
    }
}

#[cfg(test)]
mod tests;
