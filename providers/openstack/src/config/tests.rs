//! Valid and invalid config files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

use ccm_core::{ErrorKind, Result, config::Problem};
use secrecy::ExposeSecret;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::client::identity::{ApplicationCredential, Domain, Identity, Scope, User};

/// A directory with files in it.
pub(super) struct Files(TempDir);

impl Files {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        Self(directory)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn environment(&self) -> Environment {
        Environment::default().in_directory(self.0.path())
    }
}

pub(super) fn context(path: Option<&Path>, env: &Environment) -> BuildContext {
    BuildContext {
        cloud_config: path.map(Path::to_owned),
        environment: env.clone(),
        ..BuildContext::default()
    }
}

fn load(path: Option<&Path>, env: &Environment) -> Result<(Settings, Vec<Problem>)> {
    let loaded = super::load(&context(path, env), &mut ConfigFiles::default())?;
    Ok((loaded.value.settings, loaded.warnings))
}

fn load_text(text: &str) -> Result<(Settings, Vec<Problem>)> {
    let files = Files::new(&[("cloud.conf", text)]);
    load(Some(&files.path("cloud.conf")), &files.environment())
}

pub(super) fn good(text: &str) -> Settings {
    load_text(text).unwrap().0
}

/// The errors, without the file's name.
pub(super) fn errors(text: &str) -> Vec<String> {
    let error = load_text(text).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let text = error.to_string();
    text.lines()
        .map(|line| line.split_once("cloud.conf:").map_or(line, |(_, rest)| rest).to_owned())
        .collect()
}

pub(super) fn global(keys: &str) -> String {
    format!("[Global]\nauth-url = http://ks/v3\n{keys}\n")
}

#[test]
fn the_sample_of_the_dialect_is_accepted() {
    let settings = good(
        r#"
[Global]
auth-url = "https://keystone.example:5000/v3"   ; comment after a value
application-credential-id = 21dced0fd20347869b93710d2b98aae0
application-credential-secret = "s3cr#t;with\\specials"
region = RegionOne

[Networking]
internal-network-name = k8s-net
internal-network-name = k8s-net-v6
address-sort-order = 10.0.0.0/8, 2001:db8::/32

[LoadBalancer]
create-monitor            # valueless bool = true
monitor-delay = 10s
max-shared-lb = 4
node-selector = "env=production, pool"

[LoadBalancerClass "dmz"]
floating-subnet-tags = "&dmz,public"

[Metadata]
request-timeout = 90s

[BlockStorage]
bs-version = v3            # ignored
"#,
    );
    let Identity::ApplicationCredential { id, secret } = &settings.connection.credentials.identity else {
        panic!("{:?}", settings.connection.credentials);
    };
    assert_eq!(*id, ApplicationCredential::Id("21dced0fd20347869b93710d2b98aae0".into()));
    assert_eq!(secret.expose_secret(), r"s3cr#t;with\specials");
    assert_eq!(settings.connection.region.as_deref(), Some("RegionOne"));
    assert_eq!(settings.request_timeout, Duration::from_secs(90));
    assert_eq!(settings.instances.networking.internal, ["k8s-net", "k8s-net-v6"]);
    assert_eq!(settings.instances.networking.sort_order.len(), 2);
    assert!(!settings.instances.regional);
    let zero = good(&(global("token = t") + "[Metadata]\nrequest-timeout = 0\n"));
    assert_eq!(zero.request_timeout, Duration::from_secs(60));
}

#[test]
fn an_empty_network_name_is_no_name() {
    let load = |keys: &str| {
        let (settings, warnings) = load_text(&(global("token = t") + "[Networking]\n" + keys)).unwrap();
        let warnings: Vec<_> =
            warnings.iter().map(|warning| (warning.line(), warning.message().to_owned())).collect();
        (settings.instances.networking, warnings)
    };
    // The template of a well-known installer.
    let (networking, warnings) = load("internal-network-name=\"\"\npublic-network-name=\"\"\n");
    assert!(networking.has_only_empty_internal_names);
    assert!(networking.internal.is_empty() && networking.public.is_empty());
    let lines: Vec<_> = warnings.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [Some(5), Some(5), Some(6)], "{warnings:?}");
    assert!(warnings[0].1.starts_with("[Networking] internal-network-name: an empty name"));
    assert!(warnings[1].1.contains("nodes that have addresses keep them"));
    assert!(warnings[2].1.starts_with("[Networking] public-network-name: an empty name"));

    let (networking, warnings) = load("internal-network-name=\ninternal-network-name=net\n");
    assert!(!networking.has_only_empty_internal_names);
    assert_eq!(networking.internal, ["net"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    // Such as the key without a value, which empties the list.
    let (networking, warnings) = load("internal-network-name\n");
    assert!(!networking.has_only_empty_internal_names);
    assert_eq!(warnings.len(), 0, "{warnings:?}");

    let text = global("token = t") + "[Route]\nrouter-id = \"a,,b,\"\n";
    let (settings, warnings) = load_text(&text).unwrap();
    assert_eq!(settings.routes.routers, ["a", "b"]);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn every_way_to_authenticate_is_understood() {
    let cases = [
        (
            "user-id = u\npassword = p\ntenant-id = t",
            json!({"user": {"id": "u", "password": "p"}}),
            json!({"project": {"id": "t"}}),
        ),
        (
            // A user-id needs no domain, and the default domain does not apply to it.
            "user-id = u\npassword = p\ntenant-name = t\ndomain-id = d",
            json!({"user": {"id": "u", "password": "p"}}),
            json!({"project": {"name": "t", "domain": {"id": "d"}}}),
        ),
        (
            "username = u\npassword = p\ntenant-name = t\ndomain-name = Default",
            json!({"user": {"name": "u", "password": "p", "domain": {"name": "Default"}}}),
            json!({"project": {"name": "t", "domain": {"name": "Default"}}}),
        ),
        (
            "username = u\npassword = p\ntenant-id = t\ntenant-name = x\nuser-domain-name = A\ndomain-id = d",
            json!({"user": {"name": "u", "password": "p", "domain": {"name": "A"}}}),
            json!({"project": {"id": "t"}}),
        ),
        (
            "username = u\npassword = p\nuser-domain-id = a\ndomain-id = d",
            json!({"user": {"name": "u", "password": "p", "domain": {"id": "a"}}}),
            json!({"domain": {"id": "d"}}),
        ),
        (
            "username = u\npassword = p\nuser-domain-id = a\ntrust-id = x",
            json!({"user": {"name": "u", "password": "p", "domain": {"id": "a"}}}),
            json!({"OS-TRUST:trust": {"id": "x"}}),
        ),
        (
            "trust-id = x\ntrustee-id = e\ntrustee-password = ep\nuser-id = u\npassword = p\ntenant-name = t\ntenant-domain-name = D",
            json!({"user": {"id": "e", "password": "ep"}}),
            json!({"OS-TRUST:trust": {"id": "x"}}),
        ),
        (
            "trust-id = x\ntrustee-id = e\nuser-id = u\npassword = p",
            json!({"user": {"id": "e", "password": "p"}}),
            json!({"OS-TRUST:trust": {"id": "x"}}),
        ),
        (
            "trust-id = x\ntrustee-password = ep\nuser-id = u\npassword = p",
            json!({"user": {"id": "u", "password": "ep"}}),
            json!({"OS-TRUST:trust": {"id": "x"}}),
        ),
        (
            "user-id = u\npassword = p\ntenant-name = t\ntenant-domain-id = d\ntenant-domain-name = D",
            json!({"user": {"id": "u", "password": "p"}}),
            json!({"project": {"name": "t", "domain": {"id": "d"}}}),
        ),
    ];
    for (keys, password, scope) in cases {
        let body = good(&global(keys)).connection.credentials.body();
        assert_eq!(body["auth"]["identity"]["password"], password, "{keys}");
        assert_eq!(body["auth"]["scope"], scope, "{keys}");
    }
    let credentials = |keys| good(&global(keys)).connection.credentials;
    let by_name = credentials(
        "application-credential-name = ccm\napplication-credential-secret = s\nusername = u\ndomain-id = d",
    );
    assert!(matches!(
        &by_name.identity,
        Identity::ApplicationCredential { id: ApplicationCredential::Name { name, user: User::Name { domain: Domain::Id(d), .. } }, .. }
            if name == "ccm" && d == "d"
    ));
    assert_eq!(by_name.scope, Scope::Implied);
    let by_id = credentials(
        "application-credential-name = ccm\napplication-credential-secret = s\nuser-id = i\nusername = u\nuser-domain-id = d",
    );
    assert!(matches!(
        &by_id.identity,
        Identity::ApplicationCredential { id: ApplicationCredential::Name { user: User::Id(id), .. }, .. } if id == "i"
    ));
    let token = credentials("token = t\ntenant-id = p");
    assert!(matches!(token.identity, Identity::Token(_)));
    assert_eq!(token.scope, Scope::ProjectId("p".into()));
    assert!(credentials("token = t").bare_token().is_some());
}

#[test]
fn all_problems_are_reported_at_once_with_their_lines() {
    let lines = errors(
        "[Global]\n\
         username = ccm\n\
         password = hunter2\n\
         tenant-name = prod\n\
         os-endpoint-type = outside\n\
         ca-file = /does/not/exist\n\
         [Metadata]\n\
         search-order = configDrive, disk\n\
         request-timeout = -1s\n\
         [LoadBalancer]\n\
         monitor-delay = 5\n",
    );
    let expect = [
        ("1:", "[Global] auth-url: missing"),
        ("2:", "[Global] username: a name needs its domain"),
        ("4:", "[Global] tenant-name: a name needs its domain"),
        (
            "5:",
            "[Global] os-endpoint-type: invalid availability \"outside\"; write public, internal or admin",
        ),
        ("6:", "[Global] ca-file: could not read \"/does/not/exist\""),
        ("8:", "[Metadata] search-order: invalid element \"disk\""),
        ("9:", "[Metadata] request-timeout: a timeout cannot be negative"),
        ("11:", "monitor-delay"),
    ];
    assert_eq!(lines.len(), expect.len(), "{lines:#?}");
    for (line, (at, text)) in lines.iter().zip(expect) {
        assert!(line.starts_with(at) && line.contains(text), "{line} is not {at} {text}");
    }
    assert!(!lines.join("\n").contains("hunter2"));
}

#[test]
fn ambiguous_and_incomplete_credentials_are_refused() {
    for (keys, at, text) in [
        ("", "1:", "password: no credentials"),
        ("username = u\ndomain-id = d", "1:", "password: missing, though a user is given"),
        ("password = p", "1:", "username: missing, though a password is given"),
        ("user-id = u\nusername = v\npassword = p", "3:", "user-id: both user-id and username"),
        (
            "user-id = u\nuser-domain-id = d\npassword = p",
            "4:",
            "user-domain-id: a user-id needs no domain",
        ),
        (
            "username = u\nuser-domain-id = d\nuser-domain-name = D\npassword = p",
            "4:",
            "both user-domain-id and user-domain-name",
        ),
        ("username = u\npassword = p\ndomain-id = d", "3:", "username: a name needs its domain"),
        (
            "application-credential-id = a\napplication-credential-secret = s\npassword = p",
            "5:",
            "password: both a password and an application credential",
        ),
        ("application-credential-id = a", "1:", "application-credential-secret: missing"),
        (
            "application-credential-name = a\napplication-credential-secret = s",
            "3:",
            "name needs its user",
        ),
        (
            "token = t\napplication-credential-id = a\napplication-credential-secret = s",
            "3:",
            "token: both a token and",
        ),
        ("trust-id = x\ntrustee-id = e", "1:", "trustee-password: a trust needs"),
    ] {
        let lines = errors(&global(keys));
        assert!(
            lines.iter().any(|line| line.starts_with(at) && line.contains(text)),
            "{keys:?}: {lines:#?} lacks {at} {text}"
        );
    }
    for (keys, expected) in [
        (
            "password = p\nuser-domain-id = a\nuser-domain-name = b",
            ["username: missing", "user-domain-id: both"],
        ),
        ("username = ccm", ["password: missing", "username: a name needs its domain"]),
        ("application-credential-name = ac", ["secret: missing", "name: a name needs its user"]),
        (
            "trust-id = t\nusername = ccm",
            ["trustee-password: a trust", "username: a name needs its domain"],
        ),
    ] {
        let lines = errors(&global(keys));
        let is_reported = |text: &&str| lines.iter().any(|line| line.contains(text));
        assert!(expected.iter().all(is_reported) && lines.len() == 2, "{lines:#?}");
    }
    for (url, text) in [
        ("http://ks/v2.0", "version 2.0 of the Identity service is not supported"),
        ("keystone:5000/v3", "not an http or https URL"),
        ("ks", "not a URL"),
        ("file:///etc/passwd", "not an http or https URL"),
    ] {
        let lines = errors(&format!("[Global]\nauth-url = {url}\ntoken = t\n"));
        assert!(
            lines.iter().any(|line| line.starts_with("2:") && line.contains(text)),
            "{url}: {lines:#?}"
        );
    }
}

#[test]
fn suspicious_values_are_warnings() {
    let (_, warnings) = load_text(&global(
        "token = t\npassword = p\ntenant-id = x\ntls-insecure = yes\ncert-file = c\nregoin = r\n[Networking]\naddress-sort-order = 10/8\n[Router]\nrouter-id = r",
    ))
    .unwrap();
    let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    for text in [
        "password: not used",
        "tls-insecure: \"yes\" has no effect",
        "cert-file: not used without key-file",
        "regoin",
        "\"10/8\" is not a CIDR",
        "Router",
    ] {
        assert!(lines.iter().any(|line| line.contains(text)), "{lines:#?} lacks {text}");
    }
}

#[test]
fn a_missing_and_an_unreadable_file_are_distinguished() {
    let none = load(None, &Environment::default()).map(|_| ()).unwrap_err();
    assert!(none.to_string().contains("no OpenStack cloud provider config file given"), "{none}");
    let missing = load(Some(Path::new("/does/not/exist")), &Environment::default()).map(|_| ()).unwrap_err();
    assert!(missing.to_string().contains("could not read /does/not/exist"), "{missing}");
}

const CLOUDS: &str = "
clouds:
  one:
    auth: {auth_url: 'http://one/v3', username: alice, password: '0123', project_id: 0123, user_domain_name: Default}
    region_name: RegionOne
    interface: internal
  two:
    profile: vendor
    auth: {user_id: u2, project_id: p2, username: ''}
    region_name: ''
    endpoint_type: ''
    interface: internal
    cacert: ''
";

#[test]
fn clouds_yaml_fills_what_the_file_does_not_give() {
    let files = Files::new(&[
        ("clouds.yaml", CLOUDS),
        ("secure.yaml", "clouds:\n  two:\n    auth: {password: pw2, project_id: ''}\n"),
        (
            "clouds-public.yaml",
            "public-clouds:\n  vendor:\n    auth: {auth_url: 'http://vendor/v3', user_id: not-this}\n    region_name: VendorRegion\n",
        ),
        (
            "one.conf",
            "[Global]\nuse-clouds\ncloud = one\nauth-url = http://mine/v3\n[Networking]\nipv6-support-disabled\n",
        ),
        ("two.conf", "[Global]\ncloud = two\n"),
        ("any.conf", "[Global]\nuse-clouds = true\n"),
    ]);
    let load =
        |name: &str, env: Environment| load(Some(&files.path(name)), &env).map(|(settings, _)| settings);
    let one = load("one.conf", files.environment()).unwrap();
    let Identity::Password { user, password } = &one.connection.credentials.identity else {
        panic!("{one:?}")
    };
    assert_eq!(
        *user,
        User::Name {
            name: "alice".into(),
            domain: Domain::Name("Default".into())
        }
    );
    assert_eq!(password.expose_secret(), "0123");
    assert_eq!(one.connection.credentials.scope, Scope::ProjectId("0123".into()), "not read as a number");
    assert_eq!(
        one.connection.credentials.auth_url.as_str(),
        "http://mine/v3",
        "the file's own value wins"
    );
    assert_eq!(one.connection.interface, Interface::Internal);
    assert_eq!(one.connection.region.as_deref(), Some("RegionOne"));
    assert!(one.instances.networking.ipv6_disabled);

    let two = load("two.conf", files.environment()).unwrap().connection;
    assert_eq!(two.credentials.auth_url.as_str(), "http://vendor/v3");
    let body = two.credentials.body();
    assert_eq!(body["auth"]["identity"]["password"]["user"], json!({"id": "u2", "password": "pw2"}));
    assert_eq!(body["auth"]["scope"], json!({"project": {"id": "p2"}}));
    assert_eq!(two.region.as_deref(), Some("VendorRegion"), "an empty value is a missing one");
    assert_eq!((two.interface, two.tls.roots), (Interface::Internal, None));

    let by_variable = load("any.conf", files.environment().with("OS_CLOUD", "one")).unwrap();
    assert_eq!(by_variable.connection.credentials.auth_url.as_str(), "http://one/v3");
    let elsewhere = Environment::default()
        .with("OS_CLIENT_CONFIG_FILE", files.path("clouds.yaml").to_string_lossy())
        .with("OS_CLOUD", "one");
    assert!(load("any.conf", elsewhere).is_ok());
}

#[test]
fn unknown_keys_of_clouds_yaml_are_warnings() {
    let clouds =
        "clouds:\n  a:\n    verify: true\n    auth: {auth_url: 'http://ks/v3', token: t, pasword: hunter2}\n";
    let files = Files::new(&[("cloud.conf", "[Global]\nuse-clouds\n"), ("clouds.yaml", clouds)]);
    let (_, warnings) = load(Some(&files.path("cloud.conf")), &files.environment()).unwrap();
    let [warning] = warnings.as_slice() else {
        panic!("{warnings:?}")
    };
    let text = "clouds.yaml:4:48: clouds.a.auth.pasword: unknown key, ignored; did you mean password?";
    assert!(warning.to_string().ends_with(text), "{warning}");
}

#[test]
fn patterns_of_subnets_are_checked() {
    let text = global("token = t")
        + "[LoadBalancer]\nfloating-subnet = \"~((\"\n[LoadBalancerClass \"a\"]\nfloating-subnet = \"~((\"\n";
    // Warnings, since nothing may use them.
    let (_, warnings) = load_text(&text).unwrap();
    for (warning, part) in warnings.iter().zip([
        ":5:19: [LoadBalancer] floating-subnet: \"~((\" is not a pattern",
        ":7:19: [LoadBalancerClass \"a\"] floating-subnet: \"~((\" is not a pattern",
    ]) {
        assert!(warning.to_string().contains(part), "{warning}");
    }
    assert_eq!(warnings.len(), 2);
}

#[test]
fn problems_of_clouds_yaml_are_reported_without_its_secrets() {
    let case = |clouds: Option<&str>, conf: &str| {
        let mut list = vec![("cloud.conf", conf)];
        list.extend(clouds.map(|clouds| ("clouds.yaml", clouds)));
        let files = Files::new(&list);
        load(Some(&files.path("cloud.conf")), &files.environment())
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let text = case(None, "[Global]\nuse-clouds\n");
    assert!(text.contains("cloud.conf:2:") && text.contains("clouds.yaml not found in"), "{text}");
    let text = case(Some(CLOUDS), "[Global]\nuse-clouds\n");
    assert!(text.contains("could not find cloud in") && text.contains("which has: one, two"), "{text}");
    let text = case(Some(CLOUDS), "[Global]\nuse-clouds\ncloud = three\n");
    assert!(
        text.contains("cloud.conf:3:") && text.contains("could not find cloud \"three\""),
        "{text}"
    );
    for empty in ["", "a: {}\n"] {
        let text = case(Some(empty), "[Global]\ncloud = a\n");
        let what = "which has no clouds; write them below the key clouds";
        assert!(text.contains(what), "{text}");
    }
    for (broken, problems) in [
        ("clouds: [hunter2", &["1:9: not YAML"][..]),
        ("hunter2", &["1:1: a text instead of a map; write keys with values"]),
        (
            "clouds:\n  a:\n    auth: hunter2\n",
            &["3:11: clouds.a.auth: a text instead of a map; write keys with values"],
        ),
        (
            "clouds:\n  a:\n    region_name: [hunter2]\n    auth: {password: {x: hunter2}, username: [hunter2]}\n    \
             region_name: x\n",
            &[
                "4:22: clouds.a.auth.password: a map instead of a text",
                "4:46: clouds.a.auth.username: a list instead of a text",
                "5:5: region_name: given twice, first in line 3; keep only one",
            ],
        ),
    ] {
        let text = case(Some(broken), "[Global]\nuse-clouds\n");
        let lines = text.lines().map(|line| line.rsplit("clouds.yaml:").next().unwrap());
        assert_eq!(lines.collect::<Vec<_>>(), problems, "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        assert!(!text.contains("auth-url"), "it may be in the file: {text}");
    }
}

#[test]
fn the_region_in_provider_ids_takes_the_exact_text() {
    let files = Files::new(&[("cloud.conf", &global("token = t"))]);
    for (value, regional) in [("true", true), ("True", false), ("1", false), ("", false)] {
        let env = files.environment().with("OS_CCM_REGIONAL", value);
        assert_eq!(
            load(Some(&files.path("cloud.conf")), &env).unwrap().0.instances.regional,
            regional,
            "{value:?}"
        );
    }
}

#[test]
fn the_reference_names_every_key_and_marks_secrets() {
    let reference = ccm_core::config::docs::markdown::<CloudConf>(3, super::is_live);
    for text in [
        "### `[Global]`",
        "`auth-url`",
        "`[LoadBalancerClass \"name\"]`",
        "`request-timeout`",
        "`1m0s`",
    ] {
        assert!(reference.contains(text), "{text} is not in\n{reference}");
    }
    let secrets = reference.lines().filter(|line| line.contains(", secret")).count();
    assert_eq!(secrets, 4, "{reference}");
}

#[test]
fn settings_show_no_secret() {
    let shown = format!("{:?}", good(&global("username = u\nuser-domain-id = d\npassword = hunter2")));
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn quotas_have_their_keys_defaults_and_limits() {
    let quotas = good(&global("token = t")).quotas;
    assert_eq!((quotas.identity, quotas.compute, quotas.network), Default::default());
    let text = global("token = t")
        + "[Quota]\ncompute-requests-per-second = 2.5\nnetwork-burst = 7\nidentity-in-flight = 1\n";
    let quotas = good(&text).quotas;
    assert!((quotas.compute.rate - 2.5).abs() < 1e-9);
    assert_eq!((quotas.compute.burst, quotas.network.burst), (50, 7));
    assert_eq!(quotas.identity.max_in_flight, 1);

    let text = global("token = t")
        + "[Quota]\ncompute-requests-per-second = 0\ncompute-burst = 0\nnetwork-requests-per-second = -1\n\
           network-in-flight = 1.5\nidentity-requests-per-second = inf\nidentity-in-flight = 100001\n";
    let errors = errors(&text);
    assert_eq!(errors.len(), 6, "{errors:#?}");
    for (error, part) in errors.iter().zip([
        "5:31: [Quota] compute-requests-per-second: must be more than 0 and at most 100000; the default is 20",
        "6:17: [Quota] compute-burst: must be between 1 and 100000; the default is 50",
        "network-requests-per-second: must be more than 0",
        "network-in-flight",
        "identity-requests-per-second",
        "identity-in-flight: must be between 1 and 100000; the default is 8",
    ]) {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}
