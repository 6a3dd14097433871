//! `validate`.

use ccm_core::{
    Environment,
    check::{CloudReport, Severity},
    testkit::{
        self,
        cluster::{annotate, service},
    },
};
use ccm_testbed::arm::ArmServer;
use serde_json::{Value, json};

async fn report(server: &ArmServer, old: &str, new: &str) -> CloudReport {
    let (_folder, context) = testkit::context(&server.conf().replace(old, new), Environment::default());
    let Ok(checker) = (testkit::provider("azure").checker.unwrap())(&context) else {
        panic!("the config has errors");
    };
    assert!(checker.config().is_empty());
    checker.cloud().await
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_actions_are_named() {
    let server = ArmServer::start(&[]).await.unwrap();
    let good = report(&server, "", "").await;
    assert!(good.findings.is_empty(), "{:#?}", good.findings);
    assert!(good.scope.unwrap().contains("subscription 11111111"));
    let permissions = json!({"permissions": [
        {"actions": ["*/read"], "notActions": ["Microsoft.Compute/virtualMachineScaleSets/*"]},
    ]});
    server.control::<Value>("settings", &permissions).await.unwrap();
    let findings = report(&server, "", "").await.findings;
    let [finding] = findings.as_slice() else {
        panic!("{findings:#?}");
    };
    assert_eq!(finding.severity, Severity::Error);
    for action in [
        "Microsoft.Network/routeTables/write",
        "Microsoft.Compute/virtualMachineScaleSets/read",
    ] {
        assert!(finding.message.contains(action), "{}", finding.message);
    }
    assert!(!finding.message.contains("Microsoft.Network/routeTables/read"), "{}", finding.message);
    assert!(finding.fix.contains("role.json"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_route_table_and_a_wrong_secret_are_findings() {
    let server = ArmServer::start(&[]).await.unwrap();
    let findings = report(&server, "routeTableName: routes", "routeTableName: other").await.findings;
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert!(findings[0].message.contains("route table other not found"), "{findings:#?}");
    let findings = report(&server, ccm_testbed::arm::SECRET, "wrong").await.findings;
    assert_eq!((findings.len(), findings[0].about.as_str()), (1, "login"), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_security_group_and_unsupported_annotations_are_findings() {
    let server = ArmServer::start(&[]).await.unwrap();
    let with = |name: &str| format!("routeTableName: routes\nsecurityGroupName: {name}");
    let good = report(&server, "routeTableName: routes", &with("nsg")).await;
    assert!(good.findings.is_empty(), "{:#?}", good.findings);
    let findings = report(&server, "routeTableName: routes", &with("other")).await.findings;
    assert_eq!((findings.len(), findings[0].severity), (1, Severity::Error), "{findings:#?}");
    assert!(findings[0].message.contains("network security group other not found"), "{findings:#?}");

    let conf = format!("{}securityGroupName: nsg\n", server.conf());
    let (_folder, context) = testkit::context(&conf, Environment::default());
    let Ok(checker) = (testkit::provider("azure").checker.unwrap())(&context) else {
        panic!("the config has errors");
    };
    let mut web = service("web", &[80]);
    assert_eq!(checker.service(&web).unwrap(), []);
    annotate(&mut web, "service.beta.kubernetes.io/azure-load-balancer-mode", Some("__auto__"));
    let findings = checker.service(&web).unwrap();
    assert!(findings.iter().any(|finding| finding.message.contains("not supported")), "{findings:#?}");
}
