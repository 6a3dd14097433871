//! Checks whether everything that the config names exists.

use ccm_core::{
    Error, ErrorKind, Priority, Result,
    check::{Severity, in_time},
    config::KeyPath,
};
use serde_json::Value;

use super::inspect::CloudCheck;
use crate::{
    client::{Op, catalog::Service},
    instances::records::Network,
    load_balancer::{
        features::{Capabilities, Feature},
        secrets::SecretRef,
        settings::LoadBalancerClass,
        subnets::SubnetFilter,
    },
};

/// The most alternatives that a fix names.
const CHOICES: usize = 5;

/// The keys that `[LoadBalancer]` and `[LoadBalancerClass]` share. Empty texts are unset.
struct Section<'a> {
    class: Option<&'a str>,
    keys: LoadBalancerClass,
}

impl<'a> Section<'a> {
    fn key(&self, key: &'a str) -> KeyPath<'a> {
        match self.class {
            Some(class) => ("LoadBalancerClass", class, key).into(),
            None => ("LoadBalancer", key).into(),
        }
    }
}

impl CloudCheck<'_> {
    /// Checks everything that the config names. `network`: whether Neutron answers. `can`: what load balancers support,
    /// if Octavia answers.
    pub(super) async fn places(&mut self, network: bool, can: Option<Capabilities>) {
        let before = self.seen.report.findings.len();
        if network {
            self.routers().await;
            self.networks_of_nodes().await;
            if self.settings.load_balancing.conf.enabled {
                self.sections().await;
            }
        }
        if let Some(can) = can {
            self.octavia_options(can).await;
        }
        if (network || can.is_some()) && self.seen.report.findings.len() == before {
            self.seen.report.pass("config", "everything that it names exists");
        }
    }

    async fn routers(&mut self) {
        for router in &self.settings.routes.routers {
            let path = ["routers", router];
            let found = self.read::<Value>(Op::RouterGet, Service::Network, &path).await;
            let message =
                format!("router {router:?} not found (it does not exist or belongs to another project)");
            let fix =
                "write the ids of the routers that connect the nodes' subnets, or nothing for no routes";
            self.seen.require(("Route", "router-id"), found, message, fix);
        }
    }

    /// Checks the networks whose names decide which addresses of nodes are public and internal.
    async fn networks_of_nodes(&mut self) {
        let networking = &self.settings.instances.networking;
        let public = networking.public.iter().map(|name| ("public-network-name", name));
        let internal = networking.internal.iter().map(|name| ("internal-network-name", name));
        // Collected, since an iterator cannot be used across `await`.
        let named: Vec<_> = public.chain(internal).collect();
        for (key, name) in named {
            let key = ("Networking", key);
            let query = [("name", name.as_str()), ("fields", "id")];
            match in_time(self.api.list::<Network>(&query, Priority::User)).await {
                Ok(networks) if networks.is_empty() => {
                    let message = format!("network {name:?} not found (it does not exist or is not visible)");
                    let fix = "correct the name if addresses of nodes are missing";
                    self.seen.add_finding(Severity::Warning, key, message, fix);
                }
                Ok(_) => {}
                Err(error) => self.seen.failed(key, &error),
            }
        }
    }

    async fn sections(&mut self) {
        let settings = &self.settings.load_balancing;
        let own = Section {
            class: None,
            keys: settings.conf.as_class(),
        };
        let classes = settings.classes.iter().map(|(name, class)| Section {
            class: Some(name),
            keys: class.clone(),
        });
        let default = self.default_network().await;
        let sections: Vec<_> = std::iter::once(own).chain(classes).collect();
        for section in sections {
            let external = match section.keys.floating_network_id.as_str() {
                "" => default.clone(),
                id => self.external_network(&section, id).await,
            };
            self.floating_subnets(&section, external.as_deref()).await;
            self.inner_networks(&section).await;
        }
    }

    /// The external network for sections that name none.
    async fn default_network(&mut self) -> Option<String> {
        let conf = &self.settings.load_balancing.conf;
        if !conf.floating_network_id.is_empty() {
            return Some(conf.floating_network_id.clone());
        }
        let key = ("LoadBalancer", "floating-network-id");
        let discovery = &self.reads.discovery;
        match in_time(discovery.default_external_network(Priority::User)).await {
            Ok(Some(network)) => return Some(network.id),
            Ok(None) if conf.internal_lb => {}
            Ok(None) => {
                let message = "not set, and no external network with a subnet is found: load balancers get no floating IP";
                let fix = "name a network, or write internal-lb = true if that is intended";
                self.seen.add_finding(Severity::Warning, key, message, fix);
            }
            Err(error) => self.seen.failed(key, &error),
        }
        None
    }

    /// The network that floating IPs come from. `None` if it is not an external network.
    async fn external_network(&mut self, section: &Section<'_>, id: &str) -> Option<String> {
        let key = section.key("floating-network-id");
        let message = match self.network_document(id).await {
            Ok(Some(found)) if found["network"]["router:external"] == true => return Some(id.to_owned()),
            Ok(Some(_)) => format!("network {id:?} is not external, it has no floating IPs"),
            Ok(None) => format!("network {id:?} not found (it does not exist or is not visible)"),
            Err(error) => {
                self.seen.failed(key, &error);
                return None;
            }
        };
        let networks = in_time(self.reads.discovery.external_networks(Priority::User)).await;
        let choices = networks.map(|networks| {
            let named: Vec<_> = networks
                .iter()
                .take(CHOICES)
                .map(|network| format!("{} ({})", network.id, network.name))
                .collect();
            named.join(", ")
        });
        let fix = match choices {
            Ok(choices) if !choices.is_empty() => {
                format!("write the id of an external network; available: {choices}")
            }
            _ => "write the id of an external network".to_owned(),
        };
        self.seen.add_finding(Severity::Error, key, message, fix);
        None
    }

    /// Checks the subnets that floating IPs come from.
    async fn floating_subnets(&mut self, section: &Section<'_>, external: Option<&str>) {
        if !section.keys.floating_subnet_id.is_empty() {
            let key = section.key("floating-subnet-id");
            match self.subnet_network(&section.keys.floating_subnet_id).await {
                Ok(Some(network)) if external.is_some_and(|external| external != network) => {
                    let message = format!(
                        "{} is a subnet of network {network}, not of the external network {}",
                        section.keys.floating_subnet_id,
                        external.unwrap_or_default()
                    );
                    let fix = "write a subnet of floating-network-id, or change floating-network-id";
                    self.seen.add_finding(Severity::Error, key, message, fix);
                }
                Ok(Some(_)) => {}
                // Subnets of external networks are often hidden, and can be used all the same.
                Ok(None) => {
                    let message = format!(
                        "subnet {:?} not found (it does not exist or is not visible)",
                        section.keys.floating_subnet_id
                    );
                    let fix = "ignore this if the subnet exists but is hidden; otherwise correct the id";
                    self.seen.add_finding(Severity::Warning, key, message, fix);
                }
                Err(error) => self.seen.failed(key, &error),
            }
        }
        if section.keys.floating_subnet.is_empty() && section.keys.floating_subnet_tags.is_empty() {
            return;
        }
        let name = if section.keys.floating_subnet.is_empty() {
            "floating-subnet-tags"
        } else {
            "floating-subnet"
        };
        let key = section.key(name);
        let filter =
            match SubnetFilter::parse(&section.keys.floating_subnet, &section.keys.floating_subnet_tags) {
                Ok(filter) => filter,
                Err(error) => {
                    let fix = "write a pattern such as public-* or ~public-[0-9]+";
                    self.seen.add_finding(Severity::Error, key, error.message(), fix);
                    return;
                }
            };
        let Some(external) = external else { return };
        let discovery = &self.reads.discovery;
        match in_time(discovery.subnets_of(external, Priority::User)).await {
            Ok(subnets) if !subnets.iter().any(|subnet| filter.takes(subnet)) => {
                let names: Vec<_> = subnets.iter().take(CHOICES).map(|subnet| subnet.name.as_str()).collect();
                let message = format!("no subnet of the external network {external} fits");
                let fix = format!("correct pattern or tags; visible subnets: {}", names.join(", "));
                self.seen.add_finding(Severity::Error, key, message, fix);
            }
            Ok(_) => {}
            Err(error) => self.seen.failed(key, &error),
        }
    }

    /// Checks the networks and subnets of virtual addresses and members.
    async fn inner_networks(&mut self, section: &Section<'_>) {
        if !section.keys.network_id.is_empty() {
            let found = self.network_document(&section.keys.network_id).await;
            let message = format!(
                "network {:?} not found (it does not exist or is not visible)",
                section.keys.network_id
            );
            let fix = "write the id of the network of the virtual addresses";
            self.seen.require(section.key("network-id"), found, message, fix);
        }
        for (name, id) in [
            ("subnet-id", &section.keys.subnet_id),
            ("member-subnet-id", &section.keys.member_subnet_id),
        ] {
            if id.is_empty() {
                continue;
            }
            let key = section.key(name);
            let found = self.subnet_network(id).await;
            let message = format!("subnet {id:?} not found (it does not exist or is not visible)");
            let fix = "write the id of a subnet, usually that of the nodes";
            let network = self.seen.require(key, found, message, fix);
            let other = network.filter(|network| {
                name == "subnet-id"
                    && !section.keys.network_id.is_empty()
                    && **network != section.keys.network_id
            });
            if let Some(network) = other {
                let message = format!(
                    "{id} is a subnet of network {network}, not of network-id {}",
                    section.keys.network_id
                );
                let fix = "write a subnet of that network, or leave network-id out";
                self.seen.add_finding(Severity::Error, key, message, fix);
            }
        }
    }

    async fn network_document(&self, id: &str) -> Result<Option<Value>> {
        self.read(Op::NetworkGet, Service::Network, &["networks", id]).await
    }

    /// The network of a subnet; `None` if no subnet with this ID is visible.
    async fn subnet_network(&self, id: &str) -> Result<Option<String>> {
        let subnet = in_time(self.reads.discovery.subnet(id, Priority::User)).await?;
        Ok(subnet.as_ref().as_ref().map(|subnet| subnet.network_id.clone()))
    }

    /// Checks flavor, availability zone, provider and certificate.
    async fn octavia_options(&mut self, can: Capabilities) {
        self.provider().await;
        let conf = &self.settings.load_balancing.conf;
        let (flavor, zone) = (conf.flavor_id.as_str(), conf.availability_zone.as_str());
        let spec = [
            ("flavor-id", flavor, Feature::Flavors),
            ("availability-zone", zone, Feature::AvailabilityZones),
        ];
        for (name, value, feature) in spec {
            if value.is_empty() {
                continue;
            }
            let key = ("LoadBalancer", name);
            if !can.has(feature) {
                let message =
                    format!("ignored: this Octavia, or its provider {}, does not have it", conf.lb_provider);
                self.seen.add_finding(Severity::Warning, key, message, "leave it out");
                continue;
            }
            let (op, path, one) = if feature == Feature::Flavors {
                (Op::LoadBalancerFlavorGet, "flavors", "flavor")
            } else {
                (Op::LoadBalancerZoneGet, "availabilityzones", "availability_zone")
            };
            let path = ["lbaas", path, value];
            let found = self.read::<Value>(op, Service::LoadBalancer, &path).await;
            let list = one.replace('_', "");
            let fix = format!("write one that `openstack loadbalancer {list} list` shows as enabled");
            let offer = self.seen.require(key, found, format!("Octavia has no {value:?}"), &*fix);
            if offer.is_some_and(|offer| offer[one]["enabled"] == false) {
                self.seen
                    .add_finding(Severity::Error, key, format!("{value:?} is disabled in Octavia"), fix);
            }
        }
        if let Err(error) = self.certificate().await {
            let key = ("LoadBalancer", "default-tls-container-ref");
            let fix = "write the reference of a container or secret of Barbican";
            self.seen.add_finding(Severity::of(error.kind()), key, error.report(), fix);
        }
    }

    async fn provider(&mut self) {
        let spec = &self.settings.load_balancing.conf.lb_provider;
        let key = ("LoadBalancer", "lb-provider");
        let path = ["lbaas", "providers"];
        let found = self.read::<Value>(Op::LoadBalancerProviders, Service::LoadBalancer, &path).await;
        match found {
            Ok(Some(document)) => {
                let all = document["providers"].as_array();
                let names: Vec<_> =
                    all.into_iter().flatten().filter_map(|known| known["name"].as_str()).collect();
                if !names.contains(&spec.as_str()) {
                    let message = format!("this Octavia has no provider {spec:?}");
                    let fix = format!("write one of: {}", names.join(", "));
                    self.seen.add_finding(Severity::Error, key, message, fix);
                }
            }
            // The provider may be usable even if the list of providers is hidden.
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let text = "Whether Octavia has the provider of lb-provider: its list may not be read.";
                self.seen.report.left_out.push(text.to_owned());
            }
            Err(error) => self.seen.failed(key, &error),
        }
    }

    /// # Errors
    /// If the certificate that Services have by default is not there.
    async fn certificate(&self) -> Result<()> {
        let conf = &self.settings.load_balancing.conf;
        if conf.default_tls_container_ref.is_empty() || conf.container_store != "barbican" {
            return Ok(());
        }
        let secret = SecretRef::parse(&conf.default_tls_container_ref)?;
        if in_time(self.reads.discovery.secret_exists(&secret, Priority::User)).await? {
            return Ok(());
        }
        let text = format!("Barbican has no {:?}", conf.default_tls_container_ref);
        Err(Error::new(ErrorKind::NotFound, text))
    }
}
