//! `/v1/members`: the origins of the cluster, and what each owns. An origin without a cluster is the only member.

use std::collections::BTreeMap;
use std::iter;

use http::Response;
use http::request::Parts;
use serde_json::{Value, json};
use weir_protocol::name::{NodeName, RepositoryName};
use weir_protocol::problem::Problem;
use weir_protocol::query::{self, QueryError};
use weir_runtime::serve::Body;

use super::{OperatorApi, uncached};
use crate::cluster::{Owner, View, owner};

impl OperatorApi {
    pub(super) async fn list_members(&self, head: &Parts) -> Result<Response<Body>, Problem> {
        let mut with_names = false;
        for (key, _) in query::pairs(head.uri.query().unwrap_or_default())? {
            match key {
                "repositories" => with_names = true,
                other => return Err(QueryError::unknown(other, "`repositories`").into()),
            }
        }
        let mut view = None;
        if let Some(members) = &self.members {
            members.replicas.refresh_all().await?;
            view = Some((members.cluster.view(), &members.replicas));
        }
        let mut owned = BTreeMap::<Option<NodeName>, Vec<RepositoryName>>::new();
        for name in self.catalog.snapshot().definitions.repositories.keys() {
            let by = match &view {
                None => Some(self.name.clone()),
                Some((view, replicas)) => match owner(view, name, replicas.claim(name).as_ref()) {
                    Owner::Me => Some(self.name.clone()),
                    Owner::Other(member) => Some(member.name),
                    Owner::Nobody => None,
                },
            };
            owned.entry(by).or_default().push(name.clone());
        }
        let owns = |by: Option<&NodeName>| {
            let names = owned.get(&by.cloned()).map(Vec::as_slice).unwrap_or_default();
            if with_names {
                json!({ "repositories": names.len(), "names": names })
            } else {
                json!({ "repositories": names.len() })
            }
        };
        let members = match &view {
            None => vec![json!({
                "name": self.name, "url": null, "zone": null, "session": null, "state": "active", "owns": owns(Some(&self.name)),
            })],
            Some((view, _)) => of_cluster(view, owns),
        };
        Ok(uncached(&json!({ "members": members, "unowned": owns(None) })))
    }
}

/// Sorted by name.
fn of_cluster(view: &View, owns: impl Fn(Option<&NodeName>) -> Value) -> Vec<Value> {
    let all: BTreeMap<_, _> =
        iter::once(&view.me).chain(view.others.values()).map(|member| (&member.name, member)).collect();
    let shown = all.into_iter().map(|(name, member)| {
        let has_session = view.has_session || *name != view.me.name;
        json!({
            "name": name,
            "url": member.url,
            "zone": member.zone,
            // JSON numbers of many readers are too short for it.
            "session": has_session.then(|| member.session.0.to_string()),
            "state": if has_session { member.state.as_str() } else { "outside" },
            "owns": owns(Some(name)),
        })
    });
    shown.collect()
}
