//! The desired content of a Service object, and the patch for it.
//!
//! One strategic merge patch of `services/status`, which includes metadata, so that a role needs no more rights than
//! upstream's. It names the finalizers to add or to remove, never the whole list. It has the uid, so that the API server
//! refuses it (409) for a Service that was recreated under the same name.

use std::{collections::BTreeMap, fmt};

use ccm_core::load_balancer::{
    Claim, Condition, Effect, Effects, Ingress, IpMode, ProviderFinalizers, ServiceView,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::controllers::plan::{Kind, PlannedChange};

/// A patch of a Service object: the differences from its desired content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceAction {
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
    /// In a plan: the cloud gives the address later.
    pub(super) address_follows: bool,
}

impl From<&ServiceAction> for PlannedChange {
    fn from(action: &ServiceAction) -> Self {
        Self::new(Effect::Change, Kind::Service, action)
    }
}

impl ServiceAction {
    /// The differences of `view`. `effects`: the desired content from its load balancer, once it is served.
    pub(super) fn of(view: &ServiceView, finalizers: ProviderFinalizers, effects: Option<&Effects>) -> Self {
        let mut change = Self {
            add_finalizers: finalizers.missing(view),
            ..Self::default()
        };
        let wants = view.wants_load_balancer();
        let Some(effects) = effects else { return change };
        change.annotations = lacking(view, effects);
        let ingress = if wants {
            effects.ingress.clone()
        } else if view.deleting || finalizers.needs_cleanup(view) {
            // Without a load balancer there is no address.
            Some(Vec::new())
        } else {
            // That of a Service that was never ours is left unchanged.
            None
        };
        change.ingress = ingress.filter(|ingress| !is_same(ingress, &view.ingress));
        change.conditions = missing_conditions(view, effects);
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

    /// The failure if it cannot be written, in upstream's words.
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
        let mut patch = json!({"metadata": {"uid": *view.id.uid}});
        let metadata = &mut patch["metadata"];
        if !self.add_finalizers.is_empty() {
            metadata["finalizers"] = json!(self.add_finalizers);
            // At the end: the API server would put them first.
            let known = view.finalizers.iter().map(|name| &**name);
            let order: Vec<_> = known
                .filter(|name| !self.remove_finalizers.contains(name))
                .chain(self.add_finalizers.iter().copied())
                .collect();
            metadata["$setElementOrder/finalizers"] = json!(order);
        }
        if !self.remove_finalizers.is_empty() {
            metadata["$deleteFromPrimitiveList/finalizers"] = json!(self.remove_finalizers);
        }
        if !self.annotations.is_empty() {
            metadata["annotations"] = json!(self.annotations);
        }
        if let Some(ingress) = &self.ingress {
            // An empty list would be sent as no change.
            let all = (!ingress.is_empty()).then(|| ingress.iter().map(ingress_json).collect::<Value>());
            patch["status"]["loadBalancer"] = json!({"ingress": all});
        }
        if !self.conditions.is_empty() {
            let conditions = self.conditions.iter().map(|condition| condition_json(condition, view, now));
            patch["status"]["conditions"] = conditions.collect();
        }
        patch
    }
}

impl fmt::Display for ServiceAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let add = self.add_finalizers.iter();
        let mut parts: Vec<_> = add.map(|name| format!("add finalizer {name}")).collect();
        let remove = self.remove_finalizers.iter();
        parts.extend(remove.map(|name| format!("remove finalizer {name}")));
        parts.extend(self.annotations.iter().map(|(key, value)| match value {
            Some(value) => format!("set annotation {key}={value}"),
            None => format!("remove annotation {key}"),
        }));
        if let Some(ingress) = &self.ingress {
            let mut addresses = Vec::new();
            for one in ingress {
                let address = one.ip.as_deref().or(one.hostname.as_deref()).unwrap_or_default();
                addresses.push(match ip_mode(one) {
                    Some(mode) => format!("{address} ({mode})"),
                    None => address.to_owned(),
                });
            }
            if addresses.is_empty() {
                addresses.push("no address".to_owned());
            }
            parts.push(format!("{} in the status", addresses.join(", ")));
        }
        let conditions: BTreeMap<_, _> =
            self.conditions.iter().map(|known| (&*known.kind, known.is_true)).collect();
        parts.extend(conditions.into_iter().map(|(kind, is_true)| {
            let status = if is_true { "True" } else { "False" };
            format!("condition {kind}={status}")
        }));
        let follows = "the load balancer's address in the status, once the cloud has assigned it";
        parts.extend(self.address_follows.then(|| follows.to_owned()));
        write!(f, "write to the Service: {}", parts.join("; "))
    }
}

/// Whether both are equal for the API server, which fills in `ipMode`.
fn is_same(a: &[Ingress], b: &[Ingress]) -> bool {
    let normal = |ingress: &Ingress| Ingress {
        ip_mode: ingress.ip_mode.or(ingress.ip.is_some().then_some(IpMode::Vip)),
        ..ingress.clone()
    };
    a.iter().map(normal).eq(b.iter().map(normal))
}

fn ip_mode(ingress: &Ingress) -> Option<&'static str> {
    ingress.ip_mode.map(|mode| match mode {
        IpMode::Vip => "VIP",
        IpMode::Proxy => "Proxy",
    })
}

fn ingress_json(ingress: &Ingress) -> Value {
    let fields = [
        ("ip", ingress.ip.as_deref()),
        ("hostname", ingress.hostname.as_deref()),
        ("ipMode", ip_mode(ingress)),
    ];
    let fields = fields.into_iter();
    fields.filter_map(|(key, text)| Some((key, text?))).collect()
}

fn condition_json(condition: &Condition, view: &ServiceView, now: Timestamp) -> Value {
    let mut value = json!({
        "type": *condition.kind,
        "status": if condition.is_true { "True" } else { "False" },
        "reason": *condition.reason,
        "message": *condition.message,
    });
    // The time of the last transition stays if there was none.
    if !view
        .conditions
        .iter()
        .any(|old| old.kind == condition.kind && old.is_true == condition.is_true)
    {
        value["lastTransitionTime"] = json!(now.to_string());
    }
    value
}

/// The annotations of `effects` that the Service does not have.
pub(super) fn lacking(view: &ServiceView, effects: &Effects) -> BTreeMap<String, Option<String>> {
    let mut annotations = effects.annotations.clone();
    annotations.retain(|key, value| view.annotation(key) != value.as_deref());
    annotations
}

/// The conditions of `effects` that the Service does not have.
pub(super) fn missing_conditions(view: &ServiceView, effects: &Effects) -> Vec<Condition> {
    let conditions = effects.conditions.values();
    conditions.filter(|condition| !view.conditions.contains(condition)).cloned().collect()
}

/// Whether `new` differs from `old` only in annotations of `effects`: our own write.
pub(super) fn is_own_writing(old: &ServiceView, new: &ServiceView, effects: &Effects) -> bool {
    let mut written: BTreeMap<&str, &str> = old.annotations.iter().collect();
    for (key, value) in &effects.annotations {
        match value {
            Some(value) => written.insert(key, value),
            None => written.remove(key.as_str()),
        };
    }
    let expected = ServiceView {
        annotations: written.into_iter().collect(),
        ..old.clone()
    };
    expected.asks_the_same(new)
}

#[cfg(test)]
mod tests;
