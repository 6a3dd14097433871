//! Refusals of Azure and answers that are not from Azure: nothing is deleted for them, and the work continues afterwards.

use std::{collections::BTreeSet, io::ErrorKind as ErrorOf, net::TcpListener};

use ccm_core::{
    ErrorKind, Freshness, InstanceState,
    instances::InstanceQuery,
    load_balancer::{ClusterTag, MemberState, OwnershipTag, Protocol, ServicePort, ServiceView},
    testkit::cluster::{TestCluster, advance_to, annotate, service},
};
use http::Method;
use serde_json::{Value, json};

use crate::{
    stage::{Stage, provider_id, query},
    subscription::{NOTHING, PREFIX, Subscription, names_of},
};

/// Lets calls fail. `fault`: see the beginning of `arm.py`.
async fn fail(stage: &Stage, fault: Value) {
    stage.server.control::<Value>("fault", &fault).await.unwrap();
}

fn queries(stage: &Stage) -> Vec<InstanceQuery> {
    let machines = stage.server.machines.iter();
    machines.map(|machine| query(&machine.name, Some(&provider_id(&machine.id)))).collect()
}

/// Changes something without effect, so that the Service is tried again.
fn touch(azure: &mut Subscription, name: &str) {
    annotate(azure.service(name), "example.com/again", Some("1"));
}

/// An external Service with the address of another one.
fn sharing(name: &str, port: u16, address: &str) -> ServiceView {
    let mut web = service(name, &[port]);
    annotate(&mut web, &format!("{PREFIX}load-balancer-ipv4"), Some(address));
    web
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_list_says_nothing_about_machines() {
    let other_host = TcpListener::bind("127.0.0.1:0").unwrap();
    other_host.set_nonblocking(true).unwrap();
    let elsewhere = format!("http://{}/x", other_host.local_addr().unwrap());
    for (options, kind) in [
        (["--standalone=6", "--page=2"], "virtualMachines"),
        (["--uniform=6", "--page=2"], "virtualMachineScaleSets/virtualMachines"),
    ] {
        let stage = Stage::new(&options, "").await;
        let (list, _) = stage.server.machines[0].id.rsplit_once('/').unwrap();
        let itself = format!("{}{list}?$skiptoken=2", stage.server.url());
        let page = |next: &str| json!({"value": [], "nextLink": next}).to_string();
        // A page in the middle is lost, is no JSON, leads elsewhere, or leads to itself.
        for fault in [
            json!({"status": 403, "code": "AuthorizationFailed"}),
            json!({"status": 200, "body": "<html>Sign in</html>"}),
            json!({"status": 404, "body": "<html>not found</html>"}),
            json!({"status": 200, "content": "application/json", "body": page(&elsewhere)}),
            json!({"status": 200, "content": "application/json", "body": page(&itself)}),
        ] {
            let mut fault = fault;
            fault["method"] = json!("GET");
            fault["type"] = json!(kind);
            fault["skip"] = json!(1);
            fault["times"] = json!(100);
            fail(&stage, fault.clone()).await;
            let answers = stage.describe(&queries(&stage)).await;
            let errors = answers.iter().filter(|answer| answer.is_err()).count();
            assert!(errors > 0, "{kind} {fault}: {answers:?}");
            for answer in answers {
                assert_ne!(answer.ok(), Some(InstanceState::Absent), "{kind} {fault}");
            }
            stage.server.control::<Value>("faults", &json!({})).await.unwrap();
        }
        for answer in stage.describe(&queries(&stage)).await {
            assert!(matches!(answer, Ok(InstanceState::Present(_))), "{answer:?}");
        }
        stage.end().await;
    }
    // The other host would have received a token.
    let connection = other_host.accept().map_err(|error| error.kind());
    assert!(matches!(connection, Err(ErrorOf::WouldBlock)), "{connection:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_tenant_is_an_error_of_the_credentials() {
    let stage = Stage::new(&["--standalone=1"], "").await;
    let tenant = json!({
        "method": "GET", "type": "*", "status": 401, "code": "InvalidAuthenticationTokenTenant",
        "message": "the token is from another tenant", "times": 100,
    });
    fail(&stage, tenant).await;
    for answer in stage.describe(&queries(&stage)).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert!(error.report().contains("the token is from another tenant"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_code_of_a_404_of_azure_means_that_the_machine_is_absent() {
    let stage = Stage::new(&["--standalone=1"], "").await;
    for code in [
        "ResourceNotFound",
        "NotFound",
        "ResourceGroupNotFound",
        "ParentResourceNotFound",
    ] {
        let fault = json!({
            "method": "GET", "type": "virtualMachines", "status": 404, "code": code, "times": 2,
        });
        fail(&stage, fault).await;
        let answers = stage.describe(&queries(&stage)).await;
        assert_eq!(answers[0].clone().unwrap(), InstanceState::Absent, "{code}");
        stage.server.control::<Value>("faults", &json!({})).await.unwrap();
    }
}

#[tokio::test]
async fn busy_resources_and_ended_operations_are_tried_again() {
    let mut azure = Subscription::new(&["--uniform=1"], "").await;
    for (status, code) in [
        (409, "AnotherOperationInProgress"),
        (409, "OperationNotAllowed"),
        (409, "RetryableErrorDueToAnotherOperation"),
        (429, "ReferencedResourceNotProvisioned"),
    ] {
        let fault = json!({"method": "PUT", "type": "loadBalancers", "status": status, "code": code});
        fail(&azure.stage, fault).await;
    }
    for code in ["CanceledAndSupersededDueToAnotherOperation", "OperationPreempted"] {
        let fault = json!({
            "method": "lro", "type": "networkSecurityGroups", "code": code, "lro": true, "canceled": true,
        });
        fail(&azure.stage, fault).await;
    }
    // The scale set is being updated by another client.
    let model = json!({
        "method": "PUT", "type": "virtualMachineScaleSets", "status": 409, "code": "OperationNotAllowed", "times": 2,
    });
    fail(&azure.stage, model).await;
    let instance = json!({
        "method": "PUT", "type": "virtualMachineScaleSets/virtualMachines", "status": 409, "code": "OperationNotAllowed",
    });
    fail(&azure.stage, instance).await;
    azure.services.push(service("web", &[80]));
    for _ in 0..6 {
        azure.cluster.settle().await.unwrap();
    }
    azure.assert_no_complaints();
    let calls = azure.stage.calls().await;
    for refused in [
        "PUT loadBalancers 409 3",
        "PUT loadBalancers 429 1",
        "PUT networkSecurityGroups 3",
        "PUT virtualMachineScaleSets 409 2",
        "PUT virtualMachineScaleSets/virtualMachines 409 1",
    ] {
        assert!(calls.contains(&refused.to_owned()), "{refused} is not in {calls:?}");
    }
    assert_eq!(azure.members("kubernetes", "kubernetes").await, ["0".to_owned()].into());
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn throttled_calls_wait_as_long_as_azure_asks() {
    let mut azure = Subscription::new(&["--uniform=1"], "").await;
    for (kind, fault) in [
        ("publicIPAddresses", json!({"headers": {"Retry-After": "2"}})),
        ("networkSecurityGroups", json!({})),
    ] {
        let mut fault = fault;
        fault["method"] = json!("PUT");
        fault["type"] = json!(kind);
        fault["status"] = json!(429);
        fault["code"] = json!("TooManyRequests");
        fail(&azure.stage, fault).await;
    }
    azure.services.push(service("web", &[80]));
    for _ in 0..3 {
        azure.cluster.settle().await.unwrap();
    }
    azure.settle_well().await;
    // The log has the time of each call, its path and its status.
    let log: Vec<Value> = azure.server().control_get("log").await.unwrap();
    let puts: Vec<&Value> = log
        .iter()
        .filter(|call| call[1] == "PUT" && call[2].as_str().unwrap().contains("/publicIPAddresses/"))
        .collect();
    assert_eq!((puts[0][3].as_u64(), puts.len()), (Some(429), 2), "{puts:?}");
    let waited = puts[1][0].as_f64().unwrap() - puts[0][0].as_f64().unwrap();
    assert!(waited >= 2.0, "the second write came after {waited} s");
    azure.assert_settled().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn changes_of_others_in_between_are_merged_in_both_dialects() {
    let mut azure = Subscription::serving(&["--uniform=2"], service("web", &[80])).await;
    let instance = azure.server().machines[1].id.clone();
    let group = azure.server().network_id("networkSecurityGroups/nsg");
    for id in [&instance, &group] {
        azure.server().patch(id, &json!({"tags": {"team": "core"}})).await.unwrap();
    }
    azure.service("web").ports = service("web", &[443]).ports;
    azure.cluster.nodes[1].eligible = false;
    let writes = azure.settle_well().await;
    for refused in [
        "PUT networkSecurityGroups 412 1",
        "PUT virtualMachineScaleSets/virtualMachines 412 1",
    ] {
        assert!(writes.contains(&refused.to_owned()), "{refused} is not in {writes:?}");
    }
    assert_eq!(azure.members("kubernetes", "kubernetes").await, ["0".to_owned()].into());
    let group = azure.network("networkSecurityGroups/nsg").await;
    assert_eq!(group["tags"]["team"], "core");
    azure.assert_settled().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn full_quotas_are_errors_of_their_service_alone() {
    let mut azure = Subscription::serving(&["--standalone=1"], service("web", &[80])).await;
    let quota = json!({
        "method": "PUT", "type": "publicIPAddresses", "status": 400, "code": "PublicIPCountLimitReached",
        "message": "no more addresses in this region", "times": 100,
    });
    fail(&azure.stage, quota).await;
    azure.services.push(service("api", &[80]));
    azure.service("web").ports = service("web", &[81]).ports;
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["PublicIPCountLimitReached", "no more addresses in this region"]);
    assert!(azure.find("api").unwrap().ingress.is_empty());
    let rules = names_of(&azure.balancer().await["properties"]["loadBalancingRules"]);
    assert_eq!(rules, ["auidweb-TCP-81"]);
    azure.server().control::<Value>("faults", &json!({})).await.unwrap();
    touch(&mut azure, "api");
    azure.settle_well().await;
    assert!(azure.address("api").starts_with("20.50."));
    azure.delete_all().await;
    azure.stage.end().await;
}

/// The names of the Services that a part refused in the last round.
fn refused(azure: &Subscription) -> BTreeSet<String> {
    let members = azure.reports.iter().flat_map(|report| &report.members);
    let refused = members.filter(|member| matches!(member.state, MemberState::Refused(_)));
    refused.map(|member| member.service.name.to_string()).collect()
}

/// Reconciles until nothing changes: Azure refuses no write of the security group.
async fn settle_within_limits(azure: &mut Subscription) {
    azure.cluster.settle().await.unwrap();
    let calls = azure.stage.calls().await;
    assert!(!calls.iter().any(|call| call.starts_with("PUT networkSecurityGroups 4")), "{calls:?}");
}

#[tokio::test]
async fn a_service_without_room_for_its_rules_holds_up_no_other() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    let rule = |at: usize| {
        json!({"name": format!("person-{at}"), "properties": {
            "protocol": "Tcp", "access": "Allow", "direction": "Outbound", "priority": 500 + at,
            "sourceAddressPrefix": "*", "sourcePortRange": "*",
            "destinationAddressPrefix": "*", "destinationPortRange": "443",
        }})
    };
    let id = azure.server().network_id("networkSecurityGroups/nsg");
    let mut group = azure.network("networkSecurityGroups/nsg").await;
    let rules = group["properties"]["securityRules"].as_array_mut().unwrap();
    rules.extend((0..998).map(rule));
    azure.server().call(Method::PUT, &id, Some(&group)).await.unwrap();
    let before = azure.network("networkSecurityGroups/nsg").await;
    // One rule for each protocol.
    let mut large = service("a-large-one", &[53]);
    let udp = ServicePort {
        protocol: Protocol::Udp,
        ..large.ports[0].clone()
    };
    large.ports.push(udp);
    azure.services.extend([large, service("web", &[80]), service("zoo", &[443])]);
    settle_within_limits(&mut azure).await;
    assert_eq!(refused(&azure), ["a-large-one", "zoo"].map(str::to_owned).into());
    azure.assert_complaints(&[
        "1001 rules, and Azure's limit is 1000",
        "azure-disable-load-balancer-nsg-rule",
    ]);
    assert!(azure.address("web").starts_with("20.50."));
    let after = azure.network("networkSecurityGroups/nsg").await;
    let [before, after] = [&before, &after].map(|group| names_of(&group["properties"]["securityRules"]));
    assert_eq!((&after[..999], after.len()), (before.as_slice(), 1000));
    // The next process leaves out the same ones, and a Service with an earlier name does not displace one that is served.
    azure.services.push(service("another", &[8080]));
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    settle_within_limits(&mut azure).await;
    assert_eq!(refused(&azure), ["a-large-one", "another", "zoo"].map(str::to_owned).into());
    // A Service that stands may change its rule, and another one may share it.
    azure.service("web").ports = service("web", &[81]).ports;
    azure.service("another").ports = service("another", &[81]).ports;
    settle_within_limits(&mut azure).await;
    assert_eq!(refused(&azure), ["a-large-one", "zoo"].map(str::to_owned).into());
    // A person deletes two rules.
    let mut group = azure.network("networkSecurityGroups/nsg").await;
    let rules = group["properties"]["securityRules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["name"] != "person-0" && rule["name"] != "person-1");
    azure.server().call(Method::PUT, &id, Some(&group)).await.unwrap();
    settle_within_limits(&mut azure).await;
    assert_eq!(refused(&azure), ["zoo".to_owned()].into());
    azure.service("a-large-one").deleting = true;
    azure.settle_well().await;
    azure.settle_well().await;
    assert!(azure.address("zoo").starts_with("20.50."));
    azure.assert_settled().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn a_service_without_room_for_its_addresses_holds_up_no_other() {
    // No two of these networks are halves of one.
    let ranges = |count: usize| -> Option<Vec<_>> {
        let networks = (0..count).map(|at| format!("198.18.{}.{}/32", at / 100, at % 100 * 2));
        Some(networks.map(|network| network.as_str().into()).collect())
    };
    let mut azure = Subscription::serving(&["--standalone=1"], service("web", &[80])).await;
    // The rules for SSH and of the other Service have one source each.
    let mut crowd = service("crowd", &[443]);
    crowd.source_ranges = ranges(3999);
    azure.services.extend([crowd, service("zoo", &[80])]);
    settle_within_limits(&mut azure).await;
    assert_eq!(refused(&azure), ["crowd".to_owned()].into());
    azure.assert_complaints(&["4001 sources, and Azure's limit is 4000"]);
    assert!(azure.address("zoo").starts_with("20.50."));
    azure.service("crowd").source_ranges = ranges(3998);
    azure.settle_well().await;
    azure.assert_settled().await;
    // There is no room for another source. The Service that stands keeps its rules.
    azure.services.push(service("another", &[8080]));
    let before = azure.network("networkSecurityGroups/nsg").await;
    settle_within_limits(&mut azure).await;
    assert_eq!(refused(&azure), ["another".to_owned()].into());
    assert_eq!(azure.network("networkSecurityGroups/nsg").await, before);
    // Azure would refuse it.
    let mut group = before;
    let rules = group["properties"]["securityRules"].as_array_mut().unwrap();
    let crowded = rules
        .iter_mut()
        .find(|rule| rule["properties"]["sourceAddressPrefixes"].as_array().unwrap().len() > 1);
    let sources = crowded.unwrap()["properties"]["sourceAddressPrefixes"].as_array_mut().unwrap();
    sources.push(json!("203.0.113.0/24"));
    let id = azure.server().network_id("networkSecurityGroups/nsg");
    let answer = azure.server().call(Method::PUT, &id, Some(&group)).await;
    assert!(answer.unwrap_err().to_string().contains("SecurityRuleAddressPrefixLimitReached"));
    azure.service("crowd").deleting = true;
    azure.settle_well().await;
    azure.settle_well().await;
    assert!(azure.address("another").starts_with("20.50."));

    // Destinations are counted apart.
    let addresses: Vec<String> = (0..3997).map(|at| format!("203.0.{}.{}", at / 250, at % 250)).collect();
    let key = format!("{PREFIX}additional-public-ips");
    azure.services.push(service("many", &[80]));
    annotate(azure.service("many"), &key, Some(&addresses.join(",")));
    settle_within_limits(&mut azure).await;
    assert_eq!(refused(&azure), ["many".to_owned()].into());
    azure.assert_complaints(&["4002 destinations, and Azure's limit is 4000"]);
    annotate(azure.service("many"), &key, Some(&addresses[2..].join(",")));
    azure.settle_well().await;
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn a_tag_that_is_full_keeps_no_service_from_an_address() {
    let mut azure = Subscription::serving(&["--standalone=1"], service("web", &[80])).await;
    let address = azure.address("web");
    for at in 0..12_u16 {
        azure
            .services
            .push(sharing(&format!("a-service-with-a-long-name-{at:02}"), 8000 + at, &address));
    }
    azure.settle_well().await;
    let resource = azure.network("publicIPAddresses/kubernetes-auidweb").await;
    let listed = resource["tags"]["k8s-azure-service"].as_str().unwrap();
    assert!(listed.len() <= 256 && listed.starts_with("shop/web,"), "{listed}");
    assert_eq!(names_of(&azure.balancer().await["properties"]["loadBalancingRules"]).len(), 13);
    azure.assert_settled().await;
    // Services without a place in the tag keep the address.
    let all: Vec<String> = azure.services.iter().map(|service| service.id.name.to_string()).collect();
    for name in &all[..all.len() - 1] {
        azure.service(name).deleting = true;
    }
    azure.settle_well().await;
    assert_eq!(azure.address(&all[all.len() - 1]), address);
    azure.network("publicIPAddresses/kubernetes-auidweb").await;
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn machines_that_cannot_be_members_hold_up_no_others() {
    let mut azure = Subscription::new(&["--standalone=3", "--uniform=2"], "").await;
    let failed = azure.server().network_id("networkInterfaces/vm-0-nic");
    let state = |state: &str| json!({"properties": {"provisioningState": state}});
    azure.server().patch(&failed, &state("Failed")).await.unwrap();
    // The machine is a member of another cluster's load balancer.
    let other = azure.server().network_id("loadBalancers/other");
    let body = json!({
        "location": "eastus", "sku": {"name": "Standard"}, "properties": {"backendAddressPools": [{"name": "other"}]},
    });
    azure.server().call(Method::PUT, &other, Some(&body)).await.unwrap();
    let taken = azure.server().network_id("networkInterfaces/vm-1-nic");
    let mut interface = azure.server().document(&taken).await.unwrap();
    interface["properties"]["ipConfigurations"][0]["properties"]["loadBalancerBackendAddressPools"] =
        json!([{"id": format!("{other}/backendAddressPools/other")}]);
    azure.server().call(Method::PUT, &taken, Some(&interface)).await.unwrap();
    let before = azure.server().document(&other).await.unwrap();
    // An instance is being deleted, and a scale set has no instances.
    let leaving = azure.server().machines.iter().find(|machine| machine.id.ends_with("/virtualMachines/0"));
    let leaving = leaving.unwrap().id.clone();
    azure.server().patch(&leaving, &state("Deleting")).await.unwrap();
    azure.server().control::<Value>("set", &json!({"name": "empty"})).await.unwrap();

    azure.services.push(service("web", &[80]));
    azure.cluster.settle().await.unwrap();
    assert!(azure.address("web").starts_with("20.50."));
    let members = azure.members("kubernetes", "kubernetes").await;
    assert_eq!(members, ["1", "vm-2-nic"].map(str::to_owned).into());
    let events: Vec<String> = azure
        .cluster
        .reports
        .iter()
        .flat_map(|report| &report.events)
        .map(|event| event.message.clone())
        .collect();
    for part in [
        "has a network interface whose last change failed",
        "has a machine that is a member of load balancer other",
        "has a machine that is being deleted",
    ] {
        assert!(events.iter().any(|event| event.contains(part)), "{part} is not in {events:#?}");
    }
    assert_eq!(azure.server().document(&other).await.unwrap(), before);

    azure.server().patch(&failed, &state("Succeeded")).await.unwrap();
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    azure.cluster.settle().await.unwrap();
    let members = azure.members("kubernetes", "kubernetes").await;
    assert_eq!(members, ["1", "vm-0-nic", "vm-2-nic"].map(str::to_owned).into());
    azure.service("web").deleting = true;
    azure.cluster.settle().await.unwrap();
    let interface = azure.server().document(&taken).await.unwrap();
    let pools =
        &interface["properties"]["ipConfigurations"][0]["properties"]["loadBalancerBackendAddressPools"];
    assert_eq!(pools.as_array().unwrap().len(), 1, "{pools}");
    assert_eq!(azure.server().document(&other).await.unwrap(), before);
    azure.stage.end().await;
}

#[tokio::test]
async fn an_interface_in_another_resource_group_is_written_there() {
    let mut azure = Subscription::new(&["--standalone=2"], "").await;
    let old = azure.server().network_id("networkInterfaces/vm-0-nic");
    let new = old.replace("/resourceGroups/k8s/", "/resourceGroups/interfaces/");
    let interface = azure.server().document(&old).await.unwrap().to_string().replace(&old, &new);
    let mut interface: Value = serde_json::from_str(&interface).unwrap();
    interface.as_object_mut().unwrap().remove("etag");
    azure
        .server()
        .control::<Value>("put", &json!({"id": new, "body": interface}))
        .await
        .unwrap();
    azure.server().delete(&old).await.unwrap();
    let machine = azure.server().machines[0].id.clone();
    let network = json!({"networkInterfaces": [{"id": new, "properties": {"primary": true}}]});
    let merge = json!({"properties": {"networkProfile": network}});
    azure.server().patch(&machine, &merge).await.unwrap();
    azure.services.push(service("web", &[80]));
    azure.settle_well().await;
    let members = azure.members("kubernetes", "kubernetes").await;
    assert_eq!(members, ["vm-0-nic", "vm-1-nic"].map(str::to_owned).into());
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn two_clusters_share_a_load_balancer_and_a_security_group() {
    let mut azure = Subscription::serving(&["--standalone=1"], service("web", &[80])).await;
    // The second cluster has the same config, and another ID and other Services.
    let cloud = azure.stage.restarted().await.unwrap();
    let mut second = TestCluster::new(cloud, advance_to);
    second.nodes.clone_from(&azure.nodes);
    second.ownership_tag = OwnershipTag::Known(ClusterTag::of("another-cluster"));
    second.services.push(service("other", &[80]));
    second.settle_well().await;
    let frontends = async |azure: &Subscription| {
        names_of(&azure.balancer().await["properties"]["frontendIPConfigurations"])
    };
    assert_eq!(frontends(&azure).await, ["auidweb", "auidother"]);
    // One rule admits the clients of both.
    let group = azure.network("networkSecurityGroups/nsg").await;
    assert_eq!(names_of(&group["properties"]["securityRules"]).len(), 2, "{group}");
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    assert_eq!(azure.settle_well().await, NOTHING);

    azure.service("web").deleting = true;
    azure.settle_well().await;
    assert_eq!(frontends(&azure).await, ["auidother"]);
    let group = azure.network("networkSecurityGroups/nsg").await;
    let address = second.find("other").unwrap().ingress[0].ip.clone().unwrap();
    let rules = group["properties"]["securityRules"].as_array().unwrap();
    let admits = rules.iter().any(|rule| rule["properties"]["destinationAddressPrefix"] == *address);
    assert!(admits, "{rules:#?}");
    second.cloud = azure.stage.restarted().await.unwrap();
    second.settle_well().await;
    assert_eq!(second.find("other").unwrap().ingress[0].ip.as_deref(), Some(&*address));
    assert_eq!(azure.members("kubernetes", "kubernetes").await.len(), 1);
    azure.stage.end().await;
}

#[tokio::test]
async fn rules_with_application_security_groups_keep_them() {
    let mut azure = Subscription::serving(&["--standalone=1"], service("web", &[80])).await;
    let id = azure.server().network_id("networkSecurityGroups/nsg");
    let groups = json!([{"id": azure.server().network_id("applicationSecurityGroups/front")}]);
    let mut group = azure.network("networkSecurityGroups/nsg").await;
    let rules = group["properties"]["securityRules"].as_array_mut().unwrap();
    for rule in rules.iter_mut().filter(|rule| rule["name"] != "ssh") {
        rule["properties"]["destinationApplicationSecurityGroups"] = groups.clone();
    }
    azure.server().call(Method::PUT, &id, Some(&group)).await.unwrap();
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    assert_eq!(azure.settle_well().await, NOTHING);
    azure.service("web").deleting = true;
    azure.settle_well().await;
    let group = azure.network("networkSecurityGroups/nsg").await;
    let rules = group["properties"]["securityRules"].as_array().unwrap();
    let left = rules.iter().find(|rule| rule["name"] != "ssh").unwrap();
    assert_eq!(left["properties"]["destinationApplicationSecurityGroups"], groups);
    azure.stage.end().await;
}

#[tokio::test]
async fn private_link_services_are_listed_once_unless_one_is_asked_for() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    azure.services.push(service("web", &[80]));
    let lists = async |azure: &mut Subscription| {
        azure.stage.calls().await;
        azure.cluster.read.freshness = Freshness::now();
        azure.cluster.settle_well().await;
        let calls = azure.stage.calls().await;
        calls
            .into_iter()
            .filter(|call| call.starts_with("LIST privateLinkServices"))
            .collect::<Vec<_>>()
    };
    assert_eq!(lists(&mut azure).await, ["LIST privateLinkServices 1"]);
    touch(&mut azure, "web");
    assert_eq!(lists(&mut azure).await, NOTHING);
    for (key, value) in [("load-balancer-internal", "true"), ("pls-create", "true")] {
        annotate(azure.service("web"), &format!("{PREFIX}{key}"), Some(value));
    }
    assert_ne!(lists(&mut azure).await, NOTHING);
    azure.network("privateLinkServices/pls-auidweb").await;
    // It is found by the next process, although no Service asks for it any more.
    annotate(azure.service("web"), &format!("{PREFIX}pls-create"), None);
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    azure.settle_well().await;
    let left = azure.documents().await;
    assert!(!left.keys().any(|id| id.contains("/privatelinkservices/")), "{:?}", left.keys());
    lists(&mut azure).await;
    assert_eq!(lists(&mut azure).await, NOTHING);
    azure.delete_all().await;
    azure.stage.end().await;
}
