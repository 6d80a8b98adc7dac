//! Wrong shapes, types and sizes are errors that name the op. In ggml they end the process, so reaching the
//! end of each test is part of what it checks.

use crate::common::*;
use ggml::backend::Device;
use ggml::graph::{Builder, Executor};
use ggml::ops::RopeParams;
use ggml::tensor::{Store, StoreTensor, Tensor, TensorDef};
use ggml::{DType, Error, Result};

const ROPE: RopeParams = RopeParams { n_dims: 4, neox: false, freq_base: 1e4, freq_scale: 1.0, mscale: 1.0 };

fn t<'c>(b: &Builder<'c>, dtype: DType, shape: &[usize]) -> Tensor<'c> {
    b.input("t", dtype, shape).unwrap().1
}

#[test]
fn types() {
    use DType::*;
    with(|b| {
        let plain = |d| t(b, d, &[256, 4]);
        let f32 = plain(F32);
        let rows = t(b, I32, &[2]);
        for d in DType::ALL.iter().copied().filter(|d| *d != F32) {
            let x = plain(d);
            refused(b.add(x, f32), "add");
            refused(b.add(f32, x), "add");
            refused(b.mul(x, x), "mul");
            refused(b.scale(x, 2.0), "scale");
            refused(b.rms_norm(x, 1e-5), "rms_norm");
            refused(b.swiglu(x, x), "swiglu");
            refused(b.mul_mat(f32, x), "mul_mat");
            refused(b.soft_max(x), "soft_max");
            refused(b.rope(x, t(b, I32, &[1]), None, &ROPE, false), "rope");
            refused(b.rope_table(x, t(b, F32, &[4, 1, 1]), false, false), "rope_table");
            refused(b.rope_table(f32, x, false, false), "rope_table");
            if !d.can_dequantize() {
                refused(b.mul_mat(x, f32), "mul_mat");
                refused(b.get_rows(x, rows), "get_rows");
                refused(b.dequantize(&[x], F32), "dequantize");
                refused(b.to_f32(x), "to_f32");
            }
        }
        Ok(())
    });
}

#[test]
fn products_and_rows() {
    use DType::*;
    with(|b| {
        let f = |shape: &[usize]| t(b, F32, shape);
        refused(b.mul_mat(f(&[8, 2]), f(&[7, 2])), "mul_mat");
        refused(b.mul_mat(f(&[8, 2, 3]), f(&[8, 2, 4])), "mul_mat");
        refused(b.mul_mat(b.permute(f(&[8, 8]), [1, 0, 2, 3])?, f(&[8, 2])), "mul_mat");
        refused(b.mul_mat(f(&[8, 8]), b.permute(f(&[8, 8]), [1, 0, 2, 3])?), "mul_mat");
        // Rows of one element: contiguous to ggml's check, not to its kernels.
        refused(b.dequantize(&[b.permute(f(&[8, 1]), [1, 0, 2, 3])?], F32), "dequantize");
        refused(b.mul_mat(b.permute(f(&[8, 1]), [1, 0, 2, 3])?, f(&[1, 2])), "mul_mat");
        refused(b.mul_mat(f(&[1, 1 << 30]), f(&[1, 1 << 30])), "mul_mat");
        refused(b.add(f(&[8, 2]), f(&[3])), "add");
        refused(b.add(f(&[4]), f(&[8])), "add");
        refused(b.mul(b.permute(f(&[8, 2]), [1, 0, 2, 3])?, f(&[2])), "mul");
        refused(b.scale(b.permute(f(&[4, 2, 3]), [0, 2, 1, 3])?, 2.0), "scale");
        refused(b.rms_norm(f(&[4]), f32::NAN), "rms_norm");
        refused(b.rms_norm(f(&[4]), -1.0), "rms_norm");
        refused(b.swiglu(f(&[4, 2]), f(&[4, 3])), "swiglu");
        refused(b.soft_max(b.permute(f(&[8, 3, 2]), [0, 2, 1, 3])?), "soft_max");

        let rows = t(b, I32, &[3]);
        refused(b.get_rows(f(&[8, 4]), t(b, F32, &[3])), "get_rows");
        refused(b.get_rows(f(&[8, 4]), t(b, I64, &[3])), "get_rows");
        refused(b.get_rows(f(&[8, 4, 2]), rows), "get_rows");
        refused(b.get_rows(f(&[8, 4]), b.cont(rows)?), "get_rows");
        refused(b.get_rows(f(&[8, 4]), b.view(rows, [2, 1, 1, 1], [4, 4, 4], 0)?), "get_rows");
        refused(b.get_rows(b.permute(f(&[4, 8]), [1, 0, 2, 3])?, rows), "get_rows");
        refused(b.get_rows(f(&[1 << 30, 2]), t(b, I32, &[1 << 30])), "get_rows");

        let (index, src) = (t(b, I64, &[3]), f(&[8, 3]));
        refused(b.set_rows(f(&[8, 4]), src, rows), "set_rows");
        refused(b.set_rows(f(&[8, 4]), f(&[8, 2]), index), "set_rows");
        refused(b.set_rows(f(&[7, 4]), src, index), "set_rows");
        refused(b.set_rows(f(&[8, 4]), t(b, F16, &[8, 3]), index), "set_rows");
        refused(b.set_rows(t(b, I64, &[8, 4]), src, index), "set_rows");
        refused(b.set_rows(b.permute(f(&[4, 8]), [1, 0, 2, 3])?, src, index), "set_rows");
        refused(b.set_rows(f(&[8, 4]), src, b.cont(index)?), "set_rows");
        refused(b.set_rows(t(b, IQ2_XS, &[256, 4]), f(&[256, 3]), index), "set_rows");
        Ok(())
    });
}

/// ggml's threads would write the same memory, or read what another writes.
#[test]
fn rows_written_lie_apart() {
    let (cache, _) = stored(DType::F32, &[8, 6], &[0.0; 48]);
    with(|b| {
        let index = t(b, DType::I64, &[3]);
        let src = t(b, DType::F32, &[8, 3]);
        for dst in [t(b, DType::F32, &[8, 6]), b.stored(&cache)?] {
            // Every row the same memory; rows that overlap; planes that do.
            refused(b.set_rows(b.view(dst, [8, 4, 1, 1], [0, 0, 0], 0)?, src, index), "set_rows");
            refused(b.set_rows(b.view(dst, [8, 4, 1, 1], [16, 16, 16], 0)?, src, index), "set_rows");
            let planes = b.view(dst, [8, 2, 2, 1], [32, 0, 0], 0)?;
            refused(b.set_rows(planes, t(b, DType::F32, &[8, 3, 2]), index), "set_rows");
            // Into itself: the tensor, views of it, and another header of a stored one.
            let rows = b.view(dst, [8, 3, 1, 1], [32, 32, 32], 96)?;
            refused(b.set_rows(dst, rows, index), "set_rows");
            refused(b.set_rows(rows, b.view(dst, [8, 3, 1, 1], [32, 32, 32], 0)?, index), "set_rows");
            refused(b.set_rows(b.set_rows(dst, src, index)?, rows, index), "set_rows");
            // Every second row is apart.
            b.set_rows(b.view(dst, [8, 3, 1, 1], [64, 64, 64], 0)?, src, index)?;
        }
        let again = b.view(b.stored(&cache)?, [8, 3, 1, 1], [32, 32, 32], 0)?;
        refused(b.set_rows(b.stored(&cache)?, again, index), "set_rows");
        Ok(())
    });
}

#[test]
fn shapes_views_and_permutations() {
    use DType::*;
    with(|b| {
        let x = t(b, F32, &[8, 4]);
        let q = t(b, Q8_0, &[64, 4]);
        let row = q.nb()[1];
        refused(b.reshape(x, &[8, 5]), "reshape");
        refused(b.reshape(x, &[0, 32]), "reshape");
        refused(b.reshape(x, &[1, 2, 2, 2, 4]), "reshape");
        refused(b.reshape(x, &[(1 << 59) + 1, 32]), "reshape"); // Wraps round to 32 elements.
        refused(b.reshape(q, &[16, 16]), "reshape");
        refused(b.reshape(b.permute(x, [1, 0, 2, 3])?, &[32]), "reshape");
        refused(b.view(x, [8, 5, 1, 1], [32, 160, 160], 0), "view");
        refused(b.view(x, [8, 4, 1, 1], [32, 128, 128], 4), "view");
        refused(b.view(x, [8, 0, 1, 1], [32, 128, 128], 0), "view");
        refused(b.view(x, [8, 9, 1, 1], [0, 0, 0], 0), "view"); // Overlapping rows, each inside.
        refused(b.view(x, [8, usize::MAX, 1, 1], [0, 0, 0], 0), "view");
        refused(b.view(x, [8, 2, 1, 1], [usize::MAX - 3, 0, 0], 0), "view");
        refused(b.view(x, [1, 1, 1, 1], [4, 4, 4], usize::MAX), "view");
        refused(b.view(x, [1, 1, 1, 1], [4, 4, 4], 2), "view"); // Not at an element.
        refused(b.view(x, [4, 2, 1, 1], [18, 36, 36], 0), "view");
        refused(b.view(q, [33, 1, 1, 1], [row, row, row], 0), "view");
        refused(b.view(q, [32, 1, 1, 1], [row, row, row], 4), "view");
        let tail = b.view(x, [8, 1, 1, 1], [32, 32, 32], 96)?;
        refused(b.view(tail, [8, 1, 1, 1], [32, 32, 32], 32), "view"); // Inside x, outside the view.
        refused(b.columns(x, 5, 4), "columns");
        refused(b.columns(x, usize::MAX, 2), "columns");
        refused(b.columns(x, 1 << 62, 1), "columns");
        refused(b.columns(q, 16, 32), "columns");
        assert_eq!(b.columns(q, 32, 32)?.ne(), [32, 4, 1, 1]);
        refused(b.columns(b.permute(x, [1, 0, 2, 3])?, 0, 2), "columns");
        for axes in [[0, 0, 1, 2], [0, 1, 2, 4], [-1, 0, 1, 2], [i32::MAX, 1, 2, 3]] {
            refused(b.permute(x, axes), "permute");
        }
        // Would take blocks apart; cont would write past its end.
        refused(b.permute(q, [1, 0, 2, 3]), "permute");
        b.cont(b.permute(q, [0, 2, 1, 3])?)?;
        Ok(())
    });
}

#[test]
fn attention_and_rotation() {
    use DType::*;
    with(|b| {
        let f = |shape: &[usize]| t(b, F32, shape);
        let (q, k, m) = (f(&[8, 3, 4]), t(b, F16, &[8, 5, 2]), t(b, F16, &[5, 3]));
        b.flash_attn(q, k, k, m, 1.0)?;
        refused(b.flash_attn(f(&[8, 3, 3]), k, k, m, 1.0), "flash_attn");
        refused(b.flash_attn(q, t(b, F16, &[7, 5, 2]), k, m, 1.0), "flash_attn");
        refused(b.flash_attn(q, k, t(b, F16, &[8, 6, 2]), m, 1.0), "flash_attn");
        refused(b.flash_attn(q, k, k, f(&[5, 3]), 1.0), "flash_attn");
        refused(b.flash_attn(q, k, k, t(b, F16, &[5, 2]), 1.0), "flash_attn");
        refused(b.flash_attn(q, t(b, I32, &[8, 5, 2]), k, m, 1.0), "flash_attn");
        refused(b.flash_attn(q, k, t(b, I32, &[8, 5, 2]), m, 1.0), "flash_attn");
        let swapped = b.permute(t(b, F16, &[5, 8, 2]), [1, 0, 2, 3])?;
        refused(b.flash_attn(q, swapped, k, m, 1.0), "flash_attn");
        refused(b.flash_attn(q, k, swapped, m, 1.0), "flash_attn");
        let (many, long) = (f(&[8, 1 << 15, 64]), t(b, F16, &[1 << 30, 5, 2]));
        refused(b.flash_attn(many, k, long, t(b, F16, &[5, 1 << 15]), 1.0), "flash_attn");

        let (x, pos) = (f(&[8, 2, 3]), t(b, I32, &[3]));
        let with = |n_dims| RopeParams { n_dims, ..ROPE };
        b.rope(x, pos, Some(f(&[4])), &ROPE, false)?;
        for n_dims in [0, 3, 10, usize::MAX, 1 << 33] {
            refused(b.rope(x, pos, None, &with(n_dims), false), "rope");
        }
        refused(b.rope(f(&[7, 2, 3]), pos, None, &ROPE, false), "rope"); // ggml would write past the last row.
        refused(b.rope(x, t(b, I32, &[2]), None, &ROPE, false), "rope");
        refused(b.rope(x, f(&[3]), None, &ROPE, false), "rope");
        refused(b.rope(x, pos, Some(f(&[3])), &ROPE, false), "rope"); // ggml would read past its end.
        refused(b.rope(x, pos, Some(t(b, F16, &[4])), &ROPE, false), "rope");
        let gaps = b.permute(b.columns(t(b, I32, &[4, 3]), 0, 1)?, [1, 0, 2, 3])?;
        refused(b.rope(x, gaps, None, &ROPE, false), "rope"); // ggml would read positions side by side.

        b.rope_table(x, f(&[8, 2, 3]), true, false)?;
        for shape in [[8, 2, 2], [10, 1, 3], [7, 1, 3], [8, 3, 3]] {
            refused(b.rope_table(x, f(&shape), true, false), "rope_table");
        }
        refused(b.rope_table(f(&[8, 2, 3, 2]), f(&[8, 1, 3]), true, false), "rope_table");
        refused(b.rope_table(x, b.columns(f(&[9, 1, 3]), 0, 8)?, true, false), "rope_table");
        refused(
            b.rope_table(b.permute(f(&[2, 8, 3]), [1, 0, 2, 3])?, f(&[8, 1, 3]), true, false),
            "rope_table",
        );

        refused(b.dequantize(&[f(&[8, 2])], F16), "dequantize");
        refused(b.dequantize(&[], F32), "dequantize");
        refused(b.dequantize(&[f(&[8, 2]); 9], F32), "dequantize");
        refused(b.dequantize(&[f(&[8, 2]), f(&[4, 2])], F32), "dequantize");
        refused(b.dequantize(&[f(&[8, 2, 2])], F32), "dequantize");
        refused(b.dequantize(&[b.columns(f(&[8, 2]), 0, 4)?], F32), "dequantize");
        refused(b.dequantize(&[t(b, Q1_0, &[1 << 16, 1 << 30]); 2], F32), "dequantize");
        Ok(())
    });
}

/// ggml's kernels count rows, and elements of a row, in ints: a wrapped one is a result that is not written, or
/// memory that is not the tensor's.
#[test]
fn what_ggml_cannot_count() {
    let most = ggml::tensor::MAX_INDEX;
    with(|b| {
        let f = |shape: &[usize]| t(b, DType::F32, shape);
        for shape in [[most, 1], [1, most]] {
            b.scale(f(&shape), 2.0)?;
            b.cont(f(&shape))?;
        }
        for shape in [&[most + 1][..], &[1, most + 1], &[2, 1 << 16, 1 << 15], &[1, 2, 1, most]] {
            assert!(b.input("x", DType::F32, shape).is_err(), "{shape:?}");
        }
        let (long, wide) = (f(&[1 << 30]), f(&[1 << 16, 1 << 16]));
        refused(b.concat(long, long, 0), "concat");
        refused(b.reshape(f(&[1 << 16, 1 << 16]), &[1, 1 << 31]), "reshape");
        refused(b.view(wide, [1, 1 << 16, 1 << 15, 1], [4, 4, 4], 0), "view");
        // More rows than the source has.
        refused(b.permute(f(&[1 << 21, 1 << 10, 1 << 10]), [2, 0, 1, 3]), "permute");
        // Copied as one row.
        refused(b.cont(wide), "cont");
        refused(b.to_f32(wide), "to_f32");
        refused(b.to_f32(t(b, DType::Q8_0, &[1 << 16, 1 << 16])), "to_f32");
        b.cont(b.columns(wide, 0, 1 << 15)?)?;
        Ok(())
    });
}

#[test]
fn impossible_tensors() {
    let impossible: [&[usize]; 7] =
        [&[0], &[], &[1; 5], &[usize::MAX], &[1 << 40, 1 << 40], &[3, usize::MAX / 2], &[1 << 31]];
    for shape in impossible {
        assert!(TensorDef::new("x", DType::F32, shape).is_err(), "{shape:?}");
        with(|b| {
            assert!(b.input("x", DType::Q1_0, shape).is_err());
            Ok(())
        });
    }
    // In bytes this fits an address space; in elements it overflows what ggml counts with.
    assert!(TensorDef::new("x", DType::Q1_0, &[1 << 32, 1 << 32]).is_err());
    assert!(TensorDef::new("x", DType::Q8_0, &[33]).is_err());
}

#[test]
fn weights_are_not_written() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4096).unwrap();
    let map = std::sync::Arc::new(files::Map::open(file.path()).unwrap());
    let def = TensorDef::new("w", DType::F32, &[8, 4]).unwrap();
    for offset in [0, 4] {
        let source = ggml::tensor::Mapped { file: map.clone(), offset };
        let store = Store::from_mapped(cpu(), vec![(def.clone(), source)]).unwrap();
        with(|b| {
            let w = b.stored(&one(&store, 0))?;
            let (src, index) = (t(b, DType::F32, &[8, 1]), t(b, DType::I64, &[1]));
            refused(b.set_rows(w, src, index), "set_rows");
            refused(b.set_rows(b.view(w, [8, 2, 1, 1], [32, 64, 64], 32)?, src, index), "set_rows");
            let x = t(b, DType::F32, &[8, 4]);
            refused(b.add_into(w, x), "add_into");
            refused(b.add_into(b.view(w, [8, 1, 1, 1], [32, 32, 32], 32)?, src), "add_into");
            refused(b.stored(&StoreTensor { store: store.clone(), index: 1 }), "stored");
            Ok(())
        });
    }
}

#[test]
fn graphs_larger_than_reserved() {
    let mut exec = executor(1);
    for max in [0, usize::MAX, 1 << 40, 1 << 20] {
        assert!(exec.measure::<_, Error>(max, |_| Ok(())).is_err(), "{max} tensors");
    }
    // Stored tensors count too: they are leaves of the graph.
    let defs = (0..8).map(|i| TensorDef::new(format!("w{i}"), DType::F32, &[4, 1]).unwrap()).collect();
    let store = Store::new(cpu(), defs, "a test").unwrap();
    let dequantize = |exec: &mut Executor, max| {
        exec.build::<_, Error>(max, |b| {
            let ws = (0..8).map(|i| b.stored(&one(&store, i))).collect::<Result<Vec<_>>>()?;
            b.expand(b.dequantize(&ws, DType::F32)?);
            Ok(())
        })
    };
    assert!(dequantize(&mut exec, 8).is_err());
    dequantize(&mut exec, 9).unwrap();
    // Together too large for ggml's sums, each one possible.
    let result = exec.measure::<_, Error>(8192, |b| {
        (0..8192).try_for_each(|_| b.input("x", DType::F64, &[1 << 23, 1 << 23]).map(|_| ()))
    });
    assert!(result.is_err());
}

#[test]
fn names_of_devices() {
    assert_eq!(cpu().name(), "cpu");
    assert!(cpu().is_cpu() && !cpu().is_gpu() && cpu().memory_free() > 0);
    assert!(Device::all().contains(&Device::find("auto").unwrap()));
    assert_eq!(Device::find("CPU").unwrap(), cpu());
    for name in ["", "tpu", "cuda:99", "cpu:1", "cpu\0"] {
        let Err(Error::Argument(what)) = Device::find(name) else { panic!("{name:?} found") };
        assert!(what.contains("auto") && what.contains("cpu") && !what.contains('\n'), "{what}");
    }
    assert!(Executor::new(cpu(), 100_000).is_err());
}
