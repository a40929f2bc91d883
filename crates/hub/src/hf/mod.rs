//! Models from the Hugging Face hub, kept in Hugging Face's own cache layout so that its tools
//! share them.

mod choose;
mod download;
mod fetch;
mod listing;
mod store;

pub(crate) use choose::{Want, choose_file, choose_named, models_of};
pub(crate) use fetch::{Hub, cached};
pub(crate) use store::{RepoStore, files_in, join, make_folder_of, replace};
