//! The config file, `gce.conf`: its keys, and from them the settings that the provider runs with.
//!
//! All keys of the Go cloud-controller-manager are supported with the same type and default. The file is optional: without one, the
//! metadata server answers what it leaves out. The documentation of the fields is the user's reference.

use std::path::{Path, PathBuf};

use ccm_core::{
    BuildContext, Environment,
    client::Quota,
    config::{
        self, ConfigChanges, ConfigFile, ConfigFiles, KeyPath, LoadError, Parsed, Problems, config_file,
        config_section,
    },
};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use crate::{
    client::{
        bucket,
        credentials::{AdcKey, CredentialSource},
    },
    load_balancer::settings::BalancerSettings,
    site::region_of_zone,
};

/// The host of the metadata server.
const METADATA: &str = "169.254.169.254";
/// The variable with another host of the metadata server.
const METADATA_HOST: &str = "GCE_METADATA_HOST";
/// The variable with the path of a credentials file.
pub(crate) const CREDENTIALS: &str = "GOOGLE_APPLICATION_CREDENTIALS";
/// The place of a user's credentials file, below the home directory.
const USER_CREDENTIALS: &str = ".config/gcloud/application_default_credentials.json";
/// The value of `token-url` for Application Default Credentials.
const NIL: &str = "nil";
/// The default of `api-endpoint`.
const GOOGLE: &str = "https://www.googleapis.com/compute/v1/";
/// The path below which the API is. The client's library does not know others.
const API_PATH: &str = "/compute/v1";
/// The alpha feature that leaves new internal load balancers to another controller.
pub(crate) const ILB_SUBSETS: &str = "ILBSubsets";
/// The alpha feature that leaves instance groups to users.
pub(crate) const SKIP_GROUPS: &str = "SkipIGsManagement";
/// The most calls in a minute that a key accepts; larger values are most likely mistakes.
const MOST_CALLS: u32 = 1_000_000;
/// Calls without an answer yet, in each bucket.
const IN_FLIGHT: u32 = 32;

config_section! {
    /// Project, network, zone and credentials of the cluster.
    pub(crate) struct Global {
        /// Source of tokens. Empty: the metadata server. `nil`: Application Default Credentials, that is the file that `GOOGLE_APPLICATION_CREDENTIALS` names, else `~/.config/gcloud/application_default_credentials.json`, else the metadata server. Any other value: URL of an alternate token endpoint. Example: `nil`.
        "token-url" => pub(crate) token_url: String,
        /// Body of the POST requests to the alternate token endpoint.
        "token-body" => pub(crate) token_body: Option<SecretString>,
        /// ID or number of the cluster's project. Without it: the project of the instance that this program runs on. Example: `example-project`.
        "project-id" => pub(crate) project_id: String,
        /// ID or number of the project of the network (Shared VPC). Without it: `project-id`. Example: `example-network-project`.
        "network-project-id" => pub(crate) network_project_id: String,
        /// Name or URL of the cluster's network. Without it: the network of the first interface of the instance that this program runs on. Example: `default`.
        "network-name" => pub(crate) network_name: String,
        /// Name or URL of the cluster's subnetwork. Needed for a network in custom mode. Example: `nodes`.
        "subnetwork-name" => pub(crate) subnetwork_name: String,
        /// Address families of the cluster: `IPV4`, `IPV6` or `IPV4_IPV6`. With `IPV6`, the IPv6 addresses of a node come first. Empty is `IPV4`. Example: `IPV4_IPV6`.
        "stack-type" => pub(crate) stack_type: String,
        /// Accepted without effect: only the CIDR allocator `IPAMFromCluster` used it, which is not supported. Example: `pods`.
        "secondary-range-name" => pub(crate) secondary_range_name: String,
        /// Network tag of the nodes, to which firewall rules for load balancers apply. May be repeated. Example: `nodes`.
        "node-tags" => pub(crate) node_tags: Vec<String>,
        /// Accepted without effect: instances are listed without a filter, which Google counts against a limit of its own. Example: `node`.
        "node-instance-prefix" => pub(crate) node_instance_prefix: String,
        /// Accepted without effect: all zones of the region are always used.
        "regional" => pub(crate) regional: bool,
        /// Accepted without effect: all zones of the region are always used.
        "multizone" => pub(crate) multizone: bool,
        /// Endpoint of the Compute Engine API: scheme and host. The path, if there is one, must be `/compute/v1/`. Example: `https://compute.example.com`.
        "api-endpoint" => pub(crate) api_endpoint: String = GOOGLE.to_owned(),
        /// Accepted without effect: no part of this program uses the Kubernetes Engine API. Example: `https://container.example.com`.
        "container-api-endpoint" => pub(crate) container_api_endpoint: String,
        /// Zone of the cluster; the region is derived from it. Without it: the zone of the instance that this program runs on. Example: `us-central1-a`.
        "local-zone" => pub(crate) local_zone: String,
        /// `ILBSubsets`: leave new internal load balancers to another controller. `SkipIGsManagement`: do not manage instance groups. May be repeated. Example: `ILBSubsets`.
        "alpha-features" => pub(crate) alpha_features: Vec<String>,
        /// `unmanaged`: firewall rules for load balancers are left to users, and are never created, changed or deleted. Empty is `managed`. The Go cloud-controller-manager does not know this key. Example: `unmanaged`.
        "firewall-management" => pub(crate) firewall_management: String,
        /// Endpoint of the Resource Manager API, which `validate` asks for the permissions of the credentials: scheme and host. Without it: that of Google, and no request if `api-endpoint` is not that of Google. The Go cloud-controller-manager does not know this key. Example: `https://cloudresourcemanager.example.com`.
        "resource-manager-endpoint" => pub(crate) resource_manager_endpoint: String,
    }
}

config_section! {
    /// Rate limits of requests to Compute Engine, in calls per minute. Google counts calls by minute and group, and shows the limits of a
    /// project in the console. Other programs in the project use the same limits: lower these values if such programs are refused.
    /// A refused call is always repeated only in the next minute. The Go cloud-controller-manager does not know this section.
    pub(crate) struct Quotas {
        /// Reads of global objects: routes, networks, firewalls, zones, projects.
        "global-reads-per-minute" => pub(crate) global_reads: u32 = 1500,
        /// ConfigChanges of global objects.
        "global-writes-per-minute" => pub(crate) global_writes: u32 = 1500,
        /// Reads of objects of zones and regions: instances, subnetworks.
        "region-reads-per-minute" => pub(crate) region_reads: u32 = 1500,
        /// ConfigChanges of objects of zones and regions.
        "region-writes-per-minute" => pub(crate) region_writes: u32 = 1500,
        /// Reads of operations, which tell whether a change has ended.
        "operation-reads-per-minute" => pub(crate) operation_reads: u32 = 1500,
    }
}

impl Quotas {
    /// The keys with their values, and the buckets of the gate.
    fn all(&self) -> [QuotaKey; 5] {
        let key = |name, bucket, calls| QuotaKey { name, bucket, calls };
        [
            key("global-reads-per-minute", bucket::GLOBAL_READS, self.global_reads),
            key("global-writes-per-minute", bucket::GLOBAL_WRITES, self.global_writes),
            key("region-reads-per-minute", bucket::REGION_READS, self.region_reads),
            key("region-writes-per-minute", bucket::REGION_WRITES, self.region_writes),
            key("operation-reads-per-minute", bucket::OPERATION_READS, self.operation_reads),
        ]
    }

    /// The buckets of the gate with their quotas.
    pub(crate) fn buckets(&self) -> Vec<(&'static str, Quota)> {
        self.all()
            .into_iter()
            .map(|key| (key.bucket, Quota::per_minute(key.calls, IN_FLIGHT)))
            .collect()
    }
}

/// A key of [`Quotas`].
struct QuotaKey {
    name: &'static str,
    bucket: &'static str,
    calls: u32,
}

config_file! {
    /// The config file.
    pub(crate) struct CloudConf {
        "global" => pub(crate) global: Global,
        "Quota" => pub(crate) quota: Quotas,
    }
}

/// The checked config at one moment, with which the provider runs.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// How to reach the APIs, and with which credentials.
    pub(crate) connection: Connection,
    /// `project-id`: an ID or a number.
    pub(crate) project: Option<String>,
    /// `network-project-id`: an ID or a number.
    pub(crate) network_project: Option<String>,
    /// `network-name`.
    pub(crate) network: Option<NameOrPath>,
    /// `subnetwork-name`.
    pub(crate) subnetwork: Option<NameOrPath>,
    /// `local-zone`.
    pub(crate) zone: Option<String>,
    /// `stack-type`.
    pub(crate) stack: StackType,
    /// The settings of load balancers, without the site.
    pub(crate) load_balancing: BalancerSettings,
    /// The keys as given.
    pub(crate) conf: CloudConf,
}

/// How the APIs are reached, and with which credentials.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// The source of tokens.
    pub(crate) credentials: CredentialSource,
    /// Scheme and host of Compute Engine; `None`: those of Google.
    pub(crate) endpoint: Option<Url>,
    /// Scheme and host of Resource Manager, if the config has it.
    pub(crate) resource_manager: Option<Url>,
    /// Scheme and host of the metadata server.
    pub(crate) metadata: Url,
    /// Proxies are read from it.
    pub(crate) environment: Environment,
}

/// The name of an object, or its resource path: `projects/P/global/networks/N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameOrPath {
    Name(String),
    Path(String),
}

/// The address families of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StackType {
    #[default]
    V4,
    V6,
    Dual,
}

impl Config {
    /// The keys that differ in another config.
    pub(crate) fn changes(&self, new: &Self) -> ConfigChanges {
        let (live, restart): (Vec<_>, Vec<_>) =
            self.conf.changed_keys(&new.conf).into_iter().partition(|key| is_live(key));
        let (old, new) = (&self.connection.credentials, &new.connection.credentials);
        let mut changes = ConfigChanges {
            reconnect: old != new,
            live,
            restart,
        };
        if let (CredentialSource::File(old), CredentialSource::File(new)) = (old, new)
            && old != new
        {
            changes.live.push(format!("file {}", new.path.display()));
        }
        changes
    }
}

/// Whether a change of a key, as `[Section] key`, takes effect without a restart.
pub(crate) fn is_live(key: &str) -> bool {
    key.starts_with("[Quota] ") || ["[global] token-url", "[global] token-body"].contains(&key)
}

/// Reads and checks the config file, and the credentials file if there is one. Sends no request.
///
/// # Errors
///
/// All problems, with line numbers.
pub(crate) fn load(context: &BuildContext, files: &mut ConfigFiles) -> Result<Parsed<Config>, LoadError> {
    let (path, environment) = (context.cloud_config.as_deref(), &context.environment);
    config::load_optional(path, "environment", files, |conf: &CloudConf, files, problems| {
        crate::ipam::check(&context.flags, problems);
        let load_balancing = BalancerSettings::read(&conf.global, &context.flags, problems);
        resolve(conf, load_balancing, environment, files, problems)
    })
}

/// From the keys to the settings.
fn resolve(
    conf: &CloudConf,
    load_balancing: BalancerSettings,
    environment: &Environment,
    files: &mut ConfigFiles,
    problems: &mut Problems,
) -> Option<Config> {
    let global = &conf.global;
    check_quotas(&conf.quota, problems);
    warn_of_no_effect(global, problems);
    check_lists(global, problems);
    let credentials = credentials(global, environment, files, problems);
    let metadata = metadata(environment, problems);
    let endpoint = api_endpoint(&global.api_endpoint, problems);
    let zone = given(&global.local_zone);
    if let Some(zone) = &zone {
        let what = format!("{zone:?} is not a zone; write one such as us-central1-a");
        problems.require(region_of_zone(zone).is_some(), ("global", "local-zone"), what);
    }
    let stack = match global.stack_type.trim() {
        "" | "IPV4" => StackType::V4,
        "IPV6" => StackType::V6,
        "IPV4_IPV6" => StackType::Dual,
        other => {
            let what = format!("{other:?} is not a stack type; write IPV4, IPV6 or IPV4_IPV6");
            problems.error(("global", "stack-type"), what);
            StackType::default()
        }
    };
    let resource_manager = given(&global.resource_manager_endpoint)
        .and_then(|text| origin("resource-manager-endpoint", &text, "", problems));
    let config = Config {
        project: project("project-id", &global.project_id, problems),
        network_project: project("network-project-id", &global.network_project_id, problems),
        network: name_or_path("network-name", &global.network_name, "global/networks/", problems),
        subnetwork: name_or_path("subnetwork-name", &global.subnetwork_name, "/subnetworks/", problems),
        zone,
        stack,
        load_balancing,
        connection: Connection {
            credentials: credentials?,
            endpoint,
            resource_manager,
            metadata: metadata?,
            environment: environment.clone(),
        },
        conf: conf.clone(),
    };
    if problems.has_errors() {
        return None;
    }
    Some(config)
}

/// The value of a key, if it is not empty.
fn given(value: &str) -> Option<String> {
    match value.trim() {
        "" => None,
        text => Some(text.to_owned()),
    }
}

fn check_quotas(quotas: &Quotas, problems: &mut Problems) {
    for key in quotas.all() {
        let what = format!("must be between 1 and {MOST_CALLS}; the default is 1500");
        problems.require((1..=MOST_CALLS).contains(&key.calls), ("Quota", key.name), what);
    }
}

/// Warns of keys that are accepted without effect, unless the effect is the usual one.
fn warn_of_no_effect(global: &Global, problems: &mut Problems) {
    if !global.secondary_range_name.is_empty() {
        let what = "has no effect: only the CIDR allocator IPAMFromCluster used it, which is not supported; remove the key";
        problems.warn(("global", "secondary-range-name"), what);
    }
    if !global.container_api_endpoint.is_empty() {
        let what = "has no effect: the Kubernetes Engine API is not used; remove the key";
        problems.warn(("global", "container-api-endpoint"), what);
    }
    if global.token_url.trim() == NIL && global.token_body.is_some() {
        let what = "has no effect without the URL of a token endpoint in token-url; remove the key";
        problems.warn(("global", "token-body"), what);
    }
}

fn check_lists(global: &Global, problems: &mut Problems) {
    for tag in &global.node_tags {
        let what =
            format!("{tag:?} is not a network tag; use at most 63 lowercase letters, digits and dashes");
        problems.require(is_name(tag), ("global", "node-tags"), what);
    }
    for feature in &global.alpha_features {
        if ![ILB_SUBSETS, SKIP_GROUPS].contains(&feature.as_str()) {
            let what = format!("{feature:?} has no effect; the features are {ILB_SUBSETS} and {SKIP_GROUPS}");
            problems.warn(("global", "alpha-features"), what);
        }
    }
}

/// Whether a text is a name of Compute Engine (RFC 1035).
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-')
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// The ID or number of a project. Projects of an organization may have a domain: `example.com:project`.
fn project(key: &'static str, value: &str, problems: &mut Problems) -> Option<String> {
    let project = given(value)?;
    let is_valid = project
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | ':'));
    let what = format!(
        "{project:?} is neither the ID nor the number of a project; write one such as example-project"
    );
    problems.require(is_valid, ("global", key), what);
    Some(project)
}

/// A name, or with a slash the URL or path of an object, which contains `within`.
fn name_or_path(key: &'static str, value: &str, within: &str, problems: &mut Problems) -> Option<NameOrPath> {
    let text = given(value)?;
    if !text.contains('/') {
        let what = format!("{text:?} is not a name; use at most 63 lowercase letters, digits and dashes");
        problems.require(is_name(&text), ("global", key), what);
        return Some(NameOrPath::Name(text));
    }
    match resource_path(&text) {
        Some(path) if path.contains(within) => Some(NameOrPath::Path(path.to_owned())),
        _ => {
            let what = format!(
                "{text:?} is not the URL of an object; it must contain projects/<project>/.. and {within}"
            );
            problems.error(("global", key), what);
            None
        }
    }
}

/// The part of a URL that names the object: `projects/..`. Hosts and versions of the URLs that the API returns differ.
pub(crate) fn resource_path(link: &str) -> Option<&str> {
    if link.starts_with("projects/") {
        return Some(link);
    }
    link.find("/projects/").and_then(|at| link.get(at + 1..))
}

/// Scheme and host of a key with a URL, whose path may only be `path`.
fn origin(key: &'static str, text: &str, path: &str, problems: &mut Problems) -> Option<Url> {
    // The text is not shown, because it may have a password.
    let Some(mut url) = http_url(text) else {
        problems.error(("global", key), "not a URL with http or https and a host; write https://<host>");
        return None;
    };
    let given = url.path().trim_end_matches('/').to_owned();
    let is_known = given.is_empty() || given == path;
    let allowed = if path.is_empty() {
        "remove the path".to_owned()
    } else {
        format!("only {path}/ is supported; remove the path, or write {path}/")
    };
    problems.require(is_known, ("global", key), format!("the path {given:?} cannot be used: {allowed}"));
    url.set_path("/");
    Some(url)
}

fn http_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        Some(url)
    } else {
        None
    }
}

/// `None`: the endpoint of Google.
fn api_endpoint(value: &str, problems: &mut Problems) -> Option<Url> {
    let text = given(value)?;
    let url = origin("api-endpoint", &text, API_PATH, problems)?;
    match url.host_str() {
        Some("www.googleapis.com" | "compute.googleapis.com") if url.scheme() == "https" => None,
        _ => Some(url),
    }
}

fn metadata(environment: &Environment, problems: &mut Problems) -> Option<Url> {
    let host = environment.var(METADATA_HOST).unwrap_or(METADATA);
    let url = http_url(&format!("http://{host}/"));
    let what = format!("{host:?} is not a host; write <host> or <host>:<port>");
    problems.require(url.is_some(), KeyPath::key(METADATA_HOST), what);
    url
}

/// The source of tokens.
fn credentials(
    global: &Global,
    environment: &Environment,
    files: &mut ConfigFiles,
    problems: &mut Problems,
) -> Option<CredentialSource> {
    match global.token_url.trim() {
        "" => Some(CredentialSource::Metadata),
        NIL => application_default(environment, files, problems),
        text => {
            let what = "neither nil nor a URL; write nil, or https://<host>/<path>, or remove the key";
            let Some(url) = http_url(text) else {
                problems.error(("global", "token-url"), what);
                return None;
            };
            let body = global.token_body.as_ref().map(ExposeSecret::expose_secret).unwrap_or_default();
            Some(CredentialSource::Alternate {
                url,
                body: body.into(),
            })
        }
    }
}

/// Application Default Credentials: the file that the environment names, else the user's, else the metadata server.
fn application_default(
    environment: &Environment,
    files: &mut ConfigFiles,
    problems: &mut Problems,
) -> Option<CredentialSource> {
    if let Some(path) = environment.var(CREDENTIALS) {
        let path = PathBuf::from(path);
        let text = match files.read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                let what = format!("could not read {}: {error}", path.display());
                problems.error(KeyPath::key(CREDENTIALS), what);
                return None;
            }
        };
        return key_file(path, &text, KeyPath::key(CREDENTIALS), problems);
    }
    let Some(home) = environment.var("HOME") else {
        return Some(CredentialSource::Metadata);
    };
    let path = Path::new(home).join(USER_CREDENTIALS);
    match files.read(&path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            key_file(path, &text, ("global", "token-url").into(), problems)
        }
        // Usually, there is none.
        Err(_) => Some(CredentialSource::Metadata),
    }
}

fn key_file(
    path: PathBuf,
    text: &str,
    key: KeyPath<'_>,
    problems: &mut Problems,
) -> Option<CredentialSource> {
    match AdcKey::parse(path, text) {
        Ok(key) => Some(CredentialSource::File(Box::new(key))),
        Err(what) => {
            problems.error(key, what);
            None
        }
    }
}

#[cfg(test)]
mod tests;
