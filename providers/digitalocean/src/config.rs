//! The configuration: environment variables, and the same keys in an optional YAML file. A variable wins over its key.

use std::path::{Path, PathBuf};

use ccm_core::{
    BuildContext, Environment,
    config::{self, ConfigFiles, GoDuration, KeyCase, KeyPath, LoadError, Parsed, Problems, config_section},
};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

/// Where the API is unless the configuration says otherwise.
const API: &str = "https://api.digitalocean.com/";
/// Where a droplet reads about itself.
const METADATA: &str = "http://169.254.169.254/";
/// The longest tag, in characters (API: tags).
const TAG_MAX: usize = 255;

config_section! {
    /// Most keys have an environment variable, which wins over the file. The file is optional.
    pub(crate) struct CloudConf {
        /// The API token. Variable `DO_ACCESS_TOKEN`. Required, unless `accessTokenFile` is given.
        "accessToken" => pub(crate) access_token: Option<SecretString>,
        /// A file with the API token. A changed file is read again while the program runs. Variable `DO_ACCESS_TOKEN_FILE`. Example: `/etc/digitalocean/token`.
        "accessTokenFile" => pub(crate) access_token_file: String,
        /// URL of the API, below which the paths `/v2/...` are. Variable `DO_OVERRIDE_URL`.
        "overrideUrl" => pub(crate) override_url: String = API.to_owned(),
        /// Slug of the region of load balancers. Without it the metadata service of the droplet is asked. Variable `REGION`. Example: `nyc3`.
        "region" => pub(crate) region: String,
        /// URL of the metadata service.
        "metadataUrl" => pub(crate) metadata_url: String = METADATA.to_owned(),
        /// ID of the cluster. Load balancers get the tag `k8s:<id>`, and the tags controller adds it where it is missing.
        /// Variable `DO_CLUSTER_ID`. Example: `6c2d1f4e`.
        "clusterId" => pub(crate) cluster_id: String,
        /// UUID of the VPC of load balancers. Needed if the droplets are not in the region's default VPC. Variable
        /// `DO_CLUSTER_VPC_ID`. Example: `5a4981aa-9653-4bd1-bef5-d6bff52042e4`.
        "clusterVpcId" => pub(crate) cluster_vpc_id: String,
        /// Name of the firewall that opens the ports of Services on the nodes. Only together with `publicAccessFirewallTags`;
        /// without both there is no firewall. Variable `PUBLIC_ACCESS_FIREWALL_NAME`. Example: `k8s-public`.
        "publicAccessFirewallName" => pub(crate) firewall_name: String,
        /// Tags of the droplets to which the firewall applies. Variable `PUBLIC_ACCESS_FIREWALL_TAGS`, separated by commas. Example: `["k8s:6c2d1f4e"]`.
        "publicAccessFirewallTags" => pub(crate) firewall_tags: Vec<String>,
        /// The most requests per second. Without it the API's own limits: 5,000 an hour and 250 a minute. Variable
        /// `DO_API_RATE_LIMIT_QPS`.
        "apiRateLimitQps" => pub(crate) rate_limit_qps: Option<f64>,
        /// Type of load balancers without the annotation `do-loadbalancer-type`: `REGIONAL` or `REGIONAL_NETWORK`. Variable
        /// `DEFAULT_LB_TYPE`.
        "defaultLbType" => pub(crate) default_lb_type: String = "REGIONAL_NETWORK".to_owned(),
        /// `host:port` at which `/metrics` is served without TLS and authentication. Variable `METRICS_ADDR`. Example: `0.0.0.0:9100`.
        "metricsAddr" => pub(crate) metrics_addr: String,
        /// `host:port` at which `/healthz` is served, which asks the API for the account. Variable `DEBUG_ADDR`. Example: `127.0.0.1:12301`.
        "debugAddr" => pub(crate) debug_addr: String,
        /// How long one request may take.
        "requestTimeout" => pub(crate) request_timeout: GoDuration = GoDuration::from_secs(30),
        /// Families of the external addresses of nodes: `ipv4`, `ipv6`. All by default. Variable `DO_IP_ADDR_FAMILIES`,
        /// separated by commas. Example: `["ipv4", "ipv6"]`.
        "ipAddrFamilies" => pub(crate) families: Vec<String>,
    }
}

/// Keys with a variable of their own.
const VARIABLES: [(&str, &str); 13] = [
    ("accessToken", "DO_ACCESS_TOKEN"),
    ("accessTokenFile", "DO_ACCESS_TOKEN_FILE"),
    ("overrideUrl", "DO_OVERRIDE_URL"),
    ("region", "REGION"),
    ("clusterId", "DO_CLUSTER_ID"),
    ("clusterVpcId", "DO_CLUSTER_VPC_ID"),
    ("publicAccessFirewallName", "PUBLIC_ACCESS_FIREWALL_NAME"),
    ("publicAccessFirewallTags", "PUBLIC_ACCESS_FIREWALL_TAGS"),
    ("apiRateLimitQps", "DO_API_RATE_LIMIT_QPS"),
    ("defaultLbType", "DEFAULT_LB_TYPE"),
    ("metricsAddr", "METRICS_ADDR"),
    ("debugAddr", "DEBUG_ADDR"),
    ("ipAddrFamilies", FAMILIES),
];

/// The variable of [`CloudConf::families`], which the former cloud controller does not read.
const FAMILIES: &str = "DO_IP_ADDR_FAMILIES";

fn list(text: &str) -> Vec<String> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(str::to_owned).collect()
}

/// The type of a load balancer that is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LbType {
    /// `REGIONAL`: HTTP and TCP proxies.
    Regional,
    /// `REGIONAL_NETWORK`: packets are passed on.
    Network,
}

impl LbType {
    /// The API's name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Regional => "REGIONAL",
            Self::Network => "REGIONAL_NETWORK",
        }
    }

    /// Reads the API's name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Regional, Self::Network]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

/// What the provider runs with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) token: SecretString,
    pub(crate) url: Url,
    /// `None`: the metadata service is asked.
    pub(crate) region: Option<String>,
    pub(crate) metadata_url: Url,
    pub(crate) cluster_id: Option<String>,
    pub(crate) vpc: Option<String>,
    pub(crate) firewall: Option<FirewallSettings>,
    pub(crate) default_type: LbType,
    /// `host:port`, the host not empty.
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

    /// Whether nodes get the external addresses of a family: `ipv4` or `ipv6`.
    pub(crate) fn has_family(&self, family: &str) -> bool {
        let families = &self.conf.families;
        families.is_empty() || families.iter().any(|name| name == family)
    }
}

/// The managed firewall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FirewallSettings {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
}

/// Reads file and environment.
///
/// # Errors
/// Everything that is wrong.
pub(crate) fn load(context: &BuildContext, files: &mut ConfigFiles) -> Result<Parsed<Settings>, LoadError> {
    let (path, environment) = (context.cloud_config.as_deref(), &context.environment);
    let settle = |conf: &CloudConf, files: &mut ConfigFiles, problems: &mut Problems| {
        let conf = conf.clone();
        let reader = Reader {
            conf,
            environment,
            problems,
        };
        reader.settle(files)
    };
    config::load_yaml(path, "environment", KeyCase::Sensitive, files, settle)
}

struct Reader<'a> {
    conf: CloudConf,
    environment: &'a Environment,
    problems: &'a mut Problems,
}

impl Reader<'_> {
    /// Puts the variables in place of the file's values.
    fn overlay(&mut self) {
        for (key, variable) in VARIABLES {
            let (conf, Some(text)) = (&mut self.conf, self.environment.var(variable)) else {
                continue;
            };
            match key {
                "accessToken" => conf.access_token = Some(text.into()),
                "accessTokenFile" => text.clone_into(&mut conf.access_token_file),
                "overrideUrl" => text.clone_into(&mut conf.override_url),
                "region" => text.clone_into(&mut conf.region),
                "clusterId" => text.clone_into(&mut conf.cluster_id),
                "clusterVpcId" => text.clone_into(&mut conf.cluster_vpc_id),
                "publicAccessFirewallName" => text.clone_into(&mut conf.firewall_name),
                "publicAccessFirewallTags" => conf.firewall_tags = list(text),
                "apiRateLimitQps" => match text.trim().parse() {
                    Ok(qps) => conf.rate_limit_qps = Some(qps),
                    Err(_) => self.error(key, format!("{text:?} is not a number; write one such as 2.5")),
                },
                "defaultLbType" => text.clone_into(&mut conf.default_lb_type),
                "metricsAddr" => text.clone_into(&mut conf.metrics_addr),
                "debugAddr" => text.clone_into(&mut conf.debug_addr),
                _ => conf.families = list(text),
            }
        }
        if self.environment.var(FAMILIES).is_some() {
            let text = "the former cloud controller did not read this variable; here it limits the external addresses of \
                        nodes";
            self.problems.warn(KeyPath::key(FAMILIES), text);
        }
    }

    /// Reports an error about a key, under the name of its variable if the value comes from there or from nowhere.
    fn error(&mut self, key: &str, message: impl std::fmt::Display) {
        let variable = VARIABLES.iter().find(|(known, _)| *known == key);
        let named = variable.filter(|(_, variable)| {
            self.environment.var(variable).is_some() || !self.problems.locations().is_set(KeyPath::key(key))
        });
        let name = named.map_or(key, |(_, variable)| variable);
        self.problems.error(KeyPath::key(name), message);
    }

    /// Reports an error about a key unless its value is valid.
    fn require(&mut self, is_valid: bool, key: &str, message: impl std::fmt::Display) {
        if !is_valid {
            self.error(key, message);
        }
    }

    fn settle(mut self, files: &mut ConfigFiles) -> Option<Settings> {
        self.overlay();
        let token = self.token(files);
        let conf = self.conf.clone();
        let url = self.url("overrideUrl", &conf.override_url);
        let metadata_url = self.url("metadataUrl", &conf.metadata_url);
        let text = format!(
            "{:?} is not the slug of a region; write one such as nyc3",
            conf.region
        );
        self.require(is_slug(&conf.region), "region", text);
        let text =
            "only letters, digits, colons, dashes and underscores, at most 251, since it is part of a tag";
        self.require(is_tag(&format!("k8s:{}", conf.cluster_id)), "clusterId", text);
        let vpc = &conf.cluster_vpc_id;
        let text = format!("{vpc:?} is not the UUID of a VPC");
        self.require(vpc.is_empty() || is_uuid(vpc), "clusterVpcId", text);
        let is_rate = conf.rate_limit_qps.is_none_or(|qps| qps.is_finite() && qps > 0.0);
        let text = "must be more than 0; leave it out for the API's own limits";
        self.require(is_rate, "apiRateLimitQps", text);
        let default_type = LbType::parse(&conf.default_lb_type);
        let text = format!(
            "{:?} is unknown; write REGIONAL or REGIONAL_NETWORK",
            conf.default_lb_type
        );
        self.require(default_type.is_some(), "defaultLbType", text);
        let is_family = |name: &&String| matches!(name.as_str(), "ipv4" | "ipv6");
        if let Some(wrong) = conf.families.iter().find(|name| !is_family(name)) {
            self.error(
                "ipAddrFamilies",
                format!("{wrong:?} is no family; write ipv4, ipv6 or both"),
            );
        }
        let has_timeout = !conf.request_timeout.to_std().is_zero();
        self.require(
            has_timeout,
            "requestTimeout",
            "must be more than 0; without it 30s",
        );
        let firewall = self.firewall(&conf);
        let metrics_addr = self.address("metricsAddr", &conf.metrics_addr);
        let debug_addr = self.address("debugAddr", &conf.debug_addr);
        if self.problems.has_errors() {
            return None;
        }
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Some(Settings {
            token: token?,
            url: url?,
            region: some(&conf.region),
            metadata_url: metadata_url?,
            cluster_id: some(&conf.cluster_id),
            vpc: some(vpc),
            firewall,
            default_type: default_type?,
            metrics_addr,
            debug_addr,
            conf,
        })
    }

    /// The token itself wins over the file. A file ends with a line break as a rule.
    fn token(&mut self, files: &mut ConfigFiles) -> Option<SecretString> {
        let path = PathBuf::from(&self.conf.access_token_file);
        let (key, text) = match self.conf.access_token.take() {
            Some(token) => ("accessToken", token.expose_secret().to_owned()),
            None if path == Path::new("") => {
                let text = "missing; set it to an API token, or DO_ACCESS_TOKEN_FILE to a file with one";
                self.error("accessToken", text);
                return None;
            }
            None => match files.read(&path) {
                Ok(text) => ("accessTokenFile", String::from_utf8(text).unwrap_or_default()),
                Err(error) => {
                    self.error(
                        "accessTokenFile",
                        format!("could not read {}: {error}", path.display()),
                    );
                    return None;
                }
            },
        };
        let token = text.trim();
        let is_valid = !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic());
        let text = "invalid token: empty, or with blanks, line breaks or non-ASCII characters";
        self.require(is_valid, key, text);
        Some(token.into())
    }

    fn url(&mut self, key: &str, text: &str) -> Option<Url> {
        let url = Url::parse(text).ok();
        let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let text = format!("{text:?} is not a URL with http or https and a host; write one such as {API}");
        self.require(url.is_some(), key, text);
        url
    }

    fn firewall(&mut self, conf: &CloudConf) -> Option<FirewallSettings> {
        let (name, tags) = (conf.firewall_name.clone(), conf.firewall_tags.clone());
        if name.is_empty() && tags.is_empty() {
            return None;
        }
        let text = "missing; the firewall needs the tags of its droplets, or leave out its name, too";
        self.require(!tags.is_empty(), "publicAccessFirewallTags", text);
        let text = "missing; the firewall needs a name, or leave out its tags, too";
        self.require(!name.is_empty(), "publicAccessFirewallName", text);
        // The API description: ^[a-zA-Z0-9][a-zA-Z0-9\.-]+$
        let is_valid = name.len() != 1
            && name.chars().next().is_none_or(|c| c.is_ascii_alphanumeric())
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
        let text = format!("{name:?} is no name of a firewall; use letters, digits, dots and dashes");
        self.require(is_valid, "publicAccessFirewallName", text);
        if let Some(tag) = tags.iter().find(|tag| !is_tag(tag)) {
            let text = format!("{tag:?} is no tag; use letters, digits, colons, dashes and underscores");
            self.error("publicAccessFirewallTags", text);
        }
        Some(FirewallSettings { name, tags })
    }

    /// `host:port`; all addresses without a host.
    fn address(&mut self, key: &str, text: &str) -> Option<String> {
        let parts = text
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok());
        let shown = format!("{text:?} is no address; write host:port, such as 127.0.0.1:9090");
        self.require(text.is_empty() || parts.is_some(), key, shown);
        let (host, port) = parts?;
        let host = if host.is_empty() { "0.0.0.0" } else { host };
        Some(format!("{host}:{port}"))
    }
}

fn is_slug(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// The characters of tags (API: tags).
fn is_tag(text: &str) -> bool {
    text.len() <= TAG_MAX
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_'))
}

/// The form of the API's ids.
pub(crate) fn is_uuid(text: &str) -> bool {
    let mut lengths = text.split('-').map(str::len);
    lengths.by_ref().eq([8, 4, 4, 4, 12]) && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}
