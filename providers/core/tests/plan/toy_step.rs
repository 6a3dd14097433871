//! What can be done to shelves and to the board.

use std::{collections::BTreeSet, fmt};

use ccm_core::{
    load_balancer::{Effect, ServiceId},
    plan::{Fact, Step},
};

use crate::toy::{Box, Shelf};

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
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
pub struct ToyStep {
    pub shelf: String,
    pub change: Change,
    pub service: Option<ServiceId>,
}

impl fmt::Display for ToyStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shelf = &self.shelf;
        match &self.change {
            Change::CreateShelf(new) => write!(f, "create shelf {shelf} with {} boxes", new.boxes.len()),
            Change::DeleteShelf => write!(f, "delete shelf {shelf}"),
            Change::AddBox(port, _) => write!(f, "create box {port} on shelf {shelf}"),
            Change::Paint(port, colour) => write!(f, "paint box {port} on shelf {shelf} {colour}"),
            Change::Fill(port, nodes) => write!(f, "fill box {port} on shelf {shelf} with {nodes:?}"),
            Change::RemoveBox(port) => write!(f, "delete box {port} on shelf {shelf}"),
            Change::Retag(add, remove) => {
                write!(f, "mark shelf {shelf} with {add:?} and not with {remove:?}")
            }
            Change::Pin(node, tag, _) => write!(f, "pin {tag} to {node}"),
            Change::Unpin(node, tag) => write!(f, "unpin {tag} from {node}"),
        }
    }
}

impl Step for ToyStep {
    fn label(&self) -> &'static str {
        match self.change {
            Change::CreateShelf(_) => "shelf_create",
            Change::DeleteShelf => "shelf_delete",
            Change::AddBox(..) => "box_create",
            Change::Paint(..) | Change::Fill(..) => "box_update",
            Change::RemoveBox(_) => "box_delete",
            Change::Retag(..) => "shelf_update",
            Change::Pin(..) => "pin_create",
            Change::Unpin(..) => "pin_delete",
        }
    }

    fn effect(&self) -> Effect {
        match self.change {
            Change::CreateShelf(_) | Change::AddBox(..) | Change::Pin(..) => Effect::Create,
            Change::DeleteShelf | Change::RemoveBox(_) | Change::Unpin(..) => Effect::Delete,
            _ => Effect::Change,
        }
    }

    fn service(&self) -> Option<&ServiceId> {
        self.service.as_ref()
    }
}
