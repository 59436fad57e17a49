//! The bounds of memory, within the limit of a container.

use bytesize::ByteSize;

use super::Config;

/// Of the limit; the rest is for connections, the index of the disk, and what the kernel keeps for the process.
const PART: (u128, u128) = (3, 4);

/// What a [decoder](weir_cache::CacheConfig::decoders) takes, and an encoder.
const DECODER: u64 = 8 << 20;
const ENCODER: u64 = 9 << 20;

struct Bound<'c> {
    table: &'static str,
    key: &'static str,
    /// The least that the key may be, in bytes.
    least: u64,
    value: Value<'c>,
}

enum Value<'c> {
    Size(&'c mut ByteSize),
    /// So many, of so many bytes each.
    Count(&'c mut usize, u64),
}

impl Bound<'_> {
    fn bytes(&self) -> u64 {
        match &self.value {
            Value::Size(size) => size.as_u64(),
            Value::Count(count, each) => each.saturating_mul(**count as u64),
        }
    }

    fn set(&mut self, bytes: u64) {
        let bytes = bytes.max(self.least);
        match &mut self.value {
            // Whole MiB are easier to read in a log.
            Value::Size(size) => **size = ByteSize(bytes >> 20 << 20),
            Value::Count(count, each) => **count = usize::try_from(bytes / *each).unwrap_or(usize::MAX),
        }
    }
}

fn bounds(config: &mut Config) -> [Bound<'_>; 7] {
    let (cache, auth, agents) = (&mut config.cache, &mut config.auth, &mut config.agents);
    let size = |table, key, least, size| Bound { table, key, least, value: Value::Size(size) };
    let count = |key, each, count| Bound { table: "cache", key, least: each, value: Value::Count(count, each) };
    [
        size("cache", "memory", 4 << 20, &mut cache.memory),
        size("cache", "in_flight", 16 << 20, &mut cache.in_flight),
        size("cache", "service_bytes", 1 << 20, &mut cache.service_bytes),
        count("decoders", DECODER, &mut cache.decoders),
        count("encoders", ENCODER, &mut cache.encoders),
        size("auth", "fleet_bytes", 1 << 20, &mut auth.fleet_bytes),
        size("agents", "observed_bytes", 1 << 20, &mut agents.observed_bytes),
    ]
}

impl Config {
    /// What all bounds of memory together allow, in bytes.
    pub fn memory(&self) -> u64 {
        bounds(&mut self.clone()).iter().map(Bound::bytes).fold(0, u64::saturating_add)
    }

    /// Lowers the bounds of which the file says nothing, so that all together allow three quarters of `limit`, if the others leave
    /// so much.
    pub(super) fn fit_memory(&mut self, limit: u64, keys: &serde_json::Value) {
        let is_set = |bound: &Bound<'_>| keys.get(bound.table).and_then(|table| table.get(bound.key)).is_some();
        let mut bounds = bounds(self);
        let of = |are_set: bool| {
            let some = bounds.iter().filter(|bound| is_set(bound) == are_set);
            some.map(Bound::bytes).fold(0, u64::saturating_add)
        };
        let (set, rest) = (of(true), of(false));
        let part = u128::from(limit) * PART.0 / PART.1;
        let left = part.saturating_sub(set.into());
        if left < u128::from(rest) {
            for bound in bounds.iter_mut().filter(|bound| !is_set(bound)) {
                let bytes = u128::from(bound.bytes()) * left / u128::from(rest);
                bound.set(u64::try_from(bytes).unwrap_or(u64::MAX));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIRED: &str =
        "name = \"edge-1\"\nlisten = \"127.0.0.1:7443\"\n[tls]\ncertificate = \"e.pem\"\nkey = \"e.key\"\n";

    fn config(limit: Option<u64>, more: &str) -> Config {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{REQUIRED}{more}")).unwrap();
        let config = Config::read_within(file.path(), limit).unwrap();
        assert!(config.cache.errors().is_empty() && config.agents.errors().is_empty(), "{:?}", config.cache);
        config
    }

    #[test]
    fn bounds_that_are_not_set_fit_into_the_limit() {
        let without = config(None, "[cache]\ndir = \"cache\"\n").memory();
        for limit in [8 << 30, 4 << 30, 2 << 30, 1 << 30, 256 << 20] {
            let memory = config(Some(limit), "[cache]\ndir = \"cache\"\n").memory();
            let most = (limit / 4 * 3).min(without);
            assert!(memory <= most && memory > most - (24 << 20), "{memory} of {limit}");
        }
        let some = "[cache]\ndir = \"cache\"\nmemory = \"1GiB\"\ndecoders = 7\n";
        let fitted = config(Some(2 << 30), some);
        assert_eq!((fitted.cache.memory, fitted.cache.decoders), (ByteSize::gib(1), 7));
        assert!(fitted.memory() <= 3 << 29, "{}", fitted.memory());
        // The others have the least that they may have.
        let much = config(Some(1 << 30), some);
        assert_eq!((much.cache.in_flight, much.cache.encoders), (ByteSize::mib(16), 1));
        assert!(much.memory() > 1 << 30);
    }

    #[test]
    fn a_number_may_be_the_largest() {
        let some = "[cache]\ndir = \"cache\"\nencoders = 7\n[auth]\ncached_tokens = 18446744073709551615\n";
        for limit in [None, Some(256 << 20)] {
            let config = config(limit, some);
            assert_eq!((config.auth.cached_tokens, config.cache.encoders), (u64::MAX, 7));
        }
    }
}
