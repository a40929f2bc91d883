//! Fetches from a local stand-in for the hub: redirects, tokens, ranges, revisions, errors, and the
//! layout of the cache.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;

use crate::stand_in;
use crate::stand_in::{Course, Hub, REPO, Reply, Server, bytes, cache, commit, options, sha256};
use ingle_hub::{Cache, Error, ModelRef, Options, Silent, fetch, list, remove};

pub(crate) fn get(
    reference: &str,
    cache: &Cache,
    options: &Options,
) -> ingle_hub::Result<std::path::PathBuf> {
    fetch(&ModelRef::parse(reference).unwrap(), cache, options, &mut Silent)
}

/// Names of the files in `blobs/`.
pub(crate) fn blobs(cache: &Cache) -> Vec<String> {
    let folder = cache.hub().join("models--org--model/blobs");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_gguf_comes_through_a_redirect_and_the_token_stays_with_the_hub() {
    let model = bytes(300_001, 1);
    let hub = Hub::start(&[("q/m.gguf", model.clone())]);
    let (_folder, cache) = cache();
    let mut course = Course::default();
    let path = fetch(&ModelRef::parse("hf:org/model/q/m.gguf").unwrap(), &cache, &hub.options(), &mut course)
        .unwrap();

    assert!(fs::read(&path).unwrap() == model);
    let repo = cache.hub().join("models--org--model");
    assert_eq!(path, repo.join("snapshots").join(commit('a')).join("q").join("m.gguf"));
    assert_eq!(blobs(&cache), [sha256(&model)]);
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), commit('a'));
    #[cfg(unix)]
    assert_eq!(fs::read_link(&path).unwrap(), std::path::Path::new("../../../blobs").join(sha256(&model)));

    let hub_requests = hub.hub.requests();
    assert!(hub_requests.iter().all(|request| request.headers["authorization"] == "Bearer hf_secret"));
    assert!(!hub_requests.is_empty());
    let content_requests = hub.content.requests();
    assert_eq!(content_requests.len(), 1, "HEAD stops at the hub's description, GET goes through");
    assert!(content_requests.iter().all(|request| !request.headers.contains_key("authorization")));
    assert_eq!(course.files, [("q/m.gguf".to_string(), Some(300_001), 300_001, true)]);
}

#[test]
fn a_broken_download_is_resumed() {
    let model = bytes(500_000, 2);
    let hub = Hub::start(&[("m.gguf", model.clone())]);
    hub.set(|state| state.breaks = [100_000, 50_001].into());
    let (_folder, cache) = cache();
    let mut course = Course::default();
    let path =
        fetch(&ModelRef::parse("hf:org/model/m.gguf").unwrap(), &cache, &hub.options(), &mut course).unwrap();
    assert!(fs::read(path).unwrap() == model);
    let ranges: Vec<_> =
        hub.content.requests().iter().map(|request| request.headers.get("range").cloned()).collect();
    assert_eq!(ranges, [None, Some("bytes=100000-".into()), Some("bytes=150001-".into())]);
    assert_eq!(course.files, [("m.gguf".to_string(), Some(500_000), 500_000, true)]);
    assert_eq!(course.notes.len(), 2, "{:?}", course.notes);
}

#[test]
fn the_next_run_resumes_the_download() {
    let model = bytes(400_000, 3);
    let hub = Hub::start(&[("m.gguf", model.clone())]);
    hub.set(|state| state.breaks = [123_457].into());
    let (_folder, cache) = cache();
    let once = Options { retries: 0, ..hub.options() };
    match get("hf:org/model/m.gguf", &cache, &once).unwrap_err() {
        Error::Interrupted { found, expected, .. } => assert_eq!((found, expected), (123_457, Some(400_000))),
        other => panic!("{other}"),
    }
    assert_eq!(blobs(&cache), [format!("{}.incomplete", sha256(&model))]);
    assert!(list(&cache).unwrap().is_empty(), "half a model is none");
    let path = get("hf:org/model/m.gguf", &cache, &once).unwrap();
    assert!(fs::read(path).unwrap() == model);
    assert_eq!(hub.content.requests()[1].headers["range"], "bytes=123457-");
    assert_eq!(blobs(&cache), [sha256(&model)]);
}

#[test]
fn a_server_without_ranges_sends_everything_again() {
    let model = bytes(90_000, 4);
    let hub = Hub::start(&[("m.gguf", model.clone())]);
    hub.set(|state| (state.breaks, state.no_ranges) = ([1000].into(), true));
    let (_folder, cache) = cache();
    let mut course = Course::default();
    let path = fetch(&ModelRef::parse("hf:org/model").unwrap(), &cache, &hub.options(), &mut course).unwrap();
    assert!(fs::read(path).unwrap() == model);
    let counts: Vec<_> = course.files.iter().map(|file| (file.2, file.3)).collect();
    assert_eq!(counts, [(1000, false), (90_000, true)], "the count begins again");
}

#[test]
fn partial_files_that_are_too_long_or_wrong_are_discarded() {
    let model = bytes(50_000, 5);
    let hub = Hub::start(&[("m.gguf", model.clone())]);
    let (_folder, cache) = cache();
    let folder = cache.hub().join("models--org--model/blobs");
    fs::create_dir_all(&folder).unwrap();
    let leftover = folder.join(format!("{}.incomplete", sha256(&model)));
    fs::write(&leftover, bytes(60_000, 6)).unwrap();
    let path = get("hf:org/model", &cache, &hub.options()).unwrap();
    assert!(fs::read(&path).unwrap() == model);

    // The hash reveals a partial file with wrong bytes, and the next try starts over.
    remove(&ModelRef::parse("hf:org/model").unwrap(), &cache).unwrap();
    fs::create_dir_all(&folder).unwrap();
    fs::write(&leftover, bytes(10_000, 6)).unwrap();
    assert!(matches!(get("hf:org/model", &cache, &hub.options()), Err(Error::HashMismatch { .. })));
    assert!(get("hf:org/model", &cache, &hub.options()).is_ok());
}

#[test]
fn wrong_bytes_are_removed_and_the_error_shows_both_hashes() {
    let model = bytes(20_000, 7);
    let hub = Hub::start(&[("m.gguf", model.clone())]);
    let wrong = bytes(20_000, 8);
    hub.set(|state| state.corrupt = Some(wrong.clone()));
    let (_folder, cache) = cache();
    let error = get("hf:org/model/m.gguf", &cache, &hub.options()).unwrap_err();
    match &error {
        Error::HashMismatch { found, expected, .. } => {
            assert_eq!((found, expected), (&sha256(&wrong), &sha256(&model)))
        }
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains(&sha256(&wrong)));
    assert!(blobs(&cache).is_empty(), "{:?}", blobs(&cache));

    // More bytes than the stated length are an error.
    hub.set(|state| state.corrupt = Some(bytes(30_000, 8)));
    assert!(matches!(
        get("hf:org/model/m.gguf", &cache, &hub.options()),
        Err(Error::SizeMismatch { found: 30_000, expected: 20_000, .. })
    ));
    assert!(blobs(&cache).is_empty());
}

#[test]
fn when_a_branch_moves_on_the_new_file_is_fetched_whole() {
    let (old, new) = (bytes(70_000, 9), bytes(80_000, 10));
    let hub = Hub::start(&[("m.gguf", old.clone())]);
    hub.set(|state| state.breaks = [30_000].into());
    let (_folder, cache) = cache();
    let once = Options { retries: 0, ..hub.options() };
    assert!(get("hf:org/model/m.gguf", &cache, &once).is_err());
    hub.publish("main", &commit('b'), &[("m.gguf", new.clone())]);
    let path = get("hf:org/model/m.gguf", &cache, &once).unwrap();
    assert!(fs::read(path).unwrap() == new);
    assert!(
        !hub.content.requests()[1].headers.contains_key("range"),
        "the old beginning is not the new one's"
    );
    // The old commit can still be fetched by name, resuming its own partial file.
    let path = get(&format!("hf:org/model/m.gguf@{}", commit('a')), &cache, &once).unwrap();
    assert!(fs::read(path).unwrap() == old);
    assert_eq!(hub.content.requests()[2].headers["range"], "bytes=30000-");
}

#[test]
fn small_files_are_resumed_only_when_unchanged() {
    let tokenizer = bytes(40_000, 11);
    let hub = Hub::start(&[("tokenizer.json", tokenizer.clone())]);
    let (_folder, cache) = cache();
    let folder = cache.hub().join("models--org--model/blobs");
    fs::create_dir_all(&folder).unwrap();
    let etag = sha256(&tokenizer)[..40].to_string();
    fs::write(folder.join(format!("{etag}.incomplete")), &tokenizer[..12_345]).unwrap();
    let path = get("hf:org/model/tokenizer.json", &cache, &hub.options()).unwrap();
    assert!(fs::read(path).unwrap() == tokenizer);
    let request = hub.hub.requests().pop().unwrap();
    assert_eq!(request.headers["range"], "bytes=12345-");
    assert_eq!(request.headers["if-range"], format!("\"{etag}\""));
}

#[test]
fn refusals_say_what_to_do() {
    let hub = Hub::start(&[("m.gguf", bytes(10, 1)), ("n.gguf", bytes(11, 1))]);
    let (_folder, cache) = cache();
    let with = hub.options();
    let without = Options { token: None, ..hub.options() };
    let say = |reference: &str, options: &Options, first: Option<Reply>| {
        hub.set(|state| state.first = first.into_iter().collect());
        get(reference, &cache, options).unwrap_err().to_string()
    };
    let refused = |status: u16, code: &str| Some(Reply::new(status, "").with("X-Error-Code", code));

    let text = say("hf:org/model/m.gguf", &without, refused(401, "GatedRepo"));
    assert!(text.contains(&format!("{}/{REPO}", hub.hub.url())) && text.contains("HF_TOKEN"), "{text}");
    let text = say("hf:org/model", &with, refused(403, "GatedRepo"));
    assert!(text.contains("gated") && text.contains("try again with a token of that account"), "{text}");
    let text = say("hf:org/model", &without, Some(Reply::new(401, "")));
    assert!(text.contains("private") && text.contains("set a token"), "{text}");
    let text = say("hf:org/model", &with, Some(Reply::new(403, "")));
    assert!(text.contains("check the token's rights"), "{text}");
    let text = say("hf:org/model/x.gguf", &with, None);
    assert!(text.contains("file x.gguf in org/model at main") && text.contains("m.gguf, n.gguf"), "{text}");
    let text = say("hf:org/model/m.gguf@v9", &with, None);
    assert!(text.contains("revision v9 of org/model"), "{text}");
    let text = say("hf:org/other", &with, None);
    assert!(text.contains("no repository org/other"), "{text}");
    let text =
        say("hf:org/model/m.gguf", &with, Some(Reply::new(418, "").with("X-Error-Message", "a teapot")));
    assert!(text.contains("418: a teapot"), "{text}");
    assert!(!blobs(&cache).iter().any(|name| !name.is_empty()), "nothing was fetched");
}

#[test]
fn several_models_are_listed_and_none_is_fetched() {
    let hub =
        Hub::start(&[("a.Q4_0.gguf", bytes(9, 1)), ("b.Q8_0.gguf", bytes(9, 2)), ("README.md", vec![])]);
    let (_folder, cache) = cache();
    let text = get("hf:org/model", &cache, &hub.options()).unwrap_err().to_string();
    assert!(text.contains("hf:org/model/a.Q4_0.gguf") && text.contains("hf:org/model/b.Q8_0.gguf"), "{text}");
    assert!(hub.content.requests().is_empty());
}

#[test]
fn without_network_the_cache_is_used() {
    let model = bytes(5_000, 12);
    let hub = Hub::start(&[("m.gguf", model.clone())]);
    let (_folder, cache) = cache();
    let options = hub.options();
    let offline = Options { offline: true, ..hub.options() };
    assert!(matches!(get("hf:org/model/m.gguf", &cache, &offline), Err(Error::Offline { .. })));
    let path = get("hf:org/model/m.gguf", &cache, &options).unwrap();
    hub.hub.take();
    for reference in ["hf:org/model/m.gguf", "hf:org/model", "hf:org/model@main"] {
        assert_eq!(get(reference, &cache, &offline).unwrap(), path, "{reference}");
    }
    assert!(hub.hub.requests().is_empty(), "offline means offline");
    // If the hub fails, the cached copy is used.
    hub.set(|state| state.first = [Reply::new(503, "")].into());
    assert_eq!(get("hf:org/model/m.gguf", &cache, &options).unwrap(), path);
    drop(hub);
    let mut course = Course::default();
    assert_eq!(
        fetch(&ModelRef::parse("hf:org/model").unwrap(), &cache, &options, &mut course).unwrap(),
        path
    );
    assert!(course.notes[0].contains("using the copy"), "{:?}", course.notes);
    assert!(matches!(get("hf:org/model/n.gguf", &cache, &options), Err(Error::Unreachable { .. })));
}

#[test]
fn a_pinned_commit_is_requested_once() {
    let (first, second) = (bytes(4_000, 13), bytes(4_100, 14));
    let hub = Hub::start(&[("m.gguf", first.clone())]);
    hub.publish("refs/pr/1", &commit('b'), &[("m.gguf", second.clone())]);
    let (_folder, cache) = cache();
    let pinned = format!("hf:org/model/m.gguf@{}", commit('a'));
    assert!(fs::read(get(&pinned, &cache, &hub.options()).unwrap()).unwrap() == first);
    hub.hub.take();
    assert!(fs::read(get(&pinned, &cache, &hub.options()).unwrap()).unwrap() == first);
    assert!(hub.hub.take().is_empty(), "a commit never changes");
    let by_name = get("hf:org/model/m.gguf@refs/pr/1", &cache, &hub.options()).unwrap();
    assert!(fs::read(by_name).unwrap() == second);
    assert_eq!(hub.hub.take()[0], "HEAD /org/model/resolve/refs%2Fpr%2F1/m.gguf");
}

#[test]
fn a_split_gguf_is_fetched_whole() {
    let parts = [bytes(3_000, 15), bytes(2_000, 16), bytes(1_001, 17)];
    let names = ["q/m-00001-of-00003.gguf", "q/m-00002-of-00003.gguf", "q/m-00003-of-00003.gguf"];
    let files: Vec<_> = names.iter().copied().zip(parts.clone()).collect();
    let hub = Hub::start(&files);
    for reference in ["hf:org/model", "hf:org/model/q/m-00002-of-00003.gguf"] {
        let (_folder, cache) = cache();
        let path = get(reference, &cache, &hub.options()).unwrap();
        assert!(path.ends_with(names[0]), "{}", path.display());
        for (name, part) in names.iter().zip(&parts) {
            assert!(&fs::read(path.with_file_name(&name[2..])).unwrap() == part);
        }
        let installed = list(&cache).unwrap();
        assert_eq!((installed.len(), installed[0].bytes), (1, 6_001), "a split model is one model");
        assert_eq!(installed[0].name, "hf:org/model/q/m-00001-of-00003.gguf");
    }
}

#[test]
fn safetensors_make_a_folder() {
    let index =
        br#"{"weight_map":{"a":"model-00002-of-00002.safetensors","b":"model-00001-of-00002.safetensors"}}"#;
    let hub = Hub::start(&[
        ("config.json", b"{}".to_vec()),
        ("model-00001-of-00002.safetensors", bytes(1_000, 18)),
        ("model-00002-of-00002.safetensors", bytes(2_000, 19)),
        ("model.safetensors.index.json", index.to_vec()),
        ("tokenizer.json", b"{\"t\":1}".to_vec()),
        ("chat_template.jinja", b"x".to_vec()),
        ("pytorch_model.bin", bytes(100, 20)),
    ]);
    let (_folder, cache) = cache();
    let path = get("hf:org/model", &cache, &hub.options()).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "chat_template.jinja",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
    assert!(fs::read(path.join(names[3].as_str())).unwrap() == bytes(2_000, 19));
    // It is complete, so the next start sends a single request, about the branch.
    hub.hub.take();
    assert_eq!(get("hf:org/model", &cache, &hub.options()).unwrap(), path);
    assert_eq!(hub.hub.take(), ["GET /api/models/org/model/revision/main"]);
    let installed = list(&cache).unwrap();
    assert_eq!((installed.len(), installed[0].name.as_str()), (1, "hf:org/model"));
    // A model with a missing part is not complete.
    fs::remove_file(path.join("model-00001-of-00002.safetensors")).unwrap();
    let offline = Options { offline: true, ..hub.options() };
    assert!(matches!(get("hf:org/model", &cache, &offline), Err(Error::Offline { .. })));
    assert_eq!(get("hf:org/model", &cache, &hub.options()).unwrap(), path);
}

#[test]
fn a_server_error_is_retried() {
    let hub = Hub::start(&[("m.gguf", bytes(100, 21))]);
    hub.set(|state| state.first = [Reply::new(503, ""), Reply::new(429, "").with("Retry-After", "0")].into());
    let (_folder, cache) = cache();
    assert!(get("hf:org/model/m.gguf", &cache, &hub.options()).is_ok());

    let (_folder, cache) = stand_in::cache();
    hub.set(|state| state.first = (0..9).map(|_| Reply::new(500, "")).collect());
    hub.hub.take();
    let error = get("hf:org/model/m.gguf", &cache, &hub.options()).unwrap_err();
    assert!(matches!(error, Error::Status { status: 500, .. }), "{error}");
    assert_eq!(hub.hub.take().len(), 4, "one try and three more");
}

#[test]
fn hostile_responses_are_errors() {
    let hash = sha256(b"x");
    let described = |commit: &str, etag: &str| {
        Reply::new(200, "x").with("X-Repo-Commit", commit).with("ETag", format!("\"{etag}\""))
    };
    let listing = |text: &str| Reply::new(200, text);
    let a = commit('a');
    // A case: its name, the requested file (none for the listing), the hub's response, and a check
    // of the error.
    type Case<'a> = (&'a str, &'a str, Reply, fn(&Error) -> bool);
    let cases: Vec<Case<'_>> = vec![
        ("a redirect loop", "m.gguf", Reply::new(302, "").with("Location", "/again"), |e| {
            matches!(e, Error::BadRedirect { .. })
        }),
        ("a redirect to nowhere", "m.gguf", Reply::new(302, ""), |e| matches!(e, Error::BadRedirect { .. })),
        ("a redirect off http", "m.gguf", Reply::new(302, "").with("Location", "file:///etc/passwd"), |e| {
            matches!(e, Error::BadRedirect { .. })
        }),
        ("no commit", "m.gguf", Reply::new(200, "x").with("ETag", "\"abc\""), |e| {
            e.to_string().contains("X-Repo-Commit")
        }),
        ("no ETag", "m.gguf", Reply::new(200, "x").with("X-Repo-Commit", &a), |e| {
            e.to_string().contains("ETag")
        }),
        ("a commit that climbs", "m.gguf", described("../../../x", &hash), |e| {
            matches!(e, Error::UnsafeName { .. })
        }),
        ("an ETag that climbs", "m.gguf", described(&a, "../../../x"), |e| {
            matches!(e, Error::UnsafeName { .. })
        }),
        ("an ETag without end", "m.gguf", described(&a, &"a".repeat(4_000)), |e| {
            matches!(e, Error::UnsafeName { .. })
        }),
        ("a length beyond all disks", "m.gguf", described(&a, &hash).with("X-Linked-Size", u64::MAX), |e| {
            matches!(e, Error::SizeMismatch { expected: u64::MAX, .. })
        }),
        ("HTML for a listing", "", listing("<html>"), |e| matches!(e, Error::BadAnswer { .. })),
        ("a listing with a climbing commit", "", listing(r#"{"sha":"../x","siblings":[]}"#), |e| {
            matches!(e, Error::UnsafeName { .. })
        }),
        ("a listing without end", "", Reply::new(200, vec![b' '; 17 << 20]), |e| {
            e.to_string().contains("longer than")
        }),
        (
            "a listing of climbing names",
            "",
            listing(&format!(r#"{{"sha":"{a}","siblings":[{{"rfilename":"../../m.gguf"}}]}}"#)),
            |e| matches!(e, Error::NothingToLoad { .. }),
        ),
    ];
    for (what, file, reply, expected) in cases {
        let server = Server::start(move |_| reply.clone());
        let (folder, cache) = cache();
        let reference =
            if file.is_empty() { "hf:org/model".to_string() } else { format!("hf:org/model/{file}") };
        let error = get(&reference, &cache, &options(&server.url())).unwrap_err();
        assert!(expected(&error), "{what}: {error:?}");
        let outside = fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .filter(|e| e.file_name() != "hub" && e.file_name() != "ingle");
        assert_eq!(outside.count(), 0, "{what}: something was written outside the cache");
    }
}

#[test]
fn what_does_not_speak_http_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n\r\n");
    });
    let (_folder, cache) = cache();
    let options = Options { retries: 0, ..options(&format!("http://{address}")) };
    let error = get("hf:org/model/m.gguf", &cache, &options).unwrap_err();
    assert!(matches!(error, Error::BadAnswer { .. } | Error::Unreachable { .. }), "{error:?}");
    thread.join().unwrap();
}

#[test]
fn a_renamed_repository_is_followed_with_the_token_where_it_stays_with_the_hub() {
    let model = bytes(1_000, 22);
    let hub = Hub::start(&[("m.gguf", model.clone())]);
    hub.set(|state| {
        let moved = Reply::new(307, "").with("Location", "/org/model/resolve/main/m.gguf");
        state.first = [moved].into();
    });
    let (_folder, cache) = cache();
    // The old name was requested, so the cache stores it under the old name.
    let error = get("hf:old/name/m.gguf", &cache, &hub.options()).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "the stand-in moves only one request: {error}");
    let requests = hub.hub.requests();
    assert_eq!(requests[1].path, "/org/model/resolve/main/m.gguf");
    assert!(requests.iter().all(|request| request.headers.contains_key("authorization")));
}

#[test]
fn two_at_once_fetch_it_once() {
    let model = bytes(2_000_000, 23);
    let hub = Hub::start(&[("m.gguf", model.clone())]);
    let (_folder, cache) = cache();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let path = get("hf:org/model/m.gguf", &cache, &hub.options()).unwrap();
                assert!(fs::read(path).unwrap() == model);
            });
        }
    });
    assert_eq!(hub.content.requests().len(), 1);
}

#[test]
fn removing_keeps_what_other_snapshots_need() {
    let (same, old, new) = (bytes(1_000, 24), bytes(2_000, 25), bytes(3_000, 26));
    let hub = Hub::start(&[("a.gguf", same.clone()), ("b.gguf", old.clone())]);
    let (_folder, cache) = cache();
    for file in ["a.gguf", "b.gguf"] {
        get(&format!("hf:org/model/{file}@{}", commit('a')), &cache, &hub.options()).unwrap();
    }
    hub.publish("main", &commit('b'), &[("a.gguf", same.clone()), ("b.gguf", new.clone())]);
    for file in ["a.gguf", "b.gguf"] {
        get(&format!("hf:org/model/{file}"), &cache, &hub.options()).unwrap();
    }
    let names: Vec<_> = list(&cache).unwrap().into_iter().map(|model| model.name).collect();
    let pinned = |file: &str| format!("hf:org/model/{file}@{}", commit('a'));
    assert_eq!(
        names,
        ["hf:org/model/a.gguf".into(), pinned("a.gguf"), "hf:org/model/b.gguf".into(), pinned("b.gguf")]
    );

    let drop = |reference: &str| remove(&ModelRef::parse(reference).unwrap(), &cache);
    #[cfg(unix)]
    {
        assert_eq!(drop(&pinned("a.gguf")).unwrap(), 0, "the other commit has the same bytes");
        assert_eq!(drop(&pinned("b.gguf")).unwrap(), 2_000);
        // The branch's ref of 40 bytes is removed with its last file.
        assert_eq!(drop("hf:org/model/b.gguf").unwrap(), 3_000);
    }
    assert!(drop("hf:org/model").unwrap() >= 1_000);
    assert!(list(&cache).unwrap().is_empty());
    assert!(matches!(drop("hf:org/model"), Err(Error::NotInstalled { .. })));
    assert!(matches!(drop("./some/file.gguf"), Err(Error::NotOurs { .. })));
}

#[test]
fn a_path_is_used_as_it_is() {
    let (folder, cache) = cache();
    let file = folder.path().join("m.gguf");
    fs::write(&file, "x").unwrap();
    let options = Options::default();
    assert_eq!(get(file.to_str().unwrap(), &cache, &options).unwrap(), file);
    assert!(matches!(get("./no/such.gguf", &cache, &options), Err(Error::NoSuchPath { .. })));
}

#[cfg(unix)]
#[test]
fn an_unwritable_folder_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let hub = Hub::start(&[("m.gguf", bytes(10, 1))]);
    let (_folder, cache) = cache();
    fs::create_dir_all(cache.hub()).unwrap();
    fs::set_permissions(cache.hub(), fs::Permissions::from_mode(0o500)).unwrap();
    if fs::create_dir(cache.hub().join("probe")).is_ok() {
        eprintln!("SKIPPED: this user may write anywhere");
        return;
    }
    let error = get("hf:org/model/m.gguf", &cache, &hub.options()).unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error}");
}
