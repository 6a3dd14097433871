//! A cluster on the simulated cloud, with the actions of the route controller.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{
    AddressType, Cloud, NodeAddress, Priority,
    routes::{Applied, ClusterCidrs, Desired, RouteNode, RoutePlan, Routes, plan},
    testkit::nodes::node_view,
};
use ccm_sim::openstack::{Config, NetworkSpec, OpenStack, PortSpec, RouterSpec, ServerSpec};
use ipnet::IpNet;

use crate::cloud::build;

pub(crate) const CIDRS: &str = "10.244.0.0/16,fd44::/48";

pub(crate) struct Stage {
    pub(crate) sim: OpenStack,
    pub(crate) cloud: Arc<dyn Cloud>,
    pub(crate) router: String,
    pub(crate) nodes: Vec<Arc<RouteNode>>,
    conf: String,
}

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

impl Stage {
    /// A network with both families, a router in it and some nodes. `more`: additional lines of `[Route]`.
    pub(crate) async fn new(nodes: usize, more: &str) -> Self {
        let sim = OpenStack::start(Config::default()).await.unwrap();
        sim.create_network(&NetworkSpec {
            name: "nodes".to_owned(),
            subnets: vec![net("192.168.0.0/16"), net("fd00::/64")],
            ..NetworkSpec::default()
        })
        .unwrap();
        let router = sim
            .create_router(&RouterSpec {
                name: "pods".to_owned(),
                networks: vec!["nodes".to_owned()],
                ..RouterSpec::default()
            })
            .unwrap();
        let conf = format!("{}\n[Route]\nrouter-id={router}\n{more}\n", sim.cloud_conf());
        let cloud = build(&conf).await.unwrap();
        let mut stage = Self {
            sim,
            cloud,
            router,
            nodes: Vec::new(),
            conf,
        };
        for _ in 0..nodes {
            stage.join("nodes", false);
        }
        stage.sim.clear_calls();
        stage
    }

    /// Adds a router for the routes in the same network, and starts a process with both.
    pub(crate) async fn second_router(&mut self) -> String {
        let second = self
            .sim
            .create_router(&RouterSpec {
                name: "pods-2".to_owned(),
                networks: vec!["nodes".to_owned()],
                // The first router has the gateway's address.
                without_ports: true,
                ..RouterSpec::default()
            })
            .unwrap();
        let first = self.router.clone();
        self.name_routers(&[&first, &second]).await;
        second
    }

    /// Starts a new process whose config names these routers.
    pub(crate) async fn name_routers(&mut self, routers: &[&str]) {
        let section = format!("\n[Route]\nrouter-id={}\n", routers.join(", "));
        self.conf = format!("{}{section}", self.sim.cloud_conf());
        self.restart().await;
    }

    /// Adds a node on this network; `dual`: with a podCIDR of each family.
    pub(crate) fn join(&mut self, network: &str, dual: bool) {
        self.join_with(PortSpec::on(network), dual);
    }

    /// Adds a node with this port.
    pub(crate) fn join_with(&mut self, port: PortSpec, dual: bool) {
        let i = self.nodes.len() + 1;
        let name = format!("node-{i}");
        let spec = ServerSpec {
            ports: Some(vec![port]),
            ..ServerSpec::named(&name)
        };
        let id = self.sim.create_server(&spec).unwrap();
        let mut pod_cidrs = vec![net(&format!("10.244.{i}.0/24"))];
        pod_cidrs.extend(dual.then(|| net(&format!("fd44:0:0:{i:x}::/64"))));
        self.nodes.push(Arc::new(RouteNode {
            addresses: self.addresses(&id),
            view: node_view(&name, Some(&format!("openstack:///{id}"))),
            pod_cidrs,
            created: i64::try_from(i).unwrap(),
            uninitialized: false,
        }));
    }

    fn addresses(&self, server: &str) -> Vec<NodeAddress> {
        let ports = self.sim.server_ports(server);
        ports
            .iter()
            .flat_map(|port| self.sim.port_addresses(port))
            .map(|ip| NodeAddress::new(AddressType::InternalIP, ip.to_string()))
            .collect()
    }

    /// Changes a node.
    pub(crate) fn change(&mut self, i: usize, change: impl FnOnce(&mut RouteNode)) {
        change(Arc::make_mut(&mut self.nodes[i]));
    }

    /// The node reads its addresses again.
    pub(crate) fn readdress(&mut self, i: usize) {
        let addresses = self.addresses(&self.server(i));
        self.change(i, |node| node.addresses = addresses);
    }

    pub(crate) fn server(&self, i: usize) -> String {
        let id = self.nodes[i].view.provider_id.clone().unwrap();
        id.trim_start_matches("openstack:///").to_owned()
    }

    pub(crate) fn port(&self, i: usize) -> String {
        self.sim.server_ports(&self.server(i)).remove(0)
    }

    pub(crate) fn address(&self, i: usize) -> IpAddr {
        self.nodes[i].addresses[0].address.parse().unwrap()
    }

    /// Starts a new process.
    pub(crate) async fn restart(&mut self) {
        self.cloud = build(&self.conf).await.unwrap();
    }

    pub(crate) fn routes(&self) -> &dyn Routes {
        self.cloud.routes().unwrap()
    }

    pub(crate) async fn plan(&self) -> ccm_core::Result<(Desired, RoutePlan)> {
        let cidrs = ClusterCidrs::parse(CIDRS).unwrap();
        let next_hop = |node: &RouteNode, destination| self.routes().next_hop(node, destination);
        let owns = |id: &str| self.cloud.owns(id);
        let desired = Desired::of(self.nodes.iter().cloned(), &cidrs, owns, next_hop);
        let observed = self.routes().observe(&desired.routes, Priority::User).await?;
        let plan = plan(&desired, &observed, &cidrs);
        Ok((desired, plan))
    }

    /// Runs one pass.
    pub(crate) async fn pass(&self) -> ccm_core::Result<(RoutePlan, Applied)> {
        let (_, plan) = self.plan().await?;
        let applied = self.routes().apply(&plan.changes, Priority::User).await;
        assert_eq!(applied.created.len(), plan.changes.create.len());
        assert_eq!(applied.deleted.len(), plan.changes.delete.len());
        assert_eq!(applied.finished.len(), plan.changes.finish.len());
        Ok((plan, applied))
    }

    /// Runs a pass in which nothing fails, and after which nothing is due.
    pub(crate) async fn settle(&self) {
        let (_, applied) = self.pass().await.unwrap();
        for result in [applied.deleted, applied.created, applied.finished].concat() {
            result.unwrap();
        }
        self.settled().await;
    }

    /// Checks that nothing is due.
    pub(crate) async fn settled(&self) {
        let (_, plan) = self.plan().await.unwrap();
        assert!(plan.changes.is_empty(), "{:?}", plan.changes.sentences());
    }

    /// The router's routes as sorted texts.
    pub(crate) fn table(&self) -> Vec<String> {
        self.table_of(&self.router)
    }

    /// The routes of another router.
    pub(crate) fn table_of(&self, router: &str) -> Vec<String> {
        let routes = self.sim.router_routes(router);
        let mut table: Vec<_> =
            routes.iter().map(|(destination, nexthop)| format!("{destination} {nexthop}")).collect();
        table.sort();
        table
    }

    /// Returns when this fault holds a request.
    pub(crate) async fn reached(&self, fault: u64) {
        let held = async || {
            let faults = self.sim.faults();
            faults.iter().any(|known| known.id == fault && known.reached > 0).then_some(())
        };
        let limit = std::time::Duration::from_secs(30);
        let reached = ccm_testbed::observe::eventually(limit, held).await;
        assert!(reached.is_some(), "no request came there");
    }

    /// The number of calls of a kind.
    pub(crate) fn count(&self, op: &str) -> u64 {
        self.sim.call_counts().get(op).copied().unwrap_or(0)
    }
}

/// The indexes of the failures.
pub(crate) fn failed(results: &[ccm_core::Result<()>]) -> Vec<usize> {
    let failed = results.iter().enumerate().filter(|(_, result)| result.is_err());
    failed.map(|(i, _)| i).collect()
}
