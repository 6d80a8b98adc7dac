//! Devices, and backends that run graphs on them.
//!
//! The CPU backend may be a module, so its symbols are looked up through the backend registry.

use std::ffi::{c_void, CStr, CString};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

pub use crate::machine::default_threads;
use crate::{machine, sys, Error, Result};

/// `GGML_MAX_N_THREADS` of ggml.h: threads a CPU backend takes at most.
pub const MAX_N_THREADS: usize = 512;

/// A device ggml can compute on. Devices live as long as the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    ptr: NonNull<sys::ggml_backend_device>,
}

// SAFETY: a ggml device is a static of its backend, never freed, and its functions take no mutable state of
// ours.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The variable by which ggml's CUDA backend lets kernels start early (programmatic dependent launch).
const EARLY_STARTS: &str = "GGML_CUDA_PDL";

/// True if backends are modules here: no backend existed before modules were looked for.
static MODULES: AtomicBool = AtomicBool::new(false);

/// Registers the backends of this build: those linked in are there already; in a build with backends as
/// modules, those next to the program (or where the build put them) are loaded. Runs once.
pub fn ensure_backends() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        crate::logging::install();
        // ggml's CUDA kernels start before the one ahead of them ends, on GPUs from Hopper on. In `flash_attn_ext_vec`, nvcc 13.0
        // loads queries before the wait for that end. Decode with an F16 cache then attends with earlier queries. This turns
        // early starts off; a value that is set stays. A static of the kernels' launcher reads the variable, so there is no
        // other way. `set_var` races with `getenv` in C code of other threads, as a Python process can have: a build without CUDA
        // does not call it, nor does a process that was started with the variable.
        // SAFETY: reads the registry's size.
        let modules = unsafe { sys::ggml_backend_dev_count() } == 0;
        if (modules || cfg!(feature = "cuda")) && std::env::var_os(EARLY_STARTS).is_none() {
            std::env::set_var(EARLY_STARTS, "0");
        }
        if !modules {
            return;
        }
        MODULES.store(true, Ordering::Relaxed);
        for dir in module_folders() {
            let Ok(dir) = CString::new(dir.to_string_lossy().as_bytes()) else { continue };
            // SAFETY: `dir` is a NUL-terminated path; the function copies it.
            unsafe { sys::ggml_backend_load_all_from_path(dir.as_ptr()) };
            // SAFETY: reads the registry's size.
            if unsafe { sys::ggml_backend_dev_count() } > 0 {
                return;
            }
        }
    });
}

fn module_folders() -> impl Iterator<Item = PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|p| p.parent().map(|d| d.to_path_buf()));
    [beside, sys::BACKENDS_DIR.map(PathBuf::from)].into_iter().flatten()
}

/// Why the module that would bring a device of this name was not loaded, if there is one: ggml says so only when asked for a
/// single module.
fn module_refused(device: &str) -> Option<String> {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    let kind = device.split(':').next().filter(|kind| kind.bytes().all(|b| b.is_ascii_alphanumeric()))?;
    let name = CString::new(kind).ok()?;
    // SAFETY: the name is NUL-terminated; the function compares it.
    let is_loaded = || !unsafe { sys::ggml_backend_reg_by_name(name.as_ptr()) }.is_null();
    if !MODULES.load(Ordering::Relaxed) || is_loaded() {
        return None;
    }
    let file = format!("{DLL_PREFIX}ggml-{kind}{DLL_SUFFIX}");
    let path = module_folders().map(|dir| dir.join(&file)).find(|path| path.is_file())?;
    let c_path = CString::new(path.to_string_lossy().as_bytes()).ok()?;
    crate::logging::clear_errors();
    // SAFETY: the path is NUL-terminated; the function copies it. The module is one that was offered at the start.
    unsafe { sys::ggml_backend_load(c_path.as_ptr()) };
    Some(format!("{}: {}", path.display(), crate::logging::errors_or("its driver is not here")))
}

impl Device {
    /// All devices of this build and machine.
    pub fn all() -> Vec<Device> {
        ensure_backends();
        // SAFETY: reads the registry's size.
        let n = unsafe { sys::ggml_backend_dev_count() };
        // SAFETY: `i` is below the count.
        (0..n)
            .filter_map(|i| NonNull::new(unsafe { sys::ggml_backend_dev_get(i) }))
            .map(|ptr| Device { ptr })
            .collect()
    }

    /// The device of a name: `auto` (first GPU, else the CPU), `cpu`, `cuda:0`, `vulkan:1`, ...
    pub fn find(name: &str) -> Result<Device> {
        let all = Device::all();
        let wanted = name.to_ascii_lowercase();
        let found = match wanted.as_str() {
            "auto" => all.iter().find(|d| d.is_gpu()).or_else(|| all.iter().find(|d| d.is_cpu())),
            _ => all.iter().find(|d| d.name() == wanted || d.name() == format!("{wanted}:0")),
        };
        found.copied().ok_or_else(|| {
            let known: Vec<String> = all.iter().map(|d| d.name()).collect();
            let refused = module_refused(&wanted).map_or(String::new(), |why| format!("; {why}"));
            Error::Argument(format!(
                "device '{name}' is not available; available: auto, {}{refused}",
                known.join(", ")
            ))
        })
    }

    /// The name users write: `cpu`, `cuda:0`.
    pub fn name(self) -> String {
        // SAFETY: the device is valid; the name is a static NUL-terminated string.
        let raw = unsafe { CStr::from_ptr(sys::ggml_backend_dev_name(self.ptr.as_ptr())) };
        let raw = raw.to_string_lossy().to_ascii_lowercase();
        match raw.find(|c: char| c.is_ascii_digit()) {
            Some(i) if i > 0 && raw[i..].bytes().all(|b| b.is_ascii_digit()) => {
                format!("{}:{}", &raw[..i], &raw[i..])
            }
            _ => raw,
        }
    }

    /// The name the driver gives the device, such as the processor's model.
    pub fn description(self) -> String {
        // SAFETY: the device is valid; the description is a NUL-terminated string it owns.
        unsafe { CStr::from_ptr(sys::ggml_backend_dev_description(self.ptr.as_ptr())) }
            .to_string_lossy()
            .into_owned()
    }

    pub fn is_cpu(self) -> bool {
        // SAFETY: the device is valid.
        unsafe { sys::ggml_backend_dev_type(self.ptr.as_ptr()) == sys::GGML_BACKEND_DEVICE_TYPE_CPU }
    }

    /// True for GPUs, discrete or integrated.
    pub fn is_gpu(self) -> bool {
        // SAFETY: the device is valid.
        let kind = unsafe { sys::ggml_backend_dev_type(self.ptr.as_ptr()) };
        kind == sys::GGML_BACKEND_DEVICE_TYPE_GPU || kind == sys::GGML_BACKEND_DEVICE_TYPE_IGPU
    }

    /// Free bytes, as far as the driver says; of the CPU, what the system lets this process take, for ggml
    /// calls all memory of a machine free.
    pub fn memory_free(self) -> usize {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both pointers are valid for writes.
        unsafe { sys::ggml_backend_dev_memory(self.ptr.as_ptr(), &mut free, &mut total) };
        if !self.is_cpu() {
            return free;
        }
        machine::memory_available().map_or(free, |n| usize::try_from(n).unwrap_or(usize::MAX))
    }

    /// Returns true if the driver is lavapipe, Mesa's software Vulkan device. ggml keeps its descriptor sets from one
    /// graph to the next and writes only those that the next graph reads. Mesa 22.3 takes a reference to the buffer of
    /// every descriptor, including those that no shader reads and whose buffer has been freed. The heap is corrupted as
    /// soon as a graph's memory has been replaced (`tests/device/buffers.rs`).
    pub(crate) fn is_lavapipe(self) -> bool {
        self.name().starts_with("vulkan:") && self.description().starts_with("llvmpipe")
    }

    pub(crate) fn as_ptr(self) -> *mut sys::ggml_backend_device {
        self.ptr.as_ptr()
    }

    pub(crate) fn buffer_type(self) -> sys::ggml_backend_buffer_type_t {
        // SAFETY: the device is valid; every device has a default buffer type.
        unsafe { sys::ggml_backend_dev_buffer_type(self.ptr.as_ptr()) }
    }

    fn proc_address(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the registry of a valid device is valid; `name` is NUL-terminated.
        NonNull::new(unsafe {
            sys::ggml_backend_reg_get_proc_address(
                sys::ggml_backend_dev_backend_reg(self.ptr.as_ptr()),
                name.as_ptr(),
            )
        })
    }
}

/// A stream of work on a device; on the CPU, on the thread that computes.
#[derive(Debug)]
pub struct Backend {
    ptr: NonNull<sys::ggml_backend>,
    device: Device,
    cancel: Arc<AtomicBool>,
    renews: bool,
}

// SAFETY: a ggml backend may be used from any thread, one at a time; all use is through `&mut Backend`.
unsafe impl Send for Backend {}

/// Number of threads asked for, or [`default_threads`] for 0.
pub(crate) fn thread_count(asked: usize) -> Result<usize> {
    let max = MAX_N_THREADS;
    let n = if asked == 0 { default_threads() } else { asked };
    if n > max {
        return Err(Error::Argument(format!("threads: at most {max}, found {n}")));
    }
    Ok(n)
}

fn start(device: Device) -> Result<NonNull<sys::ggml_backend>> {
    // SAFETY: the device is valid; null parameters are the defaults.
    let ptr = unsafe { sys::ggml_backend_dev_init(device.as_ptr(), std::ptr::null()) };
    NonNull::new(ptr).ok_or_else(|| Error::Backend(format!("{}: the backend did not start", device.name())))
}

impl Backend {
    pub fn new(device: Device) -> Result<Backend> {
        let ptr = start(device)?;
        let renews = device.is_lavapipe();
        let backend = Backend { ptr, device, cancel: Arc::default(), renews };
        if device.is_cpu() {
            backend.set_up()?;
        }
        Ok(backend)
    }

    /// ggml's threads spin until all have done their part of a node: it gets one, and ours divide the large ops.
    fn set_up(&self) -> Result<()> {
        let name = c"ggml_backend_set_n_threads";
        let set_n = self.device.proc_address(name);
        let set_n = set_n
            .ok_or_else(|| Error::Backend(format!("{}: the backend lacks {name:?}", self.device.name())))?;
        // SAFETY: ggml documents this name to be a `ggml_backend_set_n_threads_t`.
        let set_n: sys::ggml_backend_set_n_threads_t = unsafe { std::mem::transmute(set_n.as_ptr()) };
        if let Some(set_n) = set_n {
            // SAFETY: the backend is valid and is the CPU's.
            unsafe { set_n(self.ptr.as_ptr(), 1) };
        }
        if let Some(f) = self.device.proc_address(c"ggml_backend_set_abort_callback") {
            // SAFETY: ggml documents this name to be a `ggml_backend_set_abort_callback_t`.
            let f: sys::ggml_backend_set_abort_callback_t = unsafe { std::mem::transmute(f.as_ptr()) };
            if let Some(f) = f {
                let flag = Arc::as_ptr(&self.cancel) as *mut c_void;
                // SAFETY: the flag lives in the Arc this backend holds until after the backend is freed.
                unsafe { f(self.ptr.as_ptr(), Some(is_cancelled), flag) };
            }
        }
        Ok(())
    }

    /// Called before each graph. On lavapipe (`Device::is_lavapipe`), every graph gets its own backend, and so its own
    /// descriptor sets. This costs a few milliseconds.
    pub(crate) fn before_graph(&mut self) -> Result<()> {
        if self.renews {
            let old = std::mem::replace(&mut self.ptr, start(self.device)?);
            // SAFETY: the pointer was ours and this is its only free; no graph is running, as running one borrows us.
            unsafe { sys::ggml_backend_free(old.as_ptr()) };
        }
        Ok(())
    }

    pub fn device(&self) -> Device {
        self.device
    }

    /// A flag that stops a running graph between two nodes when it is set (CPU only). It is not reset here.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    pub(crate) fn as_ptr(&self) -> sys::ggml_backend_t {
        self.ptr.as_ptr()
    }
}

unsafe extern "C" fn is_cancelled(data: *mut c_void) -> bool {
    // SAFETY: `data` is the AtomicBool passed in `set_up`, alive as long as its backend.
    unsafe { &*(data as *const AtomicBool) }.load(Ordering::Relaxed)
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: the pointer is ours and this is its only free; no graph is running, as running one borrows
        // us.
        unsafe { sys::ggml_backend_free(self.ptr.as_ptr()) };
    }
}
