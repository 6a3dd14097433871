//! Reads of projects, zones, networks and instances, and routes. The API returns URLs of objects; here, they are resource paths.

use ccm_core::{Result, client::Page, error::accept};
use google_cloud_compute_v1::model;

use super::{Client, Place, last_component, operations::ComputeOperation, ops::Op};
use crate::{config::resource_path, error::names_missing};

/// The largest page.
const PAGE: u32 = 500;

/// A zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Zone {
    pub(crate) name: String,
    pub(crate) region: String,
}

/// A network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// A network without subnetworks.
    pub(crate) is_legacy: bool,
    /// A network with one subnetwork in each region.
    pub(crate) is_auto: bool,
}

/// A subnetwork.
#[derive(Clone, Debug)]
pub(crate) struct Subnetwork {
    pub(crate) name: String,
    /// The resource path of its network.
    pub(crate) network: String,
    pub(crate) range: String,
}

/// An instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instance {
    /// `<project>/<zone>/<name>`.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) zone: String,
    /// `RUNNING` and others.
    pub(crate) status: String,
    /// The last part of the URL of the machine type.
    pub(crate) machine_type: String,
    /// Its network tags.
    pub(crate) tags: Vec<String>,
    pub(crate) interfaces: Vec<NetworkInterface>,
}

/// A network interface of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkInterface {
    /// `nic0` and so on.
    pub(crate) name: String,
    pub(crate) address: Option<String>,
    /// The external addresses that are assigned.
    pub(crate) external: Vec<String>,
    /// The internal IPv6 address, else the external one.
    pub(crate) ipv6: Option<String>,
    /// The ranges of addresses for Pods.
    pub(crate) alias_ranges: Vec<String>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) name: String,
    pub(crate) description: String,
    /// The resource path of its network.
    pub(crate) network: String,
    pub(crate) destination: String,
    /// The resource path of the instance; `None` for routes to other targets.
    pub(crate) instance: Option<String>,
    pub(crate) priority: u32,
    /// Whether the API reports that the instance does not exist.
    pub(crate) is_blackhole: bool,
}

/// A text that is set and not empty.
fn text(value: Option<String>) -> Option<String> {
    value.filter(|text| !text.is_empty())
}

/// The resource path of a URL.
fn path(link: Option<String>) -> String {
    let link = link.unwrap_or_default();
    resource_path(&link).unwrap_or(&link).to_owned()
}

fn last(link: Option<&String>) -> String {
    link.map(|link| last_component(link)).unwrap_or_default().to_owned()
}

impl NetworkInterface {
    fn of(interface: model::NetworkInterface) -> Self {
        let external_v6 = match interface.ipv_6_access_type.as_ref().and_then(|access| access.name()) {
            Some("EXTERNAL") => {
                let configs = interface.ipv_6_access_configs.into_iter();
                configs.filter_map(|access| text(access.external_ipv_6)).next_back()
            }
            _ => None,
        };
        Self {
            name: interface.name.unwrap_or_default(),
            address: text(interface.network_ip),
            external: interface.access_configs.into_iter().filter_map(|access| text(access.nat_ip)).collect(),
            ipv6: text(interface.ipv_6_address).or(external_v6),
            alias_ranges: interface
                .alias_ip_ranges
                .into_iter()
                .filter_map(|range| text(range.ip_cidr_range))
                .collect(),
        }
    }
}

impl Instance {
    fn of(project: &str, instance: model::Instance) -> Self {
        let (name, zone) = (instance.name.unwrap_or_default(), last(instance.zone.as_ref()));
        Self {
            id: format!("{project}/{zone}/{name}"),
            status: instance.status.as_ref().and_then(|status| status.name()).unwrap_or_default().to_owned(),
            machine_type: last(instance.machine_type.as_ref()),
            tags: instance.tags.map(|tags| tags.items).unwrap_or_default(),
            interfaces: instance.network_interfaces.into_iter().map(NetworkInterface::of).collect(),
            name,
            zone,
        }
    }
}

impl Route {
    fn of(route: model::Route) -> Self {
        let codes = route.warnings.iter().filter_map(|warning| warning.code.as_ref()?.name());
        Self {
            is_blackhole: codes.into_iter().any(|code| code == "NEXT_HOP_INSTANCE_NOT_FOUND"),
            name: route.name.unwrap_or_default(),
            description: route.description.unwrap_or_default(),
            network: path(route.network),
            destination: route.dest_range.unwrap_or_default(),
            instance: text(route.next_hop_instance).map(|link| path(Some(link))),
            priority: route.priority.unwrap_or_default(),
        }
    }
}

impl Client {
    /// The ID of a project that may be given by its number.
    pub(crate) async fn project_id(&self, project: &str) -> Result<String> {
        let read = self.call(Op::ProjectGet, Place::Global, |sdk| {
            sdk.prepared(sdk.projects.get().set_project(project)).send()
        });
        Ok(read.await?.name.unwrap_or_default())
    }

    /// The zones of all regions.
    pub(crate) async fn zones(&self, project: &str) -> Result<Vec<Zone>> {
        let items = ccm_core::client::collect(async |token: Option<String>| {
            let page = self.call(Op::ZoneList, Place::Global, |sdk| {
                let request = sdk.zones.list().set_project(project).set_max_results(PAGE);
                sdk.prepared(request.set_or_clear_page_token(token.clone())).send()
            });
            let page = page.await?;
            let zones = page.items.into_iter().map(|zone| Zone {
                region: last(zone.region.as_ref()),
                name: zone.name.unwrap_or_default(),
            });
            Ok(Page {
                items: zones.collect(),
                next: page.next_page_token,
            })
        });
        items.await
    }

    /// A network; `None` if it does not exist.
    pub(crate) async fn network(&self, project: &str, name: &str) -> Result<Option<Network>> {
        let read = self.call(Op::NetworkGet, Place::Global, |sdk| {
            sdk.prepared(sdk.networks.get().set_project(project).set_network(name)).send()
        });
        accept(read.await.map(|network| Some(Network::of(network))), ccm_core::ErrorKind::NotFound, None)
    }

    /// A subnetwork; `None` if it does not exist.
    pub(crate) async fn subnetwork(
        &self,
        project: &str,
        region: &str,
        name: &str,
    ) -> Result<Option<Subnetwork>> {
        let read = self.call(Op::SubnetworkGet, Place::Region(region), |sdk| {
            let request = sdk.subnetworks.get().set_project(project).set_region(region);
            sdk.prepared(request.set_subnetwork(name)).send()
        });
        let subnetwork = read.await.map(|subnetwork| Some(Subnetwork::of(subnetwork)));
        accept(subnetwork, ccm_core::ErrorKind::NotFound, None)
    }

    /// The subnetworks of a region.
    pub(crate) async fn subnetworks(&self, project: &str, region: &str) -> Result<Vec<Subnetwork>> {
        let items = ccm_core::client::collect(async |token: Option<String>| {
            let page = self.call(Op::SubnetworkList, Place::Region(region), |sdk| {
                let request = sdk
                    .subnetworks
                    .list()
                    .set_project(project)
                    .set_region(region)
                    .set_max_results(PAGE)
                    .set_or_clear_page_token(token.clone());
                sdk.prepared(request).send()
            });
            let page = page.await?;
            Ok(Page {
                items: page.items.into_iter().map(Subnetwork::of).collect(),
                next: page.next_page_token,
            })
        });
        items.await
    }

    /// An instance. `None` only if the API reports that the instance does not exist, and not its project or zone.
    pub(crate) async fn instance(&self, project: &str, zone: &str, name: &str) -> Result<Option<Instance>> {
        let read = self.call(Op::InstanceGet, Place::Zone(zone), |sdk| {
            let request = sdk.instances.get().set_project(project).set_zone(zone);
            sdk.prepared(request.set_instance(name)).send()
        });
        match read.await {
            Ok(instance) => Ok(Some(Instance::of(project, instance))),
            Err(error) if names_missing(&error, &format!("zones/{zone}/instances/{name}")) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A page of the instances of a zone.
    pub(crate) async fn instance_page(
        &self,
        project: &str,
        zone: &str,
        token: Option<String>,
    ) -> Result<Page<Instance, String>> {
        let page = self.call(Op::InstanceList, Place::Zone(zone), |sdk| {
            let request = sdk
                .instances
                .list()
                .set_project(project)
                .set_zone(zone)
                .set_max_results(PAGE)
                .set_or_clear_page_token(token.clone());
            sdk.prepared(request).send()
        });
        let page = page.await?;
        Ok(Page {
            items: page.items.into_iter().map(|instance| Instance::of(project, instance)).collect(),
            next: page.next_page_token,
        })
    }

    /// The routes of a project.
    pub(crate) async fn routes(&self, project: &str) -> Result<Vec<Route>> {
        let fetch = async |token: Option<String>| {
            let page = self.call(Op::RouteList, Place::Global, |sdk| {
                let request = sdk.routes.list().set_project(project).set_max_results(PAGE);
                sdk.prepared(request.set_or_clear_page_token(token.clone())).send()
            });
            let page = page.await?;
            Ok(Page {
                items: page.items.into_iter().map(Route::of).collect(),
                next: page.next_page_token,
            })
        };
        ccm_core::client::collect(fetch).await
    }

    /// A route.
    pub(crate) async fn route(&self, project: &str, name: &str) -> Result<Route> {
        let read = self.call(Op::RouteGet, Place::Global, |sdk| {
            sdk.prepared(sdk.routes.get().set_project(project).set_route(name)).send()
        });
        Ok(Route::of(read.await?))
    }

    /// Creates a route, and waits until it exists.
    pub(crate) async fn create_route(&self, project: &str, route: &Route) -> Result<()> {
        let request_id = super::request_id();
        let body = model::Route::new()
            .set_name(&route.name)
            .set_description(&route.description)
            .set_network(&route.network)
            .set_dest_range(&route.destination)
            .set_or_clear_next_hop_instance(route.instance.as_ref())
            .set_priority(route.priority);
        let created = self.call(Op::RouteCreate, Place::Global, |sdk| {
            let request = sdk.routes.insert().set_project(project).set_body(body.clone());
            sdk.prepared(request.set_request_id(&request_id)).send()
        });
        self.finish(project, ComputeOperation::from(created.await?)).await
    }

    /// Deletes a route, and waits until it does not exist.
    pub(crate) async fn delete_route(&self, project: &str, name: &str) -> Result<()> {
        let request_id = super::request_id();
        let deleted = self.call(Op::RouteDelete, Place::Global, |sdk| {
            let request = sdk.routes.delete().set_project(project).set_route(name);
            sdk.prepared(request.set_request_id(&request_id)).send()
        });
        self.finish(project, ComputeOperation::from(deleted.await?)).await
    }
}

impl Network {
    #[expect(
        deprecated,
        reason = "it tells a legacy network, and such networks still exist"
    )]
    fn of(network: model::Network) -> Self {
        Self {
            is_legacy: text(network.i_pv_4_range).is_some(),
            is_auto: network.auto_create_subnetworks.unwrap_or_default(),
        }
    }
}

impl Subnetwork {
    fn of(subnetwork: model::Subnetwork) -> Self {
        Self {
            name: subnetwork.name.unwrap_or_default(),
            network: path(subnetwork.network),
            range: subnetwork.ip_cidr_range.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_config_without_an_address_is_no_address() {
        let configs = [
            model::AccessConfig::new().set_nat_ip(""),
            model::AccessConfig::new(),
            model::AccessConfig::new().set_nat_ip("34.1.0.1"),
        ];
        let interface = model::NetworkInterface::new().set_access_configs(configs).set_network_ip("10.0.0.2");
        let interface = NetworkInterface::of(interface);
        assert_eq!((interface.address.as_deref(), interface.ipv6), (Some("10.0.0.2"), None));
        assert_eq!(interface.external, ["34.1.0.1"]);
    }

    #[test]
    fn urls_of_all_hosts_become_resource_paths() {
        let route = |host: &str| {
            let url = |path: &str| format!("{host}/compute/v1/projects/p/{path}");
            let route = model::Route::new()
                .set_network(url("global/networks/n"))
                .set_next_hop_instance(url("zones/z/instances/i"));
            Route::of(route)
        };
        let of_google = route("https://www.googleapis.com");
        assert_eq!(of_google.network, "projects/p/global/networks/n");
        assert_eq!(of_google.instance.as_deref(), Some("projects/p/zones/z/instances/i"));
        assert_eq!(route("https://compute.googleapis.com"), of_google);
        assert_eq!(route("http://localhost:1234"), of_google);
    }
}
