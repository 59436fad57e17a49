//! The name of an agent, made of the claims of its token.

use serde_json::Value;

use crate::name::NodeName;
use crate::text_type::{checked_text, truncated};

checked_text! {
    /// The name of an agent, or a template of one: `{…}` stands for the text of a claim. The way to a nested claim is
    /// written with `/`, as in a JSON pointer (RFC 6901) without its first character: `{kubernetes.io/namespace}` is the
    /// member `namespace` of the claim `kubernetes.io`. A `/` in the name of a claim is written `~1`, a `~` is `~0`.
    AgentTemplate, is_valid, AgentTemplateError, |text| AgentTemplateError(truncated(text))
}

/// The text is not a template of names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the name of an agent, nor a template such as `cluster-1` or `{{kubernetes.io/namespace}}`: names are \
     of `a-z`, `0-9`, `.`, `_`, `-`"
)]
pub struct AgentTemplateError(String);

impl AgentTemplate {
    /// The name for these claims.
    ///
    /// # Errors
    /// A claim is missing or is not a text, or the result is not a name. A sentence.
    pub fn name(&self, claims: &Value) -> Result<NodeName, String> {
        let claim = |path: &str| claims.pointer(&format!("/{path}")).and_then(Value::as_str);
        let mut name = String::new();
        for part in parts(self.as_str()).expect("it was checked") {
            match part {
                Part::Literal(text) => name += text,
                Part::Claim(path) => {
                    name += claim(path).ok_or_else(|| format!("the token has no text in its claim `{path}`"))?;
                }
            }
        }
        name.parse().map_err(|error| format!("the claims make no name: {error}"))
    }
}

enum Part<'t> {
    Literal(&'t str),
    Claim(&'t str),
}

/// `None`: a brace has no counterpart, or there is nothing between two.
fn parts(mut template: &str) -> Option<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    while let Some((literal, rest)) = template.split_once('{') {
        let (path, rest) = rest.split_once('}')?;
        if literal.contains('}') || path.is_empty() || path.contains('{') {
            return None;
        }
        parts.extend([Part::Literal(literal), Part::Claim(path)]);
        template = rest;
    }
    parts.push(Part::Literal(template));
    Some(parts)
}

/// A template is valid if some claims make a name of it.
fn is_valid(text: &str) -> bool {
    let shown = |part| if let Part::Literal(text) = part { text } else { "0" };
    let example: Option<String> = parts(text).map(|parts| parts.into_iter().map(shown).collect());
    example.is_some_and(|example| example.parse::<NodeName>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_at_any_depth_make_a_name() {
        let claims = serde_json::json!({
            "sub": "system:serviceaccount:weir:agent", "cluster": "eu-1", "n": 1, "empty": "",
            "kubernetes.io": {"namespace": "weir", "pod": {"name": "agent-0"}}, "https://a.example/c": "c", "list": ["l"],
        });
        for (template, name) in [
            ("cluster-1", "cluster-1"),
            ("{cluster}", "eu-1"),
            ("{kubernetes.io/namespace}", "weir"),
            ("{cluster}.{kubernetes.io/pod/name}-x", "eu-1.agent-0-x"),
            ("{https:~1~1a.example~1c}", "c"),
            ("{list/0}", "l"),
        ] {
            let template: AgentTemplate = template.parse().unwrap();
            assert_eq!(template.name(&claims).as_ref().map(NodeName::as_str), Ok(name), "{template}");
        }
        for (template, reason) in [
            ("{none}", "no text in its claim `none`"),
            ("{n}", "claim `n`"),
            ("{kubernetes.io}", "claim `kubernetes.io`"),
            ("{kubernetes.io/none}", "claim `kubernetes.io/none`"),
            ("{sub}", "make no name"),
            ("{empty}", "make no name"),
        ] {
            let error = template.parse::<AgentTemplate>().unwrap().name(&claims).unwrap_err();
            assert!(error.contains(reason), "{template}: {error}");
        }
        for wrong in ["", "A", "a b", "{", "}", "{}", "a}", "{a", "{a{b}}", "{a}}", "-{a}", "{a}/b"] {
            assert!(wrong.parse::<AgentTemplate>().is_err(), "{wrong}");
        }
    }
}
