//! Every kernel for every type of weights and number of tokens, in operations a second (two for each multiply-add), with those
//! that `graph/matmul.rs` chooses: what its thresholds are measured by. Of each type one matrix, and a stack of experts.
//!
//!     cargo bench -p ropewalk --bench matmul              all types
//!     cargo bench -p ropewalk --bench matmul -- q4_k f16  these

use std::time::{Duration, Instant};

use ggml::backend::Device;
use ggml::graph::Executor;
use ggml::tensor::{Store, StoreTensor, TensorDef};
use ggml::{dtype, DType, Error, Result};
use ropewalk::internals::graph::{Capabilities, Choice, Graph, Isa, Kernel, Pass};
use ropewalk::math::Math;

/// The feed-forward of SmolLM2-135M, whole blocks of all types: `K` terms in each sum, `M` rows.
const K: usize = 768;
const M: usize = 1536;
/// Matrices in a stack, and those that each token is multiplied with: a linear layer, and a mixture of experts.
const STACKS: [[usize; 2]; 2] = [[1, 1], [8, 2]];
const TOKENS: [usize; 10] = [1, 4, 8, 16, 24, 32, 64, 96, 128, 512];
const TYPES: [DType; 17] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::IQ3_S,
    DType::MXFP4,
];
/// Time for each cell, about.
const CELL: Duration = Duration::from_millis(60);

fn values(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}

fn stored(dtype: DType, shape: &[usize]) -> Result<StoreTensor> {
    let store = Store::new(Device::find("cpu")?, vec![TensorDef::new("x", dtype, shape)?], "a bench")?;
    store.write(0, 0, &dtype::quantize(dtype, shape[0], &values(shape.iter().product()))?)?;
    Ok(StoreTensor { store, index: 0 })
}

/// Operations a second; `None` where the kernel is not for this type or processor.
fn speed(
    can: Capabilities,
    choice: Choice,
    w: &StoreTensor,
    n: usize,
    [n_experts, n_used]: [usize; 2],
) -> Result<Option<f64>> {
    let alone = n_experts == 1;
    let x = stored(DType::F32, &if alone { [K, n, 1] } else { [K, 1, n] })?;
    let scores = stored(DType::F32, &[n_experts, n])?;
    let mut exec = Executor::new(Device::find("cpu")?, 0)?;
    let built = exec.build::<_, Error>(32, |b| {
        let (g, w, x) = (Graph::new(b, can), b.stored(w)?, b.stored(&x)?);
        b.output(match alone {
            true => g.product(choice, &[w], x)?,
            false => b.matmul_experts(choice.kernel, w, x, b.top_k(b.stored(&scores)?, n_used)?, false)?,
        });
        Ok(())
    });
    if matches!(built, Err(Error::Op { .. })) {
        return Ok(None);
    }
    built?;
    exec.compute()?;
    let (started, mut least) = (Instant::now(), f64::INFINITY);
    while started.elapsed() < CELL {
        let at = Instant::now();
        exec.compute()?;
        least = least.min(at.elapsed().as_secs_f64());
    }
    Ok(Some(2.0 * (K * M * n * n_used) as f64 / least))
}

/// Every kernel on a type and on what it can be dequantized to. The first row of the table drops those that this processor lacks.
fn ways(weight: DType) -> Vec<Choice> {
    let dequantized = [DType::F32, DType::BF16].into_iter().filter(|to| *to != weight).map(Some);
    let all = [None].into_iter().chain(dequantized);
    all.flat_map(|dequantize| Kernel::ALL.into_iter().map(move |kernel| Choice { dequantize, kernel }))
        .collect()
}

fn table(weight: DType, stack: [usize; 2]) -> Result<()> {
    let ([n_experts, n_used], experts) = (stack, stack != STACKS[0]);
    let w = stored(weight, &[K, M, n_experts])?;
    let can = Capabilities::new(Device::find("cpu")?, false, Math::Auto);
    println!("\n{weight} [{K}, {M}], {n_used} of {n_experts} for each token, 10^9 operations a second");
    let mut ways = ways(weight);
    // A stack is never dequantized as a whole.
    ways.retain(|way| !experts || way.dequantize.is_none());
    let mut rows = Vec::new();
    for n in TOKENS {
        let mut row = Vec::new();
        for &way in &ways {
            row.push((way, speed(can, way, &w, n, stack)?));
        }
        row.retain(|(_, speed)| speed.is_some());
        ways = row.iter().map(|(way, _)| *way).collect();
        rows.push((n, row));
    }
    let names: Vec<String> = ways.iter().map(ToString::to_string).collect();
    println!("tokens  {}", names.iter().map(|name| format!("{name:>8}")).collect::<Vec<_>>().join("  "));
    for (n, row) in rows {
        let cells = row.iter().zip(&names).map(|((way, speed), name)| {
            let passes = Pass::ALL.into_iter().filter(|pass| pass.of_experts() == experts);
            let chosen = passes.filter(|pass| can.matmul.choose(weight, n, *pass) == *way);
            let marks: String = chosen.map(|pass| if pass.trains() { '+' } else { '*' }).collect();
            let cell = format!("{:.1}{marks}", speed.unwrap_or(0.0) / 1e9);
            format!("{cell:>width$}", width = name.len().max(8))
        });
        println!("{n:>6}  {}", cells.collect::<Vec<_>>().join("  "));
    }
    Ok(())
}

fn main() -> Result<()> {
    // `cargo bench` adds another option.
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    println!("this processor: {}; by --math auto chosen *: in inference, +: in training", Isa::detect());
    for weight in TYPES.into_iter().filter(|t| asked.is_empty() || asked.iter().any(|a| a == t.name())) {
        STACKS.into_iter().try_for_each(|stack| table(weight, stack))?;
    }
    Ok(())
}
