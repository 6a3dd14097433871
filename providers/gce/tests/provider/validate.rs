//! The provider's part of `validate`.

use ccm_core::{
    BuildContext,
    check::{CloudReport, Finding},
    testkit,
};
use ccm_provider_gce::NAME;
use ccm_testbed::{
    gce::GceOptions,
    observe::assert_has,
    test_cloud::{GceCloud, TestCloud as _},
};
use serde_json::json;

use crate::stage::{calls, environment};

async fn report(gce: &GceCloud, more: &str, flags: &[(&str, &str)]) -> CloudReport {
    report_of(gce, &format!("{}{more}", gce.config()), flags).await
}

async fn report_of(gce: &GceCloud, config: &str, flags: &[(&str, &str)]) -> CloudReport {
    let (_folder, context) = testkit::context(config, environment(gce));
    let flags = flags.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]));
    let context = BuildContext {
        flags: flags.collect(),
        ..context
    };
    let checker = (testkit::provider(NAME).checker.unwrap())(&context);
    checker.map_err(|findings| format!("{findings:?}")).unwrap().cloud().await
}

fn lines(report: &CloudReport) -> Vec<String> {
    let line = |finding: &Finding| {
        format!("{:?} {}: {} ({})", finding.severity, finding.about, finding.message, finding.fix)
    };
    report.findings.iter().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_config_has_no_findings_and_changes_nothing() {
    let gce = GceCloud::start().await.unwrap();
    let report = report(&gce, "", &[]).await;
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_has(report.scope.as_deref().unwrap(), &["test-project"]);
    assert_eq!(
        calls(&gce),
        [
            "zones.list",
            "networks.get",
            "subnetworks.get",
            "projects.testIamPermissions"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permissions_are_named() {
    let options = GceOptions {
        projects: vec!["test-project".to_owned(), "host-project".to_owned()],
        ..GceOptions::default()
    };
    let gce = GceCloud::start_with(&options).await.unwrap();
    let denied = json!({
        "test-project": {"granted": ["*"], "denied": ["compute.instances.list", "compute.instances.use"]},
        "host-project": {"granted": ["*"], "denied": ["compute.routes.*"]},
    });
    gce.set("iam", &denied).await.unwrap();
    let shared = "network-project-id = host-project\n";
    let found = lines(&report(&gce, shared, &[]).await);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_has(
        &found[0],
        &[
            "Error permissions in project \"test-project\"",
            "the credentials lack compute.instances.list, compute.instances.use",
            "deploy/gce/role.yaml",
        ],
    );
    assert_has(&found[1], &["\"host-project\"", "compute.routes.create, compute.routes.delete"]);
    // Without routes, their permissions are not needed.
    let found = lines(&report(&gce, shared, &[("configure-cloud-routes", "false")]).await);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_has(&found[0], &["the credentials lack compute.instances.list"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_names_are_reported_with_their_line() {
    let gce = GceCloud::start().await.unwrap();
    let config = gce.config();
    let line = |key: &str| config.lines().position(|line| line.starts_with(key)).unwrap() + 1;
    // `validate` asks the Resource Manager for permissions. Without its place, it does not know them.
    let without: Vec<_> = config.lines().filter(|line| !line.starts_with("resource-manager")).collect();
    let missing = report_of(&gce, &without.join("\n"), &[]).await;
    assert!(missing.findings.is_empty(), "{:#?}", missing.findings);
    assert_has(&missing.left_out.join(" "), &["resource-manager-endpoint"]);

    for (replaced, by, key, parts) in [
        (
            "network-name = default",
            "network-name = defalt",
            "network-name",
            ["network \"defalt\" not found in project", "correct network-name"],
        ),
        (
            "subnetwork-name = default",
            "subnetwork-name = nodes",
            "subnetwork-name",
            [
                "subnetwork \"nodes\" not found in region",
                "correct subnetwork-name",
            ],
        ),
        (
            "subnetwork-name = default",
            "subnetwork-name = custom",
            "subnetwork-name",
            ["is one of network \"custom\", not of \"default\"", "correct"],
        ),
    ] {
        let text = config.replace(&format!("\n{replaced}\n"), &format!("\n{by}\n"));
        assert_ne!(text, config);
        let (_folder, context) = testkit::context(&text, environment(&gce));
        let checker = (testkit::provider(NAME).checker.unwrap())(&context);
        let report = checker.map_err(|findings| format!("{findings:?}")).unwrap().cloud().await;
        let found = lines(&report);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_has(&found[0], &parts);
        let place = report.findings[0].place.as_ref().unwrap();
        assert_eq!(place.position.unwrap().line, line(key), "{place}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_credentials_nothing_else_is_checked() {
    let gce = GceCloud::start().await.unwrap();
    gce.set(
        "faults",
        &json!([{"method": "zones.list", "status": 401, "reason": "authError", "times": 9}]),
    )
    .await
    .unwrap();
    let report = report(&gce, "", &[]).await;
    assert_eq!(report.scope, None);
    let found = lines(&report);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_has(&found[0], &["Error credentials", "authError", "service account"]);
}
