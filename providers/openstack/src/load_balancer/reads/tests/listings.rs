//! Shared listings of load balancers and the objects below them, and their requests.

use super::*;

#[tokio::test]
async fn one_listing_of_each_kind_serves_all_load_balancers() {
    let world = Fixture::new().await;
    let mut ids = Vec::new();
    for i in 0..7 {
        ids.push(world.make(&format!("lb-{i}")).await.id);
    }
    let reads = Reads::new(world.api.clone(), &ClientMetrics::default());
    let fresh = Fixture { reads, ..world };
    fresh.calls();
    for id in &ids {
        let children = fresh.children(id, lately()).await;
        assert_eq!((children.listeners.len(), children.pools.len(), children.monitors.len()), (1, 1, 1));
        assert_eq!(fresh.addresses(&children).await, ["10.0.0.101"]);
    }
    let expected = counts(&[
        ("loadbalancer_list", 1),
        ("loadbalancer_listener_list", 1),
        ("loadbalancer_pool_list", 1),
        ("loadbalancer_healthmonitor_list", 1),
        ("loadbalancer_member_list", 7),
    ]);
    assert_eq!(fresh.calls(), expected, "members once, cold");
    // A second read needs no members, even an uncached one.
    for id in &ids {
        fresh.addresses(&fresh.children(id, lately()).await).await;
    }
    assert_eq!(fresh.calls(), counts(&[]));
    fresh.addresses(&fresh.children(&ids[0], now()).await).await;
    assert!(!fresh.calls().contains_key("loadbalancer_member_list"));
    let queries: Vec<_> = fresh.sim.calls();
    assert!(queries.is_empty());
}

#[tokio::test]
async fn listings_are_of_the_project_alone() {
    let world = Fixture::new().await;
    world.reads.load_balancers(None, now()).await.unwrap();
    world.reads.floating_ips(None, now()).await.unwrap();
    world.reads.security_groups(None, now()).await.unwrap();
    let project = format!("project_id={}", world.sim.project_id());
    let calls = world.sim.calls();
    assert_eq!(calls.len(), 3);
    for call in calls {
        assert!(call.query.contains(&project) && call.query.contains("limit=1000"), "{}", call.query);
    }
}

#[tokio::test]
async fn listings_of_many_pages_are_read_to_the_end() {
    let mut config = Config::default();
    config.settings.load_balancing.max_limit = 2;
    let world = Fixture::with(config).await;
    for i in 0..5 {
        world.make(&format!("lb-{i}")).await;
    }
    let listing = world.reads.load_balancers(None, now()).await.unwrap();
    assert_eq!(listing.len(), 5);
    assert_eq!(listing.by_key("lb-3").count(), 1);
}

#[tokio::test]
async fn our_own_creations_are_cached_without_a_read() {
    let world = Fixture::new().await;
    let before = world.reads.load_balancers(None, lately()).await.unwrap();
    assert_eq!(before.len(), 0);
    world.make("first").await;
    world.children(&world.make("web").await.id, lately()).await;
    world.calls();

    let created = world.make("other").await;
    let listing = world.reads.load_balancers(None, lately()).await.unwrap();
    let found = listing.by_key("other").next().unwrap();
    assert_eq!(found.id, created.id);
    assert_eq!(found.provisioning_status, Provisioning::Active);
    assert!(!found.vip_address.is_empty());
    let children = world.children(&created.id, lately()).await;
    assert_eq!(children.listeners.len(), 1);
    assert_eq!(children.listeners[0].default_pool_id, children.pools[0].id);
    assert_eq!(children.monitors[0].pools[0].id, children.pools[0].id);
    assert_eq!(world.addresses(&children).await, ["10.0.0.101"]);
    assert_eq!(
        world.calls(),
        counts(&[("loadbalancer_create", 1), ("loadbalancer_get", 1)]),
        "the creation and one poll"
    );

    // The listing shows the same.
    let fresh = world.children(&created.id, now()).await;
    assert_eq!(children.listeners, fresh.listeners);
    assert_eq!(children.pools, fresh.pools);
    assert_eq!(children.monitors, fresh.monitors);
}

#[tokio::test]
async fn a_node_that_joins_costs_one_write_and_the_waiting() {
    let world = Fixture::new().await;
    let created = world.make("web").await;
    let other = world.make("other").await;
    let pool = world.children(&created.id, lately()).await.pools[0].id.clone();
    world.addresses(&world.children(&other.id, lately()).await).await;
    for (i, address) in ["10.0.0.102", "10.0.0.103"].into_iter().enumerate() {
        world.calls();
        world.writes().add_members(&created.id, &pool, &[member(address)]).await.unwrap();
        world.settled(&created.id).await;
        let known = world.addresses(&world.children(&created.id, lately()).await).await;
        assert_eq!(known.len(), 2 + i);
        world.addresses(&world.children(&other.id, lately()).await).await;
        let expected = counts(&[("loadbalancer_members_update", 1), ("loadbalancer_get", 1)]);
        assert_eq!(world.calls(), expected);
    }
    let exactly = world.reads.members_uncached(&pool, Priority::User).await.unwrap();
    assert_eq!(exactly.len(), 3);
    assert!(exactly.iter().all(|member| !member.id.is_empty()));
}

#[tokio::test]
async fn members_that_another_client_changed_are_read_again() {
    let world = Fixture::new().await;
    let created = world.make("web").await;
    let children = world.children(&created.id, lately()).await;
    let pool = Arc::clone(&children.pools[0]);
    let members = world.reads.members_uncached(&pool.id, Priority::User).await.unwrap();
    let weight = json!({"weight": 7});
    world.sim.patch_object(&members[0].id.to_string(), weight.as_object().unwrap()).unwrap();
    for (contents, weight) in [(Contents::Which, 1), (Contents::Exactly, 7)] {
        let members = world.reads.members(&children, contents, Priority::User).await.unwrap();
        assert_eq!(members[0][0].weight, Some(weight), "{contents:?}");
    }
    world.sim.delete_object(&members[0].id.to_string()).unwrap();
    let children = world.children(&created.id, now()).await;
    assert_eq!(world.addresses(&children).await, [""; 0]);
}

#[tokio::test]
async fn the_existence_of_a_load_balancer_is_read_by_its_id() {
    let world = Fixture::new().await;
    let created = world.make("web").await;
    let gone = "00000000-0000-0000-0000-000000000000";
    assert!(world.reads.load_balancer(gone, now()).await.unwrap().is_none());
    assert_eq!(world.calls().get("loadbalancer_get"), Some(&2), "including the one during its creation");
    // Another client created it after the listing was read.
    world.reads.load_balancers(None, now()).await.unwrap();
    let (api, metrics) = connect(&world.sim.cloud_conf()).await;
    let elsewhere = Reads::new(api.clone(), &metrics);
    let other = Writes::new(&api, &elsewhere, Priority::User)
        .create_load_balancer(&world.body("later"), 1)
        .await
        .unwrap();
    let found = world.reads.load_balancer(&other.balancer.id, lately()).await.unwrap();
    assert_eq!(found.unwrap().name, "later");

    world.writes().delete_load_balancer(&created.id, true).await.unwrap();
    assert_eq!(world.reads.state(&created.id, Priority::User).await.unwrap(), None);
    assert!(world.reads.load_balancer(&created.id, lately()).await.unwrap().is_none());
    world
        .writes()
        .delete_load_balancer(&created.id, true)
        .await
        .expect("a missing one is no error");
}

#[tokio::test]
async fn the_version_is_read_until_it_is_known() {
    let mut config = Config::default();
    config.settings.load_balancing.max_minor = 11;
    let world = Fixture::with(config).await;
    world.sim.add_fault(Fault::on("version_list", Action::status(403)).once());
    let ten_minutes = Duration::from_secs(600);
    for _ in 0..3 {
        let error = world.reads.version().await.unwrap_err();
        let Retry::Fixed(wait) = error.retry() else {
            panic!("{error:?}")
        };
        assert!(wait <= ten_minutes && wait > ten_minutes / 2, "{wait:?}");
    }
    assert_eq!(world.calls(), counts(&[("version_list", 1)]), "a refusal counts");
    tokio::time::pause();
    tokio::time::advance(ten_minutes).await;
    tokio::time::resume();
    for _ in 0..3 {
        let version = world.reads.version().await.unwrap();
        let capabilities = Capabilities::of(version, "amphora");
        assert!(capabilities.has(Feature::AdditiveMembers) && !capabilities.has(Feature::AllowedCidrs));
    }
    assert_eq!(world.calls(), counts(&[("version_list", 1)]));
}

#[tokio::test]
async fn a_cloud_without_octavia_is_reported() {
    let mut config = Config::default();
    config.settings.load_balancing.enabled = false;
    let world = Fixture::with(config).await;
    let reason = world.reads.missing().await.unwrap().unwrap();
    assert!(reason.contains("load-balancer"), "{reason}");
    assert_eq!(Fixture::new().await.reads.missing().await.unwrap(), None);
}

#[tokio::test]
async fn a_failed_listing_is_an_error_and_not_an_empty_one() {
    let world = Fixture::new().await;
    let created = world.make("web").await;
    for action in [Action::status(404), Action::status(403), Action::EmptyJson] {
        world.sim.add_fault(Fault::on("loadbalancer_pool_list", action.clone()));
        let balancer = world.reads.load_balancer(&created.id, now()).await.unwrap().unwrap();
        let priority = Priority::User;
        let freshness = Freshness::now();
        let failed = world.reads.children(&balancer, ReadOptions { freshness, priority }).await;
        let kind = failed.unwrap_err().kind();
        assert_ne!(kind, ErrorKind::NotFound, "{action:?}");
        world.sim.clear_faults();
    }
}

#[tokio::test]
async fn a_page_that_is_too_large_is_read_in_parts() {
    let world = Fixture::new().await;
    let text = json!({"description": "x".repeat(2 << 20)});
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        let created = world.make(name).await;
        let pool = world.children(&created.id, lately()).await.pools[0].id.clone();
        world.sim.patch_object(&pool, text.as_object().unwrap()).unwrap();
        ids.push(pool);
    }
    ids.sort();
    for requests in [7, 4] {
        world.calls();
        let pools: Vec<Pool> = world.reads.api.list(&[], Priority::User).await.unwrap();
        let mut found: Vec<_> = pools.into_iter().map(|pool| pool.id).collect();
        found.sort();
        assert_eq!(found, ids);
        // Page sizes of 1000, 125, 15, and then one until a page is empty; the next time, too.
        assert_eq!(world.calls(), counts(&[("loadbalancer_pool_list", requests)]));
    }
}
