//! `--controllers`: which controllers run.
//!
//! `*` stands for all, `name` switches one on, `-name` off. The first item that mentions a controller decides about it;
//! one that no item mentions runs if there is a `*`.

use std::collections::BTreeSet;

use ccm_core::config::suggest;

use super::{config::Controllers, value::Reader};

const FLAG: &str = "controllers";

/// A controller of this or of a later version.
struct Known {
    name: &'static str,
    alias: &'static str,
    /// What is left undone as long as it is not there; `None` if it is.
    missing: Option<&'static str>,
}

const KNOWN: [Known; 4] = [
    Known {
        name: "cloud-node-controller",
        alias: "cloud-node",
        missing: None,
    },
    Known {
        name: "cloud-node-lifecycle-controller",
        alias: "cloud-node-lifecycle",
        missing: None,
    },
    Known {
        name: "service-lb-controller",
        alias: "service",
        missing: None,
    },
    Known {
        name: ROUTE,
        alias: "route",
        missing: Some("routes of the cloud are left as they are"),
    },
];

const ROUTE: &str = "node-route-controller";

/// Reads the items. `routes_wanted` says whether other flags ask for routes: most clusters have a pod network of their
/// own, and need not hear that a controller is missing that would do nothing for them.
pub(super) fn complete(items: &[String], routes_wanted: bool, reader: &mut Reader) -> Controllers {
    let star = items.iter().any(|item| item == "*");
    for item in items.iter().filter(|item| *item != "*") {
        let name = item.strip_prefix('-').unwrap_or(item);
        if find(name).is_none() {
            let names = KNOWN.iter().flat_map(|known| [known.name, known.alias]);
            let hint = suggest::nearest(name, names)
                .map(|name| format!("; did you mean {name:?}?"))
                .unwrap_or_default();
            reader.refuse(format!(
                "--{FLAG}: {name:?} is not in the list of known controllers{hint}"
            ));
        }
    }
    let mut disabled = BTreeSet::new();
    let mut asked_for = Vec::new();
    for known in &KNOWN {
        let decided = items.iter().find_map(|item| match item.strip_prefix('-') {
            Some(name) => known.is(name).then_some(false),
            None => known.is(item).then_some(true),
        });
        if !decided.unwrap_or(star) {
            disabled.insert(known.name);
            continue;
        }
        let Some(missing) = known.missing else { continue };
        if decided.is_some() {
            asked_for.push(known);
        } else if known.name != ROUTE || routes_wanted {
            reader.warn(format!(
                "--{FLAG}: {} is not there yet: {missing}; -{} beside the * says that this is meant",
                known.name, known.alias
            ));
        }
    }
    if !asked_for.is_empty() {
        reader.refuse(not_there(items, &asked_for));
    } else if KNOWN
        .iter()
        .all(|known| known.missing.is_some() || disabled.contains(known.name))
    {
        reader.warn(format!(
            "--{FLAG} switches every controller off: nothing will be done"
        ));
    }
    Controllers { disabled }
}

fn not_there(items: &[String], asked_for: &[&Known]) -> String {
    let reasons: Vec<_> = asked_for
        .iter()
        .filter_map(|known| Some(format!("{} ({})", known.alias, known.missing?)))
        .collect();
    let left: Vec<_> = items
        .iter()
        .filter(|item| !asked_for.iter().any(|known| known.is(item)))
        // Those that are unknown have an error of their own.
        .filter(|item| *item == "*" || find(item.strip_prefix('-').unwrap_or(item)).is_some())
        .map(String::as_str)
        .collect();
    let instead = match left.iter().any(|item| !item.starts_with('-')) {
        true => format!("write --{FLAG}={} until then", left.join(",")),
        false => "there is nothing else in the list that this program could do in this place".to_owned(),
    };
    format!("--{FLAG}: not there yet: {}; {instead}", reasons.join(", "))
}

fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.is(name))
}

impl Known {
    fn is(&self, name: &str) -> bool {
        name == self.name || name == self.alias
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str) -> (Controllers, Reader) {
        let mut reader = Reader::default();
        let items = reader.list(FLAG, &[list]);
        (complete(&items, true, &mut reader), reader)
    }

    fn enabled(list: &str) -> Vec<&'static str> {
        let (controllers, reader) = read(list);
        assert!(reader.errors.is_empty(), "{list}: {:?}", reader.errors);
        KNOWN
            .iter()
            .filter(|known| controllers.is_enabled(known.name))
            .map(|known| known.alias)
            .collect()
    }

    fn errors(list: &str) -> Vec<String> {
        read(list).1.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_first_item_that_mentions_a_controller_decides() {
        for (list, expected) in [
            (
                "*",
                &["cloud-node", "cloud-node-lifecycle", "service", "route"][..],
            ),
            ("*,-service,-route", &["cloud-node", "cloud-node-lifecycle"]),
            (
                "-service-lb-controller,*,-node-route-controller",
                &["cloud-node", "cloud-node-lifecycle"],
            ),
            ("cloud-node", &["cloud-node"]),
            ("cloud-node-lifecycle-controller", &["cloud-node-lifecycle"]),
            (
                "-cloud-node,cloud-node,cloud-node-lifecycle",
                &["cloud-node-lifecycle"],
            ),
            ("cloud-node-controller,-cloud-node", &["cloud-node"]),
            ("cloud-node,-service,service", &["cloud-node"]),
            ("-service", &[]),
            ("", &[]),
        ] {
            assert_eq!(enabled(list), expected, "{list:?}");
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_one() {
        assert_eq!(
            errors("*,-cloud-nod,quite-another-thing"),
            [
                "--controllers: \"cloud-nod\" is not in the list of known controllers; did you mean \"cloud-node\"?",
                "--controllers: \"quite-another-thing\" is not in the list of known controllers",
            ]
        );
        assert_eq!(
            errors("cloud-node, cloud-node-lifecycle").len(),
            1,
            "blanks are part of a name, as elsewhere"
        );
    }

    #[test]
    fn a_missing_controller_by_name_is_refused_with_the_value_to_write() {
        let all = errors("cloud-node,cloud-node-lifecycle,route,service");
        assert_eq!(all.len(), 1, "{all:?}");
        let error = &all[0];
        for part in [
            "not there yet: route (",
            "; write --controllers=cloud-node,cloud-node-lifecycle,service until then",
        ] {
            assert!(error.contains(part), "{part:?} not in {error}");
        }
        assert!(errors("*,route")[0].ends_with("write --controllers=* until then"));
        assert!(errors("route,-cloud-node")[0].contains("nothing else in the list"));
    }

    #[test]
    fn a_missing_controller_by_star_is_a_warning() {
        let warnings = |list: &str, routes| {
            let mut reader = Reader::default();
            let items = reader.list(FLAG, &[list]);
            complete(&items, routes, &mut reader);
            reader.warnings
        };
        let both = warnings("*", true);
        assert_eq!(both.len(), 1, "{both:?}");
        assert!(
            both[0].contains("node-route-controller is not there yet"),
            "{both:?}"
        );
        assert_eq!(warnings("*", false), [""; 0]);
        assert_eq!(warnings("*,-service,-route", true), [""; 0]);
        assert_eq!(warnings("cloud-node", true), [""; 0]);
        assert!(warnings("", true)[0].contains("every controller off"));
    }
}
