//! Probes origins that are down, so that an edge without requests notices when they are back.

use std::sync::Arc;
use std::time::Duration;

use weir_runtime::shutdown::Drain;

use super::Origins;

/// How often a probe is considered. The circuit breaker decides, and most checks cost nothing.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Probes each origin at the start, and later while its last request failed, until the drain begins.
pub(crate) fn start(origins: &Arc<Origins>, drain: &Drain) {
    for id in 0..origins.all().len() {
        let (origins, drain) = (origins.clone(), drain.clone());
        drain.clone().spawn(async move {
            loop {
                let origin = &origins.all()[id];
                let round = async {
                    if origin.needs_probe() {
                        origin.probe().await;
                    }
                    tokio::time::sleep(CHECK_INTERVAL).await;
                };
                tokio::select! {
                    () = round => {}
                    () = drain.begun() => return,
                }
            }
        });
    }
}
