//! The annotations of Services.
//!
//! Names and meanings are those of the Go cloud-controller-manager; `-attributes`, `-scheme`, `-nlb-target-type`, `-ip-address-type`,
//! `-alpn-policy`, `-healthcheck-success-codes` and lists in `-ssl-cert` are those of the AWS Load Balancer Controller. A
//! value that the Go cloud-controller-manager refuses is refused. Unknown values of annotations that it does not know are ignored, except for
//! the scheme, which decides who reaches the load balancer.

use ccm_core::load_balancer::annotations;

annotations! {
    prefixes: ["service.beta.kubernetes.io/aws-load-balancer-"];
    reference: "docs/reference/aws.md";
    /// The kind of load balancer. `external` and `nlb-ip` leave the Service to the AWS Load Balancer Controller.
    TYPE = "service.beta.kubernetes.io/aws-load-balancer-type", "nlb, external or nlb-ip; default `DefaultLoadBalancerType`";
    /// The load balancer has no public address. Any value except `false` enables it. Only when it is created.
    INTERNAL = "service.beta.kubernetes.io/aws-load-balancer-internal", "bool, default false";
    /// The scheme. If one of this and `internal` says so, the load balancer is internal. Only when it is created.
    SCHEME = "service.beta.kubernetes.io/aws-load-balancer-scheme", "internal or internet-facing";
    /// The type of targets. Only nodes can be targets; other values are ignored.
    TARGET_TYPE = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type", "instance";
    /// Address family of the load balancer. Only when it is created. Without the annotation, a Service that does not require
    /// two families gets `ipv4` if a subnet has no IPv6 network.
    IP_ADDRESS_TYPE = "service.beta.kubernetes.io/aws-load-balancer-ip-address-type", "ipv4 or dualstack, default by `spec.ipFamilies`";
    /// Subnets of the load balancer by ID or by the tag `Name`, in which `*` and `?` are wildcards. Each item must stand for one
    /// subnet. Subnets in further zones are added later; none is removed.
    SUBNETS = "service.beta.kubernetes.io/aws-load-balancer-subnets", "list, default by tags";
    /// Elastic IP addresses, one for each subnet: first for those that `aws-load-balancer-subnets` names by ID, then for those by
    /// name. Only when the load balancer is created.
    EIP_ALLOCATIONS = "service.beta.kubernetes.io/aws-load-balancer-eip-allocations", "list of allocation IDs";
    /// Private addresses, one for each subnet, in the same order as Elastic IP addresses. Only when the load balancer is created.
    PRIVATE_ADDRESSES = "service.beta.kubernetes.io/aws-load-balancer-private-ipv4-addresses", "list of IPv4 addresses";
    /// Security groups of the load balancer. A network load balancer supports them only with `NLBSecurityGroupMode=Managed`.
    SECURITY_GROUPS = "service.beta.kubernetes.io/aws-load-balancer-security-groups", "list of IDs";
    /// Security groups beside the load balancer's own. Classic load balancers only.
    EXTRA_SECURITY_GROUPS = "service.beta.kubernetes.io/aws-load-balancer-extra-security-groups", "list of IDs";
    /// Tags of everything that is created for the Service. They are added later, too; none is removed.
    TAGS = "service.beta.kubernetes.io/aws-load-balancer-additional-resource-tags", "`key=value,..`";
    /// Labels that a node must have to be a target. Without a value the label need only exist.
    NODE_LABELS = "service.beta.kubernetes.io/aws-load-balancer-target-node-labels", "`key=value,..`, default all nodes";
    /// Certificates for TLS. The first one is the default certificate. Other certificates of the listener are kept while only one is named.
    CERTIFICATES = "service.beta.kubernetes.io/aws-load-balancer-ssl-cert", "list of ARNs";
    /// Ports with TLS, by number or name. As in the Go cloud-controller-manager, an item with a space matches no port.
    SSL_PORTS = "service.beta.kubernetes.io/aws-load-balancer-ssl-ports", "list, default `*`";
    /// The predefined security policy of TLS.
    SSL_POLICY = "service.beta.kubernetes.io/aws-load-balancer-ssl-negotiation-policy", "text, default of AWS";
    /// The ALPN policy of TLS.
    ALPN_POLICY = "service.beta.kubernetes.io/aws-load-balancer-alpn-policy", "None, HTTP1Only, HTTP2Only, HTTP2Optional or HTTP2Preferred; default None";
    /// The protocol of the targets. A network load balancer distinguishes only `ssl`. On a classic one, `http` in lower case is
    /// also the protocol of listeners without TLS.
    BACKEND_PROTOCOL = "service.beta.kubernetes.io/aws-load-balancer-backend-protocol", "tcp, ssl, http or https; default tcp";
    /// Each zone sends traffic to the targets of all zones.
    CROSS_ZONE = "service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled", "bool, default false";
    /// Enables access logs.
    ACCESS_LOG = "service.beta.kubernetes.io/aws-load-balancer-access-log-enabled", "bool, default false";
    /// The S3 bucket of access logs.
    ACCESS_LOG_BUCKET = "service.beta.kubernetes.io/aws-load-balancer-access-log-s3-bucket-name", "text";
    /// The prefix in the S3 bucket of access logs.
    ACCESS_LOG_PREFIX = "service.beta.kubernetes.io/aws-load-balancer-access-log-s3-bucket-prefix", "text";
    /// The interval of access logs. Classic load balancers only.
    ACCESS_LOG_INTERVAL = "service.beta.kubernetes.io/aws-load-balancer-access-log-emit-interval", "5 or 60 minutes";
    /// Attributes of a network load balancer. One that is not named stays as it is.
    ATTRIBUTES = "service.beta.kubernetes.io/aws-load-balancer-attributes", "`key=value,..`";
    /// Attributes of target groups: `preserve_client_ip.enabled` and `proxy_protocol_v2.enabled`. One that is not named stays as it
    /// is.
    TARGET_GROUP_ATTRIBUTES = "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes", "`key=true,..`";
    /// The PROXY protocol, version 1, passes the client's address to targets. Classic load balancers only; on a network load
    /// balancer, set `target-group-attributes: proxy_protocol_v2.enabled=true`.
    PROXY_PROTOCOL = "service.beta.kubernetes.io/aws-load-balancer-proxy-protocol", "`*`";
    /// Connections to a deregistered target are drained. Classic load balancers only.
    DRAINING = "service.beta.kubernetes.io/aws-load-balancer-connection-draining-enabled", "bool, default false";
    /// The longest time that connections to a deregistered target are drained. Classic load balancers only.
    DRAINING_TIMEOUT = "service.beta.kubernetes.io/aws-load-balancer-connection-draining-timeout", "1 to 3600 seconds";
    /// The idle timeout of connections. Classic load balancers only.
    IDLE_TIMEOUT = "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout", "seconds, default 60";
    /// Protocol of the health check.
    CHECK_PROTOCOL = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-protocol", "tcp, http or https; default tcp, and http with `externalTrafficPolicy: Local`";
    /// Port of the health check.
    CHECK_PORT = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-port", "number or traffic-port";
    /// Path of the health check.
    CHECK_PATH = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-path", "path, default `/`, and `/healthz` with `externalTrafficPolicy: Local`";
    /// HTTP status codes of a healthy target.
    CHECK_CODES = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-success-codes", "`200`, `200,202` or `200-299`; default 200-399";
    /// Checks in a row after which a target is healthy.
    CHECK_HEALTHY = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-healthy-threshold", "2 to 10, default 3, and 2 with `externalTrafficPolicy: Local` or a classic load balancer";
    /// Checks in a row after which a target is unhealthy.
    CHECK_UNHEALTHY = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-unhealthy-threshold", "2 to 10, default 3, and 2 with `externalTrafficPolicy: Local`; 6 of a classic load balancer";
    /// The timeout of a health check.
    CHECK_TIMEOUT = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-timeout", "2 to 120 seconds, at most the interval, default of AWS; 2 to 60 seconds, default 5 of a classic load balancer";
    /// The time between health checks.
    CHECK_INTERVAL = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval", "5 to 300 seconds, default 30, and 10 with `externalTrafficPolicy: Local` or a classic load balancer";
}
