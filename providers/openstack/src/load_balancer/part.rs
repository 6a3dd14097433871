//! The parts of a Service's load balancer, and the types that all decisions about them share.

use std::sync::Arc;

use ccm_core::plan::{self, Fact, part_keys};

use super::settings::LoadBalancing;

part_keys! {
    /// A part: what one writer may change at a time.
    pub(crate) enum OpenStackPart {
        /// The load balancer with this ID.
        Balancer(String) = "lb/";
        /// The load balancer with this name, which does not exist yet.
        New(String) = "lb/new:";
        /// The security group with this name.
        Group(String) = "sg/";
        /// The ports of all nodes.
        NodePorts = "node-ports";
    }
}

/// The part model of OpenStack. Its decisions are in [`model`](super::model).
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Arc<LoadBalancing>,
}

/// A Service in a part.
pub(crate) type PartMember = plan::Member<Model>;

/// The facts of a part that later parts need.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PartFacts {
    /// From a load balancer: the subnet of its virtual address.
    pub(crate) vip_subnet: String,
    /// From a load balancer: the subnet of its additional virtual address; empty if it has none.
    pub(crate) additional_subnet: String,
    /// From a security group: its ID.
    pub(crate) group: Option<Fact<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for (text, key) in [
            ("lb/0a-1b", OpenStackPart::Balancer("0a-1b".into())),
            ("lb/new:kube_service_c_n_s", OpenStackPart::New("kube_service_c_n_s".into())),
            ("sg/lb-sg-u-n-s", OpenStackPart::Group("lb-sg-u-n-s".into())),
            ("node-ports", OpenStackPart::NodePorts),
        ] {
            assert_eq!(key.to_string(), text);
            assert_eq!(text.parse(), Ok(key));
        }
        for text in ["x", "node-ports/1"] {
            assert_eq!(text.parse::<OpenStackPart>(), Err(()));
        }
    }
}
