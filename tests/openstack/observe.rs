//! Observability of a running program: metrics as in their reference, and a log that traces calls.

use std::collections::{BTreeMap, BTreeSet};

use ccm_sim::{Action, Fault};
use regex::Regex;
use serde_json::Value;

use crate::scene::{Scene, names};

/// Kind and labels of every metric of the reference.
fn reference() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let row = Regex::new(r"(?m)^\| `([a-z_]+)` \| ([a-z]+) \| ([a-z_` ]*) \|").unwrap();
    let rows = row.captures_iter(include_str!("../../docs/reference/metrics.md"));
    rows.map(|row| {
        let labels = row[3].split_whitespace();
        let labels = labels.map(|label| label.trim_matches('`').to_owned()).collect();
        (row[1].to_owned(), (row[2].to_owned(), labels))
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_those_of_the_reference() {
    let scene = Scene::set().await;
    let nodes = names("n", 2);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    let ccm = scene.start(&[]).await;
    scene.all_initialized(2).await;
    let (_, page) = ccm.get("/metrics").await.unwrap();
    let (reference, label) = (reference(), Regex::new(r#"([a-z_]+)=""#).unwrap());
    let mut kinds: BTreeMap<String, String> = BTreeMap::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let listed = reference.get(name).unwrap_or_else(|| panic!("{name} is not listed"));
        assert_eq!(listed.0, kind, "{name}");
        assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} occurs twice");
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, labels) = line.split_once('{').unwrap_or((line, ""));
        let series = series.split(' ').next().unwrap();
        let name = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| series.strip_suffix(suffix))
            .find(|name| kinds.get(*name).is_some_and(|kind| kind == "histogram"))
            .unwrap_or(series);
        let there: BTreeSet<_> = label
            .captures_iter(labels)
            .map(|label| label[1].to_owned())
            .filter(|label| label != "le")
            .collect();
        assert_eq!(there, reference[name].1, "{line}");
    }
    for name in [
        "running_managed_controllers",
        "workqueue_depth",
        "rest_client_requests_total",
        "leader_election_master_status",
        "ccm_cloud_calls_total",
        "openstack_api_requests_total",
        "ccm_nodes_uninitialized",
    ] {
        assert!(kinds.contains_key(name), "{name} in\n{page}");
    }
    let leads = "running_managed_controllers{name=\"cloud-node\",manager=\"cloud-controller-manager\"} 1";
    assert!(page.lines().any(|line| line == leads), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_links_a_call_to_the_request_ids_of_the_cloud() {
    let scene = Scene::set().await;
    let nodes = names("n", 1);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    let busy = Fault::on("server_list", Action::status(503)).once();
    scene.cloud.add_fault(busy);
    let ccm = scene.start(&["--logging-format=json", "-v=6"]).await;
    scene.all_initialized(1).await;
    let log = ccm.log().unwrap();
    // The last line may be incomplete.
    let (whole, _) = log.rsplit_once('\n').unwrap();
    let lines: Vec<Value> = whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let with = |message: &'static str| lines.iter().filter(move |line| line["message"] == message);
    let calls: Vec<_> = with("The cloud answered").collect();
    assert!(!calls.is_empty(), "{log}");
    // A refusal has the cloud's request ID, and the number of the call that is retried.
    let refused = with("Will retry a cloud call").next().unwrap_or_else(|| panic!("{log}"));
    let same: Vec<_> = calls.iter().filter(|line| line["span"]["call"] == refused["span"]["call"]).collect();
    let [first, again] = same[..] else {
        panic!("{same:?}")
    };
    let id = first["request_id"].as_str().unwrap();
    assert!(refused["error"].as_str().unwrap().contains(id), "{refused}");
    assert_eq!((&first["status"], &again["status"]), (&503.into(), &200.into()));
    assert_ne!(again["request_id"], id);
    for line in calls {
        assert!(line["span"]["call"].as_u64().is_some_and(|call| call > 0), "{line}");
        assert!(line["span"]["operation"].is_string(), "{line}");
        assert!(line["request_id"].as_str().is_some_and(|id| id.starts_with("req-")), "{line}");
        assert_eq!(line["level"], "TRACE", "{line}");
    }
}
