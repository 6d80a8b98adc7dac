//! Parts of training that stand alone: this test program compiles their files for itself.

mod s2;

#[path = "../../../src/train/attention.rs"]
#[allow(dead_code)]
mod attention;
#[path = "../../../src/train/landmark.rs"]
mod landmark;
#[path = "../../../src/train/seen.rs"]
#[allow(dead_code, unreachable_pub)]
mod seen;

use ropewalk::hparams::LayerAttention;
use ropewalk::landmark::Landmarks;
use ropewalk::train as settings;
use ropewalk::Token;

use attention::{of_whole_kv_heads, HeadGroup};
use landmark::Text;
use seen::{Seen, TrainAttention};
use settings::Sequence;

#[test]
fn groups_of_heads_are_whole_but_at_their_ends() {
    let group = |heads, kv| HeadGroup { heads, kv, table: 0 };
    assert_eq!(of_whole_kv_heads(0..6, 3, 0), [group(0..6, 0..2)]);
    assert_eq!(of_whole_kv_heads(0..4, 3, 0), [group(0..3, 0..1), group(3..4, 1..2)]);
    assert_eq!(of_whole_kv_heads(4..9, 3, 0), [group(4..6, 1..2), group(6..9, 2..3)]);
    assert_eq!(of_whole_kv_heads(1..2, 3, 0), [group(1..2, 0..1)]);
    assert_eq!(of_whole_kv_heads(2..2, 2, 0), []);
}

fn layer(window: Option<usize>) -> LayerAttention {
    LayerAttention { window, ..LayerAttention::new(2, 1, 4) }
}

/// The first key that each of `n` queries sees.
fn firsts(seen: &Seen, n: usize, layer: &LayerAttention, table: usize) -> Vec<i32> {
    (0..n).map(|i| seen.range(layer, table, i)[0]).collect()
}

#[test]
fn groups_are_those_of_the_paper() {
    let group = TrainAttention::Shifted { group: None }.group(16).unwrap();
    let (seen, full) = (Seen::new(&[], 16, group), layer(None));
    assert_eq!(firsts(&seen, 16, &full, 0), [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]);
    assert_eq!(firsts(&seen, 16, &full, 1), [0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14]);
    assert!((0..16).all(|i| seen.range(&full, 1, i)[1] == i as i32 + 1));
    // Documents begin at 3 and 11.
    let seen = Seen::new(&[3, 11], 16, group);
    assert_eq!(firsts(&seen, 16, &full, 1), [0, 0, 2, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11, 11, 14, 14]);
    // A window stays as it is.
    let windowed = layer(Some(5));
    assert_eq!((seen.n_tables(&full), seen.n_tables(&windowed)), (2, 1));
    assert_eq!(firsts(&seen, 16, &windowed, 0), [0, 0, 0, 3, 3, 3, 3, 3, 4, 5, 6, 11, 11, 11, 11, 11]);
    // One group: full attention, but for the border of the shifted half.
    let seen = Seen::new(&[], 6, TrainAttention::Shifted { group: Some(8) }.group(6).unwrap());
    assert_eq!(
        (firsts(&seen, 6, &full, 0), firsts(&seen, 6, &full, 1)),
        (vec![0; 6], vec![0, 0, 0, 0, 4, 4])
    );
}

/// `forward_flashattn` step by step: the lengths of its groups (`cu_q_lens`) for a sequence padded to a multiple of 4,
/// of which `n` tokens are real.
#[test]
fn groups_of_any_length_are_those_of_the_released_code() {
    for n in 1..70usize {
        let q_len = n.div_ceil(4) * 4;
        // int(q_len * group_size_ratio)
        let group_size = (q_len as f64 * 0.25) as usize;
        assert_eq!(q_len % group_size, 0);
        let ranges = |shift: usize| {
            let starts = (0..n).step_by(group_size).map(|s| s + shift).filter(|&s| s < n);
            let mut bounds: Vec<usize> = std::iter::once(0).chain(starts).chain([n]).collect();
            bounds.dedup();
            let mut first = vec![0; n];
            bounds.windows(2).for_each(|w| first[w[0]..w[1]].fill(w[0] as i32));
            first
        };
        let seen = Seen::new(&[], n, TrainAttention::Shifted { group: None }.group(n).unwrap());
        let full = layer(None);
        assert_eq!(firsts(&seen, n, &full, 0), ranges(0), "{n}");
        assert_eq!(firsts(&seen, n, &full, 1), ranges(group_size / 2), "{n}, shifted");
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for text in ["full", "s2", "s2:group=7", "landmark:block=64,in-loss=false"] {
        assert_eq!(text.parse::<TrainAttention>().unwrap().to_string(), text);
    }
    for text in ["", "S2", "s2:", "s2:group=0", "s2:group=-1", "s2:group=x", "sparse"] {
        let e = text.parse::<TrainAttention>().unwrap_err().to_string();
        assert!(e.starts_with("attention") && e.contains("expected ") && e.contains("found "), "{e}");
    }
}

#[test]
fn landmarks_stand_behind_blocks() {
    let tokens: Vec<Token> = (10..18).collect();
    let sequence = Sequence { segment_starts: &[0, 3, 4], ..Sequence::new(&tokens) };
    let weights = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    let mut landmarks = Landmarks::new(4).unwrap();
    let text = Text::plain(&sequence, weights).with_landmarks(landmarks, 99);
    assert_eq!(text.inputs, [10, 11, 12, 99, 13, 14, 15, 99, 16]);
    assert_eq!(text.targets, [11, 12, 99, 13, 14, 15, 99, 16, 17]);
    assert_eq!(text.weights, [1.0, 2.0, 3.0, 3.0, 4.0, 5.0, 6.0, 6.0, 7.0]);
    assert_eq!(text.segment_starts, [0, 4, 5]);
    // A text that ends with a block also has the landmark of that block.
    let sequence = Sequence::new(&tokens[..4]);
    landmarks.in_loss = false;
    let text = Text::plain(&sequence, vec![1.0; 3]).with_landmarks(landmarks, 99);
    assert_eq!((text.inputs, text.targets), (vec![10, 11, 12, 99], vec![11, 12, 99, 13]));
    assert_eq!(text.weights, [1.0, 1.0, 0.0, 1.0]);
}
