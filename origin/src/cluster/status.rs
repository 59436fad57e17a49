//! The section `cluster` of `/status`.

use serde_json::{Value, json};
use weir_publish::Time;

use super::{Member, View};

/// What this origin knows about the cluster, and what it owns.
pub(crate) fn status(view: &View) -> Value {
    let others = view.others.values().map(|other| {
        let mut about = member(other);
        about["same_configuration"] = (other.digests.configuration == view.me.digests.configuration).into();
        about["same_signing_keys"] = (other.digests.signing_keys == view.me.digests.signing_keys).into();
        about
    });
    let owned = view.owned.iter().map(|(repository, owned)| {
        let since: String = Time::from(owned.since).into();
        json!({ "repository": repository, "fence": owned.fence, "since": since })
    });
    json!({
        "me": member(&view.me),
        "has_session": view.has_session,
        "name_is_taken": view.is_name_taken,
        "agree": view.agree,
        "others": others.collect::<Vec<_>>(),
        "owned": owned.collect::<Vec<_>>(),
    })
}

fn member(member: &Member) -> Value {
    json!({ "name": member.name, "url": member.url, "zone": member.zone, "state": member.state.as_str() })
}
