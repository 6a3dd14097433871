//! Listings: their pages, and what goes on while they fail.

use std::time::Duration;

use ccm_core::{Freshness, Need, testkit::nodes};
use ccm_sim::{
    Action, Fault,
    digitalocean::{Config, DigitalOcean, Switches},
};
use tokio::time::Instant;

use crate::cloud::{ABSENT, ID, Stage, advance_to, annotate, build, create_balancer, environment};

/// The sizes of the pages of these listings, and whether they were answered.
fn pages(sim: &DigitalOcean, op: &str) -> Vec<(u32, bool)> {
    let calls = sim.calls().into_iter().filter(|call| call.op == op);
    let size = |query: &str| {
        let (_, rest) = query.split_once("per_page=").unwrap();
        rest.split('&').next().unwrap().parse().unwrap()
    };
    calls.map(|call| (size(&call.query), call.status == Some(200))).collect()
}

/// A stage with 60 load balancers of others, whose API fails to return larger pages.
async fn stage(largest_page: u32) -> Stage {
    let switches = Switches {
        largest_page,
        ..Switches::default()
    };
    let config = Config {
        switches,
        ..Config::default()
    };
    let stage = Stage::with(config, &[]).await;
    for number in 0..60 {
        create_balancer(&stage.sim, &format!("other-{number}"));
    }
    stage
}

#[tokio::test]
async fn load_balancers_are_read_in_pages_of_fifty_and_smaller_ones_after_a_failure() {
    let list = "loadBalancers_list";
    for (largest_page, first, next) in [
        (50, vec![(50, true); 2], vec![(50, true); 2]),
        (20, [vec![(50, false), (25, false)], vec![(12, true); 5]].concat(), vec![(12, true); 6]),
    ] {
        let mut stage = stage(largest_page).await;
        stage.discover().await.unwrap();
        assert_eq!(pages(&stage.sim, list), first, "{largest_page}");
        stage.add("web", "");
        stage.settle_well().await;
        assert_eq!(stage.web().ingress.len(), 1, "{largest_page}");
        stage.sim.clear_calls();
        stage.read.freshness = Freshness::now();
        stage.discover().await.unwrap();
        assert_eq!(pages(&stage.sim, list), next, "{largest_page}");
        stage.set("size-unit=2");
        stage.join("node-2");
        stage.settle_well().await;
        stage.web().deleting = true;
        stage.settle_well().await;
        assert_eq!((stage.services.len(), stage.balancers().len()), (0, 60), "{largest_page}");
    }
}

#[tokio::test]
async fn a_page_in_the_middle_of_a_listing_is_read_again_in_smaller_pages() {
    let mut stage = stage(200).await;
    let fault = Fault {
        nth: 2,
        ..Fault::on("loadBalancers_list", Action::status(502)).once()
    };
    stage.sim.add_fault(fault);
    stage.add("web", "name=other-59");
    stage.settle().await.unwrap();
    // The last one is found: nothing is left out, and nothing is created.
    assert_eq!(stage.balancers().len(), 60);
    assert_eq!(stage.writes().len(), 4, "{:?}", stage.writes());
    let read = pages(&stage.sim, "loadBalancers_list");
    assert_eq!(read[..3], [(50, true), (50, false), (25, true)]);
}

#[tokio::test]
async fn droplets_are_read_in_pages_of_fifty_and_smaller_ones_after_a_failure() {
    for (largest_page, sizes) in [
        (50, vec![(50, true); 3]),
        (30, [vec![(50, false)], vec![(25, true); 4]].concat()),
    ] {
        let switches = Switches {
            largest_page,
            ..Switches::default()
        };
        let config = Config {
            switches,
            ..Config::default()
        };
        let sim = DigitalOcean::start(config).await.unwrap();
        let cloud = build(environment(&sim)).await.unwrap();
        let names: Vec<_> = (0..60).map(|number| format!("node-{number}")).collect();
        names.iter().for_each(|name| drop(sim.create_droplet(name)));
        let queries = names.iter().map(|name| nodes::query(name, None, Need::Existence));
        let queries: Vec<_> = queries.collect();
        for answer in nodes::describe(&*cloud, &queries, Freshness::now()).await {
            nodes::present(answer);
        }
        // The last page is that of droplets with a GPU.
        assert_eq!(pages(&sim, "droplets_list"), sizes, "{largest_page}");
    }
}

#[tokio::test]
async fn changes_and_deletions_of_known_load_balancers_go_on_while_listings_fail() {
    for is_restarted in [true, false] {
        let mut stage = Stage::served("").await;
        let id = stage.id();
        stage.read.freshness = Freshness::now();
        let fault = Fault::on("loadBalancers_list", Action::status(504));
        let fault = stage.sim.add_fault(fault);
        if is_restarted {
            stage.restart().await;
        }
        stage.sim.clear_calls();
        stage.set("size-unit=2");
        stage.join("node-2");
        stage.settle_well().await;
        assert_eq!(stage.writes(), ["loadBalancers_update"]);
        assert_eq!((stage.droplets(), stage.balancer()["size_unit"].as_u64()), (3, Some(2)));
        // A failed listing is not repeated for each pass.
        let failed = stage.ops().into_iter().filter(|op| *op == "loadBalancers_list");
        assert!(failed.count() <= 6, "{:?}", stage.ops());
        // Whether another load balancer has the name is not known.
        stage.sim.clear_calls();
        stage.add("new", "");
        annotate(stage.add("stale", ""), ID, Some(ABSENT));
        stage.settle_with_complaints(&["504"]).await;
        assert_eq!(stage.writes(), [""; 0]);
        assert_eq!(stage.discover().await.unwrap().orphans, Some(Vec::new()));
        stage.web().deleting = true;
        stage.settle().await.unwrap();
        assert_eq!((stage.find("web"), stage.sim.document("load_balancers", &id)), (None, None));
        stage.sim.remove_fault(fault);
        advance_to(Instant::now() + Duration::from_secs(301)).await;
        stage.read.freshness = Freshness::now();
        stage.settle_well().await;
        assert_eq!(stage.balancers().len(), 2);
    }
}

#[tokio::test]
async fn an_api_that_fails_is_not_asked_for_every_load_balancer() {
    let mut stage = Stage::new(&[]).await;
    for number in 0..20 {
        stage.add(&format!("web-{number}"), "");
    }
    stage.settle_well().await;
    stage.restart().await;
    let fault = stage.sim.add_fault(Fault::new(Action::status(503)));
    stage.pass_once().await.unwrap();
    stage.assert_complaints(&["503"]);
    // The failing listing and one load balancer, and no more until the pause is over.
    let ops = stage.ops();
    let gets = ops.iter().filter(|op| **op == "loadBalancers_get").count();
    assert!(gets <= 5, "{gets} of {}", ops.len());
    stage.sim.remove_fault(fault);
    advance_to(Instant::now() + Duration::from_secs(301)).await;
    stage.read.freshness = Freshness::now();
    stage.sim.clear_calls();
    stage.settle_well().await;
    // A page has its full size again.
    assert_eq!(pages(&stage.sim, "loadBalancers_list")[0], (50, true));
}

#[tokio::test]
async fn a_deletion_of_what_is_missing_needs_no_listing() {
    let mut stage = Stage::served("").await;
    stage.sim.remove("load_balancers", &stage.id()).unwrap();
    stage.sim.add_fault(Fault::on("loadBalancers_list", Action::status(504)));
    stage.web().deleting = true;
    stage.restart().await;
    stage.settle_well().await;
    assert_eq!((stage.services.len(), stage.writes().len()), (0, 0));
}
