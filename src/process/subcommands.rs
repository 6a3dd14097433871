//! `plan` and `validate`: a report about cluster and cloud, or about config, cloud and manifests.

use std::{
    env::split_paths,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use ccm_core::{Environment, Freshness, Priority, client::Fence, load_balancer::ReadOptions};
use tokio::time::timeout;
use tracing::info;

use super::{Printed, StartProblems, config_problems, prepare_read_only};
use crate::{
    api::{ApiRequests, ApiServer},
    options::{ApiServerConfig, OutputFormat, PlanRequest, ValidateRequest},
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
    let loaded = match api_server_of_user(&config.api_server, &Environment::of_process()) {
        Ok(chosen) => ApiServer::load(&chosen, &config.version, &ApiRequests::default()).await,
        Err(problem) => Err(problem),
    };
    let api_server = match loaded {
        Ok(api_server) if problems.is_empty() => api_server,
        loaded => {
            problems.extend(loaded.err());
            return Err(StartProblems(problems).into());
        }
    };
    let client = api_server.for_work(config.api_server.limit, &fence)?.client(None)?;
    let cloud = timeout(CONNECT_TIMEOUT, (config.provider.build)(context))
        .await
        .map_err(|_| anyhow!("no answer in time"))
        .and_then(|built| built.map_err(|error| anyhow!(error.report())))
        .with_context(|| {
            let name = config.provider.name;
            format!(
                "cannot connect to the cloud ({name}); run validate with the same flags, which names the fix"
            )
        })?;
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

/// The API server for a user's command. As with kubectl, without a flag it is that of the variable KUBECONFIG, or of the user's
/// own file. In a pod without the variable it is that of the pod.
fn api_server_of_user(given: &ApiServerConfig, environment: &Environment) -> Result<ApiServerConfig, String> {
    if given.kubeconfig.is_some() || given.master.is_some() {
        return Ok(given.clone());
    }
    let kubeconfig = match environment.var("KUBECONFIG") {
        Some(files) => Some(of_variable(files)?),
        None if environment.var("KUBERNETES_SERVICE_HOST").is_some() => None,
        None => environment
            .var("HOME")
            .map(|folder| Path::new(folder).join(".kube/config"))
            .filter(|file| file.is_file()),
    };
    if let Some(file) = &kubeconfig {
        info!(file = %file.display(), "Using the kubeconfig of the user, as neither --kubeconfig nor --master is given");
    }
    Ok(ApiServerConfig {
        kubeconfig,
        ..given.clone()
    })
}

/// The only file that KUBECONFIG names and that exists.
fn of_variable(files: &str) -> Result<PathBuf, String> {
    let mut existing: Vec<_> = split_paths(files).filter(|file| file.is_file()).collect();
    existing.dedup();
    match existing.as_slice() {
        [file] => Ok(file.clone()),
        [] => Err(format!("KUBECONFIG: {files} does not exist; correct it, or set --kubeconfig")),
        _ => Err(format!(
            "KUBECONFIG: {files} are several files, which are not merged; set --kubeconfig to one of them"
        )),
    }
}

/// Checks the config of [`run`](crate::run), and manifests of Services. Sends requests to the cloud unless it is offline, none to a
/// cluster, and writes nothing.
///
/// Exit codes: 0 for nothing wrong or only warnings, 2 for errors or for warnings that count as such, 1 without errors if the answer
/// is incomplete.
///
/// # Errors
/// The result cannot be printed.
pub async fn validate(request: &ValidateRequest) -> anyhow::Result<Printed> {
    let config = &request.config;
    let context = prepare_read_only(config, &Fence::standby());
    let report = check(config.provider, context, &request.manifests, request.cloud).await;
    Ok(Printed {
        text: match request.output {
            OutputFormat::Text => as_text(&report),
            OutputFormat::Json => as_json(&report)?,
        },
        exit_code: report.verdict().exit_code(request.strict),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::fs;

    use super::*;

    #[test]
    fn a_plan_uses_the_kubeconfig_of_the_user() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let (first, second, own) = (file("first"), file("second"), file(".kube/config"));
        let chosen = |environment: &Environment| {
            let given = ApiServerConfig::default();
            api_server_of_user(&given, environment).map(|chosen| chosen.kubeconfig)
        };
        let home = Environment::default().with("HOME", folder.path().to_str().unwrap());
        assert_eq!(chosen(&Environment::default()), Ok(None));
        assert_eq!(chosen(&home), Ok(Some(own)));
        assert_eq!(chosen(&home.clone().with("KUBERNETES_SERVICE_HOST", "10.0.0.1")), Ok(None));
        let with = |files: &str| chosen(&home.clone().with("KUBECONFIG", files));
        let (first_name, second_name) = (first.to_str().unwrap(), second.to_str().unwrap());
        assert_eq!(with(first_name), Ok(Some(first.clone())));
        // kubectl leaves out files that do not exist, too.
        assert_eq!(with(&format!("/does/not/exist:{second_name}")), Ok(Some(second.clone())));
        let problem = with(&format!("{first_name}:{second_name}")).unwrap_err();
        assert!(problem.contains("set --kubeconfig to one of them"), "{problem}");
        let problem = with("/does/not/exist").unwrap_err();
        assert!(problem.contains("/does/not/exist does not exist"), "{problem}");
        let given = ApiServerConfig {
            master: Some("https://10.0.0.1".to_owned()),
            ..ApiServerConfig::default()
        };
        assert_eq!(api_server_of_user(&given, &home).unwrap().kubeconfig, None);
    }
}
