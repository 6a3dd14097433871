#![allow(clippy::unwrap_used)]

use ccm_core::{Environment, ErrorKind, testkit};
use tempfile::TempDir;

use super::*;

/// A config with these further lines, in the flow style of YAML or not.
pub(crate) fn context(more: &str) -> (TempDir, BuildContext) {
    context_in(more, Environment::default())
}

const BASE: &str = "tenantId: t\nsubscriptionId: S\nresourceGroup: My-Group\nlocation: West Europe\n";
const SECRET: &str = "aadClientId: c\naadClientSecret: hush\n";

fn context_in(more: &str, environment: Environment) -> (TempDir, BuildContext) {
    testkit::context(&format!("{BASE}{SECRET}{more}\n"), environment)
}

fn read(more: &str) -> Result<Parsed<Settings>, LoadError> {
    let (_folder, context) = context(more);
    load(&context, &mut ConfigFiles::default())
}

fn settings(more: &str) -> Settings {
    read(more).unwrap().value
}

/// The errors, one a line.
fn errors(conf: &str, environment: Environment) -> Vec<String> {
    let (_folder, context) = testkit::context(conf, environment);
    match load(&context, &mut ConfigFiles::default()) {
        Err(LoadError::Content(errors)) => errors.problems().iter().map(ToString::to_string).collect(),
        Err(LoadError::File(error)) => vec![error.report()],
        Ok(_) => Vec::new(),
    }
}

#[test]
fn json_and_keys_in_any_case_are_read() {
    let conf = format!(
        r#"{{"TENANTID": "t", "subscriptionID": "s", "resourcegroup": "RG", "Location": "eastus", "aadclientid": "c",
            "aadClientSecret": "x", "vmtype": "VMSS", "RouteUpdateIntervalInSeconds": 5, "cloudProviderRatelimit": true,
            "{}": 30}}"#,
        "nodeInstanceNotFoundGracePeriodInSeconds"
    );
    let (_folder, context) = testkit::context(&conf, Environment::default());
    let parsed = load(&context, &mut ConfigFiles::default()).unwrap();
    assert!(parsed.warnings.is_empty(), "{:?}", parsed.warnings);
    let settings = parsed.value;
    assert_eq!((settings.resource_group.as_str(), settings.location.as_str()), ("rg", "eastus"));
    assert_eq!(settings.conf.route_interval_seconds, 5);
    assert_eq!(settings.conf.not_found_grace_seconds, 30);
    assert!(settings.rate_limits.of("routeTableRateLimit").is_some());
}

#[test]
fn a_key_in_two_spellings_is_refused() {
    let error = errors(&format!("{BASE}{SECRET}Location: eastus\n"), Environment::default());
    assert_eq!(error.len(), 1, "{error:?}");
    assert!(
        error[0].contains(":7:1: Location: given twice in different spellings, first in line 4"),
        "{error:?}"
    );
    // The same spelling is only a warning, as for other clouds.
    assert_eq!(read("tags: a=b\ntags: c=d").unwrap().warnings.len(), 1);
}

#[test]
fn labels_that_differ_in_case_are_two_labels() {
    let multiple = "loadBalancerBackendPoolConfigurationType: nodeIP\nmultipleStandardLoadBalancerConfigurations:\n- name: a\n  \
                    primaryVMSet: x\n  nodeSelector: {matchLabels: {app: a, App: b}}\n";
    let all = settings(multiple).conf.multiple_load_balancers;
    assert_eq!(all[0].node_selector.as_ref().unwrap().match_labels.len(), 2);
    let twice = "multipleStandardLoadBalancerConfigurations:\n- {name: a, primaryVMSet: x}\n- {name: A}\n";
    let errors = errors(&format!("{BASE}{SECRET}{twice}"), Environment::default());
    assert_eq!(errors.len(), 1, "{errors:?}");
    for part in [
        "[1].name \"A\" is given twice",
        "[1].primaryVMSet is missing",
        "nodeIP",
    ] {
        assert!(errors[0].contains(part), "{part} is not in {errors:?}");
    }
}

#[test]
fn several_load_balancers_are_validated() {
    let entry = |more: &str| {
        format!("multipleStandardLoadBalancerConfigurations:\n- {{name: a, primaryVMSet: x, {more}}}\n")
    };
    let errors_of = |conf: &str| errors(&format!("{BASE}{SECRET}{conf}"), Environment::default()).join("\n");
    let wrong = entry("allowServicePlacement: false").replace("name: a", "name: a-internal");
    let errors = format!(
        "{}{}{}",
        errors_of(&format!("loadBalancerSku: basic\n{wrong}")),
        errors_of(&entry(
            "nodeSelector: {matchExpressions: [{key: pool, operator: In}, {operator: Exists}]}"
        )),
        errors_of(&entry(
            "serviceLabelSelector: {matchExpressions: [{key: tier, operator: Exists, values: [a]}]}"
        )),
    );
    for part in [
        "[0].name \"a-internal\" ends with -internal",
        "[0].nodeSelector.matchExpressions[0] needs values",
        "[0].nodeSelector.matchExpressions[1] has no key",
        "[0].serviceLabelSelector.matchExpressions[0] takes no values",
        "allowServicePlacement is false in all entries",
        "it needs loadBalancerSku standard",
        "it needs loadBalancerBackendPoolConfigurationType nodeIP",
    ] {
        assert!(errors.contains(part), "{part} is not in {errors}");
    }
}

#[test]
fn basic_load_balancers_are_those_of_azure_stack() {
    const STACK: &str =
        "cloud: AzureStackCloud\nresourceManagerEndpoint: https://a\nloadBalancerSku: Basic\n";
    let stack = read(&format!("{STACK}primaryScaleSetName: pool")).unwrap();
    assert!(stack.warnings.is_empty(), "{:?}", stack.warnings);
    assert_eq!(stack.value.conf.primary_vm_set(), ("primaryScaleSetName", "pool"));
    // Without a primary set, all machines may be members.
    let warnings = read(&format!("{STACK}vmType: standard")).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].to_string().contains("primaryAvailabilitySetName"), "{warnings:?}");
    let wrong =
        "loadBalancerBackendPoolConfigurationType: nodeIP\nvmType: vmssflex\ndisableOutboundSNAT: true\n";
    for (cloud, is_refused) in [
        ("loadBalancerSku: basic\n", true),
        (&*format!("{STACK}disableAzureStackCloud: true\n"), true),
        (STACK, false),
    ] {
        let found = errors(&format!("{BASE}{SECRET}{cloud}{wrong}"), Environment::default());
        assert_eq!(found.len(), 3 + usize::from(is_refused), "{found:#?}");
        let has = |part: &str| found.iter().any(|error| error.contains(part));
        assert_eq!(has("loadBalancerSku: Azure has retired basic load balancers"), is_refused, "{found:#?}");
        for part in [
            "loadBalancerBackendPoolConfigurationType: nodeIP needs loadBalancerSku standard",
            "vmType: vmssflex needs loadBalancerSku standard",
            "disableOutboundSNAT: needs loadBalancerSku standard",
        ] {
            assert!(has(part), "{part} is not in {found:#?}");
        }
    }
}

#[test]
fn all_problems_are_reported_at_once_with_their_places() {
    let conf = "cloud: AzureGermany\nvmType: vmss\nputVMSSVMBatchSize: many\nmultipleStandardLoadBalancerConfigurations:\n\
                - name: a\n  primaryVMSet: {}\nloadBalancerSku: gold\nserviceGatewayEnabled: true\n";
    let errors = errors(conf, Environment::default());
    for part in [
        ":1:",
        "cloud: \"AzureGermany\" is not a known cloud",
        "putVMSSVMBatchSize",
        "multipleStandardLoadBalancerConfigurations[0].primaryVMSet",
        "loadBalancerSku: \"gold\" is not one of standard, basic, service",
        "serviceGatewayEnabled: ServiceGateway mode is not supported",
        "subscriptionId: missing",
        "resourceGroup: missing",
        "location: missing",
        "no credentials; write aadClientId and aadClientSecret",
    ] {
        assert!(errors.iter().any(|error| error.contains(part)), "{part} is not in {errors:#?}");
    }
}

#[test]
fn missing_files_and_unsupported_credentials_are_errors() {
    let context = BuildContext::default();
    let Err(LoadError::File(error)) = load(&context, &mut ConfigFiles::default()) else {
        panic!("no error");
    };
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    for (more, part) in [
        ("aadClientId: c\naadClientCertPath: no/such/file", "could not read no/such/file"),
        ("aadMSIDataPlaneIdentityPath: /x", "hosted control planes are not supported"),
        ("aadClientSecret: x", "missing; set aadClientId"),
        (
            "useFederatedWorkloadIdentityExtension: true\naadClientId: c",
            "missing; set aadFederatedTokenFile",
        ),
        (
            "useManagedIdentityExtension: true\nnetworkResourceTenantID: other",
            "need a service principal",
        ),
    ] {
        let errors = errors(&format!("{BASE}{more}\n"), Environment::default());
        assert!(errors.iter().any(|error| error.contains(part)), "{part} is not in {errors:#?}");
    }
}

#[test]
fn the_first_credential_in_the_order_of_the_go_program_counts() {
    let of = |more: &str, environment: Environment| {
        let (_folder, context) = context_in(more, environment);
        load(&context, &mut ConfigFiles::default()).unwrap().value.credential
    };
    let none = Environment::default;
    assert!(matches!(of("", none()), Credential::Secret { .. }));
    let user = of("useManagedIdentityExtension: true\nuserAssignedIdentityID: /Subscriptions/x", none());
    assert!(matches!(
        user,
        Credential::Managed {
            identity: Identity::Resource(_),
            app_service: None
        }
    ));
    let service = none().with("IDENTITY_ENDPOINT", "http://127.0.0.1:1/msi").with("IDENTITY_HEADER", "x");
    let service = of("useManagedIdentityExtension: true\nuserAssignedIdentityID: id", service);
    assert!(matches!(
        service,
        Credential::Managed {
            identity: Identity::Client(_),
            app_service: Some(_)
        }
    ));
    // The webhook of workload identities sets these variables.
    let webhook = none()
        .with("AZURE_FEDERATED_TOKEN_FILE", "/token")
        .with("AZURE_TENANT_ID", "tenant")
        .with("AZURE_CLIENT_ID", "client");
    match of("useManagedIdentityExtension: true", webhook) {
        Credential::Workload { tenant, client, file } => {
            assert_eq!((tenant.as_str(), client.as_str(), file), ("tenant", "client", "/token".into()));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn endpoints_of_the_clouds() {
    for (cloud, host) in [
        ("azurepubliccloud", "management.azure.com"),
        ("AzureCloud", "management.azure.com"),
        ("AZURECHINACLOUD", "management.chinacloudapi.cn"),
        ("AzureUSGovernmentCloud", "management.usgovcloudapi.net"),
    ] {
        match settings(&format!("cloud: {cloud}")).endpoints {
            EndpointSource::Known(endpoints) => assert_eq!(endpoints.manager.host_str(), Some(host)),
            other @ EndpointSource::Discovery(..) => panic!("{other:?}"),
        }
    }
    let stack = settings("cloud: AzureStackCloud\nresourceManagerEndpoint: https://management.local");
    assert!(matches!(stack.endpoints, EndpointSource::Discovery(..)));
    assert!(stack.is_azure_stack && !stack.has_zones);
    let public =
        settings("cloud: AzureStackCloud\ndisableAzureStackCloud: true\nresourceManagerEndpoint: https://a");
    assert!(!public.is_azure_stack && public.has_zones);
}

#[test]
fn network_resources_can_be_in_another_subscription_and_tenant() {
    let own = settings("networkResourceSubscriptionID: s");
    assert!(!own.has_network_subscription());
    let other = settings("networkResourceSubscriptionID: n\nnetworkResourceTenantID: other");
    assert_eq!(other.network_subscription, "n");
    match other.network_credential.unwrap() {
        Credential::Secret { tenant, client, .. } => {
            assert_eq!((tenant.as_str(), client.as_str()), ("other", "c"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn rate_limits_are_read_in_both_forms() {
    let limit = |more: &str, key: &str| {
        settings(more).rate_limits.of(key).map(|limit| (limit.reads.rate, limit.reads.burst))
    };
    let general =
        "cloudProviderRateLimit: true\ncloudProviderRateLimitQPS: 3\ncloudProviderRateLimitBucket: 10\n";
    assert_eq!(limit("", "routeTableRateLimit"), None);
    assert_eq!(limit(general, "routeTableRateLimit"), Some((3.0, 10)));
    // The Go program's limiter of zero admits nothing.
    assert_eq!(limit("cloudProviderRateLimit: true", "interfaceRateLimit"), Some((1.0, 5)));
    let key = format!("{general}routeTableRateLimit: {{cloudProviderRateLimitQPS: 7}}");
    assert_eq!(limit(&key, "routeTableRateLimit"), Some((7.0, 10)));
    assert_eq!(limit(&key, "interfaceRateLimit"), Some((3.0, 10)));
    for name in ["routeTableRateLimit", "RouteTable"] {
        let entries =
            format!("entries: {{{name}: {{cloudProviderRateLimit: true, cloudProviderRateLimitQPS: 7}}}}");
        assert_eq!(limit(&entries, "routeTableRateLimit"), Some((7.0, 5)), "{name}");
        assert_eq!(limit(&entries, "interfaceRateLimit"), None);
    }
    let off = format!("{general}routeTableRateLimit: {{cloudProviderRateLimit: false}}");
    assert_eq!(limit(&off, "routeTableRateLimit"), None);
}

#[test]
fn backoff_keys_reach_the_calls() {
    assert_eq!(settings("cloudProviderBackoffRetries: 9").retry, RetryPolicy::default());
    let retry = settings(
        "cloudProviderBackoff: true\ncloudProviderBackoffRetries: 9\ncloudProviderBackoffDuration: 2",
    )
    .retry;
    assert_eq!((retry.max_attempts, retry.initial), (9, Duration::from_secs(2)));
}

#[test]
fn kinds_of_machines() {
    let kinds = |more: &str| {
        let kinds = settings(more).machine_kinds;
        (kinds.machines, kinds.instances)
    };
    assert_eq!(kinds(""), (true, true));
    assert_eq!(kinds("vmType: standard"), (true, false));
    assert_eq!(kinds("vmType: vmssflex"), (true, false));
    assert_eq!(kinds("disableAvailabilitySetNodes: true"), (false, true));
    assert_eq!(kinds("disableAvailabilitySetNodes: true\nenableVmssFlexNodes: true"), (true, true));
    assert_eq!(read("vmType: something").unwrap().warnings.len(), 1);
}

#[test]
fn each_malformed_key_is_an_error_with_its_name() {
    let keys = CloudConf::keys();
    assert!(keys.len() > 100, "{}", keys.len());
    // All of them at once, and each one.
    let mut all = String::new();
    for key in &keys {
        let line = format!("{}: [[7]]\n", key.name);
        let found = errors(&line, Environment::default());
        assert!(found.iter().any(|error| error.contains(key.name)), "{} is not in {found:#?}", key.name);
        all.push_str(&line);
    }
    let found = errors(&all, Environment::default());
    for key in keys {
        // An item of a list has its place behind the key.
        let named = [": ", "["].map(|end| format!(" {}{end}", key.name));
        let names_key = |error: &String| named.iter().any(|named| error.contains(named));
        assert!(found.iter().any(names_key), "{} is not in {found:#?}", key.name);
    }
}
