//! Probes origins and shields that are down, so that an edge without requests notices when they are back.

use std::sync::Arc;
use std::time::Duration;

use weir_runtime::shutdown::Drain;

use super::{Origin, OriginId, Origins};

/// How often a probe is considered. The circuit breaker decides, and most checks cost nothing.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Probes an origin at the start, and later while its last request failed, until the drain begins.
pub(crate) fn start(origins: &Arc<Origins>, id: OriginId, drain: &Drain) {
    let (origins, draining) = (origins.clone(), drain.clone());
    drain.spawn(async move { keep_probing(origins.get(id), || origins.is_in_use(id), &draining).await });
}

/// The same of an origin or a shield, while it is in use.
pub(super) async fn keep_probing(origin: &Origin, is_in_use: impl Fn() -> bool, drain: &Drain) {
    loop {
        let round = async {
            if is_in_use() && origin.needs_probe() {
                origin.probe().await;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        };
        tokio::select! {
            () = round => {}
            () = drain.begun() => return,
        }
    }
}
