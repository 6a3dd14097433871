//! The node IPAM controller: parts of `--cluster-cidr` as `spec.podCIDRs` of nodes. Off unless `--allocate-node-cidrs` is set.

use ccm_core::{
    FlagValues, Result,
    config::{KeyPath, Problems},
    controllers::{
        ControllerContext, ControllerDef, ControllerFuture,
        ipam::{NAMES, RangeAllocator, is_configured, needs, run},
    },
};

use crate::ALLOCATOR;

/// The controller.
pub(crate) const DEF: ControllerDef = ControllerDef {
    names: NAMES,
    default_on: true,
    needs,
    start,
};

fn start(context: ControllerContext) -> Result<ControllerFuture> {
    let allocator = RangeAllocator::of(&context.setup.flags)?;
    // Also nodes without a machine in Azure have Pods.
    Ok(Box::pin(run(context, allocator, |_| true)))
}

/// Checks the flags, if the controller is configured. Otherwise they have no effect.
pub(crate) fn check(flags: &FlagValues, problems: &mut Problems) {
    if !is_configured(flags) {
        return;
    }
    let key = || KeyPath::key("--cidr-allocator-type");
    match flags.text(&ALLOCATOR) {
        "RangeAllocator" => RangeAllocator::check(flags, problems),
        "CloudAllocator" => problems.error(
            key(),
            "CloudAllocator is not supported: sizes of networks cannot be set by tags of scale sets; write RangeAllocator, and the \
             size of all networks to --node-cidr-mask-size",
        ),
        name => problems.error(key(), format!("{name:?} is not an allocator; write RangeAllocator")),
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::config::Locations;

    use super::*;

    fn problems(given: &[(&str, &str)]) -> Vec<String> {
        let flags = given.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]));
        let mut problems = Problems::new("flags", Locations::default());
        check(&flags.collect(), &mut problems);
        match problems.finish() {
            Ok(_) => Vec::new(),
            Err(errors) => errors.problems().iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn flags_are_checked_only_if_the_controller_is_configured() {
        let on = ("allocate-node-cidrs", "true");
        let cidr = ("cluster-cidr", "10.244.0.0/16");
        assert!(problems(&[("cidr-allocator-type", "x")]).is_empty());
        assert!(problems(&[on, cidr]).is_empty());
        for (given, text) in [
            (vec![on], "--cluster-cidr: is empty"),
            (
                vec![on, cidr, ("cidr-allocator-type", "CloudAllocator")],
                "CloudAllocator is not supported",
            ),
            (vec![on, cidr, ("cidr-allocator-type", "x")], "\"x\" is not an allocator"),
            (vec![on, cidr, ("node-cidr-mask-size", "40")], "--node-cidr-mask-size: 40 does not fit"),
            (vec![on, cidr, ("service-cluster-ip-range", "y")], "--service-cluster-ip-range"),
        ] {
            let found = problems(&given);
            assert!(found.iter().any(|problem| problem.contains(text)), "{text}: {found:#?}");
        }
    }
}
