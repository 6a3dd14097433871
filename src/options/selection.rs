//! `--controllers`: which controllers run.
//!
//! `*` stands for all, `name` switches one on, `-name` off. The first item that mentions a controller decides about it;
//! one that no item mentions runs if there is a `*`.

use std::collections::BTreeSet;

use ccm_core::config::suggest;

use super::{config::Controllers, value::Reader};

const FLAG: &str = "controllers";

/// A controller.
struct Known {
    name: &'static str,
    alias: &'static str,
    /// What files of leader migrations call it, too.
    former: Option<&'static str>,
}

const KNOWN: [Known; 4] = [
    Known {
        name: "cloud-node-controller",
        alias: "cloud-node",
        former: None,
    },
    Known {
        name: "cloud-node-lifecycle-controller",
        alias: "cloud-node-lifecycle",
        former: None,
    },
    Known {
        name: "service-lb-controller",
        alias: "service",
        former: Some("service-controller"),
    },
    Known {
        name: "node-route-controller",
        alias: "route",
        former: Some("route-controller"),
    },
];

/// Reads the items.
pub(super) fn complete(items: &[String], reader: &mut Reader) -> Controllers {
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
    for known in &KNOWN {
        let decided = items.iter().find_map(|item| match item.strip_prefix('-') {
            Some(name) => known.is(name).then_some(false),
            None => known.is(item).then_some(true),
        });
        if !decided.unwrap_or(star) {
            disabled.insert(known.name);
        }
    }
    if KNOWN.iter().all(|known| disabled.contains(known.name)) {
        reader.warn(format!(
            "--{FLAG} switches every controller off: nothing will be done"
        ));
    }
    Controllers {
        disabled,
        ..Controllers::default()
    }
}

/// The canonical name of the controller that a file of a leader migration calls this.
pub(super) fn migrated(name: &str) -> Option<&'static str> {
    let known = KNOWN
        .iter()
        .find(|known| known.is(name) || known.former == Some(name))?;
    Some(known.name)
}

/// Every name that [`migrated`] knows.
pub(super) fn migrated_names() -> impl Iterator<Item = &'static str> {
    KNOWN
        .iter()
        .flat_map(|known| [Some(known.name), Some(known.alias), known.former])
        .flatten()
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
        (complete(&items, &mut reader), reader)
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
    fn a_list_that_leaves_nothing_is_a_warning() {
        for (list, warned) in [
            ("", true),
            ("-service", true),
            ("route", false),
            ("*,-route", false),
        ] {
            assert_eq!(read(list).1.warnings.len(), usize::from(warned), "{list:?}");
        }
    }
}
