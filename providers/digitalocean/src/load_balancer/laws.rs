//! The laws of the plan engine for this model.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    AddressType, NodeAddress, NodeView,
    client::{Indexed as _, Listing},
    load_balancer::{ClusterSnapshot, ClusterTag, ClusterView, OwnershipTag, ServiceNode, ServiceView},
    plan::{GatheredInputs, Member},
    testkit::{
        cluster::{annotate, service},
        laws::{Case, Lawful, laws, weather},
    },
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    annotations,
    document::{Balancer, ClusterTags},
    model::{Change, Desired, Inputs, Key, Model, Observed, Reply},
};

fn model() -> Model {
    let environment = ccm_core::Environment::default().with("DO_ACCESS_TOKEN", "x");
    let settings = crate::config::load(None, &environment, &mut Default::default())
        .unwrap()
        .value;
    Model {
        settings: Arc::new(settings),
        region: "nyc3".to_owned(),
    }
}

/// All load balancers of the account, by id.
type Truth = BTreeMap<String, Balancer>;

fn ours() -> OwnershipTag {
    OwnershipTag::Known(ClusterTag::of("kube-system-uid"))
}

fn of(value: Value) -> Balancer {
    serde_json::from_value(value).unwrap()
}

fn is_foreign(balancer: &Balancer) -> bool {
    ClusterTags::new(&ours(), None).foreign(balancer).is_some() || balancer.name() == "mine"
}

impl Lawful for Model {
    type Truth = Truth;

    fn view(&self, truth: &Truth, key: &Key, members: &[Member<Self>], _: &ClusterView) -> Observed {
        let annotated = members
            .iter()
            .find_map(|member| truth.get(member.service.annotation(annotations::ID)?));
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

    fn inputs(&self, _: &Key, _: &[Member<Self>], _: &ClusterView) -> GatheredInputs<Inputs> {
        Inputs::default().into()
    }

    fn reply(&self, _: &Key, change: &Change, observed: &Observed, serial: u64) -> Reply {
        Reply(match change {
            Change::Create { body, .. } => {
                let mut document = body.clone();
                document["id"] = json!(format!("00000000-0000-4000-8000-{serial:012}"));
                document["status"] = json!("active");
                document["ip"] = json!(format!("203.0.113.{}", serial % 250));
                Some(of(document))
            }
            Change::Update { body, .. } => observed
                .balancer
                .as_ref()
                .map(|balancer| balancer.after(body, None)),
            Change::Delete { .. } => None,
        })
    }

    fn fail(&self, truth: &mut Truth, key: &Key) {
        if let Key::Balancer(id) = key
            && let Some(balancer) = truth.get_mut(id)
        {
            let mut document = balancer.copy();
            document["id"] = json!(id);
            document["status"] = json!("errored");
            *balancer = of(document);
        }
    }

    fn repair(&self, truth: &mut Truth) {
        for (id, balancer) in truth {
            let mut document = balancer.copy();
            document["id"] = json!(id);
            document["status"] = json!("active");
            document["ip"] = json!("203.0.113.251");
            *balancer = of(document);
        }
    }

    fn shape(&self, truth: &Truth) -> Vec<String> {
        let ours = truth.values().filter(|balancer| !is_foreign(balancer));
        ours.map(|balancer| balancer.copy().to_string()).collect()
    }

    fn foreign(&self, truth: &Truth) -> Vec<String> {
        let theirs = truth.values().filter(|balancer| is_foreign(balancer));
        theirs.map(|balancer| format!("{balancer:?}")).collect()
    }

    fn differences(&self, desired: &Desired, observed: &Observed) -> Vec<String> {
        let (Desired::Wanted(wanted), Some(balancer)) = (desired, &observed.balancer) else {
            return match desired {
                Desired::Wanted(_) => vec!["load balancer".to_owned()],
                _ => Vec::new(),
            };
        };
        if wanted.tags.foreign(balancer).is_some() && wanted.named.as_deref() != Some(balancer.id()) {
            return Vec::new();
        }
        let document = balancer.copy();
        let sorted = |list: &Value| {
            let mut list = list.as_array().cloned().unwrap_or_default();
            list.sort_by_key(Value::to_string);
            list
        };
        let mut found = Vec::new();
        for (field, want) in &wanted.fields {
            let same = match field.as_str() {
                "name" | "size_unit" => document[field] == *want,
                "droplet_ids" => sorted(&document[field]) == sorted(want),
                "forwarding_rules" => {
                    document[field].as_array().map(Vec::len) == want.as_array().map(Vec::len)
                }
                "health_check" => document[field]["port"] == want["port"],
                _ => true,
            };
            found.extend((!same).then(|| field.clone()));
        }
        let blocked = wanted
            .requested
            .iter()
            .filter(|(field, want)| document[field] != json!(want));
        found.extend(blocked.map(|(field, _)| format!("{field} of load balancer {}", balancer.name())));
        found
    }

    fn destroys(&self, change: &Change) -> bool {
        matches!(change, Change::Delete { .. })
    }
}

fn node(number: u64, address: &str) -> ServiceNode {
    ServiceNode {
        view: Arc::new(NodeView {
            name: format!("node-{number}"),
            provider_id: Some(format!("digitalocean://{number}")),
            ..NodeView::default()
        }),
        addresses: [NodeAddress::new(AddressType::ExternalIP, address)].into(),
        eligible: true,
        ready: true,
    }
}

const NAMES: [&str; 3] = ["web", "api", "shop"];
const SIZES: [&str; 4] = ["1", "2", "3", "many"];

prop_compose! {
    /// A Service; some ask for something invalid.
    fn a_service(which: usize)(
        ports in prop::sample::subsequence(vec![80, 443, 8080], 1..=3),
        size in 0..SIZES.len(), sized in any::<bool>(), internal in any::<bool>(), path in any::<bool>(),
        deleting in prop::bool::weighted(0.2), disowned in prop::bool::weighted(0.1), renamed in prop::bool::weighted(0.2),
        named in prop::option::weighted(0.2, 0..4_u64),
    ) -> ServiceView {
        let mut service = service(NAMES[which], &ports);
        let mut set = |key: &str, value: &str| annotate(&mut service, key, Some(value));
        if sized {
            set(annotations::SIZE_UNIT, SIZES[size]);
        }
        if internal {
            set(annotations::NETWORK, "INTERNAL");
        }
        if path {
            set(annotations::OVERRIDE_HEALTH_CHECK, "true");
            set(annotations::HEALTH_PATH, "/up");
        }
        if disowned {
            set(annotations::DISOWN, "true");
        }
        if renamed {
            set(annotations::NAME, "custom");
        }
        if let Some(number) = named {
            set(annotations::ID, &id(number));
        }
        service.deleting = deleting;
        service
    }
}

fn id(number: u64) -> String {
    format!("11111111-0000-4000-8000-{number:012}")
}

prop_compose! {
    /// A cluster.
    fn a_world()(
        services in (0..3_usize).prop_flat_map(|count| (0..count).map(a_service).collect::<Vec<_>>()),
        nodes in prop::sample::subsequence(vec![1_u64, 2, 3], 0..=3), v4 in any::<bool>(),
    ) -> ClusterSnapshot {
        let address = if v4 { "203.0.113.9" } else { "10.0.0.9" };
        ClusterSnapshot {
            services: services.into_iter().map(Arc::new).collect(),
            cluster: ClusterView {
                name: "kubernetes".into(),
                ownership_tag: ours(),
                nodes: nodes.into_iter().map(|number| node(number, address)).collect(),
            },
        }
    }
}

prop_compose! {
    /// A load balancer as anybody may have left it.
    fn a_balancer()(
        name in prop::sample::select(vec!["auidweb", "auidapi", "auidshop", "custom"]),
        tag in prop::sample::select(vec!["", "kube_cluster_id_kube-system-uid", "kube_cluster_id_other", "web"]),
        shown in any::<bool>(), network in prop::sample::select(vec!["INTERNAL", "EXTERNAL"]),
        kind in prop::sample::select(vec!["REGIONAL", "REGIONAL_NETWORK"]),
        size in 1..4, droplets in prop::sample::subsequence(vec![1, 2, 9], 0..=3),
        status in prop::sample::select(vec!["active", "active", "errored"]),
    ) -> Value {
        let mut balancer = json!({
            "name": name, "status": status, "network": network, "type": kind, "size_unit": size, "ip": "203.0.113.250",
            "droplet_ids": droplets, "project_id": "kept", "forwarding_rules": [],
        });
        if shown {
            let tags: Vec<_> = Some(tag).filter(|tag| !tag.is_empty()).into_iter().collect();
            balancer["tags"] = json!(tags);
        }
        balancer
    }
}

/// Clusters and accounts; names are unique in an account.
fn a_case() -> impl Strategy<Value = Case<Truth>> {
    let balancers = prop::collection::vec(a_balancer(), 0..3);
    let worlds = prop::collection::vec(a_world(), 1..3);
    (balancers, worlds, weather()).prop_map(|(balancers, worlds, weather)| {
        let mut truth = Truth::new();
        for (number, mut balancer) in (0_u64..).zip(balancers) {
            let is_taken = truth
                .values()
                .any(|known: &Balancer| Some(known.name()) == balancer["name"].as_str());
            if !is_taken {
                balancer["id"] = json!(id(number));
                truth.insert(id(number), of(balancer));
            }
        }
        Case {
            truth,
            worlds,
            weather,
        }
    })
}

#[test]
fn the_model_keeps_the_laws() {
    laws(&model(), &a_case(), 96);
}
