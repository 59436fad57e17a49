//! A reader that has the origin's key sees through any edge whether something newer is held back from it.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use http_body_util::BodyExt;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{PATIENCE, until};
use weir_shared::descriptor::Descriptor;
use weir_shared::heartbeat::{VerifiedStanding, verify_standing};
use weir_shared::name::ServiceName;
use weir_shared::token::PublicKey;

use crate::signing::{descriptor, keys};
use crate::site::{Client, Plan, Site, service};

/// How old a heartbeat may be that a reader believes.
const BELIEVED: Duration = Duration::from_secs(180);

/// What a reader concludes of a service.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// It is offered what the origin published last.
    All,
    /// Something newer was published than it is offered.
    HeldBack,
    /// Nobody tells it of the origin.
    Silence,
}

/// A reader that has the origin's public keys, and nothing else to rely on.
struct Reader {
    client: Client,
    keys: Vec<PublicKey>,
    service: ServiceName,
}

impl Reader {
    fn new(site: &Site, keys: &[PublicKey]) -> anyhow::Result<Self> {
        Ok(Self { client: site.client()?, keys: keys.to_vec(), service: "shop-prod".parse()? })
    }

    /// What the origin said last, if it is verified and believed. An error: there is nothing to verify.
    async fn heartbeat(&self) -> anyhow::Result<VerifiedStanding> {
        let answer = self.client.send("GET", "/v1/services/shop-prod/heartbeat", &[]).await?;
        ensure!(answer.status() == 200, "{}", answer.status());
        let standing = verify_standing(&answer.into_body().collect().await?.to_bytes(), &self.service, &self.keys)?;
        let age = SystemTime::now().duration_since(standing.time).unwrap_or_default();
        ensure!(age < BELIEVED && standing.origin.as_str() == "origin-1", "{standing:?}");
        Ok(standing)
    }

    /// What it makes of being offered this descriptor.
    async fn judge(&self, offered: &Descriptor) -> Seen {
        let Ok(publication) = offered.verified_publication(&self.service, &self.keys) else { return Seen::Silence };
        match self.heartbeat().await {
            Err(_) => Seen::Silence,
            Ok(standing) if standing.generation > publication.generation => Seen::HeldBack,
            Ok(_) => Seen::All,
        }
    }

    async fn until_it_sees(&self, what: &Seen, offered: &Descriptor) -> anyhow::Result<()> {
        until(&format!("the reader sees {what:?}"), async || self.judge(offered).await == *what).await
    }
}

/// Has the origin sign with these keys from now on. (It says so in its first heartbeat, not in that of the next minute.)
async fn sign_with(site: &mut Site, keys: &str) -> anyhow::Result<()> {
    let file = site.path("origin.toml");
    let config = fs::read_to_string(&file)?;
    let (before, after) = config.split_once("[signing]\nkeys = ").context("it signs nothing")?;
    let rest = after.split_once('\n').context("the line ends")?.1;
    fs::write(&file, format!("{before}[signing]\nkeys = {keys}\n{rest}"))?;
    site.origin.terminate().await?;
    site.origin.start().await
}

/// The public keys, as the origin prints those of its configuration.
fn printed(dir: &Path) -> anyhow::Result<Vec<PublicKey>> {
    keys(dir, "--config origin.toml")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_through_an_edge_is_verified_shows_what_is_held_back_and_outlives_a_change_of_keys()
-> anyhow::Result<()> {
    let services = format!("[signing]\nkeys = ['old.key']\n{}", service("shop-prod", "main", "deploy/prod"));
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let mut site = Site::new(fill, Plan { services, ..Plan::default() }).await?;
    let dir = site.path("");
    keys(&dir, "new old.key")?;
    let old = printed(&dir)?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;
    // The first heartbeat may be from before the first publication.
    sign_with(&mut site, "['old.key']").await?;
    let reader = Reader::new(&site, &old)?;
    let first = descriptor(&reader.client).await?;
    reader.until_it_sees(&Seen::All, &first).await?;
    assert_eq!(reader.heartbeat().await?.generation, first.publication().generation);

    // A key that has signed nothing finds nothing that it signed.
    let new = keys(&dir, "new new.key")?;
    assert!(Reader::new(&site, &new)?.heartbeat().await.is_err());

    // Whoever still offered the first descriptor by now would be seen to hold back the second, whichever key is known.
    site.upstream.write("deploy/prod/version", "2")?;
    site.upstream.commit_and_push("two")?;
    site.until_released("shop-prod", "version", "2").await?;
    sign_with(&mut site, "['old.key', 'new.key']").await?;
    assert_eq!(printed(&dir)?.len(), 2);
    reader.until_it_sees(&Seen::HeldBack, &first).await?;
    let later = Reader::new(&site, &new)?;
    let mut second = descriptor(&reader.client).await?;
    // The edge may still have it as it was before both keys signed it.
    let is_signed_twice = async {
        while [&reader, &later].iter().any(|of| second.verified_publication(&of.service, &of.keys).is_err()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            second = descriptor(&reader.client).await?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, is_signed_twice).await.context("it is not signed by both keys")??;
    for reader in [&reader, &later] {
        reader.until_it_sees(&Seen::All, &second).await?;
    }

    // The old key goes: who knows the new one alone is told on, and who knows the old one alone sees that it is not.
    sign_with(&mut site, "['new.key']").await?;
    reader.until_it_sees(&Seen::Silence, &second).await?;
    let third = descriptor(&later.client).await?;
    assert_eq!(third.publication(), second.publication());
    later.until_it_sees(&Seen::All, &third).await?;

    // An edge without its origin serves on, and has no heartbeat to show for it.
    site.origin.terminate().await?;
    later.until_it_sees(&Seen::Silence, &third).await?;
    assert_eq!(descriptor(&later.client).await?.publication(), third.publication());
    Ok(())
}
