//! Files that declare a scaling: what a conversion writes over it, keeps of it and leaves to other programs.

use std::path::{Path, PathBuf};

use convert::random::{self, Shape};
use convert::{convert, Options, Report};
use ggml::DType;
use gguf::{File, Value};
use ropewalk_core::control::Control;
use ropewalk_core::hparams::{keys, Hparams};
use ropewalk_core::rope::{Axis, Plan, Spec, METHODS};

type Keys = Vec<(&'static str, Value)>;

fn scaling(kind: &str, factor: Option<f32>, original: Option<u32>) -> Keys {
    let kind = ("rope.scaling.type", Value::String(kind.as_bytes().to_vec()));
    let factor = factor.map(|f| ("rope.scaling.factor", Value::F32(f)));
    let original = original.map(|n| ("rope.scaling.original_context_length", Value::U32(n)));
    [kind].into_iter().chain(factor).chain(original).collect()
}

/// llama-tiny, whose context is of 512 tokens, under each scaling that a file can declare.
fn files() -> Vec<(&'static str, Keys)> {
    vec![
        ("linear", scaling("linear", Some(4.0), None)),
        ("linear with its window", scaling("linear", Some(4.0), Some(128))),
        ("yarn", scaling("yarn", Some(4.0), Some(128))),
        ("yarn without its window", scaling("yarn", Some(4.0), None)),
        ("longrope", scaling("longrope", None, Some(128))),
    ]
}

struct Lab(tempfile::TempDir);

impl Lab {
    fn new(keys: &[(&'static str, Value)]) -> Lab {
        let lab = Lab(tempfile::tempdir().unwrap());
        let factors = |step: f32| (0..32).map(|j| 1.0 + step * j as f32).collect();
        let longrope = Some([factors(0.5), factors(0.01)]);
        let shape = Shape { keys: keys.to_vec(), longrope, ..Shape::named("llama-tiny").unwrap() };
        random::write(&shape, DType::Q8_0, 1, lab.path("in")).unwrap();
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(format!("{name}.gguf"))
    }

    fn convert(&self, from: &str, to: &str, spec: &str, n_ctx: Option<usize>) -> Report {
        let options = Options::default().rope(Some(spec.parse().unwrap())).n_ctx(n_ctx);
        convert(self.path(from), self.path(to), &options, &Control::default())
            .unwrap_or_else(|e| panic!("{spec}: {e}"))
    }
}

fn hp(path: &Path) -> Hparams {
    Hparams::from_gguf(&File::open(path).unwrap()).unwrap()
}

fn plan(spec: &str, hp: &Hparams, n_ctx: usize) -> Plan {
    Plan::new(&spec.parse().unwrap(), hp, n_ctx).unwrap_or_else(|e| panic!("{spec}: {e}"))
}

fn scaling_keys(path: &Path) -> Vec<(String, Value)> {
    let file = File::open(path).unwrap();
    file.metadata().iter().filter(|(k, _)| k.starts_with("llama.rope.scaling.")).cloned().collect()
}

/// Every method, written into every file, opens as a session of the file under it: at the context of the conversion, and
/// where it also keeps what the file declares at other lengths.
#[test]
fn what_is_written_is_what_a_session_computes() {
    for (about, keys) in files() {
        let lab = Lab::new(&keys);
        let before = hp(&lab.path("in"));
        for method in METHODS {
            let report = lab.convert("in", "out", method.name, Some(1024));
            let (file, after) = (File::open(&lab.path("out")).unwrap(), hp(&lab.path("out")));
            let expected = plan(method.name, &before, 1024);
            let found = plan("declared", &after, 1024);
            assert!(
                found.same_positions(&expected),
                "{about}: {}: {} {}",
                method.name,
                found.spec,
                expected.spec
            );
            assert_eq!(Hparams::as_trained(&file).unwrap(), before, "{about}: {}", method.name);
            let own = Spec::declared(&before).unwrap();
            let note = if method.axis == Axis::Reach { "keeps it" } else { "replaces it" };
            let same = expected.same_positions(&plan("declared", &before, 1024));
            let told = report
                .notes
                .iter()
                .any(|n| n.starts_with(&format!("The file declares {own}")) && n.contains(note));
            assert!(told || same, "{about}: {}: {:?}", method.name, report.notes);
            if method.axis == Axis::Reach {
                for n_ctx in [64, 128, 512] {
                    let at = plan("declared", &after, n_ctx);
                    let kept = plan("declared", &before, n_ctx);
                    assert_eq!(at.layer(0).freqs, kept.layer(0).freqs, "{about}: {} at {n_ctx}", method.name);
                    assert_eq!(
                        at.layer(0).mscale,
                        kept.layer(0).mscale,
                        "{about}: {} at {n_ctx}",
                        method.name
                    );
                }
                // Other programs have the model as it ships.
                let written = scaling_keys(&lab.path("out"));
                let shipped = scaling_keys(&lab.path("in"));
                assert!(shipped.iter().all(|key| written.contains(key)), "{about}: {written:?}");
                let counts = written.iter().any(|(k, _)| k.ends_with("original_context_length"));
                assert_eq!(counts, about != "linear", "{about}: {written:?}");
                // A reach over it, and the model back.
                lab.convert("out", "again", "rerope", Some(1024));
                let again = plan("declared", &hp(&lab.path("again")), 1024);
                assert!(again.same_positions(&plan("rerope", &after, 1024)), "{about}: {}", again.spec);
                assert_eq!(again.layer(0).freqs, expected.layer(0).freqs, "{about}");
            }
            lab.convert("out", "back", "plain", None);
            assert_eq!(Hparams::as_trained(&File::open(&lab.path("back")).unwrap()).unwrap(), before);
        }
    }
}

#[test]
fn frequencies_that_no_key_says_leave_other_programs_the_declared_ones() {
    let lab = Lab::new(&scaling("yarn", Some(4.0), Some(128)));
    // llama.cpp refuses tensors of longrope under another type.
    let keys = scaling("yarn", Some(4.0), Some(128));
    let shape = Shape { keys, ..Shape::named("llama-tiny").unwrap() };
    random::write(&shape, DType::Q8_0, 1, lab.path("in")).unwrap();
    lab.convert("in", "out", "harpe", Some(1024));
    assert_eq!(scaling_keys(&lab.path("out")), scaling_keys(&lab.path("in")));
    // Those that keys say take their place.
    lab.convert("out", "then", "ntk", Some(1024));
    assert!(scaling_keys(&lab.path("then")).is_empty());
}

#[test]
fn contexts_by_default_count_from_the_window_without_scaling() {
    for (about, keys) in files() {
        let lab = Lab::new(&keys);
        for (spec, n_ctx) in [
            ("self-extend", 512),
            ("yarn", 512),
            ("plain", 512),
            ("declared", 512),
            ("pi:factor=8", 1024),
            ("pi:factor=3,original=256", 768),
        ] {
            // YaRN counts from the context of a file that names no window, as in llama.cpp.
            let whole = about == "yarn without its window";
            let n_ctx = match spec {
                "self-extend" | "yarn" if whole => 2048,
                "pi:factor=8" if whole => 4096,
                _ => n_ctx,
            };
            let report = lab.convert("in", "out", spec, None).rope.unwrap();
            assert_eq!(report.n_ctx, n_ctx, "{about}: {spec}");
        }
        let own = plan("declared", &hp(&lab.path("in")), 512);
        lab.convert("in", "out", "declared", None);
        let file = File::open(&lab.path("out")).unwrap();
        assert!(plan("declared", &hp(&lab.path("out")), 512).same_positions(&own), "{about}");
        assert!(file.get::<String>(keys::SPEC).unwrap() != "declared", "{about}");
    }
}
