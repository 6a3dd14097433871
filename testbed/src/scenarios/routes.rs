//! Routes are created, replaced and deleted.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Node;

use super::site::{Site, names};
use crate::binary::Launch;
use crate::nodes::NodeSpec;
use crate::sweep::{Environment, Scenario};
use crate::test_cloud::{Machine, TestRoutes};

/// A machine without a Node.
const LEAVER: &str = "routed-leaver";
/// The network of that machine's former Pods.
const LEFT: &str = "10.244.200.0/24";
/// A route outside of the cluster, which must be kept.
const FOREIGN: &str = "172.16.0.0/12";

/// Some nodes have no route, one has a route to another machine, and a deleted node has an orphaned route. Half of the nodes
/// are created while the program runs.
#[derive(Debug)]
pub struct Routes {
    site: Arc<Site>,
    names: Vec<String>,
}

impl Routes {
    /// The scenario with this many nodes, three at least. None if the cloud has no routes.
    ///
    /// # Errors
    /// If the cloud cannot create a route table.
    pub async fn new(site: Arc<Site>, nodes: usize) -> Result<Option<Self>> {
        let Some(routes) = site.cloud.routes() else {
            return Ok(None);
        };
        let config = routes.create_table().await?;
        site.configure(&config).await?;
        Ok(Some(Self {
            site,
            names: names("routed", nodes.max(3)),
        }))
    }

    fn network(i: usize) -> String {
        format!("10.244.{i}.0/24")
    }

    fn routes(&self) -> Result<&dyn TestRoutes> {
        self.site.cloud.routes().context("the cloud has no routes")
    }

    async fn specs(&self) -> Result<Vec<NodeSpec>> {
        let machines = self.site.machines(&self.names).await?;
        let spec = |(i, machine): (usize, Machine)| {
            let internal = machine.addresses.iter().find(|(kind, _)| kind == "InternalIP");
            let (_, address) = internal.context("a machine without an address")?;
            Ok(NodeSpec {
                uninitialized: false,
                node_ip: Some(address.parse()?),
                provider_id: Some(machine.provider_id),
                pod_cidrs: vec![Self::network(i)],
                ..NodeSpec::new(machine.node)
            })
        };
        machines.into_iter().enumerate().map(spec).collect()
    }

    /// The half that exists when the program starts, and the other one.
    async fn halves(&self) -> Result<(Vec<NodeSpec>, Vec<NodeSpec>)> {
        let mut specs = self.specs().await?;
        let others = specs.split_off(specs.len().div_ceil(2));
        Ok((specs, others))
    }

    async fn expected(&self) -> Result<BTreeSet<(String, String)>> {
        let leaver = self.site.machine(LEAVER).await?;
        let mut expected = BTreeSet::from([(FOREIGN.to_owned(), leaver.id)]);
        for (i, machine) in self.site.machines(&self.names).await?.into_iter().enumerate() {
            expected.insert((Self::network(i), machine.id));
        }
        Ok(expected)
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
        self.site.launch(&["--controllers=route", "--cluster-cidr=10.244.0.0/16"])
    }

    fn environment(&self) -> &dyn Environment {
        &*self.site
    }

    async fn prepare(&self) -> Result<()> {
        self.site.wipe().await?;
        let machines = self.site.machines(&self.names).await?;
        let leaver = self.site.machine(LEAVER).await?;
        let moved = Self::network(1);
        let routes = [(FOREIGN, &leaver), (LEFT, &leaver), (moved.as_str(), &leaver)];
        self.routes()?.reset(&routes, &machines, (LEFT, &leaver)).await?;
        self.site.register(&self.halves().await?.0).await
    }

    async fn act(&self) -> Result<()> {
        self.site.register(&self.halves().await?.1).await
    }

    async fn missing(&self) -> Result<Option<String>> {
        let (table, expected) = (self.routes()?.table().await?, self.expected().await?);
        if table != expected {
            return Ok(Some(format!("the routes are {table:?} instead of {expected:?}")));
        }
        let found = self.site.list().await?;
        for (i, machine) in self.site.machines(&self.names).await?.iter().enumerate() {
            if let Some(why) = self.routes()?.drops(machine, &Self::network(i)).await? {
                return Ok(Some(format!("{}: {why}", machine.node)));
            }
            if !found.get(&machine.node).is_some_and(is_available) {
                return Ok(Some(format!("{}: the network is not available", machine.node)));
            }
        }
        Ok(None)
    }

    async fn check(&self) -> Result<()> {
        let missing = self.missing().await?;
        ensure!(missing.is_none(), "{}", missing.unwrap_or_default());
        let leaver = self.site.machine(LEAVER).await?;
        let changed = self.routes()?.changed(&leaver).await?;
        ensure!(changed.is_none(), "{LEAVER}: {}", changed.unwrap_or_default());
        for write in self.site.proxy.writes() {
            ensure!(
                matches!(write.method.as_str(), "PATCH" | "POST"),
                "not a write of a condition or Event: {write}"
            );
        }
        Ok(())
    }
}
