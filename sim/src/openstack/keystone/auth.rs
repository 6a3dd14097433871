//! The rules by which Keystone issues a token, in the order in which it checks them.

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Fault;
use crate::openstack::identity::{DOMAIN_ID, DOMAIN_NAME, Grant, Identity, Token, User};
use crate::openstack::ids::Ids;
use crate::openstack::spec::AppCredential;

/// What Keystone says it knows.
const METHODS: [&str; 7] = [
    "external",
    "password",
    "token",
    "oauth1",
    "mapped",
    "application_credential",
    "ec2credential",
];
/// What it does here.
const KNOWN: [&str; 3] = ["password", "token", "application_credential"];

/// What the scope of a request asks for.
enum Scope {
    None,
    Unscoped,
    Project(String),
    Domain,
    Trust(String),
    Credential(AppCredential),
}

/// Checks credentials and scope; the result is the token to issue.
pub(super) fn authenticate(
    identity: &Identity,
    auth: Option<&Value>,
    now: Timestamp,
    ids: &Ids,
) -> Result<Token, Fault> {
    let auth = auth
        .filter(|auth| !auth.is_null())
        .ok_or_else(|| Fault::expecting("auth", "request body"))?;
    check_schema(auth)?;
    let credentials = auth.get("identity").unwrap_or(&Value::Null);
    let methods = method_names(credentials);
    for method in &methods {
        if credentials.get(method.as_str()).is_none() {
            return Err(Fault::expecting(method, "identity"));
        }
    }
    if methods.iter().any(|method| !KNOWN.contains(&method.as_str())) {
        let fault = Fault::new(
            StatusCode::UNAUTHORIZED,
            "Attempted to authenticate with an unsupported method.",
        );
        return Err(fault.plugin(json!({ "methods": METHODS })));
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
            _ => {
                let Scope::Credential(credential) = &scope else {
                    return Err(Fault::unauthorized());
                };
                if text(data, "secret") != Some(&credential.secret) {
                    return Err(Fault::unauthorized());
                }
                token.user_id.clone_from(&credential.user_id);
            }
        }
    }
    if token.user_id.is_empty() {
        return Err(Fault::unauthorized());
    }
    apply_scope(identity, scope, &mut token)?;
    Ok(token)
}

fn apply_scope(identity: &Identity, scope: Scope, token: &mut Token) -> Result<(), Fault> {
    let user = identity
        .users
        .get(&token.user_id)
        .ok_or_else(Fault::unauthorized)?;
    match scope {
        Scope::None | Scope::Unscoped => {}
        Scope::Project(project) => {
            if !user.projects.contains(&project) {
                return Err(Fault::unauthorized());
            }
            token.grant = Grant::Project(project);
        }
        Scope::Domain => {
            if !user.admin {
                return Err(Fault::unauthorized());
            }
            token.grant = Grant::Domain;
        }
        Scope::Trust(id) => {
            let trust = identity.trusts.get(&id).ok_or_else(Fault::unauthorized)?;
            if trust.trustee != token.user_id {
                let message = "You are not authorized to perform the requested action.";
                return Err(Fault::new(StatusCode::FORBIDDEN, message));
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
    for method in credentials
        .get("methods")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
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

fn scope(identity: &Identity, auth: &Value, credentials: &Value, methods: &[String]) -> Result<Scope, Fault> {
    if methods.iter().any(|method| method == "application_credential") {
        if auth.get("scope").is_some() {
            let message = "Error authenticating with application credential: Application credentials cannot request \
                           a scope.";
            return Err(Fault::new(StatusCode::UNAUTHORIZED, message).plugin(json!({})));
        }
        let data = credentials.get("application_credential").unwrap_or(&Value::Null);
        return find_credential(identity, data).map(Scope::Credential);
    }
    let Some(scope) = auth.get("scope") else {
        return Ok(Scope::None);
    };
    if scope.as_str().is_some_and(|scope| scope == "unscoped") {
        return Ok(Scope::Unscoped);
    }
    let kinds = ["project", "domain", "unscoped", "system", "OS-TRUST:trust"];
    let asked: Vec<&str> = kinds
        .into_iter()
        .filter(|kind| scope.get(kind).is_some())
        .collect();
    let [kind] = asked.as_slice() else {
        return Err(Fault::expecting(
            "system, project, domain, OS-TRUST:trust or unscoped",
            "scope",
        ));
    };
    let data = scope.get(*kind).unwrap_or(&Value::Null);
    match *kind {
        "project" => find_project(identity, data).map(Scope::Project),
        "domain" => find_domain(data).map(|()| Scope::Domain),
        "unscoped" => Ok(Scope::Unscoped),
        "OS-TRUST:trust" => {
            let id = text(data, "id").ok_or_else(|| Fault::expecting("trust_id", "trust"))?;
            if !identity.trusts.contains_key(id) {
                return Err(Fault::unauthorized());
            }
            Ok(Scope::Trust(id.to_owned()))
        }
        // Nobody has a role on the system here.
        _ => Err(Fault::unauthorized()),
    }
}

fn find_domain(data: &Value) -> Result<(), Fault> {
    let found = match (text(data, "name"), text(data, "id")) {
        (Some(name), _) => name == DOMAIN_NAME,
        (None, Some(id)) => id == DOMAIN_ID,
        (None, None) => return Err(Fault::expecting("id or name", "domain")),
    };
    if found { Ok(()) } else { Err(Fault::unauthorized()) }
}

fn find_project(identity: &Identity, data: &Value) -> Result<String, Fault> {
    let found = if let Some(name) = text(data, "name") {
        let domain = data
            .get("domain")
            .ok_or_else(|| Fault::expecting("domain", "project"))?;
        find_domain(domain)?;
        identity
            .projects
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(id, _)| id.clone())
    } else {
        text(data, "id")
            .filter(|id| identity.projects.contains_key(*id))
            .map(str::to_owned)
    };
    found.ok_or_else(Fault::unauthorized)
}

/// A user by id, or by name and domain. Which fault an unknown user is depends on who asks.
fn find_user<'a>(
    identity: &'a Identity,
    data: &Value,
    unknown: fn(&str) -> Fault,
) -> Result<&'a User, Fault> {
    match (text(data, "name"), text(data, "id")) {
        (Some(name), None) => {
            let domain = data
                .get("domain")
                .ok_or_else(|| Fault::expecting("domain", "user"))?;
            find_domain(domain)?;
            identity
                .users
                .values()
                .find(|user| user.name == name)
                .ok_or_else(|| unknown(name))
        }
        (_, Some(id)) => identity.users.get(id).ok_or_else(|| unknown(id)),
        (None, None) => Err(Fault::expecting("id or name", "user")),
    }
}

fn find_credential(identity: &Identity, data: &Value) -> Result<AppCredential, Fault> {
    if let Some(id) = text(data, "id") {
        let found = identity.app_credentials.get(id).cloned();
        return found
            .ok_or_else(|| Fault::not_found(format!("Could not find Application Credential: {id}.")));
    }
    let target = "application credential";
    let name = text(data, "name").ok_or_else(|| Fault::expecting("name or ID", target))?;
    let user = data.get("user").ok_or_else(|| Fault::expecting("user", target))?;
    let user = if text(user, "id").is_some() {
        find_user(identity, user, |_| Fault::unauthorized())?
    } else {
        find_user(identity, user, |name| {
            Fault::not_found(format!("Could not find user: {name}."))
        })?
    };
    let mut owned = identity
        .app_credentials
        .values()
        .filter(|known| known.user_id == user.id);
    owned
        .find(|known| known.name == name)
        .cloned()
        .ok_or_else(Fault::unauthorized)
}

fn password(identity: &Identity, data: &Value) -> Result<String, Fault> {
    let user = data.get("user").ok_or_else(|| Fault::expecting("user", "None"))?;
    let found = find_user(identity, user, |_| Fault::unauthorized())?;
    if text(user, "password") != Some(&found.password) {
        return Err(Fault::unauthorized());
    }
    Ok(found.id.clone())
}

/// A token made from a token ends when the first one does, so that nobody stays for ever.
fn from_token(identity: &Identity, data: &Value, now: Timestamp, token: &mut Token) -> Result<(), Fault> {
    let id = text(data, "id").ok_or_else(|| Fault::expecting("id", "token"))?;
    if !identity.tokens.contains_key(id) {
        return Err(Fault::not_found("Could not recognize Fernet token"));
    }
    let old = identity
        .token(id, now)
        .ok_or_else(|| Fault::not_found("Failed to validate token"))?;
    if old.trust.is_some() {
        return Err(Fault::forbidden(
            "Using trust-scoped token to create another token. Create a new trust-scoped token instead",
        ));
    }
    if old.app_credential.is_some() {
        return Err(Fault::forbidden(
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

/// The parts of the request schema whose violation a client can cause by mistake.
fn check_schema(auth: &Value) -> Result<(), Fault> {
    let invalid = |detail: String| Fault::new(StatusCode::BAD_REQUEST, detail);
    let wrong = |path: &str, value: &Value, kind: &str| {
        let shown = python(value);
        invalid(format!(
            "Invalid input for field '{path}': {shown} is not of type '{kind}'"
        ))
    };
    if !auth.is_object() {
        return Err(invalid(format!("{} is not of type 'object'", python(auth))));
    }
    let Some(identity) = auth.get("identity") else {
        return Err(invalid("'identity' is a required property".to_owned()));
    };
    if !identity.is_object() {
        return Err(wrong("identity", identity, "object"));
    }
    let Some(methods) = identity.get("methods") else {
        return Err(invalid(
            "Invalid input for field 'identity': 'methods' is a required property".to_owned(),
        ));
    };
    let Some(list) = methods.as_array() else {
        return Err(wrong("identity/methods", methods, "array"));
    };
    for (index, method) in list.iter().enumerate() {
        if !method.is_string() {
            return Err(wrong(&format!("identity/methods/{index}"), method, "string"));
        }
    }
    for (path, kind) in [
        ("identity/password", "object"),
        ("identity/password/user", "object"),
        ("identity/password/user/id", "string"),
        ("identity/password/user/name", "string"),
        ("identity/password/user/password", "string"),
        ("identity/password/user/domain", "object"),
        ("identity/password/user/domain/id", "string"),
        ("identity/password/user/domain/name", "string"),
        ("identity/token", "object"),
        ("identity/token/id", "string"),
        ("scope/project", "object"),
        ("scope/project/id", "string"),
        ("scope/project/name", "string"),
        ("scope/project/domain", "object"),
        ("scope/domain", "object"),
        ("scope/domain/id", "string"),
        ("scope/domain/name", "string"),
        ("scope/OS-TRUST:trust", "object"),
        ("scope/OS-TRUST:trust/id", "string"),
    ] {
        let Some(value) = auth.pointer(&format!("/{path}")) else {
            continue;
        };
        if (kind == "object" && !value.is_object()) || (kind == "string" && !value.is_string()) {
            return Err(wrong(path, value, kind));
        }
    }
    if let Some(scope) = auth
        .get("scope")
        .filter(|scope| !scope.is_object() && !scope.is_string())
    {
        return Err(invalid(format!(
            "Invalid input for field 'scope': {} is not of type 'object', 'string'",
            python(scope)
        )));
    }
    if identity
        .get("token")
        .is_some_and(|token| token.get("id").is_none())
    {
        let message = "Invalid input for field 'identity/token': 'id' is a required property";
        return Err(invalid(message.to_owned()));
    }
    for path in [
        "identity/password/user",
        "identity/password/user/domain",
        "scope/project",
        "scope/project/domain",
        "scope/domain",
    ] {
        let Some(value) = auth.pointer(&format!("/{path}")) else {
            continue;
        };
        if value.get("id").is_none() && value.get("name").is_none() {
            return Err(invalid(format!(
                "Invalid input for field {path}: id or name must be present."
            )));
        }
    }
    Ok(())
}

/// A value as the services' error texts show it.
pub(crate) fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => format!("'{text}'"),
        other => other.to_string(),
    }
}
