//! The Lease as an election sees it.
//!
//! Fields that an election does not use (labels, annotations, fields of a later API) are sent back unchanged. Any field may be
//! missing or malformed: a user may have edited the object.

use std::time::Duration;

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{
    Resource as _,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

/// A Lease with all of its fields.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lease(pub(super) DynamicObject);

/// The fields that a renewal changes.
const RECORD: [&str; 5] = [
    "holderIdentity",
    "leaseDurationSeconds",
    "acquireTime",
    "renewTime",
    "leaseTransitions",
];

/// The holder and the duration of a lease.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) identity: String,
    pub(super) lease_duration: Duration,
}

impl Terms {
    /// The API counts in whole seconds. Rounded up: other processes wait for it.
    fn seconds(&self) -> u64 {
        let more = u64::from(self.lease_duration.subsec_nanos() > 0);
        self.lease_duration.as_secs().saturating_add(more).max(1)
    }
}

impl Lease {
    pub(super) fn resource() -> ApiResource {
        ApiResource::erase::<k8s_openapi::api::coordination::v1::Lease>(&())
    }

    /// A new Lease with these terms.
    pub(super) fn first(namespace: &str, name: &str, terms: &Terms, clock: Timestamp) -> Self {
        let mut lease = Self(DynamicObject::new(name, &Self::resource()).within(namespace));
        lease.set("leaseTransitions", 0);
        lease.set_holder(terms, clock);
        lease
    }

    /// This Lease, acquired with these terms.
    pub(super) fn acquired(mut self, terms: &Terms, clock: Timestamp) -> Self {
        self.set("leaseTransitions", self.transitions().saturating_add(1));
        self.set("acquireTime", time(clock));
        self.set_holder(terms, clock);
        self
    }

    /// This Lease, renewed by its holder.
    pub(super) fn renewed(mut self, terms: &Terms, clock: Timestamp) -> Self {
        self.set("leaseTransitions", self.transitions());
        self.set_holder(terms, clock);
        self
    }

    /// This Lease, released.
    pub(super) fn released(mut self, clock: Timestamp) -> Self {
        self.set("leaseTransitions", self.transitions());
        self.set("holderIdentity", "");
        self.set("leaseDurationSeconds", 1);
        self.set("acquireTime", time(clock));
        self.set("renewTime", time(clock));
        self
    }

    fn set_holder(&mut self, terms: &Terms, clock: Timestamp) {
        self.set("holderIdentity", terms.identity.as_str());
        self.set("leaseDurationSeconds", terms.seconds());
        self.set("renewTime", time(clock));
        if !self.field("acquireTime").is_some_and(Value::is_string) {
            self.set("acquireTime", time(clock));
        }
    }

    /// The identity of the holder; empty if there is none.
    pub(super) fn holder(&self) -> &str {
        self.field("holderIdentity").and_then(Value::as_str).unwrap_or_default()
    }

    /// How long others wait for the holder after its last renewal, if the Lease contains that.
    pub(super) fn duration(&self) -> Option<Duration> {
        let seconds = self.field("leaseDurationSeconds").and_then(Value::as_u64)?;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// The number of changes of the holder.
    pub(super) fn transitions(&self) -> i32 {
        let number = self.field("leaseTransitions").and_then(Value::as_i64);
        number.and_then(|number| i32::try_from(number).ok()).unwrap_or_default().max(0)
    }

    /// Whether the holder did not renew it between the two.
    pub(super) fn is_unchanged(&self, since: &Self) -> bool {
        // One that was deleted and created again is another one, whatever its fields are.
        self.0.metadata.uid == since.0.metadata.uid
            && RECORD.into_iter().all(|key| self.field(key) == since.field(key))
    }

    /// The reference for events.
    pub(super) fn reference(&self) -> ObjectReference {
        ObjectReference {
            resource_version: self.0.metadata.resource_version.clone(),
            ..self.0.object_ref(&Self::resource())
        }
    }

    fn field(&self, key: &str) -> Option<&Value> {
        self.0.data.get("spec")?.get(key).filter(|value| !value.is_null())
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) {
        let data = &mut self.0.data;
        if !data.is_object() {
            *data = json!({});
        }
        let spec = &mut data["spec"];
        if !spec.is_object() {
            *spec = json!({});
        }
        spec[key] = value.into();
    }
}

fn time(clock: Timestamp) -> Value {
    // Exactly six digits, as `MicroTime` is written.
    Value::from(format!("{clock:.6}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn terms() -> Terms {
        Terms {
            identity: "me".to_owned(),
            lease_duration: Duration::from_secs(15),
        }
    }

    fn clock() -> Timestamp {
        "2030-01-02T03:04:05.6789Z".parse().unwrap()
    }

    fn lease(spec: &Value) -> Lease {
        Lease(serde_json::from_value(json!({"metadata": {"name": "l"}, "spec": spec})).unwrap())
    }

    #[test]
    fn the_first_record_has_every_field() {
        let lease = Lease::first("kube-system", "ccm", &terms(), clock());
        assert_eq!(
            serde_json::to_value(&lease.0).unwrap(),
            json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "ccm", "namespace": "kube-system"},
                "spec": {
                    "holderIdentity": "me",
                    "leaseDurationSeconds": 15,
                    "acquireTime": "2030-01-02T03:04:05.678900Z",
                    "renewTime": "2030-01-02T03:04:05.678900Z",
                    "leaseTransitions": 0,
                },
            })
        );
    }

    #[test]
    fn other_fields_are_left_unchanged() {
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "l", "labels": {"a": "b"}, "annotations": {"c": "d"}, "resourceVersion": "7"},
            "spec": {
                "holderIdentity": "other", "leaseDurationSeconds": 9, "acquireTime": "2029-01-01T00:00:00.000000Z",
                "renewTime": "2029-01-01T00:00:00.000000Z", "leaseTransitions": 4, "strategy": "OldestEmulationVersion",
                "preferredHolder": "x", "fieldOfALaterVersion": {"deep": [1]},
            },
            "alsoLater": true,
        });
        let lease = Lease(serde_json::from_value(object.clone()).unwrap());
        let expect = |changes: Value| {
            let mut expected = object.clone();
            let spec = expected["spec"].as_object_mut().unwrap();
            spec.extend(changes.as_object().unwrap().clone());
            expected
        };
        let now = "2030-01-02T03:04:05.678900Z";
        let ours = json!({"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": now});
        let mut taken = ours.clone();
        taken["leaseTransitions"] = 5.into();
        taken["acquireTime"] = now.into();
        let given_up =
            json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now});
        for (name, lease, changes) in [
            ("renewed", lease.clone().renewed(&terms(), clock()), ours),
            ("acquired", lease.clone().acquired(&terms(), clock()), taken),
            ("released", lease.clone().released(clock()), given_up),
        ] {
            assert_eq!(serde_json::to_value(&lease.0).unwrap(), expect(changes), "{name}");
        }
    }

    #[test]
    fn malformed_content_is_read_as_nothing_and_corrected() {
        for spec in [
            Value::Null,
            json!([1]),
            json!("text"),
            json!({}),
            json!({"holderIdentity": null, "leaseDurationSeconds": null, "renewTime": null, "leaseTransitions": null}),
            json!({"holderIdentity": 7, "leaseDurationSeconds": "x", "acquireTime": 1, "leaseTransitions": []}),
            json!({"leaseDurationSeconds": 0, "leaseTransitions": -5}),
            json!({"leaseDurationSeconds": -1, "leaseTransitions": i64::MAX}),
        ] {
            let lease = lease(&spec);
            assert_eq!((lease.holder(), lease.duration(), lease.transitions()), ("", None, 0), "{spec}");
            for held in [
                lease.clone().acquired(&terms(), clock()),
                lease.clone().renewed(&terms(), clock()),
            ] {
                assert_eq!(held.holder(), "me", "{spec}");
                assert_eq!(held.duration(), Some(Duration::from_secs(15)), "{spec}");
                assert_eq!(held.field("acquireTime"), held.field("renewTime"), "{spec}");
            }
            assert_eq!(lease.released(clock()).holder(), "", "{spec}");
        }
        let most = lease(&json!({"leaseTransitions": i32::MAX}));
        assert_eq!(most.acquired(&terms(), clock()).transitions(), i32::MAX);
    }

    #[test]
    fn only_a_change_of_the_record_is_a_renewal() {
        let before = lease(&json!({"holderIdentity": "a", "renewTime": "2029-01-01T00:00:00.000000Z"}));
        let mut labelled = before.clone();
        labelled.0.metadata.resource_version = Some("8".to_owned());
        labelled.0.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert!(labelled.is_unchanged(&before));
        let renewed = lease(&json!({"holderIdentity": "a", "renewTime": "2028-01-01T00:00:00.000000Z"}));
        assert!(!renewed.is_unchanged(&before), "also by a clock that goes back");
        let mut reborn = before.clone();
        reborn.0.metadata.uid = Some("new".to_owned());
        assert!(!reborn.is_unchanged(&before));
    }

    #[test]
    fn a_part_of_a_second_counts_as_a_whole_one() {
        for (millis, seconds) in [(1, 1), (1000, 1), (1001, 2), (15_000, 15)] {
            let terms = Terms {
                lease_duration: Duration::from_millis(millis),
                ..terms()
            };
            assert_eq!(terms.seconds(), seconds);
        }
    }
}
