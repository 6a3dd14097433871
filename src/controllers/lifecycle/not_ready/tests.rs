#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::json;

use super::{super::decide::shutdowns, *};

const PERIOD: Duration = Duration::from_secs(5);
const CONFIRM: Duration = Duration::from_secs(10);
const UNRESOLVED_CONFIRM: Duration = Duration::from_secs(600);

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}

fn node(name: &str, ready: &str) -> Arc<NodeObject> {
    node_with(name, "u1", &format!("fake://{name}"), ready, &[])
}

fn node_with(name: &str, uid: &str, id: &str, ready: &str, taints: &[&str]) -> Arc<NodeObject> {
    let taints: Vec<_> = taints.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    let node = json!({
        "metadata": {"name": name, "uid": uid},
        "spec": {"providerID": id, "taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

fn answers(findings: Vec<Finding>, present: bool, began: Instant, ended: Instant) -> Answers {
    Answers {
        findings,
        present,
        failure: None,
        began,
        ended,
        generation: Some(0),
    }
}

/// The answers of a pass about one node, whose machine is absent.
fn absent(node: &NodeObject, began: Instant, ended: Instant) -> Answers {
    let finding = Finding {
        view: Arc::clone(&node.view),
        answer: Answer::Absent,
    };
    answers(vec![finding], true, began, ended)
}

/// Nodes on a clock of their own, whose passes take no time.
struct Play {
    nodes: NotReadyNodes,
    start: Instant,
    now: Instant,
}

impl Play {
    fn new() -> Self {
        let start = Instant::now();
        Self {
            nodes: NotReadyNodes::new(PERIOD, CONFIRM, UNRESOLVED_CONFIRM),
            start,
            now: start,
        }
    }

    fn observe(&mut self, node: &Arc<NodeObject>) {
        let managed = is_managed(node, |id| id.starts_with("fake://"));
        self.nodes.observe(node, managed, self.now);
    }

    /// Advances to when a node is due and gives all that are asked about this answer. Returns when that was, which were asked
    /// about, and which are proven missing.
    fn pass(&mut self, answer: Answer) -> (f64, Vec<String>, Vec<String>) {
        self.pass_with(|_| answer, true)
    }

    fn pass_with(
        &mut self,
        answer: impl Fn(&str) -> Answer,
        present: bool,
    ) -> (f64, Vec<String>, Vec<String>) {
        self.now = self.nodes.next_due().unwrap().max(self.now);
        let asked = self.nodes.take_due(self.now);
        let finding = |node: &Arc<NodeObject>| Finding {
            view: Arc::clone(&node.view),
            answer: answer(&node.view.name),
        };
        let findings = asked.iter().map(finding).collect();
        let answers = answers(findings, present, self.now, self.now);
        let proven = self.nodes.record(&answers);
        let names = |nodes: &[Arc<NodeObject>]| nodes.iter().map(|node| node.view.name.clone()).collect();
        let at = (self.now - self.start).as_secs_f64();
        ((at * 10.0).round() / 10.0, names(&asked), names(&proven))
    }

    /// When it is asked about next.
    fn due(&self) -> f64 {
        let due = self.nodes.next_due().unwrap() - self.start;
        (due.as_secs_f64() * 10.0).round() / 10.0
    }
}

#[test]
fn a_silent_node_is_asked_about_at_once_and_then_less_and_less() {
    let mut play = Play::new();
    play.observe(&node("a", "Unknown"));
    let times: Vec<_> = (0..7).map(|_| play.pass(Answer::On).0).collect();
    assert_eq!(times, [0.2, 5.2, 15.2, 35.2, 65.2, 95.2, 125.2]);
}

#[test]
fn another_answer_or_another_condition_makes_the_wait_short_again() {
    let mut play = Play::new();
    play.observe(&node("a", "Unknown"));
    for _ in 0..4 {
        play.pass(Answer::On);
    }
    assert_eq!(play.pass(Answer::Off).0, 65.2);
    assert_eq!(play.due(), 70.2, "after another answer");
    for _ in 0..3 {
        play.pass(Answer::Off);
    }
    assert_eq!(play.due(), 130.2);
    play.now = play.start + seconds(120.0);
    play.observe(&node("a", "Unknown"));
    assert_eq!(play.due(), 130.2, "a heartbeat changes nothing");
    play.observe(&node("a", "False"));
    assert_eq!(play.due(), 120.2, "after another condition");
    play.pass(Answer::Off);
    play.observe(&node_with("a", "u1", "fake://a", "False", &["new"]));
    assert_eq!(play.due(), 125.2, "after another taint, but not more often than allowed");
}

#[test]
fn a_node_that_is_ready_now_and_again_is_not_asked_about_more_often_than_allowed() {
    let mut play = Play::new();
    play.observe(&node("a", "False"));
    play.pass(Answer::On);
    play.now += seconds(1.0);
    play.observe(&node("a", "True"));
    assert_eq!(play.nodes.next_due(), None);
    play.observe(&node("a", "False"));
    assert_eq!(play.due(), 5.2);
}

#[test]
fn absence_is_confirmed_once_and_not_earlier() {
    let mut play = Play::new();
    play.observe(&node("a", "False"));
    assert_eq!(play.pass(Answer::Absent), (0.2, vec!["a".into()], vec![]));
    // Others are asked about meanwhile, and it does not join them: that would prove nothing.
    play.now += seconds(6.0);
    play.observe(&node("b", "False"));
    assert_eq!(play.pass(Answer::On), (6.4, vec!["b".into()], vec![]));
    let (at, asked, proven) = play.pass(Answer::Absent);
    assert_eq!((at, proven), (10.2, vec!["a".to_owned()]), "{asked:?}");
}

#[test]
fn an_answer_between_two_absent_ones_begins_the_time_again() {
    for between in [Answer::On, Answer::Failed, Answer::Unmanaged] {
        let mut play = Play::new();
        play.observe(&node("a", "False"));
        play.pass(Answer::Absent);
        assert!(play.pass(between).2.is_empty());
        assert!(play.pass(Answer::Absent).2.is_empty(), "{between:?}");
        let began = play.now;
        assert_eq!(play.pass(Answer::Absent).2, ["a"], "{between:?}");
        assert!(play.now - began >= CONFIRM);
    }
}

#[test]
fn the_time_between_two_answers_counts_from_the_end_of_the_first() {
    let mut play = Play::new();
    play.observe(&node("a", "False"));
    play.now += seconds(1.0);
    let asked = play.nodes.take_due(play.now);
    let answers = absent(&asked[0], play.now, play.now + seconds(30.0));
    assert!(play.nodes.record(&answers).is_empty());
    assert_eq!(play.due(), 41.0);
}

#[test]
fn answers_about_another_machine_or_another_node_of_the_name_do_not_count() {
    for changed in [
        node_with("a", "u2", "fake://a", "False", &[]),
        node_with("a", "u1", "fake://other", "False", &[]),
    ] {
        // Changed between two passes ..
        let mut play = Play::new();
        play.observe(&node("a", "False"));
        play.pass(Answer::Absent);
        play.observe(&changed);
        assert!(play.pass(Answer::Absent).2.is_empty());
        // .. and during one.
        let mut play = Play::new();
        play.observe(&node("a", "False"));
        play.pass(Answer::Absent);
        play.now = play.nodes.next_due().unwrap();
        let asked = play.nodes.take_due(play.now);
        play.observe(&changed);
        let answers = absent(&asked[0], play.now, play.now);
        assert!(play.nodes.record(&answers).is_empty());
        assert!(play.nodes.next_due().is_some(), "it is asked about again");
    }
}

#[test]
fn a_node_that_became_ready_during_a_pass_is_forgotten() {
    let mut play = Play::new();
    play.observe(&node("a", "False"));
    play.pass(Answer::Absent);
    play.now = play.nodes.next_due().unwrap();
    let asked = play.nodes.take_due(play.now);
    play.observe(&node("a", "True"));
    play.observe(&node("a", "False"));
    let answers = absent(&asked[0], play.now, play.now);
    assert!(play.nodes.record(&answers).is_empty());
    assert!(play.pass(Answer::Absent).2.is_empty(), "the row begins again");
}

#[test]
fn other_credentials_begin_again() {
    let mut play = Play::new();
    play.observe(&node("a", "False"));
    play.pass(Answer::Absent);
    play.now += seconds(10.0);
    play.nodes.start_over(play.now);
    assert_eq!(play.pass(Answer::Absent).2, Vec::<String>::new());
    assert_eq!(play.pass(Answer::Absent).2, ["a"]);
}

#[test]
fn a_thousand_nodes_share_their_passes_and_wait_longer() {
    let mut play = Play::new();
    for i in 0..1000 {
        // They turn not ready over two seconds.
        play.now = play.start + Duration::from_millis(2 * i);
        play.observe(&node(&format!("n{i}"), "Unknown"));
    }
    let (mut passes, mut asked) = (0, 0);
    let mut last = play.now;
    loop {
        // As the controller does: not before the pause is over.
        play.now = last + play.nodes.pause();
        let (at, names, _) = play.pass(Answer::On);
        if at > 600.0 {
            break;
        }
        last = play.now;
        passes += 1;
        asked += names.len();
    }
    // 5, 10, 20, 40, 80, 160, 300 seconds.
    assert!((7..=10).contains(&passes), "{passes} passes");
    assert!((7_000..=9_000).contains(&asked), "{asked} questions");
}

#[test]
fn nodes_that_turn_not_ready_soon_after_each_other_are_asked_about_together() {
    let mut play = Play::new();
    for i in 0..100 {
        play.now = play.start + Duration::from_millis(5 * i);
        play.observe(&node(&format!("n{i}"), "Unknown"));
    }
    play.now = play.start;
    let passes: Vec<_> = (0..4).map(|_| play.pass(Answer::On)).collect();
    assert!(passes.iter().all(|(_, asked, _)| asked.len() == 100), "{passes:?}");
    assert_eq!(passes.iter().map(|(at, ..)| *at).collect::<Vec<_>>(), [0.7, 5.7, 15.7, 35.7]);
}

#[test]
fn those_whose_wait_is_half_over_join() {
    let mut play = Play::new();
    play.observe(&node("old", "False"));
    for _ in 0..4 {
        play.pass(Answer::On);
    }
    // Waits from 35.2 to 65.2.
    play.now = play.start + seconds(49.0);
    play.observe(&node("early", "False"));
    assert_eq!(play.pass(Answer::On).1, ["early"]);
    play.now = play.start + seconds(50.1);
    play.observe(&node("late", "False"));
    assert_eq!(play.pass(Answer::On).1, ["late", "old"]);
}

#[test]
fn a_name_that_is_nowhere_proves_something_only_after_ten_minutes_beside_others() {
    let nameless = node_with("a", "u1", "", "Unknown", &[UNINITIALIZED_TAINT]);
    // How long it takes if the pass at one moment has no node for comparison, or another answer.
    let run = |odd: f64, answer: Answer, present: bool| {
        let mut play = Play::new();
        play.observe(&nameless);
        let mut done = false;
        loop {
            let at = play.due();
            assert!(at < 3000.0, "never");
            let is_odd = !done && at >= odd;
            done |= is_odd;
            let (at, _, proven) = if is_odd {
                play.pass_with(|_| answer, present)
            } else {
                play.pass(Answer::Unresolved)
            };
            if !proven.is_empty() {
                return at;
            }
        }
    };
    let undisturbed = run(f64::INFINITY, Answer::On, true);
    assert!((600.0..660.0).contains(&undisturbed), "{undisturbed}");
    for (answer, present) in [
        (Answer::Unresolved, false),
        (Answer::Failed, true),
        (Answer::On, true),
    ] {
        let disturbed = run(500.0, answer, present);
        assert!(disturbed > 1100.0, "{disturbed} after {answer:?} {present}");
    }
}

/// A node without a provider ID that waits for its initialization, with the time of the last transition of its condition.
fn nameless(ready: &str, since: &str) -> Arc<NodeObject> {
    let node = json!({
        "metadata": {"name": "c-md-0-v1-26-4-abc", "uid": "u1"},
        "spec": {"taints": [{"key": UNINITIALIZED_TAINT, "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

/// Answers that no machine has the name, until the node is proven missing or `end`. Returns when it was proven.
fn unresolved_until(play: &mut Play, end: f64) -> Option<f64> {
    while play.due() < end {
        let (at, _, proven) = play.pass(Answer::Unresolved);
        if !proven.is_empty() {
            return Some(at);
        }
    }
    None
}

#[test]
fn a_node_that_lives_under_another_name_is_never_proven_missing() {
    let mut play = Play::new();
    play.observe(&nameless("False", "2026-01-01T00:00:00Z"));
    assert_eq!(unresolved_until(&mut play, 900.0), None);
    // The kubelet stops. The ten minutes begin now, not with the first answer.
    play.now = play.start + seconds(900.0);
    play.observe(&nameless("Unknown", "2026-01-01T00:15:00Z"));
    let proven = unresolved_until(&mut play, 3000.0).unwrap();
    assert!((1500.0..1570.0).contains(&proven), "{proven}");

    let mut control = Play::new();
    control.observe(&nameless("Unknown", "2026-01-01T00:00:00Z"));
    let proven = unresolved_until(&mut control, 3000.0).unwrap();
    assert!((600.0..660.0).contains(&proven), "{proven}");
}

#[test]
fn a_report_of_the_kubelet_begins_the_ten_minutes_again() {
    for reports in [
        vec![nameless("False", "2026-01-01T00:08:00Z")],
        vec![nameless("True", "2026-01-01T00:08:00Z")],
        // The watch missed the report.
        vec![],
    ] {
        let mut play = Play::new();
        play.observe(&nameless("Unknown", "2026-01-01T00:00:00Z"));
        assert_eq!(unresolved_until(&mut play, 500.0), None);
        play.now = play.start + seconds(500.0);
        for report in &reports {
            play.observe(report);
        }
        play.observe(&nameless("Unknown", "2026-01-01T00:08:20Z"));
        let proven = unresolved_until(&mut play, 3000.0).unwrap();
        assert!((1100.0..1170.0).contains(&proven), "{proven} after {reports:?}");
    }
}

#[test]
fn only_those_blocked_for_a_reason_are_asked_about_when_their_turn_comes() {
    let mut play = Play::new();
    for name in ["a", "b", "c", "d", "e"] {
        play.observe(&node(name, "False"));
    }
    play.pass(Answer::Absent);
    play.pass(Answer::Absent);
    for name in ["b", "c", "d", "e"] {
        assert!(play.nodes.block(name, BlockReason::Share));
        assert!(!play.nodes.block(name, BlockReason::Share), "reported once");
    }
    play.nodes.deleting("a");
    let slot = play.now + seconds(1.0);
    play.nodes.ask_some(slot);
    let (_, asked, proven) = play.pass(Answer::Absent);
    assert_eq!(asked, ["b", "c", "d"]);
    assert_eq!(proven, asked);
    let blocked = |play: &Play| play.nodes.iter().filter(|node| node.blocked.is_some()).count();
    assert_eq!(blocked(&play), 4);
    play.pass(Answer::On);
    assert!(blocked(&play) < 4, "one that is found is not blocked any more");
}

#[test]
fn a_taint_that_was_sent_is_sent_again_only_after_a_failure_or_a_change_of_the_node() {
    let mut play = Play::new();
    let off = node("a", "False");
    play.observe(&off);
    play.pass(Answer::Off);
    let view = Arc::clone(&off.view);
    let findings = [Finding {
        view,
        answer: Answer::Off,
    }];
    let due = |play: &Play| shutdowns(&play.nodes, &findings).len();
    assert_eq!(due(&play), 1);
    play.nodes.tainting("a", true);
    assert_eq!(due(&play), 0);
    play.nodes.tainting("a", false);
    assert_eq!(due(&play), 1);
    play.nodes.tainting("a", true);
    play.observe(&node("a", "False"));
    assert_eq!(due(&play), 1);
}

#[test]
fn foreign_nodes_are_ignored() {
    let mut play = Play::new();
    for node in [
        node_with("foreign", "u1", "aws:///z/i-1", "False", &[]),
        node_with("foreign-new", "u1", "aws:///z/i-1", "False", &[UNINITIALIZED_TAINT]),
        node_with("bare-metal", "u1", "", "False", &[]),
        node("well", "True"),
    ] {
        play.observe(&node);
        assert_eq!(play.nodes.next_due(), None, "{}", node.view.name);
    }
    let mut leaving = (*node("leaving", "False")).clone();
    leaving.meta.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::now()));
    play.observe(&Arc::new(leaving));
    assert_eq!(play.nodes.next_due(), None);
}
