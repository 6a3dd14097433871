//! The eventual consistency of AWS: a new load balancer, target group or listener is missing in the first listing after its
//! create, and a new tag in the first listing of tags.
//!
//! EC2 documents it for all its requests ("Ensuring idempotency and eventual consistency in Amazon EC2 API requests"). For
//! Elastic Load Balancing, Terraform's provider repeats reads of objects that it has just created (`elbv2PropagationTimeout`).

use std::collections::{BTreeMap, BTreeSet};

use super::Request;
use super::listing::{without_items, without_nested_items};

/// The objects and tags that no listing has left out yet.
#[derive(Debug, Default)]
pub(super) struct NewObjects {
    /// ARNs, and names of classic load balancers.
    objects: BTreeSet<String>,
    /// The keys of tags, by object.
    tags: BTreeMap<String, BTreeSet<String>>,
}

/// The element with the ID of an object in the answers to its create and its listing.
fn id_element(request: &Request) -> Option<&'static str> {
    match (request.resource.as_str(), request.name.as_str()) {
        ("elbv2", "CreateLoadBalancer" | "DescribeLoadBalancers") => Some("LoadBalancerArn"),
        ("elbv2", "CreateTargetGroup" | "DescribeTargetGroups") => Some("TargetGroupArn"),
        ("elbv2", "CreateListener" | "DescribeListeners") => Some("ListenerArn"),
        ("elbv2", "DescribeTags") => Some("ResourceArn"),
        ("elb", "CreateLoadBalancer" | "DescribeLoadBalancers" | "DescribeTags") => Some("LoadBalancerName"),
        _ => None,
    }
}

/// The text of the first element with this name.
fn text<'a>(answer: &'a str, element: &str) -> Option<&'a str> {
    let (_, after) = answer.split_once(&format!("<{element}>"))?;
    after.split_once('<').map(|(text, _)| text.trim())
}

/// The values in a form whose names begin and end like this.
fn values(request: &Request, begin: &str, end: &str) -> Vec<String> {
    let body = request.body.replace('+', " ");
    let pairs = body.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .filter(|(name, _)| name.starts_with(begin) && name.ends_with(end))
        .map(|(_, value)| decoded(value))
        .collect()
}

/// A value of a form without its percent encoding.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl NewObjects {
    /// Remembers what a write created.
    pub(super) fn add(&mut self, request: &Request, answer: &str) {
        if answer.contains("<Error>") {
            return;
        }
        let mut tagged = Vec::new();
        if request.name.starts_with("Create") {
            let id = match (request.resource.as_str(), id_element(request)) {
                (_, None) => return,
                // The answer has only a host name.
                ("elb", Some(name)) => values(request, name, name).pop(),
                (_, Some(element)) => text(answer, element).map(str::to_owned),
            };
            self.objects.extend(id.clone());
            tagged.extend(id);
        } else if request.name == "AddTags" {
            tagged = values(request, "ResourceArns.member.", "");
            tagged.extend(values(request, "LoadBalancerNames.member.", ""));
        }
        let keys = values(request, "Tags.member.", ".Key");
        if !keys.is_empty() {
            for id in tagged {
                self.tags.entry(id).or_default().extend(keys.iter().cloned());
            }
        }
    }

    /// The answer to a listing without what is new, which the next one shows.
    pub(super) fn hide(&mut self, request: &Request, answer: &str) -> Option<String> {
        let element = id_element(request)?;
        if request.name == "DescribeTags" {
            return without_nested_items(answer, |object, tag| {
                let keys = text(object, element).and_then(|id| self.tags.get_mut(id));
                let key = text(tag, "Key").unwrap_or_default();
                keys.is_some_and(|keys| keys.remove(key))
            });
        }
        without_items(answer, |object| text(object, element).is_some_and(|id| self.objects.remove(id)))
    }

    /// From now on, listings show everything that was created before.
    pub(super) fn clear(&mut self) {
        self.objects.clear();
        self.tags.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, body: &str) -> Request {
        Request {
            resource: "elbv2".to_owned(),
            name: name.to_owned(),
            body: body.to_owned(),
            ..Request::default()
        }
    }

    #[test]
    fn the_first_listing_leaves_out_a_new_object_and_its_tags() {
        let mut new = NewObjects::default();
        let create = request("CreateTargetGroup", "Name=b&Tags.member.1.Key=a%2Fb&Tags.member.1.Value=x");
        new.add(&create, "<R><member><TargetGroupArn>arn:b</TargetGroupArn></member></R>");
        new.add(&create, "<R><Error><TargetGroupArn>arn:c</TargetGroupArn></Error></R>");
        let list = request("DescribeTargetGroups", "");
        let [a, b] =
            ["a", "b"].map(|name| format!("<member><TargetGroupArn>arn:{name}</TargetGroupArn></member>"));
        let all = format!("<R>{a}{b}</R>");
        assert_eq!(new.hide(&request("DescribeListeners", ""), &all), None, "another kind");
        assert_eq!(new.hide(&list, &all), Some(format!("<R>{a}</R>")));
        assert_eq!(new.hide(&list, &all), None, "the second one shows it");
        let tag = |key: &str| format!("<member><Key>{key}</Key><Value>x</Value></member>");
        let tags = |tags: &str| {
            format!("<R><member><ResourceArn>arn:b</ResourceArn><Tags>{tags}</Tags></member></R>")
        };
        let (list, both) = (request("DescribeTags", ""), tags(&(tag("a/b") + &tag("old"))));
        assert_eq!(new.hide(&list, &both), Some(tags(&tag("old"))));
        assert_eq!(new.hide(&list, &both), None);
        let add = request("AddTags", "ResourceArns.member.1=arn%3Ab&Tags.member.1.Key=old");
        new.add(&add, "<R/>");
        assert_eq!(new.hide(&list, &both), Some(tags(&tag("a/b"))));
        new.add(&add, "<R/>");
        new.clear();
        assert_eq!(new.hide(&list, &both), None);
    }
}
