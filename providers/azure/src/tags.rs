//! The tags of resources.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::config::CloudConf;

/// The configured tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceTags {
    tags: BTreeMap<String, String>,
    /// Prefixes of tags that are kept. With any, other tags that are not configured are deleted.
    system: Vec<String>,
}

impl ResourceTags {
    /// Reads `tags`, `tagsMap` and `systemTags`.
    pub(crate) fn of(conf: &CloudConf) -> Self {
        let mut tags: BTreeMap<String, String> = BTreeMap::new();
        for item in conf.tags.split(',') {
            // An item without exactly one `=` is not a tag.
            let mut parts = item.split('=');
            if let (Some(key), Some(value), None) = (parts.next(), parts.next(), parts.next()) {
                set(&mut tags, trimmed(key), trimmed(value));
            }
        }
        for (key, value) in &conf.tags_map {
            set(&mut tags, trimmed(key), trimmed(value));
        }
        let system = conf.system_tags.split(',').map(str::trim).filter(|prefix| !prefix.is_empty());
        Self {
            tags,
            system: system.map(str::to_owned).collect(),
        }
    }

    /// Sets the tags of a document, and deletes those that are neither configured nor a system tag, if there are system tags.
    pub(crate) fn apply(&self, tags: &mut Map<String, Value>) {
        if self.tags.is_empty() {
            return;
        }
        for (key, value) in &self.tags {
            let existing = tags.iter_mut().find(|(existing, _)| existing.eq_ignore_ascii_case(key));
            match existing {
                Some((_, old)) if old.as_str().is_some_and(|old| old.eq_ignore_ascii_case(value)) => {}
                Some((_, old)) => *old = value.as_str().into(),
                None => {
                    tags.insert(key.clone(), value.as_str().into());
                }
            }
        }
        if !self.system.is_empty() {
            tags.retain(|key, _| self.is_kept(key));
        }
    }

    fn is_kept(&self, key: &str) -> bool {
        let lower = key.to_ascii_lowercase();
        self.tags.keys().any(|configured| configured.eq_ignore_ascii_case(key))
            || self.system.iter().any(|prefix| lower.starts_with(&prefix.to_ascii_lowercase()))
    }
}

/// A key that differs only in case replaces the earlier one.
fn set(tags: &mut BTreeMap<String, String>, key: String, value: String) {
    tags.retain(|existing, _| !existing.eq_ignore_ascii_case(&key));
    tags.insert(key, value);
}

/// `null` stays as it is, with its blanks.
fn trimmed(text: &str) -> String {
    let trimmed = text.trim();
    if trimmed.eq_ignore_ascii_case("null") {
        text
    } else {
        trimmed
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn applied(tags: &str, map: &[(&str, &str)], system: &str, existing: &Value) -> Value {
        let conf = CloudConf {
            tags: tags.to_owned(),
            tags_map: map.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            system_tags: system.to_owned(),
            ..CloudConf::default()
        };
        let mut tags = existing.as_object().unwrap().clone();
        ResourceTags::of(&conf).apply(&mut tags);
        Value::Object(tags)
    }

    #[test]
    fn tags_are_read_as_by_the_go_program() {
        let none = json!({});
        assert_eq!(applied("a=b, c = d ,broken,x=y=z", &[], "", &none), json!({"a": "b", "c": "d"}));
        let replaced = applied("env=prod,a=b", &[("ENV", "test")], "", &none);
        assert_eq!(replaced, json!({"ENV": "test", "a": "b"}));
    }

    #[test]
    fn existing_tags_keep_their_spelling() {
        let existing = json!({"Env": "PROD", "other": "x"});
        assert_eq!(applied("env=prod", &[], "", &existing), existing);
        assert_eq!(applied("env=test", &[], "", &existing), json!({"Env": "test", "other": "x"}));
    }

    #[test]
    fn other_tags_are_deleted_only_with_system_tags() {
        let existing = json!({"aks-Managed": "1", "other": "x", "env": "prod"});
        let pruned = applied("env=prod", &[], "AKS-,sys", &existing);
        assert_eq!(pruned, json!({"aks-Managed": "1", "env": "prod"}));
        // Without configured tags nothing is changed.
        assert_eq!(applied("", &[], "aks-", &existing), existing);
    }
}
