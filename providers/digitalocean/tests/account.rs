//! Configuration, token, quota and droplets.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod cloud;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::{
    AddressType, BuildContext, Cloud, Environment, ErrorKind, Freshness, InstanceQuery, InstanceState, Need,
    NodeView, Priority, check::Severity,
};
use ccm_sim::{
    Action, Fault,
    digitalocean::{Config, DigitalOcean},
};
use serde_json::json;

use crate::cloud::{
    Stage, annotate, build, build_with, context, environment, fields, key, provider, service,
};

async fn start() -> DigitalOcean {
    DigitalOcean::start(Config::default()).await.unwrap()
}

async fn describe(
    cloud: &dyn Cloud,
    names: &[&str],
    priority: Priority,
) -> Vec<ccm_core::Result<InstanceState>> {
    let query = |name: &&str| InstanceQuery {
        node: Arc::new(NodeView {
            name: (*name).to_owned(),
            ..NodeView::default()
        }),
        need: Need::Metadata,
    };
    let queries: Vec<_> = names.iter().map(query).collect();
    cloud
        .instances()
        .unwrap()
        .describe(&queries, Freshness::now(), priority)
        .await
}

#[tokio::test]
async fn every_problem_of_the_configuration_is_reported_at_once() {
    let environment = Environment::default()
        .with("DO_OVERRIDE_URL", "api.example.com")
        .with("REGION", "NYC 3")
        .with("DO_CLUSTER_ID", "a b")
        .with("DO_CLUSTER_VPC_ID", "default")
        .with("PUBLIC_ACCESS_FIREWALL_NAME", "nodes")
        .with("DO_API_RATE_LIMIT_QPS", "fast")
        .with("DEFAULT_LB_TYPE", "GLOBAL")
        .with("METRICS_ADDR", "9090")
        .with("DO_IP_ADDR_FAMILIES", "ipv4,ipx");
    let error = (provider().validate)(&context(environment)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let text = error.report();
    for part in [
        "DO_ACCESS_TOKEN: missing; set it to an API token",
        "DO_OVERRIDE_URL: \"api.example.com\" is not a URL",
        "REGION: \"NYC 3\"",
        "DO_CLUSTER_ID: only letters",
        "DO_CLUSTER_VPC_ID: \"default\" is not the UUID",
        "PUBLIC_ACCESS_FIREWALL_TAGS: missing",
        "DO_API_RATE_LIMIT_QPS: failed to parse \"fast\" as float64; write a number such as 1.5",
        "DEFAULT_LB_TYPE: unknown value \"GLOBAL\"; write REGIONAL or REGIONAL_NETWORK",
        "METRICS_ADDR: \"9090\" is not an address",
        "DO_IP_ADDR_FAMILIES: unknown value \"ipx\"; did you mean ipv4?",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[tokio::test]
async fn the_file_has_the_same_keys_and_the_environment_wins() {
    let sim = start().await;
    let yaml = format!(
        "accessToken: wrong\nregion: sfo3\noverrideUrl: {}\ndefaultLbTyp: REGIONAL\n",
        sim.url()
    );
    let token = Environment::default().with("DO_ACCESS_TOKEN", Config::default().token);
    let cloud = build_with(token, &yaml).await.unwrap();
    assert!(cloud.scope().contains("\"sfo3\""), "{}", cloud.scope());
    let wrong = build_with(
        Environment::default(),
        "accessToken: [a]\nregion: {}\nrequestTimeout: 0s\n",
    )
    .await;
    let text = wrong.unwrap_err().report();
    for part in [
        ":1:",
        "accessToken",
        ":2:",
        "region",
        "requestTimeout: must be more than 0",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let unknown = build(environment(&sim).with("REGION", "nyc9")).await.unwrap_err();
    assert!(
        unknown
            .report()
            .contains("region \"nyc9\" not found; the API knows nyc3, sfo3"),
        "{unknown}"
    );
}

#[tokio::test]
async fn a_prefix_of_the_url_is_part_of_every_call() {
    let sim = start().await;
    let prefixed = format!("{}/prefix", sim.url());
    let error = build(environment(&sim).with("DO_OVERRIDE_URL", prefixed))
        .await
        .unwrap_err();
    assert!(error.report().contains("GET /prefix/v2/regions: 404"), "{error}");
    assert_eq!(sim.take_violations().len(), 1);
}

#[tokio::test]
async fn a_token_file_is_read_again_and_a_refused_token_is_not_used() {
    let sim = start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let good = Config::default().token;
    std::fs::write(file.path(), format!("{good}\n")).unwrap();
    let context = BuildContext {
        environment: Environment::default()
            .with("DO_ACCESS_TOKEN_FILE", file.path().to_str().unwrap())
            // A Deployment that the chart adopted keeps this variable.
            .with("DO_ACCESS_TOKEN", "revoked")
            .with("DO_OVERRIDE_URL", sim.url())
            .with("REGION", "nyc3"),
        ..context(Environment::default())
    };
    let cloud = (provider().build)(context).await.unwrap();
    assert_eq!(cloud.watched_files(), [file.path()]);
    std::fs::write(file.path(), "revoked").unwrap();
    let error = cloud.reload().await.unwrap_err();
    assert_eq!(
        (error.kind(), cloud.generation()),
        (ErrorKind::Unauthenticated, 0)
    );
    assert!(!format!("{error:?}").contains("revoked"), "{error:?}");
    assert!(
        describe(&*cloud, &["x"], Priority::User).await[0].is_ok(),
        "the old token is in use"
    );
    std::fs::write(file.path(), &good).unwrap();
    assert_eq!(cloud.reload().await.unwrap().applied, [""; 0]);
    // The simulated API accepts every token that it is configured with.
    std::fs::write(file.path(), "two words").unwrap();
    assert!(
        cloud
            .reload()
            .await
            .unwrap_err()
            .report()
            .contains("DO_ACCESS_TOKEN_FILE: invalid token")
    );
}

#[tokio::test]
async fn a_revoked_token_is_an_error_and_no_node_is_absent() {
    let mut stage = Stage::served(&[]).await;
    stage.sim.add_fault(Fault::new(Action::status(401)));
    let node = Arc::clone(&stage.nodes[0].view);
    let query = InstanceQuery {
        node,
        need: Need::Existence,
    };
    let cloud = Arc::clone(&stage.cloud);
    let answer = cloud
        .instances()
        .unwrap()
        .describe(&[query], Freshness::now(), Priority::User)
        .await;
    assert_eq!(answer[0].as_ref().unwrap_err().kind(), ErrorKind::Unauthenticated);
    stage.web().deleting = true;
    stage.read = ccm_core::load_balancer::ReadOptions {
        freshness: Freshness::now(),
        ..stage.read
    };
    assert!(stage.settle().await.is_err());
    stage.sim.clear_faults();
    assert_eq!(stage.balancers().len(), 1);
}

#[tokio::test]
async fn droplets_have_their_addresses_in_order() {
    let sim = start().await;
    let address = |ip: &str, kind: &str| json!({"ip_address": ip, "type": kind});
    let networks = json!({
        "v4": [address("203.0.113.1", "public"), address("10.0.0.1", "private"), address("10.0.0.2", "private")],
        "v6": [address("2001:db8::1", "public")],
    });
    sim.create("droplets", fields(json!({"name": "both", "networks": networks})));
    sim.create(
        "droplets",
        fields(json!({"name": "private", "networks": {"v4": [address("10.0.0.9", "private")], "v6": []}})),
    );
    sim.create(
        "droplets",
        fields(json!({"name": "public", "networks": {"v4": [address("203.0.113.9", "public")], "v6": []}})),
    );
    sim.create(
        "droplets",
        fields(json!({"name": "gpu", "size_slug": "gpu-h100x1-80gb"})),
    );
    for name in ["twin", "twin"] {
        sim.create_droplet(name);
    }
    let cloud = build(environment(&sim)).await.unwrap();
    let names = [
        "both", "private", "public", "gpu", "twin", "10.0.0.9", "nobody", "BOTH",
    ];
    for names in [&names[..], &names[..1], &names[3..4], &names[5..6]] {
        for (name, answer) in names.iter().zip(describe(&*cloud, names, Priority::User).await) {
            let shown = match answer {
                Ok(InstanceState::Present(instance)) => {
                    let addresses = instance.addresses.iter().map(|address| match address.kind {
                        AddressType::Hostname => "name".to_owned(),
                        _ => address.address.clone(),
                    });
                    assert_eq!((instance.region.as_deref(), instance.zone), (Some("nyc3"), None));
                    addresses.collect::<Vec<_>>().join(" ")
                }
                Ok(other) => format!("{other:?}"),
                Err(error) => error.to_string(),
            };
            let expected = match *name {
                "both" => "name 10.0.0.1 203.0.113.1 2001:db8::1",
                "private" | "10.0.0.9" => "name 10.0.0.9",
                "public" => "has no private IPv4 address",
                "gpu" => "name 10.108.",
                "twin" => "all have the name \"twin\"",
                _ => "Unresolved",
            };
            assert!(shown.contains(expected), "{name}: {shown}");
        }
    }
    let only_v4 = build(environment(&sim).with("DO_IP_ADDR_FAMILIES", "ipv4"))
        .await
        .unwrap();
    let answer = describe(&*only_v4, &["both"], Priority::User)
        .await
        .remove(0)
        .unwrap();
    let InstanceState::Present(instance) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(instance.addresses.len(), 3);
}

/// The node controller sends several batches at once, and accepts answers that are up to 10 s old.
#[tokio::test]
async fn a_thousand_nodes_that_join_share_one_listing() {
    let sim = start().await;
    let names: Vec<_> = (0..1000).map(|number| format!("node-{number}")).collect();
    for name in &names {
        sim.create_droplet(name);
    }
    let cloud = build(environment(&sim)).await.unwrap();
    let describe = async |names: &[String]| {
        let query = |name: &String| InstanceQuery {
            node: Arc::new(NodeView {
                name: name.clone(),
                ..NodeView::default()
            }),
            need: Need::Metadata,
        };
        let queries: Vec<_> = names.iter().map(query).collect();
        let instances = cloud.instances().unwrap();
        let recent = Freshness::AtMost(Duration::from_secs(10));
        let answers = instances.describe(&queries, recent, Priority::User).await;
        let found = |answer: ccm_core::Result<InstanceState>| matches!(answer, Ok(InstanceState::Present(_)));
        assert!(answers.into_iter().all(found));
    };
    let listings = || {
        let calls = sim.calls().into_iter().map(|call| call.op);
        calls.filter(|op| *op == "droplets_list").count()
    };
    let (first, rest) = names.split_at(450);
    tokio::join!(describe(first), async {
        // Between two pages.
        while listings() < 2 {
            tokio::task::yield_now().await;
        }
        assert!(listings() < 6);
        describe(rest).await;
    });
    describe(&names[..10]).await;
    assert_eq!(listings(), 6, "5 pages, and one of droplets with a GPU");
    assert_eq!(sim.calls().len(), 7, "and the regions");
}

#[tokio::test]
async fn a_droplet_is_found_by_its_id_only() {
    let sim = start().await;
    let create = |name: &str, more: serde_json::Value| {
        let mut fields = fields(more);
        fields.insert("name".to_owned(), json!(name));
        sim.create("droplets", fields)
    };
    let gone = create("again", json!({}));
    sim.remove("droplets", &gone).unwrap();
    let again = create("again", json!({}));
    let bare = create("bare", json!({"networks": {"v4": [], "v6": []}}));
    let failing = create("failing", json!({}));
    let cloud = build(environment(&sim)).await.unwrap();
    for (id, need, expected) in [
        (create("active", json!({})), Need::Existence, "Present On"),
        (
            create("new", json!({"status": "new"})),
            Need::Existence,
            "Present On",
        ),
        (
            create("off", json!({"status": "off"})),
            Need::Existence,
            "Present Off",
        ),
        (
            create("archived", json!({"status": "archive"})),
            Need::Existence,
            "Present Off",
        ),
        // A droplet that was recreated with the same name is another machine.
        (gone, Need::Existence, "Absent"),
        (again, Need::Metadata, "Present On"),
        (bare.clone(), Need::Existence, "Present On"),
        (bare, Need::Metadata, "has no private IPv4 address"),
        (
            "12x".to_owned(),
            Need::Existence,
            "is not digitalocean://<droplet id>",
        ),
        (failing, Need::Existence, "500"),
    ] {
        if expected == "500" {
            sim.add_fault(Fault::new(Action::status(500)));
        }
        let view = NodeView {
            name: "again".to_owned(),
            provider_id: Some(format!("digitalocean://{id}")),
            ..NodeView::default()
        };
        let query = InstanceQuery {
            node: Arc::new(view),
            need,
        };
        let instances = cloud.instances().unwrap();
        let answer = instances
            .describe(&[query], Freshness::now(), Priority::User)
            .await
            .remove(0);
        let shown = match answer {
            Ok(InstanceState::Present(found)) => format!("Present {:?}", found.power),
            Ok(other) => format!("{other:?}"),
            Err(error) => error.report(),
        };
        assert!(shown.contains(expected), "{id}: {shown}");
    }
}

#[tokio::test]
async fn the_region_comes_from_the_metadata_service_unless_it_is_configured() {
    let sim = start().await;
    let token = || environment(&sim).with("REGION", "");
    // A server that is not the metadata service.
    let yaml = format!("metadataUrl: {}\n", sim.url());
    let error = build_with(token(), &yaml).await.unwrap_err();
    assert!(
        error.report().contains("did not return a region; set REGION"),
        "{error}"
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let yaml = format!("metadataUrl: http://{}/\n", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/metadata/v1/region", axum::routing::get(|| async { "nyc3\n" }));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let cloud = build_with(token(), &yaml).await.unwrap();
    assert!(cloud.scope().contains("\"nyc3\""), "{}", cloud.scope());
    server.abort();
}

#[tokio::test]
async fn a_thousand_droplets_cost_six_calls_and_one_costs_one() {
    let sim = start().await;
    let names: Vec<_> = (0..1000).map(|number| format!("node-{number}")).collect();
    let ids: Vec<_> = names.iter().map(|name| sim.create_droplet(name)).collect();
    let cloud = build(environment(&sim)).await.unwrap();
    sim.clear_calls();
    let texts: Vec<_> = names.iter().map(String::as_str).collect();
    let answers = describe(&*cloud, &texts, Priority::User).await;
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Ok(InstanceState::Present(_))))
    );
    assert_eq!(sim.calls().len(), 6, "five pages, and one of GPU droplets");
    sim.clear_calls();
    let node = Arc::new(NodeView {
        provider_id: Some(format!("digitalocean://{}", ids[7])),
        ..NodeView::default()
    });
    let query = InstanceQuery {
        node,
        need: Need::Existence,
    };
    cloud
        .instances()
        .unwrap()
        .describe(&[query], Freshness::now(), Priority::Background)
        .await;
    let calls: Vec<_> = sim.calls().into_iter().map(|call| call.op).collect();
    assert_eq!(calls, ["droplets_get"]);
}

fn refusal(code: u16, headers: &[(&str, String)]) -> Action {
    Action::Status {
        code,
        body: None,
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect::<BTreeMap<_, _>>(),
    }
}

#[tokio::test]
async fn a_throttled_call_is_repeated_with_and_without_headers() {
    let sim = start().await;
    sim.create_droplet("node");
    let cloud = build(environment(&sim)).await.unwrap();
    for headers in [vec![("retry-after", "0".to_owned())], vec![]] {
        sim.add_fault(Fault::new(refusal(429, &headers)).once());
        assert!(describe(&*cloud, &["node"], Priority::User).await[0].is_ok());
    }
}

#[tokio::test]
async fn background_work_stops_when_few_requests_of_the_hour_remain() {
    let sim = start().await;
    sim.create_droplet("node");
    let cloud = build(environment(&sim)).await.unwrap();
    let reset = jiff::Timestamp::now().as_second() + 1;
    let headers = [
        ("ratelimit-limit", "5000".to_owned()),
        ("ratelimit-remaining", "400".to_owned()),
        ("ratelimit-reset", reset.to_string()),
    ];
    sim.add_fault(Fault::new(refusal(404, &headers)).once());
    assert!(describe(&*cloud, &["node"], Priority::User).await[0].is_err());
    let background = || describe(&*cloud, &["node"], Priority::Background);
    let error = background().await.remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
    assert!(error.report().contains("fewer than 10 %"), "{error}");
    assert!(
        describe(&*cloud, &["node"], Priority::User).await[0].is_ok(),
        "calls for users are not blocked"
    );
    assert!(
        background().await[0].is_ok(),
        "the last answer showed a full quota"
    );
}

#[tokio::test]
async fn the_check_names_missing_scopes() {
    let sim = start().await;
    let settings = environment(&sim)
        .with("PUBLIC_ACCESS_FIREWALL_NAME", "nodes")
        .with("PUBLIC_ACCESS_FIREWALL_TAGS", "k8s")
        .with("DO_CLUSTER_VPC_ID", "11111111-2222-4333-8444-555555555555");
    for op in ["droplets_list", "certificates_list", "firewalls_list"] {
        sim.add_fault(Fault::on(op, Action::status(403)));
    }
    let checker = provider().checker.unwrap()(&context(settings)).unwrap();
    let report = checker.cloud().await;
    let found: Vec<_> = report
        .findings
        .iter()
        .map(|found| found.message.as_str())
        .collect();
    assert_eq!(
        found,
        [
            "the token lacks the scope droplet:read",
            "the token lacks the scope certificate:read",
            "the token lacks the scope firewall:read",
            "VPC 11111111-2222-4333-8444-555555555555 not found in this account",
        ]
    );
    assert!(
        report
            .findings
            .iter()
            .all(|found| found.severity == Severity::Error)
    );
    let refused =
        provider().checker.unwrap()(&context(environment(&sim).with("DO_ACCESS_TOKEN", "other"))).unwrap();
    let report = refused.cloud().await;
    assert_eq!((report.findings.len(), report.scope.is_none()), (1, true));
}

#[tokio::test]
async fn the_check_reports_what_the_admission_webhook_would_refuse() {
    let environment = Environment::default().with("DO_ACCESS_TOKEN", "x");
    let checker = provider().checker.unwrap()(&context(environment)).unwrap();
    type Annotations = &'static [(&'static str, &'static str)];
    let cases: [(Annotations, &[&str]); 5] = [
        (&[], &[]),
        (&[("type", "REGIONAL"), ("protocol", "http")], &[]),
        (
            &[("type", "GLOBAL")],
            &["Error \"GLOBAL\" is not one of REGIONAL, REGIONAL_NETWORK"],
        ),
        (
            &[("type", "REGIONAL"), ("tls-ports", "443"), ("size-unit", "many")],
            &[
                "Error ports with https need",
                "Error \"many\" is not a whole number",
            ],
        ),
        (&[("typ", "REGIONAL")], &["Warning no such annotation"]),
    ];
    for (annotations, expected) in cases {
        let mut web = service("web", &[80, 443]);
        for (end, value) in annotations {
            annotate(&mut web, &key(end), Some(value));
        }
        let findings = checker.service(&web).unwrap();
        let mut found: Vec<_> = findings
            .iter()
            .map(|found| format!("{:?} {}", found.severity, found.message))
            .collect();
        found.sort();
        found.reverse();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        expected.reverse();
        assert_eq!(found.len(), expected.len(), "{annotations:?}: {found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                found.starts_with(expected),
                "{annotations:?}: {found} is not {expected}"
            );
        }
    }
}

#[tokio::test]
async fn a_request_to_a_slow_api_times_out() {
    let sim = start().await;
    let cloud = build_with(environment(&sim), "requestTimeout: 50ms")
        .await
        .unwrap();
    let fault = sim.add_fault(Fault::new(Action::CommitThenHang));
    let began = std::time::Instant::now();
    let answer = describe(&*cloud, &["x"], Priority::User).await.remove(0);
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(began.elapsed() < Duration::from_secs(60));
    sim.remove_fault(fault);
}
