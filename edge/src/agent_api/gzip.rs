//! A tarball as gzip, which is made at the origin when a `GET` first asks for it.

use http::{Method, Request, Response, header};
use weir_shared::encoding::Encoding;
use weir_shared::process::serve::{Body, RequestBody};

use super::conditions::{Decision, decide_unmade};
use super::error::ApiError;
use super::headers::joined;
use super::tarball::Which;
use super::{Answer, Inner};
use crate::service_table::{Demand, Found, GzipError};

/// Whether the request would get gzip if only it had been made.
pub(super) fn awaits_gzip(request: &Request<RequestBody>, found: &Found) -> bool {
    let Some(accept) = joined(request.headers(), &header::ACCEPT_ENCODING) else { return false };
    found.version.awaits_gzip(Some(&accept))
}

impl Inner {
    /// The answer for which gzip need not be made: a `304`, a failed precondition, or whatever HEAD gets.
    pub(super) fn without_gzip(
        &self,
        request: &Request<RequestBody>,
        found: &Found,
        which: &Which,
    ) -> Result<Option<Answer>, ApiError> {
        match decide_unmade(request.method(), request.headers(), &found.version) {
            Some(Decision::NotModified(tag)) => return Ok(Some(self.not_modified(found, which, tag))),
            Some(_) => return Err(ApiError::PreconditionFailed),
            None if request.method() != Method::HEAD => return Ok(None),
            None => {}
        }
        let mut response = Response::new(Body::Empty);
        self.rendered.validators(response.headers_mut(), found, &found.status, which.lifetime());
        self.rendered.coded(response.headers_mut(), found, Encoding::Gzip, false);
        Ok(Some(Answer { response, status: found.status }))
    }

    /// Has gzip made, and looks the version up again, which has it then. `Some`: it has not, for this reason.
    pub(super) async fn make_gzip(&self, found: &mut Found, which: &Which) -> Result<Option<GzipError>, ApiError> {
        if let Err(reason) = self.gzips.make(which.service(), found).await {
            return Ok(Some(reason));
        }
        *found = self.find(which, Demand::Normal).await?;
        let made = found.version.descriptor().representation(Encoding::Gzip).is_some();
        Ok((!made).then(|| GzipError::Failed("the version has changed meanwhile".to_owned())))
    }
}
