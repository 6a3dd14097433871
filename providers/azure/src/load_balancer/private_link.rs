//! Private link services: clients in other virtual networks reach a frontend through one.
//!
//! The part of a private link service does this, in order:
//!
//! 1. Its subnet must permit private link services: their network policies are disabled.
//! 2. The service is created, or updated to what its owner asks for. Services with one frontend share it: the tag of the owner names the
//!    one whose annotations count.
//! 3. When the last Service leaves, the connections of private endpoints are deleted, and then the service. The part of the rules removes
//!    the frontend after that, since Azure keeps a frontend that a private link service uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use ccm_core::{
    load_balancer::{Effect, InvalidField, IpFamily, OwnershipTag, ServiceId, ServiceView},
    plan::{
        Plan, Step,
        document::{Document, Rules},
    },
};
use serde_json::{Map, Value, json};

use super::{
    annotations::{self as a, is_true},
    desired::{CLUSTER_TAG, Need, OWNED, Place},
    directory::{frontend_ids_of_link, ownership, tags},
    document::{
        ArmChange, CONNECTIONS, LINK_ADDRESSES, LINK_FRONTENDS, Target, elements, fold, has_failed, name,
    },
    names::{self, ServiceNames},
    settings::BalancerSettings,
};
use crate::client::field;

/// The tag of a private link service with the Service whose annotations count.
pub(crate) const OWNER_TAG: &str = "k8s-azure-owner-service";
/// The property of a subnet.
const POLICIES: &str = "privateLinkServiceNetworkPolicies";
const DISABLED: &str = "Disabled";
/// The most addresses of a private link service.
const MOST_ADDRESSES: usize = 8;
/// The longest name of an address.
const LONGEST_NAME: usize = 80;
/// All subscriptions.
const EVERYONE: &str = "*";
/// The annotations that only the owner of a private link service may have.
const SETTINGS: [&str; 8] = [
    a::LINK_NAME,
    a::LINK_SUBNET,
    a::LINK_ADDRESS_COUNT,
    a::LINK_ADDRESSES,
    a::LINK_FQDNS,
    a::LINK_PROXY_PROTOCOL,
    a::LINK_VISIBILITY,
    a::LINK_AUTO_APPROVAL,
];

/// Whether a Service asks for a private link service.
pub(crate) fn is_asked_for(service: &ServiceView) -> bool {
    is_true(service, a::LINK_CREATE)
}

/// Whether connections begin with a header of the proxy protocol, which health checks of kube-proxy do not understand.
pub(crate) fn has_proxy_protocol(service: &ServiceView) -> bool {
    is_asked_for(service) && is_true(service, a::LINK_PROXY_PROTOCOL)
}

/// What a Service asks for of its private link service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkSpec {
    /// The resource group, in lower case.
    pub(crate) group: String,
    /// The name that an annotation chooses.
    pub(crate) chosen_name: Option<String>,
    /// The name that follows from the frontend.
    default_name: String,
    /// The name of the subnet of its addresses.
    pub(crate) subnet: String,
    /// The addresses that are chosen. The first one is the primary.
    pub(crate) addresses: Vec<Ipv4Addr>,
    /// The number of all addresses.
    count: usize,
    fqdns: Vec<String>,
    has_proxy_protocol: bool,
    /// The subscriptions that see it.
    visibility: Vec<String>,
    /// The subscriptions whose connections need no approval.
    auto_approval: Vec<String>,
    /// Whether annotations choose more than that there is one: then it cannot be that of another Service.
    pub(crate) has_settings: bool,
}

impl LinkSpec {
    /// Reads the annotations, and says what is wrong with them.
    pub(crate) fn of(
        service: &ServiceView,
        names: &ServiceNames,
        settings: &BalancerSettings,
    ) -> (Self, Vec<InvalidField>) {
        let mut invalid = Vec::new();
        let group = resource_name(service, a::LINK_GROUP, &mut invalid);
        let internal_subnet = service.annotation_text(a::INTERNAL_SUBNET).map(str::trim).unwrap_or_default();
        let default_subnet = if internal_subnet.is_empty() {
            settings.conf.subnet_name.as_str()
        } else {
            internal_subnet
        };
        let subnet = resource_name(service, a::LINK_SUBNET, &mut invalid);
        let subnet = subnet.unwrap_or_else(|| default_subnet.to_owned());
        if settings.conf.vnet_name.trim().is_empty() || subnet.is_empty() {
            let problem = format!(
                "a private link service needs vnetName in the cloud config, and {} or subnetName there",
                a::LINK_SUBNET
            );
            invalid.push(InvalidField::annotation(a::LINK_CREATE, problem));
        }
        let (addresses, count) = addresses(service, &mut invalid);
        let mut visibility = words(service, a::LINK_VISIBILITY);
        if visibility.iter().any(|subscription| subscription == EVERYONE) {
            visibility = vec![EVERYONE.to_owned()];
        }
        let spec = Self {
            group: group.map_or_else(|| settings.link_group.clone(), |group| group.to_ascii_lowercase()),
            chosen_name: resource_name(service, a::LINK_NAME, &mut invalid),
            default_name: names::private_link(&names.frontend(IpFamily::V4)),
            subnet,
            addresses,
            count,
            fqdns: words(service, a::LINK_FQDNS),
            has_proxy_protocol: is_true(service, a::LINK_PROXY_PROTOCOL),
            visibility,
            auto_approval: words(service, a::LINK_AUTO_APPROVAL),
            has_settings: SETTINGS.into_iter().any(|key| service.annotation_text(key).is_some()),
        };
        (spec, invalid)
    }

    /// The key of the part of a new one: group and name.
    pub(crate) fn part(&self) -> String {
        format!("{}/{}", self.group, self.chosen_name.as_deref().unwrap_or(&self.default_name))
    }
}

/// Why a Service cannot have a private link service at its frontend.
pub(crate) fn frontend_problems(
    service: &ServiceView,
    families: &[IpFamily],
    is_internal: bool,
) -> Vec<InvalidField> {
    let mut invalid = Vec::new();
    if !families.contains(&IpFamily::V4) {
        let problem = "a private link service needs IPv4, which the Service does not have";
        invalid.push(InvalidField::annotation(a::LINK_CREATE, problem));
    }
    if !is_internal && !is_true(service, a::NO_FLOATING_IP) {
        let problem = format!(
            "a private link service of an external load balancer needs {}: \"true\"",
            a::NO_FLOATING_IP
        );
        invalid.push(InvalidField::annotation(a::LINK_CREATE, problem));
    }
    invalid
}

/// The words of an annotation, each once.
fn words(service: &ServiceView, key: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in service.annotation_text(key).unwrap_or_default().split_whitespace() {
        if !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    }
    words
}

/// The name of a resource in an annotation. Azure permits no others, and they stand in the paths of requests.
fn resource_name(service: &ServiceView, key: &str, invalid: &mut Vec<InvalidField>) -> Option<String> {
    let name = service.annotation_text(key).map(str::trim).filter(|name| !name.is_empty())?;
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.()".contains(letter);
    if name.len() > LONGEST_NAME || name.starts_with('.') || !name.chars().all(is_allowed) {
        invalid.push(InvalidField::annotation(key, format!("{name:?} is not a name of a resource")));
        return None;
    }
    Some(name.to_owned())
}

/// The addresses that are chosen, and the number of all addresses.
fn addresses(service: &ServiceView, invalid: &mut Vec<InvalidField>) -> (Vec<Ipv4Addr>, usize) {
    let mut addresses = Vec::new();
    for word in words(service, a::LINK_ADDRESSES) {
        match word.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => {
                let problem = format!("{word:?} is not an IPv4 address");
                invalid.push(InvalidField::annotation(a::LINK_ADDRESSES, problem));
            }
        }
    }
    let text = service.annotation_text(a::LINK_ADDRESS_COUNT).map_or("1", str::trim);
    let Some(count) = text.parse().ok().filter(|count| (1..=MOST_ADDRESSES).contains(count)) else {
        let problem = format!("{text:?} is not a number from 1 to {MOST_ADDRESSES}");
        invalid.push(InvalidField::annotation(a::LINK_ADDRESS_COUNT, problem));
        return (addresses, 1);
    };
    if addresses.len() > count {
        let problem =
            format!("{} addresses are more than the {count} of {}", addresses.len(), a::LINK_ADDRESS_COUNT);
        invalid.push(InvalidField::annotation(a::LINK_ADDRESSES, problem));
    }
    (addresses, count)
}

/// The Service in the tag of a private link service: `namespace/name`, or empty.
pub(crate) fn owner_of(link: &Value) -> String {
    let tags = tags(link);
    tags.get(OWNER_TAG).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Whether this cluster created a private link service, by its tags.
pub(crate) fn is_of_cluster(link: &Value, cluster: &str, tag: &OwnershipTag) -> bool {
    let tags = tags(link);
    let named = tags.get(CLUSTER_TAG).and_then(Value::as_str).unwrap_or_default();
    named.eq_ignore_ascii_case(cluster) && ownership(link, tag).allows_changes()
}

/// A private link service, and the subnets of those that ask for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedLink {
    /// `None`: it does not exist.
    pub(crate) service: Option<Document>,
    /// Those that exist.
    pub(crate) subnets: BTreeMap<Target, Document>,
}

/// A private link service.
#[derive(Debug)]
pub(crate) struct DesiredLink {
    pub(crate) target: Target,
    pub(crate) users: Vec<LinkUser>,
    /// The name of the cluster, in a tag.
    pub(crate) cluster: String,
    pub(crate) ownership_tag: OwnershipTag,
    pub(crate) place: Place,
}

/// A Service that uses a private link service.
#[derive(Debug)]
pub(crate) struct LinkUser {
    pub(crate) service: ServiceId,
    pub(crate) need: Need,
    /// What it asks for, if it may change the private link service.
    pub(crate) request: Option<LinkRequest>,
    /// The IDs of its frontends, in lower case.
    pub(crate) frontends: BTreeSet<String>,
}

/// What a Service asks for, and where.
#[derive(Debug)]
pub(crate) struct LinkRequest {
    pub(crate) spec: LinkSpec,
    /// The ID of the frontend.
    pub(crate) frontend: String,
    pub(crate) subnet: Target,
    /// The ID of the subnet.
    pub(crate) subnet_id: String,
}

impl DesiredLink {
    pub(crate) fn plan(&self, observed: &ObservedLink) -> Plan<ArmChange> {
        let mut plan = Plan::default();
        let Some(link) = &observed.service else {
            let mut requests = self.users.iter().filter_map(|user| Some((user, user.request.as_ref()?)));
            if let Some((user, request)) = requests.next() {
                plan.steps.extend(Self::permit(request, observed));
                plan.steps.push(self.create(user, request));
            }
            return plan;
        };
        if !is_of_cluster(link.fields(), &self.cluster, &self.ownership_tag) {
            return plan;
        }
        if let Some(owner) = self.owner(link.fields()) {
            if let Some(request) = &owner.request
                && let Some(update) = self.update(owner, request, link)
            {
                plan.steps.extend(Self::permit(request, observed));
                plan.steps.push(update);
            }
        } else if self.is_unused(link.fields()) {
            plan.steps = self.delete(link.fields());
        }
        plan
    }

    /// The Service whose settings count: the one in the tag, or the first one if that leaves or does not exist.
    fn owner(&self, link: &Value) -> Option<&LinkUser> {
        let tag = owner_of(link);
        let tagged = self.users.iter().find(|user| user.service.to_string() == tag);
        match tagged {
            Some(owner) if owner.need != Need::None => Some(owner),
            _ => self.users.iter().find(|user| user.need == Need::Full),
        }
    }

    /// Whether the last of the Services that use it leaves.
    fn is_unused(&self, link: &Value) -> bool {
        let tag = owner_of(link);
        let frontends = frontend_ids_of_link(link);
        let is_left = self
            .users
            .iter()
            .any(|user| user.service.to_string() == tag || !user.frontends.is_disjoint(&frontends));
        is_left && self.users.iter().all(|user| user.need == Need::None)
    }

    /// The step after which the subnet permits private link services, unless it does.
    fn permit(request: &LinkRequest, observed: &ObservedLink) -> Option<Step<ArmChange>> {
        let subnet = observed.subnets.get(&request.subnet)?;
        let desired = json!({field::PROPERTIES: {POLICIES: DISABLED}});
        let edit = subnet_rules().edit(subnet, &desired)?;
        let change = ArmChange {
            target: request.subnet.clone(),
            effect: Effect::Change,
            body: edit.document,
        };
        Some(Step::new(change).because(edit.changes.join(", ")))
    }

    fn create(&self, user: &LinkUser, request: &LinkRequest) -> Step<ArmChange> {
        let mut tags = self.own_tags(user);
        if let Some(tag) = self.ownership_tag.for_create() {
            tags.insert(tag.as_str().to_owned(), OWNED.into());
        }
        let mut body = self.place.located(tags);
        body[field::PROPERTIES] = self.properties(request);
        let change = ArmChange {
            target: self.target.clone(),
            effect: Effect::Create,
            body,
        };
        Step::new(change).for_service(Some(&user.service))
    }

    /// The step that writes what differs; also if the last change failed, which may have left it half done.
    fn update(&self, user: &LinkUser, request: &LinkRequest, link: &Document) -> Option<Step<ArmChange>> {
        let mut desired = json!({field::PROPERTIES: self.properties(request)});
        if let Some(tags) = self.changed_tags(user, link.fields()) {
            desired[field::TAGS] = tags.into();
        }
        let (body, changes) = match link_rules().edit(link, &desired) {
            Some(edit) => (edit.document, edit.changes),
            None if has_failed(link) => {
                (link_rules().writable(link), vec!["the last change failed".to_owned()])
            }
            None => return None,
        };
        let change = ArmChange {
            target: self.target.clone(),
            effect: Effect::Change,
            body,
        };
        Some(Step::new(change).because(changes.join(", ")).for_service(Some(&user.service)))
    }

    fn own_tags(&self, user: &LinkUser) -> Map<String, Value> {
        let mut tags = Map::new();
        tags.insert(CLUSTER_TAG.to_owned(), self.cluster.clone().into());
        tags.insert(OWNER_TAG.to_owned(), user.service.to_string().into());
        tags
    }

    /// All tags, if one differs. The ownership tag follows with another change only, so that taking over a cluster writes nothing.
    fn changed_tags(&self, user: &LinkUser, link: &Value) -> Option<Map<String, Value>> {
        let before = tags(link);
        let mut after = before.clone();
        self.place.tags.apply(&mut after);
        for (key, value) in self.own_tags(user) {
            after.insert(key, value);
        }
        let ownership_tag = self.ownership_tag.for_create().map(|tag| tag.as_str().to_owned());
        // System tags of the config prune all others but this one.
        if let Some(tag) = &ownership_tag
            && let Some(value) = before.get(tag)
        {
            after.insert(tag.clone(), value.clone());
        }
        if after == before {
            return None;
        }
        if let Some(tag) = ownership_tag {
            after.entry(tag).or_insert_with(|| OWNED.into());
        }
        for key in before.keys() {
            after.entry(key.clone()).or_insert(Value::Null);
        }
        Some(after)
    }

    fn properties(&self, request: &LinkRequest) -> Value {
        let spec = &request.spec;
        json!({
            LINK_FRONTENDS: [{"id": request.frontend}],
            LINK_ADDRESSES: self.addresses(request),
            "enableProxyProtocol": spec.has_proxy_protocol,
            "fqdns": spec.fqdns,
            "visibility": {"subscriptions": spec.visibility},
            "autoApproval": {"subscriptions": spec.auto_approval},
        })
    }

    /// The addresses, with the names that the Go cloud-controller-manager gives them.
    fn addresses(&self, request: &LinkRequest) -> Vec<Value> {
        let Target::LinkService { name: link, .. } = &self.target else {
            return Vec::new();
        };
        let spec = &request.spec;
        let name = |end: String| {
            let begin = format!("{}-{link}", spec.subnet);
            let begin: String = begin.chars().take(LONGEST_NAME - end.len()).collect();
            begin + &end
        };
        let mut addresses = Vec::new();
        for (at, address) in spec.addresses.iter().enumerate() {
            addresses.push(json!({"name": name(format!("-static-{address}")), "properties": {
                "subnet": {"id": request.subnet_id},
                "primary": at == 0,
                "privateIPAddress": address.to_string(),
                "privateIPAllocationMethod": "Static",
                "privateIPAddressVersion": "IPv4",
            }}));
        }
        for at in 0..spec.count.saturating_sub(spec.addresses.len()) {
            addresses.push(json!({"name": name(format!("-dynamic-{at}")), "properties": {
                "subnet": {"id": request.subnet_id},
                "primary": at == 0 && spec.addresses.is_empty(),
                "privateIPAllocationMethod": "Dynamic",
                "privateIPAddressVersion": "IPv4",
            }}));
        }
        addresses
    }

    /// Azure deletes no private link service with connections.
    fn delete(&self, link: &Value) -> Vec<Step<ArmChange>> {
        let Target::LinkService { group, name: service } = &self.target else {
            return Vec::new();
        };
        let connections = elements(link, CONNECTIONS).map(|connection| Target::LinkConnection {
            group: group.clone(),
            service: service.clone(),
            name: name(connection).to_owned(),
        });
        let mut steps = Vec::new();
        for target in connections.chain([self.target.clone()]) {
            let change = ArmChange {
                target,
                effect: Effect::Delete,
                body: Value::Null,
            };
            steps.push(Step::new(change).for_service(self.users.first().map(|user| &user.service)));
        }
        steps
    }
}

/// Applies a change.
pub(crate) fn fold_link(change: &ArmChange, reply: Option<&Value>, observed: &mut ObservedLink) {
    match &change.target {
        Target::Subnet { .. } => {
            let mut subnet = observed.subnets.remove(&change.target);
            fold(change, reply, &mut subnet);
            if let Some(subnet) = subnet {
                observed.subnets.insert(change.target.clone(), subnet);
            }
        }
        Target::LinkConnection { name: deleted, .. } => {
            let Some(service) = &observed.service else {
                return;
            };
            let mut fields = service.fields().clone();
            let connections =
                fields.get_mut(field::PROPERTIES).and_then(|fields| fields.get_mut(CONNECTIONS));
            if let Some(connections) = connections.and_then(Value::as_array_mut) {
                connections.retain(|connection| !name(connection).eq_ignore_ascii_case(deleted));
            }
            observed.service = Some(Document::planned(&fields));
        }
        _ => fold(change, reply, &mut observed.service),
    }
}

/// How private link services are compared.
fn link_rules() -> Rules {
    Rules::default()
        .set("properties.loadBalancerFrontendIpConfigurations", &["id"])
        .set("properties.ipConfigurations", &["name"])
        .set("properties.fqdns", &[])
        .set("properties.visibility.subscriptions", &[])
        .set("properties.autoApproval.subscriptions", &[])
        .any_case(&[
            "properties.loadBalancerFrontendIpConfigurations[].id",
            "properties.ipConfigurations[].name",
            "properties.ipConfigurations[].properties.subnet.id",
            "properties.ipConfigurations[].properties.privateIPAllocationMethod",
            "properties.ipConfigurations[].properties.privateIPAddressVersion",
            "properties.fqdns[]",
            "properties.visibility.subscriptions[]",
            "properties.autoApproval.subscriptions[]",
        ])
        .defaults([
            ("properties.enableProxyProtocol", json!(false)),
            ("properties.visibility", json!({"subscriptions": []})),
            ("properties.autoApproval", json!({"subscriptions": []})),
        ])
        .empty_is_missing()
        .read_only(&[
            "properties.provisioningState",
            "properties.alias",
            "properties.networkInterfaces",
            "properties.privateEndpointConnections",
        ])
}

/// How subnets are compared. All that is not managed here is written back as it was read.
fn subnet_rules() -> Rules {
    Rules::default()
        .any_case(&["properties.privateLinkServiceNetworkPolicies"])
        .read_only(&["properties.provisioningState", "properties.ipConfigurations"])
}
