//! Checks the laws of the plan engine for this model.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    client::Listing,
    load_balancer::{ClusterView, Effect, Protocol, ServiceView, default_name},
    plan::Member,
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, concurrent, laws, ownership_tag,
        service_id,
    },
};
use serde_json::{Value, json};

use super::{
    annotations, desired,
    document::{Balancer, RULES, field},
    model::{
        BalancerChange, BalancerDirectory, BalancerInputs, BalancerKey, BalancerReply, Model,
        ObservedBalancer,
    },
    ownership::ClusterTags,
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
    let mut items: Vec<_> = list.as_array().into_iter().flatten().map(Value::to_string).collect();
    items.sort();
    items
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
        let health = Setting::annotation(annotations::OVERRIDE_HEALTH_CHECK, "true")
            .and(annotations::HEALTH_PATH, "/up");
        Clusters {
            names: vec!["kubernetes"],
            ports: vec![(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Tcp, 8080)],
            settings: vec![
                vec![
                    Setting::annotation(annotations::HEALTH_INTERVAL, "7"),
                    Setting::annotation(annotations::HEALTH_INTERVAL, "many").invisible(),
                ],
                vec![Setting::annotation(annotations::SIZE_UNIT, "2").invisible()],
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
            edit("resize", |document| document[field::SIZE_UNIT] = json!(3)),
            edit("other droplets", |document| {
                document[field::DROPLET_IDS] = json!([1, 9]);
            }),
            edit("no rules", |document| document[field::FORWARDING_RULES] = json!([])),
            edit("remove tags", |document| document[field::TAGS] = json!([])),
            // A load balancer of another cluster is refused before planning: see `tests/provider/balancing.rs`.
        ]
    }

    fn view(
        &self,
        truth: &Truth,
        key: &BalancerKey,
        members: &[Member<Self>],
        cluster: &ClusterView,
    ) -> ObservedBalancer {
        let mut services = members.iter().map(|member| &member.service);
        let annotated = services.find_map(|service| truth.get(service.annotation(annotations::ID)?));
        let found = match key {
            BalancerKey::Existing(id) => truth.get(id),
            BalancerKey::New(name) => {
                annotated.or_else(|| truth.values().find(|balancer| balancer.name() == name))
            }
        };
        ObservedBalancer {
            balancer: found.cloned(),
            identity: Arc::new(self.identity(cluster, &BTreeMap::new())),
            ..ObservedBalancer::default()
        }
    }

    fn store(&self, truth: &mut Truth, key: &BalancerKey, after: ObservedBalancer) {
        if let BalancerKey::Existing(id) = key {
            truth.remove(id);
        }
        if let Some(balancer) = after.balancer {
            truth.insert(balancer.id().to_owned(), balancer);
        }
    }

    fn directory(&self, truth: &Truth) -> BalancerDirectory {
        let listing: Listing<Balancer> = truth.values().cloned().collect();
        BalancerDirectory {
            listing: Arc::new(listing),
            is_current: true,
        }
    }

    fn inputs(
        &self,
        truth: &Truth,
        key: &BalancerKey,
        members: &[Member<Self>],
        cluster: &ClusterView,
    ) -> BalancerInputs {
        let existing = match key {
            BalancerKey::Existing(id) => truth.get(id).cloned().map(Arc::new),
            BalancerKey::New(_) => None,
        };
        let readings = Member::active(members).map(|Member { service, .. }| {
            let reading = desired::read(service, &self.settings, existing.as_deref(), None);
            (service.id.clone(), reading)
        });
        BalancerInputs {
            readings: readings.collect(),
            existing,
            identity: Arc::new(self.identity(cluster, &BTreeMap::new())),
            ..BalancerInputs::default()
        }
    }

    fn reply(&self, change: &BalancerChange, observed: &ObservedBalancer, ids: &Ids) -> BalancerReply {
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

    fn fail(&self, truth: &mut Truth, key: &BalancerKey) {
        if let BalancerKey::Existing(id) = key
            && let Some(balancer) = truth.get_mut(id)
        {
            set(balancer, |document| document[field::STATUS] = json!("errored"));
        }
    }

    fn repair(&self, truth: &mut Truth) {
        for balancer in truth.values_mut() {
            set(balancer, |document| {
                document[field::STATUS] = json!("active");
                document[field::IP] = json!("203.0.113.251");
            });
        }
    }

    fn picture(&self, truth: &Truth) -> Vec<Line> {
        let mut picture = Vec::new();
        for balancer in truth.values() {
            let name = balancer.name();
            let cluster_tags = ClusterTags::new(&ownership_tag(), None);
            let owner = self
                .owner_if(|service| default_name(service) == name)
                .foreign_if(cluster_tags.foreign(balancer).is_some());
            let mut document = RULES.writable(balancer);
            let tags = std::mem::take(&mut document[field::TAGS]);
            if owner == Owner::Foreign {
                picture.push(Line::exact(format!("{name}: {document} {tags}"), &owner));
                continue;
            }
            for field in [field::DROPLET_IDS, field::FORWARDING_RULES] {
                let text = format!("{name} {field} {:?}", sorted(&document[field]));
                picture.push(Line::exact(text, &owner));
            }
            let check = format!("{name} health_check {}", document[field::HEALTH_CHECK]);
            picture.push(Line::exact(check, &owner));
            // A Service that does not set them keeps the present values.
            for field in [field::NETWORK, field::TYPE, field::SIZE_UNIT] {
                let text = format!("{name} {field} {}", document[field]);
                picture.push(Line::exact(text, &owner.or_cluster()));
            }
        }
        picture
    }

    fn destroys(&self, change: &BalancerChange, _: &ObservedBalancer, _: &ServiceView) -> bool {
        change.effect == Effect::Delete
    }
}

#[test]
fn the_model_keeps_the_laws() {
    laws(&model(), 48);
}

#[test]
fn the_model_keeps_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&model(), 200);
}
