//! Plans the changes from the observed to the desired state of a part. Pure.

pub(crate) mod floating;
mod listeners;
mod ports;
mod rename;
mod site;

use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::{Blocked, Ownership},
    plan::{
        Plan,
        objects::{self, Action, Attributes, Object, Objects},
    },
};

use self::site::{BalancerPlan, Site, Step, UNUSED, blocked};
use super::{
    desired::{ActiveService, DesiredBalancer, DesiredPart, Owner},
    features::Feature,
    fields,
    kinds::{self, ObjectKind, ObjectUpdate},
    names,
    observe::{self, LoadBalancerSnapshot, ObservedPart},
    part::OpenStackPart,
    steps::{self, PartChange},
    tags::{self, Annotated},
};

/// The steps in order, and the blocked differences.
pub(crate) fn plan(desired: &DesiredPart, observed: &ObservedPart) -> Plan<PartChange> {
    match (desired, observed) {
        (DesiredPart::Balancer(desired), ObservedPart::Balancers(snapshot)) => balancer(desired, snapshot),
        (DesiredPart::Group(Some(desired)), ObservedPart::Groups(have)) => {
            desired.diff(have).map(PartChange::Group)
        }
        (DesiredPart::Ports(desired), ObservedPart::Ports(have, missing)) => {
            ports::ports(desired, have, missing)
        }
        _ => Plan::default(),
    }
}

fn balancer(desired: &DesiredBalancer, snapshot: &LoadBalancerSnapshot) -> Plan<PartChange> {
    let mut all = snapshot.objects.of(ObjectKind::Balancer);
    let (first, more) = (all.next(), all.count());
    let Some(balancer) = first else {
        return steps::of_balancer(absent(desired, snapshot), |change| {
            PartChange::Balancer(change.key.clone(), change)
        });
    };
    let site = site(desired, &snapshot.objects, balancer, &snapshot.annotated);
    let is_broken = observe::is_broken(balancer);
    if is_broken && more == 0 && site.never_worked(snapshot.is_being_created) {
        let step = balancer.step(Action::Delete(true)).because("its creation failed; it is created again");
        let (steps, blocked) = (vec![step], Vec::new());
        return steps::of_balancer(Plan { steps, blocked }, PartChange::Recreate);
    }
    let plan = if more > 0 {
        let have = format!("present {} times", more + 1);
        refused(desired, &balancer.title(), &have, "present once")
    } else {
        present(&site, snapshot, is_broken)
    };
    steps::of_balancer(plan, |change| PartChange::Balancer(site.name.to_owned(), change))
}

fn refused(desired: &DesiredBalancer, field: &str, have: &str, want: &str) -> BalancerPlan {
    let services = desired.active.iter().map(|active| &active.owner.service);
    let all = services.map(|service| blocked(Some(service), field, have, want));
    Plan {
        blocked: all.collect(),
        ..Plan::default()
    }
}

/// The plan if the load balancer does not exist.
fn absent(desired: &DesiredBalancer, snapshot: &LoadBalancerSnapshot) -> BalancerPlan {
    let mut plan = Plan::default();
    floating::sweep(desired, &snapshot.objects, &mut plan);
    let alone = desired.active.len() == 1 && desired.frozen.is_empty();
    for active in &desired.active {
        let service = Some(&active.owner.service);
        let (name, makes) = match &desired.key {
            OpenStackPart::New(name) => (name, active.owner.tag == *name),
            // Without proof that it was created for the Service, it may be one that a user replaced. One that this process
            // deleted is none: the Service changed its type and back before the annotation was removed.
            OpenStackPart::Balancer(id) => {
                let mut left = floating::left(desired, &snapshot.objects, &active.owner);
                let is_proven = snapshot.was_deleted || left.next().is_some();
                (id, active.had_load_balancer && alone && is_proven)
            }
            _ => continue,
        };
        let field = format!("load balancer {name}");
        if !makes {
            let want = match &desired.key {
                OpenStackPart::Balancer(_) => {
                    "present; without the annotation load-balancer-id, a new one is created"
                }
                _ => "present",
            };
            plan.blocked.push(blocked(service, &field, "missing", want));
        } else if !desired.has_nodes {
            plan.blocked.push(blocked(
                service,
                &field,
                "missing, and no node is eligible as a member",
                "present",
            ));
        } else {
            let new = objects::Desired {
                objects: listeners::new_balancer(desired, active),
                ..objects::Desired::default()
            };
            plan.steps.extend(new.diff(&Objects::default()).steps);
        }
    }
    plan
}

/// Whether the load balancer is deleted together with everything below it, so that these objects need not be read. They
/// could only add former names of the cluster, so a yes stays a yes.
pub(crate) fn deletes_whole(
    desired: &DesiredBalancer,
    objects: &Objects<ObjectKind>,
    balancer: &Object<ObjectKind>,
) -> bool {
    let annotated = Annotated::default();
    desired.cascade && site(desired, objects, balancer, &annotated).is_leaving(false)
}

fn site<'a>(
    desired: &'a DesiredBalancer,
    objects: &'a Objects<ObjectKind>,
    balancer: &'a Object<ObjectKind>,
    annotated: &'a Annotated,
) -> Site<'a> {
    let mut site = Site::new(desired, objects, balancer, annotated);
    site.former = rename::former(&site);
    site
}

/// The active members that may use the load balancer, and the refused ones.
#[derive(Default)]
struct Admission<'a> {
    admitted: Vec<&'a ActiveService>,
    refused: Vec<&'a ActiveService>,
    reasons: Vec<Blocked>,
}

impl Admission<'_> {
    /// Whether a staying Service uses the load balancer, or will. One that is refused may have named it without ever using it.
    fn has_users(&self, site: &Site<'_>) -> bool {
        !self.admitted.is_empty()
            || !site.desired.frozen.is_empty()
            || self
                .refused
                .iter()
                .any(|refused: &&ActiveService| site.tagged(&site.tags, &refused.owner))
    }
}

fn present(site: &Site<'_>, snapshot: &LoadBalancerSnapshot, is_broken: bool) -> BalancerPlan {
    let desired = site.desired;
    let admission = admission(site, snapshot);
    if site.created && !site.ownership.allows_changes() {
        refused(desired, &site.balancer.title(), "another cluster's", "ours")
    } else if site.is_leaving(admission.has_users(site)) {
        delete_or_keep(site, is_broken)
    } else if !is_broken {
        change(site, snapshot, admission)
    } else if desired.failover && site.created && !(desired.active.is_empty() && desired.frozen.is_empty()) {
        let active = Attributes::from([(fields::PROVISIONING_STATUS, "ACTIVE".into())]);
        let step = site.balancer.step(ObjectUpdate::Failover.action(active));
        Plan {
            steps: vec![step.because("failover, since it is in ERROR")],
            blocked: Vec::new(),
        }
    } else {
        let field = format!("state of {}", site.balancer.title());
        refused(desired, &field, "ERROR", "ACTIVE")
    }
}

/// Upstream leaves a load balancer unchanged when its Service moves to another one, and people may still use it.
fn delete_or_keep(site: &Site<'_>, is_broken: bool) -> BalancerPlan {
    let leaving = &site.desired.leaving;
    if site.ownership == Ownership::Ours || !leaving.iter().all(|leaving| leaving.has_moved) {
        return delete(site, is_broken);
    }
    let kept = leaving.iter().map(|leaving| {
        let service = Some(&leaving.owner.service);
        let observed = "no longer used by its Service, and without this cluster's ownership tag";
        blocked(service, &site.balancer.title(), observed, "deleted by hand")
    });
    Plan {
        blocked: kept.collect(),
        ..Plan::default()
    }
}

fn delete(site: &Site<'_>, is_broken: bool) -> BalancerPlan {
    let mut plan = Plan::default();
    floating::release(site, &mut plan);
    if site.desired.cascade || is_broken {
        let step = site.balancer.step(Action::Delete(true));
        plan.steps.push(step.because(UNUSED));
    } else {
        let nothing = objects::Desired {
            separate: BTreeSet::from([ObjectKind::Listener]),
            reason: UNUSED,
            ..objects::Desired::default()
        };
        let mut objects = site.objects.clone();
        objects.all.retain(|object| object.kind != ObjectKind::Floating);
        plan.steps.extend(nothing.diff(&objects).steps);
    }
    plan
}

/// Whether the load balancer is public, or would be for its owner. An internal Service may only share one that is not.
fn is_public(site: &Site<'_>, snapshot: &LoadBalancerSnapshot, is_used: bool) -> bool {
    let mut active = site.desired.active.iter();
    let gets_floating_ip = !observe::is_v6(site.balancer)
        && active.any(|active| site.owned_by(&active.owner) && !active.internal);
    // One that an internal Service uses gets no floating IP.
    snapshot.may_be_public(site.balancer) || (gets_floating_ip && !is_used)
}

fn admission<'a>(site: &Site<'a>, snapshot: &LoadBalancerSnapshot) -> Admission<'a> {
    let desired = site.desired;
    let mut shared = site
        .tags
        .iter()
        .filter(|tag| names::is_service_tag(tag))
        .filter(|tag| {
            let mut leaving = desired.leaving.iter();
            !leaving.any(|leaving| site.tagged(std::slice::from_ref(*tag), &leaving.owner))
        })
        .count();
    let field = site.balancer.title();
    let mut found = Admission::default();
    for active in &desired.active {
        let owner = site.owned_by(&active.owner);
        let known = site.tagged(&site.tags, &active.owner);
        let mut refuse = |have: String, want: &str| {
            found.refused.push(active);
            let reason = blocked(Some(&active.owner.service), &field, &have, want);
            found.reasons.push(reason);
        };
        let other_name = names::cluster_of(site.name)
            .filter(|cluster| names::load_balancer(cluster, &active.owner.service) == site.name);
        if !owner && let Some(cluster) = other_name {
            let have = format!("named for the cluster name {cluster}");
            refuse(have, "named for the current --cluster-name");
        } else if !owner && !desired.can.has(Feature::Tags) {
            let have = "not shareable, because Octavia lacks tags (API version 2.5)";
            refuse(have.to_owned(), "shared");
        } else if !owner && active.internal && is_public(site, snapshot, known) {
            let want = "used by an internal Service";
            refuse("public, for the Service that owns it".to_owned(), want);
        } else if !owner && !known && i64::try_from(shared + 1).unwrap_or(i64::MAX) > desired.max_shared {
            let have = format!("already shared by {shared} Services");
            refuse(have, "shared by one more (max-shared-lb)");
        } else {
            if !known {
                shared += 1;
            }
            found.admitted.push(active);
        }
    }
    found
}

fn change(site: &Site<'_>, snapshot: &LoadBalancerSnapshot, admission: Admission<'_>) -> BalancerPlan {
    let desired = site.desired;
    let Admission {
        admitted,
        refused,
        reasons,
    } = admission;
    let mut plan = Plan {
        steps: Vec::new(),
        blocked: reasons,
    };
    create_only(site, &admitted, &mut plan);
    let below = listeners::plan(site, &admitted, &refused);
    plan.steps.extend(below.plan.steps);
    plan.blocked.extend(below.plan.blocked);
    floating::change(site, &admitted, snapshot, &mut plan);
    let can_tag = desired.can.has(Feature::Tags);
    let (requested, withdrawn) = requested_tags(site, &admitted);
    let missing: Vec<_> = admitted
        .iter()
        .filter(|active| can_tag && !site.tagged(&site.tags, &active.owner))
        .map(|active| active.owner.tag.clone())
        .chain(requested)
        .collect();
    let owner_leaves = desired.leaving.iter().any(|leaving| site.owned_by(&leaving.owner));
    let surplus = site.tags.iter().filter(|tag| {
        let mut leaving = desired.leaving.iter();
        (owner_leaves && names::is_requested_address_tag(tag))
            || leaving.any(|leaving| site.tagged(std::slice::from_ref(*tag), &leaving.owner))
    });
    // Pools of refused and frozen Services are not compared.
    let is_compared = refused.is_empty() && desired.frozen.is_empty();
    let obsolete = (is_compared && !below.lacks_affinity && site.has_affinity_record())
        .then(|| names::NOT_APPLIED_AFFINITY_TAG.to_owned());
    let surplus: Vec<_> = surplus.cloned().chain(withdrawn).chain(obsolete).collect();
    if plan.steps.is_empty() && missing.is_empty() && surplus.is_empty() && !admitted.is_empty() {
        // The last step: a process that is killed before it finds all objects by the former names.
        rename::steps(site, &mut plan);
    }
    let is_due = !plan.steps.is_empty() || !missing.is_empty() || !surplus.is_empty();
    let ownership_tag = desired
        .ownership_tag
        .for_update(&site.ownership, is_due && site.created && site.is_own() && can_tag)
        .map(ToString::to_string);
    let affinity_record =
        (ownership_tag.is_some() && below.lacks_affinity).then(|| names::NOT_APPLIED_AFFINITY_TAG.to_owned());
    let owner = admitted.iter().find(|active| can_tag && site.owned_by(&active.owner));
    let record = owner.and_then(|owner| floating::new_record(site, owner, is_due, &plan));
    let is_recorded = site.tags.iter().any(|tag| names::is_requested_address_tag(tag));
    let (first_record, later_record) = if is_recorded {
        (None, record)
    } else {
        (record, None)
    };
    let add: Vec<_> = missing
        .into_iter()
        .chain(ownership_tag)
        .chain(affinity_record)
        .chain(first_record)
        .collect();
    // Tags are added first and removed last, so that a restarted process finds the remaining work by them.
    let mut tags = site.tags.clone();
    if !add.is_empty() {
        tags.extend(add.iter().filter(|tag| !site.tags.contains(tag)).cloned());
        plan.steps.insert(0, set_tags(site, &tags, format!("add tags {}", add.join(", "))));
    }
    if !surplus.is_empty() {
        tags.retain(|tag| !surplus.contains(tag));
        plan.steps.push(set_tags(site, &tags, format!("remove tags {}", surplus.join(", "))));
    }
    if let Some(record) = later_record {
        tags.retain(|tag| !names::is_requested_address_tag(tag));
        tags.push(record.clone());
        let step = set_tags(site, &tags, format!("add tags {record}"));
        // If the Service's floating IP cannot be attached, the record stays, too.
        plan.steps.push(step.for_service(owner.map(|owner| &owner.owner.service)));
    }
    plan
}

/// A step that gives the load balancer these tags.
fn set_tags(site: &Site<'_>, tags: &[String], reason: String) -> Step {
    let step = site.update(Attributes::from([(fields::TAGS, kinds::sent(tags))]));
    step.because(reason)
}

/// The tags of the load balancer to add and to remove because of annotations. Services that share it add up their tags;
/// tags of frozen Services stay.
fn requested_tags(site: &Site<'_>, admitted: &[&ActiveService]) -> (Vec<String>, Vec<String>) {
    let desired = site.desired;
    if !desired.can.has(Feature::Tags) {
        return (Vec::new(), Vec::new());
    }
    let annotated = |owner: &Owner| {
        let tags = site.annotated.get(&owner.service);
        tags.into_iter().flat_map(|tags| &tags.load_balancer)
    };
    let requested = admitted.iter().flat_map(|active| &active.tags.load_balancer).collect();
    let frozen: BTreeSet<_> = desired.frozen.iter().flat_map(|frozen| annotated(&frozen.owner)).collect();
    let active = admitted.iter().map(|active| &active.owner);
    let ours = active
        .chain(desired.leaving.iter().map(|leaving| &leaving.owner))
        .flat_map(annotated)
        .filter(|tag| !frozen.contains(tag))
        .collect();
    tags::difference(&site.tags, &requested, &ours)
}

/// Reports fields that its owner sets by annotation, and that only a new load balancer can get.
fn create_only(site: &Site<'_>, admitted: &[&ActiveService], plan: &mut BalancerPlan) {
    // Fields of a load balancer that is being created are unknown.
    if site.balancer.id.is_empty() {
        return;
    }
    for active in admitted.iter().filter(|active| site.owned_by(&active.owner)) {
        for (name, want) in &active.given {
            let have = site.balancer.text(name);
            if have != want {
                let key = name.trim_start_matches("vip_").replace('_', "-");
                let field = format!("{key} of {}", site.balancer.title());
                plan.blocked.push(blocked(Some(&active.owner.service), &field, have, want));
            }
        }
    }
}
