//! Nodes and their instances.

use std::sync::Arc;

use ccm_core::{
    ErrorKind, InstanceQuery, InstanceState, Need, NodeView, Power, Result,
    testkit::nodes::{ask, node_view},
};
use ccm_testbed::{
    gce::{GceOptions, ZONES},
    proxy::{Action, Rule},
};
use serde_json::{Value, json};

use crate::stage::{Stage, build_with, present, query};

fn addresses(answer: Result<InstanceState>) -> Vec<String> {
    let addresses = present(answer).addresses.into_iter();
    addresses.map(|address| format!("{} {}", address.kind, address.address)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_list_for_each_zone_describes_all_nodes() {
    let stage = Stage::new("").await;
    let machines = stage.machines(40).await;
    let queries: Vec<_> = machines.iter().map(|machine| query(&machine.node, None)).collect();
    for (machine, answer) in machines.iter().zip(stage.describe(&queries).await) {
        let instance = present(answer);
        assert_eq!(instance.provider_id, machine.provider_id);
        let zone = machine.provider_id.split('/').nth(3).unwrap();
        assert_eq!((instance.zone.as_deref(), instance.region.as_deref()), (Some(zone), Some("us-central1")));
        assert_eq!(instance.instance_type.as_deref(), Some("e2-standard-4"));
        let addresses: Vec<_> = instance
            .addresses
            .iter()
            .map(|address| (address.kind.to_string(), address.address.clone()))
            .collect();
        // The host name is the kubelet's.
        let expected: Vec<_> =
            machine.addresses.iter().filter(|(kind, _)| kind != "Hostname").cloned().collect();
        assert_eq!(addresses, expected);
        assert_eq!(instance.power, Power::On);
    }
    assert_eq!(stage.calls(), vec!["instances.list"; ZONES.len()]);

    // With provider IDs, a zone without nodes is not read. The Go program reads each instance.
    stage.gce.proxy.forget();
    let queries: Vec<_> =
        machines.iter().map(|machine| query(&machine.node, Some(&machine.provider_id))).collect();
    for (machine, answer) in machines.iter().zip(stage.describe(&queries).await) {
        assert_eq!(present(answer).provider_id, machine.provider_id);
    }
    assert_eq!(stage.calls(), vec!["instances.list"; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_is_found_by_one_read_or_one_for_each_zone() {
    let stage = Stage::new("").await;
    let machine = stage.machines(1).await.remove(0);
    present(stage.find(&machine.node, Some(&machine.provider_id)).await);
    assert_eq!(stage.calls(), ["instances.get"]);
    stage.gce.proxy.forget();
    // The node's name may have a domain.
    let found = present(stage.find("n-1.us-central1-a.c.test-project.internal", None).await);
    assert_eq!(found.provider_id, machine.provider_id);
    assert!(stage.calls().len() <= ZONES.len(), "{:?}", stage.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_few_nodes_are_read_one_by_one() {
    let stage = Stage::new("").await;
    let machines = stage.machines(3).await;
    let queries: Vec<_> =
        machines.iter().map(|machine| query(&machine.node, Some(&machine.provider_id))).collect();
    assert!(stage.describe(&queries).await.into_iter().all(|answer| answer.is_ok()));
    assert_eq!(
        stage.calls(),
        vec!["instances.get"; 3],
        "a list of each zone has no fewer calls, and more instances"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_all_zones_are_found_without_multizone() {
    let stage = Stage::new("").await;
    let conf = stage.conf.replace("multizone = true\n", "");
    assert_ne!(conf, stage.conf);
    let stage = Stage {
        cloud: crate::stage::build(&stage.gce, &conf).await.unwrap(),
        ..stage
    };
    stage.launch(&["a", "b", "c"], &json!({})).await;
    for name in ["a", "b", "c"] {
        present(stage.find(name, None).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_absent_only_if_the_api_says_so_of_the_instance() {
    let stage = Stage::new("").await;
    let absent = "gce://test-project/us-central1-a/gone";
    assert_eq!(stage.find("gone", Some(absent)).await.unwrap(), InstanceState::Absent);
    assert_eq!(stage.find("gone", None).await.unwrap(), InstanceState::Unresolved);

    let error = stage.find("n", Some("gce://test-project/us-central9-z/gone")).await.unwrap_err();
    assert!(error.report().contains("us-central9-z"), "{error:?}");
    for message in [
        "The resource 'projects/test-project' was not found",
        "Not Found",
        "",
    ] {
        stage.fail("instances.get", 404, "notFound", message, false).await;
        let error = stage.find("gone", Some(absent)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    }
    stage.fail("instances.get", 403, "forbidden", "no", false).await;
    let error = stage.find("gone", Some(absent)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_fails_in_one_zone_is_no_answer() {
    let stage = Stage::new("").await;
    let machines = stage.machines(8).await;
    let queries: Vec<_> = machines.iter().map(|machine| query(&machine.node, None)).collect();
    stage.fail("instances.list", 403, "forbidden", "no", false).await;
    for answer in stage.describe(&queries).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zone_that_does_not_answer_concerns_only_its_own_nodes() {
    let stage = Stage::new("").await;
    let machines = stage.machines(9).await;
    let silent = format!("/zones/{}/", ZONES[1]);
    let path = silent.clone();
    stage
        .gce
        .proxy
        .add(Rule::when(move |request| request.path.contains(&path), Action::Reset));
    let queries: Vec<_> =
        machines.iter().map(|machine| query(&machine.node, Some(&machine.provider_id))).collect();
    for (machine, answer) in machines.iter().zip(stage.describe(&queries).await) {
        let is_silent = machine.id.contains(&silent);
        assert_eq!(answer.is_err(), is_silent, "{machine:?}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_page_of_a_list_is_read_again_or_is_no_answer() {
    let stage = Stage::new("").await;
    // A page has at most 500 instances.
    let names: Vec<_> = (1..=501).map(|at| format!("n-{at}")).collect();
    stage.gce.create_instances(&names, &ZONES[..1], &json!({})).await.unwrap();
    stage.gce.proxy.forget();
    let queries: Vec<_> = names.iter().map(|name| query(name, None)).collect();
    let lost = Rule::when(|request| request.query.contains("pageToken"), Action::Truncate);
    stage.gce.proxy.add(lost.clone().at(1));
    for answer in stage.describe(&queries).await {
        present(answer);
    }
    assert_eq!(stage.count("instances.list"), ZONES.len() + 2, "{:?}", stage.calls());

    stage.gce.proxy.add(lost);
    assert!(stage.describe(&queries).await.iter().all(Result::is_err));
}

#[tokio::test(flavor = "multi_thread")]
async fn html_in_place_of_json_is_no_answer() {
    let stage = Stage::new("").await;
    let machines = stage.machines(9).await;
    let page = Action::answer(200, "<html><body>Sign in</body></html>");
    let rule = stage.gce.proxy.add(Rule::when(|request| request.resource == "compute", page));
    let queries: Vec<_> =
        machines.iter().map(|machine| query(&machine.node, Some(&machine.provider_id))).collect();
    for answer in stage.describe(&queries).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unexpected);
    }
    stage.gce.proxy.remove(rule);
    for answer in stage.describe(&queries).await {
        present(answer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_without_interface_is_refused_by_name_and_exists() {
    let stage = Stage::new("").await;
    stage.launch(&["bare"], &json!({"networkInterfaces": []})).await;
    let id = format!("gce://{}/{}/bare", stage.gce.project(), ZONES[0]);
    let error = stage.find("bare", Some(&id)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec);
    assert!(error.report().contains("bare has no network interface"), "{error:?}");
    // Its node is not deleted.
    let existence = InstanceQuery {
        need: Need::Existence,
        ..query("bare", Some(&id))
    };
    assert_eq!(present(ask(&*stage.cloud, existence).await).provider_id, id);
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_and_excluded_nodes_are_left_alone() {
    let stage = Stage::new("").await;
    stage.launch(&["n-1"], &json!({})).await;
    for foreign in [
        "aws:///us-east-1a/i-1",
        "openstack:///1",
        "kind://docker/kind/n-1",
    ] {
        assert!(!stage.cloud.owns(foreign), "{foreign}");
        assert_eq!(stage.find("n-1", Some(foreign)).await.unwrap(), InstanceState::Unmanaged, "{foreign}");
    }
    let excluded = NodeView {
        labels: [("components.gke.io/gke-unmanaged-node", "true")].into_iter().collect(),
        ..NodeView::clone(&node_view("n-1", None))
    };
    let query = InstanceQuery {
        node: Arc::new(excluded),
        need: Need::Metadata,
    };
    let answer = stage.describe(&[query]).await.remove(0);
    assert_eq!(answer.unwrap(), InstanceState::Unmanaged);
    assert!(stage.calls().is_empty(), "{:?}", stage.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_project_is_never_absent() {
    let options = GceOptions {
        projects: vec!["test-project".to_owned(), "other-project".to_owned()],
        ..GceOptions::default()
    };
    let stage = Stage::with(&options, "").await;
    let id = "gce://other-project/us-central1-a/n-1";
    let error = stage.find("n-1", Some(id)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec);
    assert!(error.report().contains("--enable-multi-project"), "{error:?}");
    assert!(stage.calls().is_empty(), "{:?}", stage.calls());

    let flags = [("enable-multi-project", "true")];
    let stage = Stage {
        cloud: build_with(&stage.gce, &stage.conf, &flags).await.unwrap(),
        ..stage
    };
    assert_eq!(stage.find("n-1", Some(id)).await.unwrap(), InstanceState::Absent);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_instances_exist_and_are_off() {
    let stage = Stage::new("").await;
    for (at, (status, power)) in [
        ("RUNNING", Power::On),
        ("STOPPING", Power::On),
        ("SUSPENDING", Power::On),
        ("STAGING", Power::On),
        ("TERMINATED", Power::Off),
        ("STOPPED", Power::Off),
        ("SUSPENDED", Power::Off),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("n-{at}");
        stage.launch(&[&name], &json!({"status": status})).await;
        assert_eq!(present(stage.find(&name, None).await).power, power, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_have_the_order_of_the_stack_type() {
    let stage = Stage::new("").await;
    let interface = |subnetwork: &str| {
        json!({"networkInterfaces": [{
            "network": "global/networks/dual", "subnetwork": format!("regions/us-central1/subnetworks/{subnetwork}"),
            "stackType": "IPV4_IPV6", "accessConfigs": [{"name": "nat", "type": "ONE_TO_ONE_NAT"}],
        }]})
    };
    let internal = stage.launch(&["internal"], &interface("dual-internal")).await.remove(0);
    let external = stage.launch(&["external"], &interface("dual-external")).await.remove(0);
    let lines = |instance: &Value| {
        let interface = &instance["networkInterfaces"][0];
        let v6 = match &interface["ipv6Address"] {
            Value::String(internal) => internal,
            _ => interface["ipv6AccessConfigs"][0]["externalIpv6"].as_str().unwrap(),
        };
        let v4 = vec![
            format!("InternalIP {}", interface["networkIP"].as_str().unwrap()),
            format!("ExternalIP {}", interface["accessConfigs"][0]["natIP"].as_str().unwrap()),
        ];
        (v4, vec![format!("InternalIP {v6}")])
    };
    for (name, (v4, v6)) in [("internal", lines(&internal)), ("external", lines(&external))] {
        let v4_first = [v4.clone(), v6.clone()].concat();
        let v6_first = [v6, v4].concat();
        for (stack, expected) in [("IPV4", &v4_first), ("IPV4_IPV6", &v4_first), ("IPV6", &v6_first)] {
            let conf = format!("{}stack-type = {stack}\n", stage.conf);
            let cloud = crate::stage::build(&stage.gce, &conf).await.unwrap();
            let answer = ask(&*cloud, query(name, None)).await;
            assert_eq!(addresses(answer), *expected, "{name} {stack}");
        }
    }
}
