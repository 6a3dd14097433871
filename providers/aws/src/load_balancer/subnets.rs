//! The subnets of a new load balancer.

use std::collections::BTreeMap;

use regex::Regex;

use super::listings::Network;
use crate::{
    client::ec2::{RouteTable, Subnet},
    site::{Site, has_any_cluster},
};

/// The subnets of a load balancer, or why there are none.
pub(crate) type ChosenSubnets = Result<Vec<Subnet>, String>;

/// The subnets that an annotation names: first those by ID, then those by the tag `Name`, in which `*` and `?` are wildcards.
///
/// # Errors
/// A name without a subnet, or not as many subnets as names.
pub(crate) fn named(names: &[String], subnets: &[Subnet]) -> ChosenSubnets {
    let (ids, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.starts_with("subnet-"));
    let mut chosen: Vec<&Subnet> = Vec::new();
    let mut ambiguous = None;
    for name in ids.into_iter().chain(others) {
        let found: Vec<_> = subnets.iter().filter(|subnet| is_named(subnet, name)).collect();
        if found.is_empty() {
            return Err(format!("subnet {name:?} is not in the VPC"));
        }
        if found.len() > 1 {
            ambiguous.get_or_insert_with(|| format!("{} subnets have the tag Name={name}", found.len()));
        }
        for subnet in found {
            if chosen.iter().all(|known| known.id != subnet.id) {
                chosen.push(subnet);
            }
        }
    }
    // Upstream counts the subnets of all names together: `web-*` twice names two subnets.
    if chosen.len() != names.len() {
        let several = format!("{} names for {} subnets", names.len(), chosen.len());
        return Err(ambiguous.unwrap_or(several));
    }
    Ok(chosen.into_iter().cloned().collect())
}

/// Whether a subnet has this ID or, by its tag, this name. Upstream finds names by a filter of EC2.
fn is_named(subnet: &Subnet, name: &str) -> bool {
    subnet.id == name || subnet.tags.get("Name").is_some_and(|tag| matches_filter(name, tag))
}

/// Whether a value of a filter of EC2 matches this text: `*` stands for any characters, `?` for one, and a backslash takes the
/// meaning of the next character away.
fn matches_filter(filter: &str, text: &str) -> bool {
    let mut pattern = String::from("(?s)^");
    let mut characters = filter.chars();
    while let Some(character) = characters.next() {
        match character {
            '*' => pattern += ".*",
            '?' => pattern.push('.'),
            '\\' => pattern += &regex::escape(&characters.next().unwrap_or('\\').to_string()),
            other => pattern += &regex::escape(&other.to_string()),
        }
    }
    pattern.push('$');
    Regex::new(&pattern).is_ok_and(|pattern| pattern.is_match(text))
}

/// One subnet in each zone, by tags and routes; that of the config if none of the VPC qualifies for this cluster.
///
/// # Errors
/// No subnet qualifies, or a subnet has no route table.
pub(crate) fn discovered(network: &Network, internal: bool, site: &Site) -> ChosenSubnets {
    let Site { region, cluster, .. } = site;
    let subnets = network.subnets.iter();
    let mut candidates: Vec<_> = subnets
        .clone()
        .filter(|subnet| cluster.has(&subnet.tags) || !has_any_cluster(&subnet.tags))
        .collect();
    if candidates.is_empty() {
        candidates.extend(subnets.filter(|subnet| Some(&subnet.id) == site.subnet.as_ref()));
    }
    let (role, kind) = if internal {
        ("kubernetes.io/role/internal-elb", "")
    } else {
        ("kubernetes.io/role/elb", " with a route to an internet gateway")
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
    let own = tables.iter().find(|table| table.subnets.contains(&subnet.id));
    match own.or_else(|| tables.iter().find(|table| table.is_main)) {
        Some(table) => Ok(table.is_public),
        None => Err(format!("subnet {} has no route table", subnet.id)),
    }
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

    #[test]
    fn names_of_subnets_are_filters_of_ec2() {
        let subnets =
            [("subnet-1", "web-a"), ("subnet-2", "web-b"), ("subnet-3", "db*")].map(|(id, name)| {
                let mut subnet = subnet(id, "us-west-2a", &[]);
                subnet.tags.insert("Name".to_owned(), name.to_owned());
                subnet
            });
        for (given, expected) in [
            ("web-?,web-?", Ok("subnet-1 subnet-2")),
            ("*-b", Ok("subnet-2")),
            ("db\\*", Ok("subnet-3")),
            ("web-b,subnet-1", Ok("subnet-1 subnet-2")),
            ("web-*", Err("2 subnets have the tag Name=web-*")),
            ("web-a,web-a", Err("2 names for 1 subnets")),
            ("web", Err("subnet \"web\" is not in the VPC")),
            ("web?a.", Err("subnet \"web?a.\" is not in the VPC")),
        ] {
            let names: Vec<_> = given.split(',').map(str::to_owned).collect();
            let chosen = named(&names, &subnets).map(|subnets| {
                let ids: Vec<_> = subnets.into_iter().map(|subnet| subnet.id).collect();
                ids.join(" ")
            });
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(chosen, expected, "{given}");
        }
    }
}
