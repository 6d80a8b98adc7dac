//! Keys that are cached of first positions only, against a cache that is too small for that to save anything and so has
//! copies of all keys.

use ropewalk::model::Error;
use ropewalk::session::Attention::{self, Auto, Explicit};
use ropewalk::session::{Batch, Session};
use ropewalk::{DType, Token};

use super::same::SAME;
use super::{apart, text, twins, under, Failures, N_VOCAB};
use crate::common::rounding::UNIT;
use crate::common::{all_logits, open, rows_of, scratch, size, some_tokens};

/// First positions for which a cache has one block of 256 cells: 64 sequences of four.
const SPEC: &str = "lm-infinite:window=12,global=4";

/// Keys of all tokens under both maps take no more room than keys and values in cells of their own.
const COPIES: usize = 512;
/// Here they do.
const STARTS: usize = 1024;

/// What angles in f32 add to that, of a row's norm, in the ops of other devices: one of 600 radians is off by 600 * 2^-24, 3.6e-5.
pub(super) const ANGLES: f64 = 600.0 * UNIT;
const PORTABLE: f64 = SAME + ANGLES;

/// Bytes of a cell of one layer of the first model: two heads of 32 floats.
const ROW: usize = 2 * 32 * 4;
const N_LAYER: usize = 2;

#[test]
fn a_cache_of_first_positions_is_smaller() {
    let kv = |spec: &str, n_ctx: usize| open(&twins()[0].model, &under(spec, n_ctx, DType::F32)).memory().kv;
    let rows = |n: usize| n * ROW * N_LAYER;
    assert_eq!(kv(SPEC, COPIES), rows(3 * 512));
    assert_eq!(kv(SPEC, STARTS), rows(2 * 1024 + 2 * 256));
    // 64 sequences of five are two blocks.
    assert_eq!(kv("lm-infinite:window=12,global=5", STARTS), rows(3 * 1024));
    assert_eq!(kv("lm-infinite:window=12,global=5", 4096), rows(2 * 4096 + 2 * 512));
    // Keys of all first positions that there can be.
    assert_eq!(kv("lm-infinite:window=12,global=1000000", 4096), rows(3 * 4096));
    for (spec, copies) in [("plain", 2), ("self-extend:window=16,group=4", 3), ("rerope:window=20", 3)] {
        assert_eq!(kv(spec, 4096), rows(copies * 4096), "{spec}");
    }
}

/// Micro-batches that end before, at and after the last of the first positions.
#[test]
fn logits_are_those_of_a_copy_of_all_keys_to_the_bit() {
    for twin in twins() {
        for kv in [DType::F32, DType::F16, DType::Q8_0] {
            for (attention, portable) in [(Auto, false), (Explicit, false), (Explicit, true)] {
                let short = size(40, 100);
                for (n_ubatch, n) in [(1, short), (3, short), (4, short), (7, short), (300, 100)] {
                    let p = |n_ctx| {
                        under(SPEC, n_ctx, kv).n_ubatch(n_ubatch).attention(attention).portable(portable)
                    };
                    let [copies, starts] =
                        [COPIES, STARTS].map(|n_ctx| all_logits(&twin.model, &p(n_ctx), &text(n)));
                    let what = format!("{}, {kv}, {attention:?}, {portable}, {n_ubatch}", twin.about);
                    assert!(copies == starts, "{what}: off by {:e}", apart(&copies, &starts));
                }
            }
        }
    }
}

/// A file does not say which kind of cache it is of.
#[test]
fn files_are_of_either_cache() {
    let path = scratch("reach-starts.session");
    for kv in [DType::F32, DType::Q8_0] {
        let fill = |s: &mut Session| {
            // The first cells are another sequence's, which leaves.
            s.decode(&batch(&[(2, &text(9)[5..])])).unwrap();
            s.append(&text(30)).unwrap();
            s.copy_seq(0, 5).unwrap();
            s.truncate(5, 2).unwrap();
            s.decode(&batch(&[(5, &text(200)[150..]), (0, &text(130)[100..])])).unwrap();
            s.truncate(2, 0).unwrap();
        };
        let rest = batch(&[(5, &text(90)[50..]), (0, &text(60)[20..]), (1, &text(50)[10..])]);
        let rows = |s: &mut Session| rows_of(s, &rest).concat();
        let mut files = Vec::new();
        for n_ctx in [COPIES, STARTS] {
            let mut s = open(&twins()[0].model, &under(SPEC, n_ctx, kv));
            fill(&mut s);
            s.save(&path, b"").unwrap();
            files.push(std::fs::metadata(&path).unwrap().len());
            let want = rows(&mut s);
            for to in [COPIES, STARTS] {
                let mut t = open(&twins()[0].model, &under(SPEC, to, kv));
                t.append(&text(77)).unwrap();
                t.restore(&path).unwrap();
                assert_eq!((t.tokens(0).len(), t.tokens(5).len()), (60, 52));
                // What came back goes out again, for the next one.
                t.save(&path, b"").unwrap();
                let off = apart(&want, &rows(&mut t));
                assert!(off < SAME, "{kv}, from {n_ctx} to {to} cells: {off:e}");
            }
        }
        assert!(files[0].abs_diff(files[1]) < 4, "numbers in the header may have another digit: {files:?}");
    }
    std::fs::remove_file(path).unwrap();
}

/// As many sequences as there can be, with nothing in common: every cell of first positions is taken.
#[test]
fn every_sequence_has_first_positions_of_its_own() {
    let model = &twins()[0].model;
    let p = under(SPEC, STARTS, DType::F32).n_ubatch(100);
    let mut s = open(model, &p);
    let texts: Vec<Vec<Token>> =
        (0..64).map(|i| some_tokens(15 + 7 * 64, N_VOCAB)[7 * i..][..15].to_vec()).collect();
    let mut found = vec![Vec::new(); 64];
    for step in 0..3 {
        let parts: Vec<(u32, &[Token])> = (0..).zip(texts.iter().map(|t| &t[step * 5..][..5])).collect();
        for (found, rows) in found.iter_mut().zip(rows_of(&mut s, &batch(&parts)).chunks_exact(5)) {
            found.extend(rows.concat());
        }
    }
    let mut failures = Failures::default();
    for (i, (text, found)) in texts.iter().zip(&found).enumerate() {
        let want = all_logits(model, &p.clone().n_ctx(COPIES), text);
        failures.at_most(SAME, apart(&want, found), &format!("sequence {i} of 64"));
    }
    failures.none();
}

/// A batch of these tokens of these sequences, with logits of all.
fn batch(parts: &[(u32, &[Token])]) -> Batch {
    let mut batch = Batch::new();
    parts.iter().for_each(|(seq, tokens)| tokens.iter().for_each(|&t| batch.push(t, *seq, true)));
    batch
}

/// Sequences that begin, are cut, fork, end and begin again in any order, after every step as in a separate session.
#[test]
fn sequences_come_and_go() {
    // The second drops keys: its cache is one block for one sequence, and has cells for first positions for eight.
    let specs = [(SPEC, COPIES), ("lm-infinite:window=150,global=4,evict=true", 64)];
    for (spec, alone) in specs {
        for (attention, portable, n_ubatch) in [(Auto, false, 3), (Auto, false, 40), (Explicit, true, 7)] {
            come_and_go(spec, alone, (attention, portable), n_ubatch);
        }
    }
}

fn come_and_go(spec: &str, alone: usize, (attention, portable): (Attention, bool), n_ubatch: usize) {
    let model = &twins()[0].model;
    let p = under(spec, alone, DType::F32).attention(attention).portable(portable).n_ubatch(n_ubatch);
    let mut s = open(model, &p.clone().n_seq_max(8));
    let per_cell = s.memory().kv / ROW / N_LAYER;
    let one = open(model, &p).memory().kv / ROW / N_LAYER;
    assert!(one.is_multiple_of(3 * 256) && !per_cell.is_multiple_of(3 * 256), "{one}, {per_cell}: two kinds");

    let mut draws = some_tokens(4000, 1 << 20).into_iter().map(|n| n as usize);
    let mut draw = |n: usize| draws.next().expect("draws") % n;
    let mut texts: Vec<Vec<Token>> = vec![Vec::new(); 64];
    let mut failures = Failures::default();
    for step in 0..50 {
        // Six sequences, the first and the last ones of all.
        let [a, b] = [draw(6), draw(6)].map(|i| if i < 3 { i } else { 58 + i });
        match draw(8) {
            0 => {
                s.copy_seq(a as u32, b as u32).unwrap();
                texts[b] = texts[a].clone();
            }
            1 | 2 => {
                // To within first positions as often as not.
                let n = draw(2) * draw(6) + draw(2) * draw(texts[a].len() + 1);
                match s.truncate(a as u32, n) {
                    Ok(()) => texts[a].truncate(n),
                    Err(Error::Unsupported(e)) => assert!(spec.contains("evict"), "{e}"),
                    Err(e) => panic!("{e}"),
                }
            }
            3 => {
                s.truncate(a as u32, 0).unwrap();
                texts[a].clear();
            }
            _ => {}
        }
        let mut parts: Vec<(u32, Vec<Token>)> = Vec::new();
        for seq in [a, b, 0] {
            if parts.iter().all(|part| part.0 != seq as u32) {
                let n = 1 + draw(13);
                parts.push((seq as u32, (0..n).map(|_| draw(N_VOCAB) as Token).collect()));
            }
        }
        // By turns, so that beginnings lie between each other.
        let (mut batch, mut last) = (Batch::new(), vec![0; parts.len()]);
        for i in 0..14 {
            for ((seq, tokens), last) in parts.iter().zip(&mut last) {
                if let Some(&token) = tokens.get(i) {
                    *last = batch.len();
                    batch.push(token, *seq, true);
                }
            }
        }
        let rows = rows_of(&mut s, &batch);
        for ((seq, tokens), last) in parts.iter().zip(last) {
            let text = &mut texts[*seq as usize];
            text.extend(tokens);
            let mut fresh = open(model, &p);
            let want = fresh.append(text).unwrap_or_else(|e| panic!("{e}"));
            let bound = if portable { PORTABLE } else { SAME };
            let what =
                format!("{spec}, portable {portable}, step {step}, sequence {seq}, {} tokens", text.len());
            failures.at_most(bound, apart(want, &rows[last]), &what);
        }
    }
    failures.none();
}
