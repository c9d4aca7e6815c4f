//! Lets the binary and the tests find libtorch where torch-sys found it: link arguments do not reach dependents.

fn main() {
    if let Ok(lib) = std::env::var("DEP_EVENSTEP_C10D_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
