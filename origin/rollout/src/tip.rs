//! What a new tip of a service with a plan does to what is staged.

/// The contents of a service that a tip is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents<K> {
    /// What everybody has. `None`: the service was never published.
    pub in_force: Option<K>,
    /// What is staged, or is to be staged.
    pub staged: Option<Staged<K>>,
    /// What was staged last, and was aborted. The caller forgets it once the tip is another one.
    pub aborted: Option<K>,
}

/// A content that some agents get first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staged<K> {
    /// The content.
    pub content: K,
    /// Its first stage has begun, so agents may have it.
    pub has_begun: bool,
}

/// What a tip does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TipStep {
    /// It is published for all: nothing is in force that could stay.
    Publish,
    /// It is staged from the first stage, in place of what is staged.
    Begin,
    /// It is what is in force, as after a `git revert`: what is staged ends.
    Abort,
    /// What is staged comes first. The newest of the tips that wait is staged then.
    Wait,
    /// It changes nothing.
    Nothing,
}

/// Pure: what a tip does. `replaces`: it does not wait until what is staged has ended.
pub fn on_tip<K: PartialEq>(contents: &Contents<K>, tip: &K, replaces: bool) -> TipStep {
    let Some(in_force) = &contents.in_force else { return TipStep::Publish };
    match &contents.staged {
        Some(staged) if staged.content == *tip => TipStep::Nothing,
        Some(_) if in_force == tip => TipStep::Abort,
        Some(staged) if staged.has_begun && !replaces => TipStep::Wait,
        None if in_force == tip => TipStep::Nothing,
        // Until the tip is another one: it would fail again.
        None if contents.aborted.as_ref() == Some(tip) => TipStep::Nothing,
        _ => TipStep::Begin,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tip_is_compared_with_what_is_in_force_staged_and_aborted() {
        let contents = |in_force, staged: Option<(char, bool)>, aborted| Contents {
            in_force,
            staged: staged.map(|(content, has_begun)| Staged { content, has_begun }),
            aborted,
        };
        for (of, tip, replaces, expected) in [
            (contents(None, None, None), 'a', false, TipStep::Publish),
            (contents(Some('a'), None, None), 'a', false, TipStep::Nothing),
            (contents(Some('a'), None, None), 'b', false, TipStep::Begin),
            (contents(Some('a'), Some(('b', true)), None), 'b', true, TipStep::Nothing),
            (contents(Some('a'), Some(('b', true)), None), 'a', false, TipStep::Abort),
            (contents(Some('a'), Some(('b', true)), None), 'c', false, TipStep::Wait),
            (contents(Some('a'), Some(('b', true)), None), 'c', true, TipStep::Begin),
            (contents(Some('a'), Some(('b', false)), None), 'c', false, TipStep::Begin),
            (contents(Some('a'), None, Some('b')), 'b', true, TipStep::Nothing),
            (contents(Some('a'), None, Some('b')), 'c', false, TipStep::Begin),
        ] {
            assert_eq!(on_tip(&of, &tip, replaces), expected, "{tip} at {of:?}");
        }
    }

    proptest! {
        /// Whatever tips come and however rollouts end: what was aborted is not staged before another tip came, and a tip that
        /// comes twice changes nothing the second time.
        #[test]
        fn what_was_aborted_does_not_come_back_by_itself(
            tips in proptest::collection::vec((0_u8..4, any::<bool>(), 0_u8..4), 1..30), replaces in any::<bool>(),
        ) {
            let mut contents = Contents { in_force: None, staged: None, aborted: None };
            let mut last_aborted = None;
            for (tip, has_begun, end) in tips {
                let step = on_tip(&contents, &tip, replaces);
                match step {
                    TipStep::Publish => contents.in_force = Some(tip),
                    TipStep::Begin => {
                        prop_assert_ne!(last_aborted, Some(tip));
                        (contents.staged, contents.aborted, last_aborted) = (Some(Staged { content: tip, has_begun }), None, None);
                    }
                    TipStep::Abort => contents.staged = None,
                    TipStep::Wait | TipStep::Nothing => {}
                }
                if step != TipStep::Wait {
                    prop_assert_eq!(on_tip(&contents, &tip, replaces), TipStep::Nothing);
                }
                match (end, contents.staged) {
                    (0, Some(staged)) => {
                        (contents.staged, contents.aborted, last_aborted) = (None, Some(staged.content), Some(staged.content));
                    }
                    (1, Some(staged)) => (contents.staged, contents.in_force) = (None, Some(staged.content)),
                    _ => {}
                }
            }
        }
    }
}
