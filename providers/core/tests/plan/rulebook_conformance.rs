//! The conformance suite accepts a toy whose Services share a document, without ownership tags.

use std::{future::ready, sync::Arc};

use ccm_core::{
    Cloud, async_trait,
    load_balancer::{ServiceNode, ServiceView},
    plan::{Engine, PlanMetrics},
    testkit::{
        cluster::annotate,
        conformance::{self, BalancerSubject, BoxError, Budgets, CloudCall, Cost, Edit, EditResult, Failure},
        laws::{MemoryCloud, shape},
    },
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    rulebook::{NOTE, Rulebook, RulebookTruth},
    suite::{ToyCloud, fail, node, slow, take_writes},
};

type RulebookMemory = MemoryCloud<Rulebook>;

struct RulebookSubject(Mutex<Arc<RulebookMemory>>);

impl RulebookSubject {
    fn memory(&self) -> Arc<RulebookMemory> {
        Arc::clone(&self.0.lock())
    }
}

fn empty() -> Arc<RulebookMemory> {
    Arc::new(MemoryCloud::new(Rulebook::default(), RulebookTruth::empty(), slow()))
}

const DELETE_RULE: &str = "delete a rule";
const CHANGE_RULE: &str = "change a rule";
const DELETE_POOL: &str = "delete the pool";
const COMMENT: &str = "comment a rule";
const CREATE_RULE: &str = "create a rule";

const EDITS: [Edit; 5] = [
    Edit::new(DELETE_RULE, EditResult::Reverted),
    Edit::new(CHANGE_RULE, EditResult::Reverted),
    Edit::new(DELETE_POOL, EditResult::Reverted),
    Edit::new(COMMENT, EditResult::Unchanged),
    Edit::new(CREATE_RULE, EditResult::Foreign),
];

#[async_trait]
impl BalancerSubject for RulebookSubject {
    async fn reset(&self) -> Result<(), BoxError> {
        *self.0.lock() = empty();
        Ok(())
    }

    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        let engine = Engine::new(Rulebook::default(), self.memory(), PlanMetrics::default());
        Ok(Arc::new(ToyCloud(engine)))
    }

    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError> {
        Ok(node(name))
    }

    async fn picture(&self) -> Result<Vec<String>, BoxError> {
        Ok(shape(&Rulebook::default(), &self.memory().truth()))
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
            // The pool and the document.
            create: writes(2),
            restart_reads: 0,
            join: writes(1),
            delete: writes(2),
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
            DELETE_RULE => truth.edit_rule(0, |rule| *rule = Value::Null),
            CHANGE_RULE => truth.edit_rule(0, |rule| rule["note"] = json!("by hand")),
            COMMENT => truth.edit_rule(0, |rule| rule["comment"] = json!("by hand")),
            DELETE_POOL => drop(truth.pools.pop_first()),
            _ => truth.add_rule(json!({ "name": "ssh", "protocol": "TCP" })),
        });
        Ok(())
    }

    fn change(&self, service: &mut ServiceView) {
        annotate(service, NOTE, Some("red"));
    }
}

conformance::balancer_tests!(RulebookSubject(Mutex::new(empty())));
