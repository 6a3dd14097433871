//! The clients of the API server that review clients of the HTTPS server.

use std::path::Path;

use kube::Client;

use crate::{
    api::{ApiServer, Credentials, Source},
    config::AccessConfig,
    server::Reviewers,
};

/// Reads files; sends no request yet. `main`: the API server of all other clients. `None` if a file has a problem, which is
/// added to the problems, for the user.
pub(super) async fn load(
    config: &AccessConfig,
    main: &ApiServer,
    problems: &mut Vec<String>,
) -> Option<Reviewers> {
    let file = config.authentication_kubeconfig.as_deref();
    let authentication = client("--authentication-kubeconfig", file, main)
        .await
        .map_err(|problem| problems.push(problem))
        .ok();
    let file = config.authorization_kubeconfig.as_deref();
    let authorization = client("--authorization-kubeconfig", file, main)
        .await
        .map_err(|problem| problems.push(problem))
        .ok();
    let ((authentication, lookup_required), (authorization, _)) = authentication.zip(authorization)?;
    Some(Reviewers {
        authentication,
        authorization,
        lookup_required,
    })
}

/// A client, and whether its account was chosen: by a file, or by running in a pod.
async fn client(flag: &'static str, file: Option<&Path>, main: &ApiServer) -> Result<(Client, bool), String> {
    let (credentials, chosen) = match file {
        Some(file) => {
            let source = Source::File {
                flag,
                path: file.to_owned(),
                context: None,
                server: None,
            };
            (Credentials::load(source).await?, true)
        }
        None => match pod(main).await {
            Some(credentials) => (credentials, true),
            None => (main.credentials.clone(), false),
        },
    };
    let client = main
        .with(credentials)
        .for_reviews()
        .map_err(|error| format!("{flag}: cannot be used: {error:#}"))?;
    Ok((client, chosen))
}

/// The service account of the pod, if there is one.
async fn pod(main: &ApiServer) -> Option<Credentials> {
    let source = Source::pod().ok()?;
    if *main.credentials.source() == source {
        return Some(main.credentials.clone());
    }
    Credentials::load(source).await.ok()
}
