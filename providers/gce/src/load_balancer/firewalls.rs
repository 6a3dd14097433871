//! Firewall rules that the credentials may not change.
//!
//! With Shared VPC, the network is in another project, whose administrators often keep its firewall rules to themselves. A Service then gets an
//! Event with the command that makes the change.

use ccm_core::{
    load_balancer::{ServiceEvent, ServiceId},
    plan::objects::{Action, Attributes},
};

use super::{
    fields,
    kinds::{Object, ObjectChange, Objects},
    settings::BalancerSettings,
};
use crate::client::last_component;

/// The reason of the Event.
const EVENT: &str = "LoadBalancerManualChange";

/// A change of a firewall rule that the credentials do not allow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeniedFirewall {
    /// The rule after the change; `None`: it would be deleted.
    pub(crate) attributes: Option<Attributes>,
    /// The command that makes the change.
    pub(crate) command: String,
}

impl DeniedFirewall {
    /// The change of a firewall rule; `None` for other kinds.
    pub(crate) fn of(change: &ObjectChange, observed: &Objects, settings: &BalancerSettings) -> Option<Self> {
        if !change.kind.is_firewall() {
            return None;
        }
        let present = observed.get(change.kind, &change.key);
        let (verb, object) = match &change.action {
            Action::Create(object, _) => ("create", Object::clone(object)),
            Action::Update(_, attributes) => {
                let mut object = present?.clone();
                object.attributes.extend(attributes.clone());
                ("update", object)
            }
            _ => ("delete", present?.clone()),
        };
        let command = command(verb, &object, settings);
        let attributes = match change.action {
            Action::Delete(_) => None,
            _ => Some(object.attributes),
        };
        Some(Self { attributes, command })
    }

    /// Whether this is the change to the rule with these attributes; `None`: its deletion.
    pub(crate) fn is_to(&self, desired: Option<&Attributes>) -> bool {
        match (&self.attributes, desired) {
            (None, None) => true,
            (Some(denied), Some(desired)) => {
                desired.iter().all(|(name, value)| denied.get(name) == Some(value))
            }
            _ => false,
        }
    }

    /// The Event with the command.
    pub(crate) fn event(&self, service: &ServiceId) -> ServiceEvent {
        let message = format!("Firewall change required by security admin: `{}`", self.command);
        ServiceEvent {
            warning: false,
            ..ServiceEvent::warning(service, EVENT, message)
        }
    }
}

/// The command that creates, updates or deletes a firewall rule.
fn command(verb: &str, firewall: &Object, settings: &BalancerSettings) -> String {
    let mut words = vec![format!("gcloud compute firewall-rules {verb} {}", firewall.key)];
    if verb == "create" {
        words.push(format!("--network {}", last_component(&settings.network)));
    }
    if verb != "delete" {
        words.push(format!("--description '{}'", firewall.text(fields::DESCRIPTION)));
        for (flag, field) in [
            ("--allow", fields::ALLOWED),
            ("--deny", fields::DENIED),
            ("--source-ranges", fields::SOURCES),
            ("--destination-ranges", fields::DESTINATIONS),
            ("--target-tags", fields::TARGET_TAGS),
        ] {
            let mut values = firewall.texts(field);
            values.sort_unstable();
            if !values.is_empty() {
                words.push(format!("{flag} {}", values.join(",")));
            }
        }
        if let Some(priority) = firewall.attributes.get(fields::PRIORITY) {
            words.push(format!("--priority {priority}"));
        }
    }
    words.push(format!("--project {}", settings.network_project));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::load_balancer::kinds::ObjectKind;

    fn settings() -> BalancerSettings {
        BalancerSettings {
            network: "projects/host/global/networks/shared".to_owned(),
            network_project: "host".to_owned(),
            ..BalancerSettings::default()
        }
    }

    #[test]
    fn a_denied_change_of_a_firewall_rule_is_a_command() {
        let firewall = Object::new(ObjectKind::Firewall, "k8s-fw-a1")
            .with(fields::DESCRIPTION, "{\"a\":\"b\"}")
            .with(fields::ALLOWED, ["tcp:80", "tcp:443"].as_slice())
            .with(fields::SOURCES, ["10.0.0.0/8"].as_slice())
            .with(fields::TARGET_TAGS, ["node"].as_slice())
            .with(fields::PRIORITY, 1000);
        let none = Objects::default();
        let create = firewall.change(Action::Create(Box::new(firewall.clone()), Vec::new()));
        let denied = DeniedFirewall::of(&create, &none, &settings()).unwrap();
        assert_eq!(
            denied.command,
            "gcloud compute firewall-rules create k8s-fw-a1 --network shared --description '{\"a\":\"b\"}' --allow tcp:443,tcp:80 \
             --source-ranges 10.0.0.0/8 --target-tags node --priority 1000 --project host"
        );
        assert!(denied.is_to(Some(&firewall.attributes)) && !denied.is_to(None));

        let present: Objects = [firewall.clone()].into_iter().collect();
        let wider = Attributes::from([(fields::SOURCES, ["0.0.0.0/0"].as_slice().into())]);
        let update = firewall.change(Action::Update("firewalls_patch", wider));
        let denied = DeniedFirewall::of(&update, &present, &settings()).unwrap();
        assert!(denied.command.contains("rules update k8s-fw-a1 --description"), "{}", denied.command);
        assert!(denied.command.contains("--source-ranges 0.0.0.0/0 "), "{}", denied.command);
        assert!(!denied.is_to(Some(&firewall.attributes)));

        let delete = firewall.change(Action::Delete(false));
        let denied = DeniedFirewall::of(&delete, &present, &settings()).unwrap();
        assert_eq!(denied.command, "gcloud compute firewall-rules delete k8s-fw-a1 --project host");
        assert!(denied.is_to(None));
        let pool = Object::new(ObjectKind::Pool, "a1").change(Action::Delete(false));
        assert_eq!(DeniedFirewall::of(&pool, &present, &settings()), None);
    }
}
