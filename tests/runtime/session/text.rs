//! Text under way, and texts that begin alike.

use ropewalk::internals::session::{find, longest_start, n_shared, whole_characters};

#[test]
fn unfinished_characters_wait() {
    let text = "aé漢😀".as_bytes();
    for end in 0..=text.len() {
        let ready = whole_characters(&text[..end]);
        assert!(std::str::from_utf8(&text[..ready]).is_ok(), "cut at {end}");
        assert!(end - ready < 4);
    }
    assert_eq!(whole_characters(&[0x80, 0x80, 0x80, 0x80]), 4, "stray bytes do not wait for ever");
}

#[test]
fn starts_of_stop_strings_are_held() {
    assert_eq!(longest_start(b"hello <|en", b"<|end|>"), 4);
    assert_eq!(longest_start(b"hello", b"<|end|>"), 0);
    assert_eq!(longest_start(b"aa", b"aaa"), 2);
    assert_eq!(find(b"xx<|end|>yy", b"<|end|>"), Some(2));
}

#[test]
fn shared_tokens_are_counted_to_the_first_that_differs() {
    let text: Vec<i32> = (0..200).collect();
    for n in [0, 1, 63, 64, 65, 127, 128, 192, 199, 200] {
        assert_eq!(n_shared(&text, &text[..n]), n);
        assert_eq!(n_shared(&text[..n], &text), n);
        let mut other = text.clone();
        other.iter_mut().skip(n).take(1).for_each(|token| *token = -1);
        assert_eq!(n_shared(&text, &other), n);
    }
}
