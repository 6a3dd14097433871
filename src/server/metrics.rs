//! `/metrics`: one registry for the whole program, and the metrics of the process itself.

use std::{
    fmt::{self, Write},
    pin::Pin,
    sync::Arc,
};

use ccm_core::controllers::ControllerMetrics;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text::encode},
    metrics::{
        counter::ConstCounter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        info::Info,
    },
    registry::Registry,
};

use crate::{COMMIT, api::ApiRequests, metrics::register};

/// A format of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    /// The text format of Prometheus, which is older.
    PlainText,
}

impl Format {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::PlainText => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Metrics in this format, from their form in OpenMetrics.
    pub(super) fn convert(self, metrics: String) -> Result<String, fmt::Error> {
        if self == Self::OpenMetrics {
            return Ok(metrics);
        }
        let mut text = String::with_capacity(metrics.len());
        let mut help = None;
        for line in metrics.lines() {
            let mut words = line.splitn(4, ' ');
            match [(); 4].map(|()| words.next()) {
                [Some("#"), Some("HELP"), _, meaning] => help = meaning,
                [Some("#"), Some("TYPE"), Some(family), Some(kind)] => {
                    // A family has the name of its samples here.
                    let (suffix, kind) = match kind {
                        "counter" => ("_total", kind),
                        "info" => ("_info", "gauge"),
                        "unknown" => ("", "untyped"),
                        _ => ("", kind),
                    };
                    if let Some(help) = help.take() {
                        writeln!(text, "# HELP {family}{suffix} {help}")?;
                    }
                    writeln!(text, "# TYPE {family}{suffix} {kind}")?;
                }
                // Units and the end have no line of their own.
                [Some("#"), ..] => {}
                _ => writeln!(text, "{line}")?,
            }
        }
        Ok(text)
    }
}

/// The metrics of the whole program. Clones share them.
///
/// The server is up before most of the program exists, so that metrics may be added at any time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    shared: ControllerMetrics,
    api_requests: ApiRequests,
    running: Family<[(&'static str, &'static str); 2], Gauge>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BuildLabels {
    version: String,
    commit: &'static str,
    providers: String,
}

/// The label names are those of Kubernetes; labels without a meaning here are empty.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KubernetesBuild {
    major: String,
    minor: String,
    git_version: String,
    git_commit: &'static str,
    git_tree_state: &'static str,
    build_date: &'static str,
    go_version: &'static str,
    compiler: &'static str,
    platform: String,
}

impl KubernetesBuild {
    fn of(version: &str) -> Self {
        let mut numbers = version.split('.').map(str::to_owned);
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            major: numbers.next().unwrap_or_default(),
            minor: numbers.next().unwrap_or_default(),
            git_version: format!("v{version}"),
            git_commit: COMMIT.unwrap_or_default(),
            git_tree_state: "",
            build_date: "",
            go_version: "",
            compiler: "rustc",
            platform: format!("{}/{architecture}", std::env::consts::OS),
        }
    }
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
            let labels = BuildLabels {
                version: version.to_owned(),
                commit: COMMIT.unwrap_or_default(),
                providers: providers.join(","),
            };
            registry.register("ccm_build", "what this binary is", Info::new(labels));
            let build = KubernetesBuild::of(version);
            let builds = Family::<KubernetesBuild, Gauge>::default();
            builds.get_or_create(&build).set(1);
            register(registry, "kubernetes_build_info", builds);
            registry.register_collector(Box::new(ProcessCollector));
            metrics.0.shared.queues().register(registry);
            metrics.0.api_requests.register(registry);
            register(registry, "running_managed_controllers", metrics.0.running.clone());
        });
        for name in controllers {
            metrics.runs(name, false);
        }
        metrics
    }

    /// Registers metrics.
    pub(crate) fn with<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        self.0.shared.with(register)
    }

    /// The metrics for controllers.
    pub(crate) fn of_controllers(&self) -> &ControllerMetrics {
        &self.0.shared
    }

    /// The metrics for clients of the API server.
    pub(crate) fn api_requests(&self) -> &ApiRequests {
        &self.0.api_requests
    }

    /// Runs a controller, which counts as running meanwhile.
    pub(crate) fn running<'a>(
        &self,
        name: &'static str,
        run: impl Future<Output = ()> + Send + 'a,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let metrics = self.clone();
        Box::pin(async move {
            metrics.runs(name, true);
            run.await;
            metrics.runs(name, false);
        })
    }

    fn runs(&self, name: &'static str, runs: bool) {
        self.0
            .running
            .get_or_create(&[("name", name), ("manager", "cloud-controller-manager")])
            .set(i64::from(runs));
    }

    /// All samples except those of histograms, for the status page.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let text = self.render().unwrap_or_default();
        text.lines().filter_map(Sample::parse).collect()
    }

    /// All metrics as text.
    pub(super) fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        self.0.shared.read(|registry| encode(&mut text, registry))?;
        Ok(text)
    }
}

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) name: String,
    /// `name="value"`, separated by commas.
    pub(super) labels: String,
    pub(super) value: f64,
}

impl Sample {
    fn parse(line: &str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (series, ""),
        };
        if name.ends_with("_bucket") {
            return None;
        }
        Some(Self {
            name: name.to_owned(),
            labels: labels.to_owned(),
            value: value.parse().ok()?,
        })
    }
}

/// Reads `/proc` at each scrape. Unreadable values (on other systems than Linux, for one) are left out.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name: &str, help: &str, value: Option<f64>| -> fmt::Result {
            let Some(value) = value else { return Ok(()) };
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        let stat = process::Stat::read();
        gauge(
            "process_resident_memory_bytes",
            "Resident memory size in bytes",
            process::resident_bytes(),
        )?;
        gauge(
            "process_open_fds",
            "Number of open file descriptors",
            process::open_fds(),
        )?;
        gauge(
            "process_max_fds",
            "Maximum number of open file descriptors",
            process::max_fds(),
        )?;
        gauge(
            "process_virtual_memory_bytes",
            "Virtual memory size in bytes",
            process::virtual_bytes(),
        )?;
        gauge(
            "process_start_time_seconds",
            "Start time of the process since the Unix epoch in seconds",
            stat.as_ref().and_then(process::Stat::start_seconds),
        )?;
        if let Some(stat) = stat {
            let metric = ConstCounter::new(stat.cpu_seconds);
            metric.encode(encoder.encode_descriptor(
                // The format appends `_total`.
                "process_cpu_seconds",
                "Total user and system CPU time spent in seconds",
                None,
                metric.metric_type(),
            )?)?;
        }
        Ok(())
    }
}

/// The process in `/proc`.
mod process {
    use std::fs;

    /// Ticks a second in `/proc`. The kernel shows 100 on every platform that Rust has.
    const TICKS: f64 = 100.0;

    pub(super) struct Stat {
        pub(super) cpu_seconds: f64,
        start_after_boot: f64,
    }

    impl Stat {
        pub(super) fn read() -> Option<Self> {
            Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
        }

        pub(super) fn parse(stat: &str) -> Option<Self> {
            // The second field is the program's name in parentheses, which may hold anything; the third follows it.
            let (_, rest) = stat.rsplit_once(") ")?;
            let fields: Vec<_> = rest.split_ascii_whitespace().collect();
            let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
            Some(Self {
                cpu_seconds: (ticks(14)? + ticks(15)?) / TICKS,
                start_after_boot: ticks(22)? / TICKS,
            })
        }

        pub(super) fn start_seconds(&self) -> Option<f64> {
            let stat = fs::read_to_string("/proc/stat").ok()?;
            let boot: f64 = stat
                .lines()
                .find_map(|line| line.strip_prefix("btime "))?
                .trim()
                .parse()
                .ok()?;
            Some(boot + self.start_after_boot)
        }
    }

    pub(super) fn resident_bytes() -> Option<f64> {
        bytes("VmRSS:")
    }

    pub(super) fn virtual_bytes() -> Option<f64> {
        bytes("VmSize:")
    }

    /// `None` if there is no limit.
    pub(super) fn max_fds() -> Option<f64> {
        let limits = fs::read_to_string("/proc/self/limits").ok()?;
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    }

    fn bytes(field: &str) -> Option<f64> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024.0)
    }

    pub(super) fn open_fds() -> Option<f64> {
        // The listing itself holds one open.
        let count = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
        u32::try_from(count).ok().map(f64::from)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_program_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let numbers: Vec<_> = (4..=52).map(|field: u32| field.to_string()).collect();
        let stat = format!("1 (a) b (c) S {}", numbers.join(" "));
        let stat = process::Stat::parse(&stat).unwrap();
        assert!((stat.cpu_seconds - 0.29).abs() < 1e-9, "{}", stat.cpu_seconds);
        assert!(process::Stat::parse("1 (x) S 1 2").is_none());
    }

    #[test]
    fn the_build_and_its_providers_are_told() {
        let text = Metrics::new("1.2.3", &["acme", "zeta"], []).render().unwrap();
        assert!(
            text.contains("ccm_build_info{version=\"1.2.3\",commit=\"\",providers=\"acme,zeta\"} 1\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn the_older_format_names_families_like_their_samples() {
        let metrics = "# HELP a_build What it is.\n# TYPE a_build info\na_build_info{v=\"1 2\"} 1\n\
                       # HELP b_bytes Size.\n# TYPE b_bytes gauge\n# UNIT b_bytes bytes\nb_bytes 2.5\n\
                       # HELP c Calls.\n# TYPE c counter\nc_total 3\n# TYPE d unknown\nd 4\n# EOF\n";
        let text = "# HELP a_build_info What it is.\n# TYPE a_build_info gauge\na_build_info{v=\"1 2\"} 1\n\
                    # HELP b_bytes Size.\n# TYPE b_bytes gauge\nb_bytes 2.5\n\
                    # HELP c_total Calls.\n# TYPE c_total counter\nc_total 3\n# TYPE d untyped\nd 4\n";
        assert_eq!(Format::PlainText.convert(metrics.to_owned()).unwrap(), text);
        assert_eq!(Format::OpenMetrics.convert(metrics.to_owned()).unwrap(), metrics);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_is_measured() {
        let text = Metrics::new("1.2.3", &[], []).render().unwrap();
        let value = |name: &str| -> f64 {
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("{name} ")))
                .expect(name);
            line.rsplit_once(' ').unwrap().1.parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0, "{text}");
        assert!(value("process_start_time_seconds") > 1_500_000_000.0, "{text}");
        assert!(value("process_open_fds") >= 3.0, "{text}");
        assert!(value("process_max_fds") > value("process_open_fds"), "{text}");
        assert!(
            value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"),
            "{text}"
        );
        assert!(value("process_cpu_seconds_total") >= 0.0, "{text}");
    }
}
