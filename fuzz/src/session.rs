//! Saved sessions: what is refused leaves a session that runs, and so does what is restored.

use ropewalk::session::{Batch, Session, SessionParams};
use sha2::{Digest, Sha256};

use crate::{accepted, base, file, with_digest};

fn open() -> Session {
    let params = SessionParams::new(32).n_threads(1).n_ubatch(8);
    Session::new(base().0, &params).unwrap()
}

fn batch(n: usize) -> Batch {
    let mut batch = Batch::new();
    for i in 0..n {
        batch.push(65 + i as i32, 0, i + 1 == n);
    }
    batch
}

/// Restores the session and goes on with it.
pub fn run(bytes: &[u8]) -> bool {
    let path = file("in.session", &with_digest(bytes, |bytes| Sha256::digest(bytes).into()));
    let mut session = open();
    let sound = accepted(session.restore(path));
    accepted(session.decode(&batch(2)));
    sound
}

/// A session of five tokens, and one of none.
pub fn seeds() -> Vec<Vec<u8>> {
    let path = crate::scratch("seed.session");
    let mut session = open();
    let save = |session: &Session| {
        session.save(&path, b"attached").unwrap();
        std::fs::read(&path).unwrap()
    };
    let empty = save(&session);
    session.decode(&batch(5)).unwrap();
    vec![empty, save(&session)]
}
