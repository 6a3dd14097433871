//! The clouds that whole-program tests run on, seen alike: what a scenario needs to know of a cloud, and nothing else.

mod aws;
mod digitalocean;
mod openstack;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Service;
use serde_json::Value;

pub use aws::AwsCloud;
pub use digitalocean::DigitalOceanCloud;
pub use openstack::{OpenStackCloud, service as openstack_service};

use crate::picture::Picture;
use crate::sweep::Party;

/// A cloud in which machines can be created and deleted, and whose load balancers can be read, past the program under test.
#[async_trait]
pub trait TestCloud: Debug + Send + Sync {
    /// The value of `--cloud-provider`.
    fn provider(&self) -> &'static str;

    /// The program's config file, with everything managed that can be.
    fn config(&self) -> String;

    /// Variables for the program's environment.
    fn environment(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Texts that must not appear in a log.
    fn secrets(&self) -> Vec<String>;

    /// Where the program's calls are counted, stopped and made to fail.
    fn party(&self) -> &dyn Party;

    /// Creates a machine. `name` is what a person calls it.
    async fn create_machine(&self, name: &str) -> Result<Machine>;

    /// Deletes a machine; its id is "not found" from now on.
    async fn delete_machine(&self, machine: &Machine) -> Result<()>;

    /// The load balancers with all that belongs to them.
    async fn picture(&self, words: &[(String, String)]) -> Result<Picture>;

    /// Deletes everything that [`Self::picture`] shows.
    async fn clear(&self) -> Result<()>;

    /// How often each kind of object was created by calls that succeeded since the party forgot its calls. Only kinds of which
    /// a second one would be found only by a sweep.
    fn created(&self) -> Vec<(&'static str, usize)>;

    /// Why the Service's status and annotations do not name the only load balancer, if they do not.
    async fn unserved(&self, service: &Service) -> Result<Option<String>>;

    /// What a Service says to this cloud.
    fn service(&self) -> ServiceShape {
        ServiceShape::default()
    }

    /// The program's calls since the start or since the party forgot its calls, by operation.
    fn calls(&self) -> BTreeMap<String, u64>;

    /// Whether calls of this operation change something.
    fn is_write(&self, operation: &str) -> bool;

    /// Every call takes this much longer from now on.
    fn set_latency(&self, latency: Duration);

    /// The load balancers and whom they lead to.
    async fn load_balancers(&self) -> Result<LoadBalancers>;

    /// The routes to Pods, if the cloud has routes.
    fn routes(&self) -> Option<&dyn TestRoutes> {
        None
    }
}

/// The routes of a cloud, past the program under test. A route is the network of its destination and the machine that it leads
/// to.
#[async_trait]
pub trait TestRoutes: Send + Sync {
    /// Creates the route table. Returns what the program's config says of it.
    async fn create_table(&self) -> Result<String>;

    /// Makes these the only routes. No machine forwards packets for Pods, except that the guest forwards for this network and
    /// for another one that is not the cluster's business.
    async fn reset(
        &self,
        routes: &[(&str, &Machine)],
        machines: &[Machine],
        guest: (&str, &Machine),
    ) -> Result<()>;

    /// The routes: destination, and the id of the machine or whatever else they lead to.
    async fn table(&self) -> Result<BTreeSet<(String, String)>>;

    /// Why the machine drops packets for this network, if it does.
    async fn drops(&self, machine: &Machine, network: &str) -> Result<Option<String>>;

    /// How the guest is not as it should be without the cluster's network.
    async fn changed(&self, guest: &Machine) -> Result<Option<String>>;
}

/// What a Service says to one cloud.
#[derive(Clone, Debug, Default)]
pub struct ServiceShape {
    /// Annotations from the beginning.
    pub annotations: Value,
    /// Annotations that change much of the load balancer in place.
    pub changed: Value,
    /// Whether the cloud keeps a client at one node (`sessionAffinity: ClientIP`).
    pub has_affinity: bool,
    /// Annotations of a Service that only the cloud's own network reaches.
    pub internal: Value,
}

/// The load balancers of a cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancers {
    /// Their names.
    pub names: BTreeSet<String>,
    /// Pools, or what the cloud has in their place, with the names of the nodes behind them.
    pub pools: BTreeMap<String, BTreeSet<String>>,
    /// Whether a change of any of them is still under way, or has failed.
    pub unfinished: bool,
}

/// A machine and what the Node on it must become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The cloud's id.
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

/// The config that the documents of a cloud presuppose. Nothing listens at its address: what Services ask for is checked without
/// the cloud.
#[derive(Clone, Copy, Debug)]
pub struct DocumentsConfig {
    /// The config file.
    pub file: &'static str,
    /// Variables of the environment.
    pub environment: &'static [(&'static str, &'static str)],
}

/// The config that the documents of this provider presuppose. None if it has no test cloud.
#[must_use]
pub fn documents_config(provider: &str) -> Option<DocumentsConfig> {
    Some(match provider {
        "aws" => aws::DOCUMENTS_CONFIG,
        "digitalocean" => digitalocean::DOCUMENTS_CONFIG,
        "openstack" => openstack::DOCUMENTS_CONFIG,
        _ => return None,
    })
}

/// Starts the test cloud of this provider. None if there is none.
///
/// # Errors
/// When it cannot be started.
pub async fn start(provider: &str) -> Result<Option<Box<dyn TestCloud>>> {
    Ok(match provider {
        "aws" => Some(Box::new(AwsCloud::start().await?)),
        "digitalocean" => Some(Box::new(DigitalOceanCloud::start().await?)),
        "openstack" => Some(Box::new(OpenStackCloud::start().await?)),
        _ => None,
    })
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}
