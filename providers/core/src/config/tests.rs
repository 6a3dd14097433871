#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::{
    ConfigErrors, GoDuration, NameList, Parsed, Problems, Section, config_file, config_section, docs, parse,
    parse_with,
};
use crate::error::{Error, ErrorKind};

/// How a service is reached.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Endpoint {
    #[default]
    Public,
    Internal,
    Admin,
}

config_section! {
    /// Credentials and
    /// transport.
    struct Global {
        /// Keystone URL. Example: `https://keystone.example`.
        "auth-url" => auth_url: String,
        /// The secret of an application credential.
        "application-credential-secret" => application_credential_secret: Option<SecretString>,
        /// Password | phrase.
        "password" => password: SecretString,
        /// Region.
        "region" => region: String,
        /// CA bundle.
        "ca-file" => ca_file: Option<String>,
        /// Which endpoint.
        "os-endpoint-type" => endpoint: Endpoint,
        /// Read clouds.yaml.
        "use-clouds" => use_clouds: bool,
        /// The credential.
        "application-credential-id" => application_credential_id: String,
    }
}

config_section! {
    /// Networks.
    struct Networking {
        /// Names.
        "internal-network-name" => internal: Vec<String>,
        /// Order.
        "address-sort-order" => order: String,
    }
}

config_section! {
    /// Load balancers.
    struct LoadBalancer {
        /// Floating network.
        "floating-network-id" => floating_network_id: String,
        /// Make monitors.
        "create-monitor" => create_monitor: bool,
        /// Delay.
        "monitor-delay" => monitor_delay: GoDuration = GoDuration::from_secs(5),
        /// Timeout.
        "monitor-timeout" => monitor_timeout: GoDuration = GoDuration::from_secs(3),
        /// Retries.
        "monitor-max-retries" => monitor_max_retries: u32 = 1,
        /// Sharing.
        "max-shared-lb" => max_shared_lb: i64 = 2,
        /// Provider.
        "lb-provider" => lb_provider: String = "amphora".to_owned(),
        /// Selector.
        "node-selector" => node_selector: String,
    }
}

config_section! {
    /// One class.
    struct Class {
        /// Tags.
        "floating-subnet-tags" => floating_subnet_tags: String,
    }
}

config_section! {
    /// Metadata.
    struct Metadata {
        /// Timeout of every request.
        "request-timeout" => request_timeout: GoDuration = GoDuration::from_secs(60),
    }
}

config_section! {
    /// Routes.
    struct Route {
        /// The router.
        "router-id" => router_id: String,
    }
}

config_file! {
    /// The whole file.
    struct CloudConf {
        "Global" => global: Global,
        "Networking" => networking: Networking,
        "LoadBalancer" => load_balancer: LoadBalancer,
        "LoadBalancerClass" => classes: BTreeMap<String, Class>,
        "Metadata" => metadata: Metadata,
        "Route" => route: Route,
    }
    ignored: ["BlockStorage"]
}

const SAMPLE: &str = r#"
[Global]
auth-url = "https://keystone.example:5000/v3"   ; comment after a value
application-credential-id = 21dced0fd20347869b93710d2b98aae0
application-credential-secret = "s3cr#t;with\\specials"
region = RegionOne
ca-file = /etc/ssl/certs/openstack-ca.pem

[Networking]
internal-network-name = k8s-net
internal-network-name = k8s-net-v6
address-sort-order = 10.0.0.0/8, 2001:db8::/32

[LoadBalancer]
floating-network-id = 80c9fc78-a2be-45d5-a85b-f17a6c98df92
create-monitor            # valueless bool = true
monitor-delay = 10s
monitor-timeout = 5s
max-shared-lb = 4
node-selector = "env=production, pool"

[LoadBalancerClass "dmz"]
floating-subnet-tags = "&dmz,public"

[Metadata]
request-timeout = 90s

[BlockStorage]
bs-version = v3            # ignored
"#;

fn read(text: &str) -> Result<Parsed<CloudConf>, ConfigErrors> {
    parse(text, "/etc/config/cloud.conf")
}

fn warnings(text: &str) -> Vec<String> {
    read(text).unwrap().warnings.iter().map(ToString::to_string).collect()
}

fn errors(text: &str) -> Vec<String> {
    read(text).unwrap_err().to_string().lines().map(str::to_owned).collect()
}

#[test]
fn an_empty_name_in_a_list_is_left_out_with_a_warning() {
    config_section! {
        /// Lists.
        struct Lists {
            /// Names.
            "names" => names: Vec<String> = vec!["default".to_owned()],
            /// Numbers.
            "numbers" => numbers: Vec<u8>,
            /// Networks.
            "networks" => networks: NameList = NameList::from(["default"]),
            /// Text.
            "text" => text: String = "default".to_owned(),
        }
    }
    config_file! {
        /// File.
        struct File {
            "Lists" => lists: Lists,
        }
    }
    let read = |text: &str| {
        let parsed = parse::<File>(format!("[Lists]\n{text}"), "cloud.conf").unwrap();
        let warnings: Vec<_> = parsed.warnings.iter().map(ToString::to_string).collect();
        (parsed.value.lists, warnings)
    };
    let warning = |line: usize, key: &str| {
        let column = key.len() + 2;
        format!(
            "cloud.conf:{line}:{column}: [Lists] {key}: an empty name in a list is no name and is left out; remove it"
        )
    };

    let text = "names=a\nnames=\"\"\nnames=b\nnumbers=\nnumbers=7\nnetworks=\nnetworks=net\ntext=\"\"\n";
    let (lists, warnings) = read(text);
    assert_eq!(lists.names, ["a", "b"]);
    assert_eq!(lists.numbers, [7]);
    assert_eq!(lists.networks, NameList::from(["net"]));
    assert_eq!(lists.text, "", "an empty text is a value");
    assert_eq!(warnings, [warning(3, "names"), warning(5, "numbers"), warning(7, "networks")]);

    // With nothing else in it, the key counts as missing.
    let (lists, warnings) = read("names=\nnetworks=\"\"\nnetworks=");
    assert_eq!(lists.names, ["default"]);
    assert!(lists.networks.has_only_empty_names() && lists.networks.names().is_empty());
    assert_eq!(
        warnings,
        [
            warning(2, "names"),
            warning(3, "networks"),
            warning(4, "networks")
        ]
    );
    let (removed, _) = read("networks");
    assert!(!removed.networks.has_only_empty_names() && removed.networks.names().is_empty());
    assert_eq!(removed.changed_keys(&lists), ["networks"]);
}

#[test]
fn a_secret_that_a_comment_may_cut_is_reported_without_its_text() {
    config_section! {
        /// Secrets.
        struct Secrets {
            /// Password.
            "password" => password: Option<SecretString>,
            /// Name.
            "name" => name: String,
        }
    }
    config_file! {
        /// File.
        struct File {
            "Global" => global: Secrets,
        }
    }
    for (line, read_as, is_reported) in [
        ("password=hunter$n#1", "hunter$n", true),
        ("password = [842}4q;cx3B", "[842}4q", true),
        ("password=#hunter", "", true),
        ("password=hunter #1", "hunter", false),
        ("password=hunter\t; comment", "hunter", false),
        ("password= # comment", "", false),
        ("password=\"hunter#1\"", "hunter#1", false),
        ("password=\"hunter\"#1", "hunter", false),
        ("password=hunter", "hunter", false),
        ("name=web#1", "", false),
    ] {
        let parsed = parse::<File>(format!("[Global]\n{line}\n"), "cloud.conf").unwrap();
        let password = parsed.value.global.password;
        let password = password.map(|password| password.expose_secret().to_owned());
        assert_eq!(password.unwrap_or_default(), read_as, "{line}");
        let warnings: Vec<_> = parsed.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), usize::from(is_reported), "{line}: {warnings:?}");
        for warning in warnings {
            assert!(warning.starts_with("cloud.conf:2:") && warning.contains("double quotes"), "{warning}");
            assert!(!warning.contains("hunter") && !warning.contains("842"), "{warning}");
        }
    }
}

#[test]
fn reads_the_sample() {
    let parsed = read(SAMPLE).unwrap();
    assert!(parsed.warnings.is_empty(), "{:?}", parsed.warnings);
    let conf = parsed.value;
    assert_eq!(conf.global.auth_url, "https://keystone.example:5000/v3");
    assert_eq!(conf.global.application_credential_id, "21dced0fd20347869b93710d2b98aae0");
    let secret = conf.global.application_credential_secret.unwrap();
    assert_eq!(secret.expose_secret(), r"s3cr#t;with\specials");
    assert_eq!(conf.global.region, "RegionOne");
    assert_eq!(conf.global.ca_file.as_deref(), Some("/etc/ssl/certs/openstack-ca.pem"));
    assert_eq!(conf.networking.internal, ["k8s-net", "k8s-net-v6"]);
    assert_eq!(conf.networking.order, "10.0.0.0/8, 2001:db8::/32");
    assert_eq!(conf.load_balancer.floating_network_id, "80c9fc78-a2be-45d5-a85b-f17a6c98df92");
    assert!(conf.load_balancer.create_monitor);
    assert_eq!(conf.load_balancer.monitor_delay, GoDuration::from_secs(10));
    assert_eq!(conf.load_balancer.monitor_timeout, GoDuration::from_secs(5));
    assert_eq!(conf.load_balancer.max_shared_lb, 4);
    assert_eq!(conf.load_balancer.node_selector, "env=production, pool");
    assert_eq!(conf.classes["dmz"].floating_subnet_tags, "&dmz,public");
    assert_eq!(conf.metadata.request_timeout, GoDuration::from_secs(90));
}

#[test]
fn a_missing_key_has_its_default() {
    let conf = read("").unwrap().value;
    assert_eq!(conf.load_balancer.monitor_delay, GoDuration::from_secs(5));
    assert_eq!(conf.load_balancer.lb_provider, "amphora");
    assert_eq!(conf.global.endpoint, Endpoint::Public);
    assert_eq!(conf.global.password.expose_secret(), "");
    assert!(conf.classes.is_empty());
    assert_eq!(conf.route.router_id, "");
}

#[test]
fn names_ignore_case_and_repeated_sections_merge() {
    let conf = read("[GLOBAL]\nAUTH-URL = a\nregion = x\n[global]\nRegion = b\nos-endpoint-type = admin")
        .unwrap()
        .value;
    assert_eq!((conf.global.auth_url.as_str(), conf.global.region.as_str()), ("a", "b"));
    assert_eq!(conf.global.endpoint, Endpoint::Admin);
    let text = "[LoadBalancerClass \"a\"]\nfloating-subnet-tags = x\n[loadbalancerclass \"A\"]\n[LOADBALANCERCLASS \"a\"]\n\
                floating-subnet-tags = y";
    let classes = read(text).unwrap().value.classes;
    assert_eq!(classes.keys().collect::<Vec<_>>(), ["A", "a"]);
    assert_eq!(classes["a"].floating_subnet_tags, "y");
}

#[test]
fn all_errors_are_reported_at_once_in_the_order_of_the_file() {
    let text = "[Global]\nos-endpoint-type = internl\nuse-clouds = maybe\nauth_url = x\n[LoadBalancer]\nmonitor-delay = 5\n\
                create-monitor = true\nmonitor-max-retries = -1\nlb-provider\n[LoadBalancerClass dmz]\nk\n[Metadata]\n\
                request-timeout =\n[LoadBalancer]\nmonitor-delay = 6d";
    assert_eq!(
        errors(text),
        [
            r#"/etc/config/cloud.conf:2:20: unknown value "internl" at section "Global", variable "os-endpoint-type"; did you mean internal? Known are public, internal or admin"#,
            r#"/etc/config/cloud.conf:3:14: failed to parse bool `maybe` at section "Global", variable "use-clouds"; write true, yes, on or 1, or else false, no, off or 0"#,
            r#"/etc/config/cloud.conf:4:5: illegal character U+005F '_'; names are written with '-', not '_'"#,
            r#"/etc/config/cloud.conf:6:17: time: missing unit in duration "5" at section "LoadBalancer", variable "monitor-delay"; write 5s for seconds"#,
            r#"/etc/config/cloud.conf:8:23: failed to parse "-1" as uint32: it is negative at section "LoadBalancer", variable "monitor-max-retries"; write a whole number from 0 to 4294967295"#,
            r#"/etc/config/cloud.conf:9:1: blank value not supported for type at section "LoadBalancer", variable "lb-provider"; write key = value"#,
            r#"/etc/config/cloud.conf:10:20: expected subsection name or right bracket"#,
            r#"/etc/config/cloud.conf:13:18: time: invalid duration "" at section "Metadata", variable "request-timeout"; write a number with one of the units ns, us, ms, s, m, h, as in 90s or 1m30s"#,
            r#"/etc/config/cloud.conf:15:17: time: unknown unit "d" in duration "6d" at section "LoadBalancer", variable "monitor-delay"; write a number with one of the units ns, us, ms, s, m, h, as in 90s or 1m30s"#,
        ]
    );
}

#[test]
fn an_error_in_a_subsection_names_it() {
    let text = "[LoadBalancerClass \"dmz\"]\nfloating-subnet-tags";
    assert!(
        errors(text)[0]
            .contains(r#"at section "LoadBalancerClass", subsection "dmz", variable "floating-subnet-tags""#)
    );
}

#[test]
fn unknown_names_are_warnings_with_line_and_nearest_name() {
    let text = "[Global]\nauthurl = x\nregoin = y\nrequest-timeout = 5\ncolour = red\n[Router]\nrouter-id = z\n\
                [Unheard-Of]\n[Global \"x\"]\npassword = p\n[LoadBalancerClass]\n[BlockStorage]\nbs-version = v3";
    assert_eq!(
        warnings(text),
        [
            "/etc/config/cloud.conf:2:1: [Global] authurl: unknown key, ignored; did you mean auth-url?",
            "/etc/config/cloud.conf:3:1: [Global] regoin: unknown key, ignored; did you mean region?",
            "/etc/config/cloud.conf:4:1: [Global] request-timeout: unknown key, ignored; it belongs in [Metadata]",
            "/etc/config/cloud.conf:5:1: [Global] colour: unknown key, ignored; remove it, or see --help-cloud-config",
            "/etc/config/cloud.conf:6:2: [Router]: unknown section, ignored; did you mean [Route]?",
            "/etc/config/cloud.conf:8:2: [Unheard-Of]: unknown section, ignored",
            "/etc/config/cloud.conf:9:2: [Global \"x\"]: this section takes no subsection, so this part of the file is ignored",
            "/etc/config/cloud.conf:11:2: [LoadBalancerClass]: this section needs a name, as in [LoadBalancerClass \"name\"]; \
         without a name, it has no effect",
        ]
    );
    assert_eq!(read(text).unwrap().value.global.password.expose_secret(), "");
    assert_eq!(read(text).unwrap().warnings[0].line(), Some(2));
}

#[test]
fn checks_of_the_provider_join_the_list_with_the_place_of_the_key() {
    let text = "[LoadBalancer]\nmonitor-delay = 5\nmonitor-timeout = 9s\n[Global]\nregion = r\n[Route]\n";
    let check = |conf: &CloudConf, problems: &mut Problems| {
        if conf.global.auth_url.is_empty() {
            problems.error(("Global", "auth-url"), "missing, write the URL of Keystone");
        }
        if conf.load_balancer.monitor_timeout > conf.load_balancer.monitor_delay {
            problems.error(("LoadBalancer", "monitor-timeout"), "must not be above monitor-delay");
            problems.error(("LoadBalancer", "Monitor-Delay"), "seen only because its value is wrong");
        }
        assert!(problems.locations().is_set(("global", "region")));
        assert!(!problems.locations().is_set(("Global", "auth-url")));
        assert!(problems.locations().is_set("Route"));
        problems.error(("Metadata", "request-timeout"), "not there at all");
        problems.warn(("Global", "region"), "never shown, there are errors");
    };
    let errors = parse_with::<CloudConf>(text, "c", check).unwrap_err();
    let lines: Vec<String> = errors.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            r#"c:2:17: time: missing unit in duration "5" at section "LoadBalancer", variable "monitor-delay"; write 5s for seconds"#,
            "c:3:19: [LoadBalancer] monitor-timeout: must not be above monitor-delay",
            "c:4:2: [Global] auth-url: missing, write the URL of Keystone",
            "c: [Metadata] request-timeout: not there at all",
        ]
    );
    let error = Error::from(errors);
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

#[test]
fn checks_do_not_run_on_a_file_with_syntax_errors() {
    let errors = parse_with::<CloudConf>("[Global]\n@", "c", |_, problems| {
        problems.error(("Global", "auth-url"), "missing");
    });
    assert_eq!(errors.unwrap_err().problems().len(), 1);
}

#[test]
fn checks_may_come_later_with_the_locations_of_the_file() {
    let parsed = read("[LoadBalancerClass \"a\"]\nfloating-subnet-tags = x").unwrap();
    let mut problems = Problems::new("c", parsed.locations);
    problems.warn(("LoadBalancerClass", "a", "floating-subnet-tags"), "w");
    problems.warn(("LoadBalancerClass", "b", "floating-subnet-tags"), "x");
    let lines: Vec<String> = problems.finish().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "c:2:24: [LoadBalancerClass \"a\"] floating-subnet-tags: w",
            "c: [LoadBalancerClass \"b\"] floating-subnet-tags: x"
        ]
    );
}

#[test]
fn a_file_that_is_not_a_config_is_not_reported_line_by_line() {
    let text = errors(&"@\n".repeat(1000));
    assert_eq!(text.len(), 101);
    assert_eq!(text[100], "and 900 more");
    let long = errors(&format!("[LoadBalancer]\ncreate-monitor = {}", "x".repeat(100_000)));
    assert!(long[0].len() < 1_000);
}

#[test]
fn secrets_are_never_shown() {
    let secret = "hunter2";
    let good =
        read(&format!("[Global]\npassword = {secret}\napplication-credential-secret = {secret}")).unwrap();
    assert!(!format!("{good:?}").contains(secret));
    assert_eq!(good.value.global.password.expose_secret(), secret);

    // The second line of a value with a line break is a key without a value.
    for padding in ["", "=", "=="] {
        let broken = warnings(&format!("[Global]\npassword =\n{secret}{padding}"));
        assert_eq!(
            broken,
            [
                "/etc/config/cloud.conf:3:1: [Global]: unknown key, ignored; remove it, or see --help-cloud-config"
            ]
        );
    }

    for line in [
        format!("password = \"{secret}"),
        format!("password = {secret}\\x"),
        format!("password = \"{secret}\\x\""),
        format!("password = {secret}\npassword"),
        format!("pass_word = {secret}"),
        format!("password {secret}"),
        format!("password: {secret}"),
    ] {
        let error = read(&format!("[Global]\n{line}")).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(secret), "{error}");
    }
    for line in [format!("pasword = {secret}"), format!("colour = {secret}")] {
        let parsed = read(&format!("[Global]\n{line}")).unwrap();
        assert_eq!(parsed.warnings.len(), 1);
        assert!(!format!("{parsed:?} {}", parsed.warnings[0]).contains(secret));
    }
}

#[test]
fn the_reference_is_generated_from_the_structs() {
    let text = docs::markdown::<CloudConf>(3, |key| key == "[Global] region");
    let expected = "### `[Global]`\n\nCredentials and transport.\n\n| Key | Type | Default | Example | Changes take effect | Meaning |\n|---|---|---|---|---|---|\n\
        | `auth-url` | string |  | `https://keystone.example` | after a restart | Keystone URL. |\n\
        | `application-credential-secret` | string, secret |  |  | after a restart | The secret of an application credential. |\n\
        | `password` | string, secret |  |  | after a restart | Password \\| phrase. |\n\
        | `region` | string |  |  | at once | Region. |\n\
        | `ca-file` | string |  |  | after a restart | CA bundle. |\n\
        | `os-endpoint-type` | `public`, `internal` or `admin` | `public` |  | after a restart | Which endpoint. |\n\
        | `use-clouds` | bool | `false` |  | after a restart | Read clouds.yaml. |\n";
    assert!(text.starts_with(expected), "{text}");
    for line in [
        "### `[LoadBalancerClass \"name\"]`",
        "| `internal-network-name` | list of string |  |  | after a restart | Names. |",
        "| `monitor-delay` | duration | `5s` |  | after a restart | Delay. |",
        "| `monitor-max-retries` | uint | `1` |  | after a restart | Retries. |",
        "| `max-shared-lb` | int | `2` |  | after a restart | Sharing. |",
        "| `lb-provider` | string | `amphora` |  | after a restart | Provider. |",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.ends_with("|\n"));
}

proptest! {
    /// Lines of every kind around a secret, some with errors.
    #[test]
    fn no_file_shows_a_secret_or_makes_it_panic(
        before in prop::collection::vec("[a-z =\"#;\\[\\]_0-9-]{0,20}|\\[Global\\]|use-clouds = [a-z]{0,3}", 0..8),
        after in prop::collection::vec("\\PC{0,20}|\\[LoadBalancer\\]|monitor-delay[= 0-9s]{0,4}", 0..8),
    ) {
        let text = format!("{}\n[Global]\npassword = hunter2\n{}", before.join("\n"), after.join("\n"));
        let shown = match read(&text) {
            Ok(parsed) => format!("{parsed:?}"),
            Err(errors) => format!("{errors} {errors:?}"),
        };
        prop_assert!(!shown.contains("hunter2"), "{}", shown);
    }
}

#[test]
fn changed_keys_are_those_with_different_values() {
    let changed = |old: &str, new: &str| {
        super::ConfigFile::changed_keys(&read(old).unwrap().value, &read(new).unwrap().value)
    };
    assert_eq!(changed(SAMPLE, SAMPLE), Vec::<String>::new());
    let rewritten = SAMPLE
        .replace("90s", "1m30s")
        .replace("create-monitor  ", "CREATE-MONITOR = yes ")
        .replace("[Networking]", "# moved\n[networking]")
        .replace("RegionOne", "\"RegionOne\"");
    assert_eq!(changed(SAMPLE, &rewritten), Vec::<String>::new());
    let other = SAMPLE
        .replace("s3cr#t", "s3cr#ts")
        .replace("k8s-net-v6", "k8s-net-v4")
        .replace("\"&dmz,public\"", "x")
        .replace("90s", "91s")
        .replace("bs-version = v3", "bs-version = v2");
    let keys = [
        "[Global] application-credential-secret",
        "[Networking] internal-network-name",
        "[LoadBalancerClass \"dmz\"] floating-subnet-tags",
        "[Metadata] request-timeout",
    ];
    assert_eq!(changed(SAMPLE, &other), keys);
    // A missing key has its default, and a removed section removes its keys.
    assert_eq!(
        changed(SAMPLE, &SAMPLE.replace("monitor-delay = 10s", "")),
        ["[LoadBalancer] monitor-delay"]
    );
    let renamed = SAMPLE.replace("\"dmz\"", "\"lan\"");
    let keys = ["dmz", "lan"].map(|name| format!("[LoadBalancerClass \"{name}\"] floating-subnet-tags"));
    assert_eq!(changed(SAMPLE, &renamed), keys);
}

#[test]
fn values_are_compared_and_not_their_debug_text() {
    #[derive(Clone, Default, Deserialize, PartialEq)]
    struct Hidden(String);

    impl std::fmt::Debug for Hidden {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("..")
        }
    }

    config_section! {
        /// Keys.
        struct Keys {
            /// A value that is not shown.
            "hidden" => hidden: Hidden,
            /// A secret.
            "one" => one: SecretString,
            /// A secret that may be missing.
            "optional" => optional: Option<SecretString>,
            /// Several secrets.
            "several" => several: Vec<SecretString>,
        }
    }
    let keys = |text: &str| Keys {
        hidden: Hidden(text.to_owned()),
        one: text.into(),
        optional: Some(text.into()),
        several: vec![text.into(), text.into()],
    };
    let old = keys("a");
    assert_eq!(old.changed_keys(&keys("a")), [""; 0]);
    assert_eq!(old.changed_keys(&keys("b")), ["hidden", "one", "optional", "several"]);
    let fewer = Keys {
        optional: None,
        several: vec!["a".into()],
        ..keys("a")
    };
    assert_eq!(old.changed_keys(&fewer), ["optional", "several"]);
    assert_eq!(fewer.changed_keys(&fewer.clone()), [""; 0]);
}
