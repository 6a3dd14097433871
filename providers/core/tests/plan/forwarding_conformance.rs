//! The conformance suite accepts a toy whose steps are sent at the same time, to a cloud in which operations take time.

use std::{future::ready, sync::Arc};

use ccm_core::{
    Cloud, async_trait,
    load_balancer::{ServiceNode, ServiceView},
    plan::{Engine, PlanMetrics},
    testkit::{
        cluster::annotate,
        conformance::{self, BalancerSubject, BoxError, Budgets, CloudCall, Cost, Edit, EditResult, Failure},
        laws::{MemoryCloud, objects::ObjectTrees, shape},
    },
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::{
    forwarding::{AFFINITY, BALANCER, Forwarding, ForwardingKind, ForwardingObject, SERVICE},
    suite::{ToyCloud, fail, node, slow, take_writes},
};

type ForwardingMemory = MemoryCloud<Forwarding>;

struct ForwardingSubject(Mutex<Arc<ForwardingMemory>>);

impl ForwardingSubject {
    fn memory(&self) -> Arc<ForwardingMemory> {
        Arc::clone(&self.0.lock())
    }
}

fn empty() -> Arc<ForwardingMemory> {
    Arc::new(MemoryCloud::new(Forwarding::default(), ObjectTrees::new([]), slow()))
}

const DELETE_RULE: &str = "delete the forwarding rule";
const CHANGE_FIREWALL: &str = "change a firewall";
const DELETE_MACHINE: &str = "delete a machine";
const NOTE: &str = "write a note";
const CREATE_ADDRESS: &str = "create an address";

const EDITS: [Edit; 5] = [
    Edit::new(DELETE_RULE, EditResult::Reverted),
    Edit::new(CHANGE_FIREWALL, EditResult::Reverted),
    Edit::new(DELETE_MACHINE, EditResult::Reverted),
    Edit::new(NOTE, EditResult::Unchanged),
    Edit::new(CREATE_ADDRESS, EditResult::Foreign),
];

#[async_trait]
impl BalancerSubject for ForwardingSubject {
    async fn reset(&self) -> Result<(), BoxError> {
        *self.0.lock() = empty();
        Ok(())
    }

    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        let engine = Engine::new(Forwarding::default(), self.memory(), PlanMetrics::default());
        Ok(Arc::new(ToyCloud(engine)))
    }

    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError> {
        Ok(node(name))
    }

    async fn picture(&self) -> Result<Vec<String>, BoxError> {
        Ok(shape(&Forwarding::default(), &self.memory().truth()))
    }

    /// The names are those of the Services.
    fn reads_ownership(&self) -> bool {
        false
    }

    fn take_calls(&self) -> Vec<CloudCall> {
        take_writes(&self.memory())
    }

    fn budgets(&self) -> Budgets {
        let writes = |writes| Cost { writes, reads: 0 };
        Budgets {
            // Six machines, three firewalls, address, health check, pool and forwarding rule.
            create: writes(13),
            restart_reads: 0,
            join: writes(1),
            delete: writes(13),
        }
    }

    fn can_fail(&self, _: &CloudCall, failure: Failure) -> bool {
        failure != Failure::Throttled
    }

    fn fail(&self, nth: usize, failure: Failure) -> BoxFuture<'static, ()> {
        fail(&self.memory(), nth, failure);
        // The provider does not wait for a reply that never comes.
        Box::pin(ready(()))
    }

    fn edits(&self) -> &[Edit] {
        &EDITS
    }

    async fn edit(&self, name: &str) -> Result<(), BoxError> {
        self.memory().edit(|truth| match name {
            DELETE_RULE => drop(truth.delete(0, |object| object.kind == ForwardingKind::Rule)),
            DELETE_MACHINE => drop(truth.delete(0, |object| object.kind == ForwardingKind::Machine)),
            CHANGE_FIREWALL => {
                let firewall = truth.of_mut(ForwardingKind::Firewall).next().unwrap();
                firewall.attributes.insert("port", 77.into());
            }
            NOTE => {
                let address = truth.of_mut(ForwardingKind::Address).next().unwrap();
                address.attributes.insert("note", "by hand".into());
            }
            _ => {
                let theirs = ForwardingObject::new(ForwardingKind::Address, "theirs");
                let theirs = theirs.with(BALANCER, "theirs").with(SERVICE, "");
                truth.store([theirs].into_iter().collect(), |object| object.text(BALANCER) == "theirs");
            }
        });
        Ok(())
    }

    fn change(&self, service: &mut ServiceView) {
        annotate(service, AFFINITY, Some("client"));
    }
}

conformance::balancer_tests!(ForwardingSubject(Mutex::new(empty())));
