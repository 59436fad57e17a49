//! Probes origins and shields that are down, so that an edge without requests notices when they are back.

use std::sync::Arc;
use std::time::Duration;

use weir_cache::OriginId;
use weir_runtime::shutdown::Drain;

use super::{Origin, Origins};

/// How often a probe is considered. The circuit breaker decides, and most checks cost nothing.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Probes an origin at the start, and later while its last request failed, until another one has its id or the drain begins.
pub(crate) fn start(origins: &Arc<Origins>, id: OriginId, origin: Arc<Origin>, drain: &Drain) {
    let (origins, draining) = (origins.clone(), drain.clone());
    drain.spawn(async move {
        let is_in_use = || Arc::ptr_eq(&origins.get(id), &origin).then(|| origins.is_in_use(id));
        keep_probing(&origin, is_in_use, &draining).await;
    });
}

/// The same of an origin or a shield, while it is in use. `None`: it is known no longer.
pub(super) async fn keep_probing(origin: &Origin, is_in_use: impl Fn() -> Option<bool>, drain: &Drain) {
    while let Some(is_in_use) = is_in_use() {
        let round = async {
            if is_in_use && origin.needs_probe() {
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
