//! Subscription events and their rows: nx_event.
//!
//! Owns the numbers of event kinds, causes and cell states, and copying columns into a host's buffers.

use std::sync::Arc;

use nervix_engine::{Error, ErrorKind, Event, EventKind};
use nervix_wire::types::{
    FieldTypeShape, RowField, RowsSkippedCause, ScalarType, SubscriptionEndReason,
};
use nervix_wire::{CellRef, CheckedRows, Part};

use crate::arguments::{
    contained, guarded, invalid, object, put, put_buffer, BufferPlace, Outcome, Place,
};
use crate::errors::ErrorObject;
use crate::schema::{self, SchemaObject};

/// nx_event. Its count of references is that of the Arc it lives in.
pub struct EventObject {
    event: Event,
}

impl EventObject {
    pub(crate) fn hand_out(event: Event) -> *const Self {
        Arc::into_raw(Arc::new(Self { event }))
    }

    /// The rows, or the refusal that every reader of rows gives for an event without any.
    pub(crate) fn rows(&self) -> Outcome<&CheckedRows> {
        match &self.event.kind {
            EventKind::Rows(rows) => Ok(rows),
            _ => Err(mistyped(
                "the event carries no rows: read them from a ROWS event",
            )),
        }
    }
}

pub(crate) fn mistyped(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Type, why)
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_kind_of(event: *const EventObject) -> i32 {
    // SAFETY: the host passes an event of this library, or NULL.
    contained(0, || {
        match unsafe { event.as_ref() }.map(|object| &object.event.kind) {
            None => 0,
            Some(EventKind::Rows(_)) => 1,
            Some(EventKind::DeliveryLost { .. }) => 2,
            Some(EventKind::RowsSkipped { .. }) => 3,
            Some(EventKind::Ended { .. }) => 4,
            Some(EventKind::Interrupted { .. }) => 5,
            Some(EventKind::Overflow { .. }) => 6,
            Some(EventKind::RestorationFailed { .. }) => 7,
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_subscription(
    event: *const EventObject,
    name: *mut *const u8,
    name_len: *mut usize,
    generation: *mut u64,
) {
    contained((), || {
        // SAFETY: the host passes an event of this library, or NULL.
        let (text, number) = match unsafe { event.as_ref() } {
            Some(object) => (&*object.event.name, object.event.generation),
            None => ("", 0),
        };
        // SAFETY: the host's places can be written to.
        unsafe {
            put_buffer(name, name_len, text.as_bytes());
            put(generation, number);
        }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_row_count(event: *const EventObject) -> u64 {
    // SAFETY: the host passes an event of this library, or NULL.
    contained(0, || {
        match unsafe { event.as_ref() }.map(|object| &object.event.kind) {
            Some(EventKind::Rows(rows)) => u64::try_from(rows.row_count()).unwrap_or(u64::MAX),
            Some(EventKind::DeliveryLost { rows } | EventKind::RowsSkipped { rows, .. }) => *rows,
            _ => 0,
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_retain(event: *mut EventObject) -> *mut EventObject {
    contained((), || {
        if !event.is_null() {
            // SAFETY: the host holds a reference to an event of this library, which lives in an Arc.
            unsafe { Arc::increment_strong_count(event.cast_const()) }
        }
    });
    event
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_release(event: *mut EventObject) {
    contained((), || {
        if !event.is_null() {
            // SAFETY: the host gives up a reference that it holds to an event of this library, which lives in an Arc.
            unsafe { Arc::decrement_strong_count(event.cast_const()) }
        }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_schema(
    event: *const EventObject,
    out: *mut *mut SchemaObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an event of this library, or NULL.
        let event = unsafe { object("event", event) }?;
        let out = Place::new("out", out)?;
        let schema = Arc::clone(event.rows()?.schema());
        // SAFETY: the host's place can be written to.
        unsafe { out.write(SchemaObject::hand_out(schema)) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_frame(
    event: *const EventObject,
    frame: *mut *const u8,
    frame_len: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an event of this library, or NULL.
        let event = unsafe { object("event", event) }?;
        let out = BufferPlace::new("frame", frame, frame_len)?;
        let rows = event.rows()?;
        // SAFETY: the host's places can be written to; the frame lives as long as the event.
        unsafe { out.write(rows.frame().as_slice()) };
        Ok(())
    })
}

/// One column of an event's rows or key.
struct Column<'a> {
    rows: &'a CheckedRows,
    field: &'a RowField,
    part: Part,
    index: usize,
    count: usize,
}

impl<'a> Column<'a> {
    fn find(event: &'a EventObject, part: i32, index: usize) -> Outcome<Self> {
        let rows = event.rows()?;
        let part = schema::part(part)?;
        let fields = rows.fields(part);
        let Some(field) = fields.get(index) else {
            return Err(invalid(format!(
                "there is no column {index}: the part has {}",
                fields.len()
            )));
        };
        let count = match part {
            Part::Rows => rows.row_count(),
            Part::BranchKey => 1,
        };
        Ok(Self {
            rows,
            field,
            part,
            index,
            count,
        })
    }

    fn cells(&self) -> Outcome<impl ExactSizeIterator<Item = CellRef<'a>> + Clone> {
        self.rows
            .column(self.part, self.index)
            .ok_or_else(|| invalid(format!("the event has no column {}", self.index)))
    }

    fn exactly(&self, what: &str, len: usize, wanted: Option<usize>) -> Outcome {
        match wanted {
            Some(wanted) if wanted == len => Ok(()),
            Some(wanted) => {
                let name = &self.field.name;
                Err(invalid(format!(
                    "{what} is {len}, and the column {name:?} of {} cells needs {wanted}",
                    self.count
                )))
            }
            None => Err(invalid(format!(
                "the column {:?} is too long",
                self.field.name
            ))),
        }
    }

    /// The column's scalar type; a list column has none.
    fn scalar(&self) -> Outcome<ScalarType> {
        match &self.field.field_type.shape {
            FieldTypeShape::ScalarFieldType(scalar) => Ok(scalar.scalar),
            _ => Err(mistyped(format!(
                "the column {:?} holds lists: read it through Arrow or from the frame",
                self.field.name
            ))),
        }
    }
}

/// A host's buffer of `len` values.
///
/// # Safety
/// A pointer that is not NULL has room for `len` values, which nobody else uses during the call.
unsafe fn buffer<'a>(name: &str, pointer: *mut u8, len: usize) -> Outcome<&'a mut [u8]> {
    if pointer.is_null() {
        return Err(invalid(format!(
            "{name} is NULL: the call has nowhere to write its result"
        )));
    }
    // SAFETY: the length was compared with that of a column, so that it is one a buffer can have; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_column_states(
    event: *const EventObject,
    part: i32,
    column: usize,
    states: *mut u8,
    states_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an event of this library, or NULL.
        let column = Column::find(unsafe { object("event", event) }?, part, column)?;
        column.exactly("states_len", states_len, Some(column.count))?;
        // SAFETY: the host's buffer has the length that it says, which is the column's.
        let states = unsafe { buffer("states", states, states_len) }?;
        for (state, cell) in states.iter_mut().zip(column.cells()?) {
            *state = match cell {
                CellRef::Null => 2,
                CellRef::Redacted => 3,
                _ => 1,
            };
        }
        Ok(())
    })
}

/// Writes one value of N bytes a cell; a cell without a value is zero.
fn copy<'a, const N: usize>(
    values: &mut [u8],
    cells: impl Iterator<Item = CellRef<'a>>,
    value: impl Fn(CellRef<'a>) -> Option<[u8; N]>,
) {
    for (place, cell) in values.chunks_exact_mut(N).zip(cells) {
        place.copy_from_slice(&value(cell).unwrap_or([0; N]));
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_column_fixed(
    event: *const EventObject,
    part: i32,
    column: usize,
    values: *mut std::ffi::c_void,
    values_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an event of this library, or NULL.
        let column = Column::find(unsafe { object("event", event) }?, part, column)?;
        let scalar = column.scalar()?;
        let width = match scalar {
            ScalarType::U8 | ScalarType::I8 | ScalarType::Bool => 1,
            ScalarType::U16 | ScalarType::I16 => 2,
            ScalarType::U32 | ScalarType::I32 | ScalarType::F32 => 4,
            ScalarType::U64 | ScalarType::I64 | ScalarType::F64 | ScalarType::Datetime => 8,
            ScalarType::String | ScalarType::Bytes => {
                let name = &column.field.name;
                return Err(mistyped(format!(
                    "the column {name:?} holds text or bytes: read it with nx_event_column_varlen"
                )));
            }
        };
        column.exactly("values_len", values_len, column.count.checked_mul(width))?;
        // SAFETY: the host's buffer has the length that it says, which is the column's.
        let values = unsafe { buffer("values", values.cast(), values_len) }?;
        let cells = column.cells()?;
        macro_rules! copy_as {
            ($kind:ident) => {
                copy(values, cells, |cell| match cell {
                    CellRef::$kind(value) => Some(value.to_ne_bytes()),
                    _ => None,
                })
            };
        }
        match scalar {
            ScalarType::U8 => copy_as!(U8),
            ScalarType::I8 => copy_as!(I8),
            ScalarType::U16 => copy_as!(U16),
            ScalarType::I16 => copy_as!(I16),
            ScalarType::U32 => copy_as!(U32),
            ScalarType::I32 => copy_as!(I32),
            ScalarType::U64 => copy_as!(U64),
            ScalarType::I64 => copy_as!(I64),
            ScalarType::F32 => copy_as!(F32),
            ScalarType::F64 => copy_as!(F64),
            ScalarType::Datetime => copy_as!(Datetime),
            ScalarType::Bool => copy(values, cells, |cell| match cell {
                CellRef::Bool(value) => Some([u8::from(value)]),
                _ => None,
            }),
            ScalarType::String | ScalarType::Bytes => {}
        }
        Ok(())
    })
}

/// A text or bytes value; none for null, redacted, and what has another type.
fn octets(cell: CellRef<'_>) -> Option<&[u8]> {
    match cell {
        CellRef::String(text) => Some(text.as_bytes()),
        CellRef::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

fn varlen(column: &Column<'_>) -> Outcome {
    match column.scalar()? {
        ScalarType::String | ScalarType::Bytes => Ok(()),
        _ => Err(mistyped(format!(
            "the column {:?} holds values of a fixed width: read it with nx_event_column_fixed",
            column.field.name
        ))),
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_column_varlen(
    event: *const EventObject,
    part: i32,
    column: usize,
    offsets: *mut u64,
    offsets_len: usize,
    data: *mut u8,
    data_capacity: usize,
    data_len: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an event of this library, or NULL.
        let column = Column::find(unsafe { object("event", event) }?, part, column)?;
        varlen(&column)?;
        let out = Place::new("data_len", data_len)?;
        let cells = column.cells()?;
        let total = cells
            .clone()
            .filter_map(octets)
            .map(<[u8]>::len)
            .fold(0, usize::saturating_add);
        if data.is_null() {
            // SAFETY: the host's place can be written to.
            unsafe { out.write(total) };
            return Ok(());
        }
        column.exactly("offsets_len", offsets_len, column.count.checked_add(1))?;
        if offsets.is_null() {
            return Err(invalid(
                "offsets is NULL: the call has nowhere to write its result",
            ));
        }
        // SAFETY: the host's place can be written to, also for a failure that the length would help with.
        unsafe { out.write(total) };
        if data_capacity < total {
            let name = &column.field.name;
            return Err(invalid(format!(
                "data_capacity is {data_capacity}, and the column {name:?} has {total} bytes"
            )));
        }
        // SAFETY: the host's buffer is at least as long as what is written to it.
        let data = unsafe { buffer("data", data, total) }?;
        let mut end = 0_usize;
        let put_offset = |index: usize, end: usize| {
            // SAFETY: there is one offset a cell and one more, as was compared with the length that the host gives.
            unsafe {
                offsets
                    .add(index)
                    .write_unaligned(u64::try_from(end).unwrap_or(u64::MAX))
            }
        };
        put_offset(0, 0);
        for (index, cell) in cells.enumerate() {
            let value = octets(cell).unwrap_or_default();
            let start = end;
            end = end.saturating_add(value.len());
            if let Some(place) = data.get_mut(start..end) {
                place.copy_from_slice(value);
            }
            put_offset(index.saturating_add(1), end);
        }
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_event_cell_varlen(
    event: *const EventObject,
    part: i32,
    row: usize,
    column: usize,
    value: *mut *const u8,
    value_len: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an event of this library, or NULL.
        let column = Column::find(unsafe { object("event", event) }?, part, column)?;
        varlen(&column)?;
        let out = BufferPlace::new("value", value, value_len)?;
        let Some(cell) = column.rows.cell(column.part, row, column.index) else {
            return Err(invalid(format!(
                "there is no row {row}: the part has {}",
                column.count
            )));
        };
        let Some(value) = octets(cell) else {
            let what = if matches!(cell, CellRef::Redacted) {
                "redacted"
            } else {
                "null"
            };
            return Err(mistyped(format!(
                "row {row} of the column {:?} is {what}: read the states first",
                column.field.name
            )));
        };
        // SAFETY: the host's places can be written to; the value lies in the frame, which lives as long as the event.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_event_end_reason(event: *const EventObject, reason: *mut i32) -> bool {
    contained(false, || {
        // SAFETY: the host passes an event of this library, or NULL.
        let number = match unsafe { event.as_ref() }.map(|object| &object.event.kind) {
            Some(EventKind::Ended {
                reason: SubscriptionEndReason::RelayRemoved,
                ..
            }) => 1,
            Some(EventKind::Ended {
                reason: SubscriptionEndReason::RelayChanged,
                ..
            }) => 2,
            _ => return false,
        };
        // SAFETY: the host's place can be written to.
        unsafe { put(reason, number) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_event_skip_cause(event: *const EventObject, cause: *mut i32) -> bool {
    contained(false, || {
        // SAFETY: the host passes an event of this library, or NULL.
        let number = match unsafe { event.as_ref() }.map(|object| &object.event.kind) {
            Some(EventKind::RowsSkipped {
                cause: RowsSkippedCause::FilterFailed,
                ..
            }) => 1,
            Some(EventKind::RowsSkipped {
                cause: RowsSkippedCause::DomainTimeUnavailable,
                ..
            }) => 2,
            Some(EventKind::RowsSkipped {
                cause: RowsSkippedCause::EncodingFailed,
                ..
            }) => 3,
            _ => return false,
        };
        // SAFETY: the host's place can be written to.
        unsafe { put(cause, number) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_event_message(
    event: *const EventObject,
    message: *mut *const u8,
    message_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes an event of this library, or NULL.
        let text = match unsafe { event.as_ref() }.map(|object| &object.event.kind) {
            Some(
                EventKind::RowsSkipped { message, .. }
                | EventKind::Ended { message, .. }
                | EventKind::Interrupted { message }
                | EventKind::RestorationFailed { message },
            ) => message.as_str(),
            Some(EventKind::Overflow { .. }) => "the reader was too slow: what was queued is dropped, and nothing more comes on this session",
            _ => "",
        };
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(message, message_len, text.as_bytes()) }
    });
}
