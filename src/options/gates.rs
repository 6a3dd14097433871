//! `--feature-gates`: switches of unfinished features.
//!
//! The gates that elsewhere can be named on this command line can be named here. Most belong to API servers and have no
//! effect in any cloud-controller-manager; a value for one of them is accepted. One that would switch on something
//! that is missing here is refused.

use std::collections::BTreeMap;

use super::value::Reader;

/// A switch, and what setting it means here.
struct Gate {
    name: &'static str,
    default: bool,
    /// Whether it can only be set to its default.
    locked: bool,
    effect: Effect,
}

enum Effect {
    /// None, here as elsewhere.
    Nothing,
    /// It is always as this value says; asking for it is fine, and the other value changes nothing.
    Always(bool, &'static str),
    /// Switching it on asks for something that is missing.
    Missing(&'static str),
}

const fn gate(name: &'static str, default: bool, effect: Effect) -> Gate {
    Gate {
        name,
        default,
        locked: false,
        effect,
    }
}

const fn locked(name: &'static str, default: bool) -> Gate {
    Gate {
        name,
        default,
        locked: true,
        effect: Effect::Nothing,
    }
}

use Effect::{Always, Missing, Nothing};

const GATES: &[Gate] = &[
    gate(
        "CloudControllerManagerWatchBasedRoutesReconciliation",
        false,
        Always(true, "routes are always reconciled by watching"),
    ),
    gate(
        "CloudControllerManagerWebhook",
        false,
        Missing("this version has no webhooks"),
    ),
    gate(
        "ControllerManagerReleaseLeaderElectionLockOnExit",
        false,
        Always(true, "the lease is always released at the end"),
    ),
    gate(
        "ContextualLogging",
        true,
        Always(true, "log lines always carry their context"),
    ),
    // The flags that it allows are refused by themselves.
    gate("LoggingAlphaOptions", false, Nothing),
    gate("LoggingBetaOptions", true, Nothing),
    gate(
        "NativeHistograms",
        false,
        Always(false, "histograms have fixed buckets"),
    ),
    gate("AllAlpha", false, Nothing),
    gate("AllBeta", false, Nothing),
    // Those of API servers.
    gate("APIResponseCompression", true, Nothing),
    gate("APIServerIdentity", true, Nothing),
    gate("APIServerWebhookAuthenticationToken", false, Nothing),
    gate("APIServingWithRoutine", false, Nothing),
    locked("AggregatedDiscoveryRemoveBetaType", true),
    gate("AllowParsingUserUIDFromCertAuth", true, Nothing),
    gate("AllowUnsafeMalformedObjectDeletion", true, Nothing),
    gate("CBORServingAndStorage", false, Nothing),
    gate("ComponentFlagz", true, Nothing),
    gate("ComponentStatusz", true, Nothing),
    gate("ConcurrentWatchObjectDecode", true, Nothing),
    gate("ConsistentListFromCacheSkipTimeoutFallback", false, Nothing),
    gate("ConstrainedImpersonation", true, Nothing),
    gate("CoordinatedLeaderElection", false, Nothing),
    locked("DeclarativeValidation", true),
    gate("DeclarativeValidationBeta", true, Nothing),
    locked("DeclarativeValidationTakeover", false),
    gate("DetectCacheInconsistency", true, Nothing),
    gate("EtcdRangeStream", true, Nothing),
    gate("ExcludeAdmissionWebhookVirtualResources", true, Nothing),
    gate("KMSv1", false, Nothing),
    gate("ListFromCacheSnapshot", true, Nothing),
    gate("ManifestBasedAdmissionControlConfig", true, Nothing),
    gate("MutatingAdmissionPolicy", true, Nothing),
    gate("OpenAPIEnums", true, Nothing),
    gate("RemoteRequestHeaderUID", true, Nothing),
    locked("SeparateCacheWatchRPC", false),
    gate("ShardedListAndWatch", false, Nothing),
    gate("SizeBasedListCostEstimate", true, Nothing),
    gate("StorageVersionAPI", false, Nothing),
    gate("StorageVersionHash", true, Nothing),
    gate(
        "StructuredAuthenticationConfigurationEgressSelector",
        true,
        Nothing,
    ),
    gate("StructuredAuthenticationConfigurationJWKSMetrics", true, Nothing),
    gate("TokenRequestServiceAccountUIDValidation", true, Nothing),
    gate("UnauthenticatedHTTP2DOSMitigation", true, Nothing),
    gate("UnknownVersionInteroperabilityProxy", true, Nothing),
    locked("WatchCacheInitializationPostStartHook", true),
    gate("WatchList", true, Nothing),
    gate("WatchListCompression", true, Nothing),
    gate("WebhookRoundTripLoadBalancing", true, Nothing),
];

/// Reads every value of the flag, and reports what is wrong with it; a later setting of a gate replaces an earlier one.
pub(super) fn check(values: &[String], reader: &mut Reader) {
    let mut set = BTreeMap::new();
    for pair in values.iter().flat_map(|value| value.split(',')) {
        if pair.is_empty() {
            continue;
        }
        let (name, value) = match pair.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (pair.trim(), None),
        };
        let Some(gate) = GATES.iter().find(|gate| gate.name == name) else {
            let hint = ccm_core::config::suggest::nearest(name, GATES.iter().map(|gate| gate.name))
                .map(|name| format!("; did you mean {name}?"))
                .unwrap_or_default();
            reader.refuse(format!(
                "--feature-gates: unrecognized feature gate: {name}{hint}"
            ));
            continue;
        };
        match value.map(read_bool) {
            None => reader.refuse(format!("--feature-gates: missing bool value for {name}")),
            Some(None) => reader.refuse(format!(
                "--feature-gates: invalid value of {name}={}, err: write true or false",
                value.unwrap_or_default()
            )),
            Some(Some(on)) => {
                set.insert(gate.name, on);
            }
        }
    }
    for gate in GATES {
        let Some(on) = set.get(gate.name).copied() else {
            continue;
        };
        let name = gate.name;
        if gate.locked && on != gate.default {
            reader.refuse(format!(
                "--feature-gates: cannot set feature gate {name} to {on}, feature is locked to {}",
                gate.default
            ));
            continue;
        }
        match gate.effect {
            Missing(why) if on => reader.refuse(format!(
                "--feature-gates: {name}=true: not there yet: {why}; leave it out or write {name}=false"
            )),
            Always(always, why) if on != always => {
                reader.warn(format!("--feature-gates: {name}={on} has no effect: {why}"));
            }
            _ => {}
        }
    }
}

fn read_bool(text: &str) -> Option<bool> {
    let mut reader = Reader::default();
    let value = reader.boolean("", text);
    reader.errors.is_empty().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Reader {
        let mut reader = Reader::default();
        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
        check(&values, &mut reader);
        reader
    }

    fn errors(values: &[&str]) -> Vec<String> {
        read(values).errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn gates_are_a_map_that_may_be_repeated() {
        let reader = read(&[
            "RemoteRequestHeaderUID=true,WatchList=0,",
            "RemoteRequestHeaderUID = F",
        ]);
        assert!(reader.errors.is_empty(), "{:?}", reader.errors);
        assert_eq!(reader.warnings, [""; 0]);
    }

    #[test]
    fn all_mistakes_are_reported() {
        assert_eq!(
            errors(&[
                "WatchLisst=true,KMSv1,ContextualLogging=on,MutatingAdmissionPolicy=false,DeclarativeValidation=false"
            ]),
            [
                "--feature-gates: unrecognized feature gate: WatchLisst; did you mean WatchList?",
                "--feature-gates: missing bool value for KMSv1",
                "--feature-gates: invalid value of ContextualLogging=on, err: write true or false",
                "--feature-gates: cannot set feature gate DeclarativeValidation to false, feature is locked to true",
            ]
        );
    }

    #[test]
    fn a_gate_of_something_missing_is_refused_unless_it_is_off() {
        assert_eq!(errors(&["CloudControllerManagerWebhook=false"]), [""; 0]);
        let all = errors(&["CloudControllerManagerWebhook=true"]);
        assert!(
            all[0].contains("not there yet: this version has no webhooks"),
            "{all:?}"
        );
    }

    #[test]
    fn a_value_that_changes_nothing_is_a_warning() {
        let warnings = |value: &str| read(&[value]).warnings;
        for gate in [
            "CloudControllerManagerWatchBasedRoutesReconciliation",
            "ControllerManagerReleaseLeaderElectionLockOnExit",
            "ContextualLogging",
        ] {
            assert_eq!(warnings(&format!("{gate}=true")), [""; 0], "{gate}");
            assert_eq!(warnings(&format!("{gate}=false")).len(), 1, "{gate}");
        }
        assert_eq!(warnings("NativeHistograms=true").len(), 1);
    }
}
