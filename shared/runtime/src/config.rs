//! Reading configuration files: TOML, unknown keys refused by name, paths relative to the file.

pub mod size;

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A configuration that cannot be used: which file, and what to change.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, or an invalid value.
    #[error("the configuration {} is invalid: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// All errors, each with its line.
        message: String,
    },
    /// All keys are valid by themselves, but not together.
    #[error("the configuration is invalid: {0}")]
    Invalid(String),
}

impl ConfigError {
    /// An invalid combination: name the key and what it should be.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    /// The errors of the checks that failed: each check has a condition that is true when it fails, and a message.
    pub fn failed<M: Into<String>>(checks: impl IntoIterator<Item = (bool, M)>) -> Vec<Self> {
        checks.into_iter().filter(|(has_failed, _)| *has_failed).map(|(_, message)| Self::invalid(message)).collect()
    }

    /// Joins all errors into one, so that an operator sees all of them at once.
    ///
    /// # Errors
    /// There is at least one.
    pub fn all(errors: Vec<Self>) -> Result<(), Self> {
        let message = |error| match error {
            Self::Invalid(message) => message,
            other => other.to_string(),
        };
        let messages: Vec<_> = errors.into_iter().map(message).collect();
        if messages.is_empty() { Ok(()) } else { Err(Self::Invalid(messages.join("\nthe configuration is invalid: "))) }
    }
}

/// The errors of a file that are reported at once, at most.
const MAX_ERRORS: usize = 20;

/// Reads a TOML file. The type should carry `#[serde(deny_unknown_fields)]` everywhere.
///
/// # Errors
/// The file cannot be read, or is invalid: every key that is unknown or has an invalid value is reported with its line. The
/// caller then checks the combination of keys; see [`ConfigError::all`].
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    parsed(path, parse)
}

/// The same, with the keys that the file has.
///
/// # Errors
/// Those of [`read`].
pub fn read_with_keys<T: DeserializeOwned>(path: &Path) -> Result<(T, Value), ConfigError> {
    // Not a `toml::Table`: that has no numbers above `i64::MAX`.
    parsed(path, |text| Ok((parse(text)?, parse(text)?)))
}

fn parsed<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, Vec<String>>) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    parse(&text).map_err(|errors| ConfigError::Parse { path: path.to_owned(), message: errors.join("\n") })
}

/// The parser stops at the first error. So each invalid key is removed and the rest is parsed again to find the next error,
/// until the error is a missing key.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Vec<String>> {
    let mut table = DeTable::parse(text).map_err(|error| vec![explained(text, error)])?;
    let (mut errors, mut removed) = (Vec::new(), Vec::new());
    loop {
        match T::deserialize(toml::Deserializer::from(table.clone())) {
            Ok(read) if errors.is_empty() => return Ok(read),
            Ok(_) => return Err(errors),
            Err(error) => {
                let key = error.span().and_then(|span| remove(table.get_mut(), &span));
                let missing = |key: &String| *error.message() == format!("missing field `{key}`");
                if !removed.iter().any(missing) {
                    errors.push(explained(text, error));
                }
                match key {
                    Some(key) if errors.len() < MAX_ERRORS => removed.push(key),
                    _ => return Err(errors),
                }
            }
        }
    }
}

/// Removes the innermost key at the position of an error, and returns it.
fn remove(table: &mut DeTable<'_>, at: &Range<usize>) -> Option<String> {
    let holds = |span: Range<usize>| span.start <= at.start && at.end <= span.end;
    let within = |value: &mut Spanned<DeValue<'_>>| match value.get_mut() {
        DeValue::Table(inner) => remove(inner, at),
        DeValue::Array(items) => items.iter_mut().find_map(|item| match item.get_mut() {
            DeValue::Table(inner) => remove(inner, at),
            _ => None,
        }),
        _ => None,
    };
    if let Some(key) = table.iter_mut().find_map(|(_, value)| within(value)) {
        return Some(key);
    }
    let key = table.iter().find(|(key, value)| {
        let is_leaf = !matches!(value.get_ref(), DeValue::Table(_));
        holds(key.span()) || is_leaf && holds(value.span())
    });
    let key = key.map(|(key, _)| key.clone())?;
    table.remove(&key)?;
    Some(key.into_inner().into_owned())
}

/// The parser's message with the line, and what to write instead.
fn explained(text: &str, mut error: toml::de::Error) -> String {
    let text = &without_passwords(text);
    error.set_input(Some(text));
    let value = error.span().and_then(|span| text.get(span)).unwrap_or_default().trim_matches(['"', '\'']);
    let message = error.message();
    let better = match message {
        "invalid socket address syntax" => parse_address(value).err(),
        _ if message.starts_with("invalid type: ") && message.ends_with("expected a string") => {
            Some(format!("{message}: write it in quotes, \"{value}\""))
        }
        _ => suggestion(message).map(|suggestion| format!("{message}; {suggestion}")),
    };
    let text = error.to_string();
    better.map_or_else(|| text.clone(), |better| text.replacen(message, &better, 1)).trim_end().to_owned()
}

/// What to write instead of an unknown name, of which an error of serde complains: a similar name.
pub fn suggestion(message: &str) -> Option<String> {
    let names: Vec<&str> = message.strip_prefix("unknown ")?.split('`').skip(1).step_by(2).collect();
    let (unknown, known) = names.split_first()?;
    Some(format!("did you mean `{}`?", nearest(unknown, known)?))
}

/// The text with a star for each byte of a URL's user and password: errors are logged.
fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (index, part) in text.split("://").enumerate() {
        let authority = part.find(|c: char| c.is_whitespace() || "/\"'".contains(c)).map_or(part, |end| &part[..end]);
        let secret = if index == 0 { 0 } else { authority.rfind('@').unwrap_or(0) };
        shown += if index == 0 { "" } else { "://" };
        shown += &"*".repeat(secret);
        shown += &part[secret..];
    }
    shown
}

/// The most similar known name, if one is similar enough.
fn nearest<'n>(unknown: &str, known: &[&'n str]) -> Option<&'n str> {
    let near = known.iter().map(|name| (strsim::damerau_levenshtein(unknown, name), *name));
    near.filter(|(distance, _)| *distance <= 1 + unknown.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|near| near.1)
}

/// Reads `127.0.0.1:7443`; for command lines.
///
/// # Errors
/// The text is not an IP address with a port; the message says which of the two is wrong, and what to write.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match text.rsplit_once(':') {
        None => format!("`{text}` has no port: write an IP address and a port, such as `127.0.0.1:7443`"),
        Some((_, port)) if port.parse::<u16>().is_err() => {
            format!("the port `{port}` of `{text}` is not a number from 0 to 65535")
        }
        Some((host, port)) => {
            let likely = if host == "localhost" { "127.0.0.1" } else { "192.0.2.1" };
            format!(
                "`{host}` is not an IP address, and names are not resolved here: write for example `{likely}:{port}`"
            )
        }
    })
}

/// The keys in which two configurations differ, as `section.key`; a list counts as one key. The keys and sections `except` are
/// left out.
pub fn changed_keys<T: Serialize>(one: &T, other: &T, except: &[&str]) -> Vec<String> {
    fn compare(name: &str, one: &Value, other: &Value, changed: &mut Vec<String>) {
        match (one, other) {
            (Value::Object(one), Value::Object(other)) => {
                let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
                for key in keys {
                    let path = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                    let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                    compare(&path, &of(one), &of(other), changed);
                }
            }
            _ if one != other => changed.push(name.to_owned()),
            _ => {}
        }
    }
    let value = |config: &T| serde_json::to_value(config).expect("a configuration is made of texts, numbers and lists");
    let mut changed = Vec::new();
    compare("", &value(one), &value(other), &mut changed);
    changed.retain(|key| !except.iter().any(|left_out| is_or_is_below(key, left_out)));
    changed
}

/// Whether a key, or a section, is `section` or in it.
pub fn is_or_is_below(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The environment variable with the folder that relative paths of a configuration are relative to, if it is not that of the
/// file, to which it may be relative itself: a ConfigMap that is mounted as a folder can hold no other mounts, so they lie in
/// `..`.
pub const BASE_DIR: &str = "WEIR_BASE_DIR";

/// The folder that relative paths of a configuration file are relative to: its own, or that of [`BASE_DIR`].
pub fn base_dir(config_file: &Path) -> PathBuf {
    own_dir(config_file).join(std::env::var_os(BASE_DIR).unwrap_or_default())
}

fn own_dir(config_file: &Path) -> PathBuf {
    match config_file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes a path of a configuration usable from any working directory.
pub fn resolve(base: &Path, path: &mut PathBuf) {
    if path.is_relative() {
        *path = base.join(&*path);
    }
}

/// Durations as people write them: `30s`, `2m`, `1h 30m`. For `#[serde(with = "…::duration")]`.
pub mod duration {
    use std::fmt;
    use std::time::Duration;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    /// Writes `2m`.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*duration))
    }

    /// Reads `2m`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration in quotes, such as \"30s\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
                parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }

    /// Reads `2m`; for command lines.
    pub fn parse(text: &str) -> Result<Duration, String> {
        humantime::parse_duration(text)
            .map_err(|error| format!("`{text}` is not a duration such as `30s`, `2m` or `1h 30m`: {error}"))
    }
}

/// An optional [`duration`].
pub mod optional_duration {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    /// Writes `2m`.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::duration::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads `2m`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        super::duration::deserialize(deserializer).map(Some)
    }
}

/// An optional [`size`].
pub mod optional_size {
    use bytesize::ByteSize;
    use serde::{Deserializer, Serialize, Serializer};

    /// Writes `64.0 MiB`.
    pub fn serialize<S: Serializer>(size: &Option<ByteSize>, serializer: S) -> Result<S::Ok, S::Error> {
        size.serialize(serializer)
    }

    /// Reads `64MiB`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
        super::size::deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Example {
        #[serde(with = "duration")]
        poll_interval: Duration,
        #[serde(default)]
        tls: std::collections::BTreeMap<String, String>,
        #[serde(default)]
        edges: Vec<String>,
    }

    fn read_text(text: &str) -> Result<Example, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("example.toml");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn an_unknown_key_is_refused_by_its_name() {
        assert_eq!(read_text("poll_interval = '2m'").unwrap().poll_interval, Duration::from_secs(120));
        let error = read_text("poll_interval = '2m'\npol_interval = '2m'").unwrap_err().to_string();
        assert!(
            error.contains("pol_interval") && error.contains("example.toml") && error.contains("line 2"),
            "{error}"
        );
        let error = read_text("poll_interval = 'often'").unwrap_err().to_string();
        assert!(error.contains("often") && error.contains("30s"), "{error}");
    }

    #[test]
    fn all_invalid_keys_are_reported_at_once_with_what_to_write() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "its fields are only parsed")]
        struct Whole {
            listen: Option<SocketAddr>,
            name: Option<String>,
            limits: Part,
            #[serde(default)]
            service: Vec<Part>,
        }
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct Part {
            #[serde(with = "duration")]
            poll_interval: Duration,
            edges: Vec<String>,
        }
        let errors = |text: &str| parse::<Whole>(text).unwrap_err();
        let found = errors(
            "listen = '127.0.0.1:204000'\nname = 5\nlissten = 1\n[limits]\npoll_interval = 5\n[[service]]\n\
             poll_interval = '1s'\n[[service]]\npoll_interval = '1s'\npol_interval = '2s'\nedges = [1]\n",
        );
        for (line, words) in [
            (1, "port `204000`"),
            (2, "in quotes, \"5\""),
            (3, "did you mean `listen`?"),
            (5, "a duration in quotes"),
            (10, "did you mean `poll_interval`?"),
            (11, "in quotes, \"1\""),
        ] {
            let is_reported = |error: &&String| error.contains(&format!("line {line},")) && error.contains(words);
            assert_eq!(found.iter().filter(is_reported).count(), 1, "{words}: {found:#?}");
        }
        assert_eq!(found.len(), 6, "{found:#?}");
        // A missing key is reported as well.
        let found = errors("listen = 'localhost:1'\nname = 'a'\n");
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].contains("127.0.0.1:1") && found[1].contains("`limits`"), "{found:#?}");
        assert_eq!(errors("listen = \n").len(), 1);
    }

    #[test]
    fn an_address_is_an_ip_address_and_a_port() {
        assert_eq!(parse_address("[::1]:7443").unwrap().port(), 7443);
        for (wrong, words) in [
            ("127.0.0.1", "has no port"),
            ("127.0.0.1:204000", "0 to 65535"),
            ("localhost:20400", "`127.0.0.1:20400`"),
            ("edge.example:7443", "names are not resolved"),
        ] {
            let error = parse_address(wrong).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_size_has_a_unit() {
        #[derive(Debug, serde::Deserialize)]
        struct Sizes {
            #[serde(with = "size")]
            disk: bytesize::ByteSize,
        }
        let read = |text: &str| toml::from_str::<Sizes>(&format!("disk = {text}")).map(|sizes| sizes.disk.as_u64());
        for (text, bytes) in [("'10GiB'", 10 << 30), ("'1.5 kB'", 1500), ("'512B'", 512), ("'0'", 0), ("0", 0)] {
            assert_eq!(read(text).unwrap(), bytes, "{text}");
        }
        for text in ["10", "'10'", "'1024'"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("has no unit") && error.contains("MiB"), "{text}: {error}");
        }
        for text in ["-1", "'-1'", "'much'", "1.5", "'10.5'", "'10 '"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn changes_are_named_by_their_keys() {
        let one = read_text("poll_interval = '2m'\nedges = ['a']\n[tls]\nkey = 'k'\nca = 'c'").unwrap();
        assert_eq!(changed_keys(&one, &one, &[]), [""; 0]);
        let other = read_text("poll_interval = '120s'\nedges = ['a', 'b']\n[tls]\nkey = 'l'\nextra = 'e'").unwrap();
        assert_eq!(changed_keys(&one, &other, &[]), ["edges", "tls.ca", "tls.extra", "tls.key"]);
        assert_eq!(changed_keys(&one, &other, &["tls", "edge"]), ["edges"]);
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let mut path = PathBuf::from("ca.pem");
        resolve(&own_dir(Path::new("/etc/weir/edge.toml")), &mut path);
        assert_eq!(path, Path::new("/etc/weir/ca.pem"));
        resolve(Path::new("/other"), &mut path);
        assert_eq!(path, Path::new("/etc/weir/ca.pem"));
        assert_eq!(own_dir(Path::new("edge.toml")), Path::new("."));
    }

    #[test]
    fn errors_show_a_url_without_its_password() {
        let wrong = "poll_interval = \"1s\"\nedges = [\"http://me:s3cret@host/p@th\", 1]";
        let errors = parse::<Example>(wrong).unwrap_err().join("\n");
        assert!(errors.contains("http://*********@host/p@th") && !errors.contains("s3cret"), "{errors}");
    }
}
