//! Pins of services, as people read them.

use serde_json::Value;

use crate::text::{Clock, count, revision, shortened, text};

/// The most services that are named.
const MOST: usize = 10;

/// Where a service is pinned, since when, by whom, and why. An origin of the release before does not say the last two. `of` has
/// `pinned` and `published`, as the status of a service and the pins of an answer have them.
pub(crate) fn pinned(of: &Value, clock: Clock) -> String {
    let pin = &of["pinned"];
    let mut said = format!("pinned at {} {}", revision(&of["published"]), clock.since(&pin["since"]));
    if let Some(by) = pin["by"].as_str() {
        said = format!("{said}, by {by}");
    }
    if let Some(reason) = pin["reason"].as_str() {
        said = format!("{said}: {reason}");
    }
    said
}

/// Of an answer about who lacks a revision: the services that do not get it, because they are pinned.
pub(crate) fn holding(answer: &Value, wanted: &str, clock: Clock) -> Vec<String> {
    let pins = answer["pinned"].as_array().map_or(&[][..], Vec::as_slice);
    if pins.is_empty() {
        return Vec::new();
    }
    let wanted = shortened(wanted);
    let mut said = vec![match answer["unknown_pinned"].as_u64() {
        None | Some(0) => format!("pinned: these services do not get {wanted}"),
        Some(rows) => {
            let (rows, are) = (count(rows, "more row"), if rows == 1 { "is" } else { "are" });
            format!("pinned: {rows} {are} of services that have not published {wanted}, and do not get it")
        }
    }];
    let name = |pin: &Value| format!("  {} is {}", text(&pin["service"]), pinned(pin, clock));
    said.extend(pins.iter().take(MOST).map(name));
    if pins.len() > MOST {
        said.push("  and more: `weir get services`".to_owned());
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pin_is_told_with_its_operator_and_reason() {
        let (clock, since) = (Clock::new(true), "2026-01-02T03:04:05Z");
        let pin = |by: &Value| json!({"service": "shop", "pinned": {"since": since, "by": by, "reason": by}, "published": {"version": "1.2.0"}});
        assert_eq!(pinned(&pin(&json!("ana")), clock), "pinned at 1.2.0 since 2026-01-02T03:04:05Z, by ana: ana");
        assert_eq!(pinned(&pin(&Value::Null), clock), "pinned at 1.2.0 since 2026-01-02T03:04:05Z");
        let held = |rows: u64, pins: usize| {
            let pins = vec![pin(&Value::Null); pins];
            holding(&json!({"pinned": pins, "unknown_pinned": rows}), "1.3.0", clock)
        };
        assert!(held(0, 0).is_empty());
        assert_eq!(held(0, 1)[0], "pinned: these services do not get 1.3.0");
        assert!(held(0, 1)[1].starts_with("  shop is pinned at 1.2.0"));
        assert!(held(1, 1)[0].contains("1 more row is of services") && held(2, 1)[0].contains("2 more rows are of"));
        assert_eq!((held(9, 11).len(), held(9, 10).len()), (12, 11));
    }
}
