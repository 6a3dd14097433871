//! The location of the cluster: region and VPC.

use std::fmt;

use ccm_core::{Error, ErrorKind, FlagValues, Priority, Result, error::accept};

use crate::{
    ALLOW_UNTAGGED,
    client::{Api, accepted, ec2::Instance, metadata::INSTANCE_ID},
    cluster::Cluster,
    config::Config,
};

/// The location of the cluster. Determined once, at the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Site {
    /// The region.
    pub(crate) region: String,
    /// The VPC.
    pub(crate) vpc: String,
    /// The subnet for load balancers if no other qualifies.
    pub(crate) subnet: Option<String>,
    /// The cluster's id and tags.
    pub(crate) cluster: Cluster,
}

/// The text in Events and the log.
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {}, VPC {}", self.region, self.vpc)?;
        match self.cluster.id.as_str() {
            "" => f.write_str(", no cluster id"),
            id => write!(f, ", cluster {id:?}"),
        }
    }
}

impl Site {
    /// Determines region, VPC and cluster from the config, or from the instance that this program runs on. In both cases AWS
    /// gets a request, which proves that it accepts the credentials.
    ///
    /// # Errors
    ///
    /// AWS cannot be reached or refuses, or the cluster id is unknown.
    pub(crate) async fn find(api: &Api, config: &Config, flags: &FlagValues) -> Result<Self> {
        let mut site = Self {
            region: api.region().to_owned(),
            subnet: config.subnet.clone(),
            cluster: config.cluster.clone(),
            vpc: config.vpc.clone().unwrap_or_default(),
        };
        if !site.vpc.is_empty() && !site.cluster.id.is_empty() {
            return accepted(api.at(Priority::User).zones().await).map(|()| site);
        }
        let id = api.metadata().get(INSTANCE_ID).await?;
        let own = own_instance(api, &id).await?;
        if site.vpc.is_empty() {
            site.vpc = own.vpc;
            let subnet = Some(own.subnet).filter(|subnet| !subnet.is_empty());
            site.subnet = site.subnet.or(subnet);
        }
        if site.cluster.id.is_empty() {
            site.cluster = Cluster::of_instance(&own.tags)?;
        }
        let invalid = |text| Err(Error::new(ErrorKind::InvalidConfig, text));
        if site.cluster.id.is_empty() && !flags.boolean(&ALLOW_UNTAGGED) {
            let fix = "set [Global] KubernetesClusterID, or set --allow-untagged-cloud";
            let missing = format!("cluster id not found: tag instance {id} with kubernetes.io/cluster/<id>");
            return invalid(format!("{missing}, {fix}"));
        }
        if site.vpc.is_empty() {
            return invalid(format!("instance {id} is not in a VPC; set [Global] VPC"));
        }
        Ok(site)
    }
}

/// The instance that this program runs on.
async fn own_instance(api: &Api, id: &str) -> Result<Instance> {
    let found = api.at(Priority::User).instances_by_id(&[id.to_owned()]).await;
    let found = accept(found, ErrorKind::NotFound, Vec::new())?.pop();
    found.ok_or_else(|| {
        let unknown = format!("instance {id}, which this program runs on, was not found");
        let text = format!("{unknown}; check region {}", api.region());
        Error::new(ErrorKind::NotFound, text)
    })
}
