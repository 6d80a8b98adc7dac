//! Why a prompt is read again, in each case.

use ropewalk::scheduler::{Recomputed, Request, Scheduler, SchedulerParams};
use ropewalk::{DType, Token};

use super::super::model;
use super::{one_plan, request, run_one, session, start};
use crate::common::some_tokens;

/// The tokens that were cached, and why not more.
fn told(scheduler: &Scheduler, request: Request) -> (usize, Option<Recomputed>) {
    let told = run_one(scheduler, request);
    told.done();
    (told.n_cached(), told.because)
}

#[test]
fn the_nearest_text_is_named() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(300, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(1024, 2, "plain"));
    let told =
        |prompt: &[Token], change: fn(Request) -> Request| told(&scheduler, change(request(prompt, 4)));
    let as_it_is: fn(Request) -> Request = |request| request;
    assert_eq!(told(&text[..80], as_it_is), (0, Some(Recomputed::Unknown)));
    assert_eq!(told(&text[..80], as_it_is), (79, None));
    assert_eq!(told(&text[..80], |request| request.reuse(false)), (0, Some(Recomputed::Forbidden)));
    // Nobody learns of another salt's texts.
    assert_eq!(told(&text[..80], |request| request.salt(b"key".to_vec())), (0, Some(Recomputed::Unknown)));
    assert_eq!(told(&text[..80], |request| request.echo(Some(0))), (0, Some(Recomputed::Unscored)));
    assert_eq!(told(&[&text[..70], &text[100..110]].concat(), as_it_is), (70, Some(Recomputed::Differs)));
    // What goes on where a text ends is new.
    let turn = run_one(&scheduler, request(&text[200..280], 1)).tokens;
    let longer = [&text[200..280], &turn[..], &text[150..170]].concat();
    assert_eq!(told(&longer, as_it_is), (80, None));
    assert_eq!(told(&text[..1], as_it_is), (0, None));
    // What is erased was never there.
    for slot in scheduler.slots(b"") {
        scheduler.erase(b"", slot.id).unwrap();
    }
    assert_eq!(told(&text[..80], as_it_is), (0, Some(Recomputed::Unknown)));
}

#[test]
fn a_text_that_left_the_cache_is_missed() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(400, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(256, 1, "plain"));
    assert_eq!(told(&scheduler, request(&text[..200], 4)), (0, Some(Recomputed::Unknown)));
    assert_eq!(told(&scheduler, request(&text[200..], 4)), (0, Some(Recomputed::Unknown)));
    // A part of it may be left.
    let (n, why) = told(&scheduler, request(&text[..200], 4));
    assert!(n < 100, "{n}");
    assert_eq!(why, Some(Recomputed::Evicted));
}

/// The last state is before the end of the first prompt.
#[test]
fn a_state_that_was_not_kept_is_missed() {
    let m = model("qwen35-tiny", DType::F32);
    let text = some_tokens(200, m.hparams().n_vocab);
    let scheduler = one_plan(m, session(512, 2, "plain"));
    told(&scheduler, request(&text[..120], 4));
    let (n, why) = told(&scheduler, request(&[&text[..100], &text[150..190]].concat(), 4));
    assert_eq!((n, why), (88, Some(Recomputed::Stateless)));
}

#[test]
fn keys_of_other_plans_and_models_are_named() {
    let m = model("llama-tiny", DType::F32);
    let text = some_tokens(60, m.hparams().n_vocab);
    let plans = vec![session(256, 1, "plain"), session(256, 1, "yarn:factor=2")];
    let scheduler = Scheduler::with_models(&[m.clone(), m.clone()], SchedulerParams::new(plans)).unwrap();
    let under = |plan: usize| told(&scheduler, request(&text, 2).plan(Some(plan)));
    assert_eq!(under(0), (0, Some(Recomputed::Unknown)));
    assert_eq!(under(1), (0, Some(Recomputed::OtherPlan)));
    assert_eq!(under(2), (0, Some(Recomputed::OtherModel)));
    assert_eq!([0, 1, 2].map(under), [(59, None); 3]);
    drop(scheduler);
    // Of a new scheduler nothing is known.
    let again = start(m, SchedulerParams::new(vec![session(256, 1, "plain")]));
    assert_eq!(told(&again, request(&text, 2)), (0, Some(Recomputed::Unknown)));
}
