//! What the program builds on moto for the Services of `aws/cases` against what the upstream program built for them; and
//! whether each leaves alone what the other has built.
// What was compared is printed for whoever runs them by hand.
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

/// Accounts side by side: most of the time is spent waiting.
const LANES: usize = 4;
/// Upstream refused the Services of the first two. The third was recorded on an emulator that did not keep the protocol to
/// instances, so that what was recorded is not what upstream asked for.
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
async fn services_look_as_upstream_makes_them() {
    run::compare("moto", LANES, cases(), account).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_look_so_with_the_rights_of_upstream() {
    run::compare("restricted", LANES, cases(), restricted_account).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_upstream_built_is_left_alone() {
    run::take_over(cases(), &WITHOUT, account).await;
}
