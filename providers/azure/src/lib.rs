//! The Azure provider.
#![doc = include_str!("docs.md")]

mod check;
mod client;
mod config;
mod config_secret;
mod error;
mod instances;
mod ipam;
mod kubernetes;
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
    BuildContext, Cloud, Instances, LoadBalancers, Reload, Result, async_trait,
    config::{self as core_config, ConfigFiles, Parsed, Reloader, docs::yaml_markdown},
    plan::Engine,
    provider_flags, register_provider,
    routes::Routes,
};

use crate::{
    client::Arm,
    config::{CloudConf, Settings},
    config_secret::ConfigSecret,
    instances::Machines,
    load_balancer::{BalancerCalls, BalancerSettings, Model, Namespaces, annotations::TABLE},
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
    /// Give nodes without podCIDRs some (node IPAM controller).
    ALLOCATE = "allocate-node-cidrs": Bool, "false";
    /// Source of podCIDRs: RangeAllocator divides --cluster-cidr. CloudAllocator is not supported.
    ALLOCATOR = "cidr-allocator-type": Text, "RangeAllocator";
    /// Networks of Services: one, or one of each family. They are left out of --cluster-cidr.
    SERVICE_RANGE = "service-cluster-ip-range": Text, "";
    /// Prefix length of podCIDRs in a cluster of one family. 0 is 24 for IPv4 and 64 for IPv6.
    MASK = "node-cidr-mask-size": Number(0), "0";
    /// Prefix length of IPv4 podCIDRs. 0 is 24.
    MASK_V4 = "node-cidr-mask-size-ipv4": Number(0), "0";
    /// Prefix length of IPv6 podCIDRs. 0 is 64.
    MASK_V6 = "node-cidr-mask-size-ipv6": Number(0), "0";
}

register_provider! {
    name: NAME,
    summary: "Azure: virtual machines, scale sets, load balancers and routes",
    build: build,
    validate: |context| match ConfigSecret::of(context) {
        // The Secret is read when the program connects.
        Some(_) => Ok(()),
        None => core_config::validate(config::load(context, &mut ConfigFiles::default())),
    },
    config_reference: || reference(),
    checker: Some(check::checker),
    flags: FLAGS,
    controllers: &[config_secret::CONTROLLER, ipam::DEF, out_of_service::CONTROLLER],
}

/// The reference for users.
fn reference() -> String {
    let introduction = "A boolean is true if it is `true` in any case; everything else is false. Annotations of one port are below \
                        [Load balancers](#load-balancers).";
    TABLE.reference(include_str!("docs.md"), introduction, &yaml_markdown::<CloudConf>(config::is_live))
}

/// The nodes of Azure.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    arm: Arm,
    scope: String,
    machines: Machines,
}

impl Cloud for Nodes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn scope(&self) -> String {
        self.scope.clone()
    }

    fn generation(&self) -> u64 {
        self.arm.generation()
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&self.machines)
    }
}

/// One subscription and region.
#[derive(Debug)]
struct Azure {
    nodes: Nodes,
    load_balancers: Engine<Model, BalancerCalls>,
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
    ccm_core::cloud_of_nodes!(nodes);

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
            self.nodes.arm.replace_credentials(&new.value).await?;
            self.nodes.machines.forget();
            // Only the content of a file changed.
            if applied.is_empty() {
                applied.push("aadClientCertPath".to_owned());
            }
        }
        Ok(pending.commit(new, applied, restart_needed))
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(&self.load_balancers)
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
    let nodes = Nodes {
        scope: scope(&arm, settings),
        machines: instances::finder(&arm, settings, &context.metrics),
        arm: arm.clone(),
    };
    let balancing = Arc::new(BalancerSettings::new(settings));
    let namespaces = Namespaces::of(&context, &balancing).await?;
    let fenced = arm.fenced_by(&context.fences.load_balancers);
    let calls = BalancerCalls::new(&nodes, fenced, &balancing, namespaces);
    Ok(Arc::new(Azure {
        load_balancers: Engine::new(Model { settings: balancing }, Arc::new(calls), context.plan.clone()),
        routes: TableRoutes::new(&arm, settings, &context.fences.routes),
        deletion_grace: Duration::from_secs(u64::from(settings.conf.not_found_grace_seconds)),
        nodes,
        secret,
        reloader: Reloader::new(loaded, files),
        context,
    }))
}
