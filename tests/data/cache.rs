//! The cache file: used when it is right, made again when it is not, never trusted.

use std::sync::Mutex;

use ropewalk::control::{Control, Progress, Stop};
use ropewalk::data::{Built, Corpus, Separator, TextOptions};
use ropewalk::vocab::Vocab;
use ropewalk::{gguf, DType};

use crate::world::{everything, prose, refused, vocab, words, World};

fn world() -> World {
    World::of(&[
        ("a.txt", &prose(30, 1)),
        ("b/c.txt", &prose(3, 2)),
        ("d.jsonl", "{\"text\":\"one\"}\n{\"text\":\"two\"}"),
    ])
}

#[track_caller]
fn again(corpus: &Corpus) -> &str {
    match corpus.built() {
        Built::Again(why) => why,
        other => panic!("expected a cache made again, found {other:?}"),
    }
}

#[test]
fn a_cache_is_used_again_and_equals_a_fresh_one() {
    let world = world();
    let first = world.open().unwrap();
    assert_eq!(first.built(), &Built::New);
    let bytes = std::fs::read(world.cache()).unwrap();
    let second = world.open().unwrap();
    assert_eq!(second.built(), &Built::Reused);
    assert_eq!(std::fs::read(world.cache()).unwrap(), bytes);
    assert_eq!(everything(&world, &first), everything(&world, &second));
    let hashes = |c: &Corpus| (0..c.n_documents()).map(|i| c.text_hash(i)).collect::<Vec<_>>();
    assert_eq!(hashes(&first), hashes(&second));
    // Byte for byte, so that nothing depends on which thread was first.
    std::fs::remove_file(world.cache()).unwrap();
    world.open().unwrap();
    assert_eq!(std::fs::read(world.cache()).unwrap(), bytes);
    assert_eq!(world.beside(), ["cache.tokens"]);
}

#[test]
fn other_texts_make_it_again() {
    let world = world();
    world.open().unwrap();
    // Of the same length.
    world.put("b/c.txt", prose(3, 2).replace('e', "E").as_bytes());
    let corpus = world.open().unwrap();
    assert!(again(&corpus).ends_with("b/c.txt has changed"), "{:?}", corpus.built());
    world.put("e.txt", b"more");
    let corpus = world.open().unwrap();
    assert_eq!(again(&corpus), "3 files then, 4 now");
    assert_eq!(corpus.n_documents(), 5);
    // Only the time differs: the same texts.
    world.put("e.txt", b"more");
    assert_eq!(world.open().unwrap().built(), &Built::Reused);
}

#[test]
fn moved_texts_are_the_same_texts_under_their_new_names() {
    let world = world();
    world.open().unwrap();
    std::fs::rename(world.path("a.txt"), world.path("Z.txt")).unwrap();
    let corpus = world.open().unwrap();
    assert_eq!(corpus.built(), &Built::Reused);
    assert!(corpus.name(0).ends_with("Z.txt"));
}

#[test]
fn a_file_that_is_now_read_by_lines_makes_it_again() {
    let world = world();
    world.put("b.json", b"{\"text\": \"one\"}");
    world.open().unwrap();
    std::fs::rename(world.path("b.json"), world.path("b.jsonl")).unwrap();
    assert!(again(&world.open().unwrap()).ends_with("b.jsonl has changed"));
}

#[test]
fn another_tokenizer_separator_or_reading_makes_it_again() {
    let world = world();
    world.open().unwrap();
    let options = TextOptions::default();
    let corpus = world.open_with(words(), &Separator::Auto, &options).unwrap();
    assert_eq!(again(&corpus), "another tokenizer");
    let corpus = world.open_with(words(), &Separator::Token("<|endoftext|>".into()), &options).unwrap();
    assert_eq!(again(&corpus), "another separator");
    let lossy = options.replace_invalid(true);
    let corpus = world.open_with(words(), &Separator::Token("<|endoftext|>".into()), &lossy).unwrap();
    assert_eq!(again(&corpus), "texts are read in another way");
}

#[test]
fn a_tokenizer_is_told_by_all_of_its_keys_and_nothing_else() {
    let file = gguf::File::open(&crate::common::random_model("llama-tiny", DType::F32, "data-keys")).unwrap();
    let of = |keys: &[(String, gguf::Value)]| Vocab::from_metadata(file.path(), keys).unwrap().fingerprint();
    let mut keys = file.metadata().to_vec();
    let same = of(&keys);
    assert_eq!(same, Vocab::load(&file).unwrap().fingerprint());
    keys.reverse();
    keys.push(("somebody.else".into(), gguf::Value::U32(1)));
    assert_eq!(of(&keys), same);
    let mut n_tried = 0;
    for i in 0..keys.len() {
        let mut changed = keys.clone();
        match (&*keys[i].0, &mut changed[i].1) {
            ("tokenizer.ggml.tokens", gguf::Value::Array(gguf::Array::String(tokens))) => {
                tokens.last_mut().unwrap().push(b'!')
            }
            ("tokenizer.ggml.eos_token_id", gguf::Value::U32(id)) => *id -= 1,
            ("tokenizer.ggml.add_bos_token", gguf::Value::Bool(flag)) => *flag = !*flag,
            _ => continue,
        }
        n_tried += 1;
        assert_ne!(of(&changed), same, "{}", keys[i].0);
    }
    assert!(n_tried >= 2, "{n_tried}");
}

#[test]
fn a_file_of_somebody_else_is_left_alone() {
    let world = world();
    for text in ["dear diary", "r", "ropedat"] {
        std::fs::write(world.cache(), text).unwrap();
        assert!(refused(world.open()).contains("cache.tokens: exists and is not a token cache"));
        assert_eq!(std::fs::read(world.cache()).unwrap(), text.as_bytes());
    }
    std::fs::remove_file(world.cache()).unwrap();
    std::fs::create_dir(world.cache()).unwrap();
    assert!(refused(world.open()).contains("regular file"));
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let world = world();
    let nowhere = world.path("nowhere/cache.tokens");
    let sources = world.sources().unwrap();
    let e = refused(Corpus::open(&nowhere, vocab(), &sources, &Separator::Auto, &Control::default()));
    assert!(e.contains("nowhere"), "{e}");
}

#[test]
fn a_break_leaves_the_old_cache_and_no_half_of_a_new_one() {
    let world = world();
    world.open().unwrap();
    let before = std::fs::read(world.cache()).unwrap();
    world.put("a.txt", b"changed");
    let sources = world.sources().unwrap();
    let (stop, seen) = (Stop::default(), Mutex::new(Vec::new()));
    let show = |p: &Progress<'_>| {
        let mut seen = seen.lock().unwrap();
        seen.push((p.what.to_string(), p.done, p.total));
        if seen.len() == 2 {
            stop.request();
        }
    };
    let control = Control::default().with_stop(&stop).with_progress(&show);
    let e = refused(Corpus::open(world.cache(), vocab(), &sources, &Separator::Auto, &control));
    assert_eq!(e, "interrupted");
    assert_eq!(std::fs::read(world.cache()).unwrap(), before);
    assert_eq!(world.beside(), ["cache.tokens"]);
    let seen = seen.into_inner().unwrap();
    let [(one, one_done, _), (two, two_done, total)] = &seen[..] else { panic!("{seen:?}") };
    let tokens = |what: &str| what.rsplit(' ').nth(1).unwrap().parse::<u64>().unwrap();
    assert!(*one_done == 7 && one.starts_with("tokenizing: 1 documents, "), "{one}");
    assert!(two_done > one_done && two.starts_with("tokenizing: 2 documents, "), "{two}");
    assert!(tokens(two) > tokens(one), "{seen:?}");
    assert_eq!(*total, sources.n_bytes());
}

#[test]
fn a_cache_has_a_name_by_its_paths_and_tokenizer() {
    let world = world();
    let name = |vocab, separator: &Separator| {
        Corpus::file_name(vocab, &world.sources().unwrap(), separator).unwrap()
    };
    let first = name(vocab(), &Separator::Auto);
    assert!(first.starts_with("a-") && first.len() == 25 && first.ends_with(".tokens"), "{first}");
    assert_ne!(first, name(words(), &Separator::Auto));
    assert_ne!(name(words(), &Separator::Auto), name(words(), &Separator::Token("<|endoftext|>".into())));
    world.put("a.txt", b"changed");
    assert_eq!(first, name(vocab(), &Separator::Auto));
    world.put("new.txt", b"a");
    assert_ne!(first, name(vocab(), &Separator::Auto));
}

/// Opens with a cache of these bytes: either they were refused and the tokens are right all the same, or an error.
fn hold_against(world: &World, bytes: &[u8], want: &[(String, Vec<i32>)]) {
    std::fs::write(world.cache(), bytes).unwrap();
    match world.open() {
        Ok(corpus) => {
            assert!(matches!(corpus.built(), Built::Again(_)), "a damaged cache was used");
            assert_eq!(everything(world, &corpus), want);
        }
        Err(e) => {
            assert!(e.to_string().contains("not a token cache"), "{e}");
            assert_eq!(std::fs::read(world.cache()).unwrap(), bytes);
        }
    }
}

#[test]
fn every_changed_or_missing_byte_is_found() {
    let world = World::of(&[("a.txt", "ab"), ("b.txt", "c")]);
    let want = everything(&world, &world.open().unwrap());
    let good = std::fs::read(world.cache()).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        hold_against(&world, &bytes, &want);
        hold_against(&world, &good[..at], &want);
    }
    hold_against(&world, &[good.as_slice(), b"\0"].concat(), &want);
}

/// With the checksum put right: what stands in front of it must hold by itself.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let end = bytes.len() - 32;
    let mut all = Sha256::new();
    bytes[..end].chunks(1 << 22).for_each(|chunk| all.update(Sha256::digest(chunk)));
    bytes[end..].copy_from_slice(&all.finalize());
    bytes
}

#[test]
fn lies_under_a_right_checksum_are_found() {
    let world = World::of(&[("a.txt", "ab"), ("b.txt", "c")]);
    let want = everything(&world, &world.open().unwrap());
    let good = std::fs::read(world.cache()).unwrap();
    assert_eq!(sealed(good.clone()), good, "the test seals as the library does");
    let n_tokens = want.iter().map(|(_, t)| t.len()).sum::<usize>();
    let records = 16 + 4 * n_tokens;
    let tail = good.len() - 56;
    let lies: [(usize, &[u8]); 12] = [
        (8, &[9]),
        (16, &[255; 4]),
        (16 + 4 * (n_tokens - 1), &50_000u32.to_le_bytes()),
        (records, &[1]),
        (records + 24, &[0]),
        (records + 24, &[200]),
        (records + 16, &[255; 4]),
        (tail, &[255; 8]),
        (tail, &(1u64 << 62).to_le_bytes()),
        (tail + 8, &(1u64 << 61).to_le_bytes()),
        (tail + 16, &[0; 8]),
        (records + 48, b"[[[["),
    ];
    for (at, lie) in lies {
        let mut bytes = good.clone();
        bytes[at..at + lie.len()].copy_from_slice(lie);
        hold_against(&world, &sealed(bytes), &want);
    }
}
