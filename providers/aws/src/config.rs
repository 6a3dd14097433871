//! The config file, `cloud.conf`: its keys, and from them the settings that the provider runs with.
//!
//! Every key that the Go cloud controller knows is known here with the same type and default. A file is optional: without one
//! all keys have their defaults. The documentation of the fields is the reference that users read.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hasher},
    path::{Path, PathBuf},
};

use ccm_core::{
    Environment,
    config::{
        self, Changes, ConfigFile, ConfigFiles, LoadError, Parsed, Problems, config_file, config_section,
    },
};
use regex::Regex;

use crate::{
    client::{ANSWER_TIMEOUT, Connection, Endpoint, Quotas, Role, Service},
    instances::{InstanceSettings, IpFamily},
};

/// Instance types that must get topology labels. Source: `supportedTopologyInstanceTypePattern` of the Go cloud controller.
const TOPOLOGY_TYPES: &str = r"^(hpc|trn|p)[0-9]+[a-z]*(-[a-z0-9]+)?(\.[0-9a-z]*)$";
/// The port of kube-proxy's health check.
const PROBE_PORT: i32 = 10256;
/// The path of kube-proxy's health check.
const PROBE_PATH: &str = "/healthz";

config_section! {
    /// Where the cluster is, who we are, and how nodes and load balancers are built.
    pub(crate) struct Global {
        /// Availability zone, such as `us-west-2a`. The region is derived from it. Wins over `Region`. Example: `us-west-2a`.
        "Zone" => pub(crate) zone: String,
        /// Region. Without it and `Zone`: `AWS_REGION` or `AWS_DEFAULT_REGION`, then the region of the instance that this program runs on. Example: `us-west-2`.
        "Region" => pub(crate) region: String,
        /// Id of the cluster's VPC. Together with a cluster id it makes the program independent of the instance that it runs on. Without it: the VPC of that instance. Example: `vpc-0a1b2c3d4e5f67890`.
        "VPC" => pub(crate) vpc: String,
        /// Id of the subnet for load balancers if no subnet of the VPC qualifies. Without it: the subnet of the instance that this program runs on, unless `VPC` is set. Example: `subnet-0a1b2c3d4e5f67890`.
        "SubnetID" => pub(crate) subnet_id: String,
        /// Id of the one route table that gets the routes to the nodes' Pods. Without it: all route tables of the VPC with the cluster's tag. Example: `rtb-0a1b2c3d4e5f67890`.
        "RouteTableID" => pub(crate) route_table_id: String,
        /// ARN of an IAM role that is assumed for all calls of EC2 and Elastic Load Balancing. Example: `arn:aws:iam::123456789012:role/ccm`.
        "RoleARN" => pub(crate) role_arn: String,
        /// ARN of the resource on whose behalf the role is assumed: header `x-amz-source-arn` of the calls of STS, against confused deputies. Example: `arn:aws:eks:us-west-2:123456789012:cluster/prod`.
        "SourceARN" => pub(crate) source_arn: String,
        /// The cluster's id, with the legacy tag `KubernetesCluster` on all resources. Example: `prod`.
        "KubernetesClusterTag" => pub(crate) kubernetes_cluster_tag: String,
        /// The cluster's id: resources of the cluster have the tag `kubernetes.io/cluster/<id>`. Without it: the id in the tags of the instance that this program runs on. Example: `prod`.
        "KubernetesClusterID" => pub(crate) kubernetes_cluster_id: String,
        /// Neither add rules for load balancers to the security groups of nodes nor remove any.
        "DisableSecurityGroupIngress" => pub(crate) disable_security_group_ingress: bool,
        /// Id of a security group that all classic load balancers use in place of one each. It is never changed. Example: `sg-0a1b2c3d4e5f67890`.
        "ElbSecurityGroup" => pub(crate) elb_security_group: String,
        /// Which addresses of a node are reported, in this order: `ipv4`, `ipv6`. Give the key once for each. Example: `ipv6`.
        "NodeIPFamilies" => pub(crate) node_ip_families: Vec<String> = vec!["ipv4".to_owned()],
        /// What load balancers probe for Services with `externalTrafficPolicy: Cluster`: `ServiceNodePort` is the Service's own node port, `Shared` is one health check of kube-proxy for all Services. Example: `Shared`.
        "ClusterServiceLoadBalancerHealthProbeMode" => pub(crate) health_probe_mode: String,
        /// Port of the shared health check. `0` is 10256. Example: `10256`.
        "ClusterServiceSharedLoadBalancerHealthProbePort" => pub(crate) shared_probe_port: i32,
        /// Path of the shared health check. Empty is `/healthz`. Example: `/healthz`.
        "ClusterServiceSharedLoadBalancerHealthProbePath" => pub(crate) shared_probe_path: String,
        /// Regular expression for instance types whose nodes should have topology labels. Without it: `hpc`, `trn` and `p` types. Topology labels never delay a node. Example: `^p5`.
        "SupportedTopologyInstanceTypePattern" => pub(crate) topology_types: String,
        /// `Managed`: every new network load balancer gets a security group of its own. Example: `Managed`.
        "NLBSecurityGroupMode" => pub(crate) nlb_security_group_mode: String,
        /// The load balancer of a Service without the annotation `aws-load-balancer-type`: `classic`, `nlb` (recommended), or `none` (the Service is left alone). Load balancers that exist keep their type. The Go cloud controller does not know this key. Example: `nlb`.
        "DefaultLoadBalancerType" => pub(crate) default_load_balancer_type: String,
    }
}

config_section! {
    /// Another endpoint for one API in one region. `Service`, `Region`, `URL` and `SigningRegion` are required.
    pub(crate) struct ServiceOverride {
        /// `EC2`, `Elastic Load Balancing` (classic), `Elastic Load Balancing v2`, `STS`, or `ec2imds` for the instance metadata service. Short names (`ec2`, `elb`, `elbv2`) work too. Without an entry of its own, v2 uses that of classic. Example: `EC2`.
        "Service" => pub(crate) service: String,
        /// The region that it is for. Example: `us-west-2`.
        "Region" => pub(crate) region: String,
        /// The URL of the endpoint. Example: `https://ec2.example.com`.
        "URL" => pub(crate) url: String,
        /// The region in signatures. Example: `us-west-2`.
        "SigningRegion" => pub(crate) signing_region: String,
        /// Accepted without effect. Example: `v4`.
        "SigningMethod" => pub(crate) signing_method: String,
        /// The service name in signatures. Without it: that of the API. Example: `ec2`.
        "SigningName" => pub(crate) signing_name: String,
    }
}

config_file! {
    /// The config file.
    pub(crate) struct CloudConf {
        "Global" => pub(crate) global: Global,
        "ServiceOverride" => pub(crate) service_override: BTreeMap<String, ServiceOverride>,
        "Quota" => pub(crate) quota: Quotas,
    }
}

/// What the provider runs with: checked, and nothing of the file's form left in it.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// How to reach AWS.
    pub(crate) connection: Connection,
    /// How much may be requested.
    pub(crate) quotas: Quotas,
    /// Where the cluster is.
    pub(crate) site: SiteSettings,
    /// What nodes get of their instances.
    pub(crate) instances: InstanceSettings,
    /// `RouteTableID`.
    pub(crate) route_table: Option<String>,
    /// How load balancers are built.
    pub(crate) load_balancing: LoadBalancing,
}

/// What the file says of the place of the cluster. The rest comes from the instance that this program runs on.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteSettings {
    /// `VPC`.
    pub(crate) vpc: Option<String>,
    /// `SubnetID`.
    pub(crate) subnet: Option<String>,
    /// `KubernetesClusterID` or `KubernetesClusterTag`.
    pub(crate) cluster_id: Option<String>,
    /// Whether `KubernetesClusterTag` is set.
    pub(crate) legacy_tag: bool,
}

/// How load balancers are built.
#[derive(Clone, Debug)]
pub(crate) struct LoadBalancing {
    /// Leave the security groups of nodes unchanged.
    pub(crate) disable_security_group_ingress: bool,
    /// The security group of all classic load balancers.
    pub(crate) elb_security_group: Option<String>,
    /// The shared health check, if Services with `externalTrafficPolicy: Cluster` use it.
    pub(crate) shared_probe: Option<SharedProbe>,
    /// Every new network load balancer gets a security group of its own.
    pub(crate) managed_security_groups: bool,
    /// What a Service without the annotation gets.
    pub(crate) default_type: DefaultType,
}

/// A health check of kube-proxy that all Services share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedProbe {
    /// Its port.
    pub(crate) port: u16,
    /// Its path.
    pub(crate) path: String,
}

/// The load balancer of a Service without the annotation `aws-load-balancer-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DefaultType {
    /// A classic load balancer, as upstream.
    #[default]
    Classic,
    /// A network load balancer.
    Nlb,
    /// None: the Service is left alone.
    None,
}

/// The config as it was at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// What the provider runs with.
    pub(crate) settings: Settings,
    /// What the file gives, to compare with a later one.
    conf: CloudConf,
    /// The files of the credentials and of trusted authorities, by the variable that names them, each with a hash of its
    /// contents.
    material: BTreeMap<&'static str, u64>,
}

impl Config {
    /// What changes from this config to a new one. Credentials, endpoints and quotas can be taken over while running.
    pub(crate) fn changes(&self, new: &Self) -> Changes {
        let mut changes = Changes::default();
        let variables: BTreeSet<_> = self.material.keys().chain(new.material.keys()).collect();
        let rotated = variables
            .into_iter()
            .filter(|variable| self.material.get(*variable) != new.material.get(*variable));
        changes
            .live
            .extend(rotated.map(|variable| format!("file of {variable}")));
        for key in self.conf.changed_keys(&new.conf) {
            if connects(&key) {
                changes.live.push(key);
            } else if !is_live(&key) {
                changes.restart.push(key);
            }
        }
        changes.reconnect = !changes.live.is_empty();
        let quotas = self.conf.changed_keys(&new.conf).into_iter();
        changes
            .live
            .extend(quotas.filter(|key| key.starts_with("[Quota] ")));
        changes
    }
}

/// Whether a change of a key, as `[Section] key`, makes the provider connect again.
fn connects(key: &str) -> bool {
    key.starts_with("[ServiceOverride ") || ["[Global] RoleARN", "[Global] SourceARN"].contains(&key)
}

/// Whether a change of a key, as `[Section] key`, takes effect without a restart.
pub(crate) fn is_live(key: &str) -> bool {
    connects(key) || key.starts_with("[Quota] ")
}

/// Reads and checks the config file and the files that the environment names. Talks to nobody.
///
/// # Errors
///
/// Everything that is wrong, with line numbers.
pub(crate) fn load(
    path: Option<&Path>,
    env: &Environment,
    files: &mut ConfigFiles,
) -> Result<Parsed<Config>, LoadError> {
    config::load_optional(path, "environment", files, |conf, files, problems| {
        Some(settle(conf, env, files, problems))
    })
}

/// From the keys to the settings.
fn settle(conf: &CloudConf, env: &Environment, files: &mut ConfigFiles, problems: &mut Problems) -> Config {
    let global = &conf.global;
    let region = region(global, env, problems);
    let mut material = BTreeMap::new();
    let ca_bundle = env.var("AWS_CA_BUNDLE").and_then(|path| {
        let read = files.read(path);
        let pem = read.map_err(|error| {
            problems.error(
                "Global",
                format!("AWS_CA_BUNDLE: could not read {path:?}: {error}"),
            );
        });
        pem.ok().inspect(|pem| {
            material.insert("AWS_CA_BUNDLE", hash(pem));
            if !crate::client::is_certificates(pem) {
                let what = format!("AWS_CA_BUNDLE: {path:?} is not a PEM bundle of certificates");
                problems.error("Global", what);
            }
        })
    });
    for (variable, path) in credential_files(env) {
        // Mostly there is none.
        if let Ok(text) = files.read(path) {
            material.insert(variable, hash(&text));
        }
    }
    conf.quota.check("Quota", problems);
    let settings = Settings {
        connection: Connection {
            region,
            role: role(global, problems),
            endpoints: endpoints(conf, env, problems),
            proxy: proxy(env, problems),
            ca_bundle,
            environment: env.clone(),
            answer_timeout: ANSWER_TIMEOUT,
        },
        quotas: conf.quota,
        site: site(global, problems),
        instances: InstanceSettings {
            families: families(&global.node_ip_families, problems),
            topology_types: topology_types(&global.topology_types, problems),
        },
        route_table: id(&global.route_table_id, "RouteTableID", "rtb-", problems),
        load_balancing: load_balancing(global, problems),
    };
    Config {
        settings,
        conf: conf.clone(),
        material,
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The files that the SDK reads credentials from.
fn credential_files(env: &Environment) -> Vec<(&'static str, PathBuf)> {
    let home = env.var("HOME").map(|home| Path::new(home).join(".aws"));
    [
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        ("AWS_CONFIG_FILE", "config"),
    ]
    .into_iter()
    .filter_map(|(variable, name)| {
        let given = env.var(variable).map(PathBuf::from);
        Some((variable, given.or_else(|| Some(home.as_ref()?.join(name)))?))
    })
    .collect()
}

/// The value of a key, if it is not empty.
fn given(value: &str) -> Option<String> {
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// The id of an EC2 resource.
fn id(value: &str, key: &str, prefix: &str, problems: &mut Problems) -> Option<String> {
    let id = given(value)?;
    if !id.starts_with(prefix) {
        problems.error(
            ("Global", key),
            format!("{id:?} is not an id; write one that begins with {prefix}"),
        );
    }
    Some(id)
}

/// The region, if file or environment give it.
fn region(global: &Global, env: &Environment, problems: &mut Problems) -> Option<String> {
    if let Some(zone) = given(&global.zone) {
        let region = region_of_zone(&zone);
        if region.is_none() {
            let what = format!("{zone:?} is not an availability zone; write one such as us-west-2a");
            problems.error(("Global", "Zone"), what);
        }
        return region;
    }
    let variables = || env.var("AWS_REGION").or_else(|| env.var("AWS_DEFAULT_REGION"));
    given(&global.region).or_else(|| variables().map(str::to_owned))
}

/// The region of a zone: letters and dashes, then digits. Local and wavelength zones have more behind that.
pub(crate) fn region_of_zone(zone: &str) -> Option<String> {
    let mut end = 0;
    for part in zone.split_inclusive('-') {
        let letters = part.strip_suffix('-').unwrap_or(part);
        if !letters.is_empty()
            && letters.len() < part.len()
            && letters.bytes().all(|b| b.is_ascii_alphabetic())
        {
            end += part.len();
            continue;
        }
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        return zone
            .get(..end + digits)
            .filter(|_| end > 0 && digits > 0)
            .map(str::to_owned);
    }
    None
}

fn site(global: &Global, problems: &mut Problems) -> SiteSettings {
    let (tag, cluster_id) = (
        given(&global.kubernetes_cluster_tag),
        given(&global.kubernetes_cluster_id),
    );
    if let (Some(tag), Some(id)) = (&tag, &cluster_id)
        && tag != id
    {
        let what = format!("{id:?} differs from KubernetesClusterTag {tag:?}; remove one of them");
        problems.error(("Global", "KubernetesClusterID"), what);
    }
    SiteSettings {
        vpc: id(&global.vpc, "VPC", "vpc-", problems),
        subnet: id(&global.subnet_id, "SubnetID", "subnet-", problems),
        legacy_tag: tag.is_some(),
        cluster_id: cluster_id.or(tag),
    }
}

fn families(given: &[String], problems: &mut Problems) -> Vec<IpFamily> {
    let mut families = Vec::new();
    for text in given
        .iter()
        .map(|text| text.trim())
        .filter(|text| !text.is_empty())
    {
        match text {
            "ipv4" => families.push(IpFamily::V4),
            "ipv6" => families.push(IpFamily::V6),
            _ => {
                let what = format!("{text:?} is neither ipv4 nor ipv6 and is ignored");
                problems.warn(("Global", "NodeIPFamilies"), what);
            }
        }
    }
    if families.is_empty() {
        families.push(IpFamily::V4);
    }
    families
}

fn topology_types(pattern: &str, problems: &mut Problems) -> Option<Regex> {
    let pattern = given(pattern).unwrap_or_else(|| TOPOLOGY_TYPES.to_owned());
    let regex = Regex::new(&pattern);
    regex
        .inspect_err(|error| {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim();
            let what = format!("{pattern:?} is not a regular expression: {reason}");
            problems.error(("Global", "SupportedTopologyInstanceTypePattern"), what);
        })
        .ok()
}

fn role(global: &Global, problems: &mut Problems) -> Option<Role> {
    let source_arn = given(&global.source_arn);
    let Some(arn) = given(&global.role_arn) else {
        if source_arn.is_some() {
            problems.warn(("Global", "SourceARN"), "has no effect without RoleARN");
        }
        return None;
    };
    // arn:<partition>:iam::<account>:role/<name>
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    match parts.as_slice() {
        ["arn", _, "iam", _, account, name] if !account.is_empty() && name.starts_with("role/") => {
            Some(Role {
                account: (*account).to_owned(),
                source_arn,
                arn,
            })
        }
        _ => {
            let what = format!("{arn:?} is not the ARN of a role; write arn:aws:iam::<account>:role/<name>");
            problems.error(("Global", "RoleARN"), what);
            None
        }
    }
}

/// The endpoints of `[ServiceOverride]`, and those of the environment.
fn endpoints(conf: &CloudConf, env: &Environment, problems: &mut Problems) -> Vec<Endpoint> {
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for (name, entry) in &conf.service_override {
        let at = |key| ("ServiceOverride", name.as_str(), key);
        let mut required = |key, value: &str| {
            let value = given(value);
            if value.is_none() {
                problems.error(at(key), "is required in every [ServiceOverride]");
            }
            value
        };
        let service = required("Service", &entry.service);
        let region = required("Region", &entry.region);
        let url = required("URL", &entry.url);
        let signing_region = required("SigningRegion", &entry.signing_region);
        let (Some(text), Some(region), Some(url), Some(signing_region)) =
            (service, region, url, signing_region)
        else {
            continue;
        };
        if !is_url(&url) {
            problems.error(at("URL"), format!("{url:?} is not a URL; write https://<host>"));
            continue;
        }
        let Some(service) = Service::parse(&text) else {
            let what = format!(
                "{text:?} is not an API that is used here and has no effect; write one of {}",
                Service::names()
            );
            problems.warn(at("Service"), what);
            continue;
        };
        let signing = Some((signing_region, given(&entry.signing_name)));
        let region = Some(region).filter(|_| service != Service::Metadata);
        if endpoints
            .iter()
            .any(|known| (known.service, &known.region) == (service, &region))
        {
            let what = format!(
                "a second entry for {} in this region; remove one of them",
                service.name()
            );
            problems.error(at("Service"), what);
            continue;
        }
        endpoints.push(Endpoint {
            service,
            region,
            url,
            signing,
        });
    }
    for (service, own_variable) in Service::with_variables() {
        let own = env.var(own_variable).map(|url| (own_variable, url));
        let common = || {
            Some((
                "AWS_ENDPOINT_URL",
                env.var("AWS_ENDPOINT_URL")
                    .filter(|_| service != Service::Metadata)?,
            ))
        };
        let Some((variable, url)) = own.or_else(common) else {
            continue;
        };
        if !is_url(url) {
            problems.error(
                "Global",
                format!("{variable}: {url:?} is not a URL; write https://<host>"),
            );
        }
        // After those of the file: the first one that fits is used.
        endpoints.push(Endpoint {
            service,
            region: None,
            url: url.to_owned(),
            signing: None,
        });
    }
    endpoints
}

fn is_url(text: &str) -> bool {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|host| !host.is_empty() && !host.starts_with('/') && !host.contains(char::is_whitespace))
}

/// The proxy for HTTPS and the hosts that are reached without it.
fn proxy(env: &Environment, problems: &mut Problems) -> Option<(String, String)> {
    let var = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, env.var(name)?)));
    let (variable, url) = var(["HTTPS_PROXY", "https_proxy"]).or_else(|| var(["ALL_PROXY", "all_proxy"]))?;
    // As in Go, a proxy without a scheme is one of HTTP.
    let url = if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    };
    if !is_url(&url) {
        // It may hold a password.
        problems.error(
            "Global",
            format!("{variable}: not a URL; write http://<host>:<port>"),
        );
        return None;
    }
    let bypass = var(["NO_PROXY", "no_proxy"]).map_or("", |(_, hosts)| hosts);
    Some((url, bypass.to_owned()))
}

fn load_balancing(global: &Global, problems: &mut Problems) -> LoadBalancing {
    let mut choice = |key: &str, value: &str, choices: &[&str]| {
        let position = choices.iter().position(|choice| *choice == value.trim());
        position.unwrap_or_else(|| {
            let known: Vec<_> = choices
                .iter()
                .filter(|choice| !choice.is_empty())
                .copied()
                .collect();
            let what = format!("{value:?} is not supported; write {}", known.join(" or "));
            problems.error(("Global", key), what);
            0
        })
    };
    let shared = choice(
        "ClusterServiceLoadBalancerHealthProbeMode",
        &global.health_probe_mode,
        &["", "ServiceNodePort", "Shared"],
    );
    let managed = choice(
        "NLBSecurityGroupMode",
        &global.nlb_security_group_mode,
        &["", "Managed"],
    );
    let default_type = choice(
        "DefaultLoadBalancerType",
        &global.default_load_balancer_type,
        &["", "classic", "nlb", "none"],
    );
    let port = if global.shared_probe_port == 0 {
        PROBE_PORT
    } else {
        global.shared_probe_port
    };
    let port = u16::try_from(port).unwrap_or_else(|_| {
        let what = format!("{port} is not a port; write a number from 1 to 65535");
        problems.error(
            ("Global", "ClusterServiceSharedLoadBalancerHealthProbePort"),
            what,
        );
        0
    });
    let path = given(&global.shared_probe_path).unwrap_or_else(|| PROBE_PATH.to_owned());
    if !path.starts_with('/') {
        let what = format!("{path:?} is not a path; write /{path}");
        problems.error(
            ("Global", "ClusterServiceSharedLoadBalancerHealthProbePath"),
            what,
        );
    }
    LoadBalancing {
        disable_security_group_ingress: global.disable_security_group_ingress,
        elb_security_group: id(&global.elb_security_group, "ElbSecurityGroup", "sg-", problems),
        shared_probe: (shared == 2).then_some(SharedProbe { port, path }),
        managed_security_groups: managed == 1,
        default_type: match default_type {
            2 => DefaultType::Nlb,
            3 => DefaultType::None,
            _ => DefaultType::Classic,
        },
    }
}

#[cfg(test)]
mod tests;
