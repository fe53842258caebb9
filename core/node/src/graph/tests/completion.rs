use nervix_wire::types::{SuggestOutcome, SuggestionStatus};

use super::*;

fn graph() -> World {
    world(&[
        "CREATE UNPACED DOMAIN another",
        "CREATE SCHEMA rows (a U8)",
        "CREATE RELAY readings SCHEMA rows UNBRANCHED",
        "CREATE RELAY rejections SCHEMA rows UNBRANCHED",
    ])
}

/// `input` with the cursor at `|`.
fn suggest(world: &World, domain: Option<&str>, input: &str) -> SuggestOutcome {
    let cursor = input.find('|').unwrap();
    world.suggest(domain, &input.replace('|', ""), cursor, 100, None)
}

fn values(outcome: &SuggestOutcome) -> Vec<&str> {
    assert_eq!(outcome.status, SuggestionStatus::Ready);
    outcome
        .suggestions
        .iter()
        .map(|suggestion| suggestion.value.as_str())
        .collect()
}

#[test]
fn names_and_keywords_are_offered_where_they_may_stand() {
    let world = graph();
    for (input, expected) in [
        ("CREATE SUBSCRIPTION n TO |", vec!["readings", "rejections"]),
        ("CREATE SUBSCRIPTION n TO rea|", vec!["readings"]),
        ("create subscription n to REJ|", vec!["rejections"]),
        ("CREATE RELAY r SCHEMA |", vec!["rows"]),
        ("USE |", vec!["another", "d"]),
        ("STOP; DROP REL|", vec!["RELAY"]),
        (
            "CREATE RELAY r SCHEMA rows |",
            vec!["BRANCHED", "UNBRANCHED"],
        ),
        ("STA|", vec!["START"]),
        ("CREATE SCHEMA s (a ST|)", vec!["STRING"]),
        (
            "CREATE SUBSCRIPTION n TO readings B|",
            vec!["BATCH", "BLOCKING"],
        ),
        ("NONSENSE |", vec![]),
        ("START AT '20|", vec![]),
    ] {
        let outcome = suggest(&world, Some("d"), input);
        assert_eq!(values(&outcome), expected, "{input}");
    }
}

#[test]
fn names_of_a_domain_need_one() {
    let world = graph();
    for domain in [None, Some("gone")] {
        let outcome = suggest(&world, domain, "DROP RELAY |");
        assert_eq!(outcome.status, SuggestionStatus::MissingContext);
    }
    assert_eq!(values(&suggest(&world, None, "USE a|")), ["another"]);
}

#[test]
fn an_edit_replaces_the_word_at_the_cursor_in_bytes() {
    let world = graph();
    let input = "UPLOAD RESOURCE x VERSION 'é世'; DROP RELAY readXYZ;";
    let cursor = input.find("XYZ").unwrap();
    let outcome = world.suggest(Some("d"), input, cursor, 10, None);
    let edit = &outcome.suggestions[0].edit;
    let mut edited = input.to_string();
    edited.replace_range(edit.start as usize..edit.end as usize, &edit.replacement);
    assert_eq!(
        edited,
        "UPLOAD RESOURCE x VERSION 'é世'; DROP RELAY readings;"
    );
    // Inside of a character, and past the end, nothing can be edited.
    for cursor in [input.find('é').unwrap() + 1, input.len() + 1] {
        let outcome = world.suggest(Some("d"), input, cursor, 10, None);
        assert_eq!(outcome.status, SuggestionStatus::LookupFailed);
    }
}

#[test]
fn pages_follow_each_other_and_notice_a_changed_text() {
    let mut world = graph();
    let all: Vec<String> = {
        let outcome = suggest(&world, Some("d"), "|");
        values(&outcome)
            .iter()
            .map(|value| (*value).to_string())
            .collect()
    };
    let mut paged = Vec::new();
    let mut continuation: Option<String> = None;
    loop {
        let page = world.suggest(Some("d"), "", 0, 5, continuation.as_deref());
        assert!(page.suggestions.len() <= 5);
        paged.extend(values(&page).iter().map(|value| (*value).to_string()));
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
    }
    assert_eq!(paged, all);
    let page = world.suggest(Some("d"), "DROP RELAY ", 11, 1, None);
    let next = page.continuation.unwrap();
    for stale in [&next, &"nonsense".to_string()] {
        let outcome = world.suggest(Some("d"), "DROP RELAY r", 12, 1, Some(stale));
        assert_eq!(outcome.status, SuggestionStatus::StaleContext);
    }
    assert_eq!(
        values(&world.suggest(Some("d"), "DROP RELAY ", 11, 1, Some(&next))),
        ["rejections"]
    );
    done(&mut world, "DROP RELAY readings");
    let outcome = world.suggest(Some("d"), "DROP RELAY ", 11, 1, Some(&next));
    assert_eq!(outcome.status, SuggestionStatus::StaleContext);
}
