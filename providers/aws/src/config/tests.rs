//! Valid and invalid config files of users.
#![allow(clippy::unwrap_used)]

use ccm_core::{ErrorKind, Result, config::Problem, testkit};
use tempfile::TempDir;

use super::*;

/// A config file with this text. The file exists as long as the directory value.
fn file(text: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cloud.conf");
    std::fs::write(&path, text).unwrap();
    (directory, path)
}

fn loaded(text: &str, env: &Environment) -> Result<(Config, Vec<Problem>)> {
    let (_folder, context) = testkit::context(text, env.clone());
    let parsed = load(&context, &mut ConfigFiles::default())?;
    Ok((parsed.value, parsed.warnings))
}

fn good(text: &str) -> Config {
    let (config, warnings) = loaded(text, &Environment::default()).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    config
}

/// The error lines, each without the file's name.
fn errors(text: &str) -> Vec<String> {
    let error = loaded(text, &Environment::default()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let lines = error.message().lines();
    let without_name = |line: &str| line.rsplit("cloud.conf:").next().unwrap_or_default().to_owned();
    lines.map(without_name).collect()
}

#[test]
fn every_key_of_the_go_cloud_controller_is_read() {
    let settings = good(
        r#"
[global]
zone = us-west-2-lax-1a
Region = ignored
VPC = vpc-1
SubnetID = subnet-1
RouteTableID = rtb-1
RoleARN = arn:aws-cn:iam::123456789012:role/path/ccm
SourceARN = arn:aws-cn:eks:cn-north-1:123456789012:cluster/a
KubernetesClusterTag = a
KubernetesClusterID = a
DisableSecurityGroupIngress
ElbSecurityGroup = sg-1
NodeIPFamilies = ipv6
NodeIPFamilies = ipv4
NodeIPFamilies = ipv6
ClusterServiceLoadBalancerHealthProbeMode = Shared
ClusterServiceSharedLoadBalancerHealthProbePort = 0x1000
ClusterServiceSharedLoadBalancerHealthProbePath = /ready
SupportedTopologyInstanceTypePattern = ^m5
NLBSecurityGroupMode = Managed
DefaultLoadBalancerType = nlb
[ServiceOverride "1"]
Service = "EC2      "
Region = us-west-2
URL = https://ec2.example
SigningRegion = us-east-1
SigningMethod = v4
SigningName = other
[Quota]
ec2-read-burst = 7
"#,
    );
    let connection = &settings.connection;
    assert_eq!(connection.region.as_deref(), Some("us-west-2"));
    let role = connection.role.as_ref().unwrap();
    let role = (role.account.as_str(), role.source_arn.is_some());
    assert_eq!(role, ("123456789012", true));
    let endpoint = Endpoint {
        service: Service::Ec2,
        region: Some("us-west-2".into()),
        url: "https://ec2.example".into(),
        signing_region: "us-east-1".into(),
        signing_name: Some("other".into()),
    };
    assert_eq!(connection.endpoints, [endpoint]);
    assert_eq!(settings.vpc.as_deref(), Some("vpc-1"));
    assert_eq!(settings.subnet.as_deref(), Some("subnet-1"));
    let (id, legacy) = ("a".to_owned(), true);
    assert_eq!(settings.cluster, Cluster { id, legacy });
    assert_eq!(settings.families, [IpFamily::V6, IpFamily::V4]);
    assert!(settings.topology_types.unwrap().is_match("m5.large"));
    assert_eq!(settings.route_table.as_deref(), Some("rtb-1"));
    let balancing = &settings.load_balancing;
    let probe = SharedProbe {
        port: 4096,
        path: "/ready".into(),
    };
    assert_eq!(balancing.shared_probe, Some(probe));
    assert_eq!(balancing.elb_security_group.as_deref(), Some("sg-1"));
    assert!(balancing.disable_security_group_ingress && balancing.managed_security_groups);
    assert_eq!(balancing.default_type, Flavor::Network);
    assert_eq!(settings.conf.quota.ec2_read.burst, 7);
}

#[test]
fn without_a_file_everything_has_its_default() {
    let context = BuildContext {
        environment: Environment::default().with("AWS_DEFAULT_REGION", "eu-west-1"),
        ..BuildContext::default()
    };
    let parsed = load(&context, &mut ConfigFiles::default()).unwrap();
    let settings = parsed.value;
    assert_eq!(settings.connection.region.as_deref(), Some("eu-west-1"));
    assert_eq!(settings.families, [IpFamily::V4]);
    assert_eq!(settings.load_balancing.shared_probe, None);
    assert_eq!(settings.load_balancing.default_type, Flavor::Classic);
    let types = settings.topology_types.unwrap();
    for kind in [
        "p4d.24xlarge",
        "p6e-gb200.36xlarge",
        "hpc7a.96xlarge",
        "trn2u.48xlarge",
    ] {
        assert!(types.is_match(kind), "{kind}");
    }
    for kind in ["inf2.xlarge", "m5.large", "t3.small", "c3.large"] {
        assert!(!types.is_match(kind), "{kind}");
    }
}

#[test]
fn the_region_of_a_zone_is_letters_and_the_first_digits() {
    for (zone, region) in [
        ("us-west-2a", Some("us-west-2")),
        ("us-west-2-lax-1a", Some("us-west-2")),
        ("ap-northeast-2a", Some("ap-northeast-2")),
        ("us-gov-east-1a", Some("us-gov-east-1")),
        ("us-iso-east-1a", Some("us-iso-east-1")),
        ("us-isob-east-1a", Some("us-isob-east-1")),
        ("useast", None),
        ("us-", None),
        ("2a", None),
        ("", None),
    ] {
        assert_eq!(region_of_zone(zone).as_deref(), region, "{zone}");
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let errors = errors(
        "[Global]\nZone = nowhere\nVPC = 1\nRouteTableID = r\nRoleARN = ccm\nKubernetesClusterTag = a\n\
         KubernetesClusterID = b\n\nClusterServiceSharedLoadBalancerHealthProbePort = 70000\n\n\
         SupportedTopologyInstanceTypePattern = (\nDefaultLoadBalancerType = alb\n[Quota]\nelb-read-burst = 0\n\
         [ServiceOverride \"1\"]\nService = EC2\n",
    );
    let expected = [
        "2:8: [Global] Zone: \"nowhere\" is not an availability zone; write one such as us-west-2a",
        "3:7: [Global] VPC: \"1\" is not an id; write one that begins with vpc-",
        "4:16: [Global] RouteTableID: \"r\" is not an id",
        "5:11: [Global] RoleARN: \"ccm\" is not the ARN of a role",
        "7:23: [Global] KubernetesClusterID: \"b\" differs from KubernetesClusterTag \"a\"",
        "9:51: [Global] ClusterServiceSharedLoadBalancerHealthProbePort: 70000 is not a port",
        "11:40: [Global] SupportedTopologyInstanceTypePattern: \"(\" is not a regular expression",
        "12:27: [Global] DefaultLoadBalancerType: \"alb\" is not supported; write classic or nlb or none",
        "14:18: [Quota] elb-read-burst: must be between 1 and 100000; the default is 40",
        "15:18: [ServiceOverride \"1\"] Region: is required",
        "15:18: [ServiceOverride \"1\"] URL: is required",
        "15:18: [ServiceOverride \"1\"] SigningRegion: is required",
    ];
    for part in expected {
        let found = errors.iter().any(|error| {
            let (place, text) = part.split_once(": ").unwrap();
            error.contains(text) && error.starts_with(place.split(':').next().unwrap())
        });
        assert!(found, "{part} is not in {errors:#?}");
    }
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
}

#[test]
fn an_empty_address_family_is_no_family() {
    let env = Environment::default().with("AWS_REGION", "us-west-2");
    for (keys, families, keeps_addresses, lines) in [
        ("NodeIPFamilies =\nNodeIPFamilies = \"\"", vec![IpFamily::V4], true, vec![2, 3, 3]),
        ("NodeIPFamilies =\nNodeIPFamilies = ipv6", vec![IpFamily::V6], false, vec![2]),
        ("NodeIPFamilies", vec![IpFamily::V4], false, vec![]),
    ] {
        let (config, warnings) = loaded(&format!("[Global]\n{keys}\n"), &env).unwrap();
        assert_eq!(config.families, families, "{keys}");
        assert_eq!(config.keeps_node_addresses, keeps_addresses, "{keys}");
        let shown: Vec<_> = warnings.iter().filter_map(Problem::line).collect();
        assert_eq!(shown, lines, "{keys}: {warnings:?}");
    }
}

#[test]
fn with_an_unknown_mode_the_program_starts_and_creates_no_network_load_balancer() {
    let env = Environment::default().with("AWS_REGION", "us-west-2");
    let text =
        "[Global]\nNLBSecurityGroupMode = Disabled\nClusterServiceLoadBalancerHealthProbeMode = shared\n";
    let (config, warnings) = loaded(text, &env).unwrap();
    let balancing = config.load_balancing;
    assert!(!balancing.managed_security_groups && balancing.keeps_health_checks);
    assert_eq!(balancing.shared_probe, None);
    let mut warnings: Vec<_> = warnings.iter().map(Problem::to_string).collect();
    warnings.sort();
    let expected = [
        "NLBSecurityGroupMode: \"Disabled\" is not supported; write Managed; until then, no network load balancer is created",
        "ClusterServiceLoadBalancerHealthProbeMode: \"shared\" is not supported; write ServiceNodePort or Shared; until then, no",
    ];
    assert_eq!(warnings.len(), expected.len(), "{warnings:#?}");
    for (warning, part) in warnings.iter().zip(expected) {
        assert!(warning.contains(part), "{warning} without {part}");
    }
    assert_eq!(balancing.unsupported_modes.len(), 2);
}

#[test]
fn suspicious_values_are_warnings() {
    let text = "[Global]\nNodeIPFamilies = ipv5\nSourceARN = arn:x\nVpcId = vpc-1\n[ServiceOverride \"1\"]\n\
                Service = s3\nRegion = r\nURL = http://x\nSigningRegion = r\n[ServiceOverride \"2\"]\n\
                Service = EC2\nRegion = us-west2\nURL = http://x\nSigningRegion = r\n[ServiceOverride \"3\"]\n\
                Service = elb\nRegion = us-west2\nURL = http://x\nSigningRegion = r\n";
    let env = Environment::default().with("AWS_REGION", "us-west-2");
    let (config, warnings) = loaded(text, &env).unwrap();
    assert_eq!(config.families, [IpFamily::V4]);
    let warnings: Vec<_> = warnings.iter().map(Problem::message).collect();
    for part in [
        "\"ipv5\" is neither",
        "no effect without RoleARN",
        "unknown key",
        "\"s3\" is not a supported API",
        "no entry has the region us-west-2",
        "the Go cloud-controller-manager ignores an entry for \"elb\", and here it applies to Elastic Load Balancing; to keep the \
         endpoint of AWS, remove the entry",
    ] {
        let is_reported = warnings.iter().any(|warning| warning.contains(part));
        assert!(is_reported, "{part} is not in {warnings:#?}");
    }
}

fn overrides(entries: &[(&str, &str)]) -> String {
    let entry = |(at, (service, region)): (usize, &(&str, &str))| {
        let url = format!("URL=http://{at}\nSigningRegion=r");
        format!("[ServiceOverride \"{at}\"]\nService={service}\nRegion={region}\n{url}\n")
    };
    entries.iter().enumerate().map(entry).collect()
}

#[test]
fn endpoints_are_chosen_by_api_and_region() {
    let text = overrides(&[
        ("Elastic Load Balancing", "one"),
        ("ec2", "one"),
        ("EC2", "two"),
        ("ec2imds", "anywhere"),
    ]);
    let (config, _) = loaded(&text, &Environment::default()).unwrap();
    let connection = config.connection;
    let url = |service, region| Some(connection.endpoint(service, region)?.url.as_str());
    assert_eq!(url(Service::Ec2, "one"), Some("http://1"));
    assert_eq!(url(Service::Ec2, "two"), Some("http://2"));
    assert_eq!(url(Service::Ec2, "three"), None);
    // Both generations have one endpoint.
    assert_eq!(url(Service::ElbV2, "one"), Some("http://0"));
    assert_eq!(url(Service::ElbV2, "two"), None);
    assert_eq!(url(Service::Metadata, "one"), Some("http://3"));
    let twice = errors(&overrides(&[("s3", "one"), ("s3", "one")]));
    let second = "a second entry for \"s3\" in region \"one\"";
    assert!(twice[0].contains(second), "{twice:?}");
    // The Go cloud-controller-manager accepts these, and ignores short names.
    for (entries, url) in [
        ([("ec2", "one"), ("EC2", "one")], "http://1"),
        ([("EC2", "one"), ("ec2", "one")], "http://0"),
        ([("ec2imds", "one"), ("ec2imds", "two")], "http://1"),
    ] {
        let (config, warnings) = loaded(&overrides(&entries), &Environment::default()).unwrap();
        let urls = config.connection.endpoints.iter().map(|one| one.url.as_str());
        assert_eq!(urls.collect::<Vec<_>>(), [url]);
        let is_reported = warnings.iter().any(|warning| warning.message().contains("a second entry for "));
        assert!(is_reported, "{warnings:?}");
    }
}

#[test]
fn every_wrong_variable_and_url_is_reported_without_its_value() {
    let text =
        "[Global]\n[ServiceOverride \"1\"]\nService=ec2\nRegion=r\nSigningRegion=r\nURL=u:hunter2@ec2\n";
    let env = Environment::default()
        .with("AWS_CA_BUNDLE", "/nope")
        .with("AWS_ENDPOINT_URL", "htp://u:hunter2@h")
        .with("AWS_ENDPOINT_URL_EC2", "http://127.0.0.1:99999")
        .with("HTTPS_PROXY", "http://u:hunter2@127.0.0.1:x");
    let error = loaded(text, &env).map(drop).unwrap_err();
    let message = error.message();
    for part in [
        "cloud.conf:6:5: [ServiceOverride \"1\"] URL: not a URL",
        "cloud.conf: AWS_CA_BUNDLE: could not read \"/nope\"",
        "cloud.conf: AWS_ENDPOINT_URL: not a URL",
        "cloud.conf: AWS_ENDPOINT_URL_EC2: not a URL",
        "cloud.conf: HTTPS_PROXY: not a URL",
    ] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn proxies_are_read_and_never_printed() {
    let env = |url: &str| Environment::default().with("https_proxy", url);
    let (config, _) = loaded("", &env("user:secret@proxy:3128")).unwrap();
    let proxy = config.connection.proxy();
    let url = http_url("http://user:secret@proxy:3128");
    assert_eq!(proxy, Some(("https_proxy", url)));
    assert!(!format!("{config:?}").contains("secret"));
    let error = loaded("", &env("http://user:secret@ x")).map(drop).unwrap_err();
    let message = error.message();
    assert!(message.contains("https_proxy") && !message.contains("secret"), "{message}");
}

#[test]
fn a_ca_bundle_must_be_valid_pem() {
    let (_directory, path) = file("no certificates");
    for (path, text) in [
        (path.to_str().unwrap(), "is not a PEM bundle"),
        ("/no/such/file", "could not read"),
    ] {
        let env = Environment::default().with("AWS_CA_BUNDLE", path);
        let error = loaded("", &env).map(drop).unwrap_err();
        assert!(error.message().contains(text), "{error}");
    }
}

#[test]
fn only_credentials_endpoints_and_quotas_change_without_a_restart() {
    let (_directory, credentials) = file("[default]");
    let env = Environment::default().with("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap());
    let read = |text: &str| loaded(text, &env).unwrap().0;
    let old = read("[Global]\nVPC = vpc-1");
    let role = "RoleARN = arn:aws:iam::1:role/a";
    let endpoints = overrides(&[("ec2", "one")]);
    let changes = old.changes(&read(&format!("[Global]\nvpc=vpc-1\n{role}\n{endpoints}")));
    assert!(changes.reconnect && changes.restart.is_empty());
    assert_eq!(changes.live[0], "[Global] RoleARN");
    let changes = old.changes(&read("[Global]\nVPC=vpc-2\n[Quota]\nec2-write-burst=1"));
    assert_eq!(changes.live, ["[Quota] ec2-write-burst"]);
    assert!(!changes.reconnect);
    assert_eq!(changes.restart, ["[Global] VPC"]);
    std::fs::write(&credentials, "[default]\naws_access_key_id = other").unwrap();
    let changes = old.changes(&read("[Global]\nVPC=vpc-1"));
    assert_eq!(changes.live, ["file of AWS_SHARED_CREDENTIALS_FILE"]);
    assert!(changes.reconnect);
}
