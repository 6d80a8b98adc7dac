//! Saved sessions: restored ones go on as if never stopped, everything else is refused.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use ropewalk::model::Model;
use ropewalk::session::{is_session_file, GenerateParams, Session, SessionParams};
use ropewalk::{DType, Token};
use sha2::{Digest, Sha256};

use super::{batch_of, model, open, score, with_kv, KV, SHAPES};
use crate::common::{default_model, load, params, random_model, some_tokens};

fn file(name: &str) -> PathBuf {
    crate::common::scratch(&format!("state-{name}.session"))
}

fn greedy(s: &mut Session<'_>, prompt: &[Token], n: usize) -> Vec<Token> {
    let p = GenerateParams { ignore_eos: true, ..GenerateParams::greedy(n) };
    s.generate(prompt, &p).unwrap().filter_map(|piece| piece.unwrap().token).collect()
}

/// Generates 40 tokens, saving after 15; sessions restored from there make the same ones.
fn goes_on(m: &Model, p: &SessionParams, prompt: &[Token], name: &str) {
    let path = file(name);
    let mut s = open(m, p);
    let first = greedy(&mut s, prompt, 15);
    s.save(&path).unwrap();
    assert!(is_session_file(&path));
    let held = s.tokens(0).to_vec();
    let so_far = [prompt, &first].concat();
    let rest = greedy(&mut s, &so_far, 25);

    for n_ctx in [p.n_ctx, p.n_ctx * 2] {
        let mut t = open(m, &SessionParams { n_ctx, ..p.clone() });
        t.restore(&path).unwrap();
        assert_eq!(t.tokens(0), held, "{name}");
        assert_eq!(greedy(&mut t, &so_far, 25), rest, "{name} into ctx {n_ctx}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn restored_sessions_go_on_as_if_never_stopped() {
    for shape in SHAPES {
        for (kv, _) in KV {
            for rope in ["plain", "yarn:factor=2,original=512", "harpe:bases=20000/900000"] {
                let p = SessionParams { rope: Some(rope.parse().unwrap()), ..with_kv(300, kv) };
                let name = format!("{shape}-{kv}-{}", &rope[..4]);
                goes_on(model(shape, DType::Q4_0), &p, &some_tokens(150, 256), &name);
            }
        }
    }
    let m = load(&default_model());
    let prompt = m.vocab().tokenize("The longest rope ever walked was", false, false).unwrap();
    goes_on(&m, &params(128), &prompt, "default");
}

/// Shared cells, freed cells in between, several sequences: bit for bit what it was.
#[test]
fn all_sequences_come_back() {
    let m = model("llama-tiny", DType::F32);
    let tokens = some_tokens(300, m.hparams().n_vocab);
    let path = file("sequences");
    let mut s = open(m, &params(400));
    s.append(&tokens[..100]).unwrap();
    s.copy_seq(0, 1).unwrap();
    s.decode(&batch_of(1, &tokens[100..160])).unwrap();
    s.decode(&batch_of(63, &tokens[160..200])).unwrap();
    s.truncate(0, 90).unwrap();
    s.truncate(1, 130).unwrap();
    s.save(&path).unwrap();
    let mut t = open(m, &params(400));
    t.append(&tokens[7..33]).unwrap();
    t.restore(&path).unwrap();
    for seq in 0..64 {
        assert_eq!(s.tokens(seq), t.tokens(seq));
    }
    for seq in [1, 63, 5] {
        let rows = |s: &mut Session<'_>| {
            let rows = s.decode(&batch_of(seq, &tokens[200..230])).unwrap();
            (0..30).flat_map(|i| rows.row(i).to_vec()).collect::<Vec<f32>>()
        };
        assert_eq!(rows(&mut s), rows(&mut t), "sequence {seq}");
    }
    assert_eq!(score(&mut s, &tokens[230..]), score(&mut t, &tokens[230..]));
    let empty = open(m, &params(64));
    empty.save(&path).unwrap();
    t.restore(&path).unwrap();
    assert!((0..64).all(|seq| t.tokens(seq).is_empty()));
    std::fs::remove_file(path).unwrap();
}

/// A saved session of 40 tokens.
fn saved(m: &Model, p: &SessionParams, path: &Path) -> Vec<u8> {
    let mut s = open(m, p);
    s.append(&some_tokens(40, 256)).unwrap();
    s.save(path).unwrap();
    std::fs::read(path).unwrap()
}

/// Restoring fails with a line that names the file and `holds`, and the session is untouched.
#[track_caller]
fn refused(m: &Model, p: &SessionParams, path: &Path, holds: &str) {
    let tokens = some_tokens(35, 256);
    let (mut s, mut control) = (open(m, p), open(m, p));
    s.append(&tokens[..20]).unwrap();
    control.append(&tokens[..20]).unwrap();
    let e = s.restore(path).unwrap_err().to_string();
    assert!(
        e.contains(&path.display().to_string()) && e.contains(holds) && !e.contains('\n'),
        "{holds}: {e}"
    );
    assert_eq!(s.tokens(0), &tokens[..20]);
    assert_eq!(s.append(&tokens[20..]).unwrap(), control.append(&tokens[20..]).unwrap());
}

#[test]
fn other_settings_are_refused() {
    let m = model("llama-tiny", DType::F32);
    let (p, path) = (params(64), file("other"));
    let bytes = saved(m, &p, &path);
    refused(model("qwen2-tiny", DType::F32), &p, &path, "model: expected");
    refused(model("llama-tiny", DType::Q4_0), &p, &path, "model: expected");
    let other = crate::common::scratch("state-other-seed.gguf");
    let shape = convert::random::Shape::named("llama-tiny").unwrap();
    convert::random::write(&shape, DType::F32, 8, &other).unwrap();
    refused(&load(&other), &p, &path, "model: expected");
    for rope in ["pi:factor=2", "yarn:factor=2", "harpe:bases=1e4/1e4", "abf:base=2e4"] {
        refused(
            m,
            &SessionParams { rope: Some(rope.parse().unwrap()), ..p.clone() },
            &path,
            "rope: expected",
        );
    }
    for kv in [DType::F32, DType::Q8_0, DType::Q4_0] {
        refused(m, &with_kv(64, kv), &path, "kv type: expected");
    }
    refused(m, &params(39), &path, "ctx: expected at least 40, found 39");
    refused(m, &p, Path::new("no-such-folder/x.session"), "No such file");
    refused(m, &p, path.parent().unwrap(), "not a saved session");
    for n in [0, 7, 15, 16, 47, 48, 200, bytes.len() - 4000, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..n]).unwrap();
        refused(m, &p, &path, "");
    }
    std::fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
    refused(m, &p, &path, "cache: expected");
    // The same model in another file is the same model.
    std::fs::write(&path, &bytes).unwrap();
    open(&load(&random_model("llama-tiny", DType::F32, "state-copy")), &p).restore(&path).unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let m = model("llama-tiny", DType::F32);
    let s = open(m, &params(8));
    let e = s.save(Path::new("no-such-folder/x.session")).unwrap_err().to_string();
    assert!(e.contains("no-such-folder"), "{e}");
}

/// Header text and the rest of a session file.
fn parts(bytes: &[u8]) -> (String, &[u8]) {
    let n = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    (String::from_utf8(bytes[16..16 + n].to_vec()).unwrap(), &bytes[16 + n..bytes.len() - 32])
}

/// A session file of this header, with lengths and digest that agree with it.
fn sealed(header: &[u8], cache: &[u8]) -> Vec<u8> {
    let mut bytes = b"ropewlk2".to_vec();
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    bytes.extend(cache);
    let digest = Sha256::digest(&bytes);
    bytes.extend(digest);
    bytes
}

/// Headers that lie, in files whose digest agrees with them.
#[test]
fn headers_that_contradict_themselves_are_refused() {
    let m = model("llama-tiny", DType::F32);
    let (p, path) = (params(64), file("lies"));
    let bytes = saved(m, &p, &path);
    let (header, cache) = parts(&bytes);
    assert_eq!(sealed(header.as_bytes(), cache), bytes);
    let json = |f: &dyn Fn(&mut serde_json::Value)| {
        let mut value: serde_json::Value = serde_json::from_str(&header).unwrap();
        f(&mut value);
        value.to_string()
    };
    for (what, header) in [
        ("tokens: expected", json(&|h| h["tokens"][0][3] = 320.into())),
        ("tokens: expected", json(&|h| h["tokens"][0][3] = (-1).into())),
        ("tokens: expected", json(&|h| h["tokens"] = serde_json::json!([[1]]))),
        ("cells: sequence 0", json(&|h| h["cells"][5] = serde_json::json!([0, 1]))),
        ("cells: sequence 0", json(&|h| h["cells"][5] = serde_json::json!([-5, 1]))),
        ("cells: sequence 0", json(&|h| h["cells"][5] = serde_json::json!([5, 0]))),
        ("cells: sequence 63", json(&|h| h["cells"][5] = serde_json::json!([5, 1u64 << 63 | 1]))),
        ("cell bytes", json(&|h| h["cell_bytes"] = 0.into())),
        ("cache: expected", json(&|h| h["cells"] = serde_json::json!([]))),
        ("header", json(&|h| h["cells"] = serde_json::json!("many"))),
        ("header", "[".repeat(10_000)),
        ("header", String::new()),
    ] {
        std::fs::write(&path, sealed(header.as_bytes(), cache)).unwrap();
        refused(m, &p, &path, what);
    }
    std::fs::remove_file(path).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any damage is noticed: the digest covers every byte.
    #[test]
    fn damaged_files_are_refused(at in any::<prop::sample::Index>(), early in any::<bool>(), by in 1u8.., cut in any::<bool>()) {
        let (m, p) = (model("llama-tiny", DType::F32), params(64));
        let (good, path) = (file("damage-good"), file("damage"));
        let mut bytes = std::fs::read(&good).unwrap_or_else(|_| saved(m, &p, &good));
        let at = at.index(if early { 2000 } else { bytes.len() });
        match cut {
            true => bytes.truncate(at),
            false => bytes[at] ^= by,
        }
        std::fs::write(&path, &bytes).unwrap();
        let mut s = open(m, &p);
        s.append(&[1, 2, 3]).unwrap();
        prop_assert!(s.restore(&path).is_err());
        prop_assert_eq!(s.tokens(0), &[1, 2, 3]);
        s.append(&[4]).unwrap();
    }

    /// A damaged header under a digest that agrees: refused, or a session that holds what the header says and works.
    #[test]
    fn damaged_headers_do_no_harm(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..4)) {
        let (m, p) = (model("llama-tiny", DType::F32), params(64));
        let (good, path) = (file("header-good"), file("header"));
        let bytes = std::fs::read(&good).unwrap_or_else(|_| saved(m, &p, &good));
        let (header, cache) = parts(&bytes);
        let mut header = header.into_bytes();
        for (at, byte, how) in edits {
            let at = at.index(header.len());
            match how {
                0 => header[at] = byte,
                1 => header[at] = b"0123456789-,[]"[usize::from(byte) % 14],
                _ => header.insert(at, b"0123456789-,[]"[usize::from(byte) % 14]),
            }
        }
        std::fs::write(&path, sealed(&header, cache)).unwrap();
        let mut s = open(m, &p);
        s.append(&[1, 2, 3]).unwrap();
        match s.restore(&path) {
            Err(_) => prop_assert_eq!(s.tokens(0), &[1, 2, 3]),
            Ok(()) => {
                let says: serde_json::Value = serde_json::from_slice(&header).unwrap();
                prop_assert_eq!(serde_json::json!(s.tokens(0)), says["tokens"][0].clone());
            }
        }
        s.append(&[4]).unwrap();
    }
}
