//! The search of factors: what it finds is what it says, it goes on where it stopped, and mistakes are named.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use convert::random::{write, Shape};
use gguf::Value;
use ropewalk::control::{Control, Progress, Stop};
use ropewalk::eval::protocol::protocol;
use ropewalk::eval::search::{run, Goal, Params, Report, Sizes};
use ropewalk::eval::{perplexity, Document, LmSource, SessionSource};
use ropewalk::model::{Model, ModelParams, Result};
use ropewalk::rope::Spec;
use ropewalk::session::SessionParams;
use ropewalk::DType;

use crate::fakes::letters;

/// Its trained window is 512 tokens, each of a byte.
fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("eval-search.gguf");
        write(&Shape::named("llama-tiny").unwrap(), DType::F32, 3, &path).unwrap();
        Model::load(&path, &ModelParams::cpu()).unwrap()
    })
}

fn session(spec: Option<&Spec>) -> SessionParams {
    SessionParams::new(0).rope(spec.cloned()).kv_type(DType::F32).n_threads(1)
}

fn texts() -> Vec<Document> {
    vec![letters("a", 3000), letters("short", 900), letters("b", 2500)]
}

fn params() -> Params {
    let sizes = Sizes::default().population(5).iterations(2).mutations(2).crossovers(2).parents(3).step(0.05);
    Params::new(1024).sizes(sizes).samples(2)
}

fn search(documents: &[Document], params: &Params, control: &Control<'_>) -> Result<Report> {
    let source_of =
        |spec: &Spec| -> Box<dyn LmSource> { Box::new(SessionSource::new(model(), session(Some(spec)))) };
    run(&source_of, "model.gguf", "this model", model().hparams(), documents, params, control)
}

fn refusal(documents: &[Document], params: &Params) -> String {
    search(documents, params, &Control::default()).unwrap_err().to_string()
}

#[test]
fn the_score_of_what_is_found_is_the_perplexity_measured_under_its_spec() {
    let report = search(&texts(), &params(), &Control::default()).unwrap();
    assert_eq!((report.evaluations, report.samples, report.interrupted), (13, 2, false));
    let names: Vec<_> = report.results.iter().map(|r| r.name).collect();
    assert_eq!(names, ["found", "pi", "ntk", "yarn"]);
    let best = &report.results[0];
    assert!(report.results.iter().all(|row| best.nll <= row.nll));
    assert_eq!(report.results[1].factors, [2.0; 32], "PI divides every angle by 1024 / 512");
    let yarn = &report.results[3].factors;
    assert_eq!((yarn[0], yarn[31]), (1.0, 2.0), "YaRN leaves the fastest pair and divides the slowest by 2");

    let how = perplexity::Params::new(protocol("window").unwrap(), vec![1024])
        .max_windows(Some(1))
        .bos(Some(false));
    let long_enough = [texts().remove(0), texts().remove(2)];
    let nll_of = |spec: &str| {
        let source = SessionSource::new(model(), session(Some(&spec.parse().unwrap())));
        let each = long_enough.each_ref().map(|text| {
            let found =
                perplexity::run(&source, "", std::slice::from_ref(text), &how, &Control::default()).unwrap();
            found.results[0].headline.nll
        });
        (each[0] + each[1]) / 2.0
    };
    let found = nll_of(&report.rope);
    assert!((found - best.nll).abs() < 1e-6, "{found} beside {}", best.nll);
    let text = report.text();
    assert!(text.contains("13 of 13 lists of factors") && text.contains("found"), "{text}");
}

/// Such a file has its own magnitude, and a factor would give another.
#[test]
fn a_file_with_an_attn_factor_is_searched() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("eval-search-attn-factor.gguf");
    let shape = Shape::named("llama-tiny").unwrap();
    let own = ("rope.scaling.attn_factor", Value::F32(1.25));
    let shape = Shape { keys: shape.keys.iter().cloned().chain([own]).collect(), ..shape };
    write(&shape, DType::F32, 3, &path).unwrap();
    let model = Model::load(&path, &ModelParams::cpu()).unwrap();
    let source_of =
        |spec: &Spec| -> Box<dyn LmSource> { Box::new(SessionSource::new(&model, session(Some(spec)))) };
    let found = run(&source_of, "m", "m", model.hparams(), &texts(), &params(), &Control::default()).unwrap();
    assert_eq!(found.evaluations, 13);
    assert!(
        found.rope.starts_with("longrope:factors=") && !found.rope.contains(",factor="),
        "{}",
        found.rope
    );
    let plain = search(&texts(), &params(), &Control::default()).unwrap();
    assert!(plain.rope.contains(",factor=2"), "{}", plain.rope);
}

#[test]
fn a_search_that_was_stopped_goes_on_to_the_same_result() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("eval-search.json");
    // Needles and their questions need more room.
    for (goal, ctx) in [(Goal::Perplexity, 1024), (Goal::Needle, 2048)] {
        let whole = params().goal(goal).ctx(ctx).samples(1);
        let expected = search(&texts(), &whole, &Control::default()).unwrap();
        let _ = std::fs::remove_file(&path);
        let kept = whole.record(Some(path.as_path().into())).resume(true);
        let stop = Stop::default();
        let watch = |p: &Progress<'_>| {
            if p.done == 6 {
                stop.request();
            }
        };
        let control = Control::default().with_stop(&stop).with_progress(&watch);
        let part = search(&texts(), &kept, &control).unwrap();
        assert!(part.interrupted && part.evaluations < 13, "{part:?}");
        let on = kept.clone().max_evaluations(Some(9));
        assert_eq!(search(&texts(), &on, &Control::default()).unwrap().evaluations, 9);
        let mut rest = search(&texts(), &kept, &Control::default()).unwrap();
        rest.seconds = expected.seconds;
        assert_eq!(rest, expected);
        // Nothing is left to do: the record alone gives the result.
        let mut again = search(&texts(), &kept, &Control::default()).unwrap();
        again.seconds = expected.seconds;
        assert_eq!(again, expected);

        let other = kept.clone().seed(2);
        let found = refusal(&texts(), &other);
        assert!(found.contains("eval-search.json") && found.contains("another search"), "{found}");
    }
    let bytes = std::fs::read(&path).unwrap();
    let kept =
        params().goal(Goal::Needle).record(Some(path.as_path().into())).resume(true).ctx(2048).samples(1);
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(refusal(&texts(), &kept).contains("expected the record of a search"));
    let changed = String::from_utf8(bytes).unwrap().replacen("[4.0,", "[4.5,", 1);
    std::fs::write(&path, changed).unwrap();
    assert!(refusal(&texts(), &kept).contains("other factors at index 0"));
}

#[test]
fn what_cannot_be_searched_is_said() {
    let with = |change: fn(&mut Params)| {
        let mut params = params();
        change(&mut params);
        refusal(&texts(), &params)
    };
    assert!(with(|p| p.ctx = 512).contains("ctx 512: the original context is 512 tokens"));
    assert!(with(|p| p.ctx = 4000).contains("a text of at least 4000 tokens, the longest has 3000"));
    assert!(with(|p| p.samples = 0).contains("samples: expected at least 1"));
    assert!(with(|p| p.sizes.parents = 9).contains("parents: expected at most the population, 5"));
    let needles = with(|p| (p.ctx, p.goal) = (600, Goal::Needle));
    assert!(needles.contains("ctx 600: 8 needles and their questions take"), "{needles}");
}
