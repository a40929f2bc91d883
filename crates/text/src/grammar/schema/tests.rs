use super::{format, pattern};

#[test]
fn formats_accept_their_texts_and_no_others() {
    for (name, good, bad) in [
        ("date", &["2024-02-29", "1999-12-31"][..], &["2023-02-29", "2024-04-31", "24-01-01"][..]),
        ("time", &["10:00:00Z", "23:59:59.5+02:00"], &["24:00:00Z", "10:00Z", "10:00:00"]),
        ("date-time", &["2024-01-01T00:00:00Z"], &["2024-01-01", "2024-01-01 00:00:00Z"]),
        ("duration", &["P1Y2M3DT4H5M6S", "PT1M", "P2W", "P1D"], &["P", "PT", "1D", "P1S", "P1W2D"]),
        ("email", &["a.b+c@example.org", "x@y"], &["@y", "x@", "a..b@c", "a b@c"]),
        ("hostname", &["a", "a-b.example.org"], &["-a", "a-", "a..b", ""]),
        ("ipv4", &["0.0.0.0", "255.255.255.255"], &["256.0.0.1", "1.2.3", "01.2.3.4"]),
        (
            "ipv6",
            &["::", "::1", "1::", "2001:db8::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1:2:3:4:5:6:7::"],
            &["1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", ":::", "1.2.3.4", "1:2:3:4:5:6:7:8::"],
        ),
        ("uuid", &["123e4567-e89b-12d3-a456-426614174000"], &["123e4567e89b12d3a456426614174000", "x"]),
        (
            "uri",
            &["http://a.org/b?c=d#e", "mailto:x@y.z", "urn:isbn:1", "file:///etc/x", "http://[::1]:80/"],
            &["a b", "/path", "http://a b", "//x"],
        ),
    ] {
        let rx = format::texts(name).unwrap();
        for text in good {
            assert_eq!(rx.matches(text), Some(true), "{name} {text:?}");
        }
        for text in bad {
            assert_eq!(rx.matches(text), Some(false), "{name} {text:?}");
        }
    }
    assert!(format::texts("password").is_none());
}

#[test]
fn patterns_match_as_in_ecmascript() {
    for (text, good, bad) in [
        ("a", &["a", "xay"][..], &["b", ""][..]),
        ("^a", &["a", "ab"], &["ba"]),
        ("a$", &["a", "ba"], &["ab"]),
        ("^a|b$", &["ax", "xb"], &["xa", "bx"]),
        ("^(a|b)?$", &["", "a"], &["ab"]),
        ("^\\d+\\.\\d{2}$", &["1.50"], &["1.5", "\u{661}.50"]),
        ("^[\\w.-]+$", &["a-b.c"], &["a b"]),
        ("^[^]$", &["\n"], &["", "ab"]),
        ("^[]$", &[], &["", "a"]),
        ("^\\u0041\\x42\\cJ\\/$", &["AB\n/"], &["AB"]),
        ("^\\p{Lu}\\P{Lu}$", &["Éa"], &["éa"]),
        ("^(?i)ab$", &["AB", "aB"], &["ac"]),
        ("^(?:(?i:a)b)$", &["Ab"], &["AB"]),
        ("^(?P<year>\\d{4})(?<m>x)$", &["2024x"], &["x"]),
        ("^a{2,}b{1,2}c{3}$", &["aabccc", "aaabbccc"], &["abccc", "aabbbccc"]),
        ("^{a}$", &["{a}"], &["a"]),
        ("^.$", &["a"], &["\n", "ab"]),
        ("^(?!foo)\\w+$", &["bar", "fo"], &["foobar", "foo"]),
        ("^(?=.*\\d)(?=.*[a-z]).{3,}$", &["a1x"], &["abc", "123"]),
        ("^(?:(?!x).)*$", &[], &[]),
        (
            "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$",
            &["P1W", "P1Y", "PT1H", "P1DT1M2.5S"],
            &["P", "PT", "P1W1D", "P1DT"],
        ),
        ("x(?!y)", &["xz", "x", "xyx"], &["xy", "y"]),
    ] {
        let Ok(rx) = pattern::search(text) else {
            assert!(good.is_empty(), "{text}");
            continue;
        };
        for good in good {
            assert_eq!(rx.matches(good), Some(true), "{text} {good:?}");
        }
        for bad in bad {
            assert_eq!(rx.matches(bad), Some(false), "{text} {bad:?}");
        }
    }
    for wrong in ["(", "a)", "[", "*", "a**", "\\", "a{2}{3}", "[b-a]", "(?<n", "\\q", "x{3,1}"] {
        assert!(matches!(pattern::search(wrong), Err(pattern::PatternError::Malformed(_))), "{wrong}");
    }
    for unsupported in ["\\bx", "(?<=a)b", "(a)\\1", "a++", "(?m)a", "(^a)+b", "\\p{Nonsense}"] {
        assert!(
            matches!(pattern::search(unsupported), Err(pattern::PatternError::Unsupported(_))),
            "{unsupported}"
        );
    }
}
