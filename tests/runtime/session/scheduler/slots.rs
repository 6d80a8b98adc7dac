//! What sequences hold: told to those whose requests left it, who can erase it.

use std::time::Duration;

use ropewalk::scheduler::{Event, Request};
use ropewalk::{DType, Error, Token};

use super::super::model;
use super::{one_plan, request, run, run_one, session, settles, Log};
use crate::common::some_tokens;

fn salted(prompt: &[Token], salt: &str) -> Request {
    request(prompt, 3).salt(salt.as_bytes().to_vec())
}

#[test]
fn an_owner_sees_and_erases_its_own_texts() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(70, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(256, 4, "plain"));
    assert!(scheduler.slots(b"").is_empty());
    run(&scheduler, vec![salted(&text[..30], "a1"), salted(&text[30..], "b1")]);
    assert_eq!(scheduler.slots(b"").len(), 2);
    let (own, other) = (scheduler.slots(b"a"), scheduler.slots(b"b"));
    assert_eq!((own.len(), other.len()), (1, 1));
    // The last token that was made is not read.
    assert_eq!((own[0].request, own[0].n_held, other[0].n_held), (None, 32, 42));
    for id in [other[0].id, own[0].id + 64, usize::MAX] {
        let e = scheduler.erase(b"a", id).unwrap_err().to_string();
        assert!(e.starts_with("slot: expected"), "{e}");
    }
    assert_eq!(scheduler.erase(b"a", own[0].id).unwrap(), 32);
    assert!(scheduler.erase(b"a", own[0].id).is_err());
    assert_eq!(scheduler.slots(b""), other);
    // It is read again, the other is not.
    assert_eq!(run_one(&scheduler, salted(&text[..30], "a1")).n_cached(), 0);
    assert_eq!(run_one(&scheduler, salted(&text[30..], "b1")).n_cached(), 39);
    scheduler.stop(Duration::ZERO);
    assert!(scheduler.slots(b"").is_empty());
    assert!(matches!(scheduler.erase(b"b", other[0].id), Err(Error::Interrupted)));
}

/// Under a plan without an end, so that the request runs until it is dropped.
#[test]
fn a_running_request_keeps_its_text() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(10, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(128, 2, "lm-infinite:window=64,evict=true"));
    let log = Log::new();
    let ticket = scheduler.submit(request(&text, 1_000_000_000), log.sink(0)).unwrap();
    while !matches!(log.next().1, Event::Token(_)) {}
    let slots = scheduler.slots(b"");
    assert_eq!((slots.len(), slots[0].request.is_some(), slots[0].n_prompt), (1, true, 10));
    assert!(slots[0].n_made >= 1 && slots[0].n_held >= 10, "{slots:?}");
    assert!(scheduler.erase(b"", slots[0].id).is_err());
    drop(ticket);
    settles(&scheduler, |status| status.n_ended == 1);
}
