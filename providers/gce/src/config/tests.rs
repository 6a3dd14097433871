#![allow(clippy::unwrap_used)]

use ccm_core::testkit;

use super::*;

/// The settings or the problems of a config file.
fn read(conf: &str, environment: Environment) -> Result<Parsed<Config>, String> {
    let (_folder, context) = testkit::context(conf, environment);
    load(&context, &mut ConfigFiles::default()).map_err(|error| ccm_core::Error::from(error).report())
}

fn settings(conf: &str) -> Config {
    read(conf, Environment::default()).unwrap().value
}

fn problems(conf: &str, parts: &[&str]) {
    let error = read(conf, Environment::default()).unwrap_err();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn all_keys_of_the_go_program_are_read() {
    let conf = "[Global]\ntoken-url = https://tokens.example.com/x\ntoken-body = {\"a\": 1}\nproject-id = p\n\
                network-project-id = host\nnetwork-name = net\nsubnetwork-name = sub\nstack-type = IPV4_IPV6\n\
                secondary-range-name = pods\nnode-tags = a\nnode-tags = b\nnode-instance-prefix = node\nregional\n\
                multizone = yes\napi-endpoint = https://www.googleapis.com/compute/v1/\n\
                container-api-endpoint = https://container.googleapis.com/\nlocal-zone = us-central1-a\n\
                alpha-features = ILBSubsets\nalpha-features = SkipIGsManagement\n";
    let Parsed { value, warnings, .. } = read(conf, Environment::default()).unwrap();
    let global = &value.conf.global;
    assert_eq!(value.project.as_deref(), Some("p"));
    assert_eq!(value.network_project.as_deref(), Some("host"));
    assert_eq!(value.network, Some(NameOrPath::Name("net".to_owned())));
    assert_eq!(value.subnetwork, Some(NameOrPath::Name("sub".to_owned())));
    assert_eq!((value.zone.as_deref(), value.stack), (Some("us-central1-a"), StackType::Dual));
    assert_eq!(global.node_tags, ["a", "b"]);
    assert!(global.regional && global.multizone);
    assert_eq!(global.alpha_features, ["ILBSubsets", "SkipIGsManagement"]);
    assert!(value.connection.endpoint.is_none(), "the endpoint of Google");
    let warned: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warned.len(), 2, "{warned:#?}");
    assert!(warned[0].contains("secondary-range-name") && warned[1].contains("container-api-endpoint"));
    match &value.connection.credentials {
        CredentialSource::Alternate { url, body } => {
            assert_eq!(url.as_str(), "https://tokens.example.com/x");
            assert!(body.expose_secret().contains('a'));
        }
        other => panic!("{other:?}"),
    }
    assert!(!format!("{value:?}").contains("\"a\\\""), "{value:?}");
}

#[test]
fn without_a_file_the_metadata_server_answers() {
    let config = settings("");
    assert_eq!(config.connection.credentials, CredentialSource::Metadata);
    assert_eq!(config.connection.metadata.as_str(), "http://169.254.169.254/");
    assert_eq!((config.project, config.zone, config.stack), (None, None, StackType::V4));
    let environment = Environment::default().with("GCE_METADATA_HOST", "localhost:99");
    let config = read("", environment).unwrap().value;
    assert_eq!(config.connection.metadata.as_str(), "http://localhost:99/");
}

#[test]
fn an_unknown_key_is_a_warning() {
    let warnings = read("[global]\nproject-idd = p\n", Environment::default()).unwrap().warnings;
    let text = warnings[0].to_string();
    assert!(text.contains(":2:1") && text.contains("project-id"), "{text}");
}

#[test]
fn all_problems_are_reported_with_line_key_and_fix() {
    problems(
        "[global]\nproject-id = My Project\nlocal-zone = central\nstack-type = ipv4\nnetwork-name = a/b\n\
         subnetwork-name = Sub\nnode-tags = -\napi-endpoint = https://x.example.com/compute/beta/\ntoken-url = tokens\n\
         [Quota]\nglobal-reads-per-minute = 0\n",
        &[
            ":2:",
            "[global] project-id: \"My Project\" is neither the ID nor the number of a project",
            ":3:",
            "[global] local-zone: \"central\" is not a zone; write one such as us-central1-a",
            ":4:",
            "[global] stack-type: \"ipv4\" is not a stack type; write IPV4, IPV6 or IPV4_IPV6",
            ":5:",
            "[global] network-name: \"a/b\" is not the URL of an object",
            ":6:",
            "[global] subnetwork-name: \"Sub\" is not a name",
            ":7:",
            "[global] node-tags: \"-\" is not a network tag",
            ":8:",
            "[global] api-endpoint: the path \"/compute/beta\" cannot be used: only /compute/v1/ is supported; remove the path, \
             or write /compute/v1/",
            ":9:",
            "[global] token-url: neither nil nor a URL",
            ":11:",
            "[Quota] global-reads-per-minute: must be between 1 and 1000000; the default is 1500",
        ],
    );
    let error = read("", Environment::default().with("GCE_METADATA_HOST", "a b")).unwrap_err();
    assert!(error.contains("GCE_METADATA_HOST: \"a b\" is not a host"), "{error}");
}

/// Keys whose every value is accepted: a body of requests, and names that have no effect.
const FREE_TEXT: [&str; 2] = ["token-body", "node-instance-prefix"];

/// A malformed value of each key. A key without one is an omission of this test.
#[test]
fn each_malformed_value_is_an_error_or_a_warning_with_its_key() {
    use ccm_core::config::Section as _;

    let global = [
        ("token-url", "tokens"),
        ("project-id", "My Project"),
        ("network-project-id", "my_project"),
        ("network-name", "Net"),
        ("subnetwork-name", "projects/p/regions/r/sub"),
        ("stack-type", "dual"),
        ("secondary-range-name", "pods"),
        ("node-tags", "a_b"),
        ("regional", "maybe"),
        ("multizone", "2"),
        ("api-endpoint", "ftp://compute.example.com"),
        ("container-api-endpoint", "https://container.example.com"),
        ("local-zone", "central"),
        ("alpha-features", "Everything"),
        ("firewall-management", "mine"),
        ("resource-manager-endpoint", "https://manager.example.com/v1"),
    ];
    let with_values = global.map(|(key, _)| key).into_iter().chain(FREE_TEXT).collect();
    let documented: std::collections::BTreeSet<_> = Global::keys().into_iter().map(|key| key.name).collect();
    assert_eq!(documented, with_values);
    let global = global.map(|(key, value)| ("global", key, value));
    let quotas = Quotas::keys().into_iter().map(|key| ("Quota", key.name, "0"));
    for (section, key, value) in global.into_iter().chain(quotas) {
        let found = match read(&format!("[{section}]\n{key} = {value}\n"), Environment::default()) {
            Ok(parsed) => parsed.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            Err(error) => error,
        };
        assert!(found.contains(":2:") && found.contains(key), "{key}: {found:?}");
    }
}

#[test]
fn an_endpoint_is_scheme_and_host() {
    for (text, expected) in [
        ("https://compute.googleapis.com", None),
        ("https://www.googleapis.com/compute/v1/", None),
        ("https://private.example.com/compute/v1", Some("https://private.example.com/")),
        ("http://127.0.0.1:80/", Some("http://127.0.0.1/")),
        ("http://127.0.0.1:8080", Some("http://127.0.0.1:8080/")),
    ] {
        let config = settings(&format!("[global]\napi-endpoint = {text}\n"));
        assert_eq!(config.connection.endpoint.as_ref().map(Url::as_str), expected, "{text}");
    }
}

#[test]
fn names_and_urls_of_networks_are_distinguished() {
    for (text, path) in [
        (
            "https://www.googleapis.com/compute/v1/projects/h/global/networks/n",
            "projects/h/global/networks/n",
        ),
        (
            "http://localhost:1/compute/beta/projects/h/global/networks/n",
            "projects/h/global/networks/n",
        ),
        ("projects/h/global/networks/n", "projects/h/global/networks/n"),
    ] {
        let config = settings(&format!("[global]\nnetwork-name = {text}\n"));
        assert_eq!(config.network, Some(NameOrPath::Path(path.to_owned())), "{text}");
    }
    problems("[global]\nnetwork-name = projects/h/regions/r/subnetworks/s\n", &["global/networks/"]);
}

#[test]
fn application_default_credentials_are_found_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join(".config/gcloud");
    std::fs::create_dir_all(&home).unwrap();
    let (named, users) = (folder.path().join("key.json"), home.join("application_default_credentials.json"));
    let home = folder.path().to_str().unwrap().to_owned();
    let nil = "[global]\ntoken-url = nil\n";
    let in_home = || Environment::default().with("HOME", home.clone());
    let source = |environment| read(nil, environment).map(|parsed| parsed.value.connection.credentials);
    assert_eq!(source(in_home()), Ok(CredentialSource::Metadata));

    let user =
        r#"{"type": "authorized_user", "client_id": "a", "client_secret": "s3cret", "refresh_token": "r"}"#;
    std::fs::write(&users, user).unwrap();
    match source(in_home()).unwrap() {
        CredentialSource::File(key) => assert_eq!(key.path, users),
        other => panic!("{other:?}"),
    }
    std::fs::write(&named, r#"{"type": "service_account", "client_email": "a", "private_key": "s3cret"}"#)
        .unwrap();
    let both = || in_home().with(CREDENTIALS, named.to_str().unwrap());
    match source(both()).unwrap() {
        CredentialSource::File(key) => {
            assert_eq!(key.path, named);
            assert!(!format!("{key:?}").contains("s3cret"), "{key:?}");
        }
        other => panic!("{other:?}"),
    }

    for (text, problem) in [
        ("no", "is not a JSON object"),
        ("[]", "is not a JSON object"),
        (
            r#"{"type": "gdch_service_account"}"#,
            "type \"gdch_service_account\" is not supported; use one of service_account",
        ),
        (
            r#"{"type": "service_account"}"#,
            "client_email, private_key is missing in a file of type service_account",
        ),
        (
            r#"{"type": "external_account", "audience": "a"}"#,
            "subject_token_type, token_url, credential_source is missing",
        ),
    ] {
        std::fs::write(&named, text).unwrap();
        let error = source(both()).unwrap_err();
        assert!(error.contains(problem) && error.contains(CREDENTIALS), "{error}");
    }
    std::fs::remove_file(&named).unwrap();
    let error = source(both()).unwrap_err();
    assert!(error.contains("GOOGLE_APPLICATION_CREDENTIALS: could not read"), "{error}");
}

#[test]
fn other_credentials_and_quotas_are_used_without_a_restart() {
    let old = settings("[global]\nproject-id = p\n");
    let new = settings(
        "[global]\nproject-id = q\ntoken-url = https://t.example.com\n[Quota]\nglobal-reads-per-minute = 9\n",
    );
    let changes = old.changes(&new);
    assert_eq!(changes.live, ["[global] token-url", "[Quota] global-reads-per-minute"]);
    assert_eq!(changes.restart, ["[global] project-id"]);
    assert!(changes.reconnect && !old.changes(&old).reconnect);
    assert_eq!(new.conf.quota.buckets()[0].1.burst, 9);
}

#[test]
fn keys_and_flags_of_load_balancers_are_checked() {
    problems("[Global]\nfirewall-management = mine\n", &["firewall-management", "\"mine\" is unknown"]);
    let with = |flags: &[(&str, &str)]| {
        let (_folder, context) = testkit::context("", Environment::default());
        let flags = flags.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]));
        let context = BuildContext {
            flags: flags.collect(),
            ..context
        };
        let loaded = load(&context, &mut ConfigFiles::default());
        loaded.map_err(|error| ccm_core::Error::from(error).report())
    };
    let usual = with(&[]).unwrap().value.load_balancing;
    assert_eq!(
        usual.check_ranges,
        [
            "35.191.0.0/16",
            "130.211.0.0/22",
            "209.85.152.0/22",
            "209.85.204.0/22"
        ]
    );
    assert!(usual.manages_firewalls && usual.manages_groups && !usual.denies);
    let error = with(&[("enable-l4-deny-firewall", "true")]).unwrap_err();
    assert!(error.contains("needs --enable-l4-deny-firewall-rollback-cleanup"), "{error}");
    let error = with(&[("cloud-provider-gce-lb-src-cidrs", "10.0.0.0/8,x")]).unwrap_err();
    assert!(error.contains("\"x\" is not a network"), "{error}");
    let features = settings("[Global]\nalpha-features = ILBSubsets\nalpha-features = SkipIGsManagement\n");
    assert!(features.load_balancing.leaves_new_internal && !features.load_balancing.manages_groups);
}
