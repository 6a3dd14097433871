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
    #![allow(clippy::unwrap_used)]

    use std::{sync::Arc, time::Duration};

    use ccm_core::controllers::{
        EventType,
        events::{EventMetrics, Writer},
    };
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::api::answering;

    /// Publishes 1,000 equal events and then a Warning. Returns the reasons in the order of the requests.
    async fn posted(objects: usize) -> (Vec<String>, String) {
        let posted: Arc<Mutex<Vec<String>>> = Arc::default();
        let reasons = Arc::clone(&posted);
        let client = answering::client(move |request| {
            let reasons = Arc::clone(&reasons);
            async move {
                assert_eq!(request.method(), http::Method::POST);
                let body = request.into_body().collect_bytes().await.unwrap();
                let event: Value = serde_json::from_slice(&body).unwrap();
                reasons.lock().push(event["reason"].as_str().unwrap().to_owned());
                (201, event)
            }
        });
        let mut registry = prometheus_client::registry::Registry::default();
        let writer = Writer::new(client, &EventMetrics::register(&mut registry));
        let recorder = writer.recorder(COMPONENT);
        let service = |number| {
            let name = format!("web-{number}");
            reference("v1", "Service", Some("shop".to_owned()), name, None)
        };
        for event in 0..1000 {
            let text = "Updated load balancer with new hosts";
            let object = service(event % objects);
            recorder.publish(object, EventType::Normal, "UpdatedLoadBalancer", text);
        }
        let text = "Error syncing load balancer: it is down";
        recorder.publish(service(0), EventType::Warning, "SyncLoadBalancerFailed", text);
        drop(recorder);
        writer.run().await;
        let mut metrics = String::new();
        prometheus_client::encoding::text::encode(&mut metrics, &registry).unwrap();
        let posted = posted.lock().clone();
        (posted, metrics)
    }

    #[tokio::test]
    async fn equal_events_are_limited_and_a_warning_after_them_arrives() {
        let (posted, metrics) = posted(1).await;
        let warnings = posted.iter().filter(|reason| *reason == "SyncLoadBalancerFailed");
        assert_eq!((posted.len(), warnings.count()), (26, 1));
        for count in [
            "ccm_events_total{result=\"suppressed\"} 975",
            "ccm_events_total{result=\"written\"} 26",
        ] {
            assert!(metrics.contains(count), "{count}: {metrics}");
        }
    }

    #[tokio::test]
    async fn a_warning_is_written_before_events_that_wait() {
        let (posted, _) = posted(100).await;
        assert_eq!(posted.len(), 1001);
        // So many are written at the same time.
        let first = posted.iter().take(16);
        assert!(first.into_iter().any(|reason| reason == "SyncLoadBalancerFailed"));
    }

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
