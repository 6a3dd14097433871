//! Divides the cluster's CIDRs among the nodes.

use std::{net::IpAddr, sync::Arc};

use async_trait::async_trait;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::CidrAllocator;
use crate::{
    Error, ErrorKind, FlagValues, Result,
    config::{KeyPath, Problems},
    controllers::NodeObject,
    routes::ClusterCidrs,
};

/// A CIDR has at most 2^16 networks for nodes. Source: `pkg/controller/nodeipam` of Kubernetes.
const MOST_BITS: u8 = 16;
/// The prefix lengths of the networks of nodes, unless flags set others.
const DEFAULT_V4: u8 = 24;
const DEFAULT_V6: u8 = 64;

/// The flags of the allocator. A mask of 0 is not set.
#[derive(Clone, Copy, Debug, Default)]
pub struct RangeFlags<'a> {
    /// `--cluster-cidr`.
    pub cluster_cidr: &'a str,
    /// `--service-cluster-ip-range`.
    pub service_cluster_ip_range: &'a str,
    /// `--node-cidr-mask-size`.
    pub mask_size: i64,
    /// `--node-cidr-mask-size-ipv4`.
    pub mask_size_v4: i64,
    /// `--node-cidr-mask-size-ipv6`.
    pub mask_size_v6: i64,
}

impl<'a> RangeFlags<'a> {
    /// The flags by their names, which are the same for every provider that defines them. Their values were checked when they were
    /// parsed.
    #[must_use]
    pub fn of(flags: &'a FlagValues) -> Self {
        let text = |name| flags.given(name).and_then(|values| values.last()).map_or("", String::as_str);
        let number = |name| text(name).parse().unwrap_or_default();
        Self {
            cluster_cidr: text("cluster-cidr"),
            service_cluster_ip_range: text("service-cluster-ip-range"),
            mask_size: number("node-cidr-mask-size"),
            mask_size_v4: number("node-cidr-mask-size-ipv4"),
            mask_size_v6: number("node-cidr-mask-size-ipv6"),
        }
    }
}

/// A problem of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeProblem {
    /// The flag with its dashes.
    pub flag: &'static str,
    /// The problem and its fix.
    pub problem: String,
}

/// Divides the cluster's CIDRs among the nodes. The networks of Services are left out.
#[derive(Debug)]
pub struct RangeAllocator {
    sets: Vec<CidrSet>,
    services: Vec<IpNet>,
}

impl RangeAllocator {
    /// Reads the flags.
    ///
    /// # Errors
    /// All problems.
    pub fn new(flags: &RangeFlags<'_>) -> Result<Self, Vec<RangeProblem>> {
        let problem = |flag, problem: String| RangeProblem { flag, problem };
        let cluster = match ClusterCidrs::parse(flags.cluster_cidr) {
            Ok(cidrs) => cidrs.networks().to_vec(),
            Err(text) => return Err(vec![problem("--cluster-cidr", text)]),
        };
        let mut problems = Vec::new();
        let services = match flags.service_cluster_ip_range.trim() {
            "" => Vec::new(),
            text => ClusterCidrs::parse(text).map(|cidrs| cidrs.networks().to_vec()).unwrap_or_else(|text| {
                problems.push(problem("--service-cluster-ip-range", text));
                Vec::new()
            }),
        };
        let is_dual = cluster.len() > 1;
        if is_dual && flags.mask_size != 0 {
            let text = "cannot be used with CIDRs of two families; write --node-cidr-mask-size-ipv4 and \
                        --node-cidr-mask-size-ipv6";
            problems.push(problem("--node-cidr-mask-size", text.to_owned()));
        }
        let mut sets = Vec::new();
        for cidr in &cluster {
            let (flag, own, default) = match cidr {
                IpNet::V4(_) => ("--node-cidr-mask-size-ipv4", flags.mask_size_v4, DEFAULT_V4),
                IpNet::V6(_) => ("--node-cidr-mask-size-ipv6", flags.mask_size_v6, DEFAULT_V6),
            };
            if own != 0 && flags.mask_size != 0 && !is_dual {
                let text = format!("cannot be used together with {flag}; remove one of them");
                problems.push(problem("--node-cidr-mask-size", text));
            }
            let (flag, given) = match (own, flags.mask_size) {
                (0, given) => ("--node-cidr-mask-size", given),
                (own, _) => (flag, own),
            };
            let mask = if given == 0 { i64::from(default) } else { given };
            let (least, most) = (cidr.prefix_len(), cidr.max_prefix_len());
            let most = most.min(least.saturating_add(MOST_BITS));
            match u8::try_from(mask) {
                Ok(mask) if (least..=most).contains(&mask) => sets.push(CidrSet::new(*cidr, mask)),
                _ => {
                    let text = format!(
                        "{mask} does not fit --cluster-cidr {cidr}; write a number from {least} to {most}"
                    );
                    problems.push(problem(flag, text));
                }
            }
        }
        let has = |v4: bool| cluster.iter().any(|cidr| matches!(cidr, IpNet::V4(_)) == v4);
        for (flag, mask, is_used) in [
            ("--node-cidr-mask-size-ipv4", flags.mask_size_v4, has(true)),
            ("--node-cidr-mask-size-ipv6", flags.mask_size_v6, has(false)),
        ] {
            if mask != 0 && !is_used {
                let text = "--cluster-cidr has no network of this family; remove the flag".to_owned();
                problems.push(problem(flag, text));
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut allocator = Self { sets, services };
        allocator.leave_out_services();
        Ok(allocator)
    }

    /// Reads the flags of the command line.
    ///
    /// # Errors
    /// `InvalidConfig` with all problems.
    pub fn of(flags: &FlagValues) -> Result<Self> {
        Self::new(&RangeFlags::of(flags)).map_err(|problems| {
            let texts: Vec<_> =
                problems.iter().map(|problem| format!("{} {}", problem.flag, problem.problem)).collect();
            Error::new(ErrorKind::InvalidConfig, texts.join("; "))
        })
    }

    /// Adds the problems of the flags of the command line.
    pub fn check(flags: &FlagValues, problems: &mut Problems) {
        for problem in Self::new(&RangeFlags::of(flags)).err().unwrap_or_default() {
            problems.error(KeyPath::key(problem.flag), problem.problem);
        }
    }

    /// A network of each family, or none.
    fn allocate_one(&mut self) -> Result<Vec<IpNet>> {
        let mut cidrs: Vec<IpNet> = Vec::new();
        for at in 0..self.sets.len() {
            let Some(set) = self.sets.get_mut(at) else { break };
            if let Some(cidr) = set.next() {
                cidrs.push(cidr);
                continue;
            }
            let text = format!("all networks of --cluster-cidr {} are in use", set.cluster);
            self.mark(&cidrs, false);
            return Err(Error::new(ErrorKind::QuotaExceeded, text));
        }
        Ok(cidrs)
    }

    fn mark(&mut self, cidrs: &[IpNet], is_used: bool) {
        for cidr in cidrs {
            for set in &mut self.sets {
                set.mark(cidr, is_used);
            }
        }
    }

    fn leave_out_services(&mut self) {
        for service in &self.services {
            for set in &mut self.sets {
                set.mark(service, true);
            }
        }
    }
}

#[async_trait]
impl CidrAllocator for RangeAllocator {
    const REPAIRS_NETWORK: bool = false;

    fn occupy(&mut self, _: &str, cidrs: &[IpNet]) -> Result<()> {
        let is_inside = |cidr: &IpNet| self.sets.iter().any(|set| set.cluster.contains(cidr));
        let outside: Vec<String> =
            cidrs.iter().filter(|cidr| !is_inside(cidr)).map(ToString::to_string).collect();
        let taken: Vec<String> = cidrs
            .iter()
            .filter(|cidr| self.sets.iter().any(|set| set.is_used(cidr)))
            .map(ToString::to_string)
            .collect();
        self.mark(cidrs, true);
        if !outside.is_empty() {
            let text = format!("{} is not inside --cluster-cidr", outside.join(", "));
            return Err(Error::new(ErrorKind::InvalidSpec, text));
        }
        if !taken.is_empty() {
            let text = format!("{} is that of another node or of Services", taken.join(", "));
            return Err(Error::new(ErrorKind::InvalidSpec, text));
        }
        Ok(())
    }

    fn release(&mut self, _: &str, cidrs: &[IpNet]) {
        self.mark(cidrs, false);
        self.leave_out_services();
    }

    async fn allocate(&mut self, nodes: &[Arc<NodeObject>]) -> Vec<Result<Vec<IpNet>>> {
        nodes.iter().map(|_| self.allocate_one()).collect()
    }
}

/// The networks of one CIDR, and which of them are in use.
#[derive(Debug)]
struct CidrSet {
    cluster: IpNet,
    /// The prefix length of the networks.
    mask: u8,
    /// A bit for each network.
    used: Vec<bool>,
    /// The network after the last one that was given away. A network that was just returned is used last.
    candidate: usize,
}

/// The number of an address.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

impl CidrSet {
    fn new(cluster: IpNet, mask: u8) -> Self {
        let bits = mask.saturating_sub(cluster.prefix_len()).min(MOST_BITS);
        Self {
            used: vec![false; 1 << bits],
            candidate: 0,
            cluster,
            mask,
        }
    }

    /// How many addresses a network has, as a power of two.
    fn host_bits(&self) -> u32 {
        u32::from(self.cluster.max_prefix_len() - self.mask)
    }

    /// The first and the last of the networks that overlap with this one; `None` if none does.
    fn range(&self, cidr: &IpNet) -> Option<(usize, usize)> {
        let is_same_family = matches!(self.cluster, IpNet::V4(_)) == matches!(cidr, IpNet::V4(_));
        if !is_same_family || !(self.cluster.contains(cidr) || cidr.contains(&self.cluster)) {
            return None;
        }
        let base = number(self.cluster.network());
        let place = |address: IpAddr| {
            let offset = number(address).saturating_sub(base).checked_shr(self.host_bits()).unwrap_or(0);
            usize::try_from(offset).unwrap_or(usize::MAX).min(self.used.len() - 1)
        };
        let first = if number(cidr.network()) < base {
            0
        } else {
            place(cidr.network())
        };
        Some((first, place(cidr.broadcast())))
    }

    fn mark(&mut self, cidr: &IpNet, is_used: bool) {
        if let Some((first, last)) = self.range(cidr)
            && let Some(part) = self.used.get_mut(first..=last)
        {
            part.fill(is_used);
        }
    }

    fn is_used(&self, cidr: &IpNet) -> bool {
        let range = self.range(cidr).and_then(|(first, last)| self.used.get(first..=last));
        range.is_some_and(|part| part.contains(&true))
    }

    /// Gives away a network.
    fn next(&mut self) -> Option<IpNet> {
        let count = self.used.len();
        let free = (0..count).map(|at| (self.candidate + at) % count).find(|at| !self.used[*at])?;
        self.used[free] = true;
        self.candidate = (free + 1) % count;
        let offset = u128::try_from(free).ok()?.checked_shl(self.host_bits()).unwrap_or(0);
        let address = number(self.cluster.network()) + offset;
        match self.cluster {
            IpNet::V4(_) => {
                let address = u32::try_from(address).ok()?;
                Some(Ipv4Net::new(address.into(), self.mask).ok()?.into())
            }
            IpNet::V6(_) => Some(Ipv6Net::new(address.into(), self.mask).ok()?.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn allocator(
        cluster_cidr: &str,
        service_cluster_ip_range: &str,
        masks: [i64; 3],
    ) -> Result<RangeAllocator, Vec<RangeProblem>> {
        let [mask_size, mask_size_v4, mask_size_v6] = masks;
        RangeAllocator::new(&RangeFlags {
            cluster_cidr,
            service_cluster_ip_range,
            mask_size,
            mask_size_v4,
            mask_size_v6,
        })
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn given(allocator: &mut RangeAllocator) -> String {
        match allocator.allocate_one() {
            Ok(cidrs) => cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn networks_are_given_in_turn_and_once() {
        let mut range = allocator("10.244.0.0/22", "", [0; 3]).unwrap();
        range.occupy("a", &nets(&["10.244.1.0/24"])).unwrap();
        for expected in [
            "10.244.0.0/24",
            "10.244.2.0/24",
            "10.244.3.0/24",
            "all networks of --cluster-cidr 10.244.0.0/22 are in use",
        ] {
            assert_eq!(given(&mut range), expected);
        }
        range.release("a", &nets(&["10.244.1.0/24"]));
        assert_eq!(given(&mut range), "10.244.1.0/24");
    }

    #[test]
    fn two_families_are_given_together_or_not_at_all() {
        let mut range = allocator("10.0.0.0/24,fd00::/56", "", [0, 25, 64]).unwrap();
        assert_eq!(given(&mut range), "10.0.0.0/25,fd00::/64");
        assert_eq!(given(&mut range), "10.0.0.128/25,fd00:0:0:1::/64");
        assert!(given(&mut range).contains("10.0.0.0/24"));
        range.release("", &nets(&["10.0.0.0/25", "fd00::/64"]));
        assert_eq!(given(&mut range), "10.0.0.0/25,fd00:0:0:2::/64");
        // The IPv4 network of a node that gets no IPv6 network is free again.
        let mut range = allocator("fd00::/64,10.0.0.0/24", "", [0, 26, 64]).unwrap();
        assert_eq!(given(&mut range), "fd00::/64,10.0.0.0/26");
        assert!(given(&mut range).contains("fd00::/64"));
        range.release("", &nets(&["fd00::/64"]));
        assert_eq!(given(&mut range), "fd00::/64,10.0.0.64/26");
    }

    #[test]
    fn the_networks_of_services_are_left_out() {
        let mut range = allocator("10.0.0.0/22", "10.0.1.0/28", [0; 3]).unwrap();
        assert_eq!(given(&mut range), "10.0.0.0/24");
        assert_eq!(given(&mut range), "10.0.2.0/24");
        let mut range = allocator("10.0.0.0/22", "10.0.0.0/8", [0; 3]).unwrap();
        assert!(given(&mut range).contains("are in use"));
        let mut range = allocator("10.0.0.0/22", "10.1.0.0/16", [0; 3]).unwrap();
        assert_eq!(given(&mut range), "10.0.0.0/24");
    }

    #[test]
    fn unexpected_networks_of_nodes_are_reported_and_not_given_again() {
        let mut range = allocator("10.0.0.0/22", "10.0.3.0/24", [0; 3]).unwrap();
        range.occupy("a", &nets(&["10.0.0.0/24"])).unwrap();
        for (cidrs, problem) in [
            (["10.0.0.0/24"], "10.0.0.0/24 is that of another node"),
            (["10.0.3.0/24"], "10.0.3.0/24 is that of another node or of Services"),
            (["192.168.0.0/24"], "192.168.0.0/24 is not inside --cluster-cidr"),
        ] {
            let error = range.occupy("b", &nets(&cidrs)).unwrap_err();
            assert!(error.message().contains(problem), "{error}");
        }
        // A larger one takes all that it contains.
        range.occupy("c", &nets(&["10.0.1.0/25"])).unwrap();
        assert_eq!(given(&mut range), "10.0.2.0/24");
        assert!(given(&mut range).contains("are in use"));
    }

    #[test]
    fn all_problems_of_flags_are_reported() {
        for (cluster, services, masks, flags) in [
            ("", "", [0; 3], &["--cluster-cidr"][..]),
            ("10.0.0.0/16", "x", [8, 0, 0], &["--service-cluster-ip-range", "--node-cidr-mask-size"]),
            ("10.0.0.0/8", "", [25, 0, 0], &["--node-cidr-mask-size"]),
            ("10.0.0.0/16", "", [33, 0, 0], &["--node-cidr-mask-size"]),
            (
                "10.0.0.0/16,fd00::/56",
                "",
                [24, 0, 0],
                &["--node-cidr-mask-size", "--node-cidr-mask-size"],
            ),
            ("10.0.0.0/16", "", [24, 24, 0], &["--node-cidr-mask-size"]),
            ("10.0.0.0/16", "", [0, 0, 64], &["--node-cidr-mask-size-ipv6"]),
            ("fd00::/40", "", [0; 3], &["--node-cidr-mask-size"]),
        ] {
            let problems = allocator(cluster, services, masks).unwrap_err();
            let found: Vec<_> = problems.iter().map(|problem| problem.flag).collect();
            assert!(
                found.starts_with(&flags[..1]) && found.len() >= flags.len(),
                "{cluster} {masks:?}: {problems:#?}"
            );
        }
        let problems = allocator("10.0.0.0/8", "", [25, 0, 0]).unwrap_err();
        assert_eq!(
            problems[0].problem,
            "25 does not fit --cluster-cidr 10.0.0.0/8; write a number from 8 to 24"
        );
        assert!(allocator("fd00::/48", "", [0; 3]).is_ok());
    }
}
