//! Other credentials during reads.

use std::time::Duration;

use ccm_core::{ErrorKind, Freshness, InstanceState, Reload};
use ccm_sim::{
    Action, Fault,
    openstack::{AppCredentialSpec, Config, OpenStack, ServerSpec, UserSpec},
};
use futures_util::future::join_all;

use super::running::{Running, all_present};
use crate::cloud::{by_id, by_name, existence, present};

#[tokio::test]
async fn the_scope_names_user_project_and_region_without_a_secret() {
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
    assert!(scope.contains(&project) && scope.contains("other-user"), "{scope}");
}

#[tokio::test]
async fn another_password_is_applied_during_reads() {
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
    r.sim.set_latency(Duration::from_millis(20));
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
        // From here on, the old credentials are invalid.
        r.sim.set_password(Some("ccm"), "changed").unwrap();
        assert_eq!(r.cloud.generation(), 2);
    };
    tokio::join!(questions, rotation);
    assert_eq!(r.count("token_create"), 1, "one new token, by the swap");
}

#[tokio::test]
async fn answers_of_one_project_are_not_used_in_another() {
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
    assert_eq!(r.count("server_list"), asked, "there was a listing to be remembered");

    r.change(&conf).await.unwrap();
    let answers = r.describe(&queries, old).await;
    let (first, rest) = answers.split_first().unwrap();
    let expected = format!("openstack:///{other}");
    assert_eq!(present(first.clone()).provider_id, expected);
    assert!(rest.iter().all(|answer| matches!(answer, Ok(InstanceState::Unresolved))), "{rest:?}");
    assert!(matches!(r.ask(existence(by_id("node-1", &ids[0]))).await, Ok(InstanceState::Absent)));
}

#[tokio::test]
async fn a_listing_that_ends_after_the_swap_is_repeated() {
    let r = Running::new().await;
    r.sim.create_servers(20, &ServerSpec::named("node-{i}")).unwrap();
    let (_, conf) = r.other_project();
    let queries: Vec<_> = (0..20).map(|i| by_name(&format!("node-{i}"))).collect();
    all_present(r.describe(&queries, Freshness::now()).await);
    r.sim.clear_calls();
    // Pages of the old project are read one by one, and the credentials change in between.
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
        answers.iter().all(|answer| matches!(answer, Ok(InstanceState::Unresolved))),
        "{answers:?}"
    );
}

#[tokio::test]
async fn a_cloud_that_does_not_answer_is_not_waited_for_once_there_is_another() {
    let r = Running::new().await;
    let id = r.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let hang = r.sim.add_fault(Fault::on("server_get", Action::Timeout));
    let swap = async {
        r.sim.wait_for_calls(|calls| calls.iter().any(|call| call.op == "server_get")).await;
        r.sim.remove_fault(hang);
        // The same account by its ID: as far as is known, these are other credentials.
        let conf = r
            .sim
            .cloud_conf()
            .replace("tenant-name=\"k8s\"", &format!("tenant-id={}", r.sim.project_id()));
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
        assert!(!text.contains("hunter2") && !text.contains("correct-horse"), "{text}");
        present(r.ask(by_id("node-1", &id)).await);
        assert_eq!((r.cloud.generation(), r.cloud.scope()), (1, scope.clone()));
    }
    // Tokens of the old credentials are still renewed.
    r.sim.revoke_tokens();
    present(r.ask(by_id("node-1", &id)).await);
    assert_eq!(r.change(&good).await.unwrap(), Reload::default());
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
    // A query needs a token, which then belongs to the new user.
    let answer = r.ask(existence(by_id("node-1", &ids[0]))).await;
    assert!(matches!(answer, Ok(InstanceState::Absent)), "{answer:?}");
    assert_eq!(r.cloud.generation(), 2);
    assert!(r.cloud.scope().contains(&heir), "{}", r.cloud.scope());
    let answers = r.describe(&queries, old).await;
    assert!(answers.iter().all(|answer| matches!(answer, Ok(InstanceState::Absent))), "{answers:?}");
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
