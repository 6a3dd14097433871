//! The fields of a Service that affect load balancers.

use std::{
    fmt,
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use super::report::{Condition, Ingress};
use crate::Labels;

/// The identity of a Service. A Service that is created again with the same name has another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceId {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
}

impl ServiceId {
    /// The id of these three.
    #[must_use]
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>, uid: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

/// The uid alone distinguishes Services.
impl Hash for ServiceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uid.hash(state);
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The fields of a Service that decide about its load balancer. Shared as `Arc<ServiceView>`.
///
/// No other field can change a load balancer, so equal views need no work. The service controller omits annotations whose
/// changes have no meaning (its own, and `kubectl`'s record of the last apply).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceView {
    /// Namespace, name, uid.
    pub id: ServiceId,
    /// `metadata.annotations`.
    pub annotations: Labels,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `metadata.finalizers`.
    pub finalizers: Vec<Arc<str>>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `spec.type`.
    pub service_type: ServiceType,
    /// `spec.loadBalancerClass`.
    pub class: Option<Arc<str>>,
    /// `spec.ports`, in order.
    pub ports: Vec<ServicePort>,
    /// `spec.sessionAffinity` with its timeout.
    pub session_affinity: SessionAffinity,
    /// `spec.loadBalancerIP`, unchanged; empty if unset.
    pub load_balancer_ip: Arc<str>,
    /// `spec.loadBalancerSourceRanges`, unchanged. `None` is not the same as an empty list.
    pub source_ranges: Option<Vec<Arc<str>>>,
    /// `spec.externalIPs`, unchanged.
    pub external_ips: Vec<Arc<str>>,
    /// `spec.externalTrafficPolicy`; `Cluster` if unset.
    pub external_policy: Policy,
    /// `spec.healthCheckNodePort`; 0 if unset.
    pub health_check_node_port: u16,
    /// `spec.ipFamilies`, in order.
    pub ip_families: Vec<IpFamily>,
    /// `spec.ipFamilyPolicy` is `RequireDualStack`.
    pub requires_dual_stack: bool,
    /// `spec.allocateLoadBalancerNodePorts`; true if unset.
    pub allocates_node_ports: bool,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
    /// `status.conditions`.
    pub conditions: Vec<Condition>,
}

impl ServiceView {
    /// The finalizer that keeps a Service until its load balancer is deleted.
    pub const FINALIZER: &'static str = "service.kubernetes.io/load-balancer-cleanup";

    /// Whether `spec.type` is `LoadBalancer`.
    #[must_use]
    pub fn is_load_balancer(&self) -> bool {
        self.service_type == ServiceType::LoadBalancer
    }

    /// Whether it wants a load balancer from any controller.
    #[must_use]
    pub fn wants_load_balancer(&self) -> bool {
        self.is_load_balancer() && !self.deleting
    }

    /// Whether it has [`Self::FINALIZER`].
    #[must_use]
    pub fn has_finalizer(&self) -> bool {
        self.has(Self::FINALIZER)
    }

    fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|name| &**name == finalizer)
    }

    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key)
    }

    /// The value of an annotation; `None` if it is empty.
    #[must_use]
    pub fn annotation_text(&self, key: &str) -> Option<&str> {
        self.annotation(key).filter(|text| !text.is_empty())
    }

    /// `externalTrafficPolicy: Local`.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.external_policy == Policy::Local
    }

    /// The port at which nodes report whether they have endpoints, if any: `externalTrafficPolicy: Local` only.
    #[must_use]
    pub fn health_check_port(&self) -> Option<u16> {
        (self.is_local() && self.health_check_node_port > 0).then_some(self.health_check_node_port)
    }

    /// The addresses in its status.
    pub fn status_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ingress.iter().filter_map(|ingress| ingress.ip.as_deref()?.parse().ok())
    }

    /// The view with which to clean up a Service for which another controller is responsible now, and which was ours with this
    /// `last` view: as it was between the two, of type `ClusterIP`, since a class can only be set together with the type. Ports
    /// and annotations are those of before, and the status is not that of the other controller.
    #[must_use]
    pub fn cleanup(&self, last: &Self) -> Self {
        Self {
            service_type: ServiceType::ClusterIp,
            class: None,
            ingress: Vec::new(),
            finalizers: self.finalizers.clone(),
            deleting: self.deleting,
            ..last.clone()
        }
    }

    /// Whether both have the same spec and metadata, regardless of status and finalizers.
    #[must_use]
    pub fn asks_the_same(&self, other: &Self) -> bool {
        // Field by field, so that a new field must be added here.
        let Self {
            id,
            annotations,
            labels,
            finalizers: _,
            deleting,
            service_type,
            class,
            ports,
            session_affinity,
            load_balancer_ip,
            source_ranges,
            external_ips,
            external_policy,
            health_check_node_port,
            ip_families,
            requires_dual_stack,
            allocates_node_ports,
            ingress: _,
            conditions: _,
        } = self;
        id == &other.id
            && annotations == &other.annotations
            && deleting == &other.deleting
            && labels == &other.labels
            && service_type == &other.service_type
            && class == &other.class
            && ports == &other.ports
            && session_affinity == &other.session_affinity
            && load_balancer_ip == &other.load_balancer_ip
            && source_ranges == &other.source_ranges
            && external_ips == &other.external_ips
            && external_policy == &other.external_policy
            && health_check_node_port == &other.health_check_node_port
            && ip_families == &other.ip_families
            && requires_dual_stack == &other.requires_dual_stack
            && allocates_node_ports == &other.allocates_node_ports
    }
}

/// The finalizers that a provider adds to one Service, besides [`ServiceView::FINALIZER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderFinalizers {
    /// The finalizers that the Service needs while it wants a load balancer. They are added together with
    /// [`ServiceView::FINALIZER`], before the first write to the cloud.
    pub needed: &'static [&'static str],
    /// All finalizers that the provider adds to Services. They are removed from a finished Service, except the needed ones.
    pub all: &'static [&'static str],
}

impl ProviderFinalizers {
    /// The finalizers that the Service lacks, [`ServiceView::FINALIZER`] included. Empty if it wants no load balancer.
    #[must_use]
    pub fn missing(&self, service: &ServiceView) -> Vec<&'static str> {
        if !service.wants_load_balancer() {
            return Vec::new();
        }
        let needed = [ServiceView::FINALIZER].into_iter().chain(self.needed.iter().copied());
        needed.filter(|name| !service.has(name)).collect()
    }

    /// The finalizers that the Service has and does not need, once it is finished.
    #[must_use]
    pub fn surplus(&self, service: &ServiceView) -> Vec<&'static str> {
        let wants = service.wants_load_balancer();
        let mut surplus = Vec::new();
        if !wants && service.has(ServiceView::FINALIZER) {
            surplus.push(ServiceView::FINALIZER);
        }
        for name in self.all.iter().copied() {
            let is_needed = wants && self.needed.contains(&name);
            if service.has(name) && !is_needed {
                surplus.push(name);
            }
        }
        surplus
    }

    /// Whether the Service has (or may have) a load balancer that it no longer wants.
    #[must_use]
    pub fn needs_cleanup(&self, service: &ServiceView) -> bool {
        !service.wants_load_balancer() && !self.surplus(service).is_empty()
    }
}

/// `spec.type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// `ClusterIP`, and no type at all.
    #[default]
    ClusterIp,
    /// `NodePort`.
    NodePort,
    /// `LoadBalancer`.
    LoadBalancer,
    /// `ExternalName`.
    ExternalName,
}

impl ServiceType {
    /// Reads the spelling of the Kubernetes API.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "ClusterIP" => Self::ClusterIp,
            "NodePort" => Self::NodePort,
            "LoadBalancer" => Self::LoadBalancer,
            "ExternalName" => Self::ExternalName,
            _ => return None,
        })
    }
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// `name`; empty if unset.
    pub name: Arc<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub port: u16,
    /// `nodePort`; 0 if unset.
    pub node_port: u16,
    /// `targetPort`.
    pub target: PortTarget,
    /// `appProtocol`.
    pub app_protocol: Option<Arc<str>>,
}

/// `targetPort` of a Service's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortTarget {
    /// A number.
    Number(u16),
    /// The name of a container's port.
    Name(Arc<str>),
}

impl Default for PortTarget {
    fn default() -> Self {
        Self::Number(0)
    }
}

/// The protocol of a Service's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The spelling of the Kubernetes API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// Reads the spelling of the Kubernetes API.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|protocol| protocol.as_str() == text)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Any node takes the traffic and passes it on.
    #[default]
    Cluster,
    /// Only nodes with an endpoint take it.
    Local,
}

/// `sessionAffinity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SessionAffinity {
    /// No affinity.
    #[default]
    None,
    /// By the client's address.
    ClientIp {
        /// `sessionAffinityConfig.clientIP.timeoutSeconds`.
        timeout_seconds: Option<u32>,
    },
}

/// One of `ipFamilies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}
