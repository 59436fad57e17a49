//! Content codings and their negotiation (RFC 9110 section 12.5.3).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A content coding of a tarball.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// A delta against a dictionary (RFC 9842).
    Dcz,
    /// One or several concatenated Zstandard frames (RFC 8878).
    Zstd,
    /// gzip (RFC 1952).
    Gzip,
    /// The tarball itself.
    Identity,
}

impl Encoding {
    /// Weir's order of preference, best first.
    pub const PREFERENCE: [Encoding; 4] = [Encoding::Dcz, Encoding::Zstd, Encoding::Gzip, Encoding::Identity];

    /// The name in headers and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Encoding::Dcz => "dcz",
            Encoding::Zstd => "zstd",
            Encoding::Gzip => "gzip",
            Encoding::Identity => "identity",
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Selects the preferred coding among those that are available and that `accept_encoding` allows.
///
/// `accept_encoding` is the value of the header, several joined by commas; `None` without the header means identity.
/// Quality values only exclude (`q=0`): among acceptable codings Weir's own preference decides, because it knows what
/// is stored. `None`: no acceptable coding (`406`).
pub fn negotiate(accept_encoding: Option<&str>, available: impl Fn(Encoding) -> bool) -> Option<Encoding> {
    let Some(header) = accept_encoding else {
        return available(Encoding::Identity).then_some(Encoding::Identity);
    };
    let accepted = Accepted::parse(header);
    Encoding::PREFERENCE.into_iter().find(|&encoding| available(encoding) && accepted.allows(encoding))
}

/// The codings of an `Accept-Encoding`: `Some(true)` accepted, `Some(false)` excluded, `None` not mentioned.
#[derive(Default)]
struct Accepted {
    named: [Option<bool>; 4],
    any: Option<bool>,
}

impl Accepted {
    fn parse(header: &str) -> Self {
        let mut accepted = Self::default();
        for member in header.split(',') {
            let mut parts = member.split(';');
            let coding = parts.next().unwrap_or_default().trim();
            let allowed = !parts.any(is_zero_quality);
            if coding == "*" {
                accepted.any = Some(allowed);
            }
            // RFC 9110 section 8.4.1.3: x-gzip is equivalent to gzip.
            let coding = if coding.eq_ignore_ascii_case("x-gzip") { "gzip" } else { coding };
            for (slot, encoding) in accepted.named.iter_mut().zip(Encoding::PREFERENCE) {
                if coding.eq_ignore_ascii_case(encoding.as_str()) {
                    *slot = Some(allowed);
                }
            }
        }
        accepted
    }

    fn allows(&self, encoding: Encoding) -> bool {
        let position = Encoding::PREFERENCE.iter().position(|e| *e == encoding).expect("PREFERENCE holds them all");
        // Identity is acceptable unless it is excluded, by name or by `*;q=0`. `*` never includes dcz: a client that
        // can decode it names it (RFC 9842 section 6.1).
        match (self.named[position], self.any, encoding) {
            (Some(allowed), _, _) => allowed,
            (None, any, Encoding::Identity) => any.unwrap_or(true),
            (None, _, Encoding::Dcz) => false,
            (None, any, _) => any.unwrap_or(false),
        }
    }
}

fn is_zero_quality(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return false };
    name.trim().eq_ignore_ascii_case("q") && value.trim().parse::<f32>().is_ok_and(|q| q == 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored(encoding: Encoding) -> bool {
        matches!(encoding, Encoding::Zstd | Encoding::Identity)
    }

    #[test]
    fn the_preferred_acceptable_coding_is_selected() {
        use Encoding::{Gzip, Identity, Zstd};
        let all = |_| true;
        for (header, expected) in [
            (None, Some(Identity)),
            (Some(""), Some(Identity)),
            (Some("zstd"), Some(Zstd)),
            (Some("gzip, zstd"), Some(Zstd)),
            (Some("gzip;q=1, zstd;q=0.1"), Some(Zstd)),
            (Some("ZSTD"), Some(Zstd)),
            (Some("gzip, br, x-unknown"), Some(Identity)),
            (Some("*"), Some(Zstd)),
            (Some("zstd;q=0, *"), Some(Identity)),
            (Some("zstd;q=0.000"), Some(Identity)),
            (Some("br, identity;q=0"), None),
            (Some("*;q=0"), None),
            (Some("gzip, *;q=0"), None),
            (Some("identity, *;q=0"), Some(Identity)),
        ] {
            assert_eq!(negotiate(header, stored), expected, "{header:?}");
        }
        assert_eq!(negotiate(Some("x-gzip"), all), Some(Gzip));
        assert_eq!(negotiate(Some("dcz, zstd"), all), Some(Encoding::Dcz));
        assert_eq!(negotiate(Some("*"), all), Some(Zstd));
    }

    proptest! {
        #[test]
        fn no_header_panics_and_an_excluded_coding_is_never_chosen(header in "[ -~]{0,60}") {
            let _ = negotiate(Some(&header), |_| true);
            let excluded = format!("{header},zstd;q=0");
            prop_assert_ne!(negotiate(Some(&excluded), |_| true), Some(Encoding::Zstd));
        }
    }
}
