//! A request to stop while a corpus is made.

use ropewalk_core::control::Stop;

use super::*;
use crate::testing::Bytes;
use crate::text::TextOptions;

/// A batch with several chunks: those after the request are not tokenized.
#[test]
fn a_stop_waits_for_the_chunks_at_hand_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [text, cache] = ["text.txt", "cache.tokens"].map(|name| dir.path().join(name));
    std::fs::write(&text, "a rope is walked ".repeat(50_000)).unwrap();
    let sources = Sources::find(&[text], &TextOptions::default()).unwrap();
    let stop = Stop::default();
    let bytes = Bytes { stop: Some(stop.clone()), ..Bytes::default() };
    let control = Control::default().with_stop(&stop);
    let open = || Corpus::open(&cache, &bytes, &sources, &Separator::Both, &control);
    // With one thread, one chunk is at hand.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert!(matches!(pool.install(open), Err(Error::Interrupted)));
    assert!(stop.requested() && !cache.exists());
}
