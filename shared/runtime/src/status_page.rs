//! Pages of `/status`: `limit`, `after` and `service`.

use std::str::FromStr;

use serde_json::Value;
use weir_protocol::name::ServiceName;
use weir_protocol::query::{self, QueryError};

/// The most entries of a list in a page, and how many there are by default.
pub const MAX_LIMIT: usize = 1000;

/// The lists that pages have parts of.
const LISTS: [&str; 3] = ["/repositories", "/services", "/cluster/owned"];

/// The requested part of the document.
#[derive(Debug, PartialEq, Eq)]
pub struct StatusPage<C> {
    /// The most entries of a list.
    pub limit: usize,
    /// Where the page before ended.
    pub after: Option<C>,
    /// Only this service.
    pub service: Option<ServiceName>,
}

impl<C: FromStr> StatusPage<C> {
    /// Parses the query of a request.
    ///
    /// # Errors
    /// It has an unknown key or an invalid value.
    pub fn parse(query: &str) -> Result<Self, QueryError> {
        let mut page = Self { limit: MAX_LIMIT, after: None, service: None };
        for (key, value) in query::pairs(query)? {
            match key {
                "limit" => {
                    page.limit = query::parsed(key, &value)?;
                    if !(1..=MAX_LIMIT).contains(&page.limit) {
                        return Err(QueryError::new(format!("`limit` is from 1 to {MAX_LIMIT}")));
                    }
                }
                "after" => {
                    let unknown = |_| QueryError::new("`after` is no `next_after` of a page");
                    page.after = Some(value.parse().map_err(unknown)?);
                }
                "service" => page.service = Some(query::parsed(key, &value)?),
                _ => return Err(QueryError::unknown(key, "`limit`, `after` and `service`")),
            }
        }
        Ok(page)
    }
}

/// Adds the lists of the page that follows to those of a document.
pub fn join(document: &mut Value, mut next: Value) {
    for list in LISTS {
        if let (Some(Value::Array(all)), Some(Value::Array(more))) =
            (document.pointer_mut(list), next.pointer_mut(list))
        {
            all.append(more);
        }
    }
    if let Some(cursor) = document.get_mut("next_after") {
        *cursor = next["next_after"].take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_query_is_reported_by_its_key() {
        let parse = StatusPage::<ServiceName>::parse;
        for (query, word) in [
            ("limit=0", "`limit`"),
            ("limit=1001", "1000"),
            ("after=A", "`after`"),
            ("service=A", "`service`"),
            ("page=shop", "`page`"),
        ] {
            let error = parse(query).unwrap_err().to_string();
            assert!(error.contains(word), "{query}: {error}");
        }
        let shop: ServiceName = "shop".parse().unwrap();
        let page = parse("limit=2&after=shop").unwrap();
        assert_eq!(page, StatusPage { limit: 2, after: Some(shop), service: None });
    }
}
