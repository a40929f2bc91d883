//! Writes every file of kernels to a folder, with its headers inserted, as Apple's compiler gets
//! it: for `xcrun metal` (.github/workflows/macos.yml).
//!
//!     cargo run -p ingle-device-metal --example sources -- FOLDER

use ingle_device_metal::kernels::{FILES, Kernel};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("expected a folder")?);
    std::fs::create_dir_all(&folder)?;
    for (file, _) in FILES {
        let source = Kernel::of(file).source().ok_or("a file without a source")?;
        std::fs::write(folder.join(file.replace('/', "-")), source)?;
    }
    println!("{} files in {}", FILES.len(), folder.display());
    Ok(())
}
