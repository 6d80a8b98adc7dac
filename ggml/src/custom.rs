//! Custom ops for the CPU: how they are made, and two of them, rotation by a table and dequantization of
//! weights.
//!
//! ggml's rope computes sines anew in every layer, and for every head when each has a base of its own. The
//! table op reads them from an input made once a micro-batch. Weights are dequantized before the product of a
//! large batch because a float product is up to three times faster than that of some quantized types, and
//! does not round activations to 8 bits.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

use kernels::{dequantize, pool, rotate};

use crate::dtype::SysType;
use crate::graph::Builder;
use crate::ops::matrix;
use crate::tensor::{n_bytes, Tensor};
use crate::{sys, DType, Error, Result};

/// Tasks of a node that ggml knows of: the pool divides it further.
const N_TASKS: i32 = 1;

/// Most arguments of a custom op: `GGML_MAX_SRC`. ggml's own function takes one less.
pub(crate) const MAX_ARGS: usize = 10;

#[derive(Debug, Clone, Copy)]
struct RopeTable {
    n_rot: usize,
    neox: bool,
    /// Rotate by the opposite angles, for gradients.
    back: bool,
}

impl<'c> Builder<'c> {
    /// Rotates x (F32 `[d, H, T]`) by a table F32 `[n_rot, n_tables, T]` whose rows are `n_rot/2` cosines and
    /// then as many sines; consecutive groups of `H / n_tables` heads share a table. Dimensions past `n_rot`
    /// are copied.
    pub fn rope_table(&self, x: Tensor<'c>, table: Tensor<'c>, neox: bool) -> Result<Tensor<'c>> {
        self.by_table(x, table, neox, false)
    }

    /// The gradient of x where that of [`Builder::rope_table`]'s result is `grad`: the rotation by the
    /// opposite angles.
    pub fn rope_table_back(&self, grad: Tensor<'c>, table: Tensor<'c>, neox: bool) -> Result<Tensor<'c>> {
        self.by_table(grad, table, neox, true)
    }

    fn by_table(&self, x: Tensor<'c>, table: Tensor<'c>, neox: bool, back: bool) -> Result<Tensor<'c>> {
        let (n, t) = (x.ne(), table.ne());
        let shapes = t[0] % 2 == 0
            && t[0] <= n[0]
            && n[1].is_multiple_of(t[1])
            && t[2] == n[2]
            && n[3] == 1
            && t[3] == 1;
        let types = x.dtype() == DType::F32 && table.dtype() == DType::F32 && x.nb()[0] == 4;
        let table_nb = [4, 4 * t[0], 4 * t[0] * t[1]];
        if !(shapes && types && table.nb()[..3] == table_nb) {
            let what = format!(
                "expected f32 [d,H,T] and f32 [n_rot,n_tables,T], found {}, {}",
                x.describe(),
                table.describe()
            );
            return Err(Error::Op { op: "rope_table", what });
        }
        self.custom(
            DType::F32,
            [n[0], n[1], n[2], 1],
            &[x, table],
            run_rope_table,
            RopeTable { n_rot: t[0], neox, back },
        )
    }

    /// The rows of one or more weight matrices of equal `ne[0]`, one after the other, as F32 or BF16 `[ne0,
    /// sum of ne1]`.
    pub fn dequantize(&self, weights: &[Tensor<'c>], to: DType) -> Result<Tensor<'c>> {
        let first = weights.first().ok_or(Error::Op { op: "dequantize", what: "no weights".into() })?;
        let n = first.ne()[0];
        let ok = |w: &Tensor<'_>| {
            let (ne, nb) = (w.ne(), w.nb());
            ne[0] == n && ne[2] * ne[3] == 1 && matrix(*w) && Some(nb[1]) == w.dtype().row_bytes(n)
        };
        if weights.len() > 8 || !weights.iter().all(ok) || !matches!(to, DType::F32 | DType::BF16) {
            let found: Vec<String> = weights.iter().map(|w| w.describe()).collect();
            let what =
                format!("expected up to 8 weight matrices of one row length, found {}", found.join(", "));
            return Err(Error::Op { op: "dequantize", what });
        }
        let rows = weights.iter().map(|w| w.ne()[1]).sum();
        if n_bytes(to, [n, rows, 1, 1]).is_none() {
            return Err(Error::Op { op: "dequantize", what: format!("{rows} rows of {n} are too many") });
        }
        self.custom(to, [n, rows, 1, 1], weights, run_dequantize, weights.len())
    }

    /// A node of type `dtype` and shape `ne` computed by `f`, which is called for each part with `data`; an error
    /// for more than [`MAX_ARGS`] arguments.
    pub(crate) fn custom<T: Send + Sync + 'static>(
        &self,
        dtype: DType,
        ne: [usize; 4],
        args: &[Tensor<'c>],
        f: ComputeFn,
        data: T,
    ) -> Result<Tensor<'c>> {
        if args.len() > MAX_ARGS {
            let what = format!("at most {MAX_ARGS} arguments, found {}", args.len());
            return Err(Error::Op { op: "custom", what });
        }
        self.spend()?;
        let userdata = self.shared(f, data);
        let mut args: Vec<_> = args.iter().map(|t| t.ptr.as_ptr()).collect();
        let n = ne.map(|n| n as i64);
        // SAFETY: the arena has room (`spend`); fewer arguments than GGML_MAX_SRC; the user data lives in
        // an Arc that the graph keeps; `run` reads it as the type put there.
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
                Some(run::<T>),
                N_TASKS,
                userdata,
            )
        };
        let t = self.wrap("custom", raw)?;
        if let Some(last) = args.get(MAX_ARGS - 1) {
            // SAFETY: `src` has MAX_ARGS places, and the header is new: nothing has walked its sources yet.
            unsafe { (*raw).src[MAX_ARGS - 1] = *last };
        }
        Ok(t)
    }

    /// Puts the user data of a node computed by `f` where the graph keeps it alive. Threads share it, so it is
    /// only read, or changed as atomics. (Of an `Arc`, for moving one leaves pointers into it valid; moving a
    /// `Box` does not.)
    fn shared<T: Send + Sync + 'static>(&self, f: ComputeFn, data: T) -> *mut c_void {
        let node = Arc::new(Node { f, data });
        let userdata = Arc::as_ptr(&node);
        self.keep(node);
        userdata.cast_mut().cast()
    }

    /// A node that `f` computes in the memory of `over`, its first source, before `args`: at most `MAX_ARGS -
    /// 2`.
    pub(crate) fn custom_over<T: Send + Sync + 'static>(
        &self,
        over: Tensor<'c>,
        args: &[Tensor<'c>],
        f: ComputeFn,
        data: T,
    ) -> Result<Tensor<'c>> {
        if args.len() > MAX_ARGS - 2 {
            let what = format!("at most {} arguments, found {}", MAX_ARGS - 2, args.len());
            return Err(Error::Op { op: "custom", what });
        }
        self.spend()?;
        let userdata = self.shared(f, data);
        let mut args: Vec<_> = args.iter().map(|t| t.ptr.as_ptr()).collect();
        // SAFETY: as in `custom`; the result is a view of `over`.
        let raw = unsafe {
            let (args, count) = (args.as_mut_ptr(), args.len() as i32);
            let (arena, over) = (self.arena.as_ptr(), over.ptr.as_ptr());
            sys::ggml_custom_inplace(arena, over, args, count, Some(run::<T>), N_TASKS, userdata)
        };
        self.wrap("custom", raw)
    }
}

/// The function that computes a part of a node: called once with each number below that of all parts, that number and
/// the user data, on several threads at once.
pub(crate) type ComputeFn = unsafe extern "C" fn(*mut sys::ggml_tensor, i32, i32, *mut c_void);

struct Node<T> {
    f: ComputeFn,
    data: T,
}

/// The arguments of a [`ComputeFn`] that all parts share.
struct Shared {
    dst: *mut sys::ggml_tensor,
    data: *mut c_void,
}

// SAFETY: each part of an op writes its own part of dst, and reads its data, or changes it as atomics.
unsafe impl Sync for Shared {}

unsafe extern "C" fn run<T>(dst: *mut sys::ggml_tensor, _: i32, _: i32, node: *mut c_void) {
    let node = node.cast_const().cast::<Node<T>>();
    // SAFETY: ggml passes the user data given to it in `custom`, alive while the graph is.
    let (f, data) = unsafe { ((*node).f, (&raw const (*node).data).cast_mut().cast::<c_void>()) };
    // SAFETY: the node that runs; its sources were computed before.
    let n = pool::parts(|| unsafe { bytes(dst) }) as i32;
    let shared = &Shared { dst, data };
    // SAFETY: what ggml promises to `f`: each number below n once, and all are done when this returns.
    pool::share(n as usize, move |i| unsafe { f(shared.dst, i as i32, n, shared.data) });
}

/// Bytes that a node reads and writes.
///
/// # Safety
/// The node and its sources are valid.
unsafe fn bytes(node: *const sys::ggml_tensor) -> usize {
    // SAFETY: the caller's promise.
    let (own, sources) = unsafe { (sys::ggml_nbytes(node), (*node).src) };
    let sources = sources.iter().take_while(|s| !s.is_null());
    // SAFETY: as above.
    sources.fold(own, |sum, &s| sum.saturating_add(unsafe { sys::ggml_nbytes(s) }))
}

/// `n` words of a node's memory, zeroed: before a node runs nobody has written them, and memory without values must not be
/// borrowed. Some stay as they are here, such as those of a group's missing rows.
///
/// # Safety
/// The words are there for `'a`, aligned, and this thread's alone.
pub(crate) unsafe fn zeroed<'a>(first: *mut u32, n: usize) -> &'a mut [u32] {
    // SAFETY: the caller's promise.
    unsafe {
        first.write_bytes(0, n);
        std::slice::from_raw_parts_mut(first, n)
    }
}

/// [`kernels::share`] of the numbers that ggml passes.
pub(crate) fn share(n: usize, ith: i32, nth: i32) -> std::ops::Range<usize> {
    kernels::share(n, ith as usize, nth as usize)
}

unsafe extern "C" fn run_rope_table(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `rope_table`: dst is a contiguous F32 [d,H,T], its sources are x
    // and the table, checked there; the user data is the RopeTable boxed there. All are alive while the graph
    // is.
    let (dst, x, table, p) = unsafe {
        let dst = &*dst;
        (dst, &*dst.src[0], &*dst.src[1], *(data as *const RopeTable))
    };
    let (d, n_head, n_tokens) = (dst.ne[0] as usize, dst.ne[1] as usize, dst.ne[2] as usize);
    let n_tables = table.ne[1] as usize;
    let group = n_head / n_tables;
    let sign = if p.back { -1.0 } else { 1.0 };
    for row in share(n_head * n_tokens, ith, nth) {
        let (t, h) = (row / n_head, row % n_head);
        // SAFETY: row (h, t) of x has d contiguous f32 at these strides.
        let input = unsafe {
            let at = (x.data as *const u8).add(h * x.nb[1] + t * x.nb[2]);
            std::slice::from_raw_parts(at.cast::<f32>(), d)
        };
        // SAFETY: the table is contiguous [n_rot, n_tables, T], and h / group < n_tables.
        let angles = unsafe {
            let at = (table.data as *const f32).add((t * n_tables + h / group) * p.n_rot);
            std::slice::from_raw_parts(at, p.n_rot)
        };
        // SAFETY: dst is contiguous, and threads take disjoint rows. x may be dst's own memory only if ggml
        // ran the op in place, which it does not do for custom ops.
        let output = unsafe { std::slice::from_raw_parts_mut((dst.data as *mut f32).add(row * d), d) };
        let (cos, sin) = angles.split_at(p.n_rot / 2);
        output[p.n_rot..].copy_from_slice(&input[p.n_rot..]);
        if p.neox {
            rotate::halves(&input[..p.n_rot], cos, sin, sign, &mut output[..p.n_rot]);
        } else {
            rotate::adjacent(&input[..p.n_rot], cos, sin, sign, &mut output[..p.n_rot]);
        }
    }
}

thread_local! {
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn run_dequantize(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `dequantize`: dst is contiguous F32 or BF16, the user data the
    // number of its sources.
    let (dst, n_args) = unsafe { (&*dst, *(data as *const usize)) };
    let n = dst.ne[0] as usize;
    let mut first = 0usize;
    ROW.with_borrow_mut(|scratch| {
        scratch.resize(n, 0.0);
        let mine = share(dst.ne[1] as usize, ith, nth);
        for &source in &dst.src[..n_args] {
            // SAFETY: the sources are the weights checked in `dequantize`, alive while the graph is.
            let (w, rows) = unsafe { (&*source, RowReader::new(&*source)) };
            let n_rows = w.ne[1] as usize;
            for row in mine.start.max(first)..mine.end.min(first + n_rows) {
                if dst.type_ == sys::GGML_TYPE_F32 {
                    // SAFETY: dst is contiguous F32, and threads take disjoint rows of n elements.
                    let out =
                        unsafe { std::slice::from_raw_parts_mut((dst.data as *mut f32).add(row * n), n) };
                    rows.read(row - first, 0, out);
                } else {
                    rows.read(row - first, 0, scratch);
                    // SAFETY: dst is contiguous BF16 (two bytes an element), and threads take disjoint rows.
                    let out =
                        unsafe { std::slice::from_raw_parts_mut((dst.data as *mut u16).add(row * n), n) };
                    dequantize::to_bf16(scratch, out);
                }
            }
            first += n_rows;
        }
    });
}

/// Reads rows of a matrix as floats, whatever its type; those of a contiguous stack of matrices, one after the other.
pub(crate) struct RowReader<'a> {
    w: &'a sys::ggml_tensor,
    block: usize,
    block_bytes: usize,
    ours: Option<dequantize::Convert>,
    ggml: sys::ggml_to_float_t,
}

impl<'a> RowReader<'a> {
    /// # Safety
    /// `w` is a matrix, or a contiguous stack of matrices, of a type that converts to floats: rows of whole blocks side by
    /// side, in memory of the host that has values and that nobody writes during `'a`.
    pub(crate) unsafe fn new(w: &'a sys::ggml_tensor) -> RowReader<'a> {
        // SAFETY: a static table with an entry for every type.
        let traits = unsafe { &*sys::ggml_get_type_traits(w.type_) };
        let (block, block_bytes) = (traits.blck_size as usize, traits.type_size);
        RowReader { w, block, block_bytes, ours: fast_rows(w.type_), ggml: traits.to_float }
    }

    /// Elements of a block.
    pub(crate) fn block(&self) -> usize {
        self.block
    }

    /// Elements of a row from `from` on, whole blocks.
    pub(crate) fn read(&self, row: usize, from: usize, out: &mut [f32]) {
        let (rows, len) = ((self.w.ne[1] * self.w.ne[2]) as usize, self.w.ne[0] as usize);
        let inside = row < rows && from.checked_add(out.len()).is_some_and(|end| end <= len);
        assert!(inside && from.is_multiple_of(self.block) && out.len().is_multiple_of(self.block));
        // SAFETY: inside the matrix by the assertion.
        let at = unsafe {
            (self.w.data as *const u8).add(row * self.w.nb[1] + from / self.block * self.block_bytes)
        };
        match (self.ours, self.ggml) {
            (Some(convert), _) => {
                let n_bytes = out.len() / self.block * self.block_bytes;
                // SAFETY: so many whole blocks, inside the row by the assertion.
                convert(unsafe { std::slice::from_raw_parts(at, n_bytes) }, out);
            }
            // SAFETY: as above, and `out` has room for the floats.
            (_, Some(to_float)) => unsafe { to_float(at.cast(), out.as_mut_ptr(), out.len() as i64) },
            // SAFETY: as above; only f32, of the types that convert, needs no conversion.
            _ => unsafe { out.as_mut_ptr().copy_from_nonoverlapping(at.cast(), out.len()) },
        }
    }
}

/// The conversion of rows that is faster than ggml's, for the types that have one.
fn fast_rows(dtype: sys::ggml_type) -> Option<dequantize::Convert> {
    match dtype {
        sys::GGML_TYPE_F16 => Some(dequantize::f16),
        sys::GGML_TYPE_BF16 => Some(dequantize::bf16),
        sys::GGML_TYPE_Q4_0 => Some(dequantize::q4_0),
        sys::GGML_TYPE_Q4_1 => Some(dequantize::q4_1),
        sys::GGML_TYPE_Q8_0 => Some(dequantize::q8_0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{dequantize, quantize};

    #[test]
    fn the_same_bits_as_ggml() {
        let n = 32 * 70;
        let values: Vec<f32> =
            (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as f32 / 1e6 - 4.0).collect();
        for dtype in [DType::F16, DType::BF16, DType::Q4_0, DType::Q4_1, DType::Q8_0] {
            let row = quantize(dtype, n, &values).unwrap();
            let mut theirs = vec![f32::NAN; n];
            dequantize(dtype, &row, &mut theirs).unwrap();
            let mut ours = vec![f32::NAN; n];
            fast_rows(dtype.sys()).unwrap()(&row, &mut ours);
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&ours), bits(&theirs), "{dtype:?}");
        }
        assert!(fast_rows(DType::Q6_K.sys()).is_none());
    }
}
