//! The common path from a plan to a program.
//!
//! 1. [`fusion`] forms the kinds of fused Ops that a device lists; [`fields`] recognises them, and
//!    has the fields that their kernels need.
//! 2. [`passes`] lower the nodes of a fused plan to [`units`], each the work of one GPU dispatch,
//!    by the ordered list of the profile.
//! 3. [`lifetimes`] places every value that some schedule writes in one [`arena`]; [`placed`]
//!    describes how it is read there.
//! 4. The device chooses kernels for each unit and class of rows, and pushes commands into a
//!    [`table`], which derives the barriers from the bytes that they read and write.
//!
//! Devices that compute on the host implement a [`hosted::HostProgram`]: checks of steps, links,
//! [`sampling`] and the chosen [`outputs`] are common code.
//!
//! A device adds its kernels, their argument structs, and the choice between schedules. This crate
//! is pure: it allocates no device memory, and names no device.
#![deny(missing_docs)]

pub mod arena;
pub mod fields;
pub mod fusion;
pub mod hosted;
pub mod lifetimes;
pub mod outputs;
pub mod passes;
pub mod placed;
pub mod sampling;
pub mod table;
pub mod units;
