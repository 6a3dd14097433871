//! From a Service's fields and annotations to the requested load balancer.

use std::collections::BTreeSet;

use ccm_core::load_balancer::{
    AnnotationReader, Claim, IgnoredValue, InvalidField, Protocol, ProviderFinalizers, ServiceView,
    SessionAffinity, SourceRanges,
};

use super::{annotations as a, names::Affinity, settings::BalancerSettings};

/// The class of external load balancers that consist of a target pool.
pub(crate) const EXTERNAL_CLASS: &str = "networking.gke.io/l4-regional-external-legacy";
/// The class of internal load balancers that this program serves.
pub(crate) const INTERNAL_CLASS: &str = "networking.gke.io/l4-regional-internal-legacy";
/// The classes of the GKE ingress controller.
const OTHER_CLASSES: [&str; 2] = [
    "networking.gke.io/l4-regional-external",
    "networking.gke.io/l4-regional-internal",
];

/// The finalizer of external load balancers.
pub(crate) const EXTERNAL_FINALIZER: &str = "gke.networking.io/l4-netlb-v1";
/// The finalizer of internal load balancers.
pub(crate) const INTERNAL_FINALIZER: &str = "gke.networking.io/l4-ilb-v1";
const FINALIZERS: &[&str] = &[EXTERNAL_FINALIZER, INTERNAL_FINALIZER];
/// The finalizers of the GKE ingress controller: external load balancers of backend services, and internal ones.
const OTHER_EXTERNAL_FINALIZERS: [&str; 2] =
    ["gke.networking.io/l4-netlb-v2", "gke.networking.io/l4-netlb-v3"];
const OTHER_INTERNAL_FINALIZER: &str = "gke.networking.io/l4-ilb-v2";

/// The path that health checks request.
pub(crate) const CHECK_PATH: &str = "/healthz";
/// The port at which kube-proxy reports its health.
pub(crate) const NODE_CHECK_PORT: u16 = 10256;
/// The most ports of an internal forwarding rule, unless it takes all.
const LISTED_PORTS: usize = 5;

/// Whether clients outside the network reach the load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// A forwarding rule with a target pool.
    External,
    /// A forwarding rule with a backend service.
    Internal,
}

impl Scheme {
    /// The name in the API.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::External => "EXTERNAL",
            Self::Internal => "INTERNAL",
        }
    }

    /// The scheme that a Service requests. Its class takes precedence over its annotations.
    pub(crate) fn of(service: &ServiceView) -> Self {
        match service.class.as_deref() {
            Some(EXTERNAL_CLASS) => return Self::External,
            Some(INTERNAL_CLASS) => return Self::Internal,
            _ => {}
        }
        match service.annotation(a::TYPE).or_else(|| service.annotation(a::OLD_TYPE)) {
            Some("Internal" | "internal") => Self::Internal,
            _ => Self::External,
        }
    }
}

/// Whether a Service has a finalizer.
pub(crate) fn has_finalizer(service: &ServiceView, finalizer: &str) -> bool {
    service.finalizers.iter().any(|known| &**known == finalizer)
}

/// Whether a Service may have had a load balancer of this scheme. One without a finalizer of a scheme, but with that of all load
/// balancers, got it before there were finalizers for each scheme.
pub(crate) fn may_have_been(service: &ServiceView, scheme: Scheme) -> bool {
    let finalizer = match scheme {
        Scheme::External => EXTERNAL_FINALIZER,
        Scheme::Internal => INTERNAL_FINALIZER,
    };
    let has_any = FINALIZERS.iter().any(|finalizer| has_finalizer(service, finalizer));
    Scheme::of(service) == scheme
        || has_finalizer(service, finalizer)
        || (service.has_finalizer() && !has_any)
}

/// The controller that is responsible for a Service.
pub(crate) fn claims(service: &ServiceView, settings: &BalancerSettings) -> Claim {
    match service.class.as_deref() {
        None if settings.serves_only_classes => return Claim::NotOurs,
        None => {}
        Some(EXTERNAL_CLASS | INTERNAL_CLASS) => return Claim::Ours,
        Some(class) if OTHER_CLASSES.contains(&class) => return Claim::Elsewhere,
        Some(_) => return Claim::NotOurs,
    }
    // One that this program served before stays ours until its load balancer is deleted.
    if FINALIZERS.iter().any(|finalizer| has_finalizer(service, finalizer)) {
        return Claim::Ours;
    }
    // One that got its load balancer before there were finalizers for each kind.
    let is_served = service.has_finalizer() && !service.ingress.is_empty();
    let is_elsewhere = match Scheme::of(service) {
        Scheme::External => {
            let others = OTHER_EXTERNAL_FINALIZERS;
            others.iter().any(|finalizer| has_finalizer(service, finalizer))
                || service.annotation(a::BACKEND_SERVICES) == Some("enabled")
                || (settings.leaves_new_external && !is_served)
        }
        Scheme::Internal => {
            has_finalizer(service, OTHER_INTERNAL_FINALIZER) || (settings.leaves_new_internal && !is_served)
        }
    };
    if is_elsewhere {
        Claim::Elsewhere
    } else {
        Claim::Ours
    }
}

/// The finalizers of a Service, besides that of all load balancers.
pub(crate) fn finalizers(service: &ServiceView) -> ProviderFinalizers {
    ProviderFinalizers {
        needed: match Scheme::of(service) {
            Scheme::External => &[EXTERNAL_FINALIZER],
            Scheme::Internal => &[INTERNAL_FINALIZER],
        },
        all: FINALIZERS,
    }
}

/// The network tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tier {
    #[default]
    Premium,
    Standard,
}

impl Tier {
    /// The name in the API.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Premium => "PREMIUM",
            Self::Standard => "STANDARD",
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "Premium" => Ok(Self::Premium),
            "Standard" => Ok(Self::Standard),
            other => Err(format!("unsupported network tier {other:?}; write Premium or Standard")),
        }
    }
}

/// The requested load balancer. Invalid values are replaced by defaults.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    pub(crate) scheme: Scheme,
    pub(crate) protocol: Protocol,
    /// Each port once, sorted.
    pub(crate) ports: BTreeSet<u16>,
    pub(crate) affinity: Affinity,
    /// The tier that the annotation names.
    pub(crate) tier: Option<Tier>,
    /// The address that the Service requests; empty: none.
    pub(crate) address: String,
    /// The CIDRs of the clients, sorted.
    pub(crate) ranges: Vec<String>,
    /// The port at which nodes report whether they have endpoints: `externalTrafficPolicy: Local` only.
    pub(crate) local_port: Option<u16>,
    pub(crate) global_access: bool,
    /// The name of the subnetwork that the annotation names.
    pub(crate) subnet: Option<String>,
    pub(crate) shares_backend: bool,
    /// The ports have several protocols.
    pub(crate) is_mixed: bool,
    /// Values that are ignored.
    pub(crate) ignored: Vec<IgnoredValue>,
    /// Why the Service is refused.
    pub(crate) invalid: Vec<InvalidField>,
}

impl Spec {
    /// Reads a Service.
    pub(crate) fn read(service: &ServiceView) -> Self {
        let scheme = Scheme::of(service);
        let mut annotations = AnnotationReader::new(&service.annotations);
        let tier = match scheme {
            Scheme::External => annotations.strict(a::NETWORK_TIER, Tier::parse),
            Scheme::Internal => None,
        };
        let (ranges, wrong_ranges) = SourceRanges::of(service);
        annotations.refuse_fields(wrong_ranges);
        let protocols: BTreeSet<_> = service.ports.iter().map(|port| port.protocol).collect();
        let is_mixed = protocols.len() > 1;
        if is_mixed {
            annotations.refuse_spec("ports", "mixed protocols are not supported; use one Service for each");
        } else if protocols.contains(&Protocol::Sctp) {
            annotations.refuse_spec("ports", "protocol SCTP is not supported, only TCP and UDP are");
        }
        let is_true = |key| service.annotation(key) == Some("true");
        let is_internal = scheme == Scheme::Internal;
        let local_port = service.health_check_port();
        let shares =
            service.annotation(a::SHARE_BACKEND).or_else(|| service.annotation(a::OLD_SHARE_BACKEND));
        let (ignored, invalid) = annotations.finish();
        Self {
            scheme,
            protocol: service.ports.first().map(|port| port.protocol).unwrap_or_default(),
            ports: service.ports.iter().map(|port| port.port).collect(),
            affinity: match service.session_affinity {
                SessionAffinity::None => Affinity::None,
                SessionAffinity::ClientIp { .. } => Affinity::ClientIp,
            },
            tier,
            address: service.load_balancer_ip.trim().to_owned(),
            ranges: ranges.texts(),
            local_port,
            global_access: is_internal && is_true(a::GLOBAL_ACCESS),
            subnet: match service.annotation_text(a::SUBNET) {
                Some(name) if is_internal => Some(name.to_owned()),
                _ => None,
            },
            shares_backend: is_internal && local_port.is_none() && shares == Some("true"),
            is_mixed,
            ignored,
            invalid,
        }
    }

    /// The first and the last port, which an external forwarding rule takes with all between them.
    pub(crate) fn port_range(&self) -> String {
        let first = self.ports.first().copied().unwrap_or_default();
        let last = self.ports.last().copied().unwrap_or_default();
        format!("{first}-{last}")
    }

    /// The ports of an internal forwarding rule; `None`: it takes all, since more than five cannot be listed.
    pub(crate) fn listed_ports(&self) -> Option<Vec<String>> {
        if self.ports.len() > LISTED_PORTS {
            return None;
        }
        let mut ports: Vec<_> = self.ports.iter().map(ToString::to_string).collect();
        ports.sort();
        Some(ports)
    }

    /// The name of the network tier, for messages.
    pub(crate) fn tier_name(tier: &str) -> &'static str {
        if tier == Tier::Standard.as_str() {
            "Standard"
        } else {
            "Premium"
        }
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::testkit::cluster as testkit;

    use super::*;

    fn service(annotations: &[(&str, &str)], finalizers: &[&str]) -> ServiceView {
        ServiceView {
            annotations: annotations.iter().copied().collect(),
            finalizers: finalizers.iter().map(|name| (*name).into()).collect(),
            ..testkit::service("web", &[80])
        }
    }

    fn of_class(class: &str) -> ServiceView {
        ServiceView {
            class: Some(class.into()),
            ..service(&[], &[])
        }
    }

    #[test]
    fn the_class_decides_about_the_scheme_before_the_annotation() {
        let internal = service(&[(a::TYPE, "Internal")], &[]);
        assert_eq!(Scheme::of(&internal), Scheme::Internal);
        let old = service(&[(a::OLD_TYPE, "internal")], &[]);
        assert_eq!(Scheme::of(&old), Scheme::Internal);
        // The first key that is present counts, whatever its value.
        let external = service(&[(a::TYPE, "External"), (a::OLD_TYPE, "Internal")], &[]);
        assert_eq!(Scheme::of(&external), Scheme::External);
        let class = ServiceView {
            class: Some(EXTERNAL_CLASS.into()),
            ..internal
        };
        assert_eq!(Scheme::of(&class), Scheme::External);
        assert_eq!(Scheme::of(&of_class(INTERNAL_CLASS)), Scheme::Internal);
    }

    #[test]
    fn services_of_the_other_controller_are_left_alone() {
        let settings = BalancerSettings::default();
        let claims_of = |service: &ServiceView| claims(service, &settings);
        for class in [EXTERNAL_CLASS, INTERNAL_CLASS] {
            assert_eq!(claims_of(&of_class(class)), Claim::Ours, "{class}");
        }
        for class in OTHER_CLASSES {
            assert_eq!(claims_of(&of_class(class)), Claim::Elsewhere, "{class}");
        }
        assert_eq!(claims_of(&of_class("example.com/other")), Claim::NotOurs);
        assert_eq!(claims_of(&service(&[], &[])), Claim::Ours);
        let backend_services: &[(&str, &str)] = &[(a::BACKEND_SERVICES, "enabled")];
        assert_eq!(claims_of(&service(backend_services, &[])), Claim::Elsewhere);
        assert_eq!(claims_of(&service(backend_services, &[EXTERNAL_FINALIZER])), Claim::Ours);
        let internal: &[(&str, &str)] = &[(a::TYPE, "Internal")];
        for (annotations, finalizer) in [
            (&[][..], OTHER_EXTERNAL_FINALIZERS[0]),
            (&[], OTHER_EXTERNAL_FINALIZERS[1]),
            (internal, OTHER_INTERNAL_FINALIZER),
        ] {
            assert_eq!(claims_of(&service(annotations, &[finalizer])), Claim::Elsewhere, "{finalizer}");
        }
    }

    #[test]
    fn new_services_are_left_to_the_other_controller_if_settings_say_so() {
        let settings = BalancerSettings {
            leaves_new_internal: true,
            leaves_new_external: true,
            ..BalancerSettings::default()
        };
        let mut internal = service(&[(a::TYPE, "Internal")], &[]);
        assert_eq!(claims(&internal, &settings), Claim::Elsewhere);
        assert_eq!(claims(&service(&[], &[]), &settings), Claim::Elsewhere);
        assert_eq!(claims(&of_class(INTERNAL_CLASS), &settings), Claim::Ours);
        internal.finalizers = vec![INTERNAL_FINALIZER.into()];
        assert_eq!(claims(&internal, &settings), Claim::Ours);
        assert_eq!(claims(&service(&[], &[EXTERNAL_FINALIZER]), &settings), Claim::Ours);
    }

    #[test]
    fn the_finalizer_follows_the_scheme() {
        let external = service(&[], &[]);
        assert_eq!(finalizers(&external).missing(&external), [ServiceView::FINALIZER, EXTERNAL_FINALIZER]);
        let changed = service(&[(a::TYPE, "Internal")], &[ServiceView::FINALIZER, EXTERNAL_FINALIZER]);
        assert_eq!(finalizers(&changed).missing(&changed), [INTERNAL_FINALIZER]);
        assert_eq!(finalizers(&changed).surplus(&changed), [EXTERNAL_FINALIZER]);
        // Nothing is added to a Service that is being deleted.
        let deleted = ServiceView {
            deleting: true,
            ..external
        };
        assert_eq!(finalizers(&deleted).missing(&deleted), [""; 0]);
    }

    #[test]
    fn services_without_a_class_may_belong_to_another_controller() {
        let settings = BalancerSettings {
            serves_only_classes: true,
            ..BalancerSettings::default()
        };
        assert_eq!(claims(&of_class(EXTERNAL_CLASS), &settings), Claim::Ours);
        assert_eq!(claims(&of_class("acme"), &settings), Claim::NotOurs);
        // Its finalizers are those of the other controller.
        let served = service(&[], &[ServiceView::FINALIZER, EXTERNAL_FINALIZER]);
        assert_eq!(claims(&served, &settings), Claim::NotOurs);
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        let mut wrong = service(&[(a::NETWORK_TIER, "Gold")], &[]);
        let mut udp = wrong.ports[0].clone();
        udp.protocol = Protocol::Udp;
        wrong.ports.push(udp);
        wrong.source_ranges = Some(vec!["10.0.0.1".into()]);
        let spec = Spec::read(&wrong);
        assert!(spec.is_mixed);
        let messages: Vec<_> = spec.invalid.iter().map(|invalid| invalid.message.as_str()).collect();
        assert_eq!(messages.len(), 3, "{messages:?}");
        assert!(messages[0].contains("\"Gold\"") && messages[1].contains("10.0.0.1"), "{messages:?}");
        assert!(messages[2].contains("mixed protocols"), "{messages:?}");
        let internal = service(&[(a::NETWORK_TIER, "Gold"), (a::TYPE, "Internal")], &[]);
        assert_eq!(Spec::read(&internal).invalid, []);
    }

    #[test]
    fn an_internal_rule_lists_at_most_five_ports() {
        let ports = |ports: &[u16]| Spec::read(&testkit::service("web", ports));
        assert_eq!(ports(&[443, 80, 443]).listed_ports(), Some(vec!["443".to_owned(), "80".to_owned()]));
        assert_eq!(ports(&[1, 2, 3, 4, 5, 6]).listed_ports(), None);
        assert_eq!(ports(&[8080, 80, 443]).port_range(), "80-8080");
        assert_eq!(ports(&[80]).port_range(), "80-80");
    }

    #[test]
    fn options_of_internal_load_balancers_have_an_effect_only_there() {
        let options = [
            (a::GLOBAL_ACCESS, "true"),
            (a::SUBNET, "other"),
            (a::OLD_SHARE_BACKEND, "true"),
        ];
        let external = Spec::read(&service(&options, &[]));
        assert!(!external.global_access && external.subnet.is_none() && !external.shares_backend);
        let internal = [&options[..], &[(a::TYPE, "Internal")]].concat();
        let internal = service(&internal, &[]);
        let spec = Spec::read(&internal);
        assert!(spec.global_access && spec.subnet.as_deref() == Some("other") && spec.shares_backend);
        let local = ServiceView {
            external_policy: ccm_core::load_balancer::Policy::Local,
            health_check_node_port: 31000,
            ..internal.clone()
        };
        assert!(!Spec::read(&local).shares_backend);
    }
}
