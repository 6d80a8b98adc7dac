//! GGUF files and ggml: its own reader finds what ours wrote, and every type of a file can be read.

use ggml::dtype::dequantize_tensor;
use ggml::DType;
use gguf::{File, Writer};

#[test]
fn every_type_of_a_file_is_dequantized_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("types.gguf");
    let mut writer = Writer::new();
    for dtype in DType::ALL {
        let shape = [2 * dtype.block_size() as u64];
        writer.tensor_bytes(dtype.name(), *dtype, &shape, vec![0u8; 2 * dtype.block_bytes()]).unwrap();
    }
    writer.write(&path).unwrap();
    let file = File::open(&path).unwrap();
    for t in file.tensors() {
        match dequantize_tensor(&file, t) {
            Ok(values) => assert!(t.dtype.can_dequantize() && values.len() == t.n_elements(), "{}", t.name),
            Err(e) => assert!(!t.dtype.can_dequantize() && e.to_string().contains(&t.name), "{e}"),
        }
    }
}

#[test]
fn weights_of_the_default_model_are_finite() {
    let file = File::open(&crate::fetched::default_model()).unwrap();
    let rows = dequantize_tensor(&file, file.tensor("blk.0.attn_q.weight").unwrap()).unwrap();
    assert!(rows.iter().all(|v| v.is_finite()) && rows.iter().any(|v| *v != 0.0));
}

/// ggml's own reader, which is stricter about offsets and padding, finds what was written.
#[test]
fn ggml_reads_it_too() {
    use llama_cpp_sys_2 as sys;
    use std::ffi::CString;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let mut w = Writer::new();
    w.set("general.alignment", 64u32).set("name", "x").set("bases", vec![1e4f32, 2e4]).set("on", true);
    w.tensor_bytes("a", DType::F32, &[3], [1u8; 12]).unwrap();
    w.tensor_bytes("b", DType::Q4_K, &[512, 2], [2u8; 4 * 144]).unwrap();
    w.tensor_bytes("c", DType::F16, &[1, 2, 3, 1], [3u8; 12]).unwrap();
    w.write(&path).unwrap();
    let file = File::open(&path).unwrap();

    let c_path = CString::new(path.to_str().unwrap()).unwrap();
    let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
    // SAFETY: a C string that outlives the call, and parameters that ask for the metadata only.
    let theirs = unsafe { sys::gguf_init_from_file(c_path.as_ptr(), params) };
    assert!(!theirs.is_null());
    // SAFETY: `theirs` is what ggml just opened; the keys and names are there, as the assertions check first.
    unsafe {
        assert_eq!((sys::gguf_get_n_kv(theirs), sys::gguf_get_n_tensors(theirs)), (4, 3));
        assert_eq!(sys::gguf_get_alignment(theirs), 64);
        let bases = sys::gguf_find_key(theirs, c"bases".as_ptr());
        assert!(bases >= 0 && sys::gguf_get_arr_n(theirs, bases) == 2);
        assert_eq!(*sys::gguf_get_arr_data(theirs, bases).cast::<f32>().add(1), 2e4);
        for t in file.tensors() {
            let name = CString::new(t.name.as_str()).unwrap();
            let id = sys::gguf_find_tensor(theirs, name.as_ptr());
            assert!(id >= 0, "{}", t.name);
            assert_eq!(sys::gguf_get_tensor_type(theirs, id), t.dtype.raw());
            assert_eq!(sys::gguf_get_tensor_size(theirs, id), t.n_bytes);
            let data = sys::gguf_get_data_offset(theirs) + sys::gguf_get_tensor_offset(theirs, id);
            assert_eq!(data, t.offset);
        }
        sys::gguf_free(theirs);
    }
}
