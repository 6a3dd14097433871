//! The page: one document, nothing to fetch, readable on a phone and in the dark.

use std::fmt::{self, Display, Write};

use k8s_openapi::jiff::Timestamp;

use super::{Budget, Figure, Leadership, List, NodeRow, OrphanRow, Report, ServiceRow};

/// Rows of nodes on the page; JSON has more of them.
const NODES: usize = 50;

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
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut page, report);
    page
}

fn write(page: &mut String, report: &Report) -> fmt::Result {
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>{title}</h1>\n<p>{version} · cloud <b>{provider}</b> · up {up}</p>\n",
        title = "cloud-controller-manager",
        version = Text(&report.binary_version),
        provider = Text(&report.provider),
        up = duration(report.uptime_seconds),
    )?;
    leadership(page, report)?;
    health(page, report)?;
    services(page, report.services.as_ref())?;
    orphans(page, &report.orphans)?;
    nodes(page, report)?;
    figures(page, "Queues", &report.queues)?;
    figures(page, "Routes", &report.routes)?;
    budgets(page, &report.budgets)?;
    errors(page, report)?;
    page.push_str("<h2>More</h2>\n<ul class=\"chips\">");
    for path in &report.paths {
        write!(page, "<li><a href=\"{path}\">{path}</a></li>")?;
    }
    page.push_str("</ul>\n</body>\n</html>\n");
    Ok(())
}

fn leadership(page: &mut String, report: &Report) -> fmt::Result {
    let Some(leadership) = &report.leadership else {
        return page.write_str("<p class=\"dim\">Starting.</p>\n");
    };
    if leadership.dry_run {
        return page.write_str("<p><b>Dry run</b>: changes nothing, the log says what it would do.</p>\n");
    }
    lease(page, leadership)?;
    match &leadership.migration {
        Some(migration) => {
            page.push_str("<p>Controllers that are handed over between managers:</p>\n");
            lease(page, migration)
        }
        None => Ok(()),
    }
}

fn lease(page: &mut String, leadership: &Leadership) -> fmt::Result {
    match (&leadership.lease, leadership.leads) {
        (None, _) => page.write_str("<p><b class=\"good\">Works alone</b>, without an election.</p>\n"),
        (Some(lease), true) => {
            write!(
                page,
                "<p><b class=\"good\">Leads</b> by the lease {}",
                Text(lease)
            )?;
            if let Some(ago) = leadership.renewed_seconds_ago {
                write!(page, ", renewed {} ago", duration(ago))?;
            }
            page.write_str(".</p>\n")
        }
        (Some(lease), false) => {
            write!(page, "<p><b>Stands by</b>")?;
            match leadership.leader.as_deref() {
                Some("") => write!(page, ": nobody holds")?,
                Some(leader) => write!(page, ": {} holds", Text(leader))?,
                None => write!(page, ", and has not seen yet who holds")?,
            }
            writeln!(page, " the lease {}.</p>", Text(lease))
        }
    }
}

fn health(page: &mut String, report: &Report) -> fmt::Result {
    page.push_str("<h2>Health</h2>\n<ul class=\"chips\">");
    for check in &report.health {
        let class = if check.well { "good" } else { "bad" };
        write!(page, "<li class=\"{class}\">{}", check.name)?;
        if let Some(reason) = &check.reason {
            write!(page, ": {}", Text(reason))?;
        }
        page.push_str("</li>");
    }
    page.push_str("</ul>\n");
    Ok(())
}

fn states<T>(page: &mut String, list: &List<T>) -> fmt::Result {
    page.push_str("<ul class=\"chips\">");
    for (state, count) in &list.states {
        write!(page, "<li>{count} {state}</li>")?;
    }
    page.push_str("</ul>\n");
    Ok(())
}

fn services(page: &mut String, list: Option<&List<ServiceRow>>) -> fmt::Result {
    page.push_str("<h2>Services with load balancers</h2>\n");
    let Some(list) = list else {
        return page.write_str("<p class=\"dim\">Not handled by this replica now.</p>\n");
    };
    if list.total == 0 {
        return page.write_str("<p class=\"dim\">None.</p>\n");
    }
    states(page, list)?;
    page.push_str(
        "<table><thead><tr><th>Service</th><th>State</th><th>Addresses</th><th>Parts and last plan</th></tr></thead>\n",
    );
    for service in &list.shown {
        let class = if service.error.is_some() { "bad" } else { "" };
        write!(
            page,
            "<tr><td><b>{}</b></td><td data-l=\"State\" class=\"{class}\">{}</td><td data-l=\"Addresses\">{}</td><td>",
            Text(&service.name),
            service.state,
            Text(&service.addresses.join(", ")),
        )?;
        if let Some(error) = &service.error {
            write!(page, "<p class=\"bad\">{}</p>", Text(error))?;
        }
        for part in &service.parts {
            let head = format!("{} <span class=\"dim\">{}</span>", Text(&part.name), part.state);
            let Some(plan) = &part.last_plan else {
                write!(page, "<p>{head}</p>")?;
                continue;
            };
            write!(
                page,
                "<details><summary>{head}, {} {} at {}</summary><ol>",
                plan.count,
                if plan.count == 1 { "step" } else { "steps" },
                time(plan.at)
            )?;
            for step in &plan.steps {
                write!(page, "<li>{}</li>", Text(step))?;
            }
            page.push_str("</ol></details>");
        }
        page.push_str("</td></tr>\n");
    }
    page.push_str("</table>\n");
    rest(page, list.total, list.shown.len())
}

fn orphans(page: &mut String, orphans: &[OrphanRow]) -> fmt::Result {
    if orphans.is_empty() {
        return Ok(());
    }
    page.push_str("<h2>Orphans: their Service does not exist</h2>\n<ul>");
    for orphan in orphans.iter().take(NODES) {
        write!(
            page,
            "<li>{}, seen for {}: <span class=\"dim\">{}</span></li>",
            Text(&orphan.name),
            duration(orphan.seen_for_seconds),
            orphan.consequence
        )?;
    }
    page.push_str("</ul>\n");
    rest(page, orphans.len(), orphans.len().min(NODES))
}

fn nodes(page: &mut String, report: &Report) -> fmt::Result {
    page.push_str("<h2>Nodes</h2>\n");
    let Some(list) = &report.nodes else {
        return page.write_str("<p class=\"dim\">Not known yet.</p>\n");
    };
    states(page, list)?;
    let mut held = report.brake.iter().filter(|held| held.value > 0.0).peekable();
    if held.peek().is_none() {
        page.push_str("<p class=\"dim\">The brake holds back no deletion.</p>\n");
    }
    for held in held {
        writeln!(
            page,
            "<p class=\"bad\">The brake holds back the deletion of {} nodes: {}</p>",
            held.value,
            Text(&held.labels().join(", "))
        )?;
    }
    let shown: Vec<&NodeRow> = list.shown.iter().take(NODES).collect();
    if shown.is_empty() {
        return Ok(());
    }
    write!(
        page,
        "<details{}><summary>",
        if shown.iter().any(|node| node.state != "ready") {
            " open"
        } else {
            ""
        }
    )?;
    page.push_str("Nodes, those to look at first</summary>\n<table><thead><tr><th>Node</th><th>State</th><th>Provider ID</th></tr></thead>\n");
    for node in &shown {
        let class = if node.state == "ready" { "" } else { "bad" };
        writeln!(
            page,
            "<tr><td><b>{}</b></td><td class=\"{class}\">{}</td><td class=\"dim\">{}</td></tr>",
            Text(&node.name),
            node.state,
            Text(&node.provider_id)
        )?;
    }
    page.push_str("</table>\n");
    rest(page, list.total, shown.len())?;
    page.write_str("</details>\n")
}

fn rest(page: &mut String, total: usize, shown: usize) -> fmt::Result {
    match total.saturating_sub(shown) {
        0 => Ok(()),
        more => writeln!(page, "<p class=\"dim\">and {more} more</p>"),
    }
}

fn figures(page: &mut String, title: &str, figures: &[Figure]) -> fmt::Result {
    if figures.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>{title}</h2>\n<table class=\"figures\">")?;
    for figure in figures {
        write!(
            page,
            "<tr><td class=\"n\">{}</td><td>{}",
            figure.value,
            Text(&figure.meaning.replace('`', "")),
        )?;
        if let labels @ [_, ..] = figure.labels().as_slice() {
            write!(page, ": <b>{}</b>", Text(&labels.join(", ")))?;
        }
        writeln!(
            page,
            " <span class=\"dim\">{}</span></td></tr>",
            Text(&figure.name)
        )?;
    }
    page.write_str("</table>\n")
}

fn budgets(page: &mut String, budgets: &[Budget]) -> fmt::Result {
    if budgets.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<h2>Requests to the cloud that are left</h2>\n<table><thead><tr><th>Quota</th><th>At once</th><th></th>\
         <th>Per second</th><th>Under way</th><th>Waiting</th></tr></thead>\n",
    );
    for budget in budgets {
        let share = (budget.tokens / f64::from(budget.burst.max(1))).clamp(0.0, 1.0) * 100.0;
        let low = if share < 20.0 { " low" } else { "" };
        let slowed = if budget.rate < budget.full_rate {
            " class=\"bad\""
        } else {
            ""
        };
        writeln!(
            page,
            "<tr><td><b>{} {}</b></td><td data-l=\"At once\">{:.0} of {}</td><td><div class=\"bar{low}\"><i \
             style=\"width:{share:.0}%\"></i></div></td><td data-l=\"Per second\"{slowed}>{:.1} of {:.1}</td><td \
             data-l=\"Under way\">{}</td><td data-l=\"Waiting\">{}</td></tr>",
            budget.provider,
            budget.bucket,
            budget.tokens,
            budget.burst,
            budget.rate,
            budget.full_rate,
            budget.in_flight,
            budget.waiting,
        )?;
    }
    page.write_str("</table>\n")
}

fn errors(page: &mut String, report: &Report) -> fmt::Result {
    page.push_str("<h2>Last errors of the cloud</h2>\n");
    if report.cloud_errors.is_empty() {
        return page.write_str("<p class=\"dim\">None.</p>\n");
    }
    page.push_str(
        "<table><thead><tr><th>Last seen</th><th>Call</th><th>Error</th><th>Times</th></tr></thead>\n",
    );
    for error in &report.cloud_errors {
        writeln!(
            page,
            "<tr><td>{}</td><td data-l=\"Call\">{}</td><td>{}: {}</td><td data-l=\"Times\" class=\"n\">{}</td></tr>",
            time(error.at),
            error.operation,
            Text(&error.kind),
            Text(&error.message),
            error.count,
        )?;
    }
    page.write_str("</table>\n")
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

/// Text that is only text, whatever stands in it.
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
