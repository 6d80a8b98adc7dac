//! Who waits for whom: callers take turns, and none fills the queue of another.

use ropewalk::scheduler::{Event, Refusal, SchedulerParams};
use ropewalk::DType;

use super::super::model;
use super::{request, session, start, Log, Ticket};
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

/// When requests start and end, in order, until so many have ended.
fn ends(log: &Log, n: usize) -> Vec<(usize, &'static str)> {
    let (mut order, mut ended) = (Vec::new(), 0);
    while ended < n {
        match log.next() {
            (id, Event::Started { .. }) => order.push((id, "starts")),
            (id, Event::Done(_)) => {
                order.push((id, "ends"));
                ended += 1;
            }
            _ => {}
        }
    }
    order
}

/// Next to a long request there is a place for one that has little to read.
#[test]
fn long_prompts_leave_a_place_to_short_ones() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(1300, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(1024, 3, "plain")]).step_tokens(Some(40)).n_running(1);
    let scheduler = start(m, how);
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let mut tickets = vec![scheduler.submit(request(&text[..600], 2), sink).unwrap()];
    gate.wait();
    tickets.push(scheduler.submit(request(&text[600..1200], 2), log.sink(1)).unwrap());
    tickets.push(scheduler.submit(request(&text[1200..1220], 4), log.sink(2)).unwrap());
    gate.open();
    let expected = [(0, "starts"), (2, "starts"), (2, "ends"), (0, "ends"), (1, "starts"), (1, "ends")];
    assert_eq!(ends(&log, tickets.len()), expected);
}

/// Two long prompts would leave too few cells, so the second one waits, and the short ones pass it however many they are.
#[test]
fn long_prompts_leave_cells_to_short_ones() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(2600, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(2048, 1, "plain")]).step_tokens(Some(32)).reserve(100);
    let scheduler = start(m, how.n_running(3));
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let mut tickets = vec![scheduler.submit(request(&text[..1000], 2), sink).unwrap()];
    gate.wait();
    let short = (0..20).map(|i| request(&text[2000 + i * 12..][..12], 1));
    let others = [request(&text[1000..2000], 2)].into_iter().chain(short);
    let others = others.chain([request(&text[2240..2540], 10)]);
    let submit = |(id, request)| scheduler.submit(request, log.sink(id)).unwrap();
    tickets.extend((1..).zip(others).map(submit).collect::<Vec<Ticket>>());
    gate.open();
    let order = ends(&log, tickets.len());
    assert_eq!(order.len(), 46, "{order:?}");
    assert_eq!(order[order.len() - 3..], [(0, "ends"), (1, "starts"), (1, "ends")], "{order:?}");
}

/// A short request passes long ones of its caller. These do not all go before the next request of another caller.
#[test]
fn who_was_passed_still_takes_turns() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(2100, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(1024, 3, "plain")]).step_tokens(Some(40)).n_running(1);
    let scheduler = start(m, how);
    let log = Log::new();
    let long = |i: usize, caller: usize| request(&text[i * 520..][..520], 2).caller(caller);
    let (sink, first) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let mut tickets = vec![scheduler.submit(long(0, 7), sink).unwrap()];
    first.wait();
    for id in 1..3 {
        tickets.push(scheduler.submit(long(id, 7), log.sink(id)).unwrap());
    }
    let (sink, short) = log.gated(3, |event| matches!(event, Event::Started { .. }));
    tickets.push(scheduler.submit(request(&text[2080..], 4).caller(7), sink).unwrap());
    first.open();
    short.wait();
    tickets.push(scheduler.submit(long(3, 8), log.sink(4)).unwrap());
    short.open();
    let order = ends(&log, tickets.len());
    let starts: Vec<usize> = order.iter().filter(|(_, what)| *what == "starts").map(|(id, _)| *id).collect();
    assert_eq!(starts, [0, 3, 1, 4, 2]);
}

/// Of two short ones that run, one ends after the other, so there is never more than the place that is kept for short ones.
#[test]
fn short_ones_do_not_keep_a_long_prompt_from_its_place() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(2200, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(2048, 3, "plain")]).step_tokens(Some(32)).n_running(2);
    let scheduler = start(m, how);
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let mut tickets = vec![scheduler.submit(request(&text[..1300], 40), sink).unwrap()];
    gate.wait();
    let short = |i: usize, n: usize| request(&text[1300 + i * 12..][..12], n);
    let mut others = vec![short(0, 2), short(1, 4), request(&text[1600..], 2)];
    others.extend((2..25).map(|i| short(i, 4)));
    let submit = |(id, request)| scheduler.submit(request, log.sink(id)).unwrap();
    tickets.extend((1..).zip(others).map(submit).collect::<Vec<Ticket>>());
    gate.open();
    let order = ends(&log, tickets.len());
    let long = order.iter().position(|event| *event == (3, "starts")).unwrap();
    let passed = order[..long].iter().filter(|(id, what)| *id > 3 && *what == "starts").count();
    assert!(passed <= 16, "{order:?}");
    assert!(order[long..].contains(&(0, "ends")), "{order:?}");
}

/// All cells but those of a long request are left to short ones then.
#[test]
fn a_reserve_can_be_of_any_size() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(1200, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(1024, 2, "plain")]).step_tokens(Some(40)).reserve(usize::MAX);
    let scheduler = start(m, how);
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let first = scheduler.submit(request(&text[..600], 2), sink).unwrap();
    gate.wait();
    let second = scheduler.submit(request(&text[600..], 2), log.sink(1)).unwrap();
    gate.open();
    assert_eq!(ends(&log, 2), [(0, "starts"), (0, "ends"), (1, "starts"), (1, "ends")]);
    drop((first, second));
}
