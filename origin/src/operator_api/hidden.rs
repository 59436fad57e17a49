//! The state of a repository names services: an operator is shown those that it sees.

use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use serde_json::Value;
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;

use super::permissions::Permissions;
use super::problems;

/// The longest document of a repository that another member answers with.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// What stands for a reason that may name other services.
const HIDDEN: &str = "its records are damaged; an operator who sees all services is told which";

impl Permissions {
    /// Takes other services out of a repository's document.
    pub(super) fn limit_repository(&self, document: &mut Value) {
        if self.services.is_none() {
            return;
        }
        let is_seen = |name: &Value| name.as_str().and_then(|name| name.parse().ok()).is_some_and(|it| self.sees(&it));
        for path in ["/status/building", "/status/lfs/services"] {
            if let Some(names) = document.pointer_mut(path).and_then(Value::as_array_mut) {
                names.retain(is_seen);
            }
        }
        if let Some(reason) = document.pointer_mut("/status/suspended/reason") {
            *reason = HIDDEN.into();
        }
    }

    /// The same in the answer of the repository's owner, which was not told what the operator sees.
    pub(super) async fn limit_answer(&self, answer: Response<Body>) -> Result<Response<Body>, Problem> {
        if self.services.is_none() || answer.status() != StatusCode::OK {
            return Ok(answer);
        }
        let (mut head, body) = answer.into_parts();
        let whole = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(problems::failed)?.to_bytes();
        if whole.is_empty() {
            return Ok(Response::from_parts(head, Body::Empty)); // Of `HEAD`.
        }
        let mut document: Value = serde_json::from_slice(&whole).map_err(problems::failed)?;
        self.limit_repository(&mut document);
        head.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(head, Body::from(document.to_string().into_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{OperatorConfig, OperatorRole};
    use serde_json::json;
    use weir_runtime::admin;

    #[tokio::test]
    async fn an_operator_is_told_of_no_other_service_by_another_member_either() {
        let document = || {
            json!({ "name": "shop", "status": { "building": ["shop-a", "pay-a"], "lfs": { "services": ["pay-b", "shop-b"] },
                "suspended": { "since": "2026-01-02T03:04:05Z", "reason": "the state page of pay-c is damaged" } } })
        };
        let mut ana = OperatorConfig::new("ana".parse().unwrap(), OperatorRole::View);
        ana.services = Some(vec!["shop-*".parse().unwrap()]);
        let seen = async |may: Permissions| {
            let answer = may.limit_answer(admin::json(&document())).await.unwrap();
            serde_json::from_slice::<Value>(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
        };
        let limited = seen(Permissions::of(&ana)).await;
        assert_eq!(limited["status"]["building"], json!(["shop-a"]));
        assert_eq!(limited["status"]["lfs"]["services"], json!(["shop-b"]));
        assert!(!limited.to_string().contains("pay-"), "{limited}");
        assert_eq!(seen(Permissions::of_role(OperatorRole::View)).await, document());
        // Nothing is added to a state that has none of it.
        let mut elsewhere = json!({ "name": "shop", "status": { "health": "elsewhere" } });
        Permissions::of(&ana).limit_repository(&mut elsewhere);
        assert_eq!(elsewhere["status"], json!({ "health": "elsewhere" }));
    }
}
