//! The calls for security groups.

use aws_sdk_ec2::types::{
    Filter, IpPermission, IpRange, Ipv6Range, PrefixListId, ResourceType, SecurityGroup, Tag,
    TagSpecification, UserIdGroupPair,
};
use ccm_core::{Error, ErrorKind, Priority, Result, plan::objects::Object};

use super::{Api, Op, ec2::FILTER_VALUES};
use crate::load_balancer::kinds::{Entry, Kind, RULES, Rule, TAGS};

/// Security groups in one page.
const PAGE: i32 = 1000;

impl Api {
    /// The security groups of a VPC that have one of these tags. Without tags: all.
    pub(crate) async fn security_groups(
        &self,
        vpc: &str,
        tag_keys: Vec<String>,
        priority: Priority,
    ) -> Result<Vec<Object<Kind>>> {
        let mut filters = vec![Filter::builder().name("vpc-id").values(vpc).build()];
        if !tag_keys.is_empty() {
            filters.push(
                Filter::builder()
                    .name("tag-key")
                    .set_values(Some(tag_keys))
                    .build(),
            );
        }
        self.security_groups_by(&filters, priority).await
    }

    /// The security groups with these IDs. One that does not exist is left out.
    pub(crate) async fn security_groups_by_id(
        &self,
        ids: &[String],
        priority: Priority,
    ) -> Result<Vec<Object<Kind>>> {
        let mut all = Vec::new();
        for ids in ids.chunks(FILTER_VALUES) {
            let filter = Filter::builder()
                .name("group-id")
                .set_values(Some(ids.to_vec()))
                .build();
            all.extend(self.security_groups_by(&[filter], priority).await?);
        }
        Ok(all)
    }

    async fn security_groups_by(&self, filters: &[Filter], priority: Priority) -> Result<Vec<Object<Kind>>> {
        list!(security_groups.map(group), set_next_token, next_token, self, SecurityGroups, priority, ec2.describe_security_groups =>
            .max_results(PAGE).set_filters(Some(filters.to_vec())))
    }

    /// Creates a security group without rules and returns its ID.
    pub(crate) async fn create_security_group(
        &self,
        object: &Object<Kind>,
        vpc: &str,
        priority: Priority,
    ) -> Result<String> {
        let tags = TagSpecification::builder().resource_type(ResourceType::SecurityGroup);
        let tags = tags.set_tags(tags_of(object.set(TAGS))).build();
        let reply = send!(self, SecurityGroupCreate, priority, ec2.create_security_group =>
            .group_name(&object.key).vpc_id(vpc).description(object.text("description"))
            .tag_specifications(tags.clone()))?;
        let none = || Error::new(ErrorKind::Unexpected, "the answer has no security group");
        reply.group_id.ok_or_else(none)
    }

    /// Deletes a security group.
    pub(crate) async fn delete_security_group(&self, id: &str, priority: Priority) -> Result<()> {
        send!(self, SecurityGroupDelete, priority, ec2.delete_security_group => .group_id(id)).map(drop)
    }

    /// Adds ingress rules.
    pub(crate) async fn authorize(&self, group: &str, rules: &[&Rule], priority: Priority) -> Result<()> {
        send!(self, IngressAuthorize, priority, ec2.authorize_security_group_ingress => .group_id(group)
            .set_ip_permissions(permissions(rules)))
        .map(drop)
    }

    /// Removes ingress rules.
    pub(crate) async fn revoke(&self, group: &str, rules: &[&Rule], priority: Priority) -> Result<()> {
        send!(self, IngressRevoke, priority, ec2.revoke_security_group_ingress => .group_id(group)
            .set_ip_permissions(permissions(rules)))
        .map(drop)
    }

    /// Gives ingress rules other descriptions.
    pub(crate) async fn describe_rules(
        &self,
        group: &str,
        rules: &[&Rule],
        priority: Priority,
    ) -> Result<()> {
        send!(self, IngressDescriptions, priority, ec2.update_security_group_rule_descriptions_ingress =>
            .group_id(group).set_ip_permissions(permissions(rules)))
        .map(drop)
    }

    /// Adds tags to a security group.
    pub(crate) async fn tag_security_group(
        &self,
        id: &str,
        entries: &[Entry],
        priority: Priority,
    ) -> Result<()> {
        send!(self, TagsCreate, priority, ec2.create_tags => .resources(id).set_tags(tags_of(entries)))
            .map(drop)
    }
}

fn tags_of(entries: &[Entry]) -> Option<Vec<Tag>> {
    let tags = entries.iter().filter_map(Entry::as_tag);
    Some(
        tags.map(|(key, value)| Tag::builder().key(key).value(value).build())
            .collect(),
    )
}

/// One permission for each rule.
fn permissions(rules: &[&Rule]) -> Option<Vec<IpPermission>> {
    let permissions = rules.iter().map(|rule| {
        let description = Some(rule.description.clone()).filter(|text| !text.is_empty());
        let source = rule.source.as_str();
        let permission = IpPermission::builder().ip_protocol(&rule.protocol);
        let permission = if rule.protocol == "-1" {
            permission
        } else {
            permission.from_port(rule.from).to_port(rule.to)
        };
        let permission = if source.starts_with("sg-") {
            let pair = UserIdGroupPair::builder()
                .group_id(source)
                .set_description(description);
            permission.user_id_group_pairs(pair.build())
        } else if source.starts_with("pl-") {
            let list = PrefixListId::builder()
                .prefix_list_id(source)
                .set_description(description);
            permission.prefix_list_ids(list.build())
        } else if source.contains(':') {
            let range = Ipv6Range::builder()
                .cidr_ipv6(source)
                .set_description(description);
            permission.ipv6_ranges(range.build())
        } else {
            let range = IpRange::builder().cidr_ip(source).set_description(description);
            permission.ip_ranges(range.build())
        };
        permission.build()
    });
    Some(permissions.collect())
}

fn group(group: &SecurityGroup) -> Object<Kind> {
    let rules = group.ip_permissions().iter().flat_map(|permission| {
        let protocol = permission.ip_protocol().unwrap_or_default();
        let ports = (
            permission.from_port().unwrap_or(-1),
            permission.to_port().unwrap_or(-1),
        );
        let ranges = permission
            .ip_ranges()
            .iter()
            .map(|range| (range.cidr_ip(), range.description()));
        let v6 = permission
            .ipv6_ranges()
            .iter()
            .map(|range| (range.cidr_ipv6(), range.description()));
        let lists = permission
            .prefix_list_ids()
            .iter()
            .map(|list| (list.prefix_list_id(), list.description()));
        let groups = permission
            .user_id_group_pairs()
            .iter()
            .map(|pair| (pair.group_id(), pair.description()));
        let sources = ranges.chain(v6).chain(lists).chain(groups);
        sources.filter_map(move |(source, description)| {
            Some(Entry::Rule(Rule::new(
                protocol,
                ports,
                source?,
                description.unwrap_or_default(),
            )))
        })
    });
    let tags = group.tags().iter();
    let tags = tags.map(|tag| Entry::tag(tag.key().unwrap_or_default(), tag.value().unwrap_or_default()));
    let object = Object::new(Kind::Group, group.group_name().unwrap_or_default());
    let object = object
        .with("description", group.description())
        .with("vpc", group.vpc_id());
    Object {
        id: group.group_id().unwrap_or_default().to_owned(),
        ..object.entries(TAGS, tags).entries(RULES, rules)
    }
}
