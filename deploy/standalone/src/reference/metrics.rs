//! `metrics.md`: the families of each role, from the tables by which they are registered.

use weir_runtime::metric_families::Family;
use weir_runtime::process_metrics::{self, BuildMetrics};
use weir_runtime::serve::HttpMetrics;

use super::{compare, head, row};

const INTRODUCTION: &str = "# Metrics

Every role serves its metrics at `/metrics` of `admin_listen`, in the text format of Prometheus. A counter whose label values \
are all known shows them at 0 from the start. Dashboards and alerts: `deploy/grafana` and `deploy/prometheus`.
";

fn table(families: &[Family]) -> String {
    let rows = families.iter().map(|family| {
        let label = |(label, values): &(&str, &[&str])| match values {
            [] => format!("`{label}`"),
            values => format!("`{label}`: {}", values.join(", ")),
        };
        let labels = family.labels.iter().map(label).collect::<Vec<_>>().join("; ");
        row(&[&format!("`{}`", family.name), family.kind, &labels, family.help])
    });
    head(&["name", "type", "labels", "meaning"]) + &rows.collect::<String>()
}

#[test]
fn the_metrics_reference_matches_the_code() {
    let process = process_metrics::process_families();
    let process = process.iter().map(|(name, kind, help)| row(&[&format!("`{name}`"), kind, "", help]));
    let every = table(&[BuildMetrics::FAMILIES, &HttpMetrics::families()].concat());
    let mut page = format!(
        "{INTRODUCTION}\n## Every role\n\nThe label `listener` is `agents` or `admin` of an edge; `edge`, `operators` or `admin` \
         of an origin; `admin` of an agent.\n\n{every}{}",
        process.collect::<String>()
    );
    for (role, families) in
        [("Origin", weir_origin::families()), ("Edge", weir_edge::families()), ("Agent", weir_agent::families())]
    {
        page += &format!("\n## {role}\n\n{}", table(&families));
    }
    compare("metrics.md", &page);
}
