//! The one writer of a names record at this node: all requests that wait go into one compare-and-set. Without I/O.

use super::names::{NameAnswer, NameRequest, Names};

/// The writer of one bucket. `V` is the engine's version of a record, `T` what identifies a caller.
#[derive(Debug)]
pub struct NameWriter<V, T> {
    waiting: Vec<Batch<T>>,
    /// The record as it was read or written last.
    known: Option<(Names, Option<V>)>,
    /// How many of the waiting batches were there when it was read.
    covered: usize,
    in_flight: Option<InFlight<V>>,
    /// A write that expected this version may still be committed.
    unsettled: Option<Option<V>>,
}

/// What one caller requests.
#[derive(Debug)]
struct Batch<T> {
    requests: Vec<NameRequest>,
    caller: T,
}

#[derive(Debug)]
enum InFlight<V> {
    Read,
    Write { names: Names, expect: Option<V>, answers: Vec<Vec<NameAnswer>> },
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum NameStep<V, T> {
    /// Nothing waits, or a request to the engine is in flight.
    Rest,
    /// Read the record: [`NameWriter::read`] or [`NameWriter::failed`].
    Read,
    /// Write the record: [`NameWriter::written`] or [`NameWriter::failed`].
    Write {
        /// The version to replace; `None` if there must be no record.
        expect: Option<V>,
        /// The new record.
        names: Names,
    },
    /// Answer these callers.
    Answer(Vec<(T, Vec<NameAnswer>)>),
}

impl<V, T> Default for NameWriter<V, T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), known: None, covered: 0, in_flight: None, unsettled: None }
    }
}

impl<V: Clone + PartialEq, T> NameWriter<V, T> {
    /// Takes requests of a caller, which are answered together.
    pub fn submit(&mut self, requests: Vec<NameRequest>, caller: T) {
        self.waiting.push(Batch { requests, caller });
    }

    /// Begins the next request to the engine. `now` is in Unix milliseconds.
    pub fn next(&mut self, now: u64) -> NameStep<V, T> {
        if self.in_flight.is_some() || self.waiting.is_empty() {
            return NameStep::Rest;
        }
        let Some((before, version)) = &self.known else { return self.read_again() };
        let mut names = before.clone();
        let apply = |batch: &Batch<T>| batch.requests.iter().map(|request| names.apply(request)).collect();
        let answers: Vec<Vec<NameAnswer>> = self.waiting.iter().map(apply).collect();
        if names != *before || self.unsettled.is_some() {
            names.prune(now);
            let expect = version.clone();
            self.in_flight = Some(InFlight::Write { names: names.clone(), expect: expect.clone(), answers });
            return NameStep::Write { expect, names };
        }
        // What is known must not be older than a request that it answers.
        if self.covered < self.waiting.len() {
            return self.read_again();
        }
        NameStep::Answer(self.end(answers))
    }

    fn read_again(&mut self) -> NameStep<V, T> {
        self.covered = self.waiting.len();
        self.in_flight = Some(InFlight::Read);
        NameStep::Read
    }

    /// The record was read.
    pub fn read(&mut self, names: Names, version: Option<V>) {
        self.in_flight = None;
        if self.unsettled.as_ref().is_some_and(|expected| *expected != version) {
            self.unsettled = None;
        }
        self.known = Some((names, version));
    }

    /// The write was committed. Returns whom to answer.
    pub fn written(&mut self, version: V) -> Vec<(T, Vec<NameAnswer>)> {
        let Some(InFlight::Write { names, answers, .. }) = self.in_flight.take() else { return Vec::new() };
        (self.known, self.unsettled) = (Some((names, Some(version))), None);
        self.end(answers)
    }

    /// The write was refused (`is_unknown` is false), or the outcome of a request is unknown.
    pub fn failed(&mut self, is_unknown: bool) {
        if let Some(InFlight::Write { expect, .. }) = self.in_flight.take()
            && is_unknown
        {
            self.unsettled = Some(expect);
        }
        self.known = None;
    }

    /// Gives all callers up, who learn nothing. Returns them.
    pub fn give_up(&mut self) -> Vec<T> {
        self.failed(true);
        std::mem::take(&mut self.waiting).into_iter().map(|batch| batch.caller).collect()
    }

    /// Ends the batches that have answers.
    fn end(&mut self, answers: Vec<Vec<NameAnswer>>) -> Vec<(T, Vec<NameAnswer>)> {
        self.covered = 0;
        let ended: Vec<_> = self.waiting.drain(..answers.len()).map(|batch| batch.caller).zip(answers).collect();
        if self.waiting.is_empty() {
            // Others write it meanwhile.
            self.known = None;
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::NameChange;
    use super::*;

    fn take(name: &str, repository: &str) -> Vec<NameRequest> {
        let (name, repository) = (name.parse().unwrap(), repository.parse().unwrap());
        vec![NameRequest { name, repository, fence: 1, change: NameChange::Take }]
    }

    fn held_by(repository: &str) -> Vec<NameAnswer> {
        vec![NameAnswer::HeldBy(repository.parse().unwrap())]
    }

    const DONE: NameAnswer = NameAnswer::Done { last: 0 };

    #[test]
    fn all_that_wait_are_one_write() {
        let mut writer: NameWriter<u64, &str> = NameWriter::default();
        assert_eq!(writer.next(0), NameStep::Rest);
        writer.submit(take("a", "shop"), "first");
        assert_eq!(writer.next(0), NameStep::Read);
        writer.submit([take("b", "shop"), take("a", "blog")].concat(), "second");
        writer.read(Names::default(), None);
        let NameStep::Write { expect: None, names } = writer.next(0) else { panic!("there is no record yet") };
        writer.submit(take("a", "blog"), "third");
        assert_eq!(writer.next(0), NameStep::Rest, "one request at a time");
        let second = [vec![DONE], held_by("shop")].concat();
        assert_eq!(writer.written(1), [("first", vec![DONE]), ("second", second)]);
        // What was written then may be older than the third request.
        assert_eq!(writer.next(0), NameStep::Read);
        writer.read(names, Some(1));
        assert_eq!(writer.next(0), NameStep::Answer(vec![("third", held_by("shop"))]));
        assert_eq!(writer.next(0), NameStep::Rest);
    }

    #[test]
    fn an_unknown_outcome_is_settled_before_anything_is_answered() {
        let mut writer: NameWriter<u64, &str> = NameWriter::default();
        let mut taken = Names::default();
        take("a", "shop").iter().for_each(|request| drop(taken.apply(request)));
        writer.submit(take("a", "shop"), "first");
        writer.next(0);
        writer.read(Names::default(), Some(1));
        assert!(matches!(writer.next(0), NameStep::Write { expect: Some(1), .. }));
        assert_eq!(writer.give_up(), ["first"]);
        // The record looks as if nothing was written, and the request needs no write.
        writer.submit(take("a", "shop"), "second");
        assert_eq!(writer.next(0), NameStep::Read);
        writer.read(taken.clone(), Some(1));
        assert!(matches!(writer.next(0), NameStep::Write { expect: Some(1), .. }));
        writer.failed(false);
        assert_eq!(writer.next(0), NameStep::Read, "a conflict");
        writer.read(taken, Some(2));
        assert_eq!(writer.next(0), NameStep::Answer(vec![("second", vec![DONE])]));
    }
}
