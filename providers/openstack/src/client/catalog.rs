//! The service catalog: the URL of each service in the configured region and interface.

use std::collections::BTreeSet;

use ccm_core::{Error, ErrorKind, Result};
use serde::Deserialize;
use url::Url;

/// The services that the provider uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    /// Nova.
    Compute,
    /// Neutron.
    Network,
    /// Octavia. Optional.
    LoadBalancer,
    /// Barbican. Optional.
    KeyManager,
}

impl Service {
    /// All services.
    pub(crate) const ALL: [Self; 4] = [Self::Compute, Self::Network, Self::LoadBalancer, Self::KeyManager];

    /// The service's type in the catalog.
    pub(crate) fn catalog_type(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Network => "network",
            Self::LoadBalancer => "load-balancer",
            Self::KeyManager => "key-manager",
        }
    }
}

/// `os-endpoint-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Interface {
    /// `public`.
    #[default]
    Public,
    /// `internal`.
    Internal,
    /// `admin`.
    Admin,
}

impl Interface {
    /// The name in the catalog.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Internal => "internal",
            Self::Admin => "admin",
        }
    }

    /// Parses the spelling of the config file, or that of `clouds.yaml` files for older tools (`publicURL`).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix("URL").unwrap_or(text) {
            "public" => Some(Self::Public),
            "internal" => Some(Self::Internal),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }
}

/// The catalog that came with a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Catalog {
    services: Vec<CatalogEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct CatalogEntry {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Endpoint {
    interface: String,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    region_id: Option<String>,
    url: String,
}

impl Endpoint {
    fn is_in(&self, region: &str) -> bool {
        self.region.as_deref() == Some(region) || self.region_id.as_deref() == Some(region)
    }
}

impl Catalog {
    /// The URL of the service's resources, version included: that of the first endpoint that matches.
    ///
    /// # Errors
    ///
    /// If none matches; the error lists the alternatives.
    pub(crate) fn endpoint(
        &self,
        service: Service,
        interface: Interface,
        region: Option<&str>,
    ) -> Result<Url> {
        let endpoint = self.of(service).find(|endpoint| {
            endpoint.interface == interface.as_str() && region.is_none_or(|region| endpoint.is_in(region))
        });
        match endpoint {
            Some(endpoint) => versioned(service, &endpoint.url),
            None => Err(Error::new(ErrorKind::InvalidConfig, self.complaint(service, interface, region))),
        }
    }

    fn of(&self, service: Service) -> impl Iterator<Item = &Endpoint> {
        self.services
            .iter()
            .filter(move |entry| entry.kind == service.catalog_type())
            .flat_map(|e| &e.endpoints)
    }

    fn complaint(&self, service: Service, interface: Interface, region: Option<&str>) -> String {
        let kind = service.catalog_type();
        let have = if self.of(service).next().is_none() {
            match list(self.services.iter().map(|entry| entry.kind.as_str())) {
                // A token without a scope has none.
                None => {
                    "the catalog is empty: does the token have a project (tenant-id, tenant-name)?".to_owned()
                }
                Some(kinds) => format!("service types in the catalog: {kinds}"),
            }
        } else if let Some(region) = region.filter(|region| !self.of(service).any(|e| e.is_in(region))) {
            let regions =
                list(self.of(service).flat_map(|e| [&e.region, &e.region_id]).flatten().map(String::as_str));
            format!(
                "region {region:?} is not in the catalog, available regions: {}",
                regions.unwrap_or_default()
            )
        } else {
            let interfaces = list(
                self.of(service)
                    .filter(|e| region.is_none_or(|region| e.is_in(region)))
                    .map(|e| e.interface.as_str()),
            );
            format!("endpoint types it has: {}", interfaces.unwrap_or_default())
        };
        format!(
            "no suitable endpoint could be found in the service catalog: service {kind}, os-endpoint-type {}{}; {have}",
            interface.as_str(),
            region.map(|region| format!(", region {region}")).unwrap_or_default(),
        )
    }
}

/// Joins the distinct items in alphabetical order; `None` if there are none.
fn list<'a>(items: impl Iterator<Item = &'a str>) -> Option<String> {
    let items: BTreeSet<_> = items.filter(|item| !item.is_empty()).collect();
    (!items.is_empty()).then(|| items.into_iter().collect::<Vec<_>>().join(", "))
}

/// Adds a trailing slash and a version to an endpoint. A catalog often lists Neutron's without a version. Each
/// service has had only one major version for a decade, so no version document is read.
fn versioned(service: Service, text: &str) -> Result<Url> {
    let bad = |why: String| {
        let kind = service.catalog_type();
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the service catalog gives {text:?} for service {kind}: {why}"),
        )
    };
    let mut url = Url::parse(text).map_err(|error| bad(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(bad("not an http URL".to_owned()));
    }
    url.set_query(None);
    url.set_fragment(None);
    let has_version = url.path_segments().is_some_and(|mut segments| segments.any(is_version));
    let mut path = url.path().trim_end_matches('/').to_owned();
    path.push('/');
    if !has_version {
        path.push_str(match service {
            Service::Compute => "v2.1/",
            Service::Network | Service::LoadBalancer => "v2.0/",
            Service::KeyManager => "v1/",
        });
    }
    url.set_path(&path);
    Ok(url)
}

/// Removes the version from a URL of [`Catalog::endpoint`].
pub(super) fn unversioned(mut url: Url) -> Url {
    let above: Vec<String> = url
        .path_segments()
        .into_iter()
        .flatten()
        .take_while(|segment| !is_version(segment))
        .map(str::to_owned)
        .collect();
    if let Ok(mut path) = url.path_segments_mut() {
        path.clear().extend(above).push("");
    }
    url
}

/// Whether the path segment is a version: `v2`, `v2.1`, `v3`.
fn is_version(segment: &str) -> bool {
    segment.strip_prefix('v').is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_digit()) && rest.chars().all(|c| c.is_ascii_digit() || c == '.')
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn catalog() -> Catalog {
        let endpoint = |interface: &str, region: &str, url: &str| json!({"id": "x", "interface": interface, "region": region, "region_id": format!("{region}-id"), "url": url});
        serde_json::from_value(json!([
            {"type": "identity", "name": "keystone", "endpoints": [endpoint("public", "One", "http://ks/v3")]},
            {"type": "compute", "name": "nova", "endpoints": [
                endpoint("internal", "One", "http://nova.internal/v2.1"),
                endpoint("public", "One", "https://nova.one/compute/v2.1/"),
                endpoint("public", "Two", "https://nova.two/v2.1/abc")]},
            {"type": "network", "name": "neutron", "endpoints": [endpoint("public", "One", "http://neutron:9696")]},
            {"type": "load-balancer", "name": "octavia", "endpoints": [
                endpoint("public", "One", "http://octavia:9876"),
                endpoint("public", "Two", "http://cloud/load-balancer/v2.0")]},
            {"type": "key-manager", "name": "barbican", "endpoints": [endpoint("public", "One", "http://cloud/key-manager/")]}
        ]))
        .unwrap()
    }

    #[test]
    fn picks_by_type_interface_and_region_and_adds_what_is_missing() {
        use Interface::{Internal, Public};
        use Service::{Compute, Network};
        for (service, interface, region, url) in [
            (Compute, Public, None, "https://nova.one/compute/v2.1/"),
            (Compute, Public, Some("Two"), "https://nova.two/v2.1/abc/"),
            (Compute, Public, Some("Two-id"), "https://nova.two/v2.1/abc/"),
            (Compute, Internal, Some("One"), "http://nova.internal/v2.1/"),
            (Network, Public, Some("One"), "http://neutron:9696/v2.0/"),
            (Service::LoadBalancer, Public, Some("One"), "http://octavia:9876/v2.0/"),
            (Service::LoadBalancer, Public, Some("Two"), "http://cloud/load-balancer/v2.0/"),
            (Service::KeyManager, Public, None, "http://cloud/key-manager/v1/"),
        ] {
            assert_eq!(
                catalog().endpoint(service, interface, region).unwrap().as_str(),
                url,
                "{service:?} {region:?}"
            );
        }
    }

    #[test]
    fn an_error_lists_the_alternatives() {
        use Service::{Compute, Network};
        let wrong = |service, interface, region| {
            catalog().endpoint(service, interface, region).unwrap_err().to_string()
        };
        let text = wrong(Compute, Interface::Public, Some("Three"));
        assert!(
            text.contains("\"Three\" is not in the catalog, available regions: One, One-id, Two, Two-id"),
            "{text}"
        );
        let text = wrong(Network, Interface::Admin, Some("One"));
        assert!(
            text.contains("os-endpoint-type admin") && text.contains("endpoint types it has: public"),
            "{text}"
        );
        let text = Catalog::default().endpoint(Compute, Interface::Public, None).unwrap_err().to_string();
        assert!(text.contains("the catalog is empty"), "{text}");
        let mut no_network = catalog();
        no_network.services.truncate(2);
        let text = no_network.endpoint(Network, Interface::Public, None).unwrap_err().to_string();
        assert!(text.contains("service types in the catalog: compute, identity"), "{text}");
    }

    #[test]
    fn the_list_of_versions_is_above_the_version() {
        for (url, above) in [
            ("http://octavia:9876/v2.0/", "http://octavia:9876/"),
            ("http://cloud/load-balancer/v2.0/", "http://cloud/load-balancer/"),
        ] {
            assert_eq!(unversioned(Url::parse(url).unwrap()).as_str(), above);
        }
    }

    #[test]
    fn an_endpoint_that_is_not_an_http_url_is_refused() {
        for url in ["", "nova", "ftp://nova/v2.1", "http://"] {
            let catalog: Catalog = serde_json::from_value(
                json!([{"type": "compute", "endpoints": [{"interface": "public", "region": null, "url": url}]}]),
            )
            .unwrap();
            assert!(catalog.endpoint(Service::Compute, Interface::Public, None).is_err(), "{url:?}");
        }
    }
}
