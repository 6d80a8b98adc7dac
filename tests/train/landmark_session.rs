//! Sessions of an adapter with landmarks: logits against the naive model, and every way to the same text against the others.

use ropewalk::adapter::AdapterSpec;
use ropewalk::model::{Model, ModelParams};
use ropewalk::session::{Attention, Batch, GenerateParams, Session, SessionParams};
use ropewalk::train::{Sequence, TrainAttention, TrainParams, Trainer};
use ropewalk::{DType, Token};

use crate::common::{
    assert_close, open, params, says, score, scratch, some_tokens, with_adapter, with_kv, LOGITS,
};
use crate::differences::{moved, with_landmarks, Documents};
use crate::gradients::{fill, models, N_VOCAB};
use crate::landmark::{adapter, how};
use naive::{worst_row, Naive};

/// Positions of a block in these tests.
pub(crate) const BLOCK: usize = 7;

/// A model of two layers, and the same with an adapter of landmarks in force.
pub(crate) fn pair(name: &str) -> (Model, Model) {
    pair_of(0, name)
}

/// Of another of the models.
pub(crate) fn pair_of(i: usize, name: &str) -> (Model, Model) {
    let (_, model) = models().remove(i);
    let (file, _) = adapter(&model, BLOCK, name);
    let with = with_adapter(&model, &file);
    (model, with)
}

/// The rows of logits that follow each token of a text, `[n][N_VOCAB + 1]`, by definition: the last is the landmark's.
pub(crate) fn exact(model: &Model, tokens: &[Token]) -> Vec<f64> {
    exact_of(model, tokens, None)
}

/// The same where query heads take so many blocks, of those before pieces of so many positions.
pub(crate) fn exact_of(model: &Model, tokens: &[Token], top: Option<[usize; 2]>) -> Vec<f64> {
    let settings = how(120, BLOCK);
    let mut trainer = Trainer::new(model, &settings).unwrap();
    fill(&mut trainer);
    let scale = f64::from(settings.trainable.lora().unwrap().scale());
    let naive = moved(&Naive::of(model), &trainer, scale, &|_, _| {});
    // One token more, so that a landmark after the last is there.
    let (weights, landmarks) = (vec![1.0; tokens.len()], settings.attention.landmarks().unwrap());
    let longer = [tokens, &[0]].concat();
    let (all, ..) = with_landmarks(&longer, &weights, &[], landmarks);
    let (inputs, plan) = (&all[..all.len() - 1], trainer.plan());
    let case = Documents { segment_starts: &[], plan, group: None, block: Some(BLOCK), top };
    let rows = naive.logits(inputs, &case, plan);
    let width = N_VOCAB + 1;
    // After a block it is the landmark's row.
    let row = |i: usize| &rows[(landmarks.n_positions(i + 1) - 1) * width..][..width];
    (0..tokens.len()).flat_map(|i| row(i).to_vec()).collect()
}

pub(crate) fn without_landmark(rows: &[f64]) -> Vec<f64> {
    rows.chunks_exact(N_VOCAB + 1).flat_map(|row| row[..N_VOCAB].to_vec()).collect()
}

#[test]
fn logits_are_those_of_the_definition() {
    let (model, with) = pair("landmark-exact.gguf");
    let tokens = some_tokens(100, N_VOCAB);
    let want = without_landmark(&exact(&model, &tokens));
    for (kv, bound) in [(DType::F32, LOGITS), (DType::F16, 5e-3), (DType::Q8_0, 5e-2)] {
        let mut session = open(&with, &with_kv(100, kv));
        let worst = worst_row(&score(&mut session, &tokens), &want, N_VOCAB);
        assert!(worst < bound, "{}: {worst:e}", kv.name());
    }
}

/// The trainer's loss, of tokens alone, is that of the session's logits and the landmark's.
#[test]
fn the_loss_is_that_of_the_trainer() {
    let (model, with) = pair("landmark-loss.gguf");
    let tokens = some_tokens(101, N_VOCAB);
    let mut settings = how(120, BLOCK);
    let TrainAttention::Landmark(landmarks) = &mut settings.attention else { unreachable!() };
    landmarks.in_loss = false;
    let mut trainer = Trainer::new(&model, &settings).unwrap();
    fill(&mut trainer);
    let loss = trainer.loss(Sequence::new(&tokens)).unwrap();
    let rows = score(&mut open(&with, &with_kv(101, DType::F32)), &tokens[..100]);
    let of_landmarks = exact(&model, &tokens[..100]);
    let mut sum = 0.0;
    for (i, row) in rows.chunks_exact(N_VOCAB).enumerate() {
        let landmark = of_landmarks[i * (N_VOCAB + 1) + N_VOCAB];
        let exps: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        sum += (exps + landmark.exp()).ln() - f64::from(row[tokens[i + 1] as usize]);
    }
    assert!((loss - sum / 100.0).abs() < LOGITS, "{loss}, expected {}", sum / 100.0);
}

/// The logits of 90 tokens, which are the same in batches of any size and in pieces.
pub(crate) fn in_pieces(with: &Model, kv: &SessionParams) -> Vec<f32> {
    let tokens = some_tokens(90, N_VOCAB);
    let want = score(&mut open(with, kv), &tokens);
    for n_ubatch in [1, 5, 7, 64] {
        let rows = score(&mut open(with, &kv.clone().n_ubatch(n_ubatch)), &tokens);
        assert_close(&rows, &want, LOGITS, &format!("{n_ubatch} at once"));
    }
    // Token by token, and in pieces that end before, at, and after a landmark.
    for pieces in [vec![1; 90], vec![5, 1, 6, 7, 11, 60]] {
        let (mut session, mut rows, mut at) = (open(with, kv), Vec::new(), 0);
        for n in pieces {
            rows.extend(score(&mut session, &tokens[at..at + n]));
            at += n;
            assert_eq!(session.tokens(0), &tokens[..at]);
        }
        assert_close(&rows, &want, LOGITS, "pieces");
    }
    want
}

#[test]
fn batches_of_any_size_are_one_text() {
    let (_, with) = pair("landmark-batches.gguf");
    in_pieces(&with, &with_kv(90, DType::F32));
}

#[test]
fn a_text_cut_back_or_restored_is_as_one_that_never_stopped() {
    let (_, with) = pair("landmark-saved.gguf");
    let tokens = some_tokens(80, N_VOCAB);
    let kv = with_kv(80, DType::F16);
    let want = score(&mut open(&with, &kv), &tokens);
    for n in [1, 5, 6, 7, 12, 40, 79] {
        let rest = &want[n * N_VOCAB..];
        let mut session = open(&with, &kv);
        // What follows is taken back; a landmark that it closed goes with it.
        score(&mut session, &tokens[..n]);
        score(&mut session, &some_tokens(80 - n, 7));
        session.truncate(0, n).unwrap();
        assert_close(&score(&mut session, &tokens[n..]), rest, 2e-3, &format!("cut back to {n}"));
        session.truncate(0, n).unwrap();
        let file = scratch("landmark-session.bin");
        session.save(&file, b"notes").unwrap();
        let mut again = open(&with, &kv);
        assert_eq!(again.restore(&file).unwrap(), b"notes");
        assert_eq!(again.tokens(0), &tokens[..n]);
        assert_eq!(score(&mut again, &tokens[n..]), score(&mut session, &tokens[n..]), "restored at {n}");
        // A prompt that shares a beginning.
        let prompt = [&tokens[..n], &[3, 4]].concat();
        let (row, shared) = again.prompt(&prompt[..(n + 2).min(80)]).unwrap();
        let row = row.to_vec();
        assert_eq!(shared, n.min(78).max(n.min(79)));
        let fresh = open(&with, &kv).append(&prompt[..(n + 2).min(80)]).unwrap().to_vec();
        assert_close(&row, &fresh, 2e-3, &format!("a prompt that shares {n}"));
    }
}

#[test]
fn sequences_do_not_see_each_other() {
    let (_, with) = pair("landmark-sequences.gguf");
    let kv = with_kv(40, DType::F32).n_seq_max(3);
    let texts = [some_tokens(33, 200), some_tokens(40, 100), some_tokens(36, N_VOCAB)];
    let alone: Vec<Vec<f32>> = texts.iter().map(|text| score(&mut open(&with, &kv), text)).collect();
    let mut session = open(&with, &kv);
    let mut rows = vec![Vec::new(); 3];
    for at in 0..40 {
        let mut batch = Batch::new();
        let live: Vec<usize> = (0..3).filter(|&s| at < texts[s].len()).collect();
        live.iter().for_each(|&s| batch.push(texts[s][at], s as u32, true));
        let logits = session.decode(&batch).unwrap();
        live.iter().enumerate().for_each(|(i, &s)| rows[s].extend_from_slice(logits.row(i)));
    }
    for (s, (rows, alone)) in rows.iter().zip(&alone).enumerate() {
        assert_close(rows, alone, LOGITS, &format!("sequence {s}"));
    }
    // A copy goes on as its source does.
    session.clear();
    session.append(&texts[1][..20]).unwrap();
    session.copy_seq(0, 1).unwrap();
    let mut batch = Batch::new();
    for &token in &texts[1][20..] {
        (0..2).for_each(|seq| batch.push(token, seq, true));
    }
    let logits = session.decode(&batch).unwrap();
    for i in 0..20 {
        let want = &alone[1][(20 + i) * N_VOCAB..][..N_VOCAB];
        assert_close(logits.row(2 * i), want, LOGITS, "the source");
        assert_close(logits.row(2 * i + 1), want, LOGITS, "the copy");
    }
    // Endings share their text.
    let endings = [texts[1][20..31].to_vec(), texts[0][..3].to_vec(), texts[1][20..21].to_vec()];
    for (ending, scored) in
        endings.iter().zip(session.endings(&[0, 1, 2], &texts[1][..20], &endings).unwrap())
    {
        let text = [&texts[1][..20], ending].concat();
        let nll = open(&with, &kv).nll(&text, 20..text.len()).unwrap();
        let logprobs: Vec<f32> = nll.iter().map(|x| -x).collect();
        assert_close(&scored.logprobs, &logprobs, LOGITS, "an ending");
    }
}

#[test]
fn the_context_counts_tokens_alone() {
    let (_, with) = pair("landmark-full.gguf");
    for n_ctx in [1, 5, 6, 7, 41, 42] {
        let mut session = open(&with, &params(n_ctx));
        let tokens = some_tokens(n_ctx + 1, N_VOCAB);
        let e = session.append(&tokens).unwrap_err().to_string();
        assert!(e.contains("the context is full") && session.tokens(0).is_empty(), "{e}");
        session.append(&tokens[..n_ctx]).unwrap();
        assert!(session.append(&tokens[..1]).is_err());
        // A generation goes on to the end of the context.
        let how = GenerateParams::greedy(100).ignore_eos(true);
        let mut pieces = session.generate(&tokens[..1], &how).unwrap();
        assert!(pieces.by_ref().all(|piece| piece.is_ok()));
        assert_eq!(session.tokens(0).len(), n_ctx);
    }
}

#[test]
fn what_is_not_defined_is_refused() {
    let (_, with) = pair("landmark-refused.gguf");
    // Adapters are forced, for else another rope method is refused before.
    let spec = AdapterSpec::new(scratch("landmark-refused.gguf"), 1.0).force(true);
    let forced = ModelParams::cpu().adapters(vec![spec]);
    let forced = Model::load(with.file().path(), &forced).unwrap();
    let refused = |params: &SessionParams| Session::new(&forced, params).unwrap_err().to_string();
    let plain = || params(32);
    for (params, expected) in [
        (plain().portable(true), "runs on the CPU alone"),
        (plain().attention(Attention::Explicit), "runs on the CPU alone"),
        (plain().rope(Some("streaming:window=8,sinks=2".parse().unwrap())), "a reach"),
    ] {
        let e = refused(&params);
        assert!(e.starts_with("landmark attention: ") && e.contains(expected), "{e}");
    }
    let mut session = open(&with, &plain());
    let tokens = some_tokens(20, N_VOCAB);
    let e = session.probe(&tokens, 0..1, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(e.contains("attention maps: expected plain attention, found landmark:block=7"), "{e}");
    let e = session.moments(&tokens, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(e.contains("moments: expected plain attention, found landmark:block=7"), "{e}");
    says(session.append(&[N_VOCAB as Token]), &["token: expected 0 to 259, found 260"]);
    // A session without the adapter is another.
    let (model, _) = pair("landmark-refused-too.gguf");
    session.append(&tokens).unwrap();
    let file = scratch("landmark-refused.bin");
    session.save(&file, &[]).unwrap();
    assert!(open(&model, &plain()).restore(&file).unwrap_err().to_string().contains("model: expected"));
    // Training goes on models without adapters.
    says(Trainer::new(&with, &TrainParams::new(16)), &["merge the adapters first"]);
}
