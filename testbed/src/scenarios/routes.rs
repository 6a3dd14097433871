//! Routes come, move and go.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use ccm_sim::openstack::RouterSpec;
use k8s_openapi::api::core::v1::Node;

use super::site::{Site, names};
use crate::binary::Launch;
use crate::nodes::NodeSpec;
use crate::sweep::{Party, Scenario};

/// Whose name nobody has any more.
const LEAVER: &str = "routed-leaver";
/// Leads elsewhere and is nobody's business.
const FOREIGN: &str = "172.16.0.0/12";

/// Some nodes have no route yet, one has a route to an address that it had before, and one that is gone has left its route
/// and the address pair of its port. Half of the nodes come while the program runs.
#[derive(Debug)]
pub struct Routes {
    site: Arc<Site>,
    names: Vec<String>,
    router: String,
}

impl Routes {
    /// The scenario with this many nodes, three at least.
    ///
    /// # Errors
    /// If the cloud does not give a router.
    pub async fn new(site: Arc<Site>, nodes: usize) -> Result<Self> {
        let router = site.cloud.create_router(&RouterSpec {
            name: "pods".to_owned(),
            networks: vec!["private".to_owned()],
            ..RouterSpec::default()
        })?;
        site.configure(&format!("[Route]\nrouter-id={router}\n")).await?;
        Ok(Self {
            site,
            names: names("routed", nodes.max(3)),
            router,
        })
    }

    fn network(i: usize) -> String {
        format!("10.244.{i}.0/24")
    }

    fn specs(&self) -> Result<Vec<NodeSpec>> {
        let spec = |(i, name): (usize, &String)| {
            let machine = self.site.machine(name)?;
            Ok(NodeSpec {
                uninitialized: false,
                provider_id: Some(format!("openstack:///{}", machine.id)),
                node_ip: Some(machine.address),
                pod_cidrs: vec![Self::network(i)],
                ..NodeSpec::new(name)
            })
        };
        self.names.iter().enumerate().map(spec).collect()
    }

    /// The half that is there when the program starts, and the other one.
    fn halves(&self) -> Result<(Vec<NodeSpec>, Vec<NodeSpec>)> {
        let mut specs = self.specs()?;
        let others = specs.split_off(specs.len().div_ceil(2));
        Ok((specs, others))
    }

    fn table(&self) -> BTreeSet<String> {
        let routes = self.site.cloud.router_routes(&self.router);
        routes.iter().map(|(to, hop)| format!("{to} {hop}")).collect()
    }

    fn wanted(&self) -> Result<BTreeSet<String>> {
        let mut wanted = BTreeSet::from([format!("{FOREIGN} {}", self.site.machine(LEAVER)?.address)]);
        for (i, name) in self.names.iter().enumerate() {
            wanted.insert(format!(
                "{} {}",
                Self::network(i),
                self.site.machine(name)?.address
            ));
        }
        Ok(wanted)
    }
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
        let cloud = &self.site.cloud;
        for name in &self.names {
            cloud.set_address_pairs(&self.site.machine(name)?.port, &[])?;
        }
        let leaver = self.site.machine(LEAVER)?;
        cloud.set_address_pairs(&leaver.port, &["10.244.200.0/24", "192.168.7.7"])?;
        let stale: IpAddr = "10.15.255.254".parse()?;
        let routes = [
            (FOREIGN, leaver.address),
            ("10.244.200.0/24", leaver.address),
            ("10.244.1.0/24", stale),
        ];
        let routes = routes.map(|(to, hop)| Ok((to.parse()?, hop)));
        let routes: Vec<_> = routes.into_iter().collect::<Result<_>>()?;
        cloud.set_router_routes(&self.router, &routes)?;
        self.site.register(&self.halves()?.0).await
    }

    async fn act(&self) -> Result<()> {
        self.site.register(&self.halves()?.1).await
    }

    async fn missing(&self) -> Result<Option<String>> {
        let (table, wanted) = (self.table(), self.wanted()?);
        if table != wanted {
            return Ok(Some(format!("the routes are {table:?} and not {wanted:?}")));
        }
        let found = self.site.list().await?;
        for (i, name) in self.names.iter().enumerate() {
            let pairs = self.site.cloud.address_pairs(&self.site.machine(name)?.port);
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
        let leaver = self.site.machine(LEAVER).context("the machine that is left")?;
        let pairs = self.site.cloud.address_pairs(&leaver.port);
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
