//! Completion: what the parser expects at the cursor, with the names that exist filled in.

use nervix_wire::types::{SuggestOutcome, Suggestion, SuggestionKind, SuggestionStatus, TextEdit};

use super::World;
use crate::lang::ast::Kind;
use crate::lang::parse::{expected_at_end, Expected};

fn outcome(status: SuggestionStatus) -> SuggestOutcome {
    SuggestOutcome {
        status,
        suggestions: Vec::new(),
        continuation: None,
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// One page of completions; a continuation is the number of suggestions before it and what they were made of.
pub fn suggest(
    world: &World,
    domain: Option<&str>,
    input: &str,
    cursor: usize,
    page_size: usize,
    continuation: Option<&str>,
) -> SuggestOutcome {
    let Some((before, after)) = input.split_at_checked(cursor) else {
        return outcome(SuggestionStatus::LookupFailed);
    };
    // The word the cursor stands in is being typed: it chooses among what may stand there, and is replaced.
    let start = before.trim_end_matches(is_word).len();
    let end = cursor + after.len() - after.trim_start_matches(is_word).len();
    let (Some(settled), Some(typed)) = (before.get(..start), before.get(start..)) else {
        return outcome(SuggestionStatus::LookupFailed);
    };
    let expected = expected_at_end(settled);
    let needs_domain =
        |expected: &Expected| matches!(expected, Expected::Existing(kind) if *kind != Kind::Domain);
    let selected = domain.and_then(|name| world.domains.get(name));
    if selected.is_none() && !expected.is_empty() && expected.iter().all(needs_domain) {
        return outcome(SuggestionStatus::MissingContext);
    }
    let mut values: Vec<String> = Vec::new();
    for expected in &expected {
        match expected {
            Expected::Keyword(word) => values.push((*word).to_string()),
            Expected::Existing(Kind::Domain) => values.extend(world.domains.keys().cloned()),
            Expected::Existing(kind) => values.extend(
                selected
                    .iter()
                    .flat_map(|domain| domain.catalog.names(*kind))
                    .map(str::to_string),
            ),
            _ => (),
        }
    }
    values.retain(|value| {
        value
            .get(..typed.len())
            .is_some_and(|head| head.eq_ignore_ascii_case(typed))
    });
    values.sort_unstable();
    values.dedup();
    let token = fingerprint(input, cursor, &values);
    let skipped = match continuation {
        None => 0,
        Some(continuation) => match position(continuation, &token) {
            Some(position) if position <= values.len() => position,
            _ => return outcome(SuggestionStatus::StaleContext),
        },
    };
    let (Ok(edit_start), Ok(edit_end)) = (u32::try_from(start), u32::try_from(end)) else {
        return outcome(SuggestionStatus::LookupFailed);
    };
    let next = skipped.saturating_add(page_size);
    let continuation = (next < values.len()).then(|| format!("{next}.{token}"));
    let suggestions = values
        .into_iter()
        .skip(skipped)
        .take(page_size)
        .map(|value| Suggestion {
            edit: TextEdit {
                start: edit_start,
                end: edit_end,
                replacement: value.clone(),
            },
            value,
            kind: SuggestionKind::Text,
        })
        .collect();
    SuggestOutcome {
        status: SuggestionStatus::Ready,
        suggestions,
        continuation,
    }
}

/// Stands for what a page was cut from, so that a continuation over something else is noticed.
fn fingerprint(input: &str, cursor: usize, values: &[String]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&cursor.to_le_bytes());
    for text in std::iter::once(input).chain(values.iter().map(String::as_str)) {
        hasher.update(&text.len().to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize().to_hex().chars().take(16).collect()
}

fn position(continuation: &str, token: &str) -> Option<usize> {
    let (position, of) = continuation.split_once('.')?;
    (of == token).then(|| position.parse().ok())?
}
