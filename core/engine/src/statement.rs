//! Which request a text of NSPL is (L-1, L-2).
//!
//! Owns the splitting into statements and the recognition of those that are requests of their own. Knows nothing else of the
//! language: whatever it does not recognise is the server's to judge.

use nervix_wire::types::{Diagnostic, SourceSpan};

/// What a client does with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    Command(Act),
    Use {
        domain: String,
    },
    ListDomains,
    /// `name` is what the statement seems to call the subscription; the server decides.
    Subscribe {
        name: String,
    },
    Unsubscribe {
        name: String,
    },
    AttachClock,
    DetachClock,
    /// Refused without asking a server.
    Refused {
        message: String,
        diagnostics: Vec<Diagnostic>,
    },
}

/// What a text asks for, as far as a host has to keep account of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statement<'a> {
    /// Nothing of the following, or nothing that is ever sent.
    Other,
    Begin,
    /// It has a transaction carried out, perhaps among other statements.
    Commit,
    /// It has a transaction reverted, perhaps among other statements.
    Revert,
    Use(&'a str),
    Subscribe,
    Unsubscribe(&'a str),
    AttachClock,
    DetachClock,
}

/// What a command does with the transaction that a session may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Begin,
    Commit,
    Revert,
    /// It changes nothing, and takes no position.
    Read,
    /// It is carried out at once, or appended to the transaction.
    Change,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word<'a> {
    text: &'a str,
    start: usize,
}

impl Word<'_> {
    fn end(&self) -> usize {
        self.start.saturating_add(self.text.len())
    }

    fn is(&self, keyword: &str) -> bool {
        self.text.eq_ignore_ascii_case(keyword)
    }
}

/// The words of each statement that is not empty. A quoted text is one word.
fn statements(query: &str) -> Vec<Vec<Word<'_>>> {
    let mut all = Vec::new();
    let mut words = Vec::new();
    let mut word: Option<usize> = None;
    let mut quoted = false;
    let mut comment = false;
    let mut chars = query.char_indices().peekable();
    let close = |word: &mut Option<usize>, words: &mut Vec<_>, end: usize| {
        if let Some(start) = word.take() {
            words.push(Word {
                text: query.get(start..end).unwrap_or_default(),
                start,
            });
        }
    };
    while let Some((at, c)) = chars.next() {
        if comment {
            comment = c != '\n';
        } else if quoted {
            // A doubled quote closes the text and opens it again at once, which comes to the same.
            quoted = c != '\'';
        } else if c == '/' && chars.peek().is_some_and(|&(_, next)| next == '/') {
            close(&mut word, &mut words, at);
            comment = true;
        } else if c == ';' {
            close(&mut word, &mut words, at);
            all.push(std::mem::take(&mut words));
        } else if c.is_whitespace() {
            close(&mut word, &mut words, at);
        } else {
            quoted = c == '\'';
            word.get_or_insert(at);
        }
    }
    close(&mut word, &mut words, query.len());
    all.push(words);
    all.retain(|words| !words.is_empty());
    all
}

/// Statements that a client of this library sends on their own, or not at all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    Use,
    ListDomains,
    Subscribe,
    Unsubscribe,
    AttachClock,
    DetachClock,
    /// A reading of transactions, which goes with no other statement.
    Transactions,
    Transaction(Act),
    Unsupported(&'static str),
}

fn special(words: &[Word<'_>]) -> Option<Special> {
    let starts = |keywords: &[&str]| {
        keywords.len() <= words.len()
            && words
                .iter()
                .zip(keywords)
                .all(|(word, keyword)| word.is(keyword))
    };
    let table: &[(&[&str], Special)] = &[
        (&["USE"], Special::Use),
        (&["LIST", "DOMAINS"], Special::ListDomains),
        (&["CREATE", "SUBSCRIPTION"], Special::Subscribe),
        (&["DELETE", "SUBSCRIPTION"], Special::Unsubscribe),
        (&["DESCRIBE", "TRANSACTION"], Special::Transactions),
        (&["SHOW", "TRANSACTIONS"], Special::Transactions),
        (&["ATTACH", "DOMAIN", "CLOCK"], Special::AttachClock),
        (&["DETACH", "DOMAIN", "CLOCK"], Special::DetachClock),
        (&["UPLOAD", "RESOURCE"], Special::Unsupported("uploads")),
        (&["BACKUP"], Special::Unsupported("backups")),
        (&["RESTORE"], Special::Unsupported("restores")),
        (&["BEGIN"], Special::Transaction(Act::Begin)),
        (&["COMMIT"], Special::Transaction(Act::Commit)),
        (&["REVERT"], Special::Transaction(Act::Revert)),
    ];
    table
        .iter()
        .find(|(keywords, _)| starts(keywords))
        .map(|(_, special)| *special)
}

fn refused(message: impl Into<String>) -> Route {
    Route::Refused {
        message: message.into(),
        diagnostics: Vec::new(),
    }
}

fn refused_at(message: impl Into<String>, start: usize, end: usize) -> Route {
    let message = message.into();
    let span = match (u32::try_from(start), u32::try_from(end)) {
        (Ok(start), Ok(end)) => Some(SourceSpan { start, end }),
        _ => None,
    };
    let diagnostics = vec![Diagnostic {
        message: message.clone(),
        span,
    }];
    Route::Refused {
        message,
        diagnostics,
    }
}

/// The one name after `keywords` words, or the refusal of what is there instead.
fn name(words: &[Word<'_>], keywords: usize, what: &str, alone: bool) -> Result<String, Route> {
    let Some(word) = words.get(keywords) else {
        let end = words.last().map_or(0, Word::end);
        return Err(refused_at(
            format!("the name of the {what} is missing"),
            end,
            end,
        ));
    };
    let legal = word
        .text
        .chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if !legal {
        return Err(refused_at(
            format!("this is not the name of a {what}"),
            word.start,
            word.end(),
        ));
    }
    match words.get(keywords.saturating_add(1)) {
        Some(extra) if alone => {
            let end = words.last().map_or(extra.end(), Word::end);
            Err(refused_at(
                format!("nothing may follow the name of the {what}"),
                extra.start,
                end,
            ))
        }
        _ => Ok(word.text.to_owned()),
    }
}

/// Refuses words after a statement that is whole.
fn nothing_after(words: &[Word<'_>], keywords: usize) -> Result<(), Route> {
    match (words.get(keywords), words.last()) {
        (Some(extra), Some(last)) => Err(refused_at(
            "nothing may follow here: the statement is whole before it",
            extra.start,
            last.end(),
        )),
        _ => Ok(()),
    }
}

fn act(words: &[Word<'_>]) -> Act {
    match special(words) {
        Some(Special::Transaction(act)) => act,
        _ if words.first().is_some_and(|word| {
            ["SHOW", "DESCRIBE", "LOOKUP"]
                .iter()
                .any(|read| word.is(read))
        }) =>
        {
            Act::Read
        }
        _ => Act::Change,
    }
}

/// Decides what to do with a text (L-2), and what of it a session that holds a transaction may not send (L-3).
pub(crate) fn route(query: &str, in_transaction: bool) -> Route {
    let all = statements(query);
    let words = match all.as_slice() {
        [] => return refused("the query holds no statement"),
        [words] => words,
        several => {
            let apart = |words: &Vec<Word<'_>>| {
                special(words).is_some_and(|special| !matches!(special, Special::Transaction(_)))
            };
            return if several.iter().any(apart) {
                refused("this statement is sent on its own: run it apart from the others")
            } else if in_transaction
                || several
                    .first()
                    .is_some_and(|words| act(words) == Act::Begin)
            {
                let ends = several
                    .iter()
                    .map(|words| act(words))
                    .find(|act| matches!(act, Act::Commit | Act::Revert));
                let begins = several
                    .iter()
                    .map(|words| act(words))
                    .find(|act| *act == Act::Begin);
                Route::Command(ends.or(begins).unwrap_or(Act::Change))
            } else {
                refused(
                    "several statements run together only in a transaction: run them one by one",
                )
            };
        }
    };
    let held = in_transaction
        && matches!(
            special(words),
            Some(
                Special::Use
                    | Special::Subscribe
                    | Special::Unsubscribe
                    | Special::AttachClock
                    | Special::DetachClock
                    | Special::Unsupported("backups" | "restores")
            )
        );
    if held {
        return refused("this statement is not sent while the session holds a transaction: COMMIT or REVERT it first");
    }
    let route = match special(words) {
        None | Some(Special::Transactions | Special::Transaction(_)) => {
            Ok(Route::Command(act(words)))
        }
        Some(Special::ListDomains) => nothing_after(words, 2).map(|()| Route::ListDomains),
        Some(Special::AttachClock) => nothing_after(words, 3).map(|()| Route::AttachClock),
        Some(Special::DetachClock) => nothing_after(words, 3).map(|()| Route::DetachClock),
        Some(Special::Use) => name(words, 1, "domain", true).map(|domain| Route::Use { domain }),
        Some(Special::Unsubscribe) => {
            name(words, 2, "subscription", true).map(|name| Route::Unsubscribe { name })
        }
        // What is wrong with it is the server's to say, in its own words and with its own span.
        Some(Special::Subscribe) => Ok(Route::Subscribe {
            name: words
                .get(2)
                .map_or_else(String::new, |word| word.text.to_owned()),
        }),
        Some(Special::Unsupported(what)) => Err(refused(format!(
            "this version of the client does not support {what} yet"
        ))),
    };
    route.unwrap_or_else(|refusal| refusal)
}

/// Whether a text is one statement.
pub(crate) fn is_one_statement(query: &str) -> bool {
    statements(query).len() == 1
}

/// What a text asks for, and whether it begins a transaction, alone or among others. The names are parts of the text.
pub fn recognise(query: &str) -> (Statement<'_>, bool) {
    let route = match route(query, false) {
        // Several statements are of a transaction.
        Route::Refused { .. } => route(query, true),
        route => route,
    };
    let all = statements(query);
    let word = |at: usize| {
        let words = all.first();
        words
            .and_then(|words| words.get(at))
            .map_or("", |word| word.text)
    };
    let statement = match route {
        Route::Command(Act::Begin) => Statement::Begin,
        Route::Command(Act::Commit) => Statement::Commit,
        Route::Command(Act::Revert) => Statement::Revert,
        Route::Use { .. } => Statement::Use(word(1)),
        Route::Subscribe { .. } => Statement::Subscribe,
        Route::Unsubscribe { .. } => Statement::Unsubscribe(word(2)),
        Route::AttachClock => Statement::AttachClock,
        Route::DetachClock => Statement::DetachClock,
        Route::Command(Act::Read | Act::Change) | Route::ListDomains | Route::Refused { .. } => {
            Statement::Other
        }
    };
    let begins =
        matches!(route, Route::Command(_)) && all.iter().any(|words| act(words) == Act::Begin);
    (statement, begins)
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

    fn is_refused(query: &str) -> bool {
        matches!(route(query, false), Route::Refused { .. })
    }

    fn span(query: &str) -> (u32, u32) {
        match route(query, false) {
            Route::Refused { diagnostics, .. } => {
                diagnostics[0].span.map(|s| (s.start, s.end)).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    // rule: L-2
    #[test]
    fn recognises_the_statements_that_are_requests_of_their_own() {
        assert_eq!(route("use  d ;", false), Route::Use { domain: "d".into() });
        assert_eq!(route("USE d", false), Route::Use { domain: "d".into() });
        assert_eq!(
            route("// first\nlist // x;\n domains;;", false),
            Route::ListDomains
        );
        assert_eq!(
            route("Create\tSubscription s TO r;", false),
            Route::Subscribe { name: "s".into() }
        );
        assert_eq!(
            route("DELETE SUBSCRIPTION s;", false),
            Route::Unsubscribe { name: "s".into() }
        );
        assert_eq!(
            route("CREATE SUBSCRIPTION;", false),
            Route::Subscribe {
                name: String::new()
            }
        );
        assert_eq!(
            route("SHOW TRANSACTIONS;", false),
            Route::Command(Act::Read)
        );
        assert_eq!(route("CREATE RELAY;", false), Route::Command(Act::Change));
        assert_eq!(route("USED d;", false), Route::Command(Act::Change));
    }

    // rule: L-2
    #[test]
    fn refuses_several_statements_and_none() {
        for query in [
            "",
            " ;; // x",
            "SHOW UDFS; SHOW UDFS;",
            "USE d; SHOW UDFS;",
            "SHOW TRANSACTIONS; SHOW UDFS",
        ] {
            assert!(is_refused(query), "{query}");
        }
    }

    // rule: L-3, X-2
    #[test]
    fn a_transaction_takes_several_statements_and_refuses_what_is_not_of_it() {
        assert_eq!(
            route("DROP RELAY a; DROP RELAY b;", true),
            Route::Command(Act::Change)
        );
        assert_eq!(
            route("DROP RELAY a; COMMIT;", true),
            Route::Command(Act::Commit)
        );
        assert_eq!(
            route("BEGIN; DROP RELAY a;", false),
            Route::Command(Act::Begin)
        );
        assert_eq!(route("COMMIT;", true), Route::Command(Act::Commit));
        assert_eq!(route("SHOW UDFS;", true), Route::Command(Act::Read));
        assert_eq!(route("LIST DOMAINS;", true), Route::ListDomains);
        for query in [
            "USE d;",
            "CREATE SUBSCRIPTION s TO r;",
            "DELETE SUBSCRIPTION s;",
            "ATTACH DOMAIN CLOCK;",
            "DETACH DOMAIN CLOCK;",
            "BACKUP CLUSTER TO 'x';",
            "RESTORE CLUSTER FROM 'x';",
            "DROP RELAY a; USE d;",
            "SHOW TRANSACTIONS; SHOW UDFS;",
        ] {
            assert!(
                matches!(route(query, true), Route::Refused { .. }),
                "{query}"
            );
        }
    }

    // rule: L-1, L-2
    #[test]
    fn what_a_text_asks_for_is_said_with_its_name() {
        for (query, statement, begins) in [
            ("begin", Statement::Begin, true),
            (";commit;;", Statement::Commit, false),
            ("// a\nREVERT // b\n;", Statement::Revert, false),
            ("USE // x; y\n a-b.c ; ", Statement::Use("a-b.c"), false),
            ("USE a b", Statement::Other, false),
            ("CREATE SUBSCRIPTION s TO r", Statement::Subscribe, false),
            (
                "DELETE SUBSCRIPTION s;;",
                Statement::Unsubscribe("s"),
                false,
            ),
            ("ATTACH DOMAIN CLOCK", Statement::AttachClock, false),
            ("DETACH DOMAIN CLOCK;", Statement::DetachClock, false),
            ("DROP RELAY a; COMMIT;", Statement::Commit, false),
            ("BEGIN; DROP RELAY a;", Statement::Begin, true),
            ("BEGIN; DROP RELAY a; COMMIT;", Statement::Commit, true),
            ("DROP RELAY a; BEGIN;", Statement::Begin, true),
            ("DROP RELAY begin;", Statement::Other, false),
            ("LOOKUP 'BEGIN;' x;", Statement::Other, false),
            ("LIST DOMAINS;", Statement::Other, false),
            ("USE a; COMMIT;", Statement::Other, false),
            ("", Statement::Other, false),
        ] {
            assert_eq!(recognise(query), (statement, begins), "{query}");
        }
    }

    // rule: L-2
    #[test]
    fn quotes_and_comments_hide_semicolons() {
        assert_eq!(
            route("LOOKUP 'a;''b;' // c; d\n;", false),
            Route::Command(Act::Read)
        );
        assert_eq!(
            route("LOOKUP 'a // not a comment' x;", false),
            Route::Command(Act::Read)
        );
        assert!(is_refused("LOOKUP 'a'; LOOKUP 'b'"));
    }

    // rule: L-2
    #[test]
    fn a_refusal_points_at_what_is_wrong() {
        assert_eq!(span("USE;"), (3, 3));
        assert_eq!(span("USE 'a';"), (4, 7));
        assert_eq!(span("DELETE SUBSCRIPTION a b c;"), (22, 25));
        assert_eq!(span("LIST DOMAINS x;"), (13, 14));
    }

    proptest! {
        // rule: L-2
        #[test]
        fn any_text_is_routed_and_spans_lie_in_it(query in "(USE|LIST|DOMAINS|DELETE SUBSCRIPTION|[ ;'/\\né世a])*") {
            if let Route::Refused { diagnostics, .. } = route(&query, false) {
                for diagnostic in diagnostics {
                    let span = diagnostic.span.unwrap();
                    prop_assert!(query.get(span.start as usize..span.end as usize).is_some());
                }
            }
        }
    }
}
