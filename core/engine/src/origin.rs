//! Server addresses (T-2).
//!
//! Owns what counts as an address and when one may be followed. Knows nothing of names, sockets or TLS.

use std::fmt;

/// The port a session address without one means.
pub const DEFAULT_PORT: u16 = 47391;

/// The longest name that name resolution knows, which bounds what a server may have a client remember.
const HOST_LIMIT: usize = 255;

/// An http or https origin.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    pub secure: bool,
    /// A name, an IPv4 address, or an IPv6 address without its brackets.
    pub host: String,
    pub port: u16,
}

impl Origin {
    /// Reads an origin; the error says what is wrong with the text, in one sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (secure, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            _ => return Err(refusal(text, "it must begin with http:// or https://")),
        };
        if rest.contains(['?', '#']) {
            return Err(refusal(text, "it must have no query and no fragment"));
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('/') {
            return Err(refusal(text, "its path must be /"));
        }
        if authority.contains('@') {
            return Err(
                "the server address must have no user information: pass the credentials apart"
                    .to_owned(),
            );
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(bracketed) => {
                let Some((host, after)) = bracketed.split_once(']') else {
                    return Err(refusal(text, "its IPv6 address has no closing bracket"));
                };
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(refusal(text, "what its brackets hold is no IPv6 address"));
                }
                (
                    host,
                    after
                        .strip_prefix(':')
                        .or(if after.is_empty() { Some("") } else { None }),
                )
            }
            None => match authority.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, Some(port)),
                Some(_) => return Err(refusal(text, "an IPv6 address needs brackets")),
                None => (authority, Some("")),
            },
        };
        let port = match port {
            Some("") if !authority.ends_with(':') => DEFAULT_PORT,
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                match digits.parse() {
                    Ok(port) if port != 0 => port,
                    _ => return Err(refusal(text, "its port must be 1 to 65535")),
                }
            }
            _ => return Err(refusal(text, "its port must be a number")),
        };
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':');
        if host.is_empty() || host.len() > HOST_LIMIT || !host.bytes().all(legal) {
            return Err(refusal(text, "its host is missing or is no host name"));
        }
        Ok(Self {
            secure,
            host: host.to_ascii_lowercase(),
            port,
        })
    }

    /// Whether a client that started at `self` may follow a redirect or a seed to `other`: never from https to http.
    pub fn may_lead_to(&self, other: &Origin) -> bool {
        other.secure || !self.secure
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

fn refusal(text: &str, why: &str) -> String {
    // An address with user information may hold a password, so its text is never repeated.
    // One that a server named may be of any length.
    if text.contains('@') || text.len() > HOST_LIMIT {
        format!("the server address is not usable: {why}")
    } else {
        format!("the server address {text:?} is not usable: {why}, as in http://127.0.0.1:{DEFAULT_PORT}")
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // rule: T-2
    #[test]
    fn reads_origins() {
        let origin = Origin::parse("HTTP://Node-1.example:99/").unwrap();
        assert_eq!(
            origin,
            Origin {
                secure: false,
                host: "node-1.example".into(),
                port: 99
            }
        );
        assert_eq!(
            Origin::parse("http://127.0.0.1").unwrap().port,
            DEFAULT_PORT
        );
        assert_eq!(
            Origin::parse("https://[::1]:5").unwrap().to_string(),
            "https://[::1]:5"
        );
        assert_eq!(Origin::parse("https://[::1]").unwrap().port, DEFAULT_PORT);
    }

    // rule: T-2
    #[test]
    fn refuses_what_is_no_origin() {
        for text in [
            "",
            "127.0.0.1:1",
            "ftp://a",
            "http://",
            "http://:1",
            "http://a:",
            "http://a:0",
            "http://a:65536",
            "http://a:+1",
            "http://a/b",
            "http://a//",
            "http://a?b",
            "http://a#b",
            "http://u:p@a",
            "http://[::1",
            "http://[::1]x",
            "http://[zz]:1",
            "http://::1:2",
            "http://a b",
            "http://a\0b",
            "http://a:1:2",
            "http://[::1]:",
        ] {
            assert!(Origin::parse(text).is_err(), "{text}");
        }
        let long = format!("http://{}", "a".repeat(256));
        assert!(Origin::parse(&long).is_err() && Origin::parse(&long[..262]).is_ok());
        assert!(!Origin::parse("http://user:secret@a/x")
            .unwrap_err()
            .contains("secret"));
    }

    // rule: T-2
    #[test]
    fn never_leads_from_https_to_http() {
        let (plain, secure) = (
            Origin::parse("http://a").unwrap(),
            Origin::parse("https://a").unwrap(),
        );
        assert!(
            plain.may_lead_to(&secure) && plain.may_lead_to(&plain) && secure.may_lead_to(&secure)
        );
        assert!(!secure.may_lead_to(&plain));
    }

    proptest! {
        // rule: T-2
        #[test]
        fn parsing_never_panics_and_printing_reads_back(text in "(http://|https://)?[a-z0-9:@/\\[\\]\\.#?é-]{0,20}") {
            if let Ok(origin) = Origin::parse(&text) {
                prop_assert_eq!(Origin::parse(&origin.to_string()).unwrap(), origin);
            }
        }
    }
}
