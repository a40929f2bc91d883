//! The file of compiled pipelines, in which the next start finds them.
//!
//! A start only reads the pipelines of earlier ones. Its own are added to a copy, which replaces
//! the file while the GPU is idle. So no thread waits for the file, none reads an archive that
//! another changes, and processes share the file.

use super::{Object, State, url_of};
use crate::gpu::unsaved::Unsaved;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSArray;
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLDevice, MTLPipelineOption,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The description of a pipeline that is not in the file.
struct Described(Retained<MTLComputePipelineDescriptor>);

// SAFETY: its owner gives up the descriptor when it is added, and one thread at a time reads it.
unsafe impl Send for Described {}

/// The archive of a GPU.
pub(super) struct Archive {
    device: Object<dyn MTLDevice>,
    file: PathBuf,
    /// Pipelines of earlier starts. It is never changed.
    earlier: Option<Object<dyn MTLBinaryArchive>>,
    unsaved: Unsaved<Described>,
    /// True after [`Archive::stop`].
    is_stopped: AtomicBool,
}

// SAFETY: the device is Send and Sync by its declaration; `earlier` is only read, and `unsaved` is
// guarded by its mutexes.
unsafe impl Send for Archive {}
// SAFETY: as above.
unsafe impl Sync for Archive {}

/// The archive in a file, or an empty one.
fn open(device: &ProtocolObject<dyn MTLDevice>, file: Option<&Path>) -> Option<Object<dyn MTLBinaryArchive>> {
    let descriptor = MTLBinaryArchiveDescriptor::new();
    descriptor.setUrl(file.map(url_of).as_deref());
    device.newBinaryArchiveWithDescriptor_error(&descriptor).ok()
}

impl Archive {
    /// The archive in a file. A file that cannot be read is as good as none.
    pub(super) fn new(device: &Object<dyn MTLDevice>, file: PathBuf) -> Archive {
        let earlier = file.exists().then(|| open(device, Some(&file))).flatten();
        Archive {
            device: device.clone(),
            file,
            earlier,
            unsaved: Unsaved::default(),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// A pipeline of an earlier start.
    pub(super) fn find(&self, descriptor: &MTLComputePipelineDescriptor) -> Option<State> {
        let earlier = self.earlier.as_ref()?;
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&**earlier])));
        let found = self.device.newComputePipelineStateWithDescriptor_options_reflection_error(
            descriptor,
            MTLPipelineOption::FailOnBinaryArchiveMiss,
            None,
        );
        descriptor.setBinaryArchives(None);
        found.ok()
    }

    /// One more pipeline to save.
    pub(super) fn add(&self, descriptor: Retained<MTLComputePipelineDescriptor>) {
        self.unsaved.add(Described(descriptor));
    }

    /// True if there are new pipelines, and none was added for this long.
    pub(super) fn is_settled(&self, quiet: Duration) -> bool {
        self.unsaved.is_settled(quiet)
    }

    /// Ends a [`Self::save`] of another thread after the pipeline that it compiles now. The file
    /// stays as it was.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.unsaved.wait();
    }

    /// Saves the pipelines of this start, if there are new ones. Metal compiles them again for the
    /// archive, so that this is work for an idle GPU. A failure only costs the next start its time.
    pub(super) fn save(&self) {
        self.unsaved.save(&self.file, |described, file| {
            autoreleasepool(|_| {
                // The file may be another process's, written since this one started.
                let copy = self.file.exists().then(|| open(&self.device, Some(&self.file))).flatten();
                let Some(copy) = copy.or_else(|| open(&self.device, None)) else { return false };
                let mut n_added = 0;
                for Described(descriptor) in described {
                    if self.is_stopped.load(Ordering::Relaxed) {
                        return false;
                    }
                    let added = copy.addComputePipelineFunctionsWithDescriptor_error(descriptor);
                    n_added += usize::from(added.is_ok());
                }
                n_added > 0 && copy.serializeToURL_error(&url_of(file)).is_ok()
            })
        });
    }
}
