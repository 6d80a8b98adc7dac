//! Models that are cut short. Other damage is done to all bytes of GGUF files, and to those of models, by the replay of `fuzz`.

use gguf::File;

use crate::{common, small_model, survives};

#[test]
fn the_model_is_sound_before_it_is_damaged() {
    assert_eq!(survives(small_model()), None);
}

#[test]
fn cut_anywhere_it_is_refused() {
    let bytes = std::fs::read(small_model()).unwrap();
    let file = File::open(small_model()).unwrap();
    let start = file.tensors().iter().map(|t| t.offset).min().unwrap();
    let path = common::scratch("hostile-cut.gguf");
    let cuts = (0..64).chain((64..start).step_by(211)).chain([start, bytes.len() / 2, bytes.len() - 32]);
    for n in cuts {
        std::fs::write(&path, &bytes[..n]).unwrap();
        let e = survives(&path).unwrap_or_else(|| panic!("{n} bytes of {} are taken", bytes.len()));
        assert!(e.contains("hostile-cut.gguf"), "{n}: {e}");
    }
}
