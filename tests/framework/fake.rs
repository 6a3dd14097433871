//! The provider `fake`, whose clouds are in memory, and the program with it in this process.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use ccm_core::{
    BuildContext, Cloud, Result, register_provider,
    testkit::{FakeBalancers, FakeCloud},
};
use ccm_testbed::{controlplane::ControlPlane, in_process::InProcess, observe};
use cloud_controller_manager::options::{self, Config, Request};

/// A cloud in memory.
#[derive(Clone, Default)]
pub(crate) struct Fake {
    pub(crate) machines: FakeCloud,
    pub(crate) balancers: Option<FakeBalancers>,
}

/// The clouds of this test process, by the name of the cluster that uses them.
static CLOUDS: LazyLock<Mutex<BTreeMap<String, Fake>>> = LazyLock::new(Mutex::default);

async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
    let mut clouds = CLOUDS.lock().unwrap();
    let Fake { machines, balancers } = clouds.entry(context.cluster_name).or_default();
    Ok(Arc::new(match balancers {
        Some(balancers) => machines.with_balancers(balancers, context.plan),
        None => machines.clone(),
    }))
}

register_provider! { name: "fake", summary: "A cloud in memory", build: build }

/// The configuration with these flags.
pub(crate) fn config(flags: &[String]) -> Config {
    let words = [&["--cloud-provider=fake".to_owned()], flags].concat();
    let providers = cloud_controller_manager::providers::registered().unwrap();
    let request = options::parse(words.into_iter().map(Into::into), &providers).unwrap();
    let Request::Run(config) = request else {
        panic!("not a request to run")
    };
    *config
}

/// Starts the program for this cluster. `change` can override its configuration.
pub(crate) fn start(
    control_plane: &ControlPlane,
    cluster: &str,
    cloud: &Fake,
    flags: &[&str],
    change: impl FnOnce(&mut Config),
) -> InProcess {
    // The log is shown when a test fails.
    let _ = tracing_subscriber::fmt()
        .with_test_writer()
        .with_ansi(false)
        .with_env_filter("info,cloud_controller_manager=debug")
        .try_init();
    CLOUDS.lock().unwrap().insert(cluster.to_owned(), cloud.clone());
    let mut words = vec![
        format!("--cluster-name={cluster}"),
        format!("--kubeconfig={}", control_plane.kubeconfig().display()),
        "--secure-port=0".to_owned(),
    ];
    words.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let mut config = config(&words);
    change(&mut config);
    InProcess::start(cloud_controller_manager::run(config)).unwrap()
}

/// Waits until the check returns a value.
pub(crate) async fn eventually<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    eventually_within(Duration::from_secs(120), what, check).await
}

/// The same with another limit.
pub(crate) async fn eventually_within<T>(
    limit: Duration,
    what: &str,
    check: impl AsyncFn() -> Option<T>,
) -> T {
    let found = observe::eventually(limit, check).await;
    found.unwrap_or_else(|| panic!("not within {limit:?}: {what}"))
}
