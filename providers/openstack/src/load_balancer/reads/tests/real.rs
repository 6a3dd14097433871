//! The same reads and writes on a real OpenStack: the folded listings equal its own.

use std::env;

use ccm_testbed::openstack_real::OpenStack as RealOpenStack;

use super::*;

/// The longest duration of a change in the real cloud.
const LIMIT: Duration = Duration::from_secs(180);

struct Real {
    api: Api,
    reads: Reads,
}

impl Real {
    fn writes(&self) -> Writes<'_> {
        Writes::new(&self.api, &self.reads, Priority::User)
    }

    /// Waits until Octavia has finished with a load balancer, or deleted it.
    async fn settle(&self, id: &str) -> Option<Provisioning> {
        let settled = async {
            loop {
                match self.reads.state(id, Priority::User).await.unwrap() {
                    Some(state) if state.provisioning_status.is_pending() => {
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                    other => return other.map(|state| state.provisioning_status),
                }
            }
        };
        tokio::time::timeout(LIMIT, settled).await.unwrap()
    }

    async fn children(&self, id: &str, read: ReadOptions) -> Children {
        let balancer = self.reads.load_balancer(id, read).await.unwrap().unwrap();
        self.reads.children(&balancer, read).await.unwrap()
    }

    /// Compares the cached state with the cloud's.
    async fn compare(&self, id: &str, when: &str) -> Children {
        assert_eq!(self.settle(id).await, Some(Provisioning::Active), "{when}");
        let kept_balancer = self.reads.load_balancer(id, lately()).await.unwrap();
        let kept = self.children(id, lately()).await;
        let fresh = self.children(id, now()).await;
        let fresh_balancer = self.reads.load_balancer(id, lately()).await.unwrap();
        let (kept_balancer, fresh_balancer) = (kept_balancer.unwrap(), fresh_balancer.unwrap());
        assert_eq!(kept_balancer.tags, fresh_balancer.tags, "{when}");
        assert_eq!(kept_balancer.vip_port_id, fresh_balancer.vip_port_id, "{when}");
        assert_eq!(kept_balancer.provisioning_status, fresh_balancer.provisioning_status, "{when}");
        assert_eq!(kept_balancer.updated_at, fresh_balancer.updated_at, "{when}");
        assert_eq!(kept.listeners, fresh.listeners, "{when}");
        assert_eq!(super::changes::fields(&kept.pools), super::changes::fields(&fresh.pools), "{when}");
        assert_eq!(kept.monitors, fresh.monitors, "{when}");
        fresh
    }
}

#[tokio::test]
async fn the_cached_state_of_a_real_cloud_equals_its_state() {
    if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
        return;
    }
    let openstack = RealOpenStack::shared(1).await.unwrap();
    let conf = std::fs::read_to_string(openstack.cloud_conf()).unwrap();
    let (api, metrics) = connect(&conf).await;
    let reads = Reads::new(api.clone(), &metrics);
    let real = Real { api, reads };
    let servers = openstack.list_servers().await.unwrap();
    let ports = real.reads.ports_of(&[&servers[0].id], now()).await.unwrap();
    let port = Arc::clone(&ports[&servers[0].id][0]);
    let subnet = port.fixed_ips[0].subnet_id.clone();
    assert_eq!(
        real.reads
            .discovery
            .subnet(&subnet, Priority::User)
            .await
            .unwrap()
            .as_ref()
            .as_ref()
            .unwrap()
            .ip_version,
        4
    );
    let version = real.reads.version().await.unwrap();
    assert!(version.0 >= 29, "{version:?}");
    real.reads.load_balancers(None, now()).await.unwrap();

    let body = json!({
        "name": "ccm-reads",
        "description": "d",
        "provider": "amphora",
        "tags": ["ccm-reads"],
        "vip_subnet_id": subnet.clone(),
        "listeners": [{
            "name": "l0",
            "protocol": "TCP",
            "protocol_port": 80,
            "connection_limit": -1,
            "tags": ["ccm-reads"],
            "allowed_cidrs": ["0.0.0.0/0"],
            "default_pool": {
                "name": "p0",
                "protocol": "TCP",
                "lb_algorithm": "ROUND_ROBIN",
                "members": [member("10.0.0.201"), member("10.0.0.202")],
                "healthmonitor": monitor(""),
            },
        }],
    });
    let writes = real.writes();
    let created = writes.create_load_balancer(&body, 2).await.unwrap().balancer;
    let id = created.id.as_str();
    let error = writes.delete_load_balancer(id, true).await.unwrap_err();
    assert!(matches!(WriteConflict::of(&error), Some(WriteConflict::Busy(_))), "{error:?}");
    let children = real.compare(id, "made").await;
    let pool = children.pools[0].id.clone();

    let known = real.reads.members(&children, Contents::Which, Priority::User).await.unwrap();
    assert_eq!(known[0].len(), 2);
    writes.add_members(id, &pool, &[member("10.0.0.203")]).await.unwrap();
    let children = real.compare(id, "a member more").await;
    let known = real.reads.members(&children, Contents::Which, Priority::User).await.unwrap();
    assert_eq!(known[0].iter().filter(|member| member.id.is_empty()).count(), 1, "not read again");
    let read = real.reads.members_uncached(&pool, Priority::User).await.unwrap();
    assert_eq!(read.len(), 3);
    let leaves = read.iter().find(|member| member.host.address == "10.0.0.201").unwrap();
    writes.delete_member(id, &pool, &leaves.id).await.unwrap();
    real.compare(id, "a member less").await;

    let listener = json!({
        "loadbalancer_id": id.to_owned(),
        "name": "l1",
        "protocol": "TCP",
        "protocol_port": 443,
        "connection_limit": 5,
    });
    let second = writes.create::<Listener>(&created.id, &listener).await.unwrap();
    real.compare(id, "a listener more").await;
    let error = writes.create::<Listener>(&created.id, &listener).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
    let bad = json!({
        "timeout_client_data": -1,
    });
    let error = writes.update::<Listener>(id, &second.id, &bad).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{error:?}");
    let second_pool = json!({
        "listener_id": second.id.clone(),
        "name": "p1",
        "protocol": "PROXYV2",
        "lb_algorithm": "LEAST_CONNECTIONS",
        "session_persistence": {"type": "SOURCE_IP"},
    });
    let second_pool = writes.create::<Pool>(id, &second_pool).await.unwrap();
    real.compare(id, "a pool more").await;
    let check = writes.create::<Monitor>(id, &monitor(&second_pool.id)).await.unwrap();
    real.compare(id, "a monitor more").await;
    let clear = json!({
        "session_persistence": null,
    });
    writes.update::<Pool>(id, &second_pool.id, &clear).await.unwrap();
    real.compare(id, "no persistence any more").await;
    writes.delete::<Monitor>(id, &second_pool.id, &check.id).await.unwrap();
    real.compare(id, "a monitor less").await;
    writes.delete::<Listener>(id, "", &second.id).await.unwrap();
    real.compare(id, "a listener less").await;
    writes.delete::<Pool>(id, "", &second_pool.id).await.unwrap();
    real.compare(id, "a pool less").await;

    let network = real.reads.discovery.default_external_network(Priority::User).await.unwrap().unwrap();
    let floating = json!({
        "floating_network_id": network.id,
        "port_id": created.vip_port_id.clone(),
        "description": "ccm-reads",
    });
    let first = writes.create_floating_ip(&created.vip_port_id, &floating).await.unwrap();
    let error = writes.create_floating_ip(&created.vip_port_id, &floating).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
    let listing = real.reads.floating_ips(None, now()).await.unwrap();
    assert_eq!(listing.by_key(&created.vip_port_id).next().unwrap().id, first.id);
    writes.delete_floating_ip(&created.vip_port_id, &first.id).await.unwrap();

    let group = json!({
        "name": "ccm-reads",
        "description": "d",
    });
    let group = writes.create_security_group("ccm-reads", &group).await.unwrap();
    let rule = json!({
        "security_group_id": group.id.clone(),
        "direction": "ingress",
        "ethertype": "IPv4",
        "protocol": "tcp",
        "port_range_min": 30080,
        "port_range_max": 30080,
        "remote_ip_prefix": "10.0.0.0/8",
    });
    let made_rule = writes.create_rule(("ccm-reads", &group.id), &rule).await.unwrap();
    let error = writes.create_rule(("ccm-reads", &group.id), &rule).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
    let listing = real.reads.security_groups(None, now()).await.unwrap();
    let listed = listing.by_id(&group.id).unwrap();
    assert_eq!(listed.rules.len(), 3);
    assert!(listed.rules.contains(&made_rule));

    let mut groups = port.security_groups.clone();
    groups.push(group.id.clone());
    let change = groups;
    let changed = writes.set_port_groups(&port, &change).await.unwrap();
    // Neutron checks the revision only if something changes.
    let other = vec![group.id.clone()];
    let error = writes.set_port_groups(&port, &other).await.unwrap_err();
    assert_eq!(WriteConflict::of(&error), Some(WriteConflict::Stale), "{error:?}");
    let error = writes.delete_security_group("ccm-reads", &group.id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "in use: {error:?}");
    let back = port.security_groups.clone();
    writes.set_port_groups(&changed, &back).await.unwrap();
    writes.delete_security_group("ccm-reads", &group.id).await.unwrap();

    writes.delete_load_balancer(id, true).await.unwrap();
    assert_eq!(real.settle(id).await, None);
    writes.delete_load_balancer(id, true).await.unwrap();
}
