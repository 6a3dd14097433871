//! The names of attributes, as they are shown to users.

/// The address of a forwarding rule or a reservation.
pub(crate) const ADDRESS: &str = "address";
/// `EXTERNAL` or `INTERNAL`.
pub(crate) const SCHEME: &str = "scheme";
/// `PREMIUM` or `STANDARD`.
pub(crate) const TIER: &str = "network_tier";
/// The resource path of the subnetwork.
pub(crate) const SUBNETWORK: &str = "subnetwork";
/// The resource path of the network.
pub(crate) const NETWORK: &str = "network";
/// The description.
pub(crate) const DESCRIPTION: &str = "description";
/// `TCP` or `UDP`.
pub(crate) const PROTOCOL: &str = "protocol";
/// The first and the last port of an external forwarding rule: `80-443`.
pub(crate) const PORT_RANGE: &str = "port_range";
/// The ports of an internal forwarding rule.
pub(crate) const PORTS: &str = "ports";
/// Whether an internal forwarding rule takes all ports.
pub(crate) const ALL_PORTS: &str = "all_ports";
/// The resource path of the target pool of a forwarding rule.
pub(crate) const TARGET: &str = "target";
/// The resource path of the backend service of a forwarding rule.
pub(crate) const BACKEND_SERVICE: &str = "backend_service";
/// Whether clients in all regions reach an internal forwarding rule.
pub(crate) const GLOBAL_ACCESS: &str = "global_access";
/// `NONE`, `CLIENT_IP` and others.
pub(crate) const AFFINITY: &str = "session_affinity";
/// The resource path of the health check of a target pool or backend service.
pub(crate) const HEALTH_CHECK: &str = "health_check";
/// The resource paths of the instance groups of a backend service.
pub(crate) const GROUPS: &str = "instance_groups";
/// The port of a health check.
pub(crate) const PORT: &str = "port";
/// The path that a health check requests.
pub(crate) const PATH: &str = "request_path";
/// Seconds between two health checks.
pub(crate) const INTERVAL: &str = "interval";
/// Seconds until a health check has failed.
pub(crate) const TIMEOUT: &str = "timeout";
/// Checks in a row after which an instance is healthy.
pub(crate) const HEALTHY: &str = "healthy_threshold";
/// Checks in a row after which an instance is unhealthy.
pub(crate) const UNHEALTHY: &str = "unhealthy_threshold";
/// The CIDRs of the clients that a firewall rule admits.
pub(crate) const SOURCES: &str = "source_ranges";
/// The CIDRs that clients reach by a firewall rule; empty: all.
pub(crate) const DESTINATIONS: &str = "destination_ranges";
/// The network tags of the instances of a firewall rule.
pub(crate) const TARGET_TAGS: &str = "target_tags";
/// What a firewall rule admits: `tcp:80`, `tcp:443-444`.
pub(crate) const ALLOWED: &str = "allowed";
/// What a firewall rule denies: `all`.
pub(crate) const DENIED: &str = "denied";
/// The priority of a firewall rule.
pub(crate) const PRIORITY: &str = "priority";
