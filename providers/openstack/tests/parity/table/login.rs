//! Requests for a token.

use reqwest::Method;
use serde_json::{Value, json};

use super::Case;
use crate::world::PASSWORD;

pub(super) fn login() -> Vec<Case> {
    let post =
        |auth: Value| Case::new("identity", Method::POST, "/v3/auth/tokens").json(&json!({ "auth": auth }));
    let domain = json!({"id": "default"});
    let user = json!({"name": "<name>", "password": PASSWORD, "domain": domain});
    let password = |user: &Value| json!({"methods": ["password"], "password": {"user": user}});
    let mine = password(&user);
    let scoped = |identity: &Value, scope: Value| post(json!({"identity": identity, "scope": scope}));
    let credential = |credential: Value| json!({"methods": ["application_credential"], "application_credential": credential});
    let by_id = credential(json!({"id": "<credential>", "secret": "<secret>"}));
    let token = |id: &str| json!({"methods": ["token"], "token": {"id": id}});
    let project = json!({"project": {"id": "<project>"}});
    let absent = "0123456789abcdef0123456789abcdef";
    vec![
        // As the provider does.
        scoped(&mine, project.clone()),
        scoped(&mine, json!({"project": {"name": "<name>", "domain": {"name": "Default"}}})),
        scoped(&mine, json!({"project": {"name": "<name>", "domain": {"id": "default"}}})),
        scoped(&password(&json!({"id": "<user>", "password": PASSWORD})), project.clone()),
        post(json!({ "identity": mine })),
        post(json!({ "identity": by_id })),
        post(json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"name": "<name>", "domain": {"id": "default"}}}))})),
        post(json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"id": "<user>"}}))})),
        scoped(&token("<token>"), project.clone()),
        scoped(&token("<unscoped-token>"), project.clone()),
        post(json!({"identity": token("<token>")})),
        // Refused requests.
        scoped(
            &password(&json!({"name": "<name>", "password": "wrong", "domain": domain})),
            project.clone(),
        ),
        scoped(
            &password(&json!({"name": "nobody", "password": PASSWORD, "domain": domain})),
            project.clone(),
        ),
        scoped(&password(&json!({"id": absent, "password": PASSWORD})), project.clone()),
        scoped(
            &password(&json!({"name": "<name>", "password": PASSWORD, "domain": {"name": "nowhere"}})),
            project.clone(),
        ),
        scoped(&password(&json!({"name": "<name>", "password": PASSWORD})), project.clone()),
        scoped(&password(&json!({"id": "<user>"})), project.clone()),
        scoped(&mine, json!({"project": {"id": absent}})),
        scoped(&mine, json!({"project": {"name": "nothing", "domain": {"id": "default"}}})),
        scoped(&mine, json!({"project": {"name": "<name>"}})),
        scoped(&mine, json!({"project": {"name": "<name>", "domain": {"name": "nowhere"}}})),
        scoped(&mine, json!({"project": {"name": "admin", "domain": {"id": "default"}}})),
        scoped(&mine, json!({"OS-TRUST:trust": {"id": absent}})),
        scoped(&by_id, project.clone()),
        scoped(&by_id, json!("unscoped")),
        post(json!({"identity": credential(json!({"id": "<credential>", "secret": "wrong"}))})),
        post(json!({"identity": credential(json!({"id": absent, "secret": "<secret>"}))})),
        post(json!({"identity": credential(json!({"id": "<credential>"}))})),
        post(json!({"identity": credential(json!({"secret": "<secret>"}))})),
        post(json!({"identity": credential(json!({}))})),
        post(json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>"}))})),
        post(json!({"identity": credential(json!({"name": "nothing", "secret": "<secret>",
            "user": {"id": "<user>"}}))})),
        post(json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"name": "nobody", "domain": {"id": "default"}}}))})),
        post(json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"name": "<name>"}}))})),
        post(json!({"identity": credential(json!({"name": "<name>", "secret": "<secret>",
            "user": {"id": absent}}))})),
        scoped(&token("nonsense"), project.clone()),
        scoped(&token("<revoked-token>"), project.clone()),
        scoped(&token("<credential-token>"), project.clone()),
        post(json!({"identity": token("<credential-token>")})),
        post(json!({"identity": {"methods": ["token"]}})),
        post(json!({"identity": {"methods": ["password"]}})),
        post(json!({"identity": {"methods": []}})),
        post(json!({"identity": {"methods": ["magic"]}})),
        post(json!({"identity": {"methods": ["password", "password"], "password": {"user": user}}})),
        post(json!({"identity": {"methods": ["password"], "password": {}}})),
        post(Value::Null),
        Case::new("identity", Method::POST, "/v3/auth/tokens").json(&json!({})),
        Case::new("identity", Method::POST, "/v3/auth/tokens")
            .with("content-type", "application/json")
            .raw("{"),
        Case::new("identity", Method::POST, "/v3/auth/tokens?nocatalog")
            .json(&json!({"auth": {"identity": mine, "scope": project}})),
    ]
}
