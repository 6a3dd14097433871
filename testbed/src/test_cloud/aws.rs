//! An AWS account on moto as a test cloud.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{DocumentsConfig, LoadBalancers, Machine, ServiceShape, TestCloud, TestRoutes, pairs};
use crate::moto::{Account, Moto, REGION};
use crate::picture::{Picture, replace_words};
use crate::proxy::{AWS_READS as READS, Action, Rule};
use crate::sweep::Party;

const ANNOTATIONS: &str = "service.beta.kubernetes.io/aws-load-balancer-";
const CREATES: [&str; 3] = ["CreateLoadBalancer", "CreateTargetGroup", "CreateSecurityGroup"];
/// The name of the cluster, in tags and in `--cluster-name`.
const CLUSTER: &str = "test";

pub(super) const DOCUMENTS_CONFIG: DocumentsConfig = DocumentsConfig {
    file: "[Global]\nNLBSecurityGroupMode = Managed\nRegion = us-west-2\nVPC = vpc-0\nKubernetesClusterID = example\n",
    environment: &[
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("AWS_ACCESS_KEY_ID", "none"),
        ("AWS_SECRET_ACCESS_KEY", "none"),
    ],
};

/// An account with a network in three zones and without machines.
#[derive(Debug)]
pub struct AwsCloud {
    account: Account<'static>,
    /// The node names by instance.
    machines: Mutex<BTreeMap<String, String>>,
}

fn objects<'a>(answer: &'a Value, list: &str) -> &'a [Value] {
    answer.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text(object: &Value, key: &str) -> String {
    object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Sorts all lists, because the order of IDs differs between runs.
fn sort(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(sort);
            items.sort_by_key(ToString::to_string);
        }
        Value::Object(fields) => fields.values_mut().for_each(sort),
        _ => {}
    }
}

impl AwsCloud {
    /// Creates the account on the moto server of this process.
    ///
    /// # Errors
    /// When moto cannot be installed or started.
    pub async fn start() -> Result<Self> {
        Ok(Self {
            account: Moto::shared().await?.account(CLUSTER, 0).await?,
            machines: Mutex::default(),
        })
    }
}

impl AwsCloud {
    /// The cluster's route table: its id, and the routes to instances.
    async fn route_table(&self) -> Result<(String, Vec<Value>)> {
        let tag = format!("kubernetes.io/cluster/{CLUSTER}");
        let filter = json!({"Filters": [{"Name": "tag-key", "Values": [tag]}]});
        let seen = self.account.call("ec2", "describe_route_tables", filter).await?;
        let table = objects(&seen, "RouteTables").first().context("no route table")?;
        let routes = objects(table, "Routes").iter();
        let to_instances = routes.filter(|route| !text(route, "InstanceId").is_empty());
        Ok((text(table, "RouteTableId"), to_instances.cloned().collect()))
    }
}

impl std::ops::Deref for AwsCloud {
    type Target = Account<'static>;

    fn deref(&self) -> &Account<'static> {
        &self.account
    }
}

#[async_trait]
impl TestRoutes for AwsCloud {
    /// The table of the public subnets already has the cluster's tag.
    async fn create_table(&self) -> Result<String> {
        Ok(String::new())
    }

    async fn reset(
        &self,
        routes: &[(&str, &Machine)],
        machines: &[Machine],
        guest: (&str, &Machine),
    ) -> Result<()> {
        let (table, old) = self.route_table().await?;
        for route in old {
            let route = json!({"RouteTableId": table, "DestinationCidrBlock": route["DestinationCidrBlock"]});
            self.account.call("ec2", "delete_route", route).await?;
        }
        for (to, machine) in routes {
            let route = json!({"RouteTableId": table, "DestinationCidrBlock": to, "InstanceId": machine.id});
            self.account.call("ec2", "create_route", route).await?;
        }
        for machine in machines.iter().chain([guest.1]) {
            let check = json!({"InstanceId": machine.id, "SourceDestCheck": {"Value": true}});
            self.account.call("ec2", "modify_instance_attribute", check).await?;
        }
        Ok(())
    }

    async fn table(&self) -> Result<BTreeSet<(String, String)>> {
        let (_, routes) = self.route_table().await?;
        let route = |route: &Value| (text(route, "DestinationCidrBlock"), text(route, "InstanceId"));
        Ok(routes.iter().map(route).collect())
    }

    async fn drops(&self, machine: &Machine, _: &str) -> Result<Option<String>> {
        let asked = json!({"InstanceIds": [machine.id]});
        let seen = self.account.call("ec2", "describe_instances", asked).await?;
        let checks = seen.pointer("/Reservations/0/Instances/0/SourceDestCheck");
        Ok((checks != Some(&json!(false))).then(|| format!("source/destination check {checks:?}")))
    }

    /// An instance that is not a node must keep its source/destination check.
    async fn changed(&self, guest: &Machine) -> Result<Option<String>> {
        let drops = self.drops(guest, "").await?;
        Ok(drops.is_none().then(|| "source/destination check is off".to_owned()))
    }
}

#[async_trait]
impl TestCloud for AwsCloud {
    fn provider(&self) -> &'static str {
        "aws"
    }

    fn config(&self) -> String {
        self.account.cloud_conf()
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.account.environment()
    }

    fn secrets(&self) -> Vec<String> {
        vec![crate::moto::SECRET.to_owned()]
    }

    fn party(&self) -> &dyn Party {
        &self.account.proxy
    }

    async fn create_machine(&self, name: &str) -> Result<Machine> {
        let mut created = self.account.launch(&[name.to_owned()]).await?;
        let (_, node, id, zone) = created.pop().context("no instance")?;
        self.machines.lock().insert(id.clone(), node.clone());
        let asked = json!({"InstanceIds": [id]});
        let seen = self.account.call("ec2", "describe_instances", asked).await?;
        let text = |key: &str| {
            let value = seen.pointer(&format!("/Reservations/0/Instances/0/{key}"));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let mut addresses = pairs(&[("InternalIP", &text("PrivateIpAddress"))]);
        for (kind, key) in [
            ("ExternalIP", "PublicIpAddress"),
            ("InternalDNS", "PrivateDnsName"),
            ("Hostname", "PrivateDnsName"),
            ("ExternalDNS", "PublicDnsName"),
        ] {
            if !text(key).is_empty() {
                addresses.push((kind.to_owned(), text(key)));
            }
        }
        Ok(Machine {
            provider_id: format!("aws:///{zone}/{id}"),
            labels: pairs(&[
                ("node.kubernetes.io/instance-type", "m5.large"),
                ("topology.kubernetes.io/zone", &zone),
                ("topology.kubernetes.io/region", REGION),
            ]),
            addresses,
            node,
            id,
        })
    }

    async fn delete_machine(&self, machine: &Machine) -> Result<()> {
        let ids = json!({"InstanceIds": [machine.id]});
        self.account.call("ec2", "terminate_instances", ids).await?;
        Ok(())
    }

    async fn picture(&self, words: &[(String, String)]) -> Result<Picture> {
        let (objects, names) = self.account.dump(&json!({})).await?;
        let mut words = words.to_vec();
        for (id, name) in names.as_object().into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            // Names of load balancers consist of UIDs, which the caller knows.
            if !name.starts_with("<lbname") {
                words.push((id.clone(), name.to_owned()));
            }
        }
        let words = words.into_iter().collect();
        let mut objects: Value = serde_json::from_str(&replace_words(&objects.to_string(), &words))?;
        sort(&mut objects);
        let mut lines = Vec::new();
        for (kind, objects) in objects.as_object_mut().into_iter().flatten() {
            for object in objects.as_array_mut().into_iter().flatten() {
                let (name, rules) = (text(object, "name"), object["rules"].take());
                // The group of the nodes has no rules in a new account.
                if rules == json!([]) && ["nodes", "extra"].contains(&name.as_str()) {
                    continue;
                }
                let rules = rules.as_array().into_iter().flatten();
                lines.extend(rules.map(|rule| format!("{name}: {rule}")));
                lines.push(format!("{kind} {object}"));
            }
        }
        Ok(Picture::of_lines(lines, &[]))
    }

    async fn clear(&self) -> Result<()> {
        self.account.clean().await
    }

    fn created(&self) -> Vec<(&'static str, usize)> {
        let requests = self.account.proxy.requests();
        let count = |action: &str| {
            let created = requests.iter().filter(|request| {
                request.name == action && request.status.is_some_and(|status| status < 300)
            });
            created.count()
        };
        CREATES.iter().map(|action| (*action, count(action))).collect()
    }

    async fn unserved(&self, service: &Service) -> Result<Option<String>> {
        let seen = self.account.call("v2", "describe_load_balancers", json!({})).await?;
        let balancers = seen["LoadBalancers"].as_array().cloned().unwrap_or_default();
        let [balancer] = balancers.as_slice() else {
            return Ok(Some(format!("{} load balancers", balancers.len())));
        };
        let expected = balancer["DNSName"].as_str();
        let status = service.status.as_ref();
        let ingress = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_deref());
        Ok(match ingress {
            Some([only]) if only.hostname.as_deref() == expected => None,
            other => Some(format!("status {other:?} instead of {expected:?}")),
        })
    }

    fn service(&self) -> ServiceShape {
        ServiceShape {
            annotations: json!({format!("{ANNOTATIONS}type"): "nlb"}),
            has_affinity: false,
            shares_pool: false,
            internal: json!({format!("{ANNOTATIONS}type"): "nlb", format!("{ANNOTATIONS}internal"): "true"}),
            changed: json!({
                format!("{ANNOTATIONS}cross-zone-load-balancing-enabled"): "true",
                format!("{ANNOTATIONS}healthcheck-interval"): "30",
            }),
        }
    }

    fn calls(&self) -> BTreeMap<String, u64> {
        self.account.proxy.call_counts()
    }

    fn is_write(&self, operation: &str) -> bool {
        let action = operation.split(' ').next_back().unwrap_or_default();
        !action.starts_with('/') && !READS.iter().any(|verb| action.starts_with(verb))
    }

    fn set_latency(&self, latency: Duration) {
        self.account.proxy.add(Rule::new(Action::Delay(latency)));
    }

    async fn load_balancers(&self) -> Result<LoadBalancers> {
        let machines = self.machines.lock().clone();
        let mut found = LoadBalancers::default();
        let balancers = self.account.call("v2", "describe_load_balancers", json!({})).await?;
        for balancer in objects(&balancers, "LoadBalancers") {
            found.names.insert(text(balancer, "LoadBalancerName"));
            found.unfinished |= balancer.pointer("/State/Code") != Some(&json!("active"));
        }
        let groups = self.account.call("v2", "describe_target_groups", json!({})).await?;
        for group in objects(&groups, "TargetGroups") {
            let health = json!({"TargetGroupArn": group["TargetGroupArn"]});
            let health = match self.account.call("v2", "describe_target_health", health).await {
                Ok(health) => health,
                // The target group was deleted after the list was read.
                Err(error) if error.to_string().contains("TargetGroupNotFound") => continue,
                Err(error) => return Err(error),
            };
            let targets = objects(&health, "TargetHealthDescriptions").iter();
            let nodes =
                targets.filter_map(|target| machines.get(target.pointer("/Target/Id")?.as_str()?).cloned());
            found.pools.insert(text(group, "TargetGroupName"), nodes.collect());
        }
        Ok(found)
    }

    fn routes(&self) -> Option<&dyn TestRoutes> {
        Some(self)
    }
}
