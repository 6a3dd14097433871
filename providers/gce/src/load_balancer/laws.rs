//! The laws of the plan engine for this model.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ccm_core::{
    load_balancer::{ClusterView, Policy, Protocol, ServiceId, ServiceView, SessionAffinity},
    plan::objects::{Action, Kind as _},
    testkit::laws::{
        AcceptedChange, Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, concurrent, laws,
        objects::{self, ObjectEdits, ObjectTrees},
        service_id,
    },
};

use super::{
    annotations as a,
    directory::{BalancerDirectory, part_of},
    fields,
    kinds::{Object, ObjectChange, ObjectKind, Objects, PartKey},
    members::{InstanceIndex, ZoneInstances},
    model::{ChangeReply, Model, PartInputs, PartMember},
    names,
    settings::BalancerSettings,
};

const CLUSTER_ID: &str = "c1";
/// An address that a user reserved.
const RESERVED: &str = "34.1.0.99";
const ZONES: [&str; 2] = ["r-a", "r-b"];
const SUBNETWORK: &str = "projects/p/regions/r/subnetworks/default";

fn settings() -> BalancerSettings {
    BalancerSettings {
        project: "p".to_owned(),
        network_project: "p".to_owned(),
        region: "r".to_owned(),
        zones: ZONES.map(str::to_owned).to_vec(),
        network: "projects/p/global/networks/default".to_owned(),
        check_ranges: vec!["130.211.0.0/22".to_owned()],
        manages_firewalls: true,
        manages_groups: true,
        ..BalancerSettings::default()
    }
}

fn model(settings: BalancerSettings) -> Model {
    let settings = Arc::new(settings);
    Model { settings }
}

fn services() -> impl Iterator<Item = ServiceId> {
    (0..SERVICES).map(service_id)
}

/// The load balancers that use an object, by name.
fn users(truth: &ObjectTrees<ObjectKind>, object: &Object) -> Vec<String> {
    let refers = |user: &Object| {
        let path = match object.kind {
            ObjectKind::HttpCheck => user.text(fields::HEALTH_CHECK).contains("/httpHealthChecks/"),
            ObjectKind::Check => user.text(fields::HEALTH_CHECK).contains("/healthChecks/"),
            _ => false,
        };
        path && user.text(fields::HEALTH_CHECK).ends_with(&format!("/{}", object.key))
    };
    match part_of(object, CLUSTER_ID) {
        PartKey::Balancer(name) => {
            let is_one = services().any(|id| names::balancer(&id) == name);
            if is_one { vec![name] } else { Vec::new() }
        }
        PartKey::NodeHttpCheck => {
            let check = Object::new(ObjectKind::HttpCheck, names::node_check(CLUSTER_ID));
            match object.kind {
                ObjectKind::HttpCheck => truth
                    .of(ObjectKind::Pool)
                    .filter(|pool| refers(pool))
                    .map(|pool| pool.key.clone())
                    .collect(),
                _ => users(truth, &check),
            }
        }
        PartKey::NodeCheck => {
            let check = Object::new(ObjectKind::Check, names::node_check(CLUSTER_ID));
            match object.kind {
                ObjectKind::Check => {
                    let backends = truth.of(ObjectKind::Backend).filter(|backend| refers(backend));
                    backends.flat_map(|backend| users(truth, backend)).collect()
                }
                _ => users(truth, &check),
            }
        }
        PartKey::Group(zone) => {
            let path = settings().group_path(&zone, CLUSTER_ID);
            let backends = truth.of(ObjectKind::Backend);
            let using = backends.filter(|backend| backend.texts(fields::GROUPS).contains(&&*path));
            using.flat_map(|backend| users(truth, backend)).collect()
        }
        PartKey::SharedBackend(name) => {
            let path = settings().region_path("backendServices", &name);
            let rules = truth.of(ObjectKind::Rule).filter(|rule| rule.text(fields::BACKEND_SERVICE) == path);
            rules.map(|rule| rule.key.clone()).collect()
        }
    }
}

/// The address that Google chooses.
fn chosen_address(object: &Object) -> String {
    let number = object.key.chars().last().and_then(|last| last.to_digit(10)).unwrap_or_default();
    match (object.text(fields::SCHEME), object.text(fields::TIER), object.text(fields::SUBNETWORK)) {
        ("INTERNAL", _, SUBNETWORK) => format!("10.128.0.{}", 100 + number),
        ("INTERNAL", ..) => format!("10.20.0.{}", 100 + number),
        (_, "STANDARD", _) => format!("35.2.0.{}", 10 + number),
        _ => format!("34.1.0.{}", 10 + number),
    }
}

impl Lawful for Model {
    type Truth = ObjectTrees<ObjectKind>;

    /// A reserved address, and a target pool of another program.
    fn ground(&self) -> Self::Truth {
        let reserved = Object::new(ObjectKind::Address, "mine")
            .with(fields::ADDRESS, RESERVED)
            .with(fields::SCHEME, "EXTERNAL")
            .with(fields::TIER, "PREMIUM");
        let pool = Object::new(ObjectKind::Pool, "theirs").with(fields::AFFINITY, "NONE");
        ObjectTrees::new([reserved, pool])
    }

    fn clusters(&self) -> Clusters {
        let internal = || Setting::annotation(a::TYPE, "Internal");
        let kinds = vec![
            internal(),
            internal().and(a::GLOBAL_ACCESS, "true"),
            internal().and(a::SUBNET, "other"),
            internal().and(a::SHARE_BACKEND, "true"),
            // The tier is not compared, since a load balancer without the annotation keeps it.
            Setting::annotation(a::NETWORK_TIER, "Standard").invisible(),
        ];
        let local = Setting::field(|service| {
            (service.external_policy, service.health_check_node_port) = (Policy::Local, 32000);
        });
        let affinity = Setting::field(|service| {
            service.session_affinity = SessionAffinity::ClientIp {
                timeout_seconds: None,
            };
        });
        let address = Setting::field(|service| service.load_balancer_ip = RESERVED.into()).invisible();
        let udp = Setting::field(|service| {
            for port in &mut service.ports {
                port.protocol = Protocol::Udp;
            }
        });
        Clusters {
            names: vec!["parity"],
            ports: vec![(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Tcp, 8080)],
            settings: vec![
                kinds,
                vec![Setting::source_ranges()],
                vec![local],
                vec![affinity],
                vec![address],
                vec![udp],
            ],
            provider_id: |index| format!("gce://p/{}/node{index}", ZONES[index % 2]),
        }
    }

    fn edits(&self) -> Vec<Edit<Self::Truth>> {
        let is_own = |object: &Object| match part_of(object, CLUSTER_ID) {
            PartKey::Balancer(name) => services().any(|id| names::balancer(&id) == name),
            _ => true,
        };
        let changeable = |object: &Object| {
            object.kind.is_firewall() || matches!(object.kind, ObjectKind::HttpCheck | ObjectKind::Check)
        };
        let filled = |object: &Object| matches!(object.kind, ObjectKind::Pool | ObjectKind::Group);
        let deletable = |object: &Object| object.kind.is_firewall() || object.kind == ObjectKind::Rule;
        let _ = is_own;
        let mut edits = ObjectEdits::new(|truth| truth, changeable).changes("firewall rule or health check");
        edits.extend(ObjectEdits::new(|truth| truth, filled).changes("members").into_iter().skip(1));
        edits.push(
            ObjectEdits::new(|truth| truth, deletable).delete("delete firewall rule or forwarding rule"),
        );
        edits
    }

    fn view(&self, truth: &Self::Truth, key: &PartKey, _: &[PartMember], _: &ClusterView) -> Objects {
        truth.view(|root| part_of(root, CLUSTER_ID) == *key)
    }

    fn store(&self, truth: &mut Self::Truth, key: &PartKey, after: Objects) {
        truth.store(after, |root| part_of(root, CLUSTER_ID) == *key);
    }

    fn directory(&self, truth: &Self::Truth) -> BalancerDirectory {
        BalancerDirectory::new(CLUSTER_ID, truth.view(|_| true).all)
    }

    fn inputs(&self, truth: &Self::Truth, _: &PartKey, _: &[PartMember], _: &ClusterView) -> PartInputs {
        let zones = ZONES.iter().enumerate().map(|(index, zone)| {
            let instances = ZoneInstances::from([(format!("node{index}"), vec!["node".to_owned()])]);
            ((*zone).to_owned(), Arc::new(instances))
        });
        let index = InstanceIndex {
            zones: zones.collect(),
            ..InstanceIndex::default()
        };
        PartInputs {
            directory: Arc::new(self.directory(truth)),
            index: Arc::new(index),
            subnetwork: SUBNETWORK.to_owned(),
            ..PartInputs::default()
        }
    }

    fn reply(&self, change: &ObjectChange, _: &Objects, ids: &Ids) -> ChangeReply {
        let objects = objects::reply(change, ids, |created, answer| {
            let is_chosen = created.kind == ObjectKind::Address && created.text(fields::ADDRESS).is_empty();
            if is_chosen {
                answer.with(fields::ADDRESS, chosen_address(created))
            } else {
                answer
            }
        });
        ChangeReply { objects, kept: None }
    }

    fn accepted_change(&self) -> AcceptedChange {
        AcceptedChange::OccupiesObjects
    }

    fn undo_create(&self, truth: &mut Self::Truth, _: &PartKey, change: &ObjectChange) {
        truth.delete(0, |object| object.kind == change.kind && object.key == change.key);
    }

    /// Addresses and firewall rules are not checked: users may have reserved the address, and may manage the rules.
    fn refuses(&self, change: &ObjectChange, view: &Objects) -> Option<String> {
        let is_unchecked = |object: &Object| match object.kind {
            ObjectKind::Address | ObjectKind::Firewall | ObjectKind::CheckFirewall => true,
            _ => part_of(object, CLUSTER_ID) != PartKey::Balancer(object.key.clone()),
        };
        let mut with_unchecked = view.clone();
        match &change.action {
            Action::Create(object, _) => {
                for (kind, key) in object.kind.references(object).unwrap_or_default() {
                    let needed = Object::new(kind, key);
                    if is_unchecked(&needed) {
                        with_unchecked.all.push(needed);
                    }
                }
            }
            _ if change.kind == ObjectKind::Address || change.kind.is_firewall() => return None,
            _ => {}
        }
        objects::refusal(change, &with_unchecked)
    }

    fn picture(&self, truth: &Self::Truth) -> Vec<Line> {
        let mut picture = Vec::new();
        for object in &truth.view(|_| true).all {
            let is_theirs = ["mine", "theirs"].contains(&object.key.as_str());
            let owner = match users(truth, object) {
                users if users.is_empty() && is_theirs => Owner::Foreign,
                users if users.is_empty() => Owner::Cluster,
                users => Owner::Services(users),
            };
            // A load balancer keeps its address and, without the annotation, its tier. Larger numbers of health checks stay.
            let kept = [
                fields::ADDRESS,
                fields::TIER,
                fields::DESCRIPTION,
                fields::DESTINATIONS,
                fields::NETWORK,
                fields::INTERVAL,
                fields::TIMEOUT,
                fields::HEALTHY,
                fields::UNHEALTHY,
            ];
            picture.extend(objects::lines(object, &owner, [&[], &kept], |_| false));
        }
        picture
    }

    fn owner(&self, service: &ServiceId, _: &str) -> String {
        names::balancer(service)
    }

    /// A forwarding rule is deleted to apply a spec, and its address is reserved before. The tests of [`desired`](super::desired) show
    /// that, since here a pass may still apply an earlier spec.
    fn destroys(&self, _: &ObjectChange, _: &Objects, _: &ServiceView) -> bool {
        false
    }
}

#[test]
fn load_balancers_keep_the_laws() {
    laws(&model(settings()), 12);
}

#[test]
fn load_balancers_with_deny_rules_keep_the_laws() {
    let settings = BalancerSettings {
        denies: true,
        deletes_denies: true,
        annotates: true,
        ..settings()
    };
    laws(&model(settings), 8);
}

#[test]
fn load_balancers_keep_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&model(settings()), 200);
}
