//! Requests and replies of the simulated services, independent of the server.

use std::pin::Pin;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use hyper::body::{Body as _, Bytes, Incoming};
use percent_encoding::percent_decode_str;
use serde::Serialize;

/// A request with its whole body.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Path as it was sent.
    pub(crate) path: String,
    /// Query as it was sent, without the question mark.
    pub(crate) query: String,
    /// Decoded query parameters in their order; a parameter may occur several times.
    pub(crate) params: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Request {
    pub(crate) fn new(parts: &http::request::Parts, body: Bytes) -> Self {
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let params = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Self {
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            query,
            params,
            headers: parts.headers.clone(),
            body,
        }
    }

    /// A header's text, if the header exists and is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// All values of a query parameter.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.params.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The last value of a query parameter.
    pub(crate) fn last<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).last()
    }

    /// Whether the query has no other parameters.
    pub(crate) fn has_only(&self, known: &[&str]) -> bool {
        self.params.iter().all(|(name, _)| known.contains(&name.as_str()))
    }

    /// Path and query, as a fault searches them.
    pub(crate) fn target(&self) -> String {
        if self.query.is_empty() {
            self.path.clone()
        } else {
            format!("{}?{}", self.path, self.query)
        }
    }

    /// Length of the request line, which real front ends limit.
    pub(crate) fn line_length(&self) -> usize {
        let question_mark = usize::from(!self.query.is_empty());
        self.method.as_str().len() + self.path.len() + question_mark + self.query.len() + " HTTP/1.1 ".len()
    }
}

/// Reads a whole body.
pub(crate) async fn collect(mut body: Incoming) -> Result<Bytes, hyper::Error> {
    let mut whole = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(data) = frame?.into_data() {
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.into())
}

/// A finished answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn new(status: StatusCode, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        Self {
            status,
            headers,
            body: body.into(),
        }
    }

    /// An answer without a body.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body: Vec::new(),
        }
    }

    /// A JSON document.
    pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::new(status, "application/json", body),
            Err(error) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", error.to_string()),
        }
    }

    /// Sets a header; an invalid value is left out.
    pub(crate) fn with(mut self, name: impl TryInto<HeaderName>, value: &str) -> Self {
        if let (Ok(name), Ok(value)) = (name.try_into(), HeaderValue::from_str(value)) {
            self.headers.insert(name, value);
        }
        self
    }
}

/// Splits a path into its decoded segments. A trailing slash leaves an empty last segment.
pub(crate) fn segments(path: &str) -> Vec<String> {
    path.trim_start_matches('/')
        .split('/')
        .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_and_decodes_paths() {
        for (path, want) in [
            ("/", vec![""]),
            ("/v3", vec!["v3"]),
            ("/Region%20One/v2.1/", vec!["Region One", "v2.1", ""]),
            ("/a%zz%4", vec!["a%zz%4"]),
        ] {
            assert_eq!(segments(path), want, "{path}");
        }
    }
}
