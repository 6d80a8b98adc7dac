//! Products of floats against naive sums in f64.

use crate::common::*;
use ggml::graph::Builder;
use ggml::matmul::Kernel;
use ggml::tensor::Tensor;
use ggml::{DType, Result};
use proptest::prelude::{any, prop, proptest, ProptestConfig, Strategy};

#[derive(Debug, Clone, Copy)]
enum Op {
    Rows,
    Transposed,
    Outer,
}
use Op::*;

/// `m x k` by `k x n`, operands seen through windows of wider matrices.
#[derive(Debug, Clone)]
struct Case {
    kernel: Kernel,
    op: Op,
    m: usize,
    n: usize,
    k: usize,
    /// Columns left out before and after, rows left out before: of `a` and of `b`.
    gaps: [[usize; 3]; 2],
    seed: u64,
}

impl Case {
    fn shapes(&self) -> [[usize; 2]; 2] {
        let (m, n, k) = (self.m, self.n, self.k);
        match self.op {
            Rows => [[k, m], [k, n]],
            Transposed => [[m, k], [k, n]],
            Outer => [[m, k], [n, k]],
        }
    }

    /// Each operand's whole matrix and its shape, window and gaps.
    fn operands(&self) -> [(Vec<f32>, [usize; 2]); 2] {
        let mut rng = Rng(self.seed);
        std::array::from_fn(|i| {
            let ([x, y], [before, after, above]) = (self.shapes()[i], self.gaps[i]);
            let whole = [before + x + after, above + y];
            (rng.values(whole[0] * whole[1]), whole)
        })
    }

    fn build<'c>(&self, b: &Builder<'c>, feed: &mut Feed) -> Result<Tensor<'c>> {
        let mut args = Vec::new();
        for (i, (values, whole)) in self.operands().iter().enumerate() {
            let ([x, y], [before, _, above]) = (self.shapes()[i], self.gaps[i]);
            let t = feed.f32(b, whole, values)?;
            let (row, size) = (4 * whole[0], 4 * whole[0] * whole[1]);
            args.push(b.view(t, [x, y, 1, 1], [row, size, size], above * row + 4 * before)?);
        }
        match self.op {
            Rows => b.matmul(self.kernel, args[0], args[1], false),
            Transposed => b.matmul(self.kernel, args[0], args[1], true),
            Outer => b.gemm_outer(self.kernel, args[0], args[1]),
        }
    }

    fn naive(&self) -> (Vec<f64>, Vec<f64>) {
        let operands = self.operands();
        let at = |o: usize, i: usize, j: usize| {
            let (values, whole) = &operands[o];
            f64::from(values[(j + self.gaps[o][2]) * whole[0] + i + self.gaps[o][0]])
        };
        let mut sums = Vec::new();
        let mut sizes = Vec::new();
        for n in 0..self.n {
            for m in 0..self.m {
                let terms = (0..self.k).map(|k| match self.op {
                    Rows => at(0, k, m) * at(1, k, n),
                    Transposed => at(0, m, k) * at(1, k, n),
                    Outer => at(0, m, k) * at(1, n, k),
                });
                let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t: f64| (s + t, a + t.abs()));
                sums.push(sum);
                sizes.push(size);
            }
        }
        (sums, sizes)
    }

    fn check(&self, threads: usize) {
        let got = eval(&mut executor(threads), |b, feed| self.build(b, feed)).unwrap();
        let (want, sizes) = self.naive();
        // Of two factors cut into halves, what the second half leaves of either, and the product of both second halves.
        let each = if self.kernel == Kernel::F32Tiles { 3.0 / 65536.0 } else { 0.0 };
        assert_within(&got, &want, |i| (rounding(self.k + 1) + each) * sizes[i], &format!("{self:?}"));
        if threads > 1 {
            let alone = eval(&mut executor(1), |b, feed| self.build(b, feed)).unwrap();
            assert_eq!(got, alone, "{threads} threads: {self:?}");
        }
    }
}

/// Those that this processor has.
fn kernels() -> Vec<Kernel> {
    [Kernel::F32, Kernel::F32Tiles].into_iter().filter(|kernel| kernel.available(DType::F32)).collect()
}

fn case() -> impl Strategy<Value = Case> {
    let size = || prop::sample::select(vec![1usize, 2, 3, 5, 8, 9, 17, 24, 48, 49, 63, 64, 65, 97, 130, 301]);
    let depth = prop::sample::select(vec![1usize, 2, 3, 8, 31, 64, 200, 511, 513, 1100]);
    let gap = || [0usize..4, 0..4, 0..3];
    let op = (prop::sample::select(kernels()), prop::sample::select(vec![Rows, Transposed, Outer]));
    (op, size(), size(), depth, [gap(), gap()], any::<u64>())
        .prop_map(|((kernel, op), m, n, k, gaps, seed)| Case { kernel, op, m, n, k, gaps, seed })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_definition(case in case(), threads in 1usize..=4) {
        case.check(threads);
    }
}

#[test]
fn threads_change_no_bit() {
    // Around the sizes where the kernels of small results end.
    for (kernel, op) in
        kernels().into_iter().flat_map(|kernel| [Rows, Transposed, Outer].map(|op| (kernel, op)))
    {
        for (m, n, k) in [
            (1, 1, 700),
            (1, 600, 700),
            (4, 64, 600),
            (64, 4, 600),
            (8, 400, 1030),
            (600, 8, 5),
            (9, 100, 700),
            (16, 128, 64),
            (96, 96, 1000),
            (200, 100, 1200),
            (1, 900, 2),
            (900, 1, 1),
        ] {
            for threads in [2, 3, 4] {
                Case { kernel, op, m, n, k, gaps: [[0, 1, 0], [2, 0, 1]], seed: 3 }.check(threads);
            }
        }
    }
}

#[test]
fn wrong_shapes_and_types_are_refused() {
    with(|b| {
        let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
        let (a, c) = (t(DType::F32, &[6, 5]), t(DType::F32, &[7, 4]));
        refused(b.matmul(Kernel::F32, a, c, false), "matmul");
        refused(b.matmul(Kernel::F32, a, c, true), "matmul");
        refused(b.gemm_outer(Kernel::F32, a, c), "gemm_outer");
        assert_eq!(b.matmul(Kernel::F32, a, t(DType::F32, &[6, 3]), false)?.ne(), [5, 3, 1, 1]);
        assert_eq!(b.matmul(Kernel::F32, a, t(DType::F32, &[5, 3]), true)?.ne(), [6, 3, 1, 1]);
        assert_eq!(b.gemm_outer(Kernel::F32, a, t(DType::F32, &[3, 5]))?.ne(), [6, 3, 1, 1]);

        let square = t(DType::F32, &[8, 8]);
        for kernel in [Kernel::Ggml, Kernel::Int8] {
            refused(b.gemm_outer(kernel, square, square), "gemm_outer");
        }
        let turned = b.permute(square, [1, 0, 2, 3])?;
        for wrong in [
            t(DType::F16, &[8, 8]),
            t(DType::I32, &[8, 8]),
            t(DType::F32, &[8, 8, 2]),
            turned,
            t(DType::Q8_0, &[32, 8]),
        ] {
            refused(b.matmul(Kernel::F32, wrong, square, false), "matmul");
            refused(b.matmul(Kernel::F32, square, wrong, false), "matmul");
            refused(b.matmul(Kernel::F32, wrong, square, true), "matmul");
            refused(b.gemm_outer(Kernel::F32, square, wrong), "gemm_outer");
        }
        let (tall, wide) = (t(DType::F32, &[1, 1 << 30]), t(DType::F32, &[1, 1 << 24]));
        refused(b.matmul(Kernel::F32, tall, wide, false), "matmul");
        Ok(())
    });
}
