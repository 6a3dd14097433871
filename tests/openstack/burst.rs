//! Many nodes join while the cloud fails.

use std::{collections::BTreeSet, time::Duration};

use ccm_sim::{Action, Fault};
use ccm_testbed::observe::provider_id;

use crate::scene::{Scene, names};

const NODES: usize = 100;
/// Calls that were sent before a refusal was read arrive within this time.
const IN_FLIGHT: Duration = Duration::from_millis(250);

/// Lets nodes join under these faults, and checks that each gets its own machine and that nothing is reported twice.
async fn join_under(faults: Vec<Fault>) -> Scene {
    let scene = Scene::set().await;
    let nodes = names("burst", NODES);
    scene.servers(&nodes);
    let ccm = scene.start(&[]).await;
    for fault in faults {
        scene.cloud.add_fault(fault);
    }
    scene.register(&nodes).await;
    let seen = scene.all_initialized(NODES).await;
    let ids: BTreeSet<_> = seen.iter().map(provider_id).collect();
    assert_eq!(ids.len(), NODES, "each node its own machine");
    assert_eq!(ccm.get("/healthz").await.unwrap().0, 200);
    assert_reported_once(&scene);
    drop(ccm);
    scene
}

/// Checks that no line of the log is repeated for a node, and that a failure of many nodes is one line.
fn assert_reported_once(scene: &Scene) {
    let log = scene.log();
    let mut seen = BTreeSet::new();
    for line in log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")) {
        let text = line
            .split_once("WARN")
            .or_else(|| line.split_once("ERROR"))
            .map_or(line, |(_, text)| text);
        assert!(seen.insert(text.to_owned()), "reported twice: {text}\n{log}");
    }
    assert!(seen.len() <= 6, "{} warnings for one failure:\n{log}", seen.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn nova_fails_with_500() {
    let fault = Fault {
        service: Some("compute".to_owned()),
        count: Some(8),
        ..Fault::new(Action::status(500))
    };
    join_under(vec![fault]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn neutron_fails_with_503() {
    let fault = Fault {
        service: Some("network".to_owned()),
        count: Some(8),
        ..Fault::new(Action::status(503))
    };
    join_under(vec![fault]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_429() {
    let refuse = |service: &str| Fault {
        service: Some(service.to_owned()),
        count: Some(4),
        ..Fault::new(Action::Status {
            code: 429,
            body: None,
            headers: [("Retry-After".to_owned(), "1".to_owned())].into(),
        })
    };
    let scene = join_under(vec![refuse("compute"), refuse("network")]).await;
    let calls = scene.cloud.calls();
    let refused: Vec<_> = calls.iter().filter(|call| call.status == Some(429)).collect();
    assert_eq!(refused.len(), 8, "not all faults were used");
    for refused in refused {
        // Nothing was sent to that service within the second that it had requested.
        let early = calls.iter().find(|call| {
            call.service == refused.service
                && call.seq > refused.seq
                && call.started < refused.started + Duration::from_millis(950)
                // Calls in progress at the refusal are excepted. On a busy machine they arrive late, but long before a retry that
                // ignores the header would.
                && call.started > refused.started + refused.duration + IN_FLIGHT
        });
        assert!(early.is_none(), "{early:?} came too soon after {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_end_in_the_middle() {
    let truncate = |op: &str| Fault {
        count: Some(4),
        ..Fault::on(op, Action::Truncate { bytes: None })
    };
    join_under(vec![truncate("server_list"), truncate("port_list")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_200_with_an_empty_document() {
    let empty = |op: &str| Fault {
        count: Some(8),
        ..Fault::on(op, Action::EmptyJson)
    };
    join_under(vec![empty("server_list"), empty("port_list")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break() {
    let reset = |op: &str, action| Fault {
        count: Some(3),
        ..Fault::on(op, action)
    };
    let faults = vec![
        reset("server_list", Action::Reset),
        reset("server_list", Action::CommitThenDrop),
        reset("port_list", Action::Drop),
    ];
    join_under(faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_longer_than_every_deadline_is_reported_on_the_nodes() {
    let scene = Scene::set().await;
    let nodes = names("outage", 30);
    scene.servers(&nodes);
    let _ccm = scene.start(&[]).await;
    let fault = Fault {
        service: Some("compute".to_owned()),
        ..Fault::new(Action::status(503))
    };
    let fault = scene.cloud.add_fault(fault);
    scene.register(&nodes).await;
    for node in ["outage-1", "outage-30"] {
        let event = scene.event(node, "Unavailable").await;
        assert!(event.message.unwrap().contains("503"));
    }
    assert!(scene.cloud.remove_fault(fault));
    scene.all_initialized(nodes.len()).await;
    let warnings = scene.warnings().await;
    let about: BTreeSet<_> = warnings.iter().map(|event| event.involved_object.name.clone()).collect();
    assert_eq!(about.len(), warnings.len(), "one event a node");
    assert_reported_once(&scene);
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_tokens_cost_one_login() {
    let scene = Scene::set().await;
    let _ccm = scene.start(&[]).await;
    let logins = || scene.cloud.calls().iter().filter(|call| call.op == "token_create").count();
    let before = logins();
    scene.cloud.revoke_tokens();
    let nodes = names("revoked", NODES);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    scene.all_initialized(NODES).await;
    assert_eq!(logins() - before, 1, "one login, however many requests were refused");
    assert!(scene.warnings().await.is_empty(), "a warning was reported");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_renewed_before_they_expire() {
    let scene = Scene::set().await;
    scene.cloud.set_token_lifetime(Duration::from_secs(8));
    let _ccm = scene.start(&["--node-status-update-frequency=1s"]).await;
    let nodes = names("renewed", 3);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    scene.all_initialized(nodes.len()).await;
    scene
        .eventually("three logins", async || {
            let logins = scene.cloud.calls().iter().filter(|call| call.op == "token_create").count();
            (logins >= 3).then_some(())
        })
        .await;
    let refused = scene.cloud.calls().iter().filter(|call| call.status == Some(401)).count();
    assert_eq!(refused, 0, "a request used an expired token");
}
