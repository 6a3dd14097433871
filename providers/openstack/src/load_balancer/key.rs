//! The parts of a Service's load balancer: what one writer may change at a time.

use std::{fmt, str::FromStr};

/// Which part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The load balancer with this id.
    Balancer(String),
    /// The load balancer with this name, which does not exist yet.
    New(String),
    /// The security group with this name.
    Group(String),
    /// The ports of all nodes.
    NodePorts,
}

const NODE_PORTS: &str = "node-ports";

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balancer(id) => write!(f, "lb/{id}"),
            Self::New(name) => write!(f, "lb/new:{name}"),
            Self::Group(name) => write!(f, "sg/{name}"),
            Self::NodePorts => f.write_str(NODE_PORTS),
        }
    }
}

impl FromStr for Key {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == NODE_PORTS {
            Ok(Self::NodePorts)
        } else if let Some(name) = text.strip_prefix("lb/new:") {
            Ok(Self::New(name.to_owned()))
        } else if let Some(id) = text.strip_prefix("lb/") {
            Ok(Self::Balancer(id.to_owned()))
        } else {
            let name = text.strip_prefix("sg/").ok_or(())?;
            Ok(Self::Group(name.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for key in [
            Key::Balancer("0a-1b".into()),
            Key::New("kube_service_c_n_s".into()),
            Key::Group("lb-sg-u-n-s".into()),
            Key::NodePorts,
        ] {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        assert_eq!("x".parse::<Key>(), Err(()));
    }
}
