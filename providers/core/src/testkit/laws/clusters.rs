//! Generated clusters: Services, nodes, and how they change.

use std::sync::Arc;

use proptest::{collection::vec, option, prelude::*, sample};

use crate::{
    AddressType, Labels, NodeAddress, NodeView,
    load_balancer::{
        ClusterSnapshot, ClusterTag, ClusterView, NodeSet, OwnershipTag, Protocol, ServiceId, ServiceNode,
        ServicePort, ServiceType, ServiceView,
    },
};

/// The most Services of a generated cluster.
pub const SERVICES: usize = 3;
const NODES: usize = 2;
/// The most ports of a generated Service.
const PORTS: usize = 2;

/// The ownership tag of every generated cluster.
#[must_use]
pub fn ownership_tag() -> OwnershipTag {
    OwnershipTag::Known(ClusterTag::of("me"))
}

/// The ownership tag of another cluster.
#[must_use]
pub fn other_cluster_tag() -> ClusterTag {
    ClusterTag::of("others")
}

/// The id of the Service with this index, below [`SERVICES`].
#[must_use]
pub fn service_id(index: usize) -> ServiceId {
    ServiceId::new("n", format!("s{index}"), format!("u{index}"))
}

/// The variations between generated clusters.
#[derive(Clone, Debug)]
pub struct Clusters {
    /// Values of `--cluster-name`. The first one is the most frequent.
    pub names: Vec<&'static str>,
    /// The ports that Services may have.
    pub ports: Vec<(Protocol, u16)>,
    /// The settings of Services. A Service has at most one setting of each group.
    pub settings: Vec<Vec<Setting>>,
    /// The provider ID of the node with this index.
    pub provider_id: fn(usize) -> String,
}

/// A setting of a Service.
#[derive(Clone, Debug)]
pub struct Setting {
    annotations: Vec<(String, String)>,
    field: Option<fn(&mut ServiceView)>,
    is_visible: bool,
    shown: &'static str,
}

impl Setting {
    /// An annotation.
    pub fn annotation(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            annotations: vec![(key.into(), value.into())],
            field: None,
            is_visible: true,
            shown: "",
        }
    }

    /// Each of these values of an annotation, and whether it alone changes the objects of a new Service.
    #[must_use]
    pub fn choices(key: &str, values: &[impl AsRef<str>], is_visible: bool) -> Vec<Self> {
        let choice = |value: &_| Self {
            is_visible,
            ..Self::annotation(key, AsRef::as_ref(value))
        };
        values.iter().map(choice).collect()
    }

    /// Fields of the Service.
    pub fn field(field: fn(&mut ServiceView)) -> Self {
        Self {
            annotations: Vec::new(),
            field: Some(field),
            is_visible: true,
            shown: "",
        }
    }

    /// Only clients of one network.
    #[must_use]
    pub fn source_ranges() -> Self {
        Self::field(|service| service.source_ranges = Some(vec!["10.0.0.0/8".into()]))
    }

    /// The setting with another annotation.
    #[must_use]
    pub fn and(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.annotations.push((key.into(), value.into()));
        self
    }

    /// The setting, with a text that the picture of a new Service contains. For a setting that changes several things, one of which
    /// could be forgotten.
    #[must_use]
    pub fn shows(mut self, text: &'static str) -> Self {
        self.shown = text;
        self
    }

    /// The setting, if it alone does not change the objects of a new Service.
    #[must_use]
    pub fn invisible(mut self) -> Self {
        self.is_visible = false;
        self
    }
}

fn node_port(index: usize, protocol: Protocol, port: u16) -> u16 {
    let protocol = match protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 1,
        Protocol::Sctp => 2,
    };
    let block = u16::try_from(3 * index).unwrap_or_default() + protocol;
    30_000 + 1000 * block + port % 1000
}

fn service(index: usize, ports: &[(Protocol, u16)], settings: &[Setting]) -> ServiceView {
    let annotations = settings.iter().flat_map(|setting| &setting.annotations);
    let mut service = ServiceView {
        id: service_id(index),
        annotations: annotations.map(|(key, value)| (key.as_str(), value.as_str())).collect::<Labels>(),
        finalizers: vec![ServiceView::FINALIZER.into()],
        service_type: ServiceType::LoadBalancer,
        allocates_node_ports: true,
        ports: ports
            .iter()
            .map(|(protocol, port)| ServicePort {
                protocol: *protocol,
                port: *port,
                node_port: node_port(index, *protocol, *port),
                ..ServicePort::default()
            })
            .collect(),
        ..ServiceView::default()
    };
    for set in settings.iter().filter_map(|setting| setting.field) {
        set(&mut service);
    }
    service
}

impl Clusters {
    /// Services in all stages of their lives.
    fn service(&self, index: usize) -> impl Strategy<Value = Option<ServiceView>> + use<> {
        let stage = prop_oneof![12 => Just(0), 4 => Just(1), 2 => Just(2), 1 => Just(3)];
        let ports = sample::subsequence(self.ports.clone(), 1..=PORTS.min(self.ports.len()));
        let settings = self.settings.iter();
        let settings: Vec<_> =
            settings.map(|group| option::weighted(0.3, sample::select(group.clone()))).collect();
        let some = (ports, settings, stage).prop_map(move |(ports, settings, stage)| {
            let settings: Vec<_> = settings.into_iter().flatten().collect();
            let mut service = service(index, &ports, &settings);
            match stage {
                0 => {}
                1 => service.deleting = true,
                _ => service.service_type = ServiceType::ClusterIp,
            }
            if stage == 3 {
                service.finalizers.clear();
            }
            service
        });
        prop_oneof![1 => Just(None), 5 => some.prop_map(Some)]
    }

    /// Clusters with any Services and nodes.
    pub(super) fn snapshots(&self) -> BoxedStrategy<ClusterSnapshot> {
        let services: Vec<_> = (0..SERVICES).map(|index| self.service(index)).collect();
        // Absent, or present and eligible or not.
        let nodes = vec(option::weighted(0.9, proptest::bool::weighted(0.9)), NODES);
        // A server that is renamed or rebuilt registers a second Node with the same address.
        let share_address = proptest::bool::weighted(0.2);
        let first = self.names.iter().take(1).copied().collect::<Vec<_>>();
        let names = prop_oneof![3 => sample::select(first), 1 => sample::select(self.names.clone())];
        let provider_id = self.provider_id;
        (services, nodes, names, share_address)
            .prop_map(move |(services, nodes, name, share_address)| {
                let nodes = nodes.into_iter().enumerate().filter_map(|(index, eligible)| {
                    let address = if share_address { 0 } else { index };
                    Some(node(index, address, eligible?, provider_id))
                });
                snapshot(services.into_iter().flatten().collect(), name, nodes.collect())
            })
            .boxed()
    }

    /// A cluster with so many Services without settings.
    pub(super) fn with_services(&self, count: usize) -> ClusterSnapshot {
        let ports = self.ports.get(..1).unwrap_or_default();
        let nodes = (0..NODES).map(|index| node(index, index, true, self.provider_id));
        let name = self.names.first().copied().unwrap_or_default();
        let services = (0..count).zip(30_000..).map(|(index, node_port)| {
            let mut service = service(index % SERVICES, ports, &[]);
            service.id = service_id(index);
            for port in &mut service.ports {
                port.node_port = node_port;
            }
            service
        });
        snapshot(services.collect(), name, nodes.collect())
    }

    /// The same for another cluster: its Services have the same names and other UIDs, and it has other nodes.
    pub(super) fn of_another_cluster(&self, count: usize) -> ClusterSnapshot {
        let mut other = self.with_services(count);
        for service in &mut other.services {
            let mut view = ServiceView::clone(service);
            view.id = ServiceId::new("n", &*view.id.name, format!("other{}", view.id.uid));
            *service = Arc::new(view);
        }
        let nodes = (NODES..2 * NODES).map(|index| node(index, index, true, self.provider_id));
        other.cluster.nodes = nodes.collect();
        other.cluster.ownership_tag = OwnershipTag::Known(other_cluster_tag());
        other
    }

    /// A cluster with one Service without settings, and clusters where it has each of the visible settings, with the name of the
    /// setting and the text that it shows.
    pub(super) fn with_each_setting(
        &self,
    ) -> (ClusterSnapshot, Vec<(String, &'static str, ClusterSnapshot)>) {
        let cluster = |settings: &[Setting]| {
            let ports = self.ports.get(..1).unwrap_or_default();
            let nodes = (0..NODES).map(|index| node(index, index, true, self.provider_id));
            let name = self.names.first().copied().unwrap_or_default();
            snapshot(vec![service(0, ports, settings)], name, nodes.collect())
        };
        let settings = self.settings.iter().flatten().filter(|setting| setting.is_visible);
        let with = settings.map(|setting| {
            let name = format!("{setting:?}");
            (name, setting.shown, cluster(std::slice::from_ref(setting)))
        });
        (cluster(&[]), with.collect())
    }
}

fn node(index: usize, address: usize, eligible: bool, provider_id: fn(usize) -> String) -> ServiceNode {
    ServiceNode {
        view: Arc::new(NodeView {
            name: format!("node{index}"),
            provider_id: Some(provider_id(index)),
            ..NodeView::default()
        }),
        addresses: [
            NodeAddress::new(AddressType::InternalIP, format!("10.0.0.{}", 10 + address)),
            NodeAddress::new(AddressType::ExternalIP, format!("203.0.113.{}", 10 + address)),
        ]
        .into(),
        eligible,
        ready: true,
    }
}

/// A cluster with our ownership tag.
fn snapshot(services: Vec<ServiceView>, name: &str, nodes: NodeSet) -> ClusterSnapshot {
    let cluster = ClusterView {
        name: name.into(),
        ownership_tag: ownership_tag(),
        nodes,
    };
    ClusterSnapshot::new(services.into_iter().map(Arc::new).collect(), cluster)
}
