//! A group of GPUs that compute a model together. Each GPU is a rank. A kernel of this crate
//! (`kernels/collective.cu`) writes a rank's values into the inboxes of the others; no library is
//! involved.

use crate::CudaDevice;
use crate::driver::{Address, Buffer, Context, NAME, Pinned, connect};
use crate::kernels::Kernels;
use crate::profile::Profile;
use device::{Error, Result};
use std::sync::{Arc, Mutex};

/// `COLLECTIVE_BLOCKS` of arguments.h.
pub const BLOCKS: usize = 64;

/// `COLLECTIVE_BLOCKS_MANY` of arguments.h.
pub const BLOCKS_MANY: usize = 128;

/// Bytes of an inbox for each rank that writes into it: packets, then values of many rows with
/// their flags (collective.cu).
const OF_RANK: [usize; 2] = [BLOCKS * 2 * 512 * 8 * 16, BLOCKS_MANY * (4 * 512 * 4 * 16 + 4)];

/// The buffer into which other ranks write the values for a rank.
enum Inbox {
    /// A buffer in the rank's own GPU memory.
    Gpu(Buffer),
    /// A buffer in host memory, for GPUs that cannot reach each other's memory.
    Host(Pinned),
}

impl Inbox {
    fn address(&self) -> Result<Address> {
        match self {
            Inbox::Gpu(buffer) => Ok(buffer.start()),
            Inbox::Host(pinned) => pinned.address(),
        }
    }
}

/// A GPU's place in a group.
pub struct Rank {
    /// Index among the ranks.
    pub index: usize,
    /// Number of ranks in the group.
    pub n: usize,
    /// True if no other rank uses the same GPU.
    pub is_alone: bool,
    /// Number of chunks that each block of this GPU has exchanged, on the GPU.
    epochs: Buffer,
    /// Address of each rank's inbox, on the GPU.
    addresses: Buffer,
    /// Inboxes of all ranks, kept while this rank's kernels may write into them. Nothing locks the
    /// mutex: it lets threads share memory that is not `Sync`.
    _inboxes: Arc<Mutex<Vec<Inbox>>>,
}

impl Rank {
    /// Address of the counters of exchanged chunks: one per block, then one per block of the
    /// kernels for many rows.
    pub fn epochs(&self) -> Address {
        self.epochs.start()
    }

    /// Address of the table with each rank's inbox.
    pub fn inboxes(&self) -> Address {
        self.addresses.start()
    }
}

/// The memory through which the GPUs of a group exchange values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// GPU memory if every GPU can write into that of the others, otherwise host memory.
    Any,
    /// Host memory, for tests.
    Host,
}

impl CudaDevice {
    /// GPUs with these indices as the ranks of one group, in this order. An index may come twice
    /// (two ranks on one GPU, for tests).
    ///
    /// # Errors
    /// As [`CudaDevice::new`], or the GPUs differ: their kernels would round differently, and
    /// choose different tokens.
    pub fn group(indices: &[usize], reach: Reach) -> Result<Vec<CudaDevice>> {
        let n = indices.len();
        let contexts = indices.iter().map(|index| Context::new(*index)).collect::<Result<Vec<_>>>()?;
        for (index, context) in indices.iter().zip(&contexts) {
            let (first, other) = (contexts[0].facts(), context.facts());
            if (&first.name, first.capability, first.n_processors)
                != (&other.name, other.capability, other.n_processors)
            {
                return Err(Error::Unsupported {
                    device: NAME,
                    what: format!(
                        "a group of GPU {} ({}) and GPU {index} ({})",
                        indices[0], first.name, other.name
                    ),
                    hint: "name GPUs of one kind".to_owned(),
                });
            }
        }
        let connected = reach == Reach::Any && connect(&contexts)?;
        let bytes = n * OF_RANK.iter().sum::<usize>();
        let inbox = |context: &Arc<Context>| {
            Ok(match connected {
                true => Inbox::Gpu(Buffer::new(context, "what GPUs exchange", bytes)?),
                false => Inbox::Host(Pinned::new(context, "what GPUs exchange", bytes)?),
            })
        };
        let inboxes = contexts.iter().map(inbox).collect::<Result<Vec<Inbox>>>()?;
        let addresses = inboxes.iter().map(Inbox::address).collect::<Result<Vec<Address>>>()?;
        let inboxes = Arc::new(Mutex::new(inboxes));
        let of_rank = |(index, context): (usize, &Arc<Context>)| {
            let table = Buffer::new(context, "addresses of what GPUs exchange", n * 8)?;
            context.upload(table.start(), bytemuck::cast_slice(&addresses))?;
            let epochs = Buffer::new(context, "what GPUs have exchanged", (BLOCKS + BLOCKS_MANY) * 4)?;
            context.finish()?;
            let is_alone = indices.iter().filter(|other| **other == indices[index]).count() == 1;
            let rank = Rank { index, n, is_alone, epochs, addresses: table, _inboxes: inboxes.clone() };
            // A persistent kernel cannot run the collectives between products.
            let profile = Profile { persistent: false, ..Profile::new(context.facts()) };
            let kernels = Arc::new(Kernels::new(context.clone()));
            Ok(CudaDevice::sharing(context.clone(), kernels, profile, Some(Arc::new(rank))))
        };
        let devices = contexts.iter().enumerate().map(of_rank).collect::<Result<Vec<_>>>()?;
        Ok(devices)
    }
}
