//! `GET /v1/access/{digest}`: a shard of the access lists of all origins. Its JSON is made for each request, so there is a bound of
//! how many are in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::problem::Problem;
use weir_runtime::bounds::Bound;
use weir_runtime::serve::Body;

use super::{Answer, error};
use crate::access::Access;

/// Shards that are sent at a time, each up to 8 MiB.
const CONCURRENT_SHARDS: usize = 32;

/// The longest wait for a permit to have one in memory.
const PERMIT_WAIT: Duration = Duration::from_secs(10);

/// The shards of access lists, for other edges.
pub(super) struct Shards {
    access: Access,
    permits: Arc<Semaphore>,
}

/// A shard, with its permit until its last byte was sent.
struct Sending {
    json: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Sending {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

impl Shards {
    pub(super) fn new(access: Access) -> Self {
        Self { access, permits: Arc::new(Semaphore::new(CONCURRENT_SHARDS)) }
    }

    pub(super) fn bound(&self) -> Bound {
        let in_use = CONCURRENT_SHARDS - self.permits.available_permits();
        ("peer_shards", in_use as u64, CONCURRENT_SHARDS as u64)
    }

    pub(super) async fn answer(&self, method: &Method, digest: ObjectDigest) -> Answer {
        let permit = timeout(PERMIT_WAIT, self.permits.clone().acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or_else(error::too_many_shards)?;
        let access = self.access.clone();
        // It may be the first to ask for a digest, and all shards are encoded then.
        let json = spawn_blocking(move || access.shard_json(&digest)).await.unwrap_or_default();
        let json = json.ok_or_else(|| Problem::no_such_shard(&digest))?;
        let mut response = Response::new(Body::Empty);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(json.len()));
        if method == Method::GET {
            *response.body_mut() = Body::Full(Bytes::from_owner(Sending { json, _permit: permit }));
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use prometheus::Registry;
    use weir_protocol::access_list::AccessList;
    use weir_runtime::shutdown::Drain;

    use super::*;
    use crate::access::OriginListsFile;
    use crate::config::AuthConfig;

    #[tokio::test(start_paused = true)]
    async fn shards_in_memory_are_bounded_until_they_are_sent() {
        let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
        let file = OriginListsFile::at(dir.path());
        let access = Access::start(&AuthConfig::default(), &["a"], file, &Registry::new(), &drain).await.unwrap();
        let list = br#"{"agents": {"revision": 1, "documents": [{"name": "one"}]}}"#;
        access.set_origin_list("a", list);
        let list = AccessList::parse(list).unwrap();
        let shard = AccessList::parse(list.sharded_json().get().as_bytes()).unwrap().lacking().pop_first().unwrap();
        let shards = Shards::new(access);
        let answer = async |method: &Method, digest| {
            let answer = shards.answer(method, digest).await;
            answer.map_err(|problem| problem.status())
        };
        let mut sending = Vec::new();
        for _ in 0..CONCURRENT_SHARDS {
            assert_eq!(answer(&Method::GET, ObjectDigest::of(b"none")).await.err(), Some(StatusCode::NOT_FOUND));
            assert!(matches!(answer(&Method::HEAD, shard).await.unwrap().body(), Body::Empty));
            sending.push(answer(&Method::GET, shard).await.unwrap());
        }
        assert_eq!(shards.bound(), ("peer_shards", 32, 32));
        assert_eq!(answer(&Method::GET, shard).await.err(), Some(StatusCode::SERVICE_UNAVAILABLE));
        sending.pop();
        let Body::Full(sent) = answer(&Method::GET, shard).await.unwrap().into_body() else { panic!("it has a body") };
        assert_eq!(Some(sent.to_vec()), list.fleet().shard_json(&shard));
        drain.cut().await;
    }
}
