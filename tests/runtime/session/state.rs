//! Saved sessions: restored ones go on as if never stopped, everything else is refused.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proptest::prelude::*;
use ropewalk::model::Model;
use ropewalk::session::{is_session_file, GenerateParams, Session, SessionParams, MAX_ATTACHMENT};
use ropewalk::{DType, Token};
use sha2::{Digest, Sha256};

use super::{batch_of, model, open, score, with_kv, KV, SHAPES};
use crate::common::{default_model, load, params, random_model, rows_of, says, some_tokens};

fn file(name: &str) -> PathBuf {
    crate::common::scratch(&format!("state-{name}.session"))
}

fn greedy(s: &mut Session, prompt: &[Token], n: usize) -> Vec<Token> {
    let p = GenerateParams::greedy(n).ignore_eos(true);
    s.generate(prompt, &p).unwrap().filter_map(|piece| piece.unwrap().token).collect()
}

/// Generates 40 tokens, saving after 15; sessions restored from there make the same ones.
fn goes_on(m: &Model, p: &SessionParams, prompt: &[Token], name: &str) {
    let path = file(name);
    let mut s = open(m, p);
    let first = greedy(&mut s, prompt, 15);
    s.save(&path, &[]).unwrap();
    assert!(is_session_file(&path));
    let held = s.tokens(0).to_vec();
    let so_far = [prompt, &first].concat();
    let rest = greedy(&mut s, &so_far, 25);

    for n_ctx in [p.n_ctx, p.n_ctx * 2] {
        let mut t = open(m, &p.clone().n_ctx(n_ctx));
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
                let p = with_kv(300, kv).rope(Some(rope.parse().unwrap()));
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
    s.save(&path, &[]).unwrap();
    let mut t = open(m, &params(400));
    t.append(&tokens[7..33]).unwrap();
    t.restore(&path).unwrap();
    for seq in 0..64 {
        assert_eq!(s.tokens(seq), t.tokens(seq));
    }
    for seq in [1, 63, 5] {
        let rows = |s: &mut Session| rows_of(s, &batch_of(seq, &tokens[200..230]));
        assert_eq!(rows(&mut s), rows(&mut t), "sequence {seq}");
    }
    assert_eq!(score(&mut s, &tokens[230..]), score(&mut t, &tokens[230..]));
    let empty = open(m, &params(64));
    empty.save(&path, &[]).unwrap();
    t.restore(&path).unwrap();
    assert!((0..64).all(|seq| t.tokens(seq).is_empty()));
    std::fs::remove_file(path).unwrap();
}

/// A saved session of 40 tokens.
fn saved(m: &Model, p: &SessionParams, path: &Path) -> Vec<u8> {
    let mut s = open(m, p);
    s.append(&some_tokens(40, 256)).unwrap();
    // What a test that failed left there may be no session.
    std::fs::remove_file(path).ok();
    s.save(path, b"attached").unwrap();
    std::fs::read(path).unwrap()
}

/// The bytes of [`saved`] of one kind, made once: what an earlier run left there may be of another version.
fn good(kind: usize, m: &Model, p: &SessionParams) -> &'static [u8] {
    static GOOD: [OnceLock<Vec<u8>>; 4] = [const { OnceLock::new() }; 4];
    GOOD[kind].get_or_init(|| saved(m, p, &file(&format!("good-{kind}"))))
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
        refused(m, &p.clone().rope(Some(rope.parse().unwrap())), &path, "rope: expected");
    }
    for kv in [DType::F32, DType::Q8_0, DType::Q4_0] {
        refused(m, &with_kv(64, kv), &path, "kv type: expected");
    }
    refused(m, &params(39), &path, "ctx: expected at least 40, found 39");
    // Cells for two sequences, but not of that length.
    refused(m, &params(39).n_seq_max(2), &path, "ctx: expected at least 40, found 39");
    refused(m, &p, Path::new("no-such-folder/x.session"), "No such file");
    refused(m, &p, path.parent().unwrap(), "not a regular file");
    for n in [0, 7, 15, 16, 47, 48, 200, bytes.len() - 4000, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..n]).unwrap();
        refused(m, &p, &path, "");
    }
    std::fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
    refused(m, &p, &path, "contents: expected");
    // The same model in another file is the same model.
    std::fs::write(&path, &bytes).unwrap();
    open(&load(&random_model("llama-tiny", DType::F32, "state-copy")), &p).restore(&path).unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let m = model("llama-tiny", DType::F32);
    let s = open(m, &params(8));
    says(s.save(Path::new("no-such-folder/x.session"), &[]), &["no-such-folder"]);
}

/// Whatever is at the path and is no saved session stays as it is: another's file, the model's own, a pipe, a folder.
#[test]
fn only_saved_sessions_are_replaced() {
    let path = random_model("llama-tiny", DType::F32, "state-kept");
    let m = load(&path);
    let mut s = open(&m, &params(8));
    s.append(&[1, 2, 3]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("package.json"), "{}").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    let mut kept = vec![path.clone(), at("package.json"), at("folder")];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&path, at("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        kept.extend([at("link"), at("dangling"), at("pipe")]);
    }
    let about = |p: &Path| {
        let m = std::fs::symlink_metadata(p).unwrap();
        (m.file_type(), m.is_file().then(|| std::fs::read(p).unwrap()))
    };
    for path in kept {
        let before = about(&path);
        says(s.save(&path, &[]), &[path.to_str().unwrap(), "exists and is "]);
        assert_eq!(about(&path), before);
    }
    // Sessions are, those of older versions too, and where nothing is lost.
    for old in [&b"ropewlk2 and more"[..], b"ropewlk3", b""] {
        std::fs::write(at("s"), old).unwrap();
        s.save(at("s"), &[]).unwrap();
        open(&m, &params(8)).restore(at("s")).unwrap();
    }
}

#[test]
fn attachments_come_back_up_to_their_limit() {
    let m = model("llama-tiny", DType::F32);
    let (p, path) = (params(64), file("attached"));
    let mut s = open(m, &p);
    s.append(&some_tokens(40, 256)).unwrap();
    let mut bytes = vec![7u8; MAX_ATTACHMENT as usize];
    for n in [0, 1, MAX_ATTACHMENT as usize] {
        s.save(&path, &bytes[..n]).unwrap();
        let mut t = open(m, &p);
        assert!(t.restore(&path).unwrap() == bytes[..n], "{n}");
        assert_eq!(t.tokens(0), s.tokens(0));
    }
    // What could not be restored is not written either.
    bytes.push(7);
    let before = std::fs::metadata(&path).unwrap().len();
    says(s.save(&path, &bytes), &[&MAX_ATTACHMENT.to_string(), "attachment"]);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), before);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn files_of_other_versions_say_which() {
    let m = model("llama-tiny", DType::F32);
    let (p, path) = (params(64), file("version"));
    let mut bytes = saved(m, &p, &path);
    bytes[7] = b'2';
    std::fs::write(&path, &bytes).unwrap();
    assert!(is_session_file(&path));
    refused(m, &p, &path, "a saved session of version 2: expected version 3");
    std::fs::write(&path, b"ropewlk2").unwrap();
    refused(m, &p, &path, "version 2");
    std::fs::write(&path, b"ropewlk?ropewlk?").unwrap();
    assert!(!is_session_file(&path));
    refused(m, &p, &path, "not a saved session");
    std::fs::remove_file(path).unwrap();
}

/// Header text and the rest of a session file.
fn parts(bytes: &[u8]) -> (String, &[u8]) {
    let n = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    (String::from_utf8(bytes[16..16 + n].to_vec()).unwrap(), &bytes[16 + n..bytes.len() - 32])
}

/// A session file of this header, with lengths and digest that agree with it.
fn sealed(header: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = b"ropewlk3".to_vec();
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    bytes.extend(data);
    let digest = Sha256::digest(&bytes);
    bytes.extend(digest);
    bytes
}

/// Headers that lie, and tokens and cells that cannot be, in files whose digest agrees with them.
#[test]
fn files_that_contradict_themselves_are_refused() {
    let m = model("llama-tiny", DType::F32);
    let (p, path) = (params(64), file("lies"));
    let bytes = saved(m, &p, &path);
    let (header, data) = parts(&bytes);
    assert_eq!(sealed(header.as_bytes(), data), bytes);
    let json = |f: &dyn Fn(&mut serde_json::Value)| {
        let mut value: serde_json::Value = serde_json::from_str(&header).unwrap();
        f(&mut value);
        value.to_string()
    };
    for (what, header) in [
        ("cell bytes", json(&|h| h["cell_bytes"] = 0.into())),
        ("contents: expected", json(&|h| h["n_cells"] = 39.into())),
        ("contents: expected", json(&|h| h["n_cells"] = (u64::MAX / 2).into())),
        ("contents: expected", json(&|h| h["n_tokens"][5] = i32::MAX.into())),
        ("contents: expected", json(&|h| h["attachment_bytes"] = 9.into())),
        ("attachment: expected at most", json(&|h| h["attachment_bytes"] = (1u64 << 40).into())),
        ("tokens: expected at most", json(&|h| h["n_tokens"][0] = (1u64 << 31).into())),
        ("tokens: expected at most", json(&|h| h["n_tokens"] = serde_json::json!([40]))),
        ("header", json(&|h| h["n_tokens"][0] = (-1).into())),
        ("header", json(&|h| h["n_cells"] = serde_json::json!("many"))),
        ("header", "[".repeat(10_000)),
        ("header", String::new()),
    ] {
        // The length of the file does not agree with some of them; where it does the session is looked at.
        let fill = if what == "cell bytes" { 8 + 40 * 4 + 40 * 12 } else { data.len() };
        std::fs::write(&path, sealed(header.as_bytes(), &data[..fill])).unwrap();
        refused(m, &p, &path, what);
    }
    // The attachment, 40 tokens, then the cells.
    let (token, cell) = (|i: usize| 8 + 4 * i, |i: usize| 8 + 4 * 40 + 12 * i);
    let edited = |at: usize, by: &[u8]| {
        let mut data = data.to_vec();
        data[at..at + by.len()].copy_from_slice(by);
        data
    };
    for (what, data) in [
        ("tokens: expected 0 to", edited(token(3), &320i32.to_le_bytes())),
        ("tokens: expected 0 to", edited(token(3), &(-1i32).to_le_bytes())),
        ("cells: sequence 0", edited(cell(5), &0i32.to_le_bytes())),
        ("cells: sequence 0", edited(cell(5), &(-5i32).to_le_bytes())),
        ("cells: sequence 0", edited(cell(5) + 4, &0u64.to_le_bytes())),
        ("cells: sequence 63", edited(cell(5) + 4, &(1u64 << 63 | 1).to_le_bytes())),
    ] {
        std::fs::write(&path, sealed(header.as_bytes(), &data)).unwrap();
        refused(m, &p, &path, what);
    }
    std::fs::remove_file(path).unwrap();
}

/// A header of a megabyte could list a hundred thousand, and each is compared with each.
#[test]
fn a_sequence_has_few_states() {
    let m = model("qwen35-tiny", DType::F32);
    let (p, path) = (params(64), file("states"));
    let bytes = saved(m, &p, &path);
    let (header, data) = parts(&bytes);
    let mut header: serde_json::Value = serde_json::from_str(&header).unwrap();
    header["states"][0] = serde_json::json!((1..=40).map(|n| [n, 0]).collect::<Vec<_>>());
    std::fs::write(&path, sealed(header.to_string().as_bytes(), data)).unwrap();
    refused(m, &p, &path, "states: expected at most 3 of sequence 0, found 40");
    std::fs::remove_file(path).unwrap();
}

/// No number of a header makes anything be allocated that the file does not have: this one has 4 TiB, of which nothing is
/// on the disk.
#[cfg(unix)]
#[test]
fn a_file_with_holes_is_refused_before_it_is_read() {
    let m = model("llama-tiny", DType::F32);
    let (p, path) = (params(64), file("holes"));
    let (header, _) = parts(&saved(m, &p, &path)).clone();
    let mut header: serde_json::Value = serde_json::from_str(&header).unwrap();
    let n = 1u64 << 40;
    header["n_cells"] = (n / header["cell_bytes"].as_u64().unwrap()).into();
    let header = header.to_string();
    let n_cells = serde_json::from_str::<serde_json::Value>(&header).unwrap()["n_cells"].as_u64().unwrap();
    let cell_bytes = open(m, &p).memory().kv as u64 / 256;
    let len = 16 + header.len() as u64 + 8 + 40 * 4 + n_cells * (12 + cell_bytes) + 32;
    let mut start = b"ropewlk3".to_vec();
    start.extend((header.len() as u64).to_le_bytes());
    start.extend(header.as_bytes());
    std::fs::write(&path, start).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
    refused(m, &p, &path, "ctx: expected at least");
    std::fs::remove_file(path).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any damage is noticed: the digest covers every byte.
    #[test]
    fn damaged_files_are_refused(at in any::<prop::sample::Index>(), early in any::<bool>(), by in 1u8.., cut in any::<bool>()) {
        let (m, p) = (model("llama-tiny", DType::F32), params(64));
        let path = file("damage");
        let mut bytes = good(3, m, &p).to_vec();
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

    /// Numbers at their limits, in the header and among tokens and cells, under a digest that agrees, for sessions that keep
    /// every key, that evict, and with states: soon refused, or a session that works.
    #[test]
    fn forged_numbers_do_no_harm(
        kind in 0usize..3,
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..8, any::<bool>()), 1..4),
    ) {
        const NUMBERS: [u64; 8] = [0, 1, 41, 99_999_999, i32::MAX as u64, 1 << 31, 1 << 62, u64::MAX];
        let kinds = [("llama-tiny", "plain"), ("llama-tiny", "streaming:window=16"), ("qwen35-tiny", "plain")];
        let (shape, rope) = kinds[kind];
        let (m, p) = (model(shape, DType::F32), params(64).rope(Some(rope.parse().unwrap())));
        let path = file("numbers");
        let (mut header, data) = parts(good(kind, m, &p));
        let mut data = data.to_vec();
        for (at, which, in_header) in edits {
            if in_header {
                // What comes before is the model, the method and other words.
                let numbers = header.find("\"n_ctx\"").unwrap();
                let bytes = header.bytes().enumerate().skip(numbers);
                let digits: Vec<usize> = bytes.filter(|(_, b)| b.is_ascii_digit()).map(|(i, _)| i).collect();
                let at = digits[at.index(digits.len())];
                header.replace_range(at..=at, &NUMBERS[which].to_string());
            } else {
                // The attachment, tokens, and cells, some of which may have been evicted.
                let at = 8 + 4 * at.index(40 + 3 * 16);
                data[at..at + 4].copy_from_slice(&(NUMBERS[which] as u32).to_le_bytes());
            }
        }
        std::fs::write(&path, sealed(header.as_bytes(), &data)).unwrap();
        let start = std::time::Instant::now();
        let mut s = open(m, &p);
        s.append(&[1, 2, 3]).unwrap();
        if s.restore(&path).is_err() {
            prop_assert_eq!(s.tokens(0), &[1, 2, 3]);
        }
        prop_assert!(s.append(&[4]).is_ok());
        prop_assert!(start.elapsed() < std::time::Duration::from_secs(60), "{}", header);
    }
}
