//! Requests that depend on each other: later ones change objects of earlier ones. Each is sent to both clouds, and the
//! answers have to be equal.

mod balancing;
mod network;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::table::Case;
use crate::world::ClusterSnapshot;

/// The longest duration of one change in the real cloud.
const LIMIT: Duration = Duration::from_secs(180);

/// A value of an answer to remember: its name and its location.
type Capture = (&'static str, Box<dyn Fn(&Value) -> Option<String> + Send + Sync>);

/// A request, the values of its answer to remember, and whether to wait for a load balancer after it.
pub(crate) struct Step {
    pub(crate) case: Case,
    captures: Vec<Capture>,
    rest: bool,
}

impl Step {
    fn new(case: Case) -> Self {
        Self {
            case,
            captures: Vec::new(),
            rest: false,
        }
    }

    /// Remembers the value at a location.
    fn note(mut self, name: &'static str, pointer: &'static str) -> Self {
        let find = move |answer: &Value| answer.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        self.captures.push((name, Box::new(find)));
        self
    }

    /// Remembers the ID of the object with this name in a list.
    fn note_named(mut self, name: &'static str, list: &'static str, called: &'static str) -> Self {
        let find = move |answer: &Value| {
            let list = answer.pointer(list)?.as_array()?;
            let found = list.iter().find(|entry| entry["name"] == called)?;
            found["id"].as_str().map(str::to_owned)
        };
        self.captures.push((name, Box::new(find)));
        self
    }

    /// Waits afterwards until no change of the load balancer is pending.
    fn rest(mut self) -> Self {
        self.rest = true;
        self
    }

    /// Stores the remembered values, and waits for the load balancer.
    pub(crate) async fn finish(&self, world: &mut ClusterSnapshot, answer: Option<&Value>) {
        for (name, find) in &self.captures {
            let found = answer.and_then(find);
            let found = found.unwrap_or_else(|| panic!("{}: no {name} in {answer:?}", self.case));
            world.vars.insert(name, found);
        }
        if self.rest {
            let come_to_rest = world.come_to_rest();
            tokio::time::timeout(LIMIT, come_to_rest)
                .await
                .unwrap_or_else(|_| panic!("{}: still pending", self.case));
        }
    }
}

/// The sequences of requests, each complete.
pub(crate) fn stories() -> Vec<Vec<Step>> {
    vec![balancing::story(), network::story()]
}

/// A request with the token of the user.
fn call(service: &'static str, method: Method, path: &str) -> Step {
    Step::new(Case::new(service, method, path).token("<token>"))
}

fn send(service: &'static str, method: Method, path: &str, body: &Value) -> Step {
    let case = Case::new(service, method, path).token("<token>");
    Step::new(case.json(body))
}

/// An object with the members of another merged into it; null removes a member.
fn with(base: &Value, changes: &Value) -> Value {
    let mut merged = base.clone();
    if let (Some(fields), Some(changes)) = (merged.as_object_mut(), changes.as_object()) {
        for (name, value) in changes {
            if value == &json!("-") {
                fields.remove(name);
            } else {
                fields.insert(name.clone(), value.clone());
            }
        }
    }
    merged
}
