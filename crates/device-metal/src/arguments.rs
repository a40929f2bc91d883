//! Arguments of kernels: the structs of the headers `kernels/**/arguments.h`,
//! under the same names. `build.rs` translates them, so that host and shader have one definition;
//! their docs are the headers' comments.

use bytemuck::{Pod, Zeroable};

include!(concat!(env!("OUT_DIR"), "/arguments.rs"));

impl PagesArguments {
    /// The arguments for a layer's part of the pages of its group.
    pub fn new(layer_offset: usize, group: usize, page_len: usize, layer: &device::KvLayer) -> Self {
        PagesArguments {
            layer_offset: layer_offset as u32,
            group: group as u32,
            page_len: page_len as u32,
            n_kv_heads: layer.n_kv_heads as u32,
            head_dim: layer.head_dim as u32,
            values_are_keys: u32::from(layer.values_are_keys),
            ..Default::default()
        }
    }
}

/// Name, size, and the fields with their offsets of a struct.
#[cfg(test)]
type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

#[cfg(test)]
mod tests {
    use super::*;

    /// Shaders read them at buffer 0, or in arrays, in vectors of 16 bytes.
    #[test]
    fn sizes_are_whole_vectors() {
        let layouts = layouts();
        assert_eq!(layouts.len(), 23);
        for (name, size, _) in layouts {
            assert!(size.is_multiple_of(16) && size > 0, "{name}: {size} bytes");
        }
    }

    /// The shader compiler lays the structs out as Rust does.
    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn layouts_are_those_of_the_shader_compiler() {
        let mut source = "#include <metal_stdlib>\nusing namespace metal;\n".to_owned();
        for header in ["arguments.h", "linear/arguments.h", "attention/arguments.h", "sampling/arguments.h"] {
            source += &format!("#include \"{header}\"\n");
        }
        for (name, size, fields) in layouts() {
            source += &format!("static_assert(sizeof({name}) == {size}, \"{name}\");\n");
            for (field, offset) in fields {
                source += &format!(
                    "static_assert(__builtin_offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n"
                );
            }
        }
        source += "kernel void nothing(device uint * out [[buffer(0)]]) { out[0] = 0; }\n";
        let options = metal_emulator::Options::new(concat!(env!("OUT_DIR"), "/shaders"));
        let compiler = metal_emulator::Compiler::new(options).unwrap();
        compiler.compile("layouts.metal", &source, crate::kernels::HEADERS).unwrap();
        let wrong = source.replacen("== 32", "== 36", 1);
        let error = compiler.compile("wrong.metal", &wrong, crate::kernels::HEADERS).unwrap_err();
        assert!(error.to_string().contains("static"), "{error}");
    }
}
