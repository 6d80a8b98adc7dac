//! Memory that cannot be had is an error of the readers of saved sessions: each large request is refused once.

#[path = "../common/mod.rs"]
mod common;

use std::cell::RefCell;

use files::scarce::{starve, Scarce};
use ropewalk::control::Control;
use ropewalk::session::SavedSession;
use ropewalk::DType;

#[global_allocator]
static ALLOCATOR: Scarce = Scarce;

/// Requests above so many bytes are refused: more than buffers take.
const LARGE: usize = 1 << 16;

/// One test, for the allocator is of the whole process.
#[test]
fn requests_of_readers_may_fail() {
    let model = common::load(&common::random_model("llama-tiny", DType::F32, "scarce"));
    let path = common::scratch("scarce.session");
    let tokens = common::some_tokens(LARGE / 4 + 64, model.hparams().n_vocab);
    let params = common::params(tokens.len());
    let attachment = vec![7u8; LARGE + 1];
    let mut session = common::open(&model, &params);
    session.prefill(&tokens, &Control::default()).unwrap();
    session.save(&path, &attachment).unwrap();

    let open = starve(LARGE, || SavedSession::open(&path));
    assert_eq!(open.len(), 1, "{open:?}");
    // The attachment, the tokens, the cells, their positions to be checked, and rows of the cache.
    let session = RefCell::new(session);
    let restored =
        starve(LARGE, || session.borrow_mut().restore(&path).map(|found| assert!(found == attachment)));
    assert_eq!(restored.len(), 5, "{restored:?}");
    for e in open.iter().chain(&restored) {
        assert!(e.contains("cannot allocate "), "{e}");
    }
    assert_eq!(session.borrow().tokens(0), tokens);
    std::fs::remove_file(path).unwrap();
}
