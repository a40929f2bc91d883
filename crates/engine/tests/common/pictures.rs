//! Fixtures that have a picture; the command line's tests include this file too.

use std::path::Path;

/// Names of the fixtures.
pub fn fixtures_with_a_picture() -> Vec<String> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
    let folders = std::fs::read_dir(models).unwrap().map(|entry| entry.unwrap());
    let seeing = folders.filter(|folder| folder.path().join("image.png").exists());
    let names: Vec<String> = seeing.map(|folder| folder.file_name().into_string().unwrap()).collect();
    assert!(names.len() >= 8, "{names:?}");
    names
}
