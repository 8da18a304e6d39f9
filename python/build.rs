//! What a linker must know of a module that an interpreter loads.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
