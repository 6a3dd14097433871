//! Services that send absurd values of `Retry-After`.

use std::time::Duration;

use ccm_core::{
    Error, InstanceQuery, Need, Result, Retry,
    load_balancer::{MemberState, PartState},
};
use ccm_sim::{
    Action, Fault,
    openstack::{SecretSpec, ServerSpec},
};

use crate::stage::{Stage, annotate, build, service};

/// Longer than any client should wait.
const LONG: [&str; 4] = [
    "86400",
    "18446744073709551615",
    "99999999999999999999999",
    "Wed, 06 Nov 2999 08:49:37 GMT",
];
/// No wait at all.
const NONE: [&str; 4] = ["0", "-1", "soon", "Sun, 06 Nov 1994 08:49:37 GMT"];

fn unavailable(op: &str, retry_after: &str) -> Fault {
    let action = Action::Status {
        code: 503,
        body: None,
        headers: [("Retry-After".to_owned(), retry_after.to_owned())].into(),
    };
    Fault::on(op, action)
}

/// A call that needs an answer of a service.
async fn ask(stage: &mut Stage, name: &str) -> Result<()> {
    match name {
        "identity" => build(stage.conf()).await.map(drop),
        "compute" => {
            let queries = stage.nodes.iter().map(|node| InstanceQuery {
                node: node.view.clone(),
                need: Need::Existence,
            });
            let queries: Vec<_> = queries.collect();
            let answers = stage.cloud.instances().unwrap();
            let answers = answers.describe(&queries, stage.read.freshness, stage.read.priority);
            answers.await.into_iter().try_for_each(|answer| answer.map(drop))
        }
        "network" | "load-balancer" => {
            let balancers = stage.cloud.load_balancers().unwrap();
            balancers.discover(&stage.request()).await.map(drop)
        }
        _ => {
            stage.pass_once().await;
            let failed = stage.reports.iter().find_map(|report| match &report.state {
                PartState::Failed(error) => Some(error.clone()),
                _ => report.members.iter().find_map(|member| match &member.state {
                    MemberState::Refused(error) => Some(error.clone()),
                    _ => None,
                }),
            });
            failed.map_or(Ok(()), Err)
        }
    }
}

fn wait(error: &Error) -> Duration {
    match error.retry() {
        Retry::After(wait) => wait,
        other => panic!("{other:?}: {error}"),
    }
}

#[tokio::test]
async fn no_service_stops_us_for_long_and_none_turns_the_backoff_off() {
    for (name, op) in [
        ("identity", "token_create"),
        ("compute", "server_get"),
        ("network", "security_group_list"),
        ("load-balancer", "loadbalancer_list"),
        ("key-manager", "secret_get"),
    ] {
        for value in LONG {
            let mut stage = stage().await;
            stage.sim.add_fault(unavailable(op, value));
            let error = ask(&mut stage, name).await.unwrap_err();
            assert_eq!(wait(&error), Duration::from_secs(300), "{name} {value}: {error}");
        }
        for value in NONE {
            let mut stage = stage().await;
            stage.sim.add_fault(unavailable(op, value).once());
            match ask(&mut stage, name).await {
                // Only the caller repeats the first authentication.
                Err(error) if name == "identity" => {
                    let backoff = Duration::from_secs(1);
                    assert_eq!(error.retry().wait(backoff), backoff, "{value}: {error:?}");
                }
                answer => answer.unwrap(),
            }
        }
    }
}

async fn stage() -> Stage {
    // So that discovery needs the security groups.
    let mut stage = Stage::new(1, "manage-security-groups = true").await;
    stage.sim.create_server(&ServerSpec::named("other")).unwrap();
    let secret = SecretSpec {
        name: "tls".into(),
        ..SecretSpec::default()
    };
    let secret = stage.sim.create_secret(&secret).unwrap();
    let mut web = service("web", &[443]);
    annotate(&mut web, "loadbalancer.openstack.org/default-tls-container-ref", Some(&secret));
    stage.services.push(web);
    stage
}
