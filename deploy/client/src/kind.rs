//! The kinds of objects.

use clap::ValueEnum;
use clap::builder::PossibleValue;

/// A kind of objects, by the names that people type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// Upstreams that are followed
    #[value(name = "repositories", aliases = ["repository", "repo", "repos"])]
    Repository,
    /// Plans of rollouts, which services name
    #[value(name = "rollouts", aliases = ["rollout", "plan", "plans"])]
    Rollout,
    /// What is published
    #[value(name = "services", aliases = ["service", "svc"])]
    Service,
    /// The agents of clusters
    #[value(name = "agents", alias = "agent")]
    Agent,
    /// Which agents follow which services
    #[value(name = "assignments", alias = "assignment")]
    Assignment,
    /// Who issues tokens of agents
    #[value(name = "issuers", alias = "issuer")]
    Issuer,
}

impl Kind {
    /// All, in the order in which objects are created: what others need is first.
    pub(crate) const ALL: [Self; 6] =
        [Self::Repository, Self::Rollout, Self::Service, Self::Agent, Self::Assignment, Self::Issuer];

    /// As lists of the API name it.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Repository => "repositories",
            Self::Rollout => "rollouts",
            Self::Service => "services",
            Self::Agent => "agents",
            Self::Assignment => "assignments",
            Self::Issuer => "issuers",
        }
    }

    /// As the sections of files name it.
    pub(crate) fn singular(self) -> &'static str {
        match self {
            Self::Repository => "repository",
            Self::Rollout => "rollout",
            Self::Service => "service",
            Self::Agent => "agent",
            Self::Assignment => "assignment",
            Self::Issuer => "issuer",
        }
    }

    /// The path of its list.
    pub(crate) fn list(self) -> String {
        format!("/v1/{}", self.plural())
    }

    /// The path of an object.
    pub(crate) fn path(self, name: &str) -> anyhow::Result<String> {
        Ok(format!("/v1/{}/{}", self.plural(), segment(name)?))
    }
}

/// What can be shown: objects that operators define, and what takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    Objects(Kind),
    Freezes,
    Edges,
    Members,
}

impl ValueEnum for Shown {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Shown; 9] = [
            Shown::Objects(Kind::Repository),
            Shown::Objects(Kind::Rollout),
            Shown::Objects(Kind::Service),
            Shown::Objects(Kind::Agent),
            Shown::Objects(Kind::Assignment),
            Shown::Objects(Kind::Issuer),
            Shown::Freezes,
            Shown::Edges,
            Shown::Members,
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Objects(kind) => kind.to_possible_value(),
            Self::Freezes => {
                Some(PossibleValue::new("freezes").alias("freeze").help("Of which services nothing new is published"))
            }
            Self::Edges => Some(PossibleValue::new("edges").alias("edge").help("Caches that report what agents run")),
            Self::Members => Some(PossibleValue::new("members").alias("member").help("The origins of the hub")),
        }
    }
}

impl Shown {
    pub(crate) fn singular(self) -> &'static str {
        match self {
            Self::Objects(kind) => kind.singular(),
            Self::Freezes => "freeze",
            Self::Edges => "edge",
            Self::Members => "member",
        }
    }

    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Objects(kind) => kind.plural(),
            Self::Freezes => "freezes",
            Self::Edges => "edges",
            Self::Members => "members",
        }
    }
}

/// A name as a segment of a path.
pub(crate) fn segment(name: &str) -> anyhow::Result<&str> {
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
    if !is_name || name.starts_with('.') {
        anyhow::bail!("`{name}` is no name: it has letters, digits and `-`");
    }
    Ok(name)
}
