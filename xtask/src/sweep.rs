//! `cargo xtask sweep`: complete crash sweeps and fault storms. The tests run smaller ones.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use ccm_testbed::{
    cargo::{self, Build},
    scenarios::Kind,
    sweep::{Progress, Scenario, Selection, Storm, Sweep},
    test_cloud,
};
use clap::Args;

use crate::{print, say};

/// Time between two lines about the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time from a kill to the end.
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);

#[derive(Args, Debug)]
pub(crate) struct SweepOptions {
    /// The cloud.
    #[arg(long, default_value = "openstack")]
    cloud: String,
    /// Only these scenarios.
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<Kind>,
    /// Nodes that join, leave (of ten times as many) or change; 6, 3 and 3 unless given.
    #[arg(long)]
    nodes: Option<usize>,
    /// 100 nodes join, 10 of 100 leave, 100 change; Services with 100 nodes.
    #[arg(long, conflicts_with = "nodes")]
    full: bool,
    /// Only about this many points, spread evenly.
    #[arg(long)]
    points: Option<usize>,
    /// Storms instead of crashes.
    #[arg(long)]
    storms: bool,
    /// The seed of the first storm.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many storms, each with the next seed.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// This binary instead of a new debug build.
    #[arg(long)]
    program: Option<PathBuf>,
}

impl SweepOptions {
    fn nodes(&self, kind: Kind) -> usize {
        match (kind, self.full) {
            (Kind::Leave, true) => 10,
            (_, true) => 100,
            (Kind::Join, false) => self.nodes.unwrap_or(6),
            (_, false) => self.nodes.unwrap_or(3),
        }
    }
}

pub(crate) fn run(options: &SweepOptions) -> Result<()> {
    let program = cargo::program(options.program.as_ref(), &options.cloud, Build::Dev)?;
    let kinds = if options.scenario.is_empty() {
        &Kind::ALL[..]
    } else {
        &options.scenario
    };
    tokio::runtime::Runtime::new()?.block_on(async {
        let mut failed = Vec::new();
        for &kind in kinds {
            let nodes = options.nodes(kind);
            let scenario = match options.cloud.as_str() {
                "openstack" => kind.set(&program, nodes).await?,
                cloud => {
                    let started = test_cloud::start(cloud).await?;
                    let cloud = started.with_context(|| format!("{cloud} has no test cloud"))?;
                    kind.set_on(&program, Arc::from(cloud), nodes).await?
                }
            };
            let Some(scenario) = scenario else {
                say(&format!("{kind:?} is left out: the cloud does not support it"));
                continue;
            };
            let outcome = if options.storms {
                storms(options, &*scenario).await
            } else {
                crashes(options, &*scenario).await
            };
            if let Err(error) = outcome {
                print(&format!("{error:#}"));
                failed.push(scenario.name());
            }
        }
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    })
}

async fn crashes(options: &SweepOptions, scenario: &dyn Scenario) -> Result<()> {
    let mut sweep = Sweep {
        limit: RECOVERY_LIMIT,
        ..Sweep::default()
    };
    if let Some(points) = options.points {
        let calls = sweep.rehearse(scenario).await?;
        sweep.selection = Selection::about(points, calls.iter().sum::<usize>() * 3);
    }
    let name = scenario.name();
    let mut last = Instant::now();
    let report = sweep
        .run(scenario, |progress: &Progress| {
            if last.elapsed() < PROGRESS_INTERVAL && progress.done < progress.total {
                return;
            }
            last = Instant::now();
            say(&format!(
                "{name}: {} of {} points, {} failed, {:.0} s left",
                progress.done,
                progress.total,
                progress.failures,
                progress.left.as_secs_f64()
            ));
        })
        .await?;
    print(&report.to_string());
    report.verdict()
}

async fn storms(options: &SweepOptions, scenario: &dyn Scenario) -> Result<()> {
    let calm = Sweep::default().rehearse(scenario).await?;
    let mut failures = Vec::new();
    for seed in (options.seed..).take(usize::try_from(options.seeds)?) {
        let verdict = match Storm::new(seed).run(scenario, &calm).await {
            Ok(report) => {
                print(&report.to_string());
                report.verdict()
            }
            Err(error) => Err(error),
        };
        if let Err(error) = verdict {
            print(&format!("seed {seed} failed: {error:#}"));
            failures.push(seed.to_string());
        }
    }
    if !failures.is_empty() {
        bail!("failed with the seeds {}", failures.join(", "));
    }
    Ok(())
}
