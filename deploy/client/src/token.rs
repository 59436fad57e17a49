//! Tokens of agents.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use weir_protocol::access_list::DenyLine;
use weir_protocol::labels::Labels;
use weir_protocol::name::NodeName;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::token::{Claims, SigningKey, TokenId, unix_seconds};

/// The longest lifetime of a token; a longer one is probably a mistake.
const MAX_LIFE: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// What a token is to say.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The agent.
    pub subject: NodeName,
    /// What it opens.
    pub services: Vec<NameGlob>,
    /// What it asserts of the agent.
    pub labels: Vec<(String, String)>,
    /// How long it is valid.
    pub expires: Duration,
    /// Its id; a random one if absent.
    pub id: Option<TokenId>,
}

/// A token, with how to revoke it.
#[derive(Debug)]
pub struct Issued {
    /// The token.
    pub token: String,
    /// Until when it is valid.
    pub until: SystemTime,
    /// For people: how to revoke it.
    pub advice: String,
}

/// Reads a label of a command line.
///
/// # Errors
/// It is not `KEY=VALUE`.
pub fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("expected `KEY=VALUE`")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Labels of a command line. A key with two values is no label that an agent can have.
pub(crate) fn labels(given: &[(String, String)]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    for (key, value) in given {
        if let Some(other) = labels.insert(key.clone(), value.clone()).filter(|other| other != value) {
            bail!("--label {key}={other} and --label {key}={value}: an agent has one value for each key");
        }
    }
    Ok(labels)
}

/// Issues a token with the private key in a file.
///
/// # Errors
/// The key cannot be read, or the token would be valid for too long.
pub fn issue(key: &Path, wanted: &Wanted) -> anyhow::Result<Issued> {
    if wanted.expires < Duration::from_secs(1) || wanted.expires > MAX_LIFE {
        bail!("--expires must be from a second to ten years, such as 90d");
    }
    let pem = fs::read(key).with_context(|| format!("cannot read {}", key.display()))?;
    let key = SigningKey::from_pem(&pem).with_context(|| format!("{} is not a private key", key.display()))?;
    let now = unix_seconds(SystemTime::now());
    let id = wanted.id.clone().map_or_else(TokenId::random, Ok)?;
    let claims = Claims {
        subject: wanted.subject.clone(),
        id: Some(id.clone()),
        services: wanted.services.clone(),
        labels: Labels::try_from(labels(&wanted.labels)?)?,
        expires: now + wanted.expires.as_secs(),
        not_before: None,
        issued_at: Some(now),
    };
    let token = key.issue(&claims)?;
    let advice = format!(
        "issued a token for {}, signed with the key {}. To revoke it, add this line to the deny file of the edges:\n{}",
        claims.subject,
        key.public().id(),
        DenyLine::Token(id, Some(claims.expires))
    );
    Ok(Issued { token, until: SystemTime::UNIX_EPOCH + Duration::from_secs(claims.expires), advice })
}
