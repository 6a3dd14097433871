use ccm_core::load_balancer::ServiceType;

use super::*;

/// A provider without finalizers of its own.
const NONE: ProviderFinalizers = ProviderFinalizers {
    needed: &[],
    all: &[],
};

fn view(change: impl FnOnce(&mut ServiceView)) -> ServiceView {
    let mut view = ServiceView {
        service_type: ServiceType::LoadBalancer,
        finalizers: vec!["example.com/first".into(), ServiceView::FINALIZER.into()],
        ingress: vec![ip("192.0.2.1")],
        ..ServiceView::default()
    };
    view.id.uid = "u1".into();
    change(&mut view);
    view
}

fn ip(address: &str) -> Ingress {
    Ingress {
        ip: Some(address.into()),
        ..Ingress::default()
    }
}

fn effects(ingress: Vec<Ingress>) -> Effects {
    Effects {
        ingress: Some(ingress),
        ..Effects::default()
    }
}

fn proxied() -> Ingress {
    Ingress {
        ip_mode: Some(IpMode::Proxy),
        ..ip("192.0.2.1")
    }
}

fn at() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

#[test]
fn the_finalizer_comes_before_anything_is_known() {
    let new = view(|view| view.finalizers.truncate(1));
    let change = ServiceAction::of(&new, NONE, None);
    assert_eq!(change.add_finalizers, [ServiceView::FINALIZER]);
    assert_eq!(
        change.patch(&new, at()),
        json!({"metadata": {
            "uid": "u1",
            "finalizers": [ServiceView::FINALIZER],
            "$setElementOrder/finalizers": ["example.com/first", ServiceView::FINALIZER],
        }})
    );
    assert!(ServiceAction::of(&view(|_| {}), NONE, None).is_empty());
    assert!(ServiceAction::of(&view(|view| view.deleting = true), NONE, None).is_empty());
}

#[test]
fn finalizers_of_the_provider_come_and_go_with_ours() {
    const OUTER: ProviderFinalizers = ProviderFinalizers {
        needed: &["example.com/outer"],
        all: &["example.com/inner", "example.com/outer"],
    };
    let with = |finalizers: &[&str], change: fn(&mut ServiceView)| {
        view(|view| {
            view.finalizers = finalizers.iter().map(|name| (*name).into()).collect();
            change(view);
        })
    };
    let nothing = Effects::default();
    let ours = ServiceView::FINALIZER;
    let new = with(&["other"], |_| {});
    let change = ServiceAction::of(&new, OUTER, None);
    assert_eq!(
        change.patch(&new, at())["metadata"],
        json!({
            "uid": "u1",
            "finalizers": [ours, "example.com/outer"],
            "$setElementOrder/finalizers": ["other", ours, "example.com/outer"],
        })
    );
    // It needed the other one before: that one is removed when the Service is served as it is now.
    let changed = with(&["example.com/inner", ours], |_| {});
    let early = ServiceAction::of(&changed, OUTER, None);
    assert_eq!(early.add_finalizers, ["example.com/outer"]);
    assert!(early.remove_finalizers.is_empty());
    let late = ServiceAction::of(&changed, OUTER, Some(&nothing));
    assert_eq!(
        late.patch(&changed, at())["metadata"],
        json!({
            "uid": "u1",
            "finalizers": ["example.com/outer"],
            "$setElementOrder/finalizers": [ours, "example.com/outer"],
            "$deleteFromPrimitiveList/finalizers": ["example.com/inner"],
        })
    );
    let served = with(&[ours, "example.com/outer"], |_| {});
    assert!(ServiceAction::of(&served, OUTER, Some(&nothing)).is_empty());
    // Without any of them left behind, whichever it has.
    for (has, removed) in [
        (
            &["example.com/inner", "other", ours, "example.com/outer"][..],
            &[ours, "example.com/inner", "example.com/outer"][..],
        ),
        (&["example.com/inner"], &["example.com/inner"]),
        (&["other"], &[]),
    ] {
        let leaving = with(has, |view| view.deleting = true);
        let early = ServiceAction::due(&leaving, Claim::Ours, OUTER, None);
        assert!(early.is_empty(), "{has:?}");
        for claim in [Claim::Ours, Claim::Elsewhere] {
            let change = ServiceAction::due(&leaving, claim, OUTER, Some(&nothing));
            assert_eq!(change.remove_finalizers, removed, "{has:?}");
            assert!(change.add_finalizers.is_empty());
        }
        assert!(ServiceAction::due(&leaving, Claim::NotOurs, OUTER, Some(&nothing)).is_empty());
    }
}

#[test]
fn the_address_of_a_service_that_was_never_ours_stays() {
    let other = view(|view| {
        view.service_type = ServiceType::ClusterIp;
        view.finalizers.clear();
    });
    assert!(ServiceAction::of(&other, NONE, Some(&Effects::default())).is_empty());
}

#[test]
fn the_finalizer_goes_with_all_that_stood_for_the_load_balancer() {
    let mut removed = effects(vec![ip("192.0.2.1")]);
    removed.annotations.insert("id".to_owned(), None);
    for wanting_none in [
        view(|view| view.deleting = true),
        view(|view| view.service_type = ServiceType::ClusterIp),
    ] {
        let view = ServiceView {
            annotations: [("id", "7"), ("other", "x")].into_iter().collect(),
            ..wanting_none
        };
        let change = ServiceAction::of(&view, NONE, Some(&removed));
        assert_eq!(
            change.patch(&view, at()),
            json!({
                "metadata": {
                    "uid": "u1",
                    "$deleteFromPrimitiveList/finalizers": [ServiceView::FINALIZER],
                    "annotations": {"id": null},
                },
                "status": {"loadBalancer": {"ingress": null}},
            })
        );
    }
}

#[test]
fn a_plan_shows_the_mode_of_an_address() {
    let change = ServiceAction::of(&view(|_| {}), NONE, Some(&effects(vec![proxied(), ip("192.0.2.2")])));
    assert_eq!(change.to_string(), "write to the Service: 192.0.2.1 (Proxy), 192.0.2.2 in the status");
}

#[test]
fn an_address_is_written_only_if_it_differs_for_the_api_server() {
    let vip = Ingress {
        ip_mode: Some(IpMode::Vip),
        ..ip("192.0.2.1")
    };
    let host = Ingress {
        hostname: Some("web.example.com".into()),
        ..Ingress::default()
    };
    for (what, have, want, same) in [
        ("both empty", vec![], vec![], true),
        ("same ip", vec![ip("192.0.2.1")], vec![ip("192.0.2.1")], true),
        ("another ip", vec![ip("192.0.2.1")], vec![ip("192.0.2.2")], false),
        ("the default of ipMode", vec![vip.clone()], vec![ip("192.0.2.1")], true),
        ("another ipMode", vec![vip], vec![proxied()], false),
        ("ipMode set where none was", vec![ip("192.0.2.1")], vec![proxied()], false),
        ("wiped", vec![], vec![ip("192.0.2.1")], false),
        ("host name", vec![host.clone()], vec![host.clone()], true),
        ("host name for ip", vec![ip("192.0.2.1")], vec![host], false),
        ("one more", vec![ip("192.0.2.1")], vec![ip("192.0.2.1"), ip("192.0.2.2")], false),
    ] {
        let change = ServiceAction::of(&view(|view| view.ingress = have), NONE, Some(&effects(want)));
        assert_eq!(change.is_empty(), same, "{what}: {change:?}");
    }
    let unknown = ServiceAction::of(&view(|_| {}), NONE, Some(&Effects::default()));
    assert!(unknown.is_empty(), "unknown content is not removed");
    let change = ServiceAction::of(&view(|_| {}), NONE, Some(&effects(vec![proxied()])));
    assert_eq!(
        change.patch(&view(|_| {}), at())["status"],
        json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "Proxy"}]}})
    );
}

#[test]
fn a_condition_keeps_its_time_while_its_status_stays() {
    let condition = |reason: &str| Condition {
        kind: "Ready".into(),
        is_true: true,
        reason: reason.into(),
        message: "".into(),
    };
    let mut effects = Effects::default();
    effects.conditions.insert("Ready".to_owned(), condition("New"));
    let before = view(|_| {});
    let first = ServiceAction::of(&before, NONE, Some(&effects)).patch(&before, at());
    assert_eq!(first["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    let later = view(|view| view.conditions = vec![condition("Old")]);
    let second = ServiceAction::of(&later, NONE, Some(&effects)).patch(&later, at());
    assert_eq!(second["status"]["conditions"][0].get("lastTransitionTime"), None);
    let same = view(|view| view.conditions = vec![condition("New")]);
    assert!(ServiceAction::of(&same, NONE, Some(&effects)).is_empty());
}

#[test]
fn what_another_component_serves_loses_our_finalizer_when_it_goes_and_nothing_else() {
    let ingress = |view: &mut ServiceView| {
        view.ingress = vec![Ingress {
            ip: Some("192.0.2.1".into()),
            ..Ingress::default()
        }];
    };
    let served = view(|view| {
        ingress(view);
        view.finalizers = vec![ServiceView::FINALIZER.into()];
    });
    let leaving = ServiceView {
        deleting: true,
        ..served.clone()
    };
    let without_ours = ServiceView {
        finalizers: Vec::new(),
        ..leaving.clone()
    };
    for claim in [Claim::Elsewhere, Claim::NotOurs] {
        assert!(ServiceAction::due(&served, claim, NONE, None).is_empty());
        assert!(ServiceAction::due(&without_ours, claim, NONE, None).is_empty());
    }
    assert!(ServiceAction::due(&leaving, Claim::NotOurs, NONE, None).is_empty());
    let change = ServiceAction::due(&leaving, Claim::Elsewhere, NONE, None);
    assert_eq!(
        change.patch(&leaving, at()),
        json!({
            "metadata": {
                "uid": *leaving.id.uid,
                "$deleteFromPrimitiveList/finalizers": [ServiceView::FINALIZER],
            },
            "status": {"loadBalancer": {"ingress": null}},
        })
    );
}

#[test]
fn our_own_annotations_are_known_when_they_come_back() {
    let annotated = |pairs: &[(&str, &str)]| {
        view(|view| view.annotations = pairs.iter().map(|(key, value)| (*key, *value)).collect())
    };
    let mut effects = Effects::default();
    effects.annotations.insert("id".to_owned(), Some("7".to_owned()));
    effects.annotations.insert("old".to_owned(), None);
    let old = annotated(&[("old", "1"), ("a", "b")]);
    for (new, own) in [
        ([("id", "7"), ("a", "b")], true),
        ([("id", "8"), ("a", "b")], false),
        ([("id", "7"), ("a", "c")], false),
    ] {
        assert_eq!(is_own_writing(&old, &annotated(&new), &effects), own, "{new:?}");
    }
}
