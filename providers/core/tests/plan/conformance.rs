//! The conformance suite accepts the toy, and refuses a toy with one flaw.

use std::{future::ready, sync::Arc};

use ccm_core::{
    Cloud, async_trait,
    load_balancer::{ServiceNode, ServiceView},
    plan::{Engine, Fact, PlanMetrics},
    testkit::{
        cluster::annotate,
        conformance::{self, BalancerSubject, BoxError, Budgets, CloudCall, Cost, Edit, EditResult, Failure},
        laws::{MemoryCloud, shape},
    },
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::{
    suite::{ToyCloud, fail, node, slow, take_writes},
    toy::{ALGORITHM, Balancer, Flaw, Toy},
    toy_cases::Truth,
};

struct Toys {
    toy: Toy,
    memory: Mutex<Arc<MemoryCloud<Toy>>>,
}

impl Toys {
    fn new(flaw: Option<Flaw>) -> Self {
        let toy = Toy { flaw };
        Self {
            memory: Mutex::new(empty(&toy)),
            toy,
        }
    }

    fn memory(&self) -> Arc<MemoryCloud<Toy>> {
        Arc::clone(&self.memory.lock())
    }
}

fn empty(toy: &Toy) -> Arc<MemoryCloud<Toy>> {
    Arc::new(MemoryCloud::new(toy.clone(), Truth::default(), slow()))
}

const EDITS: [Edit; 7] = [
    Edit::new("delete the balancer", EditResult::Reverted),
    Edit::new("delete a listener", EditResult::Reverted),
    Edit::new("update a listener", EditResult::Reverted),
    Edit::new("delete a rule", EditResult::Reverted),
    Edit::new("tag the balancer", EditResult::Unchanged),
    Edit::new("create a balancer", EditResult::Foreign),
    Edit::new("create a rule", EditResult::Foreign),
];

#[async_trait]
impl BalancerSubject for Toys {
    async fn reset(&self) -> Result<(), BoxError> {
        *self.memory.lock() = empty(&self.toy);
        Ok(())
    }

    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        let engine = Engine::new(self.toy.clone(), self.memory(), PlanMetrics::default());
        Ok(Arc::new(ToyCloud(engine)))
    }

    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError> {
        Ok(node(name))
    }

    async fn picture(&self) -> Result<Vec<String>, BoxError> {
        Ok(shape(&self.toy, &self.memory().truth()))
    }

    fn take_calls(&self) -> Vec<CloudCall> {
        take_writes(&self.memory())
    }

    fn budgets(&self) -> Budgets {
        let writes = |writes| Cost { writes, reads: 0 };
        Budgets {
            create: writes(7),
            restart_reads: 0,
            join: writes(4),
            delete: writes(7),
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
            "delete the balancer" => drop(truth.balancers.pop()),
            "delete a listener" => drop(truth.balancers[0].listeners.pop_first()),
            "update a listener" => {
                let mut first = truth.balancers[0].listeners.first_entry().unwrap();
                first.get_mut().algorithm = "black".to_owned();
            }
            "delete a rule" => drop(truth.firewall.pop_first()),
            "tag the balancer" => drop(truth.balancers[0].tags.insert("books".to_owned())),
            "create a balancer" => truth.balancers.push(Balancer {
                id: Fact::Known(7),
                name: "library".to_owned(),
                tags: ["books".to_owned()].into(),
                flavor: "ash".to_owned(),
                address: Fact::Known("192.0.2.77".to_owned()),
                listeners: Default::default(),
            }),
            _ => {
                let key = ("conf-node-0".to_owned(), "somebody".to_owned());
                truth.firewall.insert(key, Fact::Known("192.0.2.77".to_owned()));
            }
        });
        Ok(())
    }

    fn change(&self, service: &mut ServiceView) {
        annotate(service, ALGORITHM, Some("red"));
    }
}

conformance::balancer_tests!(Toys::new(None));

#[tokio::test]
#[should_panic(expected = "edits_of_our_objects_are_reverted")]
async fn the_suite_refuses_an_ignored_difference() {
    conformance::balancer_scenarios(&Toys::new(Some(Flaw::IgnoresAlgorithm))).await;
}

#[tokio::test]
#[should_panic(expected = "a_service_stays_within_the_budget")]
async fn the_suite_refuses_a_step_that_is_always_due() {
    conformance::balancer_scenarios(&Toys::new(Some(Flaw::UpdatesAlways))).await;
}

#[tokio::test]
#[should_panic(expected = "each call fails (LostReply, Create)")]
async fn the_suite_refuses_an_object_that_cannot_be_found_again() {
    conformance::balancer_failures(&Toys::new(Some(Flaw::TagsLater)), Failure::LostReply).await;
}
