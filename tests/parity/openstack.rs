//! OpenStack, simulated or real.

mod rebuild;
mod record;
mod site;
mod upstream;

pub(crate) use site::OpenStackSite;
pub(crate) use upstream::left_unchanged;
