//! Models in the cache: listing them and, with `--allow-pull`, fetching and removing them for
//! clients.

use std::path::{Path, PathBuf};

use engine::Model;
use runner::{ErrorKind, PullProgress, RequestError};

use super::Serve;
use crate::load;

impl Serve {
    /// Opens a model on this machine to read its metadata.
    pub(super) fn look_into(&self, name: &str) -> anyhow::Result<Model> {
        let mut options = self.load.options();
        options.hub = self.fetch.hub()?;
        options.hub.offline = true;
        // Checksums are compared when the model is loaded; here only the header is read.
        options.verify.key = self.verify.verify()?.key;
        let opened =
            ingle::direct::open(&self.config_of(name).source().source(), &options, &mut hub::Silent)?;
        load::tell_notes(&opened.notes);
        Ok(opened.model)
    }

    /// True if all models in the cache are served: clients may pull models, or the command line
    /// names none.
    fn serves_cache(&self) -> bool {
        self.allow_pull || (self.models.is_empty() && self.config.is_none())
    }

    /// Models in the cache that may be served, in addition to those of the command line.
    pub(super) fn in_cache(&self) -> Vec<String> {
        if !self.serves_cache() {
            return Vec::new();
        }
        let listed = self.fetch.cache().and_then(|cache| hub::list(&cache));
        let listed = listed.unwrap_or_else(|error| {
            tracing::warn!("the models in the cache cannot be listed: {error}");
            Vec::new()
        });
        listed.into_iter().map(|model| model.name).collect()
    }

    /// The name in the cache of the model that a client calls `name`. It is never a path: clients
    /// may not read arbitrary files.
    pub(super) fn name_in_cache(&self, name: &str) -> Option<String> {
        if !self.serves_cache() {
            return None;
        }
        let reference = self.reference(name).ok()?;
        Some(hub::find(&reference, &self.fetch.cache().ok()?).ok()??.name)
    }

    pub(super) fn fetch_for_client(
        &self,
        name: &str,
        progress: &mut dyn FnMut(PullProgress),
    ) -> runner::Result<()> {
        self.check_allowed("pull")?;
        let reference = self.reference(name)?;
        let mut told = Told { progress, now: None };
        let fetched = self
            .fetch
            .cache()
            .and_then(|cache| hub::fetch(&reference, &cache, &self.fetch.options()?, &mut told));
        fetched.map(drop).map_err(|error| self.request_error(error))
    }

    pub(super) fn delete_for_client(&self, name: &str) -> runner::Result<()> {
        self.check_allowed("delete")?;
        let reference = hub::ModelRef::parse_name(name).map_err(|error| self.request_error(error))?;
        let freed = self.fetch.cache().and_then(|cache| hub::remove_fetched(&reference, &cache));
        let freed = freed.map_err(|error| self.request_error(error))?;
        tracing::info!("deleted {name} for a client: {freed} bytes freed");
        Ok(())
    }

    fn check_allowed(&self, what: &str) -> runner::Result<()> {
        if self.allow_pull {
            return Ok(());
        }
        let message =
            format!("clients may not {what} models here; start the server with --allow-pull to let them");
        Err(RequestError::new(ErrorKind::Forbidden, message))
    }

    /// The model of a client's name, in the catalog or in the hub.
    fn reference(&self, name: &str) -> runner::Result<hub::ModelRef> {
        // Ollama's clients append `:latest` to names without a tag.
        let bare = name.strip_suffix(":latest").unwrap_or(name);
        let told = |error| self.request_error(error);
        match hub::ModelRef::parse_name(bare).map_err(told)? {
            // Only the operator may name models of other programs.
            hub::ModelRef::Path(_) | hub::ModelRef::Store(_) => {
                let message = format!(
                    "the model `{name}` is unknown, expected a catalog name or hf:org/repo[/file][@revision]"
                );
                Err(RequestError::new(ErrorKind::NotFound, message))
            }
            // A model may have several names in the catalog; the cache uses the first.
            hub::ModelRef::Catalog(name) => {
                let catalog = match self.fetch.catalog().map_err(told)? {
                    Some(catalog) => catalog,
                    None => hub::Catalog::builtin().map_err(told)?,
                };
                Ok(match catalog.find(&name).map_err(told)? {
                    hub::Entry::Pinned(model) => hub::ModelRef::Catalog(model.name.clone()),
                    // The cache lists models of the hub by repository.
                    hub::Entry::Public(model) => hub::ModelRef::Hub(model.place),
                })
            }
            reference @ hub::ModelRef::Hub(_) => Ok(reference),
        }
    }

    fn request_error(&self, error: hub::Error) -> RequestError {
        use hub::Error as E;
        let kind = match &error {
            E::BadReference { .. } | E::Ambiguous { .. } | E::NothingToLoad { .. } => ErrorKind::Invalid,
            E::NoSuchPath { .. } | E::UnknownModel { .. } | E::NotFound { .. } | E::NotInstalled { .. } => {
                ErrorKind::NotFound
            }
            E::NotOurs { .. }
            | E::NotOurStore { .. }
            | E::NotFetched { .. }
            | E::Unauthorized { .. }
            | E::Gated { .. } => ErrorKind::Forbidden,
            // The network, the disk, or an invalid source. hub::Error is non-exhaustive.
            _ => ErrorKind::Unavailable,
        };
        RequestError::new(kind, self.told_to_clients(&error.to_string()))
    }

    /// The message for clients: file names without folders. The log has the whole message.
    pub(super) fn told_to_clients(&self, whole: &str) -> String {
        let sources = self.configs.iter().map(|config| PathBuf::from(config.source().to_string()));
        let of_sources: Vec<PathBuf> =
            sources.filter_map(|source| source.parent().map(Path::to_owned)).collect();
        let real = self.lora_dir.as_ref().and_then(|folder| folder.canonicalize().ok());
        let cache = self.fetch.cache().ok();
        let of_cache = cache.iter().flat_map(|cache| [cache.hub(), cache.root()]);
        let given = [&self.lora_dir, &self.prefix_cache, &real].into_iter().flatten().map(PathBuf::as_path);
        let of_sources = of_sources.iter().map(PathBuf::as_path);
        let told = runner::without_folders(whole, of_cache.chain(of_sources).chain(given));
        if told != whole {
            tracing::warn!("{whole}");
        }
        told
    }
}

/// Passes the progress of a fetch on to the server.
struct Told<'a> {
    progress: &'a mut dyn FnMut(PullProgress),
    now: Option<PullProgress>,
}

impl hub::Progress for Told<'_> {
    fn start(&mut self, name: &str, total_bytes: Option<u64>) {
        let now = PullProgress { file: name.to_owned(), total: total_bytes, completed: 0 };
        (self.progress)(now.clone());
        self.now = Some(now);
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(now) = &mut self.now {
            now.completed += bytes;
            (self.progress)(now.clone());
        }
    }

    fn finish(&mut self) {
        self.now = None;
    }

    fn note(&mut self, text: &str) {
        tracing::info!("{text}");
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    fn serve(more: &[&str]) -> Serve {
        Line::parse_from(["serve", "smollm2:135m"].iter().chain(more)).serve
    }

    #[test]
    fn names_of_clients() {
        let of = |name: &str| serve(&[]).reference(name).map(|found| found.to_string());
        assert_eq!(of("SmolLM2:135m").unwrap(), "smollm2:135m");
        assert_eq!(of("whisper:tiny:latest").unwrap(), "whisper:tiny.en");
        assert_eq!(of("hf.co/org/repo:latest").unwrap(), "hf:org/repo");
        assert_eq!(of("hf:org/repo/m.gguf").unwrap(), "hf:org/repo/m.gguf");
        assert_eq!(of("hf.co/org/repo:Q4_K_M").unwrap(), "hf:org/repo:Q4_K_M");
        assert_eq!(of("qwen3:0.6b:latest").unwrap(), "hf:unsloth/Qwen3-0.6B-GGUF:Q4_K_M");
        // A client may not name a path of this machine.
        for (name, kind) in [
            ("/etc/passwd", ErrorKind::NotFound),
            ("./m.gguf", ErrorKind::NotFound),
            ("llama9", ErrorKind::NotFound),
            // A file in the folder of the tests, and a model of another program.
            ("Cargo.toml", ErrorKind::NotFound),
            ("ollama:llama3", ErrorKind::NotFound),
            ("hf:org", ErrorKind::Invalid),
            ("hf.co/org/repo:", ErrorKind::Invalid),
            ("", ErrorKind::Invalid),
        ] {
            assert_eq!(of(name).unwrap_err().kind, kind, "{name}");
        }
    }

    #[test]
    fn clients_may_pull_and_delete_only_where_they_are_let() {
        let serve = serve(&[]);
        assert_eq!(
            serve.fetch_for_client("smollm2:135m", &mut |_| {}).unwrap_err().kind,
            ErrorKind::Forbidden
        );
        assert_eq!(serve.delete_for_client("smollm2:135m").unwrap_err().kind, ErrorKind::Forbidden);
        assert_eq!((serve.in_cache(), serve.name_in_cache("smollm2:135m")), (Vec::new(), None));
    }
}
