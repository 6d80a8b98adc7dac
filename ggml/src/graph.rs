//! Running graphs. One executor owns a backend, its compute buffer and the graph built last.
//!
//! There is no scheduler: `ggml_backend_sched` silently moves ops to the CPU. The executor asks `supports_op` for every
//! node instead, and fails if the device lacks one.
//!
//! Building a graph costs more than a small decode step, so graphs of equal shape are reused.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard};

use kernels::pool::ThreadPool;

use crate::backend::{thread_count, Backend, Device};
use crate::builder::Input;
use crate::dtype::Element;
use crate::machine::thread_time;
use crate::tensor::{Arena, Store, Tensor};

use crate::{sys, DType, Error, Result};

pub use crate::builder::{Builder, InputId, OutputId};

/// Most tensors of a graph: enough for any model's, and its headers fit in memory.
const MAX_TENSORS: usize = 1 << 19;

/// Bytes that an op reads and writes from which on threads share it: with fewer one alone takes some microseconds.
const DIVIDE_FROM: usize = 32 << 10;

#[derive(Debug)]
struct Built {
    graph: NonNull<sys::ggml_cgraph>,
    computed: bool,
    inputs: Vec<Input>,
    outputs: Vec<NonNull<sys::ggml_tensor>>,
    stores: Vec<Arc<Store>>,
    _functions: Vec<Arc<dyn Any + Send + Sync>>,
    arena: Arena,
}

impl Built {
    /// A graph with room for so many tensors, and none in it.
    fn new(max_tensors: usize) -> Result<Built> {
        if max_tensors == 0 || max_tensors > MAX_TENSORS {
            let what = format!("a graph has 1 to {MAX_TENSORS} tensors, found {max_tensors}");
            return Err(Error::Argument(what));
        }
        // SAFETY: a pure function of the size.
        let graph_bytes = unsafe { sys::ggml_graph_overhead_custom(max_tensors, false) };
        let arena = Arena::new(max_tensors, graph_bytes + 4096)?;
        // SAFETY: the arena has room for a graph of this size.
        let graph = unsafe { sys::ggml_new_graph_custom(arena.as_ptr(), max_tensors, false) };
        let graph = NonNull::new(graph).ok_or_else(|| Error::Backend("no graph".into()))?;
        Ok(Built {
            graph,
            computed: false,
            inputs: Vec::new(),
            outputs: Vec::new(),
            stores: Vec::new(),
            _functions: Vec::new(),
            arena,
        })
    }
}

/// One order for all executors: two that lock the same stores must not wait for each other.
fn in_order(mut stores: Vec<Arc<Store>>) -> Vec<Arc<Store>> {
    stores.sort_by_key(|s| Arc::as_ptr(s) as usize);
    stores
}

/// A backend, its compute buffer, and the graph built last.
#[derive(Debug)]
pub struct Executor {
    // Dropped in this order: nothing may point into what is gone.
    built: Option<Built>,
    galloc: Galloc,
    backend: Backend,
    pool: Option<ThreadPool>,
    /// True if ops of our own can replace ggml's.
    own: bool,
    divide_from: usize,
}

#[derive(Debug)]
struct Galloc(NonNull<sys::ggml_gallocr>);

impl Galloc {
    fn new(backend: &Backend) -> Result<Galloc> {
        // SAFETY: the device's buffer type is valid for the life of the process.
        let galloc = unsafe { sys::ggml_gallocr_new(backend.device().buffer_type()) };
        NonNull::new(galloc).map(Galloc).ok_or_else(|| Error::Backend("no graph allocator".into()))
    }
}

impl Drop for Galloc {
    fn drop(&mut self) {
        // SAFETY: ours, freed once.
        unsafe { sys::ggml_gallocr_free(self.0.as_ptr()) }
    }
}

// SAFETY: all pointers are owned by the executor (or kept alive by the Arcs in it) and used only through
// `&mut self` or for reads through `&self` while no compute runs.
unsafe impl Send for Executor {}

impl Executor {
    /// An executor on a device. On the CPU `n_threads` (0: [`default_threads`](crate::backend::default_threads)) share the
    /// large ops of a graph; other devices ignore the number. Results are the same for any.
    pub fn new(device: Device, n_threads: usize) -> Result<Executor> {
        Executor::dividing_from(DIVIDE_FROM, device, n_threads)
    }

    /// The same, where threads share ops that read and write at least so many bytes.
    pub fn dividing_from(bytes: usize, device: Device, n_threads: usize) -> Result<Executor> {
        let n = thread_count(n_threads)?;
        let pool = (device.is_cpu() && n > 1).then(|| ThreadPool::new(n, bytes, thread_time)).transpose();
        let pool = pool.map_err(|e| Error::Backend(format!("threads: {e}")))?;
        Ok(Executor { pool, own: device.is_cpu(), divide_from: bytes, ..Executor::portable(device)? })
    }

    /// An executor on a device for the ops that every device has. On the CPU it computes them on one thread.
    pub fn portable(device: Device) -> Result<Executor> {
        let backend = Backend::new(device)?;
        Ok(Executor {
            built: None,
            galloc: Galloc::new(&backend)?,
            backend,
            pool: None,
            own: false,
            divide_from: DIVIDE_FROM,
        })
    }

    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    pub fn buffer_bytes(&self) -> usize {
        // SAFETY: the allocator is valid and has one buffer.
        unsafe { sys::ggml_gallocr_get_buffer_size(self.galloc.0.as_ptr(), 0) }
    }

    /// Bytes a graph's intermediate tensors would need, without allocating them.
    pub fn measure<R, E: From<Error>>(
        &mut self,
        max_tensors: usize,
        f: impl for<'c> FnOnce(&Builder<'c>) -> Result<R, E>,
    ) -> Result<usize, E> {
        let (built, _) = self.construct(max_tensors, f)?;
        Ok(self.size(&built)?)
    }

    fn size(&self, built: &Built) -> Result<usize> {
        // An allocator that has only measured believes it has buffers, so one of its own does it.
        let galloc = Galloc::new(&self.backend)?;
        let mut bytes = [0usize; 1];
        // SAFETY: one buffer, so one size is written; null ids put every tensor in buffer 0.
        unsafe {
            sys::ggml_gallocr_reserve_n_size(
                galloc.0.as_ptr(),
                built.graph.as_ptr(),
                std::ptr::null(),
                std::ptr::null(),
                bytes.as_mut_ptr(),
            )
        };
        Ok(bytes[0])
    }

    /// Builds a graph, replacing the one before, and gives its intermediate tensors memory. Every op must be
    /// one the device can run: nothing moves to another device silently.
    pub fn build<R, E: From<Error>>(
        &mut self,
        max_tensors: usize,
        f: impl for<'c> FnOnce(&Builder<'c>) -> Result<R, E>,
    ) -> Result<R, E> {
        let (built, result) = self.construct(max_tensors, f)?;
        self.allocate(built)?;
        Ok(result)
    }

    // Graphs are built by hundreds of closures, so what does not depend on them is in functions that are compiled once.

    /// Replaces the graph by a new one, with memory for its intermediate tensors.
    fn allocate(&mut self, built: Built) -> Result<()> {
        if built.stores.iter().any(|s| s.planned) {
            return Err(Error::Argument("a graph over planned tensors can only be measured".into()));
        }
        self.check_supported(&built)?;
        self.built = None;
        // SAFETY: the graph is valid; the allocator's former graph is gone.
        if !unsafe { sys::ggml_gallocr_alloc_graph(self.galloc.0.as_ptr(), built.graph.as_ptr()) } {
            // The allocator now believes it has the buffers it could not get.
            self.galloc = Galloc::new(&self.backend)?;
            let (device, bytes) = (self.backend.device().name(), self.size(&built)?);
            return Err(Error::OutOfMemory { device, bytes, what: "compute buffers".into() });
        }
        self.built = Some(built);
        Ok(())
    }

    fn construct<R, E: From<Error>>(
        &mut self,
        max_tensors: usize,
        f: impl for<'c> FnOnce(&Builder<'c>) -> Result<R, E>,
    ) -> Result<(Built, R), E> {
        let mut built = Built::new(max_tensors)?;
        let builder = self.builder(&built, max_tensors);
        let result = f(&builder)?;
        let Builder { inputs, outputs, stores, functions, .. } = builder;
        built.inputs = inputs.into_inner();
        built.outputs = outputs.into_inner();
        built.stores = in_order(stores.into_inner());
        built._functions = functions.into_inner();
        Ok((built, result))
    }

    fn builder<'c>(&self, built: &'c Built, max_tensors: usize) -> Builder<'c> {
        Builder {
            arena: &built.arena,
            brand: PhantomData,
            device: self.backend.device(),
            graph: built.graph,
            own: self.own,
            divide_from: self.divide_from,
            n_bytes: Cell::new(0),
            inputs: RefCell::default(),
            outputs: RefCell::default(),
            stores: RefCell::default(),
            functions: RefCell::default(),
            left: Cell::new(max_tensors),
            expanded: RefCell::default(),
        }
    }

    fn check_supported(&self, built: &Built) -> Result<()> {
        // SAFETY: the graph is valid.
        let n = unsafe { sys::ggml_graph_n_nodes(built.graph.as_ptr()) };
        for i in 0..n {
            // SAFETY: `i` is below the number of nodes.
            let node = unsafe { sys::ggml_graph_node(built.graph.as_ptr(), i) };
            // SAFETY: device and node are valid.
            if !unsafe { sys::ggml_backend_dev_supports_op(self.backend.device().as_ptr(), node) } {
                let node = self.handle(node)?;
                // SAFETY: the description is a static NUL-terminated string.
                let op = unsafe { std::ffi::CStr::from_ptr(sys::ggml_op_desc(node.ptr.as_ptr())) }
                    .to_string_lossy();
                // SAFETY: a tensor's name is NUL-terminated inside its header.
                let name = unsafe { std::ffi::CStr::from_ptr(node.raw().name.as_ptr()) }.to_string_lossy();
                let what = format!(
                    "{} cannot run {op} '{name}' giving {}",
                    self.backend.device().name(),
                    node.describe()
                );
                return Err(Error::Backend(what));
            }
        }
        Ok(())
    }

    fn handle<'a>(&'a self, ptr: *mut sys::ggml_tensor) -> Result<Tensor<'a>> {
        let ptr = NonNull::new(ptr).ok_or_else(|| Error::Backend("a graph node is missing".into()))?;
        Ok(Tensor { ptr, brand: PhantomData })
    }

    fn input(&self, id: InputId) -> Result<(Input, Tensor<'_>)> {
        let input = self.built.as_ref().and_then(|b| b.inputs.get(id.0)).ok_or_else(no_tensor)?;
        Ok((*input, Tensor { ptr: input.ptr, brand: PhantomData }))
    }

    /// Fills an input of any plain-data type; types and lengths must agree, and row indices lie in range.
    pub fn set<T: Element>(&mut self, id: InputId, values: &[T]) -> Result<()> {
        let (Input { limit, once, .. }, t) = self.input(id)?;
        let refuse = |what| Err(Error::Op { op: "set", what });
        if !T::HOLDS.contains(&t.dtype()) || values.len() != t.ne().iter().product::<usize>() {
            let given = T::HOLDS[0].name();
            return refuse(format!("{} values of {given} for an input {}", values.len(), t.describe()));
        }
        if let Some(limit) = limit {
            let rows = || values.iter().filter_map(|v| v.index());
            if let Some(bad) = rows().find(|&i| i < 0 || i as usize >= limit) {
                return refuse(format!("row {bad} of {limit}"));
            }
            if let Some(twice) = repeated(rows()).filter(|_| once) {
                return refuse(format!("row {twice} twice, and each is written once"));
            }
        }
        if in_graph(t) {
            let (data, n) = (values.as_ptr().cast(), std::mem::size_of_val(values));
            // SAFETY: the tensor has memory, and the values are as many and of its type: exactly its bytes.
            unsafe { sys::ggml_backend_tensor_set(t.ptr.as_ptr(), data, 0, n) };
        }
        self.was_set(id);
        Ok(())
    }

    fn was_set(&mut self, id: InputId) {
        if let Some(input) = self.built.as_mut().and_then(|b| b.inputs.get_mut(id.0)) {
            input.is_set = true;
        }
    }

    /// Lets `f` fill an input (F16 as raw bits), in place on the CPU, uploaded elsewhere. `f` finds what was
    /// there before, at first zeros, or what the graph made of it. Row indices go through [`Executor::set`].
    pub fn fill<T: Element>(&mut self, id: InputId, f: impl FnOnce(&mut [T])) -> Result<()> {
        let (Input { limit, is_set, .. }, t) = self.input(id)?;
        if !T::HOLDS.contains(&t.dtype()) || limit.is_some() {
            let what = format!("{} for an input {}", T::HOLDS[0].name(), t.describe());
            return Err(Error::Op { op: "fill", what });
        }
        if !in_graph(t) {
            return Ok(());
        }
        let n = t.ne().iter().product::<usize>();
        // SAFETY: the buffer is valid while the graph is.
        if unsafe { sys::ggml_backend_buffer_is_host(t.raw().buffer) } {
            let data = t.raw().data.cast::<T>();
            if !is_set {
                // SAFETY: host memory of `n` elements of our compute buffer, which nobody has written yet.
                unsafe { data.write_bytes(0, n) };
            }
            // SAFETY: the same memory, written now, of plain numbers, which the allocator aligns to more than
            // theirs; `&mut self` excludes a running graph.
            f(unsafe { std::slice::from_raw_parts_mut(data, n) });
        } else {
            let mut staging = vec![T::zeroed(); n];
            f(&mut staging);
            let bytes = std::mem::size_of_val(&staging[..]);
            // SAFETY: exactly the tensor's bytes.
            unsafe { sys::ggml_backend_tensor_set(t.ptr.as_ptr(), staging.as_ptr().cast(), 0, bytes) };
        }
        self.was_set(id);
        Ok(())
    }

    /// Runs the graph built last. Each of its inputs must have been given values since it was built. (Those of
    /// the run before are there no more where the graph lent their memory to results; row indices are.)
    pub fn compute(&mut self) -> Result<Outcome> {
        let built = self.built.as_mut().ok_or_else(|| Error::Argument("no graph to compute".into()))?;
        let unset = built.inputs.iter().filter(|i| !i.is_set);
        let unset = unset.map(|i| Tensor { ptr: i.ptr, brand: PhantomData }).find(|t| in_graph(*t));
        if let Some(t) = unset {
            // SAFETY: a tensor's name is NUL-terminated inside its header.
            let name = unsafe { std::ffi::CStr::from_ptr(t.raw().name.as_ptr()) }.to_string_lossy();
            let what = format!("input '{name}' of the graph, {}, is not set", t.describe());
            return Err(Error::Argument(what));
        }
        built.computed = false;
        self.backend.before_graph()?;
        let (backend, graph) = (self.backend.as_ptr(), built.graph.as_ptr());
        let _guards = lock(&built.stores);
        // SAFETY: graph, buffers and stores are alive; writable stores are locked; inputs were allocated by `build`.
        let compute = || unsafe { sys::ggml_backend_graph_compute(backend, graph) };
        let status = self.pool.as_mut().map_or_else(compute, |pool| pool.run(compute));
        built.computed = status == sys::GGML_STATUS_SUCCESS;
        match status {
            sys::GGML_STATUS_SUCCESS => Ok(Outcome::Done),
            sys::GGML_STATUS_ABORTED => Ok(Outcome::Cancelled),
            sys::GGML_STATUS_ALLOC_FAILED => Err(Error::OutOfMemory {
                device: self.backend.device().name(),
                bytes: 0,
                what: "work buffers of a graph".into(),
            }),
            other => Err(Error::Backend(format!(
                "{}: the graph failed with status {other}",
                self.backend.device().name()
            ))),
        }
    }

    /// The tensor of an output; an error if it was not computed, or is not contiguous F32.
    fn output(&self, id: OutputId) -> Result<Tensor<'_>> {
        if self.built.as_ref().is_some_and(|b| !b.computed) {
            return Err(Error::Argument("the graph has not been computed".into()));
        }
        let ptr = *self.built.as_ref().and_then(|b| b.outputs.get(id.0)).ok_or_else(no_tensor)?;
        let t = Tensor { ptr, brand: PhantomData };
        // SAFETY: the tensor is valid.
        if t.dtype() != DType::F32 || !unsafe { sys::ggml_is_contiguous(t.ptr.as_ptr()) } {
            let what =
                format!("an output must be contiguous f32, it is {}, strides {:?}", t.describe(), t.nb());
            return Err(Error::Op { op: "read", what });
        }
        Ok(t)
    }

    /// Copies an F32 output to the host.
    pub fn read_f32(&self, id: OutputId, out: &mut Vec<f32>) -> Result<()> {
        let t = self.output(id)?;
        let n = t.ne().iter().product::<usize>();
        out.resize(n, 0.0);
        let _guards = self.built.as_ref().map(|b| lock(&b.stores));
        // SAFETY: outputs of a computed graph are allocated; `output` has shown that this one holds n f32
        // without gaps.
        unsafe { sys::ggml_backend_tensor_get(t.ptr.as_ptr(), out.as_mut_ptr().cast(), 0, n * 4) };
        Ok(())
    }

    /// An F32 output in host memory, without a copy; `None` when it is on a device or is a store's own
    /// tensor.
    pub fn borrow_f32(&self, id: OutputId) -> Result<Option<&[f32]>> {
        let t = self.output(id)?;
        let raw = t.raw();
        if raw.buffer.is_null() {
            return Ok(None);
        }
        // SAFETY: the buffer of an allocated output is valid while the graph is.
        let ours = unsafe {
            sys::ggml_backend_buffer_is_host(raw.buffer)
                && sys::ggml_backend_buffer_get_usage(raw.buffer) == sys::GGML_BACKEND_BUFFER_USAGE_COMPUTE
        };
        if !ours {
            return Ok(None);
        }
        let n = t.ne().iter().product::<usize>();
        // SAFETY: host memory of n contiguous f32 in our own compute buffer; the borrow of self keeps the
        // graph and excludes another compute.
        Ok(Some(unsafe { std::slice::from_raw_parts(raw.data.cast::<f32>(), n) }))
    }
}

fn no_tensor() -> Error {
    Error::Argument("no such tensor in the graph".into())
}

/// Returns true if a tensor of the graph has memory. An input that nothing depends on has none.
fn in_graph(t: Tensor<'_>) -> bool {
    !t.raw().data.is_null() && !t.raw().buffer.is_null()
}

/// A number that is there twice.
fn repeated(numbers: impl Iterator<Item = i64> + Clone) -> Option<i64> {
    if numbers.clone().is_sorted_by(|a, b| a < b) {
        return None; // As cells of a cache come, mostly.
    }
    let mut sorted: Vec<i64> = numbers.collect();
    sorted.sort_unstable();
    sorted.windows(2).find(|w| w[0] == w[1]).map(|w| w[0])
}

/// Locks the writable stores against the host and other executors. `stores` is sorted by address, so that all
/// executors lock in one order.
fn lock(stores: &[Arc<Store>]) -> Vec<MutexGuard<'_, ()>> {
    let writable = stores.iter().filter(|s| !s.read_only);
    writable.map(|s| s.access.lock().unwrap_or_else(|e| e.into_inner())).collect()
}

/// How a graph run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The cancel flag stopped it; outputs and caches it was writing are unusable.
    Cancelled,
}
