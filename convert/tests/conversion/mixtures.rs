//! Mixtures of types by libllama's quantizer, alone and after other changes, and what is reported of them.

use std::path::Path;
use std::process::Output;

use convert::random::{self, Shape, SHAPES};
use convert::{convert, Error, Mixture, Options};
use files::faults::walk;
use gguf::{DType, File};
use llama::quantize::{quantize, QuantizeParams};
use proptest::prelude::*;
use ropewalk_core::control::{Control, Progress, Stop};

use crate::cli::{convert as program, stderr};
use crate::lab::Lab;

impl Lab {
    fn run(&self, options: &Options) -> convert::Result<convert::Report> {
        convert(self.path("in"), self.path("out"), options, &Control::default())
    }
    fn program(&self, args: &[&str]) -> Output {
        let (input, output) = (self.path("in"), self.path("out"));
        program(&[args, &[input.to_str().unwrap(), "-o", output.to_str().unwrap()]].concat())
    }
}

fn to(name: &str) -> Options {
    Options::default().mixture(Some(Mixture::default().name(name.into())))
}

/// The file that libllama's quantizer makes of another.
fn by_libllama(from: &Path, to: &Path, name: &str) -> Vec<u8> {
    let params = QuantizeParams::new(llama::quantize::Mixture::named(name).unwrap());
    quantize(from, to, &params, &|_, _| true).unwrap();
    std::fs::read(to).unwrap()
}

#[test]
fn a_mixture_is_libllamas_own_after_all_other_changes() {
    let lab = Lab::new("llama-tiny", DType::F16, 3);
    let report = lab.run(&to("q4_k_m")).unwrap();
    let out = std::fs::read(lab.path("out")).unwrap();
    assert!(out == by_libllama(&lab.path("in"), &lab.path("theirs"), "q4_k_m"));
    assert_eq!((report.bytes, report.n_tensors, report.dtype), (out.len() as u64, 21, Some("q4_k_m")));
    assert_eq!(report.converted.len(), 16);
    assert!(report.converted.iter().all(|t| (1e-3..0.12).contains(&t.rel_rmse)), "{:?}", report.converted);

    let yarn = Options::default().rope(Some("yarn:factor=2.5".parse().unwrap()));
    lab.run(&yarn).unwrap();
    std::fs::rename(lab.path("out"), lab.path("yarn")).unwrap();
    let report = lab.run(&to("q3_k_l").rope(yarn.rope)).unwrap();
    assert!(
        std::fs::read(lab.path("out")).unwrap()
            == by_libllama(&lab.path("yarn"), &lab.path("theirs"), "q3_k_l")
    );
    let file = File::open(&lab.path("out")).unwrap();
    assert_eq!(file.get::<u32>("llama.context_length").unwrap(), 1280);
    assert!(file.get::<String>("ropewalk.rope.spec").unwrap().starts_with("yarn:factor=2.5"));
    let line = format!("llama-server -m {} -c 1280", lab.path("out").display());
    assert_eq!((report.llama_server, report.no_llama_server), (Some(line), None));
    assert_eq!(lab.files(), ["in.gguf", "out.gguf", "theirs.gguf", "yarn.gguf"]);
}

#[test]
fn every_architecture_is_quantised_as_libllama_does() {
    let lab = Lab::new("llama-tiny", DType::F16, 3);
    for named in SHAPES.iter().filter(|s| s.name.contains("tiny")) {
        random::write(&Shape::named(named.name).unwrap(), DType::F16, 3, lab.path("in")).unwrap();
        let report = lab.run(&to("q4_k_m")).unwrap_or_else(|e| panic!("{}: {e}", named.name));
        assert!(report.converted.iter().all(|t| t.rel_rmse < 0.12), "{}: {:?}", named.name, report.converted);
        let out = std::fs::read(lab.path("out")).unwrap();
        assert!(out == by_libllama(&lab.path("in"), &lab.path("theirs"), "q4_k_m"), "{}", named.name);
    }
}

/// Q1_0 has blocks of 128 and no type that libllama takes in its place.
#[test]
fn rows_without_a_type_to_fall_back_to_are_named() {
    let lab = Lab::new("llama-tiny", DType::F16, 3);
    let tiny = Shape::named("llama-tiny").unwrap();
    let shape = Shape { n_embd: 192, n_head: 3, n_head_kv: 1, ..tiny };
    random::write(&shape, DType::F16, 3, lab.path("in")).unwrap();
    let e = lab.run(&to("q1_0")).unwrap_err().to_string();
    assert!(
        e.contains("in.gguf") && e.contains(".weight: rows of 192 are not whole q1_0 blocks of 128"),
        "{e}"
    );
    assert_eq!(lab.files(), ["in.gguf"]);
}

#[test]
fn methods_that_llama_server_cannot_run_have_no_line() {
    let lab = Lab::new("llama-tiny", DType::F16, 3);
    let report = lab.run(&to("q8_0").rope(Some("harpe".parse().unwrap()))).unwrap();
    assert_eq!(report.llama_server, None);
    assert!(report.no_llama_server.unwrap().contains("differ from head to head"));
    // The scaling that a file declares also counts.
    std::fs::rename(lab.path("out"), lab.path("in")).unwrap();
    let report = lab.run(&to("q4_0")).unwrap();
    assert!(report.no_llama_server.unwrap().contains("differ from head to head"));
    assert!(report.notes.iter().any(|n| n.contains("already quantized")), "{:?}", report.notes);
}

#[test]
fn an_alignment_that_libllama_would_get_wrong_is_taken_out() {
    let lab = Lab::new("llama-tiny", DType::F16, 3);
    let file = File::open(&lab.path("in")).unwrap();
    let mut writer = gguf::Writer::with_metadata_of(&file);
    writer.set("general.alignment", 256u32);
    for t in file.tensors() {
        writer.copy_tensor(&file, t).unwrap();
    }
    writer.write(lab.path("aligned")).unwrap();
    lab.run(&to("q4_k_m")).unwrap();
    let expected = std::fs::read(lab.path("out")).unwrap();
    std::fs::rename(lab.path("aligned"), lab.path("in")).unwrap();
    lab.run(&to("q4_k_m")).unwrap();
    assert!(std::fs::read(lab.path("out")).unwrap() == expected);
}

#[test]
fn steps_that_fail_leave_the_old_file_or_the_new_one() {
    use files::faults::Step::{Create, Permissions, Rename, Sync, SyncFolder};
    let lab = Lab::new("llama-tiny", DType::F16, 3);
    let new = by_libllama(&lab.path("in"), &lab.path("theirs"), "q4_k_s");
    let write = || lab.run(&to("q4_k_s")).map(drop).map_err(|e| e.to_string());
    let before = [&new[..], &[0; 32]].concat();
    let steps = walk(&lab.path("out"), &before, |found| found == new, write);
    assert_eq!(steps, [Create, Permissions, Sync, Rename, SyncFolder]);
}

#[test]
fn a_stop_leaves_nothing() {
    let lab = Lab::new("llama-tiny", DType::F16, 3);
    for (rope, what) in [(None, "quantizing"), (Some("yarn".parse().unwrap()), "comparing")] {
        let stop = Stop::default();
        if what == "quantizing" {
            stop.request();
        }
        let show = |p: &Progress<'_>| {
            if p.what.to_string().starts_with(what) {
                stop.request();
            }
        };
        let control = Control::default().with_stop(&stop).with_progress(&show);
        let options = to("q4_k_m").rope(rope);
        let e = convert(lab.path("in"), lab.path("out"), &options, &control).unwrap_err();
        assert!(matches!(e, Error::Interrupted), "{e}");
        assert_eq!(lab.files(), ["in.gguf"]);
    }
}

#[test]
fn the_program_has_llama_quantizes_options() {
    let lab = Lab::new("llama-tiny", DType::F16, 3);
    let done = lab.program(&[
        "--type",
        "q4_k_s",
        "--tensor-type",
        "ffn_(up|gate)=q6_k",
        "--tensor-type",
        "output=q8_0",
        "--tensor-type",
        "token_embd=q5_0",
    ]);
    assert!(done.status.success(), "{}", stderr(&done));
    let said = stderr(&done);
    assert_eq!(said.matches("rmse").count(), 6, "the worst five and the mean: {said}");
    assert!(said.contains("16 tensors converted") && said.contains("llama-server -m "), "{said}");
    let file = File::open(&lab.path("out")).unwrap();
    for (name, dtype) in [
        ("blk.0.ffn_up", DType::Q6_K),
        ("blk.0.ffn_down", DType::Q4_K),
        ("output", DType::Q8_0),
        ("token_embd", DType::Q5_0),
    ] {
        assert_eq!(file.tensor(&format!("{name}.weight")).unwrap().dtype, dtype, "{name}");
    }
    let done = lab.program(&["--type", "q4_0", "--errors"]);
    assert!(stderr(&done).matches("rmse").count() > 16 && stderr(&done).contains("q4_0"));
    assert_eq!(File::open(&lab.path("out")).unwrap().tensor("output.weight").unwrap().dtype, DType::Q4_0);
    assert!(lab.program(&["--type", "llama:q4_0"]).status.success());
    assert_eq!(File::open(&lab.path("out")).unwrap().tensor("output.weight").unwrap().dtype, DType::Q6_K);
    assert!(lab.program(&["--type", "q4_k_m", "--tensor-type", "output=keep"]).status.success());
    assert_eq!(File::open(&lab.path("out")).unwrap().tensor("output.weight").unwrap().dtype, DType::F16);
    std::fs::remove_file(lab.path("out")).unwrap();

    for (args, code, part) in [
        (&["--type", "q4_k_x"][..], 2, "q4_k_m"),
        (&["--type", "q4_k", "--pure"], 2, "q4_k_s"),
        (&["--type", "f16", "--pure"], 2, "no mixture"),
        (&["--type", "llama:f16"], 2, "no mixture"),
        (&["--type", "q4_k_m", "--tensor-type", "token_embd=keep"], 2, "only output can be kept"),
        (&["--imatrix-from", "x"], 2, "`ropewalk convert` does"),
        (&["--pure"], 2, "--type"),
        (&["--type", "q4_k_m", "--tensor-type", "ffn=q9"], 2, "q9"),
        (&["--type", "q4_k_m", "--tensor-type", "ffn"], 2, "PATTERN=TYPE"),
        (&["--type", "q4_k_m", "--tensor-type", "(=q8_0"], 2, "unclosed group"),
        (&["--type", "q4_k_m", "--tensor-type", "brain=q8_0"], 1, "no matrix has a name"),
        (&["--type", "q4_k_m", "--imatrix", "/no/such/file"], 1, "/no/such/file"),
        (&["--type", "iq2_xxs"], 1, "importance matrix"),
    ] {
        let failed = lab.program(args);
        let said = stderr(&failed);
        assert_eq!(failed.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(part) && !said.contains("panicked"), "{args:?}: {said}");
        assert!(said.lines().count() == 1 || said.starts_with("error: "), "{args:?}: {said}");
        assert_eq!(lab.files(), ["in.gguf"], "{args:?}");
    }
    // A file that is cut short, and one of an architecture that libllama's quantizer is not used for.
    let whole = std::fs::read(lab.path("in")).unwrap();
    std::fs::write(lab.path("in"), &whole[..whole.len() / 2]).unwrap();
    let said = stderr(&lab.program(&["--type", "q4_k_m"]));
    assert!(said.lines().count() == 1 && said.contains("in.gguf"), "{said}");
    std::fs::remove_file(lab.path("in")).unwrap();
    let mut writer = gguf::Writer::new();
    writer.set("general.architecture", "whisper");
    writer.write(lab.path("in")).unwrap();
    let said = stderr(&lab.program(&["--type", "q4_k_m"]));
    assert!(said.lines().count() == 1 && said.contains("whisper"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    /// Libllama aborts on nothing that our checks let through.
    #[test]
    fn damaged_models_are_errors_or_models(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        shape in 0..SHAPES.iter().filter(|s| s.name.contains("tiny")).count(),
    ) {
        let lab = Lab(tempfile::tempdir().unwrap());
        let named = SHAPES.iter().filter(|s| s.name.contains("tiny")).nth(shape).unwrap();
        let shape = Shape { n_layer: 1, n_vocab: 259, ..Shape::named(named.name).unwrap() };
        random::write(&shape, DType::F16, 3, lab.path("in")).unwrap();
        let mut bytes = std::fs::read(lab.path("in")).unwrap();
        let header = File::open(&lab.path("in")).unwrap().tensors().iter().map(|t| t.offset).min().unwrap();
        for (at, value) in flips {
            bytes[at.index(header)] = value;
        }
        std::fs::write(lab.path("in"), bytes).unwrap();
        match lab.run(&to("q4_0")) {
            Ok(_) => drop(File::open(&lab.path("out")).unwrap()),
            Err(e) => prop_assert!(!e.to_string().contains('\n'), "{e}"),
        }
    }
}
