//! Tags that Services request by annotation, in addition to those of the controller.
//!
//! Octavia does not record who added a tag. So annotations of the Service record the tags that its objects have because
//! of an annotation, one for each kind of object. A tag that was requested or recorded, and is no longer requested, is
//! removed. All other tags were added by others and stay. Requests during this process count as recorded, since the
//! annotations are written only when the load balancer serves.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::load_balancer::{ClusterTag, ServiceId, ServiceView};

use super::{annotations, names, part::OpenStackPart};

/// Octavia refuses longer tags.
const MAX_CHARS: usize = 255;
/// The length of a refused tag in the Warning.
const SHOWN_CHARS: usize = 60;

/// The annotations that request tags: of the load balancer, of listeners, of pools.
const REQUESTED: [&str; 3] = [
    annotations::LOAD_BALANCER_TAGS,
    annotations::LISTENER_TAGS,
    annotations::POOL_TAGS,
];
/// The annotations that record the applied tags.
const APPLIED: [&str; 3] = [
    annotations::APPLIED_LOAD_BALANCER_TAGS,
    annotations::APPLIED_LISTENER_TAGS,
    annotations::APPLIED_POOL_TAGS,
];

/// The tags of one Service, by kind of object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceTags {
    pub(crate) load_balancer: BTreeSet<String>,
    pub(crate) listener: BTreeSet<String>,
    pub(crate) pool: BTreeSet<String>,
}

/// The tags that came from the annotations of each Service, now or earlier.
pub(crate) type Annotated = BTreeMap<ServiceId, ServiceTags>;

impl ServiceTags {
    /// The tags that the Service requests. `warn` gets the annotation and the problem of its value.
    pub(crate) fn requested(service: &ServiceView, mut warn: impl FnMut(&'static str, String)) -> Self {
        Self::read(service, REQUESTED, |key, problems| {
            if !problems.is_empty() {
                warn(key, format!("ignored: {}", problems.join(", ")));
            }
        })
    }

    fn applied(service: &ServiceView) -> Self {
        Self::read(service, APPLIED, |_, _| ())
    }

    fn read(
        service: &ServiceView,
        keys: [&'static str; 3],
        mut problems: impl FnMut(&'static str, Vec<String>),
    ) -> Self {
        let [load_balancer, listener, pool] = keys.map(|key| {
            let (tags, wrong) = split(service.annotation(key).unwrap_or_default());
            problems(key, wrong);
            tags
        });
        Self {
            load_balancer,
            listener,
            pool,
        }
    }

    fn each(&self) -> [&BTreeSet<String>; 3] {
        [&self.load_balancer, &self.listener, &self.pool]
    }

    fn each_mut(&mut self) -> [&mut BTreeSet<String>; 3] {
        [&mut self.load_balancer, &mut self.listener, &mut self.pool]
    }

    fn extend(&mut self, other: &Self) {
        for (tags, other) in self.each_mut().into_iter().zip(other.each()) {
            tags.extend(other.iter().cloned());
        }
    }

    fn retain(&mut self, others: &Self) {
        for (tags, others) in self.each_mut().into_iter().zip(others.each()) {
            tags.retain(|tag| others.contains(tag));
        }
    }

    fn is_empty(&self) -> bool {
        self.each().iter().all(|tags| tags.is_empty())
    }

    /// The annotations that record the requested tags that the Service's objects have.
    pub(crate) fn record(
        service: &ServiceView,
        present: &Self,
    ) -> impl Iterator<Item = (&'static str, Option<String>)> {
        let mut applied = Self::requested(service, |_, _| ());
        applied.retain(present);
        let values = applied.each().map(|tags| {
            let tags: Vec<_> = tags.iter().map(String::as_str).collect();
            (!tags.is_empty()).then(|| tags.join(","))
        });
        APPLIED.into_iter().zip(values)
    }
}

/// The annotations of the Service that record which tags were applied.
pub(crate) fn recorded(service: &ServiceView) -> impl Iterator<Item = &'static str> {
    given(service, APPLIED)
}

/// The annotations of the Service that request tags.
pub(crate) fn requests(service: &ServiceView) -> impl Iterator<Item = &'static str> {
    given(service, REQUESTED)
}

fn given(service: &ServiceView, keys: [&'static str; 3]) -> impl Iterator<Item = &'static str> {
    keys.into_iter().filter(|key| service.annotation(key).is_some())
}

/// Whether only the controller may write this tag: it identifies the owner of an object, or the Services that use it.
pub(crate) fn is_reserved(tag: &str) -> bool {
    [
        names::SERVICE_PREFIX,
        ClusterTag::PREFIX,
        names::SESSION_AFFINITY_TAG,
        names::REQUESTED_ADDRESS_PREFIX,
    ]
    .iter()
    .any(|prefix| {
        let start = tag.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    })
}

/// Splits a list into valid tags and problems.
fn split(list: &str) -> (BTreeSet<String>, Vec<String>) {
    let mut tags = BTreeSet::new();
    let mut problems = Vec::new();
    if list.trim().is_empty() {
        return (tags, problems);
    }
    for tag in list.split(',').map(str::trim) {
        let shown: String = tag.chars().take(SHOWN_CHARS).collect();
        if tag.is_empty() {
            problems.push("an empty entry".to_owned());
        } else if tag.chars().count() > MAX_CHARS {
            problems.push(format!("\"{shown}...\" (longer than {MAX_CHARS} characters)"));
        } else if is_reserved(tag) {
            problems.push(format!("{shown:?} (a tag that only the controller may write)"));
        } else {
            tags.insert(tag.to_owned());
        }
    }
    problems.dedup();
    (tags, problems)
}

/// The tags to add to an object and to remove from it. `annotated`: the tags that came from annotations.
pub(crate) fn difference(
    have: &[String],
    requested: &BTreeSet<&String>,
    annotated: &BTreeSet<&String>,
) -> (Vec<String>, Vec<String>) {
    let add = requested.iter().filter(|tag| !have.contains(tag));
    let remove = have
        .iter()
        .filter(|tag| annotated.contains(tag) && !requested.contains(tag) && !is_reserved(tag));
    (add.map(|tag| (*tag).clone()).collect(), remove.cloned().collect())
}

/// Requested tags that no annotation records yet, by part: a Service that moves to another load balancer leaves its tags at the former
/// one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unrecorded(BTreeMap<OpenStackPart, Annotated>);

impl Unrecorded {
    /// The tags that came from the annotations of these Services, now or earlier. `name`: that of the load balancer, whose part before
    /// its creation has the name. `present`: all tags of their objects.
    pub(crate) fn annotated<'a>(
        &mut self,
        part: &OpenStackPart,
        name: Option<&str>,
        services: impl Iterator<Item = &'a ServiceView>,
        present: impl Fn() -> ServiceTags,
    ) -> Annotated {
        let mut remembered = self.0.remove(part).unwrap_or_default();
        let new = name.and_then(|name| self.0.remove(&OpenStackPart::New(name.to_owned())));
        for (service, tags) in new.unwrap_or_default() {
            remembered.entry(service).or_default().extend(&tags);
        }
        let mut all = Annotated::new();
        for service in services {
            let (requested, applied) =
                (ServiceTags::requested(service, |_, _| ()), ServiceTags::applied(service));
            let mut tags = remembered.remove(&service.id).unwrap_or_default();
            tags.extend(&requested);
            tags.extend(&applied);
            if tags.is_empty() {
                continue;
            }
            // A tag that is neither requested nor present anymore may be added by others.
            let mut known = present();
            if service.wants_load_balancer() {
                known.extend(&requested);
            }
            tags.retain(&known);
            // Also for a Service that leaves: this pass may have to wait before it removes them.
            if tags != applied && !tags.is_empty() {
                remembered.insert(service.id.clone(), tags.clone());
            }
            all.insert(service.id.clone(), tags);
        }
        if !remembered.is_empty() {
            self.0.insert(part.clone(), remembered);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::load_balancer::ServiceType;

    use super::*;

    fn set(tags: &[&str]) -> BTreeSet<String> {
        tags.iter().map(|tag| (*tag).to_owned()).collect()
    }

    #[test]
    fn invalid_and_reserved_tags_are_reported_and_the_others_count() {
        let long = "x".repeat(256);
        let fits = "ü".repeat(255);
        let list = format!(
            " a , b=c,,a, ,{long},{fits},kube_service_c_n_s,Kube_Cluster_ID_1,kube_services_are_fine,ü"
        );
        let (tags, problems) = split(&list);
        assert_eq!(tags, set(&["a", "b=c", &fits, "kube_services_are_fine", "ü"]));
        let shown = "x".repeat(60);
        assert_eq!(
            problems,
            [
                "an empty entry".to_owned(),
                format!("\"{shown}...\" (longer than 255 characters)"),
                "\"kube_service_c_n_s\" (a tag that only the controller may write)".to_owned(),
                "\"Kube_Cluster_ID_1\" (a tag that only the controller may write)".to_owned(),
            ]
        );
        for empty in ["", "  "] {
            assert_eq!(split(empty), (BTreeSet::new(), Vec::new()));
        }
    }

    #[test]
    fn only_tags_from_annotations_are_removed() {
        let have = ["mine", "old", "kept", "kube_service_c_n_s"].map(str::to_owned);
        let (requested, annotated) = (set(&["kept", "new"]), set(&["old", "kept", "kube_service_c_n_s"]));
        let (add, remove) = difference(&have, &requested.iter().collect(), &annotated.iter().collect());
        assert_eq!((add, remove), (vec!["new".to_owned()], vec!["old".to_owned()]));
    }

    #[test]
    fn requested_tags_stay_known_while_a_service_that_leaves_waits() {
        let mut service = ServiceView {
            annotations: [(annotations::LOAD_BALANCER_TAGS, "a,b")].into_iter().collect(),
            service_type: ServiceType::LoadBalancer,
            ..ServiceView::default()
        };
        let present = || ServiceTags {
            load_balancer: set(&["a", "b"]),
            ..ServiceTags::default()
        };
        let mut unrecorded = Unrecorded::default();
        let (new, part) =
            (OpenStackPart::New("kube_service".to_owned()), OpenStackPart::Balancer("id".to_owned()));
        unrecorded.annotated(&new, None, [&service].into_iter(), present);
        service = ServiceView::default();
        for pass in 1..=2 {
            // The part of another load balancer does not change what is known of this one.
            let other = OpenStackPart::Balancer("other".to_owned());
            unrecorded.annotated(&other, None, [&service].into_iter(), ServiceTags::default);
            let known = unrecorded.annotated(&part, Some("kube_service"), [&service].into_iter(), present);
            let tags = known.get(&service.id).map(|tags| tags.load_balancer.clone());
            assert_eq!(tags, Some(set(&["a", "b"])), "pass {pass}");
        }
        let known = unrecorded.annotated(&part, None, [&service].into_iter(), ServiceTags::default);
        assert_eq!(known.get(&service.id).map(ServiceTags::is_empty), Some(true));
        assert!(unrecorded.annotated(&part, None, [&service].into_iter(), present).is_empty());
    }
}
