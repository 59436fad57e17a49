//! `/v1/agents` and `/v1/agents/{name}`: the agents that say to this edge what they run.

use http::{Response, Uri};
use weir_protocol::name::NodeName;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::query::{self, QueryError};
use weir_runtime::admin;
use weir_runtime::serve::Body;

use super::error::OperatorError;
use crate::observed::Observed;

/// Agents in a page by default, and at most.
const DEFAULT_LIMIT: usize = 100;

const MAX_LIMIT: usize = 1_000;

pub(super) fn answer(observed: &Observed, uri: &Uri) -> Result<Response<Body>, OperatorError> {
    if let Some(name) = uri.path().strip_prefix("/v1/agents/") {
        let name: NodeName = name.parse().map_err(|_| OperatorError::UnknownAgent(name.to_owned()))?;
        let agent = observed.agent(&name).ok_or_else(|| OperatorError::UnknownAgent(name.to_string()))?;
        return Ok(admin::json(&agent));
    }
    let (mut agent, mut cursor, mut limit) = (None::<NameGlob>, None::<NodeName>, DEFAULT_LIMIT);
    for (key, value) in query::pairs(uri.query().unwrap_or_default()) {
        match key {
            "agent" => agent = Some(query::parsed(key, value)?),
            "cursor" => cursor = Some(query::parsed(key, value)?),
            "limit" => limit = query::parsed(key, value)?,
            other => return Err(QueryError::unknown(other, "`agent`, `limit` and `cursor`").into()),
        }
    }
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(QueryError::new(format!("`limit` is from 1 to {MAX_LIMIT}")).into());
    }
    Ok(admin::json(&observed.page(agent.as_ref(), cursor.as_ref(), limit)))
}
