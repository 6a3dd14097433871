//! Clusters and clouds in any state.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::plan::objects::{Object, Objects};
use ccm_core::{
    AddressType, Labels, NodeAddress, NodeView,
    load_balancer::{
        ClusterSnapshot, ClusterTag, ClusterView, NodeSet, Protocol, ServiceId, ServiceNode, ServicePort,
        ServiceType, ServiceView,
    },
    testkit::laws::{Case, weather},
};
use proptest::{collection::vec, option, prelude::*, sample::subsequence};

use super::{Truth, ownership_tag, root};
use crate::{
    instances::records::{FixedIp, Port},
    load_balancer::{
        annotations,
        groups::Group,
        kinds::{Kind, MEMBERS},
        member::Member,
        names,
        observe::ListenerKey,
        responses::{
            self, FloatingIp, Listener, LoadBalancer, Monitor, Pool, Provisioning, Rule, SecurityGroup,
        },
    },
};

const SERVICES: usize = 3;
const NODES: usize = 2;
/// What Services may ask for. TCP and UDP may have the same number.
const PORTS: [(Protocol, u16); 4] = [
    (Protocol::Tcp, 80),
    (Protocol::Tcp, 443),
    (Protocol::Udp, 443),
    (Protocol::Sctp, 80),
];
/// The cluster's name at first, and the one that it may get.
const CLUSTERS: [&str; 2] = ["c", "new_c"];
/// Containers of certificates.
const CERTIFICATES: [&str; 2] = ["containers/one", "containers/two"];

/// What Services may say of tags, beside their own.
const REQUESTS: [(&str, &str); 5] = [
    (annotations::LOAD_BALANCER_TAGS, "t-a,t-b"),
    (annotations::LISTENER_TAGS, "t-a,t-b"),
    (annotations::POOL_TAGS, "t-b,t-c"),
    (annotations::APPLIED_LOAD_BALANCER_TAGS, "t-a,t-c"),
    (annotations::APPLIED_LISTENER_TAGS, "t-c"),
];

fn id(index: usize) -> ServiceId {
    ServiceId::new("n", format!("s{index}"), format!("u{index}"))
}

/// The tag of a Service under the cluster's first name, as everything that is there bears it, but for some.
fn tag(index: usize) -> String {
    tag_in(CLUSTERS[0], index)
}

fn tag_in(cluster: &str, index: usize) -> String {
    names::load_balancer(cluster, &id(index))
}

fn node_port(protocol: Protocol, port: u16) -> u16 {
    let base = match protocol {
        Protocol::Tcp => 30000,
        Protocol::Udp => 31000,
        Protocol::Sctp => 32000,
    };
    base + port
}

/// What is to be done with connections beside passing them on. Some of it Octavia can not do for every protocol.
fn manner() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    prop_oneof![
        8 => Just(vec![]),
        2 => Just(vec![(annotations::X_FORWARDED_FOR, "true")]),
        2 => proptest::sample::select(CERTIFICATES.to_vec())
            .prop_map(|secret| vec![(annotations::TLS_CONTAINER_REF, secret)]),
        1 => Just(vec![(annotations::X_FORWARDED_FOR, "true"), (annotations::TLS_CONTAINER_REF, CERTIFICATES[0])]),
        1 => Just(vec![(annotations::PROXY_PROTOCOL, "true")]),
        1 => Just(vec![(annotations::PROXY_PROTOCOL, "v2")]),
        1 => Just(vec![(annotations::PROXY_PROTOCOL, "v2"), (annotations::TLS_CONTAINER_REF, CERTIFICATES[0])]),
    ]
}

fn service(index: usize) -> impl Strategy<Value = Option<ServiceView>> {
    let life = prop_oneof![6 => Just(0), 2 => Just(1), 1 => Just(2)];
    let balancer = prop_oneof![
        4 => Just(None),
        2 => Just(Some("users".to_owned())),
        2 => (0..SERVICES).prop_map(|index| Some(format!("lb{index}")))
    ];
    let flags = (
        proptest::bool::weighted(0.3),
        proptest::bool::weighted(0.3),
        proptest::bool::weighted(0.2),
    );
    let some = (
        subsequence(PORTS.to_vec(), 1..=2),
        balancer,
        flags,
        manner(),
        life,
        option::weighted(0.3, subsequence(REQUESTS.to_vec(), 1..=REQUESTS.len())),
    )
        .prop_map(
            move |(ports, balancer, (internal, keep, broken), manner, life, tags)| {
                let mut annotations = BTreeMap::new();
                annotations.extend(balancer.map(|id| (annotations::LOAD_BALANCER_ID, id)));
                annotations.extend(manner.into_iter().map(|(key, value)| (key, value.to_owned())));
                for (on, key) in [
                    (internal, annotations::INTERNAL),
                    (keep, annotations::KEEP_FLOATING_IP),
                ] {
                    if on {
                        annotations.insert(key, "true".to_owned());
                    }
                }
                annotations.extend(
                    tags.into_iter()
                        .flatten()
                        .map(|(key, tags)| (key, tags.to_owned())),
                );
                if broken {
                    annotations.insert(annotations::HEALTH_MONITOR_MAX_RETRIES, "99".to_owned());
                }
                ServiceView {
                    id: id(index),
                    annotations: annotations
                        .iter()
                        .map(|(key, value)| (*key, value.as_str()))
                        .collect::<Labels>(),
                    finalizers: vec![ServiceView::FINALIZER.into()],
                    service_type: if life == 2 {
                        ServiceType::ClusterIp
                    } else {
                        ServiceType::LoadBalancer
                    },
                    deleting: life == 1,
                    ports: ports
                        .iter()
                        .map(|(protocol, port)| ServicePort {
                            protocol: *protocol,
                            port: *port,
                            node_port: node_port(*protocol, *port),
                            ..ServicePort::default()
                        })
                        .collect(),
                    ..ServiceView::default()
                }
            },
        );
    prop_oneof![1 => Just(None), 5 => some.prop_map(Some)]
}

fn address(node: usize) -> String {
    format!("10.0.0.{}", 10 + node)
}

fn world() -> impl Strategy<Value = ClusterSnapshot> {
    let services = (0..SERVICES).map(service).collect::<Vec<_>>();
    let nodes = vec(option::weighted(0.9, proptest::bool::weighted(0.9)), NODES);
    let cluster = prop_oneof![3 => Just(CLUSTERS[0]), 1 => Just(CLUSTERS[1])];
    let twins = proptest::bool::weighted(0.2);
    (services, nodes, cluster, twins).prop_map(|(services, nodes, cluster, twins)| {
        let nodes = nodes.into_iter().enumerate().filter_map(|(index, eligible)| {
            Some(ServiceNode {
                view: Arc::new(NodeView {
                    name: format!("node{index}"),
                    provider_id: Some(format!("openstack:///server{index}")),
                    ..NodeView::default()
                }),
                addresses: [NodeAddress::new(
                    AddressType::InternalIP,
                    address(if twins { 0 } else { index }),
                )]
                .into(),
                eligible: eligible?,
                ready: true,
            })
        });
        ClusterSnapshot {
            services: services.into_iter().flatten().map(Arc::new).collect(),
            cluster: ClusterView {
                name: cluster.into(),
                ownership_tag: ownership_tag(),
                nodes: nodes.collect::<NodeSet>(),
            },
        }
    })
}

/// Protocols of listeners, each with those of its pools, the right one first.
const PROTOCOLS: [(&str, &[&str]); 5] = [
    ("TCP", &["TCP", "PROXY", "PROXYV2"]),
    ("HTTP", &["HTTP", "PROXY"]),
    ("TERMINATED_HTTPS", &["HTTP", "PROXYV2"]),
    ("UDP", &["UDP"]),
    ("SCTP", &["SCTP"]),
];

fn transport(protocol: &str) -> Protocol {
    match protocol {
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

/// A listener, mostly with what is below it, of the load balancer with this name.
fn listener_tree(balancer: &str) -> impl Strategy<Value = Vec<Object<Kind>>> + use<> {
    let balancer = balancer.to_owned();
    let owner = prop_oneof![4 => (0..SERVICES).prop_map(Some), 1 => Just(None)];
    let members = subsequence((0..NODES + 1).collect::<Vec<_>>(), 0..=NODES);
    let pool = (members, option::weighted(0.5, "TCP|UDP-CONNECT|SCTP"), 0..6_usize);
    let listener = (
        proptest::sample::select(vec![80_u16, 443, 9000]),
        prop_oneof![5 => Just(0), 2 => 1..PROTOCOLS.len()],
        prop_oneof![3 => Just(-1_i64), 1 => Just(5)],
        option::weighted(0.8, proptest::sample::select(CERTIFICATES.to_vec())),
        proptest::bool::weighted(0.3),
    );
    (listener, owner, option::weighted(0.8, pool)).prop_map(
        move |((port, protocol, limit, certificate, forwards), owner, pool)| {
            let (protocol, pools) = PROTOCOLS[protocol];
            let transport = transport(protocol);
            let key = ListenerKey { transport, port };
            let header = ("X-Forwarded-For".to_owned(), "true".to_owned());
            let listener = Listener {
                name: match owner {
                    Some(owner) => names::listener(0, &tag(owner)),
                    None => "mine".to_owned(),
                },
                protocol: protocol.to_owned(),
                protocol_port: port,
                connection_limit: Some(limit),
                tags: owner.map(tag).into_iter().collect(),
                insert_headers: forwards.then_some(header).into_iter().collect(),
                default_tls_container_ref: certificate
                    .filter(|_| protocol == "TERMINATED_HTTPS")
                    .unwrap_or_default()
                    .to_owned(),
                ..Listener::default()
            };
            let mut all = vec![Kind::Listener.below(key, &balancer, &format!("listener-{key}"), &listener)];
            let Some((members, monitor, kind)) = pool else {
                return all;
            };
            let pool = Pool {
                name: owner.map(|owner| names::pool(0, &tag(owner))).unwrap_or_default(),
                protocol: pools.get(kind).unwrap_or(&pools[0]).to_string(),
                lb_algorithm: "ROUND_ROBIN".to_owned(),
                ..Pool::default()
            };
            let members = members.into_iter().map(|node| responses::Member {
                id: format!("member-{node}"),
                name: format!("node{node}"),
                address: address(node),
                protocol_port: node_port(transport, port),
                weight: Some(1),
                ..responses::Member::default()
            });
            let pool = Kind::Pool.below(key, &balancer, &format!("pool-{key}"), &pool);
            all.push(pool.entries(MEMBERS, members.map(Member::from)));
            let monitor = monitor.map(|kind| Monitor {
                name: owner
                    .map(|owner| names::monitor(0, &tag(owner)))
                    .unwrap_or_default(),
                kind,
                delay: 7,
                timeout: 3,
                max_retries: 1,
                max_retries_down: 3,
                ..Monitor::default()
            });
            let monitor =
                monitor.map(|one| Kind::Monitor.below(key, &balancer, &format!("monitor-{key}"), &one));
            all.extend(monitor);
            all
        },
    )
}

fn listener_trees(balancer: &str) -> impl Strategy<Value = Vec<Object<Kind>>> + use<> {
    vec(listener_tree(balancer), 0..3).prop_map(|listener_trees| {
        let by_port: BTreeMap<_, _> = listener_trees
            .into_iter()
            .map(|all| (all[0].key.clone(), all))
            .collect();
        by_port.into_values().flatten().collect()
    })
}

fn with(balancer: &LoadBalancer, below: Vec<Object<Kind>>) -> Objects<Kind> {
    std::iter::once(balancer.into()).chain(below).collect()
}

fn tags() -> impl Strategy<Value = Vec<String>> {
    let services = subsequence((0..SERVICES).collect::<Vec<_>>(), 0..=2);
    let requested = subsequence(vec!["t-a", "t-c"], 0..=2);
    (services, requested).prop_map(|(services, requested)| {
        let requested = requested.into_iter().map(str::to_owned);
        services.into_iter().map(tag).chain(requested).collect()
    })
}

fn tree(index: usize) -> impl Strategy<Value = Objects<Kind>> {
    let mark = prop_oneof![
        3 => Just(Some(ClusterTag::of("me"))),
        2 => Just(None),
        1 => Just(Some(ClusterTag::of("others")))
    ];
    let below = listener_trees(&tag(index));
    (mark, tags(), below, proptest::bool::weighted(0.1)).prop_map(move |(mark, tags, below, error)| {
        let balancer = LoadBalancer {
            id: format!("lb{index}"),
            name: tag(index),
            tags: tags
                .into_iter()
                .chain(mark.map(|mark| mark.to_string()))
                .collect(),
            vip_address: format!("10.1.0.{index}"),
            vip_port_id: format!("vip-{index}"),
            provisioning_status: if error {
                Provisioning::Error
            } else {
                Provisioning::Active
            },
            ..LoadBalancer::default()
        };
        with(&balancer, below)
    })
}

fn users() -> impl Strategy<Value = Objects<Kind>> {
    (tags(), listener_trees("mine")).prop_map(|(tags, below)| {
        let balancer = LoadBalancer {
            id: "users".to_owned(),
            name: "mine".to_owned(),
            tags: tags.into_iter().chain(["kept".to_owned()]).collect(),
            vip_address: "10.1.0.99".to_owned(),
            vip_port_id: "vip-users".to_owned(),
            provisioning_status: Provisioning::Active,
            ..LoadBalancer::default()
        };
        with(&balancer, below)
    })
}

fn floating() -> impl Strategy<Value = Vec<Object<Kind>>> {
    let at = vec![Some("0"), Some("1"), Some("users"), None];
    let each = at.into_iter().enumerate().map(|(index, at)| {
        option::weighted(0.4, proptest::bool::weighted(0.7)).prop_map(move |ours| {
            let ours = ours?;
            let floating = FloatingIp {
                id: format!("floating-{index}"),
                floating_ip_address: format!("192.0.2.{index}"),
                port_id: at.map(|at| format!("vip-{at}")).unwrap_or_default(),
                description: if ours && at != Some("users") {
                    names::floating_ip_description(CLUSTERS[0], &id(index))
                } else {
                    "somebody's".to_owned()
                },
                ..FloatingIp::default()
            };
            Some(Object::from(&floating))
        })
    });
    each.collect::<Vec<_>>()
        .prop_map(|all| all.into_iter().flatten().collect())
}

fn groups() -> impl Strategy<Value = Vec<Object<Group>>> {
    let each = (0..SERVICES).map(|index| {
        option::weighted(0.4, subsequence(vec![30080_u16, 30443, 31000], 0..=3)).prop_map(move |ports| {
            let name = names::security_group(&id(index));
            let group = SecurityGroup {
                id: format!("id-{name}"),
                name,
                rules: ports?
                    .into_iter()
                    .map(|port| Rule {
                        id: format!("rule-{port}"),
                        direction: "ingress".to_owned(),
                        ethertype: "IPv4".to_owned(),
                        protocol: "tcp".to_owned(),
                        port_range_min: Some(port),
                        port_range_max: Some(port),
                        remote_ip_prefix: "10.0.0.0/24".to_owned(),
                        ..Rule::default()
                    })
                    .collect(),
                ..SecurityGroup::default()
            };
            Some(Object::from(&group))
        })
    });
    each.collect::<Vec<_>>()
        .prop_map(|all| all.into_iter().flatten().collect())
}

fn truth() -> impl Strategy<Value = Truth> {
    let trees = (0..SERVICES)
        .map(|index| option::weighted(0.4, tree(index)))
        .collect::<Vec<_>>();
    let with = vec(subsequence((0..SERVICES).collect::<Vec<_>>(), 0..=2), NODES);
    (trees, option::weighted(0.7, users()), floating(), groups(), with).prop_map(
        |(trees, users, mut floating, groups, with)| {
            let trees: Vec<_> = trees.into_iter().flatten().chain(users).collect();
            // What hangs at nothing is detached.
            for one in &mut floating {
                let port = one.text("port_id");
                if !trees.iter().any(|tree| root(tree).text("vip_port_id") == port) {
                    one.attributes.remove("port_id");
                }
            }
            let ports = with.into_iter().enumerate().map(|(node, with)| {
                let there = |name: &String| groups.iter().any(|group| group.key == *name);
                let names = with.into_iter().map(|index| names::security_group(&id(index)));
                let with = names.filter(there).map(|name| format!("id-{name}"));
                let port = Port {
                    id: format!("port{node}"),
                    device_id: format!("server{node}"),
                    fixed_ips: vec![FixedIp {
                        ip_address: address(node),
                        subnet_id: "sub".to_owned(),
                    }],
                    security_groups: std::iter::once("default".to_owned()).chain(with).collect(),
                    port_security_enabled: Some(true),
                    ..Port::default()
                };
                (port.id.clone(), port)
            });
            Truth {
                ports: ports.collect(),
                trees,
                floating,
                groups,
            }
        },
    )
}

pub(super) fn some_case() -> impl Strategy<Value = Case<Truth>> {
    (truth(), vec(world(), 1..3), weather()).prop_map(|(truth, worlds, weather)| Case {
        truth,
        worlds,
        weather,
    })
}
