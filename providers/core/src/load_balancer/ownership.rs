//! Ownership tags, which name the cluster that created an object.

use std::{fmt, sync::Arc};

/// The ownership tag of a cluster's objects: `kube_cluster_id_<uid of the kube-system namespace>`, or the cloud's form of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterTag(Arc<str>);

impl ClusterTag {
    /// The prefix of every ownership tag.
    pub const PREFIX: &'static str = "kube_cluster_id_";

    /// The tag of the cluster whose `kube-system` namespace has this uid.
    #[must_use]
    pub fn of(uid: &str) -> Self {
        Self(format!("{}{uid}", Self::PREFIX).into())
    }

    /// The uid in the tag.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.0.strip_prefix(Self::PREFIX).unwrap_or_default()
    }

    /// The tag as a text.
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

/// The ownership tag of this cluster, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnershipTag {
    /// The namespace may not be read: tags are neither written nor compared.
    #[default]
    Unknown,
    /// The tag of this cluster.
    Known(ClusterTag),
}

/// The owner of an object with a name of ours, by its ownership tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The object has our tag.
    Ours,
    /// The object has no tag: the program that ran here before created it. It is ours, and our tag is added with the next
    /// write that is due anyway.
    Adopted,
    /// The object has only another cluster's tag. It may not be changed.
    Foreign(ClusterTag),
    /// Our own tag is not known. The object is treated as ours, and no tag is written.
    Unverified,
}

impl OwnershipTag {
    /// The owner of an object with these tags, if it could be ours by its name.
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

    /// The tag for new objects.
    #[must_use]
    pub fn for_create(&self) -> Option<&ClusterTag> {
        match self {
            Self::Unknown => None,
            Self::Known(ours) => Some(ours),
        }
    }

    /// The tag to add to an object that exists, given whether another write to that object is due. It must go into the
    /// *first* of those writes (or before it): if the process is killed after the last one, nothing is due any more and
    /// the tag would never be added.
    #[must_use]
    pub fn for_update(&self, ownership: &Ownership, write_due: bool) -> Option<&ClusterTag> {
        (*ownership == Ownership::Adopted && write_due).then(|| self.for_create()).flatten()
    }
}

impl Ownership {
    /// Whether the object may be changed.
    #[must_use]
    pub fn allows_changes(&self) -> bool {
        !matches!(self, Self::Foreign(_))
    }

    /// Whether it may be deleted although its Service does not exist: only if it certainly belongs to this cluster.
    #[must_use]
    pub fn allows_orphan_deletion(&self) -> bool {
        matches!(self, Self::Ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_follows_from_the_tags() {
        let ours = ClusterTag::of("1-2");
        let theirs = ClusterTag::of("3-4");
        let tag = OwnershipTag::Known(ours.clone());
        let cases = [
            (vec![], Ownership::Adopted),
            (vec!["kube_service_a_b_c"], Ownership::Adopted),
            (vec![ours.as_str()], Ownership::Ours),
            (vec![theirs.as_str(), ours.as_str()], Ownership::Ours),
            (vec![theirs.as_str(), "x"], Ownership::Foreign(theirs.clone())),
        ];
        for (tags, expected) in cases {
            assert_eq!(tag.ownership(tags.iter().copied()), expected, "{tags:?}");
            assert_eq!(OwnershipTag::Unknown.ownership(tags), Ownership::Unverified);
        }
        assert_eq!(theirs.uid(), "3-4");
    }

    #[test]
    fn a_tag_is_added_only_together_with_another_write() {
        let tag = OwnershipTag::Known(ClusterTag::of("1"));
        assert!(tag.for_update(&Ownership::Adopted, false).is_none());
        assert_eq!(tag.for_update(&Ownership::Adopted, true), tag.for_create());
        assert!(tag.for_update(&Ownership::Ours, true).is_none());
        assert!(OwnershipTag::Unknown.for_update(&Ownership::Unverified, true).is_none());
        assert!(OwnershipTag::Unknown.for_create().is_none());
    }
}
