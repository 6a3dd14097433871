//! The Azure provider.
#![doc = include_str!("docs.md")]

mod check;
mod client;
mod config;
mod config_secret;
mod error;
mod instances;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the calls of load balancers are not written yet")
)]
mod load_balancer;
mod out_of_service;
mod routes;
mod tags;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    BuildContext, Cloud, Instances, Reload, Result, async_trait,
    config::{self as core_config, ConfigFiles, Parsed, Reloader, docs::yaml_markdown},
    provider_flags, register_provider,
    routes::Routes,
};

use crate::{
    client::Arm,
    config::{CloudConf, Settings},
    config_secret::ConfigSecret,
    instances::Machines,
    routes::TableRoutes,
};

/// The provider's name in the registry, on `--cloud-provider` and before `://` in provider IDs.
pub const NAME: &str = "azure";

provider_flags! {
    /// The flags of the provider.
    pub(crate) const FLAGS;

    /// Read the cloud config from a Secret if --cloud-config is not set, and again when it changes. A file is always read again when
    /// it changes.
    DYNAMIC_RELOADING = "enable-dynamic-reloading": Bool, "false";
    /// The name of the Secret with the cloud config.
    SECRET_NAME = "cloud-config-secret-name": Text, "azure-cloud-provider";
    /// The namespace of the Secret with the cloud config.
    SECRET_NAMESPACE = "cloud-config-secret-namespace": Text, "kube-system";
    /// The key of the cloud config in the Secret.
    SECRET_KEY = "cloud-config-key": Text, "cloud-config";
    /// Add the taint node.kubernetes.io/out-of-service to nodes whose machines are switched off, so that their Pods are deleted and their
    /// volumes detached at once. Such a machine must not be switched on again before its volumes are detached.
    OUT_OF_SERVICE = "azure-out-of-service-taint": Bool, "false";
}

register_provider! {
    name: NAME,
    summary: "Azure: virtual machines, scale sets, routes; no load balancers yet",
    build: build,
    validate: |context| match ConfigSecret::of(context) {
        // The Secret is read when the program connects.
        Some(_) => Ok(()),
        None => core_config::validate(config::load(context, &mut ConfigFiles::default())),
    },
    config_reference: || reference(),
    checker: Some(check::checker),
    flags: FLAGS,
    controllers: &[config_secret::CONTROLLER, out_of_service::CONTROLLER],
}

/// The reference of the config file.
fn reference() -> String {
    format!("{}\n# Keys\n\n{}", include_str!("docs.md"), yaml_markdown::<CloudConf>(config::is_live))
}

/// One subscription and region.
#[derive(Debug)]
struct Azure {
    arm: Arm,
    scope: String,
    machines: Machines,
    routes: TableRoutes,
    deletion_grace: Duration,
    /// The Secret with the config, if it is not a file.
    secret: Option<ConfigSecret>,
    context: BuildContext,
    reloader: Reloader<Settings>,
}

/// The endpoint, subscription and resource group.
fn scope(arm: &Arm, settings: &Settings) -> String {
    format!(
        "{}, subscription {}, resource group {}, region {}",
        arm.url(),
        settings.subscription,
        settings.resource_group,
        settings.location
    )
}

#[async_trait]
impl Cloud for Azure {
    fn name(&self) -> &'static str {
        NAME
    }

    fn scope(&self) -> String {
        self.scope.clone()
    }

    fn generation(&self) -> u64 {
        self.arm.generation()
    }

    fn deletion_grace(&self) -> Duration {
        self.deletion_grace
    }

    fn watched_files(&self) -> Vec<PathBuf> {
        self.reloader.files()
    }

    async fn reload(&self) -> Result<Reload> {
        let mut pending = self.reloader.begin().await;
        let new = load(&self.context, self.secret.as_ref(), &mut pending.files).await?;
        let (mut applied, _) = config::changed_keys(&pending.last().conf, &new.value.conf);
        let (_, restart_needed) = config::changed_keys(&pending.start().conf, &new.value.conf);
        if !pending.last().has_credentials_of(&new.value) {
            self.arm.replace_credentials(&new.value).await?;
            self.machines.forget();
            // Only the content of a file changed.
            if applied.is_empty() {
                applied.push("aadClientCertPath".to_owned());
            }
        }
        Ok(pending.commit(new, applied, restart_needed))
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&self.machines)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(&self.routes)
    }
}

/// Reads the config, from its file or Secret.
async fn load(
    context: &BuildContext,
    secret: Option<&ConfigSecret>,
    files: &mut ConfigFiles,
) -> Result<Parsed<Settings>> {
    let Some(secret) = secret else {
        return Ok(config::load(context, files)?);
    };
    let content = secret.read(context).await?;
    Ok(config::load_content(&content, Path::new(&secret.place()), context, files)?)
}

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    // Read again, because a mounted Secret may have changed. Warnings were already logged.
    let mut files = ConfigFiles::default();
    let secret = ConfigSecret::of(&context);
    let loaded = load(&context, secret.as_ref(), &mut files).await?;
    let settings = &loaded.value;
    let arm = Arm::connect(settings, &context).await?;
    Ok(Arc::new(Azure {
        scope: scope(&arm, settings),
        machines: instances::finder(&arm, settings, &context.metrics),
        routes: TableRoutes::new(&arm, settings, &context.fences.routes),
        deletion_grace: Duration::from_secs(u64::from(settings.conf.not_found_grace_seconds)),
        secret,
        arm,
        reloader: Reloader::new(loaded, files),
        context,
    }))
}
