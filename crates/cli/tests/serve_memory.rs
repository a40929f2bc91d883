//! A server on a machine that runs short of memory unloads an unused model, and running answers
//! continue.
#![allow(clippy::unwrap_used)] // A test that cannot go on fails.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::Device;
use device_cpu::{CpuDevice, Options as CpuOptions};
use engine::{
    Engine, Governor, LoadOptions, MemoryCap, Model, SamplingChoice, SamplingParams, TokenizerSource,
};
use platform::{Reading, Script};
use runner::{
    Caller, CompletionRequest, GenerateOptions, KeepAlive, LoadError, Loaded, Loader, Prompt, Runner,
};

use weights::Access;

use crate::common::SMOLLM2;

const TOTAL: u64 = 16 << 30;

/// A loader that has the same model under every name.
struct Same {
    model: Arc<Model>,
    device: Arc<dyn Device>,
    governor: Arc<Governor>,
}

impl Loader for Same {
    fn load(&self, _: &str) -> Result<Loaded, LoadError> {
        let options = LoadOptions {
            n_ctx: Some(512),
            n_sequences: 3,
            governor: Some(self.governor.clone()),
            ..LoadOptions::default()
        };
        let engine = Engine::new(self.model.clone(), &self.device, &options);
        let engine = engine.map_err(|error| LoadError { message: error.to_string(), does_not_fit: false })?;
        Ok(Loaded::Text(Box::new(engine)))
    }

    fn open(&self, _: &str) -> Result<Model, LoadError> {
        Ok(smollm2())
    }
}

fn smollm2() -> Model {
    let path = SMOLLM2.path();
    let file = formats::open(Path::new(&path), Access::Map).unwrap();
    Model::from_opened(Path::new(&path), file, &TokenizerSource::Own).unwrap()
}

/// The caller of the server's own requests.
fn caller() -> Caller {
    Caller { request_id: "test".to_owned(), tenant: 0 }
}

fn story(n: usize) -> CompletionRequest {
    CompletionRequest {
        model: "busy".to_owned(),
        prompt: Prompt::Text { text: format!("Story {n}. Once upon a time"), parse_special: false },
        suffix: None,
        files: Vec::new(),
        grammar: None,
        options: GenerateOptions {
            sampling: SamplingParams::greedy(),
            given: SamplingChoice { temperature: Some(0.0), ..SamplingChoice::default() },
            max_tokens: Some(60),
            ignore_end: true,
            ..GenerateOptions::default()
        },
    }
}

#[test]
fn an_idle_model_is_unloaded_where_answers_are_short_of_memory() {
    let script = Script::new(TOTAL, TOTAL / 2);
    let governor = Governor::of(Box::new(script.clone()), MemoryCap::Max);
    governor.observe(Instant::now());
    let loader = Same {
        model: Arc::new(smollm2()),
        device: Arc::new(CpuDevice::new(CpuOptions { threads: Some(2), isa: None }).unwrap()),
        governor: governor.clone(),
    };
    let options = runner::Options {
        models: vec!["busy".to_owned(), "idle".to_owned()],
        keep_alive: KeepAlive::Always,
        max_waiting: 8,
        max_wait: Duration::from_secs(300),
        governor: Some(governor.clone()),
        max_tokens: None,
        stream_interval: Duration::ZERO,
        sampling: SamplingChoice::default(),
    };
    let runner = Runner::new(options, Arc::new(loader));
    let loaded = || -> Vec<String> {
        let models = runner.models().into_iter().filter(|model| model.loaded.is_some());
        models.map(|model| model.id).collect()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        drop(runner.load("idle", None).await.unwrap());
        let alone = runner.complete(&caller(), story(0)).await.unwrap().collect().await.unwrap();
        assert_eq!(loaded(), ["busy", "idle"]);
        let mut answers = Vec::new();
        for n in 0..3 {
            answers.push(runner.complete(&caller(), story(n)).await.unwrap());
        }
        // No memory is free.
        while governor.status()[0].held == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        script.set(Reading { total: TOTAL, ..Reading::default() });
        // The request waits for the model's thread.
        let seen = governor.clone();
        tokio::task::spawn_blocking(move || seen.observe(Instant::now())).await.unwrap();
        assert_eq!(loaded(), ["busy"]);
        script.set(Reading { total: TOTAL, free: TOTAL / 2, ..Reading::default() });
        let followed = governor.clone();
        let follow = tokio::spawn(async move {
            loop {
                followed.observe(Instant::now());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        for (n, answer) in answers.into_iter().enumerate() {
            let found = answer.collect().await.unwrap();
            let finish = &found[0].finish.as_ref().unwrap().reason;
            assert_eq!(*finish, runner::StopReason::MaxTokens, "story {n}");
            if n == 0 {
                assert_eq!(found[0].content, alone[0].content);
            }
        }
        follow.abort();
    });
}
