//! Reads and applies the manifests of `deploy/`, and lists the permissions that they grant.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cache;
use crate::controlplane::{AuditEntry, ControlPlane};
use crate::helm;
use crate::observe::eventually;

/// The account of the program in every manifest, in `kube-system`.
pub const ACCOUNT: &str = "cloud-controller-manager";

/// The account as the API server names it.
pub const USER: &str = "system:serviceaccount:kube-system:cloud-controller-manager";

/// Time limit until new roles take effect in the API server.
const LIMIT: Duration = Duration::from_secs(30);

/// A file below `deploy/` of this repository.
#[must_use]
pub fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

/// The objects of a file, in their order.
///
/// # Errors
/// When the file cannot be read, or is not valid YAML.
pub fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is not valid YAML", path.display()))
}

/// The objects of a YAML text, in their order.
///
/// # Errors
/// When the text is not valid YAML.
pub fn parse(text: &str) -> Result<Vec<Value>> {
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(text)?;
    objects.retain(|object| !object.is_null());
    Ok(objects)
}

/// The objects of folders below `deploy/`, with components added, as kustomize builds them: each path is relative to `deploy/`.
/// Files that users must provide are added.
///
/// # Errors
/// When kustomize refuses it.
pub fn build(resources: &[&str], components: &[&str]) -> Result<Vec<Value>> {
    let folder = tempfile::tempdir()?;
    let deploy = folder.path().join("deploy");
    copy_folder(&shipped(""), &deploy)?;
    fs::copy(shipped("openstack/cloud.conf.example"), deploy.join("secret/cloud.conf"))?;
    fs::write(deploy.join("ca-bundle/ca.crt"), "a certificate\n")?;
    fs::write(deploy.join("digitalocean/access-token"), "a token\n")?;
    let list = |paths: &[&str]| -> Vec<_> { paths.iter().map(|path| format!("../{path}")).collect() };
    let mut kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(resources),
        "components": list(components),
    });
    // Same as components in the folder's own kustomization.
    for resource in resources {
        let own = read(&deploy.join(resource).join("kustomization.yaml"))?;
        let namespace = own.first().and_then(|own| own["namespace"].as_str());
        if let Some(namespace) = namespace {
            kustomization["namespace"] = json!(namespace);
        }
    }
    fs::create_dir(deploy.join("built"))?;
    fs::write(deploy.join("built/kustomization.yaml"), kustomization.to_string())?;
    parse(&helm::kustomize(&deploy.join("built"))?)
}

/// Copies a folder recursively.
///
/// # Errors
/// When a file cannot be read or written.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    cache::make_dir(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_folder(&path, &target)?;
        } else {
            // Not `fs::copy`, which copies the read-only permission.
            fs::write(&target, fs::read(&path)?)
                .with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}

/// Applies an object, or validates it with a dry run. Unknown fields are errors in both cases.
///
/// # Errors
/// When the API server refuses it.
pub async fn apply(client: &Client, object: &Value, dry_run: bool) -> Result<DynamicObject> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let name = text(&object["metadata"]["name"]);
    let what = format!("{kind} {name}");
    ensure!(!kind.is_empty() && !name.is_empty(), "an object without kind or name: {object}");
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
        .with_context(|| format!("the API server refused {what}"))
}

/// Applies a ClusterRole with these rules.
///
/// # Errors
/// When the API server refuses it.
pub async fn cluster_role(client: &Client, name: &str, rules: &Value) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    });
    apply(client, &role, false).await.map(drop)
}

/// Binds a ClusterRole to an account.
///
/// # Errors
/// When the API server refuses the binding.
pub async fn bind(client: &Client, namespace: &str, account: &str, role: &str) -> Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": format!("{account}-{role}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
    });
    apply(client, &binding, false).await.map(drop)
}

/// Applies the account and the roles of a file, waits until they take effect, and returns a kubeconfig of the account.
///
/// # Errors
/// When the API server refuses an object, or the permissions do not take effect in time.
pub async fn account(control_plane: &ControlPlane, file: &Path) -> Result<PathBuf> {
    account_with(control_plane, &read(file)?).await
}

/// The same for these objects.
///
/// # Errors
/// When the API server refuses an object, or the permissions do not take effect in time.
pub async fn account_with(control_plane: &ControlPlane, objects: &[Value]) -> Result<PathBuf> {
    let client = control_plane.client().await?;
    for object in objects {
        apply(&client, object, false).await?;
    }
    granted(control_plane, objects, "kube-system", ACCOUNT).await
}

/// Waits until the applied roles among these objects take effect for one account, and returns a kubeconfig of the account.
///
/// # Errors
/// When the permissions do not take effect in time.
pub async fn granted(
    control_plane: &ControlPlane,
    objects: &[Value],
    namespace: &str,
    name: &str,
) -> Result<PathBuf> {
    let client = control_plane.client().await?;
    let user = format!("system:serviceaccount:{namespace}:{name}");
    for right in rights(objects).into_iter().chain(borrowed(objects)) {
        let granted =
            eventually(LIMIT, async || is_granted(&client, &user, &right).await.then_some(())).await;
        granted.with_context(|| format!("{user} does not have the permission {right}"))?;
    }
    control_plane.service_account_kubeconfig(namespace, name).await
}

/// Installs CustomResourceDefinitions of the Prometheus Operator's kinds without schemas.
///
/// # Errors
/// When they are not served in time.
pub async fn accept_monitoring(client: &Client) -> Result<()> {
    const GROUP: &str = "monitoring.coreos.com";
    for kind in ["PodMonitor", "PrometheusRule", "ServiceMonitor"] {
        let singular = kind.to_lowercase();
        let plural = format!("{singular}s");
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{GROUP}")},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": singular},
                "versions": [{
                    "name": "v1",
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        });
        apply(client, &definition, false).await?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1", kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
        let served = eventually(LIMIT, async || api.list(&ListParams::default()).await.ok()).await;
        served.with_context(|| format!("{kind} is not served"))?;
    }
    Ok(())
}

/// One permission that a role grants.
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
    /// Whether the request needs this permission.
    #[must_use]
    pub fn covers(&self, request: &AuditEntry) -> bool {
        let fits = |expected: &str, found: &str| expected.is_empty() || expected == found;
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

/// All permissions that the roles among these objects grant.
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

/// The required permissions of the predefined roles that these objects bind.
#[must_use]
pub fn borrowed(objects: &[Value]) -> Vec<Right> {
    let right = |verb: &str, group: &str, resource: &str, name: &str, namespace: &str| Right {
        verb: verb.to_owned(),
        group: group.to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        namespace: namespace.to_owned(),
    };
    let roles = objects.iter().filter_map(|object| object["roleRef"]["name"].as_str());
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

async fn is_granted(client: &Client, user: &str, right: &Right) -> bool {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (right.resource.as_str(), None),
    };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
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
    fn a_permission_covers_only_its_own_requests() {
        let role = "kind: ClusterRole\nrules:\n- {apiGroups: [''], resources: [nodes/status], verbs: [patch]}\n\
                    ---\nkind: Role\nrules:\n- {apiGroups: [a.b], resources: [leases], resourceNames: [x], verbs: [get]}\n";
        let rights: Vec<_> = rights(&parse(role).unwrap()).into_iter().collect();
        let shown: Vec<_> = rights.iter().map(Right::to_string).collect();
        assert_eq!(shown, ["get leases x", "patch nodes/status"]);
        let [get, patch] = rights.as_slice() else {
            panic!("{rights:?}")
        };
        assert!(patch.covers(&request("patch", "/api/v1/nodes/n/status", "nodes", "status", "n")));
        assert!(!patch.covers(&request("patch", "/api/v1/nodes/n", "nodes", "", "n")));
        assert!(get.covers(&request("get", "/apis/a.b/v1/leases/x", "leases", "", "x")));
        assert!(!get.covers(&request("get", "/apis/a.b/v1/leases/y", "leases", "", "y")));
        assert!(!get.covers(&request("get", "/apis/c/v1/leases/x", "leases", "", "x")));
    }
}
