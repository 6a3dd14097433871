//! Basic load balancers of an Azure Stack: one set of machines, and none of what only standard ones have.

use ccm_core::{
    Environment,
    load_balancer::NodeLeftOut,
    testkit::{
        self,
        cluster::{annotate, service},
    },
};
use serde_json::{Value, json};

use crate::subscription::{NETWORK, NOTHING, PREFIX, Subscription, names_of, node_of};

/// Machines of their own, of which those in availability set `agents` are members.
const AGENTS: &str = "cloud: AzureStackCloud
loadBalancerSku: basic
vmType: standard
primaryAvailabilitySetName: Agents
";
/// Instances of scale sets, of which those of `pool-b` are members.
const POOL_B: &str = "cloud: AzureStackCloud\nloadBalancerSku: Basic\nprimaryScaleSetName: pool-b\n";

/// An Azure Stack with a machine in each of these availability sets; empty: in none.
async fn stack(sets: &[&str], conf: &str) -> Subscription {
    let mut azure = Subscription::new(&["--stack"], conf).await;
    for set in sets {
        let more = if set.is_empty() {
            json!({})
        } else {
            json!({"set": set})
        };
        add_node(&mut azure, "standalone", &more).await;
    }
    azure
}

/// Creates a machine and its node. Returns its name.
async fn add_node(azure: &mut Subscription, kind: &str, more: &Value) -> String {
    let machine = azure.server().create(kind, more).await.unwrap();
    azure.cluster.nodes.push(node_of(&machine));
    machine.name
}

/// The nodes that a Warning names.
fn left_out(azure: &Subscription) -> Vec<String> {
    let events = azure.reports.iter().flat_map(|report| &report.events);
    let mut messages: Vec<String> = events
        .filter(|event| event.reason == NodeLeftOut::EVENT)
        .map(|event| event.message.clone())
        .collect();
    messages.dedup();
    messages
}

/// A new process with another config.
async fn restart_with(azure: &mut Subscription, conf: &str) {
    let conf = format!("{}{NETWORK}{conf}", azure.server().conf());
    azure.cluster.cloud = testkit::build("azure", &conf, Environment::default()).await.unwrap();
}

#[tokio::test]
async fn only_machines_of_the_primary_availability_set_are_members() {
    let mut azure = stack(&["agents", "masters", "agents", ""], AGENTS).await;
    let count = format!("{PREFIX}load-balancer-health-probe-num-of-probe");
    let mut web = service("web", &[80, 443]);
    annotate(&mut web, &count, Some("3"));
    azure.services.push(web);
    let mut db = service("db", &[5432]);
    annotate(&mut db, &format!("{PREFIX}load-balancer-internal"), Some("true"));
    annotate(&mut db, &format!("{PREFIX}load-balancer-mode"), Some("agents"));
    annotate(&mut db, &count, Some("3"));
    azure.services.push(db);
    azure.settle_well().await;
    let members = ["vm-0-nic", "vm-2-nic"].map(str::to_owned).into();
    for balancer in ["kubernetes", "kubernetes-internal"] {
        assert_eq!(azure.members(balancer, "kubernetes").await, members);
        let document = azure.network(&format!("loadBalancers/{balancer}")).await;
        assert_eq!(document["sku"]["name"], "Basic");
        let rule = &document["properties"]["loadBalancingRules"][0]["properties"];
        assert_eq!((&rule["enableTcpReset"], &rule["disableOutboundSnat"]), (&json!(false), &json!(false)));
        assert_eq!(document["properties"]["frontendIPConfigurations"][0]["zones"], Value::Null);
        let probe = &document["properties"]["probes"][0]["properties"];
        assert_eq!((&probe["numberOfProbes"], &probe["probeThreshold"]), (&json!(3), &Value::Null));
    }
    let address = azure.network("publicIPAddresses/kubernetes-auidweb").await;
    assert_eq!((&address["sku"]["name"], &address["zones"]), (&json!("Basic"), &Value::Null));
    assert_eq!(address["properties"]["ipAddress"], azure.address("web"));
    // Nodes of other sets are none that are missing.
    assert_eq!(left_out(&azure), NOTHING);
    azure.assert_settled().await;

    let added = add_node(&mut azure, "standalone", &json!({"set": "agents"})).await;
    let other = add_node(&mut azure, "standalone", &json!({"set": "masters"})).await;
    assert_eq!(azure.settle_well().await, ["PUT networkInterfaces 2"]);
    let names = azure.members("kubernetes", "kubernetes").await;
    assert!(
        names.contains(&format!("{added}-nic")) && !names.contains(&format!("{other}-nic")),
        "{names:?}"
    );
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn only_instances_of_the_primary_scale_set_are_members() {
    let mut azure = Subscription::new(&["--stack", "--uniform=2", "--flex=1"], POOL_B).await;
    azure.server().control::<Value>("set", &json!({"name": "pool-b"})).await.unwrap();
    for _ in 0..2 {
        add_node(&mut azure, "uniform", &json!({"set": "pool-b"})).await;
    }
    azure.services.push(service("web", &[80]));
    azure.settle_well().await;
    assert_eq!(azure.members("kubernetes", "kubernetes").await, ["2", "3"].map(str::to_owned).into());
    assert_eq!(left_out(&azure), NOTHING);
    azure.assert_settled().await;

    // The primary set becomes another one: Azure accepts no machine of it before the others have left.
    restart_with(&mut azure, &POOL_B.replace("pool-b", "pool-a")).await;
    azure.settle_well().await;
    assert_eq!(azure.members("kubernetes", "kubernetes").await, ["0", "1"].map(str::to_owned).into());
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn without_a_machine_in_the_primary_set_nodes_are_named_and_members_stay() {
    let mut azure = stack(&["agents", "masters"], AGENTS).await;
    azure.services.push(service("web", &[80]));
    azure.settle_well().await;
    let members = azure.members("kubernetes", "kubernetes").await;
    assert_eq!(members, ["vm-0-nic".to_owned()].into());

    restart_with(&mut azure, &AGENTS.replace("Agents", "nobody")).await;
    assert_eq!(azure.settle_well().await, NOTHING);
    assert_eq!(azure.members("kubernetes", "kubernetes").await, members);
    let [text] = &*left_out(&azure) else {
        panic!("{:?}", left_out(&azure))
    };
    for part in ["vm-0", "vm-1", "nobody", "primaryAvailabilitySetName"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn services_that_need_a_standard_load_balancer_are_refused() {
    let mut azure = stack(&["agents"], AGENTS).await;
    let seed = json!({"type": "Microsoft.Network/publicIPAddresses", "name": "mine", "body": {
        "sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"},
    }});
    azure.server().control::<Value>("seed", &seed).await.unwrap();
    let prefix = "/subscriptions/s/resourceGroups/k8s/providers/Microsoft.Network/publicIPPrefixes/p";
    azure.services.push(service("web", &[80]));
    for (key, value, problem) in [
        ("pip-name", "mine", "public IP address mine has the SKU Standard"),
        ("pip-prefix-id", prefix, "a public IP prefix has standard addresses"),
        ("pls-create", "true", "a private link service needs a standard load balancer"),
        (
            "load-balancer-mode",
            "__auto__",
            "azure-load-balancer-mode: not supported by this program",
        ),
    ] {
        let key = format!("{PREFIX}{key}");
        annotate(azure.service("web"), &key, Some(value));
        azure.cluster.settle().await.unwrap();
        azure.assert_complaints(&[problem]);
        annotate(azure.service("web"), &key, None);
    }
    assert_eq!(azure.names().await, ["ssh", "mine"]);
    azure.settle_well().await;
    let mine = azure.server().network_id("publicIPAddresses/mine");
    azure.server().delete(&mine).await.unwrap();
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn a_load_balancer_has_at_most_the_rules_of_the_config() {
    let conf = format!("{AGENTS}maximumLoadBalancerRuleCount: 3\n");
    let mut azure = stack(&["agents"], &conf).await;
    azure.services.extend([
        service("a", &[80, 443]),
        service("b", &[80, 443]),
        service("c", &[80]),
    ]);
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&[
        "has 3 of at most 3 rules (maximumLoadBalancerRuleCount), and the Service needs 2",
    ]);
    let rules = |balancer: &Value| names_of(&balancer["properties"]["loadBalancingRules"]);
    assert_eq!(rules(&azure.balancer().await), ["auida-TCP-80", "auida-TCP-443", "auidc-TCP-80"]);
    // Another process changes nothing, and there is room when one leaves.
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    azure.stage.calls().await;
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["has 3 of at most 3 rules"]);
    let calls = azure.stage.calls().await;
    assert!(!calls.iter().any(|call| call.starts_with("PUT")), "{calls:?}");
    azure.service("a").deleting = true;
    azure.settle_well().await;
    assert_eq!(rules(&azure.balancer().await), ["auidc-TCP-80", "auidb-TCP-80", "auidb-TCP-443"]);
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn the_load_balancer_of_a_standard_config_is_not_changed() {
    let standard = AGENTS.replace("basic", "standard");
    let mut azure = stack(&["agents"], &standard).await;
    azure.services.push(service("web", &[80]));
    azure.settle_well().await;
    restart_with(&mut azure, AGENTS).await;
    azure.stage.calls().await;
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&[
        "load balancer kubernetes has the SKU Standard, and loadBalancerSku in the cloud config is basic",
        "public IP address kubernetes-auidweb has the SKU Standard",
    ]);
    let calls = azure.stage.calls().await;
    assert!(!calls.iter().any(|call| call.starts_with("PUT")), "{calls:?}");
    azure.delete_all().await;
    azure.stage.end().await;
}
