//! CUDA devices on a machine without any: errors, and UUIDs from a driver that the test builds.

use std::path::Path;
use std::process::Command;

use evenstep_c10d::cuda::{self, Priority};

/// Set in the child process of `uuids_are_those_of_the_driver`.
const CHILD: &str = "EVENSTEP_C10D_TEST_DRIVER";

#[test]
fn without_cuda_every_function_returns_an_error() {
    if cuda::load().is_ok() {
        eprintln!("SKIPPED without_cuda_every_function_returns_an_error: libtorch has CUDA");
        return;
    }
    let calls = [
        cuda::load(),
        cuda::set_device(0),
        cuda::own_stream(0, Priority::High),
        cuda::wait_for_stream(0),
        cuda::peak_bytes(0).map(drop),
        cuda::empty_cache(),
    ];
    for call in calls {
        let error = call.unwrap_err().to_string();
        assert!(error.to_lowercase().contains("cuda"), "{error}");
    }
}

/// The driver is loaded by name, so that a process with another library path is required.
#[test]
fn uuids_are_those_of_the_driver() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/cuda.c");
    let built =
        Command::new("c++").args(["-x", "c", "-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cuda::child_with_a_driver", "--ignored"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", folder)
        .status();
    assert!(child.unwrap().success());
}

#[test]
#[ignore = "the process of uuids_are_those_of_the_driver"]
fn child_with_a_driver() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    assert_eq!(cuda::uuid(1).unwrap(), "a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1");
    assert_ne!(cuda::uuid(0).unwrap(), cuda::uuid(1).unwrap());
    let error = cuda::uuid(2).unwrap_err().to_string();
    assert_eq!(error, "reading the UUID of a CUDA device: cuDeviceGet returned 101");
}
