//! The sources of floating IPs.

use std::{collections::BTreeMap, net::IpAddr};

use ccm_core::load_balancer::ServiceView;
use ccm_sim::{
    Action, Fault,
    openstack::{NetworkSpec, RouterSpec, SubnetSpec},
};

use crate::{
    features::{annotation_key, cloud, quiet, warnings},
    stage::{ADDRESS, Stage, annotate, service},
};

/// Subnets of the external network `public`, which also has 203.0.113.0/24: name, range, tags.
const SUBNETS: [(&str, &str, &[&str]); 4] = [
    ("red-1", "198.51.100.0/26", &["dmz"]),
    ("red-2", "198.51.100.64/26", &["dmz", "fast"]),
    ("blue", "198.51.100.128/26", &["fast"]),
    // It has one address in addition to the gateway's.
    ("tiny-1", "198.51.100.192/30", &[]),
];
const FAILED: &str = "LoadBalancerExternalNetworkSearchFailed";
const FORCED: &str = "LoadBalancerForcedInternal";

fn subnet(stage: &Stage, network: &str, (name, range, tags): (&str, &str, &[&str])) -> String {
    let subnet = SubnetSpec {
        name: name.to_owned(),
        cidr: Some(range.parse().unwrap()),
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        ..SubnetSpec::default()
    };
    stage.sim.create_subnet(network, &subnet).unwrap()
}

/// A cloud with these subnets; their IDs by name.
async fn stage() -> (Stage, BTreeMap<&'static str, String>) {
    let stage = cloud("", |_| {}).await;
    let ids = SUBNETS.map(|one| (one.0, subnet(&stage, "public", one)));
    (stage, ids.into())
}

/// Another external network that is connected with the nodes' network; its ID and its subnet's.
fn other_network(stage: &Stage) -> (String, String) {
    let network = NetworkSpec {
        name: "elsewhere".to_owned(),
        external: true,
        ..NetworkSpec::default()
    };
    let network = stage.sim.create_network(&network).unwrap();
    let subnet = subnet(stage, &network, ("elsewhere", "192.0.2.0/24", &[]));
    let router = RouterSpec {
        name: "second".to_owned(),
        gateway: Some("elsewhere".to_owned()),
        networks: vec!["private".to_owned()],
        without_ports: true,
        ..RouterSpec::default()
    };
    stage.sim.create_router(&router).unwrap();
    (network, subnet)
}

/// The subnet that contains an address.
fn place(address: &str) -> &'static str {
    let address: IpAddr = address.parse().unwrap();
    let within = |range: &str| range.parse::<ipnet::IpNet>().unwrap().contains(&address);
    let found = SUBNETS.iter().find(|(_, range, _)| within(range));
    found.map_or_else(
        || {
            if within("203.0.113.0/24") {
                "public"
            } else {
                "nowhere"
            }
        },
        |(name, ..)| name,
    )
}

/// Serves a Service with these annotations, returns the subnet of its address, and deletes it.
async fn serve(stage: &mut Stage, annotations: &[(&str, &str)]) -> &'static str {
    stage.services = vec![asking(annotations)];
    stage.settle().await;
    assert_eq!(stage.complaints(), [""; 0], "{annotations:?}");
    let place = place(&stage.address("web"));
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.services.is_empty(), "{:?}", stage.complaints());
    place
}

fn asking(annotations: &[(&str, &str)]) -> ServiceView {
    let mut web = service("web", &[80]);
    for (name, value) in annotations {
        annotate(&mut web, &annotation_key(name), Some(value));
    }
    web
}

#[tokio::test]
async fn an_address_stays_if_no_subnet_fits_any_more() {
    let (mut stage, _) = stage().await;
    stage.services = vec![asking(&[("floating-subnet", "blue")])];
    stage.settle().await;
    annotate(stage.service("web"), &annotation_key("floating-subnet"), Some("green"));
    stage.service("web").ports = service("web", &[80, 81]).ports;
    stage.settle_well().await;
    assert_eq!(place(&stage.address("web")), "blue");
    assert_eq!(stage.balancers()[0].listeners.len(), 2);
    // A new address needs a subnet.
    let mut other = asking(&[("floating-subnet", "green")]);
    other.id = service("other", &[80]).id;
    stage.services.push(other);
    stage.settle().await;
    stage.assert_complaints(&["fits floating-subnet \"green\""]);
}

#[tokio::test]
async fn subnets_by_id_name_and_tags() {
    let (mut stage, ids) = stage().await;
    for (annotations, expected) in [
        (vec![("floating-subnet-id", ids["blue"].as_str())], "blue"),
        (vec![("floating-subnet", "blu*")], "blue"),
        (vec![("floating-subnet", "red-[2-9]")], "red-2"),
        (
            vec![
                ("floating-subnet", "~red-[0-9]+"),
                ("floating-subnet-tags", "fast"),
            ],
            "red-2",
        ),
        (vec![("floating-subnet", "!~(red|tiny|public).*")], "blue"),
        (vec![("floating-subnet-tags", "&dmz,fast")], "red-2"),
        (vec![("floating-subnet", "!red-*"), ("floating-subnet-tags", "fast")], "blue"),
        (
            vec![
                ("floating-subnet-tags", "!&dmz,fast"),
                ("floating-subnet", "red-*"),
            ],
            "red-1",
        ),
        // An ID precedes a name.
        (
            vec![
                ("floating-subnet", "red-1"),
                ("floating-subnet-id", ids["blue"].as_str()),
            ],
            "blue",
        ),
    ] {
        assert_eq!(serve(&mut stage, &annotations).await, expected, "{annotations:?}");
    }
}

#[tokio::test]
async fn a_requested_address_may_be_in_any_subnet() {
    let (mut stage, ids) = stage().await;
    stage.become_admin();
    stage.restart().await;
    for annotation in [
        ("floating-subnet", "red-*"),
        ("floating-subnet", "green"),
        ("floating-subnet-tags", "slow"),
        ("floating-subnet-id", &*ids["blue"]),
    ] {
        let mut web = asking(&[annotation]);
        web.load_balancer_ip = "198.51.100.140".into();
        stage.services = vec![web];
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0], "{annotation:?}");
        assert_eq!(stage.address("web"), "198.51.100.140", "{annotation:?}");
        stage.service("web").deleting = true;
        stage.settle().await;
    }
}

#[tokio::test]
async fn class_annotations_and_config_name_subnets_in_this_order() {
    let (mut stage, ids) = stage().await;
    let conf = format!(
        "floating-subnet = red-1\n\
         [LoadBalancerClass \"tagged\"]\nfloating-subnet-tags = &dmz,fast\n\
         [LoadBalancerClass \"blue\"]\nfloating-subnet-id = {}\n\
         [LoadBalancerClass \"plain\"]\n",
        ids["blue"]
    );
    stage.configure(&conf);
    stage.restart().await;
    let requested = ("floating-subnet", "red-2");
    for (annotations, expected) in [
        (vec![], "red-1"),
        (vec![requested], "red-2"),
        (vec![("class", "plain")], "red-1"),
        (vec![("class", "plain"), requested], "red-2"),
        (vec![("class", "tagged")], "red-2"),
        (vec![("class", "blue"), requested], "blue"),
    ] {
        assert_eq!(serve(&mut stage, &annotations).await, expected, "{annotations:?}");
    }
}

#[tokio::test]
async fn a_network_by_annotation_or_class_whose_subnet_it_has_to_be() {
    let (mut stage, ids) = stage().await;
    let (network, subnet) = other_network(&stage);
    stage.configure(&format!(
        "[LoadBalancerClass \"elsewhere\"]\nfloating-network-id = {network}\nfloating-subnet = else*\n"
    ));
    stage.restart().await;
    let by_network = ("floating-network-id", network.as_str());
    for annotations in [
        vec![by_network],
        vec![by_network, ("floating-subnet-id", subnet.as_str())],
        vec![("class", "elsewhere")],
    ] {
        stage.services = vec![asking(&annotations)];
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0], "{annotations:?}");
        assert!(stage.address("web").starts_with("192.0.2."), "{}", stage.address("web"));
        // An attached floating IP stays, whatever is requested later.
        let address = stage.address("web");
        annotate(stage.service("web"), &annotation_key("floating-network-id"), None);
        annotate(stage.service("web"), &annotation_key("floating-subnet-id"), None);
        stage.settle().await;
        assert_eq!(stage.address("web"), address);
        quiet(&mut stage).await;
        stage.service("web").deleting = true;
        stage.settle().await;
    }
    stage.services = vec![asking(&[by_network, ("floating-subnet-id", &ids["blue"])])];
    stage.settle().await;
    stage.assert_complaints(&["is a subnet of network"]);
    assert!(stage.balancers().is_empty());
}

#[tokio::test]
async fn the_first_subnet_with_a_free_address_is_used() {
    let (mut stage, _) = stage().await;
    subnet(&stage, "public", ("tiny-2", "198.51.100.196/30", &[]));
    for (name, port) in [("web", 80), ("api", 81), ("late", 82)] {
        let mut wanted = service(name, &[port]);
        annotate(&mut wanted, &annotation_key("floating-subnet"), Some("tiny-*"));
        stage.services.push(wanted);
        stage.settle().await;
    }
    let mut addresses = ["web", "api"].map(|name| stage.address(name));
    addresses.sort();
    assert_eq!(addresses, ["198.51.100.194", "198.51.100.198"]);
    // All are full: the cause is reported, and no other subnet is tried.
    stage.assert_complaints(&["No more IP addresses"]);
    assert_eq!(stage.address("late"), "");
}

#[tokio::test]
async fn a_name_or_tags_that_match_nothing_or_cannot_be_read_are_refused() {
    let (mut stage, _) = stage().await;
    for (key, value, expected) in [
        ("floating-subnet", "green*", "no subnet of external network"),
        ("floating-subnet-tags", "&dmz,slow", "no subnet of external network"),
        ("floating-subnet", "~red(", "is not a pattern"),
        ("floating-subnet-id", "6b0a5a2e-0000-4000-8000-000000000000", "6b0a5a2e"),
    ] {
        stage.services = vec![asking(&[(key, value)])];
        stage.settle().await;
        stage.assert_complaints(&[expected]);
        assert!(!stage.sim.call_counts().contains_key("floating_ip_create") || key.ends_with("id"));
        assert!(stage.sim.floating_ips().is_empty(), "{key}={value}");
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.services.is_empty(), "{:?}", stage.complaints());
    }
}

/// Creates a free floating IP, as a person does.
fn free_address(stage: &Stage, last: u8) -> IpAddr {
    let address = IpAddr::from([203, 0, 113, last]);
    let server = stage.nodes[0].view.provider_id.clone().unwrap();
    let port = stage.sim.server_ports(server.trim_start_matches("openstack:///")).remove(0);
    stage.sim.add_floating(&port, address).unwrap();
    stage.sim.detach_floating(address).unwrap();
    address
}

/// The tags of the load balancer that record the requested address.
fn records(stage: &Stage) -> Vec<String> {
    let balancer = stage.balancers().remove(0).loadbalancer;
    let tags = balancer.attributes["tags"].as_array().unwrap().iter();
    let tags = tags.map(|tag| tag.as_str().unwrap().to_owned());
    tags.filter(|tag| tag.starts_with("kube_load_balancer_ip_")).collect()
}

/// Whether the floating IP is attached, and its description.
fn state_of(stage: &Stage, address: &str) -> (bool, String) {
    let mut all = stage.sim.floating_ips().into_iter();
    let found = all.find(|floating| floating.address.to_string() == address).unwrap();
    (found.port_id.is_some(), found.description)
}

/// Removes the record from the load balancer, which then is as the Go cloud controller creates it.
async fn forget_record(stage: &mut Stage) {
    let balancer = stage.balancers().remove(0).loadbalancer;
    let tags = balancer.attributes["tags"].as_array().unwrap().iter();
    let tags: Vec<_> = tags
        .filter(|tag| !tag.as_str().unwrap().starts_with("kube_load_balancer_ip_"))
        .cloned()
        .collect();
    let patch = [("tags".to_owned(), tags.into())].into_iter().collect();
    stage.sim.patch_object(&balancer.id, &patch).unwrap();
    stage.restart().await;
}

#[tokio::test]
async fn another_requested_address_is_reported_and_used_once_the_attached_one_is_detached() {
    let mut stage = cloud("", |_| {}).await;
    stage.services.push(service("web", &[80]));
    stage.settle_well().await;
    forget_record(&mut stage).await;
    let first = stage.address("web");
    let second = free_address(&stage, 99);
    stage.service("web").load_balancer_ip = second.to_string().into();
    for _ in 0..2 {
        stage.settle().await;
        stage.assert_complaints(&[&first, &second.to_string(), "loadBalancerIP"]);
        assert_eq!(stage.address("web"), first);
        stage.sim.clear_calls();
        stage.restart().await;
        stage.settle().await;
        assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
    }
    stage.sim.detach_floating(first.parse().unwrap()).unwrap();
    stage.restart().await;
    stage.settle_well().await;
    assert_eq!(stage.address("web"), second.to_string());
    // No address keeps the present one.
    stage.service("web").load_balancer_ip = "".into();
    stage.settle_well().await;
    assert_eq!(stage.address("web"), second.to_string());
}

#[tokio::test]
async fn a_changed_address_is_followed_and_the_former_one_stays_free() {
    let mut stage = cloud("", |_| {}).await;
    stage.services.push(service("web", &[80]));
    stage.settle_well().await;
    assert_eq!(records(&stage), ["kube_load_balancer_ip_any"]);
    let first = stage.address("web");

    // It must exist, and must be free.
    stage.service("web").load_balancer_ip = "203.0.113.99".into();
    stage.settle().await;
    stage.assert_complaints(&["203.0.113.99", "create it first"]);
    assert_eq!(stage.address("web"), first);
    let second = free_address(&stage, 99).to_string();
    let server = stage.nodes[0].view.provider_id.clone().unwrap();
    let port = stage.sim.server_ports(server.trim_start_matches("openstack:///")).remove(0);
    let taken = IpAddr::from([203, 0, 113, 98]);
    stage.sim.add_floating(&port, taken).unwrap();
    stage.service("web").load_balancer_ip = taken.to_string().into();
    stage.restart().await;
    stage.settle().await;
    stage.assert_complaints(&[&taken.to_string(), "attached to another port"]);
    assert_eq!(stage.address("web"), first);

    stage.service("web").load_balancer_ip = second.as_str().into();
    stage.pass_once().await;
    assert!(warnings(&stage).contains(&"LoadBalancerFloatingIPReplaced"), "{:?}", warnings(&stage));
    stage.settle_well().await;
    assert_eq!(stage.address("web"), second);
    assert_eq!(records(&stage), [format!("kube_load_balancer_ip_{second}")]);
    assert!(state_of(&stage, &second).0);
    let (attached, description) = state_of(&stage, &first);
    assert!(!attached && description.starts_with("Former floating IP"), "{description}");
    quiet(&mut stage).await;

    // Neither the next change nor the deletion takes or deletes it.
    stage.service("web").load_balancer_ip = "".into();
    stage.settle_well().await;
    assert_eq!(stage.address("web"), second);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.services.is_empty() && stage.balancers().is_empty());
    assert!(!state_of(&stage, &first).0 && !state_of(&stage, &second).0);
}

#[tokio::test]
async fn a_process_killed_between_detaching_and_attaching_loses_nothing() {
    let mut stage = cloud("", |_| {}).await;
    stage.services.push(service("web", &[80]));
    stage.settle_well().await;
    let first = stage.address("web");
    for (vanishes, last) in [(false, 99), (true, 98)] {
        let before = stage.address("web");
        let next = free_address(&stage, last);
        stage.service("web").load_balancer_ip = next.to_string().into();
        // Nothing reaches Neutron after the detachment, as if the process were dead.
        let dead = Fault {
            nth: 2,
            ..Fault::on("floating_ip_update", Action::status(503))
        };
        stage.sim.add_fault(dead);
        stage.pass_once().await;
        assert!(!state_of(&stage, &before).0 && !state_of(&stage, &next.to_string()).0);
        stage.sim.clear_faults();
        stage.restart().await;
        if vanishes {
            stage.sim.remove_floating(next).unwrap();
            stage.settle().await;
            stage.assert_complaints(&["create it first"]);
            assert_eq!(stage.address("web"), before);
            assert!(state_of(&stage, &before).0);
        } else {
            stage.settle_well().await;
            assert_eq!(stage.address("web"), next.to_string());
            assert_eq!(records(&stage), [format!("kube_load_balancer_ip_{next}")]);
            assert!(!state_of(&stage, &before).0);
        }
    }
    assert!(!state_of(&stage, &first).0);
}

#[tokio::test]
async fn a_refused_address_brings_the_former_one_back() {
    let mut stage = cloud("", |_| {}).await;
    stage.services.push(service("web", &[80]));
    stage.settle_well().await;
    let first = stage.address("web");
    let description = state_of(&stage, &first).1;
    let second = free_address(&stage, 99).to_string();
    stage.service("web").load_balancer_ip = second.as_str().into();
    let body = r#"{"NeutronError": {"type": "ExternalGatewayForFloatingIPNotFound", "message": "not reachable", "detail": ""}}"#;
    let refusal = Action::Status {
        code: 404,
        body: Some(body.to_owned()),
        headers: BTreeMap::new(),
    };
    stage.sim.add_fault(Fault {
        nth: 2,
        ..Fault::on("floating_ip_update", refusal).once()
    });
    stage.settle().await;
    stage.assert_complaints(&["Neutron refuses to attach it", "not reachable"]);
    assert_eq!(stage.address("web"), first);
    assert_eq!(state_of(&stage, &first), (true, description));
    assert_eq!(records(&stage), ["kube_load_balancer_ip_any"]);
    // One attempt: detach, attach, attach again.
    assert_eq!(stage.sim.call_counts()["floating_ip_update"], 3);
}

/// Hides all networks that floating IPs could come from.
fn hide_networks(stage: &Stage) {
    let nothing = Action::Status {
        code: 200,
        body: Some(r#"{"networks": []}"#.to_owned()),
        headers: BTreeMap::new(),
    };
    stage.sim.add_fault(Fault::on("network_list", nothing));
}

#[tokio::test]
async fn without_an_external_network_a_service_is_internal_until_there_is_one() {
    let mut stage = cloud("", |_| {}).await;
    hide_networks(&stage);
    stage.services.push(service("web", &[80]));
    stage.settle_well().await;
    assert_eq!(warnings(&stage), [FAILED, FORCED]);
    let private = stage.address("web");
    let balancer = stage.balancers().remove(0).loadbalancer;
    assert_eq!(balancer.attributes["vip_address"], private.as_str());
    assert!(stage.sim.floating_ips().is_empty());
    quiet(&mut stage).await;

    stage.sim.clear_faults();
    stage.restart().await;
    stage.settle().await;
    assert_eq!(warnings(&stage), [""; 0]);
    assert_eq!(place(&stage.address("web")), "public");
}

#[tokio::test]
async fn an_address_outlives_the_sight_of_its_network() {
    let mut stage = cloud("", |_| {}).await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let address = stage.address("web");
    hide_networks(&stage);
    quiet(&mut stage).await;
    assert_eq!(warnings(&stage), [FAILED], "it does not become internal");
    assert_eq!(stage.address("web"), address);
    assert_eq!(stage.service("web").annotation(ADDRESS), Some(address.as_str()));
    // A Service without a floating IP needs no external network.
    stage.service("web").deleting = true;
    stage.settle().await;
    let mut inside = service("inside", &[80]);
    annotate(&mut inside, crate::stage::INTERNAL, Some("true"));
    stage.services.push(inside);
    stage.settle().await;
    assert_eq!(warnings(&stage), [""; 0]);
}
