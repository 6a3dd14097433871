//! The writes of load balancers and security groups: one request for each change of an object. IDs come from the
//! observed state.

use std::{collections::BTreeSet, time::Duration};

use aws_sdk_ec2::types::{ResourceType, TagSpecification};
use aws_sdk_elasticloadbalancing::types as classic;
use aws_sdk_elasticloadbalancingv2::types as v2;
use ccm_core::{
    Error, ErrorKind, Result, Retry, async_trait,
    error::accept,
    plan::objects::{Attributes, ChangeReply, Kind as _, ObjectCalls, unsupported},
};
use serde_json::Value;

use super::{
    Client, Op,
    ec2::{permissions, sdk_tags},
    elb::{self, PROXY_POLICY, identified, listener_id},
};
use crate::{
    error::code,
    load_balancer::{
        classic::SSL_POLICY_PREFIX,
        fields,
        kinds::{OWNER_TAG, Object, ObjectKind, Objects, Rule, SetEntry, group_id, tag_map, texts},
        spec::DEFAULT_SSL_POLICY,
        updates::{EntrySet, ObjectUpdate},
    },
    site::{LEGACY, has_any_cluster},
};

/// Applies changes.
pub(crate) struct Sender<'a> {
    pub(crate) client: Client,
    /// The VPC of new security groups and target groups.
    pub(crate) vpc: &'a str,
    /// The security groups of load balancers, which may be sources of rules. AWS may find a new one only seconds later.
    pub(crate) sources: &'a BTreeSet<String>,
}

#[async_trait]
impl ObjectCalls<ObjectKind> for Sender<'_> {
    async fn create(
        &self,
        object: &Object,
        children: &[Object],
        observed: &Objects,
    ) -> Result<ChangeReply<ObjectKind>> {
        let created = match object.kind {
            ObjectKind::Group => self.create_group(object).await?,
            ObjectKind::TargetGroup => self.create_target_group(object).await?,
            ObjectKind::Balancer => self.create_balancer(object, observed).await?,
            ObjectKind::Listener => self.create_listener(object, observed).await?,
            ObjectKind::Classic => Some(self.create_classic(object, children, observed).await?),
            ObjectKind::ClassicListener => Some(self.create_classic_listener(object).await?),
            ObjectKind::NodeGroup => return Err(unsupported(object, "existence")),
        };
        let Some(mut created) = created else {
            let text = format!("the response does not contain {}", object.title());
            return Err(Error::new(ErrorKind::Unexpected, text));
        };
        // The response contains IDs. The new load balancer refers to its own security group by name.
        created.attributes.remove(fields::SECURITY_GROUPS);
        let mut reply = ChangeReply::object(created);
        for child in children {
            reply.objects.push(identified(child.kind, &child.key, &listener_id(child)));
        }
        Ok(reply)
    }

    async fn update(
        &self,
        object: &Object,
        update: ObjectUpdate,
        changes: &Attributes,
        observed: &Objects,
    ) -> Result<ChangeReply<ObjectKind>> {
        let (client, id) = (&self.client, object.id.as_str());
        let mut desired = object.clone();
        desired.attributes.clone_from(changes);
        // Classic load balancers get unchanged values, too.
        let mut all = with_defaults(object);
        all.attributes.extend(changes.clone());
        match update {
            ObjectUpdate::TargetGroup => self.modify_target_group(&desired).await?,
            ObjectUpdate::TargetGroupAttributes => {
                client
                    .execute(Op::TargetGroupAttributesModify, |sdk| {
                        let attributes = desired.attributes.keys().map(|key| {
                            v2::TargetGroupAttribute::builder().key(*key).value(desired.text(key)).build()
                        });
                        sdk.elbv2
                            .modify_target_group_attributes()
                            .target_group_arn(id)
                            .set_attributes(Some(attributes.collect()))
                            .send()
                    })
                    .await?;
            }
            ObjectUpdate::LoadBalancerAttributes => {
                client
                    .execute(Op::LoadBalancerAttributesModify, |sdk| {
                        let attributes = desired.attributes.keys().map(|key| {
                            v2::LoadBalancerAttribute::builder().key(*key).value(desired.text(key)).build()
                        });
                        sdk.elbv2
                            .modify_load_balancer_attributes()
                            .load_balancer_arn(id)
                            .set_attributes(Some(attributes.collect()))
                            .send()
                    })
                    .await?;
            }
            ObjectUpdate::LoadBalancerSecurityGroups => {
                client
                    .execute(Op::SecurityGroupsSet, |sdk| {
                        sdk.elbv2
                            .set_security_groups()
                            .load_balancer_arn(id)
                            .set_security_groups(groups(&desired, observed))
                            .send()
                    })
                    .await?;
            }
            ObjectUpdate::LoadBalancerSubnets => {
                client
                    .execute(Op::SubnetsSet, |sdk| {
                        sdk.elbv2
                            .set_subnets()
                            .load_balancer_arn(id)
                            .set_subnets(Some(texts(&desired, fields::SUBNETS)))
                            .send()
                    })
                    .await?;
            }
            ObjectUpdate::Listener => self.modify_listener(object, desired, observed).await?,
            ObjectUpdate::ClassicSubnets => self.set_classic_subnets(object, &desired).await?,
            ObjectUpdate::ClassicSecurityGroups => {
                client
                    .execute(Op::ClassicSecurityGroupsSet, |sdk| {
                        sdk.elb
                            .apply_security_groups_to_load_balancer()
                            .load_balancer_name(id)
                            .set_security_groups(groups(&desired, observed))
                            .send()
                    })
                    .await?;
            }
            ObjectUpdate::ClassicHealthCheck => {
                let check = health_check(&all)?;
                client
                    .execute(Op::ClassicHealthCheck, |sdk| {
                        sdk.elb
                            .configure_health_check()
                            .load_balancer_name(id)
                            .health_check(check.clone())
                            .send()
                    })
                    .await?;
            }
            ObjectUpdate::ClassicListenerPolicies => {
                let balancer = object.parent.as_deref().unwrap_or_default();
                let policy = all.text(fields::POLICY);
                self.create_policy(balancer, policy).await?;
                client
                    .execute(Op::ClassicListenerPoliciesSet, |sdk| {
                        sdk.elb
                            .set_load_balancer_policies_of_listener()
                            .load_balancer_name(balancer)
                            .load_balancer_port(port(&object.key))
                            .policy_names(policy)
                            .send()
                    })
                    .await?;
            }
            ObjectUpdate::ClassicAttributes => {
                let attributes = classic_attributes(&all)?;
                client
                    .execute(Op::ClassicAttributesModify, |sdk| {
                        sdk.elb
                            .modify_load_balancer_attributes()
                            .load_balancer_name(id)
                            .load_balancer_attributes(attributes.clone())
                            .send()
                    })
                    .await?;
            }
        }
        Ok(ChangeReply::default())
    }

    async fn delete(&self, object: &Object, _: bool) -> Result<()> {
        let deleted = self.delete_object(object).await;
        accept(deleted, ErrorKind::NotFound, ()).map_err(|error| {
            if object.kind != ObjectKind::Balancer || error.kind() != ErrorKind::InvalidSpec {
                return error;
            }
            let key = &object.key;
            let text = format!("AWS does not delete load balancer {key}; turn off its deletion protection");
            Error::new(ErrorKind::InvalidSpec, text).with_source(error)
        })
    }

    async fn add(
        &self,
        object: &Object,
        set: &'static str,
        entries: &[SetEntry],
    ) -> Result<ChangeReply<ObjectKind>> {
        let id = object.id.as_str();
        let added = match EntrySet::of(set) {
            Some(EntrySet::Tags) => self.add_tags(object, entries).await,
            Some(EntrySet::Targets) => {
                self.client
                    .execute(Op::TargetsRegister, |sdk| {
                        sdk.elbv2
                            .register_targets()
                            .target_group_arn(id)
                            .set_targets(Some(targets(entries)))
                            .send()
                    })
                    .await
            }
            Some(EntrySet::Rules) => self.add_rules(object, entries).await,
            Some(EntrySet::Certificates) => return self.add_certificates(object, entries).await,
            Some(EntrySet::Instances) => {
                self.client
                    .execute(Op::ClassicInstancesRegister, |sdk| {
                        sdk.elb
                            .register_instances_with_load_balancer()
                            .load_balancer_name(id)
                            .set_instances(Some(instances(entries)))
                            .send()
                    })
                    .await
            }
            Some(EntrySet::ProxyPorts) => {
                self.create_policy(id, PROXY_POLICY).await?;
                self.set_proxy_policy(id, entries, Some(PROXY_POLICY)).await
            }
            None => Err(unsupported(object, set)),
        };
        match added {
            Ok(()) => Ok(ChangeReply::default()),
            Err(error) => Err(if_missing(object, self.sources, error)),
        }
    }

    async fn remove(&self, object: &Object, set: &'static str, entries: &[SetEntry]) -> Result<()> {
        let (client, id) = (&self.client, object.id.as_str());
        match EntrySet::of(set) {
            Some(EntrySet::Targets) => {
                let removed = client
                    .execute(Op::TargetsDeregister, |sdk| {
                        sdk.elbv2
                            .deregister_targets()
                            .target_group_arn(id)
                            .set_targets(Some(targets(entries)))
                            .send()
                    })
                    .await;
                match removed {
                    // An instance that does not exist is not a target.
                    Err(error) if error.kind() == ErrorKind::InvalidSpec && entries.len() == 1 => Ok(()),
                    result => result,
                }
            }
            Some(EntrySet::Rules) => client.revoke(id, &rules(entries)).await,
            Some(EntrySet::Certificates) => {
                for entry in entries {
                    let removed = client
                        .execute(Op::ListenerCertificatesRemove, |sdk| {
                            sdk.elbv2
                                .remove_listener_certificates()
                                .listener_arn(id)
                                .certificates(certificate(entry.to_string()))
                                .send()
                        })
                        .await;
                    match removed {
                        Err(error) if code(&error) == Some("CertificateNotFound") => {}
                        result => result?,
                    }
                }
                Ok(())
            }
            Some(EntrySet::Instances) => {
                let removed = client
                    .execute(Op::ClassicInstancesDeregister, |sdk| {
                        sdk.elb
                            .deregister_instances_from_load_balancer()
                            .load_balancer_name(id)
                            .set_instances(Some(instances(entries)))
                            .send()
                    })
                    .await;
                match removed {
                    // AWS removes terminated instances itself.
                    Err(error) if code(&error) == Some("InvalidInstance") && entries.len() == 1 => Ok(()),
                    result => result,
                }
            }
            Some(EntrySet::ProxyPorts) => self.set_proxy_policy(id, entries, None).await,
            // Tags are never removed.
            Some(EntrySet::Tags) | None => Err(unsupported(object, set)),
        }
    }
}

/// The error if AWS does not find the object itself, not one of its entries: it may find a new object only seconds later. The
/// part waits and is read again; another client may have deleted the object.
///
/// `sources`: security groups that exist and may be sources of rules.
fn if_missing(object: &Object, sources: &BTreeSet<String>, error: Error) -> Error {
    let is_missing = match code(&error) {
        Some("InvalidGroup.NotFound") => {
            let message = error.message();
            message.contains(&object.id) || sources.iter().any(|id| message.contains(id))
        }
        Some("TargetGroupNotFound" | "LoadBalancerNotFound" | "ListenerNotFound") => true,
        _ => false,
    };
    if !is_missing {
        return error;
    }
    Error::new(ErrorKind::Conflict, "AWS does not find the object, which may be new")
        .with_source(error)
        .with_retry(Retry::Fixed(Duration::from_secs(2)))
}

/// Creates. They return the new object as the response shows it.
impl Sender<'_> {
    async fn create_group(&self, object: &Object) -> Result<Option<Object>> {
        let created = self
            .client
            .call(Op::SecurityGroupCreate, |sdk| {
                let tags = sdk_tags(pairs(object.set(EntrySet::Tags.name()))).unwrap_or_default();
                // AWS refuses a specification without tags.
                let specifications = if tags.is_empty() {
                    None
                } else {
                    let specification = TagSpecification::builder()
                        .resource_type(ResourceType::SecurityGroup)
                        .set_tags(Some(tags))
                        .build();
                    Some(vec![specification])
                };
                sdk.ec2
                    .create_security_group()
                    .group_name(&object.key)
                    .vpc_id(self.vpc)
                    .description(object.text(fields::DESCRIPTION))
                    .set_tag_specifications(specifications)
                    .send()
            })
            .await;
        match created {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Ok(Some(self.tag_again(object, error).await?))
            }
            reply => Ok(reply?.group_id.map(|id| identified(object.kind, &object.key, &id))),
        }
    }

    async fn create_target_group(&self, object: &Object) -> Result<Option<Object>> {
        let reply = self
            .client
            .call(Op::TargetGroupCreate, |sdk| {
                sdk.elbv2
                    .create_target_group()
                    .name(&object.key)
                    .vpc_id(self.vpc)
                    .target_type(v2::TargetTypeEnum::Instance)
                    .set_protocol(protocol(object, fields::PROTOCOL))
                    .set_port(number(object, fields::PORT))
                    .set_tags(tags(object.set(EntrySet::Tags.name())))
                    .set_health_check_protocol(protocol(object, fields::HEALTH_CHECK_PROTOCOL))
                    .set_health_check_port(text(object, fields::HEALTH_CHECK_PORT))
                    .set_health_check_path(text(object, fields::HEALTH_CHECK_PATH))
                    .set_health_check_interval_seconds(number(object, fields::HEALTH_CHECK_INTERVAL))
                    .set_health_check_timeout_seconds(number(object, fields::HEALTH_CHECK_TIMEOUT))
                    .set_healthy_threshold_count(number(object, fields::HEALTHY_THRESHOLD))
                    .set_unhealthy_threshold_count(number(object, fields::UNHEALTHY_THRESHOLD))
                    .set_matcher(matcher(object))
                    .send()
            })
            .await?;
        Ok(reply.target_groups().iter().find_map(elb::target_group))
    }

    async fn create_balancer(&self, object: &Object, observed: &Objects) -> Result<Option<Object>> {
        let reply = self
            .client
            .call(Op::LoadBalancerCreate, |sdk| {
                let is_internal = object.text(fields::SCHEME) == "internal";
                let address_type = text(object, fields::IP_ADDRESS_TYPE);
                sdk.elbv2
                    .create_load_balancer()
                    .name(&object.key)
                    .set_security_groups(groups(object, observed))
                    .r#type(v2::LoadBalancerTypeEnum::Network)
                    .set_scheme(is_internal.then_some(v2::LoadBalancerSchemeEnum::Internal))
                    .set_ip_address_type(address_type.map(|text| text.as_str().into()))
                    .set_subnet_mappings(Some(mappings(object)))
                    .set_tags(tags(object.set(EntrySet::Tags.name())))
                    .send()
            })
            .await?;
        Ok(reply.load_balancers().iter().find_map(elb::balancer))
    }

    async fn create_listener(&self, object: &Object, observed: &Objects) -> Result<Option<Object>> {
        let balancer = observed.id(ObjectKind::Balancer, object.parent.as_deref().unwrap_or_default())?;
        let group = object.text(fields::TARGET_GROUP);
        let group_arn = observed.id(ObjectKind::TargetGroup, group)?;
        let reply = self
            .client
            .call(Op::ListenerCreate, |sdk| {
                sdk.elbv2
                    .create_listener()
                    .load_balancer_arn(balancer)
                    .set_port(object.key.parse().ok())
                    .default_actions(forward(group_arn))
                    .set_tags(tags(object.set(EntrySet::Tags.name())))
                    .set_protocol(protocol(object, fields::PROTOCOL))
                    .set_certificates(certificates(object))
                    .set_ssl_policy(text(object, fields::SSL_POLICY))
                    .set_alpn_policy(text(object, fields::ALPN_POLICY).map(|policy| vec![policy]))
                    .send()
            })
            .await?;
        let created = reply.listeners().iter().find_map(elb::listener);
        Ok(created.map(|listener| listener.with(fields::TARGET_GROUP, group)))
    }

    async fn create_classic(
        &self,
        object: &Object,
        children: &[Object],
        observed: &Objects,
    ) -> Result<Object> {
        let reply = self
            .client
            .call(Op::ClassicCreate, |sdk| {
                let is_internal = object.text(fields::SCHEME) == "internal";
                let listeners = children.iter().filter_map(classic_listener).collect();
                sdk.elb
                    .create_load_balancer()
                    .load_balancer_name(&object.key)
                    .set_listeners(Some(listeners))
                    .set_subnets(Some(texts(object, fields::SUBNETS)))
                    .set_security_groups(groups(object, observed))
                    .set_scheme(is_internal.then(|| "internal".to_owned()))
                    .set_tags(classic_tags(object.set(EntrySet::Tags.name())))
                    .send()
            })
            .await?;
        Ok(identified(object.kind, &object.key, &object.key).with(fields::DNS_NAME, reply.dns_name))
    }

    async fn create_classic_listener(&self, object: &Object) -> Result<Object> {
        self.client
            .call(Op::ClassicListenersCreate, |sdk| {
                sdk.elb
                    .create_load_balancer_listeners()
                    .set_load_balancer_name(object.parent.clone())
                    .set_listeners(classic_listener(object).map(|listener| vec![listener]))
                    .send()
            })
            .await?;
        Ok(identified(object.kind, &object.key, &listener_id(object)))
    }

    /// Gives an existing security group the tags of a new one with its name. Somebody removed the cluster's tag.
    ///
    /// # Errors
    /// `refusal`: a tag says that the security group is another cluster's.
    async fn tag_again(&self, new: &Object, refusal: Error) -> Result<Object> {
        let filter = [
            ("vpc-id", vec![self.vpc.to_owned()]),
            ("group-name", vec![new.key.clone()]),
        ];
        let new_tags = tag_map(new);
        let mut groups = self.client.security_groups(&filter).await?;
        groups.retain(|group| {
            let mut others = tag_map(group);
            others.retain(|key, value| new_tags.get(key) != Some(value));
            !has_any_cluster(&others) && !others.contains_key(OWNER_TAG) && !others.contains_key(LEGACY)
        });
        let mut found = groups.into_iter().next().ok_or(refusal)?;
        self.client
            .execute(Op::TagsCreate, |sdk| {
                sdk.ec2
                    .create_tags()
                    .resources(&found.id)
                    .set_tags(sdk_tags(pairs(new.set(EntrySet::Tags.name()))))
                    .send()
            })
            .await?;
        found.sets.remove(EntrySet::Tags.name());
        Ok(found)
    }
}

/// Updates and deletions.
impl Sender<'_> {
    async fn modify_target_group(&self, desired: &Object) -> Result<()> {
        self.client
            .execute(Op::TargetGroupModify, |sdk| {
                sdk.elbv2
                    .modify_target_group()
                    .target_group_arn(&desired.id)
                    .set_health_check_protocol(protocol(desired, fields::HEALTH_CHECK_PROTOCOL))
                    .set_health_check_port(text(desired, fields::HEALTH_CHECK_PORT))
                    .set_health_check_path(text(desired, fields::HEALTH_CHECK_PATH))
                    .set_health_check_interval_seconds(number(desired, fields::HEALTH_CHECK_INTERVAL))
                    .set_health_check_timeout_seconds(number(desired, fields::HEALTH_CHECK_TIMEOUT))
                    .set_healthy_threshold_count(number(desired, fields::HEALTHY_THRESHOLD))
                    .set_unhealthy_threshold_count(number(desired, fields::UNHEALTHY_THRESHOLD))
                    .set_matcher(matcher(desired))
                    .send()
            })
            .await
    }

    async fn modify_listener(&self, object: &Object, mut desired: Object, observed: &Objects) -> Result<()> {
        let group = desired.text(fields::TARGET_GROUP);
        let actions = match group {
            "" => None,
            name => Some(vec![forward(observed.id(ObjectKind::TargetGroup, name)?)]),
        };
        // AWS requires it of a listener that becomes one with TLS.
        let becomes_secure =
            desired.text(fields::PROTOCOL) == "TLS" && object.text(fields::PROTOCOL) != "TLS";
        if becomes_secure && desired.text(fields::SSL_POLICY).is_empty() {
            desired.attributes.insert(fields::SSL_POLICY, DEFAULT_SSL_POLICY.into());
        }
        self.client
            .execute(Op::ListenerModify, |sdk| {
                sdk.elbv2
                    .modify_listener()
                    .listener_arn(&object.id)
                    .set_default_actions(actions.clone())
                    .set_protocol(protocol(&desired, fields::PROTOCOL))
                    .set_certificates(certificates(&desired))
                    .set_ssl_policy(text(&desired, fields::SSL_POLICY))
                    .set_alpn_policy(text(&desired, fields::ALPN_POLICY).map(|policy| vec![policy]))
                    .send()
            })
            .await
    }

    async fn set_classic_subnets(&self, object: &Object, desired: &Object) -> Result<()> {
        let current: BTreeSet<String> = texts(object, fields::SUBNETS);
        let desired: BTreeSet<String> = texts(desired, fields::SUBNETS);
        let surplus: Vec<_> = current.difference(&desired).cloned().collect();
        let missing: Vec<_> = desired.difference(&current).cloned().collect();
        if !surplus.is_empty() {
            self.client
                .call(Op::ClassicSubnetsDetach, |sdk| {
                    sdk.elb
                        .detach_load_balancer_from_subnets()
                        .load_balancer_name(&object.key)
                        .set_subnets(Some(surplus.clone()))
                        .send()
                })
                .await?;
        }
        if !missing.is_empty() {
            self.client
                .call(Op::ClassicSubnetsAttach, |sdk| {
                    sdk.elb
                        .attach_load_balancer_to_subnets()
                        .load_balancer_name(&object.key)
                        .set_subnets(Some(missing.clone()))
                        .send()
                })
                .await?;
        }
        Ok(())
    }

    async fn delete_object(&self, object: &Object) -> Result<()> {
        let (client, id) = (&self.client, object.id.as_str());
        match object.kind {
            ObjectKind::Group => {
                client
                    .execute(Op::SecurityGroupDelete, |sdk| {
                        sdk.ec2.delete_security_group().group_id(id).send()
                    })
                    .await
            }
            ObjectKind::TargetGroup => {
                client
                    .execute(Op::TargetGroupDelete, |sdk| {
                        sdk.elbv2.delete_target_group().target_group_arn(id).send()
                    })
                    .await
            }
            ObjectKind::Listener => {
                client
                    .execute(Op::ListenerDelete, |sdk| sdk.elbv2.delete_listener().listener_arn(id).send())
                    .await
            }
            ObjectKind::Balancer => {
                client
                    .execute(Op::LoadBalancerDelete, |sdk| {
                        sdk.elbv2.delete_load_balancer().load_balancer_arn(id).send()
                    })
                    .await
            }
            ObjectKind::Classic => {
                client
                    .execute(Op::ClassicDelete, |sdk| {
                        sdk.elb.delete_load_balancer().load_balancer_name(id).send()
                    })
                    .await
            }
            ObjectKind::ClassicListener => {
                client
                    .execute(Op::ClassicListenersDelete, |sdk| {
                        sdk.elb
                            .delete_load_balancer_listeners()
                            .set_load_balancer_name(object.parent.clone())
                            .load_balancer_ports(port(&object.key))
                            .send()
                    })
                    .await
            }
            ObjectKind::NodeGroup => Err(unsupported(object, "existence")),
        }
    }
}

/// Changes of sets.
impl Sender<'_> {
    async fn add_tags(&self, object: &Object, entries: &[SetEntry]) -> Result<()> {
        let (client, id) = (&self.client, object.id.as_str());
        match object.kind {
            ObjectKind::Group => {
                client
                    .execute(Op::TagsCreate, |sdk| {
                        sdk.ec2.create_tags().resources(id).set_tags(sdk_tags(pairs(entries))).send()
                    })
                    .await
            }
            ObjectKind::Classic => {
                client
                    .execute(Op::ClassicTagsAdd, |sdk| {
                        sdk.elb.add_tags().load_balancer_names(id).set_tags(classic_tags(entries)).send()
                    })
                    .await
            }
            _ => {
                client
                    .execute(Op::LoadBalancerTagsAdd, |sdk| {
                        sdk.elbv2.add_tags().resource_arns(id).set_tags(tags(entries)).send()
                    })
                    .await
            }
        }
    }

    /// Adds certificates to a TLS listener. A request has only one.
    async fn add_certificates(
        &self,
        listener: &Object,
        entries: &[SetEntry],
    ) -> Result<ChangeReply<ObjectKind>> {
        let mut reply = ChangeReply::default();
        for entry in entries {
            let added = self
                .client
                .execute(Op::ListenerCertificatesAdd, |sdk| {
                    sdk.elbv2
                        .add_listener_certificates()
                        .listener_arn(&listener.id)
                        .certificates(certificate(entry.to_string()))
                        .send()
                })
                .await;
            match added {
                Err(error) if matches!(error.kind(), ErrorKind::InvalidSpec | ErrorKind::QuotaExceeded) => {
                    reply.refused.push((entry.clone(), error.report_without_request()));
                }
                added => added.map_err(|error| if_missing(listener, self.sources, error))?,
            }
        }
        Ok(reply)
    }

    /// Adds rules. If a rule exists with another description, only its description is updated.
    async fn add_rules(&self, group: &Object, entries: &[SetEntry]) -> Result<()> {
        let known: Vec<_> = rules(group.set(EntrySet::Rules.name())).into_iter().map(Rule::tuple).collect();
        let (described, new): (Vec<&Rule>, Vec<&Rule>) =
            rules(entries).into_iter().partition(|rule| known.contains(&rule.tuple()));
        let (client, id) = (&self.client, group.id.as_str());
        if !described.is_empty() {
            let changed = client
                .execute(Op::IngressDescriptions, |sdk| {
                    sdk.ec2
                        .update_security_group_rule_descriptions_ingress()
                        .group_id(id)
                        .set_ip_permissions(Some(permissions(&described)))
                        .send()
                })
                .await;
            match changed {
                // Upstream's policy does not allow it either: traffic stops for a moment.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    client.revoke(id, &described).await?;
                    client.authorize(id, &described).await?;
                }
                result => result?,
            }
        }
        if !new.is_empty() {
            client.authorize(id, &new).await?;
        }
        Ok(())
    }

    /// Creates a policy of a classic load balancer, if it does not exist: [`PROXY_POLICY`], or one with a predefined TLS policy.
    async fn create_policy(&self, balancer: &str, name: &str) -> Result<()> {
        let (kind, key, value) = match name.strip_prefix(SSL_POLICY_PREFIX) {
            Some(tls) => ("SSLNegotiationPolicyType", "Reference-Security-Policy", tls),
            None => ("ProxyProtocolPolicyType", "ProxyProtocol", "true"),
        };
        let created = self
            .client
            .execute(Op::ClassicPolicyCreate, |sdk| {
                let attribute =
                    classic::PolicyAttribute::builder().attribute_name(key).attribute_value(value).build();
                sdk.elb
                    .create_load_balancer_policy()
                    .load_balancer_name(balancer)
                    .policy_name(name)
                    .policy_type_name(kind)
                    .policy_attributes(attribute)
                    .send()
            })
            .await;
        accept(created, ErrorKind::AlreadyExists, ())
    }

    /// Sets this policy, and no other, on instance ports of a classic load balancer.
    async fn set_proxy_policy(&self, balancer: &str, ports: &[SetEntry], policy: Option<&str>) -> Result<()> {
        for entry in ports {
            self.client
                .call(Op::ClassicBackendPoliciesSet, |sdk| {
                    sdk.elb
                        .set_load_balancer_policies_for_backend_server()
                        .load_balancer_name(balancer)
                        .instance_port(port(&entry.to_string()))
                        .set_policy_names(Some(policy.map(str::to_owned).into_iter().collect()))
                        .send()
                })
                .await?;
        }
        Ok(())
    }
}

/// An object with the defaults of the attributes that are not known: a new object was not read.
fn with_defaults(object: &Object) -> Object {
    let mut all = object.clone();
    for attribute in object.kind.schema().attributes {
        let value = all.attributes.entry(attribute.name).or_default();
        if value.is_null() {
            *value = attribute.default.into();
        }
    }
    all
}

fn rules(entries: &[SetEntry]) -> Vec<&Rule> {
    entries.iter().filter_map(SetEntry::rule).collect()
}

/// The keys and values of tags.
fn pairs(entries: &[SetEntry]) -> impl Iterator<Item = (&str, &str)> {
    entries.iter().filter_map(SetEntry::as_tag)
}

/// The IDs of the security groups in an attribute, where the load balancer's own has its name. `None`: it is empty.
fn groups(object: &Object, observed: &Objects) -> Option<Vec<String>> {
    let names = object.texts(fields::SECURITY_GROUPS);
    if names.is_empty() {
        return None;
    }
    Some(names.into_iter().map(|name| group_id(observed, name)).collect())
}

fn text(object: &Object, name: &str) -> Option<String> {
    match object.text(name) {
        "" => None,
        text => Some(text.to_owned()),
    }
}

fn number(object: &Object, name: &str) -> Option<i32> {
    let number = object.attributes.get(name).and_then(Value::as_i64)?;
    i32::try_from(number).ok()
}

fn port(text: &str) -> i32 {
    text.parse().unwrap_or_default()
}

fn protocol(object: &Object, name: &str) -> Option<v2::ProtocolEnum> {
    text(object, name).map(|text| v2::ProtocolEnum::from(text.as_str()))
}

/// The codes of a successful health check.
fn matcher(group: &Object) -> Option<v2::Matcher> {
    let codes = text(group, fields::HEALTH_CHECK_CODES)?;
    Some(v2::Matcher::builder().http_code(codes).build())
}

/// The default certificate of a listener.
fn certificates(listener: &Object) -> Option<Vec<v2::Certificate>> {
    Some(vec![certificate(text(listener, fields::CERTIFICATE)?)])
}

fn certificate(arn: String) -> v2::Certificate {
    v2::Certificate::builder().certificate_arn(arn).build()
}

/// The subnets of a new load balancer with the addresses in them.
fn mappings(object: &Object) -> Vec<v2::SubnetMapping> {
    let allocations: Vec<String> = texts(object, fields::EIP_ALLOCATIONS);
    let addresses: Vec<String> = texts(object, fields::PRIVATE_ADDRESSES);
    let mut mappings = Vec::new();
    for (at, subnet) in object.texts(fields::SUBNETS).into_iter().enumerate() {
        let mapping = v2::SubnetMapping::builder()
            .subnet_id(subnet)
            .set_allocation_id(allocations.get(at).cloned())
            .set_private_ipv4_address(addresses.get(at).cloned())
            .build();
        mappings.push(mapping);
    }
    mappings
}

fn forward(target_group: &str) -> v2::Action {
    v2::Action::builder()
        .r#type(v2::ActionTypeEnum::Forward)
        .target_group_arn(target_group)
        .build()
}

fn targets(entries: &[SetEntry]) -> Vec<v2::TargetDescription> {
    let mut targets = Vec::new();
    for entry in entries {
        if let SetEntry::Target { instance, port } = entry {
            targets.push(v2::TargetDescription::builder().id(instance).port((*port).into()).build());
        }
    }
    targets
}

fn instances(entries: &[SetEntry]) -> Vec<classic::Instance> {
    entries
        .iter()
        .map(|entry| classic::Instance::builder().instance_id(entry.to_string()).build())
        .collect()
}

fn tags(entries: &[SetEntry]) -> Option<Vec<v2::Tag>> {
    Some(
        pairs(entries)
            .map(|(key, value)| v2::Tag::builder().key(key).value(value).build())
            .collect(),
    )
}

fn classic_tags(entries: &[SetEntry]) -> Option<Vec<classic::Tag>> {
    let tags = pairs(entries);
    Some(
        tags.filter_map(|(key, value)| classic::Tag::builder().key(key).value(value).build().ok())
            .collect(),
    )
}

fn incomplete(error: impl std::fmt::Display) -> Error {
    let text = format!("the request is incomplete; this is a bug: {error}");
    Error::new(ErrorKind::Unexpected, text)
}

fn classic_listener(object: &Object) -> Option<classic::Listener> {
    classic::Listener::builder()
        .protocol(object.text(fields::PROTOCOL))
        .load_balancer_port(object.key.parse().ok()?)
        .instance_protocol(object.text(fields::INSTANCE_PROTOCOL))
        .instance_port(number(object, fields::INSTANCE_PORT)?)
        .set_ssl_certificate_id(text(object, fields::CERTIFICATE))
        .build()
        .ok()
}

fn health_check(object: &Object) -> Result<classic::HealthCheck> {
    classic::HealthCheck::builder()
        .target(object.text(fields::HEALTH_CHECK))
        .set_interval(number(object, fields::HEALTH_CHECK_INTERVAL))
        .set_timeout(number(object, fields::HEALTH_CHECK_TIMEOUT))
        .set_healthy_threshold(number(object, fields::HEALTHY_THRESHOLD))
        .set_unhealthy_threshold(number(object, fields::UNHEALTHY_THRESHOLD))
        .build()
        .map_err(incomplete)
}

fn classic_attributes(object: &Object) -> Result<classic::LoadBalancerAttributes> {
    let mut log = classic::AccessLog::builder().enabled(flag(object, fields::ACCESS_LOG));
    if flag(object, fields::ACCESS_LOG) {
        log = log
            .set_s3_bucket_name(text(object, fields::ACCESS_LOG_BUCKET))
            .set_s3_bucket_prefix(text(object, fields::ACCESS_LOG_PREFIX))
            .set_emit_interval(number(object, fields::ACCESS_LOG_INTERVAL));
    }
    let mut draining = classic::ConnectionDraining::builder().enabled(flag(object, fields::DRAINING));
    if flag(object, fields::DRAINING) {
        draining = draining.set_timeout(number(object, fields::DRAINING_TIMEOUT));
    }
    let cross_zone = classic::CrossZoneLoadBalancing::builder().enabled(flag(object, fields::CROSS_ZONE));
    let settings = classic::ConnectionSettings::builder()
        .set_idle_timeout(number(object, fields::IDLE_TIMEOUT))
        .build()
        .map_err(incomplete)?;
    Ok(classic::LoadBalancerAttributes::builder()
        .access_log(log.build())
        .connection_draining(draining.build())
        .cross_zone_load_balancing(cross_zone.build())
        .connection_settings(settings)
        .build())
}

fn flag(object: &Object, name: &str) -> bool {
    object.attributes.get(name).and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests;
