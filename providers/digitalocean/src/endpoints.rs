//! `METRICS_ADDR` and `DEBUG_ADDR`: `/metrics` and `/healthz` without TLS and authentication, for compatibility with the Go
//! cloud controller. Only the leader serves them.

use axum::{
    Router, extract::State, http::StatusCode, http::header::CONTENT_TYPE, response::IntoResponse,
    routing::get,
};
use ccm_core::{
    Priority, Result,
    check::in_time,
    controllers::{
        ControllerContext, ControllerDef, ControllerFuture, ControllerMetrics, ControllerNames, Needs,
        metrics_text,
    },
};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::{DigitalOcean, client::Api};

/// The controller that runs the servers.
pub(crate) const CONTROLLER: ControllerDef = ControllerDef {
    names: ControllerNames {
        name: "do-endpoints-controller",
        aliases: &["do-endpoints"],
        migration_name: None,
        client_name: "do-endpoints-controller",
    },
    default_on: true,
    needs: |setup| {
        setup.needs_if(
            |cloud: &DigitalOcean| cloud.settings.has_endpoints(),
            "neither METRICS_ADDR nor DEBUG_ADDR is set",
            Needs::default(),
        )
    },
    start,
};

fn start(context: ControllerContext) -> Result<ControllerFuture> {
    let cloud = context.setup.cloud_as::<DigitalOcean>()?;
    Ok(Box::pin(async move {
        let metrics = Router::new().route("/metrics", get(serve_metrics)).with_state(context.metrics.clone());
        let api = cloud.nodes.api.clone();
        let health = Router::new().route("/healthz", get(serve_health)).with_state(api);
        tokio::join!(
            serve(cloud.settings.metrics_addr.as_deref(), metrics, &context),
            serve(cloud.settings.debug_addr.as_deref(), health, &context),
            context.shutdown.cancelled(),
        );
    }))
}

async fn serve(address: Option<&str>, router: Router, context: &ControllerContext) {
    let Some(address) = address else { return };
    let listener = match listen(address).await {
        Ok(listener) => listener,
        Err(error) => {
            warn!(address, %error, "Could not listen on METRICS_ADDR or DEBUG_ADDR");
            return;
        }
    };
    info!(address, "Serving METRICS_ADDR or DEBUG_ADDR");
    let shutdown = context.shutdown.clone().cancelled_owned();
    let served = axum::serve(listener, router).with_graceful_shutdown(shutdown);
    if let Err(error) = served.await {
        warn!(address, %error, "Stopped serving METRICS_ADDR or DEBUG_ADDR");
    }
}

/// Listens on an address. All addresses are those of IPv4 where IPv6 is disabled.
async fn listen(address: &str) -> std::io::Result<TcpListener> {
    match (TcpListener::bind(address).await, address.strip_prefix("[::]:")) {
        (Err(_), Some(port)) => TcpListener::bind(format!("0.0.0.0:{port}")).await,
        (listener, _) => listener,
    }
}

async fn serve_metrics(State(metrics): State<ControllerMetrics>) -> impl IntoResponse {
    let (status, text) = match metrics.read(metrics_text::render) {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    (status, [(CONTENT_TYPE, metrics_text::CONTENT_TYPE)], text)
}

/// Whether the API answers and accepts the token.
async fn serve_health(State(api): State<Api>) -> impl IntoResponse {
    match in_time(api.account(Priority::User)).await {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.report()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::net::TcpStream;

    use super::*;
    use crate::load_balancer::desired::tests::settings;

    #[tokio::test]
    async fn an_address_without_a_host_is_served_to_both_families() {
        let address = settings(&[("METRICS_ADDR", ":0")]).metrics_addr.unwrap();
        let listener = listen(&address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        // A host may have no IPv6.
        if TcpListener::bind("[::1]:0").await.is_ok() {
            TcpStream::connect(("::1", port)).await.unwrap();
        }
    }
}
