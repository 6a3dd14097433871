//! What whole-program tests, the demo and the benchmarks need around the program: a real control plane, a real
//! OpenStack, nodes as kubelets register them, and the program itself as a child process.
//!
//! Everything is made from sources on first use and kept in a cache directory ([`cache`]); a line on standard error
//! says what is being made and why before slow work. Nothing outlives its owner: dropping a value ends what it
//! started, and so does the death of the owning process, however it died.
//!
//! | module | starts |
//! |---|---|
//! | [`controlplane`] | etcd and kube-apiserver, built from `tests/controlplane` |
//! | [`openstack_real`] | Keystone, Nova, Neutron, Octavia, Glance, Placement, from `tests/openstack-real` |
//! | [`moto`] | moto, an emulator of AWS, from `tests/parity/aws` |
//! | [`contender`] | programs with client-go's leader election, from `tests/leaderelection` and `tests/leadermigration` |
//! | [`cargo`] | nothing; builds the program |
//! | [`cloud`] | the cloud of demo and benchmarks: simulated or real |
//! | [`document`] | nothing; writes the sections of docs/benchmarks.md |
//! | [`forward`] | sockets on loopback for the load balancers of a simulated cloud |
//! | [`helm`] | nothing; runs Helm and kustomize, built from `tests/helm` |
//! | [`manifests`] | nothing; applies the files of `deploy/` and knows which rights they give |
//! | [`nodes`] | nothing; registers Nodes |
//! | [`binary`] | the program under test |
//! | [`proxy`] | a proxy before the API server or a cloud, with faults and a log |
//! | [`relay`] | a TCP relay that can swallow packets |
//! | [`observe`] | nothing; looks at Nodes, and waits |
//! | [`progress`] | nothing; follows Nodes and Services live |
//! | [`picture`] | nothing; the load balancers of a simulated cloud as lines to compare |
//! | [`stage`] | control plane and program together |
//! | [`test_cloud`] | the clouds of whole-program tests, seen alike |
//! | [`sweep`] | the program, again and again: crash sweeps and fault storms |
//! | [`scenarios`] | what the sweeps play: nodes join, leave, change addresses; a Service comes, changes, goes |

pub mod binary;
pub mod cache;
pub mod cargo;
pub mod cloud;
pub mod contender;
pub mod controlplane;
pub mod document;
pub mod forward;
pub mod golang;
pub mod helm;
mod http;
pub mod inside;
pub mod manifests;
pub mod moto;
pub mod nodes;
pub mod observe;
pub mod openstack_real;
pub mod picture;
mod process;
pub mod progress;
pub mod proxy;
pub mod python;
pub mod relay;
pub mod scenarios;
pub mod stage;
pub mod sweep;
pub mod test_cloud;
