//! The cases of upstream, and our own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ccm_core::AddressType::{ExternalIP, Hostname, InternalIP};
use serde_json::json;

use super::*;

/// A server on two networks with a floating IP, an access address and a host name.
fn server() -> Server {
    serde_json::from_value(json!({
        "id": "s", "name": "node", "status": "ACTIVE",
        "accessIPv4": "50.56.176.99", "accessIPv6": "2001:4800:790e:510:be76:4eff:fe04:82a8",
        "metadata": {"hostname": "a1-yinvcez57-0-bvynoyawrhcg-kube-minion-fg5i4jwcc2yy"},
        "addresses": {
            "private": [
                {"OS-EXT-IPS:type": "fixed", "addr": "10.0.0.32", "version": 4},
                {"OS-EXT-IPS:type": "floating", "addr": "50.56.176.36", "version": 4},
                {"addr": "10.0.0.31", "version": 4}
            ],
            "public": [
                {"addr": "50.56.176.35", "version": 4},
                {"addr": "2001:4800:780e:510:be76:4eff:fe04:84a8", "version": 6}
            ]
        }
    }))
    .unwrap()
}

fn port(status: &str, addresses: &[&str]) -> Port {
    let fixed_ips: Vec<_> = addresses.iter().map(|ip| json!({"subnet_id": "x", "ip_address": ip})).collect();
    serde_json::from_value(json!({"id": "p", "device_id": "s", "status": status, "fixed_ips": fixed_ips}))
        .unwrap()
}

fn networking(public: &[&str], internal: &[&str], order: &str) -> Networking {
    Networking {
        ipv6_disabled: false,
        public: public.iter().map(ToString::to_string).collect(),
        internal: internal.iter().map(ToString::to_string).collect(),
        sort_order: parse_sort_order(order).0,
        ..Networking::default()
    }
}

fn check(case: &str, actual: &[NodeAddress], expected: &[(AddressType, &str)]) {
    let actual: Vec<_> = actual.iter().map(|address| (address.kind, address.address.as_str())).collect();
    assert_eq!(actual, expected, "{case}");
}

const HOST: &str = "a1-yinvcez57-0-bvynoyawrhcg-kube-minion-fg5i4jwcc2yy";

#[test]
fn addresses_follow_ports_access_addresses_host_name_and_networks() {
    let active = port("ACTIVE", &["10.0.0.31"]);
    let down = port("DOWN", &["10.9.9.9"]);
    check(
        "default public network",
        &node_addresses(&server(), &[&active, &down], &[], &networking(&["public"], &[], "")),
        &[
            (InternalIP, "10.0.0.31"),
            (ExternalIP, "50.56.176.99"),
            (ExternalIP, "2001:4800:790e:510:be76:4eff:fe04:82a8"),
            (Hostname, HOST),
            (InternalIP, "10.0.0.32"),
            (ExternalIP, "50.56.176.36"),
            (ExternalIP, "50.56.176.35"),
            (ExternalIP, "2001:4800:780e:510:be76:4eff:fe04:84a8"),
        ],
    );
    check(
        "nothing configured: every fixed address is internal",
        &node_addresses(&server(), &[], &[], &networking(&[], &[], "")),
        &[
            (ExternalIP, "50.56.176.99"),
            (ExternalIP, "2001:4800:790e:510:be76:4eff:fe04:82a8"),
            (Hostname, HOST),
            (InternalIP, "10.0.0.32"),
            (ExternalIP, "50.56.176.36"),
            (InternalIP, "10.0.0.31"),
            (InternalIP, "50.56.176.35"),
            (InternalIP, "2001:4800:780e:510:be76:4eff:fe04:84a8"),
        ],
    );
}

#[test]
fn a_fixed_address_on_a_public_network_is_external_only() {
    let port = port("ACTIVE", &["50.56.176.35", "10.0.0.31"]);
    check(
        "moves",
        &node_addresses(&server(), &[&port], &[], &networking(&["public"], &[], "")),
        &[
            (InternalIP, "10.0.0.31"),
            (ExternalIP, "50.56.176.99"),
            (ExternalIP, "2001:4800:790e:510:be76:4eff:fe04:82a8"),
            (Hostname, HOST),
            (InternalIP, "10.0.0.32"),
            (ExternalIP, "50.56.176.36"),
            (ExternalIP, "50.56.176.35"),
            (ExternalIP, "2001:4800:780e:510:be76:4eff:fe04:84a8"),
        ],
    );
}

#[test]
fn a_setting_that_leaves_out_every_address_is_named() {
    let server = |addresses: serde_json::Value| -> Server {
        serde_json::from_value(json!({"id": "s", "addresses": addresses})).unwrap()
    };
    let v4 = server(json!({"private": [{"addr": "10.0.0.31"}]}));
    let v6 = server(json!({"private": [{"addr": "2001:db8::31"}]}));
    let none = server(json!({}));
    let without_ipv6 = |internal: &[&str]| Networking {
        ipv6_disabled: true,
        ..networking(&[], internal, "")
    };
    let names = "[Networking] internal-network-name other, more";
    let disabled = "[Networking] ipv6-support-disabled";
    for (server, networking, expected) in [
        (&v4, networking(&[], &[], ""), None),
        (&v4, networking(&[], &["private"], ""), None),
        (&v4, networking(&["private"], &["other"], ""), None),
        (&v4, networking(&[], &["other", "more"], ""), Some(names.to_owned())),
        (&v4, without_ipv6(&["other", "more"]), Some(names.to_owned())),
        (&v6, without_ipv6(&["private"]), Some(disabled.to_owned())),
        (&v6, without_ipv6(&[]), Some(disabled.to_owned())),
        (&v6, without_ipv6(&["other", "more"]), Some(format!("{names} with {disabled}"))),
        (&none, without_ipv6(&["other"]), None),
    ] {
        let addresses = |networking: &Networking| node_addresses(server, &[], &[], networking);
        assert_eq!(address_filter(&networking, addresses), expected, "{networking:?}");
    }
}

/// Upstream's rule for a node that is initialized: without addresses from the cloud, the node keeps its own.
fn go_refresh(shown: &[NodeAddress], cloud: Vec<NodeAddress>) -> Vec<NodeAddress> {
    if cloud.is_empty() { shown.to_vec() } else { cloud }
}

#[test]
fn after_the_way_back_nodes_with_an_empty_network_name_keep_what_the_go_program_lets_them() {
    let ours = networking(&[], &[], "");
    // The filter as upstream reads it.
    let theirs = networking(&[], &[""], "");
    let plain: Server =
        serde_json::from_value(json!({"id": "s", "addresses": {"private": [{"addr": "10.0.0.31"}]}}))
            .unwrap();
    let shown = node_addresses(&plain, &[], &[], &ours);
    check("initialized by us", &shown, &[(InternalIP, "10.0.0.31")]);
    let kept = go_refresh(&shown, node_addresses(&plain, &[], &[], &theirs));
    assert_eq!(kept, shown);

    // As the migration guide says, internal addresses of nodes with a floating IP do not survive.
    let floating: Server = serde_json::from_value(json!({"id": "s", "addresses": {"private": [
        {"addr": "10.0.0.31"}, {"addr": "192.0.2.1", "OS-EXT-IPS:type": "floating"}]}}))
    .unwrap();
    let shown = node_addresses(&floating, &[], &[], &ours);
    assert_eq!(shown.len(), 2);
    check(
        "undone by the Go cloud-controller-manager",
        &go_refresh(&shown, node_addresses(&floating, &[], &[], &theirs)),
        &[(ExternalIP, "192.0.2.1")],
    );
}

#[test]
fn internal_names_are_a_whitelist() {
    let port = port("ACTIVE", &["10.0.0.31", "50.56.176.35"]);
    check(
        "one name: the other network's addresses go, port addresses too",
        &node_addresses(&server(), &[&port], &[], &networking(&[], &["private"], "")),
        &[
            (InternalIP, "10.0.0.31"),
            (ExternalIP, "50.56.176.99"),
            (ExternalIP, "2001:4800:790e:510:be76:4eff:fe04:82a8"),
            (Hostname, HOST),
            (InternalIP, "10.0.0.32"),
            (ExternalIP, "50.56.176.36"),
        ],
    );
    let two = node_addresses(&server(), &[&port], &[], &networking(&[], &["private", "public"], ""));
    assert_eq!(two.iter().filter(|address| address.kind == InternalIP).count(), 4, "{two:?}");
}

#[test]
fn ipv6_can_be_left_out() {
    let networking = Networking {
        ipv6_disabled: true,
        ..networking(&["public"], &[], "")
    };
    let port = port("ACTIVE", &["2001:db8::1", "10.0.0.31"]);
    let addresses = node_addresses(&server(), &[&port], &[], &networking);
    assert!(addresses.iter().all(|address| !address.address.contains(':')), "{addresses:?}");
    assert_eq!(addresses.len(), 6);
}

#[test]
fn subports_of_trunks_count_as_fixed_addresses_of_their_network() {
    let subports = [
        Subport {
            network: "alpha",
            addresses: vec!["192.168.7.2"],
        },
        Subport {
            network: "public",
            addresses: vec!["203.0.113.9"],
        },
    ];
    let addresses = node_addresses(&server(), &[], &subports, &networking(&["public"], &[], ""));
    let at = |address: &str| addresses.iter().position(|a| a.address == address).unwrap();
    assert_eq!(addresses[at("192.168.7.2")].kind, InternalIP);
    assert_eq!(addresses[at("203.0.113.9")].kind, ExternalIP);
    assert!(at("192.168.7.2") < at("10.0.0.32"), "networks are walked by name");
    assert!(at("50.56.176.35") < at("203.0.113.9"), "a network's own entries come first");
}

#[test]
fn the_order_can_be_configured() {
    let mut list: Vec<_> = [
        (Hostname, "node-a"),
        (ExternalIP, "50.56.176.35"),
        (InternalIP, "10.0.0.32"),
        (InternalIP, "192.168.0.3"),
        (InternalIP, "10.0.0.4"),
        (InternalIP, "2001:db8::2"),
        (InternalIP, "2001:db8::1"),
    ]
    .map(|(kind, address)| NodeAddress::new(kind, address))
    .into();
    let (order, invalid) = parse_sort_order("10.0.0.0/8, 2001:db8::/32 nonsense,192.168.0.0/16");
    assert_eq!(invalid, ["nonsense"]);
    sort(&mut list, &order);
    check(
        "several networks; what is in none keeps its order at the end",
        &list,
        &[
            (InternalIP, "10.0.0.4"),
            (InternalIP, "10.0.0.32"),
            (InternalIP, "2001:db8::1"),
            (InternalIP, "2001:db8::2"),
            (InternalIP, "192.168.0.3"),
            (Hostname, "node-a"),
            (ExternalIP, "50.56.176.35"),
        ],
    );
    let before = list.clone();
    sort(&mut list, &parse_sort_order("10.0.0.0/99").0);
    assert_eq!(list, before, "an invalid network changes nothing");
    assert_eq!(parse_sort_order(" , ,").0, []);
}

#[test]
fn the_same_address_occurs_once_for_each_type() {
    let port = port("ACTIVE", &["10.0.0.31", "10.0.0.31"]);
    let addresses = node_addresses(&server(), &[&port, &port], &[], &networking(&[], &[], ""));
    let mut unique = addresses.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), addresses.len());
}

#[test]
fn a_server_without_anything_has_no_addresses() {
    assert_eq!(node_addresses(&Server::default(), &[], &[], &Networking::default()), []);
}
