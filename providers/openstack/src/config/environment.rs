//! What of the process's surroundings counts: a few variables and directories.

use std::{collections::BTreeMap, path::PathBuf};

/// The surroundings, so that tests can have their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    variables: BTreeMap<&'static str, String>,
    /// Where `clouds.yaml` is looked for, in this order.
    pub(crate) directories: Vec<PathBuf>,
}

/// The variables that count. None of them holds credentials: `OS_USERNAME` and its like are not used, so that a shell's
/// leftovers can not take the place of the file.
const VARIABLES: [&str; 4] = [
    "OS_CLIENT_CONFIG_FILE",
    "OS_CLOUD",
    "OS_CCM_REGIONAL",
    "OCCM_WAIT_LB_ACTIVE_STEPS",
];

impl Environment {
    /// The process's own.
    pub(crate) fn of_process() -> Self {
        let variables = VARIABLES
            .iter()
            .filter_map(|name| Some((*name, std::env::var(name).ok()?)))
            .collect();
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        let directories = std::env::current_dir()
            .ok()
            .into_iter()
            .chain(home.map(|home| PathBuf::from(home).join(".config/openstack")))
            .chain([PathBuf::from("/etc/openstack")])
            .collect();
        Self {
            variables,
            directories,
        }
    }

    /// A variable; an empty one is as good as none.
    pub(crate) fn var(&self, name: &str) -> Option<String> {
        self.variables
            .get(name)
            .filter(|value| !value.is_empty())
            .cloned()
    }

    /// With this directory to look in.
    #[cfg(test)]
    pub(crate) fn looking_in(mut self, directory: &std::path::Path) -> Self {
        self.directories.push(directory.to_owned());
        self
    }

    /// With this variable.
    #[cfg(test)]
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        assert!(VARIABLES.contains(&name), "{name} is never read");
        self.variables.insert(name, value.into());
        self
    }
}
