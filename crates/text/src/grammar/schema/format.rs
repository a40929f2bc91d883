//! Formats of strings that are enforced. Other formats are annotations, as in JSON Schema.

use super::pattern;
use super::rx::Rx;

/// The texts of a format; `None` if it is not enforced.
pub(super) fn texts(name: &str) -> Option<Rx> {
    // RFC 3339, with the month's number of days; February always has 29.
    let date = "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
                |02-(?:0[1-9]|1[0-9]|2[0-8]))";
    let leap_day = "(?:[0-9]{2}(?:[2468][048]|[13579][26]|0[48])|(?:[02468][048]|[13579][26])00)-02-29";
    // Without leap seconds, which most libraries refuse.
    let time = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
    let byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    let ipv4 = format!("{byte}(?:\\.{byte}){{3}}");
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    let hostname = format!("{label}(?:\\.{label})*");
    let regex = match name {
        "date" => format!("{date}|{leap_day}"),
        "time" => time.to_owned(),
        "date-time" => format!("(?:{date}|{leap_day})T{time}"),
        // ISO 8601: at least one unit, in order, each at most once; weeks only alone.
        "duration" => {
            let time = "T(?:[0-9]+H(?:[0-9]+M)?(?:[0-9]+S)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
            format!(
                "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:{time})?|{time})"
            )
        }
        "email" => {
            let atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+";
            let address = pattern::whole(&format!("{atom}(?:\\.{atom})*@{hostname}"));
            return Some(Rx::and([address, pattern::whole("[^@]{1,64}@[^@]{1,253}")]));
        }
        "hostname" => return Some(Rx::and([pattern::whole(&hostname), Rx::of_length(1, Some(253))])),
        "ipv4" => ipv4,
        "ipv6" => ipv6(&ipv4),
        "uri" => uri(&ipv4),
        "uuid" => "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        _ => return None,
    };
    Some(pattern::whole(&regex))
}

/// RFC 4291: eight groups, or fewer with one `::` for at least one group. The last two may be an
/// IPv4 address.
fn ipv6(ipv4: &str) -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let last = format!("(?:{group}:{group}|{ipv4})");
    let mut options = vec![format!("(?:{group}:){{6}}{last}")];
    for n_before in 0..=7_usize {
        let before = match n_before {
            0 => String::new(),
            n => format!("{group}(?::{group}){{{}}}", n - 1),
        };
        // With `::` there are at most seven groups.
        let n_after = 7 - n_before;
        let after = match n_after {
            0 => String::new(),
            1 => format!("(?:{group})?"),
            n => format!("(?:(?:{group}:){{0,{}}}{last}|{group})?", n - 2),
        };
        options.push(format!("{before}::{after}"));
    }
    options.join("|")
}

/// RFC 3986, for URIs with an authority or a path.
fn uri(ipv4: &str) -> String {
    let character = |more: &str| format!("(?:[a-zA-Z0-9._~!$&'()*+,;={more}-]|%[0-9a-fA-F]{{2}})");
    let (name, path, query) = (character(""), character(":@"), character(":@/?"));
    let host = format!("(?:\\[(?:{})\\]|{name}*)", ipv6(ipv4));
    let authority = format!("//(?:{}*@)?{host}(?::[0-9]*)?(?:/{path}*)*", character(":"));
    format!("[a-zA-Z][a-zA-Z0-9+.-]*:(?:{authority}|/?{path}+(?:/{path}*)*|/)(?:\\?{query}*)?(?:#{query}*)?")
}
