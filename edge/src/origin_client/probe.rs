//! Asks an origin that does not answer whether it does, whenever its circuit breaker lets a question through: an edge
//! that nobody asks would not notice otherwise that it is back.

use std::sync::Arc;
use std::time::Duration;

use weir_runtime::shutdown::Drain;

use super::Origins;

/// How often it is looked whether a question is due. The breaker decides; most looks cost nothing.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Probes each origin at once, and later those of which nobody knows that they answer, until the drain begins.
pub(crate) fn start(origins: &Arc<Origins>, drain: &Drain) {
    for id in 0..origins.all().len() {
        let (origins, drain) = (origins.clone(), drain.clone());
        drain.clone().spawn(async move {
            loop {
                let origin = &origins.all()[id];
                let round = async {
                    if origin.is_in_doubt() {
                        origin.probe().await;
                    }
                    tokio::time::sleep(LOOK_INTERVAL).await;
                };
                tokio::select! {
                    () = round => {}
                    () = drain.begun() => return,
                }
            }
        });
    }
}
