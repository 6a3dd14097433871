//! Changes of load balancers: their effect on the listings, also of failed and unanswered writes.

use super::*;

#[tokio::test]
async fn a_load_balancer_at_work_is_busy() {
    let mut config = Config::default();
    config.settings.load_balancing.create_time = Duration::from_secs(3600);
    let world = Fixture::with(config).await;
    let created = world.writes().create_load_balancer(&world.body("web"), 1).await.unwrap().balancer;
    let state = world.reads.state(&created.id, Priority::User).await.unwrap().unwrap();
    assert!(state.provisioning_status.is_pending() && state.updated_at.is_none());
    let pool = created.pools[0].id.clone();
    let error = world.writes().add_members(&created.id, &pool, &[member("10.0.0.102")]).await.unwrap_err();
    assert!(matches!(WriteConflict::of(&error), Some(WriteConflict::Busy(_))), "{error:?}");
    assert_eq!(world.calls()["loadbalancer_members_update"], 1, "not sent again");
}

#[tokio::test]
async fn a_write_without_an_answer_is_read_and_not_repeated() {
    let world = Fixture::new().await;
    let created = world.make("web").await;
    let pool = world.children(&created.id, lately()).await.pools[0].clone();
    world
        .sim
        .add_fault(Fault::on("loadbalancer_members_update", Action::CommitThenDrop).once());
    world.calls();
    let error = world
        .writes()
        .add_members(&created.id, &pool.id, &[member("10.0.0.102")])
        .await
        .unwrap_err();
    assert_eq!(error.outcome(), RequestOutcome::Unknown, "{error:?}");
    assert_eq!(world.calls()["loadbalancer_members_update"], 1);
    let children = world.children(&created.id, lately()).await;
    assert_eq!(world.addresses(&children).await, ["10.0.0.101", "10.0.0.102"]);

    let listener = json!({
        "loadbalancer_id": created.id.clone(),
        "name": "l1",
        "protocol": "UDP",
        "protocol_port": 53,
        "connection_limit": -1,
    });
    for action in [Action::CommitThenDrop, Action::Truncate { bytes: Some(9) }] {
        world.sim.add_fault(Fault::on("loadbalancer_listener_create", action).once());
        world.calls();
        let port = 53 + u16::try_from(world.children(&created.id, now()).await.listeners.len()).unwrap();
        let mut listener = listener.clone();
        listener["protocol_port"] = port.into();
        let error = world.writes().create::<Listener>(&created.id, &listener).await.unwrap_err();
        assert_eq!(error.outcome(), RequestOutcome::Unknown, "{error:?}");
        assert_eq!(world.calls()["loadbalancer_listener_create"], 1);
        let children = world.children(&created.id, lately()).await;
        assert!(children.listeners.iter().any(|found| found.protocol_port == port));
    }
}

#[tokio::test]
async fn listeners_pools_and_monitors_are_created_updated_and_deleted() {
    let world = Fixture::new().await;
    let created = world.make("web").await;
    world.children(&created.id, lately()).await;
    let body = json!({
        "loadbalancer_id": created.id.clone(),
        "name": "l1",
        "protocol": "TCP",
        "protocol_port": 443,
        "connection_limit": 5,
        "tags": ["web"],
    });
    let listener = world.writes().create::<Listener>(&created.id, &body).await.unwrap();
    let body = json!({
        "listener_id": listener.id.clone(),
        "name": "p1",
        "protocol": "TCP",
        "lb_algorithm": "ROUND_ROBIN",
    });
    let pool = world.writes().create::<Pool>(&created.id, &body).await.unwrap();
    let check = world.writes().create::<Monitor>(&created.id, &monitor(&pool.id)).await.unwrap();
    world
        .writes()
        .set_members(&created.id, &pool.id, &[member("10.0.0.1"), member("10.0.0.2")])
        .await
        .unwrap();
    let change = json!({
        "connection_limit": 9,
        "allowed_cidrs": ["10.0.0.0/8"],
    });
    world.writes().update::<Listener>(&created.id, &listener.id, &change).await.unwrap();
    world.settled(&created.id).await;
    let kept = world.children(&created.id, lately()).await;
    let fresh = world.children(&created.id, now()).await;
    assert_eq!(kept.listeners, fresh.listeners);
    assert_eq!(fields(&kept.pools), fields(&fresh.pools));
    assert_eq!(kept.monitors, fresh.monitors);
    let seen = fresh.listeners.iter().find(|seen| seen.id == listener.id).unwrap();
    assert_eq!((seen.connection_limit, seen.default_pool_id.as_str()), (Some(9), pool.id.as_str()));
    assert_eq!(seen.allowed_cidrs.as_deref().unwrap(), ["10.0.0.0/8"]);
    assert_eq!(world.addresses(&fresh).await, ["10.0.0.1", "10.0.0.101", "10.0.0.2"]);

    world.writes().delete::<Monitor>(&created.id, &pool.id, &check.id).await.unwrap();
    world.writes().delete::<Monitor>(&created.id, &pool.id, &check.id).await.unwrap();
    let left = world.children(&created.id, lately()).await;
    assert_eq!(left.monitors.len(), 1);
    world.writes().delete::<Pool>(&created.id, "", &pool.id).await.unwrap();
    world.writes().delete::<Listener>(&created.id, "", &listener.id).await.unwrap();
    world.settled(&created.id).await;
    let left = world.children(&created.id, lately()).await;
    assert_eq!((left.listeners.len(), left.pools.len()), (1, 1));
}

#[tokio::test]
async fn small_changes_are_folded_into_the_listings() {
    let world = Fixture::new().await;
    let created = world.make("web").await;
    let children = world.children(&created.id, lately()).await;
    let (pool, check) = (children.pools[0].id.clone(), children.monitors[0].id.clone());
    let tags = json!({
        "tags": ["web", "other"],
    });
    world.writes().update_load_balancer(&created.id, &tags).await.unwrap();
    world.settled(&created.id).await;
    let slow = json!({
        "delay": 9,
    });
    world.writes().update::<Monitor>(&created.id, &check, &slow).await.unwrap();
    let sticky = json!({
        "session_persistence": {"type": "SOURCE_IP"},
    });
    world.writes().update::<Pool>(&created.id, &pool, &sticky).await.unwrap();
    world.settled(&created.id).await;
    world.calls();
    let listing = world.reads.load_balancers(None, lately()).await.unwrap();
    assert_eq!(listing.by_id(&created.id).unwrap().tags, ["web", "other"]);
    let children = world.children(&created.id, lately()).await;
    assert_eq!(children.monitors[0].delay, 9);
    let persistence = children.pools[0].session_persistence.clone();
    assert_eq!(persistence.unwrap().kind, "SOURCE_IP");
    assert_eq!(world.calls(), counts(&[]));
    let clear = json!({
        "session_persistence": null,
    });
    let cleared = world.writes().update::<Pool>(&created.id, &pool, &clear).await.unwrap();
    assert_eq!(cleared.session_persistence, None);
    world.settled(&created.id).await;

    // Single calls, for providers without lists.
    let one = world.writes().create_member(&created.id, &pool, &member("10.0.0.110")).await.unwrap();
    world.settled(&created.id).await;
    let children = world.children(&created.id, lately()).await;
    assert_eq!(world.addresses(&children).await, ["10.0.0.101", "10.0.0.110"]);
    for _ in 0..2 {
        world.writes().delete_member(&created.id, &pool, &one.id).await.unwrap();
        world.settled(&created.id).await;
    }
    world.calls();
    let children = world.children(&created.id, lately()).await;
    assert_eq!(world.addresses(&children).await, ["10.0.0.101"]);
    assert!(!world.calls().contains_key("loadbalancer_member_list"));
}

#[tokio::test]
async fn a_redirected_change_is_an_error() {
    let world = Fixture::new().await;
    let created = world.make("web").await;
    let listing = format!("/RegionOne/load-balancer/v2.0/lbaas/loadbalancers/{}", created.id);
    world.sim.add_fault(
        Fault::on(
            "loadbalancer_members_update",
            Action::Status {
                code: 302,
                body: None,
                headers: [("Location".to_owned(), listing)].into(),
            },
        )
        .once(),
    );
    let pool = &created.pools[0].id;
    let error = world.writes().set_members(&created.id, pool, &[member("10.0.0.9")]).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::Unexpected, RequestOutcome::Unknown),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_exceeded_quota_is_distinguished_from_a_missing_right() {
    let mut config = Config::default();
    for (what, limit) in [("load_balancer", 1), ("floatingip", 0)] {
        config.settings.resource_quotas.insert(what.to_owned(), limit);
    }
    let world = Fixture::with(config).await;
    world.make("web").await;
    let error = world.writes().create_load_balancer(&world.body("more"), 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error:?}");
    let network = world.reads.discovery.external_networks(Priority::User).await.unwrap()[0].id.clone();
    let body = json!({
        "floating_network_id": network,
    });
    let error = world.writes().create_floating_ip("", &body).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error:?}");
    let mut ovn = world.body("ovn");
    ovn["provider"] = "ovn".into();
    ovn["listeners"][0]["protocol"] = "HTTP".into();
    let error = world.writes().create_load_balancer(&ovn, 1).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::QuotaExceeded), "{error:?}");
}

/// The pools without the IDs of their members, which no answer to a write contains.
pub(super) fn fields(pools: &[Arc<Pool>]) -> BTreeMap<String, Pool> {
    let pools = pools.iter().map(|pool| Pool {
        members: Box::default(),
        ..(**pool).clone()
    });
    pools.map(|pool| (pool.id.clone(), pool)).collect()
}
