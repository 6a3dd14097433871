//! The suite for all providers, on the simulator and on the real OpenStack.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod cloud;

use std::{env, sync::Arc};

use ccm_core::{
    Cloud, async_trait,
    testkit::conformance::{self, BoxError, Subject},
};
use ccm_sim::openstack::ServerSpec;
use ccm_testbed::{cache::say, openstack_real::OpenStack as RealOpenStack};
use cloud::Connected;
use parking_lot::Mutex;

struct Simulated {
    connected: Connected,
    servers: Mutex<Vec<(String, String)>>,
}

impl Simulated {
    fn id(&self, name: &str) -> Result<String, BoxError> {
        let servers = self.servers.lock();
        let server = servers
            .iter()
            .rev()
            .find(|(known, _)| known == name)
            .ok_or("never made")?;
        Ok(server.1.clone())
    }
}

#[async_trait]
impl Subject for Simulated {
    fn cloud(&self) -> Arc<dyn Cloud> {
        Arc::clone(&self.connected.cloud)
    }

    async fn create(&self, name: &str) -> Result<(), BoxError> {
        let id = self.connected.sim.create_server(&ServerSpec::named(name))?;
        self.servers.lock().push((name.to_owned(), id));
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), BoxError> {
        Ok(self.connected.sim.delete_server(&self.id(name)?)?)
    }

    async fn shut_down(&self, name: &str) -> Result<(), BoxError> {
        Ok(self.connected.sim.set_status(&self.id(name)?, "SHUTOFF")?)
    }

    fn absent_provider_id(&self) -> String {
        "openstack:///5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11".to_owned()
    }

    fn malformed_provider_id(&self) -> String {
        "openstack://5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11".to_owned()
    }

    fn requests(&self) -> Option<usize> {
        usize::try_from(self.connected.total()).ok()
    }

    fn crowd(&self) -> usize {
        300
    }
}

#[tokio::test]
async fn the_provider_keeps_the_contract_on_the_simulator() {
    let subject = Simulated {
        connected: Connected::new().await,
        servers: Mutex::default(),
    };
    conformance::instances(&subject).await;
}

struct Real {
    openstack: &'static RealOpenStack,
    cloud: Arc<dyn Cloud>,
}

#[async_trait]
impl Subject for Real {
    fn cloud(&self) -> Arc<dyn Cloud> {
        Arc::clone(&self.cloud)
    }

    async fn create(&self, name: &str) -> Result<(), BoxError> {
        self.openstack.create_servers(&[name]).await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), BoxError> {
        self.openstack.delete_servers(&[name]).await?;
        Ok(())
    }

    async fn shut_down(&self, name: &str) -> Result<(), BoxError> {
        self.openstack.stop_servers(&[name]).await?;
        Ok(())
    }

    fn absent_provider_id(&self) -> String {
        "openstack:///5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11".to_owned()
    }

    fn malformed_provider_id(&self) -> String {
        "openstack://5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11".to_owned()
    }

    fn crowd(&self) -> usize {
        // Each takes seconds.
        3
    }
}

#[tokio::test]
async fn the_provider_keeps_the_contract_on_the_real_openstack() {
    if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
        say("left out, since CCM_TEST_OPENSTACK_REAL is not set: the suite on a real OpenStack");
        return;
    }
    let openstack = RealOpenStack::shared(1).await.unwrap();
    let conf = std::fs::read_to_string(openstack.cloud_conf()).unwrap();
    let cloud = cloud::build(&conf).await.unwrap();
    conformance::instances(&Real { openstack, cloud }).await;
}
