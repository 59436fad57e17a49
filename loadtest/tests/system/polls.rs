//! A steady fleet costs the origin nothing, and no bodies.

use http::StatusCode;
use http_body_util::BodyExt;

use crate::one_service::{OneService, TARBALL};
use crate::site::header;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_unchanged_polls_cause_no_body_and_no_query() -> anyhow::Result<()> {
    let one = OneService::start("1", false).await?;
    let client = one.client()?;
    let etag = header(&client.send("HEAD", TARBALL, &[]).await?, "etag").to_owned();
    let asked = async || {
        let descriptors = one.at_origin("weir_origin_descriptor_requests_total").await?;
        anyhow::Ok((descriptors, one.at_origin("weir_origin_object_requests_total").await?))
    };
    let before = asked().await?;
    // Agents send HEAD; a GET with the tag is as cheap.
    for method in ["HEAD", "GET"].repeat(500) {
        let response = client.send(method, TARBALL, &[("if-none-match", &etag)]).await?;
        assert_eq!((response.status(), header(&response, "etag")), (StatusCode::NOT_MODIFIED, &*etag));
        assert_eq!(header(&response, "cache-status"), "edge-1; hit");
        assert!(response.into_body().collect().await?.to_bytes().is_empty());
    }
    assert_eq!(asked().await?, before, "the origin was queried");
    Ok(())
}
