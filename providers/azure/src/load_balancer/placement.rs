//! Several load balancers of each kind: which of them serves a Service, and which has a node.
//!
//! A Service:
//!
//! 1. The load balancers that its annotation names, or all, are candidates. Those that accept no Services are left out, unless they have
//!    the Service already, and those whose selectors do not match. If a selector matches, load balancers without selectors are left out.
//! 2. It stays where it is, if that is a candidate.
//! 3. Otherwise the candidate with the fewest rules gets it. Of several, the UID decides, so that Services that are created at the same
//!    time are spread.
//!
//! A node, among the load balancers that a Service needs:
//!
//! 1. The one whose `primaryVMSet` has its machine.
//! 2. Those whose `nodeSelector` matches. If there are none, those without one. The node stays where it is, or joins the one with the fewest
//!    nodes.
//!
//! As long as its load balancer is being created, a node stays where it is. A load balancer that no Service needs keeps its nodes until it is
//! deleted.
//!
//! All of it follows from the config, the cluster, and what the cloud has: a restart changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ccm_core::load_balancer::{ClusterView, InvalidField, IpFamily, ServiceNode, ServiceView};
use serde_json::Value;

use super::{
    annotations as a,
    directory::{BalancerDirectory, frontend_ids_in, has_elements, private_ip},
    document::{FRONTENDS, OTHERS, POOLS, RULES, elements, frontend_of_rule, name, reference},
    members::{ADDRESSES, MachineIndex, is_member, machine_of},
    names,
    settings::BalancerSettings,
    spec::Spec,
};
use crate::{client::field, config::MultipleLoadBalancer, instances::machine_id::MachineKind};

/// The load balancer of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServicePlacement {
    /// Its part: group and name.
    pub(crate) part: String,
    /// Why the Service is refused.
    pub(crate) problem: Option<InvalidField>,
}

/// The load balancers that may serve a Service.
#[derive(Debug, Default)]
struct Candidates {
    /// Their places in the config.
    eligible: Vec<usize>,
    /// Why others are left out.
    reasons: Vec<String>,
}

/// The value of the annotation that names load balancers, whose key may be in any case.
fn named_balancers(service: &ServiceView) -> Vec<String> {
    let annotation = service.annotations.iter().find(|(key, _)| key.eq_ignore_ascii_case(a::CONFIGURATIONS));
    let (_, text) = annotation.unwrap_or_default();
    text.split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect()
}

/// The names in the annotation that the config does not have.
pub(crate) fn unknown_balancers(service: &ServiceView, settings: &BalancerSettings) -> Vec<String> {
    let mut unknown = named_balancers(service);
    unknown.retain(|name| !settings.several().iter().any(|one| one.name.eq_ignore_ascii_case(name)));
    unknown
}

/// The key of a part of one of several load balancers.
fn part(settings: &BalancerSettings, balancer: &MultipleLoadBalancer, is_internal: bool) -> String {
    format!("{}/{}", settings.balancer_group, names::load_balancer(&balancer.name, is_internal))
}

/// The parts of all load balancers of the cluster.
pub(crate) fn balancer_parts(settings: &BalancerSettings, cluster: &str) -> Vec<String> {
    let kinds = [false, true];
    if settings.several().is_empty() {
        let part =
            |is_internal| format!("{}/{}", settings.balancer_group, settings.balancer(cluster, is_internal));
        return kinds.map(part).to_vec();
    }
    let all = settings.several().iter();
    all.flat_map(|balancer| kinds.map(|is_internal| part(settings, balancer, is_internal)))
        .collect()
}

/// The load balancer that serves a Service.
pub(crate) fn place_service(
    service: &ServiceView,
    spec: &Spec,
    directory: &BalancerDirectory,
    settings: &BalancerSettings,
) -> ServicePlacement {
    let all = settings.several();
    if all.is_empty() {
        return ServicePlacement {
            part: format!("{}/{}", settings.balancer_group, spec.balancer),
            problem: None,
        };
    }
    let parts: Vec<String> = all.iter().map(|balancer| part(settings, balancer, spec.is_internal)).collect();
    let documents: Vec<Option<&Value>> = parts.iter().map(|part| directory.balancer(part)).collect();
    let present: Vec<usize> = indexes(&documents, |document| has_elements(document, &spec.names));
    let hosts: Vec<usize> = indexes(&documents, |document| has_chosen_address(document, spec, directory));
    let candidates = candidates(service, &present, directory, settings);
    let at = |index: usize| parts.get(index).cloned().unwrap_or_default();
    let staying = |problem: InvalidField| ServicePlacement {
        part: at(present.first().or(candidates.eligible.first()).copied().unwrap_or_default()),
        problem: Some(problem),
    };
    if !hosts.is_empty() && !named_balancers(service).is_empty() {
        let text = "cannot be combined with the address of a frontend that exists, which decides about the load balancer; remove one of both";
        return staying(InvalidField::annotation(a::CONFIGURATIONS, text));
    }
    if candidates.eligible.is_empty() {
        let text = format!("no load balancer may serve the Service: {}", candidates.reasons.join("; "));
        return staying(InvalidField::annotation(a::CONFIGURATIONS, text));
    }
    if let Some(host) = hosts.first() {
        if candidates.eligible.contains(host) {
            return ServicePlacement {
                part: at(*host),
                problem: None,
            };
        }
        let text = format!(
            "the address belongs to load balancer {}, which may not serve the Service; choose another address, or change the selectors",
            at(*host).rsplit('/').next().unwrap_or_default()
        );
        return staying(InvalidField::spec("type", text));
    }
    if let Some(stays) = present.iter().find(|index| candidates.eligible.contains(index)) {
        return ServicePlacement {
            part: at(*stays),
            problem: None,
        };
    }
    let obstacle = present
        .iter()
        .filter_map(|index| documents.get(*index).copied().flatten())
        .find_map(|document| obstacle_to_leave(document, spec, directory));
    if let Some(text) = obstacle {
        return staying(InvalidField::annotation(a::CONFIGURATIONS, text));
    }
    let key = placement_key(service, spec, directory);
    let weight = |index: &usize| {
        let document = documents.get(*index).copied().flatten();
        let rules = document.map(|document| elements(document, RULES).count()).unwrap_or_default();
        (rules, md5::compute(format!("{key} {}", at(*index))).0)
    };
    let chosen = candidates.eligible.iter().copied().min_by_key(weight);
    ServicePlacement {
        part: at(chosen.unwrap_or_default()),
        problem: None,
    }
}

/// The places of documents that exist and fulfill a condition.
fn indexes(documents: &[Option<&Value>], condition: impl Fn(&Value) -> bool) -> Vec<usize> {
    let all = documents.iter().enumerate();
    all.filter(|(_, document)| document.is_some_and(&condition))
        .map(|(index, _)| index)
        .collect()
}

/// Whether a load balancer has a frontend of another Service with an address that the Service names.
fn has_chosen_address(document: &Value, spec: &Spec, directory: &BalancerDirectory) -> bool {
    let chosen = spec.addresses.iter().filter(|address| !address.is_managed());
    let ids: BTreeSet<String> = chosen
        .filter_map(|address| directory.address(&address.part(directory))?.get("id")?.as_str())
        .map(str::to_ascii_lowercase)
        .collect();
    let pinned: &[IpAddr] = if spec.is_internal { &spec.pinned } else { &[] };
    let mut others = elements(document, FRONTENDS).filter(|frontend| !spec.names.owns(name(frontend)));
    others.any(|frontend| {
        let public = reference(frontend, "publicIPAddress").map(str::to_ascii_lowercase);
        let private = private_ip(frontend);
        public.is_some_and(|id| ids.contains(&id)) || private.is_some_and(|ip| pinned.contains(&ip))
    })
}

/// What decides between load balancers with equally few rules: Services that name one address need the same one.
fn placement_key(service: &ServiceView, spec: &Spec, directory: &BalancerDirectory) -> String {
    let chosen = spec.addresses.iter().find(|address| !address.is_managed());
    if let Some(address) = chosen {
        return address.part(directory);
    }
    match spec.pinned.first() {
        Some(address) if spec.is_internal => address.to_string(),
        _ => service.id.uid.to_string(),
    }
}

/// The load balancers that may serve a Service. `present`: those that have elements of it.
fn candidates(
    service: &ServiceView,
    present: &[usize],
    directory: &BalancerDirectory,
    settings: &BalancerSettings,
) -> Candidates {
    let named = named_balancers(service);
    let mut candidates = Candidates::default();
    let mut is_selected = Vec::new();
    for (index, balancer) in settings.several().iter().enumerate() {
        let name = &balancer.name;
        if !named.is_empty() && !named.contains(&name.to_ascii_lowercase()) {
            continue;
        }
        if balancer.allow_service_placement == Some(false) && !present.contains(&index) {
            candidates.reasons.push(format!("{name} has allowServicePlacement false"));
            continue;
        }
        let by_labels = balancer.service_label_selector.as_ref().filter(|selector| !selector.is_empty());
        if by_labels.is_some_and(|selector| !selector.matches(&service.labels)) {
            candidates
                .reasons
                .push(format!("the labels of the Service do not match serviceLabelSelector of {name}"));
            continue;
        }
        let by_namespace =
            balancer.service_namespace_selector.as_ref().filter(|selector| !selector.is_empty());
        if let Some(selector) = by_namespace {
            let namespace = &*service.id.namespace;
            let labels = directory.namespaces.get(namespace);
            if !labels.is_some_and(|labels| selector.matches(labels)) {
                let text = format!(
                    "the labels of namespace {namespace} do not match serviceNamespaceSelector of {name}"
                );
                candidates.reasons.push(text);
                continue;
            }
        }
        candidates.eligible.push(index);
        is_selected.push(by_labels.is_some() || by_namespace.is_some());
    }
    if is_selected.contains(&true) {
        let mut selected = is_selected.into_iter();
        candidates.eligible.retain(|_| selected.next() == Some(true));
    }
    if candidates.eligible.is_empty() && candidates.reasons.is_empty() {
        let known: Vec<&str> = settings.several().iter().map(|one| one.name.as_str()).collect();
        let text = format!("none of {} is one of {}", named.join(", "), known.join(", "));
        candidates.reasons.push(text);
    }
    candidates
}

/// Why a Service cannot leave a load balancer: its address is free again only without its frontend.
fn obstacle_to_leave(document: &Value, spec: &Spec, directory: &BalancerDirectory) -> Option<String> {
    let balancer = name(document);
    let frontends = frontend_ids_in(document, &spec.names);
    if let Some(link) = directory.links_at(&frontends).next() {
        return Some(format!(
            "the frontend in load balancer {balancer} has private link service {}; delete it before the Service moves",
            name(link)
        ));
    }
    let foreign_rules = elements(document, RULES).filter(|rule| !spec.names.owns(name(rule)));
    let foreign = foreign_rules.chain(OTHERS.into_iter().flat_map(|list| elements(document, list)));
    for element in foreign {
        // Outbound rules have several.
        let several = elements(element, FRONTENDS)
            .filter_map(|frontend| frontend.get("id")?.as_str()?.rsplit('/').next());
        let mut used = frontend_of_rule(element).into_iter().chain(several);
        if used.any(|frontend| spec.names.owns(frontend)) {
            return Some(format!(
                "{} of load balancer {balancer} uses the frontend of the Service, which cannot move",
                name(element)
            ));
        }
    }
    None
}

/// The nodes of several load balancers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NodePlacement {
    /// The names of nodes, by the name of the load balancer in lower case.
    pub(crate) nodes: BTreeMap<String, BTreeSet<String>>,
    /// The names of nodes that no load balancer accepts.
    pub(crate) unplaced: BTreeSet<String>,
    /// The names of load balancers that a Service needs, in lower case.
    needed: BTreeSet<String>,
}

/// The load balancers of all Services, by their parts.
#[derive(Debug, Default)]
pub(crate) struct BalancerNeeds {
    /// Those that a Service needs.
    pub(crate) needed: BTreeSet<String>,
    /// Those of them that only exist in a plan.
    pub(crate) planned: BTreeSet<String>,
}

impl NodePlacement {
    /// Places all nodes that may be members.
    pub(crate) fn new(
        cluster: &ClusterView,
        directory: &BalancerDirectory,
        machines: &MachineIndex,
        needs: &BalancerNeeds,
        settings: &BalancerSettings,
    ) -> Self {
        let all = settings.several();
        let is_one_of = |balancer: &MultipleLoadBalancer, condition: &dyn Fn(&str) -> bool| {
            [false, true]
                .into_iter()
                .any(|is_internal| condition(&part(settings, balancer, is_internal)))
        };
        let mut needed = Vec::new();
        let mut existing: BTreeMap<usize, BTreeSet<IpAddr>> = BTreeMap::new();
        for (index, balancer) in all.iter().enumerate() {
            if !is_one_of(balancer, &|part| needs.needed.contains(part)) {
                continue;
            }
            needed.push(index);
            if is_one_of(balancer, &|part| directory.balancer(part).is_some() || needs.planned.contains(part))
            {
                existing.insert(index, pool_addresses(balancer, cluster, directory, settings));
            }
        }
        let mut placement = Self {
            needed: needed
                .iter()
                .filter_map(|index| Some(all.get(*index)?.name.to_ascii_lowercase()))
                .collect(),
            ..Self::default()
        };
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        let mut joining = Vec::new();
        for node in cluster.nodes.eligible().filter(|node| is_member(node, settings)) {
            let eligible = eligible_balancers(node, &needed, machines, settings);
            let families = [IpFamily::V4, IpFamily::V6].into_iter();
            let own: Vec<IpAddr> = families.filter_map(|family| node.address(Some(family))).collect();
            let has_node = |index: &usize| {
                let addresses = existing.get(index);
                addresses.is_some_and(|addresses| own.iter().any(|address| addresses.contains(address)))
            };
            let present = needed.iter().copied().find(has_node);
            if let Some(stays) = eligible.iter().copied().find(has_node) {
                *counts.entry(stays).or_default() += 1;
                placement.add(stays, node, settings);
            } else {
                joining.push((node, eligible, present));
            }
        }
        for (node, eligible, present) in joining {
            let count = |index: &usize| counts.get(index).copied().unwrap_or_default();
            let Some(index) = eligible.into_iter().min_by_key(count) else {
                placement.unplaced.insert(node.view.name.clone());
                continue;
            };
            *counts.entry(index).or_default() += 1;
            if existing.contains_key(&index) {
                placement.add(index, node, settings);
            } else if let Some(present) = present {
                placement.add(present, node, settings);
            }
        }
        placement
    }

    fn add(&mut self, index: usize, node: &ServiceNode, settings: &BalancerSettings) {
        if let Some(balancer) = settings.several().get(index) {
            let nodes = self.nodes.entry(balancer.name.to_ascii_lowercase()).or_default();
            nodes.insert(node.view.name.clone());
        }
    }

    /// Whether a Service needs a load balancer. `balancer`: its name in the config.
    pub(crate) fn needs(&self, balancer: &str) -> bool {
        self.needed.contains(&balancer.to_ascii_lowercase())
    }

    /// Whether a load balancer has a node. `balancer`: its name in the config.
    pub(crate) fn has(&self, balancer: &str, node: &ServiceNode) -> bool {
        let nodes = self.nodes.get(&balancer.to_ascii_lowercase());
        nodes.is_some_and(|nodes| nodes.contains(&node.view.name))
    }
}

/// The load balancers that may have a node, in the order of the config.
fn eligible_balancers(
    node: &ServiceNode,
    needed: &[usize],
    machines: &MachineIndex,
    settings: &BalancerSettings,
) -> Vec<usize> {
    let all = settings.several();
    let set = vm_set(node, machines, settings);
    let of = |condition: &dyn Fn(&MultipleLoadBalancer) -> bool| -> Vec<usize> {
        needed.iter().copied().filter(|index| all.get(*index).is_some_and(condition)).collect()
    };
    let is_primary = |balancer: &MultipleLoadBalancer| {
        set.as_ref().is_some_and(|set| balancer.primary_vm_set.eq_ignore_ascii_case(set))
    };
    let primary = of(&is_primary);
    if !primary.is_empty() {
        return primary;
    }
    let has_selector = |balancer: &MultipleLoadBalancer| {
        balancer.node_selector.as_ref().is_some_and(|selector| !selector.is_empty())
    };
    let matches = |balancer: &MultipleLoadBalancer| {
        let selector = balancer.node_selector.as_ref();
        has_selector(balancer) && selector.is_some_and(|selector| selector.matches(&node.view.labels))
    };
    let selected = of(&matches);
    if !selected.is_empty() {
        return selected;
    }
    of(&|balancer| !has_selector(balancer))
}

/// The scale set or availability set of a node's machine; the machine itself if it is in none.
fn vm_set(node: &ServiceNode, machines: &MachineIndex, settings: &BalancerSettings) -> Option<String> {
    let id = machine_of(node, settings)?;
    if let Some(set) = machines.vm_set(&id) {
        return Some(set.to_owned());
    }
    match id.kind {
        MachineKind::Instance { .. } => None,
        MachineKind::Machine { name } => Some(name),
    }
}

/// The addresses in the pools of one of several load balancers, internal and external.
fn pool_addresses(
    balancer: &MultipleLoadBalancer,
    cluster: &ClusterView,
    directory: &BalancerDirectory,
    settings: &BalancerSettings,
) -> BTreeSet<IpAddr> {
    let own = [IpFamily::V4, IpFamily::V6].map(|family| names::pool(&cluster.name, family));
    let documents = [false, true]
        .into_iter()
        .filter_map(|is_internal| directory.balancer(&part(settings, balancer, is_internal)));
    let pools = documents
        .flat_map(|document| elements(document, POOLS))
        .filter(|pool| own.iter().any(|own| own.eq_ignore_ascii_case(name(pool))));
    let addresses = pools.flat_map(|pool| elements(pool, ADDRESSES)).filter_map(|address| {
        let properties = address.get(field::PROPERTIES)?;
        properties.get("ipAddress")?.as_str()?.parse().ok()
    });
    addresses.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use ccm_core::{
        AddressType, Labels, NodeAddress, NodeView,
        load_balancer::{ServiceId, ServiceType},
    };
    use serde_json::json;

    use super::*;
    use crate::{
        config::{CloudConf, LabelSelector},
        load_balancer::laws,
    };

    fn settings(config: &Value) -> BalancerSettings {
        let multiple_load_balancers = serde_json::from_value(config.clone()).unwrap();
        BalancerSettings {
            conf: CloudConf {
                backend_pool_type: "nodeIP".to_owned(),
                multiple_load_balancers,
                ..CloudConf::default()
            },
            ..BalancerSettings::clone(&laws::model().settings)
        }
    }

    fn service(uid: &str, annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> ServiceView {
        ServiceView {
            id: ServiceId::new("shop", uid, uid),
            service_type: ServiceType::LoadBalancer,
            annotations: annotations.iter().copied().collect(),
            labels: labels.iter().copied().collect(),
            ..ServiceView::default()
        }
    }

    /// A load balancer with rules of these Services, each with its frontend.
    fn balancer(name: &str, services: &[&str], nodes: &[&str]) -> Arc<Value> {
        let id =
            format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/{name}");
        let rules: Vec<Value> = services
            .iter()
            .map(|uid| {
                let frontend = json!({"id": format!("{id}/{FRONTENDS}/a{uid}")});
                json!({"name": format!("a{uid}-TCP-80"), "properties": {"frontendIPConfiguration": frontend}})
            })
            .collect();
        let frontends: Vec<Value> =
            services.iter().map(|uid| json!({"name": format!("a{uid}"), "properties": {}})).collect();
        let addresses: Vec<Value> =
            nodes.iter().map(|ip| json!({"name": ip, "properties": {"ipAddress": ip}})).collect();
        let pool = json!({"name": "one", "properties": {ADDRESSES: addresses}});
        let properties = json!({FRONTENDS: frontends, RULES: rules, POOLS: [pool]});
        Arc::new(json!({"id": id, "name": name, "properties": properties}))
    }

    fn directory(balancers: Vec<Arc<Value>>) -> BalancerDirectory {
        BalancerDirectory {
            balancers,
            ..BalancerDirectory::default()
        }
    }

    fn place(
        service: &ServiceView,
        directory: &BalancerDirectory,
        settings: &BalancerSettings,
    ) -> ServicePlacement {
        place_service(service, &Spec::of(service, "one", settings), directory, settings)
    }

    /// The name of the load balancer of a Service that is not refused.
    fn placed(service: &ServiceView, directory: &BalancerDirectory, settings: &BalancerSettings) -> String {
        let placement = place(service, directory, settings);
        assert_eq!(placement.problem, None);
        placement.part.strip_prefix("g/").unwrap().to_owned()
    }

    const NAMED: &str = a::CONFIGURATIONS;

    #[test]
    fn a_service_stays_then_joins_the_one_with_the_fewest_rules() {
        let two =
            settings(&json!([{"name": "one", "primaryVMSet": "x"}, {"name": "two", "primaryVMSet": "y"}]));
        let web = service("u1", &[], &[]);
        let busy = directory(vec![balancer("one", &["u2", "u3"], &[]), balancer("two", &["u4"], &[])]);
        assert_eq!(placed(&web, &busy, &two), "two");
        // One that does not exist has no rules.
        assert_eq!(placed(&web, &directory(vec![balancer("two", &["u4"], &[])]), &two), "one");
        let present = directory(vec![
            balancer("one", &["u1", "u2", "u3"], &[]),
            balancer("two", &[], &[]),
        ]);
        assert_eq!(placed(&web, &present, &two), "one");
        // An internal load balancer is another one.
        let internal = service("u1", &[(a::INTERNAL, "true"), (NAMED, " TWO ,")], &[]);
        assert_eq!(placed(&internal, &present, &two), "two-internal");
    }

    #[test]
    fn services_of_one_moment_are_spread_and_the_place_does_not_change() {
        let two =
            settings(&json!([{"name": "one", "primaryVMSet": "x"}, {"name": "two", "primaryVMSet": "y"}]));
        let empty = BalancerDirectory::default();
        let all: Vec<String> =
            (0..100).map(|uid| placed(&service(&format!("u{uid}"), &[], &[]), &empty, &two)).collect();
        let at_one = all.iter().filter(|name| *name == "one").count();
        assert!((30..=70).contains(&at_one), "{at_one}");
        let again = placed(&service("u7", &[], &[]), &empty, &two);
        assert_eq!(again, all[7]);
        // Services that name one address come together.
        let shares = |uid: &str| service(uid, &[(a::ADDRESS_NAME, "common")], &[]);
        let first = placed(&shares("u0"), &empty, &two);
        assert!((1..20).all(|uid| placed(&shares(&format!("u{uid}")), &empty, &two) == first));
    }

    #[test]
    fn selectors_win_over_load_balancers_without() {
        let config = json!([
            {"name": "one", "primaryVMSet": "x"},
            {"name": "two", "primaryVMSet": "y", "serviceLabelSelector": {"matchLabels": {"tier": "two"}}},
            {"name": "three", "primaryVMSet": "z", "serviceNamespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}},
            {"name": "four", "primaryVMSet": "w", "allowServicePlacement": false, "serviceLabelSelector": {}},
        ]);
        let four = settings(&config);
        let mut directory = BalancerDirectory::default();
        assert_eq!(placed(&service("u1", &[], &[]), &directory, &four), "one");
        let labeled = service("u1", &[], &[("tier", "two")]);
        assert_eq!(placed(&labeled, &directory, &four), "two");
        // The present one has no selector, and is left for the one that matches.
        directory.balancers.push(balancer("one", &["u1"], &[]));
        assert_eq!(placed(&labeled, &directory, &four), "two");
        let labels: Labels = [("team", "a")].into_iter().collect();
        directory.namespaces = Arc::new(BTreeMap::from([("shop".to_owned(), labels)]));
        assert_eq!(placed(&service("u9", &[], &[]), &directory, &four), "three");
        // One that accepts no Services keeps those that it has.
        directory.balancers = vec![balancer("four", &["u1"], &[])];
        directory.namespaces = Arc::default();
        assert_eq!(placed(&service("u1", &[(NAMED, "one,four")], &[]), &directory, &four), "four");
        let refused = place(&service("u5", &[(NAMED, "two,three,four")], &[]), &directory, &four);
        let text = format!("{:?}", refused.problem.unwrap());
        for reason in [
            "do not match serviceLabelSelector of two",
            "namespace shop do not match serviceNamespaceSelector of three",
            "four has allowServicePlacement false",
        ] {
            assert!(text.contains(reason), "{reason} is not in {text}");
        }
    }

    #[test]
    fn a_service_whose_frontend_is_in_use_does_not_move() {
        let two =
            settings(&json!([{"name": "one", "primaryVMSet": "x"}, {"name": "two", "primaryVMSet": "y"}]));
        let web = service("u1", &[(NAMED, "two")], &[]);
        let mut shared = balancer("one", &["u1"], &[]);
        let present = directory(vec![Arc::clone(&shared)]);
        assert_eq!(placed(&web, &present, &two), "two");
        // A rule of another Service.
        let mut rule = shared["properties"][RULES][0].clone();
        rule["name"] = "au2-TCP-81".into();
        Arc::make_mut(&mut shared)["properties"][RULES].as_array_mut().unwrap().push(rule);
        let refused = place(&web, &directory(vec![shared]), &two);
        assert_eq!(refused.part, "g/one");
        assert!(
            format!("{:?}", refused.problem).contains("au2-TCP-81 of load balancer one uses the frontend")
        );
        let frontend = present.balancers[0]["id"].as_str().unwrap();
        let frontends = json!([{"id": format!("{frontend}/{FRONTENDS}/au1")}]);
        let link = json!({"id": "/pls", "name": "pls", "properties": {"loadBalancerFrontendIpConfigurations": frontends}});
        let linked = BalancerDirectory {
            links: vec![Arc::new(link)],
            ..present
        };
        let refused = place(&web, &linked, &two);
        assert!(format!("{:?}", refused.problem).contains("has private link service pls"));
    }

    fn node(name: &str, ip: &str, pool: &str) -> ServiceNode {
        let id = format!(
            "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/{name}-set/virtualMachines/0"
        );
        ServiceNode {
            view: Arc::new(NodeView {
                name: name.to_owned(),
                provider_id: Some(id),
                labels: [("pool", pool)].into_iter().collect(),
                ..NodeView::default()
            }),
            addresses: [NodeAddress::new(AddressType::InternalIP, ip)].into(),
            eligible: true,
            ready: true,
        }
    }

    fn place_nodes(
        nodes: Vec<ServiceNode>,
        balancers: Vec<Arc<Value>>,
        needed: &[&str],
        settings: &BalancerSettings,
    ) -> NodePlacement {
        let cluster = ClusterView {
            name: "one".into(),
            nodes: nodes.into_iter().collect(),
            ..ClusterView::default()
        };
        let needs = BalancerNeeds {
            needed: needed.iter().map(|name| format!("g/{name}")).collect(),
            planned: BTreeSet::new(),
        };
        NodePlacement::new(&cluster, &directory(balancers), &MachineIndex::default(), &needs, settings)
    }

    fn shown(placement: &NodePlacement) -> Vec<String> {
        let lists = placement.nodes.iter().map(|(balancer, nodes)| {
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            format!("{balancer}: {}", nodes.join(" "))
        });
        lists.collect()
    }

    #[test]
    fn nodes_belong_to_their_machines_set_then_to_selectors_then_to_the_one_with_the_fewest() {
        let config = json!([
            {"name": "one", "primaryVMSet": "A-set"},
            {"name": "two", "primaryVMSet": "x", "nodeSelector": {"matchLabels": {"pool": "b"}}},
            {"name": "three", "primaryVMSet": "y", "nodeSelector": {}},
        ]);
        let three = settings(&config);
        let nodes = || {
            vec![
                node("a", "10.0.0.1", "b"),
                node("b", "10.0.0.2", "b"),
                node("c", "10.0.0.3", ""),
                node("d", "10.0.0.4", ""),
                node("e", "10.0.0.5", ""),
            ]
        };
        let existing = || ["one", "two", "three"].map(|name| balancer(name, &[], &[])).to_vec();
        let all = ["one", "two", "three"];
        let first = place_nodes(nodes(), existing(), &all, &three);
        assert_eq!(shown(&first), ["one: a d", "three: c e", "two: b"]);
        assert_eq!(first.unplaced, BTreeSet::new());
        // They stay where they are, also if another one has fewer.
        let mut present = existing();
        present[2] = balancer("three", &[], &["10.0.0.3", "10.0.0.4", "10.0.0.5"]);
        let stay = place_nodes(nodes(), present, &all, &three);
        assert_eq!(shown(&stay), ["one: a", "three: c d e", "two: b"]);
        // A load balancer that no Service needs has no nodes.
        let without = place_nodes(nodes(), existing(), &["one-internal", "two"], &three);
        assert_eq!(shown(&without), ["one: a c d e", "two: b"]);
    }

    #[test]
    fn a_node_stays_while_its_load_balancer_is_created_and_is_named_if_none_accepts_it() {
        let config = json!([
            {"name": "one", "primaryVMSet": "a-set", "nodeSelector": {"matchLabels": {"pool": "a"}}},
            {"name": "two", "primaryVMSet": "b-set"},
        ]);
        let two = settings(&config);
        let nodes = || {
            vec![
                node("a", "10.0.0.1", ""),
                node("b", "10.0.0.2", "a"),
                node("c", "10.0.0.3", ""),
            ]
        };
        let before = vec![balancer("one", &[], &["10.0.0.1", "10.0.0.2"])];
        let creating = place_nodes(nodes(), before.clone(), &["one", "two"], &two);
        assert_eq!(shown(&creating), ["one: a b"]);
        assert_eq!(creating.unplaced, BTreeSet::new());
        let mut after = before.clone();
        after.push(balancer("two", &[], &[]));
        assert_eq!(shown(&place_nodes(nodes(), after, &["one", "two"], &two)), ["one: a", "two: b c"]);
        let alone = place_nodes(nodes(), before, &["one"], &two);
        assert_eq!(shown(&alone), ["one: a b"]);
        assert_eq!(alone.unplaced, BTreeSet::from(["c".to_owned()]));
    }

    #[test]
    fn selectors_are_those_of_the_kubernetes_api() {
        let selector = |text: &str| -> LabelSelector { serde_json::from_str(text).unwrap() };
        let labels: Labels = [("pool", "a"), ("zone", "")].into_iter().collect();
        for (text, matches) in [
            ("{}", true),
            (r#"{"matchLabels": {"pool": "a"}}"#, true),
            (r#"{"matchLabels": {"pool": "a", "other": "b"}}"#, false),
            (r#"{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}]}"#, true),
            (r#"{"matchExpressions": [{"key": "other", "operator": "In", "values": ["a"]}]}"#, false),
            (r#"{"matchExpressions": [{"key": "other", "operator": "NotIn", "values": ["a"]}]}"#, true),
            (r#"{"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["a"]}]}"#, false),
            (r#"{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}"#, true),
            (r#"{"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}"#, false),
        ] {
            assert_eq!(selector(text).matches(&labels), matches, "{text}");
        }
    }
}
