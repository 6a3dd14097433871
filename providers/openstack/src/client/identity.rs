//! Identity for Keystone: the body of a token request.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use url::Url;

/// The data that is needed to get a token.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    /// `auth-url`.
    pub(crate) auth_url: Url,
    /// The credentials.
    pub(crate) identity: Identity,
    /// The requested scope of the token.
    pub(crate) scope: Scope,
}

/// A user, by its ID, or by its name in a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// `user-id`.
    Id(String),
    /// `username` and its domain.
    Name {
        /// `username`.
        name: String,
        /// The user's domain.
        domain: Domain,
    },
}

/// A domain, by id or name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// By id.
    Id(String),
    /// By name.
    Name(String),
}

/// Credentials. Secrets never show in `Debug`.
#[derive(Clone, Debug)]
pub(crate) enum Identity {
    /// A user's password.
    Password {
        /// The user.
        user: User,
        /// The password.
        password: SecretString,
    },
    /// An application credential.
    ApplicationCredential {
        /// The ID or name.
        id: ApplicationCredential,
        /// The secret.
        secret: SecretString,
    },
    /// A token from the config.
    Token(SecretString),
}

/// An application credential, by its ID, or by its name and its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApplicationCredential {
    /// By id.
    Id(String),
    /// By name.
    Name {
        /// Its name.
        name: String,
        /// The user that it belongs to.
        user: User,
    },
}

/// The requested scope of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The scope that the identity implies: an application credential's own project, or a user's default project.
    Implied,
    /// A project by id.
    ProjectId(String),
    /// A project by name.
    ProjectName {
        /// Its name.
        name: String,
        /// Its domain.
        domain: Domain,
    },
    /// A domain.
    Domain(Domain),
    /// A trust, by id.
    Trust(String),
}

impl Credentials {
    /// The body of `POST /v3/auth/tokens`. It contains the secret and must not be logged.
    pub(crate) fn body(&self) -> Value {
        let identity = match &self.identity {
            Identity::Password { user, password } => {
                let mut user = user.to_json();
                user.insert("password".to_owned(), json!(password.expose_secret()));
                json!({"methods": ["password"], "password": {"user": user}})
            }
            Identity::ApplicationCredential { id, secret } => {
                let mut credential = match id {
                    ApplicationCredential::Id(id) => object("id", json!(id)),
                    ApplicationCredential::Name { name, user } => {
                        let mut credential = object("name", json!(name));
                        credential.insert("user".to_owned(), Value::Object(user.to_json()));
                        credential
                    }
                };
                credential.insert("secret".to_owned(), json!(secret.expose_secret()));
                json!({"methods": ["application_credential"], "application_credential": credential})
            }
            Identity::Token(token) => json!({"methods": ["token"], "token": {"id": token.expose_secret()}}),
        };
        let scope = match &self.scope {
            Scope::Implied => None,
            Scope::ProjectId(id) => Some(json!({"project": {"id": id}})),
            Scope::ProjectName { name, domain } => {
                Some(json!({"project": {"name": name, "domain": domain.to_json()}}))
            }
            Scope::Domain(domain) => Some(json!({"domain": domain.to_json()})),
            Scope::Trust(id) => Some(json!({"OS-TRUST:trust": {"id": id}})),
        };
        let mut auth = object("identity", identity);
        if let Some(scope) = scope {
            auth.insert("scope".to_owned(), scope);
        }
        json!({"auth": auth})
    }

    /// The token that is used directly: without a scope it cannot be exchanged for another.
    pub(crate) fn bare_token(&self) -> Option<&SecretString> {
        match (&self.identity, &self.scope) {
            (Identity::Token(token), Scope::Implied) => Some(token),
            _ => None,
        }
    }
}

/// Describes the user in errors, without the secret.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { user, .. } => write!(f, "{user}"),
            Self::ApplicationCredential {
                id: ApplicationCredential::Id(id),
                ..
            } => {
                write!(f, "application credential {id}")
            }
            Self::ApplicationCredential {
                id: ApplicationCredential::Name { name, user },
                ..
            } => {
                write!(f, "application credential {name:?} of {user}")
            }
            Self::Token(_) => f.write_str("the configured token"),
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "user {id}"),
            Self::Name {
                name,
                domain: Domain::Id(domain),
            } => write!(f, "user {name:?} of domain {domain}"),
            Self::Name {
                name,
                domain: Domain::Name(domain),
            } => write!(f, "user {name:?} of domain {domain:?}"),
        }
    }
}

impl User {
    fn to_json(&self) -> Map<String, Value> {
        match self {
            Self::Id(id) => object("id", json!(id)),
            Self::Name { name, domain } => {
                let mut user = object("name", json!(name));
                user.insert("domain".to_owned(), domain.to_json());
                user
            }
        }
    }
}

impl Domain {
    fn to_json(&self) -> Value {
        match self {
            Self::Id(id) => json!({"id": id}),
            Self::Name(name) => json!({"name": name}),
        }
    }
}

fn object(key: &str, value: Value) -> Map<String, Value> {
    Map::from_iter([(key.to_owned(), value)])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn user() -> User {
        User::Name {
            name: "alice".into(),
            domain: Domain::Name("Default".into()),
        }
    }

    fn password(user: User) -> Identity {
        Identity::Password {
            user,
            password: "pw".into(),
        }
    }

    fn body(identity: Identity, scope: Scope) -> Value {
        Credentials {
            auth_url: "http://ks/v3".parse().unwrap(),
            identity,
            scope,
        }
        .body()
    }

    #[test]
    fn every_method_and_scope_has_its_body() {
        let app = |id| Identity::ApplicationCredential {
            id,
            secret: "s".into(),
        };
        let cases = [
            (
                body(password(User::Id("u1".into())), Scope::ProjectId("p1".into())),
                json!({"identity": {"methods": ["password"], "password": {"user": {"id": "u1", "password": "pw"}}},
                       "scope": {"project": {"id": "p1"}}}),
            ),
            (
                body(
                    password(user()),
                    Scope::ProjectName {
                        name: "prod".into(),
                        domain: Domain::Id("default".into()),
                    },
                ),
                json!({"identity": {"methods": ["password"], "password": {"user":
                            {"name": "alice", "domain": {"name": "Default"}, "password": "pw"}}},
                       "scope": {"project": {"name": "prod", "domain": {"id": "default"}}}}),
            ),
            (
                body(password(user()), Scope::Domain(Domain::Name("Default".into()))),
                json!({"identity": {"methods": ["password"], "password": {"user":
                            {"name": "alice", "domain": {"name": "Default"}, "password": "pw"}}},
                       "scope": {"domain": {"name": "Default"}}}),
            ),
            (
                body(password(User::Id("trustee".into())), Scope::Trust("t1".into())),
                json!({"identity": {"methods": ["password"], "password": {"user": {"id": "trustee", "password": "pw"}}},
                       "scope": {"OS-TRUST:trust": {"id": "t1"}}}),
            ),
            (
                body(app(ApplicationCredential::Id("a1".into())), Scope::Implied),
                json!({"identity": {"methods": ["application_credential"],
                                    "application_credential": {"id": "a1", "secret": "s"}}}),
            ),
            (
                body(
                    app(ApplicationCredential::Name {
                        name: "ccm".into(),
                        user: user(),
                    }),
                    Scope::Implied,
                ),
                json!({"identity": {"methods": ["application_credential"], "application_credential":
                            {"name": "ccm", "secret": "s", "user": {"name": "alice", "domain": {"name": "Default"}}}}}),
            ),
            (
                body(Identity::Token("t".into()), Scope::ProjectId("p1".into())),
                json!({"identity": {"methods": ["token"], "token": {"id": "t"}}, "scope": {"project": {"id": "p1"}}}),
            ),
        ];
        for (actual, auth) in cases {
            assert_eq!(actual, json!({"auth": auth}));
        }
    }

    #[test]
    fn secrets_are_in_neither_debug_nor_display() {
        for identity in [
            Identity::Password {
                user: user(),
                password: "hunter2".into(),
            },
            Identity::ApplicationCredential {
                id: ApplicationCredential::Id("a".into()),
                secret: "hunter2".into(),
            },
            Identity::Token("hunter2".into()),
        ] {
            let shown = format!("{identity:?} {identity}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
