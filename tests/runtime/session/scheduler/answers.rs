//! What a request is told: scores, ends, and errors that are its own.

use std::time::Duration;

use ropewalk::sampler::SamplerParams;
use ropewalk::scheduler::{Event, Mask, Refusal, Request, SchedulerParams};
use ropewalk::session::{GenerateParams, StopReason};
use ropewalk::{DType, Token};

use super::super::{model, open};
use super::{alone, one_plan, request, run, run_one, session, settles, start, Log, Told, PLANS};
use crate::common::{all_logits, assert_close, some_tokens, LOGITS};

/// However many tokens a step reads, a prompt is scored as by `nll`, also if it is in the cache.
#[test]
fn prompts_and_made_tokens_are_scored() {
    for (shape, rope) in PLANS {
        let (m, plan) = (model(shape, DType::F32), session(256, 3, rope));
        let text = some_tokens(110, m.hparams().n_vocab);
        let nll: Vec<f32> = open(m, &plan).nll(&text, 1..110).unwrap().iter().map(|loss| -loss).collect();
        let rows = all_logits(m, &plan, &text);
        for step in [1000, 7] {
            let scheduler = start(m, SchedulerParams::new(vec![plan.clone()]).step_tokens(Some(step)));
            let echo = request(&text, 3).echo(Some(3)).n_top(Some(2));
            let only_read = request(&text, 0).echo(Some(0));
            for round in 0..2 {
                let told = run(&scheduler, vec![echo.clone(), request(&text[..50], 9), only_read.clone()]);
                assert_eq!(told[0].n_cached(), 0, "{shape}, {round}: three for each token are not kept");
                for told in [&told[0], &told[2]] {
                    assert_eq!(told.done().reason, StopReason::Length, "{shape}, {round}");
                    assert!(told.echo.iter().map(|score| score.token).eq(text[1..].iter().copied()));
                    let found: Vec<f32> = told.echo.iter().map(|score| score.logprob).collect();
                    assert_close(&found, &nll, LOGITS, &format!("{shape}, {rope}, {step} at once"));
                }
                assert!(told[2].tokens.is_empty() && told[2].echo.iter().all(|score| score.top.is_empty()));
                for (score, row) in told[0].echo.iter().zip(rows.chunks_exact(m.hparams().n_vocab)) {
                    let best = crate::common::top(row) as Token;
                    assert_eq!((score.top.len(), score.top[0].0), (3, best), "{shape}, {rope}");
                    assert!(score.top.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{score:?}");
                    let own = score.top.iter().find(|(token, _)| *token == score.token);
                    assert!(own.is_none_or(|own| own.1.to_bits() == score.logprob.to_bits()), "{score:?}");
                }
                // Greedy tokens are the best ones.
                assert_eq!(told[0].scores.len(), 3);
                for (score, &token) in told[0].scores.iter().zip(&told[0].tokens) {
                    assert_eq!(
                        (score.token, score.top.len(), score.top[0]),
                        (token, 2, (token, score.logprob))
                    );
                }
                assert_eq!(told[0].tokens, alone(m, &plan, &text, 3).0);
                assert!(told[1].scores.is_empty() && told[1].echo.is_empty());
            }
        }
    }
}

fn ends(m: &ropewalk::Model) -> Vec<Token> {
    (0..m.vocab().n_tokens() as Token).filter(|&token| m.vocab().is_eog(token)).collect()
}

#[test]
fn biases_and_a_least_number_of_tokens_are_kept_to() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(30, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(128, 2, "plain"));
    let row = all_logits(m, &session(128, 1, "plain"), &text).split_off(29 * m.hparams().n_vocab);
    let always = run_one(&scheduler, request(&text, 6).bias(vec![(9, 500.0), (9, 500.0)]).n_top(Some(1)));
    assert_eq!(always.tokens, [9; 6]);
    // Scores are of the model.
    assert_eq!(always.scores[0].top[0].0, crate::common::top(&row) as Token);
    assert!(always.scores[0].logprob < always.scores[0].top[0].1);
    let ending: Vec<(Token, f32)> = ends(m).into_iter().map(|token| (token, 1000.0)).collect();
    let wants_to_end = |n_min: usize| request(&text, 20).ignore_eos(false).bias(ending.clone()).n_min(n_min);
    for n_min in [0, 1, 7] {
        let told = run_one(&scheduler, wants_to_end(n_min));
        assert_eq!((told.done().reason, told.tokens.len()), (StopReason::EndOfGeneration, n_min));
        assert!(told.tokens.iter().all(|token| !ends(m).contains(token)), "{:?}", told.tokens);
    }
}

/// Tokens of these in turn, so many in all.
#[derive(Debug, Clone)]
struct Turns {
    of: [Token; 2],
    left: usize,
}

impl Mask for Turns {
    fn apply(&mut self, logits: &mut [f32]) -> ropewalk::Result<()> {
        let own = self.of[self.left % 2];
        let others = (0..).zip(logits).filter(|(token, _)| *token != own);
        others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        Ok(())
    }

    fn accept(&mut self, token: Token) -> ropewalk::Result<bool> {
        assert_eq!(token, self.of[self.left % 2]);
        self.left -= 1;
        Ok(self.left == 0)
    }

    fn copy(&self) -> Box<dyn Mask> {
        Box::new(self.clone())
    }
}

/// A mask decides what comes and when it ends; scores are of the model.
#[test]
fn masks_are_kept_to_and_scores_are_without_them() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(30, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(128, 3, "plain"));
    let row = all_logits(m, &session(128, 1, "plain"), &text).split_off(29 * m.hparams().n_vocab);
    let best = crate::common::top(&row) as Token;
    let other = if best == 9 { 8 } else { 9 };
    let mask: Box<dyn Mask> = Box::new(Turns { of: [7, other], left: 5 });
    let masked = request(&text, 20).mask(Some(mask)).n_top(Some(1));
    // Each request goes through the form by itself.
    for told in run(&scheduler, vec![masked.clone(), masked.clone(), masked.bias(vec![(best, 100.0)])]) {
        assert_eq!(told.tokens, [other, 7, other, 7, other]);
        assert_eq!(told.done().reason, StopReason::EndOfGeneration);
        assert_eq!(told.scores[0].top[0].0, best);
        assert!(told.scores[0].logprob.is_finite() && told.scores[0].logprob < told.scores[0].top[0].1);
    }
}

/// Looking back further than a request can be is looking at all of it; what no sampler takes is refused.
#[test]
fn penalties_look_back_at_the_whole_request() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(60, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(100, 2, "plain"));
    let back =
        |n: i32| request(&text, 40).sampler(SamplerParams::greedy().penalty_freq(10.0).penalty_last_n(n));
    let all = run_one(&scheduler, back(100));
    assert_eq!(run_one(&scheduler, back(1 << 22)).tokens, all.tokens);
    // So no token comes twice, and a look back at one token lets them.
    assert_ne!(run_one(&scheduler, back(1)).tokens, all.tokens);
    // -1 is the context, also where it is longer than the trained one: the token that comes most often is the first one.
    let n = m.hparams().n_ctx_train + 10;
    let text: Vec<Token> = [7; 8].into_iter().chain((0..n).map(|i| 10 + (i % 200) as Token)).collect();
    let often = SamplerParams::greedy().penalty_freq(-10.0).penalty_last_n(-1);
    let plan = session(n + 100, 1, "plain");
    let told = run_one(&one_plan(m, plan.clone()), request(&text, 1).sampler(often.clone()));
    let how = GenerateParams::greedy(1).sampler(often);
    let made = open(m, &plan).generate(&text, &how).unwrap().find_map(|piece| piece.unwrap().token);
    assert_eq!((&told.tokens[..], made), (&[7][..], Some(7)));
    let refusal = scheduler.submit(back(i32::MAX), Log::new().sink(0)).expect_err("a refusal");
    assert!(matches!(&refusal, Refusal::Invalid(_)), "{refusal:?}");
    crate::common::says::<()>(Err(refusal), &["penalty_last_n", "found 2147483647"]);
}

/// A stop text ends a stream where it stands, and not before there are enough tokens.
#[test]
fn stop_texts_end_a_text() {
    let m = model("llama-tiny", DType::F32);
    let scheduler = one_plan(m, session(256, 2, "plain"));
    let all = some_tokens(600, m.hparams().n_vocab);
    // A character that comes once at least, and not at the beginning.
    let found = (0..20).find_map(|i| {
        let told = run_one(&scheduler, request(&all[i * 30..][..30], 60));
        let stop = told
            .text
            .char_indices()
            .find(|&(at, c)| at > 2 && c != '\u{fffd}' && !told.text[..at].contains(c));
        stop.map(|(at, c)| (&all[i * 30..][..30], told.text.clone(), at, c))
    });
    let (prompt, text, at, c) = found.expect("a prompt whose answer has text");
    let told = run_one(&scheduler, request(prompt, 60).stop(vec!["never".into(), c.into()]));
    assert_eq!((told.done().reason, &told.text[..]), (StopReason::StopString, &text[..at]));
    let told = run_one(&scheduler, request(prompt, 60).stop(vec![c.into()]).n_min(61));
    assert_eq!(told.done().reason, StopReason::Length);
    assert!(told.text.starts_with(&text[..at + c.len_utf8()]), "{}", told.text);
}

/// An error of one request's sampling is that request's alone.
#[test]
fn a_request_that_fails_leaves_the_others() {
    let m = model("llama-tiny", DType::F32);
    let (n_vocab, plan) = (m.hparams().n_vocab, session(128, 3, "plain"));
    let text = some_tokens(90, n_vocab);
    let none = (0..n_vocab as Token).map(|token| (token, f32::NEG_INFINITY)).collect();
    let scheduler = one_plan(m, plan.clone());
    let requests =
        vec![request(&text[..30], 20), request(&text[30..60], 20).bias(none), request(&text[60..], 20)];
    let told = run(&scheduler, requests);
    let why = told[1].failed.as_deref().expect("a failure");
    assert!(why.contains("no token has a logit above minus infinity"), "{why}");
    assert_eq!(told[0].tokens, alone(m, &plan, &text[..30], 20).0);
    assert_eq!(told[2].tokens, alone(m, &plan, &text[60..], 20).0);
    let status = settles(&scheduler, |status| status.n_ended == 3);
    assert_eq!((status.n_failed, status.plans[0].cells_used), (1, 0));
}

/// Those that run may end in time; those that wait, and those that take longer, are canceled; none is accepted any more.
#[test]
fn a_scheduler_stops_while_texts_are_made() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(90, m.hparams().n_vocab);
    let plan = session(128, 1, "plain");
    for (grace, reason) in [(super::END, StopReason::Length), (Duration::ZERO, StopReason::Cancelled)] {
        let scheduler = start(m, SchedulerParams::new(vec![plan.clone()]).n_running(1));
        let log = Log::new();
        let (sink, gate) = log.gated(0, |event| matches!(event, Event::Token(_)));
        let running = scheduler.submit(request(&text[..30], 40), sink).unwrap();
        gate.wait();
        let waiting = scheduler.submit(request(&text[30..60], 40), log.sink(1)).unwrap();
        let refused = || scheduler.submit(Request::new(text[..3].to_vec()), Log::new().sink(0)).err();
        std::thread::scope(|scope| {
            let stopped = scope.spawn(|| scheduler.stop(grace));
            // Until it has begun to stop, others are accepted.
            while !matches!(refused(), Some(Refusal::Stopping)) {
                std::thread::yield_now();
            }
            gate.open();
            stopped.join().unwrap();
        });
        let told = log.told(2);
        assert_eq!(
            told.iter().map(|told| told.done().reason).collect::<Vec<_>>(),
            [reason, StopReason::Cancelled]
        );
        assert_eq!(told[1].started, None);
        if reason == StopReason::Length {
            assert_eq!(told[0].tokens, alone(m, &plan, &text[..30], 40).0);
        } else {
            assert_eq!(told[0].tokens.len(), 1);
        }
        assert_eq!((scheduler.status().running, scheduler.status().waiting), (0, 0));
        // Once more, and when it is dropped.
        scheduler.stop(Duration::ZERO);
        drop((running, waiting));
    }
}

/// Dropping the handle ends everything.
#[test]
fn a_dropped_scheduler_ends_its_requests() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(30, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(128, 1, "plain"));
    let log = Log::new();
    let ticket = scheduler.submit(request(&text, 90), log.sink(0)).unwrap();
    drop(scheduler);
    let told: Told = log.told(1).remove(0);
    assert!(matches!(told.done().reason, StopReason::Cancelled | StopReason::Length), "{:?}", told.done());
    assert_eq!(ticket.plan(), 0);
}

/// What the context does not end has an end all the same.
#[test]
fn an_answer_under_a_plan_that_evicts_ends() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(20, m.hparams().n_vocab);
    let plan = session(96, 1, "lm-infinite:window=64,evict=true");
    let scheduler = one_plan(m, plan.clone());
    assert_eq!(scheduler.plans()[0].n_answer, Some(96));
    let told = run_one(&scheduler, Request::new(text.clone()).ignore_eos(true));
    assert_eq!((told.done().reason, told.done().n_made), (StopReason::Length, 96));
    assert_eq!(told.tokens, alone(m, &plan, &text, 96).0);
    // A request that has a number gets as many, also more.
    assert_eq!(run_one(&scheduler, request(&text, 100)).done().n_made, 100);
    assert_eq!(one_plan(m, session(96, 1, "plain")).plans()[0].n_answer, None);
}
