//! Reads the calls from the access logs of the OpenStack services.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// One call that a service answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// `keystone`, `nova`, `neutron`, `octavia`, `glance` or `placement`.
    pub service: String,
    /// The HTTP method.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// The query, without the question mark; may be empty.
    pub query: String,
    /// The HTTP status.
    pub status: u16,
    /// The client's user agent. The services also call each other, as `openstacksdk`, `python-novaclient` etc.
    pub user_agent: String,
}

/// A position in the access logs.
#[derive(Clone, Debug, Default)]
pub struct Mark {
    /// Length of each service's log.
    lengths: BTreeMap<String, usize>,
}

fn logs(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut logs = BTreeMap::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new("access"))
            && let Some(service) = path.file_stem().and_then(OsStr::to_str)
        {
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            // An incomplete last line is still being written.
            let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
            let text = String::from_utf8_lossy(bytes.get(..whole).unwrap_or_default()).into_owned();
            logs.insert(service.to_owned(), text);
        }
    }
    Ok(logs)
}

pub(super) fn mark(dir: &Path) -> Result<Mark> {
    Ok(Mark {
        lengths: logs(dir)?.into_iter().map(|(service, text)| (service, text.len())).collect(),
    })
}

pub(super) fn since(dir: &Path, mark: &Mark) -> Result<Vec<Call>> {
    let mut calls = Vec::new();
    for (service, text) in logs(dir)? {
        let from = mark.lengths.get(&service).copied().unwrap_or(0);
        for line in text.get(from..).unwrap_or_default().lines() {
            calls.push(
                parse(&service, line).with_context(|| format!("invalid line in {service}.access: {line}"))?,
            );
        }
    }
    Ok(calls)
}

/// Parses `[time] METHOD PATH?QUERY STATUS MICROSECONDSus "AGENT"`, the format that start.sh configures.
fn parse(service: &str, line: &str) -> Option<Call> {
    let (rest, agent) = line.split_once("us \"")?;
    // Parsed from both ends, because the server logs decoded paths, which may contain blanks.
    let (request, _micros) = rest.split_once("] ")?.1.rsplit_once(' ')?;
    let (request, status) = request.rsplit_once(' ')?;
    let (method, target) = request.split_once(' ')?;
    let (path, query) = target.split_once('?')?;
    Some(Call {
        service: service.to_owned(),
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        status: status.parse().ok()?,
        user_agent: agent.trim_end_matches('"').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    const LINE: &str =
        "[21/Nov/2026:04:55:05 +0000] GET /servers/detail?limit=2 200 1592us \"agent/1 (linux us)\"\n";

    #[test]
    fn calls_since_a_mark_are_the_later_ones() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("nova.access");
        fs::write(&log, LINE).unwrap();
        let before = mark(dir.path()).unwrap();
        assert_eq!(since(dir.path(), &before).unwrap(), []);
        let second = LINE.replace("GET", "POST");
        fs::write(&log, format!("{LINE}{second}[21/Nov/2026:04:55:06 +00")).unwrap();
        let calls = since(dir.path(), &before).unwrap();
        assert_eq!(calls.len(), 1);
        assert_eq!(
            calls[0],
            Call {
                service: "nova".to_owned(),
                method: "POST".to_owned(),
                path: "/servers/detail".to_owned(),
                query: "limit=2".to_owned(),
                status: 200,
                user_agent: "agent/1 (linux us)".to_owned(),
            }
        );
        assert_eq!(since(dir.path(), &Mark::default()).unwrap().len(), 2);
    }

    #[test]
    fn a_path_may_have_blanks() {
        let line = LINE.replace("/servers/detail", "/servers/my first one");
        let call = parse("nova", line.trim_end()).unwrap();
        assert_eq!((call.path.as_str(), call.status), ("/servers/my first one", 200));
    }
}
