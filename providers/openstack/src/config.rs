//! The config file, `cloud.conf`: its keys, and the settings that follow from them.
//!
//! Every key of the Go cloud-controller-manager is accepted with the same type, so that its config files work unchanged. The
//! documentation of the fields is the users' reference.

mod changes;
mod clouds_yaml;
mod credentials;
pub(crate) mod keys;
#[cfg(test)]
mod tests;

use std::time::Duration;

use ccm_core::{
    BuildContext, Environment,
    client::rest::{Tls, client_identity, root_certificates},
    config::{self, ConfigFiles, LoadError, Parsed, Problems},
};

use self::credentials::Given;
pub(crate) use self::{changes::is_live, keys::CloudConf};
use crate::{
    client::{Connection, Quotas, catalog::Interface},
    instances::{InstanceSettings, Networking, parse_sort_order},
    load_balancer::settings::LoadBalancing,
    routes::RouteSettings,
};

/// The checked settings of the provider, independent of the form of the file.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The connection to the cloud.
    pub(crate) connection: Connection,
    /// `request-timeout`: for each attempt of a call.
    pub(crate) request_timeout: Duration,
    /// The settings of nodes.
    pub(crate) instances: InstanceSettings,
    /// The limits on calls of the services.
    pub(crate) quotas: Quotas,
    /// The settings of load balancers.
    pub(crate) load_balancing: LoadBalancing,
    /// The settings of routes to the nodes' Pods.
    pub(crate) routes: RouteSettings,
}

/// The config at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The settings.
    pub(crate) settings: Settings,
    /// The content of the file, for comparison with a later one.
    conf: CloudConf,
    /// The values of `[Global]` from file and `clouds.yaml`.
    given: Given,
}

/// Reads and checks the config file and the files that it names. Sends no request to the cloud.
///
/// # Errors
///
/// All problems, with line numbers.
pub(crate) fn load(context: &BuildContext, files: &mut ConfigFiles) -> Result<Parsed<Config>, LoadError> {
    let path = context.cloud_config.as_deref();
    config::load("OpenStack", path, files, |conf, files, problems| {
        settle(conf, &context.environment, files, problems)
    })
}

/// Turns the keys into settings.
fn settle(
    conf: &CloudConf,
    env: &Environment,
    files: &mut ConfigFiles,
    problems: &mut Problems,
) -> Option<Config> {
    let mut given = Given::from_global(&conf.global);
    let mut is_complete = true;
    if conf.global.use_clouds || !conf.global.cloud.is_empty() {
        let (file, cloud) = (&conf.global.clouds_file, &conf.global.cloud);
        match clouds_yaml::entry(file, cloud, env, files, problems) {
            Some(entry) => given = given.or(entry),
            None => is_complete = false,
        }
    }
    let credentials = is_complete.then(|| credentials::resolve(&given, problems));
    let interface = match given.endpoint_type.as_deref() {
        None => Some(Interface::default()),
        Some(text) => {
            let interface = Interface::parse(text);
            if interface.is_none() {
                let what = format!("invalid availability {text:?}; write public, internal or admin");
                problems.error(("Global", "os-endpoint-type"), what);
            }
            interface
        }
    };
    let tls = tls(&given, files, problems);
    conf.quota.check("Quota", problems);
    let load_balancing = LoadBalancing::of(&conf.load_balancer, &conf.load_balancer_class, env, problems);
    check_metadata(&conf.metadata.search_order, problems);
    let (sort_order, invalid) = parse_sort_order(&conf.networking.address_sort_order);
    for item in invalid {
        problems
            .warn(("Networking", "address-sort-order"), format!("{item:?} is not a CIDR and is left out"));
    }
    let internal = &conf.networking.internal_network_name;
    if internal.has_only_empty_names() {
        problems.warn(
            ("Networking", "internal-network-name"),
            "the Go cloud-controller-manager gives nodes no addresses with this value; new nodes get the addresses of all networks, and \
             nodes that have addresses keep them; remove the key, or write the network's name",
        );
    }
    let request_timeout = conf.metadata.request_timeout;
    if request_timeout.is_negative() {
        problems.error(("Metadata", "request-timeout"), "a timeout cannot be negative; write 60s");
    }
    let settings = Settings {
        connection: Connection {
            credentials: credentials.flatten()?,
            tls,
            region: given.region.clone(),
            interface: interface?,
        },
        // As in Go, zero is replaced by the default.
        request_timeout: Some(request_timeout.to_std())
            .filter(|timeout| !timeout.is_zero())
            .unwrap_or(Duration::from_secs(60)),
        instances: InstanceSettings {
            networking: Networking {
                ipv6_disabled: conf.networking.ipv6_support_disabled,
                public: conf.networking.public_network_name.names().to_vec(),
                internal: internal.names().to_vec(),
                has_only_empty_internal_names: internal.has_only_empty_names(),
                sort_order,
            },
            region: given.region.clone(),
            // The Go cloud-controller-manager compares the exact text, too.
            regional: env.var("OS_CCM_REGIONAL") == Some("true"),
        },
        quotas: conf.quota,
        load_balancing,
        routes: RouteSettings {
            routers: router_ids(&conf.route.router_id, problems),
            address_pairs: conf.route.allowed_address_pairs,
        },
    };
    Some(Config {
        settings,
        conf: conf.clone(),
        given,
    })
}

/// The distinct IDs of a list.
fn router_ids(list: &str, problems: &mut Problems) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    if list.is_empty() {
        return ids;
    }
    for id in list.split(',').map(str::trim) {
        if id.is_empty() {
            problems.warn(("Route", "router-id"), "an empty id in the list is left out; remove the comma");
        } else if !ids.iter().any(|known| known == id) {
            ids.push(id.to_owned());
        }
    }
    ids
}

/// Reads and checks the TLS material.
fn tls(given: &Given, files: &mut ConfigFiles, problems: &mut Problems) -> Tls {
    let mut tls = Tls::default();
    let mut read = |key: &str, path: &str, problems: &mut Problems| {
        let text = files.read(path);
        text.inspect_err(|error| {
            problems.error(("Global", key), format!("could not read {path:?}: {error}"));
        })
        .ok()
    };
    let (key, pem) = match (&given.ca_file, &given.ca_contents) {
        (Some(path), _) => ("ca-file", read("ca-file", path, problems)),
        (None, contents) => ("cafilecontents", contents.as_ref().map(|pem| pem.clone().into_bytes())),
    };
    if let Some(pem) = pem {
        match root_certificates(&pem) {
            Ok(_) => tls.roots = Some(pem),
            Err(what) => problems.error(("Global", key), format!("not a PEM bundle of certificates: {what}")),
        }
    }
    match (&given.cert_file, &given.key_file) {
        (Some(certificate), Some(key)) => {
            let certificate = read("cert-file", certificate, problems);
            let key = read("key-file", key, problems);
            if let (Some(certificate), Some(key)) = (certificate, key) {
                match client_identity(&certificate, &key) {
                    Ok(_) => tls.identity = Some((certificate, key)),
                    Err(what) => {
                        let what = format!("with key-file not a PEM certificate and its key: {what}");
                        problems.error(("Global", "cert-file"), what);
                    }
                }
            }
        }
        (Some(_), None) => problems.warn(("Global", "cert-file"), "not used without key-file"),
        (None, Some(_)) => problems.warn(("Global", "key-file"), "not used without cert-file"),
        (None, None) => {}
    }
    match given.tls_insecure.as_deref() {
        None | Some("false") => {}
        Some("true") => {
            problems.warn(("Global", "tls-insecure"), "the cloud's certificates are not verified");
            tls.insecure = true;
        }
        Some(other) => {
            let what = format!(
                "{other:?} has no effect, certificates are verified; only the text true switches it off"
            );
            problems.warn(("Global", "tls-insecure"), what);
        }
    }
    tls
}

/// The metadata service is not read, but a wrong value has always ended the program.
fn check_metadata(search_order: &str, problems: &mut Problems) {
    const KNOWN: [&str; 2] = ["configDrive", "metadataService"];
    let items: Vec<_> = search_order.split(',').map(str::trim).collect();
    let wrong = if search_order.is_empty() {
        return;
    } else if items.len() > KNOWN.len() {
        "too many items".to_owned()
    } else if let Some(item) = items.iter().find(|item| !KNOWN.contains(item)) {
        format!("invalid element {item:?}")
    } else {
        return;
    };
    let what = format!("{wrong}; one or two of {} separated by a comma", KNOWN.join(" and "));
    problems.error(("Metadata", "search-order"), what);
}
