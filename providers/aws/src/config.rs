//! The config file, `cloud.conf`: its keys, and from them the settings that the provider runs with.
//!
//! All keys of the Go cloud-controller-manager are supported with the same type and default. The file is optional: without one
//! all keys have their defaults. The documentation of the fields is the user's reference.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    path::{Path, PathBuf},
};

use ccm_core::{
    BuildContext, Environment,
    config::{
        self, ConfigChanges, ConfigFile, ConfigFiles, KeyPath, LoadError, NameList, Parsed, Problems,
        config_file, config_section, http_url,
    },
    load_balancer::IpFamily,
};
use regex::Regex;

use crate::{
    client::{Connection, ENDPOINT_VARIABLES, Endpoint, Quotas, Role, Service, is_certificates},
    load_balancer::spec::Flavor,
    site::Cluster,
    tagging,
};

/// Instance types that must get topology labels. Source: `supportedTopologyInstanceTypePattern` of the Go cloud-controller-manager.
const TOPOLOGY_TYPES: &str = r"^(hpc|trn|p)[0-9]+[a-z]*(-[a-z0-9]+)?(\.[0-9a-z]*)$";
/// The port of kube-proxy's health check.
const PROBE_PORT: u16 = 10256;
/// The path of kube-proxy's health check.
const PROBE_PATH: &str = "/healthz";
const NOT_URL: &str = "not a URL; write https://<host>";

config_section! {
    /// Location and identity of the cluster, credentials, nodes and load balancers.
    pub(crate) struct Global {
        /// Availability zone, such as `us-west-2a`. The region is derived from it. Takes precedence over `Region`. Example: `us-west-2a`.
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
        /// Address families of a node that are reported, in this order: `ipv4`, `ipv6`. Give the key once for each. If only empty names are given, it is `ipv4`, and nodes that have addresses keep exactly these. Example: `ipv6`.
        "NodeIPFamilies" => pub(crate) node_ip_families: NameList = NameList::from(["ipv4"]),
        /// Health check of load balancers for Services with `externalTrafficPolicy: Cluster`: `ServiceNodePort` is the Service's own node port, `Shared` is one health check of kube-proxy for all Services. Example: `Shared`.
        "ClusterServiceLoadBalancerHealthProbeMode" => pub(crate) health_probe_mode: String,
        /// Port of the shared health check. `0` is 10256. Example: `10256`.
        "ClusterServiceSharedLoadBalancerHealthProbePort" => pub(crate) shared_probe_port: i32,
        /// Path of the shared health check. Empty is `/healthz`. Example: `/healthz`.
        "ClusterServiceSharedLoadBalancerHealthProbePath" => pub(crate) shared_probe_path: String,
        /// Regular expression for instance types whose nodes should have topology labels. Without it: `hpc`, `trn` and `p` types. Topology labels never delay a node. Example: `^p5`.
        "SupportedTopologyInstanceTypePattern" => pub(crate) topology_types: String,
        /// `Managed`: every new network load balancer gets a security group of its own. Example: `Managed`.
        "NLBSecurityGroupMode" => pub(crate) nlb_security_group_mode: String,
        /// The load balancer of a Service without the annotation `aws-load-balancer-type`: `classic`, `nlb` (recommended), or `none` (the Service is ignored). Load balancers that exist keep their type. The Go cloud-controller-manager does not know this key. Example: `nlb`.
        "DefaultLoadBalancerType" => pub(crate) default_load_balancer_type: String,
    }
}

config_section! {
    /// Another endpoint for one API in one region. `Service`, `Region`, `URL` and `SigningRegion` are required.
    pub(crate) struct ServiceOverride {
        /// `EC2`, `Elastic Load Balancing` (classic), `Elastic Load Balancing v2`, `STS`, or `ec2imds` for the instance metadata service. Short names (`ec2`, `elb`, `elbv2`) work too, with a warning, because the Go cloud-controller-manager ignores them. Without an entry of its own, v2 uses that of classic. Example: `EC2`.
        "Service" => pub(crate) service: String,
        /// The region that the endpoint serves. Example: `us-west-2`.
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

/// The checked config at one moment, with which the provider runs.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The connection to AWS.
    pub(crate) connection: Connection,
    /// `VPC`.
    pub(crate) vpc: Option<String>,
    /// `SubnetID`.
    pub(crate) subnet: Option<String>,
    /// `KubernetesClusterID` or `KubernetesClusterTag`. Without both, the ID is empty.
    pub(crate) cluster: Cluster,
    /// `NodeIPFamilies`: the address families of nodes that are reported, in this order.
    pub(crate) families: Vec<IpFamily>,
    /// Whether `NodeIPFamilies` has only empty names, with which the Go cloud-controller-manager reports no IP addresses: those of existing nodes must
    /// not change.
    pub(crate) keeps_node_addresses: bool,
    /// Instance types whose nodes should have topology labels.
    pub(crate) topology_types: Option<Regex>,
    /// `RouteTableID`.
    pub(crate) route_table: Option<String>,
    /// The settings of load balancers.
    pub(crate) load_balancing: LoadBalancing,
    /// The content of the file, to compare with a later one, and with the rate limits of requests.
    pub(crate) conf: CloudConf,
    /// The variables that name the files of trusted authorities and of credentials, each with a hash of its file.
    file_hashes: [(&'static str, Option<u64>); 3],
}

/// The settings of load balancers.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadBalancing {
    /// Leave the security groups of nodes unchanged.
    pub(crate) disable_security_group_ingress: bool,
    /// The security group of all classic load balancers.
    pub(crate) elb_security_group: Option<String>,
    /// The shared health check, if Services with `externalTrafficPolicy: Cluster` use it.
    pub(crate) shared_probe: Option<SharedProbe>,
    /// Every new network load balancer gets a security group of its own.
    pub(crate) managed_security_groups: bool,
    /// Modes of network load balancers that are not supported, each with its key and the fix: with them, none is created, as upstream.
    pub(crate) unsupported_modes: Vec<String>,
    /// Whether network load balancers keep the protocol, port and path of their health checks, since the mode is not supported.
    pub(crate) keeps_health_checks: bool,
    /// The type for Services without the annotation.
    pub(crate) default_type: Flavor,
}

/// A health check of kube-proxy that all Services share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedProbe {
    /// Its port.
    pub(crate) port: u16,
    /// Its path.
    pub(crate) path: String,
}

impl Config {
    /// The changes from this config to a new one. Credentials, endpoints and quotas can be applied while running.
    pub(crate) fn changes(&self, new: &Self) -> ConfigChanges {
        let rotated: Vec<_> = new
            .file_hashes
            .iter()
            .filter(|file| !self.file_hashes.contains(file))
            .map(|(variable, _)| format!("file of {variable}"))
            .collect();
        let keys = self.conf.changed_keys(&new.conf).into_iter();
        let (live, restart): (Vec<_>, Vec<_>) = keys.partition(|key| is_live(key));
        ConfigChanges {
            reconnect: !rotated.is_empty() || live.iter().any(|key| connects(key)),
            live: [rotated, live].concat(),
            restart,
        }
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

/// Reads and checks the config file, the files that the environment names, and the flags. Sends no request.
///
/// # Errors
///
/// All problems, with line numbers.
pub(crate) fn load(context: &BuildContext, files: &mut ConfigFiles) -> Result<Parsed<Config>, LoadError> {
    let (path, env) = (context.cloud_config.as_deref(), &context.environment);
    config::load_optional(path, "environment", files, |conf, files, problems| {
        tagging::check(&context.flags, problems);
        Some(resolve(conf, env, files, problems))
    })
}

/// From the keys to the settings.
fn resolve(conf: &CloudConf, env: &Environment, files: &mut ConfigFiles, problems: &mut Problems) -> Config {
    let global = &conf.global;
    let region = region(global, env, problems);
    let ca_bundle = env.var("AWS_CA_BUNDLE").and_then(|path| {
        let what = match files.read(path) {
            Ok(pem) if is_certificates(&pem) => return Some(pem),
            Ok(_) => format!("{path:?} is not a PEM bundle of certificates"),
            Err(error) => format!("could not read {path:?}: {error}"),
        };
        problems.error(KeyPath::key("AWS_CA_BUNDLE"), what);
        None
    });
    // The SDK reads the files of credentials, which usually do not exist.
    let home = env.var("HOME").map(|home| Path::new(home).join(".aws"));
    let mut hash_of = |variable, name| {
        let path = match env.var(variable) {
            Some(path) => Some(PathBuf::from(path)),
            None => home.as_ref().map(|home| home.join(name)),
        };
        let text = path.and_then(|path| files.read(path).ok());
        (variable, text.as_deref().map(hash))
    };
    let file_hashes = [
        ("AWS_CA_BUNDLE", ca_bundle.as_deref().map(hash)),
        hash_of("AWS_CONFIG_FILE", "config"),
        hash_of("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
    ];
    conf.quota.check("Quota", problems);
    let connection = Connection {
        role: role(global, problems),
        endpoints: endpoints(conf, env, region.as_deref(), problems),
        region,
        ca_bundle,
        environment: env.clone(),
    };
    if let Some((variable, url)) = connection.proxy() {
        // No URL is repeated: it may have a password.
        let what = "not a URL; write http://<host>:<port>";
        problems.require(url.is_some(), KeyPath::key(variable), what);
    }
    Config {
        connection,
        vpc: id(&global.vpc, "VPC", "vpc-", problems),
        subnet: id(&global.subnet_id, "SubnetID", "subnet-", problems),
        cluster: cluster(global, problems),
        families: families(&global.node_ip_families, problems),
        keeps_node_addresses: global.node_ip_families.has_only_empty_names(),
        topology_types: topology_types(&global.topology_types, problems),
        route_table: id(&global.route_table_id, "RouteTableID", "rtb-", problems),
        load_balancing: load_balancing(global, problems),
        conf: conf.clone(),
        file_hashes,
    }
}

fn hash(bytes: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(bytes)
}

/// The value of a key, if it is not empty.
fn given(value: &str) -> Option<String> {
    match value.trim() {
        "" => None,
        text => Some(text.to_owned()),
    }
}

/// The id of an EC2 resource.
fn id(value: &str, key: &str, prefix: &str, problems: &mut Problems) -> Option<String> {
    let id = given(value)?;
    let what = format!("{id:?} is not an id; write one that begins with {prefix}");
    problems.require(id.starts_with(prefix), ("Global", key), what);
    Some(id)
}

/// The region, if file or environment give it.
fn region(global: &Global, env: &Environment, problems: &mut Problems) -> Option<String> {
    let Some(zone) = given(&global.zone) else {
        return match given(&global.region) {
            Some(region) => Some(region),
            None => {
                let variable = env.var("AWS_REGION").or_else(|| env.var("AWS_DEFAULT_REGION"));
                variable.map(str::to_owned)
            }
        };
    };
    let region = region_of_zone(&zone);
    let what = format!("{zone:?} is not an availability zone; write one such as us-west-2a");
    problems.require(region.is_some(), ("Global", "Zone"), what);
    region
}

/// The region of a zone: letters and dashes, then digits. Local and wavelength zones have a suffix.
pub(crate) fn region_of_zone(zone: &str) -> Option<String> {
    let region = Regex::new("^([A-Za-z]+-)+[0-9]+").ok()?.find(zone)?;
    Some(region.as_str().to_owned())
}

fn cluster(global: &Global, problems: &mut Problems) -> Cluster {
    let tag = global.kubernetes_cluster_tag.trim();
    let id = global.kubernetes_cluster_id.trim();
    let what = format!("{id:?} differs from KubernetesClusterTag {tag:?}; remove one of them");
    let is_consistent = tag.is_empty() || id.is_empty() || tag == id;
    problems.require(is_consistent, ("Global", "KubernetesClusterID"), what);
    Cluster {
        id: if id.is_empty() { tag } else { id }.to_owned(),
        legacy: !tag.is_empty(),
    }
}

fn families(given: &NameList, problems: &mut Problems) -> Vec<IpFamily> {
    if given.has_only_empty_names() {
        problems.warn(
            ("Global", "NodeIPFamilies"),
            "the Go cloud-controller-manager reports no IP addresses with this value; new nodes get IPv4 addresses, and nodes that have \
             addresses keep them; remove the key, or write ipv4 or ipv6",
        );
    }
    let mut families = Vec::new();
    for text in given.names().iter().map(|text| text.trim()) {
        let family = match text {
            "" => continue,
            "ipv4" => IpFamily::V4,
            "ipv6" => IpFamily::V6,
            _ => {
                let what = format!("{text:?} is neither ipv4 nor ipv6 and is ignored");
                problems.warn(("Global", "NodeIPFamilies"), what);
                continue;
            }
        };
        if !families.contains(&family) {
            families.push(family);
        }
    }
    if families.is_empty() {
        families.push(IpFamily::V4);
    }
    families
}

fn topology_types(pattern: &str, problems: &mut Problems) -> Option<Regex> {
    let pattern = given(pattern).unwrap_or_else(|| TOPOLOGY_TYPES.to_owned());
    let regex = Regex::new(&pattern).inspect_err(|error| {
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default().trim();
        let what = format!("{pattern:?} is not a regular expression: {reason}");
        problems.error(("Global", "SupportedTopologyInstanceTypePattern"), what);
    });
    regex.ok()
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
    let account = match parts.as_slice() {
        ["arn", _, "iam", _, account, name] if name.starts_with("role/") => *account,
        _ => "",
    };
    let what = format!("{arn:?} is not the ARN of a role; write arn:aws:iam::<account>:role/<name>");
    problems.require(!account.is_empty(), ("Global", "RoleARN"), what);
    Some(Role {
        account: account.to_owned(),
        source_arn,
        arn,
    })
}

/// The endpoints of `[ServiceOverride]`. Those of the environment are only checked: the SDK reads them.
fn endpoints(
    conf: &CloudConf,
    env: &Environment,
    region: Option<&str>,
    problems: &mut Problems,
) -> Vec<Endpoint> {
    for variable in ENDPOINT_VARIABLES {
        let url = env.var(variable).unwrap_or_default();
        problems.require(url.is_empty() || http_url(url).is_some(), KeyPath::key(variable), NOT_URL);
    }
    let mut endpoints: Vec<Endpoint> = Vec::new();
    let mut keys = BTreeSet::new();
    for (name, entry) in &conf.service_override {
        let at = |key| ("ServiceOverride", name.as_str(), key);
        let mut required = |key, value: &str| {
            let (value, what) = (given(value), "is required in every [ServiceOverride]");
            problems.require(value.is_some(), at(key), what);
            value
        };
        let values = [
            required("Service", &entry.service),
            required("Region", &entry.region),
            required("URL", &entry.url),
            required("SigningRegion", &entry.signing_region),
        ];
        let [Some(text), Some(region), Some(url), Some(signing_region)] = values else {
            continue;
        };
        problems.require(http_url(&url).is_some(), at("URL"), NOT_URL);
        if !keys.insert((text.clone(), region.clone())) {
            let what = format!("a second entry for {text:?} in region {region:?}; remove one of them");
            problems.error(at("Service"), what);
            continue;
        }
        let Some(service) = Service::parse(&text) else {
            let what = format!("{text:?} is not a supported API and has no effect");
            let fix = format!("write one of {}", Service::names());
            problems.warn(at("Service"), format!("{what}; {fix}"));
            continue;
        };
        if text != service.name() {
            let name = service.name();
            let what = format!(
                "the Go cloud-controller-manager ignores an entry for {text:?}, and here it applies to {name}"
            );
            let fix = format!("to keep the endpoint of AWS, remove the entry; otherwise write {name}");
            problems.warn(at("Service"), format!("{what}; {fix}"));
        }
        let region = if service == Service::Metadata {
            None
        } else {
            Some(region)
        };
        let endpoint = Endpoint {
            service,
            region,
            url,
            signing_region,
            signing_name: given(&entry.signing_name),
        };
        let mut known = endpoints.iter_mut();
        match known.find(|known| (known.service, &known.region) == (service, &endpoint.region)) {
            None => endpoints.push(endpoint),
            Some(known) => {
                let name = service.name();
                let what = format!("a second entry for {name}: one with this name is used; remove one");
                problems.warn(at("Service"), what);
                // The Go cloud-controller-manager ignores entries with other names.
                if text == name {
                    *known = endpoint;
                }
            }
        }
    }
    let regions: Vec<_> = endpoints.iter().filter_map(|entry| entry.region.as_deref()).collect();
    if let (Some(region), Some(entry)) = (region, conf.service_override.keys().next())
        && !regions.is_empty()
        && !regions.contains(&region)
    {
        let what = format!("no entry has the region {region} of this cluster, so none is used");
        problems.warn(("ServiceOverride", entry.as_str(), "Region"), what);
    }
    endpoints
}

/// The meaning of a key's value, the default for an empty one, or why it is not supported.
fn choice<T: Copy + Default>(value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let text = value.trim();
    if text.is_empty() {
        return Ok(T::default());
    }
    match choices.iter().find(|(name, _)| *name == text) {
        Some((_, meaning)) => Ok(*meaning),
        None => {
            let known: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            Err(format!("{value:?} is not supported; write {}", known.join(" or ")))
        }
    }
}

fn load_balancing(global: &Global, problems: &mut Problems) -> LoadBalancing {
    let mut unsupported_modes = Vec::new();
    // Upstream starts with an unknown mode, and then does not create network load balancers.
    let mut refuse_mode = |key: &'static str, problem: String| {
        unsupported_modes.push(format!("{key} in cloud.conf: {problem}"));
        let what = format!("{problem}; until then, no network load balancer is created");
        problems.warn(("Global", key), what);
    };
    let modes = [("ServiceNodePort", false), ("Shared", true)];
    let health_probe_mode = choice(&global.health_probe_mode, &modes);
    let keeps_health_checks = health_probe_mode.is_err();
    let is_shared = health_probe_mode.unwrap_or_else(|problem| {
        refuse_mode("ClusterServiceLoadBalancerHealthProbeMode", problem);
        false
    });
    let security_group_mode = choice(&global.nlb_security_group_mode, &[("Managed", true)]);
    let managed_security_groups = security_group_mode.unwrap_or_else(|problem| {
        refuse_mode("NLBSecurityGroupMode", problem);
        false
    });
    let types = [
        ("classic", Flavor::Classic),
        ("nlb", Flavor::Network),
        ("none", Flavor::Elsewhere),
    ];
    let default_type = choice(&global.default_load_balancer_type, &types).unwrap_or_else(|problem| {
        problems.error(("Global", "DefaultLoadBalancerType"), problem);
        Flavor::default()
    });
    let key = ("Global", "ClusterServiceSharedLoadBalancerHealthProbePort");
    let port = match u16::try_from(global.shared_probe_port) {
        Ok(0) => PROBE_PORT,
        Ok(port) => port,
        Err(_) => {
            let given = global.shared_probe_port;
            problems.error(key, format!("{given} is not a port; write a number from 1 to 65535"));
            PROBE_PORT
        }
    };
    let path = given(&global.shared_probe_path).unwrap_or_else(|| PROBE_PATH.to_owned());
    let key = ("Global", "ClusterServiceSharedLoadBalancerHealthProbePath");
    let what = format!("{path:?} is not a path; write /{path}");
    problems.require(path.starts_with('/'), key, what);
    LoadBalancing {
        disable_security_group_ingress: global.disable_security_group_ingress,
        elb_security_group: id(&global.elb_security_group, "ElbSecurityGroup", "sg-", problems),
        shared_probe: if is_shared {
            Some(SharedProbe { port, path })
        } else {
            None
        },
        managed_security_groups,
        unsupported_modes,
        keeps_health_checks,
        default_type,
    }
}

#[cfg(test)]
mod tests;
