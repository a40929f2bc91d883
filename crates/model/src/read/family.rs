//! Selection of a checkpoint's family.

use weights::{Checkpoint, Naming};

use crate::descriptor::{ArchDescriptor, WHISPER_CPP};
use crate::error::{Error, Result};
use crate::families::FAMILIES;
use crate::keys::Keys;
use crate::names::{Key, TEXT_CONFIG};

/// The family that the file names, if it is known.
pub(crate) fn family_of(checkpoint: &Checkpoint) -> Option<&'static ArchDescriptor> {
    Some(select(checkpoint).ok()?.0)
}

/// The family that the file names, and the name.
pub(crate) fn select(checkpoint: &Checkpoint) -> Result<(&'static ArchDescriptor, String)> {
    let metadata = &checkpoint.metadata;
    let text_model_type = format!("{TEXT_CONFIG}model_type");
    let keys: &[&str] = match checkpoint.naming {
        Naming::Gguf => &["general.architecture"],
        Naming::HuggingFace | Naming::Base => &[&text_model_type, "model_type"],
        Naming::CTranslate2 => &["ctranslate2.spec"],
        Naming::WhisperCpp => &[],
    };
    let mut found: Vec<(&str, String)> =
        keys.iter().filter_map(|k| Some((*k, metadata.str(k)?.to_owned()))).collect();
    if checkpoint.naming == Naming::WhisperCpp {
        found.push(("format", WHISPER_CPP.to_owned()));
    }
    if checkpoint.naming == Naming::HuggingFace {
        // The class name also tells the type: `SomethingForCausalLM` is of type `something`.
        let class = metadata.array("architectures").and_then(|a| std::str::from_utf8(a.str_bytes(0)?).ok());
        let class = class.and_then(|c| c.split_once("For")).map(|(c, _)| c.to_ascii_lowercase());
        found.extend(class.map(|class| ("architectures", class)));
    }
    let family = |name: &str| FAMILIES.iter().find(|f| f.selectors(checkpoint.naming).contains(&name));
    if let Some((name, family)) = found.iter().find_map(|(_, name)| Some((name, family(name)?))) {
        let keys = Keys::new(metadata, checkpoint.naming, family, name);
        if let (Some(both_ways), Ok(Some(true))) = (family.both_ways, keys.flag(Key::Bidirectional)) {
            return Ok((both_ways, name.clone()));
        }
        return Ok((family, name.clone()));
    }
    let known: Vec<&str> = FAMILIES.iter().flat_map(|f| f.selectors(checkpoint.naming)).copied().collect();
    let (key, found) = match found.first() {
        Some((key, name)) => ((*key).to_owned(), format!("{:?}", name.chars().take(60).collect::<String>())),
        None => (keys.join(" or "), "nothing".to_owned()),
    };
    Err(Error::UnknownFamily { key, found, known: known.join(", ") })
}
