//! Region, credentials, endpoints and location of the cluster, and the errors if they are wrong.

use ccm_core::{
    BuildContext, ErrorKind,
    check::{Finding, Severity},
    load_balancer::Claim,
    testkit::{
        cluster::{annotate_all, service},
        server::Server,
    },
};
use ccm_testbed::{
    observe::assert_has,
    proxy::{Action, Request, Rule, aws_refusal},
};
use serde_json::json;

use crate::{
    context::{build, context, provider},
    server::{self, tls},
    stage::{Stage, present, query, refusal},
};

const CLUSTER: &str = "[Global]\nRegion=us-east-1\nVPC=vpc-1\nKubernetesClusterID=a\n";
const ZONES: &str = "<DescribeAvailabilityZonesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><availabilityZoneInfo/></DescribeAvailabilityZonesResponse>";

fn owned<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<(String, String)> {
    let variables = variables.into_iter();
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn variables(given: &[(&str, impl AsRef<str>)]) -> Vec<(String, String)> {
    let keys = [
        ("AWS_ACCESS_KEY_ID", "AKID"),
        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let given = given.iter().map(|(name, value)| (*name, value.as_ref()));
    owned(keys.into_iter().chain(given))
}

/// The result of `validate`: its findings, as lines that begin with their severity, and its confirmations.
async fn validated(conf: &str, variables: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    validated_with(conf, variables, &[]).await
}

/// As [`validated`], with flags.
async fn validated_with(
    conf: &str,
    variables: &[(String, String)],
    flags: &[(&str, &str)],
) -> (Vec<String>, Vec<String>) {
    let (_directory, context) = context(conf, variables);
    let flags = flags.iter();
    let flags = flags.map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]));
    let context = BuildContext {
        flags: flags.collect(),
        ..context
    };
    let checker = (provider().checker.unwrap())(&context);
    let checker = checker.map_err(|findings| format!("{findings:?}")).unwrap();
    let report = checker.cloud().await;
    let findings = report.findings.iter();
    let line = |finding: &Finding| format!("{:?} {}: {}", finding.severity, finding.about, finding.message);
    let passed = report.passed.iter().map(|passed| passed.what.to_string());
    (findings.map(line).collect(), passed.collect())
}

/// Answers of STS and EC2.
fn sts(request: &str) -> (u16, String) {
    if request.contains("Action=AssumeRole") {
        let body = "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><Credentials>\
                    <AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>x</SecretAccessKey><SessionToken>t0ken</SessionToken>\
                    <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";
        return (200, body.to_owned());
    }
    (200, ZONES.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_is_assumed_with_source_headers() {
    let server = server::start(None, sts).await;
    let conf = format!(
        "{CLUSTER}RoleARN=arn:aws:iam::111122223333:role/ccm\nSourceARN=arn:aws:eks:us-east-1:444455556666:cluster/a\n\
         [ServiceOverride \"1\"]\nService=ec2\nRegion=us-east-1\nURL={}\nSigningRegion=eu-west-1\nSigningName=other\n",
        server.url()
    );
    // The file takes precedence over the environment, and the variable of an API over that of all APIs.
    let unused = "http://127.0.0.1:9";
    let given = [
        ("AWS_ENDPOINT_URL_STS", server.url()),
        ("AWS_ENDPOINT_URL", unused.to_owned()),
        ("AWS_ENDPOINT_URL_EC2", unused.to_owned()),
    ];
    build(&conf, &variables(&given)).await.unwrap();
    let requests = server.requests();
    let [assume, zones] = requests.as_slice() else {
        panic!("{requests:#?}")
    };
    let headers = [
        "x-amz-source-account: 111122223333",
        "x-amz-source-arn: arn:aws:eks:us-east-1:444455556666:cluster/a",
        "signedheaders=",
        ";x-amz-source-account;x-amz-source-arn",
    ];
    assert_has(&assume.to_lowercase(), &headers);
    assert_has(assume, &["Credential=AKID/", "/us-east-1/sts/"]);
    assert_has(zones, &["Credential=ASSUMED/", "/eu-west-1/other/aws4_request"]);
    assert_has(&zones.to_lowercase(), &["x-amz-security-token: t0ken"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_is_corrected_by_that_of_aws() {
    // The year in which AWS answers; requests with the date of another year are refused.
    let headers = "Date: Tue, 04 Mar 2036 10:00:00 GMT\r\n".to_owned();
    let respond = |request: &str| match request.to_lowercase().contains("x-amz-date: 20360304") {
        true => (200, ZONES.to_owned()),
        false => {
            let text = "Signature expired: 20260101T000000Z is now earlier than 20360304T095500Z";
            (403, aws_refusal(true, "SignatureDoesNotMatch", text))
        }
    };
    let server = server::start_with_headers(None, headers, respond).await;
    let given = variables(&[("AWS_ENDPOINT_URL", server.url())]);
    build(CLUSTER, &given).await.unwrap();
    assert_eq!(server.requests().len(), 2, "{:#?}", server.requests());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_cannot_be_assumed_is_named() {
    let denied = aws_refusal(false, "AccessDenied", "not authorized to perform: sts:AssumeRole");
    let server = server::start(None, move |_| (403, denied.clone())).await;
    let conf = format!("{CLUSTER}RoleARN=arn:aws:iam::1:role/ccm\n");
    let given = variables(&[("AWS_ENDPOINT_URL", server.url())]);
    let error = build(&conf, &given).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error:?}");
    let parts = [
        "could not assume the role",
        "sts:AssumeRole",
        "role=arn:aws:iam::1:role/ccm",
    ];
    assert_has(&error.report(), &parts);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_credentials_the_sources_are_named() {
    let server = server::start(None, sts).await;
    let url = server.url();
    let variables = owned([("AWS_ENDPOINT_URL", &*url), ("AWS_EC2_METADATA_DISABLED", "true")]);
    let error = build(CLUSTER, &variables).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error:?}");
    assert_has(&error.report(), &["no credentials found in environment"]);
    // The VPC and the cluster id are missing, too.
    let error = build("[Global]\nRegion=us-east-1", &variables).await.unwrap_err();
    assert_has(&error.report(), &["set [Global] VPC and KubernetesClusterID"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn https_goes_through_the_proxy_and_trusts_the_bundle() {
    let (acceptor, pem) = tls("ec2.us-east-1.amazonaws.com");
    let server = server::start(Some(acceptor), sts).await;
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("ca.pem");
    std::fs::write(&bundle, &pem).unwrap();
    let (url, bundle) = (server.url(), bundle.to_str().unwrap());
    let proxied = variables(&[("HTTPS_PROXY", &*url), ("AWS_CA_BUNDLE", bundle)]);
    build(CLUSTER, &proxied).await.unwrap();
    let requests = server.requests();
    let connect = "CONNECT ec2.us-east-1.amazonaws.com:443 ";
    assert!(requests[0].starts_with(connect), "{requests:?}");
    assert_has(&requests[1], &["Action=DescribeAvailabilityZones"]);
    // Another certificate authority.
    let (_, other) = tls("x");
    std::fs::write(bundle, other).unwrap();
    let one_try = "[Quota]\nec2-read-requests-per-second=1000\n";
    let error = build(&format!("{CLUSTER}{one_try}"), &proxied).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_no_proxy_are_reached_without_it() {
    let (acceptor, pem) = tls("localhost");
    let server = server::start(Some(acceptor), sts).await;
    let unused = server::start(None, |_| (502, String::new())).await;
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("ca.pem");
    std::fs::write(&bundle, pem).unwrap();
    let endpoint = format!("https://localhost:{}", server.port());
    let given = [
        ("HTTPS_PROXY", unused.url()),
        ("NO_PROXY", "10.0.0.0/8,localhost".to_owned()),
        ("AWS_CA_BUNDLE", bundle.to_str().unwrap().to_owned()),
        ("AWS_ENDPOINT_URL", endpoint),
    ];
    build(CLUSTER, &variables(&given)).await.unwrap();
    assert!(unused.requests().is_empty());
    assert!(!server.requests()[0].starts_with("CONNECT"));
}

/// The metadata service of an instance.
async fn metadata(id: String) -> Server {
    server::start(None, move |request| {
        let path = request.split_whitespace().nth(1).unwrap_or_default();
        match path {
            "/latest/api/token" => (200, "token".to_owned()),
            "/latest/meta-data/instance-id" => (200, id.clone()),
            "/latest/meta-data/placement/region" => (200, "us-east-1".to_owned()),
            _ => (404, String::new()),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_an_instance_everything_is_found() {
    let stage = Stage::new(0, "").await;
    let (_, _, id, _) = stage.launch("cp").await;
    let metadata = metadata(id.clone()).await;
    let given = owned([
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_ENDPOINT_URL", &stage.account.proxy.url()),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.url()),
    ]);
    let cloud = build("", &given).await.unwrap();
    let vpc = stage.account.id("VPC");
    let expected = format!("region us-east-1, VPC {vpc}, cluster \"kubernetes\"");
    assert_eq!(cloud.scope(), expected);
    // The instance does not exist in another region.
    let other_region = "[Global]\nRegion=eu-west-1\n";
    let error = build(other_region, &given).await.unwrap_err();
    assert_has(error.message(), &[&id, "check region eu-west-1"]);
    // Without the tag the cluster id is unknown, which is an error unless it is allowed.
    let tags = json!({"Resources": [id], "Tags": [{"Key": "kubernetes.io/cluster/kubernetes"}]});
    stage.call("ec2", "delete_tags", tags).await;
    let error = build("", &given).await.unwrap_err();
    assert_has(error.message(), &["--allow-untagged-cloud"]);
    let (_directory, context) = context("", &given);
    let flag = ("allow-untagged-cloud".to_owned(), vec!["true".to_owned()]);
    let context = BuildContext {
        flags: [flag].into_iter().collect(),
        ..context
    };
    let cloud = (provider().build)(context).await.unwrap();
    assert!(cloud.scope().ends_with("no cluster id"), "{}", cloud.scope());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_is_renewed_and_throttling_is_retried() {
    let stage = Stage::new(0, "").await;
    let (_, _, id, zone) = stage.launch("a").await;
    let question = || query("a", Some(&format!("aws:///{zone}/{id}")));
    for (code, refused) in [
        (400, "ExpiredToken"),
        (503, "RequestLimitExceeded"),
        (400, "Throttling"),
    ] {
        let answer = Action::answer(code, refusal(refused, "no"));
        let is_read = |request: &Request| request.name == "DescribeInstances";
        stage.account.proxy.add(Rule::when(is_read, answer).at(1));
        present(stage.ask(question()).await);
    }
    // Permanently: no instance is reported absent.
    let text = "AWS was not able to validate the provided access credentials";
    stage.answer("DescribeInstances", "", 403, &refusal("AuthFailure", text));
    let error = stage.ask(question()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    let text = error.to_string();
    let is_named = text.starts_with("ec2:DescribeInstances: AWS was not able");
    assert!(is_named, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_credentials_are_applied_only_if_valid() {
    let stage = Stage::new(0, "").await;
    let mut given = stage.account.environment();
    given.retain(|(name, _)| !name.starts_with("AWS_ACCESS") && !name.starts_with("AWS_SECRET"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials");
    let write = |key: &str| {
        let text = format!("[default]\naws_access_key_id={key}\naws_secret_access_key=x\n");
        std::fs::write(&file, text).unwrap();
    };
    write("first");
    let name = "AWS_SHARED_CREDENTIALS_FILE".to_owned();
    given.push((name, file.to_str().unwrap().to_owned()));
    let (_directory, context) = context(&stage.account.cloud_conf(), &given);
    let cloud = (provider().build)(context).await.unwrap();
    assert!(cloud.watched_files().contains(&file));
    assert_eq!(cloud.reload().await.unwrap().applied, Vec::<String>::new());
    let generation = cloud.generation();
    write("second");
    let refused = stage.refuse("DescribeAvailabilityZones", "", 401, "AuthFailure");
    let error = cloud.reload().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert_eq!(cloud.generation(), generation);
    stage.account.proxy.remove(refused);
    let applied = cloud.reload().await.unwrap().applied;
    assert_eq!(applied, ["file of AWS_SHARED_CREDENTIALS_FILE"]);
    assert_ne!(cloud.generation(), generation);
}

#[tokio::test(flavor = "multi_thread")]
async fn validate_reports_a_vpc_that_does_not_exist() {
    let stage = Stage::new(0, "").await;
    let more = "[Global]\nVPC=vpc-0123456789abcdef0\n";
    let conf = format!("{}{more}", stage.account.cloud_conf());
    let (findings, _) = validated(&conf, &stage.account.environment()).await;
    let vpc = "[Global] VPC: vpc-0123456789abcdef0 does not exist in this account, region and VPC";
    // The subnet is not in the VPC, either.
    assert_has(&findings.join("\n"), &[vpc, "[Global] SubnetID: "]);
}

#[tokio::test]
async fn validate_reports_wrong_annotations_of_services() {
    let (_directory, context) = context("[Global]\nZone=us-east-1a\n", &[]);
    let checker = (provider().checker.unwrap())(&context).expect("valid configuration");
    let prefix = "service.beta.kubernetes.io/aws-load-balancer-";
    let service = |annotations: &str| {
        let mut service = service("web", &[80]);
        annotate_all(&mut service, prefix, annotations);
        service
    };
    let elsewhere = checker.claims(&service("type=external"));
    assert_eq!(elsewhere, Claim::Elsewhere);
    let wrong = service("type=nlb; healthcheck-port=http; shceme=internal");
    assert_eq!(checker.claims(&wrong), Claim::Ours);
    let findings = checker.service(&wrong).unwrap();
    let found = findings.iter().map(|finding| (finding.severity, finding.field.to_string()));
    let fields = [
        (Severity::Error, "healthcheck-port"),
        (Severity::Warning, "shceme"),
    ];
    let fields = fields.map(|(severity, name)| (severity, format!("{prefix}{name}")));
    assert_eq!(found.collect::<Vec<_>>(), fields, "{findings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn validate_reports_missing_permissions_and_wrong_ids() {
    let stage = Stage::new(0, "").await;
    let more = "[Global]\nSubnetID=subnet-0123456789abcdef0\nRouteTableID=rtb-0123456789abcdef0\n";
    let conf = format!("{}{more}", stage.account.cloud_conf());
    stage.refuse("CreateTags", "DryRun=true", 403, "UnauthorizedOperation");
    let (findings, passed) = validated(&conf, &stage.account.environment()).await;
    let expected = [
        "Error [Global] SubnetID: subnet-0123456789abcdef0",
        "Error [Global] RouteTableID: rtb-0123456789abcdef0 does not exist",
        "Error IAM action ec2:CreateTags: is not allowed",
    ];
    assert_has(&findings.join("\n"), &expected);
    assert_eq!(findings.len(), 3, "{findings:#?}");
    assert!(stage.account.proxy.writes().is_empty());
    assert_has(&passed.join("\n"), &["ec2:CreateSecurityGroup"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn validate_checks_rights_for_routes_only_if_there_are_routes() {
    let stage = Stage::new(0, "").await;
    stage.refuse("CreateRoute", "DryRun=true", 403, "UnauthorizedOperation");
    let (conf, variables) = (stage.account.cloud_conf(), stage.account.environment());
    for (flag, expected) in [("true", 1), ("false", 0)] {
        let flags = [("configure-cloud-routes", flag)];
        let (findings, _) = validated_with(&conf, &variables, &flags).await;
        assert_eq!(findings.len(), expected, "{flag}: {findings:#?}");
    }
}
