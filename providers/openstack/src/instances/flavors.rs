//! The instance type of a server: the name of its flavor.

use std::time::Duration;

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result,
    client::{Cache, CacheConfig, ClientMetrics},
};

use super::{
    mapping::is_label_value,
    records::{OneFlavor, OneServer, Server},
};
use crate::client::{Api, Op, catalog::Service, read};

/// A flavor never changes, but may be deleted and created again with the same ID.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Determines instance types.
#[derive(Debug)]
pub(super) struct Flavors {
    api: Api,
    /// Names of flavors by ID, for server records that have only the ID.
    names: Cache<String, String>,
    /// IDs of flavors by name, for server records whose name of the flavor is not a label value.
    ids: Cache<String, String>,
}

impl Flavors {
    pub(super) fn new(api: Api, metrics: &ClientMetrics) -> Self {
        let config = CacheConfig::bounded("openstack_flavors", 1000, KEPT);
        Self {
            api,
            names: Cache::new(config, metrics),
            ids: Cache::new(config, metrics),
        }
    }

    /// The flavor's name if it is a valid label value, otherwise its ID.
    pub(super) async fn instance_type(&self, server: &Server, priority: Priority) -> Result<Option<String>> {
        let label = |text: &str| is_label_value(text).then(|| text.to_owned());
        match (&server.flavor.original_name, &server.flavor.id) {
            (Some(name), _) if is_label_value(name) => Ok(Some(name.clone())),
            (_, Some(id)) => {
                let name = self.name(id, priority).await?;
                Ok(label(&name).or_else(|| label(id)))
            }
            (Some(name), None) => Ok(label(&self.id(name, &server.id, priority).await?)),
            (None, None) => Err(Error::new(ErrorKind::Unavailable, "flavor original_name/id not found")
                .with_context("server", &server.id)),
        }
    }

    async fn name(&self, id: &str, priority: Priority) -> Result<std::sync::Arc<String>> {
        let (api, owned) = (self.api.clone(), id.to_owned());
        let age = Freshness::AtMost(KEPT);
        self.names
            .get(id.to_owned(), age, priority, move || async move {
                let path = ["flavors", owned.as_str()];
                let get = read(Op::FlavorGet, Service::Compute, &path);
                let OneFlavor { flavor } = api.get(&get, priority).await?;
                Ok(flavor.name)
            })
            .await
    }

    /// Reads the server without the microversion: only then does its record have the flavor's ID.
    async fn id(&self, name: &str, server: &str, priority: Priority) -> Result<std::sync::Arc<String>> {
        let (api, owned) = (self.api.clone(), server.to_owned());
        let age = Freshness::AtMost(KEPT);
        self.ids
            .get(name.to_owned(), age, priority, move || async move {
                let path = ["servers", owned.as_str()];
                let get = read(Op::ServerGet, Service::Compute, &path);
                let OneServer { server } = api.get(&get, priority).await?;
                server.flavor.id.ok_or_else(|| {
                    Error::new(ErrorKind::Unavailable, "flavor original_name/id not found")
                        .with_context("server", owned)
                })
            })
            .await
    }
}
