//! A group of GPUs that compute a model together: each is a rank, and exchanges numbers with the
//! others by our own kernel (`kernels/collective.cu`), which writes into the others' inboxes. There
//! is no library between them.

use crate::CudaDevice;
use crate::driver::{Address, Buffer, Context, NAME, Pinned, connect};
use crate::kernels::Kernels;
use crate::profile::Profile;
use device::{Error, Result};
use std::sync::Arc;

/// `COLLECTIVE_BLOCKS` of arguments.h.
pub const BLOCKS: usize = 64;

/// `COLLECTIVE_BLOCKS_MANY` of arguments.h.
pub const BLOCKS_MANY: usize = 128;

/// Bytes of one rank's packets in an inbox, then of its values of many rows and their flags
/// (collective.cu).
const OF_RANK: [usize; 2] = [BLOCKS * 2 * 512 * 8 * 16, BLOCKS_MANY * (4 * 512 * 4 * 16 + 4)];

/// Where the packets for a rank lie.
enum Inbox {
    /// In its own memory.
    Gpu(Buffer),
    /// In the host's, where GPUs do not reach each other's memory.
    Host(Pinned),
}

// SAFETY: only the addresses are used; the memory is freed when the group goes.
unsafe impl Sync for Inbox {}

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
    /// Which.
    pub index: usize,
    /// Ranks of the group.
    pub n: usize,
    /// Whether no other rank is on the same GPU.
    pub is_alone: bool,
    /// Of this GPU: by block, the chunks that it has exchanged.
    epochs: Buffer,
    /// Of this GPU: by rank, the address of its inbox.
    addresses: Buffer,
    /// Of all ranks: what one rank's kernels write into may not go before them.
    _inboxes: Arc<Vec<Inbox>>,
}

impl Rank {
    /// By block, the chunks that it has exchanged, and those of many rows.
    pub fn epochs(&self) -> Address {
        self.epochs.start()
    }

    /// By rank, the address of its inbox.
    pub fn inboxes(&self) -> Address {
        self.addresses.start()
    }
}

/// How the GPUs of a group reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Each writes into the others' memory, if all can; otherwise through the host's.
    Any,
    /// Through the host's memory, to test it.
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
        let inboxes = Arc::new(contexts.iter().map(inbox).collect::<Result<Vec<Inbox>>>()?);
        let addresses = inboxes.iter().map(Inbox::address).collect::<Result<Vec<Address>>>()?;
        let of_rank = |(index, context): (usize, &Arc<Context>)| {
            let table = Buffer::new(context, "addresses of what GPUs exchange", n * 8)?;
            context.upload(table.start(), bytemuck::cast_slice(&addresses))?;
            let epochs = Buffer::new(context, "what GPUs have exchanged", (BLOCKS + BLOCKS_MANY) * 4)?;
            context.finish()?;
            let is_alone = indices.iter().filter(|other| **other == indices[index]).count() == 1;
            let rank = Rank { index, n, is_alone, epochs, addresses: table, _inboxes: inboxes.clone() };
            // One launch for a whole step has no place for what others must add to it.
            let profile = Profile { persistent: false, ..Profile::new(context.facts()) };
            let kernels = Arc::new(Kernels::new(context.clone()));
            Ok(CudaDevice::sharing(context.clone(), kernels, profile, Some(Arc::new(rank))))
        };
        let devices = contexts.iter().enumerate().map(of_rank).collect::<Result<Vec<_>>>()?;
        Ok(devices)
    }
}
