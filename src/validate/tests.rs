#![allow(clippy::unwrap_used, clippy::expect_used)]

use ccm_core::{
    Cloud, Error, ErrorKind, async_trait,
    check::{CloudReport, Field, Place, ServiceFinding},
    client::{ClientMetrics, Fence},
    config::Position,
    load_balancer::ServiceView,
    plan::PlanMetrics,
    registry::CheckerResult,
};

use super::{manifest::Reading, *};

fn read(text: &str) -> Reading {
    manifest::read("f.yaml", text.as_bytes())
}

/// Line, Service, field and message of everything that is wrong.
fn wrong(text: &str) -> Vec<(usize, String, String, String)> {
    let findings = read(text).findings.into_iter();
    findings
        .map(|(service, finding)| {
            let position = finding.place.unwrap().position.unwrap();
            (position.line, service.unwrap_or_default(), finding.about, finding.message)
        })
        .collect()
}

const SEVERAL: &str = r#"# Comments do not count.
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
---
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  annotations:
    # The class.
    example.com/class: "fast"
    "example.com/quoted": 'yes'
    example.com/folded: >-
      two
      lines
spec:
  type: LoadBalancer
  loadBalancerIP: 203.0.113.7
  ports:
    - {name: http, port: 80, targetPort: web}
---
# Nothing here.
---
kind: Service
apiVersion: v1
metadata: {name: inner}
spec: {ports: [{port: 1}]}
...
---
{"apiVersion": "v1", "kind": "List", "items": [
	{"apiVersion": "v1", "kind": "Service",
		"metadata": {"name": "listed", "annotations": {"example.com/class": "slow"}},
		"spec": {"type": "LoadBalancer", "ports": [{"port": 443}]}},
	{"apiVersion": "v1", "kind": "Secret", "data": {"x": "c2VjcmV0"}}
]}
---
apiVersion: serving.example.com/v1
kind: Service
metadata: {name: another-api}
"#;

#[test]
fn services_are_found_in_documents_and_lists_with_the_lines_of_their_fields() {
    let reading = read(SEVERAL);
    assert_eq!(reading.findings, []);
    let names: Vec<_> = reading.services.iter().map(|manifest| &manifest.name).collect();
    assert_eq!(names, ["shop/web", "listed"]);
    let others: Vec<_> = reading.others.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    assert_eq!(others, [("Deployment", 1), ("Secret", 1), ("Service", 1)]);
    assert_eq!(reading.skipped.len(), 1);
    let skipped = &reading.skipped[0];
    assert_eq!(
        (skipped.line, skipped.service.as_str(), skipped.why.as_str()),
        (27, "inner", "type ClusterIP, not LoadBalancer")
    );

    let web = &reading.services[0];
    let place = |field: &Field| web.place(field).to_string();
    let note = |key: &str| Field::Annotation(key.to_owned());
    for (field, expected) in [
        (note("example.com/class"), "f.yaml:14:5"),
        (note("example.com/quoted"), "f.yaml:15:5"),
        (note("example.com/folded"), "f.yaml:16:5"),
        (note("example.com/missing"), "f.yaml:12:3"),
        (Field::Spec("loadBalancerIP"), "f.yaml:21:3"),
        (Field::Spec("ports"), "f.yaml:22:3"),
        (Field::Spec("ipFamilies"), "f.yaml:19:1"),
        (Field::Whole, "f.yaml:7:1"),
    ] {
        assert_eq!(place(&field), expected, "{field:?}");
    }
    let view = &web.view;
    assert_eq!(view.annotation("example.com/quoted"), Some("yes"));
    assert_eq!(view.annotation("example.com/folded"), Some("two lines"));
    assert_eq!((&*view.load_balancer_ip, view.ports[0].port), ("203.0.113.7", 80));

    assert_ne!(view.ports[0].node_port, 0, "the API server allocates one");

    let listed = &reading.services[1];
    let place = listed.place(&note("example.com/class"));
    assert_eq!(place.position, Some(Position { line: 35, column: 50 }));
    assert_eq!(listed.view.ports[0].port, 443);
}

#[test]
fn node_ports_are_allocated_unless_the_service_forbids_it() {
    let text = "kind: Service\napiVersion: v1\nmetadata: {name: web}\nspec: {type: LoadBalancer, \
                allocateLoadBalancerNodePorts: false, ports: [{port: 1}, {port: 2, nodePort: 31000}]}\n";
    let node_ports = |text: &str| -> Vec<u16> {
        let view = read(text).services[0].view.clone();
        view.ports.iter().map(|port| port.node_port).collect()
    };
    assert_eq!(node_ports(text), [0, 31000]);
    let [first, second] = node_ports(&text.replace("false", "true"))[..] else {
        panic!("two ports")
    };
    assert!(first > 0 && second == 31000);
}

#[test]
fn unreadable_documents_are_reported_with_their_lines_and_affect_no_other() {
    let text = "\
kind: Service
apiVersion: v1
metadata: {name: [oops
spec: {type: LoadBalancer}
---
just a text
---
kind: Service
---
- a
---
apiVersion: v1
kind: Service
metadata: {name: good}
spec: {type: LoadBalancer, ports: [{port: 80}]}
---
a: b: c
---
a: *nowhere
";
    let reading = read(text);
    assert_eq!(reading.services.len(), 1, "{:?}", reading.findings);
    assert_eq!(reading.services[0].name, "good");
    let lines: Vec<_> = wrong(text).into_iter().map(|(line, .., message)| (line, message)).collect();
    let expected = [
        (4, "not YAML: "),
        (6, "not a Kubernetes object, but a text"),
        (8, "an object without apiVersion and kind"),
        (10, "not a Kubernetes object, but a list"),
        (17, "not YAML: "),
        (19, "not YAML: "),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for ((line, message), (expected_line, begin)) in lines.iter().zip(expected) {
        assert!(
            *line == expected_line && message.starts_with(begin),
            "{expected_line} {begin}: {lines:#?}"
        );
    }
    let template = read("metadata:\n  name: {{ .Release.Name }}\n");
    assert!(template.findings[0].1.fix.contains("helm template"), "{template:?}");
    let latin = manifest::read("f.yaml", b"a: b\nc: \xe4\n");
    assert_eq!(latin.findings[0].1.place.as_ref().unwrap().to_string(), "f.yaml:2:1");
}

#[test]
fn annotations_that_are_no_texts_and_fields_of_the_wrong_type_have_their_own_lines() {
    let text = "\
apiVersion: v1
kind: Service
metadata:
  name: web
  annotations:
    example.com/flag: true
    example.com/number: 0x10
    example.com/word: yes
    example.com/version: 1.2.3
    example.com/empty:
    example.com/list: [a]
    example.com/tagged: !!str 5
    example.com/number: \"7\"
spec:
  type: LoadBalancer
  ports:
  - port: 80
  loadBalancerSourceRanges: 10.0.0.0/8
  externalTrafficPolicy: 7
";
    let found = wrong(text);
    let short: Vec<_> = found
        .iter()
        .map(|(line, service, about, message)| {
            assert_eq!(service, "web");
            (*line, about.as_str(), message.split([',', ':']).next().unwrap())
        })
        .collect();
    assert_eq!(
        short,
        [
            (13, "example.com/number", "duplicate key"),
            (6, "example.com/flag", "the value is a boolean"),
            (7, "example.com/number", "the value is a number"),
            (8, "example.com/word", "the value is a boolean"),
            (11, "example.com/list", "the value is a list"),
            (18, "spec.loadBalancerSourceRanges", "not valid in a Service"),
            (19, "spec.externalTrafficPolicy", "not valid in a Service"),
        ]
    );
    // The text that was probably meant is checked, too, and so are the other fields.
    let view = &read(text).services[0].view;
    assert_eq!(view.annotation("example.com/flag"), Some("true"));
    assert_eq!(view.annotation("example.com/empty"), Some(""));
    assert_eq!(view.annotation("example.com/version"), Some("1.2.3"));
    assert_eq!(view.annotation("example.com/tagged"), Some("5"));
    let fix = &read(text).findings[1].1.fix;
    assert_eq!(fix, "write it in quotes: \"true\"");
    let without_ports = text.replace("- port: 80", "- port: eighty");
    assert_eq!(read(&without_ports).services.len(), 0);
    assert!(wrong(&without_ports).iter().any(|(line, ..)| *line == 16));
}

#[test]
fn aliases_are_written_out_but_not_without_end() {
    let text = "\
apiVersion: v1
kind: List
items:
- &web
  apiVersion: v1
  kind: Service
  metadata: {name: one, annotations: &notes {example.com/a: x}}
  spec: &spec {type: LoadBalancer, ports: [{port: 80}]}
- <<: *web
  metadata: {name: two, annotations: {<<: *notes, example.com/b: y}}
";
    let reading = read(text);
    let two = &reading.services[1];
    assert_eq!((two.name.as_str(), two.view.ports.len()), ("two", 1));
    assert_eq!(two.view.annotation("example.com/a"), Some("x"));
    assert_eq!(two.view.annotation("example.com/b"), Some("y"));

    let mut bomb = "a0: &a0 [x]\n".to_owned();
    for i in 1..40 {
        let alias = format!("*a{}, ", i - 1);
        bomb += &format!("a{i}: &a{i} [{}]\n", alias.repeat(9));
    }
    let message = wrong(&bomb).remove(0).3;
    assert!(message.contains("more than 128 MiB"), "{message}");
    let message = wrong("a: &a [*a]").remove(0).3;
    assert!(message.contains("not YAML: "), "{message}");
    let deep = "[".repeat(100_000);
    assert_eq!(wrong(&deep).len(), 1);
}

/// Finds one thing in everything.
struct Strict;

#[async_trait]
impl Checker for Strict {
    fn config(&self) -> Vec<Finding> {
        let place = Place {
            file: "c".to_owned(),
            position: Some(Position { line: 3, column: 1 }),
        };
        vec![Finding::new(Severity::Warning, "config", "[A] b: odd").at(place)]
    }

    async fn cloud(&self) -> CloudReport {
        let mut report = CloudReport {
            scope: Some("project \"x\"".to_owned()),
            left_out: vec!["Writes.".to_owned()],
            ..CloudReport::default()
        };
        report.pass("Acme", "there");
        report
    }

    fn service(&self, service: &ServiceView) -> Option<Vec<ServiceFinding>> {
        let finding = |severity, key: &str| ServiceFinding {
            severity,
            field: Field::Annotation(key.to_owned()),
            message: "wrong".to_owned(),
            fix: "do it right".to_owned(),
        };
        let keys = service.annotations.iter().map(|(key, _)| key);
        Some(keys.map(|key| finding(Severity::Error, key)).collect())
    }
}

fn context() -> BuildContext {
    let mut registry = prometheus_client::registry::Registry::default();
    BuildContext {
        cloud_config: None,
        flags: Default::default(),
        environment: Default::default(),
        cluster_name: "c".to_owned(),
        user_agent: "a".to_owned(),
        metrics: ClientMetrics::default(),
        plan: PlanMetrics::register(&mut registry),
        fences: Fence::standby().into(),
    }
}

const NO_CHECKER: Provider = Provider::new("acme", "for a test", |_| {
    Box::pin(async { Err(Error::new(ErrorKind::Unauthenticated, "who are you")) })
});

fn strict(_: &BuildContext) -> CheckerResult {
    Ok(Box::new(Strict))
}

fn file(text: &str) -> (tempfile::NamedTempFile, Manifests) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let source = Manifests::File(file.path().to_owned());
    (file, source)
}

#[tokio::test]
async fn a_report_holds_config_cloud_and_manifests_in_this_order() {
    let provider = Provider {
        checker: Some(strict),
        ..NO_CHECKER
    };
    let classed = "---\napiVersion: v1\nkind: Service\nmetadata: {name: classed}\n\
                   spec: {type: LoadBalancer, loadBalancerClass: other, ports: [{port: 1}]}\n";
    let (kept, source) = file(&format!("{SEVERAL}{classed}"));
    let missing = Manifests::File("/does/not/exist".into());
    let report = check(&provider, context(), std::slice::from_ref(&source), CloudAccess::Online).await;
    let path = kept.path().display().to_string();
    let name = |text: String| text.replace(&path, "f.yaml");
    insta::assert_snapshot!("text", name(as_text(&report)));
    insta::assert_snapshot!("json", name(as_json(&report).unwrap()));
    assert_eq!((report.verdict(), report.services), (ValidationVerdict::Errors, 2));

    let report = check(&provider, context(), &[], CloudAccess::Online).await;
    assert_eq!(report.verdict(), ValidationVerdict::Warnings);
    assert_eq!(
        [
            report.verdict().exit_code(false),
            report.verdict().exit_code(true)
        ],
        [0, 2]
    );
    let report = check(&provider, context(), std::slice::from_ref(&missing), CloudAccess::Online).await;
    assert_eq!(report.verdict(), ValidationVerdict::Incomplete);
    assert_eq!(report.verdict().exit_code(true), 1);
    // Errors are reported, whatever could not be checked.
    let report = check(&provider, context(), &[missing, source], CloudAccess::Online).await;
    assert_eq!((report.verdict(), report.services), (ValidationVerdict::Errors, 2));
    assert_eq!(report.verdict().exit_code(false), 2);
    // Such as the output of a command that failed.
    let (_kept, empty) = file("---\n");
    let text = as_text(&check(&provider, context(), &[empty], CloudAccess::Online).await);
    assert!(text.contains("has no object"), "{text}");
}

#[tokio::test]
async fn offline_only_config_and_manifests_are_checked() {
    let provider = Provider {
        checker: Some(strict),
        ..NO_CHECKER
    };
    let (_kept, source) = file(SEVERAL);
    let sources = std::slice::from_ref(&source);
    let report = check(&provider, context(), sources, CloudAccess::Offline).await;
    assert_eq!((report.verdict(), report.services), (ValidationVerdict::Errors, 2));
    assert!(report.scope.is_none() && report.passed.is_empty());
    let text = as_text(&report);
    assert!(text.contains("warning: [A] b: odd"), "{text}");
    assert!(text.contains("--offline sends no request to it"), "{text}");
    // The provider that would refuse to connect.
    let report = check(&NO_CHECKER, context(), &[], CloudAccess::Offline).await;
    assert_eq!(report.verdict(), ValidationVerdict::Fine);
}

#[tokio::test]
async fn of_a_provider_without_a_checker_as_much_as_it_tells() {
    let (_kept, source) = file(SEVERAL);
    let report = check(&NO_CHECKER, context(), std::slice::from_ref(&source), CloudAccess::Online).await;
    assert_eq!(report.verdict(), ValidationVerdict::Errors);
    let text = as_text(&report);
    assert!(text.contains("error: cloud: who are you"), "{text}");
    assert!(text.contains("the provider acme does not check them"), "{text}");
    assert!(text.contains("Service shop/web: only its form was checked"), "{text}");

    let wrong = Provider {
        validate: |_| Err(Error::new(ErrorKind::InvalidConfig, "a:1: x\na:2: y")),
        ..NO_CHECKER
    };
    let report = check(&wrong, context(), &[], CloudAccess::Online).await;
    assert_eq!(report.findings.len(), 2);

    #[derive(Debug)]
    struct Acme;
    impl Cloud for Acme {
        fn name(&self) -> &'static str {
            "acme"
        }
    }
    let good = Provider {
        build: |_| {
            Box::pin(async {
                let cloud: std::sync::Arc<dyn Cloud> = std::sync::Arc::new(Acme);
                Ok(cloud)
            })
        },
        ..NO_CHECKER
    };
    let report = check(&good, context(), &[], CloudAccess::Online).await;
    assert_eq!(report.verdict(), ValidationVerdict::Fine);
    assert_eq!(report.verdict().exit_code(true), 0);
}
