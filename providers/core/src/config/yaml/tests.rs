#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::{KeyCase, Value, document, documents};
use crate::{
    Environment,
    config::{
        ConfigErrors, GoDuration, KeyPath, Parsed, Position, Problems, Section, config_section, docs,
        parse_yaml,
    },
};

/// A limit of requests.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
struct Limit {
    cloud_provider_rate_limit: bool,
    cloud_provider_rate_limit_bucket: u32,
}

/// One entry of a list.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
struct Balancer {
    name: String,
    allow_service_placement: Option<bool>,
    node_selector: Option<Selector>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
struct Selector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<Expression>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Expression {
    key: String,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Sku {
    Basic,
    #[default]
    Standard,
}

config_section! {
    /// A cloud.
    struct Cloud {
        /// Tenant.
        "tenantId" => tenant_id: String,
        /// Secret.
        "aadClientSecret" => secret: SecretString,
        /// Managed identity.
        "useManagedIdentityExtension" => managed: bool,
        /// Exclude.
        "excludeMaster" => exclude: Option<bool> = Some(true),
        /// Retries.
        "retries" => retries: u32 = 6,
        /// Exponent.
        "exponent" => exponent: f64 = 1.5,
        /// Kind.
        "loadBalancerSku" => sku: Sku,
        /// Timeout.
        "timeout" => timeout: GoDuration = GoDuration::from_secs(5),
        /// Tags.
        "tagsMap" => tags: BTreeMap<String, String>,
        /// Zones.
        "zones" => zones: Vec<u16>,
        /// Limit.
        "routeRateLimit" => route_limit: Limit,
        /// Load balancers.
        "balancers" => balancers: Vec<Balancer>,
    }
}

fn read_as(case: KeyCase, text: &str) -> Result<Parsed<Cloud>, ConfigErrors> {
    parse_yaml(
        text,
        "azure.json",
        case,
        &Environment::default(),
        |cloud: &Cloud, problems: &mut Problems| {
            if cloud.tenant_id.is_empty() {
                problems.error(KeyPath::key("tenantId"), "missing; write the id of the tenant");
            }
        },
    )
}

fn read(text: &str) -> Parsed<Cloud> {
    read_as(KeyCase::Insensitive, text).unwrap()
}

fn errors(text: &str) -> Vec<String> {
    let errors = read_as(KeyCase::Insensitive, text).unwrap_err();
    errors.to_string().lines().map(str::to_owned).collect()
}

fn warnings(parsed: &Parsed<Cloud>) -> Vec<String> {
    parsed.warnings.iter().map(ToString::to_string).collect()
}

const YAML: &str = "
TenantID: 0123          # A number, but the key takes a text.
aadClientSecret: s3cr3t
useManagedIdentityExtension: yes
excludeMaster: null
retries: 0x10
exponent: 2
loadBalancerSku: basic
timeout: 1m30s
tagsMap: {Owner: me, year: 2024}
zones:
- 1
- '2'
routeRateLimit:
  cloudProviderRatelimit: true
  cloudProviderRateLimitBucket: 5
balancers:
- name: a
  allowServicePlacement: false
  nodeSelector:
    matchLabels: {pool: a}
    matchExpressions: [{key: zone, values: [1, b]}]
- name: b
";

#[test]
fn a_file_is_read_without_regard_to_the_case_of_keys() {
    let parsed = read(YAML);
    assert_eq!(warnings(&parsed), [""; 0]);
    let cloud = &parsed.value;
    assert_eq!(cloud.tenant_id, "0123");
    assert_eq!(cloud.secret.expose_secret(), "s3cr3t");
    assert!(cloud.managed && cloud.exclude == Some(true));
    assert_eq!((cloud.retries, cloud.exponent), (16, 2.0));
    assert_eq!((cloud.sku, cloud.timeout), (Sku::Basic, GoDuration::from_secs(90)));
    assert_eq!(
        cloud.tags,
        [("Owner", "me"), ("year", "2024")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    );
    assert_eq!(cloud.zones, [1, 2]);
    assert_eq!(
        cloud.route_limit,
        Limit {
            cloud_provider_rate_limit: true,
            cloud_provider_rate_limit_bucket: 5
        }
    );
    let selector = cloud.balancers[0].node_selector.as_ref().unwrap();
    assert_eq!(selector.match_labels["pool"], "a");
    assert_eq!(selector.match_expressions[0].values, ["1", "b"]);
    assert_eq!(cloud.balancers[0].allow_service_placement, Some(false));
    assert_eq!(
        cloud.balancers[1],
        Balancer {
            name: "b".to_owned(),
            ..Balancer::default()
        }
    );
    let at = |key| parsed.locations.get(KeyPath::key(key)).map(|at| (at.line, at.column));
    assert_eq!((at("tenantid"), at("excludeMaster")), (Some((2, 11)), None));
    assert!(!format!("{parsed:?}").contains("s3cr3t"));
}

#[test]
fn json_means_the_same() {
    let json = document(YAML).unwrap().unwrap().to_json();
    let mut json = json;
    json["tenantId"] = "0123".into();
    json.as_object_mut().unwrap().remove("TenantID");
    let parsed = read(&serde_json::to_string_pretty(&json).unwrap());
    assert_eq!(warnings(&parsed), [""; 0]);
    assert_eq!(Section::changed_keys(&parsed.value, &read(YAML).value), [""; 0]);
}

#[test]
fn an_empty_file_is_a_file_of_defaults() {
    for text in ["", "# later\n", "---\n", "null"] {
        assert_eq!(errors(text), ["azure.json: tenantId: missing; write the id of the tenant"], "{text:?}");
    }
}

#[test]
fn every_error_is_reported_with_its_line_key_and_correction() {
    let text = "aadClientSecret: [s3cr3t]\nuseManagedIdentityExtension: maybe\nretries: -1\nexponent: fast\n\
                loadBalancerSku: standrd\ntimeout: 90\ntagsMap: a=b\nzones: [1, x, 2, y]\nrouteRateLimit: 7\nbalancers:\n\
                - name: [a]\n  allowServicePlacement: 2\n- nodeSelector:\n    matchExpressions:\n    - values: [a]\n- c\n";
    assert_eq!(
        errors(text),
        [
            "azure.json:1:1: tenantId: missing; write the id of the tenant",
            "azure.json:1:18: aadClientSecret: value not accepted; write a text",
            "azure.json:2:30: useManagedIdentityExtension: failed to parse bool `maybe`; write true, yes, on or 1, or else \
             false, no, off or 0",
            "azure.json:3:10: retries: failed to parse \"-1\" as uint32: it is negative; write a whole number from 0 to \
             4294967295",
            "azure.json:4:11: exponent: failed to parse \"fast\" as float64; write a number such as 1.5",
            "azure.json:5:18: loadBalancerSku: unknown value \"standrd\"; did you mean standard? Known are basic or standard",
            "azure.json:6:10: timeout: time: missing unit in duration \"90\"; write 90s for seconds",
            "azure.json:7:10: tagsMap: a text instead of a map; write keys with values",
            "azure.json:8:12: zones[1]: failed to parse \"x\" as uint16: expected integer; write a whole number from 0 to 65535",
            "azure.json:8:18: zones[3]: failed to parse \"y\" as uint16: expected integer; write a whole number from 0 to 65535",
            "azure.json:9:17: routeRateLimit: a number instead of a map; write keys with values",
            "azure.json:11:9: balancers[0].name: a list instead of a text",
            "azure.json:12:26: balancers[0].allowServicePlacement: failed to parse bool `2`; write true, yes, on or 1, or else \
             false, no, off or 0",
            "azure.json:15:7: balancers[1].nodeSelector.matchExpressions[0]: key \"key\" is missing",
            "azure.json:16:3: balancers[2]: a text instead of a map; write keys with values",
        ]
    );
}

#[test]
fn unknown_and_repeated_keys_are_warnings() {
    let text = "tenantId: a\nTENANTID: b\nretrys: 3\nnothing: {retries: 1}\nrouteRateLimit:\n  cloudProviderRateLimits: true\n\
                balancers:\n- name: x\n  Name: y\n  colour: red\n";
    let parsed = read(text);
    assert_eq!(
        warnings(&parsed),
        [
            "azure.json:2:1: TENANTID: given twice, first in line 1; the last one counts, keep only one",
            "azure.json:3:1: retrys: unknown key, ignored; did you mean retries?",
            "azure.json:4:1: nothing: unknown key, ignored; remove it, or see --help-cloud-config",
            "azure.json:6:3: cloudProviderRateLimits: unknown key, ignored; did you mean cloudProviderRateLimit?",
            "azure.json:9:3: Name: given twice, first in line 8; the last one counts, keep only one",
            "azure.json:10:3: colour: unknown key, ignored; remove it, or see --help-cloud-config",
        ]
    );
    assert_eq!((&*parsed.value.tenant_id, &*parsed.value.balancers[0].name), ("b", "y"));
}

#[test]
fn keys_are_case_sensitive_unless_configured_otherwise() {
    let parsed = read_as(KeyCase::Sensitive, "tenantId: a\nTenantId: b\nbalancers: [{Name: x}]").unwrap();
    assert_eq!(
        warnings(&parsed),
        [
            "azure.json:2:1: TenantId: unknown key, ignored; did you mean tenantId?",
            "azure.json:3:14: Name: unknown key, ignored; did you mean name?",
        ]
    );
    assert_eq!((&*parsed.value.tenant_id, &*parsed.value.balancers[0].name), ("a", ""));
}

#[test]
fn a_file_that_is_not_a_config_is_an_error() {
    for (text, error) in [
        ("- a\n", "azure.json:1:1: the file contains a list; write keys with values"),
        ("hello", "azure.json:1:1: the file contains a text; write keys with values"),
        (
            "tenantId: a\n---\ntenantId: b\n",
            "azure.json:3:1: a second document begins here; write only one document",
        ),
    ] {
        assert_eq!(errors(text), [error], "{text:?}");
    }
    for secret in [
        "*hunter2",
        "&hunter2",
        "!hunter2 [",
        "@hunter2",
        "`hunter2",
        "\"hunter2",
        "{hunter2",
        "%hunter2",
    ] {
        let text = format!("tenantId: a\naadClientSecret: {secret}");
        let shown = format!("{:?}", read_as(KeyCase::Insensitive, &text));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    assert!(errors("tenantId: [")[0].starts_with("azure.json:1:"));
    let error =
        parse_yaml::<Cloud>(b"a: b\n\xff", "f", KeyCase::Sensitive, &Environment::default(), |_, _| ())
            .unwrap_err();
    assert_eq!(error.to_string(), "f:2:1: not UTF-8; store the file as UTF-8");
}

#[test]
fn a_value_is_deserialized_by_itself() {
    let node = document("{a: 1, a: 2, b: {c: x}, d: ~}").unwrap().unwrap();
    let numbers: BTreeMap<String, u8> =
        (document("{a: 1, a: 2}").unwrap().unwrap().deserialize().value).unwrap();
    assert_eq!(numbers, [("a".to_owned(), 2)].into());
    let (at, error) = &node.deserialize::<BTreeMap<String, u8>>().errors[0];
    assert_eq!(
        (*at, error.path(), error.message()),
        (Position { line: 1, column: 17 }, ".b", "a map instead of a number")
    );
    let json: serde_json::Value = node.deserialize().value.unwrap();
    assert_eq!(json, serde_json::json!({"a": 2, "b": {"c": "x"}}));
}

#[test]
fn the_reference_names_nested_keys() {
    let text = docs::yaml_markdown::<Cloud>(|_| false);
    assert!(text.starts_with("A cloud.\n\n| Key |"), "{text}");
    for line in [
        "| `aadClientSecret` | string, secret |  |  | after a restart | Secret. |",
        "| `routeRateLimit` | map with `cloudProviderRateLimit`, `cloudProviderRateLimitBucket` |",
        "| `balancers` | list of map with `name`, `allowServicePlacement`, `nodeSelector` |",
        "| `tagsMap` | map |",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_broken_document_does_not_affect_others() {
    let read = documents("a: 1\n---\nb: [\n---\nc: 3\n---\n~\n");
    let lines: Vec<_> = read
        .iter()
        .map(|read| read.as_ref().map(|node| node.at.line).map_err(|error| error.position.line))
        .collect();
    assert_eq!(lines.first(), Some(&Ok(1)));
    assert!(lines.contains(&Ok(5)) && lines.iter().any(Result::is_err), "{lines:?}");
    assert!(documents("a: &a [*a]").iter().all(Result::is_err));
    let merged = document("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n").unwrap().unwrap();
    assert_eq!(merged.get("y").unwrap().to_json(), serde_json::json!({"a": 1, "b": 3}));
    assert!(matches!(merged.value, Value::Map(_)));
}

#[test]
fn aliases_are_neither_deep_nor_large() {
    let nested = |levels: usize, written: usize| {
        let mut text = "a0: &a0 [x]\n".to_owned();
        for level in 1..levels {
            let (open, close) = ("[".repeat(written), "]".repeat(written));
            text += &format!("a{level}: &a{level} {open}*a{}{close}\n", level - 1);
        }
        document(&text)
    };
    let deepest = nested(12, 23).unwrap().unwrap();
    let _: serde_json::Value = deepest.deserialize().value.unwrap();
    let error = nested(50, 220).unwrap_err();
    assert_eq!(error.position.line, 3);
    assert!(error.message.contains("nested deeper than 255"), "{error:?}");
    let long = "x".repeat(1 << 20);
    let text = format!("a: &a {long}\nb: [{}]\nc:\n- *a\n", "*a, ".repeat(125));
    assert!(document(&text).is_ok());
    let error = document(&format!("{text}- *a\n")).unwrap_err();
    assert_eq!(error.position.line, 5);
    assert!(error.message.contains("more than 128 MiB"), "{error:?}");
}

#[test]
fn a_second_sign_is_part_of_a_text() {
    for text in ["-0x-8000000000000000", "0-5", "0x-5", "0+7"] {
        let node = document(&format!("a: {text}")).unwrap().unwrap();
        assert_eq!(node.text("a"), Some(text));
    }
}

proptest! {
    /// Lines of every kind around a secret, some with errors.
    #[test]
    fn no_file_shows_a_secret_or_makes_it_panic(
        before in prop::collection::vec("[a-zI: \\[\\]{}*&!0-9,-]{0,20}|tenantId: [a-z]{0,3}|balancers: \\[", 0..6),
        after in prop::collection::vec("\\PC{0,20}|retries: [0-9a-z-]{0,4}|zones: \\[[0-9a-z, ]{0,9}\\]", 0..6),
    ) {
        let text = format!("{}\naadClientSecret: hunter2\n{}", before.join("\n"), after.join("\n"));
        let shown = match read_as(KeyCase::Insensitive, &text) {
            Ok(parsed) => format!("{parsed:?}"),
            Err(errors) => format!("{errors} {errors:?}"),
        };
        prop_assert!(!shown.contains("hunter2"), "{}", shown);
    }
}

config_section! {
    /// A cloud with variables.
    struct Variables {
        /// Token.
        "token" | "TOKEN" => token: Option<SecretString>,
        /// Region.
        "region" | "REGION" => region: String,
        /// Kind.
        "sku" | "SKU" => sku: Sku,
        /// Zones.
        "zones" | "ZONES" => zones: Vec<u16>,
        /// Rate.
        "rate" | "RATE" => rate: Option<f64>,
        /// Name.
        "name" => name: String,
    }
}

fn read_variables(text: &str, variables: &[(&str, &str)]) -> Result<Parsed<Variables>, String> {
    let environment = Environment::default();
    let environment = variables
        .iter()
        .fold(environment, |environment, (name, value)| environment.with(*name, *value));
    let check = |conf: &Variables, problems: &mut Problems| {
        for (key, text) in [("region", &conf.region), ("name", &conf.name)] {
            problems.require(text != "bad", KeyPath::key(key), "bad");
            problems.require(!text.is_empty(), KeyPath::key(key), "missing");
        }
    };
    parse_yaml(text, "cloud.yaml", KeyCase::Sensitive, &environment, check)
        .map_err(|errors| errors.to_string())
}

#[test]
fn an_empty_name_in_a_list_is_left_out_with_a_warning() {
    config_section! {
        /// Lists.
        struct Lists {
            /// Names.
            "names" | "NAME_LIST" => names: Vec<String> = vec!["default".to_owned()],
            /// Selectors.
            "selectors" => selectors: Vec<Selector>,
        }
    }
    const TEXT: &str = "an empty name in a list is no name and is left out; remove it";
    let read = |text: &str, variable: &str| {
        let environment = Environment::default().with("NAME_LIST", variable);
        let case = KeyCase::Sensitive;
        let parsed = parse_yaml::<Lists>(text, "cloud.yaml", case, &environment, |_, _| ()).unwrap();
        let warnings: Vec<_> = parsed.warnings.iter().map(ToString::to_string).collect();
        (parsed.value, warnings)
    };
    let selectors = "selectors:\n- matchExpressions:\n  - {key: pool, values: [\"\", a]}\n";
    let (lists, warnings) = read(&format!("names: [a, \"\", ~, b]\n{selectors}"), "");
    assert_eq!(lists.names, ["a", "b"]);
    assert_eq!(
        lists.selectors[0].match_expressions[0].values,
        ["", "a"],
        "an empty value of a label is a value"
    );
    assert_eq!(
        warnings,
        [
            format!("cloud.yaml:1:12: names: {TEXT}"),
            format!("cloud.yaml:1:16: names: {TEXT}")
        ]
    );
    let (lists, warnings) = read("names: ['']", "");
    assert_eq!((lists.names, warnings.len()), (vec!["default".to_owned()], 1));
    let (lists, warnings) = read("names: []", "");
    assert_eq!((lists.names, warnings.len()), (Vec::new(), 0));
    let (lists, warnings) = read("names: [c]", "a,,b,");
    assert_eq!(lists.names, ["a", "b"]);
    assert_eq!(warnings, [format!("cloud.yaml:1:1: NAME_LIST: {TEXT}")]);
    let (lists, _) = read("names: [c]", ",");
    assert_eq!(lists.names, ["c"]);
}

#[test]
fn variables_win_over_the_file_and_are_named_in_errors() {
    let variables = [
        ("TOKEN", "secret"),
        ("REGION", "two"),
        ("SKU", "basic"),
        ("ZONES", "1, 2,,3"),
        ("RATE", "2.5"),
    ];
    let text = "region: one\nzones: [7]\nname: web\n";
    let conf = read_variables(text, &variables).unwrap().value;
    let token = conf.token.map(|token| token.expose_secret().to_owned());
    assert_eq!(
        (token.as_deref(), conf.region.as_str(), conf.sku, conf.zones, conf.rate),
        (Some("secret"), "two", Sku::Basic, vec![1, 2, 3], Some(2.5))
    );
    let unset = read_variables(text, &[("REGION", "")]).unwrap().value;
    assert_eq!((unset.region.as_str(), unset.zones), ("one", vec![7]));
    let wrong = [
        ("REGION", "bad"),
        ("SKU", "gold"),
        ("ZONES", "1,x,2,y"),
        ("RATE", "fast"),
    ];
    let errors = read_variables("region: one\nname: bad\n", &wrong).unwrap_err();
    for part in [
        "REGION: bad",
        "SKU: unknown value \"gold\"",
        "ZONES: failed to parse \"x\"",
        "RATE: failed to parse \"fast\"",
        "cloud.yaml:2:7: name: bad",
    ] {
        assert!(errors.contains(part), "{part} is not in {errors}");
    }
    let missing = read_variables("", &[]).unwrap_err();
    assert_eq!(missing, "cloud.yaml: REGION: missing\ncloud.yaml: name: missing");
    let table = docs::yaml_markdown::<Variables>(|_| false);
    assert!(table.contains("Zones. Variable `ZONES`, separated by commas."), "{table}");
    assert!(table.contains("| Region. Variable `REGION`. |"), "{table}");
}
