//! The settings of load balancers in the config.

use ccm_core::load_balancer::ServiceView;

use super::annotations as a;

/// The settings of load balancers.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadBalancing {
    /// Leave the security groups of nodes unchanged.
    pub(crate) disable_security_group_ingress: bool,
    /// The security group of all classic load balancers.
    pub(crate) elb_security_group: Option<String>,
    /// The shared health check, if Services with `externalTrafficPolicy: Cluster` use it.
    pub(crate) shared_probe: Option<SharedProbe>,
    /// Every new network load balancer gets a security group of its own.
    pub(crate) managed_security_groups: bool,
    /// The type for Services without the annotation.
    pub(crate) default_type: Flavor,
}

/// A health check of kube-proxy that all Services share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedProbe {
    /// Its port.
    pub(crate) port: u16,
    /// Its path.
    pub(crate) path: String,
}

/// The kind of a load balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flavor {
    /// A network load balancer.
    Network,
    /// A classic load balancer, which is the default, as upstream.
    #[default]
    Classic,
    /// The AWS Load Balancer Controller, or no controller, is responsible.
    Elsewhere,
}

impl Flavor {
    /// Reads the spec and annotations of a Service.
    pub(crate) fn of(service: &ServiceView, settings: &LoadBalancing) -> Self {
        match service.annotation(a::TYPE) {
            Some("external" | "nlb-ip") => Self::Elsewhere,
            Some("nlb") => Self::Network,
            // As upstream; [`Spec::read`](super::spec::Spec::read) warns of it.
            _ => settings.default_type,
        }
    }

    /// The text in messages.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Network => "network load balancer",
            Self::Classic => "classic load balancer",
            Self::Elsewhere => "load balancer of another controller",
        }
    }
}
