//! The calls and their quotas.
//!
//! Each request draws from three quotas: that of its gate bucket here (limits of a resource provider, for a subscription and
//! region), that of Azure's front door (for a subscription, region and principal), and the client's own limit of the config.

use ccm_core::client::{Effect, Operation, Quota, operations};

/// Reads of Microsoft.Network: 10,000 in 5 minutes. 1,000 + 300 s x 30/s = 10,000.
pub(crate) const NETWORK_READS: &str = "network-reads";
/// Writes and deletes of Microsoft.Network: 1,000 in 5 minutes. 200 + 300 s x 2.6/s = 980.
pub(crate) const NETWORK_WRITES: &str = "network-writes";
/// Single machines and instances: 36 at once for each machine, 8,000 a minute in all.
pub(crate) const MACHINE_READS: &str = "compute-reads";
/// Lists of machines, scale sets and instances, which have the smallest limits: 900 at once, 300 a minute, and 1,400 in 30 minutes
/// by older policies. 140 + 1,800 s x 0.7/s = 1,400.
pub(crate) const MACHINE_LISTS: &str = "compute-lists";
/// Writes of scale sets and instances: 1,500 at once, 500 a minute.
pub(crate) const MACHINE_WRITES: &str = "compute-writes";
/// Logins and requests to the metadata service, which allows about 5 a second.
pub(crate) const LOGIN: &str = "login";

/// The buckets of resource providers.
pub(crate) const BUCKETS: [(&str, Quota); 6] = [
    (NETWORK_READS, quota(30.0, 1000, 16)),
    (NETWORK_WRITES, quota(2.6, 200, 16)),
    (MACHINE_READS, quota(20.0, 200, 16)),
    (MACHINE_LISTS, quota(0.7, 140, 8)),
    (MACHINE_WRITES, quota(8.0, 200, 32)),
    (LOGIN, quota(2.0, 10, 4)),
];

/// The front door's limits for a principal: reads, writes, deletes.
pub(crate) const FRONT_DOOR: [Quota; 3] = [
    quota(25.0, 250, u32::MAX),
    quota(10.0, 200, u32::MAX),
    quota(10.0, 200, u32::MAX),
];

const fn quota(rate: f64, burst: u32, max_in_flight: u32) -> Quota {
    Quota {
        rate,
        burst,
        max_in_flight,
    }
}

operations! {
    /// The calls.
    pub(crate) enum Op {
        /// The endpoints of a cloud.
        EndpointsGet = "endpoints_get", LOGIN, Read;
        /// A token for a service principal, a workload identity or a managed identity.
        TokenGet = "token_get", LOGIN, Read;
        /// The state of an operation that takes time.
        OperationGet = "operation_get", NETWORK_READS, Read;
        /// One route table.
        RouteTableGet = "route_table_get", NETWORK_READS, Read;
        /// Replaces a route table.
        RouteTablePut = "route_table_put", NETWORK_WRITES, IdempotentWrite;
        /// One load balancer.
        LoadBalancerGet = "load_balancer_get", NETWORK_READS, Read;
        /// The load balancers of a resource group.
        LoadBalancerList = "load_balancer_list", NETWORK_READS, Read;
        /// Replaces a load balancer.
        LoadBalancerPut = "load_balancer_put", NETWORK_WRITES, IdempotentWrite;
        /// Deletes a load balancer.
        LoadBalancerDelete = "load_balancer_delete", NETWORK_WRITES, IdempotentWrite;
        /// Replaces a backend pool.
        PoolPut = "backend_pool_put", NETWORK_WRITES, IdempotentWrite;
        /// One network security group.
        SecurityGroupGet = "security_group_get", NETWORK_READS, Read;
        /// Replaces a network security group.
        SecurityGroupPut = "security_group_put", NETWORK_WRITES, IdempotentWrite;
        /// One subnet.
        SubnetGet = "subnet_get", NETWORK_READS, Read;
        /// Replaces a subnet.
        SubnetPut = "subnet_put", NETWORK_WRITES, IdempotentWrite;
        /// One private link service.
        LinkServiceGet = "private_link_service_get", NETWORK_READS, Read;
        /// The private link services of a resource group.
        LinkServiceList = "private_link_service_list", NETWORK_READS, Read;
        /// Replaces a private link service.
        LinkServicePut = "private_link_service_put", NETWORK_WRITES, IdempotentWrite;
        /// Deletes a private link service.
        LinkServiceDelete = "private_link_service_delete", NETWORK_WRITES, IdempotentWrite;
        /// Deletes the connection of a private endpoint.
        LinkConnectionDelete = "private_endpoint_connection_delete", NETWORK_WRITES, IdempotentWrite;
        /// One public IP address.
        PublicAddressGet = "public_address_get", NETWORK_READS, Read;
        /// Replaces a public IP address.
        PublicAddressPut = "public_address_put", NETWORK_WRITES, IdempotentWrite;
        /// Deletes a public IP address.
        PublicAddressDelete = "public_address_delete", NETWORK_WRITES, IdempotentWrite;
        /// Replaces a network interface.
        InterfacePut = "interface_put", NETWORK_WRITES, IdempotentWrite;
        /// Replaces the model of a scale set.
        ScaleSetPut = "scale_set_put", MACHINE_WRITES, IdempotentWrite;
        /// Replaces an instance of a scale set.
        InstancePut = "instance_put", MACHINE_WRITES, IdempotentWrite;
        /// The zones of the region.
        ZoneList = "zone_list", MACHINE_READS, Read;
        /// One network interface of a machine.
        InterfaceGet = "interface_get", NETWORK_READS, Read;
        /// The network interfaces of a resource group.
        InterfaceList = "interface_list", NETWORK_READS, Read;
        /// The network interfaces of a scale set.
        ScaleSetInterfaceList = "scale_set_interface_list", NETWORK_READS, Read;
        /// The network interfaces of an instance.
        InstanceInterfaceList = "instance_interface_list", NETWORK_READS, Read;
        /// The public IP addresses of a resource group.
        PublicAddressList = "public_address_list", NETWORK_READS, Read;
        /// The public IP addresses of a scale set.
        ScaleSetAddressList = "scale_set_address_list", NETWORK_READS, Read;
        /// One machine.
        MachineGet = "machine_get", MACHINE_READS, Read;
        /// The machines of a resource group.
        MachineList = "machine_list", MACHINE_LISTS, Read;
        /// The scale sets of a resource group.
        ScaleSetList = "scale_set_list", MACHINE_LISTS, Read;
        /// One instance of a scale set.
        InstanceGet = "instance_get", MACHINE_READS, Read;
        /// The instances of a scale set.
        InstanceList = "instance_list", MACHINE_LISTS, Read;
        /// The actions that the credentials permit in a resource group, for `validate`.
        PermissionList = "permission_list", MACHINE_READS, Read;
    }
}

impl Op {
    /// The API version of its resource type, and the one on Azure Stack.
    pub(crate) fn api_version(self) -> (&'static str, &'static str) {
        match self {
            // Also of the network interfaces below scale sets, which Microsoft.Network serves.
            Self::ScaleSetInterfaceList | Self::InstanceInterfaceList | Self::ScaleSetAddressList => {
                ("2018-10-01", "2018-10-01")
            }
            Self::MachineGet | Self::MachineList => ("2025-04-01", "2017-12-01"),
            Self::ScaleSetList
            | Self::ScaleSetPut
            | Self::InstanceGet
            | Self::InstanceList
            | Self::InstancePut => ("2025-04-01", "2019-07-01"),
            Self::ZoneList => ("2021-04-01", "2021-04-01"),
            Self::PermissionList => ("2022-04-01", "2016-07-01"),
            Self::EndpointsGet => ("2019-05-01", "2019-05-01"),
            Self::LinkServiceGet
            | Self::LinkServiceList
            | Self::LinkServicePut
            | Self::LinkServiceDelete
            | Self::LinkConnectionDelete => ("2025-05-01", "2019-03-01"),
            _ => ("2025-05-01", "2018-11-01"),
        }
    }

    /// The key of the client's rate limit in the config.
    pub(crate) fn rate_limit_key(self) -> Option<&'static str> {
        Some(match self {
            Self::RouteTableGet | Self::RouteTablePut => "routeTableRateLimit",
            Self::LoadBalancerGet
            | Self::LoadBalancerList
            | Self::LoadBalancerPut
            | Self::LoadBalancerDelete
            | Self::PoolPut => "loadBalancerRateLimit",
            Self::SecurityGroupGet | Self::SecurityGroupPut => "securityGroupRateLimit",
            Self::SubnetGet | Self::SubnetPut => "subnetsRateLimit",
            Self::LinkServiceGet
            | Self::LinkServiceList
            | Self::LinkServicePut
            | Self::LinkServiceDelete
            | Self::LinkConnectionDelete => "privateLinkServiceRateLimit",
            Self::InterfaceGet
            | Self::InterfaceList
            | Self::InterfacePut
            | Self::ScaleSetInterfaceList
            | Self::InstanceInterfaceList => "interfaceRateLimit",
            Self::PublicAddressGet
            | Self::PublicAddressPut
            | Self::PublicAddressDelete
            | Self::PublicAddressList
            | Self::ScaleSetAddressList => "publicIPAddressRateLimit",
            Self::MachineGet | Self::MachineList => "virtualMachineRateLimit",
            Self::ScaleSetList
            | Self::ScaleSetPut
            | Self::InstanceGet
            | Self::InstanceList
            | Self::InstancePut => "virtualMachineScaleSetRateLimit",
            Self::EndpointsGet
            | Self::TokenGet
            | Self::OperationGet
            | Self::PermissionList
            | Self::ZoneList => return None,
        })
    }

    /// Whether it changes something.
    pub(crate) fn is_write(self) -> bool {
        self.effect() != Effect::Read
    }
}
