//! `GET /v2/token`: clients that insist on a token service send their password, and get it back as a token.

use std::time::SystemTime;

use http::{HeaderValue, Request, header};
use serde_json::json;
use weir_protocol::token::unix_seconds;
use weir_runtime::serve::{Peer, RequestBody};

use super::error::OciError;
use super::{OciApi, challenge, json};
use crate::access::{Refusal, bearer_token};
use crate::agent_api::ApiResponse;

impl OciApi {
    pub(super) fn token(&self, request: &Request<RequestBody>, peer: &Peer) -> Result<ApiResponse, OciError> {
        let refused = |refusal| challenge::error(request, None, refusal);
        let token = bearer_token(request.headers()).map_err(refused)?;
        let token = token.ok_or_else(|| refused(Refusal::NoCredential))?;
        // An edge that checks no credentials knows no end of one.
        let agent = self.reads.access.agent(request.headers(), peer).map_err(refused)?;
        let ends = agent.and_then(|agent| agent.valid_until);
        let mut document = json!({ "token": token, "access_token": token });
        if let Some(ends) = ends {
            document["expires_in"] = ends.saturating_sub(unix_seconds(SystemTime::now())).into();
        }
        let mut response = json("application/json", document.to_string());
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(ApiResponse::own(response))
    }
}
