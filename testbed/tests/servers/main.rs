//! The servers of tests: control plane, proxies and clouds. One program, because its tests reuse their control planes.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod arm;
mod controlplane;
mod gce;
mod moto;
mod openstack_real;
mod proxy;
mod sweep;
