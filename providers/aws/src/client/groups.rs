//! The calls for security groups.

use aws_sdk_ec2::types::{IpPermission, IpRange, Ipv6Range, PrefixListId, SecurityGroup, UserIdGroupPair};
use ccm_core::Result;

use super::{
    Client,
    ec2::{Filter, PAGE, filters},
};
use crate::load_balancer::kinds::{Entry, Kind, Object, RULES, Rule, TAGS};

impl Client {
    /// The security groups that fit the filters, with their rules.
    pub(crate) async fn security_groups(&self, filter: &[Filter<'_>]) -> Result<Vec<Object>> {
        list!(self, SecurityGroups(set_next_token, next_token), security_groups.flat_map(|one| group(&one)),
            .max_results(PAGE).set_filters(filters(filter)))
    }

    /// Removes ingress rules.
    pub(crate) async fn revoke(&self, group: &str, rules: &[&Rule]) -> Result<()> {
        done!(self, IngressRevoke, .group_id(group).set_ip_permissions(permissions(rules)))
    }
}

/// One permission for each rule.
pub(super) fn permissions(rules: &[&Rule]) -> Option<Vec<IpPermission>> {
    let permissions = rules.iter().map(|rule| {
        let mut permission = IpPermission::builder().ip_protocol(&rule.protocol);
        if rule.protocol != "-1" {
            permission = permission.from_port(rule.from).to_port(rule.to);
        }
        let description = Some(rule.description.clone()).filter(|text| !text.is_empty());
        /// The permission with the rule's source and description.
        macro_rules! with {
            ($set:ident, $kind:ident.$field:ident) => {{
                let source = $kind::builder().$field(&rule.source);
                permission.$set(source.set_description(description).build())
            }};
        }
        let permission = match rule.source.as_str() {
            source if source.starts_with("sg-") => with!(user_id_group_pairs, UserIdGroupPair.group_id),
            source if source.starts_with("pl-") => with!(prefix_list_ids, PrefixListId.prefix_list_id),
            source if source.contains(':') => with!(ipv6_ranges, Ipv6Range.cidr_ipv6),
            _ => with!(ip_ranges, IpRange.cidr_ip),
        };
        permission.build()
    });
    Some(permissions.collect())
}

fn group(group: &SecurityGroup) -> Option<Object> {
    let mut rules = Vec::new();
    for permission in group.ip_permissions() {
        let protocol = permission.ip_protocol().unwrap_or_default();
        let [from, to] = [permission.from_port(), permission.to_port()].map(|port| port.unwrap_or(-1));
        /// Adds the rules of one kind of sources.
        macro_rules! add {
            ($sources:ident.$id:ident) => {
                for one in permission.$sources() {
                    let description = one.description().unwrap_or_default();
                    let rule = |source| Rule::new(protocol, (from, to), source, description);
                    rules.extend(one.$id().map(rule).map(Entry::Rule));
                }
            };
        }
        add!(ip_ranges.cidr_ip);
        add!(ipv6_ranges.cidr_ipv6);
        add!(prefix_list_ids.prefix_list_id);
        add!(user_id_group_pairs.group_id);
    }
    let tags = group.tags().iter();
    let tags = tags.map(|tag| Entry::tag(tag.key().unwrap_or_default(), tag.value().unwrap_or_default()));
    let object = object!(Kind::Group, group.group_name()?, group.group_id()?, {
        "description" => group.description(),
    });
    Some(object.entries(TAGS, tags).entries(RULES, rules))
}
