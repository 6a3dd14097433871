//! What is wrong with config, cloud and Services, found without running: the provider's part of `validate`.
//!
//! | Module | Question |
//! |---|---|
//! | [`inspect`] | none: the check itself |
//! | [`rights`] | are the credentials good, which services are there, what may be read |
//! | [`places`] | is there what the config names: networks, subnets, router, flavor, zone, provider, certificate |
//! | [`quotas`] | how much is left of what load balancers are made of |
//! | [`service`] | what does a Service ask for, by the rules of load balancers; reads nothing |
//!
//! All requests are reads, each of them one that the program makes too, or of one small thing.

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

/// Reads the config, to look over what it leads to.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn checker(context: &BuildContext) -> CheckerResult {
    let loaded = config::load(context, &mut ConfigFiles::default())?;
    Ok(Box::new(Inspector {
        context: context.clone(),
        loaded,
        can: OnceLock::new(),
    }))
}

/// Looks over one config and what it leads to.
struct Inspector {
    context: BuildContext,
    loaded: Parsed<Config>,
    /// What load balancers can be asked for; not set as long as Octavia was not asked.
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
                    findings: vec![rights::no_entry(keys, &error)],
                    left_out: vec!["The cloud: without a token there is nothing to ask.".to_owned()],
                    ..CloudReport::default()
                };
            }
        };
        let mut check = CloudCheck::new(keys, settings, api, &self.context.metrics);
        check.compute().await;
        let network = check.network().await;
        let version = check.load_balancing().await;
        if let Some(version) = version {
            // It is only set here, and this is called once.
            let _ = self.can.set(self.capabilities(version));
        }
        check
            .places(network, version.map(|version| self.capabilities(version)))
            .await;
        check.quotas(network, version.is_some()).await;
        check.into_report()
    }

    fn service(&self, service: &ServiceView) -> Option<Vec<ServiceFinding>> {
        // An Octavia that was not asked is taken for one that can everything.
        let can = self.can.get().copied();
        let can = can.unwrap_or_else(|| self.capabilities(Version(u32::MAX)));
        Some(service::findings(
            &self.loaded.value.settings.load_balancing,
            can,
            service,
        ))
    }
}

impl Inspector {
    fn capabilities(&self, version: Version) -> Capabilities {
        Capabilities::of(
            version,
            &self.loaded.value.settings.load_balancing.conf.lb_provider,
        )
    }
}
