//! A request to the API server or to a cloud in the log of a proxy.

use std::fmt;

/// One request and its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// Position in the order of arrival, from 1.
    pub seq: u64,
    /// HTTP method.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// The query.
    pub query: String,
    /// The resource in plural (`nodes`); empty for paths without a resource.
    pub resource: String,
    /// The subresource (`status`), or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The object's name; empty for lists and creations.
    pub name: String,
    /// The body, if it contains the action (AWS); else empty.
    pub body: String,
    /// The client's user agent.
    pub user_agent: String,
    /// Status of the answer; none until it is sent, and if the client got none.
    pub status: Option<u16>,
    /// The name of the injected fault.
    pub fault: Option<&'static str>,
}

impl Request {
    pub(super) fn new(method: &str, path: &str, query: &str, user_agent: &str) -> Self {
        let mut request = Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            user_agent: user_agent.to_owned(),
            ..Self::default()
        };
        let mut segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let version = match segments.first() {
            Some(&"api") => 2,
            Some(&"apis") => 3,
            _ => return request,
        };
        let mut rest: Vec<&str> = segments.drain(version.min(segments.len())..).collect();
        if rest.len() > 2 && rest.first() == Some(&"namespaces") {
            request.namespace = rest.drain(..2).next_back().unwrap_or_default().to_owned();
        }
        let mut rest = rest.into_iter();
        for part in [&mut request.resource, &mut request.name, &mut request.subresource] {
            *part = rest.next().unwrap_or_default().to_owned();
        }
        request
    }

    /// Whether the request may be a write.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.method.as_str(), "POST" | "PUT" | "PATCH" | "DELETE")
    }

    /// Whether the request is a watch, whose answer does not end by itself.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.query.split('&').any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
    }

    /// Whether the request is for a Lease.
    #[must_use]
    pub fn is_lease(&self) -> bool {
        self.resource == "leases"
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            method,
            path,
            resource,
            subresource,
            name,
            ..
        } = self;
        if resource.is_empty() {
            return write!(f, "{method} {path}");
        }
        write!(f, "{method} {resource}")?;
        if !subresource.is_empty() {
            write!(f, "/{subresource}")?;
        }
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if self.is_watch() {
            f.write_str(" (watch)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parsed() {
        for (path, query, expected) in [
            ("/api/v1/nodes", "limit=500", "GET nodes"),
            ("/api/v1/nodes", "watch=true&x=y", "GET nodes (watch)"),
            ("/api/v1/nodes/n-1/status", "", "GET nodes/status n-1"),
            ("/api/v1/namespaces/default/events", "", "GET events"),
            ("/api/v1/namespaces/default", "", "GET namespaces default"),
            ("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l", "", "GET leases l"),
            ("/version", "", "GET /version"),
            ("/api", "", "GET /api"),
        ] {
            assert_eq!(Request::new("GET", path, query, "").to_string(), expected, "{path}");
        }
        let lease =
            Request::new("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l", "", "");
        assert!(lease.is_write() && lease.is_lease());
        assert_eq!(lease.namespace, "kube-system");
    }
}
