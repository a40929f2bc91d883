//! Statuses of functions.

/// A result of a function: INGLE_OK, another fact that is no error (positive), or an error
/// (negative). ingle_last_error has the words of an error. Later versions may add errors.
pub type IngleStatus = i32;

/// Success.
pub const INGLE_OK: IngleStatus = 0;
/// Every answer has ended; there is no further event.
pub const INGLE_DONE: IngleStatus = 1;
/// No event came within the time.
pub const INGLE_PENDING: IngleStatus = 2;
/// The answer was cancelled.
pub const INGLE_CANCELLED: IngleStatus = 3;
/// An argument or an option is wrong: a null pointer, text that is not UTF-8, an unknown word, or a
/// request that this model cannot answer.
pub const INGLE_ERROR_ARGUMENT: IngleStatus = -1;
/// A struct_size is wrong, or a struct sets options that this version of the library lacks.
pub const INGLE_ERROR_STRUCT_SIZE: IngleStatus = -2;
/// The caller's buffer is too small.
pub const INGLE_ERROR_BUFFER: IngleStatus = -3;
/// The model or the adapter was not found, or the model could not be fetched.
pub const INGLE_ERROR_NOT_FOUND: IngleStatus = -4;
/// A file of the model is damaged or has an unknown form.
pub const INGLE_ERROR_MODEL: IngleStatus = -5;
/// The prompt is longer than the context.
pub const INGLE_ERROR_CONTEXT: IngleStatus = -6;
/// The memory is too short.
pub const INGLE_ERROR_MEMORY: IngleStatus = -7;
/// The device is absent or failed.
pub const INGLE_ERROR_DEVICE: IngleStatus = -8;
/// The request took longer than it allows.
pub const INGLE_ERROR_TIMEOUT: IngleStatus = -9;
/// Too many requests wait.
pub const INGLE_ERROR_OVERLOADED: IngleStatus = -10;
/// Another thread reads this answer.
pub const INGLE_ERROR_BUSY: IngleStatus = -11;
/// The model failed.
pub const INGLE_ERROR_FAILED: IngleStatus = -12;
/// The library has a defect. Its handles can be freed; other calls on them may fail.
pub const INGLE_ERROR_PANIC: IngleStatus = -13;
