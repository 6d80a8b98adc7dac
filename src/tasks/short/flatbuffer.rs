//! Tables of FlatBuffers, read with every offset checked: Arrow describes its data by them.
//!
//! Layout after the FlatBuffers internals document: a table begins with the distance back to its list of field
//! offsets, strings and vectors with their length.

/// Result of reading: the value, or what is wrong with the bytes.
pub(super) type Read<T> = Result<T, String>;

/// A table in a buffer.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the list of field offsets is, and how many bytes it has.
    slots: usize,
    slots_len: usize,
}

/// A vector in a buffer: where its items begin, and how many there are.
#[derive(Clone, Copy)]
pub(super) struct Items {
    pub(super) at: usize,
    pub(super) n: usize,
}

/// Bytes at a place.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Read<[u8; N]> {
    at.checked_add(N)
        .and_then(|end| bytes.get(at..end))
        .and_then(|found| found.try_into().ok())
        .ok_or_else(|| format!("expected {N} bytes at {at}, found the end of {} bytes", bytes.len()))
}

fn u16_at(bytes: &[u8], at: usize) -> Read<usize> {
    Ok(usize::from(u16::from_le_bytes(array(bytes, at)?)))
}

fn u32_at(bytes: &[u8], at: usize) -> Read<usize> {
    Ok(u32::from_le_bytes(array(bytes, at)?) as usize)
}

pub(super) fn i64_at(bytes: &[u8], at: usize) -> Read<i64> {
    Ok(i64::from_le_bytes(array(bytes, at)?))
}

/// A place at a distance from another one.
fn shifted(at: usize, by: usize) -> Read<usize> {
    at.checked_add(by).ok_or_else(|| format!("offset {by} at {at} is too large"))
}

impl<'a> Table<'a> {
    /// The table that a buffer is about.
    pub(super) fn root(bytes: &'a [u8]) -> Read<Table<'a>> {
        Table::new(bytes, u32_at(bytes, 0)?)
    }

    fn new(bytes: &'a [u8], at: usize) -> Read<Table<'a>> {
        let back = i64::from(i32::from_le_bytes(array(bytes, at)?));
        let slots = i64::try_from(at)
            .ok()
            .and_then(|at| at.checked_sub(back))
            .and_then(|slots| usize::try_from(slots).ok())
            .ok_or_else(|| format!("table at {at}: its fields are {back} bytes before it"))?;
        let slots_len = u16_at(bytes, slots)?;
        Ok(Table { bytes, at, slots, slots_len })
    }

    /// Where field number `i` is; `None` for a field that was not written.
    fn field(&self, i: usize) -> Read<Option<usize>> {
        let slot = 4 + 2 * i;
        if slot + 2 > self.slots_len {
            return Ok(None);
        }
        match u16_at(self.bytes, shifted(self.slots, slot)?)? {
            0 => Ok(None),
            offset => Ok(Some(shifted(self.at, offset)?)),
        }
    }

    pub(super) fn u8(&self, i: usize) -> Read<u8> {
        Ok(match self.field(i)? {
            Some(at) => array::<1>(self.bytes, at)?[0],
            None => 0,
        })
    }

    pub(super) fn i16(&self, i: usize) -> Read<i16> {
        Ok(match self.field(i)? {
            Some(at) => i16::from_le_bytes(array(self.bytes, at)?),
            None => 0,
        })
    }

    pub(super) fn i32(&self, i: usize) -> Read<i32> {
        Ok(match self.field(i)? {
            Some(at) => i32::from_le_bytes(array(self.bytes, at)?),
            None => 0,
        })
    }

    pub(super) fn i64(&self, i: usize) -> Read<i64> {
        Ok(match self.field(i)? {
            Some(at) => i64_at(self.bytes, at)?,
            None => 0,
        })
    }

    pub(super) fn table(&self, i: usize) -> Read<Option<Table<'a>>> {
        let Some(at) = self.field(i)? else { return Ok(None) };
        Ok(Some(Table::new(self.bytes, shifted(at, u32_at(self.bytes, at)?)?)?))
    }

    /// A vector whose items have `size` bytes each; they are all within the buffer.
    pub(super) fn items(&self, i: usize, size: usize) -> Read<Items> {
        let Some(at) = self.field(i)? else { return Ok(Items { at: 0, n: 0 }) };
        let at = shifted(at, u32_at(self.bytes, at)?)?;
        let n = u32_at(self.bytes, at)?;
        let first = shifted(at, 4)?;
        let end = n.checked_mul(size).and_then(|len| len.checked_add(first));
        match end {
            Some(end) if end <= self.bytes.len() => Ok(Items { at: first, n }),
            _ => {
                Err(format!("vector at {at}: {n} items of {size} bytes do not fit into {}", self.bytes.len()))
            }
        }
    }

    /// Item `k` of a vector of tables.
    pub(super) fn table_of(&self, items: Items, k: usize) -> Read<Table<'a>> {
        let at = shifted(items.at, 4 * k)?;
        Table::new(self.bytes, shifted(at, u32_at(self.bytes, at)?)?)
    }

    /// Pairs of numbers out of a vector of structs of two.
    pub(super) fn pairs(&self, i: usize) -> Read<Vec<(i64, i64)>> {
        let items = self.items(i, 16)?;
        (0..items.n)
            .map(|k| Ok((i64_at(self.bytes, items.at + 16 * k)?, i64_at(self.bytes, items.at + 16 * k + 8)?)))
            .collect()
    }

    pub(super) fn text(&self, i: usize) -> Read<&'a str> {
        let items = self.items(i, 1)?;
        std::str::from_utf8(&self.bytes[items.at..items.at + items.n]).map_err(|e| e.to_string())
    }
}
