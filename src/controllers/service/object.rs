//! The desired content of a Service object, and the patch for it.
//!
//! One strategic merge patch of `services/status`, which takes metadata along: a role needs no more than upstream's. It
//! names the finalizers to add or to remove, never the whole list, and carries the uid, so that the API server refuses it
//! (409) for a Service that was recreated under the same name.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::load_balancer::{Claim, Condition, Effects, Ingress, IpMode, ProviderFinalizers, ServiceView};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// What a Service object does not say yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectChange {
    /// Finalizers to add.
    pub(super) add_finalizers: Vec<&'static str>,
    /// Finalizers to remove.
    pub(super) remove_finalizers: Vec<&'static str>,
    /// Annotations to set or, with `None`, to remove.
    pub(super) annotations: BTreeMap<String, Option<String>>,
    /// The whole of `status.loadBalancer.ingress`.
    pub(super) ingress: Option<Vec<Ingress>>,
    /// Conditions to set.
    pub(super) conditions: Vec<Condition>,
}

impl ObjectChange {
    /// What `view` does not say yet. `effects`: what its load balancer says about it, once all of it is done.
    pub(super) fn of(view: &ServiceView, finalizers: ProviderFinalizers, effects: Option<&Effects>) -> Self {
        let mut change = Self {
            add_finalizers: finalizers.missing(view),
            ..Self::default()
        };
        let wants = view.wants_load_balancer();
        let Some(effects) = effects else { return change };
        change.annotations = effects
            .annotations
            .iter()
            .filter(|(key, value)| view.annotation(key) != value.as_deref())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let none = Vec::new();
        // Without a load balancer there is no address, whatever anybody says.
        let ingress = if wants {
            effects.ingress.as_ref()
        } else {
            Some(&none)
        };
        change.ingress = ingress
            .filter(|ingress| !is_same(ingress, &view.ingress))
            .cloned();
        change.conditions = effects
            .conditions
            .values()
            .filter(|condition| !view.conditions.contains(condition))
            .cloned()
            .collect();
        change.remove_finalizers = finalizers.surplus(view);
        change
    }

    /// [`of`](Self::of) a Service that is ours. One that another component for this cloud serves is left unchanged, but our
    /// finalizers, if it has them from before, do not keep it from being deleted.
    pub(super) fn due(
        view: &ServiceView,
        claim: Claim,
        finalizers: ProviderFinalizers,
        effects: Option<&Effects>,
    ) -> Self {
        match claim {
            Claim::Ours => Self::of(view, finalizers, effects),
            Claim::Elsewhere if finalizers.needs_cleanup(view) => {
                Self::of(view, finalizers, Some(&Effects::default()))
            }
            Claim::Elsewhere | Claim::NotOurs => Self::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The changes in words.
    pub(super) fn sentences(&self) -> Vec<String> {
        let add = self.add_finalizers.iter();
        let mut parts: Vec<_> = add.map(|name| format!("add finalizer {name}")).collect();
        let remove = self.remove_finalizers.iter();
        parts.extend(remove.map(|name| format!("remove finalizer {name}")));
        parts.extend(self.annotations.iter().map(|(key, value)| match value {
            Some(value) => format!("set annotation {key}={value}"),
            None => format!("remove annotation {key}"),
        }));
        parts.extend(self.ingress.as_ref().map(|ingress| {
            let address = |ingress: &Ingress| ingress.ip.clone().or(ingress.hostname.clone());
            let all: Vec<_> = ingress
                .iter()
                .map(|one| address(one).unwrap_or_default())
                .collect();
            let all = all.join(", ");
            format!(
                "{} in the status",
                if ingress.is_empty() { "no address" } else { &all }
            )
        }));
        let conditions = self.conditions.iter();
        let conditions: BTreeMap<_, _> = conditions.map(|known| (&*known.kind, known.is_true)).collect();
        parts.extend(conditions.into_iter().map(|(kind, is_true)| {
            let status = if is_true { "True" } else { "False" };
            format!("condition {kind}={status}")
        }));
        parts
    }

    /// What fails if it cannot be written, in upstream's words.
    pub(super) fn failure(&self) -> &'static str {
        if !self.add_finalizers.is_empty() {
            "failed to add load balancer cleanup finalizer"
        } else if !self.remove_finalizers.is_empty() {
            "failed to remove load balancer cleanup finalizer"
        } else {
            "failed to update load balancer status"
        }
    }

    /// The body of the patch.
    pub(super) fn patch(&self, view: &ServiceView, now: Timestamp) -> Value {
        let mut metadata = Map::from_iter([("uid".to_owned(), json!(*view.id.uid))]);
        if !self.add_finalizers.is_empty() {
            metadata.insert("finalizers".to_owned(), json!(self.add_finalizers));
            // At the end: the API server would put them first.
            let known = view.finalizers.iter().map(|name| &**name);
            let order = known.filter(|name| !self.remove_finalizers.contains(name));
            let order: Vec<_> = order.chain(self.add_finalizers.iter().copied()).collect();
            metadata.insert("$setElementOrder/finalizers".to_owned(), json!(order));
        }
        if !self.remove_finalizers.is_empty() {
            let key = "$deleteFromPrimitiveList/finalizers".to_owned();
            metadata.insert(key, json!(self.remove_finalizers));
        }
        if !self.annotations.is_empty() {
            metadata.insert("annotations".to_owned(), json!(self.annotations));
        }
        let mut status = Map::new();
        if let Some(ingress) = &self.ingress {
            let ingress: Vec<_> = ingress.iter().map(ingress_json).collect();
            // An empty list would be sent as no change.
            let ingress = if ingress.is_empty() {
                Value::Null
            } else {
                json!(ingress)
            };
            status.insert("loadBalancer".to_owned(), json!({"ingress": ingress}));
        }
        if !self.conditions.is_empty() {
            let conditions: Vec<_> = self
                .conditions
                .iter()
                .map(|condition| condition_json(condition, view, now))
                .collect();
            status.insert("conditions".to_owned(), json!(conditions));
        }
        let mut patch = Map::from_iter([("metadata".to_owned(), Value::Object(metadata))]);
        if !status.is_empty() {
            patch.insert("status".to_owned(), Value::Object(status));
        }
        Value::Object(patch)
    }
}

/// Whether both say the same to the API server, which fills in `ipMode`.
fn is_same(a: &[Ingress], b: &[Ingress]) -> bool {
    let normal = |ingress: &Ingress| Ingress {
        ip_mode: ingress.ip_mode.or(ingress.ip.is_some().then_some(IpMode::Vip)),
        ..ingress.clone()
    };
    a.iter().map(normal).eq(b.iter().map(normal))
}

fn ingress_json(ingress: &Ingress) -> Value {
    let mut value = Map::new();
    let mut add = |key: &str, text: Option<&str>| {
        if let Some(text) = text {
            value.insert(key.to_owned(), json!(text));
        }
    };
    add("ip", ingress.ip.as_deref());
    add("hostname", ingress.hostname.as_deref());
    add(
        "ipMode",
        ingress.ip_mode.map(|mode| match mode {
            IpMode::Vip => "VIP",
            IpMode::Proxy => "Proxy",
        }),
    );
    Value::Object(value)
}

fn condition_json(condition: &Condition, view: &ServiceView, now: Timestamp) -> Value {
    let mut value = json!({
        "type": *condition.kind,
        "status": if condition.is_true { "True" } else { "False" },
        "reason": *condition.reason,
        "message": *condition.message,
    });
    let same_status = |old: &Condition| old.kind == condition.kind && old.is_true == condition.is_true;
    // The time of the last transition stays if there was none.
    if !view.conditions.iter().any(same_status)
        && let Some(value) = value.as_object_mut()
    {
        value.insert("lastTransitionTime".to_owned(), json!(now.to_string()));
    }
    value
}

/// Whether `new` differs from `old` only in annotations that `effects` asks for: our own writing come back.
pub(super) fn is_own_writing(old: &ServiceView, new: &ServiceView, effects: Option<&Effects>) -> bool {
    let Some(effects) = effects else { return false };
    let mut written: BTreeMap<&str, &str> = old.annotations.iter().collect();
    for (key, value) in &effects.annotations {
        match value {
            Some(value) => written.insert(key, value),
            None => written.remove(key.as_str()),
        };
    }
    let expected = ServiceView {
        annotations: written
            .into_iter()
            .map(|(key, value)| (Arc::<str>::from(key), Arc::<str>::from(value)))
            .collect(),
        ..old.clone()
    };
    expected.asks_the_same(new)
}

#[cfg(test)]
#[path = "object_tests.rs"]
mod tests;
