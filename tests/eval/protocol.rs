//! The planners against their sources' loops, written out naively.

use proptest::prelude::*;
use ropewalk::eval::protocol::{default_protocol, protocol, Bos, Window, WindowPlan, PROTOCOLS};

/// A forward pass: text indices fed (`None` is BOS) and the fed indices that are scored.
type Pass = (Vec<Option<usize>>, Vec<usize>);

fn passes(plan: &WindowPlan) -> Vec<Pass> {
    plan.sample(None).map(|w| pass(&w)).collect()
}

fn pass(w: &Window) -> Pass {
    let mut fed: Vec<Option<usize>> = (w.start..w.end).map(Some).collect();
    match w.bos {
        Bos::None => {}
        Bos::Prepended => fed.insert(0, None),
        Bos::Replacing => fed[0] = None,
    }
    assert_eq!((w.n_fed(), w.n_scored()), (fed.len(), (w.from..fed.len()).len()));
    let scored = (w.from..fed.len()).collect();
    (fed, scored)
}

/// Passes of each source over one text of `n` tokens; `None` where it cannot or should not run.
fn by_source(name: &str, n: usize, n_ctx: usize, stride: usize, bos: bool) -> Option<Vec<Pass>> {
    let mut out: Vec<Pass> = Vec::new();
    let prepended = usize::from(bos);
    match name {
        "window" | "yarn-trunc" => {
            let mut fed: Vec<Option<usize>> = bos.then_some(None).into_iter().collect();
            fed.extend((0..n).map(Some));
            fed.truncate(n_ctx);
            let scored = (1..fed.len()).collect();
            out.push((fed, scored));
        }
        "yarn" | "press" => {
            let bos = bos && name == "yarn";
            let width = if bos { n_ctx.checked_sub(prepended)? } else { n_ctx };
            if stride == 0 || stride > width {
                return None;
            }
            let mut prev_end = 0;
            for begin in (0..n).step_by(stride) {
                let end = (begin + width).min(n);
                let target = end - prev_end;
                let mut fed: Vec<Option<usize>> = bos.then_some(None).into_iter().collect();
                fed.extend((begin..end).map(Some));
                let masked = fed.len().saturating_sub(target);
                let scored: Vec<usize> = (1..fed.len()).filter(|i| *i >= masked).collect();
                if !scored.is_empty() {
                    out.push((fed, scored));
                }
                prev_end = end;
                if end == n {
                    break;
                }
            }
        }
        "lceg-landmark" => {
            for (fed, _) in by_source("longlora", n, n_ctx, stride, bos)? {
                let parts = fed.chunks(512).filter(|part| part.len() > 1);
                out.extend(parts.map(|part| (part.to_vec(), (1..part.len()).collect())));
            }
        }
        "longlora" => {
            if stride == 0 || stride > n_ctx || n_ctx > n {
                return None;
            }
            let mut starts: Vec<usize> = (0..n - n_ctx).step_by(stride).collect();
            starts.pop()?;
            for start in starts {
                assert!(start + n_ctx < n);
                out.push(((start..start + n_ctx).map(Some).collect(), (1..n_ctx).collect()));
            }
        }
        "stride" => {
            if stride == 0 || stride >= n_ctx || n <= n_ctx {
                return None;
            }
            for i in 0..(n - n_ctx).div_ceil(stride) {
                let start = i * stride;
                let scored = (n_ctx - stride - 1..n_ctx - 1).map(|j| j + 1).collect();
                out.push(((start..start + n_ctx).map(Some).collect(), scored));
            }
        }
        "llama-cpp" => {
            for i in 0..n.checked_div(n_ctx)? {
                let mut fed: Vec<Option<usize>> = (i * n_ctx..(i + 1) * n_ctx).map(Some).collect();
                if bos {
                    fed[0] = None;
                }
                let first = n_ctx / 2;
                let scored = (first..n_ctx - 1).map(|j| j + 1).collect();
                out.push((fed, scored));
            }
        }
        // From the words of the paper: the text that `window` feeds, read in pieces.
        "restart" => {
            let head = n.min(n_ctx.checked_sub(prepended)?);
            let width = n_ctx.min(stride).checked_sub(prepended).filter(|w| *w > 0 && stride > 1)?;
            for piece in (0..head).collect::<Vec<_>>().chunks(width) {
                let mut fed: Vec<Option<usize>> = bos.then_some(None).into_iter().collect();
                fed.extend(piece.iter().copied().map(Some));
                let scored: Vec<usize> = (1..fed.len()).collect();
                if !scored.is_empty() {
                    out.push((fed, scored));
                }
            }
        }
        _ => panic!("no source loop for {name}"),
    }
    // A run that scores nothing, or feeds what predicts nothing, is no measurement.
    (n_ctx >= 2 && !out.is_empty() && out.iter().all(|(_, scored)| !scored.is_empty())).then_some(out)
}

#[test]
fn planners_do_what_their_sources_do() {
    let mut compared = 0;
    for p in PROTOCOLS {
        for (n, n_ctx, stride, bos) in (0..30).flat_map(|n| {
            (0..10).flat_map(move |c| (0..12).flat_map(move |s| [false, true].map(|b| (n, c, s, b))))
        }) {
            let plan = WindowPlan::new(p, &[n], n_ctx, stride, bos).map(|plan| passes(&plan));
            let expected = by_source(p.name, n, n_ctx, stride, bos);
            compared += usize::from(expected.is_some());
            let found = plan.as_ref().ok();
            assert_eq!(
                found,
                expected.as_ref(),
                "{}: n {n}, ctx {n_ctx}, stride {stride}, bos {bos}: {plan:?}",
                p.name
            );
        }
    }
    assert!(compared > 10_000, "{compared}");
}

/// Examples by hand, so that the loops above are not their own witness.
#[test]
fn windows_by_hand() {
    let plan = |name, n, n_ctx, stride, bos| {
        let plan = WindowPlan::new(protocol(name).unwrap(), &[n], n_ctx, stride, bos).unwrap();
        plan.sample(None).map(|w| (w.start, w.end, w.from)).collect::<Vec<_>>()
    };
    assert_eq!(plan("window", 10, 4, 1, false), [(0, 4, 1)]);
    assert_eq!(plan("window", 10, 4, 1, true), [(0, 3, 1)]);
    assert_eq!(plan("yarn", 10, 4, 2, true), [(0, 3, 1), (2, 5, 2), (4, 7, 2), (6, 9, 2), (8, 10, 2)]);
    assert_eq!(plan("yarn", 10, 4, 3, false), [(0, 4, 1), (3, 7, 1), (6, 10, 1)]);
    assert_eq!(plan("longlora", 10, 4, 2, false), [(0, 4, 1), (2, 6, 1)]);
    assert_eq!(plan("stride", 10, 4, 2, false), [(0, 4, 2), (2, 6, 2), (4, 8, 2)]);
    assert_eq!(plan("press", 9, 4, 2, false), [(0, 4, 1), (2, 6, 2), (4, 8, 2), (6, 9, 2)]);
    assert_eq!(plan("llama-cpp", 11, 5, 1, true), [(0, 5, 3), (5, 10, 3)]);
    assert_eq!(plan("restart", 20, 10, 4, false), [(0, 4, 1), (4, 8, 1), (8, 10, 1)]);
    assert_eq!(plan("restart", 20, 10, 4, true), [(0, 3, 1), (3, 6, 1), (6, 9, 1)]);
    // Nothing would predict token 8, which is a separate piece; and pieces are not longer than the text.
    assert_eq!(plan("restart", 9, 10, 4, false), [(0, 4, 1), (4, 8, 1)]);
    assert_eq!(plan("restart", 20, 10, 11, true), [(0, 9, 1)]);
}

proptest! {
    #[test]
    fn windows_of_several_texts_are_those_of_each(
        which in 0..PROTOCOLS.len(),
        texts in prop::collection::vec(0usize..5000, 1..4),
        n_ctx in 0usize..600,
        stride in 0usize..700,
        bos: bool,
        max in prop::option::of(1usize..50),
    ) {
        let p = &PROTOCOLS[which];
        let Ok(plan) = WindowPlan::new(p, &texts, n_ctx, stride, bos) else { return Ok(()) };
        let mut windows = plan.sample(None);
        for (text, &n) in texts.iter().enumerate() {
            for expected in by_source(p.name, n, n_ctx, stride, bos).expect("a plan") {
                let w = windows.next().expect("a window");
                prop_assert!(w.text == text && w.start < w.end && w.end <= n && w.n_fed() <= n_ctx);
                prop_assert_eq!(pass(&w), expected);
            }
        }
        prop_assert!(windows.next().is_none());
        let sampled: Vec<Window> = plan.sample(max).collect();
        prop_assert_eq!(sampled.len(), max.unwrap_or(usize::MAX).min(plan.len()));
        prop_assert_eq!(sampled.first().copied(), plan.get(0));
        // Parts of a window lie after its start.
        let place = |w: &Window| (w.text, w.start - w.position, w.position);
        let all: Vec<(usize, usize, usize)> = plan.sample(None).map(|w| place(&w)).collect();
        let index: Vec<usize> = sampled.iter().map(|w| all.binary_search(&place(w)).unwrap()).collect();
        let gaps: Vec<usize> = index.windows(2).map(|w| w[1] - w[0]).collect();
        let (least, most) = (gaps.iter().min().copied().unwrap_or(1), gaps.iter().max().copied().unwrap_or(1));
        prop_assert!(least >= 1 && most - least <= 1, "{index:?}");
        prop_assert!(plan.get(plan.len()).is_none());
    }
}

#[test]
fn what_cannot_be_planned_says_why() {
    let err = |name, n, n_ctx, stride| {
        WindowPlan::new(protocol(name).unwrap(), &[1000, n], n_ctx, stride, false)
            .map(|plan| plan.len())
            .unwrap_err()
    };
    for p in PROTOCOLS {
        assert!(err(p.name, 1000, 1, 1).reason.contains("ctx 1 is too small"));
        if p.stride.is_some() {
            assert_eq!(err(p.name, 1000, 8, 0).reason, "stride 0 never advances");
        }
    }
    assert_eq!(
        err("restart", 1000, 8, 1).reason,
        "stride 1 is too small: a token and its predecessor take 2"
    );
    for name in ["yarn", "press", "longlora", "stride"] {
        assert!(err(name, 1000, 8, 9).reason.contains("stride 9"), "{name}");
    }
    let e = err("longlora", 12, 8, 4);
    assert_eq!((e.text, e.reason.as_str()), (1, "12 tokens are too few: ctx 8 and stride 4 need 13"));
    assert!(err("llama-cpp", 7, 8, 1).reason.contains("needs that many"));
    assert!(err("yarn", 1, 8, 4).reason.contains("nothing to score"));
    assert!(protocol("yran").unwrap_err().to_string().contains("known are window, yarn, yarn-trunc"));
}

/// Positions are those that one window of the whole text would give the same tokens; only a protocol that
/// restarts has any but 0.
#[test]
fn positions_count_from_the_start_of_a_text_that_is_read_in_pieces() {
    for p in PROTOCOLS {
        for bos in [false, true] {
            let plan = WindowPlan::new(p, &[50], 20, 6, bos).unwrap();
            let found: Vec<usize> = plan.sample(None).map(|w| w.position).collect();
            let expected = match (p.restarts, bos) {
                (true, false) => vec![0, 6, 12, 18],
                (true, true) => vec![0, 5, 10, 15],
                (false, _) => vec![0; plan.len()],
            };
            assert_eq!(found, expected, "{}: bos {bos}", p.name);
            assert_eq!(p.context(20, 6), if p.restarts { 6 } else { 20 });
        }
    }
    // Windows of 1,025 tokens at 0 and 700, in parts of 512; one token alone is predicted by nothing.
    let parts = protocol("lceg-landmark").unwrap();
    let plan = WindowPlan::new(parts, &[2426], 1025, 700, false).unwrap();
    let found: Vec<_> = plan.sample(None).map(|w| (w.start, w.end, w.from, w.position)).collect();
    assert_eq!(found, [(0, 512, 1, 0), (512, 1024, 1, 512), (700, 1212, 1, 0), (1212, 1724, 1, 512)]);
    let plan = WindowPlan::new(parts, &[2427], 1026, 700, false).unwrap();
    let found: Vec<_> = plan.sample(None).map(|w| (w.start, w.end)).collect();
    assert_eq!(found[..3], [(0, 512), (512, 1024), (1024, 1026)]);
    assert_eq!(passes(&plan), by_source("lceg-landmark", 2427, 1026, 700, false).unwrap());
    assert_eq!((parts.context(400, 700), parts.context(32_768, 256)), (400, 512));
    let short = |n| WindowPlan::new(protocol("restart").unwrap(), &[n], 20, 6, true).unwrap().n_short;
    assert_eq!((short(18), short(19)), (1, 0));
}

#[test]
fn extreme_numbers_do_not_overflow() {
    for p in PROTOCOLS {
        for n in [0, 1, 2, 1000] {
            for (n_ctx, stride) in [(usize::MAX, 1), (usize::MAX, usize::MAX), (2, usize::MAX), (3, 1)] {
                if let Ok(plan) = WindowPlan::new(p, &[n], n_ctx, stride, true) {
                    assert!(plan.sample(None).all(|w| w.end <= n));
                }
            }
        }
    }
}

#[test]
fn the_default_is_a_window_or_with_a_stride_stride() {
    assert_eq!(default_protocol(None).name, "window");
    assert_eq!(default_protocol(Some(256)).name, "stride");
    let mut names: Vec<_> = PROTOCOLS.iter().map(|p| p.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), PROTOCOLS.len());
}
