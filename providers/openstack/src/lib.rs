//! The OpenStack provider.
#![doc = include_str!("docs.md")]

mod client;
mod config;
mod error;
mod instances;
#[allow(dead_code, reason = "the plan model of Services is built on it")]
mod load_balancer;
mod reload;
mod view;

use std::{path::PathBuf, sync::Arc};

use ccm_core::{BuildContext, Cloud, Instances, Reload, Result, async_trait, register_provider};

use crate::{
    client::{Api, Gates},
    config::{CloudConf, Environment, Files},
    instances::provider_id,
    reload::Reloader,
    view::{Current, Generation},
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
    current: Current,
    reloader: Reloader,
}

#[async_trait]
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

    fn scope(&self) -> String {
        self.current.scope()
    }

    fn generation(&self) -> u64 {
        self.current.generation()
    }

    fn watched_files(&self) -> Vec<PathBuf> {
        self.reloader.files()
    }

    async fn reload(&self) -> Result<Reload> {
        self.reloader.reload(&self.current).await
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&self.current)
    }

    fn event_component(&self) -> &'static str {
        "cloud-provider-openstack"
    }
}

fn validate(context: &BuildContext) -> Result<()> {
    let environment = Environment::of_process();
    let loaded = config::load(
        context.cloud_config.as_deref(),
        &environment,
        &mut Files::default(),
    )?;
    reload::warn_of(&loaded.warnings, &[]);
    Ok(())
}

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    // Again, since a mounted Secret may have changed. What is suspicious was said before.
    let (environment, mut files) = (Environment::of_process(), Files::default());
    let loaded = config::load(context.cloud_config.as_deref(), &environment, &mut files)?;
    let settings = &loaded.settings;
    let gates = Gates::new(settings.request_timeout, &settings.quotas, &context);
    let generation = Generation::default();
    let connection = settings.connection.clone();
    let api = Api::connect(connection, &gates, &context.user_agent, &generation).await?;
    Ok(Arc::new(OpenStack {
        current: Current::new(api, generation, settings, &context.metrics),
        reloader: Reloader::new(context, environment, gates, loaded, files),
    }))
}

fn config_reference() -> String {
    let keys = ccm_core::config::docs::markdown::<CloudConf>(2);
    format!("{}\n# Keys of the config file\n\n{keys}", include_str!("docs.md"))
}
