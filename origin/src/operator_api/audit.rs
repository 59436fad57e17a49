//! What operators ask to be changed, in the log: who, what, and what became of it.

use http::{Method, Response, StatusCode};
use weir_shared::process::serve::Body;

use super::error::OperatorError;
use super::route::Route;

/// Whether a request would change something, or have something done.
pub(super) fn concerns(route: &Route, method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD) && !matches!(route, Route::DryRun(_))
}

/// Tells of one that was answered.
pub(super) fn tell(by: &str, method: &Method, route: &Route, answer: &Result<Response<Body>, OperatorError>) {
    let (status, reason) = said(answer);
    tracing::info!(by, %method, path = %route, status = status.as_u16(), reason, "an operator's order");
}

/// The status, and why it was refused.
fn said(answer: &Result<Response<Body>, OperatorError>) -> (StatusCode, Option<String>) {
    match answer {
        Ok(response) => (response.status(), None),
        Err(error) => {
            let problem = error.problem();
            (problem.status(), Some(problem.detail().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_something_is_told_with_the_reason_when_it_is_refused() {
        let route = |path| Route::parse(path).unwrap();
        let pin = route("/v1/services/shop/pin");
        assert!(concerns(&pin, &Method::PUT) && concerns(&pin, &Method::DELETE));
        assert!(concerns(&route("/v1/services/shop/rollback"), &Method::POST));
        assert!(concerns(&route("/v1/repositories/shop/refresh"), &Method::POST));
        assert!(!concerns(&route("/v1/services/shop"), &Method::GET));
        assert!(!concerns(&route("/v1/services/shop/dry-run"), &Method::POST));
        let (status, reason) = said(&Err(OperatorError::NoSuchService("shop".parse().unwrap())));
        assert_eq!((status, reason.as_deref()), (StatusCode::NOT_FOUND, Some("There is no service `shop` here.")));
        assert_eq!(said(&Ok(Response::new(Body::Empty))), (StatusCode::OK, None));
    }
}
