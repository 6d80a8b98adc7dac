//! Rows out of Arrow IPC streams, as far as published question sets need them: signed numbers, texts, lists and
//! structs, not compressed, without dictionaries.
//!
//! After the Arrow columnar format, version 1.5 ("IPC Streaming Format"; `format/Message.fbs`,
//! `format/Schema.fbs`), and the FlatBuffers internals document. The checksum of each file is compared before the
//! file is read, so that nothing here doubts what the bytes say: those of another layout are `None`.

use serde_json::{Map, Value};

/// The rows of a stream, objects by columns' names.
pub fn rows(bytes: &[u8]) -> Option<Vec<Value>> {
    let (mut at, mut fields, mut rows) = (0, Vec::new(), Vec::new());
    loop {
        // A mark of four bytes, then the length of the message's description, which is 0 at the end.
        let len = place(bytes, at + 4)?;
        if len == 0 {
            return Some(rows);
        }
        let begin = at + 8 + len;
        let message = Table::behind(bytes.get(at + 8..begin)?, 0)?;
        at = begin + usize::try_from(message.int(3, 8)).ok()?;
        let (header, body) = (message.table(2)?, bytes.get(begin..at)?);
        match message.int(1, 1) {
            1 => fields = header.fields(1)?,
            3 => {
                let [nodes, buffers] = [1, 2].map(|i| header.pairs(i).map(Vec::into_iter));
                let mut batch = Batch { body, nodes: nodes?, buffers: buffers? };
                rows.extend(batch.objects(&fields, usize::try_from(header.int(0, 8)).ok()?)?);
            }
            _ => return None,
        }
    }
}

/// A whole number of `size` bytes, the lowest first.
fn int(bytes: &[u8], at: usize, size: usize) -> Option<i64> {
    let bytes = bytes.get(at..at + size)?;
    let sign = -i64::from(bytes.last()? >> 7);
    Some(bytes.iter().rev().fold(sign, |n, &byte| n << 8 | i64::from(byte)))
}

/// A length or a distance.
fn place(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(int(bytes, at, 4)?).ok()
}

/// A table of FlatBuffers.
struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Table<'a> {
    /// The table that the distance at a place leads to.
    fn behind(bytes: &'a [u8], at: usize) -> Option<Table<'a>> {
        Some(Table { bytes, at: at + place(bytes, at)? })
    }

    /// Where field `i` is; `None` for one that was not written.
    fn field(&self, i: usize) -> Option<usize> {
        // The table begins with the distance back to the list of its fields' offsets, and that with its length.
        let slots = usize::try_from(self.at as i64 - int(self.bytes, self.at, 4)?).ok()?;
        let slot = 4 + 2 * i;
        if slot as i64 >= int(self.bytes, slots, 2)? {
            return None;
        }
        let offset = int(self.bytes, slots + slot, 2).filter(|&offset| offset != 0)?;
        Some(self.at + usize::try_from(offset).ok()?)
    }

    /// A number, which is 0 if it was not written.
    fn int(&self, i: usize, size: usize) -> i64 {
        self.field(i).and_then(|at| int(self.bytes, at, size)).unwrap_or(0)
    }

    fn table(&self, i: usize) -> Option<Table<'a>> {
        Table::behind(self.bytes, self.field(i)?)
    }

    /// Where the items of a vector begin, and how many there are.
    fn vector(&self, i: usize) -> Option<(usize, usize)> {
        let Some(at) = self.field(i) else { return Some((0, 0)) };
        let at = at + place(self.bytes, at)?;
        Some((at + 4, place(self.bytes, at)?))
    }

    /// A vector of pairs of numbers.
    fn pairs(&self, i: usize) -> Option<Vec<[usize; 2]>> {
        let number = |at| usize::try_from(int(self.bytes, at, 8)?).ok();
        let (first, n) = self.vector(i)?;
        (0..n).map(|k| Some([number(first + 16 * k)?, number(first + 16 * k + 8)?])).collect()
    }

    /// A vector of fields of Arrow.
    fn fields(&self, i: usize) -> Option<Vec<Field>> {
        let (first, n) = self.vector(i)?;
        let field = |k: usize| {
            let table = Table::behind(self.bytes, first + 4 * k)?;
            let (at, len) = table.vector(0)?;
            let name = text(table.bytes, [at, at + len])?.to_owned();
            let kind = match table.int(2, 1) {
                2 => Type::Int(usize::try_from(table.table(3)?.int(0, 4) / 8).ok()?),
                5 => Type::Text,
                12 => Type::List,
                13 => Type::Struct,
                _ => return None,
            };
            Some(Field { name, kind, inner: table.fields(5)? })
        };
        (0..n).map(field).collect()
    }
}

fn text(bytes: &[u8], [from, to]: [usize; 2]) -> Option<&str> {
    std::str::from_utf8(bytes.get(from..to)?).ok()
}

/// A column, or what is inside of one.
struct Field {
    name: String,
    kind: Type,
    inner: Vec<Field>,
}

enum Type {
    /// Bytes of a number.
    Int(usize),
    Text,
    List,
    Struct,
}

/// A record batch whose nodes and buffers are taken in the order of the schema.
struct Batch<'a> {
    body: &'a [u8],
    /// Length of each column, and how many of its values are null.
    nodes: std::vec::IntoIter<[usize; 2]>,
    /// Place and length of each buffer.
    buffers: std::vec::IntoIter<[usize; 2]>,
}

impl<'a> Batch<'a> {
    fn buffer(&mut self) -> Option<&'a [u8]> {
        let [at, len] = self.buffers.next()?;
        self.body.get(at..at + len)
    }

    /// Where `n` texts or lists begin and end.
    fn ranges(&mut self, n: usize) -> Option<Vec<[usize; 2]>> {
        let ends = self.buffer()?;
        (0..n).map(|i| Some([place(ends, 4 * i)?, place(ends, 4 * i + 4)?])).collect()
    }

    /// `n` objects of columns.
    fn objects(&mut self, fields: &[Field], n: usize) -> Option<Vec<Value>> {
        let mut objects = vec![Map::new(); n];
        for field in fields {
            for (object, value) in objects.iter_mut().zip(self.column(field)?) {
                object.insert(field.name.clone(), value);
            }
        }
        Some(objects.into_iter().map(Value::Object).collect())
    }

    fn column(&mut self, field: &Field) -> Option<Vec<Value>> {
        let [n, nulls] = self.nodes.next()?;
        let valid = self.buffer()?;
        let mut values: Vec<Value> = match field.kind {
            Type::Int(size) => {
                let data = self.buffer()?;
                (0..n).map(|i| Some(Value::from(int(data, i * size, size)?))).collect::<Option<_>>()?
            }
            Type::Text => {
                let (ranges, data) = (self.ranges(n)?, self.buffer()?);
                ranges
                    .into_iter()
                    .map(|range| Some(Value::from(text(data, range)?)))
                    .collect::<Option<_>>()?
            }
            Type::List => {
                let ranges = self.ranges(n)?;
                let mut inner = self.column(field.inner.first()?)?;
                let list = |[from, to]: [usize; 2]| -> Option<Value> {
                    Some(inner.get_mut(from..to)?.iter_mut().map(Value::take).collect())
                };
                ranges.into_iter().map(list).collect::<Option<_>>()?
            }
            Type::Struct => self.objects(&field.inner, n)?,
        };
        if nulls > 0 {
            for (i, value) in values.iter_mut().enumerate() {
                if valid.get(i / 8)? >> (i % 8) & 1 == 0 {
                    *value = Value::Null;
                }
            }
        }
        Some(values)
    }
}
