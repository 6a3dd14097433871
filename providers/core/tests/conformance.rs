//! The conformance suite accepts the fake cloud, and refuses one that breaks the contract.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::sync::Arc;

use ccm_core::{
    AddressType, Cloud, Freshness, Instance, InstanceQuery, InstanceState, Instances, NodeAddress, Power,
    Priority, Result, async_trait,
    testkit::{
        FakeCloud,
        conformance::{self, BoxError, Subject},
    },
};

struct Fake {
    machines: FakeCloud,
    cloud: Arc<dyn Cloud>,
}

fn machine(power: Power) -> Instance {
    Instance {
        addresses: vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")],
        power,
        ..Instance::default()
    }
}

#[async_trait]
impl Subject for Fake {
    fn cloud(&self) -> Arc<dyn Cloud> {
        Arc::clone(&self.cloud)
    }

    async fn create(&self, name: &str) -> Result<(), BoxError> {
        self.machines.insert(name, machine(Power::On));
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), BoxError> {
        self.machines.remove(name);
        Ok(())
    }

    async fn shut_down(&self, name: &str) -> Result<(), BoxError> {
        self.machines.insert(name, machine(Power::Off));
        Ok(())
    }

    fn absent_provider_id(&self) -> String {
        "fake://never-was".to_owned()
    }

    fn malformed_provider_id(&self) -> String {
        "fake://".to_owned()
    }

    fn requests(&self) -> Option<usize> {
        Some(self.machines.calls().len())
    }
}

#[tokio::test]
async fn accepts_the_fake_cloud() {
    let machines = FakeCloud::default();
    conformance::instances(&Fake {
        cloud: Arc::new(machines.clone()),
        machines,
    })
    .await;
}

/// Says that everything it does not find is absent.
#[derive(Debug)]
struct Hasty(FakeCloud);

impl Cloud for Hasty {
    fn name(&self) -> &'static str {
        FakeCloud::NAME
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }
}

#[async_trait]
impl Instances for Hasty {
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<InstanceState>> {
        let mut answers = self.0.describe(queries, freshness, priority).await;
        for answer in &mut answers {
            if matches!(answer, Ok(InstanceState::Unresolved | InstanceState::Unmanaged)) {
                *answer = Ok(InstanceState::Absent);
            }
        }
        answers
    }
}

#[tokio::test]
#[should_panic(expected = "an_unknown_name_is_unresolved")]
async fn refuses_a_cloud_that_calls_a_missing_name_absent() {
    let machines = FakeCloud::default();
    conformance::instances(&Fake {
        cloud: Arc::new(Hasty(machines.clone())),
        machines,
    })
    .await;
}
