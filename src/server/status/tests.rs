#![allow(clippy::unwrap_used, clippy::expect_used)]

use ccm_core::{
    Error, ErrorKind, Priority,
    client::{Effect, Gate, GateConfig, Operation, Quota},
};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ListServers;

impl Operation for ListServers {
    fn name(self) -> &'static str {
        "list_servers"
    }

    fn effect(self) -> Effect {
        Effect::Read
    }

    fn bucket(self) -> &'static str {
        "compute"
    }
}

async fn sample() -> (Status, Checks, Metrics, Gate) {
    let cloud = ClientMetrics::default();
    let quota = Quota {
        rate: 10.0,
        burst: 20,
        ..Quota::default()
    };
    let gate = Gate::new(
        GateConfig {
            buckets: vec![("compute", quota)],
            ..GateConfig::new("acme")
        },
        &cloud,
    );
    let failed: ccm_core::Result<()> = gate
        .call(ListServers, Priority::User, async || {
            Err(Error::new(ErrorKind::PermissionDenied, "no <script> for you"))
        })
        .await;
    failed.unwrap_err();
    let status = Status::new("1.2.3", "acme", cloud);
    status.0.write().began = Timestamp::UNIX_EPOCH;
    status.set_leadership(|| Leadership {
        lease: Some("kube-system/cloud-controller-manager".to_owned()),
        leads: true,
        dry_run: false,
        renewed_seconds_ago: Some(2),
        migration: Some(Box::new(Leadership {
            lease: Some("kube-system/cloud-provider-extraction-migration".to_owned()),
            leader: Some("control-plane-2_<6f1c>".to_owned()),
            ..Leadership::default()
        })),
        ..Leadership::default()
    });
    let node = |name: &str, state| NodeRow {
        name: name.to_owned(),
        state,
        provider_id: format!("acme://{name}"),
    };
    status.set_nodes(move || vec![node("one", "ready"), node("two", "not ready")]);
    let plan = LastPlan {
        at: Timestamp::from_second(1_700_000_000).unwrap(),
        steps: vec![
            "create listener tcp/443".to_owned(),
            "create pool tcp/443".to_owned(),
        ],
        count: 12,
    };
    status.set_services(move || {
        let part = |state, plan: Option<&LastPlan>| PartRow {
            name: "lb/a".to_owned(),
            state,
            last_plan: plan.cloned(),
        };
        vec![
            ServiceRow {
                name: "default/api".to_owned(),
                state: "served",
                addresses: vec!["192.0.2.1".to_owned(), "2001:db8::1".to_owned()],
                parts: vec![part("done", None)],
                error: None,
            },
            ServiceRow {
                name: "default/web".to_owned(),
                state: "pending",
                parts: vec![part("failed", Some(&plan))],
                error: Some("InvalidSpec: \"x\" & 'y'".to_owned()),
                ..ServiceRow::default()
            },
        ]
    });
    let checks = Checks::default();
    checks.register("cloud-provider").set_ok();
    checks.register("informer-sync").set_failing("waiting");
    let metrics = Metrics::default();
    metrics.with(|registry| {
        let held = prometheus_client::metrics::family::Family::<
            [(&'static str, &'static str); 1],
            prometheus_client::metrics::gauge::Gauge,
        >::default();
        held.get_or_create(&[("reason", "deletion-share")]).set(3);
        registry.register("ccm_node_deletions_paused", "x", held);
        let suspects = prometheus_client::metrics::gauge::Gauge::<i64>::default();
        registry.register("ccm_node_lifecycle_checked_nodes", "x", suspects);
    });
    (status, checks, metrics, gate)
}

/// The text without what changes with the clock.
fn settled(text: &str) -> String {
    let mut settled = String::new();
    for line in text.lines() {
        match line.find(" · up ") {
            Some(end) => settled.push_str(line.get(..end).unwrap()),
            None if line.contains("no &lt;script&gt;") => {
                let (_, at) = line.split_once("<td data-l=\"at\">").unwrap();
                settled.push_str(&line.replace(at.split_once('<').unwrap().0, "THEN"));
            }
            None => settled.push_str(line),
        }
        settled.push('\n');
    }
    settled
}

#[tokio::test(start_paused = true)]
async fn the_page_is_one_document_and_text_in_it_is_only_text() {
    let (status, checks, metrics, _gate) = sample().await;
    let page = status.html(&checks, &metrics);
    insta::assert_snapshot!(settled(&page));
    for outside in ["<script", "src=", "http://", "https://", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[tokio::test(start_paused = true)]
async fn json_has_the_same_content() {
    let (status, checks, metrics, _gate) = sample().await;
    let report: serde_json::Value = serde_json::from_str(&status.json(&checks, &metrics)).unwrap();
    assert_eq!((&report["kind"], &report["binaryVersion"]), (&"Statusz".into(), &"1.2.3".into()));
    assert_eq!(report["nodes"]["states"]["not ready"], 1);
    // Problems come first.
    assert_eq!(report["nodes"]["shown"][0]["name"], "two");
    assert_eq!(report["services"]["shown"][0]["name"], "default/web");
    assert_eq!(report["services"]["shown"][0]["parts"][0]["lastPlan"]["count"], 12);
    assert_eq!(report["brake"][0]["value"], 3.0);
    assert_eq!(report["budgets"][0]["burst"], 20);
    assert_eq!(report["cloudErrors"][0]["operation"], "list_servers");
    assert_eq!(report["health"][2]["reason"], "waiting");
}

#[test]
fn a_dry_run_does_not_lead() {
    let status = Status::default();
    status.set_leadership(|| Leadership {
        lease: Some("kube-system/cloud-controller-manager".to_owned()),
        dry_run: true,
        ..Leadership::default()
    });
    let page = status.html(&Checks::default(), &Metrics::default());
    assert!(page.contains("Dry run") && !page.contains("holds the lease"), "{page}");
}

#[test]
fn what_has_not_come_up_is_left_out() {
    let status = Status::default();
    let page = status.html(&Checks::default(), &Metrics::default());
    assert!(page.contains("Starting.") && page.contains("Not known yet."), "{page}");
}
