//! The keys of `cloud.conf`.

use std::collections::BTreeMap;

use ccm_core::config::{GoDuration, NameList, config_file, config_section};
use secrecy::SecretString;

use crate::{
    client::Quotas,
    load_balancer::settings::{LoadBalancer, LoadBalancerClass},
};

config_section! {
    /// The connection to the cloud, and the credentials. The credentials are one of: user and password, an application
    /// credential, or a token; with `trust-id` the password of a trustee.
    pub(crate) struct Global {
        /// URL of the Identity service (Keystone). With `/v3` at its end it is used unchanged, otherwise the service's list of versions is read. Required, here or in `clouds.yaml`. Example: `https://keystone.example:5000/v3`.
        "auth-url" => pub(crate) auth_url: String,
        /// Name of the user. Needs a domain: `user-domain-id` or `user-domain-name`, or with a project `domain-id` or `domain-name`. Example: `ccm`.
        "username" => pub(crate) username: String,
        /// Id of the user, in place of `username`. Example: `a8f0c2de4b6f4d1e9d3f`.
        "user-id" => pub(crate) user_id: String,
        /// Password of the user.
        "password" => pub(crate) password: Option<SecretString>,
        /// Id of the project. Takes precedence over `tenant-name`. Example: `5d0f2b3c7e1a4c8f9b21`.
        "tenant-id" => pub(crate) tenant_id: String,
        /// Name of the project. Needs a domain: `tenant-domain-id` or `tenant-domain-name`, or `domain-id` or `domain-name`. Example: `prod`.
        "tenant-name" => pub(crate) tenant_name: String,
        /// Id of the project's domain. Takes precedence over `tenant-domain-name`. Example: `default`.
        "tenant-domain-id" => pub(crate) tenant_domain_id: String,
        /// Name of the project's domain. Example: `Default`.
        "tenant-domain-name" => pub(crate) tenant_domain_name: String,
        /// Id of the user's domain. Example: `default`.
        "user-domain-id" => pub(crate) user_domain_id: String,
        /// Name of the user's domain. Example: `Default`.
        "user-domain-name" => pub(crate) user_domain_name: String,
        /// Id of the domain of both user and project, where these have none of their own. Without a project: the domain of the token's scope. Example: `default`.
        "domain-id" => pub(crate) domain_id: String,
        /// Name of the domain, in place of `domain-id`. Example: `Default`.
        "domain-name" => pub(crate) domain_name: String,
        /// Id of a trust. The token then has the rights of the trust. Example: `0d7f5c1b9e3a4f2c8d60`.
        "trust-id" => pub(crate) trust_id: String,
        /// Id of the user that the trust delegates to. Without it: `user-id` or `username`. Example: `7b1e9d3f5a2c4e8f0b6d`.
        "trustee-id" => pub(crate) trustee_id: String,
        /// Password of the trustee. Without it: `password`.
        "trustee-password" => pub(crate) trustee_password: Option<SecretString>,
        /// Id of an application credential. Example: `21dced0fd20347869b93710d2b98aae0`.
        "application-credential-id" => pub(crate) application_credential_id: String,
        /// Name of an application credential, in place of its id. Needs the user it belongs to: `user-id`, or `username` and a domain. Example: `ccm`.
        "application-credential-name" => pub(crate) application_credential_name: String,
        /// Secret of the application credential.
        "application-credential-secret" => pub(crate) application_credential_secret: Option<SecretString>,
        /// A token, in place of other credentials, and used before them. With a project it is exchanged for one of that project. It cannot be used after its expiry.
        "token" => pub(crate) token: Option<SecretString>,
        /// The region: which endpoints of the catalog are used, and the nodes' region label. Empty: the first endpoint of each service, and no label. Example: `RegionOne`.
        "region" => pub(crate) region: String,
        /// Which of a service's endpoints is used: `public`, `internal` or `admin`. Keystone is always reached through `auth-url`. Example: `internal`.
        "os-endpoint-type" => pub(crate) os_endpoint_type: String,
        /// File with the certificates (PEM) of the only authorities to trust, in place of the system's. A server's self-signed certificate is accepted here only without `CA:TRUE`; otherwise give the server one that an authority issued, or set `tls-insecure`. Example: `/etc/config/ca.pem`.
        "ca-file" => pub(crate) ca_file: String,
        /// The certificates (PEM) themselves. Used only without `ca-file`.
        "cafilecontents" => pub(crate) cafilecontents: String,
        /// File with our client certificate (PEM). Used only together with `key-file`. Example: `/etc/config/tls.crt`.
        "cert-file" => pub(crate) cert_file: String,
        /// File with the key of our client certificate (PEM). Example: `/etc/config/tls.key`.
        "key-file" => pub(crate) key_file: String,
        /// `true` switches off the verification of certificates. No other value does, not even `yes` or `1`. Example: `true`.
        "tls-insecure" => pub(crate) tls_insecure: String,
        /// Read values that this section does not set from `clouds.yaml`.
        "use-clouds" => pub(crate) use_clouds: bool,
        /// Path of `clouds.yaml`. Without it: the file that `OS_CLIENT_CONFIG_FILE` names, then the working directory, `~/.config/openstack` and `/etc/openstack`. Example: `/etc/config/clouds.yaml`.
        "clouds-file" => pub(crate) clouds_file: String,
        /// Entry of `clouds.yaml` to use; implies `use-clouds`. Without it: the entry that `OS_CLOUD` names, or the only one. Example: `prod`.
        "cloud" => pub(crate) cloud: String,
    }
}

config_section! {
    /// The selection and order of a node's addresses.
    pub(crate) struct Networking {
        /// Leave IPv6 addresses out.
        "ipv6-support-disabled" => pub(crate) ipv6_support_disabled: bool,
        /// Name of a network whose fixed addresses are external ones. May be given several times. Example: `public`.
        "public-network-name" => pub(crate) public_network_name: NameList,
        /// Name of a network whose fixed addresses are internal ones; those of other networks are left out. May be given several times. Without it: all networks. If only empty names are given, nodes that have addresses keep exactly these, and new nodes get the addresses of all networks. Example: `cluster`.
        "internal-network-name" => pub(crate) internal_network_name: NameList,
        /// CIDRs, separated by commas or white space. Addresses in the first of them come first; those in none come last. Without it: the order of Neutron's list when a node is initialized; later the node keeps its order. Example: `10.0.0.0/8, 192.168.0.0/16`.
        "address-sort-order" => pub(crate) address_sort_order: String,
    }
}

config_section! {
    /// Requests to OpenStack.
    pub(crate) struct Metadata {
        /// Accepted and checked, without effect: neither config drive nor metadata service is read.
        "search-order" => pub(crate) search_order: String = "configDrive,metadataService".to_owned(),
        /// How long one request to any OpenStack service may take (not only to the metadata service, in spite of the section's name). `0` is the default.
        "request-timeout" => pub(crate) request_timeout: GoDuration = GoDuration::from_secs(60),
    }
}

config_section! {
    /// Routes to the nodes' Pods, for Pod networks without an overlay.
    pub(crate) struct Route {
        /// Id of the router that gets the routes, or several separated by commas, each of which gets all routes. Empty: no routes. The Go cloud-controller-manager supports only one. Example: `1f2e3d4c-5b6a-4978-8897-a6b5c4d3e2f1`.
        "router-id" => pub(crate) router_id: String,
        /// Whether the nodes' ports get the network of the node's Pods (`allowed_address_pairs`), without which a port with port security drops the Pods' packets. Has no effect where Neutron lacks the extension. The Go cloud-controller-manager does not know this key.
        "allowed-address-pairs" => pub(crate) allowed_address_pairs: bool = true,
    }
}

config_file! {
    /// The config file.
    pub(crate) struct CloudConf {
        "Global" => pub(crate) global: Global,
        "Networking" => pub(crate) networking: Networking,
        "Metadata" => pub(crate) metadata: Metadata,
        "LoadBalancer" => pub(crate) load_balancer: LoadBalancer,
        "LoadBalancerClass" => pub(crate) load_balancer_class: BTreeMap<String, LoadBalancerClass>,
        "Route" => pub(crate) route: Route,
        "Quota" => pub(crate) quota: Quotas,
    }
    ignored: ["BlockStorage"]
}
