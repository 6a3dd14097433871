//! The transport of requests: those that the SDK builds, and our own.
//!
//! The SDK builds path, query and headers of requests to Microsoft.Network. Its models drop members that they do not know, so that they
//! are not used: documents stay JSON. The transport replaces the body of a request, adds `If-Match`, sets the API version, and
//! keeps the answer for the caller. The SDK gets its status only.

use std::{fmt, sync::Arc};

use azure_core::{
    HttpClient, StatusCode as SdkStatus,
    auth::{AccessToken, Secret, TokenCredential},
    headers::Headers,
};
use ccm_core::{
    Error, ErrorKind, Result, async_trait,
    client::rest::{Answer, Failure, Target, read_body, reqwest},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use tracing::trace;
use url::Url;

/// The longest answer, in bytes.
const BODY_MAX: usize = 64 << 20;
/// The query parameter of the API version.
const API_VERSION: &str = "api-version";
/// The header with a token for a further tenant.
pub(crate) const AUXILIARY: HeaderName = HeaderName::from_static("x-ms-authorization-auxiliary");
/// The header with our ID of a request.
const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-client-request-id");
/// The header with Azure's ID of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");

/// What the transport adds to a request.
#[derive(Clone, Default)]
pub(crate) struct Additions {
    /// Replaces the API version of the URL.
    pub(crate) api_version: Option<&'static str>,
    /// Headers, such as `If-Match`.
    pub(crate) headers: HeaderMap,
    /// Replaces the body.
    pub(crate) body: Option<Vec<u8>>,
}

/// Without headers: one of them is a token.
impl fmt::Debug for Additions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Additions")
            .field("api_version", &self.api_version)
            .finish_non_exhaustive()
    }
}

/// Sends one request.
#[derive(Debug)]
pub(crate) struct Exchange {
    http: reqwest::Client,
    additions: Additions,
    reply: Mutex<Option<(Target, Result<Answer>)>>,
}

impl Exchange {
    pub(crate) fn new(http: &reqwest::Client, additions: Additions) -> Arc<Self> {
        Arc::new(Self {
            http: http.clone(),
            additions,
            reply: Mutex::default(),
        })
    }

    /// Sends the request with the additions. The answer may be a refusal.
    ///
    /// # Errors
    /// There is no complete answer.
    pub(crate) async fn send(
        &self,
        method: Method,
        mut url: Url,
        authorization: HeaderValue,
    ) -> (Target, Result<Answer>) {
        if let Some(version) = self.additions.api_version {
            set_api_version(&mut url, version);
        }
        let target = Target {
            method: method.clone(),
            path: url.path().to_owned(),
        };
        let mut request = self
            .http
            .request(method, url)
            .header(header::ACCEPT, "application/json")
            .header(header::AUTHORIZATION, authorization)
            .header(CLIENT_REQUEST_ID, uuid::Uuid::new_v4().to_string())
            .headers(self.additions.headers.clone());
        if let Some(body) = &self.additions.body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body.clone());
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                let error = Failure::Transport(error).into_error(&target);
                return (target, Err(error));
            }
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        trace!(
            method = %target.method,
            path = target.path,
            status = status.as_u16(),
            request_id = id,
            "The cloud answered"
        );
        let answer = match read_body(response, BODY_MAX).await {
            Ok(body) => Ok(Answer {
                status,
                headers,
                body,
            }),
            Err(failure) => Err(failure.into_error(&target)),
        };
        (target, answer)
    }

    /// The answer to the request that the SDK sent.
    ///
    /// # Errors
    /// There is no answer, or the SDK sent nothing.
    pub(crate) fn into_reply(self: Arc<Self>) -> Result<(Target, Answer)> {
        match self.reply.lock().take() {
            Some((target, answer)) => Ok((target, answer?)),
            None => Err(Error::new(ErrorKind::Unexpected, "the Azure SDK could not build the request")),
        }
    }
}

/// Sets the API version in a query.
fn set_api_version(url: &mut Url, version: &str) {
    let others: Vec<(String, String)> = url
        .query_pairs()
        .filter(|(key, _)| key != API_VERSION)
        .map(|(key, value)| (key.into_owned(), value.into_owned()))
        .collect();
    url.query_pairs_mut().clear().extend_pairs(others).append_pair(API_VERSION, version);
}

#[async_trait]
impl HttpClient for Exchange {
    async fn execute_request(
        &self,
        request: &azure_core::Request,
    ) -> azure_core::Result<azure_core::Response> {
        let failed =
            |text: &'static str| azure_core::Error::message(azure_core::error::ErrorKind::Other, text);
        let method = Method::from_bytes(request.method().to_string().as_bytes())
            .map_err(|_| failed("unknown method"))?;
        let token = request.headers().get_optional_str(&azure_core::headers::AUTHORIZATION);
        let authorization =
            HeaderValue::from_str(token.unwrap_or_default()).map_err(|_| failed("the token is no header"))?;
        let (target, answer) = self.send(method, request.url().clone(), authorization).await;
        let status = match &answer {
            Ok(answer) => SdkStatus::try_from(answer.status.as_u16()).ok(),
            Err(_) => None,
        };
        *self.reply.lock() = Some((target, answer));
        let status = status.ok_or_else(|| failed("no answer"))?;
        Ok(azure_core::Response::new(status, Headers::new(), Box::pin(futures_util::stream::empty())))
    }
}

/// A token as a credential of the SDK, which asks for it once for each request.
#[derive(Clone)]
pub(crate) struct OneToken(pub(crate) SecretString);

impl fmt::Debug for OneToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneToken")
    }
}

#[async_trait]
impl TokenCredential for OneToken {
    async fn get_token(&self, _: &[&str]) -> azure_core::Result<AccessToken> {
        // The SDK does not read the time.
        let expires = azure_core::date::parse_rfc3339("9999-01-01T00:00:00Z")?;
        Ok(AccessToken::new(Secret::new(self.0.expose_secret().to_owned()), expires))
    }

    async fn clear_cache(&self) -> azure_core::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_api_version_is_replaced_and_other_parameters_stay() {
        let mut url = Url::parse("https://a/b?$expand=instanceView&api-version=2024-03-01").unwrap();
        set_api_version(&mut url, "2025-05-01");
        let pairs: Vec<_> = url.query_pairs().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(pairs, ["$expand=instanceView", "api-version=2025-05-01"]);
    }
}
