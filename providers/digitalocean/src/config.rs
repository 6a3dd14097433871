//! The configuration: environment variables, and the same keys in an optional YAML file. A variable wins over its key.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use ccm_core::{
    Environment,
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
        /// A file with the API token. A changed file is read again while the program runs. Variable `DO_ACCESS_TOKEN_FILE`.
        "accessTokenFile" => pub(crate) access_token_file: String,
        /// URL of the API, below which the paths `/v2/...` are. Variable `DO_OVERRIDE_URL`.
        "overrideUrl" => pub(crate) override_url: String = API.to_owned(),
        /// Slug of the region of load balancers. Without it the metadata service of the droplet is asked. Variable `REGION`.
        "region" => pub(crate) region: String,
        /// URL of the metadata service.
        "metadataUrl" => pub(crate) metadata_url: String = METADATA.to_owned(),
        /// ID of the cluster. Load balancers get the tag `k8s:<id>`, and the tags controller adds it where it is missing.
        /// Variable `DO_CLUSTER_ID`.
        "clusterId" => pub(crate) cluster_id: String,
        /// UUID of the VPC of load balancers. Needed if the droplets are not in the region's default VPC. Variable
        /// `DO_CLUSTER_VPC_ID`.
        "clusterVpcId" => pub(crate) cluster_vpc_id: String,
        /// Name of the firewall that opens the ports of Services on the nodes. Only together with `publicAccessFirewallTags`;
        /// without both there is no firewall. Variable `PUBLIC_ACCESS_FIREWALL_NAME`.
        "publicAccessFirewallName" => pub(crate) firewall_name: String,
        /// Tags of the droplets to which the firewall applies. Variable `PUBLIC_ACCESS_FIREWALL_TAGS`, separated by commas.
        "publicAccessFirewallTags" => pub(crate) firewall_tags: Vec<String>,
        /// The most requests per second. Without it the API's own limits: 5,000 an hour and 250 a minute. Variable
        /// `DO_API_RATE_LIMIT_QPS`.
        "apiRateLimitQps" => pub(crate) rate_limit_qps: Option<f64>,
        /// Type of load balancers without the annotation `do-loadbalancer-type`: `REGIONAL` or `REGIONAL_NETWORK`. Variable
        /// `DEFAULT_LB_TYPE`.
        "defaultLbType" => pub(crate) default_lb_type: String = "REGIONAL_NETWORK".to_owned(),
        /// `host:port` at which `/metrics` is served without TLS and authentication. Variable `METRICS_ADDR`.
        "metricsAddr" => pub(crate) metrics_addr: String,
        /// `host:port` at which `/healthz` is served, which asks the API for the account. Variable `DEBUG_ADDR`.
        "debugAddr" => pub(crate) debug_addr: String,
        /// How long one request may take.
        "requestTimeout" => pub(crate) request_timeout: GoDuration = GoDuration::from_secs(30),
        /// Families of the external addresses of nodes: `ipv4`, `ipv6`. All by default. Variable `DO_IP_ADDR_FAMILIES`,
        /// separated by commas.
        "ipAddrFamilies" => pub(crate) families: Vec<String>,
    }
}

/// Keys with a variable of their own.
const VARIABLES: [(&str, &str); 12] = [
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
];

/// The variable that [`CloudConf::families`] comes from.
const FAMILIES: &str = "DO_IP_ADDR_FAMILIES";

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
    pub(crate) qps: Option<f64>,
    pub(crate) default_type: LbType,
    /// `host:port`, the host not empty.
    pub(crate) metrics_addr: Option<String>,
    pub(crate) debug_addr: Option<String>,
    pub(crate) families: Families,
    pub(crate) request_timeout: Duration,
    /// The keys as given, to name those that changed.
    pub(crate) conf: CloudConf,
}

impl Settings {
    /// Whether both have the same token.
    pub(crate) fn has_token_of(&self, other: &Self) -> bool {
        self.token.expose_secret() == other.token.expose_secret()
    }
}

/// The managed firewall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FirewallSettings {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
}

/// Which external addresses nodes get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

/// Reads file and environment.
///
/// # Errors
/// Everything that is wrong.
pub(crate) fn load(
    path: Option<&Path>,
    environment: &Environment,
    files: &mut ConfigFiles,
) -> Result<Parsed<Settings>, LoadError> {
    config::load_yaml::<CloudConf, _>(
        path,
        "environment",
        KeyCase::Sensitive,
        files,
        |conf, files, problems| {
            let mut reader = Reader {
                conf: conf.clone(),
                environment,
                problems,
            };
            reader.overlay();
            reader.settle(files)
        },
    )
}

struct Reader<'a> {
    conf: CloudConf,
    environment: &'a Environment,
    problems: &'a mut Problems,
}

impl Reader<'_> {
    /// Puts the variables in place of the file's values.
    fn overlay(&mut self) {
        let list = |text: &str| -> Vec<String> {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(str::to_owned).collect()
        };
        for (key, variable) in VARIABLES {
            let Some(value) = self.environment.var(variable) else {
                continue;
            };
            let text = value.to_owned();
            match key {
                "accessToken" => self.conf.access_token = Some(text.into()),
                "accessTokenFile" => self.conf.access_token_file = text,
                "overrideUrl" => self.conf.override_url = text,
                "region" => self.conf.region = text,
                "clusterId" => self.conf.cluster_id = text,
                "clusterVpcId" => self.conf.cluster_vpc_id = text,
                "publicAccessFirewallName" => self.conf.firewall_name = text,
                "publicAccessFirewallTags" => self.conf.firewall_tags = list(&text),
                "apiRateLimitQps" => match text.trim().parse() {
                    Ok(qps) => self.conf.rate_limit_qps = Some(qps),
                    Err(_) => self.error(key, format!("{text:?} is not a number; write one such as 2.5")),
                },
                "defaultLbType" => self.conf.default_lb_type = text,
                "metricsAddr" => self.conf.metrics_addr = text,
                _ => self.conf.debug_addr = text,
            }
        }
        if let Some(text) = self.environment.var(FAMILIES) {
            self.conf.families = list(text);
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
        self.problems
            .error(KeyPath::key(named.map_or(key, |(_, variable)| variable)), message);
    }

    fn settle(mut self, files: &mut ConfigFiles) -> Option<Settings> {
        let token = self.token(files);
        let conf = self.conf.clone();
        let url = self.url("overrideUrl", &conf.override_url);
        let metadata_url = self.url("metadataUrl", &conf.metadata_url);
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        if !is_slug(&conf.region) {
            let text = format!(
                "{:?} is not the slug of a region; write one such as nyc3",
                conf.region
            );
            self.error("region", text);
        }
        if !is_tag(&format!("k8s:{}", conf.cluster_id)) {
            let text = "only letters, digits, colons, dashes and underscores, at most 251, since it is part of a tag";
            self.error("clusterId", text);
        }
        if !conf.cluster_vpc_id.is_empty() && !is_uuid(&conf.cluster_vpc_id) {
            let text = format!("{:?} is not the UUID of a VPC", conf.cluster_vpc_id);
            self.error("clusterVpcId", text);
        }
        if conf
            .rate_limit_qps
            .is_some_and(|qps| !(qps.is_finite() && qps > 0.0))
        {
            self.error(
                "apiRateLimitQps",
                "must be more than 0; leave it out for the API's own limits",
            );
        }
        let default_type = LbType::parse(&conf.default_lb_type);
        if default_type.is_none() {
            let text = format!(
                "{:?} is unknown; write REGIONAL or REGIONAL_NETWORK",
                conf.default_lb_type
            );
            self.error("defaultLbType", text);
        }
        let families = self.families(&conf.families);
        let request_timeout = conf.request_timeout.to_std();
        if request_timeout.is_zero() {
            self.error("requestTimeout", "must be more than 0; without it 30s");
        }
        let firewall = self.firewall(&conf);
        let metrics_addr = self.address("metricsAddr", &conf.metrics_addr);
        let debug_addr = self.address("debugAddr", &conf.debug_addr);
        if self.problems.has_errors() {
            return None;
        }
        Some(Settings {
            token: token?,
            url: url?,
            region: some(&conf.region),
            metadata_url: metadata_url?,
            cluster_id: some(&conf.cluster_id),
            vpc: some(&conf.cluster_vpc_id),
            firewall,
            qps: conf.rate_limit_qps,
            default_type: default_type?,
            metrics_addr,
            debug_addr,
            families,
            request_timeout,
            conf,
        })
    }

    /// The token itself wins over the file. A file ends with a line break as a rule.
    fn token(&mut self, files: &mut ConfigFiles) -> Option<SecretString> {
        let is_file = self.conf.access_token.is_none();
        let path = PathBuf::from(&self.conf.access_token_file);
        let key = if is_file && path != Path::new("") {
            "accessTokenFile"
        } else {
            "accessToken"
        };
        let text = match self.conf.access_token.take() {
            Some(token) => token.expose_secret().to_owned(),
            None if path == Path::new("") => {
                let text = "missing; set it to an API token, or DO_ACCESS_TOKEN_FILE to a file with one";
                self.error(key, text);
                return None;
            }
            None => match files.read(&path).map(String::from_utf8) {
                Ok(Ok(text)) => text,
                Ok(Err(_)) => String::new(),
                Err(error) => {
                    self.error(key, format!("could not read {}: {error}", path.display()));
                    return None;
                }
            },
        };
        let token = text.trim();
        if token.is_empty() || token.chars().any(|c| !c.is_ascii_graphic()) {
            let text = "invalid token: empty, or with blanks, line breaks or non-ASCII characters";
            self.error(key, text);
            return None;
        }
        Some(token.into())
    }

    fn url(&mut self, key: &str, text: &str) -> Option<Url> {
        let url = Url::parse(text).ok();
        let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        if url.is_none() {
            let text =
                format!("{text:?} is not a URL with http or https and a host; write one such as {API}");
            self.error(key, text);
        }
        url
    }

    fn families(&mut self, names: &[String]) -> Families {
        if let Some(wrong) = names
            .iter()
            .find(|name| !matches!(name.as_str(), "ipv4" | "ipv6"))
        {
            let text = format!("{wrong:?} is no family; write ipv4, ipv6 or both");
            let key = self
                .environment
                .var(FAMILIES)
                .map_or("ipAddrFamilies", |_| FAMILIES);
            self.problems.error(KeyPath::key(key), text);
        }
        let has = |family: &str| names.is_empty() || names.iter().any(|name| name == family);
        Families {
            v4: has("ipv4"),
            v6: has("ipv6"),
        }
    }

    fn firewall(&mut self, conf: &CloudConf) -> Option<FirewallSettings> {
        let (name, tags) = (&conf.firewall_name, &conf.firewall_tags);
        match (name.is_empty(), tags.is_empty()) {
            (true, true) => return None,
            (false, true) => {
                let text = "missing; the firewall needs the tags of its droplets, or leave out its name, too";
                self.error("publicAccessFirewallTags", text);
            }
            (true, false) => {
                let text = "missing; the firewall needs a name, or leave out its tags, too";
                self.error("publicAccessFirewallName", text);
            }
            (false, false) => {}
        }
        // The API description: ^[a-zA-Z0-9][a-zA-Z0-9\.-]+$
        let mut characters = name.chars();
        let valid = characters.next().is_none_or(|c| c.is_ascii_alphanumeric())
            && (name.is_empty() || name.len() > 1)
            && characters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
        if !valid {
            let text = format!("{name:?} is no name of a firewall; use letters, digits, dots and dashes");
            self.error("publicAccessFirewallName", text);
        }
        if let Some(tag) = tags.iter().find(|tag| !is_tag(tag)) {
            let text = format!("{tag:?} is no tag; use letters, digits, colons, dashes and underscores");
            self.error("publicAccessFirewallTags", text);
        }
        Some(FirewallSettings {
            name: name.clone(),
            tags: tags.clone(),
        })
    }

    /// `host:port`; all addresses without a host.
    fn address(&mut self, key: &str, text: &str) -> Option<String> {
        if text.is_empty() {
            return None;
        }
        match text.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => {
                let host = if host.is_empty() { "0.0.0.0" } else { host };
                Some(format!("{host}:{port}"))
            }
            _ => {
                self.error(
                    key,
                    format!("{text:?} is no address; write host:port, such as 127.0.0.1:9090"),
                );
                None
            }
        }
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
