//! What calls read and write: buffers exactly as long as they say, so that the sanitizer sees a byte too far, and the structures
//! of the Arrow C data interface.

use arbitrary::{Result, Unstructured};
use arrow_array::ffi::{from_ffi, to_ffi, FFI_ArrowArray};
use arrow_array::{Array, StructArray};
use arrow_schema::ffi::FFI_ArrowSchema;

/// A buffer of a host, or NULL. Now and then it is not aligned.
pub struct Memory {
    bytes: Option<Vec<u8>>,
    at: usize,
}

/// What nobody wrote to.
const UNTOUCHED: u8 = 0xa5;

impl Memory {
    pub fn null() -> Self {
        Self { bytes: None, at: 0 }
    }

    pub fn holding(value: &[u8], at: usize) -> Self {
        let mut bytes = Vec::with_capacity(at + value.len());
        bytes.resize(at, UNTOUCHED);
        bytes.extend_from_slice(value);
        Self {
            bytes: Some(bytes),
            at,
        }
    }

    /// To be written to.
    pub fn place(length: usize, at: usize) -> Self {
        Self::holding(&vec![UNTOUCHED; length], at)
    }

    pub fn is_null(&self) -> bool {
        self.bytes.is_none()
    }

    pub fn address(&mut self) -> u64 {
        let at = self.at;
        let pointer = self.bytes.as_mut();
        pointer.map_or(0, |bytes| bytes.as_mut_ptr().wrapping_add(at) as u64)
    }

    pub fn value(&self) -> &[u8] {
        self.bytes.as_deref().map_or(&[], |bytes| &bytes[self.at..])
    }

    pub fn is_untouched(&self) -> bool {
        self.value().iter().all(|byte| *byte == UNTOUCHED)
    }

    /// What was written, as a number of the place's width.
    pub fn number(&self) -> u64 {
        let mut wide = [0; 8];
        let value = self.value();
        wide[..value.len()].copy_from_slice(value);
        u64::from_ne_bytes(wide)
    }
}

/// A structure of the interface as a host has it. Only what tests change is named.
#[repr(C)]
struct RawArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
}

#[repr(C)]
struct RawSchema {
    format: *mut u8,
    name: *mut u8,
    metadata: *mut u8,
    flags: i64,
    n_children: i64,
    children: *mut *mut RawSchema,
    dictionary: *mut RawSchema,
    release: usize,
}

/// A schema and an array.
pub struct Pair {
    schema: Box<FFI_ArrowSchema>,
    array: Box<FFI_ArrowArray>,
}

impl Pair {
    /// To be written to.
    pub fn empty() -> Self {
        Self {
            schema: Box::new(FFI_ArrowSchema::empty()),
            array: Box::new(FFI_ArrowArray::empty()),
        }
    }

    pub fn of(rows: &StructArray) -> Self {
        let (array, schema) = to_ffi(&rows.to_data()).unwrap();
        Self {
            schema: Box::new(schema),
            array: Box::new(array),
        }
    }

    pub fn schema(&mut self) -> u64 {
        std::ptr::from_mut(&mut *self.schema) as u64
    }

    pub fn array(&mut self) -> u64 {
        std::ptr::from_mut(&mut *self.array) as u64
    }

    fn raw_schema(&mut self) -> &mut RawSchema {
        // SAFETY: the structure begins with these fields, by the interface.
        unsafe { &mut *std::ptr::from_mut(&mut *self.schema).cast() }
    }

    fn raw_array(&mut self) -> &mut RawArray {
        // SAFETY: the structure begins with these fields, by the interface.
        unsafe { &mut *std::ptr::from_mut(&mut *self.array).cast() }
    }

    pub fn is_consumed(&mut self) -> bool {
        self.array.is_released() && self.raw_schema().release == 0
    }

    /// Something that a host should not pass, and that is still safe to look at.
    pub fn spoil(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=7)? {
            0 => self.raw_array().length = -1 - i64::from(u.arbitrary::<u8>()?),
            1 => self.raw_array().length = i64::MAX,
            2 => self.raw_array().offset = -1,
            3 => self.raw_array().offset = i64::MAX,
            4 => self.raw_array().n_children = -1,
            5 => self.raw_array().null_count = -1,
            6 => *self.array = FFI_ArrowArray::empty(),
            _ => {
                let raw = self.raw_schema();
                // SAFETY: a struct has the children that it says, each of them has a format of at least one byte and the zero
                // behind it, and no type is called `?`.
                unsafe {
                    if raw.n_children > 0 && u.arbitrary()? {
                        *(**raw.children).format = b'?';
                    } else {
                        *raw.format = b'?';
                    }
                }
            }
        }
        Ok(())
    }

    /// What the library exported, which must be as Arrow says.
    pub fn import(self, with_schema: bool) -> Option<StructArray> {
        assert!(!self.array.is_released());
        if !with_schema {
            return None;
        }
        // SAFETY: the library promises that both are as the interface says.
        let data = unsafe { from_ffi(*self.array, &self.schema) }.unwrap();
        data.validate_full().unwrap();
        Some(StructArray::from(data))
    }
}
