//! Reading a frame's tables by position with every access bounded, where flatc's accessors cannot be
//! used: at places remembered from a verified frame, and in a layout that flatc does not know. It
//! checks nothing but bounds, so its callers read only what a verifier has seen.

/// The bytes of a scalar.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

/// Where a field of the table at `table` stands, None when it is absent.
pub(crate) fn field(bytes: &[u8], table: usize, slot: u16) -> Option<usize> {
    let back = i64::from(i32::from_le_bytes(array(bytes, table)?));
    let vtable = usize::try_from(i64::try_from(table).ok()?.checked_sub(back)?).ok()?;
    let len = u16::from_le_bytes(array(bytes, vtable)?);
    if slot.checked_add(2)? > len {
        return None;
    }
    let offset = u16::from_le_bytes(array(bytes, vtable.checked_add(usize::from(slot))?)?);
    if offset == 0 {
        return None;
    }
    table.checked_add(usize::from(offset))
}

/// What the forward offset at `at` points to.
pub(crate) fn follow(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(u32::from_le_bytes(array(bytes, at)?) as usize)
}

/// The bytes of the vector at `at`.
pub(crate) fn vector(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let len = u32::from_le_bytes(array(bytes, at)?) as usize;
    bytes.get(at.checked_add(4)?..)?.get(..len)
}

/// The string at `at`.
pub(crate) fn string(bytes: &[u8], at: usize) -> Option<&str> {
    std::str::from_utf8(vector(bytes, at)?).ok()
}
