//! `operators.md`: what each role is refused.

use weir_origin::config::OperatorRole;
use weir_origin::{OperatorRequest, operator_requests};

use super::{compare, head, row};

const INTRODUCTION: &str = "# Roles of operators

What an [operator](../how-to/operators.md) of an origin needs for each [request](http.md#operators-of-an-origin). \
`403` (`not-permitted`): the role is not enough. *limited*: an operator with `services` gets what belongs to these services, and \
`403` for others; *all*: such an operator is refused. *audited*: the log has a line of it. Without `[[operator]]` in the \
configuration, every operator is an admin.

";

#[test]
fn the_reference_of_operators_matches_the_code() {
    let roles = OperatorRole::ALL.map(OperatorRole::as_str);
    let mut page = INTRODUCTION.to_owned();
    page += &head(&[&["request"][..], &roles, &["services", "audited"]].concat());
    for OperatorRequest { methods, path, role, needs_all_services, is_audited } in operator_requests() {
        let Some(needed) = role else { continue };
        let allowed = OperatorRole::ALL.map(|role| if role < needed { "403" } else { "yes" });
        let services = if needs_all_services { "all" } else { "limited" };
        let services = if needed == OperatorRole::Admin { "" } else { services };
        let audited = if is_audited { "yes" } else { "" };
        let request = format!("`{methods}` `{path}`");
        page += &row(&[&[&*request][..], &allowed, &[services, audited]].concat());
    }
    compare("operators.md", &page);
}
