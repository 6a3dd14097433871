//! The load balancers of the Services, read from the cloud itself.

use anyhow::Result;
use ccm_testbed::{cloud::Cloud, openstack_real::OpenStack, test_cloud::LoadBalancers};
use serde_json::Value;

/// Reads the load balancers. On clouds with free names, reads only those that begin with the prefix.
pub(super) async fn read(cloud: &Cloud, prefix: &str) -> Result<LoadBalancers> {
    match cloud {
        Cloud::Simulated(cloud) => Ok(LoadBalancers::of_openstack(cloud, prefix)),
        Cloud::Real(cloud, _) => read_octavia(cloud, prefix).await,
        Cloud::Test(cloud, _) => cloud.load_balancers().await,
    }
}

fn text(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}

async fn read_octavia(cloud: &OpenStack, prefix: &str) -> Result<LoadBalancers> {
    let octavia = "load-balancer/v2.0/lbaas";
    let rest = cloud.log_in().await?;
    let mut found = LoadBalancers::default();
    for balancer in rest.list(&format!("{octavia}/loadbalancers")).await? {
        let name = text(&balancer, "name");
        if !name.starts_with(prefix) {
            continue;
        }
        found.unfinished |= balancer["provisioning_status"] != "ACTIVE";
        found.names.insert(name);
        let pools = format!("{octavia}/pools?loadbalancer_id={}", text(&balancer, "id"));
        for pool in rest.list(&pools).await? {
            let path = format!("{octavia}/pools/{}/members", text(&pool, "id"));
            // A pool may be deleted between two requests.
            let members = rest.list(&path).await.unwrap_or_default();
            let names = members.iter().map(|member| text(member, "name")).collect();
            found.pools.insert(text(&pool, "name"), names);
        }
    }
    Ok(found)
}
