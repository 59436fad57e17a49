//! The task that follows one origin.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::watch;
use weir_shared::descriptor::{Descriptor, DescriptorError, Generation};
use weir_shared::event::{Cursor, Event, EventKind};
use weir_shared::name::ServiceName;

use super::pause::Pauses;
use super::stream::{Batch, End, Stream};
use super::warmer::Warmer;
use super::{Following, safety_net};
use crate::clock::Moment;
use crate::metrics::Refused;
use crate::origin_client::{OriginError, OriginId};
use crate::service_table::{Change, Entry, Outcome, Said, Told, Vouch};

/// Follows one origin.
pub(super) struct Follower {
    id: OriginId,
    following: Following,
    warmer: Warmer,
    access: watch::Sender<Option<Bytes>>,
    /// The last place whose events, and all before them, were applied.
    cursor: Option<Cursor>,
    /// Why there is no cursor, when there is none.
    no_cursor: &'static str,
    /// The stream began, at this connection or at an earlier one whose place is known.
    begun: bool,
    /// Between `resync` and `snapshot_end`.
    in_snapshot: bool,
    /// Since the stream was last in step, something that it said could not be written: that is logged once.
    not_applied: bool,
    pauses: Pauses,
}

/// A change that the stream told of.
struct Pushed {
    service: ServiceName,
    version: (Generation, u64),
    change: Change,
}

impl Follower {
    pub(super) fn new(
        id: OriginId,
        following: Following,
        warmer: Warmer,
        access: watch::Sender<Option<Bytes>>,
    ) -> Self {
        following.metrics.stream_up(following.origins.all()[id].name(), false);
        let (cursor, pauses) = (None, Pauses::default());
        Self {
            id,
            following,
            warmer,
            access,
            cursor,
            no_cursor: "start",
            begun: false,
            in_snapshot: false,
            not_applied: false,
            pauses,
        }
    }

    /// Follows until the drain begins.
    pub(super) async fn run(mut self) {
        let drain = self.following.drain.clone();
        loop {
            let round = async {
                let end = self.follow().await;
                self.ended(&end);
                let pause = match &end {
                    End::NotServed => Pauses::when_not_served(fastrand::f64()),
                    End::Refused(OriginError::Refused { retry_after, .. }) => {
                        self.pauses.next(*retry_after, fastrand::f64())
                    }
                    // To be told everything again, and not to be able to write it, helps nobody.
                    End::NotApplied(_) => {
                        let pause = self.pauses.next(None, fastrand::f64());
                        pause.max(self.table_is_left_alone_for().await)
                    }
                    _ => self.pauses.next(None, fastrand::f64()),
                };
                tokio::time::sleep(pause).await;
            };
            tokio::select! {
                () = round => {}
                () = drain.begun() => return,
            }
        }
    }

    async fn follow(&mut self) -> End {
        let body = match self.following.origins.all()[self.id].events(self.cursor.as_ref()).await {
            Ok(body) => body,
            Err(error) => return error.into(),
        };
        let mut stream = Stream::of(body, self.following.clock);
        loop {
            let applied = match stream.next().await {
                Ok(batch) => self.apply(batch).await,
                Err(end) => Err(end),
            };
            if let Err(end) = applied {
                return end;
            }
        }
    }

    /// For how long the table will take no write.
    async fn table_is_left_alone_for(&self) -> Duration {
        let table = self.following.table.clone();
        tokio::task::spawn_blocking(move || table.left_alone_for()).await.unwrap_or_default()
    }

    fn ended(&mut self, end: &End) {
        let was_in_step = self.vouch().is_in_step();
        self.vouch().out_of_step();
        self.in_snapshot = false;
        if end.loses_the_place() {
            (self.cursor, self.begun, self.no_cursor) = (None, false, "lost");
        }
        let origin = self.name();
        self.following.metrics.stream_up(origin, false);
        self.following.metrics.stream_ended(end.label());
        match end {
            End::NotApplied(_) if self.not_applied => tracing::debug!(origin, %end, "the events of an origin are lost"),
            End::Malformed(_) | End::NotApplied(_) => tracing::warn!(origin, %end, "the events of an origin are lost"),
            _ if was_in_step => tracing::warn!(origin, %end, "the events of an origin are not followed any more"),
            _ => tracing::debug!(origin, %end, "the events of an origin cannot be followed"),
        }
        self.not_applied |= matches!(end, End::NotApplied(_));
    }

    /// Applies events in their order. What the stream says of services is written together, as far as it goes.
    async fn apply(&mut self, Batch { events, at }: Batch) -> Result<(), End> {
        let Some(last) = events.last().map(|event| event.cursor.clone()) else { return Ok(()) };
        let mut told = Vec::new();
        for Event { kind, .. } in events {
            self.following.metrics.event(&kind);
            if !self.begun && !matches!(kind, EventKind::Resync | EventKind::Access(_)) {
                return Err(End::Malformed(format!("it began with `{}`", kind.as_str())));
            }
            match kind {
                EventKind::Descriptor(bytes) => told.extend(self.current(&bytes, at)?),
                EventKind::Tombstone { service, generation } => told.push(self.gone(service, generation, at)),
                EventKind::Access(access) => {
                    self.access.send_replace(Some(Bytes::copy_from_slice(&access)));
                }
                // It is for agents, who ask for the part of it that is about their service.
                EventKind::SignedHeartbeat(_) => {}
                // These say something of all that was told before them.
                EventKind::Resync | EventKind::SnapshotEnd | EventKind::Heartbeat => {
                    self.write(std::mem::take(&mut told)).await?;
                    match kind {
                        EventKind::Resync => self.begin(at),
                        EventKind::SnapshotEnd => self.snapshot_ended(),
                        _ => self.heartbeat(at),
                    }
                }
            }
        }
        self.write(told).await?;
        self.cursor = Some(last);
        Ok(())
    }

    /// A descriptor that was told. `None`: this version of the edge cannot read it.
    fn current(&self, bytes: &[u8], at: Moment) -> Result<Option<Pushed>, End> {
        // Copied: what is kept for long must not hold on to a part of the stream with many others in it.
        match Descriptor::parse(Bytes::copy_from_slice(bytes)) {
            Ok(descriptor) => {
                let (service, version) = (descriptor.publication().service.clone(), descriptor.version());
                let change = self.change(Said::Current(descriptor.into()), at);
                Ok(Some(Pushed { service, version, change }))
            }
            Err(error) => {
                self.unreadable(bytes, &error, at)?;
                Ok(None)
            }
        }
    }

    fn gone(&self, service: ServiceName, generation: Generation, at: Moment) -> Pushed {
        let change = self.change(Said::Gone(service.clone(), Some(generation)), at);
        Pushed { service, version: (generation, u64::MAX), change }
    }

    fn change(&self, word: Said, at: Moment) -> Change {
        Change { origin: Some(self.id), told: Told::Pushed, at, word }
    }

    /// A descriptor of a newer origin, perhaps: what is held of its service is not vouched for any more.
    fn unreadable(&self, bytes: &[u8], error: &DescriptorError, at: Moment) -> Result<(), End> {
        #[derive(Deserialize)]
        struct Named {
            publication: Name,
        }
        #[derive(Deserialize)]
        struct Name {
            service: ServiceName,
        }
        let named: Named = serde_json::from_slice(bytes).map_err(|_| End::Malformed(error.to_string()))?;
        let service = named.publication.service;
        tracing::warn!(origin = self.name(), %service, %error, "a descriptor that was pushed cannot be read");
        self.following.metrics.refused(Refused::Unreadable);
        self.doubtful(&service, at);
        Ok(())
    }

    /// Writes what was told, and does what follows from it.
    async fn write(&self, told: Vec<Pushed>) -> Result<(), End> {
        if told.is_empty() {
            return Ok(());
        }
        let (names, changes): (Vec<_>, Vec<_>) =
            told.into_iter().map(|told| ((told.service, told.version, told.change.at), told.change)).unzip();
        let outcomes = self.following.table.apply_all(changes).await;
        for ((service, version, at), outcome) in names.into_iter().zip(outcomes) {
            self.vouch().told(&service, version);
            match outcome.map_err(|error| End::NotApplied(error.to_string()))? {
                Outcome::Taken(entry) => {
                    self.observe_delay(version.0);
                    self.take_up(service, &entry);
                }
                Outcome::Revised(entry) => self.take_up(service, &entry),
                Outcome::Held(_) => self.following.lookup.heard_of(&service),
                Outcome::Regressed => {
                    self.following.metrics.refused(Refused::Regressed);
                    self.doubtful(&service, at);
                }
                Outcome::AnotherOrigins => {
                    self.following.metrics.refused(Refused::AnotherOrigins);
                    tracing::warn!(
                        origin = self.name(), %service,
                        "an origin tells of a service that is another origin's; it is not taken from there"
                    );
                }
                Outcome::GoneThere => self.doubtful(&service, at),
                Outcome::NeverHeld => {}
            }
        }
        Ok(())
    }

    /// Another version of a service is in the table.
    fn take_up(&self, service: ServiceName, entry: &Entry) {
        self.following.lookup.heard_of(&service);
        if entry.version.is_some() {
            self.warmer.consider(service, entry);
        }
    }

    /// What is held may not be what the origin has: it is asked, and its answer decides.
    fn doubtful(&self, service: &ServiceName, at: Moment) {
        if let Some(entry) = self.following.table.hot(service) {
            entry.doubt(at);
        }
        self.following.lookup.heard_of(service);
        self.following.lookup.ask_behind(service);
    }

    /// From its publication until now, by the wall clocks of both machines. Generations are milliseconds since 1970; one
    /// that is ahead of the clock says nothing.
    fn observe_delay(&self, generation: Generation) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        if !self.in_snapshot
            && let Some(delay) = now.checked_sub(generation.into())
        {
            self.following.metrics.push_delay.observe(delay as f64 / 1000.0);
        }
    }

    fn begin(&mut self, at: Moment) {
        let why = if self.cursor.is_some() { "cursor_unknown" } else { self.no_cursor };
        self.following.metrics.resynced(why);
        if !self.not_applied {
            tracing::info!(origin = self.name(), why, "the events of an origin begin with everything that is current");
        }
        self.following.table.settle();
        self.vouch().out_of_step();
        self.vouch().begin(at);
        (self.begun, self.in_snapshot) = (true, true);
    }

    fn snapshot_ended(&mut self) {
        self.in_snapshot = false;
        self.in_step();
        // Gone, or not published just now: the snapshot does not say, and the origin will.
        let silent = self.following.table.silent_on(self.id);
        if !silent.is_empty() {
            tracing::info!(origin = self.name(), services = silent.len(), "the origin is asked about what it left out");
            // What an earlier question met says nothing of now.
            silent.iter().for_each(|service| self.following.lookup.heard_of(service));
            safety_net::ask_soon(&self.following, silent);
        }
    }

    fn heartbeat(&mut self, at: Moment) {
        if self.in_snapshot {
            return;
        }
        self.in_step();
        for (service, (generation, revision)) in self.vouch().heartbeat(at) {
            self.following.metrics.push_missed.inc();
            tracing::warn!(
                origin = self.name(), %service, generation, revision,
                "a version was found by asking that the origin's event stream had not told of"
            );
        }
        self.following.metrics.heartbeat(self.name());
    }

    fn in_step(&mut self) {
        if !self.vouch().is_in_step() {
            tracing::info!(origin = self.name(), "the events of an origin are followed");
        }
        self.vouch().in_step();
        self.not_applied = false;
        self.pauses.start_over();
        self.following.metrics.stream_up(self.name(), true);
    }

    fn vouch(&self) -> &Vouch {
        self.following.table.vouch(self.id)
    }

    fn name(&self) -> &str {
        self.following.origins.all()[self.id].name()
    }
}
