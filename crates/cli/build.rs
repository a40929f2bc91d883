//! Passes the commit of the sources to the binary, for `ingle bench --json`. It is `unknown`
//! without git, or if the sources are part of another repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The output of git in the folder of this crate.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let root = |path: &Path| path.canonicalize().ok();
    let ours = root(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let commit = git(&["rev-parse", "--show-toplevel"])
        .filter(|top| ours.is_some() && root(Path::new(top)) == ours)
        .and_then(|_| git(&["rev-parse", "--short=12", "HEAD"]));
    // Both files change with a commit or a checkout. A missing file would rebuild the crate each
    // time.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file]).map(PathBuf::from);
        let path = path.map(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
        if let Some(path) = path.filter(|path| commit.is_some() && path.is_file()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    println!("cargo:rustc-env=INGLE_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}
