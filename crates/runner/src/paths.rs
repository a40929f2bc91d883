//! Messages without the paths of files: clients see a file's name, but not its folder on the
//! server.

use std::path::Path;

/// Returns `text` without folders before file names: the `known` ones, and those of all absolute
/// paths. A path at the start of the text ends at `: ` and may contain spaces; others end at white
/// space.
pub fn without_folders<'a>(text: &str, known: impl IntoIterator<Item = &'a Path>) -> String {
    let mut known: Vec<String> = known.into_iter().map(|folder| folder.display().to_string()).collect();
    known.retain(|folder| folder.contains(['/', '\\']));
    // The longest folder first.
    known.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
    let mut text = text.to_owned();
    for folder in known {
        let folder = folder.trim_end_matches(['/', '\\']);
        for separator in ['/', '\\'] {
            text = text.replace(&format!("{folder}{separator}"), "");
        }
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(begin) = find_path(rest, out.is_empty()) {
        let (before, path) = rest.split_at(begin);
        let end = match out.is_empty() && before.is_empty() {
            true => path.find(": ").or_else(|| path.find(['\n', ' '])),
            false => path.find(|c: char| c.is_whitespace() || "\"'`,;)]}".contains(c)),
        };
        let (path, after) = path.split_at(end.unwrap_or(path.len()));
        out.push_str(before);
        out.push_str(path.trim_end_matches('/').rsplit('/').next().unwrap_or_default());
        rest = after;
    }
    out + rest
}

/// The start of an absolute path: a slash at the start of a word, with at least one more name after
/// it. So `https://a/b`, `</think>` and `hf:org/repo[/file]` contain none.
fn find_path(text: &str, is_begin: bool) -> Option<usize> {
    text.match_indices('/').map(|(at, _)| at).find(|&at| {
        let before = text[..at].chars().next_back();
        let begins = match before {
            None => is_begin,
            Some(c) => c.is_whitespace() || "\"'`(=".contains(c),
        };
        let next = text[at + 1..].chars().next();
        begins && next.is_some_and(|c| c != '/' && !c.is_whitespace())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_only_the_names_of_files() {
        let of = |text: &str| without_folders(text, ["/srv/my models".as_ref(), "lora".as_ref()]);
        for (text, expected) in [
            ("/root/.cache/m.gguf: no tensor", "m.gguf: no tensor"),
            ("/home/a b/m.gguf: no tensor", "m.gguf: no tensor"),
            ("loading: opening `/root/m.gguf`: denied", "loading: opening `m.gguf`: denied"),
            ("reading /srv/my models/x/a.json (not there)", "reading x/a.json (not there)"),
            ("/srv/my models/a.json and \"/b/c\", too", "a.json and \"c\", too"),
            ("file=/a/b/c/", "file=c"),
            ("see https://example.org/a/b", "see https://example.org/a/b"),
            ("3 / 4 of a/b, 1/2", "3 / 4 of a/b, 1/2"),
            ("hf:org/repo[/file][@revision], </think>", "hf:org/repo[/file][@revision], </think>"),
            ("/a", "a"),
            ("nothing", "nothing"),
            ("", ""),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        assert_eq!(without_folders("models/x/m.gguf: bad", ["models/x".as_ref()]), "m.gguf: bad");
    }
}
