//! Words of others that people read, on terminals and in pages.

/// Whether a character does something else than to be shown: it controls a terminal, breaks a line, is invisible, or changes
/// the direction of the text around it.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Whether all characters of a text are shown, in one line.
pub fn is_plain(text: &str) -> bool {
    !text.contains(is_hidden)
}

/// Makes a text of others one line that shows what it has: white space is a space, other hidden characters are `\u{…}`. At
/// most `most` bytes of it are kept.
pub fn make_plain(text: &mut String, most: usize) {
    if is_plain(text) {
        return;
    }
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' | '\n' | '\r' => plain.push(' '),
            c if is_hidden(c) => plain.extend(c.escape_unicode()),
            c => plain.push(c),
        }
    }
    plain.truncate(plain.floor_char_boundary(most));
    *text = plain;
}

/// As [`make_plain`], of lines: each begins anew.
pub(crate) fn make_lines_plain(text: &mut String, most: usize) {
    if !text.contains(|c| c != '\n' && is_hidden(c)) {
        return;
    }
    let lines = text.lines().map(|line| {
        let mut line = line.to_owned();
        make_plain(&mut line, most);
        line
    });
    let mut plain = lines.collect::<Vec<_>>().join("\n");
    plain.truncate(plain.floor_char_boundary(most));
    *text = plain;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_shown() {
        for (text, expected) in [
            ("exec exited with 1: é", "exec exited with 1: é"),
            ("two\nlines", "two lines"),
            ("\u{1b}[31mred\u{7}", "\\u{1b}[31mred\\u{7}"),
            ("nur \u{202e}gnp.exe\u{2066}", "nur \\u{202e}gnp.exe\\u{2066}"),
            ("\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}", "\\u{0}\\u{0}\\u{0}\\u{0}\\u{0}\\u{0}"),
            (&"\u{85}é".repeat(10), "\\u{85}é\\u{85}é\\u{85}é\\u{85}é"),
        ] {
            let mut plain = text.to_owned();
            make_plain(&mut plain, 32);
            assert_eq!(plain, expected);
            make_plain(&mut plain, 32);
            assert_eq!(plain, expected, "an origin finds nothing to do");
        }
    }
}
