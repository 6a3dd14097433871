//! Checks a Service, by the rules of load balancers.

use ccm_core::{
    check::{Field, ServiceFinding, Severity},
    load_balancer::{ClusterView, InvalidField, ServiceView},
};

use crate::load_balancer::{
    annotations::{self, TABLE},
    desired::PartInputs,
    features::{Capabilities, METHODS},
    secrets::SecretRef,
    settings::LoadBalancing,
    spec::BalancerSpec,
    subnets::SubnetFilter,
    tags, warnings,
};

/// All findings for a Service of type LoadBalancer.
pub(super) fn findings(
    settings: &LoadBalancing,
    can: Capabilities,
    service: &ServiceView,
) -> Vec<ServiceFinding> {
    if !settings.conf.enabled {
        return vec![ServiceFinding {
            severity: Severity::Warning,
            field: Field::Spec("type"),
            message: "load balancers are switched off in the config, the Service is not served".to_owned(),
            fix: "write enabled = true under [LoadBalancer]".to_owned(),
        }];
    }
    let (spec, invalid) = BalancerSpec::examine(service, settings, Some(can));
    let mut all: Vec<_> = invalid.iter().map(|invalid| refused(settings, invalid)).collect();
    all.extend(spec.ignored.iter().map(|ignored| TABLE.ignored(ignored)));
    all.extend(refused_on_creation(settings, can, service, &spec));
    all.extend(TABLE.unknown(&service.annotations));
    all.extend(event_warnings(settings, can, service, spec));
    all
}

fn refused(settings: &LoadBalancing, invalid: &InvalidField) -> ServiceFinding {
    let mut finding = TABLE.invalid(invalid);
    let classes: Vec<_> = settings.classes.keys().map(String::as_str).collect();
    if finding.field == Field::annotation(annotations::CLASS) && !classes.is_empty() {
        finding.fix = format!("write one of: {}", classes.join(", "));
    }
    finding
}

/// The problems that are refused only when the load balancer is created.
fn refused_on_creation(
    settings: &LoadBalancing,
    can: Capabilities,
    service: &ServiceView,
    spec: &BalancerSpec,
) -> Vec<ServiceFinding> {
    let mut all = Vec::new();
    // A value that comes from the config is a problem of the config.
    let own = |key| service.annotation(key).is_some();
    let error = |key, problem: &str| TABLE.invalid(&InvalidField::annotation(key, problem));
    if own(annotations::LB_METHOD) && !METHODS.contains(&&*spec.method) {
        let problem = warnings::unknown_method(&spec.method, can.methods);
        all.push(error(annotations::LB_METHOD, &problem));
    }
    if own(annotations::TLS_CONTAINER_REF)
        && !spec.tls.is_empty()
        && settings.conf.container_store == "barbican"
        && let Err(wrong) = SecretRef::parse(&spec.tls)
    {
        all.push(error(annotations::TLS_CONTAINER_REF, wrong.message()));
    }
    if own(annotations::FLOATING_SUBNET)
        && let Err(wrong) = SubnetFilter::parse(&spec.source.pattern, &spec.source.tags)
    {
        all.push(error(annotations::FLOATING_SUBNET, wrong.message()));
    }
    let address = &*service.load_balancer_ip;
    if !address.is_empty() && address.parse::<std::net::IpAddr>().is_err() {
        all.push(ServiceFinding {
            severity: Severity::Error,
            field: Field::Spec("loadBalancerIP"),
            message: format!("{address:?} is not an IP address"),
            fix: "write an address such as 203.0.113.7, or nothing".to_owned(),
        });
    }
    all
}

/// The Warnings that Events would report once the Service is served.
fn event_warnings(
    settings: &LoadBalancing,
    can: Capabilities,
    service: &ServiceView,
    mut spec: BalancerSpec,
) -> Vec<ServiceFinding> {
    // These are reported already.
    spec.ignored.clear();
    if !METHODS.contains(&&*spec.method)
        && let Some(method) = can.methods.first()
    {
        (*method).clone_into(&mut spec.method);
    }
    let inputs = PartInputs {
        can,
        ..PartInputs::default()
    };
    let warnings = warnings::warnings(settings, service, &spec, &ClusterView::default(), &inputs);
    let each = warnings.into_iter().map(|warning| ServiceFinding {
        severity: Severity::Warning,
        field: field_of_warning(service, warning.reason),
        message: warning.message,
        fix: String::new(),
    });
    each.collect()
}

/// The field of a Service that a Warning with this reason is about.
fn field_of_warning(service: &ServiceView, reason: &str) -> Field {
    match reason {
        "LoadBalancerSourceRangesIgnored" | "LoadBalancerSourceRangesLeftOut" => {
            if service.source_ranges.is_some() {
                Field::Spec("loadBalancerSourceRanges")
            } else {
                Field::annotation(annotations::SOURCE_RANGES)
            }
        }
        "LoadBalancerProxyProtocolIgnored" => Field::annotation(annotations::PROXY_PROTOCOL),
        "LoadBalancerAvailabilityZonesIgnored" => Field::annotation(annotations::AVAILABILITY_ZONE),
        "LoadBalancerTagsIgnored" => tags::requests(service).next().map_or(Field::Whole, Field::annotation),
        "LoadBalancerHealthMonitorMissing" => Field::Spec("externalTrafficPolicy"),
        "LoadBalancerSingleStack" => Field::Spec("ipFamilyPolicy"),
        "LoadBalancerFloatingIPSkipped" | "LoadBalancerAddressFamily" => Field::Spec("ipFamilies"),
        _ => Field::Whole,
    }
}
