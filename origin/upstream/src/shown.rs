//! Texts that an upstream chooses, in messages.

/// The start of a text, without control characters.
pub fn shown(text: &str, max_chars: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(max_chars).collect()
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_text_is_cut_and_has_no_control_characters() {
        assert_eq!(shown("a\x1b[31mb\r\nc\u{85}d", 100), "a[31mbcd");
        assert_eq!(shown("\u{1f600}\u{e9}abc", 3), "\u{1f600}\u{e9}a");
    }
}
