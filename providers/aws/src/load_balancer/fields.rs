//! The names of objects' attributes: a constant for each field of AWS, which annotations, kinds, responses, requests and laws use.
//!
//! Attributes that Elastic Load Balancing itself names have its names.

// Load balancers of both kinds.
pub(crate) const DNS_NAME: &str = "dns_name";
pub(crate) const SCHEME: &str = "scheme";
pub(crate) const SECURITY_GROUPS: &str = "security_groups";
pub(crate) const SUBNETS: &str = "subnets";

// Network load balancers.
/// When the load balancer was created, in seconds since 1970.
pub(crate) const CREATED: &str = "created";
pub(crate) const EIP_ALLOCATIONS: &str = "eip_allocations";
pub(crate) const IP_ADDRESS_TYPE: &str = "ip_address_type";
pub(crate) const PRIVATE_ADDRESSES: &str = "private_addresses";
pub(crate) const STATE: &str = "state";
pub(crate) const TYPE: &str = "type";
pub(crate) const ZONES: &str = "zones";
pub(crate) const ACCESS_LOGS_BUCKET: &str = "access_logs.s3.bucket";
pub(crate) const ACCESS_LOGS_ENABLED: &str = "access_logs.s3.enabled";
pub(crate) const ACCESS_LOGS_PREFIX: &str = "access_logs.s3.prefix";
pub(crate) const CLIENT_ROUTING_POLICY: &str = "dns_record.client_routing_policy";
pub(crate) const CROSS_ZONE_ENABLED: &str = "load_balancing.cross_zone.enabled";
pub(crate) const DELETION_PROTECTION: &str = "deletion_protection.enabled";
pub(crate) const DENY_IGW_TRAFFIC: &str = "ipv6.deny_all_igw_traffic";
pub(crate) const SECONDARY_IPS: &str = "secondary_ips.auto_assigned.per_subnet";
pub(crate) const ZONAL_SHIFT: &str = "zonal_shift.config.enabled";

// Target groups, and the health checks of both kinds.
/// The ARNs of the load balancers that use a target group.
pub(crate) const BALANCERS: &str = "balancers";
pub(crate) const HEALTH_CHECK_CODES: &str = "health_check_codes";
pub(crate) const HEALTH_CHECK_INTERVAL: &str = "health_check_interval";
pub(crate) const HEALTH_CHECK_PATH: &str = "health_check_path";
pub(crate) const HEALTH_CHECK_PORT: &str = "health_check_port";
pub(crate) const HEALTH_CHECK_PROTOCOL: &str = "health_check_protocol";
pub(crate) const HEALTH_CHECK_TIMEOUT: &str = "health_check_timeout";
/// Successful checks in a row after which a target is healthy.
pub(crate) const HEALTHY_THRESHOLD: &str = "healthy_threshold";
pub(crate) const PORT: &str = "port";
/// Targets see the client's address instead of the load balancer's.
pub(crate) const PRESERVE_CLIENT_IP: &str = "preserve_client_ip.enabled";
/// Targets get the client's address by the PROXY protocol.
pub(crate) const PROXY_PROTOCOL_V2: &str = "proxy_protocol_v2.enabled";
/// Failed checks in a row after which a target is unhealthy.
pub(crate) const UNHEALTHY_THRESHOLD: &str = "unhealthy_threshold";

// Listeners of both kinds. Target groups also have a protocol.
pub(crate) const ALPN_POLICY: &str = "alpn_policy";
pub(crate) const CERTIFICATE: &str = "certificate";
pub(crate) const PROTOCOL: &str = "protocol";
pub(crate) const SSL_POLICY: &str = "ssl_policy";
/// The name of a listener's target group.
pub(crate) const TARGET_GROUP: &str = "target_group";
/// The IP protocols of a listener.
pub(crate) const TRANSPORT: &str = "transport";

// Classic load balancers and their listeners.
pub(crate) const ACCESS_LOG: &str = "access_log";
pub(crate) const ACCESS_LOG_BUCKET: &str = "access_log_bucket";
pub(crate) const ACCESS_LOG_INTERVAL: &str = "access_log_interval";
pub(crate) const ACCESS_LOG_PREFIX: &str = "access_log_prefix";
pub(crate) const CROSS_ZONE: &str = "cross_zone";
pub(crate) const DRAINING: &str = "draining";
pub(crate) const DRAINING_TIMEOUT: &str = "draining_timeout";
/// Protocol, port and path of a health check: `HTTP:30080/healthz`.
pub(crate) const HEALTH_CHECK: &str = "health_check";
pub(crate) const IDLE_TIMEOUT: &str = "idle_timeout";
pub(crate) const INSTANCE_PORT: &str = "instance_port";
pub(crate) const INSTANCE_PROTOCOL: &str = "instance_protocol";
/// The name of the policy with a listener's predefined TLS policy.
pub(crate) const POLICY: &str = "policy";

// Security groups.
pub(crate) const DESCRIPTION: &str = "description";
