//! The `detail` of an `application/problem+json` document.

use std::time::Duration;

use http::{HeaderMap, header};

use crate::edge_client::ResponseBody;

/// The largest document that is read, in bytes.
const MAX_PROBLEM_BYTES: usize = 16 << 10;

/// The longest detail, in characters; it is truncated.
const MAX_DETAIL: usize = 400;

/// The timeout of the body: it is only needed for a better error message.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The detail on one line; `None` when there is none, or it cannot be read.
pub(crate) async fn problem_detail(headers: &HeaderMap, body: ResponseBody) -> Option<String> {
    let content_type = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/problem+json") {
        return None;
    }
    detail(&tokio::time::timeout(READ_TIMEOUT, read(body)).await.ok()??)
}

async fn read(mut body: ResponseBody) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(part) = body.chunk().await.ok()? {
        if bytes.len() + part.len() > MAX_PROBLEM_BYTES {
            return None;
        }
        bytes.extend_from_slice(&part);
    }
    Some(bytes)
}

fn detail(problem: &[u8]) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(problem).ok()?;
    let detail = one_line(problem.get("detail")?.as_str()?);
    (!detail.is_empty()).then_some(detail)
}

/// Normalises white space, and removes characters that break lines or change colours or direction.
fn one_line(text: &str) -> String {
    let shown = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let text: String = text.chars().map(|c| if shown(c) { c } else { ' ' }).collect();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_DETAIL) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_is_one_line_within_bounds() {
        let of = |text: &str| detail(serde_json::json!({ "detail": text }).to_string().as_bytes());
        assert_eq!(of(" a\r\n\tb \u{1b}[31mc\u{202e}d ").as_deref(), Some("a b [31mc d"));
        assert_eq!(of(&"ö".repeat(MAX_DETAIL)), Some("ö".repeat(MAX_DETAIL)));
        assert_eq!(of(&"ö".repeat(5000)), Some("ö".repeat(MAX_DETAIL) + "…"));
        assert_eq!(of("\n"), None);
        for none in [&b""[..], b"{}", b"[]", b"{\"detail\": 1}", b"<html>"] {
            assert_eq!(detail(none), None);
        }
    }
}
