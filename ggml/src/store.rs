//! Stores: tensors that outlive graphs, such as weights and caches.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use crate::backend::Device;
use crate::dtype::SysType;
use crate::tensor::{Arena, TensorDef};
use crate::{sys, DType, Error, Result};

/// Tensors with data of their own on one device: weights (written once, then shared) or caches (written by
/// graphs).
#[derive(Debug)]
pub struct Store {
    device: Device,
    defs: Vec<TensorDef>,
    tensors: Vec<NonNull<sys::ggml_tensor>>,
    n_bytes: usize,
    /// Held by whoever reads or writes a store's data from the host or runs a graph that may write it.
    pub(crate) access: Mutex<()>,
    pub(crate) read_only: bool,
    /// Headers without memory: graphs over it can be measured, not built.
    pub(crate) planned: bool,
    _arena: Arena,
    buffers: Vec<Buffer>,
}

// SAFETY: headers are immutable after construction; data of a writable store is touched only under `access`,
// and read-only ones are never written after construction.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

#[derive(Debug)]
struct Buffer {
    ptr: NonNull<sys::ggml_backend_buffer>,
    _mapping: Option<Arc<files::Map>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: ours, freed once, before the mapping it may point into.
        unsafe { sys::ggml_backend_buffer_free(self.ptr.as_ptr()) }
    }
}

/// The place of a weight's bytes: a mapped file and an offset in it.
#[derive(Debug, Clone)]
pub struct Mapped {
    pub file: Arc<files::Map>,
    pub offset: usize,
}

impl Store {
    /// Allocates zeroed, writable tensors.
    pub fn new(device: Device, defs: Vec<TensorDef>, what: &str) -> Result<Arc<Store>> {
        let mut store = Store::headers(device, defs, false)?;
        store.allocate(what, true)?;
        Ok(Arc::new(store))
    }

    /// The headers of [`Store::new`] without memory: graphs over them can be measured, not built.
    pub fn planned(device: Device, defs: Vec<TensorDef>) -> Result<Arc<Store>> {
        let mut store = Store::headers(device, defs, false)?;
        store.planned = true;
        for t in &store.tensors {
            // SAFETY: the headers are ours alone. An address, each tensor's own, keeps the graph allocator
            // from giving it memory. It is never followed: executors refuse to build graphs over planned
            // stores, and `range` reads and writes.
            unsafe { (*t.as_ptr()).data = t.as_ptr().cast() };
        }
        Ok(Arc::new(store))
    }

    /// Weights from mapped files. On devices that can, tensors point into the mapping; elsewhere the bytes
    /// are uploaded.
    pub fn from_mapped(device: Device, entries: Vec<(TensorDef, Mapped)>) -> Result<Arc<Store>> {
        let (defs, sources): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        for (def, source) in defs.iter().zip(&sources) {
            let end = source.offset.checked_add(def.n_bytes()?);
            if end.is_none_or(|e| e > source.file.len()) {
                return Err(Error::Argument(format!("{}: its data lies outside its file", def.name)));
            }
        }
        let mut store = Store::headers(device, defs, true)?;
        // Kernels load whole vectors: ggml wants its own alignment, which a file with a smaller one cannot
        // promise.
        let aligned =
            sources.iter().all(|s| s.offset % 32 == 0 && (s.file.as_ptr() as usize).is_multiple_of(32));
        if device.is_cpu() && aligned {
            store.map(&sources)?;
        } else {
            store.allocate("weights", false)?;
            for (i, source) in sources.iter().enumerate() {
                let n = store.defs[i].n_bytes()?;
                // SAFETY: checked above: `n` bytes of the map begin at the offset.
                let bytes = unsafe { source.file.as_ptr().add(source.offset) };
                // SAFETY: the tensor is allocated and holds exactly `n` bytes, which the map, alive in `sources`,
                // has from `bytes` on; nobody else has the store yet.
                unsafe { sys::ggml_backend_tensor_set(store.tensors[i].as_ptr(), bytes.cast(), 0, n) };
            }
        }
        Ok(Arc::new(store))
    }

    /// Read-only tensors with data from the host; `bytes` gives those of each, in order.
    pub fn from_bytes(
        device: Device,
        defs: Vec<TensorDef>,
        what: &str,
        bytes: &mut dyn FnMut(usize) -> Result<Vec<u8>>,
    ) -> Result<Arc<Store>> {
        let mut store = Store::headers(device, defs, true)?;
        store.allocate(what, false)?;
        for (i, def) in store.defs.iter().enumerate() {
            let (data, n) = (bytes(i)?, def.n_bytes()?);
            if data.len() != n {
                let found = data.len();
                return Err(Error::Argument(format!("{}: expected {n} bytes, found {found}", def.name)));
            }
            // SAFETY: the tensor is allocated and holds exactly `n` bytes; nobody else has the store yet.
            unsafe { sys::ggml_backend_tensor_set(store.tensors[i].as_ptr(), data.as_ptr().cast(), 0, n) };
        }
        Ok(Arc::new(store))
    }

    fn headers(device: Device, defs: Vec<TensorDef>, read_only: bool) -> Result<Store> {
        let arena = Arena::new(defs.len() + 1, 1024)?;
        let mut tensors = Vec::with_capacity(defs.len());
        let mut n_bytes = 0usize;
        for def in &defs {
            n_bytes = n_bytes
                .checked_add(def.n_bytes()?)
                .ok_or_else(|| Error::Argument(format!("{}: all tensors together overflow", def.name)))?;
            let ne = def.ne.map(|n| n as i64);
            // SAFETY: the arena has room for each header, and `n_bytes` has shown that the shape suits the
            // type.
            let t = unsafe { sys::ggml_new_tensor(arena.as_ptr(), def.dtype.sys(), 4, ne.as_ptr()) };
            let t =
                NonNull::new(t).ok_or_else(|| Error::Backend(format!("{}: no tensor header", def.name)))?;
            let name = CString::new(def.name.replace('\0', "?")).unwrap_or_default();
            // SAFETY: ggml copies the name, cut to its field.
            unsafe { sys::ggml_set_name(t.as_ptr(), name.as_ptr()) };
            tensors.push(t);
        }
        Ok(Store {
            device,
            defs,
            tensors,
            n_bytes,
            access: Mutex::new(()),
            read_only,
            planned: false,
            _arena: arena,
            buffers: Vec::new(),
        })
    }

    fn allocate(&mut self, what: &str, zero: bool) -> Result<()> {
        if self.defs.is_empty() {
            return Ok(());
        }
        let out_of_memory =
            || Error::OutOfMemory { device: self.device.name(), bytes: self.n_bytes, what: what.to_string() };
        if self.n_bytes > self.device.memory_free() {
            return Err(out_of_memory());
        }
        // SAFETY: the arena's tensors have no data yet; the buffer type is the device's.
        let buffer = unsafe {
            sys::ggml_backend_alloc_ctx_tensors_from_buft(self._arena.as_ptr(), self.device.buffer_type())
        };
        let ptr = NonNull::new(buffer).ok_or_else(out_of_memory)?;
        if zero {
            // SAFETY: the buffer is ours and new.
            unsafe { sys::ggml_backend_buffer_clear(ptr.as_ptr(), 0) };
        }
        if self.read_only {
            // SAFETY: the buffer is valid.
            unsafe {
                sys::ggml_backend_buffer_set_usage(ptr.as_ptr(), sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
            };
        }
        self.buffers.push(Buffer { ptr, _mapping: None });
        Ok(())
    }

    fn map(&mut self, sources: &[Mapped]) -> Result<()> {
        let mut bases: Vec<(*const u8, NonNull<sys::ggml_backend_buffer>)> = Vec::new();
        for (i, source) in sources.iter().enumerate() {
            let base = source.file.as_ptr();
            let buffer = match bases.iter().find(|(b, _)| *b == base) {
                Some((_, buffer)) => *buffer,
                None => {
                    // SAFETY: the mapping is readable for its whole length and kept alive by the Buffer
                    // below. ggml takes a mutable pointer but weights are only read: no op of ours has a
                    // read-only store's tensor as destination.
                    let raw = unsafe {
                        sys::ggml_backend_dev_buffer_from_host_ptr(
                            self.device.as_ptr(),
                            base as *mut std::ffi::c_void,
                            source.file.len(),
                            source.file.len(),
                        )
                    };
                    let ptr = NonNull::new(raw).ok_or_else(|| {
                        Error::Backend(format!("{}: cannot use mapped memory", self.device.name()))
                    })?;
                    // SAFETY: the buffer is valid.
                    unsafe {
                        sys::ggml_backend_buffer_set_usage(
                            ptr.as_ptr(),
                            sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS,
                        )
                    };
                    self.buffers.push(Buffer { ptr, _mapping: Some(Arc::clone(&source.file)) });
                    bases.push((base, ptr));
                    ptr
                }
            };
            // SAFETY: `from_mapped` checked that offset and size lie inside the mapping.
            let address = unsafe { base.add(source.offset) } as *mut std::ffi::c_void;
            // SAFETY: the header is new (no data, no buffer) and the address range lies inside the buffer.
            let status =
                unsafe { sys::ggml_backend_tensor_alloc(buffer.as_ptr(), self.tensors[i].as_ptr(), address) };
            if status != sys::GGML_STATUS_SUCCESS {
                return Err(Error::Backend(format!("{}: ggml refused the mapped data", self.defs[i].name)));
            }
        }
        Ok(())
    }

    /// The device that holds the tensors.
    pub fn device(&self) -> Device {
        self.device
    }

    pub fn defs(&self) -> &[TensorDef] {
        &self.defs
    }

    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    pub(crate) fn tensor(&self, index: usize) -> Option<NonNull<sys::ggml_tensor>> {
        self.tensors.get(index).copied()
    }

    fn range(&self, index: usize, offset: usize, n: usize) -> Result<NonNull<sys::ggml_tensor>> {
        let def =
            self.defs.get(index).ok_or_else(|| Error::Argument(format!("no tensor {index} in the store")))?;
        if offset.checked_add(n).is_none_or(|end| end > def.n_bytes().unwrap_or(0)) {
            return Err(Error::Argument(format!("{}: bytes {offset}+{n} lie outside it", def.name)));
        }
        if self.planned {
            return Err(Error::Argument(format!("{}: it is only planned", def.name)));
        }
        Ok(self.tensors[index])
    }

    /// Sets all of tensor `index` of a writable store to zero.
    pub fn zero(&self, index: usize) -> Result<()> {
        let n = self.defs.get(index).map_or(Ok(0), TensorDef::n_bytes)?;
        let t = self.range(index, 0, n)?;
        if self.read_only {
            return Err(Error::Argument(format!("{}: weights are read-only", self.defs[index].name)));
        }
        let _guard = self.access.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the whole of an allocated tensor; the lock keeps graphs and other hosts' accesses out
        // meanwhile.
        unsafe { sys::ggml_backend_tensor_memset(t.as_ptr(), 0, 0, n) };
        Ok(())
    }

    /// Reads floats of tensor `index` (F32), from element `first` on.
    pub fn read_f32(&self, index: usize, first: usize, out: &mut [f32]) -> Result<()> {
        self.is_f32(index)?;
        self.read(index, first.saturating_mul(4), bytemuck::cast_slice_mut(out))
    }

    /// Writes floats of tensor `index` (F32) of a writable store, from element `first` on.
    pub fn write_f32(&self, index: usize, first: usize, values: &[f32]) -> Result<()> {
        self.is_f32(index)?;
        self.write(index, first.saturating_mul(4), bytemuck::cast_slice(values))
    }

    fn is_f32(&self, index: usize) -> Result<()> {
        match self.defs.get(index) {
            Some(def) if def.dtype != DType::F32 => {
                Err(Error::Argument(format!("{}: expected f32, found {}", def.name, def.dtype.name())))
            }
            _ => Ok(()),
        }
    }

    /// Reads bytes of tensor `index`.
    pub fn read(&self, index: usize, offset: usize, out: &mut [u8]) -> Result<()> {
        let t = self.range(index, offset, out.len())?;
        let _guard = self.access.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the range was checked; the lock keeps graphs from writing meanwhile.
        unsafe { sys::ggml_backend_tensor_get(t.as_ptr(), out.as_mut_ptr().cast(), offset, out.len()) };
        Ok(())
    }

    /// Writes bytes of tensor `index` of a writable store.
    pub fn write(&self, index: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        let t = self.range(index, offset, bytes.len())?;
        if self.read_only {
            return Err(Error::Argument(format!("{}: weights are read-only", self.defs[index].name)));
        }
        let _guard = self.access.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the range was checked; the lock keeps graphs and other hosts' accesses out meanwhile.
        unsafe { sys::ggml_backend_tensor_set(t.as_ptr(), bytes.as_ptr().cast(), offset, bytes.len()) };
        Ok(())
    }
}

#[derive(Debug, Clone)]
pub struct StoreTensor {
    pub store: Arc<Store>,
    pub index: usize,
}

impl StoreTensor {
    pub fn def(&self) -> &TensorDef {
        &self.store.defs[self.index]
    }
}
