//! What systemd is told, by the socket that it names to a unit of `Type=notify` (sd_notify(3)). Without one nothing is sent.

use sd_notify::NotifyState;

/// Says that the process serves. From then on it says that it lives, twice in each `WatchdogSec=` of the unit: not for as long as
/// nothing runs on this runtime.
pub fn started() {
    send(NotifyState::Ready);
    if let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) {
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(period / 2);
            loop {
                ticks.tick().await;
                // It waits for a manager that does not read.
                let _ = tokio::task::spawn_blocking(|| send(NotifyState::Watchdog)).await;
            }
        });
    }
}

/// Says that the process drains.
pub fn stopping() {
    send(NotifyState::Stopping);
}

fn send(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(error = %error, "the service manager could not be told of the state of this process");
    }
}
