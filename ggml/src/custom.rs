//! Custom ops for the CPU: how they are made, and two of them, rotation by a table and dequantization of
//! weights.
//!
//! ggml's rope computes sines again in every layer, and for every head when each head has its own base. The
//! table op reads them from an input made once a micro-batch. Weights are dequantized before the product of a
//! large batch because a float product is up to three times faster than that of some quantized types, and
//! does not round activations to 8 bits.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

use kernels::{dequantize, rotate};

use crate::dtype::SysType;
use crate::graph::Builder;
use crate::node::{run, Part, Source};
use crate::ops::{check, f32_rows, plain, possible, weight};
use crate::tensor::Tensor;
use crate::{sys, DType, Error, Result};

/// Tasks of a node that ggml knows of: the pool divides it further.
const N_TASKS: i32 = 1;

/// Most arguments of a custom op: `GGML_MAX_SRC`. ggml's own function takes one less.
pub(crate) const MAX_ARGS: usize = 10;

impl<'c> Builder<'c> {
    /// Rotates x (F32 `[d, H, T]`) by a table F32 `[n_rot, n_tables, T]` whose rows are `n_rot/2` cosines and
    /// then as many sines; consecutive groups of `H / n_tables` heads share a table. Dimensions past `n_rot`
    /// are copied. `back` rotates by the opposite angles, which gives the gradient of x from that of the result.
    pub fn rope_table(&self, x: Tensor<'c>, table: Tensor<'c>, neox: bool, back: bool) -> Result<Tensor<'c>> {
        let (op, n, t) = ("rope_table", x.ne(), table.ne());
        let shapes = t[0] % 2 == 0 && t[0] <= n[0] && n[1].is_multiple_of(t[1]) && t[2] == n[2] && n[3] == 1;
        let types = f32_rows(x) && plain(table, DType::F32, [t[0], t[1], t[2], 1]);
        check(shapes && types, op, "f32 [d,H,T] and f32 [n_rot,n_tables,T]", &[x, table])?;
        let sign = if back { -1.0 } else { 1.0 };
        self.custom(op, DType::F32, n, &[x, table], move |part| run_rope_table(part, neox, sign))
    }

    /// The rows of one or more weight matrices of equal `ne[0]`, one after the other, as F32 or BF16 `[ne0,
    /// sum of ne1]`.
    pub fn dequantize(&self, weights: &[Tensor<'c>], to: DType) -> Result<Tensor<'c>> {
        let first = weights.first().ok_or(Error::Op { op: "dequantize", what: "no weights".into() })?;
        let n = first.ne()[0];
        let ok = |w: &Tensor<'_>| w.ne()[0] == n && weight(*w);
        if weights.len() > 8 || !weights.iter().all(ok) || !matches!(to, DType::F32 | DType::BF16) {
            let found: Vec<String> = weights.iter().map(|w| w.describe()).collect();
            let what =
                format!("expected up to 8 weight matrices of one row length, found {}", found.join(", "));
            return Err(Error::Op { op: "dequantize", what });
        }
        let rows = weights.iter().map(|w| w.ne()[1]).sum();
        self.custom("dequantize", to, [n, rows, 1, 1], weights, run_dequantize)
    }

    /// A node of type `dtype` and shape `ne` whose parts `f` computes, on several threads at once; an error for more than
    /// [`MAX_ARGS`] arguments, and for a shape that is not [`possible`]. The graph keeps `f`.
    pub(crate) fn custom<F: Fn(Part<'_>) + Send + Sync + 'static>(
        &self,
        op: &'static str,
        dtype: DType,
        ne: [usize; 4],
        args: &[Tensor<'c>],
        f: F,
    ) -> Result<Tensor<'c>> {
        if args.len() > MAX_ARGS {
            let what = format!("at most {MAX_ARGS} arguments, found {}", args.len());
            return Err(Error::Op { op, what });
        }
        possible(op, dtype, ne)?;
        self.spend()?;
        let f = self.kept(f);
        let mut args: Vec<_> = args.iter().map(|t| t.ptr.as_ptr()).collect();
        let n = ne.map(|n| n as i64);
        // SAFETY: the arena has room (`spend`); fewer arguments than GGML_MAX_SRC; the function is in an Arc that the
        // graph keeps; `run` reads it as the type put there.
        let raw = unsafe {
            let (args, count) = (args.as_mut_ptr(), args.len().min(MAX_ARGS - 1) as i32);
            sys::ggml_custom_4d(
                self.arena.as_ptr(),
                dtype.sys(),
                n[0],
                n[1],
                n[2],
                n[3],
                args,
                count,
                Some(run::<F>),
                N_TASKS,
                f,
            )
        };
        let t = self.wrap(op, raw)?;
        if let Some(last) = args.get(MAX_ARGS - 1) {
            // SAFETY: `src` has MAX_ARGS places, and the header is new: nothing has walked its sources yet.
            unsafe { (*raw).src[MAX_ARGS - 1] = *last };
        }
        Ok(t)
    }

    /// A list of `n` words, `None` where they are too many to count, that `f` makes of the rows of `x`.
    pub(crate) fn prepared<F: Fn(Part<'_>) + Send + Sync + 'static>(
        &self,
        op: &'static str,
        n: Option<usize>,
        x: Tensor<'c>,
        f: F,
    ) -> Result<Tensor<'c>> {
        let too_many = || Error::Op { op, what: format!("the rows of {} are too many", x.describe()) };
        self.custom(op, DType::I32, [n.ok_or_else(too_many)?, 1, 1, 1], &[x], f)
    }

    /// Puts a function where the graph keeps it alive. (In an `Arc`, for moving one leaves pointers into it valid; moving a
    /// `Box` does not.)
    fn kept<F: Send + Sync + 'static>(&self, f: F) -> *mut c_void {
        let f = Arc::new(f);
        let data = Arc::as_ptr(&f);
        self.keep(f);
        data.cast_mut().cast()
    }

    /// A node that `f` computes in the memory of `over`, its first source, before `args`: at most `MAX_ARGS -
    /// 2`, none of them in that memory.
    pub(crate) fn custom_over<F: Fn(Part<'_>) + Send + Sync + 'static>(
        &self,
        over: Tensor<'c>,
        args: &[Tensor<'c>],
        f: F,
    ) -> Result<Tensor<'c>> {
        if args.len() > MAX_ARGS - 2 {
            let what = format!("at most {} arguments, found {}", MAX_ARGS - 2, args.len());
            return Err(Error::Op { op: "custom", what });
        }
        self.spend()?;
        let f = self.kept(f);
        let mut args: Vec<_> = args.iter().map(|t| t.ptr.as_ptr()).collect();
        // SAFETY: as in `custom`; the result is a view of `over`.
        let raw = unsafe {
            let (args, count) = (args.as_mut_ptr(), args.len() as i32);
            let (arena, over) = (self.arena.as_ptr(), over.ptr.as_ptr());
            sys::ggml_custom_inplace(arena, over, args, count, Some(run::<F>), N_TASKS, f)
        };
        self.wrap("custom", raw)
    }
}

fn run_rope_table(part: Part<'_>, neox: bool, sign: f32) {
    let ([_, n_head, ..], x, table) = (part.ne(), part.source(0), part.source(1));
    let ([n_rot, n_tables, ..], table) = (table.ne(), table.all::<f32>());
    let group = n_head / n_tables;
    for (row, output) in part.rows::<f32>() {
        let (t, h) = (row / n_head, row % n_head);
        let input = x.row([h, t, 0]);
        let (cos, sin) = table[(t * n_tables + h / group) * n_rot..][..n_rot].split_at(n_rot / 2);
        output[n_rot..].copy_from_slice(&input[n_rot..]);
        if neox {
            rotate::halves(&input[..n_rot], cos, sin, sign, &mut output[..n_rot]);
        } else {
            rotate::adjacent(&input[..n_rot], cos, sin, sign, &mut output[..n_rot]);
        }
    }
}

/// Floats that are read before they are rounded: few enough for a cache.
const SCRATCH: usize = 16 << 10;

thread_local! {
    static ROWS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

fn run_dequantize(part: Part<'_>) {
    let weights: Vec<RowReader<'_>> = part.sources().map(RowReader::new).collect();
    let ([n, n_rows, ..], mine) = (part.ne(), part.share(part.ne()[1]));
    // Rows from one on, which may be of several weights.
    let read = |mut row: usize, mut out: &mut [f32]| {
        for w in &weights {
            let here = w.n_rows().saturating_sub(row).min(out.len() / n.max(1));
            if here > 0 {
                let (first, rest) = out.split_at_mut(here * n);
                w.read(row, 0, first);
                out = rest;
            }
            row = row.saturating_sub(w.n_rows());
        }
    };
    if part.node().type_ == sys::GGML_TYPE_F32 {
        // SAFETY: parts have different rows.
        read(mine.start, unsafe { part.floats().elements(mine.start * n..mine.end * n) });
        return;
    }
    ROWS.with_borrow_mut(|scratch| {
        let (at_once, mut held) = ((SCRATCH / n.max(1)).min(n_rows).max(1), 0..0);
        scratch.resize(at_once * n, 0.0);
        part.rows::<u16>().for_each(|(row, out)| {
            if !held.contains(&row) {
                held = row..mine.end.min(row + at_once);
                read(row, &mut scratch[..held.len() * n]);
            }
            dequantize::to_bf16(&scratch[(row - held.start) * n..][..n], out);
        });
    });
}

/// Reads rows of a matrix as floats, whatever its type; those of a contiguous stack of matrices, one after the other.
pub(crate) struct RowReader<'a> {
    w: &'a sys::ggml_tensor,
    block: usize,
    block_bytes: usize,
    ours: Option<(dequantize::Convert, usize)>,
    ggml: sys::ggml_to_float_t,
}

impl<'a> RowReader<'a> {
    /// # Panics
    /// If it is neither a matrix nor a contiguous stack of matrices, or its type does not convert to floats.
    pub(crate) fn new(w: Source<'a>) -> RowReader<'a> {
        let w = w.tensor();
        // SAFETY: a static table with an entry for every type.
        let traits = unsafe { &*sys::ggml_get_type_traits(w.type_) };
        let (block, block_bytes) = (traits.blck_size as usize, traits.type_size);
        let stack = w.nb[0] == block_bytes && (w.ne[2] == 1 || w.nb[2] == w.nb[1] * w.ne[1] as usize);
        assert!(stack && (w.type_ == sys::GGML_TYPE_F32 || traits.to_float.is_some()), "rows to convert");
        RowReader {
            w,
            block,
            block_bytes,
            ours: DType::from_raw(w.type_).and_then(fast_rows),
            ggml: traits.to_float,
        }
    }

    pub(crate) fn n_rows(&self) -> usize {
        (self.w.ne[1] * self.w.ne[2]) as usize
    }

    /// Elements of a block.
    pub(crate) fn block(&self) -> usize {
        self.block
    }

    /// Elements of a row from `from` on, whole blocks. Where rows lie side by side, they may be those of several.
    pub(crate) fn read(&self, row: usize, from: usize, out: &mut [f32]) {
        let (n_rows, len) = (self.n_rows(), self.w.ne[0] as usize);
        let side_by_side = self.w.nb[1] == len / self.block * self.block_bytes;
        let most = if side_by_side { len * n_rows.saturating_sub(row) } else { len };
        let inside = row < n_rows && from.checked_add(out.len()).is_some_and(|end| end <= most);
        assert!(inside && from.is_multiple_of(self.block) && out.len().is_multiple_of(self.block));
        // SAFETY: inside the matrix by the assertion: it fits in memory, so its elements can be counted.
        let at = unsafe {
            (self.w.data as *const u8).add(row * self.w.nb[1] + from / self.block * self.block_bytes)
        };
        match (self.ours, self.ggml) {
            (Some((convert, fewest)), _) if out.len() / self.block >= fewest => {
                let n_bytes = out.len() / self.block * self.block_bytes;
                // SAFETY: so many whole blocks, inside the row by the assertion.
                convert(unsafe { std::slice::from_raw_parts(at, n_bytes) }, out);
            }
            // SAFETY: as above, and `out` has room for the floats.
            (_, Some(to_float)) => unsafe { to_float(at.cast(), out.as_mut_ptr(), out.len() as i64) },
            // SAFETY: as above; only f32 needs no conversion (`new`).
            _ => unsafe { out.as_mut_ptr().copy_from_nonoverlapping(at.cast(), out.len()) },
        }
    }
}

/// The conversion of rows that is faster than ggml's, for the types that have one, and the fewest blocks for which it is.
fn fast_rows(dtype: DType) -> Option<(dequantize::Convert, usize)> {
    match dtype {
        DType::F16 => Some((dequantize::f16, 1)),
        DType::BF16 => Some((dequantize::bf16, 1)),
        // 1.4 times as fast as by the format.
        DType::Q8_0 => Some((dequantize::q8_0, 1)),
        // Blocks are converted by lanes: half of the most.
        _ => Some((kernels::quants::converter(dtype)?, 8)),
    }
}
