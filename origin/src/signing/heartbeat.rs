//! The signed heartbeat: made once a minute, told on the event stream, and kept for those who ask.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use weir_shared::descriptor::Generation;
use weir_shared::envelope::Envelope;
use weir_shared::event::EventKind;
use weir_shared::heartbeat::{GenerationTree, Heartbeat, SIGNED_EVERY_SECONDS};
use weir_shared::name::{NodeName, ServiceName};
use weir_shared::process::shutdown::Drain;

use super::Signer;
use crate::event_log::EventLog;

/// The last heartbeat, as it changes; none where there is no key.
pub(crate) type Heartbeats = watch::Receiver<Option<Arc<Signed>>>;

/// A signed heartbeat with the tree that it holds the root of.
#[derive(Debug)]
pub(crate) struct Signed {
    envelope: Envelope,
    tree: GenerationTree,
}

impl Signed {
    fn new(signer: &Signer, origin: NodeName, services: Vec<(ServiceName, Generation)>, now: SystemTime) -> Self {
        let tree = GenerationTree::new(services);
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        let heartbeat = Heartbeat { origin, time, services: tree.len(), root: tree.root() };
        let envelope = signer.heartbeat(serde_json::to_vec(&heartbeat).expect("plain data"));
        Self { envelope, tree }
    }

    /// The envelope.
    pub(crate) fn envelope(&self) -> Bytes {
        self.envelope.json().into()
    }

    /// The envelope with a service's place under it. `None`: nothing was published of it when this was signed.
    pub(crate) fn standing(&self, service: &ServiceName) -> Option<Bytes> {
        self.tree.standing(&self.envelope, service).map(Bytes::from)
    }
}

impl Signer {
    /// Signs a heartbeat now and then once a minute, until the drain; without keys never. `current` tells what is
    /// published; the time that is signed is from before it was asked.
    pub(crate) fn beat(
        self: &Arc<Self>,
        origin: &NodeName,
        current: impl Fn() -> Vec<(ServiceName, Generation)> + Send + 'static,
        log: Arc<EventLog>,
        drain: &Drain,
    ) -> Heartbeats {
        let (signed, heartbeats) = watch::channel(None);
        if self.is_empty() {
            return heartbeats;
        }
        let (signer, origin, begun) = (self.clone(), origin.clone(), drain.clone());
        drain.spawn(async move {
            let mut minutes = interval(Duration::from_secs(SIGNED_EVERY_SECONDS));
            minutes.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = begun.begun() => return,
                    _ = minutes.tick() => {}
                }
                let now = SystemTime::now();
                let beat = Signed::new(&signer, origin.clone(), current(), now);
                // Behind everything that it counts, because a descriptor is told before anybody can see it.
                log.append(EventKind::SignedHeartbeat(beat.envelope()));
                signed.send_replace(Some(Arc::new(beat)));
            }
        });
        heartbeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::{Read, tests::log};
    use weir_shared::event::Event;
    use weir_shared::heartbeat::verify_standing;
    use weir_shared::token::{PublicKey, SigningKey};

    fn signer(keys: usize) -> (Arc<Signer>, Vec<PublicKey>) {
        let keys: Vec<SigningKey> = (0..keys).map(|_| SigningKey::generate().unwrap().0).collect();
        let public = keys.iter().map(|key| key.public().clone()).collect();
        (Arc::new(Signer::new(keys)), public)
    }

    fn services() -> Vec<(ServiceName, Generation)> {
        ["shop", "bank"].map(|name| (name.parse().unwrap(), 7)).into()
    }

    #[tokio::test(start_paused = true)]
    async fn it_beats_once_a_minute_on_the_stream_and_for_those_who_ask() {
        let ((signer, keys), log, drain) = (signer(2), Arc::new(log(100, 1 << 20)), Drain::new());
        let mut beats = signer.beat(&"origin-1".parse().unwrap(), services, log.clone(), &drain);
        let begun = tokio::time::Instant::now();
        for minute in 0..3 {
            beats.changed().await.unwrap();
            assert_eq!(begun.elapsed().as_secs(), 60 * minute);
            let beat = beats.borrow_and_update().clone().unwrap();
            let Read::Lines(lines, _) = log.read(minute) else { panic!("it is told") };
            let told = Event::parse(&lines[0].slice(..lines[0].len() - 1)).unwrap().unwrap();
            assert_eq!(told.kind, EventKind::SignedHeartbeat(beat.envelope()));
            for key in &keys {
                let service = "shop".parse().unwrap();
                let json = beat.standing(&service).unwrap();
                let standing = verify_standing(&json, &service, std::slice::from_ref(key)).unwrap();
                assert_eq!((standing.generation, standing.origin.as_str()), (7, "origin-1"));
            }
            assert!(beat.standing(&"nobody".parse().unwrap()).is_none());
        }
        assert!(drain.finish(Duration::from_secs(5)).await);
    }

    #[tokio::test]
    async fn without_a_key_there_is_none() {
        let (log, drain) = (Arc::new(log(100, 1 << 20)), Drain::new());
        let mut beats = signer(0).0.beat(&"origin-1".parse().unwrap(), services, log.clone(), &drain);
        assert!(beats.changed().await.is_err() && beats.borrow().is_none());
        assert_eq!(log.newest(), 0);
    }
}
