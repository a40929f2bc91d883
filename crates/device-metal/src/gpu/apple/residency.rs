//! Memory that the system keeps for the GPU.

use super::{AppleBuffer, AppleGpu, Object};
use crate::gpu::Residency;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLCommandQueue, MTLResidencySet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A residency set.
#[derive(Clone)]
struct Set(Object<dyn MTLResidencySet>);

// SAFETY: its methods may be called by any thread, and `Sets` calls them under its lock.
unsafe impl Send for Set {}

/// The residency sets that are alive. One thread at a time changes or requests them.
#[derive(Clone, Default)]
pub(super) struct Sets(Arc<Mutex<Vec<Set>>>);

impl Sets {
    fn lock(&self) -> MutexGuard<'_, Vec<Set>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests all of them again.
    pub(super) fn request(&self) {
        self.lock().iter().for_each(|Set(set)| set.requestResidency());
    }

    /// Keeps buffers in memory by a set of their own, if there is one.
    pub(super) fn reside(
        &self,
        set: Option<Object<dyn MTLResidencySet>>,
        queue: &Object<dyn MTLCommandQueue>,
        buffers: &[AppleBuffer],
    ) -> AppleResidency {
        if let Some(set) = &set {
            let mut sets = self.lock();
            for buffer in buffers {
                set.addAllocation(ProtocolObject::from_ref(&*buffer.buffer));
            }
            set.commit();
            set.requestResidency();
            queue.addResidencySet(set);
            sets.push(Set(set.clone()));
        }
        AppleResidency { set: set.map(|set| (Set(set), queue.clone())), sets: self.clone() }
    }
}

/// Buffers that the system keeps in memory, until it is dropped.
pub struct AppleResidency {
    set: Option<(Set, Object<dyn MTLCommandQueue>)>,
    sets: Sets,
}

impl Drop for AppleResidency {
    fn drop(&mut self) {
        if let Some((Set(set), queue)) = &self.set {
            let mut sets = self.sets.lock();
            sets.retain(|Set(other)| !std::ptr::addr_eq(Retained::as_ptr(other), Retained::as_ptr(set)));
            queue.removeResidencySet(set);
            set.endResidency();
        }
    }
}

impl Residency<AppleGpu> for AppleResidency {
    fn add(&mut self, buffer: &AppleBuffer) {
        if let Some((Set(set), _)) = &self.set {
            let _sets = self.sets.lock();
            set.addAllocation(ProtocolObject::from_ref(&*buffer.buffer));
            set.commit();
            set.requestResidency();
        }
    }

    fn remove(&mut self, buffer: &AppleBuffer) {
        if let Some((Set(set), _)) = &self.set {
            let _sets = self.sets.lock();
            set.removeAllocation(ProtocolObject::from_ref(&*buffer.buffer));
            set.commit();
        }
    }
}
