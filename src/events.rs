//! The objects that Events refer to.

use k8s_openapi::api::core::v1::ObjectReference;

use crate::config::ElectionConfig;

/// The source of the Events about the process.
pub(crate) const COMPONENT: &str = "cloud-controller-manager";

/// A reference to an object that was not read.
pub(crate) fn reference(
    api_version: &str,
    kind: &str,
    namespace: Option<String>,
    name: String,
    uid: Option<String>,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace,
        name: Some(name),
        uid,
        ..ObjectReference::default()
    }
}

/// The object of Events about the process: its Pod if the manifest names it (`POD_NAME`, `POD_NAMESPACE` and optionally
/// `POD_UID` from the downward API), else the Lease that all replicas share.
pub(crate) fn process_object(
    election: Option<&ElectionConfig>,
    variable: impl Fn(&str) -> Option<String>,
) -> ObjectReference {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let (Some(name), Some(namespace)) = (variable("POD_NAME"), variable("POD_NAMESPACE")) {
        return reference("v1", "Pod", Some(namespace), name, variable("POD_UID"));
    }
    let (namespace, name) = match election {
        Some(lease) => (lease.namespace.clone(), lease.name.clone()),
        None => ("kube-system".to_owned(), COMPONENT.to_owned()),
    };
    reference("coordination.k8s.io/v1", "Lease", Some(namespace), name, None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_are_about_the_pod_or_the_lease() {
        let variables = |name: &str| match name {
            "POD_NAME" => Some("ccm-x1".to_owned()),
            "POD_NAMESPACE" => Some("cloud".to_owned()),
            _ => None,
        };
        let pod = process_object(None, variables);
        let of = |object: &ObjectReference| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            [text(&object.kind), text(&object.namespace), text(&object.name)]
        };
        assert_eq!(of(&pod), ["Pod", "cloud", "ccm-x1"]);
        let lease = process_object(None, |name| (name == "POD_NAME").then(|| "ccm-x1".to_owned()));
        assert_eq!(of(&lease), ["Lease", "kube-system", "cloud-controller-manager"]);
        let election = ElectionConfig {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            name: "other".to_owned(),
            namespace: "ours".to_owned(),
            migration: None,
        };
        let lease = process_object(Some(&election), |_| Some(String::new()));
        assert_eq!(of(&lease), ["Lease", "ours", "other"]);
    }
}
