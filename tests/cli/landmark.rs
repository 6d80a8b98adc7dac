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
        let args = ["perplexity", "-f", &text, "--ctx", ctx, "--lora", &adapter, "--attention", &attention];
        run(&[&args, &on[..]].concat()).json()["results"][0]["ppl"].as_f64().unwrap()
    };
    assert!((few("2", "100") - with[1]).abs() > 1e-4 * with[1], "{with:?}");
    assert!((few("20", "100") - with[1]).abs() < 1e-3 * with[1], "{with:?}");
    let parts =
        ["perplexity", "-f", &text, "--protocol", "lceg-landmark", "--ctx", "600", "--lora", &adapter];
    let report = run(&[&parts, &on[..]].concat()).json();
    assert_eq!(report["protocol"], "lceg-landmark");
    for (attention, code, says) in [
        ("landmark:top=2,piece=9", 1, "piece: expected a multiple of the block of 8, found 9"),
        ("landmark:top=0", 2, "landmark: top: expected a number from 1"),
    ] {
        let out =
            run(&[&["perplexity", "-f", &text, "--lora", &adapter, "--attention", attention], &on[..]]
                .concat());
        assert!(fails(&out, code).contains(says), "{out:?}");
    }
    let out = run(&[&["perplexity", "-f", &text, "--attention", "landmark:top=2"], &on[..]].concat());
    assert!(fails(&out, 1).contains("expected an adapter that was trained with landmarks"), "{out:?}");
    // As a part it is none, and no model can hold it.
    let half = format!("{adapter}:0.5");
    let out = run(&[&["perplexity", "-f", &text, "--ctx", "48", "--lora", &half], &on[..]].concat());
    assert!(fails(&out, 1).contains("scale: expected 1"), "{out:?}");
    let merged = folder.path("merged.gguf");
    let out = run(&["convert", "--lora", &adapter, &model, "-o", &merged]);
    assert!(out.code == 1 && out.stderr.contains("a.gguf: it has a landmark token"), "{out:?}");
}

#[test]
fn what_cannot_be_is_one_line() {
    let folder = Folder::new();
    for (more, code, expected) in [
        (&["--attention", "landmark:block=1"][..], 2, "block: expected 2 to 256 positions, found 1"),
        (&["--attention", "landmark:size=8"], 2, "landmark: unknown parameter `size`; known: block, in-loss"),
    ] {
        let out = folder.finetune("refused.gguf", more);
        assert!(fails(&out, code).contains(expected), "{more:?}: {out:?}");
        assert!(!folder.file("refused.gguf").exists());
    }
}
