//! Where the cluster is: region, VPC, cluster id. Found once, at the start.

use std::fmt;

use ccm_core::{Error, ErrorKind, Priority, Result};

use crate::{
    client::{Api, accepted, ec2::Instance, metadata::Metadata},
    cluster::Cluster,
    config::SiteSettings,
};

/// Where the cluster is.
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

/// As events and the log call it.
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
    /// Finds it out: from the config, or from the instance that this program runs on. In both cases AWS is asked, so that
    /// the credentials are known to be good.
    ///
    /// # Errors
    ///
    /// AWS cannot be reached or refuses, or there is no cluster id.
    pub(crate) async fn find(
        api: &Api,
        metadata: &Metadata,
        settings: &SiteSettings,
        untagged: bool,
    ) -> Result<Self> {
        let mut site = Self {
            region: api.region().to_owned(),
            subnet: settings.subnet.clone(),
            cluster: Cluster {
                id: settings.cluster_id.clone().unwrap_or_default(),
                legacy: settings.legacy_tag,
            },
            ..Self::default()
        };
        if let (Some(vpc), Some(_)) = (&settings.vpc, &settings.cluster_id) {
            site.vpc.clone_from(vpc);
            return accepted(api.at(Priority::User).zones().await).map(|()| site);
        }
        let id = metadata.instance_id().await?;
        let own = own_instance(api, &id).await?;
        site.vpc = settings.vpc.clone().unwrap_or_else(|| own.vpc.clone());
        if settings.vpc.is_none() && site.subnet.is_none() {
            site.subnet = Some(own.subnet.clone()).filter(|subnet| !subnet.is_empty());
        }
        if settings.cluster_id.is_none() {
            site.cluster = Cluster::of_instance(&own.tags)?;
        }
        if site.cluster.id.is_empty() && !untagged {
            let text = format!(
                "there is no cluster id: tag instance {id} with kubernetes.io/cluster/<id>, set [Global] KubernetesClusterID, or \
                 allow that with --allow-untagged-cloud"
            );
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        if site.vpc.is_empty() {
            let text = format!("instance {id} is in no VPC; set [Global] VPC");
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        Ok(site)
    }
}

/// The instance that this program runs on.
async fn own_instance(api: &Api, id: &str) -> Result<Instance> {
    let found = match api.at(Priority::User).instances_by_id(&[id.to_owned()]).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        found => found?,
    };
    found.into_iter().next().ok_or_else(|| {
        let text = format!(
            "EC2 does not know instance {id}, which this program runs on; is the region {} right",
            api.region()
        );
        Error::new(ErrorKind::NotFound, text)
    })
}
