//! What the toys share that run in the conformance suite: their cloud is in memory, and its writes are counted.

use std::fmt;

use ccm_core::{
    Cloud,
    load_balancer::{LoadBalancers, ServiceNode},
    testkit::{
        conformance::{CallKind, CloudCall, Failure},
        laws::{CloudBehavior, Fault, LawEngine, Lawful, MemoryCloud},
    },
};

use crate::toy_cases::nodes;

/// Operations take time.
pub(crate) fn slow() -> CloudBehavior {
    CloudBehavior {
        polls: 1,
        ..CloudBehavior::default()
    }
}

/// The cloud of a toy.
pub(crate) struct ToyCloud<L: Lawful>(pub(crate) LawEngine<L>);

impl<L: Lawful> fmt::Debug for ToyCloud<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<L: Lawful> Cloud for ToyCloud<L> {
    fn name(&self) -> &'static str {
        self.0.model().provider()
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(&self.0)
    }
}

pub(crate) fn node(name: &str) -> ServiceNode {
    nodes([(name, true)]).all()[0].clone()
}

/// The writes since the last time. The first word of a step is its operation.
pub(crate) fn take_writes<L: Lawful>(memory: &MemoryCloud<L>) -> Vec<CloudCall> {
    let call = |sentence: String| CloudCall {
        operation: sentence.split_once(' ').unwrap().0.to_owned(),
        kind: CallKind::Write,
    };
    memory.take_done().into_iter().map(call).collect()
}

/// The write with this number, from 1, fails.
pub(crate) fn fail<L: Lawful>(memory: &MemoryCloud<L>, nth: usize, failure: Failure) {
    let fault = match failure {
        Failure::Busy => Fault::Busy,
        Failure::LostReply | Failure::NoReply => Fault::NoAnswerDone,
        Failure::Throttled | Failure::Unavailable => Fault::Unavailable,
    };
    memory.fail(nth - 1, fault);
}
