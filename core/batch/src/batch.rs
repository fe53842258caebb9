//! Batches: immutable columns of the same length.
//!
//! Owns reading a column level by level as hosts do. Level 0 of a column is the field itself and has one cell a row; each list
//! adds a level. Knows nothing of how columns were made.

use std::sync::{Arc, OnceLock};

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StructArray};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_data::ArrayData;
use arrow_schema::DataType;
use bytes::Bytes;
use nervix_wire::types::{FieldTypeShape, RowField, RowSchema, ScalarType};

use crate::fields::{arrow_fields, levels, width};
use crate::{read, write, Refusal};

/// Rows of one schema, column by column. Never changes.
#[derive(Debug)]
pub struct Batch {
    schema: Arc<RowSchema>,
    rows: usize,
    columns: Vec<ArrayRef>,
    /// The stream that the columns lie in, or that was written of them when it was first asked for.
    stream: OnceLock<Bytes>,
}

/// Values of varying length: where each ends, and all of them joined.
#[derive(Debug, Clone)]
pub struct Varlen {
    offsets: OffsetBuffer<i32>,
    data: Buffer,
}

impl Varlen {
    /// Offsets from 0 on, one more than there are values.
    pub fn offsets(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        from_zero(&self.offsets)
    }

    pub fn data(&self) -> &[u8] {
        let offsets: &[i32] = &self.offsets;
        let begin = offsets.first().copied().unwrap_or(0);
        let end = offsets.last().copied().unwrap_or(0);
        let range = usize::try_from(begin).unwrap_or(0)..usize::try_from(end).unwrap_or(0);
        self.data.get(range).unwrap_or_default()
    }
}

fn from_zero(offsets: &[i32]) -> impl ExactSizeIterator<Item = u64> + '_ {
    let first = offsets.first().copied().unwrap_or(0);
    offsets
        .iter()
        .map(move |offset| u64::try_from(offset.saturating_sub(first)).unwrap_or(0))
}

impl Batch {
    /// A batch that lies in a stream of exactly this schema. The stream's memory is shared.
    ///
    /// # Errors
    /// [`Refusal::Stream`] for whatever of it is not as P-3 says.
    pub fn read(schema: Arc<RowSchema>, stream: Bytes) -> Result<Self, Refusal> {
        let (columns, rows) = read::columns(&schema.fields, &stream)?;
        Ok(Self {
            schema,
            rows,
            columns,
            stream: OnceLock::from(stream),
        })
    }

    /// A batch of columns that are as the schema says.
    pub(crate) fn of(schema: Arc<RowSchema>, rows: usize, columns: Vec<ArrayRef>) -> Self {
        Self {
            schema,
            rows,
            columns,
            stream: OnceLock::new(),
        }
    }

    /// A batch of foreign columns, copied into a stream of its own, and checked there. What is null in a required field or no
    /// text is refused; names of list elements and whether Arrow calls anything nullable do not matter.
    ///
    /// # Errors
    /// [`Refusal::Argument`] with the first column that does not fit.
    pub fn copy_from(
        schema: Arc<RowSchema>,
        rows: usize,
        columns: &[ArrayData],
    ) -> Result<Self, Refusal> {
        let fields = arrow_fields(&schema.fields)?;
        let (found, wanted) = (columns.len(), fields.len());
        if found != wanted {
            return Err(Refusal::Argument(format!(
                "there are {found} columns, and {wanted} are wanted"
            )));
        }
        for (field, column) in fields.iter().zip(columns) {
            let (name, wanted) = (field.name(), field.data_type());
            let why = if column.len() != rows {
                format!("it has {} rows, and the batch {rows}", column.len())
            } else if !alike(wanted, column.data_type()) {
                format!("it is {}, and {wanted} is wanted", column.data_type())
            } else {
                continue;
            };
            return Err(Refusal::Argument(format!("the column {name:?}: {why}")));
        }
        let stream = write::stream(&fields, rows, columns)?;
        Self::read(schema, stream).map_err(|refusal| match refusal {
            Refusal::Stream(why) => Refusal::Argument(why),
            other => other,
        })
    }

    pub fn schema(&self) -> &Arc<RowSchema> {
        &self.schema
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The stream of the batch: the one it was read from, or the canonical one of its columns.
    ///
    /// # Errors
    /// Columns that are too long for one.
    pub fn stream(&self) -> Result<&Bytes, Refusal> {
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let columns: Vec<ArrayData> = self.columns.iter().map(|column| column.to_data()).collect();
        // Written outside of the cell, which a fork then never finds half filled by another thread.
        let stream = write::stream(&arrow_fields(&self.schema.fields)?, self.rows, &columns)?;
        Ok(self.stream.get_or_init(|| stream))
    }

    /// The batch as a struct array, sharing its memory.
    ///
    /// # Errors
    /// None for a batch that was made here.
    pub fn to_arrow(&self) -> Result<StructArray, Refusal> {
        let fields = arrow_fields(&self.schema.fields)?;
        StructArray::try_new_with_length(fields, self.columns.clone(), None, self.rows)
            .map_err(|error| Refusal::Type(error.to_string()))
    }

    fn find(&self, column: usize) -> Result<(&RowField, &ArrayRef), Refusal> {
        let found = self.schema.fields.get(column).zip(self.columns.get(column));
        found.ok_or_else(|| {
            let count = self.columns.len();
            Refusal::Argument(format!(
                "there is no column {column}: the batch has {count}"
            ))
        })
    }

    /// The cells of a level, without those that no list of the level above holds.
    fn level(&self, column: usize, level: usize) -> Result<(&RowField, ArrayRef), Refusal> {
        let (field, array) = self.find(column)?;
        let count = levels(&field.field_type).count();
        if level >= count {
            let name = &field.name;
            return Err(Refusal::Argument(format!(
                "there is no level {level}: the column {name:?} has {count}"
            )));
        }
        let mut array = Arc::clone(array);
        for _ in 0..level {
            array = match array.data_type() {
                DataType::List(_) => {
                    let list = array.as_list::<i32>();
                    let offsets = list.value_offsets();
                    let begin = offsets.first().copied().unwrap_or(0);
                    let end = offsets.last().copied().unwrap_or(0);
                    let begin = usize::try_from(begin).unwrap_or(0);
                    let end = usize::try_from(end).unwrap_or(0);
                    list.values().slice(begin, end.saturating_sub(begin))
                }
                DataType::FixedSizeList(..) => Arc::clone(array.as_fixed_size_list().values()),
                _ => break,
            };
        }
        Ok((field, array))
    }

    /// The number of cells at a level.
    ///
    /// # Errors
    /// [`Refusal::Argument`] for a column or level that is not there, as for every reader below.
    pub fn cells(&self, column: usize, level: usize) -> Result<usize, Refusal> {
        Ok(self.level(column, level)?.1.len())
    }

    /// Whether each row holds a value.
    ///
    /// # Errors
    /// As [`Batch::cells`].
    pub fn states(&self, column: usize) -> Result<impl Iterator<Item = bool> + '_, Refusal> {
        let (_, array) = self.find(column)?;
        Ok((0..self.rows).map(|row| array.is_valid(row)))
    }

    /// The offsets of the lists of a level, from 0 on, one more than there are lists.
    ///
    /// # Errors
    /// As [`Batch::cells`]; [`Refusal::Type`] for a level without offsets.
    pub fn offsets(&self, column: usize, level: usize) -> Result<Vec<u64>, Refusal> {
        let (field, array) = self.level(column, level)?;
        match array.as_list_opt::<i32>() {
            Some(list) => Ok(from_zero(list.value_offsets()).collect()),
            None => Err(Refusal::Type(format!(
                "level {level} of the column {:?} has no offsets: only lists of any length do",
                field.name
            ))),
        }
    }

    /// The scalar type of a level, which is the innermost one.
    fn scalar(
        &self,
        column: usize,
        level: usize,
    ) -> Result<(&RowField, ArrayRef, ScalarType), Refusal> {
        let (field, array) = self.level(column, level)?;
        match levels(&field.field_type).nth(level).map(|one| &one.shape) {
            Some(FieldTypeShape::ScalarFieldType(scalar)) => Ok((field, array, scalar.scalar)),
            _ => Err(Refusal::Type(format!(
                "level {level} of the column {:?} holds lists: read the values at its innermost level",
                field.name
            ))),
        }
    }

    /// How many bytes the values of the innermost level take.
    ///
    /// # Errors
    /// As [`Batch::cells`]; [`Refusal::Type`] for lists, text and bytes.
    pub fn fixed_len(&self, column: usize, level: usize) -> Result<usize, Refusal> {
        let (field, array, scalar) = self.scalar(column, level)?;
        let width = width(scalar).ok_or_else(|| {
            Refusal::Type(format!(
                "the column {:?} holds values of varying length: read them so",
                field.name
            ))
        })?;
        Ok(array.len().saturating_mul(width))
    }

    /// Writes the values of the innermost level, each in its width, to a place of [`Batch::fixed_len`] bytes.
    ///
    /// # Errors
    /// As [`Batch::fixed_len`]; [`Refusal::Argument`] for a place of another length.
    pub fn write_fixed(
        &self,
        column: usize,
        level: usize,
        place: &mut [u8],
    ) -> Result<(), Refusal> {
        let wanted = self.fixed_len(column, level)?;
        let (field, array, scalar) = self.scalar(column, level)?;
        if place.len() != wanted {
            return Err(Refusal::Argument(format!(
                "values_len is {}, and level {level} of the column {:?} needs {wanted}",
                place.len(),
                field.name
            )));
        }
        if scalar == ScalarType::Bool {
            for (byte, value) in place.iter_mut().zip(array.as_boolean().values()) {
                *byte = u8::from(value);
            }
            return Ok(());
        }
        // An array of values of one width has one buffer, and begins where its offset says.
        let data = array.to_data();
        let from = data.offset().saturating_mul(width(scalar).unwrap_or(0));
        let values = data
            .buffers()
            .first()
            .and_then(|buffer| buffer.get(from..from.saturating_add(wanted)));
        match values {
            Some(values) => place.copy_from_slice(values),
            None => return Err(Refusal::Type("the column has too few values".to_owned())),
        }
        Ok(())
    }

    /// The text or bytes of the innermost level.
    ///
    /// # Errors
    /// As [`Batch::cells`]; [`Refusal::Type`] for any other type.
    pub fn varlen(&self, column: usize, level: usize) -> Result<Varlen, Refusal> {
        let (field, array, scalar) = self.scalar(column, level)?;
        match scalar {
            ScalarType::String => {
                let array = array.as_string::<i32>();
                Ok(Varlen {
                    offsets: array.offsets().clone(),
                    data: array.values().clone(),
                })
            }
            ScalarType::Bytes => {
                let array = array.as_binary::<i32>();
                Ok(Varlen {
                    offsets: array.offsets().clone(),
                    data: array.values().clone(),
                })
            }
            _ => Err(Refusal::Type(format!(
                "the column {:?} holds values of a fixed width: read them so",
                field.name
            ))),
        }
    }
}

/// Whether values of one type are values of the other: names of list elements, nullability and metadata do not matter.
fn alike(one: &DataType, other: &DataType) -> bool {
    match (one, other) {
        (DataType::List(one), DataType::List(other)) => alike(one.data_type(), other.data_type()),
        (DataType::FixedSizeList(one, size), DataType::FixedSizeList(other, length)) => {
            size == length && alike(one.data_type(), other.data_type())
        }
        (one, other) => one == other,
    }
}
