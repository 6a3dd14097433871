//! The config in a Secret: `--enable-dynamic-reloading` without `--cloud-config`.
//!
//! The Secret is read when the program connects, and again when it changes. As with a file, changed credentials take effect at once,
//! and the log names other keys, which need a restart.

use std::path::Path;

use ccm_core::{
    BuildContext, Cloud as _, Error, ErrorKind, Result,
    controllers::{ControllerContext, ControllerDef, ControllerNames, Needs},
};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    runtime::{WatchStreamExt as _, watcher},
};
use tracing::{info, warn};

use crate::{Azure, DYNAMIC_RELOADING, SECRET_KEY, SECRET_NAME, SECRET_NAMESPACE, kubernetes};

/// The name of the controller.
const CONTROLLER_NAME: &str = "azure-config-secret-controller";

/// The controller, which watches the Secret.
pub(crate) const CONTROLLER: ControllerDef = ControllerDef {
    names: ControllerNames {
        name: CONTROLLER_NAME,
        aliases: &["azure-config-secret"],
        migration_name: None,
        client_name: CONTROLLER_NAME,
    },
    default_on: true,
    needs: |setup| {
        setup.needs_if(|azure: &Azure| azure.secret.is_some(), "the cloud config is a file", Needs::default())
    },
    start: |context| Ok(Box::pin(watch(context))),
};

/// The key of a Secret with the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigSecret {
    namespace: String,
    name: String,
    key: String,
}

impl ConfigSecret {
    /// The Secret that the flags name; `None`: the config is a file.
    pub(crate) fn of(context: &BuildContext) -> Option<Self> {
        let flags = &context.flags;
        let has_file = context.cloud_config.as_deref().is_some_and(|path| path != Path::new(""));
        if has_file || !flags.boolean(&DYNAMIC_RELOADING) {
            return None;
        }
        Some(Self {
            namespace: flags.text(&SECRET_NAMESPACE).to_owned(),
            name: flags.text(&SECRET_NAME).to_owned(),
            key: flags.text(&SECRET_KEY).to_owned(),
        })
    }

    /// The place of the config in messages.
    pub(crate) fn place(&self) -> String {
        format!("secret {}/{}, key {}", self.namespace, self.name, self.key)
    }

    /// Reads the config.
    ///
    /// # Errors
    /// The Secret cannot be read, or lacks the key.
    pub(crate) async fn read(&self, context: &BuildContext) -> Result<Vec<u8>> {
        let failed = |text: &str| {
            let text = format!("could not read the cloud config in the {}: {text}", self.place());
            Error::new(ErrorKind::InvalidConfig, text)
        };
        let client = kubernetes::client(context, "the cloud config").await?;
        let secrets: Api<Secret> = Api::namespaced(client, &self.namespace);
        let secret = match secrets.get(&self.name).await {
            Ok(secret) => secret,
            Err(error) => return Err(failed("the API server does not return it").with_source(error)),
        };
        let value = secret.data.and_then(|mut data| data.remove(&self.key));
        value.map(|value| value.0).ok_or_else(|| failed("it has no such key"))
    }
}

/// Reads the config again whenever the Secret changes.
async fn watch(context: ControllerContext) {
    let Ok(azure) = context.setup.cloud_as::<Azure>() else {
        return;
    };
    let Some(secret) = &azure.secret else {
        return;
    };
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &secret.namespace);
    let only = watcher::Config::default().fields(&format!("metadata.name={}", secret.name));
    let changes = watcher(api, only).default_backoff().applied_objects();
    let mut changes = std::pin::pin!(changes);
    info!(controller = CONTROLLER_NAME, "Controller started");
    loop {
        let change = tokio::select! {
            () = context.shutdown.cancelled() => return,
            change = changes.next() => change,
        };
        match change {
            Some(Ok(_)) => reload(&azure).await,
            Some(Err(error)) => warn!(%error, "Could not watch the Secret with the cloud config"),
            None => return context.shutdown.cancelled().await,
        }
    }
}

async fn reload(azure: &Azure) {
    match azure.reload().await {
        Ok(reload) if reload.applied.is_empty() && reload.restart_needed.is_empty() => {}
        Ok(reload) => info!(
            applied = reload.applied.join(", "),
            restart_needed = reload.restart_needed.join(", "),
            "The cloud config in the Secret changed"
        ),
        Err(error) => {
            warn!(
                error = error.report(),
                "The cloud config in the Secret cannot be used; the former one stays in use"
            );
        }
    }
}
