//! The runtime's error: callers find what they can act on, wherever it was made.

use gguf::{Defect, GgufError};
use ropewalk::remedy::Remedy;
use ropewalk::Error;

fn during(place: &str, source: Error) -> Error {
    Error::During { place: place.into(), source: Box::new(source) }
}

#[test]
fn arguments_are_displayed_and_matched_by_name() {
    let e = Error::argument("ctx", "1 to 8", 9);
    assert_eq!(e.to_string(), "ctx: expected 1 to 8, found 9");
    assert!(matches!(&e, Error::Argument { name, .. } if name == "ctx"), "{e:?}");
}

/// The place comes first, and the error itself can still be matched.
#[test]
fn a_place_keeps_the_error_that_happened_there() {
    let e = during("step 3", Error::argument("ctx", "1 to 8", 9));
    assert_eq!(e.to_string(), "step 3: ctx: expected 1 to 8, found 9");
    assert!(std::error::Error::source(&e).is_some());
    assert_eq!(e.remedy(), None);
    let full = during("step 3", Error::ContextFull { needed: 2, free: 1, n_ctx: 8 });
    assert_eq!(full.remedy(), Some(Remedy::Context));
    assert!(
        matches!(&e, Error::During { source, .. } if matches!(**source, Error::Argument { .. })),
        "{e:?}"
    );
}

/// However deep in the layers below an error was made, callers find it under the same variant.
#[test]
fn what_can_be_matched_is_found_at_any_depth() {
    let io = || files::Error::new("x.gguf", std::io::Error::other("gone"));
    for e in [Error::from(io()), gguf::Error::from(io()).into(), ggml::Error::from(io()).into()] {
        assert_eq!(e.to_string(), "x.gguf: gone");
        assert!(matches!(e, Error::Io { path, .. } if path.ends_with("x.gguf")));
    }
    let defect = |defect| gguf::Error::from(GgufError { path: "x.gguf".into(), defect });
    let version = || defect(Defect::Version { found: 1 });
    for e in [Error::from(version()), ggml::Error::from(version()).into()] {
        assert!(matches!(&e, Error::File(e) if e.defect == Defect::Version { found: 1 }), "{e:?}");
    }
    let refused = ggml::Error::OutOfMemory { device: "CPU".into(), bytes: 7, what: "keys".into() };
    let of_file = gguf::Error::OutOfMemory { bytes: 7, what: "keys".into() };
    let of_parse = defect(Defect::Memory { at: "keys".into(), bytes: 7 });
    for e in [Error::from(refused), of_file.into(), of_parse.into()] {
        assert!(e.to_string().contains("cannot allocate 7 bytes"), "{e}");
        assert!(matches!(e, Error::OutOfMemory { needed: 7, free: None, .. }), "{e:?}");
    }
}
