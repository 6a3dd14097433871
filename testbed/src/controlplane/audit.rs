//! Reads the API server's audit log.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// One request in the audit log, at level Metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, ...
    pub verb: String,
    /// The resource in plural (`nodes`); empty for paths without a resource.
    pub resource: String,
    /// The subresource (`status`), or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The object's name; empty for lists, and for names that the server generated.
    pub name: String,
    /// The user, `system:serviceaccount:NAMESPACE:NAME` for a ServiceAccount.
    pub user: String,
    /// The client's user agent.
    pub user_agent: String,
    /// The path with its query.
    pub uri: String,
    /// The HTTP status; 0 if the log does not contain it.
    pub code: u16,
}

impl AuditEntry {
    /// Whether the program under test sent it, under any account.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.user_agent.starts_with("cloud-controller-manager")
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    stage: String,
    verb: String,
    #[serde(rename = "requestURI", default)]
    request_uri: String,
    #[serde(default)]
    user: RawUser,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: RawObject,
    #[serde(default)]
    response_status: RawStatus,
}

#[derive(Default, Deserialize)]
struct RawUser {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawObject {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
struct RawStatus {
    #[serde(default)]
    code: u16,
}

pub(super) fn read(path: &Path) -> Result<Vec<AuditEntry>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&String::from_utf8_lossy(&bytes))
}

/// Each request once: a watch is logged at its start and, unless it was refused, at its end. An incomplete last line is ignored,
/// because it is still being written.
fn parse(text: &str) -> Result<Vec<AuditEntry>> {
    let mut entries = Vec::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let raw: Raw =
            serde_json::from_str(line).with_context(|| format!("invalid line in the audit log: {line}"))?;
        let is_end =
            raw.verb == "watch" && raw.stage == "ResponseComplete" && raw.response_status.code == 200;
        if !is_end {
            entries.push(AuditEntry {
                verb: raw.verb,
                resource: raw.object_ref.resource,
                subresource: raw.object_ref.subresource,
                namespace: raw.object_ref.namespace,
                name: raw.object_ref.name,
                user: raw.user.username,
                user_agent: raw.user_agent,
                uri: raw.request_uri,
                code: raw.response_status.code,
            });
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_watch_counts_once_and_an_incomplete_line_is_ignored() {
        let of = |stage: &str, verb: &str, name: &str, code: u16| {
            let object = json!({"resource": "nodes", "name": name});
            let status = json!({"code": code});
            json!({"stage": stage, "verb": verb, "requestURI": "/api/v1/nodes", "user": {"username": "u"},
                   "objectRef": object, "responseStatus": status})
        };
        let mut text = [
            of("ResponseStarted", "watch", "", 200),
            of("ResponseComplete", "patch", "n", 200),
            of("ResponseComplete", "watch", "", 200),
            of("ResponseComplete", "watch", "refused", 403),
        ]
        .map(|line| format!("{line}\n"))
        .concat();
        text.push_str(r#"{"stage":"ResponseComplete","verb":"ge"#);
        let entries = parse(&text).unwrap();
        let short: Vec<_> = entries.iter().map(|e| (e.verb.as_str(), e.name.as_str(), e.code)).collect();
        assert_eq!(short, [("watch", "", 200), ("patch", "n", 200), ("watch", "refused", 403)]);
        assert_eq!(entries[1].user, "u");
    }
}
