//! Several requests at once: as each alone, with shared prefixes, in turns, and canceled.

use std::ops::ControlFlow;

use ropewalk::scheduler::{Event, Mask, Request, SchedulerParams};
use ropewalk::session::StopReason;
use ropewalk::{DType, Token};

use super::super::model;
use super::{alone, one_plan, prompts, request, run, run_one, session, settles, start, Log, Told, PLANS};
use crate::common::some_tokens;

#[test]
fn requests_together_are_answered_as_alone() {
    for (shape, rope) in PLANS {
        let (m, plan) = (model(shape, DType::F32), session(512, 3, rope));
        let scheduler = one_plan(m, plan.clone());
        let expected: Vec<_> = prompts(m).iter().map(|prompt| alone(m, &plan, prompt, 20)).collect();
        // The second time, from what the first left.
        for round in 0..2 {
            let requests = prompts(m).iter().map(|prompt| request(prompt, 20)).collect();
            for ((told, (tokens, text)), prompt) in
                run(&scheduler, requests).iter().zip(&expected).zip(prompts(m))
            {
                let done = told.done();
                assert_eq!((&told.tokens, &told.text), (tokens, text), "{shape}, {rope}, round {round}");
                assert_eq!((done.reason, done.n_made, done.n_prompt), (StopReason::Length, 20, prompt.len()));
                assert!(done.n_cached < prompt.len() && done.n_cached == told.n_cached());
                assert!(told.progress.windows(2).all(|pair| pair[0].0 < pair[1].0), "{:?}", told.progress);
                assert_eq!(told.progress.last(), Some(&(prompt.len(), prompt.len())));
                if round == 1 && rope == "plain" && shape != "qwen35-tiny" {
                    assert_eq!(told.n_cached(), prompt.len() - 1, "{shape}");
                }
            }
        }
        let status = settles(&scheduler, |status| status.n_ended == 16);
        assert_eq!((status.n_requests, status.n_made, status.running), (16, 320, 0));
        assert_eq!((status.n_failed, status.n_cancelled, status.plans[0].cells_used), (0, 0, 0));
    }
}

/// Later requests wait for the text that they share while it is read, and read only what is their own.
#[test]
fn three_requests_share_one_document() {
    for (shape, rope) in PLANS {
        let m = model(shape, DType::F32);
        let text = some_tokens(400, m.hparams().n_vocab);
        let ask = |question: usize| [&text[..100], &text[200 + question * 50..][..9]].concat();
        let plan = session(512, 3, rope);
        let scheduler = one_plan(m, plan.clone());
        let log = Log::new();
        // The first has read 40 tokens when the others come.
        let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
        let mut tickets = vec![scheduler.submit(request(&ask(0), 8), sink).unwrap()];
        gate.wait();
        for id in 1..3 {
            tickets.push(scheduler.submit(request(&ask(id), 8), log.sink(id)).unwrap());
        }
        gate.open();
        let told = log.told(3);
        for (id, told) in told.iter().enumerate() {
            assert_eq!(told.tokens, alone(m, &plan, &ask(id), 8).0, "{shape}, {rope}");
        }
        assert_eq!(told.iter().map(Told::n_cached).collect::<Vec<_>>(), [0, 100, 100], "{shape}, {rope}");
        let status = settles(&scheduler, |status| status.n_ended == 3);
        assert_eq!((status.n_prompt, status.n_cached), (3 * 109, 200));
    }
}

/// One that waits for a long beginning does not hold up those behind it, however many pass it.
#[test]
fn short_requests_pass_one_that_waits_for_a_beginning() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(1800, m.hparams().n_vocab);
    let scheduler = start(m, SchedulerParams::new(vec![session(2048, 1, "plain")]).step_tokens(Some(32)));
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let mut tickets = vec![scheduler.submit(request(&text[..1400], 1), sink).unwrap()];
    gate.wait();
    let asked = [&text[..1300], &text[1500..1509]].concat();
    tickets.push(scheduler.submit(request(&asked, 1), log.sink(1)).unwrap());
    for id in 2..22 {
        tickets.push(scheduler.submit(request(&text[1500 + id * 10..][..10], 1), log.sink(id)).unwrap());
    }
    gate.open();
    let mut ended = 0;
    let n_cached = loop {
        match log.next() {
            (1, Event::Started { n_cached, .. }) => break n_cached,
            (_, Event::Done(_)) => ended += 1,
            _ => {}
        }
    };
    assert_eq!((ended, n_cached), (20, 1300));
}

/// What is in the cache is not waited for, though another one that is being read keeps a state at that place.
#[test]
fn a_beginning_that_is_kept_is_not_waited_for() {
    let m = model("qwen35-tiny", DType::F32);
    let text = some_tokens(300, m.hparams().n_vocab);
    let plan = session(512, 3, "plain");
    let scheduler = one_plan(m, plan.clone());
    run_one(&scheduler, request(&text[..200], 2));
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let reading = scheduler.submit(request(&text[..200], 2).reuse(false), sink).unwrap();
    gate.wait();
    let asked = [&text[..168], &text[200..209]].concat();
    let ticket = scheduler.submit(request(&asked, 2), log.sink(1)).unwrap();
    gate.open();
    let mut told = [Told::default(), Told::default()];
    let mut ended = 0;
    while ended < 2 {
        let (id, event) = log.next();
        if matches!(event, Event::Started { .. }) && id == 1 {
            assert_eq!(told[0].progress, [(40, 200)]);
        }
        ended += usize::from(told[id].take(event));
    }
    assert_eq!((told[1].n_cached(), &told[1].tokens), (168, &alone(m, &plan, &asked, 2).0));
    drop((reading, ticket));
}

#[test]
fn what_is_not_to_be_shared_is_read_again() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(200, m.hparams().n_vocab);
    let other = [&text[..70], &text[100..110]].concat();
    let scheduler = one_plan(m, session(512, 2, "plain"));
    let started = |request: Request| run_one(&scheduler, request).started;
    assert_eq!(started(request(&text[..80], 4)), Some((0, 0, None)));
    assert_eq!(started(request(&text[..80], 4).reuse(false)), Some((0, 0, None)));
    assert_eq!(started(request(&text[..80], 4).salt(b"key".to_vec())), Some((0, 0, None)));
    assert_eq!(started(request(&other, 4)), Some((0, 70, Some(70))));
    assert_eq!(started(request(&text[..75], 4)), Some((0, 74, None)), "the prompt ends, and differs nowhere");
    assert_eq!(started(request(&other, 4).salt(b"key".to_vec())), Some((0, 70, Some(70))));
}

/// Counted in steps: a token of the short request comes with every step, and a step reads no more than its budget.
#[test]
fn a_short_request_does_not_wait_for_a_long_prompt() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(2000, m.hparams().n_vocab);
    let plan = session(2048, 2, "plain");
    let scheduler = start(m, SchedulerParams::new(vec![plan.clone()]).step_tokens(Some(32)));
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let _long = scheduler.submit(request(&text[..1600], 2), sink).unwrap();
    gate.wait();
    let _short = scheduler.submit(request(&text[1700..1716], 12), log.sink(1)).unwrap();
    gate.open();
    let mut told = [Told::default(), Told::default()];
    // Tokens of the long prompt read since the short request's last event.
    let (mut since, mut gaps) = (0, Vec::new());
    let mut ended = 0;
    while ended < 2 {
        let (id, event) = log.next();
        match &event {
            Event::Progress { done, .. } if id == 0 => {
                since += done - told[0].progress.last().map_or(0, |last| last.0)
            }
            Event::Token(_) if id == 1 => gaps.push(std::mem::take(&mut since)),
            Event::Started { .. } => since = 0,
            _ => {}
        }
        ended += usize::from(told[id].take(event));
    }
    // The long prompt has a quarter of the first step, and what the short one leaves; of the others, all.
    let mut expected = vec![32; 12];
    expected[..2].copy_from_slice(&[0, 16]);
    assert_eq!(gaps, expected);
    assert_eq!(told[0].tokens, alone(m, &plan, &text[..1600], 2).0);
    assert_eq!(told[1].tokens, alone(m, &plan, &text[1700..1716], 12).0);
}

/// While shorter ones come without end, a prompt that is neither the oldest nor the shortest has its turn.
#[test]
fn a_prompt_between_a_long_one_and_short_ones_is_read() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(5000, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(2048, 1, "plain")]).step_tokens(Some(32)).n_waiting(100);
    let scheduler = start(m, how);
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let mut tickets = vec![scheduler.submit(request(&text[..1400], 1), sink).unwrap()];
    gate.wait();
    tickets.push(scheduler.submit(request(&text[1400..1480], 1), log.sink(1)).unwrap());
    for id in 2..82 {
        let short = request(&text[1500 + id * 40..][..40], 1).reuse(false);
        tickets.push(scheduler.submit(short, log.sink(id)).unwrap());
    }
    gate.open();
    let mut order = Vec::new();
    while order.len() < tickets.len() {
        if let (id, Event::Done(_)) = log.next() {
            order.push(id);
        }
    }
    // With the quarter that the oldest has, the short ones take 134 steps. After 64 the one between counts as one of 40.
    let at = order.iter().position(|&id| id == 1).unwrap();
    assert!((20..60).contains(&at), "{order:?}");
    assert_eq!(order.last(), Some(&0));
}

#[test]
fn requests_are_canceled_wherever_they_are() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(400, m.hparams().n_vocab);
    let plan = session(400, 1, "plain");
    let how = SchedulerParams::new(vec![plan.clone()]).step_tokens(Some(32)).n_running(1);
    let scheduler = start(m, how);
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let reading = scheduler.submit(request(&text[..200], 5), sink).unwrap();
    gate.wait();
    let waiting = scheduler.submit(request(&text[200..300], 5), log.sink(1)).unwrap();
    let (sink, second) = log.gated(2, |event| matches!(event, Event::Token(_)));
    let decoding = scheduler.submit(request(&text[300..320], 50), sink).unwrap();
    assert_eq!(scheduler.status().waiting, 3, "as of the last step, and those that came since");
    reading.cancel();
    drop(waiting);
    gate.open();
    second.wait();
    decoding.cancel();
    second.open();
    let told = log.told(3);
    assert!(told.iter().all(|told| told.done().reason == StopReason::Cancelled), "{told:?}");
    assert_eq!((told[0].progress.len(), told[0].tokens.len()), (1, 0), "no step after the one that ran");
    assert_eq!((told[1].started, told[1].done().n_made), (None, 0));
    assert_eq!(told[2].tokens.len(), 1);
    let status = settles(&scheduler, |status| status.n_ended == 3);
    assert_eq!((status.n_cancelled, status.plans[0].cells_used), (3, 0));
    // All cells serve the next request.
    let whole = run_one(&scheduler, request(&text[1..391], 9));
    assert_eq!(whole.tokens, alone(m, &plan, &text[1..391], 9).0);
}

#[derive(Debug)]
struct PanicsAtItsEnd;

impl Mask for PanicsAtItsEnd {
    fn apply(&mut self, _: &mut [f32]) -> ropewalk::Result<()> {
        Ok(())
    }

    fn accept(&mut self, _: Token) -> ropewalk::Result<bool> {
        Ok(false)
    }

    fn copy(&self) -> Box<dyn Mask> {
        Box::new(PanicsAtItsEnd)
    }
}

impl Drop for PanicsAtItsEnd {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn a_sink_that_breaks_or_panics_cancels_its_request_alone() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(100, m.hparams().n_vocab);
    let plan = session(256, 3, "plain");
    let scheduler = one_plan(m, plan.clone());
    let log = Log::new();
    let breaks = |event: Event| -> ControlFlow<()> {
        match event {
            Event::Token(_) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    let panics = |event: Event| -> ControlFlow<()> {
        assert!(!matches!(event, Event::Token(_)), "on purpose");
        ControlFlow::Continue(())
    };
    let owned = PanicsAtItsEnd;
    let owns = move |_: Event| -> ControlFlow<()> {
        let _ = &owned;
        ControlFlow::Continue(())
    };
    let masked = request(&text[90..], 20).mask(Some(Box::new(PanicsAtItsEnd)));
    let tickets = [
        scheduler.submit(request(&text[..30], 100), Box::new(breaks)).unwrap(),
        scheduler.submit(request(&text[30..60], 100), Box::new(panics)).unwrap(),
        scheduler.submit(request(&text[60..90], 100), log.sink(0)).unwrap(),
        scheduler.submit(request(&text[90..], 20), Box::new(owns)).unwrap(),
        scheduler.submit(masked, Box::new(|_| ControlFlow::Continue(()))).unwrap(),
    ];
    let told = log.told(1).remove(0);
    assert_eq!(told.tokens, alone(m, &plan, &text[60..90], 100).0);
    let status = settles(&scheduler, |status| status.n_ended == 5);
    assert_eq!((status.n_cancelled, status.n_failed, tickets.len()), (2, 0, 5));
}
