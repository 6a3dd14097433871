//! The calls of the plan: reads of parts, and changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result, Retry, async_trait,
    load_balancer::{ClusterView, Effect, ReadOptions, ServiceId},
    plan::{
        CredentialsCheck, GatheredInputs, PartCloud, ScopeCheck, SendOptions, SendOutcome, Wait,
        document::Document,
    },
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;
use tracing::info;

use super::{
    directory::{BalancerDirectory, part_of, pinned_address},
    document::{ArmChange, POOLS, Target, elements, name},
    members::{MachineIndex, ObservedMembers, machine_of, refers_to},
    model::{Model, ObservedPart, PartInputs, PartKey, PartMember, Subnet, subnet_target},
    namespaces::{LabelsByNamespace, Namespaces},
    placement::balancer_parts,
    private_link::ObservedLink,
    settings::BalancerSettings,
    spec::address_group,
    store::{DocumentList, DocumentStore},
};
use crate::{
    Nodes,
    client::{Arm, AsyncOperation, OPERATION_TIMEOUT, field, resource::Resource},
    instances::machine_id::{MachineId, MachineKind, group_of},
};

/// The zones of the region are read again after this.
const ZONES_AGE: Duration = Duration::from_secs(3600);
/// Subnets are read again after this.
const SUBNET_AGE: Duration = Duration::from_secs(3600);
/// Machines are listed again after this if one of a node is not in the lists, and at once for a node that was not looked for yet.
const UNLISTED_AGE: Duration = Duration::from_secs(60);

/// The calls.
pub(crate) struct BalancerCalls {
    nodes: Nodes,
    arm: Arm,
    settings: Arc<BalancerSettings>,
    credentials: CredentialsCheck,
    namespaces: Option<Namespaces>,
    store: DocumentStore,
    state: Mutex<CallState>,
}

/// The state between calls.
#[derive(Debug, Default)]
struct CallState {
    /// The last directory, and the version of the documents then.
    directory: Option<(u64, Arc<BalancerDirectory>)>,
    zones: Option<(Instant, Vec<String>)>,
    /// Whether the last list of private link services was empty, and none was created since.
    has_no_links: bool,
    /// The machines of the nodes.
    machines: BTreeSet<MachineId>,
    /// Machines that were not in the last lists, and when that was noticed.
    unlisted: HashMap<MachineId, Instant>,
}

impl fmt::Debug for BalancerCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalancerCalls").finish_non_exhaustive()
    }
}

/// A change that Azure has not finished.
#[derive(Debug)]
pub(crate) struct BalancerTicket {
    operation: AsyncOperation,
    target: Target,
    effect: Effect,
}

impl BalancerCalls {
    /// `arm`: passes the fence of load balancers. `namespaces`: if load balancers select Services by them.
    pub(crate) fn new(
        nodes: &Nodes,
        arm: Arm,
        settings: &Arc<BalancerSettings>,
        namespaces: Option<Namespaces>,
    ) -> Self {
        Self {
            nodes: nodes.clone(),
            store: DocumentStore::new(&arm),
            arm,
            settings: Arc::clone(settings),
            credentials: CredentialsCheck::default(),
            namespaces,
            state: Mutex::default(),
        }
    }

    /// A list of resources of a group. `kind`: provider and type.
    async fn list(
        &self,
        subscription: &str,
        kind: &str,
        resource: Resource<'_>,
        read: ReadOptions,
    ) -> Result<Vec<Arc<Value>>> {
        let prefix = self.prefix(subscription, kind, resource);
        let list = DocumentList {
            prefix: &prefix,
            resource,
        };
        self.store.list(list, read.freshness, read.priority).await
    }

    /// The beginning of the IDs of a list.
    fn prefix(&self, subscription: &str, kind: &str, resource: Resource<'_>) -> String {
        let group = match resource {
            Resource::LoadBalancers { group }
            | Resource::PublicAddresses { group }
            | Resource::LinkServices { group }
            | Resource::Interfaces { group }
            | Resource::Machines { group }
            | Resource::ScaleSets { group }
            | Resource::Instances { group, .. } => group,
            _ => "",
        };
        format!("/subscriptions/{subscription}/resourcegroups/{group}/providers/{kind}/").to_ascii_lowercase()
    }

    async fn balancers(&self, read: ReadOptions) -> Result<Vec<Arc<Value>>> {
        let settings = &self.settings;
        let resource = Resource::LoadBalancers {
            group: &settings.balancer_group,
        };
        self.list(&settings.network_subscription, "microsoft.network/loadbalancers", resource, read)
            .await
    }

    async fn addresses(&self, group: &str, read: ReadOptions) -> Result<Vec<Arc<Value>>> {
        let kind = "microsoft.network/publicipaddresses";
        self.list(&self.settings.network_subscription, kind, Resource::PublicAddresses { group }, read)
            .await
    }

    /// The private link services of the resource group of the config. Without any, they are not listed again before a Service asks for
    /// one. The first list of a process shows those that no Service asks for any more.
    async fn usual_links(&self, read: ReadOptions) -> Result<Vec<Arc<Value>>> {
        if self.state.lock().has_no_links {
            return Ok(Vec::new());
        }
        let links = match self.links(&self.settings.link_group, read).await {
            // A cluster without private link services needs no right to read them. One that has some reads each of them, too.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                info!(error = error.report(), "Could not list private link services");
                Vec::new()
            }
            links => links?,
        };
        self.state.lock().has_no_links = links.is_empty();
        Ok(links)
    }

    /// Lists private link services with the next read: there may be one now.
    fn expect_links(&self) {
        self.state.lock().has_no_links = false;
    }

    /// The private link services of a resource group.
    async fn links(&self, group: &str, read: ReadOptions) -> Result<Vec<Arc<Value>>> {
        let kind = "microsoft.network/privatelinkservices";
        let resource = Resource::LinkServices { group };
        self.list(&self.settings.network_subscription, kind, resource, read).await
    }

    /// The directory, also with the public IP addresses and private link services of other resource groups that these members use.
    async fn directory_for(
        &self,
        key: &PartKey,
        members: &[PartMember],
        read: ReadOptions,
    ) -> Result<Arc<BalancerDirectory>> {
        let asks_for_link = PartMember::active(members).any(|member| member.spec.link.is_some());
        if asks_for_link || matches!(key, PartKey::Link(_)) {
            self.expect_links();
        }
        let directory = self.directory(read).await?;
        let mut groups: BTreeSet<String> =
            members.iter().map(|member| address_group(&member.service, &self.settings)).collect();
        if let PartKey::Address(part) = key {
            groups.extend(part.split('/').next().map(str::to_owned));
        }
        groups.remove(&self.settings.group);
        let mut link_groups = BTreeSet::new();
        if let PartKey::Link(part) = key {
            link_groups.extend(part.split('/').next().map(str::to_owned));
            link_groups.remove(&self.settings.link_group);
        }
        if groups.is_empty() && link_groups.is_empty() {
            return Ok(directory);
        }
        let mut addresses = directory.addresses.clone();
        for group in groups {
            addresses.extend(self.addresses(&group, read).await?);
        }
        let mut links = directory.links.clone();
        for group in link_groups {
            links.extend(self.links(&group, read).await?);
        }
        Ok(Arc::new(BalancerDirectory {
            balancers: directory.balancers.clone(),
            addresses,
            links,
            namespaces: Arc::clone(&directory.namespaces),
        }))
    }

    async fn scale_sets(&self, group: &str, read: ReadOptions) -> Result<Vec<Arc<Value>>> {
        let kind = "microsoft.compute/virtualmachinescalesets";
        self.list(&self.settings.subscription, kind, Resource::ScaleSets { group }, read).await
    }

    async fn instances(&self, group: &str, set: &str, read: ReadOptions) -> Result<Vec<Arc<Value>>> {
        let kind = format!("microsoft.compute/virtualmachinescalesets/{set}/virtualmachines");
        let resource = Resource::Instances {
            group,
            set,
            with_view: true,
        };
        self.list(&self.settings.subscription, &kind, resource, read).await
    }

    async fn machines(&self, group: &str, read: ReadOptions) -> Result<Vec<Arc<Value>>> {
        let kind = "microsoft.compute/virtualmachines";
        self.list(&self.settings.subscription, kind, Resource::Machines { group }, read).await
    }

    async fn interfaces(&self, group: &str, read: ReadOptions) -> Result<Vec<Arc<Value>>> {
        let kind = "microsoft.network/networkinterfaces";
        self.list(&self.settings.subscription, kind, Resource::Interfaces { group }, read).await
    }

    /// The document of a target.
    async fn document(&self, target: &Target, read: ReadOptions) -> Result<Option<Arc<Value>>> {
        let id = target.id(&self.settings);
        self.store.get(&id, target.resource(), read.freshness, read.priority).await
    }

    /// The zones of the region.
    async fn zones(&self, priority: Priority) -> Result<Vec<String>> {
        if self.settings.is_azure_stack {
            return Ok(Vec::new());
        }
        if let Some((began, zones)) = &self.state.lock().zones
            && began.elapsed() < ZONES_AGE
        {
            return Ok(zones.clone());
        }
        let began = Instant::now();
        let provider = match self.arm.find(Resource::Zones, priority).await {
            // The right is one for the subscription. Without zones, Azure chooses.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                info!(error = error.report(), "Could not read the zones of the region");
                Value::Null
            }
            provider => provider?.unwrap_or_default(),
        };
        let zones = zones_of(&provider, &self.settings.location);
        self.state.lock().zones = Some((began, zones.clone()));
        Ok(zones)
    }

    /// The subnet of an internal load balancer.
    async fn subnet(&self, name: &str, priority: Priority) -> Result<Subnet> {
        let settings = &self.settings;
        let resource = Resource::Subnet {
            group: &settings.network_group,
            network: &settings.conf.vnet_name,
            name,
        };
        let freshness = Freshness::AtMost(SUBNET_AGE);
        let document = self.store.get(&settings.subnet_id(name), resource, freshness, priority).await?;
        let Some(document) = document else {
            let text = format!("subnet {name} not found in virtual network {}", settings.conf.vnet_name);
            return Err(Error::new(ErrorKind::InvalidSpec, text));
        };
        let several = document.pointer("/properties/addressPrefixes").and_then(Value::as_array);
        let one = document.pointer("/properties/addressPrefix");
        let prefixes = one.into_iter().chain(several.into_iter().flatten());
        Ok(Subnet {
            prefixes: prefixes.filter_map(|prefix| prefix.as_str()?.parse().ok()).collect(),
        })
    }

    /// The machines of the nodes, and the documents with their membership. `balancer`: the load balancer; the scale sets that have its pools
    /// are found, too.
    async fn inventory(
        &self,
        balancer: &str,
        read: ReadOptions,
    ) -> Result<(MachineIndex, BTreeMap<Target, Arc<Value>>)> {
        let machines = self.state.lock().machines.clone();
        let mut groups: BTreeSet<&str> = machines.iter().map(|id| id.group.as_str()).collect();
        groups.insert(&self.settings.group);
        let has_machines = |group: &str| {
            let mut of_group = machines.iter().filter(|id| id.group == group);
            of_group.any(|id| matches!(id.kind, MachineKind::Machine { .. }))
        };
        let mut index = MachineIndex::default();
        let mut holders = BTreeMap::new();
        let mut interface_groups = BTreeSet::new();
        for group in groups.iter().filter(|group| has_machines(group)) {
            for machine in self.machines(group, read).await? {
                let Some(id) = machine.get("id").and_then(Value::as_str).and_then(MachineId::parse) else {
                    continue;
                };
                if !machines.contains(&id) {
                    continue;
                }
                if let Some(interface) = primary_interface(&machine).and_then(interface_target) {
                    if let Target::Interface { group, .. } = &interface {
                        interface_groups.insert(group.clone());
                    }
                    index.interfaces.insert(id.clone(), interface);
                }
                let set = machine.pointer("/properties/virtualMachineScaleSet/id").and_then(Value::as_str);
                index.sets.extend(set.and_then(set_target).map(|set| (id.clone(), set)));
                index.vm_sets.extend(vm_set_of(&machine).map(|set| (id, set.to_owned())));
            }
        }
        let wanted: BTreeSet<&Target> = index.interfaces.values().collect();
        for group in &interface_groups {
            for interface in self.interfaces(group, read).await? {
                let target = interface.get("id").and_then(Value::as_str).and_then(interface_target);
                if let Some(target) = target.filter(|target| wanted.contains(target)) {
                    holders.insert(target, interface);
                }
            }
        }
        for group in groups {
            for set in self.scale_sets(group, read).await? {
                let target = Target::ScaleSet {
                    group: group.to_owned(),
                    name: name(&set).to_ascii_lowercase(),
                };
                let Target::ScaleSet { name: set_name, .. } = &target else {
                    continue;
                };
                let has_machine = machines.iter().any(|id| {
                    let is_instance = matches!(&id.kind, MachineKind::Instance { set, .. } if set == set_name)
                        && id.group == group;
                    is_instance || index.sets.get(id) == Some(&target)
                });
                if !has_machine && !refers_to(&set, &target, balancer) {
                    continue;
                }
                let mode = set.pointer("/properties/orchestrationMode").and_then(Value::as_str);
                if !mode.is_some_and(|mode| mode.eq_ignore_ascii_case("Flexible")) {
                    for instance in self.instances(group, set_name, read).await? {
                        let id = instance.get("id").and_then(Value::as_str).and_then(MachineId::parse);
                        let holder = id.and_then(|id| index.holder(&id));
                        holders.extend(holder.map(|holder| (holder, instance)));
                    }
                }
                holders.insert(target, set);
            }
        }
        Ok((index, holders))
    }

    /// The inventory, in which all machines of the nodes are that exist.
    async fn complete_inventory(
        &self,
        balancer: &str,
        read: ReadOptions,
    ) -> Result<(MachineIndex, BTreeMap<Target, Arc<Value>>)> {
        let (index, holders) = self.inventory(balancer, read).await?;
        let machines = self.state.lock().machines.clone();
        let missing = machines.into_iter().filter(|id| {
            let holder = index.holder(id);
            !holder.is_some_and(|holder| holders.contains_key(&holder))
        });
        if self.has_new_unlisted(missing.collect()) {
            return self.inventory(balancer, read.uncached()).await;
        }
        Ok((index, holders))
    }

    /// Records the machines of nodes that are not in the lists. Returns whether the lists have to be read again for one.
    fn has_new_unlisted(&self, missing: Vec<MachineId>) -> bool {
        let mut state = self.state.lock();
        state.unlisted.retain(|id, since| missing.contains(id) && since.elapsed() < UNLISTED_AGE);
        if missing.iter().all(|id| state.unlisted.contains_key(id)) {
            return false;
        }
        let now = Instant::now();
        state.unlisted.extend(missing.into_iter().map(|id| (id, now)));
        true
    }

    /// The documents of a load balancer's pools.
    fn pool_documents(part: &str, balancer: &Value) -> BTreeMap<Target, Arc<Value>> {
        let (group, balancer_name) = part.split_once('/').unwrap_or_default();
        let documents = elements(balancer, POOLS).map(|pool| {
            let target = Target::Pool {
                group: group.to_owned(),
                balancer: balancer_name.to_owned(),
                name: name(pool).to_owned(),
            };
            (target, Arc::new(pool.clone()))
        });
        documents.collect()
    }

    /// The load balancers of the config that exist, with their parts, if there are several of each kind. The listing has them as they were
    /// before the last change of a pool.
    async fn cluster_balancers(&self, read: ReadOptions) -> Result<Vec<(String, Arc<Value>)>> {
        let mut balancers = Vec::new();
        let listed = self.balancers(read).await?;
        for part in balancer_parts(&self.settings, "") {
            if !listed.iter().any(|balancer| part_of(balancer).eq_ignore_ascii_case(&part)) {
                continue;
            }
            let target = Target::balancer(&part);
            balancers.extend(self.document(&target, read).await?.map(|balancer| (part, balancer)));
        }
        Ok(balancers)
    }

    /// The scale sets and availability sets of machines that are not instances of uniform scale sets, by name.
    async fn vm_sets(
        &self,
        machines: &BTreeSet<MachineId>,
        read: ReadOptions,
    ) -> Result<BTreeMap<MachineId, String>> {
        let is_machine = |id: &&MachineId| matches!(id.kind, MachineKind::Machine { .. });
        let groups: BTreeSet<&str> = machines.iter().filter(is_machine).map(|id| id.group.as_str()).collect();
        let mut sets = BTreeMap::new();
        for group in groups {
            for machine in self.machines(group, read).await? {
                let Some(id) = machine.get("id").and_then(Value::as_str).and_then(MachineId::parse) else {
                    continue;
                };
                let MachineKind::Machine { name } = &id.kind else {
                    continue;
                };
                let set = vm_set_of(&machine).unwrap_or(name).to_owned();
                sets.insert(id, set);
            }
        }
        Ok(sets)
    }

    /// The same for the machines of all nodes.
    async fn complete_vm_sets(
        &self,
        machines: &BTreeSet<MachineId>,
        read: ReadOptions,
    ) -> Result<BTreeMap<MachineId, String>> {
        let sets = self.vm_sets(machines, read).await?;
        let is_missing =
            |id: &&MachineId| matches!(id.kind, MachineKind::Machine { .. }) && !sets.contains_key(*id);
        if self.has_new_unlisted(machines.iter().filter(is_missing).cloned().collect()) {
            return self.vm_sets(machines, read.uncached()).await;
        }
        Ok(sets)
    }

    async fn observe_members(&self, part: &str, read: ReadOptions) -> Result<ObservedMembers> {
        if !self.settings.several().is_empty() {
            let mut holders = BTreeMap::new();
            for (part, balancer) in self.cluster_balancers(read).await? {
                holders.extend(Self::pool_documents(&part, &balancer));
            }
            return Ok(ObservedMembers {
                balancer: None,
                holders,
            });
        }
        let id = self.settings.balancer_id(part);
        let target = Target::balancer(part);
        let balancer = self.document(&target, read).await?;
        let holders = match &balancer {
            None if self.settings.has_address_pools() => BTreeMap::new(),
            Some(balancer) if self.settings.has_address_pools() => Self::pool_documents(part, balancer),
            Some(_) | None => self.inventory(&id, read).await?.1,
        };
        Ok(ObservedMembers { balancer, holders })
    }

    /// The private link service, and the subnets of the Services that ask for it.
    async fn observe_link(
        &self,
        part: &str,
        members: &[PartMember],
        read: ReadOptions,
    ) -> Result<ObservedLink> {
        let (group, name) = part.split_once('/').unwrap_or_default();
        let target = Target::LinkService {
            group: group.to_owned(),
            name: name.to_owned(),
        };
        let service = self.document(&target, read).await?;
        let mut observed = ObservedLink {
            service: service.map(|document| Document::planned(&document)),
            subnets: BTreeMap::new(),
        };
        for link in PartMember::active(members).filter_map(|member| member.spec.link.as_ref()) {
            let subnet = subnet_target(&self.settings, &link.subnet);
            if let Some(document) = self.document(&subnet, read).await? {
                observed.subnets.insert(subnet, Document::planned(&document));
            }
        }
        Ok(observed)
    }

    /// Records that a resource was deleted. With a load balancer, interfaces are no longer members.
    fn deleted(&self, target: &Target) {
        self.store.written(&target.id(&self.settings), None);
        if let Target::LinkConnection { group, service, .. } = target {
            self.store.changed(&self.link_id(group, service));
        }
        if matches!(target, Target::Balancer { .. }) {
            self.store.forget_lists("/microsoft.network/networkinterfaces/");
        }
    }

    /// The ID of a private link service.
    fn link_id(&self, group: &str, name: &str) -> String {
        let target = Target::LinkService {
            group: group.to_owned(),
            name: name.to_owned(),
        };
        target.id(&self.settings)
    }

    /// The Services whose rules have no room in the network security group.
    async fn without_room(
        &self,
        part: &str,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &PartInputs,
        read: ReadOptions,
    ) -> Result<Vec<(ServiceId, Error)>> {
        let target = Target::security_group(part);
        let Some(document) = self.document(&target, read).await? else {
            return Ok(Vec::new());
        };
        let model = Model {
            settings: Arc::clone(&self.settings),
        };
        Ok(model.without_room(part, members, cluster, inputs, &Document::planned(&document)))
    }

    async fn member_inputs(
        &self,
        inputs: &mut PartInputs,
        part: &str,
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<()> {
        if !self.settings.several().is_empty() {
            let machines = cluster.nodes.all().iter().filter_map(|node| machine_of(node, &self.settings));
            let vm_sets = self.complete_vm_sets(&machines.collect(), read).await?;
            inputs.machines = Arc::new(MachineIndex {
                vm_sets,
                ..MachineIndex::default()
            });
            return Ok(());
        }
        if self.settings.has_address_pools() {
            return Ok(());
        }
        let machines = cluster.nodes.all().iter().filter_map(|node| machine_of(node, &self.settings));
        self.state.lock().machines = machines.collect();
        let id = self.settings.balancer_id(part);
        let (index, holders) = self.complete_inventory(&id, read).await?;
        inputs.machines = Arc::new(index);
        inputs.members.holders = holders;
        Ok(())
    }
}

/// The zones of a region in the description of Microsoft.Compute.
fn zones_of(provider: &Value, location: &str) -> Vec<String> {
    let mut zones = BTreeSet::new();
    for kind in list(provider, "resourceTypes") {
        let name = kind.get("resourceType").and_then(Value::as_str).unwrap_or_default();
        if !name.eq_ignore_ascii_case("virtualMachines") {
            continue;
        }
        for mapping in list(kind, "zoneMappings") {
            let region = mapping.get("location").and_then(Value::as_str).unwrap_or_default();
            if region.replace(' ', "").eq_ignore_ascii_case(location) {
                zones.extend(list(mapping, "zones").filter_map(Value::as_str).map(str::to_owned));
            }
        }
    }
    zones.into_iter().collect()
}

/// The items of a list in a document.
fn list<'a>(document: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    document.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// The name of the flexible scale set or availability set of a machine.
fn vm_set_of(machine: &Value) -> Option<&str> {
    let paths = [
        "/properties/virtualMachineScaleSet/id",
        "/properties/availabilitySet/id",
    ];
    let id = paths.iter().find_map(|path| machine.pointer(path)?.as_str())?;
    id.rsplit('/').next()
}

/// The ID of the primary network interface of a machine: the only one, or the one that is marked.
fn primary_interface(machine: &Value) -> Option<&str> {
    let interfaces = machine.pointer("/properties/networkProfile/networkInterfaces")?.as_array()?;
    let is_primary =
        |interface: &&Value| interface.pointer("/properties/primary").and_then(Value::as_bool) == Some(true);
    let primary = match interfaces.as_slice() {
        [only] => Some(only),
        several => several.iter().find(is_primary),
    };
    primary?.get("id")?.as_str()
}

fn interface_target(id: &str) -> Option<Target> {
    Some(Target::Interface {
        group: group_of(id)?,
        name: id.rsplit('/').next()?.to_ascii_lowercase(),
    })
}

fn set_target(id: &str) -> Option<Target> {
    Some(Target::ScaleSet {
        group: group_of(id)?,
        name: id.rsplit('/').next()?.to_ascii_lowercase(),
    })
}

#[async_trait]
impl PartCloud<Model> for BalancerCalls {
    type Ticket = BalancerTicket;

    async fn directory(&self, read: ReadOptions) -> Result<Arc<BalancerDirectory>> {
        let balancers = self.balancers(read).await?;
        let addresses = self.addresses(&self.settings.group, read).await?;
        let links = self.usual_links(read).await?;
        let namespaces = match &self.namespaces {
            Some(namespaces) => namespaces.labels().await?,
            None => LabelsByNamespace::default(),
        };
        let version = self.store.version();
        let mut state = self.state.lock();
        if let Some((of, directory)) = &state.directory
            && *of == version
            && directory.namespaces == namespaces
        {
            return Ok(Arc::clone(directory));
        }
        let directory = Arc::new(BalancerDirectory {
            balancers,
            addresses,
            links,
            namespaces,
        });
        state.directory = Some((version, Arc::clone(&directory)));
        Ok(directory)
    }

    async fn inputs(
        &self,
        key: &PartKey,
        members: &[PartMember],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<PartInputs>> {
        if let PartKey::Members(_) = key
            && !self.settings.several().is_empty()
        {
            // Nodes are placed by the pools as they are.
            self.cluster_balancers(read).await?;
        }
        let mut inputs = PartInputs {
            directory: self.directory_for(key, members, read).await?,
            ..PartInputs::default()
        };
        let mut refused = Vec::new();
        match key {
            PartKey::Address(_) if PartMember::active(members).next().is_some() => {
                inputs.zones = self.zones(read.priority).await?;
            }
            PartKey::Rules(_) => {
                for member in PartMember::active(members) {
                    let spec = &member.spec;
                    let subnet = spec.subnet_name(&self.settings);
                    if !spec.is_internal || subnet.is_empty() {
                        continue;
                    }
                    inputs.zones = self.zones(read.priority).await?;
                    match self.subnet(subnet, read.priority).await {
                        Ok(found) => {
                            inputs.subnets.insert(subnet.to_owned(), found);
                        }
                        Err(error) => refused.push((member.service.id.clone(), error)),
                    }
                }
            }
            PartKey::Link(_) if !self.settings.conf.vnet_name.is_empty() => {
                for member in PartMember::active(members) {
                    let Some(link) = &member.spec.link else { continue };
                    match self.subnet(&link.subnet, read.priority).await {
                        Ok(found) => {
                            inputs.subnets.insert(link.subnet.clone(), found);
                        }
                        Err(error) => refused.push((member.service.id.clone(), error)),
                    }
                }
            }
            PartKey::Members(part) => self.member_inputs(&mut inputs, part, cluster, read).await?,
            PartKey::SecurityGroup(part) if PartMember::active(members).next().is_some() => {
                refused = self.without_room(part, members, cluster, &inputs, read).await?;
                if !refused.is_empty() {
                    // There may be room by now.
                    refused = self.without_room(part, members, cluster, &inputs, read.uncached()).await?;
                }
            }
            PartKey::Address(_) | PartKey::Balancer(_) | PartKey::Link(_) | PartKey::SecurityGroup(_) => {}
        }
        Ok(GatheredInputs { inputs, refused })
    }

    async fn observe(
        &self,
        key: &PartKey,
        members: &[PartMember],
        read: ReadOptions,
    ) -> Result<ObservedPart> {
        let (part, target): (&str, fn(String, String) -> Target) = match key {
            PartKey::Members(part) => {
                return Ok(ObservedPart::Members(self.observe_members(part, read).await?));
            }
            PartKey::Link(part) => {
                return Ok(ObservedPart::Link(self.observe_link(part, members, read).await?));
            }
            PartKey::Balancer(part) | PartKey::Rules(part) => {
                (part, |group, name| Target::Balancer { group, name })
            }
            PartKey::Address(part) => (part, |group, name| Target::Address { group, name }),
            PartKey::SecurityGroup(part) => (part, |group, name| Target::SecurityGroup { group, name }),
        };
        let mut part = part.to_owned();
        if let Some((group, _)) = pinned_address(&part) {
            let listed = BalancerDirectory {
                addresses: self.addresses(group, read).await?,
                ..BalancerDirectory::default()
            };
            let Some(address) = listed.address(&part) else {
                return Ok(ObservedPart::Document(None));
            };
            part = part_of(address);
        }
        let (group, name) = part.split_once('/').unwrap_or_default();
        let target = target(group.to_owned(), name.to_owned());
        let document = self.document(&target, read).await?;
        Ok(ObservedPart::Document(document.map(|document| Document::planned(&document))))
    }

    async fn send(
        &self,
        _: &PartKey,
        change: &ArmChange,
        _: &ObservedPart,
        options: &SendOptions,
    ) -> Result<SendOutcome<Value, BalancerTicket>> {
        let (target, priority) = (&change.target, options.priority);
        let id = target.id(&self.settings);
        // If this future is dropped, the document is read again.
        self.store.changed(&id);
        if let Target::Pool { group, balancer, .. } = target {
            self.store.changed(&self.settings.network_id(group, "loadBalancers", balancer));
        }
        if let Target::LinkConnection { group, service, .. } = target {
            self.store.changed(&self.link_id(group, service));
        }
        if matches!(target, Target::LinkService { .. }) {
            self.expect_links();
        }
        let (reply, operation) = match change.effect {
            Effect::Create | Effect::Change => {
                let accepted = self.arm.begin_put(target.resource(), &change.body, priority).await;
                if accepted.is_err() && matches!(target, Target::Balancer { .. }) {
                    // A frontend that a private link service of another client uses cannot go.
                    self.expect_links();
                }
                let mut accepted = accepted?;
                let is_address = matches!(target, Target::Address { .. });
                if is_address && accepted.operation.is_none() {
                    // The answer to a write of a public IP address does not have the address.
                    let written = self.arm.find(target.resource(), priority).await?;
                    accepted.document = written.unwrap_or(accepted.document);
                }
                if !matches!(target, Target::Pool { .. }) && accepted.document.get(field::NAME).is_some() {
                    self.store.written(&id, Some(accepted.document.clone()));
                }
                (accepted.document, accepted.operation)
            }
            Effect::Delete => {
                let operation = self.arm.begin_delete(target.resource(), priority).await?;
                if operation.is_none() {
                    self.deleted(target);
                }
                (Value::Null, operation)
            }
        };
        let Some(operation) = operation else {
            return Ok(SendOutcome::Done(reply));
        };
        let wait = Wait {
            poll: operation.first_poll,
            deadline: OPERATION_TIMEOUT,
        };
        Ok(SendOutcome::Accepted {
            reply,
            ticket: BalancerTicket {
                operation,
                target: target.clone(),
                effect: change.effect,
            },
            wait,
        })
    }

    async fn poll(
        &self,
        _: &PartKey,
        ticket: &BalancerTicket,
        priority: Priority,
    ) -> Result<Option<Duration>> {
        let id = ticket.target.id(&self.settings);
        match self.arm.poll(&ticket.operation, priority).await {
            Ok(None) => {
                match ticket.effect {
                    Effect::Delete => self.deleted(&ticket.target),
                    Effect::Create | Effect::Change => {}
                }
                Ok(None)
            }
            Ok(wait) => Ok(wait),
            Err(error) => {
                self.store.changed(&id);
                let is_failure_of_azure =
                    error.kind() == ErrorKind::Unavailable && error.retry() == Retry::Never;
                if is_failure_of_azure {
                    // The operation has ended: the change is planned again.
                    let text = "Azure could not carry out the change";
                    let stale = Error::new(ErrorKind::Conflict, text).with_source(error);
                    return Err(stale.with_retry(Retry::Never));
                }
                Err(error)
            }
        }
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.credentials.run(&self.nodes, cluster, read).await
    }
}
