//! Command buffers: written, committed and waited for.

use super::{AppleBuffer, AppleGpu, ApplePipeline, Object, failed, words};
use crate::gpu::{Dispatch, Encoder, EncoderMode};
use device::{Error, Result};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSError;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandBufferError, MTLCommandEncoder, MTLComputeCommandEncoder,
    MTLComputePipelineState, MTLDispatchType, MTLFence, MTLResource, MTLResourceUsage, MTLSize,
};
use std::ptr::NonNull;

/// Dispatches of one command buffer. Hazards are tracked, and so what a command buffer does waits
/// for the one before where it must.
pub struct AppleEncoder {
    commands: Object<dyn MTLCommandBuffer>,
    mode: EncoderMode,
    fence: Option<Object<dyn MTLFence>>,
    /// None where the next dispatch begins one, or none can be had.
    encoder: Option<Object<dyn MTLComputeCommandEncoder>>,
    /// True if an encoder was refused.
    refused: bool,
    /// Bound buffers and offsets by index; below, the pipeline and the bytes of threadgroup memory.
    bound: [Option<(u16, usize)>; 31],
    pipeline: *const ProtocolObject<dyn MTLComputePipelineState>,
    threadgroup_bytes: u32,
}

impl AppleEncoder {
    /// An encoder of a command buffer.
    pub(super) fn new(
        commands: Object<dyn MTLCommandBuffer>,
        mode: EncoderMode,
        fence: Option<Object<dyn MTLFence>>,
    ) -> AppleEncoder {
        AppleEncoder {
            commands,
            mode,
            fence,
            encoder: None,
            refused: false,
            bound: [None; 31],
            pipeline: std::ptr::null(),
            threadgroup_bytes: 0,
        }
    }

    /// Ends the command buffer and commits it. `None` if the driver refused an encoder.
    pub(super) fn commit(mut self) -> Option<AppleTicket> {
        self.end();
        let commands = self.commands.clone();
        (!self.refused).then(|| {
            commands.commit();
            AppleTicket { commands }
        })
    }

    /// The encoder of the current group.
    fn encoder(&mut self) -> Option<&Object<dyn MTLComputeCommandEncoder>> {
        if self.encoder.is_none() {
            let kind = match self.mode {
                EncoderMode::Serial => MTLDispatchType::Serial,
                EncoderMode::Concurrent | EncoderMode::Fenced => MTLDispatchType::Concurrent,
            };
            self.encoder = self.commands.computeCommandEncoderWithDispatchType(kind);
            self.refused |= self.encoder.is_none();
            (self.bound, self.pipeline, self.threadgroup_bytes) = ([None; 31], std::ptr::null(), 0);
            if let (Some(encoder), Some(fence)) = (&self.encoder, &self.fence) {
                encoder.waitForFence(fence);
            }
        }
        self.encoder.as_ref()
    }

    fn end(&mut self) {
        if let Some(encoder) = self.encoder.take() {
            if let Some(fence) = &self.fence {
                encoder.updateFence(fence);
            }
            encoder.endEncoding();
        }
    }
}

impl Drop for AppleEncoder {
    /// An encoder that is let go of must have ended.
    fn drop(&mut self) {
        self.end();
    }
}

/// A committed command buffer.
pub struct AppleTicket {
    commands: Object<dyn MTLCommandBuffer>,
}

impl AppleTicket {
    /// Waits for the work; returns its seconds on the GPU.
    ///
    /// # Errors
    /// The work failed.
    pub(super) fn wait(&self) -> Result<f64> {
        self.commands.waitUntilCompleted();
        match self.commands.error() {
            None => Ok((self.commands.GPUEndTime() - self.commands.GPUStartTime()).max(0.0)),
            Some(error) => Err(fault(&error)),
        }
    }
}

// SAFETY: the only calls are `waitUntilCompleted` and reads of the state, which Metal allows from
// any thread.
unsafe impl Send for AppleTicket {}

impl Drop for AppleTicket {
    /// Command buffers do not retain their buffers, which must outlive the work.
    fn drop(&mut self) {
        self.commands.waitUntilCompleted();
    }
}

impl Encoder<AppleGpu> for AppleEncoder {
    /// Declares the use of a buffer, even if a residency set keeps it in memory, so that Metal
    /// tracks its hazards.
    fn reach(&mut self, buffer: &AppleBuffer) {
        let Some(encoder) = self.encoder() else { return };
        let resource: &ProtocolObject<dyn MTLResource> = ProtocolObject::from_ref(&*buffer.buffer);
        encoder.useResource_usage(resource, MTLResourceUsage::Read | MTLResourceUsage::Write);
    }

    fn dispatch(&mut self, dispatch: &Dispatch<'_, AppleGpu>, buffers: &[AppleBuffer]) {
        let size = |[width, height, depth]: [u32; 3]| MTLSize {
            width: width as usize,
            height: height as usize,
            depth: depth as usize,
        };
        let Some(encoder) = self.encoder().cloned() else { return };
        // A step has hundreds of dispatches, most with the buffers of the one before.
        let ApplePipeline { state, fitted } = dispatch.pipeline;
        let pipeline = Retained::as_ptr(state);
        if !std::ptr::addr_eq(self.pipeline, pipeline) {
            encoder.setComputePipelineState(state);
            self.pipeline = pipeline;
        }
        for operand in dispatch.operands {
            let Some(buffer) = buffers.get(operand.location.buffer as usize) else { continue };
            let (offset, index) = (dispatch.bytes_of(operand).0 as usize, usize::from(operand.index));
            let now = Some((operand.location.buffer, offset));
            let Some(before) = self.bound.get_mut(index).map(|bound| std::mem::replace(bound, now)) else {
                continue;
            };
            match before {
                _ if before == now => continue,
                Some((same, _)) if same == operand.location.buffer => {
                    // SAFETY: as below; the buffer is bound there.
                    unsafe { encoder.setBufferOffset_atIndex(offset, index) };
                    continue;
                }
                Some(_) | None => {}
            }
            // SAFETY: places lie within their buffers, indices are those that the kernel declares.
            unsafe { encoder.setBuffer_offset_atIndex(Some(&buffer.buffer), offset, index) };
        }
        if !dispatch.arguments.is_empty() {
            let bytes = NonNull::from(dispatch.arguments).cast();
            // SAFETY: the bytes are copied before the call returns.
            unsafe { encoder.setBytes_length_atIndex(bytes, dispatch.arguments.len(), 0) };
        }
        let needed = dispatch.threadgroup_bytes;
        if let Some(length) = crate::gpu::threadgroup_length(self.threadgroup_bytes, needed) {
            self.threadgroup_bytes = length;
            // SAFETY: index 0 is what kernels with threadgroup memory declare.
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(length as usize, 0) };
        }
        let (groups, threads) = fitted.grid(dispatch.threadgroups, dispatch.threads);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(groups), size(threads));
    }

    fn barrier(&mut self) {
        // A serial encoder has one between any two dispatches.
        if let (Some(encoder), true) = (&self.encoder, self.mode != EncoderMode::Serial) {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }
}

/// Error for a failed command buffer, with its meaning and what to do.
fn fault(error: &NSError) -> Error {
    let advice = match MTLCommandBufferError(error.code() as usize) {
        MTLCommandBufferError::OutOfMemory => {
            "memory ran out; close other programs, or use a smaller context (--ctx) or KV type (--kv-type)"
        }
        MTLCommandBufferError::Timeout => {
            "it took longer than the system allows; use a smaller --chunk, and see whether something else uses the GPU"
        }
        MTLCommandBufferError::PageFault | MTLCommandBufferError::InvalidResource => {
            "a kernel left its memory, which is a defect of Ingle: please report it with `ingle metal-selftest`"
        }
        MTLCommandBufferError::AccessRevoked | MTLCommandBufferError::NotPermitted => {
            "the system does not let this process use the GPU; run it in the foreground of a logged-in session"
        }
        MTLCommandBufferError::DeviceRemoved => "the GPU is gone; start again",
        _ => "the step can be tried again; if it fails twice, start again or use --device cpu",
    };
    failed(format!("{} (code {}): {advice}", words(error), error.code()))
}
