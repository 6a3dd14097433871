//! The page: one document, nothing to fetch, readable on a phone and in the dark.

use std::fmt::{self, Display, Write};

use k8s_openapi::jiff::Timestamp;

use super::{
    Budget, CheckRow, CloudError, Figure, Leadership, List, NodeRow, OrphanRow, PartRow, Report, ServiceRow,
};

/// The most nodes and orphans on the page; JSON has more of them.
const MAX_ROWS: usize = 50;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--good:#2a7d3f;--bad:#c0392b;--dim:#888}\
*{box-sizing:border-box}\
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:70rem;overflow-wrap:anywhere}\
h1{font-size:1.3rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}\
p{margin:.2rem 0}.dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}\
ul.chips{list-style:none;margin:.3rem 0;padding:0;display:flex;flex-wrap:wrap;gap:.4rem}\
ul.chips li{border:1px solid var(--line);border-radius:1rem;padding:.1rem .7rem}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.3rem .5rem .3rem 0;\
border-bottom:1px solid var(--line)}th{font-weight:600}td.n{text-align:right;font-variant-numeric:tabular-nums}\
ol{margin:.2rem 0;padding-left:1.3rem}details summary{cursor:pointer}\
.figures td.n{font-weight:600;width:3.5rem;padding-right:.8rem}\
.bar{background:var(--line);border-radius:.3rem;height:.7rem;margin-top:.35rem;min-width:6rem;overflow:hidden}\
.bar i{display:block;height:100%;background:var(--good)}.bar.low i{background:var(--bad)}\
@media(max-width:40rem){thead{display:none}tr{display:block;border-bottom:1px solid var(--line);padding:.3rem 0}\
td{display:block;border:0;padding:.1rem 0}td:empty{display:none}td.n{text-align:left}td[data-l]:before{content:attr(data-l) \": \";\
color:var(--dim)}.figures tr{display:table-row}.figures td{display:table-cell;padding:.3rem 0}.figures td.n{text-align:right;\
padding-right:.8rem}}";

pub(super) fn page(report: &Report) -> String {
    [
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width,initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
             <body>\n<h1>{title}</h1>\n<p>{version} · cloud <b>{provider}</b> · up {up}</p>\n",
            title = "cloud-controller-manager",
            version = Text(&report.binary_version),
            provider = Text(&report.provider),
            up = duration(report.uptime_seconds),
        ),
        leadership(report.leadership.as_ref()),
        health(&report.health),
        services(report.services.as_ref()),
        orphans(&report.orphans),
        nodes(report),
        figures("Queues", &report.queues),
        figures("Routes", &report.routes),
        budgets(&report.budgets),
        errors(&report.cloud_errors),
        "<h2>More</h2>\n".to_owned(),
        chips(&report.paths, |path| format!("<li><a href=\"{path}\">{path}</a></li>")),
        "</body>\n</html>\n".to_owned(),
    ]
    .concat()
}

fn each<T>(items: impl IntoIterator<Item = T>, show: impl FnMut(T) -> String) -> String {
    items.into_iter().map(show).collect()
}

fn chips<T>(items: impl IntoIterator<Item = T>, show: impl FnMut(T) -> String) -> String {
    format!("<ul class=\"chips\">{}</ul>\n", each(items, show))
}

fn table(head: &[&str], rows: &str) -> String {
    let head = each(head, |column| format!("<th>{column}</th>"));
    format!("<table><thead><tr>{head}</tr></thead>\n{rows}</table>\n")
}

fn dim(text: &str) -> String {
    format!("<p class=\"dim\">{text}</p>\n")
}

/// How many more there are.
fn rest(total: usize, shown: usize) -> String {
    match total.saturating_sub(shown) {
        0 => String::new(),
        more => dim(&format!("and {more} more")),
    }
}

fn leadership(leadership: Option<&Leadership>) -> String {
    match leadership {
        None => dim("Starting."),
        Some(Leadership { dry_run: true, .. }) => {
            "<p><b>Dry run</b>: changes nothing, the log says what it would do.</p>\n".to_owned()
        }
        Some(leadership) => {
            lease(leadership)
                + &each(&leadership.migration, |migration| {
                    let title = "<p>Controllers that are handed over between managers:</p>\n";
                    title.to_owned() + &lease(migration)
                })
        }
    }
}

fn lease(leadership: &Leadership) -> String {
    let Some(lease) = leadership.lease.as_deref().map(Text) else {
        return "<p><b class=\"good\">Works alone</b>, without an election.</p>\n".to_owned();
    };
    if leadership.leads {
        let renewed = each(leadership.renewed_seconds_ago, |ago| {
            format!(", renewed {} ago", duration(ago))
        });
        return format!("<p><b class=\"good\">Leads</b> by the lease {lease}{renewed}.</p>\n");
    }
    let holder = match leadership.leader.as_deref() {
        Some("") => ": nobody holds".to_owned(),
        Some(leader) => format!(": {} holds", Text(leader)),
        None => ", and has not seen yet who holds".to_owned(),
    };
    format!("<p><b>Stands by</b>{holder} the lease {lease}.</p>\n")
}

fn health(checks: &[CheckRow]) -> String {
    let checks = chips(checks, |check| {
        let class = if check.well { "good" } else { "bad" };
        let reason = each(&check.reason, |reason| format!(": {}", Text(reason)));
        format!("<li class=\"{class}\">{}{reason}</li>", check.name)
    });
    format!("<h2>Health</h2>\n{checks}")
}

fn states<T>(list: &List<T>) -> String {
    chips(&list.states, |(state, count)| format!("<li>{count} {state}</li>"))
}

fn services(list: Option<&List<ServiceRow>>) -> String {
    let list = match list {
        None => dim("Not handled by this replica now."),
        Some(list) if list.total == 0 => dim("None."),
        Some(list) => {
            let head = ["Service", "State", "Addresses", "Parts and last plan"];
            let rows = each(&list.shown, service);
            states(list) + &table(&head, &rows) + &rest(list.total, list.shown.len())
        }
    };
    format!("<h2>Services with load balancers</h2>\n{list}")
}

fn service(service: &ServiceRow) -> String {
    let class = if service.error.is_some() { "bad" } else { "" };
    let error = each(&service.error, |error| {
        format!("<p class=\"bad\">{}</p>", Text(error))
    });
    format!(
        "<tr><td><b>{}</b></td><td data-l=\"State\" class=\"{class}\">{}</td><td data-l=\"Addresses\">{}</td>\
         <td>{error}{}</td></tr>\n",
        Text(&service.name),
        service.state,
        Text(&service.addresses.join(", ")),
        each(&service.parts, part),
    )
}

fn part(part: &PartRow) -> String {
    let head = format!("{} <span class=\"dim\">{}</span>", Text(&part.name), part.state);
    let Some(plan) = &part.last_plan else {
        return format!("<p>{head}</p>");
    };
    let unit = if plan.count == 1 { "step" } else { "steps" };
    let steps = each(&plan.steps, |step| format!("<li>{}</li>", Text(step)));
    format!(
        "<details><summary>{head}, {} {unit} at {}</summary><ol>{steps}</ol></details>",
        plan.count,
        time(plan.at)
    )
}

fn orphans(orphans: &[OrphanRow]) -> String {
    if orphans.is_empty() {
        return String::new();
    }
    let rows = each(orphans.iter().take(MAX_ROWS), |orphan| {
        format!(
            "<li>{}, seen for {}: <span class=\"dim\">{}</span></li>",
            Text(&orphan.name),
            duration(orphan.seen_for_seconds),
            orphan.consequence
        )
    });
    let rest = rest(orphans.len(), orphans.len().min(MAX_ROWS));
    format!("<h2>Orphans: their Service does not exist</h2>\n<ul>{rows}</ul>\n{rest}")
}

fn nodes(report: &Report) -> String {
    let Some(list) = &report.nodes else {
        return "<h2>Nodes</h2>\n".to_owned() + &dim("Not known yet.");
    };
    let held = each(report.brake.iter().filter(|held| held.value > 0.0), |held| {
        format!(
            "<p class=\"bad\">The brake holds back the deletion of {} nodes: {}</p>\n",
            held.value,
            Text(&held.labels().join(", "))
        )
    });
    let brake = match held.as_str() {
        "" => dim("The brake holds back no deletion."),
        _ => held,
    };
    let shown: Vec<&NodeRow> = list.shown.iter().take(MAX_ROWS).collect();
    let details = if shown.is_empty() {
        String::new()
    } else {
        let all_ready = shown.iter().all(|node| node.state == "ready");
        let rows = each(&shown, |node| {
            let class = if node.state == "ready" { "" } else { "bad" };
            format!(
                "<tr><td><b>{}</b></td><td class=\"{class}\">{}</td><td class=\"dim\">{}</td></tr>\n",
                Text(&node.name),
                node.state,
                Text(&node.provider_id)
            )
        });
        format!(
            "<details{}><summary>Nodes, those to look at first</summary>\n{}{}</details>\n",
            if all_ready { "" } else { " open" },
            table(&["Node", "State", "Provider ID"], &rows),
            rest(list.total, shown.len())
        )
    };
    format!("<h2>Nodes</h2>\n{}{brake}{details}", states(list))
}

fn figures(title: &str, figures: &[Figure]) -> String {
    if figures.is_empty() {
        return String::new();
    }
    let rows = each(figures, |figure| {
        let labels = match figure.labels().join(", ") {
            labels if labels.is_empty() => labels,
            labels => format!(": <b>{}</b>", Text(&labels)),
        };
        format!(
            "<tr><td class=\"n\">{}</td><td>{}{labels} <span class=\"dim\">{}</span></td></tr>\n",
            figure.value,
            Text(&figure.meaning.replace('`', "")),
            Text(&figure.name)
        )
    });
    format!("<h2>{title}</h2>\n<table class=\"figures\">\n{rows}</table>\n")
}

fn budgets(budgets: &[Budget]) -> String {
    if budgets.is_empty() {
        return String::new();
    }
    let rows = each(budgets, |budget| {
        let share = (budget.tokens / f64::from(budget.burst.max(1))).clamp(0.0, 1.0) * 100.0;
        let low = if share < 20.0 { " low" } else { "" };
        let slowed = match budget.rate < budget.full_rate {
            true => " class=\"bad\"",
            false => "",
        };
        format!(
            "<tr><td><b>{} {}</b></td><td data-l=\"At once\">{:.0} of {}</td><td><div class=\"bar{low}\"><i \
             style=\"width:{share:.0}%\"></i></div></td><td data-l=\"Per second\"{slowed}>{:.1} of {:.1}</td><td \
             data-l=\"Under way\">{}</td><td data-l=\"Waiting\">{}</td></tr>\n",
            budget.provider,
            budget.bucket,
            budget.tokens,
            budget.burst,
            budget.rate,
            budget.full_rate,
            budget.in_flight,
            budget.waiting,
        )
    });
    let head = ["Quota", "At once", "", "Per second", "Under way", "Waiting"];
    format!(
        "<h2>Requests to the cloud that are left</h2>\n{}",
        table(&head, &rows)
    )
}

fn errors(errors: &[CloudError]) -> String {
    let rows = each(errors, |error| {
        format!(
            "<tr><td>{}</td><td data-l=\"Call\">{}</td><td>{}: {}</td><td data-l=\"Times\" class=\"n\">{}</td></tr>\n",
            time(error.at),
            error.operation,
            Text(&error.kind),
            Text(&error.message),
            error.count,
        )
    });
    let table = match errors {
        [] => dim("None."),
        _ => table(&["Last seen", "Call", "Error", "Times"], &rows),
    };
    format!("<h2>Last errors of the cloud</h2>\n{table}")
}

fn time(at: Timestamp) -> String {
    format!("{}", at.strftime("%Y-%m-%d %H:%M:%S UTC"))
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
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}
