//! `/v1/agents` and `/v1/agents/{name}`: the agents that say to this edge what they run.

use http::{Response, Uri};
use weir_protocol::name::NodeName;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::problem::Problem;
use weir_protocol::query::{self, QueryError};
use weir_runtime::admin;
use weir_runtime::serve::Body;

use super::error::unknown_agent;
use crate::observed::Observed;

/// Agents in a page by default, and at most.
const DEFAULT_LIMIT: usize = 100;

const MAX_LIMIT: usize = 1_000;

pub(super) fn answer(observed: &Observed, uri: &Uri) -> Result<Response<Body>, Problem> {
    if let Some(name) = uri.path().strip_prefix("/v1/agents/") {
        let agent = name.parse().ok().and_then(|name: NodeName| observed.agent(&name));
        return agent.map(|agent| admin::json(&agent)).ok_or_else(|| unknown_agent(name));
    }
    let (mut agent, mut cursor, mut limit) = (None::<NameGlob>, None::<NodeName>, DEFAULT_LIMIT);
    for (key, value) in query::pairs(uri.query().unwrap_or_default())? {
        match key {
            "agent" => agent = Some(query::parsed(key, &value)?),
            "cursor" => cursor = Some(query::parsed(key, &value)?),
            "limit" => limit = query::parsed(key, &value)?,
            other => return Err(QueryError::unknown(other, "`agent`, `limit` and `cursor`").into()),
        }
    }
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(QueryError::new(format!("`limit` is from 1 to {MAX_LIMIT}")).into());
    }
    Ok(admin::json(&observed.page(agent.as_ref(), cursor.as_ref(), limit)))
}
