//! Memory that cannot be had is an error of the readers: each large request is refused once.

use std::path::{Path, PathBuf};

use convert::peft::{from_peft, to_peft};
use convert::random::{self, Shape};
use convert::Options;
use files::scarce::{starve, Scarce};
use gguf::{DType, File, Writer};
use ropewalk_core::adapter::{write, AdapterFile, AdapterMeta, AdapterReader, AdapterSpec, NewPair};
use ropewalk_core::control::Control;
use ropewalk_import::Safetensors;

#[global_allocator]
static ALLOCATOR: Scarce = Scarce;

/// Requests above so many bytes are refused: more than buffers take.
const LARGE: usize = 1 << 17;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/peft/llama").join(name)
}

/// Writes an adapter of one pair, of rank 2.
fn write_pair(path: &Path, pair: NewPair<'_>) {
    let (pairs, meta) = (vec![pair], AdapterMeta::default());
    let modules_to_save = Vec::new();
    let file =
        AdapterFile { arch: "llama", rank: 2, alpha: 2.0, pairs, modules_to_save, meta, dtype: DType::F32 };
    write(path, &file).unwrap();
}

/// One test, for the allocator is of the whole process.
#[test]
fn requests_of_readers_may_fail() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);

    let n = 100_000usize;
    let header = format!(r#"{{"x.weight":{{"dtype":"F32","shape":[{n}],"data_offsets":[0,{}]}}}}"#, 4 * n);
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; 4 * n]].concat();
    std::fs::write(at("x.safetensors"), bytes).unwrap();
    let tensors = Safetensors::open(&at("x.safetensors")).unwrap();
    let errors = starve(LARGE, || tensors.values(&tensors.tensors()[0]));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].ends_with("x.safetensors: x.weight: cannot allocate 400000 bytes"), "{errors:?}");

    // A long header, which is copied before it is read.
    let header = format!(r#"{{"__metadata__":{{}},{}"x":0}}"#, " ".repeat(300_000));
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    std::fs::write(at("long.safetensors"), bytes).unwrap();
    let long = || match Safetensors::open(&at("long.safetensors")) {
        Err(e) if e.to_string().contains("expected an object") => Ok(()),
        other => Err(other.err().map_or("accepted".into(), |e| e.to_string())),
    };
    let errors = starve(LARGE, long);
    assert!(
        errors.len() == 1 && errors[0].contains("long.safetensors: header: cannot allocate"),
        "{errors:?}"
    );

    // A pair of an adapter, of a model with a wide map.
    let wide = 40_000usize;
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    let values = vec![0u8; 4 * 8 * wide];
    writer.tensor_bytes("blk.0.ffn_down.weight", DType::F32, &[wide as u64, 8], values).unwrap();
    writer.write(at("base.gguf")).unwrap();
    let (a, b) = (vec![0.5f32; 2 * wide], vec![0.25f32; 2 * 8]);
    let pair = NewPair { weight: "blk.0.ffn_down.weight".into(), n_in: wide, n_out: 8, a: &a, b: &b };
    write_pair(&at("a.gguf"), pair);
    let base = File::open(&at("base.gguf")).unwrap();
    let read = || -> gguf::Result<()> {
        let reader = AdapterReader::open(at("a.gguf"))?;
        reader.check(&base, "", true)?;
        reader.values(&reader.pairs()[0].name_a(), |file, info| file.floats(info)).map(drop)
    };
    let errors = starve(LARGE, read);
    assert!(errors.len() == 1 && errors[0].contains("cannot allocate 320000 bytes"), "{errors:?}");
    assert!(errors[0].contains("blk.0.ffn_down.weight.lora_a") && errors[0].contains("a.gguf"), "{errors:?}");

    // The configuration of a PEFT folder, which is padded.
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(fixture(name), at(name)).unwrap();
    }
    let mut config = std::fs::read(at("adapter_config.json")).unwrap();
    config.extend(vec![b' '; 400_000]);
    std::fs::write(at("adapter_config.json"), config).unwrap();
    let errors =
        starve(LARGE, || from_peft(dir.path(), fixture("base.gguf"), at("out.gguf"), &Control::default()));
    assert!(!errors.is_empty());
    assert!(errors.iter().all(|e| e.contains("adapter_config.json") && !e.contains('\n')), "{errors:?}");
    jobs_may_fail(dir.path());
}

/// Whole conversions of a model whose rows are larger than what is granted: another type, a merged adapter; and the adapter as a
/// PEFT folder. An error leaves no file.
fn jobs_may_fail(dir: &Path) {
    let (wide, large) = (20_480, 1 << 16);
    let at = |name: &str| dir.join(name);
    let tiny = Shape::named("llama-tiny").unwrap();
    let (n_embd, n_head, n_head_kv, n_vocab) = (32, 2, 2, 259);
    let shape = Shape { n_layer: 1, n_embd, n_head, n_head_kv, n_ff: wide, n_vocab, ..tiny };
    random::write(&shape, DType::F16, 3, at("wide.gguf")).unwrap();
    let (a, b) = (vec![0.5f32; 2 * wide], vec![0.25f32; 2 * shape.n_embd]);
    let weight = "blk.0.ffn_down.weight".to_owned();
    let pair = NewPair { weight, n_in: wide, n_out: shape.n_embd, a: &a, b: &b };
    write_pair(&at("wide-a.gguf"), pair);
    let merged = || vec![AdapterSpec::new(at("wide-a.gguf"), 1.0)];
    let jobs = [
        ("requantized", Options::default().dtype(Some(DType::Q8_0))),
        ("merged", Options::default().adapters(merged())),
        ("both", Options::default().adapters(merged()).dtype(Some(DType::Q8_0))),
    ];
    let whole = |what: &str, errors: &[String], left: &Path| {
        // Values are requantized a run at a time, however long the rows are.
        assert_eq!(errors.is_empty(), what == "requantized", "{what}: {errors:?}");
        let plain = |e: &String| e.contains("cannot allocate") && !e.contains('\n');
        assert!(errors.iter().all(plain), "{what}: {errors:?}");
        assert!(left.exists(), "{what}: the last one succeeds");
    };
    for (what, options) in jobs {
        let out = at(&format!("{what}.gguf"));
        let errors = starve(large, || {
            let done = convert::convert(at("wide.gguf"), &out, &options, &Control::default());
            assert_eq!(done.is_ok(), out.exists(), "{what}");
            done
        });
        whole(what, &errors, &out);
    }
    let folder = at("peft");
    let errors =
        starve(large, || to_peft(at("wide-a.gguf"), at("wide.gguf"), &folder, None, &Control::default()));
    whole("exported", &errors, &folder.join("adapter_config.json"));
    std::fs::remove_file(at("both.gguf")).unwrap();
    let errors = starve(large, || from_peft(&folder, at("wide.gguf"), at("both.gguf"), &Control::default()));
    whole("imported", &errors, &at("both.gguf"));
}
