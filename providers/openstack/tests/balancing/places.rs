//! The subnets of load balancers, their addresses and their members; and changes of security groups.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{AddressType, NodeAddress, load_balancer::IpFamily};
use ccm_sim::{
    Action, Fault,
    openstack::{NetworkSpec, PortPatch, SubnetSpec},
};
use serde_json::json;

use crate::{
    features::{annotation_key, cloud, quiet, served, warnings, web},
    stage::{INTERNAL, Stage, annotate, service},
};

/// A network with one subnet; the IDs of both.
fn network(
    stage: &Stage,
    name: &str,
    external: bool,
    subnets: &[(&str, &str, &[&str])],
) -> (String, Vec<String>) {
    let network = NetworkSpec {
        name: name.to_owned(),
        external,
        shared: external,
        ..NetworkSpec::default()
    };
    let network = stage.sim.create_network(&network).unwrap();
    let subnets = subnets.iter().map(|(name, range, tags)| {
        let subnet = SubnetSpec {
            name: (*name).to_owned(),
            cidr: Some(range.parse().unwrap()),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..SubnetSpec::default()
        };
        stage.sim.create_subnet(&network, &subnet).unwrap()
    });
    let subnets = subnets.collect();
    (network, subnets)
}

#[tokio::test]
async fn virtual_addresses_and_members_by_annotation_class_and_config() {
    let mut stage = cloud("", |_| {}).await;
    let (net, subnets) =
        network(&stage, "apart", false, &[("a", "10.77.0.0/24", &[]), ("b", "10.78.0.0/24", &[])]);
    let conf = format!(
        "flavor-id = none\nmember-subnet-id = {b}\n[LoadBalancerClass \"own\"]\nsubnet-id = {b}\nmember-subnet-id = {a}\n",
        a = subnets[0],
        b = subnets[1]
    );
    stage.configure(&conf);
    stage.restart().await;
    // The empty text overrides the config's flavor, which does not exist.
    for (annotations, vip, members) in [
        (vec![("subnet-id", subnets[0].as_str())], "10.77.", &subnets[1]),
        (vec![("network-id", net.as_str())], "10.7", &subnets[1]),
        (vec![("class", "own"), ("member-subnet-id", subnets[1].as_str())], "10.78.", &subnets[1]),
        (vec![("class", "own")], "10.78.", &subnets[0]),
    ] {
        let mut wanted = web(&[80], &annotations);
        annotate(&mut wanted, &annotation_key("flavor-id"), Some(""));
        let internal = "service.beta.kubernetes.io/openstack-internal-load-balancer";
        annotate(&mut wanted, internal, Some("true"));
        let balancer = served(&mut stage, wanted).await;
        let address = balancer.loadbalancer.attributes["vip_address"].as_str().unwrap();
        assert!(address.starts_with(vip), "{annotations:?}: {address}");
        let subnet = &balancer.members[0].attributes["subnet_id"];
        assert_eq!(*subnet, json!(members), "{annotations:?}");
        assert_eq!(stage.address("web"), address);
        // Fields that cannot be changed stay, and users are notified.
        annotate(stage.service("web"), &annotation_key("subnet-id"), Some("another"));
        stage.settle().await;
        stage.assert_complaints(&["subnet-id"]);
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.balancers().is_empty());
    }
    stage.services = vec![web(&[80], &[("class", "unknown")])];
    stage.settle().await;
    assert!(stage.complaints().join("").contains("[LoadBalancerClass \"unknown\"]"));
}

#[tokio::test]
async fn an_ipv6_service_has_an_address_of_its_family_and_no_floating_one() {
    let mut stage = cloud("", |_| {}).await;
    let (_, subnets) = network(&stage, "six", false, &[("six", "fd00:6::/64", &[])]);
    for (index, node) in stage.nodes.iter_mut().enumerate() {
        let address = format!("fd00:6::{}", index + 100);
        node.addresses = [
            node.addresses[0].clone(),
            NodeAddress::new(AddressType::InternalIP, address),
        ]
        .into();
    }
    let mut wanted = web(&[80], &[("subnet-id", &subnets[0])]);
    wanted.ip_families = vec![IpFamily::V6];
    let balancer = served(&mut stage, wanted).await;
    let vip: IpAddr = stage.address("web").parse().unwrap();
    assert!(vip.is_ipv6());
    assert!(warnings(&stage).contains(&"LoadBalancerFloatingIPSkipped"));
    assert!(!stage.sim.call_counts().contains_key("floating_ip_create"));
    let addresses: Vec<_> = balancer.members.iter().map(|member| &member.attributes["address"]).collect();
    assert!(
        addresses.iter().all(|address| address.as_str().unwrap().contains("fd00:6::")),
        "{addresses:?}"
    );
    assert_eq!(balancer.listeners[0].attributes["allowed_cidrs"], json!(["::/0"]));
}

#[tokio::test]
async fn in_a_network_of_both_families_the_address_has_the_family_of_the_service() {
    let mut stage = cloud("", |_| {}).await;
    let (net, subnets) =
        network(&stage, "both", false, &[("four", "10.66.0.0/24", &[]), ("six", "fd00:6::/64", &[])]);
    for (index, node) in stage.nodes.iter_mut().enumerate() {
        let address = NodeAddress::new(AddressType::InternalIP, format!("fd00:6::{}", index + 100));
        node.addresses = [node.addresses[0].clone(), address].into();
    }
    stage.configure(&format!("network-id = {net}"));
    stage.restart().await;
    for (family, is_in, ranges) in [
        (IpFamily::V6, "fd00:6::", "::/0"),
        (IpFamily::V4, "10.66.0.", "0.0.0.0/0"),
    ] {
        let mut wanted = web(&[80], &[]);
        wanted.ip_families = vec![family];
        annotate(&mut wanted, INTERNAL, Some("true"));
        let balancer = served(&mut stage, wanted).await;
        let vip = balancer.loadbalancer.attributes["vip_address"].as_str().unwrap();
        assert!(vip.starts_with(is_in), "{vip}");
        assert_eq!(balancer.listeners[0].attributes["allowed_cidrs"], json!([ranges]));
        assert!(!warnings(&stage).contains(&"LoadBalancerAddressFamily"));
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.balancers().is_empty());
    }

    // A subnet of the other family is used, and a Warning says so. Nothing is created again and again.
    stage.configure(&format!("subnet-id = {}", subnets[0]));
    stage.restart().await;
    let mut wanted = web(&[80], &[]);
    wanted.ip_families = vec![IpFamily::V6];
    let balancer = served(&mut stage, wanted).await;
    let vip = balancer.loadbalancer.attributes["vip_address"].as_str().unwrap();
    assert!(vip.starts_with("10.66.0."), "{vip}");
    assert_eq!(balancer.listeners[0].attributes["allowed_cidrs"], json!(["0.0.0.0/0"]));
    assert!(warnings(&stage).contains(&"LoadBalancerAddressFamily"));
    assert_eq!(stage.sim.call_counts().get("loadbalancer_create"), None);

    // An existing address never moves, also when the config would choose another one now.
    stage.configure(&format!("network-id = {net}"));
    quiet(&mut stage).await;

    let (four, _) = network(&stage, "four", false, &[("only", "10.67.0.0/24", &[])]);
    stage.configure(&format!("network-id = {four}"));
    stage.restart().await;
    let mut other = service("other", &[80]);
    other.ip_families = vec![IpFamily::V6];
    stage.services.push(other);
    stage.settle().await;
    stage.assert_complaints(&["has no IPv6 subnet", "subnet-id"]);
    assert_eq!(stage.balancers().len(), 1);
}

#[tokio::test]
async fn in_a_network_with_ipv6_alone_an_ipv4_service_has_an_ipv6_address() {
    let mut stage = cloud("", |_| {}).await;
    let (net, subnets) =
        network(&stage, "six alone", false, &[("six", "fd00:6::/64", &[]), ("seven", "fd00:7::/64", &[])]);
    stage.configure(&format!("network-id = {net}"));
    stage.restart().await;
    let mut wanted = web(&[80], &[]);
    wanted.ip_families = vec![IpFamily::V4];
    annotate(&mut wanted, INTERNAL, Some("true"));
    let balancer = served(&mut stage, wanted).await;
    let attributes = &balancer.loadbalancer.attributes;
    // The first one by ID is named in the request, not left to Octavia.
    assert_eq!(Some(&attributes["vip_subnet_id"]), subnets.iter().min().map(|id| json!(id)).as_ref());
    let vip = attributes["vip_address"].as_str().unwrap();
    assert!(vip.starts_with("fd00:"), "{vip}");
    // Ranges have the family of the address: Octavia refuses others.
    assert_eq!(balancer.listeners[0].attributes["allowed_cidrs"], json!(["::/0"]));
    assert!(warnings(&stage).contains(&"LoadBalancerAddressFamily"));
    assert_eq!(balancer.members.len(), 2);
}

#[tokio::test]
async fn nodes_by_their_labels() {
    let mut stage = cloud("node-selector = none", |_| {}).await;
    let balancer = served(&mut stage, web(&[80], &[])).await;
    assert!(balancer.members.is_empty());
    annotate(stage.service("web"), &annotation_key("node-selector"), Some(""));
    stage.settle().await;
    assert_eq!(stage.balancers()[0].members.len(), 2);

    // A label is added, changed and removed: members follow without discovery.
    annotate(stage.service("web"), &annotation_key("node-selector"), Some("pool=edge, fast"));
    stage.settle().await;
    assert!(stage.balancers()[0].members.is_empty());
    for (labels, members) in [
        (&[("pool", "edge"), ("fast", "")][..], 1),
        (&[("pool", "edge")], 0),
        (&[("pool", "edge"), ("fast", "yes"), ("more", "x")], 1),
        (&[("pool", "core"), ("fast", "yes")], 0),
    ] {
        let node = &mut stage.nodes[1];
        let mut view = (*node.view).clone();
        view.labels = labels.iter().copied().collect();
        node.view = Arc::new(view);
        stage.sim.clear_calls();
        stage.settle().await;
        let found = stage.balancers().remove(0).members;
        assert_eq!(found.len(), members, "{labels:?}");
        assert!(found.iter().all(|member| member.name == "node-1"), "{found:?}");
        let (writes, reads) = stage.cost();
        // Reads: until the load balancer is active again, and the replaced list.
        assert!(writes == 1 && reads <= 2, "{:?}", stage.sim.call_counts());
    }
}

#[tokio::test]
async fn security_groups_go_when_they_are_managed_no_more() {
    let mut stage = cloud("manage-security-groups = true", |_| {}).await;
    stage.services.push(service("web", &[80]));
    stage.services.push(service("api", &[81]));
    stage.settle_well().await;
    assert_eq!(stage.sim.call_counts()["security_group_create"], 2);
    stage.configure("");
    stage.restart().await;
    stage.sim.clear_calls();
    stage.settle_well().await;
    let counts = stage.sim.call_counts();
    assert_eq!((counts["security_group_delete"], counts["port_update"]), (2, 2), "{counts:?}");
    assert_eq!(stage.balancers().len(), 2);
    quiet(&mut stage).await;
}

#[tokio::test]
async fn tags_of_old_releases_go_with_the_group() {
    let mut stage = cloud("manage-security-groups = true", |_| {}).await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    // As long as ports keep the group; the query for them names it.
    stage.sim.add_fault(Fault::on("port_update", Action::status(503)));
    stage.service("web").deleting = true;
    for _ in 0..3 {
        stage.pass_once().await;
    }
    let calls = stage.sim.calls();
    let mut queries = calls.iter().flat_map(|call| call.query.split('&'));
    let group = queries.find_map(|pair| pair.strip_prefix("security_groups=")).unwrap().to_owned();
    stage.sim.clear_faults();
    let server = stage.nodes[0].view.provider_id.clone().unwrap();
    let port = stage.sim.server_ports(server.trim_start_matches("openstack:///")).remove(0);
    let patch = PortPatch {
        tags: Some(vec!["mine".to_owned(), group]),
        ..PortPatch::default()
    };
    stage.sim.update_port(&port, &patch).unwrap();
    stage.restart().await;
    stage.sim.clear_calls();
    stage.settle().await;
    assert!(stage.services.is_empty(), "{:?}", stage.complaints());
    assert_eq!(stage.sim.call_counts()["tag_remove"], 1);
}
