//! A review for programs to read. The form is written down in `docs/reference/plan.md`; fields may join, none changes its
//! meaning without another `version`.

use serde::Serialize;

use super::{Problem, Review, Subject, Summary};

const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    provider: &'a str,
    verdict: &'static str,
    summary: Summary,
    services: Vec<Service<'a>>,
    parts: Vec<Part<'a>>,
    nodes: Vec<Node<'a>>,
    routes: Vec<Route<'a>>,
    problems: Vec<&'a Problem>,
}

#[derive(Serialize)]
struct Service<'a> {
    service: &'a str,
    #[serde(flatten)]
    subject: &'a Subject,
}

#[derive(Serialize)]
struct Part<'a> {
    part: &'a str,
    services: Vec<&'a str>,
    #[serde(flatten)]
    subject: &'a Subject,
}

#[derive(Serialize)]
struct Node<'a> {
    node: &'a str,
    #[serde(flatten)]
    subject: &'a Subject,
}

#[derive(Serialize)]
struct Route<'a> {
    destination: String,
    node: Option<&'a str>,
    #[serde(flatten)]
    subject: &'a Subject,
}

/// The JSON of a whole review. Services, nodes and routes about which there is nothing to say are left out.
///
/// # Errors
/// Never, as it only holds texts and numbers.
pub(crate) fn render(review: &Review, provider: &str) -> serde_json::Result<String> {
    let summary = review.summary();
    let document = Document {
        version: VERSION,
        provider,
        verdict: summary.verdict().as_str(),
        summary,
        services: review
            .services
            .iter()
            .filter(|(_, subject)| !subject.is_empty())
            .map(|(service, subject)| Service { service, subject })
            .collect(),
        parts: review
            .shared
            .iter()
            .filter(|(_, shared)| !shared.subject.is_empty())
            .map(|(part, shared)| Part {
                part,
                services: shared.services.iter().map(String::as_str).collect(),
                subject: &shared.subject,
            })
            .collect(),
        nodes: review
            .nodes
            .iter()
            .filter(|(_, subject)| !subject.is_empty())
            .map(|(node, subject)| Node { node, subject })
            .collect(),
        routes: review
            .routes
            .iter()
            .filter(|(_, subject)| !subject.is_empty())
            .map(|(id, subject)| Route {
                destination: id.destination.to_string(),
                node: id.node.as_deref(),
                subject,
            })
            .collect(),
        problems: review.problems.iter().collect(),
    };
    let mut text = serde_json::to_string_pretty(&document)?;
    text.push('\n');
    Ok(text)
}
