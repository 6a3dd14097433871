//! Names in a list of a config file. An empty name is no name.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// The warning about an empty name in a list.
pub(super) const EMPTY_NAME: &str = "an empty name in a list is no name and is left out; remove it";

/// The names of a key that may be given several times, for keys whose list decides about addresses of nodes.
///
/// Every list leaves empty names out. This one also knows whether nothing else was in it. The Go cloud-controller-managers then leave out the
/// addresses of all nodes, and those that nodes have must not change when they are replaced.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NameList {
    names: Vec<String>,
    has_only_empty_names: bool,
}

impl NameList {
    /// The names that are not empty.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether the file has this key, and only with empty names. Then there are no [`names`](Self::names).
    #[must_use]
    pub fn has_only_empty_names(&self) -> bool {
        self.has_only_empty_names
    }
}

impl<const N: usize> From<[&str; N]> for NameList {
    fn from(names: [&str; N]) -> Self {
        Self {
            names: names.map(str::to_owned).to_vec(),
            has_only_empty_names: false,
        }
    }
}

/// Shows the list as it is in the file.
impl fmt::Debug for NameList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has_only_empty_names {
            f.write_str("[\"\"]")
        } else {
            self.names.fmt(f)
        }
    }
}

impl<'de> Deserialize<'de> for NameList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = Vec::<String>::deserialize(deserializer)?;
        let is_given = !all.is_empty();
        let names: Vec<String> = all.into_iter().filter(|name| !name.is_empty()).collect();
        Ok(Self {
            has_only_empty_names: is_given && names.is_empty(),
            names,
        })
    }
}
