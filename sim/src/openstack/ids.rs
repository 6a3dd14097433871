//! Identifiers in the shapes of the real services, generated from one seed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use uuid::Builder;

/// A source of identifiers.
#[derive(Debug)]
pub(crate) struct Ids(Mutex<StdRng>);

const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Ids {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    /// A random (version 4) UUID.
    pub(crate) fn uuid(&self) -> String {
        let bits = self.0.lock().random::<u128>();
        let uuid = Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
        uuid.to_string()
    }

    /// 32 hexadecimal digits, like Keystone's IDs.
    pub(crate) fn hex(&self) -> String {
        format!("{:032x}", self.0.lock().random::<u128>())
    }

    /// `length` characters of the URL-safe base64 alphabet.
    pub(crate) fn text(&self, length: usize) -> String {
        let mut rng = self.0.lock();
        (0..length)
            .filter_map(|_| ALPHABET.get(rng.random_range(0..ALPHABET.len())).map(|&byte| char::from(byte)))
            .collect()
    }

    /// A token in the shape of a Fernet token.
    pub(crate) fn token(&self) -> String {
        format!("gAAAAA{}", self.text(177))
    }

    /// A MAC address below Neutron's base.
    pub(crate) fn mac(&self) -> String {
        let [a, b, c] = self.0.lock().random::<[u8; 3]>();
        format!("fa:16:3e:{a:02x}:{b:02x}:{c:02x}")
    }
}

/// Whether Nova accepts the text as a UUID in paths: hyphens and case do not matter.
pub(crate) fn is_uuid_like(text: &str) -> bool {
    let digits = text.bytes().filter(|&byte| byte != b'-');
    digits.clone().count() == 32 && digits.clone().all(|byte| byte.is_ascii_hexdigit())
}

/// The `index`-th address of a network; index 0 is the network's own address.
pub(crate) fn address_at(net: &IpNet, index: u128) -> Option<IpAddr> {
    let address = match net {
        IpNet::V4(net) => {
            IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(index).ok()?.checked_add(net.network().to_bits())?))
        }
        IpNet::V6(net) => IpAddr::V6(Ipv6Addr::from_bits(index.checked_add(net.network().to_bits())?)),
    };
    net.contains(&address).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_have_the_real_shapes() {
        let ids = Ids::new(1);
        let uuid = ids.uuid();
        assert_eq!(uuid.len(), 36);
        assert_eq!(uuid.as_bytes()[14], b'4', "version 4: {uuid}");
        assert!(is_uuid_like(&uuid));
        assert_ne!(uuid, ids.uuid());
        assert_eq!(ids.hex().len(), 32);
        assert!(ids.token().starts_with("gAAAAA"));
        assert!(!is_uuid_like("node-1"));
    }

    #[test]
    fn addresses_stay_inside_their_network() {
        let net: IpNet = "10.0.0.0/30".parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(address_at(&net, 3).map(|address| address.to_string()).as_deref(), Some("10.0.0.3"));
        assert_eq!(address_at(&net, 4), None);
    }
}
