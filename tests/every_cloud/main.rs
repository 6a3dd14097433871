//! The whole program against a real kube-apiserver, on every cloud that is compiled in and has a test cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod installed;
mod ipam;
mod life;
mod rights;
mod sweep;

use std::{path::PathBuf, sync::Arc, time::Duration};

use ccm_testbed::{
    cache::say,
    test_cloud::{self, TestCloud},
};
use futures_util::future::join_all;

/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(120);

/// The program under test.
fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_cloud-controller-manager"))
}

/// Runs a test on each cloud, all at the same time.
async fn on_each(test: impl AsyncFn(Arc<dyn TestCloud>)) {
    let providers = cloud_controller_manager::providers::registered().unwrap();
    let mut clouds = Vec::new();
    for provider in providers {
        match test_cloud::start(provider.name).await.unwrap() {
            Some(cloud) => clouds.push(Arc::from(cloud)),
            None => say(format!("{} has no test cloud", provider.name)),
        }
    }
    assert!(!clouds.is_empty(), "no cloud is compiled in");
    join_all(clouds.into_iter().map(|cloud| test(cloud))).await;
}
