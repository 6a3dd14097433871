//! Load balancers: the calls, and the resources that they leave.

use ccm_core::{
    load_balancer::{IpFamily, Policy, Protocol, ServicePort, SessionAffinity},
    testkit::cluster::{annotate, service},
};
use http::Method;
use serde_json::{Value, json};

use crate::subscription::{NOTHING, PREFIX, Subscription, names_of, node_of, rule};

/// The begin of the names of the Service `web`.
const WEB: &str = "auidweb";

#[tokio::test]
async fn an_external_service_has_the_resources_of_the_go_program() {
    let mut azure = Subscription::new(&["--uniform=3"], "").await;
    azure.services.push(service("web", &[80, 443]));
    let writes = azure.settle_well().await;
    assert_eq!(
        writes,
        [
            "PUT loadBalancers 2",
            "PUT networkSecurityGroups 1",
            "PUT publicIPAddresses 1",
            "PUT virtualMachineScaleSets 1",
            "PUT virtualMachineScaleSets/virtualMachines 3",
        ]
    );
    let address = azure.network("publicIPAddresses/kubernetes-auidweb").await;
    assert_eq!(address["properties"]["ipAddress"], azure.address("web"));
    assert_eq!(address["zones"], json!(["1", "2", "3"]));
    assert_eq!(
        address["tags"],
        json!({
            "k8s-azure-service": "shop/web", "k8s-azure-cluster-name": "kubernetes",
            "kube_cluster_id_kube-system-uid": "owned",
        })
    );
    let balancer = azure.balancer().await;
    let properties = &balancer["properties"];
    assert_eq!(balancer["sku"]["name"], "Standard");
    assert_eq!(names_of(&properties["frontendIPConfigurations"]), [WEB]);
    assert_eq!(names_of(&properties["backendAddressPools"]), ["kubernetes"]);
    assert_eq!(names_of(&properties["probes"]), ["auidweb-TCP-80", "auidweb-TCP-443"]);
    let rule_of_80 = &properties["loadBalancingRules"][0];
    assert_eq!(rule_of_80["name"], "auidweb-TCP-80");
    for (field, expected) in [
        ("protocol", json!("Tcp")),
        ("frontendPort", json!(80)),
        ("backendPort", json!(80)),
        ("enableFloatingIP", json!(true)),
        ("enableTcpReset", json!(true)),
        ("idleTimeoutInMinutes", json!(4)),
        ("loadDistribution", json!("Default")),
        ("disableOutboundSnat", json!(false)),
    ] {
        assert_eq!(rule_of_80["properties"][field], expected, "{field}");
    }
    let probe = &properties["probes"][0]["properties"];
    assert_eq!((&probe["port"], &probe["protocol"]), (&json!(30080), &json!("Tcp")));
    assert_eq!((&probe["intervalInSeconds"], &probe["probeThreshold"]), (&json!(5), &json!(2)));
    let group = azure.network("networkSecurityGroups/nsg").await;
    let allow = rule(&group, "k8s-azure-lb_allow_IPv4_556f7044ec033071ec0dfcf7cd85bc93");
    assert_eq!(allow["destinationAddressPrefix"], azure.address("web"));
    assert_eq!((&allow["sourceAddressPrefix"], &allow["priority"]), (&json!("Internet"), &json!(500)));
    assert_eq!(azure.members("kubernetes", "kubernetes").await, ["0", "1", "2"].map(str::to_owned).into());
    azure.assert_settled().await;

    let writes = azure.delete_all().await;
    assert_eq!(
        writes,
        [
            "DELETE loadBalancers 1",
            "DELETE publicIPAddresses 1",
            "PUT loadBalancers 1",
            "PUT networkSecurityGroups 1",
            "PUT virtualMachineScaleSets 1",
            "PUT virtualMachineScaleSets/virtualMachines 3",
        ]
    );
    azure.stage.end().await;
}

#[tokio::test]
async fn ports_of_two_protocols_change_with_one_write() {
    let mut azure = Subscription::new(&["--uniform=1"], "").await;
    let mut web = service("web", &[53, 80]);
    web.ports.push(ServicePort {
        protocol: Protocol::Udp,
        port: 53,
        node_port: 30153,
        ..ServicePort::default()
    });
    azure.services.push(web);
    azure.settle_well().await;
    let rules = |balancer: &Value| names_of(&balancer["properties"]["loadBalancingRules"]);
    let before = azure.balancer().await;
    assert_eq!(rules(&before), ["auidweb-TCP-53", "auidweb-TCP-80", "auidweb-UDP-53"]);
    assert_eq!(names_of(&before["properties"]["probes"]).len(), 2);
    let address = azure.address("web");

    azure.service("web").ports.remove(1);
    let writes = azure.settle_well().await;
    assert_eq!(writes, ["PUT loadBalancers 1", "PUT networkSecurityGroups 1"]);
    assert_eq!(rules(&azure.balancer().await), ["auidweb-TCP-53", "auidweb-UDP-53"]);
    assert_eq!(azure.address("web"), address);
    let group = azure.network("networkSecurityGroups/nsg").await;
    assert_eq!(group["properties"]["securityRules"].as_array().unwrap().len(), 3, "{group}");
    azure.assert_settled().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn members_follow_the_nodes() {
    let mut azure = Subscription::serving(&["--uniform=3"], service("web", &[80])).await;
    azure.cluster.nodes[1].eligible = false;
    assert_eq!(azure.settle_well().await, ["PUT virtualMachineScaleSets/virtualMachines 1"]);
    assert_eq!(azure.members("kubernetes", "kubernetes").await, ["0", "2"].map(str::to_owned).into());
    azure.cluster.nodes[1].eligible = true;
    assert_eq!(azure.settle_well().await, ["PUT virtualMachineScaleSets/virtualMachines 1"]);
    // A new instance has the pool from its scale set.
    let machine = azure.server().create("uniform", &json!({})).await.unwrap();
    azure.cluster.nodes.push(node_of(&machine));
    assert_eq!(azure.settle_well().await, NOTHING);
    assert_eq!(azure.members("kubernetes", "kubernetes").await.len(), 4);
    // No node may be a member: the members stay.
    for node in &mut azure.cluster.nodes {
        node.eligible = false;
    }
    assert_eq!(azure.settle_well().await, NOTHING);
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn services_share_the_load_balancer_and_its_members() {
    let mut azure = Subscription::serving(&["--uniform=2"], service("web", &[80])).await;
    azure.services.push(service("api", &[80]));
    let writes = azure.settle_well().await;
    assert_eq!(
        writes,
        [
            "PUT loadBalancers 1",
            "PUT networkSecurityGroups 1",
            "PUT publicIPAddresses 1"
        ]
    );
    let group = azure.network("networkSecurityGroups/nsg").await;
    let shared = rule(&group, "k8s-azure-lb_allow_IPv4_d39272f7f57ed937951650d93992ad77");
    assert_eq!(shared["destinationAddressPrefixes"].as_array().unwrap().len(), 2);
    azure.assert_settled().await;
    azure.service("web").deleting = true;
    let writes = azure.settle_well().await;
    assert_eq!(
        writes,
        [
            "DELETE publicIPAddresses 1",
            "PUT loadBalancers 1",
            "PUT networkSecurityGroups 1"
        ]
    );
    assert_eq!(names_of(&azure.balancer().await["properties"]["frontendIPConfigurations"]), ["auidapi"]);
    let group = azure.network("networkSecurityGroups/nsg").await;
    let rule = rule(&group, "k8s-azure-lb_allow_IPv4_d39272f7f57ed937951650d93992ad77");
    assert_eq!(rule["destinationAddressPrefix"], azure.address("api"));
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn machines_are_members_by_their_interfaces() {
    let mut azure = Subscription::new(&["--flex=2", "--standalone=2"], "").await;
    azure.services.push(service("web", &[80]));
    let writes = azure.settle_well().await;
    assert_eq!(
        writes,
        [
            "PUT loadBalancers 2",
            "PUT networkInterfaces 4",
            "PUT networkSecurityGroups 1",
            "PUT publicIPAddresses 1",
            "PUT virtualMachineScaleSets 1",
        ]
    );
    assert_eq!(azure.members("kubernetes", "kubernetes").await.len(), 4);
    let documents = azure.documents().await;
    let set = documents.values().find(|document| document["name"] == "pool-f").unwrap();
    let network = &set["properties"]["virtualMachineProfile"]["networkProfile"];
    assert_eq!(network["networkApiVersion"], "2020-11-01");
    azure.assert_settled().await;
    azure.cluster.nodes[3].eligible = false;
    assert_eq!(azure.settle_well().await, ["PUT networkInterfaces 1"]);
    assert_eq!(azure.members("kubernetes", "kubernetes").await.len(), 3);
    let writes = azure.delete_all().await;
    // Interfaces leave with the load balancer.
    assert!(!writes.iter().any(|write| write.contains("networkInterfaces")), "{writes:?}");
    azure.stage.end().await;
}

#[tokio::test]
async fn an_internal_service_has_an_address_of_its_subnet() {
    let mut azure = Subscription::new(&["--uniform=2"], "").await;
    let mut web = service("web", &[80]);
    annotate(&mut web, &format!("{PREFIX}load-balancer-internal"), Some("true"));
    azure.services.push(web);
    let writes = azure.settle_well().await;
    assert_eq!(
        writes,
        [
            "PUT loadBalancers 2",
            "PUT virtualMachineScaleSets 1",
            "PUT virtualMachineScaleSets/virtualMachines 2"
        ]
    );
    let balancer = azure.network("loadBalancers/kubernetes-internal").await;
    let frontend = &balancer["properties"]["frontendIPConfigurations"][0];
    assert_eq!(frontend["properties"]["privateIPAddress"], azure.address("web"));
    assert_eq!(frontend["zones"], json!(["1", "2", "3"]));
    assert!(azure.address("web").starts_with("10.240.0."));
    azure.assert_settled().await;

    // Another subnet: another frontend.
    annotate(azure.service("web"), &format!("{PREFIX}load-balancer-internal-subnet"), Some("apps"));
    assert_eq!(azure.settle_well().await, ["PUT loadBalancers 1"]);
    assert!(azure.address("web").starts_with("10.241.0."));
    annotate(azure.service("web"), &format!("{PREFIX}load-balancer-ipv4"), Some("10.241.0.77"));
    assert_eq!(azure.settle_well().await, ["PUT loadBalancers 1"]);
    assert_eq!(azure.address("web"), "10.241.0.77");
    // Clients outside of the network need a rule.
    azure.service("web").source_ranges = Some(vec!["192.0.2.0/24".into()]);
    assert_eq!(azure.settle_well().await, ["PUT networkSecurityGroups 1"]);
    azure.assert_settled().await;

    annotate(azure.service("web"), &format!("{PREFIX}load-balancer-ipv4"), Some("10.9.0.7"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["10.9.0.7 is not in subnet apps"]);
    assert_eq!(azure.address("web"), "10.241.0.77");
    annotate(azure.service("web"), &format!("{PREFIX}load-balancer-internal-subnet"), Some("none"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["subnet none not found"]);
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn a_service_moves_between_the_internal_and_the_external_load_balancer() {
    let mut azure = Subscription::serving(&["--uniform=1", "--standalone=1"], service("web", &[80])).await;
    annotate(azure.service("web"), &format!("{PREFIX}load-balancer-internal"), Some("True"));
    azure.settle_well().await;
    assert_eq!(azure.names().await, ["kubernetes-internal", "ssh"]);
    assert!(azure.address("web").starts_with("10.240.0."));
    azure.assert_settled().await;
    annotate(azure.service("web"), &format!("{PREFIX}load-balancer-internal"), None);
    azure.settle_well().await;
    assert!(azure.address("web").starts_with("20.50."));
    assert_eq!(azure.members("kubernetes", "kubernetes").await.len(), 2);
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn pools_of_addresses_follow_the_nodes_with_one_write() {
    let conf = "loadBalancerBackendPoolConfigurationType: nodeIP\n";
    let mut azure = Subscription::new(&["--uniform=2", "--standalone=2"], conf).await;
    azure.services.push(service("web", &[80]));
    let writes = azure.settle_well().await;
    assert_eq!(
        writes,
        [
            "PUT loadBalancers 2",
            "PUT loadBalancers/backendAddressPools 1",
            "PUT networkSecurityGroups 1",
            "PUT publicIPAddresses 1"
        ]
    );
    let addresses = |balancer: &Value| {
        let pool = &balancer["properties"]["backendAddressPools"][0]["properties"];
        assert!(pool["virtualNetwork"]["id"].as_str().unwrap().ends_with("/virtualNetworks/vnet"));
        names_of(&pool["loadBalancerBackendAddresses"])
    };
    assert_eq!(addresses(&azure.balancer().await), ["pool-a000000", "pool-a000001", "vm-0", "vm-1"]);
    azure.assert_settled().await;
    azure.cluster.nodes[0].eligible = false;
    azure.cluster.nodes.pop();
    assert_eq!(azure.settle_well().await, ["PUT loadBalancers/backendAddressPools 1"]);
    assert_eq!(addresses(&azure.balancer().await), ["pool-a000001", "vm-0"]);
    let writes = azure.delete_all().await;
    assert!(!writes.iter().any(|write| write.contains("virtualMachine")), "{writes:?}");
    azure.stage.end().await;
}

#[tokio::test]
async fn without_a_floating_ip_the_security_group_admits_clients_to_node_ports() {
    let mut azure = Subscription::new(&["--standalone=3"], "").await;
    let floating_ip = format!("{PREFIX}disable-load-balancer-floating-ip");
    let mut web = service("web", &[80]);
    annotate(&mut web, &floating_ip, Some("true"));
    azure.services.push(web);
    azure.settle_well().await;
    let balancer = azure.balancer().await;
    let fields = &balancer["properties"]["loadBalancingRules"][0]["properties"];
    assert_eq!((&fields["backendPort"], &fields["enableFloatingIP"]), (&json!(30080), &json!(false)));
    let admitted = async |azure: &Subscription| {
        let group = azure.network("networkSecurityGroups/nsg").await;
        let mut admitted = Vec::new();
        for rule in group["properties"]["securityRules"].as_array().unwrap() {
            let fields = &rule["properties"];
            let several = fields["destinationAddressPrefixes"].as_array().cloned().unwrap_or_default();
            for destination in several.iter().chain(fields.get("destinationAddressPrefix")) {
                if rule["name"] != "ssh" {
                    admitted.push(format!("{} {}", fields["destinationPortRanges"], destination));
                }
            }
        }
        admitted.sort();
        admitted
    };
    let of_nodes = |azure: &Subscription, nodes: &[usize]| {
        let address = |at: &usize| azure.cluster.nodes[*at].address(Some(IpFamily::V4)).unwrap();
        let mut expected: Vec<_> =
            nodes.iter().map(|at| format!("[\"30080\"] \"{}\"", address(at))).collect();
        expected.sort();
        expected
    };
    assert_eq!(admitted(&azure).await, of_nodes(&azure, &[0, 1, 2]));
    azure.assert_settled().await;

    // A node that may not be a member, and one that is gone.
    azure.cluster.nodes[1].eligible = false;
    azure.settle_well().await;
    assert_eq!(admitted(&azure).await, of_nodes(&azure, &[0, 2]));
    let node = azure.cluster.nodes.pop().unwrap();
    azure.settle_well().await;
    assert_eq!(admitted(&azure).await, of_nodes(&azure, &[0]));
    // Without a node that may be a member, all stays.
    azure.cluster.nodes[0].eligible = false;
    assert_eq!(azure.settle_well().await, NOTHING);
    assert_eq!(admitted(&azure).await, of_nodes(&azure, &[0]));
    azure.cluster.nodes[0].eligible = true;
    azure.cluster.nodes.push(node);
    azure.settle_well().await;
    assert_eq!(admitted(&azure).await, of_nodes(&azure, &[0, 2]));

    // A rule that refuses all others would refuse the traffic between nodes.
    annotate(azure.service("web"), &format!("{PREFIX}allowed-ip-ranges"), Some("192.0.2.0/24"));
    let deny = format!("{PREFIX}deny-all-except-load-balancer-source-ranges");
    annotate(azure.service("web"), &deny, Some("true"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&[&floating_ip, &deny]);
    assert_eq!(admitted(&azure).await, of_nodes(&azure, &[0, 2]));
    annotate(azure.service("web"), &format!("{PREFIX}allowed-ip-ranges"), None);
    annotate(azure.service("web"), &deny, None);
    azure.service("web").ports[0].node_port = 0;
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["needs node ports"]);
    azure.service("web").ports[0].node_port = 30080;

    // Floating IP again, and off again.
    annotate(azure.service("web"), &floating_ip, None);
    azure.settle_well().await;
    assert_eq!(admitted(&azure).await, [format!("[\"80\"] \"{}\"", azure.address("web"))]);
    annotate(azure.service("web"), &floating_ip, Some("true"));
    azure.settle_well().await;
    assert_eq!(admitted(&azure).await, of_nodes(&azure, &[0, 2]));
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn elements_of_others_in_shared_documents_stay() {
    let mut azure = Subscription::serving(&["--uniform=1"], service("web", &[80])).await;
    let address = azure.server().network_id("publicIPAddresses/theirs");
    let body = json!({
        "location": "eastus", "sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"},
    });
    azure.server().call(Method::PUT, &address, Some(&body)).await.unwrap();
    let id = azure.server().network_id("loadBalancers/kubernetes");
    let mut balancer = azure.balancer().await;
    let properties = &mut balancer["properties"];
    let frontend = json!({"name": "theirs", "properties": {"publicIPAddress": {"id": address}}});
    properties["frontendIPConfigurations"].as_array_mut().unwrap().insert(0, frontend);
    properties["outboundRules"] = json!([{"name": "out", "properties": {
        "protocol": "All", "backendAddressPool": {"id": format!("{id}/backendAddressPools/kubernetes")},
        "frontendIPConfigurations": [{"id": format!("{id}/frontendIPConfigurations/theirs")}],
    }}]);
    azure.server().call(Method::PUT, &id, Some(&balancer)).await.unwrap();
    let theirs = azure.balancer().await["properties"]["outboundRules"][0]["properties"].clone();

    // The etag that this process knows does not fit any more: the changes are merged.
    azure.service("web").ports = service("web", &[443]).ports;
    azure.settle_well().await;
    let balancer = azure.balancer().await;
    assert_eq!(names_of(&balancer["properties"]["frontendIPConfigurations"]), ["theirs", WEB]);
    assert_eq!(balancer["properties"]["outboundRules"][0]["properties"], theirs);
    azure.assert_settled().await;
    azure.service("web").deleting = true;
    azure.settle_well().await;
    let balancer = azure.balancer().await;
    assert_eq!(names_of(&balancer["properties"]["frontendIPConfigurations"]), ["theirs"]);
    assert_eq!(names_of(&balancer["properties"]["backendAddressPools"]), ["kubernetes"]);
    azure.stage.end().await;
}

#[tokio::test]
async fn what_is_not_supported_is_refused() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    azure.services.push(service("web", &[80]));
    for (name, value) in [
        ("load-balancer-mode", "__auto__"),
        ("load-balancer-ipv4", "not-an-address"),
    ] {
        let key = format!("{PREFIX}{name}");
        annotate(azure.service("web"), &key, Some(value));
        azure.cluster.settle().await.unwrap();
        azure.assert_complaints(&[&key]);
        annotate(azure.service("web"), &key, None);
    }
    assert_eq!(azure.names().await, ["ssh"]);
    azure.settle_well().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn operations_are_awaited_and_a_failed_one_is_sent_again() {
    let mut azure = Subscription::new(&["--uniform=1"], "").await;
    for kind in ["publicIPAddresses", "loadBalancers", "networkSecurityGroups"] {
        let fault = json!({"method": "lro", "type": kind, "code": "InternalServerError", "lro": true});
        azure.server().control::<Value>("fault", &fault).await.unwrap();
    }
    azure.services.push(service("web", &[80]));
    for _ in 0..6 {
        azure.cluster.settle().await.unwrap();
    }
    azure.assert_no_complaints();
    assert!(azure.address("web").starts_with("20.50."));
    let documents = azure.documents().await;
    for document in documents.values() {
        assert_eq!(document["properties"]["provisioningState"], "Succeeded", "{document}");
    }
    azure.assert_settled().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn machines_are_members_of_both_load_balancers() {
    let mut azure = Subscription::new(&["--uniform=3", "--flex=2", "--standalone=2"], "").await;
    azure.services.push(service("web", &[80]));
    let mut internal = service("internal", &[80]);
    annotate(&mut internal, &format!("{PREFIX}load-balancer-internal"), Some("true"));
    azure.services.push(internal);
    azure.settle_well().await;
    for balancer in ["kubernetes", "kubernetes-internal"] {
        assert_eq!(azure.members(balancer, "kubernetes").await.len(), 7);
    }
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn both_families_have_addresses_rules_and_pools() {
    let mut azure = Subscription::new(&["--uniform=1", "--standalone=1", "--ipv6"], "").await;
    let mut web = service("web", &[80]);
    web.ip_families = vec![IpFamily::V4, IpFamily::V6];
    azure.services.push(web);
    azure.settle_well().await;
    assert_eq!(azure.find("web").unwrap().ingress.len(), 2);
    let balancer = azure.balancer().await;
    let properties = &balancer["properties"];
    assert_eq!(names_of(&properties["frontendIPConfigurations"]), [WEB, "auidweb-IPv6"]);
    assert_eq!(names_of(&properties["backendAddressPools"]), ["kubernetes", "kubernetes-IPv6"]);
    assert_eq!(names_of(&properties["loadBalancingRules"]), ["auidweb-TCP-80", "auidweb-TCP-80-IPv6"]);
    for pool in ["kubernetes", "kubernetes-IPv6"] {
        assert_eq!(azure.members("kubernetes", pool).await.len(), 2, "{pool}");
    }
    let group = azure.network("networkSecurityGroups/nsg").await;
    let rules = names_of(&group["properties"]["securityRules"]);
    assert!(rules.iter().any(|rule| rule.starts_with("k8s-azure-lb_allow_IPv6_")), "{rules:?}");
    azure.assert_settled().await;

    // One family less releases its address and its rule.
    azure.service("web").ip_families = vec![IpFamily::V4];
    azure.settle_well().await;
    let names = azure.names().await;
    assert!(!names.iter().any(|name| name.contains("IPv6")), "{names:?}");
    assert_eq!(azure.find("web").unwrap().ingress.len(), 1);
    azure.assert_settled().await;

    // Without the Service, its address is reported and stays.
    let services = std::mem::take(&mut azure.cluster.services);
    let orphans = azure.cluster.discover().await.unwrap().orphans.unwrap();
    let orphans: Vec<_> = orphans.iter().map(|orphan| (orphan.what.as_str(), orphan.deletable)).collect();
    assert_eq!(orphans, [("public IP address kubernetes-auidweb", false)]);
    assert_eq!(azure.settle_well().await, NOTHING);
    azure.cluster.services = services;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn sources_and_local_traffic_change_rules_and_probes() {
    let mut azure = Subscription::serving(&["--standalone=1"], service("web", &[80])).await;
    let security = async |azure: &Subscription| {
        let group = azure.network("networkSecurityGroups/nsg").await;
        let rules = group["properties"]["securityRules"].as_array().unwrap().clone();
        let fields = rules
            .into_iter()
            .filter(|rule| rule["name"] != "ssh")
            .map(|rule| rule["properties"].clone());
        fields.collect::<Vec<Value>>()
    };
    azure.service("web").source_ranges = Some(vec![
        "10.1.0.0/17".into(),
        "10.1.128.0/17".into(),
        "192.0.2.0/24".into(),
    ]);
    assert_eq!(azure.settle_well().await, ["PUT networkSecurityGroups 1"]);
    let rules = security(&azure).await;
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0]["sourceAddressPrefixes"], json!(["10.1.0.0/16", "192.0.2.0/24"]));
    assert_eq!(rules[0]["priority"], 500);

    azure.service("web").source_ranges = None;
    annotate(azure.service("web"), &format!("{PREFIX}allowed-service-tags"), Some("AzureCloud"));
    annotate(azure.service("web"), &format!("{PREFIX}allowed-ip-ranges"), Some("10.0.0.0/8,nonsense"));
    azure.settle_well().await;
    let rules = security(&azure).await;
    let access: Vec<_> = rules
        .iter()
        .map(|rule| (rule["access"].clone(), rule["sourceAddressPrefix"].clone()))
        .collect();
    for expected in [("Allow", "AzureCloud"), ("Allow", "10.0.0.0/8"), ("Deny", "*")] {
        assert!(access.contains(&(json!(expected.0), json!(expected.1))), "{access:?}");
    }
    let events = azure.cluster.reports.iter().flat_map(|report| &report.events);
    assert!(
        events
            .into_iter()
            .any(|event| event.reason == "InvalidSourceRanges" && event.message.contains("nonsense"))
    );
    azure.assert_settled().await;
    annotate(azure.service("web"), &format!("{PREFIX}disable-load-balancer-nsg-rule"), Some("true"));
    azure.settle_well().await;
    assert!(security(&azure).await.is_empty());

    let web = azure.service("web");
    (web.external_policy, web.health_check_node_port) = (Policy::Local, 32000);
    web.session_affinity = SessionAffinity::ClientIp {
        timeout_seconds: None,
    };
    assert_eq!(azure.settle_well().await, ["PUT loadBalancers 1"]);
    let balancer = azure.balancer().await;
    let probes = balancer["properties"]["probes"].as_array().unwrap();
    assert_eq!((probes.len(), &probes[0]["name"]), (1, &json!("auidweb-TCP-32000")));
    let probe = &probes[0]["properties"];
    assert_eq!((&probe["protocol"], &probe["requestPath"]), (&json!("Http"), &json!("/healthz")));
    let rule = &balancer["properties"]["loadBalancingRules"][0]["properties"];
    assert_eq!(rule["loadDistribution"], "SourceIP");
    assert!(rule["probe"]["id"].as_str().unwrap().ends_with("/probes/auidweb-TCP-32000"));
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn a_shared_probe_stays_until_no_rule_uses_it() {
    let conf = "clusterServiceLoadBalancerHealthProbeMode: shared\n";
    let mut azure = Subscription::new(&["--standalone=1"], conf).await;
    azure.services.push(service("web", &[80]));
    azure.services.push(service("api", &[443]));
    azure.settle_well().await;
    let probes = async |azure: &Subscription| names_of(&azure.balancer().await["properties"]["probes"]);
    assert_eq!(probes(&azure).await, ["cluster-service-shared-health-probe"]);
    azure.assert_settled().await;
    azure.service("web").deleting = true;
    azure.settle_well().await;
    assert_eq!(probes(&azure).await, ["cluster-service-shared-health-probe"]);
    let api = azure.service("api");
    (api.external_policy, api.health_check_node_port) = (Policy::Local, 32000);
    azure.settle_well().await;
    assert_eq!(probes(&azure).await, ["auidapi-TCP-32000"]);
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn tags_dns_label_and_prefix_of_the_address() {
    let mut azure = Subscription::new(&["--standalone=1"], "tags: team=core\n").await;
    let prefix = azure.server().network_id("publicIPPrefixes/pre");
    let body = json!({"location": "eastus", "sku": {"name": "Standard"}, "properties": {
        "prefixLength": 29, "ipPrefix": "20.99.0.0/29", "publicIPAddressVersion": "IPv4", "provisioningState": "Succeeded",
    }});
    azure
        .server()
        .control::<Value>("put", &json!({"id": prefix, "body": body}))
        .await
        .unwrap();
    let mut web = service("web", &[80]);
    for (name, value) in [
        ("pip-tags", "team=web,stage=test"),
        ("pip-ip-tags", "RoutingPreference=Internet"),
        ("dns-label-name", "example-web"),
        ("pip-prefix-id", prefix.as_str()),
    ] {
        annotate(&mut web, &format!("{PREFIX}{name}"), Some(value));
    }
    azure.services.push(web);
    azure.settle_well().await;
    let name = "publicIPAddresses/kubernetes-auidweb-pre";
    let address = azure.network(name).await;
    assert!(azure.address("web").starts_with("20.99.0."));
    assert_eq!((&address["tags"]["team"], &address["tags"]["stage"]), (&json!("web"), &json!("test")));
    assert_eq!(address["tags"]["k8s-azure-dns-label-service"], "shop/web");
    assert_eq!(address["properties"]["dnsSettings"]["domainNameLabel"], "example-web");
    assert_eq!(
        address["properties"]["ipTags"],
        json!([{"ipTagType": "RoutingPreference", "tag": "Internet"}])
    );
    assert_eq!(azure.balancer().await["tags"]["team"], "core");
    azure.assert_settled().await;

    annotate(azure.service("web"), &format!("{PREFIX}dns-label-name"), Some(""));
    assert_eq!(azure.settle_well().await, ["PUT publicIPAddresses 1"]);
    let address = azure.network(name).await;
    assert!(address["properties"].get("dnsSettings").is_none(), "{address}");
    assert!(address["tags"].get("k8s-azure-dns-label-service").is_none(), "{address}");
    azure.assert_settled().await;
    annotate(azure.service("web"), &format!("{PREFIX}pip-ip-tags"), Some("RoutingPreference=Other"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["IP tags of public IP address kubernetes-auidweb-pre"]);
    annotate(azure.service("web"), &format!("{PREFIX}pip-ip-tags"), None);
    // Without the prefix, the Service gets another address.
    annotate(azure.service("web"), &format!("{PREFIX}pip-prefix-id"), None);
    azure.settle_well().await;
    assert!(azure.address("web").starts_with("20.50."));
    let names = azure.names().await;
    assert!(!names.iter().any(|name| name.ends_with("-pre")), "{names:?}");
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn a_service_that_azure_refuses_holds_up_no_other() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    azure.services.push(service("web", &[80]));
    azure.services.push(service("api", &[80]));
    azure.settle_well().await;
    let message = "the rule loadBalancingRules/auidapi-TCP-443 is not possible";
    let fault = json!({
        "method": "PUT", "type": "loadBalancers", "status": 400, "code": "InvalidRule", "message": message,
    });
    azure.server().control::<Value>("fault", &fault).await.unwrap();
    azure.service("web").ports = service("web", &[443]).ports;
    azure.service("api").ports = service("api", &[443]).ports;
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["InvalidRule", "auidapi-TCP-443"]);
    let balancer = azure.balancer().await;
    let rules = names_of(&balancer["properties"]["loadBalancingRules"]);
    assert!(
        rules.contains(&"auidweb-TCP-443".to_owned()) && rules.contains(&"auidapi-TCP-80".to_owned()),
        "{rules:?}"
    );
    // The Service changes, and is tried again.
    annotate(azure.service("api"), "example.com/again", Some("1"));
    azure.settle_well().await;
    let rules = names_of(&azure.balancer().await["properties"]["loadBalancingRules"]);
    assert!(rules.contains(&"auidapi-TCP-443".to_owned()), "{rules:?}");
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn without_permission_the_error_names_the_call_and_nothing_is_lost() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    let permissions = json!({"permissions": [
        {"actions": ["*"], "notActions": ["Microsoft.Network/networkSecurityGroups/write"]},
    ]});
    azure.server().control::<Value>("settings", &permissions).await.unwrap();
    azure.services.push(service("web", &[80]));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["AuthorizationFailed", "networkSecurityGroups"]);
    assert!(azure.find("web").unwrap().ingress.is_empty());
    let all = json!({"permissions": [{"actions": ["*"], "notActions": []}]});
    azure.server().control::<Value>("settings", &all).await.unwrap();
    annotate(azure.service("web"), "example.com/again", Some("1"));
    azure.settle_well().await;
    assert!(azure.address("web").starts_with("20.50."));
    azure.delete_all().await;
    azure.stage.end().await;
}
