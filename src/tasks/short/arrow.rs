//! Rows out of Arrow IPC streams, as far as published question sets need them: whole numbers, texts, lists and
//! structs, not compressed, without dictionaries.
//!
//! After the Arrow columnar format, version 1.5 ("IPC Streaming Format"; `format/Message.fbs`,
//! `format/Schema.fbs`). The file may come from anywhere, so nothing in it is believed: each length is
//! checked against the bytes that are there before anything is allocated for it, buffers may not overlap, and
//! the number of values is limited.

use serde_json::{Map, Value};

use super::flatbuffer::{array, i64_at, Read, Table};

/// Values of one file at most: the largest published set has 416,000.
const MAX_VALUES: usize = 1 << 22;
/// Fields of a schema at most, inner ones included.
const MAX_FIELDS: usize = 256;
/// Levels of lists and structs at most.
const MAX_DEPTH: usize = 8;

const CONTINUATION: [u8; 4] = [0xff; 4];

/// Calls `row` with each row of an Arrow stream, an object by columns' names.
///
/// # Errors
/// Damaged or cut off bytes, types that question sets do not have, and what `row` says.
pub(super) fn for_each_row(bytes: &[u8], row: &mut dyn FnMut(Value) -> Read<()>) -> Read<()> {
    let mut at = 0;
    let mut schema = None;
    let mut n_values = 0;
    loop {
        let message = Message::read(bytes, at).map_err(|e| format!("Arrow message at byte {at}: {e}"))?;
        let Some(message) = message else { break };
        let part = |e| format!("Arrow message at byte {at}: {e}");
        match (message.kind, &schema) {
            (1, None) => schema = Some(fields_of_schema(message.header).map_err(part)?),
            (3, Some(fields)) => {
                let mut batch = Batch::new(&message, &mut n_values).map_err(part)?;
                let columns = batch.columns(fields).map_err(part)?;
                emit(fields, columns, batch.n, row)?;
            }
            (1, Some(_)) => return Err(part("a second schema".into())),
            (3, None) => return Err(part("rows before the schema".into())),
            (kind, _) => return Err(part(format!("expected a schema (1) or rows (3), found kind {kind}"))),
        }
        at = message.end;
    }
    match schema {
        Some(_) => Ok(()),
        None => Err("an Arrow stream without a schema".into()),
    }
}

fn emit(
    fields: &[Field],
    columns: Vec<Vec<Value>>,
    n: usize,
    row: &mut dyn FnMut(Value) -> Read<()>,
) -> Read<()> {
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    for _ in 0..n {
        let values = columns.iter_mut().map(|c| c.next().unwrap_or(Value::Null));
        row(Value::Object(fields.iter().map(|f| f.name.clone()).zip(values).collect()))?;
    }
    Ok(())
}

/// One message of a stream.
struct Message<'a> {
    /// `MessageHeader`: 1 a schema, 2 a dictionary, 3 a record batch.
    kind: u8,
    header: Table<'a>,
    body: &'a [u8],
    /// Where the next one begins.
    end: usize,
}

impl<'a> Message<'a> {
    /// The message at a place; `None` at the mark of the end.
    fn read(bytes: &'a [u8], at: usize) -> Read<Option<Message<'a>>> {
        if at == bytes.len() {
            return Err("expected a message or the mark of the end, found the end of the file".into());
        }
        if array::<4>(bytes, at)? != CONTINUATION {
            return Err("expected the mark ff ff ff ff of a message".into());
        }
        let len = i32::from_le_bytes(array(bytes, at + 4)?);
        if len == 0 {
            return Ok(None);
        }
        let (meta, begin) = slice(bytes, at + 8, i64::from(len))?;
        let table = Table::root(meta)?;
        let header = table.table(2)?.ok_or("no header")?;
        let (body, end) = slice(bytes, begin, table.i64(3)?)?;
        Ok(Some(Message { kind: table.u8(1)?, header, body, end }))
    }
}

/// `len` bytes at a place, and where they end.
fn slice(bytes: &[u8], at: usize, len: i64) -> Read<(&[u8], usize)> {
    usize::try_from(len)
        .ok()
        .and_then(|len| at.checked_add(len))
        .and_then(|end| Some((bytes.get(at..end)?, end)))
        .ok_or_else(|| format!("expected {len} bytes at {at}, found {} bytes in all", bytes.len()))
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

fn fields_of_schema(schema: Table<'_>) -> Read<Vec<Field>> {
    if schema.i16(0)? != 0 {
        return Err("big-endian data".into());
    }
    let mut n = 0;
    let fields = children(schema, 1, 0, &mut n)?;
    // Rows without columns take no bytes, so any number of them could be claimed.
    if fields.is_empty() {
        return Err("a schema without columns".into());
    }
    Ok(fields)
}

fn children(table: Table<'_>, slot: usize, depth: usize, n: &mut usize) -> Read<Vec<Field>> {
    let items = table.items(slot, 4)?;
    (0..items.n).map(|k| field(table.table_of(items, k)?, depth, n)).collect()
}

fn field(table: Table<'_>, depth: usize, n: &mut usize) -> Read<Field> {
    *n += 1;
    if *n > MAX_FIELDS || depth > MAX_DEPTH {
        return Err(format!(
            "expected at most {MAX_FIELDS} fields and {MAX_DEPTH} levels of them, found more"
        ));
    }
    let name = table.text(0)?.to_owned();
    if table.table(4)?.is_some() {
        return Err(format!("column {name:?}: dictionaries are not supported"));
    }
    let children = children(table, 5, depth + 1, n)?;
    let kind = match (table.u8(2)?, children.len()) {
        (2, 0) => {
            let int = table.table(3)?.ok_or("a number without a size")?;
            match int.i32(0)? {
                bits @ (8 | 16 | 32 | 64) => Kind::Int(bits as usize / 8, int.u8(1)? != 0),
                bits => return Err(format!("column {name:?}: numbers of {bits} bits")),
            }
        }
        (5, 0) => Kind::Text,
        (12, 1) => Kind::List,
        (13, 1..) => Kind::Struct,
        (kind, inner) => {
            return Err(format!(
                "column {name:?}: expected whole numbers, texts, lists or structs, found type {kind} with {inner} inner ones"
            ))
        }
    };
    Ok(Field { name, kind, children })
}

/// A record batch whose nodes and buffers are taken in order.
struct Batch<'a, 'b> {
    n: usize,
    body: &'a [u8],
    nodes: std::vec::IntoIter<(i64, i64)>,
    buffers: std::vec::IntoIter<(i64, i64)>,
    /// Where the last buffer ended: the next one begins there or later.
    end: usize,
    n_values: &'b mut usize,
}

/// Length of a column, and which of its values are there.
struct Node<'a> {
    n: usize,
    valid: Option<&'a [u8]>,
}

impl Node<'_> {
    fn is_valid(&self, i: usize) -> bool {
        self.valid.is_none_or(|bits| bits[i / 8] >> (i % 8) & 1 == 1)
    }
}

impl<'a, 'b> Batch<'a, 'b> {
    fn new(message: &Message<'a>, n_values: &'b mut usize) -> Read<Batch<'a, 'b>> {
        let header = message.header;
        if header.table(3)?.is_some() {
            return Err("compressed buffers are not supported".into());
        }
        Ok(Batch {
            n: usize::try_from(header.i64(0)?).map_err(|e| format!("number of rows: {e}"))?,
            body: message.body,
            nodes: header.pairs(1)?.into_iter(),
            buffers: header.pairs(2)?.into_iter(),
            end: 0,
            n_values,
        })
    }

    fn columns(&mut self, fields: &[Field]) -> Read<Vec<Vec<Value>>> {
        fields.iter().map(|f| self.column(f, Some(self.n))).collect()
    }

    fn buffer(&mut self) -> Read<&'a [u8]> {
        let (offset, len) = self.buffers.next().ok_or("fewer buffers than the schema has")?;
        let at = usize::try_from(offset).map_err(|e| format!("offset of a buffer: {e}"))?;
        let (bytes, end) = slice(self.body, at, len)?;
        if len > 0 {
            if at < self.end {
                return Err(format!(
                    "buffers overlap: one begins at {at}, the one before ends at {}",
                    self.end
                ));
            }
            self.end = end;
        }
        Ok(bytes)
    }

    fn node(&mut self, name: &str, expected: Option<usize>) -> Read<Node<'a>> {
        let (n, nulls) = self.nodes.next().ok_or("fewer columns than the schema has")?;
        let n = usize::try_from(n).map_err(|e| format!("column {name:?}: length: {e}"))?;
        if let Some(expected) = expected.filter(|&e| e != n) {
            return Err(format!("column {name:?}: expected {expected} values, found {n}"));
        }
        *self.n_values = self.n_values.saturating_add(n);
        if *self.n_values > MAX_VALUES {
            return Err(format!("expected at most {MAX_VALUES} values in a file, found more"));
        }
        let bits = self.buffer()?;
        if nulls != 0 && bits.len() < n.div_ceil(8) {
            return Err(format!("column {name:?}: {} bytes say which of {n} values are there", bits.len()));
        }
        Ok(Node { n, valid: (nulls != 0).then_some(bits) })
    }

    /// The values of a column, `expected` of them where that is known.
    fn column(&mut self, field: &Field, expected: Option<usize>) -> Read<Vec<Value>> {
        let name = &field.name;
        let node = self.node(name, expected)?;
        match field.kind {
            Kind::Int(size, signed) => {
                let data = self.buffer()?;
                if data.len() / size < node.n {
                    return Err(format!("column {name:?}: {} bytes for {} numbers", data.len(), node.n));
                }
                let value = |(i, bytes): (usize, &[u8])| match node.is_valid(i) {
                    true => int(bytes, signed),
                    false => Value::Null,
                };
                Ok(data.chunks_exact(size).take(node.n).enumerate().map(value).collect())
            }
            Kind::Text => {
                let offsets = self.offsets(&node)?;
                let data = self.buffer()?;
                let text = |(i, range): (usize, &[usize])| {
                    if !node.is_valid(i) {
                        return Ok(Value::Null);
                    }
                    let bytes = data.get(range[0]..range[1]).ok_or_else(|| {
                        format!(
                            "column {name:?}: text {i} ends at {}, its buffer at {}",
                            range[1],
                            data.len()
                        )
                    })?;
                    let text =
                        std::str::from_utf8(bytes).map_err(|e| format!("column {name:?}: text {i}: {e}"))?;
                    Ok(Value::String(text.to_owned()))
                };
                offsets.windows(2).enumerate().map(text).collect()
            }
            Kind::List => {
                let offsets = self.offsets(&node)?;
                let inner = self.column(&field.children[0], None)?;
                if offsets.last().is_some_and(|&end| end > inner.len()) {
                    return Err(format!("column {name:?}: lists end after their {} values", inner.len()));
                }
                let mut inner = inner.into_iter();
                inner.by_ref().take(offsets.first().copied().unwrap_or(0)).for_each(drop);
                let list = |(i, range): (usize, &[usize])| {
                    let items: Vec<_> = inner.by_ref().take(range[1] - range[0]).collect();
                    if node.is_valid(i) {
                        Value::Array(items)
                    } else {
                        Value::Null
                    }
                };
                Ok(offsets.windows(2).enumerate().map(list).collect())
            }
            Kind::Struct => {
                let inner = field.children.iter().map(|f| self.column(f, Some(node.n)));
                let mut inner: Vec<_> = inner.map(|c| Ok(c?.into_iter())).collect::<Read<_>>()?;
                let mut object = |i| {
                    let values = inner.iter_mut().map(|c| c.next().unwrap_or(Value::Null));
                    let map: Map<_, _> = field.children.iter().map(|f| f.name.clone()).zip(values).collect();
                    if node.is_valid(i) {
                        Value::Object(map)
                    } else {
                        Value::Null
                    }
                };
                Ok((0..node.n).map(&mut object).collect())
            }
        }
    }

    /// Where texts or lists begin and end: one number more than there are, none smaller than the one before.
    fn offsets(&mut self, node: &Node<'_>) -> Read<Vec<usize>> {
        let bytes = self.buffer()?;
        if node.n == 0 {
            return Ok(vec![]);
        }
        if bytes.len() / 4 <= node.n {
            return Err(format!("{} bytes of offsets for {} values", bytes.len(), node.n));
        }
        let offset = |b: &[u8]| i32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let offsets: Vec<i32> = bytes.chunks_exact(4).take(node.n + 1).map(offset).collect();
        if offsets[0] < 0 || offsets.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err("offsets of values that go backwards".into());
        }
        Ok(offsets.into_iter().map(|o| o as usize).collect())
    }
}

fn int(bytes: &[u8], signed: bool) -> Value {
    let negative = signed && bytes[bytes.len() - 1] & 0x80 != 0;
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    match signed {
        true => i64_at(&wide, 0).unwrap_or_default().into(),
        false => u64::from_le_bytes(wide).into(),
    }
}
