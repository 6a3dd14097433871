//! Credentials from keys. Ambiguous or incomplete ones are refused here with a reason; Keystone would only answer 401.

use ccm_core::{config::Problems, same_value};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use url::Url;

use super::keys::Global;
use crate::client::identity::{ApplicationCredential, Credentials, Domain, Identity, Scope, User};

/// A value of `[Global]`; an empty one counts as missing.
trait Value {
    type Given;

    fn given(&self) -> Option<Self::Given>;
}

impl Value for String {
    type Given = Self;

    fn given(&self) -> Option<Self> {
        Some(self).filter(|text| !text.is_empty()).cloned()
    }
}

impl Value for Option<SecretString> {
    type Given = SecretString;

    fn given(&self) -> Option<SecretString> {
        let given = self.as_ref();
        given.filter(|secret| !secret.expose_secret().is_empty()).cloned()
    }
}

/// Declares [`Given`]: each field with its type, its field of `[Global]` and its key. `skip`: the field is not under
/// `auth` in an entry of `clouds.yaml`.
macro_rules! given {
    ($($field:ident: $type:ty = $global:ident $key:literal $([$skip:ident])?;)+) => {
        /// The values of `[Global]`, from the file itself or from `clouds.yaml`.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(default)]
        pub(super) struct Given {
            $($(#[serde($skip)])? pub(super) $field: Option<$type>,)+
        }

        impl Given {
            pub(super) fn from_global(global: &Global) -> Self {
                Self { $($field: global.$global.given(),)+ }
            }

            /// Fills missing values from another set.
            pub(super) fn or(self, other: Self) -> Self {
                Self { $($field: self.$field.or(other.$field),)+ }
            }

            /// The keys of `[Global]` that differ, except those whose effect is compared ([`super::changes`]).
            pub(super) fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
                let same = [$(($key, same_value!(self.$field, new.$field)),)+].into_iter();
                let changed = same.filter(|(_, same)| !same).map(|(key, _)| key);
                changed.filter(|key| !["region", "os-endpoint-type"].contains(key)).collect()
            }
        }
    };
}

given! {
    auth_url: String = auth_url "auth-url";
    username: String = username "username";
    user_id: String = user_id "user-id";
    password: SecretString = password "password";
    project_id: String = tenant_id "tenant-id";
    project_name: String = tenant_name "tenant-name";
    project_domain_id: String = tenant_domain_id "tenant-domain-id";
    project_domain_name: String = tenant_domain_name "tenant-domain-name";
    user_domain_id: String = user_domain_id "user-domain-id";
    user_domain_name: String = user_domain_name "user-domain-name";
    domain_id: String = domain_id "domain-id";
    domain_name: String = domain_name "domain-name";
    trust_id: String = trust_id "trust-id" [skip];
    trustee_id: String = trustee_id "trustee-id" [skip];
    trustee_password: SecretString = trustee_password "trustee-password" [skip];
    application_credential_id: String = application_credential_id "application-credential-id";
    application_credential_name: String = application_credential_name "application-credential-name";
    application_credential_secret: SecretString = application_credential_secret "application-credential-secret";
    token: SecretString = token "token";
    region: String = region "region" [skip];
    endpoint_type: String = os_endpoint_type "os-endpoint-type" [skip];
    ca_file: String = ca_file "ca-file" [skip];
    ca_contents: String = cafilecontents "cafilecontents" [skip];
    cert_file: String = cert_file "cert-file" [skip];
    key_file: String = key_file "key-file" [skip];
    tls_insecure: String = tls_insecure "tls-insecure" [skip];
}

impl Given {
    fn has_project(&self) -> bool {
        self.project_id.is_some() || self.project_name.is_some()
    }

    fn has_credential(&self) -> bool {
        self.application_credential_id.is_some() || self.application_credential_name.is_some()
    }
}

/// Returns the credentials; `None` if they have problems.
pub(super) fn resolve(given: &Given, problems: &mut Problems) -> Option<Credentials> {
    let auth_url = auth_url(given, problems);
    let identity = identity(given, problems);
    let scope = scope(given, problems);
    Some(Credentials {
        auth_url: auth_url?,
        identity: identity?,
        scope: scope?,
    })
}

fn auth_url(given: &Given, problems: &mut Problems) -> Option<Url> {
    let key = "auth-url";
    let Some(text) = &given.auth_url else {
        return refuse(
            problems,
            key,
            "missing; the URL of the Identity service, such as https://keystone.example:5000/v3",
        );
    };
    match Url::parse(text) {
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && url.host_str().is_some_and(|host| !host.is_empty()) =>
        {
            let path = url.path().trim_end_matches('/');
            if path.ends_with("/v2.0") {
                return refuse(
                    problems,
                    key,
                    "version 2.0 of the Identity service is not supported; end the URL in /v3",
                );
            }
            Some(url)
        }
        Ok(_) => refuse(problems, key, "not an http or https URL"),
        Err(error) => refuse(problems, key, format!("not a URL: {error}")),
    }
}

/// Selects the method in the order of the Go cloud-controller-manager: token, password, application credential. Several methods
/// are refused, since the order may select one that is not intended. Harmless extra values only cause a warning.
fn identity(given: &Given, problems: &mut Problems) -> Option<Identity> {
    if given.trust_id.is_some() {
        return trustee(given, problems);
    }
    if let Some(token) = &given.token {
        if given.has_credential() {
            return refuse(problems, "token", "both a token and an application credential; give one of them");
        }
        if given.password.is_some() {
            problems.warn(("Global", "password"), "not used: token takes precedence");
        }
        return Some(Identity::Token(token.clone()));
    }
    if given.has_credential() {
        return application_credential(given, problems);
    }
    let user = user(given, given.has_project(), problems);
    let Some(password) = &given.password else {
        let what = if given.user_id.is_some() || given.username.is_some() {
            "missing, though a user is given"
        } else {
            "no credentials; give user and password, an application credential, or a token"
        };
        return refuse(problems, "password", what);
    };
    Some(Identity::Password {
        user: user?,
        password: password.clone(),
    })
}

fn application_credential(given: &Given, problems: &mut Problems) -> Option<Identity> {
    if given.password.is_some() {
        let what = "both a password and an application credential; give one of them";
        problems.error(("Global", "password"), what);
    }
    if given.has_project() {
        let what = "not used: an application credential brings its own project";
        let key = given.project_id.as_ref().map_or("tenant-name", |_| "tenant-id");
        problems.warn(("Global", key), what);
    }
    let id = match &given.application_credential_id {
        Some(id) => Some(ApplicationCredential::Id(id.clone())),
        None => named_credential(given, problems),
    };
    let Some(secret) = &given.application_credential_secret else {
        return refuse(
            problems,
            "application-credential-secret",
            "missing, though an application credential is given",
        );
    };
    Some(Identity::ApplicationCredential {
        id: id?,
        secret: secret.clone(),
    })
}

fn named_credential(given: &Given, problems: &mut Problems) -> Option<ApplicationCredential> {
    // As in Go, the ID takes precedence over a name and its domain.
    let user = match (&given.user_id, &given.username) {
        (Some(id), _) => Some(User::Id(id.clone())),
        (None, Some(_)) => user(given, true, problems),
        (None, None) => {
            let what = "a name needs its user; give user-id, or username and user-domain-name";
            refuse(problems, "application-credential-name", what)
        }
    };
    Some(ApplicationCredential::Name {
        name: given.application_credential_name.clone()?,
        user: user?,
    })
}

fn trustee(given: &Given, problems: &mut Problems) -> Option<Identity> {
    if given.has_credential() || given.token.is_some() {
        let token = given.token.as_ref();
        let key = token.map_or("application-credential-id", |_| "token");
        problems.warn(("Global", key), "not used: a trust needs a password instead");
    }
    // As in Go, each of the two replaces the user's own value.
    let user = match &given.trustee_id {
        Some(id) => Some(User::Id(id.clone())),
        None => user(given, true, problems),
    };
    let Some(password) = given.trustee_password.as_ref().or(given.password.as_ref()) else {
        let what = "a trust needs trustee-id and trustee-password, or user and password";
        return refuse(problems, "trustee-password", what);
    };
    Some(Identity::Password {
        user: user?,
        password: password.clone(),
    })
}

/// The user. `domain-id` and `domain-name` are the user's domain only where they are not the scope.
fn user(given: &Given, with_default: bool, problems: &mut Problems) -> Option<User> {
    let domain_keys = ("user-domain-id", "user-domain-name");
    let own = domain(domain_keys, &given.user_domain_id, &given.user_domain_name, problems);
    match (&given.user_id, &given.username) {
        (Some(_), Some(_)) => refuse(problems, "user-id", "both user-id and username; give one of them"),
        (Some(id), None) => {
            if own?.is_some() {
                let id = given.user_domain_id.as_ref();
                let key = id.map_or(domain_keys.1, |_| domain_keys.0);
                return refuse(problems, key, "a user-id needs no domain; leave it out, or give username");
            }
            Some(User::Id(id.clone()))
        }
        (None, Some(name)) => {
            let own = own?;
            let default = if with_default && own.is_none() {
                default_domain(given, problems)?
            } else {
                None
            };
            let Some(domain) = own.or(default) else {
                let what = "a name needs its domain; give user-domain-name or user-domain-id";
                return refuse(problems, "username", what);
            };
            Some(User::Name {
                name: name.clone(),
                domain,
            })
        }
        // The caller reports the missing password.
        (None, None) if given.password.is_none() && given.trustee_password.is_none() => None,
        (None, None) => {
            refuse(problems, "username", "missing, though a password is given; give username or user-id")
        }
    }
}

fn scope(given: &Given, problems: &mut Problems) -> Option<Scope> {
    if let Some(id) = &given.trust_id {
        return Some(Scope::Trust(id.clone()));
    }
    if given.has_credential() && given.token.is_none() {
        return Some(Scope::Implied);
    }
    if let Some(id) = &given.project_id {
        return Some(Scope::ProjectId(id.clone()));
    }
    if let Some(name) = &given.project_name {
        // As in Go, the ID takes precedence.
        let own = match &given.project_domain_id {
            Some(id) => Some(Domain::Id(id.clone())),
            None => given.project_domain_name.clone().map(Domain::Name),
        };
        let default = if own.is_none() {
            default_domain(given, problems)?
        } else {
            None
        };
        let Some(domain) = own.or(default) else {
            let what = "a name needs its domain; give tenant-domain-name or tenant-domain-id";
            return refuse(problems, "tenant-name", what);
        };
        return Some(Scope::ProjectName {
            name: name.clone(),
            domain,
        });
    }
    Some(default_domain(given, problems)?.map_or(Scope::Implied, Scope::Domain))
}

fn default_domain(given: &Given, problems: &mut Problems) -> Option<Option<Domain>> {
    domain(("domain-id", "domain-name"), &given.domain_id, &given.domain_name, problems)
}

/// A domain, from its two keys. The outer `None` is an error.
fn domain(
    (id_key, name_key): (&str, &str),
    id: &Option<String>,
    name: &Option<String>,
    problems: &mut Problems,
) -> Option<Option<Domain>> {
    match (id, name) {
        (Some(_), Some(_)) => {
            problems.error(("Global", id_key), format!("both {id_key} and {name_key}; give one of them"));
            None
        }
        (Some(id), None) => Some(Some(Domain::Id(id.clone()))),
        (None, Some(name)) => Some(Some(Domain::Name(name.clone()))),
        (None, None) => Some(None),
    }
}

/// Reports an error about a key of `[Global]`.
pub(super) fn refuse<T>(problems: &mut Problems, key: &str, what: impl Into<String>) -> Option<T> {
    problems.error(("Global", key), what.into());
    None
}
