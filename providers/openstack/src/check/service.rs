//! What is wrong with a Service, by the rules that load balancers themselves go by.

use std::collections::BTreeMap;

use ccm_core::{
    check::{Field, ServiceFinding, Severity},
    config::suggest,
    load_balancer::{ClusterView, ServiceView},
};

use crate::{
    config::LoadBalancing,
    load_balancer::{
        annotations::{self as note, Refused, Tolerated},
        desired::Inputs,
        features::Capabilities,
        notes,
        protocols::METHODS,
        secrets::SecretRef,
        subnets::SubnetFilter,
        tags,
        wanted::Wanted,
    },
};

/// Whose annotations all bear these. What is not known of them is a slip of the finger.
const PREFIXES: [&str; 2] = [
    "loadbalancer.openstack.org/",
    "service.beta.kubernetes.io/openstack-",
];

/// All there is to say of a Service of type LoadBalancer.
pub(super) fn findings(
    settings: &LoadBalancing,
    can: Capabilities,
    service: &ServiceView,
) -> Vec<ServiceFinding> {
    if !settings.conf.enabled {
        return vec![ServiceFinding {
            severity: Severity::Warning,
            field: Field::Spec("type"),
            message: "load balancers are switched off in the config, nobody serves it".to_owned(),
            fix: "write enabled = true under [LoadBalancer]".to_owned(),
        }];
    }
    let (wanted, refused) = Wanted::examine(service, settings, Some(can));
    let mut all: Vec<_> = refused
        .into_iter()
        .map(|refused| of_refused(settings, refused))
        .collect();
    all.extend(wanted.tolerated.iter().map(of_tolerated));
    all.extend(later(settings, service, &wanted));
    all.extend(unknown(service));
    all.extend(noted(settings, can, service, wanted));
    all
}

fn of_refused(settings: &LoadBalancing, refused: Refused) -> ServiceFinding {
    let Refused { field, what } = refused;
    let classes: Vec<_> = settings.classes.keys().map(String::as_str).collect();
    let fix = if field == note::field(note::CLASS) && !classes.is_empty() {
        format!("write one of: {}", classes.join(", "))
    } else {
        takes(&field)
    };
    let named = [format!("annotation {field}: "), format!("{field}: ")];
    let bare = named.iter().find_map(|name| what.strip_prefix(name.as_str()));
    ServiceFinding {
        severity: Severity::Error,
        fix,
        message: bare.unwrap_or(&what).to_owned(),
        field,
    }
}

fn of_tolerated(tolerated: &Tolerated) -> ServiceFinding {
    let field = note::field(tolerated.key);
    ServiceFinding {
        severity: Severity::Warning,
        message: tolerated.problem.clone(),
        fix: takes(&field),
        field,
    }
}

/// What an annotation takes; nothing for other fields.
fn takes(field: &Field) -> String {
    let Field::Annotation(key) = field else {
        return String::new();
    };
    let known = note::ALL.iter().find(|(name, ..)| name == key);
    known.map_or_else(String::new, |(_, kind, doc)| {
        format!("takes: {kind}. {}", doc.trim())
    })
}

fn error(field: Field, message: impl Into<String>) -> ServiceFinding {
    ServiceFinding {
        severity: Severity::Error,
        fix: takes(&field),
        message: message.into(),
        field,
    }
}

/// What is refused only when the load balancer is made.
fn later(settings: &LoadBalancing, service: &ServiceView, wanted: &Wanted) -> Vec<ServiceFinding> {
    let mut all = Vec::new();
    // The config's own method is the config's own problem, and so for the others.
    let own = |key| service.annotation(key).is_some();
    if own(note::LB_METHOD) && !METHODS.contains(&wanted.method.as_str()) {
        all.push(error(
            note::field(note::LB_METHOD),
            notes::unknown_method(&wanted.method),
        ));
    }
    if own(note::TLS_CONTAINER_REF)
        && !wanted.tls.is_empty()
        && settings.conf.container_store == "barbican"
        && let Err(wrong) = SecretRef::parse(&wanted.tls)
    {
        all.push(error(note::field(note::TLS_CONTAINER_REF), wrong.message()));
    }
    if own(note::FLOATING_SUBNET)
        && let Err(wrong) = SubnetFilter::parse(&wanted.source.pattern, &wanted.source.tags)
    {
        all.push(error(note::field(note::FLOATING_SUBNET), wrong.message()));
    }
    let address = &*service.load_balancer_ip;
    if !address.is_empty() && address.parse::<std::net::IpAddr>().is_err() {
        all.push(ServiceFinding {
            severity: Severity::Error,
            field: Field::Spec("loadBalancerIP"),
            message: format!("{address:?} is no IP address"),
            fix: "write an address such as 203.0.113.7, or nothing".to_owned(),
        });
    }
    all
}

/// Annotations that look like ours and are none.
fn unknown(service: &ServiceView) -> Vec<ServiceFinding> {
    let is_known = |key: &str| note::ALL.iter().any(|(name, ..)| *name == key);
    let ours = |key: &str| PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    let keys = service.annotations.iter().map(|(key, _)| key);
    let keys = keys.filter(|key| ours(key) && !is_known(key));
    // All of them are alike up to the slash.
    let by_end: BTreeMap<&str, &str> = note::ALL
        .iter()
        .filter_map(|(name, ..)| Some((name.rsplit_once('/')?.1, *name)))
        .collect();
    keys.map(|key| {
        let end = key.rsplit_once('/').map_or(key, |(_, end)| end);
        let near = suggest::nearest(end, by_end.keys().copied()).and_then(|end| by_end.get(end));
        ServiceFinding {
            severity: Severity::Warning,
            field: note::field(key),
            message: "no such annotation, it has no effect".to_owned(),
            fix: near.map_or_else(
                || "docs/reference/openstack.md lists all annotations".to_owned(),
                |near| format!("did you mean {near}?"),
            ),
        }
    })
    .collect()
}

/// What Events would say of it once it is served.
fn noted(
    settings: &LoadBalancing,
    can: Capabilities,
    service: &ServiceView,
    mut wanted: Wanted,
) -> Vec<ServiceFinding> {
    // Said already, each in its place.
    wanted.tolerated.clear();
    if METHODS.iter().all(|method| *method != wanted.method) {
        wanted.method = METHODS.map(str::to_owned).into_iter().next().unwrap_or_default();
    }
    let inputs = Inputs {
        holders: BTreeMap::new(),
        can,
        each: BTreeMap::new(),
        groups: BTreeMap::new(),
        balancer: None,
    };
    let mut notes = Vec::new();
    notes::about(
        settings,
        service,
        &wanted,
        &ClusterView::default(),
        &inputs,
        &mut notes,
    );
    let place = |reason| match reason {
        "LoadBalancerSourceRangesIgnored" if service.source_ranges.is_some() => {
            Field::Spec("loadBalancerSourceRanges")
        }
        "LoadBalancerSourceRangesIgnored" => note::field(note::SOURCE_RANGES),
        "LoadBalancerAvailabilityZonesIgnored" => note::field(note::AVAILABILITY_ZONE),
        "LoadBalancerTagsIgnored" => tags::requests(service).next().map_or(Field::Whole, note::field),
        "LoadBalancerHealthMonitorMissing" => Field::Spec("externalTrafficPolicy"),
        "LoadBalancerSingleStack" => Field::Spec("ipFamilyPolicy"),
        "LoadBalancerFloatingIPSkipped" => Field::Spec("ipFamilies"),
        _ => Field::Whole,
    };
    let each = notes.into_iter().map(|note| ServiceFinding {
        severity: Severity::Warning,
        field: place(note.reason),
        message: note.message,
        fix: String::new(),
    });
    each.collect()
}
