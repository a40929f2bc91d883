//! The interactive chat with a model that runs in this process.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use engine::SamplingChoice;
use serde_json::{Value, json};

use super::{Dialogue, Session};
use crate::args::SamplingArgs;
use crate::commands::generate;
use crate::interactive::{Partner, messages};
use crate::{load, output};

impl Partner for Session {
    fn describe(&self) -> String {
        self.engine.device().describe()
    }

    fn rest(&mut self) -> anyhow::Result<()> {
        Ok(self.engine.give_back_memory().map(drop)?)
    }

    fn answer(&mut self, message: &str, out: &mut dyn Write) -> anyhow::Result<String> {
        Session::answer(self, message, out).map(|finished| generate::closing(&finished.timings))
    }

    fn clear(&mut self) {
        self.turns.clear();
        self.n_used = 0;
        self.images.clear();
        self.waiting.clear();
        match &mut self.dialogue {
            Dialogue::Chat { conversation, .. } => conversation.clear(),
            Dialogue::Plain { text, .. } => text.clear(),
        }
    }

    fn add_image(&mut self, path: &Path) -> anyhow::Result<()> {
        let model = self.engine.model().clone();
        self.waiting.extend(load::images(&model, &[path.to_owned()])?);
        Ok(())
    }

    fn set_system(&mut self, text: Option<&str>) -> anyhow::Result<()> {
        match &mut self.dialogue {
            Dialogue::Chat { conversation, .. } => conversation.set_system(text),
            Dialogue::Plain { .. } => {
                anyhow::bail!("a base model has no chat template, so it has no system message")
            }
        }
        Ok(())
    }

    fn sampling(&self) -> &SamplingArgs {
        &self.sampling
    }

    fn default_sampling(&self) -> SamplingChoice {
        self.engine.model().sampling()
    }

    fn set_sampling(&mut self, sampling: SamplingArgs) -> anyhow::Result<()> {
        generate::sampling(&sampling, self.engine.model().sampling()).check(self.engine.model().n_vocab())?;
        self.sampling = sampling;
        Ok(())
    }

    fn saved(&self) -> Value {
        match &self.dialogue {
            Dialogue::Chat { conversation, .. } => json!({ "messages": conversation.messages() }),
            Dialogue::Plain { text, .. } => json!({ "text": text }),
        }
    }

    fn loaded(&mut self, saved: &Value) -> anyhow::Result<()> {
        match (&mut self.dialogue, saved) {
            (Dialogue::Chat { conversation, .. }, saved) => conversation.set_messages(messages(saved)?),
            (Dialogue::Plain { text, .. }, saved) => {
                let found = saved["text"].as_str();
                *text =
                    found.context("expected {\"text\": …}, which /save writes for a base model")?.to_owned();
            }
        }
        self.images.clear();
        self.waiting.clear();
        self.turns.clear();
        Ok(())
    }

    fn undo(&mut self) -> anyhow::Result<String> {
        let turn = self.turns.pop().context("there is no answer to undo")?;
        match &mut self.dialogue {
            Dialogue::Chat { conversation, .. } => {
                // The answer and its message.
                conversation.pop();
                conversation.pop();
            }
            Dialogue::Plain { text, .. } => text.truncate(turn.text_before),
        }
        // The images belong to the next message, which may be the same one edited.
        self.waiting = self.images.split_off(self.images.len().saturating_sub(turn.n_images));
        Ok(turn.message)
    }

    fn show(&self) -> String {
        let (model, memory) = (self.engine.model(), self.engine.memory());
        let spec = model.spec();
        format!(
            "file      {}\nmodel     {}, {} parameters\ndevice    {}\ncontext   {} of {} tokens used, keys and values as {}\n\
             memory    {} planned",
            model.path().display(),
            spec.family.title,
            output::count(spec.n_parameters),
            self.engine.device().describe(),
            self.n_used,
            self.engine.limits().n_ctx,
            memory.kv_type,
            output::bytes(memory.total),
        )
    }
}
