//! What devices share on the way from a plan to a program.
//!
//! 1. [`fusion`] applies the rules of a device; [`lower`] says what a fused Op means to a kernel.
//! 2. [`passes`] turn the nodes of a fused plan into [`units`], what one dispatch of a GPU can do, through the
//!    ordered list of the profile.
//! 3. [`lifetimes`] gives every value that some schedule writes a place in one [`arena`]; [`placed`] is how it is read there.
//! 4. The device chooses kernels for each unit and class of rows, and pushes commands into a [`table`],
//!    which derives the barriers from the bytes that they read and write.
//!
//! Devices that compute on the host are a [`hosted::HostProgram`]: checks of steps, links, [`sampling`] and the
//! [`outputs`] chosen are then the same for all.
//!
//! A device brings its kernels, their argument structs, and the choice between schedules. Everything
//! here is pure: it takes no memory of a device, and names none.
#![deny(missing_docs)]

pub mod arena;
pub mod fusion;
pub mod hosted;
pub mod lifetimes;
pub mod lower;
pub mod outputs;
pub mod passes;
pub mod placed;
pub mod sampling;
pub mod table;
pub mod units;
