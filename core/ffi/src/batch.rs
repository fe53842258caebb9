//! Batches: nx_batch, and as Arrow: nxx_batch_arrow, nxx_batch_from_arrow.
//!
//! Owns copying columns into a host's buffers, and the structures of the Arrow C data interface. Knows nothing of streams.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use arrow_array::ffi::from_ffi;
use arrow_array::Array;
use arrow_data::ffi::FFI_ArrowArray;
use arrow_data::ArrayData;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::DataType;
use nervix_batch::{Batch, Refusal};
use nervix_engine::{Error, ErrorKind};

use crate::arguments::{contained, guarded, invalid, object, BufferPlace, Outcome, Place};
use crate::counted::{self, hand_out};
use crate::errors::ErrorObject;
use crate::event::mistyped;
use crate::schema::SchemaObject;

/// What a batch refuses, as a host reads it.
pub(crate) fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Argument(why) => Error::new(ErrorKind::InvalidArgument, why),
        Refusal::Type(why) => Error::new(ErrorKind::Type, why),
        Refusal::Stream(why) => Error::new(ErrorKind::Protocol, why),
    }
}

/// A host's buffer of `len` bytes that a call fills.
///
/// # Safety
/// A pointer that is not NULL has room for `len` bytes, which nobody else uses during the call.
unsafe fn place<'a>(name: &str, pointer: *mut u8, len: usize) -> Outcome<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(invalid(format!(
            "{name} is NULL: the call has nowhere to write its result"
        )));
    }
    // SAFETY: the length was compared with that of a column, so that it is one a buffer can have; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// Writes offsets to a host's buffer of exactly as many.
///
/// # Safety
/// A pointer that is not NULL has room for `len` offsets.
unsafe fn put_offsets(
    values: impl ExactSizeIterator<Item = u64>,
    offsets: *mut u64,
    len: usize,
) -> Outcome {
    if values.len() != len {
        let wanted = values.len();
        return Err(invalid(format!(
            "offsets_len is {len}, and the level needs {wanted}"
        )));
    }
    if offsets.is_null() {
        return Err(invalid(
            "offsets is NULL: the call has nowhere to write its result",
        ));
    }
    for (index, value) in values.enumerate() {
        // SAFETY: the index is below the length that the host gives.
        unsafe { offsets.add(index).write_unaligned(value) }
    }
    Ok(())
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_row_count(batch: *const Batch) -> usize {
    // SAFETY: the host passes a batch of this library, or NULL.
    contained(0, || unsafe { batch.as_ref() }.map_or(0, Batch::rows))
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_schema(
    batch: *const Batch,
    out: *mut *mut SchemaObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a batch of this library, or NULL.
        let batch = unsafe { object("batch", batch) }?;
        let out = Place::new("out", out)?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(SchemaObject::hand_out(Arc::clone(batch.schema()))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_ipc(
    batch: *const Batch,
    ipc: *mut *const u8,
    ipc_len: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a batch of this library, or NULL.
        let batch = unsafe { object("batch", batch) }?;
        let out = BufferPlace::new("ipc", ipc, ipc_len)?;
        let stream = batch.stream().map_err(refused)?;
        // SAFETY: the host's places can be written to; the stream lives as long as the batch.
        unsafe { out.write(stream) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_cells(
    batch: *const Batch,
    column: usize,
    level: usize,
    cells: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a batch of this library, or NULL.
        let batch = unsafe { object("batch", batch) }?;
        let out = Place::new("cells", cells)?;
        let count = batch.cells(column, level).map_err(refused)?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(count) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_states(
    batch: *const Batch,
    column: usize,
    states: *mut u8,
    states_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a batch of this library, or NULL.
        let batch = unsafe { object("batch", batch) }?;
        let valid = batch.states(column).map_err(refused)?;
        if states_len != batch.rows() {
            let rows = batch.rows();
            return Err(invalid(format!(
                "states_len is {states_len}, and the batch has {rows} rows"
            )));
        }
        // SAFETY: the host's buffer has the length that it says, which is the column's.
        let states = unsafe { place("states", states, states_len) }?;
        for (state, valid) in states.iter_mut().zip(valid) {
            *state = if valid { 1 } else { 2 };
        }
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_offsets(
    batch: *const Batch,
    column: usize,
    level: usize,
    offsets: *mut u64,
    offsets_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a batch of this library, or NULL.
        let batch = unsafe { object("batch", batch) }?;
        let values = batch.offsets(column, level).map_err(refused)?;
        // SAFETY: the host's buffer has the length that it says.
        unsafe { put_offsets(values.into_iter(), offsets, offsets_len) }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_fixed(
    batch: *const Batch,
    column: usize,
    level: usize,
    values: *mut std::ffi::c_void,
    values_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a batch of this library, or NULL.
        let batch = unsafe { object("batch", batch) }?;
        let wanted = batch.fixed_len(column, level).map_err(refused)?;
        if values_len != wanted {
            return Err(invalid(format!(
                "values_len is {values_len}, and the level needs {wanted}"
            )));
        }
        // SAFETY: the host's buffer has the length that it says, which is the column's.
        let values = unsafe { place("values", values.cast(), values_len) }?;
        batch.write_fixed(column, level, values).map_err(refused)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_varlen(
    batch: *const Batch,
    column: usize,
    level: usize,
    offsets: *mut u64,
    offsets_len: usize,
    data: *mut u8,
    data_capacity: usize,
    data_len: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a batch of this library, or NULL.
        let batch = unsafe { object("batch", batch) }?;
        let values = batch.varlen(column, level).map_err(refused)?;
        let out = Place::new("data_len", data_len)?;
        let all = values.data();
        if data.is_null() {
            // SAFETY: the host's place can be written to.
            unsafe { out.write(all.len()) };
            return Ok(());
        }
        let wanted = values.offsets().len();
        if offsets_len != wanted {
            return Err(invalid(format!(
                "offsets_len is {offsets_len}, and the level needs {wanted}"
            )));
        }
        if offsets.is_null() {
            return Err(invalid(
                "offsets is NULL: the call has nowhere to write its result",
            ));
        }
        // SAFETY: the host's place can be written to, also for a failure that the length would help with.
        unsafe { out.write(all.len()) };
        if data_capacity < all.len() {
            return Err(invalid(format!(
                "data_capacity is {data_capacity}, and the level has {} bytes",
                all.len()
            )));
        }
        // SAFETY: the host's buffer is at least as long as what is written to it.
        unsafe { place("data", data, all.len()) }?.copy_from_slice(all);
        // SAFETY: the host's buffer has the length that it says.
        unsafe { put_offsets(values.offsets(), offsets, offsets_len) }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_retain(batch: *mut Batch) -> *mut Batch {
    // SAFETY: the host passes a batch of this library that it holds, or NULL.
    unsafe { counted::retain(batch) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_release(batch: *mut Batch) {
    // SAFETY: the host passes a batch of this library that it holds, or NULL.
    unsafe { counted::release(batch) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_batch_arrow(
    batch: *const Batch,
    schema: *mut FFI_ArrowSchema,
    array: *mut FFI_ArrowArray,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a batch of this library, or NULL.
        let batch = unsafe { object("batch", batch) }?;
        if array.is_null() {
            return Err(invalid(
                "array is NULL: the call has nowhere to write its result",
            ));
        }
        let rows = batch.to_arrow().map_err(refused)?;
        let exported = match schema.is_null() {
            true => None,
            false => Some(
                FFI_ArrowSchema::try_from(rows.data_type())
                    .map_err(|error| mistyped(format!("the batch does not fit Arrow: {error}")))?,
            ),
        };
        // SAFETY: the host's structures can be written to, and what they held before is the host's.
        unsafe {
            array.write_unaligned(FFI_ArrowArray::new(&rows.into_data()));
            if let Some(exported) = exported {
                schema.write_unaligned(exported);
            }
        }
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_batch_from_arrow(
    schema: *const SchemaObject,
    arrow_schema: *mut FFI_ArrowSchema,
    array: *mut FFI_ArrowArray,
    out: *mut *mut Batch,
) -> *mut ErrorObject {
    guarded(|| {
        // Taken before anything can fail: they are consumed in any case.
        // SAFETY: the host's structures, where it passes any, are as the C data interface says and given up by it.
        let (arrow_schema, array) = unsafe {
            (
                (!arrow_schema.is_null()).then(|| FFI_ArrowSchema::from_raw(arrow_schema)),
                (!array.is_null()).then(|| FFI_ArrowArray::from_raw(array)),
            )
        };
        // SAFETY: the host passes a schema of this library, or NULL.
        let schema = &unsafe { object("schema", schema) }?.schema;
        let out = Place::new("out", out)?;
        let arrow_schema = arrow_schema.ok_or_else(|| invalid("arrow_schema is NULL"))?;
        let array = array.ok_or_else(|| invalid("array is NULL"))?;
        if array.is_released() {
            return Err(invalid("array was released: it holds nothing any more"));
        }
        // Arrow's reader trusts that the structures fit together, and panics when they do not.
        let taken = catch_unwind(AssertUnwindSafe(|| {
            bounded(&array)?;
            // SAFETY: the host's structures are as the C data interface says.
            let rows = unsafe { from_ffi(array, &arrow_schema) };
            let rows =
                rows.map_err(|error| invalid(format!("the array cannot be read: {error}")))?;
            let (columns, count) = columns(schema, &rows)?;
            Batch::copy_from(Arc::clone(schema), count, &columns).map_err(refused)
        }));
        let batch = taken
            .unwrap_or_else(|_| Err(invalid("the array and its schema do not fit each other")))?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(hand_out(Arc::new(batch))) };
        Ok(())
    })
}

/// Refuses lengths that no batch has, before buffers of such lengths are imagined.
fn bounded(array: &FFI_ArrowArray) -> Outcome {
    for length in [array.len(), array.offset()] {
        if u32::try_from(length).is_err() {
            return Err(invalid(
                "the array has a negative length or offset, or one that no batch has",
            ));
        }
    }
    let children = match array.num_children() {
        // A struct's fields, or a list's elements. More are not looked at than could be.
        count if u32::try_from(count).is_ok() => count,
        _ => return Err(invalid("the array has a negative number of children")),
    };
    (0..children).try_for_each(|index| bounded(array.child(index)))
}

/// The columns of a struct array whose fields have the names that are wanted.
fn columns(
    schema: &nervix_wire::types::RowSchema,
    rows: &ArrayData,
) -> Outcome<(Vec<ArrayData>, usize)> {
    let DataType::Struct(fields) = rows.data_type() else {
        return Err(invalid(format!(
            "the array is {}, and a struct array of the batch's columns is wanted",
            rows.data_type()
        )));
    };
    for (index, field) in schema.fields.iter().enumerate() {
        match fields.get(index) {
            Some(found) if *found.name() == field.name => {}
            Some(found) => {
                return Err(invalid(format!(
                    "column {index} is {:?}, and {:?} is wanted",
                    found.name(),
                    field.name
                )))
            }
            None => return Err(invalid(format!("the column {:?} is missing", field.name))),
        }
    }
    if let Some(extra) = fields.get(schema.fields.len()) {
        return Err(invalid(format!(
            "there is a column {:?}, which is no field",
            extra.name()
        )));
    }
    if let Some(row) = rows
        .nulls()
        .and_then(|nulls| nulls.iter().position(|valid| !valid))
    {
        return Err(invalid(format!("row {row} is null as a whole")));
    }
    let (offset, count) = (rows.offset(), rows.len());
    let columns = rows
        .child_data()
        .iter()
        .map(|column| match offset.checked_add(count) {
            Some(end) if end <= column.len() => Ok(column.slice(offset, count)),
            _ => Err(invalid("a column is shorter than the batch")),
        })
        .collect::<Outcome<Vec<_>>>()?;
    Ok((columns, count))
}
