//! The subnets of a new load balancer.

use std::collections::BTreeMap;

use super::listings::Network;
use crate::{
    client::ec2::{RouteTable, Subnet},
    site::{Site, has_any_cluster},
};

/// The subnets of a load balancer, or why there are none.
pub(crate) type Chosen = Result<Vec<Subnet>, String>;

/// The subnets that an annotation names: first those by ID, then those by the tag `Name`.
///
/// # Errors
/// A name without a subnet, or with several.
pub(crate) fn named(names: &[String], subnets: &[Subnet]) -> Chosen {
    let is_id = |name: &&String| name.starts_with("subnet-");
    let (ids, others): (Vec<_>, Vec<_>) = names.iter().partition(is_id);
    let mut chosen = Vec::new();
    for name in ids.into_iter().chain(others) {
        let is = |subnet: &&Subnet| subnet.id == *name || subnet.tags.get("Name") == Some(name);
        let found: Vec<_> = subnets.iter().filter(is).collect();
        match found.as_slice() {
            [subnet] => chosen.push(Subnet::clone(subnet)),
            [] => return Err(format!("subnet {name:?} is not in the VPC")),
            _ => return Err(format!("{} subnets have the tag Name={name}", found.len())),
        }
    }
    Ok(chosen)
}

/// One subnet in each zone, by tags and routes; that of the config if none of the VPC qualifies for this cluster.
///
/// # Errors
/// No subnet qualifies, or a subnet has no route table.
pub(crate) fn discovered(network: &Network, internal: bool, site: &Site) -> Chosen {
    let Site { region, cluster, .. } = site;
    let subnets = network.subnets.iter();
    let is_usable = |subnet: &&Subnet| cluster.has(&subnet.tags) || !has_any_cluster(&subnet.tags);
    let mut candidates: Vec<_> = subnets.clone().filter(is_usable).collect();
    if candidates.is_empty() {
        let is_own = |subnet: &&Subnet| Some(&subnet.id) == site.subnet.as_ref();
        candidates.extend(subnets.filter(is_own));
    }
    let (role, kind) = match internal {
        true => ("kubernetes.io/role/internal-elb", ""),
        false => ("kubernetes.io/role/elb", " with a route to an internet gateway"),
    };
    candidates.sort_by_key(|subnet| {
        let is_ours = cluster.key().is_some() && cluster.has(&subnet.tags);
        (!subnet.tags.contains_key(role), !is_ours, subnet.id.clone())
    });
    let mut zones: BTreeMap<&str, &Subnet> = BTreeMap::new();
    for subnet in candidates {
        // A zone of the region itself is `us-west-2a`, unlike `us-west-2-lax-1a` and `us-east-1-wl1-bos-wlz-1`. With an unknown
        // region, every zone qualifies.
        let end = subnet.zone.strip_prefix(region.as_str());
        if end.is_none_or(|end| end.len() == 1) && (internal || is_public(subnet, &network.tables)?) {
            // The first one of a zone is the best one.
            zones.entry(&subnet.zone).or_insert(subnet);
        }
    }
    if zones.is_empty() {
        let key = super::annotations::SUBNETS;
        let fix = format!("tag one for each zone with {role}, or name subnets in the annotation {key}");
        return Err(format!("the VPC has no subnet{kind}; {fix}"));
    }
    Ok(zones.into_values().cloned().collect())
}

fn is_public(subnet: &Subnet, tables: &[RouteTable]) -> Result<bool, String> {
    let mut tables = tables.iter();
    let own = tables.clone().find(|table| table.subnets.contains(&subnet.id));
    let table = own.or_else(|| tables.find(|table| table.is_main));
    let table = table.ok_or_else(|| format!("subnet {} has no route table", subnet.id))?;
    Ok(table.is_public)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ELB: &str = "kubernetes.io/role/elb";
    const INTERNAL: &str = "kubernetes.io/role/internal-elb";
    const OURS: &str = "kubernetes.io/cluster/c";

    fn subnet(id: &str, zone: &str, tags: &[&str]) -> Subnet {
        Subnet {
            id: id.to_owned(),
            zone: zone.to_owned(),
            tags: tags.iter().map(|tag| (tag.to_string(), String::new())).collect(),
            cidrs: Vec::new(),
        }
    }

    fn table(is_public: bool, subnets: &[&str]) -> RouteTable {
        RouteTable {
            is_main: subnets.is_empty(),
            subnets: subnets.iter().map(|id| (*id).to_owned()).collect(),
            is_public,
            ..RouteTable::default()
        }
    }

    /// Subnets whose ID begins with `p` have no route to the internet.
    fn choose(subnets: &[Subnet], internal: bool) -> Result<Vec<String>, String> {
        let ids = subnets.iter().map(|subnet| subnet.id.as_str());
        let private: Vec<_> = ids.filter(|id| id.starts_with('p')).collect();
        let mut tables = vec![table(true, &[])];
        if !private.is_empty() {
            tables.push(table(false, &private));
        }
        let cluster = crate::site::Cluster {
            id: "c".to_owned(),
            legacy: false,
        };
        let site = Site {
            region: "us-west-2".to_owned(),
            subnet: Some("fallback".to_owned()),
            cluster,
            ..Site::default()
        };
        let network = Network {
            subnets: subnets.to_vec(),
            tables,
        };
        let subnets = discovered(&network, internal, &site)?;
        Ok(subnets.into_iter().map(|subnet| subnet.id).collect())
    }

    #[test]
    fn one_subnet_in_each_zone_is_chosen_as_upstream_chooses_it() {
        // Subnets are written as the ID, the letter of the zone, and tags.
        let read = |text: &str| {
            let mut words = text.split(' ');
            let (id, zone) = (words.next().unwrap(), words.next().unwrap());
            let tags = words.map(|tag| match tag {
                "elb" => ELB,
                "internal" => INTERNAL,
                "ours" => OURS,
                _ => "kubernetes.io/cluster/x",
            });
            subnet(id, &format!("us-west-2{zone}"), &tags.collect::<Vec<_>>())
        };
        let cases: [(&str, &[&str], bool, &[&str]); 9] = [
            ("public", &["a1 a elb"], false, &["a1"]),
            ("role before cluster", &["a3 a ours internal", "a9 a elb"], false, &["a9"]),
            ("cluster before none", &["a1 a", "a2 a ours"], false, &["a2"]),
            ("untagged", &["a1 a"], false, &["a1"]),
            ("another cluster's", &["a1 a theirs", "b1 b"], false, &["b1"]),
            ("internal", &["b1 b elb", "p2 b internal"], true, &["p2"]),
            ("equal", &["a2 a", "a1 a"], false, &["a1"]),
            ("by zone", &["z a", "m b", "d c"], false, &["z", "m", "d"]),
            ("local zones", &["l -lax-1a elb", "a1 a"], false, &["a1"]),
        ];
        for (name, subnets, internal, expected) in cases {
            let subnets: Vec<_> = subnets.iter().map(|text| read(text)).collect();
            let chosen = choose(&subnets, internal).unwrap_or_default();
            assert_eq!(chosen, expected, "{name}");
        }
        let none = choose(&[read("p1 a elb")], false);
        assert!(none.is_err_and(|text| text.contains("route to an internet gateway")));
        let foreign = [read("fallback a theirs")];
        assert_eq!(choose(&foreign, false), Ok(vec!["fallback".to_owned()]));
    }

    #[test]
    fn named_subnets_must_all_exist_and_come_by_id_first() {
        let mut web = subnet("subnet-2", "us-west-2b", &[]);
        web.tags.insert("Name".to_owned(), "web".to_owned());
        let subnets = [
            subnet("subnet-1", "us-west-2a", &[]),
            web.clone(),
            Subnet {
                id: "subnet-3".to_owned(),
                ..web
            },
        ];
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let ids = named(&names(&["web", "subnet-1"]), subnets.get(..2).unwrap_or_default());
        let ids = ids.map(|subnets| subnets.into_iter().map(|subnet| subnet.id).collect::<Vec<_>>());
        assert_eq!(ids, Ok(names(&["subnet-1", "subnet-2"])));
        let twice = "2 subnets have the tag Name=web".to_owned();
        assert_eq!(named(&names(&["web"]), &subnets), Err(twice));
        assert!(named(&names(&["subnet-9"]), &subnets).is_err());
    }
}
