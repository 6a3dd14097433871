//! Floating IPs, security groups, ports, networks and secrets.

use super::*;
use crate::load_balancer::responses::Rule;

#[tokio::test]
async fn floating_addresses_are_found_by_port_and_by_address() {
    let world = Fixture::new().await;
    let created = world.make("web").await;
    let network = world.reads.discovery.default_external_network(Priority::User).await.unwrap().unwrap();
    let none = world.reads.floating_ips(Some(&created.vip_port_id), lately()).await.unwrap();
    assert_eq!(none.by_key(&created.vip_port_id).count(), 0);
    let body = json!({
        "floating_network_id": network.id.clone(),
        "port_id": created.vip_port_id.clone(),
        "description": "Floating IP for x",
    });
    let floating = world.writes().create_floating_ip(&created.vip_port_id, &body).await.unwrap();
    world.calls();
    let listing = world.reads.floating_ips(Some(&created.vip_port_id), lately()).await.unwrap();
    for key in [&created.vip_port_id, &floating.floating_ip_address] {
        assert_eq!(listing.by_key(key).next().unwrap().id, floating.id);
    }
    assert_eq!(world.calls(), counts(&[]), "known from the answer");
    let detach = json!({ "port_id": null });
    let detached = world
        .writes()
        .update_floating_ip(&created.vip_port_id, &floating.id, &detach)
        .await
        .unwrap();
    assert_eq!(detached.port_id, "");
    let listing = world.reads.floating_ips(None, lately()).await.unwrap();
    assert_eq!(listing.by_key(&created.vip_port_id).count(), 0);
    world.writes().delete_floating_ip(&created.vip_port_id, &floating.id).await.unwrap();
    let listing = world.reads.floating_ips(None, lately()).await.unwrap();
    assert!(listing.by_id(&floating.id).is_none());
    // A second floating IP for an address that has one.
    world.writes().create_floating_ip(&created.vip_port_id, &body).await.unwrap();
    let error = world.writes().create_floating_ip(&created.vip_port_id, &body).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
}

#[tokio::test]
async fn security_groups_come_with_their_rules() {
    let world = Fixture::new().await;
    let body = json!({
        "name": "lb-sg-x",
        "description": "d",
    });
    world.reads.security_groups(None, lately()).await.unwrap();
    let group = world.writes().create_security_group("lb-sg-x", &body).await.unwrap();
    let rule = json!({
        "security_group_id": group.id.clone(),
        "direction": "ingress",
        "ethertype": "IPv4",
        "protocol": "tcp",
        "port_range_min": 30080,
        "port_range_max": 30080,
        "remote_ip_prefix": "10.0.0.0/8",
    });
    world.writes().create_rule(("lb-sg-x", &group.id), &rule).await.unwrap();
    let error = world.writes().create_rule(("lb-sg-x", &group.id), &rule).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let egress = group.rules[0].id.clone();
    world.writes().delete_rule(("lb-sg-x", &group.id), &egress).await.unwrap();
    let ids = |listing: &Listing<SecurityGroup>| {
        let group = listing.by_key("lb-sg-x").next().unwrap();
        let mut ids: Vec<_> = group.rules.iter().map(|rule| rule.id.clone()).collect();
        ids.sort();
        ids
    };
    let kept = world.reads.security_groups(None, lately()).await.unwrap();
    let fresh = world.reads.security_groups(None, now()).await.unwrap();
    assert_eq!(ids(&kept), ids(&fresh));
    assert_eq!(ids(&fresh).len(), 2, "the default ones are two");
    let of_group = [("security_group_id", group.id.as_str())];
    let mut apart: Vec<Rule> = world.reads.api.list(&of_group, Priority::User).await.unwrap();
    apart.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(apart.iter().map(|rule| rule.id.clone()).collect::<Vec<_>>(), ids(&fresh));
    world.writes().delete_security_group("lb-sg-x", &group.id).await.unwrap();
    let kept = world.reads.security_groups(None, lately()).await.unwrap();
    assert_eq!(kept.by_key("lb-sg-x").count(), 0);
}

#[tokio::test]
async fn ports_of_many_servers_are_read_together_and_changed_only_as_they_were_read() {
    let world = Fixture::new().await;
    let servers = world.sim.create_servers(200, &ServerSpec::named("node-{i}")).unwrap();
    let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
    let found = world.reads.ports_of(&servers, lately()).await.unwrap();
    assert_eq!(world.calls(), counts(&[("port_list", 2)]));
    assert_eq!(found.len(), 200);
    world.reads.ports_of(&servers[5..9], lately()).await.unwrap();
    assert_eq!(world.calls(), counts(&[]));

    let port = &found[servers[0]][0];
    assert!(port.port_security_enabled == Some(true) && !port.fixed_ips[0].subnet_id.is_empty());
    let group = json!({
        "name": "g",
        "description": "",
    });
    let group = world.writes().create_security_group("g", &group).await.unwrap().id;
    let mut groups = port.security_groups.clone();
    groups.push(group.clone());
    let change = groups;
    let changed = world.writes().set_port_groups(port, &change).await.unwrap();
    assert!(changed.security_groups.contains(&group));
    // A write without changes succeeds, whatever the revision.
    let other = vec![group.clone()];
    let error = world.writes().set_port_groups(port, &other).await.unwrap_err();
    assert_eq!(WriteConflict::of(&error), Some(WriteConflict::Stale), "{error:?}");
    world.calls();
    let again = world.reads.ports_of(&servers, lately()).await.unwrap();
    assert_eq!(world.calls(), counts(&[("port_list", 1)]), "only the one that was changed");
    assert_eq!(again[servers[0]][0].revision_number, changed.revision_number);
    let with = world.reads.ports_with(&[&group], Priority::User).await.unwrap();
    assert_eq!(with.len(), 1);
}

#[tokio::test]
async fn a_users_read_of_ports_does_not_wait_for_one_of_background_work() {
    let world = Fixture::new().await;
    let server = world.sim.create_server(&ServerSpec::named("n")).unwrap();
    let servers = [server.as_str()];
    let hold = Action::Hold { at: Moment::Before };
    let held = world.sim.add_fault(Fault::on("port_list", hold).once());
    let background = ReadOptions {
        priority: Priority::Background,
        ..lately()
    };
    let waiting = world.reads.ports_of(&servers, background);
    let user = async {
        world.sim.wait_for_fault(held).await.unwrap();
        world.reads.ports_of(&servers, lately()).await.unwrap()
    };
    tokio::select! {
        result = waiting => panic!("it is held: {result:?}"),
        found = user => assert_eq!(found[&server].len(), 1),
    }
}

#[tokio::test]
async fn networks_and_subnets_are_read_once_and_missing_ones_again() {
    let world = Fixture::new().await;
    let discovery = &world.reads.discovery;
    for _ in 0..3 {
        discovery.default_external_network(Priority::User).await.unwrap().unwrap();
        discovery.subnet(&world.subnet, Priority::User).await.unwrap();
    }
    assert_eq!(world.calls(), counts(&[("network_list", 1), ("subnet_list", 1), ("subnet_get", 1)]));
    let network = world
        .sim
        .create_network(&NetworkSpec {
            name: "dmz".into(),
            external: true,
            ..NetworkSpec::default()
        })
        .unwrap();
    let subnet = SubnetSpec {
        name: "dmz-1".into(),
        cidr: Some("198.51.100.0/24".parse().unwrap()),
        tags: vec!["a".into()],
        ..SubnetSpec::default()
    };
    world.sim.create_subnet(&network, &subnet).unwrap();
    let subnets = discovery.subnets_of(&network, Priority::User).await.unwrap();
    assert_eq!((subnets[0].name.as_str(), subnets[0].ip_version), ("dmz-1", 4));
    assert_eq!(subnets[0].tags, ["a"]);
    assert!(discovery.subnet("nowhere", Priority::User).await.unwrap().is_none());
}

#[tokio::test]
async fn secrets_are_read_from_barbican() {
    let world = Fixture::new().await;
    let secret = |container| {
        let spec = SecretSpec {
            container,
            ..SecretSpec::default()
        };
        world.sim.create_secret(&spec).unwrap()
    };
    let (one, container) = (secret(false), secret(true));
    let discovery = &world.reads.discovery;
    for (reference, exists) in [
        (one.clone(), true),
        (container, true),
        ("secrets/00000000-0000-0000-0000-000000000000".to_owned(), false),
    ] {
        let reference = SecretRef::parse(&reference).unwrap();
        let found = discovery.secret_exists(&reference, Priority::User).await.unwrap();
        assert_eq!(found, exists, "{reference:?}");
    }
    let mut config = Config::default();
    config.settings.key_manager = false;
    let without = Fixture::with(config).await;
    let error = without
        .reads
        .discovery
        .secret_exists(&SecretRef::parse(&one).unwrap(), Priority::User)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("key-manager"), "{error}");
}

#[tokio::test]
async fn a_tag_that_a_port_does_not_have_is_removed_without_an_error() {
    let world = Fixture::new().await;
    let server = world.sim.create_server(&ServerSpec::named("n")).unwrap();
    let ports = world.reads.ports_of(&[&server], now()).await.unwrap();
    world.writes().delete_port_tag(&ports[&server][0], "none").await.unwrap();
}
