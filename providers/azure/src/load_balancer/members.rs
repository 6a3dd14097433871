//! Members of backend pools.
//!
//! | Nodes | Written |
//! |---|---|
//! | instances of uniform scale sets | the model of the scale set, so that new instances are members, and each instance |
//! | machines of flexible scale sets | the model, and the network interface of each machine |
//! | machines of their own | the network interface of each machine |
//! | with pools of addresses | the pool |
//!
//! Only machines of nodes are changed. A machine without a node may be one that has not registered yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    load_balancer::{ClusterView, Effect, IpFamily, NodeLeftOut, OwnNames, ServiceNode},
    plan::{Plan, Step},
};
use serde_json::{Map, Value, json};

use super::{
    desired::is_empty,
    document::{ArmChange, POOLS, Target, elements, name},
    names::{self, INTERNAL},
    placement::NodePlacement,
    settings::BalancerSettings,
};
use crate::{
    client::field,
    instances::machine_id::{MachineId, MachineKind},
};

/// The pools of an IP configuration.
const POOLS_OF_CONFIGURATION: &str = "loadBalancerBackendAddressPools";
/// The members of a pool of addresses.
pub(crate) const ADDRESSES: &str = "loadBalancerBackendAddresses";
/// The configurations of network interfaces in scale sets and instances.
const INTERFACES: &str = "networkInterfaceConfigurations";
/// The least version of the network API for flexible scale sets.
const FLEXIBLE_API_VERSION: &str = "2020-11-01";
/// The labels of nodes of the control plane.
const CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];
/// The label that excludes a node from this provider.
const MANAGED: &str = "kubernetes.azure.com/managed";

/// Documents that have members, and the machines of nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedMembers {
    /// The load balancer.
    pub(crate) balancer: Option<Arc<Value>>,
    /// Scale sets, instances, network interfaces and pools.
    pub(crate) holders: BTreeMap<Target, Arc<Value>>,
}

/// The resources of machines that are not instances of uniform scale sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MachineIndex {
    /// The primary network interface.
    pub(crate) interfaces: BTreeMap<MachineId, Target>,
    /// The flexible scale set.
    pub(crate) sets: BTreeMap<MachineId, Target>,
    /// The name of the flexible scale set or availability set.
    pub(crate) vm_sets: BTreeMap<MachineId, String>,
}

/// The desired members of a load balancer's pools.
#[derive(Debug, Default)]
pub(crate) struct DesiredMembers {
    /// The names of the pools.
    pub(crate) pools: Vec<(IpFamily, String)>,
    /// Instances and interfaces that should be members, and scale sets whose new machines should be.
    pub(crate) join: BTreeSet<Target>,
    /// Those of nodes that should not be members.
    pub(crate) leave: BTreeSet<Target>,
    /// Those of them that are outside of the primary set: Azure accepts no member of a basic load balancer before they have left.
    pub(crate) outside: BTreeSet<Target>,
    /// The addresses in pools of addresses. `None`: members are machines, or members stay.
    pub(crate) addresses: Option<PoolAddresses>,
    /// The ID of the network of pools of addresses.
    pub(crate) network: String,
    /// Whether no Service stays.
    pub(crate) releases: bool,
    /// The names of the elements of Services that leave.
    pub(crate) leaving: OwnNames,
    /// The pools of a load balancer that only exists in a plan.
    pub(crate) planned: Vec<PlannedPool>,
}

/// The addresses in the pools of load balancers.
#[derive(Debug, Default)]
pub(crate) struct PoolAddresses(BTreeMap<PoolName, BTreeMap<String, String>>);

/// A pool by its names in lower case.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PoolName {
    balancer: String,
    pool: String,
}

impl PoolName {
    fn new(balancer: &str, pool: &str) -> Self {
        Self {
            balancer: balancer.to_ascii_lowercase(),
            pool: pool.to_ascii_lowercase(),
        }
    }
}

impl PoolAddresses {
    /// Adds a pool with the nodes that `has` accepts.
    fn add(
        &mut self,
        balancer: &str,
        (family, pool): &(IpFamily, String),
        cluster: &ClusterView,
        has: impl Fn(&ServiceNode) -> bool,
    ) {
        let groups = cluster.nodes.by_address(Some(*family), has);
        let addresses = groups
            .iter()
            .map(|group| (group.address.to_string(), group.newest.view.name.clone()))
            .collect();
        self.0.insert(PoolName::new(balancer, pool), addresses);
    }
}

/// A pool that only exists in a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlannedPool {
    pub(crate) family: IpFamily,
    pub(crate) id: String,
    pub(crate) target: Target,
}

/// Whether a node may be a member.
pub(crate) fn is_member(node: &ServiceNode, settings: &BalancerSettings) -> bool {
    let labels = &node.view.labels;
    let is_control_plane = CONTROL_PLANE.iter().any(|label| labels.get(label).is_some());
    let is_unmanaged = labels.get(MANAGED).is_some_and(|managed| managed.eq_ignore_ascii_case("false"));
    node.eligible && !is_unmanaged && !(is_control_plane && settings.excludes_control_plane())
}

/// The machine of a node in the cluster's subscription.
pub(crate) fn machine_of(node: &ServiceNode, settings: &BalancerSettings) -> Option<MachineId> {
    let id = MachineId::of_provider_id(node.view.provider_id.as_deref()?).ok()??;
    id.subscription.eq_ignore_ascii_case(&settings.subscription).then_some(id)
}

/// Whether the load balancer may have the machine of a node. A basic one has the machines of one scale set or availability set.
fn is_in_primary_set(node: &ServiceNode, index: &MachineIndex, settings: &BalancerSettings) -> bool {
    if !settings.conf.is_basic() {
        return true;
    }
    let Some(id) = machine_of(node, settings) else {
        return false;
    };
    if index.sets.contains_key(&id) {
        return false;
    }
    let (_, primary) = settings.conf.primary_vm_set();
    primary.is_empty() || index.vm_set(&id).is_some_and(|set| set.eq_ignore_ascii_case(primary))
}

/// Why a basic load balancer does not have the machine of a node, as the end of a sentence about the node.
fn outside_of_primary_set(id: &MachineId, index: &MachineIndex, settings: &BalancerSettings) -> String {
    if index.sets.contains_key(id) {
        return "has a machine of a flexible scale set, which needs a standard load balancer".to_owned();
    }
    let (key, primary) = settings.conf.primary_vm_set();
    format!(
        "has a machine outside of {primary}, to which the members of a basic load balancer belong ({key})"
    )
}

/// The scale set of an instance.
fn set_of(id: &MachineId) -> Option<Target> {
    match &id.kind {
        MachineKind::Instance { set, .. } => Some(Target::ScaleSet {
            group: id.group.clone(),
            name: set.clone(),
        }),
        MachineKind::Machine { .. } => None,
    }
}

impl MachineIndex {
    /// The document with the membership of a machine: an instance or a network interface.
    pub(crate) fn holder(&self, id: &MachineId) -> Option<Target> {
        match &id.kind {
            MachineKind::Instance { set, id: instance } => Some(Target::Instance {
                group: id.group.clone(),
                set: set.clone(),
                id: instance.clone(),
            }),
            MachineKind::Machine { .. } => self.interfaces.get(id).cloned(),
        }
    }

    /// The name of the scale set or availability set of a machine.
    pub(crate) fn vm_set<'a>(&'a self, id: &'a MachineId) -> Option<&'a str> {
        match &id.kind {
            MachineKind::Instance { set, .. } => Some(set),
            MachineKind::Machine { .. } => self.vm_sets.get(id).map(String::as_str),
        }
    }

    /// The scale set of a machine.
    fn set(&self, id: &MachineId) -> Option<Target> {
        set_of(id).or_else(|| self.sets.get(id).cloned())
    }
}

impl DesiredMembers {
    /// The members of several load balancers follow the nodes. Without a node that may be one, members stay.
    pub(crate) fn follow_placement(
        &mut self,
        cluster: &ClusterView,
        placement: &NodePlacement,
        settings: &BalancerSettings,
    ) {
        if !cluster.nodes.all().iter().any(|node| is_member(node, settings)) {
            return;
        }
        let mut addresses = PoolAddresses::default();
        for balancer in settings.several().iter().filter(|balancer| placement.needs(&balancer.name)) {
            for is_internal in [false, true] {
                let name = names::load_balancer(&balancer.name, is_internal);
                if settings.is_pre_configured(&name) {
                    continue;
                }
                for pool in &self.pools {
                    addresses.add(&name, pool, cluster, |node| placement.has(&balancer.name, node));
                }
            }
        }
        self.addresses = Some(addresses);
    }

    /// The members of a load balancer follow the nodes. Without a node that may be one, members stay.
    pub(crate) fn follow(
        &mut self,
        balancer: &str,
        cluster: &ClusterView,
        index: &MachineIndex,
        settings: &BalancerSettings,
    ) {
        let nodes = cluster.nodes.all();
        let may_join =
            |node: &ServiceNode| is_member(node, settings) && is_in_primary_set(node, index, settings);
        if !nodes.iter().any(may_join) {
            return;
        }
        if settings.has_address_pools() {
            let mut addresses = PoolAddresses::default();
            for pool in &self.pools {
                addresses.add(balancer, pool, cluster, |node| is_member(node, settings));
            }
            self.addresses = Some(addresses);
            return;
        }
        for node in nodes {
            let Some(id) = machine_of(node, settings) else {
                continue;
            };
            let holder = index.holder(&id);
            if may_join(node) {
                self.join.extend(holder);
                self.join.extend(index.set(&id));
                continue;
            }
            if !is_in_primary_set(node, index, settings) {
                self.outside.extend(holder.clone());
                self.outside.extend(index.set(&id));
            }
            self.leave.extend(holder);
        }
        self.leave.extend(self.outside.iter().cloned());
        // A machine may have a second node that is out of date.
        self.leave.retain(|target| !self.join.contains(target));
    }

    /// The machines of all nodes leave.
    pub(crate) fn release(
        &mut self,
        cluster: &ClusterView,
        index: &MachineIndex,
        settings: &BalancerSettings,
    ) {
        self.releases = true;
        for id in cluster.nodes.all().iter().filter_map(|node| machine_of(node, settings)) {
            self.leave.extend(index.holder(&id));
            self.leave.extend(index.set(&id));
        }
    }

    pub(crate) fn plan(&self, observed: &ObservedMembers) -> Plan<ArmChange> {
        if let Some(addresses) = &self.addresses {
            return Plan {
                steps: self.pool_steps(addresses, observed),
                ..Plan::default()
            };
        }
        // The part of the load balancer creates it.
        if observed.balancer.is_none() && self.planned.is_empty() {
            return Plan::default();
        }
        let balancer = observed.balancer.as_deref().unwrap_or(&Value::Null);
        let mut pools = Vec::new();
        for (family, pool) in &self.pools {
            let existing = elements(balancer, POOLS).find(|element| name(element).eq_ignore_ascii_case(pool));
            let id = existing.and_then(|element| element.get("id")).and_then(Value::as_str);
            pools.extend(id.map(|id| (*family, id.to_owned())));
        }
        if observed.balancer.is_none() {
            pools.extend(self.planned.iter().map(|pool| (pool.family, pool.id.clone())));
        }
        let mut steps = Vec::new();
        // Machines of others are members only if the load balancer has frontends of others.
        let releases_all = self.releases && is_empty(balancer, &self.leaving);
        for (target, document) in &observed.holders {
            let joins = self.join.contains(target);
            let is_machine = !matches!(target, Target::Pool { .. });
            let leaves = self.leave.contains(target) || (releases_all && is_machine);
            // Azure lets interfaces go when it deletes the load balancer.
            let is_detached = releases_all && matches!(target, Target::Interface { .. });
            if !(joins || leaves) || is_detached || !is_machine {
                continue;
            }
            let edited = if joins {
                if obstacle(document, target, balancer_of(&pools)).is_some() {
                    continue;
                }
                joined(document, target, &pools)
            } else {
                left(document, target, &pools)
            };
            let Some(edited) = edited else { continue };
            let verb = if joins { "joins" } else { "leaves" };
            let step = Step::new(ArmChange {
                target: target.clone(),
                effect: Effect::Change,
                body: body(&edited, target),
            });
            let step = step.because(format!("it {verb} the pools")).one_of_many();
            steps.push(step);
        }
        // The next plan of the pass has the others.
        let is_outside = |step: &Step<ArmChange>| self.outside.contains(&step.change.target);
        if steps.iter().any(is_outside) {
            steps.retain(is_outside);
        }
        // New machines have what the model of their scale set has, so the model comes first.
        steps.sort_by_key(|step| !matches!(step.change.target, Target::ScaleSet { .. }));
        Plan {
            steps,
            ..Plan::default()
        }
    }

    /// The writes of pools of addresses.
    fn pool_steps(&self, desired: &PoolAddresses, observed: &ObservedMembers) -> Vec<Step<ArmChange>> {
        let mut steps = Vec::new();
        let empty = Arc::new(Value::Null);
        let planned = self
            .planned
            .iter()
            .filter(|pool| !observed.holders.contains_key(&pool.target))
            .map(|pool| (&pool.target, &empty));
        for (target, document) in observed.holders.iter().chain(planned) {
            let Target::Pool {
                balancer, name: pool, ..
            } = target
            else {
                continue;
            };
            let Some(wanted) = desired.0.get(&PoolName::new(balancer, pool)) else {
                continue;
            };
            let address = |member: &Value| {
                let address = member.pointer("/properties/ipAddress").and_then(Value::as_str);
                address.unwrap_or_default().to_owned()
            };
            let before: Vec<Value> = elements(document, ADDRESSES).cloned().collect();
            let mut missing = wanted.clone();
            let mut after = before.clone();
            after.retain(|member| missing.remove(&address(member)).is_some());
            let taken: BTreeSet<String> =
                after.iter().map(|member| name(member).to_ascii_lowercase()).collect();
            for (address, node) in &missing {
                // Names are unique in a pool: one that a node had with another address is free again only with the next write.
                let node = if taken.contains(&node.to_ascii_lowercase()) {
                    format!("{node}-{address}")
                } else {
                    node.clone()
                };
                after.push(json!({"name": node, "properties": {"ipAddress": address}}));
            }
            if after == before {
                continue;
            }
            let mut properties = Map::new();
            properties.insert("virtualNetwork".to_owned(), json!({"id": self.network}));
            properties.insert(ADDRESSES.to_owned(), after.into());
            let mut body = json!({field::NAME: pool, field::PROPERTIES: properties});
            if let Some(etag) = document.get(field::ETAG) {
                body[field::ETAG] = etag.clone();
            }
            let step = Step::new(ArmChange {
                target: target.clone(),
                effect: Effect::Change,
                body,
            });
            let added: Vec<&str> = missing.values().map(String::as_str).collect();
            let reason = match added.as_slice() {
                [] => "addresses without a node are removed".to_owned(),
                added => format!("nodes {} are added", added.join(", ")),
            };
            steps.push(step.because(reason));
        }
        steps
    }

    /// Nodes that should be members and cannot. Those outside of the primary set should not, unless none is in it.
    pub(crate) fn left_out(
        cluster: &ClusterView,
        index: &MachineIndex,
        observed: &ObservedMembers,
        balancer: &str,
        settings: &BalancerSettings,
    ) -> Vec<NodeLeftOut> {
        let mut left_out = Vec::new();
        let is_primary = |node: &ServiceNode| is_in_primary_set(node, index, settings);
        let members = || cluster.nodes.eligible().filter(|node| is_member(node, settings));
        let has_primary = members().any(is_primary);
        for node in members() {
            let reason = match machine_of(node, settings) {
                None => Some("has no provider ID of a machine in the cluster's subscription".to_owned()),
                Some(_) if has_primary && !is_primary(node) => None,
                Some(id) if !is_primary(node) => Some(outside_of_primary_set(&id, index, settings)),
                Some(id) => match index.holder(&id) {
                    None => Some("has no machine with a network interface".to_owned()),
                    Some(target) => match observed.holders.get(&target) {
                        None => Some("has no machine in Azure".to_owned()),
                        Some(document) => obstacle(document, &target, Some(balancer)),
                    },
                },
            };
            left_out.extend(reason.map(|reason| NodeLeftOut::new(&node.view.name, reason)));
        }
        left_out
    }
}

/// The name of the load balancer of these pools.
fn balancer_of(pools: &[(IpFamily, String)]) -> Option<&str> {
    pools.first().and_then(|(_, id)| balancer_of_pool(id))
}

/// The name of the load balancer in the ID of a pool.
fn balancer_of_pool(id: &str) -> Option<&str> {
    id.rsplit('/').nth(2)
}

/// The name without the end of internal load balancers: a machine has one pair of them.
fn pair(balancer: &str) -> String {
    let lower = balancer.to_ascii_lowercase();
    lower.strip_suffix(INTERNAL).unwrap_or(&lower).to_owned()
}

/// Why a machine cannot be a member, as the end of a sentence about its node.
fn obstacle(document: &Value, target: &Target, balancer: Option<&str>) -> Option<String> {
    let state = document.pointer(field::STATE_PATH).and_then(Value::as_str).unwrap_or_default();
    let is = |other: &str| state.eq_ignore_ascii_case(other);
    match target {
        Target::Interface { .. } if is("Failed") => {
            return Some("has a network interface whose last change failed".to_owned());
        }
        Target::Instance { .. } | Target::ScaleSet { .. } if is("Deleting") => {
            return Some("has a machine that is being deleted".to_owned());
        }
        _ => {}
    }
    let own = balancer.map(pair)?;
    let mut pools = configurations(document, target).into_iter().flat_map(|configuration| {
        let pools = configuration.pointer(&format!("/properties/{POOLS_OF_CONFIGURATION}"));
        pools
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|pool| pool.get("id")?.as_str())
    });
    let other = pools.find_map(|pool| balancer_of_pool(pool).filter(|name| pair(name) != own))?;
    Some(format!("has a machine that is a member of load balancer {other}"))
}

/// The path of the configurations of network interfaces.
fn interfaces_path(target: &Target) -> String {
    match target {
        Target::ScaleSet { .. } => {
            format!("/properties/virtualMachineProfile/networkProfile/{INTERFACES}")
        }
        _ => format!("/properties/networkProfileConfiguration/{INTERFACES}"),
    }
}

/// All IP configurations of a document.
fn configurations<'a>(document: &'a Value, target: &Target) -> Vec<&'a Value> {
    let interfaces: Vec<&Value> = match target {
        Target::Interface { .. } => vec![document],
        _ => {
            let interfaces = document.pointer(&interfaces_path(target)).and_then(Value::as_array);
            interfaces.into_iter().flatten().collect()
        }
    };
    interfaces
        .into_iter()
        .flat_map(|interface| elements(interface, "ipConfigurations"))
        .collect()
}

/// The network interfaces of a document, to change them.
fn interfaces_mut<'a>(document: &'a mut Value, target: &Target) -> Vec<&'a mut Value> {
    match target {
        Target::Interface { .. } => vec![document],
        _ => {
            let interfaces = document.pointer_mut(&interfaces_path(target)).and_then(Value::as_array_mut);
            interfaces.into_iter().flatten().collect()
        }
    }
}

fn is_true(element: &Value, property: &str) -> bool {
    let value = element.get(field::PROPERTIES).and_then(|properties| properties.get(property));
    value.and_then(Value::as_bool) == Some(true)
}

/// The document as a member of the pools; `None` if it is.
fn joined(document: &Value, target: &Target, pools: &[(IpFamily, String)]) -> Option<Value> {
    let mut edited = document.clone();
    let mut is_changed = false;
    let interfaces = interfaces_mut(&mut edited, target);
    let is_only = interfaces.len() == 1;
    let primary = interfaces.into_iter().find(|interface| is_only || is_true(interface, "primary"))?;
    let configurations = primary.pointer_mut("/properties/ipConfigurations").and_then(Value::as_array_mut)?;
    for (family, id) in pools {
        let Some(configuration) = configuration_of(configurations, *family) else {
            continue;
        };
        let Some(properties) = configuration.get_mut(field::PROPERTIES).and_then(Value::as_object_mut) else {
            continue;
        };
        let list = properties.entry(POOLS_OF_CONFIGURATION).or_insert_with(|| json!([]));
        if list.is_null() {
            *list = json!([]);
        }
        let Some(list) = list.as_array_mut() else { continue };
        if !list.iter().any(|pool| is_pool(pool, id)) {
            list.push(json!({"id": id}));
            is_changed = true;
        }
    }
    is_changed.then_some(edited)
}

/// The IP configuration of a family: of IPv4 the only or the primary one, of IPv6 the first one.
fn configuration_of(configurations: &mut [Value], family: IpFamily) -> Option<&mut Value> {
    let is_only = configurations.len() == 1;
    configurations.iter_mut().find(|configuration| {
        let version = configuration.pointer("/properties/privateIPAddressVersion").and_then(Value::as_str);
        let is_v6 = version.is_some_and(|version| version.eq_ignore_ascii_case("IPv6"));
        match family {
            IpFamily::V4 => !is_v6 && (is_only || is_true(configuration, "primary")),
            IpFamily::V6 => is_v6,
        }
    })
}

fn is_pool(pool: &Value, id: &str) -> bool {
    let other = pool.get("id").and_then(Value::as_str);
    other.is_some_and(|other| other.eq_ignore_ascii_case(id))
}

/// The document without the pools, of both families and in all IP configurations; `None` if it has none of them.
fn left(document: &Value, target: &Target, pools: &[(IpFamily, String)]) -> Option<Value> {
    let mut edited = document.clone();
    let mut is_changed = false;
    for interface in interfaces_mut(&mut edited, target) {
        let configurations =
            interface.pointer_mut("/properties/ipConfigurations").and_then(Value::as_array_mut);
        for configuration in configurations.into_iter().flatten() {
            let path = format!("/properties/{POOLS_OF_CONFIGURATION}");
            if let Some(list) = configuration.pointer_mut(&path).and_then(Value::as_array_mut) {
                let before = list.len();
                list.retain(|pool| !pools.iter().any(|(_, id)| is_pool(pool, id)));
                is_changed |= list.len() < before;
            }
        }
    }
    is_changed.then_some(edited)
}

/// Whether a scale set, an instance or an interface refers to a pool of this load balancer.
pub(crate) fn refers_to(document: &Value, target: &Target, balancer: &str) -> bool {
    let prefix = format!("{}/{}/", balancer.to_ascii_lowercase(), POOLS.to_ascii_lowercase());
    configurations(document, target).into_iter().any(|configuration| {
        let pools = configuration.pointer(&format!("/properties/{POOLS_OF_CONFIGURATION}"));
        let mut ids = pools
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|pool| pool.get("id")?.as_str());
        ids.any(|id| id.to_ascii_lowercase().starts_with(&prefix))
    })
}

/// The body of a write. Scale sets and instances keep what is not written.
fn body(document: &Value, target: &Target) -> Value {
    let mut body = Map::new();
    let mut copy = |path: &[&str]| {
        let value = document.pointer(&format!("/{}", path.join("/")));
        let Some(value) = value.filter(|value| !value.is_null()) else {
            return;
        };
        let mut place = &mut body;
        let Some((last, parents)) = path.split_last() else {
            return;
        };
        for parent in parents {
            let child = place.entry(*parent).or_insert_with(|| json!({}));
            let Some(child) = child.as_object_mut() else {
                return;
            };
            place = child;
        }
        place.insert((*last).to_owned(), value.clone());
    };
    match target {
        Target::ScaleSet { .. } => {
            for path in [
                &["location"][..],
                &["extendedLocation"],
                &[field::ETAG],
                &["properties", "virtualMachineProfile", "networkProfile"],
            ] {
                copy(path);
            }
            let mode = document.pointer("/properties/orchestrationMode").and_then(Value::as_str);
            let mut body = Value::Object(body);
            if mode.is_some_and(|mode| mode.eq_ignore_ascii_case("Flexible")) {
                body["properties"]["virtualMachineProfile"]["networkProfile"]["networkApiVersion"] =
                    FLEXIBLE_API_VERSION.into();
            }
            body
        }
        Target::Instance { .. } => {
            for path in [
                &["location"][..],
                &[field::ETAG],
                &["properties", "hardwareProfile"],
                &["properties", "networkProfileConfiguration"],
            ] {
                copy(path);
            }
            body.into()
        }
        _ => document.clone(),
    }
}

/// Applies a change to the document that it is about.
pub(crate) fn fold(change: &ArmChange, reply: Option<&Value>, observed: &mut ObservedMembers) {
    // A pool that only exists in a plan is not among them.
    let is_new = matches!(change.target, Target::Pool { .. });
    if is_new && !observed.holders.contains_key(&change.target) {
        observed.holders.insert(change.target.clone(), Arc::new(change.body.clone()));
        return;
    }
    let Some(holder) = observed.holders.get_mut(&change.target) else {
        return;
    };
    if holder.get(field::ETAG) != change.body.get(field::ETAG) {
        return;
    }
    *holder = match reply.filter(|reply| !reply.is_null()) {
        Some(reply) => Arc::new(reply.clone()),
        None => {
            let mut after = Value::clone(holder);
            merge(&mut after, &change.body);
            Arc::new(after)
        }
    };
}

fn merge(document: &mut Value, body: &Value) {
    match (document, body) {
        (Value::Object(document), Value::Object(body)) => {
            for (key, value) in body {
                merge(document.entry(key).or_insert(Value::Null), value);
            }
        }
        (document, body) => *document = body.clone(),
    }
}

/// The pools of the cluster.
pub(crate) fn pools(cluster: &str) -> Vec<(IpFamily, String)> {
    [IpFamily::V4, IpFamily::V6].map(|family| (family, names::pool(cluster, family))).to_vec()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::testkit::nodes::service_node;

    use super::*;
    use crate::{config::CloudConf, load_balancer::laws};

    const COMPUTE: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute";

    fn basic(conf: CloudConf) -> BalancerSettings {
        BalancerSettings {
            conf: CloudConf {
                load_balancer_sku: "basic".to_owned(),
                ..conf
            },
            ..BalancerSettings::clone(&laws::model().settings)
        }
    }

    fn availability_set(name: &str) -> BalancerSettings {
        basic(CloudConf {
            vm_type: "standard".to_owned(),
            primary_availability_set: name.to_owned(),
            ..CloudConf::default()
        })
    }

    fn node(name: &str) -> ServiceNode {
        service_node(name, &format!("azure://{COMPUTE}/virtualMachines/{name}"), Vec::new())
    }

    fn interface(name: &str) -> Target {
        Target::Interface {
            group: "g".to_owned(),
            name: name.to_owned(),
        }
    }

    /// Machines `a` and `b` in availability sets, `c` in none, and `d` in a flexible scale set.
    fn machines() -> (ClusterView, MachineIndex) {
        let names = ["a", "b", "c", "d"];
        let id = |name: &str| MachineId::parse(&format!("{COMPUTE}/virtualMachines/{name}")).unwrap();
        let set = Target::ScaleSet {
            group: "g".to_owned(),
            name: "flex".to_owned(),
        };
        let vm_sets = [("a", "agents"), ("b", "masters"), ("d", "flex")];
        let index = MachineIndex {
            interfaces: names.iter().map(|name| (id(name), interface(name))).collect(),
            sets: [(id("d"), set)].into(),
            vm_sets: vm_sets.iter().map(|(name, set)| (id(name), (*set).to_owned())).collect(),
        };
        let cluster = ClusterView {
            nodes: names.iter().map(|name| node(name)).collect(),
            ..ClusterView::default()
        };
        (cluster, index)
    }

    fn followed(settings: &BalancerSettings) -> DesiredMembers {
        let (cluster, index) = machines();
        let mut desired = DesiredMembers::default();
        desired.follow("kubernetes", &cluster, &index, settings);
        desired
    }

    fn left_out(settings: &BalancerSettings) -> Vec<NodeLeftOut> {
        let (cluster, index) = machines();
        let holders = index.interfaces.values().map(|target| (target.clone(), Arc::new(json!({}))));
        let observed = ObservedMembers {
            balancer: None,
            holders: holders.collect(),
        };
        DesiredMembers::left_out(&cluster, &index, &observed, "kubernetes", settings)
    }

    #[test]
    fn a_basic_load_balancer_has_the_machines_of_the_primary_set() {
        let agents = availability_set(" Agents");
        let desired = followed(&agents);
        assert_eq!(desired.join, [interface("a")].into());
        assert!(["b", "c", "d"].map(interface).iter().all(|other| desired.leave.contains(other)));
        assert!(desired.outside == desired.leave && desired.leave.len() == 4, "{:?}", desired.leave);
        assert_eq!(left_out(&agents), []);
        // A standard one has all.
        let standard = laws::model();
        let desired = followed(&standard.settings);
        assert!(["a", "b", "c", "d"].map(interface).iter().all(|own| desired.join.contains(own)));
        assert!(desired.leave.is_empty() && desired.outside.is_empty());
    }

    #[test]
    fn without_a_machine_in_the_primary_set_members_stay_and_all_nodes_are_left_out() {
        let nobody = availability_set("nobody");
        let desired = followed(&nobody);
        assert!(desired.join.is_empty() && desired.leave.is_empty() && desired.outside.is_empty());
        let left_out = left_out(&nobody);
        let names: Vec<&str> = left_out.iter().map(|node| node.node.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert!(left_out[0].reason.contains("outside of nobody"), "{left_out:?}");
        assert!(left_out[3].reason.contains("flexible scale set"), "{left_out:?}");
    }

    #[test]
    fn without_a_primary_set_all_machines_but_flexible_ones_are_members() {
        let desired = followed(&availability_set(""));
        assert_eq!(desired.join, ["a", "b", "c"].map(interface).into());
    }

    #[test]
    fn instances_belong_to_the_scale_set_in_their_ids() {
        let nodes = ["pool-a", "pool-b"].map(|set| {
            let id = format!("azure://{COMPUTE}/virtualMachineScaleSets/{set}/virtualMachines/0");
            service_node(set, &id, Vec::new())
        });
        let cluster = ClusterView {
            nodes: nodes.into_iter().collect(),
            ..ClusterView::default()
        };
        let settings = basic(CloudConf {
            primary_scale_set: "POOL-B".to_owned(),
            ..CloudConf::default()
        });
        let mut desired = DesiredMembers::default();
        desired.follow("kubernetes", &cluster, &MachineIndex::default(), &settings);
        let targets = |name: &str| {
            let (group, name) = ("g".to_owned(), name.to_owned());
            let instance = Target::Instance {
                group: group.clone(),
                set: name.clone(),
                id: "0".to_owned(),
            };
            BTreeSet::from([Target::ScaleSet { group, name }, instance])
        };
        assert_eq!((desired.join, desired.leave), (targets("pool-b"), targets("pool-a")));
    }
}
