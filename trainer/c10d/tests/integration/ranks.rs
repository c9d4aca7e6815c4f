//! Real stores and real groups of several ranks, each in a separate thread or process.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use evenstep_c10d::{Error, Group, Store};
use tch::{Device, Kind, Tensor};

const LOOPBACK: &str = "127.0.0.1";
const TIMEOUT: Duration = Duration::from_secs(100);
/// Set in the child process of `a_killed_peer_is_an_error`: the port of the store it joins.
const CHILD_PORT: &str = "EVENSTEP_C10D_TEST_CHILD_PORT";

/// Runs `body` as every rank of a group of `world_size` ranks. Returns the results in rank order.
fn with_ranks<T: Send + 'static>(
    world_size: usize,
    body: impl Fn(&Group) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let server = Store::host(LOOPBACK, 0, TIMEOUT).unwrap();
    let port = server.port();
    let ranks: Vec<_> = (0..world_size)
        .map(|rank| {
            let body = body.clone();
            thread::spawn(move || {
                let store = Store::connect(LOOPBACK, port, TIMEOUT).unwrap();
                let group = Group::gloo(&store.prefix("group").unwrap(), rank, world_size, LOOPBACK, TIMEOUT)
                    .unwrap();
                body(&group)
            })
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn a_sum_is_the_same_bits_on_every_rank_and_keeps_what_only_one_rank_sent() {
    let sums = with_ranks(4, |group| {
        let rank = group.rank();
        let mut tensor = Tensor::zeros([1000], (Kind::Float, Device::Cpu));
        let _ = tensor.narrow(0, 0, 990).fill_(0.1 + rank as f64);
        let _ = tensor.narrow(0, 990 + rank as i64, 1).fill_(1.0 / 3.0);
        let _ = tensor.narrow(0, 994, 1).fill_(if rank == 2 { f64::NAN } else { 0.0 });
        group.all_reduce_sum(&mut tensor).unwrap();
        Vec::<f32>::try_from(tensor).unwrap()
    });
    for other in &sums[1..] {
        assert!(sums[0].iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
    assert!((sums[0][0] - 6.4).abs() < 1e-5);
    assert_eq!(sums[0][990..994], [1.0 / 3.0; 4]);
    assert!(sums[0][994].is_nan());
    assert_eq!(sums[0][995], 0.0);
}

#[test]
fn a_broadcast_sends_the_tensor_of_the_root() {
    let values = with_ranks(3, |group| {
        let mut tensor = Tensor::full([2], group.rank() as f64, (Kind::Double, Device::Cpu));
        group.broadcast(&mut tensor, 2).unwrap();
        group.barrier().unwrap();
        tensor.double_value(&[1])
    });
    assert_eq!(values, [2.0; 3]);
}

#[test]
fn messages_arrive_in_order_and_only_at_their_receiver() {
    let received = with_ranks(3, |group| {
        let mut tensor = Tensor::zeros([1 << 18], (Kind::Float, Device::Cpu));
        let sent = |value: f64| Tensor::full([1 << 18], value, (Kind::Float, Device::Cpu));
        match group.rank() {
            0 => [(1, 1.0), (2, 2.0), (1, 3.0)]
                .iter()
                .for_each(|&(to, value)| group.send(&sent(value), to).unwrap()),
            1 => {
                group.receive(&mut tensor, 0).unwrap();
                let first = tensor.copy();
                group.receive(&mut tensor, 0).unwrap();
                tensor -= first * 10.0;
            }
            _ => group.receive(&mut tensor, 0).unwrap(),
        }
        assert!(matches!(group.send(&tensor, group.rank()), Err(Error::Invalid { .. })));
        assert!(matches!(group.receive(&mut tensor, 3), Err(Error::Invalid { .. })));
        [tensor.min(), tensor.max()].map(|value| value.double_value(&[]))
    });
    assert_eq!(received, [[0.0; 2], [-7.0; 2], [2.0; 2]]);
}

#[test]
fn a_store_keeps_counts_and_prefixes_apart() {
    let server = Store::host(LOOPBACK, 0, TIMEOUT).unwrap();
    let client = Store::connect(LOOPBACK, server.port(), TIMEOUT).unwrap();
    server.set("name", b"value").unwrap();
    assert_eq!(client.get("name", TIMEOUT).unwrap(), b"value");
    assert_eq!((server.add("n", 2).unwrap(), client.add("n", 40).unwrap()), (2, 42));
    let inside = client.prefix("inside").unwrap();
    assert!(client.check("name").unwrap() && !inside.check("name").unwrap());
    let started = Instant::now();
    assert!(matches!(inside.get("name", Duration::from_millis(200)), Err(Error::C10d { .. })));
    assert!(started.elapsed() < TIMEOUT);
    assert!(matches!(
        client.set("name", &[0; evenstep_c10d::VALUE_BYTES_MAX + 1]),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(client.set("na\0me", b""), Err(Error::Invalid { .. })));
}

#[test]
fn concurrent_writes_of_a_key_agree_on_one_value() {
    let server = Store::host(LOOPBACK, 0, TIMEOUT).unwrap();
    let port = server.port();
    let claimants: Vec<_> = (0..4_u8)
        .map(|number| {
            thread::spawn(move || {
                let store = Store::connect(LOOPBACK, port, TIMEOUT).unwrap().prefix("round").unwrap();
                store.set_once("list", &[number; 3]).unwrap()
            })
        })
        .collect();
    let held: Vec<Vec<u8>> = claimants.into_iter().map(|claimant| claimant.join().unwrap()).collect();
    assert!(held.iter().all(|value| *value == held[0]), "{held:?}");
    assert_eq!(server.get("round/list", TIMEOUT).unwrap(), held[0]);
    assert!(matches!(server.set_once("empty", b""), Err(Error::Invalid { .. })));
}

#[test]
fn an_operation_keeps_to_the_timeout_given_after_joining() {
    let server = Store::host(LOOPBACK, 0, TIMEOUT).unwrap();
    let port = server.port();
    let join = move |rank| {
        let store = Store::connect(LOOPBACK, port, TIMEOUT).unwrap();
        Group::gloo(&store, rank, 2, LOOPBACK, TIMEOUT).unwrap()
    };
    let (given_up, waiting) = std::sync::mpsc::channel::<()>();
    let stalled = thread::spawn(move || {
        let _group = join(1);
        waiting.recv().unwrap();
    });
    let group = join(0).with_timeout(Duration::from_millis(300));
    let mut tensor = Tensor::zeros([1], (Kind::Float, Device::Cpu));
    let started = Instant::now();
    assert!(matches!(group.receive(&mut tensor, 1), Err(Error::C10d { .. })));
    assert!(matches!(group.all_reduce_sum(&mut tensor), Err(Error::C10d { .. })));
    assert!(started.elapsed() < TIMEOUT / 4, "{:?}", started.elapsed());
    given_up.send(()).unwrap();
    stalled.join().unwrap();
}

#[test]
fn a_missing_peer_or_store_is_an_error_within_the_timeout() {
    let timeout = Duration::from_secs(2);
    let server = Store::host(LOOPBACK, 0, timeout).unwrap();
    let started = Instant::now();
    assert!(matches!(Group::gloo(&server, 0, 2, LOOPBACK, timeout), Err(Error::C10d { .. })));
    assert!(started.elapsed() < timeout * 15, "{:?}", started.elapsed());

    let free = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap().port();
    let started = Instant::now();
    assert!(matches!(Store::connect(LOOPBACK, free, timeout), Err(Error::C10d { .. })));
    assert!(started.elapsed() < timeout * 25, "{:?}", started.elapsed());
}

#[test]
fn positions_outside_the_group_are_refused() {
    let server = Store::host(LOOPBACK, 0, TIMEOUT).unwrap();
    for (rank, world_size) in [(2, 2), (0, 0), (0, 5000)] {
        assert!(matches!(
            Group::gloo(&server, rank, world_size, LOOPBACK, TIMEOUT),
            Err(Error::Invalid { .. })
        ));
    }
    let group = Group::gloo(&server, 0, 1, LOOPBACK, TIMEOUT).unwrap();
    let grid = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
    assert!(matches!(group.all_reduce_sum(&mut grid.transpose(0, 1)), Err(Error::Invalid { .. })));
    assert!(matches!(group.broadcast(&mut grid.shallow_clone(), 1), Err(Error::Invalid { .. })));
}

/// The peer is another process of this test binary that runs only [`child_of_a_killed_peer`].
#[test]
fn a_killed_peer_is_an_error_and_the_rest_can_rebuild() {
    let server = Store::host(LOOPBACK, 0, TIMEOUT).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ranks::child_of_a_killed_peer", "--ignored"])
        .env(CHILD_PORT, server.port().to_string())
        .spawn()
        .unwrap();
    let group = Group::gloo(&server.prefix("first").unwrap(), 0, 2, LOOPBACK, TIMEOUT).unwrap();
    group.barrier().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let started = Instant::now();
    let mut tensor = Tensor::zeros([1], (Kind::Float, Device::Cpu));
    assert!(matches!(group.all_reduce_sum(&mut tensor), Err(Error::C10d { .. })));
    assert!(started.elapsed() < TIMEOUT / 2, "{:?}", started.elapsed());
    drop(group);
    let alone = Group::gloo(&server.prefix("second").unwrap(), 0, 1, LOOPBACK, TIMEOUT).unwrap();
    let mut tensor = Tensor::ones([1], (Kind::Float, Device::Cpu));
    alone.all_reduce_sum(&mut tensor).unwrap();
    assert_eq!(tensor.double_value(&[0]), 1.0);
    alone.close().unwrap();
}

#[test]
#[ignore = "the other side of a_killed_peer_is_an_error_and_the_rest_can_rebuild"]
fn child_of_a_killed_peer() {
    let Ok(port) = std::env::var(CHILD_PORT) else { return };
    let store = Store::connect(LOOPBACK, port.parse().unwrap(), TIMEOUT).unwrap();
    let group = Group::gloo(&store.prefix("first").unwrap(), 1, 2, LOOPBACK, TIMEOUT).unwrap();
    group.barrier().unwrap();
    loop {
        thread::park();
    }
}
