//! A cloud-controller-manager for a cloud that this repository does not know: one registration, one `main`.
//!
//! The package of such a binary depends on `cloud-controller-manager` with `default-features = false` and on `ccm-core`.
//! It has all flags, probes and metrics of the others, and exactly its own provider. If the provider is a crate of its
//! own, the binary adds `use acme_provider as _;`, or the linker leaves it out.

use std::{process::ExitCode, sync::Arc};

use ccm_core::{
    BuildContext, Cloud, Freshness, InstanceQuery, InstanceState, Instances, Priority, Result, async_trait,
    register_provider,
};

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
        // Acme has no machines: none of these nodes is one of them.
        queries.iter().map(|_| Ok(InstanceState::Unmanaged)).collect()
    }
}

fn main() -> ExitCode {
    cloud_controller_manager::main()
}
