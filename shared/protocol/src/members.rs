//! The members of a cluster of origins, as any of them answers `GET /v1/members`.

use serde::{Deserialize, Serialize};

use crate::name::NodeName;

/// The path of the list.
pub const PATH: &str = "/v1/members";

/// The longest document, in bytes.
pub const MAX_MEMBERS_BYTES: usize = 128 << 10;

/// The most members.
pub const MAX_MEMBERS: usize = 100;

/// The longest URL, in bytes.
pub const MAX_URL_BYTES: usize = 300;

/// The members with living sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// In any order; each name once.
    pub members: Vec<Member>,
}

/// An origin of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: NodeName,
    /// `https://`, a host and perhaps a port: where edges and other members reach it.
    pub url: String,
    /// Its zone.
    #[serde(default)]
    pub zone: Option<String>,
    /// What it does.
    pub state: MemberState,
}

/// The state of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// It owns repositories, and takes more.
    Active,
    /// It hands its repositories over, and is about to leave.
    Draining,
    /// A state of a later version. Requests may be sent to the member.
    #[serde(other)]
    Other,
}

/// The document is not a list of members.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// A bound is exceeded.
    #[error("the list of members is longer than {MAX_MEMBERS_BYTES} bytes or {MAX_MEMBERS} members")]
    TooLong,
    /// Not JSON, or a field is missing or wrong.
    #[error("the list of members cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A name stands twice.
    #[error("the list of members has `{0}` twice")]
    Twice(NodeName),
    /// A URL is not that of a member.
    #[error("the URL of member `{0}` is not https://, a host and perhaps a port, in at most {MAX_URL_BYTES} bytes")]
    Url(NodeName),
}

impl Members {
    /// Reads a document. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is too long, malformed, or names a member twice or with a wrong URL.
    pub fn parse(json: &[u8]) -> Result<Self, MembersError> {
        if json.len() > MAX_MEMBERS_BYTES {
            return Err(MembersError::TooLong);
        }
        let read: Self = crate::json::from_slice(json)?;
        if read.members.len() > MAX_MEMBERS {
            return Err(MembersError::TooLong);
        }
        let mut names = std::collections::BTreeSet::new();
        for member in &read.members {
            if !names.insert(&member.name) {
                return Err(MembersError::Twice(member.name.clone()));
            }
            if !is_origin(&member.url) {
                return Err(MembersError::Url(member.name.clone()));
            }
        }
        Ok(read)
    }

    /// The document.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names and texts")
    }
}

/// Whether a text is `https://` and an authority without a user.
fn is_origin(url: &str) -> bool {
    let may_stand = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    let authority = url.strip_prefix("https://").unwrap_or_default();
    !authority.is_empty() && url.len() <= MAX_URL_BYTES && authority.bytes().all(may_stand)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, url: &str) -> Member {
        Member { name: name.parse().unwrap(), url: url.to_owned(), zone: None, state: MemberState::Active }
    }

    #[test]
    fn a_list_is_json_that_later_versions_may_extend() {
        let zone = Some("a".to_owned());
        let members = Members { members: vec![Member { zone, ..member("origin-1", "https://origin-1.example:7400") }] };
        let json = String::from_utf8(members.to_json()).unwrap();
        assert_eq!(
            json,
            r#"{"members":[{"name":"origin-1","url":"https://origin-1.example:7400","zone":"a","state":"active"}]}"#
        );
        assert_eq!(Members::parse(json.as_bytes()).unwrap(), members);
        let without = Members { members: vec![member("a", "https://a")] }.to_json();
        assert!(String::from_utf8_lossy(&without).contains(r#""zone":null"#), "as for a client that has no default");
        assert_eq!(Members::parse(&without).unwrap().members[0].zone, None);
        let later = json.replace("\"active\"", "\"resting\",\"rack\":7");
        assert_eq!(Members::parse(later.as_bytes()).unwrap().members[0].state, MemberState::Other);
    }

    #[test]
    fn what_no_member_can_be_is_refused() {
        for url in ["", "https://", "http://a", "https://a/path", "https://user@a", "https://a b", "https://a?b"] {
            let json = Members { members: vec![member("a", url)] }.to_json();
            assert!(matches!(Members::parse(&json), Err(MembersError::Url(_))), "{url}");
        }
        let twice = Members { members: vec![member("a", "https://a"), member("a", "https://b")] };
        assert!(matches!(Members::parse(&twice.to_json()), Err(MembersError::Twice(_))));
        let many = (0..=MAX_MEMBERS).map(|index| member(&format!("m{index}"), "https://a")).collect();
        assert!(matches!(Members::parse(&Members { members: many }.to_json()), Err(MembersError::TooLong)));
        assert!(matches!(Members::parse(&vec![b' '; MAX_MEMBERS_BYTES + 1]), Err(MembersError::TooLong)));
        assert!(matches!(Members::parse(b"{}"), Err(MembersError::Malformed(_))));
    }
}
