//! Routes come, move and go.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use ccm_sim::openstack::RouterSpec;
use k8s_openapi::api::core::v1::Node;

use super::site::{Site, names, port_of};
use crate::binary::Launch;
use crate::nodes::NodeSpec;
use crate::sweep::{Party, Scenario};
use crate::test_cloud::{Machine, OpenStackCloud};

/// Whose name nobody has any more.
const LEAVER: &str = "routed-leaver";
/// Leads elsewhere and is nobody's business.
const FOREIGN: &str = "172.16.0.0/12";

/// Some nodes have no route yet, one has a route to an address that it had before, and one that is gone has left its route
/// and the address pair of its port. Half of the nodes come while the program runs.
#[derive(Debug)]
pub struct Routes {
    site: Arc<Site>,
    cloud: Arc<OpenStackCloud>,
    names: Vec<String>,
    router: String,
}

impl Routes {
    /// The scenario with this many nodes, three at least.
    ///
    /// # Errors
    /// If the cloud does not give a router.
    pub async fn new(site: Arc<Site>, cloud: Arc<OpenStackCloud>, nodes: usize) -> Result<Self> {
        let router = cloud.create_router(&RouterSpec {
            name: "pods".to_owned(),
            networks: vec!["private".to_owned()],
            ..RouterSpec::default()
        })?;
        site.configure(&format!("[Route]\nrouter-id={router}\n")).await?;
        Ok(Self {
            site,
            cloud,
            names: names("routed", nodes.max(3)),
            router,
        })
    }

    fn network(i: usize) -> String {
        format!("10.244.{i}.0/24")
    }

    async fn specs(&self) -> Result<Vec<NodeSpec>> {
        let machines = self.site.machines(&self.names).await?;
        let spec = |(i, machine): (usize, Machine)| {
            Ok(NodeSpec {
                uninitialized: false,
                node_ip: Some(address(&machine)?),
                provider_id: Some(machine.provider_id),
                pod_cidrs: vec![Self::network(i)],
                ..NodeSpec::new(machine.node)
            })
        };
        machines.into_iter().enumerate().map(spec).collect()
    }

    /// The half that is there when the program starts, and the other one.
    async fn halves(&self) -> Result<(Vec<NodeSpec>, Vec<NodeSpec>)> {
        let mut specs = self.specs().await?;
        let others = specs.split_off(specs.len().div_ceil(2));
        Ok((specs, others))
    }

    fn table(&self) -> BTreeSet<String> {
        let routes = self.cloud.router_routes(&self.router);
        routes.iter().map(|(to, hop)| format!("{to} {hop}")).collect()
    }

    async fn wanted(&self) -> Result<BTreeSet<String>> {
        let leaver = address(&self.site.machine(LEAVER).await?)?;
        let mut wanted = BTreeSet::from([format!("{FOREIGN} {leaver}")]);
        for (i, machine) in self.site.machines(&self.names).await?.iter().enumerate() {
            wanted.insert(format!("{} {}", Self::network(i), address(machine)?));
        }
        Ok(wanted)
    }
}

/// Where routes to the machine's Pods lead.
fn address(machine: &Machine) -> Result<IpAddr> {
    let (_, address) = machine
        .addresses
        .first()
        .context("a machine without an address")?;
    Ok(address.parse()?)
}

fn is_available(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        condition.type_ == "NetworkUnavailable"
            && condition.status == "False"
            && condition.reason.as_deref() == Some("RouteCreated")
    })
}

#[async_trait(?Send)]
impl Scenario for Routes {
    fn name(&self) -> String {
        format!("{} nodes are routed to", self.names.len())
    }

    fn launch(&self) -> Launch {
        self.site
            .launch(&["--controllers=route", "--cluster-cidr=10.244.0.0/16"])
    }

    fn parties(&self) -> Vec<&dyn Party> {
        self.site.parties()
    }

    async fn prepare(&self) -> Result<()> {
        self.site.wipe().await?;
        let cloud = &self.cloud;
        for machine in self.site.machines(&self.names).await? {
            cloud.set_address_pairs(&port_of(cloud, &machine)?, &[])?;
        }
        let leaver = self.site.machine(LEAVER).await?;
        cloud.set_address_pairs(&port_of(cloud, &leaver)?, &["10.244.200.0/24", "192.168.7.7"])?;
        let stale: IpAddr = "10.15.255.254".parse()?;
        let routes = [
            (FOREIGN, address(&leaver)?),
            ("10.244.200.0/24", address(&leaver)?),
            ("10.244.1.0/24", stale),
        ];
        let routes = routes.map(|(to, hop)| Ok((to.parse()?, hop)));
        let routes: Vec<_> = routes.into_iter().collect::<Result<_>>()?;
        cloud.set_router_routes(&self.router, &routes)?;
        self.site.register(&self.halves().await?.0).await
    }

    async fn act(&self) -> Result<()> {
        self.site.register(&self.halves().await?.1).await
    }

    async fn missing(&self) -> Result<Option<String>> {
        let (table, wanted) = (self.table(), self.wanted().await?);
        if table != wanted {
            return Ok(Some(format!("the routes are {table:?} and not {wanted:?}")));
        }
        let found = self.site.list().await?;
        for (i, name) in self.names.iter().enumerate() {
            let pairs = self
                .cloud
                .address_pairs(&port_of(&self.cloud, &self.site.machine(name).await?)?);
            if pairs != [Self::network(i)] {
                return Ok(Some(format!("{name}: address pairs {pairs:?}")));
            }
            if !found.get(name).is_some_and(is_available) {
                return Ok(Some(format!("{name}: its network is not available")));
            }
        }
        Ok(None)
    }

    async fn check(&self) -> Result<()> {
        let wanted = self.missing().await?;
        ensure!(wanted.is_none(), "{}", wanted.unwrap_or_default());
        let leaver = self.site.machine(LEAVER).await?;
        let pairs = self.cloud.address_pairs(&port_of(&self.cloud, &leaver)?);
        ensure!(pairs == ["192.168.7.7"], "{LEAVER}: address pairs {pairs:?}");
        for write in self.site.proxy.writes() {
            ensure!(
                matches!(write.method.as_str(), "PATCH" | "POST"),
                "neither a condition nor an event: {write}"
            );
        }
        Ok(())
    }

    async fn disturb(&self) -> Result<()> {
        self.site.restart_api_server().await
    }

    fn secrets(&self) -> Vec<String> {
        self.site.secrets()
    }
}
