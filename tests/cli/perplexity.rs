//! `perplexity`: lengths, documents and token ids as they are given on the command line, LongPPL.

use std::path::{Path, PathBuf};

use ropewalk::model::{Model, ModelParams};
use serde_json::Value;

use crate::common::program::{run, Output};
use crate::eval::refused;
use crate::models::{model, ok, text_file, words};

fn measured(files: &[&Path], more: &[&str]) -> Output {
    let mut args = vec!["perplexity", "-m", model(), "--device", "cpu", "-t", "1", "-q", "-f"];
    args.extend(files.iter().map(|path| path.to_str().unwrap()));
    run(&[&args[..], more].concat())
}

fn json(files: &[&Path], more: &[&str]) -> Value {
    ok(measured(files, &[more, &["--json"]].concat())).json()
}

#[test]
fn a_range_of_lengths_is_measured_and_averaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = PathBuf::from(text_file(dir.path(), "a.txt", 300));
    let report = json(&[&path], &["--lengths", "64..170:32,200"]);
    let rows = report["results"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["ctx"].as_u64().unwrap()).collect::<Vec<_>>(), [64, 96, 128, 160, 200]);
    assert!(rows.iter().all(|r| r["task"] == "perplexity" && r["rope"] == "plain" && r["finished"] == true));
    let sum: f64 = rows.iter().map(|r| r["ppl"].as_f64().unwrap()).sum();
    let mean = report["mean_over_ctx"][0]["ppl"].as_f64().unwrap();
    assert!((mean - sum / 5.0).abs() < 1e-9 && report["mean_over_ctx"][0]["lengths"] == 5, "{report}");
    let two = json(&[&path], &["-l", "64,96", "--rope", "plain", "--rope", "pi:factor=2"]);
    let (means, rows) = (two["mean_over_ctx"].as_array().unwrap(), two["results"].as_array().unwrap());
    assert_eq!((means.len(), rows.len()), (2, 4));
    for (mean, rows) in means.iter().zip(rows.chunks(2)) {
        let both = (rows[0]["ppl"].as_f64().unwrap() + rows[1]["ppl"].as_f64().unwrap()) / 2.0;
        assert!(
            (mean["ppl"].as_f64().unwrap() - both).abs() < 1e-9 && mean["rope"] == rows[0]["rope"],
            "{two}"
        );
    }

    // The second rope against the first, by windows of the same tokens.
    let differences = two["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 2, "{two}");
    for ((one, a), b) in differences.iter().zip(&rows[..2]).zip(&rows[2..]) {
        assert_eq!((&one["ctx"], &one["from"], &one["to"]), (&a["ctx"], &a["rope"], &b["rope"]));
        let ratio = b["ppl"].as_f64().unwrap() / a["ppl"].as_f64().unwrap();
        assert!((one["ppl_ratio"].as_f64().unwrap() - ratio).abs() < 1e-12, "{one}");
        // One document has one window, which says nothing of others.
        assert!(one["windows"] == 1 && one["ci_low"].is_null(), "{one}");
    }
    assert_eq!(report["differences"], serde_json::json!([]));
    let strided = ["--stride", "40", "--lengths", "96", "--rope", "plain", "--rope", "pi:factor=2"];
    let strided = &json(&[&path], &strided)["differences"][0];
    let [low, ratio, high] = ["ci_low", "ppl_ratio", "ci_high"].map(|key| strided[key].as_f64().unwrap());
    assert!(low < ratio && ratio < high && high < 10.0 * low, "{strided}");

    // Read in pieces of 32 tokens, the first piece is what a window of 32 is; later positions follow.
    let pieces =
        json(&[&path], &["--ctx", "96", "--protocol", "restart", "--stride", "32", "--bucket", "32"]);
    let buckets = pieces["results"][0]["buckets"].as_array().unwrap();
    let starts: Vec<_> = buckets.iter().map(|b| (b["start"].as_u64(), b["tokens"].as_u64())).collect();
    assert_eq!(starts, [0, 32, 64].map(|start| (Some(start), Some(31))));
    let one = json(&[&path], &["--ctx", "32"]);
    let apart = buckets[0]["nll"].as_f64().unwrap() - one["results"][0]["nll"].as_f64().unwrap();
    assert!(apart.abs() < 1e-4, "{apart}");
}

/// `-c` alone is `-l`, as llama.cpp's users type it; with `-l` it is the context that methods are worked out for.
#[test]
fn lengths_are_windows_and_the_context_is_what_methods_are_made_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = PathBuf::from(text_file(dir.path(), "a.txt", 300));
    let row = |more: &[&str]| json(&[&path], &[more, &["--rope", "pi"]].concat())["results"][0].clone();
    let (short, typed) = (row(&["-l", "96"]), row(&["-c", "96"]));
    for key in ["ctx", "n_ctx", "ppl", "rope", "tokens"] {
        assert_eq!(short[key], typed[key], "{key}");
    }
    let long = row(&["-l", "96", "-c", "2k"]);
    assert_eq!((&long["ctx"], &long["n_ctx"], &long["tokens"]), (&96.into(), &2048.into(), &short["tokens"]));
    let factor = |row: &Value| row["rope"].as_str().unwrap().split(',').next().unwrap().to_owned();
    assert_eq!((factor(&short), factor(&long)), ("pi:factor=1".into(), "pi:factor=4".into()));
    let same = json(&[&path], &["-l", "96", "--rope", "pi:factor=4"]);
    assert_eq!(long["ppl"], same["results"][0]["ppl"]);
    let compared = json(&[&path], &["-l", "96", "-c", "2k", "--rope", "pi", "--against", "rope=plain"])
        ["results"][0]
        .clone();
    assert_eq!(compared["ctx"], 96);
    assert!(compared["a"]["rope"].as_str().is_some_and(|rope| rope.starts_with("pi:factor=4")), "{compared}");
    refused(&measured(&[&path], &["-l", "96", "-c", "1k,2k"]), 2, &["--ctx", "one context", "found 2"]);
}

#[test]
fn token_ids_are_measured_as_the_text_they_are_of() {
    let dir = tempfile::tempdir().unwrap();
    let loaded = Model::load(Path::new(model()), &ModelParams::cpu()).unwrap();
    let (vocab, mut stream) = (loaded.vocab(), Vec::new());
    let mut lines = String::new();
    for n in [60, 90, 40] {
        let tokens = vocab.tokenize(&words(n), false, false).unwrap();
        let ids = vocab.bos().into_iter().chain(tokens).map(|t| u16::try_from(t).unwrap());
        stream.extend(ids.flat_map(u16::to_le_bytes));
        lines += &format!("{}\n", serde_json::json!({ "text": words(n) }));
    }
    let (texts, ids) = (dir.path().join("a.jsonl"), dir.path().join("a.bin"));
    std::fs::write(&texts, lines).unwrap();
    std::fs::write(&ids, &stream).unwrap();
    for more in [
        &["--ctx", "96", "--bos", "on"][..],
        &["--ctx", "96", "--bos", "off", "--documents", "max=2", "--seed", "5"],
        &["--ctx", "64", "--protocol", "longlora", "--stride", "32", "--bos", "on"],
    ] {
        let (a, b) = (json(&[&texts], more), json(&[&ids], more));
        for key in ["documents", "document_tokens", "bos"] {
            assert_eq!(a[key], b[key], "{key}");
        }
        for key in ["ppl", "tokens", "windows"] {
            assert_eq!(a["results"][0][key], b["results"][0][key], "{key}");
        }
    }
    // A comparison reads them as well.
    let compared = |path: &Path| json(&[path], &["--ctx", "64", "--against", "kv=q8_0"]);
    let (a, b) = (compared(&texts), compared(&ids));
    for key in ["tokens", "windows", "kl", "ppl_ratio"] {
        assert_eq!(a["results"][0][key], b["results"][0][key], "{key}");
    }
    let drawn = json(&[&texts], &["--ctx", "96", "--documents", "max=2", "--seed", "5"]);
    assert_eq!(drawn["sample"]["seed"], 5);
    assert_eq!(drawn["sample"]["documents"].as_array().unwrap().len(), 2);

    std::fs::write(&ids, &stream[..stream.len() - 1]).unwrap();
    let last = (stream.len() - 2).to_string();
    refused(&measured(&[&ids], &["--ctx", "96"]), 1, &["a.bin", &last, "two bytes", "found one"]);
    let n_vocab = vocab.n_tokens().to_string();
    std::fs::write(&ids, [&stream[..10], &[0xff, 0xff]].concat()).unwrap();
    let foreign = ["a.bin: offset 10", "below", &n_vocab, "found 65535"];
    refused(&measured(&[&ids], &["--ctx", "96"]), 1, &foreign);
    std::fs::write(&ids, b"").unwrap();
    refused(&measured(&[&ids], &["--ctx", "96"]), 1, &["a.bin", "empty"]);
}

#[test]
fn what_was_measured_before_an_error_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let path = PathBuf::from(text_file(dir.path(), "a.txt", 300));
    let args =
        ["--lengths", "64", "--rope", "plain", "--rope", "longrope", "--rope", "pi:factor=2", "--json"];
    let out = measured(&[&path], &args);
    let report: Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(
        (out.code, report["results"].as_array().unwrap().len(), &report["rope"]),
        (1, 1, &"plain".into())
    );
    assert!(out.stderr.contains("longrope"), "{out:?}");
    // Before the first result, there is nothing to print.
    let out = measured(&[&path], &["--lengths", "64", "--rope", "longrope", "--json"]);
    assert_eq!((out.code, &*out.stdout), (1, ""));
}

#[test]
fn longppl_stands_beside_perplexity() {
    let dir = tempfile::tempdir().unwrap();
    let path = PathBuf::from(text_file(dir.path(), "a.txt", 300));
    // Bounds that every token passes: those that a short context scores, from 140 on, are key tokens.
    let bounds = "--longppl=trunc-len=100,sliding-window=40,alpha=-100,beta=-100";
    let base = ["--ctx", "256", "--bos", "off", "--bucket", "4"];
    let report = json(&[&path], &[&base[..], &[bounds]].concat());
    let (row, found) = (&report["results"][0], &report["results"][0]["longppl"]);
    assert_eq!((found["key_tokens"].as_u64(), found["tokens"].as_u64()), (Some(116), Some(255)));
    assert_eq!(found["ppl"], row["ppl"]);
    let late = row["buckets"].as_array().unwrap().iter().filter(|b| b["start"].as_u64() >= Some(140));
    let nll: Vec<f64> = late.map(|b| b["nll"].as_f64().unwrap()).collect();
    assert_eq!(nll.len(), 29);
    let mean = nll.iter().sum::<f64>() / 29.0;
    assert!((found["nll"].as_f64().unwrap() - mean).abs() < 1e-6, "{mean}: {row}");
    // A random model has no key tokens.
    let text = ok(measured(&[&path], &[&base[..], &["--longppl=trunc-len=100,sliding-window=40"]].concat()));
    assert!(text.stdout.contains("| ctx | LongPPL | +/- | key tokens | of tokens |"), "{text:?}");
    assert!(json(&[&path], &["--ctx", "256"])["results"][0]["longppl"].is_null());
}

#[test]
fn options_that_cannot_be_are_exit_2() {
    let base = ["perplexity", "-m", "x", "-f", "y"];
    for (more, holds) in [
        (&["--ctx", "2k..8k"][..], &["--ctx", "step"][..]),
        (&["--ctx", "8k..2k:1k"], &["--ctx", "8192"]),
        (&["--ctx", "2k..8k:0"], &["--ctx", "at least 1"]),
        (&["--ctx", "0..8k:1k"], &["--ctx", "at least 1"]),
        (&["--ctx", "1..1025:1"], &["--ctx", "1025 lengths"]),
        (&["--ctx", "..8k:1k"], &["--ctx", "expected a number"]),
        (&["--ctx", "2k..:1k"], &["--ctx", "expected a number"]),
        (&["--ctx", "2k...8k:1k"], &["--ctx", "expected a number"]),
        (&["--ctx", "2k..8k:1k:1k"], &["--ctx", "expected a number"]),
        (&["--ctx", "2k..99999999999:1"], &["--ctx", "too large"]),
        (&["--ctx", ".."], &["--ctx", "step"]),
        (&["--seed", "1"], &["--documents"]),
        (&["--seed", "1", "--documents", "min-tokens=9"], &["--seed", "max=N"]),
        (&["--documents", "max=0"], &["--documents: max=0", "at least 1"]),
        (&["--documents", "most=2"], &["--documents: unknown parameter `most`"]),
        (&["--seed", "-1", "--documents", "max=2"], &["-1"]),
        (
            &["--longppl=trunc_len=100"],
            &["--longppl: unknown parameter `trunc_len` (did you mean `trunc-len`?)"],
        ),
        (&["--longppl=sliding-window=0"], &["sliding-window", "at least 1"]),
        (&["--longppl=alpha=NaN"], &["alpha", "NaN"]),
        (&["--longppl", "--stride", "256"], &["longppl", "window", "stride"]),
        (&["--longppl", "--protocol", "yarn"], &["longppl", "window", "yarn"]),
    ] {
        refused(&run(&[&base[..], more].concat()), 2, holds);
    }
    refused(&run(&["eval", "passkey", "-m", "x", "--lengths", "1k..2k"]), 2, &["--lengths", "step"]);
}
