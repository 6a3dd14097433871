//! The conformance suite accepts the fake cloud, and refuses one that breaks the contract.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::sync::Arc;

use ccm_core::{
    AddressType, Cloud, Freshness, Instance, InstanceQuery, InstanceState, Instances, NodeAddress, Power,
    Priority, Result, async_trait,
    routes::{Applied, DesiredRoute, NextHop, Observed, RouteChanges, RouteNode, Routes},
    testkit::{
        FakeCloud, FakeRoutes,
        conformance::{self, BoxError, RouteSubject, Subject},
        routes::RouteCall,
    },
};
use ipnet::IpNet;

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

/// Reports every machine that it does not find as absent.
#[derive(Debug)]
struct ReportsAbsent(FakeCloud);

impl Cloud for ReportsAbsent {
    fn name(&self) -> &'static str {
        FakeCloud::NAME
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }
}

#[async_trait]
impl Instances for ReportsAbsent {
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
        cloud: Arc::new(ReportsAbsent(machines.clone())),
        machines,
    })
    .await;
}

struct FakeNetwork {
    machines: FakeCloud,
    routes: FakeRoutes,
    cloud: Arc<dyn Cloud>,
}

impl FakeNetwork {
    /// A cloud with a foreign route.
    fn new(cloud: impl FnOnce(&FakeCloud, &FakeRoutes) -> Arc<dyn Cloud>) -> Self {
        let (machines, routes) = (FakeCloud::default(), FakeRoutes::default());
        routes.insert("0.0.0.0/0".parse().unwrap(), "192.0.2.1");
        routes.refuse("192.0.2.99", true);
        Self {
            cloud: cloud(&machines, &routes),
            machines,
            routes,
        }
    }
}

#[async_trait]
impl Subject for FakeNetwork {
    fn cloud(&self) -> Arc<dyn Cloud> {
        Arc::clone(&self.cloud)
    }

    async fn create(&self, name: &str) -> Result<(), BoxError> {
        // No two machines have the same address.
        let last = name.bytes().map(usize::from).sum::<usize>() % 256;
        let address = format!("10.0.{}.{last}", name.len());
        let instance = Instance {
            addresses: vec![NodeAddress::new(AddressType::InternalIP, address)],
            ..machine(Power::On)
        };
        self.machines.insert(name, instance);
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
        let calls = self.routes.calls();
        Some(calls.iter().filter(|call| **call != RouteCall::Apply(0, 0, 0)).count())
    }

    fn machine_count(&self) -> usize {
        8
    }
}

#[async_trait]
impl RouteSubject for FakeNetwork {
    async fn restarted(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        Ok(self.cloud())
    }

    async fn table(&self) -> Result<Option<Vec<(IpNet, String)>>, BoxError> {
        let table = self.routes.table();
        let text = |route: &ccm_core::routes::CloudRoute| (route.destination, route.next_hop.to_string());
        Ok(Some(table.iter().map(text).collect()))
    }

    fn unroutable(&self) -> Option<RouteNode> {
        Some(RouteNode {
            addresses: vec![NodeAddress::new(AddressType::InternalIP, "192.0.2.99")],
            ..RouteNode::default()
        })
    }

    async fn set_limit(&self, limit: Option<usize>) -> Result<bool, BoxError> {
        self.routes.set_limit(limit);
        Ok(true)
    }
}

#[tokio::test]
async fn accepts_the_fake_routes() {
    let subject = FakeNetwork::new(|machines, routes| Arc::new(machines.with_routes(routes)));
    conformance::routes(&subject).await;
    assert_eq!(subject.routes.table().len(), 1, "only the foreign route remains");
}

/// A route table that keeps the old next hop in addition to the new one.
#[derive(Debug)]
struct KeepsOldRoutes {
    machines: FakeCloud,
    routes: FakeRoutes,
}

impl Cloud for KeepsOldRoutes {
    fn name(&self) -> &'static str {
        FakeCloud::NAME
    }

    fn instances(&self) -> Option<&dyn Instances> {
        self.machines.instances()
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }
}

#[async_trait]
impl Routes for KeepsOldRoutes {
    async fn unsupported_reason(&self, priority: Priority) -> Result<Option<String>> {
        self.routes.unsupported_reason(priority).await
    }

    fn next_hop(&self, node: &RouteNode, destination: IpNet) -> Result<NextHop> {
        self.routes.next_hop(node, destination)
    }

    async fn observe(&self, desired: &[DesiredRoute], priority: Priority) -> Result<Observed> {
        self.routes.observe(desired, priority).await
    }

    async fn apply(&self, changes: &RouteChanges, priority: Priority) -> Applied {
        let is_created = |deleted: &IpNet| changes.create.iter().any(|new| new.destination == *deleted);
        let mut some = changes.clone();
        some.delete.retain(|deleted| !is_created(&deleted.destination));
        let mut applied = self.routes.apply(&some, priority).await;
        applied.deleted = changes.delete.iter().map(|_| Ok(())).collect();
        applied
    }
}

#[tokio::test]
#[should_panic(expected = "a_route_with_a_new_next_hop_exists_once")]
async fn refuses_a_table_that_keeps_the_old_next_hop() {
    let keeps_old_routes = |machines: &FakeCloud, routes: &FakeRoutes| -> Arc<dyn Cloud> {
        Arc::new(KeepsOldRoutes {
            machines: machines.clone(),
            routes: routes.clone(),
        })
    };
    conformance::routes(&FakeNetwork::new(keeps_old_routes)).await;
}
