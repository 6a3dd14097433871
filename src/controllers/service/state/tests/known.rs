//! Which Services passes know, and whose they are.

use super::*;

#[test]
fn passes_do_not_know_of_a_service_before_it_has_its_finalizer() {
    let mut fixture = Fixture::new();
    let outputs = fixture.change(&view("a", |view| view.finalizers.clear()));
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert!(fixture.state.snapshot().services.is_empty());
    assert_eq!(fixture.discover(), [""; 0]);
    fixture.change(&view("a", |_| {}));
    assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
    assert_eq!(fixture.take("lb/a").unwrap().snapshot.services.len(), 1);
}

#[test]
fn passes_do_not_know_of_a_service_before_it_has_the_finalizers_of_the_provider() {
    let mut fixture = Fixture::new();
    fixture.finalizers = ProviderFinalizers {
        needed: &["example.com/own"],
        all: &["example.com/own"],
    };
    let outputs = fixture.change(&view("a", |_| {}));
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert!(fixture.state.snapshot().services.is_empty());
    fixture.change(&view("a", |view| view.finalizers.push("example.com/own".into())));
    assert_eq!(fixture.state.snapshot().services.len(), 1);
    assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
}

#[test]
fn a_service_without_parts_is_finished() {
    let discover = |fixture: &mut Fixture| {
        let task = fixture.task();
        let services = task.snapshot.services.iter().map(|view| ServiceParts {
            service: view.id.clone(),
            claim: Claim::Ours,
            joins: Vec::new(),
            leaves: Vec::new(),
            selects_by_labels: false,
            former: None,
        });
        let discover = Discovery {
            services: services.map(Arc::new).collect(),
            ..Discovery::default()
        };
        fixture.state.discovery_ended(&task, Ok(discover), fixture.now)
    };
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    let outputs = discover(&mut fixture);
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert!(fixture.record("a").is_served());
    assert_eq!(fixture.effects("a"), &Effects::default());
    assert_eq!(fixture.state.due(false), None);
    // The status that was desired is forgotten: another controller writes it now.
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.change(&view("a", |view| view.external_ips = vec!["192.0.2.1".into()]));
    discover(&mut fixture);
    assert!(fixture.record("a").is_served());
    assert_eq!(fixture.effects("a"), &Effects::default());
    fixture.change(&view("a", |view| view.deleting = true));
    let outputs = discover(&mut fixture);
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert!(fixture.record("a").is_served());
}

#[test]
fn a_service_that_lost_its_finalizer_stays_known() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    let outputs = fixture.change(&view("a", |view| view.finalizers.clear()));
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert_eq!(fixture.state.snapshot().services.len(), 1);
}

#[test]
fn a_service_of_another_controller_causes_no_discovery() {
    let mut fixture = Fixture::new();
    let changed = view("a", |view| {
        view.finalizers.clear();
        view.ports[0].port = 2;
    });
    let first = view("a", |view| view.finalizers.clear());
    for view in [first, Arc::clone(&changed)] {
        fixture.change_of(&view, Claim::NotOurs);
        assert!(fixture.state.discovery.is_none());
    }
    let changed = view("a", |view| view.ports[0].port = 2);
    for claim in [Claim::Ours, Claim::Elsewhere] {
        fixture.change_of(&changed, claim);
        assert!(fixture.state.discovery.take().is_some(), "{claim:?}");
    }
}

/// A discovery that finds this former load balancer of every Service. Returns the outputs as texts.
fn discover_former(fixture: &mut Fixture, former: &FormerLoadBalancer) -> Vec<String> {
    let task = fixture.task();
    let services = task.snapshot.services.iter().map(|view| ServiceParts {
        service: view.id.clone(),
        claim: Claim::NotOurs,
        joins: Vec::new(),
        leaves: Vec::new(),
        selects_by_labels: false,
        former: Some(former.clone()),
    });
    let discovery = Discovery {
        services: services.map(Arc::new).collect(),
        ..Discovery::default()
    };
    let outputs = fixture.state.discovery_ended(&task, Ok(discovery), fixture.now);
    let texts = outputs.iter().map(|output| match output {
        Output::Object(_) => "object".to_owned(),
        Output::CleanUp(_) => "clean up".to_owned(),
        Output::Event(event) => event.reason.to_owned(),
        other => format!("{other:?}"),
    });
    texts.collect()
}

#[test]
fn the_former_load_balancer_of_a_service_of_another_controller_is_discovered() {
    let ours = FormerLoadBalancer::Ours("load balancer a".to_owned());
    let unproven = FormerLoadBalancer::Unproven {
        what: "load balancer a".to_owned(),
        why: "it has no ownership tag of this cluster".to_owned(),
    };
    let exists = view("a", |view| view.class = Some("other".into()));
    let deleting = view("a", |view| {
        view.class = Some("other".into());
        view.deleting = true;
    });
    let mut fixture = Fixture::new();
    fixture.change_of(&exists, Claim::NotOurs);
    let ask = fixture.state.discovery.unwrap().ask();
    assert_eq!(ask.freshness, Freshness::AtMost(REMEMBERED));
    // While the Service exists, only one that is certainly left is reported, once.
    assert_eq!(discover_former(&mut fixture, &unproven), ["object"]);
    assert_eq!(discover_former(&mut fixture, &ours), ["FormerLoadBalancerExists"]);
    assert_eq!(discover_former(&mut fixture, &ours), [""; 0]);
    assert!(fixture.state.is_former_known(&exists));
    // A change of the status changes nothing.
    let address = view("a", |view| {
        view.class = Some("other".into());
        view.ingress = vec![Ingress::name("other")];
    });
    fixture.change_of(&address, Claim::NotOurs);
    assert!(fixture.state.discovery.is_none());
    // A discovery that began before the deletion decides nothing.
    let old = fixture.task();
    fixture.change_of(&deleting, Claim::NotOurs);
    assert!(!fixture.state.is_former_known(&deleting));
    fixture.state.discovery_ended(&old, Ok(Discovery::default()), fixture.now);
    assert_eq!(discover_former(&mut fixture, &unproven), ["object", "LoadBalancerNotDeleted"]);
    assert_eq!(discover_former(&mut fixture, &unproven), [""; 0]);
    assert!(fixture.state.may_lose_finalizer(&deleting));
    // A worker may write the object before the Service counts as ours.
    assert_eq!(discover_former(&mut fixture, &ours), ["clean up"]);
    assert!(fixture.state.is_former_known(&deleting) && !fixture.state.may_lose_finalizer(&deleting));
}

#[test]
fn a_finalizer_that_another_controller_does_not_remove_is_reported_after_a_minute() {
    let mut fixture = Fixture::new();
    let deleting = view("a", |view| {
        view.class = Some("other".into());
        view.deleting = true;
    });
    fixture.change_of(&deleting, Claim::NotOurs);
    let missing = FormerLoadBalancer::Missing;
    assert_eq!(discover_former(&mut fixture, &missing), ["object"]);
    let due = fixture.now + Duration::from_secs(60);
    assert_eq!(fixture.state.due(false), Some(due));
    fixture.tick(60);
    assert_eq!(discover_former(&mut fixture, &missing), ["FinalizerNotRemoved"]);
    assert_eq!(fixture.state.due(false), None);
    fixture.tick(600);
    assert_eq!(discover_former(&mut fixture, &missing), [""; 0]);
}

#[test]
fn a_service_that_was_another_controllers_gets_our_finalizer_before_passes_know_of_it() {
    let mut fixture = Fixture::new();
    let new = view("a", |view| view.finalizers.clear());
    fixture.change_of(&new, Claim::NotOurs);
    fixture.change_of(&new, Claim::Ours);
    assert_eq!(fixture.state.snapshot().services.len(), 0);
}

#[test]
fn another_one_under_the_same_name_is_served() {
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    fixture.discover();
    fixture.change(&view("a", |view| view.id.uid = "another".into()));
    assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
    assert!(!fixture.record("a").is_served());
}
