//! Rows as Arrow: nxx_event_arrow.
//!
//! Owns building columns of cells. Knows nothing of what a host does with them.

use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, BinaryType, ByteArrayType, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, Int8Type, TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type, UInt8Type,
    Utf8Type,
};
use arrow_array::{
    new_null_array, Array, ArrayRef, BooleanArray, FixedSizeListArray, GenericByteArray, ListArray,
    PrimitiveArray, StructArray,
};
use arrow_buffer::{
    BooleanBuffer, BooleanBufferBuilder, Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer,
    ScalarBuffer,
};
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use nervix_batch::UTC;
use nervix_engine::Error;
use nervix_wire::types::{FieldType, FieldTypeShape, RowField, ScalarType};
use nervix_wire::{CellRef, CheckedRows, Part};

use crate::arguments::{guarded, invalid, object, Outcome};
use crate::errors::ErrorObject;
use crate::event::{mistyped, EventObject};
use crate::schema;

/// Elements that the null rows of a fixed list column may stand for: Arrow gives each of them room, and a frame does not.
const ELEMENTS: usize = 1 << 25;

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_event_arrow(
    event: *const EventObject,
    part: i32,
    schema: *mut FFI_ArrowSchema,
    array: *mut FFI_ArrowArray,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an event of this library, or NULL.
        let event = unsafe { object("event", event) }?;
        if array.is_null() {
            return Err(invalid(
                "array is NULL: the call has nowhere to write its result",
            ));
        }
        let rows = event.rows()?;
        let batch = batch(rows, schema::part(part)?)?;
        let exported = match schema.is_null() {
            true => None,
            false => {
                Some(FFI_ArrowSchema::try_from(batch.data_type()).map_err(|error| unfit(&error))?)
            }
        };
        // SAFETY: the host's structures can be written to, and what they held before is the host's.
        unsafe {
            array.write_unaligned(FFI_ArrowArray::new(&batch.into_data()));
            if let Some(exported) = exported {
                schema.write_unaligned(exported);
            }
        }
        Ok(())
    })
}

fn unfit(error: &ArrowError) -> Error {
    mistyped(format!("the rows do not fit Arrow: {error}"))
}

/// The rows, or the key as one row, as a struct array without nulls of its own.
pub(crate) fn batch(rows: &CheckedRows, part: Part) -> Outcome<StructArray> {
    let count = match part {
        Part::Rows => rows.row_count(),
        Part::BranchKey if rows.has_key() => 1,
        Part::BranchKey => {
            return Err(invalid(
                "the event has no branch key: its relay is not branched",
            ))
        }
    };
    let mut fields = Vec::new();
    let mut arrays = Vec::new();
    for (index, declared) in rows.fields(part).iter().enumerate() {
        let kind = data_type(&declared.field_type)?;
        fields.push(field(declared, kind.clone()));
        arrays.push(match rows.column(part, index) {
            _ if declared.sensitive => new_null_array(&kind, checked(declared, &kind, count)?),
            Some(cells) => build(declared, &declared.field_type, cells, declared.nullable)?,
            None => return Err(invalid(format!("the event has no column {index}"))),
        });
    }
    StructArray::try_new_with_length(Fields::from(fields), arrays, None, count)
        .map_err(|error| unfit(&error))
}

fn field(declared: &RowField, kind: DataType) -> Field {
    let field = Field::new(
        &declared.name,
        kind,
        declared.nullable || declared.sensitive,
    );
    match declared.sensitive {
        true => field.with_metadata([("nervix.redacted", "true")]),
        false => field,
    }
}

/// A type of the rows as Arrow has it; one that does not fit was not asked for by the host.
fn data_type(field_type: &FieldType) -> Outcome<DataType> {
    nervix_batch::data_type(field_type).map_err(|refusal| mistyped(refusal.to_string()))
}

fn item(element: &FieldType) -> Outcome<FieldRef> {
    nervix_batch::item(element).map_err(|refusal| mistyped(refusal.to_string()))
}

fn length(length: u32) -> Outcome<i32> {
    nervix_batch::length(length).map_err(|refusal| mistyped(refusal.to_string()))
}

/// Refuses a count of rows whose nulls would take far more memory than the frame they came in.
fn checked(declared: &RowField, kind: &DataType, count: usize) -> Outcome<usize> {
    let mut elements = Some(count);
    let mut level = kind;
    while let DataType::FixedSizeList(item, length) = level {
        elements =
            elements.and_then(|elements| elements.checked_mul(usize::try_from(*length).ok()?));
        level = item.data_type();
    }
    match elements {
        Some(elements) if elements <= ELEMENTS => Ok(count),
        _ => Err(mistyped(format!(
            "the column {:?} does not fit Arrow: its null lists would take more than {ELEMENTS} elements",
            declared.name
        ))),
    }
}

fn build<'a, I>(
    declared: &RowField,
    field_type: &FieldType,
    cells: I,
    nullable: bool,
) -> Outcome<ArrayRef>
where
    I: ExactSizeIterator<Item = CellRef<'a>> + Clone,
{
    macro_rules! primitive {
        ($kind:ident, $arrow:ty) => {
            Arc::new(primitive::<$arrow, _>(cells, nullable, |cell| match cell {
                CellRef::$kind(value) => Some(value),
                _ => None,
            }))
        };
    }
    Ok(match &field_type.shape {
        FieldTypeShape::ScalarFieldType(scalar) => match scalar.scalar {
            ScalarType::U8 => primitive!(U8, UInt8Type),
            ScalarType::I8 => primitive!(I8, Int8Type),
            ScalarType::U16 => primitive!(U16, UInt16Type),
            ScalarType::I16 => primitive!(I16, Int16Type),
            ScalarType::U32 => primitive!(U32, UInt32Type),
            ScalarType::I32 => primitive!(I32, Int32Type),
            ScalarType::U64 => primitive!(U64, UInt64Type),
            ScalarType::I64 => primitive!(I64, Int64Type),
            ScalarType::F32 => primitive!(F32, Float32Type),
            ScalarType::F64 => primitive!(F64, Float64Type),
            ScalarType::Datetime => {
                let instants =
                    primitive::<TimestampNanosecondType, _>(cells, nullable, |cell| match cell {
                        CellRef::Datetime(value) => Some(value),
                        _ => None,
                    });
                Arc::new(instants.with_timezone(UTC))
            }
            ScalarType::Bool => {
                let nulls = nulls(cells.clone(), nullable);
                Arc::new(BooleanArray::new(
                    cells
                        .map(|cell| matches!(cell, CellRef::Bool(true)))
                        .collect::<BooleanBuffer>(),
                    nulls,
                ))
            }
            ScalarType::String => Arc::new(octets::<Utf8Type, _>(
                declared,
                cells,
                nullable,
                |cell| match cell {
                    CellRef::String(value) => Some(value.as_bytes()),
                    _ => None,
                },
            )?),
            ScalarType::Bytes => Arc::new(octets::<BinaryType, _>(
                declared,
                cells,
                nullable,
                |cell| match cell {
                    CellRef::Bytes(value) => Some(value),
                    _ => None,
                },
            )?),
        },
        FieldTypeShape::FixedListFieldType(list) => {
            checked(declared, &data_type(field_type)?, cells.len())?;
            let nulls = nulls(cells.clone(), nullable);
            let mut elements = Elements::new(&list.element);
            for cell in cells {
                elements.extend(cell, list.length);
            }
            let child = elements.finish(declared)?;
            let array = FixedSizeListArray::try_new(
                item(&list.element)?,
                length(list.length)?,
                child,
                nulls,
            );
            Arc::new(array.map_err(|error| unfit(&error))?)
        }
        FieldTypeShape::ListFieldType(list) => {
            let nulls = nulls(cells.clone(), nullable);
            let mut offsets = Vec::with_capacity(cells.len().saturating_add(1));
            offsets.push(0);
            let mut elements = Elements::new(&list.element);
            for cell in cells {
                elements.extend(cell, 0);
                offsets.push(elements.len());
            }
            let child = elements.finish(declared)?;
            let array =
                ListArray::try_new(item(&list.element)?, ends(declared, offsets)?, child, nulls);
            Arc::new(array.map_err(|error| unfit(&error))?)
        }
    })
}

/// The elements of lists, which are never null or redacted, as they are gathered from one list after the other.
enum Elements<'t> {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Datetime(Vec<i64>),
    Bool(BooleanBufferBuilder),
    String {
        ends: Vec<usize>,
        data: Vec<u8>,
    },
    Bytes {
        ends: Vec<usize>,
        data: Vec<u8>,
    },
    Fixed {
        element: &'t FieldType,
        length: u32,
        count: usize,
        elements: Box<Elements<'t>>,
    },
    List {
        element: &'t FieldType,
        ends: Vec<usize>,
        elements: Box<Elements<'t>>,
    },
}

impl<'t> Elements<'t> {
    fn new(kind: &'t FieldType) -> Self {
        match &kind.shape {
            FieldTypeShape::ScalarFieldType(scalar) => match scalar.scalar {
                ScalarType::U8 => Self::U8(Vec::new()),
                ScalarType::I8 => Self::I8(Vec::new()),
                ScalarType::U16 => Self::U16(Vec::new()),
                ScalarType::I16 => Self::I16(Vec::new()),
                ScalarType::U32 => Self::U32(Vec::new()),
                ScalarType::I32 => Self::I32(Vec::new()),
                ScalarType::U64 => Self::U64(Vec::new()),
                ScalarType::I64 => Self::I64(Vec::new()),
                ScalarType::F32 => Self::F32(Vec::new()),
                ScalarType::F64 => Self::F64(Vec::new()),
                ScalarType::Datetime => Self::Datetime(Vec::new()),
                ScalarType::Bool => Self::Bool(BooleanBufferBuilder::new(0)),
                ScalarType::String => Self::String {
                    ends: vec![0],
                    data: Vec::new(),
                },
                ScalarType::Bytes => Self::Bytes {
                    ends: vec![0],
                    data: Vec::new(),
                },
            },
            FieldTypeShape::FixedListFieldType(list) => Self::Fixed {
                element: &list.element,
                length: list.length,
                count: 0,
                elements: Box::new(Self::new(&list.element)),
            },
            FieldTypeShape::ListFieldType(list) => Self::List {
                element: &list.element,
                ends: vec![0],
                elements: Box::new(Self::new(&list.element)),
            },
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::I8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::I16(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::U64(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::Datetime(values) => values.len(),
            Self::Bool(values) => values.len(),
            Self::String { ends, .. } | Self::Bytes { ends, .. } | Self::List { ends, .. } => {
                ends.len().saturating_sub(1)
            }
            Self::Fixed { count, .. } => *count,
        }
    }

    /// Adds the elements of one list; where there is none, `missing` elements that nobody reads.
    fn extend(&mut self, list: CellRef<'_>, missing: u32) {
        match list {
            CellRef::List(list) => list.iter().for_each(|element| self.push(element)),
            _ => (0..missing).for_each(|_| self.push(CellRef::Null)),
        }
    }

    fn push(&mut self, cell: CellRef<'_>) {
        macro_rules! value {
            ($kind:ident, $values:expr) => {
                $values.push(match cell {
                    CellRef::$kind(value) => value,
                    _ => Default::default(),
                })
            };
        }
        match self {
            Self::U8(values) => value!(U8, values),
            Self::I8(values) => value!(I8, values),
            Self::U16(values) => value!(U16, values),
            Self::I16(values) => value!(I16, values),
            Self::U32(values) => value!(U32, values),
            Self::I32(values) => value!(I32, values),
            Self::U64(values) => value!(U64, values),
            Self::I64(values) => value!(I64, values),
            Self::F32(values) => value!(F32, values),
            Self::F64(values) => value!(F64, values),
            Self::Datetime(values) => value!(Datetime, values),
            Self::Bool(values) => values.append(matches!(cell, CellRef::Bool(true))),
            Self::String { ends, data } | Self::Bytes { ends, data } => {
                match cell {
                    CellRef::String(text) => data.extend_from_slice(text.as_bytes()),
                    CellRef::Bytes(bytes) => data.extend_from_slice(bytes),
                    _ => {}
                }
                ends.push(data.len());
            }
            Self::Fixed {
                length,
                count,
                elements,
                ..
            } => {
                *count = count.saturating_add(1);
                elements.extend(cell, *length);
            }
            Self::List { ends, elements, .. } => {
                elements.extend(cell, 0);
                ends.push(elements.len());
            }
        }
    }

    fn finish(self, declared: &RowField) -> Outcome<ArrayRef> {
        fn array<T: ArrowPrimitiveType>(values: Vec<T::Native>) -> ArrayRef {
            Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), None))
        }
        Ok(match self {
            Self::U8(values) => array::<UInt8Type>(values),
            Self::I8(values) => array::<Int8Type>(values),
            Self::U16(values) => array::<UInt16Type>(values),
            Self::I16(values) => array::<Int16Type>(values),
            Self::U32(values) => array::<UInt32Type>(values),
            Self::I32(values) => array::<Int32Type>(values),
            Self::U64(values) => array::<UInt64Type>(values),
            Self::I64(values) => array::<Int64Type>(values),
            Self::F32(values) => array::<Float32Type>(values),
            Self::F64(values) => array::<Float64Type>(values),
            Self::Datetime(values) => {
                let instants = PrimitiveArray::<TimestampNanosecondType>::new(
                    ScalarBuffer::from(values),
                    None,
                );
                Arc::new(instants.with_timezone(UTC))
            }
            Self::Bool(mut values) => Arc::new(BooleanArray::new(values.finish(), None)),
            Self::String { ends: all, data } => {
                let array = GenericByteArray::<Utf8Type>::try_new(
                    ends(declared, all)?,
                    Buffer::from_vec(data),
                    None,
                );
                Arc::new(array.map_err(|error| unfit(&error))?)
            }
            Self::Bytes { ends: all, data } => {
                let array = GenericByteArray::<BinaryType>::try_new(
                    ends(declared, all)?,
                    Buffer::from_vec(data),
                    None,
                );
                Arc::new(array.map_err(|error| unfit(&error))?)
            }
            Self::Fixed {
                element,
                length: count,
                elements,
                ..
            } => {
                let child = elements.finish(declared)?;
                let array =
                    FixedSizeListArray::try_new(item(element)?, length(count)?, child, None);
                Arc::new(array.map_err(|error| unfit(&error))?)
            }
            Self::List {
                element,
                ends: all,
                elements,
            } => {
                let child = elements.finish(declared)?;
                let array = ListArray::try_new(item(element)?, ends(declared, all)?, child, None);
                Arc::new(array.map_err(|error| unfit(&error))?)
            }
        })
    }
}

/// Ends of values as Arrow's offsets. The first is 0 and they never fall.
fn ends(declared: &RowField, ends: Vec<usize>) -> Outcome<OffsetBuffer<i32>> {
    let ends: Outcome<Vec<i32>> = ends.into_iter().map(|end| offset(declared, end)).collect();
    Ok(OffsetBuffer::new(ScalarBuffer::from(ends?)))
}

fn offset(declared: &RowField, end: usize) -> Outcome<i32> {
    i32::try_from(end).map_err(|_| {
        mistyped(format!(
            "the column {:?} is too long for Arrow",
            declared.name
        ))
    })
}

/// Which cells hold a value; nothing when all do.
fn nulls<'a>(
    cells: impl ExactSizeIterator<Item = CellRef<'a>>,
    nullable: bool,
) -> Option<NullBuffer> {
    if !nullable {
        return None;
    }
    let mut nulls = NullBufferBuilder::new(cells.len());
    for cell in cells {
        nulls.append(!matches!(cell, CellRef::Null | CellRef::Redacted));
    }
    nulls.finish()
}

fn primitive<'a, T, I>(
    cells: I,
    nullable: bool,
    value: impl Fn(CellRef<'a>) -> Option<T::Native>,
) -> PrimitiveArray<T>
where
    T: ArrowPrimitiveType,
    I: ExactSizeIterator<Item = CellRef<'a>> + Clone,
{
    let nulls = nulls(cells.clone(), nullable);
    let values: Vec<T::Native> = cells.map(|cell| value(cell).unwrap_or_default()).collect();
    PrimitiveArray::new(ScalarBuffer::from(values), nulls)
}

fn octets<'a, T, I>(
    declared: &RowField,
    cells: I,
    nullable: bool,
    value: impl Fn(CellRef<'a>) -> Option<&'a [u8]>,
) -> Outcome<GenericByteArray<T>>
where
    T: ByteArrayType<Offset = i32>,
    I: ExactSizeIterator<Item = CellRef<'a>> + Clone,
{
    let nulls = nulls(cells.clone(), nullable);
    let mut offsets = Vec::with_capacity(cells.len().saturating_add(1));
    offsets.push(0);
    let mut data = Vec::new();
    for cell in cells {
        data.extend_from_slice(value(cell).unwrap_or_default());
        offsets.push(offset(declared, data.len())?);
    }
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    GenericByteArray::try_new(offsets, Buffer::from_vec(data), nulls).map_err(|error| unfit(&error))
}
