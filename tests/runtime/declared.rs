//! Models whose files declare a scaling, under reach methods whose window no token of the text is beyond: the logits are
//! those of the file itself, as libllama has them; and so are those of a file that such a method was written into.

use std::path::{Path, PathBuf};

use convert::random::{write, Shape};
use convert::{convert, Options};
use gguf::{File, Value};
use ropewalk::control::Control;
use ropewalk::model::Model;
use ropewalk::rope::{Axis, METHODS};
use ropewalk::{DType, Token};

use crate::common::*;
use crate::libllama::{oracle_logits, oracle_params};

const N_CTX: usize = 256;
const N_TOKENS: usize = 200;

/// The keys of a scaling, without the architecture's name.
type Keys = Vec<(&'static str, Value)>;

fn scaling(kind: &str, factor: f32, original: Option<u32>) -> Keys {
    let kind = kind_of(kind);
    let original = original.map(|n| ("rope.scaling.original_context_length", Value::U32(n)));
    [kind, ("rope.scaling.factor", Value::F32(factor))].into_iter().chain(original).collect()
}

fn kind_of(kind: &str) -> (&'static str, Value) {
    ("rope.scaling.type", Value::String(kind.as_bytes().to_vec()))
}

/// Shapes with what their files declare, on top of the keys that they have anyway.
fn files() -> Vec<(&'static str, Shape)> {
    let with = |name: &str, keys: Keys| {
        let shape = Shape::named(name).expect("a known shape");
        Shape { keys: shape.keys.iter().cloned().chain(keys).collect(), ..shape }
    };
    let factors = |step: f32| (0..32).map(|j| 1.0 + step * j as f32).collect();
    let longrope = Shape {
        longrope: Some([factors(0.5), factors(0.01)]),
        ..with(
            "llama-tiny",
            vec![
                kind_of("longrope"),
                ("rope.scaling.original_context_length", Value::U32(128)),
                ("rope.scaling.attn_factor", Value::F32(1.1)),
            ],
        )
    };
    vec![
        ("linear", with("llama-tiny", scaling("linear", 4.0, None))),
        ("linear with its window", with("qwen2-tiny", scaling("linear", 2.5, Some(200)))),
        ("yarn", with("llama-tiny", scaling("yarn", 8.0, Some(64)))),
        ("longrope", longrope),
        ("rope_freqs", with("llama-tiny-gqa", Keys::new())),
        ("gemma3, linear", with("gemma3-tiny", scaling("linear", 8.0, None))),
        ("mistral3, yarn", with("mistral3-tiny", Keys::new())),
        ("olmo3, yarn", with("olmo3-tiny", Keys::new())),
        ("phi3, longrope", with("phi3-tiny", Keys::new())),
        ("gpt-oss, yarn", with("gpt-oss-tiny", Keys::new())),
    ]
}

/// A method with a window that the text does not pass.
fn wide(method: &str) -> &'static str {
    match method {
        "self-extend" => "self-extend:window=512,group=4",
        "dca" => "dca:chunk=512,local=128",
        "lm-infinite" => "lm-infinite:window=512,global=4",
        "streaming" => "streaming:sinks=4,window=512",
        "string" => "string:shifted-offset=512,local-value=16",
        "rerope" => "rerope:window=512,leak=4",
        other => panic!("which window of {other} is wider than the text?"),
    }
}

fn logits(model: &Model, rope: Option<&str>, n_ctx: usize, text: &[Token]) -> Vec<f32> {
    let rope = rope.map(|spec| spec.parse().unwrap_or_else(|e| panic!("{e}")));
    all_logits(model, &with_kv(n_ctx, DType::F32).rope(rope), text)
}

/// Largest difference of logits over the largest logit.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    let spread = a.iter().map(|x| x.abs()).fold(1.0, f32::max);
    distance(a, b) / f64::from(spread)
}

fn converted(from: &Path, to: &str, spec: &str) -> PathBuf {
    let path = scratch(to);
    let options = Options::default().rope(Some(spec.parse().unwrap())).n_ctx(Some(N_CTX)).force(true);
    convert(from, &path, &options, &Control::default()).unwrap_or_else(|e| panic!("{e}"));
    path
}

#[test]
fn reach_methods_within_their_window_are_the_file_itself() {
    let mut failures = Vec::new();
    for (i, (about, shape)) in files().iter().enumerate() {
        let path = scratch(&format!("declared-{i}.gguf"));
        write(shape, DType::F32, 5, &path).unwrap();
        let model = load(&path);
        let text = some_tokens(N_TOKENS, model.hparams().n_vocab);
        let own = logits(&model, None, N_CTX, &text);
        let brief = logits(&model, None, 100, &text[..90]);
        let mut check = |what: String, found: f64, least: f64, most: f64| {
            println!("{about}: {what}: {found:.2e}");
            if !(least..=most).contains(&found) {
                failures
                    .push(format!("{about}: {what}: off by {found:.2e}, allowed {least:.0e} to {most:.0e}"));
            }
        };
        // Experts of a mixture may be others after a last bit, and GELU there is of half precision.
        let same = if ["gpt-oss", "gemma3"].contains(&&shape.arch[..]) { 2e-3 } else { 1e-4 };
        let theirs = |path: &Path| oracle_logits(path, &oracle_params(N_CTX, DType::F32), &text);
        check("libllama".into(), apart(&theirs(&path), &own), 0.0, same);
        check("declared".into(), apart(&own, &logits(&model, Some("declared"), N_CTX, &text)), 0.0, 0.0);
        for (j, method) in METHODS.iter().filter(|m| m.axis == Axis::Reach).enumerate() {
            let spec = wide(method.name);
            check(spec.into(), apart(&own, &logits(&model, Some(spec), N_CTX, &text)), 0.0, same);
            // What was lost before, so that the bound means something.
            let without = format!("plain+{spec}");
            let (least, most) = if *about == "rope_freqs" { (0.0, same) } else { (0.01, f64::MAX) };
            check(without.clone(), apart(&own, &logits(&model, Some(&without), N_CTX, &text)), least, most);

            let file = converted(&path, &format!("declared-{i}-{}.gguf", method.name), spec);
            let written = load(&file);
            check(
                format!("{spec}, converted"),
                apart(&own, &logits(&written, None, N_CTX, &text)),
                0.0,
                same,
            );
            // Opened for fewer tokens it follows the context as the file itself does.
            let few = logits(&written, None, 100, &text[..90]);
            check(format!("{spec}, converted, 100 tokens"), apart(&brief, &few), 0.0, same);
            // libllama does not read a reach: two methods of each file, and so several files of each method, are enough.
            if soaks() || (i + j) % 3 == 0 {
                check(format!("{spec}, converted, in libllama"), apart(&theirs(&file), &own), 0.0, same);
                // Another reach in its place.
                let (other, back) = ("rerope:window=512", format!("{spec}, converted again"));
                let again = converted(&file, &format!("declared-{i}-again.gguf"), other);
                check(back, apart(&own, &logits(&load(&again), None, N_CTX, &text)), 0.0, same);
                std::fs::remove_file(again).unwrap();
            }
            drop(written);
            std::fs::remove_file(file).unwrap();
        }
        drop(model);
        std::fs::remove_file(path).unwrap();
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// A conversion over a conversion keeps the frequencies that sessions of the file keep.
#[test]
fn a_reach_is_written_over_an_earlier_conversion() {
    let path = scratch("declared-twice.gguf");
    write(&Shape::named("llama-tiny").unwrap(), DType::F32, 5, &path).unwrap();
    let yarn = converted(&path, "declared-twice-yarn.gguf", "yarn:factor=4,original=64");
    let model = load(&yarn);
    let text = some_tokens(N_TOKENS, model.hparams().n_vocab);
    let file = converted(&yarn, "declared-twice-dca.gguf", "dca:chunk=48,local=8");
    let want = logits(&model, Some("dca:chunk=48,local=8"), N_CTX, &text);
    let (found, lost) = (load(&file), logits(&load(&path), Some("dca:chunk=48,local=8"), N_CTX, &text));
    assert!(apart(&want, &logits(&found, None, N_CTX, &text)) == 0.0 && apart(&want, &lost) > 0.01);
    let spec = File::open(&file).unwrap().get::<String>("ropewalk.rope.spec").unwrap();
    assert!(spec.starts_with("yarn:factor=4,") && spec.contains("+dca:chunk=48"), "{spec}");
    // Without a method it is what the model was before.
    let back = converted(&file, "declared-twice-plain.gguf", "plain");
    assert!(
        apart(&logits(&load(&path), None, N_CTX, &text), &logits(&load(&back), None, N_CTX, &text)) == 0.0
    );
}
