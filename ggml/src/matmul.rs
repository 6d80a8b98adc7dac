//! Products of a weight with rows of floats: one op, with a backend for each kernel. Those of ours are for the CPU; elsewhere the
//! graph is refused. Some read floats in a layout of their own, which a node makes once for all products that read it.
//!
//! No result depends on the number of threads.

mod bf16x3;
mod f32;
mod half_floats;
pub(crate) mod int16;
pub(crate) mod int8;

use std::fmt;

use crate::graph::Builder;
use crate::ops::{check, f32_rows, weight};
use crate::tensor::Tensor;
use crate::units::Units;
use crate::{DType, Error, Result};

/// Types of weights that have products in integers.
pub use kernels::quants::TYPES as INTEGER_TYPES;

/// The code that computes a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// ggml's kernel, the only one on devices other than the CPU. With quantized weights it rounds activations to 8 bits.
    Ggml,
    /// Our own of floats of 32 bits: gradients and large batches.
    F32,
    /// The same as [`Kernel::Bf16x3`] of floats of 32 bits, without laying them out before.
    F32Tiles,
    /// Weights in 16-bit floats, converted in panels (AVX-512; AVX-512 BF16 for bfloat16, where activations are rounded to it).
    HalfFloats,
    /// Both factors as a sum of two bfloat16 each, in AMX tiles: right to 16 bits.
    Bf16x3,
    /// Activations quantized to 15 bits, codes of weights widened to 16.
    Int16,
    /// Activations quantized to 8 bits by each product.
    Int8,
    /// The same, quantized once by a node that several products share.
    Int8Shared,
}

impl Kernel {
    pub const ALL: [Kernel; 8] = {
        use Kernel::*;
        [Ggml, F32, F32Tiles, HalfFloats, Bf16x3, Int16, Int8, Int8Shared]
    };

    fn words(self) -> [&'static str; 2] {
        match self {
            Kernel::Ggml => ["ggml", "ggml's product, with activations in 8 bits if weights are quantized"],
            Kernel::F32 => ["f32", "floats of 32 bits"],
            Kernel::F32Tiles => ["f32-tiles", "floats of 32 bits, as sums of two bfloat16, in AMX tiles"],
            Kernel::HalfFloats => ["half-floats", "weights of 16-bit floats, by AVX-512"],
            Kernel::Bf16x3 => ["bf16x3", "both factors as sums of two bfloat16, in AMX tiles"],
            Kernel::Int16 => ["int16", "activations quantized to 15 bits"],
            Kernel::Int8 => ["int8", "activations quantized to 8 bits"],
            Kernel::Int8Shared => ["int8-shared", "int8, quantized once for all products that read them"],
        }
    }

    pub fn about(self) -> &'static str {
        self.words()[1]
    }

    /// Returns true if floats are laid out by a node before: [`Builder::prepare`].
    pub fn prepares(self) -> bool {
        matches!(self, Kernel::Bf16x3 | Kernel::Int16 | Kernel::Int8Shared)
    }

    /// Returns true if this processor has the kernel for weights of this type.
    pub fn available(self, weight: DType) -> bool {
        match self {
            Kernel::Ggml => weight.can_dequantize(),
            Kernel::F32 => weight == DType::F32,
            Kernel::F32Tiles => weight == DType::F32 && kernels::bf16x3::available(),
            Kernel::HalfFloats => half_floats::format(weight).is_some_and(|format| format.available()),
            Kernel::Bf16x3 => kernels::bf16x3::available() && weight.can_dequantize(),
            Kernel::Int16 | Kernel::Int8 | Kernel::Int8Shared => {
                kernels::quants::available() && INTEGER_TYPES.contains(&weight)
            }
        }
    }

    /// Returns true if there is a product with the transposed weight.
    fn transposes(self, weight: DType) -> bool {
        match self {
            Kernel::Ggml | Kernel::F32 | Kernel::F32Tiles | Kernel::Bf16x3 => true,
            Kernel::HalfFloats => weight == DType::BF16,
            Kernel::Int16 | Kernel::Int8 | Kernel::Int8Shared => false,
        }
    }

    pub(crate) fn check(self, op: &'static str, weight: DType, transposed: bool) -> Result<()> {
        if self.available(weight) && (!transposed || self.transposes(weight)) {
            return Ok(());
        }
        let what = if transposed { "transposed product" } else { "product" };
        Err(Error::Op { op, what: format!("{self}: {weight} weights have no such {what} on this processor") })
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words()[0])
    }
}

/// Floats `[k, n]` as some kernels read them.
#[derive(Debug, Clone, Copy)]
pub struct Prepared<'c> {
    words: Tensor<'c>,
    layout: Layout,
    kernel: Kernel,
    /// `[k, n]`
    shape: [usize; 2],
}

impl Prepared<'_> {
    /// Returns true if a kernel can multiply them with weights of this type.
    pub fn serves(&self, kernel: Kernel, weight: DType) -> bool {
        let layout = match self.layout {
            Layout::Int8(layout) => layout.serves(weight),
            Layout::Bf16x3(_) | Layout::Int16(_) => true,
        };
        self.kernel == kernel && layout
    }
}

#[derive(Debug, Clone, Copy)]
enum Layout {
    Bf16x3(kernels::bf16x3::Shape),
    Int16(kernels::int16::Shape),
    Int8(kernels::int8::Layout),
}

impl<'c> Builder<'c> {
    /// Lays out F32 `[k, n]`, rows contiguous, for products by a kernel that [`Kernel::prepares`], with weights of this type.
    pub fn prepare(&self, kernel: Kernel, x: Tensor<'c>, weight: DType) -> Result<Prepared<'c>> {
        let op = "prepare";
        kernel.check(op, weight, false)?;
        let [k, n, a, b] = x.ne();
        let whole = if kernel == Kernel::Bf16x3 { 1 } else { weight.block_size() };
        let fits = f32_rows(x) && a * b == 1 && k > 0 && k.is_multiple_of(whole);
        check(fits, op, &format!("an f32 matrix, a multiple of {whole} wide"), &[x])?;
        let (layout, n_words) = match kernel {
            Kernel::Bf16x3 => {
                let shape = kernels::bf16x3::Shape { k, n };
                (Layout::Bf16x3(shape), bf16x3::n_words(shape))
            }
            Kernel::Int16 => {
                let shape = kernels::int16::Shape { k, n };
                (Layout::Int16(shape), shape.n_words())
            }
            Kernel::Int8Shared => {
                let layout = kernels::int8::Layout::new(weight, k, n);
                (Layout::Int8(layout), layout.n_words())
            }
            _ => return Err(Error::Op { op, what: format!("{kernel} reads floats as they are") }),
        };
        let words = self.prepared(op, n_words, x, move |part| match layout {
            Layout::Bf16x3(shape) => bf16x3::pack(part, shape),
            Layout::Int16(shape) => int16::pack(part, shape),
            Layout::Int8(layout) => int8::pack(part, layout),
        })?;
        Ok(Prepared { words, layout, kernel, shape: [k, n] })
    }

    /// F32 `[m, n]`: every row of a weight `[k, m]` times every row of `x`, F32 `[k, n]`. `transposed`: the rows of a weight
    /// `[m, k]`, weighted by each row of `x` and summed, which is the gradient of a product's input from that of its result.
    pub fn matmul(
        &self,
        kernel: Kernel,
        w: Tensor<'c>,
        x: Tensor<'c>,
        transposed: bool,
    ) -> Result<Tensor<'c>> {
        match kernel {
            Kernel::Ggml if transposed => self.mul_mat(self.cont(self.permute(w, [1, 0, 2, 3])?)?, x),
            Kernel::Ggml => self.mul_mat(w, x),
            Kernel::F32 | Kernel::F32Tiles => self.gemm(kernel, w, x, transposed),
            Kernel::Bf16x3 | Kernel::Int16 | Kernel::Int8Shared => {
                self.matmul_prepared(w, self.prepare(kernel, x, w.dtype())?, transposed)
            }
            Kernel::HalfFloats | Kernel::Int8 => {
                let ([k, n, a, b], dtype) = (x.ne(), w.dtype());
                let rows = f32_rows(x) && a * b == 1;
                let ne = shape_of_product(kernel, w, transposed, [k, n], rows)?;
                self.custom(OP, DType::F32, ne, &[w, x], move |part| match kernel {
                    Kernel::Int8 => int8::run(&part, dtype),
                    _ => half_floats::run(&part, dtype, transposed),
                })
            }
        }
    }

    /// [`Builder::matmul`] of prepared floats.
    pub fn matmul_prepared(&self, w: Tensor<'c>, x: Prepared<'c>, transposed: bool) -> Result<Tensor<'c>> {
        let (Prepared { words, layout, kernel, shape }, dtype) = (x, w.dtype());
        let ne = shape_of_product(kernel, w, transposed, shape, x.serves(kernel, dtype))?;
        let units = Units::default();
        self.custom(OP, DType::F32, ne, &[w, words], move |part| match layout {
            Layout::Bf16x3(shape) => bf16x3::run(&part, shape, transposed),
            Layout::Int16(shape) => int16::run(&part, shape, dtype, &units),
            Layout::Int8(layout) => int8::run_shared(&part, layout, dtype, &units),
        })
    }
}

const OP: &str = "matmul";

/// The shape of a product with floats `[k, n]`, which `fit` if they are such as the kernel reads.
fn shape_of_product(
    kernel: Kernel,
    w: Tensor<'_>,
    transposed: bool,
    [k, n]: [usize; 2],
    fit: bool,
) -> Result<[usize; 4]> {
    kernel.check(OP, w.dtype(), transposed)?;
    let [n0, n1, ..] = w.ne();
    let (terms, m) = if transposed { (n1, n0) } else { (n0, n1) };
    check(fit && weight(w) && terms == k, OP, &format!("a weight for f32 rows [{k},{n}]"), &[w])?;
    Ok([m, n, 1, 1])
}
