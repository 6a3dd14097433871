//! The reference of metrics, the dashboard and the alerts name only existing metrics.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod promql;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;
use serde_json::Value;

use promql::Scraped;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The entry of a metric in the reference.
#[derive(Debug)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
}

fn reference() -> BTreeMap<String, Metric> {
    let row = Regex::new(r"(?m)^\| `([a-z_]+)` \| (counter|gauge|histogram) \| ([a-z_` ]*) \| \S").unwrap();
    let text = read("src/metrics.md");
    let rows = text.lines().filter(|line| line.starts_with("| `")).count();
    let metrics: BTreeMap<_, _> = row
        .captures_iter(&text)
        .map(|row| {
            let labels = row[3].split_whitespace().map(|label| label.trim_matches('`').to_owned());
            let metric = Metric {
                kind: row[2].to_owned(),
                labels: labels.collect(),
            };
            (row[1].to_owned(), metric)
        })
        .collect();
    assert_eq!(metrics.len(), rows, "a row is malformed or occurs twice");
    metrics
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The names under which metrics are registered, as in the sources.
fn registered() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in [
        "src",
        "providers/core/src",
        "providers/openstack/src",
        "providers/aws/src",
        "providers/gce/src",
        "providers/azure/src",
    ] {
        sources(&root.join(folder), &mut files);
    }
    let call = Regex::new(
        r#"(?:(?:registry\.register|encode_descriptor|gauge|\bdescribe|\b(?:duration|total|errors): )\(\s*(?://[^\n]*\s*)?|register\(\s*registry,\s*|(?:Counter|Gauge|Histogram)>?\s*=\s*)(?:format!\(\s*)?"([a-z_{}]+)""#,
    )
    .unwrap();
    let line = Regex::new(r#""([a-z_]+)"\s*=>\s*"[^"]*";"#).unwrap();
    let mut names = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let product: Vec<_> = product.lines().filter(is_code).collect();
        let product = product.join("\n");
        let calls = call.captures_iter(&product);
        let found = calls.chain(line.captures_iter(&product));
        names.extend(found.map(|found| found[1].to_owned()));
    }
    let timed = Regex::new(r#"OperationMetrics::new\(\s*metrics,\s*"([a-z_]+)""#).unwrap();
    for found in timed.captures_iter(&read("providers/digitalocean/src/firewall.rs")) {
        names.extend(["s", "_duration_seconds"].map(|end| format!("{}{end}", &found[1])));
    }
    let calls = read("providers/digitalocean/src/load_balancer/calls.rs");
    names.extend(line.captures_iter(&calls).map(|found| found[1].to_owned()));
    names
}

#[test]
fn the_reference_has_exactly_the_registered_metrics() {
    let mut in_sources = BTreeSet::new();
    for name in registered() {
        match name.as_str() {
            // One for each kind of review.
            name if name.contains("{name}") => {
                in_sources.extend(["authn", "authz"].map(|kind| name.replace("{name}", kind)));
            }
            _ => {
                in_sources.insert(name);
            }
        }
    }
    let metrics = reference();
    let listed: BTreeSet<_> = metrics
        .iter()
        .map(|(name, metric)| match metric.kind.as_str() {
            "counter" => {
                name.strip_suffix("_total").unwrap_or_else(|| panic!("{name} is a counter")).to_owned()
            }
            // Info adds its suffix.
            _ if name == "ccm_build_info" => "ccm_build".to_owned(),
            _ => name.clone(),
        })
        .collect();
    let missing: Vec<_> = in_sources.difference(&listed).collect();
    let unknown: Vec<_> = listed.difference(&in_sources).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "src/metrics.md lacks {missing:?} and has {unknown:?}, which are not registered"
    );
}

#[test]
fn the_document_is_the_reference() {
    let document = read("docs/reference/metrics.md");
    assert!(document.ends_with(&read("src/metrics.md")), "not up to date: run `cargo xtask docs`");
}

/// The wrong metrics and labels in an expression.
fn problems(expression: &str, metrics: &BTreeMap<String, Metric>) -> Vec<String> {
    let mut problems = Vec::new();
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        if expression.matches(open).count() != expression.matches(close).count() {
            problems.push(format!("{open} and {close} do not match"));
        }
    }
    let strings = Regex::new(r#""[^"]*""#).unwrap();
    let plain = strings.replace_all(expression, "\"\"");
    let series = Regex::new(r"\b([a-z]+_[a-z_]+)\b(?:\{([^}]*)\})?").unwrap();
    let label = Regex::new(r"([a-z_]+)\s*(?:=~|!~|!=|=)").unwrap();
    let grouping = Regex::new(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)").unwrap();
    // Labels of Prometheus, and variables of Grafana.
    let scrape = ["job", "instance", "namespace", "pod", "le"];
    let mut labels: BTreeSet<&str> = scrape.into();
    let words: Vec<_> = grouping
        .captures_iter(&plain)
        .flat_map(|group| group.get(1).unwrap().as_str().split(','))
        .map(str::trim)
        .collect();
    let bare = grouping.replace_all(&plain, "");
    for found in series.captures_iter(&bare) {
        let name = &found[1];
        if [
            "histogram_quantile",
            "label_replace",
            "label_values",
            "sum_over_time",
            "max_over_time",
        ]
        .contains(&name)
        {
            continue;
        }
        let histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .and_then(|base| metrics.get(base))
            .filter(|metric| metric.kind == "histogram");
        let simple = metrics.get(name).filter(|metric| metric.kind != "histogram");
        let Some(metric) = histogram.or(simple) else {
            // A label of a selector is checked with its metric.
            problems.push(format!("{name} is not a series"));
            continue;
        };
        labels.extend(metric.labels.iter().map(String::as_str));
        let selector = found.get(2).map_or("", |selector| selector.as_str());
        for used in label.captures_iter(selector) {
            if !metric.labels.contains(&used[1]) && !scrape.contains(&&used[1]) {
                problems.push(format!("{name} has no label {}", &used[1]));
            }
        }
    }
    for word in words {
        if !word.is_empty() && !labels.contains(word) {
            problems.push(format!("{word} is a label of none of the metrics"));
        }
    }
    problems
}

#[test]
fn a_wrong_expression_is_reported() {
    let metrics = reference();
    let wrong = |expression: &str| problems(expression, &metrics);
    let right = "sum by (op) (rate(ccm_cloud_calls_total{result=\"error\",job=~\"$job\"}[5m])) > 0";
    assert_eq!(wrong(right), Vec::<String>::new());
    assert_eq!(
        wrong("histogram_quantile(0.9, sum by (le, op) (rate(ccm_cloud_call_duration_seconds_bucket[5m])))"),
        Vec::<String>::new()
    );
    for (expression, problem) in [
        ("ccm_cloud_calls", "ccm_cloud_calls is not a series"),
        ("ccm_cloud_calls_bucket", "ccm_cloud_calls_bucket is not a series"),
        ("ccm_cloud_call_duration_seconds", "ccm_cloud_call_duration_seconds is not a series"),
        ("ccm_services{reason=\"x\"}", "ccm_services has no label reason"),
        ("sum by (node) (ccm_services)", "node is a label of none of the metrics"),
        ("sum(ccm_services", "( and ) do not match"),
    ] {
        assert_eq!(wrong(expression), [problem], "{expression}");
    }
}

fn strings<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => strings(value, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| strings(item, key, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_existing_metrics() {
    let dashboard: Value = serde_json::from_str(&read("deploy/monitoring/dashboard.json")).unwrap();
    let mut expressions = Vec::new();
    strings(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() >= 20, "{}", expressions.len());
    let metrics = reference();
    for expression in expressions {
        let problems = problems(expression, &metrics);
        assert!(problems.is_empty(), "{expression}: {problems:?}");
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "every panel has an id of its own");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let place = &panel["gridPos"];
        let right = place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap();
        assert!(right <= 24, "{}: too far to the right", panel["title"]);
        assert!(panel["description"].is_string(), "{}: no description", panel["title"]);
    }
}

/// Alert and expression of every rule.
fn alerts() -> Vec<(String, String)> {
    let rules: Value = serde_saphyr::from_str(&read("deploy/monitoring/alerts.yaml")).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    rules
        .map(|rule| ["alert", "expr"].map(|key| rule[key].as_str().unwrap().to_owned()).into())
        .collect()
}

/// The metrics of any component of Kubernetes, which works and leads or does not.
fn component(works: bool, leads: bool) -> String {
    let (errors, stuck) = if works { (0, 0) } else { (900, 7000) };
    let leads = u8::from(leads);
    let runs = u8::from(works);
    format!(
        "leader_election_master_status{{name=\"lease\"}} {leads}\n\
         running_managed_controllers{{name=\"cloud-node\",manager=\"x\"}} {runs}\n\
         workqueue_longest_running_processor_seconds{{name=\"node\"}} {stuck}\n\
         rest_client_requests_total{{code=\"200\",method=\"GET\",host=\"h\"}} 1000\n\
         rest_client_requests_total{{code=\"500\",method=\"GET\",host=\"h\"}} {errors}\n"
    )
}

#[test]
fn alerts_fire_only_for_this_program() {
    let alerts = alerts();
    // Discovery by annotations assigns the same job to both.
    let firing = |program: &str, component: &str| -> BTreeSet<String> {
        let scraped = Scraped::default().with("pods", "10.0.0.1:10257", component).with(
            "pods",
            "10.0.0.1:10258",
            program,
        );
        let firing = alerts.iter().filter(|(_, expression)| !scraped.query(expression).is_empty());
        firing.map(|(name, _)| name.clone()).collect()
    };
    let program = |works: bool, leads: bool| {
        let routes = u8::from(works);
        let own = component(works, leads);
        format!(
            "ccm_build_info{{version=\"1\",providers=\"x\"}} 1\nccm_route_controller_running {routes}\n{own}"
        )
    };
    let well = component(true, true);
    let busy = well.replace(" 1000", " 1000000");
    let none = BTreeSet::new();
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();

    assert_eq!(firing(&program(true, true), &well), none);
    assert_eq!(firing(&program(true, true), &component(false, false)), none);
    assert_eq!(firing("", &well), names(&["CcmDown"]));
    // A busy and healthy component hides no alert.
    assert_eq!(
        firing(&program(false, false), &busy),
        names(&["CcmApiServerErrors", "CcmNoLeader", "CcmQueueStuck"])
    );
    assert_eq!(
        firing(&program(false, true), &busy),
        names(&[
            "CcmApiServerErrors",
            "CcmControllerNotRunning",
            "CcmQueueStuck",
            "CcmRoutesNotKept"
        ])
    );
}

#[test]
fn every_alert_uses_existing_metrics_and_has_a_runbook() {
    let rules: Value = serde_saphyr::from_str(&read("deploy/monitoring/alerts.yaml")).unwrap();
    let (metrics, runbook) = (reference(), read("docs/operations.md"));
    let rules = rules["groups"].as_array().unwrap().iter();
    let alerts: Vec<_> = rules.flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(alerts.len() >= 8, "{}", alerts.len());
    let mut names = BTreeSet::new();
    for alert in alerts {
        let name = alert["alert"].as_str().unwrap();
        assert!(names.insert(name), "{name} occurs twice");
        let problems = problems(alert["expr"].as_str().unwrap(), &metrics);
        assert!(problems.is_empty(), "{name}: {problems:?}");
        assert!(runbook.contains(&format!("| `{name}` |")), "docs/operations.md has no row for {name}");
        assert!(alert["for"].is_string(), "{name}: it fires at the first sample");
        assert!(
            matches!(alert["labels"]["severity"].as_str(), Some("warning" | "critical")),
            "{name}: a severity"
        );
        for text in ["summary", "description", "runbook"] {
            assert!(alert["annotations"][text].is_string(), "{name}: {text}");
        }
    }
    let row = Regex::new(r"(?m)^\| `(Ccm[A-Za-z]+)` \|").unwrap();
    for row in row.captures_iter(&runbook) {
        assert!(names.contains(&row[1]), "{} does not exist", &row[1]);
    }
}
