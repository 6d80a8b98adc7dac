//! The precompiled normalization map of SentencePiece unigram vocabularies, checked before libllama walks it.
//!
//! Layout: u32 size of the double array in bytes (little endian), the array of u32 nodes, then replacement texts that
//! end in NUL. A node packs BASE, LCHECK and a leaf bit (Kanda 2018, XOR-compressed compact double array).
#![forbid(unsafe_code)]

/// Bytes of a map; the published ones have about 240,000.
const MAX_BYTES: usize = 1 << 22;

/// Follows every path any text could take. libllama checks each step too, but by throwing from inside tokenization,
/// where nothing catches.
pub(super) fn check(map: &[u8]) -> Result<(), String> {
    if map.len() > MAX_BYTES {
        return Err(format!("expected at most {MAX_BYTES} bytes, found {}", map.len()));
    }
    let (head, rest) = map.split_first_chunk::<4>().ok_or("shorter than its size field")?;
    let size = u32::from_le_bytes(*head) as usize;
    if size >= rest.len() {
        return Err(format!("a double array of {size} bytes and texts do not fit in {}", rest.len()));
    }
    let (array, texts) = rest.split_at(size);
    let nodes: Vec<u32> =
        array.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    if nodes.is_empty() {
        return Ok(());
    }
    // Any offset up to the last NUL begins a text that ends.
    let n_text = texts.iter().rposition(|&b| b == 0).map_or(0, |i| i + 1);
    let base = |node: u32| ((node >> 10) << ((node & (1 << 9)) >> 6)) as usize;

    let mut seen = vec![false; nodes.len()];
    let mut open = vec![base(nodes[0])];
    while let Some(state) = open.pop() {
        for byte in 1..=255usize {
            let child = state ^ byte;
            let node = *nodes
                .get(child)
                .ok_or_else(|| format!("a path leads to node {child} of {}", nodes.len()))?;
            if node & (1 << 31 | 0xff) != byte as u32 || std::mem::replace(&mut seen[child], true) {
                continue;
            }
            let next = child ^ base(node);
            if node >> 8 & 1 == 1 {
                let value = nodes
                    .get(next)
                    .ok_or_else(|| format!("a leaf leads to node {next} of {}", nodes.len()))?;
                let offset = (value & !(1 << 31)) as usize;
                if offset >= n_text {
                    return Err(format!("a text at {offset} of {n_text}"));
                }
            }
            open.push(next);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(nodes: &[u32], texts: &[u8]) -> Vec<u8> {
        let mut m = (nodes.len() as u32 * 4).to_le_bytes().to_vec();
        m.extend(nodes.iter().flat_map(|n| n.to_le_bytes()));
        m.extend(texts);
        m
    }

    /// Root BASE 256; 'a' is its only child, a leaf whose value is at 512.
    fn one_entry(value: u32) -> Vec<u32> {
        let mut nodes = vec![0u32; 768];
        nodes[0] = 256 << 10;
        let a = 256 ^ b'a' as usize;
        nodes[a] = ((a ^ 512) as u32) << 10 | 1 << 8 | b'a' as u32;
        nodes[512] = 1 << 31 | value;
        nodes
    }

    #[test]
    fn every_path_and_text_must_be_inside() {
        assert_eq!(check(&map(&one_entry(0), b"A\0")), Ok(()));
        assert!(check(&map(&one_entry(2), b"A\0")).is_err(), "text out of range");
        assert!(check(&map(&one_entry(1), b"A\0B")).is_ok());
        assert!(check(&map(&one_entry(2), b"A\0B")).is_err(), "text without an end");
        assert!(
            check(&map(&one_entry(0)[..700], b"A\0")).is_err(),
            "state after the leaf reaches past the array"
        );
        let mut far = one_entry(0);
        far[0] = 5000 << 10;
        assert!(check(&map(&far, b"A\0")).is_err(), "root base out of range");
        assert!(check(b"").is_err());
        assert!(check(&[255, 255, 255, 255, 0]).is_err());
        assert_eq!(check(&[0, 0, 0, 0, 0]), Ok(()), "an empty array maps nothing");
        let mut ring = vec![0u32; 256];
        for (b, node) in ring.iter_mut().enumerate() {
            *node = (b as u32) << 10 | b as u32;
        }
        assert_eq!(check(&map(&ring, b"\0")), Ok(()), "cycles end");
    }
}
