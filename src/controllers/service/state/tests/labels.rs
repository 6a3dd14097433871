//! Changed labels of nodes.

use super::*;

#[test]
fn only_services_that_select_nodes_by_labels_follow_changed_labels() {
    let mut fixture = Fixture::new();
    fixture.node("n1");
    fixture.served("a");
    fixture.label("n1", "fast");
    fixture.tick(2);
    let outputs = fixture.state.take_due(fixture.now);
    assert!(outputs.is_empty(), "{outputs:?}");
    assert!(fixture.state.take_discovery(fixture.now).is_none());
    // Nor with a part that fails, and so does not follow earlier changes.
    fixture.node("n0");
    fixture.tick(2);
    fixture.follow();
    fixture.discover();
    let task = fixture.take("lb/a").unwrap();
    fixture.conclude(&task, &failed("lb/a", &["a"]));
    fixture.run(SHARED, &["a"]);
    fixture.label("n1", "faster");
    fixture.tick(2);
    let outputs = fixture.state.take_due(fixture.now);
    assert!(outputs.is_empty(), "{outputs:?}");
    fixture.run("lb/a", &["a"]);

    fixture.change(&view("b", |view| {
        view.annotations = [(SELECTS, "")].into_iter().collect();
    }));
    fixture.discover();
    fixture.run("lb/b", &["b"]);
    fixture.run(SHARED, &["a", "b"]);
    fixture.label("n1", "slow");
    fixture.tick(2);
    assert_eq!(fixture.follow(), [SHARED, "lb/b"]);
    fixture.run("lb/b", &["b"]);
    let outputs = fixture.run(SHARED, &["a", "b"]);
    let followed = |output: &Output| matches!(output, Output::NodesFollowed(_));
    assert!(outputs.iter().any(followed), "{outputs:?}");
    // What is not a label concerns all.
    fixture.node("n2");
    fixture.tick(2);
    assert_eq!(fixture.follow(), [SHARED, "lb/a", "lb/b"]);
}

/// The time is printed, not compared: `-- --nocapture`.
#[test]
#[allow(clippy::print_stderr, reason = "a person reads the time")]
fn a_label_of_one_of_5000_nodes_begins_nothing_for_1000_services() {
    const NODES: usize = 5_000;
    const SERVICES: usize = 1_000;
    let mut fixture = Fixture::new();
    for number in 0..NODES {
        fixture.node(&format!("n{number}"));
    }
    let names: Vec<String> = (0..SERVICES).map(|number| format!("s{number}")).collect();
    for name in &names {
        fixture.change(&view(name, |_| {}));
    }
    fixture.discover();
    for name in &names {
        fixture.run(&format!("lb/{name}"), &[name]);
    }
    fixture.run(SHARED, &names.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(names.iter().all(|name| fixture.record(name).is_served()));

    let began = std::time::Instant::now();
    fixture.label("n17", "fast");
    fixture.tick(2);
    let outputs = fixture.state.take_due(fixture.now);
    let is_discovered = fixture.state.take_discovery(fixture.now).is_some();
    eprintln!("one label of {NODES} nodes with {SERVICES} Services: {:?}", began.elapsed());
    assert!(outputs.is_empty(), "{outputs:?}");
    assert!(!is_discovered);
    // The snapshot of the next pass has the label.
    let snapshot = fixture.state.snapshot();
    let node = snapshot.cluster.nodes.all().iter().find(|node| &*node.view.name == "n17").unwrap();
    assert_eq!(node.view.labels.get("disk"), Some("fast"));
}
