//! What a Service asks for.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use ccm_core::load_balancer::{InvalidField, IpFamily, ServiceView};

use super::{
    annotations::{self as a, is_true},
    directory::{BalancerDirectory, part_of},
    names::{self, ServiceNames},
    private_link::{self, LinkSpec},
    rules::{self, RuleSet, has_floating_ip},
    settings::BalancerSettings,
    sources::AllowedSources,
};

/// What a Service asks for, by its fields, its annotations and the config.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) is_internal: bool,
    /// The families of its addresses, in order.
    pub(crate) families: Vec<IpFamily>,
    pub(crate) names: ServiceNames,
    /// The name of its load balancer, unless the cluster has several of each kind.
    pub(crate) balancer: String,
    /// The subnet of an internal load balancer, if an annotation names it.
    pub(crate) subnet: Option<String>,
    /// The address that it asks for, by family.
    pub(crate) pinned: Vec<IpAddr>,
    /// Its public IP addresses. None for an internal load balancer.
    pub(crate) addresses: Vec<PublicAddress>,
    pub(crate) address_settings: AddressSettings,
    /// Further addresses for its status and its security rules, which others provide.
    pub(crate) additional: Vec<IpAddr>,
    /// Whom it admits.
    pub(crate) sources: AllowedSources,
    /// Rules and probes of its families.
    pub(crate) rules: Vec<(IpFamily, RuleSet)>,
    /// Its private link service, if it asks for one.
    pub(crate) link: Option<LinkSpec>,
    /// The part of a private link service that no listing has and for which it does not ask any more, if annotations still name it.
    pub(crate) former_link: Option<String>,
    /// Why it is refused.
    pub(crate) invalid: Vec<InvalidField>,
}

/// A public IP address of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicAddress {
    pub(crate) family: IpFamily,
    /// The resource group, in lower case.
    pub(crate) group: String,
    /// Whether the listing of the cluster's addresses has it.
    is_in_listing: bool,
    pub(crate) choice: AddressChoice,
}

/// How a public IP address is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressChoice {
    /// The program creates it for the Service.
    Managed {
        name: String,
        /// The ID of the prefix to which it belongs.
        prefix: Option<String>,
    },
    /// An existing one with this name.
    Named(String),
    /// An existing one with this IP address.
    Pinned(IpAddr),
}

/// What a Service asks for of its public IP addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressSettings {
    pub(crate) tags: Vec<(String, String)>,
    /// Type and value.
    pub(crate) ip_tags: Vec<(String, String)>,
    /// The DNS label; empty: none. `None`: the one that the address has.
    pub(crate) dns_label: Option<String>,
}

impl AddressSettings {
    pub(crate) fn of(service: &ServiceView) -> Self {
        Self {
            tags: pairs(service, a::ADDRESS_TAGS),
            ip_tags: pairs(service, a::IP_TAGS),
            dns_label: service.annotation(a::DNS_LABEL).map(|label| label.trim().to_owned()),
        }
    }
}

/// The pairs in an annotation: `a=b,c=d`. Other items are left out.
fn pairs(service: &ServiceView, key: &str) -> Vec<(String, String)> {
    let items = service.annotation_text(key).unwrap_or_default().split(',');
    let pairs = items.filter_map(|item| item.split_once('=')).filter(|(_, value)| !value.contains('='));
    pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect()
}

/// The value of an annotation of a family. A Service with IPv6 alone may use that of IPv4.
fn of_family<'a>(
    service: &'a ServiceView,
    [v4, v6]: [&str; 2],
    family: IpFamily,
    is_dual_stack: bool,
) -> Option<&'a str> {
    let of = |key: &str| service.annotation_text(key).map(str::trim).filter(|value| !value.is_empty());
    match family {
        IpFamily::V4 => of(v4),
        IpFamily::V6 if is_dual_stack => of(v6),
        IpFamily::V6 => of(v6).or(of(v4)),
    }
}

impl PublicAddress {
    /// The key of its part: group and name. An address that is not in the listing and whose name is not known has its IP address in
    /// place of the name.
    pub(crate) fn part(&self, directory: &BalancerDirectory) -> String {
        let group = &self.group;
        match &self.choice {
            AddressChoice::Managed { name, .. } => format!("{group}/{name}"),
            AddressChoice::Named(name) => {
                let part = format!("{group}/{name}");
                // Names differ in their case alone.
                directory.address(&part).map_or(part, part_of)
            }
            AddressChoice::Pinned(address) => {
                let part = format!("{group}/{}{address}", names::PINNED);
                let listed = if self.is_in_listing {
                    directory.address(&part)
                } else {
                    None
                };
                listed.map_or(part, part_of)
            }
        }
    }

    /// Whether the program creates it.
    pub(crate) fn is_managed(&self) -> bool {
        matches!(self.choice, AddressChoice::Managed { .. })
    }
}

/// The resource group of the public IP addresses of a Service, in lower case.
pub(crate) fn address_group(service: &ServiceView, settings: &BalancerSettings) -> String {
    let group = service.annotation_text(a::ADDRESS_GROUP).map(str::trim).unwrap_or_default();
    if group.is_empty() {
        settings.group.clone()
    } else {
        group.to_ascii_lowercase()
    }
}

impl Spec {
    pub(crate) fn of(service: &ServiceView, cluster: &str, settings: &BalancerSettings) -> Self {
        let is_internal = is_true(service, a::INTERNAL);
        let mut families = service.ip_families.clone();
        if families.is_empty() {
            families.push(IpFamily::V4);
        }
        let subnet = service.annotation_text(a::INTERNAL_SUBNET).map(str::trim);
        let subnet = subnet.filter(|subnet| is_internal && !subnet.is_empty());
        let names = ServiceNames::new(&service.id, subnet, families.len() > 1);
        let pinned = pinned(service);
        let addresses = if is_internal {
            Vec::new()
        } else {
            let is_dual_stack = families.len() > 1;
            let group = address_group(service, settings);
            let address = |family: &IpFamily| {
                let of_family = |keys| of_family(service, keys, *family, is_dual_stack);
                let prefix = of_family([a::PREFIX, a::PREFIX_V6]);
                let pinned = pinned.iter().find(|address| IpFamily::of(**address) == *family);
                let choice = match (of_family([a::ADDRESS_NAME, a::ADDRESS_NAME_V6]), prefix, pinned) {
                    (Some(name), _, _) => AddressChoice::Named(name.to_owned()),
                    (None, None, Some(address)) => AddressChoice::Pinned(*address),
                    (None, prefix, _) => AddressChoice::Managed {
                        name: names.public_address(cluster, prefix, *family),
                        prefix: prefix.map(str::to_owned),
                    },
                };
                PublicAddress {
                    family: *family,
                    is_in_listing: group == settings.group,
                    group: group.clone(),
                    choice,
                }
            };
            families.iter().map(address).collect()
        };
        let rules = |family: &IpFamily| (*family, rules::rules(service, &names, *family, &settings.conf));
        let (additional, not_addresses) = additional(service);
        let (link, invalid_link) = LinkSpec::of(service, &names, settings);
        let is_link_listed = link.group == settings.link_group;
        let (link, former_link) = if private_link::is_asked_for(service) {
            (Some(link), None)
        } else {
            (None, (!is_link_listed).then(|| link.part()))
        };
        let mut spec = Self {
            is_internal,
            balancer: settings.balancer(cluster, is_internal),
            subnet: subnet.map(str::to_owned),
            pinned,
            addresses,
            address_settings: AddressSettings::of(service),
            additional,
            sources: AllowedSources::of(service),
            rules: families.iter().map(rules).collect(),
            families,
            names,
            link,
            former_link,
            invalid: Vec::new(),
        };
        spec.invalid = spec.problems(service, cluster, settings);
        spec.invalid.extend(not_addresses);
        if spec.link.is_some() {
            let (families, is_internal) = (&spec.families, spec.is_internal);
            spec.invalid.extend(private_link::frontend_problems(service, families, is_internal));
            spec.invalid.extend(invalid_link);
        }
        spec
    }

    /// The name of its subnet.
    pub(crate) fn subnet_name<'a>(&'a self, settings: &'a BalancerSettings) -> &'a str {
        self.subnet.as_deref().unwrap_or(&settings.conf.subnet_name)
    }

    /// Why it is refused, besides additional addresses that are none.
    fn problems(
        &self,
        service: &ServiceView,
        cluster: &str,
        settings: &BalancerSettings,
    ) -> Vec<InvalidField> {
        let mut invalid = unsupported(service, settings);
        if self.families.iter().any(|family| !has_floating_ip(service, *family)) {
            invalid.extend(without_floating_ip(service, &self.sources));
        }
        invalid.extend(self.sources.invalid.iter().cloned());
        for field in self.rules.iter().flat_map(|(_, set)| &set.invalid) {
            // Both families have the same problems.
            if !invalid.contains(field) {
                invalid.push(field.clone());
            }
        }
        let conf = &settings.conf;
        if conf.is_basic() {
            invalid.extend(self.needs_standard());
        }
        for (is_set, problem) in [
            (
                conf.security_group_name.trim().is_empty(),
                "securityGroupName is not set in the cloud config",
            ),
            (
                settings.has_address_pools() && conf.vnet_name.trim().is_empty(),
                "loadBalancerBackendPoolConfigurationType nodeIP needs vnetName in the cloud config",
            ),
        ] {
            if is_set {
                invalid.push(InvalidField::spec("type", problem));
            }
        }
        let several = settings.several();
        if !several.is_empty() && !several.iter().any(|one| one.name.eq_ignore_ascii_case(cluster)) {
            let problem = format!(
                "multipleStandardLoadBalancerConfigurations in the cloud config needs an entry with the name of the cluster, {cluster} (--cluster-name)"
            );
            invalid.push(InvalidField::spec("type", problem));
        }
        if self.is_internal && (conf.vnet_name.is_empty() || self.subnet_name(settings).is_empty()) {
            let problem = "an internal load balancer needs vnetName and subnetName in the cloud config";
            invalid.push(InvalidField::annotation(a::INTERNAL, problem));
        }
        if !self.is_internal {
            for address in self.pinned.iter().filter(|address| !may_be_public(**address)) {
                let problem = format!(
                    "{address} is not a public address; set {} for an internal load balancer",
                    a::INTERNAL
                );
                invalid.push(InvalidField::spec("loadBalancerIP", problem));
            }
        }
        invalid
    }
}

impl Spec {
    /// What it asks for and basic load balancers do not have.
    fn needs_standard(&self) -> Vec<InvalidField> {
        const WHY: &str = "and loadBalancerSku in the cloud config is basic";
        let mut invalid = Vec::new();
        if self.link.is_some() {
            let problem = format!("a private link service needs a standard load balancer, {WHY}");
            invalid.push(InvalidField::annotation(a::LINK_CREATE, problem));
        }
        let has_prefix = |address: &PublicAddress| {
            matches!(address.choice, AddressChoice::Managed { prefix: Some(_), .. })
        };
        if self.addresses.iter().any(has_prefix) {
            let problem = format!("a public IP prefix has standard addresses, {WHY}");
            invalid.push(InvalidField::annotation(a::PREFIX, problem));
        }
        if self.addresses.iter().any(|address| address.family == IpFamily::V6) {
            let problem = format!("a static public IP address of IPv6 is a standard one, {WHY}");
            invalid.push(InvalidField::spec("ipFamilies", problem));
        }
        invalid
    }
}

/// The addresses that annotations or `spec.loadBalancerIP` ask for.
fn pinned(service: &ServiceView) -> Vec<IpAddr> {
    let of_annotation = [a::ADDRESS_V4, a::ADDRESS_V6].map(|key| service.annotation_text(key));
    let mut pinned: Vec<IpAddr> = Vec::new();
    let all = of_annotation.into_iter().flatten().chain([&*service.load_balancer_ip]);
    for address in all.filter_map(|text| text.trim().parse().ok()) {
        let family = IpFamily::of(address);
        if pinned.iter().all(|other| IpFamily::of(*other) != family) {
            pinned.push(address);
        }
    }
    pinned
}

/// Annotations and values that this provider does not support. A Service that uses one is refused, since it would be served differently
/// than it asks for.
fn unsupported(service: &ServiceView, settings: &BalancerSettings) -> Vec<InvalidField> {
    let mut invalid = Vec::new();
    let mode = service.annotation_text(a::MODE).unwrap_or_default().trim();
    let (_, primary) = settings.conf.primary_vm_set();
    // The load balancer of the primary set is the one that each Service has.
    let is_primary = settings.conf.is_basic() && mode.eq_ignore_ascii_case(primary);
    if !mode.is_empty() && !mode.eq_ignore_ascii_case("false") && !is_primary {
        invalid.push(InvalidField::annotation(a::MODE, "not supported by this program; remove it"));
    }
    for key in [a::ADDRESS_V4, a::ADDRESS_V6] {
        if let Some(text) = service.annotation_text(key)
            && text.trim().parse::<IpAddr>().is_err()
        {
            invalid.push(InvalidField::annotation(key, format!("{text:?} is not an IP address")));
        }
    }
    let ip = &*service.load_balancer_ip;
    if !ip.is_empty() && ip.trim().parse::<IpAddr>().is_err() {
        invalid.push(InvalidField::spec("loadBalancerIP", format!("{ip:?} is not an IP address")));
    }
    invalid
}

/// The additional addresses, and the entries that are none.
fn additional(service: &ServiceView) -> (Vec<IpAddr>, Vec<InvalidField>) {
    let (mut addresses, mut invalid) = (Vec::new(), Vec::new());
    let entries = service
        .annotation_text(a::ADDITIONAL_ADDRESSES)
        .unwrap_or_default()
        .split(',')
        .map(str::trim);
    for entry in entries.filter(|entry| !entry.is_empty()) {
        match entry.parse::<IpAddr>() {
            Ok(address) if addresses.contains(&address) => {}
            Ok(address) => addresses.push(address),
            Err(_) => {
                let problem = format!("{entry:?} is not an IP address");
                invalid.push(InvalidField::annotation(a::ADDITIONAL_ADDRESSES, problem));
            }
        }
    }
    (addresses, invalid)
}

/// Whether an address can be that of an external load balancer.
fn may_be_public(address: IpAddr) -> bool {
    /// The address of the platform's own services.
    const PLATFORM: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
    let is_reserved = address.is_loopback() || address.is_unspecified() || address.is_multicast();
    !is_reserved
        && match address {
            IpAddr::V4(address) => {
                let [first, second, ..] = address.octets();
                let is_shared = first == 100 && (64..128).contains(&second);
                !(is_shared || address.is_private() || address.is_link_local() || address == PLATFORM)
            }
            IpAddr::V6(address) => !(address.is_unique_local() || address.is_unicast_link_local()),
        }
}

/// What a Service cannot have if packets arrive at the addresses and node ports of nodes.
fn without_floating_ip(service: &ServiceView, sources: &AllowedSources) -> Vec<InvalidField> {
    let field = |problem: String| {
        if is_true(service, a::NO_FLOATING_IP) {
            InvalidField::annotation(a::NO_FLOATING_IP, problem)
        } else {
            InvalidField::spec("ipFamilies", format!("an internal load balancer with IPv6 {problem}"))
        }
    };
    let mut invalid = Vec::new();
    if service.ports.iter().any(|port| port.node_port == 0) {
        invalid.push(field("needs node ports; remove spec.allocateLoadBalancerNodePorts: false".to_owned()));
    }
    if sources.denies_others {
        // The rule would have the addresses of nodes as its destinations, and would cut them off from the API server and from each other.
        let problem = format!(
            "is not possible together with {} or with ranges that are not networks; remove them",
            a::DENY_OTHERS
        );
        invalid.push(field(problem));
    }
    invalid
}

/// The names of the pools that Services with these families need.
pub(crate) fn pools(cluster: &str, families: &BTreeSet<IpFamily>) -> Vec<String> {
    families.iter().map(|family| names::pool(cluster, *family)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::testkit::cluster::{annotate, service};

    use super::*;
    use crate::{config::CloudConf, load_balancer::laws};

    #[test]
    fn services_of_basic_load_balancers_ask_for_nothing_that_only_standard_ones_have() {
        let settings = |sku: &str| BalancerSettings {
            conf: CloudConf {
                load_balancer_sku: sku.to_owned(),
                primary_scale_set: "pool".to_owned(),
                ..laws::model().settings.conf.clone()
            },
            ..BalancerSettings::clone(&laws::model().settings)
        };
        let problems = |service: &ServiceView, sku: &str| -> Vec<String> {
            let spec = Spec::of(service, "kubernetes", &settings(sku));
            spec.invalid.iter().map(|invalid| invalid.message.clone()).collect()
        };
        let mut web = service("web", &[80]);
        annotate(&mut web, a::MODE, Some("Pool"));
        assert_eq!(problems(&web, "basic"), [""; 0]);
        let refusal = format!("{}: not supported by this program; remove it", a::MODE);
        assert_eq!(problems(&web, "standard"), [refusal.as_str()]);
        annotate(&mut web, a::MODE, Some("other"));
        assert_eq!(problems(&web, "basic"), [refusal]);
        annotate(&mut web, a::MODE, None);

        web.ip_families = vec![IpFamily::V4, IpFamily::V6];
        annotate(&mut web, a::NO_FLOATING_IP, Some("true"));
        for (key, value) in [
            (a::LINK_CREATE, "true"),
            (a::PREFIX, "/prefixes/v4"),
            (a::PREFIX_V6, "/prefixes/v6"),
        ] {
            annotate(&mut web, key, Some(value));
        }
        assert_eq!(problems(&web, "standard"), [""; 0]);
        let found = problems(&web, "Basic");
        let count = |part: &str| found.iter().filter(|problem| problem.contains(part)).count();
        assert_eq!(count("a private link service needs"), 1, "{found:?}");
        assert_eq!(count("a public IP prefix has"), 1, "{found:?}");
        assert_eq!(count("of IPv6 is a standard one"), 1, "{found:?}");
        // An internal one needs no public address.
        web.ip_families = vec![IpFamily::V6];
        annotate(&mut web, a::LINK_CREATE, None);
        annotate(&mut web, a::INTERNAL, Some("true"));
        assert_eq!(problems(&web, "basic"), [""; 0]);
    }
}
