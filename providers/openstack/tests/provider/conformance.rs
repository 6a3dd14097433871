//! The suite for all providers, on the simulator and on the real OpenStack.

use std::{env, sync::Arc};

use ccm_core::{
    AddressType, Cloud, NodeAddress, async_trait,
    routes::RouteNode,
    testkit::conformance::{self, BoxError, RouteSubject, Subject},
};
use ccm_sim::openstack::{Config, RouterSpec, ServerSpec};
use ccm_testbed::{cache::say, openstack_real::OpenStack as RealOpenStack};
use ipnet::IpNet;
use parking_lot::Mutex;

use crate::cloud::Connected;

struct Simulated {
    connected: Connected,
    servers: Mutex<Vec<(String, String)>>,
    /// The sections `[Route]` and `[Quota]`.
    section: String,
    router: String,
    /// The number of other machines.
    machine_count: usize,
}

impl Simulated {
    /// Adds lines to `[Route]`.
    async fn new(machine_count: usize, more: &str) -> Self {
        let id = "3d1c7a52-8f0b-4c55-a9d2-6e2f7b1c9a10";
        // No other client uses this cloud.
        let quota = "[Quota]\nnetwork-requests-per-second=1000\nnetwork-burst=1000";
        let section = format!("\n[Route]\nrouter-id={id}\n{more}\n{quota}\n");
        let connected = Connected::with(Config::default(), &section).await;
        connected.sim.configure(|settings| settings.resource_quotas.clear());
        let spec = RouterSpec {
            id: Some(id.to_owned()),
            name: "pods".to_owned(),
            networks: vec!["private".to_owned()],
            ..RouterSpec::default()
        };
        Self {
            router: connected.sim.create_router(&spec).unwrap(),
            connected,
            section,
            servers: Mutex::default(),
            machine_count,
        }
    }
}

impl Simulated {
    fn id(&self, name: &str) -> Result<String, BoxError> {
        let servers = self.servers.lock();
        let server = servers.iter().rev().find(|(known, _)| known == name).ok_or("never made")?;
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

    fn machine_count(&self) -> usize {
        self.machine_count
    }
}

#[async_trait]
impl RouteSubject for Simulated {
    async fn restarted(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        let conf = format!("{}{}", self.connected.sim.cloud_conf(), self.section);
        Ok(crate::cloud::build(&conf).await?)
    }

    async fn table(&self) -> Result<Option<Vec<(IpNet, String)>>, BoxError> {
        let table = self.connected.sim.router_routes(&self.router);
        Ok(Some(table.into_iter().map(|(to, via)| (to, via.to_string())).collect()))
    }

    fn unroutable(&self) -> Option<RouteNode> {
        Some(stranger())
    }

    async fn set_limit(&self, limit: Option<usize>) -> Result<bool, BoxError> {
        let limit = limit.map(u64::try_from).transpose()?;
        self.connected.sim.configure(|settings| {
            settings.resource_quotas.clear();
            let quota = limit.map(|limit| ("router_route".to_owned(), limit));
            settings.resource_quotas.extend(quota);
        });
        Ok(true)
    }
}

/// Its address is in no subnet of the router.
fn stranger() -> RouteNode {
    RouteNode {
        addresses: vec![NodeAddress::new(AddressType::InternalIP, "192.0.2.77")],
        ..RouteNode::default()
    }
}

#[tokio::test]
async fn the_provider_keeps_the_contract_on_the_simulator() {
    conformance::instances(&Simulated::new(300, "").await).await;
}

#[tokio::test]
async fn the_provider_keeps_the_contract_of_routes_on_the_simulator() {
    for atomic in [true, false] {
        for more in ["", "allowed-address-pairs=false"] {
            let subject = Simulated::new(10, more).await;
            let missing = (!atomic).then(|| "extraroute-atomic".to_owned());
            subject.connected.sim.configure(|settings| settings.missing_extensions.extend(missing));
            conformance::routes(&subject).await;
            assert!(subject.connected.sim.router_routes(&subject.router).is_empty());
        }
    }
}

struct Real {
    openstack: &'static RealOpenStack,
    conf: String,
    cloud: Arc<dyn Cloud>,
}

impl Real {
    /// `None` without a real cloud.
    async fn start() -> Option<Self> {
        if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
            say("left out, since CCM_TEST_OPENSTACK_REAL is not set: the suite on a real OpenStack");
            return None;
        }
        let openstack = RealOpenStack::shared(1).await.unwrap();
        let conf = std::fs::read_to_string(openstack.cloud_conf()).unwrap();
        let cloud = crate::cloud::build(&conf).await.unwrap();
        Some(Self {
            openstack,
            conf,
            cloud,
        })
    }
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

    fn machine_count(&self) -> usize {
        // Each takes seconds.
        3
    }
}

#[async_trait]
impl RouteSubject for Real {
    async fn restarted(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        Ok(crate::cloud::build(&self.conf).await?)
    }

    fn unroutable(&self) -> Option<RouteNode> {
        Some(stranger())
    }
}

#[tokio::test]
async fn the_provider_keeps_the_contract_on_the_real_openstack() {
    if let Some(subject) = Real::start().await {
        conformance::instances(&subject).await;
    }
}

#[tokio::test]
async fn the_provider_keeps_the_contract_of_routes_on_the_real_openstack() {
    if let Some(subject) = Real::start().await {
        conformance::routes(&subject).await;
    }
}
