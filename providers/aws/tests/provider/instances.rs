//! Nodes of every kind, and the requests for each query.

use std::time::Duration;

use ccm_core::{ErrorKind, Freshness, InstanceState, Need, Power};
use serde_json::json;

use crate::stage::{Stage, present, query};

const ABSENT: &str = "aws:///us-east-1a/i-0123456789abcdef0";

fn topology(id: &str) -> String {
    format!(
        "<DescribeInstanceTopologyResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><instanceSet><item>\
         <instanceId>{id}</instanceId><instanceType>m5.large</instanceType><networkNodeSet><item>nn-1</item><item>nn-2</item>\
         <item>nn-3</item></networkNodeSet></item></instanceSet></DescribeInstanceTopologyResponse>"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_type_zone_addresses_and_labels() {
    let stage = Stage::new(1, "").await;
    let (_, dns, id, zone) = stage.launch("node-2").await;
    stage.answer("DescribeInstanceTopology", "", 200, &topology(&id));
    let first = stage.find(&dns, None).await;
    assert_eq!(first.provider_id, format!("aws:///{zone}/{id}"));
    assert_eq!(
        (first.instance_type.as_deref(), first.zone.as_deref()),
        (Some("m5.large"), Some(zone.as_str()))
    );
    assert_eq!(first.region.as_deref(), Some("us-east-1"));
    assert!(first.labels["topology.k8s.aws/zone-id"].starts_with("use1-az"));
    let kinds: Vec<String> = first
        .addresses
        .iter()
        .map(|address| address.kind.to_string())
        .collect();
    assert_eq!(kinds[..1], ["InternalIP"]);
    assert!(
        kinds.contains(&"InternalDNS".to_owned()) && kinds.contains(&"Hostname".to_owned()),
        "{kinds:?}"
    );
    // Topology does not delay a node: its labels come with a later refresh.
    assert_eq!(first.labels.len(), 1);
    stage
        .account
        .proxy
        .wait_for(|all| all.iter().any(|one| one.name == "DescribeInstanceTopology"))
        .await;
    loop {
        let again = stage.find(&dns, Some(&first.provider_id)).await;
        if let Some(layer) = again.labels.get("topology.k8s.aws/network-node-layer-3") {
            assert_eq!((layer.as_str(), again.labels.len()), ("nn-3", 4));
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_topology_of_an_unsupported_region_is_read_once() {
    let stage = Stage::new(2, "").await;
    stage.refuse(
        "DescribeInstanceTopology",
        "",
        400,
        "UnsupportedOperation",
        "not in this region",
    );
    for name in ["node-3", "node-4"] {
        let (_, dns, ..) = stage.launch(name).await;
        let node = stage.find(&dns, None).await;
        assert_eq!(node.labels.len(), 1);
        stage
            .account
            .proxy
            .wait_for(|all| all.iter().any(|one| one.name == "DescribeInstanceTopology"))
            .await;
    }
    let requests = stage.count("DescribeInstanceTopology");
    assert_eq!(requests, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_cost_few_requests() {
    let stage = Stage::new(0, "").await;
    let names: Vec<String> = (0..60).map(|i| format!("n-{i}")).collect();
    let machines = stage.account.launch(&names).await.unwrap();
    stage.account.proxy.forget();
    let queries: Vec<_> = machines.iter().map(|(_, dns, ..)| query(dns, None)).collect();
    let found: Vec<_> = stage
        .describe(&queries, Freshness::now())
        .await
        .into_iter()
        .map(present)
        .collect();
    let mut actions = stage.actions();
    actions.retain(|action| action != "DescribeInstanceTopology");
    assert_eq!(actions, ["DescribeInstances", "DescribeAvailabilityZones"]);
    stage.account.proxy.forget();
    // All of them by id, and one that does not exist: it must not fail the others.
    let mut queries: Vec<_> = found
        .iter()
        .map(|one| query("x", Some(&one.provider_id)))
        .collect();
    queries.push(query("absent", Some(ABSENT)));
    for query in &mut queries {
        query.need = Need::Existence;
    }
    let answers = stage.describe(&queries, Freshness::now()).await;
    assert_eq!(
        answers
            .iter()
            .filter(|answer| matches!(answer, Ok(InstanceState::Present(_))))
            .count(),
        60
    );
    assert!(matches!(answers.last(), Some(Ok(InstanceState::Absent))));
    let mut actions = stage.actions();
    actions.retain(|action| action != "DescribeInstanceTopology");
    assert_eq!(actions, ["DescribeInstances", "DescribeInstances"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_second_read_reports_an_instance_as_absent() {
    let stage = Stage::new(0, "").await;
    let machines = stage
        .account
        .launch(&["a".to_owned(), "b".to_owned()])
        .await
        .unwrap();
    let ids: Vec<String> = machines
        .iter()
        .map(|(_, _, id, zone)| format!("aws:///{zone}/{id}"))
        .collect();
    let mut queries = vec![
        query("a", Some(&ids[0])),
        query("absent", Some(ABSENT)),
        query("b", Some(&ids[1])),
    ];
    queries.iter_mut().for_each(|query| query.need = Need::Existence);
    // The filter finds nothing, as right after a start.
    let empty = "<DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><reservationSet/></DescribeInstancesResponse>";
    let rule = stage.answer("DescribeInstances", "instance-id", 200, empty);
    let answers = stage.describe(&queries, Freshness::now()).await;
    assert!(
        matches!(
            answers.as_slice(),
            [
                Ok(InstanceState::Present(_)),
                Ok(InstanceState::Absent),
                Ok(InstanceState::Present(_))
            ]
        ),
        "{answers:?}"
    );
    // The second read fails: no instance is reported absent.
    stage.refuse(
        "DescribeInstances",
        "InstanceId.1",
        400,
        "InvalidParameterValue",
        "no",
    );
    let answers = stage.describe(&queries, Freshness::now()).await;
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    stage.account.proxy.remove(rule);
    let answers = stage.describe(&queries, Freshness::now()).await;
    assert!(
        matches!(
            answers.as_slice(),
            [
                Ok(InstanceState::Present(_)),
                Err(_),
                Ok(InstanceState::Present(_))
            ]
        ),
        "{answers:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_id_is_read_alone() {
    let stage = Stage::new(0, "").await;
    let (_, _, id, zone) = stage.launch("a").await;
    stage.refuse(
        "DescribeInstances",
        "i-odd",
        400,
        "InvalidInstanceID.Malformed",
        "Invalid id: \"i-odd\"",
    );
    let id = format!("aws:///{zone}/{id}");
    let queries = [
        query("odd", Some("aws:///us-east-1a/i-odd")),
        query("a", Some(&id)),
    ];
    let answers = stage.describe(&queries, Freshness::now()).await;
    let [Err(error), Ok(InstanceState::Present(_))] = answers.as_slice() else {
        panic!("{answers:?}")
    };
    assert_eq!(error.kind(), ErrorKind::InvalidSpec);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_with_another_domain_is_found_by_its_address() {
    let stage = Stage::new(0, "").await;
    let (_, dns, id, _) = stage.launch("a").await;
    let host = dns.split('.').next().unwrap();
    let name = format!("{host}.corp.example");
    let found = stage.find(&name, None).await;
    assert!(found.provider_id.ends_with(&id));
    // A listing, which is cheaper than reads by id and by name, has only the private DNS name.
    let both = [query("x", Some(&found.provider_id)), query(&name, None)];
    for answer in stage.describe(&both, Freshness::now()).await {
        assert!(present(answer).provider_id.ends_with(&id));
    }
    // With resource names the id is in the name.
    let found = stage
        .find(&format!("{id}.us-east-1.compute.internal"), None)
        .await;
    assert!(found.provider_id.ends_with(&id));
    assert_eq!(
        stage.ask(query("ip-10-9-9-9.corp.example", None)).await.unwrap(),
        InstanceState::Unresolved
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_without_cluster_tag_is_not_found_by_its_name() {
    let stage = Stage::new(0, "").await;
    let (_, dns, id, _) = stage.launch("a").await;
    let tags = json!({"Resources": [id], "Tags": [{"Key": "kubernetes.io/cluster/kubernetes"}]});
    stage.call("ec2", "delete_tags", tags).await;
    // It is found by its address, since it is in the cluster's VPC.
    let name = dns.replace("ip-", "pi-");
    assert_eq!(
        stage.ask(query(&name, None)).await.unwrap(),
        InstanceState::Unresolved
    );
    let found = stage.find("a", Some(&format!("aws:///us-east-1a/{id}"))).await;
    assert!(found.provider_id.ends_with(&id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fargate_node_is_its_network_interface() {
    let stage = Stage::new(0, "").await;
    let machine = stage.launch("a").await;
    let (_, dns, _, zone) = machine;
    let id = format!("fargate-{}", dns.replace(".ec2.internal", ".internal"));
    let found = stage.find("f", Some(&format!("aws:///{zone}/1abc/{id}"))).await;
    assert_eq!((found.power, found.instance_type.clone()), (Power::On, None));
    assert!(found.provider_id.ends_with(&id) && found.addresses[0].kind == ccm_core::AddressType::InternalIP);
    let absent = stage
        .ask(query(
            "f",
            Some("aws:///us-east-1a/1abc/fargate-ip-10-9-9-9.internal"),
        ))
        .await;
    assert_eq!(absent.unwrap(), InstanceState::Absent);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_html_page_is_an_error() {
    let stage = Stage::new(0, "").await;
    let mut question = query("absent", Some(ABSENT));
    question.need = Need::Existence;
    for (code, kind) in [
        (502, ErrorKind::Unavailable),
        (200, ErrorKind::Unavailable),
        (404, ErrorKind::Unexpected),
    ] {
        let rule = stage.answer(
            "DescribeInstances",
            "",
            code,
            "<!DOCTYPE html><html><body>Welcome</body></html>",
        );
        let error = stage.ask(question.clone()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{code}: {error:?}");
        assert!(!error.report().contains("Welcome"), "{error:?}");
        stage.account.proxy.remove(rule);
    }
    // A Fargate node without an address is not absent.
    let odd = stage
        .ask(query("f", Some("aws:///us-east-1a/1abc/fargate-x")))
        .await;
    assert_eq!(odd.unwrap_err().kind(), ErrorKind::InvalidSpec);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_with_a_failed_page_is_an_error() {
    let stage = Stage::new(0, "").await;
    let names: Vec<String> = (0..3).map(|i| format!("n-{i}")).collect();
    let machines = stage.account.launch(&names).await.unwrap();
    let page = "<DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><reservationSet/><nextToken>t</nextToken></DescribeInstancesResponse>";
    stage.refuse(
        "DescribeInstances",
        "NextToken",
        400,
        "InvalidParameterValue",
        "bad token",
    );
    stage.answer("DescribeInstances", "private-dns-name", 200, page);
    let queries: Vec<_> = machines.iter().map(|(_, dns, ..)| query(dns, None)).collect();
    let answers = stage
        .describe(&queries[..1], Freshness::AtMost(Duration::ZERO))
        .await;
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
}
