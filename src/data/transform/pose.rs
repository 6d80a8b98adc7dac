//! PoSE, positional skip-wise training (Zhu et al. 2023): a sample of the trained window is seen as two chunks
//! far apart, so that a model learns the positions of a long context for the price of a short one.

use rand_chacha::ChaCha8Rng;

use super::{Method, Transform};
use crate::error::Result;
use crate::random::below;
use crate::sample::Sample;

pub(super) const POSE: Method = Method {
    name: "pose",
    about: "PoSE: the second of two chunks of a document at a random place of a longer context, target=N",
    params: &[
        ("target", "tokens of the context that positions are drawn from, more than the context"),
        ("factor", "the same as a multiple of the context, from 2 on"),
        (
            "text",
            "maximum text of a document that its two chunks are drawn from, in samples (5, as released); 1: no text \
             is skipped",
        ),
        ("join", "true: from joined texts, so the chunks can be of two documents"),
    ],
    make: |args, setup| {
        let n_ctx = setup.n_ctx;
        let target = match (args.number("target", n_ctx.saturating_add(1))?, args.number("factor", 2)?) {
            (Some(_), Some(_)) => return Err(args.bad("factor stands in place of target: give one of them")),
            (Some(target), None) => target,
            (None, Some(factor)) => n_ctx.saturating_mul(factor),
            (None, None) => {
                return Err(args.bad("expected target=N, the context to be trained for, found none"))
            }
        };
        if u32::try_from(target).is_err() {
            return Err(args.bad(format!("factor: expected positions up to {}, found {target}", u32::MAX)));
        }
        let (text, join) = (args.number("text", 1)?.unwrap_or(5), args.flag("join", false)?);
        Ok(Box::new(Pose { n_ctx, target, text, join }))
    },
};

/// `train_preprocess_function_pose` of the released `train_pose.py`. The first chunk has 1 to half of the tokens
/// and starts where the text and the context do; the second ends at a uniform place of the text, and starts at a
/// uniform place of the context. The target across the gap counts as any other does.
///
/// The text is that of one document from its beginning, as in the release, which takes the first `text` windows of each;
/// a document that is shorter than a sample is left out here (the release advises to filter these).
///
/// A sample is one token longer than its inputs here; positions are those of the inputs, and the last of them is
/// at most `target - 1`.
#[derive(Debug)]
struct Pose {
    n_ctx: usize,
    target: usize,
    /// Samples of text that a sample is drawn from, at most.
    text: usize,
    /// The text is of documents that are joined.
    join: bool,
}

impl Transform for Pose {
    fn apply(&self, sample: Sample, rng: &mut ChaCha8Rng) -> Result<Sample> {
        let n = self.n_ctx.min(sample.inputs().len());
        let mut uniform = |from: usize, to: usize| from + below(rng, (to - from) as u64 + 1) as usize;
        let first = uniform(1, n.div_ceil(2));
        let end = uniform(n + 1, sample.tokens.len());
        let skip = uniform(0, self.target.saturating_sub(n));
        // The second chunk ends at `end`, and the sample has n + 1 tokens.
        let start = end - (n + 1 - first);
        let kept = |i: usize| i < first || (start..end).contains(&i);
        let moved = |i: usize| if i < first { i } else { i - (start - first) };
        let tokens = [&sample.tokens[..first], &sample.tokens[start..end]].concat();
        let weights = [&sample.weights[..first - 1], &sample.weights[start - 1..end - 1]].concat();
        let positions = (0..n).map(|i| if i < first { i } else { i + skip } as u32).collect();
        // The chunks of a document that the gap takes tokens from are two spans.
        let mut spans = Vec::new();
        for (span, range) in sample.ranges() {
            for part in [range.start..range.end.min(first), range.start.max(start)..range.end.min(end)] {
                if part.start < part.end {
                    let ends = span.ends && part.end == range.end;
                    let from = span.from + (part.start - range.start) as u32;
                    spans.push(crate::Span { start: moved(part.start) as u32, from, ends, ..span });
                }
            }
        }
        let starts = sample.segment_starts.iter().map(|&s| s as usize).filter(|&s| kept(s));
        let segment_starts = starts.map(|s| moved(s) as u32).collect();
        Ok(Sample { tokens, segment_starts, weights, positions, spans })
    }

    fn n_read(&self, n_ctx: usize) -> usize {
        n_ctx.saturating_mul(self.text)
    }

    fn in_one_document(&self) -> bool {
        !self.join
    }

    fn n_positions(&self) -> Option<usize> {
        Some(self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::rng;

    fn sample(n: usize) -> Sample {
        let mut sample = Sample::new((0..=n as i32).collect(), vec![0, 3, 9, 17]);
        // Each weight names its target.
        sample.weights = (1..=n).map(|i| i as f32).collect();
        sample
    }

    /// The steps of the released function, in its words.
    #[test]
    fn chunks_and_positions_are_those_of_the_reference() {
        let (n_ctx, target, text) = (10, 40, 2);
        let pose = Pose { n_ctx, target, text, join: false };
        let (mut places, mut lengths) = (std::collections::HashSet::new(), std::collections::HashSet::new());
        for seed in 0..400 {
            let mut draws = rng(seed, "test", 0, 0);
            let mut randint = |a: usize, b: usize| a + below(&mut draws, (b - a + 1) as u64) as usize;
            let ids: Vec<i32> = sample(n_ctx * text).tokens;
            let (len_chunk, len_input, lt1) = (n_ctx + 1, ids.len(), 0);
            // Python's (len_chunk + 1) // 2 of the inputs.
            let rt1 = randint(1, n_ctx.div_ceil(2));
            let rt2 = randint(lt1 + len_chunk, len_input);
            let lt2 = rt2 - (len_chunk - (rt1 - lt1));
            let chunked = [&ids[lt1..rt1], &ids[lt2..rt2]].concat();
            let rt = randint(0, target - n_ctx);
            let mut pos_ids: Vec<u32> = (0..n_ctx as u32).collect();
            pos_ids[rt1 - lt1..].iter_mut().for_each(|p| *p += rt as u32);

            let out = pose.apply(sample(n_ctx * text), &mut rng(seed, "test", 0, 0)).unwrap();
            assert_eq!((&out.tokens, &out.positions), (&chunked, &pos_ids));
            assert!(out.positions.iter().all(|&p| (p as usize) < target));
            out.check(n_ctx, 100).unwrap();
            // Weights go with their targets.
            assert!(out.weights.iter().zip(out.targets()).all(|(w, t)| *w == *t as f32));
            // Documents start at tokens 0, 3, 9, 17 of the text.
            let starts: Vec<i32> = out.segment_starts.iter().map(|&s| out.tokens[s as usize]).collect();
            let expected: Vec<i32> = [0, 3, 9, 17].into_iter().filter(|t| chunked.contains(t)).collect();
            assert_eq!(starts, expected);
            for (span, range) in out.ranges() {
                let from: Vec<i32> = (span.from as i32..).take(range.len()).collect();
                assert_eq!(out.tokens[range], from);
            }
            places.insert(rt);
            lengths.insert(rt1);
        }
        assert_eq!((places.len(), lengths.len()), (target - n_ctx + 1, 5), "every place and length is drawn");
    }

    #[test]
    fn a_target_must_be_longer_than_the_samples() {
        let tokenizer = std::sync::Arc::new(crate::testing::Bytes::default());
        let parse = |text: &str| crate::parse_method(text, 64, tokenizer.clone());
        assert_eq!(parse("pose:target=65").unwrap().n_positions(), Some(65));
        assert_eq!(parse("pose:target=128,text=3").unwrap().n_read(64), 192);
        assert_eq!(parse("pose:factor=8").unwrap().n_positions(), Some(512));
        assert!(parse("pose:factor=8").unwrap().in_one_document());
        assert!(!parse("pose:factor=8,join=true").unwrap().in_one_document());
        for (text, what) in [
            ("pose", "expected target=N"),
            ("pose:target=64", "target: expected a whole number from 65"),
            ("pose:target=x", "found 'x'"),
            ("pose:target=128,text=0", "text: expected a whole number from 1"),
            ("pose:factor=1", "factor: expected a whole number from 2"),
            ("pose:target=128,factor=2", "factor stands in place of target"),
            ("pose:factor=4294967295", "factor: expected positions up to 4294967295, found 274877906880"),
            ("pose:target=128,join=yes", "join: expected true or false"),
        ] {
            let e = parse(text).unwrap_err().to_string();
            assert!(e.contains(what) && e.starts_with("data method pose: "), "{e}");
        }
    }
}
