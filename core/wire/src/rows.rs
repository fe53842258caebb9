//! Rows of a subscription, read in place: a received frame, the check of its batch against the
//! schema of its generation, and its cells without conversion. It must not
//! know which generations exist: whoever owns them picks the schema.

use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;

use bytes::Bytes;
use flatbuffers::WIPOffset;

use crate::encoder::Encoder;
use crate::frame::Frame;
use crate::generated as fb;
use crate::raw::{array, field, follow, string, vector};
use crate::rules::{self, Decoder};
use crate::types::{
    self, CellValue, FieldType, FieldTypeShape, RowField, RowSchema, ScalarType,
    SubscriptionHandle, SubscriptionRows,
};
use crate::verified::VerifiedServer;
use crate::violation::{EncodeError, Violation};
use crate::{codec, decode, encode, FRAME_LIMIT};

/// A SubscriptionRows frame whose cells have not been looked at: it says which generation they are
/// of and gives them only through [`RowsFrame::check`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowsFrame {
    /// The generation whose schema the rows must be read against.
    pub subscription: SubscriptionHandle,
    verified: VerifiedServer,
}

impl RowsFrame {
    pub(crate) fn read<'f>(
        decoder: &Decoder<'f>,
        verified: &VerifiedServer,
        rows: fb::SubscriptionRows<'f>,
    ) -> Result<Self, Violation> {
        if rows.batch().rows().is_empty() {
            return Err(rules::refused("RowBatch.rows", "is empty"));
        }
        Ok(Self {
            subscription: decode::subscription_handle(decoder, rows.subscription())?,
            verified: verified.clone(),
        })
    }

    pub fn frame(&self) -> &Frame {
        self.verified.frame()
    }

    /// The number of rows, known before they are checked.
    pub fn row_count(&self) -> usize {
        self.table().map_or(0, |rows| rows.batch().rows().len())
    }

    /// Checks the whole batch against the schema of its generation, and makes its cells readable.
    ///
    /// # Errors
    /// A batch that R-2 refuses, and any value in it that F-4 refuses.
    pub fn check(self, schema: Arc<RowSchema>) -> Result<CheckedRows, Violation> {
        let bytes = self.verified.frame().as_slice();
        let table = self.table()?;
        let batch = table.batch();
        let key = match (&schema.branch, batch.branch_key()) {
            (None, None) => None,
            (Some(branch), Some(key)) => {
                let columns = columns(&branch.fields);
                check_length(&columns, key.cells(), "the branch key")?;
                let mut cells = Vec::with_capacity(columns.len());
                check_row(bytes, &columns, key.cells(), |_, slot| {
                    cells.push(slot);
                })?;
                Some(cells)
            }
            (Some(_), None) => {
                return Err(nonconforming(
                    "rows of a branched relay carry no branch key",
                ));
            }
            (None, Some(_)) => {
                return Err(nonconforming(
                    "rows of an unbranched relay carry a branch key",
                ));
            }
        };
        let columns = columns(&schema.fields);
        let rows = batch.rows();
        let count = rows.len();
        // All rows before any memory: cells that are all there are bounded by the verified frame,
        // a product of two declared numbers is not.
        for row in rows.iter() {
            check_length(&columns, row.cells(), "a row")?;
        }
        let mut cells = vec![Slot::NULL; count.saturating_mul(columns.len())];
        for (number, row) in rows.iter().enumerate() {
            // Column by column, as a reader of whole columns goes.
            check_row(bytes, &columns, row.cells(), |column, slot| {
                if let Some(place) = cells.get_mut(column * count + number) {
                    *place = slot;
                }
            })?;
        }
        Ok(CheckedRows {
            inner: Arc::new(Inner {
                subscription: self.subscription,
                verified: self.verified,
                schema,
                rows: count,
                cells,
                key,
            }),
        })
    }

    /// The rows as owned values, unchecked by any schema: for tools that show or resend frames.
    ///
    /// # Errors
    /// A value that F-4 refuses.
    pub fn to_values(&self) -> Result<SubscriptionRows, Violation> {
        decode::subscription_rows(&Decoder::new(self.verified.frame()), self.table()?)
    }

    fn table(&self) -> Result<fb::SubscriptionRows<'_>, Violation> {
        rules::member(
            self.verified.message().body_as_subscription_rows(),
            "ServerMessage.body",
        )
    }
}

fn nonconforming(message: impl Into<String>) -> Violation {
    Violation::new("R-2", message.into())
}

/// What one column must hold.
struct Column<'s> {
    field: &'s RowField,
    kind: fb::CellValue,
}

fn columns(fields: &[RowField]) -> Vec<Column<'_>> {
    fields
        .iter()
        .map(|field| Column {
            field,
            kind: kind_of(&field.field_type),
        })
        .collect()
}

fn kind_of(field_type: &FieldType) -> fb::CellValue {
    match &field_type.shape {
        FieldTypeShape::ScalarFieldType(scalar) => match scalar.scalar {
            ScalarType::U8 => fb::CellValue::U8Cell,
            ScalarType::I8 => fb::CellValue::I8Cell,
            ScalarType::U16 => fb::CellValue::U16Cell,
            ScalarType::I16 => fb::CellValue::I16Cell,
            ScalarType::U32 => fb::CellValue::U32Cell,
            ScalarType::I32 => fb::CellValue::I32Cell,
            ScalarType::U64 => fb::CellValue::U64Cell,
            ScalarType::I64 => fb::CellValue::I64Cell,
            ScalarType::F32 => fb::CellValue::F32Cell,
            ScalarType::F64 => fb::CellValue::F64Cell,
            ScalarType::Bool => fb::CellValue::BoolCell,
            ScalarType::String => fb::CellValue::StringCell,
            ScalarType::Datetime => fb::CellValue::DatetimeCell,
            ScalarType::Bytes => fb::CellValue::BytesCell,
        },
        FieldTypeShape::FixedListFieldType(_) | FieldTypeShape::ListFieldType(_) => {
            fb::CellValue::ListCell
        }
    }
}

type Cells<'f> = flatbuffers::Vector<'f, flatbuffers::ForwardsUOffset<fb::Cell<'f>>>;

fn check_length(columns: &[Column<'_>], cells: Cells<'_>, what: &str) -> Result<(), Violation> {
    if cells.len() == columns.len() {
        return Ok(());
    }
    let (found, wanted) = (cells.len(), columns.len());
    Err(nonconforming(format!(
        "{what} has {found} cells where its schema has {wanted} fields"
    )))
}

/// Checks the cells of a row of the right length and hands out where each stands.
fn check_row<'f>(
    bytes: &'f [u8],
    columns: &[Column<'_>],
    cells: Cells<'f>,
    mut put: impl FnMut(usize, Slot),
) -> Result<(), Violation> {
    for (index, (column, cell)) in columns.iter().zip(cells.iter()).enumerate() {
        let slot = locate(bytes, cell._tab.loc())
            .ok_or_else(|| rules::refused("Cell.value", "is no declared value"))?;
        check_cell(bytes, column, slot)?;
        put(index, slot);
    }
    Ok(())
}

fn check_cell(bytes: &[u8], column: &Column<'_>, slot: Slot) -> Result<(), Violation> {
    let name = &column.field.name;
    if column.field.sensitive != (slot.kind == fb::CellValue::RedactedCell) {
        return Err(nonconforming(if column.field.sensitive {
            format!("the sensitive field {name:?} holds a value that is not redacted")
        } else {
            format!("the field {name:?} is redacted and not sensitive")
        }));
    }
    if slot.kind == fb::CellValue::RedactedCell {
        return Ok(());
    }
    if slot.kind == fb::CellValue::NullCell {
        if column.field.nullable {
            return Ok(());
        }
        return Err(nonconforming(format!(
            "the field {name:?} is null and not nullable"
        )));
    }
    if slot.kind != column.kind {
        return Err(another_type(name, slot.kind, column.kind));
    }
    if slot.kind == fb::CellValue::ListCell {
        check_elements(bytes, name, &column.field.field_type, slot)?;
    }
    Ok(())
}

fn another_type(name: &str, found: fb::CellValue, wanted: fb::CellValue) -> Violation {
    nonconforming(format!(
        "the field {name:?} holds a {found:?} where its type is a {wanted:?}"
    ))
}

/// Checks the elements of a list, which are never null or redacted: those are other kinds than any
/// type has.
fn check_elements(
    bytes: &[u8],
    name: &str,
    field_type: &FieldType,
    slot: Slot,
) -> Result<(), Violation> {
    let list = ListRef::new(bytes, slot);
    let element = match &field_type.shape {
        FieldTypeShape::ListFieldType(list) => &list.element,
        FieldTypeShape::FixedListFieldType(fixed) => {
            if usize::try_from(fixed.length) != Ok(list.len()) {
                let (found, wanted) = (list.len(), fixed.length);
                return Err(nonconforming(format!(
                    "a list of the field {name:?} has {found} elements, not {wanted}"
                )));
            }
            &fixed.element
        }
        FieldTypeShape::ScalarFieldType(_) => return Ok(()),
    };
    let kind = kind_of(element);
    for index in 0..list.len() {
        let slot = list
            .slot(index)
            .ok_or_else(|| rules::refused("ListCell.elements", "hold no declared value"))?;
        if slot.kind != kind {
            return Err(another_type(name, slot.kind, kind));
        }
        if kind == fb::CellValue::ListCell {
            check_elements(bytes, name, element, slot)?;
        }
    }
    Ok(())
}

/// A cell's kind and where its value stands in the frame: the scalar itself, or the vector. 0, where
/// no value can stand, is a scalar left out because it is zero.
#[derive(Debug, Clone, Copy)]
struct Slot {
    position: u32,
    kind: fb::CellValue,
}

impl Slot {
    const NULL: Self = Self {
        position: 0,
        kind: fb::CellValue::NullCell,
    };

    fn at(self) -> usize {
        self.position as usize
    }
}

/// The kind and place of the cell at `cell`. None when its tag is undeclared or a float is absent
/// (F-4); everything else was seen by the verifier.
fn locate(bytes: &[u8], cell: usize) -> Option<Slot> {
    use fb::CellValue as Kind;
    let tag = field(bytes, cell, fb::Cell::VT_VALUE_TYPE)?;
    let kind = Kind(*bytes.get(tag)?);
    let value = || follow(bytes, field(bytes, cell, fb::Cell::VT_VALUE)?);
    let position = match kind {
        Kind::NullCell | Kind::RedactedCell => 0,
        Kind::StringCell | Kind::BytesCell | Kind::ListCell => {
            follow(bytes, field(bytes, value()?, VT_ONLY)?)?
        }
        Kind::F32Cell | Kind::F64Cell => field(bytes, value()?, VT_ONLY)?,
        Kind::U8Cell
        | Kind::I8Cell
        | Kind::U16Cell
        | Kind::I16Cell
        | Kind::U32Cell
        | Kind::I32Cell
        | Kind::U64Cell
        | Kind::I64Cell
        | Kind::BoolCell
        | Kind::DatetimeCell => field(bytes, value()?, VT_ONLY).unwrap_or(0),
        _ => return None,
    };
    Some(Slot {
        position: u32::try_from(position).ok()?,
        kind,
    })
}

/// Each cell table has one field, so its place is the same in all of them.
const VT_ONLY: u16 = fb::U8Cell::VT_VALUE;
const _: () = assert!(
    fb::StringCell::VT_VALUE == VT_ONLY
        && fb::BytesCell::VT_VALUE == VT_ONLY
        && fb::ListCell::VT_ELEMENTS == VT_ONLY
        && fb::DatetimeCell::VT_UNIX_NANOS == VT_ONLY
        && fb::F64Cell::VT_VALUE == VT_ONLY
);

fn scalar<const N: usize>(bytes: &[u8], slot: Slot) -> [u8; N] {
    if slot.position == 0 {
        return [0; N];
    }
    array(bytes, slot.at()).unwrap_or([0; N])
}

fn read(bytes: &[u8], slot: Slot) -> CellRef<'_> {
    use fb::CellValue as Kind;
    match slot.kind {
        Kind::RedactedCell => CellRef::Redacted,
        Kind::U8Cell => CellRef::U8(u8::from_le_bytes(scalar(bytes, slot))),
        Kind::I8Cell => CellRef::I8(i8::from_le_bytes(scalar(bytes, slot))),
        Kind::U16Cell => CellRef::U16(u16::from_le_bytes(scalar(bytes, slot))),
        Kind::I16Cell => CellRef::I16(i16::from_le_bytes(scalar(bytes, slot))),
        Kind::U32Cell => CellRef::U32(u32::from_le_bytes(scalar(bytes, slot))),
        Kind::I32Cell => CellRef::I32(i32::from_le_bytes(scalar(bytes, slot))),
        Kind::U64Cell => CellRef::U64(u64::from_le_bytes(scalar(bytes, slot))),
        Kind::I64Cell => CellRef::I64(i64::from_le_bytes(scalar(bytes, slot))),
        Kind::F32Cell => CellRef::F32(f32::from_le_bytes(scalar(bytes, slot))),
        Kind::F64Cell => CellRef::F64(f64::from_le_bytes(scalar(bytes, slot))),
        Kind::BoolCell => CellRef::Bool(scalar::<1>(bytes, slot) != [0]),
        Kind::StringCell => {
            // The verifier refused what is not UTF-8.
            CellRef::String(string(bytes, slot.at()).unwrap_or_default())
        }
        Kind::BytesCell => CellRef::Bytes(vector(bytes, slot.at()).unwrap_or_default()),
        Kind::DatetimeCell => CellRef::Datetime(i64::from_le_bytes(scalar(bytes, slot))),
        Kind::ListCell => CellRef::List(ListRef::new(bytes, slot)),
        _ => CellRef::Null,
    }
}

/// The rows of a frame, or its branch key, which reads as one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    Rows,
    BranchKey,
}

/// A batch that conforms to its schema. Cloning shares the frame, which lives as long as any clone
/// (F-9).
#[derive(Clone)]
pub struct CheckedRows {
    inner: Arc<Inner>,
}

struct Inner {
    subscription: SubscriptionHandle,
    verified: VerifiedServer,
    schema: Arc<RowSchema>,
    rows: usize,
    /// By column, then by row.
    cells: Vec<Slot>,
    key: Option<Vec<Slot>>,
}

impl CheckedRows {
    pub fn frame(&self) -> &Frame {
        self.inner.verified.frame()
    }

    pub fn schema(&self) -> &Arc<RowSchema> {
        &self.inner.schema
    }

    pub fn subscription(&self) -> &SubscriptionHandle {
        &self.inner.subscription
    }

    pub fn row_count(&self) -> usize {
        self.inner.rows
    }

    /// The bytes of memory that the rows hold: their frame, and where each of their cells stands in it.
    pub fn held_bytes(&self) -> usize {
        let cells = self.inner.key.as_ref().map_or(0, Vec::len);
        cells
            .saturating_add(self.inner.cells.len())
            .saturating_mul(std::mem::size_of::<Slot>())
            .saturating_add(self.frame().len())
    }

    pub fn has_key(&self) -> bool {
        self.inner.key.is_some()
    }

    /// The fields that a part's columns are of; none for a key that is not there.
    pub fn fields(&self, part: Part) -> &[RowField] {
        match part {
            Part::Rows => &self.inner.schema.fields,
            Part::BranchKey => self
                .inner
                .schema
                .branch
                .as_ref()
                .map_or(&[], |branch| &branch.fields),
        }
    }

    /// One cell, or None outside the part.
    pub fn cell(&self, part: Part, row: usize, column: usize) -> Option<CellRef<'_>> {
        let slot = self.slots(part, column)?.get(row)?;
        Some(read(self.frame(), *slot))
    }

    /// The cells of one column from the first row to the last, or None outside the part.
    pub fn column(
        &self,
        part: Part,
        column: usize,
    ) -> Option<impl ExactSizeIterator<Item = CellRef<'_>> + DoubleEndedIterator + Clone> {
        let bytes = self.frame().as_slice();
        let slots = self.slots(part, column)?;
        Some(slots.iter().map(move |slot| read(bytes, *slot)))
    }

    fn slots(&self, part: Part, column: usize) -> Option<&[Slot]> {
        let (cells, rows) = match part {
            Part::Rows => (&self.inner.cells, self.inner.rows),
            Part::BranchKey => (self.inner.key.as_ref()?, 1),
        };
        cells.get(column.checked_mul(rows)?..)?.get(..rows)
    }
}

impl fmt::Debug for CheckedRows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CheckedRows")
            .field("subscription", &self.inner.subscription)
            .field("rows", &self.inner.rows)
            .field("has_key", &self.has_key())
            .finish_non_exhaustive()
    }
}

/// One value, read in place. Null, redacted and present stay apart, widths and bits stay as
/// they were sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CellRef<'a> {
    Null,
    Redacted,
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(&'a str),
    Bytes(&'a [u8]),
    /// Nanoseconds since the Unix epoch, UTC.
    Datetime(i64),
    List(ListRef<'a>),
}

impl CellRef<'_> {
    /// A copy that outlives the frame.
    pub fn to_value(&self) -> CellValue {
        match *self {
            Self::Null => CellValue::NullCell,
            Self::Redacted => CellValue::RedactedCell,
            Self::U8(value) => CellValue::U8Cell(types::U8Cell { value }),
            Self::I8(value) => CellValue::I8Cell(types::I8Cell { value }),
            Self::U16(value) => CellValue::U16Cell(types::U16Cell { value }),
            Self::I16(value) => CellValue::I16Cell(types::I16Cell { value }),
            Self::U32(value) => CellValue::U32Cell(types::U32Cell { value }),
            Self::I32(value) => CellValue::I32Cell(types::I32Cell { value }),
            Self::U64(value) => CellValue::U64Cell(types::U64Cell { value }),
            Self::I64(value) => CellValue::I64Cell(types::I64Cell { value }),
            Self::F32(value) => CellValue::F32Cell(types::F32Cell { value }),
            Self::F64(value) => CellValue::F64Cell(types::F64Cell { value }),
            Self::Bool(value) => CellValue::BoolCell(types::BoolCell { value }),
            Self::String(value) => CellValue::StringCell(types::StringCell {
                value: value.to_owned(),
            }),
            Self::Bytes(value) => CellValue::BytesCell(types::BytesCell {
                value: Bytes::copy_from_slice(value),
            }),
            Self::Datetime(unix_nanos) => {
                CellValue::DatetimeCell(types::DatetimeCell { unix_nanos })
            }
            Self::List(list) => CellValue::ListCell(types::ListCell {
                elements: list
                    .iter()
                    .map(|element| types::Cell {
                        value: element.to_value(),
                    })
                    .collect(),
            }),
        }
    }
}

/// The elements of a list cell, read in place.
#[derive(Clone, Copy)]
pub struct ListRef<'a> {
    bytes: &'a [u8],
    /// Where the vector of elements begins.
    vector: usize,
    len: usize,
}

impl<'a> ListRef<'a> {
    fn new(bytes: &'a [u8], slot: Slot) -> Self {
        Self {
            bytes,
            vector: slot.at(),
            len: array(bytes, slot.at()).map_or(0, |len| u32::from_le_bytes(len) as usize),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One element, or None past the last.
    pub fn get(&self, index: usize) -> Option<CellRef<'a>> {
        Some(read(self.bytes, self.slot(index)?))
    }

    pub fn iter(&self) -> ListIter<'a> {
        ListIter {
            list: *self,
            next: 0,
        }
    }

    fn slot(&self, index: usize) -> Option<Slot> {
        if index >= self.len {
            return None;
        }
        let entry = self
            .vector
            .checked_add(4)?
            .checked_add(index.checked_mul(4)?)?;
        locate(self.bytes, follow(self.bytes, entry)?)
    }
}

impl PartialEq for ListRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for ListRef<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> IntoIterator for ListRef<'a> {
    type Item = CellRef<'a>;
    type IntoIter = ListIter<'a>;

    fn into_iter(self) -> ListIter<'a> {
        self.iter()
    }
}

/// Iterates over the elements of a [`ListRef`].
#[derive(Debug, Clone)]
pub struct ListIter<'a> {
    list: ListRef<'a>,
    next: usize,
}

impl<'a> Iterator for ListIter<'a> {
    type Item = CellRef<'a>;

    fn next(&mut self) -> Option<CellRef<'a>> {
        let cell = self.list.get(self.next)?;
        self.next += 1;
        Some(cell)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.list.len.saturating_sub(self.next);
        (left, Some(left))
    }
}

impl ExactSizeIterator for ListIter<'_> {}
impl FusedIterator for ListIter<'_> {}

/// The frame of one batch: the branch key's cells when the relay is branched, and the cells of each
/// row, in the order of the schema.
///
/// # Errors
/// What F-6 refuses to send, and a batch without rows.
pub fn encode_rows(
    subscription: &SubscriptionHandle,
    key: Option<&[CellValue]>,
    rows: &[Vec<CellValue>],
) -> Result<Vec<u8>, EncodeError> {
    if rows.is_empty() {
        return Err(EncodeError::NoRows);
    }
    let mut encoder = Encoder::new(FRAME_LIMIT);
    let e = &mut encoder;
    e.enter()?;
    e.enter()?;
    let subscription = encode::subscription_handle(e, subscription)?;
    e.enter()?;
    let branch_key = key
        .map(|cells| {
            e.enter()?;
            let cells = Some(e.each(cells, encode_cell)?);
            Ok(fb::BranchKey::create(
                e.leave()?,
                &fb::BranchKeyArgs { cells },
            ))
        })
        .transpose()?;
    let rows = e.each(rows, |e, cells| {
        e.enter()?;
        let cells = Some(e.each(cells, encode_cell)?);
        Ok(fb::Row::create(e.leave()?, &fb::RowArgs { cells }))
    })?;
    let args = fb::RowBatchArgs {
        branch_key,
        rows: Some(rows),
    };
    let batch = fb::RowBatch::create(e.leave()?, &args);
    let args = fb::SubscriptionRowsArgs {
        subscription: Some(subscription),
        batch: Some(batch),
    };
    let body = fb::SubscriptionRows::create(e.leave()?, &args);
    let args = fb::ServerMessageArgs {
        body_type: fb::ServerBody::SubscriptionRows,
        body: Some(body.as_union_value()),
    };
    let root = fb::ServerMessage::create(e.leave()?, &args);
    encoder.finish(root, codec::SERVER)
}

fn encode_cell<'b>(
    e: &mut Encoder<'b>,
    value: &CellValue,
) -> Result<WIPOffset<fb::Cell<'b>>, EncodeError> {
    e.enter()?;
    let (value_type, value) = encode::cell_value(e, value)?;
    let args = fb::CellArgs {
        value_type,
        value: Some(value),
    };
    Ok(fb::Cell::create(e.leave()?, &args))
}
