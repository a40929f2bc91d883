//! The boundary to C: one wrapper around every function, errors, and checked pointers.

use std::cell::RefCell;
use std::error::Error as _;
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use ingle::{Error, RequestErrorKind};

use crate::status::{
    INGLE_ERROR_ARGUMENT, INGLE_ERROR_CONTEXT, INGLE_ERROR_DEVICE, INGLE_ERROR_FAILED, INGLE_ERROR_MEMORY,
    INGLE_ERROR_MODEL, INGLE_ERROR_NOT_FOUND, INGLE_ERROR_OVERLOADED, INGLE_ERROR_PANIC,
    INGLE_ERROR_STRUCT_SIZE, INGLE_ERROR_TIMEOUT, IngleStatus,
};

/// Largest `struct_size` that is read.
const MAX_STRUCT: usize = 4096;

/// Largest number of elements of this size: an object has at most `isize::MAX` bytes.
const fn most(element_size: usize) -> usize {
    isize::MAX as usize / element_size
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// An error on its way to the caller.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: IngleStatus,
    pub(crate) message: String,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure { status: INGLE_ERROR_ARGUMENT, message: message.into() }
    }

    fn null(name: &str) -> Failure {
        Failure::argument(format!("{name} is null"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::Request { kind, .. } => match kind {
                RequestErrorKind::Invalid => INGLE_ERROR_ARGUMENT,
                RequestErrorKind::ContextLength => INGLE_ERROR_CONTEXT,
                RequestErrorKind::NotFound => INGLE_ERROR_NOT_FOUND,
                RequestErrorKind::Overloaded => INGLE_ERROR_OVERLOADED,
                RequestErrorKind::Unavailable => INGLE_ERROR_MEMORY,
                RequestErrorKind::Timeout => INGLE_ERROR_TIMEOUT,
                _ => INGLE_ERROR_FAILED,
            },
            Error::Hub(_) => INGLE_ERROR_NOT_FOUND,
            Error::Format(_)
            | Error::Model(_)
            | Error::Speech(_)
            | Error::Adapter { .. }
            | Error::Mmproj { .. } => INGLE_ERROR_MODEL,
            Error::Device(_)
            | Error::WrongSystem { .. }
            | Error::WrongResults { .. }
            | Error::NoDevice { .. } => INGLE_ERROR_DEVICE,
            Error::Text(_)
            | Error::GpusOfOtherDevice
            | Error::GpuTwice { .. }
            | Error::NoGpuToSplit { .. }
            | Error::NoExperts => INGLE_ERROR_ARGUMENT,
            Error::Engine(error) => of_engine(error),
            _ => INGLE_ERROR_FAILED,
        };
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            let words = error.to_string();
            if !message.contains(&words) {
                message = format!("{message}: {words}");
            }
            source = error.source();
        }
        Failure { status, message }
    }
}

fn of_engine(error: &ingle::direct::EngineError) -> IngleStatus {
    use ingle::direct::EngineError;
    match error {
        EngineError::DoesNotFit(_) => INGLE_ERROR_MEMORY,
        EngineError::Format(_) | EngineError::Model(_) => INGLE_ERROR_MODEL,
        EngineError::Device(_) => INGLE_ERROR_DEVICE,
        _ => INGLE_ERROR_ARGUMENT,
    }
}

/// Runs the body of an exported function. It is the only way out: errors and panics become a status
/// and the thread's last error.
pub(crate) fn guard(body: impl FnOnce() -> Outcome<IngleStatus>) -> IngleStatus {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(Failure { status, message })) => {
            set_last_error(message);
            status
        }
        Err(payload) => {
            let words = payload.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
            set_last_error(format!("a defect of Ingle: {words}"));
            INGLE_ERROR_PANIC
        }
    }
}

fn set_last_error(message: String) {
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no last error.
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
}

/// The message of the thread's last error. The pointer is valid until its next error.
pub(crate) fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Structs that callers fill.
///
/// # Safety
/// The type is `#[repr(C)]`, its first field is `struct_size: usize`, and all of its bytes may be
/// zero.
pub(crate) unsafe trait CStruct: Copy {
    /// Name of the struct in C.
    const NAME: &'static str;
}

fn struct_size<S: CStruct>(size: usize) -> Outcome<usize> {
    let fits = (size_of::<usize>()..=MAX_STRUCT).contains(&size) && size.is_multiple_of(align_of::<S>());
    let expected = size_of::<S>();
    let name = S::NAME;
    let wrong = || Failure {
        status: INGLE_ERROR_STRUCT_SIZE,
        message: format!(
            "struct_size of {name} is {size}, expected sizeof({name}), {expected} in this version"
        ),
    };
    fits.then_some(size).ok_or_else(wrong)
}

/// Reads the size at the start of a struct.
///
/// # Safety
/// `at` is a pointer to at least a `usize`.
unsafe fn stated_size<S: CStruct>(at: *const S) -> Outcome<usize> {
    if !at.is_aligned() {
        return Err(Failure::argument(format!("the pointer to {} is not aligned", S::NAME)));
    }
    // SAFETY: the caller of this function has a `usize` at `at`, which is aligned as checked above.
    struct_size::<S>(unsafe { at.cast::<usize>().read() })
}

/// Checks the pointer to a struct and its size.
///
/// # Safety
/// `at` is null or points to as many bytes as its `struct_size` says.
pub(crate) unsafe fn check_struct<S: CStruct>(at: *const S, name: &str) -> Outcome<()> {
    if at.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: `at` is not null, so it points to a struct that begins with its size.
    unsafe { stated_size(at) }.map(drop)
}

/// Reads a struct of an older or newer caller. Fields that an older caller lacks are zero; a newer
/// caller's further fields must be zero. Null means that all fields are zero.
///
/// # Safety
/// `at` is null or points to as many bytes as its `struct_size` says.
pub(crate) unsafe fn read_struct<S: CStruct>(at: *const S) -> Outcome<S> {
    let mut read = MaybeUninit::<S>::zeroed();
    if !at.is_null() {
        // SAFETY: `at` is not null, so it points to a struct that begins with its size.
        let size = unsafe { stated_size(at) }?;
        // SAFETY: `at` has `size` bytes by its own statement.
        let bytes = unsafe { slice::from_raw_parts(at.cast::<u8>(), size) };
        let known = size.min(size_of::<S>());
        if bytes[known..].iter().any(|&byte| byte != 0) {
            let message = format!("{} sets options that this version does not have", S::NAME);
            return Err(Failure { status: INGLE_ERROR_STRUCT_SIZE, message });
        }
        // SAFETY: `known` is at most the length of `bytes` and of `read`, which do not overlap.
        unsafe { read.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), known) };
    }
    // SAFETY: `read` was zeroed, and zero is a value of every `CStruct`; the caller's fields are
    // numbers and pointers, of which all bytes are values.
    Ok(unsafe { read.assume_init() })
}

/// Writes a struct for a caller that states its size in the struct; later fields are omitted.
///
/// # Safety
/// `at` is null or points to as many bytes as its `struct_size` says.
pub(crate) unsafe fn write_struct<S: CStruct>(at: *mut S, value: &S, name: &str) -> Outcome<()> {
    if at.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: `at` is not null, so it points to a struct that begins with its size.
    let size = unsafe { stated_size(at.cast_const()) }?;
    let (start, known) = (size_of::<usize>(), size.min(size_of::<S>()));
    // SAFETY: `known` is at most the length of `value` and of the struct at `at`. The size stays as
    // the caller stated it.
    unsafe {
        let from = std::ptr::from_ref(value).cast::<u8>().add(start);
        at.cast::<u8>().add(start).copy_from_nonoverlapping(from, known - start);
    }
    Ok(())
}

/// Reads an array of structs whose first element states the distance between them.
///
/// # Safety
/// `at` is null or points to `n` structs, each as long as the first one's `struct_size` says.
pub(crate) unsafe fn read_structs<S: CStruct>(at: *const S, n: usize, name: &str) -> Outcome<Vec<S>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    if at.is_null() || n > most(MAX_STRUCT) {
        return Err(wrong_array(at.is_null(), n, name));
    }
    // SAFETY: `at` is not null, so it points to a struct that begins with its size.
    let stride = unsafe { stated_size(at) }?;
    // SAFETY: each of the `n` structs is `stride` bytes after the one before it.
    (0..n).map(|index| unsafe { read_struct(at.byte_add(index * stride)) }).collect()
}

fn wrong_array(is_null: bool, n: usize, name: &str) -> Failure {
    match is_null {
        true => Failure::argument(format!("{name} is null, but its length is {n}")),
        false => {
            Failure::argument(format!("{name} is not aligned, or its length {n} is beyond the address space"))
        }
    }
}

/// An array of the caller; null may stand for an empty one.
///
/// # Safety
/// `at` is null or points to `n` values, which outlive the result.
pub(crate) unsafe fn array<'a, T>(at: *const T, n: usize, name: &str) -> Outcome<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    if at.is_null() || !at.is_aligned() || n > most(size_of::<T>()) {
        return Err(wrong_array(at.is_null(), n, name));
    }
    // SAFETY: `at` is aligned and points to `n` values, which are at most `most` of their size.
    Ok(unsafe { slice::from_raw_parts(at, n) })
}

/// A buffer of the caller; null may stand for an empty one.
///
/// # Safety
/// `at` is null or points to `n` values that nobody else uses while the result lives.
pub(crate) unsafe fn buffer<'a, T>(at: *mut T, n: usize, name: &str) -> Outcome<&'a mut [MaybeUninit<T>]> {
    if n == 0 {
        return Ok(&mut []);
    }
    if at.is_null() || !at.is_aligned() || n > most(size_of::<T>()) {
        return Err(wrong_array(at.is_null(), n, name));
    }
    // SAFETY: `at` is aligned and points to memory for `n` values, which may be uninitialised.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast::<MaybeUninit<T>>(), n) })
}

/// A place for one result.
///
/// # Safety
/// `at` is null or points to memory for a value that nobody else uses while the result lives.
pub(crate) unsafe fn place<'a, T>(at: *mut T, name: &str) -> Outcome<&'a mut MaybeUninit<T>> {
    // SAFETY: `at` is null or has one value.
    let places = unsafe { buffer(at, 1, name) }.map_err(|_| Failure::null(name))?;
    places.first_mut().ok_or_else(|| Failure::null(name))
}

/// A text that must be there.
///
/// # Safety
/// `at` is null or a text that ends with a zero byte and outlives the result.
pub(crate) unsafe fn text<'a>(at: *const c_char, name: &str) -> Outcome<&'a str> {
    // SAFETY: `at` is null or a text.
    unsafe { optional_text(at, name) }?.ok_or_else(|| Failure::null(name))
}

/// A text; null means that it is absent.
///
/// # Safety
/// `at` is null or a text that ends with a zero byte and outlives the result.
pub(crate) unsafe fn optional_text<'a>(at: *const c_char, name: &str) -> Outcome<Option<&'a str>> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: `at` is not null, so it is a text that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(at) };
    let wrong = |error| Failure::argument(format!("{name} is not UTF-8: {error}"));
    text.to_str().map(Some).map_err(wrong)
}

/// Texts of an array.
///
/// # Safety
/// `at` is null or points to `n` texts that end with a zero byte and outlive the result.
pub(crate) unsafe fn texts<'a>(at: *const *const c_char, n: usize, name: &str) -> Outcome<Vec<&'a str>> {
    // SAFETY: `at` is null or points to `n` pointers.
    let pointers = unsafe { array(at, n, name) }?;
    // SAFETY: each of `pointers` is null or a text.
    pointers.iter().map(|&text_at| unsafe { text(text_at, name) }).collect()
}

/// A handle that must be there.
///
/// # Safety
/// `at` is null or a live handle that this library made.
pub(crate) unsafe fn handle<'a, T>(at: *const T, name: &str) -> Outcome<&'a T> {
    // SAFETY: `at` is null or a live handle.
    unsafe { at.as_ref() }.ok_or_else(|| Failure::null(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        assert_eq!(guard(|| panic!("at {}", 7)), INGLE_ERROR_PANIC);
        // SAFETY: `last_error` is a text that ends with a zero byte.
        let message = unsafe { CStr::from_ptr(last_error()) };
        assert_eq!(message.to_str(), Ok("a defect of Ingle: at 7"));
    }

    #[test]
    fn messages_with_zero_bytes_are_whole() {
        assert_eq!(guard(|| Err(Failure::argument("a\0b"))), INGLE_ERROR_ARGUMENT);
        // SAFETY: `last_error` is a text that ends with a zero byte.
        assert_eq!(unsafe { CStr::from_ptr(last_error()) }, c"a b");
    }
}
