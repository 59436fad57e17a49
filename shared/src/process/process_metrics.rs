//! What every program shows of itself: which version runs, and what its process takes of the machine, under the names that
//! Prometheus' own client libraries use.

use std::fs;
use std::sync::{Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, Opts, Registry};
use rustix::param::{clock_ticks_per_second, page_size};

use super::metric_families::MetricFamilies;
use super::open_files;

/// Registers the families.
///
/// # Errors
/// They were registered there before.
pub fn register(registry: &Registry) -> prometheus::Result<()> {
    let build = MetricFamilies(registry).gauges(
        "weir_build_info",
        "1, with the version of the program that runs as a label.",
        &["version"],
    )?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(Process::new()?))
}

/// Looked up when somebody collects the metrics.
struct Process {
    cpu_seconds: Counter,
    resident_bytes: Gauge,
    virtual_bytes: Gauge,
    threads: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    start_time: Gauge,
    /// Two who look at once would both add what the processors have spent since the last time.
    looking: Mutex<()>,
}

/// What `/proc/self/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// In ticks of the clock, of the user and of the system.
    cpu: u64,
    threads: u64,
    /// In ticks of the clock since the machine started.
    started: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Process {
    fn new() -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| Gauge::with_opts(Opts::new(name, help));
        Ok(Self {
            cpu_seconds: Counter::new(
                "process_cpu_seconds_total",
                "Seconds that the process has spent on processors.",
            )?,
            resident_bytes: gauge("process_resident_memory_bytes", "Bytes of memory that the process has.")?,
            virtual_bytes: gauge("process_virtual_memory_bytes", "Bytes of addresses that the process has set aside.")?,
            threads: gauge("process_threads", "Threads of the process.")?,
            open_fds: gauge("process_open_fds", "Files and sockets that the process has open.")?,
            max_fds: gauge("process_max_fds", "Files and sockets that the process may have open.")?,
            start_time: gauge("process_start_time_seconds", "When the process started, in Unix seconds.")?,
            looking: Mutex::default(),
        })
    }

    fn all(&self) -> [&dyn Collector; 7] {
        let Self { cpu_seconds, resident_bytes, virtual_bytes, threads, open_fds, max_fds, start_time, looking: _ } =
            self;
        [cpu_seconds, resident_bytes, virtual_bytes, threads, open_fds, max_fds, start_time]
    }

    /// What cannot be looked up stays as it was.
    #[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
    fn look(&self) {
        let ticks = clock_ticks_per_second() as f64;
        if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::parse) {
            self.cpu_seconds.inc_by((stat.cpu as f64 / ticks - self.cpu_seconds.get()).max(0.0));
            self.threads.set(stat.threads as f64);
            self.virtual_bytes.set(stat.virtual_bytes as f64);
            self.resident_bytes.set((stat.resident_pages * page_size() as u64) as f64);
            if let Some(booted) = fs::read_to_string("/proc/stat").ok().as_deref().and_then(booted) {
                self.start_time.set(booted as f64 + stat.started as f64 / ticks);
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            self.open_fds.set(open.count() as f64);
        }
        self.max_fds.set(open_files::limit().map_or(f64::INFINITY, |limit| limit as f64));
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        self.look();
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}

impl Stat {
    /// proc(5). The program's name is in parentheses, and may hold anything.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // Counted from 1 there; the third comes first here.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu: field(14)?.checked_add(field(15)?)?,
            threads: field(20)?,
            started: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// When the machine started, in Unix seconds.
fn booted(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_described_whatever_it_is_called() {
        let text = "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 15 16 9 18 1000 4096000 77 20 21";
        let expected = Stat { cpu: 300, threads: 9, started: 1000, virtual_bytes: 4_096_000, resident_pages: 77 };
        assert_eq!(Stat::parse(text), Some(expected));
        for cut in 0..text.len() - 6 {
            assert!(Stat::parse(&text[..cut]).is_none_or(|stat| stat.resident_pages < 77), "{cut}");
        }
        assert_eq!(booted("cpu 1 2\nbtime 1700000000\nx 1\n"), Some(1_700_000_000));
    }

    #[test]
    fn this_process_is_shown_as_it_is() {
        let registry = Registry::new();
        register(&registry).unwrap();
        let shown = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let value = |name: &str| -> f64 {
            let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} in {shown}")).parse().unwrap()
        };
        assert_eq!(value(concat!("weir_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}")), 1.0);
        assert!(value("process_resident_memory_bytes") > 1e6 && value("process_threads") >= 1.0);
        assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") >= value("process_open_fds"));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-5.0..86_400.0).contains(&age), "{age}");
    }
}
