//! Clients of a server may remove files that Ingle fetched, and no files of other programs that
//! share the hub's cache.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::hub::{blobs, get};
use crate::stand_in::{Hub, bytes, cache, commit, sha256};
use ingle_hub::{Cache, Error, ModelRef, list, remove, remove_fetched};

fn drop_fetched(reference: &str, cache: &Cache) -> ingle_hub::Result<u64> {
    remove_fetched(&ModelRef::parse_name(reference).unwrap(), cache)
}

/// Adds a file as Hugging Face's tools do, in the place of another program.
fn put(cache: &Cache, repo: &str, file: &str, content: &[u8]) -> PathBuf {
    let folder = cache.hub().join(format!("models--{}", repo.replace('/', "--")));
    let blob = folder.join("blobs").join(sha256(content));
    let path = folder.join("snapshots").join(commit('a')).join(file);
    for file in [&blob, &path] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
    }
    fs::write(&blob, content).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(Path::new("../../blobs").join(sha256(content)), &path).unwrap();
    #[cfg(not(unix))]
    fs::copy(&blob, &path).unwrap();
    path
}

#[test]
fn what_another_program_fetched_stays() {
    let (_folder, cache) = cache();
    let file = put(&cache, "foo/bar", "m.gguf", &bytes(100, 1));
    for reference in ["hf:foo/bar", "hf:foo/bar/m.gguf", &format!("hf:foo/bar@{}", commit('a'))] {
        let error = drop_fetched(reference, &cache).unwrap_err();
        assert!(matches!(&error, Error::NotFetched { file, .. } if file == "m.gguf"), "{error}");
        assert!(error.to_string().contains("ingle rm hf:foo/bar"), "{error}");
        assert!(file.is_file());
    }
    assert!(matches!(drop_fetched("hf:foo/other", &cache), Err(Error::NotInstalled { .. })));
    // The user of the machine may remove it.
    assert!(remove(&ModelRef::parse("hf:foo/bar").unwrap(), &cache).is_ok());
    assert!(!file.exists());
}

#[test]
fn what_ingle_fetched_goes_and_its_neighbours_stay() {
    let hub = Hub::start(&[("a.gguf", bytes(1_000, 1)), ("b.gguf", bytes(2_000, 2))]);
    let (_folder, cache) = cache();
    let foreign = put(&cache, "org/model", "b.gguf", &bytes(2_000, 2));
    get("hf:org/model/a.gguf", &cache, &hub.options()).unwrap();
    // The file exists, so nothing is fetched, and Ingle does not record the file as its own.
    get("hf:org/model/b.gguf", &cache, &hub.options()).unwrap();
    assert!(matches!(drop_fetched("hf:org/model", &cache), Err(Error::NotFetched { .. })));
    assert!(matches!(drop_fetched("hf:org/model/b.gguf", &cache), Err(Error::NotFetched { .. })));
    assert_eq!(blobs(&cache).len(), 2);
    let partial = cache.hub().join("models--org--model/blobs/elsewhere.incomplete");
    fs::write(&partial, "x").unwrap();
    drop_fetched("hf:org/model/a.gguf", &cache).unwrap();
    assert_eq!(blobs(&cache), [sha256(&bytes(2_000, 2)), "elsewhere.incomplete".to_owned()]);
    assert!(foreign.is_file());

    // A file that Ingle had removed and another program fetched again is that program's.
    let again = put(&cache, "org/model", "a.gguf", &bytes(1_000, 1));
    assert!(matches!(drop_fetched("hf:org/model/a.gguf", &cache), Err(Error::NotFetched { .. })));
    assert!(again.is_file());
}

#[test]
fn files_that_another_program_has_replaced_are_no_longer_ours() {
    let hub = Hub::start(&[("a.gguf", bytes(1_000, 1))]);
    let (_folder, cache) = cache();
    let path = get("hf:org/model/a.gguf", &cache, &hub.options()).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
    fs::File::options().write(true).open(path.canonicalize().unwrap()).unwrap().set_modified(later).unwrap();
    assert!(matches!(drop_fetched("hf:org/model", &cache), Err(Error::NotFetched { .. })));
    assert!(path.is_file());
}

#[test]
fn bytes_that_are_shared_by_commits_are_ours_in_each() {
    let hub = Hub::start(&[("a.gguf", bytes(1_000, 1))]);
    let (_folder, cache) = cache();
    get(&format!("hf:org/model/a.gguf@{}", commit('a')), &cache, &hub.options()).unwrap();
    hub.publish("main", &commit('b'), &[("a.gguf", bytes(1_000, 1))]);
    get("hf:org/model/a.gguf", &cache, &hub.options()).unwrap();
    assert!(drop_fetched("hf:org/model", &cache).unwrap() >= 1_000);
    assert!(list(&cache).unwrap().is_empty() && blobs(&cache).is_empty());
    let record = cache.root().join("fetched");
    assert_eq!(fs::read_dir(record).unwrap().count(), 0, "nothing is recorded of what is gone");
}
