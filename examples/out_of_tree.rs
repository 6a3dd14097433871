//! A cloud-controller-manager for a cloud that this repository does not know: one registration, one `main`.
//!
//! The package of such a binary depends on `cloud-controller-manager` with `default-features = false` and on `ccm-core`.
//! It has all flags, probes and metrics of the others, and exactly its own provider. If the provider is a crate of its
//! own, the binary adds `use acme_provider as _;`, or the linker leaves it out.

use std::{process::ExitCode, sync::Arc};

use ccm_core::{
    AddressType, BuildContext, Cloud, Freshness, Instance, InstanceQuery, InstanceState, Instances,
    NodeAddress, NodeView, Priority, Result, async_trait, register_provider,
};

/// The machines of Acme: name and internal address. The name is the id, too.
const MACHINES: [(&str, &str); 2] = [("node-1", "192.0.2.1"), ("node-2", "192.0.2.2")];

#[derive(Debug)]
struct Acme;

register_provider! { name: "acme", summary: "Acme Cloud", build: Acme::build }

impl Acme {
    async fn build(_context: BuildContext) -> Result<Arc<dyn Cloud>> {
        Ok(Arc::new(Self))
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
        // A real cloud is asked about all of them at once.
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
