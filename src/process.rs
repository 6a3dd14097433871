//! The life of the process: its start and its end.
//!
//! Start: flags, log, all checks that need no request (all problems are reported at once), HTTPS server, client of the API
//! server, cloud (with retries until it answers), stores, leader election, controllers. From the HTTPS server on, `/readyz`
//! shows what the process waits for.
//!
//! End: work in progress is finished, within a limit; then writes are refused, the lease is released, and the server ends. If
//! the lease was lost, the first step is skipped.

mod cloud;
mod leases;
mod reviewers;
mod subcommands;

use std::{env, fmt, io::Write, panic, process::ExitCode, sync::Arc, thread, time::Duration};

use anyhow::{Context, anyhow, ensure};
use ccm_core::{
    BuildContext, Environment,
    client::{ClientMetrics, Fence, Fences},
    controllers::events::EventMetrics,
    plan::PlanMetrics,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::{JoinError, JoinHandle},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    api::{ApiRequests, ApiServer},
    app::{self, AppContext},
    config::{Config, LoggingConfig},
    controllers,
    election::Elections,
    logging,
    options::{self, Request},
    providers,
    server::{CheckHandle, CheckKind, Checks, ConfigPages, Metrics, Server, Shown, Status},
};
use leases::Leases;

pub use subcommands::{plan, validate};

/// The process usually waits; more threads would only cost memory.
const MAX_WORKERS: usize = 4;
/// The limit of the last answers of the HTTPS server.
const SERVER_STOP: Duration = Duration::from_secs(6);
/// The same when the lease is lost: the process must end before another process leads.
const SERVER_STOP_LOST: Duration = Duration::from_millis(500);
/// The limit for the end of work that was cut off.
const CUT_OFF: Duration = Duration::from_millis(100);
/// The limit of blocking work (file reads, name lookups) that is still in progress at the end.
const LAST_THREADS: Duration = Duration::from_secs(1);

/// The whole program: reads the command line and runs until a signal stops it. A binary with other providers only calls
/// this function.
///
/// Exit code 0 after a signal to stop and after `--help` and the like, 1 after any error; for the others see [`plan()`] and
/// [`validate()`].
#[must_use]
pub fn main() -> ExitCode {
    let registered = match providers::registered().and_then(options::without_taken_flags) {
        Ok(registered) => registered,
        Err(message) => {
            print_errors([message]);
            return ExitCode::FAILURE;
        }
    };
    let mut words = env::args_os();
    let implied = providers::implied(&words.next().unwrap_or_default(), &registered);
    let request = options::parse_with(words, &registered, implied, |config| {
        config_problems(config, &prepare_read_only(config, &Fence::standby()))
    });
    match request {
        Ok(Request::Print(text)) => print_result(Some(Printed { text, exit_code: 0 })),
        Ok(Request::Run(config)) => {
            let logging = config.logging.clone();
            in_runtime(&logging, run(*config)).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Ok(Request::Plan(request)) => print_result(in_runtime(&request.config.logging, plan(&request))),
        Ok(Request::Validate(request)) => {
            print_result(in_runtime(&request.config.logging, validate(&request)))
        }
        Err(errors) => {
            print_errors(errors);
            let _ = writeln!(std::io::stderr(), "Run with --help for all flags.");
            ExitCode::FAILURE
        }
    }
}

/// The result of a subcommand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// To be printed.
    pub text: String,
    /// The exit code of the program.
    pub exit_code: u8,
}

fn print_result(result: Option<Printed>) -> ExitCode {
    let Some(Printed { text, exit_code }) = result else {
        return ExitCode::FAILURE;
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::from(exit_code),
        Err(error) => {
            // Without effect after `--help` and the like, whose reader may end (`| head`): no log was started.
            error!(%error, "Could not print the result");
            ExitCode::FAILURE
        }
    }
}

/// Starts the log, and runs the work to its end. `None` after an error, which is logged.
fn in_runtime<T>(logging: &LoggingConfig, work: impl Future<Output = anyhow::Result<T>>) -> Option<T> {
    logging::start(logging);
    log_panics();
    let workers = thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("ccm")
        .enable_all()
        .build();
    let runtime = runtime.inspect_err(|error| error!(%error, "Failed to start")).ok()?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_THREADS);
    if let Err(error) = &outcome {
        match error.downcast_ref::<StartProblems>() {
            Some(StartProblems(problems)) => {
                for problem in problems {
                    error!(error = problem, "Cannot start");
                }
            }
            None => error!(error = format!("{error:#}"), "Exiting because of an error"),
        }
    }
    outcome.ok()
}

/// All reasons why the program cannot start.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
struct StartProblems(Vec<String>);

/// Runs until a signal stops it. The log is the caller's.
///
/// # Errors
/// The configuration prevents the start, or a part of the program ended when it should not have.
pub async fn run(config: Config) -> anyhow::Result<()> {
    // `kube` and the providers use the process's default. An embedding program may have set another one before.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = Arc::new(config);
    info!(
        version = config.version,
        provider = config.provider.name,
        "Starting cloud-controller-manager"
    );
    for (flag, value) in &config.values {
        debug!(flag, value, "Flag");
    }
    for warning in &config.warnings {
        warn!(warning, "A flag needs attention");
    }

    let signals = CancellationToken::new();
    stop_on_signals(signals.clone()).context("cannot listen for signals")?;
    let shutdown = signals.child_token();

    let names: Vec<_> = providers::registered().map_err(|message| anyhow!(message))?;
    let names: Vec<_> = names.iter().map(|provider| provider.name).collect();
    let controllers = controllers::all(config.provider).map(|controller| controller.names().short_name());
    let metrics = Metrics::new(&config.version, &names, controllers);
    let checks = Checks::default();
    // In the order in which they succeed.
    let cloud_check = checks.register("cloud-provider");
    let informer_check = checks.register("informer-sync");
    informer_check.set_failing("waiting for the cloud provider");
    let shutdown_check = checks.register("shutdown");
    shutdown_check.set_ok();

    let leases = Leases::new(&config);
    let context = build_context(
        &config,
        leases.fences(),
        metrics.with(ClientMetrics::register),
        metrics.with(PlanMetrics::register),
    );
    let cloud_calls = context.metrics.clone();
    checks.register_probe("cloud-reachable", CheckKind::Shown, move || {
        cloud_calls.unreachable().map_or(Ok(()), Err)
    });
    let shown = Shown {
        checks,
        status: Status::new(&config.version, config.provider.name, context.metrics.clone()),
        config: ConfigPages::new(&config),
        metrics,
    };
    let mut problems = config_problems(&config, &context);
    let requests = shown.metrics.with(ApiRequests::register);
    let api_server = ApiServer::load(&config.api_server, &config.version, &requests)
        .await
        .map_err(|problem| problems.push(problem))
        .ok();
    let server = match &config.serving {
        Some(serving) => {
            let reviewers = match &api_server {
                Some(api_server) => reviewers::load(&serving.access, api_server, &mut problems).await,
                None => None,
            };
            let bound = Server::bind(serving, shown.clone()).map_err(|more| problems.extend(more)).ok();
            bound.zip(reviewers)
        }
        None => None,
    };
    let api_server = match api_server {
        Some(api_server) if problems.is_empty() => api_server,
        _ => return Err(StartProblems(problems).into()),
    };

    let stop_server = CancellationToken::new();
    let server: JoinHandle<anyhow::Result<()>> = match server {
        Some((server, reviewers)) => {
            info!(address = %server.local_addr()?, "HTTPS server listening");
            let serving = server.serve(reviewers, stop_server.clone());
            tokio::spawn(async move { serving.await.map_err(|error| anyhow!(error)) })
        }
        None => tokio::spawn(until(stop_server.clone())),
    };
    let event_metrics = shown.metrics.with(EventMetrics::register);
    let elected = leases.contend(&api_server, &shown, &event_metrics)?;
    let drain = config.shutdown_drain;
    let work = {
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            let cloud = tokio::select! {
                cloud = cloud::connect(config.provider, &context, &cloud_check) => cloud,
                () = shutdown.cancelled() => return Ok(()),
            };
            app::run(AppContext {
                client: elected.client,
                replica_client: elected.replica_client,
                cluster_id_client: elected.cluster_id_client,
                terms: elected.terms,
                cloud,
                cloud_metrics: context.metrics,
                config,
                shown,
                informer_check,
                event_metrics,
                shutdown,
            })
            .await
        })
    };
    Process {
        work,
        elections: elected.elections,
        server,
        signals,
        shutdown,
        shutdown_check,
        drain,
        stop_server,
    }
    .supervise()
    .await
}

/// The input of the provider.
fn build_context(config: &Config, fences: Fences, metrics: ClientMetrics, plan: PlanMetrics) -> BuildContext {
    BuildContext {
        cloud_config: config.cloud_config.clone(),
        flags: config.flags.clone(),
        environment: Environment::of_process(),
        cluster_name: config.cluster_name.clone(),
        user_agent: config.user_agent.clone(),
        metrics,
        plan,
        fences,
    }
}

/// The input of the provider for `plan` and `validate`. `fence` is never opened, so that nothing is written.
fn prepare_read_only(config: &Config, fence: &Fence) -> BuildContext {
    // As in `run`.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    for warning in &config.warnings {
        warn!(warning, "A flag needs attention");
    }
    let fences = fence.clone().into();
    build_context(config, fences, ClientMetrics::default(), PlanMetrics::default())
}

/// The problems of the cloud config.
fn config_problems(config: &Config, context: &BuildContext) -> Vec<String> {
    let checked = (config.provider.validate)(context);
    let report = checked.err().map(|error| error.report());
    let lines = report.iter().flat_map(|report| report.lines());
    lines.map(str::to_owned).collect()
}

/// The tasks of the running process.
struct Process {
    work: JoinHandle<anyhow::Result<()>>,
    elections: Elections,
    server: JoinHandle<anyhow::Result<()>>,
    /// Cancelled by a signal.
    signals: CancellationToken,
    /// Cancelled by a signal, or because a controller has failed.
    shutdown: CancellationToken,
    shutdown_check: CheckHandle,
    drain: Duration,
    stop_server: CancellationToken,
}

impl Process {
    /// Waits for the end and ends the parts in order. A part that ends unexpectedly ends the process.
    async fn supervise(mut self) -> anyhow::Result<()> {
        let mut lost = false;
        // Writes that outlive their controllers (a batch, an event) have the rest of the drain.
        let mut last_writes = Instant::now();
        let outcome = tokio::select! {
            // First: a part that ends because of the signal has not failed.
            biased;
            () = self.shutdown.cancelled() => {
                self.shutdown_check.set_failing("the process is about to end");
                last_writes = Instant::now() + self.drain;
                tokio::select! {
                    biased;
                    error = self.elections.lost() => {
                        lost = true;
                        Err(error)
                    }
                    ended = timeout_at(last_writes, &mut self.work) => match ended {
                        Ok(ended) => ended_well("the controllers", ended),
                        Err(_) => {
                            warn!(drain = ?self.drain, "Cutting off work that is still in progress");
                            ended_by(&self.signals)
                        }
                    }
                }
            }
            error = self.elections.lost() => {
                lost = true;
                Err(error)
            }
            ended = &mut self.work => {
                ended_well("the controllers", ended).and_then(|()| ended_by(&self.shutdown))
            }
            ended = &mut self.server => ended_well("the HTTPS server", ended)
                .and_then(|()| Err(anyhow!("the HTTPS server ended unexpectedly"))),
        };
        self.work.abort();
        self.elections.end(last_writes.max(Instant::now() + CUT_OFF)).await;
        // The server ends last, so that the drain can be observed.
        self.stop_server.cancel();
        if !self.server.is_finished() {
            let limit = if lost { SERVER_STOP_LOST } else { SERVER_STOP };
            let _ = timeout(limit, &mut self.server).await;
        }
        if outcome.is_ok() {
            info!("Stopped");
        }
        outcome
    }
}

fn ended_well(part: &'static str, ended: Result<anyhow::Result<()>, JoinError>) -> anyhow::Result<()> {
    match ended {
        Ok(outcome) => outcome.with_context(|| format!("{part} failed")),
        // The panic itself was logged where it happened.
        Err(error) => Err(anyhow!(error).context(format!("{part} panicked"))),
    }
}

/// The end of the controllers: expected if the token was cancelled.
fn ended_by(token: &CancellationToken) -> anyhow::Result<()> {
    ensure!(token.is_cancelled(), "the controllers ended unexpectedly");
    Ok(())
}

/// The first signal requests an orderly end, the second one ends the process at once.
fn stop_on_signals(shutdown: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if shutdown.is_cancelled() {
                warn!(signal = name, "Exiting without waiting for work in progress");
                std::process::exit(1);
            }
            info!(signal = name, "Shutting down");
            shutdown.cancel();
        }
    });
    Ok(())
}

/// Writes panics to the log, in its format.
fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        error!(error = message, place, "Bug: a part of the program panicked");
    }));
}

async fn until(stop: CancellationToken) -> anyhow::Result<()> {
    stop.cancelled().await;
    Ok(())
}

/// Prints errors before there is a log. A failure to print them cannot be reported.
fn print_errors(messages: impl IntoIterator<Item = impl fmt::Display>) {
    for message in messages {
        let _ = writeln!(std::io::stderr(), "error: {message}");
    }
}

#[cfg(test)]
mod tests;
