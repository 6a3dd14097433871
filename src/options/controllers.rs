//! `--controllers`: which controllers run.
//!
//! `*` means all, `name` switches a controller on, `-name` off. The first item that names a controller decides about it; a
//! controller that no item names runs if there is a `*`.

use std::collections::BTreeSet;

use ccm_core::{Provider, config::suggest, controllers::ControllerDef};

use super::{flags::CONTROLLERS, value::Reader};
use crate::config::Controllers;
use crate::controllers::{self, FRAMEWORK};

const FLAG: &str = CONTROLLERS.def.name;

/// The short names of all controllers, for `--help`.
pub(super) fn names(providers: &[&'static Provider]) -> String {
    fn list<'a>(controllers: impl Iterator<Item = &'a ControllerDef>) -> String {
        let names: Vec<_> = controllers.map(ControllerDef::short_name).collect();
        names.join(", ")
    }
    let mut text = list(FRAMEWORK.iter());
    for provider in providers {
        let more = list(provider.controllers.iter());
        if !more.is_empty() {
            text += &format!("; with --cloud-provider={} also {more}", provider.name);
        }
    }
    let all = providers.iter().flat_map(|provider| provider.controllers);
    let off = list(all.filter(|def| !def.default_on));
    if !off.is_empty() {
        text += &format!("; * does not include {off}");
    }
    text
}

/// The controllers that `--controllers` and a leader migration may name.
pub(super) struct Known {
    /// The controllers of the framework and of the chosen provider; of all providers, if none is chosen.
    controllers: Vec<&'static ControllerDef>,
    /// The controllers of other providers, with the names of these providers.
    others: Vec<(&'static str, &'static ControllerDef)>,
}

impl Known {
    pub(super) fn new(chosen: Option<&'static Provider>, providers: &[&'static Provider]) -> Self {
        let of = |provider: &&'static Provider| {
            let name = provider.name;
            provider.controllers.iter().map(move |def| (name, def))
        };
        let all = providers.iter().flat_map(of);
        match chosen {
            Some(chosen) => Self {
                controllers: controllers::all(chosen).collect(),
                others: all.filter(|(name, _)| *name != chosen.name).collect(),
            },
            None => Self {
                controllers: FRAMEWORK.iter().chain(all.map(|(_, def)| def)).collect(),
                others: Vec::new(),
            },
        }
    }

    /// Reads the flag.
    pub(super) fn select(&self, reader: &mut Reader) -> Controllers {
        let items = reader.list(CONTROLLERS);
        let star = items.iter().any(|item| item == "*");
        for item in items.iter().filter(|item| *item != "*") {
            let name = item.strip_prefix('-').unwrap_or(item);
            if self.controllers.iter().any(|def| def.is_called(name)) {
                continue;
            }
            if let Some((provider, _)) = self.others.iter().find(|(_, def)| def.is_called(name)) {
                reader.refuse(format!(
                    "--{FLAG}: {name:?} is a controller of the cloud provider {provider}, which is not chosen"
                ));
                continue;
            }
            let known = self.controllers.iter();
            let names = known.flat_map(|def| [def.name, def.short_name()]);
            let hint = suggest::nearest(name, names)
                .map(|name| format!("; did you mean {name:?}?"))
                .unwrap_or_default();
            reader.refuse(format!("--{FLAG}: {name:?} is not in the list of known controllers{hint}"));
        }
        let is_disabled = |def: &&&ControllerDef| {
            let decided = items.iter().find_map(|item| match item.strip_prefix('-') {
                Some(name) => def.is_called(name).then_some(false),
                None => def.is_called(item).then_some(true),
            });
            // As upstream, a list selects among the controllers of the framework. A provider starts the others by its settings.
            let is_listed = star || !FRAMEWORK.iter().any(|framework| framework.name == def.name);
            !decided.unwrap_or(is_listed && def.default_on)
        };
        let disabled = self.controllers.iter().filter(is_disabled);
        let disabled: BTreeSet<_> = disabled.map(|def| def.name).collect();
        if disabled.len() == self.controllers.len() {
            reader.warn(format!("--{FLAG} switches every controller off: nothing will be done"));
        }
        Controllers {
            disabled,
            ..Controllers::default()
        }
    }

    /// The canonical name of the controller with this name in the file of a leader migration.
    pub(super) fn migrated(&self, name: &str) -> Option<&'static str> {
        let is = |def: &&&ControllerDef| def.migration_names().any(|known| known == name);
        self.controllers.iter().find(is).map(|def| def.name)
    }

    /// Every name that [`Self::migrated`] knows.
    pub(super) fn migrated_names(&self) -> impl Iterator<Item = &'static str> {
        self.controllers.iter().flat_map(|def| def.migration_names())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str) -> (Controllers, Reader) {
        let mut reader = Reader::new([(FLAG.to_owned(), vec![list.to_owned()])]);
        (Known::new(None, &[]).select(&mut reader), reader)
    }

    fn enabled(list: &str) -> Vec<&'static str> {
        let (controllers, reader) = read(list);
        assert!(reader.errors.is_empty(), "{list}: {:?}", reader.errors);
        FRAMEWORK
            .iter()
            .filter(|def| controllers.is_enabled(def.name))
            .map(ControllerDef::short_name)
            .collect()
    }

    fn errors(list: &str) -> Vec<String> {
        read(list).1.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_first_item_that_names_a_controller_decides() {
        for (list, expected) in [
            ("*", &["cloud-node", "cloud-node-lifecycle", "service", "route"][..]),
            ("*,-service,-route", &["cloud-node", "cloud-node-lifecycle"]),
            ("-service-lb-controller,*,-node-route-controller", &["cloud-node", "cloud-node-lifecycle"]),
            ("cloud-node", &["cloud-node"]),
            ("cloud-node-lifecycle-controller", &["cloud-node-lifecycle"]),
            ("-cloud-node,cloud-node,cloud-node-lifecycle", &["cloud-node-lifecycle"]),
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
