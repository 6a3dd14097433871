//! Former load balancers: those of Services that got the class of another controller while this program did not run.
//!
//! Expected flow: a Service of another controller has our finalizer; a discovery finds what the cloud has for it; once the
//! Service wants no load balancer, one that is proven to be ours is deleted, and then the finalizer is removed. That is when the
//! Go cloud-controller-managers delete it, too. If the cloud proves nothing, nothing is deleted, and an event reports the load balancer.

use std::time::Duration;

use ccm_core::load_balancer::{Claim, FormerLoadBalancer, ServiceEvent, ServiceView};
use tokio::time::Instant;

/// If no load balancer is found, the other controller has this long to remove the finalizer before an event reports it.
pub(super) const REPORT_AFTER: Duration = Duration::from_secs(60);

/// The knowledge about the former load balancer of one Service.
#[derive(Debug, Default)]
pub(super) struct FormerCheck {
    /// Whether a discovery has ended since the Service changed.
    pub(super) is_known: bool,
    /// Whether its load balancer is ours and is deleted before its finalizer is removed.
    pub(super) is_due: bool,
    /// Since when the Service is being deleted and no load balancer is found.
    pub(super) missing_since: Option<Instant>,
    /// The last event.
    reported: Option<ServiceEvent>,
}

impl FormerCheck {
    /// The event to publish, if it is new.
    pub(super) fn report(&mut self, event: Option<ServiceEvent>) -> Option<ServiceEvent> {
        let event = event.filter(|event| self.reported.as_ref() != Some(event))?;
        self.reported = Some(event.clone());
        Some(event)
    }
}

/// Whether the former load balancer is to be deleted: its Service wants none from any controller.
pub(super) fn is_due(view: &ServiceView, former: &FormerLoadBalancer) -> bool {
    !view.wants_load_balancer() && matches!(former, FormerLoadBalancer::Ours(_))
}

/// The event about a former load balancer that is left unchanged. Without one while the Service exists, an unproven one may be any
/// load balancer with the same name.
pub(super) fn event(view: &ServiceView, claim: Claim, former: &FormerLoadBalancer) -> Option<ServiceEvent> {
    let finalizer = ServiceView::FINALIZER;
    let wants = view.wants_load_balancer();
    let (reason, message) = match (former, claim) {
        (FormerLoadBalancer::Ours(what), _) if wants => (
            "FormerLoadBalancerExists",
            format!(
                "{what} was created for this Service, for which another controller is responsible now; it is deleted together \
                 with the Service"
            ),
        ),
        (FormerLoadBalancer::Unproven { what, why }, Claim::NotOurs) if !wants => (
            "LoadBalancerNotDeleted",
            format!(
                "{what} is not deleted, because {why}, and finalizer {finalizer} is not removed; delete the load balancer if \
                 nothing needs it, then remove the finalizer"
            ),
        ),
        (FormerLoadBalancer::Unproven { what, why }, Claim::Elsewhere) if !wants => (
            "LoadBalancerNotDeleted",
            format!(
                "{what} is not deleted, because {why}, and finalizer {finalizer} is removed; delete the load balancer if \
                 nothing needs it"
            ),
        ),
        (FormerLoadBalancer::Missing, Claim::NotOurs) if !wants => (
            "FinalizerNotRemoved",
            format!(
                "finalizer {finalizer} is not removed, because another controller is responsible for the Service, and no load \
                 balancer of this program was found; if the other controller does not remove it, remove it by hand"
            ),
        ),
        _ => return None,
    };
    Some(ServiceEvent::warning(&view.id, reason, message))
}
