//! Holds the rules of upstream on one cloud against the states that upstream itself recorded.

use serde_json::{Value, json};

use crate::{
    cases::{Case, cases, items, recorded, text},
    site::Host,
};

/// How the rules of upstream on one cloud are applied to its recordings.
pub(crate) struct RecordedRules {
    pub(crate) cloud: &'static str,
    /// The nodes of the recordings: their names, and the labels that the cases or the cloud need.
    pub(crate) nodes: [(&'static str, (&'static str, &'static str)); 3],
    /// Adds the fields that the API server sets to a Service of this name.
    pub(crate) complete: fn(&str, &mut Value),
    /// The variables of the cases, and the names of the recordings.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// The writes of upstream for a state, these nodes and this config.
    pub(crate) writes: fn(&Value, &[Host], &Value) -> Vec<String>,
}

impl RecordedRules {
    /// Asserts that upstream changes none of its own objects in more than this number of phases. `left_out`: cases.
    pub(crate) fn assert_unchanged(&self, left_out: &[&str], more_than: usize) {
        let (mut checked, mut problems) = (0, Vec::new());
        for case in cases(self.cloud).unwrap() {
            for phase in items(&recorded(self.cloud, &case.name).unwrap()["phases"]) {
                if phase["phase"] == "delete" || left_out.contains(&case.name.as_str()) {
                    continue;
                }
                let (got, hosts) = self.state(&case, phase);
                let found = (self.writes)(&got, &hosts, &case.config);
                problems.extend(found.iter().map(|write| format!("{}: {write}", phase["phase"])));
                checked += 1;
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        assert!(checked > more_than, "{checked} phases");
    }

    /// Asserts that upstream writes something for each change. A line is a case, a path in its first phase, the changed value,
    /// and a write of upstream that follows.
    pub(crate) fn assert_writes(&self, changes: &str) {
        let cases = cases(self.cloud).unwrap();
        for row in changes.trim().lines() {
            let [case, path, value, expected] = row.splitn(4, " | ").collect::<Vec<_>>().try_into().unwrap();
            let case = cases.iter().find(|one| one.name == case).unwrap();
            let phase = recorded(self.cloud, &case.name).unwrap()["phases"][0].clone();
            let (mut got, hosts) = self.state(case, &phase);
            let changed = got.pointer_mut(path).unwrap_or_else(|| panic!("{path}"));
            *changed = serde_json::from_str(value).unwrap();
            let found = (self.writes)(&got, &hosts, &case.config);
            let is_written = found.iter().any(|write| write.contains(expected));
            assert!(is_written, "{row}: {found:?}");
        }
    }

    /// The recorded state of a phase with its Services, and the nodes.
    fn state(&self, case: &Case, phase: &Value) -> (Value, Vec<Host>) {
        let (specs, hosts) = self.desired(case, &text(&phase["phase"]));
        let mut got = phase.clone();
        got["specs"] = specs;
        (got, hosts)
    }

    /// The desired state of a case in one of its phases: its Services with the patches so far, and the excluded nodes.
    fn desired(&self, case: &Case, phase: &str) -> (Value, Vec<Host>) {
        let mut services = case.services.clone();
        let mut hosts = self.nodes.map(|(name, (key, value))| Host {
            name: name.to_owned(),
            labels: [(key.to_owned(), value.to_owned())].into(),
            excluded: false,
        });
        let phases = recorded(self.cloud, &case.name).unwrap()["phases"].clone();
        let place = |name: &str| items(&phases).iter().position(|one| one["phase"] == name).unwrap();
        for step in &case.steps {
            if place(&text(&step["name"])) > place(phase) {
                break;
            }
            if step["patch"].is_object() {
                merge(&mut services[0], &step["patch"]);
            }
            if let Some(node) = step["node"].as_str() {
                let host = hosts.iter_mut().find(|host| host.name == node).unwrap();
                let labels = &step["patch_node"]["metadata"]["labels"];
                host.excluded = labels.as_object().unwrap().values().any(|label| label == "true");
            }
            if let Some(name) = step["delete"].as_str() {
                services.retain(|service| service["metadata"]["name"] != name);
            }
        }
        let specs = services.into_iter().map(|mut service| {
            let name = text(&service["metadata"]["name"]);
            for port in service["spec"]["ports"].as_array_mut().unwrap() {
                if port["protocol"].is_null() {
                    port["protocol"] = json!("TCP");
                }
            }
            service["spec"]["healthCheckNodePort"] = json!(format!("<hcnodeport:{name}>"));
            (self.complete)(&name, &mut service);
            (name, self.with_names(&service))
        });
        (Value::Object(specs.collect()), hosts.to_vec())
    }

    /// Replaces the variables of the cases by the names of the recordings.
    fn with_names(&self, service: &Value) -> Value {
        let mut text = service.to_string();
        for (variable, name) in self.variables {
            text = text.replace(variable, name);
        }
        serde_json::from_str(&text).unwrap()
    }
}

fn merge(value: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *value = patch.clone();
        return;
    };
    for (key, patch) in patch {
        merge(&mut value[key], patch);
    }
}
