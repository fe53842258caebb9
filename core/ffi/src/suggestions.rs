//! Completions: nx_suggestions.
//!
//! Owns the numbers of their statuses and kinds.

use nervix_wire::types::{SuggestOutcome, SuggestionKind, SuggestionStatus};

use crate::arguments::{contained, free, guarded, invalid, object, put_buffer, BufferPlace, Place};
use crate::errors::ErrorObject;

/// nx_suggestions.
pub struct SuggestionsObject {
    pub(crate) page: SuggestOutcome,
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_suggestions_status(suggestions: *const SuggestionsObject) -> i32 {
    // SAFETY: the host passes suggestions of this library, or NULL.
    contained(0, || {
        match unsafe { suggestions.as_ref() }.map(|object| object.page.status) {
            None => 0,
            Some(SuggestionStatus::Ready) => 1,
            Some(SuggestionStatus::MissingContext) => 2,
            Some(SuggestionStatus::StaleContext) => 3,
            Some(SuggestionStatus::LookupFailed) => 4,
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_suggestions_count(suggestions: *const SuggestionsObject) -> usize {
    // SAFETY: the host passes suggestions of this library, or NULL.
    contained(0, || {
        unsafe { suggestions.as_ref() }.map_or(0, |object| object.page.suggestions.len())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_suggestions_at(
    suggestions: *const SuggestionsObject,
    index: usize,
    kind: *mut i32,
    value: *mut *const u8,
    value_len: *mut usize,
    start: *mut u32,
    end: *mut u32,
    replacement: *mut *const u8,
    replacement_len: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes suggestions of this library, or NULL.
        let page = &unsafe { object("suggestions", suggestions) }?.page;
        let (kind, value) = (
            Place::new("kind", kind)?,
            BufferPlace::new("value", value, value_len)?,
        );
        let (start, end) = (Place::new("start", start)?, Place::new("end", end)?);
        let replacement = BufferPlace::new("replacement", replacement, replacement_len)?;
        let Some(suggestion) = page.suggestions.get(index) else {
            return Err(invalid(format!(
                "there is no suggestion {index}: the page has {}",
                page.suggestions.len()
            )));
        };
        let number = match suggestion.kind {
            SuggestionKind::Text => 1,
            SuggestionKind::LocalDirectoryLookup => 2,
        };
        // SAFETY: the host's places can be written to.
        unsafe {
            kind.write(number);
            value.write(suggestion.value.as_bytes());
            start.write(suggestion.edit.start);
            end.write(suggestion.edit.end);
            replacement.write(suggestion.edit.replacement.as_bytes());
        }
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_suggestions_continuation(
    suggestions: *const SuggestionsObject,
    continuation: *mut *const u8,
    continuation_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes suggestions of this library, or NULL.
        let Some(text) =
            unsafe { suggestions.as_ref() }.and_then(|object| object.page.continuation.as_deref())
        else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(continuation, continuation_len, text.as_bytes()) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_suggestions_free(suggestions: *mut SuggestionsObject) {
    // SAFETY: the host passes suggestions of this library that it has not freed, or NULL.
    unsafe { free(suggestions) }
}
