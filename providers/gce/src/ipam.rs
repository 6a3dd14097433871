//! The node IPAM controller: `spec.podCIDRs` of nodes. Off unless `--allocate-node-cidrs` is set.
//!
//! | `--cidr-allocator-type` | Networks |
//! |---|---|
//! | `RangeAllocator` | parts of `--cluster-cidr` ([`RangeAllocator`]) |
//! | `CloudAllocator` | the alias range and the IPv6 address of the node's instance ([`AliasRanges`]) |
//! | `IPAMFromCluster`, `IPAMFromCloud` | refused |

use std::{collections::HashMap, net::Ipv6Addr, sync::Arc};

use ccm_core::{
    Error, ErrorKind, FlagValues, Priority, Result, async_trait,
    config::{KeyPath, Problems},
    controllers::{
        ControllerContext, ControllerDef, ControllerFuture, NodeObject,
        ipam::{CidrAllocator, NAMES, RangeAllocator, is_configured, needs, run},
    },
    routes::ClusterCidrs,
};
use ipnet::{IpNet, Ipv6Net};

use crate::{
    ALLOCATOR, Gce, MULTI_NETWORKING, MULTI_SUBNET, SERVICE_RANGE,
    client::Instance,
    instances::{GceInstances, is_unmanaged, provider_id},
};

/// The prefix length of a node's part of IPv6. Source: the Go cloud-controller-manager.
const IPV6_MASK: u8 = 112;
/// The name of the first network interface.
const FIRST_INTERFACE: &str = "nic0";

/// The controller.
pub(crate) const DEF: ControllerDef = ControllerDef {
    names: NAMES,
    default_on: true,
    needs,
    start,
};

fn start(context: ControllerContext) -> Result<ControllerFuture> {
    let flags = context.setup.flags.clone();
    if flags.text(&ALLOCATOR) == CLOUD {
        let gce = context.setup.cloud_as::<Gce>()?;
        let allocator = AliasRanges {
            instances: gce.nodes.instances.clone(),
            stack: Stack::of(flags.text(&SERVICE_RANGE))
                .map_err(|text| Error::new(ErrorKind::InvalidConfig, text))?,
        };
        return Ok(Box::pin(run(context, allocator, has_instance)));
    }
    let allocator = RangeAllocator::of(&flags)?;
    Ok(Box::pin(run(context, allocator, |node| !is_unmanaged(&node.view))))
}

const RANGE: &str = "RangeAllocator";
const CLOUD: &str = "CloudAllocator";

/// Checks the flags, if the controller is configured. Otherwise they have no effect.
pub(crate) fn check(flags: &FlagValues, problems: &mut Problems) {
    if !is_configured(flags) {
        return;
    }
    match flags.text(&ALLOCATOR) {
        RANGE => RangeAllocator::check(flags, problems),
        CLOUD => {
            if let Err(problem) = Stack::of(flags.text(&SERVICE_RANGE)) {
                problems.error(KeyPath::key("--service-cluster-ip-range"), problem);
            }
        }
        name @ ("IPAMFromCluster" | "IPAMFromCloud") => {
            let what = format!(
                "{name} is not supported: it was a transition between the other two; write CloudAllocator if instances have alias ranges, \
                 else RangeAllocator"
            );
            problems.error(KeyPath::key("--cidr-allocator-type"), what);
        }
        name => {
            let what = format!("{name:?} is not an allocator; write CloudAllocator or RangeAllocator");
            problems.error(KeyPath::key("--cidr-allocator-type"), what);
        }
    }
    for (flag, key) in [
        (&MULTI_NETWORKING, "--enable-multi-networking"),
        (&MULTI_SUBNET, "--enable-multi-subnet-cluster"),
    ] {
        let what = "is not supported: it needs resources of Kubernetes Engine; remove the flag";
        problems.require(!flags.boolean(flag), KeyPath::key(key), what);
    }
}

/// The families of the networks of a node, in their order. That of Services decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    V4,
    V6,
    V4V6,
    V6V4,
}

impl Stack {
    fn of(service_range: &str) -> Result<Self, String> {
        if service_range.trim().is_empty() {
            return Ok(Self::V4);
        }
        Ok(match ClusterCidrs::parse(service_range)?.networks() {
            [IpNet::V4(_), IpNet::V6(_)] => Self::V4V6,
            [IpNet::V6(_), IpNet::V4(_)] => Self::V6V4,
            [IpNet::V6(_)] => Self::V6,
            _ => Self::V4,
        })
    }

    /// The networks of an instance.
    fn networks(self, instance: &Instance) -> Result<Vec<IpNet>> {
        let refused = |text: String| Error::new(ErrorKind::InvalidSpec, text);
        let first = instance.interfaces.iter().find(|interface| interface.name == FIRST_INTERFACE);
        let Some(interface) = first.or(instance.interfaces.first()) else {
            return Err(refused(format!("instance {} has no network interface", instance.id)));
        };
        let v4 = || {
            let range = interface.alias_ranges.first();
            range
                .and_then(|range| range.parse::<IpNet>().ok())
                .map(|range| range.trunc())
                .ok_or_else(|| {
                    refused(format!(
                        "interface {} of instance {} has no alias range for Pods",
                        interface.name, instance.id
                    ))
                })
        };
        let v6 = || {
            let address = interface.ipv6.as_deref().and_then(|text| text.parse::<Ipv6Addr>().ok());
            let network = address.and_then(|address| Ipv6Net::new(address, IPV6_MASK).ok());
            network.map(|network| IpNet::V6(network.trunc())).ok_or_else(|| {
                refused(format!(
                    "interface {} of instance {} has no IPv6 address",
                    interface.name, instance.id
                ))
            })
        };
        Ok(match self {
            Self::V4 => vec![v4()?],
            Self::V6 => vec![v6()?],
            Self::V4V6 => vec![v4()?, v6()?],
            Self::V6V4 => vec![v6()?, v4()?],
        })
    }
}

/// Reads the networks that Compute Engine has assigned to the instances of nodes.
struct AliasRanges {
    instances: GceInstances,
    stack: Stack,
}

#[async_trait]
impl CidrAllocator for AliasRanges {
    const REPAIRS_NETWORK: bool = true;

    fn occupy(&mut self, _: &str, _: &[IpNet]) -> Result<()> {
        Ok(())
    }

    fn release(&mut self, _: &str, _: &[IpNet]) {}

    async fn allocate(&mut self, nodes: &[Arc<NodeObject>]) -> Vec<Result<Vec<IpNet>>> {
        let ids: Vec<Result<String>> = nodes.iter().map(|node| instance_of(node)).collect();
        let known: Vec<&str> = ids.iter().filter_map(|id| id.as_deref().ok()).collect();
        let found = self.instances.records(&known, Priority::User).await;
        let mut by_id: HashMap<&str, Result<Arc<Instance>>> = HashMap::new();
        for (id, record) in known.iter().zip(found) {
            let instance = record.and_then(|record| {
                record.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("instance {id} was not found")))
            });
            by_id.insert(*id, instance);
        }
        ids.iter()
            .map(|id| {
                let id = id.as_deref().map_err(Clone::clone)?;
                match by_id.get(id) {
                    Some(Ok(instance)) => self.stack.networks(instance),
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(Error::new(ErrorKind::Unexpected, format!("bug: no answer about {id}"))),
                }
            })
            .collect()
    }
}

/// Whether the node has an instance of GCE. A node without a provider ID is asked about again when it has one.
fn has_instance(node: &NodeObject) -> bool {
    !is_unmanaged(&node.view) && instance_of(node).is_ok()
}

/// The ID of a node's instance.
fn instance_of(node: &NodeObject) -> Result<String> {
    let text = node.view.provider_id.as_deref().unwrap_or_default();
    match provider_id::parse(text)? {
        Some(instance) => Ok(instance.id()),
        None => Err(Error::new(ErrorKind::InvalidSpec, format!("{text:?} is not an instance of GCE"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::config::Locations;

    use super::*;
    use crate::client::compute::NetworkInterface;

    fn instance(alias: &[&str], ipv6: Option<&str>) -> Instance {
        let interface = |name: &str, alias: &[&str]| NetworkInterface {
            name: name.to_owned(),
            alias_ranges: alias.iter().map(ToString::to_string).collect(),
            ipv6: ipv6.map(str::to_owned),
            ..NetworkInterface::default()
        };
        Instance {
            id: "p/z/n".to_owned(),
            interfaces: vec![interface("nic1", &["10.9.9.0/24"]), interface("nic0", alias)],
            ..Instance::default()
        }
    }

    #[test]
    fn the_families_of_services_decide_about_those_of_pods() {
        let dual = instance(&["10.1.2.0/24", "10.3.0.0/24"], Some("2600:1900:4000::7:8:9"));
        for (services, expected) in [
            ("", "10.1.2.0/24"),
            ("10.0.0.0/16", "10.1.2.0/24"),
            ("fd00::/112", "2600:1900:4000::7:8:0/112"),
            ("10.0.0.0/16,fd00::/112", "10.1.2.0/24 2600:1900:4000::7:8:0/112"),
            ("fd00::/112,10.0.0.0/16", "2600:1900:4000::7:8:0/112 10.1.2.0/24"),
        ] {
            let networks = Stack::of(services).unwrap().networks(&dual).unwrap();
            let texts: Vec<_> = networks.iter().map(ToString::to_string).collect();
            assert_eq!(texts.join(" "), expected, "{services}");
        }
        for (services, instance, text) in [
            (
                "",
                instance(&[], Some("2600::1")),
                "interface nic0 of instance p/z/n has no alias range for Pods",
            ),
            ("10.0.0.0/16,fd00::/112", instance(&["10.1.2.0/24"], None), "has no IPv6 address"),
            ("", Instance::default(), "has no network interface"),
        ] {
            let error = Stack::of(services).unwrap().networks(&instance).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            assert!(error.message().contains(text), "{error}");
        }
    }

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
        assert!(problems(&[("cidr-allocator-type", "x")]).is_empty());
        assert!(problems(&[on, ("cluster-cidr", "10.0.0.0/16")]).is_empty());
        assert!(problems(&[on, ("cidr-allocator-type", "CloudAllocator")]).is_empty());
        for (given, text) in [
            (vec![on], "--cluster-cidr: is empty"),
            (
                vec![on, ("cidr-allocator-type", "IPAMFromCluster")],
                "--cidr-allocator-type: IPAMFromCluster is not supported",
            ),
            (
                vec![on, ("cidr-allocator-type", "IPAMFromCloud")],
                "write CloudAllocator if instances have alias ranges",
            ),
            (vec![on, ("cidr-allocator-type", "x")], "\"x\" is not an allocator"),
            (
                vec![
                    on,
                    ("cidr-allocator-type", "CloudAllocator"),
                    ("service-cluster-ip-range", "x"),
                ],
                "--service-cluster-ip-range",
            ),
            (
                vec![
                    on,
                    ("cluster-cidr", "10.0.0.0/16"),
                    ("enable-multi-networking", "true"),
                ],
                "--enable-multi-networking: is not supported",
            ),
            (
                vec![on, ("cluster-cidr", "10.0.0.0/16"), ("node-cidr-mask-size", "40")],
                "--node-cidr-mask-size: 40 does not fit",
            ),
        ] {
            let found = problems(&given);
            assert!(found.iter().any(|problem| problem.contains(text)), "{text}: {found:#?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_alias_ranges_of_instances_become_the_networks_of_their_nodes() {
        use ccm_core::{config::ConfigFiles, testkit};
        use ccm_testbed::test_cloud::{GceCloud, TestCloud as _};
        use serde_json::json;

        use crate::{client::Api, config, site::Site};

        let gce = GceCloud::start().await.unwrap();
        let interface = |range: &str| json!({"networkInterfaces": [{"network": "global/networks/default", "aliasIpRanges": [{"ipCidrRange": range}]}]});
        let mut nodes = Vec::new();
        for at in 1..=6 {
            let (name, fields) = (format!("n-{at}"), interface(&format!("10.60.{at}.0/24")));
            let fields = if at == 6 { json!({}) } else { fields };
            let zones = ["us-central1-a", "us-central1-b"];
            gce.create_instances(std::slice::from_ref(&name), &zones[at % 2..][..1], &fields)
                .await
                .unwrap();
            let id = format!("gce://{}/{}/{name}", gce.project(), zones[at % 2]);
            let node = json!({"metadata": {"name": name}, "spec": {"providerID": id}});
            nodes.push(Arc::new(serde_json::from_value::<NodeObject>(node).unwrap()));
        }
        let gone = json!({"metadata": {"name": "gone"}, "spec": {"providerID": format!("gce://{}/us-central1-a/gone", gce.project())}});
        nodes.push(Arc::new(serde_json::from_value(gone).unwrap()));

        let (_folder, context) = testkit::context(&gce.config(), gce.environment().into_iter().collect());
        let config = config::load(&context, &mut ConfigFiles::default()).unwrap().value;
        let api = Api::connect(config.connection.clone(), &config.conf.quota, &context).await.unwrap();
        let site = Arc::new(Site::find(&api, &config, &context.metrics).await.unwrap());
        let mut allocator = AliasRanges {
            instances: GceInstances::new(&api, &site, config.stack, false, &context.metrics),
            stack: Stack::V4,
        };
        gce.proxy.forget();
        let answers = allocator.allocate(&nodes).await;
        for (at, answer) in answers[..5].iter().enumerate() {
            let expected: IpNet = format!("10.60.{}.0/24", at + 1).parse().unwrap();
            assert_eq!(answer.as_ref().unwrap(), &[expected]);
        }
        assert_eq!(answers[5].as_ref().unwrap_err().kind(), ErrorKind::InvalidSpec);
        assert_eq!(answers[6].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
        // The Go program reads each instance.
        let calls: Vec<_> = gce.proxy.requests().into_iter().map(|request| request.name).collect();
        assert_eq!(calls.iter().filter(|call| *call == "instances.list").count(), 2, "{calls:?}");
        assert_eq!(calls.iter().filter(|call| *call == "instances.get").count(), 1, "{calls:?}");
    }
}
