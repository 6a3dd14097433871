//! The permissions of the credentials, by one call of the Resource Manager API. Nothing is changed.

use ccm_core::{
    Error, ErrorKind, Priority, Result,
    client::{
        Gate,
        rest::{self, Answer, Call, RestApi, Target, reqwest},
    },
};
use google_cloud_auth::credentials::CacheableResource;
use http::{Extensions, HeaderMap, Method};
use reqwest::RequestBuilder;
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use super::{Api, credentials::Identity, ops::Op};
use crate::{error::Refusal, site::Site};

/// The permissions in the cluster's project.
const CLUSTER: [&str; 4] = [
    "compute.instances.get",
    "compute.instances.list",
    "compute.projects.get",
    "compute.zones.list",
];
/// The permissions in the network's project, only for `validate` and the start.
const NETWORK: [&str; 3] = [
    "compute.networks.get",
    "compute.subnetworks.get",
    "compute.subnetworks.list",
];
/// The permissions for routes in the network's project.
const ROUTES: [&str; 7] = [
    "compute.globalOperations.get",
    "compute.globalOperations.list",
    "compute.networks.updatePolicy",
    "compute.routes.create",
    "compute.routes.delete",
    "compute.routes.get",
    "compute.routes.list",
];
/// The permission to name an instance as the target of a route or as a member of a load balancer.
const INSTANCE_USE: &str = "compute.instances.use";
/// The permissions for load balancers in the cluster's project.
const BALANCERS: [&str; 49] = [
    "compute.addresses.create",
    "compute.addresses.createInternal",
    "compute.addresses.delete",
    "compute.addresses.deleteInternal",
    "compute.addresses.get",
    "compute.addresses.list",
    "compute.addresses.use",
    "compute.addresses.useInternal",
    "compute.forwardingRules.create",
    "compute.forwardingRules.delete",
    "compute.forwardingRules.get",
    "compute.forwardingRules.list",
    "compute.forwardingRules.update",
    "compute.forwardingRules.use",
    "compute.globalOperations.get",
    "compute.globalOperations.list",
    "compute.healthChecks.create",
    "compute.healthChecks.delete",
    "compute.healthChecks.list",
    "compute.healthChecks.update",
    "compute.healthChecks.use",
    "compute.healthChecks.useReadOnly",
    "compute.httpHealthChecks.create",
    "compute.httpHealthChecks.delete",
    "compute.httpHealthChecks.list",
    "compute.httpHealthChecks.update",
    "compute.httpHealthChecks.use",
    "compute.httpHealthChecks.useReadOnly",
    "compute.instanceGroups.create",
    "compute.instanceGroups.delete",
    "compute.instanceGroups.list",
    "compute.instanceGroups.update",
    "compute.instanceGroups.use",
    "compute.regionBackendServices.create",
    "compute.regionBackendServices.delete",
    "compute.regionBackendServices.get",
    "compute.regionBackendServices.list",
    "compute.regionBackendServices.update",
    "compute.regionBackendServices.use",
    "compute.regionOperations.get",
    "compute.regionOperations.list",
    "compute.targetPools.addInstance",
    "compute.targetPools.create",
    "compute.targetPools.delete",
    "compute.targetPools.list",
    "compute.targetPools.removeInstance",
    "compute.targetPools.use",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
];
/// The permissions for load balancers in the network's project.
const BALANCER_NETWORK: [&str; 10] = [
    "compute.firewalls.create",
    "compute.firewalls.delete",
    "compute.firewalls.get",
    "compute.firewalls.list",
    "compute.firewalls.update",
    "compute.globalOperations.get",
    "compute.globalOperations.list",
    "compute.networks.updatePolicy",
    "compute.networks.use",
    "compute.subnetworks.use",
];

/// The permissions in one project.
pub(crate) struct ProjectPermissions<'a> {
    pub(crate) name: &'a str,
    pub(crate) permissions: Vec<&'static str>,
}

/// The permissions that the provider needs, by project.
pub(crate) fn projects(site: &Site, has_routes: bool) -> Vec<ProjectPermissions<'_>> {
    let mut cluster = [&CLUSTER[..], &BALANCERS, &[INSTANCE_USE]].concat();
    let mut network = [&NETWORK[..], &BALANCER_NETWORK].concat();
    if has_routes {
        network.extend(ROUTES);
    }
    if site.network_project == site.project {
        cluster.append(&mut network);
    }
    let mut projects = vec![ProjectPermissions {
        name: &site.project,
        permissions: cluster,
    }];
    if !network.is_empty() {
        projects.push(ProjectPermissions {
            name: &site.network_project,
            permissions: network,
        });
    }
    for project in &mut projects {
        project.permissions.sort_unstable();
        project.permissions.dedup();
    }
    projects
}

/// The Resource Manager API with one set of credentials.
struct ResourceManager {
    http: reqwest::Client,
    gate: Gate,
    url: Url,
    identity: Identity,
}

#[derive(Deserialize)]
struct Permissions {
    #[serde(default)]
    permissions: Vec<String>,
}

impl RestApi for ResourceManager {
    type Operation = Op;
    type Endpoint = ();
    type Credentials = HeaderMap;

    fn http(&self) -> &reqwest::Client {
        &self.http
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    async fn credentials(&self) -> Result<HeaderMap> {
        match self.identity.credentials.headers(Extensions::new()).await {
            Ok(CacheableResource::New { data, .. }) => Ok(data),
            Ok(CacheableResource::NotModified) => Ok(HeaderMap::new()),
            Err(error) => Err(super::credentials_error(&error)),
        }
    }

    async fn base_url(&self, (): ()) -> Result<Url> {
        Ok(self.url.clone())
    }

    fn authorize(&self, request: RequestBuilder, credentials: &HeaderMap) -> RequestBuilder {
        request.headers(credentials.clone())
    }

    fn refused(&self, _: &Target, answer: &Answer) -> Error {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let error = &body["error"];
        Refusal {
            status: Some(answer.status.as_u16()),
            reason: error["status"].as_str().unwrap_or_default().to_owned(),
            message: error["message"].as_str().unwrap_or_default().to_owned(),
            date: answer.header("date").map(str::to_owned),
        }
        .into_error()
    }
}

impl Api {
    /// Which of these permissions the credentials lack in a project.
    ///
    /// # Errors
    ///
    /// The API cannot be reached, or refuses the request. `Unsupported` if the endpoint of Compute Engine is not that of Google, and the
    /// config does not name one of Resource Manager.
    pub(crate) async fn missing_permissions(&self, project: &str, wanted: &[&str]) -> Result<Vec<String>> {
        let shared = &self.shared;
        let clients = shared.clients();
        let url = match (&clients.connection.resource_manager, &clients.connection.endpoint) {
            (Some(url), _) => url.clone(),
            (None, None) => {
                let text = format!("https://cloudresourcemanager.{}/", clients.identity.universe);
                Url::parse(&text).map_err(|error| {
                    Error::new(
                        ErrorKind::InvalidConfig,
                        format!("the universe domain is not a host: {error}"),
                    )
                })?
            }
            (None, Some(_)) => {
                let text = "api-endpoint is not that of Google; set resource-manager-endpoint";
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        };
        let manager = ResourceManager {
            http: shared.http.clone(),
            gate: self.gate.clone(),
            url,
            identity: clients.identity.clone(),
        };
        let resource = format!("{project}:testIamPermissions");
        let path = ["v1", "projects", resource.as_str()];
        let call =
            Call::new(Op::PermissionsTest, (), Method::POST, &path).json(&json!({"permissions": wanted}))?;
        let granted: Permissions = rest::json(&manager, &call, Priority::User).await?;
        let is_missing =
            |permission: &&&str| !granted.permissions.iter().any(|granted| granted == **permission);
        Ok(wanted.iter().filter(is_missing).map(ToString::to_string).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_role_grants_all_permissions_and_nothing_else() {
        let role = include_str!("../../../../deploy/gce/role.yaml");
        let granted: Vec<_> = role.lines().filter_map(|line| line.strip_prefix("- ")).collect();
        let lists = [
            &CLUSTER[..],
            &NETWORK,
            &ROUTES,
            &BALANCERS,
            &BALANCER_NETWORK,
            &[INSTANCE_USE],
        ];
        let mut used = lists.concat();
        used.sort_unstable();
        used.dedup();
        assert_eq!(granted, used);
    }
}
