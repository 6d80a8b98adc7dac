//! Who waits for whom: callers take turns, and none fills the queue of another.

use ropewalk::scheduler::{Event, Refusal, SchedulerParams};
use ropewalk::DType;

use super::super::model;
use super::{request, session, start, Log};
use crate::common::some_tokens;

#[test]
fn callers_take_turns_and_have_a_queue_each() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(100, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(64, 1, "plain")]).n_running(1).n_waiting(4);
    let scheduler = start(m, how);
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Token(_)));
    let of = |id: usize, caller: usize| request(&text[id * 10..][..10], 3).caller(caller);
    let mut tickets = vec![scheduler.submit(of(0, 7), sink).unwrap()];
    gate.wait();
    for id in 1..5 {
        tickets.push(scheduler.submit(of(id, 7), log.sink(id)).unwrap());
    }
    assert!(matches!(scheduler.submit(of(5, 7), log.sink(5)), Err(Refusal::Busy)));
    for (id, caller) in [(5, 8), (6, 8), (7, 9)] {
        tickets.push(scheduler.submit(of(id, caller), log.sink(id)).unwrap());
    }
    gate.open();
    let mut order = Vec::new();
    while order.len() < tickets.len() {
        if let (id, Event::Done(_)) = log.next() {
            order.push(id);
        }
    }
    assert_eq!(order, [0, 5, 7, 1, 6, 2, 3, 4]);
}
