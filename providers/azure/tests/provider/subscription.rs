//! A cluster with load balancers in a subscription of its own.

use std::{
    collections::BTreeSet,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use ccm_core::{
    AddressType, NodeAddress,
    load_balancer::{ServiceNode, ServiceView},
    testkit::{
        cluster::{TestCluster, advance_to},
        nodes::service_node,
    },
};
use ccm_testbed::arm::{ArmMachine, ArmServer};
use serde_json::Value;

use crate::stage::{Stage, provider_id};

pub(crate) const NOTHING: [String; 0] = [];
/// The config of clusters with load balancers.
pub(crate) const NETWORK: &str = "securityGroupName: nsg\nvnetName: vnet\nsubnetName: nodes\n";

pub(crate) const PREFIX: &str = "service.beta.kubernetes.io/azure-";

/// The node of a machine.
pub(crate) fn node_of(machine: &ArmMachine) -> ServiceNode {
    let addresses = machine.ips.iter().map(|ip| NodeAddress::new(AddressType::InternalIP, ip.clone()));
    service_node(&machine.name, &provider_id(&machine.id), addresses.collect())
}

/// A cluster in a subscription of its own.
pub(crate) struct Subscription {
    pub(crate) stage: Stage,
    pub(crate) cluster: TestCluster,
}

impl Deref for Subscription {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.cluster
    }
}

impl DerefMut for Subscription {
    fn deref_mut(&mut self) -> &mut TestCluster {
        &mut self.cluster
    }
}

impl Subscription {
    pub(crate) async fn new(options: &[&str], more: &str) -> Self {
        let stage = Stage::new(options, &format!("{NETWORK}{more}")).await;
        let mut cluster = TestCluster::new(Arc::clone(&stage.cloud), advance_to);
        cluster.nodes = stage.server.machines.iter().map(node_of).collect();
        Self { stage, cluster }
    }

    /// A cluster with the default config and this Service, which is served.
    pub(crate) async fn serving(options: &[&str], service: ServiceView) -> Self {
        let mut subscription = Self::new(options, "").await;
        subscription.services.push(service);
        subscription.settle_well().await;
        subscription
    }

    pub(crate) fn server(&self) -> &ArmServer {
        &self.stage.server
    }

    /// Reconciles until nothing changes, asserts that no Service has a problem, and returns the calls that wrote.
    pub(crate) async fn settle_well(&mut self) -> Vec<String> {
        self.stage.calls().await;
        self.cluster.settle_well().await;
        let calls = self.stage.calls().await;
        calls.into_iter().filter(|call| is_write(call)).collect()
    }

    /// Asserts that neither this process nor the next one writes.
    pub(crate) async fn assert_settled(&mut self) {
        assert_eq!(self.settle_well().await, NOTHING);
        self.cluster.cloud = self.stage.restarted().await.unwrap();
        assert_eq!(self.settle_well().await, NOTHING);
    }

    pub(crate) async fn documents(&self) -> std::collections::BTreeMap<String, Value> {
        self.server().control_get("docs").await.unwrap()
    }

    /// The document of a resource of Microsoft.Network.
    pub(crate) async fn network(&self, name: &str) -> Value {
        let id = self.server().network_id(name).to_ascii_lowercase();
        self.documents().await.remove(&id).unwrap_or_else(|| panic!("{name} does not exist"))
    }

    pub(crate) async fn balancer(&self) -> Value {
        self.network("loadBalancers/kubernetes").await
    }

    /// The names of load balancers and public IP addresses, and of the rules of the security group.
    pub(crate) async fn names(&self) -> Vec<String> {
        let documents = self.documents().await;
        let mut names = Vec::new();
        for document in documents.values() {
            match document["type"].as_str().unwrap() {
                "Microsoft.Network/loadBalancers" | "Microsoft.Network/publicIPAddresses" => {
                    names.push(document["name"].as_str().unwrap().to_owned());
                }
                "Microsoft.Network/networkSecurityGroups" => {
                    names.extend(names_of(&document["properties"]["securityRules"]));
                }
                _ => {}
            }
        }
        names
    }

    /// The machines in a pool of a load balancer.
    pub(crate) async fn members(&self, balancer: &str, pool: &str) -> BTreeSet<String> {
        let document = self.network(&format!("loadBalancers/{balancer}")).await;
        let pools = document["properties"]["backendAddressPools"].as_array().unwrap();
        let pool = pools.iter().find(|found| found["name"] == pool).unwrap();
        let members = pool["properties"]["backendIPConfigurations"].as_array().cloned().unwrap_or_default();
        members
            .iter()
            .map(|member| {
                let id = member["id"].as_str().unwrap();
                let segments: Vec<&str> = id.split('/').collect();
                let at = segments.iter().rposition(|segment| {
                    ["virtualMachines", "networkInterfaces"].contains(segment)
                        && !id.ends_with(&format!("{segment}/pool-a-nic"))
                });
                match segments.iter().position(|segment| *segment == "virtualMachines") {
                    Some(machine) => segments[machine + 1].to_owned(),
                    None => segments[at.unwrap() + 1].to_owned(),
                }
            })
            .collect()
    }

    /// The address in the status of a Service.
    pub(crate) fn address(&self, name: &str) -> String {
        self.find(name).unwrap().ingress[0].ip.as_deref().unwrap().to_owned()
    }

    /// Deletes all Services, and asserts that nothing of them is left. Returns the calls that wrote.
    pub(crate) async fn delete_all(&mut self) -> Vec<String> {
        for service in &mut self.cluster.services {
            service.deleting = true;
        }
        let writes = self.settle_well().await;
        assert!(self.services.is_empty());
        assert_eq!(self.names().await, ["ssh"]);
        let documents = self.documents().await;
        let left: Vec<_> = documents
            .iter()
            .filter(|(_, document)| document.to_string().contains("backendAddressPools"))
            .collect();
        assert!(left.is_empty(), "{left:#?}");
        writes
    }
}

fn is_write(call: &str) -> bool {
    ["PUT", "DELETE", "POST"].iter().any(|method| call.starts_with(method))
}

/// The names of the elements of a list.
pub(crate) fn names_of(list: &Value) -> Vec<String> {
    let elements = list.as_array().unwrap().iter();
    elements.map(|element| element["name"].as_str().unwrap().to_owned()).collect()
}

/// The rule with this name.
pub(crate) fn rule<'a>(group: &'a Value, name: &str) -> &'a Value {
    let rules = group["properties"]["securityRules"].as_array().unwrap();
    let found = rules.iter().find(|rule| rule["name"] == name);
    &found.unwrap_or_else(|| panic!("no {name} in {rules:#?}"))["properties"]
}
