//! Lists the tags of a repository, page by page.

use std::collections::HashSet;
use std::fmt;

use reqwest::{Response, Url};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use weir_protocol::digest::Sha256;
use weir_upstream::{UpstreamError, shown};

use super::error::{RegistryError, sent_instead};
use super::registry::{MAX_MANIFEST_BYTES, Registry, is_tag};
use super::{OciName, link};

/// The greatest bound of a page: it is in memory.
const MAX_PAGE_BYTES: u64 = 64 << 20;

/// The most bytes of a page for each of `max_tags`: some registries list manifests with them.
const MAX_BYTES_PER_TAG: u64 = 1 << 10;

/// The most pages. A registry may send one tag a page.
const MAX_PAGES: usize = 1000;

/// The tags that are requested per page. Registries may send fewer.
const TAGS_PER_PAGE: usize = 1000;

/// The most characters of an error of the parser in a message.
const MAX_SHOWN: usize = 200;

/// The most tags of a page in memory: the largest `max_tags`, and one.
const MAX_TAGS_OF_PAGE: usize = 1_000_001;

/// One page.
#[derive(Deserialize)]
struct Page {
    /// Some registries write `null`.
    tags: Option<Tags>,
}

/// The entries of one page, of which a hostile one may have millions.
#[derive(Default)]
struct Tags {
    /// Those that can be tags.
    tags: Vec<String>,
    /// Of all entries.
    count: usize,
}

impl Registry<'_> {
    /// All tags of a repository, as the registry sorts them. What cannot be a tag is left out.
    pub(crate) fn tags(&self, name: &OciName) -> Result<Vec<String>, RegistryError> {
        match self.tags_in_pages(name, true)? {
            Some(tags) => Ok(tags),
            None => Ok(self.tags_in_pages(name, false)?.unwrap_or_default()),
        }
    }

    /// The same, in pages of a number of tags. `None`: the registry does not list them so.
    fn tags_in_pages(&self, name: &OciName, has_number: bool) -> Result<Option<Vec<String>>, RegistryError> {
        let max_tags = self.max_tags();
        let mut first = self.url_of(name, &["tags", "list"]);
        if has_number {
            first.query_pairs_mut().append_pair("n", &TAGS_PER_PAGE.to_string());
        }
        let (mut tags, mut listed, mut seen, mut has_links) = (Vec::new(), 0, HashSet::new(), false);
        let mut page = first.clone();
        loop {
            // A part of the tags would be another choice of a version.
            if !seen.insert(Sha256::of(page.as_str().as_bytes())) || seen.len() > MAX_PAGES {
                let cause = format!(
                    "the list of tags does not end: page {} repeats an earlier one, or there are more than 1000",
                    seen.len()
                );
                return Err(invalid(cause));
            }
            let response = match self.get(name, "tags", page.clone(), "application/json") {
                // Some registries refuse the number.
                Err(RegistryError::Unusable(_)) if has_number && page == first => return Ok(None),
                response => response?,
            };
            let next = link::next_page(&page, response.headers());
            let Tags { tags: of_page, count } = self.page_of_tags(response)?;
            // The registry ignores `last`: the first tag does not come after the last one.
            let is_repeated = !has_links && tags.first().is_some_and(|first| of_page.contains(first));
            if !is_repeated {
                tags.extend(of_page);
                listed += count;
            }
            if listed > max_tags {
                return Err(UpstreamError::TooManyTags(max_tags).into());
            }
            match (next, tags.last().filter(|_| !is_repeated)) {
                (Ok(Some(next)), _) => (page, has_links) = (next, true),
                (Ok(None), _) if has_links || count < TAGS_PER_PAGE => return Ok(Some(tags)),
                (Err(_), Some(_)) if count == 0 => return Ok(Some(tags)),
                // Whether there are more tags is not said, or not where they are.
                (Ok(None) | Err(_), Some(last)) => {
                    page = first.clone();
                    page.query_pairs_mut().append_pair("last", last);
                }
                (Err(reason), None) => return Err(invalid(reason.to_owned())),
                // More than the number: the registry sends all at once.
                (Ok(None), None) => return Ok((count > TAGS_PER_PAGE || !has_number).then_some(tags)),
            }
        }
    }

    fn page_of_tags(&self, response: Response) -> Result<Tags, RegistryError> {
        let max_tags = self.max_tags();
        let max_page = (MAX_BYTES_PER_TAG * max_tags as u64).clamp(MAX_MANIFEST_BYTES, MAX_PAGE_BYTES);
        let instead = sent_instead(&response);
        let (bytes, _) = self.read(response, max_page).map_err(|error| match error {
            RegistryError::Unusable(reason) => invalid(format!(
                "a page {reason}, the bound with `[upstreams] max_tags` = {max_tags}: raise it, or follow a tag instead of \
                 a range"
            )),
            error => error,
        })?;
        let page: Page =
            serde_json::from_slice(&bytes).map_err(|error| invalid(shown(&error.to_string(), MAX_SHOWN) + &instead))?;
        Ok(page.tags.unwrap_or_default())
    }
}

/// Whether it is the URL of the first page with a number of tags.
pub(super) fn has_only_number(url: &Url) -> bool {
    url.query().and_then(|query| query.strip_prefix("n=")).is_some_and(|number| number == TAGS_PER_PAGE.to_string())
}

fn invalid(cause: String) -> RegistryError {
    UpstreamError::InvalidList { name: "tags/list", cause }.into()
}

impl<'de> Deserialize<'de> for Tags {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Tags;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of tags")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Tags, A::Error> {
        let mut read = Tags::default();
        // Some registries write `null` among them.
        while let Some(entry) = entries.next_element::<Option<String>>()? {
            read.count += 1;
            if read.tags.len() < MAX_TAGS_OF_PAGE {
                read.tags.extend(entry.filter(|tag| is_tag(tag)));
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_no_more_than_can_be_used() {
        let page = |entry: &str, count: usize| {
            let json = format!("{{\"tags\":[{}{entry}]}}", format!("{entry},").repeat(count - 1));
            serde_json::from_str::<Page>(&json).unwrap().tags.unwrap()
        };
        let Tags { tags, count } = page("\"\"", 3_000_000);
        assert_eq!((tags.capacity(), count), (0, 3_000_000));
        let Tags { tags, count } = page("\"a\"", MAX_TAGS_OF_PAGE + 2);
        assert_eq!((tags.len(), count), (MAX_TAGS_OF_PAGE, MAX_TAGS_OF_PAGE + 2));
    }
}
