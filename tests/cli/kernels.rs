//! `ropewalk inspect`, alone and with `--kernels`: which kernels multiply a model's weights, for people and for programs.

use crate::common::program::{command, finish, run, Output};
use crate::models::{model, ok, text_file};

#[test]
fn kernels_of_a_model_are_shown() {
    let text = ok(run(&["inspect", model(), "--kernels"])).stdout;
    assert!(text.starts_with("matrix products on this processor (") && text.contains("\n  q8_0 "), "{text}");
    for (pass, math) in [("inference", "auto"), ("inference", "int8"), ("training ", "f32")] {
        assert!(text.contains(&format!("  {pass}  --math {math:4}  1")), "{pass} {math}: {text}");
    }
    let contents = ok(run(&["inspect", model()])).stdout;
    let (_, short) = contents.split_once("\n\nmatrix products on this processor (").unwrap();
    assert!(short.contains("\n  q8_0 ") && short.contains("  training   --math auto"), "{short}");
    for line in short.lines().skip(1) {
        assert!(text.contains(line) && !line.contains("--math f32"), "{line}: {text}");
    }
    let json = ok(run(&["inspect", model(), "--kernels", "--json"])).json();
    let products = json["products"].as_array().unwrap();
    let auto =
        |p: &&serde_json::Value| p["math"] == "auto" && p["pass"] == "inference" && p["type"] == "q8_0";
    let choices = products.iter().find(auto).unwrap()["choices"].as_array().unwrap();
    assert_eq!(choices[0]["from"], 1);
    for choice in choices {
        assert!(text.contains(choice["kernel"].as_str().unwrap()), "{choice}: {text}");
    }
}

fn limited(level: &str, args: &[&str]) -> Output {
    let mut command = command(args);
    command.env("ROPEWALK_INSTRUCTIONS", level);
    finish(command)
}

#[test]
fn kernels_for_older_processors_can_be_chosen() {
    let isa =
        |level| ok(limited(level, &["inspect", model(), "--kernels", "--json"])).json()["isa"].to_string();
    let all = isa("amx");
    assert_eq!(isa("portable"), "\"baseline\"");
    assert_eq!(isa("avx2") == "\"AVX2\"", all.contains("AVX2"), "{all}");
    assert_eq!(isa("avx512").contains("AVX-512"), all.contains("AVX-512"), "{all}");
    let unknown = limited("sse2", &["inspect", model()]);
    assert_eq!(unknown.code, 2);
    let names = "portable, avx2, avx-vnni, avx512, amx";
    assert!(unknown.stderr.ends_with(&format!("is \"sse2\"; expected one of {names}\n")), "{unknown:?}");

    // Attention of many tokens and of one at a time.
    let dir = tempfile::tempdir().unwrap();
    let text = text_file(dir.path(), "a.txt", 100);
    let measured = ["perplexity", "-m", model(), "-f", &text, "--ctx", "96", "--math", "f32", "--json", "-q"];
    let sizes = |kv| [(kv, "96"), (kv, "1")];
    for (kv, size) in ["f32", "f16", "q8_0", "q4_0"].into_iter().flat_map(sizes) {
        let args = [&measured[..], &["--kv", kv, "--device", "cpu", "-t", "1", "-u", size]].concat();
        let nll = |level| ok(limited(level, &args)).json()["results"][0]["nll"].as_f64().unwrap();
        let best = nll("amx");
        // Another order of sums can round a key or a value of the next layer to its neighbor among quantized numbers.
        let bound = if kv.starts_with('q') { 1e-4 } else { 1e-5 };
        for level in ["portable", "avx2", "avx-vnni", "avx512"] {
            assert!((nll(level) - best).abs() < bound * best, "{level} {kv} {size}: {} {best}", nll(level));
        }
    }
}
