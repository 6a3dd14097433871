//! `plan` and `--dry-run`: their output, and that they write nothing.

use std::{collections::BTreeMap, time::Duration};

use ccm_sim::{Action, Fault, openstack::ServerSpec};
use ccm_testbed::nodes::{self, NodeSpec};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    plan_scene::{PlanScene, redact},
    scene::{LIMIT, names},
};

const FLAVOR: &str = "loadbalancer.openstack.org/flavor-id";

/// The operation of a step in the cloud's log of calls.
fn operation(step: &Value) -> Option<&'static str> {
    let what = step["what"].as_str().unwrap();
    let table = [
        ("create load balancer", "loadbalancer_create"),
        ("change load balancer", "loadbalancer_update"),
        ("create listener", "loadbalancer_listener_create"),
        ("create pool", "loadbalancer_pool_create"),
        ("add members", "loadbalancer_members_update"),
        ("set the members", "loadbalancer_members_update"),
        ("create health monitor", "loadbalancer_healthmonitor_create"),
        ("create floating IP", "floating_ip_create"),
        ("create security group", "security_group_create"),
        ("create rule in security group", "security_group_rule_create"),
        ("delete rule in security group", "security_group_rule_delete"),
        ("change security groups of node port", "port_update"),
    ];
    if step["kind"] != "cloud" {
        return None;
    }
    let found = table.iter().find(|(begin, _)| what.starts_with(begin));
    Some(found.unwrap_or_else(|| panic!("unknown: {what}")).1)
}

/// All changes of a plan.
fn changes(plan: &Value) -> Vec<&Value> {
    ["services", "parts", "nodes"]
        .iter()
        .flat_map(|list| plan[list].as_array().unwrap())
        .flat_map(|subject| subject["changes"].as_array().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_writes_nothing_and_matches_the_later_changes() {
    let stage = PlanScene::set().await;
    let scene = &stage.scene;
    let nodes = names("node", 2);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    let web = [(80, 30080), (443, 30443)];
    stage.create("web", &web, json!({})).await;
    stage
        .create(
            "hidden",
            &[(25, 30025)],
            json!({"service.beta.kubernetes.io/openstack-internal-load-balancer": "true"}),
        )
        .await;
    scene.cloud.clear_calls();

    let planned = stage.plan(&[]).await.assert_code(2);
    insta::assert_snapshot!("plan_text", redact(&planned.text));
    let json = stage.plan(&["-o", "json"]).await.assert_code(2);
    insta::assert_snapshot!("plan_json", redact(&json.text));
    assert_eq!(stage.plan(&["-o=json"]).await.text, json.text, "a second plan differs");
    let one = stage.plan(&["--service=default/hidden"]).await.assert_code(2);
    insta::assert_snapshot!("plan_of_one_service", redact(&one.text));
    for (service, message) in [
        ("default/none", "Service default/none not found"),
        ("shop/web", "Service shop/web not found; there is default/web"),
        ("default/kubernetes", "default/kubernetes is not of type LoadBalancer"),
    ] {
        let refused = stage.plan(&["--service", service]).await.assert_code(1);
        assert!(refused.log.contains(message) && refused.text.is_empty(), "{}", refused.log);
    }

    // A kill during the plan.
    scene.cloud.set_latency(Duration::from_secs(600));
    let mut killed = stage.command(&["plan"]).spawn().unwrap();
    let before = scene.cloud.calls().len();
    scene.cloud.wait_for_calls(|calls| calls.len() > before).await;
    killed.kill().await.unwrap();
    scene.cloud.set_latency(Duration::ZERO);
    stage.assert_untouched().await;

    scene.cloud.clear_calls();
    // Nodes first, so that the result does not depend on the order of the controllers.
    let mut ccm = scene.start(&["--controllers=cloud-node"]).await;
    scene.all_initialized(2).await;
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());
    let mut ccm = scene.start(&[]).await;
    stage.served("web").await;
    stage.served("hidden").await;
    let again = stage.plan(&[]).await.assert_code(0);
    assert_eq!(again.text, "Nothing to do: 2 Services and 2 nodes are as desired.\n");
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());
    let plan: Value = serde_json::from_str(&json.text).unwrap();
    let mut planned: BTreeMap<String, usize> = BTreeMap::new();
    for operation in changes(&plan).into_iter().filter_map(operation) {
        *planned.entry(operation.to_owned()).or_default() += 1;
    }
    let mut writes = stage.writes();
    // A plan changes each port once for both Services. The running program may change it once for each Service.
    let (once, done) = (planned.remove("port_update"), writes.remove("port_update"));
    assert!(once == Some(2) && (2..=4).contains(&done.unwrap()), "{done:?}");
    assert_eq!(writes, planned);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_and_unreadable_state_have_their_own_exit_codes() {
    let stage = PlanScene::set().await;
    let scene = &stage.scene;
    let nodes = names("node", 1);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    for name in ["web", "other"] {
        let port = if name == "web" { 30080 } else { 30081 };
        stage.create(name, &[(80, port)], json!({})).await;
    }
    let mut ccm = scene.start(&[]).await;
    for name in ["web", "other"] {
        stage.served(name).await;
    }
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());
    stage.plan(&[]).await.assert_code(0);

    let flavor = scene.cloud.create_balancer_flavor("fast", true).unwrap();
    stage.annotate("web", FLAVOR, json!(flavor)).await;
    let blocked = stage.plan(&[]).await.assert_code(3);
    insta::assert_snapshot!("plan_blocked", redact(&blocked.text));
    let other = stage.plan(&["--service=default/other"]).await.assert_code(0);
    assert!(!other.text.contains("flavor"), "what is another's: {}", other.text);
    let document: Value = serde_json::from_str(&stage.plan(&["-ojson"]).await.text).unwrap();
    assert_eq!(document["verdict"], "blocked");
    assert_eq!(document["services"][0]["blocked"][0]["want"], json!(flavor));

    // One request reads the listeners of all load balancers.
    let broken = scene.cloud.add_fault(Fault::on("loadbalancer_listener_list", Action::status(403)));
    let incomplete = stage.plan(&[]).await.assert_code(1);
    assert!(incomplete.text.contains("Could not be determined\n  ? "), "{}", incomplete.text);
    assert!(incomplete.text.contains("Plan (not complete): "), "{}", incomplete.text);
    scene.cloud.remove_fault(broken);

    // A Service that is deleted while the program does not run leaves an orphan. It is a warning, and the exit code stays.
    let kept = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let params = PatchParams::default();
    stage.services().patch("other", &params, &kept).await.unwrap();
    stage.services().delete("other", &DeleteParams::default()).await.unwrap();
    let left = stage.plan(&[]).await.assert_code(3);
    insta::assert_snapshot!("plan_of_orphans", redact(&left.text));

    // All problems of the config are reported at once, before any request.
    let conf = "[Global]\nauth-url = nonsense\nregion = \n[LoadBalancer]\nmax-shared-lb = many\n";
    scene.stage.write_cloud_config(conf).unwrap();
    let refused = stage.plan(&["--kubeconfig=/does/not/exist"]).await.assert_code(1);
    for text in ["max-shared-lb", "auth-url", "/does/not/exist"] {
        assert!(refused.log.contains(text), "{text}: {}", refused.log);
    }
    assert_eq!(refused.text, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_shows_changes_of_nodes() {
    let stage = PlanScene::set().await;
    let scene = &stage.scene;
    let nodes = names("node", 9);
    let ids: Vec<_> = nodes
        .iter()
        .map(|name| scene.cloud.create_server(&ServerSpec::named(name)).unwrap())
        .collect();
    for (name, id) in nodes.iter().zip(&ids) {
        let spec = NodeSpec {
            provider_id: Some(format!("openstack:///{id}")),
            ..NodeSpec::new(name)
        };
        scene.register_one(spec).await;
    }
    let mut ccm = scene.start(&["--controllers=cloud-node"]).await;
    scene.all_initialized(nodes.len()).await;
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());

    scene.cloud.delete_server(&ids[0]).unwrap();
    scene.cloud.set_status(&ids[1], "SHUTOFF").unwrap();
    for name in &nodes[..2] {
        nodes::set_ready(&scene.client, name, false).await.unwrap();
    }
    let params = PatchParams::default();
    let wrong = json!({"metadata": {"labels": {"node.kubernetes.io/instance-type": "old"}}});
    scene.nodes.patch(&nodes[2], &params, &Patch::Merge(wrong)).await.unwrap();
    let wrong = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}});
    scene.nodes.patch_status(&nodes[3], &params, &Patch::Merge(wrong)).await.unwrap();
    let zone = "elsewhere";
    let moved = json!({"metadata": {"labels": {
        "topology.kubernetes.io/zone": zone, "failure-domain.beta.kubernetes.io/zone": zone,
    }}});
    scene.nodes.patch(&nodes[4], &params, &Patch::Merge(moved)).await.unwrap();
    let shutdown = "node.cloudprovider.kubernetes.io/shutdown";
    let tainted = json!({"spec": {"taints": [{"key": shutdown, "effect": "NoSchedule"}]}});
    scene.nodes.patch(&nodes[5], &params, &Patch::Merge(tainted)).await.unwrap();
    scene.cloud.create_server(&ServerSpec::named("new")).unwrap();
    scene.register(&["new".to_owned(), "nowhere".to_owned()]).await;
    scene
        .register_one(NodeSpec {
            provider_id: Some("aws:///eu/i-1".to_owned()),
            ..NodeSpec::new("foreign")
        })
        .await;
    scene.cloud.clear_calls();

    let grace = "--node-deletion-grace=0s";
    let planned = stage.plan(&[grace]).await.assert_code(2);
    insta::assert_snapshot!("plan_of_nodes", redact(&planned.text));
    let young = stage.plan(&[]).await.assert_code(2);
    assert!(young.text.contains("once it is older than 120s"), "{}", young.text);
    // Only one controller is enabled.
    let few = stage.plan(&["--controllers=cloud-node-lifecycle", grace]).await.assert_code(2);
    assert!(
        !few.text.contains("initialize") && few.text.contains("Nodes to delete: 1"),
        "{}",
        few.text
    );

    // With the credentials of another project, the cloud reports no machine.
    for id in &ids[1..] {
        scene.cloud.delete_server(id).unwrap();
    }
    let blocked = stage.plan(&["--controllers=cloud-node-lifecycle", grace]).await;
    assert!(blocked.text.contains("no other machine of this cluster was found"), "{}", blocked.text);
    assert!(!blocked.text.contains("Nodes to delete"), "{}", blocked.text);
    assert_eq!(stage.writes(), BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_logs_changes_of_its_plan_and_writes_nothing() {
    let stage = PlanScene::set().await;
    let scene = &stage.scene;
    let nodes = names("node", 1);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    let flags = [
        "--dry-run",
        "--node-status-update-frequency=10s",
        "--authentication-skip-lookup",
    ];
    let mut ccm = scene.stage.launch_as("openstack", &stage.reader, &flags).unwrap();
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    let log = scene.logged("summary=0 to create, 1 to change, 0 to delete").await;
    assert!(log.contains("Would do about=\"node node-1\" what=\"provider ID openstack:///"), "{log}");

    stage.create("web", &[(80, 30080)], json!({})).await;
    scene.logged("Would do about=\"Service default/web\" what=\"create load balancer").await;
    let metrics = ccm.get("/metrics").await.unwrap().1;
    assert!(metrics.contains("ccm_dry_run_changes{effect=\"create\"} "), "{metrics}");
    assert!(metrics.contains("ccm_dry_run_problems 0"), "{metrics}");

    stage.services().delete("web", &DeleteParams::default()).await.unwrap();
    scene
        .logged("No longer applies about=\"Service default/web\" what=\"create load balancer")
        .await;

    // A changed config is applied while the dry run runs, without an Event.
    let conf = std::fs::read_to_string(scene.stage.cloud_config()).unwrap();
    scene.stage.write_cloud_config(&conf.replace("correct-horse", "wrong")).unwrap();
    scene.logged("cannot be applied").await;
    assert_eq!(ccm.get("/readyz").await.unwrap().0, 200);
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success(), "{}", scene.log());
    let lines: Vec<_> = scene
        .log()
        .lines()
        .filter(|line| line.contains("Would do about=\"node node-1\""))
        .map(str::to_owned)
        .collect();
    assert_eq!(lines.len(), 1, "once: {lines:?}");
    stage.assert_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_tags_are_planned_and_applied_and_a_missing_health_monitor_causes_one_warning() {
    let stage = PlanScene::set().await;
    let scene = &stage.scene;
    let nodes = names("node", 2);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    let (tags, applied) = ("load-balancer-tags", "applied-load-balancer-tags");
    let key = |name: &str| format!("loadbalancer.openstack.org/{name}");
    let annotations = json!({key(tags): "a,b", key("enable-health-monitor"): "false"});
    stage.create("web", &[(80, 30080)], annotations).await;
    let local = Patch::Merge(json!({"spec": {"externalTrafficPolicy": "Local"}}));
    let params = PatchParams::default();
    stage.services().patch("web", &params, &local).await.unwrap();
    let warning = "externalTrafficPolicy is Local, but members have no health monitor";
    let planned = stage.plan(&[]).await.assert_code(2);
    assert!(planned.text.contains(warning), "{}", planned.text);

    let _ccm = scene.start(&[]).await;
    stage.served("web").await;
    let event = scene.event("web", "LoadBalancerHealthMonitorMissing").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    stage.annotate("web", &key(tags), json!("b,c")).await;
    let recorded = async || {
        let web = stage.services().get("web").await.ok()?;
        (web.metadata.annotations?.get(&key(applied))? == "b,c").then_some(())
    };
    scene.eventually("the change is recorded", recorded).await;
    let found = &scene.cloud.load_balancers()[0].loadbalancer.attributes["tags"];
    let found: Vec<_> = found.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(found.contains(&"b") && found.contains(&"c") && !found.contains(&"a"), "{found:?}");
    assert_eq!(
        found.len(),
        5,
        "with the tags of the Service, the cluster and the requested address: {found:?}"
    );
    let planned = stage.plan(&[]).await.assert_code(0);
    assert!(planned.text.contains(warning), "{}", planned.text);
    let warnings = scene.warnings().await;
    let warnings = warnings.iter().filter_map(|event| event.message.as_deref());
    assert_eq!(warnings.filter(|message| message.contains(warning)).count(), 1);
}
