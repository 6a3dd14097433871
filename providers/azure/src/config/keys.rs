//! The keys of azure.json.

use std::collections::BTreeMap;

use ccm_core::{Labels, config::config_section};
use secrecy::SecretString;
use serde::Deserialize;

config_section! {
    /// The config of the Go cloud-controller-manager (`azure.json`), as JSON or YAML. Keys are case-insensitive. Four keys have an environment
    /// variable, which wins over the file: the webhook of workload identities sets them.
    pub(crate) struct CloudConf {
        /// The cloud: `AzurePublicCloud`, `AzureChinaCloud`, `AzureUSGovernmentCloud` or `AzureStackCloud`.
        "cloud" => pub(crate) cloud: String = "AzurePublicCloud".to_owned(),
        /// ID of the tenant. Example: `72f988bf-0000-0000-0000-2d7cd011db47`.
        "tenantId" | "AZURE_TENANT_ID" => pub(crate) tenant_id: String,
        /// ID of the subscription of the machines. Required. Example: `11111111-2222-3333-4444-555555555555`.
        "subscriptionId" => pub(crate) subscription_id: String,
        /// Client ID of the service principal or of the workload identity.
        "aadClientId" | "AZURE_CLIENT_ID" => pub(crate) aad_client_id: String,
        /// Secret of the service principal.
        "aadClientSecret" | "AZURE_CLIENT_SECRET" => pub(crate) aad_client_secret: Option<SecretString>,
        /// A PEM or PKCS#12 file with certificate and private key (RSA) of the service principal. Read again when it changes. Example: `/etc/kubernetes/client.pem`.
        "aadClientCertPath" => pub(crate) aad_client_cert_path: String,
        /// Password of the PKCS#12 file. Without it, the empty password is used.
        "aadClientCertPassword" => pub(crate) aad_client_cert_password: Option<SecretString>,
        /// Whether to use a managed identity of the machine.
        "useManagedIdentityExtension" => pub(crate) use_managed_identity: bool,
        /// Client ID or resource ID of a user-assigned identity. Without it, the system-assigned one is used.
        "userAssignedIdentityID" => pub(crate) user_assigned_identity: String,
        /// Whether to use a workload identity.
        "useFederatedWorkloadIdentityExtension" => pub(crate) use_workload_identity: bool,
        /// The service account token of the workload identity. Read before each login. Example: `/var/run/secrets/azure/tokens/azure-identity-token`.
        "aadFederatedTokenFile" | "AZURE_FEDERATED_TOKEN_FILE" => pub(crate) federated_token_file: String,
        /// A file with the credentials of a hosted control plane. Not supported.
        "aadMSIDataPlaneIdentityPath" => pub(crate) data_plane_identity: String,
        /// The Key Vault secret with a token for the network tenant. Not supported.
        "auxiliaryTokenProvider" => pub(crate) auxiliary_token_provider: BTreeMap<String, String>,
        /// ID of the tenant of network resources, if it is another one. Needs a service principal.
        "networkResourceTenantID" => pub(crate) network_tenant: String,
        /// ID of the subscription of network resources, if it is another one.
        "networkResourceSubscriptionID" => pub(crate) network_subscription: String,
        /// `azure_ad`, or `adfs` for an Azure Stack with Active Directory Federation Services.
        "identitySystem" => pub(crate) identity_system: String = "azure_ad".to_owned(),
        /// The `User-Agent` header of calls. By default it names this program.
        "userAgent" => pub(crate) user_agent: String,
        /// URL of the Azure Resource Manager of a cloud that is not listed. Login endpoint and audience are read from it. Example: `https://management.local.azurestack.external`.
        "resourceManagerEndpoint" => pub(crate) resource_manager_endpoint: String,
        /// With `cloud: AzureStackCloud`: zones and API versions are those of the public cloud.
        "disableAzureStackCloud" => pub(crate) disable_azure_stack: bool,
        /// Accepted without effect: the first poll of an operation comes after a second, whatever its answer proposes.
        "enableMinimumRetryAfter" => pub(crate) minimum_retry_after: bool,
        /// Accepted without effect: a changed file is read again while the program runs.
        "disableCloudProvider" => pub(crate) disable_cloud_provider: bool,
        /// Source of the config for other components: `file`, `secret` or `merge`.
        "cloudConfigType" => pub(crate) cloud_config_type: String = "merge".to_owned(),

        /// Resource group of the nodes. Required. Example: `k8s-nodes`.
        "resourceGroup" => pub(crate) resource_group: String,
        /// Region of created resources. Required. Example: `westeurope`.
        "location" => pub(crate) location: String,
        /// Name of the edge zone. Needs `extendedLocationType`.
        "extendedLocationName" => pub(crate) extended_location_name: String,
        /// Type of the extended location: `EdgeZone`. Needs `extendedLocationName`.
        "extendedLocationType" => pub(crate) extended_location_type: String,
        /// Virtual network of the nodes.
        "vnetName" => pub(crate) vnet_name: String,
        /// Resource group of the virtual network, if it is another one.
        "vnetResourceGroup" => pub(crate) vnet_resource_group: String,
        /// Subnet of internal load balancers.
        "subnetName" => pub(crate) subnet_name: String,
        /// Network security group of the nodes.
        "securityGroupName" => pub(crate) security_group_name: String,
        /// Resource group of the network security group, if it is another one.
        "securityGroupResourceGroup" => pub(crate) security_group_resource_group: String,
        /// Route table of the nodes' subnet. Without it, there are no routes. Example: `k8s-routes`.
        "routeTableName" => pub(crate) route_table_name: String,
        /// Resource group of the route table, if it is another one.
        "routeTableResourceGroup" => pub(crate) route_table_resource_group: String,
        /// Availability set whose machines are members of basic load balancers, with `vmType: standard`.
        "primaryAvailabilitySetName" => pub(crate) primary_availability_set: String,
        /// Scale set whose machines are members of basic load balancers, with `vmType: vmss`.
        "primaryScaleSetName" => pub(crate) primary_scale_set: String,
        /// Kind of the nodes' machines: `vmss`, `standard` or `vmssflex`. Nodes are found in scale sets and as single machines, whatever it is, except that
        /// `standard` and `vmssflex` read no instances of uniform scale sets.
        "vmType" => pub(crate) vm_type: String = "vmss".to_owned(),
        /// Whether all nodes are instances of uniform scale sets, so that single machines are not read. Only with `vmType: vmss`.
        "disableAvailabilitySetNodes" => pub(crate) disable_availability_set_nodes: bool,
        /// Whether flexible scale sets are read although `disableAvailabilitySetNodes` is set.
        "enableVmssFlexNodes" => pub(crate) enable_flex_nodes: bool,
        /// Resource group of private link services, if it is another one.
        "privateLinkServiceResourceGroup" => pub(crate) private_link_service_resource_group: String,
        /// Accepted without effect: facts about nodes are read from the Azure Resource Manager.
        "useInstanceMetadata" => pub(crate) use_instance_metadata: bool,
        /// Minimum age in seconds of a node that is deleted because its machine does not exist.
        "nodeInstanceNotFoundGracePeriodInSeconds" => pub(crate) not_found_grace_seconds: u32,

        /// SKU of load balancers and public IP addresses: `standard`, or on Azure Stack `basic`. See [Basic load balancers](#basic-load-balancers).
        "loadBalancerSku" => pub(crate) load_balancer_sku: String = "standard".to_owned(),
        /// Name of load balancers in place of `--cluster-name`.
        "loadBalancerName" => pub(crate) load_balancer_name: String,
        /// Resource group of load balancers, if it is another one.
        "loadBalancerResourceGroup" => pub(crate) load_balancer_resource_group: String,
        /// Whether control plane nodes stay out of standard load balancers.
        "excludeMasterFromStandardLB" => pub(crate) exclude_master: Option<bool>,
        /// Whether rules give nodes no outbound access. Only with standard load balancers.
        "disableOutboundSNAT" => pub(crate) disable_outbound_snat: Option<bool>,
        /// Maximum number of rules of a basic load balancer. 0: no maximum.
        "maximumLoadBalancerRuleCount" => pub(crate) maximum_rule_count: u32 = 250,
        /// Load balancers whose backend pools are managed elsewhere: `internal`, `external` or `all`.
        "preConfiguredBackendPoolLoadBalancerTypes" => pub(crate) pre_configured_pools: String,
        /// Members of backend pools: `nodeIPConfiguration` or `nodeIP`.
        "loadBalancerBackendPoolConfigurationType" => pub(crate) backend_pool_type: String = "nodeIPConfiguration".to_owned(),
        /// Number of instances of a scale set that are written at once.
        "putVMSSVMBatchSize" => pub(crate) put_instance_batch_size: u32,
        /// Whether pools are migrated to `nodeIP` with the migration API.
        "enableMigrateToIPBasedBackendPoolAPI" => pub(crate) migrate_to_node_ip: bool,
        /// Whether IP tags of a public IP address are changed in place.
        "enableIPTagMutationForExistingPublicIP" => pub(crate) change_ip_tags: bool,
        /// Health probes of Services with `externalTrafficPolicy: Cluster`: `servicenodeport` or `shared`.
        "clusterServiceLoadBalancerHealthProbeMode" => pub(crate) health_probe_mode: String = "servicenodeport".to_owned(),
        /// Port of the shared health probe.
        "clusterServiceSharedLoadBalancerHealthProbePort" => pub(crate) shared_probe_port: u16 = 10256,
        /// Path of the shared health probe.
        "clusterServiceSharedLoadBalancerHealthProbePath" => pub(crate) shared_probe_path: String = "/healthz".to_owned(),
        /// Seconds between changes of the pools of local Services.
        "loadBalancerBackendPoolUpdateIntervalInSeconds" => pub(crate) pool_update_seconds: u32 = 30,
        /// Several standard load balancers for each kind, each with its nodes and Services. One of them has the name of the cluster.
        /// See [Several load balancers](#several-load-balancers).
        "multipleStandardLoadBalancerConfigurations" => pub(crate) multiple_load_balancers: Vec<MultipleLoadBalancer>,
        /// ServiceGateway mode. Not supported.
        "serviceGatewayEnabled" => pub(crate) service_gateway: bool,
        /// Tags of all resources, as `a=b,c=d`. Example: `team=web,env=prod`.
        "tags" => pub(crate) tags: String,
        /// Tags of all resources, which win over `tags`.
        "tagsMap" => pub(crate) tags_map: BTreeMap<String, String>,
        /// Prefixes of tags that are kept, separated by commas. With it, other tags that are not configured are deleted.
        "systemTags" => pub(crate) system_tags: String,

        /// Whether the rate limits below apply, in addition to those of Azure.
        "cloudProviderRateLimit" => pub(crate) rate_limit: Option<bool>,
        /// Reads a second. The default is 1.
        "cloudProviderRateLimitQPS" => pub(crate) rate_limit_qps: Option<f64>,
        /// Reads at once. The default is 5.
        "cloudProviderRateLimitBucket" => pub(crate) rate_limit_bucket: Option<u32>,
        /// Writes a second. The default is 1.
        "cloudProviderRateLimitQPSWrite" => pub(crate) rate_limit_qps_write: Option<f64>,
        /// Writes at once. The default is 5.
        "cloudProviderRateLimitBucketWrite" => pub(crate) rate_limit_bucket_write: Option<u32>,
        /// Rate limits by client, in place of keys such as `routeTableRateLimit`.
        "entries" => pub(crate) rate_limit_entries: BTreeMap<String, RateLimit>,
        /// Rate limit of single routes. Accepted without effect: routes are written with their table.
        "routeRateLimit" => pub(crate) route_rate_limit: Option<RateLimit>,
        /// Rate limit of subnets.
        "subnetsRateLimit" => pub(crate) subnets_rate_limit: Option<RateLimit>,
        /// Rate limit of network interfaces.
        "interfaceRateLimit" => pub(crate) interface_rate_limit: Option<RateLimit>,
        /// Rate limit of route tables.
        "routeTableRateLimit" => pub(crate) route_table_rate_limit: Option<RateLimit>,
        /// Rate limit of load balancers.
        "loadBalancerRateLimit" => pub(crate) load_balancer_rate_limit: Option<RateLimit>,
        /// Rate limit of public IP addresses.
        "publicIPAddressRateLimit" => pub(crate) public_ip_rate_limit: Option<RateLimit>,
        /// Rate limit of network security groups.
        "securityGroupRateLimit" => pub(crate) security_group_rate_limit: Option<RateLimit>,
        /// Rate limit of single machines.
        "virtualMachineRateLimit" => pub(crate) virtual_machine_rate_limit: Option<RateLimit>,
        /// Rate limit of scale sets and their instances.
        "virtualMachineScaleSetRateLimit" => pub(crate) scale_set_rate_limit: Option<RateLimit>,
        /// Rate limit of availability sets. Accepted without effect: they are not read.
        "availabilitySetRateLimit" => pub(crate) availability_set_rate_limit: Option<RateLimit>,
        /// Rate limit of private link services.
        "privateLinkServiceRateLimit" => pub(crate) private_link_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "virtualMachineSizeRateLimit" => pub(crate) machine_size_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "attachDetachDiskRateLimit" => pub(crate) attach_disk_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "containerServiceRateLimit" => pub(crate) container_service_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "deploymentRateLimit" => pub(crate) deployment_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "privateDNSRateLimit" => pub(crate) private_dns_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "privateDNSZoneGroupRateLimit" => pub(crate) private_dns_zone_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "privateEndpointRateLimit" => pub(crate) private_endpoint_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "virtualNetworkRateLimit" => pub(crate) virtual_network_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "storageAccountRateLimit" => pub(crate) storage_account_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "diskRateLimit" => pub(crate) disk_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "snapshotRateLimit" => pub(crate) snapshot_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "natGatewayRateLimit" => pub(crate) nat_gateway_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "ipGroupRateLimit" => pub(crate) ip_group_rate_limit: Option<RateLimit>,
        /// Accepted without effect.
        "serviceGatewayRateLimit" => pub(crate) service_gateway_rate_limit: Option<RateLimit>,

        /// Whether the keys below set the repetition of failed calls.
        "cloudProviderBackoff" => pub(crate) backoff: bool,
        /// Number of attempts of a call.
        "cloudProviderBackoffRetries" => pub(crate) backoff_retries: u32 = 6,
        /// Accepted without effect: the wait doubles, with jitter.
        "cloudProviderBackoffExponent" => pub(crate) backoff_exponent: f64 = 1.5,
        /// Seconds before the first repetition.
        "cloudProviderBackoffDuration" => pub(crate) backoff_duration: u32 = 5,
        /// Accepted without effect.
        "cloudProviderBackoffJitter" => pub(crate) backoff_jitter: f64 = 1.0,
        /// Accepted without effect.
        "cloudProviderBackoffMode" => pub(crate) backoff_mode: String,

        /// Accepted without effect, as the other ages of caches: each question sets how old its answer may be.
        "vmCacheTTLInSeconds" => pub(crate) machine_cache_seconds: u32,
        /// Accepted without effect.
        "vmssCacheTTLInSeconds" => pub(crate) scale_set_cache_seconds: u32,
        /// Accepted without effect.
        "vmssVirtualMachinesCacheTTLInSeconds" => pub(crate) instance_cache_seconds: u32,
        /// Accepted without effect.
        "nonVmssUniformNodesCacheTTLInSeconds" => pub(crate) machine_list_cache_seconds: u32,
        /// Accepted without effect.
        "vmssFlexCacheTTLInSeconds" => pub(crate) flex_cache_seconds: u32,
        /// Accepted without effect.
        "vmssFlexVMCacheTTLInSeconds" => pub(crate) flex_machine_cache_seconds: u32,
        /// Accepted without effect.
        "availabilitySetsCacheTTLInSeconds" => pub(crate) availability_set_cache_seconds: u32,
        /// Accepted without effect.
        "loadBalancerCacheTTLInSeconds" => pub(crate) load_balancer_cache_seconds: u32,
        /// Accepted without effect.
        "publicIPCacheTTLInSeconds" => pub(crate) public_ip_cache_seconds: u32,
        /// Accepted without effect.
        "nsgCacheTTLInSeconds" => pub(crate) security_group_cache_seconds: u32,
        /// Accepted without effect.
        "routeTableCacheTTLInSeconds" => pub(crate) route_table_cache_seconds: u32,
        /// Accepted without effect.
        "plsCacheTTLInSeconds" => pub(crate) private_link_cache_seconds: u32,
        /// Accepted without effect.
        "disableAPICallCache" => pub(crate) disable_cache: bool,
        /// Whether instances of scale sets are read without their instance view. Then it is not known which are switched off.
        "listVmssVirtualMachinesWithoutInstanceView" => pub(crate) without_instance_view: bool,
        /// Accepted without effect: a route is in effect when its write succeeded.
        "routeUpdateWaitingInSeconds" => pub(crate) route_wait_seconds: u32 = 30,
        /// Accepted without effect: changes of routes are written together without this wait.
        "routeUpdateIntervalInSeconds" => pub(crate) route_interval_seconds: u32 = 30,
    }
}

/// A rate limit of a client. Keys that are not set have the values of the general limit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RateLimit {
    #[serde(rename = "cloudProviderRateLimit")]
    pub(crate) enabled: Option<bool>,
    #[serde(rename = "cloudProviderRateLimitQPS")]
    pub(crate) qps: Option<f64>,
    #[serde(rename = "cloudProviderRateLimitBucket")]
    pub(crate) bucket: Option<u32>,
    #[serde(rename = "cloudProviderRateLimitQPSWrite")]
    pub(crate) qps_write: Option<f64>,
    #[serde(rename = "cloudProviderRateLimitBucketWrite")]
    pub(crate) bucket_write: Option<u32>,
}

/// One of several standard load balancers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct MultipleLoadBalancer {
    pub(crate) name: String,
    pub(crate) allow_service_placement: Option<bool>,
    #[serde(rename = "primaryVMSet")]
    pub(crate) primary_vm_set: String,
    pub(crate) service_label_selector: Option<LabelSelector>,
    pub(crate) service_namespace_selector: Option<LabelSelector>,
    pub(crate) node_selector: Option<LabelSelector>,
}

/// A label selector, as in the Kubernetes API.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LabelSelector {
    pub(crate) match_labels: BTreeMap<String, String>,
    pub(crate) match_expressions: Vec<LabelRequirement>,
}

impl CloudConf {
    /// Whether load balancers are basic ones.
    pub(crate) fn is_basic(&self) -> bool {
        self.load_balancer_sku.eq_ignore_ascii_case("basic")
    }

    /// The key and name of the scale set or availability set whose machines are members of basic load balancers. Empty: all machines.
    pub(crate) fn primary_vm_set(&self) -> (&'static str, &str) {
        if self.vm_type.eq_ignore_ascii_case("vmss") {
            ("primaryScaleSetName", self.primary_scale_set.trim())
        } else {
            ("primaryAvailabilitySetName", self.primary_availability_set.trim())
        }
    }
}

impl LabelSelector {
    /// Whether it has no requirement.
    pub(crate) fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Whether an object with these labels is selected: it has all labels and meets all requirements.
    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value.as_str());
        self.match_labels.iter().all(has)
            && self.match_expressions.iter().all(|requirement| requirement.is_met_by(labels))
    }
}

impl LabelRequirement {
    fn is_met_by(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let is_listed = || value.is_some_and(|value| self.values.iter().any(|listed| listed == value));
        match self.operator {
            LabelOperator::In => is_listed(),
            // An object without the label has no listed value.
            LabelOperator::NotIn => !is_listed(),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }

    /// Why the Kubernetes API would refuse it.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let takes_values = matches!(self.operator, LabelOperator::In | LabelOperator::NotIn);
        if self.key.is_empty() {
            Some("has no key")
        } else if takes_values && self.values.is_empty() {
            Some("needs values")
        } else if !takes_values && !self.values.is_empty() {
            Some("takes no values")
        } else {
            None
        }
    }
}

/// A requirement of a label selector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct LabelRequirement {
    pub(crate) key: String,
    pub(crate) operator: LabelOperator,
    pub(crate) values: Vec<String>,
}

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum LabelOperator {
    #[default]
    In,
    NotIn,
    Exists,
    DoesNotExist,
}
