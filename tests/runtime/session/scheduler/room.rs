//! Room: kept texts make way by their worth, the youngest request gives way, and what never fits is refused.

use std::cell::Cell;

use proptest::prelude::*;
use ropewalk::model::Error;
use ropewalk::scheduler::{Event, Refusal, Request, Scheduler, SchedulerParams};
use ropewalk::session::{SessionParams, StopReason};
use ropewalk::{DType, Token};

use super::super::{model, open};
use super::{alone, one_plan, request, run, run_one, session, settles, start, Log, Ticket, Told, PLANS};
use crate::common::{assert_close, says, some_tokens, LOGITS};

/// Two requests outgrow the cache: the younger one waits until the older has ended, and continues as if nothing had been.
#[test]
fn the_youngest_gives_way_and_continues() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(60, m.hparams().n_vocab);
    let plan = session(64, 1, "plain");
    let scheduler = start(m, SchedulerParams::new(vec![plan.clone()]).reserve(8));
    let log = Log::new();
    let endless = |prompt: &[Token]| Request::new(prompt.to_vec()).ignore_eos(true).n_top(Some(1));
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Token(_)));
    let older = scheduler.submit(endless(&text[..10]), sink).unwrap();
    gate.wait();
    let younger = scheduler.submit(endless(&text[10..22]), log.sink(1)).unwrap();
    gate.open();
    let told = log.told(2);
    for (told, prompt) in told.iter().zip([&text[..10], &text[10..22]]) {
        assert_eq!(
            (&told.tokens, &told.text),
            (&alone(m, &plan, prompt, 100).0, &alone(m, &plan, prompt, 100).1)
        );
        assert_eq!(
            (told.done().reason, told.done().n_made),
            (StopReason::ContextFull, 64 - prompt.len() + 1)
        );
        let scored: Vec<Token> = told.scores.iter().map(|score| score.top[0].0).collect();
        assert_eq!(scored, told.tokens, "one score for each, and greedy");
    }
    assert!(told[0].done().preempted == 0 && told[1].done().preempted > 0, "{:?}", told[1].done());
    let status = settles(&scheduler, |status| status.n_ended == 2);
    assert_eq!((status.n_preempted, status.n_failed), (told[1].done().preempted, 0));
    drop((older, younger));
}

/// A request without a number of tokens gives back the room of an older one while that is still being read.
#[test]
fn a_younger_one_does_not_hold_up_a_prompt() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(210, m.hparams().n_vocab);
    let plan = session(228, 1, "plain");
    let scheduler = start(m, SchedulerParams::new(vec![plan.clone()]).step_tokens(Some(8)).reserve(8));
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
    let older = scheduler.submit(request(&text[..200], 10), sink).unwrap();
    gate.wait();
    // Both have exactly the room that they ask for.
    let endless = Request::new(text[200..].to_vec()).ignore_eos(true);
    let younger = scheduler.submit(endless, log.sink(1)).unwrap();
    gate.open();
    let mut told = [Told::default(), Told::default()];
    // Tokens of the younger one since a part of the prompt was read.
    let (mut since, mut ended, mut before) = (0, 0, 0);
    while ended < 2 {
        let (id, event) = log.next();
        match &event {
            Event::Progress { .. } if id == 0 => since = 0,
            Event::Token(_) if id == 1 && told[0].tokens.is_empty() => {
                since += 1;
                before += 1;
                assert!(since <= 1, "{:?}", told[0].progress);
            }
            _ => {}
        }
        ended += usize::from(told[id].take(event));
    }
    assert!(before > 8, "it has outgrown its room: {before}");
    for (told, (prompt, n)) in told.iter().zip([(&text[..200], 10), (&text[200..], 300)]) {
        assert_eq!(told.tokens, alone(m, &plan, prompt, n).0);
    }
    assert_eq!((told[0].done().preempted, told[1].done().preempted), (0, 1));
    drop((older, younger));
}

/// Such as the short contexts of LongPPL.
#[test]
fn what_is_forgotten_pushes_out_no_text() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(600, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(256, 1, "plain"));
    run_one(&scheduler, request(&text[..100], 1));
    for prompt in text[100..].chunks(100) {
        let told = run_one(&scheduler, request(prompt, 0).echo(Some(0)).reuse(false).forget(true));
        assert_eq!((told.n_cached(), told.echo.len()), (0, 99));
    }
    assert_eq!(scheduler.slots(b"").len(), 1);
    assert_eq!(run_one(&scheduler, request(&text[..100], 1)).n_cached(), 99);
}

/// A request whose tokens have room to the last is never preempted: the next one waits.
#[test]
fn what_is_admitted_with_a_number_has_its_room() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(200, m.hparams().n_vocab);
    let plan = session(64, 2, "plain");
    let scheduler = one_plan(m, plan.clone());
    let requests = (0..6).map(|i| request(&text[i * 20..i * 20 + 20], 44)).collect();
    for (i, told) in run(&scheduler, requests).iter().enumerate() {
        assert_eq!(told.tokens, alone(m, &plan, &text[i * 20..i * 20 + 20], 44).0);
        assert_eq!((told.done().preempted, told.done().reason), (0, StopReason::Length));
    }
}

/// One that needs much room holds up those behind it after a while. Once it is canceled, they wait no longer.
#[test]
fn those_behind_a_canceled_one_are_admitted() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(240, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(400, 1, "plain")]).step_tokens(Some(40)).n_running(3);
    let scheduler = start(m, how);
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Token(_)));
    let mut tickets = vec![scheduler.submit(request(&text[..10], 150), sink).unwrap()];
    gate.wait();
    let made = Cell::new(0);
    let (sink, second) = log.gated(1, move |event| {
        made.set(made.get() + usize::from(matches!(event, Event::Token(_))));
        made.get() == 50
    });
    tickets.push(scheduler.submit(request(&text[10..20], 100), sink).unwrap());
    let large = scheduler.submit(request(&text[20..40], 300), log.sink(2)).unwrap();
    for id in 3..20 {
        tickets.push(scheduler.submit(request(&text[40 + id * 10..][..10], 1), log.sink(id)).unwrap());
    }
    gate.open();
    second.wait();
    // Sixteen have passed it; the next one waits, while there is room for it.
    drop(large);
    second.open();
    let mut order = Vec::new();
    while order.len() < 20 {
        if let (id, Event::Done(_)) = log.next() {
            order.push(id);
        }
    }
    assert_eq!(order, (3..19).chain([2, 19, 1, 0]).collect::<Vec<_>>());
}

/// Short requests make room for each other before a long text does, twice the cache of them and more.
#[test]
fn short_texts_leave_before_a_long_one() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(1700, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(1024, 1, "plain"));
    run_one(&scheduler, request(&text[..600], 2));
    for i in 0..40 {
        let short = run_one(&scheduler, request(&text[600 + i * 25..][..20], 4));
        assert_eq!(short.tokens.len(), 4);
    }
    let status = settles(&scheduler, |status| status.n_ended == 41);
    assert!(status.n_dropped >= 20, "{status:?}");
    assert_eq!(run_one(&scheduler, request(&text[..600], 2)).n_cached(), 599);
    // Only as much of it goes as another long text needs.
    run_one(&scheduler, request(&text[1010..1700], 2));
    assert_eq!(run_one(&scheduler, request(&text[..300], 2)).n_cached(), 299);
}

/// A text is cut a few times, not with each token, and its beginning stays.
#[test]
fn a_kept_text_is_cut_as_another_one_grows() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(220, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(256, 1, "plain"));
    // 201 cells, then 119: 64 too many.
    run_one(&scheduler, request(&text[..200], 2));
    run_one(&scheduler, request(&text[200..], 100));
    let status = settles(&scheduler, |status| status.n_ended == 2);
    assert_eq!((status.n_dropped, status.plans[0].cells_kept, status.plans[0].n_kept), (2, 256, 2));
    assert_eq!(run_one(&scheduler, request(&text[..200], 2)).n_cached(), 201 - 64);
}

fn refused(scheduler: &Scheduler, request: Request) -> Refusal {
    scheduler.submit(request, Log::new().sink(0)).expect_err("a refusal")
}

#[test]
fn what_cannot_be_served_is_refused_with_numbers() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(200, m.hparams().n_vocab);
    let plans = vec![session(64, 1, "plain"), session(128, 1, "yarn:factor=2"), session(96, 1, "plain")];
    let scheduler = start(m, SchedulerParams::new(plans.clone()));
    let n_max: Vec<usize> = scheduler.plans().iter().map(|plan| plan.n_max).collect();
    assert_eq!(n_max, [64, 128, 96]);
    for (request, numbers) in [
        (request(&text[..120], 9), (120, Some(9), 128, 1)),
        (Request::new(text[..128].to_vec()), (128, None, 128, 1)),
        (request(&text[..60], 5).plan(Some(0)), (60, Some(5), 64, 0)),
        (request(&text[..1], usize::MAX), (1, Some(usize::MAX), 128, 1)),
    ] {
        match refused(&scheduler, request) {
            Refusal::TooLong { n_prompt, n_predict, n_max, plan } => {
                assert_eq!((n_prompt, n_predict, n_max, plan), numbers);
            }
            other => panic!("{other:?}"),
        }
    }
    let fine = || request(&text[..10], 2);
    for (request, words) in [
        (Request::new(Vec::new()), ["prompt", "at least one token"]),
        (Request::new(vec![m.hparams().n_vocab as Token]), ["token", "found 320"]),
        (fine().bias(vec![(-1, 1.0)]), ["token", "found -1"]),
        (fine().bias(vec![(1, f32::NAN)]), ["bias", "found NaN"]),
        (fine().stop(vec![String::new()]), ["stop", "an empty one"]),
        (fine().n_top(Some(101)), ["top", "found 101"]),
        (fine().echo(Some(usize::MAX)), ["top", "0 to 100"]),
        (fine().plan(Some(3)), ["plan", "0 to 2, found 3"]),
    ] {
        let refusal = refused(&scheduler, request);
        assert!(matches!(&refusal, Refusal::Invalid(Error::Argument { .. })), "{refusal:?}");
        says::<()>(Err(refusal), &words);
    }
    assert_eq!(scheduler.status().n_requests, 0);
    for (how, words) in [
        (SchedulerParams::new(Vec::new()), ["plans", "at least 1"]),
        (SchedulerParams::new(plans.clone()).n_running(0), ["running", "1 to 64"]),
        (SchedulerParams::new(plans.clone()).n_running(65), ["running", "found 65"]),
        (SchedulerParams::new(plans.clone()).step_tokens(Some(0)), ["step tokens", "at least 1"]),
        (
            SchedulerParams::new(vec![session(1 << 30, 1, "plain"), session(1 << 30, 1, "plain")]),
            ["2 plans", "ctx"],
        ),
    ] {
        says(Scheduler::new(m, how), &words);
    }
}

#[test]
fn too_many_are_refused_until_some_have_ended() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(100, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(64, 1, "plain")]).n_running(1).n_waiting(2);
    let scheduler = start(m, how);
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Token(_)));
    let mut tickets = vec![scheduler.submit(request(&text[..10], 3), sink).unwrap()];
    gate.wait();
    for id in 1..3 {
        tickets.push(scheduler.submit(request(&text[id * 10..][..10], 3), log.sink(id)).unwrap());
    }
    assert!(matches!(refused(&scheduler, request(&text[..10], 3)), Refusal::Busy));
    gate.open();
    assert!(log.told(3).iter().all(|told| told.done().n_made == 3));
    settles(&scheduler, |status| status.n_ended == 3);
    assert_eq!(run_one(&scheduler, request(&text[..10], 3)).tokens.len(), 3);
}

/// The first plan that fits serves a request, as it serves it alone; a request can also name its plan.
#[test]
fn a_request_gets_the_first_plan_that_fits() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(800, m.hparams().n_vocab);
    let plans = [session(512, 1, "plain"), session(1024, 2, "yarn:factor=2")];
    let how = SchedulerParams::new(plans.to_vec()).step_tokens(Some(64)).reserve(100);
    let scheduler = start(m, how);
    let info = scheduler.plans();
    assert_eq!(info.iter().map(|plan| plan.beyond_trained).collect::<Vec<_>>(), [false, true]);
    assert!(info[1].spec.contains("yarn") && info[1].spec.contains("factor=2") && !info[1].evicts);
    assert!(info[0].summary.contains("context 512"), "{}", info[0].summary);
    for (n, made, asked, plan) in [
        (100, 20, None, 0),
        (600, 20, None, 1),
        (492, 20, None, 0),
        (493, 20, None, 1),
        (100, 20, Some(1), 1),
    ] {
        let told = run_one(&scheduler, request(&text[..n], made).plan(asked).reuse(false));
        assert_eq!(told.started.map(|started| started.0), Some(plan), "{n}");
        assert_eq!(told.tokens, alone(m, &plans[plan], &text[..n], made).0, "{n}");
    }
    // Without a number, one with room for 100 tokens goes before one with room for a single one. The texts end at once.
    let end =
        (0..m.vocab().n_tokens() as Token).find(|&token| m.vocab().is_eog(token)).expect("an end token");
    for (n, plan) in [(412, 0), (413, 1), (950, 1)] {
        let told = run_one(
            &scheduler,
            Request::new([&text[..], &text[..]].concat()[..n].to_vec()).bias(vec![(end, 1000.0)]),
        );
        assert_eq!(told.started.map(|started| started.0), Some(plan), "{n}");
        assert_eq!((told.done().reason, told.done().n_made), (StopReason::EndOfGeneration, 0));
    }
}

/// Anything that requests may be, in terms that fit any plan.
#[derive(Debug, Clone)]
struct Asked {
    from: usize,
    shared: usize,
    own: usize,
    n: usize,
    /// As many tokens as fit, where that has an end.
    endless: bool,
    salted: bool,
    echo: bool,
    cancelled: bool,
}

fn asked() -> impl Strategy<Value = Vec<Asked>> {
    let sometimes = || prop::bool::weighted(0.2);
    let numbers = (0usize..40, 0usize..60, 1usize..40, 0usize..30);
    let one = (numbers, sometimes(), sometimes(), sometimes(), sometimes());
    let one = one.prop_map(|((from, shared, own, n), endless, salted, echo, cancelled)| Asked {
        from,
        shared,
        own,
        n,
        endless,
        salted,
        echo,
        cancelled,
    });
    prop::collection::vec(one, 1..9)
}

/// Runs them all at once in a cache for two, under each budget; whoever is not canceled is answered as alone, and no cell is
/// lost.
fn check(shape: &str, rope: &str, asked: &[Asked], step: usize) {
    let m = model(shape, DType::F32);
    let text = some_tokens(450, m.hparams().n_vocab);
    let plan: SessionParams = session(160, 2, rope).n_ubatch(32);
    let how = SchedulerParams::new(vec![plan.clone()]).step_tokens(Some(step)).reserve(16).n_running(5);
    let scheduler = start(m, how);
    let log = Log::new();
    let prompt = |a: &Asked| [&text[..a.shared], &text[100 + a.from * 7..][..a.own]].concat();
    let endless = |a: &Asked| a.endless && !scheduler.plans()[0].evicts;
    let mut tickets: Vec<Ticket> = Vec::new();
    for (id, a) in asked.iter().enumerate() {
        let salt = if a.salted { b"salt".to_vec() } else { Vec::new() };
        let request = request(&prompt(a), a.n)
            .n_predict((!endless(a)).then_some(a.n))
            .salt(salt)
            .echo(a.echo.then_some(a.n % 3));
        tickets.push(scheduler.submit(request, log.sink(id)).unwrap());
        if a.cancelled {
            tickets[id].cancel();
        }
    }
    for (a, told) in asked.iter().zip(log.told(asked.len())) {
        let (done, n_prompt) = (told.done(), prompt(a).len());
        if done.reason == StopReason::Cancelled {
            assert!(a.cancelled, "{a:?}");
            continue;
        }
        let (reason, n) = match endless(a) {
            true => (StopReason::ContextFull, 160 - n_prompt + 1),
            false => (StopReason::Length, a.n),
        };
        assert_eq!((done.reason, done.n_prompt, done.n_made), (reason, n_prompt, n), "{a:?}");
        let expected = alone(m, &plan, &prompt(a), n).0;
        assert_eq!(told.tokens.len(), expected.len(), "{shape}, {rope}: {a:?}");
        if let Some(i) = told.tokens.iter().zip(&expected).position(|(found, own)| found != own) {
            // Two tokens about as likely: another order of the same sums moves the logit of each by LOGITS at most.
            let before = [&prompt(a)[..], &expected[..i]].concat();
            let mut s = open(m, &plan.clone().n_seq_max(1));
            let row = s.append(&before).unwrap();
            let gap = row[expected[i] as usize] - row[told.tokens[i] as usize];
            assert!(f64::from(gap) <= 2.0 * LOGITS, "{shape}, {rope}: {a:?}: token {i}: {gap}");
        }
        assert_eq!(told.echo.len(), if a.echo { n_prompt - 1 } else { 0 }, "{a:?}");
        assert!(told
            .echo
            .iter()
            .map(|score| score.token)
            .eq(prompt(a)[1..].iter().copied().take(told.echo.len())));
        if !told.echo.is_empty() {
            let nll = open(m, &plan.clone().n_seq_max(1)).nll(&prompt(a), 1..n_prompt).unwrap();
            let found: Vec<f32> = told.echo.iter().map(|score| -score.logprob).collect();
            assert_close(&found, &nll, LOGITS, &format!("{shape}, {rope}: {a:?}"));
        }
    }
    let status = settles(&scheduler, |status| status.n_ended == asked.len());
    let plan = &status.plans[0];
    assert_eq!(
        (plan.cells_used, status.n_failed, status.waiting, status.running),
        (0, 0, 0, 0),
        "{status:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_load_is_served_as_alone(asked in asked(), step in prop::sample::select(vec![1usize, 7, 40, 500])) {
        for (shape, rope) in PLANS {
            check(shape, rope, &asked, step);
        }
    }
}
