//! The laws of the plan engine for this model, with documents in memory.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    load_balancer::{ClusterView, Effect, Policy, Protocol, ServiceId, ServiceView, SessionAffinity},
    plan::document::Document,
    testkit::laws::{
        AcceptedChange, Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, concurrent, laws, pick,
        service_id,
    },
};
use serde_json::{Map, Value, json};

use super::{
    annotations as a,
    desired::services_in,
    directory::{BalancerDirectory, ip_of, part_of, private_ip, tags},
    document::{
        ArmChange, FRONTENDS, POOLS, PROBES, RULES, Target, element_named, elements, frontend_of_rule, name,
        reference,
    },
    members::{self, MachineIndex, ObservedMembers},
    model::{Model, ObservedPart, PartInputs, PartKey, PartMember, Subnet},
    names::ServiceNames,
    private_link::{ObservedLink, owner_of},
    settings::BalancerSettings,
};
use crate::{
    client::field,
    config::{CloudConf, LabelSelector, MultipleLoadBalancer},
    instances::machine_id::MachineId,
    tags::ResourceTags,
};

const SECURITY_RULES: &str = "securityRules";
const POOLS_OF_INTERFACE: &str = "loadBalancerBackendAddressPools";
/// The machines of nodes, and one of another cluster.
const MACHINES: usize = 8;

fn model_of(conf: CloudConf) -> Model {
    let settings = BalancerSettings {
        subscription: "s".to_owned(),
        network_subscription: "s".to_owned(),
        group: "g".to_owned(),
        balancer_group: "g".to_owned(),
        security_group_group: "g".to_owned(),
        network_group: "g".to_owned(),
        link_group: "g".to_owned(),
        location: "here".to_owned(),
        tags: ResourceTags::default(),
        is_azure_stack: false,
        conf: CloudConf {
            security_group_name: "nsg".to_owned(),
            vnet_name: "vnet".to_owned(),
            subnet_name: "nodes".to_owned(),
            ..conf
        },
    };
    Model {
        settings: Arc::new(settings),
    }
}

pub(crate) fn model() -> Model {
    model_of(CloudConf::default())
}

/// The label of Services of the second load balancer.
const TIER: &str = "tier";

/// The model of a cluster with two load balancers of each kind, of which labels choose one.
fn model_of_several() -> Model {
    let balancer = |name: &str, machine: usize| MultipleLoadBalancer {
        name: name.to_owned(),
        primary_vm_set: format!("vm-{machine}"),
        ..MultipleLoadBalancer::default()
    };
    let selector = LabelSelector {
        match_labels: BTreeMap::from([(TIER.to_owned(), "two".to_owned())]),
        ..LabelSelector::default()
    };
    model_of(CloudConf {
        backend_pool_type: "nodeIP".to_owned(),
        multiple_load_balancers: vec![
            balancer("kubernetes", 0),
            MultipleLoadBalancer {
                service_label_selector: Some(selector),
                ..balancer("second", 1)
            },
        ],
        ..CloudConf::default()
    })
}

/// The documents in the cloud, by their IDs in lower case.
#[derive(Clone, Debug)]
pub(crate) struct ArmTruth(BTreeMap<String, Value>);

/// Removes members without a value, as Azure does.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

impl ArmTruth {
    fn get(&self, id: &str) -> Option<&Value> {
        self.0.get(&id.to_ascii_lowercase())
    }

    fn put(&mut self, id: &str, mut document: Value) {
        drop_nulls(&mut document);
        self.0.insert(id.to_ascii_lowercase(), document);
    }

    fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |(id, _)| id.contains(kind)).map(|(_, document)| document)
    }

    /// The elements of all documents of a kind in a list, to edit them.
    fn edit(&mut self, kind: &str, list: &str, edit: impl FnOnce(Vec<&mut Vec<Value>>)) {
        let documents = self.0.iter_mut().filter(|(id, _)| id.contains(kind));
        let lists = documents.filter_map(|(_, document)| document["properties"][list].as_array_mut());
        edit(lists.collect());
    }
}

/// A public IP address of the user in the resource group of the cluster, and its IP address.
const MINE: &str = "mine";
const MINE_IP: &str = "20.9.0.1";
/// The same in another resource group.
const OTHER: &str = "other";
const OTHER_IP: &str = "20.9.0.2";
const OTHER_GROUP: &str = "addresses";
/// A private address that Services ask for.
const PRIVATE_IP: &str = "10.240.0.200";

const BALANCERS: &str = "/loadbalancers/";
const ADDRESSES: &str = "/publicipaddresses/";
const LINKS: &str = "/privatelinkservices/";
const GROUPS: &str = "/networksecuritygroups/";
const INTERFACES: &str = "/networkinterfaces/";

fn interface(index: usize) -> Target {
    Target::Interface {
        group: "g".to_owned(),
        name: format!("nic-{index}"),
    }
}

fn machine(index: usize) -> MachineId {
    let id =
        format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/vm-{index}");
    MachineId::parse(&id).unwrap()
}

/// The target of a part that is a document.
fn target(truth: &ArmTruth, key: &PartKey) -> Option<Target> {
    let named = |part: &str| {
        let (group, name) = part.split_once('/').unwrap();
        (group.to_owned(), name.to_owned())
    };
    Some(match key {
        PartKey::Balancer(part) | PartKey::Rules(part) => {
            let (group, name) = named(part);
            Target::Balancer { group, name }
        }
        PartKey::Address(part) => {
            let found = all_addresses(truth).address(part).map(part_of);
            let (group, name) = named(found.as_deref().unwrap_or(part));
            Target::Address { group, name }
        }
        PartKey::SecurityGroup(part) => {
            let (group, name) = named(part);
            Target::SecurityGroup { group, name }
        }
        PartKey::Link(part) => {
            let (group, name) = named(part);
            Target::LinkService { group, name }
        }
        PartKey::Members(_) => return None,
    })
}

/// The load balancers and private link services, and the public IP addresses of all resource groups.
fn all_addresses(truth: &ArmTruth) -> BalancerDirectory {
    let all = |kind: &str| truth.of(kind).map(|document| Arc::new(document.clone())).collect();
    BalancerDirectory {
        balancers: all(BALANCERS),
        addresses: all(ADDRESSES),
        links: all(LINKS),
        namespaces: Arc::default(),
    }
}

/// The pools of an interface.
fn pools_of(interface: &Value) -> Vec<Value> {
    let pools = &interface["properties"]["ipConfigurations"][0]["properties"][POOLS_OF_INTERFACE];
    pools.as_array().cloned().unwrap_or_default()
}

/// The Service of an element by its name.
fn service_of(name: &str) -> Option<ServiceId> {
    let owns = |id: &ServiceId| ServiceNames::new(id, None, false).owns(name);
    (0..SERVICES).map(service_id).find(owns)
}

/// The address of a public IP address of a Service, which follows from its name.
fn address_of(name: &str) -> String {
    let service = (0..SERVICES).find(|index| name.contains(&format!("au{index}")));
    format!("20.0.0.{}", 10 + service.unwrap_or(90))
}

/// What the picture has in place of the names of frontends and of private addresses, which a Service keeps although it does not ask for
/// them any more.
const PRIVATE: &str = "private";

/// What the picture has in place of the name of a frontend, which Services share.
fn place_of(frontend: &Value) -> &str {
    let public = reference(frontend, "publicIPAddress").and_then(|id| id.rsplit('/').next());
    public.unwrap_or(PRIVATE)
}

/// The Services with rules at a frontend; the one with its name if there is none.
fn users_of(balancer: &Value, frontend: &Value) -> Owner {
    let at = |rule: &&Value| frontend_of_rule(rule) == Some(name(frontend));
    let users: BTreeSet<String> = elements(balancer, RULES)
        .filter(at)
        .filter_map(|rule| Some(service_of(name(rule))?.uid.to_string()))
        .collect();
    if users.is_empty() {
        return service_of(name(frontend)).map_or(Owner::Foreign, |id| Owner::service(id.uid.to_string()));
    }
    Owner::Services(users.into_iter().collect())
}

/// The Services with rules for ports of a security rule at a frontend with this IP address. If there are none, the destination is left
/// over.
fn users_at(truth: &ArmTruth, ip: &str, security_rule: &Value) -> BTreeSet<String> {
    let fields = &security_rule["properties"];
    let has_port = |rule: &Value| {
        let port = rule["properties"]["frontendPort"].to_string();
        let mut ports = fields["destinationPortRanges"].as_array().into_iter().flatten();
        let is_protocol = fields["protocol"] == "*" || fields["protocol"] == rule["properties"]["protocol"];
        fields["destinationPortRange"] == "*" || (is_protocol && ports.any(|other| *other == port.as_str()))
    };
    let ip_at = |frontend: &Value| {
        let public = reference(frontend, "publicIPAddress").and_then(|id| truth.get(id)).and_then(ip_of);
        public.or(private_ip(frontend)).map(|ip| ip.to_string())
    };
    let mut users = BTreeSet::new();
    for balancer in truth.of(BALANCERS) {
        for rule in elements(balancer, RULES).filter(|rule| has_port(rule)) {
            let frontend =
                frontend_of_rule(rule).and_then(|frontend| element_named(balancer, FRONTENDS, frontend));
            if frontend.and_then(ip_at).as_deref() == Some(ip) {
                users.extend(service_of(name(rule)).map(|id| id.uid.to_string()));
            }
        }
    }
    users
}

/// The lists of a load balancer that a part writes.
fn lists(key: &PartKey) -> &'static [&'static str] {
    match key {
        PartKey::Rules(_) => &[FRONTENDS, RULES, PROBES],
        _ => &[POOLS],
    }
}

/// Adds what Azure adds to a load balancer: the IDs of pools, and the private addresses of frontends.
fn complete(document: &mut Value) {
    let id = document["id"].as_str().unwrap_or_default().to_owned();
    for pool in document["properties"][POOLS].as_array_mut().into_iter().flatten() {
        pool["id"] = format!("{id}/{POOLS}/{}", name(pool)).into();
    }
    for frontend in document["properties"][FRONTENDS].as_array_mut().into_iter().flatten() {
        let service = service_of(name(frontend)).map(|id| id.uid.trim_start_matches('u').to_owned());
        let properties = &mut frontend["properties"];
        if properties.get("subnet").is_some() && properties.get("privateIPAddress").is_none() {
            properties["privateIPAddress"] =
                format!("10.240.0.{}", 50 + service.unwrap().parse::<u8>().unwrap()).into();
        }
    }
}

impl Lawful for Model {
    type Truth = ArmTruth;

    /// A network security group with a rule of another client, one of another cluster, and interfaces.
    fn ground(&self) -> ArmTruth {
        let mut truth = ArmTruth(BTreeMap::new());
        let allow = json!({
            "access": "Allow", "direction": "Inbound", "protocol": "Tcp", "sourcePortRange": "*", "sourceAddressPrefix": "Internet",
            "destinationPortRanges": ["80"], "destinationAddressPrefix": "20.9.9.9", "priority": 500,
        });
        let rules = json!([
            {"name": "ssh", "properties": {"direction": "Inbound", "priority": 200, "destinationAddressPrefix": "*"}},
            {"name": "k8s-azure-lb_allow_IPv4_d39272f7f57ed937951650d93992ad77", "properties": allow},
        ]);
        let group = json!({"name": "nsg", "etag": "0", "properties": {"provisioningState": "Succeeded", SECURITY_RULES: rules}});
        truth.put(&self.settings.network_id("g", "networkSecurityGroups", "nsg"), group);
        for index in 0..MACHINES {
            let target = interface(index);
            let id = target.id(&self.settings);
            let configuration = json!({"name": "ip", "properties": {"primary": true}});
            let document = json!({
                "id": id, "name": format!("nic-{index}"),
                "properties": {"provisioningState": "Succeeded", "ipConfigurations": [configuration]},
            });
            truth.put(&id, document);
        }
        for (group, name, ip) in [("g", MINE, MINE_IP), (OTHER_GROUP, OTHER, OTHER_IP)] {
            let id = self.settings.network_id(group, "publicIPAddresses", name);
            let address = json!({
                "id": id, "name": name, "etag": "0", "tags": {"owner": "user"},
                "properties": {"provisioningState": "Succeeded", "ipAddress": ip, "publicIPAddressVersion": "IPv4"},
            });
            truth.put(&id, address);
        }
        truth
    }

    fn clusters(&self) -> Clusters {
        let internal = || Setting::annotation(a::INTERNAL, "true");
        let local = Setting::field(|service| {
            (service.external_policy, service.health_check_node_port) = (Policy::Local, 32000);
        });
        let affinity = Setting::field(|service| {
            service.session_affinity = SessionAffinity::ClientIp {
                timeout_seconds: None,
            };
        });
        let several = || {
            let second = Setting::field(|service| service.labels = [(TIER, "two")].into_iter().collect());
            vec![
                vec![second.shows("lb second")],
                vec![
                    // Refused without the label, and the other one with it.
                    Setting::annotation(a::CONFIGURATIONS, "second"),
                    Setting::annotation(a::CONFIGURATIONS, "kubernetes").invisible(),
                ],
                vec![internal()],
            ]
        };
        Clusters {
            names: vec!["kubernetes"],
            ports: vec![(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Udp, 53)],
            settings: if self.settings.several().is_empty() {
                vec![
                    vec![
                        internal(),
                        internal().and(a::INTERNAL_SUBNET, "apps"),
                        internal().and(a::LINK_CREATE, "true"),
                        internal().and(a::ADDRESS_V4, PRIVATE_IP),
                        Setting::annotation(a::ADDRESS_NAME, MINE).shows(MINE),
                        Setting::annotation(a::ADDRESS_V4, MINE_IP).shows(MINE),
                        Setting::annotation(a::ADDRESS_V4, OTHER_IP)
                            .and(a::ADDRESS_GROUP, OTHER_GROUP)
                            .shows(OTHER),
                        // The address of another Service.
                        Setting::annotation(a::ADDRESS_NAME, "kubernetes-au0").invisible(),
                    ],
                    // No additional addresses: nothing proves whose they are, so that one that its Service no longer names stays in the
                    // security rules while another Service is frozen.
                    vec![local],
                    vec![affinity],
                    vec![
                        Setting::annotation(a::IDLE_TIMEOUT, "30"),
                        Setting::annotation(a::IDLE_TIMEOUT, "101"),
                    ],
                    vec![Setting::annotation(a::ALLOWED_RANGES, "10.0.0.0/8").and(a::DENY_OTHERS, "true")],
                ]
            } else {
                several()
            },
            provider_id: |index| {
                format!(
                    "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/vm-{index}"
                )
            },
        }
    }

    fn edits(&self) -> Vec<Edit<ArmTruth>> {
        let ours = |list: &Vec<Value>| {
            (0..list.len()).filter(|at| service_of(name(&list[*at])).is_some()).collect::<Vec<_>>()
        };
        let element =
            move |truth: &mut ArmTruth, list: &str, number: usize, edit: &dyn Fn(&mut Vec<Value>, usize)| {
                truth.edit(BALANCERS, list, |lists| {
                    if let Some(list) = pick(lists, number)
                        && let Some(at) = pick(ours(list), number / 2)
                    {
                        edit(list, at);
                    }
                });
            };
        vec![
            Edit::new("remove rule", move |truth: &mut ArmTruth, number| {
                element(truth, RULES, number, &|list, at| drop(list.remove(at)));
            }),
            Edit::new("change rule", move |truth: &mut ArmTruth, number| {
                element(truth, RULES, number, &|list, at| list[at]["properties"]["backendPort"] = json!(1));
            }),
            Edit::new("change probe", move |truth: &mut ArmTruth, number| {
                element(truth, PROBES, number, &|list, at| list[at]["properties"]["port"] = json!(1));
            }),
            Edit::new("admit all", |truth: &mut ArmTruth, number| {
                truth.edit(GROUPS, SECURITY_RULES, |lists| {
                    let ours = lists
                        .into_iter()
                        .flatten()
                        .filter(|rule| name(rule).starts_with("k8s-azure-lb_allow"));
                    let ours = ours.filter(|rule| !rule.to_string().contains("20.9.9.9"));
                    if let Some(rule) = pick(ours, number) {
                        rule["properties"]["sourceAddressPrefix"] = json!("*");
                    }
                });
            }),
            Edit::new("remove security rule", |truth: &mut ArmTruth, number| {
                truth.edit(GROUPS, SECURITY_RULES, |lists| {
                    for list in lists {
                        let ours = (0..list.len()).filter(|at| {
                            let rule = &list[*at];
                            name(rule).starts_with("k8s-azure-lb") && !rule.to_string().contains("20.9.9.9")
                        });
                        if let Some(at) = pick(ours.collect::<Vec<_>>(), number) {
                            list.remove(at);
                        }
                    }
                });
            }),
            Edit::new("address leaves a pool", |truth: &mut ArmTruth, number| {
                truth.edit(BALANCERS, POOLS, |lists| {
                    if let Some(pool) = pick(lists, number).and_then(|list| list.first_mut()) {
                        pool["properties"][members::ADDRESSES] = json!([]);
                    }
                });
            }),
            Edit::new("machine leaves", |truth: &mut ArmTruth, number| {
                truth.edit(INTERFACES, "ipConfigurations", |lists| {
                    if let Some(list) = pick(lists, number) {
                        list[0]["properties"][POOLS_OF_INTERFACE] = json!([]);
                    }
                });
            }),
        ]
    }

    fn view(&self, truth: &ArmTruth, key: &PartKey, _: &[PartMember], _: &ClusterView) -> ObservedPart {
        if let Some(target) = target(truth, key) {
            let document = truth.get(&target.id(&self.settings)).map(Document::planned);
            if let PartKey::Link(_) = key {
                return ObservedPart::Link(ObservedLink {
                    service: document,
                    subnets: BTreeMap::new(),
                });
            }
            return ObservedPart::Document(document);
        }
        let PartKey::Members(part) = key else {
            unreachable!()
        };
        if !self.settings.several().is_empty() {
            return ObservedPart::Members(ObservedMembers {
                balancer: None,
                holders: pools_in(truth),
            });
        }
        let holders = (0..MACHINES).map(|index| {
            let target = interface(index);
            let document = truth.get(&target.id(&self.settings)).unwrap();
            (target, Arc::new(document.clone()))
        });
        let balancer = truth.get(&self.settings.balancer_id(part));
        let balancer = balancer.map(|balancer| Arc::new(balancer.clone()));
        ObservedPart::Members(ObservedMembers {
            holders: holders.collect(),
            balancer,
        })
    }

    fn store(&self, truth: &mut ArmTruth, key: &PartKey, after: ObservedPart) {
        match after {
            ObservedPart::Members(members) => {
                let PartKey::Members(part) = key else {
                    unreachable!()
                };
                if !self.settings.several().is_empty() {
                    for (target, pool) in members.holders {
                        store_pool(truth, &target, &pool);
                    }
                    return;
                }
                let balancer = format!("{}/", self.settings.balancer_id(part).to_ascii_lowercase());
                let is_own =
                    |pool: &Value| pool["id"].as_str().unwrap().to_ascii_lowercase().starts_with(&balancer);
                for (target, document) in members.holders {
                    let id = target.id(&self.settings);
                    // The part of the other load balancer may have written it meanwhile.
                    let others = pools_of(truth.get(&id).unwrap()).into_iter().filter(|pool| !is_own(pool));
                    let pools: Vec<Value> =
                        others.chain(pools_of(&document).into_iter().filter(is_own)).collect();
                    let mut document = Value::clone(&document);
                    document["properties"]["ipConfigurations"][0]["properties"][POOLS_OF_INTERFACE] =
                        pools.into();
                    truth.put(&id, document);
                }
            }
            ObservedPart::Document(document)
            | ObservedPart::Link(ObservedLink {
                service: document, ..
            }) => {
                let id = target(truth, key).unwrap().id(&self.settings);
                let Some(document) = document else {
                    truth.0.remove(&id.to_ascii_lowercase());
                    if matches!(key, PartKey::Balancer(_)) {
                        detach(truth, &id);
                    }
                    return;
                };
                let mut document = document.fields().clone();
                let before = truth.get(&id);
                if let (PartKey::Balancer(_) | PartKey::Rules(_), Some(before)) = (key, before) {
                    // The other part may have written the document meanwhile.
                    let mut merged = before.clone();
                    for list in lists(key) {
                        merged["properties"][list] = document["properties"][list].clone();
                    }
                    // Members of pools belong to another part.
                    for pool in merged["properties"][POOLS].as_array_mut().into_iter().flatten() {
                        let existing = element_named(before, POOLS, name(pool));
                        if let Some(existing) = existing.cloned() {
                            *pool = existing;
                        }
                    }
                    merged[field::ETAG] = document[field::ETAG].clone();
                    document = merged;
                }
                document["properties"]["provisioningState"] = "Succeeded".into();
                complete(&mut document);
                truth.put(&id, document);
            }
        }
    }

    /// Addresses in other resource groups are not listed for all Services.
    fn directory(&self, truth: &ArmTruth) -> BalancerDirectory {
        let mut directory = all_addresses(truth);
        directory.addresses.retain(|address| part_of(address).starts_with("g/"));
        directory
    }

    fn inputs(&self, truth: &ArmTruth, _: &PartKey, _: &[PartMember], _: &ClusterView) -> PartInputs {
        let subnet = |network: &str| Subnet {
            prefixes: vec![network.parse().unwrap()],
        };
        let index = MachineIndex {
            interfaces: (0..MACHINES).map(|index| (machine(index), interface(index))).collect(),
            ..MachineIndex::default()
        };
        PartInputs {
            directory: Arc::new(all_addresses(truth)),
            zones: vec!["1".to_owned()],
            subnets: BTreeMap::from([
                ("nodes".to_owned(), subnet("10.240.0.0/16")),
                ("apps".to_owned(), subnet("10.241.0.0/16")),
            ]),
            machines: Arc::new(index),
            members: ObservedMembers::default(),
        }
    }

    fn reply(&self, change: &ArmChange, _: &ObservedPart, ids: &Ids) -> Value {
        if change.effect == Effect::Delete {
            return Value::Null;
        }
        let mut document = change.body.clone();
        document["id"] = change.target.id(&self.settings).into();
        if let Target::Balancer { name, .. }
        | Target::Address { name, .. }
        | Target::LinkService { name, .. } = &change.target
        {
            document["name"] = name.as_str().into();
        }
        // Azure gives private link services none.
        let is_link = matches!(change.target, Target::LinkService { .. });
        if change.effect == Effect::Create && !is_link {
            document["properties"]["resourceGuid"] = ids.id("guid", "").into();
        }
        if let Target::Address { name, .. } = &change.target {
            document["properties"]["ipAddress"] = address_of(name).into();
        }
        document["properties"]["provisioningState"] = "Succeeded".into();
        // Two parts write interfaces and load balancers with their pools, and here is no answer 412 that lets one of them read again.
        if !matches!(change.target, Target::Interface { .. } | Target::Pool { .. }) {
            document[field::ETAG] = ids.id("etag", "").into();
        }
        complete(&mut document);
        document
    }

    fn accepted_change(&self) -> AcceptedChange {
        AcceptedChange::OccupiesObjects
    }

    fn undo_create(&self, truth: &mut ArmTruth, _: &PartKey, change: &ArmChange) {
        truth.0.remove(&change.target.id(&self.settings).to_ascii_lowercase());
    }

    fn concerns(&self, change: &ArmChange, service: &ServiceView) -> bool {
        let names = ServiceNames::new(&service.id, None, false);
        elements(&change.body, RULES).any(|rule| names.owns(name(rule)))
    }

    fn picture(&self, truth: &ArmTruth) -> Vec<Line> {
        let mut picture = Vec::new();
        let owner = |name: &str| match service_of(name) {
            Some(id) => Owner::service(id.uid.to_string()),
            None => Owner::Foreign,
        };
        let using = |balancer: &Value| {
            let owners = elements(balancer, RULES).filter_map(|rule| service_of(name(rule)));
            owners.map(|id| id.uid.to_string()).collect::<BTreeSet<_>>()
        };
        for address in truth.of(ADDRESSES) {
            let Some((_, base)) = name(address).split_once('-') else {
                let line = format!("pip {} {} {}", name(address), address["tags"], address["properties"]);
                picture.push(Line::exact(line, &Owner::Foreign));
                continue;
            };
            let tags = tags(address);
            let users = services_in(&tags)
                .filter_map(|listed| (0..SERVICES).map(service_id).find(|id| id.to_string() == listed));
            let users: Vec<String> = users.map(|id| id.uid.to_string()).collect();
            for user in &users {
                let line = format!("pip {} used by {user}", name(address));
                picture.push(Line::exact(line, &Owner::service(user.as_str())));
            }
            let owner = if users.is_empty() {
                owner(base)
            } else {
                Owner::Services(users)
            };
            picture.push(Line::exact(format!("pip {}", name(address)), &owner));
        }
        for link in truth.of(LINKS) {
            let service = (0..SERVICES).map(service_id).find(|id| id.to_string() == owner_of(link));
            let owner = service.map_or(Owner::Foreign, |id| Owner::service(id.uid.to_string()));
            picture.push(Line::exact(format!("pls {} {}", name(link), link["properties"]), &owner));
        }
        for balancer in truth.of(BALANCERS) {
            let owners = Owner::Services(using(balancer).into_iter().collect());
            picture.push(Line::at_least(format!("lb {}", name(balancer)), &owners));
            for frontend in elements(balancer, FRONTENDS) {
                let mut properties: Map<String, Value> = frontend["properties"].as_object().unwrap().clone();
                // An existing frontend keeps them, and a new one gets those of before.
                for kept in [
                    "privateIPAddress",
                    "privateIPAllocationMethod",
                    "privateIPAddressVersion",
                ] {
                    properties.remove(kept);
                }
                let properties = Value::Object(properties);
                let line = format!("lb {} frontend at {} {properties}", name(balancer), place_of(frontend));
                picture.push(Line::exact(line, &users_of(balancer, frontend)));
            }
            for rule in elements(balancer, RULES) {
                let mut properties = rule["properties"].clone();
                let frontend =
                    frontend_of_rule(rule).and_then(|frontend| element_named(balancer, FRONTENDS, frontend));
                properties["frontendIPConfiguration"] = frontend.map(place_of).into();
                let line = format!("lb {} rule {} {properties}", name(balancer), name(rule));
                picture.push(Line::exact(line, &owner(name(rule))));
            }
            for probe in elements(balancer, PROBES) {
                let line = format!("lb {} probe {} {}", name(balancer), name(probe), probe["properties"]);
                picture.push(Line::exact(line, &owner(name(probe))));
            }
            for pool in elements(balancer, POOLS) {
                let addresses = pool["properties"][members::ADDRESSES].as_array();
                for address in addresses.into_iter().flatten() {
                    // Which load balancer has a node follows from all of them.
                    let line = format!("lb {} pool {} has {address}", name(balancer), name(pool));
                    picture.push(Line::exact(line, &Owner::Cluster));
                }
            }
            let id = balancer["id"].as_str().unwrap().to_ascii_lowercase();
            for interface in truth.of(INTERFACES) {
                if interface.to_string().to_ascii_lowercase().contains(&format!("{id}/")) {
                    let text = format!("member {} of {}", name(interface), name(balancer));
                    picture.push(Line::at_least(text, &owners));
                }
            }
        }
        for rule in truth.of(GROUPS).flat_map(|group| elements(group, SECURITY_RULES)) {
            let fields = &rule["properties"];
            let several = fields["destinationAddressPrefixes"].as_array().cloned().unwrap_or_default();
            for destination in several.iter().chain(fields.get("destinationAddressPrefix")) {
                let text = destination.as_str().unwrap();
                let is_foreign = text == "20.9.9.9" || text == "*";
                let mut users = users_at(truth, text, rule);
                if users.is_empty() {
                    // The status of a Service, which laws do not have, says which address of the user it had. Otherwise the next process
                    // does not know it if one ends between the changes of load balancer and security group.
                    if [MINE_IP, OTHER_IP].contains(&text) {
                        continue;
                    }
                    users.extend((0..SERVICES).map(|index| service_id(index).uid.to_string()));
                }
                let owner = Owner::Services(users.into_iter().collect()).foreign_if(is_foreign);
                let sources =
                    format!("{} {}", fields["sourceAddressPrefix"], fields["sourceAddressPrefixes"]);
                let place = if text.starts_with("10.24") { PRIVATE } else { text };
                let line = format!("nsg {} {sources} {place}", name(rule));
                // Of the Services at one address, any may ask for it.
                picture.push(if fields["access"] == "Deny" {
                    Line::at_least(line, &owner)
                } else {
                    Line::exact(line, &owner)
                });
            }
        }
        picture
    }

    fn owner(&self, service: &ServiceId, _: &str) -> String {
        service.uid.to_string()
    }

    fn destroys(&self, change: &ArmChange, _: &ObservedPart, service: &ServiceView) -> bool {
        let Target::Address { name, .. } = &change.target else {
            return false;
        };
        let names = ServiceNames::new(&service.id, None, false);
        let is_own = name.split_once('-').is_some_and(|(_, base)| names.owns(base));
        let uses = match service.annotation(a::ADDRESS_NAME) {
            Some(chosen) => chosen == name,
            None => is_own && service.annotation(a::ADDRESS_V4).is_none(),
        };
        change.effect == Effect::Delete && uses && !a::is_true(service, a::INTERNAL)
    }
}

/// The pools of all load balancers.
fn pools_in(truth: &ArmTruth) -> BTreeMap<Target, Arc<Value>> {
    let mut pools = BTreeMap::new();
    for balancer in truth.of(BALANCERS) {
        for pool in elements(balancer, POOLS) {
            let target = Target::Pool {
                group: "g".to_owned(),
                balancer: name(balancer).to_owned(),
                name: name(pool).to_owned(),
            };
            pools.insert(target, Arc::new(pool.clone()));
        }
    }
    pools
}

/// Stores a pool, if its load balancer still exists.
fn store_pool(truth: &mut ArmTruth, target: &Target, pool: &Value) {
    truth.edit(BALANCERS, POOLS, |lists| {
        let pools = lists.into_iter().flatten();
        for existing in pools.filter(|existing| {
            let id = existing["id"].as_str().unwrap();
            matches!(target, Target::Pool { balancer, name: pool, .. }
                if id.ends_with(&format!("/{balancer}/{POOLS}/{pool}")))
        }) {
            let addresses = pool["properties"][members::ADDRESSES].clone();
            existing["properties"][members::ADDRESSES] = addresses;
        }
    });
}

/// Removes the pools of a load balancer from interfaces.
fn detach(truth: &mut ArmTruth, balancer: &str) {
    let prefix = format!("{}/", balancer.to_ascii_lowercase());
    truth.edit(INTERFACES, "ipConfigurations", |lists| {
        for configuration in lists.into_iter().flatten() {
            let pools = configuration["properties"][POOLS_OF_INTERFACE].as_array_mut();
            let Some(pools) = pools else { continue };
            pools.retain(|pool| !pool["id"].as_str().unwrap().to_ascii_lowercase().starts_with(&prefix));
        }
    });
}

#[test]
fn load_balancers_keep_the_laws() {
    laws(&model(), 12);
}

#[test]
fn load_balancers_keep_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&model(), 100);
}

#[test]
fn several_load_balancers_keep_the_laws() {
    laws(&model_of_several(), 12);
}

#[test]
fn several_load_balancers_keep_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&model_of_several(), 100);
}
