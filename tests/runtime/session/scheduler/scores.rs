//! Scores of a prompt that come from the cache: those that were told first, for whatever has read the text since.

use ropewalk::model::Error;
use ropewalk::scheduler::{Event, Refusal, Request, Reread, SchedulerParams, Scored};
use ropewalk::session::StopReason;
use ropewalk::{DType, Token};

use super::super::{model, open};
use super::{alone, one_plan, request, run_one, session, settles, start, Log, Told, PLANS};
use crate::common::{assert_close, some_tokens, LOGITS};

/// Each score, and after it those of the best tokens.
fn bits(scores: &[Scored]) -> Vec<(Token, u32)> {
    let all = |score: &Scored| std::iter::once((score.token, score.logprob)).chain(score.top.clone());
    scores
        .iter()
        .flat_map(|score| all(score).map(|(token, x)| (token, x.to_bits())).collect::<Vec<_>>())
        .collect()
}

/// The scores are of these tokens, and about those of the library.
#[track_caller]
fn assert_scored(told: &Told, prompt: &[Token], shape: &str, rope: &str) {
    let nll = open(model(shape, DType::F32), &session(1024, 1, rope)).nll(prompt, 1..prompt.len()).unwrap();
    let expected: Vec<f32> = nll.iter().map(|loss| -loss).collect();
    assert!(told.echo.iter().map(|score| score.token).eq(prompt[1..].iter().copied()), "{shape}, {rope}");
    let found: Vec<f32> = told.echo.iter().map(|score| score.logprob).collect();
    assert_close(&found, &expected, LOGITS, &format!("{shape}, {rope}"));
}

/// Multiple choice over one text reads the text once, and of each ending no more than itself and the token before it.
#[test]
fn choices_over_one_text_read_their_endings() {
    for (shape, rope) in PLANS {
        let m = model(shape, DType::F32);
        let text = some_tokens(400, m.hparams().n_vocab);
        let choice = |i: usize| [&text[..100], &text[200 + i * 40..][..9]].concat();
        let plan = session(512, 4, rope);
        let scheduler = one_plan(m, plan.clone());
        let log = Log::new();
        // The first has read 40 tokens when the others come.
        let (sink, gate) = log.gated(0, |event| matches!(event, Event::Progress { .. }));
        let scored = |i: usize| request(&choice(i), 1).echo(Some(i % 2)).n_top(Some(1));
        let mut tickets = vec![scheduler.submit(scored(0).echo(Some(1)), sink).unwrap()];
        gate.wait();
        for i in 1..4 {
            tickets.push(scheduler.submit(scored(i), log.sink(i)).unwrap());
        }
        gate.open();
        let told = log.told(4);
        assert_eq!(told.iter().map(Told::n_cached).collect::<Vec<_>>(), [0, 99, 99, 99], "{shape}, {rope}");
        for (i, told_i) in told.iter().enumerate() {
            assert_scored(told_i, &choice(i), shape, rope);
            assert_eq!(told_i.tokens, alone(m, &plan, &choice(i), 1).0, "{shape}, {rope}");
            let mut first = told[0].echo[..99].to_vec();
            if i == 2 {
                first.iter_mut().for_each(|score| score.top.clear());
            }
            assert_eq!(bits(&told_i.echo[..99]), bits(&first), "{shape}, {rope}, {i}");
        }
        let status = settles(&scheduler, |status| status.n_ended == 4);
        assert_eq!((status.n_prompt, status.n_cached), (4 * 109, 3 * 99));
    }
}

/// Later requests are told what the first one was, and what a server without a cache would say.
#[test]
fn scores_are_the_same_from_the_cache() {
    for (shape, rope) in PLANS {
        let m = model(shape, DType::F32);
        let text = some_tokens(200, m.hparams().n_vocab);
        let (one, other) = (text[..110].to_vec(), [&text[..100], &text[150..170]].concat());
        let plan = session(256, 3, rope);
        let scored = |prompt: &[Token]| request(prompt, 3).echo(Some(1));
        let scheduler = one_plan(m, plan.clone());
        let first = run_one(&scheduler, scored(&one));
        assert_eq!(first.n_cached(), 0);
        assert_scored(&first, &one, shape, rope);
        let again = run_one(&scheduler, scored(&one));
        let next = run_one(&scheduler, scored(&other));
        let cold = run_one(&one_plan(m, plan.clone()), scored(&other));
        if rope == "plain" && shape != "qwen35-tiny" {
            assert_eq!(
                (again.started, next.started),
                (Some((0, 109, None)), Some((0, 99, Some(100)))),
                "{shape}"
            );
        }
        let n = again.n_cached();
        assert_eq!(bits(&again.echo[..n]), bits(&first.echo[..n]), "{shape}, {rope}");
        let n = next.n_cached();
        assert_eq!(bits(&next.echo[..n]), bits(&first.echo[..n]), "{shape}, {rope}");
        // The first step reads the same tokens in both.
        assert_eq!(bits(&next.echo[..n.min(40)]), bits(&cold.echo[..n.min(40)]), "{shape}, {rope}");
        assert_scored(&again, &one, shape, rope);
        assert_scored(&next, &other, shape, rope);
        assert_eq!((&again.tokens, &next.tokens), (&first.tokens, &cold.tokens), "{shape}, {rope}");
    }
}

/// What was not scored, and what is not to be shared, is read again; but scores are not lost where texts are joined.
#[test]
fn what_was_not_scored_is_read_again() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(200, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(1024, 2, "plain"));
    let whole = || request(&text[..80], 4);
    let other = request(&[&text[..70], &text[100..110]].concat(), 4);
    let started = |request: Request| run_one(&scheduler, request).started;
    assert_eq!(started(whole()), Some((0, 0, None)));
    let scored = run_one(&scheduler, whole().echo(Some(1)));
    assert_eq!(scored.started, Some((0, 0, None)), "the text is there, but no score");
    assert_eq!(started(other.clone().echo(Some(0))), Some((0, 69, Some(70))));
    assert_eq!(started(other.clone()), Some((0, 79, None)));
    assert_eq!(started(whole().echo(Some(2))), Some((0, 0, None)), "more than one is not kept");
    assert_eq!(started(request(&text[..75], 4).echo(Some(1))), Some((0, 74, None)));
    assert_eq!(started(request(&text[..1], 4).echo(Some(1))), Some((0, 0, None)));
    assert_eq!(started(whole().echo(Some(1)).salt(b"key".to_vec())), Some((0, 0, None)));
    assert_eq!(started(whole().echo(Some(1)).reuse(false)), Some((0, 0, None)));
    // Two equal texts become one.
    assert_eq!(started(whole().reuse(false)), Some((0, 0, None)));
    let again = run_one(&scheduler, whole().echo(Some(1)));
    assert_eq!(again.started, Some((0, 79, None)));
    assert_scored(&again, &text[..80], "llama-tiny", "plain");
    // A longer text that was scored only as far as the shorter one: the rest is scored when it is asked for.
    assert_eq!(started(request(&text[..120], 4)), Some((0, 80, Some(80))));
    assert_eq!(started(request(&text[..120], 4).echo(Some(1))), Some((0, 79, None)));
    assert_eq!(started(request(&text[..120], 4).echo(Some(1))), Some((0, 119, None)));
    // Nothing is made.
    let only_read = run_one(&scheduler, request(&text[..120], 0).echo(Some(0)));
    assert_eq!((only_read.n_cached(), only_read.done().reason), (119, StopReason::Length));
    assert_scored(&only_read, &text[..120], "llama-tiny", "plain");
    assert!(only_read.tokens.is_empty() && only_read.echo.iter().all(|score| score.top.is_empty()));
}

/// Tokens that the cache has and that are read all the same are counted by why.
#[test]
fn what_is_read_again_is_counted() {
    for (shape, stateless) in [("llama-tiny", 0), ("qwen35-tiny", 22)] {
        let m = model(shape, DType::F32);
        let text = some_tokens(200, m.hparams().n_vocab);
        let scheduler = one_plan(m, session(512, 4, "plain"));
        run_one(&scheduler, request(&text[..110], 3));
        // Recurrent layers have a state after 78 of the 100 tokens that the next one shares.
        let other = [&text[..100], &text[150..170]].concat();
        run_one(&scheduler, request(&other, 3));
        let status = settles(&scheduler, |status| status.n_ended == 2);
        assert_eq!(status.reread, Reread { stateless, ..Reread::default() }, "{shape}");
        run_one(&scheduler, request(&text[..110], 3).echo(Some(1)));
        let status = settles(&scheduler, |status| status.n_ended == 3);
        assert_eq!(status.reread, Reread { stateless, unscored: 109, preempted: 0 }, "{shape}");
        assert!(status.steps.counts.iter().sum::<usize>() <= status.n_steps && !status.steps.total.is_zero());
    }
}

/// A request that gives way while its prompt is scored is told each score once.
#[test]
fn a_preempted_prompt_is_scored_once() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(60, m.hparams().n_vocab);
    let plan = session(64, 1, "plain");
    let how = SchedulerParams::new(vec![plan.clone()]).reserve(8).step_tokens(Some(1));
    let scheduler = start(m, how);
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Token(_)));
    let endless = Request::new(text[..10].to_vec()).ignore_eos(true).echo(Some(1));
    let older = scheduler.submit(endless, sink).unwrap();
    gate.wait();
    let prompt = &text[10..50];
    let younger = scheduler.submit(request(prompt, 2).echo(Some(1)), log.sink(1)).unwrap();
    gate.open();
    let told = log.told(2);
    assert!(told[0].done().preempted == 0 && told[1].done().preempted > 0, "{:?}", told[1].done());
    assert_eq!(told[0].done().reason, StopReason::ContextFull);
    for (told, prompt) in told.iter().zip([&text[..10], prompt]) {
        assert_scored(told, prompt, "llama-tiny", "plain");
        assert_eq!(told.tokens, alone(m, &plan, prompt, told.tokens.len()).0);
    }
    let reread = settles(&scheduler, |status| status.n_ended == 2).reread;
    assert!((1..40).contains(&reread.preempted), "{reread:?}");
    // What it was told before and after is what the next one is told.
    let again = run_one(&scheduler, request(prompt, 0).echo(Some(1)));
    assert_eq!((again.n_cached(), bits(&again.echo)), (39, bits(&told[1].echo)));
    drop((older, younger));
}

/// Scores take 12 bytes for each token, once for all texts that begin with it, and go with the texts.
#[test]
fn scores_go_with_their_text() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(1800, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(1024, 1, "plain"));
    let bytes_after = |n: usize| settles(&scheduler, |status| status.n_ended == n).plans[0].score_bytes;
    let long = run_one(&scheduler, request(&text[..600], 2).echo(Some(1)));
    assert_eq!(bytes_after(1), 599 * 12);
    // 64 tokens of a beginning, and 31 that each text has for itself.
    let other = [&text[..65], &text[1700..1731]].concat();
    assert_eq!(run_one(&scheduler, request(&other, 2).echo(Some(1))).n_cached(), 64);
    assert_eq!(bytes_after(2), (599 + 31) * 12);
    // A text without scores takes the room of most of the first.
    run_one(&scheduler, request(&text[1010..1700], 2));
    let after = bytes_after(3);
    assert!(after > 0 && after < 400 * 12, "{after}");
    let part = run_one(&scheduler, request(&text[..600], 2).echo(Some(1)));
    let n = part.n_cached();
    assert!(n > 0 && n < 400, "{n}");
    assert_eq!(bits(&part.echo[..n]), bits(&long.echo[..n]));
    assert_scored(&part, &text[..600], "llama-tiny", "plain");
    // Canceled ones leave what they have read.
    let log = Log::new();
    let (sink, gate) = log.gated(0, |event| matches!(event, Event::Scores(_)));
    let ticket = scheduler.submit(request(&text[1000..1300], 2).echo(Some(1)), sink).unwrap();
    gate.wait();
    ticket.cancel();
    gate.open();
    let cancelled = log.told(1).remove(0);
    assert_eq!((cancelled.done().reason, cancelled.echo.len()), (StopReason::Cancelled, 40));
    let told = run_one(&scheduler, request(&text[1000..1300], 2).echo(Some(1)));
    assert_eq!(told.n_cached(), 39);
    assert_eq!(bits(&told.echo[..39]), bits(&cancelled.echo[..39]));
}

/// Memory for them is taken at the start, unless none can be asked for.
#[test]
fn scores_of_prompts_can_be_refused() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(20, m.hparams().n_vocab);
    let how = SchedulerParams::new(vec![session(64, 1, "plain")]);
    for scores in [true, false] {
        let scheduler = start(m, how.clone().scores(scores));
        let summary = &scheduler.plans()[0].summary;
        assert_eq!(summary.contains("for the logits of 64 tokens"), scores, "{summary}");
        let echo = scheduler.submit(request(&text, 0).echo(Some(0)), Log::new().sink(0));
        let refused = matches!(echo, Err(Refusal::Invalid(Error::Unsupported(_))));
        assert_eq!((refused, echo.is_ok()), (!scores, scores));
        assert_eq!(run_one(&scheduler, request(&text, 3).n_top(Some(1))).scores.len(), 3);
    }
}
