#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ccm_core::NodeView;
use proptest::{collection::hash_set, prelude::*};

use super::*;

fn node(labels: &[(&str, &str)], addresses: &[(AddressType, &str)]) -> NodeObject {
    NodeObject {
        view: Arc::new(NodeView {
            name: "n1".to_owned(),
            uid: "u1".to_owned(),
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..NodeView::default()
        }),
        addresses: addresses.iter().map(|(kind, address)| NodeAddress::new(*kind, *address)).collect(),
        ..NodeObject::default()
    }
}

fn instance() -> Instance {
    Instance {
        provider_id: "fake://n1".to_owned(),
        instance_type: Some("t1.micro".to_owned()),
        addresses: vec![
            NodeAddress::new(AddressType::InternalIP, "10.0.0.1"),
            NodeAddress::new(AddressType::ExternalIP, "132.143.154.163"),
        ],
        zone: Some("us-west-1a".to_owned()),
        region: Some("us-west".to_owned()),
        ..Instance::default()
    }
}

fn labels(pairs: &[(&str, &str)]) -> NewLabels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn sets_provider_id_both_label_pairs_and_addresses() {
    let desired = initialization(&node(&[], &[]), &instance()).unwrap();
    assert_eq!(desired.provider_id.as_deref(), Some("fake://n1"));
    assert_eq!(
        desired.labels,
        labels(&[
            ("beta.kubernetes.io/instance-type", "t1.micro"),
            ("node.kubernetes.io/instance-type", "t1.micro"),
            ("failure-domain.beta.kubernetes.io/zone", "us-west-1a"),
            ("topology.kubernetes.io/zone", "us-west-1a"),
            ("failure-domain.beta.kubernetes.io/region", "us-west"),
            ("topology.kubernetes.io/region", "us-west"),
        ])
    );
    assert_eq!(desired.addresses, Some(instance().addresses));
    let mut twice = instance();
    twice.addresses.extend(instance().addresses);
    let desired = initialization(&node(&[], &[]), &twice).unwrap();
    assert_eq!(desired.addresses, Some(instance().addresses));
}

#[test]
fn host_names_come_from_the_cloud_or_else_from_the_node() {
    let shown = node(
        &[],
        &[
            (AddressType::Hostname, "from-kubelet"),
            (AddressType::InternalIP, "10.9.9.9"),
        ],
    );
    let with_node_name = initialization(&shown, &instance()).unwrap().addresses.unwrap();
    assert_eq!(with_node_name.len(), 3);
    assert_eq!(with_node_name[2], NodeAddress::new(AddressType::Hostname, "from-kubelet"));
    let mut named = instance();
    named.addresses.insert(0, NodeAddress::new(AddressType::Hostname, "from-cloud"));
    assert_eq!(initialization(&shown, &named).unwrap().addresses, Some(named.addresses));
}

#[test]
fn a_provider_id_that_is_set_is_kept() {
    let mut shown = node(&[], &[]);
    Arc::make_mut(&mut shown.view).provider_id = Some("fake://old".to_owned());
    assert_eq!(initialization(&shown, &instance()).unwrap().provider_id, None);
    let mut unnamed = instance();
    unnamed.provider_id.clear();
    assert!(initialization(&shown, &unnamed).is_ok());
    assert!(matches!(
        initialization(&node(&[], &[]), &unnamed),
        Err(NodeProblem {
            reason: "NoProviderID",
            ..
        })
    ));
}

#[test]
fn waits_for_addresses_and_for_the_provided_ip() {
    let mut bare = instance();
    bare.addresses.clear();
    assert!(matches!(
        initialization(&node(&[], &[]), &bare),
        Err(NodeProblem {
            reason: NO_ADDRESSES,
            ..
        })
    ));
    let mut shown = node(&[], &[(AddressType::Hostname, "h")]);
    for (annotation, ok) in [("10.0.0.1", true), ("10.0.0.2", false), ("invalid-ip", false)] {
        shown.provided_node_ip = Some(annotation.to_owned());
        let result = initialization(&shown, &instance());
        assert_eq!(result.is_ok(), ok, "{annotation}");
        if let Err(problem) = result {
            assert!(problem.message.contains("provided node ip for node \"n1\" is not valid"));
        }
    }
}

#[test]
fn a_node_with_addresses_keeps_them_if_the_cloud_requires_it() {
    let machine = Instance {
        keeps_addresses: true,
        ..instance()
    };
    let of = |shown: &NodeObject| {
        let difference = difference(shown, &machine, None, false).unwrap();
        difference.addresses
    };
    let other = node(&[], &[(AddressType::ExternalIP, "192.0.2.1")]);
    assert_eq!(of(&other), None);
    assert_eq!(of(&node(&[], &[])), Some(instance().addresses));
    // A node that is initialized gets the addresses of the cloud.
    let initialized = initialization(&other, &machine).unwrap();
    assert_eq!(initialized.addresses, Some(instance().addresses));
}

#[test]
fn a_machine_whose_addresses_are_all_left_out_changes_no_address() {
    let mut machine = instance();
    machine.addresses.clear();
    machine.address_filter = Some("internal-network-name x".to_owned());
    let mut shown = node(&[], &[(AddressType::Hostname, "h")]);
    assert_eq!(initialization(&shown, &machine).unwrap().addresses, None);
    assert_eq!(difference(&shown, &machine, None, false).unwrap().addresses, None);
    shown.provided_node_ip = Some("10.0.0.1".to_owned());
    assert!(initialization(&shown, &machine).is_err());
}

#[test]
fn reserved_and_present_additional_labels_are_left_out() {
    let mut with_labels = instance();
    with_labels.labels = labels(&[
        ("topology.kubernetes.io/region", "x"),
        ("topology.k8s.io/region", "x"),
        ("kubernetes.io/region", "x"),
        ("k8s.io/region", "x"),
        ("my.custom.label/foo", "bar"),
        ("my.custom.label/bar", "foo"),
        ("app.k8snio/bar", "yes"),
        ("k8snio/bar", "yes"),
        ("plain", "yes"),
    ]);
    let added = initialization(&node(&[("my.custom.label/foo", "fizz")], &[]), &with_labels)
        .unwrap()
        .labels;
    let custom: Vec<_> = added.keys().filter(|key| !is_reserved(key)).map(String::as_str).collect();
    assert_eq!(custom, ["app.k8snio/bar", "k8snio/bar", "my.custom.label/bar", "plain"]);
    assert_eq!(added["topology.kubernetes.io/region"], "us-west");
}

#[test]
fn stable_labels_follow_their_beta_twins() {
    let beta = "failure-domain.beta.kubernetes.io/zone";
    let stable = "topology.kubernetes.io/zone";
    assert_eq!(reconciled_labels(&Labels::from_iter([(beta, "a")])), labels(&[(stable, "a")]));
    assert_eq!(
        reconciled_labels(&Labels::from_iter([(beta, "a"), (stable, "b")])),
        labels(&[(stable, "a")])
    );
    assert!(reconciled_labels(&Labels::from_iter([(beta, "a"), (stable, "a")])).is_empty());
    assert!(reconciled_labels(&Labels::from_iter([(stable, "a")])).is_empty());
}

/// The node as it is after `instance()` was applied to it.
fn initialized() -> NodeObject {
    let desired = initialization(&node(&[], &[]), &instance()).unwrap();
    let mut initialized = node(&[], &[]);
    Arc::make_mut(&mut initialized.view).labels = desired.labels.into_iter().collect();
    initialized.addresses = desired.addresses.unwrap();
    initialized
}

#[test]
fn nothing_differs_after_initialization_even_with_two_addresses_of_a_type() {
    let mut dual = instance();
    dual.addresses.push(NodeAddress::new(AddressType::InternalIP, "fd00::1"));
    let mut shown = initialized();
    shown.addresses = dual.addresses.clone();
    assert_eq!(difference(&shown, &dual, None, false).unwrap(), Difference::default());
}

#[test]
fn a_refresh_follows_addresses_and_type_but_not_the_zone() {
    let mut changed = instance();
    changed.addresses[0].address = "10.0.0.2".to_owned();
    changed.instance_type = Some("t1.large".to_owned());
    changed.zone = Some("us-west-1b".to_owned());
    let found = difference(&initialized(), &changed, None, false).unwrap();
    assert_eq!(found.addresses.as_ref(), Some(&changed.addresses));
    assert_eq!(found.labels.len(), 2, "beta and stable together: {:?}", found.labels);
    assert_eq!(found.topology.len(), 2);
    let with_flag = difference(&initialized(), &changed, None, true).unwrap();
    assert_eq!((with_flag.labels.len(), with_flag.topology.len()), (4, 0));
}

/// `I 10.0.0.1, E 192.0.2.1, H n1` as addresses.
fn list(text: &str) -> Vec<NodeAddress> {
    text.split(", ")
        .map(|entry| {
            let (kind, address) = entry.split_once(' ').unwrap();
            let kind = match kind {
                "I" => AddressType::InternalIP,
                "E" => AddressType::ExternalIP,
                _ => AddressType::Hostname,
            };
            NodeAddress::new(kind, address)
        })
        .collect()
}

/// The addresses that a refresh writes on a node with these addresses.
fn refreshed(shown: &str, cloud: &str, node_ip: Option<&str>, enforced: bool) -> Option<Vec<NodeAddress>> {
    let mut shown_node = node(&[], &[]);
    shown_node.addresses = list(shown);
    shown_node.provided_node_ip = node_ip.map(str::to_owned);
    let machine = Instance {
        addresses: list(cloud),
        enforces_address_order: enforced,
        ..Instance::default()
    };
    difference(&shown_node, &machine, None, false).unwrap().addresses
}

#[test]
fn a_refresh_takes_the_same_addresses_in_another_order_for_no_change_unless_a_rule_sets_the_order() {
    let (shown, cloud) = ("I 10.77.0.3, I 10.0.0.10, H n1", "I 10.0.0.10, I 10.77.0.3");
    assert_eq!(refreshed(shown, cloud, None, false), None);
    assert_eq!(
        refreshed(shown, cloud, None, true),
        Some(list("I 10.0.0.10, I 10.77.0.3, H n1")),
        "a rule of the provider"
    );
    // The kubelet's --node-ip is a rule for the addresses that it names, and for these alone.
    let (v4, v6) = ("10.0.0.1", "fd00::1");
    let cloud = "I fd00::1, I 10.0.0.1, I 10.0.0.2, E 192.0.2.2, E 192.0.2.1";
    for (shown, written) in [
        ("I 10.0.0.1, I fd00::1, E 192.0.2.1, E 192.0.2.2", None),
        (
            "I fd00::1, I 10.0.0.1, E 192.0.2.1, E 192.0.2.2",
            Some(list("I 10.0.0.1, I fd00::1, E 192.0.2.1, E 192.0.2.2")),
        ),
    ] {
        let both = format!("{v4},{v6}");
        assert_eq!(refreshed(shown, cloud, Some(&both), false), written, "{shown}");
    }
}

#[test]
fn addresses_that_remain_keep_the_nodes_order_and_new_ones_follow_those_of_their_type() {
    for (shown, cloud, written) in [
        // One more, one less, one replaced.
        ("I 2, I 1, H n", "I 1, I 2, I 3, H n", "I 2, I 1, I 3, H n"),
        ("I 2, I 1, I 3, H n", "I 1, I 2, H n", "I 2, I 1, H n"),
        ("I 2, I 1, E 9, H n", "I 1, I 3, E 9, H n", "I 1, I 3, E 9, H n"),
        ("I 1, E 9, H n", "I 2, E 9, H n", "I 2, E 9, H n"),
        // A type that the node did not show takes the cloud's place.
        ("I 2, I 1, H n", "I 1, E 9, I 2, H n", "I 2, I 1, E 9, H n"),
        ("E 9, H n", "I 1, E 9, H n", "I 1, E 9, H n"),
        ("H n", "I 1, I 2, E 9", "I 1, I 2, E 9, H n"),
        // An address that changes its type.
        ("I 2, I 1", "E 2, I 1", "E 2, I 1"),
    ] {
        assert_eq!(refreshed(shown, cloud, None, false), Some(list(written)), "{shown} becomes {cloud}");
    }
}

#[test]
fn the_first_initialization_takes_the_clouds_order() {
    let mut shown = node(&[], &[]);
    shown.addresses = list("H n1, I 10.0.0.10, I 10.77.0.3");
    let machine = Instance {
        addresses: list("I 10.77.0.3, I 10.0.0.10"),
        ..instance()
    };
    assert_eq!(
        initialization(&shown, &machine).unwrap().addresses,
        Some(list("I 10.77.0.3, I 10.0.0.10, H n1"))
    );
}

proptest! {
    #[test]
    fn a_refresh_writes_the_clouds_addresses_once_and_reorders_none(
        shown in hash_set(0_u8..8, 0..6),
        cloud in hash_set(0_u8..8, 1..6),
    ) {
        let addresses = |numbers: &HashSet<u8>| -> Vec<NodeAddress> {
            let kinds = [AddressType::InternalIP, AddressType::ExternalIP, AddressType::Hostname];
            let address = |n: &u8| NodeAddress::new(kinds[usize::from(n % 3)], n.to_string());
            numbers.iter().map(address).collect()
        };
        let (shown, cloud) = (addresses(&shown), addresses(&cloud));
        let written = in_node_order(&cloud, &shown);
        let mut sorted = [written.clone(), cloud.clone()];
        sorted.iter_mut().for_each(|list| list.sort());
        prop_assert_eq!(&sorted[0], &sorted[1]);
        let remaining = |list: &[NodeAddress], of: &[NodeAddress]| -> Vec<NodeAddress> {
            list.iter().filter(|address| of.contains(address)).cloned().collect()
        };
        prop_assert_eq!(remaining(&written, &shown), remaining(&shown, &cloud));
        prop_assert_eq!(&in_node_order(&cloud, &written), &written, "quiet");
    }
}

#[test]
fn a_refresh_keeps_addresses_when_the_cloud_has_none() {
    let mut bare = instance();
    bare.addresses.clear();
    assert_eq!(difference(&initialized(), &bare, None, false).unwrap(), Difference::default());
}

#[test]
fn a_refresh_changes_only_additional_labels_it_knows_to_be_ours() {
    let mut shown = initialized();
    let view = Arc::make_mut(&mut shown.view);
    view.labels = view.labels.iter().chain([("pool", "old"), ("rack", "users")]).collect();
    let mut changed = instance();
    changed.labels = labels(&[("pool", "new"), ("rack", "clouds"), ("fresh", "yes")]);
    let first = difference(&shown, &changed, None, false).unwrap();
    assert_eq!(first.labels, labels(&[("fresh", "yes")]));
    let known = labels(&[("pool", "old"), ("rack", "clouds-before")]);
    let second = difference(&shown, &changed, Some(&known), false).unwrap();
    assert_eq!(second.labels, labels(&[("fresh", "yes"), ("pool", "new")]));
}
