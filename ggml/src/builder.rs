//! A graph under construction: its inputs, outputs and stored tensors. The ops are in `ops` and `custom`.
//!
//! The threads of one op do not synchronize with each other. The regions they write are therefore disjoint, and the
//! same op does not read them. Row indices are checked when they are set. A graph with an input that was never set is
//! rejected.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::backend::Device;
use crate::dtype::SysType;
use crate::tensor::{Arena, Brand, Store, StoreTensor, Tensor};
use crate::{sys, DType, Error, Result};

/// An input of the graph built last: filled by the host before each compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputId(pub(crate) usize);

/// An output of the graph built last: read by the host after each compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputId(pub(crate) usize);

/// Most bytes of all of a graph's tensors together, so that ggml's sums of them cannot overflow.
const MAX_GRAPH_BYTES: usize = 1 << 60;

/// An input tensor and what the executor checks when it is set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input {
    pub(crate) ptr: NonNull<sys::ggml_tensor>,
    /// Values are row indices below this.
    pub(crate) limit: Option<usize>,
    /// No index may be there twice.
    pub(crate) once: bool,
    /// True if the host has set the values since the graph was built.
    pub(crate) is_set: bool,
}

/// A graph under construction. Ops are methods on it (see `ops`).
#[derive(Debug)]
pub struct Builder<'c> {
    pub(crate) arena: &'c Arena,
    pub(crate) brand: Brand<'c>,
    pub(crate) device: Device,
    pub(crate) graph: NonNull<sys::ggml_cgraph>,
    /// On the CPU: ops of our own, which threads divide, may stand in for ggml's.
    pub(crate) own: bool,
    /// Bytes of an op from which on threads share it.
    pub(crate) divide_from: usize,
    pub(crate) n_bytes: Cell<usize>,
    pub(crate) inputs: RefCell<Vec<Input>>,
    pub(crate) outputs: RefCell<Vec<NonNull<sys::ggml_tensor>>>,
    pub(crate) stores: RefCell<Vec<Arc<Store>>>,
    pub(crate) functions: RefCell<Vec<Arc<dyn Any + Send + Sync>>>,
    /// Tensor headers left of the arena's budget.
    pub(crate) left: Cell<usize>,
    /// Nodes that are in the graph already.
    pub(crate) expanded: RefCell<HashSet<NonNull<sys::ggml_tensor>>>,
}

impl<'c> Builder<'c> {
    /// Takes a fresh header from the arena's budget; an error when the graph is larger than promised.
    pub(crate) fn spend(&self) -> Result<()> {
        let left = self.left.get().checked_sub(1);
        self.left
            .set(left.ok_or_else(|| Error::Op { op: "graph", what: "more tensors than reserved".into() })?);
        Ok(())
    }

    pub(crate) fn wrap(&self, op: &'static str, ptr: *mut sys::ggml_tensor) -> Result<Tensor<'c>> {
        let ptr =
            NonNull::new(ptr).ok_or_else(|| Error::Op { op, what: "ggml returned no tensor".into() })?;
        let t = Tensor { ptr, brand: self.brand };
        // Views too: one can have more rows than its source.
        let Some(n_bytes) = crate::tensor::n_bytes(t.dtype(), t.ne()) else {
            return Err(Error::Op { op, what: format!("the result, {}, is too large", t.describe()) });
        };
        if t.raw().view_src.is_null() {
            let total = n_bytes.checked_add(self.n_bytes.get());
            let what = "the graph's tensors are too large together".to_string();
            self.n_bytes.set(total.filter(|&n| n <= MAX_GRAPH_BYTES).ok_or(Error::Op { op, what })?);
        }
        Ok(t)
    }

    /// Declares the values of an input to be row indices below `limit`: checked when it is set, as ggml
    /// aborts on others.
    pub(crate) fn index(&self, op: &'static str, t: Tensor<'c>, limit: usize) -> Result<()> {
        let mut inputs = self.inputs.borrow_mut();
        let input = inputs.iter_mut().find(|i| i.ptr == t.ptr);
        let what = || "row indices must be an input of the graph itself".to_string();
        let input = input.ok_or_else(|| Error::Op { op, what: what() })?;
        input.limit = Some(input.limit.map_or(limit, |l| l.min(limit)));
        // SAFETY: the tensor is valid. An output's memory is not lent to later nodes, so indices stay what
        // was checked.
        unsafe { sys::ggml_set_output(t.ptr.as_ptr()) };
        Ok(())
    }

    /// Checks like [`Builder::index`], and that the indices differ from each other.
    pub(crate) fn index_once(&self, op: &'static str, t: Tensor<'c>, limit: usize) -> Result<()> {
        self.index(op, t, limit)?;
        self.inputs.borrow_mut().iter_mut().filter(|i| i.ptr == t.ptr).for_each(|i| i.once = true);
        Ok(())
    }

    /// Keeps the function of a node alive as long as the graph.
    pub(crate) fn keep(&self, f: Arc<dyn Any + Send + Sync>) {
        self.functions.borrow_mut().push(f);
    }

    /// An input tensor, filled through [`Executor::set`](crate::graph::Executor::set) and its kin.
    pub fn input(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<(InputId, Tensor<'c>)> {
        let def = crate::tensor::TensorDef::new(name, dtype, shape)?;
        self.spend()?;
        let ne = def.ne.map(|n| n as i64);
        // SAFETY: the arena has room (`spend`), and TensorDef has shown that the shape suits the type.
        let t = unsafe { sys::ggml_new_tensor(self.arena.as_ptr(), dtype.sys(), 4, ne.as_ptr()) };
        let t = self.wrap("input", t)?;
        // SAFETY: the tensor is valid.
        unsafe { sys::ggml_set_input(t.ptr.as_ptr()) };
        self.name(t, name);
        let mut inputs = self.inputs.borrow_mut();
        inputs.push(Input { ptr: t.ptr, limit: None, once: false, is_set: false });
        Ok((InputId(inputs.len() - 1), t))
    }

    /// The tensor of an input of this graph.
    pub fn given(&self, id: InputId) -> Result<Tensor<'c>> {
        let ptr = self.inputs.borrow().get(id.0).map(|input| input.ptr);
        let none = || Error::Op { op: "given", what: format!("the graph has no input {}", id.0) };
        Ok(Tensor { ptr: ptr.ok_or_else(none)?, brand: self.brand })
    }

    /// A stored tensor, as a leaf of this graph; the store is kept alive with the graph.
    pub fn stored(&self, t: &StoreTensor) -> Result<Tensor<'c>> {
        let op = "stored";
        let source = t.store.tensor(t.index);
        let source = source.ok_or_else(|| Error::Op { op, what: format!("no tensor {}", t.index) })?;
        if t.store.device() != self.device {
            let (there, here) = (t.store.device().name(), self.device.name());
            return Err(Error::Op { op, what: format!("the tensor is on {there}, the graph on {here}") });
        }
        self.spend()?;
        // SAFETY: a store's headers are valid and never written.
        let source = unsafe { source.as_ref() };
        // SAFETY: the arena has room (`spend`), and a tensor of this type and shape exists.
        let raw = unsafe { sys::ggml_new_tensor(self.arena.as_ptr(), source.type_, 4, source.ne.as_ptr()) };
        // Not counted: its memory is the store's.
        let ptr = NonNull::new(raw).ok_or_else(|| Error::Op { op, what: "no tensor header".into() })?;
        // A header of the graph's own: building writes flags and names into headers, and stores are shared by
        // threads. SAFETY: the header is new, ours alone, and describes the same memory as the source's.
        unsafe {
            (*raw).data = source.data;
            (*raw).buffer = source.buffer;
            (*raw).extra = source.extra;
            (*raw).name = source.name;
        }
        let mut stores = self.stores.borrow_mut();
        if !stores.iter().any(|s| Arc::ptr_eq(s, &t.store)) {
            stores.push(Arc::clone(&t.store));
        }
        Ok(Tensor { ptr, brand: self.brand })
    }

    /// Marks a tensor as read by the host, and makes the graph compute it.
    pub fn output(&self, t: Tensor<'c>) -> OutputId {
        // SAFETY: the tensor is valid.
        unsafe { sys::ggml_set_output(t.ptr.as_ptr()) };
        self.expand(t);
        let mut outputs = self.outputs.borrow_mut();
        outputs.push(t.ptr);
        OutputId(outputs.len() - 1)
    }

    /// Adds a tensor and all it needs to the graph at this point of its order.
    pub fn expand(&self, t: Tensor<'c>) {
        let mut expanded = self.expanded.borrow_mut();
        // ggml walks sources recursively, as deep as the graph: given them first, in its own order, it has
        // nowhere to go.
        let mut path = vec![(t.ptr, 0)];
        while let Some((node, next)) = path.pop() {
            if next == 0 && !expanded.insert(node) {
                continue;
            }
            // SAFETY: tensors of a graph and their sources live in its arena, or in the arena of a store it
            // keeps.
            let sources = unsafe { node.as_ref() }.src;
            match sources.get(next) {
                Some(&source) => {
                    path.push((node, next + 1));
                    path.extend(NonNull::new(source).map(|s| (s, 0)));
                }
                // SAFETY: graph and tensor belong to this arena; the graph has room for every header the
                // arena can hold.
                None => unsafe {
                    sys::ggml_build_forward_expand(self.graph.as_ptr(), node.as_ptr());
                },
            }
        }
    }

    /// Names a node, for dumps and messages.
    pub fn name(&self, t: Tensor<'c>, name: &str) {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: ggml copies the name, cut to its field.
        unsafe { sys::ggml_set_name(t.ptr.as_ptr(), name.as_ptr()) };
    }
}
