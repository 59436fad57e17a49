//! What nodes send each other: descriptors, envelopes, heartbeats, piece lists and events.

use std::sync::OnceLock;

use weir_shared::descriptor::{Descriptor, MAX_DESCRIPTOR_BYTES};
use weir_shared::digest::BlobDigest;
use weir_shared::envelope::{Envelope, PUBLICATION_TYPE};
use weir_shared::event::{Event, Lines};
use weir_shared::heartbeat::verify_standing;
use weir_shared::piece::{self, PIECE_BYTES, PieceHasher, PieceList};
use weir_shared::token::{PublicKey, SigningKey};

fn keys() -> &'static [PublicKey] {
    static KEYS: OnceLock<Vec<PublicKey>> = OnceLock::new();
    KEYS.get_or_init(|| vec![SigningKey::generate().expect("there is randomness").0.public().clone()])
}

pub fn descriptor(bytes: &[u8]) {
    let Ok(read) = Descriptor::parse(bytes.to_vec().into()) else { return };
    assert_eq!(read.bytes(), bytes, "what is forwarded is what came");
    assert!(bytes.len() <= MAX_DESCRIPTOR_BYTES);
    let again = Descriptor::parse(read.bytes().clone()).expect("it was read before");
    assert_eq!((again.version(), again.etag()), (read.version(), read.etag()));
    assert!(read.verified_publication(&read.publication().service, keys()).is_err(), "nobody finds a signature");
}

/// An envelope, and an answer with an envelope in it.
pub fn envelope(bytes: &[u8]) {
    assert!(verify_standing(bytes, &"shop-prod".parse().expect("a name"), keys()).is_err());
    let Ok(envelope) = Envelope::parse(bytes) else { return };
    assert!(envelope.verify(PUBLICATION_TYPE, keys()).is_err(), "nobody finds a signature");
    assert_eq!(Envelope::parse(&envelope.json()), Ok(envelope), "what is written is read back");
}

/// A stream that comes in parts of a size that the first byte says.
pub fn event_stream(bytes: &[u8]) {
    const LIMIT: usize = 1000;
    let Some((size, stream)) = bytes.split_first() else { return };
    let mut lines = Lines::up_to(LIMIT);
    let mut read = Vec::new();
    'stream: for part in stream.chunks(usize::from(*size).max(1)) {
        lines.push(part);
        loop {
            match lines.next_line() {
                Ok(Some(line)) => read.push(line),
                Ok(None) => break,
                Err(_) => break 'stream,
            }
        }
    }
    let whole = stream.split(|byte| *byte == b'\n');
    for (line, whole) in read.iter().zip(whole) {
        assert!(line.len() <= LIMIT && line == whole, "however the stream is cut, its lines are the same");
        let Ok(Some(event)) = Event::parse(line) else { continue };
        let written = event.line().expect("what was read from one line can be written in one");
        assert_eq!(Event::parse(&written.slice(..written.len() - 1)).expect("it was written"), Some(event));
    }
}

/// A size in the first eight bytes, a list behind them; and the same bytes as a blob with a list of its own.
pub fn piece_list(bytes: &[u8]) {
    let Some((size, list)) = bytes.split_first_chunk::<8>() else { return };
    // Nobody finds a list whose root is given: what is shown is that none is taken, whatever its length.
    assert!(PieceList::parse(&BlobDigest::of(b"another"), u64::from_le_bytes(*size), list).is_err());

    // A true list is taken, and with any of its bytes changed it is not.
    let size = PIECE_BYTES + 1 + u64::from_le_bytes(*size) % (2 * PIECE_BYTES);
    let mut blob = vec![0; usize::try_from(size).expect("three pieces")];
    let filled = list.len().min(blob.len());
    blob[..filled].copy_from_slice(&list[..filled]);
    let mut hasher = PieceHasher::new();
    hasher.update(&blob);
    let (digest, list) = hasher.finish();
    let list = list.expect("it has more than one piece");
    let mut coded = list.to_bytes();
    assert_eq!(PieceList::parse(&digest, size, &coded).as_ref(), Ok(&list));
    for index in 0..list.count() {
        let part = piece::bytes_of(index, size).expect("it is there");
        let (start, end) = (usize::try_from(part.start), usize::try_from(part.end));
        let bytes = &blob[start.expect("small")..end.expect("small")];
        assert!(list.verify(index, bytes).is_ok() && list.verify(index, &bytes[1..]).is_err());
    }
    let at = filled % coded.len();
    coded[at] ^= 1;
    assert!(PieceList::parse(&digest, size, &coded).is_err());
}
