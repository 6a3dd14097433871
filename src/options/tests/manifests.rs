//! Command lines as people have them, and what becomes of flags whose feature is not there.

use super::*;

fn warnings(words: &[&str]) -> Vec<String> {
    config(words).warnings
}

fn refusal(word: &str) -> String {
    let all = errors(&["--cloud-provider=acme", word]);
    assert_eq!(all.len(), 1, "{word}: {all:?}");
    all[0].clone()
}

#[test]
fn the_manifest_of_a_cloud_starts_as_it_is() {
    let config = config(&[
        "--v=1",
        "--cluster-name=kubernetes",
        "--cloud-config=/etc/config/cloud.conf",
        "--use-service-account-credentials=false",
        "--bind-address=127.0.0.1",
    ]);
    assert_eq!(config.warnings, [""; 0]);
    assert_eq!(config.logging.verbosity, 1);
    assert!(config.controllers.is_enabled("cloud-node-controller"));
    assert!(config.controllers.is_enabled("cloud-node-lifecycle-controller"));
    assert!(config.election.is_some());
}

#[test]
fn the_manifest_of_an_installer_starts_as_it_is() {
    let config = config(&[
        "--allocate-node-cidrs=true",
        "--cluster-cidr=10.244.0.0/16",
        "--cluster_name=prod.example.com",
        "--configure-cloud-routes=false",
        "--leader-elect=true",
        "--leader-elect-resource-namespace=kube-system",
        "--use-service-account-credentials=false",
        "--concurrent-service-syncs=3",
        "--node-status-update-frequency=5m0s",
        "--route-reconciliation-period=10s",
        "--feature-gates=",
        "--profiling=false",
        "--tls-min-version=VersionTLS12",
        "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        "--kube-api-qps=20",
        "--kube-api-burst=30",
        "--min-resync-period=12h0m0s",
        "--controllers=*,-service",
        "-v=2",
    ]);
    let about: Vec<_> =
        config.warnings.iter().map(|warning| warning.split(['=', ' ']).next().unwrap()).collect();
    assert_eq!(about, ["--allocate-node-cidrs",], "{:?}", config.warnings);
    let serving = config.serving.unwrap();
    assert!(serving.access.open_paths.contains(&"/metrics".to_owned()));
    assert_eq!(serving.tls.cipher_suites.map(|suites| suites.len()), Some(2));
}

#[test]
fn a_list_of_controllers_starts_as_it_is() {
    let config = config(&["--controllers=cloud-node", "--controllers=-service"]);
    assert!(config.controllers.is_enabled("cloud-node-controller"));
    assert!(!config.controllers.is_enabled("cloud-node-lifecycle-controller"));
    assert_eq!(config.warnings, [""; 0]);
    assert_eq!(warnings(&["--controllers=cloud-node,cloud-node-lifecycle,route,service"]), [""; 0]);
}

#[test]
fn flags_of_routes_do_what_they_do_elsewhere() {
    let default = config(&[]).route;
    assert!(default.enabled && default.cluster_cidr.is_empty() && default.period.is_none());
    let given = config(&[
        "--configure-cloud-routes=false",
        "--cluster-cidr=10.0.0.0/8",
        "--route-reconciliation-period=10s",
    ]);
    assert!(!given.route.enabled);
    assert_eq!(given.route.cluster_cidr, "10.0.0.0/8");
    assert_eq!(given.route.period, Some(Duration::from_secs(10)));
    assert_eq!(given.warnings, [""; 0]);
    // Without routes it has no effect.
    assert_eq!(warnings(&["--cluster-cidr=junk", "--configure-cloud-routes=false"]), [""; 0]);
    let text = "--cluster-cidr \"junk\" is not a network; write it as 10.244.0.0/16; no routes are created";
    assert_eq!(warnings(&["--cluster-cidr=junk"]), [text]);
    assert_eq!(warnings(&["--cluster-cidr=10.0.0.0/8, fd00::/48"]), [""; 0]);
}

#[test]
fn what_would_endanger_is_refused() {
    for (word, part) in [
        ("--contention-profiling", "no profiles are served"),
        ("--log-text-split-stream=true", "standard error"),
        ("--log-json-split-stream", "standard error"),
        ("--log-text-info-buffer-size=64Ki", "standard error"),
        ("--log-json-info-buffer-size=1", "standard error"),
        ("--webhooks=*", "there are no webhooks"),
        ("--webhooks=a", "\"a\" is not in the list of known webhooks"),
        ("--webhooks=-a", "\"a\" is not in the list of known webhooks"),
        ("--feature-gates=CloudControllerManagerWebhook=true", "this version has no webhooks"),
    ] {
        let error = refusal(word);
        assert!(error.contains(part), "{word}: {error}");
    }
}

#[test]
fn what_switches_off_is_accepted_without_a_word() {
    for word in [
        "--use-service-account-credentials=false",
        "--enable-leader-migration=F",
        "--authentication-kubeconfig=",
        "--authorization-kubeconfig=",
        "--client-ca-file=",
        "--contention-profiling=false",
        "--profiling=false",
        "--configure-cloud-routes=false",
        "--log-text-split-stream=false",
        "--log-text-info-buffer-size=0",
        "--webhooks=",
        "--authentication-skip-lookup",
        "--authentication-tolerate-lookup-failure=true",
        "--allocate-node-cidrs=false",
        "--kube-api-content-type=application/json",
        "--external-cloud-volume-plugin=",
        "--permit-address-sharing=true",
        "--log-flush-frequency=1s",
    ] {
        assert_eq!(warnings(&[word]), [""; 0], "{word}");
    }
}

#[test]
fn what_has_no_effect_is_accepted_with_a_warning() {
    for (word, part) in [
        ("--profiling", "not implemented"),
        ("--profiling=true", "not implemented"),
        ("--allocate-node-cidrs", "has no effect: "),
        ("--cidr-allocator-type=CloudAllocator", "has no effect: "),
        ("--min-resync-period=1h", "has no effect: "),
        ("--controller-start-interval=1s", "has no effect: "),
        ("--external-cloud-volume-plugin=acme", "has no effect: "),
        ("--concurrent-node-lifecycle-syncs=4", "has no effect: "),
        ("--requestheader-client-ca-file=/proxies", "has no effect: "),
        ("--requestheader-allowed-names=a,b", "has no effect: "),
        ("--requestheader-username-headers=a", "has no effect: "),
        ("--requestheader-group-headers=a", "has no effect: "),
        ("--requestheader-uid-headers=X-Remote-Uid", "has no effect: "),
        ("--requestheader-extra-headers-prefix=a", "has no effect: "),
        ("--leader-migration-config=/a", "has no effect without --enable-leader-migration"),
        ("--webhook-bind-address=127.0.0.1", "has no effect yet: "),
        ("--webhook-tls-curve-preferences=29", "has no effect yet: "),
        ("--tls-min-version=VersionTLS10", "TLS 1.2 is the oldest"),
        ("--feature-gates=ContextualLogging=false", "has no effect: "),
    ] {
        let warnings = warnings(&[word]);
        assert_eq!(warnings.len(), 1, "{word}: {warnings:?}");
        assert!(warnings[0].contains(part), "{word}: {warnings:?}");
    }
}

#[test]
fn deprecated_flags_are_accepted_with_a_warning() {
    for word in [
        "--allow-untagged-cloud",
        "--allow-untagged-cloud=false",
        "--node-sync-period=10s",
        "--node-sync-period=0",
    ] {
        let warnings = warnings(&[word]);
        assert_eq!(warnings.len(), 1, "{word}: {warnings:?}");
        let flag = word.split('=').next().unwrap();
        assert!(warnings[0].starts_with(&format!("deprecated: {flag}: ")), "{word}: {warnings:?}");
    }
}

#[test]
fn values_of_flags_without_effect_must_be_well_formed() {
    let words = [
        "--min-resync-period=1",
        "--concurrent-node-lifecycle-syncs=many",
        "--route-reconciliation-period=0s",
        "--webhook-bind-address=here",
        "--requestheader-username-headers=\"a",
        "--webhook-tls-curve-preferences=a",
        "--log-flush-frequency=0",
        "--webhook-secure-port=-1",
        "--webhook-tls-cipher-suites=\"a",
        "--allow-untagged-cloud=1.5",
    ];
    for word in words.iter().chain(&["--concurrent-node-lifecycle-syncs=0"]) {
        let error = refusal(word);
        let flag = word.split('=').next().unwrap();
        assert!(error.starts_with(flag), "{word}: {error}");
    }
    assert_eq!(errors(&[&["--cloud-provider=acme"], &words[..]].concat()).len(), words.len());
}

#[test]
fn flags_that_do_not_fit_together_are_refused() {
    assert_eq!(
        refusal("--webhook-secure-port=10258"),
        "--webhook-secure-port cannot be the same value as --secure-port"
    );
    config(&["--webhook-secure-port=0", "--secure-port=0"]);
}

#[test]
fn authentication_and_authorization_are_read_from_their_flags() {
    let config = config(&[
        "--authentication-kubeconfig=/authn",
        "--authentication-token-webhook-cache-ttl=1m",
        "--authentication-skip-lookup",
        "--authentication-tolerate-lookup-failure=true",
        "--client-ca-file=/clients",
        "--authorization-kubeconfig=/authz",
        "--authorization-webhook-cache-authorized-ttl=5m",
        "--authorization-webhook-cache-unauthorized-ttl=0s",
        "--authorization-always-allow-paths=/healthz",
    ]);
    assert_eq!(config.warnings, [""; 0]);
    let access = config.serving.unwrap().access;
    assert_eq!(access.authentication_kubeconfig, Some("/authn".into()));
    assert_eq!(access.authorization_kubeconfig, Some("/authz".into()));
    assert_eq!(access.client_authorities, Some("/clients".into()));
    assert!(access.skip_lookup && access.tolerate_lookup_failure);
    let seconds = [access.token_ttl, access.allowed_ttl, access.denied_ttl].map(|ttl| ttl.as_secs());
    assert_eq!(seconds, [60, 300, 0]);
    let all = errors(&[
        "--cloud-provider=acme",
        "--client-ca-file=",
        "--authentication-token-webhook-cache-ttl=x",
    ]);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].contains("units"), "{all:?}");
}
