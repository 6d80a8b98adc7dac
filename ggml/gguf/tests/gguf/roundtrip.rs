//! Random metadata trees and tensors of all types are written and read back unchanged.

use gguf::float::{decode, encode};
use gguf::{parse, Array, DType, File, Value, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

/// Arrays of every element type, nested up to four deep.
fn array() -> impl Strategy<Value = Array> {
    let leaf = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u32>().prop_map(f32::from_bits), 0..9).prop_map(Array::F32),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(vec(any::<u8>(), 0..20), 0..9).prop_map(Array::String),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<u64>().prop_map(f64::from_bits), 0..9).prop_map(Array::F64),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| vec(inner, 0..4).prop_map(Array::Array))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(|b| Value::F32(f32::from_bits(b))),
        any::<bool>().prop_map(Value::Bool),
        vec(any::<u8>(), 0..40).prop_map(Value::String),
        array().prop_map(Value::Array),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(|b| Value::F64(f64::from_bits(b))),
    ]
}

#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    data: Vec<u8>,
}

fn tensor() -> impl Strategy<Value = Tensor> {
    let dtype = (0..DType::ALL.len()).prop_map(|i| DType::ALL[i]);
    ("[ -~é]{1,20}", dtype, vec(1u64..4, 1..5), any::<u8>()).prop_map(|(name, dtype, mut shape, seed)| {
        shape[0] *= dtype.block_size() as u64;
        let rows: u64 = shape[1..].iter().product();
        let n = dtype.row_bytes(shape[0] as usize).unwrap() * rows as usize;
        let data = (0..n).map(|i| seed.wrapping_add((i * 7) as u8)).collect();
        Tensor { name, dtype, shape, data }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_is_read(
        pairs in proptest::collection::btree_map("[a-z._é]{1,12}", value(), 0..8),
        tensors in vec(tensor(), 0..6),
        alignment in prop_oneof![Just(None), (0u32..8).prop_map(|s| Some(1u32 << s))],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
        let mut pairs: Vec<(String, Value)> = pairs.into_iter().rev().collect();
        pairs.extend(alignment.map(|a| ("general.alignment".to_owned(), Value::U32(a))));
        let mut names = std::collections::HashSet::new();
        let tensors: Vec<Tensor> = tensors.into_iter().filter(|t| names.insert(t.name.clone())).collect();

        let mut writer = Writer::new();
        for (key, value) in &pairs {
            writer.set(key, value.clone());
        }
        for t in &tensors {
            writer.tensor_bytes(&t.name, t.dtype, &t.shape, &t.data).unwrap();
        }
        let n = writer.write(&first).unwrap();
        let bytes = std::fs::read(&first).unwrap();
        prop_assert_eq!(n, bytes.len() as u64);

        let file = File::open(&first).unwrap();
        prop_assert_eq!(file.alignment(), alignment.unwrap_or(32) as usize);
        // As text, for a NaN is not equal to itself; the second copy below compares its bits.
        prop_assert_eq!(format!("{:?}", file.metadata()), format!("{pairs:?}"));
        prop_assert_eq!(file.tensors().len(), tensors.len());
        for (found, t) in file.tensors().iter().zip(&tensors) {
            prop_assert_eq!((&found.name, found.dtype, &found.shape), (&t.name, t.dtype, &t.shape));
            prop_assert_eq!(file.data(found).to_vec().unwrap(), &t.data[..]);
            prop_assert_eq!(file.tensor(&t.name), Some(found));
        }
        for (key, _) in &pairs {
            prop_assert!(file.value(key).is_some());
        }
        prop_assert!(file.value("Absent").is_none() && file.tensor("ABSENT\n").is_none());

        let mut again = Writer::with_metadata_of(&file);
        for t in file.tensors() {
            again.copy_tensor(&file, t).unwrap();
        }
        again.write(&second).unwrap();
        prop_assert!(std::fs::read(&second).unwrap() == bytes, "the copy differs");
    }

    /// Values keep their meaning when they are read as another type, or are not read at all.
    #[test]
    fn integers_convert_when_they_fit(
        v in prop_oneof![
            any::<i64>().prop_map(i128::from),
            any::<u64>().prop_map(i128::from),
            -300i128..300,
        ],
    ) {
        let mut header = Writer::new();
        let stored: Vec<Value> = [
            i8::try_from(v).ok().map(Value::I8), u8::try_from(v).ok().map(Value::U8),
            i16::try_from(v).ok().map(Value::I16), u16::try_from(v).ok().map(Value::U16),
            i32::try_from(v).ok().map(Value::I32), u32::try_from(v).ok().map(Value::U32),
            i64::try_from(v).ok().map(Value::I64), u64::try_from(v).ok().map(Value::U64),
        ].into_iter().flatten().collect();
        for (i, value) in stored.iter().enumerate() {
            header.set(&i.to_string(), value.clone());
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        header.write(&path).unwrap();
        let file = File::open(&path).unwrap();
        for i in 0..stored.len() {
            let key = i.to_string();
            prop_assert_eq!(file.get::<u32>(&key).ok(), u32::try_from(v).ok());
            prop_assert_eq!(file.get::<i32>(&key).ok(), i32::try_from(v).ok());
            prop_assert_eq!(file.get::<u64>(&key).ok(), u64::try_from(v).ok());
            prop_assert_eq!(file.get::<i64>(&key).ok(), i64::try_from(v).ok());
            prop_assert_eq!(file.get::<usize>(&key).ok(), usize::try_from(v).ok());
            prop_assert!(file.get::<f64>(&key).is_err() && file.get::<bool>(&key).is_err());
        }
    }
}

#[test]
fn an_empty_file_of_tensors_is_a_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    assert_eq!(Writer::new().write(&path).unwrap(), 32);
    let header = parse(&std::fs::read(&path).unwrap()).unwrap();
    assert!(header.metadata.is_empty() && header.tensors.is_empty());
}

#[test]
fn floats_come_back_and_other_types_are_refused() {
    let values = [0.0, -1.5, 65504.0, f32::INFINITY];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let bytes = encode(dtype, &values).unwrap();
        let mut out = [f32::NAN; 4];
        assert!(decode(dtype, &bytes, &mut out));
        let exact = values.iter().zip(&out).filter(|(a, b)| a == b).count();
        assert_eq!(exact, if dtype == DType::BF16 { 3 } else { 4 }, "{dtype}");
        assert!(!decode(dtype, &bytes, &mut [0.0; 3]), "{dtype}: too many bytes");
    }
    let e = encode(DType::Q8_0, &values).unwrap_err();
    assert_eq!(e.to_string(), "q8_0 is not a float type");
    for dtype in [DType::I32, DType::F64, DType::Q8_0] {
        assert!(!decode(dtype, &[0; 34], &mut [0.0; 32]), "{dtype}");
        assert!(!decode(dtype, &[0; 32], &mut [0.0; 8]), "{dtype}");
    }
}
