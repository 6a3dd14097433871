//! A proxy for an emulator of AWS.
//!
//! Requests of the Query protocol have their action in the body. The emulator selects the account by a header that the proxy
//! adds. Each proxy has its own account, so that tests can share one emulator.

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Request;
use super::cloud::{CloudProxy, Dialect};

/// Prefixes of the names of read actions.
pub const READS: [&str; 4] = ["Describe", "Get", "List", "Assume"];

/// moto's header for the account of a request.
const ACCOUNT: HeaderName = HeaderName::from_static("x-moto-account-id");

/// The protocol of the services of AWS.
#[derive(Debug)]
pub struct AwsDialect {
    upstream: String,
    account: HeaderValue,
}

impl CloudProxy<AwsDialect> {
    /// Starts a proxy for the emulator at this URL and this account (12 digits).
    ///
    /// # Errors
    /// When it cannot listen, or the account is not a valid header value.
    pub async fn start(upstream: &str, account: &str) -> anyhow::Result<Self> {
        let account = HeaderValue::from_str(account)?;
        Self::start_with(|_| AwsDialect {
            upstream: upstream.trim_end_matches('/').to_owned(),
            account,
        })
        .await
    }

    /// The URL for all services.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }
}

/// The value of a key in a form. Names of actions and versions need no decoding.
fn field<'a>(form: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = form.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
}

impl Dialect for AwsDialect {
    fn read(&self, head: &Parts, body: &[u8]) -> Request {
        let path = head.uri.path().to_owned();
        let form = std::str::from_utf8(body).unwrap_or_default();
        let action = field(form, "Action");
        // The two generations of ELB share a name and an endpoint.
        let resource = match (action, field(form, "Version")) {
            (None, _) => "",
            (_, Some("2012-06-01")) => "elb",
            (_, Some("2015-12-01")) => "elbv2",
            (_, Some("2011-06-15")) => "sts",
            _ => "ec2",
        };
        Request {
            method: head.method.to_string(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            name: action.unwrap_or(&path).to_owned(),
            path,
            resource: resource.to_owned(),
            body: form.to_owned(),
            ..Request::default()
        }
    }

    fn is_change(&self, request: &Request) -> bool {
        let asks_only = field(&request.body, "DryRun") == Some("true");
        !request.resource.is_empty() && !asks_only && !READS.iter().any(|verb| request.name.starts_with(verb))
    }

    fn target(&self, request: &Request, headers: &mut HeaderMap) -> Option<String> {
        headers.insert(ACCOUNT, self.account.clone());
        let query = if request.query.is_empty() { "" } else { "?" };
        Some(format!("{}{}{query}{}", self.upstream, request.path, request.query))
    }

    fn refusal(&self, request: &Request, code: u16) -> String {
        let is_ec2 = request.resource == "ec2";
        let error = match (code, is_ec2) {
            (400 | 429, false) => "Throttling",
            (400 | 429 | 503, true) => "RequestLimitExceeded",
            (403, true) => "UnauthorizedOperation",
            (403, false) => "AccessDenied",
            (503, false) => "ServiceUnavailable",
            _ => "InternalError",
        };
        refusal(is_ec2, error, "refused on purpose")
    }

    fn throttled(&self) -> u16 {
        400
    }
}

/// The body of an AWS error with this code.
#[must_use]
pub fn refusal(is_ec2: bool, code: &str, message: &str) -> String {
    let error = format!("<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>");
    if is_ec2 {
        format!("<Response><Errors>{error}</Errors><RequestID>x</RequestID></Response>")
    } else {
        format!("<ErrorResponse>{error}<RequestId>x</RequestId></ErrorResponse>")
    }
}
