//! Registers Nodes like a kubelet with `--cloud-provider=external`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
    NodeSpec as ApiNodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

/// The taint that repels Pods until a cloud-controller-manager has initialized the Node.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The annotation with the kubelet's `--node-ip`.
const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// The kubelet's name in `managedFields`.
const MANAGER: &str = "kubelet";
/// Requests in flight at once: enough to keep the API server busy.
const PARALLEL: usize = 64;

/// A Node to register.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// The name, which is also the host name.
    pub name: String,
    /// Whether it is like a Node of a production cluster, about 10 kB: 50 images, 20 labels, all conditions. Otherwise it has
    /// the fields that tests read: less than 2 kB.
    pub realistic: bool,
    /// Whether it has the taint of an uninitialized Node (default true).
    pub uninitialized: bool,
    /// Whether its condition `Ready` is true (default true).
    pub ready: bool,
    /// The kubelet's `--node-ip`, if given.
    pub node_ip: Option<IpAddr>,
    /// The kubelet's `--provider-id`, if given.
    pub provider_id: Option<String>,
    /// The Pod networks (`spec.podCIDRs`).
    pub pod_cidrs: Vec<String>,
    /// Additional labels.
    pub labels: BTreeMap<String, String>,
}

impl NodeSpec {
    /// A small, ready, uninitialized Node.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            realistic: false,
            uninitialized: true,
            ready: true,
            node_ip: None,
            provider_id: None,
            pod_cidrs: Vec::new(),
            labels: BTreeMap::new(),
        }
    }

    /// The same Node with realistic size.
    #[must_use]
    pub fn realistic(mut self) -> Self {
        self.realistic = true;
        self
    }

    /// The object that the kubelet would create, its status included.
    #[must_use]
    pub fn build(&self) -> Node {
        let mut labels = self.labels.clone();
        for (key, value) in [
            ("beta.kubernetes.io/arch", "amd64"),
            ("beta.kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("kubernetes.io/hostname", self.name.as_str()),
            ("kubernetes.io/os", "linux"),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        let mut annotations = BTreeMap::from([(
            "volumes.kubernetes.io/controller-managed-attach-detach".to_owned(),
            "true".to_owned(),
        )]);
        if let Some(ip) = self.node_ip {
            annotations.insert(PROVIDED_NODE_IP.to_owned(), ip.to_string());
        }
        if self.realistic {
            for i in 0..15 {
                labels.insert(format!("node.example.com/purpose-{i}"), format!("value-of-label-{i}"));
            }
        }
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(labels),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            spec: Some(ApiNodeSpec {
                provider_id: self.provider_id.clone(),
                pod_cidr: self.pod_cidrs.first().cloned(),
                pod_cidrs: (!self.pod_cidrs.is_empty()).then(|| self.pod_cidrs.clone()),
                taints: self.uninitialized.then(|| {
                    vec![Taint {
                        key: UNINITIALIZED.to_owned(),
                        value: Some("true".to_owned()),
                        effect: "NoSchedule".to_owned(),
                        time_added: None,
                    }]
                }),
                ..ApiNodeSpec::default()
            }),
            status: Some(self.status()),
        }
    }

    fn status(&self) -> NodeStatus {
        let mut addresses = vec![address("Hostname", &self.name)];
        if let Some(ip) = self.node_ip {
            addresses.insert(0, address("InternalIP", &ip.to_string()));
        }
        let mut conditions = vec![ready_condition(self.ready)];
        if self.realistic {
            for (kind, about) in [
                ("MemoryPressure", "memory"),
                ("DiskPressure", "disk space"),
                ("PIDPressure", "PIDs"),
            ] {
                let reason = format!("KubeletHasSufficient{}", kind.trim_end_matches("Pressure"));
                conditions.push(condition(
                    kind,
                    "False",
                    &reason,
                    &format!("kubelet has sufficient {about} available"),
                ));
            }
        }
        let resources = |reserved: u32| {
            BTreeMap::from([
                ("cpu".to_owned(), Quantity("8".to_owned())),
                ("ephemeral-storage".to_owned(), Quantity("101430960Ki".to_owned())),
                ("hugepages-2Mi".to_owned(), Quantity("0".to_owned())),
                ("memory".to_owned(), Quantity(format!("{}Ki", 32_768_000 - reserved))),
                ("pods".to_owned(), Quantity("110".to_owned())),
            ])
        };
        NodeStatus {
            addresses: Some(addresses),
            allocatable: Some(resources(102_400)),
            capacity: Some(resources(0)),
            conditions: Some(conditions),
            daemon_endpoints: Some(NodeDaemonEndpoints {
                kubelet_endpoint: Some(DaemonEndpoint { port: 10250 }),
            }),
            images: self.realistic.then(images),
            node_info: Some(NodeSystemInfo {
                architecture: "amd64".to_owned(),
                container_runtime_version: "containerd://2.1.4".to_owned(),
                kernel_version: "6.12.0-generic".to_owned(),
                kubelet_version: "v1.37.1".to_owned(),
                operating_system: "linux".to_owned(),
                os_image: "Debian GNU/Linux 13 (trixie)".to_owned(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }
    }
}

/// Registers Nodes in parallel, each with one request that includes the first status, as a kubelet does.
///
/// The API server adds the taint `node.kubernetes.io/not-ready`, which stays: kube-controller-manager, which removes it from
/// ready Nodes, does not run here.
///
/// # Errors
/// When the API server refuses a Node. Others may have been registered.
pub async fn register(client: &kube::Client, specs: impl IntoIterator<Item = &NodeSpec>) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let parameters = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let (nodes, parameters) = (&nodes, &parameters);
    stream::iter(specs)
        .map(|spec| async move {
            let created = nodes.create(parameters, &spec.build()).await;
            created.map(drop).with_context(|| format!("cannot register node {}", spec.name))
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

/// Sets the condition `Ready` through the `status` subresource, as a kubelet or kube-controller-manager does.
///
/// # Errors
/// When the API server refuses it.
pub async fn set_ready(client: &kube::Client, name: &str, ready: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = json!({ "status": { "conditions": [ready_condition(ready)] } });
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    // A strategic merge patch keeps the other conditions.
    nodes
        .patch_status(name, &parameters, &Patch::Strategic(patch))
        .await
        .with_context(|| format!("cannot set the status of node {name}"))?;
    Ok(())
}

fn address(kind: &str, address: &str) -> NodeAddress {
    NodeAddress {
        type_: kind.to_owned(),
        address: address.to_owned(),
    }
}

fn ready_condition(ready: bool) -> NodeCondition {
    if ready {
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")
    } else {
        condition("Ready", "False", "KubeletNotReady", "container runtime network not ready")
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> NodeCondition {
    let now = Time(Timestamp::now());
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now),
    }
}

/// 50 images, the maximum that a kubelet reports, with a digest and a tag each.
fn images() -> Vec<ContainerImage> {
    (0..50_i64)
        .map(|i| ContainerImage {
            names: Some(vec![
                format!("registry.example.com/team/app-{i}@sha256:{i:064x}"),
                format!("registry.example.com/team/app-{i}:v1.{i}"),
            ]),
            size_bytes: Some(20_000_000 + i * 1_234_567),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_realistic_node_has_about_ten_kilobytes() {
        let bytes = serde_json::to_vec(&NodeSpec::new("node-1").realistic().build()).unwrap().len();
        assert!((8_000..12_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn node_ip_is_an_address_and_an_annotation() {
        let mut spec = NodeSpec::new("node-1");
        spec.node_ip = Some("10.0.0.7".parse().unwrap());
        let node = spec.build();
        let addresses = node.status.unwrap().addresses.unwrap();
        assert_eq!(addresses, [address("InternalIP", "10.0.0.7"), address("Hostname", "node-1")]);
        assert_eq!(node.metadata.annotations.unwrap()[PROVIDED_NODE_IP], "10.0.0.7");
    }
}
