//! `dca`: Dual Chunk Attention (An et al. 2024).

use super::reach::{Branch, Chunks, PosMap, Reach};
use super::{Args, Axis, Geometry, LayerPlan, Method, Param, RopeError};

/// Keys at j mod c, c = C - w, always. Queries at i mod c for keys of their own chunk, min(i mod c + c, C)
/// for those of the chunk before, and min(2c-1, C) for older ones; one softmax over the three.
///
/// Source: the authors' code, ChunkLlama (`chunk_size` C, `local_window` w, `chunk_len` c). The text speaks
/// of chunks of C; the code's are c long, so that the last w tokens of a chunk and the next one stay at true
/// distances. The code is followed; the other reading's figure is in `tests/reference/README.md`. The code
/// also multiplies rotated queries and keys by 0.05 ln(N/L) + 1, with a remark that the paper did not:
/// `mscale` gives it, 1 by default.
///
/// Defaults: C = 3/4 L and w = L/8, those of the code for Llama.
pub(super) static METHOD: Method = Method {
    name: "dca",
    about:
        "Dual Chunk Attention: positions restart in each chunk, and one distance stands for farther chunks; \
            needs no training",
    axis: Axis::Reach,
    params: &[
        param! { "chunk", Count(2, 1 << 30), "3/4 of original", "tokens",
            "largest distance shown; the chunks have chunk - local tokens"
        },
        param! { "local", Count(1, 1 << 30), "chunk / 6, at most original / 8", "tokens",
            "number of tokens that keep true distances across a chunk border"
        },
        param! { "mscale", Number(0.1, 10.0),
            "1; the authors' code has 0.05 ln(context / original) + 1", "",
            "factor on rotated q and on rotated k"
        },
        Param::ORIGINAL,
    ],
    apply,
};

fn apply(geo: &Geometry<'_>, args: &mut Args<'_>, plan: &mut LayerPlan) -> Result<(), RopeError> {
    let l = geo.n_ctx_orig as u64;
    let chunk = args.count("chunk", || (l * 3 / 4).max(2))?;
    let local = args.count("local", || (l / 8).min(chunk / 6).max(1))?;
    plan.mscale *= args.number("mscale", || 1.0)?;
    if local >= chunk {
        return Err(args.refuse("local", format_args!("below chunk {chunk}"), local));
    }
    if chunk >= l {
        args.note(format!(
            "chunk {chunk} shows distances up to {chunk}, beyond the original context of {l} tokens."
        ));
    }
    let (top, c) = (chunk as i32, (chunk - local) as i32);
    let key = PosMap { modulo: c, ..PosMap::IDENTITY };
    let branch = |q_pos, min, max| Branch {
        q_pos,
        k_pos: key,
        reach: Reach { chunks: Some(Chunks { len: c, min, max }), ..Reach::CAUSAL },
    };
    plan.branches = vec![
        branch(key, 0, 0),
        branch(PosMap { add: c, max: top, ..key }, 1, 1),
        branch(PosMap::constant((2 * i64::from(c) - 1).min(i64::from(top)) as i32), 2, i32::MAX),
    ];
    Ok(())
}
