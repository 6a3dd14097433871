//! The configuration: environment variables, and the same keys in an optional YAML file. A variable wins over its key.

use std::path::Path;

use ccm_core::{
    BuildContext,
    config::{self, ConfigFiles, GoDuration, KeyCase, KeyPath, LoadError, Parsed, Problems, config_section},
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

/// The default URL of the API.
const API: &str = "https://api.digitalocean.com/";
/// The URL of the droplet's metadata service.
const METADATA: &str = "http://169.254.169.254/";
/// The longest tag, in characters (API: tags).
const TAG_MAX: usize = 255;

config_section! {
    /// Most keys have an environment variable, which wins over the file. The file is optional.
    pub(crate) struct CloudConf {
        /// The API token. Required, unless `accessTokenFile` is given.
        "accessToken" | "DO_ACCESS_TOKEN" => pub(crate) access_token: Option<SecretString>,
        /// A file with the API token, which wins over `accessToken`. A changed file is read again while the program runs. Example: `/etc/digitalocean/token`.
        "accessTokenFile" | "DO_ACCESS_TOKEN_FILE" => pub(crate) access_token_file: String,
        /// URL of the API, below which the paths `/v2/...` are.
        "overrideUrl" | "DO_OVERRIDE_URL" => pub(crate) override_url: String = API.to_owned(),
        /// Slug of the region of load balancers. Without it the metadata service of the droplet is asked. Example: `nyc3`.
        "region" | "REGION" => pub(crate) region: String,
        /// URL of the metadata service.
        "metadataUrl" => pub(crate) metadata_url: String = METADATA.to_owned(),
        /// ID of the cluster. Load balancers get the tag `k8s:<id>`, and the tags controller adds it where it is missing. Example: `6c2d1f4e`.
        "clusterId" | "DO_CLUSTER_ID" => pub(crate) cluster_id: String,
        /// UUID of the VPC of load balancers. Needed if the droplets are not in the region's default VPC. Example: `5a4981aa-9653-4bd1-bef5-d6bff52042e4`.
        "clusterVpcId" | "DO_CLUSTER_VPC_ID" => pub(crate) cluster_vpc_id: String,
        /// Name of the firewall that opens the ports of Services on the nodes. Only together with `publicAccessFirewallTags`;
        /// without both there is no firewall. Example: `k8s-public`.
        "publicAccessFirewallName" | "PUBLIC_ACCESS_FIREWALL_NAME" => pub(crate) firewall_name: String,
        /// Tags of the droplets to which the firewall applies. Example: `["k8s:6c2d1f4e"]`.
        "publicAccessFirewallTags" | "PUBLIC_ACCESS_FIREWALL_TAGS" => pub(crate) firewall_tags: Vec<String>,
        /// Maximum number of requests per second. The API's own limits always apply: 5,000 an hour and 250 a minute.
        "apiRateLimitQps" | "DO_API_RATE_LIMIT_QPS" => pub(crate) rate_limit_qps: Option<f64>,
        /// Type of load balancers without the annotation `do-loadbalancer-type`.
        "defaultLbType" | "DEFAULT_LB_TYPE" => pub(crate) default_type: LbType,
        /// `host:port` at which `/metrics` is served without TLS and authentication. Example: `0.0.0.0:9100`.
        "metricsAddr" | "METRICS_ADDR" => pub(crate) metrics_addr: String,
        /// `host:port` at which `/healthz` is served, which asks the API for the account. Example: `127.0.0.1:12301`.
        "debugAddr" | "DEBUG_ADDR" => pub(crate) debug_addr: String,
        /// How long one request may take.
        "requestTimeout" => pub(crate) request_timeout: GoDuration = GoDuration::from_secs(30),
        /// Families of the external addresses of nodes. All by default. Without `ipv4`, most external load balancers
        /// cannot use the nodes: existing ones keep the present nodes, and new ones are not created. Example: `["ipv4", "ipv6"]`.
        "ipAddrFamilies" | "DO_IP_ADDR_FAMILIES" => pub(crate) families: Vec<Family>,
    }
}

/// The type of a load balancer, as the API names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum LbType {
    /// Proxies HTTP and TCP.
    Regional,
    /// Forwards packets.
    #[default]
    RegionalNetwork,
}

impl LbType {
    /// Parses the API's name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
}

/// The settings of the provider.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) token: SecretString,
    pub(crate) url: Url,
    /// `None`: read from the metadata service.
    pub(crate) region: Option<String>,
    pub(crate) metadata_url: Url,
    pub(crate) cluster_id: Option<String>,
    pub(crate) vpc: Option<String>,
    /// `host:port` with a host.
    pub(crate) metrics_addr: Option<String>,
    pub(crate) debug_addr: Option<String>,
    /// The keys as given.
    pub(crate) conf: CloudConf,
}

impl Settings {
    /// Whether both have the same token.
    pub(crate) fn has_token_of(&self, other: &Self) -> bool {
        self.token.expose_secret() == other.token.expose_secret()
    }

    /// Whether nodes get the external addresses of a family.
    pub(crate) fn has_family(&self, family: Family) -> bool {
        let families = &self.conf.families;
        families.is_empty() || families.contains(&family)
    }

    /// Whether metrics or health are served.
    pub(crate) fn has_endpoints(&self) -> bool {
        self.metrics_addr.is_some() || self.debug_addr.is_some()
    }

    /// Whether a managed firewall is configured.
    pub(crate) fn has_firewall(&self) -> bool {
        !self.conf.firewall_name.is_empty()
    }
}

/// Reads file and environment.
///
/// # Errors
/// All problems of the configuration.
pub(crate) fn load(context: &BuildContext, files: &mut ConfigFiles) -> Result<Parsed<Settings>, LoadError> {
    let (path, environment) = (context.cloud_config.as_deref(), &context.environment);
    config::load_yaml(path, environment, KeyCase::Sensitive, files, |conf, files, problems| {
        if environment.var("DO_IP_ADDR_FAMILIES").is_some() {
            let text = "the Go cloud-controller-manager did not read this variable; here it limits the external addresses of \
                        nodes; without ipv4, most external load balancers do not follow the nodes";
            problems.warn(KeyPath::key("ipAddrFamilies"), text);
        }
        resolve(conf, files, problems)
    })
}

fn resolve(conf: &CloudConf, files: &mut ConfigFiles, problems: &mut Problems) -> Option<Settings> {
    let token = token(conf, files, problems);
    let api_url = url("overrideUrl", &conf.override_url, problems);
    let metadata_url = url("metadataUrl", &conf.metadata_url, problems);
    let metrics_addr = address("metricsAddr", &conf.metrics_addr, problems);
    let debug_addr = address("debugAddr", &conf.debug_addr, problems);
    let (region, cluster_id, vpc) = (&conf.region, &conf.cluster_id, &conf.cluster_vpc_id);
    problems.require(
        is_slug(region),
        KeyPath::key("region"),
        format!("{region:?} is not the slug of a region; write one such as nyc3"),
    );
    problems.require(
        is_tag(&format!("k8s:{cluster_id}")),
        KeyPath::key("clusterId"),
        "only letters, digits, colons, dashes and underscores, at most 251: it is part of a tag",
    );
    problems.require(
        vpc.is_empty() || is_uuid(vpc),
        KeyPath::key("clusterVpcId"),
        format!("{vpc:?} is not the UUID of a VPC"),
    );
    problems.require(
        conf.rate_limit_qps.is_none_or(|qps| qps > 0.0),
        KeyPath::key("apiRateLimitQps"),
        "must be more than 0; leave it out for the API's own limits",
    );
    problems.require(
        !conf.request_timeout.to_std().is_zero(),
        KeyPath::key("requestTimeout"),
        "must be more than 0; the default is 30s",
    );
    check_firewall(conf, problems);
    if problems.has_errors() {
        return None;
    }
    Some(Settings {
        token: token?,
        url: api_url?,
        region: non_empty(region),
        metadata_url: metadata_url?,
        cluster_id: non_empty(cluster_id),
        vpc: non_empty(vpc),
        metrics_addr,
        debug_addr,
        conf: conf.clone(),
    })
}

/// The file wins over the token, because a manifest that the chart adopts keeps its variable with the token, which would hide
/// a new token in the file. Files usually end with a line break.
fn token(conf: &CloudConf, files: &mut ConfigFiles, problems: &mut Problems) -> Option<SecretString> {
    let path = Path::new(&conf.access_token_file);
    let (key, text) = if path != Path::new("") {
        let text = match files.read(path) {
            Ok(bytes) => Ok(String::from_utf8(bytes).unwrap_or_default()),
            Err(error) => Err(format!("could not read {}: {error}", path.display())),
        };
        ("accessTokenFile", text)
    } else if let Some(token) = &conf.access_token {
        ("accessToken", Ok(token.expose_secret().to_owned()))
    } else {
        let text = "missing; set it to an API token, or DO_ACCESS_TOKEN_FILE to a file with one";
        ("accessToken", Err(text.to_owned()))
    };
    let problem = match &text {
        Ok(text) if is_token(text.trim()) => return Some(text.trim().into()),
        Ok(_) => "invalid token: empty, or with blanks, line breaks or non-ASCII characters",
        Err(problem) => problem,
    };
    problems.error(KeyPath::key(key), problem.to_owned());
    None
}

/// Whether the text can be sent as a token.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic())
}

/// A text that is set.
pub(crate) fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn url(key: &str, text: &str, problems: &mut Problems) -> Option<Url> {
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    // The text is not shown, because it may have a password.
    let problem = format!("not a URL with http or https and a host; write one such as {API}");
    problems.require(url.is_some(), KeyPath::key(key), problem);
    url
}

fn check_firewall(conf: &CloudConf, problems: &mut Problems) {
    let (name, tags) = (&conf.firewall_name, &conf.firewall_tags);
    problems.require(
        name.is_empty() || !tags.is_empty(),
        KeyPath::key("publicAccessFirewallTags"),
        "missing; set the tags of the firewall's droplets, or leave out its name, too",
    );
    problems.require(
        tags.is_empty() || !name.is_empty(),
        KeyPath::key("publicAccessFirewallName"),
        "missing; set the firewall's name, or leave out its tags, too",
    );
    // The API description: ^[a-zA-Z0-9][a-zA-Z0-9\.-]+$
    problems.require(
        name.is_empty() || (name.len() > 1 && is_name(name)),
        KeyPath::key("publicAccessFirewallName"),
        format!("{name:?} is not a valid firewall name; use letters, digits, dots and dashes"),
    );
    if let Some(tag) = tags.iter().find(|tag| !is_tag(tag)) {
        let text = format!("{tag:?} is not a valid tag; use letters, digits, colons, dashes and underscores");
        problems.error(KeyPath::key("publicAccessFirewallTags"), text);
    }
}

/// `host:port`. Without a host: all addresses of both families.
fn address(key: &str, text: &str, problems: &mut Problems) -> Option<String> {
    let parts = text.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let shown = format!("{text:?} is not an address; write host:port, such as 127.0.0.1:9090");
    problems.require(text.is_empty() || parts.is_some(), KeyPath::key(key), shown);
    let (host, port) = parts?;
    let host = if host.is_empty() { "[::]" } else { host };
    Some(format!("{host}:{port}"))
}

fn is_slug(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Whether a text may be the name of a load balancer or firewall.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
}

/// Whether a text may be a tag (API: tags).
fn is_tag(text: &str) -> bool {
    text.len() <= TAG_MAX && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_'))
}

/// Whether a text has the format of the API's IDs.
pub(crate) fn is_uuid(text: &str) -> bool {
    let mut lengths = text.split('-').map(str::len);
    lengths.by_ref().eq([8, 4, 4, 4, 12]) && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}
