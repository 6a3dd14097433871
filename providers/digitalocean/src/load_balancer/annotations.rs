//! The annotations of Services.
//!
//! Booleans have Go's syntax. A value that the API would refuse is an error that names the annotation. All errors are reported
//! at once.

use ccm_core::load_balancer::annotations;

annotations! {
    prefixes: [
        "service.beta.kubernetes.io/do-loadbalancer-",
        "service.kubernetes.io/do-loadbalancer-",
        "kubernetes.digitalocean.com/"
    ];
    reference: "docs/reference/digitalocean.md";
    /// ID of the load balancer. Set by the controller. If you set it, that load balancer is adopted, also from another cluster.
    ID = "kubernetes.digitalocean.com/load-balancer-id", "UUID";
    /// The load balancer is left unchanged, and it is not deleted with the Service. It is then an orphan, which
    /// `--delete-orphaned-load-balancers` deletes unless it has the droplets of another cluster.
    DISOWN = "service.kubernetes.io/do-loadbalancer-disown", "bool, default false";
    /// Whether the managed firewall opens the ports of the Service.
    FIREWALL_MANAGED = "kubernetes.digitalocean.com/firewall-managed", "bool, default true";
    /// Name of the load balancer. Another name renames it.
    NAME = "service.beta.kubernetes.io/do-loadbalancer-name", "at most 255 letters, digits, dots and dashes, default `a` and the Service's UID";
    /// Type of the load balancer. Cannot be changed. If unset, the controller sets it to the load balancer's type.
    TYPE = "service.beta.kubernetes.io/do-loadbalancer-type", "`REGIONAL` or `REGIONAL_NETWORK`, default `defaultLbType`";
    /// Whether the load balancer has a public address. Cannot be changed.
    NETWORK = "service.beta.kubernetes.io/do-loadbalancer-network", "`EXTERNAL` or `INTERNAL`, default `EXTERNAL`";
    /// Families of the load balancer's addresses. Cannot be changed.
    NETWORK_STACK = "service.beta.kubernetes.io/do-loadbalancer-network-stack", "`IPV4` or `DUALSTACK`, default `DUALSTACK`, but `IPV4` if internal, or if `REGIONAL_NETWORK` and a node has only IPv4";
    /// Protocol of all TCP ports (`REGIONAL`).
    PROTOCOL = "service.beta.kubernetes.io/do-loadbalancer-protocol", "`tcp`, `http`, `https`, `http2` or `http3`, default `tcp`";
    /// Ports with HTTP (`REGIONAL`).
    HTTP_PORTS = "service.beta.kubernetes.io/do-loadbalancer-http-ports", "ports, separated by commas";
    /// Ports with HTTPS (`REGIONAL`).
    TLS_PORTS = "service.beta.kubernetes.io/do-loadbalancer-tls-ports", "ports, separated by commas; 443 if a certificate or passthrough is set";
    /// Ports with HTTP/2 (`REGIONAL`).
    HTTP2_PORTS = "service.beta.kubernetes.io/do-loadbalancer-http2-ports", "ports, separated by commas";
    /// A port with HTTP/3 in addition (`REGIONAL`). It must be a port of the Service.
    HTTP3_PORT = "service.beta.kubernetes.io/do-loadbalancer-http3-port", "port";
    /// TLS ends at the Pods, not at the load balancer (`REGIONAL`).
    TLS_PASSTHROUGH = "service.beta.kubernetes.io/do-loadbalancer-tls-passthrough", "bool, default false";
    /// ID of the certificate for HTTPS, HTTP/2 and HTTP/3. Rewritten when Let's Encrypt renewed the certificate.
    CERTIFICATE_ID = "service.beta.kubernetes.io/do-loadbalancer-certificate-id", "UUID";
    /// Name of the certificate, if no ID is set.
    CERTIFICATE_NAME = "service.beta.kubernetes.io/do-loadbalancer-certificate-name", "text";
    /// No DNS records are created for certificates of Let's Encrypt.
    DISABLE_DNS_RECORDS = "service.beta.kubernetes.io/do-loadbalancer-disable-lets-encrypt-dns-records", "bool, default false";
    /// The status shows this name in place of addresses.
    HOSTNAME = "service.beta.kubernetes.io/do-loadbalancer-hostname", "DNS name";
    /// Has no effect: the API ignores it.
    ALGORITHM = "service.beta.kubernetes.io/do-loadbalancer-algorithm", "`round_robin` or `least_connections`, default `round_robin`";
    /// Size of the load balancer by its former names: 1, 3 and 6 nodes. Sent by its name.
    SIZE_SLUG = "service.beta.kubernetes.io/do-loadbalancer-size-slug", "`lb-small`, `lb-medium` or `lb-large`";
    /// Number of nodes of the load balancer, up to the limit of the account. The API accepts one change an hour.
    SIZE_UNIT = "service.beta.kubernetes.io/do-loadbalancer-size-unit", "number; without it, the size stays, and a new load balancer has 1";
    /// Sticky sessions (`REGIONAL`).
    STICKY_TYPE = "service.beta.kubernetes.io/do-loadbalancer-sticky-sessions-type", "`none` or `cookies`, default `none`";
    /// Name of the cookie. Required with `cookies`.
    STICKY_COOKIE_NAME = "service.beta.kubernetes.io/do-loadbalancer-sticky-sessions-cookie-name", "text";
    /// Lifetime of the cookie in seconds. Required with `cookies`.
    STICKY_COOKIE_TTL = "service.beta.kubernetes.io/do-loadbalancer-sticky-sessions-cookie-ttl", "number";
    /// Requests with HTTP are redirected to HTTPS (`REGIONAL`).
    REDIRECT = "service.beta.kubernetes.io/do-loadbalancer-redirect-http-to-https", "bool, default false";
    /// The PROXY protocol between load balancer and nodes (`REGIONAL`).
    PROXY_PROTOCOL = "service.beta.kubernetes.io/do-loadbalancer-enable-proxy-protocol", "bool, default false";
    /// Connections to nodes are kept open (`REGIONAL`).
    KEEPALIVE = "service.beta.kubernetes.io/do-loadbalancer-enable-backend-keepalive", "bool, default false";
    /// How long an HTTP connection may be idle (`REGIONAL`).
    IDLE_TIMEOUT = "service.beta.kubernetes.io/do-loadbalancer-http-idle-timeout-seconds", "30 to 600; without it, the timeout stays, and a new load balancer has 60";
    /// Clients that are refused.
    DENY_RULES = "service.beta.kubernetes.io/do-loadbalancer-deny-rules", "`ip:<address>` and `cidr:<network>`, separated by commas";
    /// Clients that are allowed. `spec.loadBalancerSourceRanges` replaces it.
    ALLOW_RULES = "service.beta.kubernetes.io/do-loadbalancer-allow-rules", "`ip:<address>` and `cidr:<network>`, separated by commas";
    /// Port, path and protocol of health checks are those of the next three annotations, and not of kube-proxy.
    OVERRIDE_HEALTH_CHECK = "service.beta.kubernetes.io/do-loadbalancer-override-health-check", "any value but `false`";
    /// Port of the Service whose node port is checked. Only with `override-health-check`.
    HEALTH_PORT = "service.beta.kubernetes.io/do-loadbalancer-healthcheck-port", "port, default the first TCP port";
    /// Path of checks with HTTP. Only with `override-health-check`.
    HEALTH_PATH = "service.beta.kubernetes.io/do-loadbalancer-healthcheck-path", "text";
    /// Protocol of checks. Only with `override-health-check`.
    HEALTH_PROTOCOL = "service.beta.kubernetes.io/do-loadbalancer-healthcheck-protocol", "`tcp`, `http` or `https`, default `http` with a path, else `tcp`";
    /// Seconds between checks.
    HEALTH_INTERVAL = "service.beta.kubernetes.io/do-loadbalancer-healthcheck-check-interval-seconds", "3 to 300, default 3";
    /// Seconds to wait for an answer.
    HEALTH_TIMEOUT = "service.beta.kubernetes.io/do-loadbalancer-healthcheck-response-timeout-seconds", "3 to 300, default 5";
    /// Failures after which a node gets no traffic.
    HEALTH_UNHEALTHY = "service.beta.kubernetes.io/do-loadbalancer-healthcheck-unhealthy-threshold", "2 to 10, default 3";
    /// Successes after which a node gets traffic again.
    HEALTH_HEALTHY = "service.beta.kubernetes.io/do-loadbalancer-healthcheck-healthy-threshold", "2 to 10, default 5";
    /// Address of your own to use (BYOIP). Only when the load balancer is created.
    IP = "service.beta.kubernetes.io/do-loadbalancer-ip", "IPv4 address";
    /// Subnet of the VPC. Only when the load balancer is created.
    SUBNET = "service.beta.kubernetes.io/do-loadbalancer-subnet-uuid", "UUID";
}
