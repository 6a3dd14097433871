//! `validate`: its findings with their places, and that it changes nothing and prints no secrets.

use std::process::Stdio;

use ccm_sim::{
    Action, Fault,
    openstack::{Config, NetworkSpec, OpenStack, SubnetSpec},
};
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::{plan_scene::redact, scene::program};

const EXTERNAL: &str = "11111111-1111-4111-8111-111111111111";
const INSIDE: &str = "22222222-2222-4222-8222-222222222222";
const SUBNET: &str = "33333333-3333-4333-8333-333333333333";
const NOWHERE: &str = "99999999-9999-4999-8999-999999999999";
/// Secrets, which no output may contain.
const SECRETS: [&str; 3] = ["correct-horse", "wrong-horse", "hidden-in-a-manifest"];

/// A cloud, and files for the program.
struct ValidateScene {
    cloud: OpenStack,
    folder: tempfile::TempDir,
}

/// The result of `validate`.
struct ValidateOutput {
    code: i32,
    text: String,
    log: String,
}

impl ValidateOutput {
    #[track_caller]
    fn assert_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.text, self.log);
        self
    }

    #[track_caller]
    fn assert_says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.text.contains(part), "{part:?} is not in\n{}\n{}", self.text, self.log);
        }
        self
    }
}

impl ValidateScene {
    async fn set() -> Self {
        let cloud = OpenStack::start(Config::default()).await.unwrap();
        let network = |name: &str, id: &str, external, subnet: &str| NetworkSpec {
            name: name.to_owned(),
            id: Some(id.to_owned()),
            external,
            shared: external,
            subnets: vec![subnet.parse().unwrap()],
            ..NetworkSpec::default()
        };
        for spec in [
            network("outside", EXTERNAL, true, "198.51.100.0/24"),
            network("inside", INSIDE, false, "10.99.0.0/24"),
        ] {
            cloud.create_network(&spec).unwrap();
        }
        let spec = SubnetSpec {
            name: "nodes".to_owned(),
            id: Some(SUBNET.to_owned()),
            cidr: Some("10.98.0.0/24".parse().unwrap()),
            ..SubnetSpec::default()
        };
        cloud.create_subnet(INSIDE, &spec).unwrap();
        Self {
            cloud,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A config that begins with the credentials, six lines and the header.
    fn conf(&self, more: &str) -> String {
        format!("{}{more}", self.cloud.cloud_conf())
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.folder.path().join(name), content).unwrap();
    }

    /// Runs the program in the folder of the files, with this config.
    async fn validate(&self, conf: &str, words: &[&str], stdin: Option<&str>) -> ValidateOutput {
        self.write("cloud.conf", conf);
        let mut child = Command::new(program())
            .current_dir(self.folder.path())
            .args([
                "validate",
                "--cloud-provider=openstack",
                "--cloud-config=cloud.conf",
            ])
            .args(words)
            // No cluster is reachable.
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let given = stdin.unwrap_or_default().to_owned();
        // The program may end without reading its input.
        let writing = tokio::spawn(async move { drop(input.write_all(given.as_bytes()).await) });
        let output = child.wait_with_output().await.unwrap();
        writing.await.unwrap();
        let validated = ValidateOutput {
            code: output.status.code().unwrap(),
            text: String::from_utf8(output.stdout).unwrap(),
            log: String::from_utf8(output.stderr).unwrap(),
        };
        for secret in SECRETS {
            for output in [&validated.text, &validated.log] {
                assert!(!output.contains(secret), "{secret} is in\n{output}");
            }
        }
        for call in self.cloud.calls() {
            let reads =
                call.method == "GET" || (call.service == "identity" && call.path.ends_with("/auth/tokens"));
            assert!(reads && call.op != "unknown", "{} {}", call.method, call.path);
        }
        validated
    }

    /// Replaces values that differ in each run.
    fn redact(&self, text: &str) -> String {
        redact(text)
            .replace(&self.cloud.auth_url(), "<auth-url>")
            .replace(&self.cloud.project_id(), "<project>")
    }
}

const GOOD: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  annotations:
    loadbalancer.openstack.org/keep-floatingip: \"true\"
spec:
  type: LoadBalancer
  ports: [{port: 80}]
---
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {password: hidden-in-a-manifest}
";

const BAD: &str = "\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata:
    name: odd
    annotations:
      loadbalancer.openstack.org/keep-floatingip: \"yes\"
      loadbalancer.openstack.org/keep-floating-ip: \"true\"
      loadbalancer.openstack.org/timeout-client-data: soon
  spec: {type: LoadBalancer, ports: [{port: 80}], ipFamilyPolicy: RequireDualStack}
- apiVersion: v1
  kind: Service
  metadata:
    name: refused
    namespace: shop
    annotations:
      loadbalancer.openstack.org/timeout-tcp-inspect: \"-2\"
      loadbalancer.openstack.org/class: gold
      loadbalancer.openstack.org/lb-method: FASTEST
      loadbalancer.openstack.org/proxy-protocol: \"true\"
      loadbalancer.openstack.org/x-forwarded-for: \"true\"
      service.beta.kubernetes.io/load-balancer-source-ranges: 10.0.0.0/40
      loadbalancer.openstack.org/connection-limit: 100
  spec:
    type: LoadBalancer
    loadBalancerIP: somewhere
- {apiVersion: v1, kind: Service, metadata: {name: inner}}
---
kind: [
";

#[tokio::test(flavor = "multi_thread")]
async fn a_correct_config_passes_and_nothing_is_written() {
    let bench = ValidateScene::set().await;
    let flavor = bench.cloud.create_balancer_flavor("fast", true).unwrap();
    bench.cloud.create_balancer_zone("az1", true).unwrap();
    bench.cloud.configure(|settings| {
        settings.resource_quotas.insert("load_balancer".to_owned(), 10);
    });
    let router = bench.cloud.routers("router").pop();
    let route = router.map(|id| format!("[Route]\nrouter-id = {id}\n")).unwrap_or_default();
    let conf = bench.conf(&format!(
        "[Networking]\npublic-network-name = outside\n[LoadBalancer]\nfloating-network-id = {EXTERNAL}\n\
         network-id = {INSIDE}\nsubnet-id = {SUBNET}\nflavor-id = {flavor}\navailability-zone = az1\n\
         manage-security-groups = true\nfloating-subnet = *\n[LoadBalancerClass \"gold\"]\n\
         floating-network-id = {EXTERNAL}\n{route}"
    ));
    bench.write("good.yaml", GOOD);
    let fine = bench.validate(&conf, &["--services=good.yaml", "--strict"], None).await.assert_code(0);
    insta::assert_snapshot!("validate_fine", bench.redact(&fine.text));
    assert_eq!(fine.log, "");
    // The same from standard input, for programs.
    let piped = bench.validate(&conf, &["--services", "-", "-ojson"], Some(GOOD)).await.assert_code(0);
    let document: Value = serde_json::from_str(&piped.text).unwrap();
    assert_eq!((&document["version"], &document["verdict"]), (&1.into(), &"fine".into()));
    assert_eq!(document["summary"]["services"], 1);
    assert_eq!(document["summary"]["others"]["Secret"], 1);
    assert_eq!(document["findings"], Value::Array(Vec::new()));
}

const DOUBTFUL: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: doubtful
  annotations:
    loadbalancer.openstack.org/load-balancer-tags: a,,kube_cluster_id_others
    loadbalancer.openstack.org/listener-tags: a=1, b
    loadbalancer.openstack.org/pools-tags: c
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  ports: [{port: 80}]
";

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tags_and_a_local_service_without_health_monitors_cause_warnings() {
    let bench = ValidateScene::set().await;
    bench.write("doubtful.yaml", DOUBTFUL);
    let found = bench.validate(&bench.conf(""), &["--services=doubtful.yaml"], None).await;
    found.assert_says(&[
        "doubtful.yaml:6:5: warning: Service doubtful: loadbalancer.openstack.org/load-balancer-tags: ignored: an \
         empty entry, \"kube_cluster_id_others\" (a tag that only the controller may write)",
        "doubtful.yaml:8:5: warning: Service doubtful: loadbalancer.openstack.org/pools-tags: no such annotation",
        "did you mean loadbalancer.openstack.org/pool-tags?",
        "doubtful.yaml:11:3: warning: Service doubtful: spec.externalTrafficPolicy: externalTrafficPolicy is Local",
    ]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_credentials_are_reported_with_their_line() {
    let bench = ValidateScene::set().await;
    bench.write("bad.yaml", BAD);
    let wrong = bench.conf("").replace("correct-horse", "wrong-horse");
    let refused = bench.validate(&wrong, &["--services=bad.yaml"], None).await.assert_code(2);
    refused.assert_says(&[
        "cloud.conf:4:10: error: [Global] password: ",
        "correct user, password and project",
        // Services are checked anyway.
        "bad.yaml:20:7: error: Service shop/refused: loadbalancer.openstack.org/class: ",
        "The cloud: no requests are possible without a token.",
    ]);
    let unreachable = bench.conf("").replace(&bench.cloud.auth_url(), "http://127.0.0.1:1/v3");
    let unknown = bench.validate(&unreachable, &[], None).await.assert_code(1);
    unknown.assert_says(&["cloud.conf:2:10: not known: [Global] auth-url: ", "1 not known."]);
    // An error of a manifest is an error, and --offline does not try the cloud.
    bench.write("good.yaml", GOOD);
    let words = ["--services=bad.yaml"];
    let both = bench.validate(&unreachable, &words, None).await.assert_code(2);
    both.assert_says(&["error: Service shop/refused: ", ", 1 not known."]);
    let words = ["--services=good.yaml", "--offline"];
    let offline = bench.validate(&unreachable, &words, None).await.assert_code(0);
    offline.assert_says(&[
        "--offline sends no request to it",
        "Nothing is wrong. Services checked: 1",
    ]);
    let conf = bench.conf("").replace("RegionOne", "Elsewhere");
    bench.validate(&conf, &[], None).await.assert_code(2).assert_says(&[
        "cloud.conf:7:8: error: [Global] region: Nova not found: ",
        "[Global] region: Neutron not found: ",
        "available regions: RegionOne",
    ]);
    // No request is sent for an unreadable config.
    bench.cloud.clear_calls();
    let conf = bench.conf("[LoadBalancer]\nmax-shared-lb = many\nlb-version = v1\n");
    let broken = bench.validate(&conf, &["-ojson", "--services=bad.yaml"], None).await.assert_code(2);
    let document: Value = serde_json::from_str(&broken.text).unwrap();
    let lines: Vec<_> = document["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["source"] == "config")
        .map(|finding| finding["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines, [9, 10]);
    assert_eq!(bench.cloud.calls().len(), 0);
    let missing = bench.validate("", &["--cloud-config=nowhere.conf"], None).await.assert_code(2);
    missing.assert_says(&["could not read nowhere.conf"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_ids_are_reported_with_their_line_and_the_existing_objects() {
    let bench = ValidateScene::set().await;
    let disabled = bench.cloud.create_balancer_flavor("old", false).unwrap();
    let conf = bench.conf(&format!(
        "[Networking]\ninternal-network-name = elsewhere\n[Route]\nrouter-id = {NOWHERE}\n[LoadBalancer]\n\
         floating-network-id = {INSIDE}\nnetwork-id = {EXTERNAL}\nsubnet-id = {SUBNET}\n\
         member-subnet-id = {NOWHERE}\nflavor-id = {disabled}\navailability-zone = mars\nlb-provider = f5\n\
         default-tls-container-ref = https://barbican/v1/secrets/{NOWHERE}\n\
         [LoadBalancerClass \"gold\"]\nfloating-network-id = {NOWHERE}\nfloating-subnet = ~(\n\
         [LoadBalancerClass \"tin\"]\nfloating-network-id = {EXTERNAL}\nfloating-subnet-tags = cheap\n\
         floating-subnet-id = {SUBNET}\n"
    ));
    let wrong = bench.validate(&conf, &[], None).await.assert_code(2);
    insta::assert_snapshot!("validate_wrong_ids", bench.redact(&wrong.text));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_and_used_up_quotas_are_named() {
    let bench = ValidateScene::set().await;
    let conf = bench.conf("[LoadBalancer]\nmanage-security-groups = true\n");
    let denied: Vec<_> = ["server_list", "loadbalancer_listener_list", "security_group_list"]
        .into_iter()
        .map(|op| bench.cloud.add_fault(Fault::on(op, Action::status(403))))
        .collect();
    let refused = bench.validate(&conf, &[], None).await.assert_code(2).assert_says(&[
        "error: Nova: servers cannot be read: ",
        "error: Neutron: security groups cannot be read: ",
        "error: Octavia: listeners cannot be read: ",
        "give the user a role in the project",
        "+ Octavia: API version 2.30; load balancers, pools, health monitors can be read",
        "3 errors.",
    ]);
    assert!(!refused.text.contains("quotas of"), "it follows from the others: {}", refused.text);
    for fault in denied {
        bench.cloud.remove_fault(fault);
    }
    bench.cloud.add_fault(Fault::on("loadbalancer_quota_get", Action::status(403)));
    bench.cloud.configure(|settings| {
        settings.resource_quotas.insert("floatingip".to_owned(), 0);
        // The default security group exists.
        settings.resource_quotas.insert("security_group".to_owned(), 100);
    });
    let short = bench.validate(&conf, &[], None).await.assert_code(0);
    short.assert_says(&[
        "warning: quota of floating IPs: 0 of 0 are used, none is left",
        "raise the project's quota of floatingip in Neutron",
        "1 of 100 security groups",
        "- Quotas of Octavia: the credentials may not read them.",
    ]);
    bench.validate(&conf, &["--strict"], None).await.assert_code(2);
    bench.cloud.configure(|settings| settings.load_balancing.enabled = false);
    let none = bench.validate(&conf, &[], None).await.assert_code(0);
    none.assert_says(&["[LoadBalancer] enabled: Octavia not found"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_checked_against_config_and_cloud_with_the_lines_of_their_annotations() {
    let bench = ValidateScene::set().await;
    bench.write("bad.yaml", BAD);
    bench.write("good.yaml", GOOD);
    let words = ["--services=good.yaml", "--services=bad.yaml"];
    let classes = bench.conf("[LoadBalancerClass \"tin\"]\n[LoadBalancerClass \"lead\"]\n");
    let wrong = bench.validate(&classes, &words, None).await.assert_code(2);
    insta::assert_snapshot!("validate_services", bench.redact(&wrong.text));
    let words = ["--services=bad.yaml", "--output=json"];
    let wrong = bench.validate(&bench.conf(""), &words, None).await.assert_code(2);
    insta::assert_snapshot!("validate_services_json", bench.redact(&wrong.text));

    // Features that this Octavia does not support.
    bench.cloud.configure(|settings| settings.load_balancing.max_minor = 10);
    let old = GOOD
        .replace("keep-floatingip: \"true\"", "proxy-protocol: v2")
        .replace("ports:", "loadBalancerSourceRanges: [10.0.0.0/8]\n  ports:");
    bench.write("old.yaml", &old);
    let words = ["--services=old.yaml"];
    bench.validate(&bench.conf(""), &words, None).await.assert_code(2).assert_says(&[
        "old.yaml:7:5: error: Service shop/web: loadbalancer.openstack.org/proxy-protocol: v2 needs version 2.22",
        "old.yaml:10:3: warning: Service shop/web: spec.loadBalancerSourceRanges: source ranges are ignored",
    ]);
    let off = bench.conf("[LoadBalancer]\nenabled = false\n");
    bench.validate(&off, &["--services=good.yaml"], None).await.assert_code(0).assert_says(&[
        "good.yaml:9:3: warning: Service shop/web: spec.type: load balancers are switched off in the config",
    ]);
    let missing = bench.validate(&bench.conf(""), &["--services=none.yaml"], None).await.assert_code(1);
    missing.assert_says(&["not known: --services: could not read none.yaml: "]);
}
