//! Annotations that upstream does not read, on load balancers that it created.
//!
//! A Service may carry such an annotation for years without an effect. On load balancers that this program creates, they work.
//! On others they have no effect while their value is the one that they had when this program took over:
//!
//! 1. Until the first write, that is the value that this process observed first.
//! 2. With the first write, a tag beside the ownership tag records the values that did not change since then.
//! 3. From then on the record counts, whoever leads. A value that was seen to be another one leaves it for good.
//! 4. If the tags cannot be read, the value that this process observed first counts.
//!
//! A load balancer with the ownership tag and without a record was created by this program, or by a release of it that obeyed
//! all annotations.

use std::sync::Arc;

use ccm_core::load_balancer::{AnnotationRecord, Blocked, OwnershipTag, ServiceId, ServiceView};

use super::{
    annotations as a,
    desired::has_owner_tag,
    fields,
    kinds::{Object, ObjectKind, RECORD_TAG, tag_map},
    spec::PROXY_PROTOCOL_FIX,
};

/// The annotations that this program reads for a network load balancer, and upstream does not.
const UNREAD_FOR_NETWORK: &[&str] = &[
    a::SCHEME,
    a::IP_ADDRESS_TYPE,
    a::ALPN_POLICY,
    a::ATTRIBUTES,
    a::CHECK_CODES,
    a::CHECK_TIMEOUT,
    a::PROXY_PROTOCOL,
];
/// The same for a classic load balancer.
const UNREAD_FOR_CLASSIC: &[&str] = &[a::SCHEME];

/// The annotations of a Service, with their values, that this program reads for a load balancer of this kind and the Go cloud
/// controller does not.
fn unread(service: &ServiceView, kind: ObjectKind) -> impl Iterator<Item = (&'static str, &str)> {
    let keys = match kind {
        ObjectKind::Classic => UNREAD_FOR_CLASSIC,
        _ => UNREAD_FOR_NETWORK,
    };
    let unread = keys.iter().filter_map(|key| Some((*key, service.annotation(key)?)));
    // Upstream sends a list as the name of one certificate, which AWS refuses.
    let list = service
        .annotation(a::CERTIFICATES)
        .filter(|value| value.contains(','))
        .map(|value| (a::CERTIFICATES, value));
    unread.chain(list)
}

/// A Service as this process observed it first, and what happened to it since then.
#[derive(Clone, Debug)]
pub(crate) struct FirstObserved {
    /// The Service. Changes that request nothing are included.
    pub(crate) service: Arc<ServiceView>,
    /// Whether it changed.
    pub(crate) changed: bool,
    /// The annotations that upstream does not read and that did not change.
    pub(crate) unchanged: AnnotationRecord,
}

impl FirstObserved {
    /// A Service that is observed for the first time.
    pub(crate) fn new(service: &Arc<ServiceView>) -> Self {
        Self {
            service: Arc::clone(service),
            changed: false,
            unchanged: AnnotationRecord::of(unread(service, ObjectKind::Balancer)),
        }
    }

    /// Compares the Service with the one that was observed first.
    pub(crate) fn observe(&mut self, service: &ServiceView) {
        // No label changes the load balancer, and no annotation of another program.
        if !self.service.asks_the_same(service)
            && read_annotations(&self.service).eq(read_annotations(service))
        {
            let first = Arc::make_mut(&mut self.service);
            first.labels.clone_from(&service.labels);
            first.annotations.clone_from(&service.annotations);
        }
        self.changed = self.changed || !self.service.asks_the_same(service);
        let now = AnnotationRecord::of(unread(service, ObjectKind::Balancer));
        self.unchanged = self.unchanged.intersection(&now);
    }
}

/// The annotations that upstream or this program may read.
fn read_annotations(service: &ServiceView) -> impl Iterator<Item = (&str, &str)> {
    let annotations = service.annotations.iter();
    annotations.filter(|(key, _)| key.starts_with("service.beta.kubernetes.io/"))
}

/// A Service beside a load balancer that exists.
#[derive(Debug)]
pub(crate) struct Adoption {
    /// The Service without the annotations that have no effect.
    pub(crate) service: Arc<ServiceView>,
    /// The annotations that have no effect, with their values.
    pub(crate) without_effect: Vec<(&'static str, String)>,
    /// The text of the tag with the record; `None`: the load balancer needs no such tag.
    pub(crate) record: Option<String>,
}

impl Adoption {
    /// The Service beside this load balancer, if it exists. `first`: the Service as this process observed it first.
    pub(crate) fn new(
        service: &Arc<ServiceView>,
        existing: Option<&Object>,
        first: Option<&FirstObserved>,
        tag: &OwnershipTag,
    ) -> Self {
        let mut adoption = Self {
            service: Arc::clone(service),
            without_effect: Vec::new(),
            record: None,
        };
        let Some(existing) = existing.filter(|existing| existing.foreign.is_none()) else {
            return adoption;
        };
        let recorded = tag_map(existing).remove(RECORD_TAG);
        let unchanged = match &recorded {
            Some(text) => AnnotationRecord::parse(text),
            None if has_owner_tag(existing, tag) => return adoption,
            None => AnnotationRecord::of(unread(service, existing.kind)),
        };
        let unchanged = match first {
            Some(first) => unchanged.intersection(&first.unchanged),
            None => unchanged,
        };
        let unchanged: Vec<_> = unread(service, existing.kind)
            .filter(|(key, value)| unchanged.contains(key, value))
            .collect();
        let record = AnnotationRecord::of(unchanged.iter().copied());
        if recorded.is_some() || !record.is_empty() {
            adoption.record = Some(record.to_string());
        }
        let without_effect = unchanged.into_iter().filter(|(key, value)| match *key {
            // Nothing is left to change if the load balancer is as they say.
            a::SCHEME => existing.text(fields::SCHEME) != *value,
            a::IP_ADDRESS_TYPE => existing.text(fields::IP_ADDRESS_TYPE) != *value,
            _ => true,
        });
        adoption.without_effect = without_effect.map(|(key, value)| (key, value.to_owned())).collect();
        if !adoption.without_effect.is_empty() {
            adoption.remove_annotations();
        }
        adoption
    }

    /// Removes the annotations that have no effect from the Service. Of a list of certificates, the first one stays.
    fn remove_annotations(&mut self) {
        let without_effect = &self.without_effect;
        let annotations = self.service.annotations.iter().filter_map(|(key, value)| {
            let is_without = without_effect.iter().any(|(without, _)| *without == key);
            match key {
                _ if !is_without => Some((key, value)),
                a::CERTIFICATES => value
                    .split(',')
                    .map(str::trim)
                    .find(|certificate| !certificate.is_empty())
                    .map(|certificate| (key, certificate)),
                _ => None,
            }
        });
        let annotations = annotations.collect();
        Arc::make_mut(&mut self.service).annotations = annotations;
    }

    /// Whether this annotation has no effect.
    pub(crate) fn is_without_effect(&self, key: &str) -> bool {
        self.without_effect.iter().any(|(without, _)| *without == key)
    }
}

/// The Warning about an annotation without an effect, and the line of `plan`.
pub(super) fn warning(service: Option<&ServiceId>, key: &str, value: &str) -> Blocked {
    let fix = match key {
        a::PROXY_PROTOCOL => PROXY_PROTOCOL_FIX.to_owned(),
        _ => format!("to apply {value:?}, remove the annotation and set it again"),
    };
    Blocked {
        service: service.cloned(),
        field: format!("annotation {key}"),
        observed: format!(
            "it has no effect, because the Go cloud-controller-manager created the load balancer and does not read it; {fix}"
        ),
        desired: Blocked::UNCHANGED.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ccm_core::{load_balancer::ClusterTag, testkit::cluster as testkit};

    use super::*;
    use crate::{
        config::LoadBalancing,
        load_balancer::{
            kinds::{OWNER_TAG, SetEntry, TAGS},
            spec::{Flavor, Spec},
        },
    };

    const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";

    /// All annotations: a value, and whether upstream reads it for a network and for a classic load balancer.
    const READ_BY_UPSTREAM: [(&str, &str, bool, bool); 36] = [
        (a::TYPE, "nlb", true, true),
        (a::INTERNAL, "true", true, true),
        (a::SCHEME, "internal", false, false),
        (a::TARGET_TYPE, "instance", false, false),
        (a::IP_ADDRESS_TYPE, "dualstack", false, false),
        (a::SUBNETS, "subnet-1", true, true),
        (a::EIP_ALLOCATIONS, "eipalloc-1", true, false),
        (a::PRIVATE_ADDRESSES, "10.0.0.1", true, false),
        (a::SECURITY_GROUPS, "sg-1", true, true),
        (a::EXTRA_SECURITY_GROUPS, "sg-1", true, true),
        (a::TAGS, "a=b", true, true),
        (a::NODE_LABELS, "a=b", true, true),
        (a::CERTIFICATES, "arn:2", true, true),
        (a::SSL_PORTS, "80", true, true),
        (a::SSL_POLICY, "strict", true, true),
        (a::ALPN_POLICY, "HTTP2Only", false, false),
        (a::BACKEND_PROTOCOL, "ssl", true, true),
        (a::CROSS_ZONE, "true", true, true),
        (a::ACCESS_LOG, "false", true, true),
        (a::ACCESS_LOG_BUCKET, "b", true, true),
        (a::ACCESS_LOG_PREFIX, "p", true, true),
        (a::ACCESS_LOG_INTERVAL, "5", false, true),
        (a::ATTRIBUTES, "deletion_protection.enabled=true", false, false),
        (a::TARGET_GROUP_ATTRIBUTES, "proxy_protocol_v2.enabled=true", true, true),
        (a::PROXY_PROTOCOL, "*", false, true),
        (a::DRAINING, "false", false, true),
        (a::DRAINING_TIMEOUT, "60", false, true),
        (a::IDLE_TIMEOUT, "300", false, true),
        (a::CHECK_PROTOCOL, "tcp", true, true),
        (a::CHECK_PORT, "81", true, true),
        (a::CHECK_PATH, "/x", true, true),
        (a::CHECK_CODES, "200", false, false),
        (a::CHECK_HEALTHY, "5", true, true),
        (a::CHECK_UNHEALTHY, "5", true, true),
        // It is parsed, and not sent for a network load balancer.
        (a::CHECK_TIMEOUT, "7", false, true),
        (a::CHECK_INTERVAL, "20", true, true),
    ];

    fn service(annotations: &str) -> Arc<ServiceView> {
        let mut service = testkit::service("web", &[443]);
        testkit::annotate_all(&mut service, PREFIX, annotations);
        Arc::new(service)
    }

    fn tag() -> OwnershipTag {
        OwnershipTag::Known(ClusterTag::of("1"))
    }

    /// A load balancer with the ownership tag and this record, or without both.
    fn balancer(kind: ObjectKind, record: Option<Option<&str>>) -> Object {
        let mut tags = Vec::new();
        if let Some(record) = record {
            tags.push(SetEntry::tag(OWNER_TAG, ClusterTag::of("1").as_str()));
            tags.extend(record.map(|record| SetEntry::tag(RECORD_TAG, record)));
        }
        let balancer = Object::new(kind, "a").entries(TAGS, tags);
        let balancer = balancer.with(fields::SCHEME, "internet-facing");
        balancer.with(fields::IP_ADDRESS_TYPE, "ipv4")
    }

    /// Whether this program obeys an annotation. Everything that other annotations need is set.
    fn is_obeyed(key: &str, value: &str, flavor: Flavor) -> bool {
        if [a::TYPE, a::NODE_LABELS].contains(&key) {
            return true;
        }
        let settings = LoadBalancing {
            managed_security_groups: true,
            ..LoadBalancing::default()
        };
        let mut base = "ssl-cert=arn:1; healthcheck-protocol=http; access-log-enabled=true; \
            connection-draining-enabled=true"
            .to_owned();
        if key == a::EXTRA_SECURITY_GROUPS {
            base += "; security-groups=sg-2";
        }
        let mut without = (*service(&base)).clone();
        let mut with = without.clone();
        testkit::annotate(&mut with, key, Some(value));
        if key != a::CERTIFICATES && key != a::ACCESS_LOG && key != a::DRAINING && key != a::CHECK_PROTOCOL {
            testkit::annotate(&mut without, key, None);
        }
        let read = |service: &ServiceView| Spec {
            ignored: Vec::new(),
            ..Spec::read(service, &settings, flavor)
        };
        read(&with) != read(&without)
    }

    #[test]
    fn every_annotation_is_read_by_upstream_or_waits_until_its_value_changes() {
        let all: Vec<_> = a::TABLE.entries.iter().map(|entry| entry.name).collect();
        assert_eq!(READ_BY_UPSTREAM.map(|(key, ..)| key).to_vec(), all);
        for (key, value, network, classic) in READ_BY_UPSTREAM {
            for (flavor, unread, is_read) in [
                (Flavor::Network, UNREAD_FOR_NETWORK, network),
                (Flavor::Classic, UNREAD_FOR_CLASSIC, classic),
            ] {
                // The first one only causes a Warning.
                let has_effect =
                    is_obeyed(key, value, flavor) || (key, flavor) == (a::PROXY_PROTOCOL, Flavor::Network);
                let waits = has_effect && !is_read;
                assert_eq!(unread.contains(&key), waits, "{key} {flavor:?}");
            }
        }
        for kind in [ObjectKind::Balancer, ObjectKind::Classic] {
            let named = |annotations: &str| -> Vec<_> {
                let service = service(annotations);
                unread(&service, kind).map(|(key, _)| key).collect()
            };
            assert_eq!(named("ssl-cert=arn:1"), [""; 0]);
            assert_eq!(named("ssl-cert=arn:1,arn:2"), [a::CERTIFICATES]);
        }
    }

    /// The annotations that stay, those without an effect, and the record.
    fn adopt(now: &str, first: &str, existing: &Object) -> (String, String, Option<String>) {
        let (now, first) = (service(now), service(first));
        let mut observed = FirstObserved::new(&first);
        observed.observe(&now);
        let adoption = Adoption::new(&now, Some(existing), Some(&observed), &tag());
        let short = |text: &str| text.trim_start_matches(PREFIX).to_owned();
        let stay = adoption.service.annotations.iter();
        let stay: Vec<_> = stay.map(|(key, value)| format!("{}={value}", short(key))).collect();
        let without = adoption.without_effect.iter().map(|(key, _)| short(key));
        let without: Vec<_> = without.collect();
        (stay.join("; "), without.join("; "), adoption.record)
    }

    fn record_of(annotations: &str) -> String {
        AnnotationRecord::of(unread(&service(annotations), ObjectKind::Balancer)).to_string()
    }

    #[test]
    fn a_value_has_no_effect_until_it_changes() {
        let foreign = balancer(ObjectKind::Balancer, None);
        let alpn = "alpn-policy=HTTP2Only";
        let (stay, without, record) = adopt(alpn, alpn, &foreign);
        assert_eq!((&*stay, &*without), ("", "alpn-policy"));
        let record = record.unwrap();
        assert_eq!(record, record_of(alpn));
        // After a restart, with the ownership tag.
        let adopted = balancer(ObjectKind::Balancer, Some(Some(&record)));
        assert_eq!(adopt(alpn, alpn, &adopted).1, "alpn-policy");
        // Changed while this process runs, before and after the first write, and while nobody led after it.
        let changed = "alpn-policy=None";
        for (first, existing, expected) in [
            (alpn, &foreign, None),
            (alpn, &adopted, Some("")),
            (changed, &adopted, Some("")),
        ] {
            let (stay, without, record) = adopt(changed, first, existing);
            assert_eq!((&*stay, &*without), (changed, ""), "{first}");
            assert_eq!(record.as_deref(), expected, "{first}");
        }
        // Changed while nobody led, before the first write.
        assert_eq!(adopt(changed, changed, &foreign).1, "alpn-policy");
        // A second annotation keeps its own entry.
        let two = "alpn-policy=None; healthcheck-success-codes=200";
        let record = record_of("alpn-policy=HTTP2Only; healthcheck-success-codes=200");
        let (stay, without, record) = adopt(two, two, &balancer(ObjectKind::Balancer, Some(Some(&record))));
        assert_eq!((&*stay, &*without), (changed, "healthcheck-success-codes"));
        assert_eq!(record.unwrap(), record_of("healthcheck-success-codes=200"));
    }

    #[test]
    fn a_value_that_is_set_again_has_an_effect() {
        let (value, none) = (service("alpn-policy=None"), service(""));
        let mut first = FirstObserved::new(&value);
        for existing in [
            balancer(ObjectKind::Balancer, None),
            balancer(ObjectKind::Balancer, Some(Some(&record_of("alpn-policy=None")))),
        ] {
            first.observe(&none);
            first.observe(&value);
            let adoption = Adoption::new(&value, Some(&existing), Some(&first), &tag());
            assert_eq!(adoption.without_effect, []);
        }
    }

    #[test]
    fn annotations_work_on_load_balancers_of_this_program() {
        let all = "alpn-policy=None; scheme=internal; ssl-cert=a,b";
        for existing in [
            balancer(ObjectKind::Balancer, Some(None)),
            balancer(ObjectKind::Classic, Some(None)),
        ] {
            let (_, without, record) = adopt(all, all, &existing);
            assert_eq!((&*without, record), ("", None));
        }
        let service = service(all);
        let new = Adoption::new(&service, None, None, &tag());
        assert_eq!((new.service, new.record), (service, None));
    }

    #[test]
    fn of_several_certificates_the_first_one_stays() {
        let existing = balancer(ObjectKind::Classic, None);
        let (stay, without, _) = adopt("ssl-cert= a, b; alpn-policy=None", "ssl-cert= a, b", &existing);
        assert_eq!((&*stay, &*without), ("alpn-policy=None; ssl-cert=a", "ssl-cert"));
    }

    #[test]
    fn what_the_load_balancer_already_is_needs_no_warning() {
        let existing = balancer(ObjectKind::Balancer, None);
        let fulfilled = "ip-address-type=ipv4; scheme=internet-facing";
        assert_eq!(adopt(fulfilled, fulfilled, &existing).1, "");
        let other = "ip-address-type=dualstack; scheme=internal";
        assert_eq!(adopt(other, other, &existing).1, "scheme; ip-address-type");
    }
}
