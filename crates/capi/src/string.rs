//! Texts that the caller frees.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ptr;

/// Bytes before the text, which hold the length of the allocation.
const HEADER: usize = size_of::<usize>();

/// Hands a text over to the caller: its pointer, with a zero byte after the text, and its length.
pub(crate) fn hand_over(
    text: &str,
    at: &mut MaybeUninit<*mut c_char>,
    n_bytes: Option<&mut MaybeUninit<usize>>,
) {
    let size = HEADER + text.len() + 1;
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(&size.to_ne_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
    let start = Box::into_raw(bytes.into_boxed_slice()).cast::<u8>();
    // SAFETY: `start` has `size` bytes, more than `HEADER`.
    at.write(unsafe { start.add(HEADER) }.cast());
    if let Some(place) = n_bytes {
        place.write(text.len());
    }
}

/// Frees a text that a function of this library returned; null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ingle_string_free(text: *mut c_char) {
    if text.is_null() {
        return;
    }
    // SAFETY: `text` came from `hand_over`, so that the allocation began `HEADER` bytes before it,
    // with its size.
    unsafe {
        let start = text.cast::<u8>().sub(HEADER);
        let size = start.cast::<usize>().read_unaligned();
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(start, size)));
    }
}
