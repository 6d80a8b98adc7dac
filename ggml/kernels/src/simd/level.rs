//! The best instructions that kernels may use. An environment variable lowers them, so that one machine can run the code
//! of older ones.

use std::sync::OnceLock;

/// The variable. Only what kernels of this crate choose at run time depends on it. With the same build and [`Level::Avx2`],
/// every x86-64 processor with AVX2 computes the same bits.
pub const VARIABLE: &str = "ROPEWALK_INSTRUCTIONS";

/// Sets of instructions, each with those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// None that is detected at run time.
    Portable,
    /// AVX2 with F16C and fused multiply-adds.
    Avx2,
    /// VNNI without AVX-512.
    AvxVnni,
    /// AVX-512.
    Avx512,
    /// AMX tiles: all that there is.
    Amx,
}

const NAMES: [(&str, Level); 5] = [
    ("portable", Level::Portable),
    ("avx2", Level::Avx2),
    ("avx-vnni", Level::AvxVnni),
    ("avx512", Level::Avx512),
    ("amx", Level::Amx),
];

/// What the variable says, which is read once: [`Level::Amx`] without it.
///
/// # Errors
/// For a value that is no name of a level. Kernels then use all that they can.
pub fn level() -> Result<Level, String> {
    known().clone()
}

fn known() -> &'static Result<Level, String> {
    static LEVEL: OnceLock<Result<Level, String>> = OnceLock::new();
    LEVEL.get_or_init(|| {
        std::env::var_os(VARIABLE).map_or(Ok(Level::Amx), |value| named(&value.to_string_lossy()))
    })
}

fn named(value: &str) -> Result<Level, String> {
    NAMES.iter().find(|(name, _)| *name == value).map(|(_, level)| *level).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        format!("{VARIABLE} is {value:?}; expected one of {}", names.join(", "))
    })
}

/// Whether kernels may use the instructions of a level.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) fn allows(needed: Level) -> bool {
    known().as_ref().map_or(true, |level| *level >= needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests of loops that choose among registers run with the widest ones otherwise.
    #[test]
    fn all_tests_pass_with_fewer_instructions() {
        if level() != Ok(Level::Amx) {
            return;
        }
        for (name, _) in &NAMES[..NAMES.len() - 1] {
            let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
            let output = tests.env(VARIABLE, name).output().unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
        }
    }

    #[test]
    fn levels_have_names() {
        assert!(NAMES.is_sorted_by_key(|(_, level)| *level));
        assert_eq!(named("avx2"), Ok(Level::Avx2));
        let e = named("AVX2").unwrap_err();
        assert_eq!(
            e,
            "ROPEWALK_INSTRUCTIONS is \"AVX2\"; expected one of portable, avx2, avx-vnni, avx512, amx"
        );
    }
}
