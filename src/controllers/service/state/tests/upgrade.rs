//! A rolling upgrade of all nodes, second by second.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::controllers::node_object::AUTOSCALER_TAINT;

const NODES: usize = 200;
const SERVICES: usize = 50;
/// Time between the join of a new node and the drain of the old one, and between that and the end of its instance.
const SURGE: u64 = 5;
const DRAIN: u64 = 15;
/// The node lifecycle controller deletes a node whose kubelet has been silent for so long.
const SILENCE: u64 = 40;
/// The end of the test.
const END: u64 = NODES as u64 + SURGE + DRAIN + SILENCE + 15;

#[derive(Clone, Copy, Debug, PartialEq)]
enum NodeForm {
    Ready,
    Draining,
    Silent,
    Deleted,
}

/// The cluster and the load balancers during the upgrade.
struct Upgrade {
    fixture: Fixture,
    nodes: BTreeMap<String, NodeForm>,
    /// The members of each load balancer.
    members: BTreeMap<String, BTreeSet<String>>,
    /// When each load balancer was written.
    writes: BTreeMap<String, Vec<u64>>,
    /// Passes that run: the second in which they end.
    passes: Vec<(u64, String, PartTask)>,
}

impl Upgrade {
    fn new() -> Self {
        let mut fixture = Fixture::new();
        let names = service_names();
        for name in &names {
            fixture.change(&view(name, |_| {}));
        }
        fixture.discover();
        for name in &names {
            fixture.run(&format!("lb/{name}"), &[name]);
        }
        fixture.run(SHARED, &names.iter().map(String::as_str).collect::<Vec<_>>());
        Self {
            fixture,
            nodes: BTreeMap::new(),
            members: BTreeMap::new(),
            writes: BTreeMap::new(),
            passes: Vec::new(),
        }
    }

    fn set(&mut self, name: &str, form: NodeForm) {
        self.nodes.insert(name.to_owned(), form);
        let node = (form != NodeForm::Deleted).then(|| {
            let ready = if form == NodeForm::Silent {
                "Unknown"
            } else {
                "True"
            };
            let taints = match form {
                NodeForm::Ready => json!([]),
                _ => json!([{"key": AUTOSCALER_TAINT, "effect": "NoSchedule"}]),
            };
            let node = json!({
                "metadata": {"name": name},
                "spec": {"providerID": format!("fake://{name}"), "taints": taints},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            Arc::new(serde_json::from_value(node).unwrap())
        });
        self.fixture.state.changed(ClusterChange::Node(name.to_owned(), node), self.fixture.now);
    }

    /// The events of this second: each second, one node is replaced.
    fn replace(&mut self, second: u64) {
        let at = |later: u64| {
            let number = usize::try_from(second.checked_sub(later)?).unwrap();
            (number < NODES).then_some(number)
        };
        if let Some(number) = at(0) {
            self.set(&format!("new-{number:03}"), NodeForm::Ready);
        }
        if let Some(number) = at(SURGE) {
            self.set(&format!("old-{number:03}"), NodeForm::Draining);
        }
        if let Some(number) = at(SURGE + DRAIN) {
            // Some tools delete the node together with its instance.
            let form = if number % 2 == 0 {
                NodeForm::Silent
            } else {
                NodeForm::Deleted
            };
            self.set(&format!("old-{number:03}"), form);
        }
        if let Some(number) = at(SURGE + DRAIN + SILENCE) {
            self.set(&format!("old-{number:03}"), NodeForm::Deleted);
        }
    }

    /// Runs what is due, and ends the passes that are over.
    fn work(&mut self, second: u64) {
        let mut runs = self.fixture.follow();
        runs.extend(self.fixture.discover());
        for part in runs {
            let Some(task) = self.fixture.take(&part) else {
                continue;
            };
            // The cloud needs 1 to 3 s, and always as long for the same load balancer.
            let took = 1 + part.bytes().map(u64::from).sum::<u64>() % 3;
            self.passes.push((second + took, part, task));
        }
        let (over, running) =
            std::mem::take(&mut self.passes).into_iter().partition(|(end, ..)| *end <= second);
        self.passes = running;
        for (_, part, task) in over {
            self.end_pass(second, &part, &task);
        }
    }

    fn end_pass(&mut self, second: u64, part: &str, task: &PartTask) {
        let names = service_names();
        let members: Vec<_> = match part.strip_prefix("lb/") {
            Some(name) => vec![name],
            None => names.iter().map(String::as_str).collect(),
        };
        self.fixture.conclude(task, &done(part, &members));
        if part == SHARED {
            return;
        }
        let nodes = &task.snapshot.cluster.nodes;
        let members: BTreeSet<_> = nodes.eligible().map(|node| node.view.name.to_string()).collect();
        if self.members.insert(part.to_owned(), members.clone()) != Some(members) {
            self.writes.entry(part.to_owned()).or_default().push(second);
        }
    }

    fn has(&self, name: &str, forms: &[NodeForm]) -> bool {
        self.nodes.get(name).is_some_and(|form| forms.contains(form))
    }

    /// At least half of each load balancer's members answer, and at least half of the nodes that stay are members.
    fn check(&self, second: u64) {
        assert_eq!(self.members.len(), SERVICES);
        let staying = self.nodes.values().filter(|form| **form == NodeForm::Ready).count();
        for (part, members) in &self.members {
            let answering = members
                .iter()
                .filter(|name| self.has(name, &[NodeForm::Ready, NodeForm::Draining]))
                .count();
            assert!(2 * answering >= members.len(), "{second} s: {answering} of {members:?} of {part}");
            let used = members.iter().filter(|name| self.has(name, &[NodeForm::Ready])).count();
            assert!(2 * used >= staying, "{second} s: {part} uses {used} of {staying} nodes");
        }
    }
}

fn service_names() -> Vec<String> {
    (0..SERVICES).map(|number| format!("web-{number:02}")).collect()
}

#[test]
fn a_rolling_upgrade_costs_one_write_in_ten_seconds_and_leaves_members_that_answer() {
    let mut upgrade = Upgrade::new();
    for number in 0..NODES {
        upgrade.set(&format!("old-{number:03}"), NodeForm::Ready);
    }
    for second in 0..20 {
        upgrade.work(second);
        upgrade.fixture.tick(1);
    }
    upgrade.check(0);
    upgrade.writes.clear();

    for second in 0..END {
        upgrade.replace(second);
        upgrade.work(second);
        upgrade.check(second);
        upgrade.fixture.tick(1);
    }
    let new: BTreeSet<_> = (0..NODES).map(|number| format!("new-{number:03}")).collect();
    for (part, writes) in &upgrade.writes {
        assert_eq!(upgrade.members[part], new, "{part}");
        let interval = writes.windows(2).map(|pair| pair[1] - pair[0]).min();
        assert!(interval >= Some(10), "{part} was written at {writes:?}");
        // Nodes join and leave for 205 s.
        assert!((18..=21).contains(&writes.len()), "{part} was written at {writes:?}");
    }
    assert_eq!(upgrade.writes.len(), SERVICES);
}
