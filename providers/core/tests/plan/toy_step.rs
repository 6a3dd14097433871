//! What can be done to shelves and to the board.

use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::{Effect, ServiceId, StepDescription},
    plan::{Change, Fact, Step},
};

use crate::toy::{Box, Shelf};

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    CreateShelf(Shelf),
    DeleteShelf,
    AddBox(u16, Box),
    Paint(u16, String),
    Fill(u16, BTreeSet<String>),
    RemoveBox(u16),
    Retag(BTreeSet<String>, BTreeSet<String>),
    Pin(String, String, Fact<String>),
    Unpin(String, String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ToyChange {
    pub shelf: String,
    pub action: Action,
}

pub type ToyStep = Step<ToyChange>;

pub fn step(shelf: &str, action: Action, service: Option<&ServiceId>) -> ToyStep {
    let shelf = shelf.to_owned();
    Step::new(ToyChange { shelf, action }).for_service(service)
}

impl Change for ToyChange {
    fn describe(&self) -> StepDescription {
        let shelf = &self.shelf;
        let (label, effect, sentence) = match &self.action {
            Action::CreateShelf(new) => (
                "shelf_create",
                Effect::Create,
                format!("create shelf {shelf} with {} boxes", new.boxes.len()),
            ),
            Action::DeleteShelf => ("shelf_delete", Effect::Delete, format!("delete shelf {shelf}")),
            Action::AddBox(port, _) => (
                "box_create",
                Effect::Create,
                format!("create box {port} on shelf {shelf}"),
            ),
            Action::Paint(port, colour) => (
                "box_update",
                Effect::Change,
                format!("paint box {port} on shelf {shelf} {colour}"),
            ),
            Action::Fill(port, nodes) => (
                "box_update",
                Effect::Change,
                format!("fill box {port} on shelf {shelf} with {nodes:?}"),
            ),
            Action::RemoveBox(port) => (
                "box_delete",
                Effect::Delete,
                format!("delete box {port} on shelf {shelf}"),
            ),
            Action::Retag(add, remove) => (
                "shelf_update",
                Effect::Change,
                format!("mark shelf {shelf} with {add:?} and not with {remove:?}"),
            ),
            Action::Pin(node, tag, _) => ("pin_create", Effect::Create, format!("pin {tag} to {node}")),
            Action::Unpin(node, tag) => ("pin_delete", Effect::Delete, format!("unpin {tag} from {node}")),
        };
        StepDescription {
            // Paint dries whatever else is done to the shelf.
            needs_idle: !matches!(self.action, Action::Paint(..)),
            ..StepDescription::new(label, effect, sentence)
        }
    }
}
