//! The effect of each key and file on a running provider.

use std::{path::Path, time::Duration};

use ccm_core::{ErrorKind, Reload};
use ccm_sim::openstack::{Config, OpenStack, ServerSpec};
use futures_util::future::join_all;

use super::running::{Running, start};
use crate::cloud::{by_id, context, existence, present};

#[tokio::test]
async fn nothing_changed_costs_nothing() {
    let r = Running::new().await;
    assert_eq!(r.cloud.reload().await.unwrap(), Reload::default());
    // Another spelling of the same config.
    let conf = format!("# a comment\n{}[Metadata]\nrequest-timeout = 1m\n", r.sim.cloud_conf());
    assert_eq!(r.change(&conf).await.unwrap(), Reload::default());
    assert!(r.sim.calls().is_empty(), "{:?}", r.sim.call_counts());
    assert_eq!(r.cloud.generation(), 1);
}

#[tokio::test]
async fn all_problems_of_a_new_file_are_reported_at_once_and_the_old_one_stays() {
    let r = Running::new().await;
    let id = r.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let conf = r.sim.cloud_conf().replace("correct-horse", "hunter2");
    let bad =
        format!("{conf}ca-file=/no/such/file\n[Quota]\ncompute-burst=0\nnetwork-burst=many\n[Networking\n")
            .replace("[Global]", "[Global]\nuse-clouds=perhaps");
    let error = r.change(&bad).await.unwrap_err();
    let text = error.report();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    for part in ["use-clouds", "network-burst", "cloud.conf:12:"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let error = r.change(&bad.replace("[Networking\n", "").replace("use-clouds=perhaps", "")).await;
    let text = error.unwrap_err().report();
    for part in ["ca-file", "compute-burst: must be between 1 and", "network-burst"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
    for garbage in ["", "\0\u{1}\u{2}garbage", "[Global]\n", "%PDF-1.4"] {
        assert_eq!(r.change(garbage).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
    std::fs::remove_file(r.path("cloud.conf")).unwrap();
    assert_eq!(r.cloud.reload().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    r.sim.clear_calls();
    present(r.ask(existence(by_id("node-1", &id))).await);
    assert_eq!(r.count("token_create"), 0);
}

#[tokio::test]
async fn keys_that_need_a_restart_are_named_until_they_are_reverted() {
    let sim = Config {
        regions: vec!["RegionOne".into(), "RegionTwo".into()],
        ..Config::default()
    };
    let r = Running::with(OpenStack::start(sim).await.unwrap(), |sim| sim.cloud_conf()).await;
    let id = r.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let good = r.sim.cloud_conf();
    let changed = format!(
        "{}os-endpoint-type=internal\n[Networking]\naddress-sort-order=10.0.0.0/8\n[Metadata]\nrequest-timeout=5s\n\
         [LoadBalancerClass \"dmz\"]\nsubnet-id=x\n",
        good.replace("RegionOne", "RegionTwo")
    );
    let waiting = [
        "[Global] region",
        "[Global] os-endpoint-type",
        "[Networking] address-sort-order",
        "[Metadata] request-timeout",
        "[LoadBalancerClass \"dmz\"] subnet-id",
    ];
    let reload = r.change(&changed).await.unwrap();
    assert_eq!(reload.applied, Vec::<String>::new());
    assert_eq!(reload.restart_needed, waiting);
    assert_eq!(r.cloud.generation(), 1, "nothing was swapped");
    // It still waits when another value changes; the current config stays.
    r.sim.set_password(None, "another").unwrap();
    let reload = r.change(&changed.replace("correct-horse", "another")).await.unwrap();
    assert_eq!(reload.applied, ["[Global] password"]);
    assert_eq!(reload.restart_needed, waiting);
    present(r.ask(existence(by_id("node-1", &id))).await);
    assert!(r.cloud.scope().contains("RegionOne"), "{}", r.cloud.scope());
    let reload = r.change(&good.replace("correct-horse", "another")).await.unwrap();
    assert_eq!(reload, Reload::default());
}

#[tokio::test]
async fn a_region_of_only_the_new_cloud_is_refused_with_the_reason() {
    let r = Running::new().await;
    let elsewhere = Config {
        regions: vec!["Elsewhere".into()],
        seed: 7,
        ..Config::default()
    };
    let elsewhere = OpenStack::start(elsewhere).await.unwrap();
    let error = r.change(&elsewhere.cloud_conf()).await.unwrap_err();
    let text = error.report();
    assert!(text.contains("RegionOne") && text.contains("Elsewhere"), "{text}");
    assert!(text.contains("needs_a_restart=[Global] region"), "{text}");
    assert!(r.cloud.scope().contains(&r.sim.auth_url()));
}

#[tokio::test]
async fn clouds_yaml_is_watched_and_applied() {
    let sim = OpenStack::start(Config::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let yaml = |password: &str| {
        format!(
            "clouds:\n  main:\n    region_name: RegionOne\n    auth:\n      auth_url: {}\n      username: ccm\n      \
             password: {password}\n      project_name: k8s\n      domain_name: Default\n",
            sim.auth_url()
        )
    };
    let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
    write("clouds.yaml", &yaml("correct-horse"));
    let conf = format!("[Global]\nclouds-file={}\ncloud=main\n", path("clouds.yaml").display());
    let (conf_folder, context) = context(&conf);
    let cloud = start(context).await;
    let watched = cloud.watched_files();
    let expected: [&Path; 3] = [
        &conf_folder.path().join("cloud.conf"),
        &path("clouds.yaml"),
        &path("secure.yaml"),
    ];
    assert!(expected.iter().all(|path| watched.iter().any(|watched| watched == path)), "{watched:?}");

    sim.set_password(None, "another").unwrap();
    write("clouds.yaml", "clouds: [");
    let text = cloud.reload().await.unwrap_err().report();
    assert!(text.contains("clouds.yaml") && text.contains("not YAML"), "{text}");
    write("clouds.yaml", &yaml("wrong"));
    assert_eq!(cloud.reload().await.unwrap_err().kind(), ErrorKind::Unauthenticated);
    // In a separate file beside it that did not exist before.
    write("secure.yaml", "clouds:\n  main:\n    auth:\n      password: another\n");
    assert_eq!(cloud.reload().await.unwrap().applied, ["[Global] password"]);
    assert_eq!(cloud.generation(), 2);
}

#[tokio::test]
async fn quotas_are_changed_live_and_without_new_credentials() {
    let r = Running::new().await;
    let ids = r.sim.create_servers(12, &ServerSpec::named("node-{i}")).unwrap();
    let conf = format!("{}[Quota]\ncompute-in-flight=1\n", r.sim.cloud_conf());
    let reload = r.change(&conf).await.unwrap();
    assert_eq!(reload.applied, ["[Quota] compute-in-flight"]);
    assert_eq!(reload.restart_needed, Vec::<String>::new());
    assert_eq!((r.cloud.generation(), r.count("token_create")), (1, 0));
    r.sim.set_latency(Duration::from_millis(20));
    let asked = ids.iter().map(|id| r.ask(existence(by_id("node-1", id))));
    for answer in join_all(asked).await {
        present(answer);
    }
    let mut calls: Vec<_> = r.sim.calls().into_iter().filter(|call| call.op == "server_get").collect();
    calls.sort_by_key(|call| call.started);
    assert_eq!(calls.len(), 12);
    for pair in calls.windows(2) {
        assert!(pair[0].started + pair[0].duration <= pair[1].started, "two at once: {pair:?}");
    }
}

#[tokio::test]
async fn files_that_a_bad_config_names_are_watched_until_it_is_good() {
    let r = Running::new().await;
    let missing = r.path("ca.pem");
    let conf = format!("{}ca-file={}\n", r.sim.cloud_conf(), missing.display());
    r.change(&conf).await.unwrap_err();
    assert!(r.cloud.watched_files().contains(&missing));
    r.change(&r.sim.cloud_conf()).await.unwrap();
    assert_eq!(r.cloud.watched_files(), [r.path("cloud.conf")]);
}
