//! `/metrics`: one registry for the whole program, and the metrics of the process itself.

use std::{fmt, fs};

use ccm_core::controllers::{ControllerMetrics, metrics_text};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        counter::ConstCounter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        info::Info,
    },
    registry::Registry,
};

use crate::{
    COMMIT,
    metrics::{Labels, meaning, register},
};

/// The metrics of the whole program. Clones share them.
///
/// The server is up before most of the program exists, so that metrics may be added at any time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    shared: ControllerMetrics,
    running: Family<Labels<2>, Gauge>,
}

/// The build of this binary, in the labels of Kubernetes. Labels without a meaning here are empty.
fn kubernetes_build(version: &str) -> [(&'static str, String); 9] {
    let mut numbers = version.split('.').map(str::to_owned);
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    [
        ("major", numbers.next().unwrap_or_default()),
        ("minor", numbers.next().unwrap_or_default()),
        ("git_version", format!("v{version}")),
        ("git_commit", COMMIT.unwrap_or_default().to_owned()),
        ("git_tree_state", String::new()),
        ("build_date", String::new()),
        ("go_version", String::new()),
        ("compiler", "rustc".to_owned()),
        ("platform", format!("{}/{architecture}", std::env::consts::OS)),
    ]
}

impl Metrics {
    /// A registry with the metrics of the build and of the process. `controllers`: the short names of those that may run.
    pub(crate) fn new(
        version: &str,
        providers: &[&str],
        controllers: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        let metrics = Self::default();
        metrics.with(|registry| {
            let labels = [
                ("version", version.to_owned()),
                ("commit", COMMIT.unwrap_or_default().to_owned()),
                ("providers", providers.join(",")),
            ];
            registry.register("ccm_build", "the build of this binary", Info::new(labels));
            let builds = Family::<[(&'static str, String); 9], Gauge>::default();
            builds.get_or_create(&kubernetes_build(version)).set(1);
            register(registry, "kubernetes_build_info", builds);
            registry.register_collector(Box::new(ProcessCollector));
            metrics.shared.queues().register(registry);
            register(registry, "running_managed_controllers", metrics.running.clone());
        });
        for name in controllers {
            metrics.runs(name, false);
        }
        metrics
    }

    /// Registers metrics.
    pub(crate) fn with<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        self.shared.with(register)
    }

    /// The metrics for controllers.
    pub(crate) fn of_controllers(&self) -> &ControllerMetrics {
        &self.shared
    }

    /// Runs a controller, which counts as running meanwhile.
    pub(crate) async fn running(self, name: &'static str, run: impl Future<Output = ()>) {
        self.runs(name, true);
        run.await;
        self.runs(name, false);
    }

    fn runs(&self, name: &'static str, runs: bool) {
        self.running
            .get_or_create(&[("name", name), ("manager", "cloud-controller-manager")])
            .set(i64::from(runs));
    }

    /// All metrics as text.
    pub(super) fn render(&self) -> Result<String, fmt::Error> {
        self.shared.read(metrics_text::render)
    }
}

/// Reads `/proc` at each scrape. Unreadable values, as on other systems than Linux, are left out.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let (cpu, start) = stat.as_deref().and_then(times).unzip();
        let boot = number("stat", "btime ");
        let kilobytes = |name: &str| number("self/status", name).map(|kilobytes| kilobytes * 1024.0);
        let mut gauge = |name: &str, value: Option<f64>| {
            let Some(metric) = value.map(ConstGauge::new) else {
                return Ok(());
            };
            let help = meaning(name).unwrap_or_default();
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        gauge("process_resident_memory_bytes", kilobytes("VmRSS:"))?;
        gauge("process_open_fds", open_files())?;
        gauge("process_max_fds", number("self/limits", "Max open files"))?;
        gauge("process_virtual_memory_bytes", kilobytes("VmSize:"))?;
        let start = boot.zip(start).map(|(boot, start)| boot + start);
        gauge("process_start_time_seconds", start)?;
        if let Some(metric) = cpu.map(ConstCounter::new) {
            let help = meaning("process_cpu_seconds_total").unwrap_or_default();
            // The format appends `_total`.
            let cpu = encoder.encode_descriptor("process_cpu_seconds", help, None, metric.metric_type())?;
            metric.encode(cpu)?;
        }
        Ok(())
    }
}

/// The number after this text at the begin of a line, in a file below `/proc`. `None` also if it is not a number, such as
/// `unlimited`.
fn number(file: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{file}")).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// The CPU time of the process, and the time between boot and its start, in seconds, from `/proc/self/stat`.
fn times(stat: &str) -> Option<(f64, f64)> {
    /// Ticks a second in `/proc`. The kernel shows 100 on every platform that Rust has.
    const TICKS: f64 = 100.0;
    // The second field is the program's name in parentheses, which may contain anything; the third follows it.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = rest.split_ascii_whitespace().collect();
    let seconds = |field: usize| Some(fields.get(field - 3)?.parse::<f64>().ok()? / TICKS);
    Some((seconds(14)? + seconds(15)?, seconds(22)?))
}

fn open_files() -> Option<f64> {
    // The listing itself is an open file.
    let count = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    u32::try_from(count).ok().map(f64::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_program_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let numbers: Vec<_> = (4..=52).map(|field: u32| field.to_string()).collect();
        let stat = format!("1 (a) b (c) S {}", numbers.join(" "));
        let (cpu, start) = times(&stat).unwrap();
        assert!((cpu - 0.29).abs() < 1e-9 && (start - 0.22).abs() < 1e-9, "{cpu} {start}");
        assert!(times("1 (x) S 1 2").is_none());
    }

    #[test]
    fn the_build_and_its_providers_are_named() {
        let text = Metrics::new("1.2.3", &["acme", "zeta"], []).render().unwrap();
        assert!(
            text.contains("ccm_build_info{version=\"1.2.3\",commit=\"\",providers=\"acme,zeta\"} 1\n"),
            "{text}"
        );
        assert!(text.contains("# TYPE ccm_build_info gauge\n"), "{text}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_is_measured() {
        let text = Metrics::new("1.2.3", &[], []).render().unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name);
            line.rsplit_once(' ').unwrap().1.parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0, "{text}");
        assert!(value("process_start_time_seconds") > 1_500_000_000.0, "{text}");
        assert!(value("process_open_fds") >= 3.0, "{text}");
        assert!(value("process_max_fds") > value("process_open_fds"), "{text}");
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"), "{text}");
        assert!(value("process_cpu_seconds_total") >= 0.0, "{text}");
    }
}
