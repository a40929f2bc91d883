//! Canonical JSON, which signatures cover: keys sorted at every level, no white space, numbers in
//! their shortest form.

use serde_json::Value as Json;

/// Canonical JSON with sorted keys, as FORMAT.md requires.
pub(super) fn sorted(json: &Json) -> Vec<u8> {
    let mut out = Vec::new();
    write(json, true, &mut out);
    out
}

/// Canonical JSON with keys in stored order, as the published converter signs it.
pub(super) fn as_stored(json: &Json) -> Vec<u8> {
    let mut out = Vec::new();
    write(json, false, &mut out);
    out
}

// Depth is bounded: the JSON parser refuses more than 128 levels.
fn write(json: &Json, sort: bool, out: &mut Vec<u8>) {
    match json {
        Json::Object(object) => {
            let mut entries: Vec<_> = object.iter().collect();
            if sort {
                entries.sort_by_key(|(key, _)| *key);
            }
            list(out, *b"{}", entries, |out, (key, value)| {
                out.extend(Json::String(key.clone()).to_string().bytes());
                out.push(b':');
                write(value, sort, out);
            });
        }
        Json::Array(items) => list(out, *b"[]", items, |out, item| write(item, sort, out)),
        scalar => out.extend(scalar.to_string().bytes()),
    }
}

fn list<T>(
    out: &mut Vec<u8>,
    brackets: [u8; 2],
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T),
) {
    out.push(brackets[0]);
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(brackets[1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_everywhere() {
        let json =
            serde_json::from_str(r#"{"b": [1, {"z": null, "a": 0.1}], "a": "é\n\"\\", "B": -1e-7}"#).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        assert_eq!(text(sorted(&json)), r#"{"B":-1e-7,"a":"é\n\"\\","b":[1,{"a":0.1,"z":null}]}"#);
        assert_eq!(text(as_stored(&json)), r#"{"b":[1,{"z":null,"a":0.1}],"a":"é\n\"\\","B":-1e-7}"#);
    }
}
