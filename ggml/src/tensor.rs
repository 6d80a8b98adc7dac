//! Handles of a graph's tensors, and the definitions of stored ones.

use std::marker::PhantomData;
use std::ptr::NonNull;

pub use crate::store::{Mapped, Store, StoreTensor};
use crate::{sys, DType, Error, Result};

/// Ties a tensor to one builder: invariant in `'c`, so that the brands of two builders have no common
/// lifetime.
pub(crate) type Brand<'c> = PhantomData<fn(&'c ()) -> &'c ()>;

/// Most elements of a tensor in all: more than a device holds, few enough that no size or shape made from it
/// overflows.
const MAX_ELEMENTS: usize = 1 << 46;

/// Most rows of a tensor, elements of a row, and elements of a contiguous copy. ggml's kernels count them in ints
/// and add the number of threads. Larger ones are rejected when the tensor or the copy is made.
pub const MAX_INDEX: usize = i32::MAX as usize - 1024;

/// Bytes of a tensor of this type and shape; `None` when there can be no such tensor.
pub(crate) fn n_bytes(dtype: DType, ne: [usize; 4]) -> Option<usize> {
    let n_rows = ne[1..].iter().try_fold(1usize, |n, &m| n.checked_mul(m))?;
    if ne[0] > MAX_INDEX || n_rows > MAX_INDEX {
        return None;
    }
    let n = ne.iter().try_fold(1usize, |n, &m| n.checked_mul(m)).filter(|&n| n > 0 && n <= MAX_ELEMENTS)?;
    dtype.row_bytes(ne[0])?.checked_mul(n / ne[0])
}

/// A tensor inside a graph under construction: of one builder, and gone with it.
///
/// It can neither leave the closure that builds the graph
///
/// ```compile_fail,E0521
/// fn smuggle(exec: &mut ggml::graph::Executor) {
///     let mut kept = None;
///     let _ = exec.build::<_, ggml::Error>(8, |b| {
///         kept = Some(b.input("x", ggml::DType::F32, &[1])?.1);
///         Ok(())
///     });
/// }
/// ```
///
/// (its id can)
///
/// ```
/// fn smuggle(exec: &mut ggml::graph::Executor) {
///     let mut kept = None;
///     let _ = exec.build::<_, ggml::Error>(8, |b| {
///         kept = Some(b.input("x", ggml::DType::F32, &[1])?.0);
///         Ok(())
///     });
/// }
/// ```
///
/// nor be used in the graph of another executor:
///
/// ```compile_fail,E0521
/// fn mix(one: &mut ggml::graph::Executor, other: &mut ggml::graph::Executor) {
///     let _ = one.build::<_, ggml::Error>(8, |b| {
///         let x = b.input("x", ggml::DType::F32, &[1])?.1;
///         other.build::<_, ggml::Error>(8, |c| c.scale(x, 2.0).map(|_| ()))
///     });
/// }
/// ```
///
/// (in its own it can)
///
/// ```
/// fn mix(one: &mut ggml::graph::Executor, other: &mut ggml::graph::Executor) {
///     let _ = one.build::<_, ggml::Error>(8, |b| {
///         let x = b.input("x", ggml::DType::F32, &[1])?.1;
///         other.build::<_, ggml::Error>(8, |c| b.scale(x, 2.0).map(|_| ()))
///     });
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'c> {
    pub(crate) ptr: NonNull<sys::ggml_tensor>,
    pub(crate) brand: Brand<'c>,
}

impl Tensor<'_> {
    pub(crate) fn raw(&self) -> &sys::ggml_tensor {
        // SAFETY: the tensor lives in an arena that outlives the handle's lifetime, and nobody writes its
        // header meanwhile.
        unsafe { self.ptr.as_ref() }
    }

    /// An identifier of the tensor, unique within its graph.
    pub fn id(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    /// Shape, `ne[0]` first.
    pub fn ne(&self) -> [usize; 4] {
        self.raw().ne.map(|n| n as usize)
    }

    pub fn nb(&self) -> [usize; 4] {
        self.raw().nb
    }

    pub fn dtype(&self) -> DType {
        // The C enum is signed with some compilers.
        #[allow(clippy::unnecessary_cast)]
        let raw = self.raw().type_ as u32;
        DType::from_raw(raw).unwrap_or(DType::F32)
    }

    pub fn describe(&self) -> String {
        format!("{} {:?}", self.dtype().name(), self.ne())
    }
}

/// A metadata arena: tensor headers, no data.
#[derive(Debug)]
pub(crate) struct Arena(NonNull<sys::ggml_context>);

// SAFETY: a ggml context is plain memory; access to it is through its single owner.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new(n_tensors: usize, extra: usize) -> Result<Arena> {
        // SAFETY: a constant of the library.
        let overhead = unsafe { sys::ggml_tensor_overhead() };
        let bytes = n_tensors
            .checked_mul(overhead)
            .and_then(|b| b.checked_add(extra))
            .ok_or_else(|| Error::Argument(format!("{n_tensors} tensors are too many for one arena")))?;
        let params =
            sys::ggml_init_params { mem_size: bytes, mem_buffer: std::ptr::null_mut(), no_alloc: true };
        // SAFETY: the parameters are valid; a null buffer makes ggml allocate one.
        NonNull::new(unsafe { sys::ggml_init(params) }).map(Arena).ok_or_else(|| Error::OutOfMemory {
            device: "cpu".into(),
            bytes,
            what: "tensor headers".into(),
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ggml_context {
        self.0.as_ptr()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: ours, freed once; handles into it cannot outlive it.
        unsafe { sys::ggml_free(self.0.as_ptr()) }
    }
}

/// Name, element type and shape of a stored tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorDef {
    /// Name, for messages and dumps.
    pub name: String,
    pub dtype: DType,
    /// Shape, `ne[0]` first.
    pub ne: [usize; 4],
}

impl TensorDef {
    /// A definition of up to four dimensions.
    pub fn new(name: impl Into<String>, dtype: DType, shape: &[usize]) -> Result<TensorDef> {
        let name = name.into();
        let mut ne = [1usize; 4];
        if shape.is_empty() || shape.len() > 4 {
            return Err(Error::Argument(format!(
                "{name}: a tensor has 1 to 4 dimensions, found {}",
                shape.len()
            )));
        }
        ne[..shape.len()].copy_from_slice(shape);
        let def = TensorDef { name, dtype, ne };
        def.n_bytes()?;
        Ok(def)
    }

    pub fn n_bytes(&self) -> Result<usize> {
        n_bytes(self.dtype, self.ne).ok_or_else(|| {
            let (name, dtype) = (&self.name, self.dtype.name());
            Error::Argument(format!("{name}: {dtype} {:?} is not a possible tensor", self.ne))
        })
    }
}
