//! Changes of an object that the cloud reads and writes as one JSON document, such as DigitalOcean's load balancers.
//!
//! A provider describes the fields that it manages as a [`Value`], and [`Rules::edit`] compares them with the document that
//! was read. If something differs, the answer is a copy of that document with the differences applied, to be written with
//! one PUT, and a list of them for the step's reason. Fields that the provider does not mention keep their values, at every
//! depth, so that settings made elsewhere survive a PUT that replaces the whole document.
//!
//! | Desired field | Meaning |
//! |---|---|
//! | missing | not managed: it stays |
//! | `null` | unset: the field is removed, and the cloud uses its default |
//! | an object | its fields are compared one by one |
//! | a list | elements are compared by position, or as a [set](Rules::set); surplus ones are removed |
//! | anything else | the value itself |

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::objects::{list, text};

/// How documents of one kind are compared. Paths name fields without positions: `forwarding_rules[].tls_passthrough`.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    sets: BTreeMap<&'static str, &'static [&'static str]>,
    defaults: BTreeMap<&'static str, Value>,
    read_only: Vec<&'static str>,
}

/// A document that differs from what was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// The document to write.
    pub document: Value,
    /// The differences, one sentence each: `forwarding_rules[1].target_port 30001 -> 30002`.
    pub changes: Vec<String>,
}

impl Rules {
    /// The list at this path is a set: its order has no meaning. Elements are matched by these fields, or as a whole if
    /// there are none; fields of a matched element that are not managed keep their values.
    #[must_use]
    pub fn set(mut self, path: &'static str, key: &'static [&'static str]) -> Self {
        self.sets.insert(path, key);
        self
    }

    /// A missing field means this value: a cloud that fills it in, or leaves it out, has not changed anything.
    #[must_use]
    pub fn default_value(mut self, path: &'static str, value: impl Into<Value>) -> Self {
        self.defaults.insert(path, value.into());
        self
    }

    /// A field of the document that the cloud reports and does not accept: it is not written back.
    #[must_use]
    pub fn read_only(mut self, field: &'static str) -> Self {
        self.read_only.push(field);
        self
    }

    /// The document to write in place of `observed` so that it is as `desired`; `None` if nothing differs.
    #[must_use]
    pub fn edit(&self, observed: &Value, desired: &Value) -> Option<Edit> {
        let mut changes = Vec::new();
        let mut document = observed.clone();
        self.apply(&Path::default(), &mut document, desired, &mut changes);
        if changes.is_empty() {
            return None;
        }
        if let Value::Object(fields) = &mut document {
            fields.retain(|field, _| !self.read_only.contains(&field.as_str()));
        }
        Some(Edit { document, changes })
    }

    fn apply(&self, path: &Path, observed: &mut Value, desired: &Value, changes: &mut Vec<String>) {
        match (&mut *observed, desired) {
            (Value::Object(have), Value::Object(want)) => self.apply_fields(path, have, want, changes),
            (Value::Array(have), Value::Array(want)) => match self.sets.get(path.pattern.as_str()) {
                Some(key) => self.apply_set(path, key, have, want, changes),
                None => self.apply_list(path, have, want, changes),
            },
            (have, want) if have == want => {}
            (have, want) => {
                changes.push(format!("{} {} -> {}", path.shown, text(have), text(want)));
                *have = want.clone();
            }
        }
    }

    fn apply_fields(
        &self,
        path: &Path,
        have: &mut Map<String, Value>,
        want: &Map<String, Value>,
        changes: &mut Vec<String>,
    ) {
        for (name, want) in want {
            let path = path.field(name);
            let default = self.defaults.get(path.pattern.as_str());
            let or_default = |value: &Value| match value {
                Value::Null => default.cloned().unwrap_or_default(),
                value => value.clone(),
            };
            let had = have.get(name).cloned().unwrap_or_default();
            let mut edited = or_default(&had);
            let before = changes.len();
            self.apply(&path, &mut edited, &or_default(want), changes);
            if changes.len() == before {
                continue;
            }
            if want.is_null() {
                have.remove(name);
            } else {
                have.insert(name.clone(), edited);
            }
        }
    }

    fn apply_list(&self, path: &Path, have: &mut Vec<Value>, want: &[Value], changes: &mut Vec<String>) {
        for (index, want) in want.iter().enumerate() {
            let path = path.element(index);
            match have.get_mut(index) {
                Some(have) => self.apply(&path, have, want, changes),
                None => {
                    changes.push(format!("{} added: {}", path.shown, text(want)));
                    have.push(want.clone());
                }
            }
        }
        for (index, surplus) in have.iter().enumerate().skip(want.len()) {
            changes.push(format!(
                "{} removed: {}",
                path.element(index).shown,
                text(surplus)
            ));
        }
        have.truncate(want.len());
    }

    /// Observed elements keep their order, so that a document that is equal stays equal; new ones follow.
    fn apply_set(
        &self,
        path: &Path,
        key: &[&str],
        have: &mut Vec<Value>,
        want: &[Value],
        changes: &mut Vec<String>,
    ) {
        let identity = |element: &Value| -> String {
            let fields = key
                .iter()
                .map(|field| element.get(*field).unwrap_or(&Value::Null));
            match key {
                [] => element.to_string(),
                _ => fields.map(ToString::to_string).collect::<Vec<_>>().join(" "),
            }
        };
        let mut missing: BTreeMap<String, &Value> = want.iter().map(|want| (identity(want), want)).collect();
        let mut removed = Vec::new();
        let mut index = 0;
        have.retain_mut(|element| {
            let path = path.element(index);
            index += 1;
            match missing.remove(&identity(element)) {
                Some(want) => {
                    self.apply(&path, element, want, changes);
                    true
                }
                None => {
                    removed.push(text(element));
                    false
                }
            }
        });
        let mut added = Vec::new();
        for want in want {
            if missing.remove(&identity(want)).is_some() {
                added.push(text(want));
                have.push(want.clone());
            }
        }
        for (verb, elements) in [("added", added), ("removed", removed)] {
            if !elements.is_empty() {
                changes.push(format!("{} {verb}: {}", path.shown, list(&elements)));
            }
        }
    }
}

/// Where a value is: for people with positions, for the rules without.
#[derive(Default)]
struct Path {
    shown: String,
    pattern: String,
}

impl Path {
    fn field(&self, name: &str) -> Self {
        let join = |path: &str| match path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        Self {
            shown: join(&self.shown),
            pattern: join(&self.pattern),
        }
    }

    fn element(&self, index: usize) -> Self {
        Self {
            shown: format!("{}[{index}]", self.shown),
            pattern: format!("{}[]", self.pattern),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    /// DigitalOcean's load balancers, as a provider of it describes them.
    fn rules() -> Rules {
        Rules::default()
            .set("forwarding_rules", &["entry_protocol", "entry_port"])
            .set("droplet_ids", &[])
            .set("firewall.allow", &[])
            .default_value("forwarding_rules[].tls_passthrough", false)
            .default_value("redirect_http_to_https", false)
            .default_value("http_idle_timeout_seconds", 60)
            .default_value("firewall", json!({}))
            .default_value("firewall.allow", json!([]))
            .default_value("sticky_sessions", json!({"type": "none"}))
            .default_value("health_check.proxy_protocol", false)
            .read_only("id")
            .read_only("status")
    }

    fn rule(protocol: &str, entry: u16, target: u16) -> Value {
        json!({"entry_protocol": protocol, "entry_port": entry, "target_protocol": protocol, "target_port": target})
    }

    fn observed() -> Value {
        let mut tls = rule("https", 443, 30002);
        tls["certificate_id"] = json!("c-1");
        tls["tls_passthrough"] = json!(false);
        json!({
            "id": "4de7ac8b", "status": "active", "name": "web", "size_unit": 1,
            "project_id": "kept", "tls_cipher_policy": "STRONG",
            "forwarding_rules": [rule("tcp", 80, 30001), tls],
            "health_check": {"protocol": "http", "port": 10256, "path": "/healthz", "healthy_threshold": 5},
            "sticky_sessions": {"type": "none"},
            "droplet_ids": [3, 1, 2],
            "http_idle_timeout_seconds": 60,
            "firewall": {"deny": [], "allow": ["cidr:10.0.0.0/8", "ip:1.2.3.4"]},
        })
    }

    fn desired() -> Value {
        json!({
            "name": "web",
            "forwarding_rules": [
                {"entry_protocol": "https", "entry_port": 443, "target_protocol": "https", "target_port": 30002,
                    "certificate_id": "c-1"},
                rule("tcp", 80, 30001)],
            "health_check": {"protocol": "http", "port": 10256, "path": "/healthz", "proxy_protocol": false},
            "sticky_sessions": null,
            "droplet_ids": [1, 2, 3],
            "redirect_http_to_https": false,
            "http_idle_timeout_seconds": null,
            "firewall": {"allow": ["ip:1.2.3.4", "cidr:10.0.0.0/8"]},
        })
    }

    fn edit(change: impl FnOnce(&mut Value)) -> Edit {
        let mut desired = desired();
        change(&mut desired);
        let edit = rules().edit(&observed(), &desired).unwrap();
        assert_eq!(
            rules().edit(&edit.document, &desired),
            None,
            "one PUT is enough: {}",
            edit.document
        );
        for (field, value) in [("project_id", "kept"), ("tls_cipher_policy", "STRONG")] {
            assert_eq!(edit.document[field], value);
        }
        assert_eq!(
            (edit.document.get("id"), edit.document.get("status")),
            (None, None)
        );
        edit
    }

    #[test]
    fn order_and_defaults_are_no_difference() {
        assert_eq!(rules().edit(&observed(), &desired()), None);
    }

    #[test]
    fn each_difference_is_named_and_everything_else_stays() {
        let edit = edit(|want| want["forwarding_rules"][0]["target_port"] = json!(30003));
        assert_eq!(edit.changes, ["forwarding_rules[1].target_port 30002 -> 30003"]);
        let mut expected = observed();
        expected["forwarding_rules"][1]["target_port"] = json!(30003);
        let fields = expected.as_object_mut().unwrap();
        fields.remove("id");
        fields.remove("status");
        assert_eq!(edit.document, expected);
    }

    #[test]
    fn elements_of_sets_come_and_go() {
        let edit = edit(|want| {
            want["droplet_ids"] = json!([2, 4, 3]);
            want["forwarding_rules"] = json!([rule("tcp", 80, 30001), rule("udp", 53, 30053)]);
        });
        assert_eq!(edit.document["droplet_ids"], json!([3, 2, 4]));
        assert_eq!(edit.changes.len(), 4, "{:?}", edit.changes);
        assert_eq!(
            edit.changes[..2],
            ["droplet_ids added: 4", "droplet_ids removed: 1"]
        );
        assert!(
            edit.changes[2].starts_with("forwarding_rules added: {"),
            "{:?}",
            edit.changes
        );
    }

    #[test]
    fn a_field_is_unset_again() {
        let mut observed = observed();
        observed["http_idle_timeout_seconds"] = json!(90);
        let edit = rules().edit(&observed, &desired()).unwrap();
        assert_eq!(edit.changes, ["http_idle_timeout_seconds 90 -> 60"]);
        assert_eq!(edit.document.get("http_idle_timeout_seconds"), None);
    }

    #[test]
    fn fields_that_are_missing_are_added() {
        let edit = edit(|want| {
            want["health_check"]["unhealthy_threshold"] = json!(3);
            want["tags"] = json!(["k8s:c"]);
        });
        assert_eq!(
            edit.changes,
            [
                "health_check.unhealthy_threshold not set -> 3",
                "tags not set -> [\"k8s:c\"]"
            ]
        );
        assert_eq!(edit.document["health_check"]["healthy_threshold"], 5);
    }

    #[test]
    fn lists_keep_their_order_and_a_set_has_each_element_once() {
        let rules = Rules::default().set("ids", &[]);
        let edit = |have: Value, want: Value| rules.edit(&have, &want);
        assert_eq!(edit(json!({"ids": [1, 2]}), json!({"ids": [2, 2, 1]})), None);
        let doubled = edit(json!({"ids": [1, 1, 2]}), json!({"ids": [1, 2]})).unwrap();
        assert_eq!(doubled.document, json!({"ids": [1, 2]}));
        let swapped = edit(json!({"list": [1, 2, 3]}), json!({"list": [2, 1]})).unwrap();
        assert_eq!(swapped.document, json!({"list": [2, 1]}));
        assert_eq!(
            swapped.changes,
            ["list[0] 1 -> 2", "list[1] 2 -> 1", "list[2] removed: 3"]
        );
    }
}
