//! The resources that are read and written, and how their requests are built: those of Microsoft.Network by the SDK, others here.

use std::sync::Arc;

use azure_core::{RetryOptions, TransportOptions};
use azure_mgmt_network::{Client as NetworkClient, models};
use ccm_core::{Error, ErrorKind, Result};
use futures_util::StreamExt as _;
use http::Method;
use url::Url;

use super::{
    ops::Op,
    transport::{Exchange, OneToken},
};

/// A resource, or a list of resources, in a resource group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resource<'a> {
    RouteTable {
        group: &'a str,
        name: &'a str,
    },
    LoadBalancer {
        group: &'a str,
        name: &'a str,
    },
    LoadBalancers {
        group: &'a str,
    },
    /// A backend pool of a load balancer. It is read with the load balancer.
    Pool {
        group: &'a str,
        balancer: &'a str,
        name: &'a str,
    },
    SecurityGroup {
        group: &'a str,
        name: &'a str,
    },
    Subnet {
        group: &'a str,
        network: &'a str,
        name: &'a str,
    },
    LinkService {
        group: &'a str,
        name: &'a str,
    },
    LinkServices {
        group: &'a str,
    },
    /// The connection of a private endpoint to a private link service. It is read with the service.
    LinkConnection {
        group: &'a str,
        service: &'a str,
        name: &'a str,
    },
    PublicAddress {
        group: &'a str,
        name: &'a str,
    },
    Interface {
        group: &'a str,
        name: &'a str,
    },
    Interfaces {
        group: &'a str,
    },
    ScaleSetInterfaces {
        group: &'a str,
        set: &'a str,
    },
    InstanceInterfaces {
        group: &'a str,
        set: &'a str,
        id: &'a str,
    },
    PublicAddresses {
        group: &'a str,
    },
    ScaleSetAddresses {
        group: &'a str,
        set: &'a str,
    },
    Machine {
        group: &'a str,
        name: &'a str,
    },
    Machines {
        group: &'a str,
    },
    ScaleSet {
        group: &'a str,
        name: &'a str,
    },
    ScaleSets {
        group: &'a str,
    },
    /// Microsoft.Compute in the subscription, with the zones of each region.
    Zones,
    Instance {
        group: &'a str,
        set: &'a str,
        id: &'a str,
    },
    Instances {
        group: &'a str,
        set: &'a str,
        with_view: bool,
    },
    Permissions {
        group: &'a str,
    },
}

impl Resource<'_> {
    /// The call that reads it, or writes it.
    pub(crate) fn op(&self, method: &Method) -> Op {
        let (is_put, is_delete) = (*method == Method::PUT, *method == Method::DELETE);
        match self {
            Self::RouteTable { .. } if is_put => Op::RouteTablePut,
            Self::RouteTable { .. } => Op::RouteTableGet,
            Self::LoadBalancer { .. } if is_put => Op::LoadBalancerPut,
            Self::LoadBalancer { .. } if is_delete => Op::LoadBalancerDelete,
            Self::LoadBalancer { .. } => Op::LoadBalancerGet,
            Self::LoadBalancers { .. } => Op::LoadBalancerList,
            Self::Pool { .. } => Op::PoolPut,
            Self::SecurityGroup { .. } if is_put => Op::SecurityGroupPut,
            Self::SecurityGroup { .. } => Op::SecurityGroupGet,
            Self::Subnet { .. } if is_put => Op::SubnetPut,
            Self::Subnet { .. } => Op::SubnetGet,
            Self::LinkService { .. } if is_put => Op::LinkServicePut,
            Self::LinkService { .. } if is_delete => Op::LinkServiceDelete,
            Self::LinkService { .. } => Op::LinkServiceGet,
            Self::LinkServices { .. } => Op::LinkServiceList,
            Self::LinkConnection { .. } => Op::LinkConnectionDelete,
            Self::PublicAddress { .. } if is_put => Op::PublicAddressPut,
            Self::PublicAddress { .. } if is_delete => Op::PublicAddressDelete,
            Self::PublicAddress { .. } => Op::PublicAddressGet,
            Self::Interface { .. } if is_put => Op::InterfacePut,
            Self::Interface { .. } => Op::InterfaceGet,
            Self::Interfaces { .. } => Op::InterfaceList,
            Self::ScaleSetInterfaces { .. } => Op::ScaleSetInterfaceList,
            Self::InstanceInterfaces { .. } => Op::InstanceInterfaceList,
            Self::PublicAddresses { .. } => Op::PublicAddressList,
            Self::ScaleSetAddresses { .. } => Op::ScaleSetAddressList,
            Self::Machine { .. } => Op::MachineGet,
            Self::Machines { .. } => Op::MachineList,
            Self::ScaleSet { .. } => Op::ScaleSetPut,
            Self::ScaleSets { .. } => Op::ScaleSetList,
            Self::Zones => Op::ZoneList,
            Self::Instance { .. } if is_put => Op::InstancePut,
            Self::Instance { .. } => Op::InstanceGet,
            Self::Instances { .. } => Op::InstanceList,
            Self::Permissions { .. } => Op::PermissionList,
        }
    }

    /// Whether it is in the subscription of network resources. Network interfaces are in that of their machines.
    pub(crate) fn is_network(&self) -> bool {
        matches!(
            self,
            Self::RouteTable { .. }
                | Self::LoadBalancer { .. }
                | Self::LoadBalancers { .. }
                | Self::Pool { .. }
                | Self::SecurityGroup { .. }
                | Self::Subnet { .. }
                | Self::LinkService { .. }
                | Self::LinkServices { .. }
                | Self::LinkConnection { .. }
                | Self::PublicAddress { .. }
                | Self::PublicAddresses { .. }
        )
    }

    /// The segments of its URL below the subscription; `None` if the SDK builds its requests.
    fn segments(&self) -> Option<Vec<&str>> {
        const MACHINES: &str = "virtualMachines";
        const SCALE_SETS: &str = "virtualMachineScaleSets";
        let (group, rest) = match *self {
            Self::Machine { group, name } => (group, vec![MACHINES, name]),
            Self::Machines { group } => (group, vec![MACHINES]),
            Self::ScaleSet { group, name } => (group, vec![SCALE_SETS, name]),
            Self::ScaleSets { group } => (group, vec![SCALE_SETS]),
            Self::Zones => return Some(vec!["providers", "Microsoft.Compute"]),
            Self::Instance { group, set, id } => (group, vec![SCALE_SETS, set, MACHINES, id]),
            Self::Instances { group, set, .. } => (group, vec![SCALE_SETS, set, MACHINES]),
            Self::Permissions { group } => (group, vec!["permissions"]),
            Self::RouteTable { .. }
            | Self::LoadBalancer { .. }
            | Self::LoadBalancers { .. }
            | Self::Pool { .. }
            | Self::SecurityGroup { .. }
            | Self::Subnet { .. }
            | Self::LinkService { .. }
            | Self::LinkServices { .. }
            | Self::LinkConnection { .. }
            | Self::PublicAddress { .. }
            | Self::Interface { .. }
            | Self::Interfaces { .. }
            | Self::ScaleSetInterfaces { .. }
            | Self::InstanceInterfaces { .. }
            | Self::PublicAddresses { .. }
            | Self::ScaleSetAddresses { .. } => return None,
        };
        let provider = match self {
            Self::Permissions { .. } => "Microsoft.Authorization",
            _ => "Microsoft.Compute",
        };
        Some([vec!["resourceGroups", group, "providers", provider], rest].concat())
    }

    /// Whether a read has the instance view.
    fn has_view(&self) -> bool {
        match self {
            Self::Machine { .. } | Self::Machines { .. } | Self::Instance { .. } => true,
            Self::Instances { with_view, .. } => *with_view,
            _ => false,
        }
    }

    /// Its URL; `None` if the SDK builds its requests.
    pub(crate) fn url(&self, method: &Method, manager: &Url, subscription: &str) -> Option<Url> {
        let segments = self.segments()?;
        let mut url = manager.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["subscriptions", subscription]).extend(segments);
        }
        if *method == Method::GET && self.has_view() {
            url.query_pairs_mut().append_pair("$expand", "instanceView");
        }
        Some(url)
    }

    /// Lets the SDK build the request and send it through the exchange, which keeps the answer.
    ///
    /// # Errors
    /// The SDK refuses the endpoint.
    pub(crate) async fn send_by_sdk(
        &self,
        method: &Method,
        manager: &Url,
        subscription: &str,
        scope: &str,
        token: OneToken,
        exchange: &Arc<Exchange>,
    ) -> Result<()> {
        let client = NetworkClient::builder(Arc::new(token))
            .endpoint(manager.clone())
            // The default scope is wrong in sovereign clouds.
            .scopes(&[scope])
            .retry(RetryOptions::none())
            .transport(TransportOptions::new(Arc::clone(exchange) as Arc<dyn azure_core::HttpClient>))
            .build()
            .map_err(|error| {
                Error::new(ErrorKind::InvalidConfig, "the Azure SDK refuses the endpoint").with_source(error)
            })?;
        // The exchange keeps the answer or the error. The results here are those of the SDK's models.
        match *self {
            Self::RouteTable { group, name } if *method == Method::PUT => {
                // The exchange replaces this empty model.
                let empty = models::RouteTable::new();
                drop(
                    client
                        .route_tables_client()
                        .create_or_update(group, name, empty, subscription)
                        .send()
                        .await,
                );
            }
            Self::RouteTable { group, name } => {
                drop(client.route_tables_client().get(group, name, subscription).send().await);
            }
            Self::LoadBalancer { group, name } => {
                let balancers = client.load_balancers_client();
                match *method {
                    Method::PUT => {
                        let empty = models::LoadBalancer::new();
                        drop(balancers.create_or_update(group, name, empty, subscription).send().await);
                    }
                    Method::DELETE => drop(balancers.delete(group, name, subscription).send().await),
                    _ => drop(balancers.get(group, name, subscription).send().await),
                }
            }
            Self::LoadBalancers { group } => {
                let balancers = client.load_balancers_client();
                drop(balancers.list(group, subscription).into_stream().next().await);
            }
            Self::Pool {
                group,
                balancer,
                name,
            } => {
                let pools = client.load_balancer_backend_address_pools_client();
                let empty = models::BackendAddressPool::new();
                drop(pools.create_or_update(group, balancer, name, empty, subscription).send().await);
            }
            Self::SecurityGroup { group, name } => {
                let groups = client.network_security_groups_client();
                if *method == Method::PUT {
                    let empty = models::NetworkSecurityGroup::new();
                    drop(groups.create_or_update(group, name, empty, subscription).send().await);
                } else {
                    drop(groups.get(group, name, subscription).send().await);
                }
            }
            Self::Subnet { group, network, name } => {
                let subnets = client.subnets_client();
                if *method == Method::PUT {
                    let empty = models::Subnet::new();
                    drop(subnets.create_or_update(group, network, name, empty, subscription).send().await);
                } else {
                    drop(subnets.get(group, network, name, subscription).send().await);
                }
            }
            Self::LinkService { group, name } => {
                let services = client.private_link_services_client();
                match *method {
                    Method::PUT => {
                        let empty = models::PrivateLinkService::new();
                        drop(services.create_or_update(group, name, empty, subscription).send().await);
                    }
                    Method::DELETE => drop(services.delete(group, name, subscription).send().await),
                    _ => drop(services.get(group, name, subscription).send().await),
                }
            }
            Self::LinkServices { group } => {
                let services = client.private_link_services_client();
                drop(services.list(group, subscription).into_stream().next().await);
            }
            Self::LinkConnection { group, service, name } => {
                let services = client.private_link_services_client();
                drop(
                    services
                        .delete_private_endpoint_connection(group, service, name, subscription)
                        .send()
                        .await,
                );
            }
            Self::PublicAddress { group, name } => {
                let addresses = client.public_ip_addresses_client();
                match *method {
                    Method::PUT => {
                        let empty = models::PublicIpAddress::new();
                        drop(addresses.create_or_update(group, name, empty, subscription).send().await);
                    }
                    Method::DELETE => drop(addresses.delete(group, name, subscription).send().await),
                    _ => drop(addresses.get(group, name, subscription).send().await),
                }
            }
            Self::Interface { group, name } if *method == Method::PUT => {
                let empty = models::NetworkInterface::new();
                drop(
                    client
                        .network_interfaces_client()
                        .create_or_update(group, name, empty, subscription)
                        .send()
                        .await,
                );
            }
            Self::Interface { group, name } => {
                drop(client.network_interfaces_client().get(group, name, subscription).send().await);
            }
            Self::Interfaces { group } => {
                drop(client.network_interfaces_client().list(group, subscription).into_stream().next().await);
            }
            Self::ScaleSetInterfaces { group, set } => {
                let interfaces = client.network_interfaces_client();
                let list =
                    interfaces.list_virtual_machine_scale_set_network_interfaces(group, set, subscription);
                drop(list.into_stream().next().await);
            }
            Self::InstanceInterfaces { group, set, id } => {
                let interfaces = client.network_interfaces_client();
                let list = interfaces.list_virtual_machine_scale_set_vm_network_interfaces(
                    group,
                    set,
                    id,
                    subscription,
                );
                drop(list.into_stream().next().await);
            }
            Self::PublicAddresses { group } => {
                let addresses = client.public_ip_addresses_client();
                drop(addresses.list(group, subscription).into_stream().next().await);
            }
            Self::ScaleSetAddresses { group, set } => {
                let addresses = client.public_ip_addresses_client();
                let list =
                    addresses.list_virtual_machine_scale_set_public_ip_addresses(group, set, subscription);
                drop(list.into_stream().next().await);
            }
            Self::Machine { .. }
            | Self::Machines { .. }
            | Self::ScaleSet { .. }
            | Self::ScaleSets { .. }
            | Self::Zones
            | Self::Instance { .. }
            | Self::Instances { .. }
            | Self::Permissions { .. } => {}
        }
        Ok(())
    }
}
