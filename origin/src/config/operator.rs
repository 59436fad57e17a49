//! `[operator_api]` and `[[operator]]`: who may do what on `operator_listen`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use rustls::ServerConfig;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use weir_protocol::name::NodeName;
use weir_protocol::name_glob::NameGlob;
use weir_runtime::operator_token::{OPERATOR_TOKEN, OperatorToken, TokenError};
use weir_runtime::tls::{self, ClientAuth, TlsError};

use super::TlsConfig;

/// The listener of operators. The certificate files are read again when they change, and on SIGHUP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OperatorApiConfig {
    /// File with one token for all operators (`Authorization: Bearer …`): one line of 16 to 4,096 visible characters, read for
    /// each request. Its holders are admins, and the audit log names all of them `token`: give each a `[[operator]]` instead.
    pub operator_token_file: Option<PathBuf>,
    /// PEM file of the listener's certificate, with its chain; together with `key`. Webhooks need one of a public authority.
    /// Default: that of `[tls]`.
    pub certificate: Option<PathBuf>,
    /// PEM file of its private key. Default: that of `[tls]`.
    pub key: Option<PathBuf>,
    /// PEM file of the authority of operators' certificates. Default: that of `[tls]`.
    pub client_ca: Option<PathBuf>,
    /// Directory of the secrets that operators may name, one folder for each scheme, host and port of an upstream:
    /// `<secrets_dir>/git.example/token` for `https://` on port 443, otherwise `<secrets_dir>/https_git.example_8443/token`.
    /// Without it, they may name none.
    pub secrets_dir: Option<PathBuf>,
}

impl OperatorApiConfig {
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let Self { operator_token_file, certificate, key, client_ca, secrets_dir } = self;
        [operator_token_file, certificate, key, client_ca, secrets_dir].into_iter().flatten()
    }

    pub(super) fn error(&self) -> Option<&'static str> {
        match (&self.certificate, &self.key) {
            (Some(_), None) => Some("[operator_api] `certificate` needs `key`"),
            (None, Some(_)) => Some("[operator_api] `key` needs `certificate`"),
            _ => None,
        }
    }

    /// The TLS configuration of the listener. Client certificates are optional, because webhooks have none.
    pub(crate) fn server_tls(&self, of_edges: &TlsConfig) -> Result<ServerConfig, TlsError> {
        let TlsConfig { certificate, key, client_ca } = self.tls(of_edges);
        tls::server_config(&certificate, &key, ClientAuth::Offered { ca: &client_ca })
    }

    /// The files of the listener.
    pub(crate) fn tls(&self, of_edges: &TlsConfig) -> TlsConfig {
        let or = |own: &Option<PathBuf>, other: &PathBuf| own.as_ref().unwrap_or(other).clone();
        TlsConfig {
            certificate: or(&self.certificate, &of_edges.certificate),
            key: or(&self.key, &of_edges.key),
            client_ca: or(&self.client_ca, &of_edges.client_ca),
        }
    }

    /// The operators' token.
    pub(crate) fn token(&self) -> Result<Option<OperatorToken>, TokenError> {
        self.operator_token_file.as_deref().map(|file| OperatorToken::open(OPERATOR_TOKEN, file)).transpose()
    }
}

/// A person or a program with access to `operator_listen`. While there is none, each client certificate of an operator is an
/// admin; once there is one, certificates that none of them names are refused.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorConfig {
    /// The operator's name, for the audit log and the history.
    pub name: NodeName,
    /// SHA-256 of the operator's token, in 64 hexadecimal digits, as `sha256sum` prints it (of the token without a line end).
    /// Make the token of random bytes: `openssl rand -hex 32`.
    #[serde(default)]
    pub token_sha256: Option<String>,
    /// The name in the operator's client certificate, `spiffe://<trust_domain>/operator/<name>`.
    #[serde(default)]
    pub certificate: Option<NodeName>,
    /// What the operator may do. Each role may do what those before it may, too.
    pub role: OperatorRole,
    /// The services that the operator sees, and may deliver or define. Default: all.
    #[serde(default)]
    pub services: Option<Vec<NameGlob>>,
    /// The repositories of which the operator may make services. Required for the role `define`.
    #[serde(default)]
    pub repositories: Option<Vec<NameGlob>>,
    /// A table `[operator]`, which is called `[operator_api]` since 0.2.
    #[serde(skip)]
    former: Option<OperatorApiConfig>,
}

/// What an operator may do, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperatorRole {
    /// reads.
    View,
    /// rolls back, pins, stages and refreshes.
    Deliver,
    /// writes services, and asks for their dry runs.
    Define,
    /// does everything else.
    Admin,
}

impl OperatorRole {
    /// All roles, the least first.
    pub const ALL: [Self; 4] = [Self::View, Self::Deliver, Self::Define, Self::Admin];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Deliver => "deliver",
            Self::Define => "define",
            Self::Admin => "admin",
        }
    }
}

impl OperatorConfig {
    /// An operator without credentials.
    pub fn new(name: NodeName, role: OperatorRole) -> Self {
        Self { name, token_sha256: None, certificate: None, role, services: None, repositories: None, former: None }
    }

    /// The digest of the token.
    pub(crate) fn token_digest(&self) -> Option<[u8; 32]> {
        let hex = self.token_sha256.as_deref().filter(|hex| hex.len() == 64 && hex.is_ascii())?;
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok();
        let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
        bytes?.try_into().ok()
    }

    fn errors(&self) -> impl Iterator<Item = String> {
        let is_admin = self.role == OperatorRole::Admin;
        let wrong = [
            (self.token_sha256.is_none() && self.certificate.is_none(), "give it `token_sha256` or `certificate`"),
            (
                self.token_sha256.is_some() && self.token_digest().is_none(),
                "`token_sha256` must be 64 hexadecimal digits: printf %s \"$token\" | sha256sum",
            ),
            (
                self.token_sha256.as_deref().is_some_and(|hex| hex.eq_ignore_ascii_case(OF_NOTHING)),
                "`token_sha256` is the digest of an empty text: `$token` was not set",
            ),
            (self.name.as_str() == BY_TOKEN, "`token` is the name of whoever has the token of `operator_token_file`"),
            (is_admin && self.services.is_some(), "the role `admin` has no `services`: an admin may do everything"),
            (
                (self.role == OperatorRole::Define) != self.repositories.is_some(),
                "the role `define` needs `repositories` (`[\"*\"]`: all), and no other role has it",
            ),
        ];
        let name = self.name.clone();
        wrong.into_iter().filter(|(is_wrong, _)| *is_wrong).map(move |(_, what)| format!("operator `{name}`: {what}"))
    }
}

/// SHA-256 of no bytes.
const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The name of an operator who authenticates with the token of all.
pub(crate) const BY_TOKEN: &str = "token";

/// What is wrong with the operators.
pub(super) fn errors(operators: &[OperatorConfig]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut twice = |key: &str, value: Option<String>| {
        let value = value?;
        (!seen.insert((key.to_owned(), value.clone()))).then(|| format!("two operators have the {key} `{value}`"))
    };
    let mut wrong = Vec::new();
    for operator in operators {
        wrong.extend(operator.errors());
        wrong.extend(twice("name", Some(operator.name.to_string())));
        wrong.extend(twice("certificate", operator.certificate.as_ref().map(ToString::to_string)));
        wrong.extend(twice("token_sha256", operator.token_sha256.as_deref().map(str::to_ascii_lowercase)));
    }
    wrong
}

/// The table `[operator]` of the release before, if that is what was read.
pub(super) fn take_former(operators: &mut Vec<OperatorConfig>) -> Option<OperatorApiConfig> {
    let former = operators.iter_mut().find_map(|operator| operator.former.take())?;
    operators.clear();
    Some(former)
}

/// Reads `[[operator]]`, or the table `[operator]` of the release before.
pub(super) fn operators_or_former<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OperatorConfig>, D::Error> {
    struct Either;

    impl<'de> Visitor<'de> for Either {
        type Value = Vec<OperatorConfig>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("tables `[[operator]]`")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(list))
        }

        fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Self::Value, A::Error> {
            let former = OperatorApiConfig::deserialize(MapAccessDeserializer::new(table))?;
            let name = BY_TOKEN.parse().map_err(A::Error::custom)?;
            Ok(vec![OperatorConfig { former: Some(former), ..OperatorConfig::new(name, OperatorRole::Admin) }])
        }
    }

    deserializer.deserialize_any(Either)
}
