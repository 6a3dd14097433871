//! By which mark a cluster knows what it made.

use std::{fmt, sync::Arc};

/// The mark on what a cluster created: `kube_cluster_id_<uid of the kube-system namespace>`, or the cloud's form of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterTag(Arc<str>);

impl ClusterTag {
    /// What every mark begins with.
    pub const PREFIX: &'static str = "kube_cluster_id_";

    /// The mark of the cluster whose `kube-system` namespace has this uid.
    #[must_use]
    pub fn of(uid: &str) -> Self {
        Self(format!("{}{uid}", Self::PREFIX).into())
    }

    /// The uid in it.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.0.strip_prefix(Self::PREFIX).unwrap_or_default()
    }

    /// The mark itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What this cluster knows of its own mark, and how it judges by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnershipTag {
    /// The namespace may not be read: marks are neither written nor judged.
    #[default]
    Unknown,
    /// This one is ours.
    Known(ClusterTag),
}

/// Whose an object is that bears a name of ours, by the marks on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// It bears our mark.
    Ours,
    /// It bears no mark: made by the program that was here before. Ours, and our mark is added together with the next
    /// write that is due anyway.
    Adopted,
    /// It bears only another cluster's mark: refused.
    Foreign(ClusterTag),
    /// We do not know our own mark. Treated as ours, and no mark is written.
    Unverified,
}

impl OwnershipTag {
    /// Whose an object with these tags is, if its name says that it could be ours.
    pub fn ownership<'a>(&self, tags: impl IntoIterator<Item = &'a str>) -> Ownership {
        let Self::Known(ours) = self else {
            return Ownership::Unverified;
        };
        let mut foreign = None;
        for tag in tags {
            if tag == ours.as_str() {
                return Ownership::Ours;
            }
            if tag.starts_with(ClusterTag::PREFIX) {
                foreign = Some(ClusterTag(tag.into()));
            }
        }
        foreign.map_or(Ownership::Adopted, Ownership::Foreign)
    }

    /// The mark for what is created.
    #[must_use]
    pub fn for_create(&self) -> Option<&ClusterTag> {
        match self {
            Self::Unknown => None,
            Self::Known(ours) => Some(ours),
        }
    }

    /// The mark to add to an object that exists, given whether another write to that object is due. It must go into the
    /// *first* of those writes (or before it): if the process is killed after the last one, nothing is due any more and
    /// the mark would never be added.
    #[must_use]
    pub fn for_update(&self, ownership: &Ownership, write_due: bool) -> Option<&ClusterTag> {
        (*ownership == Ownership::Adopted && write_due)
            .then(|| self.for_create())
            .flatten()
    }
}

impl Ownership {
    /// Whether it may be changed.
    #[must_use]
    pub fn allows_changes(&self) -> bool {
        !matches!(self, Self::Foreign(_))
    }

    /// Whether it may be deleted although its Service does not exist: only what certainly is this cluster's.
    #[must_use]
    pub fn allows_orphan_deletion(&self) -> bool {
        matches!(self, Self::Ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_by_the_marks_that_are_there() {
        let ours = ClusterTag::of("1-2");
        let theirs = ClusterTag::of("3-4");
        let marks = OwnershipTag::Known(ours.clone());
        let cases = [
            (vec![], Ownership::Adopted),
            (vec!["kube_service_a_b_c"], Ownership::Adopted),
            (vec![ours.as_str()], Ownership::Ours),
            (vec![theirs.as_str(), ours.as_str()], Ownership::Ours),
            (vec![theirs.as_str(), "x"], Ownership::Foreign(theirs.clone())),
        ];
        for (tags, expected) in cases {
            assert_eq!(marks.ownership(tags.iter().copied()), expected, "{tags:?}");
            assert_eq!(OwnershipTag::Unknown.ownership(tags), Ownership::Unverified);
        }
        assert_eq!(theirs.uid(), "3-4");
    }

    #[test]
    fn a_mark_is_added_only_together_with_another_write() {
        let marks = OwnershipTag::Known(ClusterTag::of("1"));
        assert!(marks.for_update(&Ownership::Adopted, false).is_none());
        assert_eq!(marks.for_update(&Ownership::Adopted, true), marks.for_create());
        assert!(marks.for_update(&Ownership::Ours, true).is_none());
        assert!(
            OwnershipTag::Unknown
                .for_update(&Ownership::Unverified, true)
                .is_none()
        );
        assert!(OwnershipTag::Unknown.for_create().is_none());
    }
}
