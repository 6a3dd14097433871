//! EC2: instances, subnets, route tables, security groups, tags.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{self as sdk, AttributeBooleanValue, NetworkInterfaceStatus, RouteState};
use ccm_core::{Error, ErrorKind, Result, client::Page};
use futures_util::future::try_join_all;
use ipnet::IpNet;

use super::Client;
use crate::{
    load_balancer::kinds::{Entry, Kind, Object, RULES, Rule, TAGS},
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
    let one = |(name, values): &Filter<'_>| {
        let filter = sdk::Filter::builder().name(*name);
        filter.set_values(Some(values.clone())).build()
    };
    Some(given.iter().map(one).collect())
}

fn tags(given: Option<Vec<sdk::Tag>>) -> Tags {
    let pair = |tag: sdk::Tag| Some((tag.key?, tag.value.unwrap_or_default()));
    given.into_iter().flatten().filter_map(pair).collect()
}

fn unreadable(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("AWS answered with {what}"))
}

/// A call that creates or replaces a route with a target.
macro_rules! route {
    ($client:expr, $op:ident, $table:expr, $to:expr, $target:expr) => {{
        let [v4, v6] = one_of(&$to, $to.addr().is_ipv4());
        let [instance, interface] = one_of(&$target, is_instance($target));
        done!($client, $op, .route_table_id($table).set_destination_cidr_block(v4.clone())
            .set_destination_ipv6_cidr_block(v6.clone()).set_instance_id(instance.clone())
            .set_network_interface_id(interface.clone()))
    }};
}

/// The value as the first or the second of two fields.
fn one_of(value: &impl ToString, is_first: bool) -> [Option<String>; 2] {
    let value = Some(value.to_string());
    if is_first { [value, None] } else { [None, value] }
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
        let reply = send!(self, Instances, .max_results(PAGE).set_filters(filters(filter))
            .set_next_token(token.clone()))?;
        Ok(Page {
            items: instances(reply.reservations)?,
            next: reply.next_token,
        })
    }

    /// All instances that fit the filters. An error if a page of them cannot be read.
    pub(crate) async fn instances(&self, filter: &[Filter<'_>]) -> Result<Vec<Instance>> {
        ccm_core::client::collect(|token| self.instance_page(filter, token)).await
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
        let reply = send!(self, InstancesById, .set_instance_ids(Some(ids.to_vec())))?;
        if reply.next_token.is_some_and(|token| !token.is_empty()) {
            return Err(unreadable("a page where all instances were requested"));
        }
        instances(reply.reservations)
    }

    /// The network interfaces with these private addresses in a VPC, as Fargate nodes.
    pub(crate) async fn fargate_nodes(&self, vpc: &str, addresses: Vec<String>) -> Result<Vec<Instance>> {
        let vpc = ("vpc-id", vec![vpc.to_owned()]);
        let filter = &[vpc, ("private-ip-address", addresses)];
        list!(self, NetworkInterfaces(set_next_token, next_token), network_interfaces.flat_map(fargate),
            .max_results(PAGE).set_filters(filters(filter)))
    }

    /// All availability zones of the region, local and wavelength zones included: their names, which differ between accounts,
    /// such as `us-east-1a`, with their ids, which do not, such as `use1-az6`.
    pub(crate) async fn zones(&self) -> Result<BTreeMap<String, String>> {
        let zones = send!(self, Zones)?.availability_zones.into_iter().flatten();
        let zone = |zone: sdk::AvailabilityZone| Some((zone.zone_name?, zone.zone_id.unwrap_or_default()));
        Ok(zones.filter_map(zone).collect())
    }

    /// The network nodes above each of at most [`TOPOLOGY_INSTANCES`] instances, from the top. Instances without a topology
    /// are left out. [`ErrorKind::Unsupported`] in a region without it.
    pub(crate) async fn topology(&self, ids: &[String]) -> Result<BTreeMap<String, Vec<String>>> {
        let reply = send!(self, InstanceTopology, .set_instance_ids(Some(ids.to_vec())))?;
        let found = reply.instances.into_iter().flatten();
        let found = found.filter_map(|one| Some((one.instance_id?, one.network_nodes?)));
        Ok(found.collect())
    }

    /// Reads a VPC. [`ErrorKind::NotFound`] if it does not exist.
    pub(crate) async fn check_vpc(&self, id: &str) -> Result<()> {
        done!(self, Vpcs, .vpc_ids(id))
    }

    /// The subnets that fit the filters.
    pub(crate) async fn subnets(&self, filter: &[Filter<'_>]) -> Result<Vec<Subnet>> {
        list!(self, Subnets(set_next_token, next_token), subnets.flat_map(subnet),
            .max_results(PAGE).set_filters(filters(filter)))
    }

    /// The route tables that fit the filters, with all of their routes.
    pub(crate) async fn route_tables(&self, filter: &[Filter<'_>]) -> Result<Vec<RouteTable>> {
        list!(self, RouteTables(set_next_token, next_token), route_tables.flat_map(route_table),
            .max_results(TABLES_PAGE).set_filters(filters(filter)))
    }

    /// The security groups that fit the filters, with their rules.
    pub(crate) async fn security_groups(&self, filter: &[Filter<'_>]) -> Result<Vec<Object>> {
        list!(self, SecurityGroups(set_next_token, next_token), security_groups.flat_map(group),
            .max_results(PAGE).set_filters(filters(filter)))
    }

    /// Removes ingress rules.
    pub(crate) async fn revoke(&self, group: &str, rules: &[&Rule]) -> Result<()> {
        done!(self, IngressRevoke, .group_id(group).set_ip_permissions(permissions(rules)))
    }

    /// Creates a route in a table to an instance or a network interface. [`ErrorKind::AlreadyExists`] if there is a route with
    /// this destination; [`ErrorKind::QuotaExceeded`] if the table is full.
    pub(crate) async fn create_route(&self, table: &str, to: IpNet, target: &str) -> Result<()> {
        route!(self, RouteCreate, table, to, target)
    }

    /// Gives the route with this destination another target. [`ErrorKind::InvalidSpec`] or [`ErrorKind::NotFound`] if it
    /// does not exist.
    pub(crate) async fn replace_route(&self, table: &str, to: IpNet, target: &str) -> Result<()> {
        route!(self, RouteReplace, table, to, target)
    }

    /// Deletes the route with this destination. [`ErrorKind::NotFound`] if it does not exist.
    pub(crate) async fn delete_route(&self, table: &str, to: IpNet) -> Result<()> {
        let [v4, v6] = one_of(&to, to.addr().is_ipv4());
        done!(self, RouteDelete, .route_table_id(table).set_destination_cidr_block(v4.clone())
            .set_destination_ipv6_cidr_block(v6.clone()))
    }

    /// Switches the source/destination check of an instance or a network interface off, so that packets for Pods pass.
    /// [`ErrorKind::InvalidSpec`] for an instance with several network interfaces.
    pub(crate) async fn disable_source_dest_check(&self, target: &str) -> Result<()> {
        let off = AttributeBooleanValue::builder().value(false).build();
        if is_instance(target) {
            return done!(self, InstanceAttribute, .instance_id(target).source_dest_check(off.clone()));
        }
        done!(self, InterfaceAttribute, .network_interface_id(target).source_dest_check(off.clone()))
    }

    /// Adds tags to at most [`TAGGED_RESOURCES`] resources, or changes their values. [`ErrorKind::NotFound`] if one resource
    /// does not exist; then none is changed.
    pub(crate) async fn create_tags(&self, ids: &[String], tags: &Tags) -> Result<()> {
        done!(self, TagsCreate, .set_resources(Some(ids.to_vec())).set_tags(key_values!(sdk::Tag, tags.iter())))
    }

    /// Removes tags with these keys and values from at most [`TAGGED_RESOURCES`] resources. Errors as of
    /// [`Self::create_tags`].
    pub(crate) async fn delete_tags(&self, ids: &[String], tags: &Tags) -> Result<()> {
        done!(self, TagsDelete, .set_resources(Some(ids.to_vec())).set_tags(key_values!(sdk::Tag, tags.iter())))
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
    let ipv6 = given.ipv6_addresses.unwrap_or_default().into_iter();
    (status == Some(sdk::AttachmentStatus::Attached)).then(|| Instance {
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
    let ipv6 = given.ipv6_cidr_block_association_set.into_iter().flatten();
    let ipv6 = ipv6.filter_map(|one| one.ipv6_cidr_block);
    Some(Subnet {
        id: given.subnet_id?,
        zone: text(given.availability_zone),
        cidrs: given.cidr_block.into_iter().chain(ipv6).collect(),
        tags: tags(given.tags),
    })
}

fn route_table(given: sdk::RouteTable) -> Option<RouteTable> {
    let associations = given.associations.unwrap_or_default();
    let routes = given.routes.unwrap_or_default();
    let mut gateways = routes.iter().filter_map(|route| route.gateway_id.as_deref());
    Some(RouteTable {
        is_public: gateways.any(|gateway| gateway.starts_with("igw")),
        id: given.route_table_id?,
        is_main: associations.iter().any(|one| one.main == Some(true)),
        subnets: associations.into_iter().filter_map(|one| one.subnet_id).collect(),
        routes: routes.into_iter().filter_map(route).collect(),
        tags: tags(given.tags),
    })
}

fn route(given: sdk::Route) -> Option<Route> {
    let destination = given.destination_cidr_block;
    let destination = destination.or(given.destination_ipv6_cidr_block)?;
    let target = given.instance_id.or(given.network_interface_id);
    Some(Route {
        destination: destination.parse().ok()?,
        target: target.or(given.gateway_id),
        blackhole: given.state == Some(RouteState::Blackhole),
    })
}

/// One permission for each rule.
pub(super) fn permissions(rules: &[&Rule]) -> Option<Vec<sdk::IpPermission>> {
    let permissions = rules.iter().map(|rule| {
        let mut permission = sdk::IpPermission::builder().ip_protocol(&rule.protocol);
        if rule.protocol != "-1" {
            permission = permission.from_port(rule.from).to_port(rule.to);
        }
        let description = Some(rule.description.clone()).filter(|text| !text.is_empty());
        /// The permission with the rule's source and description.
        macro_rules! with {
            ($set:ident, $kind:ident.$field:ident) => {{
                let source = sdk::$kind::builder().$field(&rule.source);
                permission.$set(source.set_description(description).build())
            }};
        }
        let permission = match rule.source.as_str() {
            source if source.starts_with("sg-") => with!(user_id_group_pairs, UserIdGroupPair.group_id),
            source if source.starts_with("pl-") => with!(prefix_list_ids, PrefixListId.prefix_list_id),
            source if source.contains(':') => with!(ipv6_ranges, Ipv6Range.cidr_ipv6),
            _ => with!(ip_ranges, IpRange.cidr_ip),
        };
        permission.build()
    });
    Some(permissions.collect())
}

fn group(group: sdk::SecurityGroup) -> Option<Object> {
    let mut rules = Vec::new();
    for permission in group.ip_permissions() {
        let protocol = permission.ip_protocol().unwrap_or_default();
        let [from, to] = [permission.from_port(), permission.to_port()].map(|port| port.unwrap_or(-1));
        /// Adds the rules of one kind of sources.
        macro_rules! add {
            ($sources:ident.$id:ident) => {
                for one in permission.$sources() {
                    let description = one.description().unwrap_or_default();
                    let rule = |source| Rule::new(protocol, (from, to), source, description);
                    rules.extend(one.$id().map(rule).map(Entry::Rule));
                }
            };
        }
        add!(ip_ranges.cidr_ip);
        add!(ipv6_ranges.cidr_ipv6);
        add!(prefix_list_ids.prefix_list_id);
        add!(user_id_group_pairs.group_id);
    }
    let object = object!(Kind::Group, group.group_name()?, group.group_id()?, {
        "description" => group.description(),
    });
    let tags = tags(group.tags);
    let tags = tags.iter().map(|(key, value)| Entry::tag(key, value));
    Some(object.entries(TAGS, tags).entries(RULES, rules))
}
