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
    config::{ConfigFiles, Reloader, Section, docs::yaml_markdown, log_warnings},
    load_balancer::LoadBalancers,
    plan::Engine,
    register_provider,
};
use tracing::warn;

use crate::{
    client::{Api, Op, Region},
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
    validate: validate,
    config_reference: config_reference,
    checker: Some(check::checker),
    controllers: &[endpoints::CONTROLLER, firewall::CONTROLLER, tags::CONTROLLER],
}

/// One account and region.
#[derive(Debug)]
struct DigitalOcean {
    view: Arc<View>,
    settings: Arc<Settings>,
    engine: Engine<Model, Calls>,
    context: BuildContext,
    reloader: Reloader<Settings>,
}

/// The droplets of one account: enough to see whether nodes exist.
#[derive(Debug)]
struct View {
    api: Api,
    region: String,
    droplets: Droplets,
}

impl Cloud for View {
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
    fn name(&self) -> &'static str {
        NAME
    }

    fn scope(&self) -> String {
        self.view.scope()
    }

    fn generation(&self) -> u64 {
        self.view.generation()
    }

    fn watched_files(&self) -> Vec<PathBuf> {
        self.reloader.files()
    }

    async fn reload(&self) -> Result<Reload> {
        let mut pending = self.reloader.begin().await;
        let new = config::load(&self.context, &mut pending.files)?;
        let is_replaced = !pending.last().has_token_of(&new.value);
        if is_replaced {
            self.view.api.replace_token(&new.value.token).await?;
        }
        let changed = pending.start().conf.changed_keys(&new.value.conf);
        let changed = changed.into_iter().filter(|key| !LIVE.contains(key));
        let restart_needed = changed.map(str::to_owned).collect();
        let applied = is_replaced.then(|| "accessToken".to_owned());
        Ok(pending.commit(new, applied.into_iter().collect(), restart_needed))
    }

    fn instances(&self) -> Option<&dyn Instances> {
        self.view.instances()
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(&self.engine)
    }
}

fn validate(context: &BuildContext) -> Result<()> {
    let loaded = config::load(context, &mut ConfigFiles::default())?;
    log_warnings(&loaded.warnings, &[]);
    Ok(())
}

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    // Again, since a mounted Secret may have changed. Warnings were logged before.
    let mut files = ConfigFiles::default();
    let loaded = config::load(&context, &mut files)?;
    let settings = Arc::new(loaded.value.clone());
    let api = Api::new(&settings, &context)?;
    let region = region(&api, &settings).await?;
    let view = Arc::new(View {
        droplets: instances::finder(&api, &settings, &context.metrics),
        region: region.clone(),
        api: api.clone(),
    });
    let calls = Calls::new(&api, Arc::clone(&view), &context.metrics);
    let model = Model {
        settings: Arc::clone(&settings),
        region,
    };
    Ok(Arc::new(DigitalOcean {
        engine: Engine::new(model, Arc::new(calls), context.plan.clone()),
        reloader: Reloader::new(loaded, files),
        view,
        settings,
        context,
    }))
}

/// The region of load balancers: the configured one, if the API knows it, else that of this droplet.
async fn region(api: &Api, settings: &Settings) -> Result<String> {
    let Some(region) = &settings.region else {
        let region = api.metadata_region(&settings.metadata_url).await?;
        api.account(Priority::User).await.or_else(accept_without_right)?;
        return Ok(region);
    };
    check_region(api, region).await.or_else(accept_without_right)?;
    Ok(region.clone())
}

/// Checks that the API knows a region.
async fn check_region(api: &Api, wanted: &str) -> Result<()> {
    let regions: Vec<Region> = api.list(Op::RegionList, &[], Priority::User).await?;
    let known: Vec<_> = regions.iter().map(|region| region.slug.as_str()).collect();
    if known.contains(&wanted) {
        return Ok(());
    }
    let text = format!(
        "REGION: there is no region {wanted:?}; known are {}",
        known.join(", ")
    );
    Err(Error::new(ErrorKind::InvalidConfig, text))
}

/// A token without the right to read something that is only checked.
fn accept_without_right(error: Error) -> Result<()> {
    if error.kind() != ErrorKind::PermissionDenied {
        return Err(error);
    }
    warn!(
        error = error.report(),
        "The token may not read what was to be checked"
    );
    Ok(())
}

fn config_reference() -> String {
    format!(
        "{}\n# Annotations of Services\n\n{}\n# Keys of the config file\n\n{}",
        include_str!("docs.md"),
        annotations::TABLE.markdown(),
        yaml_markdown::<CloudConf>(|key| LIVE.contains(&key))
    )
}
