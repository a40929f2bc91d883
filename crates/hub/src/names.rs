//! Checks on names that become paths. They may come from a server or an untrusted file.

/// Longest file name, commit, ETag or revision that is accepted, in bytes.
const NAME_MAX: usize = 255;
/// Longest path inside a repository, in bytes.
const PATH_MAX: usize = 1024;

/// True if `name` is one plain path component on every system: no separator, no drive, no `.` or
/// `..`.
pub(crate) fn is_component(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != "."
        && name != ".."
        && !name
            .chars()
            .any(|c| c.is_control() || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|'))
}

/// True if `path` is a relative path with `/` that stays inside its folder.
pub(crate) fn is_relative(path: &str) -> bool {
    path.len() <= PATH_MAX && path.split('/').all(is_component)
}

/// True if `text` can be a commit: 7 to 64 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// True if `text` is a full commit hash, which always means the same commit.
pub(crate) fn is_full_commit(text: &str) -> bool {
    text.len() == 40 && is_commit(text)
}

/// True if `text` is a sha256 in lower-case hexadecimal.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// True if `text` can be an ETag and a file name in the cache: the hub uses hexadecimal hashes,
/// mirrors add `-` and `_`.
pub(crate) fn is_etag(text: &str) -> bool {
    is_component(text)
        && !text.starts_with('.')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// True if `repo` is a valid `org/name` of the hub.
///
/// `--` and `..` are not allowed in either half: the cache joins the two with `--`.
pub(crate) fn is_repo(repo: &str) -> bool {
    let valid = |half: &str| {
        !half.is_empty()
            && half.len() <= 96
            && half.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && !half.starts_with(['-', '.'])
            && !half.ends_with(['-', '.'])
            && !half.contains("--")
            && !half.contains("..")
    };
    repo.split_once('/').is_some_and(|(org, name)| valid(org) && valid(name))
}

/// True if `text` can be the name of a quantisation: `Q4_K_M`, `mxfp4`.
pub(crate) fn is_quant(text: &str) -> bool {
    (2..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// True if a part of the file's name is the quantisation: `m-Q4_K_M.gguf` has `q4_k_m`.
pub(crate) fn has_quant(file: &str, quant: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default();
    name.split(['-', '.']).any(|part| part.eq_ignore_ascii_case(quant))
}

/// The text percent-encoded for a URL segment: all but the unreserved characters of RFC 3986.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The path percent-encoded, except its slashes.
pub(crate) fn encode_path(path: &str) -> String {
    path.split('/').map(encode).collect::<Vec<_>>().join("/")
}

/// A server's message that is safe to print: without control characters, at most 300 characters.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_folder_are_refused() {
        for good in ["model.gguf", "onnx/model.json", "a b/ü.txt"] {
            assert!(is_relative(good), "{good}");
        }
        let long = "a".repeat(2000);
        for bad in
            ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "C:x", "a\\b", "a\0b", ".", "x/.", &long]
        {
            assert!(!is_relative(bad), "{bad}");
        }
    }

    #[test]
    fn repositories_etags_and_commits() {
        assert!(is_repo("HuggingFaceTB/SmolLM2-135M-Instruct"));
        for bad in ["gpt2", "a/b/c", "../b", "a/..", "a--b/c", "a/b c", "/b", "a/", "-a/b"] {
            assert!(!is_repo(bad), "{bad}");
        }
        assert!(
            is_etag("d41d8cd98f00b204e9800998ecf8427e") && !is_etag("../x") && !is_etag("") && !is_etag("..")
        );
        assert!(is_full_commit(&"a1".repeat(20)) && !is_full_commit("main") && !is_commit("../../x"));
        assert!(is_sha256(&"0f".repeat(32)) && !is_sha256(&"0F".repeat(32)));
    }

    #[test]
    fn quantisations_are_whole_parts_of_a_name() {
        for file in ["q/m-Q4_K_M.gguf", "m.q4_k_m.gguf", "m-UD-Q4_K_M-00001-of-00002.gguf"] {
            assert!(has_quant(file, "Q4_K_M"), "{file}");
        }
        assert!(!has_quant("m-IQ4_K_M.gguf", "Q4_K_M") && !has_quant("Q4_K_M/m-Q4_K_S.gguf", "Q4_K_M"));
        assert!(is_quant("Q4_K_M") && is_quant("mxfp4") && !is_quant("") && !is_quant("a/b"));
    }

    #[test]
    fn encoding() {
        assert_eq!(encode("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(encode_path("a b/ü?.gguf"), "a%20b/%C3%BC%3F.gguf");
        assert_eq!(printable("a\u{1b}[31mb\n"), "a[31mb");
    }
}
