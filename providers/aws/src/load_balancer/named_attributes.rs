//! Attributes that are managed only while an annotation names them.
//!
//! Upstream leaves them alone otherwise, so people set them by hand. A tag of each object has the names of those
//! that this program set. It is written before the first of them is set, and loses a name after the attribute was reset.
//! So an attribute that nobody names any more is reset once if this program set it, and stays otherwise.

use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::Blocked,
    plan::objects::{Action, Attribute, Kind as _, UpdateCall as _},
    plan::{Plan, Step},
};
use serde_json::Value;

use super::{
    desired::{DesiredBalancer, ObservedPart, with_target_groups},
    fields,
    kinds::{
        ATTRIBUTES_TAG, DESCRIBE_TARGET_GROUP_ATTRIBUTES, Object, ObjectChange, ObjectKind, SetEntry, TAGS,
        TARGET_GROUP_ATTRIBUTE, tag_map,
    },
    updates::ObjectUpdate,
};

/// Names of attributes.
type AttributeNames = BTreeSet<&'static str>;

fn schema(kind: ObjectKind, name: &str) -> Option<&'static Attribute<ObjectUpdate>> {
    let mut attributes = kind.schema().attributes.iter();
    attributes.find(|attribute| attribute.name == name)
}

/// An attribute of an object, or its default.
fn value(object: &Object, name: &str) -> Value {
    match object.attributes.get(name) {
        Some(value) if !value.is_null() => value.clone(),
        _ => match schema(object.kind, name) {
            Some(attribute) => attribute.default.into(),
            None => Value::Null,
        },
    }
}

/// The attributes that this program set, by the object's tag.
fn recorded(object: &Object) -> AttributeNames {
    let text = tag_map(object).remove(ATTRIBUTES_TAG).unwrap_or_default();
    let words: Vec<_> = text.split(' ').collect();
    let names = object.kind.named_attributes().iter().copied();
    names.filter(|name| words.contains(name)).collect()
}

fn tag(names: &AttributeNames) -> SetEntry {
    let names: Vec<_> = names.iter().copied().collect();
    SetEntry::tag(ATTRIBUTES_TAG, &names.join(" "))
}

/// Adds a tag to a desired object whose tags are managed.
fn add_tag(object: &mut Object, names: &AttributeNames) {
    if let Some(tags) = object.sets.get_mut(TAGS) {
        *tags = tags.iter().cloned().chain([tag(names)]).collect();
    }
}

impl DesiredBalancer {
    /// Manages named attributes of the desired objects, and adds the differences that stay to `plan`. Returns the steps after all
    /// others.
    pub(super) fn manage_named_attributes(
        &self,
        desired: &mut [Object],
        observed: &ObservedPart,
        plan: &mut Plan<ObjectChange>,
    ) -> Vec<Step<ObjectChange>> {
        let mut last = Vec::new();
        for object in desired.iter_mut().filter(|object| !object.if_present) {
            let named: AttributeNames = self.named_by_annotations(object).collect();
            let current = observed.objects.get(object.kind, &object.key);
            // An object that is replaced begins without attributes and without a tag, like a new one.
            let Some(current) = current.filter(|current| !object.replaces(current)) else {
                if !named.is_empty() {
                    add_tag(object, &named);
                }
                continue;
            };
            if current.foreign.is_some() || object.kind.named_attributes().is_empty() {
                continue;
            }
            let recorded = recorded(current);
            let unnamed = recorded.difference(&named).copied();
            let reset: AttributeNames =
                unnamed.filter(|name| is_writable(object.kind, name, observed)).collect();
            // A listener without TLS loses these attributes by itself.
            let is_plain = object.kind == ObjectKind::Listener && object.text(fields::PROTOCOL) != "TLS";
            if !is_plain {
                for name in &reset {
                    let default = self.defaults.get(name).cloned().unwrap_or_default();
                    object.attributes.insert(name, default);
                }
            }
            let changed = named.iter().filter(|name| value(object, name) != value(current, name));
            let set: AttributeNames = recorded.iter().chain(changed).copied().collect();
            if set != recorded {
                add_tag(object, &set);
            }
            if let Some(tags) = object.kind.schema().sets.iter().find(|set| set.name == TAGS)
                && object.sets.contains_key(TAGS)
                && !reset.is_empty()
            {
                let rest = tag(&(&set - &reset));
                let step = object.step(Action::Add(tags, [rest].into()));
                last.push(step.because("no annotation names its attributes any more"));
            }
            for name in self.defaulted.iter().filter(|name| !reset.contains(*name)) {
                let is_due = *name == fields::UNHEALTHY_THRESHOLD && upstream_changes_check(object, current);
                if !is_due {
                    object.attributes.remove(name);
                }
            }
            plan.blocked.extend(self.stays(object, current, &named, &recorded));
        }
        self.inherit(desired, observed);
        last
    }

    /// The attributes of an object that annotations name.
    fn named_by_annotations<'a>(&'a self, object: &'a Object) -> impl Iterator<Item = &'static str> + 'a {
        let names = object.kind.named_attributes().iter().copied();
        names.filter(|name| object.attributes.contains_key(name) && !self.defaulted.contains(name))
    }

    /// The Warnings about attributes that an annotation named until now, and that stay since this program did not set them.
    fn stays(
        &self,
        object: &Object,
        current: &Object,
        named: &AttributeNames,
        recorded: &AttributeNames,
    ) -> Vec<Blocked> {
        let mut stays = Vec::new();
        for name in object.kind.named_attributes() {
            if !self.unnamed.contains(name) || named.contains(name) || recorded.contains(name) {
                continue;
            }
            let default = match self.defaults.get(name) {
                Some(default) if !default.is_null() => default.clone(),
                _ => value(&Object::new(object.kind, ""), name),
            };
            let current = value(current, name);
            if current == default {
                continue;
            }
            let shown = match current {
                Value::String(text) => text,
                other => other.to_string(),
            };
            stays.push(Blocked {
                service: object.service.clone(),
                field: format!("attribute {name} of {}", object.title()),
                observed: format!(
                    "it stays {shown}, because no tag says that this program set it; to change it, name it in the annotation again"
                ),
                desired: Blocked::UNCHANGED.to_owned(),
            });
        }
        stays
    }

    /// Gives a target group that replaces another one the attributes that were set by hand, until the listener uses it. If a
    /// release that obeyed the annotation for the PROXY protocol enabled it, that also applies to further ports.
    fn inherit(&self, desired: &mut [Object], observed: &ObservedPart) {
        let objects = &observed.objects;
        let mut groups = objects.of(ObjectKind::TargetGroup);
        let keeps_proxy =
            self.keeps_proxy && groups.any(|group| group.text(fields::PROXY_PROTOCOL_V2) == "true");
        for pair in with_target_groups(desired) {
            let Ok([group, listener]) = desired.get_disjoint_mut(pair) else {
                continue;
            };
            let Some(current) = objects.get(ObjectKind::Listener, &listener.key) else {
                if keeps_proxy && !group.attributes.contains_key(fields::PROXY_PROTOCOL_V2) {
                    group.attributes.insert(fields::PROXY_PROTOCOL_V2, "true".into());
                }
                continue;
            };
            let Some(used) = objects.get(ObjectKind::TargetGroup, current.text(fields::TARGET_GROUP)) else {
                continue;
            };
            if used.key == group.key {
                continue;
            }
            let recorded = recorded(used);
            for name in [fields::PRESERVE_CLIENT_IP, fields::PROXY_PROTOCOL_V2] {
                // With UDP, AWS refuses to hide the clients' addresses.
                let is_possible =
                    name != fields::PRESERVE_CLIENT_IP || !group.text(fields::PROTOCOL).contains("UDP");
                let is_set = value(used, name) != value(&Object::new(ObjectKind::TargetGroup, ""), name);
                if is_possible && is_set && !recorded.contains(name) && !group.attributes.contains_key(name) {
                    group.attributes.insert(name, value(used, name));
                }
            }
        }
    }
}

/// Whether the credentials allow to read and to change an attribute.
fn is_writable(kind: ObjectKind, name: &str, observed: &ObservedPart) -> bool {
    let is_apart = schema(kind, name).is_some_and(|attribute| attribute.policy == TARGET_GROUP_ATTRIBUTE);
    let is_denied = observed.denied.contains_key(DESCRIBE_TARGET_GROUP_ATTRIBUTES)
        || observed.denied.contains_key(ObjectUpdate::TargetGroupAttributes.label());
    !(is_apart && is_denied)
}

/// Whether upstream changes the health check, both thresholds included.
fn upstream_changes_check(desired: &Object, current: &Object) -> bool {
    let mut compared = [
        fields::HEALTH_CHECK_PORT,
        fields::HEALTH_CHECK_PATH,
        fields::HEALTHY_THRESHOLD,
    ]
    .into_iter();
    compared.any(|name| desired.attributes.contains_key(name) && value(desired, name) != value(current, name))
}
