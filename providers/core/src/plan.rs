//! The plan engine: one loop for the load balancers of every cloud.
//!
//! Load balancers are where every cloud controller is long, slow and fragile. Here a provider writes down *what is* and
//! *what should be* as plain values and a pure function between them ([`PartModel`]), and the calls ([`PartCloud`]); the
//! [`Engine`] does the rest, the same for all clouds: it finds out who has to do with what, reads, plans, writes, waits,
//! survives, and says beforehand what it will do.
//!
//! ```text
//!   Services   nodes                      one pass over one part
//!      |         |      +----------------------------------------------------------------+
//!      v         v      |                                                                |
//!   survey: joins, leaves    inputs, check      desired                                  |
//!      |                |   (who is held back)     |                                     |
//!      +--> members ----+--------------------------+--> plan --> steps --> send --> fold +--> plan again: nothing
//!                       |                          |             |          |            |
//!                       |      observe (all or nothing)       blocked    Accepted: park, poll, go on
//!                       |          ^                                     Busy: park, look again
//!                       |          +------------------------------------ Stale, unknown: look again at once, 3 times
//!                       +----------------------------------------------------------------+
//!                                                  |
//!                                                  v
//!                       facts: for later parts, and what the Service object should say
//! ```
//!
//! # Parts and members
//!
//! A Service names its parts in order; they are set up in order and torn down in reverse. A part's key is the *thing*,
//! not the way to it: names are mapped to ids from the shared listings ([`PartModel::Directory`]), and a create that
//! returns an id gives the part another key ([`PartModel::rekey`]); both keys mean the same until the listings show it.
//! Members of a part are the Services that name it, and those whose mark stands on it although they name it no more:
//! these leave, once everything that they name instead serves them. One writer per part; any number of parts at once.
//!
//! | [`Membership`] | Who | What the model does |
//! |---|---|---|
//! | `Joined` | names the part, is valid, and its earlier parts have told their facts | everything it asks for |
//! | `Kept` | refused by `check`, inputs unknown, a step failed for good, or not its turn yet | keeps what is there; makes nothing new; follows the nodes while it wants a load balancer |
//! | `Leaving` | its turn to go | takes away everything that is its |
//!
//! # What the engine guarantees
//!
//! - Before a step that creates, the part was read in this very pass, not from a cache.
//! - A write whose end was not seen (no answer, the process' future dropped) is never repeated: the part is read again.
//! - Nothing is changed because something is missing, unless a node of the cluster is visible under the same
//!   credentials ([`PartModel::missing`], [`PartCloud::vouch`]).
//! - A worker never waits for the cloud: the part is parked, and `run` goes on where it was.
//! - An orphan (a part whose Service does not exist) is deleted only by a pass whose request permits it
//!   ([`Request::delete_orphan`](crate::load_balancer::Request)), and if it is still an orphan then.
//! - An imagined plan is the same passes with [`PartModel::fold`] in place of [`PartCloud::send`]; so it names exactly
//!   the steps that are then taken. What is not known yet is a [`Fact::Later`] in it.
//!
//! The order of writes is the model's part of being safe to kill. Ownership tags are set by the first write and removed by
//! the last one; what is found by an object's content is deleted before the object. The laws of the test kit
//! (`testkit::laws`, feature `testkit`) find what breaks this.
//!
//! # How the clouds sit on it
//!
//! **OpenStack.** Parts `lb/<id>` (`lb/new:<name>` before it exists), `sg/<service>`, `node-ports`. A step is one call
//! of Octavia or Neutron; nearly every one on `lb` is `Accepted` until the load balancer is ACTIVE again, a 409 is
//! `Busy`, a load balancer that is PENDING when it is first read is [`PartModel::pending`], a 412 on a port is `Stale`.
//! A whole load balancer is one step (fully populated create), a pool's members are one step. Facts: from `lb` the VIP,
//! its port and the member subnet, from `sg` the group's id. Sharing: members by id, name or tag; owner by name.
//!
//! **AWS.** Parts `lb/<name>`, `node-sg`. A step is one call of ELBv2 or EC2: create the load balancer, create a target
//! group with its listener (identity: node port and what else is in its hashed name), modify attributes, register a
//! batch of targets. Nothing waits for `active`; deleting the front-end security group is `Busy` for as long as EC2
//! answers DependencyViolation, so no worker sits out ten minutes. Facts: the load balancer's name, its subnets' CIDRs
//! and the rules that its ports need. Sharing: `lb` is never shared; `node-sg` is one part for the whole cluster, whose
//! desired rules are the union over all members, so that a rule that two Services need goes with the last of them.
//!
//! **Azure.** Parts `pip/<name>`, `lb/<name>`, `pool/<name>`, `nsg/<name>`. A step is one PUT of one document, with the
//! list of its changes as its sentence; `Observed` keeps the raw JSON so that foreign and unknown fields go back as they
//! came, and the etag, whose 412 is `Stale`. Long-running operations are `Accepted` (poll the operation's URL, kept in
//! `Observed` by the fold), "another operation is in progress" is `Busy`. Facts: from `pip` id and address, from `lb`
//! the frontend's id and address (the destinations of the `nsg` rules), from `lb` to `pool` the pool's id. Sharing: all
//! Services of one (internal or external) load balancer are members of one `lb` part and so of one PUT; a public IP
//! whose tag lists several Services has several members. Switching between internal and external is joining
//! `lb/<name>-internal` and leaving `lb/<name>`. One step often serves several Services; then it names none.
//!
//! **GCE.** Parts `hc/<name>`, `ig/<zone>`, `lb/<service>`. A step is one insert, patch or delete, `Accepted` until its
//! operation is DONE. Parts depend on the nodes' zones, which is why [`PartModel::parts`] is given the cluster: a zone
//! without nodes is a part that everybody leaves. Facts: links of health check and groups, for the backend service;
//! a stale fingerprint (412) is `Stale`. Sharing: the health check and the groups are shared by all internal Services,
//! and leaving them comes after leaving `lb`, which removes the "in use" errors. The address that is held while a
//! forwarding rule is replaced is in `Observed` like any other thing, so that a killed process finds and releases it.
//!
//! **DigitalOcean.** One part, `lb/<id>` (`lb/new:<name>`). A step is one POST or one PUT of the whole document with the
//! list of its changes; `Observed` is the GET's JSON, so that what we do not manage goes back with the PUT. `new` is
//! `Accepted` (or `pending` when first seen), 15 s apart. No facts. Sharing: by the id annotation; network, stack and
//! type can not be changed, so a wish for another value is `Blocked`. A disowned Service is
//! `Claim::Elsewhere`: its load balancer stays, and its finalizer goes when it is deleted.

mod credentials;
mod discovery;
pub mod document;
mod engine;
#[cfg(feature = "testkit")]
mod inspect;
mod key;
mod memory;
mod metrics;
mod model;
pub mod objects;
mod pass;
mod poll;
mod record;
mod steps;

pub use credentials::CredentialsCheck;
pub use engine::Engine;
#[cfg(feature = "testkit")]
pub use inspect::PartInspection;
pub use metrics::PlanMetrics;
pub use model::{
    Change, CheckResult, Fact, GatheredInputs, Member, Membership, Orphan, Outcome, PartCloud, PartModel,
    PartOutput, Parts, Plan, ScopeCheck, Step, Wait,
};
pub use poll::{PollIntervals, PollTiming};

pub use crate::part_keys;
