//! Building batches: nx_batch_builder.
//!
//! Owns reading a host's buffers. Knows nothing of what they must be.

use std::sync::Arc;

use nervix_batch::{Batch, Builder};

use crate::arguments::{bytes, free, guarded, invalid, object, Outcome, Place};
use crate::batch::refused;
use crate::counted::hand_out;
use crate::errors::ErrorObject;
use crate::schema::SchemaObject;

/// nx_batch_builder.
pub struct BuilderObject {
    builder: Builder,
}

/// The builder behind a handle.
///
/// # Safety
/// The handle is NULL or a builder of this library, which no other call uses.
unsafe fn builder<'a>(handle: *mut BuilderObject) -> Outcome<&'a mut Builder> {
    // SAFETY: the caller's promise.
    let object = unsafe { handle.as_mut() }.ok_or_else(|| invalid("builder is NULL"))?;
    Ok(&mut object.builder)
}

/// A host's offsets.
///
/// # Safety
/// A pointer that is not NULL has `len` readable offsets, which stay as they are during the call.
unsafe fn offsets<'a>(
    pointer: *const u64,
    len: usize,
) -> Outcome<impl ExactSizeIterator<Item = u64> + 'a> {
    const WIDTH: usize = std::mem::size_of::<u64>();
    let length = len
        .checked_mul(WIDTH)
        .ok_or_else(|| invalid(format!("offsets has the length {len}, which no buffer has")))?;
    // SAFETY: the caller's promise; bytes have no alignment.
    let bytes = unsafe { bytes("offsets", pointer.cast(), length) }?.unwrap_or_default();
    let value = |bytes: &[u8]| {
        bytes
            .first_chunk()
            .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    Ok(bytes.chunks_exact(WIDTH).map(value))
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_builder_new(
    schema: *const SchemaObject,
    rows: usize,
    out: *mut *mut BuilderObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a schema of this library, or NULL.
        let schema = &unsafe { object("schema", schema) }?.schema;
        let out = Place::new("out", out)?;
        let builder = Builder::new(Arc::clone(schema), rows).map_err(refused)?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(Box::into_raw(Box::new(BuilderObject { builder }))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_builder_states(
    builder: *mut BuilderObject,
    column: usize,
    states: *const u8,
    states_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a builder of this library, which no other call uses, or NULL.
        let builder = unsafe { self::builder(builder) }?;
        // SAFETY: the host's buffers are readable during the call.
        let states = unsafe { bytes("states", states, states_len) }?.unwrap_or_default();
        builder.states(column, states).map_err(refused)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_builder_offsets(
    builder: *mut BuilderObject,
    column: usize,
    level: usize,
    offsets: *const u64,
    offsets_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a builder of this library, which no other call uses, or NULL.
        let builder = unsafe { self::builder(builder) }?;
        // SAFETY: the host's buffers are readable during the call.
        let offsets = unsafe { self::offsets(offsets, offsets_len) }?;
        builder.offsets(column, level, offsets).map_err(refused)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_builder_fixed(
    builder: *mut BuilderObject,
    column: usize,
    level: usize,
    values: *const std::ffi::c_void,
    values_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a builder of this library, which no other call uses, or NULL.
        let builder = unsafe { self::builder(builder) }?;
        // SAFETY: the host's buffers are readable during the call.
        let values = unsafe { bytes("values", values.cast(), values_len) }?.unwrap_or_default();
        builder.fixed(column, level, values).map_err(refused)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_builder_varlen(
    builder: *mut BuilderObject,
    column: usize,
    level: usize,
    offsets: *const u64,
    offsets_len: usize,
    data: *const u8,
    data_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a builder of this library, which no other call uses, or NULL.
        let builder = unsafe { self::builder(builder) }?;
        // SAFETY: the host's buffers are readable during the call.
        let (offsets, data) = unsafe {
            (
                self::offsets(offsets, offsets_len)?,
                bytes("data", data, data_len)?.unwrap_or_default(),
            )
        };
        builder
            .varlen(column, level, offsets, data)
            .map_err(refused)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_builder_finish(
    builder: *mut BuilderObject,
    out: *mut *mut Batch,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a builder of this library, which no other call uses, or NULL.
        let builder = unsafe { self::builder(builder) }?;
        let out = Place::new("out", out)?;
        let batch = builder.finish().map_err(refused)?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(hand_out(Arc::new(batch))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_batch_builder_free(builder: *mut BuilderObject) {
    // SAFETY: the host passes a builder of this library that it has not freed, or NULL.
    unsafe { free(builder) }
}
