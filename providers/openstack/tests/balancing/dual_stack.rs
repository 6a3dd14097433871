//! Services with two IP families, and subnets without free addresses.

use std::net::IpAddr;

use ccm_core::{
    AddressType, NodeAddress,
    load_balancer::{IpFamily, Protocol, ServiceView},
};
use ccm_sim::openstack::{BalancerState, NetworkSpec, SubnetSpec};
use serde_json::{Value, json};

use crate::{
    features::{annotation_key, cloud, quiet, warnings},
    stage::{INTERNAL, Stage, annotate, service},
};

const SINGLE: &str = "LoadBalancerSingleStack";

fn subnet(stage: &Stage, network: &str, name: &str, range: &str) -> String {
    let spec = SubnetSpec {
        name: name.to_owned(),
        cidr: Some(range.parse().unwrap()),
        ..SubnetSpec::default()
    };
    stage.sim.create_subnet(network, &spec).unwrap()
}

fn network(stage: &Stage, name: &str, ranges: &[&str]) -> (String, Vec<String>) {
    let spec = NetworkSpec {
        name: name.to_owned(),
        ..NetworkSpec::default()
    };
    let network = stage.sim.create_network(&spec).unwrap();
    let ranges = ranges.iter().enumerate();
    let subnets = ranges.map(|(index, range)| subnet(stage, &network, &format!("{name}-{index}"), range));
    (network.clone(), subnets.collect())
}

/// Gives the nodes' own network a second family, and adds a node with an address of it.
async fn join_dual(stage: &mut Stage) {
    subnet(stage, "private", "six", "fd00:6::/64");
    stage.join();
    let node = stage.nodes.last().unwrap();
    let id = node.view.provider_id.clone().unwrap();
    let port = stage.sim.server_ports(id.trim_start_matches("openstack:///")).remove(0);
    let addresses = stage.sim.port_addresses(&port).into_iter();
    let addresses = addresses.map(|address| NodeAddress::new(AddressType::InternalIP, address.to_string()));
    let addresses: Vec<_> = addresses.collect();
    assert_eq!(addresses.len(), 2);
    stage.nodes.last_mut().unwrap().addresses = addresses.into();
    stage.restart().await;
}

/// Gives every node an address of the second family. No port has it, as if the nodes configured it themselves.
fn add_v6(stage: &mut Stage) {
    for (index, node) in stage.nodes.iter_mut().enumerate() {
        let address = NodeAddress::new(AddressType::InternalIP, format!("fd00:6::{}", index + 100));
        node.addresses = [node.addresses[0].clone(), address].into();
    }
}

fn dual(families: [IpFamily; 2], internal: bool) -> ServiceView {
    let mut web = service("web", &[80]);
    web.ip_families = families.into();
    if internal {
        annotate(&mut web, INTERNAL, Some("true"));
    }
    web
}

/// A cloud with a network of both families, where load balancers get their addresses.
async fn stage() -> (Stage, String) {
    let mut stage = cloud("", |_| {}).await;
    let (network, _) = network(&stage, "both", &["10.66.0.0/24", "fd00:6::/64"]);
    add_v6(&mut stage);
    stage.configure(&format!("network-id = {network}"));
    stage.restart().await;
    (stage, network)
}

fn shown(stage: &Stage) -> Vec<String> {
    let ingress = stage.find("web").unwrap().ingress.iter();
    ingress.map(|ingress| ingress.ip.as_deref().unwrap_or_default().to_owned()).collect()
}

fn vips(balancer: &BalancerState) -> Vec<Value> {
    let attributes = &balancer.loadbalancer.attributes;
    let additional = attributes["additional_vips"].as_array().unwrap().iter();
    std::iter::once(attributes["vip_address"].clone())
        .chain(additional.map(|vip| vip["ip_address"].clone()))
        .collect()
}

#[tokio::test]
async fn two_families_get_two_addresses_in_their_order() {
    let (mut stage, _) = stage().await;
    let (v4, v6) = (IpFamily::V4, IpFamily::V6);
    for (families, requires) in [([v4, v6], false), ([v6, v4], true)] {
        let mut web = dual(families, true);
        web.requires_dual_stack = requires;
        stage.services = vec![web];
        stage.settle_well().await;
        let balancer = stage.balancers().remove(0);
        assert_eq!(json!(shown(&stage)), json!(vips(&balancer)));
        let is_v6: Vec<_> = shown(&stage).iter().map(|address| address.contains(':')).collect();
        assert_eq!(is_v6, families.map(|family| family == v6));
        let listener = &balancer.listeners[0].attributes;
        assert_eq!(listener["allowed_cidrs"], json!(["0.0.0.0/0", "::/0"]));
        assert_eq!(warnings(&stage), [""; 0]);
        quiet(&mut stage).await;
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.balancers().is_empty() && stage.services.is_empty());
    }
}

#[tokio::test]
async fn members_and_ranges_have_both_families() {
    let mut stage = cloud("", |_| {}).await;
    join_dual(&mut stage).await;
    let mut web = dual([IpFamily::V4, IpFamily::V6], true);
    web.source_ranges = Some(["10.0.0.0/8", "2001:db8::/32"].map(Into::into).into());
    web.ports.extend(service("web", &[53]).ports);
    web.ports[1].protocol = Protocol::Udp;
    stage.services = vec![web];
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    let of_port = |port: u16| {
        let members = balancer.members.iter();
        let mut addresses: Vec<_> = members
            .filter(|member| member.attributes["protocol_port"] == port)
            .map(|member| member.attributes["address"].as_str().unwrap().contains(':'))
            .collect();
        addresses.sort_unstable();
        addresses
    };
    let ports = &stage.find("web").unwrap().ports;
    assert_eq!(of_port(ports[0].node_port), [false, false, false, true]);
    assert_eq!(of_port(ports[1].node_port), [false; 3]);
    for listener in &balancer.listeners {
        assert_eq!(listener.attributes["allowed_cidrs"], json!(["10.0.0.0/8", "2001:db8::/32"]));
    }
    assert_eq!(warnings(&stage), ["LoadBalancerSingleStackPorts"]);
    quiet(&mut stage).await;
}

#[tokio::test]
async fn only_the_ipv4_address_has_a_floating_ip() {
    let mut stage = cloud("", |_| {}).await;
    join_dual(&mut stage).await;
    for families in [[IpFamily::V4, IpFamily::V6], [IpFamily::V6, IpFamily::V4]] {
        stage.services = vec![dual(families, false)];
        stage.settle_well().await;
        let floating = stage.sim.floating_ips().remove(0).address;
        let addresses: Vec<IpAddr> = shown(&stage).iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        for (address, family) in addresses.iter().zip(families) {
            assert_eq!(IpFamily::of(*address), family);
            assert_eq!(*address == floating, family == IpFamily::V4);
        }
        quiet(&mut stage).await;
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.sim.floating_ips().is_empty());
    }
}

#[tokio::test]
async fn without_additional_addresses_the_first_family_is_served_unless_both_are_required() {
    let (mut stage, network) = stage().await;
    stage.sim.configure(|settings| settings.load_balancing.max_minor = 25);
    stage.restart().await;
    let mut web = dual([IpFamily::V4, IpFamily::V6], true);
    web.requires_dual_stack = true;
    stage.services = vec![web];
    stage.settle().await;
    stage.assert_complaints(&["RequireDualStack", "2.26"]);
    assert!(stage.balancers().is_empty());

    stage.service("web").requires_dual_stack = false;
    stage.settle_well().await;
    assert_eq!(warnings(&stage), [SINGLE]);
    assert_eq!(shown(&stage).len(), 1);

    // An existing one stays as it is.
    stage.sim.configure(|settings| settings.load_balancing.max_minor = 27);
    for requires in [false, true] {
        stage.service("web").requires_dual_stack = requires;
        quiet(&mut stage).await;
        assert_eq!(warnings(&stage), [SINGLE]);
        let events = stage.reports.iter().flat_map(|report| &report.events);
        assert!(events.into_iter().any(|event| event.message.contains("create it again")));
    }
    assert_eq!(shown(&stage).len(), 1);

    // In a network without the other family.
    let (four, _) = self::network(&stage, "four", &["10.67.0.0/24"]);
    assert_ne!(four, network);
    stage.configure(&format!("network-id = {four}"));
    stage.restart().await;
    let mut other = dual([IpFamily::V4, IpFamily::V6], true);
    other.id = service("other", &[80]).id;
    other.requires_dual_stack = true;
    stage.services.push(other);
    stage.settle().await;
    stage.assert_complaints(&["RequireDualStack", "no subnet"]);
    assert_eq!(stage.balancers().len(), 1);
}

#[tokio::test]
async fn the_next_subnet_is_used_if_one_has_no_free_address() {
    let mut stage = cloud("", |_| {}).await;
    // Besides the gateway's, each of the first two has one address.
    let (network, subnets) = network(&stage, "tiny", &["10.70.0.0/30", "10.71.0.0/30", "10.72.0.0/24"]);
    stage.configure(&format!("network-id = {network}"));
    stage.restart().await;
    let mut used = Vec::new();
    for (name, port) in [("a", 80), ("b", 81), ("c", 82), ("d", 83)] {
        let mut wanted = service(name, &[port]);
        annotate(&mut wanted, INTERNAL, Some("true"));
        stage.services.push(wanted);
        stage.settle_well().await;
        used.push(stage.address(name));
    }
    let in_last = used.iter().filter(|address| address.starts_with("10.72.")).count();
    assert!(in_last >= 2 && used.iter().all(|address| !address.is_empty()), "{used:?}");
    quiet(&mut stage).await;
    // A subnet that the Service names is the only choice.
    let mut named = service("named", &[84]);
    annotate(&mut named, INTERNAL, Some("true"));
    annotate(&mut named, &annotation_key("subnet-id"), Some(&subnets[0]));
    stage.services.push(named);
    stage.pass_once().await;
    stage.assert_complaints(&["No more IP addresses"]);
    assert_eq!(stage.balancers().len(), 4);
}
