//! The machines behind the nodes.
//!
//! | Read | Requests |
//! |---|---|
//! | all machines | one list of machines and one of scale sets for each resource group, one of instances for each uniform scale set |
//! | one machine | one |
//! | addresses | one list of interfaces for each scale set or resource group (one read for a single machine), and one of public addresses if an interface has one |
//!
//! All lists have the instance view, so that they show which machines are switched off. Only a 404 for a machine means that it does
//! not exist: a list only shows what exists.

mod addresses;
mod machine;
pub(crate) mod machine_id;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    Error, ErrorKind, Instance, InstanceState, NodeAddress, NodeView, Priority, Result, async_trait,
    client::{ClientMetrics, Marker, Page},
    instances::finder::{Finder, InstanceSource, Lookup},
};
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::Value;
use tracing::{debug, warn};
use url::Url;

use self::{
    addresses::AddressBook,
    machine::Machine,
    machine_id::{MachineId, MachineKind, group_of},
};
use crate::{
    client::{Arm, field, resource::Resource},
    config::{MachineKinds, Settings},
};

/// The label with the resource group of a node's machine.
const GROUP_LABEL: &str = "kubernetes.azure.com/resource-group";
/// The label that excludes a node from this provider.
const MANAGED_LABEL: &str = "kubernetes.azure.com/managed";
/// Up to this many interfaces are read one by one.
const FEW: usize = 2;

/// The instances of the cloud.
pub(crate) type Machines = Finder<MachineSource>;

/// Finds machines.
pub(crate) fn finder(arm: &Arm, settings: &Settings, metrics: &ClientMetrics) -> Machines {
    let source = MachineSource {
        arm: arm.clone(),
        subscription: settings.subscription.to_ascii_lowercase(),
        group: settings.resource_group.clone(),
        kinds: settings.machine_kinds,
        has_zones: settings.has_zones,
        with_view: !settings.conf.without_instance_view,
        groups: Arc::new(Mutex::new(BTreeSet::from([settings.resource_group.clone()]))),
    };
    Finder::new(source, metrics)
}

/// Reads machines.
#[derive(Clone, Debug)]
pub(crate) struct MachineSource {
    arm: Arm,
    subscription: String,
    /// The resource group of the cluster.
    group: String,
    kinds: MachineKinds,
    has_zones: bool,
    with_view: bool,
    /// The resource groups of nodes. Labels and provider IDs add to it, and a group that does not exist is removed.
    groups: Arc<Mutex<BTreeSet<String>>>,
}

/// The next step of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListingStep {
    /// The resource groups that are not read yet; the first one is being read.
    groups: Vec<String>,
    lists: ListKind,
    /// The uniform scale sets of the first group that are not read yet.
    sets: Vec<String>,
    link: Option<Url>,
}

/// What is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ListKind {
    Machines,
    ScaleSets,
    Instances,
}

impl Marker for ListingStep {
    fn is_end(&self) -> bool {
        self.groups.is_empty()
    }
}

impl ListingStep {
    /// The step after the last page of this list.
    fn next(mut self, kinds: MachineKinds) -> Self {
        self.link = None;
        if self.lists == ListKind::Instances {
            self.sets.remove(0);
        }
        if self.lists == ListKind::Machines && kinds.instances {
            self.lists = ListKind::ScaleSets;
        } else if self.sets.is_empty() {
            self.groups.remove(0);
            self.lists = ListKind::first(kinds);
        } else {
            self.lists = ListKind::Instances;
        }
        self
    }
}

impl ListKind {
    /// The first list of a resource group.
    fn first(kinds: MachineKinds) -> Self {
        if kinds.machines {
            Self::Machines
        } else {
            Self::ScaleSets
        }
    }
}

#[async_trait]
impl InstanceSource for MachineSource {
    type Record = Machine;
    type Marker = ListingStep;

    const CACHE: &'static str = "azure_machines";

    fn lookup(&self, node: &NodeView) -> Lookup {
        let label = |key: &str| node.labels.get(key);
        if label(MANAGED_LABEL).is_some_and(|managed| managed.eq_ignore_ascii_case("false")) {
            return Lookup::Known(Ok(InstanceState::Unmanaged));
        }
        if let Some(group) = label(GROUP_LABEL).filter(|group| !group.is_empty()) {
            self.groups.lock().insert(group.to_ascii_lowercase());
        }
        let Some(provider_id) = &node.provider_id else {
            return Lookup::Name;
        };
        match MachineId::of_provider_id(provider_id) {
            Ok(None) => Lookup::Known(Ok(InstanceState::Unmanaged)),
            Ok(Some(id)) if id.subscription != self.subscription => {
                let text = format!(
                    "provider ID {provider_id:?} is in another subscription than {}",
                    self.subscription
                );
                Lookup::Known(Err(Error::new(ErrorKind::InvalidSpec, text)))
            }
            Ok(Some(id)) => {
                self.groups.lock().insert(id.group.clone());
                Lookup::Id(id.to_string())
            }
            Err(error) => Lookup::Known(Err(error)),
        }
    }

    async fn by_ids(&self, ids: &[&str], priority: Priority) -> Vec<Result<Option<Machine>>> {
        join_all(ids.iter().map(|id| self.by_id(id, priority))).await
    }

    /// Reads the machines of all groups and the instances of the scale sets whose prefix the name has.
    async fn by_names(&self, names: &[&str], priority: Priority) -> Vec<Result<Vec<Machine>>> {
        join_all(names.iter().map(|name| self.by_name(name, priority))).await
    }

    async fn page(
        &self,
        _prefix: &str,
        marker: Option<ListingStep>,
        priority: Priority,
    ) -> Result<Page<Machine, ListingStep>> {
        let step = marker.unwrap_or_else(|| ListingStep {
            groups: self.groups.lock().iter().cloned().collect(),
            lists: ListKind::first(self.kinds),
            sets: Vec::new(),
            link: None,
        });
        let group = step.groups.first().cloned().unwrap_or_default();
        let resource = match (step.lists, step.sets.first()) {
            (ListKind::Machines, _) => Resource::Machines { group: &group },
            (ListKind::Instances, Some(set)) => Resource::Instances {
                group: &group,
                set,
                with_view: self.with_view,
            },
            _ => Resource::ScaleSets { group: &group },
        };
        let (documents, link) = match self.arm.page(resource, step.link.as_ref(), priority).await {
            Ok(page) => page,
            // A scale set that was deleted meanwhile has no instances.
            Err(error) if error.kind() == ErrorKind::NotFound && step.lists == ListKind::Instances => {
                (Vec::new(), None)
            }
            Err(error) if error.kind() == ErrorKind::NotFound && group != self.group => {
                debug!(group, "Resource group not found");
                self.groups.lock().remove(&group);
                let next = ListingStep {
                    groups: step.groups.get(1..).unwrap_or_default().to_vec(),
                    lists: ListKind::first(self.kinds),
                    sets: Vec::new(),
                    link: None,
                };
                return Ok(Page {
                    items: Vec::new(),
                    next: Some(next),
                });
            }
            Err(error) => return Err(error),
        };
        let mut next = step;
        let mut items = Vec::new();
        if next.lists == ListKind::ScaleSets {
            next.sets.extend(documents.iter().filter_map(uniform_set).map(|set| set.name));
        } else {
            items = machines(documents);
        }
        next = match link {
            Some(link) => ListingStep {
                link: Some(link),
                ..next
            },
            None => next.next(self.kinds),
        };
        Ok(Page {
            items,
            next: Some(next),
        })
    }

    fn existence(&self, machine: &Machine) -> Instance {
        Instance {
            provider_id: machine.provider_id.clone(),
            power: machine.power,
            ..Instance::default()
        }
    }

    async fn metadata(&self, machines: &[&Machine], priority: Priority) -> Vec<Result<Instance>> {
        let read = self.addresses(machines, priority).await;
        machines
            .iter()
            .map(|machine| {
                let zone = if self.has_zones {
                    Some(machine.zone()?)
                } else {
                    None
                };
                Ok(Instance {
                    instance_type: machine.size.clone(),
                    addresses: read.of(machine)?,
                    zone,
                    region: machine.region(),
                    ..self.existence(machine)
                })
            })
            .collect()
    }
}

impl MachineSource {
    async fn by_id(&self, id: &str, priority: Priority) -> Result<Option<Machine>> {
        let Some(id) = MachineId::parse(id) else {
            return Err(Error::new(ErrorKind::Unexpected, format!("bug: {id} is not the ID of a machine")));
        };
        self.arm.find(id.resource(), priority).await?.map(Machine::read).transpose()
    }

    async fn by_name(&self, name: &str, priority: Priority) -> Result<Vec<Machine>> {
        use ccm_core::instances::finder::Record as _;
        let groups: Vec<String> = self.groups.lock().iter().cloned().collect();
        let in_groups = join_all(groups.iter().map(|group| self.by_name_in(name, group, priority))).await;
        let mut found = Vec::new();
        for machines in in_groups {
            found.extend(machines?.into_iter().filter(|machine| machine.names().contains(&name)));
        }
        Ok(found)
    }

    /// The machines of a group that may have a name.
    async fn by_name_in(&self, name: &str, group: &str, priority: Priority) -> Result<Vec<Machine>> {
        let mut found = Vec::new();
        if self.kinds.machines {
            found.extend(machines(self.list(group, Resource::Machines { group }, priority).await?));
        }
        if self.kinds.instances {
            let sets = self.list(group, Resource::ScaleSets { group }, priority).await?;
            for set in sets.iter().filter_map(uniform_set) {
                if !set.has_prefix_of(name) {
                    continue;
                }
                let instances = Resource::Instances {
                    group,
                    set: &set.name,
                    with_view: self.with_view,
                };
                match self.arm.list(instances, priority).await {
                    Ok(instances) => found.extend(machines(instances)),
                    // The scale set was deleted meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }

    /// A list of a group; empty if the group is only that of some nodes and does not exist.
    async fn list(&self, group: &str, resource: Resource<'_>, priority: Priority) -> Result<Vec<Value>> {
        match self.arm.list(resource, priority).await {
            Err(error) if error.kind() == ErrorKind::NotFound && group != self.group => {
                debug!(error = error.report(), "Nothing to list");
                Ok(Vec::new())
            }
            list => list,
        }
    }

    /// The interfaces and public addresses of these machines. A list that fails concerns only the machines of that list.
    async fn addresses(&self, machines: &[&Machine], priority: Priority) -> ReadAddresses {
        let mut interfaces: BTreeMap<InterfaceList, Vec<String>> = BTreeMap::new();
        for machine in machines {
            match &machine.id.kind {
                MachineKind::Instance { id, .. } => {
                    interfaces.entry(InterfaceList::of_instance(&machine.id)).or_default().push(id.clone());
                }
                MachineKind::Machine { .. } => {
                    for (id, _) in &machine.interfaces {
                        interfaces.entry(InterfaceList::of_interface(id)).or_default().push(id.clone());
                    }
                }
            }
        }
        let reads = interfaces.iter().map(|(list, ids)| self.interfaces(list, ids, priority));
        let lists = join_all(reads).await;

        let mut read = ReadAddresses::default();
        // By the resource that lists the public addresses: the lists of interfaces that need them.
        let mut public: BTreeMap<PublicList, BTreeSet<InterfaceList>> = BTreeMap::new();
        for (list, documents) in interfaces.into_keys().zip(lists) {
            match documents {
                Ok(documents) => {
                    for id in read.book.add_interfaces(documents) {
                        public.entry(PublicList::of(&list, &id)).or_default().insert(list.clone());
                    }
                }
                Err(error) => {
                    read.failed.insert(list, error);
                }
            }
        }
        for (list, needed_by) in public {
            match self.arm.list(list.resource(), priority).await {
                Ok(documents) => read.book.add_public(documents),
                Err(error) => read.failed.extend(needed_by.into_iter().map(|list| (list, error.clone()))),
            }
        }
        read
    }

    async fn interfaces(
        &self,
        list: &InterfaceList,
        ids: &[String],
        priority: Priority,
    ) -> Result<Vec<Value>> {
        match list {
            InterfaceList::Set { group, set } => self.set_interfaces(group, set, ids, priority).await,
            InterfaceList::Group(group) => self.group_interfaces(group, ids, priority).await,
        }
    }

    /// The interfaces of instances of a scale set.
    async fn set_interfaces(
        &self,
        group: &str,
        set: &str,
        ids: &[String],
        priority: Priority,
    ) -> Result<Vec<Value>> {
        match ids {
            [id] => self.arm.list(Resource::InstanceInterfaces { group, set, id }, priority).await,
            _ => self.arm.list(Resource::ScaleSetInterfaces { group, set }, priority).await,
        }
    }

    /// Interfaces of a resource group.
    async fn group_interfaces(&self, group: &str, ids: &[String], priority: Priority) -> Result<Vec<Value>> {
        if ids.len() > FEW {
            return self.arm.list(Resource::Interfaces { group }, priority).await;
        }
        let mut found = Vec::new();
        for id in ids {
            let name = id.rsplit('/').next().unwrap_or_default();
            found.extend(self.arm.find(Resource::Interface { group, name }, priority).await?);
        }
        Ok(found)
    }
}

/// A list of network interfaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum InterfaceList {
    /// Those of a uniform scale set.
    Set { group: String, set: String },
    /// Those of a resource group.
    Group(String),
}

impl InterfaceList {
    fn of_instance(id: &MachineId) -> Self {
        match &id.kind {
            MachineKind::Instance { set, .. } => Self::Set {
                group: id.group.clone(),
                set: set.clone(),
            },
            MachineKind::Machine { .. } => Self::Group(id.group.clone()),
        }
    }

    /// The list of an interface, which may be in another group than its machine.
    fn of_interface(id: &str) -> Self {
        Self::Group(group_of(id).unwrap_or_default())
    }

    /// The lists that a machine needs.
    fn of(machine: &Machine) -> Vec<Self> {
        match machine.id.kind {
            MachineKind::Instance { .. } => vec![Self::of_instance(&machine.id)],
            MachineKind::Machine { .. } => {
                machine.interfaces.iter().map(|(id, _)| Self::of_interface(id)).collect()
            }
        }
    }
}

/// A list of public addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PublicList(InterfaceList);

impl PublicList {
    /// The list with the public address of an interface.
    fn of(interfaces: &InterfaceList, address: &str) -> Self {
        match interfaces {
            InterfaceList::Set { .. } => Self(interfaces.clone()),
            InterfaceList::Group(_) => Self(InterfaceList::of_interface(address)),
        }
    }

    fn resource(&self) -> Resource<'_> {
        match &self.0 {
            InterfaceList::Set { group, set } => Resource::ScaleSetAddresses { group, set },
            InterfaceList::Group(group) => Resource::PublicAddresses { group },
        }
    }
}

/// The addresses of machines, and the lists that could not be read.
#[derive(Debug, Default)]
struct ReadAddresses {
    book: AddressBook,
    failed: BTreeMap<InterfaceList, Error>,
}

impl ReadAddresses {
    fn of(&self, machine: &Machine) -> Result<Vec<NodeAddress>> {
        let lists = InterfaceList::of(machine);
        match lists.iter().find_map(|list| self.failed.get(list)) {
            Some(error) => Err(error.clone()),
            None => self.book.addresses(machine),
        }
    }
}

/// The documents that are machines. One that cannot be read is left out, and found by a read of its own.
fn machines(documents: Vec<Value>) -> Vec<Machine> {
    let mut machines = Vec::new();
    for document in documents {
        match Machine::read(document) {
            Ok(machine) => machines.push(machine),
            Err(error) => warn!(error = error.report(), "Could not read a machine of a list"),
        }
    }
    machines
}

/// A uniform scale set with instances.
struct UniformSet {
    name: String,
    /// The begin of its nodes' names.
    prefix: String,
}

impl UniformSet {
    /// Whether a node's name is the prefix and six characters.
    fn has_prefix_of(&self, name: &str) -> bool {
        let end = name.len().checked_sub(6).and_then(|end| name.split_at_checked(end));
        end.is_some_and(|(prefix, _)| prefix.eq_ignore_ascii_case(&self.prefix))
    }
}

/// A scale set whose instances are listed: a uniform one that is not empty.
fn uniform_set(document: &Value) -> Option<UniformSet> {
    let text = |path: &str| document.pointer(path).and_then(Value::as_str);
    let is_flexible =
        text("/properties/orchestrationMode").is_some_and(|mode| mode.eq_ignore_ascii_case("Flexible"));
    let is_empty = document.pointer("/sku/capacity").and_then(Value::as_i64) == Some(0);
    let name = document.get(field::NAME)?.as_str()?;
    let prefix = text("/properties/virtualMachineProfile/osProfile/computerNamePrefix");
    (!is_flexible && !is_empty).then(|| UniformSet {
        name: name.to_owned(),
        prefix: prefix.unwrap_or(name).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn flexible_and_empty_scale_sets_are_not_listed() {
        let set = |mode: &str, capacity: i64| {
            uniform_set(&json!({
                "name": "pool", "sku": {"capacity": capacity}, "properties": {"orchestrationMode": mode},
            }))
        };
        assert!(set("Uniform", 3).unwrap().has_prefix_of("Pool00000A"));
        assert!(!set("Uniform", 3).unwrap().has_prefix_of("pool-b00000a"));
        assert!(set("Flexible", 3).is_none() && set("Uniform", 0).is_none());
        let prefixed = uniform_set(&json!({
            "name": "pool", "properties": {"virtualMachineProfile": {"osProfile": {"computerNamePrefix": "aks-a"}}},
        }));
        assert!(prefixed.unwrap().has_prefix_of("aks-a000001"));
    }

    #[test]
    fn a_listing_ends_after_the_last_list_of_the_last_group() {
        let kinds = MachineKinds {
            machines: true,
            instances: true,
        };
        let mut step = ListingStep {
            groups: vec!["a".to_owned(), "b".to_owned()],
            lists: ListKind::Machines,
            sets: Vec::new(),
            link: None,
        };
        let mut seen = Vec::new();
        while !step.is_end() {
            if step.lists == ListKind::ScaleSets && step.groups.len() == 2 {
                step.sets = vec!["x".to_owned(), "y".to_owned()];
            }
            let set = match step.lists {
                ListKind::Instances => step.sets[0].as_str(),
                _ => "",
            };
            seen.push(format!("{} {:?} {set}", step.groups[0], step.lists));
            step = step.next(kinds);
        }
        assert_eq!(
            seen,
            [
                "a Machines ",
                "a ScaleSets ",
                "a Instances x",
                "a Instances y",
                "b Machines ",
                "b ScaleSets "
            ]
        );
    }
}
