//! Reads the flags of the sections "Generic" and "Misc".

use ccm_core::config::http_url_or_host;

use super::{flags, value::Reader};
use crate::config::{ApiServerConfig, ClientLimit};

/// Accepted content types. Requests are JSON in either case.
const CONTENT_TYPES: [&str; 2] = ["application/json", "application/vnd.kubernetes.protobuf"];

pub(super) fn check_content_type(reader: &mut Reader) {
    let content_type = reader.text(flags::KUBE_API_CONTENT_TYPE);
    if !CONTENT_TYPES.contains(&content_type.as_str()) {
        let why = format!("write {}", CONTENT_TYPES.join(" or "));
        reader.invalid(flags::KUBE_API_CONTENT_TYPE, &content_type, why);
    }
}

/// The address of the API server, and the limit on requests.
pub(super) fn api_server(limit: Option<ClientLimit>, reader: &mut Reader) -> ApiServerConfig {
    let master = reader.non_empty(flags::MASTER);
    if master.as_deref().is_some_and(|text| http_url_or_host(text).is_none()) {
        // It may have a password.
        reader.refuse("--master: not a URL; write one such as https://10.0.0.1:6443");
    }
    ApiServerConfig {
        kubeconfig: reader.path(flags::KUBECONFIG),
        // Only `plan` has the flag.
        context: None,
        master,
        limit,
    }
}

pub(super) fn client_limit(reader: &mut Reader) -> Option<ClientLimit> {
    let must = format!("must be between 0 and {}", u32::MAX);
    let burst = reader.number::<u32>(flags::KUBE_API_BURST, &must);
    // Without the flag there is no limit.
    let given = !reader.all(flags::KUBE_API_QPS).is_empty();
    let qps = given.then(|| reader.float(flags::KUBE_API_QPS)).flatten();
    Some(ClientLimit {
        qps: qps.filter(|qps| *qps > 0.0)?,
        // As in Go's client.
        burst: burst.filter(|burst| *burst > 0).unwrap_or(10),
    })
}

/// The last word comes first, as elsewhere.
pub(super) fn user_agent(version: &str, reader: &mut Reader) -> String {
    let mut words = reader.all(flags::USER_AGENT);
    words.retain(|word| !word.is_empty());
    words.reverse();
    for word in &words {
        if http::HeaderValue::from_str(word).is_err() {
            reader.refuse(format!(
                "--user-agent: {word:?} contains characters that an HTTP header cannot have"
            ));
        }
    }
    words.push(format!("cloud-controller-manager/{version}"));
    words.join(" ")
}
