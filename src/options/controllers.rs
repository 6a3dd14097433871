//! `--controllers`: which controllers run.
//!
//! `*` means all, `name` switches a controller on, `-name` off. The first item that names a controller decides about it; a
//! controller that no item names runs if there is a `*`.

use std::collections::BTreeSet;

use ccm_core::{
    Provider,
    config::suggest,
    controllers::{ControllerNames, SERVICE_CONTROLLER},
};

use super::{flags::CONTROLLERS, value::Reader};
use crate::config::Controllers;
use crate::controllers::{self, Controller, FRAMEWORK};

const FLAG: &str = CONTROLLERS.def.name;

/// The short names of all controllers, for `--help`.
pub(super) fn names(providers: &[&'static Provider]) -> String {
    fn list<'a>(controllers: impl Iterator<Item = &'a ControllerNames>) -> String {
        let names: Vec<_> = controllers.map(ControllerNames::short_name).collect();
        names.join(", ")
    }
    let mut text = list(FRAMEWORK.iter().map(|controller| &controller.names));
    for provider in providers {
        let own = provider.controllers.iter().map(|controller| &controller.names);
        let more = list(own.chain(&provider.class_controller));
        if !more.is_empty() {
            text += &format!("; with --cloud-provider={} also {more}", provider.name);
        }
    }
    let all = providers.iter().flat_map(|provider| provider.controllers);
    let off = list(all.filter(|controller| !controller.default_on).map(|controller| &controller.names));
    if !off.is_empty() {
        text += &format!("; * does not include {off}");
    }
    text
}

/// The controllers that `--controllers` and a leader migration may name.
pub(super) struct Known {
    /// The controllers of the framework and of the chosen provider; of all providers, if none is chosen.
    controllers: Vec<Controller>,
    /// The controllers of other providers, with the names of these providers.
    others: Vec<(&'static str, &'static ControllerNames)>,
    /// The names of the service controller for Services with a class of the chosen provider.
    class_controllers: Vec<&'static ControllerNames>,
}

impl Known {
    pub(super) fn new(chosen: Option<&'static Provider>, providers: &[&'static Provider]) -> Self {
        let all = providers.iter().flat_map(|provider| {
            let name = provider.name;
            provider.controllers.iter().map(move |controller| (name, controller))
        });
        let (own, other): (Vec<_>, Vec<_>) = providers
            .iter()
            .filter_map(|provider| Some((provider.name, provider.class_controller.as_ref()?)))
            .partition(|(name, _)| chosen.is_none_or(|chosen| *name == chosen.name));
        let class_controllers = own.into_iter().map(|(_, names)| names).collect();
        match chosen {
            Some(chosen) => Self {
                controllers: controllers::all(chosen).collect(),
                others: all
                    .filter(|(name, _)| *name != chosen.name)
                    .map(|(name, controller)| (name, &controller.names))
                    .chain(other)
                    .collect(),
                class_controllers,
            },
            None => Self {
                controllers: FRAMEWORK
                    .iter()
                    .map(Controller::Framework)
                    .chain(all.map(|(_, controller)| Controller::Provider(controller)))
                    .collect(),
                others: Vec::new(),
                class_controllers,
            },
        }
    }

    /// The names that the flag may have.
    fn names(&self) -> impl Iterator<Item = &'static ControllerNames> {
        let controllers = self.controllers.iter().map(|controller| controller.names());
        controllers.chain(self.class_controllers.iter().copied())
    }

    /// Reads the flag.
    pub(super) fn select(&self, reader: &mut Reader) -> Controllers {
        let items = reader.list(CONTROLLERS);
        let star = items.iter().any(|item| item == "*");
        for item in items.iter().filter(|item| *item != "*") {
            let name = item.strip_prefix('-').unwrap_or(item);
            if self.names().any(|names| names.is_called(name)) {
                continue;
            }
            if let Some((provider, _)) = self.others.iter().find(|(_, names)| names.is_called(name)) {
                reader.refuse(format!(
                    "--{FLAG}: {name:?} is a controller of the cloud provider {provider}, which is not chosen"
                ));
                continue;
            }
            let names = self.names().flat_map(|names| [names.name, names.short_name()]);
            let hint = suggest::nearest(name, names)
                .map(|name| format!("; did you mean {name:?}?"))
                .unwrap_or_default();
            reader.refuse(format!("--{FLAG}: {name:?} is not in the list of known controllers{hint}"));
        }
        let serves_classes = self.class_controllers.iter().any(|names| names.listed(&items) == Some(true));
        let mut disabled = BTreeSet::new();
        for controller in &self.controllers {
            let name = controller.names().name;
            if name == SERVICE_CONTROLLER.name && serves_classes {
                continue;
            }
            let decided = controller.names().listed(&items);
            // As upstream, a list selects among the controllers of the framework. A provider starts the others by its settings.
            let is_listed = star || matches!(controller, Controller::Provider(_));
            if !decided.unwrap_or(is_listed && controller.is_default_on()) {
                disabled.insert(name);
            }
        }
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
        self.controllers
            .iter()
            .map(|controller| controller.names())
            .find(|names| names.migration_names().any(|known| known == name))
            .map(|names| names.name)
    }

    /// Every name that [`Self::migrated`] knows.
    pub(super) fn migrated_names(&self) -> impl Iterator<Item = &'static str> {
        self.controllers.iter().flat_map(|controller| controller.names().migration_names())
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
            .map(|controller| &controller.names)
            .filter(|names| controllers.is_enabled(names.name))
            .map(ControllerNames::short_name)
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
