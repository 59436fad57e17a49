//! Keys with another name since 0.2: an error about the old one names the new one. `docs/reference/renamed.md` lists them.

const RENAMED: [(&str, &str); 9] = [
    ("shortest_gap", "min_poll_interval"),
    ("lowest_rate", "min_rate"),
    ("remembered_tokens", "cached_tokens"),
    ("warm_within", "prefetch_within"),
    ("ask_interval", "revalidate_interval"),
    ("fetches", "fills"),
    ("fetch_idle", "fill_idle"),
    ("fetch_wait", "fill_wait"),
    ("report_bytes", "observed_bytes"),
];

/// The name that an unknown key has now, if it is among the `known` keys of its section.
pub(super) fn successor(unknown: &str, known: &[&str]) -> Option<&'static str> {
    RENAMED.iter().find(|(old, new)| *old == unknown && known.contains(new)).map(|(_, new)| *new)
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "its fields are only parsed")]
    struct Section {
        fills: Option<u64>,
        min_poll_interval: Option<u64>,
    }

    #[test]
    fn an_error_about_an_old_key_names_the_new_one() {
        for (old, new) in [("fetches", "fills"), ("shortest_gap", "min_poll_interval")] {
            let errors = parse::<Section>(&format!("{old} = 1\n")).unwrap_err();
            assert!(errors.len() == 1 && errors[0].contains(&format!("its name is `{new}` since 0.2")), "{errors:?}");
        }
        // The key of another section.
        let errors = parse::<Section>("lowest_rate = 1\n").unwrap_err();
        assert!(!errors[0].contains("min_rate"), "{errors:?}");
    }
}
