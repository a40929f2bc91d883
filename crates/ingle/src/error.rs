//! Errors of the library.

use std::path::PathBuf;

use runner::{ErrorKind, RequestError};

use crate::device::DeviceKind;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the library. A variant has the offending value, or the error of a lower crate, whose
/// message it shows unchanged. Messages name options by their fields.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request cannot be answered.
    #[error("{message}")]
    Request {
        /// The kind of the error, for programs.
        kind: RequestErrorKind,
        /// The found and the expected value, in words.
        message: String,
        /// The option that is wrong, under OpenAI's name for it.
        option: Option<String>,
    },
    /// The system could not start a thread.
    #[error("starting a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// A model could not be named or fetched.
    #[error(transparent)]
    Hub(#[from] hub::Error),
    /// A defect of a file.
    #[error(transparent)]
    Format(#[from] weights::Error),
    /// A defect of the model's description in its file.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// An error of the engine, or a model that does not fit in memory.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// An error of the device, or a device that is absent.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// An error of the tokenizer, the chat template or a grammar.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// An error of a transcription.
    #[error(transparent)]
    Speech(#[from] speech::Error),
    /// An adapter cannot be opened.
    #[error("opening the adapter {name}")]
    Adapter {
        /// The adapter's name.
        name: String,
        /// The reason.
        source: Box<weights::Error>,
    },
    /// The file of [`LoadOptions::mmproj`](crate::LoadOptions::mmproj) is not this model's image
    /// encoder.
    #[error("mmproj {}", file.display())]
    Mmproj {
        /// The image encoder.
        file: PathBuf,
        /// The reason.
        source: Box<model::Error>,
    },
    /// [`DeviceOptions::gpus`](crate::device::DeviceOptions::gpus) is set, and the device has no
    /// numbered GPUs.
    #[error("gpus needs device cuda, found another device")]
    GpusOfOtherDevice,
    /// [`DeviceOptions::gpus`](crate::device::DeviceOptions::gpus) names a GPU twice.
    #[error("gpus names GPU {gpu} a second time, at place {place}; expected each GPU once")]
    GpuTwice {
        /// The GPU's index.
        gpu: usize,
        /// Place of the second mention, from 1.
        place: usize,
    },
    /// A split between a GPU and the CPU is wanted, and the device is the CPU.
    #[error("{option} splits a model between a GPU and the CPU; name the GPU with device")]
    NoGpuToSplit {
        /// The field of [`LoadOptions`](crate::LoadOptions).
        option: &'static str,
    },
    /// [`LoadOptions::cpu_moe_layers`](crate::LoadOptions::cpu_moe_layers) is set, and the model
    /// has no experts.
    #[error("cpu_moe_layers needs a mixture of experts, found a model without experts")]
    NoExperts,
    /// The device does not exist on this operating system.
    #[error("{}", .device.wrong_system())]
    WrongSystem {
        /// The device.
        device: DeviceKind,
    },
    /// The device's arithmetic differs from the reference interpreter's.
    #[error("its results differ from the reference interpreter{found}")]
    WrongResults {
        /// The differences, or the file that has them, after a colon or semicolon.
        found: String,
    },
    /// [`DeviceKind::Auto`] found no device.
    #[error("no device runs this model\n  {}", reasons.join("\n  "))]
    NoDevice {
        /// Each device and the reason against it.
        reasons: Vec<String>,
    },
}

/// Why a request cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestErrorKind {
    /// The request is wrong.
    Invalid,
    /// The prompt is longer than the context.
    ContextLength,
    /// The adapter that the request names is not loaded.
    NotFound,
    /// Too many requests wait.
    Overloaded,
    /// The memory is too short.
    Unavailable,
    /// The request took longer than it allows.
    Timeout,
    /// The model or its device failed.
    Failed,
}

impl Error {
    /// An error of the model itself.
    pub(crate) fn failed(message: String) -> Error {
        Error::Request { kind: RequestErrorKind::Failed, message, option: None }
    }
}

impl From<RequestError> for Error {
    fn from(RequestError { kind, message, param, .. }: RequestError) -> Error {
        let kind = match kind {
            ErrorKind::ContextLength => RequestErrorKind::ContextLength,
            ErrorKind::NotFound => RequestErrorKind::NotFound,
            ErrorKind::Overloaded | ErrorKind::RateLimited => RequestErrorKind::Overloaded,
            ErrorKind::Unavailable => RequestErrorKind::Unavailable,
            ErrorKind::Timeout => RequestErrorKind::Timeout,
            ErrorKind::Internal => RequestErrorKind::Failed,
            ErrorKind::Invalid
            | ErrorKind::Unauthorized
            | ErrorKind::Forbidden
            | ErrorKind::MethodNotAllowed
            | ErrorKind::TooLarge
            | ErrorKind::HeadersTooLarge
            | ErrorKind::UnsupportedMediaType => RequestErrorKind::Invalid,
        };
        Error::Request { kind, message, option: param }
    }
}
