//! Finds the repository to serve, and a name for it.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The repository that `weir up` serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repository {
    /// The URL, or the path of a repository on this machine.
    pub(crate) url: String,
    /// Whether it is on this machine, and may be polled often.
    pub(crate) is_local: bool,
    /// A name for the repository and its service.
    pub(crate) name: String,
}

/// The repository that `--repo` names; without it, the checkout or the bare repository around `here`.
///
/// # Errors
/// There is neither.
pub(crate) fn choose(repo: Option<&str>, here: &Path) -> anyhow::Result<Repository> {
    let Some(repo) = repo else {
        let Some(repository) = enclosing_repository(here) else {
            bail!("{} is not in a Git repository: name one with `--repo <url>`", here.display());
        };
        return local(&repository);
    };
    let path = Path::new(repo.strip_prefix("file://").unwrap_or(repo));
    if repo.starts_with("file://") || (!repo.contains("://") && path.exists()) {
        let path = path.canonicalize().with_context(|| format!("there is no repository at {}", path.display()))?;
        return local(&path);
    }
    if !repo.contains("://") {
        bail!("`{repo}` is neither a folder here nor a URL such as `https://git.example/acme/shop.git`");
    }
    Ok(Repository { url: repo.to_owned(), is_local: false, name: name(repo) })
}

fn local(path: &Path) -> anyhow::Result<Repository> {
    let url = path.to_str().with_context(|| format!("the path {} is not UTF-8", path.display()))?;
    Ok(Repository { url: url.to_owned(), is_local: true, name: name(url) })
}

/// The nearest folder from `here` upwards that holds a `.git` (a folder, or in a worktree a file), or is a bare repository.
fn enclosing_repository(here: &Path) -> Option<PathBuf> {
    here.ancestors().find(|folder| folder.join(".git").exists() || is_bare(folder)).map(Path::to_owned)
}

/// Whether a folder is a bare repository, and not the `.git` of a checkout.
fn is_bare(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name != ".git")
        && folder.join("HEAD").is_file()
        && ["objects", "refs"].iter().all(|part| folder.join(part).is_dir())
}

/// A service name from the last part of a URL or path: `https://git.example/acme/Shop.git/` gives `shop`.
fn name(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or(url).trim_end_matches('/');
    let last = path.rsplit(['/', ':']).next().unwrap_or(path);
    let last = last.strip_suffix(".git").unwrap_or(last).to_ascii_lowercase();
    let safe: String =
        last.chars().map(|c| if matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '-') { c } else { '-' }).collect();
    let safe: String = safe.trim_start_matches(['.', '_', '-']).chars().take(100).collect();
    if safe.is_empty() { "repository".to_owned() } else { safe }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::name::ServiceName;

    #[test]
    fn every_url_gives_a_valid_service_name() {
        for (url, expected) in [
            ("https://git.example/acme/shop.git", "shop"),
            ("https://git.example/acme/Shop.git/", "shop"),
            ("git@git.example:shop", "shop"),
            ("/srv/git/.hidden", "hidden"),
            ("/home/me/käse", "k-se"),
            ("https://git.example/", "git.example"),
            ("/", "repository"),
        ] {
            assert_eq!(name(url), expected);
            assert!(name(url).parse::<ServiceName>().is_ok());
        }
        assert!(name(&"x".repeat(300)).parse::<ServiceName>().is_ok());
    }

    #[test]
    fn the_enclosing_checkout_is_served_when_nothing_else_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("Shop");
        std::fs::create_dir_all(root.join("deep/er")).unwrap();
        assert!(choose(None, &root).unwrap_err().to_string().contains("--repo"));
        std::fs::create_dir(root.join(".git")).unwrap();
        for part in ["objects", "refs"] {
            std::fs::create_dir_all(root.join(".git").join(part)).unwrap();
        }
        std::fs::write(root.join(".git/HEAD"), "ref: refs/heads/main").unwrap();
        let found = choose(None, &root.join("deep/er")).unwrap();
        assert_eq!(choose(None, &root.join(".git/refs")).unwrap(), found);
        let bare = dir.path().canonicalize().unwrap().join("bare.git");
        std::fs::rename(root.join(".git"), &bare).unwrap();
        assert_eq!(choose(None, &bare.join("refs")).unwrap().name, "bare");
        std::fs::rename(&bare, root.join(".git")).unwrap();
        assert_eq!(
            found,
            Repository { url: root.to_str().unwrap().to_owned(), is_local: true, name: "shop".to_owned() }
        );
        assert_eq!(choose(Some(root.to_str().unwrap()), dir.path()).unwrap(), found);
        assert_eq!(choose(Some(&format!("file://{}", root.display())), dir.path()).unwrap(), found);
        assert!(choose(Some("no/such/folder"), dir.path()).is_err());
        assert!(!choose(Some("https://git.example/a.git"), dir.path()).unwrap().is_local);
    }
}
