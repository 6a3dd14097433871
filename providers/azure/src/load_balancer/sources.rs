//! Whom a Service admits, and the rules of the network security group for that.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::load_balancer::{InvalidField, IpFamily, Protocol, ServiceView, SourceRanges};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    annotations::{ALLOWED_RANGES, ALLOWED_TAGS, DENY_OTHERS, INTERNAL, is_true},
    names::allow_rule,
    rules::has_floating_ip,
};

/// The service tag of all clients.
const INTERNET: &str = "Internet";
/// The priorities of our rules: from this one up, and from the other one down for those that refuse.
const FIRST_PRIORITY: u16 = 500;
const LAST_PRIORITY: u16 = 4095;

/// The clients that a Service admits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllowedSources {
    /// Networks, none of which contains another, and no two of which are halves of one.
    ranges: Vec<IpNet>,
    /// Service tags.
    tags: BTreeSet<String>,
    /// Whether a rule refuses all other clients.
    pub(crate) denies_others: bool,
    /// Ranges that are not networks.
    pub(crate) ignored: Vec<String>,
    pub(crate) invalid: Vec<InvalidField>,
}

/// A rule that admits clients, without its destinations and its priority.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AllowRule {
    pub(crate) name: String,
    /// `Tcp`, `Udp` or `*`.
    pub(crate) protocol: &'static str,
    /// Sorted networks, or one service tag.
    pub(crate) sources: Vec<String>,
    /// Sorted as texts.
    pub(crate) ports: Vec<String>,
}

impl AllowedSources {
    /// Reads the fields and annotations of a Service. An entry that is not a network is left out, and refuses all clients that
    /// no other entry admits.
    pub(crate) fn of(service: &ServiceView) -> Self {
        let spec: Vec<&str> = service
            .source_ranges
            .iter()
            .flatten()
            .map(AsRef::as_ref)
            .filter(|text| !text.is_empty())
            .collect();
        let annotation: Vec<&str> =
            items(service, ALLOWED_RANGES).chain(items(service, SourceRanges::ANNOTATION)).collect();
        let tags: BTreeSet<String> = items(service, ALLOWED_TAGS).map(str::to_owned).collect();
        let mut invalid = Vec::new();
        if !spec.is_empty() && items(service, ALLOWED_RANGES).next().is_some() {
            let problem = "not together with spec.loadBalancerSourceRanges; use one of them";
            invalid.push(InvalidField::annotation(ALLOWED_RANGES, problem));
        }
        let mut ignored = Vec::new();
        let mut parse = |texts: &[&str]| -> Vec<IpNet> {
            let mut networks = Vec::new();
            for text in texts {
                match network(text) {
                    Some(network) => networks.push(network),
                    None => ignored.push((*text).to_owned()),
                }
            }
            networks
        };
        let (spec_ranges, annotation_ranges) = (parse(&spec), parse(&annotation));
        let is_all = |ranges: &[IpNet]| ranges.iter().any(|range| range.prefix_len() == 0);
        let is_open = |given: &[&str], ranges: &[IpNet]| given.is_empty() || is_all(ranges);
        let has_ranges = !spec.is_empty() || !annotation.is_empty();
        let admits_internet = tags.is_empty()
            && ignored.is_empty()
            && is_open(&spec, &spec_ranges)
            && is_open(&annotation, &annotation_ranges)
            && (!is_true(service, INTERNAL) || has_ranges);
        let all: Vec<IpNet> = spec_ranges.into_iter().chain(annotation_ranges).collect();
        let mut tags = tags;
        if admits_internet && !is_all(&all) {
            tags.insert(INTERNET.to_owned());
        }
        Self {
            denies_others: !ignored.is_empty() || (has_ranges && is_true(service, DENY_OTHERS)),
            ranges: aggregate(&all),
            tags,
            ignored,
            invalid,
        }
    }

    /// The rules for one family.
    pub(crate) fn rules(&self, service: &ServiceView, family: IpFamily) -> Vec<AllowRule> {
        let mut ranges: Vec<String> = self
            .ranges
            .iter()
            .filter(|range| IpFamily::of(range.addr()) == family)
            .map(ToString::to_string)
            .collect();
        ranges.sort_unstable();
        let of_ranges = (!ranges.is_empty()).then_some(ranges);
        let sources: Vec<Vec<String>> =
            self.tags.iter().map(|tag| vec![tag.clone()]).chain(of_ranges).collect();
        let mut rules = Vec::new();
        for (protocol, ports) in ports(service, family) {
            for sources in &sources {
                rules.push(AllowRule {
                    name: allow_rule(family, protocol, sources, &ports),
                    protocol,
                    sources: sources.clone(),
                    ports: ports.clone(),
                });
            }
        }
        rules
    }
}

/// The ports of each protocol as packets to the nodes have them.
fn ports(service: &ServiceView, family: IpFamily) -> BTreeMap<&'static str, Vec<String>> {
    let has_node_ports = !has_floating_ip(service, family);
    let mut all: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
    for port in &service.ports {
        let protocol = match port.protocol {
            Protocol::Tcp => "Tcp",
            Protocol::Udp => "Udp",
            Protocol::Sctp => "*",
        };
        let number = if has_node_ports { port.node_port } else { port.port };
        all.entry(protocol).or_default().insert(number.to_string());
    }
    all.into_iter().map(|(protocol, ports)| (protocol, ports.into_iter().collect())).collect()
}

/// The items of an annotation.
fn items<'a>(service: &'a ServiceView, key: &str) -> impl Iterator<Item = &'a str> {
    let text = service.annotation(key).unwrap_or_default();
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// A network without host bits.
fn network(text: &str) -> Option<IpNet> {
    let network: IpNet = text.trim().parse().ok()?;
    (network == network.trunc()).then_some(network)
}

/// The fewest networks with the same addresses.
fn aggregate(ranges: &[IpNet]) -> Vec<IpNet> {
    let mut v4: Vec<Ipv4Net> = Vec::new();
    let mut v6: Vec<Ipv6Net> = Vec::new();
    for range in ranges {
        match range {
            IpNet::V4(range) => v4.push(*range),
            IpNet::V6(range) => v6.push(*range),
        }
    }
    let v4 = Ipv4Net::aggregate(&v4).into_iter().map(IpNet::V4);
    let v6 = Ipv6Net::aggregate(&v6).into_iter().map(IpNet::V6);
    v4.chain(v6).collect()
}

/// The first free priority for a rule; `None`: all are in use.
pub(crate) fn free_priority(used: &BTreeSet<u16>, denies: bool) -> Option<u16> {
    let mut all = FIRST_PRIORITY..=LAST_PRIORITY;
    if denies {
        all.rev().find(|priority| !used.contains(priority))
    } else {
        all.find(|priority| !used.contains(priority))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::testkit::cluster::{annotate, service};

    use super::*;
    use crate::load_balancer::annotations::NO_FLOATING_IP;

    fn web(ranges: &[&str], annotations: &[(&str, &str)]) -> ServiceView {
        let mut web = service("web", &[443, 80]);
        web.source_ranges =
            (!ranges.is_empty()).then(|| ranges.iter().map(|range| (*range).into()).collect());
        for (key, value) in annotations {
            annotate(&mut web, key, Some(value));
        }
        web
    }

    /// The sources of the rules of IPv4, and whether others are refused.
    fn sources(web: &ServiceView) -> (Vec<String>, bool) {
        let allowed = AllowedSources::of(web);
        let rules = allowed.rules(web, IpFamily::V4);
        (rules.iter().map(|rule| rule.sources.join(" ")).collect(), allowed.denies_others)
    }

    #[test]
    fn without_ranges_only_external_services_admit_the_internet() {
        assert_eq!(sources(&web(&[], &[])), (vec!["Internet".to_owned()], false));
        // The rule of the network itself admits its clients.
        assert_eq!(sources(&web(&[], &[(INTERNAL, "True")])), (Vec::new(), false));
    }

    #[test]
    fn ranges_are_aggregated_and_admit_nobody_else() {
        let ranges = [
            "10.1.128.0/17",
            "10.1.0.0/17",
            "10.1.7.0/24",
            "192.0.2.0/24",
            "fd00::/8",
        ];
        let only = sources(&web(&ranges, &[]));
        assert_eq!(only, (vec!["10.1.0.0/16 192.0.2.0/24".to_owned()], false));
        let denied = sources(&web(&["10.0.0.0/8"], &[(DENY_OTHERS, "true")]));
        assert_eq!(denied, (vec!["10.0.0.0/8".to_owned()], true));
        // Without a range there is nothing to refuse.
        assert!(!sources(&web(&[], &[(DENY_OTHERS, "true")])).1);
        let v6 = AllowedSources::of(&web(&ranges, &[])).rules(&web(&ranges, &[]), IpFamily::V6);
        assert_eq!(v6[0].sources, ["fd00::/8"]);
    }

    #[test]
    fn an_invalid_range_admits_nobody_in_its_place() {
        for broken in ["10.0.0.1/24", "everywhere"] {
            assert_eq!(sources(&web(&[broken], &[])), (Vec::new(), true), "{broken}");
            let other = sources(&web(&[broken, "10.0.0.0/8"], &[]));
            assert_eq!(other, (vec!["10.0.0.0/8".to_owned()], true));
        }
    }

    #[test]
    fn tags_and_ranges_have_rules_of_their_own() {
        let tagged = web(
            &[],
            &[
                (ALLOWED_TAGS, "AzureCloud, Storage"),
                (ALLOWED_RANGES, "10.0.0.0/8"),
            ],
        );
        let expected = ["AzureCloud", "Storage", "10.0.0.0/8"].map(str::to_owned).to_vec();
        assert_eq!(sources(&tagged), (expected, false));
        let both = AllowedSources::of(&web(&["10.0.0.0/8"], &[(ALLOWED_RANGES, "10.0.0.0/8")]));
        assert!(both.invalid[0].message.contains("not together"), "{:?}", both.invalid);
        // A network of all clients needs no tag.
        assert_eq!(sources(&web(&["0.0.0.0/0"], &[])), (vec!["0.0.0.0/0".to_owned()], false));
    }

    #[test]
    fn services_with_the_same_sources_and_ports_share_a_rule() {
        let name = |ports: &[u16]| {
            let service = service("web", ports);
            AllowedSources::of(&service).rules(&service, IpFamily::V4).remove(0).name
        };
        assert_eq!(name(&[80]), "k8s-azure-lb_allow_IPv4_d39272f7f57ed937951650d93992ad77");
        assert_eq!(name(&[80, 443]), "k8s-azure-lb_allow_IPv4_556f7044ec033071ec0dfcf7cd85bc93");
        assert_eq!(name(&[443, 80]), name(&[80, 443]));
        let mut node_ports = web(&[], &[(NO_FLOATING_IP, "true")]);
        node_ports.ports[0].node_port = 30443;
        node_ports.ports[1].node_port = 30080;
        let rule = AllowedSources::of(&node_ports).rules(&node_ports, IpFamily::V4).remove(0);
        assert_eq!(rule.ports, ["30080", "30443"]);
    }

    #[test]
    fn priorities_are_taken_from_both_ends() {
        let used = BTreeSet::from([500, 501, 503, 4095]);
        assert_eq!((free_priority(&used, false), free_priority(&used, true)), (Some(502), Some(4094)));
        let all: BTreeSet<u16> = (FIRST_PRIORITY..=LAST_PRIORITY).collect();
        assert_eq!((free_priority(&all, false), free_priority(&all, true)), (None, None));
    }
}
