#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::ast::{
    BinaryOp, Expr, ExprKind, Field, FieldType, Model, Name, Scalar, Schema, Source, Statement,
};
use super::canonical::CANONICAL;
use super::parse::{expected_at_end, parse, parse_script, Expected};
use super::{instant, units, Span};

fn printed(text: &str) -> String {
    parse(text)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .to_string()
}

/// What the error's span covers, as text, with its place.
fn refused(text: &str) -> (usize, usize, String) {
    let error = parse(text).expect_err(text);
    let Span { start, end } = error.span;
    (start, end, text[start..end].to_string())
}

#[test]
fn canonical_text_reads_and_prints_as_itself() {
    for text in CANONICAL {
        assert_eq!(printed(text), *text);
        assert_eq!(parse(&format!("{text};")), parse(text));
    }
}

#[test]
fn keywords_are_read_in_any_case_around_comments_and_line_breaks() {
    for text in CANONICAL {
        // Texts in quotes, names, units and types are not keywords; a name keeps its case.
        let spread = text.replace(' ', " // it's a comment; with 'quotes\n\t ");
        if !text.contains('\'') {
            assert_eq!(printed(&spread), *text);
        }
    }
    assert_eq!(
        printed("create Relay R schema S branched BY B capacity 2;"),
        "CREATE RELAY R SCHEMA S BRANCHED BY B CAPACITY 2"
    );
    assert_eq!(
        printed("create schema s (a u8, b vec<array<i16,2>> optional)"),
        "CREATE SCHEMA s (a U8, b VEC<ARRAY<I16, 2>> OPTIONAL)"
    );
}

#[test]
fn keywords_are_not_reserved() {
    assert_eq!(
        printed("CREATE SCHEMA schema (at DATETIME, from U8, optional BOOL OPTIONAL, all STRING, set U8)"),
        "CREATE SCHEMA schema (at DATETIME, from U8, optional BOOL OPTIONAL, all STRING, set U8)"
    );
    assert_eq!(
        printed("CREATE SUBSCRIPTION subscription TO to WHERE where = 1 AND and IS NULL AND NOT not = 2"),
        "CREATE SUBSCRIPTION subscription TO to WHERE where = 1 AND and IS NULL AND NOT not = 2"
    );
    assert_eq!(
        printed("CREATE SUBSCRIPTION s TO r WHERE input = message.message AND now = now()"),
        "CREATE SUBSCRIPTION s TO r WHERE input = message.message AND now = now()"
    );
}

#[test]
fn an_emitter_is_attached_and_a_subscription_dropping_unless_said_otherwise() {
    let emitter = CANONICAL
        .iter()
        .find(|text| text.starts_with("CREATE ATTACHED"))
        .unwrap();
    assert_eq!(parse(&emitter.replace("ATTACHED ", "")), parse(emitter));
    assert_eq!(
        parse("CREATE SUBSCRIPTION n TO r DROPPING"),
        parse("CREATE SUBSCRIPTION n TO r")
    );
}

#[test]
fn something_missing_has_the_empty_span_behind_what_came_before() {
    assert_eq!(refused("CREATE RELAY;"), (12, 12, String::new()));
    assert_eq!(refused("CREATE RELAY"), (12, 12, String::new()));
    assert_eq!(
        refused("CREATE RELAY  // no more\n ;"),
        (12, 12, String::new())
    );
    assert_eq!(refused("CREATE RELAY r SCHEMA s;"), (23, 23, String::new()));
    assert_eq!(refused(""), (0, 0, String::new()));
    assert_eq!(refused(" // nothing\n ;;"), (0, 0, String::new()));
}

#[test]
fn an_offending_token_is_covered_exactly() {
    for (text, offending) in [
        ("CREAT RELAY r;", "CREAT"),
        ("CREATE RELAY r SCHEMAS s UNBRANCHED;", "SCHEMAS"),
        ("CREATE RELAY 'r' SCHEMA s UNBRANCHED;", "'r'"),
        ("CREATE RELAY r SCHEMA s UNBRANCHED CAPACITY 0;", "0"),
        (
            "CREATE RELAY r SCHEMA s UNBRANCHED CAPACITY 99999999999999999999;",
            "99999999999999999999",
        ),
        ("CREATE BRANCH b SCHEMA s TTL 10;", "10"),
        ("CREATE BRANCH b SCHEMA s TTL 10parsecs;", "10parsecs"),
        ("CREATE BRANCH b SCHEMA s TTL 99999999999h;", "99999999999h"),
        ("CREATE SCHEMA s (a U9);", "U9"),
        ("CREATE SCHEMA s (a ARRAY<U8, 0>);", "0"),
        ("CREATE SCHEMA s (a U8;", ""),
        ("START AT '2030-02-30T00:00:00Z';", "'2030-02-30T00:00:00Z'"),
        ("START TIME RATE 0;", "0"),
        ("START TIME RATE -1;", "-"),
        ("CREATE SUBSCRIPTION n TO r BATCH SAMPLE RATE 1.5;", "1.5"),
        ("CREATE SUBSCRIPTION n TO r WHERE upper(a) = 1;", "upper"),
        ("CREATE SUBSCRIPTION n TO r WHERE other.a = 1;", "other"),
        ("CREATE SUBSCRIPTION n TO r WHERE a = 1 = 2;", "="),
        ("CREATE SUBSCRIPTION n TO r WHERE a = 'héllo;", "'héllo;"),
        ("SHOW CREATE RELAY r § ;", "§"),
        ("STOP STOP;", "STOP"),
        ("STOP; BEGIN;", "BEGIN"),
        ("CREATE IF NOT EXISTS SUBSCRIPTION n TO r;", "SUBSCRIPTION"),
    ] {
        let (start, _, found) = refused(text);
        assert_eq!(found, offending, "{text}");
        if !offending.is_empty() {
            assert_eq!(start, text.rfind(offending).unwrap(), "{text}");
        }
    }
}

#[test]
fn errors_say_what_was_expected() {
    let error = parse("CREATE RELAY r SCHEMA s;").unwrap_err();
    assert_eq!(error.message, "expected UNBRANCHED or BRANCHED here");
    let error = parse("CREATE RELAY r SCHEMA s SOMEHOW;").unwrap_err();
    assert_eq!(
        error.message,
        "expected UNBRANCHED or BRANCHED, found `SOMEHOW`"
    );
}

#[test]
fn nesting_ends_in_a_refusal_and_not_in_a_crash() {
    let deep = |open: &str, close: &str| {
        format!(
            "CREATE SUBSCRIPTION n TO r WHERE {}a{}",
            open.repeat(100_000),
            close.repeat(100_000)
        )
    };
    for text in [
        deep("(", ")"),
        deep("NOT ", ""),
        deep("-", ""),
        deep("leak_sensitive(", ")"),
        deep("a + ", ""),
        deep("a AND ", ""),
        format!(
            "CREATE SCHEMA s (a {}U8{})",
            "VEC<".repeat(100_000),
            ">".repeat(100_000)
        ),
        format!("CREATE SCHEMA s (a ARRAY<U8{}>)", ", 1".repeat(100_000)),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.message.contains("deep"), "{}", error.message);
    }
}

#[test]
fn operators_bind_as_printed() {
    for (text, canonical) in [
        (
            "a or b and not c = d + e * -f",
            "a OR b AND NOT c = d + e * -f",
        ),
        ("((a or (b))) and c", "(a OR b) AND c"),
        ("a - (b - c)", "a - (b - c)"),
        ("(a - b) - c", "a - b - c"),
        ("(a = b) = c", "(a = b) = c"),
        ("not (a and b)", "NOT (a AND b)"),
        ("(not a) is null", "(NOT a) IS NULL"),
        (
            "a == -9223372036854775808 or b <> 1.0e300",
            "a = -9223372036854775808 OR b != 1e300",
        ),
        ("-(-(5))", "5"),
        ("a > 'it''s' and b < 90s", "a > 'it''s' AND b < 90s"),
        ("leak_sensitive(a or b)", "leak_sensitive(a OR b)"),
    ] {
        let statement = format!("CREATE SUBSCRIPTION n TO r WHERE {text}");
        assert_eq!(
            printed(&statement),
            format!("CREATE SUBSCRIPTION n TO r WHERE {canonical}")
        );
    }
}

#[test]
fn statements_of_a_text_are_found_where_they_stand() {
    let text = "USE a; // one; two\n\nSTART AT '2030-01-01T00:00:00Z';;STOP";
    let found: Vec<&str> = parse_script(text)
        .unwrap()
        .iter()
        .map(|located| &text[located.span.start..located.span.end])
        .collect();
    assert_eq!(found, ["USE a", "START AT '2030-01-01T00:00:00Z'", "STOP"]);
}

#[test]
fn every_scenario_reads_and_prints_back() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut read = 0;
    for folder in ["../../tests/probes/scenarios", "src/graph/testdata"] {
        for entry in std::fs::read_dir(here.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "nspl") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for located in parse_script(&text).unwrap() {
                let printed = located.statement.to_string();
                assert_eq!(parse(&printed).unwrap(), located.statement, "{printed}");
            }
            read += 1;
        }
    }
    assert!(read >= 6, "only {read} scenarios were found");
}

#[test]
fn instants_are_exact_over_their_whole_range() {
    for (text, nanos) in [
        ("1970-01-01T00:00:00Z", 0),
        ("2030-01-01T00:00:00Z", 1_893_456_000_000_000_000),
        ("2031-01-01T00:00:00Z", 1_924_992_000_000_000_000),
        ("1677-09-21T00:12:43.145224192Z", i64::MIN),
        ("2262-04-11T23:47:16.854775807Z", i64::MAX),
        ("2000-02-29T12:00:00.120Z", 951_825_600_120_000_000),
        ("1969-12-31T23:59:59.999999Z", -1_000),
    ] {
        assert_eq!(instant::parse(text), Some(nanos), "{text}");
        assert_eq!(instant::print(nanos), text);
    }
    assert_eq!(
        instant::parse("1970-01-01t01:30:00.5+01:30"),
        Some(500_000_000)
    );
    assert_eq!(instant::parse("1969-12-31T22:00:00-02:00"), Some(0));
    for text in [
        "2262-04-11T23:47:16.854775808Z",
        "1900-02-29T00:00:00Z",
        "2030-01-01",
        "2030-01-01T00:00:00",
        "2030-01-01T24:00:00Z",
        "2030-01-01T00:00:60Z",
        "2030-01-01T00:00:00.Z",
        "2030-01-01T00:00:00.1234567890Z",
        "2030-01-01T00:00:00Z ",
        "2030-01-01T00:00:00+1:00",
        "+2030-01-01T00:00:00Z",
    ] {
        assert_eq!(instant::parse(text), None, "{text}");
    }
}

#[test]
fn quantities_print_in_their_largest_exact_unit() {
    for (text, nanos) in [
        ("0ns", 0),
        ("100ms", 100_000_000),
        ("90s", 90_000_000_000),
        ("2h", 7_200_000_000_000),
        ("1001us", 1_001_000),
    ] {
        assert_eq!(units::print_duration(nanos), text);
    }
    for (text, bytes) in [
        ("100bytes", 100),
        ("1KiB", 1_024),
        ("1536KiB", 1_572_864),
        ("4GiB", 1 << 32),
    ] {
        assert_eq!(units::print_size(bytes), text);
    }
    let emitter = CANONICAL
        .iter()
        .find(|text| text.contains("100bytes"))
        .unwrap();
    for spelling in ["100 bytes", "100", "100BYTES"] {
        assert_eq!(
            parse(&emitter.replace("100bytes", spelling)),
            parse(emitter)
        );
    }
}

#[test]
fn completion_knows_what_may_come() {
    let after_create = expected_at_end("CREATE ");
    for keyword in ["SCHEMA", "RELAY", "SUBSCRIPTION", "PACED", "IF"] {
        assert!(
            after_create.contains(&Expected::Keyword(keyword)),
            "{keyword}"
        );
    }
    assert_eq!(
        expected_at_end("STOP; USE "),
        [Expected::Existing(super::ast::Kind::Domain)]
    );
    let after_relay = expected_at_end("CREATE SUBSCRIPTION n TO r ");
    for keyword in ["BLOCKING", "DROPPING", "BATCH", "WHERE"] {
        assert!(
            after_relay.contains(&Expected::Keyword(keyword)),
            "{keyword}"
        );
    }
    assert!(after_relay.contains(&Expected::End));
    assert_eq!(expected_at_end("UPLOAD RESOURCE x VERSION 'half"), []);
    assert_eq!(expected_at_end("NONSENSE "), []);
}

// ---- whatever is printed reads as what it was

fn name(text: String) -> Name {
    Name {
        text,
        span: Span::default(),
    }
}

fn names() -> impl Strategy<Value = String> {
    // Words that begin expressions of their own cannot stand bare in one.
    "[a-z_][a-zA-Z0-9_]{0,8}".prop_filter("an operator or a literal", |text| {
        !["and", "or", "not", "is", "true", "false", "null", "all"]
            .contains(&text.to_ascii_lowercase().as_str())
    })
}

fn types() -> impl Strategy<Value = FieldType> {
    let scalar = proptest::sample::select(Scalar::ALL.to_vec()).prop_map(FieldType::Scalar);
    scalar.prop_recursive(5, 8, 1, |element| {
        (element, proptest::option::of(1..=u32::MAX)).prop_map(|(element, length)| match length {
            Some(length) => FieldType::FixedList {
                element: Box::new(element),
                length,
            },
            None => FieldType::List(Box::new(element)),
        })
    })
}

fn fields() -> impl Strategy<Value = Field> {
    (names(), types(), any::<bool>(), any::<bool>()).prop_map(
        |(text, field_type, optional, sensitive)| Field {
            name: name(text),
            field_type,
            optional,
            sensitive,
        },
    )
}

fn expr(kind: ExprKind) -> Expr {
    Expr {
        kind,
        span: Span::default(),
    }
}

fn expressions() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        Just(ExprKind::Null),
        any::<bool>().prop_map(ExprKind::Bool),
        (i64::MIN..=i64::MAX).prop_map(|value| ExprKind::Integer(value.into())),
        any::<u64>().prop_map(|value| ExprKind::Integer(value.into())),
        any::<f64>()
            .prop_filter("finite", |value| value.is_finite())
            .prop_map(ExprKind::Float),
        any::<String>().prop_map(ExprKind::Text),
        any::<u64>().prop_map(ExprKind::Duration),
        (
            names(),
            proptest::sample::select(vec![
                Source::Bare,
                Source::Input,
                Source::Message,
                Source::Error
            ])
        )
            .prop_map(|(name, source)| ExprKind::Field { source, name }),
        Just(ExprKind::Now),
    ]
    .prop_map(expr);
    let op = proptest::sample::select(vec![
        BinaryOp::Or,
        BinaryOp::And,
        BinaryOp::Equal,
        BinaryOp::NotEqual,
        BinaryOp::Less,
        BinaryOp::LessEqual,
        BinaryOp::Greater,
        BinaryOp::GreaterEqual,
        BinaryOp::Add,
        BinaryOp::Subtract,
        BinaryOp::Multiply,
        BinaryOp::Divide,
    ]);
    leaf.prop_recursive(6, 40, 2, move |inner| {
        prop_oneof![
            inner
                .clone()
                .prop_map(|operand| expr(ExprKind::Not(Box::new(operand)))),
            inner
                .clone()
                .prop_filter("a sign in front of a literal is part of it", |operand| {
                    !matches!(operand.kind, ExprKind::Integer(_) | ExprKind::Float(_))
                })
                .prop_map(|operand| expr(ExprKind::Negate(Box::new(operand)))),
            inner
                .clone()
                .prop_map(|operand| expr(ExprKind::LeakSensitive(Box::new(operand)))),
            (inner.clone(), any::<bool>()).prop_map(|(operand, negated)| expr(ExprKind::IsNull {
                operand: Box::new(operand),
                negated
            })),
            (op.clone(), inner.clone(), inner).prop_map(|(op, left, right)| expr(
                ExprKind::Binary {
                    op,
                    left: Box::new(left),
                    right: Box::new(right)
                }
            )),
        ]
    })
}

proptest! {
    #[test]
    fn a_printed_schema_reads_as_itself(text in names(), fields in proptest::collection::vec(fields(), 1..6)) {
        let statement = Statement::CreateModel {
            if_not_exists: false,
            model: Model::Schema(Schema { name: name(text), fields }),
        };
        prop_assert_eq!(parse(&statement.to_string()), Ok(statement));
    }

    #[test]
    fn a_printed_expression_reads_as_itself(filter in expressions()) {
        let text = format!("CREATE SUBSCRIPTION n TO r WHERE {filter}");
        match parse(&text) {
            Ok(Statement::CreateSubscription(read)) => prop_assert_eq!(read.filter, Some(filter)),
            other => prop_assert!(false, "{}: {:?}", text, other),
        }
    }

    #[test]
    fn any_text_is_a_statement_or_an_error_inside_of_it(text in ".{0,60}") {
        for text in [text.clone(), format!("CREATE {text}"), format!("CREATE SUBSCRIPTION n TO r WHERE {text}")] {
            if let Err(error) = parse(&text) {
                prop_assert!(text.get(error.span.start..error.span.end).is_some(), "{text}: {error}");
            }
        }
    }

    #[test]
    fn any_instant_reads_as_itself(nanos in any::<i64>()) {
        prop_assert_eq!(instant::parse(&instant::print(nanos)), Some(nanos));
    }
}
