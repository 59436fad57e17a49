//! Matches paths with patterns of gitignore and gitattributes files, in time that grows with the pattern times the path.
//!
//! A pattern is run as an automaton: the set of positions that it can be at advances with each byte of the path. A matcher
//! that tries one way after the other takes time exponential in the number of `**/`, and patterns come with commits.

use gix::bstr::ByteSlice;
use gix::glob::{Pattern, pattern::Mode};

/// The default of [`crate::Limits::max_match_steps`].
pub(crate) const MAX_MATCH_STEPS: u64 = 2_000_000_000;

/// Counts the steps of matching, and has the memory of the automaton.
#[derive(Debug)]
pub struct Matcher {
    steps_left: u64,
    /// The positions after the bytes so far, and those after the next byte.
    now: Vec<usize>,
    next: Vec<usize>,
    /// The turn in which each position was last added to `next`.
    added: Vec<u64>,
    /// The turn in which each `**` was last arrived at.
    arrived: Vec<u64>,
    turn: u64,
}

impl Default for Matcher {
    fn default() -> Self {
        Self::with_steps(MAX_MATCH_STEPS)
    }
}

/// A run of asterisks.
#[derive(Clone, Copy)]
struct Stars {
    end: usize,
    /// It is `**` as a whole component, which matches slashes.
    crosses_slashes: bool,
}

impl Matcher {
    /// A matcher for so many steps.
    pub fn with_steps(steps: u64) -> Self {
        Self { steps_left: steps, now: Vec::new(), next: Vec::new(), added: Vec::new(), arrived: Vec::new(), turn: 0 }
    }

    /// Takes steps for work that a pattern causes elsewhere.
    pub fn spend(&mut self, steps: usize) {
        self.steps_left = self.steps_left.saturating_sub(steps as u64);
    }

    /// Whether no steps are left. Nothing matches from then on, so whoever matches must ask, and fail.
    pub fn is_exhausted(&self) -> bool {
        self.steps_left == 0
    }

    /// Whether a pattern matches a path, which is relative to the pattern's directory.
    pub fn matches(&mut self, pattern: &Pattern, path: &[u8], is_directory: bool) -> bool {
        self.spend(1);
        if self.is_exhausted() || (pattern.mode.contains(Mode::MUST_BE_DIR) && !is_directory) {
            return false;
        }
        let by_name = pattern.mode.contains(Mode::NO_SUB_DIR) && !pattern.mode.contains(Mode::ABSOLUTE);
        let value = if by_name { &path[path.rfind_byte(b'/').map_or(0, |slash| slash + 1)..] } else { path };
        // The search for the slash reads dozens of bytes at a time.
        self.spend(value.len() / 32);
        let text = pattern.text.as_slice();
        match pattern.first_wildcard_pos {
            None => text == value,
            Some(_) if pattern.mode.contains(Mode::ENDS_WITH) && by_name => value.ends_with(&text[1..]),
            // As git does: what follows the literal beginning is matched alone, so `a**/b` is `a`, then `**/b`.
            Some(literal) => {
                value.starts_with(&text[..literal])
                    && value.ends_with(literal_end(text))
                    && self.run(&text[literal..], &value[literal..])
            }
        }
    }

    fn run(&mut self, pattern: &[u8], value: &[u8]) -> bool {
        if self.added.len() <= pattern.len() {
            self.added.resize(pattern.len() + 1, 0);
            self.arrived.resize(pattern.len() + 1, 0);
        }
        self.next.clear();
        self.turn += 1;
        self.arrive(pattern, 0);
        for byte in value {
            std::mem::swap(&mut self.now, &mut self.next);
            self.next.clear();
            self.turn += 1;
            self.spend(self.now.len());
            if self.now.is_empty() || self.is_exhausted() {
                return false;
            }
            for at in 0..self.now.len() {
                self.advance(pattern, self.now[at], *byte);
            }
        }
        self.next.contains(&pattern.len())
    }

    /// Goes on from a position with a byte.
    fn advance(&mut self, pattern: &[u8], at: usize, byte: u8) {
        let Some(expected) = pattern.get(at) else { return };
        match expected {
            b'*' => {
                let stars = stars(pattern, at);
                self.spend(stars.end - at);
                if stars.crosses_slashes || byte != b'/' {
                    self.add(at);
                    self.add(stars.end);
                }
            }
            b'?' if byte != b'/' => self.arrive(pattern, at + 1),
            b'[' if byte != b'/' => {
                let class = class_contains(&pattern[at..], byte);
                self.spend(class.map_or(pattern.len() - at, |(_, length)| length));
                if let Some((true, length)) = class {
                    self.arrive(pattern, at + length);
                }
            }
            b'?' | b'[' => {}
            b'\\' if pattern.get(at + 1) == Some(&byte) => self.arrive(pattern, at + 2),
            b'\\' => {}
            literal if *literal == byte => self.arrive(pattern, at + 1),
            _ => {}
        }
    }

    /// Adds a position that was just reached, and those that need no further byte.
    fn arrive(&mut self, pattern: &[u8], mut at: usize) {
        while pattern.get(at) == Some(&b'*') {
            if std::mem::replace(&mut self.arrived[at], self.turn) == self.turn {
                return;
            }
            let stars = stars(pattern, at);
            self.spend(stars.end - at);
            self.add(at);
            self.add(stars.end);
            // `**/` also stands for no directory at all.
            if !stars.crosses_slashes || pattern.get(stars.end) != Some(&b'/') {
                return;
            }
            at = stars.end + 1;
        }
        self.add(at);
    }

    fn add(&mut self, at: usize) {
        if std::mem::replace(&mut self.added[at], self.turn) != self.turn {
            self.next.push(at);
        }
    }
}

/// What stands literally at the end of a pattern: it spares most paths the automaton.
fn literal_end(pattern: &[u8]) -> &[u8] {
    let special = pattern.rfind_byteset(br"*?[]\").map_or(0, |at| at + 1 + usize::from(pattern[at] == b'\\'));
    let end = pattern.get(special..).unwrap_or_default();
    // The slash of `**/` need not be there.
    end.strip_prefix(b"/").unwrap_or(end)
}

/// The run of asterisks at a position.
fn stars(pattern: &[u8], start: usize) -> Stars {
    let end = start + pattern[start..].iter().take_while(|byte| **byte == b'*').count();
    let begins_component = start == 0 || pattern[start - 1] == b'/';
    let ends_component = matches!(pattern[end..], [] | [b'/', ..] | [b'\\', b'/', ..]);
    Stars { end, crosses_slashes: end - start > 1 && begins_component && ends_component }
}

/// Whether a character class at the beginning of `text` contains a byte, and how long the class is. `None`: the class is not
/// closed, or unknown, so nothing matches it.
fn class_contains(text: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(text.get(1), Some(b'!' | b'^'));
    let (first, mut at) = (1 + usize::from(negated), 1 + usize::from(negated));
    // `next_close`: the first `]` from some position before `at`, so that a class is read once, however many `[:` it has.
    let (mut contained, mut previous, mut next_close) = (false, None, 0);
    loop {
        let mut literal = *text.get(at)?;
        match literal {
            b']' if at > first => return Some((contained != negated, at + 1)),
            b'-' if previous.is_some() && !matches!(text.get(at + 1), None | Some(b']')) => {
                at += usize::from(text[at + 1] == b'\\') + 1;
                let last = *text.get(at)?;
                contained |= previous.is_some_and(|low| (low..=last).contains(&byte));
                (previous, at) = (None, at + 1);
                continue;
            }
            b'[' if text.get(at + 1) == Some(&b':') => {
                if next_close < at + 2 {
                    next_close = at + 2 + text[at + 2..].find_byte(b']')?;
                }
                if next_close > at + 2 && text[next_close - 1] == b':' {
                    contained |= named_class_contains(&text[at + 2..next_close - 1], byte)?;
                    (previous, at) = (None, next_close + 1);
                    continue;
                }
            }
            b'\\' => {
                at += 1;
                literal = *text.get(at)?;
            }
            _ => {}
        }
        contained |= literal == byte;
        (previous, at) = (Some(literal), at + 1);
    }
}

fn named_class_contains(name: &[u8], byte: u8) -> Option<bool> {
    Some(match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => matches!(byte, b' ' | b'\t' | b'\n' | b'\r'),
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps that a pattern takes for a path that it does not match.
    fn steps(pattern: &str, path: &str) -> u64 {
        let mut matcher = Matcher::default();
        assert!(!matcher.matches(&Pattern::from_bytes(pattern.as_bytes()).unwrap(), path.as_bytes(), false));
        MAX_MATCH_STEPS - matcher.steps_left
    }

    #[test]
    fn the_steps_are_bounded_by_the_pattern_times_the_path() {
        let path = "a/".repeat(60) + "c";
        for pattern in [
            format!("**/{}[b]", "a/**/".repeat(40)),
            format!("**/{}?b*", "*a*/**/".repeat(40)),
            format!("{}[b]", "*a".repeat(300)),
            format!("a/{}b?", "**/".repeat(300)),
            format!("**/{}[b]", "[a-z]*/".repeat(50)),
            format!("*{}", "[[:alpha:]/]".repeat(100)),
            format!("**/[{}]b*", "[:x".repeat(600)),
        ] {
            let most = 2 * (pattern.len() + 1) * (path.len() + 1);
            assert!(steps(&pattern, &path) <= most as u64, "{pattern}");
        }
    }

    /// What the automaton does not count as positions.
    #[test]
    fn long_runs_of_asterisks_and_long_names_take_steps() {
        assert!(steps(&format!("{}[b]", "*".repeat(2000)), &"a".repeat(40)) >= 2000 * 40);
        assert!(steps("?b", &"a".repeat(64_000)) >= 2000);
    }

    #[test]
    fn nothing_matches_when_no_steps_are_left() {
        let pattern = Pattern::from_bytes(b"**/a").unwrap();
        let mut matcher = Matcher::with_steps(20);
        assert!(matcher.matches(&pattern, b"a", false) && !matcher.is_exhausted());
        assert!(!matcher.matches(&pattern, b"a/b/c/d/e/f/g/h/i/a", false));
        assert!(matcher.is_exhausted() && !matcher.matches(&pattern, b"a", false));
    }
}
