//! The credentials: the first that the keys describe, in the order of the Go cloud-controller-manager.

use std::path::PathBuf;

use ccm_core::{
    BuildContext,
    config::{ConfigFiles, KeyPath, Problems},
};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::{certificate::Certificate, keys::CloudConf, parse_url};

/// How the program authenticates.
#[derive(Clone, Debug)]
pub(crate) enum Credential {
    /// A service principal with a secret.
    Secret {
        tenant: String,
        client: String,
        secret: SecretString,
    },
    /// A service principal with a certificate.
    Certificate {
        tenant: String,
        client: String,
        certificate: Certificate,
    },
    /// A managed identity.
    Managed {
        identity: Identity,
        /// The endpoint of an App Service and its header; without it, the metadata service of the machine.
        app_service: Option<(Url, SecretString)>,
    },
    /// A workload identity, whose token is in a file.
    Workload {
        tenant: String,
        client: String,
        file: PathBuf,
    },
}

impl PartialEq for Credential {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Secret {
                    tenant,
                    client,
                    secret,
                },
                Self::Secret {
                    tenant: other_tenant,
                    client: other_client,
                    secret: other_secret,
                },
            ) => {
                (tenant, client) == (other_tenant, other_client)
                    && secret.expose_secret() == other_secret.expose_secret()
            }
            (
                Self::Certificate {
                    tenant,
                    client,
                    certificate,
                },
                Self::Certificate {
                    tenant: other_tenant,
                    client: other_client,
                    certificate: other_certificate,
                },
            ) => (tenant, client, certificate) == (other_tenant, other_client, other_certificate),
            (
                Self::Managed {
                    identity,
                    app_service,
                },
                Self::Managed {
                    identity: other_identity,
                    app_service: other_service,
                },
            ) => {
                let (service, other_service) = (app_service.as_ref(), other_service.as_ref());
                identity == other_identity
                    && service.map(|(url, header)| (url, header.expose_secret()))
                        == other_service.map(|(url, header)| (url, header.expose_secret()))
            }
            (
                Self::Workload { tenant, client, file },
                Self::Workload {
                    tenant: other_tenant,
                    client: other_client,
                    file: other_file,
                },
            ) => (tenant, client, file) == (other_tenant, other_client, other_file),
            _ => false,
        }
    }
}

impl Credential {
    /// The same service principal in another tenant; `None` for other credentials.
    fn in_tenant(&self, tenant: &str) -> Option<Self> {
        match self {
            Self::Secret { client, secret, .. } => Some(Self::Secret {
                tenant: tenant.to_owned(),
                client: client.clone(),
                secret: secret.clone(),
            }),
            Self::Certificate {
                client, certificate, ..
            } => Some(Self::Certificate {
                tenant: tenant.to_owned(),
                client: client.clone(),
                certificate: certificate.clone(),
            }),
            Self::Managed { .. } | Self::Workload { .. } => None,
        }
    }
}

/// A managed identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// That of the machine.
    System,
    /// A user-assigned one, by its client ID.
    Client(String),
    /// A user-assigned one, by its resource ID.
    Resource(String),
}

/// The credentials of machines, and those of network resources if they differ.
pub(super) fn resolve(
    conf: &CloudConf,
    context: &BuildContext,
    files: &mut ConfigFiles,
    problems: &mut Problems,
) -> Option<(Credential, Option<Credential>)> {
    let credential = credential(conf, context, files, problems)?;
    let is_principal = matches!(credential, Credential::Secret { .. } | Credential::Certificate { .. });
    let needs_tenant = !matches!(credential, Credential::Managed { .. });
    problems.require(
        !needs_tenant || !conf.tenant_id.trim().is_empty(),
        KeyPath::key("tenantId"),
        "missing; set tenantId to the ID of the tenant",
    );
    let (own, network) = (conf.tenant_id.trim(), conf.network_tenant.trim());
    if network.is_empty() || network.eq_ignore_ascii_case(own) {
        return Some((credential, None));
    }
    let key = KeyPath::key("networkResourceTenantID");
    problems.require(
        is_principal,
        key,
        "network resources in another tenant need a service principal with a secret or certificate",
    );
    problems.require(
        !conf.identity_system.eq_ignore_ascii_case("adfs"),
        key,
        "not possible with identitySystem adfs",
    );
    let other = credential.in_tenant(network);
    Some((credential, other))
}

fn credential(
    conf: &CloudConf,
    context: &BuildContext,
    files: &mut ConfigFiles,
    problems: &mut Problems,
) -> Option<Credential> {
    let (tenant, client) = (conf.tenant_id.trim().to_owned(), conf.aad_client_id.trim().to_owned());
    let is_workload =
        conf.use_workload_identity || context.environment.var("AZURE_FEDERATED_TOKEN_FILE").is_some();
    if is_workload {
        let file = PathBuf::from(&conf.federated_token_file);
        problems.require(
            !conf.federated_token_file.is_empty(),
            KeyPath::key("aadFederatedTokenFile"),
            "missing; set aadFederatedTokenFile to the file with the service account token",
        );
        require_client(&client, problems);
        // The file is read before each login: kubelet replaces it every hour.
        return Some(Credential::Workload { tenant, client, file });
    }
    if conf.use_managed_identity {
        return managed(conf, context, problems);
    }
    if let Some(secret) = conf.aad_client_secret.as_ref().filter(|secret| !secret.expose_secret().is_empty())
    {
        require_client(&client, problems);
        return Some(Credential::Secret {
            tenant,
            client,
            secret: secret.clone(),
        });
    }
    if !conf.aad_client_cert_path.is_empty() {
        require_client(&client, problems);
        let path = &conf.aad_client_cert_path;
        let file = files.read(path).map_err(|error| format!("could not read {path}: {error}"));
        let password = conf
            .aad_client_cert_password
            .as_ref()
            .map(ExposeSecret::expose_secret)
            .unwrap_or_default();
        return match file.and_then(|file| Certificate::parse(&file, password)) {
            Ok(certificate) => Some(Credential::Certificate {
                tenant,
                client,
                certificate,
            }),
            Err(text) => {
                problems.error(KeyPath::key("aadClientCertPath"), text);
                None
            }
        };
    }
    if conf.data_plane_identity.is_empty() {
        let text = "no credentials; write aadClientId and aadClientSecret, aadClientCertPath, useManagedIdentityExtension: true or \
                    useFederatedWorkloadIdentityExtension: true";
        problems.error(KeyPath::key("aadClientSecret"), text);
    } else {
        let text =
            "credentials of hosted control planes are not supported; use a managed or workload identity";
        problems.error(KeyPath::key("aadMSIDataPlaneIdentityPath"), text);
    }
    None
}

fn require_client(client: &str, problems: &mut Problems) {
    problems.require(
        !client.is_empty(),
        KeyPath::key("aadClientId"),
        "missing; set aadClientId to the client ID of the service principal or identity",
    );
}

/// The managed identity: of the App Service that the environment describes, else of the machine.
fn managed(conf: &CloudConf, context: &BuildContext, problems: &mut Problems) -> Option<Credential> {
    let user = conf.user_assigned_identity.trim();
    let identity = if user.is_empty() {
        Identity::System
    } else if user.to_ascii_uppercase().contains("/SUBSCRIPTIONS/") {
        Identity::Resource(user.to_owned())
    } else {
        Identity::Client(user.to_owned())
    };
    let environment = &context.environment;
    let app_service = match (environment.var("IDENTITY_ENDPOINT"), environment.var("IDENTITY_HEADER")) {
        (Some(endpoint), Some(header)) => match parse_url(endpoint) {
            Ok(url) => Some((url, SecretString::from(header))),
            Err(text) => {
                problems.error(KeyPath::key("IDENTITY_ENDPOINT"), text);
                return None;
            }
        },
        _ => None,
    };
    Some(Credential::Managed {
        identity,
        app_service,
    })
}
