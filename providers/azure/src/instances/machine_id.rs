//! IDs of machines: `azure://` and the ID in the Azure Resource Manager, whose resource group is in lower case.
//!
//! IDs are compared without case: Azure returns the same ID in different spellings.

use std::fmt;

use ccm_core::{Error, ErrorKind, Result};

use crate::client::resource::Resource;

/// The scheme of provider IDs.
const SCHEME: &str = "azure://";
/// The begin of the IDs of machines, the name of the subscription and of the resource group left out.
const COMPUTE: [&str; 5] = [
    "subscriptions",
    "resourcegroups",
    "providers",
    "microsoft.compute",
    "",
];

/// A machine in the Azure Resource Manager. All names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MachineId {
    pub(crate) subscription: String,
    pub(crate) group: String,
    pub(crate) kind: MachineKind,
}

/// The kind of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum MachineKind {
    /// A machine of its own, also of a flexible scale set.
    Machine { name: String },
    /// An instance of a uniform scale set.
    Instance { set: String, id: String },
}

impl MachineId {
    /// Reads the ID of a document; `None` if it is not the ID of a machine.
    pub(crate) fn parse(id: &str) -> Option<Self> {
        let lower = id.to_ascii_lowercase();
        let segments: Vec<&str> = lower.trim_start_matches('/').split('/').collect();
        if segments.iter().any(|segment| segment.is_empty()) {
            return None;
        }
        let [
            subscriptions,
            subscription,
            groups,
            group,
            providers,
            compute,
            rest @ ..,
        ] = segments.as_slice()
        else {
            return None;
        };
        let [want_subscriptions, want_groups, want_providers, want_compute, _] = COMPUTE;
        if (*subscriptions, *groups, *providers) != (want_subscriptions, want_groups, want_providers)
            || *compute != want_compute
        {
            return None;
        }
        let kind = match rest {
            ["virtualmachines", name] => MachineKind::Machine {
                name: (*name).to_owned(),
            },
            ["virtualmachinescalesets", set, "virtualmachines", id] => MachineKind::Instance {
                set: (*set).to_owned(),
                id: instance_id(set, id).to_owned(),
            },
            _ => return None,
        };
        Some(Self {
            subscription: (*subscription).to_owned(),
            group: (*group).to_owned(),
            kind,
        })
    }

    /// Reads a provider ID; `None` for one of another cloud.
    ///
    /// # Errors
    /// It has the scheme of Azure and is not the ID of a machine.
    pub(crate) fn of_provider_id(provider_id: &str) -> Result<Option<Self>> {
        let Some(id) = provider_id.strip_prefix(SCHEME) else {
            return Ok(None);
        };
        match Self::parse(id) {
            Some(parsed) if id.starts_with('/') => Ok(Some(parsed)),
            _ => {
                let text = format!(
                    "provider ID {provider_id:?} is not that of a machine; expected \
                     azure:///subscriptions/<id>/resourceGroups/<group>/providers/Microsoft.Compute/virtualMachines/<name>, or an \
                     instance of a scale set"
                );
                Err(Error::new(ErrorKind::InvalidSpec, text))
            }
        }
    }

    /// The document of the machine.
    pub(crate) fn resource(&self) -> Resource<'_> {
        let group = &self.group;
        match &self.kind {
            MachineKind::Machine { name } => Resource::Machine { group, name },
            MachineKind::Instance { set, id } => Resource::Instance { group, set, id },
        }
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subscription,
            group,
            kind,
        } = self;
        write!(f, "/subscriptions/{subscription}/resourcegroups/{group}/providers/microsoft.compute/")?;
        match kind {
            MachineKind::Machine { name } => write!(f, "virtualmachines/{name}"),
            MachineKind::Instance { set, id } => {
                write!(f, "virtualmachinescalesets/{set}/virtualmachines/{id}")
            }
        }
    }
}

/// The ID of an instance. Some answers have `<scale set>_<ID>` in its place.
fn instance_id<'a>(set: &str, id: &'a str) -> &'a str {
    let rest = id.strip_prefix(set);
    match rest.and_then(|rest| rest.rsplit_once('_')) {
        Some((_, id)) => id,
        None => id,
    }
}

/// The provider ID of a document: only the resource group is in lower case.
pub(crate) fn provider_id(id: &str) -> String {
    let mut segments: Vec<String> = id.split('/').map(str::to_owned).collect();
    let group = segments.iter().position(|segment| segment.eq_ignore_ascii_case("resourceGroups"));
    if let Some(name) = group.and_then(|group| segments.get_mut(group + 1)) {
        name.make_ascii_lowercase();
    }
    if let [.., sets, set, machines, id] = segments.as_mut_slice()
        && sets.eq_ignore_ascii_case("virtualMachineScaleSets")
        && machines.eq_ignore_ascii_case("virtualMachines")
    {
        let number = instance_id(&set.to_ascii_lowercase(), &id.to_ascii_lowercase()).to_owned();
        *id = number;
    }
    format!("{SCHEME}{}", segments.join("/"))
}

/// The resource group in an ID, in lower case.
pub(crate) fn group_of(id: &str) -> Option<String> {
    let mut segments = id.split('/');
    segments.find(|segment| segment.eq_ignore_ascii_case("resourceGroups"))?;
    segments.next().map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MACHINE: &str =
        "/subscriptions/S/resourceGroups/My-Group/providers/Microsoft.Compute/virtualMachines/VM-1";
    const INSTANCE: &str = "/subscriptions/s/resourcegroups/G/providers/Microsoft.Compute/virtualMachineScaleSets/Pool/virtualMachines/7";

    #[test]
    fn only_the_group_is_in_lower_case() {
        assert_eq!(
            provider_id(MACHINE),
            "azure:///subscriptions/S/resourceGroups/my-group/providers/Microsoft.Compute/virtualMachines/VM-1"
        );
        let named = INSTANCE.replace("/7", "/Pool_7");
        assert_eq!(provider_id(&named), provider_id(INSTANCE));
        assert!(provider_id(INSTANCE).ends_with("/virtualMachineScaleSets/Pool/virtualMachines/7"));
        // The name of a machine of a flexible scale set stays as it is.
        let flexible = MACHINE.replace("VM-1", "pool_1A2B3C4D");
        assert!(provider_id(&flexible).ends_with("/pool_1A2B3C4D"));
    }

    #[test]
    fn spellings_of_an_id_are_one_machine() {
        let same = [
            INSTANCE.to_owned(),
            INSTANCE.to_uppercase(),
            INSTANCE.replace("/7", "/pool_7"),
        ];
        let ids: Vec<_> = same.iter().map(|id| MachineId::parse(id).unwrap().to_string()).collect();
        assert_eq!(ids[0], ids[1]);
        assert_eq!(ids[0], ids[2]);
        assert_eq!(MachineId::parse(&ids[0]).unwrap().to_string(), ids[0]);
        assert_eq!(group_of(MACHINE).unwrap(), "my-group");
    }

    #[test]
    fn other_ids_are_foreign_or_malformed() {
        assert_eq!(MachineId::of_provider_id("aws:///us-east-1a/i-1").unwrap(), None);
        for id in [
            "azure://",
            "azure:///subscriptions/s",
            "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/l",
            "azure:///subscriptions/s/resourceGroups//providers/Microsoft.Compute/virtualMachines/v",
            "azure://subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/v",
        ] {
            let error = MachineId::of_provider_id(id).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidSpec && error.report().contains(id), "{id}: {error}");
        }
    }
}
