//! Decodes the coding `dcz`: one zstd frame over the whole tar, whose dictionary is the tar of the release on disk.

use std::io::{self, BufRead, BufReader, Read};

use http::{HeaderMap, header};
use weir_protocol::dcz::{HEADER_BYTES, dictionary_of, max_window};
use weir_protocol::digest::Sha256;
use zstd::stream::read::Decoder;

/// The tar of the release on disk.
pub(crate) struct Dictionary {
    pub(crate) sha256: Sha256,
    pub(crate) tar: Vec<u8>,
}

/// Whether a response is a delta.
pub(crate) fn is_delta(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"dcz"))
}

/// A reader of the decoded tar.
pub(super) struct DeltaDecoder<'a, R: Read>(Decoder<'a, BufReader<R>>);

impl<'a, R: Read> DeltaDecoder<'a, R> {
    /// Reads the header of the body.
    ///
    /// # Errors
    /// The body cannot be read, or is for another dictionary.
    pub(super) fn new(mut body: R, dictionary: &'a Dictionary) -> io::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        body.read_exact(&mut header)?;
        match dictionary_of(&header) {
            None => return Err(io::Error::other("the delta has no header of `dcz`")),
            Some(other) if other != dictionary.sha256 => {
                return Err(io::Error::other("the delta is for another dictionary"));
            }
            Some(_) => {}
        }
        let mut decoder = Decoder::with_ref_prefix(BufReader::new(body), &dictionary.tar)?.single_frame();
        decoder.window_log_max(max_window(dictionary.tar.len() as u64).next_power_of_two().ilog2())?;
        Ok(Self(decoder))
    }
}

impl<R: Read> Read for DeltaDecoder<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        if read == 0 && !buffer.is_empty() && !self.0.get_mut().fill_buf()?.is_empty() {
            return Err(io::Error::other("the delta goes on after its frame"));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use weir_protocol::dcz;
    use zstd::stream::raw::CParameter;
    use zstd::stream::write::Encoder;

    fn dictionary(tar: &[u8]) -> Dictionary {
        Dictionary { sha256: Sha256::of(tar), tar: tar.to_vec() }
    }

    fn delta(old: &[u8], new: &[u8], window_log: u32, size: Option<u64>) -> Vec<u8> {
        let mut encoder = Encoder::with_ref_prefix(dcz::header(&Sha256::of(old)).to_vec(), 3, old).unwrap();
        encoder.set_parameter(CParameter::WindowLog(window_log)).unwrap();
        encoder.set_pledged_src_size(size).unwrap();
        encoder.write_all(new).unwrap();
        encoder.finish().unwrap()
    }

    fn decode(body: &[u8], old: &[u8]) -> io::Result<Vec<u8>> {
        let (dictionary, mut tar) = (dictionary(old), Vec::new());
        // More than any test expects: a bomb ends here.
        DeltaDecoder::new(body, &dictionary)?.take(64 << 20).read_to_end(&mut tar)?;
        Ok(tar)
    }

    /// Bytes that do not compress.
    fn noise(seed: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn versions() -> (Vec<u8>, Vec<u8>) {
        let old = noise(1, 50_000);
        let mut new = old.clone();
        new.splice(10_000..10_100, noise(2, 300));
        (old, new)
    }

    #[test]
    fn a_delta_is_decoded_with_its_dictionary_only() {
        let (old, new) = versions();
        let body = delta(&old, &new, 17, Some(new.len() as u64));
        assert!(body.len() < 1000);
        assert_eq!(decode(&body, &old).unwrap(), new);
        let error = decode(&body, &new).unwrap_err().to_string();
        assert!(error.contains("another dictionary"), "{error}");
        let error = decode(&body[1..], &old).unwrap_err().to_string();
        assert!(error.contains("no header"), "{error}");
        assert!(decode(&body[..39], &old).is_err());
    }

    #[test]
    fn a_delta_is_one_frame_to_its_end() {
        let (old, new) = versions();
        let body = delta(&old, &new, 17, None);
        for end in HEADER_BYTES + 1..body.len() {
            assert!(decode(&body[..end], &old).is_err(), "cut at {end} of {}", body.len());
        }
        for more in [&b"x"[..], &zstd::encode_all(&b"more"[..], 3).unwrap()] {
            let error = decode(&[&body, more].concat(), &old).unwrap_err().to_string();
            assert!(error.contains("after its frame"), "{error}");
        }
    }

    #[test]
    fn a_window_beyond_the_limit_is_refused() {
        let (old, new) = versions();
        assert_eq!(decode(&delta(&old, &new, 23, None), &old).unwrap(), new);
        let error = decode(&delta(&old, &new, 24, None), &old).unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic_nor_pass_for_the_tar(at in 0usize..10_000, bits in 1u8.., cut in any::<bool>()) {
            let (old, new) = versions();
            let mut body = delta(&old, &new, 17, Some(new.len() as u64));
            let at = at % body.len();
            body[at] ^= bits;
            if cut {
                body.truncate(at + 1);
            }
            let decoded = decode(&body, &old);
            // The digest of the tar is checked afterwards: what differs is refused there.
            prop_assert!(!cut || decoded.is_err() || at + 1 == body.len());
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let (old, _) = versions();
            let _ = decode(&bytes, &old);
            let _ = decode(&[&dcz::header(&Sha256::of(&old))[..], &bytes].concat(), &old);
        }
    }
}
