//! What is stored of a repository: its record, state pages with a row for each service, history, and what they reference;
//! and what is in memory of it.

pub(crate) mod history;
pub(crate) mod history_line;
pub(crate) mod known;
pub(crate) mod load;
pub(crate) mod mark;
pub(crate) mod page;
pub(crate) mod record;
pub(crate) mod row;
pub(crate) mod store_identity;
pub(crate) mod stored_definitions;
