//! From keys to credentials. What is ambiguous or incomplete is refused here, in words, before Keystone refuses it with
//! a bare 401.

use ccm_core::config::{Problems, same_value};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::{clouds_yaml::Entry, keys::Global};
use crate::client::identity::{ApplicationCredential, Credentials, Domain, Identity, Scope, User};

/// What is given of `[Global]`, whether by the file itself or by `clouds.yaml`. An empty value is as good as none.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub(super) auth_url: Option<String>,
    pub(super) username: Option<String>,
    pub(super) user_id: Option<String>,
    pub(super) password: Option<SecretString>,
    pub(super) project_id: Option<String>,
    pub(super) project_name: Option<String>,
    pub(super) project_domain_id: Option<String>,
    pub(super) project_domain_name: Option<String>,
    pub(super) user_domain_id: Option<String>,
    pub(super) user_domain_name: Option<String>,
    pub(super) domain_id: Option<String>,
    pub(super) domain_name: Option<String>,
    pub(super) trust_id: Option<String>,
    pub(super) trustee_id: Option<String>,
    pub(super) trustee_password: Option<SecretString>,
    pub(super) credential_id: Option<String>,
    pub(super) credential_name: Option<String>,
    pub(super) credential_secret: Option<SecretString>,
    pub(super) token: Option<SecretString>,
    pub(super) region: Option<String>,
    pub(super) endpoint_type: Option<String>,
    pub(super) ca_file: Option<String>,
    pub(super) ca_contents: Option<String>,
    pub(super) cert_file: Option<String>,
    pub(super) key_file: Option<String>,
    pub(super) tls_insecure: Option<String>,
}

impl Given {
    pub(super) fn from_global(global: &Global) -> Self {
        Self {
            auth_url: text(&global.auth_url),
            username: text(&global.username),
            user_id: text(&global.user_id),
            password: secret(global.password.as_ref()),
            project_id: text(&global.tenant_id),
            project_name: text(&global.tenant_name),
            project_domain_id: text(&global.tenant_domain_id),
            project_domain_name: text(&global.tenant_domain_name),
            user_domain_id: text(&global.user_domain_id),
            user_domain_name: text(&global.user_domain_name),
            domain_id: text(&global.domain_id),
            domain_name: text(&global.domain_name),
            trust_id: text(&global.trust_id),
            trustee_id: text(&global.trustee_id),
            trustee_password: secret(global.trustee_password.as_ref()),
            credential_id: text(&global.application_credential_id),
            credential_name: text(&global.application_credential_name),
            credential_secret: secret(global.application_credential_secret.as_ref()),
            token: secret(global.token.as_ref()),
            region: text(&global.region),
            endpoint_type: text(&global.os_endpoint_type),
            ca_file: text(&global.ca_file),
            ca_contents: text(&global.cafilecontents),
            cert_file: text(&global.cert_file),
            key_file: text(&global.key_file),
            tls_insecure: text(&global.tls_insecure),
        }
    }

    /// Takes from an entry of `clouds.yaml` what is not given.
    pub(super) fn fill_from(&mut self, entry: Entry) {
        fn fill<T>(own: &mut Option<T>, other: Option<T>) {
            if own.is_none() {
                *own = other;
            }
        }
        let auth = entry.auth;
        fill(&mut self.auth_url, auth.auth_url);
        fill(&mut self.user_id, auth.user_id);
        fill(&mut self.username, auth.username);
        fill(&mut self.password, auth.password);
        fill(&mut self.project_id, auth.project_id);
        fill(&mut self.project_name, auth.project_name);
        fill(&mut self.domain_id, auth.domain_id);
        fill(&mut self.domain_name, auth.domain_name);
        fill(&mut self.project_domain_id, auth.project_domain_id);
        fill(&mut self.project_domain_name, auth.project_domain_name);
        fill(&mut self.user_domain_id, auth.user_domain_id);
        fill(&mut self.user_domain_name, auth.user_domain_name);
        fill(&mut self.credential_id, auth.application_credential_id);
        fill(&mut self.credential_name, auth.application_credential_name);
        fill(&mut self.credential_secret, auth.application_credential_secret);
        fill(&mut self.token, auth.token);
        fill(&mut self.region, entry.region_name);
        fill(&mut self.endpoint_type, entry.endpoint_type.or(entry.interface));
        fill(&mut self.ca_file, entry.cacert);
        fill(&mut self.cert_file, entry.cert);
        fill(&mut self.key_file, entry.key);
    }

    /// The keys of `[Global]` that differ, but for those whose effect is compared ([`super::changes`]).
    pub(super) fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        macro_rules! changed {
            ($($field:ident $key:literal),+ $(,)?) => {
                [$( ($key, same_value(&self.$field, &new.$field)) ),+]
            };
        }
        let same = changed![
            auth_url "auth-url", username "username", user_id "user-id", password "password",
            project_id "tenant-id", project_name "tenant-name",
            project_domain_id "tenant-domain-id", project_domain_name "tenant-domain-name",
            user_domain_id "user-domain-id", user_domain_name "user-domain-name",
            domain_id "domain-id", domain_name "domain-name",
            trust_id "trust-id", trustee_id "trustee-id", trustee_password "trustee-password",
            credential_id "application-credential-id", credential_name "application-credential-name",
            credential_secret "application-credential-secret", token "token",
            ca_file "ca-file", ca_contents "cafilecontents", cert_file "cert-file", key_file "key-file",
            tls_insecure "tls-insecure",
        ];
        same.into_iter()
            .filter(|(_, same)| !same)
            .map(|(key, _)| key)
            .collect()
    }

    fn has_project(&self) -> bool {
        self.project_id.is_some() || self.project_name.is_some()
    }

    fn has_credential(&self) -> bool {
        self.credential_id.is_some() || self.credential_name.is_some()
    }
}

/// The credentials, or errors.
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
    let key = ("Global", "auth-url");
    let Some(text) = &given.auth_url else {
        problems.error(
            key,
            "missing; the URL of the Identity service, such as https://keystone.example:5000/v3",
        );
        return None;
    };
    match Url::parse(text) {
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && url.host_str().is_some_and(|host| !host.is_empty()) =>
        {
            let path = url.path().trim_end_matches('/');
            if path.ends_with("/v2.0") {
                problems.error(
                    key,
                    "version 2.0 of the Identity service is not supported; end the URL in /v3",
                );
                return None;
            }
            Some(url)
        }
        Ok(_) => {
            problems.error(key, "not an http or https URL");
            None
        }
        Err(error) => {
            problems.error(key, format!("not a URL: {error}"));
            None
        }
    }
}

/// The order in which methods are tried is that of the Go cloud controller: token, password, application credential.
/// With more than one given it would go on with one that is hardly meant; so that is refused, except where what is left
/// over can do no harm.
fn identity(given: &Given, problems: &mut Problems) -> Option<Identity> {
    if given.trust_id.is_some() {
        return trustee(given, problems);
    }
    if let Some(token) = &given.token {
        if given.has_credential() {
            problems.error(
                ("Global", "token"),
                "both a token and an application credential; give one of them",
            );
            return None;
        }
        if given.password.is_some() {
            problems.warn(
                ("Global", "password"),
                "not used: token is given and comes before it",
            );
        }
        return Some(Identity::Token(token.clone()));
    }
    if given.has_credential() {
        return application_credential(given, problems);
    }
    let Some(password) = &given.password else {
        let what = if given.user_id.is_some() || given.username.is_some() {
            "missing, though a user is given"
        } else {
            "no credentials; give user and password, an application credential, or a token"
        };
        problems.error(("Global", "password"), what);
        return None;
    };
    Some(Identity::Password {
        user: user(given, given.has_project(), problems)?,
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
        let key = if given.project_id.is_some() {
            "tenant-id"
        } else {
            "tenant-name"
        };
        problems.warn(("Global", key), what);
    }
    let Some(secret) = &given.credential_secret else {
        problems.error(
            ("Global", "application-credential-secret"),
            "missing, though an application credential is given",
        );
        return None;
    };
    let id = match (&given.credential_id, &given.credential_name) {
        (Some(id), _) => ApplicationCredential::Id(id.clone()),
        (None, name) => {
            if given.user_id.is_none() && given.username.is_none() {
                let what =
                    "a name says nothing without its user; give user-id, or username and user-domain-name";
                problems.error(("Global", "application-credential-name"), what);
                return None;
            }
            ApplicationCredential::Name {
                name: name.clone()?,
                user: user(given, true, problems)?,
            }
        }
    };
    Some(Identity::ApplicationCredential {
        id,
        secret: secret.clone(),
    })
}

fn trustee(given: &Given, problems: &mut Problems) -> Option<Identity> {
    if given.has_credential() || given.token.is_some() {
        let key = if given.token.is_some() {
            "token"
        } else {
            "application-credential-id"
        };
        problems.warn(("Global", key), "not used: a trust goes with a password");
    }
    match (&given.trustee_id, &given.trustee_password) {
        (Some(id), Some(password)) => Some(Identity::Password {
            user: User::Id(id.clone()),
            password: password.clone(),
        }),
        (Some(_), None) => {
            problems.error(
                ("Global", "trustee-password"),
                "missing, though trustee-id is given",
            );
            None
        }
        (None, Some(_)) => {
            problems.error(
                ("Global", "trustee-id"),
                "missing, though trustee-password is given",
            );
            None
        }
        (None, None) => {
            let Some(password) = &given.password else {
                problems.error(
                    ("Global", "trustee-id"),
                    "a trust needs trustee-id and trustee-password, or user and password",
                );
                return None;
            };
            Some(Identity::Password {
                user: user(given, true, problems)?,
                password: password.clone(),
            })
        }
    }
}

/// The user. `domain-id` and `domain-name` stand for the user's domain only where they are not the scope.
fn user(given: &Given, with_default: bool, problems: &mut Problems) -> Option<User> {
    let domain_keys = ("user-domain-id", "user-domain-name");
    let own = domain(
        domain_keys,
        &given.user_domain_id,
        &given.user_domain_name,
        problems,
    )?;
    match (&given.user_id, &given.username) {
        (Some(_), Some(_)) => {
            problems.error(
                ("Global", "user-id"),
                "both user-id and username; give one of them",
            );
            None
        }
        (Some(id), None) => {
            if own.is_some() {
                let key = if given.user_domain_id.is_some() {
                    domain_keys.0
                } else {
                    domain_keys.1
                };
                problems.error(
                    ("Global", key),
                    "a user-id needs no domain; leave it out, or give username",
                );
                return None;
            }
            Some(User::Id(id.clone()))
        }
        (None, Some(name)) => {
            let default = if with_default && own.is_none() {
                default_domain(given, problems)?
            } else {
                None
            };
            let Some(domain) = own.or(default) else {
                let what = "a name says nothing without its domain; give user-domain-name or user-domain-id";
                problems.error(("Global", "username"), what);
                return None;
            };
            Some(User::Name {
                name: name.clone(),
                domain,
            })
        }
        (None, None) => {
            problems.error(
                ("Global", "username"),
                "missing, though a password is given; give username or user-id",
            );
            None
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
        let keys = ("tenant-domain-id", "tenant-domain-name");
        let own = domain(
            keys,
            &given.project_domain_id,
            &given.project_domain_name,
            problems,
        )?;
        let default = if own.is_none() {
            default_domain(given, problems)?
        } else {
            None
        };
        let Some(domain) = own.or(default) else {
            let what = "a name says nothing without its domain; give tenant-domain-name or tenant-domain-id";
            problems.error(("Global", "tenant-name"), what);
            return None;
        };
        return Some(Scope::ProjectName {
            name: name.clone(),
            domain,
        });
    }
    Some(default_domain(given, problems)?.map_or(Scope::Implied, Scope::Domain))
}

fn default_domain(given: &Given, problems: &mut Problems) -> Option<Option<Domain>> {
    domain(
        ("domain-id", "domain-name"),
        &given.domain_id,
        &given.domain_name,
        problems,
    )
}

/// A domain of two keys. The outer `None` is an error.
fn domain(
    (id_key, name_key): (&str, &str),
    id: &Option<String>,
    name: &Option<String>,
    problems: &mut Problems,
) -> Option<Option<Domain>> {
    match (id, name) {
        (Some(_), Some(_)) => {
            problems.error(
                ("Global", id_key),
                format!("both {id_key} and {name_key}; give one of them"),
            );
            None
        }
        (Some(id), None) => Some(Some(Domain::Id(id.clone()))),
        (None, Some(name)) => Some(Some(Domain::Name(name.clone()))),
        (None, None) => Some(None),
    }
}

/// The text of a key; an empty one is as good as none.
fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

/// As [`text`], of a secret.
fn secret(value: Option<&SecretString>) -> Option<SecretString> {
    value.filter(|value| !value.expose_secret().is_empty()).cloned()
}
