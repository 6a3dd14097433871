//! The configuration: azure.json of the Go cloud-controller-manager, and the settings that follow from it.

mod certificate;
mod credentials;
mod keys;
mod rate_limits;
#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeMap, path::Path, time::Duration};

use ccm_core::{
    BuildContext, Error, ErrorKind,
    client::RetryPolicy,
    config::{
        self, ConfigFiles, KeyCase, KeyPath, LoadError, Parsed, Problems, Section as _, http_url, yaml,
    },
};
use url::Url;

use crate::load_balancer::names::INTERNAL;

pub(crate) use self::{
    credentials::{Credential, Identity},
    keys::{CloudConf, LabelSelector, MultipleLoadBalancer},
    rate_limits::RateLimits,
};

/// The keys that take effect while the program runs: those of the credentials.
const LIVE: [&str; 8] = [
    "aadClientId",
    "aadClientSecret",
    "aadClientCertPath",
    "useManagedIdentityExtension",
    "userAssignedIdentityID",
    "useFederatedWorkloadIdentityExtension",
    "aadFederatedTokenFile",
    "networkResourceTenantID",
];

/// The longest pause between two attempts of a call.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A cloud with endpoints that are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints {
    /// URL of the Azure Resource Manager.
    pub(crate) manager: Url,
    /// The audience of its tokens, without a slash at the end.
    pub(crate) audience: String,
    /// URL of the login, below which the tenants are.
    pub(crate) login: Url,
}

/// Where the endpoints of the cloud are known from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndpointSource {
    /// They are fixed.
    Known(Endpoints),
    /// The Azure Resource Manager at this URL returns them, for the cloud of this name.
    Discovery(Url, String),
}

/// The kinds of machines that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineKinds {
    /// Single machines, and those of flexible scale sets.
    pub(crate) machines: bool,
    /// Instances of uniform scale sets.
    pub(crate) instances: bool,
}

/// The settings of the provider.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) endpoints: EndpointSource,
    pub(crate) subscription: String,
    /// The subscription of network resources.
    pub(crate) network_subscription: String,
    pub(crate) credential: Credential,
    /// The credential for network resources in another tenant.
    pub(crate) network_credential: Option<Credential>,
    /// Whether tokens come from Active Directory Federation Services.
    pub(crate) adfs: bool,
    /// URL of the metadata service of the machine.
    pub(crate) metadata: Url,
    /// Resource group of the nodes, in lower case.
    pub(crate) resource_group: String,
    /// The region, in lower case.
    pub(crate) location: String,
    pub(crate) machine_kinds: MachineKinds,
    /// Whether the cloud has availability zones.
    pub(crate) has_zones: bool,
    /// Whether the API versions are those of Azure Stack.
    pub(crate) is_azure_stack: bool,
    pub(crate) rate_limits: RateLimits,
    pub(crate) retry: RetryPolicy,
    /// The keys as given.
    pub(crate) conf: CloudConf,
}

impl Settings {
    /// The resource group of the route table.
    pub(crate) fn route_table_group(&self) -> &str {
        or(&self.conf.route_table_resource_group, &self.resource_group)
    }

    /// The resource group of load balancers.
    pub(crate) fn load_balancer_group(&self) -> &str {
        or(&self.conf.load_balancer_resource_group, &self.resource_group)
    }

    /// The resource group of private link services.
    pub(crate) fn link_group(&self) -> &str {
        or(&self.conf.private_link_service_resource_group, &self.resource_group)
    }

    /// The resource group of the network security group.
    pub(crate) fn security_group_group(&self) -> &str {
        or(&self.conf.security_group_resource_group, &self.resource_group)
    }

    /// The resource group of the virtual network.
    pub(crate) fn network_group(&self) -> &str {
        or(&self.conf.vnet_resource_group, &self.resource_group)
    }

    /// Whether both have the same credentials. A file with an unchanged name may have another content.
    pub(crate) fn has_credentials_of(&self, other: &Self) -> bool {
        self.credential == other.credential && self.network_credential == other.network_credential
    }

    /// Whether network resources are in another subscription.
    pub(crate) fn has_network_subscription(&self) -> bool {
        self.network_subscription != self.subscription
    }
}

/// Whether a change of this key takes effect while the program runs.
pub(crate) fn is_live(key: &str) -> bool {
    LIVE.contains(&key)
}

/// The changed keys that take effect at once, and those that need a restart.
pub(crate) fn changed_keys(old: &CloudConf, new: &CloudConf) -> (Vec<String>, Vec<String>) {
    let changed = old.changed_keys(new).into_iter().map(str::to_owned);
    changed.partition(|key| is_live(key))
}

/// Reads file and environment.
///
/// # Errors
/// All problems of the configuration.
pub(crate) fn load(context: &BuildContext, files: &mut ConfigFiles) -> Result<Parsed<Settings>, LoadError> {
    let path = context.cloud_config.as_deref().filter(|path| !path.as_os_str().is_empty());
    let Some(path) = path else {
        let text = "no Azure cloud provider config file given; name it with --cloud-config";
        return Err(LoadError::File(Error::new(ErrorKind::InvalidConfig, text)));
    };
    match files.read(path) {
        Ok(content) => load_content(&content, path, context, files),
        Err(error) => {
            let text = format!("could not read {}: {error}", path.display());
            Err(LoadError::File(Error::new(ErrorKind::InvalidConfig, text)))
        }
    }
}

/// Reads the content of a config and the environment. `place`: its file, or what messages name in its place.
///
/// # Errors
/// All problems of the configuration.
pub(crate) fn load_content(
    content: &[u8],
    place: &Path,
    context: &BuildContext,
    files: &mut ConfigFiles,
) -> Result<Parsed<Settings>, LoadError> {
    let mut settings = None;
    let environment = &context.environment;
    let parsed = config::parse_yaml(content, place, KeyCase::Insensitive, environment, |conf, problems| {
        check_spelling(content, place, problems);
        crate::ipam::check(&context.flags, problems);
        settings = resolve(conf, context, files, problems);
    });
    let parsed = parsed.map_err(LoadError::Content)?;
    let Some(value) = settings else {
        let text = "bug: the config has neither settings nor errors";
        return Err(LoadError::File(Error::new(ErrorKind::Unexpected, text)));
    };
    Ok(Parsed {
        value,
        warnings: parsed.warnings,
        locations: parsed.locations,
    })
}

/// Reports keys that are given twice in different spellings: it depends on the reader which of the two values counts.
fn check_spelling(content: &[u8], place: &Path, problems: &mut Problems) {
    let Ok(Some(root)) = yaml::utf8(content).and_then(yaml::document) else {
        return;
    };
    let mut found = Vec::new();
    add_respelled(&root, &mut found);
    for (first, again) in found {
        let text =
            format!("given twice in different spellings, first in line {}; keep only one", first.at.line);
        problems.add_in(place, again.at, &again.key, &text, true);
    }
}

/// Adds keys that differ only in case from an earlier one of the same map, with that one.
fn add_respelled<'a>(
    node: &'a yaml::Node,
    found: &mut Vec<(&'a yaml::MappingEntry, &'a yaml::MappingEntry)>,
) {
    let mut seen: BTreeMap<String, &yaml::MappingEntry> = BTreeMap::new();
    for entry in node.entries() {
        let first = *seen.entry(entry.key.to_ascii_lowercase()).or_insert(entry);
        if first.key != entry.key {
            found.push((first, entry));
        }
        // Labels are case-sensitive.
        if !entry.key.eq_ignore_ascii_case("matchLabels") {
            add_respelled(&entry.node, found);
        }
    }
    if let yaml::Value::List(items) = &node.value {
        for item in items {
            add_respelled(item, found);
        }
    }
}

fn resolve(
    conf: &CloudConf,
    context: &BuildContext,
    files: &mut ConfigFiles,
    problems: &mut Problems,
) -> Option<Settings> {
    let endpoints = endpoints(conf, problems);
    let metadata = metadata_url(context, problems);
    let credentials = credentials::resolve(conf, context, files, problems);
    let rate_limits = rate_limits::resolve(conf, problems);
    for (key, value, example) in [
        ("subscriptionId", &conf.subscription_id, "the ID of the machines' subscription"),
        ("resourceGroup", &conf.resource_group, "the resource group of the nodes"),
        ("location", &conf.location, "the region of created resources, such as westeurope"),
    ] {
        problems.require(
            !value.trim().is_empty(),
            KeyPath::key(key),
            format!("missing; set it to {example}"),
        );
    }
    check_choices(conf, problems);
    check_unsupported(conf, problems);
    if problems.has_errors() {
        return None;
    }
    let is_azure_stack = has_restrictions_of_azure_stack(conf);
    let (credential, network_credential) = credentials?;
    let retry = if conf.backoff {
        RetryPolicy {
            max_attempts: conf.backoff_retries.max(1),
            initial: Duration::from_secs(u64::from(conf.backoff_duration)).min(LONGEST_PAUSE),
            max: LONGEST_PAUSE,
            seed: None,
        }
    } else {
        RetryPolicy::default()
    };
    Some(Settings {
        endpoints: endpoints?,
        subscription: conf.subscription_id.trim().to_owned(),
        network_subscription: network_subscription(conf),
        credential,
        network_credential,
        adfs: conf.identity_system.eq_ignore_ascii_case("adfs"),
        metadata: metadata?,
        resource_group: conf.resource_group.trim().to_ascii_lowercase(),
        location: conf.location.replace(' ', "").to_ascii_lowercase(),
        machine_kinds: machine_kinds(conf),
        has_zones: !is_azure_stack,
        is_azure_stack,
        rate_limits,
        retry,
        conf: conf.clone(),
    })
}

/// The endpoints of the cloud, or where they are read from.
fn endpoints(conf: &CloudConf, problems: &mut Problems) -> Option<EndpointSource> {
    let cloud = conf.cloud.trim();
    let known = match cloud.to_ascii_lowercase().as_str() {
        "" | "azurecloud" | "azurepubliccloud" => Some((
            "https://management.azure.com/",
            "https://management.core.windows.net",
            "https://login.microsoftonline.com/",
        )),
        "azurechinacloud" => Some((
            "https://management.chinacloudapi.cn/",
            "https://management.core.chinacloudapi.cn",
            "https://login.chinacloudapi.cn/",
        )),
        "azureusgovernment" | "azureusgovernmentcloud" => Some((
            "https://management.usgovcloudapi.net/",
            "https://management.core.usgovcloudapi.net",
            "https://login.microsoftonline.us/",
        )),
        _ => None,
    };
    let endpoint = conf.resource_manager_endpoint.trim();
    if !endpoint.is_empty() {
        return match parse_url(endpoint) {
            Ok(url) => Some(EndpointSource::Discovery(url, cloud.to_owned())),
            Err(text) => {
                problems.error(KeyPath::key("resourceManagerEndpoint"), text);
                None
            }
        };
    }
    let Some((manager, audience, login)) = known else {
        let text = format!(
            "{cloud:?} is not a known cloud; write AzurePublicCloud, AzureChinaCloud or AzureUSGovernmentCloud, or set \
             resourceManagerEndpoint"
        );
        problems.error(KeyPath::key("cloud"), text);
        return None;
    };
    Some(EndpointSource::Known(Endpoints {
        manager: Url::parse(manager).ok()?,
        audience: audience.to_owned(),
        login: Url::parse(login).ok()?,
    }))
}

/// The URL of the metadata service. The variable is that of Microsoft's own libraries.
fn metadata_url(context: &BuildContext, problems: &mut Problems) -> Option<Url> {
    let url = context
        .environment
        .var("AZURE_POD_IDENTITY_AUTHORITY_HOST")
        .unwrap_or("http://169.254.169.254/");
    match parse_url(url) {
        Ok(url) => Some(url),
        Err(text) => {
            problems.error(KeyPath::key("AZURE_POD_IDENTITY_AUTHORITY_HOST"), text);
            None
        }
    }
}

/// Whether the cloud is an Azure Stack with its own API versions, without zones and standard load balancers.
fn has_restrictions_of_azure_stack(conf: &CloudConf) -> bool {
    conf.cloud.trim().eq_ignore_ascii_case("AzureStackCloud") && !conf.disable_azure_stack
}

/// The subscription of network resources.
fn network_subscription(conf: &CloudConf) -> String {
    let (own, network) = (conf.subscription_id.trim(), conf.network_subscription.trim());
    if network.is_empty() || network.eq_ignore_ascii_case(own) {
        own.to_owned()
    } else {
        network.to_owned()
    }
}

fn machine_kinds(conf: &CloudConf) -> MachineKinds {
    let has_scale_sets = conf.vm_type.eq_ignore_ascii_case("vmss");
    MachineKinds {
        machines: !has_scale_sets || !conf.disable_availability_set_nodes || conf.enable_flex_nodes,
        instances: has_scale_sets,
    }
}

/// Checks keys that have one of a few values.
fn check_choices(conf: &CloudConf, problems: &mut Problems) {
    for (key, value, choices) in [
        ("identitySystem", &conf.identity_system, &["azure_ad", "adfs"][..]),
        ("cloudConfigType", &conf.cloud_config_type, &["file", "secret", "merge"]),
        ("loadBalancerSku", &conf.load_balancer_sku, &["standard", "basic", "service"]),
        (
            "loadBalancerBackendPoolConfigurationType",
            &conf.backend_pool_type,
            &["nodeIPConfiguration", "nodeIP", "podIP"],
        ),
        (
            "clusterServiceLoadBalancerHealthProbeMode",
            &conf.health_probe_mode,
            &["servicenodeport", "shared"],
        ),
        (
            "preConfiguredBackendPoolLoadBalancerTypes",
            &conf.pre_configured_pools,
            &["internal", "external", "all"],
        ),
    ] {
        let is_known = choices.iter().any(|choice| choice.eq_ignore_ascii_case(value));
        let text = format!("{value:?} is not one of {}", choices.join(", "));
        problems.require(value.is_empty() || is_known, KeyPath::key(key), text);
    }
    if !["vmss", "standard", "vmssflex"]
        .iter()
        .any(|kind| kind.eq_ignore_ascii_case(&conf.vm_type))
    {
        let text = format!("{:?} is none of vmss, standard, vmssflex; it means standard", conf.vm_type);
        problems.warn(KeyPath::key("vmType"), text);
    }
    problems.require(
        !conf.disable_availability_set_nodes || conf.vm_type.eq_ignore_ascii_case("vmss"),
        KeyPath::key("disableAvailabilitySetNodes"),
        "needs vmType vmss",
    );
    let extended = [&conf.extended_location_name, &conf.extended_location_type];
    if extended.iter().filter(|value| value.is_empty()).count() == 1 {
        let text = "has no effect without the other of extendedLocationName and extendedLocationType";
        problems.warn(KeyPath::key("extendedLocationName"), text);
    }
    problems.require(
        conf.disable_outbound_snat != Some(true) || !conf.is_basic(),
        KeyPath::key("disableOutboundSNAT"),
        "needs loadBalancerSku standard",
    );
    check_multiple(conf, problems);
}

/// Checks `multipleStandardLoadBalancerConfigurations`.
fn check_multiple(conf: &CloudConf, problems: &mut Problems) {
    let key = KeyPath::key("multipleStandardLoadBalancerConfigurations");
    let all = &conf.multiple_load_balancers;
    if all.is_empty() {
        return;
    }
    // A key has one error: it names all of them.
    let mut wrong = Vec::new();
    if all.iter().all(|one| one.allow_service_placement == Some(false)) {
        wrong.push(
            "allowServicePlacement is false in all entries, so that no Service has a load balancer"
                .to_owned(),
        );
    }
    if conf.is_basic() {
        wrong.push("it needs loadBalancerSku standard".to_owned());
    }
    if conf.backend_pool_type.eq_ignore_ascii_case("nodeIPConfiguration") {
        wrong.push("it needs loadBalancerBackendPoolConfigurationType nodeIP".to_owned());
    }
    for (at, one) in all.iter().enumerate() {
        let earlier = all.get(..at).unwrap_or_default();
        if one.name.is_empty() {
            wrong.push(format!("[{at}].name is missing"));
        } else if earlier.iter().any(|other| other.name.eq_ignore_ascii_case(&one.name)) {
            wrong.push(format!("[{at}].name {:?} is given twice", one.name));
        }
        if one.name.to_ascii_lowercase().ends_with(INTERNAL) {
            let text = format!(
                "[{at}].name {:?} ends with {INTERNAL}, which belongs to internal load balancers",
                one.name
            );
            wrong.push(text);
        }
        for (key, selector) in [
            ("serviceLabelSelector", &one.service_label_selector),
            ("serviceNamespaceSelector", &one.service_namespace_selector),
            ("nodeSelector", &one.node_selector),
        ] {
            let requirements = selector.iter().flat_map(|selector| &selector.match_expressions);
            for (number, requirement) in requirements.enumerate() {
                if let Some(problem) = requirement.problem() {
                    wrong.push(format!("[{at}].{key}.matchExpressions[{number}] {problem}"));
                }
            }
        }
        if one.primary_vm_set.is_empty() {
            wrong.push(format!("[{at}].primaryVMSet is missing"));
        } else if earlier.iter().any(|other| other.primary_vm_set.eq_ignore_ascii_case(&one.primary_vm_set)) {
            wrong.push(format!("[{at}].primaryVMSet {:?} is given twice", one.primary_vm_set));
        }
    }
    problems.require(wrong.is_empty(), key, wrong.join("; "));
}

/// Refuses what this provider does not have, so that it never serves less than the file requests.
fn check_unsupported(conf: &CloudConf, problems: &mut Problems) {
    problems.require(
        !conf.service_gateway,
        KeyPath::key("serviceGatewayEnabled"),
        "ServiceGateway mode is not supported; remove the key",
    );
    problems.require(
        !conf.load_balancer_sku.eq_ignore_ascii_case("service"),
        KeyPath::key("loadBalancerSku"),
        "the SKU service belongs to ServiceGateway mode, which is not supported; write standard",
    );
    check_basic(conf, problems);
    problems.require(
        !conf.backend_pool_type.eq_ignore_ascii_case("podIP"),
        KeyPath::key("loadBalancerBackendPoolConfigurationType"),
        "podIP belongs to ServiceGateway mode, which is not supported; write nodeIPConfiguration or nodeIP",
    );
}

/// Checks what basic load balancers need, which Azure has retired. Azure Stack has no others.
fn check_basic(conf: &CloudConf, problems: &mut Problems) {
    if !conf.is_basic() {
        return;
    }
    problems.require(
        has_restrictions_of_azure_stack(conf),
        KeyPath::key("loadBalancerSku"),
        "Azure has retired basic load balancers, and only Azure Stack has them (cloud AzureStackCloud without disableAzureStackCloud); \
         write standard",
    );
    problems.require(
        !conf.backend_pool_type.eq_ignore_ascii_case("nodeIP"),
        KeyPath::key("loadBalancerBackendPoolConfigurationType"),
        "nodeIP needs loadBalancerSku standard; write nodeIPConfiguration",
    );
    problems.require(
        !conf.vm_type.eq_ignore_ascii_case("vmssflex"),
        KeyPath::key("vmType"),
        "vmssflex needs loadBalancerSku standard; write vmss or standard",
    );
    let (key, set) = conf.primary_vm_set();
    if set.is_empty() {
        let text = "missing; a basic load balancer has the machines of one set, so that Azure refuses members if the nodes are in several";
        problems.warn(KeyPath::key(key), text);
    }
}

/// A URL with a scheme and a host.
fn parse_url(text: &str) -> Result<Url, String> {
    let url = http_url(text).and_then(|url| Url::parse(&url.to_string()).ok());
    url.ok_or_else(|| format!("{text:?} is not a URL; write https://host/"))
}

/// A text, or another one if it is empty.
fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}
