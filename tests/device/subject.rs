//! A model on the device and on the CPU, and how far the two may be apart.
//!
//! Devices multiply what they have rounded: to F16 (Vulkan, Metal; eleven significant bits) or, on NVIDIA's tensor cores, to
//! TF32 or F16 (eleven bits both), and sum in F32. The effect of that on a result is measured on the CPU: the same model with
//! its weights rounded to F16 has results at some distance from the exact ones. That distance stands for rounding one
//! factor of all products. A device also rounds the other factor, and queries, keys, probabilities, and values in
//! attention: [`ROUNDINGS`] of the size, if they all add up.
//!
//! Quantized weights are multiplied with activations rounded to 8 bits if a device has integer products (Vulkan, CUDA),
//! and BF16 weights with activations rounded to BF16. The CPU shows that effect: ggml's products there do the same.

use convert::random::{write, Shape};
use convert::{convert, Options};
use ropewalk::control::Control;
use ropewalk::model::{Model, ModelParams};
use ropewalk::{DType, Token};

use crate::common::{distance, load, scratch, some_tokens};

/// Roundings of a product's way through a device, each of which may have the effect of the one that is measured: both factors
/// in linear maps, four in attention.
const ROUNDINGS: f64 = 6.0;

/// Activations that are rounded to the type's partner are rounded alike everywhere, but are not the same ones.
const EIGHT_BITS: f64 = 2.0;

/// CUDA adds the offset of such weights times the sum of the activations before they were rounded, the CPU times the sum of the
/// rounded ones. The rounding errors are then multiplied with codes, not with weights. Evenly spread codes from 0 have twice the
/// root mean square of their deviation.
fn eight_bits(dtype: DType) -> f64 {
    use DType::{Q2_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K};
    match dtype {
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q2_K | Q4_K | Q5_K if device().starts_with("cuda:") => 2.0 * EIGHT_BITS,
        _ => EIGHT_BITS,
    }
}

/// Differences that are allowed on every device: F32 sums in another order, exponentials and sines that are right to some 2^-20.
const FLOOR: f64 = 2e-5;

/// How far a device may be off, where one rounding to F16 and one of activations to 8 bits have these effects under weights
/// of a type.
pub(crate) fn allowed(dtype: DType, one: f64, eight: f64) -> f64 {
    ROUNDINGS * one + eight_bits(dtype) * eight + FLOOR
}

/// The device under test.
pub(crate) fn device() -> String {
    let name = std::env::var("ROPEWALK_TEST_DEVICE")
        .expect("ROPEWALK_TEST_DEVICE: the device to test, such as vulkan:0");
    assert_ne!(name, "cpu", "ROPEWALK_TEST_DEVICE: the CPU is what the device is compared with");
    name
}

/// One file, opened on the device; and its exact weights on the CPU, in F32 and rounded to F16.
pub(crate) struct Subject {
    pub(crate) about: String,
    pub(crate) dtype: DType,
    pub(crate) on_device: Model,
    pub(crate) exact: Model,
    pub(crate) rounded: Model,
    /// The file itself on the CPU, if its products round activations to less than F16 has: its weights are quantized, or BF16.
    pub(crate) quantised: Option<Model>,
}

/// A model that is run to be compared, and how.
#[derive(Clone, Copy)]
pub(crate) struct Way<'m> {
    pub(crate) model: &'m Model,
    /// By ggml's own products, which round activations to 8 bits where weights are quantized, and to BF16 where they are.
    pub(crate) portable: bool,
}

impl Subject {
    /// A random model of a shape that `ropewalk convert --random` knows.
    pub(crate) fn named(shape: &str, dtype: DType) -> Subject {
        Subject::of(shape, &Shape::named(shape).unwrap(), dtype)
    }

    pub(crate) fn of(about: &str, shape: &Shape, dtype: DType) -> Subject {
        let about = format!("{about} {}", dtype.name());
        let file = |what: &str| scratch(&format!("{}-{what}.gguf", about.replace([' ', ','], "-")));
        let path = file("device");
        write(shape, dtype, 17, &path).unwrap();
        let on_cpu = |dtype: DType| {
            let to = file(dtype.name());
            let options = Options::default().dtype(Some(dtype));
            convert(&path, &to, &options, &Control::default()).unwrap_or_else(|e| panic!("{about}: {e}"));
            load(&to)
        };
        let params = ModelParams::auto().device(device().as_str().into());
        let on_device = Model::load(&path, &params).unwrap_or_else(|e| panic!("{about}: {e}"));
        let (exact, rounded) = (on_cpu(DType::F32), on_cpu(DType::F16));
        let rounds_more = !matches!(dtype, DType::F32 | DType::F16);
        let quantised = rounds_more.then(|| load(&path));
        Subject { about, dtype, on_device, exact, rounded, quantised }
    }

    pub(crate) fn text(&self, n: usize) -> Vec<Token> {
        some_tokens(n, self.exact.hparams().n_vocab)
    }

    /// The largest distance of two sets of logits in a row, relative to the row's norm.
    pub(crate) fn apart(&self, got: &[f32], want: &[f32]) -> f64 {
        assert_eq!(got.len(), want.len(), "{}", self.about);
        let want: Vec<f64> = want.iter().map(|&x| f64::from(x)).collect();
        naive::worst_row(got, &want, self.exact.hparams().n_vocab)
    }

    /// How far a set of logits may be off, where `run` gives them.
    pub(crate) fn largest_allowed(&self, run: impl Fn(Way<'_>) -> Vec<f32>) -> f64 {
        let exact = run(Way { model: &self.exact, portable: false });
        let off = |model, portable| distance(&run(Way { model, portable }), &exact);
        allowed(
            self.dtype,
            off(&self.rounded, false),
            self.quantised.as_ref().map_or(0.0, |model| off(model, true)),
        )
    }

    /// Compares what `run` gives on the device with what it gives on the CPU; `apart` measures the distance.
    pub(crate) fn check<T>(
        &self,
        what: &str,
        failures: &mut Vec<String>,
        run: impl Fn(Way<'_>) -> T,
        apart: impl Fn(&T, &T) -> f64,
    ) {
        let exactly = |model| run(Way { model, portable: false });
        let (want, rounded, got) = (exactly(&self.exact), exactly(&self.rounded), exactly(&self.on_device));
        let (found, one) = (apart(&got, &want), apart(&rounded, &want));
        let eight_bits = |model| apart(&run(Way { model, portable: true }), &want);
        let eight = self.quantised.as_ref().map_or(0.0, eight_bits);
        let bound = allowed(self.dtype, one, eight);
        let of = found / bound;
        println!(
            "{}, {what}: {found:.1e}; one rounding {one:.1e}, 8 bits {eight:.1e}: {of:.2} of the bound",
            self.about
        );
        if found.is_nan() || found > bound {
            failures.push(format!("{}, {what}: off by {found:.1e}, allowed {bound:.1e}", self.about));
        }
    }
}

#[track_caller]
pub(crate) fn none(failures: Vec<String>) {
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
