//! Connect options: nxx_connect_options.
//!
//! Owns what a host may choose about a session, until it connects.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use nervix_client::{Authorities, Options};
use nervix_engine::Origin;

use crate::arguments::{bytes, contained, free, guarded, invalid, required_text, Outcome};
use crate::errors::ErrorObject;

/// nxx_connect_options.
pub struct OptionsObject {
    pub(crate) options: Options,
}

#[no_mangle]
pub extern "C" fn nxx_connect_options_new() -> *mut OptionsObject {
    contained(std::ptr::null_mut(), || {
        Box::into_raw(Box::new(OptionsObject {
            options: Options::default(),
        }))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_connect_options_add_seed(
    options: *mut OptionsObject,
    server: *const u8,
    server_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes options of this library, which no other call uses, or NULL.
        let object = unsafe { options.as_mut() }.ok_or_else(|| invalid("options is NULL"))?;
        // SAFETY: the host's buffers are readable during the call.
        let server = unsafe { required_text("server", server, server_len) }?;
        object
            .options
            .seeds
            .push(Origin::parse(server).map_err(invalid)?);
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_connect_options_request_timeout(
    options: *mut OptionsObject,
    millis: u64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes options of this library, which no other call uses, or NULL.
        let object = unsafe { options.as_mut() }.ok_or_else(|| invalid("options is NULL"))?;
        object.options.request_timeout = timeout("the request timeout", millis)?;
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_connect_options_retry_timeout(
    options: *mut OptionsObject,
    millis: u64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes options of this library, which no other call uses, or NULL.
        let object = unsafe { options.as_mut() }.ok_or_else(|| invalid("options is NULL"))?;
        object.options.retry_timeout = timeout("the retry timeout", millis)?;
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_connect_options_ca_file(
    options: *mut OptionsObject,
    path: *const u8,
    path_len: usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes options of this library, which no other call uses, or NULL.
        let object = unsafe { options.as_mut() }.ok_or_else(|| invalid("options is NULL"))?;
        // SAFETY: the host's buffers are readable during the call.
        let path = match unsafe { bytes("path", path, path_len) }? {
            None | Some([]) => return Err(invalid("path is empty: name the CA file")),
            Some(path) => path,
        };
        // A name of a file is any bytes.
        let read = Authorities::read(Path::new(OsStr::from_bytes(path)))?;
        object.options.authorities = Some(read);
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_connect_options_free(options: *mut OptionsObject) {
    // SAFETY: the host passes options of this library that it has not freed, or NULL.
    unsafe { free(options) }
}

fn timeout(what: &str, millis: u64) -> Outcome<Duration> {
    match millis {
        0 => Err(invalid(format!(
            "{what} is 0: it is at least 1 millisecond"
        ))),
        millis => Ok(Duration::from_millis(millis)),
    }
}
