//! The manifests of `deploy/`: read, applied as `kubectl apply` would, and the rights that they give.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::controlplane::{AuditEntry, ControlPlane};
use crate::observe::eventually;

/// The account of the program in every manifest, in `kube-system`.
pub const ACCOUNT: &str = "cloud-controller-manager";

/// The account as the API server names it.
pub const USER: &str = "system:serviceaccount:kube-system:cloud-controller-manager";

/// For the API server to know of roles that were just made.
const LIMIT: Duration = Duration::from_secs(30);

/// A file below `deploy/` of this repository.
#[must_use]
pub fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

/// The objects of a file, in their order.
///
/// # Errors
/// When the file can not be read, or is no YAML.
pub fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is no YAML", path.display()))
}

fn parse(text: &str) -> Result<Vec<Value>> {
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(text)?;
    objects.retain(|object| !object.is_null());
    Ok(objects)
}

/// Adds a component of `deploy/` to objects, as kustomize would: its own objects, and its patches to the others.
///
/// # Errors
/// When it can not be read, or a patch does not fit.
pub fn add_component(objects: &mut Vec<Value>, component: &str) -> Result<()> {
    let kustomization = read(&shipped(&format!("{component}/kustomization.yaml")))?;
    let kustomization = kustomization.first().context("an empty kustomization")?;
    let list = |key: &str| kustomization[key].as_array().cloned().unwrap_or_default();
    for patch in list("patches") {
        let target = &patch["target"];
        let steps = parse(patch["patch"].as_str().unwrap_or_default())?;
        let steps: json_patch::Patch = serde_json::from_value(steps.into_iter().next().unwrap_or_default())?;
        let fits = |wanted: &Value, found: &Value| wanted.is_null() || wanted == found;
        for object in objects.iter_mut() {
            if fits(&target["kind"], &object["kind"]) && fits(&target["name"], &object["metadata"]["name"]) {
                json_patch::patch(object, &steps)
                    .with_context(|| format!("a patch of {component} does not fit {target}"))?;
            }
        }
    }
    for resource in list("resources") {
        let file = resource.as_str().unwrap_or_default();
        objects.extend(read(&shipped(&format!("{component}/{file}")))?);
    }
    Ok(())
}

/// Applies an object, or only asks whether it could be applied: unknown and misspelt fields are errors in both cases.
///
/// # Errors
/// When the API server refuses it.
pub async fn apply(client: &Client, object: &Value, dry_run: bool) -> Result<DynamicObject> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let name = text(&object["metadata"]["name"]);
    let what = format!("{kind} {name}");
    ensure!(
        !kind.is_empty() && !name.is_empty(),
        "an object without kind or name: {object}"
    );
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let mut params = PatchParams::apply("deploy").validation_strict();
    params.dry_run = dry_run;
    api.patch(&name, &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("{what} is refused"))
}

/// Applies the account and the roles of a file, waits until they are in force, and returns a kubeconfig of the account.
///
/// # Errors
/// When the API server refuses an object, or does not grant the rights in time.
pub async fn account(control_plane: &ControlPlane, file: &Path) -> Result<PathBuf> {
    let client = control_plane.client().await?;
    let objects = read(file)?;
    for object in &objects {
        apply(&client, object, false).await?;
    }
    for right in rights(&objects).into_iter().chain(borrowed(&objects)) {
        let granted = eventually(LIMIT, async || is_granted(&client, &right).await.then_some(())).await;
        granted.with_context(|| format!("{USER} still may not {right}"))?;
    }
    control_plane
        .service_account_kubeconfig("kube-system", ACCOUNT)
        .await
}

/// One thing that somebody may do.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Right {
    /// `get`, `list`, ...; `*` for all.
    pub verb: String,
    /// The API group, empty for the core.
    pub group: String,
    /// The resource, with its subresource after a `/`.
    pub resource: String,
    /// The object's name; empty for all.
    pub name: String,
    /// The namespace; empty for all.
    pub namespace: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        Ok(())
    }
}

impl Right {
    /// Whether this right was needed for the request.
    #[must_use]
    pub fn covers(&self, request: &AuditEntry) -> bool {
        let fits = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
        let resource = match request.subresource.as_str() {
            "" => request.resource.clone(),
            subresource => format!("{}/{subresource}", request.resource),
        };
        let group = match request.uri.strip_prefix("/apis/") {
            Some(rest) => rest.split('/').next().unwrap_or_default(),
            None => "",
        };
        (self.verb == "*" || self.verb == request.verb)
            && self.group == group
            && self.resource == resource
            && fits(&self.name, &request.name)
            && fits(&self.namespace, &request.namespace)
    }
}

/// All that the roles among these objects grant.
#[must_use]
pub fn rights(objects: &[Value]) -> BTreeSet<Right> {
    let list = |value: &Value| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut rights = BTreeSet::new();
    let roles = objects
        .iter()
        .filter(|object| matches!(object["kind"].as_str(), Some("Role" | "ClusterRole")));
    for role in roles {
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().into_iter().flatten() {
            let mut names = list(&rule["resourceNames"]);
            if names.is_empty() {
                names.push(String::new());
            }
            for verb in list(&rule["verbs"]) {
                for group in list(&rule["apiGroups"]) {
                    for resource in list(&rule["resources"]) {
                        rights.extend(names.iter().map(|name| Right {
                            verb: verb.clone(),
                            group: group.clone(),
                            resource: resource.clone(),
                            name: name.clone(),
                            namespace: namespace.to_owned(),
                        }));
                    }
                }
            }
        }
    }
    rights
}

/// What is needed of the roles that every cluster has and these objects bind.
#[must_use]
pub fn borrowed(objects: &[Value]) -> Vec<Right> {
    let right = |verb: &str, group: &str, resource: &str, name: &str, namespace: &str| Right {
        verb: verb.to_owned(),
        group: group.to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        namespace: namespace.to_owned(),
    };
    let roles = objects
        .iter()
        .filter_map(|object| object["roleRef"]["name"].as_str());
    roles
        .flat_map(|role| match role {
            "system:auth-delegator" => vec![
                right("create", "authentication.k8s.io", "tokenreviews", "", ""),
                right("create", "authorization.k8s.io", "subjectaccessreviews", "", ""),
            ],
            name @ "extension-apiserver-authentication-reader" => {
                let object = name.trim_end_matches("-reader");
                ["get", "list", "watch"]
                    .map(|verb| right(verb, "", "configmaps", object, "kube-system"))
                    .into()
            }
            _ => Vec::new(),
        })
        .collect()
}

async fn is_granted(client: &Client, right: &Right) -> bool {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (right.resource.as_str(), None),
    };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(USER.to_owned()),
            resource_attributes: Some(ResourceAttributes {
                verb: some(&right.verb),
                group: some(&right.group),
                resource: some(resource),
                subresource,
                name: some(&right.name),
                namespace: some(&right.namespace),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = Api::<SubjectAccessReview>::all(client.clone())
        .create(&PostParams::default(), &review)
        .await;
    answer.is_ok_and(|answer| answer.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn request(verb: &str, uri: &str, resource: &str, subresource: &str, name: &str) -> AuditEntry {
        AuditEntry {
            verb: verb.to_owned(),
            uri: uri.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            name: name.to_owned(),
            ..AuditEntry::default()
        }
    }

    #[test]
    fn a_right_covers_what_it_names_and_nothing_beside_it() {
        let role = "kind: ClusterRole\nrules:\n- {apiGroups: [''], resources: [nodes/status], verbs: [patch]}\n\
                    ---\nkind: Role\nrules:\n- {apiGroups: [a.b], resources: [leases], resourceNames: [x], verbs: [get]}\n";
        let rights: Vec<_> = rights(&parse(role).unwrap()).into_iter().collect();
        let shown: Vec<_> = rights.iter().map(Right::to_string).collect();
        assert_eq!(shown, ["get leases x", "patch nodes/status"]);
        let [get, patch] = rights.as_slice() else {
            panic!("{rights:?}")
        };
        assert!(patch.covers(&request(
            "patch",
            "/api/v1/nodes/n/status",
            "nodes",
            "status",
            "n"
        )));
        assert!(!patch.covers(&request("patch", "/api/v1/nodes/n", "nodes", "", "n")));
        assert!(get.covers(&request("get", "/apis/a.b/v1/leases/x", "leases", "", "x")));
        assert!(!get.covers(&request("get", "/apis/a.b/v1/leases/y", "leases", "", "y")));
        assert!(!get.covers(&request("get", "/apis/c/v1/leases/x", "leases", "", "x")));
    }
}
