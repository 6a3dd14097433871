//! The laws of the plan engine for AWS's network load balancers.

use ccm_core::{
    load_balancer::{ClusterView, Ownership, Protocol, ServiceId},
    plan::{
        GatheredInputs, Member,
        objects::{Action, Change, Object, Objects, Reply},
    },
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, laws, objects, other_cluster_tag,
        ownership_tag, service_id,
    },
};

use crate::nlb::{
    CLUSTER_TAG, Directory, Entry, Key, Kind, Nlb, OWNER_TAG, Rule, SERVICE_TAG, name_of, ownership,
    service_tag,
};

const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";

fn tag_of<'a>(object: &'a Object<Kind>, name: &str) -> Option<&'a str> {
    object.set("tag").iter().find_map(|entry| match entry {
        Entry::Tag { key, value } if key == name => Some(value.as_str()),
        _ => None,
    })
}

fn is_foreign(object: &Object<Kind>) -> bool {
    object.kind != Kind::NodeGroup && tag_of(object, CLUSTER_TAG).is_none()
        || matches!(ownership(&ownership_tag())(object), Ownership::Foreign(_))
}

/// Whether an object or its load balancer is somebody else's.
fn is_of_foreign(truth: &Objects<Kind>, object: &Object<Kind>) -> bool {
    let mut parents = truth.of(Kind::Balancer);
    is_foreign(
        parents
            .find(|parent| object.parent.as_ref() == Some(&parent.key))
            .unwrap_or(object),
    )
}

/// The index of the Service that an object is for.
fn service_of(object: &Object<Kind>) -> Option<usize> {
    let tag = tag_of(object, SERVICE_TAG)?;
    (0..SERVICES).find(|index| service_tag(&service_id(*index)) == tag)
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
        Kind::Group | Kind::TargetGroup => {
            service_of(object).is_some_and(|index| name_of(&service_id(index)) == *name)
        }
    }
}

/// The load balancers of which a rule of a node group speaks.
fn client_of(entry: &Entry) -> Option<&str> {
    match entry {
        Entry::Rule(rule) => rule.description.split_once("client=").map(|(_, name)| name),
        _ => None,
    }
}

/// Gives everything of a Service this ownership tag.
fn own(truth: &mut Objects<Kind>, number: usize, tag: Option<&str>) {
    for object in &mut truth.all {
        if service_of(object) == Some(number % SERVICES) {
            let entries = object.set("tag").iter();
            let others = entries.filter(|entry| !matches!(entry, Entry::Tag { key, .. } if key == OWNER_TAG));
            let tag = tag.map(|tag| Entry::tag(OWNER_TAG, tag));
            let tags: Vec<_> = others.cloned().chain(tag).collect();
            object.sets.insert("tag", tags.into());
        }
    }
}

impl Lawful for Nlb {
    type Truth = Objects<Kind>;

    fn ground(&self) -> Self::Truth {
        let rule = Entry::Rule(Rule {
            protocol: "tcp",
            from: 22,
            to: 22,
            range: "0.0.0.0/0".into(),
            description: "by hand".into(),
        });
        let mut nodes = Object::new(Kind::NodeGroup, "sg-nodes").entries("rule", [rule]);
        nodes.id = "sg-nodes".into();
        [nodes].into_iter().collect()
    }

    fn clusters(&self) -> Clusters {
        let setting = |name: &str, value: &str| Setting::annotation(format!("{PREFIX}{name}"), value);
        let ranges: fn(&mut _) = |service: &mut ccm_core::load_balancer::ServiceView| {
            service.source_ranges = Some(vec!["10.0.0.0/8".into()]);
        };
        Clusters {
            names: vec!["parity"],
            ports: vec![(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Udp, 443)],
            settings: vec![
                vec![setting("internal", "true")],
                vec![setting("ssl-cert", "arn:cert")],
                vec![setting("cross-zone-load-balancing-enabled", "true")],
                vec![setting("healthcheck-interval", "10")],
                ["HTTP", "QUIC"]
                    .map(|value| setting("healthcheck-protocol", value))
                    .to_vec(),
                vec![setting("preserve-client-ip", "false")],
                vec![setting("managed-group", "true")],
                vec![Setting::field(ranges)],
            ],
            provider_id: |index| format!("aws:///eu-west-1a/i-{index}"),
        }
    }

    fn edits(&self) -> Vec<Edit<Self::Truth>> {
        let mut edits = objects::edits(
            "Service",
            |truth, _| Some(truth),
            |object| object.kind != Kind::NodeGroup,
        );
        edits.extend([
            Edit::new("remove ownership tags", |truth, number| own(truth, number, None)),
            Edit::new("give to another cluster", |truth, number| {
                own(truth, number, Some(other_cluster_tag().as_str()));
            }),
        ]);
        edits
    }

    fn view(&self, truth: &Self::Truth, key: &Key, _: &[Member<Self>], _: &ClusterView) -> Objects<Kind> {
        let all = truth.all.iter().filter(|object| is_of(object, key));
        all.map(|object| Object {
            foreign: is_of_foreign(truth, object).then(|| "another cluster's".to_owned()),
            ..object.clone()
        })
        .collect()
    }

    fn store(&self, truth: &mut Self::Truth, key: &Key, after: Objects<Kind>) {
        objects::replace(truth, after, |object| is_of(object, key));
    }

    fn directory(&self, truth: &Self::Truth) -> Directory {
        let tagged = truth.all.iter().filter(|object| !is_foreign(object));
        let rules = truth.of(Kind::NodeGroup).flat_map(|group| group.set("rule"));
        Directory {
            balancers: (0..SERVICES)
                .map(service_id)
                .filter_map(|id| {
                    let key = Key::Balancer(name_of(&id));
                    let mut parts = truth.all.iter().filter(|object| is_of(object, &key)).peekable();
                    parts.peek()?;
                    let is_ours = |object: &Object<Kind>| {
                        !is_foreign(object) && ownership(&ownership_tag())(object).allows_orphan_deletion()
                    };
                    Some((name_of(&id), service_tag(&id), parts.all(is_ours)))
                })
                .collect(),
            tagged: tagged
                .filter_map(|object| tag_of(object, SERVICE_TAG))
                .map(str::to_owned)
                .collect(),
            ruled: rules.filter_map(client_of).map(str::to_owned).collect(),
        }
    }

    fn inputs(&self, _: &Key, _: &[Member<Self>], _: &ClusterView) -> GatheredInputs<()> {
        ().into()
    }

    fn reply(&self, _: &Key, change: &Change<Kind>, _: &Objects<Kind>, ids: &Ids) -> Reply<Kind> {
        objects::reply(change, ids, |object| match object.kind {
            Kind::Balancer => {
                let name = format!("{}.elb.eu-west-1.amazonaws.com", object.key);
                object.with("dns_name", name)
            }
            _ => object,
        })
    }

    fn picture(&self, truth: &Self::Truth) -> Vec<Line> {
        let mut picture = Vec::new();
        for object in truth.all.iter().filter(|object| object.kind != Kind::NodeGroup) {
            let owner = match service_of(object) {
                Some(index) if !is_of_foreign(truth, object) => {
                    Owner::service(service_tag(&service_id(index)))
                }
                _ => Owner::Foreign,
            };
            picture.extend(objects::lines(
                object,
                &owner,
                [&[], &["description"]],
                |entry| !matches!(entry, Entry::Tag { key, .. } if key == OWNER_TAG),
            ));
        }
        let rules = truth.of(Kind::NodeGroup).flat_map(|group| group.set("rule"));
        picture.extend(rules.map(|entry| {
            let mut ids = (0..SERVICES).map(service_id);
            let client = client_of(entry).and_then(|name| ids.find(|id| name_of(id) == name));
            let owner = match (client, entry) {
                (Some(client), _) => Owner::service(service_tag(&client)),
                (None, Entry::Rule(rule)) if rule.description == "by hand" => Owner::Foreign,
                _ => Owner::Cluster,
            };
            Line::exact(format!("{entry} to nodes"), &owner)
        }));
        picture
    }

    fn owner(&self, service: &ServiceId, _: &str) -> String {
        service_tag(service)
    }

    fn destroys(&self, change: &Change<Kind>) -> bool {
        change.kind == Kind::Balancer && matches!(change.action, Action::Delete(_))
    }
}

#[test]
fn network_load_balancers_keep_the_laws() {
    laws(&Nlb, 60);
}
