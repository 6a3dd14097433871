//! The clients with which the HTTPS server asks the API server about its own clients.

use std::path::Path;

use kube::{Client, Config};

use super::{api_client, requests::ApiRequests};
use crate::{options::AccessConfig, server::Reviewers};

/// Reads files; the API server is not asked for anything yet. `main` is how everything else reaches the API server.
///
/// # Errors
/// What is wrong with the files, in words for the user.
pub(super) async fn load(
    config: &AccessConfig,
    main: &Config,
    version: &str,
    requests: &ApiRequests,
) -> Result<Reviewers, Vec<String>> {
    let (authentication, authorization) = (
        client(
            "--authentication-kubeconfig",
            config.authentication_kubeconfig.as_deref(),
            main,
            version,
            requests,
        )
        .await,
        client(
            "--authorization-kubeconfig",
            config.authorization_kubeconfig.as_deref(),
            main,
            version,
            requests,
        )
        .await,
    );
    match (authentication, authorization) {
        (Ok((authentication, lookup_required)), Ok((authorization, _))) => Ok(Reviewers {
            authentication,
            authorization,
            lookup_required,
        }),
        (authentication, authorization) => Err([authentication.err(), authorization.err()]
            .into_iter()
            .flatten()
            .collect()),
    }
}

/// With it, whether somebody has said that this one is to be used: a file, or being a pod.
async fn client(
    flag: &str,
    file: Option<&Path>,
    main: &Config,
    version: &str,
    requests: &ApiRequests,
) -> Result<(Client, bool), String> {
    let (mut config, chosen) = match file {
        Some(file) => (api_client::from_file(flag, file).await?, true),
        None => match Config::incluster_env() {
            Ok(config) => (config, true),
            Err(_) => (main.clone(), false),
        },
    };
    // What it has from `main` is set anew.
    config.headers.clear();
    api_client::set_up(&mut config, version)?;
    let client = api_client::build_for_reviews(config, requests)
        .map_err(|error| format!("{flag}: can not be used: {error:#}"))?;
    Ok((client, chosen))
}
