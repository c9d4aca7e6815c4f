use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

/// A library that replaces NVML. It has one GPU, whose readings hang on request.
pub struct FakeNvml {
    directory: TempDir,
}

impl FakeNvml {
    /// Builds the library with the compiler that links Rust programs.
    pub fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/nvml.c");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(directory.path().join("libnvidia-ml.so.1")).arg(source);
        assert!(cc.status().unwrap().success());
        let nvml = Self { directory };
        fs::write(nvml.gate(), "").unwrap();
        nvml
    }

    /// Makes a command use this library.
    pub fn replace_in(&self, command: &mut Command) {
        command.env("LD_LIBRARY_PATH", self.directory.path()).env("FAKE_NVML_GATE", self.gate());
        command.env("FAKE_NVML_LOST", self.directory.path().join("lost"));
    }

    /// Makes the library fail to count the GPUs.
    pub fn lose(&self) {
        fs::write(self.directory.path().join("lost"), "").unwrap();
    }

    /// Makes the next reading hang.
    pub fn hang(&self) {
        let fifo = self.directory.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        fs::rename(fifo, self.gate()).unwrap();
    }

    /// Ends the reading that hangs, and makes later readings return at once.
    pub fn release(&self) {
        let fifo = self.directory.path().join("hung");
        fs::rename(self.gate(), &fifo).unwrap();
        fs::write(self.gate(), "").unwrap();
        // Waits until the reading has opened the FIFO.
        drop(OpenOptions::new().write(true).open(fifo).unwrap());
    }

    fn gate(&self) -> PathBuf {
        self.directory.path().join("gate")
    }
}
