//! Checks the laws of the plan engine for this model.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    client::Listing,
    load_balancer::{ClusterView, Effect, Protocol, ServiceView, default_name},
    plan::Member,
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, laws, ownership_tag, service_id,
    },
};
use serde_json::{Value, json};

use super::{
    annotations,
    document::{Balancer, ClusterTags, RULES},
    model::{Change, Inputs, Key, Model, Observed, Reply},
};

fn model() -> Model {
    Model {
        settings: Arc::new(super::desired::tests::settings(&[])),
        region: "nyc3".to_owned(),
    }
}

/// All load balancers of the account, by id.
type Truth = BTreeMap<String, Balancer>;

fn of(value: Value) -> Balancer {
    serde_json::from_value(value).unwrap()
}

/// Changes a load balancer of a Service, as others would.
fn edit(name: &str, change: fn(&mut Value)) -> Edit<Truth> {
    Edit::new(name, move |truth: &mut Truth, number| {
        let name = default_name(&service_id(number % SERVICES));
        if let Some(balancer) = truth.values_mut().find(|balancer| balancer.name() == name) {
            set(balancer, change);
        }
    })
}

fn set(balancer: &mut Balancer, change: impl Fn(&mut Value)) {
    let mut document = balancer.fields().clone();
    change(&mut document);
    *balancer = of(document);
}

/// The sorted items of a list.
fn sorted(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    let mut list: Vec<_> = list.map(Value::to_string).collect();
    list.sort();
    list
}

impl Lawful for Model {
    type Truth = Truth;

    fn ground(&self) -> Truth {
        let id = "11111111-0000-4000-8000-000000000000";
        let document = json!({
            "id": id, "name": "mine", "status": "active", "ip": "203.0.113.250", "droplet_ids": [9], "forwarding_rules": [],
        });
        Truth::from([(id.to_owned(), of(document))])
    }

    fn clusters(&self) -> Clusters {
        let health = Setting::annotation(annotations::OVERRIDE_HEALTH_CHECK, "true");
        let health = health.and(annotations::HEALTH_PATH, "/up");
        Clusters {
            names: vec!["kubernetes"],
            ports: vec![(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Tcp, 8080)],
            settings: vec![
                vec![
                    Setting::annotation(annotations::SIZE_UNIT, "2"),
                    Setting::annotation(annotations::SIZE_UNIT, "many").invisible(),
                ],
                vec![Setting::annotation(annotations::NETWORK, "INTERNAL").invisible()],
                vec![health.invisible()],
                vec![Setting::annotation(annotations::DISOWN, "true")],
            ],
            provider_id: |index| format!("digitalocean://{}", index + 1),
        }
    }

    fn edits(&self) -> Vec<Edit<Truth>> {
        vec![
            Edit::new("delete a load balancer", |truth: &mut Truth, number| {
                let name = default_name(&service_id(number % SERVICES));
                truth.retain(|_, balancer| balancer.name() != name);
            }),
            edit("resize", |document| document["size_unit"] = json!(3)),
            edit("other droplets", |document| {
                document["droplet_ids"] = json!([1, 9]);
            }),
            edit("no rules", |document| document["forwarding_rules"] = json!([])),
            edit("remove tags", |document| document["tags"] = json!([])),
            // A load balancer of another cluster is refused before planning: see `tests/provider/balancing.rs`.
        ]
    }

    fn view(&self, truth: &Truth, key: &Key, members: &[Member<Self>], _: &ClusterView) -> Observed {
        let mut services = members.iter().map(|member| &member.service);
        let annotated = services.find_map(|service| truth.get(service.annotation(annotations::ID)?));
        let found = match key {
            Key::Balancer(id) => truth.get(id),
            Key::New(name) => annotated.or_else(|| truth.values().find(|balancer| balancer.name() == name)),
        };
        Observed {
            balancer: found.cloned(),
            ..Observed::default()
        }
    }

    fn store(&self, truth: &mut Truth, key: &Key, after: Observed) {
        if let Key::Balancer(id) = key {
            truth.remove(id);
        }
        if let Some(balancer) = after.balancer {
            truth.insert(balancer.id().to_owned(), balancer);
        }
    }

    fn directory(&self, truth: &Truth) -> Listing<Balancer> {
        truth.values().cloned().collect()
    }

    fn inputs(&self, truth: &Truth, key: &Key, _: &[Member<Self>], _: &ClusterView) -> Inputs {
        let existing = match key {
            Key::Balancer(id) => truth.get(id).cloned().map(Arc::new),
            Key::New(_) => None,
        };
        Inputs {
            existing,
            ..Inputs::default()
        }
    }

    fn reply(&self, change: &Change, observed: &Observed, ids: &Ids) -> Reply {
        let serial = ids.number();
        match change.effect {
            Effect::Create => {
                let mut document = change.body.clone();
                document["id"] = json!(format!("00000000-0000-4000-8000-{serial:012}"));
                document["status"] = json!("active");
                document["ip"] = json!(format!("203.0.113.{}", serial % 250));
                Some(of(document))
            }
            Effect::Delete => None,
            Effect::Change => {
                let before = observed.balancer.as_ref();
                before.map(|balancer| RULES.after(balancer, &change.body, None))
            }
        }
    }

    fn fail(&self, truth: &mut Truth, key: &Key) {
        if let Key::Balancer(id) = key
            && let Some(balancer) = truth.get_mut(id)
        {
            set(balancer, |document| document["status"] = json!("errored"));
        }
    }

    fn repair(&self, truth: &mut Truth) {
        for balancer in truth.values_mut() {
            set(balancer, |document| {
                document["status"] = json!("active");
                document["ip"] = json!("203.0.113.251");
            });
        }
    }

    fn picture(&self, truth: &Truth) -> Vec<Line> {
        let mut picture = Vec::new();
        for balancer in truth.values() {
            let name = balancer.name();
            let owner = self.owner_if(|service| default_name(service) == name);
            let tags = ClusterTags::new(&ownership_tag(), None);
            let owner = owner.foreign_if(tags.foreign(balancer).is_some());
            let mut document = RULES.writable(balancer);
            let tags = std::mem::take(&mut document["tags"]);
            if owner == Owner::Foreign {
                picture.push(Line::exact(format!("{name}: {document} {tags}"), &owner));
                continue;
            }
            for field in ["droplet_ids", "forwarding_rules"] {
                let text = format!("{name} {field} {:?}", sorted(&document[field]));
                picture.push(Line::exact(text, &owner));
            }
            for field in ["size_unit", "health_check"] {
                picture.push(Line::exact(format!("{name} {field} {}", document[field]), &owner));
            }
            // Immutable: a Service that does not set them keeps the present values.
            for field in ["network", "type"] {
                let text = format!("{name} {field} {}", document[field]);
                picture.push(Line::exact(text, &owner.or_cluster()));
            }
        }
        picture
    }

    fn destroys(&self, change: &Change, _: &Observed, _: &ServiceView) -> bool {
        change.effect == Effect::Delete
    }
}

#[test]
fn the_model_keeps_the_laws() {
    laws(&model(), 96);
}
