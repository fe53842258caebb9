//! Building a batch column by column, level by level, from copies of a host's buffers (B-13).
//!
//! Owns what each buffer must be. Converts nothing: what does not fit exactly is refused, and what was set before stays.

use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Int8Type,
    TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type, UInt8Type,
};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, ListArray, PrimitiveArray, StringArray,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use nervix_wire::types::{FieldType, FieldTypeShape, RowField, RowSchema, ScalarType};

use crate::fields::{arrow_fields, item, length, levels, spelled, width, UTC};
use crate::{Batch, Refusal};

/// The most rows of one batch: what a stream's reader accepts.
const MAX_ROWS: usize = u32::MAX as usize;

const VALUE: u8 = 1;
const NULL: u8 = 2;

/// What was set of one level.
#[derive(Debug, Clone)]
enum Level {
    Nothing,
    Lists(ScalarBuffer<i32>),
    Bits(BooleanBuffer),
    Fixed(Buffer),
    Octets(ScalarBuffer<i32>, Buffer),
}

#[derive(Debug)]
struct Column {
    nulls: Option<NullBuffer>,
    levels: Vec<Level>,
}

/// A batch of a fixed number of rows in the making.
#[derive(Debug)]
pub struct Builder {
    schema: Arc<RowSchema>,
    rows: usize,
    columns: Vec<Column>,
}

fn argument<T>(why: String) -> Result<T, Refusal> {
    Err(Refusal::Argument(why))
}

impl Builder {
    /// # Errors
    /// [`Refusal::Argument`] for more rows than a batch can have, and for types that Arrow cannot say.
    pub fn new(schema: Arc<RowSchema>, rows: usize) -> Result<Self, Refusal> {
        if rows > MAX_ROWS {
            return argument(format!("{rows} rows are more than a batch can have"));
        }
        arrow_fields(&schema.fields)?;
        let columns = Self::blank(&schema);
        Ok(Self {
            schema,
            rows,
            columns,
        })
    }

    fn blank(schema: &RowSchema) -> Vec<Column> {
        let blank = |field: &RowField| Column {
            nulls: None,
            levels: vec![Level::Nothing; levels(&field.field_type).count()],
        };
        schema.fields.iter().map(blank).collect()
    }

    /// The width of one value of a column's scalars, as hosts hold it.
    ///
    /// # Errors
    /// As for setting values there.
    pub fn width(&self, column: usize, level: usize) -> Result<usize, Refusal> {
        let (field, scalar) = self.scalar(column, level)?;
        width(scalar).ok_or_else(|| {
            Refusal::Type(format!(
                "the column {:?} holds values of varying length: set them so",
                field.name
            ))
        })
    }

    fn field(&self, column: usize) -> Result<&RowField, Refusal> {
        self.schema.fields.get(column).ok_or_else(|| {
            let count = self.schema.fields.len();
            Refusal::Argument(format!(
                "there is no column {column}: the schema has {count}"
            ))
        })
    }

    fn level(&self, column: usize, level: usize) -> Result<(&RowField, &FieldType), Refusal> {
        let field = self.field(column)?;
        let found = levels(&field.field_type).nth(level);
        found.map(|found| (field, found)).ok_or_else(|| {
            let (name, count) = (&field.name, levels(&field.field_type).count());
            Refusal::Argument(format!(
                "there is no level {level}: the column {name:?} has {count}"
            ))
        })
    }

    fn scalar(&self, column: usize, level: usize) -> Result<(&RowField, ScalarType), Refusal> {
        let (field, found) = self.level(column, level)?;
        match &found.shape {
            FieldTypeShape::ScalarFieldType(scalar) => Ok((field, scalar.scalar)),
            _ => Err(Refusal::Type(format!(
                "level {level} of the column {:?} is {}: set the values at its innermost level",
                field.name,
                spelled(found)
            ))),
        }
    }

    /// How many cells a level has, when that depends on no offsets.
    fn fixed_count(&self, field: &RowField, level: usize) -> Option<usize> {
        let above = levels(&field.field_type).take(level);
        let mut cells = self.rows;
        for level in above {
            match &level.shape {
                FieldTypeShape::FixedListFieldType(list) => {
                    cells = cells.checked_mul(usize::try_from(list.length).ok()?)?;
                }
                _ => return None,
            }
        }
        Some(cells)
    }

    fn expect(
        &self,
        field: &RowField,
        level: usize,
        what: &str,
        found: usize,
        of_cells: impl Fn(usize) -> Option<usize>,
    ) -> Result<(), Refusal> {
        match self.fixed_count(field, level).map(of_cells) {
            Some(Some(wanted)) if wanted != found => argument(format!(
                "{what} is {found}, and level {level} of the column {:?} needs {wanted}",
                field.name
            )),
            Some(None) => argument(format!(
                "the column {:?} has more cells than fit into memory",
                field.name
            )),
            _ => Ok(()),
        }
    }

    fn set(&mut self, column: usize, level: usize, what: Level) {
        let place = self
            .columns
            .get_mut(column)
            .and_then(|column| column.levels.get_mut(level));
        if let Some(place) = place {
            *place = what;
        }
    }

    /// Sets which rows hold a value: one byte a row, 1 for a value, 2 for null.
    ///
    /// # Errors
    /// [`Refusal::Argument`], as for every buffer below, with what is wrong with it.
    pub fn states(&mut self, column: usize, states: &[u8]) -> Result<(), Refusal> {
        let field = self.field(column)?;
        let name = &field.name;
        if states.len() != self.rows {
            return argument(format!(
                "states_len is {}, and the column {name:?} needs {}",
                states.len(),
                self.rows
            ));
        }
        for (row, state) in states.iter().enumerate() {
            match *state {
                VALUE => {}
                NULL if field.nullable => {}
                NULL => {
                    return argument(format!("the column {name:?} is required, and null in row {row}"))
                }
                other => {
                    return argument(format!(
                        "the column {name:?} has the state {other} in row {row}: 1 is a value, 2 is null"
                    ))
                }
            }
        }
        let nulls = NullBuffer::new(states.iter().map(|state| *state == VALUE).collect());
        let nulls = Some(nulls).filter(|nulls| nulls.null_count() > 0);
        if let Some(column) = self.columns.get_mut(column) {
            column.nulls = nulls;
        }
        Ok(())
    }

    /// Sets where the lists of a level end: from 0 on, one more than there are lists.
    ///
    /// # Errors
    /// As [`Builder::states`]; [`Refusal::Type`] for a level that is no list of any length.
    pub fn offsets(
        &mut self,
        column: usize,
        level: usize,
        offsets: impl ExactSizeIterator<Item = u64>,
    ) -> Result<(), Refusal> {
        let (field, found) = self.level(column, level)?;
        if !matches!(found.shape, FieldTypeShape::ListFieldType(_)) {
            return Err(Refusal::Type(format!(
                "level {level} of the column {:?} is {}, which takes no offsets",
                field.name,
                spelled(found)
            )));
        }
        self.expect(field, level, "offsets_len", offsets.len(), |cells| {
            cells.checked_add(1)
        })?;
        let offsets = ends(&field.name, offsets)?;
        self.set(column, level, Level::Lists(offsets));
        Ok(())
    }

    /// Sets the values of the innermost level, each in its type's width and in native order.
    ///
    /// # Errors
    /// As [`Builder::states`]; [`Refusal::Type`] for lists, text and bytes.
    pub fn fixed(&mut self, column: usize, level: usize, values: &[u8]) -> Result<(), Refusal> {
        let width = self.width(column, level)?;
        let (field, scalar) = self.scalar(column, level)?;
        self.expect(field, level, "values_len", values.len(), |cells| {
            cells.checked_mul(width)
        })?;
        if !values.len().is_multiple_of(width) {
            return argument(format!(
                "values_len is {}, which is no multiple of the {width} bytes of a value of the column {:?}",
                values.len(),
                field.name
            ));
        }
        let level_is = if scalar == ScalarType::Bool {
            if let Some(cell) = values.iter().position(|value| *value > 1) {
                let value = values.get(cell).copied().unwrap_or_default();
                return argument(format!(
                    "the column {:?} has the value {value} in cell {cell}: a BOOL is 0 or 1",
                    field.name
                ));
            }
            Level::Bits(values.iter().map(|value| *value == 1).collect())
        } else {
            Level::Fixed(Buffer::from(values))
        };
        self.set(column, level, level_is);
        Ok(())
    }

    /// Sets the text or bytes of the innermost level: where each ends, and all of them joined.
    ///
    /// # Errors
    /// As [`Builder::states`]; [`Refusal::Type`] for any other type.
    pub fn varlen(
        &mut self,
        column: usize,
        level: usize,
        offsets: impl ExactSizeIterator<Item = u64>,
        data: &[u8],
    ) -> Result<(), Refusal> {
        let (field, scalar) = self.scalar(column, level)?;
        let name = &field.name;
        if width(scalar).is_some() {
            return Err(Refusal::Type(format!(
                "the column {name:?} holds values of a fixed width: set them so"
            )));
        }
        self.expect(field, level, "offsets_len", offsets.len(), |cells| {
            cells.checked_add(1)
        })?;
        let offsets = ends(name, offsets)?;
        let end = offsets.last().and_then(|end| usize::try_from(*end).ok());
        if end != Some(data.len()) {
            return argument(format!(
                "the offsets of the column {name:?} end at {}, and its data at {}",
                end.unwrap_or(0),
                data.len()
            ));
        }
        if scalar == ScalarType::String {
            let whole = std::str::from_utf8(data);
            for (cell, (begin, end)) in offsets.iter().zip(offsets.iter().skip(1)).enumerate() {
                let (begin, end) = (usize::try_from(*begin), usize::try_from(*end));
                let fine = match (&whole, begin, end) {
                    (Ok(text), Ok(begin), Ok(end)) => {
                        text.is_char_boundary(begin) && text.is_char_boundary(end)
                    }
                    (Err(_), Ok(begin), Ok(end)) => data
                        .get(begin..end)
                        .is_some_and(|value| std::str::from_utf8(value).is_ok()),
                    _ => false,
                };
                if !fine {
                    return argument(format!(
                        "the column {name:?} is not UTF-8 in cell {cell}: a STRING is"
                    ));
                }
            }
        }
        let data = Buffer::from(data);
        self.set(column, level, Level::Octets(offsets, data));
        Ok(())
    }

    /// The batch of what was set, after which nothing is set.
    ///
    /// # Errors
    /// [`Refusal::Argument`] for what is missing or does not fill its level exactly; everything stays set then.
    pub fn finish(&mut self) -> Result<Batch, Refusal> {
        let mut columns = Vec::with_capacity(self.columns.len());
        for (field, column) in self.schema.fields.iter().zip(&self.columns) {
            let mut levels = column.levels.iter();
            let array = build(
                &field.field_type,
                self.rows,
                column.nulls.clone(),
                &mut levels,
            );
            columns.push(array.map_err(|why| {
                Refusal::Argument(format!("the column {:?}: {}", field.name, why.message()))
            })?);
        }
        self.columns = Self::blank(&self.schema);
        Ok(Batch::of(Arc::clone(&self.schema), self.rows, columns))
    }
}

/// Offsets as Arrow has them.
fn ends(
    name: &str,
    offsets: impl ExactSizeIterator<Item = u64>,
) -> Result<ScalarBuffer<i32>, Refusal> {
    let mut ends = Vec::with_capacity(offsets.len());
    let mut last = 0;
    for (index, offset) in offsets.enumerate() {
        if index == 0 && offset != 0 {
            return argument(format!(
                "the offsets of the column {name:?} begin at {offset}: they begin at 0"
            ));
        }
        if offset < last {
            return argument(format!(
                "the offsets of the column {name:?} decrease from {last} to {offset}"
            ));
        }
        last = offset;
        match i32::try_from(offset) {
            Ok(offset) => ends.push(offset),
            Err(_) => {
                return argument(format!(
                    "the column {name:?} is too long for Arrow: an offset is {offset}"
                ))
            }
        }
    }
    if ends.is_empty() {
        return argument(format!(
            "the column {name:?} has no offsets: there is one more than there are cells"
        ));
    }
    Ok(ScalarBuffer::from(ends))
}

fn build<'a>(
    field_type: &FieldType,
    cells: usize,
    nulls: Option<NullBuffer>,
    levels: &mut impl Iterator<Item = &'a Level>,
) -> Result<ArrayRef, Refusal> {
    let level = levels.next().unwrap_or(&Level::Nothing);
    let scalar = match &field_type.shape {
        FieldTypeShape::ScalarFieldType(scalar) => scalar.scalar,
        FieldTypeShape::ListFieldType(list) => {
            let offsets = match level {
                Level::Lists(offsets) => filled("offsets", offsets.clone(), cells.checked_add(1))?,
                _ => return argument("a level of lists has no offsets".to_owned()),
            };
            let count = offsets.last().and_then(|end| usize::try_from(*end).ok());
            let elements = build(&list.element, count.unwrap_or(0), None, levels)?;
            let offsets = OffsetBuffer::new(offsets);
            let array = ListArray::try_new(item(&list.element)?, offsets, elements, nulls);
            return Ok(Arc::new(array.map_err(|error| unfit(&error))?));
        }
        FieldTypeShape::FixedListFieldType(list) => {
            let count = usize::try_from(list.length)
                .ok()
                .and_then(|length| cells.checked_mul(length));
            let Some(count) = count else {
                return argument("its fixed lists have too many elements".to_owned());
            };
            let elements = build(&list.element, count, None, levels)?;
            let size = length(list.length)?;
            let array = FixedSizeListArray::try_new(item(&list.element)?, size, elements, nulls);
            return Ok(Arc::new(array.map_err(|error| unfit(&error))?));
        }
    };
    macro_rules! primitive {
        ($arrow:ty) => {
            Arc::new(primitive::<$arrow>(level, cells, nulls)?)
        };
    }
    Ok(match scalar {
        ScalarType::U8 => primitive!(UInt8Type),
        ScalarType::I8 => primitive!(Int8Type),
        ScalarType::U16 => primitive!(UInt16Type),
        ScalarType::I16 => primitive!(Int16Type),
        ScalarType::U32 => primitive!(UInt32Type),
        ScalarType::I32 => primitive!(Int32Type),
        ScalarType::U64 => primitive!(UInt64Type),
        ScalarType::I64 => primitive!(Int64Type),
        ScalarType::F32 => primitive!(Float32Type),
        ScalarType::F64 => primitive!(Float64Type),
        ScalarType::Datetime => {
            let instants = primitive::<TimestampNanosecondType>(level, cells, nulls)?;
            Arc::new(instants.with_timezone(UTC))
        }
        ScalarType::Bool => match level {
            Level::Bits(bits) => {
                exactly("values", bits.len(), Some(cells))?;
                Arc::new(BooleanArray::new(bits.clone(), nulls))
            }
            _ => return no_values(cells),
        },
        ScalarType::String => {
            let (offsets, data) = octets(level, cells)?;
            Arc::new(StringArray::try_new(offsets, data, nulls).map_err(|error| unfit(&error))?)
        }
        ScalarType::Bytes => {
            let (offsets, data) = octets(level, cells)?;
            Arc::new(BinaryArray::try_new(offsets, data, nulls).map_err(|error| unfit(&error))?)
        }
    })
}

fn no_values<T>(cells: usize) -> Result<T, Refusal> {
    argument(format!("no values are set, and it has {cells} cells"))
}

fn exactly(what: &str, found: usize, wanted: Option<usize>) -> Result<(), Refusal> {
    match wanted {
        Some(wanted) if wanted == found => Ok(()),
        Some(wanted) => argument(format!("{found} {what} are set, and it needs {wanted}")),
        None => argument("it is too long".to_owned()),
    }
}

fn filled(
    what: &str,
    offsets: ScalarBuffer<i32>,
    wanted: Option<usize>,
) -> Result<ScalarBuffer<i32>, Refusal> {
    exactly(what, offsets.len(), wanted)?;
    Ok(offsets)
}

fn primitive<T: ArrowPrimitiveType>(
    level: &Level,
    cells: usize,
    nulls: Option<NullBuffer>,
) -> Result<PrimitiveArray<T>, Refusal> {
    let Level::Fixed(values) = level else {
        return no_values(cells);
    };
    let count = values.len().checked_div(std::mem::size_of::<T::Native>());
    exactly("values", count.unwrap_or(0), Some(cells))?;
    let values = ScalarBuffer::new(values.clone(), 0, cells);
    PrimitiveArray::try_new(values, nulls).map_err(|error| unfit(&error))
}

fn octets(level: &Level, cells: usize) -> Result<(OffsetBuffer<i32>, Buffer), Refusal> {
    let Level::Octets(offsets, data) = level else {
        return no_values(cells);
    };
    let offsets = filled("offsets", offsets.clone(), cells.checked_add(1))?;
    Ok((OffsetBuffer::new(offsets), data.clone()))
}

fn unfit(error: &arrow_schema::ArrowError) -> Refusal {
    Refusal::Argument(error.to_string())
}
