//! Periods in plans, such as `10m`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(period: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*period))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(|error| {
        serde::de::Error::custom(format!("`{text}` is not a period: {error}: write it as in `10m` or `2h 30m`"))
    })
}

/// The same where there may be none.
pub(crate) mod optional {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(crate) fn serialize<S: Serializer>(period: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match period {
            Some(period) => super::serialize(period, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Period(#[serde(with = "super")] Duration);
        Ok(Option::<Period>::deserialize(deserializer)?.map(|period| period.0))
    }
}
