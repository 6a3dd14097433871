#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;

fn change(effect: EffectOf, kind: Kind, what: &str, why: &str) -> Change {
    Change {
        effect,
        kind,
        what: what.to_owned(),
        why: why.to_owned(),
        part: (kind == Kind::Cloud).then(|| "lb/1".to_owned()),
    }
}

/// One of everything.
fn full() -> Review {
    let mut review = Review::default();
    let web = review.services.entry("shop/web".to_owned()).or_default();
    web.changes.push(change(
        EffectOf::Create,
        Kind::Cloud,
        "create listener TCP/80",
        "",
    ));
    web.changes.push(change(
        EffectOf::Change,
        Kind::Cloud,
        "change pool",
        "method a -> b",
    ));
    web.block(Blocked {
        what: "the wood is pine".to_owned(),
        field: Some("wood".to_owned()),
        have: Some("pine".to_owned()),
        want: Some("oak".to_owned()),
    });
    for _ in 0..2 {
        web.warn("pink is taken for grey".to_owned());
    }
    review.services.entry("shop/quiet".to_owned()).or_default();
    let shared = review.shared.entry("node-ports".to_owned()).or_default();
    shared.services = ["shop/web".to_owned(), "shop/quiet".to_owned()].into();
    shared
        .subject
        .changes
        .push(change(EffectOf::Change, Kind::Cloud, "open the ports", ""));
    let stray = review.shared.entry("load balancer old".to_owned()).or_default();
    stray.subject.changes.push(change(
        EffectOf::Delete,
        Kind::Cloud,
        "delete load balancer old",
        "",
    ));
    review
        .node("n2")
        .change(EffectOf::Change, Kind::Initialize, "provider ID x".to_owned(), "");
    review
        .node("n1")
        .change(EffectOf::Change, Kind::Initialize, "provider ID y".to_owned(), "");
    review.node("n1").block(Blocked::because("its zone differs"));
    review.node("n3");
    let lost = review.route("10.1.9.0/24".parse().unwrap(), None);
    lost.changes.push(change(
        EffectOf::Delete,
        Kind::Route,
        "delete route 10.1.9.0/24 via h",
        "lost",
    ));
    lost.block(Blocked::because("the road is long"));
    let first = review.route("10.1.1.0/24".parse().unwrap(), Some("n1"));
    first.warn("mind the gap".to_owned());
    review.route("10.1.2.0/24".parse().unwrap(), Some("n2"));
    review
        .node("n2")
        .change(EffectOf::Change, Kind::Network, "no network".to_owned(), "");
    review.problem("lb/7", "Nova is down");
    review
}

#[test]
fn a_review_reads_like_one() {
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

    Nodes to initialise: 2
      ~ n1: provider ID y
      ~ n2: provider ID x

    Nodes with another condition NetworkUnavailable: 1
      ~ n2: no network

    Nodes left as they are: 1
      ! n1: its zone differs

    Routes: 2
      * route 10.1.1.0/24 (node n1): mind the gap
      - delete route 10.1.9.0/24 via h (lost)
      ! route 10.1.9.0/24: the road is long

    Could not be found out
      ? lb/7: Nova is down

    Plan (not complete): 1 to create, 5 to change, 2 to delete; 3 blocked, 1 not found out, 2 warnings. Looked at 2 Services and 3 nodes.
    ");
}

#[test]
fn programs_find_the_same_under_names_that_stay() {
    let text = json::render(&full(), "fake").unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["verdict"], "incomplete");
    assert_eq!(json["summary"]["blocked"], 3);
    assert_eq!(
        json["services"].as_array().unwrap().len(),
        1,
        "what is quiet is left out"
    );
    let change = &json["services"][0]["changes"][1];
    assert_eq!(
        change,
        &serde_json::json!({
            "effect": "change", "kind": "cloud", "what": "change pool", "why": "method a -> b", "part": "lb/1",
        })
    );
    assert_eq!(
        json["parts"][1]["services"],
        serde_json::json!(["shop/quiet", "shop/web"])
    );
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
fn nothing_to_do_is_said_in_one_line() {
    let mut review = Review::default();
    review.services.entry("a/b".to_owned()).or_default();
    assert_eq!(
        text::render(&review),
        "Nothing to do: 1 Service and 0 nodes are as they should be.\n"
    );
    review
        .services
        .entry("a/b".to_owned())
        .or_default()
        .warn("odd".to_owned());
    assert!(text::render(&review).ends_with(
        "\n\nPlan: 0 to create, 0 to change, 0 to delete; 1 warning. Looked at 1 Service and 0 nodes.\n"
    ));
}
