//! Memory whose size comes from a file or a flag: asked for so that the system can refuse it, which is an error and not
//! the end of the process.
#![forbid(unsafe_code)]

/// An allocation that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {bytes} bytes")]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub bytes: u64,
}

impl From<OutOfMemory> for std::io::Error {
    fn from(e: OutOfMemory) -> Self {
        std::io::Error::new(std::io::ErrorKind::OutOfMemory, e)
    }
}

/// An empty vector with room for exactly `n` values.
pub fn room<T>(n: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut out = Vec::new();
    let bytes = (n as u64).saturating_mul(size_of::<T>() as u64);
    out.try_reserve_exact(n).map_err(|_| OutOfMemory { bytes })?;
    Ok(out)
}

/// `n` times `value`.
pub fn filled<T: Copy>(n: usize, value: T) -> Result<Vec<T>, OutOfMemory> {
    let mut out = room(n)?;
    out.resize(n, value);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_an_error_with_its_size() {
        assert_eq!(filled(3, 7u8).unwrap(), [7; 3]);
        assert_eq!(room::<u64>(5).unwrap().capacity(), 5);
        assert_eq!(room::<u64>(usize::MAX).unwrap_err(), OutOfMemory { bytes: u64::MAX });
        let e = filled(1 << 60, 0f32).unwrap_err();
        assert_eq!(std::io::Error::from(e).to_string(), format!("cannot allocate {} bytes", 1u64 << 62));
    }
}
