//! Compiles the shim against the headers of the libtorch that torch-sys found, and links it with that
//! library.

use std::env;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lib = PathBuf::from(env::var("DEP_TCH_LIBTORCH_LIB")?);
    let root = lib.parent().ok_or("libtorch's lib folder has no parent")?;
    let include = root.join("include");
    println!("cargo::metadata=libtorch_lib={}", lib.display());
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-env-changed=CLIPPY_ARGS");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());

    let nccl = env::var_os("CARGO_FEATURE_NCCL").is_some();
    // `cargo clippy` runs this script a second time and links nothing. With NCCL, no other build compiles the shim on a machine without a GPU.
    if env::var_os("CLIPPY_ARGS").is_some() && !nccl {
        return Ok(());
    }
    let mut shim = cc::Build::new();
    shim.cpp(true).std("c++20").pic(true).warnings(false).define("USE_C10D_GLOO", None).include("shim/gloo");
    let mut system_includes = vec![include.clone(), include.join("torch/csrc/api/include")];
    if nccl {
        // Layout of pip's packages: <site>/torch next to <site>/nvidia.
        let nvidia = root.join("../nvidia");
        let headers = [nvidia.join("cu13/include"), nvidia.join("nccl/include")];
        let needed = [headers[0].join("crt/host_config.h"), headers[1].join("nccl.h")];
        if let Some(missing) = needed.iter().find(|header| !header.exists()) {
            let missing = missing.display();
            return Err(format!("feature nccl: {missing} is missing; run scripts/libtorch --cuda").into());
        }
        system_includes.extend(headers);
        shim.define("USE_C10D_NCCL", None).define("EVENSTEP_NCCL", None).include("shim/cuda").opt_level(1);
    }
    for folder in system_includes {
        shim.flag("-isystem").flag(folder.display().to_string());
    }
    shim.files(["shim/shim.cpp", "shim/cuda.cpp"]).try_compile("evenstep_c10d_shim")?;
    Ok(())
}
