//! `advise` on files that declare a scaling: the model as it ships comes first, and stands in the report as that.

use std::path::PathBuf;

use convert::random::{write, Shape};
use ropewalk::control::{Control, Progress, Stop};
use ropewalk::eval::advise::{candidates, run, Advice, Params, Report, Row};
use ropewalk::eval::{LmSource, SessionSource};
use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams, RopeScaling};
use ropewalk::internals::eval::choose;
use ropewalk::model::{Model, ModelParams};
use ropewalk::rope::{Spec, METHODS};
use ropewalk::session::SessionParams;
use ropewalk::DType;

use crate::fakes::letters;

fn names(scaling: RopeScaling, ctx: usize) -> Vec<String> {
    let hp = Hparams {
        n_layer: 2,
        n_ctx_train: 4096,
        attention: vec![LayerAttention::new(4, 2, 64).rotated(1e4, 64)],
        layers: LayerHparams::alike(2, 64),
        rope_scaling: scaling,
        ..Hparams::default()
    };
    candidates(&hp, ctx).iter().map(Spec::to_string).collect()
}

#[test]
fn the_declared_scaling_is_measured_first_and_none_is_not() {
    let scaling = |kind: &str, factor| RopeScaling {
        kind: Some(kind.into()),
        factor: Some(factor),
        n_ctx_orig: Some(512),
        ..RopeScaling::default()
    };
    let all = names(RopeScaling::default(), 16384);
    assert_eq!(all[..5], ["plain", "lm-infinite", "streaming", "dca", "yarn"]);
    let methods = METHODS.iter().map(|m| m.name).filter(|name| *name != "longrope");
    let sorted = |mut names: Vec<&str>| {
        names.sort_unstable();
        names.join(" ")
    };
    let found = sorted(all.iter().map(String::as_str).collect());
    assert_eq!(found, sorted(methods.collect()), "all that need no factors of the file");
    for kind in ["linear", "yarn"] {
        let others = all.iter().filter(|name| *name != "plain").cloned();
        let want: Vec<String> = ["declared".to_owned()].into_iter().chain(others).collect();
        assert_eq!(names(scaling(kind, 8.0), 16384), want);
    }
    // What comes to the same is not measured twice: up to the trained context most reach methods have nothing to do.
    let found = names(scaling("yarn", 8.0), 4096);
    assert_eq!(found[0], "declared");
    assert!(!found.iter().any(|name| ["plain", "yarn", "self-extend"].contains(&&name[..])), "{found:?}");
    assert!(found.iter().any(|name| name == "pi"));
}

#[test]
fn the_report_names_what_the_file_declares() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("eval-advise.gguf");
    write(&Shape::named("mistral3-tiny").unwrap(), DType::F32, 7, &path).unwrap();
    let model = Model::load(&path, &ModelParams::cpu()).unwrap();
    let source_of = |spec: &Spec| -> Box<dyn LmSource + '_> {
        let params = SessionParams::new(0).rope(Some(spec.clone())).n_threads(1);
        Box::new(SessionSource::new(&model, params))
    };
    // The first text is too short for the context.
    let documents = [letters("short", 900), letters("a", 9000)];
    let specs: Vec<Spec> =
        ["declared", "plain", "pi", "ntk", "abf", "string"].iter().map(|s| s.parse().unwrap()).collect();
    let params = Params::new(model.hparams(), 1024).seconds(0.01);
    let report = run(&source_of, "m.gguf", &specs, &documents, &params, &Control::default()).unwrap();
    let own = report.declared.clone().expect("it was measured");
    assert!(own.starts_with("yarn:factor=4,"), "{own}");
    let rows: Vec<_> = report.results.iter().filter(|row| row.rope == own).collect();
    // Whatever its perplexity is, it also looks for passkeys.
    assert!(rows.len() == 1 && rows[0].ppl_beyond.is_some() && rows[0].passkeys.is_some(), "{report:?}");
    let ended = |report: &Report| report.results.iter().map(|r| r.finished).collect::<Vec<_>>();
    assert_eq!(ended(&report), [true; 6]);
    for row in report.results.iter().filter(|row| row.passkeys.is_some()) {
        let share = row.passkeys.unwrap() as f64 / report.samples as f64;
        assert!(
            row.accuracy == Some(share) && row.ci_low <= row.accuracy && row.accuracy <= row.ci_high,
            "{row:?}"
        );
    }
    // Without time, only those that come first are measured.
    let hurried =
        run(&source_of, "m.gguf", &specs, &documents, &params.clone().least(2), &Control::default());
    let hurried = hurried.unwrap();
    let noted: Vec<&str> = hurried.results.iter().filter_map(|row| row.note.as_deref()).collect();
    assert_eq!(noted, ["not measured: no time left"; 4], "{hurried:?}");
    assert_eq!(ended(&hurried), [true, true, false, false, false, false]);
    assert!(!hurried.interrupted && hurried.skipped == 4, "{hurried:?}");
    // Wherever the time ends, it is the last ones that are left out.
    let many: Vec<Spec> = "plain pi ntk abf yarn sba self-extend dca rerope lm-infinite streaming string"
        .split(' ')
        .map(|s| s.parse().unwrap())
        .collect();
    let timed = |params: &Params, specs: &[Spec]| {
        run(&source_of, "m.gguf", specs, &documents, params, &Control::default()).unwrap()
    };
    let seconds = 0.6 * timed(&params, &many[..2]).seconds;
    let some = timed(&params.clone().seconds(seconds).least(2), &many);
    let noted = |name: &Spec| some.results.iter().any(|r| r.rope == name.to_string() && r.note.is_some());
    let left_out: Vec<bool> = many.iter().map(noted).collect();
    assert!(left_out.is_sorted(), "{left_out:?}");
    // Stopped at the first passkeys: all have a perplexity, and the four that were to look for passkeys are not finished.
    let stop = Stop::default();
    let at_passkeys = |p: &Progress<'_>| {
        if p.what.to_string().starts_with("passkeys") {
            stop.request();
        }
    };
    let control = Control::default().with_stop(&stop).with_progress(&at_passkeys);
    let cut = run(&source_of, "m.gguf", &specs, &documents, &params, &control).unwrap();
    assert!(cut.interrupted && cut.results.iter().all(|row| row.ppl_beyond.is_some()), "{cut:?}");
    assert!(cut.results.iter().all(|row| row.passkeys.is_none() && row.accuracy.is_none()), "{cut:?}");
    assert_eq!((cut.advice, &cut.recommended), (Advice::Repeat, &None));
    assert_eq!(ended(&cut).iter().filter(|finished| **finished).count(), 2, "{cut:?}");
    let text = report.text();
    assert!(text.contains(&format!("declared  {own}: the model as it ships")), "{text}");
    assert!(text.contains(&format!("{own} (declared)")) && !text.contains("plain (declared)"), "{text}");
    assert_eq!(serde_json::to_value(&report).unwrap()["declared"], own);
    std::fs::remove_file(path).unwrap();
}

fn row(rope: &str, ppl: f64, passkeys: Option<usize>) -> Row {
    Row {
        rope: rope.into(),
        task: "advise",
        ctx: 16384,
        finished: true,
        ppl_within: Some(10.0),
        ppl_beyond: Some(ppl),
        passkeys,
        ..Row::default()
    }
}

fn advised(results: Vec<Row>, declared: Option<&str>, interrupted: bool) -> (Advice, Option<String>) {
    let declared = declared.map(String::from);
    let mut report = Report { declared, results, samples: 20, interrupted, ..Report::default() };
    let scaled = report.declared.is_some();
    choose(&mut report, scaled);
    (report.advice, report.recommended)
}

fn chosen(results: Vec<Row>) -> Option<String> {
    advised(results, None, false).1
}

#[test]
fn the_advice_follows_from_what_is_recommended() {
    let found = |rope, n| vec![row(rope, 10.0, Some(n)), row("pi", 20.0, Some(0))];
    let of = |rope, n, declared, stopped| advised(found(rope, n), declared, stopped).0;
    assert_eq!(of("plain", 20, None, false), Advice::Keep);
    assert_eq!(of("plain", 20, Some("yarn:factor=4"), false), Advice::Convert, "the file declares another");
    assert_eq!(of("yarn:factor=4", 20, Some("yarn:factor=4"), false), Advice::Keep);
    assert_eq!(of("yarn", 20, None, false), Advice::Convert);
    assert_eq!(of("yarn", 20, None, true), Advice::Convert, "the best so far");
    assert_eq!(of("yarn", 0, None, false), Advice::Train);
    assert_eq!(of("yarn", 0, None, true), Advice::Repeat);
    let mut hurried = Report { results: found("yarn", 0), samples: 4, skipped: 1, ..Report::default() };
    choose(&mut hurried, false);
    assert_eq!(hurried.advice, Advice::Repeat, "another method may work");
}

#[test]
fn a_method_that_cannot_see_the_middle_is_not_chosen_for_its_perplexity() {
    let rows =
        vec![row("lm-infinite", 15.0, Some(3)), row("yarn", 16.0, Some(19)), row("ntk", 17.0, Some(20))];
    assert_eq!(chosen(rows).as_deref(), Some("yarn"), "19 of 20 is within the interval of 20 of 20");
}

#[test]
fn nothing_is_recommended_where_nothing_is_found() {
    assert_eq!(chosen(vec![row("plain", 300.0, Some(0)), row("pi", 50.0, None)]), None);
}
