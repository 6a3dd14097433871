//! The checks of config, cloud and Services that need no running program: the provider's part of `validate`.
//!
//! | Module | Question |
//! |---|---|
//! | [`inspect`] | none: runs the checks |
//! | [`rights`] | are the credentials valid, which services exist, what can be read |
//! | [`places`] | does everything that the config names exist: networks, subnets, router, flavor, zone, provider, certificate |
//! | [`quotas`] | how much of each quota is left |
//! | [`service`] | what does a Service request, by the rules of load balancers; reads nothing |
//!
//! All requests are reads. The program sends each of them too, or each reads one small object.

mod inspect;
mod places;
mod quotas;
mod rights;
mod service;

use std::sync::OnceLock;

use ccm_core::{
    BuildContext, async_trait,
    check::{Checker, CloudReport, ConfigSource, Finding, ServiceFinding, in_time},
    config::{ConfigFiles, Parsed},
    load_balancer::ServiceView,
    registry::CheckerResult,
};

use self::inspect::CloudCheck;
use crate::{
    client::{Api, Gates, Generation},
    config::{self, Config},
    load_balancer::features::{Capabilities, Version},
};

/// Reads the config and returns its checker.
///
/// # Errors
/// All problems of the config.
pub(crate) fn checker(context: &BuildContext) -> CheckerResult {
    let loaded = config::load(context, &mut ConfigFiles::default())?;
    Ok(Box::new(Inspector {
        context: context.clone(),
        loaded,
        can: OnceLock::new(),
    }))
}

/// Checks one config and the cloud that it names.
struct Inspector {
    context: BuildContext,
    loaded: Parsed<Config>,
    /// The features of Octavia and its provider; empty until Octavia was read.
    can: OnceLock<Capabilities>,
}

#[async_trait]
impl Checker for Inspector {
    fn config(&self) -> Vec<Finding> {
        Finding::of_warnings(&self.loaded)
    }

    async fn cloud(&self) -> CloudReport {
        let settings = &self.loaded.value.settings;
        let keys = ConfigSource::of(&self.context, &self.loaded);
        let gates = Gates::new(settings.request_timeout, &settings.quotas, &self.context);
        let generation = Generation::default();
        let agent = &self.context.user_agent;
        let connection = settings.connection.clone();
        let api = in_time(Api::authenticate(connection, &gates, agent, &generation)).await;
        let api = match api {
            Ok(api) => api,
            Err(error) => {
                return CloudReport {
                    findings: vec![rights::authentication_failure(keys, &error)],
                    left_out: vec!["The cloud: no requests are possible without a token.".to_owned()],
                    ..CloudReport::default()
                };
            }
        };
        let mut check = CloudCheck::new(keys, settings, api, &self.context.metrics);
        check.compute().await;
        let network = check.network().await;
        let version = check.load_balancing().await;
        if let Some(version) = version {
            // This is the only place that sets it, and it runs once.
            let _ = self.can.set(self.capabilities(version));
        }
        check.places(network, version.map(|version| self.capabilities(version))).await;
        check.quotas(network, version.is_some()).await;
        check.into_report()
    }

    fn service(&self, service: &ServiceView) -> Option<Vec<ServiceFinding>> {
        // An Octavia that was not read counts as one that supports everything.
        let can = self.can.get().copied().unwrap_or_else(|| self.capabilities(Version(u32::MAX)));
        Some(service::findings(&self.loaded.value.settings.load_balancing, can, service))
    }
}

impl Inspector {
    fn capabilities(&self, version: Version) -> Capabilities {
        Capabilities::of(version, &self.loaded.value.settings.load_balancing.conf.lb_provider)
    }
}
