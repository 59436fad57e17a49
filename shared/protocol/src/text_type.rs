//! Types that are text in JSON and TOML as on the wire.

/// Implements serde's `Serialize` by [`Display`](std::fmt::Display) and `Deserialize` by
/// [`FromStr`](std::str::FromStr), so that deserialised values are validated.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty) => {
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> ::std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> ::std::result::Result<Self, D::Error> {
                let text = <::std::borrow::Cow<'de, str> as ::serde::Deserialize<'de>>::deserialize(deserializer)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }
    };
}

/// Defines a string type that is validated by `$is_valid` when it is parsed; `$refused` makes the `$error`. Cheap to
/// clone.
macro_rules! checked_text {
    ($(#[$doc:meta])* $type:ident, $is_valid:expr, $error:ty, $refused:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(::std::sync::Arc<str>);

        impl $type {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = $error;

            fn from_str(text: &str) -> ::std::result::Result<Self, $error> {
                let is_valid: fn(&str) -> bool = $is_valid;
                let refused: fn(&str) -> $error = $refused;
                if is_valid(text) { Ok(Self(text.into())) } else { Err(refused(text)) }
            }
        }

        impl ::std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        $crate::serde_as_text!($type);
    };
}

pub(crate) use checked_text;

/// The start of a rejected text, for its error.
pub(crate) fn truncated(text: &str) -> String {
    text.chars().take(120).collect()
}
