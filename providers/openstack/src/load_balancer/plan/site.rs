//! One load balancer and its members, observed and desired.

use ccm_core::{
    load_balancer::{Blocked, Ownership, ServiceId},
    plan::{
        Plan,
        objects::{self, Attributes, Object, Objects},
    },
};

use crate::load_balancer::{
    desired::{DesiredBalancer, Owner},
    fields,
    kinds::{self, ObjectKind, ObjectUpdate},
    names, observe,
    tags::Annotated,
};

/// A change of a load balancer.
pub(super) type Step = ccm_core::plan::Step<objects::ObjectChange<ObjectKind>>;

/// The plan for a load balancer.
pub(super) type BalancerPlan = Plan<objects::ObjectChange<ObjectKind>>;

/// The reason of deletions.
pub(super) const UNUSED: &str = "no Service uses it anymore";

pub(super) fn blocked(service: Option<&ServiceId>, field: &str, have: &str, want: &str) -> Blocked {
    Blocked {
        service: service.cloned(),
        field: field.to_owned(),
        observed: have.to_owned(),
        desired: want.to_owned(),
    }
}

/// The owners among all members.
pub(super) fn owners(desired: &DesiredBalancer) -> impl Iterator<Item = &Owner> {
    let active = desired.active.iter().map(|active| &active.owner);
    let frozen = desired.frozen.iter().map(|frozen| &frozen.owner);
    active.chain(frozen).chain(desired.leaving.iter().map(|leaving| &leaving.owner))
}

/// The observed and the desired state of one load balancer.
pub(super) struct Site<'a> {
    pub(super) desired: &'a DesiredBalancer,
    pub(super) objects: &'a Objects<ObjectKind>,
    pub(super) balancer: &'a Object<ObjectKind>,
    pub(super) name: &'a str,
    pub(super) tags: Vec<String>,
    /// The former names of the cluster in its objects.
    pub(super) former: Vec<&'a str>,
    /// Whether a cluster created it for a Service.
    pub(super) created: bool,
    pub(super) ownership: Ownership,
    /// Tags that came from annotations.
    pub(super) annotated: &'a Annotated,
}

impl<'a> Site<'a> {
    /// Creates it without the cluster's former names.
    pub(super) fn new(
        desired: &'a DesiredBalancer,
        objects: &'a Objects<ObjectKind>,
        balancer: &'a Object<ObjectKind>,
        annotated: &'a Annotated,
    ) -> Self {
        let name = balancer.text(fields::NAME);
        let created =
            name.starts_with(names::SERVICE_PREFIX) || owners(desired).any(|owner| owner.owns(name));
        let ownership = desired.ownership_tag.ownership(kinds::texts(balancer, fields::TAGS));
        Self {
            desired,
            objects,
            balancer,
            name,
            tags: kinds::tags(balancer),
            former: Vec::new(),
            created,
            ownership,
            annotated,
        }
    }

    /// A step that updates fields of the load balancer.
    pub(super) fn update(&self, fields: Attributes) -> Step {
        self.balancer.step(ObjectUpdate::Balancer.action(fields))
    }

    /// Whether the tags contain one of the Service.
    pub(super) fn tagged(&self, tags: &[String], owner: &Owner) -> bool {
        tags.iter().any(|tag| *tag == owner.tag || self.was(tag, owner))
    }

    /// Whether the load balancer was created for this Service.
    pub(super) fn owned_by(&self, owner: &Owner) -> bool {
        owner.owns(self.name) || self.was(self.name, owner)
    }

    /// Whether the name is the Service's under a former name of the cluster.
    pub(super) fn was(&self, name: &str, owner: &Owner) -> bool {
        let mut former = self.former.iter();
        former.any(|former| names::load_balancer(former, &owner.service) == name)
    }

    /// The former name of the cluster in a name.
    pub(super) fn former_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let cluster = names::cluster_of(name)?;
        self.former.contains(&cluster).then_some(cluster)
    }

    /// Whether this cluster created it. A load balancer of another cluster may be shared. But it does not get our
    /// ownership tag, which would lock out its own cluster, and is not deleted with the Services that share it.
    pub(super) fn is_own(&self) -> bool {
        self.ownership == Ownership::Ours
            || names::cluster_of(self.name) == Some(&*self.desired.cluster)
            || self.former_of(self.name).is_some()
            || owners(self.desired).any(|owner| owner.owns(self.name))
    }

    /// Whether a pool lacked the session persistence of its Service when this program took over.
    pub(super) fn has_affinity_record(&self) -> bool {
        self.tags.iter().any(|tag| tag == names::NOT_APPLIED_AFFINITY_TAG)
    }

    /// The number of Service tags that belong to no member.
    pub(super) fn others(&self) -> usize {
        let desired = self.desired;
        let known: Vec<_> = owners(desired).collect();
        let tags = self.tags.iter().filter(|tag| names::is_service_tag(tag));
        tags.filter(|tag| !known.iter().any(|owner| self.tagged(std::slice::from_ref(tag), owner)))
            .count()
    }

    /// Whether it is deleted with the leaving Services. `is_used`: whether one of the staying Services uses it.
    pub(super) fn is_leaving(&self, is_used: bool) -> bool {
        let swept = owners(self.desired).next().is_none() && self.ownership == Ownership::Ours;
        let left = !self.desired.leaving.is_empty() && self.others() == 0 && self.is_own();
        self.created && !is_used && (swept || left)
    }

    /// Whether its creation failed and no client can know it.
    pub(super) fn never_worked(&self, is_being_created: bool) -> bool {
        let desired = self.desired;
        let owner = desired.active.iter().any(|active| self.owned_by(&active.owner));
        let active = desired.active.iter().map(|active| &active.owner);
        let mut staying = active.chain(desired.frozen.iter().map(|frozen| &frozen.owner));
        let is_known = staying.any(|owner| {
            observe::may_be_known(self.objects, self.balancer, &owner.named, &desired.ownership_tag)
        });
        let failed = is_being_created
            || (self.ownership == Ownership::Ours && observe::was_never_active(self.objects));
        owner && failed && !is_known && self.others() == 0 && self.ownership.allows_changes()
    }
}
