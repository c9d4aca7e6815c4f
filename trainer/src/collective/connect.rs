//! Joining of a group of ranks.

use std::collections::BTreeMap;
use std::process;
use std::time::{Duration, Instant};

use evenstep_c10d::{Error, Group, Store, cuda};
use tch::Device;

use super::deadline::Deadline;
use crate::model::reduce_device;
use crate::progress::Output;

/// Joins a group. `interface` is this machine's address that the other ranks can reach. `within` bounds the
/// joining and every later operation.
///
/// NCCL cannot be interrupted while it joins: if a rank stops in that moment, this process ends with exit code 1.
///
/// # Errors
/// A rank does not join in time. NCCL: two ranks have the same GPU.
pub fn connect(
    interface: &str,
    device: Device,
    store: &Store,
    rank: usize,
    world_size: usize,
    within: Duration,
) -> evenstep_c10d::Result<Group> {
    let Device::Cuda(index) = reduce_device(device) else {
        return Group::gloo(store, rank, world_size, interface, within);
    };
    let gpus = exchange(store, rank, world_size, &cuda::uuid(index)?, within)?;
    one_rank_per_gpu(&gpus)?;
    let output = Output::new(format!("rank {rank}"));
    let _deadline = Deadline::start(within, move || {
        output.say(&format!("joining the group over nccl: another rank did not join within {within:?}"));
        process::exit(1);
    });
    Group::nccl(store, rank, world_size, index, within)
}

/// Tells the other ranks this rank's GPU, and waits for theirs. All ranks are then about to join.
fn exchange(
    store: &Store,
    rank: usize,
    world_size: usize,
    gpu: &str,
    within: Duration,
) -> evenstep_c10d::Result<Vec<String>> {
    let until = Instant::now() + within;
    store.set(&format!("gpu/{rank}"), gpu.as_bytes())?;
    let of_rank = |rank| {
        let left = until.saturating_duration_since(Instant::now());
        Ok(String::from_utf8_lossy(&store.get(&format!("gpu/{rank}"), left)?).into_owned())
    };
    (0..world_size).map(of_rank).collect()
}

/// Checks that no two ranks have the same GPU, which NCCL does not support.
fn one_rank_per_gpu(gpus: &[String]) -> evenstep_c10d::Result<()> {
    let mut ranks = BTreeMap::new();
    for (rank, gpu) in gpus.iter().enumerate() {
        if let Some(other) = ranks.insert(gpu, rank) {
            let reason = format!(
                "ranks {other} and {rank} both have GPU {gpu}; NCCL requires one GPU per rank: start fewer workers, \
                 or build without --features nccl"
            );
            return Err(Error::Invalid { operation: "joining the group over nccl", reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(20);

    #[test]
    fn ranks_that_share_a_gpu_are_rejected_on_all_of_them() {
        let server = Store::host("127.0.0.1", 0, WITHIN).unwrap();
        let port = server.port();
        let ranks = ["a", "b", "a"].into_iter().enumerate().map(|(rank, gpu)| {
            thread::spawn(move || {
                let store = Store::connect("127.0.0.1", port, WITHIN).unwrap();
                one_rank_per_gpu(&exchange(&store, rank, 3, gpu, WITHIN).unwrap()).unwrap_err()
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            let error = rank.join().unwrap().to_string();
            assert!(error.contains("ranks 0 and 2 both have GPU a"), "{error}");
        }
        assert_eq!(one_rank_per_gpu(&["a".to_owned(), "b".to_owned()]), Ok(()));
    }

    #[test]
    fn a_rank_that_never_arrives_is_an_error_within_the_timeout() {
        let store = Store::host("127.0.0.1", 0, WITHIN).unwrap();
        let missing = exchange(&store, 0, 2, "a", Duration::from_millis(100));
        assert!(matches!(missing, Err(Error::C10d { .. })), "{missing:?}");
    }
}
