//! Models from the Hugging Face hub, in Hugging Face's own cache layout, which its tools share.

mod download;
mod fetch;
mod file_info;
mod listing;
mod store;

pub(crate) use fetch::{Hub, cached};
pub(crate) use store::RepoStore;
