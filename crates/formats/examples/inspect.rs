//! Prints the content of a weight file or folder: `cargo run -p ingle-formats --example inspect --
//! PATH`.

use std::collections::BTreeMap;
use std::time::Instant;
use weights::{Access, Array, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: inspect PATH")?;
    let start = Instant::now();
    let checkpoint = formats::open(path.as_ref(), Access::Map)?;
    let elapsed = start.elapsed();
    for (key, value) in checkpoint.metadata.iter() {
        match value {
            Value::Array(array @ Array::Str { .. }) => {
                let first: Vec<_> = (0..array.len().min(3))
                    .filter_map(|i| array.str_bytes(i))
                    .map(String::from_utf8_lossy)
                    .collect();
                println!("{key}: {} strings {first:?}", array.len());
            }
            Value::Array(array) => println!("{key}: {} items", array.len()),
            Value::Str(text) if text.len() > 80 => println!("{key}: text of {} bytes", text.len()),
            other => println!("{key}: {other:?}"),
        }
    }
    let mut types: BTreeMap<_, (usize, usize)> = BTreeMap::new();
    for tensor in &checkpoint.tensors {
        let entry = types.entry(tensor.block).or_default();
        *entry = (entry.0 + 1, entry.1 + tensor.data.len());
    }
    for (block, (n, n_bytes)) in types {
        println!("{n} tensors of {block}, {n_bytes} bytes");
    }
    println!("{}, {} bytes, opened in {elapsed:?}", checkpoint.format, checkpoint.file_bytes);
    Ok(())
}
