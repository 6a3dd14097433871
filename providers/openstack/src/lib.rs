//! The OpenStack provider.
#![doc = include_str!("docs.md")]

mod check;
mod client;
mod config;
mod error;
mod instances;
mod load_balancer;
mod reload;
mod routes;
mod view;

use std::{path::PathBuf, sync::Arc};

use ccm_core::{
    BuildContext, Cloud, Instances, Reload, Result, Routes, async_trait,
    config::{self as core_config, ConfigFiles, docs::markdown},
    load_balancer::LoadBalancers,
    plan::Engine,
    register_provider,
};

use crate::{
    client::{Api, Gates, Generation},
    config::CloudConf,
    instances::provider_id,
    load_balancer::{
        annotations::{INTRODUCTION, TABLE},
        apply::{Calls, Clients},
        part::Model,
        reads::Reads,
    },
    reload::Reloader,
    routes::RouterRoutes,
    view::Current,
};

/// The provider's name in the registry, on `--cloud-provider` and before `://` in provider IDs.
pub const NAME: &str = provider_id::SCHEME;

register_provider! {
    name: NAME,
    summary: "OpenStack: Keystone, Nova, Neutron and Octavia",
    build: build,
    validate: |context| core_config::validate(config::load(context, &mut ConfigFiles::default())),
    config_reference: || TABLE.reference(include_str!("docs.md"), INTRODUCTION, &markdown::<CloudConf>(2, config::is_live)),
    checker: Some(check::checker),
}

/// One OpenStack region, with one set of credentials.
#[derive(Debug)]
struct OpenStack {
    nodes: Nodes,
    reloader: Reloader,
    /// `None`: load balancers are switched off.
    engine: Option<Engine<Model, Calls<Nodes>>>,
    /// `None`: no router is configured.
    routes: Option<RouterRoutes>,
}

/// The nodes, which is what load balancers need of the cloud.
#[derive(Clone, Debug)]
struct Nodes(Arc<Current>);

impl Cloud for Nodes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn owns_bare(&self, id: &str) -> bool {
        provider_id::parse(id).is_ok()
    }

    fn scope(&self) -> String {
        self.0.scope()
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&*self.0)
    }
}

impl Clients for Nodes {
    fn clients(&self) -> (Api, Arc<Reads>) {
        self.0.clients()
    }
}

#[async_trait]
impl Cloud for OpenStack {
    ccm_core::cloud_of_nodes!(nodes);

    fn watched_files(&self) -> Vec<PathBuf> {
        self.reloader.files()
    }

    async fn reload(&self) -> Result<Reload> {
        self.reloader.reload(&self.nodes.0).await
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        self.engine.as_ref().map(|engine| engine as &dyn LoadBalancers)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        self.routes.as_ref().map(|routes| routes as &dyn Routes)
    }

    fn event_component(&self) -> &'static str {
        "cloud-provider-openstack"
    }
}

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    // The files are read again, since a mounted Secret may have changed. Their warnings were logged before.
    let mut files = ConfigFiles::default();
    let loaded = config::load(&context, &mut files)?;
    let settings = &loaded.value.settings;
    let gates = Gates::new(settings.request_timeout, &settings.quotas, &context);
    let generation = Generation::default();
    let connection = settings.connection.clone();
    let api = Api::connect(connection, &gates, &context.user_agent, &generation).await?;
    let current = Arc::new(Current::new(api, generation, &settings.instances, &context.metrics));
    let nodes = Nodes(Arc::clone(&current));
    let routes = RouterRoutes::new(current, &settings.routes, &context.fences.routes);
    let engine = settings.load_balancing.conf.enabled.then(|| {
        let settings = Arc::new(settings.load_balancing.clone());
        let calls = Calls::new(Arc::clone(&settings), nodes.clone(), &context.metrics);
        Engine::new(Model { settings }, Arc::new(calls), context.plan.clone())
    });
    Ok(Arc::new(OpenStack {
        nodes,
        engine,
        routes,
        reloader: Reloader::new(context, gates, loaded, files),
    }))
}
