//! The rules by which Keystone issues a token, in the order of its checks.

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::KeystoneFault;
use crate::openstack::identity::{DOMAIN_ID, DOMAIN_NAME, Grant, Identity, Token, User};
use crate::openstack::ids::Ids;
use crate::openstack::spec::AppCredential;

/// The requested scope.
enum Scope {
    None,
    Project(String),
    Trust(String),
    Credential(AppCredential),
}

/// Checks credentials and scope, and returns the token to issue.
pub(super) fn authenticate(
    identity: &Identity,
    auth: Option<&Value>,
    now: Timestamp,
    ids: &Ids,
) -> Result<Token, KeystoneFault> {
    let auth = auth
        .filter(|auth| !auth.is_null())
        .ok_or_else(|| KeystoneFault::expecting("auth", "request body"))?;
    let credentials = auth.get("identity").unwrap_or(&Value::Null);
    let methods = method_names(credentials);
    for method in &methods {
        if credentials.get(method.as_str()).is_none() {
            return Err(KeystoneFault::expecting(method, "identity"));
        }
    }
    let scope = scope(identity, auth, credentials, &methods)?;
    let mut token = Token {
        methods: methods.clone(),
        user_id: String::new(),
        grant: Grant::Unscoped,
        app_credential: None,
        trust: None,
        issued: now,
        expires: now.checked_add(identity.token_lifetime).unwrap_or(Timestamp::MAX),
        audit_ids: vec![ids.text(22)],
    };
    for method in &methods {
        let data = credentials.get(method.as_str()).unwrap_or(&Value::Null);
        match method.as_str() {
            "password" => token.user_id = password(identity, data)?,
            "token" => from_token(identity, data, now, &mut token)?,
            "application_credential" => {
                let Scope::Credential(credential) = &scope else {
                    return Err(KeystoneFault::unauthorized());
                };
                if text(data, "secret") != Some(&credential.secret) {
                    return Err(KeystoneFault::unauthorized());
                }
                token.user_id.clone_from(&credential.user_id);
            }
            _ => return Err(missing("method")),
        }
    }
    if token.user_id.is_empty() {
        return Err(KeystoneFault::unauthorized());
    }
    apply_scope(identity, scope, &mut token)?;
    Ok(token)
}

/// A part of a login that the simulator does not have.
fn missing(part: &str) -> KeystoneFault {
    let message = format!("The simulator does not have POST /v3/auth/tokens with such a {part}.");
    KeystoneFault::new(StatusCode::NOT_IMPLEMENTED, message)
}

fn apply_scope(identity: &Identity, scope: Scope, token: &mut Token) -> Result<(), KeystoneFault> {
    let user = identity.users.get(&token.user_id).ok_or_else(KeystoneFault::unauthorized)?;
    match scope {
        Scope::None => {}
        Scope::Project(project) => {
            if !user.projects.contains(&project) {
                return Err(KeystoneFault::unauthorized());
            }
            token.grant = Grant::Project(project);
        }
        Scope::Trust(id) => {
            let trust = identity.trusts.get(&id).ok_or_else(KeystoneFault::unauthorized)?;
            if trust.trustee != token.user_id {
                let message = "You are not authorized to perform the requested action.";
                return Err(KeystoneFault::new(StatusCode::FORBIDDEN, message));
            }
            token.user_id.clone_from(&trust.trustor);
            token.grant = Grant::Project(trust.project_id.clone());
            token.trust = Some(id);
        }
        Scope::Credential(credential) => {
            token.grant = Grant::Project(credential.project_id);
            token.app_credential = Some(credential.id);
        }
    }
    Ok(())
}

fn method_names(credentials: &Value) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for method in credentials.get("methods").and_then(Value::as_array).into_iter().flatten() {
        if let Some(method) = method.as_str()
            && !names.iter().any(|known| known == method)
        {
            names.push(method.to_owned());
        }
    }
    names
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn scope(
    identity: &Identity,
    auth: &Value,
    credentials: &Value,
    methods: &[String],
) -> Result<Scope, KeystoneFault> {
    if methods.iter().any(|method| method == "application_credential") {
        if auth.get("scope").is_some() {
            let message = "Error authenticating with application credential: Application credentials cannot request \
                           a scope.";
            return Err(KeystoneFault::new(StatusCode::UNAUTHORIZED, message).plugin(json!({})));
        }
        let data = credentials.get("application_credential").unwrap_or(&Value::Null);
        return find_credential(identity, data).map(Scope::Credential);
    }
    let Some(scope) = auth.get("scope") else {
        return Ok(Scope::None);
    };
    if let Some(project) = scope.get("project") {
        return find_project(identity, project).map(Scope::Project);
    }
    let id = scope
        .get("OS-TRUST:trust")
        .and_then(|trust| text(trust, "id"))
        .ok_or_else(|| missing("scope"))?;
    if !identity.trusts.contains_key(id) {
        return Err(KeystoneFault::unauthorized());
    }
    Ok(Scope::Trust(id.to_owned()))
}

fn find_domain(data: &Value) -> Result<(), KeystoneFault> {
    let found = match (text(data, "name"), text(data, "id")) {
        (Some(name), _) => name == DOMAIN_NAME,
        (None, Some(id)) => id == DOMAIN_ID,
        (None, None) => return Err(KeystoneFault::expecting("id or name", "domain")),
    };
    if found {
        Ok(())
    } else {
        Err(KeystoneFault::unauthorized())
    }
}

fn find_project(identity: &Identity, data: &Value) -> Result<String, KeystoneFault> {
    let found = if let Some(name) = text(data, "name") {
        let domain = data.get("domain").ok_or_else(|| KeystoneFault::expecting("domain", "project"))?;
        find_domain(domain)?;
        identity.projects.iter().find(|(_, known)| *known == name).map(|(id, _)| id.clone())
    } else {
        text(data, "id").filter(|id| identity.projects.contains_key(*id)).map(str::to_owned)
    };
    found.ok_or_else(KeystoneFault::unauthorized)
}

/// A user by ID, or by name and domain. The fault of an unknown user depends on the caller.
fn find_user<'a>(
    identity: &'a Identity,
    data: &Value,
    unknown: fn(&str) -> KeystoneFault,
) -> Result<&'a User, KeystoneFault> {
    match (text(data, "name"), text(data, "id")) {
        (Some(name), None) => {
            let domain = data.get("domain").ok_or_else(|| KeystoneFault::expecting("domain", "user"))?;
            find_domain(domain)?;
            identity.users.values().find(|user| user.name == name).ok_or_else(|| unknown(name))
        }
        (_, Some(id)) => identity.users.get(id).ok_or_else(|| unknown(id)),
        (None, None) => Err(KeystoneFault::expecting("id or name", "user")),
    }
}

fn find_credential(identity: &Identity, data: &Value) -> Result<AppCredential, KeystoneFault> {
    if let Some(id) = text(data, "id") {
        let found = identity.app_credentials.get(id).cloned();
        return found.ok_or_else(|| {
            KeystoneFault::not_found(format!("Could not find Application Credential: {id}."))
        });
    }
    let target = "application credential";
    let name = text(data, "name").ok_or_else(|| KeystoneFault::expecting("name or ID", target))?;
    let user = data.get("user").ok_or_else(|| KeystoneFault::expecting("user", target))?;
    let user = if text(user, "id").is_some() {
        find_user(identity, user, |_| KeystoneFault::unauthorized())?
    } else {
        find_user(identity, user, |name| KeystoneFault::not_found(format!("Could not find user: {name}.")))?
    };
    let mut owned = identity.app_credentials.values().filter(|known| known.user_id == user.id);
    owned.find(|known| known.name == name).cloned().ok_or_else(KeystoneFault::unauthorized)
}

fn password(identity: &Identity, data: &Value) -> Result<String, KeystoneFault> {
    let user = data.get("user").ok_or_else(|| KeystoneFault::expecting("user", "None"))?;
    let found = find_user(identity, user, |_| KeystoneFault::unauthorized())?;
    if text(user, "password") != Some(&found.password) {
        return Err(KeystoneFault::unauthorized());
    }
    Ok(found.id.clone())
}

/// A token that was obtained with another token expires with it.
fn from_token(
    identity: &Identity,
    data: &Value,
    now: Timestamp,
    token: &mut Token,
) -> Result<(), KeystoneFault> {
    let id = text(data, "id").ok_or_else(|| KeystoneFault::expecting("id", "token"))?;
    if !identity.tokens.contains_key(id) {
        return Err(KeystoneFault::not_found("Could not recognize Fernet token"));
    }
    let old = identity
        .token(id, now)
        .ok_or_else(|| KeystoneFault::not_found("Failed to validate token"))?;
    if old.trust.is_some() {
        return Err(KeystoneFault::forbidden(
            "Using trust-scoped token to create another token. Create a new trust-scoped token instead",
        ));
    }
    if old.app_credential.is_some() {
        return Err(KeystoneFault::forbidden(
            "Using a delegated token to create another token is not allowed.",
        ));
    }
    token.user_id.clone_from(&old.user_id);
    token.expires = old.expires;
    token.audit_ids.extend(old.audit_ids.last().cloned());
    for method in &old.methods {
        if !token.methods.contains(method) {
            token.methods.push(method.clone());
        }
    }
    Ok(())
}
