//! Valid files, damaged at random: refused or still consistent; never a panic, never long.

use std::time::{Duration, Instant};

use gguf::{parse, DType, File, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

/// One kind of damage; positions are taken modulo the length.
#[derive(Debug, Clone)]
enum Damage {
    Flip(usize, u8),
    Byte(usize, u8),
    Number(usize, u64),
    Word(usize, u32),
    Truncate(usize),
    Delete(usize, usize),
    Splice(usize, usize, usize),
}

/// Numbers that overflow, wrap, or just miss.
fn nasty() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(u64::MAX - 7),
        (0u32..64).prop_map(|s| 1 << s),
        (0u32..64).prop_map(|s| (1u64 << s) - 1),
        0u64..4096,
        any::<u64>(),
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    // Most of a file's structure lies at its start.
    let at = || prop_oneof![0usize..64, 0usize..1024, any::<usize>()];
    prop_oneof![
        (at(), 0u8..8).prop_map(|(p, b)| Damage::Flip(p, b)),
        (at(), any::<u8>()).prop_map(|(p, b)| Damage::Byte(p, b)),
        (at(), nasty()).prop_map(|(p, v)| Damage::Number(p, v)),
        (at(), nasty()).prop_map(|(p, v)| Damage::Word(p, v as u32)),
        at().prop_map(Damage::Truncate),
        (at(), 1usize..40).prop_map(|(p, n)| Damage::Delete(p, n)),
        (at(), at(), 1usize..200).prop_map(|(p, q, n)| Damage::Splice(p, q, n)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    let mut overwrite = |p: usize, new: &[u8]| {
        let p = p % len;
        let n = new.len().min(len - p);
        bytes[p..p + n].copy_from_slice(&new[..n]);
    };
    match *damage {
        Damage::Flip(p, bit) => bytes[p % len] ^= 1 << bit,
        Damage::Byte(p, v) => bytes[p % len] = v,
        Damage::Number(p, v) => overwrite(p, &v.to_le_bytes()),
        Damage::Word(p, v) => overwrite(p, &v.to_le_bytes()),
        Damage::Truncate(p) => bytes.truncate(p % len),
        Damage::Delete(p, n) => drop(bytes.drain(p % len..(p % len + n).min(len))),
        Damage::Splice(p, q, n) => {
            let piece = bytes[q % len..(q % len + n).min(len)].to_vec();
            bytes.splice(p % len..p % len, piece);
        }
    }
}

/// Every number of the header is hit somewhere: keys of all shapes, tensors of several types.
fn written() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut w = Writer::new();
    w.set("general.alignment", 64u32).set("llama.rope.freq_base", 1e4f32).set("flags", vec![true, false]);
    w.set("ids", (0..50u32).collect::<Vec<_>>()).set("x", f64::MIN_POSITIVE).set("n", -1i64);
    for (i, t) in [DType::F32, DType::Q4_1, DType::Q6_K, DType::IQ1_M, DType::I64].into_iter().enumerate() {
        let shape = [t.block_size() as u64, i as u64 + 1];
        w.tensor_bytes(&format!("blk.{i}.weight"), t, &shape, vec![i as u8; t.block_bytes() * (i + 1)])
            .unwrap();
    }
    w.write(&path).unwrap();
    std::fs::read(&path).unwrap()
}

fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let start = Instant::now();
    let parsed = parse(bytes);
    prop_assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
    match parsed {
        Err(defect) => {
            let text = defect.to_string();
            prop_assert!(!text.contains('\n') && text.len() < 1000, "{text}");
        }
        Ok(header) => {
            let mut ends = Vec::new();
            for t in &header.tensors {
                prop_assert!(t.offset % header.alignment == 0);
                prop_assert!(t.offset + t.n_bytes <= bytes.len());
                let row = t.dtype.row_bytes(t.shape[0] as usize).unwrap();
                prop_assert_eq!(t.n_bytes, row * t.shape[1..].iter().product::<u64>() as usize);
                ends.push((t.offset, t.offset + t.n_bytes));
            }
            ends.sort_unstable();
            prop_assert!(ends.windows(2).all(|w| w[0].1 <= w[1].0), "overlap");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_bytes(which in any::<bool>(), damages in vec(damage(), 1..5)) {
        thread_local!(static FILES: [Vec<u8>; 2] = [crate::bytes::valid().0, written()]);
        let mut bytes = FILES.with(|f| f[usize::from(which)].clone());
        damages.iter().for_each(|d| apply(&mut bytes, d));
        check(&bytes)?;
    }

    #[test]
    fn any_bytes(tail in vec(any::<u8>(), 0..300), version in 2u8..4) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend([version, 0, 0, 0]);
        bytes.extend(tail);
        check(&bytes)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files(damages in vec(damage(), 1..4)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let mut bytes = crate::bytes::valid().0;
        damages.iter().for_each(|d| apply(&mut bytes, d));
        std::fs::write(&path, &bytes).unwrap();
        match File::open(&path) {
            Err(e) => prop_assert!(e.to_string().starts_with(&path.display().to_string()), "{e}"),
            Ok(file) => {
                for t in file.tensors() {
                    prop_assert_eq!(file.data(t).len(), t.n_bytes);
                    if matches!(t.dtype, DType::F32 | DType::F16 | DType::BF16) {
                        prop_assert_eq!(file.floats(t).unwrap().len(), t.n_elements());
                    } else {
                        prop_assert!(file.floats(t).is_err());
                    }
                }
            }
        }
    }
}
