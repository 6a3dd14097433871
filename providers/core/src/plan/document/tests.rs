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
    let change = |effect, body: Value| DocumentChange {
        operation: Put,
        effect,
        title: "load balancer web".to_owned(),
        body,
    };
    let mut document = None;
    let fold = |change: &DocumentChange<Put>, reply: Option<Value>, document: &mut Option<Document>| {
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
    // Also if the set does not exist yet: a second write would remove the surplus element.
    let added = edit(json!({}), json!({"ids": [2, 2, 1]})).unwrap();
    assert_eq!(added.document, json!({"ids": [2, 1]}));
    let swapped = edit(json!({"list": [1, 2, 3]}), json!({"list": [2, 1]})).unwrap();
    assert_eq!(swapped.document, json!({"list": [2, 1]}));
    assert_eq!(swapped.changes, ["list[0] 1 -> 2", "list[1] 2 -> 1", "list[2] removed: 3"]);
}

/// A document with many writers: Azure's load balancer, which all Services of a cluster share with other clients.
mod shared {
    use proptest::prelude::*;

    use super::*;

    /// The rules of this cluster begin with it.
    const OURS: &str = "uid1-";

    fn rules() -> Rules {
        Rules::default()
            .set("properties.rules", &["name"])
            .set("properties.pools", &["properties.zone", "name"])
            .set("tags", &[])
            .defaults([("properties.rules[].properties.idle_minutes", json!(4))])
            .keep(&["properties.rules[].properties.priority"])
            .any_case(&[
                "properties.rules[].properties.frontend.id",
                "properties.pools[].properties.zone",
            ])
            .read_only(&["etag", "properties.state", "properties.rules[].etag"])
            .empty_is_missing()
    }

    fn rule(name: &str, port: u16) -> Value {
        json!({"name": name, "properties": {"port": port, "priority": 500, "frontend": {"id": "/lb/frontEnds/A"}}})
    }

    fn observed() -> Value {
        let mut ours = rule("uid1-80", 80);
        ours["etag"] = json!("W/1");
        ours["properties"]["priority"] = json!(730);
        ours["properties"]["idle_minutes"] = json!(4);
        ours["properties"]["new_in_2027"] = json!({"a": 1});
        json!({
            "name": "kubernetes", "etag": "W/7", "location": "westeurope",
            "properties": {
                "state": "Succeeded",
                "rules": [rule("by-hand", 22), ours, rule("uid1-81", 81), rule("uid2-80", 9)],
                "pools": [{"name": "p", "properties": {"zone": "West-1", "size": 3}}],
            },
        })
    }

    fn desired() -> Value {
        json!({"properties": {
            "rules": [
                {"name": "uid1-80", "properties":
                    {"port": 80, "priority": 501, "frontend": {"id": "/LB/frontends/a"}, "probes": []}},
                rule("uid1-81", 81),
            ],
            "pools": [{"name": "p", "properties": {"zone": "west-1"}}],
            "outbound": [],
        }})
    }

    fn edit(observed: &Value, desired: &Value) -> Option<Edit> {
        rules().edit_owned(&Document::planned(observed), desired, |path, element| match path {
            "properties.rules" => element["name"].as_str().unwrap().starts_with(OURS),
            _ => true,
        })
    }

    #[test]
    fn case_kept_values_defaults_and_empty_lists_are_no_difference() {
        assert_eq!(edit(&observed(), &desired()), None);
    }

    #[test]
    fn elements_of_others_stay_in_their_places() {
        let mut desired = desired();
        desired["properties"]["rules"] = json!([rule("uid1-82", 82), rule("uid1-80", 443)]);
        let edit = edit(&observed(), &desired).unwrap();
        assert_eq!(edit.changes.len(), 3, "{:?}", edit.changes);
        assert_eq!(edit.changes[0], "properties.rules[1].properties.port 80 -> 443");
        let rules = edit.document["properties"]["rules"].as_array().unwrap();
        let names: Vec<_> = rules.iter().map(|rule| rule["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["by-hand", "uid1-80", "uid2-80", "uid1-82"]);
        assert_eq!(rules[0], rule("by-hand", 22));
        assert_eq!(rules[1]["properties"]["priority"], 730);
        assert_eq!(rules[1]["properties"]["new_in_2027"], json!({"a": 1}));
        assert_eq!(rules[3]["properties"]["priority"], 500);
    }

    #[test]
    fn a_set_that_is_unset_keeps_the_elements_of_others() {
        for rules in [Value::Null, json!([])] {
            let edit = edit(&observed(), &json!({"properties": {"rules": rules}})).unwrap();
            let left = json!([rule("by-hand", 22), rule("uid2-80", 9)]);
            assert_eq!(edit.document["properties"]["rules"], left);
        }
        let unset = edit(&observed(), &json!({"properties": {"pools": null}})).unwrap();
        assert_eq!(unset.document["properties"].get("pools"), None);
    }

    #[test]
    fn read_only_fields_are_reported_at_every_depth_and_never_written() {
        let mut desired = desired();
        desired["properties"]["rules"] = json!([rule("uid1-81", 8081), rule("uid1-80", 80)]);
        let before = Document::planned(&observed());
        let edit = edit(&observed(), &desired).unwrap();
        assert!(!edit.document.to_string().contains("W/"), "{}", edit.document);
        let mut expected = observed();
        expected["properties"]["rules"][2]["properties"]["port"] = json!(8081);
        assert_eq!(rules().after(&before, &edit.document, None).fields(), &expected);
        let mut reply = expected.clone();
        (reply["etag"], reply["properties"]["rules"][1]["etag"]) = (json!("W/8"), json!("W/8"));
        // The cloud may answer in another order.
        reply["properties"]["rules"].as_array_mut().unwrap().reverse();
        let after = rules().after(&before, &edit.document, Some(&Document::planned(&reply)));
        assert_eq!((&after.fields()["etag"], after.text("name")), (&json!("W/8"), "kubernetes"));
        let rules = &after.fields()["properties"]["rules"];
        assert_eq!((&rules[1]["etag"], rules[2].get("etag")), (&json!("W/8"), None));
    }

    /// Any JSON value, also one with the names that the rules know.
    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u16>().prop_map(Value::from),
            "[aA]{0,2}".prop_map(Value::from),
        ];
        let names = prop::sample::select(vec![
            "name",
            "etag",
            "properties",
            "rules",
            "pools",
            "tags",
            "state",
            "x",
        ]);
        leaf.prop_recursive(5, 40, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(names.clone(), inner, 0..4).prop_map(|fields| fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect()),
            ]
        })
    }

    /// The value without the fields that the cloud alone sets.
    fn without_read_only(mut document: Value) -> Value {
        if let Some(fields) = document.as_object_mut() {
            fields.remove("etag");
        }
        if let Some(properties) = document.get_mut("properties").and_then(Value::as_object_mut) {
            properties.remove("state");
            for rule in properties.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(fields) = rule.as_object_mut() {
                    fields.remove("etag");
                }
            }
        }
        document
    }

    proptest! {
        #[test]
        fn what_was_read_is_written_back_without_its_read_only_fields(read in any_value()) {
            let document = Document::planned(&read);
            prop_assert_eq!(rules().writable(&document), without_read_only(read));
        }

        #[test]
        fn one_write_is_enough_and_the_elements_of_others_stay(read in any_value(), wanted in any_value()) {
            let owns = |_: &str, element: &Value| element.get("x").is_none();
            let before = Document::planned(&read);
            let Some(edit) = rules().edit_owned(&before, &wanted, owns) else { return Ok(()) };
            let after = rules().after(&before, &edit.document, None);
            let again = rules().edit_owned(&after, &wanted, owns);
            // A desired value for a read-only field can never be written.
            let is_writable = without_read_only(wanted.clone()) == wanted;
            prop_assert!(!is_writable || again.is_none(), "{} then {:?}", edit.document, again);
        }
    }
}
