//! Where one statement ends and the next begins, and which statements are requests of their own. Must not know what
//! any of them mean.

/// One statement of a text, with its semicolon where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement<'a> {
    pub text: &'a str,
    /// Byte offset of its first word in the text it was cut from.
    pub start: usize,
}

impl Statement<'_> {
    /// Enough of the statement to know it by.
    pub fn brief(&self) -> String {
        const LENGTH: usize = 80;
        let mut brief: String = self.text.chars().take(LENGTH).collect();
        if brief.len() < self.text.len() {
            brief.push('…');
        }
        brief
    }
}

/// Cuts a text at the semicolons outside quotes and comments; empty statements do not count.
pub fn split(text: &str) -> Vec<Statement<'_>> {
    let mut statements = Vec::new();
    let mut start = None;
    let mut quoted = false;
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        if quoted {
            // A doubled quote closes and opens again, which comes to the same.
            quoted = byte != b'\'';
            continue;
        }
        match byte {
            b'/' if matches!(bytes.peek(), Some((_, b'/'))) => {
                for (_, byte) in bytes.by_ref() {
                    if byte == b'\n' {
                        break;
                    }
                }
            }
            b';' => {
                if let Some(start) = start.take() {
                    statements.extend(text.get(start..=at).map(|text| Statement { text, start }));
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            byte => {
                quoted = byte == b'\'';
                start.get_or_insert(at);
            }
        }
    }
    if let Some(start) = start {
        statements.extend(text.get(start..).map(|text| Statement {
            text: text.trim_end(),
            start,
        }));
    }
    statements
}

/// The first words of a statement in capitals, comments left out.
fn words(statement: &str, count: usize) -> Vec<String> {
    let mut words = Vec::new();
    for line in statement.lines() {
        let code = line.split("//").next().unwrap_or_default();
        for word in code
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| !word.is_empty())
        {
            if words.len() == count {
                return words;
            }
            words.push(word.to_ascii_uppercase());
        }
    }
    words
}

/// The request a client sends for a statement that is no command, if it is one of those.
pub fn request_of_its_own(statement: &str) -> Option<&'static str> {
    let words = words(statement, 3);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["USE", ..] => Some("no request: the client puts the selected domain in every request"),
        ["LIST", "DOMAINS", ..] => Some("ListDomainsRequest"),
        ["CREATE", "SUBSCRIPTION", ..] => Some("SubscribeRequest"),
        ["DELETE", "SUBSCRIPTION", ..] => Some("UnsubscribeRequest"),
        ["ATTACH", "DOMAIN", "CLOCK"] => Some("AttachDomainClockRequest"),
        ["DETACH", "DOMAIN", "CLOCK"] => Some("DetachDomainClockRequest"),
        ["UPLOAD", "RESOURCE", ..] => Some("an UploadResource call"),
        ["RESTORE", ..] => Some("a RestoreBackup call"),
        _ => None,
    }
}

/// The domain a USE statement selects.
pub fn use_domain(statement: &str) -> Option<String> {
    if words(statement, 1).first().map(String::as_str) != Some("USE") {
        return None;
    }
    let code: String = statement
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join(" ");
    let mut words = code.trim().trim_end_matches(';').split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(_), Some(domain), None) => Some(domain.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        split(text)
            .into_iter()
            .map(|statement| statement.text)
            .collect()
    }

    // rule: L-2
    #[test]
    fn statements_end_at_semicolons_outside_quotes_and_comments() {
        assert_eq!(texts("A;B ;"), ["A;", "B ;"]);
        assert_eq!(texts("A 'x;''y' ; // B;\n C"), ["A 'x;''y' ;", "C"]);
        assert_eq!(texts(" ;; // only a comment;\n"), Vec::<&str>::new());
        assert_eq!(texts("é; ü"), ["é;", "ü"]);
        assert_eq!(
            split("  A; B").get(1).map(|statement| statement.start),
            Some(5)
        );
    }

    // rule: L-2
    #[test]
    fn statements_that_are_requests_name_their_request() {
        assert_eq!(
            request_of_its_own("list // all\n domains;"),
            Some("ListDomainsRequest")
        );
        assert_eq!(
            request_of_its_own("create subscription s to r;"),
            Some("SubscribeRequest")
        );
        assert_eq!(
            request_of_its_own("DELETE SUBSCRIPTION s;"),
            Some("UnsubscribeRequest")
        );
        assert_eq!(
            request_of_its_own("ATTACH DOMAIN CLOCK;"),
            Some("AttachDomainClockRequest")
        );
        assert_eq!(
            request_of_its_own("RESTORE CLUSTER FROM 'x';"),
            Some("a RestoreBackup call")
        );
        assert_eq!(
            request_of_its_own("CREATE RELAY r SCHEMA s UNBRANCHED;"),
            None
        );
        assert!(request_of_its_own("USE d").is_some());
    }

    #[test]
    fn use_names_its_domain() {
        assert_eq!(use_domain("USE d;"), Some("d".to_owned()));
        assert_eq!(use_domain("use\n d // c\n ;"), Some("d".to_owned()));
        assert_eq!(use_domain("USE a b;"), None);
        assert_eq!(use_domain("START;"), None);
    }
}
