//! Operands that the ops of attention refuse.

use crate::common::*;
use ggml::attention::{AttentionBranch, Scoring};
use ggml::attention_train::AttentionBack;
use ggml::DType;

#[test]
fn wrong_operands_of_attention_are_refused() {
    use DType::*;
    with(|b| {
        let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
        let (q, k, m) = (t(F32, &[32, 4, 3]), t(F16, &[32, 5, 2]), t(F16, &[5, 4]));
        let good = AttentionBranch { q, k, v: k };
        let no = |p, mask| refused(b.attention(&[p], mask, 1.0), "attention");
        b.attention(&[good], m, 1.0)?;
        b.attention(&[good; 3], t(F16, &[15, 4]), 1.0)?;
        b.attention(&[AttentionBranch { v: t(Q8_0, &[64, 5, 2]), ..good }], m, 1.0)?;

        refused(b.attention(&[], m, 1.0), "attention");
        refused(b.attention(&[good; 4], t(F16, &[20, 4]), 1.0), "attention");
        refused(b.attention(&[good; 2], m, 1.0), "attention");
        refused(b.attention(&[good], m, f32::NAN), "attention");
        refused(b.attention(&[good], m, f32::INFINITY), "attention");
        for softcap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let capped = Scoring { softcap: Some(softcap), ..Scoring::from(1.0) };
            refused(b.attention(&[good], m, capped), "attention");
        }
        let with = |sinks| Scoring { sinks: Some(sinks), ..Scoring::from(1.0) };
        b.attention(&[good], m, with(t(F32, &[4])))?;
        for wrong in [t(F32, &[3]), t(F16, &[4]), t(F32, &[4, 2])] {
            refused(b.attention(&[good], m, with(wrong)), "attention");
        }
        for q in [
            t(F16, &[32, 4, 3]),
            t(F32, &[31, 4, 3]),
            t(F32, &[32, 3, 3]),
            t(F32, &[32, 4, 2]),
            t(F32, &[32, 4, 3, 2]),
            b.permute(t(F32, &[4, 32, 3]), [1, 0, 2, 3])?,
        ] {
            no(AttentionBranch { q, ..good }, m);
        }
        let swapped = b.permute(t(F16, &[5, 32, 2]), [1, 0, 2, 3])?;
        for wrong in
            [t(F16, &[32, 6, 2]), t(F16, &[32, 5, 1]), t(F16, &[32, 5, 2, 2]), t(I32, &[32, 5, 2]), swapped]
        {
            no(AttentionBranch { k: wrong, ..good }, m);
            no(AttentionBranch { v: wrong, ..good }, m);
        }
        no(AttentionBranch { k: t(F16, &[16, 5, 2]), ..good }, m);
        let gaps = b.columns(t(F16, &[6, 4]), 0, 5)?;
        for mask in
            [t(F32, &[5, 4]), t(F16, &[6, 4]), t(F16, &[5, 3]), t(F16, &[5, 5]), t(F16, &[5, 4, 2]), gaps]
        {
            no(good, mask);
        }
        // Of keys in any order, columns come in whole blocks, and the mask says which keys they are.
        let placed = |shape: &[usize]| t(F16, shape);
        b.placed_attention(&[good; 2], &[64, 128], placed(&[192, 7]), 1.0)?;
        let wrong: [(&[usize], &[usize]); 4] =
            [(&[64], &[64, 7]), (&[64, 100], &[164, 7]), (&[64, 128], &[192, 4]), (&[64, 64], &[192, 7])];
        for (columns, mask) in wrong {
            refused(b.placed_attention(&[good; 2], columns, placed(mask), 1.0), "attention");
        }
        // Parts must agree with each other.
        let two = t(F16, &[10, 4]);
        for other in [
            AttentionBranch { q: t(F32, &[32, 2, 3]), ..good },
            AttentionBranch { k: t(F16, &[32, 5, 4]), v: t(F16, &[32, 5, 4]), ..good },
            AttentionBranch { v: t(F16, &[16, 5, 2]), ..good },
        ] {
            refused(b.attention(&[good, other], two, 1.0), "attention");
        }
        let (many, long) = (t(F32, &[32, 1 << 15, 64]), t(F16, &[1 << 30, 5, 2]));
        no(AttentionBranch { q: many, v: long, ..good }, t(F16, &[5, 64]));
        Ok(())
    });
}

#[test]
fn wrong_operands_of_training_are_refused() {
    use DType::*;
    let new = |shape: &[usize]| stored(F32, shape, &vec![0.0; shape.iter().product()]).0;
    let (d_k, d_v, kept) = (new(&[8, 2, 5]), new(&[6, 2, 5]), new(&[8, 2, 5]));
    with(|b| {
        let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
        let (q, k, v) = (t(F32, &[8, 4, 3]), t(F32, &[8, 2, 5]), t(F32, &[6, 2, 5]));
        let key_ranges = t(I32, &[2, 3]);
        let o_lse = b.attention_lse(q, k, v, key_ranges, 1.0)?;
        assert_eq!(o_lse.ne(), [7, 4, 3, 1]);
        let no = |q, k, v, key_ranges| refused(b.attention_lse(q, k, v, key_ranges, 1.0), "attention_lse");
        let turned = b.permute(t(F32, &[4, 8, 3]), [1, 0, 2, 3])?;
        for wrong in [t(F16, &[8, 4, 3]), t(F32, &[7, 4, 3]), t(F32, &[8, 3, 3]), t(F32, &[8, 4, 2]), turned]
        {
            no(wrong, k, v, key_ranges);
        }
        for wrong in [t(F16, &[8, 2, 5]), t(F32, &[8, 2, 4]), t(F32, &[8, 1, 5]), t(F32, &[8, 2, 5, 2])] {
            no(q, wrong, v, key_ranges);
            no(q, k, wrong, key_ranges);
        }
        for wrong in [
            t(I64, &[2, 3]),
            t(I32, &[3, 2]),
            t(I32, &[2, 4]),
            t(I32, &[6]),
            t(I32, &[2, 3, 3]),
            t(I32, &[2, 2, 2]),
        ] {
            no(q, k, v, wrong);
        }
        refused(b.attention_lse(q, k, v, key_ranges, f32::NAN), "attention_lse");
        no(t(F32, &[8, 2050, 3]), k, v, key_ranges);

        let d_out = t(F32, &[6, 4, 3]);
        let (d_k, d_v, kept) = (b.stored(&d_k)?, b.stored(&d_v)?, b.stored(&kept)?);
        let good = AttentionBack { q, k, v, key_ranges, o_lse, d_out, d_k, d_v };
        assert_eq!(b.attention_back(good, 1.0)?.ne(), [8, 4, 3, 1]);
        refused(b.attention_back(good, f32::INFINITY), "attention_back");
        for wrong in [
            AttentionBack { q: t(F32, &[8, 4, 2]), ..good },
            AttentionBack { k: t(F32, &[8, 2, 4]), ..good },
            AttentionBack { v: t(F32, &[5, 2, 5]), ..good },
            AttentionBack { key_ranges: t(I32, &[2, 2]), ..good },
            AttentionBack { o_lse: t(F32, &[6, 4, 3]), ..good },
            AttentionBack { o_lse: t(F16, &[7, 4, 3]), ..good },
            AttentionBack { d_out: t(F32, &[6, 4, 4]), ..good },
            AttentionBack { d_out: t(F32, &[7, 4, 3]), ..good },
            // Not of a store, of another shape, in the memory of another operand.
            AttentionBack { d_k: t(F32, &[8, 2, 5]), ..good },
            AttentionBack { d_v: t(F32, &[6, 2, 5]), ..good },
            AttentionBack { d_k: b.view(d_k, [8, 2, 4, 1], [32, 64, 256], 0)?, ..good },
            AttentionBack { d_k: kept, k: kept, ..good },
            AttentionBack { d_k, v: d_k, d_v: kept, ..good },
            AttentionBack { v: k, o_lse: t(F32, &[9, 4, 3]), d_out: t(F32, &[8, 4, 3]), d_v: d_k, ..good },
            AttentionBack { d_k: b.view(d_k, [8, 2, 5, 1], [0, 32, 160], 0)?, ..good },
        ] {
            refused(b.attention_back(wrong, 1.0), "attention_back");
        }
        Ok(())
    });
}

#[test]
fn what_is_no_cap_and_no_sinks_is_refused() {
    use DType::*;
    with(|b| {
        let t = |dtype, shape: &[usize]| b.input("t", dtype, shape).unwrap().1;
        let (q, k, m) = (t(F32, &[8, 3, 4]), t(F16, &[8, 5, 2]), t(F16, &[5, 3]));
        let capped = |cap| Scoring { softcap: Some(cap), ..Scoring::from(1.0) };
        let with = |sinks| Scoring { sinks: Some(sinks), ..Scoring::from(1.0) };
        for wrong in
            [capped(0.0), capped(f32::NAN), with(t(F32, &[3])), with(t(F16, &[4])), with(t(F32, &[4, 2]))]
        {
            refused(b.flash_attn(q, k, k, m, wrong), "flash_attn");
        }
        let (queries, keys) = (t(F32, &[8, 4, 3]), t(F32, &[8, 2, 5]));
        refused(b.attention_lse(queries, keys, keys, t(I32, &[2, 3]), with(t(F32, &[3]))), "attention_lse");
        Ok(())
    });
}
