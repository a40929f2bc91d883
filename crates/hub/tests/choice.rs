//! The files of a name: entries of the catalog, quantisations of a repository, image encoders,
//! models of other programs.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;

use ingle_hub::{
    Catalog, Error, Found, ModelRef, Options, Stores, fetch, find, list, remove, search_hub, tower_beside,
};

use crate::hub::{blobs, get};
use crate::stand_in::{Course, Hub, REPO, Reply, bytes, cache, commit, sha256};

const PUBLIC: &str = r#"
[[family]]
name = "tiny"
title = "Tiny"
licence = "MIT"
default = "1b"
quant = "Q4_K_M"
sizes = [{ tag = "1b", repo = "org/model", gb = 0.1 }]
"#;

#[test]
fn a_catalog_may_name_several_sources_and_its_hash_counts() {
    let model = bytes(6_000, 27);
    let hub = Hub::start(&[("wrong.gguf", bytes(6_000, 28)), ("right.gguf", model.clone())]);
    let (_folder, cache) = cache();
    let entry = |files: &[&str]| {
        let sources: String = files
            .iter()
            .map(|file| format!("[[model.source]]\nkind = \"hub\"\nrepo = \"{REPO}\"\nfile = \"{file}\"\n"))
            .collect();
        let text = format!(
            "[[model]]\nname = \"toy\"\ntitle = \"Toy\"\nfile = \"toy.gguf\"\nbytes = 6000\nsha256 = \"{}\"\nlicence = \"MIT\"\n{sources}",
            sha256(&model)
        );
        Options { catalog: Some(Catalog::parse(&text).unwrap()), ..hub.options() }
    };
    let error = get("toy", &cache, &entry(&["wrong.gguf"])).unwrap_err();
    assert!(matches!(error, Error::HashMismatch { .. }), "{error}");
    let error = get("toy", &cache, &entry(&["wrong.gguf", "absent.gguf"])).unwrap_err();
    assert!(matches!(&error, Error::NoSource { failures, .. } if failures.len() == 2), "{error}");
    let path = get("Toy", &cache, &entry(&["absent.gguf", "wrong.gguf", "right.gguf"])).unwrap();
    assert!(fs::read(&path).unwrap() == model);
    // The hash never changes, so the second time no request is needed.
    hub.hub.take();
    assert_eq!(get("toy", &cache, &entry(&["right.gguf"])).unwrap(), path);
    assert!(hub.hub.take().is_empty());
}

#[test]
fn a_quantisation_chooses_among_the_files_of_a_repository() {
    let (small, large) = (bytes(20_000, 1), bytes(30_000, 2));
    let hub = Hub::start(&[("m-Q4_K_M.gguf", small.clone()), ("m-Q8_0.gguf", large.clone())]);
    let (_folder, cache) = cache();
    let path = get("hf:org/model:q8_0", &cache, &hub.options()).unwrap();
    assert!(path.ends_with("m-Q8_0.gguf") && fs::read(&path).unwrap() == large);
    let offline = Options { offline: true, ..hub.options() };
    assert_eq!(get("hf:org/model:Q8_0", &cache, &offline).unwrap(), path);
    assert!(matches!(get("hf:org/model:Q4_K_M", &cache, &offline), Err(Error::Offline { .. })));
    let error = get("hf:org/model:Q2_K", &cache, &hub.options()).unwrap_err().to_string();
    assert!(error.contains("m-Q4_K_M.gguf"), "{error}");

    get("hf:org/model:Q4_K_M", &cache, &hub.options()).unwrap();
    let reference = ModelRef::parse("hf:org/model:q8_0").unwrap();
    assert_eq!(find(&reference, &cache).unwrap().unwrap().name, "hf:org/model/m-Q8_0.gguf");
    remove(&reference, &cache).unwrap();
    assert_eq!(blobs(&cache), [sha256(&small)], "only the quantisation that was named goes");
    assert!(find(&reference, &cache).unwrap().is_none());
}

#[test]
fn a_public_model_comes_from_the_hub_with_the_hash_that_the_hub_gives() {
    let model = bytes(20_000, 3);
    let hub = Hub::start(&[("m-Q4_K_M.gguf", model.clone()), ("m-Q8_0.gguf", bytes(9_000, 4))]);
    let options = Options { catalog: Some(Catalog::parse(PUBLIC).unwrap()), ..hub.options() };
    let (_folder, cache) = cache();
    hub.set(|state| state.corrupt = Some(bytes(20_000, 5)));
    assert!(matches!(get("tiny", &cache, &options), Err(Error::HashMismatch { .. })));
    hub.set(|state| state.corrupt = None);
    let path = get("tiny:latest", &cache, &options).unwrap();
    assert!(fs::read(&path).unwrap() == model);
    // A second fetch sends no request.
    hub.hub.take();
    assert_eq!(get("tiny:1b", &cache, &options).unwrap(), path);
    assert_eq!(hub.hub.take(), Vec::<String>::new());
    assert!(get("tiny:1b-q8_0", &cache, &options).unwrap().ends_with("m-Q8_0.gguf"));
}

#[test]
fn a_model_that_sees_comes_with_its_tower() {
    let (model, tower) = (bytes(20_000, 1), bytes(7_000, 2));
    let hub = Hub::start(&[
        ("m-Q4_K_M.gguf", model.clone()),
        ("m-Q8_0.gguf", bytes(30_000, 3)),
        ("BF16/m-BF16.gguf", bytes(40_000, 4)),
        ("mmproj-BF16.gguf", bytes(8_000, 5)),
        ("mmproj-F16.gguf", tower.clone()),
    ]);
    let tower_of = |path: &std::path::Path| fs::read(tower_beside(path)?).ok();
    for reference in ["hf:org/model:Q4_K_M", "hf:org/model/m-Q4_K_M.gguf", "hf:org/model/BF16/m-BF16.gguf"] {
        let (_folder, cache) = cache();
        let mut course = Course::default();
        let path = fetch(&ModelRef::parse(reference).unwrap(), &cache, &hub.options(), &mut course).unwrap();
        assert!(tower_of(&path) == Some(tower.clone()), "{reference}");
        assert_eq!(course.files[0].0, "mmproj-F16.gguf", "{reference}: the tower comes first");
        assert_eq!(course.files.len(), 2, "{reference}: {:?}", course.files);
        assert!(course.notes[0].contains("mmproj-F16.gguf"), "{:?}", course.notes);
        // A second fetch has no notes.
        let mut course = Course::default();
        fetch(&ModelRef::parse(reference).unwrap(), &cache, &hub.options(), &mut course).unwrap();
        assert!(course.files.is_empty() && course.notes.is_empty(), "{course:?}");
    }
    let blind = Options { towers: false, ..hub.options() };
    let (_folder, cache) = cache();
    let path = get("hf:org/model:Q4_K_M", &cache, &blind).unwrap();
    assert!(tower_of(&path).is_none() && blobs(&cache) == [sha256(&model)]);
    // A model that was fetched without its image encoder gets it now.
    assert_eq!(get("hf:org/model:Q4_K_M", &cache, &hub.options()).unwrap(), path);
    assert!(tower_of(&path) == Some(tower.clone()));
    let installed = list(&cache).unwrap();
    assert_eq!((installed.len(), installed[0].bytes), (1, 27_000), "{installed:?}");
    // The image encoder is removed with the last model that uses it.
    get("hf:org/model:Q8_0", &cache, &hub.options()).unwrap();
    let rm = |reference: &str| remove(&ModelRef::parse(reference).unwrap(), &cache).unwrap();
    rm("hf:org/model:Q4_K_M");
    assert!(blobs(&cache).contains(&sha256(&tower)));
    rm("hf:org/model/m-Q8_0.gguf");
    assert!(blobs(&cache).is_empty() && list(&cache).unwrap().is_empty());
}

#[test]
fn a_tower_that_breaks_off_is_resumed_before_the_model_counts_as_fetched() {
    let tower = bytes(200_000, 2);
    let hub = Hub::start(&[("m.gguf", bytes(20_000, 1)), ("mmproj-m.gguf", tower.clone())]);
    hub.set(|state| state.breaks = [100_000].into());
    let (_folder, cache) = cache();
    let once = Options { retries: 0, ..hub.options() };
    assert!(matches!(get("hf:org/model", &cache, &once), Err(Error::Interrupted { .. })));
    assert!(list(&cache).unwrap().is_empty(), "without its tower the model is not there");
    let path = get("hf:org/model", &cache, &once).unwrap();
    assert!(fs::read(tower_beside(&path).unwrap()).unwrap() == tower);
}

#[test]
fn a_hub_without_listings_gives_a_file_that_is_named() {
    let hub = Hub::start(&[("m.gguf", bytes(5_000, 1))]);
    let describe = Reply::new(302, "").with("Location", format!("{}/x", hub.content.url()));
    let describe = describe.with("X-Repo-Commit", commit('a')).with("X-Linked-Size", 5_000);
    let describe = describe.with("X-Linked-Etag", format!("\"{}\"", sha256(&bytes(5_000, 1))));
    hub.set(|state| state.first = [describe, Reply::new(500, "")].into());
    let (_folder, cache) = cache();
    let once = Options { retries: 0, ..hub.options() };
    assert!(get("hf:org/model/m.gguf", &cache, &once).is_ok());
}

#[test]
fn a_model_that_ollama_has_is_used_where_it_is() {
    let hub = Hub::start(&[("m-Q4_K_M.gguf", bytes(20_000, 6))]);
    let (folder, cache) = cache();
    let ollama = folder.path().join("ollama");
    let (library, digest) = (ollama.join("manifests/registry.ollama.ai/library/tiny"), "ab".repeat(32));
    fs::create_dir_all(&library).unwrap();
    fs::create_dir_all(ollama.join("blobs")).unwrap();
    let layer = format!(r#"{{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{digest}"}}"#);
    fs::write(library.join("1b"), format!(r#"{{"layers":[{layer}]}}"#)).unwrap();
    let blob = ollama.join(format!("blobs/sha256-{digest}"));
    fs::write(&blob, "GGUF").unwrap();
    let options = Options {
        catalog: Some(Catalog::parse(PUBLIC).unwrap()),
        stores: Stores { ollama: vec![ollama], lm_studio: vec![] },
        ..hub.options()
    };
    assert_eq!(get("tiny", &cache, &options).unwrap(), blob);
    assert_eq!(get("ollama:tiny:1b", &cache, &options).unwrap(), blob);
    assert_eq!(hub.hub.take(), Vec::<String>::new(), "the hub is not asked");
    let error = remove(&ModelRef::parse("ollama:tiny:1b").unwrap(), &cache).unwrap_err().to_string();
    assert!(error.contains("belongs to Ollama") && blob.exists(), "{error}");
}

#[test]
fn a_search_of_the_hub_gives_valid_repositories() {
    let hub = Hub::start(&[]);
    let found = search_hub("qwen 3", &hub.options()).unwrap();
    assert_eq!(
        found,
        [Found { repo: "org/model".into(), downloads: 7 }, Found { repo: "a/b".into(), downloads: 0 }]
    );
    assert!(hub.hub.take()[0].contains("search=qwen%203&filter=gguf&sort=downloads"));
    let offline = Options { offline: true, ..hub.options() };
    assert!(matches!(search_hub("x", &offline), Err(Error::Offline { .. })));
}
