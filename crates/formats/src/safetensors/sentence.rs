//! The files of sentence-transformers beside the weights: the sequence of modules, the pooling, and
//! the longest text. They become metadata like config.json, each under its own prefix.

use std::path::{Component, Path};

use super::config::{flatten, read_json};
use weights::keys::{DENSE_PREFIX, MODULES_KEY, POOLING_PREFIX, SENTENCE_PREFIX, TRANSFORMER_PREFIX};
use weights::{Metadata, Result};

/// Appends the files that the folder has. Returns the folders of layers after pooling.
pub(super) fn read(dir: &Path, metadata: &mut Metadata) -> Result<Vec<String>> {
    let modules = dir.join("modules.json");
    if !modules.is_file() {
        return Ok(vec![]);
    }
    let mut dense = vec![];
    let list = read_json(&modules)?;
    for module in list.as_array().into_iter().flatten() {
        let text = |key: &str| module.get(key).and_then(|v| v.as_str()).unwrap_or_default();
        let config = dir.join(text("path")).join("config.json");
        if text("type").ends_with(".Pooling") && is_plain(text("path")) && config.is_file() {
            flatten(&read_json(&config)?, POOLING_PREFIX, &config, metadata)?;
        }
        if text("type").ends_with(".Dense") && is_plain(text("path")) && config.is_file() {
            let prefix = format!("{DENSE_PREFIX}{}.", text("path"));
            flatten(&read_json(&config)?, &prefix, &config, metadata)?;
            dense.push(text("path").to_owned());
        }
    }
    flatten(&serde_json::json!({ MODULES_KEY: list }), "", &modules, metadata)?;
    for (file, prefix) in [
        ("sentence_bert_config.json", TRANSFORMER_PREFIX),
        ("config_sentence_transformers.json", SENTENCE_PREFIX),
    ] {
        let file = dir.join(file);
        if file.is_file() {
            flatten(&read_json(&file)?, prefix, &file, metadata)?;
        }
    }
    Ok(dense)
}

/// True if `name` is one path component, so that it cannot leave the model's folder.
pub(super) fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
        && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stand_under_their_prefixes_and_no_path_leads_out() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("model");
        std::fs::create_dir_all(dir.join("1_Pooling")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        let module = |path: &str| {
            format!(r#"[{{"path": "", "type": "a.Transformer"}}, {{"path": "{path}", "type": "a.Pooling"}}]"#)
        };
        write("modules.json", &module("1_Pooling"));
        write("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true}"#);
        write("sentence_bert_config.json", r#"{"max_seq_length": 7}"#);
        let mut metadata = Metadata::default();
        read(&dir, &mut metadata).unwrap();
        assert_eq!(metadata.str("modules.1.type"), Some("a.Pooling"));
        assert_eq!(metadata.bool("pooling.pooling_mode_cls_token"), Some(true));
        assert_eq!(metadata.usize("sentence_bert_config.max_seq_length"), Some(7));
        std::fs::write(folder.path().join("config.json"), r#"{"pooling_mode_cls_token": true}"#).unwrap();
        for path in ["..", "/etc", "1_Pooling/..", ""] {
            write("modules.json", &module(path));
            let mut metadata = Metadata::default();
            read(&dir, &mut metadata).unwrap();
            assert_eq!(metadata.bool("pooling.pooling_mode_cls_token"), None, "{path}");
        }
    }
}
