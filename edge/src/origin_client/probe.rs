//! Looks whether an origin answers, while it does not: an edge that nobody asks would not notice otherwise.

use std::sync::Arc;
use std::time::Duration;

use weir_shared::process::shutdown::Drain;

use super::Origins;

/// How often an origin that does not answer is tried.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Tries each origin at once, and later those that are down, until the drain begins.
pub(crate) fn start(origins: &Arc<Origins>, drain: &Drain) {
    for id in 0..origins.all().len() {
        let (origins, drain) = (origins.clone(), drain.clone());
        drain.clone().spawn(async move {
            loop {
                let origin = &origins.all()[id];
                let round = async {
                    if !origin.is_up() {
                        origin.probe().await;
                    }
                    tokio::time::sleep(PROBE_INTERVAL).await;
                };
                tokio::select! {
                    () = round => {}
                    () = drain.begun() => return,
                }
            }
        });
    }
}
