//! What happens to refs upstream happens to the services that name them.

use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::until;
use weir_loadtest::scrape::Metrics;

use crate::signing::descriptor;
use crate::site::{Plan, Site, seen, service};

fn fill(upstream: &GitRepository) -> anyhow::Result<()> {
    upstream.write("deploy/prod/version", "1")?;
    upstream.write("other/version", "1")?;
    upstream.commit_and_push("one")?;
    Ok(())
}

/// Puts `deploy/prod/version` on a branch, by force.
fn push_version(upstream: &GitRepository, branch: &str, version: &str) -> anyhow::Result<()> {
    upstream.git(["checkout", "--quiet", "-B", branch, "main"])?;
    upstream.write("deploy/prod/version", version)?;
    upstream.commit_and_push(version)?;
    upstream.git(["checkout", "--quiet", "main"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_outside_the_folder_changes_no_digest_and_moves_no_tarball() -> anyhow::Result<()> {
    let mut site = Site::new(fill, Plan::default()).await?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;
    let digest = site.current_digest("shop-prod");
    let before = Metrics::read(site.origin.admin()).await?;

    site.upstream.write("other/version", "2")?;
    let client = site.client()?;
    let published = descriptor(&client, "shop-prod").await?;
    let commit = site.upstream.commit_and_push("outside")?;
    // It is no publication: the edge learns that the one before is right as of the new commit too.
    let revision_id = format!("sha1:{commit}");
    until("the edge says up to which commit the content is right", async || {
        seen(&client).await.is_ok_and(|seen| seen["revision_id"] == *revision_id)
    })
    .await?;
    assert_eq!(descriptor(&client, "shop-prod").await?.publication(), published.publication());
    let polls = Metrics::read(site.agent.admin()).await?.sum("weir_agent_polls_total", &["result=\"unchanged\""]);
    site.until_counter(&site.agent, "weir_agent_polls_total", &["result=\"unchanged\""], polls + 1.0).await?;
    let after = Metrics::read(site.origin.admin()).await?;
    assert_eq!(
        before.sum("weir_origin_object_requests_total", &[]),
        after.sum("weir_origin_object_requests_total", &[]),
        "a tarball moved"
    );
    assert_eq!(site.current_digest("shop-prod"), digest);

    // A push within the folder arrives.
    site.upstream.write("deploy/prod/version", "3")?;
    site.upstream.commit_and_push("inside")?;
    site.until_released("shop-prod", "version", "3").await
}

#[tokio::test(flavor = "multi_thread")]
async fn branches_deleted_recreated_forced_and_turned_into_folders_are_followed() -> anyhow::Result<()> {
    let services = [
        service("feature", "feature", "deploy/prod"),
        service("nested", "del/1", "deploy/prod"),
        service("flat", "del", "deploy/prod"),
        service("release", "v1", "deploy/prod"),
    ];
    let fill = |upstream: &GitRepository| {
        fill(upstream)?;
        push_version(upstream, "feature", "feature-1")?;
        push_version(upstream, "del/1", "nested-1")?;
        upstream.git(["tag", "-a", "-m", "annotated", "v1", "main"])?;
        upstream.git(["push", "--quiet", "origin", "v1"])?;
        Ok(())
    };
    let plan =
        Plan { services: services.concat(), follows: vec!["feature", "nested", "flat", "release"], ..Plan::default() };
    let mut site = Site::new(fill, plan).await?;
    site.start().await?;
    site.until_released("feature", "version", "feature-1").await?;
    site.until_released("nested", "version", "nested-1").await?;
    site.until_released("release", "version", "1").await?;

    // Force-pushed: history is rewritten, no commit is a descendant of the last.
    push_version(&site.upstream, "feature", "feature-2")?;
    site.until_released("feature", "version", "feature-2").await?;

    // Deleted: the last good publication stays, and the origin says why.
    site.upstream.git(["push", "--quiet", "origin", ":feature"])?;
    site.until_status(&site.origin, "the origin says that `feature` is gone", |status| {
        status.to_string().contains("no branch or tag `feature`")
    })
    .await?;
    assert!(site.current("feature").join("version").exists());
    // Created again.
    push_version(&site.upstream, "feature", "feature-3")?;
    site.until_released("feature", "version", "feature-3").await?;

    // `del/1` turns into `del`, and back.
    site.upstream.git(["push", "--quiet", "origin", ":del/1"])?;
    site.upstream.git(["branch", "--quiet", "-D", "del/1"])?;
    push_version(&site.upstream, "del", "flat-1")?;
    site.until_released("flat", "version", "flat-1").await?;
    site.upstream.git(["push", "--quiet", "origin", ":del"])?;
    site.upstream.git(["branch", "--quiet", "-D", "del"])?;
    push_version(&site.upstream, "del/1", "nested-2")?;
    site.until_released("nested", "version", "nested-2").await?;

    // A tag that moves.
    site.upstream.write("deploy/prod/version", "2")?;
    site.upstream.commit_and_push("two")?;
    site.upstream.git(["tag", "-f", "-a", "-m", "moved", "v1", "main"])?;
    site.upstream.git(["push", "--quiet", "--force", "origin", "v1"])?;
    site.until_released("release", "version", "2").await
}
