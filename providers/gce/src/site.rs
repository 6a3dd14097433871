//! The place of the cluster: projects, region, zones and network.

use std::{fmt, sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, Result,
    client::{Cache, CacheConfig, ClientMetrics},
    config::suggest,
};
use tracing::warn;

use crate::{
    client::{
        Api, Client,
        metadata::{MetadataValue, NETWORK, PROJECT, PROJECT_NUMBER, ZONE},
    },
    config::{Config, NameOrPath},
};

/// How long the list of zones is used. A region gets a new zone at most every few years.
const ZONES_MAX_AGE: Duration = Duration::from_secs(3600);

/// The zones of most regions.
const USUAL_ZONES: usize = 3;

/// The region of a zone: `us-central1` of `us-central1-a`.
pub(crate) fn region_of_zone(zone: &str) -> Option<&str> {
    let (region, letter) = zone.rsplit_once('-')?;
    if region.is_empty() || letter.is_empty() {
        None
    } else {
        Some(region)
    }
}

/// Where the cluster is.
#[derive(Debug)]
pub(crate) struct Site {
    /// The ID of the cluster's project.
    pub(crate) project: String,
    /// The ID of the network's project. With Shared VPC, it is another one.
    pub(crate) network_project: String,
    pub(crate) region: String,
    /// The resource path of the network.
    pub(crate) network: String,
    /// The endpoint of the API, for messages.
    endpoint: String,
    zones: Cache<(), Vec<String>>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "project {:?} of {}, region {:?}", self.project, self.endpoint, self.region)
    }
}

impl Site {
    /// Finds the site by config and metadata server, and reads the zones of its region, for which the credentials must be valid.
    ///
    /// # Errors
    ///
    /// The metadata server or the API cannot be reached, or the region has no such zone.
    pub(crate) async fn find(api: &Api, config: &Config, metrics: &ClientMetrics) -> Result<Self> {
        let client = api.at(Priority::User);
        let project = match &config.project {
            Some(project) => project.clone(),
            None => api.metadata().get(PROJECT).await?,
        };
        let zone = match &config.zone {
            Some(zone) => zone.clone(),
            None => last_of_four(ZONE, &api.metadata().get(ZONE).await?)?,
        };
        let Some(region) = region_of_zone(&zone) else {
            let text = format!("{zone:?} is not a zone; set local-zone to one such as us-central1-a");
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        };
        let project = project_id(&client, project).await;
        let mut network_project = match &config.network_project {
            Some(number_or_id) => project_id(&client, number_or_id.clone()).await,
            None => project.clone(),
        };
        let network = match &config.network {
            Some(NameOrPath::Path(path)) => with_project_id(&client, path).await,
            Some(NameOrPath::Name(name)) => network_path(&network_project, name),
            None => {
                let path = api.metadata().get(NETWORK).await?;
                let name = last_of_four(NETWORK, &path)?;
                // With Shared VPC, the network is in another project, which the Go cloud-controller-manager ignores.
                let host = path.split('/').nth(1).unwrap_or_default();
                if config.network_project.is_none() && host != api.metadata().get(PROJECT_NUMBER).await? {
                    network_project = project_id(&client, host.to_owned()).await;
                }
                network_path(&network_project, &name)
            }
        };
        let site = Self {
            project,
            network_project,
            region: region.to_owned(),
            network,
            endpoint: api.endpoint(),
            zones: Cache::new(CacheConfig::new("gce_zones"), metrics),
        };
        let zones = site.zones(&client, Priority::User).await?;
        if zones.contains(&zone) {
            return Ok(site);
        }
        let hint = match suggest::nearest(&zone, zones.iter().map(String::as_str)) {
            Some(near) => format!("; did you mean {near:?}?"),
            None => String::new(),
        };
        let text = format!(
            "zone {zone:?} does not exist in project {:?}; the zones of region {region:?}: {}{hint}",
            site.project,
            zones.join(", ")
        );
        Err(Error::new(ErrorKind::InvalidConfig, text))
    }

    /// The zones of the region.
    ///
    /// # Errors
    ///
    /// The API cannot be reached, or refuses the request.
    pub(crate) async fn zones(&self, client: &Client, priority: Priority) -> Result<Arc<Vec<String>>> {
        let (client, project, region) = (client.clone(), self.project.clone(), self.region.clone());
        let names = self.zones.get((), Freshness::AtMost(ZONES_MAX_AGE), priority, || async move {
            let zones = client.zones(&project).await?;
            let mut names: Vec<_> =
                zones.into_iter().filter(|zone| zone.region == region).map(|zone| zone.name).collect();
            names.sort();
            Ok(names)
        });
        names.await
    }

    /// The zones of the region, as far as they are known without a read.
    pub(crate) fn known_zones(&self) -> Vec<String> {
        let known = self.zones.peek(&(), Freshness::AtMost(ZONES_MAX_AGE));
        known.map(|(zones, _)| zones.to_vec()).unwrap_or_default()
    }

    /// The number of zones of the region.
    pub(crate) fn zone_count(&self) -> usize {
        match self.known_zones().len() {
            0 => USUAL_ZONES,
            known => known,
        }
    }

    /// The name of the network.
    pub(crate) fn network_name(&self) -> &str {
        crate::client::last_component(&self.network)
    }
}

/// The resource path of a network.
fn network_path(project: &str, name: &str) -> String {
    format!("projects/{project}/global/networks/{name}")
}

/// The last part of a value of the metadata server: `zone` of `projects/1/zones/zone`.
fn last_of_four(value: MetadataValue, text: &str) -> Result<String> {
    let parts: Vec<_> = text.split('/').collect();
    match parts.as_slice() {
        [_, _, _, last] if !last.is_empty() => Ok((*last).to_owned()),
        _ => {
            let MetadataValue { path, instead } = value;
            let text =
                format!("{path} of the metadata server is {text:?}, which has not four parts; {instead}");
            Err(Error::new(ErrorKind::Unexpected, text))
        }
    }
}

/// The ID of a project that may be given by its number. If it cannot be read, the number is used.
async fn project_id(client: &Client, project: String) -> String {
    if project.parse::<u64>().is_err() {
        return project;
    }
    match client.project_id(&project).await {
        Ok(id) if !id.is_empty() => id,
        Ok(_) => project,
        Err(error) => {
            let error = error.report();
            warn!(error, project, "Could not read the ID of the project; using its number");
            project
        }
    }
}

/// A resource path with the ID of its project in place of the number.
async fn with_project_id(client: &Client, path: &str) -> String {
    let parts: Vec<_> = path.splitn(3, '/').collect();
    match parts.as_slice() {
        ["projects", project, rest] => {
            format!("projects/{}/{rest}", project_id(client, (*project).to_owned()).await)
        }
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_zone_has_a_region() {
        assert_eq!(region_of_zone("us-central1-a"), Some("us-central1"));
        for wrong in ["", "central", "-a", "us-"] {
            assert_eq!(region_of_zone(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn values_of_the_metadata_server_have_four_parts() {
        assert_eq!(last_of_four(ZONE, "projects/1/zones/us-central1-a").unwrap(), "us-central1-a");
        let error = last_of_four(ZONE, "us-central1-a").unwrap_err().to_string();
        assert!(error.contains("\"us-central1-a\"") && error.contains("set local-zone"), "{error}");
    }
}
