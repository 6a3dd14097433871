//! What a load balancer can be asked for: by the version of Octavia's API and by the provider that makes it.

use serde::Deserialize;

/// Octavia's list of versions.
#[derive(Debug, Deserialize)]
pub(crate) struct Document {
    versions: Vec<VersionEntry>,
}

#[derive(Debug, Deserialize)]
struct VersionEntry {
    #[serde(default)]
    id: String,
}

impl Document {
    /// The newest version 2.
    pub(crate) fn newest(&self) -> Option<Version> {
        let minor = |entry: &VersionEntry| entry.id.strip_prefix("v2.")?.parse().ok();
        self.versions.iter().filter_map(minor).max().map(Version)
    }
}

/// A version of Octavia's API: 2 and this minor number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32);

/// What not every Octavia can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Feature {
    /// Timeouts of listeners.
    Timeouts,
    /// Tags.
    Tags,
    /// Flavors.
    Flavors,
    /// Members are added without naming all of them.
    AdditiveMembers,
    /// Which clients a listener serves.
    AllowedCidrs,
    /// Availability zones.
    AvailabilityZones,
    /// Health monitors of type HTTP for pools of protocol UDP.
    HttpMonitorOnUdp,
    /// The second version of the PROXY protocol.
    ProxyV2,
    /// SCTP.
    Sctp,
}

impl Feature {
    /// The minor number of the version that brought it.
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
        }
    }

    /// Whether Octavia's provider for OVN has it: that one only passes packets on.
    fn is_in_ovn(self) -> bool {
        matches!(self, Self::Tags | Self::AdditiveMembers | Self::Sctp)
    }
}

/// What a load balancer can be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    version: Version,
    /// The provider is OVN.
    pub(crate) ovn: bool,
}

impl Capabilities {
    /// Those of a provider under this version.
    pub(crate) fn of(version: Version, provider: &str) -> Self {
        Self {
            version,
            ovn: provider == "ovn",
        }
    }

    /// Those of a provider under an Octavia that does not tell its version: none for sure.
    pub(crate) fn unknown(provider: &str) -> Self {
        Self::of(Version(0), provider)
    }

    /// Whether it has it.
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.version.0 >= feature.since() && (!self.ovn || feature.is_in_ovn())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn newest(text: &str) -> Option<u32> {
        serde_json::from_str::<Document>(text)
            .unwrap()
            .newest()
            .map(|version| version.0)
    }

    #[test]
    fn the_newest_version_counts_wherever_it_stands() {
        let list =
            r#"{"versions": [{"id": "v1"}, {"id": "v2.27", "status": "CURRENT"}, {"id": "v2.9"}, {}]}"#;
        assert_eq!(newest(list), Some(27));
        assert_eq!(newest(r#"{"versions": [{"id": "v1"}, {"id": "v3.0"}]}"#), None);
        assert!(serde_json::from_str::<Document>("{}").is_err());
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
        ] {
            let capabilities = Capabilities::of(Version(minor), provider);
            assert_eq!(
                capabilities.has(feature),
                has,
                "{feature:?} with v2.{minor} of {provider}"
            );
        }
    }
}
