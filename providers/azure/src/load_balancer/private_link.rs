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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::testkit::cluster::{annotate, service};

    use super::*;
    use crate::load_balancer::laws;

    const FRONTEND: &str = "/subscriptions/s/loadBalancers/lb/frontendIPConfigurations/auidweb";

    /// A Service that asks for a private link service with these annotations.
    fn web(annotations: &[(&str, &str)]) -> ServiceView {
        let mut web = service("web", &[80]);
        annotate(&mut web, a::LINK_CREATE, Some("true"));
        for (key, value) in annotations {
            annotate(&mut web, key, Some(value));
        }
        web
    }

    /// What it asks for, and the problems.
    fn spec(annotations: &[(&str, &str)]) -> (LinkSpec, Vec<String>) {
        let web = web(annotations);
        let names = ServiceNames::new(&web.id, None, false);
        let (spec, invalid) = LinkSpec::of(&web, &names, &laws::model().settings);
        (spec, invalid.into_iter().map(|field| field.message).collect())
    }

    fn target() -> Target {
        Target::LinkService {
            group: "g".to_owned(),
            name: "pls-auidweb".to_owned(),
        }
    }

    fn subnet() -> Target {
        Target::Subnet {
            group: "g".to_owned(),
            network: "vnet".to_owned(),
            name: "nodes".to_owned(),
        }
    }

    fn user(name: &str, need: Need, annotations: &[(&str, &str)]) -> LinkUser {
        let request = LinkRequest {
            spec: spec(annotations).0,
            frontend: FRONTEND.to_owned(),
            subnet: subnet(),
            subnet_id: "/subnets/nodes".to_owned(),
        };
        LinkUser {
            service: service(name, &[80]).id,
            need,
            request: (need == Need::Full).then_some(request),
            frontends: BTreeSet::new(),
        }
    }

    fn desired(users: Vec<LinkUser>) -> DesiredLink {
        DesiredLink {
            target: target(),
            users,
            cluster: "kubernetes".to_owned(),
            ownership_tag: OwnershipTag::Unknown,
            place: Place {
                is_basic: false,
                location: "here".to_owned(),
                extended: None,
                tags: crate::tags::ResourceTags::default(),
            },
        }
    }

    /// Carries out the plan. Returns its sentences.
    fn apply(desired: &DesiredLink, observed: &mut ObservedLink) -> Vec<String> {
        let steps = desired.plan(observed).steps;
        for step in &steps {
            fold_link(&step.change, None, observed);
        }
        assert_eq!(desired.plan(observed).steps, []);
        steps.iter().map(ToString::to_string).collect()
    }

    /// A private link service of the Service `web`.
    fn existing() -> ObservedLink {
        let mut observed = ObservedLink::default();
        apply(&desired(vec![user("web", Need::Full, &[])]), &mut observed);
        observed
    }

    #[test]
    fn without_annotations_there_is_one_dynamic_address_in_the_subnet_of_the_config() {
        let (spec, problems) = spec(&[]);
        assert_eq!(problems, [""; 0]);
        assert_eq!((spec.part().as_str(), spec.subnet.as_str()), ("g/pls-auidweb", "nodes"));
        assert_eq!((spec.count, spec.has_settings), (1, false));
    }

    #[test]
    fn annotations_are_read_as_by_the_go_program() {
        let (spec, problems) = spec(&[
            (a::LINK_NAME, "mine"),
            (a::LINK_GROUP, "Links"),
            (a::INTERNAL_SUBNET, "apps"),
            (a::LINK_VISIBILITY, "one * two"),
            (a::LINK_FQDNS, " a.example.com  b.example.com a.example.com"),
            (a::LINK_PROXY_PROTOCOL, "True"),
        ]);
        assert_eq!(problems, [""; 0]);
        assert_eq!((spec.part().as_str(), spec.subnet.as_str()), ("links/mine", "apps"));
        assert_eq!(spec.visibility, ["*"]);
        assert_eq!(spec.fqdns, ["a.example.com", "b.example.com"]);
        assert!(spec.has_proxy_protocol && spec.has_settings);
    }

    #[test]
    fn all_problems_of_annotations_are_named() {
        let (_, problems) = spec(&[
            (a::LINK_NAME, "../other"),
            (a::LINK_GROUP, "a/b"),
            (a::LINK_SUBNET, "a?b"),
            (a::LINK_ADDRESSES, "10.0.0.1 10.0.0.2 any"),
        ]);
        let texts = [
            "\"../other\" is not a name",
            "\"a/b\" is not a name",
            "\"a?b\" is not a name",
            "\"any\" is not an IPv4 address",
            "2 addresses are more than the 1 of",
        ];
        for text in texts {
            assert!(problems.iter().any(|problem| problem.contains(text)), "{text}: {problems:?}");
        }
        for count in ["0", "9", "-1", "two"] {
            let (_, problems) = spec(&[(a::LINK_ADDRESS_COUNT, count)]);
            assert!(problems[0].contains("is not a number from 1 to 8"), "{problems:?}");
        }
    }

    #[test]
    fn names_of_addresses_are_cut_before_their_ends() {
        let mut desired = desired(Vec::new());
        desired.target = Target::LinkService {
            group: "g".to_owned(),
            name: "l".repeat(80),
        };
        let annotations = [(a::LINK_ADDRESS_COUNT, "2"), (a::LINK_ADDRESSES, "10.240.0.50")];
        let user = user("web", Need::Full, &annotations);
        let addresses = desired.addresses(user.request.as_ref().unwrap());
        let ends = ["-static-10.240.0.50", "-dynamic-0"];
        for (address, end) in addresses.iter().zip(ends) {
            let name = name(address);
            assert!(name.len() == 80 && name.starts_with("nodes-l") && name.ends_with(end), "{name}");
        }
        let primary = |at: usize| addresses[at]["properties"]["primary"].as_bool().unwrap();
        assert!(addresses.len() == 2 && primary(0) && !primary(1));
    }

    #[test]
    fn the_subnet_permits_it_first() {
        let subnets = |policies: &str| {
            let document = json!({"name": "nodes", "etag": "1", "properties": {POLICIES: policies}});
            BTreeMap::from([(subnet(), Document::planned(&document))])
        };
        let desired = desired(vec![user("web", Need::Full, &[])]);
        for (policies, expected) in [
            ("Enabled", &["update subnet nodes", "create private link service pls-auidweb"][..]),
            ("disabled", &["create private link service pls-auidweb"]),
        ] {
            let mut observed = ObservedLink {
                service: None,
                subnets: subnets(policies),
            };
            assert_eq!(apply(&desired, &mut observed), expected);
        }
        let mut observed = ObservedLink {
            service: None,
            subnets: subnets("Enabled"),
        };
        let steps = desired.plan(&observed).steps;
        let objects = |at: usize| steps[at].description.objects.clone().unwrap();
        assert!(objects(1).conflict_with(&objects(0)));
        // One that exists as it should be changes no subnet.
        apply(&desired, &mut observed);
        observed.subnets = subnets("Enabled");
        assert_eq!(apply(&desired, &mut observed), [""; 0]);
    }

    #[test]
    fn only_differences_are_written() {
        let mut observed = existing();
        // Azure leaves empty members out, and returns IDs in another case.
        let mut fields = observed.service.unwrap().fields().clone();
        let properties = fields["properties"].as_object_mut().unwrap();
        properties.retain(|name, _| !["visibility", "autoApproval", "fqdns"].contains(&name.as_str()));
        properties[LINK_FRONTENDS] = json!([{"id": FRONTEND.to_uppercase()}]);
        observed.service = Some(Document::planned(&fields));
        assert_eq!(apply(&desired(vec![user("web", Need::Full, &[])]), &mut observed), [""; 0]);
        let changed = desired(vec![user("web", Need::Full, &[(a::LINK_VISIBILITY, "one")])]);
        assert_eq!(apply(&changed, &mut observed), ["update private link service pls-auidweb"]);
    }

    #[test]
    fn the_owner_decides_as_long_as_it_stays() {
        let second = || user("second", Need::Full, &[(a::LINK_FQDNS, "b.example.com")]);
        for need in [Need::Full, Need::Unchanged] {
            let both = desired(vec![second(), user("web", need, &[])]);
            assert_eq!(apply(&both, &mut existing()), [""; 0], "{need:?}");
        }
        let mut observed = existing();
        let left = desired(vec![second(), user("web", Need::None, &[])]);
        assert_eq!(apply(&left, &mut observed), ["update private link service pls-auidweb"]);
        assert_eq!(owner_of(observed.service.as_ref().unwrap().fields()), "shop/second");
    }

    #[test]
    fn connections_are_deleted_before_it() {
        let mut observed = existing();
        let mut fields = observed.service.unwrap().fields().clone();
        fields["properties"][CONNECTIONS] = json!([{"name": "one"}, {"name": "two"}]);
        observed.service = Some(Document::planned(&fields));
        let frozen = desired(vec![user("web", Need::None, &[]), user("second", Need::Unchanged, &[])]);
        assert_eq!(apply(&frozen, &mut observed), [""; 0]);
        let left = desired(vec![user("web", Need::None, &[])]);
        let expected = [
            "delete private endpoint connection one of private link service pls-auidweb",
            "delete private endpoint connection two of private link service pls-auidweb",
            "delete private link service pls-auidweb",
        ];
        assert_eq!(apply(&left, &mut observed), expected);
        assert_eq!(observed.service, None);
    }

    #[test]
    fn one_without_the_tag_of_the_cluster_stays() {
        for tags in [json!({}), json!({CLUSTER_TAG: "another", OWNER_TAG: "shop/web"})] {
            let mut observed = existing();
            let mut fields = observed.service.unwrap().fields().clone();
            fields["tags"] = tags;
            observed.service = Some(Document::planned(&fields));
            for need in [Need::Full, Need::None] {
                let annotations = [(a::LINK_FQDNS, "a.example.com")];
                assert_eq!(apply(&desired(vec![user("web", need, &annotations)]), &mut observed), [""; 0]);
            }
        }
    }
}
