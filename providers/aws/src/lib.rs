//! The AWS provider.
#![doc = include_str!("docs.md")]

mod check;
mod client;
mod cluster;
mod config;
mod error;
mod instances;
mod load_balancer;
mod routes;
mod site;
mod tagging;

use std::{path::PathBuf, sync::Arc, time::Duration};

use ccm_core::{
    BuildContext, Cloud, FlagDef, FlagKind, Instances, Reload, Result, Routes, async_trait,
    config::{ConfigFiles, Reloader, log_warnings},
    load_balancer::LoadBalancers,
    plan::Engine,
    register_provider,
};

use crate::{
    client::{Api, metadata::Metadata},
    config::{CloudConf, Config},
    instances::{
        AwsInstances,
        provider_id::{self, ProviderId},
    },
    load_balancer::{Calls, Model},
    routes::TableRoutes,
    site::Site,
};

/// The provider's name in the registry, on `--cloud-provider` and before `://` in provider IDs.
pub const NAME: &str = provider_id::SCHEME;

/// Replaces the flag of the framework, which has no effect. Upstream: `--allow-untagged-cloud`.
const ALLOW_UNTAGGED: FlagDef = FlagDef {
    name: "allow-untagged-cloud",
    kind: FlagKind::Bool,
    default: "false",
    help: "Allow a cluster without an id: every instance, subnet and security group then counts as the cluster's",
};

register_provider! {
    name: NAME,
    summary: "Amazon Web Services: EC2 and Elastic Load Balancing",
    build: build,
    validate: validate,
    config_reference: config_reference,
    checker: Some(check::checker),
    flags: tagging::FLAGS,
    controllers: &[tagging::DEF],
}

/// AWS as far as load balancers see it: its nodes.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    api: Api,
    site: Arc<Site>,
    instances: Arc<AwsInstances>,
}

#[async_trait]
impl Cloud for Nodes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn owns(&self, provider_id: &str) -> bool {
        match provider_id.split_once("://") {
            Some((scheme, _)) => scheme == NAME,
            None => provider_id::parse(provider_id).is_ok_and(|id| id != ProviderId::Foreign),
        }
    }

    fn scope(&self) -> String {
        self.site.to_string()
    }

    fn generation(&self) -> u64 {
        self.api.generation()
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&*self.instances)
    }
}

/// AWS in one region, with one set of credentials.
#[derive(Debug)]
pub(crate) struct Aws {
    nodes: Nodes,
    load_balancers: Engine<Model, Calls<Nodes>>,
    routes: TableRoutes,
    context: BuildContext,
    configs: Reloader<Config>,
}

#[async_trait]
impl Cloud for Aws {
    ccm_core::cloud_of_nodes!(nodes);

    fn watched_files(&self) -> Vec<PathBuf> {
        self.configs.files()
    }

    async fn reload(&self) -> Result<Reload> {
        let mut pending = self.configs.begin().await;
        let path = self.context.cloud_config.as_deref();
        let new = config::load(path, &self.context.environment, &mut pending.files)?;
        let changes = pending.last().changes(&new.value);
        let restart_needed = pending.start().changes(&new.value).restart;
        if changes.reconnect {
            self.nodes
                .api
                .reconnect(new.value.settings.connection.clone())
                .await?;
        }
        self.nodes.api.set_quotas(&new.value.settings.quotas);
        Ok(pending.commit(new, changes.live, restart_needed))
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(&self.load_balancers)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(&self.routes)
    }

    /// EC2 is eventually consistent: a new instance may be unknown for minutes.
    fn deletion_grace(&self) -> Duration {
        Duration::from_secs(300)
    }
}

fn validate(context: &BuildContext) -> Result<()> {
    let loaded = config::load(
        context.cloud_config.as_deref(),
        &context.environment,
        &mut ConfigFiles::default(),
    )?;
    log_warnings(&loaded.warnings, &[]);
    tagging::check(context)
}

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    build_with(context, client::ANSWER_TIMEOUT).await
}

/// The registered provider with another longest wait for an answer of AWS, so that tests of answers that never come are short.
///
/// # Errors
///
/// As of the registered provider.
#[doc(hidden)]
pub async fn build_with(context: BuildContext, answer_timeout: Duration) -> Result<Arc<dyn Cloud>> {
    // Again, since a mounted Secret may have changed. Warnings were logged before.
    let mut files = ConfigFiles::default();
    let loaded = config::load(context.cloud_config.as_deref(), &context.environment, &mut files)?;
    let settings = &loaded.value.settings;
    let mut connection = settings.connection.clone();
    connection.answer_timeout = answer_timeout;
    let metadata = Metadata::new(&connection)?;
    let region = match &connection.region {
        Some(region) => region.clone(),
        None => metadata.region().await?,
    };
    let api = Api::new(connection, region, &settings.quotas, &context).await?;
    let untagged = context.flags.boolean(&ALLOW_UNTAGGED);
    let site = Arc::new(Site::find(&api, &metadata, &settings.site, untagged).await?);
    let instances = AwsInstances::new(&api, &site, &settings.instances, &context.metrics);
    let routes = TableRoutes::new(&api, &site, settings.route_table.clone(), &context.fences.routes);
    let nodes = Nodes {
        instances: Arc::new(instances),
        api,
        site,
    };
    let balancing = Arc::new(settings.load_balancing.clone());
    let calls = Calls::new(
        &nodes.api,
        &nodes.site,
        Arc::clone(&balancing),
        nodes.clone(),
        &context.metrics,
    );
    let model = Model {
        settings: balancing,
        cluster: nodes.site.cluster.clone(),
    };
    Ok(Arc::new(Aws {
        load_balancers: Engine::new(model, Arc::new(calls), context.plan.clone()),
        nodes,
        routes,
        context,
        configs: Reloader::new(loaded, files),
    }))
}

fn config_reference() -> String {
    let keys = ccm_core::config::docs::markdown::<CloudConf>(2, config::is_live);
    let annotations = load_balancer::annotations::TABLE.markdown();
    format!(
        "{}\n# Annotations of Services\n\n{annotations}\n# Keys of the config file\n\n{keys}",
        include_str!("docs.md")
    )
}
