//! Element types: what changes, what does not, how far values move; and the ways a conversion ends early.

use std::sync::Mutex;

use convert::random::{self, Shape};
use convert::{convert, Error, Options};
use ggml::dtype::quantize;
use ggml::DType;
use gguf::{Value, Writer};
use ropewalk_core::control::{Control, Progress, Stop};

use crate::lab::Lab;

impl Lab {
    fn to(&self, dtype: DType, control: &Control<'_>) -> convert::Result<convert::Report> {
        let options = Options::default().dtype(Some(dtype));
        convert(self.path("in"), self.path("out"), &options, control)
    }
    /// Writes `in.gguf` again: these tensors, F32, with our mark.
    fn write(&self, tensors: &[(&str, &[u64], Vec<f32>)]) {
        let mut writer = Writer::new();
        writer.set("general.architecture", Value::String(b"llama".to_vec())).set("ropewalk.version", "1");
        for (name, shape, values) in tensors {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer.tensor_bytes(name, DType::F32, shape, bytes).unwrap();
        }
        writer.write(self.path("in")).unwrap();
    }
}

/// Bounds on the relative RMSE of normal values, of the size of each format's step; from F32.
const BOUNDS: &[(DType, f64, f64)] = &[
    (DType::F32, 0.0, 0.0),
    (DType::F16, 1e-5, 3e-4),
    (DType::BF16, 1e-4, 2.5e-3),
    (DType::Q8_0, 1e-3, 8e-3),
    (DType::Q6_K, 5e-3, 2.5e-2),
    (DType::Q5_1, 1e-2, 4e-2),
    (DType::Q5_0, 1e-2, 5e-2),
    (DType::Q5_K, 1e-2, 4e-2),
    (DType::Q4_K, 3e-2, 8e-2),
    (DType::Q4_1, 3e-2, 8e-2),
    (DType::Q4_0, 3e-2, 1.1e-1),
    (DType::Q3_K, 7e-2, 1.7e-1),
    (DType::Q2_K, 1e-1, 3.5e-1),
];

#[test]
fn every_type_is_within_its_bounds_and_reported_truly() {
    let lab = Lab::new("llama-tiny", DType::F32, 1);
    assert_eq!(BOUNDS.len(), convert::types::TARGETS.len());
    for (dtype, low, high) in BOUNDS {
        let report = lab.to(*dtype, &Control::default()).unwrap();
        let (old, new) = (lab.open("in"), lab.open("out"));
        assert_eq!(new.get::<u32>("general.file_type").unwrap(), convert::types::file_type(*dtype).unwrap());
        let mut converted = 0;
        for (a, b) in old.tensors().iter().zip(new.tensors()) {
            assert_eq!((&a.name, &a.shape), (&b.name, &b.shape));
            if a.shape.len() == 1 || *dtype == DType::F32 {
                assert_eq!(b.dtype, DType::F32);
                assert!(old.data(a) == new.data(b), "{}", a.name);
                continue;
            }
            assert_eq!(b.dtype, *dtype);
            let (x, y) = (
                ggml::dtype::dequantize_tensor(&old, a).unwrap(),
                ggml::dtype::dequantize_tensor(&new, b).unwrap(),
            );
            assert!(
                new.data(b) == gguf::Bytes::from(&quantize(*dtype, a.shape[0] as usize, &x).unwrap()),
                "{}: rows differ",
                a.name
            );
            let square = |v: f32| f64::from(v).powi(2);
            let error: f64 = x.iter().zip(&y).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum();
            let rel = (error / x.iter().map(|v| square(*v)).sum::<f64>()).sqrt();
            let told = report.converted.iter().find(|t| t.name == a.name).unwrap();
            // Sums in f64, in another order.
            let bound = x.len() as f64 * f64::EPSILON * rel;
            assert!((told.rel_rmse - rel).abs() <= bound, "{}: {rel} told as {}", a.name, told.rel_rmse);
            assert!((*low..=*high).contains(&rel), "{dtype} {}: {rel}", a.name);
            assert!(told.max >= told.rmse && told.rel_max < 1.0);
            converted += 1;
        }
        assert_eq!(report.converted.len(), converted);
    }
}

#[test]
fn what_has_the_type_already_is_copied() {
    let lab = Lab::new("llama-tiny", DType::Q4_1, 1);
    let report = lab.to(DType::Q4_1, &Control::default()).unwrap();
    assert!(report.converted.is_empty());
    assert!(std::fs::read(lab.path("in")).unwrap() == std::fs::read(lab.path("out")).unwrap());
    // Dequantizing loses nothing.
    assert!(lab.to(DType::F32, &Control::default()).unwrap().converted.iter().all(|t| t.rmse == 0.0));
}

#[test]
fn rows_that_do_not_fit_fall_back_with_a_note() {
    let lab = Lab::new("llama-tiny", DType::F16, 1);
    let ramp = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
    lab.write(&[
        ("a", &[256, 2], ramp(512)),
        ("b", &[96, 3], ramp(288)),
        ("c", &[17, 2], ramp(34)),
        ("d", &[5], ramp(5)),
    ]);
    for (wanted, second) in [
        (DType::Q4_K, DType::Q5_0),
        (DType::Q5_K, DType::Q5_1),
        (DType::Q6_K, DType::Q8_0),
        (DType::Q2_K, DType::Q4_0),
        (DType::Q4_1, DType::Q4_1),
    ] {
        let report = lab.to(wanted, &Control::default()).unwrap();
        let types: Vec<DType> = lab.open("out").tensors().iter().map(|t| t.dtype).collect();
        assert_eq!(types, [wanted, second, DType::F16, DType::F32]);
        let notes = if wanted == second { 1 } else { 2 };
        assert_eq!(
            report.notes.iter().filter(|n| n.contains("rows of")).count(),
            notes,
            "{:?}",
            report.notes
        );
    }
}

#[test]
fn values_that_do_not_fit_are_refused_with_their_place() {
    let lab = Lab::new("llama-tiny", DType::F16, 1);
    let n = 3 << 20;
    for (bad, dtype) in
        [(f32::NAN, DType::Q4_K), (f32::INFINITY, DType::Q8_0), (1e6, DType::F16), (1e38, DType::Q6_K)]
    {
        let mut values = vec![0.5; n];
        values[n - 7] = bad;
        lab.write(&[("fine", &[256, 1], vec![0.0; 256]), ("blk.0.bad", &[1024, n as u64 / 1024], values)]);
        let error = lab.to(dtype, &Control::default()).unwrap_err().to_string();
        assert!(error.contains("blk.0.bad") && error.contains(&format!("value {}", n - 7)), "{error}");
        assert_eq!(lab.files(), ["in.gguf"]);
    }
}

#[test]
fn integers_stay_and_unreadable_types_are_refused() {
    let lab = Lab::new("llama-tiny", DType::F16, 1);
    let mut writer = Writer::new();
    writer.set("ropewalk.version", "1");
    writer.tensor_bytes("ids", DType::I32, &[4, 2], vec![1u8; 32]).unwrap();
    writer.write(lab.path("in")).unwrap();
    assert_eq!(lab.to(DType::Q8_0, &Control::default()).unwrap().notes.len(), 1);
    assert_eq!(lab.open("out").tensors()[0].dtype, DType::I32);
    let mut writer = Writer::new();
    writer.tensor_bytes("wide", DType::F64, &[4, 2], vec![1u8; 64]).unwrap();
    writer.write(lab.path("in")).unwrap();
    let error = lab.to(DType::Q8_0, &Control::default()).unwrap_err().to_string();
    assert!(error.contains("wide") && error.contains("f64"), "{error}");
}

#[test]
fn the_input_is_never_the_output() {
    let lab = Lab::new("llama-tiny", DType::F16, 1);
    let before = std::fs::read(lab.path("in")).unwrap();
    let refused = |name: &str| {
        let result = convert(lab.path("in"), lab.path(name), &Options::default(), &Control::default());
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Usage(_)) && error.to_string().contains("is the input"), "{error}");
    };
    refused("in");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(lab.path("in"), lab.path("soft")).unwrap();
        refused("soft");
        std::fs::hard_link(lab.path("in"), lab.path("hard")).unwrap();
        refused("hard");
    }
    assert!(std::fs::read(lab.path("in")).unwrap() == before);
}

/// Runs `job` and has it stopped after so many bytes; gives its result and the last progress told, `(done, total)`.
fn until<T>(limit: u64, job: impl FnOnce(&Control<'_>) -> T) -> (T, (u64, u64)) {
    let (stop, last) = (Stop::default(), Mutex::new((0, 0)));
    let show = |p: &Progress<'_>| {
        *last.lock().unwrap() = (p.done, p.total);
        if p.done > limit {
            stop.request();
        }
    };
    let result = job(&Control::default().with_stop(&stop).with_progress(&show));
    let last = *last.lock().unwrap();
    (result, last)
}

#[test]
fn progress_is_told_and_cancelling_leaves_nothing() {
    let lab = Lab::new("llama-tiny", DType::F16, 1);
    for dtype in [DType::Q4_K, DType::F16] {
        let (report, (done, total)) = until(u64::MAX, |control| lab.to(dtype, control));
        report.unwrap();
        assert!(done == total && total > 0, "{done} of {total}");
        crate::cli::marked().write(lab.path("out")).unwrap();
        let before = std::fs::read(lab.path("out")).unwrap();
        let error = until(100_000, |control| lab.to(dtype, control)).0.unwrap_err();
        assert!(matches!(error, Error::Interrupted), "{error}");
        assert_eq!(lab.files(), ["in.gguf", "out.gguf"]);
        assert_eq!(std::fs::read(lab.path("out")).unwrap(), before);
    }
    let shape = Shape::named("llama-tiny").unwrap();
    let path = lab.path("random");
    let write = |control: &Control<'_>| random::write_watched(&shape, DType::Q5_K, 1, &path, control);
    let (bytes, (done, total)) = until(u64::MAX, write);
    bytes.unwrap();
    assert!(done == total && total > 0, "{done} of {total}");
    std::fs::remove_file(&path).unwrap();
    let error = until(1000, write).0.unwrap_err();
    assert!(matches!(error, Error::Interrupted) && !path.exists(), "{error}");
}
