#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use super::*;

mod manifests;
mod migration;
mod plan;
mod providers;
mod upstream;
mod validate;

const ACME: Provider = Provider::new("acme", "Acme Cloud", |_| {
    Box::pin(async { Err(ccm_core::Error::new(ccm_core::ErrorKind::Unsupported, "never built")) })
});

fn parse_words(words: &[&str]) -> Result<Request, Vec<OptionError>> {
    parse(words.iter().map(OsString::from), &[&ACME])
}

fn config(words: &[&str]) -> Config {
    let words = [&["--cloud-provider=acme"], words].concat();
    match parse_words(&words) {
        Ok(Request::Run(config)) => *config,
        other => panic!("{words:?}: {other:?}"),
    }
}

fn errors(words: &[&str]) -> Vec<String> {
    parse_words(words).unwrap_err().iter().map(ToString::to_string).collect()
}

fn printed(words: &[&str]) -> String {
    match parse_words(words) {
        Ok(Request::Print(text)) => text,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn the_definition_of_the_flags_is_sound() {
    command(&[&ACME]).debug_assert();
}

#[test]
fn defaults_are_those_of_the_help() {
    let config = config(&[]);
    assert_eq!(config.provider.name, "acme");
    assert_eq!(config.cloud_config, None);
    assert_eq!(config.cluster_name, "kubernetes");
    assert_eq!(config.api_server.limit, None);
    assert_eq!(config.node.status_update_frequency, Duration::from_secs(300));
    assert_eq!(config.node.concurrent_syncs.get(), 32);
    assert_eq!(config.node.concurrent_status_updates.get(), 32);
    assert!(!config.node.refresh_topology_labels);
    assert_eq!(config.shutdown_drain, Duration::from_secs(20));
    assert_eq!(config.lifecycle.monitor_period, Duration::from_secs(5));
    assert_eq!(config.lifecycle.deletion_grace, None);
    assert_eq!(config.lifecycle.deletion_confirm, Duration::from_secs(10));
    assert!((config.lifecycle.deletion_share - 0.25).abs() < 1e-9);
    assert!(config.controllers.disabled.is_empty());
    assert_eq!(
        config.election,
        Some(ElectionConfig {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            name: "cloud-controller-manager".to_owned(),
            namespace: "kube-system".to_owned(),
            migration: None,
        })
    );
    let serving = config.serving.unwrap();
    assert_eq!(serving.address.to_string(), "0.0.0.0:10258");
    assert_eq!(serving.certificate, Certificate::InMemory);
    assert_eq!(serving.tls, TlsConfig::default());
    assert_eq!(serving.named_certificates, []);
    assert_eq!(serving.http2_max_streams, Some(32));
    assert!(!serving.share_port);
    assert_eq!(serving.access.open_paths, ["/healthz", "/readyz", "/livez"]);
    assert_eq!(
        config.logging,
        LoggingConfig {
            verbosity: 0,
            modules: Vec::new(),
            format: OutputFormat::Text
        }
    );
    assert_eq!(config.user_agent, format!("cloud-controller-manager/{}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn values_arrive_in_the_config() {
    let config = config(&[
        "--cloud-config=/etc/cloud.conf",
        "--kubeconfig",
        "/root/admin.conf",
        "--master=10.0.0.1:6443",
        "--kube-api-qps=7.5",
        "--concurrent-node-syncs=3",
        "--concurrent-node-status-updates=2",
        "--refresh-topology-labels",
        "--bind_address=::1",
        "--secure-port=443",
        "--tls-cert-file=a.crt",
        "--tls-private-key-file=a.key",
        "--logging-format=json",
        "-v4",
        "--vmodule=refresh=6,",
        "--shutdown-drain=0",
    ]);
    assert_eq!(config.cloud_config.unwrap().to_str(), Some("/etc/cloud.conf"));
    assert_eq!(config.api_server.kubeconfig.unwrap().to_str(), Some("/root/admin.conf"));
    assert_eq!(config.api_server.master.as_deref(), Some("10.0.0.1:6443"));
    assert_eq!(config.api_server.limit, Some(ClientLimit { qps: 7.5, burst: 30 }));
    assert_eq!(config.node.concurrent_syncs.get(), 3);
    assert_eq!(config.node.concurrent_status_updates.get(), 2);
    assert!(config.node.refresh_topology_labels);
    let serving = config.serving.unwrap();
    assert_eq!(serving.address.to_string(), "[::1]:443");
    assert_eq!(
        serving.certificate,
        Certificate::Files(CertificateFiles {
            certificate: "a.crt".into(),
            key: "a.key".into()
        })
    );
    assert_eq!(
        config.logging,
        LoggingConfig {
            verbosity: 4,
            modules: vec![ModuleVerbosity {
                pattern: "refresh".to_owned(),
                verbosity: 6
            }],
            format: OutputFormat::Json
        }
    );
    assert_eq!(config.shutdown_drain, Duration::ZERO);
}

#[test]
fn lifecycle_and_election_arrive_in_the_config() {
    let config = config(&[
        "--node-monitor-period=1s",
        "--node-deletion-grace=0",
        "--node-deletion-confirm=1m",
        "--node-deletion-share=10%",
        "--leader-elect-lease-duration=137s",
        "--leader-elect-renew-deadline=107s",
        "--leader-elect-retry-period=26s",
        "--leader-elect-resource-name=a.b-c",
        "--leader-elect-resource-namespace=d",
    ]);
    assert_eq!(config.lifecycle.monitor_period, Duration::from_secs(1));
    assert_eq!(config.lifecycle.deletion_grace, Some(Duration::ZERO));
    assert_eq!(config.lifecycle.deletion_confirm, Duration::from_secs(60));
    assert!((config.lifecycle.deletion_share - 0.1).abs() < 1e-9);
    assert_eq!(
        config.election,
        Some(ElectionConfig {
            lease_duration: Duration::from_secs(137),
            renew_deadline: Duration::from_secs(107),
            retry_period: Duration::from_secs(26),
            name: "a.b-c".to_owned(),
            namespace: "d".to_owned(),
            migration: None,
        })
    );
}

#[test]
fn flags_of_services_arrive_in_the_config() {
    let service = config(&[]).service;
    assert_eq!(service.concurrent_syncs.get(), 8);
    assert_eq!(service.drift_period, Some(Duration::from_secs(3600)));
    let service = config(&["--concurrent-service-syncs=3", "--service-drift-period=0"]).service;
    assert_eq!((service.concurrent_syncs.get(), service.drift_period), (3, None));
    assert!(config(&["--controllers=service"]).controllers.is_enabled("service-lb-controller"));
}

#[test]
fn election_timing_is_checked_before_the_start() {
    let all = |words: &[&str]| errors(&[&["--cloud-provider=acme"], words].concat());
    for (words, parts) in [
        (
            &["--leader-elect-lease-duration=10s"][..],
            &["leaseDuration must be greater than renewDeadline"][..],
        ),
        // 2s times 1.2 is not less than 2.4s.
        (
            &["--leader-elect-renew-deadline=2400ms"],
            &["renewDeadline must be greater than retryPeriod*JitterFactor"],
        ),
        (
            &[
                "--leader-elect-lease-duration=0",
                "--leader-elect-renew-deadline=0",
                "--leader-elect-retry-period=0",
            ],
            &[
                "leaseDuration must be greater than zero",
                "renewDeadline must be greater than zero",
                "retryPeriod must be greater than zero",
            ],
        ),
        (
            &[
                "--leader-elect-lease-duration=900ms",
                "--leader-elect-renew-deadline=500ms",
                "--leader-elect-retry-period=100ms",
            ],
            &["at least 1s"],
        ),
        (
            &[
                "--leader-elect-resource-lock=endpoints",
                "--leader-elect-resource-name=",
                "--leader-elect-resource-namespace=a.b",
            ],
            &[
                "resourceLock value must be \"leases\"",
                "resource-name: invalid",
                "resource-namespace: invalid",
            ],
        ),
    ] {
        let errors = all(words);
        assert_eq!(errors.len(), parts.len(), "{words:?}: {errors:?}");
        for (error, part) in errors.iter().zip(parts) {
            assert!(error.contains(part), "{words:?}: {error}");
        }
    }
    let invalid = all(&[
        "--leader-elect=maybe",
        "--leader-elect-resource-lock=x",
        "--enable-leader-migration",
        "--leader-migration-config=/nope.yaml",
    ]);
    for (error, part) in
        invalid.iter().zip(["leader-elect: invalid", "resourceLock", "cannot read /nope.yaml"])
    {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(invalid.len(), 3, "{invalid:?}");
    // Unused values are only parsed.
    assert_eq!(
        config(&[
            "--leader-elect=false",
            "--leader-elect-lease-duration=0",
            "--leader-elect-resource-lock=x"
        ])
        .election,
        None
    );
    assert_eq!(all(&["--leader-elect=false", "--leader-elect-lease-duration=x"]).len(), 1);
}

#[test]
fn a_boolean_can_be_switched_off_again() {
    assert!(
        !config(&["--refresh-topology-labels", "--refresh_topology_labels=F"])
            .node
            .refresh_topology_labels
    );
    assert!(
        config(&["--refresh-topology-labels=false", "--refresh-topology-labels=T"])
            .node
            .refresh_topology_labels
    );
}

#[test]
fn the_last_of_a_repeated_flag_counts() {
    assert_eq!(config(&["--cluster-name=a", "--cluster-name=b"]).cluster_name, "b");
}

#[test]
fn user_agent_words_stand_before_ours_last_one_first() {
    let agent = config(&["--user-agent=a", "--user-agent", "b c", "--user-agent=d,e"]).user_agent;
    assert_eq!(agent, format!("d,e b c a cloud-controller-manager/{}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn port_zero_means_no_server() {
    assert!(config(&["--secure-port=0"]).serving.is_none());
}

#[test]
fn a_limit_is_off_unless_it_is_above_zero() {
    assert_eq!(config(&["--kube-api-qps=0"]).api_server.limit, None);
    assert_eq!(config(&["--kube-api-qps=-1", "--kube-api-burst=5"]).api_server.limit, None);
    assert_eq!(config(&["--kube-api-burst=5"]).api_server.limit, None);
    let default = config(&["--kube-api-qps=50", "--kube-api-burst=0"]).api_server.limit;
    assert_eq!(default, Some(ClientLimit { qps: 50.0, burst: 10 }));
    assert_eq!(
        config(&["--kube-api-qps=50", "--kube-api-burst=5"]).api_server.limit,
        Some(ClientLimit { qps: 50.0, burst: 5 })
    );
}

#[test]
fn everything_wrong_is_reported_at_once() {
    let errors = errors(&[
        "--cloud-provider=acne",
        "--no-such-flag=1",
        "--kube-api-qps=fast",
        "--kube-api-burst=-1",
        "--master=ftp://x",
        "--node-status-update-frequency=5",
        "--concurrent-node-syncs=0",
        "--concurrent-node-status-updates=-1",
        "--refresh-topology-labels=maybe",
        "--concurrent-service-syncs=0",
        "--service-drift-period=-1h",
        "--secure-port=70000",
        "--bind-address=here",
        "--tls-cert-file=a.crt",
        "--user-agent=a\u{7}b",
        "--logging-format=xml",
        "--v=loud",
        "--version=1.2.3",
        "--shutdown-drain=-1s",
        "--list-providers=perhaps",
        "--controllers=*,nodes,route",
        "--feature-gates=KMSv1",
        "--kube-api-content-type=text/xml",
        "--leader-elect-lease-duration=5s",
        "--use-service-account-credentials=maybe",
        "--node-monitor-period=0",
        "--node-deletion-share=50",
        "--http2-max-streams-per-connection=-1",
        "--tls-min-version=1.3",
        "--tls-sni-cert-key=a",
        "--authorization-webhook-cache-authorized-ttl=x",
        "--webhooks=a",
        "--webhook-secure-port=65536",
        "--vmodule=a",
        "word",
    ]);
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn the_provider_is_required() {
    for arguments in [&[][..], &["--cloud-provider="]] {
        let text = errors(arguments).join("\n");
        assert!(text.starts_with("--cloud-provider cannot be empty (compiled in: "), "{text}");
    }
}

#[test]
fn a_binary_without_providers_reports_how_to_build_one() {
    let all = parse(["--cloud-provider=openstack", "--secure-port=x"].map(OsString::from), &[]).unwrap_err();
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(
        all.iter().any(|error| error.contains("--features <name>") && error.contains("openstack")),
        "{all:?}"
    );
    for words in [&[][..], &["--list-providers"]] {
        let error = parse(words.iter().map(OsString::from), &[]).unwrap_err();
        assert!(
            error.iter().any(|error| error.to_string().contains("--features <name>")),
            "{words:?}: {error:?}"
        );
    }
}

#[test]
fn questions_are_answered_without_a_provider() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(printed(&["--version"]), format!("cloud-controller-manager v{version}\n"));
    assert_eq!(printed(&["--version=1"]), format!("cloud-controller-manager v{version}\n"));
    let raw = printed(&["--version=raw"]);
    assert!(raw.contains(&format!("version: v{version}\ncommit: unknown\nproviders: acme\n")), "{raw}");
    assert_eq!(printed(&["--list-providers"]), "acme  Acme Cloud\n");
    assert_eq!(printed(&["--help-cloud-config"]), "# acme\n\nThis provider takes no config file.\n");
    assert_eq!(
        printed(&["--help-cloud-config", "--cloud-provider=acme"]),
        "This provider takes no config file.\n"
    );
    assert!(printed(&["--bogus", "--help"]).contains("Secure serving:"));
}

#[test]
fn a_version_can_be_given_to_report() {
    let config = config(&["--version=v1.2.3"]);
    assert_eq!(config.version, "1.2.3");
    assert_eq!(config.user_agent, "cloud-controller-manager/1.2.3");
}

#[test]
fn all_flags_are_there_for_the_log() {
    let values = config(&["--user-agent=a", "--user-agent=b", "--cluster_name=x"]).values;
    let value = |name: &str| values.iter().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str());
    assert_eq!(value("cluster-name"), Some("x"));
    assert_eq!(value("user-agent"), Some("a,b"));
    assert_eq!(value("secure-port"), Some("10258"));
    assert_eq!(value("kube-api-qps"), None);
}

#[test]
fn credentials_in_a_url_are_not_shown() {
    for (value, shown) in [
        ("https://u:p@10.0.0.1:6443/x@y", "https://***@10.0.0.1:6443/x@y"),
        ("http://u@[::1]", "http://***@[::1]"),
        ("https://10.0.0.1/a@b", "https://10.0.0.1/a@b"),
        ("u:p@10.0.0.1:6443", "***@10.0.0.1:6443"),
        ("a@b", "a@b"),
    ] {
        assert_eq!(super::without_credentials(value), shown);
    }
}

/// A cloud that shows new machines late.
#[derive(Debug)]
struct Slow;

impl ccm_core::Cloud for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn deletion_grace(&self) -> Duration {
        Duration::from_secs(300)
    }
}

#[test]
fn a_cloud_raises_the_deletion_grace_unless_the_flag_is_set() {
    for (flags, grace) in [
        (&[][..], 300),
        (&["--node-deletion-grace=10s"], 10),
        (&["--node-deletion-grace=2m"], 120),
        (&["--node-deletion-grace=1h"], 3600),
    ] {
        assert_eq!(config(flags).lifecycle.grace(&Slow), Duration::from_secs(grace));
    }
}
