//! The environment of the process, as a value.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The variables and the working directory of the process, read once at the start. Providers read nothing of it themselves, so
/// that tests can pass their own.
#[derive(Clone, Default)]
pub struct Environment {
    variables: Arc<BTreeMap<String, String>>,
    working_directory: Option<PathBuf>,
}

impl Environment {
    /// That of this process. Variables that are not UTF-8 are left out.
    #[must_use]
    pub fn of_process() -> Self {
        let variables: Self = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self {
            working_directory: std::env::current_dir().ok(),
            ..variables
        }
    }

    /// The value of a variable. An empty one counts as unset.
    #[must_use]
    pub fn var(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The first of these variables with a value, and the value.
    #[must_use]
    pub fn first(&self, names: &[&'static str]) -> Option<(&'static str, &str)> {
        names.iter().find_map(|name| Some((*name, self.var(name)?)))
    }

    /// The hosts that are reached without a proxy, by `NO_PROXY` or `no_proxy`, in the form of reqwest and hyper-util. As in Go,
    /// this host is one of them.
    #[must_use]
    pub fn no_proxy(&self) -> String {
        let mut hosts = vec!["localhost", "127.0.0.0/8", "::1"];
        if let Some((_, items)) = self.first(&["NO_PROXY", "no_proxy"]) {
            hosts.extend(items.split(',').map(without_proxy));
        }
        hosts.join(",")
    }

    /// The directory in which the process was started, if it is known.
    #[must_use]
    pub fn working_directory(&self) -> Option<&Path> {
        self.working_directory.as_deref()
    }

    /// The same with this variable.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.variables).insert(name.into(), value.into());
        self
    }

    /// The same with this working directory.
    #[must_use]
    pub fn in_directory(self, directory: impl Into<PathBuf>) -> Self {
        Self {
            working_directory: Some(directory.into()),
            ..self
        }
    }
}

/// These variables, without a working directory.
impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self {
            variables: Arc::new(variables.into_iter().collect()),
            working_directory: None,
        }
    }
}

/// An item of `NO_PROXY` in the form that reqwest and hyper-util match. They know no ports, so an item with a port is for all
/// ports of its host.
fn without_proxy(item: &str) -> &str {
    let item = item.trim();
    if item == "*" {
        // They match names and addresses separately.
        return "*,0.0.0.0/0,::/0";
    }
    let with_port = item.rsplit_once(':').filter(|(host, port)| {
        let is_host = host.ends_with(']') || !host.contains(':');
        is_host && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    let host = with_port.map_or(item, |(host, _)| host);
    match host.strip_prefix('*') {
        Some(domain) if domain.starts_with('.') => domain,
        _ => host.trim_start_matches('[').trim_end_matches(']'),
    }
}

/// Without values: some are secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("variables", &self.variables.keys())
            .field("working_directory", &self.working_directory)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_is_none_and_no_value_is_shown() {
        let environment =
            Environment::default().with("TOKEN", "secret").with("EMPTY", "").in_directory("/work");
        assert_eq!(environment.var("TOKEN"), Some("secret"));
        assert_eq!((environment.var("EMPTY"), environment.var("OTHER")), (None, None));
        assert_eq!(environment.working_directory(), Some(Path::new("/work")));
        let shown = format!("{environment:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("secret"), "{shown}");
    }
}
