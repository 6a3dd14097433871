//! Whose load balancers are changed and deleted, whether or not the API returns tags and changes them with a `PUT`.

use ccm_core::{
    Freshness,
    client::rest::reqwest,
    load_balancer::{ClusterTag, Discovery, OwnershipTag},
    testkit::TestCluster,
};
use ccm_sim::{
    Action, Fault,
    digitalocean::{Config, Switches},
};
use serde_json::{Value, json};

use crate::cloud::{
    ANNOTATION, DISOWN, ID, Stage, advance_to, annotate, annotate_all, answer, build, create_balancer,
    fields, key, rule, service,
};

/// Every answer to the two questions that public evidence leaves open.
fn switches() -> impl Iterator<Item = Switches> {
    let all = [(true, true), (true, false), (false, true), (false, false)];
    all.into_iter().map(|(returns_tags, put_changes_tags)| Switches {
        returns_tags,
        put_changes_tags,
        ..Switches::default()
    })
}

async fn stage(switches: Switches) -> Stage {
    let config = Config {
        switches,
        ..Config::default()
    };
    Stage::with(config, &[]).await
}

/// A stage with the Service `web` with these annotations, after its load balancer is active.
async fn served(switches: Switches, annotations: &str) -> Stage {
    let mut stage = stage(switches).await;
    stage.add("web", annotations);
    stage.settle_well().await;
    stage.sim.clear_calls();
    stage
}

/// Another cluster in the same account, with one node and a Service with these annotations and perhaps an ID.
async fn other_cluster(stage: &Stage, annotations: &str, id: Option<&str>) -> TestCluster {
    let cloud = build(stage.environment.clone()).await.unwrap();
    let mut other = TestCluster::new(cloud, advance_to);
    other.ownership_tag = OwnershipTag::Known(ClusterTag::of("b"));
    other.nodes = vec![crate::cloud::node(&stage.sim, "node-b")];
    let mut web = service("web", &[80]);
    web.id.uid = "uid-in-b".into();
    annotate(&mut web, ID, id);
    annotate_all(&mut web, ANNOTATION, annotations);
    other.services.push(web);
    other
}

/// Replaces all nodes by others, while the droplets of the former nodes still exist.
fn replace_nodes(stage: &mut Stage) {
    stage.nodes.clear();
    for name in ["new-0", "new-1"] {
        stage.join(name);
    }
}

fn droplets(stage: &Stage) -> Vec<Value> {
    stage.balancer()["droplet_ids"].as_array().unwrap().clone()
}

/// The droplets of the nodes.
fn nodes(cluster: &TestCluster) -> Vec<Value> {
    let ids = cluster.nodes.iter().filter_map(|node| node.view.provider_id.clone());
    ids.map(|id| json!(id.rsplit('/').next().unwrap().parse::<u64>().unwrap())).collect()
}

/// The reasons of all Events of the last round.
fn reasons(cluster: &TestCluster) -> Vec<&'static str> {
    let events = cluster.reports.iter().flat_map(|report| &report.events);
    events.map(|event| event.reason).collect()
}

fn deletable(discovery: &Discovery) -> Vec<bool> {
    discovery.orphans.iter().flatten().map(|orphan| orphan.deletable).collect()
}

#[tokio::test]
async fn a_load_balancer_with_droplets_of_others_is_not_taken_over_by_its_name() {
    for switches in switches() {
        let stage = served(switches, "name=shared").await;
        let before = stage.balancer();
        let mut other = other_cluster(&stage, "name=shared", None).await;
        other.settle().await.unwrap();
        let id = stage.id();
        let fix = format!("to take it over, set {ID} to {id}");
        let reason = match switches.returns_tags {
            true => "has the tag kube_cluster_id_kube-system-uid of another cluster",
            false => "has droplets, none of which is a node of this cluster",
        };
        other.assert_complaints(&[reason, &fix]);
        assert_eq!(stage.balancer(), before, "{switches:?}");
        assert_eq!(other.services[0].annotation(ID), None);
        // The deletion of the refused Service leaves it, too.
        let mut refused = other.services.clone();
        other.services[0].deleting = true;
        other.settle().await.unwrap();
        assert_eq!((other.services.len(), stage.balancer()), (0, before), "{switches:?}");
        // A person who names its ID takes it over.
        annotate(&mut refused[0], ID, Some(&id));
        other.services = refused;
        other.settle_well().await;
        assert_eq!(droplets(&stage), nodes(&other), "{switches:?}");
    }
}

#[tokio::test]
async fn a_load_balancer_that_appears_while_another_is_created_is_not_taken_over() {
    for switches in switches() {
        let mut stage = stage(switches).await;
        let mut other = other_cluster(&stage, "name=shared", None).await;
        // The other cluster knows the listing from before.
        other.discover().await.unwrap();
        stage.add("web", "name=shared");
        stage.settle_well().await;
        let before = stage.balancer();
        for _ in 0..2 {
            other.settle().await.unwrap();
            assert_eq!(stage.balancer(), before, "{switches:?}");
            assert_eq!(other.services[0].annotation(ID), None, "{switches:?}");
            assert_eq!(other.services[0].ingress, []);
        }
        other.assert_complaints(&["to take it over, set"]);
    }
}

#[tokio::test]
async fn region_and_vpc_decide_if_there_are_no_droplets() {
    const OURS: &str = "5a4981aa-9653-4bd1-bef5-d6bff52042e4";
    const THEIRS: &str = "6a4981aa-9653-4bd1-bef5-d6bff52042e4";
    let region =
        |slug: &str| json!({"slug": slug, "name": slug, "available": true, "features": [], "sizes": []});
    for switches in switches() {
        for (document, problem) in [
            (json!({}), None),
            (json!({"vpc_uuid": OURS}), None),
            (
                json!({"vpc_uuid": THEIRS}),
                Some(format!("is in the VPC {THEIRS}, and this cluster is in {OURS}")),
            ),
            (
                json!({"region": region("sfo3")}),
                Some("is in the region sfo3, and this cluster is in nyc3".to_owned()),
            ),
            (json!({"tag": "web"}), Some("selects droplets by the tag web".to_owned())),
        ] {
            let config = Config {
                switches,
                ..Config::default()
            };
            let mut stage = Stage::with(config, &[("DO_CLUSTER_VPC_ID", OURS)]).await;
            let balancer = json!({
                "name": "shared", "type": "REGIONAL_NETWORK", "forwarding_rules": [rule("tcp 80 -> tcp 80")],
            });
            let id = stage.sim.create("load_balancers", fields(balancer));
            stage.edit(document);
            let before = stage.balancer();
            stage.add("web", "name=shared");
            stage.settle().await.unwrap();
            match problem {
                Some(problem) => {
                    stage.assert_complaints(&[&problem, "to take it over, set"]);
                    assert_eq!((stage.balancer(), stage.writes().len()), (before, 0));
                }
                None => {
                    stage.assert_no_complaints();
                    assert_eq!(stage.web().annotation(ID), Some(&*id));
                    assert_eq!(droplets(&stage), nodes(&stage));
                }
            }
        }
    }
}

#[tokio::test]
async fn a_load_balancer_moves_to_another_cluster_and_is_deleted_there() {
    // The API may refuse to remove tags from load balancers.
    for (switches, removes) in switches().flat_map(|switches| [(switches, true), (switches, false)]) {
        let shown = format!("{switches:?} {removes}");
        let mut stage = served(switches, "").await;
        let id = stage.id();
        annotate(stage.web(), DISOWN, Some("true"));
        stage.settle().await.unwrap();
        if !removes {
            let refusal = Fault::on("tags_unassign_resources", Action::status(422));
            stage.sim.add_fault(refusal);
        }
        let mut other = other_cluster(&stage, "", Some(&id)).await;
        other.settle_well().await;
        let updates = |stage: &Stage| {
            let writes = stage.writes();
            writes.iter().filter(|op| **op == "loadBalancers_update").count()
        };
        assert_eq!((updates(&stage), stage.balancer()["name"].as_str()), (1, Some("auidinb")), "{shown}");
        assert_eq!(droplets(&stage), nodes(&other), "{shown}");
        let tags = stage.balancer()["tags"].clone();
        let tags: Vec<_> = tags.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(tags.contains(&"kube_cluster_id_b"), "{shown}: {tags:?}");
        // Nothing is written at later reads, in this process or in the next one.
        stage.sim.clear_calls();
        for _ in 0..3 {
            other.read.freshness = Freshness::now();
            other.settle_well().await;
        }
        assert_eq!(stage.writes(), [""; 0], "{shown}");
        other.cloud = build(stage.environment.clone()).await.unwrap();
        other.settle_well().await;
        assert_eq!(updates(&stage), 0, "{shown}");
        // The first cluster deletes nothing, even if its Service vanishes.
        for gone in [false, true] {
            if gone {
                stage.services.clear();
            }
            stage.restart().await;
            stage.settle().await.unwrap();
            let discovery = stage.discover().await.unwrap();
            assert!(!deletable(&discovery).contains(&true), "{shown}: {:?}", discovery.orphans);
            assert_eq!(stage.writes(), [""; 0], "{shown}");
        }
        // While the Service is refused, the load balancer still follows the nodes.
        annotate(&mut other.services[0], &key("size-unit"), Some("many"));
        other.nodes.push(crate::cloud::node(&stage.sim, "node-c"));
        other.settle().await.unwrap();
        other.assert_complaints(&["size-unit: \"many\""]);
        assert_eq!(droplets(&stage), nodes(&other), "{shown}");
        other.services[0].deleting = true;
        other.settle().await.unwrap();
        assert_eq!((other.services.len(), stage.balancers().len()), (0, 0), "{shown}");
    }
}

#[tokio::test]
async fn a_load_balancer_without_a_service_is_deletable_only_if_it_serves_no_others() {
    let global = json!({"type": "GLOBAL", "droplet_ids": [], "target_load_balancer_ids": []});
    for switches in switches() {
        for (change, is_deletable) in [
            (json!({}), true),
            (json!({"droplet_ids": []}), true),
            // Another cluster took it over, or all nodes were replaced.
            (json!({"droplet_ids": [7]}), false),
            (json!({"tag": "web", "droplet_ids": []}), false),
            (global.clone(), false),
        ] {
            let mut stage = served(switches, "").await;
            stage.edit(change.clone());
            stage.services.clear();
            stage.restart().await;
            let found = deletable(&stage.discover().await.unwrap());
            let expected = switches.returns_tags.then_some(is_deletable);
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{switches:?} {change}");
        }
    }
}

#[tokio::test]
async fn load_balancers_stay_with_their_services_if_all_nodes_were_replaced_while_nobody_led() {
    for switches in switches() {
        for (annotations, has_id) in [("", true), ("", false), ("name=shop", true), ("name=shop", false)] {
            let shown = format!("{switches:?} {annotations} {has_id}");
            for is_deleted in [false, true] {
                let mut stage = served(switches, annotations).await;
                let id = stage.id();
                replace_nodes(&mut stage);
                if !has_id {
                    annotate(stage.web(), ID, None);
                }
                stage.web().deleting = is_deleted;
                stage.restart().await;
                stage.settle_well().await;
                if is_deleted {
                    assert_eq!((stage.services.len(), stage.balancers().len()), (0, 0), "{shown}");
                    continue;
                }
                assert_eq!((stage.id(), droplets(&stage)), (id.clone(), nodes(&stage)), "{shown}");
                assert_eq!(stage.web().annotation(ID), Some(&*id), "{shown}");
            }
        }
    }
}

#[tokio::test]
async fn a_load_balancer_that_never_served_the_service_is_not_deleted_with_it() {
    for switches in switches() {
        let stage = served(switches, "").await;
        let before = stage.balancer();
        let mut other = other_cluster(&stage, "size-unit=many", before["id"].as_str()).await;
        other.settle().await.unwrap();
        other.services[0].deleting = true;
        let request = other.request();
        let part = other.discover().await.unwrap().parts().remove(0);
        let report = other.run(&part, &request).await.unwrap();
        let event = &report.events[0];
        assert_eq!(event.reason, "LoadBalancerNotDeleted");
        assert!(event.message.contains("doctl compute load-balancer delete"), "{}", event.message);
        other.settle().await.unwrap();
        assert_eq!((other.services.len(), stage.balancer()), (0, before), "{switches:?}");
    }
}

#[tokio::test]
async fn a_global_load_balancer_serves_no_service() {
    for switches in switches() {
        for by_id in [true, false] {
            let mut stage = stage(switches).await;
            let id = create_balancer(&stage.sim, "shared");
            stage.edit(json!({"type": "GLOBAL", "droplet_ids": []}));
            let before = stage.balancer();
            stage.add("web", "name=shared");
            annotate(stage.web(), ID, by_id.then_some(&*id));
            stage.settle().await.unwrap();
            stage.assert_complaints(&["has the type GLOBAL"]);
            stage.web().deleting = true;
            stage.settle().await.unwrap();
            assert_eq!((stage.services.len(), stage.balancer()), (0, before), "{switches:?}");
            assert_eq!(stage.writes(), [""; 0]);
        }
    }
}

#[tokio::test]
async fn a_load_balancer_that_selects_droplets_by_a_tag_is_taken_over_by_its_id() {
    for switches in switches() {
        // The API may list the droplets of the tag.
        for listed in [json!([]), json!([7])] {
            let mut stage = stage(switches).await;
            let id = create_balancer(&stage.sim, "shared");
            stage.edit(json!({"tag": "web", "droplet_ids": listed}));
            stage.add("web", "name=shared");
            stage.settle().await.unwrap();
            stage.assert_complaints(&["to take it over, set"]);
            annotate(stage.web(), ID, Some(&id));
            stage.settle_well().await;
            assert_eq!((droplets(&stage), &stage.balancer()["tag"]), (nodes(&stage), &json!("")));
        }
    }
}

#[tokio::test]
async fn tags_are_written_once_for_each_process_and_load_balancer() {
    let (assign, create, update) = ("tags_assign_resources", "tags_create", "loadBalancers_update");
    for switches in switches() {
        let mut stage = stage(switches).await;
        let id = create_balancer(&stage.sim, "auidweb");
        stage.add("web", "type=REGIONAL");
        annotate(stage.web(), ID, Some(&id));
        // The tag does not exist yet.
        assert_eq!(stage.settle_well().await, [assign, create, assign, update], "{switches:?}");
        assert_eq!(stage.balancer()["tags"], json!(["kube_cluster_id_kube-system-uid"]));
        for size in ["2", "3"] {
            stage.read.freshness = Freshness::now();
            stage.sim.clear_calls();
            stage.set(&format!("size-unit={size}"));
            assert_eq!(stage.settle_well().await, [update], "{switches:?}");
        }
        // The next process does not know whether a load balancer without tags in the answers has them.
        stage.restart().await;
        for size in ["4", "5"] {
            stage.read.freshness = Freshness::now();
            stage.set(&format!("size-unit={size}"));
            stage.settle_well().await;
        }
        let expected = match switches.returns_tags {
            true => vec![update, update],
            false => vec![assign, update, update],
        };
        assert_eq!(stage.writes(), expected, "{switches:?}");
        assert_eq!(stage.balancer()["tags"], json!(["kube_cluster_id_kube-system-uid"]));
    }
}

#[tokio::test]
async fn a_token_that_may_not_write_tags_changes_load_balancers() {
    for switches in switches() {
        let mut stage = stage(switches).await;
        let id = create_balancer(&stage.sim, "auidweb");
        stage.add("web", "type=REGIONAL");
        annotate(stage.web(), ID, Some(&id));
        let forbidden = json!({"id": "forbidden", "message": "You are not authorized"});
        let refusal = answer(403, Some(forbidden.to_string()), &[]);
        stage.sim.add_fault(Fault::on("tags_assign_resources", refusal));
        let expected = ["tags_assign_resources", "loadBalancers_update"];
        assert_eq!(stage.settle_well().await, expected, "{switches:?}");
        assert_eq!(droplets(&stage), nodes(&stage));
    }
}

/// The change that the Go cloud controller makes: it sends the whole load balancer, with the cluster's tag alone and this size.
async fn go_updates(stage: &Stage, size: Value) -> u16 {
    let balancer = stage.balancer();
    let mut body = json!({
        "name": balancer["name"], "region": "nyc3", "type": balancer["type"], "network": "EXTERNAL",
        "network_stack": balancer["network_stack"], "algorithm": "round_robin",
        "forwarding_rules": balancer["forwarding_rules"], "health_check": balancer["health_check"],
        "sticky_sessions": {"type": "none"}, "droplet_ids": balancer["droplet_ids"], "tags": ["k8s:c-1"],
        "redirect_http_to_https": false, "enable_proxy_protocol": false, "enable_backend_keepalive": false,
        "disable_lets_encrypt_dns_records": false, "firewall": {},
    });
    body.as_object_mut().unwrap().extend(fields(size));
    let url = format!("{}/v2/load_balancers/{}", stage.sim.url(), stage.id());
    let request = reqwest::Client::new().put(url).bearer_auth(Config::default().token);
    let request = request.header("content-type", "application/json").body(body.to_string());
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn the_go_cloud_controller_continues_with_what_was_changed() {
    let sizes = [
        ("", json!({})),
        ("size-slug=lb-medium", json!({"size": "lb-medium"})),
        ("size-unit=2", json!({"size_unit": 2})),
    ];
    for (switches, (annotations, size)) in
        switches().flat_map(|switches| sizes.clone().map(|size| (switches, size)))
    {
        let config = Config {
            switches,
            ..Config::default()
        };
        let shown = format!("{switches:?} {annotations}");
        let mut stage = Stage::with(config, &[("DO_CLUSTER_ID", "c-1")]).await;
        stage.add("web", annotations);
        stage.settle_well().await;
        let (before, ingress) = (stage.balancer(), stage.web().ingress.clone());
        assert_eq!(go_updates(&stage, size).await, 200, "{shown}");
        let after = stage.balancer();
        for field in [
            "id",
            "ip",
            "droplet_ids",
            "forwarding_rules",
            "health_check",
            "type",
            "network",
            "size_unit",
        ] {
            assert_eq!(after[field], before[field], "{field} {shown}");
        }
        // Back again: the load balancer still belongs to the Service, and nothing is written.
        stage.restart().await;
        assert_eq!(stage.settle_well().await, [""; 0], "{shown}");
        let id = before["id"].as_str().unwrap();
        assert_eq!((&*stage.id(), &stage.web().ingress), (id, &ingress), "{shown}");
        assert_eq!(reasons(&stage), [""; 0]);
        stage.web().deleting = true;
        stage.settle().await.unwrap();
        assert_eq!((stage.services.len(), stage.balancers().len()), (0, 0), "{shown}");
    }
}
