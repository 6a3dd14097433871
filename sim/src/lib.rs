//! A simulator of the clouds' HTTP APIs for tests, the demo and benchmarks. It is never part of the product.
//!
//! A simulated cloud is a real HTTP server on loopback, so that the code under test runs unchanged. It is as strict as
//! the real one and refuses the same requests with the same status and text. It counts and records every request. It
//! can throttle, respond slowly, fail in many ways and delay changes.
//!
//! ```no_run
//! # async fn example() -> ccm_sim::Result<()> {
//! use ccm_sim::openstack::{Config, OpenStack, ServerSpec};
//! use ccm_sim::{Action, Fault};
//!
//! let cloud = OpenStack::start(Config::default()).await?;
//! cloud.create_servers(100, &ServerSpec::named("node-{i:03}"))?;
//! cloud.add_fault(Fault::on("server_list", Action::status(503)).once());
//! println!("{}", cloud.cloud_conf());
//! assert!(cloud.calls().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! Clouds of documents without an emulator share one engine ([`documents`]); DigitalOcean is the first
//! ([`digitalocean`]).
//!
//! # The control API over HTTP
//!
//! The operations of [`Behavior`] and the most used ones of [`openstack::Control`] and [`documents::Control`], below
//! `/_sim` on the cloud's own listener. Bodies are JSON and strict; errors are `{"error": "..."}` with 400 or 404.
//! Times are milliseconds. Every cloud has these:
//!
//! | Request | Does |
//! |---|---|
//! | `POST /_sim/clock` | moves the clock forward by `advance_ms` |
//! | `PUT`, `DELETE /_sim/quotas/{service}` | [`Quota`] |
//! | `POST /_sim/latency` | makes every answer wait `ms` |
//! | `GET`, `POST`, `DELETE /_sim/faults` | [`Fault`]; `DELETE /_sim/faults/{id}` removes one |
//! | `GET`, `DELETE /_sim/calls` | the call log ([`Call`]); `?op=` and `?since=<seq>` narrow it |
//! | `GET /_sim/calls/counts` | number of calls by operation |
//!
//! Clouds of documents have these:
//!
//! | Request | Does |
//! |---|---|
//! | `GET /_sim` | URL and name of the service |
//! | `GET`, `POST /_sim/documents/{collection}` | lists documents or creates one, with defaults for missing fields |
//! | `PATCH`, `DELETE /_sim/documents/{collection}/{id}` | changes or deletes a document |
//! | `PUT /_sim/limits/{collection}` | allows at most `count` documents |
//! | `POST /_sim/failures` | makes the next `count` asynchronous operations fail |
//!
//! OpenStack has these:
//!
//! | Request | Does |
//! |---|---|
//! | `GET /_sim` | auth URL, region, project, number of servers |
//! | `GET /_sim/cloud.conf` | a cloud.conf for the default user |
//! | `POST /_sim/servers` | creates a server ([`openstack::ServerSpec`]), with `count` several; returns their IDs |
//! | `PATCH`, `DELETE /_sim/servers/{id}` | changes ([`openstack::ServerPatch`]) or deletes a server |
//! | `GET /_sim/load_balancers` | all load balancers with the objects below them ([`openstack::BalancerState`]) |
//! | `PATCH`, `DELETE /_sim/load_balancers/{id}` | changes or deletes a load balancer, listener, pool, member or health monitor without a call of the API: `provisioning_status`, `attributes` |
//! | `POST /_sim/load_balancers/failures` | makes the next `count` changes fail |
//! | `GET`, `PATCH /_sim/settings` | [`openstack::Settings`] |
//!
//! # Operations
//!
//! Faults and the call log identify requests by these names. Clouds of documents have the operations of
//! their published description. OpenStack has `version_list`, `version_get`; `token_create`, `token_get`,
//! `token_delete`; `server_list` (with details), `server_get`, `flavor_get`; `network_list`, `network_get`,
//! `subnet_list`, `subnet_get`, `extension_list`, `quota_get`; `port_...`, `floating_ip_...`, `security_group_...`,
//! `security_group_rule_...` and `router_...` with those of `list`, `get`, `create`, `update` and `delete` that clients
//! send; `router_add_extraroutes`, `router_remove_extraroutes`, `tag_add`, `tag_remove`; `loadbalancer_...`,
//! `loadbalancer_listener_...`, `loadbalancer_pool_...`, `loadbalancer_member_...` and `loadbalancer_healthmonitor_...`
//! likewise, `loadbalancer_members_update` (all of a pool), `loadbalancer_failover`,
//! `loadbalancer_provider_list`, `loadbalancer_flavor_get`, `loadbalancer_availabilityzone_get`,
//! `loadbalancer_quota_get`; `secret_get`, `secret_container_get`. Other requests are `unknown`: they are answered with
//! 501 and a text that names method and path, never with a silent success.

mod calls;
mod clock;
mod control;
pub mod digitalocean;
pub mod documents;
mod error;
mod faults;
mod http;
pub mod openstack;
mod quota;
pub mod rules;
mod server;
pub mod wire;

pub use calls::Call;
pub use control::Behavior;
pub use error::{Error, Result};
pub use faults::{Action, Fault, FaultState, Moment};
pub use quota::Quota;
