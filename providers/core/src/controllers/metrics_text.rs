//! The text format of Prometheus, version 0.0.4, which is older than OpenMetrics. Upstream serve nothing else.

use std::fmt::{self, Write};

use prometheus_client::{encoding::text::encode, registry::Registry};

/// The type of the content.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of a registry.
///
/// # Errors
/// A metric cannot be printed.
pub fn render(registry: &Registry) -> Result<String, fmt::Error> {
    let mut openmetrics = String::new();
    encode(&mut openmetrics, registry)?;
    plain_text(&openmetrics)
}

fn plain_text(openmetrics: &str) -> Result<String, fmt::Error> {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.lines() {
        let mut words = line.splitn(4, ' ');
        match [(); 4].map(|()| words.next()) {
            [Some("#"), Some("HELP"), _, meaning] => help = meaning,
            [Some("#"), Some("TYPE"), Some(family), Some(kind)] => {
                // A family has the name of its samples here.
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    _ => ("", kind),
                };
                if let Some(help) = help.take() {
                    writeln!(text, "# HELP {family}{suffix} {help}")?;
                }
                writeln!(text, "# TYPE {family}{suffix} {kind}")?;
            }
            // Units and the end have no line of their own.
            [Some("#"), ..] => {}
            _ => match bucket(line) {
                // A whole bound as Go writes it (`le="1"`, not `le="1.0"`), for queries that name it.
                Some((name, bound, rest)) => {
                    let bound = bound.strip_suffix(".0").unwrap_or(bound);
                    writeln!(text, "{name}_bucket{{le=\"{bound}\"{rest}")?;
                }
                None => writeln!(text, "{line}")?,
            },
        }
    }
    Ok(text)
}

/// The name, the bound and the rest of the line of a bucket.
fn bucket(line: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = line.split_once("_bucket{le=\"")?;
    let (bound, rest) = rest.split_once('"')?;
    Some((name, bound, rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_older_format_names_families_like_their_samples() {
        let metrics = "# HELP a_build What it is.\n# TYPE a_build info\na_build_info{v=\"1 2\"} 1\n\
                       # HELP b_bytes Size.\n# TYPE b_bytes gauge\n# UNIT b_bytes bytes\nb_bytes 2.5\n\
                       # HELP c Calls.\n# TYPE c counter\nc_total 3\n# TYPE d unknown\nd 4\n# EOF\n";
        let text = "# HELP a_build_info What it is.\n# TYPE a_build_info gauge\na_build_info{v=\"1 2\"} 1\n\
                    # HELP b_bytes Size.\n# TYPE b_bytes gauge\nb_bytes 2.5\n\
                    # HELP c_total Calls.\n# TYPE c_total counter\nc_total 3\n# TYPE d untyped\nd 4\n";
        assert_eq!(plain_text(metrics).unwrap(), text);
    }

    #[test]
    fn whole_bounds_of_buckets_are_those_of_go() {
        for (line, go) in [
            ("a_bucket{le=\"15.0\",host=\"b\"} 1\n", "a_bucket{le=\"15\",host=\"b\"} 1\n"),
            ("a_bucket{le=\"0.5\",host=\"1.0\"} 1\n", "a_bucket{le=\"0.5\",host=\"1.0\"} 1\n"),
            ("a_bucket{le=\"+Inf\",host=\"1.0\"} 1\n", "a_bucket{le=\"+Inf\",host=\"1.0\"} 1\n"),
            ("build{version=\"1.0\"} 1\n", "build{version=\"1.0\"} 1\n"),
        ] {
            assert_eq!(plain_text(line).unwrap(), go);
        }
    }
}
