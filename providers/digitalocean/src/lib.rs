//! The DigitalOcean provider.
#![doc = include_str!("docs.md")]

mod check;
mod client;
mod config;
mod endpoints;
mod error;
mod firewall;
mod instances;
mod load_balancer;
mod tags;

use std::{path::PathBuf, sync::Arc};

use ccm_core::{
    BuildContext, Cloud, Error, ErrorKind, Instances, Priority, Reload, Result, async_trait,
    config::{self as core_config, ConfigFiles, Reloader, Section, docs::yaml_markdown},
    load_balancer::LoadBalancers,
    plan::Engine,
    register_provider,
};

use crate::{
    client::{Api, Op, Region, accept_without_right},
    config::{CloudConf, Settings},
    instances::Droplets,
    load_balancer::{annotations, calls::Calls, model::Model},
};

/// The provider's name in the registry, on `--cloud-provider` and before `://` in provider IDs.
pub const NAME: &str = "digitalocean";

/// Keys that take effect while the program runs.
const LIVE: [&str; 2] = ["accessToken", "accessTokenFile"];

register_provider! {
    name: NAME,
    summary: "DigitalOcean: droplets, load balancers, firewall, tags",
    build: build,
    validate: |context| core_config::validate(config::load(context, &mut ConfigFiles::default())),
    config_reference: || annotations::TABLE.reference(include_str!("docs.md"), "", &yaml_markdown::<CloudConf>(|key| LIVE.contains(&key))),
    checker: Some(check::checker),
    // Upstream sets --authentication-skip-lookup.
    client_ca_is_optional: true,
    controllers: &[endpoints::CONTROLLER, firewall::CONTROLLER, tags::CONTROLLER],
}

/// One account and region.
#[derive(Debug)]
struct DigitalOcean {
    nodes: Nodes,
    settings: Arc<Settings>,
    engine: Engine<Model, Calls>,
    context: BuildContext,
    reloader: Reloader<Settings>,
}

/// The part of the cloud that load balancers need: its droplets.
#[derive(Clone, Debug)]
struct Nodes {
    api: Api,
    region: String,
    droplets: Droplets,
}

impl Cloud for Nodes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn scope(&self) -> String {
        format!("{}, region {:?}", self.api.url(), self.region)
    }

    fn generation(&self) -> u64 {
        self.api.generation()
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&self.droplets)
    }
}

#[async_trait]
impl Cloud for DigitalOcean {
    ccm_core::cloud_of_nodes!(nodes);

    fn watched_files(&self) -> Vec<PathBuf> {
        self.reloader.files()
    }

    async fn reload(&self) -> Result<Reload> {
        let mut pending = self.reloader.begin().await;
        let new = config::load(&self.context, &mut pending.files)?;
        let is_replaced = !pending.last().has_token_of(&new.value);
        if is_replaced {
            self.nodes.api.replace_token(&new.value.token).await?;
        }
        let restart_needed = pending
            .start()
            .conf
            .changed_keys(&new.value.conf)
            .into_iter()
            .filter(|key| !LIVE.contains(key))
            .map(str::to_owned)
            .collect();
        let applied = if is_replaced {
            vec!["accessToken".to_owned()]
        } else {
            Vec::new()
        };
        Ok(pending.commit(new, applied, restart_needed))
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(&self.engine)
    }
}

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    Ok(Arc::new(connect(context).await?))
}

async fn connect(context: BuildContext) -> Result<DigitalOcean> {
    // Read again, because a mounted Secret may have changed. Warnings were already logged.
    let mut files = ConfigFiles::default();
    let loaded = config::load(&context, &mut files)?;
    let settings = Arc::new(loaded.value.clone());
    let api = Api::new(&settings, &context)?;
    let region = region(&api, &settings).await?;
    let nodes = Nodes {
        droplets: instances::finder(&api, &settings, &context.metrics),
        region: region.clone(),
        api,
    };
    let calls = Calls::new(nodes.clone(), Arc::clone(&settings), &context.metrics);
    let model = Model {
        settings: Arc::clone(&settings),
        region,
    };
    Ok(DigitalOcean {
        engine: Engine::new(model, Arc::new(calls), context.plan.clone()),
        reloader: Reloader::new(loaded, files),
        nodes,
        settings,
        context,
    })
}

/// The region of load balancers: the configured region, which must exist, else the region of this droplet.
async fn region(api: &Api, settings: &Settings) -> Result<String> {
    let Some(region) = &settings.region else {
        let region = api.metadata_region(&settings.metadata_url).await?;
        api.account(Priority::User).await.or_else(accept_without_right)?;
        return Ok(region);
    };
    check_region(api, region).await.or_else(accept_without_right)?;
    Ok(region.clone())
}

/// Checks that a region exists.
async fn check_region(api: &Api, region: &str) -> Result<()> {
    let regions: Vec<Region> = api.list(Op::RegionList, &[], Priority::User).await?;
    let known: Vec<_> = regions.iter().map(|region| region.slug.as_str()).collect();
    if known.contains(&region) {
        return Ok(());
    }
    let known = known.join(", ");
    let text = format!("REGION: region {region:?} not found; the API knows {known}");
    Err(Error::new(ErrorKind::InvalidConfig, text))
}
