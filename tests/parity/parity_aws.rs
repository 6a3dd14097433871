//! Compares the objects of this program on moto for the Services of `aws/cases` with those of the upstream program. Also checks
//! that neither program changes the objects of the other.
// The tests print their results for manual runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]

mod aws;
mod cases;
mod compare;
mod play;
mod run;
mod site;
mod takeover;

use anyhow::Result;
use aws::AwsSite;
use cases::Case;

/// Accounts at the same time, because the tests mostly wait.
const LANES: usize = 4;
/// Upstream refused the Services of the first two. The third was recorded on an emulator that did not keep the protocol to
/// instances, so that the recording differs from upstream's request.
const WITHOUT: [&str; 3] = ["nlb-udp-and-tcp", "nlb-bad-values", "classic-https"];

fn cases() -> Vec<Case> {
    cases::cases("aws").unwrap()
}

async fn account(_: String) -> Result<AwsSite> {
    AwsSite::start().await
}

async fn restricted_account(name: String) -> Result<AwsSite> {
    let site = account(name).await?;
    site.restrict()?;
    Ok(site)
}

#[tokio::test(flavor = "multi_thread")]
async fn services_equal_those_of_upstream() {
    run::compare("moto", LANES, cases(), account).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_equal_those_of_upstream_with_its_rights() {
    run::compare("restricted", LANES, cases(), restricted_account).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_upstream_stay_unchanged() {
    run::take_over(cases(), &WITHOUT, account).await;
}
