//! The data of nodes.

use std::collections::BTreeMap;

use ccm_core::{ErrorKind, Freshness, InstanceState, Power, Priority};
use ccm_sim::{
    Action, Fault, Quota,
    openstack::{Config, NetworkSpec, PortSpec, ServerPatch, ServerSpec},
};

use crate::cloud::{Connected, addresses, build, by_id, by_name, by_provider_id, existence, present};

#[tokio::test]
async fn a_node_gets_everything_its_server_says() {
    let c = Connected::new().await;
    let spec = ServerSpec {
        availability_zone: Some("zone 1/a".into()),
        access_ipv4: Some("198.51.100.7".parse().unwrap()),
        metadata: BTreeMap::from([("hostname".into(), "n1.example".into())]),
        ports: Some(vec![PortSpec {
            addresses: None,
            floating: Some("203.0.113.5".parse().unwrap()),
            ..PortSpec::default()
        }]),
        ..ServerSpec::named("n1")
    };
    let id = c.sim.create_server(&spec).unwrap();
    let fixed = c.sim.port_addresses(&c.sim.server_ports(&id)[0])[0];

    let instance = present(c.ask(by_name("n1")).await);
    assert_eq!(instance.provider_id, format!("openstack:///{id}"));
    assert_eq!(instance.zone.as_deref(), Some("zone-1-a"));
    assert_eq!(instance.region.as_deref(), Some("RegionOne"));
    assert_eq!(instance.power, Power::On);
    assert!(instance.instance_type.is_some());
    let host = instance.labels.get("topology.openstack.org/host-id").unwrap();
    assert_eq!(host.len(), 56);
    let expect = [
        format!("InternalIP={fixed}"),
        "ExternalIP=198.51.100.7".to_owned(),
        "Hostname=n1.example".to_owned(),
        "ExternalIP=203.0.113.5".to_owned(),
    ];
    assert_eq!(addresses(&instance), expect);
    assert_eq!(present(c.ask(by_id("other", &id)).await), instance);

    c.sim.set_status(&id, "SHUTOFF").unwrap();
    assert_eq!(present(c.ask(existence(by_id("n1", &id))).await).power, Power::Off);
    assert!(
        c.sim
            .calls()
            .iter()
            .all(|call| call.user_agent.as_deref() == Some(crate::cloud::USER_AGENT))
    );
}

#[tokio::test]
async fn the_label_of_the_host_follows_a_migration_and_is_left_out_without_a_host() {
    let c = Connected::new().await;
    let id = c.sim.create_server(&ServerSpec::named("n1")).unwrap();
    for (host_id, labels) in [
        ("5f3c", vec![("topology.openstack.org/host-id", "5f3c")]),
        ("", vec![]),
        // The API server refuses this value, with the whole patch of the node.
        ("not a label", vec![]),
    ] {
        let patch = ServerPatch {
            host_id: Some(host_id.to_owned()),
            ..ServerPatch::default()
        };
        c.sim.update_server(&id, &patch).unwrap();
        let instance = present(c.ask(by_name("n1")).await);
        let shown: Vec<_> =
            instance.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(shown, labels, "{host_id:?}");
    }
}

#[tokio::test]
async fn addresses_that_the_config_leaves_out_are_distinguished_from_no_addresses() {
    let filter = "[Networking]\ninternal-network-name = other\n";
    let c = Connected::with(Config::default(), filter).await;
    let id = c.sim.create_server(&ServerSpec::named("n1")).unwrap();
    let instance = present(c.ask(by_name("n1")).await);
    assert_eq!(addresses(&instance), Vec::<String>::new());
    let filter = instance.address_filter.unwrap();
    assert_eq!(filter, "[Networking] internal-network-name other");
    for port in c.sim.server_ports(&id) {
        c.sim.delete_port(&port).unwrap();
    }
    assert_eq!(present(c.ask(by_name("n1")).await).address_filter, None);
}

#[tokio::test]
async fn two_servers_of_one_name_are_an_error_that_names_both() {
    let c = Connected::new().await;
    let a = c.sim.create_server(&ServerSpec::named("twin")).unwrap();
    let b = c.sim.create_server(&ServerSpec::named("twin")).unwrap();
    c.sim.create_servers(5, &ServerSpec::named("single-{i}")).unwrap();
    let alone = c.ask(by_name("twin")).await.unwrap_err();
    let queries = [by_name("twin"), by_name("single-1"), by_name("single-2")];
    let mut answers = c.describe(&queries, Freshness::now()).await;
    present(answers.pop().unwrap());
    present(answers.pop().unwrap());
    for error in [alone, answers.pop().unwrap().unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("multiple results where only one expected"), "{text}");
        assert!(text.contains(&a) && text.contains(&b), "{text}");
    }
}

#[tokio::test]
async fn a_server_whose_name_has_capitals_is_found() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(5, &ServerSpec::named("K8s-Worker-{i}")).unwrap();
    let expected: Vec<_> = ids.iter().map(|id| format!("openstack:///{id}")).collect();
    assert_eq!(present(c.ask(by_name("k8s-worker-1")).await).provider_id, expected[1]);
    let queries: Vec<_> = (0..5).map(|i| by_name(&format!("k8s-worker-{i}"))).collect();
    let listed = c.describe(&queries, Freshness::now()).await.into_iter();
    assert_eq!(listed.map(|answer| present(answer).provider_id).collect::<Vec<_>>(), expected);
    assert_eq!(c.count("server_list"), 2, "one read by name and one listing");

    let twin = c.sim.create_server(&ServerSpec::named("k8s-worker-1")).unwrap();
    let alone = c.ask(by_name("k8s-worker-1")).await;
    let listed = c.describe(&queries, Freshness::now()).await.swap_remove(1);
    for error in [alone.unwrap_err(), listed.unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains(&ids[1]) && text.contains(&twin), "{text}");
    }
}

#[tokio::test]
async fn pages_are_shorter_after_a_timeout() {
    let c = Connected::new().await;
    c.sim.create_servers(300, &ServerSpec::named("node-{i}")).unwrap();
    let queries: Vec<_> = (0..300).map(|i| existence(by_name(&format!("node-{i}")))).collect();
    // A proxy that waits too short for a long page.
    c.sim.add_fault(Fault {
        path: Some("limit=1000".to_owned()),
        ..Fault::on("server_list", Action::status(504))
    });
    let failed = c.describe(&queries, Freshness::now()).await;
    assert!(failed.iter().all(Result::is_err));
    for answer in c.describe(&queries, Freshness::now()).await {
        present(answer);
    }
}

#[tokio::test]
async fn servers_of_a_cell_that_is_down_are_never_absent() {
    let c = Connected::new().await;
    let spec = ServerSpec {
        cell: Some("cell2".into()),
        ..ServerSpec::named("node-{i}")
    };
    let lost = c.sim.create_servers(3, &spec).unwrap();
    let up = c.sim.create_server(&ServerSpec::named("node-up")).unwrap();
    c.sim.set_cell_up("cell2", false);
    // A wrong answer would delete nodes. The read by ID returns 500, and fails after some retries.
    let queries = [
        by_name("node-1"),
        by_name("node-2"),
        existence(by_id("node-3", &lost[2])),
        existence(by_id("node-up", &up)),
    ];
    let answers = c.describe(&queries, Freshness::now()).await;
    assert!(
        matches!(&answers[..2], [Ok(InstanceState::Unresolved), Ok(InstanceState::Unresolved)]),
        "{answers:?}"
    );
    assert_eq!(answers[2].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(matches!(answers[3], Ok(InstanceState::Present(_))), "{answers:?}");
}

#[tokio::test]
async fn a_server_of_another_project_is_absent_and_one_of_another_region_an_error() {
    let c = Connected::with(
        Config {
            regions: vec!["RegionOne".into(), "RegionTwo".into()],
            ..Config::default()
        },
        "",
    )
    .await;
    c.sim.create_project("elsewhere");
    let foreign = c
        .sim
        .create_server(&ServerSpec {
            project: Some("elsewhere".into()),
            ..ServerSpec::named("node-1")
        })
        .unwrap();
    assert_eq!(c.ask(by_id("node-1", &foreign)).await.unwrap(), InstanceState::Absent);
    assert_eq!(c.ask(by_name("node-1")).await.unwrap(), InstanceState::Unresolved);
    let error = c
        .ask(by_provider_id("node-1", &format!("openstack://RegionTwo/{foreign}")))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("RegionTwo"), "{error}");
    assert_eq!(c.ask(by_provider_id("node-1", "aws:///a/i-1")).await.unwrap(), InstanceState::Unmanaged);
    assert!(c.cloud.owns("openstack:///x") && c.cloud.owns("RegionOne/x") && !c.cloud.owns("aws:///a/i-1"));
}

#[tokio::test]
async fn subports_of_trunks_bring_their_addresses() {
    let c = Connected::new().await;
    for (name, subnet) in [("vlan-a", "192.168.50.0/24"), ("vlan-b", "192.168.60.0/24")] {
        let spec = NetworkSpec {
            name: name.into(),
            subnets: vec![subnet.parse().unwrap()],
            ..NetworkSpec::default()
        };
        c.sim.create_network(&spec).unwrap();
    }
    let ids = c.sim.create_servers(2, &ServerSpec::named("node-{i}")).unwrap();
    let mut expected = Vec::new();
    for id in &ids {
        let parent = c.sim.server_ports(id)[0].clone();
        let sub = c.sim.add_sub_port(&parent, 100, &PortSpec::on("vlan-a")).unwrap();
        let other = c.sim.add_sub_port(&parent, 101, &PortSpec::on("vlan-b")).unwrap();
        expected.push([sub, other].map(|port| format!("InternalIP={}", c.sim.port_addresses(&port)[0])));
    }
    let queries = [by_id("node-1", &ids[0]), by_id("node-2", &ids[1])];
    for (answer, expected) in c.describe(&queries, Freshness::now()).await.into_iter().zip(&expected) {
        let addresses = addresses(&present(answer));
        assert!(
            expected.iter().all(|address| addresses.contains(address)),
            "{addresses:?} lacks {expected:?}"
        );
    }
    assert_eq!((c.count("port_list"), c.count("network_list"), c.count("port_get")), (2, 1, 0));
}

#[tokio::test]
async fn addresses_have_the_order_of_neutrons_list_whichever_port_is_older() {
    let c = Connected::new().await;
    let server = c.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let older = c.sim.server_ports(&server).remove(0);
    // A newer port that is the first one in Neutron's list, which is sorted by ID.
    let newer = loop {
        let port = c.sim.attach_port(&server, &PortSpec::default()).unwrap();
        if port < older {
            break port;
        }
        c.sim.delete_port(&port).unwrap();
    };
    let expected = [newer, older].map(|port| format!("InternalIP={}", c.sim.port_addresses(&port)[0]));
    let instance = present(c.ask(by_name("node-1")).await);
    assert_eq!(addresses(&instance), expected);
    assert!(!instance.enforces_address_order, "no rule sets it");
}

#[tokio::test]
async fn a_failed_list_of_ports_fails_only_its_servers() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(200, &ServerSpec::named("node-{i}")).unwrap();
    let queries: Vec<_> = ids.iter().map(|id| by_id("node-1", id)).collect();
    c.sim.add_fault(Fault::on("port_list", Action::status(403)).once());
    let answers = c.describe(&queries, Freshness::now()).await;
    let failed = answers.iter().filter(|answer| answer.is_err()).count();
    assert!(failed == 150 || failed == 50, "{failed} failed");
    let error = answers.into_iter().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

#[tokio::test]
async fn a_temporary_failure_is_retried() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(3, &ServerSpec::named("node-{i}")).unwrap();
    let slow_down = Action::Status {
        code: 429,
        body: None,
        headers: BTreeMap::from([("Retry-After".into(), "1".into())]),
    };
    let proxy = Action::Status {
        code: 404,
        body: Some("<html>no such path</html>".into()),
        headers: BTreeMap::new(),
    };
    for action in [
        Action::status(500),
        slow_down,
        Action::Truncate { bytes: None },
        Action::EmptyJson,
        Action::Drop,
        Action::Reset,
        // This is not Nova's answer about the server, so it never means absence.
        proxy,
    ] {
        for op in ["server_get", "port_list"] {
            c.sim.clear_faults();
            c.sim.add_fault(Fault::on(op, action.clone()).once());
            present(c.ask(by_id("node-1", &ids[0])).await);
        }
    }
}

#[tokio::test]
async fn a_storm_of_refusals_loses_no_node() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(600, &ServerSpec::named("node-{i}")).unwrap();
    let quota = Quota {
        per_second: 3.0,
        burst: 1,
    };
    c.sim.set_quota("network", Some(quota));
    let queries: Vec<_> = ids.iter().map(|id| by_id("node-1", id)).collect();
    for answer in c.describe(&queries, Freshness::now()).await {
        assert!(!present(answer).addresses.is_empty());
    }
    assert!(c.sim.calls().iter().any(|call| call.status == Some(429)), "nothing was refused");
}

#[tokio::test]
async fn a_server_without_addresses_is_present() {
    let c = Connected::new().await;
    c.sim
        .create_server(&ServerSpec {
            ports: Some(Vec::new()),
            status: Some("BUILD".into()),
            ..ServerSpec::named("new")
        })
        .unwrap();
    assert!(present(c.ask(by_name("new")).await).addresses.is_empty());
}

#[tokio::test]
async fn background_work_is_answered_too() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(30, &ServerSpec::named("node-{i}")).unwrap();
    let queries: Vec<_> = ids.iter().map(|id| by_id("node-1", id)).collect();
    let instances = c.cloud.instances().unwrap();
    for answer in instances.describe(&queries, Freshness::now(), Priority::Background).await {
        present(answer);
    }
}

#[tokio::test]
async fn provider_ids_name_the_region_only_where_they_are_read() {
    // The tests of the config cover the written form; this one covers the parsed form.
    let c = Connected::new().await;
    let id = c.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    for text in [
        format!("openstack://RegionOne/{id}"),
        format!("RegionOne/{id}"),
        format!("/{id}"),
    ] {
        assert_eq!(
            present(c.ask(by_provider_id("node-1", &text)).await).provider_id,
            format!("openstack:///{id}")
        );
    }
    c.sim
        .update_server(
            &id,
            &ServerPatch {
                name: Some("renamed".into()),
                ..ServerPatch::default()
            },
        )
        .unwrap();
    assert!(matches!(c.ask(by_id("node-1", &id)).await, Ok(InstanceState::Present(_))));
}

#[tokio::test]
async fn networking_keys_reach_the_addresses() {
    let sim = ccm_sim::openstack::OpenStack::start(Config::default()).await.unwrap();
    let spec = NetworkSpec {
        name: "dmz".into(),
        subnets: vec!["198.51.100.0/24".parse().unwrap()],
        ..NetworkSpec::default()
    };
    sim.create_network(&spec).unwrap();
    let ports = vec![PortSpec::default(), PortSpec::on("dmz")];
    sim.create_server(&ServerSpec {
        ports: Some(ports),
        ..ServerSpec::named("node-1")
    })
    .unwrap();
    let conf = format!(
        "{}[Networking]\npublic-network-name = dmz\naddress-sort-order = 198.51.100.0/24\n",
        sim.cloud_conf()
    );
    let cloud = build(&conf).await.unwrap();
    let c = Connected { sim, cloud };
    let instance = present(c.ask(by_name("node-1")).await);
    assert!(instance.enforces_address_order);
    let addresses = addresses(&instance);
    assert!(addresses[0].starts_with("ExternalIP=198.51.100."), "{addresses:?}");
    assert!(addresses[1].starts_with("InternalIP="), "{addresses:?}");
}
