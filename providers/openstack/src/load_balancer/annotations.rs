//! What Services ask for beyond their fields.
//!
//! Values that the Go cloud controller tolerates get its default here, too, and are noted; what it or Octavia refuses is
//! an error that names the annotation. A text that is present and empty takes the place of the config's value.

use std::{fmt, ops::RangeInclusive};

use ccm_core::{Error, ErrorKind, Labels, check::Field};

use super::protocols::Proxy;

macro_rules! annotations {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal, $kind:literal;)+) => {
        $($(#[doc = $doc])* pub(crate) const $name: &str = $text;)+

        /// Every annotation with its type and what it does, for the reference.
        pub(crate) const ALL: &[(&str, &str, &str)] = &[$(($name, $kind, concat!($($doc),*))),+];
    };
}

annotations! {
    /// No floating address. Always so if the config has `internal-lb`.
    INTERNAL = "service.beta.kubernetes.io/openstack-internal-load-balancer", "bool, default `internal-lb`";
    /// Networks of clients, if `spec.loadBalancerSourceRanges` names none.
    SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges", "CIDRs, default everybody";
    /// Id of the load balancer to use. Written for those that were made.
    LOAD_BALANCER_ID = "loadbalancer.openstack.org/load-balancer-id", "text";
    /// Address of the load balancer. Written.
    LOAD_BALANCER_ADDRESS = "loadbalancer.openstack.org/load-balancer-address", "text";
    /// The status shows this name alone.
    HOSTNAME = "loadbalancer.openstack.org/hostname", "text";
    /// Which `[LoadBalancerClass]` of the config.
    CLASS = "loadbalancer.openstack.org/class", "text";
    /// External network of the floating address.
    FLOATING_NETWORK_ID = "loadbalancer.openstack.org/floating-network-id", "text, default `floating-network-id`";
    /// Subnet of the floating address.
    FLOATING_SUBNET_ID = "loadbalancer.openstack.org/floating-subnet-id", "text, default `floating-subnet-id`";
    /// Pattern for the name of the floating address's subnet.
    FLOATING_SUBNET = "loadbalancer.openstack.org/floating-subnet", "text, default `floating-subnet`";
    /// Tags of the floating address's subnet.
    FLOATING_SUBNET_TAGS = "loadbalancer.openstack.org/floating-subnet-tags", "text, default `floating-subnet-tags`";
    /// The floating address survives the Service.
    KEEP_FLOATING_IP = "loadbalancer.openstack.org/keep-floatingip", "bool, default false";
    /// Subnet of the virtual address. Only when the load balancer is made.
    SUBNET_ID = "loadbalancer.openstack.org/subnet-id", "text, default `subnet-id`";
    /// Network of the virtual address. Only when the load balancer is made.
    NETWORK_ID = "loadbalancer.openstack.org/network-id", "text, default `network-id`";
    /// Port with the virtual address. Only when the load balancer is made.
    PORT_ID = "loadbalancer.openstack.org/port-id", "text";
    /// Subnet of the members.
    MEMBER_SUBNET_ID = "loadbalancer.openstack.org/member-subnet-id", "text, default `member-subnet-id`";
    /// Connections at once; -1 is no limit.
    CONNECTION_LIMIT = "loadbalancer.openstack.org/connection-limit", "number, default -1";
    /// How connections are spread over the members.
    LB_METHOD = "loadbalancer.openstack.org/lb-method", "text, default `lb-method`";
    /// Members are told the client's address by the PROXY protocol: `true` or `v1`, or `v2`.
    PROXY_PROTOCOL = "loadbalancer.openstack.org/proxy-protocol", "text, default `false`";
    /// Members are told the client's address by the header `X-Forwarded-For`.
    X_FORWARDED_FOR = "loadbalancer.openstack.org/x-forwarded-for", "bool, default false";
    /// The load balancer ends TLS with this certificate.
    TLS_CONTAINER_REF = "loadbalancer.openstack.org/default-tls-container-ref", "text, default `default-tls-container-ref`";
    /// How long a client may be silent.
    TIMEOUT_CLIENT_DATA = "loadbalancer.openstack.org/timeout-client-data", "milliseconds, default 50000";
    /// How long connecting to a member may take.
    TIMEOUT_MEMBER_CONNECT = "loadbalancer.openstack.org/timeout-member-connect", "milliseconds, default 5000";
    /// How long a member may be silent.
    TIMEOUT_MEMBER_DATA = "loadbalancer.openstack.org/timeout-member-data", "milliseconds, default 50000";
    /// How long to wait for more data to look at.
    TIMEOUT_TCP_INSPECT = "loadbalancer.openstack.org/timeout-tcp-inspect", "milliseconds, default 0";
    /// Whether members are checked.
    ENABLE_HEALTH_MONITOR = "loadbalancer.openstack.org/enable-health-monitor", "bool, default `create-monitor`";
    /// Time between two checks.
    HEALTH_MONITOR_DELAY = "loadbalancer.openstack.org/health-monitor-delay", "seconds, default `monitor-delay`";
    /// How long a check may take.
    HEALTH_MONITOR_TIMEOUT = "loadbalancer.openstack.org/health-monitor-timeout", "seconds, default `monitor-timeout`";
    /// Checks until a member is up.
    HEALTH_MONITOR_MAX_RETRIES = "loadbalancer.openstack.org/health-monitor-max-retries", "1 to 10, default `monitor-max-retries`";
    /// Checks until a member is down.
    HEALTH_MONITOR_MAX_RETRIES_DOWN = "loadbalancer.openstack.org/health-monitor-max-retries-down", "1 to 10, default `monitor-max-retries-down`";
    /// Octavia flavor. Only when the load balancer is made.
    FLAVOR_ID = "loadbalancer.openstack.org/flavor-id", "text, default `flavor-id`";
    /// Octavia availability zone. Only when the load balancer is made.
    AVAILABILITY_ZONE = "loadbalancer.openstack.org/availability-zone", "text, default `availability-zone`";
    /// Tags of the load balancer, beside our own and those that others added. The lists of Services that share it are added up.
    LOAD_BALANCER_TAGS = "loadbalancer.openstack.org/load-balancer-tags", "tags, separated by commas";
    /// Tags of the Service's listeners, beside our own and those that others added.
    LISTENER_TAGS = "loadbalancer.openstack.org/listener-tags", "tags, separated by commas";
    /// Tags of the Service's pools, beside those that others added.
    POOL_TAGS = "loadbalancer.openstack.org/pool-tags", "tags, separated by commas";
    /// Tags that the load balancer has because of the annotation. Written.
    APPLIED_LOAD_BALANCER_TAGS = "loadbalancer.openstack.org/applied-load-balancer-tags", "text";
    /// Tags that the listeners have because of the annotation. Written.
    APPLIED_LISTENER_TAGS = "loadbalancer.openstack.org/applied-listener-tags", "text";
    /// Tags that the pools have because of the annotation. Written.
    APPLIED_POOL_TAGS = "loadbalancer.openstack.org/applied-pool-tags", "text";
    /// Labels of the nodes that become members.
    NODE_SELECTOR = "loadbalancer.openstack.org/node-selector", "text, default `node-selector`";
}

/// The table of all of them.
pub(crate) fn reference() -> String {
    use std::fmt::Write as _;
    let mut table = "A text that is present and empty takes the place of the config's value. A value without a meaning is taken for \
                     the default, and a Warning event says so; one that Octavia would refuse is refused.\n\n\
                     | Annotation | Value | Effect |\n|---|---|---|\n"
        .to_owned();
    for (name, kind, doc) in ALL {
        // Writing to a text does not fail.
        let _ = writeln!(table, "| `{name}` | {kind} | {} |", doc.trim());
    }
    table
}

/// A value that has no meaning, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tolerated {
    /// Of which annotation.
    pub(crate) key: &'static str,
    /// What is wrong with it, and what is used.
    pub(crate) problem: String,
}

impl fmt::Display for Tolerated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

/// Something that keeps a Service from what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// What of the Service it is about.
    pub(crate) field: Field,
    /// What is wrong, in words that name it.
    pub(crate) what: String,
}

/// The one error of all that was refused.
pub(crate) fn refusal(refused: &[Refused]) -> Error {
    let all: Vec<_> = refused.iter().map(|refused| refused.what.as_str()).collect();
    Error::new(ErrorKind::InvalidSpec, format!("annotations: {}", all.join("; ")))
}

/// The field that is this annotation.
pub(crate) fn field(key: &str) -> Field {
    Field::Annotation(key.to_owned())
}

/// Reads the annotations of one Service and notes what is wrong with them.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    annotations: &'a Labels,
    tolerated: Vec<Tolerated>,
    refused: Vec<Refused>,
}

impl<'a> Reader<'a> {
    /// Nothing was read yet.
    pub(crate) fn new(annotations: &'a Labels) -> Self {
        Self {
            annotations,
            tolerated: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// A text as it stands, also if it is empty.
    pub(crate) fn given(&self, key: &str) -> Option<&'a str> {
        self.annotations.get(key)
    }

    /// A text, or the default if there is none.
    pub(crate) fn text<'b>(&self, key: &str, default: &'b str) -> &'b str
    where
        'a: 'b,
    {
        self.given(key).unwrap_or(default)
    }

    /// A text from the annotation, else from the class, else from the config. A class has a value only if it is not
    /// empty.
    pub(crate) fn text_or_class<'b>(&self, key: &str, class: Option<&'b str>, default: &'b str) -> &'b str
    where
        'a: 'b,
    {
        let class = class.filter(|value| !value.is_empty());
        self.given(key).or(class).unwrap_or(default)
    }

    /// `true` or `false`.
    pub(crate) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        match self.given(key) {
            None => default,
            Some("true") => true,
            Some("false") => false,
            Some(other) => {
                self.tolerate(key, other, &default.to_string());
                default
            }
        }
    }

    /// A whole number that the cloud takes.
    pub(crate) fn number(&mut self, key: &'static str, default: i64, allowed: RangeInclusive<i64>) -> i64 {
        let Some(text) = self.given(key) else {
            return default;
        };
        let Ok(number) = text.parse::<i64>() else {
            self.tolerate(key, text, &default.to_string());
            return default;
        };
        if !allowed.contains(&number) {
            let (least, most) = allowed.into_inner();
            self.refuse(
                field(key),
                format!("{key}: {number} is not between {least} and {most}"),
            );
            return default;
        }
        number
    }

    /// The PROXY protocol.
    pub(crate) fn proxy(&mut self) -> Proxy {
        let Some(text) = self.given(PROXY_PROTOCOL) else {
            return Proxy::Off;
        };
        Proxy::parse(text).unwrap_or_else(|| {
            self.tolerate(PROXY_PROTOCOL, text, "false");
            Proxy::Off
        })
    }

    /// Notes what is refused.
    pub(crate) fn refuse(&mut self, field: Field, what: String) {
        self.refused.push(Refused { field, what });
    }

    fn tolerate(&mut self, key: &'static str, value: &str, used: &str) {
        self.warn(key, format!("{value:?} has no meaning, {used} is used"));
    }

    /// Reports an annotation whose value is used only in part, or not at all.
    pub(crate) fn warn(&mut self, key: &'static str, problem: String) {
        self.tolerated.push(Tolerated { key, problem });
    }

    /// What was tolerated and what was refused.
    pub(crate) fn finish(self) -> (Vec<Tolerated>, Vec<Refused>) {
        (self.tolerated, self.refused)
    }
}

/// The ranges that Octavia takes.
pub(crate) mod allowed {
    use std::ops::RangeInclusive;

    /// Timeouts of listeners, in milliseconds: 24 days.
    pub(crate) const TIMEOUT: RangeInclusive<i64> = 0..=2_073_600_000;
    /// Connections at once.
    pub(crate) const CONNECTION_LIMIT: RangeInclusive<i64> = -1..=i64::MAX;
    /// Checks until a member is up or down.
    pub(crate) const RETRIES: RangeInclusive<i64> = 1..=10;
    /// Times of health monitors, in seconds.
    pub(crate) const SECONDS: RangeInclusive<i64> = 1..=i64::MAX;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| (*key, *value)).collect()
    }

    #[test]
    fn absent_valid_invalid_and_empty_values() {
        let labels = labels(&[
            (INTERNAL, "true"),
            (KEEP_FLOATING_IP, "yes"),
            (X_FORWARDED_FOR, ""),
            (CONNECTION_LIMIT, "100"),
            (TIMEOUT_CLIENT_DATA, "many"),
            (TIMEOUT_MEMBER_DATA, ""),
            (FLOATING_NETWORK_ID, ""),
            (PROXY_PROTOCOL, "v3"),
        ]);
        let mut reader = Reader::new(&labels);
        assert!(reader.flag(INTERNAL, false));
        assert!(!reader.flag(KEEP_FLOATING_IP, false));
        assert!(reader.flag(X_FORWARDED_FOR, true), "neither true nor false");
        assert!(reader.flag(ENABLE_HEALTH_MONITOR, true), "absent");
        assert_eq!(
            reader.number(CONNECTION_LIMIT, -1, allowed::CONNECTION_LIMIT),
            100
        );
        assert_eq!(
            reader.number(TIMEOUT_CLIENT_DATA, 50_000, allowed::TIMEOUT),
            50_000
        );
        assert_eq!(
            reader.number(TIMEOUT_MEMBER_DATA, 50_000, allowed::TIMEOUT),
            50_000
        );
        assert_eq!(reader.number(TIMEOUT_TCP_INSPECT, 0, allowed::TIMEOUT), 0);
        assert_eq!(reader.proxy(), Proxy::Off);
        assert_eq!(
            reader.text(FLOATING_NETWORK_ID, "net"),
            "",
            "takes the place of the config's"
        );
        assert_eq!(reader.text(SUBNET_ID, "sub"), "sub");
        let (tolerated, refused) = reader.finish();
        assert_eq!(refused, []);
        let noted: Vec<_> = tolerated
            .iter()
            .map(|tolerated| {
                (
                    tolerated.key,
                    tolerated.problem.rsplit_once(", ").unwrap_or_default().1,
                )
            })
            .collect();
        let expected = [
            (KEEP_FLOATING_IP, "false"),
            (X_FORWARDED_FOR, "true"),
            (TIMEOUT_CLIENT_DATA, "50000"),
            (TIMEOUT_MEMBER_DATA, "50000"),
            (PROXY_PROTOCOL, "false"),
        ];
        let expected = expected.map(|(key, used)| (key, format!("{used} is used")));
        let expected: Vec<_> = expected.iter().map(|(key, used)| (*key, used.as_str())).collect();
        assert_eq!(noted, expected);
    }

    #[test]
    fn what_octavia_refuses_is_refused_with_all_its_names() {
        let labels = labels(&[(HEALTH_MONITOR_MAX_RETRIES, "11"), (TIMEOUT_CLIENT_DATA, "-1")]);
        let mut reader = Reader::new(&labels);
        reader.number(HEALTH_MONITOR_MAX_RETRIES, 1, allowed::RETRIES);
        reader.number(TIMEOUT_CLIENT_DATA, 50_000, allowed::TIMEOUT);
        reader.refuse(Field::Whole, "x and y cannot be used together".to_owned());
        let error = refusal(&reader.finish().1);
        assert_eq!(error.kind(), ErrorKind::InvalidSpec);
        let text = error.to_string();
        for part in [
            "health-monitor-max-retries: 11 is not between 1 and 10",
            "timeout-client-data: -1 is not between 0 and",
            "x and y",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn annotation_then_class_then_config() {
        let labels = labels(&[(SUBNET_ID, "own")]);
        let reader = Reader::new(&labels);
        assert_eq!(reader.text_or_class(SUBNET_ID, Some("class"), "config"), "own");
        assert_eq!(reader.text_or_class(NETWORK_ID, Some("class"), "config"), "class");
        assert_eq!(reader.text_or_class(NETWORK_ID, Some(""), "config"), "config");
        assert_eq!(reader.text_or_class(NETWORK_ID, None, "config"), "config");
    }

    #[test]
    fn every_annotation_is_described_once() {
        let mut names: Vec<_> = ALL.iter().map(|(name, ..)| *name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        for (name, kind, doc) in ALL {
            assert!(
                name.contains('/') && !kind.is_empty() && doc.trim().ends_with('.'),
                "{name}"
            );
        }
    }
}
