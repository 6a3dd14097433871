//! The environment of whole-program tests, the demo and the benchmarks: a real control plane, a real OpenStack, nodes as
//! kubelets register them, and the program itself as a child process.
//!
//! Programs are built from sources on first use and stored in a cache directory ([`cache`]). Slow work is announced on
//! standard error. Dropping a value ends the processes that it started; so does the end of the owning process.
//!
//! | module | starts |
//! |---|---|
//! | [`controlplane`] | etcd and kube-apiserver, built from `tests/controlplane` |
//! | [`openstack_real`] | Keystone, Nova, Neutron, Octavia, Glance, Placement, from `tests/openstack-real` |
//! | [`arm`] | an Azure Resource Manager in memory, from `tests/parity/azure` |
//! | [`moto`] | moto, an emulator of AWS, from `tests/parity/aws` |
//! | [`gce`] | Compute Engine in memory, from `tests/parity/gce` |
//! | [`contender`] | programs with client-go's leader election, from `tests/leaderelection` and `tests/leadermigration` |
//! | [`cargo`] | nothing; builds the program |
//! | [`cloud`] | the cloud of demo and benchmarks: simulated or real |
//! | [`document`] | nothing; writes the sections of docs/benchmarks.md |
//! | [`helm`] | nothing; runs Helm 3, Helm 4 and kustomize, built from `tests/helm` and `tests/helm4` |
//! | [`manifests`] | nothing; applies the files of `deploy/` and reads the permissions that they grant |
//! | [`process`] | child processes |
//! | [`nodes`] | nothing; registers Nodes |
//! | [`binary`] | the program under test |
//! | [`proxy`] | a proxy for the API server or a cloud, with faults and a log |
//! | [`relay`] | a TCP relay that can drop packets |
//! | [`observe`] | nothing; reads Nodes, and waits for conditions |
//! | [`progress`] | nothing; watches Nodes |
//! | [`picture`] | nothing; the load balancers of a simulated cloud as lines to compare |
//! | [`http`], [`rest`] | nothing; HTTP client, and a session with an OpenStack |
//! | [`stage`] | control plane and program together |
//! | [`test_cloud`] | the clouds of whole-program tests, with one interface |
//! | [`sweep`] | the program, repeatedly: crash sweeps and fault storms |
//! | [`scenarios`] | the scenarios of the sweeps: changes of nodes, routes and Services |

pub mod arm;
pub mod binary;
pub mod cache;
pub mod cargo;
pub mod cloud;
pub mod contender;
pub mod controlplane;
pub mod document;
pub mod gce;
pub mod golang;
pub mod helm;
pub mod http;
pub mod in_process;
pub mod manifests;
pub mod moto;
pub mod nodes;
pub mod observe;
pub mod openstack_real;
pub mod picture;
pub mod process;
pub mod progress;
pub mod proxy;
pub mod python;
pub mod relay;
pub mod rest;
pub mod scenarios;
pub mod stage;
pub mod sweep;
pub mod test_cloud;
