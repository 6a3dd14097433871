//! Other credentials while running: what is swapped, what is kept, what needs a restart.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod cloud;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    BuildContext, Cloud, ErrorKind, Freshness, InstanceQuery, InstanceState, Priority, Reload, Result,
};
use ccm_sim::{
    Action, Fault, Latency, Scope,
    openstack::{AppCredentialSpec, Config, OpenStack, ServerSpec, UserSpec},
};
use cloud::{by_id, by_name, context, existence, present, provider};
use futures_util::future::join_all;

/// A running provider whose files can be changed.
struct Running {
    sim: OpenStack,
    cloud: Arc<dyn Cloud>,
    folder: tempfile::TempDir,
}

impl Running {
    async fn new() -> Self {
        Self::with(OpenStack::start(Config::default()).await.unwrap(), |sim| {
            sim.cloud_conf()
        })
        .await
    }

    async fn with(sim: OpenStack, conf: impl FnOnce(&OpenStack) -> String) -> Self {
        let (folder, context) = context(&conf(&sim));
        let cloud = start(context).await;
        sim.clear_calls();
        Self { sim, cloud, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, conf: &str) {
        std::fs::write(self.path("cloud.conf"), conf).unwrap();
    }

    /// Takes another file over.
    async fn change(&self, conf: &str) -> Result<Reload> {
        self.write(conf);
        self.cloud.reload().await
    }

    async fn describe(&self, queries: &[InstanceQuery], freshness: Freshness) -> Vec<Result<InstanceState>> {
        let instances = self.cloud.instances().unwrap();
        instances.describe(queries, freshness, Priority::User).await
    }

    async fn ask(&self, query: InstanceQuery) -> Result<InstanceState> {
        self.describe(&[query], Freshness::now()).await.pop().unwrap()
    }

    fn count(&self, op: &str) -> u64 {
        self.sim.call_counts().get(op).copied().unwrap_or(0)
    }

    /// A project with a user in it, and the config for both.
    fn other_project(&self) -> (String, String) {
        let project = self.sim.create_project("other");
        let user = UserSpec {
            name: "other-user".into(),
            password: "other-password".into(),
            projects: Some(vec![project.clone()]),
            ..UserSpec::default()
        };
        self.sim.create_user(&user).unwrap();
        let conf = self
            .sim
            .cloud_conf()
            .replace("\"ccm\"", "\"other-user\"")
            .replace("correct-horse", "other-password")
            .replace("\"k8s\"", "\"other\"");
        (project, conf)
    }
}

async fn start(context: BuildContext) -> Arc<dyn Cloud> {
    (provider().validate)(&context).unwrap();
    (provider().build)(context).await.unwrap()
}

fn all_present(answers: Vec<Result<InstanceState>>) {
    for answer in answers {
        present(answer);
    }
}

#[tokio::test]
async fn nothing_changed_costs_nothing() {
    let r = Running::new().await;
    assert_eq!(r.cloud.reload().await.unwrap(), Reload::default());
    // Written otherwise, but the same.
    let conf = format!(
        "# a comment\n{}[Metadata]\nrequest-timeout = 1m\n",
        r.sim.cloud_conf()
    );
    assert_eq!(r.change(&conf).await.unwrap(), Reload::default());
    assert!(r.sim.calls().is_empty(), "{:?}", r.sim.call_counts());
    assert_eq!(r.cloud.generation(), 1);
}

#[tokio::test]
async fn the_scope_says_who_asks_where_without_a_secret() {
    let r = Running::new().await;
    let scope = r.cloud.scope();
    for part in [
        "project \"k8s\"",
        &r.sim.project_id(),
        "user \"ccm\"",
        &r.sim.auth_url(),
        "region \"RegionOne\"",
    ] {
        assert!(scope.contains(part), "{part} is not in {scope}");
    }
    assert!(!scope.contains("correct-horse"), "{scope}");
    let (project, conf) = r.other_project();
    r.change(&conf).await.unwrap();
    let scope = r.cloud.scope();
    assert!(
        scope.contains(&project) && scope.contains("other-user"),
        "{scope}"
    );
}

#[tokio::test]
async fn another_password_is_taken_over_while_questions_are_under_way() {
    let r = Running::new().await;
    let ids = r.sim.create_servers(30, &ServerSpec::named("node-{i}")).unwrap();
    let second = UserSpec {
        name: "second".into(),
        password: "second-password".into(),
        projects: None,
        ..UserSpec::default()
    };
    r.sim.create_user(&second).unwrap();
    let conf = r
        .sim
        .cloud_conf()
        .replace("\"ccm\"", "\"second\"")
        .replace("correct-horse", "second-password");
    r.sim.set_latency(
        Scope::all(),
        Some(Latency::Fixed {
            time: Duration::from_millis(20),
        }),
    );
    let questions = join_all(ids.iter().map(|id| async {
        for _ in 0..3 {
            present(r.ask(existence(by_id("node-1", id))).await);
        }
    }));
    let rotation = async {
        r.sim
            .wait_for_calls(|calls| calls.iter().filter(|call| call.op == "server_get").count() >= 20)
            .await;
        let reload = r.change(&conf).await.unwrap();
        assert_eq!(reload.applied, ["[Global] username", "[Global] password"]);
        // From here on the old credentials are worth nothing.
        r.sim.set_password(Some("ccm"), "changed").unwrap();
        assert_eq!(r.cloud.generation(), 2);
    };
    tokio::join!(questions, rotation);
    assert_eq!(r.count("token_create"), 1, "one new token, by the swap");
}

#[tokio::test]
async fn what_was_learnt_in_one_project_is_not_told_in_another() {
    let r = Running::new().await;
    let ids = r.sim.create_servers(20, &ServerSpec::named("node-{i}")).unwrap();
    let (project, conf) = r.other_project();
    let other = ServerSpec {
        project: Some(project),
        ..ServerSpec::named("node-0")
    };
    let other = r.sim.create_server(&other).unwrap();
    let queries: Vec<_> = (0..20).map(|i| by_name(&format!("node-{i}"))).collect();
    let old = Freshness::AtMost(Duration::from_secs(50));
    all_present(r.describe(&queries, old).await);
    let asked = r.count("server_list");
    all_present(r.describe(&queries, old).await);
    assert_eq!(
        r.count("server_list"),
        asked,
        "there was a listing to be remembered"
    );

    r.change(&conf).await.unwrap();
    let answers = r.describe(&queries, old).await;
    let (first, rest) = answers.split_first().unwrap();
    let expected = format!("openstack:///{other}");
    assert_eq!(present(first.clone()).provider_id, expected);
    assert!(
        rest.iter()
            .all(|answer| matches!(answer, Ok(InstanceState::Unresolved))),
        "{rest:?}"
    );
    assert!(matches!(
        r.ask(existence(by_id("node-1", &ids[0]))).await,
        Ok(InstanceState::Absent)
    ));
}

#[tokio::test]
async fn a_listing_that_lands_after_the_swap_is_asked_for_again() {
    let r = Running::new().await;
    r.sim.create_servers(20, &ServerSpec::named("node-{i}")).unwrap();
    let (_, conf) = r.other_project();
    let queries: Vec<_> = (0..20).map(|i| by_name(&format!("node-{i}"))).collect();
    all_present(r.describe(&queries, Freshness::now()).await);
    r.sim.clear_calls();
    // Pages of the old project come one by one, and the swap comes in between.
    r.sim.configure(|settings| settings.max_limit = 5);
    let time = Duration::from_millis(100);
    r.sim.add_fault(Fault::on("server_list", Action::Delay { time }));
    let swap = async {
        r.sim
            .wait_for_calls(|calls| calls.iter().filter(|call| call.op == "server_list").count() >= 2)
            .await;
        r.change(&conf).await.unwrap();
    };
    let (answers, ()) = tokio::join!(r.describe(&queries, Freshness::now()), swap);
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Ok(InstanceState::Unresolved))),
        "{answers:?}"
    );
}

#[tokio::test]
async fn a_cloud_that_does_not_answer_is_not_waited_for_once_there_is_another() {
    let r = Running::new().await;
    let id = r.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let hang = r.sim.add_fault(Fault::on("server_get", Action::Timeout));
    let swap = async {
        r.sim
            .wait_for_calls(|calls| calls.iter().any(|call| call.op == "server_get"))
            .await;
        r.sim.remove_fault(hang);
        // The same account by its id: other credentials, as far as anybody can tell.
        let conf = r.sim.cloud_conf().replace(
            &format!("tenant-name=\"k8s\""),
            &format!("tenant-id={}", r.sim.project_id()),
        );
        let reload = r.change(&conf).await.unwrap();
        assert_eq!(reload.applied, ["[Global] tenant-id", "[Global] tenant-name"]);
    };
    let both = async { tokio::join!(r.ask(existence(by_id("node-1", &id))), swap) };
    // An attempt may take a minute.
    let (answer, ()) = tokio::time::timeout(Duration::from_secs(30), both).await.unwrap();
    present(answer);
}

#[tokio::test]
async fn refused_credentials_leave_the_old_ones_in_force() {
    let r = Running::new().await;
    let id = r.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let scope = r.cloud.scope();
    let good = r.sim.cloud_conf();
    for conf in [
        good.replace("correct-horse", "hunter2"),
        good.replace("\"k8s\"", "\"nowhere\""),
        good.replace("\"ccm\"", "\"nobody\""),
    ] {
        let error = r.change(&conf).await.unwrap_err();
        let text = error.report();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{text}");
        assert!(text.contains(&r.sim.auth_url()), "{text}");
        assert!(
            !text.contains("hunter2") && !text.contains("correct-horse"),
            "{text}"
        );
        present(r.ask(by_id("node-1", &id)).await);
        assert_eq!((r.cloud.generation(), r.cloud.scope()), (1, scope.clone()));
    }
    // Tokens of the old credentials are still renewed.
    r.sim.revoke_tokens();
    present(r.ask(by_id("node-1", &id)).await);
    assert_eq!(r.change(&good).await.unwrap(), Reload::default());
}

#[tokio::test]
async fn everything_wrong_with_a_new_file_is_told_at_once_and_the_old_one_stays() {
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
    let error = r
        .change(&bad.replace("[Networking\n", "").replace("use-clouds=perhaps", ""))
        .await;
    let text = error.unwrap_err().report();
    for part in ["ca-file", "compute-burst: must be between 1 and", "network-burst"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
    for garbage in ["", "\0\u{1}\u{2}garbage", "[Global]\n", "%PDF-1.4"] {
        assert_eq!(
            r.change(garbage).await.unwrap_err().kind(),
            ErrorKind::InvalidConfig
        );
    }
    std::fs::remove_file(r.path("cloud.conf")).unwrap();
    assert_eq!(
        r.cloud.reload().await.unwrap_err().kind(),
        ErrorKind::InvalidConfig
    );
    r.sim.clear_calls();
    present(r.ask(existence(by_id("node-1", &id))).await);
    assert_eq!(r.count("token_create"), 0);
}

#[tokio::test]
async fn a_keystone_that_is_down_leaves_the_old_credentials_in_force() {
    let r = Running::new().await;
    let id = r.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let (_, conf) = r.other_project();
    let down = r.sim.add_fault(Fault::on("token_create", Action::status(503)));
    assert_eq!(r.change(&conf).await.unwrap_err().kind(), ErrorKind::Unavailable);
    present(r.ask(existence(by_id("node-1", &id))).await);
    r.sim.remove_fault(down);
    assert!(!r.cloud.reload().await.unwrap().applied.is_empty());
    assert_eq!(r.cloud.generation(), 2);
}

#[tokio::test]
async fn a_revoked_application_credential_fails_until_the_file_has_another() {
    let sim = OpenStack::start(Config::default()).await.unwrap();
    let make = |name: &str| AppCredentialSpec {
        name: name.into(),
        ..AppCredentialSpec::default()
    };
    let first = sim.create_app_credential(&make("first")).unwrap();
    let r = Running::with(sim, |sim| sim.cloud_conf_for(&first)).await;
    let id = r.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    r.sim.delete_app_credential("first").unwrap();
    for _ in 0..3 {
        let error = r.ask(existence(by_id("node-1", &id))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
        assert!(!error.report().contains(&first.secret), "{error}");
    }
    let second = r.sim.create_app_credential(&make("second")).unwrap();
    let reload = r.change(&r.sim.cloud_conf_for(&second)).await.unwrap();
    let keys = [
        "[Global] application-credential-id",
        "[Global] application-credential-secret",
    ];
    assert_eq!(reload.applied, keys);
    present(r.ask(existence(by_id("node-1", &id))).await);
    assert!(r.cloud.scope().contains(&second.id), "{}", r.cloud.scope());
}

#[tokio::test]
async fn tokens_that_expire_at_the_time_of_a_swap_cost_no_answer() {
    let r = Running::new().await;
    let ids = r.sim.create_servers(10, &ServerSpec::named("node-{i}")).unwrap();
    let (_, conf) = r.other_project();
    let back = r.sim.cloud_conf();
    for conf in [&back, &conf, &back] {
        r.sim.revoke_tokens();
        r.change(conf).await.unwrap();
    }
    r.sim.revoke_tokens();
    let queries: Vec<_> = ids.iter().map(|id| existence(by_id("node-1", id))).collect();
    all_present(r.describe(&queries, Freshness::now()).await);
}

#[tokio::test]
async fn the_same_name_for_another_project_is_another_view() {
    let r = Running::new().await;
    let ids = r.sim.create_servers(20, &ServerSpec::named("node-{i}")).unwrap();
    let queries: Vec<_> = ids.iter().map(|id| existence(by_id("node-1", id))).collect();
    let old = Freshness::AtMost(Duration::from_secs(50));
    all_present(r.describe(&queries, old).await);
    let heir = r.sim.create_project("heir");
    r.sim.rename_project("k8s", "retired").unwrap();
    r.sim.rename_project("heir", "k8s").unwrap();
    r.sim.add_member(None, &heir).unwrap();
    r.sim.revoke_tokens();
    // Somebody needs a token, which is then the heir's.
    let answer = r.ask(existence(by_id("node-1", &ids[0]))).await;
    assert!(matches!(answer, Ok(InstanceState::Absent)), "{answer:?}");
    assert_eq!(r.cloud.generation(), 2);
    assert!(r.cloud.scope().contains(&heir), "{}", r.cloud.scope());
    let answers = r.describe(&queries, old).await;
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Ok(InstanceState::Absent))),
        "{answers:?}"
    );
}

#[tokio::test]
async fn keys_that_can_not_be_changed_live_are_named_until_they_are_as_before() {
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
    // Still waiting when something else changes; what is in force goes on.
    r.sim.set_password(None, "another").unwrap();
    let reload = r
        .change(&changed.replace("correct-horse", "another"))
        .await
        .unwrap();
    assert_eq!(reload.applied, ["[Global] password"]);
    assert_eq!(reload.restart_needed, waiting);
    present(r.ask(existence(by_id("node-1", &id))).await);
    assert!(r.cloud.scope().contains("RegionOne"), "{}", r.cloud.scope());
    let reload = r.change(&good.replace("correct-horse", "another")).await.unwrap();
    assert_eq!(reload, Reload::default());
}

#[tokio::test]
async fn a_region_that_only_the_new_cloud_has_keeps_the_old_one_and_says_why() {
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
async fn keystone_may_move() {
    let r = Running::new().await;
    let moved = Config {
        seed: 7,
        ..Config::default()
    };
    let moved = OpenStack::start(moved).await.unwrap();
    let id = moved.create_server(&ServerSpec::named("node-1")).unwrap();
    let reload = r.change(&moved.cloud_conf()).await.unwrap();
    assert_eq!(reload.applied, ["[Global] auth-url"]);
    present(r.ask(by_id("node-1", &id)).await);
}

#[tokio::test]
async fn clouds_yaml_is_watched_and_taken_over() {
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
    let conf = format!(
        "[Global]\nclouds-file={}\ncloud=main\n",
        path("clouds.yaml").display()
    );
    let (conf_folder, context) = context(&conf);
    let cloud = start(context).await;
    let watched = cloud.watched_files();
    let expected: [&Path; 3] = [
        &conf_folder.path().join("cloud.conf"),
        &path("clouds.yaml"),
        &path("secure.yaml"),
    ];
    assert!(
        expected
            .iter()
            .all(|path| watched.iter().any(|watched| watched == path)),
        "{watched:?}"
    );

    sim.set_password(None, "another").unwrap();
    write("clouds.yaml", "clouds: [");
    let text = cloud.reload().await.unwrap_err().report();
    assert!(
        text.contains("clouds.yaml") && text.contains("not YAML"),
        "{text}"
    );
    write("clouds.yaml", &yaml("wrong"));
    assert_eq!(
        cloud.reload().await.unwrap_err().kind(),
        ErrorKind::Unauthenticated
    );
    // In its own file beside it, which was not there before.
    write(
        "secure.yaml",
        "clouds:\n  main:\n    auth:\n      password: another\n",
    );
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
    r.sim.set_latency(
        Scope::all(),
        Some(Latency::Fixed {
            time: Duration::from_millis(20),
        }),
    );
    let asked = ids.iter().map(|id| r.ask(existence(by_id("node-1", id))));
    for answer in join_all(asked).await {
        present(answer);
    }
    let mut calls: Vec<_> = r
        .sim
        .calls()
        .into_iter()
        .filter(|call| call.op == "server_get")
        .collect();
    calls.sort_by_key(|call| call.started);
    assert_eq!(calls.len(), 12);
    for pair in calls.windows(2) {
        assert!(
            pair[0].started + pair[0].duration <= pair[1].started,
            "two at once: {pair:?}"
        );
    }
}

#[tokio::test]
async fn new_warnings_do_not_hide_in_a_reload_and_files_of_a_bad_config_are_watched() {
    let r = Running::new().await;
    let missing = r.path("ca.pem");
    let conf = format!("{}ca-file={}\n", r.sim.cloud_conf(), missing.display());
    r.change(&conf).await.unwrap_err();
    assert!(r.cloud.watched_files().contains(&missing));
    r.change(&r.sim.cloud_conf()).await.unwrap();
    assert_eq!(r.cloud.watched_files(), [r.path("cloud.conf")]);
}
