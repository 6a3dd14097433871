#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use crate::controllers::plan::{Blocked, Findings, Kind, Object, PlannedChange};

fn change(effect: Effect, kind: Kind, what: &str, why: &str) -> PlannedChange {
    PlannedChange {
        effect,
        kind,
        what: what.to_owned(),
        why: why.to_owned(),
        part: (kind == Kind::Cloud).then(|| "lb/1".to_owned()),
    }
}

/// One of everything.
fn full() -> Plan {
    let mut plan = Plan::default();
    let web = plan.service("shop/web");
    web.changes.push(change(Effect::Create, Kind::Cloud, "create listener TCP/80", ""));
    web.changes.push(change(Effect::Change, Kind::Cloud, "change pool", "method a -> b"));
    web.block(Blocked {
        what: "the wood is pine".to_owned(),
        field: Some("wood".to_owned()),
        have: Some("pine".to_owned()),
        want: Some("oak".to_owned()),
    });
    for _ in 0..2 {
        web.warn("pink is taken for grey");
    }
    plan.service("shop/quiet");
    let shared = plan.of(Object::Part {
        part: "node-ports".to_owned(),
        services: ["shop/web".to_owned(), "shop/quiet".to_owned()].into(),
    });
    let change_of = |effect, what| change(effect, Kind::Cloud, what, "");
    shared.changes.push(change_of(Effect::Change, "open the ports"));
    let orphan = plan.of(Object::Part {
        part: "load balancer old".to_owned(),
        services: [].into(),
    });
    orphan.changes.push(change_of(Effect::Delete, "delete load balancer old"));
    let initialize = |findings: &mut Findings, what| {
        let change = change(Effect::Change, Kind::Initialize, what, "");
        findings.changes.push(change);
    };
    initialize(plan.node("n2"), "provider ID x");
    initialize(plan.node("n1"), "provider ID y");
    plan.node("n1").block("its zone differs".to_owned());
    plan.node("n3");
    let lost = plan.route("10.1.9.0/24".parse().unwrap(), None);
    lost.changes
        .push(change(Effect::Delete, Kind::Route, "delete route 10.1.9.0/24 via h", "lost"));
    lost.block("the road is long".to_owned());
    let first = plan.route("10.1.1.0/24".parse().unwrap(), Some("n1"));
    first.warn("mind the gap");
    plan.route("10.1.2.0/24".parse().unwrap(), Some("n2"));
    let network = change(Effect::Change, Kind::Network, "no network", "");
    plan.node("n2").changes.push(network);
    plan.problem("lb/7", "Nova is down");
    plan
}

#[test]
fn a_plan_reads_like_one() {
    insta::assert_snapshot!(text::render(&full()), @r"
    Service shop/web
      + create listener TCP/80
      ~ change pool (method a -> b)
      ! the wood is pine
      * pink is taken for grey

    load balancer old, of no Service
      - delete load balancer old

    node-ports, shared by shop/quiet, shop/web
      ~ open the ports

    Nodes to initialize: 2
      ~ n1: provider ID y
      ~ n2: provider ID x

    Nodes with another condition NetworkUnavailable: 1
      ~ n2: no network

    Nodes left unchanged: 1
      ! n1: its zone differs

    Routes: 2
      * route 10.1.1.0/24 (node n1): mind the gap
      - delete route 10.1.9.0/24 via h (lost)
      ! route 10.1.9.0/24: the road is long

    Could not be determined
      ? lb/7: Nova is down

    Plan (not complete): 1 to create, 5 to change, 2 to delete; 3 blocked, 1 not determined, 2 warnings. Read 2 Services and 3 nodes.
    ");
}

#[test]
fn programs_find_the_same_under_names_that_stay() {
    let text = json::render(&full(), "fake").unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["verdict"], "incomplete");
    assert_eq!(json["summary"]["blocked"], 3);
    assert_eq!(json["services"].as_array().unwrap().len(), 1, "a Service without findings is left out");
    let change = &json["services"][0]["changes"][1];
    assert_eq!(
        change,
        &serde_json::json!({
            "effect": "change", "kind": "cloud", "what": "change pool", "why": "method a -> b", "part": "lb/1",
        })
    );
    assert_eq!(json["parts"][1]["services"], serde_json::json!(["shop/quiet", "shop/web"]));
    assert_eq!(json["nodes"][0]["node"], "n1");
    assert_eq!(json["nodes"][0]["changes"][0]["kind"], "initialize");
    assert_eq!(json["routes"].as_array().unwrap().len(), 2);
    assert_eq!(json["routes"][0]["node"], "n1");
    assert_eq!(json["routes"][1]["node"], serde_json::Value::Null);
    assert_eq!(json["routes"][1]["destination"], "10.1.9.0/24");
    assert_eq!(json["routes"][1]["changes"][0]["kind"], "route");
    assert_eq!(json["problems"][0]["about"], "lb/7");
}

#[test]
fn the_verdict_is_the_worst_that_was_found() {
    let mut summary = Summary::default();
    let mut codes = vec![summary.verdict().exit_code()];
    summary.warnings = 1;
    codes.push(summary.verdict().exit_code());
    summary.blocked = 1;
    codes.push(summary.verdict().exit_code());
    summary.delete = 1;
    codes.push(summary.verdict().exit_code());
    summary.problems = 1;
    codes.push(summary.verdict().exit_code());
    assert_eq!(codes, [0, 0, 3, 2, 1]);
}

#[test]
fn nothing_to_do_is_one_line() {
    let mut plan = Plan::default();
    plan.service("a/b");
    assert_eq!(text::render(&plan), "Nothing to do: 1 Service and 0 nodes are as desired.\n");
    plan.service("a/b").warn("odd");
    assert!(text::render(&plan).ends_with(
        "\n\nPlan: 0 to create, 0 to change, 0 to delete; 1 warning. Read 1 Service and 0 nodes.\n"
    ));
}
