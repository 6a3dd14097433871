//! The way from how a part is to how it should be. Pure.

mod bodies;
mod floating;
mod groups;
mod listeners;
mod loose;
mod rename;

pub(crate) use self::{bodies::member, groups::sentence};
use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::{Blocked, Ownership, ServiceId},
    plan::Plan,
};

use super::{
    desired::{Desired, Joined, Who, Wish},
    features::Feature,
    names,
    observe::{Observed, Sight, Tree},
    part::Key,
    records::Provisioning,
    steps::{Action, Change, Step, step},
    tags::{self, Annotated},
};

/// The steps, in order, and what stays different.
pub(crate) fn plan(desired: &Desired, observed: &Observed) -> Plan<Change> {
    match (desired, observed) {
        (Desired::Balancer(wish), Observed::Balancers(sight)) => balancer(wish, sight),
        (Desired::Group(wish), Observed::Groups(have)) => groups::group(wish, have),
        (Desired::Ports(wish), Observed::Ports(have)) => groups::ports(wish, have),
        _ => Plan::default(),
    }
}

fn balancer(wish: &Wish, sight: &Sight) -> Plan<Change> {
    match sight.trees.as_slice() {
        [] => absent(wish, sight),
        [tree] => present(wish, sight, tree),
        several => {
            let name = &several.first().map(|tree| tree.balancer.name.clone());
            let name = name.clone().unwrap_or_default();
            refused(
                wish,
                &format!("load balancer {name}"),
                &format!("there {} times", several.len()),
                "there once",
            )
        }
    }
}

fn refused(wish: &Wish, field: &str, have: &str, want: &str) -> Plan<Change> {
    let each = wish.joined.iter();
    Plan {
        steps: Vec::new(),
        blocked: each
            .map(|joined| blocked(Some(&joined.who.service), field, have, want))
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
fn absent(wish: &Wish, sight: &Sight) -> Plan<Change> {
    let mut plan = Plan::default();
    floating::sweep(wish, sight, &mut plan);
    let alone = wish.joined.len() == 1 && wish.kept.is_empty();
    for joined in &wish.joined {
        let service = Some(&joined.who.service);
        let (name, makes) = match &wish.key {
            Key::New(name) => (name, joined.who.tag == *name),
            Key::Balancer(id) => (id, joined.had_one && alone),
            _ => continue,
        };
        let field = format!("load balancer {name}");
        if !makes {
            plan.blocked.push(blocked(service, &field, "not there", "there"));
        } else if !wish.has_nodes {
            plan.blocked.push(blocked(
                service,
                &field,
                "not there, and there is no node that it could serve",
                "there",
            ));
        } else {
            let create = Action::CreateBalancer(Box::new(bodies::new_balancer(wish, joined)));
            plan.steps
                .push(step(&joined.who.tag, create).for_service(service));
        }
    }
    plan
}

/// Whether the load balancer is deleted with everything below it, so that nothing of that has to be read. What is below
/// it can only make more of its tags ours, so a yes stays a yes.
pub(crate) fn deletes_whole(wish: &Wish, tree: &Tree) -> bool {
    let annotated = Annotated::default();
    wish.cascade && Site::new(wish, tree, &annotated).goes()
}

/// Everybody who has to do with it.
fn whos(wish: &Wish) -> impl Iterator<Item = &Who> {
    let joined = wish.joined.iter().map(|joined| &joined.who);
    let kept = wish.kept.iter().map(|kept| &kept.who);
    joined
        .chain(kept)
        .chain(wish.leaving.iter().map(|leaver| &leaver.who))
}

/// The state of one load balancer, and who has to do with it.
struct Site<'a> {
    wish: &'a Wish,
    tree: &'a Tree,
    /// The cluster's names before this one, as far as anything here still has them.
    former: Vec<&'a str>,
    /// It was made by a cluster for a Service.
    made: bool,
    ownership: Ownership,
    /// Tags that came from annotations.
    annotated: &'a Annotated,
}

impl<'a> Site<'a> {
    fn new(wish: &'a Wish, tree: &'a Tree, annotated: &'a Annotated) -> Self {
        let balancer = &tree.balancer;
        let made = balancer.name.starts_with(names::SERVICE_PREFIX)
            || whos(wish).any(|who| who.owns(&balancer.name));
        let ownership = wish.marks.ownership(balancer.tags.iter().map(String::as_str));
        Self {
            wish,
            tree,
            former: rename::former(wish, tree, &ownership),
            made,
            ownership,
            annotated,
        }
    }

    fn step(&self, action: Action, service: Option<&ServiceId>) -> Step {
        step(&self.tree.balancer.name, action).for_service(service)
    }

    /// Whether these are tags of the Service.
    fn tagged(&self, tags: &[String], who: &Who) -> bool {
        tags.iter().any(|tag| *tag == who.tag || self.was(tag, who))
    }

    /// Whether the load balancer was made for this Service.
    fn owned_by(&self, who: &Who) -> bool {
        let name = &self.tree.balancer.name;
        who.owns(name) || self.was(name, who)
    }

    /// Whether this is what a former name of the cluster makes of the Service.
    fn was(&self, name: &str, who: &Who) -> bool {
        let mut former = self.former.iter();
        former.any(|former| names::load_balancer(former, &who.service) == name)
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
        balancer.is_of(&self.wish.cluster, &self.ownership)
            || self.former_of(name).is_some()
            || whos(self.wish).any(|who| who.owns(name))
    }

    /// Service tags of those that are not among the members.
    fn others(&self) -> usize {
        let wish = self.wish;
        let known: Vec<_> = whos(wish).collect();
        let tags = self.tree.balancer.tags.iter();
        let tags = tags.filter(|tag| names::is_service_tag(tag));
        tags.filter(|tag| {
            !known
                .iter()
                .any(|who| self.tagged(std::slice::from_ref(tag), who))
        })
        .count()
    }

    /// Whether it goes with those that leave.
    fn goes(&self) -> bool {
        let wish = self.wish;
        let empty = wish.joined.is_empty() && wish.kept.is_empty();
        let swept = wish.leaving.is_empty() && self.ownership == Ownership::Ours;
        let left = !wish.leaving.is_empty() && self.others() == 0 && self.is_own();
        self.made && empty && (swept || left)
    }

    /// Whether its creation failed, and nobody can know it.
    fn never_worked(&self) -> bool {
        let wish = self.wish;
        let owner = wish.joined.iter().any(|joined| self.owned_by(&joined.who));
        let joined = wish.joined.iter().map(|joined| &joined.who);
        let mut staying = joined.chain(wish.kept.iter().map(|kept| &kept.who));
        let is_known = staying.any(|who| self.tree.is_named_by(&who.named));
        let failed =
            self.tree.is_being_created || (self.ownership == Ownership::Ours && self.tree.never_began());
        owner && failed && !is_known && self.others() == 0
    }
}

fn present(wish: &Wish, sight: &Sight, tree: &Tree) -> Plan<Change> {
    let balancer = &tree.balancer;
    let site = Site::new(wish, tree, &sight.annotated);
    let field = format!("load balancer {}", balancer.name);
    if site.made && !site.ownership.allows_changes() {
        return refused(wish, &field, "another cluster's", "ours");
    }
    if site.goes() {
        return delete(&site);
    }
    if balancer.provisioning_status == Provisioning::Error {
        if site.never_worked() {
            let action = Action::DeleteBalancer {
                cascade: true,
                anew: true,
            };
            let step = site.step(action, None);
            return Plan {
                steps: vec![step.because("its creation failed; it is created again")],
                blocked: Vec::new(),
            };
        }
        if wish.failover && site.made && !(wish.joined.is_empty() && wish.kept.is_empty()) {
            let step = site.step(Action::Failover, None);
            return Plan {
                steps: vec![step.because("it is in ERROR")],
                blocked: Vec::new(),
            };
        }
        return refused(
            wish,
            &format!("state of load balancer {}", balancer.name),
            "ERROR",
            "ACTIVE",
        );
    }
    change(&site, sight)
}

fn delete(site: &Site<'_>) -> Plan<Change> {
    let mut plan = Plan::default();
    let (wish, tree) = (site.wish, site.tree);
    floating::release(site, &mut plan);
    let broken = tree.balancer.provisioning_status == Provisioning::Error;
    let cascade = wish.cascade || broken;
    if !cascade {
        for branch in &tree.branches {
            listeners::remove(site, branch, None, &mut plan);
        }
        for pool in &tree.loose {
            plan.steps
                .push(site.step(Action::DeleteLoosePool(pool.id.clone()), None));
        }
    }
    let step = site.step(Action::DeleteBalancer { cascade, anew: false }, None);
    plan.steps.push(step.because("no Service wants it any more"));
    plan
}

/// Who of those that ask for it may use the load balancer, and who is refused.
fn admitted<'a>(site: &Site<'a>, plan: &mut Plan<Change>) -> (Vec<&'a Joined>, Vec<&'a Joined>) {
    let (wish, balancer) = (site.wish, &site.tree.balancer);
    let leaves = |tag: &String| {
        let mut leaving = wish.leaving.iter();
        leaving.any(|leaver| site.tagged(std::slice::from_ref(tag), &leaver.who))
    };
    let tags = balancer.tags.iter().filter(|tag| names::is_service_tag(tag));
    let mut shared = tags.filter(|tag| !leaves(tag)).count();
    let field = format!("load balancer {}", balancer.name);
    let mut admitted = Vec::new();
    let mut refused = Vec::new();
    for joined in &wish.joined {
        let owner = site.owned_by(&joined.who);
        let known = site.tagged(&balancer.tags, &joined.who);
        let mut refuse = |have: String, want: &str| {
            refused.push(joined);
            plan.blocked
                .push(blocked(Some(&joined.who.service), &field, &have, want));
        };
        let other_name = names::cluster_of(&balancer.name)
            .filter(|cluster| names::load_balancer(cluster, &joined.who.service) == balancer.name);
        if let Some(cluster) = other_name.filter(|_| !owner) {
            refuse(
                format!("the Service's own under the cluster name {cluster}"),
                "its own under another --cluster-name",
            );
        } else if !owner && !wish.can.has(Feature::Tags) {
            refuse(
                "of an Octavia without tags, which sharing needs (API version 2.5)".to_owned(),
                "shared",
            );
        } else if !owner && joined.internal {
            refuse("another's".to_owned(), "used by an internal Service");
        } else if !owner && !known && i64::try_from(shared + 1).unwrap_or(i64::MAX) > wish.max_shared {
            refuse(
                format!("already shared by {shared} Services"),
                "shared by one more (max-shared-lb)",
            );
        } else {
            if !known {
                shared += 1;
            }
            admitted.push(joined);
        }
    }
    (admitted, refused)
}

fn change(site: &Site<'_>, sight: &Sight) -> Plan<Change> {
    let mut plan = Plan::default();
    let (wish, tree) = (site.wish, site.tree);
    let balancer = &tree.balancer;
    let (admitted, refused) = admitted(site, &mut plan);
    create_only(site, &admitted, &mut plan);
    loose::sweep(site, &mut plan);
    for branch in &tree.branches {
        listeners::surplus(site, &admitted, branch, &mut plan);
    }
    for joined in &admitted {
        for port in &joined.ports {
            listeners::port(site, &admitted, joined, port, &mut plan);
        }
    }
    for kept in &wish.kept {
        for (slot, members) in &kept.follows {
            listeners::follow(site, &kept.who, *slot, members, &mut plan);
        }
    }
    // Whoever is refused keeps what it has from before, and that follows the nodes.
    for joined in refused {
        for port in &joined.ports {
            let members = port.members.as_deref().unwrap_or_default();
            if !members.is_empty() {
                listeners::follow(site, &joined.who, port.slot, members, &mut plan);
            }
        }
    }
    floating::change(site, &admitted, sight, &mut plan);
    let tags = wish.can.has(Feature::Tags);
    let (requested, withdrawn) = requested_tags(site, &admitted);
    let missing: Vec<_> = admitted
        .iter()
        .filter(|joined| tags && !site.tagged(&balancer.tags, &joined.who))
        .map(|joined| joined.who.tag.clone())
        .chain(requested)
        .collect();
    let surplus: Vec<_> = balancer
        .tags
        .iter()
        .filter(|tag| {
            let mut leaving = wish.leaving.iter();
            leaving.any(|leaver| site.tagged(std::slice::from_ref(tag), &leaver.who))
        })
        .cloned()
        .chain(withdrawn)
        .collect();
    if plan.steps.is_empty() && missing.is_empty() && surplus.is_empty() && !admitted.is_empty() {
        // Last, so that whoever is killed before finds everything by the former names.
        rename::steps(site, &mut plan);
    }
    let due = !plan.steps.is_empty() || !missing.is_empty() || !surplus.is_empty();
    let mark = wish
        .marks
        .for_update(&site.ownership, due && site.made && site.is_own() && tags);
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
fn requested_tags(site: &Site<'_>, admitted: &[&Joined]) -> (Vec<String>, Vec<String>) {
    let wish = site.wish;
    if !wish.can.has(Feature::Tags) {
        return (Vec::new(), Vec::new());
    }
    let annotated = |who: &Who| {
        let tags = site.annotated.get(&who.service);
        tags.into_iter().flat_map(|tags| &tags.load_balancer)
    };
    let requested = admitted.iter().flat_map(|joined| &joined.tags.load_balancer);
    let requested = requested.collect();
    let frozen: BTreeSet<_> = wish.kept.iter().flat_map(|kept| annotated(&kept.who)).collect();
    let joined = admitted.iter().map(|joined| &joined.who);
    let ours = joined
        .chain(wish.leaving.iter().map(|leaver| &leaver.who))
        .flat_map(annotated)
        .filter(|tag| !frozen.contains(tag))
        .collect();
    tags::difference(&site.tree.balancer.tags, &requested, &ours)
}

/// What only a new load balancer can be given, and its owner asks for by annotation.
fn create_only(site: &Site<'_>, admitted: &[&Joined], plan: &mut Plan<Change>) {
    use super::annotations as note;
    let balancer = &site.tree.balancer;
    for joined in admitted.iter().filter(|joined| site.owned_by(&joined.who)) {
        for (key, want) in &joined.given {
            let have = match *key {
                note::SUBNET_ID => &balancer.vip_subnet_id,
                note::NETWORK_ID => &balancer.vip_network_id,
                note::PORT_ID => &balancer.vip_port_id,
                note::FLAVOR_ID => &balancer.flavor_id,
                _ => &balancer.availability_zone,
            };
            // What is not known yet will be so.
            if have != want && !balancer.id.is_empty() {
                let field = format!("{} of load balancer {}", short(key), balancer.name);
                plan.blocked
                    .push(blocked(Some(&joined.who.service), &field, have, want));
            }
        }
    }
}

fn short(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}
