use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A library that replaces NVML, with GPUs that follow a script: see `nvml.c`.
pub struct FakeNvml {
    directory: TempDir,
}

impl FakeNvml {
    /// Builds the library with the compiler that links Rust programs, and installs it.
    pub fn build(script: &str) -> Self {
        let nvml = Self::absent(script);
        nvml.install();
        nvml
    }

    /// Builds the library without installing it.
    pub fn absent(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/support/nvml.c");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-o"])
            .arg(directory.path().join("built"))
            .arg(source);
        assert!(cc.status().unwrap().success());
        let nvml = Self { directory };
        nvml.script(script);
        nvml
    }

    /// Puts the library where programs look for it.
    pub fn install(&self) {
        let path = self.directory.path();
        fs::rename(path.join("built"), path.join("libnvidia-ml.so.1")).unwrap();
    }

    /// Makes a command use this library.
    pub fn replace_in(&self, command: &mut Command) {
        command.env("LD_LIBRARY_PATH", self.directory.path()).env("FAKE_NVML_SCRIPT", self.path());
    }

    /// Replaces the script.
    pub fn script(&self, script: &str) {
        let new = self.directory.path().join("new");
        fs::write(&new, script).unwrap();
        fs::rename(new, self.path()).unwrap();
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("script")
    }
}

/// UUID of a GPU of the library.
pub fn uuid(gpu: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-{gpu:012}")
}

/// UUID of a MIG instance of the library; the first instance is 1.
pub fn mig_uuid(gpu: u32, instance: u32) -> String {
    format!("MIG-00000000-0000-0000-{instance:04}-{gpu:012}")
}
