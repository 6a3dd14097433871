//! A review for people to read.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use super::{Change, EffectOf, Kind, Review, RouteId, Subject, Verdict};

impl EffectOf {
    fn sign(self) -> char {
        match self {
            Self::Create => '+',
            Self::Change => '~',
            Self::Delete => '-',
        }
    }
}

/// The text of a whole review.
pub(crate) fn render(review: &Review) -> String {
    let mut text = String::new();
    // Writing to a string can not fail.
    let _ = write(review, &mut text);
    text
}

fn write(review: &Review, out: &mut String) -> fmt::Result {
    for (name, subject) in &review.services {
        if !subject.is_empty() {
            writeln!(out, "Service {name}")?;
            write_subject(subject, out)?;
        }
    }
    for (part, shared) in &review.shared {
        if shared.subject.is_empty() {
            continue;
        }
        match shared
            .services
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .as_slice()
        {
            [] => writeln!(out, "{part}, of no Service")?,
            services => writeln!(out, "{part}, shared by {}", services.join(", "))?,
        }
        write_subject(&shared.subject, out)?;
    }
    write_nodes(&review.nodes, out)?;
    write_routes(&review.routes, out)?;
    if !review.problems.is_empty() {
        writeln!(out, "Could not be found out")?;
        for problem in &review.problems {
            writeln!(out, "  ? {}: {}", problem.about, problem.error)?;
        }
        writeln!(out)?;
    }
    let summary = review.summary();
    let looked = format!(
        "{} and {}",
        count(review.services.len(), "Service"),
        count(review.nodes.len(), "node")
    );
    match summary.verdict() {
        Verdict::Nothing if summary.warnings == 0 => {
            writeln!(out, "Nothing to do: {looked} are as they should be.")
        }
        Verdict::Incomplete => writeln!(out, "Plan (not complete): {summary}. Looked at {looked}."),
        _ => writeln!(out, "Plan: {summary}. Looked at {looked}."),
    }
}

fn count(number: usize, name: &str) -> String {
    match number {
        1 => format!("1 {name}"),
        number => format!("{number} {name}s"),
    }
}

fn write_subject(subject: &Subject, out: &mut String) -> fmt::Result {
    for change in &subject.changes {
        write_change(change, "", out)?;
    }
    for blocked in &subject.blocked {
        writeln!(out, "  ! {}", blocked.what)?;
    }
    for warning in &subject.warnings {
        writeln!(out, "  * {warning}")?;
    }
    writeln!(out)
}

fn write_change(change: &Change, prefix: &str, out: &mut String) -> fmt::Result {
    write!(out, "  {} {prefix}{}", change.effect.sign(), change.what)?;
    if change.why.is_empty() {
        writeln!(out)
    } else {
        writeln!(out, " ({})", change.why)
    }
}

/// Nodes are many and alike: by what would be done, not one by one.
fn write_nodes(nodes: &BTreeMap<String, Subject>, out: &mut String) -> fmt::Result {
    let mut groups: BTreeMap<Kind, Vec<(&str, &Change)>> = BTreeMap::new();
    for (name, subject) in nodes {
        for change in &subject.changes {
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
    let said =
        |(_, subject): &(&String, &Subject)| !subject.blocked.is_empty() || !subject.warnings.is_empty();
    let rest: Vec<_> = nodes.iter().filter(said).collect();
    if rest.is_empty() {
        return Ok(());
    }
    writeln!(out, "Nodes left as they are: {}", rest.len())?;
    for (name, subject) in rest {
        for blocked in &subject.blocked {
            writeln!(out, "  ! {name}: {}", blocked.what)?;
        }
        for warning in &subject.warnings {
            writeln!(out, "  * {name}: {warning}")?;
        }
    }
    writeln!(out)
}

/// A change says itself which route it is about.
fn write_routes(routes: &BTreeMap<RouteId, Subject>, out: &mut String) -> fmt::Result {
    let said: Vec<_> = routes.iter().filter(|(_, subject)| !subject.is_empty()).collect();
    if said.is_empty() {
        return Ok(());
    }
    writeln!(out, "Routes: {}", said.len())?;
    for (id, subject) in said {
        for change in &subject.changes {
            write_change(change, "", out)?;
        }
        for blocked in &subject.blocked {
            writeln!(out, "  ! {id}: {}", blocked.what)?;
        }
        for warning in &subject.warnings {
            writeln!(out, "  * {id}: {warning}")?;
        }
    }
    writeln!(out)
}
