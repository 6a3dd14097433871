//! EC2: instances, subnets, route tables, security groups, tags.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{self as sdk, AttributeBooleanValue, NetworkInterfaceStatus, RouteState};
use ccm_core::{
    Error, ErrorKind, Result,
    client::{Page, collect},
    plan::objects::stale,
};
use futures_util::future::try_join_all;
use ipnet::IpNet;
use tracing::warn;

use super::{Client, Op, elb::identified};
use crate::{
    load_balancer::{
        fields,
        kinds::{Object, ObjectKind, Rule, SetEntry},
        updates::EntrySet,
    },
    site::Tags,
};

/// The most results on a page.
const PAGE: i32 = 1000;
/// The most route tables on a page.
const TABLES_PAGE: i32 = 100;
/// The most values of one filter. EC2 refuses more with FilterLimitExceeded.
pub(crate) const FILTER_VALUES: usize = 200;
/// The most resources of one CreateTags or DeleteTags.
pub(crate) const TAGGED_RESOURCES: usize = 1000;
/// The most instances of one DescribeInstanceTopology.
pub(crate) const TOPOLOGY_INSTANCES: usize = 100;

/// An instance, or a Fargate node, with the fields that nodes and load balancers need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instance {
    /// `i-...`, or `fargate-...`.
    pub(crate) id: String,
    /// `pending`, `running`, `stopping`, `stopped`, `shutting-down` or `terminated`.
    pub(crate) state: String,
    /// Its type; empty for a Fargate node.
    pub(crate) instance_type: String,
    /// Its availability zone.
    pub(crate) zone: String,
    /// Its VPC.
    pub(crate) vpc: String,
    /// Its subnet.
    pub(crate) subnet: String,
    /// Its private DNS name.
    pub(crate) private_dns: String,
    /// Its public DNS name.
    pub(crate) public_dns: String,
    /// Its public address.
    pub(crate) public_ip: String,
    /// Its network interfaces, in the order of the API.
    pub(crate) interfaces: Vec<Interface>,
    /// Ids of its security groups.
    pub(crate) security_groups: Vec<String>,
    /// Whether packets that are not from or to its addresses are dropped.
    pub(crate) source_dest_check: bool,
    /// Its tags.
    pub(crate) tags: Tags,
    /// Whether it is a Fargate node: a network interface of which only the address is known.
    pub(crate) is_fargate: bool,
}

/// A network interface of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    /// `eni-...`.
    pub(crate) id: String,
    /// Its device index; `None` while it is not attached.
    pub(crate) device_index: Option<i32>,
    /// Whether it is in use.
    pub(crate) in_use: bool,
    /// Its private IPv4 addresses, the primary one first.
    pub(crate) addresses: Vec<String>,
    /// Its IPv6 addresses.
    pub(crate) ipv6: Vec<String>,
    /// Whether packets that are not from or to its addresses are dropped.
    pub(crate) source_dest_check: bool,
}

/// A subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subnet {
    /// `subnet-...`.
    pub(crate) id: String,
    /// Its availability zone.
    pub(crate) zone: String,
    /// Its IPv4 network, then its IPv6 networks.
    pub(crate) cidrs: Vec<String>,
    /// Its tags.
    pub(crate) tags: Tags,
}

impl Subnet {
    /// Whether it has an IPv6 network.
    pub(crate) fn has_v6(&self) -> bool {
        self.cidrs.iter().any(|cidr| cidr.contains(':'))
    }
}

/// A route table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteTable {
    /// `rtb-...`.
    pub(crate) id: String,
    /// Whether it applies to all subnets without an explicit association.
    pub(crate) is_main: bool,
    /// The subnets that it is explicitly associated with.
    pub(crate) subnets: Vec<String>,
    /// Its routes to IP networks.
    pub(crate) routes: Vec<Route>,
    /// Whether a route leads to an internet gateway, also one whose destination is a prefix list.
    pub(crate) is_public: bool,
    /// Its tags.
    pub(crate) tags: Tags,
}

/// A route of a route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The destination of packets. Prefix lists are left out.
    pub(crate) destination: IpNet,
    /// The instance, else the network interface, else the gateway that they go to: `igw-...`, `local`.
    pub(crate) target: Option<String>,
    /// Whether the target does not exist (state `blackhole`).
    pub(crate) blackhole: bool,
}

/// A filter: all conditions must hold, each for one of its values.
pub(crate) type Filter<'a> = (&'a str, Vec<String>);

fn filters(given: &[Filter<'_>]) -> Option<Vec<sdk::Filter>> {
    let mut filters = Vec::new();
    for (name, values) in given {
        filters.push(sdk::Filter::builder().name(*name).set_values(Some(values.clone())).build());
    }
    Some(filters)
}

/// Tags of EC2 with these keys and values.
pub(super) fn sdk_tags(
    pairs: impl Iterator<Item = (impl Into<String>, impl Into<String>)>,
) -> Option<Vec<sdk::Tag>> {
    Some(pairs.map(|(key, value)| sdk::Tag::builder().key(key).value(value).build()).collect())
}

fn tags(given: Option<Vec<sdk::Tag>>) -> Tags {
    let given = given.unwrap_or_default().into_iter();
    given.filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default()))).collect()
}

fn unreadable(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("AWS answered with {what}"))
}

/// The fields of a call that creates or replaces a route, of which one of each pair is set.
struct RouteFields {
    v4: Option<String>,
    v6: Option<String>,
    instance: Option<String>,
    interface: Option<String>,
}

impl RouteFields {
    /// A route to an instance or to a network interface.
    fn new(to: IpNet, target: &str) -> Self {
        let (v4, v6) = destination_fields(to);
        let (instance, interface) = if is_instance(target) {
            (Some(target.to_owned()), None)
        } else {
            (None, Some(target.to_owned()))
        };
        Self {
            v4,
            v6,
            instance,
            interface,
        }
    }
}

/// The destination of a route as its IPv4 field or its IPv6 field.
fn destination_fields(to: IpNet) -> (Option<String>, Option<String>) {
    match to {
        IpNet::V4(network) => (Some(network.to_string()), None),
        IpNet::V6(network) => (None, Some(network.to_string())),
    }
}

/// Whether a route leads to an instance, not to a network interface.
fn is_instance(target: &str) -> bool {
    target.starts_with("i-")
}

/// Errors are those of the table in [`crate::error`].
impl Client {
    /// A page of the instances that fit the filters.
    pub(crate) async fn instance_page(
        &self,
        filter: &[Filter<'_>],
        token: Option<String>,
    ) -> Result<Page<Instance, String>> {
        let reply = self
            .call(Op::Instances, |sdk| {
                sdk.ec2
                    .describe_instances()
                    .max_results(PAGE)
                    .set_filters(filters(filter))
                    .set_next_token(token.clone())
                    .send()
            })
            .await?;
        Ok(Page {
            items: instances(reply.reservations)?,
            next: reply.next_token,
        })
    }

    /// All instances that fit the filters. An error if a page of them cannot be read.
    pub(crate) async fn instances(&self, filter: &[Filter<'_>]) -> Result<Vec<Instance>> {
        collect(|token| self.instance_page(filter, token)).await
    }

    /// The instances with these ids that a filter finds.
    pub(crate) async fn instances_among(&self, ids: &[String]) -> Result<Vec<Instance>> {
        let reads = ids.chunks(FILTER_VALUES).map(|chunk| async move {
            let filter = [("instance-id", chunk.to_vec())];
            self.instances(&filter).await
        });
        Ok(try_join_all(reads).await?.concat())
    }

    /// The instances with these ids. If one does not exist: [`ErrorKind::NotFound`], and the message names those that do not.
    pub(crate) async fn instances_by_id(&self, ids: &[String]) -> Result<Vec<Instance>> {
        let reply = self
            .call(Op::InstancesById, |sdk| {
                sdk.ec2.describe_instances().set_instance_ids(Some(ids.to_vec())).send()
            })
            .await?;
        if reply.next_token.is_some_and(|token| !token.is_empty()) {
            return Err(unreadable("a page where all instances were requested"));
        }
        instances(reply.reservations)
    }

    /// The network interfaces with these private addresses in a VPC, as Fargate nodes.
    pub(crate) async fn fargate_nodes(&self, vpc: &str, addresses: Vec<String>) -> Result<Vec<Instance>> {
        let vpc = ("vpc-id", vec![vpc.to_owned()]);
        let filter = &[vpc, ("private-ip-address", addresses)];
        collect(|token: Option<String>| async move {
            let reply = self
                .call(Op::NetworkInterfaces, |sdk| {
                    sdk.ec2
                        .describe_network_interfaces()
                        .max_results(PAGE)
                        .set_filters(filters(filter))
                        .set_next_token(token.clone())
                        .send()
                })
                .await?;
            let items = reply.network_interfaces.unwrap_or_default().into_iter();
            Ok(Page {
                items: items.filter_map(fargate).collect(),
                next: reply.next_token,
            })
        })
        .await
    }

    /// All availability zones of the region, local and wavelength zones included: their names, which differ between accounts,
    /// such as `us-east-1a`, with their ids, which do not, such as `use1-az6`.
    pub(crate) async fn zones(&self) -> Result<BTreeMap<String, String>> {
        let reply = self.call(Op::Zones, |sdk| sdk.ec2.describe_availability_zones().send()).await?;
        let zones = reply.availability_zones.unwrap_or_default().into_iter();
        Ok(zones
            .filter_map(|zone| Some((zone.zone_name?, zone.zone_id.unwrap_or_default())))
            .collect())
    }

    /// The network nodes above each of at most [`TOPOLOGY_INSTANCES`] instances, from the top. Instances without a topology
    /// are left out. [`ErrorKind::Unsupported`] in a region without it.
    pub(crate) async fn topology(&self, ids: &[String]) -> Result<BTreeMap<String, Vec<String>>> {
        let reply = self
            .call(Op::InstanceTopology, |sdk| {
                sdk.ec2.describe_instance_topology().set_instance_ids(Some(ids.to_vec())).send()
            })
            .await?;
        let found = reply.instances.unwrap_or_default().into_iter();
        Ok(found
            .filter_map(|topology| Some((topology.instance_id?, topology.network_nodes?)))
            .collect())
    }

    /// Reads a VPC. [`ErrorKind::NotFound`] if it does not exist.
    pub(crate) async fn check_vpc(&self, id: &str) -> Result<()> {
        self.execute(Op::Vpcs, |sdk| sdk.ec2.describe_vpcs().vpc_ids(id).send()).await
    }

    /// The subnets that fit the filters.
    pub(crate) async fn subnets(&self, filter: &[Filter<'_>]) -> Result<Vec<Subnet>> {
        collect(|token: Option<String>| async move {
            let reply = self
                .call(Op::Subnets, |sdk| {
                    sdk.ec2
                        .describe_subnets()
                        .max_results(PAGE)
                        .set_filters(filters(filter))
                        .set_next_token(token.clone())
                        .send()
                })
                .await?;
            let items = reply.subnets.unwrap_or_default().into_iter();
            Ok(Page {
                items: items.filter_map(subnet).collect(),
                next: reply.next_token,
            })
        })
        .await
    }

    /// The route tables that fit the filters, with all of their routes.
    pub(crate) async fn route_tables(&self, filter: &[Filter<'_>]) -> Result<Vec<RouteTable>> {
        collect(|token: Option<String>| async move {
            let reply = self
                .call(Op::RouteTables, |sdk| {
                    sdk.ec2
                        .describe_route_tables()
                        .max_results(TABLES_PAGE)
                        .set_filters(filters(filter))
                        .set_next_token(token.clone())
                        .send()
                })
                .await?;
            let items = reply.route_tables.unwrap_or_default().into_iter();
            Ok(Page {
                items: items.filter_map(route_table).collect(),
                next: reply.next_token,
            })
        })
        .await
    }

    /// The security groups that fit the filters, with their rules.
    pub(crate) async fn security_groups(&self, filter: &[Filter<'_>]) -> Result<Vec<Object>> {
        collect(|token: Option<String>| async move {
            let reply = self
                .call(Op::SecurityGroups, |sdk| {
                    sdk.ec2
                        .describe_security_groups()
                        .max_results(PAGE)
                        .set_filters(filters(filter))
                        .set_next_token(token.clone())
                        .send()
                })
                .await?;
            let items = reply.security_groups().iter();
            Ok(Page {
                items: items.filter_map(group).collect(),
                next: reply.next_token,
            })
        })
        .await
    }

    /// Adds ingress rules. [`ErrorKind::AlreadyExists`] if one exists; then none is added.
    pub(super) async fn authorize(&self, group: &str, rules: &[&Rule]) -> Result<()> {
        self.execute(Op::IngressAuthorize, |sdk| {
            let permissions = Some(permissions(rules));
            sdk.ec2
                .authorize_security_group_ingress()
                .group_id(group)
                .set_ip_permissions(permissions)
                .send()
        })
        .await
    }

    /// Removes ingress rules. [`stale`] if AWS does not know a rule as it was read, and removed only the others: in a default VPC,
    /// this is no error of the request.
    pub(crate) async fn revoke(&self, group: &str, rules: &[&Rule]) -> Result<()> {
        let reply = self
            .call(Op::IngressRevoke, |sdk| {
                let permissions = Some(permissions(rules));
                sdk.ec2
                    .revoke_security_group_ingress()
                    .group_id(group)
                    .set_ip_permissions(permissions)
                    .send()
            })
            .await?;
        if reply.unknown_ip_permissions().is_empty() {
            return Ok(());
        }
        let unknown = reply.unknown_ip_permissions().len();
        warn!(
            security_group = group,
            unknown, "AWS did not remove rules that it does not know in this form"
        );
        Err(stale())
    }

    /// Creates a route in a table to an instance or a network interface. [`ErrorKind::AlreadyExists`] if there is a route with
    /// this destination; [`ErrorKind::QuotaExceeded`] if the table is full.
    pub(crate) async fn create_route(&self, table: &str, to: IpNet, target: &str) -> Result<()> {
        self.execute(Op::RouteCreate, |sdk| {
            let route = RouteFields::new(to, target);
            sdk.ec2
                .create_route()
                .route_table_id(table)
                .set_destination_cidr_block(route.v4)
                .set_destination_ipv6_cidr_block(route.v6)
                .set_instance_id(route.instance)
                .set_network_interface_id(route.interface)
                .send()
        })
        .await
    }

    /// Gives the route with this destination another target. [`ErrorKind::InvalidSpec`] or [`ErrorKind::NotFound`] if it
    /// does not exist.
    pub(crate) async fn replace_route(&self, table: &str, to: IpNet, target: &str) -> Result<()> {
        self.execute(Op::RouteReplace, |sdk| {
            let route = RouteFields::new(to, target);
            sdk.ec2
                .replace_route()
                .route_table_id(table)
                .set_destination_cidr_block(route.v4)
                .set_destination_ipv6_cidr_block(route.v6)
                .set_instance_id(route.instance)
                .set_network_interface_id(route.interface)
                .send()
        })
        .await
    }

    /// Deletes the route with this destination. [`ErrorKind::NotFound`] if it does not exist.
    pub(crate) async fn delete_route(&self, table: &str, to: IpNet) -> Result<()> {
        self.execute(Op::RouteDelete, |sdk| {
            let (v4, v6) = destination_fields(to);
            sdk.ec2
                .delete_route()
                .route_table_id(table)
                .set_destination_cidr_block(v4)
                .set_destination_ipv6_cidr_block(v6)
                .send()
        })
        .await
    }

    /// Switches the source/destination check of an instance or a network interface off, so that packets for Pods pass.
    /// [`ErrorKind::InvalidSpec`] for an instance with several network interfaces.
    pub(crate) async fn disable_source_dest_check(&self, target: &str) -> Result<()> {
        let off = AttributeBooleanValue::builder().value(false).build();
        if is_instance(target) {
            self.execute(Op::InstanceAttribute, |sdk| {
                sdk.ec2
                    .modify_instance_attribute()
                    .instance_id(target)
                    .source_dest_check(off.clone())
                    .send()
            })
            .await
        } else {
            self.execute(Op::InterfaceAttribute, |sdk| {
                sdk.ec2
                    .modify_network_interface_attribute()
                    .network_interface_id(target)
                    .source_dest_check(off.clone())
                    .send()
            })
            .await
        }
    }

    /// Adds tags to at most [`TAGGED_RESOURCES`] resources, or changes their values. [`ErrorKind::NotFound`] if one resource
    /// does not exist; then none is changed.
    pub(crate) async fn create_tags(&self, ids: &[String], tags: &Tags) -> Result<()> {
        self.execute(Op::TagsCreate, |sdk| {
            sdk.ec2
                .create_tags()
                .set_resources(Some(ids.to_vec()))
                .set_tags(sdk_tags(tags.iter()))
                .send()
        })
        .await
    }

    /// Removes tags with these keys and values from at most [`TAGGED_RESOURCES`] resources. Errors as of
    /// [`Self::create_tags`].
    pub(crate) async fn delete_tags(&self, ids: &[String], tags: &Tags) -> Result<()> {
        self.execute(Op::TagsDelete, |sdk| {
            sdk.ec2
                .delete_tags()
                .set_resources(Some(ids.to_vec()))
                .set_tags(sdk_tags(tags.iter()))
                .send()
        })
        .await
    }
}

/// The text of a value, empty for `None`.
fn text(value: Option<impl AsRef<str>>) -> String {
    value.map_or_else(String::new, |value| value.as_ref().to_owned())
}

fn instances(reservations: Option<Vec<sdk::Reservation>>) -> Result<Vec<Instance>> {
    let reservations = reservations.unwrap_or_default().into_iter();
    let instances = reservations.flat_map(|reservation| reservation.instances.unwrap_or_default());
    instances.map(instance).collect()
}

fn instance(given: sdk::Instance) -> Result<Instance> {
    let groups = given.security_groups.unwrap_or_default().into_iter();
    let interfaces = given.network_interfaces.unwrap_or_default().into_iter();
    Ok(Instance {
        id: given.instance_id.ok_or_else(|| unreadable("an instance without an id"))?,
        state: text(given.state.and_then(|state| state.name)),
        instance_type: text(given.instance_type),
        zone: text(given.placement.and_then(|place| place.availability_zone)),
        vpc: text(given.vpc_id),
        subnet: text(given.subnet_id),
        private_dns: text(given.private_dns_name),
        public_dns: text(given.public_dns_name),
        public_ip: text(given.public_ip_address),
        interfaces: interfaces.map(interface).collect(),
        security_groups: groups.filter_map(|group| group.group_id).collect(),
        source_dest_check: given.source_dest_check.unwrap_or(true),
        tags: tags(given.tags),
        is_fargate: false,
    })
}

fn interface(given: sdk::InstanceNetworkInterface) -> Interface {
    let ips = given.private_ip_addresses.unwrap_or_default().into_iter();
    let ipv6 = given.ipv6_addresses.unwrap_or_default().into_iter();
    Interface {
        id: text(given.network_interface_id),
        device_index: given.attachment.and_then(|attachment| attachment.device_index),
        in_use: given.status == Some(NetworkInterfaceStatus::InUse),
        addresses: ips.filter_map(|ip| ip.private_ip_address).collect(),
        ipv6: ipv6.filter_map(|ip| ip.ipv6_address).collect(),
        source_dest_check: given.source_dest_check.unwrap_or(true),
    }
}

/// A Fargate node by its network interface, if that is attached. The interface does not have the node's id.
fn fargate(given: sdk::NetworkInterface) -> Option<Instance> {
    let status = given.attachment.and_then(|attachment| attachment.status);
    if status != Some(sdk::AttachmentStatus::Attached) {
        return None;
    }
    let ipv6 = given.ipv6_addresses.unwrap_or_default().into_iter();
    Some(Instance {
        zone: text(given.availability_zone),
        private_dns: text(given.private_dns_name),
        interfaces: vec![Interface {
            in_use: true,
            addresses: given.private_ip_address.into_iter().collect(),
            ipv6: ipv6.filter_map(|ip| ip.ipv6_address).collect(),
            ..Interface::default()
        }],
        is_fargate: true,
        ..Instance::default()
    })
}

fn subnet(given: sdk::Subnet) -> Option<Subnet> {
    let ipv6 = given.ipv6_cidr_block_association_set.unwrap_or_default().into_iter();
    let ipv6_cidrs = ipv6.filter_map(|association| association.ipv6_cidr_block);
    Some(Subnet {
        id: given.subnet_id?,
        zone: text(given.availability_zone),
        cidrs: given.cidr_block.into_iter().chain(ipv6_cidrs).collect(),
        tags: tags(given.tags),
    })
}

fn route_table(given: sdk::RouteTable) -> Option<RouteTable> {
    let associations = given.associations.unwrap_or_default();
    let routes = given.routes.unwrap_or_default();
    let is_public = routes
        .iter()
        .any(|route| route.gateway_id.as_deref().is_some_and(|gateway| gateway.starts_with("igw")));
    Some(RouteTable {
        is_public,
        id: given.route_table_id?,
        is_main: associations.iter().any(|one| one.main == Some(true)),
        subnets: associations.into_iter().filter_map(|one| one.subnet_id).collect(),
        routes: routes.into_iter().filter_map(route).collect(),
        tags: tags(given.tags),
    })
}

fn route(given: sdk::Route) -> Option<Route> {
    let destination = given.destination_cidr_block.or(given.destination_ipv6_cidr_block)?;
    Some(Route {
        destination: destination.parse().ok()?,
        target: given.instance_id.or(given.network_interface_id).or(given.gateway_id),
        blackhole: given.state == Some(RouteState::Blackhole),
    })
}

/// One permission for each rule.
pub(super) fn permissions(rules: &[&Rule]) -> Vec<sdk::IpPermission> {
    rules.iter().map(|rule| permission(rule)).collect()
}

fn permission(rule: &Rule) -> sdk::IpPermission {
    let mut permission = sdk::IpPermission::builder().ip_protocol(&rule.protocol);
    if rule.protocol != "-1" {
        permission = permission.from_port(rule.from).to_port(rule.to);
    }
    let source = &rule.source;
    let description = match rule.description.as_str() {
        "" => None,
        text => Some(text.to_owned()),
    };
    if source.starts_with("sg-") {
        let pair = sdk::UserIdGroupPair::builder().group_id(source).set_description(description).build();
        permission = permission.user_id_group_pairs(pair);
    } else if source.starts_with("pl-") {
        let list = sdk::PrefixListId::builder().prefix_list_id(source).set_description(description).build();
        permission = permission.prefix_list_ids(list);
    } else if source.contains(':') {
        let range = sdk::Ipv6Range::builder().cidr_ipv6(source).set_description(description).build();
        permission = permission.ipv6_ranges(range);
    } else {
        let range = sdk::IpRange::builder().cidr_ip(source).set_description(description).build();
        permission = permission.ip_ranges(range);
    }
    permission.build()
}

fn group(group: &sdk::SecurityGroup) -> Option<Object> {
    let tags = tags(group.tags.clone());
    let rules = group.ip_permissions().iter().flat_map(rules).map(SetEntry::Rule);
    let object = identified(ObjectKind::Group, group.group_name()?, group.group_id()?)
        .with(fields::DESCRIPTION, group.description())
        .entries(EntrySet::Tags.name(), tags.iter().map(|(key, value)| SetEntry::tag(key, value)))
        .entries(EntrySet::Rules.name(), rules);
    Some(object)
}

/// The rules of a permission, one for each of its sources.
fn rules(permission: &sdk::IpPermission) -> Vec<Rule> {
    let ranges = permission.ip_ranges().iter().map(|range| (range.cidr_ip(), range.description()));
    let ipv6_ranges = permission.ipv6_ranges().iter().map(|range| (range.cidr_ipv6(), range.description()));
    let lists = permission
        .prefix_list_ids()
        .iter()
        .map(|list| (list.prefix_list_id(), list.description()));
    let groups = permission.user_id_group_pairs().iter().map(|pair| (pair.group_id(), pair.description()));
    let protocol = permission.ip_protocol().unwrap_or_default();
    let ports = (permission.from_port().unwrap_or(-1), permission.to_port().unwrap_or(-1));
    ranges
        .chain(ipv6_ranges)
        .chain(lists)
        .chain(groups)
        .filter_map(|(source, description)| {
            Some(Rule::new(protocol, ports, source?, description.unwrap_or_default()))
        })
        .collect()
}
