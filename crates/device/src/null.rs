//! null
