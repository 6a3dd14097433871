//! The API server, for what this provider alone reads of it.

use ccm_core::{BuildContext, Error, ErrorKind, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// A client of the API server: `--kubeconfig` and `--master`, else the service account of the Pod. `what`: what is read with it, for
/// messages.
///
/// # Errors
/// A flag or file is wrong, or the process does not run in a Pod.
pub(crate) async fn client(context: &BuildContext, what: &str) -> Result<Client> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        let text = format!("could not connect to the API server to read {what}: {error}");
        Error::new(ErrorKind::InvalidConfig, text)
    };
    let flag =
        |name: &str| context.flags.given(name).and_then(<[String]>::last).filter(|value| !value.is_empty());
    let mut config = match flag("kubeconfig") {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(error.into()))?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|error| failed(error.into()))?
        }
        None => Config::incluster().map_err(|error| failed(error.into()))?,
    };
    if let Some(master) = flag("master") {
        config.cluster_url = master.parse().map_err(|_| failed("--master is not a URL".into()))?;
    }
    Client::try_from(config).map_err(|error| failed(error.into()))
}
