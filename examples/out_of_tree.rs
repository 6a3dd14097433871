//! A cloud-controller-manager for a cloud outside this repository: one registration, one `main`. The provider also has its
//! own controller and flag.
//!
//! The package of such a binary depends on `cloud-controller-manager` with `default-features = false` and on `ccm-core`.
//! It has all flags, probes and metrics of the others, and exactly its own provider. If the provider is a separate
//! crate, the binary must contain `use acme_provider as _;`, or the linker leaves it out.

use std::{collections::BTreeSet, process::ExitCode, sync::Arc, time::Duration};

use ccm_core::{
    AddressType, BuildContext, Cloud, Freshness, Instance, InstanceQuery, InstanceState, Instances,
    NodeAddress, NodeView, Priority, Result, async_trait,
    controllers::{ControllerContext, ControllerDef, ControllerNames, Needs},
    provider_flags, register_provider,
};
use prometheus_client::metrics::gauge::Gauge;
use tracing::info;

/// The machines of Acme: name and internal address. The name is the id, too.
const MACHINES: [(&str, &str); 2] = [("node-1", "192.0.2.1"), ("node-2", "192.0.2.2")];

provider_flags! {
    /// The flags of this provider.
    const FLAGS;

    /// How long changes of nodes and Services are collected before the firewall is updated.
    DELAY = "acme-firewall-delay": Duration, "1s";
}

/// A controller of this provider.
const FIREWALL: ControllerDef = ControllerDef {
    names: ControllerNames {
        name: "acme-firewall-controller",
        aliases: &["acme-firewall"],
        migration_name: None,
        client_name: "acme-firewall-controller",
    },
    default_on: true,
    needs: |_| {
        Ok(Needs {
            node_port_services: true,
            ..Needs::default()
        })
    },
    start: |context| {
        let acme = context.setup.cloud_as::<Acme>()?;
        Ok(Box::pin(open_node_ports(acme, context)))
    },
};

register_provider! {
    name: "acme",
    summary: "Acme Cloud",
    build: Acme::build,
    flags: FLAGS,
    controllers: &[FIREWALL],
}

#[derive(Debug)]
struct Acme {
    delay: Duration,
}

impl Acme {
    async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
        Ok(Arc::new(Self {
            delay: context.flags.duration(&DELAY),
        }))
    }

    /// A real provider sends a request here.
    fn update_firewall(&self, nodes: usize, ports: &BTreeSet<u16>) {
        info!(nodes, ?ports, "Updated the firewall");
    }
}

/// The controller: opens the node ports of all Services on all nodes, until the process ends.
async fn open_node_ports(acme: Arc<Acme>, context: ControllerContext) {
    let (nodes, services) = (&context.nodes, &context.services);
    let open = Gauge::<i64>::default();
    context.metrics.with(|registry| {
        registry.register("acme_firewall_ports", "Open node ports", open.clone());
    });
    let work = async {
        let (mut node_changes, mut service_changes) = (nodes.subscribe(), services.subscribe());
        nodes.synced().await;
        services.synced().await;
        let mut updated = None;
        loop {
            let all = services.list();
            let ports = all.iter().flat_map(|service| &service.view.ports);
            let desired = (nodes.list().len(), ports.map(|port| port.node_port).collect::<BTreeSet<_>>());
            // Most changes of nodes do not affect the firewall.
            if updated.as_ref() != Some(&desired) {
                acme.update_firewall(desired.0, &desired.1);
                open.set(i64::try_from(desired.1.len()).unwrap_or(i64::MAX));
                updated = Some(desired);
            }
            tokio::select! {
                Some(_) = node_changes.recv() => {}
                Some(_) = service_changes.recv() => {}
            }
            tokio::time::sleep(acme.delay).await;
        }
    };
    tokio::select! {
        () = context.shutdown.cancelled() => info!("Firewall controller stopped"),
        () = work => {}
    }
}

impl Cloud for Acme {
    fn name(&self) -> &'static str {
        "acme"
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }
}

#[async_trait]
impl Instances for Acme {
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        _freshness: Freshness,
        _priority: Priority,
    ) -> Vec<Result<InstanceState>> {
        // A real provider reads all of them in one request.
        queries.iter().map(|query| Ok(find(&query.node))).collect()
    }
}

/// A node with a provider ID is looked up by its id, any other by its name.
fn find(node: &NodeView) -> InstanceState {
    let (id, unknown) = match &node.provider_id {
        None => (node.name.as_str(), InstanceState::Unresolved),
        Some(provider_id) => match provider_id.strip_prefix("acme://") {
            Some(id) => (id, InstanceState::Absent),
            None => return InstanceState::Unmanaged,
        },
    };
    let Some((name, address)) = MACHINES.into_iter().find(|(name, _)| *name == id) else {
        return unknown;
    };
    InstanceState::Present(Instance {
        provider_id: format!("acme://{name}"),
        instance_type: Some("acme.small".to_owned()),
        addresses: vec![
            NodeAddress::new(AddressType::Hostname, name),
            NodeAddress::new(AddressType::InternalIP, address),
        ],
        ..Instance::default()
    })
}

fn main() -> ExitCode {
    cloud_controller_manager::main()
}
