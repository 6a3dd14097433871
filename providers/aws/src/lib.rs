//! The AWS provider.
#![doc = include_str!("docs.md")]

mod check;
mod client;
mod config;
mod error;
mod instances;
mod load_balancer;
mod routes;
mod site;
mod tagging;

use std::{path::PathBuf, sync::Arc, time::Duration};

use ccm_core::{
    BuildContext, Cloud, Instances, Reload, Result, Routes, async_trait,
    config::{self as core_config, ConfigFiles, Reloader, docs::markdown},
    load_balancer::LoadBalancers,
    plan::Engine,
    provider_flags, register_provider,
};

use crate::{
    client::Api,
    config::{CloudConf, Config},
    instances::AwsInstances,
    instances::provider_id::{self, ProviderId},
    load_balancer::{BalancerCalls, Model, annotations::TABLE},
    routes::TableRoutes,
    site::Site,
};

/// The provider's name in the registry, on `--cloud-provider` and before `://` in provider IDs.
pub const NAME: &str = provider_id::SCHEME;

provider_flags! {
    /// `--allow-untagged-cloud`, which replaces the flag of the framework without effect, and those of the tagging controller.
    pub(crate) const FLAGS;

    /// Allow a cluster without an id: every instance, subnet and security group then counts as the cluster's.
    ALLOW_UNTAGGED = "allow-untagged-cloud": Bool, "false";
    /// Tags for the tagging controller: one key=value, or several separated by commas; may be repeated.
    TAGS = "tags": Array("TAGS"), "";
    /// Resources that the tagging controller tags; only instance is supported.
    RESOURCES = "resources": Array("RESOURCE"), "";
    /// Nodes per second that the tagging controller handles. 0 means no limit, as does a burst limit of 0.
    RATE = "tagging-controller-rate-limit": Float, "0";
    /// Burst of nodes that the tagging controller handles. 0 means no limit, as does a rate limit of 0.
    BURST = "tagging-controller-burst-limit": Number(0), "0";
    /// Number of nodes that the tagging controller labels at the same time.
    SYNCS = "tagging-controller-concurrent-node-syncs": Number(1), "1";
    /// Has no effect: instances are always tagged in batches of up to 1000.
    BATCHING = "tagging-controller-enable-batching": Bool, "false";
}

register_provider! {
    name: NAME,
    summary: "Amazon Web Services: EC2 and Elastic Load Balancing",
    build: build,
    validate: |context| core_config::validate(config::load(context, &mut ConfigFiles::default())),
    config_reference: || TABLE.reference(include_str!("docs.md"), "", &markdown::<CloudConf>(2, config::is_live)),
    checker: Some(check::checker),
    flags: FLAGS,
    controllers: &[tagging::DEF],
}

/// The nodes of AWS, for load balancers.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    api: Api,
    site: Arc<Site>,
    instances: AwsInstances,
}

impl Cloud for Nodes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn owns_bare(&self, id: &str) -> bool {
        provider_id::parse(id).is_ok_and(|id| id != ProviderId::Foreign)
    }

    fn scope(&self) -> String {
        self.site.to_string()
    }

    fn generation(&self) -> u64 {
        self.api.generation()
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&self.instances)
    }
}

/// AWS in one region, with one set of credentials.
#[derive(Debug)]
pub(crate) struct Aws {
    nodes: Nodes,
    load_balancers: Engine<Model, BalancerCalls>,
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
        let new = config::load(&self.context, &mut pending.files)?;
        let changes = pending.last().changes(&new.value);
        let restart_needed = pending.start().changes(&new.value).restart;
        let (Nodes { api, instances, .. }, config) = (&self.nodes, &new.value);
        if changes.reconnect {
            api.reconnect(config.connection.clone()).await?;
            instances.forget();
        }
        api.set_quotas(&config.conf.quota);
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

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    // Again, since a mounted Secret may have changed. Warnings were logged before.
    let mut files = ConfigFiles::default();
    let loaded = config::load(&context, &mut files)?;
    let config = &loaded.value;
    let api = Api::connect(config.connection.clone(), &config.conf.quota, &context).await?;
    let site = Arc::new(Site::find(&api, config, &context.flags).await?);
    let instances = AwsInstances::new(&api, &site, config, &context.metrics);
    let routes = TableRoutes::new(&api, &site, config.route_table.clone(), &context.fences.routes);
    let nodes = Nodes { api, site, instances };
    let settings = Arc::new(config.load_balancing.clone());
    let calls = BalancerCalls::new(&nodes, Arc::clone(&settings), &context.metrics);
    let cluster = nodes.site.cluster.clone();
    let model = Model { settings, cluster };
    Ok(Arc::new(Aws {
        load_balancers: Engine::new(model, Arc::new(calls), context.plan.clone()),
        nodes,
        routes,
        context,
        configs: Reloader::new(loaded, files),
    }))
}
