//! Attention to keys in any order: what a text gets does not depend on where its keys are, nor on other texts.

use crate::common::*;
use ggml::attention::{AttentionBranch, Scoring, KEYS};
use ggml::graph::Executor;
use ggml::DType;

const D: usize = 64;
const N_HEAD_KV: usize = 2;
const N_HEAD: usize = 4;
/// Rows of the cache.
const N_CACHE: usize = 3000;
const ROW: usize = D * N_HEAD_KV;

/// A text, of which the last tokens are queries.
struct Text {
    /// `[n][ROW]`
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[tokens][N_HEAD][D]`
    queries: Vec<f32>,
    /// The row of each key in the cache.
    rows: Vec<usize>,
    /// Keys that a token sees, itself among them.
    window: usize,
}

impl Text {
    fn new(seed: u64, n: usize, n_tokens: usize, window: usize, rows: impl Iterator<Item = usize>) -> Text {
        let mut rng = Rng(seed);
        let (keys, values) = (rng.values(n * ROW), rng.values(n * ROW));
        let queries = rng.values(n_tokens * N_HEAD * D).iter().map(|q| q * 3.0).collect();
        Text { keys, values, queries, rows: rows.take(n).collect(), window }
    }

    fn n_tokens(&self) -> usize {
        self.queries.len() / (N_HEAD * D)
    }

    /// Whether a token sees a position.
    fn sees(&self, token: usize, pos: usize) -> bool {
        let at = self.rows.len() - self.n_tokens() + token;
        pos <= at && pos + self.window > at
    }
}

/// What the tokens of the texts get together, in turn, in a cache of this type.
fn attend(exec: &mut Executor, dtype: DType, texts: &[&Text], softcap: Option<f32>) -> Vec<f32> {
    let fill = |of: fn(&Text) -> &[f32]| {
        let mut rows = Rng(99).values(N_CACHE * ROW);
        for text in texts {
            for (&row, values) in text.rows.iter().zip(of(text).chunks(ROW)) {
                rows[row * ROW..][..ROW].copy_from_slice(values);
            }
        }
        stored(dtype, &[ROW, N_CACHE], &rows).0
    };
    let (k, v) = (fill(|text| &text.keys), fill(|text| &text.values));
    // The blocks of all texts by place, with their text.
    let longest = texts.iter().map(|text| text.rows.len()).max().unwrap();
    let mut blocks = Vec::new();
    for place in 0..longest.div_ceil(KEYS) {
        let own = |text: &&Text| place * KEYS < text.rows.len();
        blocks.extend(texts.iter().enumerate().filter(|(_, text)| own(text)).map(|(i, _)| (place, i)));
    }
    let rows = |&(place, i): &(usize, usize)| {
        let row = |at: usize| texts[i].rows.get(place * KEYS + at).map_or(0, |&row| row as u32);
        (std::array::from_fn::<u32, KEYS, _>(row), place as u16)
    };
    let rows: Vec<([u32; KEYS], u16)> = blocks.iter().map(rows).collect();
    let mut mask = Vec::new();
    for (of, text) in texts.iter().enumerate() {
        for token in 0..text.n_tokens() {
            for &(place, i) in &blocks {
                let seen = (place * KEYS..(place + 1) * KEYS).map(|pos| i == of && text.sees(token, pos));
                mask.extend(seen.map(|seen| if seen { 0.0 } else { f32::NEG_INFINITY }));
            }
        }
    }
    let queries: Vec<f32> = texts.iter().flat_map(|text| text.queries.iter().copied()).collect();
    let n_tokens = queries.len() / (N_HEAD * D);
    eval(exec, |b, feed| {
        let q = feed.f32(b, &[D, N_HEAD, n_tokens], &queries)?;
        let k = heads_of(b, b.stored(&k)?, D, N_CACHE, N_HEAD_KV)?;
        let v = heads_of(b, b.stored(&v)?, D, N_CACHE, N_HEAD_KV)?;
        let mask = feed.placed_mask(b, n_tokens, &mask, &rows)?;
        let scoring = Scoring { softcap, ..Scoring::from(0.125) };
        b.placed_attention(&[AttentionBranch { q, k, v }], &[rows.len() * KEYS], mask, scoring)
    })
    .unwrap()
}

/// What the first text gets.
fn first(exec: &mut Executor, dtype: DType, texts: &[&Text], softcap: Option<f32>) -> Vec<f32> {
    let mut all = attend(exec, dtype, texts, softcap);
    all.truncate(texts[0].queries.len());
    all
}

/// Bit for bit: one token and many, whole texts and windows, also where the other one is longer or far ahead.
#[test]
fn a_text_gets_the_same_wherever_its_keys_are_and_beside_another_one() {
    use DType::*;
    for (n_threads, dtype, softcap) in
        [(1, F16, None), (3, Q8_0, Some(2.0)), (2, F32, None), (2, Q4_1, Some(2.0))]
    {
        let mut exec = executor(n_threads);
        for (n, n_tokens, window) in
            [(700, 1, 5000), (700, 1, 300), (990, 1, 850), (100, 1, 5000), (700, 40, 5000), (500, 40, 200)]
        {
            let text = |rows: &mut dyn Iterator<Item = usize>| Text::new(1, n, n_tokens, window, rows);
            let in_order = first(&mut exec, dtype, &[&text(&mut (0usize..))], softcap);
            let scattered = text(&mut (0usize..).map(|i| 2999 - 3 * i - i % 2));
            assert_eq!(first(&mut exec, dtype, &[&scattered], softcap), in_order, "{dtype}, {n}, {n_tokens}");
            for (other, far) in [(90, 90), (1300, 5000), (1400, 300)] {
                let other = Text::new(2, other, 1, far, (0usize..).map(|i| 2 * i + 200));
                let text = text(&mut (0usize..).map(|i| 2 * i + 201));
                let beside = first(&mut exec, dtype, &[&text, &other], softcap);
                assert_eq!(beside, in_order, "{dtype}, {n}, {n_tokens}, {window}, beside {far}");
            }
        }
    }
}

/// Bit for bit: a text seen from its beginning has its blocks at the same places.
#[test]
fn keys_in_any_order_are_keys() {
    let mut exec = executor(2);
    let n = 704;
    for n_tokens in [1, 5, 40] {
        let text = Text::new(3, n, n_tokens, 5000, (0usize..).map(|i| (7 * i + 3) % 2999));
        let got = attend(&mut exec, DType::F32, &[&text], None);
        let causal = (0..n_tokens * n).map(|i| if text.sees(i / n, i % n) { 0.0 } else { f32::NEG_INFINITY });
        let causal: Vec<f32> = causal.collect();
        let [k, v] = [&text.keys, &text.values].map(|rows| stored(DType::F32, &[ROW, n], rows).0);
        let plain = eval(&mut exec, |b, feed| {
            let q = feed.f32(b, &[D, N_HEAD, n_tokens], &text.queries)?;
            let k = heads_of(b, b.stored(&k)?, D, n, N_HEAD_KV)?;
            let v = heads_of(b, b.stored(&v)?, D, n, N_HEAD_KV)?;
            let mask = feed.mask(b, [n, n_tokens], &causal)?;
            b.attention(&[AttentionBranch { q, k, v }], mask, 0.125)
        });
        assert_eq!(got, plain.unwrap(), "{n_tokens}");
    }
}
