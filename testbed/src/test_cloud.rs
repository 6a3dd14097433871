//! The common interface of the clouds of whole-program tests, limited to the needs of scenarios.

mod aws;
mod azure;
mod digitalocean;
mod gce;
mod openstack;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

pub use aws::AwsCloud;
pub use azure::AzureCloud;
pub use digitalocean::DigitalOceanCloud;
pub use gce::GceCloud;
pub use openstack::{OpenStackCloud, service as openstack_service};

use crate::picture::Picture;
use crate::sweep::Party;

/// A cloud whose machines and load balancers can be changed and read independently of the program under test.
#[async_trait]
pub trait TestCloud: Debug + Send + Sync {
    /// The value of `--cloud-provider`.
    fn provider(&self) -> &'static str;

    /// The program's config file, with all features enabled.
    fn config(&self) -> String;

    /// Environment variables of the program.
    fn environment(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Texts that must not appear in a log.
    fn secrets(&self) -> Vec<String>;

    /// The party that counts, stops and fails the program's calls.
    fn party(&self) -> &dyn Party;

    /// Creates a machine with this display name.
    async fn create_machine(&self, name: &str) -> Result<Machine>;

    /// Creates only machines of this kind from now on. `uniform:20`: in 20 scale sets.
    ///
    /// # Errors
    /// The cloud does not have it.
    fn choose_machines(&self, kind: &str) -> Result<()> {
        bail!("{} has no kinds of machines, not {kind:?} either", self.provider())
    }

    /// Deletes a machine. Reads of its ID then fail with "not found".
    async fn delete_machine(&self, machine: &Machine) -> Result<()>;

    /// The load balancers with all their objects.
    async fn picture(&self, words: &[(String, String)]) -> Result<Picture>;

    /// Deletes everything that [`Self::picture`] shows.
    async fn clear(&self) -> Result<()>;

    /// Number of successful creates of each kind of object since the party forgot its calls. Only kinds whose duplicates would
    /// otherwise be found only by a sweep.
    fn created(&self) -> Vec<(&'static str, usize)>;

    /// Why the Service's status and annotations do not name the only load balancer, if they do not.
    async fn unserved(&self, service: &Service) -> Result<Option<String>>;

    /// The annotations and features of Services for this cloud.
    fn service(&self) -> ServiceShape {
        ServiceShape::default()
    }

    /// Files below `deploy/` with rights in the cluster that the program needs only on this cloud.
    fn roles(&self) -> &'static [&'static str] {
        &[]
    }

    /// The program's calls since the start or since the party forgot its calls, by operation.
    fn calls(&self) -> BTreeMap<String, u64>;

    /// Whether calls of this operation change something.
    fn is_write(&self, operation: &str) -> bool;

    /// Adds this latency to every call.
    fn set_latency(&self, latency: Duration);

    /// From now on, changes last as long and answers are as large as in the real cloud. For demo and benchmarks.
    async fn imitate_real_size(&self) -> Result<()> {
        Ok(())
    }

    /// The load balancers and their members.
    async fn load_balancers(&self) -> Result<LoadBalancers>;

    /// The routes to Pods, if the cloud has routes.
    fn routes(&self) -> Option<&dyn TestRoutes> {
        None
    }
}

/// The routes of a cloud, accessed independently of the program under test. A route has a destination network and a machine.
#[async_trait]
pub trait TestRoutes: Send + Sync {
    /// Creates the route table. Returns the lines of the program's config for it.
    async fn create_table(&self) -> Result<String>;

    /// Replaces all routes by these. No machine forwards packets for Pods, except that the guest forwards for this network and
    /// for a network outside of the cluster.
    async fn reset(
        &self,
        routes: &[(&str, &Machine)],
        machines: &[Machine],
        guest: (&str, &Machine),
    ) -> Result<()>;

    /// The routes: destination, and the ID of the machine or other target.
    async fn table(&self) -> Result<BTreeSet<(String, String)>>;

    /// Why the machine drops packets for this network, if it does.
    async fn drops(&self, machine: &Machine, network: &str) -> Result<Option<String>>;

    /// How the guest differs from its state without the cluster's network.
    async fn changed(&self, guest: &Machine) -> Result<Option<String>>;
}

/// The annotations and features of Services for one cloud.
#[derive(Clone, Debug, Default)]
pub struct ServiceShape {
    /// Annotations of a new Service.
    pub annotations: Value,
    /// Annotations that change much of the load balancer in place.
    pub changed: Value,
    /// Whether the cloud supports `sessionAffinity: ClientIP`.
    pub has_affinity: bool,
    /// Annotations of a Service with an internal load balancer.
    pub internal: Value,
    /// Whether all ports of a Service share one pool.
    pub shares_pool: bool,
}

/// The load balancers of a cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancers {
    /// The names of the load balancers.
    pub names: BTreeSet<String>,
    /// Pools, or the cloud's equivalent, with the names of their nodes.
    pub pools: BTreeMap<String, BTreeSet<String>>,
    /// Whether a change of any load balancer is in progress or has failed.
    pub unfinished: bool,
}

/// A machine and the expected Node on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The machine's ID in the cloud.
    pub id: String,
    /// The name of the Node, as the kubelet chooses it on this cloud.
    pub node: String,
    /// The Node's provider ID.
    pub provider_id: String,
    /// The Node's addresses in their order: type and address.
    pub addresses: Vec<(String, String)>,
    /// Labels that the program sets.
    pub labels: Vec<(String, String)>,
}

/// The config that the documents of a cloud require. Its address does not answer, because Services are validated without the
/// cloud.
#[derive(Clone, Copy, Debug)]
pub struct DocumentsConfig {
    /// The config file.
    pub file: &'static str,
    /// Environment variables.
    pub environment: &'static [(&'static str, &'static str)],
}

/// The config that the documents of this provider require. None if it has no test cloud.
#[must_use]
pub fn documents_config(provider: &str) -> Option<DocumentsConfig> {
    Some(match provider {
        "aws" => aws::DOCUMENTS_CONFIG,
        "azure" => azure::DOCUMENTS_CONFIG,
        "digitalocean" => digitalocean::DOCUMENTS_CONFIG,
        "gce" => gce::DOCUMENTS_CONFIG,
        "openstack" => openstack::DOCUMENTS_CONFIG,
        _ => return None,
    })
}

/// Starts the test cloud of this provider. None if it has none.
///
/// # Errors
/// When it cannot be started.
pub async fn start(provider: &str) -> Result<Option<Box<dyn TestCloud>>> {
    Ok(match provider {
        "aws" => Some(Box::new(AwsCloud::start().await?)),
        "azure" => Some(Box::new(AzureCloud::start().await?)),
        "digitalocean" => Some(Box::new(DigitalOceanCloud::start().await?)),
        "gce" => Some(Box::new(GceCloud::start().await?)),
        "openstack" => Some(Box::new(OpenStackCloud::start().await?)),
        _ => None,
    })
}

/// What is wrong with the status of a Service whose load balancer has this one address.
fn wrong_status(service: &Service, address: &str) -> Option<String> {
    let status = service.status.as_ref();
    let ingress = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_deref());
    match ingress {
        Some([only]) if only.ip.as_deref() == Some(address) => None,
        other => Some(format!("status {other:?} instead of {address}")),
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
