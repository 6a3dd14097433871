//! The suite for the load balancers of all providers, on machines of their own.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use ccm_core::{
    Cloud, Environment, async_trait,
    load_balancer::{ServiceNode, ServiceView},
    testkit::{
        self,
        cluster::{WaitUntil, advance_to},
        conformance::{
            self, BalancerSubject, BoxError, Budgets, CallKind, CloudCall, Cost, Edit, EditResult, Failure,
        },
    },
};
use ccm_testbed::{
    arm::ArmServer,
    proxy::{Action, AzureDialect, CloudProxy, Moment, Request, Rule, azure_refusal},
};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::subscription::{NETWORK, node_of};

/// A server, and the way to it.
struct Stage {
    server: ArmServer,
    proxy: CloudProxy<AzureDialect>,
}

#[derive(Default)]
struct Subscription {
    stage: Mutex<Option<Arc<Stage>>>,
}

impl Subscription {
    fn stage(&self) -> Arc<Stage> {
        Arc::clone(self.stage.lock().as_ref().unwrap())
    }
}

const EDITS: [Edit; 7] = [
    Edit::new("delete rule", EditResult::Reverted),
    Edit::new("change probe", EditResult::Reverted),
    Edit::new("admit all", EditResult::Reverted),
    Edit::new("remove member", EditResult::Reverted),
    Edit::new("tag load balancer", EditResult::Unchanged),
    Edit::new("reserve address", EditResult::Foreign),
    Edit::new("allow ssh", EditResult::Foreign),
];

/// The lines of one document. `names`: those of addresses.
fn lines(document: &Value, names: &HashMap<String, String>) -> Vec<String> {
    let text = |key: &str| document[key].as_str().unwrap_or_default();
    let (name, properties) = (text("name"), &document["properties"]);
    let last = |id: &Value| id.as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned();
    let elements = |list: &str| properties[list].as_array().cloned().unwrap_or_default();
    match text("type") {
        "Microsoft.Network/loadBalancers" => {
            let mut lines = vec![format!("lb {name} {}", document["tags"])];
            for frontend in elements("frontendIPConfigurations") {
                let address = last(&frontend["properties"]["publicIPAddress"]["id"]);
                lines.push(format!("lb {name} frontend {} {address}", frontend["name"]));
            }
            for pool in elements("backendAddressPools") {
                lines.push(format!("lb {name} pool {}", pool["name"]));
            }
            for list in ["loadBalancingRules", "probes"] {
                for element in elements(list) {
                    let mut properties = element["properties"].clone();
                    for derived in ["loadBalancingRules", "provisioningState", "backendAddressPools"] {
                        properties.as_object_mut().unwrap().remove(derived);
                    }
                    lines.push(format!("lb {name} {list} {} {properties}", element["name"]));
                }
            }
            lines
        }
        "Microsoft.Network/publicIPAddresses" => vec![format!("pip {name} {}", document["tags"])],
        "Microsoft.Network/networkSecurityGroups" => {
            let mut lines = Vec::new();
            for rule in elements("securityRules") {
                let fields = &rule["properties"];
                let mut destinations =
                    fields["destinationAddressPrefixes"].as_array().cloned().unwrap_or_default();
                destinations.extend(fields.get("destinationAddressPrefix").cloned());
                for destination in destinations {
                    let destination = destination.as_str().unwrap_or_default();
                    let destination = names.get(destination).map_or(destination, String::as_str);
                    lines.push(format!(
                        "nsg {} {} {} {} {destination}",
                        rule["name"],
                        fields["access"],
                        fields["sourceAddressPrefix"],
                        fields["destinationPortRanges"]
                    ));
                }
            }
            lines
        }
        "Microsoft.Network/networkInterfaces" => {
            let mut lines = Vec::new();
            for configuration in elements("ipConfigurations") {
                let pools =
                    configuration["properties"]["loadBalancerBackendAddressPools"].as_array().cloned();
                for pool in pools.unwrap_or_default() {
                    lines.push(format!("member {name} {}", last(&pool["id"])));
                }
            }
            lines
        }
        _ => Vec::new(),
    }
}

#[async_trait]
impl BalancerSubject for Subscription {
    async fn reset(&self) -> Result<(), BoxError> {
        let server = ArmServer::start(&[]).await?;
        let proxy = CloudProxy::<AzureDialect>::start(server.url()).await?;
        // Links in answers lead to the proxy, too.
        let base = json!({"base": proxy.url()});
        server.control::<Value>("settings", &base).await?;
        *self.stage.lock() = Some(Arc::new(Stage { server, proxy }));
        Ok(())
    }

    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError> {
        let stage = self.stage();
        let conf = stage.server.conf().replace(stage.server.url(), &stage.proxy.url());
        let conf = format!("{conf}{NETWORK}");
        Ok(testkit::build("azure", &conf, Environment::default()).await?)
    }

    async fn create_node(&self, _: &str) -> Result<ServiceNode, BoxError> {
        // Azure chooses the name.
        Ok(node_of(&self.stage().server.create("standalone", &json!({})).await?))
    }

    async fn picture(&self) -> Result<Vec<String>, BoxError> {
        let documents: BTreeMap<String, Value> = self.stage().server.control_get("docs").await?;
        let address = |document: &Value| {
            let address = document["properties"]["ipAddress"].as_str()?;
            Some((address.to_owned(), document["name"].to_string()))
        };
        let names: HashMap<String, String> = documents.values().filter_map(address).collect();
        let mut all: Vec<String> = documents.values().flat_map(|document| lines(document, &names)).collect();
        all.sort();
        Ok(all)
    }

    fn take_calls(&self) -> Vec<CloudCall> {
        let stage = self.stage();
        let requests = stage.proxy.requests();
        stage.proxy.forget();
        let call = |request: Request| CloudCall {
            kind: match (request.resource.as_str(), request.method.as_str()) {
                ("arm", "GET") => CallKind::Read,
                ("arm", _) => CallKind::Write,
                _ => CallKind::Authentication,
            },
            // The suite counts the calls on one resource.
            operation: format!("{} {}", request.method, request.path),
        };
        requests.into_iter().map(call).collect()
    }

    fn budgets(&self) -> Budgets {
        let cost = |writes, reads| Cost { writes, reads };
        Budgets {
            create: cost(10, 24),
            restart_reads: 10,
            join: cost(1, 6),
            delete: cost(4, 14),
        }
    }

    fn can_fail(&self, call: &CloudCall, failure: Failure) -> bool {
        call.kind == CallKind::Write || failure != Failure::Busy
    }

    fn fail(&self, nth: usize, failure: Failure) -> BoxFuture<'static, ()> {
        let action = match failure {
            Failure::Busy => Action::answer(409, azure_refusal("AnotherOperationInProgress")),
            Failure::Throttled => Action::status(429),
            Failure::Unavailable => Action::status(503),
            Failure::LostReply => Action::CommitThenReset,
            Failure::NoReply => Action::Hold(Moment::AfterCommit),
        };
        let stage = self.stage();
        let calls_only = |request: &Request| request.resource == "arm";
        let rule = stage.proxy.add(Rule::when(calls_only, action).at(u64::try_from(nth).unwrap()));
        stage.proxy.reached(rule).map(drop).boxed()
    }

    fn failure_points(&self) -> usize {
        8
    }

    fn edits(&self) -> &[Edit] {
        &EDITS
    }

    async fn edit(&self, name: &str) -> Result<(), BoxError> {
        let stage = self.stage();
        let server = &stage.server;
        let resource = match name {
            "delete rule" | "change probe" | "tag load balancer" => "loadBalancers/kubernetes",
            "admit all" | "allow ssh" => "networkSecurityGroups/nsg",
            "remove member" => "networkInterfaces/vm-0-nic",
            _ => "publicIPAddresses/mine",
        };
        let id = server.network_id(resource);
        let mut document = match name {
            "reserve address" => json!({
                "location": "eastus", "sku": {"name": "Standard"}, "tags": {"owner": "me"},
                "properties": {"publicIPAllocationMethod": "Static"},
            }),
            _ => server.document(&id).await?,
        };
        let properties = &mut document["properties"];
        match name {
            "delete rule" => {
                properties["loadBalancingRules"].as_array_mut().unwrap().remove(0);
            }
            "change probe" => properties["probes"][0]["properties"]["intervalInSeconds"] = json!(30),
            "tag load balancer" => document["tags"] = json!({"owner": "me"}),
            "admit all" => {
                let rules = properties["securityRules"].as_array_mut().unwrap();
                rules.last_mut().unwrap()["properties"]["sourceAddressPrefix"] = json!("*");
            }
            "allow ssh" => {
                let rule = json!({"name": "office", "properties": {
                    "protocol": "Tcp", "access": "Allow", "direction": "Inbound", "priority": 500,
                    "sourceAddressPrefix": "192.0.2.0/24", "sourcePortRange": "*",
                    "destinationAddressPrefix": "*", "destinationPortRange": "22",
                }});
                properties["securityRules"].as_array_mut().unwrap().push(rule);
            }
            "remove member" => {
                let configuration = &mut properties["ipConfigurations"][0]["properties"];
                configuration["loadBalancerBackendAddressPools"] = json!([]);
            }
            _ => {}
        }
        server.call(Method::PUT, &id, Some(&document)).await?;
        Ok(())
    }

    fn wait_until(&self) -> WaitUntil {
        advance_to
    }

    fn change(&self, service: &mut ServiceView) {
        service.source_ranges = Some(vec!["10.0.0.0/8".into()]);
    }
}

conformance::balancer_tests!(Subscription::default());
