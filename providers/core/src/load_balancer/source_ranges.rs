//! The clients that a load balancer serves: `spec.loadBalancerSourceRanges` and its annotation.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::{Field, IgnoredValue, InvalidField, IpFamily, ServiceView};

/// The items of a text that commas and white space separate.
fn separated_items(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ' ', '\t', '\r', '\n']).filter(|item| !item.is_empty())
}

/// The networks of the clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRanges {
    ranges: BTreeSet<IpNet>,
    /// Whether the Service specifies the networks. If not, it serves all clients.
    pub given: bool,
}

impl SourceRanges {
    /// The annotation that is used if the field is empty. Kubernetes defines it for all clouds.
    pub const ANNOTATION: &'static str = "service.beta.kubernetes.io/load-balancer-source-ranges";

    /// The networks that a Service specifies: in its field, else in the annotation, else all clients of its first IP family.
    /// Each network is reduced to its network address (`10.1.2.3/8` is `10.0.0.0/8`).
    ///
    /// The second result are the entries that are not CIDRs; with them, the networks are all clients.
    #[must_use]
    pub fn of(service: &ServiceView) -> (Self, Vec<InvalidField>) {
        let text = service.annotation(Self::ANNOTATION).unwrap_or_default();
        Self::read(service, text.split(',').map(str::trim))
    }

    /// As [`Self::of`], where commas and white space separate the items of the annotation, and empty items are skipped.
    #[must_use]
    pub fn separated(service: &ServiceView) -> (Self, Vec<InvalidField>) {
        let text = service.annotation(Self::ANNOTATION).unwrap_or_default();
        Self::read(service, separated_items(text))
    }

    fn read<'a>(service: &ServiceView, items: impl Iterator<Item = &'a str>) -> (Self, Vec<InvalidField>) {
        let (mut ranges, mut invalid) = Self::of_spec(service);
        let text = service.annotation(Self::ANNOTATION).unwrap_or_default();
        if ranges.is_empty() && invalid.is_empty() && !text.trim().is_empty() {
            let refused = |item: &str| InvalidField {
                field: Field::Annotation(Self::ANNOTATION.to_owned()),
                message: format!(
                    "annotation {}: {item:?} is not a CIDR; valid ones are 10.0.0.0/24,192.168.2.0/24",
                    Self::ANNOTATION
                ),
            };
            for item in items {
                match item.parse::<IpNet>() {
                    Ok(range) => {
                        ranges.insert(range.trunc());
                    }
                    Err(_) => invalid.push(refused(item)),
                }
            }
            // Separators alone would allow no clients, which clouds read as all clients.
            if ranges.is_empty() && invalid.is_empty() {
                invalid.push(refused(text));
            }
        }
        if ranges.is_empty() || !invalid.is_empty() {
            return (Self::all(service.ip_families.first().copied()), invalid);
        }
        (Self { ranges, given: true }, invalid)
    }

    /// The networks in the field alone, and the entries that are none.
    #[must_use]
    pub fn of_spec(service: &ServiceView) -> (BTreeSet<IpNet>, Vec<InvalidField>) {
        let (mut ranges, mut invalid) = (BTreeSet::new(), Vec::new());
        for text in service.source_ranges.iter().flatten() {
            if let Ok(range) = text.trim().parse::<IpNet>() {
                ranges.insert(range.trunc());
            } else {
                let problem = format!("{text:?} is not a CIDR; a valid one is 10.0.0.0/24");
                invalid.push(InvalidField::spec("loadBalancerSourceRanges", problem));
            }
        }
        (ranges, invalid)
    }

    /// The Warning about the annotation where it is not used, but admits fewer clients than `used`: the networks that the load
    /// balancer serves, all clients if empty. A person who only knows the annotation would take the Service for protected.
    #[must_use]
    pub fn ignored_annotation(service: &ServiceView, used: &[IpNet]) -> Option<IgnoredValue> {
        let text = service.annotation(Self::ANNOTATION)?;
        let mut admitted = Vec::new();
        for item in separated_items(text) {
            admitted.push(item.parse::<IpNet>().ok()?);
        }
        if admitted.is_empty() {
            return None;
        }
        Some(IgnoredValue {
            key: Self::ANNOTATION,
            problem: Self::not_admitted_by(&admitted, used)?,
        })
    }

    /// The problem with a setting that is not used and admits only these networks, if others are admitted: those of `used`, all
    /// clients if that is empty.
    #[must_use]
    pub fn not_admitted_by(setting: &[IpNet], used: &[IpNet]) -> Option<String> {
        let all = [IpNet::V4(ipnet::Ipv4Net::default())];
        let used = if used.is_empty() { &all } else { used };
        let wider: Vec<_> = used
            .iter()
            .filter(|range| !setting.iter().any(|admitted| admitted.contains(*range)))
            .collect();
        if wider.is_empty() {
            return None;
        }
        let shown: Vec<_> = wider.iter().take(3).map(ToString::to_string).collect();
        let more = if wider.len() > shown.len() { ", .." } else { "" };
        Some(format!(
            "it is not used, and clients that it does not name are admitted: {}{more}; restrict them in \
             spec.loadBalancerSourceRanges",
            shown.join(", ")
        ))
    }

    /// The Warning about the annotation if the field takes precedence and admits more clients. See
    /// [`ignored_annotation`](Self::ignored_annotation).
    #[must_use]
    pub fn narrower_annotation(service: &ServiceView) -> Option<IgnoredValue> {
        let (used, invalid) = Self::of_spec(service);
        let used: Vec<_> = used.into_iter().collect();
        if used.is_empty() || !invalid.is_empty() {
            return None;
        }
        Self::ignored_annotation(service, &used)
    }

    /// All clients of a family (IPv4 if it is not known), as if the Service specified none.
    #[must_use]
    pub fn all(family: Option<IpFamily>) -> Self {
        let all = match family {
            Some(IpFamily::V6) => IpNet::V6(ipnet::Ipv6Net::default()),
            _ => IpNet::V4(ipnet::Ipv4Net::default()),
        };
        Self {
            ranges: [all].into(),
            given: false,
        }
    }

    /// The networks of clients that reach an address of this family, and the CIDRs of the other family. A Service that specifies no
    /// networks serves all clients of the family. If it specifies only networks of the other family, nothing remains: `None`,
    /// because clouds read an empty list as all clients.
    #[must_use]
    pub fn of_family(&self, family: IpFamily) -> (Option<Self>, Vec<String>) {
        if !self.given {
            return (Some(Self::all(Some(family))), Vec::new());
        }
        let (ranges, others): (BTreeSet<IpNet>, BTreeSet<IpNet>) =
            self.ranges.iter().partition(|range| IpFamily::of(range.addr()) == family);
        let others = others.iter().map(ToString::to_string).collect();
        if ranges.is_empty() {
            return (None, others);
        }
        (Some(Self { ranges, given: true }), others)
    }

    /// The networks as CIDRs, each once, sorted.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        self.ranges.iter().map(ToString::to_string).collect()
    }

    /// Whether these CIDRs are the same networks, in any notation and order.
    pub fn same<'a>(&self, others: impl IntoIterator<Item = &'a str>) -> bool {
        let others: Option<BTreeSet<IpNet>> =
            others.into_iter().map(|text| Some(text.parse::<IpNet>().ok()?.trunc())).collect();
        others.is_some_and(|others| others == self.ranges)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(
        field: &[&str],
        annotation: Option<&str>,
        family: Option<IpFamily>,
    ) -> (SourceRanges, Vec<InvalidField>) {
        let annotation = annotation.map(|value| (SourceRanges::ANNOTATION, value));
        SourceRanges::of(&ServiceView {
            source_ranges: Some(field.iter().map(|range| (*range).into()).collect()),
            annotations: annotation.into_iter().collect(),
            ip_families: family.into_iter().collect(),
            ..ServiceView::default()
        })
    }

    fn texts(field: &[&str], annotation: Option<&str>, family: Option<IpFamily>) -> Vec<String> {
        read(field, annotation, family).0.texts()
    }

    #[test]
    fn networks_of_the_other_family_are_separated() {
        let (mixed, _) = read(&["2001:db8::/32", "10.0.0.0/8"], None, Some(IpFamily::V4));
        let (ranges, others) = mixed.of_family(IpFamily::V4);
        assert_eq!(ranges.unwrap().texts(), ["10.0.0.0/8"]);
        assert_eq!(others, ["2001:db8::/32"]);
        let (ranges, others) = mixed.of_family(IpFamily::V6);
        assert_eq!(ranges.unwrap().texts(), ["2001:db8::/32"]);
        assert_eq!(others, ["10.0.0.0/8"]);

        let (only, _) = read(&["10.0.0.0/8"], None, Some(IpFamily::V4));
        assert_eq!(only.of_family(IpFamily::V6), (None, vec!["10.0.0.0/8".to_owned()]));
        let (open, _) = read(&[], None, Some(IpFamily::V4));
        let (ranges, others) = open.of_family(IpFamily::V6);
        assert_eq!(ranges, Some(SourceRanges::all(Some(IpFamily::V6))));
        assert_eq!(others, [""; 0]);
    }

    #[test]
    fn the_field_comes_first_then_the_annotation_then_all_clients() {
        let other = Some("192.168.0.0/16");
        assert_eq!(texts(&["10.0.0.0/8"], other, None), ["10.0.0.0/8"]);
        assert_eq!(texts(&[], other, None), ["192.168.0.0/16"]);
        assert_eq!(texts(&[], None, None), ["0.0.0.0/0"]);
        assert_eq!(texts(&[], Some("  "), Some(IpFamily::V4)), ["0.0.0.0/0"]);
        assert_eq!(texts(&[], None, Some(IpFamily::V6)), ["::/0"]);
    }

    #[test]
    fn an_annotation_that_is_not_used_is_reported_if_it_is_narrower() {
        let warning = |field: &[&str], annotation: &str| {
            let service = ServiceView {
                source_ranges: Some(field.iter().map(|range| (*range).into()).collect()),
                annotations: [(SourceRanges::ANNOTATION, annotation)].into_iter().collect(),
                ..ServiceView::default()
            };
            let unused = SourceRanges::ignored_annotation(&service, &[]);
            let narrower = SourceRanges::narrower_annotation(&service);
            [unused, narrower].map(|warning| warning.map(|warning| warning.problem))
        };
        let [unused, narrower] = warning(&["10.0.0.0/8", "192.168.0.0/16"], "10.1.0.0/16, 192.168.0.0/16");
        assert!(unused.unwrap().contains("admitted: 0.0.0.0/0; restrict"));
        assert!(narrower.unwrap().contains("admitted: 10.0.0.0/8; restrict"));
        for (field, annotation) in [
            (&["10.0.0.0/8"][..], "0.0.0.0/0"),
            (&["10.1.0.0/16"], "10.0.0.0/8,fd00::/8"),
            (&["10.0.0.0/8"], "10.0.0.0/8"),
            // The annotation is used, and what it says is refused.
            (&[], "10.0.0.0/8"),
            (&["10.0.0.0/8"], "x"),
            (&["10.0.0.0/8"], " "),
        ] {
            assert_eq!(warning(field, annotation)[1], None, "{field:?} {annotation}");
        }
        assert_eq!(warning(&[], "0.0.0.0/0"), [None, None]);
    }

    #[test]
    fn ranges_are_reduced_to_network_addresses_and_named_once() {
        assert_eq!(
            texts(&["192.168.32.1/24", " 192.168.32.0/24 ", "10.0.0.1/32"], None, None),
            ["10.0.0.1/32", "192.168.32.0/24"]
        );
        assert_eq!(texts(&[], Some(" 10.1.2.3/8 ,fd00::1/64"), None), ["10.0.0.0/8", "fd00::/64"]);
    }

    #[test]
    fn the_same_ranges_in_another_notation_are_the_same() {
        let ranges = read(&["10.0.0.0/8", "fd00::/64"], None, None).0;
        assert!(ranges.same(["fd00:0:0::/64", "10.1.1.1/8"]));
        assert!(!ranges.same(["10.0.0.0/8"]) && !ranges.same(["10.0.0.0/8", "x"]) && !ranges.same([]));
    }

    #[test]
    fn every_entry_that_is_not_a_cidr_is_refused_by_name() {
        for (field, annotation, named) in [
            (
                &["10.0.0.1", "10.0.0.0/8", "x"][..],
                None,
                &[
                    "loadBalancerSourceRanges: \"10.0.0.1\"",
                    "loadBalancerSourceRanges: \"x\"",
                ][..],
            ),
            (&[], Some("10.0.0.0/8,"), &["load-balancer-source-ranges: \"\""]),
            (
                &[],
                Some("10.0.0.0/40,10.0.0.0/8,y"),
                &[
                    "load-balancer-source-ranges: \"10.0.0.0/40\"",
                    "load-balancer-source-ranges: \"y\"",
                ],
            ),
        ] {
            let (ranges, invalid) = read(field, annotation, None);
            assert!(!ranges.given, "{named:?}");
            let is_named = |(invalid, named): (&InvalidField, &&str)| {
                invalid.message.contains(named)
                    && (invalid.field == Field::Spec("loadBalancerSourceRanges")) == annotation.is_none()
            };
            assert_eq!(invalid.len(), named.len(), "{invalid:?}");
            assert!(invalid.iter().zip(named).all(is_named), "{invalid:?}");
        }
    }
}
