//! Adds the libtorch folder that torch-sys found to the rpath of the binary and the tests. Link arguments of
//! a dependency do not apply to its dependents.

fn main() {
    if let Ok(lib) = std::env::var("DEP_EVENSTEP_C10D_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
