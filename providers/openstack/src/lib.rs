//! The OpenStack provider.
#![doc = include_str!("docs.md")]

mod client;
mod config;
mod error;
mod instances;

use std::sync::Arc;

use ccm_core::{BuildContext, Cloud, Instances, Result, register_provider};
use tracing::warn;

use crate::{
    client::Api,
    config::{CloudConf, Environment, Settings},
    instances::{OpenStackInstances, provider_id},
};

/// The provider's name in the registry, on `--cloud-provider` and before `://` in provider IDs.
pub const NAME: &str = provider_id::SCHEME;

register_provider! {
    name: NAME,
    summary: "OpenStack: Keystone, Nova and Neutron",
    build: build,
    validate: validate,
    config_reference: config_reference,
}

/// One OpenStack region, with one set of credentials.
#[derive(Debug)]
struct OpenStack {
    instances: OpenStackInstances,
}

impl Cloud for OpenStack {
    fn name(&self) -> &'static str {
        NAME
    }

    fn owns(&self, provider_id: &str) -> bool {
        match provider_id.split_once("://") {
            Some((scheme, _)) => scheme == NAME,
            // Old kubelets wrote IDs without a scheme.
            None => provider_id::parse(provider_id).is_ok(),
        }
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&self.instances)
    }
}

fn validate(context: &BuildContext) -> Result<()> {
    let (_, warnings) = load(context)?;
    for warning in warnings {
        warn!(%warning, "Suspicious cloud config");
    }
    Ok(())
}

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    // Again, since a mounted Secret may have changed. What is suspicious was said before.
    let (settings, _) = load(&context)?;
    let api = Api::connect(settings.connection.clone(), &context).await?;
    Ok(Arc::new(OpenStack {
        instances: OpenStackInstances::new(&api, &settings, &context.metrics),
    }))
}

fn load(context: &BuildContext) -> Result<(Settings, Vec<ccm_core::config::Problem>)> {
    config::load(context.cloud_config.as_deref(), &Environment::of_process())
}

fn config_reference() -> String {
    let keys = ccm_core::config::docs::markdown::<CloudConf>(2);
    format!("{}\n# Keys of the config file\n\n{keys}", include_str!("docs.md"))
}
