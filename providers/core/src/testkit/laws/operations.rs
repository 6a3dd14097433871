//! The operations of a cloud in memory in which an accepted change occupies the objects that it concerns.
//!
//! A created object is visible when its create was accepted, and cannot be used before that has ended. Any other change is
//! visible when it has ended. Until then, the cloud refuses changes on the same objects. If an operation fails, its object is
//! missing or unchanged. Operations continue when the process is killed: creates until a change needs their objects, others
//! end at once.

use std::collections::{BTreeMap, HashMap};

use super::Lawful;
use crate::{
    load_balancer::{Effect, StepDescription, StepObjects},
    plan::RequestId,
};

/// A change that the cloud carries out.
pub(super) struct Operation<L: Lawful> {
    pub(super) key: L::Key,
    pub(super) change: L::Change,
    pub(super) reply: L::Reply,
    pub(super) effect: Effect,
    pub(super) description: StepDescription,
    /// The number of remaining polls.
    pub(super) left: u8,
    pub(super) fails: bool,
    /// Whether the running process knows it.
    pub(super) is_known: bool,
    pub(super) request_id: Option<RequestId>,
}

/// How an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationEnd {
    Succeeds,
    Fails,
    /// It succeeds, and its begin had no answer.
    Unknown,
}

/// An operation that occupies objects.
pub(super) struct OccupiedObjects {
    pub(super) sentence: String,
    pub(super) is_known: bool,
}

/// The answer to a change that was sent before with the same id.
pub(super) enum RequestAnswer<R> {
    InProgress { ticket: String, reply: R },
    Ended(R),
    Failed,
}

/// All operations.
pub(super) struct Operations<L: Lawful> {
    in_progress: BTreeMap<String, Operation<L>>,
    /// The replies to changes with an id that have ended; none if the change failed.
    ended: HashMap<RequestId, Option<L::Reply>>,
    number: usize,
}

impl<L: Lawful> Default for Operations<L> {
    fn default() -> Self {
        Self {
            in_progress: BTreeMap::new(),
            ended: HashMap::new(),
            number: 0,
        }
    }
}

fn occupies<L: Lawful>(operation: &Operation<L>, key: &L::Key, objects: Option<&StepObjects>) -> bool {
    if operation.key != *key {
        return false;
    }
    match (&operation.description.objects, objects) {
        (Some(occupied), Some(objects)) => occupied.conflict_with(objects),
        _ => true,
    }
}

impl<L: Lawful> Operations<L> {
    /// Begins an operation; returns its ticket.
    pub(super) fn begin(&mut self, operation: Operation<L>) -> String {
        self.number += 1;
        let ticket = format!("operation {:04}: `{}`", self.number, operation.description.sentence);
        self.in_progress.insert(ticket.clone(), operation);
        ticket
    }

    /// An operation that occupies objects of a step.
    pub(super) fn conflict(&self, key: &L::Key, step: &StepDescription) -> Option<OccupiedObjects> {
        let mut operations = self.in_progress.values();
        let operation = operations.find(|operation| occupies(operation, key, step.objects.as_ref()))?;
        Some(OccupiedObjects {
            sentence: format!("`{}` is in progress", operation.description.sentence),
            is_known: operation.is_known,
        })
    }

    /// Time passes for the operations that nobody polls and that a step waits for. Returns those that end.
    pub(super) fn wait_for(&mut self, key: &L::Key, step: &StepDescription) -> Vec<Operation<L>> {
        let mut ended = Vec::new();
        for (ticket, operation) in &mut self.in_progress {
            if !operation.is_known && occupies(operation, key, step.objects.as_ref()) {
                operation.left = operation.left.saturating_sub(1);
                if operation.left == 0 {
                    ended.push(ticket.clone());
                }
            }
        }
        ended.iter().filter_map(|ticket| self.end(ticket)).collect()
    }

    /// The answer to a change that was sent before with this id.
    pub(super) fn request(&self, id: &RequestId) -> Option<RequestAnswer<L::Reply>> {
        if let Some(reply) = self.ended.get(id) {
            return Some(reply.clone().map_or(RequestAnswer::Failed, RequestAnswer::Ended));
        }
        let mut operations = self.in_progress.iter();
        let (ticket, operation) =
            operations.find(|(_, operation)| operation.request_id.as_ref() == Some(id))?;
        Some(RequestAnswer::InProgress {
            ticket: ticket.clone(),
            reply: operation.reply.clone(),
        })
    }

    /// Polls an operation. The inner value is the operation if it has ended.
    #[expect(
        clippy::option_option,
        reason = "an unknown operation is a fault of the engine"
    )]
    pub(super) fn poll(&mut self, ticket: &str) -> Option<Option<Operation<L>>> {
        let operation = self.in_progress.get_mut(ticket)?;
        operation.left = operation.left.saturating_sub(1);
        if operation.left > 0 {
            return Some(None);
        }
        Some(self.end(ticket))
    }

    fn end(&mut self, ticket: &str) -> Option<Operation<L>> {
        let operation = self.in_progress.remove(ticket)?;
        if let Some(id) = &operation.request_id {
            let reply = (!operation.fails).then(|| operation.reply.clone());
            self.ended.insert(id.clone(), reply);
        }
        Some(operation)
    }

    /// All operations will fail.
    pub(super) fn fail_all(&mut self) {
        for operation in self.in_progress.values_mut() {
            operation.fails = true;
        }
    }

    /// A new process starts, which knows no operation. Returns those that end.
    pub(super) fn restart(&mut self) -> Vec<Operation<L>> {
        let stays = |operation: &Operation<L>| operation.effect == Effect::Create && !operation.fails;
        let ended = self.in_progress.iter().filter(|(_, operation)| !stays(operation));
        let ended: Vec<_> = ended.map(|(ticket, _)| ticket.clone()).collect();
        for operation in self.in_progress.values_mut() {
            operation.is_known = false;
        }
        ended.iter().filter_map(|ticket| self.end(ticket)).collect()
    }
}
