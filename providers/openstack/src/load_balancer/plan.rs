//! The way from how a part is to how it should be. Pure.

mod bodies;
mod floating;
mod listeners;
mod orphaned_pools;
mod ports;
mod rename;

pub(crate) use self::bodies::member;
use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::{Blocked, Ownership, ServiceId},
    plan::Plan,
};

use super::{
    desired::{ActiveService, Desired, DesiredBalancer, Owner},
    features::Feature,
    names,
    observe::{LoadBalancerSnapshot, LoadBalancerTree, Observed},
    part::Key,
    responses::Provisioning,
    steps::{Action, Change, Step, step},
    tags::{self, Annotated},
};

/// The steps, in order, and what stays different.
pub(crate) fn plan(desired: &Desired, observed: &Observed) -> Plan<Change> {
    match (desired, observed) {
        (Desired::Balancer(desired), Observed::Balancers(snapshot)) => balancer(desired, snapshot),
        (Desired::Group(Some(desired)), Observed::Groups(have)) => desired.diff(have).map(|change| Change {
            target: change.key.clone(),
            action: Action::Group(change),
        }),
        (Desired::Ports(desired), Observed::Ports(have)) => ports::ports(desired, have),
        _ => Plan::default(),
    }
}

fn balancer(desired: &DesiredBalancer, snapshot: &LoadBalancerSnapshot) -> Plan<Change> {
    match snapshot.trees.as_slice() {
        [] => absent(desired, snapshot),
        [tree] => present(desired, snapshot, tree),
        several => {
            let name = &several.first().map(|tree| tree.balancer.name.clone());
            let name = name.clone().unwrap_or_default();
            refused(
                desired,
                &format!("load balancer {name}"),
                &format!("there {} times", several.len()),
                "there once",
            )
        }
    }
}

fn refused(desired: &DesiredBalancer, field: &str, have: &str, want: &str) -> Plan<Change> {
    let each = desired.active.iter();
    Plan {
        steps: Vec::new(),
        blocked: each
            .map(|active| blocked(Some(&active.owner.service), field, have, want))
            .collect(),
    }
}

fn blocked(service: Option<&ServiceId>, field: &str, have: &str, want: &str) -> Blocked {
    Blocked {
        service: service.cloned(),
        field: field.to_owned(),
        have: have.to_owned(),
        want: want.to_owned(),
    }
}

/// There is no load balancer (any more).
fn absent(desired: &DesiredBalancer, snapshot: &LoadBalancerSnapshot) -> Plan<Change> {
    let mut plan = Plan::default();
    floating::sweep(desired, snapshot, &mut plan);
    let alone = desired.active.len() == 1 && desired.frozen.is_empty();
    for active in &desired.active {
        let service = Some(&active.owner.service);
        let (name, makes) = match &desired.key {
            Key::New(name) => (name, active.owner.tag == *name),
            Key::Balancer(id) => (id, active.had_load_balancer && alone),
            _ => continue,
        };
        let field = format!("load balancer {name}");
        if !makes {
            plan.blocked.push(blocked(service, &field, "not there", "there"));
        } else if !desired.has_nodes {
            plan.blocked.push(blocked(
                service,
                &field,
                "not there, and there is no node that it could serve",
                "there",
            ));
        } else {
            let create = Action::CreateBalancer(Box::new(bodies::new_balancer(desired, active)));
            plan.steps
                .push(step(&active.owner.tag, create).for_service(service));
        }
    }
    plan
}

/// Whether the load balancer is deleted with everything below it, so that nothing of that has to be read. What is below
/// it can only make more of its tags ours, so a yes stays a yes.
pub(crate) fn deletes_whole(desired: &DesiredBalancer, tree: &LoadBalancerTree) -> bool {
    let annotated = Annotated::default();
    desired.cascade && Site::new(desired, tree, &annotated).is_leaving()
}

/// Everybody who has to do with it.
fn whos(desired: &DesiredBalancer) -> impl Iterator<Item = &Owner> {
    let active = desired.active.iter().map(|active| &active.owner);
    let frozen = desired.frozen.iter().map(|frozen| &frozen.owner);
    active
        .chain(frozen)
        .chain(desired.leaving.iter().map(|leaving| &leaving.owner))
}

/// The state of one load balancer, and who has to do with it.
struct Site<'a> {
    desired: &'a DesiredBalancer,
    tree: &'a LoadBalancerTree,
    /// The cluster's names before this one, as far as anything here still has them.
    former: Vec<&'a str>,
    /// It was made by a cluster for a Service.
    created: bool,
    ownership: Ownership,
    /// Tags that came from annotations.
    annotated: &'a Annotated,
}

impl<'a> Site<'a> {
    fn new(desired: &'a DesiredBalancer, tree: &'a LoadBalancerTree, annotated: &'a Annotated) -> Self {
        let balancer = &tree.balancer;
        let created = balancer.name.starts_with(names::SERVICE_PREFIX)
            || whos(desired).any(|owner| owner.owns(&balancer.name));
        let ownership = desired
            .ownership_tag
            .ownership(balancer.tags.iter().map(String::as_str));
        Self {
            desired,
            tree,
            former: rename::former(desired, tree, &ownership),
            created,
            ownership,
            annotated,
        }
    }

    fn step(&self, action: Action, service: Option<&ServiceId>) -> Step {
        step(&self.tree.balancer.name, action).for_service(service)
    }

    /// Whether these are tags of the Service.
    fn tagged(&self, tags: &[String], owner: &Owner) -> bool {
        tags.iter().any(|tag| *tag == owner.tag || self.was(tag, owner))
    }

    /// Whether the load balancer was made for this Service.
    fn owned_by(&self, owner: &Owner) -> bool {
        let name = &self.tree.balancer.name;
        owner.owns(name) || self.was(name, owner)
    }

    /// Whether this is what a former name of the cluster makes of the Service.
    fn was(&self, name: &str, owner: &Owner) -> bool {
        let mut former = self.former.iter();
        former.any(|former| names::load_balancer(former, &owner.service) == name)
    }

    /// The former name of the cluster in a name.
    fn former_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let cluster = names::cluster_of(name)?;
        self.former.contains(&cluster).then_some(cluster)
    }

    /// Whether this cluster had it made. One that another cluster made for a Service may be shared, too, but then it neither
    /// gets our mark, which would lock its own cluster out, nor goes with those that share it.
    fn is_own(&self) -> bool {
        let balancer = &self.tree.balancer;
        let name = &balancer.name;
        balancer.is_of(&self.desired.cluster, &self.ownership)
            || self.former_of(name).is_some()
            || whos(self.desired).any(|owner| owner.owns(name))
    }

    /// Service tags of those that are not among the members.
    fn others(&self) -> usize {
        let desired = self.desired;
        let known: Vec<_> = whos(desired).collect();
        let tags = self.tree.balancer.tags.iter();
        let tags = tags.filter(|tag| names::is_service_tag(tag));
        tags.filter(|tag| {
            !known
                .iter()
                .any(|owner| self.tagged(std::slice::from_ref(tag), owner))
        })
        .count()
    }

    /// Whether it goes with those that leave.
    fn is_leaving(&self) -> bool {
        let desired = self.desired;
        let empty = desired.active.is_empty() && desired.frozen.is_empty();
        let swept = desired.leaving.is_empty() && self.ownership == Ownership::Ours;
        let left = !desired.leaving.is_empty() && self.others() == 0 && self.is_own();
        self.created && empty && (swept || left)
    }

    /// Whether its creation failed, and nobody can know it.
    fn never_worked(&self) -> bool {
        let desired = self.desired;
        let owner = desired.active.iter().any(|active| self.owned_by(&active.owner));
        let active = desired.active.iter().map(|active| &active.owner);
        let mut staying = active.chain(desired.frozen.iter().map(|frozen| &frozen.owner));
        let is_known = staying.any(|owner| self.tree.is_named_by(&owner.named));
        let failed =
            self.tree.is_being_created || (self.ownership == Ownership::Ours && self.tree.never_began());
        owner && failed && !is_known && self.others() == 0
    }
}

fn present(
    desired: &DesiredBalancer,
    snapshot: &LoadBalancerSnapshot,
    tree: &LoadBalancerTree,
) -> Plan<Change> {
    let balancer = &tree.balancer;
    let site = Site::new(desired, tree, &snapshot.annotated);
    let field = format!("load balancer {}", balancer.name);
    if site.created && !site.ownership.allows_changes() {
        return refused(desired, &field, "another cluster's", "ours");
    }
    if site.is_leaving() {
        return delete(&site);
    }
    if balancer.provisioning_status == Provisioning::Error {
        if site.never_worked() {
            let action = Action::DeleteBalancer {
                cascade: true,
                recreate: true,
            };
            let step = site.step(action, None);
            return Plan {
                steps: vec![step.because("its creation failed; it is created again")],
                blocked: Vec::new(),
            };
        }
        if desired.failover && site.created && !(desired.active.is_empty() && desired.frozen.is_empty()) {
            let step = site.step(Action::Failover, None);
            return Plan {
                steps: vec![step.because("it is in ERROR")],
                blocked: Vec::new(),
            };
        }
        return refused(
            desired,
            &format!("state of load balancer {}", balancer.name),
            "ERROR",
            "ACTIVE",
        );
    }
    change(&site, snapshot)
}

fn delete(site: &Site<'_>) -> Plan<Change> {
    let mut plan = Plan::default();
    let (desired, tree) = (site.desired, site.tree);
    floating::release(site, &mut plan);
    let broken = tree.balancer.provisioning_status == Provisioning::Error;
    let cascade = desired.cascade || broken;
    if !cascade {
        for listener_tree in &tree.listener_trees {
            listeners::remove(site, listener_tree, None, &mut plan);
        }
        for pool in &tree.orphaned_pools {
            plan.steps
                .push(site.step(Action::DeleteOrphanedPool(pool.id.clone()), None));
        }
    }
    let step = site.step(
        Action::DeleteBalancer {
            cascade,
            recreate: false,
        },
        None,
    );
    plan.steps.push(step.because("no Service wants it any more"));
    plan
}

/// Who of those that ask for it may use the load balancer, and who is refused.
fn admitted<'a>(
    site: &Site<'a>,
    plan: &mut Plan<Change>,
) -> (Vec<&'a ActiveService>, Vec<&'a ActiveService>) {
    let (desired, balancer) = (site.desired, &site.tree.balancer);
    let leaves = |tag: &String| {
        let mut leaving = desired.leaving.iter();
        leaving.any(|leaving| site.tagged(std::slice::from_ref(tag), &leaving.owner))
    };
    let tags = balancer.tags.iter().filter(|tag| names::is_service_tag(tag));
    let mut shared = tags.filter(|tag| !leaves(tag)).count();
    let field = format!("load balancer {}", balancer.name);
    let mut admitted = Vec::new();
    let mut refused = Vec::new();
    for active in &desired.active {
        let owner = site.owned_by(&active.owner);
        let known = site.tagged(&balancer.tags, &active.owner);
        let mut refuse = |have: String, want: &str| {
            refused.push(active);
            plan.blocked
                .push(blocked(Some(&active.owner.service), &field, &have, want));
        };
        let other_name = names::cluster_of(&balancer.name)
            .filter(|cluster| names::load_balancer(cluster, &active.owner.service) == balancer.name);
        if let Some(cluster) = other_name.filter(|_| !owner) {
            refuse(
                format!("the Service's own under the cluster name {cluster}"),
                "its own under another --cluster-name",
            );
        } else if !owner && !desired.can.has(Feature::Tags) {
            refuse(
                "of an Octavia without tags, which sharing needs (API version 2.5)".to_owned(),
                "shared",
            );
        } else if !owner && active.internal {
            refuse("another's".to_owned(), "used by an internal Service");
        } else if !owner && !known && i64::try_from(shared + 1).unwrap_or(i64::MAX) > desired.max_shared {
            refuse(
                format!("already shared by {shared} Services"),
                "shared by one more (max-shared-lb)",
            );
        } else {
            if !known {
                shared += 1;
            }
            admitted.push(active);
        }
    }
    (admitted, refused)
}

fn change(site: &Site<'_>, snapshot: &LoadBalancerSnapshot) -> Plan<Change> {
    let mut plan = Plan::default();
    let (desired, tree) = (site.desired, site.tree);
    let balancer = &tree.balancer;
    let (admitted, refused) = admitted(site, &mut plan);
    create_only(site, &admitted, &mut plan);
    orphaned_pools::sweep(site, &mut plan);
    for listener_tree in &tree.listener_trees {
        listeners::surplus(site, &admitted, listener_tree, &mut plan);
    }
    for active in &admitted {
        for port in &active.ports {
            listeners::port(site, &admitted, active, port, &mut plan);
        }
    }
    for frozen in &desired.frozen {
        for (listener_key, members) in &frozen.follows {
            listeners::follow(site, &frozen.owner, *listener_key, members, &mut plan);
        }
    }
    // Whoever is refused keeps what it has from before, and that follows the nodes.
    for active in refused {
        for port in &active.ports {
            let members = port.members.as_deref().unwrap_or_default();
            if !members.is_empty() {
                listeners::follow(site, &active.owner, port.listener_key, members, &mut plan);
            }
        }
    }
    floating::change(site, &admitted, snapshot, &mut plan);
    let tags = desired.can.has(Feature::Tags);
    let (requested, withdrawn) = requested_tags(site, &admitted);
    let missing: Vec<_> = admitted
        .iter()
        .filter(|active| tags && !site.tagged(&balancer.tags, &active.owner))
        .map(|active| active.owner.tag.clone())
        .chain(requested)
        .collect();
    let surplus: Vec<_> = balancer
        .tags
        .iter()
        .filter(|tag| {
            let mut leaving = desired.leaving.iter();
            leaving.any(|leaving| site.tagged(std::slice::from_ref(tag), &leaving.owner))
        })
        .cloned()
        .chain(withdrawn)
        .collect();
    if plan.steps.is_empty() && missing.is_empty() && surplus.is_empty() && !admitted.is_empty() {
        // Last, so that whoever is killed before finds everything by the former names.
        rename::steps(site, &mut plan);
    }
    let due = !plan.steps.is_empty() || !missing.is_empty() || !surplus.is_empty();
    let mark = desired
        .ownership_tag
        .for_update(&site.ownership, due && site.created && site.is_own() && tags);
    let add: Vec<_> = missing.into_iter().chain(mark.map(ToString::to_string)).collect();
    // Tags come first and go last: whoever is killed in between finds the rest by them.
    if !add.is_empty() {
        let remove = Vec::new();
        plan.steps
            .insert(0, site.step(Action::Retag { add, remove }, None));
    }
    if !surplus.is_empty() {
        let (add, remove) = (Vec::new(), surplus);
        plan.steps.push(site.step(Action::Retag { add, remove }, None));
    }
    plan
}

/// The tags of the load balancer that are to be added and those to be removed because of annotations. Of several Services
/// the lists are added up; what a Service that keeps what it has once requested stays.
fn requested_tags(site: &Site<'_>, admitted: &[&ActiveService]) -> (Vec<String>, Vec<String>) {
    let desired = site.desired;
    if !desired.can.has(Feature::Tags) {
        return (Vec::new(), Vec::new());
    }
    let annotated = |owner: &Owner| {
        let tags = site.annotated.get(&owner.service);
        tags.into_iter().flat_map(|tags| &tags.load_balancer)
    };
    let requested = admitted.iter().flat_map(|active| &active.tags.load_balancer);
    let requested = requested.collect();
    let frozen: BTreeSet<_> = desired
        .frozen
        .iter()
        .flat_map(|frozen| annotated(&frozen.owner))
        .collect();
    let active = admitted.iter().map(|active| &active.owner);
    let ours = active
        .chain(desired.leaving.iter().map(|leaving| &leaving.owner))
        .flat_map(annotated)
        .filter(|tag| !frozen.contains(tag))
        .collect();
    tags::difference(&site.tree.balancer.tags, &requested, &ours)
}

/// What only a new load balancer can be given, and its owner asks for by annotation.
fn create_only(site: &Site<'_>, admitted: &[&ActiveService], plan: &mut Plan<Change>) {
    use super::annotations;
    let balancer = &site.tree.balancer;
    for active in admitted.iter().filter(|active| site.owned_by(&active.owner)) {
        for (key, want) in &active.given {
            let have = match *key {
                annotations::SUBNET_ID => &balancer.vip_subnet_id,
                annotations::NETWORK_ID => &balancer.vip_network_id,
                annotations::PORT_ID => &balancer.vip_port_id,
                annotations::FLAVOR_ID => &balancer.flavor_id,
                _ => &balancer.availability_zone,
            };
            // What is not known yet will be so.
            if have != want && !balancer.id.is_empty() {
                let field = format!("{} of load balancer {}", short(key), balancer.name);
                plan.blocked
                    .push(blocked(Some(&active.owner.service), &field, have, want));
            }
        }
    }
}

fn short(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}
