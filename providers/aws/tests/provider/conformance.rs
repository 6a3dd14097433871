//! The suite for all providers.

use std::{collections::HashMap, sync::Arc};

use ccm_core::{
    Cloud, Result, async_trait,
    routes::RouteNode,
    testkit::{
        conformance::{self, BoxError, RouteSubject, Subject},
        nodes::node_view,
    },
};
use ipnet::IpNet;
use parking_lot::Mutex;
use serde_json::json;

use crate::stage::Stage;

struct OnMoto {
    stage: Stage,
    /// Private DNS names, which EC2 chooses, and ids of instances by the names that the suite uses.
    names: Mutex<HashMap<String, (String, String)>>,
}

impl OnMoto {
    async fn new() -> Self {
        Self {
            stage: Stage::new(0, "").await,
            names: Mutex::default(),
        }
    }

    async fn change(&self, operation: &str, name: &str) -> Result<(), BoxError> {
        let names = self.names.lock().clone();
        let (_, id) = names.get(name).ok_or("instance not created")?;
        let arguments = json!({"InstanceIds": [id]});
        self.stage.call("ec2", operation, arguments).await;
        Ok(())
    }
}

#[async_trait]
impl Subject for OnMoto {
    fn cloud(&self) -> Arc<dyn Cloud> {
        Arc::clone(&self.stage.cloud)
    }

    fn node_name(&self, name: &str) -> String {
        let names = self.names.lock();
        names.get(name).map_or(name, |(dns, _)| dns).to_owned()
    }

    async fn create(&self, name: &str) -> Result<(), BoxError> {
        for (name, dns, id, _) in self.stage.account.launch(&[name.to_owned()]).await? {
            self.names.lock().insert(name, (dns, id));
        }
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), BoxError> {
        self.change("terminate_instances", name).await
    }

    async fn shut_down(&self, name: &str) -> Result<(), BoxError> {
        self.change("stop_instances", name).await
    }

    fn absent_provider_id(&self) -> String {
        "aws:///us-east-1a/i-0123456789abcdef0".to_owned()
    }

    fn malformed_provider_id(&self) -> String {
        "aws:///us-east-1a/vol-0123456789abcdef0".to_owned()
    }

    fn requests(&self) -> Option<usize> {
        Some(self.stage.account.proxy.requests().len())
    }
}

/// The routes of the cluster's table through instances.
pub(crate) async fn table(stage: &Stage) -> Result<Vec<(IpNet, String)>, BoxError> {
    let filter = json!({"Filters": [{"Name": "tag-key", "Values": [format!("kubernetes.io/cluster/{}", crate::stage::CLUSTER)]}]});
    let tables = stage.call("ec2", "describe_route_tables", filter).await;
    let mut found = Vec::new();
    let tables = tables["RouteTables"].as_array().into_iter().flatten();
    for route in tables.flat_map(|table| table["Routes"].as_array().unwrap()) {
        let first = |keys: [&str; 2]| keys.into_iter().find_map(|key| route[key].as_str());
        let destination = first(["DestinationCidrBlock", "DestinationIpv6CidrBlock"]);
        let target = first(["InstanceId", "NetworkInterfaceId"]);
        if let (Some(destination), Some(target)) = (destination, target) {
            found.push((destination.parse()?, target.to_owned()));
        }
    }
    Ok(found)
}

#[async_trait]
impl RouteSubject for OnMoto {
    async fn restarted(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        Ok(self.stage.restarted().await?)
    }

    async fn table(&self) -> Result<Option<Vec<(IpNet, String)>>, BoxError> {
        Ok(Some(table(&self.stage).await?))
    }

    fn unroutable(&self) -> Option<RouteNode> {
        Some(RouteNode {
            view: node_view("", Some(&self.absent_provider_id())),
            ..RouteNode::default()
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provider_keeps_the_contract_of_instances() {
    conformance::instances(&OnMoto::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provider_keeps_the_contract_of_routes() {
    conformance::routes(&OnMoto::new().await).await;
}
