//! The suite for all providers.

use std::{collections::HashMap, sync::Arc};

use ccm_core::{
    Cloud, Result, async_trait,
    testkit::conformance::{self, BoxError, RouteSubject, Subject},
};
use ccm_testbed::arm::ArmMachine;
use ipnet::IpNet;
use parking_lot::Mutex;
use serde_json::json;

use crate::stage::Stage;

/// Machines of one kind: `uniform`, `flex` or `standalone`.
struct OnArm {
    stage: Stage,
    kind: &'static str,
    machines: Mutex<HashMap<String, ArmMachine>>,
}

impl OnArm {
    async fn new(kind: &'static str) -> Self {
        let stage = Stage::new(&["--uniform=1", "--flex=1", "--page=7"], "").await;
        Self {
            stage,
            kind,
            machines: Mutex::default(),
        }
    }

    fn machine(&self, name: &str) -> Result<ArmMachine, BoxError> {
        self.machines.lock().get(name).cloned().ok_or_else(|| "machine not created".into())
    }
}

#[async_trait]
impl Subject for OnArm {
    fn cloud(&self) -> Arc<dyn Cloud> {
        Arc::clone(&self.stage.cloud)
    }

    /// Azure chooses the names.
    fn node_name(&self, name: &str) -> String {
        self.machines.lock().get(name).map_or(name, |machine| &machine.name).to_owned()
    }

    async fn create(&self, name: &str) -> Result<(), BoxError> {
        let machine = self.stage.server.create(self.kind, &json!({})).await?;
        self.machines.lock().insert(name.to_owned(), machine);
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), BoxError> {
        Ok(self.stage.server.delete(&self.machine(name)?.id).await?)
    }

    async fn shut_down(&self, name: &str) -> Result<(), BoxError> {
        Ok(self.stage.server.power(&self.machine(name)?.id, "deallocated").await?)
    }

    fn absent_provider_id(&self) -> String {
        let group = "azure:///subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/k8s";
        let id = match self.kind {
            "uniform" => "virtualMachineScaleSets/pool-a/virtualMachines/4711",
            _ => "virtualMachines/nobody",
        };
        format!("{group}/providers/Microsoft.Compute/{id}")
    }

    fn malformed_provider_id(&self) -> String {
        "azure:///subscriptions/s/resourceGroups/k8s/providers/Microsoft.Network/loadBalancers/x".to_owned()
    }
}

#[async_trait]
impl RouteSubject for OnArm {
    async fn restarted(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        Ok(self.stage.restarted().await?)
    }

    async fn table(&self) -> Result<Option<Vec<(IpNet, String)>>, BoxError> {
        let table = self.stage.server.document(&self.stage.server.network_id("routeTables/routes")).await?;
        let mut found = Vec::new();
        for route in table["properties"]["routes"].as_array().into_iter().flatten() {
            let text = |key: &str| route["properties"][key].as_str();
            if let (Some(destination), Some(hop)) = (text("addressPrefix"), text("nextHopIpAddress")) {
                found.push((destination.parse()?, hop.to_owned()));
            }
        }
        Ok(Some(found))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_of_uniform_scale_sets() {
    let subject = OnArm::new("uniform").await;
    conformance::instances(&subject).await;
    subject.stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_of_flexible_scale_sets() {
    let subject = OnArm::new("flex").await;
    conformance::instances(&subject).await;
    subject.stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_of_their_own() {
    let subject = OnArm::new("standalone").await;
    conformance::instances(&subject).await;
    subject.stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes() {
    let subject = OnArm::new("standalone").await;
    conformance::routes(&subject).await;
    subject.stage.end().await;
}
