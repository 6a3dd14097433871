//! Which clients a load balancer serves.

use std::collections::BTreeSet;

use ccm_core::{Error, ErrorKind, Result, load_balancer::IpFamily};
use ipnet::IpNet;

use super::annotations::SOURCE_RANGES;

/// Networks of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceRanges {
    ranges: BTreeSet<IpNet>,
    /// Whether the Service says anything about them.
    pub(crate) given: bool,
}

impl SourceRanges {
    /// What the Service asks for: its field, else its annotation, else everybody of its first family.
    ///
    /// # Errors
    /// If one of them is no CIDR.
    pub(crate) fn of<'a>(
        field: impl IntoIterator<Item = &'a str>,
        annotation: Option<&str>,
        family: Option<IpFamily>,
    ) -> Result<Self> {
        let wrong = |what: String| Err(Error::new(ErrorKind::InvalidSpec, what));
        let mut ranges = BTreeSet::new();
        for text in field {
            match text.trim().parse::<IpNet>() {
                Ok(range) => ranges.insert(range.trunc()),
                Err(_) => {
                    return wrong(format!(
                        "spec.loadBalancerSourceRanges: {text:?} is no CIDR; a valid one is 10.0.0.0/24"
                    ));
                }
            };
        }
        if !ranges.is_empty() {
            return Ok(Self { ranges, given: true });
        }
        let text = annotation.unwrap_or_default().trim();
        if text.is_empty() {
            return Ok(Self::everybody(family));
        }
        for item in text.split(',') {
            match item.trim().parse::<IpNet>() {
                Ok(range) => ranges.insert(range.trunc()),
                Err(_) => {
                    return wrong(format!(
                        "annotation {SOURCE_RANGES}: {item:?} is no CIDR; valid ones are 10.0.0.0/24,192.168.2.0/24"
                    ));
                }
            };
        }
        Ok(Self { ranges, given: true })
    }

    /// Everybody of a family, as if the Service said nothing.
    pub(crate) fn everybody(family: Option<IpFamily>) -> Self {
        let everybody = match family {
            Some(IpFamily::V6) => IpNet::V6(ipnet::Ipv6Net::default()),
            _ => IpNet::V4(ipnet::Ipv4Net::default()),
        };
        Self {
            ranges: [everybody].into(),
            given: false,
        }
    }

    /// As Octavia takes them, each once.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.ranges.iter().map(ToString::to_string).collect()
    }

    /// Whether these are the same clients, however they are written and in whatever order.
    pub(crate) fn same<'a>(&self, others: impl IntoIterator<Item = &'a str>) -> bool {
        let others: Option<BTreeSet<IpNet>> = others
            .into_iter()
            .map(|text| Some(text.parse::<IpNet>().ok()?.trunc()))
            .collect();
        others.is_some_and(|others| others == self.ranges)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn texts(field: &[&str], annotation: Option<&str>, family: Option<IpFamily>) -> Vec<String> {
        SourceRanges::of(field.iter().copied(), annotation, family)
            .unwrap()
            .texts()
    }

    #[test]
    fn the_field_comes_first_then_the_annotation_then_everybody() {
        let other = Some("192.168.0.0/16");
        assert_eq!(texts(&["10.0.0.0/8"], other, None), ["10.0.0.0/8"]);
        assert_eq!(texts(&[], other, None), ["192.168.0.0/16"]);
        assert_eq!(texts(&[], None, None), ["0.0.0.0/0"]);
        assert_eq!(texts(&[], Some("  "), Some(IpFamily::V4)), ["0.0.0.0/0"]);
        assert_eq!(texts(&[], None, Some(IpFamily::V6)), ["::/0"]);
    }

    #[test]
    fn ranges_are_brought_into_network_form_and_named_once() {
        assert_eq!(
            texts(
                &["192.168.32.1/24", " 192.168.32.0/24 ", "10.0.0.1/32"],
                None,
                None
            ),
            ["10.0.0.1/32", "192.168.32.0/24"]
        );
        assert_eq!(
            texts(&[], Some(" 10.1.2.3/8 ,fd00::1/64"), None),
            ["10.0.0.0/8", "fd00::/64"]
        );
    }

    #[test]
    fn the_same_ranges_in_another_form_are_the_same() {
        let ranges = SourceRanges::of(["10.0.0.0/8", "fd00::/64"], None, None).unwrap();
        assert!(ranges.same(["fd00:0:0::/64", "10.1.1.1/8"]));
        assert!(!ranges.same(["10.0.0.0/8"]) && !ranges.same(["10.0.0.0/8", "x"]) && !ranges.same([]));
    }

    #[test]
    fn what_is_no_range_is_refused_by_name() {
        for (field, annotation, named) in [
            (
                &["10.0.0.1"][..],
                None,
                "spec.loadBalancerSourceRanges: \"10.0.0.1\"",
            ),
            (&[], Some("10.0.0.0/8,,"), "load-balancer-source-ranges: \"\""),
            (
                &[],
                Some("10.0.0.0/40"),
                "load-balancer-source-ranges: \"10.0.0.0/40\"",
            ),
        ] {
            let error = SourceRanges::of(field.iter().copied(), annotation, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
