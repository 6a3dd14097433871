//! Public IP addresses that Services choose or share.

use std::net::{IpAddr, Ipv6Addr};

use ccm_core::{
    Freshness,
    load_balancer::{IpFamily, Policy},
    testkit::cluster::{annotate, service},
};
use serde_json::{Value, json};

use crate::subscription::{NOTHING, PREFIX, Subscription, names_of};

/// Creates a public IP address of the user, and returns its IP address.
async fn create(azure: &Subscription, group: &str, name: &str, version: &str) -> String {
    let resource = json!({
        "type": "Microsoft.Network/publicIPAddresses", "name": name, "group": group,
        "body": {
            "sku": {"name": "Standard"}, "tags": {"owner": "user"},
            "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": version},
        },
    });
    let created: Value = azure.server().control("seed", &resource).await.unwrap();
    created["properties"]["ipAddress"].as_str().unwrap().to_owned()
}

/// Sets an annotation of a Service.
fn set(azure: &mut Subscription, name: &str, key: &str, value: Option<&str>) {
    annotate(azure.service(name), &format!("{PREFIX}{key}"), value);
}

/// Asserts that an address of the user is as it was created.
async fn assert_unchanged(azure: &Subscription, group: &str, name: &str) {
    let ending = format!("/resourcegroups/{group}/providers/microsoft.network/publicipaddresses/{name}");
    let documents = azure.documents().await;
    let (_, address) = documents.iter().find(|(id, _)| id.to_lowercase().ends_with(&ending)).expect(name);
    assert_eq!(address["tags"], json!({"owner": "user"}));
    assert!(address["properties"].get("dnsSettings").is_none(), "{address}");
}

/// Frontends with their public IP addresses, and rules with their frontends.
async fn shape(azure: &Subscription) -> Vec<String> {
    let balancer = azure.balancer().await;
    let last = |id: &Value| id.as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let list = |kind: &str| balancer["properties"][kind].as_array().unwrap().clone();
    let frontends = list("frontendIPConfigurations").into_iter().map(|frontend| {
        let address = last(&frontend["properties"]["publicIPAddress"]["id"]);
        format!("{} {address}", frontend["name"].as_str().unwrap())
    });
    let rules = list("loadBalancingRules").into_iter().map(|rule| {
        let frontend = last(&rule["properties"]["frontendIPConfiguration"]["id"]);
        format!("{} {frontend}", rule["name"].as_str().unwrap())
    });
    frontends.chain(rules).collect()
}

/// The security rules of the cluster: ports and destinations.
async fn admitted(azure: &Subscription) -> Vec<String> {
    let group = azure.network("networkSecurityGroups/nsg").await;
    let mut admitted = Vec::new();
    for rule in group["properties"]["securityRules"].as_array().unwrap() {
        let fields = &rule["properties"];
        let several = fields["destinationAddressPrefixes"].as_array().cloned().unwrap_or_default();
        for destination in several.iter().chain(fields.get("destinationAddressPrefix")) {
            if rule["name"] != "ssh" {
                let port = fields["destinationPortRanges"][0].as_str().unwrap();
                admitted.push(format!("{port} {}", destination.as_str().unwrap()));
            }
        }
    }
    admitted.sort();
    admitted
}

/// Deletes all Services, and asserts that only these resources are left.
async fn delete_all_but(azure: &mut Subscription, left: &[&str]) {
    for service in &mut azure.cluster.services {
        service.deleting = true;
    }
    azure.settle_well().await;
    assert!(azure.services.is_empty());
    let mut names = azure.names().await;
    names.retain(|name| name != "ssh");
    assert_eq!(names, left);
}

#[tokio::test]
async fn an_address_of_the_user_is_used_and_stays() {
    let mut azure = Subscription::new(&["--standalone=1"], "tags: team=core\n").await;
    let first = create(&azure, "k8s", "mine-1", "IPv4").await;
    let second = create(&azure, "k8s", "mine-2", "IPv4").await;
    azure.services.push(service("web", &[80]));
    set(&mut azure, "web", "pip-name", Some("mine-1"));
    set(&mut azure, "web", "dns-label-name", Some("web"));
    let writes = azure.settle_well().await;
    assert!(!writes.iter().any(|write| write.contains("publicIPAddresses")), "{writes:?}");
    assert_eq!(shape(&azure).await, ["auidweb mine-1", "auidweb-TCP-80 auidweb"]);
    assert_eq!(azure.address("web"), first);
    assert_eq!(admitted(&azure).await, [format!("80 {first}")]);
    let mut events = azure.cluster.reports.iter().flat_map(|report| &report.events);
    assert!(events.any(|event| event.message.contains("azure-dns-label-name does not change")));
    azure.assert_settled().await;

    // Names differ in their case alone.
    set(&mut azure, "web", "pip-name", Some("MINE-2"));
    assert_eq!(azure.settle_well().await, ["PUT loadBalancers 1", "PUT networkSecurityGroups 1"]);
    assert_eq!(azure.address("web"), second);
    assert_eq!(admitted(&azure).await, [format!("80 {second}")]);
    azure.assert_settled().await;

    set(&mut azure, "web", "pip-name", None);
    azure.service("web").load_balancer_ip = first.as_str().into();
    azure.settle_well().await;
    assert_eq!(shape(&azure).await[0], "auidweb mine-1");
    assert_eq!(azure.address("web"), first);
    azure.assert_settled().await;

    azure.service("web").load_balancer_ip = "".into();
    azure.settle_well().await;
    assert_eq!(shape(&azure).await[0], "auidweb kubernetes-auidweb");
    azure.assert_settled().await;

    set(&mut azure, "web", "load-balancer-ipv4", Some(&second));
    azure.settle_well().await;
    assert_eq!(azure.address("web"), second);
    // The address that the program created goes.
    assert_eq!(azure.names().await.iter().filter(|name| name.contains("auidweb")).count(), 0);
    for name in ["mine-1", "mine-2"] {
        assert_unchanged(&azure, "k8s", name).await;
    }
    delete_all_but(&mut azure, &["mine-1", "mine-2"]).await;
    for name in ["mine-1", "mine-2"] {
        assert_unchanged(&azure, "k8s", name).await;
    }
    azure.stage.end().await;
}

#[tokio::test]
async fn addresses_may_be_in_another_resource_group() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    let other = create(&azure, "addresses", "other", "IPv4").await;
    azure.services.push(service("web", &[80]));
    set(&mut azure, "web", "load-balancer-resource-group", Some("Addresses"));
    set(&mut azure, "web", "load-balancer-ipv4", Some(&other));
    azure.settle_well().await;
    assert_eq!(azure.address("web"), other);
    assert_eq!(admitted(&azure).await, [format!("80 {other}")]);
    azure.assert_settled().await;

    set(&mut azure, "web", "load-balancer-ipv4", None);
    set(&mut azure, "web", "pip-name", Some("other"));
    assert_eq!(azure.settle_well().await, NOTHING);
    assert_eq!(azure.address("web"), other);
    azure.assert_settled().await;

    // An address that the program creates there.
    set(&mut azure, "web", "pip-name", None);
    azure.settle_well().await;
    assert_ne!(azure.address("web"), other);
    let documents = azure.documents().await;
    let id = documents.keys().find(|id| id.ends_with("/kubernetes-auidweb")).unwrap();
    assert!(id.to_lowercase().contains("/resourcegroups/addresses/"), "{id}");
    azure.assert_settled().await;
    assert_unchanged(&azure, "addresses", "other").await;
    delete_all_but(&mut azure, &["other"]).await;
    azure.stage.end().await;
}

#[tokio::test]
async fn an_address_that_does_not_exist_is_awaited() {
    for (key, value, shown) in [
        ("pip-name", "later", "public IP address later not found in resource group k8s"),
        (
            "load-balancer-ipv4",
            "20.60.0.9",
            "public IP address 20.60.0.9 not found in resource group k8s",
        ),
    ] {
        let mut azure = Subscription::new(&["--standalone=1"], "").await;
        azure.services.push(service("web", &[80]));
        set(&mut azure, "web", key, Some(value));
        azure.cluster.settle().await.unwrap();
        azure.assert_complaints(&[shown]);
        assert!(azure.find("web").unwrap().ingress.is_empty());
        assert_eq!(admitted(&azure).await, NOTHING);
        let id = azure.server().network_id("publicIPAddresses/later");
        create(&azure, "k8s", "later", "IPv4").await;
        azure
            .server()
            .patch(&id, &json!({"properties": {"ipAddress": "20.60.0.9"}}))
            .await
            .unwrap();
        azure.cluster.read.freshness = Freshness::now();
        azure.settle_well().await;
        assert_eq!(azure.address("web"), "20.60.0.9", "{key}");
        azure.assert_settled().await;
        delete_all_but(&mut azure, &["later"]).await;
        azure.stage.end().await;
    }
}

#[tokio::test]
async fn services_share_an_address_with_different_ports() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    let common = create(&azure, "k8s", "common", "IPv4").await;
    for (name, port) in [("first", 80), ("second", 443)] {
        azure.services.push(service(name, &[port]));
        set(&mut azure, name, "pip-name", Some("common"));
        azure.settle_well().await;
    }
    let both = [
        "auidfirst common",
        "auidfirst-TCP-80 auidfirst",
        "auidsecond-TCP-443 auidfirst",
    ];
    assert_eq!(shape(&azure).await, both);
    assert_eq!((azure.address("first"), azure.address("second")), (common.clone(), common.clone()));
    assert_eq!(admitted(&azure).await, [format!("443 {common}"), format!("80 {common}")]);
    azure.assert_settled().await;

    // A port that is taken is refused, and nothing changes.
    azure.services.push(service("another", &[443, 8080]));
    set(&mut azure, "another", "load-balancer-ipv4", Some(&common));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["TCP port 443 of public IP address common belongs to Service shop/second"]);
    assert_eq!(shape(&azure).await, both);
    assert_eq!(admitted(&azure).await, [format!("443 {common}"), format!("80 {common}")]);

    // The frontend keeps its name when the first Service goes.
    azure.service("first").deleting = true;
    azure.cluster.settle().await.unwrap();
    assert_eq!(shape(&azure).await, ["auidfirst common", "auidsecond-TCP-443 auidfirst"]);
    assert_eq!(admitted(&azure).await, [format!("443 {common}")]);
    azure.service("second").ports = service("second", &[444]).ports;
    azure.settle_well().await;
    assert_eq!(
        shape(&azure).await,
        [
            "auidfirst common",
            "auidanother-TCP-443 auidfirst",
            "auidanother-TCP-8080 auidfirst",
            "auidsecond-TCP-444 auidfirst",
        ]
    );
    azure.assert_settled().await;
    delete_all_but(&mut azure, &["common"]).await;
    assert_unchanged(&azure, "k8s", "common").await;
    azure.stage.end().await;
}

#[tokio::test]
async fn a_service_that_keeps_what_it_has_keeps_its_security_rules_at_a_shared_address() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    let common = create(&azure, "k8s", "common", "IPv4").await;
    for (name, port) in [("first", 80), ("second", 443)] {
        azure.services.push(service(name, &[port]));
        set(&mut azure, name, "pip-name", Some("common"));
    }
    azure.settle_well().await;
    set(&mut azure, "second", "load-balancer-tcp-idle-timeout", Some("1000"));
    azure.service("first").ports = service("first", &[81]).ports;
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["\"1000\" is not a number from 4 to 100"]);
    assert_eq!(admitted(&azure).await, [format!("443 {common}"), format!("81 {common}")]);
    azure.service("first").deleting = true;
    azure.cluster.settle().await.unwrap();
    assert_eq!(admitted(&azure).await, [format!("443 {common}")]);
    assert_eq!(shape(&azure).await.last().unwrap(), "auidsecond-TCP-443 auidfirst");
    delete_all_but(&mut azure, &["common"]).await;
    azure.stage.end().await;
}

#[tokio::test]
async fn a_service_leaves_a_shared_address_for_one_of_its_own() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    create(&azure, "k8s", "common", "IPv4").await;
    for (name, port) in [("first", 80), ("second", 443)] {
        azure.services.push(service(name, &[port]));
        set(&mut azure, name, "pip-name", Some("common"));
        azure.settle_well().await;
    }
    set(&mut azure, "first", "pip-name", None);
    azure.settle_well().await;
    assert_eq!(
        shape(&azure).await,
        [
            "auidfirst common",
            "auidfirst-kubernetes-auidfirst kubernetes-auidfirst",
            "auidfirst-TCP-80 auidfirst-kubernetes-auidfirst",
            "auidsecond-TCP-443 auidfirst",
        ]
    );
    azure.assert_settled().await;
    azure.service("second").deleting = true;
    azure.settle_well().await;
    assert_eq!(
        names_of(&azure.balancer().await["properties"]["frontendIPConfigurations"]),
        ["auidfirst-kubernetes-auidfirst"]
    );
    azure.assert_settled().await;
    delete_all_but(&mut azure, &["common"]).await;
    azure.stage.end().await;
}

#[tokio::test]
async fn an_address_of_the_program_exists_until_the_last_service_goes() {
    let mut azure = Subscription::serving(&["--standalone=1"], service("web", &[80])).await;
    let address = azure.address("web");
    for (name, port, key, value) in [
        ("api", 443, "load-balancer-ipv4", address.as_str()),
        ("dns", 53, "pip-name", "kubernetes-auidweb"),
    ] {
        azure.services.push(service(name, &[port]));
        set(&mut azure, name, key, Some(value));
        azure.settle_well().await;
        assert_eq!(azure.address(name), address);
    }
    let users = async |azure: &Subscription| {
        azure.network("publicIPAddresses/kubernetes-auidweb").await["tags"]["k8s-azure-service"].clone()
    };
    assert_eq!(users(&azure).await, "shop/web,shop/api,shop/dns");
    azure.assert_settled().await;
    for (name, left) in [("web", "shop/api,shop/dns"), ("dns", "shop/api")] {
        azure.service(name).deleting = true;
        azure.settle_well().await;
        assert_eq!(users(&azure).await, left);
        assert_eq!(azure.address("api"), address);
        azure.assert_settled().await;
    }
    assert_eq!(azure.cluster.discover().await.unwrap().orphans.unwrap(), []);
    // The annotation changes while no process runs.
    set(&mut azure, "api", "load-balancer-ipv4", None);
    azure.cluster.cloud = azure.stage.restarted().await.unwrap();
    azure.settle_well().await;
    assert_ne!(azure.address("api"), address);
    assert_eq!(shape(&azure).await, ["auidapi kubernetes-auidapi", "auidapi-TCP-443 auidapi"],);
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn internal_services_share_a_private_address() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    azure.services.push(service("web", &[80]));
    set(&mut azure, "web", "load-balancer-internal", Some("true"));
    azure.settle_well().await;
    let address = azure.address("web");
    azure.services.push(service("api", &[443]));
    set(&mut azure, "api", "load-balancer-internal", Some("true"));
    set(&mut azure, "api", "load-balancer-ipv4", Some(&address));
    assert_eq!(azure.settle_well().await, ["PUT loadBalancers 1"]);
    assert_eq!(azure.address("api"), address);
    azure.assert_settled().await;
    azure.service("api").ports = service("api", &[80]).ports;
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&[&format!("TCP port 80 of {address} belongs to Service shop/web")]);
    azure.service("web").deleting = true;
    azure.cluster.settle().await.unwrap();
    azure.settle_well().await;
    assert_eq!(azure.address("api"), address);
    let balancer = azure.network("loadBalancers/kubernetes-internal").await;
    assert_eq!(names_of(&balancer["properties"]["frontendIPConfigurations"]), ["auidweb"]);
    assert_eq!(names_of(&balancer["properties"]["loadBalancingRules"]), ["auidapi-TCP-80"]);
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn additional_addresses_are_in_the_status_and_in_the_security_rules() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    azure.services.push(service("web", &[80]));
    set(&mut azure, "web", "additional-public-ips", Some("4.4.4.4, 2001:db8::4"));
    azure.settle_well().await;
    let status = |azure: &Subscription| {
        let ingress = azure.find("web").unwrap().ingress.iter();
        ingress.map(|ingress| ingress.ip.as_deref().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let own = status(&azure).pop().unwrap();
    assert_eq!(status(&azure), ["4.4.4.4", "2001:db8::4", own.as_str()]);
    assert!(own.parse::<std::net::Ipv4Addr>().is_ok() && own != "4.4.4.4", "{own}");
    let expected = [
        format!("80 {own}"),
        "80 2001:db8::4".to_owned(),
        "80 4.4.4.4".to_owned(),
    ];
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(admitted(&azure).await, sorted(expected.to_vec()));
    azure.assert_settled().await;

    set(&mut azure, "web", "additional-public-ips", Some("4.4.4.5"));
    azure.settle_well().await;
    assert_eq!(admitted(&azure).await, sorted(vec![format!("80 {own}"), "80 4.4.4.5".to_owned()]));
    azure.assert_settled().await;

    set(&mut azure, "web", "additional-public-ips", Some("4.4.4.5,everywhere"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["\"everywhere\" is not an IP address"]);
    set(&mut azure, "web", "additional-public-ips", Some("4.4.4.5"));
    // Packets with this destination arrive at nodes.
    set(&mut azure, "web", "disable-load-balancer-floating-ip", Some("true"));
    azure.settle_well().await;
    let node = azure.cluster.nodes[0].address(Some(IpFamily::V4)).unwrap();
    assert_eq!(admitted(&azure).await, sorted(vec!["30080 4.4.4.5".to_owned(), format!("30080 {node}")]));
    azure.assert_settled().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn an_external_service_cannot_have_a_private_address() {
    let mut azure = Subscription::new(&["--standalone=1"], "").await;
    azure.services.push(service("web", &[80]));
    for address in [
        "10.240.0.9",
        "100.64.0.1",
        "168.63.129.16",
        "169.254.0.1",
        "fd00::1",
        "fe80::1",
    ] {
        azure.service("web").load_balancer_ip = address.into();
        azure.cluster.settle().await.unwrap();
        azure.assert_complaints(&[&format!("{address} is not a public address")]);
    }
    azure.service("web").load_balancer_ip = "".into();
    azure.settle_well().await;
    azure.delete_all().await;
    azure.stage.end().await;
}

#[tokio::test]
async fn each_family_may_have_an_address_of_the_user() {
    let mut azure = Subscription::new(&["--standalone=1", "--ipv6"], "").await;
    let v4 = create(&azure, "k8s", "four", "IPv4").await;
    let v6 = create(&azure, "k8s", "six", "IPv6").await;
    let mut web = service("web", &[80]);
    web.ip_families = vec![IpFamily::V4, IpFamily::V6];
    azure.services.push(web);
    set(&mut azure, "web", "pip-name", Some("four"));
    set(&mut azure, "web", "pip-name-ipv6", Some("six"));
    azure.settle_well().await;
    let ingress: Vec<_> = azure
        .find("web")
        .unwrap()
        .ingress
        .iter()
        .map(|ingress| ingress.ip.clone().unwrap())
        .collect();
    assert_eq!(ingress.iter().map(AsRef::as_ref).collect::<Vec<&str>>(), [v4.as_str(), v6.as_str()]);
    assert_eq!(shape(&azure).await[..2], ["auidweb four", "auidweb-IPv6 six"]);
    azure.assert_settled().await;
    set(&mut azure, "web", "pip-name", Some("six"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["public IP address six is of the other family"]);
    // A Service with IPv6 alone may use the annotation without the end of the family.
    azure.service("web").ip_families = vec![IpFamily::V6];
    set(&mut azure, "web", "pip-name-ipv6", None);
    azure.settle_well().await;
    assert_eq!(azure.address("web"), v6);
    azure.assert_settled().await;
    delete_all_but(&mut azure, &["four", "six"]).await;
    azure.stage.end().await;
}

#[tokio::test]
async fn an_internal_service_has_addresses_of_both_families() {
    let mut azure = Subscription::new(&["--standalone=2", "--ipv6"], "").await;
    let mut web = service("web", &[80]);
    web.ip_families = vec![IpFamily::V4, IpFamily::V6];
    web.source_ranges = Some(vec!["192.0.2.0/24".into(), "2001:db8::/32".into()]);
    azure.services.push(web);
    set(&mut azure, "web", "load-balancer-internal", Some("true"));
    azure.settle_well().await;
    let balancer = azure.network("loadBalancers/kubernetes-internal").await;
    let rules = balancer["properties"]["loadBalancingRules"].as_array().unwrap();
    let rules: Vec<_> = rules
        .iter()
        .map(|rule| {
            let fields = &rule["properties"];
            (rule["name"].as_str().unwrap(), &fields["backendPort"], &fields["enableFloatingIP"])
        })
        .collect();
    // IPv6 is a second address of the interface, to which packets must be sent.
    assert_eq!(
        rules,
        [
            ("auidweb-TCP-80", &json!(80), &json!(true)),
            ("auidweb-TCP-80-IPv6", &json!(30080), &json!(false)),
        ]
    );
    let ingress = &azure.find("web").unwrap().ingress;
    let addresses: Vec<IpAddr> =
        ingress.iter().map(|ingress| ingress.ip.as_deref().unwrap().parse().unwrap()).collect();
    assert!(addresses[0].is_ipv4() && addresses[1].is_ipv6(), "{addresses:?}");
    let nodes = azure.cluster.nodes.iter();
    let mut expected: Vec<_> =
        nodes.map(|node| format!("30080 {}", node.address(Some(IpFamily::V6)).unwrap())).collect();
    expected.push(format!("80 {}", addresses[0]));
    expected.sort();
    assert_eq!(admitted(&azure).await, expected);
    azure.assert_settled().await;

    set(&mut azure, "web", "load-balancer-ipv4", Some("10.240.0.77"));
    set(&mut azure, "web", "load-balancer-ipv6", Some("2001:db8::77"));
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["2001:db8::77 is not in subnet nodes"]);
    let IpAddr::V6(address) = addresses[1] else {
        panic!("{addresses:?}")
    };
    let mut segments = address.segments();
    segments[7] = 0x77;
    let pinned = Ipv6Addr::from(segments).to_string();
    set(&mut azure, "web", "load-balancer-ipv6", Some(&pinned));
    azure.settle_well().await;
    let ingress: Vec<_> = azure
        .find("web")
        .unwrap()
        .ingress
        .iter()
        .map(|ingress| ingress.ip.clone().unwrap())
        .collect();
    assert_eq!(ingress.iter().map(AsRef::as_ref).collect::<Vec<&str>>(), ["10.240.0.77", &pinned]);
    azure.assert_settled().await;

    // Packets of IPv6 arrive at node ports.
    azure.service("web").ports[0].node_port = 0;
    azure.cluster.settle().await.unwrap();
    azure.assert_complaints(&["an internal load balancer with IPv6 needs node ports"]);
    azure.service("web").ports[0].node_port = 30080;
    let web = azure.service("web");
    (web.external_policy, web.health_check_node_port) = (Policy::Local, 32000);
    azure.settle_well().await;
    let balancer = azure.network("loadBalancers/kubernetes-internal").await;
    assert_eq!(
        names_of(&balancer["properties"]["probes"]),
        ["auidweb-TCP-32000", "auidweb-TCP-32000-IPv6"]
    );
    azure.delete_all().await;
    azure.stage.end().await;
}
