//! The names of objects' attributes: a constant for each field of Octavia and Neutron, which annotations, kinds, requests, plans
//! and laws use. Attributes that are no fields stand beside [`kinds`](super::kinds).

pub(crate) const ALLOWED_CIDRS: &str = "allowed_cidrs";
pub(crate) const AVAILABILITY_ZONE: &str = "availability_zone";
pub(crate) const CONNECTION_LIMIT: &str = "connection_limit";
pub(crate) const DEFAULT_TLS_CONTAINER_REF: &str = "default_tls_container_ref";
pub(crate) const DELAY: &str = "delay";
pub(crate) const DESCRIPTION: &str = "description";
pub(crate) const EXPECTED_CODES: &str = "expected_codes";
pub(crate) const FLAVOR_ID: &str = "flavor_id";
pub(crate) const FLOATING_IP_ADDRESS: &str = "floating_ip_address";
pub(crate) const FLOATING_NETWORK_ID: &str = "floating_network_id";
pub(crate) const HTTP_METHOD: &str = "http_method";
pub(crate) const INSERT_HEADERS: &str = "insert_headers";
pub(crate) const LB_ALGORITHM: &str = "lb_algorithm";
pub(crate) const MAX_RETRIES: &str = "max_retries";
pub(crate) const MAX_RETRIES_DOWN: &str = "max_retries_down";
pub(crate) const NAME: &str = "name";
pub(crate) const PORT_ID: &str = "port_id";
pub(crate) const PROTOCOL: &str = "protocol";
pub(crate) const PROTOCOL_PORT: &str = "protocol_port";
pub(crate) const PROVIDER: &str = "provider";
pub(crate) const PROVISIONING_STATUS: &str = "provisioning_status";
pub(crate) const SESSION_PERSISTENCE: &str = "session_persistence";
pub(crate) const TAGS: &str = "tags";
pub(crate) const TIMEOUT: &str = "timeout";
pub(crate) const TIMEOUT_CLIENT_DATA: &str = "timeout_client_data";
pub(crate) const TIMEOUT_MEMBER_CONNECT: &str = "timeout_member_connect";
pub(crate) const TIMEOUT_MEMBER_DATA: &str = "timeout_member_data";
pub(crate) const TIMEOUT_TCP_INSPECT: &str = "timeout_tcp_inspect";
pub(crate) const TYPE: &str = "type";
pub(crate) const URL_PATH: &str = "url_path";
pub(crate) const VIP_ADDRESS: &str = "vip_address";
pub(crate) const VIP_NETWORK_ID: &str = "vip_network_id";
pub(crate) const VIP_PORT_ID: &str = "vip_port_id";
pub(crate) const VIP_SUBNET_ID: &str = "vip_subnet_id";
