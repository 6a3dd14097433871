//! Changes of balancers and of the firewall.

use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::{Effect, ServiceId, StepDescription},
    plan::{CloudChange, Fact, Step},
};

use crate::toy::{Balancer, Listener};

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    CreateBalancer(Balancer),
    DeleteBalancer,
    CreateListener(u16, Listener),
    UpdateListener(u16, String),
    Fill(u16, BTreeSet<String>),
    DeleteListener(u16),
    Retag(BTreeSet<String>, BTreeSet<String>),
    CreateRule(String, String, Fact<String>),
    DeleteRule(String, String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToyChange {
    pub balancer: String,
    pub action: Action,
}

pub type ToyStep = Step<ToyChange>;

pub fn step(balancer: &str, action: Action, service: Option<&ServiceId>) -> ToyStep {
    let balancer = balancer.to_owned();
    Step::new(ToyChange { balancer, action }).for_service(service)
}

impl CloudChange for ToyChange {
    fn describe(&self) -> StepDescription {
        let balancer = &self.balancer;
        let (label, effect, sentence) = match &self.action {
            Action::CreateBalancer(new) => (
                "balancer_create",
                Effect::Create,
                format!("create balancer {balancer} with {} listeners", new.listeners.len()),
            ),
            Action::DeleteBalancer => {
                ("balancer_delete", Effect::Delete, format!("delete balancer {balancer}"))
            }
            Action::CreateListener(port, _) => (
                "listener_create",
                Effect::Create,
                format!("create listener {port} on balancer {balancer}"),
            ),
            Action::UpdateListener(port, algorithm) => (
                "listener_update",
                Effect::Change,
                format!("update listener {port} on balancer {balancer} {algorithm}"),
            ),
            Action::Fill(port, nodes) => (
                "listener_update",
                Effect::Change,
                format!("fill listener {port} on balancer {balancer} with {nodes:?}"),
            ),
            Action::DeleteListener(port) => (
                "listener_delete",
                Effect::Delete,
                format!("delete listener {port} on balancer {balancer}"),
            ),
            Action::Retag(add, remove) => (
                "balancer_update",
                Effect::Change,
                format!("tag balancer {balancer} with {add:?} and not with {remove:?}"),
            ),
            Action::CreateRule(node, tag, _) => {
                ("rule_create", Effect::Create, format!("create rule {tag} for {node}"))
            }
            Action::DeleteRule(node, tag) => {
                ("rule_delete", Effect::Delete, format!("delete rule {tag} from {node}"))
            }
        };
        let creates = matches!(self.action, Action::CreateBalancer(_));
        StepDescription {
            creates: creates.then(|| format!("balancer {balancer}")),
            // An algorithm can be changed before the cloud has finished a change of the balancer.
            needs_idle: !matches!(self.action, Action::UpdateListener(..)),
            ..StepDescription::new(label, effect, sentence)
        }
    }
}
