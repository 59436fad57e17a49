//! Pages of listings, sorted by name, so that changes between two pages move nothing else.

use std::fmt::Display;
use std::ops::Bound;
use std::str::FromStr;

use http::request::Parts;
use weir_protocol::problem::Problem;
use weir_protocol::query::{self, QueryError};

use crate::catalog::Map;

/// Objects in a page by default.
pub(super) const DEFAULT_LIMIT: usize = 100;

/// The most objects in a page.
pub(super) const MAX_LIMIT: usize = 1000;

/// The prefix of cursors, which are opaque to clients.
const CURSOR: &str = "after.";

/// The requested part of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page<N> {
    limit: usize,
    after: Option<N>,
}

impl<N: Ord + Clone + FromStr<Err: Display> + Display> Page<N> {
    /// Parses `limit` and `page`. `other` receives all other pairs, and returns whether it knows them.
    pub(super) fn parse(
        query: Option<&str>,
        known: &str,
        mut other: impl FnMut(&str, &str) -> Result<bool, QueryError>,
    ) -> Result<Self, QueryError> {
        let mut page = Self { limit: DEFAULT_LIMIT, after: None };
        for (key, value) in query::pairs(query.unwrap_or_default())? {
            match key {
                "limit" => {
                    page.limit = query::parsed(key, &value)?;
                    if !(1..=MAX_LIMIT).contains(&page.limit) {
                        return Err(QueryError::new(format!("`limit` is from 1 to {MAX_LIMIT}")));
                    }
                }
                "page" => {
                    let name = value.strip_prefix(CURSOR).and_then(|name| name.parse().ok());
                    let unknown = || QueryError::new("`page` is no `next_page` of a listing");
                    page.after = Some(name.ok_or_else(unknown)?);
                }
                _ if other(key, &value)? => {}
                _ => return Err(QueryError::unknown(key, known)),
            }
        }
        Ok(page)
    }

    /// The objects of the page, and the cursor of the next page if there is one.
    pub(super) fn of<'a, T>(
        &self,
        all: &'a Map<N, T>,
        wanted: impl Fn(&N, &T) -> bool,
    ) -> (Vec<(&'a N, &'a T)>, Option<String>) {
        let from = self.after.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = all.range::<N, _>((from, Bound::Unbounded)).filter(|(name, each)| wanted(name, each));
        let shown: Vec<_> = rest.by_ref().take(self.limit).collect();
        let more = rest.next().is_some();
        let next = shown.last().filter(|_| more).map(|(name, _)| format!("{CURSOR}{name}"));
        (shown, next)
    }
}

/// Refuses all keys of a query.
pub(super) fn no_keys(head: &Parts) -> Result<(), Problem> {
    let pairs = query::pairs(head.uri.query().unwrap_or_default())?;
    pairs.first().map_or(Ok(()), |(key, _)| Err(QueryError::unknown(key, "none").into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_protocol::name::ServiceName;

    fn parse(query: &str) -> Result<Page<ServiceName>, QueryError> {
        Page::parse(Some(query), "`limit` and `page`", |_, _| Ok(false))
    }

    #[test]
    fn an_invalid_query_is_reported_by_its_key() {
        for (query, word) in [
            ("limit=0", "`limit`"),
            ("limit=1001", "1000"),
            ("limit=x", "`limit`"),
            ("page=shop", "`page`"),
            ("page=after.", "`page`"),
            ("page=after.A", "`page`"),
            ("pages=1", "`pages`"),
        ] {
            let error = parse(query).unwrap_err().to_string();
            assert!(error.contains(word), "{query}: {error}");
        }
    }

    proptest! {
        #[test]
        fn pages_hold_everything_once_and_in_order(
            names in proptest::collection::btree_set("[a-c][a-z0-9]{0,2}", 0..40), limit in 1_usize..10
        ) {
            let all: Map<ServiceName, usize> =
                names.iter().map(|name| (name.parse().unwrap(), name.len())).collect();
            let mut seen = Vec::new();
            let mut next = Some(String::new());
            while let Some(cursor) = next {
                let page = if cursor.is_empty() { String::new() } else { format!("&page={cursor}") };
                let page = parse(&format!("limit={limit}{page}")).unwrap();
                let (shown, after) = page.of(&all, |_, length| *length > 1);
                prop_assert!(shown.len() <= limit);
                seen.extend(shown.iter().map(|(name, _)| name.to_string()));
                next = after;
            }
            let expected: Vec<_> = names.into_iter().filter(|name| name.len() > 1).collect();
            prop_assert_eq!(seen, expected);
        }
    }
}
