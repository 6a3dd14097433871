//! The load balancers of a cloud and their objects, as lines that can be compared between runs.

use std::collections::BTreeMap;

use ccm_sim::openstack::{Control, ObjectState};

/// All cloud objects of Services, with words in place of IDs and of addresses that the cloud assigned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture(Vec<String>);

impl Picture {
    /// The present state of the cloud. `words`: texts that differ between runs, and their replacements.
    #[must_use]
    pub fn of(cloud: &Control, words: &[(String, String)]) -> Self {
        let balancers = cloud.load_balancers();
        let mut roles: BTreeMap<String, String> = words.iter().cloned().collect();
        let mut objects = Vec::new();
        for one in &balancers {
            let balancer = &one.loadbalancer;
            for (attribute, role) in [("vip_address", "vip"), ("vip_port_id", "vip port")] {
                if let Some(text) = balancer.attributes.get(attribute).and_then(|text| text.as_str()) {
                    roles.insert(text.to_owned(), format!("{role} of {}", balancer.name));
                }
            }
            let below = [&one.listeners, &one.pools, &one.members, &one.healthmonitors];
            for object in std::iter::once(balancer).chain(below.into_iter().flatten()) {
                roles.insert(object.id.clone(), format!("{} {}", object.kind, object.name));
                objects.push(object);
            }
        }
        for floating in cloud.floating_ips() {
            roles.insert(floating.address.to_string(), "floating".to_owned());
        }
        for group in cloud.security_groups() {
            // Octavia names groups of its own after load balancers.
            let name = replace_words(&group.name, &roles);
            roles.insert(group.id, format!("group {name}"));
        }
        let mut lines: Vec<_> = objects.into_iter().map(line).collect();
        lines.extend(cloud.floating_ips().into_iter().map(|floating| {
            let port = floating.port_id.unwrap_or_default();
            format!("floating {:?} at {port:?}", floating.description)
        }));
        // The default groups of a project do not belong to a Service.
        let groups = cloud.security_groups().into_iter();
        lines.extend(groups.filter(|group| group.name != "default").map(|group| {
            let mut ports = group.ports;
            ports.sort();
            format!(
                "group {} {:?} {:?}: {:?} at {ports:?}",
                group.name, group.description, group.tags, group.rules
            )
        }));
        Self::of_lines(lines, &roles.into_iter().collect::<Vec<_>>())
    }

    /// These lines, with replaced words.
    #[must_use]
    pub fn of_lines(mut lines: Vec<String>, words: &[(String, String)]) -> Self {
        let words = words.iter().cloned().collect();
        for line in &mut lines {
            *line = replace_words(line, &words);
        }
        lines.sort();
        Self(lines)
    }

    /// The lines, sorted.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.0
    }

    /// Whether no object exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lines that differ.
    #[must_use]
    pub fn differs(&self, expected: &Self) -> Option<String> {
        let (mut surplus, mut missing) = (self.0.clone(), Vec::new());
        for line in &expected.0 {
            match surplus.iter().position(|have| have == line) {
                Some(at) => drop(surplus.remove(at)),
                None => missing.push(line.clone()),
            }
        }
        (!surplus.is_empty() || !missing.is_empty())
            .then(|| format!("the cloud has {surplus:#?} instead of {missing:#?}"))
    }
}

/// The text with replaced words.
pub(crate) fn replace_words(text: &str, roles: &BTreeMap<String, String>) -> String {
    let roles = roles.iter().filter(|(id, _)| !id.is_empty());
    roles.fold(text.to_owned(), |text, (id, role)| text.replace(id.as_str(), &format!("<{role}>")))
}

fn line(object: &ObjectState) -> String {
    let attributes = serde_json::Value::Object(object.attributes.clone());
    format!(
        "{} {:?} of {:?} {}: {attributes}",
        object.kind, object.name, object.parent_id, object.provisioning_status
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(lines: &[&str]) -> Picture {
        Picture(lines.iter().map(|line| (*line).to_owned()).collect())
    }

    #[test]
    fn duplicates_are_a_difference() {
        let one = picture(&["group a", "pool b"]);
        assert_eq!(one.differs(&one), None);
        let two = picture(&["group a", "group a", "pool b"]);
        assert!(two.differs(&one).is_some_and(|text| text.contains("group a")));
        assert!(one.differs(&two).is_some());
    }
}
