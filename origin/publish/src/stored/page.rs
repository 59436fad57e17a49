//! State pages: the rows of a repository's services, sorted by name, split into objects.
//!
//! A page is text with one row a line, so that a change of one row copies the others without parsing. A publication
//! rewrites the pages of its rows, and the neighbours of a page that has become small.

use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::ServiceName;

use super::row::Row;

/// A larger page is split, unless it has only one row.
pub(crate) const MAX_PAGE_BYTES: usize = 256 << 10;

/// A smaller page is merged with its neighbours.
pub(crate) const MIN_PAGE_BYTES: usize = 32 << 10;

/// The size of pages after a split: it leaves room for their rows to grow.
const SPLIT_PAGE_BYTES: usize = 160 << 10;

/// A reference to a page, in a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PageRef {
    /// The first service of the page. The page covers all services up to the first one of the next page.
    pub(crate) first: ServiceName,
    pub(crate) digest: ObjectDigest,
    /// Bytes.
    pub(crate) size: u64,
    /// The pages with the previous version of these rows, which are read if this page is damaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) previous: Vec<ObjectDigest>,
}

/// The position of the page that covers a service. `pages` must not be empty.
pub(crate) fn position(pages: &[PageRef], service: &ServiceName) -> usize {
    pages.partition_point(|page| page.first <= *service).saturating_sub(1)
}

/// The rows of one page, or of several neighbours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// Each service with its line, without the line feed.
    rows: Vec<(ServiceName, Bytes)>,
    size: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("line {line} of the state page cannot be read: {cause}")]
pub(crate) struct PageError {
    line: usize,
    cause: String,
}

impl Page {
    /// Splits the bytes into rows, without parsing them.
    pub(crate) fn parse(bytes: &Bytes) -> Result<Self, PageError> {
        #[derive(Deserialize)]
        struct Named {
            service: ServiceName,
        }
        let mut page = Self::default();
        for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
            let error = |cause: String| PageError { line: number + 1, cause };
            let named: Named = serde_json::from_slice(line).map_err(|cause| error(cause.to_string()))?;
            if page.rows.last().is_some_and(|(last, _)| *last >= named.service) {
                return Err(error(format!("`{}` is out of order", named.service)));
            }
            page.push(named.service, bytes.slice_ref(line));
        }
        Ok(page)
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.size);
        for (_, line) in &self.rows {
            bytes.extend_from_slice(line);
            bytes.push(b'\n');
        }
        bytes.into()
    }

    /// Bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn first(&self) -> Option<&ServiceName> {
        self.rows.first().map(|(service, _)| service)
    }

    pub(crate) fn row(&self, service: &ServiceName) -> Result<Option<Row>, PageError> {
        let Ok(position) = self.find(service) else { return Ok(None) };
        self.read(position).map(Some)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Result<Row, PageError>> {
        (0..self.rows.len()).map(|position| self.read(position))
    }

    /// Inserts or replaces a row; removes it if it is empty.
    pub(crate) fn set(&mut self, row: &Row) {
        let line = (!row.is_empty()).then(|| Bytes::from(serde_json::to_vec(row).expect("a row is plain data")));
        match (self.find(&row.service), line) {
            (Ok(position), Some(line)) => {
                self.size = self.size - self.rows[position].1.len() + line.len();
                self.rows[position].1 = line;
            }
            (Ok(position), None) => self.size -= self.rows.remove(position).1.len() + 1,
            (Err(position), Some(line)) => {
                self.size += line.len() + 1;
                self.rows.insert(position, (row.service.clone(), line));
            }
            (Err(_), None) => {}
        }
    }

    /// Appends the rows of the next page.
    pub(crate) fn append(&mut self, next: Self) {
        self.size += next.size;
        self.rows.extend(next.rows);
    }

    /// Keeps only the services from `from` to before `to`.
    pub(crate) fn restrict(&mut self, from: Option<&ServiceName>, to: Option<&ServiceName>) {
        let is_within =
            |service: &ServiceName| from.is_none_or(|from| from <= service) && to.is_none_or(|to| service < to);
        self.rows.retain(|(service, _)| is_within(service));
        self.size = self.rows.iter().map(|(_, line)| line.len() + 1).sum();
    }

    /// Splits the rows into pages below the limit; a single row may be larger.
    pub(crate) fn split(self) -> Vec<Self> {
        if self.size <= MAX_PAGE_BYTES {
            return if self.rows.is_empty() { Vec::new() } else { vec![self] };
        }
        let count = self.size.div_ceil(SPLIT_PAGE_BYTES);
        let share = self.size.div_ceil(count);
        let mut pages = vec![Self::default()];
        for (service, line) in self.rows {
            let last = pages.last_mut().expect("one is there from the beginning");
            if last.size > 0 && last.size + line.len() + 1 > share.min(MAX_PAGE_BYTES) {
                pages.push(Self::default());
            }
            pages.last_mut().expect("as before").push(service, line);
        }
        pages
    }

    fn push(&mut self, service: ServiceName, line: Bytes) {
        self.size += line.len() + 1;
        self.rows.push((service, line));
    }

    fn find(&self, service: &ServiceName) -> Result<usize, usize> {
        self.rows.binary_search_by(|(other, _)| other.cmp(service))
    }

    fn read(&self, position: usize) -> Result<Row, PageError> {
        let error = |cause: serde_json::Error| PageError { line: position + 1, cause: cause.to_string() };
        serde_json::from_slice(&self.rows[position].1).map_err(error)
    }
}

/// Groups of pages to rewrite together: each of the `changed` pages, with its neighbours if it has become small.
/// `size` returns the size after the change. The ranges are sorted and do not overlap.
pub(crate) fn rewritten_together(changed: &[usize], size: impl Fn(usize) -> usize, count: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &position in changed {
        let mut run = position..position + 1;
        if size(position) < MIN_PAGE_BYTES {
            run = position.saturating_sub(1)..(position + 2).min(count);
        }
        match runs.last_mut() {
            Some(last) if last.end > run.start => *last = last.start.min(run.start)..last.end.max(run.end),
            _ => runs.push(run),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn row(number: u16, filler: usize) -> Row {
        let document = serde_json::Value::String("x".repeat(filler));
        let definition = super::super::row::Definition { written_at: 1, document };
        Row { definition: Some(definition), ..Row::new(format!("s{number:05}").parse().unwrap()) }
    }

    fn filler(row: &Row) -> usize {
        row.definition.as_ref().unwrap().document.as_str().unwrap().len()
    }

    /// Applies a change as the writer does, without objects.
    fn change(pages: &mut Vec<Page>, row: &Row) {
        let refs: Vec<PageRef> = pages
            .iter()
            .map(|page| PageRef {
                first: page.first().unwrap().clone(),
                digest: ObjectDigest::of(b""),
                size: 0,
                previous: Vec::new(),
            })
            .collect();
        if pages.is_empty() {
            pages.push(Page::default());
        }
        let position = position(&refs, &row.service);
        pages[position].set(row);
        let sizes: Vec<usize> = pages.iter().map(Page::size).collect();
        for run in rewritten_together(&[position], |position| sizes[position], sizes.len()).into_iter().rev() {
            let mut all = Page::default();
            pages[run.clone()].iter().for_each(|page| all.append(page.clone()));
            pages.splice(run, all.split());
        }
    }

    proptest! {
        // Rows of hundreds of kilobytes are slow to generate.
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn rows_are_found_again_however_pages_are_cut_and_joined(
            changes in proptest::collection::vec(
                (0u16..40, prop_oneof![Just(None), (0usize..90_000).prop_map(Some), (250_000usize..300_000).prop_map(Some)]),
                1..40,
            ),
        ) {
            let (mut pages, mut expected) = (Vec::new(), BTreeMap::new());
            for (number, size) in changes {
                let changed = size.map_or_else(|| Row::new(row(number, 0).service), |size| row(number, size));
                match size {
                    Some(size) => expected.insert(changed.service.clone(), size),
                    None => expected.remove(&changed.service),
                };
                change(&mut pages, &changed);
                let mut found = BTreeMap::new();
                for page in &pages {
                    let bytes = page.to_bytes();
                    prop_assert_eq!(bytes.len(), page.size());
                    prop_assert_eq!(&Page::parse(&bytes).unwrap(), page);
                    let rows: Vec<Row> = page.rows().map(Result::unwrap).collect();
                    prop_assert!(!rows.is_empty());
                    prop_assert!(page.size() <= MAX_PAGE_BYTES || rows.len() == 1, "{} rows", rows.len());
                    found.extend(rows.iter().map(|row| (row.service.clone(), filler(row))));
                }
                prop_assert_eq!(&found, &expected);
                let firsts: Vec<_> = pages.iter().map(|page| page.first().unwrap().clone()).collect();
                prop_assert!(firsts.is_sorted());
            }
            // At most twice as many pages as full pages of the minimum size.
            let total: usize = pages.iter().map(Page::size).sum();
            prop_assert!(pages.len() <= 2 + 2 * total / MIN_PAGE_BYTES, "{} pages for {total} bytes", pages.len());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Page::parse(&bytes.into());
        }
    }

    #[test]
    fn rows_out_of_order_or_twice_are_refused() {
        let line = |number| serde_json::to_string(&row(number, 1)).unwrap();
        for lines in [[line(2), line(1)], [line(1), line(1)]] {
            let error = Page::parse(&lines.join("\n").into()).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains("out of order"), "{error}");
        }
    }
}
