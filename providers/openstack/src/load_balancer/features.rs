//! The features of load balancers: they depend on the version of Octavia's API and on the provider.

use serde::Deserialize;

/// Octavia's list of versions.
#[derive(Debug, Deserialize)]
pub(crate) struct VersionDocument {
    versions: Vec<VersionEntry>,
}

#[derive(Debug, Deserialize)]
struct VersionEntry {
    #[serde(default)]
    id: String,
}

impl VersionDocument {
    /// The newest version 2.
    pub(crate) fn newest(&self) -> Option<Version> {
        let minor = |entry: &VersionEntry| match entry.id.strip_prefix("v2")? {
            "" => Some(0),
            minor => minor.strip_prefix('.')?.parse().ok(),
        };
        self.versions.iter().filter_map(minor).max().map(Version)
    }
}

/// The load balancing methods of Octavia's API.
pub(crate) const METHODS: [&str; 4] = ["ROUND_ROBIN", "LEAST_CONNECTIONS", "SOURCE_IP", "SOURCE_IP_PORT"];

/// A version of Octavia's API: 2 and this minor number. The default is that of an Octavia that hides its version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32);

/// An optional feature of Octavia.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Feature {
    /// Timeouts of listeners.
    Timeouts,
    /// Tags.
    Tags,
    /// Flavors.
    Flavors,
    /// Adding members without sending the whole list.
    AdditiveMembers,
    /// Source ranges of listeners.
    AllowedCidrs,
    /// Availability zones.
    AvailabilityZones,
    /// Health monitors of type HTTP for pools of protocol UDP.
    HttpMonitorOnUdp,
    /// The second version of the PROXY protocol.
    ProxyV2,
    /// SCTP.
    Sctp,
    /// Virtual addresses in addition to the first one.
    AdditionalVips,
}

impl Feature {
    /// The minor version of the API that introduced it.
    fn since(self) -> u32 {
        match self {
            Self::Timeouts => 1,
            Self::Tags => 5,
            Self::Flavors => 6,
            Self::AdditiveMembers => 11,
            Self::AllowedCidrs => 12,
            Self::AvailabilityZones => 14,
            Self::HttpMonitorOnUdp => 16,
            Self::ProxyV2 => 22,
            Self::Sctp => 23,
            Self::AdditionalVips => 26,
        }
    }

    /// Whether Octavia's OVN provider supports it.
    fn is_in_ovn(self) -> bool {
        matches!(self, Self::Tags | Self::AdditiveMembers | Self::Sctp)
    }
}

/// The features that load balancers support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    version: Version,
    /// The provider is OVN.
    pub(crate) ovn: bool,
    /// The load balancing methods of the provider; new pools get the first one in place of one that it does not have.
    pub(crate) methods: &'static [&'static str],
}

impl Capabilities {
    /// The features of a provider under this version.
    pub(crate) fn of(version: Version, provider: &str) -> Self {
        let ovn = provider == "ovn";
        let methods: &[_] = match provider {
            // Older releases have only the first one.
            _ if ovn => &["SOURCE_IP_PORT", "SOURCE_IP"],
            "amphora" | "amphorav2" | "octavia" => &["ROUND_ROBIN", "LEAST_CONNECTIONS", "SOURCE_IP"],
            _ => &METHODS,
        };
        Self {
            version,
            ovn,
            methods,
        }
    }

    /// Whether the feature is supported.
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.version.0 >= feature.since() && (!self.ovn || feature.is_in_ovn())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn newest(text: &str) -> Option<u32> {
        serde_json::from_str::<VersionDocument>(text).unwrap().newest().map(|version| version.0)
    }

    #[test]
    fn the_newest_version_counts_in_any_order() {
        let list =
            r#"{"versions": [{"id": "v1"}, {"id": "v2.27", "status": "CURRENT"}, {"id": "v2.9"}, {}]}"#;
        assert_eq!(newest(list), Some(27));
        assert_eq!(newest(r#"{"versions": [{"id": "v1"}, {"id": "v3.0"}]}"#), None);
        assert!(serde_json::from_str::<VersionDocument>("{}").is_err());
    }

    #[test]
    fn a_feature_needs_its_version_and_a_provider_that_has_it() {
        for (minor, provider, feature, has) in [
            (4, "amphora", Feature::Tags, false),
            (5, "amphora", Feature::Tags, true),
            (30, "ovn", Feature::Tags, true),
            (11, "amphora", Feature::AllowedCidrs, false),
            (12, "f5", Feature::AllowedCidrs, true),
            (30, "ovn", Feature::AllowedCidrs, false),
            (30, "ovn", Feature::Timeouts, false),
            (30, "ovn", Feature::Flavors, false),
            (30, "ovn", Feature::AvailabilityZones, false),
            (30, "ovn", Feature::HttpMonitorOnUdp, false),
            (15, "amphora", Feature::HttpMonitorOnUdp, false),
            (10, "amphora", Feature::AdditiveMembers, false),
            (25, "amphora", Feature::AdditionalVips, false),
            (26, "amphora", Feature::AdditionalVips, true),
            (30, "ovn", Feature::AdditionalVips, false),
        ] {
            let capabilities = Capabilities::of(Version(minor), provider);
            assert_eq!(capabilities.has(feature), has, "{feature:?} with v2.{minor} of {provider}");
        }
    }
}
