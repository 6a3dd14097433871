//! The calls for security groups.

use aws_sdk_ec2::types::{IpPermission, IpRange, Ipv6Range, PrefixListId, SecurityGroup, UserIdGroupPair};
use ccm_core::{Result, plan::objects::Object};

use super::{
    Client,
    ec2::{FILTER_VALUES, Filter, PAGE, filters},
};
use crate::load_balancer::kinds::{Entry, Kind, RULES, Rule, TAGS};

impl Client {
    /// The security groups of a VPC that have one of these tags. Without tags: all.
    pub(crate) async fn security_groups(
        &self,
        vpc: &str,
        tag_keys: Vec<String>,
    ) -> Result<Vec<Object<Kind>>> {
        let mut filter = vec![("vpc-id", vec![vpc.to_owned()])];
        if !tag_keys.is_empty() {
            filter.push(("tag-key", tag_keys));
        }
        self.security_groups_by(&filter).await
    }

    /// The security groups with these IDs. One that does not exist is left out.
    pub(crate) async fn security_groups_by_id(&self, ids: &[String]) -> Result<Vec<Object<Kind>>> {
        let mut all = Vec::new();
        for ids in ids.chunks(FILTER_VALUES) {
            all.extend(self.security_groups_by(&[("group-id", ids.to_vec())]).await?);
        }
        Ok(all)
    }

    async fn security_groups_by(&self, filter: &[Filter<'_>]) -> Result<Vec<Object<Kind>>> {
        list!(self, SecurityGroups(set_next_token, next_token), security_groups.filter_map(|one| group(&one)),
            .max_results(PAGE).set_filters(filters(filter)))
    }

    /// Removes ingress rules.
    pub(crate) async fn revoke(&self, group: &str, rules: &[&Rule]) -> Result<()> {
        done!(self, IngressRevoke, .group_id(group).set_ip_permissions(permissions(rules)))
    }
}

/// One permission for each rule.
pub(super) fn permissions(rules: &[&Rule]) -> Option<Vec<IpPermission>> {
    /// The source of a rule with its description.
    macro_rules! source {
        ($permission:ident.$set:ident, $kind:ident.$field:ident, $rule:ident) => {{
            let description = Some($rule.description.clone()).filter(|text| !text.is_empty());
            let source = $kind::builder()
                .$field(&$rule.source)
                .set_description(description);
            $permission.$set(source.build())
        }};
    }
    let permissions = rules.iter().map(|rule| {
        let mut permission = IpPermission::builder().ip_protocol(&rule.protocol);
        if rule.protocol != "-1" {
            permission = permission.from_port(rule.from).to_port(rule.to);
        }
        let permission = match rule.source.as_str() {
            source if source.starts_with("sg-") => {
                source!(permission.user_id_group_pairs, UserIdGroupPair.group_id, rule)
            }
            source if source.starts_with("pl-") => {
                source!(permission.prefix_list_ids, PrefixListId.prefix_list_id, rule)
            }
            source if source.contains(':') => source!(permission.ipv6_ranges, Ipv6Range.cidr_ipv6, rule),
            _ => source!(permission.ip_ranges, IpRange.cidr_ip, rule),
        };
        permission.build()
    });
    Some(permissions.collect())
}

fn group(group: &SecurityGroup) -> Option<Object<Kind>> {
    let mut rules = Vec::new();
    for permission in group.ip_permissions() {
        let protocol = permission.ip_protocol().unwrap_or_default();
        let ports = (
            permission.from_port().unwrap_or(-1),
            permission.to_port().unwrap_or(-1),
        );
        /// Adds the rules of one kind of sources.
        macro_rules! add {
            ($sources:ident.$id:ident) => {
                for one in permission.$sources() {
                    let rule = |source| {
                        Rule::new(
                            protocol,
                            ports,
                            source,
                            one.description().unwrap_or_default(),
                        )
                    };
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
