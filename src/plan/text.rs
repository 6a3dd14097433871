//! A plan for people.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use ccm_core::load_balancer::Effect;

use super::{Plan, Summary, Verdict};
use crate::controllers::plan::{Change, Findings, Kind, Object};

/// The text of a whole plan.
pub(crate) fn render(plan: &Plan) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(plan, &mut text);
    text
}

fn write(plan: &Plan, out: &mut String) -> fmt::Result {
    let (mut services, mut nodes, mut routes) = (0, Vec::new(), Vec::new());
    for (object, findings) in plan.objects() {
        match object {
            Object::Service { .. } => services += 1,
            Object::Node { node } => nodes.push((node.as_str(), findings)),
            Object::Route { .. } if !findings.is_empty() => routes.push((object, findings)),
            Object::Part { .. } | Object::Route { .. } => {}
        }
        if findings.is_empty() {
            continue;
        }
        match object {
            Object::Service { .. } => writeln!(out, "{object}")?,
            Object::Part { services, .. } if services.is_empty() => writeln!(out, "{object}, of no Service")?,
            Object::Part { services, .. } => {
                let services: Vec<_> = services.iter().map(String::as_str).collect();
                writeln!(out, "{object}, shared by {}", services.join(", "))?;
            }
            Object::Node { .. } | Object::Route { .. } => continue,
        }
        for change in &findings.changes {
            write_change(change, "", out)?;
        }
        write_rest(findings, "", out)?;
        writeln!(out)?;
    }
    write_nodes(&nodes, out)?;
    if !routes.is_empty() {
        writeln!(out, "Routes: {}", routes.len())?;
        for (route, findings) in routes {
            // A change names its route.
            for change in &findings.changes {
                write_change(change, "", out)?;
            }
            write_rest(findings, &format!("{route}: "), out)?;
        }
        writeln!(out)?;
    }
    if !plan.problems.is_empty() {
        writeln!(out, "Could not be found out")?;
        for problem in &plan.problems {
            writeln!(out, "  ? {}: {}", problem.about, problem.error)?;
        }
        writeln!(out)?;
    }
    let summary = Summary::of(plan);
    let read = format!(
        "{} and {}",
        count(services, "Service"),
        count(nodes.len(), "node")
    );
    match summary.verdict() {
        Verdict::Nothing if summary.warnings == 0 => {
            writeln!(out, "Nothing to do: {read} are as they should be.")
        }
        Verdict::Incomplete => writeln!(out, "Plan (not complete): {summary}. Looked at {read}."),
        _ => writeln!(out, "Plan: {summary}. Looked at {read}."),
    }
}

fn count(number: usize, name: &str) -> String {
    match number {
        1 => format!("1 {name}"),
        number => format!("{number} {name}s"),
    }
}

fn write_change(change: &Change, prefix: &str, out: &mut String) -> fmt::Result {
    let sign = match change.effect {
        Effect::Create => '+',
        Effect::Change => '~',
        Effect::Delete => '-',
    };
    write!(out, "  {sign} {prefix}{}", change.what)?;
    if change.why.is_empty() {
        writeln!(out)
    } else {
        writeln!(out, " ({})", change.why)
    }
}

fn write_rest(findings: &Findings, prefix: &str, out: &mut String) -> fmt::Result {
    for blocked in &findings.blocked {
        writeln!(out, "  ! {prefix}{}", blocked.what)?;
    }
    for warning in &findings.warnings {
        writeln!(out, "  * {prefix}{warning}")?;
    }
    Ok(())
}

/// Clusters have many nodes with equal changes: they are listed by change, not one by one.
fn write_nodes(nodes: &[(&str, &Findings)], out: &mut String) -> fmt::Result {
    let mut groups: BTreeMap<Kind, Vec<(&str, &Change)>> = BTreeMap::new();
    for (name, findings) in nodes {
        for change in &findings.changes {
            groups.entry(change.kind).or_default().push((name, change));
        }
    }
    for (kind, changes) in groups {
        let title = match kind {
            Kind::Initialize => "Nodes to initialise",
            Kind::Labels => "Nodes with other labels",
            Kind::Addresses => "Nodes with other addresses",
            Kind::Taint => "Nodes with another shutdown taint",
            Kind::Network => "Nodes with another condition NetworkUnavailable",
            Kind::DeleteNode => "Nodes to delete",
            Kind::Cloud | Kind::Service | Kind::Route => "Nodes",
        };
        writeln!(out, "{title}: {}", changes.len())?;
        for (name, change) in changes {
            write_change(change, &format!("{name}: "), out)?;
        }
        writeln!(out)?;
    }
    let with_rest =
        |(_, findings): &&(&str, &Findings)| !findings.blocked.is_empty() || !findings.warnings.is_empty();
    let rest: Vec<_> = nodes.iter().filter(with_rest).collect();
    if rest.is_empty() {
        return Ok(());
    }
    writeln!(out, "Nodes left as they are: {}", rest.len())?;
    for (name, findings) in rest {
        write_rest(findings, &format!("{name}: "), out)?;
    }
    writeln!(out)
}
