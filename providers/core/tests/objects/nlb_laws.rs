//! The laws of the plan engine for AWS's network load balancers.

use std::sync::Arc;

use ccm_core::{
    Labels, NodeView,
    load_balancer::{
        ClusterSnapshot, ClusterTag, ClusterView, NodeSet, Ownership, OwnershipTag, Protocol, ServiceId,
        ServiceNode, ServicePort, ServiceType, ServiceView,
    },
    plan::{
        GatheredInputs, Member,
        objects::{Action, Change, Object, Objects, Reply},
    },
    testkit::laws::{Case, Lawful, laws, weather},
};
use proptest::{collection::vec, option, prelude::*, sample::subsequence};

use crate::nlb::{
    CLUSTER_TAG, DesiredPart, Directory, Entry, Key, Kind, Nlb, OWNER_TAG, Rule, SERVICE_TAG, name_of,
    ownership, service_tag, target_group,
};

fn tag() -> OwnershipTag {
    OwnershipTag::Known(ClusterTag::of("me"))
}

fn tag_of<'a>(object: &'a Object<Kind>, name: &str) -> Option<&'a str> {
    object.set("tag").iter().find_map(|entry| match entry {
        Entry::Tag { key, value } if key == name => Some(value.as_str()),
        _ => None,
    })
}

fn is_foreign(object: &Object<Kind>) -> bool {
    object.kind != Kind::NodeGroup && tag_of(object, CLUSTER_TAG).is_none()
        || matches!(ownership(&tag())(object), Ownership::Foreign(_))
}

/// Whether an object is of this part.
fn is_of(object: &Object<Kind>, key: &Key) -> bool {
    let Key::Balancer(name) = key else {
        return object.kind == Kind::NodeGroup;
    };
    match object.kind {
        Kind::NodeGroup => false,
        Kind::Balancer => object.key == *name,
        Kind::Listener => object.parent.as_ref() == Some(name),
        Kind::Group | Kind::TargetGroup => tag_of(object, SERVICE_TAG).map(owner).as_ref() == Some(name),
    }
}

fn lines(objects: impl Iterator<Item = Object<Kind>>) -> Vec<String> {
    let mut lines: Vec<_> = objects
        .map(|mut object| {
            for entries in object.sets.values_mut() {
                let mut sorted = entries.to_vec();
                sorted.sort_by_key(ToString::to_string);
                *entries = sorted.into();
            }
            let Object {
                kind,
                key,
                parent,
                attributes,
                sets,
                ..
            } = object;
            let attributes: Vec<_> = attributes
                .iter()
                .filter(|(name, _)| **name != "dns_name")
                .collect();
            format!("{kind:?} {key} {parent:?} {attributes:?} {sets:?}")
        })
        .collect();
    lines.sort();
    lines
}

impl Lawful for Nlb {
    type Truth = Objects<Kind>;

    fn view(&self, truth: &Self::Truth, key: &Key, _: &[Member<Self>], _: &ClusterView) -> Objects<Kind> {
        let all = truth.all.iter().filter(|object| is_of(object, key));
        let is_foreign = |object: &Object<Kind>| {
            let parent = truth
                .all
                .iter()
                .find(|parent| object.parent.as_ref() == Some(&parent.key));
            is_foreign(parent.unwrap_or(object))
        };
        all.map(|object| Object {
            foreign: is_foreign(object).then(|| "another cluster's".to_owned()),
            ..object.clone()
        })
        .collect()
    }

    fn store(&self, truth: &mut Self::Truth, key: &Key, after: Objects<Kind>) {
        truth.all.retain(|object| !is_of(object, key));
        truth.all.extend(after.all);
        truth
            .all
            .sort_by(|a, b| (a.kind, &a.key, &a.parent).cmp(&(b.kind, &b.key, &b.parent)));
    }

    fn directory(&self, truth: &Self::Truth) -> Directory {
        let tagged = truth.all.iter().filter(|object| !is_foreign(object));
        let rules = truth.of(Kind::NodeGroup).flat_map(|group| group.set("rule"));
        Directory {
            balancers: (0..SERVICES)
                .filter_map(|index| {
                    let key = Key::Balancer(name_of(&id(index)));
                    let mut parts = truth.all.iter().filter(|object| is_of(object, &key)).peekable();
                    parts.peek()?;
                    let is_ours = |object: &Object<Kind>| {
                        !is_foreign(object) && ownership(&tag())(object).allows_orphan_deletion()
                    };
                    Some((name_of(&id(index)), service_tag(&id(index)), parts.all(is_ours)))
                })
                .collect(),
            tagged: tagged
                .filter_map(|object| tag_of(object, SERVICE_TAG))
                .map(str::to_owned)
                .collect(),
            ruled: rules
                .filter_map(|entry| match entry {
                    Entry::Rule(rule) => rule
                        .description
                        .split_once("client=")
                        .map(|(_, name)| name.to_owned()),
                    _ => None,
                })
                .collect(),
        }
    }

    fn inputs(&self, _: &Key, _: &[Member<Self>], _: &ClusterView) -> GatheredInputs<()> {
        ().into()
    }

    fn reply(&self, _: &Key, change: &Change<Kind>, _: &Objects<Kind>, serial: u64) -> Reply<Kind> {
        let Action::Create(object, _) = &change.action else {
            return Reply::default();
        };
        let mut answer = Object::new(object.kind, object.key.clone());
        answer.id = format!("arn-{serial}");
        if object.kind == Kind::Balancer {
            answer = answer.with("dns_name", format!("{}.elb.eu-west-1.amazonaws.com", object.key));
        }
        Reply::object(answer)
    }

    fn shape(&self, truth: &Self::Truth) -> Vec<String> {
        lines(truth.all.iter().cloned())
    }

    fn foreign(&self, truth: &Self::Truth) -> Vec<String> {
        let foreign = truth.all.iter().filter(|object| {
            let parent = truth
                .all
                .iter()
                .find(|parent| object.parent.as_ref() == Some(&parent.key));
            is_foreign(parent.unwrap_or(object))
        });
        let mut foreign = lines(foreign.cloned());
        for object in &truth.all {
            let rules = object
                .set("rule")
                .iter()
                .filter(|_| object.kind == Kind::NodeGroup);
            foreign.extend(rules.filter_map(|entry| match entry {
                Entry::Rule(rule) if !rule.description.starts_with("kubernetes.io/") => {
                    Some(entry.to_string())
                }
                _ => None,
            }));
        }
        foreign.sort();
        foreign
    }

    fn differences(&self, part: &DesiredPart, observed: &Objects<Kind>) -> Vec<String> {
        let is_balancer = |object: &Object<Kind>| object.kind == Kind::Balancer;
        if !part.kept.is_empty()
            && part
                .objects
                .objects
                .iter()
                .all(|object| object.kind != Kind::NodeGroup)
        {
            return Vec::new();
        }
        if let Some(foreign) = observed
            .all
            .iter()
            .find(|object| is_balancer(object) && object.foreign.is_some())
        {
            let asked = part.objects.objects.iter().any(is_balancer);
            return asked.then(|| foreign.title()).into_iter().collect();
        }
        let mut found = Vec::new();
        for want in &part.objects.objects {
            let Some(have) = observed.get(want.kind, &want.key) else {
                found.extend((!want.if_present).then(|| want.title()));
                continue;
            };
            let is_other = |(name, value): &(&&'static str, &serde_json::Value)| {
                let is_fixed = want.kind == Kind::TargetGroup && ["port", "protocol"].contains(*name);
                !is_fixed && have.attributes.get(**name).is_some_and(|have| have != *value)
            };
            let other = want.attributes.iter().filter(is_other);
            found.extend(other.map(|(name, _)| format!("{name} of {}", want.title())));
            let lacks = |set: &str| {
                want.set(set).iter().any(|entry| {
                    let have = have.set(set).iter().map(ToString::to_string);
                    !have.collect::<Vec<_>>().contains(&entry.to_string())
                })
            };
            found.extend(
                ["tag", "rule", "target"]
                    .into_iter()
                    .filter(|set| lacks(set))
                    .map(|set| format!("{set} of {}", want.title())),
            );
        }
        let known = |object: &&Object<Kind>| {
            part.objects
                .objects
                .iter()
                .any(|want| want.kind == object.kind && want.key == object.key)
        };
        let surplus = observed
            .all
            .iter()
            .filter(|object| object.foreign.is_none() && object.kind != Kind::NodeGroup);
        found.extend(surplus.filter(|object| !known(object)).map(Object::title));
        found
    }

    fn destroys(&self, change: &Change<Kind>) -> bool {
        change.kind == Kind::Balancer && matches!(change.action, Action::Delete(_))
    }
}

/// The name of the load balancer of the Service in a tag.
fn owner(tag: &str) -> String {
    (0..SERVICES)
        .map(id)
        .find(|id| service_tag(id) == tag)
        .map(|id| name_of(&id))
        .unwrap_or_default()
}

const SERVICES: usize = 3;
const PORTS: [(Protocol, u16); 3] = [(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Udp, 443)];
const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";
const ANNOTATIONS: [(&str, &str); 8] = [
    ("internal", "true"),
    ("ssl-cert", "arn:cert"),
    ("cross-zone-load-balancing-enabled", "true"),
    ("healthcheck-interval", "10"),
    ("healthcheck-protocol", "HTTP"),
    ("healthcheck-protocol", "QUIC"),
    ("preserve-client-ip", "false"),
    ("managed-group", "true"),
];

fn id(index: usize) -> ServiceId {
    ServiceId::new("n", format!("s{index}"), format!("u-{index}"))
}

fn service(index: usize) -> impl Strategy<Value = ServiceView> {
    let life = prop_oneof![6 => Just(0), 2 => Just(1), 1 => Just(2)];
    let ports = subsequence(PORTS.to_vec(), 1..=2);
    let annotations = subsequence(ANNOTATIONS.to_vec(), 0..=3);
    (
        ports,
        annotations,
        life,
        option::weighted(0.3, Just("10.0.0.0/8")),
    )
        .prop_map(move |(ports, annotations, life, range)| {
            let annotations = annotations
                .into_iter()
                .map(|(key, value)| (format!("{PREFIX}{key}"), value));
            let annotations: Vec<_> = annotations.collect();
            ServiceView {
                id: id(index),
                annotations: annotations
                    .iter()
                    .map(|(key, value)| (key.as_str(), *value))
                    .collect::<Labels>(),
                finalizers: vec![ServiceView::FINALIZER.into()],
                service_type: if life == 2 {
                    ServiceType::ClusterIp
                } else {
                    ServiceType::LoadBalancer
                },
                deleting: life == 1,
                source_ranges: range.map(|range| vec![range.into()]),
                ports: ports
                    .iter()
                    .map(|(protocol, port)| ServicePort {
                        protocol: *protocol,
                        port: *port,
                        node_port: 30000 + port + 1000 * u16::try_from(index).unwrap(),
                        ..ServicePort::default()
                    })
                    .collect(),
                ..ServiceView::default()
            }
        })
}

fn world() -> impl Strategy<Value = ClusterSnapshot> {
    let services: Vec<_> = (0..SERVICES)
        .map(|index| option::weighted(0.8, service(index)))
        .collect();
    let nodes = vec(option::weighted(0.9, proptest::bool::weighted(0.9)), 2);
    (services, nodes).prop_map(|(services, nodes)| {
        let nodes = nodes.into_iter().enumerate().filter_map(|(index, eligible)| {
            Some(ServiceNode {
                view: Arc::new(NodeView {
                    name: format!("node{index}"),
                    provider_id: Some(format!("aws:///eu-west-1a/i-{index}")),
                    ..NodeView::default()
                }),
                addresses: [].into(),
                eligible: eligible?,
                ready: true,
            })
        });
        ClusterSnapshot {
            services: services.into_iter().flatten().map(Arc::new).collect(),
            cluster: ClusterView {
                name: "parity".into(),
                ownership_tag: tag(),
                nodes: nodes.collect::<NodeSet>(),
            },
        }
    })
}

/// What there may be of a Service: all of it or a part, as it should be or not.
fn remains(index: usize) -> impl Strategy<Value = Vec<Object<Kind>>> {
    let owner = prop_oneof![4 => Just(Some("kube_cluster_id_me")), 3 => Just(None), 1 => Just(Some("kube_cluster_id_x"))];
    let parts = subsequence(vec![0, 1, 2, 3], 0..=4);
    let odd = proptest::bool::weighted(0.5);
    (service(index), owner, parts, odd, proptest::bool::weighted(0.85)).prop_map(
        move |(service, owner, parts, odd, tagged)| {
            let name = name_of(&service.id);
            let is_other = owner == Some("kube_cluster_id_x") || !tagged;
            let object = |kind, key: String| {
                let mut tags = vec![Entry::tag("team", "a")];
                tags.extend(tagged.then(|| Entry::tag(CLUSTER_TAG, "owned")));
                tags.push(Entry::tag(SERVICE_TAG, service_tag(&service.id)));
                tags.extend(owner.map(|owner| Entry::tag(OWNER_TAG, owner)));
                Object {
                    id: format!("arn-{kind:?}-{key}"),
                    ..Object::new(kind, key).entries("tag", tags)
                }
            };
            let mut objects = Vec::new();
            if parts.contains(&0) || is_other {
                let balancer = object(Kind::Balancer, name.clone()).with("dns_name", "x.amazonaws.com");
                objects.push(if odd {
                    balancer.with("scheme", "internal")
                } else {
                    balancer
                });
            }
            if parts.contains(&1) && !is_other {
                objects.push(object(Kind::Group, format!("k8s-n-s{index}")).entries("rule", []));
            }
            for (at, port) in service.ports.iter().enumerate() {
                let group = target_group(&service, port);
                if parts.contains(&2) && !is_other {
                    let gone = Entry::Target {
                        instance: "i-gone".into(),
                        port: port.node_port,
                    };
                    objects.push(
                        object(Kind::TargetGroup, group.clone())
                            .with("port", port.node_port)
                            .with("health_check_protocol", if odd { "HTTPS" } else { "TCP" })
                            .entries("target", [gone]),
                    );
                }
                let is_first = !objects.iter().any(|object| object.kind == Kind::Listener);
                if parts.contains(&3)
                    && objects.iter().any(|object| object.kind == Kind::Balancer)
                    && (at == 0 || is_first)
                {
                    let listener = object(Kind::Listener, port.port.to_string())
                        .with("transport", if odd { "udp" } else { "tcp" })
                        .with("protocol", if odd { "UDP" } else { "TCP" })
                        .with("target_group", group);
                    objects.push(Object {
                        parent: Some(name.clone()),
                        ..listener
                    });
                }
            }
            objects
        },
    )
}

fn truth() -> impl Strategy<Value = Objects<Kind>> {
    let remains: Vec<_> = (0..SERVICES).map(remains).collect();
    let rules = subsequence(vec![0, 1, 2], 0..=3);
    (remains, rules).prop_map(|(remains, rules)| {
        let rules = rules.into_iter().map(|index| {
            let description = match index {
                2 => "by hand".to_owned(),
                _ => format!("kubernetes.io/rule/nlb/client={}", name_of(&id(index))),
            };
            Entry::Rule(Rule {
                protocol: "tcp",
                from: 30000 + u16::try_from(index).unwrap(),
                to: 30080,
                range: "0.0.0.0/0".into(),
                description,
            })
        });
        let mut nodes = Object::new(Kind::NodeGroup, "sg-nodes").entries("rule", rules);
        nodes.id = "sg-nodes".into();
        remains.into_iter().flatten().chain([nodes]).collect()
    })
}

fn some_case() -> impl Strategy<Value = Case<Objects<Kind>>> {
    (truth(), vec(world(), 1..=2), weather()).prop_map(|(truth, worlds, weather)| Case {
        truth,
        worlds,
        weather,
    })
}

#[test]
fn network_load_balancers_keep_the_laws() {
    laws(&Nlb, &some_case(), 60);
}
