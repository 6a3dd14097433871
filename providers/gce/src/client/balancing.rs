//! The objects of load balancers. They are JSON values with the fields of the API, since most of these are passed through unchanged.
//!
//! Each change has the ID of its request. The service carries out only one request with an ID, and answers all of them with its
//! operation.

use ccm_core::{Error, ErrorKind, RequestOutcome, Result, client::Page, error::report, plan::RequestId};
use google_cloud_compute_v1::model;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Client, Place, operations::ComputeOperation, ops::Op};

/// The largest page.
const PAGE: u32 = 500;

/// A collection of objects, in the path of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collection {
    Addresses,
    ForwardingRules,
    TargetPools,
    BackendServices,
    HttpHealthChecks,
    HealthChecks,
    Firewalls,
    InstanceGroups,
}

/// Where objects are. Global ones use only the project.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectPlace<'a> {
    pub(crate) collection: Collection,
    pub(crate) project: &'a str,
    pub(crate) region: &'a str,
    /// Of instance groups.
    pub(crate) zone: &'a str,
}

impl Collection {
    /// Its name in paths.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Addresses => "addresses",
            Self::ForwardingRules => "forwardingRules",
            Self::TargetPools => "targetPools",
            Self::BackendServices => "backendServices",
            Self::HttpHealthChecks => "httpHealthChecks",
            Self::HealthChecks => "healthChecks",
            Self::Firewalls => "firewalls",
            Self::InstanceGroups => "instanceGroups",
        }
    }
}

impl ObjectPlace<'_> {
    /// The resource path of an object.
    pub(crate) fn path(&self, name: &str) -> String {
        let scope = match self.collection {
            Collection::HttpHealthChecks | Collection::HealthChecks | Collection::Firewalls => {
                "global".to_owned()
            }
            Collection::InstanceGroups => format!("zones/{}", self.zone),
            _ => format!("regions/{}", self.region),
        };
        format!("projects/{}/{scope}/{}/{name}", self.project, self.collection.name())
    }
}

/// An object as the SDK has it.
fn typed<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|error| {
        let text = format!("bug: an object does not have the fields of the API: {}", report(&error));
        Error::new(ErrorKind::Unexpected, text)
    })
}

/// An object with the fields of the API.
fn untyped(object: impl Serialize) -> Result<Value> {
    serde_json::to_value(object).map_err(|error| {
        let text = format!("an answer cannot be read: {}", report(&error));
        Error::new(ErrorKind::Unexpected, text).with_outcome(RequestOutcome::Unknown)
    })
}

fn page_of<T: Serialize>(items: Vec<T>, next: Option<String>) -> Result<Page<Value, String>> {
    let items = items.into_iter().map(untyped).collect::<Result<Vec<_>>>()?;
    Ok(Page { items, next })
}

impl Client {
    /// All objects of a collection.
    pub(crate) async fn objects(&self, place: ObjectPlace<'_>) -> Result<Vec<Value>> {
        ccm_core::client::collect(async |token: Option<String>| self.object_page(place, token).await).await
    }

    async fn object_page(
        &self,
        place: ObjectPlace<'_>,
        token: Option<String>,
    ) -> Result<Page<Value, String>> {
        let ObjectPlace {
            project,
            region,
            zone,
            ..
        } = place;
        match place.collection {
            Collection::Addresses => {
                let page = self.call(Op::AddressList, Place::Region(region), |sdk| {
                    let request = sdk
                        .addresses
                        .list()
                        .set_project(project)
                        .set_region(region)
                        .set_max_results(PAGE)
                        .set_or_clear_page_token(token.clone());
                    sdk.prepared(request).send()
                });
                let page = page.await?;
                page_of(page.items, page.next_page_token)
            }
            Collection::ForwardingRules => {
                let page = self.call(Op::ForwardingRuleList, Place::Region(region), |sdk| {
                    let request = sdk
                        .forwarding_rules
                        .list()
                        .set_project(project)
                        .set_region(region)
                        .set_max_results(PAGE)
                        .set_or_clear_page_token(token.clone());
                    sdk.prepared(request).send()
                });
                let page = page.await?;
                page_of(page.items, page.next_page_token)
            }
            Collection::TargetPools => {
                let page = self.call(Op::TargetPoolList, Place::Region(region), |sdk| {
                    let request = sdk
                        .target_pools
                        .list()
                        .set_project(project)
                        .set_region(region)
                        .set_max_results(PAGE)
                        .set_or_clear_page_token(token.clone());
                    sdk.prepared(request).send()
                });
                let page = page.await?;
                page_of(page.items, page.next_page_token)
            }
            Collection::BackendServices => {
                let page = self.call(Op::BackendServiceList, Place::Region(region), |sdk| {
                    let request = sdk
                        .backend_services
                        .list()
                        .set_project(project)
                        .set_region(region)
                        .set_max_results(PAGE)
                        .set_or_clear_page_token(token.clone());
                    sdk.prepared(request).send()
                });
                let page = page.await?;
                page_of(page.items, page.next_page_token)
            }
            Collection::HttpHealthChecks => {
                let page = self.call(Op::HttpHealthCheckList, Place::Global, |sdk| {
                    let request = sdk
                        .http_health_checks
                        .list()
                        .set_project(project)
                        .set_max_results(PAGE)
                        .set_or_clear_page_token(token.clone());
                    sdk.prepared(request).send()
                });
                let page = page.await?;
                page_of(page.items, page.next_page_token)
            }
            Collection::HealthChecks => {
                let page = self.call(Op::HealthCheckList, Place::Global, |sdk| {
                    let request = sdk
                        .health_checks
                        .list()
                        .set_project(project)
                        .set_max_results(PAGE)
                        .set_or_clear_page_token(token.clone());
                    sdk.prepared(request).send()
                });
                let page = page.await?;
                page_of(page.items, page.next_page_token)
            }
            Collection::Firewalls => {
                let page = self.call(Op::FirewallList, Place::Global, |sdk| {
                    let request = sdk
                        .firewalls
                        .list()
                        .set_project(project)
                        .set_max_results(PAGE)
                        .set_or_clear_page_token(token.clone());
                    sdk.prepared(request).send()
                });
                let page = page.await?;
                page_of(page.items, page.next_page_token)
            }
            Collection::InstanceGroups => {
                let page = self.call(Op::InstanceGroupList, Place::Zone(zone), |sdk| {
                    let request = sdk
                        .instance_groups
                        .list()
                        .set_project(project)
                        .set_zone(zone)
                        .set_max_results(PAGE)
                        .set_or_clear_page_token(token.clone());
                    sdk.prepared(request).send()
                });
                let page = page.await?;
                page_of(page.items, page.next_page_token)
            }
        }
    }

    /// An object that is read again before it is changed, or after its creation.
    pub(crate) async fn object(&self, place: ObjectPlace<'_>, name: &str) -> Result<Value> {
        let ObjectPlace { project, region, .. } = place;
        match place.collection {
            Collection::Addresses => {
                let read = self.call(Op::AddressGet, Place::Region(region), |sdk| {
                    let request = sdk.addresses.get().set_project(project).set_region(region);
                    sdk.prepared(request.set_address(name)).send()
                });
                untyped(read.await?)
            }
            Collection::ForwardingRules => {
                let read = self.call(Op::ForwardingRuleGet, Place::Region(region), |sdk| {
                    let request = sdk.forwarding_rules.get().set_project(project).set_region(region);
                    sdk.prepared(request.set_forwarding_rule(name)).send()
                });
                untyped(read.await?)
            }
            Collection::BackendServices => {
                let read = self.call(Op::BackendServiceGet, Place::Region(region), |sdk| {
                    let request = sdk.backend_services.get().set_project(project).set_region(region);
                    sdk.prepared(request.set_backend_service(name)).send()
                });
                untyped(read.await?)
            }
            Collection::Firewalls => {
                let read = self.call(Op::FirewallGet, Place::Global, |sdk| {
                    sdk.prepared(sdk.firewalls.get().set_project(project).set_firewall(name)).send()
                });
                untyped(read.await?)
            }
            other => Err(no_call("get", other)),
        }
    }

    /// Creates an object.
    pub(crate) async fn insert_object(
        &self,
        place: ObjectPlace<'_>,
        body: Value,
        id: &RequestId,
    ) -> Result<ComputeOperation> {
        let id = id.as_str();
        let ObjectPlace {
            project,
            region,
            zone,
            ..
        } = place;
        let operation = match place.collection {
            Collection::Addresses => {
                let body: model::Address = typed(body)?;
                let sent = self.call(Op::AddressInsert, Place::Region(region), |sdk| {
                    let request = sdk.addresses.insert().set_project(project).set_region(region);
                    sdk.prepared(request.set_body(body.clone()).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::ForwardingRules => {
                let body: model::ForwardingRule = typed(body)?;
                let sent = self.call(Op::ForwardingRuleInsert, Place::Region(region), |sdk| {
                    let request = sdk.forwarding_rules.insert().set_project(project).set_region(region);
                    sdk.prepared(request.set_body(body.clone()).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::TargetPools => {
                let body: model::TargetPool = typed(body)?;
                let sent = self.call(Op::TargetPoolInsert, Place::Region(region), |sdk| {
                    let request = sdk.target_pools.insert().set_project(project).set_region(region);
                    sdk.prepared(request.set_body(body.clone()).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::BackendServices => {
                let body: model::BackendService = typed(body)?;
                let sent = self.call(Op::BackendServiceInsert, Place::Region(region), |sdk| {
                    let request = sdk.backend_services.insert().set_project(project).set_region(region);
                    sdk.prepared(request.set_body(body.clone()).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::HttpHealthChecks => {
                let body: model::HttpHealthCheck = typed(body)?;
                let sent = self.call(Op::HttpHealthCheckInsert, Place::Global, |sdk| {
                    let request = sdk.http_health_checks.insert().set_project(project);
                    sdk.prepared(request.set_body(body.clone()).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::HealthChecks => {
                let body: model::HealthCheck = typed(body)?;
                let sent = self.call(Op::HealthCheckInsert, Place::Global, |sdk| {
                    let request = sdk.health_checks.insert().set_project(project);
                    sdk.prepared(request.set_body(body.clone()).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::Firewalls => {
                let body: model::Firewall = typed(body)?;
                let sent = self.call(Op::FirewallInsert, Place::Global, |sdk| {
                    let request = sdk.firewalls.insert().set_project(project);
                    sdk.prepared(request.set_body(body.clone()).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::InstanceGroups => {
                let body: model::InstanceGroup = typed(body)?;
                let sent = self.call(Op::InstanceGroupInsert, Place::Zone(zone), |sdk| {
                    let request = sdk.instance_groups.insert().set_project(project).set_zone(zone);
                    sdk.prepared(request.set_body(body.clone()).set_request_id(id)).send()
                });
                sent.await?
            }
        };
        ComputeOperation::from(operation).accepted()
    }

    /// Changes the given fields of an object.
    pub(crate) async fn patch_object(
        &self,
        place: ObjectPlace<'_>,
        name: &str,
        body: Value,
        id: &RequestId,
    ) -> Result<ComputeOperation> {
        let id = id.as_str();
        let ObjectPlace { project, region, .. } = place;
        let operation = match place.collection {
            Collection::ForwardingRules => {
                let body: model::ForwardingRule = typed(body)?;
                let sent = self.call(Op::ForwardingRulePatch, Place::Region(region), |sdk| {
                    let request = sdk
                        .forwarding_rules
                        .patch()
                        .set_project(project)
                        .set_region(region)
                        .set_forwarding_rule(name)
                        .set_body(body.clone());
                    sdk.prepared(request.set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::BackendServices => {
                let body: model::BackendService = typed(body)?;
                let sent = self.call(Op::BackendServicePatch, Place::Region(region), |sdk| {
                    let request = sdk
                        .backend_services
                        .patch()
                        .set_project(project)
                        .set_region(region)
                        .set_backend_service(name)
                        .set_body(body.clone());
                    sdk.prepared(request.set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::HttpHealthChecks => {
                let body: model::HttpHealthCheck = typed(body)?;
                let sent = self.call(Op::HttpHealthCheckPatch, Place::Global, |sdk| {
                    let request = sdk
                        .http_health_checks
                        .patch()
                        .set_project(project)
                        .set_http_health_check(name)
                        .set_body(body.clone());
                    sdk.prepared(request.set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::HealthChecks => {
                let body: model::HealthCheck = typed(body)?;
                let sent = self.call(Op::HealthCheckPatch, Place::Global, |sdk| {
                    let request = sdk
                        .health_checks
                        .patch()
                        .set_project(project)
                        .set_health_check(name)
                        .set_body(body.clone());
                    sdk.prepared(request.set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::Firewalls => {
                let body: model::Firewall = typed(body)?;
                let sent = self.call(Op::FirewallPatch, Place::Global, |sdk| {
                    let request =
                        sdk.firewalls.patch().set_project(project).set_firewall(name).set_body(body.clone());
                    sdk.prepared(request.set_request_id(id)).send()
                });
                sent.await?
            }
            other => return Err(no_call("patch", other)),
        };
        ComputeOperation::from(operation).accepted()
    }

    /// Gives a firewall rule these fields and no others. A patch cannot empty a list.
    pub(crate) async fn replace_firewall(
        &self,
        project: &str,
        name: &str,
        body: Value,
        id: &RequestId,
    ) -> Result<ComputeOperation> {
        let id = id.as_str();
        let body: model::Firewall = typed(body)?;
        let sent = self.call(Op::FirewallUpdate, Place::Global, |sdk| {
            let request =
                sdk.firewalls.update().set_project(project).set_firewall(name).set_body(body.clone());
            sdk.prepared(request.set_request_id(id)).send()
        });
        ComputeOperation::from(sent.await?).accepted()
    }

    /// Deletes an object.
    pub(crate) async fn delete_object(
        &self,
        place: ObjectPlace<'_>,
        name: &str,
        id: &RequestId,
    ) -> Result<ComputeOperation> {
        let id = id.as_str();
        let ObjectPlace {
            project,
            region,
            zone,
            ..
        } = place;
        let operation = match place.collection {
            Collection::Addresses => {
                let sent = self.call(Op::AddressDelete, Place::Region(region), |sdk| {
                    let request = sdk.addresses.delete().set_project(project).set_region(region);
                    sdk.prepared(request.set_address(name).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::ForwardingRules => {
                let sent = self.call(Op::ForwardingRuleDelete, Place::Region(region), |sdk| {
                    let request = sdk.forwarding_rules.delete().set_project(project).set_region(region);
                    sdk.prepared(request.set_forwarding_rule(name).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::TargetPools => {
                let sent = self.call(Op::TargetPoolDelete, Place::Region(region), |sdk| {
                    let request = sdk.target_pools.delete().set_project(project).set_region(region);
                    sdk.prepared(request.set_target_pool(name).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::BackendServices => {
                let sent = self.call(Op::BackendServiceDelete, Place::Region(region), |sdk| {
                    let request = sdk.backend_services.delete().set_project(project).set_region(region);
                    sdk.prepared(request.set_backend_service(name).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::HttpHealthChecks => {
                let sent = self.call(Op::HttpHealthCheckDelete, Place::Global, |sdk| {
                    let request = sdk.http_health_checks.delete().set_project(project);
                    sdk.prepared(request.set_http_health_check(name).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::HealthChecks => {
                let sent = self.call(Op::HealthCheckDelete, Place::Global, |sdk| {
                    let request = sdk.health_checks.delete().set_project(project);
                    sdk.prepared(request.set_health_check(name).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::Firewalls => {
                let sent = self.call(Op::FirewallDelete, Place::Global, |sdk| {
                    let request = sdk.firewalls.delete().set_project(project);
                    sdk.prepared(request.set_firewall(name).set_request_id(id)).send()
                });
                sent.await?
            }
            Collection::InstanceGroups => {
                let sent = self.call(Op::InstanceGroupDelete, Place::Zone(zone), |sdk| {
                    let request = sdk.instance_groups.delete().set_project(project).set_zone(zone);
                    sdk.prepared(request.set_instance_group(name).set_request_id(id)).send()
                });
                sent.await?
            }
        };
        ComputeOperation::from(operation).accepted()
    }

    /// The resource paths or URLs of the instances of an instance group.
    pub(crate) async fn group_members(&self, place: ObjectPlace<'_>, name: &str) -> Result<Vec<String>> {
        let (project, zone) = (place.project, place.zone);
        let body: model::InstanceGroupsListInstancesRequest = typed(json!({"instanceState": "ALL"}))?;
        let items = ccm_core::client::collect(async |token: Option<String>| {
            let page = self.call(Op::InstanceGroupListInstances, Place::Zone(zone), |sdk| {
                let request = sdk
                    .instance_groups
                    .list_instances()
                    .set_project(project)
                    .set_zone(zone)
                    .set_instance_group(name)
                    .set_body(body.clone())
                    .set_max_results(PAGE)
                    .set_or_clear_page_token(token.clone());
                sdk.prepared(request).send()
            });
            let page = page.await?;
            Ok(Page {
                items: page.items.into_iter().filter_map(|item| item.instance).collect(),
                next: page.next_page_token,
            })
        });
        items.await
    }

    /// Adds instances to a target pool or an instance group, by their resource paths.
    pub(crate) async fn add_instances(
        &self,
        place: ObjectPlace<'_>,
        name: &str,
        instances: &[String],
        id: &RequestId,
    ) -> Result<ComputeOperation> {
        let id = id.as_str();
        let ObjectPlace {
            project,
            region,
            zone,
            ..
        } = place;
        let entries = references(instances);
        let operation = if place.collection == Collection::InstanceGroups {
            let body: model::InstanceGroupsAddInstancesRequest = typed(entries)?;
            let sent = self.call(Op::InstanceGroupAdd, Place::Zone(zone), |sdk| {
                let request = sdk
                    .instance_groups
                    .add_instances()
                    .set_project(project)
                    .set_zone(zone)
                    .set_instance_group(name)
                    .set_body(body.clone());
                sdk.prepared(request.set_request_id(id)).send()
            });
            sent.await?
        } else {
            let body: model::TargetPoolsAddInstanceRequest = typed(entries)?;
            let sent = self.call(Op::TargetPoolAdd, Place::Region(region), |sdk| {
                let request = sdk
                    .target_pools
                    .add_instance()
                    .set_project(project)
                    .set_region(region)
                    .set_target_pool(name)
                    .set_body(body.clone());
                sdk.prepared(request.set_request_id(id)).send()
            });
            sent.await?
        };
        ComputeOperation::from(operation).accepted()
    }

    /// Removes instances from a target pool or an instance group, by their resource paths.
    pub(crate) async fn remove_instances(
        &self,
        place: ObjectPlace<'_>,
        name: &str,
        instances: &[String],
        id: &RequestId,
    ) -> Result<ComputeOperation> {
        let id = id.as_str();
        let ObjectPlace {
            project,
            region,
            zone,
            ..
        } = place;
        let entries = references(instances);
        let operation = if place.collection == Collection::InstanceGroups {
            let body: model::InstanceGroupsRemoveInstancesRequest = typed(entries)?;
            let sent = self.call(Op::InstanceGroupRemove, Place::Zone(zone), |sdk| {
                let request = sdk
                    .instance_groups
                    .remove_instances()
                    .set_project(project)
                    .set_zone(zone)
                    .set_instance_group(name)
                    .set_body(body.clone());
                sdk.prepared(request.set_request_id(id)).send()
            });
            sent.await?
        } else {
            let body: model::TargetPoolsRemoveInstanceRequest = typed(entries)?;
            let sent = self.call(Op::TargetPoolRemove, Place::Region(region), |sdk| {
                let request = sdk
                    .target_pools
                    .remove_instance()
                    .set_project(project)
                    .set_region(region)
                    .set_target_pool(name)
                    .set_body(body.clone());
                sdk.prepared(request.set_request_id(id)).send()
            });
            sent.await?
        };
        ComputeOperation::from(operation).accepted()
    }
}

fn references(instances: &[String]) -> Value {
    let instances: Vec<_> = instances.iter().map(|path| json!({"instance": path})).collect();
    json!({"instances": instances})
}

/// The error for a call that is not in this module: a bug.
fn no_call(method: &str, collection: Collection) -> Error {
    let text = format!("bug: there is no call to {method} {}", collection.name());
    Error::new(ErrorKind::Unexpected, text)
}
