//! `Link` (RFC 8288) of a list with several pages. Pure.

use reqwest::Url;
use reqwest::header::{HeaderMap, LINK};

const UNUSABLE: &str = "its `Link` to the next page cannot be used";

/// The next page of a list: the same path with the query of the link. Some registries name another host, or `http://`.
/// `None`: it was the last page.
///
/// # Errors
/// There is another page, and the link does not say which.
pub(super) fn next_page(page: &Url, headers: &HeaderMap) -> Result<Option<Url>, &'static str> {
    let mut target = None;
    for value in headers.get_all(LINK) {
        target = target.or(next_target(value.to_str().map_err(|_| UNUSABLE)?)?);
    }
    let Some(target) = target else { return Ok(None) };
    let linked = page.join(target).map_err(|_| UNUSABLE)?;
    let mut next = page.clone();
    next.set_query(Some(linked.query().ok_or(UNUSABLE)?));
    Ok(Some(next))
}

/// The target of the link with the relation `next`.
fn next_target(mut rest: &str) -> Result<Option<&str>, &'static str> {
    while let Some((_, link)) = rest.split_once('<') {
        let (target, after) = link.split_once('>').ok_or(UNUSABLE)?;
        let (parameters, others) = after.split_at(end_of_link(after));
        if parameters.split(';').any(is_next) {
            return Ok(Some(target.trim()));
        }
        rest = others;
    }
    Ok(None)
}

/// Where the comma before another link is. Commas in quotes are none.
fn end_of_link(parameters: &str) -> usize {
    let mut is_quoted = false;
    let end = parameters.find(|c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    end.unwrap_or(parameters.len())
}

fn is_next(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, value)| {
        let mut relations = value.trim().trim_matches('"').split_ascii_whitespace();
        name.trim().eq_ignore_ascii_case("rel") && relations.any(|relation| relation.eq_ignore_ascii_case("next"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::HeaderValue;

    use super::*;

    fn next(value: &str) -> Result<Option<String>, &'static str> {
        let page = Url::parse("https://ghcr.io/v2/acme/shop/tags/list?n=1000").unwrap();
        let headers = HeaderMap::from_iter([(LINK, HeaderValue::from_str(value).unwrap())]);
        next_page(&page, &headers).map(|next| next.map(String::from))
    }

    #[test]
    fn only_the_query_of_a_link_is_used() {
        let page = |query: &str| Ok(Some(format!("https://ghcr.io/v2/acme/shop/tags/list?{query}")));
        for (value, query) in [
            ("</v2/acme/shop/tags/list?last=v1&n=100>; rel=\"next\"", "last=v1&n=100"),
            ("<http://internal:5000/other?last=v1>;rel=next", "last=v1"),
            ("<?last=a%2Bb>; REL = \"prev Next\"", "last=a%2Bb"),
            ("</x?a=1>; rel=\"first\", </x?b=2>; title=\"a, b\"; rel=\"next\"", "b=2"),
        ] {
            assert_eq!(next(value), page(query), "{value}");
        }
        for value in ["", "</x?a=1>", "</x?a=1>; rel=prev"] {
            assert_eq!(next(value), Ok(None), "{value}");
        }
        for value in ["</x>; rel=next", "</x?a=1; rel=next", "<http://[?a=1>; rel=next"] {
            assert!(next(value).is_err(), "a part of a list is not a list: {value}");
        }
    }

    proptest! {
        #[test]
        fn no_link_leads_to_another_path(value in "(<|>|;|,|rel=next|\"|[ -~]){0,30}") {
            if let Ok(Some(next)) = next(&value) {
                prop_assert!(next.starts_with("https://ghcr.io/v2/acme/shop/tags/list?"), "{next}");
            }
        }
    }
}
