//! The paths of the HTTPS server.

use ccm_core::controllers::metrics_text;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request};
use prometheus_client::metrics::{counter::Counter, family::Family};
use rustls::pki_types::CertificateDer;

use super::{
    Shown,
    access::{Access, AccessRefusal, Reviewers},
    health::{self, Endpoint, Slis},
};
use crate::metrics::register;

/// All paths, for the status page and for requests. Those of health checks have paths below them.
pub(super) const PATHS: [&str; 8] = [
    "/configz",
    "/flagz",
    "/healthz",
    "/livez",
    "/metrics",
    "/metrics/slis",
    "/readyz",
    "/statusz",
];

const JSON: &str = "application/json";

/// The client of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    /// Whether it is on this machine.
    pub(super) local: bool,
    /// Its certificates, not verified yet.
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

type RequestLabels = [(&'static str, String); 2];

/// Answers requests.
pub(super) struct Routes {
    pub(super) access: Access,
    shown: Shown,
    slis: Slis,
    requests: Family<RequestLabels, Counter>,
}

/// The meaning of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route<'a> {
    Health(Endpoint, Option<&'a str>),
    /// One of [`PATHS`].
    Page(&'static str),
}

impl<'a> Route<'a> {
    fn of(path: &'a str) -> Option<Self> {
        let health = Endpoint::of_path(path).map(|(endpoint, check)| Self::Health(endpoint, check));
        health.or_else(|| PATHS.into_iter().find(|known| *known == path).map(Self::Page))
    }

    fn allows(self, method: &Method) -> bool {
        matches!(*method, Method::GET | Method::HEAD)
            || (self == Self::Page("/metrics/slis") && method == Method::DELETE)
    }

    /// The metric label.
    fn label(self) -> &'static str {
        match self {
            Self::Health(endpoint, _) => endpoint.name(),
            Self::Page(path) => path.rsplit('/').next().unwrap_or(path),
        }
    }
}

impl Routes {
    pub(super) fn new(access: Access, shown: Shown) -> Self {
        let requests = Family::default();
        shown.metrics.with(|registry| register(registry, "ccm_https_requests", requests.clone()));
        Self {
            access,
            shown,
            slis: Slis::default(),
            requests,
        }
    }

    pub(super) async fn answer(
        &self,
        peer: &Peer,
        request: &request::Parts,
        reviewers: &Reviewers,
    ) -> Response<String> {
        let route = Route::of(request.uri.path());
        let response = match route {
            // No authentication: the existence of a path is not a secret.
            None => not_found(),
            Some(route) if !route.allows(&request.method) => method_not_allowed(),
            Some(route) => match self.admit(route, peer, request, reviewers).await {
                Ok(()) => self.serve(route, peer, request),
                Err(refusal) => text(refusal.status, refusal.message),
            },
        };
        let label = route.map_or("none", Route::label);
        let code = response.status().as_str().to_owned();
        self.requests.get_or_create(&[("page", label.to_owned()), ("code", code)]).inc();
        response
    }

    async fn admit(
        &self,
        route: Route<'_>,
        peer: &Peer,
        request: &request::Parts,
        reviewers: &Reviewers,
    ) -> Result<(), AccessRefusal> {
        if self.access.is_open(request.uri.path()) {
            return Ok(());
        }
        if let Route::Health(endpoint, _) = route
            && self.access.is_open(endpoint.name())
        {
            return Ok(());
        }
        self.access.check(request, &peer.certificates, reviewers).await
    }

    fn serve(&self, route: Route<'_>, peer: &Peer, request: &request::Parts) -> Response<String> {
        let shown = &self.shown;
        match route {
            Route::Health(endpoint, check) => {
                let answer = match check {
                    None => {
                        let query = request.uri.query();
                        Some(health::aggregate(&shown.checks, endpoint, query, &self.slis))
                    }
                    Some(name) => health::single(&shown.checks, endpoint, name, peer.local),
                };
                answer.map_or_else(not_found, |(status, body)| text(status, body))
            }
            Route::Page("/metrics") => metrics_page(shown.metrics.render()),
            Route::Page("/metrics/slis") if request.method == Method::DELETE => {
                self.slis.reset();
                text(StatusCode::OK, "metrics reset\n")
            }
            Route::Page("/metrics/slis") => metrics_page(self.slis.render()),
            Route::Page("/configz") => page(JSON, shown.config.configz()),
            Route::Page("/flagz") if prefers(&request.headers, JSON, "text/plain") => {
                page(JSON, shown.config.flagz_json())
            }
            Route::Page("/flagz") => text(StatusCode::OK, shown.config.flagz()),
            Route::Page("/statusz") => self.statusz(request),
            Route::Page(_) => not_found(),
        }
    }

    fn statusz(&self, request: &request::Parts) -> Response<String> {
        let (checks, metrics, status) = (&self.shown.checks, &self.shown.metrics, &self.shown.status);
        if prefers(&request.headers, JSON, "text/html") {
            return page(JSON, status.json(checks, metrics));
        }
        let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
        let mut response = page("text/html; charset=utf-8", status.html(checks, metrics));
        set_header(&mut response, header::CONTENT_SECURITY_POLICY, policy);
        response
    }
}

/// Whether the client prefers one type of content to another one.
pub(super) fn prefers(headers: &HeaderMap, preferred: &str, otherwise: &str) -> bool {
    let weight_of = |content_type: &str| {
        let values = headers.get_all(header::ACCEPT).iter();
        let items = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
        let weights = items.filter_map(|item| {
            let mut parts = item.split(';').map(str::trim);
            let is_content_type = parts.next()?.eq_ignore_ascii_case(content_type);
            is_content_type
                .then(|| parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0))
        });
        weights.fold(0.0, f32::max)
    };
    weight_of(preferred) > weight_of(otherwise)
}

fn metrics_page(rendered: Result<String, std::fmt::Error>) -> Response<String> {
    match rendered {
        Ok(body) => page(metrics_text::CONTENT_TYPE, body),
        Err(error) => {
            let message = format!("cannot print the metrics: {error}\n");
            text(StatusCode::INTERNAL_SERVER_ERROR, message)
        }
    }
}

fn page(content_type: &'static str, body: String) -> Response<String> {
    let mut response = text(StatusCode::OK, body);
    set_header(&mut response, header::CONTENT_TYPE, content_type);
    response
}

fn text(status: StatusCode, body: impl Into<String>) -> Response<String> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    set_header(&mut response, header::CONTENT_TYPE, "text/plain; charset=utf-8");
    set_header(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set_header(&mut response, header::CACHE_CONTROL, "no-cache, private");
    response
}

fn set_header(response: &mut Response<String>, name: HeaderName, value: &'static str) {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
}

fn not_found() -> Response<String> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn method_not_allowed() -> Response<String> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are served here\n");
    set_header(&mut response, header::ALLOW, "GET, HEAD");
    response
}
