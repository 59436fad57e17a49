//! A client that knows gzip and nothing better: stored by the origin, or made by the edge.

use std::io::Read;

use http::StatusCode;
use http_body_util::BodyExt;
use weir_protocol::digest::TarballDigest;

use crate::one_service::{OneService, TARBALL};
use crate::site::header;

#[tokio::test(flavor = "multi_thread")]
async fn stored_and_transcoded_gzip_give_the_same_tarball() -> anyhow::Result<()> {
    for stored in [true, false] {
        let one = OneService::start("the same again and again ".repeat(50_000), stored).await?;
        let client = one.client()?;
        for expected in ["fwd=miss", "hit"] {
            let response = client.send("GET", TARBALL, &[("accept-encoding", "gzip, identity;q=0")]).await?;
            assert_eq!((response.status(), header(&response, "content-encoding")), (StatusCode::OK, "gzip"));
            assert!(header(&response, "cache-status").contains(expected), "{}", header(&response, "cache-status"));
            assert_eq!(header(&response, "etag").starts_with("W/"), !stored, "{}", header(&response, "etag"));
            let digest = header(&response, "weir-digest").to_owned();
            let coded = response.into_body().collect().await?.to_bytes();
            let mut tar = Vec::new();
            flate2::read::MultiGzDecoder::new(&coded[..]).read_to_end(&mut tar)?;
            assert_eq!(TarballDigest::of(&tar).to_string(), digest);
        }
    }
    Ok(())
}
