//! Nodes of every kind, and the requests for each query.

use ccm_core::{ErrorKind, InstanceQuery, InstanceState, Need, NodeAddress, Power, Result, testkit::nodes};
use ccm_testbed::{
    observe::assert_has,
    proxy::{Action, Request, Rule},
};
use serde_json::json;

use crate::{
    context::build,
    stage::{Stage, present, query, refusal},
};

const ABSENT: &str = "aws:///us-east-1a/i-0123456789abcdef0";

/// A response of EC2 to `action` with this content.
fn response(action: &str, content: &str) -> String {
    format!(
        "<{action}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">{content}</{action}Response>"
    )
}

/// Waits for the topology of instances to be requested.
async fn wait_for_topology(stage: &Stage) {
    let is_topology = |request: &Request| request.name == "DescribeInstanceTopology";
    let proxy = &stage.account.proxy;
    proxy.wait_for(|all| all.iter().any(is_topology)).await;
}

/// The actions that were requested, without the topology of instances.
fn actions(stage: &Stage) -> Vec<String> {
    let mut actions = stage.actions();
    actions.retain(|action| action != "DescribeInstanceTopology");
    actions
}

fn existence(name: &str, provider_id: &str) -> InstanceQuery {
    nodes::query(name, Some(provider_id), Need::Existence)
}

/// The answers as `present`, `absent` and `error`.
fn shown(answers: &[Result<InstanceState>]) -> String {
    let shown = answers.iter().map(|answer| match answer {
        Ok(InstanceState::Present(_)) => "present",
        Ok(InstanceState::Absent) => "absent",
        Ok(_) => "other",
        Err(_) => "error",
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_type_zone_addresses_and_labels() {
    let stage = Stage::new(1, "").await;
    let (_, dns, id, zone) = stage.launch("node-2").await;
    let layers = "<item>nn-1</item><item>nn-2</item><item>nn-3</item>";
    let item = format!("<instanceId>{id}</instanceId><instanceType>m5.large</instanceType>");
    let item = format!("<item>{item}<networkNodeSet>{layers}</networkNodeSet></item>");
    let content = format!("<instanceSet>{item}</instanceSet>");
    let topology = response("DescribeInstanceTopology", &content);
    stage.answer("DescribeInstanceTopology", "", 200, &topology);
    let first = stage.find(&dns, None).await;
    assert_eq!(first.provider_id, format!("aws:///{zone}/{id}"));
    assert_eq!(first.instance_type.as_deref(), Some("m5.large"));
    assert_eq!(first.zone, Some(zone));
    assert_eq!(first.region.as_deref(), Some("us-east-1"));
    assert!(first.labels["topology.k8s.aws/zone-id"].starts_with("use1-az"));
    let kinds: Vec<_> = first.addresses.iter().map(|address| address.kind.to_string()).collect();
    let kinds = kinds.join(" ");
    assert!(kinds.starts_with("InternalIP "), "{kinds}");
    assert_has(&kinds, &["InternalDNS", "Hostname"]);
    assert!(!first.enforces_address_order, "with one family, no rule sets it");
    // Topology does not delay a node: its labels come with a later refresh.
    assert_eq!(first.labels.len(), 1);
    wait_for_topology(&stage).await;
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
async fn an_instance_that_does_not_exist_keeps_no_other_from_its_topology() {
    let stage = Stage::new(0, "").await;
    let machines = stage.launch_all(&["node-5".to_owned(), "node-6".to_owned()]).await;
    let [(_, missing_dns, missing, _), (_, dns, id, _)] = machines.as_slice() else {
        panic!("{machines:?}")
    };
    let topology = "DescribeInstanceTopology";
    let item = format!(
        "<item><instanceId>{id}</instanceId><networkNodeSet><item>nn-1</item></networkNodeSet></item>"
    );
    let found = response(topology, &format!("<instanceSet>{item}</instanceSet>"));
    let text = format!("The instance ID '{missing}' does not exist");
    let refused = refusal("InvalidInstanceID.NotFound", &text);
    for (has_missing, code, body) in [(true, 400, refused), (false, 200, found)] {
        let missing = missing.clone();
        let is_matched = move |request: &Request| {
            request.name == topology && request.body.contains(&missing) == has_missing
        };
        stage.account.proxy.add(Rule::when(is_matched, Action::answer(code, body)));
    }
    loop {
        let answers = stage.describe(&[query(missing_dns, None), query(dns, None)]).await;
        let [first, second] = <[_; 2]>::try_from(answers).unwrap().map(present);
        assert_eq!(first.labels.len(), 1, "{first:?}");
        if second.labels.contains_key("topology.k8s.aws/network-node-layer-1") {
            break;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_topology_of_an_unsupported_region_is_read_once() {
    let stage = Stage::new(2, "").await;
    let topology = "DescribeInstanceTopology";
    stage.refuse(topology, "", 400, "UnsupportedOperation");
    for name in ["node-3", "node-4"] {
        let (_, dns, ..) = stage.launch(name).await;
        let node = stage.find(&dns, None).await;
        assert_eq!(node.labels.len(), 1);
        wait_for_topology(&stage).await;
    }
    assert_eq!(stage.count(topology), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_cost_few_requests() {
    let stage = Stage::new(0, "").await;
    let names: Vec<String> = (0..60).map(|i| format!("n-{i}")).collect();
    let machines = stage.launch_all(&names).await;
    let queries: Vec<_> = machines.iter().map(|(_, dns, ..)| query(dns, None)).collect();
    let found = stage.describe(&queries).await.into_iter().map(present);
    let mut queries: Vec<_> = found.map(|one| existence("x", &one.provider_id)).collect();
    let names_and_zones = ["DescribeInstances", "DescribeAvailabilityZones"];
    assert_eq!(actions(&stage), names_and_zones);
    stage.account.proxy.forget();
    // All of them by id, and one that does not exist: it must not fail the others.
    queries.push(existence("absent", ABSENT));
    let answers = stage.describe(&queries).await;
    assert_eq!(shown(&answers), format!("{}absent", "present ".repeat(60)));
    assert_eq!(actions(&stage), ["DescribeInstances", "DescribeInstances"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_second_read_reports_an_instance_as_absent() {
    let stage = Stage::new(0, "").await;
    let machines = stage.launch_all(&["a".to_owned(), "b".to_owned()]).await;
    let machines = machines.iter().map(|(_, _, id, zone)| format!("aws:///{zone}/{id}"));
    let mut queries: Vec<_> = machines.map(|id| existence("x", &id)).collect();
    queries.insert(1, existence("absent", ABSENT));
    // The filter finds nothing, as right after a start.
    let empty = response("DescribeInstances", "<reservationSet/>");
    let rule = stage.answer("DescribeInstances", "instance-id", 200, &empty);
    assert_eq!(shown(&stage.describe(&queries).await), "present absent present");
    // The second read fails: no instance is reported absent.
    stage.refuse("DescribeInstances", "InstanceId.1", 400, "InvalidParameterValue");
    assert_eq!(shown(&stage.describe(&queries).await), "error error error");
    stage.account.proxy.remove(rule);
    assert_eq!(shown(&stage.describe(&queries).await), "present error present");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_id_is_read_alone() {
    let stage = Stage::new(0, "").await;
    let (_, _, id, zone) = stage.launch("a").await;
    let malformed = refusal("InvalidInstanceID.Malformed", "Invalid id: \"i-odd\"");
    stage.answer("DescribeInstances", "i-odd", 400, &malformed);
    let id = format!("aws:///{zone}/{id}");
    let odd = query("odd", Some("aws:///us-east-1a/i-odd"));
    let queries = [odd, query("a", Some(&id))];
    let answers = stage.describe(&queries).await;
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
    for answer in stage.describe(&both).await {
        assert!(present(answer).provider_id.ends_with(&id));
    }
    // With resource names the id is in the name.
    let name = format!("{id}.us-east-1.compute.internal");
    let found = stage.find(&name, None).await;
    assert!(found.provider_id.ends_with(&id));
    let other = stage.ask(query("ip-10-9-9-9.corp.example", None)).await;
    assert_eq!(other.unwrap(), InstanceState::Unresolved);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_without_cluster_tag_is_not_found_by_its_name() {
    let stage = Stage::new(0, "").await;
    let (_, dns, id, _) = stage.launch("a").await;
    let tags = json!({"Resources": [id], "Tags": [{"Key": "kubernetes.io/cluster/kubernetes"}]});
    stage.call("ec2", "delete_tags", tags).await;
    // It is found by its address, since it is in the cluster's VPC.
    let name = dns.replace("ip-", "pi-");
    let other = stage.ask(query(&name, None)).await;
    assert_eq!(other.unwrap(), InstanceState::Unresolved);
    let found = stage.find("a", Some(&format!("aws:///us-east-1a/{id}"))).await;
    assert!(found.provider_id.ends_with(&id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fargate_node_is_its_network_interface() {
    let stage = Stage::new(0, "[Global]\nNodeIPFamilies=ipv6\nNodeIPFamilies=ipv4\n").await;
    let machine = stage.launch("a").await;
    let (_, dns, _, zone) = machine;
    let id = format!("fargate-{}", dns.replace(".ec2.internal", ".internal"));
    let found = stage.find("f", Some(&format!("aws:///{zone}/1abc/{id}"))).await;
    assert_eq!((found.power, found.instance_type.clone()), (Power::On, None));
    assert!(found.provider_id.ends_with(&id) && found.addresses[0].kind == ccm_core::AddressType::InternalIP);
    assert!(found.enforces_address_order, "NodeIPFamilies sets it");
    let absent = query("f", Some("aws:///us-east-1a/1abc/fargate-ip-10-9-9-9.internal"));
    assert_eq!(stage.ask(absent).await.unwrap(), InstanceState::Absent);
}

/// The addresses of a node after a pass of upstream with these values of `NodeIPFamilies`: it knows two names, takes the addresses
/// of an instance by them, and writes no addresses if it found none (`updateNodeAddress`).
fn addresses_after_upstream(
    families: &[&str],
    written: &[NodeAddress],
    instance: &[NodeAddress],
) -> Vec<NodeAddress> {
    let is_known = |address: &&NodeAddress| {
        let family = if address.address.contains(':') {
            "ipv6"
        } else {
            "ipv4"
        };
        families.contains(&family)
    };
    let found: Vec<_> = instance.iter().filter(is_known).cloned().collect();
    if found.is_empty() { written.to_vec() } else { found }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_empty_family_new_nodes_get_addresses_that_upstream_leaves() {
    let stage = Stage::new(0, "[Global]\nNodeIPFamilies=\"\"\n").await;
    let (_, dns, ..) = stage.launch("a").await;
    let found = stage.find(&dns, None).await;
    assert!(found.keeps_addresses, "nodes of upstream keep theirs");
    let kinds: Vec<_> = found.addresses.iter().map(|address| address.kind.to_string()).collect();
    assert!(kinds.contains(&"InternalIP".to_owned()), "{kinds:?}");
    // The way back: upstream reads the same config.
    let after = addresses_after_upstream(&[""], &found.addresses, &found.addresses);
    assert_eq!(after, found.addresses);
    // A node that upstream initialized has none, and gets none from it either.
    assert_eq!(addresses_after_upstream(&[""], &[], &found.addresses), []);
    // Without the key, both programs report the same.
    let plain = stage.account.cloud_conf();
    let cloud = build(&plain, &stage.account.environment()).await.unwrap();
    let again = present(nodes::ask(&*cloud, query(&dns, None)).await);
    assert!(!again.keeps_addresses);
    assert_eq!(again.addresses, found.addresses);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_html_page_is_an_error() {
    let stage = Stage::new(0, "").await;
    let html = "<!DOCTYPE html><html><body>Welcome</body></html>";
    use ErrorKind::{Unavailable, Unexpected};
    for (code, kind) in [(502, Unavailable), (200, Unavailable), (404, Unexpected)] {
        let rule = stage.answer("DescribeInstances", "", code, html);
        let error = stage.ask(existence("absent", ABSENT)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{code}: {error:?}");
        assert!(!error.report().contains("Welcome"), "{error:?}");
        stage.account.proxy.remove(rule);
    }
    // A Fargate node without an address is not absent.
    let odd = query("f", Some("aws:///us-east-1a/1abc/fargate-x"));
    let error = stage.ask(odd).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec);
}
