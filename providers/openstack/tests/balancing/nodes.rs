//! Several Nodes with one address.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ccm_core::{
    AddressType, NodeAddress, NodeView,
    load_balancer::{IpFamily, ServiceNode},
};

use crate::stage::{MANAGED, Stage, service};

/// A Node with the address of another one, on a server that does not exist.
fn twin(node: &ServiceNode, name: &str, age: u64) -> ServiceNode {
    ServiceNode {
        view: Arc::new(NodeView {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            provider_id: Some(format!("openstack:///00000000-0000-4000-8000-{age:012}")),
            created: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age)),
            ..NodeView::default()
        }),
        ..node.clone()
    }
}

/// Name and address of every member, and how many members there are.
fn members(stage: &Stage) -> (BTreeSet<(String, String)>, usize) {
    let members = stage.balancers().remove(0).members;
    let each = members.iter();
    let each = each.map(|member| {
        let address = member.attributes["address"].as_str().unwrap();
        (member.name.clone(), address.to_owned())
    });
    (each.collect(), members.len())
}

fn duplicates(stage: &Stage) -> Vec<String> {
    let warnings = stage.reports.iter().flat_map(|report| &report.events);
    let warnings = warnings.filter(|event| event.reason == "DuplicateNodeAddress" && event.warning);
    warnings.map(|event| event.message.clone()).collect()
}

#[tokio::test]
async fn three_nodes_with_one_address_are_one_member_and_a_warning_names_them() {
    for config in [MANAGED, "", "provider-requires-serial-api-calls = true"] {
        let serial = config.contains("serial");
        let mut stage = Stage::new(2, config).await;
        let address = stage.nodes[0].addresses[0].address.clone();
        let other = stage.nodes[1].addresses[0].address.clone();
        // The servers of the first Nodes by name do not exist.
        let first = twin(&stage.nodes[0], "a", 30);
        let newest = twin(&stage.nodes[0], "b", 10);
        stage.nodes.extend([first, newest]);
        stage.services.push(service("web", &[80, 443]));
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0], "{config}");
        let expect = |stage: &Stage, names: &[(&str, &str)]| {
            let (found, count) = members(stage);
            let named = names.iter().map(|(name, address)| {
                let name = (*name).to_owned();
                (name, (*address).to_owned())
            });
            let by_address: BTreeSet<_> = found.iter().map(|(_, address)| address.as_str()).collect();
            let expected: BTreeSet<_> = names.iter().map(|(_, address)| *address).collect();
            assert_eq!((by_address, count), (expected, 2 * names.len()), "{config}");
            if !serial {
                assert_eq!(found, named.collect(), "{config}");
            }
        };
        expect(&stage, &[("b", &address), ("node-1", &other)]);
        let [reported] = &duplicates(&stage)[..] else {
            panic!("{:?}", stage.reports)
        };
        assert!(
            reported.contains(&format!("{address} is the address of nodes b, a, node-0")),
            "{reported}"
        );

        // The node in the pool stays, although a newer one exists.
        let newer = twin(&stage.nodes[0], "c", 5);
        stage.nodes.push(newer);
        for restart in [false, true] {
            if restart {
                stage.restart().await;
            }
            stage.sim.clear_calls();
            stage.settle().await;
            assert_eq!(stage.complaints(), [""; 0], "{config}");
            assert_eq!(stage.cost().0, 0, "{config} {:?}", stage.sim.call_counts());
        }

        // Other nodes join and leave meanwhile.
        stage.join();
        let third = stage.nodes.last().unwrap().clone();
        let third = (third.view.name.clone(), third.addresses[0].address.clone());
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0], "{config}");
        let third = (third.0.as_str(), third.1.as_str());
        expect(&stage, &[("b", &address), ("node-1", &other), third]);

        // After its deletion, the newest node replaces it; a single remaining node is not reported.
        stage.nodes.retain(|node| node.view.name != "b");
        stage.settle().await;
        expect(&stage, &[("c", &address), ("node-1", &other), third]);
        stage.nodes.retain(|node| !["a", "c"].contains(&node.view.name.as_str()));
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0], "{config}");
        expect(&stage, &[("node-0", &address), ("node-1", &other), third]);
        assert_eq!(duplicates(&stage), [""; 0]);
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.balancers().is_empty() && stage.services.is_empty());
    }
}

/// The Warnings about nodes that are left out.
fn left_out(stage: &Stage) -> Vec<String> {
    let events = stage.reports.iter().flat_map(|report| &report.events);
    let warnings = events.filter(|event| event.reason == "NodesLeftOut" && event.warning);
    warnings.map(|event| event.message.clone()).collect()
}

#[tokio::test]
async fn nodes_that_an_existing_load_balancer_leaves_out_are_named_with_the_reason() {
    let mut stage = Stage::new(2, MANAGED).await;
    let mut web = service("web", &[80]);
    web.ip_families = [IpFamily::V4].into();
    stage.services.push(web);
    stage.settle_well().await;
    assert_eq!(left_out(&stage), [""; 0]);

    let named = |name: &str, provider_id: &str, address: &str| ServiceNode {
        view: Arc::new(NodeView {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            provider_id: Some(provider_id.to_owned()),
            ..NodeView::default()
        }),
        addresses: [NodeAddress::new(AddressType::InternalIP, address)].into(),
        eligible: true,
        ready: true,
    };
    let server = stage.nodes[0].view.provider_id.clone().unwrap();
    stage.nodes.extend([
        named("foreign", "aws:///eu-1a/i-0123", "10.9.9.1"),
        named("malformed", "openstack:///'x'", "10.9.9.2"),
        named("other-address", &server, "10.9.9.3"),
        named("v6-only", &server, "fd00::1"),
    ]);
    stage.restart().await;
    stage.settle().await;
    let warnings = left_out(&stage);
    assert_eq!(warnings.len(), 2, "{warnings:#?}");
    let of = |part: &str| warnings.iter().find(|text| text.contains(part)).unwrap();
    assert_eq!(of("left out"), "Nodes left out of the load balancer (1): v6-only has no IPv4 address");
    let groups = of("security group");
    for part in [
        "whose node ports may be closed (3): ",
        "foreign has the provider ID aws:///eu-1a/i-0123 of another cloud",
        "malformed has the malformed provider ID",
        "other-address has the address 10.9.9.3, which no port of its server",
    ] {
        assert!(groups.contains(part), "{part:?} is not in {groups:?}");
    }
    // Nodes that may disappear or are new are no news.
    for node in &mut stage.nodes[2..] {
        node.ready = false;
        Arc::make_mut(&mut node.view).provider_id = None;
    }
    stage.settle().await;
    assert_eq!(left_out(&stage), [""; 0]);
}
