//! The problem documents of the operators' API.

use http::{HeaderValue, StatusCode, header};
use weir_protocol::name::ServiceName;
use weir_protocol::problem::Problem;
use weir_runtime::operator_token::NotAdmitted;

pub(super) fn no_token_configured() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "no-operator-token",
        "No operator token is configured",
        "Set `operator_token_file` in `[admin]` of the edge's configuration to a file with a token of at least \
         16 bytes, and send it as `Authorization: Bearer <token>`.",
    )
}

pub(super) fn not_admitted(why: NotAdmitted) -> Problem {
    match why {
        NotAdmitted::Missing | NotAdmitted::Wrong => Problem::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            if why == NotAdmitted::Wrong { "The operator token is wrong" } else { "The operator token is missing" },
            "Send the token of `operator_token_file` as `Authorization: Bearer <token>`.",
        )
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
        NotAdmitted::Unusable => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "operator-token-unusable",
            "The operator token cannot be read",
            "The file of the operator token cannot be read; the edge's log has the reason.",
        ),
    }
}

pub(super) fn unknown_service(service: &ServiceName) -> Problem {
    let detail = format!(
        "This edge knows nothing of `{service}`: check the name. `/status` lists the services that it has; the first request \
         for another one queries the origins."
    );
    Problem::new(StatusCode::NOT_FOUND, "no-such-service", "No such service", detail).about("service", service)
}

pub(super) fn unknown_agent(agent: &str) -> Problem {
    let detail = format!(
        "No agent `{agent}` has told this edge what it runs within a day: check the name, or ask another edge."
    );
    Problem::new(StatusCode::NOT_FOUND, "no-such-agent", "No such agent", detail).about("agent", &agent)
}

/// A task of the edge panicked.
pub(super) fn failed<E>(_: E) -> Problem {
    let detail = "The edge failed; its log has the reason.";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "edge-failed", "The edge failed", detail)
}
