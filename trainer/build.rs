//! Adds libtorch's folder, found by torch-sys, to the run path of the binary and the tests: link arguments of
//! a dependency do not reach its dependents.

fn main() {
    if let Ok(lib) = std::env::var("DEP_EVENSTEP_C10D_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
