//! A toy cloud whose load balancer is one document that all Services share, and whose objects have no place for ownership tags.
//!
//! ```text
//!   pool/<name>  one pool of machines for each Service
//!   document     one rule for each port of each Service; other clients have rules, too
//! ```
//!
//! Names contain the UIDs of Services: `pool-<uid>`, `<uid>-80`.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    Error,
    load_balancer::{
        ClusterSnapshot, ClusterView, Effect, Effects, FormerLoadBalancer, Ingress, OwnNames, ServiceId,
        ServiceView, StepDescription, StepObjects,
    },
    plan::{
        CheckResult, CloudChange, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan, Step,
        document::{Document, Rules, named_owner},
        part_keys,
    },
    testkit::laws::{
        AcceptedChange, Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, pick, service_id,
    },
};
use serde_json::{Value, json};

/// A note in the rules of a Service; `plaid` is invalid.
pub const NOTE: &str = "rulebook/note";

part_keys! {
    pub enum RulebookPart {
        Pool(String) = "pool/";
        Document = "document";
    }
}

/// The machines of a pool.
pub type Machines = BTreeSet<String>;

#[derive(Clone, Debug, PartialEq)]
pub enum RulebookObserved {
    Pool(Option<Machines>),
    Document(Document),
}

#[derive(Clone, Debug, PartialEq)]
pub enum RulebookChange {
    CreatePool(String, Machines),
    FillPool(String, Machines),
    DeletePool(String),
    Write {
        document: Document,
        changes: Vec<String>,
    },
}

impl CloudChange for RulebookChange {
    fn describe(&self) -> StepDescription {
        match self {
            Self::CreatePool(name, _) => {
                StepDescription::new("pool_create", Effect::Create, format!("create pool {name}"))
            }
            Self::FillPool(name, machines) => {
                let sentence = format!("fill pool {name} with {machines:?}");
                StepDescription::new("pool_update", Effect::Change, sentence)
            }
            Self::DeletePool(name) => {
                StepDescription::new("pool_delete", Effect::Delete, format!("delete pool {name}"))
            }
            Self::Write { changes, .. } => {
                let sentence = format!("update document rules: {}", changes.join(", "));
                StepDescription::new("document_update", Effect::Change, sentence)
            }
        }
    }
}

#[derive(Debug)]
pub enum RulebookDesired {
    /// The name, and the machines; `None`: it is deleted.
    Pool(String, Option<Machines>),
    /// Machines of a pool that may exist.
    FrozenPool(String, Machines),
    Unchanged,
    Document {
        rules: Vec<Value>,
        /// The names of rules that may be removed.
        names: OwnNames,
    },
}

/// The listings: names of pools and of rules.
#[derive(Debug)]
pub struct RulebookDirectory {
    pub pools: BTreeMap<String, Machines>,
    pub rules: Vec<String>,
}

/// A flaw of a toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulebookFlaw {
    /// The write of the document is no shared step.
    IsAlone,
    /// Any rule that looks like a Service's is its own.
    OwnsByShape,
    /// Any pool that looks like a Service's is an orphan.
    ReportsByShape,
    /// Orphans may be deleted.
    DeletesOrphans,
}

#[derive(Clone, Debug, Default)]
pub struct Rulebook {
    pub flaw: Option<RulebookFlaw>,
    /// Errors of the cloud name the rule.
    pub reads_names: bool,
}

impl Rulebook {
    fn has(&self, flaw: RulebookFlaw) -> bool {
        self.flaw == Some(flaw)
    }
}

pub fn pool_name(id: &ServiceId) -> String {
    format!("pool-{}", id.uid)
}

fn rule_name(id: &ServiceId, port: u16) -> String {
    format!("{}-{port}", id.uid)
}

/// The UID in the name of a rule.
fn uid_of_rule(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(uid, _)| uid)
}

fn rules() -> Rules {
    Rules::default().set("rules", &["name"]).read_only(&["id"])
}

fn name(rule: &Value) -> &str {
    rule["name"].as_str().unwrap_or_default()
}

fn machines(cluster: &ClusterView) -> Machines {
    cluster.nodes.eligible().map(|node| node.view.name.clone()).collect()
}

fn step(change: RulebookChange, object: &str) -> Step<RulebookChange> {
    Step::new(change).with_objects(StepObjects::changing([object]))
}

impl PartModel for Rulebook {
    type Key = RulebookPart;
    type Directory = RulebookDirectory;
    type Inputs = ();
    type Spec = ();
    type Facts = ();
    type Desired = RulebookDesired;
    type Observed = RulebookObserved;
    type Change = RulebookChange;
    type Reply = ();

    fn provider(&self) -> &'static str {
        "rulebook"
    }

    fn spec(&self, _: &ServiceView, _: &ClusterView) {}

    fn parts(
        &self,
        service: &ServiceView,
        _: &ClusterView,
        directory: &RulebookDirectory,
    ) -> Parts<RulebookPart> {
        let pool = pool_name(&service.id);
        let has_pool = directory.pools.contains_key(&pool);
        let has_rule = directory.rules.iter().any(|rule| uid_of_rule(rule) == &*service.id.uid);
        let pool = RulebookPart::Pool(pool);
        let tagged = has_pool.then(|| pool.clone()).into_iter();
        Parts {
            named: vec![pool, RulebookPart::Document],
            tagged: tagged.chain(has_rule.then_some(RulebookPart::Document)).collect(),
        }
    }

    fn former(
        &self,
        service: &ServiceView,
        _: &ClusterView,
        directory: &RulebookDirectory,
    ) -> FormerLoadBalancer {
        let name = pool_name(&service.id);
        if directory.pools.contains_key(&name) {
            FormerLoadBalancer::Ours(format!("pool {name}"))
        } else {
            FormerLoadBalancer::Missing
        }
    }

    /// Pools with the UID of a Service that does not exist.
    fn orphans(
        &self,
        snapshot: &ClusterSnapshot,
        directory: &RulebookDirectory,
    ) -> Vec<Orphan<RulebookPart>> {
        let names = snapshot.own_names(None);
        let nodes = machines(&snapshot.cluster);
        let unproven = directory.pools.iter().filter(|(name, _)| !names.prove(name));
        let orphans = unproven.filter_map(|(name, machines)| {
            let machines: Vec<_> = machines.iter().collect();
            let is_node =
                |machine: &&String| self.has(RulebookFlaw::ReportsByShape) || nodes.contains(*machine);
            let key = RulebookPart::Pool(name.clone());
            let mut orphan = Orphan::untagged(key, format!("pool {name}"), &machines, is_node)?;
            orphan.deletable = self.has(RulebookFlaw::DeletesOrphans);
            Some(orphan)
        });
        orphans.collect()
    }

    fn check(&self, _: &RulebookPart, members: &[Member<Self>], _: &ClusterView, (): &()) -> CheckResult {
        let mut result = CheckResult::default();
        for member in Member::active(members) {
            if member.service.annotation(NOTE) == Some("plaid") {
                result.refuse(&member.service.id, "plaid is no note");
            }
        }
        result
    }

    fn desired(
        &self,
        key: &RulebookPart,
        members: &[Member<Self>],
        cluster: &ClusterView,
        (): &(),
    ) -> RulebookDesired {
        let RulebookPart::Pool(name) = key else {
            return document(members);
        };
        let keeps = cluster.nodes.keeps_members();
        let name = name.clone();
        match members.first().map(|member| &member.membership) {
            None | Some(Membership::Leaving) => RulebookDesired::Pool(name, None),
            Some(Membership::Active) if !keeps => RulebookDesired::Pool(name, Some(machines(cluster))),
            // Without nodes, a new pool is empty and others keep theirs.
            Some(Membership::Active) => RulebookDesired::Pool(name, Some(Machines::new())),
            Some(Membership::Frozen(_)) if members.iter().any(Member::follows_nodes) && !keeps => {
                RulebookDesired::FrozenPool(name, machines(cluster))
            }
            Some(Membership::Frozen(_)) => RulebookDesired::Unchanged,
        }
    }

    fn plan(&self, desired: &RulebookDesired, observed: &RulebookObserved) -> Plan<RulebookChange> {
        let step = match (desired, observed) {
            (RulebookDesired::Pool(name, Some(machines)), RulebookObserved::Pool(None)) => {
                Some(step(RulebookChange::CreatePool(name.clone(), machines.clone()), "pool"))
            }
            (
                RulebookDesired::Pool(name, Some(machines)) | RulebookDesired::FrozenPool(name, machines),
                RulebookObserved::Pool(Some(have)),
            ) if have != machines && !machines.is_empty() => {
                Some(step(RulebookChange::FillPool(name.clone(), machines.clone()), "pool"))
            }
            (RulebookDesired::Pool(name, None), RulebookObserved::Pool(Some(_))) => {
                Some(step(RulebookChange::DeletePool(name.clone()), "pool"))
            }
            (
                RulebookDesired::Document {
                    rules: desired,
                    names,
                },
                RulebookObserved::Document(document),
            ) => {
                let owns = |_: &str, rule: &Value| {
                    let looks_ours = self.has(RulebookFlaw::OwnsByShape) && name(rule).contains('-');
                    looks_ours || names.prove(name(rule))
                };
                let edit = rules().edit_owned(document, &json!({ "rules": desired }), owns);
                edit.map(|edit| {
                    let document = rules().after(document, &edit.document, None);
                    let changes = edit.changes;
                    let write = step(RulebookChange::Write { document, changes }, "document");
                    if self.has(RulebookFlaw::IsAlone) {
                        write
                    } else {
                        write.shared()
                    }
                })
            }
            _ => None,
        };
        Plan {
            steps: step.into_iter().collect(),
            blocked: Vec::new(),
        }
    }

    fn fold(
        &self,
        _: &RulebookPart,
        change: &RulebookChange,
        _: Option<&()>,
        observed: &mut RulebookObserved,
    ) {
        *observed = match change {
            RulebookChange::CreatePool(_, machines) | RulebookChange::FillPool(_, machines) => {
                RulebookObserved::Pool(Some(machines.clone()))
            }
            RulebookChange::DeletePool(_) => RulebookObserved::Pool(None),
            RulebookChange::Write { document, .. } => RulebookObserved::Document(document.clone()),
        };
    }

    fn named_member(
        &self,
        _: &RulebookPart,
        members: &[Member<Self>],
        _: &RulebookChange,
        error: &Error,
    ) -> Option<ServiceId> {
        if !self.reads_names {
            return None;
        }
        let names: Vec<_> = members
            .iter()
            .flat_map(|member| {
                let ports = member.service.ports.iter();
                ports.map(|port| (&member.service.id, rule_name(&member.service.id, port.port)))
            })
            .collect();
        let names = names.iter().map(|(id, name)| (*id, name.as_str()));
        named_owner(&error.report(), names).cloned()
    }

    fn facts(
        &self,
        key: &RulebookPart,
        member: &Member<Self>,
        observed: &RulebookObserved,
    ) -> Option<PartOutput<()>> {
        let mut effects = Effects::default();
        if member.membership != Membership::Leaving {
            match observed {
                RulebookObserved::Pool(None) => return None,
                RulebookObserved::Pool(Some(_)) => {}
                RulebookObserved::Document(document) => {
                    let uid = &*member.service.id.uid;
                    document.list("rules").find(|rule| uid_of_rule(name(rule)) == uid)?;
                    effects.ingress = Some(vec![Ingress::name(&format!("{uid}.example"))]);
                }
            }
        }
        debug_assert!(*key == RulebookPart::Document || effects.ingress.is_none());
        Some(PartOutput { facts: (), effects })
    }
}

fn document(members: &[Member<Rulebook>]) -> RulebookDesired {
    let rules = Member::active(members).flat_map(|member| {
        let service = &member.service;
        let note = service.annotation(NOTE).unwrap_or_default();
        service.ports.iter().map(move |port| {
            json!({
                "name": rule_name(&service.id, port.port),
                "protocol": port.protocol.to_string(),
                "pool": pool_name(&service.id),
                "note": note,
            })
        })
    });
    let owners = members.iter().filter(|member| !matches!(member.membership, Membership::Frozen(_)));
    RulebookDesired::Document {
        rules: rules.collect(),
        names: OwnNames::new(owners.map(|member| &member.service.id), None),
    }
}

#[derive(Clone, Debug)]
pub struct RulebookTruth {
    pub pools: BTreeMap<String, Machines>,
    pub document: Document,
}

impl RulebookTruth {
    /// A cloud without pools and rules.
    pub fn empty() -> Self {
        let mut truth = Self {
            pools: BTreeMap::new(),
            document: Document::default(),
        };
        truth.set_rules(&[]);
        truth
    }

    pub fn add_rule(&mut self, rule: Value) {
        let mut rules = self.rules();
        rules.push(rule);
        self.set_rules(&rules);
    }

    fn rules(&self) -> Vec<Value> {
        self.document.list("rules").cloned().collect()
    }

    fn set_rules(&mut self, rules: &[Value]) {
        self.document = Document::planned(&json!({ "id": "rules", "rules": rules }));
    }

    /// Edits one of the rules with a pool.
    pub fn edit_rule(&mut self, number: usize, edit: impl Fn(&mut Value)) {
        let mut rules = self.rules();
        let ours = (0..rules.len())
            .filter(|at| rules[*at].get("pool").is_some() && !name(&rules[*at]).starts_with('x'));
        if let Some(at) = pick(ours.collect::<Vec<_>>(), number) {
            edit(&mut rules[at]);
            rules.retain(|rule| !rule.is_null());
            self.set_rules(&rules);
        }
    }
}

/// The owner of an object with this UID in its name.
fn owner_of(uid: &str) -> Owner {
    if uid.starts_with('u') {
        Owner::service(uid)
    } else {
        Owner::Foreign
    }
}

impl Lawful for Rulebook {
    type Truth = RulebookTruth;

    /// The rule of another client, and a pool and a rule of another cluster in the same project.
    fn ground(&self) -> RulebookTruth {
        let mut truth = RulebookTruth {
            pools: [("pool-x0".to_owned(), ["theirs".to_owned()].into())].into(),
            document: Document::default(),
        };
        truth.set_rules(&[
            json!({ "name": "ssh", "protocol": "TCP", "comment": "do not touch" }),
            json!({ "name": "x0-80", "protocol": "TCP", "pool": "pool-x0", "note": "" }),
        ]);
        truth
    }

    fn clusters(&self) -> Clusters {
        use ccm_core::load_balancer::Protocol::{Tcp, Udp};
        Clusters {
            names: vec!["toys"],
            ports: vec![(Tcp, 80), (Tcp, 443), (Udp, 53)],
            settings: vec![["red", "plaid"].map(|note| Setting::annotation(NOTE, note)).to_vec()],
            provider_id: |index| format!("toy:///{index}"),
        }
    }

    fn edits(&self) -> Vec<Edit<RulebookTruth>> {
        vec![
            Edit::new("remove rule", |truth: &mut RulebookTruth, number| {
                truth.edit_rule(number, |rule| *rule = Value::Null);
            }),
            Edit::new("change rule", |truth: &mut RulebookTruth, number| {
                truth.edit_rule(number, |rule| rule["note"] = json!("blue"));
            }),
            Edit::new("give rule to another cluster", |truth: &mut RulebookTruth, number| {
                truth.edit_rule(number, |rule| rule["name"] = json!(format!("x{number}-80")));
            }),
            Edit::new("delete pool", |truth: &mut RulebookTruth, number| {
                let name = truth.pools.keys().nth(number % truth.pools.len().max(1)).cloned();
                if let Some(name) = name.filter(|name| !name.starts_with("pool-x")) {
                    truth.pools.remove(&name);
                }
            }),
            Edit::new("rule of a Service", |truth: &mut RulebookTruth, number| {
                let name = format!("u{}-99", number % SERVICES);
                truth.add_rule(json!({ "name": name, "protocol": "TCP", "pool": "none", "note": "" }));
            }),
        ]
    }

    fn view(
        &self,
        truth: &RulebookTruth,
        key: &RulebookPart,
        _: &[Member<Self>],
        _: &ClusterView,
    ) -> RulebookObserved {
        match key {
            RulebookPart::Pool(name) => RulebookObserved::Pool(truth.pools.get(name).cloned()),
            RulebookPart::Document => RulebookObserved::Document(truth.document.clone()),
        }
    }

    fn store(&self, truth: &mut RulebookTruth, key: &RulebookPart, after: RulebookObserved) {
        match (key, after) {
            (RulebookPart::Pool(name), RulebookObserved::Pool(Some(machines))) => {
                truth.pools.insert(name.clone(), machines);
            }
            (RulebookPart::Pool(name), _) => {
                truth.pools.remove(name);
            }
            (RulebookPart::Document, RulebookObserved::Document(document)) => truth.document = document,
            (RulebookPart::Document, RulebookObserved::Pool(_)) => {}
        }
    }

    fn directory(&self, truth: &RulebookTruth) -> RulebookDirectory {
        RulebookDirectory {
            pools: truth.pools.clone(),
            rules: truth.rules().iter().map(|rule| name(rule).to_owned()).collect(),
        }
    }

    fn inputs(&self, _: &RulebookTruth, _: &RulebookPart, _: &[Member<Self>], _: &ClusterView) {}

    fn reply(&self, _: &RulebookChange, _: &RulebookObserved, _: &Ids) {}

    fn accepted_change(&self) -> AcceptedChange {
        AcceptedChange::OccupiesObjects
    }

    fn undo_create(&self, truth: &mut RulebookTruth, key: &RulebookPart, _: &RulebookChange) {
        if let RulebookPart::Pool(name) = key {
            truth.pools.remove(name);
        }
    }

    fn concerns(&self, change: &RulebookChange, service: &ServiceView) -> bool {
        let RulebookChange::Write { document, .. } = change else {
            return false;
        };
        document.list("rules").any(|rule| uid_of_rule(name(rule)) == &*service.id.uid)
    }

    fn picture(&self, truth: &RulebookTruth) -> Vec<Line> {
        let rules = truth.rules();
        let rules = rules.iter().map(|rule| {
            let owner = owner_of(uid_of_rule(name(rule)));
            Line::exact(rule.to_string(), &owner)
        });
        let pools = truth.pools.iter().map(|(name, machines)| {
            let owner = owner_of(name.trim_start_matches("pool-"));
            Line::exact(format!("{name} {machines:?}"), &owner)
        });
        rules.chain(pools).collect()
    }

    fn owner(&self, service: &ServiceId, _: &str) -> String {
        service.uid.to_string()
    }

    fn destroys(&self, change: &RulebookChange, _: &RulebookObserved, service: &ServiceView) -> bool {
        matches!(change, RulebookChange::DeletePool(name) if *name == pool_name(&service.id))
    }
}

/// The rule that the cloud's error names.
pub fn error_about(index: usize) -> String {
    format!("rule {} refers to a port that is in use", rule_name(&service_id(index), 80))
}
