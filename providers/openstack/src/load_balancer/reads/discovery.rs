//! Networks, subnets and secrets: objects that users created and that rarely change.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result,
    client::{Cache, CacheConfig, ClientMetrics},
};
use serde::Deserialize;

use crate::{
    client::{Api, Op, catalog::Service, read},
    instances::records::Network,
    load_balancer::{responses::Subnet, secrets::SecretRef},
};

/// How long an answer is cached.
const KEPT: Duration = Duration::from_secs(600);
/// How long an empty answer is cached.
const EMPTY_MAX_AGE: Duration = Duration::from_secs(30);
/// The most cached answers of a kind.
const ENTRIES: usize = 1000;

/// The reads.
#[derive(Debug)]
pub(crate) struct Discovery {
    api: Api,
    external: Cache<(), Vec<Network>>,
    subnets: Cache<String, Vec<Subnet>>,
    subnet: Cache<String, Option<Subnet>>,
    secrets: Cache<SecretRef, bool>,
}

impl Discovery {
    pub(super) fn new(api: Api, metrics: &ClientMetrics) -> Self {
        let config = |name| CacheConfig::bounded(name, ENTRIES, KEPT);
        Self {
            api,
            external: Cache::new(config("openstack_external_networks"), metrics),
            subnets: Cache::new(config("openstack_subnets"), metrics),
            subnet: Cache::new(config("openstack_subnet"), metrics),
            secrets: Cache::new(config("openstack_secrets"), metrics),
        }
    }

    /// The external networks, in Neutron's order.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) async fn external_networks(&self, priority: Priority) -> Result<Arc<Vec<Network>>> {
        let api = self.api.clone();
        kept(&self.external, (), priority, Vec::is_empty, move || async move {
            let query = [
                ("router:external", "true"),
                ("fields", "id"),
                ("fields", "name"),
                ("fields", "subnets"),
            ];
            api.list(&query, priority).await
        })
        .await
    }

    /// The subnets of a network, in Neutron's order.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) async fn subnets_of(&self, network: &str, priority: Priority) -> Result<Arc<Vec<Subnet>>> {
        let (api, id) = (self.api.clone(), network.to_owned());
        kept(&self.subnets, network.to_owned(), priority, Vec::is_empty, move || async move {
            api.list(&[("network_id", id.as_str())], priority).await
        })
        .await
    }

    /// A subnet; `None` if no subnet with this ID exists or is visible.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn subnet(&self, id: &str, priority: Priority) -> Result<Arc<Option<Subnet>>> {
        let (api, owned) = (self.api.clone(), id.to_owned());
        kept(&self.subnet, id.to_owned(), priority, Option::is_none, move || async move {
            api.find(Op::SubnetGet, &owned, priority).await
        })
        .await
    }

    /// The external network for floating IPs of Services that name none: the first one with an IPv4 subnet or a hidden
    /// subnet.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn default_external_network(&self, priority: Priority) -> Result<Option<Network>> {
        for network in self.external_networks(priority).await?.iter() {
            let visible = self.subnets_of(&network.id, priority).await?;
            let hidden = network.subnets.iter().any(|id| !visible.iter().any(|subnet| subnet.id == *id));
            if hidden || visible.iter().any(|subnet| subnet.ip_version == 4) {
                return Ok(Some(network.clone()));
            }
        }
        Ok(None)
    }

    /// Whether Barbican has this container or secret.
    ///
    /// # Errors
    /// If Barbican does not exist or cannot be read.
    pub(crate) async fn secret_exists(&self, secret: &SecretRef, priority: Priority) -> Result<bool> {
        if let Some(reason) = self.api.missing(Service::KeyManager).await? {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("a TLS container needs Barbican: {reason}"),
            ));
        }
        let (api, secret) = (self.api.clone(), secret.clone());
        let key = secret.clone();
        let found = kept(
            &self.secrets,
            key,
            priority,
            |found| !found,
            move || async move {
                // Only the existence of an answer matters.
                #[derive(Deserialize)]
                struct Anything {}
                let (op, path) = match &secret {
                    SecretRef::Container(id) => (Op::ContainerGet, ["containers", id.as_str()]),
                    SecretRef::Secret(id) => (Op::SecretGet, ["secrets", id.as_str()]),
                };
                let get = read(op, Service::KeyManager, &path);
                match api.get::<Anything>(&get, priority).await {
                    Ok(Anything {}) => Ok(true),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                    Err(error) => Err(error),
                }
            },
        )
        .await?;
        Ok(*found)
    }
}

/// Reads the answer for `key`. Empty answers are cached for a shorter time.
async fn kept<K, V, F, Fut>(
    cache: &Cache<K, V>,
    key: K,
    priority: Priority,
    is_nothing: impl Fn(&V) -> bool,
    load: F,
) -> Result<Arc<V>>
where
    K: Clone + Eq + std::hash::Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<V>> + Send + 'static,
{
    if let Some((value, _)) = cache.peek(&key, Freshness::AtMost(KEPT))
        && !is_nothing(&value)
    {
        return Ok(value);
    }
    let age = Freshness::AtMost(EMPTY_MAX_AGE);
    cache.get(key, age, priority, load).await
}
