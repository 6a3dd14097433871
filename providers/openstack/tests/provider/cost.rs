//! The calls that queries cost.

use std::time::Duration;

use ccm_core::Freshness;
use ccm_sim::openstack::{FlavorSpec, ServerSpec};

use crate::cloud::{Connected, by_id, by_name, by_provider_id, existence, present};

const MINUTE: Freshness = Freshness::AtMost(Duration::from_secs(60));

fn flavor(name: &str) -> FlavorSpec {
    serde_json::from_value(serde_json::json!({"name": name, "vcpus": 1, "ram": 1024, "disk": 1})).unwrap()
}

#[tokio::test]
async fn a_thousand_nodes_cost_a_page_or_two_and_seven_lists_of_ports() {
    let c = Connected::new().await;
    c.sim.create_servers(1000, &ServerSpec::named("node-{i:04}")).unwrap();
    let queries: Vec<_> = (0..1000).map(|i| by_name(&format!("node-{i:04}"))).collect();
    c.sim.clear_calls();
    for answer in c.describe(&queries, Freshness::now()).await {
        assert!(!present(answer).addresses.is_empty());
    }
    let counts = c.sim.call_counts();
    assert!(c.count("server_list") <= 2 && c.count("port_list") == 7 && c.total() <= 9, "{counts:?}");

    // Again within the freshness: servers are cached, their ports are read.
    c.sim.clear_calls();
    for answer in c.describe(&queries, MINUTE).await {
        present(answer);
    }
    assert_eq!((c.count("port_list"), c.total()), (7, 7), "{:?}", c.sim.call_counts());

    // A part of them by ID is answered by the same listing.
    c.sim.clear_calls();
    let known = present(c.describe(&queries[..1], MINUTE).await.pop().unwrap());
    let query = existence(by_provider_id("node", &known.provider_id));
    present(c.describe(std::slice::from_ref(&query), MINUTE).await.pop().unwrap());
    assert_eq!((c.count("port_list"), c.total()), (1, 1), "{:?}", c.sim.call_counts());
    // But not if the answer has to be newer.
    present(c.ask(query).await);
    assert_eq!((c.count("server_get"), c.total()), (1, 2), "{:?}", c.sim.call_counts());
}

#[tokio::test]
async fn one_node_in_a_project_of_twenty_thousand_servers_costs_two_calls() {
    let c = Connected::new().await;
    c.sim.create_servers(20_000, &ServerSpec::named("other-{i:05}")).unwrap();
    let id = c.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    present(c.ask(by_name("node-1")).await);
    assert_eq!((c.count("server_list"), c.count("port_list"), c.total()), (1, 1, 2));
    c.sim.clear_calls();
    present(c.ask(existence(by_id("node-1", &id))).await);
    assert_eq!((c.count("server_get"), c.total()), (1, 1));

    // A cluster among them: the names select a part of the listing.
    let ids = c.sim.create_servers(300, &ServerSpec::named("node-{i:03}")).unwrap();
    let queries: Vec<_> = ids.iter().enumerate().map(|(i, id)| by_id(&format!("node-{i:03}"), id)).collect();
    c.sim.clear_calls();
    for answer in c.describe(&queries, Freshness::now()).await {
        present(answer);
    }
    assert_eq!(
        (c.count("server_list"), c.count("port_list"), c.total()),
        (1, 2, 3),
        "{:?}",
        c.sim.call_counts()
    );
}

#[tokio::test]
async fn nodes_that_are_named_otherwise_than_their_servers_are_found_by_id() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(20, &ServerSpec::named("vm-{i}")).unwrap();
    c.sim.create_server(&ServerSpec::named("node-zzz")).unwrap();
    let queries: Vec<_> =
        ids.iter().enumerate().map(|(i, id)| existence(by_id(&format!("node-{i}"), id))).collect();
    for answer in c.describe(&queries, Freshness::now()).await {
        present(answer);
    }
    // The second time it is cached.
    c.sim.clear_calls();
    for answer in c.describe(&queries, Freshness::now()).await {
        present(answer);
    }
    assert_eq!((c.count("server_list"), c.total()), (1, 1), "{:?}", c.sim.call_counts());
}

#[tokio::test]
async fn a_listing_that_does_not_pay_is_given_up() {
    let c = Connected::new().await;
    c.sim.configure(|settings| settings.max_limit = 10);
    let wanted = c.sim.create_servers(5, &ServerSpec::named("node-{i}")).unwrap();
    // Newer servers come first.
    c.sim.create_servers(200, &ServerSpec::named("node-x{i}")).unwrap();
    let queries: Vec<_> = wanted.iter().map(|id| existence(by_id("node-1", id))).collect();
    for answer in c.describe(&queries, Freshness::now()).await {
        present(answer);
    }
    assert!(c.total() <= 10, "{:?}", c.sim.call_counts());
    c.sim.clear_calls();
    for answer in c.describe(&queries, Freshness::now()).await {
        present(answer);
    }
    assert_eq!((c.count("server_get"), c.total()), (5, 5), "{:?}", c.sim.call_counts());
}

#[tokio::test]
async fn concurrent_questions_share_one_listing() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(200, &ServerSpec::named("node-{i}")).unwrap();
    let queries: Vec<_> = ids.iter().map(|id| existence(by_id("node-1", id))).collect();
    let asked = queries.chunks(50).map(|queries| c.describe(queries, MINUTE));
    for answer in futures_util::future::join_all(asked).await.into_iter().flatten() {
        present(answer);
    }
    assert_eq!((c.count("server_list"), c.total()), (1, 1), "{:?}", c.sim.call_counts());
}

#[tokio::test]
async fn existence_reads_neither_ports_nor_flavors() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(3, &ServerSpec::named("node-{i}")).unwrap();
    let queries = [
        existence(by_id("node-1", &ids[0])),
        existence(by_id("node-2", &ids[1])),
    ];
    for answer in c.describe(&queries, Freshness::now()).await {
        present(answer);
    }
    assert_eq!(c.count("port_list") + c.count("flavor_get"), 0);
}

#[tokio::test]
async fn a_flavor_whose_name_is_not_a_label_value_is_shown_by_its_id() {
    let c = Connected::new().await;
    let huge = FlavorSpec {
        id: Some("f-1".into()),
        ..flavor("huge box (new)")
    };
    c.sim.create_flavor(&huge).unwrap();
    let spec = ServerSpec {
        flavor: Some("f-1".into()),
        ..ServerSpec::named("node-{i}")
    };
    c.sim.create_servers(10, &spec).unwrap();
    let queries: Vec<_> = (1..10).map(|i| by_name(&format!("node-{i}"))).collect();
    for answer in c.describe(&queries, Freshness::now()).await {
        assert_eq!(present(answer).instance_type.as_deref(), Some("f-1"));
    }
    assert!(c.count("server_get") <= 1, "{:?}", c.sim.call_counts());
}

#[tokio::test]
async fn each_flavor_of_an_old_nova_is_read_once() {
    let c = Connected::new().await;
    c.sim.configure(|settings| settings.max_microversion = 38);
    c.sim
        .create_flavor(&FlavorSpec {
            id: Some("f-1".into()),
            ..flavor("m9.tiny")
        })
        .unwrap();
    let spec = ServerSpec {
        flavor: Some("f-1".into()),
        ..ServerSpec::named("node-{i}")
    };
    c.sim.create_servers(20, &spec).unwrap();
    let queries: Vec<_> = (1..20).map(|i| by_name(&format!("node-{i}"))).collect();
    for _ in 0..2 {
        for answer in c.describe(&queries, Freshness::now()).await {
            assert_eq!(present(answer).instance_type.as_deref(), Some("m9.tiny"));
        }
    }
    assert_eq!(c.count("flavor_get"), 1, "{:?}", c.sim.call_counts());
    let refused = c.sim.calls().iter().filter(|call| call.status == Some(406)).count();
    assert_eq!(refused, 1, "the refusal is remembered");
}
