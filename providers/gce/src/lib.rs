//! The GCE provider.
#![doc = include_str!("docs.md")]

mod check;
mod client;
mod cluster_id;
mod config;
mod error;
mod instances;
mod ipam;
mod load_balancer;
mod routes;
mod site;

use std::{path::PathBuf, sync::Arc};

use ccm_core::{
    BuildContext, Cloud, Instances, LoadBalancers, Reload, Result, Routes, async_trait,
    cluster_id::ClusterIdCell,
    config::{self as core_config, ConfigFiles, Reloader, docs::markdown},
    plan::Engine,
    provider_flags, register_provider,
};

use crate::{
    client::Api,
    config::{CloudConf, Config},
    instances::{GceInstances, provider_id},
    load_balancer::{BalancerCalls, Model, annotations::TABLE, settings::CLASS_CONTROLLER},
    routes::NetworkRoutes,
    site::Site,
};

/// The provider's name in the registry, on `--cloud-provider` and before `://` in provider IDs.
pub const NAME: &str = provider_id::SCHEME;

provider_flags! {
    /// The flags of the provider.
    pub(crate) const FLAGS;

    /// Read the instance of a node in the project that its provider ID names. Without it, a node of another project is reported
    /// and left unchanged.
    MULTI_PROJECT = "enable-multi-project": Bool, "false";
    /// Give nodes without podCIDRs some (node IPAM controller).
    ALLOCATE = "allocate-node-cidrs": Bool, "false";
    /// Source of podCIDRs: RangeAllocator divides --cluster-cidr, CloudAllocator reads the alias ranges of instances.
    ALLOCATOR = "cidr-allocator-type": Text, "RangeAllocator";
    /// Networks of Services: one, or one of each family. They are left out of --cluster-cidr, and with CloudAllocator their families are those
    /// of podCIDRs.
    SERVICE_RANGE = "service-cluster-ip-range": Text, "";
    /// Prefix length of podCIDRs in a cluster of one family. 0 is 24 for IPv4 and 64 for IPv6.
    MASK = "node-cidr-mask-size": Number(0), "0";
    /// Prefix length of IPv4 podCIDRs. 0 is 24.
    MASK_V4 = "node-cidr-mask-size-ipv4": Number(0), "0";
    /// Prefix length of IPv6 podCIDRs. 0 is 64.
    MASK_V6 = "node-cidr-mask-size-ipv6": Number(0), "0";
    /// Networks from which Google checks the health of nodes. Firewall rules for health checks admit them.
    CHECK_RANGES = "cloud-provider-gce-lb-src-cidrs": Text, "130.211.0.0/22,209.85.152.0/22,209.85.204.0/22,35.191.0.0/16";
    /// Has no effect: only the GKE ingress controller needs firewall rules for HTTP load balancers.
    PROXY_RANGES = "cloud-provider-gce-l7lb-src-cidrs": Text, "130.211.0.0/22,35.191.0.0/16";
    /// Leave external Services without a load balancer class to the GKE ingress controller, unless this program serves them already.
    LEAVE_EXTERNAL = "enable-rbs-default-l4-netlb": Bool, "false";
    /// Write the names of target pools and backend services into annotations of Services.
    ANNOTATE = "enable-l4-lb-annotations": Bool, "false";
    /// Create a firewall rule for each external load balancer that denies all traffic to it which no other rule admits. Needs
    /// --enable-l4-deny-firewall-rollback-cleanup.
    DENY = "enable-l4-deny-firewall": Bool, "false";
    /// Delete the firewall rules of --enable-l4-deny-firewall when that is not set.
    DENY_CLEANUP = "enable-l4-deny-firewall-rollback-cleanup": Bool, "false";
    /// Has no effect: objects that Services share are always locked one by one.
    FINE_LOCK = "enable-l4-ilb-fine-grained-lock": Bool, "false";
    /// Has no effect: multi-tenancy of Kubernetes Engine is not supported.
    TENANTS = "enable-gke-tenant-controller": Bool, "false";
    /// Not supported.
    MULTI_NETWORKING = "enable-multi-networking": Bool, "false";
    /// Not supported.
    MULTI_SUBNET = "enable-multi-subnet-cluster": Bool, "false";
}

register_provider! {
    name: NAME,
    summary: "Google Compute Engine: instances, load balancers and routes",
    build: build,
    validate: |context| core_config::validate(config::load(context, &mut ConfigFiles::default())),
    config_reference: || TABLE.reference(include_str!("docs.md"), "", &markdown::<CloudConf>(2, config::is_live)),
    checker: Some(check::checker),
    flags: FLAGS,
    controllers: &[ipam::DEF],
    class_controller: Some(CLASS_CONTROLLER),
}

/// The nodes of GCE.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    pub(crate) api: Api,
    pub(crate) site: Arc<Site>,
    instances: GceInstances,
}

impl Cloud for Nodes {
    fn name(&self) -> &'static str {
        NAME
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

/// One project and region, with one set of credentials.
#[derive(Debug)]
struct Gce {
    nodes: Nodes,
    load_balancers: Engine<Model, BalancerCalls>,
    routes: NetworkRoutes,
    context: BuildContext,
    configs: Reloader<Config>,
    cluster_id: ClusterIdCell,
}

#[async_trait]
impl Cloud for Gce {
    ccm_core::cloud_of_nodes!(nodes);

    fn watched_files(&self) -> Vec<PathBuf> {
        self.configs.files()
    }

    async fn reload(&self) -> Result<Reload> {
        let mut pending = self.configs.begin().await;
        let new = config::load(&self.context, &mut pending.files)?;
        let changes = pending.last().changes(&new.value);
        let restart_needed = pending.start().changes(&new.value).restart;
        let Nodes { api, site, instances } = &self.nodes;
        if changes.reconnect {
            api.reconnect(new.value.connection.clone(), &site.project).await?;
            instances.forget();
        }
        api.set_quotas(&new.value.conf.quota);
        Ok(pending.commit(new, changes.live, restart_needed))
    }

    fn cluster_id(&self) -> Option<&ClusterIdCell> {
        Some(&self.cluster_id)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(&self.load_balancers)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(&self.routes)
    }
}

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    // Again, since a mounted Secret may have changed. Warnings were logged before.
    let mut files = ConfigFiles::default();
    let loaded = config::load(&context, &mut files)?;
    let config = &loaded.value;
    let api = Api::connect(config.connection.clone(), &config.conf.quota, &context).await?;
    let site = Arc::new(Site::find(&api, config, &context.metrics).await?);
    let multi_project = context.flags.boolean(&MULTI_PROJECT);
    let instances = GceInstances::new(&api, &site, config.stack, multi_project, &context.metrics);
    let routes = NetworkRoutes::new(&api, &site, &context.cluster_name, &context.fences.routes);
    let cluster_id = ClusterIdCell::new(cluster_id::SOURCE);
    let nodes = Nodes { api, site, instances };
    let settings = Arc::new(config.load_balancing.at(&nodes.site));
    let calls =
        BalancerCalls::new(&nodes, &settings, &cluster_id, config.subnetwork.clone(), &context.metrics);
    Ok(Arc::new(Gce {
        load_balancers: Engine::new(Model { settings }, Arc::new(calls), context.plan.clone()),
        nodes,
        routes,
        context,
        configs: Reloader::new(loaded, files),
        cluster_id,
    }))
}
