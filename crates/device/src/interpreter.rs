//! interpreter
