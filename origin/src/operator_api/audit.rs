//! What operators ask to be changed, in the log: who, what, and what became of it.

use http::{Method, Response, StatusCode};
use weir_shared::process::serve::Body;

use super::error::OperatorError;
use super::route::Route;
use crate::catalog::LONGEST_REASON;

/// Whether a request would change something, or have something done.
pub(super) fn concerns(route: &Route, method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD) && !matches!(route, Route::DryRun(_))
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End {
    /// `None`: nobody waited for an answer.
    status: Option<StatusCode>,
    /// Why it was refused, or what is not known of it.
    reason: Option<String>,
}

/// Answers, and has the end told whatever it is: who hangs up ends the waiting, and not what was begun.
pub(super) async fn to_the_end<F: FnOnce(End)>(
    answer: impl Future<Output = Result<Response<Body>, OperatorError>>,
    tell: F,
) -> Result<Response<Body>, OperatorError> {
    let mut untold = Untold(Some(tell));
    let answer = answer.await;
    if let Some(tell) = untold.0.take() {
        tell(end(&answer));
    }
    answer
}

/// One line.
pub(super) fn tell(by: &str, method: &Method, route: &Route, end: End) {
    let End { status, reason } = end;
    tracing::info!(by, %method, path = %route, status = status.map(|status| status.as_u16()), reason, "an operator's order");
}

/// Dropped before it was told, it says so.
struct Untold<F: FnOnce(End)>(Option<F>);

impl<F: FnOnce(End)> Drop for Untold<F> {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            let reason = "abandoned: the client hung up before it was answered; it may have been carried out";
            tell(End { status: None, reason: Some(reason.to_owned()) });
        }
    }
}

/// The status, and why it was refused.
fn end(answer: &Result<Response<Body>, OperatorError>) -> End {
    match answer {
        Ok(response) => End { status: Some(response.status()), reason: None },
        Err(error) => {
            let problem = error.problem();
            let reason = problem.detail().chars().take(LONGEST_REASON).collect();
            End { status: Some(problem.status()), reason: Some(reason) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::cell::RefCell;

    #[test]
    fn what_changes_something_is_told_with_the_reason_when_it_is_refused() {
        let route = |path| Route::parse(path).unwrap();
        let pin = route("/v1/services/shop/pin");
        assert!(concerns(&pin, &Method::PUT) && concerns(&pin, &Method::DELETE));
        assert!(concerns(&route("/v1/services/shop/rollback"), &Method::POST));
        assert!(concerns(&route("/v1/repositories/shop/refresh"), &Method::POST));
        assert!(!concerns(&route("/v1/services/shop"), &Method::GET));
        assert!(!concerns(&route("/v1/services/shop/dry-run"), &Method::POST));
        let refused = end(&Err(OperatorError::NoSuchService("shop".parse().unwrap())));
        assert_eq!(refused.status, Some(StatusCode::NOT_FOUND));
        assert_eq!(refused.reason.as_deref(), Some("There is no service `shop` here."));
        let taken = end(&Ok(Response::new(Body::Empty)));
        assert_eq!(taken, End { status: Some(StatusCode::OK), reason: None });
        let long = end(&Err(OperatorError::Malformed("x".repeat(1 << 20))));
        assert_eq!(long.reason.unwrap().len(), LONGEST_REASON);
    }

    #[test]
    fn an_order_is_told_of_once_also_when_nobody_waits_for_the_answer() {
        let told = RefCell::new(Vec::new());
        let tell = |end: End| told.borrow_mut().push(end.status);
        let mut waiting = Box::pin(to_the_end(std::future::pending(), tell));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(told.borrow().is_empty());
        drop(waiting);
        assert_eq!(told.take(), [None]);
        let answered = to_the_end(std::future::ready(Ok(Response::new(Body::Empty))), tell);
        assert!(answered.now_or_never().unwrap().is_ok());
        assert_eq!(told.take(), [Some(StatusCode::OK)]);
    }
}
