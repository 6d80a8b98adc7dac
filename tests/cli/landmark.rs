//! Landmark attention from the outside: trained, evaluated, refused.

use crate::common::program::run;
use crate::finetune::{fails, Folder};

const LANDMARK: [&str; 2] = ["--attention", "landmark:block=8"];

#[test]
fn what_is_trained_with_landmarks_runs_with_them() {
    let folder = Folder::new();
    let report = folder.finetune("a.gguf", &[&LANDMARK[..], &["--steps", "12"]].concat()).json();
    assert!(report["val_after"].as_f64().unwrap() < report["val_before"].as_f64().unwrap(), "{report}");
    let (model, adapter, text) =
        (folder.path("tiny.gguf"), folder.path("a.gguf"), folder.path("texts/1.txt"));
    let on = ["-m", &model, "--device", "cpu", "-t", "1", "--json"];
    let perplexity = |more: &[&str]| {
        let report = run(&[&["perplexity", "-f", &text, "--ctx", "48,100"], &on[..], more].concat()).json();
        let of = |i: usize| report["results"][i]["ppl"].as_f64().unwrap();
        [of(0), of(1)]
    };
    let (plain, with) = (perplexity(&[]), perplexity(&["--lora", &adapter]));
    assert!(with[0] < plain[0] && with[1] < plain[1], "{with:?}, without the adapter {plain:?}");
    let passkey = ["eval", "passkey", "--lengths", "300", "--samples", "1", "--lora", &adapter];
    let report = run(&[&passkey, &on[..]].concat()).json();
    assert_eq!(report["results"][0]["samples"], 1);
    let generate = ["run", "-p", "sea rope walk", "-n", "20", "--lora", &adapter, "--temp", "0"];
    let out = run(&[&generate, &on[..]].concat());
    assert_eq!(out.code, 0, "{out:?}");
    // Over a few blocks: other figures, the same where there are no more.
    let few = |top: &str, ctx: &str| {
        let attention = format!("landmark:top={top}");
        folder.ppl("tiny.gguf", &["--ctx", ctx, "--lora", &adapter, "--attention", &attention])
    };
    assert!((few("2", "100") - with[1]).abs() > 1e-4 * with[1], "{with:?}");
    assert!((few("20", "100") - with[1]).abs() < 1e-3 * with[1], "{with:?}");
    let parts =
        ["perplexity", "-f", &text, "--protocol", "lceg-landmark", "--ctx", "600", "--lora", &adapter];
    let report = run(&[&parts, &on[..]].concat()).json();
    assert_eq!(report["protocol"], "lceg-landmark");
    let none = ["perplexity", "-f", &text, "--lora", &adapter, "--attention", "landmark:top=0"];
    let out = run(&[&none, &on[..]].concat());
    assert!(fails(&out, 2).contains("landmark: top: expected a number from 1"), "{out:?}");
}
