//! The desired load balancers and public IP addresses, and the plans from the observed ones to them.

use std::{collections::BTreeSet, net::IpAddr};

use ccm_core::{
    load_balancer::{Blocked, Effect, IpFamily, OwnNames, OwnershipTag, ServiceId},
    plan::{
        Plan, Step,
        document::{Document, Edit},
    },
};
use serde_json::{Map, Value, json};

use super::{
    directory::{is_address_of, is_of_cluster, lists, ownership, private_ip, tags},
    document::{
        ArmChange, FRONTENDS, OTHERS, POOLS, PROBES, RULES, Target, address_rules, balancer_rules,
        element_named, elements, frontend_of_rule, has_failed, name, reference,
    },
    names::{SHARED_PROBE, ServiceNames},
    rules::{BalancingRule, HealthProbe, ProbeProtocol},
    spec::AddressSettings,
};
use crate::{client::field, tags::ResourceTags};

/// The tag of a public IP address with the Services that use it.
pub(crate) const SERVICE_TAG: &str = "k8s-azure-service";
/// The tag of a public IP address with the name of the cluster.
pub(crate) const CLUSTER_TAG: &str = "k8s-azure-cluster-name";
/// The tag of a public IP address with the Service that chose its DNS label.
pub(crate) const DNS_TAG: &str = "k8s-azure-dns-label-service";
/// The longest value of a tag, in characters.
const TAG_VALUE_MAX: usize = 256;
/// The value of the ownership tag, whose key names the cluster.
pub(crate) const OWNED: &str = "owned";

/// Whether a part is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A Service needs it.
    Full,
    /// Only Services that keep what they have: it stays as it is.
    Unchanged,
    /// No Service stays in it.
    None,
}

/// The properties of new resources of the region.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) location: String,
    /// Whether load balancers and public IP addresses are basic ones.
    pub(crate) is_basic: bool,
    /// Name and type of an edge zone.
    pub(crate) extended: Option<(String, String)>,
    pub(crate) tags: ResourceTags,
}

impl Place {
    /// A new document with these tags and those of the config.
    fn document(&self, tags: Map<String, Value>) -> Value {
        let mut document = self.located(tags);
        // Without a SKU, it is a basic one.
        if !self.is_basic {
            document["sku"] = json!({"name": "Standard"});
        }
        document
    }

    /// The same for a kind without a SKU.
    pub(crate) fn located(&self, tags: Map<String, Value>) -> Value {
        let mut document = json!({"location": self.location});
        if let Some((name, kind)) = &self.extended {
            document["extendedLocation"] = json!({"name": name, "type": kind});
        }
        let mut tags = tags;
        self.tags.apply(&mut tags);
        if !tags.is_empty() {
            document[field::TAGS] = tags.into();
        }
        document
    }

    /// The tags of a document with those of the config; `None` if it has them.
    fn changed_tags(&self, document: &Document) -> Option<Value> {
        let before = document.fields().get(field::TAGS).and_then(Value::as_object).cloned();
        let before = before.unwrap_or_default();
        let mut after = before.clone();
        self.tags.apply(&mut after);
        (after != before).then(|| after.into())
    }
}

/// The plan with one step on a document.
fn one_step(change: ArmChange, changes: &[String]) -> Step<ArmChange> {
    Step::new(change).because(changes.join(", "))
}

/// The step that writes an edited document; also if its last change failed, which may have left it half done.
fn write(target: &Target, observed: &Document, edit: Option<Edit>) -> Option<Step<ArmChange>> {
    let (body, changes) = match edit {
        Some(edit) => (edit.document, edit.changes),
        None if has_failed(observed) => {
            let body = balancer_rules().writable(observed);
            (body, vec!["the last change failed".to_owned()])
        }
        None => return None,
    };
    let change = ArmChange {
        target: target.clone(),
        effect: Effect::Change,
        body,
    };
    Some(one_step(change, &changes))
}

/// A load balancer with its pools, without frontends and rules.
#[derive(Debug)]
pub(crate) struct DesiredBalancer {
    pub(crate) target: Target,
    pub(crate) need: Need,
    /// The names of its pools.
    pub(crate) pools: Vec<String>,
    /// The names of all pools that belong to this cluster's load balancers.
    pub(crate) own_pools: Vec<String>,
    pub(crate) place: Place,
    /// Whether others manage its pools, so that it is not deleted.
    pub(crate) is_pre_configured: bool,
    /// The names of the elements of Services that leave. The part of the rules removes them before.
    pub(crate) leaving: OwnNames,
}

impl DesiredBalancer {
    pub(crate) fn plan(&self, observed: Option<&Document>) -> Plan<ArmChange> {
        let step = match (self.need, observed) {
            (Need::Full, None) => Some(self.create()),
            (Need::Full, Some(observed)) => self.update(observed),
            (Need::None, Some(observed)) if self.is_deletable(observed) => Some(Step::new(ArmChange {
                target: self.target.clone(),
                effect: Effect::Delete,
                body: Value::Null,
            })),
            (Need::None | Need::Unchanged, _) => None,
        };
        Plan {
            steps: step.into_iter().collect(),
            ..Plan::default()
        }
    }

    fn create(&self) -> Step<ArmChange> {
        let pools: Vec<Value> =
            self.pools.iter().map(|pool| json!({"name": pool, "properties": {}})).collect();
        let mut body = self.place.document(Map::new());
        body[field::PROPERTIES] = json!({POOLS: pools});
        Step::new(ArmChange {
            target: self.target.clone(),
            effect: Effect::Create,
            body,
        })
    }

    /// Adds pools and tags that are missing. All that others added stays.
    fn update(&self, observed: &Document) -> Option<Step<ArmChange>> {
        let pools: Vec<Value> = self.pools.iter().map(|pool| json!({"name": pool})).collect();
        let mut desired = json!({field::PROPERTIES: {POOLS: pools}});
        if let Some(tags) = self.place.changed_tags(observed) {
            desired[field::TAGS] = tags;
        }
        let edit = balancer_rules().edit_owned(observed, &desired, |_, _| false);
        edit.and_then(|edit| write(&self.target, observed, Some(edit)))
    }

    /// Whether nothing of others is in it.
    fn is_deletable(&self, observed: &Document) -> bool {
        let document = observed.fields();
        let is_own = |pool: &Value| self.own_pools.iter().any(|own| own.eq_ignore_ascii_case(name(pool)));
        !self.is_pre_configured && is_empty(document, &self.leaving) && elements(document, POOLS).all(is_own)
    }
}

/// Whether a load balancer has no frontends and rules but these.
pub(crate) fn is_empty(document: &Value, but: &OwnNames) -> bool {
    let mut own = [FRONTENDS, RULES].into_iter().flat_map(|list| elements(document, list));
    let mut others = OTHERS.into_iter().flat_map(|list| elements(document, list));
    own.all(|element| but.prove(name(element))) && others.next().is_none()
}

/// A frontend of a Service. Services with one address share a frontend, which has the name of that which came first.
#[derive(Debug)]
pub(crate) struct DesiredFrontend {
    /// The name of the frontend if it has its usual one.
    pub(crate) name: String,
    /// The name if another Service has the usual one for another address.
    pub(crate) spare_name: String,
    pub(crate) address: FrontendAddress,
}

/// The address of a frontend.
#[derive(Debug)]
pub(crate) enum FrontendAddress {
    /// The ID of a public IP address.
    Public(String),
    Private {
        family: IpFamily,
        /// The ID of its subnet.
        subnet: String,
        /// Whether an annotation names the subnet. If not, an existing frontend stays in its subnet.
        is_subnet_chosen: bool,
        /// The address that the Service asks for.
        pinned: Option<IpAddr>,
        /// The address that the Service had before, for a new frontend.
        previous: Option<IpAddr>,
        zones: Vec<String>,
    },
}

impl DesiredFrontend {
    /// Whether a frontend has the address that the Service asks for. `None`: it asks for none.
    fn is_at(&self, frontend: &Value) -> Option<bool> {
        match &self.address {
            FrontendAddress::Public(id) => {
                let public = reference(frontend, "publicIPAddress");
                Some(public.is_some_and(|public| public.eq_ignore_ascii_case(id)))
            }
            FrontendAddress::Private { pinned, .. } => {
                pinned.map(|pinned| private_ip(frontend) == Some(pinned))
            }
        }
    }

    /// The managed fields. `existing`: the frontend as it is.
    fn fields(&self, name: &str, existing: Option<&Value>) -> Value {
        let properties = match &self.address {
            FrontendAddress::Public(id) => json!({"publicIPAddress": {"id": id}}),
            FrontendAddress::Private {
                family,
                subnet,
                is_subnet_chosen,
                pinned,
                previous,
                zones,
            } => {
                let is_new = existing.is_none();
                let mut properties = Map::new();
                if is_new || *is_subnet_chosen {
                    properties.insert("subnet".to_owned(), json!({"id": subnet}));
                }
                match pinned.or(previous.filter(|_| is_new)) {
                    Some(address) => {
                        properties.insert("privateIPAddress".to_owned(), address.to_string().into());
                        properties.insert("privateIPAllocationMethod".to_owned(), "Static".into());
                    }
                    None if is_new => {
                        properties.insert("privateIPAllocationMethod".to_owned(), "Dynamic".into());
                    }
                    None => {}
                }
                if is_new {
                    let version = version(*family);
                    properties.insert("privateIPAddressVersion".to_owned(), version.into());
                    if !zones.is_empty() {
                        return json!({"name": name, "zones": zones, "properties": properties});
                    }
                }
                properties.into()
            }
        };
        json!({"name": name, "properties": properties})
    }
}

/// Frontends, rules and probes of a load balancer.
#[derive(Debug)]
pub(crate) struct DesiredRules {
    pub(crate) target: Target,
    /// The ID of the load balancer.
    pub(crate) id: String,
    /// Whether the load balancer only exists in a plan.
    pub(crate) is_planned: bool,
    /// Whether the API is that of an Azure Stack.
    pub(crate) is_azure_stack: bool,
    pub(crate) services: Vec<ServiceRules>,
    /// The names of elements that may be changed and removed: those of Services that are active or leave.
    pub(crate) names: OwnNames,
    /// The names of frontends that private link services use, in lower case. Azure does not remove them before their private link services
    /// have moved or are deleted.
    pub(crate) linked: BTreeSet<String>,
    /// The names in lower case of pools that the Go cloud-controller-manager created for these Services alone.
    pub(crate) former_pools: BTreeSet<String>,
}

/// Frontends, rules and probes of a Service for one family.
#[derive(Debug)]
pub(crate) struct ServiceRules {
    pub(crate) frontend: DesiredFrontend,
    /// The name of the pool.
    pub(crate) pool: String,
    pub(crate) rules: Vec<BalancingRule>,
    pub(crate) probes: Vec<HealthProbe>,
}

impl DesiredRules {
    pub(crate) fn plan(&self, observed: Option<&Document>) -> Plan<ArmChange> {
        let planned = Document::planned(&json!({field::PROPERTIES: {}}));
        // The part of the load balancer creates it.
        let step = match observed {
            None if !self.is_planned => None,
            observed => {
                let observed = observed.unwrap_or(&planned);
                write(&self.target, observed, self.edit(observed))
            }
        };
        let step = step.map(Step::shared);
        Plan {
            steps: step.into_iter().collect(),
            ..Plan::default()
        }
    }

    fn edit(&self, observed: &Document) -> Option<Edit> {
        let document = observed.fields();
        let in_use = self.frontends_of_others(document);
        let names = self.frontend_names(document, &in_use);
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        let (mut rules, mut probes) = (Vec::new(), Vec::new());
        for (service, name) in self.services.iter().zip(&names) {
            let frontend = service.frontend.fields(name, element_named(document, FRONTENDS, name));
            if service.frontend.name.eq_ignore_ascii_case(name) {
                own.push(frontend);
            } else {
                shared.push(frontend);
            }
            rules.extend(service.rules.iter().map(|rule| self.rule(rule, service, name)));
            probes.extend(service.probes.iter().map(|probe| self.probe(probe)));
        }
        // The first element of a name counts: the Service with this name decides about the frontend.
        own.append(&mut shared);
        let mut desired = json!({field::PROPERTIES: {FRONTENDS: own, RULES: rules, PROBES: probes}});
        let unused_pools = self.unused_pools(document);
        if !unused_pools.is_empty() {
            desired[field::PROPERTIES][POOLS] = json!([]);
        }
        let own_rules = elements(document, RULES).filter(|rule| self.names.prove(name(rule)));
        let used: BTreeSet<String> =
            own_rules.filter_map(frontend_of_rule).map(str::to_ascii_lowercase).collect();
        let is_shared_probe_used = elements(document, RULES).any(|rule| {
            let probe = reference(rule, "probe").and_then(|id| id.rsplit('/').next());
            !self.names.prove(name(rule))
                && probe.is_some_and(|probe| probe.eq_ignore_ascii_case(SHARED_PROBE))
        });
        balancer_rules().edit_owned(observed, &desired, |path, element| {
            let name = name(element);
            let is_shared_probe = path.ends_with(PROBES) && name.eq_ignore_ascii_case(SHARED_PROBE);
            if is_shared_probe {
                return !is_shared_probe_used;
            }
            if path.ends_with(POOLS) {
                return unused_pools.contains(&name.to_ascii_lowercase());
            }
            if !path.ends_with(FRONTENDS) {
                return self.names.prove(name);
            }
            // A shared frontend has the name of a Service that may be gone.
            let lower = name.to_ascii_lowercase();
            !in_use.contains(&lower)
                && !self.linked.contains(&lower)
                && (self.names.prove(name) || used.contains(&lower))
        })
    }

    /// The former pools that the load balancer has and that no rule of another Service uses.
    fn unused_pools(&self, document: &Value) -> BTreeSet<String> {
        let foreign_rules = elements(document, RULES).filter(|rule| !self.names.prove(name(rule)));
        let used: BTreeSet<String> = foreign_rules
            .filter_map(|rule| reference(rule, "backendAddressPool")?.rsplit('/').next())
            .map(str::to_ascii_lowercase)
            .collect();
        let pools = elements(document, POOLS).map(|pool| name(pool).to_ascii_lowercase());
        pools.filter(|pool| self.former_pools.contains(pool) && !used.contains(pool)).collect()
    }

    /// The name of the frontend of each of the Services: an existing one that has its address, or a new one. `in_use`: those that
    /// others use.
    fn frontend_names(&self, document: &Value, in_use: &BTreeSet<String>) -> Vec<String> {
        let existing: Vec<Option<&Value>> = self
            .services
            .iter()
            .map(|service| {
                let frontend = &service.frontend;
                elements(document, FRONTENDS).find(|existing| frontend.is_at(existing) == Some(true))
            })
            .collect();
        // Frontends that keep their addresses.
        let mut taken: BTreeSet<String> =
            existing.iter().flatten().map(|frontend| name(frontend).to_ascii_lowercase()).collect();
        taken.extend(in_use.iter().cloned());
        let mut new: Vec<Value> = Vec::new();
        let mut names = Vec::new();
        for (service, existing) in self.services.iter().zip(existing) {
            let frontend = &service.frontend;
            let shared = existing.or_else(|| new.iter().find(|fields| frontend.is_at(fields) == Some(true)));
            let name = match shared {
                Some(shared) => name(shared).to_owned(),
                None => {
                    let own = element_named(document, FRONTENDS, &frontend.name);
                    let is_taken = taken.contains(&frontend.name.to_ascii_lowercase())
                        && own.and_then(|own| frontend.is_at(own)) == Some(false);
                    let name = if is_taken {
                        &frontend.spare_name
                    } else {
                        &frontend.name
                    };
                    new.push(frontend.fields(name, None));
                    name.clone()
                }
            };
            names.push(name);
        }
        names
    }

    /// The names of frontends to which elements of others refer, in lower case. They cannot be removed.
    fn frontends_of_others(&self, document: &Value) -> BTreeSet<String> {
        let foreign_rules = elements(document, RULES).filter(|rule| !self.names.prove(name(rule)));
        let others = OTHERS.into_iter().flat_map(|list| elements(document, list));
        let mut names = BTreeSet::new();
        for element in foreign_rules.chain(others) {
            // Outbound rules have several.
            let several = elements(element, FRONTENDS)
                .filter_map(|frontend| frontend.get("id")?.as_str()?.rsplit('/').next());
            names.extend(frontend_of_rule(element).into_iter().chain(several).map(str::to_ascii_lowercase));
        }
        names
    }

    fn rule(&self, rule: &BalancingRule, service: &ServiceRules, frontend: &str) -> Value {
        let child = |list: &str, name: &str| json!({"id": format!("{}/{list}/{name}", self.id)});
        let mut properties = json!({
            "protocol": rule.protocol.as_str(),
            "frontendPort": rule.frontend_port,
            "backendPort": rule.backend_port,
            "enableFloatingIP": rule.has_floating_ip,
            "loadDistribution": if rule.has_affinity { "SourceIP" } else { "Default" },
            "idleTimeoutInMinutes": rule.idle_minutes,
            "frontendIPConfiguration": child(FRONTENDS, frontend),
            "backendAddressPool": child(POOLS, &service.pool),
            "probe": rule.probe.as_ref().map(|probe| child(PROBES, probe)),
        });
        if let Some(resets) = rule.resets_tcp {
            properties["enableTcpReset"] = resets.into();
        }
        if let Some(disables) = rule.disables_outbound_snat {
            properties["disableOutboundSnat"] = disables.into();
        }
        json!({"name": rule.name, "properties": properties})
    }

    fn probe(&self, probe: &HealthProbe) -> Value {
        // API versions before 2022-05-01 do not have the threshold, which also counts successes.
        let threshold = if self.is_azure_stack {
            "numberOfProbes"
        } else {
            "probeThreshold"
        };
        json!({"name": probe.name, "properties": {
            "protocol": match probe.protocol {
                ProbeProtocol::Tcp => "Tcp",
                ProbeProtocol::Http => "Http",
                ProbeProtocol::Https => "Https",
            },
            "port": probe.port,
            "requestPath": probe.path,
            "intervalInSeconds": probe.interval,
            threshold: probe.threshold,
        }})
    }
}

/// `IPv4` or `IPv6`.
fn version(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

/// A public IP address.
#[derive(Debug)]
pub(crate) struct DesiredAddress {
    pub(crate) target: Target,
    pub(crate) users: Vec<AddressUser>,
    pub(crate) family: IpFamily,
    /// The name of the cluster, in a tag.
    pub(crate) cluster: String,
    pub(crate) ownership_tag: OwnershipTag,
    pub(crate) zones: Vec<String>,
    pub(crate) place: Place,
}

/// A Service that uses a public IP address.
#[derive(Debug)]
pub(crate) struct AddressUser {
    pub(crate) service: ServiceId,
    pub(crate) names: ServiceNames,
    pub(crate) need: Need,
    /// Whether the address is created for this Service.
    pub(crate) is_creator: bool,
    /// The ID of the prefix of a new address.
    pub(crate) prefix: Option<String>,
    pub(crate) settings: AddressSettings,
}

impl DesiredAddress {
    pub(crate) fn plan(&self, observed: Option<&Document>) -> Plan<ArmChange> {
        let Some(observed) = observed else {
            let step = self.creator().map(|creator| self.create(creator).for_service(Some(&creator.service)));
            return Plan {
                steps: step.into_iter().collect(),
                ..Plan::default()
            };
        };
        let is_kept = self.users.iter().all(|user| user.need == Need::Unchanged);
        if is_kept || !self.may_change(observed) {
            return Plan::default();
        }
        let step = if self.is_unused(observed) {
            Some(Step::new(ArmChange {
                target: self.target.clone(),
                effect: Effect::Delete,
                body: Value::Null,
            }))
        } else {
            self.update(observed)
        };
        let first = self.active().chain(&self.users).next().map(|user| &user.service);
        Plan {
            steps: step.map(|step| step.for_service(first)).into_iter().collect(),
            blocked: self.creator().and_then(|creator| self.blocked(creator, observed)).into_iter().collect(),
        }
    }

    fn active(&self) -> impl Iterator<Item = &AddressUser> {
        self.users.iter().filter(|user| user.need == Need::Full)
    }

    fn creator(&self) -> Option<&AddressUser> {
        self.active().find(|user| user.is_creator)
    }

    /// Whether this program or the Go cloud-controller-manager created the address for a Service of this cluster. Addresses of the user are
    /// never changed.
    fn may_change(&self, observed: &Document) -> bool {
        let address = observed.fields();
        let tags = tags(address);
        let is_created = self
            .users
            .iter()
            .any(|user| is_address_of(address, &user.service, &user.names, &self.cluster));
        let is_shared = services_in(&tags).next().is_some() && is_of_cluster(&tags, &self.cluster);
        ownership(address, &self.ownership_tag).allows_changes() && (is_created || is_shared)
    }

    /// Whether the last of the Services that use the address leaves it.
    fn is_unused(&self, observed: &Document) -> bool {
        let tags = tags(observed.fields());
        let leaves = |user: &AddressUser| user.need == Need::None;
        let is_left = self.users.iter().any(|user| {
            lists(&tags, &user.service)
                || is_address_of(observed.fields(), &user.service, &user.names, &self.cluster)
        });
        is_left
            && self.users.iter().all(leaves)
            && services_in(&tags)
                .all(|listed| self.users.iter().any(|user| user.service.to_string() == listed))
    }

    /// IP tags belong to the address: other ones would need another address.
    fn blocked(&self, creator: &AddressUser, observed: &Document) -> Option<Blocked> {
        let shown = |tags: BTreeSet<String>| tags.into_iter().collect::<Vec<_>>().join(",");
        let tag = |tag: &Value| {
            let text = |key: &str| tag.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            format!("{}={}", text("ipTagType"), text("tag"))
        };
        let observed = shown(elements(observed.fields(), "ipTags").map(tag).collect());
        let desired =
            shown(creator.settings.ip_tags.iter().map(|(kind, tag)| format!("{kind}={tag}")).collect());
        (!desired.is_empty() && desired != observed).then(|| Blocked {
            service: Some(creator.service.clone()),
            field: format!("IP tags of {}", self.target),
            observed,
            desired,
        })
    }

    fn create(&self, creator: &AddressUser) -> Step<ArmChange> {
        let settings = &creator.settings;
        let mut tags = Map::new();
        let services = self.changed_services(&tags).unwrap_or_default();
        tags.insert(SERVICE_TAG.to_owned(), services.into());
        tags.insert(CLUSTER_TAG.to_owned(), self.cluster.clone().into());
        if let Some(tag) = self.ownership_tag.for_create() {
            tags.insert(tag.as_str().to_owned(), OWNED.into());
        }
        let mut body = self.place.document(tags);
        if let Some(tags) = body.get_mut(field::TAGS).and_then(Value::as_object_mut) {
            self.set_tags(tags);
        }
        if !self.zones.is_empty() && self.place.extended.is_none() {
            body["zones"] = json!(self.zones);
        }
        let mut properties =
            json!({"publicIPAllocationMethod": "Static", "publicIPAddressVersion": version(self.family)});
        if let Some(prefix) = &creator.prefix {
            properties["publicIPPrefix"] = json!({"id": prefix});
        }
        if !settings.ip_tags.is_empty() {
            let tags = settings.ip_tags.iter();
            let tags = tags.map(|(kind, tag)| json!({"ipTagType": kind, "tag": tag}));
            properties["ipTags"] = tags.collect();
        }
        if let Some(label) = self.label().map(|(_, label)| label)
            && !label.is_empty()
        {
            properties["dnsSettings"] = json!({"domainNameLabel": label});
        }
        body[field::PROPERTIES] = properties;
        Step::new(ArmChange {
            target: self.target.clone(),
            effect: Effect::Create,
            body,
        })
    }

    /// Sets tags that are missing. The ownership tag follows with another change only, so that taking over a cluster writes nothing.
    fn update(&self, observed: &Document) -> Option<Step<ArmChange>> {
        let before = observed.fields().get(field::TAGS).and_then(Value::as_object).cloned();
        let before = before.unwrap_or_default();
        let mut after = before.clone();
        if let Some(services) = self.changed_services(&before) {
            after.insert(SERVICE_TAG.to_owned(), services.into());
        }
        after.entry(CLUSTER_TAG).or_insert_with(|| self.cluster.clone().into());
        self.place.tags.apply(&mut after);
        self.set_tags(&mut after);
        let ownership_tag = self.ownership_tag.for_create().map(|tag| tag.as_str().to_owned());
        for key in [SERVICE_TAG, CLUSTER_TAG].into_iter().chain(ownership_tag.as_deref()) {
            // System tags of the config prune all others but these.
            if let (Some(value), None) = (before.get(key), after.get(key)) {
                after.insert(key.to_owned(), value.clone());
            }
        }
        let is_changed = after != before;
        if is_changed && let Some(tag) = ownership_tag {
            after.entry(tag).or_insert_with(|| OWNED.into());
        }
        let removed = before.keys().filter(|key| !after.contains_key(*key)).cloned().collect::<Vec<_>>();
        for key in removed {
            after.insert(key, Value::Null);
        }
        let mut desired = json!({});
        if is_changed {
            desired[field::TAGS] = after.into();
        }
        match self.label() {
            Some((_, "")) => desired[field::PROPERTIES] = json!({"dnsSettings": null}),
            Some((_, label)) => {
                desired[field::PROPERTIES] = json!({"dnsSettings": {"domainNameLabel": label}});
            }
            None => {}
        }
        write(&self.target, observed, address_rules().edit(observed, &desired))
    }

    /// The DNS label, and the Service that chooses it.
    fn label(&self) -> Option<(&ServiceId, &str)> {
        self.active().find_map(|user| Some((&user.service, user.settings.dns_label.as_deref()?)))
    }

    /// Sets the tags that the Services choose, and that of the DNS label.
    fn set_tags(&self, tags: &mut Map<String, Value>) {
        for (key, value) in self.active().flat_map(|user| &user.settings.tags) {
            let existing = tags.keys().find(|existing| existing.eq_ignore_ascii_case(key)).cloned();
            tags.insert(existing.unwrap_or_else(|| key.clone()), value.clone().into());
        }
        match self.label() {
            Some((_, "")) => {
                tags.remove(DNS_TAG);
            }
            Some((service, _)) => {
                tags.insert(DNS_TAG.to_owned(), service.to_string().into());
            }
            None => {}
        }
    }

    /// The tag with the Services, if it changes: active ones are in it, and those that leave are not.
    fn changed_services(&self, tags: &Map<String, Value>) -> Option<String> {
        let is_leaving = |listed: &str| {
            let mut leaving = self.users.iter().filter(|user| user.need == Need::None);
            leaving.any(|user| user.service.to_string() == listed)
        };
        let before: Vec<String> = services_in(tags).map(str::to_owned).collect();
        let mut after: Vec<String> = before.iter().filter(|listed| !is_leaving(listed)).cloned().collect();
        for user in self.active() {
            let service = user.service.to_string();
            let length: usize = after.iter().map(|listed| listed.chars().count() + 1).sum();
            // Without room for its name, the Service uses the address unlisted. Azure keeps an address in use.
            let has_room = length + service.chars().count() <= TAG_VALUE_MAX;
            if !after.contains(&service) && has_room {
                after.push(service);
            }
        }
        (after != before).then(|| after.join(","))
    }
}

/// The Services in the tags of a public IP address: `namespace/name`.
pub(crate) fn services_in(tags: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let text = tags.get(SERVICE_TAG).and_then(Value::as_str).unwrap_or_default();
    text.split(',').map(str::trim).filter(|service| !service.is_empty())
}
