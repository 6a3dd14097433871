//! `--feature-gates`: switches of unfinished features.
//!
//! Gates with an effect here are listed. Other gates have no effect, as in every cloud-controller-manager: most belong to
//! API servers. A value for one of them gets a warning, since its name may be misspelled.

use std::collections::BTreeMap;

use ccm_core::flags::parse_bool;

use super::{flags::FEATURE_GATES, value::Reader};

/// The effect of a gate.
enum Effect {
    /// It switches nothing that exists here.
    Nothing,
    /// It always has this value, for this reason.
    Always(bool, &'static str),
    /// It would switch on a missing feature.
    Missing(&'static str),
}

use Effect::{Always, Missing, Nothing};

const GATES: &[(&str, Effect)] = &[
    (
        "CloudControllerManagerWatchBasedRoutesReconciliation",
        Always(true, "routes are always reconciled by watching"),
    ),
    ("CloudControllerManagerWebhook", Missing("this version has no webhooks")),
    ("ComponentFlagz", Always(true, "/flagz is always served")),
    ("ComponentStatusz", Always(true, "/statusz is always served")),
    (
        "ControllerManagerReleaseLeaderElectionLockOnExit",
        Always(true, "the lease is always released at the end"),
    ),
    ("ContextualLogging", Always(true, "log lines always carry their context")),
    ("NativeHistograms", Always(false, "histograms have fixed buckets")),
    // The flags that these allow are refused by themselves.
    ("LoggingAlphaOptions", Nothing),
    ("LoggingBetaOptions", Nothing),
    ("AllAlpha", Nothing),
    ("AllBeta", Nothing),
];

/// Reads every value of the flag, and reports its problems; a later setting of a gate replaces an earlier one.
pub(super) fn check(reader: &mut Reader) {
    let mut set = BTreeMap::new();
    let values = reader.all(FEATURE_GATES).join(",");
    for pair in values.split(',').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            let name = pair.trim();
            reader.refuse(format!("--feature-gates: missing bool value for {name}"));
            continue;
        };
        let (name, value) = (name.trim(), value.trim());
        match parse_bool(value) {
            Ok(on) => {
                set.insert(name, on);
            }
            Err(_) => reader.refuse(format!(
                "--feature-gates: invalid value of {name}={value}, err: write true or false"
            )),
        }
    }
    for (name, on) in set {
        match GATES.iter().find(|(known, _)| *known == name) {
            None => {
                let known = GATES.iter().map(|(known, _)| *known);
                let hint = ccm_core::config::suggest::nearest(name, known)
                    .map(|name| format!("; did you mean {name}?"))
                    .unwrap_or_default();
                reader.warn(format!(
                    "--feature-gates: {name}={on} has no effect: this program has no such feature gate{hint}"
                ));
            }
            Some((_, Missing(why))) if on => reader.refuse(format!(
                "--feature-gates: {name}=true: not implemented: {why}; leave it out or write {name}=false"
            )),
            Some((_, Always(always, why))) if on != *always => {
                reader.warn(format!("--feature-gates: {name}={on} has no effect: {why}"));
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Reader {
        let values = values.iter().map(ToString::to_string).collect();
        let mut reader = Reader::new([(FEATURE_GATES.def.name.to_owned(), values)]);
        check(&mut reader);
        reader
    }

    fn errors(values: &[&str]) -> Vec<String> {
        read(values).errors.iter().map(ToString::to_string).collect()
    }

    /// Version 1.37 of the framework: the gates of its controller managers, its logs, its metrics and its debugging pages. Those
    /// of API servers, which it knows as well, switch nothing there.
    #[test]
    fn every_gate_of_the_framework_is_known() {
        let upstream = [
            "AllAlpha",
            "AllBeta",
            "CloudControllerManagerWatchBasedRoutesReconciliation",
            "CloudControllerManagerWebhook",
            "ComponentFlagz",
            "ComponentStatusz",
            "ContextualLogging",
            "ControllerManagerReleaseLeaderElectionLockOnExit",
            "LoggingAlphaOptions",
            "LoggingBetaOptions",
            "NativeHistograms",
        ];
        let mut ours: Vec<_> = GATES.iter().map(|(name, _)| *name).collect();
        ours.sort_unstable();
        assert_eq!(ours, upstream);
    }

    #[test]
    fn gates_are_a_map_that_may_be_repeated() {
        let reader = read(&["AllBeta=true,LoggingBetaOptions=0,", "AllBeta = F"]);
        assert!(reader.errors.is_empty(), "{:?}", reader.errors);
        assert_eq!(reader.warnings, [""; 0]);
        let reader = read(&["NativeHistograms=true", "NativeHistograms=false"]);
        assert_eq!(reader.warnings, [""; 0], "the later one counts");
    }

    #[test]
    fn all_mistakes_are_reported() {
        assert_eq!(
            errors(&["KMSv1,ContextualLogging=on,AllAlpha=true"]),
            [
                "--feature-gates: missing bool value for KMSv1",
                "--feature-gates: invalid value of ContextualLogging=on, err: write true or false",
            ]
        );
    }

    #[test]
    fn a_gate_without_an_effect_here_is_a_warning() {
        let reader = read(&["WatchList=true,NativeHistogram=true"]);
        assert!(reader.errors.is_empty(), "{:?}", reader.errors);
        assert_eq!(
            reader.warnings,
            [
                "--feature-gates: NativeHistogram=true has no effect: this program has no such feature gate; did you mean \
                 NativeHistograms?",
                "--feature-gates: WatchList=true has no effect: this program has no such feature gate",
            ]
        );
    }

    #[test]
    fn a_gate_of_something_missing_is_refused_unless_it_is_off() {
        assert_eq!(errors(&["CloudControllerManagerWebhook=false"]), [""; 0]);
        let all = errors(&["CloudControllerManagerWebhook=true"]);
        assert!(all[0].contains("not implemented: this version has no webhooks"), "{all:?}");
    }

    #[test]
    fn a_value_that_changes_nothing_is_a_warning() {
        let warnings = |value: &str| read(&[value]).warnings;
        for gate in [
            "CloudControllerManagerWatchBasedRoutesReconciliation",
            "ComponentFlagz",
            "ComponentStatusz",
            "ControllerManagerReleaseLeaderElectionLockOnExit",
            "ContextualLogging",
        ] {
            assert_eq!(warnings(&format!("{gate}=true")), [""; 0], "{gate}");
            assert_eq!(warnings(&format!("{gate}=false")).len(), 1, "{gate}");
        }
        assert_eq!(warnings("NativeHistograms=true").len(), 1);
    }
}
