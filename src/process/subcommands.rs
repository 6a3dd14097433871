//! `plan` and `validate`: a report about cluster and cloud, or about config, cloud and manifests.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use ccm_core::{Freshness, Priority, client::Fence, load_balancer::ReadOptions};
use tokio::time::timeout;
use tracing::info;

use super::{Printed, StartProblems, config_problems, prepare_read_only};
use crate::{
    api::{ApiRequests, ApiServer},
    options::{OutputFormat, PlanRequest, ValidateRequest},
    plan::{self, Cluster, Summary},
    validate::{as_json, as_text, check},
};

/// The limit of authentication at the cloud. The provider has deadlines of its own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);

/// Reports what [`run`](crate::run) would do now. Writes nothing, neither to the cloud nor to the cluster.
///
/// Exit codes: 0 for nothing to do, 2 for something to do, 3 if there are only differences that would be left unchanged, 1 if
/// the answer is incomplete.
///
/// # Errors
/// Flags or config are wrong, the API server or the cloud cannot be reached, or the Service does not exist.
pub async fn plan(request: &PlanRequest) -> anyhow::Result<Printed> {
    let config = &request.config;
    let fence = Fence::standby();
    let context = prepare_read_only(config, &fence);
    let mut problems = config_problems(config, &context);
    let loaded = ApiServer::load(&config.api_server, &config.version, &ApiRequests::default()).await;
    let loaded = loaded.map_err(|problem| problems.push(problem)).ok();
    let Some(api_server) = loaded.filter(|_| problems.is_empty()) else {
        return Err(StartProblems(problems).into());
    };
    let client = api_server.for_work(config.api_server.limit, &fence)?.client(None)?;
    let cloud = timeout(CONNECT_TIMEOUT, (config.provider.build)(context))
        .await
        .map_err(|_| anyhow!("no answer in time"))
        .and_then(|built| built.map_err(|error| anyhow!(error.report())))
        .with_context(|| format!("cannot connect to the cloud ({})", config.provider.name))?;
    info!(cloud = cloud.scope(), "Connected to the cloud");
    let cluster = Cluster::read(&client, config, &*cloud).await?;
    info!(
        nodes = cluster.nodes.len(),
        services = cluster.concerned(),
        "Read the cluster, comparing it with the cloud"
    );
    let ask = ReadOptions {
        freshness: Freshness::now(),
        priority: Priority::User,
    };
    let plan = plan::plan(&*cloud, config, &cluster, request.service.as_ref(), ask).await?;
    Ok(Printed {
        text: match request.output {
            OutputFormat::Text => plan::as_text(&plan),
            OutputFormat::Json => plan::as_json(&plan, config.provider.name)?,
        },
        exit_code: Summary::of(&plan).verdict().exit_code(),
    })
}

/// Checks the config of [`run`](crate::run), and manifests of Services. Sends requests to the cloud, none to a cluster, and
/// writes nothing.
///
/// Exit codes: 0 for nothing wrong or only warnings, 2 for errors or for warnings that count as such, 1 if the answer is
/// incomplete.
///
/// # Errors
/// The result cannot be printed.
pub async fn validate(request: &ValidateRequest) -> anyhow::Result<Printed> {
    let config = &request.config;
    let context = prepare_read_only(config, &Fence::standby());
    let report = check(config.provider, context, &request.manifests).await;
    Ok(Printed {
        text: match request.output {
            OutputFormat::Text => as_text(&report),
            OutputFormat::Json => as_json(&report)?,
        },
        exit_code: report.verdict().exit_code(request.strict),
    })
}
