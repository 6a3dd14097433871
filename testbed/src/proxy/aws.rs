//! A proxy for an emulator of AWS.
//!
//! Requests of the Query protocol have their action in the body. The emulator selects the account by a header that the proxy
//! adds. Each proxy has its own account, so that tests can share one emulator.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::Bytes;
use parking_lot::Mutex;

use super::cloud::{CloudProxy, Dialect};
use super::listing::reordered;
use super::new_objects::NewObjects;
use super::{Action, Request, Rule};

/// Prefixes of the names of read actions.
pub const READS: [&str; 4] = ["Describe", "Get", "List", "Assume"];

/// moto's header for the account of a request.
const ACCOUNT: HeaderName = HeaderName::from_static("x-moto-account-id");

/// The header of the emulator's answer to a request that AWS would refuse (`tests/parity/aws/checker.py`), with the reason.
const REFUSED: HeaderName = HeaderName::from_static("x-refused-by-the-checker");

/// The protocol of the services of AWS.
#[derive(Debug)]
pub struct AwsDialect {
    upstream: String,
    account: HeaderValue,
    imitates_real_service: AtomicBool,
    /// IDs of security groups that no request has named yet.
    new_groups: Mutex<BTreeSet<String>>,
    /// Objects and tags of Elastic Load Balancing that no listing has left out yet.
    new_objects: Mutex<NewObjects>,
    /// The requests that AWS would refuse, with the reason.
    refused: Mutex<Vec<String>>,
}

impl AwsDialect {
    /// The requests since the last call that AWS would refuse, with the reason. The test fails if one remains at its end.
    pub fn take_refused(&self) -> Vec<String> {
        std::mem::take(&mut self.refused.lock())
    }
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
            imitates_real_service: AtomicBool::default(),
            new_groups: Mutex::default(),
            new_objects: Mutex::default(),
            refused: Mutex::default(),
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

    fn inspect(&self, request: &Request, headers: &HeaderMap) {
        if let Some(why) = headers.get(REFUSED) {
            let why = String::from_utf8_lossy(why.as_bytes());
            self.refused.lock().push(format!("{why}: {}", request.body));
        }
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

    /// The codes of the "Common errors" of the API references of EC2 and of Elastic Load Balancing.
    fn refusals(&self) -> Vec<Rule> {
        let refusals = [
            (true, 503, "RequestLimitExceeded"),
            (true, 503, "Unavailable"),
            (true, 403, "UnauthorizedOperation"),
            (true, 500, "InternalFailure"),
            (false, 400, "ThrottlingException"),
            (false, 403, "AccessDenied"),
            (false, 403, "AccessDeniedException"),
            (false, 500, "InternalFailure"),
        ];
        refusals
            .into_iter()
            .map(|(is_ec2, status, code)| {
                let applies = move |request: &Request| {
                    !request.resource.is_empty() && (request.resource == "ec2") == is_ec2
                };
                Rule::when(applies, Action::answer(status, refusal(is_ec2, code, "refused on purpose")))
            })
            .collect()
    }

    fn imitate_real_service(&self) {
        self.imitates_real_service.store(true, Ordering::Relaxed);
    }

    fn spread(&self) {
        self.new_groups.lock().clear();
        self.new_objects.lock().clear();
    }

    /// EC2 is eventually consistent ("Ensuring idempotency and eventual consistency in Amazon EC2 API requests"): the first
    /// request that names a new security group is refused.
    fn premature(&self, request: &Request) -> Option<(u16, String)> {
        let mut new_groups = self.new_groups.lock();
        let group = new_groups.iter().find(|group| request.body.contains(group.as_str()))?.clone();
        new_groups.remove(&group);
        let is_ec2 = request.resource == "ec2";
        let code = if is_ec2 {
            "InvalidGroup.NotFound"
        } else {
            "InvalidSecurityGroup"
        };
        let message = format!("The security group '{group}' does not exist");
        Some((400, refusal(is_ec2, code, &message)))
    }

    fn rewrite(&self, request: &Request, body: Bytes) -> Bytes {
        if !self.imitates_real_service.load(Ordering::Relaxed) {
            return body;
        }
        let Ok(text) = std::str::from_utf8(&body) else {
            return body;
        };
        if request.name == "CreateSecurityGroup"
            && let Some((_, after)) = text.split_once("<groupId>")
            && let Some((group, _)) = after.split_once("</groupId>")
        {
            self.new_groups.lock().insert(group.to_owned());
        }
        if self.is_change(request) {
            self.new_objects.lock().add(request, text);
            return body;
        }
        let shown = self.new_objects.lock().hide(request, text);
        let shown = shown.as_deref().unwrap_or(text);
        reordered(shown, request.seq).unwrap_or_else(|| shown.to_owned()).into()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(resource: &str, name: &str, body: &str) -> Request {
        Request {
            resource: resource.to_owned(),
            name: name.to_owned(),
            body: body.to_owned(),
            ..Request::default()
        }
    }

    fn dialect() -> AwsDialect {
        AwsDialect {
            upstream: String::new(),
            account: HeaderValue::from_static("123456789012"),
            imitates_real_service: AtomicBool::default(),
            new_groups: Mutex::default(),
            new_objects: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    #[test]
    fn the_first_request_that_names_a_new_group_is_refused() {
        let dialect = dialect();
        let create = request("ec2", "CreateSecurityGroup", "");
        let created = || Bytes::from_static(b"<R><groupId>sg-1</groupId></R>");
        let authorize = request("ec2", "AuthorizeSecurityGroupIngress", "GroupId=sg-1");
        dialect.rewrite(&create, created());
        assert_eq!(dialect.premature(&authorize), None, "it does not imitate AWS yet");
        dialect.imitate_real_service();
        dialect.rewrite(&create, created());
        assert_eq!(dialect.premature(&request("ec2", "DescribeVpcs", "GroupId=sg-2")), None);
        let (status, body) = dialect.premature(&authorize).unwrap_or_default();
        assert!(status == 400 && body.contains("InvalidGroup.NotFound"), "{body}");
        assert_eq!(dialect.premature(&authorize), None, "all servers know it now");
    }

    #[test]
    fn each_service_has_its_own_refusals() {
        let rules = dialect().refusals();
        for resource in ["ec2", "elb", "elbv2"] {
            let request = request(resource, "DescribeVpcs", "");
            assert!(rules.iter().any(|rule| rule.matches(&request)), "{resource}");
        }
        let metadata = request("", "/latest/meta-data", "");
        assert!(!rules.iter().any(|rule| rule.matches(&metadata)));
    }
}
