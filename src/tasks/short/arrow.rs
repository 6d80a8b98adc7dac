//! Rows out of Arrow IPC streams, as far as the published question sets need them: whole numbers, texts, lists and
//! structs, not compressed, without dictionaries.
//!
//! After the Arrow columnar format, version 1.5 ("IPC Streaming Format"; `format/Message.fbs`,
//! `format/Schema.fbs`), and the FlatBuffers internals document: a table begins with the distance back to its list
//! of field offsets, strings and vectors with their length. The SHA-256 of every file is known and compared before
//! it is read, so all other bytes are one error here.

use std::vec::IntoIter;

use serde_json::Value;

/// Calls `row` with each row of an Arrow stream, an object by columns' names.
///
/// # Errors
/// Damaged or cut off bytes, types that question sets do not have, and what `row` says.
pub(super) fn for_each_row(
    bytes: &[u8],
    row: &mut dyn FnMut(Value) -> Result<(), String>,
) -> Result<(), String> {
    let (mut at, mut schema) = (0, Vec::new());
    loop {
        let other = || format!("Arrow message at byte {at}: damaged, or not of a set of questions");
        let Some(message) = Message::read(bytes, at).ok_or_else(other)? else { return Ok(()) };
        match message.kind {
            1 => schema = fields(message.header, 1).ok_or_else(other)?,
            3 => message.rows(&schema).ok_or_else(other)?.into_iter().try_for_each(&mut *row)?,
            _ => return Err(other()),
        }
        at = message.end;
    }
}

/// `size` bytes at a place as a number that is not negative, the lowest byte first.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<usize> {
    let mut wide = [0; 8];
    wide[..size].copy_from_slice(slice(bytes, at, size)?);
    usize::try_from(u64::from_le_bytes(wide)).ok()
}

fn slice(bytes: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(len)?)
}

/// One message of a stream.
struct Message<'a> {
    /// `MessageHeader`: 1 a schema, 2 a dictionary, 3 a record batch.
    kind: usize,
    header: Table<'a>,
    body: &'a [u8],
    end: usize,
}

impl<'a> Message<'a> {
    /// The message at a place; the inner `None` is the mark of the end.
    fn read(bytes: &'a [u8], at: usize) -> Option<Option<Message<'a>>> {
        if slice(bytes, at, 4)? != [0xff; 4] {
            return None;
        }
        let len = number(bytes, at + 4, 4)?;
        if len == 0 {
            return Some(None);
        }
        let meta = slice(bytes, at + 8, len)?;
        let table = Table::new(meta, number(meta, 0, 4)?)?;
        let (begin, body_len) = (at + 8 + len, table.number(3, 8)?);
        let body = slice(bytes, begin, body_len)?;
        let (kind, header) = (table.number(1, 1)?, table.table(2)?);
        Some(Some(Message { kind, header, body, end: begin + body_len }))
    }

    /// The rows of a record batch.
    fn rows(&self, fields: &[Field]) -> Option<Vec<Value>> {
        let (nodes, buffers) = (self.header.pairs(1)?.into_iter(), self.header.pairs(2)?.into_iter());
        let mut batch = Batch { body: self.body, nodes, buffers };
        batch.objects(fields)
    }
}

/// A table of FlatBuffers.
#[derive(Clone, Copy)]
struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the list of field offsets is.
    slots: usize,
}

impl<'a> Table<'a> {
    fn new(bytes: &'a [u8], at: usize) -> Option<Table<'a>> {
        let back = i32::from_le_bytes(slice(bytes, at, 4)?.try_into().ok()?);
        let slots = usize::try_from(i64::try_from(at).ok()? - i64::from(back)).ok()?;
        Some(Table { bytes, at, slots })
    }

    /// Where field number `i` is; `None` for a field that was not written.
    fn place(&self, i: usize) -> Option<usize> {
        let slot = 4 + 2 * i;
        if slot + 2 > number(self.bytes, self.slots, 2)? {
            return None;
        }
        let offset = number(self.bytes, self.slots + slot, 2)?;
        (offset > 0).then(|| self.at + offset)
    }

    /// A number of `size` bytes; 0 where it was not written.
    fn number(&self, i: usize, size: usize) -> Option<usize> {
        self.place(i).map_or(Some(0), |at| number(self.bytes, at, size))
    }

    /// What the offset at a place leads to.
    fn target(&self, at: usize) -> Option<usize> {
        Some(at + number(self.bytes, at, 4)?)
    }

    fn table(&self, i: usize) -> Option<Table<'a>> {
        Table::new(self.bytes, self.target(self.place(i)?)?)
    }

    /// Where the items of a vector begin, and how many there are.
    fn items(&self, i: usize) -> Option<(usize, usize)> {
        let Some(at) = self.place(i) else { return Some((0, 0)) };
        let at = self.target(at)?;
        Some((at + 4, number(self.bytes, at, 4)?))
    }

    fn tables(&self, i: usize) -> Option<Vec<Table<'a>>> {
        let (first, n) = self.items(i)?;
        (0..n).map(|k| Table::new(self.bytes, self.target(first + 4 * k)?)).collect()
    }

    /// Pairs of numbers out of a vector of structs of two.
    fn pairs(&self, i: usize) -> Option<Vec<(usize, usize)>> {
        let (first, n) = self.items(i)?;
        let half = |k: usize| number(self.bytes, first + 8 * k, 8);
        (0..n).map(|k| Some((half(2 * k)?, half(2 * k + 1)?))).collect()
    }

    fn text(&self, i: usize) -> Option<&'a str> {
        let (at, n) = self.items(i)?;
        std::str::from_utf8(slice(self.bytes, at, n)?).ok()
    }
}

/// A column, or what is inside of one.
struct Field {
    name: String,
    kind: Kind,
    children: Vec<Field>,
}

enum Kind {
    /// Bytes of a number, and whether it has a sign.
    Int(usize, bool),
    Text,
    List,
    Struct,
}

/// The columns of a schema, or those inside of one.
fn fields(table: Table<'_>, slot: usize) -> Option<Vec<Field>> {
    let field = |table: Table<'_>| {
        let kind = match table.number(2, 1)? {
            2 => {
                let int = table.table(3)?;
                let bits = int.number(0, 4).filter(|bits| (8..=64).contains(bits))?;
                Kind::Int(bits / 8, int.number(1, 1)? != 0)
            }
            5 => Kind::Text,
            12 => Kind::List,
            13 => Kind::Struct,
            _ => return None,
        };
        Some(Field { name: table.text(0)?.to_owned(), kind, children: fields(table, 5)? })
    };
    table.tables(slot)?.into_iter().map(field).collect()
}

/// A record batch whose nodes and buffers are taken in order: length and number of nulls, place and length.
struct Batch<'a> {
    body: &'a [u8],
    nodes: IntoIter<(usize, usize)>,
    buffers: IntoIter<(usize, usize)>,
}

impl<'a> Batch<'a> {
    fn buffer(&mut self) -> Option<&'a [u8]> {
        let (at, len) = self.buffers.next()?;
        slice(self.body, at, len)
    }

    /// Columns as objects, one for each place in them.
    fn objects(&mut self, fields: &[Field]) -> Option<Vec<Value>> {
        let columns: Vec<Vec<Value>> = fields.iter().map(|f| self.column(f)).collect::<Option<_>>()?;
        let n = columns.first()?.len();
        let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
        let object = |_| {
            let values = columns.iter_mut().map(|column| column.next().unwrap_or_default());
            Value::Object(fields.iter().map(|f| f.name.clone()).zip(values).collect())
        };
        Some((0..n).map(object).collect())
    }

    fn column(&mut self, field: &Field) -> Option<Vec<Value>> {
        let (n, nulls) = self.nodes.next()?;
        let bits = self.buffer()?;
        let values: Vec<Value> = match field.kind {
            Kind::Int(size, signed) => {
                self.buffer()?.chunks_exact(size).take(n).map(|bytes| int(bytes, signed)).collect()
            }
            Kind::Text => {
                let (offsets, data) = (self.offsets(n)?, self.buffer()?);
                let text = |range: &[usize]| std::str::from_utf8(data.get(range[0]..range[1])?).ok();
                offsets.windows(2).map(|range| text(range).map(Value::from)).collect::<Option<_>>()?
            }
            Kind::List => {
                let (offsets, inner) = (self.offsets(n)?, self.column(field.children.first()?)?);
                let list = |range: &[usize]| Some(Value::Array(inner.get(range[0]..range[1])?.to_vec()));
                offsets.windows(2).map(list).collect::<Option<_>>()?
            }
            Kind::Struct => self.objects(&field.children)?,
        };
        let is_there = |i: usize| nulls == 0 || bits.get(i / 8).is_some_and(|byte| byte >> (i % 8) & 1 == 1);
        let values = values.into_iter().enumerate();
        Some(values.map(|(i, value)| if is_there(i) { value } else { Value::Null }).collect())
    }

    /// Where texts or lists begin and end: one number more than there are.
    fn offsets(&mut self, n: usize) -> Option<Vec<usize>> {
        let bytes = self.buffer()?;
        (0..n + usize::from(n > 0)).map(|i| number(bytes, 4 * i, 4)).collect()
    }
}

fn int(bytes: &[u8], signed: bool) -> Value {
    let negative = signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    match signed {
        true => i64::from_le_bytes(wide).into(),
        false => u64::from_le_bytes(wide).into(),
    }
}
