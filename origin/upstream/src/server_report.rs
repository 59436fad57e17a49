//! What a server reports when it refuses a request, in its own words.

use std::fmt;

use serde_json::Value;

use super::user_info::without_user_info;

/// The most characters in a message.
const MAX_CHARS: usize = 300;

/// One line of printable text, or nothing: the end of a sentence that says what the server answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerReport(Option<Box<str>>);

impl ServerReport {
    /// Reads the body of a response. `status`: the name of its status, which alone says nothing. Nothing is shown of a text that
    /// has a secret in it.
    pub(crate) fn of_body(body: &[u8], status: Option<&str>, secrets: &[String]) -> Self {
        let text = match serde_json::from_slice::<Value>(body) {
            Ok(document) => messages(&document).unwrap_or_else(|| String::from_utf8_lossy(body).into_owned()),
            Err(_) => String::from_utf8_lossy(body).into_owned(),
        };
        let text = match text.trim_start().starts_with('<') {
            // Storage answers so. Anything else is a page.
            true => text.split_once("<Message>").and_then(|(_, rest)| rest.split_once("</Message>")).map(|(it, _)| it),
            false => Some(&*text),
        };
        let text = text.filter(|text| !secrets.iter().any(|secret| text.contains(secret)));
        let line = text.and_then(|text| one_line(text.as_bytes()));
        Self(line.filter(|line| !status.is_some_and(|status| line.eq_ignore_ascii_case(status))).map(Into::into))
    }
}

/// The messages of a registry (`errors`), or of another server.
fn messages(document: &Value) -> Option<String> {
    let errors = document["errors"].as_array().map_or(std::slice::from_ref(document), Vec::as_slice);
    let messages: Vec<&str> = errors.iter().filter_map(|error| error["message"].as_str()).collect();
    Some(messages.join("; ")).filter(|text| !text.trim().is_empty())
}

impl fmt::Display for ServerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |text| write!(f, "; the server reports: {text}"))
    }
}

/// Words of a server as one line of printable text, without credentials. `None`: they are no text.
pub fn one_line(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String = without_user_info(&one_line).chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
    let is_text = shown.chars().filter(|c| *c == char::REPLACEMENT_CHARACTER).count() * 10 <= shown.chars().count();
    (is_text && !shown.is_empty()).then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_shown_by_its_messages_or_as_it_is() {
        let long = "x".repeat(1000);
        for (body, expected) in [
            (
                r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your limit","detail":{}}]}"#,
                "You have reached your limit",
            ),
            (r#"{"errors":[{"message":"one"},{"code":"x"},{"message":"two\n\u001b[31m"}]}"#, "one; two [31m"),
            (r#"{"message":"quota"}"#, "quota"),
            (r#"{"details":"incorrect password"}"#, r#"{"details":"incorrect password"}"#),
            ("Blocked by\r\n\tXray\n", "Blocked by Xray"),
            ("see https://me:s3cret@host/x", "see https://host/x"),
            (
                "<?xml version=\"1.0\"?>\n<Error><Code>x</Code><Message>Request has expired</Message></Error>",
                "Request has expired",
            ),
            (&long, &long[..300]),
        ] {
            assert_eq!(
                ServerReport::of_body(body.as_bytes(), None, &[]).to_string(),
                format!("; the server reports: {expected}")
            );
        }
        for body in ["", " \n", "<html>Not here</html>", "Not found", r#"{"errors":[{"message":"not found"}]}"#] {
            assert_eq!(ServerReport::of_body(body.as_bytes(), Some("Not Found"), &[]).to_string(), "", "{body}");
        }
        assert_eq!(ServerReport::of_body(&[0xff; 100], None, &[]), ServerReport::default());
    }
}
