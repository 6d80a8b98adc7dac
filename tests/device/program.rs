//! The program on the device: a run of fine-tuning that is killed and goes on, and its adapter in use.

use std::path::Path;
use std::process::Command;

use convert::random::{write, Shape};
use convert::{convert, Options};
use ropewalk::control::Control;
use ropewalk::DType;
use serde_json::Value;

use crate::common::program::{finish, run};
use crate::subject::{allowed, device};

/// The fields of a step's log that decide the next.
fn losses(path: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    lines.filter_map(|l| l["loss"].as_f64()).collect()
}

#[test]
fn fine_tuning_goes_as_on_the_cpu_and_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (model, text, device) = (path("tiny.gguf"), path("texts"), device());
    write(&Shape::named("llama-tiny").unwrap(), DType::Q8_0, 7, &model).unwrap();
    std::fs::create_dir(&text).unwrap();
    for i in 0..5 {
        let words = (0..300).map(|n| ["sea", "rope", "walk", "hemp", "tar"][(n * (i + 2) + n / 7) % 5]);
        let words = words.collect::<Vec<_>>().join(" ");
        std::fs::write(format!("{text}/{i}.txt"), format!("{i}. {words}\n")).unwrap();
    }
    let (exact, rounded) = (path("exact.gguf"), path("rounded.gguf"));
    for (to, dtype) in [(&exact, DType::F32), (&rounded, DType::F16)] {
        convert(&model, to, &Options::default().dtype(Some(dtype)), &Control::default()).unwrap();
    }
    let finetune = |model: &str, device: &str, output: &str, more: &[&str]| {
        let output = path(output);
        let head = ["finetune", "-m", model, "-d", &text, "-o", &output, "--ctx", "48", "--ubatch", "20"];
        let tail = [
            "--device",
            device,
            "-t",
            "1",
            "--lr",
            "0.01",
            "--set",
            "held-out=2",
            "--set",
            "save-every=3",
            "--json",
        ];
        run(&[&head[..], &tail, &["--rope", "yarn:factor=2"], more].concat()).json()
    };
    let whole = finetune(&model, &device, "whole.gguf", &["--steps", "6"]);
    let ours = losses(&path("whole.log.jsonl"));
    let on_cpu = |model: &str, name: &str| {
        finetune(model, "cpu", &format!("{name}.gguf"), &["--steps", "6"]);
        losses(&path(&format!("{name}.log.jsonl")))
    };
    let (theirs, near) = (on_cpu(&exact, "cpu"), on_cpu(&rounded, "near"));
    assert_eq!((ours.len(), theirs.len(), near.len()), (6, 6, 6));
    let apart = |a: &[f64]| a.iter().zip(&theirs).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
    // Each step of the optimizer adds to the difference. The largest counts.
    let (found, bound) = (apart(&ours), allowed(DType::Q8_0, apart(&near), 0.0));
    println!("{ours:?} and on the CPU {theirs:?}: {found:.1e}, allowed {bound:.1e}");
    assert!(found <= bound, "{ours:?}, on the CPU {theirs:?}: {found:.1e}, allowed {bound:.1e}");
    assert!(whole["val_after"].as_f64() < whole["val_before"].as_f64(), "{whole}");

    finetune(&model, &device, "parts.gguf", &["--steps", "3"]);
    finetune(&model, &device, "parts.gguf", &["--steps", "6", "--resume"]);
    let read = |name: &str| std::fs::read(path(name)).unwrap();
    assert!(read("whole.gguf") == read("parts.gguf"), "a run that was resumed is another one");

    let adapter = path("whole.gguf");
    let one = format!("{text}/1.txt");
    let ppl = |device: &str| {
        let args =
            ["perplexity", "-m", &model, "-f", &one, "--ctx", "48", "--lora", &adapter, "-t", "1", "--json"];
        run(&[&args[..], &["--device", device]].concat()).json()["results"][0]["ppl"].as_f64().unwrap()
    };
    let (ours, theirs) = (ppl(&device), ppl("cpu"));
    assert!((ours / theirs - 1.0).abs() < 5e-3, "perplexity {ours}, on the CPU {theirs}");
}

/// Backend modules are next to the program. One of another version of ggml, or a broken one, is named with the reason.
#[test]
fn a_module_that_does_not_fit_is_named() {
    let program = Path::new(env!("CARGO_BIN_EXE_ropewalk"));
    let folder = program.parent().unwrap();
    if !folder.join("libggml-cpu.so").is_file() {
        println!("backends are part of the program in this build: nothing to test");
        return;
    }
    let dir = tempfile::tempdir_in(folder).unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["ropewalk", "libggml-cpu.so"] {
        std::fs::hard_link(folder.join(name), path(name)).unwrap();
    }
    let model = path("tiny.gguf");
    write(&Shape::named("llama-tiny").unwrap(), DType::Q8_0, 7, &model).unwrap();
    let ask = || {
        let mut command = Command::new(path("ropewalk"));
        command.args(["bench", "-m", model.to_str().unwrap(), "-p", "8", "-n", "0", "--device", "vulkan:0"]);
        let output = finish(command);
        assert_eq!(output.code, 1, "{output:?}");
        assert!(output.stderr.contains("device 'vulkan:0' is not available"), "{output:?}");
        output.stderr
    };
    assert!(!ask().contains("libggml-vulkan.so"), "there is no module");
    let module = path("libggml-vulkan.so");
    std::fs::write(&module, "no library").unwrap();
    let said = ask();
    assert!(said.contains("libggml-vulkan.so: failed to load"), "{said}");
    let source = path("module.c");
    let text = "static struct { int version; void *functions[5]; } reg = { 999, { 0 } };
                void *ggml_backend_init(void) { return &reg; }";
    std::fs::write(&source, text).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&module, &source]).status().unwrap();
    assert!(compiled.success());
    let said = ask();
    assert!(said.contains("incompatible API version (backend: 999"), "{said}");
}
