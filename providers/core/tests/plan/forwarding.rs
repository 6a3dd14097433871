//! A toy cloud whose load balancers consist of objects that refer to each other, and whose operations take time.
//!
//! ```text
//!   machines     Machine, Machine, ...          one object for each node; all Services share them
//!   lb/<name>    Check <-- Pool <-- Rule        a chain
//!                        Address <---'
//!                Firewall, Firewall, ...        one for each port, independent
//! ```
//!
//! An object is visible when its create was accepted, and is refused with "not ready" until its operation has ended.

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        ClusterSnapshot, ClusterView, Effects, FormerLoadBalancer, Ingress, ServiceId, ServiceView,
    },
    plan::{
        CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan, RequiredFacts,
        objects::{self, ChangeReply, Object, ObjectChange, Objects, Policy, Schema, attributes},
        part_keys,
    },
};

/// The affinity of a Service's clients; `plaid` is invalid.
pub const AFFINITY: &str = "forwarding/affinity";
/// The path of health checks.
pub const PATH: &str = "forwarding/path";

/// The attribute with the name of the load balancer that an object belongs to.
pub const BALANCER: &str = "balancer";
/// The attribute with the Service that an object is for; empty for an object of another client.
pub const SERVICE: &str = "service";
/// The address that the cloud assigned.
pub const ASSIGNED: &str = "assigned";
/// The attribute of a machine with the ownership tag of its cluster.
pub const CLUSTER: &str = "cluster";

part_keys! {
    pub enum ForwardingPart {
        Machines = "machines";
        Balancer(String) = "lb/";
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForwardingKind {
    Machine,
    Address,
    Check,
    Firewall,
    Pool,
    Rule,
    /// A kind that no Service uses, without a place for the ownership tag.
    Note,
}

/// No object has sets.
#[derive(Clone, Debug, PartialEq)]
pub struct NoEntry;

impl std::fmt::Display for NoEntry {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

impl objects::KeyedEntry for NoEntry {
    type Key = ();

    fn key(&self) {}
}

static MACHINE: Schema<ForwardingKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] "cluster";
    },
    ..Schema::new("machine", "machine_add", "machine_remove")
};

static ADDRESS: Schema<ForwardingKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] "balancer", "service", "note";
    },
    ..Schema::new("address", "address_create", "address_delete")
};

static CHECK: Schema<ForwardingKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] "balancer", "service";
        [Policy::Update("check_update")] "path";
    },
    ..Schema::new("health check", "check_create", "check_delete")
};

static FIREWALL: Schema<ForwardingKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] "balancer", "service";
        [Policy::Update("firewall_update")] "port";
    },
    ..Schema::new("firewall", "firewall_create", "firewall_delete")
};

static POOL: Schema<ForwardingKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] "balancer", "service", "affinity";
        [Policy::Update("pool_update")] "check";
    },
    ..Schema::new("pool", "pool_create", "pool_delete")
};

static RULE: Schema<ForwardingKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] "balancer", "service", "address";
        [Policy::Replace] "ports";
        [Policy::Update("rule_update")] "pool";
    },
    ..Schema::new("forwarding rule", "rule_create", "rule_delete")
};

static NOTE: Schema<ForwardingKind> = Schema {
    has_ownership_tag: false,
    ..Schema::new("note", "note_create", "note_delete")
};

impl objects::Kind for ForwardingKind {
    type Entry = NoEntry;
    type Update = &'static str;

    fn schema(self) -> &'static Schema<Self> {
        match self {
            Self::Machine => &MACHINE,
            Self::Address => &ADDRESS,
            Self::Check => &CHECK,
            Self::Firewall => &FIREWALL,
            Self::Pool => &POOL,
            Self::Rule => &RULE,
            Self::Note => &NOTE,
        }
    }

    fn references(self, object: &ForwardingObject) -> Option<Vec<(Self, String)>> {
        let attributes: &[(Self, &str)] = match self {
            Self::Machine | Self::Address | Self::Check | Self::Firewall | Self::Note => &[],
            Self::Pool => &[(Self::Check, "check")],
            Self::Rule => &[(Self::Pool, "pool"), (Self::Address, "address")],
        };
        let references = attributes.iter().map(|(kind, name)| (*kind, object.text(name).to_owned()));
        Some(references.filter(|(_, key)| !key.is_empty()).collect())
    }
}

pub type ForwardingObject = Object<ForwardingKind>;
pub type ForwardingObjects = Objects<ForwardingKind>;
pub type ForwardingChange = ObjectChange<ForwardingKind>;

/// How the toy orders its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepOrder {
    /// As the objects refer to each other.
    #[default]
    References,
    /// One after the other.
    Sequence,
    /// All at once: a flaw.
    AllAtOnce,
}

#[derive(Clone, Debug, Default)]
pub struct Forwarding {
    pub order: StepOrder,
    /// A load balancer needs nothing of the machines.
    pub ignores_machines: bool,
}

/// The listings.
#[derive(Debug)]
pub struct ForwardingDirectory {
    /// The load balancer of each Service that has one: its name, and the Service as its objects name it.
    pub balancers: Vec<(String, String)>,
    pub has_machines: bool,
}

#[derive(Debug)]
pub enum DesiredForwarding {
    Objects(objects::Desired<ForwardingKind>),
    /// As it is.
    Frozen,
}

pub fn service_text(id: &ServiceId) -> String {
    format!("{id}/{}", id.uid)
}

pub fn cluster_text(cluster: &ClusterView) -> String {
    cluster.ownership_tag.for_create().map(ToString::to_string).unwrap_or_default()
}

pub fn balancer_name(id: &ServiceId) -> String {
    format!("lb-{}-{}", id.namespace, id.name)
}

fn desired_balancer(service: &ServiceView) -> Vec<ForwardingObject> {
    let name = balancer_name(&service.id);
    let object = |kind, key: &str| {
        let object = Object::new(kind, key).with(BALANCER, &*name).with(SERVICE, service_text(&service.id));
        Object {
            service: Some(service.id.clone()),
            ..object
        }
    };
    let affinity = service.annotation(AFFINITY).unwrap_or("none");
    let pool = format!("{name}-{affinity}");
    let ports: Vec<_> = service.ports.iter().map(|port| port.port.to_string()).collect();
    let firewalls = service.ports.iter().map(|port| {
        let key = format!("{name}-{}-{}", port.protocol, port.port);
        object(ForwardingKind::Firewall, &key).with("port", port.port)
    });
    let mut objects: Vec<_> = firewalls.collect();
    objects.extend([
        object(ForwardingKind::Address, &name),
        object(ForwardingKind::Check, &name).with("path", service.annotation(PATH).unwrap_or("/")),
        object(ForwardingKind::Pool, &pool).with("affinity", affinity).with("check", &*name),
        object(ForwardingKind::Rule, &name)
            .with("ports", ports.join(","))
            .with("pool", pool)
            .with("address", &*name),
    ]);
    objects
}

fn desired(objects: Vec<ForwardingObject>) -> DesiredForwarding {
    DesiredForwarding::Objects(objects::Desired {
        objects,
        reason: "no Service needs it",
        ..objects::Desired::default()
    })
}

impl PartModel for Forwarding {
    type Key = ForwardingPart;
    type Directory = ForwardingDirectory;
    type Inputs = ();
    type Spec = ();
    type Facts = ();
    type Desired = DesiredForwarding;
    type Observed = ForwardingObjects;
    type Change = ForwardingChange;
    type Reply = ChangeReply<ForwardingKind>;

    fn provider(&self) -> &'static str {
        "forwarding"
    }

    fn spec(&self, _: &ServiceView, _: &ClusterView) {}

    /// Machines are not tagged with their Services, so that any Service may be one of them.
    fn parts(
        &self,
        service: &ServiceView,
        _: &ClusterView,
        directory: &ForwardingDirectory,
    ) -> Parts<ForwardingPart> {
        let balancer = ForwardingPart::Balancer(balancer_name(&service.id));
        let text = service_text(&service.id);
        let is_tagged = directory.balancers.iter().any(|(_, service)| *service == text);
        let machines = directory.has_machines.then_some(ForwardingPart::Machines);
        Parts {
            named: vec![ForwardingPart::Machines, balancer.clone()],
            tagged: machines.into_iter().chain(is_tagged.then_some(balancer)).collect(),
        }
    }

    fn former(
        &self,
        service: &ServiceView,
        _: &ClusterView,
        directory: &ForwardingDirectory,
    ) -> FormerLoadBalancer {
        let text = service_text(&service.id);
        match directory.balancers.iter().find(|(_, service)| *service == text) {
            Some((name, _)) => FormerLoadBalancer::Ours(format!("load balancer {name}")),
            None => FormerLoadBalancer::Missing,
        }
    }

    fn orphans(
        &self,
        snapshot: &ClusterSnapshot,
        directory: &ForwardingDirectory,
    ) -> Vec<Orphan<ForwardingPart>> {
        let exists =
            |text: &String| snapshot.services.iter().any(|service| service_text(&service.id) == *text);
        let orphans = directory.balancers.iter().filter(|(_, service)| !exists(service));
        let orphans = orphans.map(|(name, _)| Orphan {
            key: ForwardingPart::Balancer(name.clone()),
            what: format!("load balancer {name}"),
            deletable: true,
        });
        orphans.collect()
    }

    fn check(&self, key: &ForwardingPart, members: &[Member<Self>], _: &ClusterView, (): &()) -> CheckResult {
        let mut result = CheckResult::default();
        for member in Member::active(members) {
            let is_invalid = member.service.annotation(AFFINITY) == Some("plaid");
            if is_invalid && *key != ForwardingPart::Machines {
                let error = Error::new(ErrorKind::InvalidSpec, "plaid is no affinity");
                result.refused.push((member.service.id.clone(), error));
            }
        }
        result
    }

    fn desired(
        &self,
        key: &ForwardingPart,
        members: &[Member<Self>],
        cluster: &ClusterView,
        (): &(),
    ) -> DesiredForwarding {
        let active = Member::active(members).next();
        let stays = Member::staying(members).next().is_some();
        match (key, active) {
            (ForwardingPart::Machines, Some(_)) if !cluster.nodes.keeps_members() => {
                let machines = cluster.nodes.eligible().map(|node| {
                    Object::new(ForwardingKind::Machine, node.view.name.clone())
                        .with(CLUSTER, cluster_text(cluster))
                });
                desired(machines.collect())
            }
            (ForwardingPart::Balancer(_), Some(member)) => desired(desired_balancer(&member.service)),
            _ if stays => DesiredForwarding::Frozen,
            _ => desired(Vec::new()),
        }
    }

    fn plan(&self, desired: &DesiredForwarding, observed: &ForwardingObjects) -> Plan<ForwardingChange> {
        let DesiredForwarding::Objects(desired) = desired else {
            return Plan::default();
        };
        let mut plan = desired.diff(observed);
        for step in &mut plan.steps {
            step.description.is_one_of_many = step.change.kind == ForwardingKind::Machine;
            match (self.order, &mut step.description.objects) {
                (StepOrder::Sequence, objects) => *objects = None,
                (StepOrder::AllAtOnce, Some(objects)) => objects.uses.clear(),
                (StepOrder::References | StepOrder::AllAtOnce, _) => {}
            }
        }
        plan
    }

    fn fold(
        &self,
        _: &ForwardingPart,
        change: &ForwardingChange,
        reply: Option<&ChangeReply<ForwardingKind>>,
        observed: &mut ForwardingObjects,
    ) {
        observed.fold(change, reply);
    }

    /// Only a read shows the address.
    fn lacks_result(&self, observed: &ForwardingObjects) -> bool {
        let mut addresses = observed.of(ForwardingKind::Address);
        addresses.any(|address| address.text(ASSIGNED).is_empty())
    }

    fn facts(
        &self,
        key: &ForwardingPart,
        member: &Member<Self>,
        observed: &ForwardingObjects,
    ) -> Option<PartOutput<()>> {
        let ForwardingPart::Balancer(name) = key else {
            return Some(PartOutput::default());
        };
        if member.membership == Membership::Leaving {
            return Some(PartOutput::default());
        }
        let rule = observed.get(ForwardingKind::Rule, name)?;
        if rule.foreign.is_some() {
            return None;
        }
        let address = observed.get(ForwardingKind::Address, name);
        let assigned = address.map(|address| address.text(ASSIGNED)).filter(|address| !address.is_empty());
        let ingress = assigned.map(|address| Ingress {
            ip: Some(address.into()),
            ..Ingress::default()
        });
        Some(PartOutput {
            facts: (),
            effects: Effects {
                ingress: ingress.map(|ingress| vec![ingress]),
                ..Effects::default()
            },
        })
    }

    /// A forwarding rule refuses machines that are being added.
    fn required_facts(&self, key: &ForwardingPart, _: &ForwardingPart) -> RequiredFacts {
        match key {
            ForwardingPart::Machines => RequiredFacts::Accepted,
            ForwardingPart::Balancer(_) if self.ignores_machines => RequiredFacts::Nothing,
            ForwardingPart::Balancer(_) => RequiredFacts::Finished,
        }
    }
}
