//! Conversions of models: of their methods and types, and by libllama's quantizer, which aborts on much: what our checks
//! let through is quantized.

use std::path::Path;

use convert::{convert, Mixture, Options};
use ropewalk::control::Control;
use ropewalk::gguf::File;
use ropewalk::hparams::Hparams;
use ropewalk::DType;

use crate::{accepted, file, model_bytes, scratch, small};

/// Converts the model to other methods and types, then to a mixture.
pub fn run(bytes: &[u8]) -> bool {
    let (input, output) = (file("in.gguf", bytes), scratch("quantized.gguf"));
    if let Ok(file) = File::open(&input) {
        numbers_agree(&file);
    }
    let of = |spec: &str| Options::default().rope(Some(spec.parse().unwrap())).n_ctx(Some(2048)).force(true);
    for options in [of("sba").llama_cpp(true), of("harpe:bases=1e5").dtype(Some(DType::Q8_0))] {
        converted(&input, &output, &options);
    }
    let mixture = Mixture::default().name("iq4_nl".into());
    converted(&input, &output, &Options::default().mixture(Some(mixture)).force(true))
}

/// Returns true if the model can be converted. Then the result opens.
fn converted(input: &Path, output: &Path, options: &Options) -> bool {
    let done = accepted(convert(input, output, options, &Control::default()));
    if done {
        drop(File::open(output).unwrap());
    }
    done
}

/// Of what is read, heads and their rotation agree with each other.
fn numbers_agree(file: &File) {
    for hp in [Hparams::from_gguf(file), Hparams::as_trained(file)].into_iter().flatten() {
        assert!(hp.norm_eps > 0.0);
        for kind in &hp.attention {
            assert!(kind.n_head.is_multiple_of(kind.n_head_kv));
            let sound = |n_rot: usize, base: f64| (2..=kind.n_embd_head).contains(&n_rot) && base > 0.0;
            assert!(kind.rotation.is_none_or(|rotation| sound(rotation.n_rot, rotation.freq_base)));
        }
    }
}

/// A small model of each architecture, and one that declares a method.
pub fn seeds() -> Vec<Vec<u8>> {
    let shapes = ["llama-tiny", "qwen2-tiny"];
    let mut seeds: Vec<Vec<u8>> = shapes.map(|name| model_bytes(&small(name), DType::F16)).into();
    let (plain, declares) = (file("plain.gguf", &seeds[0]), scratch("declares.gguf"));
    let yarn = Options::default().rope(Some("yarn:factor=4".parse().unwrap())).force(true);
    convert(plain, &declares, &yarn, &Control::default()).unwrap();
    seeds.push(std::fs::read(declares).unwrap());
    seeds
}
