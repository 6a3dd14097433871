//! A plan as text.

use std::collections::BTreeMap;

use ccm_core::load_balancer::Effect;

use super::{Plan, PlanVerdict, Summary};
use crate::controllers::plan::{Findings, Kind, Object, PlannedChange};

/// The text of a whole plan.
pub(crate) fn render(plan: &Plan) -> String {
    let mut text = String::new();
    let mut section = |title: String, lines: Vec<String>| {
        if !lines.is_empty() {
            text += &format!("{title}\n{}\n", lines.concat());
        }
    };
    let (mut services, mut nodes, mut routes) = (0, Vec::new(), Vec::new());
    for (object, findings) in plan.objects() {
        match object {
            Object::Service { .. } => {
                services += 1;
                section(object.to_string(), lines(findings, ""));
            }
            Object::Part { services, .. } => {
                let services: Vec<_> = services.iter().map(String::as_str).collect();
                let owners = match services.as_slice() {
                    [] => "of no Service".to_owned(),
                    services => format!("shared by {}", services.join(", ")),
                };
                section(format!("{object}, {owners}"), lines(findings, ""));
            }
            Object::Node { node } => nodes.push((format!("{node}: "), findings)),
            Object::Route { .. } if findings.is_empty() => {}
            // A change names its route.
            Object::Route { .. } => routes.push(lines(findings, &format!("{object}: "))),
        }
    }
    // Clusters have many nodes with equal changes: they are listed by change, not one by one.
    let mut changes: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
    for (node, findings) in &nodes {
        for change in &findings.changes {
            let of_kind = changes.entry(change.kind).or_default();
            of_kind.push(change_line(change, node));
        }
    }
    for (kind, lines) in changes {
        section(format!("{}: {}", title(kind), lines.len()), lines);
    }
    let rest: Vec<_> = nodes
        .iter()
        .map(|(node, findings)| rest(findings, node))
        .filter(|lines| !lines.is_empty())
        .collect();
    section(format!("Nodes left unchanged: {}", rest.len()), rest.concat());
    section(format!("Routes: {}", routes.len()), routes.concat());
    let problems = plan.problems.iter().map(|problem| format!("  ? {}: {}\n", problem.about, problem.error));
    section("Could not be determined".to_owned(), problems.collect());

    let summary = Summary::of(plan);
    let read = format!("{} and {}", count(services, "Service"), count(nodes.len(), "node"));
    text += &match summary.verdict() {
        PlanVerdict::Nothing if summary.warnings == 0 => {
            format!("Nothing to do: {read} are as desired.\n")
        }
        PlanVerdict::Incomplete => format!("Plan (not complete): {summary}. Read {read}.\n"),
        _ => format!("Plan: {summary}. Read {read}.\n"),
    };
    text
}

fn count(number: usize, name: &str) -> String {
    match number {
        1 => format!("1 {name}"),
        number => format!("{number} {name}s"),
    }
}

/// The title of the nodes with changes of this kind.
fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Initialize => "Nodes to initialize",
        Kind::Labels => "Nodes with other labels",
        Kind::Addresses => "Nodes with other addresses",
        Kind::Taint => "Nodes with another shutdown taint",
        Kind::Network => "Nodes with another condition NetworkUnavailable",
        Kind::DeleteNode => "Nodes to delete",
        Kind::Cloud | Kind::Service | Kind::Route => "Nodes",
    }
}

/// All findings about one object. `prefix`: before those that do not name it.
fn lines(findings: &Findings, prefix: &str) -> Vec<String> {
    let changes = findings.changes.iter().map(|change| change_line(change, ""));
    changes.chain(rest(findings, prefix)).collect()
}

fn change_line(change: &PlannedChange, prefix: &str) -> String {
    let sign = match change.effect {
        Effect::Create => '+',
        Effect::Change => '~',
        Effect::Delete => '-',
    };
    let why = match change.why.as_str() {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    format!("  {sign} {prefix}{}{why}\n", change.what)
}

/// Blocked differences and warnings.
fn rest(findings: &Findings, prefix: &str) -> Vec<String> {
    let blocked = findings.blocked.iter().map(|blocked| format!("  ! {prefix}{}\n", blocked.what));
    let warnings = findings.warnings.iter().map(|warning| format!("  * {prefix}{warning}\n"));
    blocked.chain(warnings).collect()
}
