//! The settings of load balancers: `[LoadBalancer]` and its classes.

use std::{collections::BTreeMap, time::Duration};

use ccm_core::{
    Environment,
    config::{GoDuration, Problems, config_section},
};

use super::{
    features::{Capabilities, Version},
    subnets::SubnetFilter,
    warnings::unknown_method,
};

/// Octavia providers that are known to work with this.
const PROVIDERS: [&str; 5] = ["amphora", "octavia", "ovn", "f5", "amphorav2"];
/// Upstream's polls of a load balancer. Each wait is a fifth longer than the last; the first one is one
/// second.
const STEPS: u32 = 23;
/// More steps would take weeks.
const STEPS_MAX: u32 = 64;

config_section! {
    /// Load balancers for Services.
    pub(crate) struct LoadBalancer {
        /// Whether load balancers are managed.
        "enabled" => pub(crate) enabled: bool = true,
        /// Only `v2` (Octavia). Example: `v2`.
        "lb-version" => pub(crate) lb_version: String,
        /// Octavia provider.
        "lb-provider" => pub(crate) lb_provider: String = "amphora".to_owned(),
        /// How connections are distributed over the members.
        "lb-method" => pub(crate) lb_method: String = "ROUND_ROBIN".to_owned(),
        /// Subnet of the virtual address and of the members. Example: `3f1c2b7a-90f4-4c35-8d62-17c1fb4a5c0e`.
        "subnet-id" => pub(crate) subnet_id: String,
        /// Subnet of the members, if it differs. Example: `8c9d4f70-1a2b-4e6d-9f35-2b6f0d1e7a44`.
        "member-subnet-id" => pub(crate) member_subnet_id: String,
        /// Network of the virtual address. Example: `d1e0a9f8-7b6c-4d5e-8f40-3a2b1c0d9e8f`.
        "network-id" => pub(crate) network_id: String,
        /// External network for floating IPs. Empty: discovered. Example: `6a7b8c9d-0e1f-4a2b-9c3d-4e5f60718293`.
        "floating-network-id" => pub(crate) floating_network_id: String,
        /// External subnet for floating IPs. Example: `2b3c4d5e-6f70-4812-93a4-b5c6d7e8f901`.
        "floating-subnet-id" => pub(crate) floating_subnet_id: String,
        /// Pattern of the external subnet's name. Example: `~^public-.*$`.
        "floating-subnet" => pub(crate) floating_subnet: String,
        /// Tags of the external subnet. Example: `&dmz,public`.
        "floating-subnet-tags" => pub(crate) floating_subnet_tags: String,
        /// Every Service gets an internal load balancer.
        "internal-lb" => pub(crate) internal_lb: bool,
        /// Whether the health of members is monitored.
        "create-monitor" => pub(crate) create_monitor: bool,
        /// Time between two checks, in whole seconds.
        "monitor-delay" => pub(crate) monitor_delay: GoDuration = GoDuration::from_secs(5),
        /// The longest duration of a check, in whole seconds.
        "monitor-timeout" => pub(crate) monitor_timeout: GoDuration = GoDuration::from_secs(3),
        /// Successful checks before a member is up.
        "monitor-max-retries" => pub(crate) monitor_max_retries: u32 = 1,
        /// Failed checks before a member is down.
        "monitor-max-retries-down" => pub(crate) monitor_max_retries_down: u32 = 3,
        /// Whether each Service gets a security group on the ports of its nodes.
        "manage-security-groups" => pub(crate) manage_security_groups: bool,
        /// Labels of the nodes that become members. Example: `pool=edge`.
        "node-selector" => pub(crate) node_selector: String,
        /// Delete a load balancer and its children in one call.
        "cascade-delete" => pub(crate) cascade_delete: bool = true,
        /// Octavia flavor. Example: `f5a1b2c3-d4e5-4f60-8718-293a4b5c6d7e`.
        "flavor-id" => pub(crate) flavor_id: String,
        /// Octavia availability zone. Example: `az1`.
        "availability-zone" => pub(crate) availability_zone: String,
        /// Show a host name in place of the address, for proxy protocol.
        "enable-ingress-hostname" => pub(crate) enable_ingress_hostname: bool,
        /// Suffix of the host name.
        "ingress-hostname-suffix" => pub(crate) ingress_hostname_suffix: String = "nip.io".to_owned(),
        /// Default of the annotation for TLS. Example: `https://barbican.example/v1/containers/4ab1`.
        "default-tls-container-ref" => pub(crate) default_tls_container_ref: String,
        /// Where TLS containers are: `barbican` or `external`.
        "container-store" => pub(crate) container_store: String = "barbican".to_owned(),
        /// The most Services that may share one load balancer.
        "max-shared-lb" => pub(crate) max_shared_lb: i64 = 2,
        /// Octavia repairs a load balancer that was created for a Service and is in `ERROR`, and its address stays (failover; usually needs an administrator's role). Upstream does not know this key.
        "failover-in-error" => pub(crate) failover_in_error: bool,
        /// Send one call for each object.
        "provider-requires-serial-api-calls" => pub(crate) provider_requires_serial_api_calls: bool,
    }
}

config_section! {
    /// A class of load balancers that a Service may choose with the annotation `loadbalancer.openstack.org/class`.
    pub(crate) struct LoadBalancerClass {
        /// External network for floating IPs. Example: `6a7b8c9d-0e1f-4a2b-9c3d-4e5f60718293`.
        "floating-network-id" => pub(crate) floating_network_id: String,
        /// External subnet for floating IPs. Example: `2b3c4d5e-6f70-4812-93a4-b5c6d7e8f901`.
        "floating-subnet-id" => pub(crate) floating_subnet_id: String,
        /// Pattern of the external subnet's name. Example: `~^public-.*$`.
        "floating-subnet" => pub(crate) floating_subnet: String,
        /// Tags of the external subnet. Example: `&dmz,public`.
        "floating-subnet-tags" => pub(crate) floating_subnet_tags: String,
        /// Network of the virtual address. Example: `d1e0a9f8-7b6c-4d5e-8f40-3a2b1c0d9e8f`.
        "network-id" => pub(crate) network_id: String,
        /// Subnet of the virtual address and of the members. Example: `3f1c2b7a-90f4-4c35-8d62-17c1fb4a5c0e`.
        "subnet-id" => pub(crate) subnet_id: String,
        /// Subnet of the members. Example: `8c9d4f70-1a2b-4e6d-9f35-2b6f0d1e7a44`.
        "member-subnet-id" => pub(crate) member_subnet_id: String,
    }
}

impl LoadBalancer {
    /// The keys that a class has, too.
    pub(crate) fn as_class(&self) -> LoadBalancerClass {
        LoadBalancerClass {
            floating_network_id: self.floating_network_id.clone(),
            floating_subnet_id: self.floating_subnet_id.clone(),
            floating_subnet: self.floating_subnet.clone(),
            floating_subnet_tags: self.floating_subnet_tags.clone(),
            network_id: self.network_id.clone(),
            subnet_id: self.subnet_id.clone(),
            member_subnet_id: self.member_subnet_id.clone(),
        }
    }
}

/// The settings of load balancers.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadBalancing {
    /// `[LoadBalancer]`.
    pub(crate) conf: LoadBalancer,
    /// `[LoadBalancerClass "..."]` by name.
    pub(crate) classes: BTreeMap<String, LoadBalancerClass>,
    /// The longest duration of a change of a load balancer.
    pub(crate) patience: Duration,
}

impl LoadBalancing {
    /// Reads and checks the sections.
    pub(crate) fn of(
        section: &LoadBalancer,
        classes: &BTreeMap<String, LoadBalancerClass>,
        env: &Environment,
        problems: &mut Problems,
    ) -> Self {
        let version = section.lb_version.as_str();
        let what = format!("{version:?} is not supported; write v2 or nothing");
        problems.require(matches!(version, "" | "v2"), ("LoadBalancer", "lb-version"), what);
        for (key, value) in [
            ("monitor-delay", section.monitor_delay),
            ("monitor-timeout", section.monitor_timeout),
        ] {
            let is_valid = value.to_std() >= Duration::from_secs(1);
            let what = "less than a second; Octavia takes whole seconds from 1, write 5s";
            if section.create_monitor {
                problems.require(is_valid, ("LoadBalancer", key), what);
            } else if !is_valid {
                problems.warn(("LoadBalancer", key), what);
            }
        }
        let mut warn = |key: &str, what: &str| problems.warn(("LoadBalancer", key), what);
        let provider = section.lb_provider.as_str();
        if !PROVIDERS.contains(&provider) {
            let known = PROVIDERS.join(", ");
            let what = format!("{provider:?} is not one of the known providers: {known}");
            warn("lb-provider", &what);
        }
        let can = Capabilities::of(Version::default(), provider);
        if !can.methods.contains(&&*section.lb_method) {
            warn("lb-method", &unknown_method(&section.lb_method, can.methods));
        }
        let store = section.container_store.as_str();
        if !matches!(store, "barbican" | "external") {
            let what = format!("{store:?} is neither barbican nor external; TLS containers are not checked");
            warn("container-store", &what);
        }
        if section.max_shared_lb < 1 {
            warn("max-shared-lb", "less than 1: no load balancer can be used by a second Service");
        }
        for (name, class) in classes {
            if let Err(error) = SubnetFilter::parse(&class.floating_subnet, "") {
                problems.warn(("LoadBalancerClass", &**name, "floating-subnet"), error.message());
            }
        }
        if let Err(error) = SubnetFilter::parse(&section.floating_subnet, "") {
            problems.warn(("LoadBalancer", "floating-subnet"), error.message());
        }
        let steps = env
            .var("OCCM_WAIT_LB_ACTIVE_STEPS")
            .map_or(Some(STEPS), |text| text.parse().ok())
            .unwrap_or_else(|| {
                tracing::warn!("OCCM_WAIT_LB_ACTIVE_STEPS is not a whole number from 0, using {STEPS}");
                STEPS
            });
        Self {
            conf: section.clone(),
            classes: classes.clone(),
            patience: patience(steps),
        }
    }
}

/// The duration of this many polls; the first one has no delay.
fn patience(steps: u32) -> Duration {
    let sleeps = i32::try_from(steps.min(STEPS_MAX).saturating_sub(1)).unwrap_or(0);
    Duration::from_secs_f64((1.2_f64.powi(sleeps) - 1.0) / 0.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_that_of_the_go_cloud_controller() {
        assert_eq!(patience(STEPS).as_secs(), 271);
        assert_eq!(patience(24).as_secs(), 326);
        assert_eq!((patience(0), patience(1)), (Duration::ZERO, Duration::ZERO));
        assert!(patience(u32::MAX) < Duration::from_secs(7 * 86400));
    }
}
