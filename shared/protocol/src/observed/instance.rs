//! The run of a program.

use crate::text_type::{checked_text, truncated};

/// The longest name of an instance, in bytes.
pub const MAX_INSTANCE_BYTES: usize = 64;

checked_text! {
    /// One run of an agent or an edge: two living ones of the same name are a mistake of the operator.
    Instance, is_instance, InstanceError, |text| InstanceError(truncated(text))
}

/// The text is not the name of an instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an instance: 1 to {MAX_INSTANCE_BYTES} of `A-Z`, `a-z`, `0-9`, `.`, `_`, `-`")]
pub struct InstanceError(String);

fn is_instance(text: &str) -> bool {
    let may_stand = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_INSTANCE_BYTES).contains(&text.len()) && text.bytes().all(may_stand)
}
