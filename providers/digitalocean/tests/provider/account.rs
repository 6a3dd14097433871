//! Configuration, token, quota and droplets.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    AddressType, BuildContext, Cloud, Environment, ErrorKind, Freshness, InstanceQuery, InstanceState, Need,
    Priority, Result,
    check::Severity,
    testkit::nodes::{ask, describe, present, query},
};
use ccm_sim::{
    Action, Fault,
    digitalocean::{Config, DigitalOcean, Switches},
};
use serde_json::json;

use crate::cloud::{
    ANNOTATION, Stage, annotate_all, answer, build, build_with, context, environment, fields, provider,
    service,
};

async fn start() -> DigitalOcean {
    DigitalOcean::start(Config::default()).await.unwrap()
}

/// The simulator and the provider on it.
async fn connected() -> (DigitalOcean, Arc<dyn Cloud>) {
    let sim = start().await;
    let cloud = build(environment(&sim)).await.unwrap();
    (sim, cloud)
}

/// Describes the node of this name.
async fn find(cloud: &dyn Cloud, name: &str) -> Result<InstanceState> {
    ask(cloud, query(name, None, Need::Metadata)).await
}

/// Describes nodes, and asserts that all have an instance.
async fn find_all(cloud: &dyn Cloud, names: &[String], freshness: Freshness) {
    let query = |name: &String| query(name, None, Need::Metadata);
    let queries: Vec<_> = names.iter().map(query).collect();
    for answer in describe(cloud, &queries, freshness).await {
        present(answer);
    }
}

/// A thousand droplets by their names.
fn create_a_thousand(sim: &DigitalOcean) -> Vec<String> {
    let names: Vec<_> = (0..1000).map(|number| format!("node-{number}")).collect();
    for name in &names {
        sim.create_droplet(name);
    }
    names
}

/// Describes a node without a user that waits.
async fn in_background(cloud: &dyn Cloud, query: InstanceQuery) -> Result<InstanceState> {
    let (queries, instances) = ([query], cloud.instances().unwrap());
    let answers = instances.describe(&queries, Freshness::now(), Priority::Background);
    answers.await.remove(0)
}

/// Asserts that a text contains all of these.
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[tokio::test]
async fn every_problem_of_the_configuration_is_reported_at_once() {
    let environment = Environment::default()
        .with("REGION", "NYC 3")
        .with("DO_CLUSTER_ID", "a b")
        .with("DO_OVERRIDE_URL", "u:hunter2@127.0.0.1")
        .with("DO_CLUSTER_VPC_ID", "default")
        .with("PUBLIC_ACCESS_FIREWALL_NAME", "nodes")
        .with("DO_API_RATE_LIMIT_QPS", "fast")
        .with("DEFAULT_LB_TYPE", "GLOBAL")
        .with("METRICS_ADDR", "9090")
        .with("DO_IP_ADDR_FAMILIES", "ipv4,ipx");
    let error = (provider().validate)(&context(environment)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let parts = [
        "DO_ACCESS_TOKEN: missing; set it to an API token",
        "REGION: \"NYC 3\"",
        "DO_OVERRIDE_URL: not a URL with http",
        "DO_CLUSTER_ID: only letters",
        "DO_CLUSTER_VPC_ID: \"default\" is not the UUID",
        "PUBLIC_ACCESS_FIREWALL_TAGS: missing",
        "DO_API_RATE_LIMIT_QPS: failed to parse \"fast\" as float64; write a number such as 1.5",
        "DEFAULT_LB_TYPE: unknown value \"GLOBAL\"; write REGIONAL or REGIONAL_NETWORK",
        "METRICS_ADDR: \"9090\" is not an address",
        "DO_IP_ADDR_FAMILIES: unknown value \"ipx\"; did you mean ipv4?",
    ];
    assert_has(&error.report(), &parts);
    assert!(!error.report().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn the_file_has_the_same_keys_and_the_environment_wins() {
    let sim = start().await;
    let url = sim.url();
    let yaml = format!("accessToken: wrong\nregion: sfo3\noverrideUrl: {url}\ndefaultLbTyp: REGIONAL\n");
    let token = Environment::default().with("DO_ACCESS_TOKEN", Config::default().token);
    let cloud = build_with(token, &yaml).await.unwrap();
    assert!(cloud.scope().contains("\"sfo3\""), "{}", cloud.scope());
    let yaml = "accessToken: [a]\nregion: {}\nrequestTimeout: 0s\n";
    let wrong = build_with(Environment::default(), yaml).await.unwrap_err();
    let parts = [
        ":1:",
        "accessToken",
        ":2:",
        "region",
        "requestTimeout: must be more than 0",
    ];
    assert_has(&wrong.report(), &parts);
    let unknown = build(environment(&sim).with("REGION", "nyc9")).await.unwrap_err();
    let problem = "region \"nyc9\" not found; the API knows nyc3, sfo3";
    assert_has(&unknown.report(), &[problem]);
}

#[tokio::test]
async fn a_prefix_of_the_url_is_part_of_every_call() {
    let sim = start().await;
    let prefixed = format!("{}/prefix", sim.url());
    let environment = environment(&sim).with("DO_OVERRIDE_URL", prefixed);
    let error = build(environment).await.unwrap_err();
    assert_has(&error.report(), &["GET /prefix/v2/regions: 404"]);
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
    let refused = (ErrorKind::Unauthenticated, 0);
    assert_eq!((error.kind(), cloud.generation()), refused);
    assert!(!format!("{error:?}").contains("revoked"), "{error:?}");
    assert!(find(&*cloud, "x").await.is_ok(), "the old token is in use");
    std::fs::write(file.path(), &good).unwrap();
    assert_eq!(cloud.reload().await.unwrap().applied, [""; 0]);
    // The simulated API accepts every token that it is configured with.
    std::fs::write(file.path(), "two words").unwrap();
    let error = cloud.reload().await.unwrap_err();
    assert_has(&error.report(), &["DO_ACCESS_TOKEN_FILE: invalid token"]);
}

#[tokio::test]
async fn a_revoked_token_is_an_error_and_no_node_is_absent() {
    let mut stage = Stage::served("").await;
    stage.sim.add_fault(Fault::new(Action::status(401)));
    let node = stage.nodes[0].view.clone();
    let query = query(&node.name, node.provider_id.as_deref(), Need::Existence);
    let error = ask(&*stage.cloud, query).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    stage.web().deleting = true;
    stage.read.freshness = Freshness::now();
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
    let private = json!({"v4": [address("10.0.0.9", "private")], "v6": []});
    let public = json!({"v4": [address("203.0.113.9", "public")], "v6": []});
    for (name, networks) in [("both", networks), ("private", private), ("public", public)] {
        sim.create("droplets", fields(json!({"name": name, "networks": networks})));
    }
    let gpu = json!({"name": "gpu", "size_slug": "gpu-h100x1-80gb"});
    sim.create("droplets", fields(gpu));
    for name in ["twin", "twin"] {
        sim.create_droplet(name);
    }
    let cloud = build(environment(&sim)).await.unwrap();
    let names = [
        "both", "private", "public", "gpu", "twin", "10.0.0.9", "nobody", "BOTH",
    ];
    let names = names.map(|name| query(name, None, Need::Metadata));
    for queries in [&names[..], &names[..1], &names[3..4], &names[5..6]] {
        let answers = describe(&*cloud, queries, Freshness::now()).await;
        for (name, answer) in queries.iter().map(|query| &query.node.name).zip(answers) {
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
            let expected = match name.as_str() {
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
    let environment = environment(&sim).with("DO_IP_ADDR_FAMILIES", "ipv4");
    let only_v4 = build(environment).await.unwrap();
    let instance = present(find(&*only_v4, "both").await);
    assert_eq!(instance.addresses.len(), 3);
}

/// The node controller sends several batches at once, and accepts answers that are up to 10 s old.
#[tokio::test]
async fn a_thousand_nodes_that_join_share_one_listing() {
    let sim = start().await;
    let names = create_a_thousand(&sim);
    let cloud = build(environment(&sim)).await.unwrap();
    let recent = Freshness::AtMost(Duration::from_secs(10));
    let listings = || {
        let calls = sim.calls().into_iter().map(|call| call.op);
        calls.filter(|op| *op == "droplets_list").count()
    };
    let (first, rest) = names.split_at(450);
    tokio::join!(find_all(&*cloud, first, recent), async {
        // Between two pages.
        while listings() < 2 {
            tokio::task::yield_now().await;
        }
        assert!(listings() < 21);
        find_all(&*cloud, rest, recent).await;
    });
    find_all(&*cloud, &names[..10], recent).await;
    assert_eq!(listings(), 21, "20 pages, and one of droplets with a GPU");
    assert_eq!(sim.calls().len(), 22, "and the regions");
}

#[tokio::test]
async fn a_droplet_is_found_by_its_id_only() {
    let (sim, cloud) = connected().await;
    let create = |name: &str, more: serde_json::Value| {
        let mut fields = fields(more);
        fields.insert("name".to_owned(), json!(name));
        sim.create("droplets", fields)
    };
    let gone = create("again", json!({}));
    sim.remove("droplets", &gone).unwrap();
    let again = create("again", json!({}));
    let bare = create("bare", json!({"networks": {"v4": [], "v6": []}}));
    let of_status = |status: &str| create(status, json!({"status": status}));
    for (id, need, expected) in [
        (of_status("active"), Need::Existence, "Present On"),
        (of_status("new"), Need::Existence, "Present On"),
        (of_status("off"), Need::Existence, "Present Off"),
        (of_status("archive"), Need::Existence, "Present Off"),
        // A droplet that was recreated with the same name is another machine.
        (gone, Need::Existence, "Absent"),
        (again, Need::Metadata, "Present On"),
        (bare.clone(), Need::Existence, "Present On"),
        (bare, Need::Metadata, "has no private IPv4 address"),
        ("12x".to_owned(), Need::Existence, "is not digitalocean://<"),
        (create("failing", json!({})), Need::Existence, "500"),
    ] {
        if expected == "500" {
            sim.add_fault(Fault::new(Action::status(500)));
        }
        let id = format!("digitalocean://{id}");
        let answer = ask(&*cloud, query("again", Some(&id), need)).await;
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
    assert_has(&error.report(), &["did not return a region; set REGION"]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let yaml = format!("metadataUrl: http://{}/\n", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/metadata/v1/region", axum::routing::get(|| async { "nyc3\n" }));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let cloud = build_with(token(), &yaml).await.unwrap();
    assert!(cloud.scope().contains("\"nyc3\""), "{}", cloud.scope());
    server.abort();
}

#[tokio::test]
async fn a_thousand_droplets_cost_a_listing_and_one_costs_one_call() {
    let (sim, cloud) = connected().await;
    let names = create_a_thousand(&sim);
    sim.clear_calls();
    find_all(&*cloud, &names, Freshness::now()).await;
    assert_eq!(sim.calls().len(), 21, "20 pages, and one of GPU droplets");
    let id = format!("digitalocean://{}", sim.documents("droplets")[7]["id"]);
    sim.clear_calls();
    let query = query("", Some(&id), Need::Existence);
    in_background(&*cloud, query).await.unwrap();
    let calls: Vec<_> = sim.calls().into_iter().map(|call| call.op).collect();
    assert_eq!(calls, ["droplets_get"]);
}

#[tokio::test]
async fn a_throttled_call_is_repeated_with_and_without_headers() {
    let (sim, cloud) = connected().await;
    sim.create_droplet("node");
    for headers in [&[("retry-after", "0")][..], &[]] {
        sim.add_fault(Fault::new(answer(429, None, headers)).once());
        assert!(find(&*cloud, "node").await.is_ok());
    }
}

#[tokio::test]
async fn a_rate_limit_above_the_average_of_the_api_only_limits_bursts() {
    let sim = start().await;
    let environment = environment(&sim).with("DO_API_RATE_LIMIT_QPS", "40");
    let cloud = build(environment).await.unwrap();
    let id = format!("digitalocean://{}", sim.create_droplet("node"));
    let began = std::time::Instant::now();
    for _ in 0..80 {
        let query = query("node", Some(&id), Need::Existence);
        present(ask(&*cloud, query).await);
    }
    let seconds = began.elapsed().as_secs_f64();
    assert!(seconds > 0.8 && seconds < 15.0, "{seconds} s");
}

#[tokio::test]
async fn background_work_stops_when_few_requests_of_the_hour_remain() {
    let (sim, cloud) = connected().await;
    sim.create_droplet("node");
    let reset = (jiff::Timestamp::now().as_second() + 1).to_string();
    let headers = [
        ("ratelimit-limit", "5000"),
        ("ratelimit-remaining", "400"),
        ("ratelimit-reset", &reset),
    ];
    sim.add_fault(Fault::new(answer(404, None, &headers)).once());
    assert!(find(&*cloud, "node").await.is_err());
    let background = async || in_background(&*cloud, query("node", None, Need::Metadata)).await;
    let error = background().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
    assert_has(&error.report(), &["fewer than 10 %"]);
    let answer = find(&*cloud, "node").await;
    assert!(answer.is_ok(), "calls for users are not blocked");
    assert!(background().await.is_ok(), "the last answer showed a full quota");
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
    let findings = report.findings.iter();
    let found: Vec<_> = findings.map(|found| (found.severity, &*found.message)).collect();
    let expected = [
        "the token lacks the scope droplet:read",
        "the token lacks the scope certificate:read",
        "the token lacks the scope firewall:read",
        "VPC 11111111-2222-4333-8444-555555555555 not found in this account",
    ];
    assert_eq!(found, expected.map(|message| (Severity::Error, message)));
    // The API omits the tags of load balancers.
    sim.clear_faults();
    crate::cloud::create_balancer(&sim, "web");
    for returns_tags in [true, false] {
        sim.set_switches(Switches {
            returns_tags,
            ..Switches::default()
        });
        let checker = provider().checker.unwrap()(&context(environment(&sim))).unwrap();
        let findings = checker.cloud().await.findings;
        let found: Vec<_> = findings.iter().map(|found| (found.severity, &*found.message)).collect();
        let text = "the API returns load balancers without their tags, so that orphaned load balancers are not found";
        let expected = (!returns_tags).then_some((Severity::Warning, text));
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }
    let refused = context(environment(&sim).with("DO_ACCESS_TOKEN", "other"));
    let report = provider().checker.unwrap()(&refused).unwrap().cloud().await;
    assert_eq!((report.findings.len(), report.scope.is_none()), (1, true));
}

#[tokio::test]
async fn the_check_reports_what_the_admission_webhook_would_refuse() {
    let environment = Environment::default().with("DO_ACCESS_TOKEN", "x");
    let checker = provider().checker.unwrap()(&context(environment)).unwrap();
    let not_a_number = "Error \"many\" is not a whole number";
    let many = "type=REGIONAL; tls-ports=443; size-unit=many";
    let unknown = "Error \"GLOBAL\" is not one of REGIONAL, REGIONAL_NETWORK";
    for (annotations, expected) in [
        ("", &[][..]),
        ("type=REGIONAL; protocol=http", &[]),
        ("type=GLOBAL", &[unknown]),
        (many, &["Error ports with https need", not_a_number]),
        ("typ=REGIONAL", &["Warning no such annotation"]),
    ] {
        let mut web = service("web", &[80, 443]);
        annotate_all(&mut web, ANNOTATION, annotations);
        let findings = checker.service(&web).unwrap().into_iter();
        let found = findings.map(|found| format!("{:?} {}", found.severity, found.message));
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), expected.len(), "{annotations}: {found:?}");
        for part in expected {
            let is_reported = found.iter().any(|found| found.starts_with(part));
            assert!(is_reported, "{annotations}: {part} is not in {found:?}");
        }
    }
}

#[tokio::test]
async fn a_request_to_a_slow_api_times_out() {
    let sim = start().await;
    let config = "requestTimeout: 50ms";
    let cloud = build_with(environment(&sim), config).await.unwrap();
    let fault = sim.add_fault(Fault::new(Action::CommitThenHang));
    let began = std::time::Instant::now();
    let error = find(&*cloud, "x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(began.elapsed() < Duration::from_secs(60));
    sim.remove_fault(fault);
}
