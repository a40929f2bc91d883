//! Tests of weight files that change while they are read: requests of their model fail, and no
//! others.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::common::{fixture, greedy, options};
use device::Device;
use device_cpu::{CpuDevice, Options};
use ingle_engine::{Engine, Error, Event, FinishReason, LoadOptions, Model, SequenceId, TokenizerSource};
use weights::Access;

/// A copy of the fixture `llama`, in a temporary folder.
fn copy(folder: &Path, name: &str) -> PathBuf {
    let to = folder.join(name);
    std::fs::create_dir(&to).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("llama").join(file), to.join(file)).unwrap();
    }
    to
}

fn engine(path: &Path, access: Access) -> Engine {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(Options { threads: Some(2), isa: None }).unwrap());
    let checkpoint = formats::open(path, access).unwrap();
    let model = Model::from_opened(path, checkpoint, &TokenizerSource::None).unwrap();
    let options = LoadOptions { max_waiting: None, ..options(64, 16, 1) };
    Engine::new(Arc::new(model), &device, &options).unwrap()
}

/// Run to the end. Returns the reason of each sequence, and the errors of steps.
fn drain(engine: &mut Engine) -> (Vec<(SequenceId, FinishReason)>, Vec<Error>) {
    let (mut ended, mut errors) = (Vec::new(), Vec::new());
    for _ in 0..1000 {
        let mut on_event = |event: Event<'_>| {
            if let Event::Done { sequence, reason, .. } = event {
                ended.push((sequence, reason.clone()));
            }
        };
        match engine.step(&mut on_event) {
            Ok(true) => {}
            Ok(false) => return (ended, errors),
            Err(error) => {
                engine.end_failed(&error.to_string(), &mut on_event);
                errors.push(error);
            }
        }
    }
    panic!("it goes on for ever: {errors:?}");
}

#[test]
#[cfg(unix)]
fn a_file_that_is_cut_while_it_is_read_fails_the_requests_of_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (copy(folder.path(), "cut"), copy(folder.path(), "other"));
    let (mut cut, mut whole) = (engine(&path, Access::Map), engine(&other, Access::Map));
    // One sequence runs, and one waits.
    let ids = [0, 1].map(|i| cut.add(greedy(&[1, 2, 3 + i], 30)).unwrap());
    assert!(cut.step(&mut |_| {}).unwrap() && cut.step(&mut |_| {}).unwrap());
    let weights = File::options().write(true).open(path.join("model.safetensors")).unwrap();
    weights.set_len(0).unwrap();
    let (ended, errors) = drain(&mut cut);
    assert_eq!(ended.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    for (_, reason) in &ended {
        let FinishReason::Failed(reason) = reason else { panic!("{reason:?}") };
        assert!(reason.contains("model.safetensors") && reason.contains("changed"), "{reason}");
    }
    assert!(matches!(errors[..], [Error::Format(weights::Error::Changed { .. })]), "{errors:?}");
    assert!(cut.weight_files().check_whole().is_err() && cut.weight_files().check_unchanged().is_err());
    // Later requests fail too: no token is made up.
    cut.add(greedy(&[1, 2, 3], 3)).unwrap();
    assert!(matches!(drain(&mut cut).0[..], [(_, FinishReason::Failed(_))]));

    whole.add(greedy(&[1, 2, 3], 5)).unwrap();
    let (ended, errors) = drain(&mut whole);
    assert!(matches!(ended[..], [(_, FinishReason::MaxTokens)]) && errors.is_empty(), "{ended:?} {errors:?}");
    whole.weight_files().check_unchanged().unwrap();
}

#[test]
fn a_file_that_is_written_to_is_known_and_a_copy_does_not_mind() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path(), "touched");
    let (mapped, copied) = (engine(&path, Access::Map), engine(&path, Access::Read));
    mapped.weight_files().check_unchanged().unwrap();
    let file = File::options().write(true).open(path.join("model.safetensors")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(mapped.weight_files().check_unchanged().is_err());
    mapped.weight_files().check_whole().unwrap();
    copied.weight_files().check_unchanged().unwrap();
}
