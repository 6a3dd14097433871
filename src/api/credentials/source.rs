//! Sources of the API server's address and credentials: a kubeconfig file, a pod's folder, or only a URL.

use std::{
    env, fs,
    net::Ipv6Addr,
    path::{Path, PathBuf},
};

use ccm_core::{Environment, config::http_url_or_host, error::report};
use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use k8s_openapi::{ByteString, jiff::Timestamp};
use kube::{
    Config,
    config::{AuthInfo, Cluster, ExecAuthCluster, ExecInteractiveMode, Kubeconfig, KubeconfigError},
};
use rustls::pki_types::{
    CertificateDer,
    pem::{self, PemObject},
};
use secrecy::ExposeSecret;

use super::plugin;
use crate::api::{
    requests::{ApiRequests, Measure},
    transport::{self, Keepalive, Versions},
};

/// The folder with a pod's credentials for the API server.
const POD_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A kubeconfig file.
    File {
        /// The flag that names it, for messages.
        flag: &'static str,
        path: PathBuf,
        /// The context in place of the current one of the file.
        context: Option<String>,
        /// The URL or `host:port` in place of the server in the file.
        server: Option<String>,
    },
    /// An API server without authentication.
    Server(Uri),
    /// The service account of the pod.
    Pod {
        server: Uri,
        /// With `token` and `ca.crt`.
        folder: PathBuf,
    },
}

/// The config of a source.
pub(super) struct Loaded {
    /// Complete: no file and no plugin is needed any more.
    pub(super) config: Config,
    /// The expiry of the credentials, if they have one.
    pub(super) expires: Option<Timestamp>,
    /// Whether they come from a plugin, which returns other credentials when it runs again.
    pub(super) from_plugin: bool,
}

impl Source {
    /// The service account of the pod that this process runs in.
    ///
    /// # Errors
    /// The process does not run in a pod, or the pod has no service account: the missing part.
    pub(crate) fn pod() -> Result<Self, String> {
        let variable = |name: &str| env::var(name).map_err(|_| format!("the variable {name} is not set"));
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let port = variable("KUBERNETES_SERVICE_PORT")?;
        Ok(Self::Pod {
            server: pod_server(&host, &port)?,
            folder: POD_FOLDER.into(),
        })
    }

    /// Every file whose change matters, as far as they are known.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Server(_) => Vec::new(),
            Self::Pod { folder, .. } => vec![folder.join("token"), folder.join("ca.crt")],
            Self::File {
                flag, path, context, ..
            } => {
                let mut files = vec![path.clone()];
                if let Ok(read) = read(flag, path, context.as_deref())
                    && let Ok(chosen) = Chosen::of(&read)
                {
                    files.extend(chosen.files());
                }
                files
            }
        }
    }

    /// Reads it, and runs the plugin that it names.
    ///
    /// # Errors
    /// The problem and its fix, for the user and without any secret.
    pub(super) async fn load(&self) -> Result<Loaded, String> {
        let mut config = match self {
            Self::Server(server) => Config::new(server.clone()),
            Self::Pod { server, folder } => in_pod(server, folder)?,
            Self::File {
                flag,
                path,
                context,
                server,
            } => {
                let config = of_kubeconfig(&read(flag, path, context.as_deref())?, server.as_deref());
                config.map_err(|error| self.blame(&error))?
            }
        };
        if config.proxy_url.is_none() {
            config.proxy_url = environment_proxy(&Environment::of_process(), &config.cluster_url)?;
        }
        let mut expires = None;
        let mut from_plugin = false;
        if let Some(exec) = config.auth_info.exec.take()
            && !has_credentials(&config.auth_info)
        {
            if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
                return Err(self.blame(
                    "its credential plugin has interactiveMode Always, but the plugin must run without a user: use another mode",
                ));
            }
            let given = plugin::run(&exec).await.map_err(|error| self.blame(&error))?;
            from_plugin = true;
            expires = given.expires;
            config.auth_info.token = given.token.map(Into::into);
            if let Some((certificate, key)) = given.pair {
                config.auth_info.client_certificate_data = Some(base64(certificate.as_bytes()));
                config.auth_info.client_key_data = Some(base64(key.as_bytes()).into());
            }
        }
        if let Some(token) = &config.auth_info.token
            && HeaderValue::try_from(token.expose_secret()).is_err()
        {
            return Err(self.blame("its token is invalid: it contains a line break or non-ASCII characters"));
        }
        // Credentials that could fail later fail here. This client sends nothing.
        let measure = Measure::new(&ApiRequests::default(), &config.cluster_url);
        transport::open(&config, Keepalive::default(), Versions::Http2, measure)
            .map_err(|error| self.blame(&report(&error)))?;
        Ok(Loaded {
            config,
            expires,
            from_plugin,
        })
    }

    /// An error about it.
    fn blame(&self, what: &str) -> String {
        match self {
            Self::File { flag, path, .. } => blame(flag, path, what),
            Self::Server(server) => format!("--master: cannot use {server}: {what}"),
            Self::Pod { folder, .. } => {
                format!("cannot use the service account of the pod ({}): {what}", folder.display())
            }
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File { flag, path, .. } => write!(f, "{flag}={}", path.display()),
            Self::Server(_) => f.write_str("--master"),
            Self::Pod { .. } => f.write_str("the service account of the pod"),
        }
    }
}

fn blame(flag: &str, path: &Path, what: &str) -> String {
    format!("{flag}: cannot use {}: {what}", path.display())
}

fn base64(bytes: &[u8]) -> String {
    match serde_json::to_value(ByteString(bytes.to_vec())) {
        Ok(serde_json::Value::String(text)) => text,
        // It is always text.
        _ => String::new(),
    }
}

/// Whether a plugin is not needed.
fn has_credentials(user: &AuthInfo) -> bool {
    user.token.is_some()
        || (user.username.is_some() && user.password.is_some())
        || user.auth_provider.is_some()
}

/// An IPv6 address comes without brackets.
pub(super) fn pod_server(host: &str, port: &str) -> Result<Uri, String> {
    let server = match host.parse::<Ipv6Addr>() {
        Ok(host) => format!("https://[{host}]:{port}"),
        Err(_) => format!("https://{host}:{port}"),
    };
    server
        .parse()
        .map_err(|_| format!("KUBERNETES_SERVICE_HOST and _PORT result in {server:?}, which is not a URL"))
}

fn in_pod(server: &Uri, folder: &Path) -> Result<Config, String> {
    let mut config = Config::new(server.clone());
    config.auth_info.token = Some(token(&folder.join("token"))?.into());
    let authorities = folder.join("ca.crt");
    let pem =
        fs::read(&authorities).map_err(|error| format!("cannot read {}: {error}", authorities.display()))?;
    config.root_cert = Some(certificates(&authorities.display().to_string(), &pem)?);
    Ok(config)
}

fn certificates(name: &str, pem: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let all: Result<Vec<_>, pem::Error> =
        CertificateDer::pem_slice_iter(pem).map(|read| Ok(read?.to_vec())).collect();
    let all = all.ok().filter(|all| !all.is_empty());
    all.ok_or_else(|| format!("{name} contains no certificate in PEM form"))
}

/// The proxy of the process for this server, by the same variables as in Go. The URL of a proxy may contain a password.
///
/// # Errors
/// The variable with an unusable URL.
pub(super) fn environment_proxy(environment: &Environment, server: &Uri) -> Result<Option<Uri>, String> {
    let named = match server.scheme_str() {
        Some("http") => environment.first(&["HTTP_PROXY", "http_proxy"]),
        _ => environment.first(&["HTTPS_PROXY", "https_proxy"]),
    };
    let direct = environment.no_proxy();
    let matcher = Matcher::builder().all("http://proxy").no(direct).build();
    match named {
        Some((name, url)) if matcher.intercept(server).is_some() => proxy_url(name, url).map(Some),
        _ => Ok(None),
    }
}

fn proxy_url(name: &str, url: &str) -> Result<Uri, String> {
    http_url_or_host(url)
        .ok_or_else(|| format!("{name} is not the URL of an HTTP proxy, such as http://10.0.0.1:3128"))
}

/// The token in a file, without the line break at its end.
fn token(path: &Path) -> Result<String, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    match text.trim() {
        "" => Err(format!("no token in {}", path.display())),
        token => Ok(token.to_owned()),
    }
}

/// The config of a kubeconfig. [`Config::from_custom_kubeconfig`] also applies variables of the environment: it compares
/// `NO_PROXY` with the proxy in place of the server, and refuses values that Go accepts.
fn of_kubeconfig(kubeconfig: &Kubeconfig, server: Option<&str>) -> Result<Config, String> {
    let chosen = Chosen::of(kubeconfig)?;
    let mut cluster = ExecAuthCluster::try_from(chosen.cluster).map_err(|error| explain(&error))?;
    let url = server.or(cluster.server.as_deref()).ok_or("its cluster has no server")?;
    let authorities =
        cluster.certificate_authority_data.as_deref().filter(|pem| !pem.trim_ascii().is_empty());
    let is_insecure = cluster.insecure_skip_tls_verify.unwrap_or_default();
    let has_pair =
        |user: &AuthInfo| user.client_certificate.is_some() || user.client_certificate_data.is_some();
    // As in Go, a server without a scheme has TLS if anything is set for TLS.
    let has_tls = authorities.is_some() || is_insecure || chosen.user.is_some_and(has_pair);
    let scheme = if has_tls && !url.contains("://") {
        "https://"
    } else {
        ""
    };
    let server = format!("{scheme}{url}");
    let url = http_url_or_host(&server)
        .ok_or("its server is not a URL; write a URL such as https://10.0.0.1:6443")?;
    let mut config = Config::new(url);
    let pem = authorities.map(|pem| certificates("its certificate authority", pem));
    config.root_cert = pem.transpose()?;
    config.accept_invalid_certs = is_insecure;
    cluster.server = Some(server);
    config.tls_server_name.clone_from(&cluster.tls_server_name);
    let proxy = cluster.proxy_url.as_deref().filter(|url| !url.is_empty());
    config.proxy_url = proxy.map(|url| proxy_url("its proxy-url", url)).transpose()?;
    config.auth_info = chosen.user.cloned().unwrap_or_default();
    if let Some(exec) = &mut config.auth_info.exec {
        exec.cluster = Some(cluster);
    }
    if let Some(file) = config.auth_info.token_file.take() {
        // It precedes a token in the kubeconfig itself, since only the file is updated.
        config.auth_info.token = Some(token(Path::new(&file))?.into());
    }
    inline_pair(&mut config.auth_info)?;
    Ok(config)
}

/// Replaces the file names of certificate and key by the content of the files.
fn inline_pair(user: &mut AuthInfo) -> Result<(), String> {
    let read = |path: String| match fs::read(&path) {
        Ok(bytes) => Ok(base64(&bytes)),
        Err(error) => Err(format!("cannot read {path}: {error}")),
    };
    if let Some(path) = user.client_certificate.take()
        && user.client_certificate_data.is_none()
    {
        user.client_certificate_data = Some(read(path)?);
    }
    if let Some(path) = user.client_key.take()
        && user.client_key_data.is_none()
    {
        user.client_key_data = Some(read(path)?.into());
    }
    match (&user.client_certificate_data, &user.client_key_data) {
        (Some(_), None) => Err("it has a client certificate and no client key".to_owned()),
        (None, Some(_)) => Err("it has a client key and no client certificate".to_owned()),
        _ => Ok(()),
    }
}

/// A kubeconfig file, with this context as its current one.
fn read(flag: &str, path: &Path, context: Option<&str>) -> Result<Kubeconfig, String> {
    // Kubeconfig's own error is less clear.
    fs::File::open(path).map_err(|error| format!("{flag}: cannot read {}: {error}", path.display()))?;
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(|error| blame(flag, path, &explain(&error)))?;
    if let Some(context) = context {
        let contexts = kubeconfig.contexts.iter().map(|named| (&named.name, named.context.as_ref()));
        find(context, contexts).map_err(|existing| {
            let what = format!("context {context:?} does not exist; correct --context ({existing})");
            blame(flag, path, &what)
        })?;
        kubeconfig.current_context = Some(context.to_owned());
    }
    Ok(kubeconfig)
}

/// The problem, without the content of the file.
fn explain(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(error) => {
            let at = error
                .location()
                .map(|at| format!(" at line {}, column {}", at.line(), at.column()))
                .unwrap_or_default();
            format!("it is not a kubeconfig{at}; the text is not shown, it may be a secret")
        }
        other => report(other),
    }
}

/// The objects that the current context of a kubeconfig refers to.
struct Chosen<'a> {
    cluster: &'a Cluster,
    user: Option<&'a AuthInfo>,
}

impl<'a> Chosen<'a> {
    fn of(kubeconfig: &'a Kubeconfig) -> Result<Self, String> {
        let contexts = || kubeconfig.contexts.iter().map(|named| (&named.name, named.context.as_ref()));
        let name = kubeconfig.current_context.as_deref().unwrap_or_default();
        if name.is_empty() {
            let existing = existing(contexts());
            return Err(format!("it has no current context; set current-context ({existing})"));
        }
        let context = find(name, contexts()).map_err(|existing| {
            format!("context {name:?} does not exist; correct current-context ({existing})")
        })?;
        let missing = |kind: &str, missing: &str, existing: String| {
            format!(
                "the {kind} {missing:?} of context {name:?} does not exist; correct the context ({existing})"
            )
        };
        let clusters = kubeconfig.clusters.iter().map(|named| (&named.name, named.cluster.as_ref()));
        let cluster = find(&context.cluster, clusters)
            .map_err(|existing| missing("cluster", &context.cluster, existing))?;
        let users = kubeconfig.auth_infos.iter().map(|named| (&named.name, Some(named.auth_info.as_ref())));
        let user = match context.user.as_deref() {
            None | Some("") => None,
            Some(user) => find(user, users).map_err(|existing| missing("user", user, existing))?,
        };
        Ok(Self { cluster, user })
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        // Data in the kubeconfig wins over a file.
        let cluster = self.cluster;
        let mut files = Vec::new();
        if cluster.certificate_authority_data.is_none() {
            files.extend(cluster.certificate_authority.clone());
        }
        if let Some(user) = self.user {
            files.extend(user.token_file.clone());
            if user.client_certificate_data.is_none() {
                files.extend(user.client_certificate.clone());
            }
            if user.client_key_data.is_none() {
                files.extend(user.client_key.clone());
            }
        }
        files.into_iter().map(PathBuf::from)
    }
}

/// The item of this name.
///
/// # Errors
/// There is no such item: the existing ones.
fn find<'a, T>(
    name: &str,
    mut items: impl Iterator<Item = (&'a String, Option<T>)> + Clone,
) -> Result<T, String> {
    let all = items.clone();
    let found = items.find(|(known, _)| *known == name);
    found.and_then(|(_, item)| item).ok_or_else(|| existing(all))
}

fn existing<'a, T>(items: impl Iterator<Item = (&'a String, T)>) -> String {
    let names: Vec<_> = items.map(|(name, _)| name.as_str()).collect();
    match names.as_slice() {
        [] => "none exists".to_owned(),
        names => format!("existing: {}", names.join(", ")),
    }
}
