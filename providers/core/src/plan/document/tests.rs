#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

/// DigitalOcean's load balancers, as a provider of it describes them.
fn rules() -> Rules {
    Rules::default()
        .set("forwarding_rules", &["entry_protocol", "entry_port"])
        .set("droplet_ids", &[])
        .set("firewall.allow", &[])
        .defaults([
            ("forwarding_rules[].tls_passthrough", json!(false)),
            ("redirect_http_to_https", json!(false)),
            ("http_idle_timeout_seconds", json!(60)),
            ("firewall", json!({})),
            ("firewall.allow", json!([])),
            ("sticky_sessions", json!({"type": "none"})),
            ("health_check.proxy_protocol", json!(false)),
        ])
        .read_only(&["id", "status"])
}

fn rule(protocol: &str, entry: u16, target: u16) -> Value {
    json!({"entry_protocol": protocol, "entry_port": entry, "target_protocol": protocol, "target_port": target})
}

fn observed() -> Value {
    let mut tls = rule("https", 443, 30002);
    tls["certificate_id"] = json!("c-1");
    tls["tls_passthrough"] = json!(false);
    json!({
        "id": "4de7ac8b", "status": "active", "name": "web", "size_unit": 1,
        "project_id": "kept", "tls_cipher_policy": "STRONG",
        "forwarding_rules": [rule("tcp", 80, 30001), tls],
        "health_check": {"protocol": "http", "port": 10256, "path": "/healthz", "healthy_threshold": 5},
        "sticky_sessions": {"type": "none"},
        "droplet_ids": [3, 1, 2],
        "http_idle_timeout_seconds": 60,
        "firewall": {"deny": [], "allow": ["cidr:10.0.0.0/8", "ip:1.2.3.4"]},
    })
}

fn desired() -> Value {
    json!({
        "name": "web",
        "forwarding_rules": [
            {"entry_protocol": "https", "entry_port": 443, "target_protocol": "https", "target_port": 30002,
                "certificate_id": "c-1"},
            rule("tcp", 80, 30001)],
        "health_check": {"protocol": "http", "port": 10256, "path": "/healthz", "proxy_protocol": false},
        "sticky_sessions": null,
        "droplet_ids": [1, 2, 3],
        "redirect_http_to_https": false,
        "http_idle_timeout_seconds": null,
        "firewall": {"allow": ["ip:1.2.3.4", "cidr:10.0.0.0/8"]},
    })
}

fn edited(rules: &Rules, observed: &Value, desired: &Value) -> Option<Edit> {
    rules.edit(&Document::planned(observed), desired)
}

fn edit(change: impl FnOnce(&mut Value)) -> Edit {
    let mut desired = desired();
    change(&mut desired);
    let edit = edited(&rules(), &observed(), &desired).unwrap();
    assert_eq!(edited(&rules(), &edit.document, &desired), None, "one PUT is enough: {}", edit.document);
    for (field, value) in [("project_id", "kept"), ("tls_cipher_policy", "STRONG")] {
        assert_eq!(edit.document[field], value);
    }
    assert_eq!((edit.document.get("id"), edit.document.get("status")), (None, None));
    edit
}

#[test]
fn a_change_is_folded_once_and_reported_fields_stay() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Put;
    let change = |effect, body: Value| Change {
        operation: Put,
        effect,
        title: "load balancer web".to_owned(),
        body,
    };
    let mut document = None;
    let fold = |change: &Change<Put>, reply: Option<Value>, document: &mut Option<Document>| {
        let reply = reply.map(|reply| Document::planned(&reply));
        rules().shown(&["region"]).fold(change, reply.as_ref(), document);
        document.as_ref().map(|document| document.fields().clone())
    };
    let create = change(Effect::Create, json!({"name": "web", "region": "nyc3"}));
    assert_eq!(fold(&create, None, &mut document), Some(create.body.clone()));
    let read = json!({"id": "1", "status": "new", "name": "web", "region": {"slug": "nyc3"}});
    assert_eq!(fold(&create, Some(read.clone()), &mut document), Some(read.clone()));
    let update = change(Effect::Change, json!({"name": "www", "region": "nyc3"}));
    let mut renamed = read;
    renamed["name"] = json!("www");
    assert_eq!(fold(&update, None, &mut document), Some(renamed.clone()));
    renamed["status"] = json!("active");
    let reply = Some(renamed.clone());
    assert_eq!(fold(&update, reply, &mut document), Some(renamed));
    assert_eq!(fold(&change(Effect::Delete, Value::Null), None, &mut document), None);
    assert!(serde_json::from_value::<Document>(json!({"name": "web"})).is_err());
}

#[test]
fn order_and_defaults_are_no_difference() {
    assert_eq!(edited(&rules(), &observed(), &desired()), None);
}

#[test]
fn each_difference_is_named_and_other_fields_stay() {
    let edit = edit(|want| want["forwarding_rules"][0]["target_port"] = json!(30003));
    assert_eq!(edit.changes, ["forwarding_rules[1].target_port 30002 -> 30003"]);
    let mut expected = observed();
    expected["forwarding_rules"][1]["target_port"] = json!(30003);
    let fields = expected.as_object_mut().unwrap();
    fields.remove("id");
    fields.remove("status");
    assert_eq!(edit.document, expected);
}

#[test]
fn elements_of_sets_come_and_go() {
    let edit = edit(|want| {
        want["droplet_ids"] = json!([2, 4, 3]);
        want["forwarding_rules"] = json!([rule("tcp", 80, 30001), rule("udp", 53, 30053)]);
    });
    assert_eq!(edit.document["droplet_ids"], json!([3, 2, 4]));
    assert_eq!(edit.changes.len(), 4, "{:?}", edit.changes);
    assert_eq!(edit.changes[..2], ["droplet_ids added: 4", "droplet_ids removed: 1"]);
    assert!(edit.changes[2].starts_with("forwarding_rules added: {"), "{:?}", edit.changes);
}

#[test]
fn a_field_is_unset_again() {
    let mut observed = observed();
    observed["http_idle_timeout_seconds"] = json!(90);
    let edit = edited(&rules(), &observed, &desired()).unwrap();
    assert_eq!(edit.changes, ["http_idle_timeout_seconds 90 -> 60"]);
    assert_eq!(edit.document.get("http_idle_timeout_seconds"), None);
}

#[test]
fn fields_that_are_missing_are_added() {
    let edit = edit(|want| {
        want["health_check"]["unhealthy_threshold"] = json!(3);
        want["tags"] = json!(["k8s:c"]);
    });
    assert_eq!(
        edit.changes,
        [
            "health_check.unhealthy_threshold not set -> 3",
            "tags not set -> [\"k8s:c\"]"
        ]
    );
    assert_eq!(edit.document["health_check"]["healthy_threshold"], 5);
}

#[test]
fn lists_keep_their_order_and_a_set_has_each_element_once() {
    let rules = Rules::default().set("ids", &[]);
    let edit = |have: Value, want: Value| edited(&rules, &have, &want);
    assert_eq!(edit(json!({"ids": [1, 2]}), json!({"ids": [2, 2, 1]})), None);
    let doubled = edit(json!({"ids": [1, 1, 2]}), json!({"ids": [1, 2]})).unwrap();
    assert_eq!(doubled.document, json!({"ids": [1, 2]}));
    let swapped = edit(json!({"list": [1, 2, 3]}), json!({"list": [2, 1]})).unwrap();
    assert_eq!(swapped.document, json!({"list": [2, 1]}));
    assert_eq!(swapped.changes, ["list[0] 1 -> 2", "list[1] 2 -> 1", "list[2] removed: 3"]);
}
