//! `ropewalk convert --imatrix-from`: the file it writes, what a rope method changes in it, what the quantizer makes of it, what is refused.

use std::path::{Path, PathBuf};

use convert::{convert, Mixture, Options};
use gguf::File;
use llama::quantize::Imatrix;
use ropewalk::control::Control;

use crate::common::program::{run, Output};
use crate::models::{model, ok, text_file};

struct Lab(tempfile::TempDir);

impl Lab {
    fn new() -> Lab {
        let lab = Lab(tempfile::tempdir().unwrap());
        text_file(lab.0.path(), "text.txt", 400);
        lab
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn run(&self, to: &str, more: &[&str]) -> Output {
        let (text, to) = (self.path("text.txt"), self.path(to));
        let files = ["--imatrix-from", text.to_str().unwrap(), "-o", to.to_str().unwrap()];
        let args = ["convert", model(), "--device", "cpu", "-t", "1", "--ctx", "200"];
        run(&[&args[..], &files, more].concat())
    }
    /// The model in this mixture.
    fn quantised(&self, imatrix: Option<&str>) -> Vec<u8> {
        let imatrix = imatrix.map(|name| self.path(name));
        let mixture = Mixture::default().name("q4_k_m".into()).imatrix(imatrix);
        let options = Options::default().mixture(Some(mixture));
        let to = self.path("quantised.gguf");
        convert(Path::new(model()), &to, &options, &Control::default()).unwrap();
        let file = File::open(&to).unwrap();
        file.tensors()
            .iter()
            .filter(|t| t.shape.len() > 1)
            .flat_map(|t| file.data(t).to_vec().unwrap())
            .collect()
    }
}

fn floats(file: &File, name: &str) -> Vec<f32> {
    file.floats(file.tensor(name).unwrap_or_else(|| panic!("{name}"))).unwrap()
}

#[test]
fn the_file_is_llama_cpps_and_weighs_the_quantiser() {
    let lab = Lab::new();
    let report = ok(lab.run("plain.gguf", &["--json", "--max-windows", "3", "--rope", "plain"])).json();
    assert_eq!(
        (&report["windows"], &report["tokens"], &report["rope"]),
        (&3.into(), &600.into(), &"plain".into())
    );
    let out = ok(lab.run("yarn.gguf", &["--chunks", "3", "--rope", "yarn:factor=4"])).stderr;
    assert!(out.contains("rope yarn:factor=4") && out.contains("600 tokens in 3 of"), "{out}");

    let [plain, yarn] = ["plain.gguf", "yarn.gguf"].map(|name| File::open(&lab.path(name)).unwrap());
    assert_eq!(plain.get::<String>("general.type").unwrap(), "imatrix");
    assert_eq!(
        plain.get::<Vec<String>>("imatrix.datasets").unwrap(),
        [lab.path("text.txt").to_str().unwrap()]
    );
    assert_eq!(plain.get::<u32>("imatrix.chunk_count").unwrap(), 3);
    assert_eq!(plain.get::<u32>("imatrix.chunk_size").unwrap(), 200);
    assert_eq!(plain.get::<String>("ropewalk.imatrix.rope").unwrap(), "plain");
    assert!(yarn.get::<String>("ropewalk.imatrix.rope").unwrap().starts_with("yarn:factor=4"));
    let matrices: Vec<_> = File::open(Path::new(model())).unwrap().tensors().to_vec();
    let matrices: Vec<_> =
        matrices.into_iter().filter(|t| t.name.starts_with("blk.") && t.shape.len() == 2).collect();
    assert!(matrices.len() > 10);
    for t in &matrices {
        let sums = plain.tensor(&format!("{}.in_sum2", t.name)).unwrap();
        assert_eq!(sums.shape, [t.shape[0], 1], "{}", t.name);
        assert_eq!(plain.tensor(&format!("{}.counts", t.name)).unwrap().shape, [1, 1]);
        assert_eq!(floats(&plain, &format!("{}.counts", t.name)), [600.0]);
        assert!(floats(&plain, &format!("{}.in_sum2", t.name)).iter().all(|&x| x > 0.0), "{}", t.name);
    }
    assert_eq!(report["matrices"], plain.tensors().len() / 2);
    // What the first layer's attention reads has not met a rotation yet.
    let of = |file: &File, name: &str| floats(file, &format!("blk.0.{name}.weight.in_sum2"));
    assert_eq!(of(&plain, "attn_q"), of(&plain, "attn_v"));
    assert_eq!(of(&plain, "attn_q"), of(&yarn, "attn_q"));
    assert_ne!(of(&plain, "attn_output"), of(&yarn, "attn_output"));

    let read = Imatrix::open(&lab.path("plain.gguf")).unwrap();
    let (name, means) = read.entries().iter().find(|(name, _)| name == "blk.0.attn_q.weight").unwrap();
    let sums = floats(&plain, &format!("{name}.in_sum2"));
    assert!(means.iter().zip(sums).all(|(mean, sum)| (mean * 600.0 - sum).abs() <= 1e-5 * sum));
    let [without, with, other] =
        [None, Some("plain.gguf"), Some("yarn.gguf")].map(|name| lab.quantised(name));
    assert!(without.len() == with.len() && without != with && with != other);
}

/// In one call, under the method that is written.
#[test]
fn a_model_is_quantised_by_what_it_reads_in_a_text() {
    let lab = Lab::new();
    let rope = ["--rope", "yarn:factor=4", "--max-windows", "3"];
    ok(lab.run("yarn.gguf", &rope));
    let report = ok(lab.run("one.gguf", &[&rope[..], &["--type", "q4_k_m", "--json"]].concat())).json();
    assert_eq!((&report["imatrix"]["tokens"], &report["type"]), (&600.into(), &"q4_k_m".into()));
    let read = |name: &str| std::fs::read(lab.path(name)).unwrap();
    assert!(read("one.imatrix.gguf") == read("yarn.gguf"));
    // Another ending than .gguf belongs to the name.
    ok(lab.run("tiny-0.7b", &[&rope[..], &["--type", "q4_k_m"]].concat()));
    assert!(read("tiny-0.7b.imatrix.gguf") == read("yarn.gguf"));
    // The name of the matrix is in the file.
    std::fs::rename(lab.path("one.gguf"), lab.path("both.gguf")).unwrap();
    let of = lab.path("one.imatrix.gguf");
    let (to, of) = (lab.path("one.gguf"), of.to_str().unwrap());
    let args = ["convert", model(), "--rope", "yarn:factor=4", "--ctx", "200", "--type", "q4_k_m"];
    ok(run(&[&args[..], &["--imatrix", of, "-o", to.to_str().unwrap()]].concat()));
    assert!(read("one.gguf") == read("both.gguf"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let lab = Lab::new();
    for (to, more, code, holds) in [
        ("text.txt", &[][..], 2, "apart from the files to read"),
        (".", &[], 2, "expected a file, found a folder"),
        ("no/such/folder.gguf", &[], 1, "no/such"),
        ("out.gguf", &["--max-windows", "0"], 2, "at least 1"),
        ("out.gguf", &["--type", "q4_k"], 2, "no mixture of this name"),
        ("out.gguf", &["--llama-cpp"], 2, "without --type it writes a matrix"),
        ("out.gguf", &["--imatrix", "x"], 2, "cannot be used with"),
        ("out.gguf", &["--rope", "nothing"], 2, "nothing"),
    ] {
        let out = lab.run(to, more);
        let one_line = out.stderr.lines().count() == 1 || code == 2;
        assert!(
            out.code == code && out.stderr.contains(holds) && one_line && out.stdout.is_empty(),
            "{to} {more:?}: {out:?}"
        );
    }
    std::fs::write(lab.path("text.txt"), "short").unwrap();
    // Empty, so that an output may take its place.
    std::fs::write(lab.path("out.gguf"), "").unwrap();
    let out = lab.run("out.gguf", &[]);
    assert!(out.code == 1 && out.stderr.contains("at least the 200 tokens of a window, found"), "{out:?}");
    assert_eq!(std::fs::read(lab.path("out.gguf")).unwrap(), b"");
    let out = run(&["convert", model(), "-t", "1", "-o", lab.path("x").to_str().unwrap()]);
    assert!(out.code == 2 && out.stderr.contains("--imatrix-from"), "{out:?}");
    let files = std::fs::read_dir(lab.0.path()).unwrap().count();
    assert_eq!(files, 2, "a temporary file is left");
}
