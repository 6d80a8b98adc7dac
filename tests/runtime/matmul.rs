//! The choice of kernels: the whole table, and its ends.

use std::fmt::Write;

use ropewalk::internals::graph::{Choice, Isa, Kernel, MatmulPolicy, Pass, LAST_THRESHOLD};
use ropewalk::math::Math;
use ropewalk::DType;

const BASELINE: Isa = Isa { avx2: false, avx512: false, bf16: false, amx: false };
const AVX2: Isa = Isa { avx2: true, ..BASELINE };
const AVX512: Isa = Isa { avx512: true, ..AVX2 };
const BF16: Isa = Isa { bf16: true, ..AVX512 };
const AMX: Isa = Isa { amx: true, ..BF16 };
const ISAS: [Isa; 5] = [BASELINE, AVX2, AVX512, BF16, AMX];

fn weights() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|t| t.can_dequantize())
}

fn policies(custom_ops: bool) -> impl Iterator<Item = MatmulPolicy> {
    Math::ALL.into_iter().flat_map(move |math| ISAS.map(|isa| MatmulPolicy { custom_ops, math, isa }))
}

/// A line for each group of types that are treated alike.
fn rows(policy: &MatmulPolicy, pass: Pass) -> String {
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for weight in weights() {
        let each = policy.choices(weight, pass).into_iter().map(|(from, choice)| format!("{from} {choice}"));
        let row = each.collect::<Vec<_>>().join(", ");
        match rows.iter_mut().find(|(known, _)| *known == row) {
            Some((_, types)) => types.push(weight.name()),
            None => rows.push((row, vec![weight.name()])),
        }
    }
    rows.iter().fold(String::new(), |mut all, (row, types)| {
        let _ = writeln!(all, "  {row}\n      {}", types.join(" "));
        all
    })
}

/// Everything that can be chosen on the CPU: what is alike for several processors or precisions stands once.
fn table() -> String {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for pass in Pass::ALL {
        for policy in policies(true) {
            let rows = rows(&policy, pass);
            let last = policy.isa.to_string().rsplit(", ").next().unwrap_or_default().to_owned();
            let who = format!("{pass:?}, {}, {last}", policy.math);
            match all.iter_mut().find(|(known, _)| *known == rows) {
                Some((_, whom)) => whom.push(who),
                None => all.push((rows, vec![who])),
            }
        }
    }
    all.iter().map(|(rows, whom)| format!("{}\n{rows}\n", whom.join("\n"))).collect()
}

/// The table is what a change of thresholds is read from.
#[test]
fn the_table_is_what_is_chosen() {
    let known = include_str!("../../src/graph/matmul.txt");
    let (_, known) = known.split_once("\n\n").unwrap();
    let found = table();
    assert!(known == found, "src/graph/matmul.txt: expected, below its first paragraph:\n{found}");
}

#[test]
fn other_devices_have_ggmls_kernels_alone() {
    for policy in policies(false) {
        for (weight, pass) in weights().flat_map(|w| Pass::ALL.map(|p| (w, p))) {
            let dequantize = Some(DType::F32).filter(|_| pass.trains() && weight != DType::F32);
            assert_eq!(policy.choices(weight, pass), [(1, Choice { dequantize, kernel: Kernel::Ggml })]);
        }
        assert!(!policy.trains_in_bf16() && !policy.has_bf16_training());
    }
}

#[test]
fn nothing_changes_beyond_the_last_threshold() {
    for policy in policies(true) {
        for (weight, pass) in weights().flat_map(|w| Pass::ALL.map(|p| (w, p))) {
            let last = policy.choose(weight, LAST_THRESHOLD, pass);
            assert!((LAST_THRESHOLD..1000).all(|n| policy.choose(weight, n, pass) == last));
        }
    }
}
