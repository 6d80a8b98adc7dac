//! Graph ops: each checks shapes and types (ggml aborts the process on a wrong one), then makes one call.

use crate::graph::Builder;
use crate::tensor::{n_bytes, Tensor, MAX_INDEX};
use crate::{sys, DType, Error, Result};

/// `GGML_ROPE_TYPE_NEOX` of ggml.h.
const ROPE_TYPE_NEOX: i32 = 2;

pub(crate) fn check(ok: bool, op: &'static str, expected: &str, tensors: &[Tensor<'_>]) -> Result<()> {
    if ok {
        return Ok(());
    }
    let found: Vec<String> = tensors.iter().map(|t| t.describe()).collect();
    Err(Error::Op { op, what: format!("expected {expected}, found {}", found.join(", ")) })
}

pub(crate) fn contiguous(t: Tensor<'_>) -> bool {
    // SAFETY: the tensor is valid.
    unsafe { sys::ggml_is_contiguous(t.ptr.as_ptr()) }
}

/// Returns true if `t` is contiguous, of this type and shape.
pub(crate) fn plain(t: Tensor<'_>, dtype: DType, ne: [usize; 4]) -> bool {
    t.dtype() == dtype && t.ne() == ne && contiguous(t)
}

/// Elements of a row lie side by side (ggml lets rows of one element off; its kernels do not).
pub(crate) fn packed_rows(t: Tensor<'_>) -> bool {
    t.nb()[0] == t.dtype().block_bytes()
}

/// Rows at one distance from each other through all outer dimensions.
pub(crate) fn even_rows(t: Tensor<'_>) -> bool {
    // SAFETY: the tensor is valid.
    packed_rows(t) && unsafe { sys::ggml_is_contiguous_1(t.ptr.as_ptr()) }
}

/// Returns true if ggml's copies can count the elements: in an int if they are contiguous, or of a quantized type.
fn copies(a: Tensor<'_>) -> bool {
    let counted = contiguous(a) || a.dtype().is_quantized();
    !counted || a.ne().iter().product::<usize>() <= MAX_INDEX
}

pub(crate) fn f32_rows(t: Tensor<'_>) -> bool {
    t.dtype() == DType::F32 && packed_rows(t)
}

/// Weights, keys and values: any type with a product, elements of a row side by side.
pub(crate) fn matrix(t: Tensor<'_>) -> bool {
    t.dtype().can_dequantize() && packed_rows(t)
}

/// One such matrix, rows one after the other.
pub(crate) fn weight(t: Tensor<'_>) -> bool {
    let [k, _, a, b] = t.ne();
    matrix(t) && Some(t.nb()[1]) == t.dtype().row_bytes(k) && a * b == 1
}

/// The tensor whose memory `t` is, or is a view of.
pub(crate) fn root(t: Tensor<'_>) -> &sys::ggml_tensor {
    let raw = t.ptr.as_ptr();
    // SAFETY: headers live in arenas that outlive the handle; ggml makes views of views views of their source.
    unsafe {
        if (*raw).view_src.is_null() {
            &*raw
        } else {
            &*(*raw).view_src
        }
    }
}

/// Returns true if two tensors can share memory: they are one tensor of the graph or views of it, or are of the same
/// stored tensor. (The allocator lends a graph tensor's memory to another only when nothing needs it any more.)
pub(crate) fn share_memory(a: Tensor<'_>, b: Tensor<'_>) -> bool {
    let (a, b) = (root(a), root(b));
    // A stored tensor has a header for each time it was asked for. Others have no memory before the graph is
    // built.
    std::ptr::eq(a, b) || (!a.data.is_null() && a.data == b.data)
}

/// Returns true if no two elements share memory, and rows have no gaps.
pub(crate) fn apart(t: Tensor<'_>) -> bool {
    // Dimensions from the innermost out: each must step over all of the one before.
    let mut steps: Vec<(usize, usize)> = (1..4).map(|i| (t.nb()[i], t.ne()[i])).filter(|s| s.1 > 1).collect();
    steps.sort_unstable();
    let extent = t.dtype().row_bytes(t.ne()[0]).and_then(|row| {
        steps.iter().try_fold(row, |extent, &(step, n)| step.checked_mul(n).filter(|_| step >= extent))
    });
    packed_rows(t) && extent.is_some()
}

/// False for weights, which lie in memory that may not be written.
pub(crate) fn writable(t: Tensor<'_>) -> bool {
    let root = root(t);
    // SAFETY: the buffer of a stored tensor lives as long as its store.
    root.buffer.is_null()
        || unsafe { sys::ggml_backend_buffer_get_usage(root.buffer) }
            != sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS
}

/// ggml aborts on a shape whose size overflows, and products of possible shapes can.
pub(crate) fn possible(op: &'static str, dtype: DType, ne: [usize; 4]) -> Result<()> {
    match n_bytes(dtype, ne) {
        Some(_) => Ok(()),
        None => Err(Error::Op { op, what: format!("the result, {} {ne:?}, is too large", dtype.name()) }),
    }
}

pub(crate) fn broadcasts(small: [usize; 4], large: [usize; 4]) -> bool {
    small.iter().zip(large).all(|(&s, l)| s > 0 && l % s == 0)
}

/// A call into ggml whose arguments the surrounding method has checked: tensors, then others.
macro_rules! call {
    ($b:expr, $op:expr, $f:ident ( $($t:expr),* $(; $($arg:expr),*)? )) => {{
        $b.spend()?;
        // SAFETY: the arena has room for the result (`spend`); operands live in it or in stores the graph
        // keeps; this method has checked what the C function asserts.
        let raw = unsafe { sys::$f($b.arena.as_ptr(), $($t.ptr.as_ptr(),)* $($($arg),*)?) };
        $b.wrap($op, raw)
    }};
}
pub(crate) use call;

/// Scalars of [`Builder::rope`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeParams {
    /// Dimensions rotated, even.
    pub n_dims: usize,
    /// Pairs are `(j, j + n_dims/2)` (NeoX) rather than `(2j, 2j+1)`.
    pub neox: bool,
    /// Base of the geometric series; 1 when factors carry the frequencies.
    pub freq_base: f32,
    /// Factor on every angle.
    pub freq_scale: f32,
    /// Factor on the rotated values.
    pub mscale: f32,
}

impl<'c> Builder<'c> {
    /// `a / b` element by element, `b` repeated to `a`'s shape.
    pub fn div(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        let ok = broadcasts(b.ne(), a.ne()) && f32_rows(a) && b.dtype() == DType::F32;
        check(ok, "div", "f32 rows, b to repeat into a", &[a, b])?;
        call!(self, "div", ggml_div(a, b))
    }

    /// Each element, or the nearest number from `least` to `most`; either may be infinite.
    pub fn clamp(&self, a: Tensor<'c>, least: f32, most: f32) -> Result<Tensor<'c>> {
        let ok = a.dtype() == DType::F32 && contiguous(a) && least <= most;
        check(ok, "clamp", "contiguous f32, and two numbers in order", &[a])?;
        call!(self, "clamp", ggml_clamp(a; least, most))
    }

    /// `a * factor`.
    pub fn scale(&self, a: Tensor<'c>, factor: f32) -> Result<Tensor<'c>> {
        check(a.dtype() == DType::F32 && contiguous(a), "scale", "contiguous f32", &[a])?;
        call!(self, "scale", ggml_scale(a; factor))
    }

    /// `F32 [a.ne1, b.ne1, ..]`: each row of `a` (any weight type) times each row of `b` (F32).
    pub fn mul_mat(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        let (x, y) = (a.ne(), b.ne());
        let fits = x[0] == y[0] && y[2].is_multiple_of(x[2]) && y[3].is_multiple_of(x[3]);
        check(
            fits && matrix(a) && a.nb()[0] <= a.nb()[1] && f32_rows(b),
            "mul_mat",
            "equal ne[0], b f32 with contiguous rows, a's outer dimensions dividing b's",
            &[a, b],
        )?;
        possible("mul_mat", DType::F32, [x[1], y[1], y[2], y[3]])?;
        if let Some(out) = self.in_parts(sys::GGML_OP_MUL_MAT, [x[1], y[1], y[2], y[3]], &[a, b])? {
            return Ok(out);
        }
        let out = call!(self, "mul_mat", ggml_mul_mat(a, b))?;
        if a.dtype() == DType::F16 {
            // By default, devices may sum such products in F16, where a score or activation above 65,504 is infinite.
            // SAFETY: the node was just made by mul_mat.
            unsafe { sys::ggml_prec_set_acc(out.ptr.as_ptr(), sys::GGML_PREC_F32) };
        }
        Ok(out)
    }

    /// Each row divided by its root mean square.
    pub fn rms_norm(&self, a: Tensor<'c>, eps: f32) -> Result<Tensor<'c>> {
        check(f32_rows(a) && eps >= 0.0, "rms_norm", "f32 rows, eps >= 0", &[a])?;
        if self.own {
            return self.rms_norm_rows(a, eps);
        }
        call!(self, "rms_norm", ggml_rms_norm(a; eps))
    }

    /// `silu(gate) * up`, same shapes.
    pub fn swiglu(&self, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        let rows = |t| f32_rows(t) && even_rows(t);
        let ok = gate.ne() == up.ne() && rows(gate) && rows(up);
        check(ok, "swiglu", "two f32 matrices of one shape", &[gate, up])?;
        if self.own {
            return self.swiglu_rows(gate, up);
        }
        call!(self, "swiglu", ggml_swiglu_split(gate, up))
    }

    /// The same elements under another shape.
    pub fn reshape(&self, a: Tensor<'c>, shape: &[usize]) -> Result<Tensor<'c>> {
        let mut to = [1usize; 4];
        let fits = shape.len() <= 4;
        to.iter_mut().zip(shape).for_each(|(n, &s)| *n = s);
        let same =
            n_bytes(a.dtype(), to).is_some() && to.iter().product::<usize>() == a.ne().iter().product();
        check(fits && same && contiguous(a), "reshape", "a contiguous tensor of as many elements", &[a])?;
        let ne = to.map(|n| n as i64);
        call!(self, "reshape", ggml_reshape_4d(a; ne[0], ne[1], ne[2], ne[3]))
    }

    /// A window of `a`'s memory: shape, byte strides of dimensions 1 to 3, byte offset.
    pub fn view(&self, a: Tensor<'c>, ne: [usize; 4], nb: [usize; 3], offset: usize) -> Result<Tensor<'c>> {
        let unit = a.dtype().block_bytes();
        let aligned = offset.is_multiple_of(unit) && nb.iter().all(|n| n.is_multiple_of(unit));
        let window = n_bytes(a.dtype(), ne).and_then(|packed| {
            let mut end = a.dtype().row_bytes(ne[0])?.checked_add(offset)?;
            for (n, stride) in ne[1..].iter().zip(nb) {
                end = end.checked_add((n - 1).checked_mul(stride)?)?;
            }
            // ggml also requires room for the elements without gaps: rows of a view cannot overlap.
            Some(end.max(packed.checked_add(offset)?))
        });
        // SAFETY: the tensor is valid.
        let size = unsafe { sys::ggml_nbytes(a.ptr.as_ptr()) };
        let inside = window.is_some_and(|end| end <= size);
        check(inside && aligned, "view", "a window of whole elements inside the tensor", &[a])?;
        let n = ne.map(|n| n as i64);
        call!(self, "view", ggml_view_4d(a; n[0], n[1], n[2], n[3], nb[0], nb[1], nb[2], offset))
    }

    /// Columns `from..from+n` of every row of a matrix, as a view.
    pub fn columns(&self, a: Tensor<'c>, from: usize, n: usize) -> Result<Tensor<'c>> {
        let (ne, nb) = (a.ne(), a.nb());
        let inside = packed_rows(a) && from.checked_add(n).is_some_and(|end| end <= ne[0]);
        check(inside, "columns", "columns inside the rows", &[a])?;
        let Some(offset) = a.dtype().row_bytes(from) else {
            return Err(Error::Op {
                op: "columns",
                what: format!("{from} is inside a block of {}", a.describe()),
            });
        };
        self.view(a, [n, ne[1], ne[2], ne[3]], [nb[1], nb[2], nb[3]], offset)
    }

    /// Dimensions reordered: dimension `i` of `a` becomes dimension `axes[i]`.
    pub fn permute(&self, a: Tensor<'c>, axes: [i32; 4]) -> Result<Tensor<'c>> {
        let mut seen = axes;
        seen.sort_unstable();
        let whole = axes[0] == 0 || !a.dtype().is_quantized();
        check(seen == [0, 1, 2, 3] && whole, "permute", "each axis once, rows of blocks left whole", &[a])?;
        call!(self, "permute", ggml_permute(a; axes[0], axes[1], axes[2], axes[3]))
    }

    /// `a` and then `b` along dimension `dim`; the other dimensions are equal.
    pub fn concat(&self, a: Tensor<'c>, b: Tensor<'c>, dim: usize) -> Result<Tensor<'c>> {
        let (x, y) = (a.ne(), b.ne());
        let same = dim < 4 && (0..4).all(|i| i == dim || x[i] == y[i]);
        let types = a.dtype() == DType::F32 && b.dtype() == DType::F32;
        check(same && types, "concat", "f32, equal in every other dimension", &[a, b])?;
        let mut ne = x;
        ne[dim] = x[dim].saturating_add(y[dim]);
        possible("concat", DType::F32, ne)?;
        call!(self, "concat", ggml_concat(a, b; dim as i32))
    }

    pub fn cont(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        check(copies(a), "cont", "at most 2^31 elements, less some, when they lie side by side", &[a])?;
        call!(self, "cont", ggml_cont(a))
    }

    /// Rows of `a` picked by index (I32, an input of the graph): F32 `[ne0, n]`.
    pub fn get_rows(&self, a: Tensor<'c>, rows: Tensor<'c>) -> Result<Tensor<'c>> {
        let (x, r) = (a.ne(), rows.ne());
        let ok = rows.dtype() == DType::I32 && x[2] == r[1] && x[3] == r[2] && r[3] == 1;
        check(ok && matrix(a), "get_rows", "rows that convert to f32, and i32 row indices", &[a, rows])?;
        possible("get_rows", DType::F32, [x[0], r[0], r[1], r[2]])?;
        self.index("get_rows", rows, x[1])?;
        call!(self, "get_rows", ggml_get_rows(a, rows))
    }

    /// Writes the rows of `src` (F32) into rows `index` (I64, an input of the graph, no row twice) of `dst`;
    /// the result is `dst` after the write.
    ///
    /// ggml's threads divide the rows of `src` and do not wait for each other. No two of them write the same
    /// memory, and none reads what another writes: elements of `dst` lie apart, `src` is of another tensor,
    /// and indices are refused when they are set unless they differ.
    pub fn set_rows(&self, dst: Tensor<'c>, src: Tensor<'c>, index: Tensor<'c>) -> Result<Tensor<'c>> {
        let (d, s, i) = (dst.ne(), src.ne(), index.ne());
        let shapes = d[0] == s[0] && d[2..] == s[2..] && s[1] == i[0] && i[1..] == [1, 1, 1];
        let types = f32_rows(src) && index.dtype() == DType::I64 && dst.dtype().can_quantize();
        check(
            shapes && types && writable(dst) && apart(dst) && !share_memory(dst, src),
            "set_rows",
            "a writable tensor whose rows do not overlap, f32 rows of another and one i64 index for each",
            &[dst, src, index],
        )?;
        self.index_once("set_rows", index, d[1])?;
        call!(self, "set_rows", ggml_set_rows(dst, src, index))
    }

    /// ggml's own rotation of x `[d, H, T]` at positions `[T]` (I32); `factors` (F32, at least d/2, of which
    /// n_dims/2 count) divide the angles. `back` rotates by the opposite ones, which gives the gradient of x from that of
    /// the result.
    pub fn rope(
        &self,
        x: Tensor<'c>,
        pos: Tensor<'c>,
        factors: Option<Tensor<'c>>,
        p: &RopeParams,
        back: bool,
    ) -> Result<Tensor<'c>> {
        let op = if back { "rope_back" } else { "rope" };
        let (n, i) = (x.ne(), pos.ne());
        // ggml copies what is not rotated two by two, and makes an angle for it.
        let dims = n[0].is_multiple_of(2)
            && p.n_dims.is_multiple_of(2)
            && (1..=n[0].min(1 << 30)).contains(&p.n_dims);
        let shapes = i == [n[2], 1, 1, 1] && dims;
        let types = f32_rows(x) && pos.dtype() == DType::I32 && contiguous(pos);
        let table = factors.is_none_or(|f| f.dtype() == DType::F32 && f.ne()[0] >= n[0] / 2 && contiguous(f));
        check(
            shapes && types && table,
            op,
            "f32 [d,H,T] with d even, i32 [T], f32 factors [>= d/2]",
            &[x, pos],
        )?;
        let mode = if p.neox { ROPE_TYPE_NEOX } else { 0 };
        let factors = factors.map_or(std::ptr::null_mut(), |f| f.ptr.as_ptr());
        let (n, base, scale, mscale) = (p.n_dims as i32, p.freq_base, p.freq_scale, p.mscale);
        if back {
            call!(self, op, ggml_rope_ext_back(x, pos; factors, n, mode, 0, base, scale, 0.0, mscale, 32.0, 1.0))
        } else {
            call!(self, op, ggml_rope_ext(x, pos; factors, n, mode, 0, base, scale, 0.0, mscale, 32.0, 1.0))
        }
    }

    pub fn to_f32(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        let ok = a.dtype().can_dequantize() && copies(a);
        check(ok, "to_f32", "a type that converts to f32, and at most 2^31 elements, less some", &[a])?;
        possible("to_f32", DType::F32, a.ne())?;
        call!(self, "to_f32", ggml_cast(a; sys::GGML_TYPE_F32))
    }
}
