//! A plan as JSON. `docs/reference/plan.md` describes the form. Fields may be added; a change of a field's meaning
//! needs another `version`.

use serde::Serialize;

use super::{Plan, PlanVerdict, Summary};
use crate::controllers::plan::{Findings, Object, PlanProblem};

const VERSION: u32 = 1;

#[derive(Serialize)]
struct PlanDocument<'a> {
    version: u32,
    provider: &'a str,
    verdict: PlanVerdict,
    summary: Summary,
    services: Vec<Row<'a>>,
    parts: Vec<Row<'a>>,
    nodes: Vec<Row<'a>>,
    routes: Vec<Row<'a>>,
    problems: Vec<&'a PlanProblem>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    object: &'a Object,
    #[serde(flatten)]
    findings: &'a Findings,
}

/// The JSON of a whole plan. Objects without a finding are left out.
///
/// # Errors
/// Never, as it only has text and numbers.
pub(crate) fn render(plan: &Plan, provider: &str) -> serde_json::Result<String> {
    let summary = Summary::of(plan);
    let mut document = PlanDocument {
        version: VERSION,
        provider,
        verdict: summary.verdict(),
        summary,
        services: Vec::new(),
        parts: Vec::new(),
        nodes: Vec::new(),
        routes: Vec::new(),
        problems: plan.problems.iter().collect(),
    };
    for (object, findings) in plan.objects().filter(|(_, findings)| !findings.is_empty()) {
        let rows = match object {
            Object::Service { .. } => &mut document.services,
            Object::Part { .. } => &mut document.parts,
            Object::Node { .. } => &mut document.nodes,
            Object::Route { .. } => &mut document.routes,
        };
        rows.push(Row { object, findings });
    }
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
