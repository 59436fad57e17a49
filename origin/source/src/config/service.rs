//! `[[service]]`: what agents follow.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use weir_model::ValidationError;
use weir_protocol::name::{RepositoryName, RolloutName, ServiceName};
use weir_protocol::oci::is_repository_component;
use weir_runtime::config::ConfigError;
use weir_tarball::{Filters, FolderPath, Selection, position};
use weir_upstream::SourceKind;

use super::PartConfig;
use crate::{ChartName, Followed, RefText};

/// The most parts of a service. Each is opened for a build.
const MAX_PARTS: usize = 16;

/// The longest `to`, in bytes. It is part of each publication.
const MAX_TO_BYTES: usize = 255;

/// A service to publish: a ref and a folder of a repository, or several (`parts`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// Name of the service. Agents request it.
    pub name: ServiceName,
    /// Name of the `[[repository]]`. Default: required without `parts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<RepositoryName>,
    /// Chart of a repository of `kind = "helm"`, which needs it. In a registry it may be a path below the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<ChartName>,
    /// Branch, tag, full ref name, full commit ID, or `semver:` with a range of versions. Default: the default branch of the
    /// upstream. Of a chart: `semver:` with a range, or a version; without it the highest version that is no pre-release.
    #[serde(default, rename = "ref")]
    pub followed_ref: RefText,
    /// Folder to publish. Default: the whole tree.
    #[serde(default)]
    pub folder: FolderPath,
    /// gitignore patterns relative to the folder. A file is published when one matches. `!` is refused. Default: everything.
    #[serde(default)]
    pub include: Vec<String>,
    /// gitignore patterns of files that are not published, even if `include` matches. Default: nothing.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Store a gzip representation as well, for clients without zstd that need a length and ranges. It costs about the same
    /// disk and build time again. Otherwise edges compress on the fly, without length and ranges.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gzip: bool,
    /// Serve it to clients of the OCI distribution API as well, at edges, as `weir/<name>`: Flux, Argo CD, `oras`, `crane`. It
    /// implies `gzip`. A chart or an artifact without `folder`, `include` and `exclude` is served with the bytes of its upstream. The name must be one of OCI: `a-z`, `0-9`, and `.`, `_`, `__` or hyphens between them. Default: that of
    /// the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<bool>,
    /// Name of the `[[rollout]]` by which new content reaches agents stage by stage. Default: all at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutName>,
    /// Fetch and publish files of Git LFS. Otherwise they are left out, and listed in `omitted`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lfs: bool,
    /// The sources of a composed service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartConfig>,
    /// The repository that publishes it, if its first part is a service: see [`ServiceConfig::with_home`].
    #[serde(skip)]
    pub home: Option<RepositoryName>,
}

/// A key that earlier versions do not know is only written if it is set.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

impl ServiceConfig {
    /// The whole tree of the default branch.
    pub fn new(name: ServiceName, repository: RepositoryName) -> Self {
        Self {
            name,
            repository: Some(repository),
            chart: None,
            followed_ref: RefText::default(),
            folder: FolderPath::default(),
            include: Vec::new(),
            exclude: Vec::new(),
            gzip: false,
            oci: None,
            rollout: None,
            lfs: false,
            parts: Vec::new(),
            home: None,
        }
    }

    /// The same, of the repository of the service that is its first part, if it begins with one.
    #[must_use]
    pub fn with_home(self, of: impl FnOnce(&ServiceName) -> Option<RepositoryName>) -> Self {
        let home = self.parts.first().and_then(|part| of(part.service.as_ref()?));
        Self { home, ..self }
    }

    /// Services by their names.
    pub fn by_name(all: &[Self]) -> HashMap<&ServiceName, &Self> {
        all.iter().map(|each| (&each.name, each)).collect()
    }

    /// The same [at home](Self::with_home), of a file that has these services.
    #[must_use]
    pub fn at_home(&self, all: &HashMap<&ServiceName, &Self>) -> Self {
        self.clone().with_home(|part| all.get(part)?.repositories().next().cloned())
    }

    /// The repositories of its sources.
    pub fn repositories(&self) -> impl Iterator<Item = &RepositoryName> {
        self.repository.iter().chain(self.parts.iter().filter_map(|part| part.repository.as_ref()))
    }

    /// The services that are its parts.
    pub fn part_services(&self) -> impl Iterator<Item = &ServiceName> {
        self.parts.iter().filter_map(|part| part.service.as_ref())
    }

    /// The repository whose worker publishes it: that of its first source, or of the service that is its first part.
    ///
    /// # Panics
    /// The document is invalid: it names none, or its first part is a service whose repository was not looked up.
    pub fn home(&self) -> &RepositoryName {
        let first = || self.repositories().next();
        self.home.as_ref().or_else(first).expect("a valid document names a repository")
    }

    /// All validation errors.
    pub fn errors(&self) -> Vec<ValidationError> {
        let patterns = |field: &'static str, patterns: &[String]| -> Vec<ValidationError> {
            patterns
                .iter()
                .filter_map(|text| Some(ValidationError::new(field, Filters::check(text).err()?.to_string())))
                .collect()
        };
        let is_no_name = self.oci == Some(true) && !is_repository_component(self.name.as_str());
        let reason = "with `oci` the name of the service is part of a repository's name in OCI: only `a-z`, `0-9`, and `.`, `_`, `__` \
                      or hyphens between them. Rename the service, or set `oci = false`";
        let of_name = is_no_name.then(|| ValidationError::new("oci", reason));
        let patterns = [patterns("include", &self.include), patterns("exclude", &self.exclude)].concat();
        [self.errors_of_sources(), patterns, of_name.into_iter().collect()].concat()
    }

    /// What it follows in its repository, or what each part follows in its own. A repository without a kind is not defined.
    ///
    /// # Errors
    /// A key has no meaning for the kind of its repository.
    pub fn followed(
        &self,
        kind_of: impl Fn(&RepositoryName) -> Option<SourceKind>,
    ) -> Result<Vec<Followed>, ValidationError> {
        let parse = |repository: &RepositoryName, text: &RefText, chart: Option<&ChartName>| {
            let kind = kind_of(repository).unwrap_or_else(|| text.assumed_kind(chart));
            if self.lfs && !kind.has("lfs") {
                return Err(("lfs", kind.refused()));
            }
            Followed::parse(kind, text, chart)
        };
        if let Some(repository) = &self.repository {
            let followed = parse(repository, &self.followed_ref, self.chart.as_ref());
            return followed
                .map(|followed| vec![followed])
                .map_err(|(field, reason)| ValidationError::new(field, reason));
        }
        let of_part = |part: &PartConfig| {
            let followed = match (&part.repository, &part.service) {
                (Some(repository), _) => parse(repository, &part.followed_ref, part.chart.as_ref()),
                (None, Some(service)) => Ok(Followed::service(service)),
                (None, None) => Err(("repository", "it is missing".to_owned())),
            };
            followed.map_err(|(field, reason)| {
                ValidationError::new("parts", format!("part `{}`: `{field}`: {reason}", part.to))
            })
        };
        self.parts.iter().map(of_part).collect()
    }

    /// The files of a commit that the tarball contains.
    ///
    /// # Errors
    /// A pattern cannot be used; the message names the service and the pattern.
    pub fn selection(&self) -> Result<Selection, ConfigError> {
        let filters = Filters::new(&self.include, &self.exclude)
            .map_err(|error| ConfigError::invalid(format!("service `{}`: {error}", self.name)))?;
        Ok(Selection { folder: self.folder.clone(), filters, lfs: self.lfs, gzip: self.gzip })
    }

    /// The validation errors of its source or sources.
    fn errors_of_sources(&self) -> Vec<ValidationError> {
        let error = |field: &str, detail: &str| ValidationError::new(field, detail);
        if self.parts.is_empty() {
            let is_missing = self.repository.is_none();
            let reason = "it is missing: name a repository, or `parts` with at least one part";
            return is_missing.then(|| error("repository", reason)).into_iter().collect();
        }
        let of_one = [
            ("repository", self.repository.is_some()),
            ("chart", self.chart.is_some()),
            ("ref", self.followed_ref != RefText::default()),
            ("folder", self.folder != FolderPath::default()),
        ];
        let of_one = of_one.into_iter().filter(|(_, is_there)| *is_there);
        let mut errors: Vec<_> =
            of_one.map(|(key, _)| error(key, "with `parts` each part has its own: remove it")).collect();
        if self.lfs {
            errors.push(error("lfs", "LFS files of parts cannot be published: remove it, or `parts`"));
        }
        errors.extend(self.parts.iter().filter_map(|part| Some(error("parts", &part.error()?))));
        if self.part_services().any(|part| *part == self.name) {
            errors.push(error("parts", &format!("`{}` cannot be a part of itself", self.name)));
        }
        if self.parts.len() > MAX_PARTS {
            errors.push(error("parts", &format!("there are {}, more than the limit of {MAX_PARTS}", self.parts.len())));
        }
        let mut folders: Vec<_> = self.parts.iter().map(|part| &part.to).collect();
        folders.sort_by_cached_key(|to| position(to));
        for to in &folders {
            if to.components().next().is_none() {
                errors.push(error("parts", "`to` must be a folder, such as `chart`"));
            } else if to.as_str().len() > MAX_TO_BYTES {
                errors.push(error("parts", &format!("`to` has more than {MAX_TO_BYTES} bytes")));
            } else if let Some(reason) = unusable_name(to) {
                errors.push(error("parts", &format!("`to = \"{}\"` {reason}", to.as_str().escape_debug())));
            }
        }
        let mut by_case: Vec<_> = folders.iter().map(|to| (format!("{to}/").to_lowercase(), *to)).collect();
        by_case.sort_by(|a, b| a.0.cmp(&b.0));
        let differ_in_case = |pair: &&[(String, &FolderPath)]| {
            pair[1].0.starts_with(&pair[0].0) && !position(pair[1].1).starts_with(&position(pair[0].1))
        };
        errors.extend(by_case.windows(2).filter(differ_in_case).map(|pair| {
            let detail = format!(
                "`to = \"{}\"` and `to = \"{}\"` are one folder where case does not count: name one differently",
                pair[0].1, pair[1].1
            );
            ValidationError::new("parts", detail)
        }));
        let is_inside = |pair: &&[&FolderPath]| position(pair[1]).starts_with(&position(pair[0]));
        errors.extend(folders.windows(2).filter(is_inside).map(|pair| {
            let detail =
                format!("`to = \"{}\"` is in `to = \"{}\"`: give each part a folder of its own", pair[1], pair[0]);
            ValidationError::new("parts", detail)
        }));
        errors
    }

    /// Why it cannot be published in a cluster: an origin has the sources of the repositories that it owns.
    pub fn error_in_cluster(&self) -> Option<ValidationError> {
        let of_parts = self.repositories().chain(&self.home).filter(|_| !self.parts.is_empty());
        let mut names: Vec<String> = of_parts.map(|name| format!("`{name}`")).collect();
        names.sort();
        names.dedup();
        let detail = || {
            format!(
                "the repositories {} may have different owners in a cluster: define a service for each of the others, and name \
                 it as a part, such as `{{ service = \"shop-chart\", to = \"chart\" }}`",
                names.join(", ")
            )
        };
        (names.len() > 1).then(|| ValidationError::new("parts", detail()))
    }
}

/// Why a folder cannot be named in a command line, a pattern and the key of a revision.
fn unusable_name(to: &FolderPath) -> Option<&'static str> {
    if to.as_str().chars().any(|c| c.is_control() || ",=*?[]\\".contains(c)) {
        return Some("has a control character, or one of `, = * ? [ ] \\`: use letters, digits, `-`, `_` and `.`");
    }
    let is_option = to.components().any(|name| name.starts_with('-'));
    is_option.then_some("has a name that begins with `-`, which programs take for an option: name it differently")
}
