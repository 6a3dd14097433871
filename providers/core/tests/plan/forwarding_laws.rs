//! The laws of a toy whose steps are sent at the same time.

use ccm_core::{
    load_balancer::{ClusterView, Protocol, ServiceId, ServiceView},
    plan::Member,
    testkit::laws::{
        AcceptedChange, Case, Clusters, Edit, Ids, Lawful, Line, Owner, Setting, concurrent, converges, laws,
        objects::{self, ObjectEdits, ObjectTrees},
    },
};

use crate::{
    forwarding::{
        AFFINITY, ASSIGNED, BALANCER, CLUSTER, Forwarding, ForwardingChange, ForwardingDirectory,
        ForwardingKind, ForwardingObject, ForwardingObjects, ForwardingPart, PATH, SERVICE, StepOrder,
        cluster_text, service_text,
    },
    toy_cases::{nodes, service, world},
};

fn is_of(object: &ForwardingObject, key: &ForwardingPart) -> bool {
    match key {
        ForwardingPart::Machines => object.kind == ForwardingKind::Machine,
        ForwardingPart::Balancer(name) => object.text(BALANCER) == name,
    }
}

/// Whether the object belongs to another client.
fn is_foreign(object: &ForwardingObject) -> bool {
    object.kind != ForwardingKind::Machine && object.text(SERVICE).is_empty()
}

impl Lawful for Forwarding {
    type Truth = ObjectTrees<ForwardingKind>;

    /// The address of another client.
    fn ground(&self) -> Self::Truth {
        ObjectTrees::new([ForwardingObject::new(ForwardingKind::Address, "theirs").with(BALANCER, "theirs")])
    }

    fn clusters(&self) -> Clusters {
        Clusters {
            names: vec!["toys"],
            ports: vec![(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Udp, 443)],
            settings: vec![
                ["client", "plaid"].map(|affinity| Setting::annotation(AFFINITY, affinity)).to_vec(),
                vec![Setting::annotation(PATH, "/ready")],
            ],
            provider_id: |index| format!("toy:///{index}"),
        }
    }

    fn edits(&self) -> Vec<Edit<Self::Truth>> {
        let ours = ObjectEdits::new(
            |truth| truth,
            |object| object.kind != ForwardingKind::Machine && !is_foreign(object),
        );
        let firewalls = ObjectEdits::new(
            |truth| truth,
            |object| object.kind == ForwardingKind::Firewall && !is_foreign(object),
        );
        let machines = ObjectEdits::new(|truth| truth, |object| object.kind == ForwardingKind::Machine);
        let mut edits = ours.edits("object of Service");
        edits.push(firewalls.edit("give firewall to another client", |firewall, _| {
            firewall.attributes.insert(SERVICE, "".into());
        }));
        edits.push(machines.delete("delete machine"));
        edits
    }

    fn view(
        &self,
        truth: &Self::Truth,
        key: &ForwardingPart,
        members: &[Member<Self>],
        cluster: &ClusterView,
    ) -> ForwardingObjects {
        let is_of_member = |object: &ForwardingObject| {
            let mut members = members.iter().map(|member| service_text(&member.service.id));
            members.len() == 0 || members.any(|text| object.text(SERVICE) == text)
        };
        let mut objects = truth.view(|object| is_of(object, key));
        for object in &mut objects.all {
            let is_ours = match object.kind {
                ForwardingKind::Machine => object.text(CLUSTER) == cluster_text(cluster),
                _ => !is_foreign(object) && is_of_member(object),
            };
            object.foreign = (!is_ours).then(|| "another client".to_owned());
            if object.kind == ForwardingKind::Address {
                object.attributes.insert(ASSIGNED, format!("the address of {}", object.key).into());
            }
        }
        objects
    }

    fn store(&self, truth: &mut Self::Truth, key: &ForwardingPart, after: ForwardingObjects) {
        truth.store(after, |object| is_of(object, key));
    }

    fn directory(&self, truth: &Self::Truth) -> ForwardingDirectory {
        let objects = truth.0.iter().flat_map(|tree| &tree.all);
        let ours = objects.filter(|object| object.kind != ForwardingKind::Machine && !is_foreign(object));
        let mut names: Vec<_> = ours
            .map(|object| (object.text(BALANCER).to_owned(), object.text(SERVICE).to_owned()))
            .collect();
        names.sort();
        names.dedup();
        ForwardingDirectory {
            balancers: names,
            has_machines: truth.of(ForwardingKind::Machine).next().is_some(),
        }
    }

    fn inputs(&self, _: &Self::Truth, _: &ForwardingPart, _: &[Member<Self>], _: &ClusterView) {}

    fn reply(&self, change: &ForwardingChange, _: &ForwardingObjects, ids: &Ids) -> Self::Reply {
        objects::reply(change, ids, |_, answer| answer)
    }

    fn accepted_change(&self) -> AcceptedChange {
        AcceptedChange::OccupiesObjects
    }

    fn undo_create(&self, truth: &mut Self::Truth, _: &ForwardingPart, change: &ForwardingChange) {
        truth.delete(0, |object| object.kind == change.kind && object.key == change.key);
    }

    fn refuses(&self, change: &ForwardingChange, view: &ForwardingObjects) -> Option<String> {
        objects::refusal(change, view)
    }

    fn picture(&self, truth: &Self::Truth) -> Vec<Line> {
        let all = truth.0.iter().flat_map(|tree| &tree.all);
        let lines = all.flat_map(|object| {
            let owner = match object.kind {
                ForwardingKind::Machine => Owner::Cluster,
                _ if is_foreign(object) => Owner::Foreign,
                _ => Owner::service(object.text(SERVICE)),
            };
            objects::lines(object, &owner, [&[], &[BALANCER, SERVICE]], |_| false)
        });
        lines.collect()
    }

    fn owner(&self, service: &ServiceId, _: &str) -> String {
        service_text(service)
    }

    fn destroys(&self, change: &ForwardingChange, _: &ForwardingObjects, _: &ServiceView) -> bool {
        objects::deletes(change, &[ForwardingKind::Address])
    }
}

#[test]
fn a_model_with_several_steps_at_a_time_keeps_the_laws() {
    laws(&Forwarding::default(), 60);
}

#[test]
fn a_model_with_several_steps_at_a_time_keeps_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&Forwarding::default(), 200);
}

/// In the first history, a Service left a part in a pass with an older form of it, wanted a load balancer again, and left a second
/// time. In the second, a Service without a finalizer left a shared part after it had nothing to leave for a while.
const FOUND: [u64; 2] = [1001, 6156];

#[test]
fn histories_that_found_a_fault_keep_the_laws() {
    for seed in FOUND {
        concurrent::play(&Forwarding::default(), seed, None).unwrap();
    }
}

#[test]
fn a_step_before_those_that_it_needs_breaks_ordered() {
    let flawed = Forwarding {
        order: StepOrder::AllAtOnce,
        ..Forwarding::default()
    };
    let mut case =
        Case::of(flawed.ground(), vec![world(vec![service(0, &[80], &[])], nodes([("n0", true)]))]);
    case.behavior.polls = 1;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.unwrap();
    let broken = runtime.block_on(converges(&flawed, &case)).unwrap_err();
    assert_eq!(broken.law, "ordered", "{broken}");
    runtime.block_on(converges(&Forwarding::default(), &case)).unwrap();
}
