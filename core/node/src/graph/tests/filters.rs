use nervix_wire::types::RowsSkippedCause;

use super::*;

const SCHEMA: &str = "CREATE SCHEMA s (id U32, u8v U8, i8v I8, u64v U64, i64v I64 OPTIONAL, f32v F32, f64v F64, flag BOOL, \
     maybe BOOL OPTIONAL, text STRING, raw BYTES, at DATETIME, tags VEC<STRING> OPTIONAL, secret STRING SENSITIVE)";

/// Three rows that differ in everything.
const ROWS: &str = r#"[
  {"id":1,"u8v":255,"i8v":-128,"u64v":18446744073709551615,"i64v":-1,"f32v":1.5,"f64v":{"bits":"7ff8000000000001"},"flag":true,
   "maybe":true,"text":"abc","raw":{"hex":"00ff"},"at":0,"tags":["x"],"secret":"s"},
  {"id":2,"u8v":0,"i8v":127,"u64v":0,"i64v":null,"f32v":-0.0,"f64v":0.1,"flag":false,
   "maybe":null,"text":"","raw":{"hex":""},"at":9223372036854775807,"tags":null,"secret":"s"},
  {"id":3,"u8v":7,"i8v":0,"u64v":9223372036854775808,"i64v":3,"f32v":2,"f64v":2,"flag":true,
   "maybe":false,"text":"it's","raw":{"hex":"00"},"at":1767225600000000000,"tags":[],"secret":"s"}
]"#;

fn graph() -> World {
    world(&[SCHEMA, "CREATE RELAY r SCHEMA s UNBRANCHED", "START"])
}

/// The ids a filter keeps, and what it skipped.
fn kept(world: &mut World, filter: &str) -> (Vec<u32>, Vec<(RowsSkippedCause, u64, String)>) {
    let opened = subscribe(world, &format!("CREATE SUBSCRIPTION n TO r WHERE {filter}"));
    let published = publish(world, "r", ROWS);
    assert!(world.unsubscribe(opened.id));
    match published.deliveries.first() {
        None => (Vec::new(), Vec::new()),
        Some(delivery) => (
            first_column(delivery, &opened.schema)
                .iter()
                .map(|id| id.parse().unwrap())
                .collect(),
            delivery.skipped.clone(),
        ),
    }
}

#[test]
fn filters_keep_the_rows_for_which_they_are_true() {
    let mut world = graph();
    for (filter, ids) in [
        ("TRUE", vec![1, 2, 3]),
        ("NULL", vec![]),
        ("flag", vec![1, 3]),
        ("NOT flag", vec![2]),
        ("maybe", vec![1]),
        ("NOT maybe", vec![3]),
        ("maybe OR id = 2", vec![1, 2]),
        ("maybe IS NULL", vec![2]),
        ("maybe IS NOT NULL AND NOT maybe", vec![3]),
        ("tags IS NULL", vec![2]),
        ("i64v != 3", vec![1]),
        ("i64v = NULL", vec![]),
        ("NOT (maybe AND flag)", vec![2, 3]),
        ("input.id = 1 OR message.id = 3", vec![1, 3]),
        ("u8v = 255", vec![1]),
        ("u8v < 300", vec![1, 2, 3]),
        ("u8v > i8v", vec![1, 3]),
        ("u64v > 9223372036854775807", vec![1, 3]),
        ("u64v > i64v", vec![1, 3]),
        ("i8v <= -128", vec![1]),
        ("u8v / 2 = 127", vec![1]),
        ("u8v - 7 = 0 OR u8v = 0", vec![3]),
        ("f32v = 0", vec![2]),
        ("f32v >= 1.5", vec![1, 3]),
        ("f64v = f64v", vec![2, 3]),
        ("f64v != f64v", vec![1]),
        ("f64v = 0.1", vec![2]),
        ("f64v = f32v", vec![3]),
        ("f32v / 0.0 > 0.0", vec![1, 3]),
        (
            "2 + 3 * 4 = 14 AND 7 / 2 = 3 AND 1 + 0.5 = 1.5",
            vec![1, 2, 3],
        ),
        ("text = 'it''s'", vec![3]),
        ("text < 'abd' AND text >= 'abc'", vec![1]),
        ("raw = raw", vec![1, 2, 3]),
        ("at = '1970-01-01T00:00:00Z'", vec![1]),
        ("at > '2026-01-01T00:00:00+01:00'", vec![2, 3]),
        ("at = now()", vec![3]),
        ("now() - at > 1h", vec![1]),
        ("at <= now() + 1ns - 1ns AND id = 3", vec![3]),
    ] {
        let (found, skipped) = kept(&mut world, filter);
        if filter.contains("u8v - 7") {
            assert_eq!(skipped.len(), 1, "{filter}");
        } else {
            assert_eq!(skipped, [], "{filter}");
        }
        assert_eq!(found, ids, "{filter}");
    }
}

#[test]
fn a_row_on_which_the_filter_fails_is_skipped_and_counted() {
    let mut world = graph();
    for (filter, ids, count, says) in [
        ("u8v + 1 > 0", vec![2, 3], 1, "does not fit"),
        ("i8v - 1 < 0", vec![3], 1, "does not fit"),
        ("-i8v <= 0", vec![2, 3], 1, "does not fit"),
        ("u64v * 2 >= 0", vec![2], 2, "does not fit"),
        ("10 / u8v >= 0", vec![1, 3], 1, "divided by zero"),
        ("at + 1s > at", vec![1, 3], 1, "does not fit"),
    ] {
        let (found, skipped) = kept(&mut world, filter);
        assert_eq!(found, ids, "{filter}");
        let [(RowsSkippedCause::FilterFailed, skipped_rows, message)] = skipped.as_slice() else {
            panic!("{filter}: {skipped:?}");
        };
        assert_eq!(*skipped_rows, count, "{filter}");
        assert!(message.contains(says), "{filter}: {message}");
    }
}

#[test]
fn and_and_or_stop_at_the_side_that_decides() {
    let mut world = graph();
    assert_eq!(
        kept(&mut world, "u8v != 0 AND 10 / u8v >= 0"),
        (vec![1, 3], vec![])
    );
    assert_eq!(
        kept(&mut world, "u8v = 0 OR 10 / u8v >= 0"),
        (vec![1, 2, 3], vec![])
    );
}

#[test]
fn without_domain_time_now_skips_the_rows_that_ask_for_it() {
    let mut world = graph();
    done(&mut world, "STOP");
    let (ids, skipped) = kept(&mut world, "id = 1 OR at < now()");
    assert_eq!(ids, [1]);
    let [(RowsSkippedCause::DomainTimeUnavailable, 2, _)] = skipped.as_slice() else {
        panic!("{skipped:?}");
    };
}

#[test]
fn now_is_the_time_of_the_domain() {
    let mut world = World::new();
    load(
        &mut world,
        "CREATE PACED DOMAIN d WITH PERIOD 100ms SKEW 10ms; USE d; CREATE SCHEMA s (at DATETIME);
         CREATE RELAY r SCHEMA s UNBRANCHED; START AT '2030-01-01T00:00:00Z' TIME RATE 0.3;",
    );
    let opened = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r WHERE at = now()");
    // 10 ns at a rate of 0.3 are 3, in the double arithmetic every clock of the domain uses; before the anchor it is its origin.
    for (elapsed, logical) in [
        (10, 3),
        (0, 0),
        (-5_000_000_000, 0),
        (2_000_000_000, 600_000_000),
    ] {
        let row = serde_json::json!({"at": 1_893_456_000_000_000_000_i64 + logical});
        let published = world
            .publish_json(Now(NOW.0 + elapsed), "d", "r", &row)
            .unwrap();
        assert_eq!(
            delivery_to(&published, opened.id).frames.len(),
            1,
            "{elapsed}"
        );
    }
}

#[test]
fn a_filter_that_makes_no_sense_is_refused_where_it_does_not() {
    let mut world = graph();
    for (filter, offending) in [
        ("nothing = 1", "nothing"),
        ("input.nothing = 1", "input.nothing"),
        ("error.code = 'x'", "error.code"),
        ("id", "id"),
        ("id = 'x'", "id = 'x'"),
        ("text = 1", "text = 1"),
        ("id AND flag", "id"),
        ("NOT id", "id"),
        ("flag < TRUE", "flag < TRUE"),
        ("id + i64v = 0", "id + i64v"),
        ("u8v + 256 = 0", "256"),
        ("text + 'x' = 'y'", "text + 'x'"),
        ("-u8v = 0", "-u8v"),
        ("tags = tags", "tags = tags"),
        ("at = 'yesterday'", "'yesterday'"),
        ("at + at = at", "at + at"),
        ("f32v = 1e39", "1e39"),
        ("id = 1.5", "id = 1.5"),
        ("f64v = id", "f64v = id"),
    ] {
        let statement = format!("CREATE SUBSCRIPTION n TO r WHERE {filter}");
        let failure = world.subscribe("d", &statement).unwrap_err();
        let span = failure.diagnostics[0].span.unwrap();
        let covered = &statement[span.start as usize..span.end as usize];
        assert_eq!(covered, offending, "{filter}: {}", failure.message);
    }
}

#[test]
fn a_subscription_learns_nothing_of_sensitive_fields() {
    let mut world = graph();
    for filter in [
        "secret = 's'",
        "secret IS NULL",
        "leak_sensitive(secret) = 's'",
        "id = 1 OR input.secret > 'a'",
    ] {
        let failure = world
            .subscribe("d", &format!("CREATE SUBSCRIPTION n TO r WHERE {filter}"))
            .unwrap_err();
        assert!(
            failure.message.contains("sensitive"),
            "{filter}: {}",
            failure.message
        );
    }
}

// rule: S-1
#[test]
fn a_subscription_is_exactly_one_statement_of_its_kind() {
    let mut world = graph();
    for statement in [
        "",
        "STOP",
        "CREATE SUBSCRIPTION n TO r; CREATE SUBSCRIPTION m TO r;",
        "CREATE SUBSCRIPTION n TO nothing",
        "CREATE SUBSCRIPTION n TO",
    ] {
        assert!(world.subscribe("d", statement).is_err(), "{statement}");
    }
    assert!(world
        .subscribe("nothing", "CREATE SUBSCRIPTION n TO r")
        .is_err());
    let blocking = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r BLOCKING");
    assert_eq!(blocking.delivery, super::super::DeliveryMode::Blocking);
    let dropping = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r");
    assert_eq!(dropping.delivery, super::super::DeliveryMode::Dropping);
    assert_eq!(
        (
            dropping.name.as_str(),
            dropping.domain.as_str(),
            dropping.relay.as_str()
        ),
        ("n", "d", "r")
    );
}
