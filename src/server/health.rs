//! `/livez`, `/readyz` and `/healthz`: the health checks, and `/metrics/slis`: the results of their probes.
//!
//! Any part of the program may register a check and set it. Probes only read: a probe never waits and never sends a request
//! to the cloud, so that the kubelet does not restart the pod while the cloud is down.
//!
//! | Path | Fails while |
//! |---|---|
//! | `/livez`, `/healthz` | a part of the program is stuck and needs a restart |
//! | `/readyz` | the same, the cloud was never reached, stores are not filled, or the program is about to end |
//!
//! Whether the cloud answers and whether watches work are checks that `/healthz` and `/readyz` show without failing.
//!
//! Bodies, `?verbose`, `?exclude=<check>` and the paths of single checks are those of the Kubernetes components. The reason of
//! a failure may name addresses and users; only a client on this machine gets it, on the path of the check.

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::controllers::metrics_text;
use http::StatusCode;
use parking_lot::RwLock;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tracing::debug;

use crate::metrics::{Labels, register};

/// The consequence of a failing check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckKind {
    /// The process must be restarted. On `/livez`, `/healthz` and `/readyz`.
    Live,
    /// The process cannot do its work now. On `/readyz` only.
    Ready,
    /// Neither another replica nor a restart would help. `/healthz` and `/readyz` show it without failing.
    Shown,
}

impl CheckKind {
    fn is_on(self, endpoint: Endpoint) -> bool {
        match self {
            Self::Live => true,
            Self::Ready => endpoint == Endpoint::Readyz,
            Self::Shown => endpoint != Endpoint::Livez,
        }
    }
}

/// All checks of the program. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Checks(Arc<RwLock<Vec<Check>>>);

struct Check {
    name: &'static str,
    kind: CheckKind,
    probe: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// Sets one check.
#[derive(Clone, Debug)]
pub(crate) struct CheckHandle(Arc<RwLock<Result<(), String>>>);

impl Checks {
    /// A [`CheckKind::Ready`] check that fails until it is set to succeed.
    pub(crate) fn register(&self, name: &'static str) -> CheckHandle {
        let handle = CheckHandle(Arc::new(RwLock::new(Err("not started yet".to_owned()))));
        let state = Arc::clone(&handle.0);
        self.register_probe(name, CheckKind::Ready, move || state.read().clone());
        handle
    }

    /// A check that is computed for each probe, since it depends on the time. It must be quick and must not wait.
    pub(crate) fn register_probe(
        &self,
        name: &'static str,
        kind: CheckKind,
        probe: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        let probe = Box::new(probe);
        self.0.write().push(Check { name, kind, probe });
    }

    /// All checks.
    pub(super) fn all(&self) -> Vec<(&'static str, CheckKind, Result<(), String>)> {
        self.of(Endpoint::Readyz)
    }

    /// The reason why this check fails, if it does.
    #[cfg(test)]
    pub(crate) fn failing(&self, name: &str) -> Option<String> {
        let mut all = self.all().into_iter();
        all.find(|(known, ..)| *known == name)?.2.err()
    }

    /// The failing checks of `/livez`, with their reasons.
    #[cfg(test)]
    pub(crate) fn failing_live(&self) -> Vec<(&'static str, String)> {
        let checks = self.of(Endpoint::Livez).into_iter();
        checks.filter_map(|(name, _, state)| Some((name, state.err()?))).collect()
    }

    fn of(&self, endpoint: Endpoint) -> Vec<(&'static str, CheckKind, Result<(), String>)> {
        let known = self.0.read();
        let mut checks: Vec<_> = known
            .iter()
            .filter(|check| check.kind.is_on(endpoint))
            .map(|check| (check.name, check.kind, (check.probe)()))
            .collect();
        // The server answers at all.
        checks.insert(0, ("ping", CheckKind::Live, Ok(())));
        checks
    }
}

impl CheckHandle {
    /// The check succeeds.
    pub(crate) fn set_ok(&self) {
        *self.0.write() = Ok(());
    }

    /// The check fails for this reason.
    pub(crate) fn set_failing(&self, reason: impl Into<String>) {
        *self.0.write() = Err(reason.into());
    }
}

/// A path that aggregates checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Healthz,
    Livez,
    Readyz,
}

impl Endpoint {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    /// The aggregate that a path belongs to, and the name of the single check if there is one.
    pub(super) fn of_path(path: &str) -> Option<(Self, Option<&str>)> {
        let path = path.strip_prefix('/')?;
        let (first, rest) = match path.split_once('/') {
            Some((first, rest)) => (first, Some(rest).filter(|rest| !rest.is_empty())),
            None => (path, None),
        };
        let endpoint = [Self::Healthz, Self::Livez, Self::Readyz]
            .into_iter()
            .find(|endpoint| endpoint.name() == first)?;
        Some((endpoint, rest))
    }
}

/// The answer for an aggregate.
pub(super) fn aggregate(
    checks: &Checks,
    endpoint: Endpoint,
    query: Option<&str>,
    slis: &Slis,
) -> (StatusCode, String) {
    let mut verbose = false;
    let mut exclude: Vec<String> = Vec::new();
    for (key, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match key.as_ref() {
            "verbose" => verbose = true,
            "exclude" => exclude.push(value.into_owned()),
            _ => {}
        }
    }
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    let mut unused: BTreeSet<_> = exclude.iter().map(String::as_str).collect();
    for (name, kind, state) in checks.of(endpoint) {
        if exclude.iter().any(|excluded| excluded == name) {
            unused.remove(name);
            lines.push(format!("[+]{name} excluded: ok"));
            continue;
        }
        slis.probed(name, endpoint, state.is_ok());
        lines.push(match state {
            Ok(()) => format!("[+]{name} ok"),
            Err(_) if kind == CheckKind::Shown => {
                format!("[-]{name} failed: reason withheld, does not count")
            }
            Err(reason) => {
                failed.push(format!("{name}: {reason}"));
                format!("[-]{name} failed: reason withheld")
            }
        });
    }
    if !unused.is_empty() {
        let names: Vec<_> = unused.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(", ");
        lines.push(format!("warn: some health checks cannot be excluded: no matches for {names}"));
    }
    let name = endpoint.name();
    let (status, verdict) = match failed.as_slice() {
        [] if !verbose => return (StatusCode::OK, "ok".to_owned()),
        [] => (StatusCode::OK, "passed"),
        failed => {
            debug!(endpoint = name, failed = failed.join("; "), "Health check failed");
            (StatusCode::INTERNAL_SERVER_ERROR, "failed")
        }
    };
    lines.push(format!("{name} check {verdict}\n"));
    (status, lines.join("\n"))
}

/// The answer for a single check; `None` if this aggregate has no such check.
pub(super) fn single(
    checks: &Checks,
    endpoint: Endpoint,
    name: &str,
    local_peer: bool,
) -> Option<(StatusCode, String)> {
    let mut checks = checks.of(endpoint).into_iter();
    let (.., state) = checks.find(|(check, ..)| *check == name)?;
    Some(match state {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(reason) => {
            let reason: &str = if local_peer { &reason } else { "reason withheld" };
            (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {reason}\n"))
        }
    })
}

/// The results of probes since the start or the last reset.
#[derive(Clone, Debug, Default)]
pub(super) struct Slis(Arc<RwLock<Results>>);

#[derive(Debug, Default)]
struct Results {
    last: Family<Labels<2>, Gauge>,
    total: Family<Labels<3>, Counter>,
}

impl Slis {
    /// Records the result of a check in a probe.
    pub(super) fn probed(&self, check: &'static str, endpoint: Endpoint, is_ok: bool) {
        let results = self.0.read();
        let (name, kind) = (("name", check), ("type", endpoint.name()));
        let status = ("status", if is_ok { "success" } else { "error" });
        let last = results.last.get_or_create(&[name, kind]);
        last.set(is_ok.into());
        results.total.get_or_create(&[name, kind, status]).inc();
    }

    pub(super) fn reset(&self) {
        *self.0.write() = Results::default();
    }

    pub(super) fn render(&self) -> Result<String, std::fmt::Error> {
        let registry = &mut Registry::default();
        let results = self.0.read();
        register(registry, "kubernetes_healthcheck", results.last.clone());
        register(registry, "kubernetes_healthchecks", results.total.clone());
        metrics_text::render(registry)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn sample() -> (Checks, CheckHandle) {
        let checks = Checks::default();
        checks.register_probe("event-loop", CheckKind::Live, || Ok(()));
        let ready = checks.register("cloud-provider");
        (checks, ready)
    }

    fn get(checks: &Checks, endpoint: Endpoint, query: &str) -> (u16, String) {
        let (status, body) = aggregate(checks, endpoint, Some(query), &Slis::default());
        (status.as_u16(), body)
    }

    #[test]
    fn a_cloud_that_is_down_is_not_ready_but_alive() {
        let (checks, ready) = sample();
        ready.set_failing("no route to the cloud");
        assert_eq!(get(&checks, Endpoint::Livez, ""), (200, "ok".into()));
        assert_eq!(get(&checks, Endpoint::Healthz, ""), (200, "ok".into()));
        assert_eq!(
            get(&checks, Endpoint::Readyz, ""),
            (
                500,
                "[+]ping ok\n[+]event-loop ok\n[-]cloud-provider failed: reason withheld\nreadyz check failed\n"
                    .into()
            )
        );
        ready.set_ok();
        assert_eq!(get(&checks, Endpoint::Readyz, ""), (200, "ok".into()));
    }

    #[test]
    fn a_stuck_part_fails_everywhere() {
        let (checks, ready) = sample();
        ready.set_ok();
        let (sender, receiver) = tokio::sync::watch::channel(Ok(()));
        checks.register_probe("clock", CheckKind::Live, move || receiver.borrow().clone());
        for (state, status) in [(Ok(()), 200), (Err("late".to_owned()), 500)] {
            sender.send(state).unwrap();
            for endpoint in [Endpoint::Livez, Endpoint::Healthz, Endpoint::Readyz] {
                assert_eq!(get(&checks, endpoint, "").0, status, "{endpoint:?}");
            }
        }
        let (_, body) = single(&checks, Endpoint::Healthz, "clock", true).unwrap();
        assert_eq!(body, "internal server error: late\n");
    }

    #[test]
    fn verbose_lists_every_check() {
        let (checks, ready) = sample();
        ready.set_ok();
        let all = "[+]ping ok\n[+]event-loop ok\n[+]cloud-provider ok\nreadyz check passed\n";
        assert_eq!(get(&checks, Endpoint::Readyz, "verbose"), (200, all.into()));
        assert_eq!(get(&checks, Endpoint::Readyz, "verbose=1&x=y"), (200, all.into()));
        assert_eq!(
            get(&checks, Endpoint::Healthz, "verbose"),
            (200, "[+]ping ok\n[+]event-loop ok\nhealthz check passed\n".into())
        );
    }

    #[test]
    fn excluded_checks_do_not_count_and_unknown_ones_are_named() {
        let (checks, _ready) = sample();
        let (status, body) =
            get(&checks, Endpoint::Readyz, "verbose&exclude=cloud-provider&exclude=b&exclude=a%20b");
        assert_eq!(status, 200);
        assert_eq!(
            body,
            "[+]ping ok\n[+]event-loop ok\n[+]cloud-provider excluded: ok\nwarn: some health checks cannot be \
             excluded: no matches for \"a b\", \"b\"\nreadyz check passed\n"
        );
        assert_eq!(get(&checks, Endpoint::Readyz, "exclude=cloud-provider"), (200, "ok".into()));
    }

    #[test]
    fn the_reason_is_for_local_peers_on_the_path_of_the_check() {
        let (checks, ready) = sample();
        ready.set_failing("no route to 10.0.0.1");
        let ask = |endpoint, name, local| single(&checks, endpoint, name, local).map(|(_, body)| body);
        assert_eq!(
            ask(Endpoint::Readyz, "cloud-provider", true).unwrap(),
            "internal server error: no route to 10.0.0.1\n"
        );
        assert_eq!(
            ask(Endpoint::Readyz, "cloud-provider", false).unwrap(),
            "internal server error: reason withheld\n"
        );
        assert_eq!(ask(Endpoint::Livez, "cloud-provider", true), None);
        assert_eq!(ask(Endpoint::Livez, "ping", true).unwrap(), "ok");
        assert_eq!(ask(Endpoint::Readyz, "nothing", true), None);
    }

    #[test]
    fn paths_name_the_aggregate_and_the_check() {
        assert_eq!(Endpoint::of_path("/readyz"), Some((Endpoint::Readyz, None)));
        assert_eq!(Endpoint::of_path("/readyz/"), Some((Endpoint::Readyz, None)));
        assert_eq!(Endpoint::of_path("/livez/a-b"), Some((Endpoint::Livez, Some("a-b"))));
        assert_eq!(Endpoint::of_path("/healthzz"), None);
        assert_eq!(Endpoint::of_path("/"), None);
        assert_eq!(Endpoint::of_path("*"), None);
    }

    #[test]
    fn what_is_only_shown_fails_nothing() {
        let (checks, ready) = sample();
        ready.set_ok();
        checks.register_probe("cloud-reachable", CheckKind::Shown, || Err("no route".to_owned()));
        assert_eq!(get(&checks, Endpoint::Readyz, ""), (200, "ok".into()));
        let (status, body) = get(&checks, Endpoint::Readyz, "verbose");
        assert_eq!(status, 200);
        assert!(body.contains("[-]cloud-reachable failed: reason withheld, does not count\n"), "{body}");
        let (_, body) = single(&checks, Endpoint::Readyz, "cloud-reachable", true).unwrap();
        assert_eq!(body, "internal server error: no route\n");
        assert!(!get(&checks, Endpoint::Livez, "verbose").1.contains("cloud-reachable"));
    }
}
