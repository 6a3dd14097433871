//! The page: one document without other files, for phones and for dark mode, too. It shows the fields of the JSON.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Leadership;
use crate::server::routes::PATHS;

const TITLE: &str = "cloud-controller-manager";

/// Title and field of each section.
const SECTIONS: [(&str, &str); 9] = [
    ("Health", "health"),
    ("Services with load balancers", "services"),
    ("Orphans: their Service does not exist", "orphans"),
    ("Nodes", "nodes"),
    ("Nodes whose deletion is held", "brake"),
    ("Queues", "queues"),
    ("Routes", "routes"),
    ("Quotas of the cloud", "budgets"),
    ("Last errors of the cloud", "cloudErrors"),
];

const STYLE: &str = include_str!("style.css");

pub(super) fn page(report: &Value, leadership: Option<&Leadership>) -> String {
    let field = |name| report.get(name).map(show).unwrap_or_default();
    let sections = each(SECTIONS, |(title, field)| {
        let content = match report.get(field) {
            None | Some(Value::Null) => dim("Not known yet."),
            Some(Value::Array(items)) if items.is_empty() => dim("None."),
            Some(value) => show(value),
        };
        format!("<h2>{title}</h2>\n{content}")
    });
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\">\n<title>{TITLE}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>{TITLE}</h1>\n<p>{version} · cloud <b>{provider}</b> · up {up}</p>\n{leadership}{sections}\
         <h2>More</h2>\n<ul>{paths}</ul>\n</body>\n</html>\n",
        version = field("binaryVersion"),
        provider = field("provider"),
        up = duration(report["uptimeSeconds"].as_u64().unwrap_or_default()),
        leadership = show_leadership(leadership),
        paths = each(PATHS, |path| format!("<li><a href=\"{path}\">{path}</a></li>")),
    )
}

fn each<T>(items: impl IntoIterator<Item = T>, show: impl FnMut(T) -> String) -> String {
    items.into_iter().map(show).collect()
}

fn dim(text: &str) -> String {
    format!("<p class=\"dim\">{text}</p>\n")
}

/// A value of the JSON: a table for objects, a list for other items.
fn show(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escape(text),
        Value::Array(items) if items.is_empty() => String::new(),
        Value::Array(items) if items.iter().all(Value::is_object) => table(items),
        Value::Array(items) => format!("<ul>{}</ul>", each(items, |item| format!("<li>{}</li>", show(item)))),
        Value::Object(fields) => {
            each(fields, |(name, value)| format!("<div>{}: {}</div>\n", escape(name), show(value)))
        }
        other => other.to_string(),
    }
}

fn table(rows: &[Value]) -> String {
    let fields = rows.iter().filter_map(Value::as_object);
    let names: BTreeSet<_> = fields.flat_map(|fields| fields.keys()).collect();
    let (first, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| *name == "name");
    let names = [first, others].concat();
    let rows = each(rows, |row| {
        let cells = each(&names, |name| {
            let is_problem = ["error", "reason"].contains(&name.as_str());
            let class = if is_problem { " class=\"bad\"" } else { "" };
            let value = row.get(name.as_str()).map(show).unwrap_or_default();
            format!("<td data-l=\"{name}\"{class}>{value}</td>")
        });
        format!("<tr>{cells}</tr>\n")
    });
    let head = each(&names, |name| format!("<th>{name}</th>"));
    format!("<table><thead><tr>{head}</tr></thead>\n{rows}</table>\n")
}

fn show_leadership(leadership: Option<&Leadership>) -> String {
    match leadership {
        None => dim("Starting."),
        Some(Leadership { dry_run: true, .. }) => {
            "<p><b>Dry run</b>: changes nothing, the log reports the changes.</p>\n".to_owned()
        }
        Some(leadership) => {
            let migration = each(&leadership.migration, |migration| {
                let title = "<p>Controllers that migrate between managers:</p>\n";
                title.to_owned() + &lease(migration)
            });
            lease(leadership) + &migration
        }
    }
}

fn lease(leadership: &Leadership) -> String {
    let Some(lease) = leadership.lease.as_deref().map(escape) else {
        return "<p><b class=\"good\">Works alone</b>, without an election.</p>\n".to_owned();
    };
    if leadership.leads {
        let renewed = each(leadership.renewed_seconds_ago, |ago| format!(", renewed {} ago", duration(ago)));
        return format!("<p><b class=\"good\">Leads</b> by the lease {lease}{renewed}.</p>\n");
    }
    let holder = match leadership.leader.as_deref() {
        Some("") => format!("the lease {lease} has no holder"),
        Some(leader) => format!("{} holds the lease {lease}", escape(leader)),
        None => format!("the holder of the lease {lease} is not known yet"),
    };
    format!("<p><b>Standby</b>: {holder}.</p>\n")
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Text with the characters escaped that HTML would interpret.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}
