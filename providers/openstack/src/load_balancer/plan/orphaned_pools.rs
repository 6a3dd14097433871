//! Pools of ours that have lost their listener: somebody deleted it, and Octavia leaves its pool.

use ccm_core::plan::Plan;

use super::Site;
use crate::load_balancer::steps::{Action, Change};

/// Deletes them, since the listener comes back with a pool of its own. A person's pools may well be without a
/// listener; those of Services are told from them by their names.
pub(super) fn sweep(site: &Site<'_>, plan: &mut Plan<Change>) {
    let desired = site.desired;
    let active = desired.active.iter().map(|active| &active.owner.tag);
    let frozen = desired.frozen.iter().map(|frozen| &frozen.owner.tag);
    let leaving = desired.leaving.iter().map(|leaving| &leaving.owner.tag);
    let owners: Vec<_> = active
        .chain(frozen)
        .chain(leaving)
        .chain([&site.tree.balancer.name])
        .collect();
    for pool in &site.tree.orphaned_pools {
        if owners.iter().any(|owner| is_pool_of(&pool.name, owner)) {
            let step = site.step(Action::DeleteOrphanedPool(pool.id.clone()), None);
            plan.steps
                .push(step.because(format!("pool {} has no listener any more", pool.name)));
        }
    }
}

/// Whether it is called as pools for ports are.
fn is_pool_of(name: &str, owner: &str) -> bool {
    let rest = name.strip_prefix("pool_").and_then(|rest| rest.split_once('_'));
    rest.is_some_and(|(index, of)| {
        of == owner && !index.is_empty() && index.bytes().all(|digit| digit.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_balancer::names;

    #[test]
    fn pools_of_people_are_not_taken_for_pools_of_services() {
        assert!(is_pool_of(&names::pool(0, "mine"), "mine"));
        assert!(is_pool_of("pool_12_kube_service_c_n_s", "kube_service_c_n_s"));
        for name in [
            "my pool",
            "pool_mine",
            "pool_x_mine",
            "pool__mine",
            "pool_0_other",
            "pool_0_mine_2",
        ] {
            assert!(!is_pool_of(name, "mine"), "{name}");
        }
    }
}
