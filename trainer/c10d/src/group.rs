//! Groups of ranks and their collective operations.

use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::time::Duration;

use tch::Tensor;

use crate::ffi::{self, RawGroup, c_string, check, milliseconds};
use crate::{Error, Result, Store};

/// Maximum number of ranks in a group.
pub const WORLD_SIZE_MAX: usize = 4096;

/// The ranks of one run. All ranks must call the same operations in the same order; each call blocks until
/// all ranks take part.
///
/// With Gloo, a dead peer causes an error within a fraction of a second, and a stalled peer causes one after
/// the timeout. With NCCL, a call also waits until the GPU has done the operation, so that the same holds. After
/// an error, an NCCL group is aborted, and all its later operations fail.
///
/// A group that is dropped leaves at once, whatever the other ranks do. [`Group::close`] leaves after the last
/// operation.
#[derive(Debug)]
pub struct Group {
    raw: NonNull<RawGroup>,
    rank: usize,
    world_size: usize,
    timeout: Duration,
}

// SAFETY: the handle is a reference-counted pointer with an atomic count, and c10d's backends may be called from any
// thread, one call at a time; `Sync` is left out, so calls never overlap.
unsafe impl Send for Group {}

impl Group {
    /// Joins `world_size` ranks over Gloo (CPU tensors). `interface` is this host's address that the other
    /// ranks can reach: `127.0.0.1` if all ranks share one machine.
    ///
    /// # Errors
    /// A rank does not join within `timeout`, or the interface does not exist.
    pub fn gloo(
        store: &Store,
        rank: usize,
        world_size: usize,
        interface: &str,
        timeout: Duration,
    ) -> Result<Self> {
        const OPERATION: &str = "joining the group over gloo";
        let (raw_rank, raw_size) = positions(OPERATION, rank, world_size)?;
        let interface = c_string(OPERATION, interface)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the store's handle is live (the group keeps its own reference), `interface` is NUL-terminated, and
        // `raw` is valid for writing.
        let code = unsafe {
            ffi::evenstep_group_gloo(
                store.as_raw(),
                raw_rank,
                raw_size,
                milliseconds(timeout),
                interface.as_ptr(),
                &mut raw,
            )
        };
        check(OPERATION, code)?;
        Self::adopt(OPERATION, raw, rank, world_size, timeout)
    }

    /// Joins `world_size` ranks over NCCL with the CUDA device of this index (CUDA tensors).
    ///
    /// # Errors
    /// The crate was built without the feature `nccl`, the device does not exist, or a rank does not join
    /// within `timeout`.
    pub fn nccl(
        store: &Store,
        rank: usize,
        world_size: usize,
        device: usize,
        timeout: Duration,
    ) -> Result<Self> {
        const OPERATION: &str = "joining the group over nccl";
        let (raw_rank, raw_size) = positions(OPERATION, rank, world_size)?;
        let device = i32::try_from(device).map_err(|_| Error::Invalid {
            operation: OPERATION,
            reason: format!("device {device}: too large"),
        })?;
        let mut raw = ptr::null_mut();
        // SAFETY: the store's handle is live (the group keeps its own reference) and `raw` is valid for writing.
        let code = unsafe {
            ffi::evenstep_group_nccl(
                store.as_raw(),
                raw_rank,
                raw_size,
                milliseconds(timeout),
                device,
                &mut raw,
            )
        };
        check(OPERATION, code)?;
        Self::adopt(OPERATION, raw, rank, world_size, timeout)
    }

    fn adopt(
        operation: &'static str,
        raw: *mut RawGroup,
        rank: usize,
        world_size: usize,
        timeout: Duration,
    ) -> Result<Self> {
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::Invalid { operation, reason: "c10d returned no group".into() })?;
        Ok(Self { raw, rank, world_size, timeout })
    }

    /// Returns the same group with another timeout of its operations, so that joining and later operations
    /// can have different timeouts.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns this process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Replaces the tensor of every rank by the sum over all ranks, with the same bits everywhere.
    ///
    /// # Errors
    /// A rank has left or stalls for longer than the timeout. The tensor's content is then undefined.
    pub fn all_reduce_sum(&self, tensor: &mut Tensor) -> Result<()> {
        const OPERATION: &str = "all-reduce";
        dense(OPERATION, tensor)?;
        // SAFETY: both handles are live; the tensor is borrowed mutably until the operation has ended.
        let code = unsafe {
            ffi::evenstep_all_reduce_sum(self.raw.as_ptr(), tensor.as_mut_ptr(), milliseconds(self.timeout))
        };
        check(OPERATION, code)
    }

    /// Replaces the tensor of every rank by the tensor of rank `root`.
    ///
    /// # Errors
    /// A rank has left or stalls for longer than the timeout, or `root` is not a rank.
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        const OPERATION: &str = "broadcast";
        dense(OPERATION, tensor)?;
        let (root, _) = positions(OPERATION, root, self.world_size)?;
        // SAFETY: both handles are live; the tensor is borrowed mutably until the operation has ended.
        let code = unsafe {
            ffi::evenstep_broadcast(self.raw.as_ptr(), tensor.as_mut_ptr(), root, milliseconds(self.timeout))
        };
        check(OPERATION, code)
    }

    /// Sends a tensor to one rank, which must receive a tensor of the same size. If ranks both send and
    /// receive, at least one must receive first: sending a large tensor blocks until the other rank receives
    /// it.
    ///
    /// # Errors
    /// That rank has left, does not receive within the timeout, is this rank, or does not exist.
    pub fn send(&self, tensor: &Tensor, to: usize) -> Result<()> {
        const OPERATION: &str = "send";
        dense(OPERATION, tensor)?;
        let to = self.peer(OPERATION, to)?;
        // SAFETY: both handles are live. The tensor is only read, and c10d holds its storage until it has been sent.
        let code = unsafe {
            ffi::evenstep_send(self.raw.as_ptr(), tensor.as_ptr().cast_mut(), to, milliseconds(self.timeout))
        };
        check(OPERATION, code)
    }

    /// Fills the tensor with a tensor that another rank sends.
    ///
    /// # Errors
    /// That rank has left, does not send within the timeout, is this rank, or does not exist. The tensor's
    /// content is then undefined.
    pub fn receive(&self, tensor: &mut Tensor, from: usize) -> Result<()> {
        const OPERATION: &str = "receive";
        dense(OPERATION, tensor)?;
        let from = self.peer(OPERATION, from)?;
        // SAFETY: both handles are live; the tensor is borrowed mutably until the operation has ended.
        let code = unsafe {
            ffi::evenstep_receive(self.raw.as_ptr(), tensor.as_mut_ptr(), from, milliseconds(self.timeout))
        };
        check(OPERATION, code)
    }

    /// Converts the number of another rank for c10d.
    fn peer(&self, operation: &'static str, rank: usize) -> Result<i32> {
        let (raw, _) = positions(operation, rank, self.world_size)?;
        if rank == self.rank {
            let reason = format!("rank {rank} is this rank; the peer must be another rank");
            return Err(Error::Invalid { operation, reason });
        }
        Ok(raw)
    }

    /// Leaves the group after the last operation. All ranks must call it.
    ///
    /// # Errors
    /// NCCL: a rank has left without calling it.
    pub fn close(self) -> Result<()> {
        let group = ManuallyDrop::new(self);
        // SAFETY: the handle is live, and neither `group` nor its destructor uses it after this.
        check("closing the group", unsafe { ffi::evenstep_group_close(group.raw.as_ptr()) })
    }

    /// Waits until every rank has reached the barrier.
    ///
    /// # Errors
    /// A rank has left or does not arrive within the timeout.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: the handle is live.
        let code = unsafe { ffi::evenstep_barrier(self.raw.as_ptr(), milliseconds(self.timeout)) };
        check("barrier", code)
    }
}

impl Drop for Group {
    // An NCCL group is aborted, because its destructor would wait for operations that other ranks never join.
    fn drop(&mut self) {
        // SAFETY: the handle is live and is not used after this.
        unsafe { ffi::evenstep_group_free(self.raw.as_ptr()) }
    }
}

fn positions(operation: &'static str, rank: usize, world_size: usize) -> Result<(i32, i32)> {
    match (i32::try_from(rank), i32::try_from(world_size)) {
        (Ok(raw_rank), Ok(raw_size)) if rank < world_size && world_size <= WORLD_SIZE_MAX => {
            Ok((raw_rank, raw_size))
        }
        _ => {
            let reason = format!(
                "rank {rank} of {world_size}: the rank must be below the world size, which is at most {WORLD_SIZE_MAX}"
            );
            Err(Error::Invalid { operation, reason })
        }
    }
}

fn dense(operation: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.defined() && tensor.is_contiguous() {
        return Ok(());
    }
    Err(Error::Invalid { operation, reason: "the tensor must be defined and contiguous".into() })
}
