//! The section `cluster` of `/status`.

use serde_json::{Value, json};
use weir_protocol::name::RepositoryName;
use weir_publish::Time;

use super::view::Owned;
use super::{Member, View};

/// What this origin knows about the cluster, and what it owns: as a list, or as a number.
pub(crate) fn status(view: &View, owned: &Value) -> Value {
    let others = view.others.values().map(|other| {
        let mut about = member(other);
        about["same_configuration"] = (other.digests.configuration == view.me.digests.configuration).into();
        about["same_signing_keys"] = (other.digests.signing_keys == view.me.digests.signing_keys).into();
        about
    });
    json!({
        "me": member(&view.me),
        "has_session": view.has_session,
        "name_is_taken": view.is_name_taken,
        "agree": view.agree,
        "others": others.collect::<Vec<_>>(),
        "owned": owned,
    })
}

/// A repository that this origin owns.
pub(crate) fn owned_entry((repository, owned): (&RepositoryName, &Owned)) -> Value {
    let since: String = Time::from(owned.since).into();
    json!({ "repository": repository, "fence": owned.fence, "since": since })
}

fn member(member: &Member) -> Value {
    json!({ "name": member.name, "url": member.url, "zone": member.zone, "state": member.state.as_str() })
}
