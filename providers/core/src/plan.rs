//! The plan engine: one reconcile loop for the load balancers of every cloud.
//!
//! A provider writes the observed and the desired state as plain values, a pure function between them ([`PartModel`]), and
//! the cloud calls ([`PartCloud`]). The [`Engine`] does the rest: it discovers which Services have which parts, reads,
//! plans, sends, waits, and resumes after a restart. It can also print the plan without sending it.
//!
//! ```text
//!   Services   nodes                      one pass over one part
//!      |         |      +-----------------------------------------------------------------+
//!      v         v      |                                                                 |
//!   discovery: members  inputs, check      desired                                        |
//!      |                |  (who is frozen)     |     steps on different objects at a time |
//!      +--> members ----+----------------------+--> plan --> steps --> send --> fold -----+--> plan again: no steps
//!                       |                      |             |          |
//!                       |      observe (all or nothing)   blocked    Accepted: park, poll, continue
//!                       |          ^                                 busy:     park, read again
//!                       |          +-------------------------------- stale, unknown: read again, 3 times
//!                       |                                               |
//!                       |                                               v
//!                       +--> facts: for later parts, and effects on the Service object
//! ```
//!
//! # Parts and members
//!
//! A Service names its parts in order. Parts are created in order and deleted in reverse. A part's key names the *object*,
//! independent of its name: names are mapped to ids from the shared listings ([`PartModel::Directory`]). A create that returns an
//! id changes the part's key ([`PartModel::rekey`]); both keys are valid until the listings show the new one. Members of a
//! part are the Services that name it, and those whose ownership tag it still has. The latter leave once everything that
//! they name instead serves them. Each part has one writer; any number of parts run at once.
//!
//! | [`Membership`] | The Service | The model |
//! |---|---|---|
//! | `Active` | names the part, is valid, and the facts of its earlier parts are known | applies its spec |
//! | `Frozen` | was refused by `check`, has unknown inputs, a step of it failed permanently or was refused for its changes, or it waits for another part | keeps existing objects and creates none; follows the nodes while it wants a load balancer |
//! | `Leaving` | leaves now | deletes all its objects |
//!
//! # Waiting for the cloud
//!
//! A change that the cloud accepted is folded in at once, and its ticket is polled ([`SendOutcome::Accepted`]). The part is
//! parked meanwhile and its worker is free. If the ticket fails, nothing more is sent before the part is read again.
//!
//! By default, steps are sent one after the other, and each waits until the cloud has finished the one before it; only a step
//! that does not need an idle part is sent earlier ([`needs_idle`](crate::load_balancer::StepDescription::needs_idle)). Where the
//! cloud works on several objects of a part at a time, a step lists the objects that it changes and those that it uses
//! ([`StepObjects`](crate::load_balancer::StepObjects)):
//!
//! ```text
//!   plan: check   address   firewall 80   pool           rule
//!         changes changes   changes       changes, uses  changes, uses
//!         check   address   firewall 80   pool, check    rule, pool + address
//!
//!   time  0 s  check, address, firewall 80 are sent
//!         1 s  all have ended: the pool is sent
//!         2 s  the pool has ended: the rule is sent
//!         3 s  done
//! ```
//!
//! 1. A step is sent when no step before it in the plan, and no accepted step that has not ended, changes an object that it
//!    changes or uses, or uses one that it changes. At most 32 steps of a part are being sent at a time.
//! 2. Each accepted step has a ticket. When one has ended, the part is planned again from the observed state with all accepted
//!    changes, for the cluster as it is then, and what has become possible is sent.
//! 3. A step that fails holds up only steps on its objects. The part is read again at once if the failure shows that it has
//!    changed. Accepted changes that the read may not show are folded in again. Other failures are tried again after 5 s, and
//!    reported when no other step is in progress.
//! 4. A step that is [one of many](crate::load_balancer::StepDescription::is_one_of_many), such as the membership of a machine,
//!    and that the cloud refuses permanently, is a blocked difference. It is sent again after five minutes.
//! 5. A step that members [share](crate::load_balancer::StepDescription::is_shared), such as the write of a document, waits for more
//!    changes if the last one was sent a moment ago. If the cloud refuses it permanently, the member that is the reason is
//!    frozen, and the step is sent without its changes: the error names it ([`PartModel::named_member`]), or smaller changes
//!    show it.
//! 6. After a restart, no ticket is known. The part is read; a change on an object whose operation has not ended is refused by
//!    the cloud as "not ready", which is busy. An operation that failed is noticed because its object is missing or unchanged.
//!
//! The facts of a part are published when its create was accepted ([`PartModel::early_facts`]), so that later parts run while
//! it is being built. Early facts have no effects, and a part with early facts never counts as serving. If the create fails,
//! they are withdrawn: the members of later parts become `Frozen`, so their objects stay until they leave. Only annotations that
//! name the new object are written at once ([`PartModel::early_effects`]). A part that needs an earlier one to have been built
//! says so ([`PartModel::required_facts`]); its members are `Frozen` until then. A part that needs nothing of an earlier one is
//! created beside it.
//!
//! # Guarantees
//!
//! - Before a step that creates, the part was read in the same pass, not from a cache, and no create for the same Service in a part
//!   that replaces this one has ended since the pass began.
//! - A write whose result is unknown (no answer, or the future was dropped) is never sent again blindly: the part is read.
//!   Where the cloud takes ids for writes ([`PartCloud::takes_request_ids`]), it is sent again with the same id, which the
//!   cloud answers with the operation that the first one began.
//! - Nothing is changed because something is missing, unless a node of the cluster is visible under the same
//!   credentials ([`PartModel::missing`], [`PartCloud::verify_scope`]).
//! - An orphan (a part whose Service does not exist) is deleted only by a pass whose request permits it
//!   ([`Request::delete_orphan`](crate::load_balancer::Request)), and only if it is still an orphan then.
//! - A dry run executes the same passes with [`PartModel::fold`] in place of [`PartCloud::send`], so it names exactly the
//!   steps that a real run takes. What is not known yet is a [`Fact::Later`].
//!
//! The model makes the order of writes safe to interrupt. The first write sets ownership tags and the last one removes
//! them; objects that are found by the content of another object are deleted before it. The laws of the test kit
//! (`testkit::laws`, feature `testkit`) find violations.
//!
//! # The clouds
//!
//! **OpenStack.** Parts `lb/<id>` (`lb/new:<name>` before it exists), `sg/<service>`, `node-ports`. A step is one call of
//! Octavia or Neutron. Nearly every step on `lb` is `Accepted` until the load balancer is ACTIVE again; a 409 is busy; a load
//! balancer that is PENDING when it is first read is [`PartModel::pending`]; a 412 on a port is stale. Creating a whole load
//! balancer (fully populated) is one step; setting a pool's members is one step. Facts: from `lb` the VIP's subnet, known
//! early; from `sg` the group's id. Sharing: members by id, name or tag; owner by name.
//!
//! **AWS.** Parts `lb/<name>`, `node-sg`. A step is one call of ELBv2 or EC2: create the load balancer, create a target
//! group with its listener (identity: node port and the other inputs of its hashed name), modify attributes, register a
//! batch of targets. Nothing waits for `active`. Deleting the front-end security group is busy while EC2 answers
//! DependencyViolation. Facts: the load balancer's name, its subnets' CIDRs and the rules that its ports need. Sharing: `lb`
//! is never shared; `node-sg` is one part for the whole cluster. Its desired rules are the union over all members, so a rule
//! that two Services need is removed with the last of them.
//!
//! **Azure.** Parts `lb/<group>/<name>` (a load balancer with its pools), `members/..` (the machines in its pools), `pip/..` (a public
//! address), `rules/..` (frontends, rules and probes of all its Services), `pls/..` (a private link service), `nsg/..`. A step is one PUT
//! of one document, with the list of its changes as its reason. `Observed` keeps the raw JSON, so that foreign and unknown fields are written back
//! unchanged, and the etag, whose 412 is stale: two parts write the document of a load balancer. Long-running operations are
//! `Accepted`, with the operation's URL as the ticket; "another operation is in progress" is busy. An empty load balancer is
//! done at once. Members and addresses are created beside each other, and then rules and security group, since these need
//! nothing of each other. Facts: from `pip` the address, from `rules` that of an internal frontend, for the destinations in
//! `nsg`. Sharing: all Services of one load balancer are members of its parts. A step that serves several Services is shared.
//! `members` has a step for each machine, one of many. Switching between internal and external means joining the parts of one
//! load balancer and leaving those of the other.
//!
//! **GCE.** Parts `hc/<name>`, `ig/<zone>`, `lb/<service>`. A step is one insert, patch or delete, `Accepted` until its
//! operation is DONE; the operation's name is the ticket, and each write has a request id. Steps list their objects, so that
//! address, health check and firewalls are created at the same time. Parts depend on the nodes' zones, which is why
//! [`PartModel::parts`] gets the cluster: every Service leaves the part of a zone without nodes. Facts: links of health
//! check and groups, for the backend service. A fingerprint that does not match (412) is stale. Sharing: the health check
//! and the groups are shared by all internal Services. They are left after `lb`, which avoids "in use" errors. The address
//! that is reserved while a forwarding rule is replaced is in `Observed` like any other object, so that a restarted process
//! finds and releases it.
//!
//! **DigitalOcean.** One part, `lb/<id>` (`lb/new:<name>`). A step is one POST or one PUT of the whole document with the
//! list of its changes as its reason. `Observed` is the GET's JSON, so that unmanaged fields are written back with the PUT.
//! A load balancer that is `new` is `Accepted` (or `pending` when first read), polled every 15 s. No facts. Sharing: by the
//! id annotation. Network, stack and type cannot be changed, so another desired value is `Blocked`. A disowned Service is
//! `Claim::Elsewhere`: its load balancer stays, and its finalizer is removed when the Service is deleted.

mod creates;
mod credentials;
mod discovery;
pub mod document;
mod engine;
mod index;
mod key;
mod memory;
mod metrics;
mod model;
pub mod objects;
mod order;
mod pass;
mod poll;
mod record;
mod request_id;
mod resume;
mod search;
mod shared;
mod steps;

pub use credentials::CredentialsCheck;
pub use engine::Engine;
pub use key::PartKind;
pub use metrics::PlanMetrics;
pub use model::{
    CheckResult, CloudChange, Fact, GatheredInputs, Member, Membership, Orphan, PartCloud, PartModel,
    PartOutput, Parts, Plan, RequiredFacts, ScopeCheck, SendOptions, SendOutcome, Step, Wait, WriteConflict,
};
pub use poll::{PollIntervals, PollTiming};
pub use request_id::RequestId;

pub use crate::part_keys;
