//! The suite for all providers.

use std::sync::Arc;

use ccm_core::{
    Cloud, Result, async_trait,
    routes::RouteNode,
    testkit::{
        conformance::{self, BoxError, RouteSubject, Subject},
        nodes::node_view,
    },
};
use ccm_testbed::test_cloud::{TestCloud as _, TestRoutes as _};
use ipnet::IpNet;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::json;

use crate::stage::Stage;

/// A name of the suite, and the one that an instance can have.
const DOTTED: &str = "conf-x.y";
const UNDOTTED: &str = "conf-x-y";

struct InMemory {
    stage: Stage,
    /// The machines of the suite.
    machines: Mutex<Vec<ccm_testbed::test_cloud::Machine>>,
}

impl InMemory {
    async fn new() -> Self {
        Self {
            stage: Stage::new("").await,
            machines: Mutex::default(),
        }
    }

    fn machine(&self, name: &str) -> Result<ccm_testbed::test_cloud::Machine, BoxError> {
        let machines = self.machines.lock();
        let name = self.node_name(name);
        let machine = machines.iter().find(|machine| machine.node == name);
        machine.cloned().ok_or_else(|| "instance not created".into())
    }
}

#[async_trait]
impl Subject for InMemory {
    fn cloud(&self) -> Arc<dyn Cloud> {
        Arc::clone(&self.stage.cloud)
    }

    /// Names of instances have no dots.
    fn node_name(&self, name: &str) -> String {
        if name == DOTTED {
            UNDOTTED.to_owned()
        } else {
            name.to_owned()
        }
    }

    async fn create(&self, name: &str) -> Result<(), BoxError> {
        let machine = self.stage.gce.create_machine(&self.node_name(name)).await?;
        self.machines.lock().push(machine);
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), BoxError> {
        let machine = self.machine(name)?;
        self.stage.gce.delete_machine(&machine).await?;
        self.machines.lock().retain(|known| *known != machine);
        Ok(())
    }

    async fn shut_down(&self, name: &str) -> Result<(), BoxError> {
        let machine = self.machine(name)?;
        let (_, path) = machine.id.split_once("/zones/").ok_or("no zone")?;
        self.stage.gce.call(Method::POST, &format!("zones/{path}/stop"), Some(&json!({}))).await?;
        Ok(())
    }

    fn absent_provider_id(&self) -> String {
        "gce://test-project/us-central1-a/never-created".to_owned()
    }

    fn malformed_provider_id(&self) -> String {
        "gce://test-project/us-central1-a".to_owned()
    }

    fn requests(&self) -> Option<usize> {
        Some(self.stage.gce.proxy.requests().len())
    }
}

#[async_trait]
impl RouteSubject for InMemory {
    async fn restarted(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        Ok(self.stage.restarted().await?)
    }

    async fn table(&self) -> Result<Option<Vec<(IpNet, String)>>, BoxError> {
        let mut routes = Vec::new();
        for (destination, target) in self.stage.gce.table().await? {
            routes.push((destination.parse()?, target));
        }
        Ok(Some(routes))
    }

    fn unroutable(&self) -> Option<RouteNode> {
        Some(RouteNode {
            view: node_view("", Some(&self.absent_provider_id())),
            ..RouteNode::default()
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provider_keeps_the_contract_of_instances() {
    conformance::instances(&InMemory::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provider_keeps_the_contract_of_routes() {
    conformance::routes(&InMemory::new().await).await;
}
