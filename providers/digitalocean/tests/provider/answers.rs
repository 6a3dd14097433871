//! Answers of the API that its description leaves open.

use std::time::Duration;

use ccm_core::{
    Freshness, Need,
    load_balancer::PartState,
    testkit::nodes::{ask, present, query},
};
use ccm_sim::{
    Action, Fault,
    digitalocean::{Config, DigitalOcean, Switches},
};
use serde_json::json;
use tokio::time::Instant;

use crate::cloud::{ABSENT, Stage, advance_to, annotate, answer, build, environment, key};

const UPDATE: &str = "loadBalancers_update";
const CREATE: &str = "loadBalancers_create";

/// A stage with these switches and the Service `web`, whose load balancer is active.
async fn served(switches: Switches, annotations: &str) -> Stage {
    let mut stage = Stage::new(&[]).await;
    stage.add("web", annotations);
    stage.settle_well().await;
    stage.sim.set_switches(switches);
    stage.sim.clear_calls();
    stage
}

#[tokio::test]
async fn a_missing_certificate_is_refused_with_one_post_in_each_pass() {
    let mut stage = Stage::new(&[]).await;
    stage.add("web", &format!("type=REGIONAL; certificate-id={ABSENT}"));
    for _ in 0..2 {
        stage.sim.clear_calls();
        stage.pass_once().await.unwrap();
        stage.assert_complaints(&[&format!("certificate with ID {ABSENT} not found")]);
        assert_eq!(stage.writes(), [CREATE]);
        assert!(stage.ops().len() <= 4, "{:?}", stage.ops());
    }
}

#[tokio::test]
async fn a_certificate_that_vanishes_before_the_update_blocks_no_node() {
    let mut stage = Stage::new(&[]).await;
    let first = stage.create_certificate("first", "custom");
    let second = stage.create_certificate("second", "custom");
    stage.add("web", &format!("type=REGIONAL; certificate-id={first}"));
    stage.settle_well().await;
    stage.set(&format!("certificate-id={second}"));
    // It is found, and is deleted before the write.
    let body = json!({"id": "not_found", "message": format!("certificate with ID {second} not found")});
    let fault = Fault::on(UPDATE, answer(404, Some(body.to_string()), &[])).once();
    stage.sim.add_fault(fault);
    stage.join("node-2");
    stage.sim.clear_calls();
    stage.pass_once().await.unwrap();
    stage.assert_complaints(&["not found"]);
    assert_eq!(stage.writes(), [UPDATE; 2], "the second one has only the nodes");
    assert_eq!(stage.droplets(), 3);
    // A load balancer that is missing is another thing.
    let id = stage.id();
    stage.sim.remove("load_balancers", &id).unwrap();
    stage.set(&format!("certificate-id={first}"));
    stage.read.freshness = Freshness::now();
    stage.settle_well().await;
    assert_ne!(stage.id(), id);
}

#[tokio::test]
async fn what_the_api_drops_is_reported_and_not_written_at_every_read() {
    let switches = Switches {
        drops_ipv6_rules: true,
        ..Switches::default()
    };
    let mut stage = served(switches, "").await;
    stage.set("allow-rules=cidr:173.245.48.0/20,cidr:2400:cb00::/32");
    for writes in [vec![UPDATE], vec![], vec![]] {
        stage.read.freshness = Freshness::now();
        let problem = "cannot change firewall.allow of load balancer auidweb in place: observed without the change, which the \
            API accepted and did not apply, desired added: cidr:2400:cb00::/32";
        stage.settle_with_complaints(&[problem]).await;
        assert_eq!(stage.writes(), writes);
        assert_eq!(stage.balancer()["firewall"]["allow"], json!(["cidr:173.245.48.0/20"]));
        stage.sim.clear_calls();
    }
    assert_eq!(stage.web().ingress.len(), 1, "the rest is applied");
    // Other changes are sent, also those of people.
    stage.edit(json!({"name": "by-hand"}));
    stage.read.freshness = Freshness::now();
    stage.settle_with_complaints(&["did not apply"]).await;
    assert_eq!((stage.writes(), &stage.balancer()["name"]), (vec![UPDATE], &json!("auidweb")));
    stage.sim.clear_calls();
    // A day later the API may apply it.
    stage.sim.set_switches(Switches::default());
    advance_to(Instant::now() + Duration::from_secs(24 * 3600 + 1)).await;
    stage.read.freshness = Freshness::now();
    stage.settle_well().await;
    assert_eq!(stage.balancer()["firewall"]["allow"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn an_update_that_is_new_is_waited_for() {
    let config = Config {
        create_time: Duration::from_secs(30),
        ..Config::default()
    };
    let mut stage = Stage::with(config, &[]).await;
    stage.add("web", "");
    stage.settle_well().await;
    stage.sim.set_switches(Switches {
        put_answers_new: true,
        ..Switches::default()
    });
    stage.sim.clear_calls();
    let ingress = stage.web().ingress.clone();
    stage.set("size-unit=2");
    stage.pass_once().await.unwrap();
    assert_eq!(stage.balancer()["status"], "new");
    let PartState::Parked { .. } = stage.reports[0].state else {
        panic!("{:?}", stage.reports);
    };
    // The next change waits until the first one is done.
    stage.join("node-2");
    stage.settle_well().await;
    assert_eq!(stage.writes(), [UPDATE; 2]);
    assert_eq!((stage.droplets(), &stage.balancer()["status"]), (3, &json!("active")));
    assert_eq!(stage.web().ingress, ingress);
}

#[tokio::test]
async fn a_busy_active_load_balancer_is_waited_for() {
    let switches = Switches {
        busy_time: Duration::from_secs(60),
        ..Switches::default()
    };
    let mut stage = served(switches, "").await;
    stage.set("size-unit=2");
    stage.settle_well().await;
    stage.join("node-2");
    stage.pass_once().await.unwrap();
    assert_eq!((stage.droplets(), &stage.balancer()["status"]), (2, &json!("active")));
    let PartState::Parked { why, .. } = &stage.reports[0].state else {
        panic!("{:?}", stage.reports);
    };
    assert!(why.contains("processes previous actions"), "{why}");
    stage.settle_well().await;
    assert_eq!(stage.droplets(), 3);
}

#[tokio::test]
async fn nodes_are_followed_while_the_size_may_not_be_changed_again() {
    let switches = Switches {
        resize_pause: Duration::from_secs(3600),
        ..Switches::default()
    };
    let mut stage = served(switches, "size-unit=2").await;
    stage.set("size-unit=3");
    stage.settle_well().await;
    stage.set("size-unit=4");
    stage.join("node-2");
    stage.settle_with_complaints(&["can only be resized once every hour"]).await;
    assert_eq!((stage.droplets(), stage.balancer()["size_unit"].as_u64()), (3, Some(3)));
    stage.sim.advance_clock(Duration::from_secs(3600));
    stage.settle_well().await;
    assert_eq!(stage.balancer()["size_unit"], 4);
}

#[tokio::test]
async fn regions_without_numbers_of_nodes_are_served() {
    for (annotations, size) in [("", "lb-small"), ("size-slug=lb-medium", "lb-medium")] {
        let config = Config {
            region: "nyc2".to_owned(),
            ..Config::default()
        };
        let mut stage = Stage::with(config, &[("REGION", "nyc2")]).await;
        stage.add("web", annotations);
        stage.settle_well().await;
        assert_eq!(stage.balancer()["size"], size);
        stage.join("node-2");
        stage.settle_well().await;
        assert_eq!((stage.droplets(), &stage.balancer()["size"]), (3, &json!(size)));
        stage.set("size-slug=lb-large");
        stage.settle_well().await;
        assert_eq!(stage.balancer()["size"], "lb-large");
        annotate(stage.web(), &key("size-slug"), None);
        stage.set("size-unit=2");
        stage.settle_with_complaints(&["size_unit is not available in this region"]).await;
    }
}

#[tokio::test]
async fn a_deletion_counts_only_with_the_status_of_a_deletion() {
    let mut stage = served(Switches::default(), "").await;
    stage.sim.add_fault(Fault::on("loadBalancers_delete", Action::EmptyJson).once());
    stage.web().deleting = true;
    stage.settle().await.unwrap();
    assert_eq!((stage.services.len(), stage.balancers().len()), (0, 0));
}

#[tokio::test]
async fn null_fields_of_a_droplet_do_not_hide_the_others() {
    let sim = DigitalOcean::start(Config::default()).await.unwrap();
    let cloud = build(environment(&sim)).await.unwrap();
    let private = json!([{"ip_address": "10.0.0.1", "type": "private"}]);
    let droplets = json!([
        {"id": 1, "name": "odd", "status": null, "size_slug": null, "region": null, "networks": null},
        {"id": 2, "name": "odder", "region": {"slug": null}, "networks": {"v4": [{"ip_address": null, "type": null}], "v6": null}},
        {"id": 3, "name": "node", "status": "active", "size_slug": null, "region": null, "networks": {"v4": private, "v6": null}},
    ]);
    let page = json!({"droplets": droplets, "links": {}, "meta": {"total": 3}});
    sim.add_fault(Fault::on("droplets_list", answer(200, Some(page.to_string()), &[])));
    let found = present(ask(&*cloud, query("node", None, Need::Metadata)).await);
    assert_eq!((found.provider_id.as_str(), found.region), ("digitalocean://3", None));
}
