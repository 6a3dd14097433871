//! Plain HTTP, and answers of two clouds in a comparable form.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Duration;

use reqwest::{Client, RequestBuilder};
use serde_json::Value;

/// An answer of one cloud.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) text: String,
    pub(crate) json: Option<Value>,
}

/// Follows no redirection, since redirections are answers, too.
pub(crate) fn client() -> Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
    Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs(60))
        .build()
        .unwrap()
}

pub(crate) async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let mut headers = BTreeMap::new();
    for (name, value) in response.headers() {
        let value = value.to_str().unwrap_or("?").to_owned();
        headers
            .entry(name.to_string())
            .and_modify(|known: &mut String| {
                known.push_str(", ");
                known.push_str(&value);
            })
            .or_insert(value);
    }
    let text = response.text().await.unwrap();
    let json = serde_json::from_str(&text).ok();
    Answer {
        status,
        headers,
        text,
        json,
    }
}
