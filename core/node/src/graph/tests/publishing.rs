use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array};
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema};
use nervix_wire::types::{FieldTypeShape, RowField, RowsSkippedCause, ScalarType};

use super::*;

/// A field as the probe prints it.
fn field_line(word: &str, field: &RowField) -> String {
    let kind = match &field.field_type.shape {
        FieldTypeShape::ListFieldType(_) => "LIST".to_string(),
        FieldTypeShape::FixedListFieldType(_) => "FIXED_LIST".to_string(),
        FieldTypeShape::ScalarFieldType(scalar) => match scalar.scalar {
            ScalarType::Bool => "BOOL".to_string(),
            other => format!("{other:?}").to_uppercase(),
        },
    };
    format!(
        "{word} {} {kind} {} {}",
        field.name,
        if field.nullable {
            "nullable"
        } else {
            "required"
        },
        if field.sensitive {
            "sensitive"
        } else {
            "public"
        }
    )
}

/// Publishes a scenario's rows one by one and compares the lines a probe prints of them with the expected report.
fn compare_with_report(name: &str, relay: &str) {
    const FOLDER: &str = "../../tests/probes/scenarios";
    let mut world = World::new();
    load(&mut world, &file(FOLDER, &format!("{name}.nspl")));
    let opened = world
        .subscribe(
            "conformance",
            &format!("CREATE SUBSCRIPTION probe TO {relay};"),
        )
        .unwrap();
    let mut lines: Vec<String> = opened
        .schema
        .fields
        .iter()
        .map(|field| field_line("FIELD", field))
        .collect();
    if let Some(branch) = &opened.schema.branch {
        lines.push(format!("BRANCH {}", branch.branch));
        lines.extend(branch.fields.iter().map(|field| field_line("KEY", field)));
    }
    let rows: Vec<serde_json::Value> =
        serde_json::from_str(&file(FOLDER, &format!("{name}.json"))).unwrap();
    for row in &rows {
        let published = world.publish_json(NOW, "conformance", relay, row).unwrap();
        assert_eq!(published.rows, 1);
        lines.extend(row_lines(
            delivery_to(&published, opened.id),
            &opened.schema,
        ));
    }
    let report = file(FOLDER, &format!("{name}.report"));
    let expected: Vec<&str> = report
        .lines()
        .filter(|line| {
            ["FIELD ", "BRANCH ", "KEY ", "ROW "]
                .iter()
                .any(|word| line.starts_with(word))
        })
        .collect();
    assert_eq!(lines, expected);
}

// rule: R-2, R-3, R-4, R-5
#[test]
fn rows_of_every_scalar_type_arrive_exactly() {
    compare_with_report("rows", "typed_rows");
}

// rule: R-2, R-4, R-5
#[test]
fn branch_keys_arrive_with_nulls_and_withheld_values() {
    compare_with_report("keys", "keyed_rows");
}

// rule: R-2, R-5
#[test]
fn lists_arrive_exactly() {
    compare_with_report("lists", "listed_rows");
}

#[test]
fn a_value_that_is_not_of_its_type_is_refused_by_row_and_field() {
    let mut world = world(&[
        "CREATE SCHEMA s (u8v U8 OPTIONAL, i64v I64 OPTIONAL, u64v U64 OPTIONAL, f32v F32 OPTIONAL, f64v F64 OPTIONAL, \
         flag BOOL OPTIONAL, text STRING OPTIONAL, raw BYTES OPTIONAL, at DATETIME OPTIONAL, pair ARRAY<U8, 2> OPTIONAL, \
         tags VEC<STRING> OPTIONAL, must U8)",
        "CREATE RELAY r SCHEMA s UNBRANCHED",
    ]);
    for (field, value) in [
        ("u8v", "256"),
        ("u8v", "-1"),
        ("u8v", "1.0"),
        ("u8v", "1e2"),
        ("u8v", "\"1\""),
        ("u8v", "true"),
        ("u8v", "[1]"),
        ("i64v", "9223372036854775808"),
        ("u64v", "18446744073709551616"),
        ("u64v", "-0.5"),
        ("f32v", "1e39"),
        ("f32v", "\"NaN\""),
        ("f32v", "{\"bits\":\"7fc0001\"}"),
        ("f32v", "{\"bits\":\"+fc00001\"}"),
        ("f32v", "{\"bits\":2143289345}"),
        ("f64v", "1e309"),
        ("f64v", "{\"bits\":\"7fc00001\"}"),
        ("f64v", "{\"bits\":\"7ff8000000000123\",\"more\":1}"),
        ("flag", "1"),
        ("text", "7"),
        ("raw", "\"00\""),
        ("raw", "{\"hex\":\"0\"}"),
        ("raw", "{\"hex\":\"0g\"}"),
        ("raw", "{}"),
        ("at", "\"2030-01-01T00:00:00Z\""),
        ("at", "1.5"),
        ("pair", "[1]"),
        ("pair", "[1,2,3]"),
        ("pair", "[1,null]"),
        ("tags", "[null]"),
        ("tags", "[1]"),
        ("tags", "\"a\""),
        ("must", "null"),
        ("unknown", "1"),
    ] {
        let rows = format!("[{{\"must\":1}},{{\"must\":1,\"{field}\":{value}}}]");
        let rows = serde_json::from_str(&rows).unwrap();
        let error = world.publish_json(NOW, "d", "r", &rows).unwrap_err();
        assert!(error.contains("row 1"), "{field} {value}: {error}");
        assert!(
            error.contains(&format!("`{field}`")),
            "{field} {value}: {error}"
        );
    }
    for rows in ["[{}]", "[1]", "\"x\""] {
        let rows = serde_json::from_str(rows).unwrap();
        assert!(world
            .publish_json(NOW, "d", "r", &rows)
            .unwrap_err()
            .starts_with("row 0"));
    }
    let row = serde_json::json!({"must": 1});
    assert!(world
        .publish_json(NOW, "d", "nothing", &row)
        .unwrap_err()
        .contains("`nothing`"));
    assert!(world
        .publish_json(NOW, "nothing", "r", &row)
        .unwrap_err()
        .contains("`nothing`"));
    assert_eq!(publish(&mut world, "r", "{\"must\":1}").rows, 1);
    assert_eq!(publish(&mut world, "r", "[]").rows, 0);
}

const BRANCHED: &[&str] = &[
    "CREATE SCHEMA s (id U32, k STRING OPTIONAL, n I64 OPTIONAL)",
    "CREATE SCHEMA key (k STRING OPTIONAL)",
    "CREATE BRANCH b SCHEMA key TTL 10m",
    "CREATE RELAY r SCHEMA s BRANCHED BY b",
];

#[test]
fn a_batch_is_told_apart_by_branch_and_keeps_its_order_within_each() {
    let mut world = world(BRANCHED);
    let opened = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r");
    let rows = (0..600)
        .map(|id| match id % 3 {
            0 => format!("{{\"id\":{id},\"k\":\"even\"}}"),
            1 => format!("{{\"id\":{id},\"k\":\"\"}}"),
            _ => format!("{{\"id\":{id},\"k\":null}}"),
        })
        .collect::<Vec<_>>()
        .join(",");
    let published = publish(&mut world, "r", &format!("[{rows}]"));
    assert_eq!(published.rows, 600);
    let delivery = delivery_to(&published, opened.id);
    let frames = received(delivery, &opened.schema);
    let keys: Vec<String> = frames
        .iter()
        .map(|rows| shown_cells(rows, Part::BranchKey, 0))
        .collect();
    assert_eq!(keys, ["k=str:6576656e", "k=str:", "k=null"]);
    let ids: Vec<u32> = first_column(delivery, &opened.schema)
        .iter()
        .map(|id| id.parse().unwrap())
        .collect();
    let expected: Vec<u32> = (0..3).flat_map(|branch| (branch..600).step_by(3)).collect();
    assert_eq!(ids, expected);
}

#[test]
fn frames_hold_at_most_256_rows() {
    let mut world = world(&[
        "CREATE SCHEMA s (id U32)",
        "CREATE RELAY r SCHEMA s UNBRANCHED",
    ]);
    let opened = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r");
    let rows: Vec<String> = (0..600).map(|id| format!("{{\"id\":{id}}}")).collect();
    let published = publish(&mut world, "r", &format!("[{}]", rows.join(",")));
    let frames = received(delivery_to(&published, opened.id), &opened.schema);
    let counts: Vec<usize> = frames.iter().map(CheckedRows::row_count).collect();
    assert_eq!(counts, [256, 256, 88]);
}

#[test]
fn frames_stay_within_their_limit_and_a_row_that_cannot_is_skipped() {
    let mut world = world(&[
        "CREATE SCHEMA s (id U32, text STRING, l VEC<U8>)",
        "CREATE RELAY r SCHEMA s UNBRANCHED",
    ]);
    let opened = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r");
    // 1 fits with others, 2 only alone, 3 and 4 not at all: by text, and by elements.
    let row = |id: u32, text: usize, elements: usize| serde_json::json!({"id": id, "text": "x".repeat(text), "l": vec![1_u8; elements]});
    let rows = serde_json::Value::Array(vec![
        row(1, 900_000, 3),
        row(1, 900_000, 3),
        row(1, 900_000, 3),
        row(2, 4_100_000, 0),
        row(3, 4_200_000, 0),
        row(4, 0, 262_145),
        row(1, 0, 30_000),
        row(1, 0, 0),
    ]);
    let published = world.publish_json(NOW, "d", "r", &rows).unwrap();
    let delivery = delivery_to(&published, opened.id);
    assert_eq!(
        first_column(delivery, &opened.schema),
        ["1", "1", "1", "2", "1", "1"]
    );
    let skipped: Vec<_> = delivery
        .skipped
        .iter()
        .map(|(cause, count, _)| (*cause, *count))
        .collect();
    assert_eq!(skipped, [(RowsSkippedCause::EncodingFailed, 2)]);
}

#[test]
fn each_subscription_gets_its_own_and_names_may_repeat() {
    let mut world = world(&[
        "CREATE SCHEMA s (id U32)",
        "CREATE RELAY r SCHEMA s UNBRANCHED",
    ]);
    let first = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r WHERE id < 2");
    let second = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r");
    assert_ne!(first.id, second.id);
    let published = publish(&mut world, "r", "[{\"id\":1},{\"id\":2}]");
    assert_eq!(
        first_column(delivery_to(&published, first.id), &first.schema),
        ["1"]
    );
    assert_eq!(
        first_column(delivery_to(&published, second.id), &second.schema),
        ["1", "2"]
    );
    assert!(world.unsubscribe(first.id));
    let published = publish(&mut world, "r", "[{\"id\":1}]");
    assert_eq!(published.deliveries.len(), 1);
    assert!(publish(&mut world, "r", "[]").deliveries.is_empty());
}

#[test]
fn sampling_takes_an_even_share_of_batches() {
    let mut world = world(BRANCHED);
    for rate in ["1.0", "0.5", "0.1", "0.3"] {
        let share: f64 = rate.parse().unwrap();
        let opened = subscribe(
            &mut world,
            &format!("CREATE SUBSCRIPTION n TO r BATCH SAMPLE RATE {rate}"),
        );
        let mut delivered = 0;
        for _ in 0..50 {
            // Two branches are two batches of the relay.
            let published = publish(
                &mut world,
                "r",
                "[{\"id\":1,\"k\":\"a\"},{\"id\":2,\"k\":\"b\"},{\"id\":3,\"k\":\"b\"}]",
            );
            delivered += published
                .deliveries
                .iter()
                .map(|delivery| delivery.frames.len())
                .sum::<usize>();
        }
        assert_eq!(delivered as f64, (share * 100.0).round(), "{rate}");
        assert!(world.unsubscribe(opened.id));
    }
}

#[test]
fn the_key_of_a_branch_comes_from_fields_that_say_as_much() {
    let mut world = world(&[
        "CREATE SCHEMA s (id U32, k STRING OPTIONAL, secret STRING SENSITIVE)",
        "CREATE SCHEMA required (k STRING)",
        "CREATE SCHEMA other (k U8)",
        "CREATE SCHEMA leaking (secret STRING)",
        "CREATE BRANCH by_required SCHEMA required TTL 10m",
        "CREATE BRANCH by_other SCHEMA other TTL 10m",
        "CREATE BRANCH by_leaking SCHEMA leaking TTL 10m",
        "CREATE RELAY required SCHEMA s BRANCHED BY by_required",
        "CREATE RELAY other SCHEMA s BRANCHED BY by_other",
        "CREATE RELAY leaking SCHEMA s BRANCHED BY by_leaking",
    ]);
    let row = serde_json::json!({"id": 1, "k": null, "secret": "x"});
    for (relay, says) in [
        ("required", "row 0"),
        ("other", "`k U8`"),
        ("leaking", "`secret STRING`"),
    ] {
        let error = world.publish_json(NOW, "d", relay, &row).unwrap_err();
        assert!(error.contains(says), "{relay}: {error}");
    }
}

// ---- Arrow IPC

fn columns() -> Vec<(&'static str, ArrayRef, bool)> {
    vec![
        (
            "id",
            Arc::new(UInt32Array::from(vec![1, 2, 3])) as ArrayRef,
            false,
        ),
        (
            "k",
            Arc::new(StringArray::from(vec![Some("a"), None, Some("a")])),
            true,
        ),
        (
            "n",
            Arc::new(Int64Array::from(vec![None, Some(2), Some(3)])),
            true,
        ),
    ]
}

fn record_batch(columns: Vec<(&str, ArrayRef, bool)>) -> RecordBatch {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, array, nullable)| Field::new(*name, array.data_type().clone(), *nullable))
        .collect();
    let arrays = columns.into_iter().map(|(_, array, _)| array).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

fn stream(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

// rule: P-3
#[test]
fn one_canonical_stream_is_one_batch_and_everything_else_is_refused() {
    let mut world = world(BRANCHED);
    let opened = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r");
    let batch = record_batch(columns());
    let good = stream(std::slice::from_ref(&batch));
    let published = world.publish_ipc(NOW, "d", "r", &good).unwrap();
    assert_eq!(
        row_lines(delivery_to(&published, opened.id), &opened.schema),
        [
            "ROW [k=str:61] id=u32:1 k=str:61 n=null",
            "ROW [k=str:61] id=u32:3 k=str:61 n=i64:3",
            "ROW [k=null] id=u32:2 k=null n=i64:2",
        ]
    );
    let with_metadata = batch
        .schema()
        .as_ref()
        .clone()
        .with_metadata([("a".to_string(), "b".to_string())]);
    let mut renamed = columns();
    renamed[1].0 = "other";
    let mut retyped = columns();
    retyped[2].1 = Arc::new(UInt32Array::from(vec![1, 2, 3]));
    let mut required = columns();
    required[0].2 = true;
    let mut more = columns();
    more.push(("extra", Arc::new(UInt32Array::from(vec![1, 2, 3])), false));
    let mut trailing = good.clone();
    trailing.push(0);
    let cut = good[..good.len() - 8].to_vec();
    let mut unmarked = good.clone();
    unmarked[0] = 0;
    for (bad, says) in [
        (
            stream(&[batch.clone(), batch.clone()]),
            "more than one record batch",
        ),
        (
            stream(&[batch.clone().with_schema(Arc::new(with_metadata)).unwrap()]),
            "metadata",
        ),
        (stream(&[record_batch(renamed)]), "should be `k`"),
        (stream(&[record_batch(retyped)]), "should be Int64"),
        (stream(&[record_batch(required)]), "not be nullable"),
        (stream(&[record_batch(more)]), "`extra`"),
        (
            stream(&[record_batch(columns()[..2].to_vec())]),
            "`n` is missing",
        ),
        (trailing, "follow the end-of-stream marker"),
        (cut, "before its end-of-stream marker"),
        (unmarked, "continuation marker"),
        (Vec::new(), "before its end-of-stream marker"),
        (vec![255, 255, 255, 255, 0, 0, 0, 0], "no record batch"),
    ] {
        let error = world.publish_ipc(NOW, "d", "r", &bad).unwrap_err();
        assert!(error.contains(says), "{says}: {error}");
    }
    let dictionary = Arc::new(
        vec!["a", "b", "a"]
            .into_iter()
            .collect::<arrow_array::DictionaryArray<arrow_array::types::Int32Type>>(),
    );
    let mut encoded = columns();
    encoded[1].1 = dictionary;
    let error = world
        .publish_ipc(NOW, "d", "r", &stream(&[record_batch(encoded)]))
        .unwrap_err();
    assert!(error.contains("unexpected message"), "{error}");
}

// rule: P-3
#[test]
fn a_null_in_a_required_field_is_refused() {
    let mut world = world(BRANCHED);
    // Written as nullable, then the flag is what it must be: arrow itself would not write this.
    let mut nulls = columns();
    nulls[0].1 = Arc::new(UInt32Array::from(vec![Some(1), None, Some(3)]));
    nulls[0].2 = true;
    let mut bytes = stream(&[record_batch(nulls)]);
    let good = stream(&[record_batch(columns())]);
    let schema_length =
        8 + usize::try_from(u32::from_le_bytes(good[4..8].try_into().unwrap())).unwrap();
    let written = 8 + usize::try_from(u32::from_le_bytes(bytes[4..8].try_into().unwrap())).unwrap();
    bytes.splice(..written, good[..schema_length].iter().copied());
    let error = world.publish_ipc(NOW, "d", "r", &bytes).unwrap_err();
    assert!(error.contains("id"), "{error}");
}

// rule: P-3
#[test]
fn compressed_and_damaged_streams_never_crash() {
    let mut world = world(BRANCHED);
    let good = stream(&[record_batch(columns())]);
    // Every byte gone wrong, one after the other: refused or read, and never a panic.
    for at in 0..good.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            let _ = world.publish_ipc(NOW, "d", "r", &bad);
        }
    }
    for length in 0..good.len() {
        assert!(world.publish_ipc(NOW, "d", "r", &good[..length]).is_err());
    }
}

#[test]
fn every_written_option_of_the_stream_format_is_read_the_same() {
    let mut world = world(BRANCHED);
    let batch = record_batch(columns());
    for alignment in [8, 16, 64] {
        let options =
            IpcWriteOptions::try_new(alignment, false, arrow_ipc::MetadataVersion::V5).unwrap();
        let mut writer =
            StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let stream = writer.into_inner().unwrap();
        assert_eq!(world.publish_ipc(NOW, "d", "r", &stream).unwrap().rows, 3);
    }
    assert_eq!(batch.schema().field(0).data_type(), &DataType::UInt32);
}

// rule: F-3, R-2
#[test]
fn the_deepest_type_still_fits_into_frames() {
    let deepest = 16;
    let mut world = world(&[
        &format!(
            "CREATE SCHEMA s (a {}U8{}, b ARRAY<U8{}> OPTIONAL)",
            "VEC<".repeat(deepest),
            ">".repeat(deepest),
            ", 1".repeat(deepest)
        ),
        "CREATE RELAY r SCHEMA s UNBRANCHED",
    ]);
    let opened = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r");
    let nested = format!("{}7{}", "[".repeat(deepest), "]".repeat(deepest));
    let published = publish(
        &mut world,
        "r",
        &format!("[{{\"a\":{nested},\"b\":{nested}}},{{\"a\":[],\"b\":null}}]"),
    );
    let shown = nested.replace('7', "u8:7");
    assert_eq!(
        row_lines(delivery_to(&published, opened.id), &opened.schema),
        [
            format!("ROW [] a={shown} b={shown}"),
            "ROW [] a=[] b=null".to_string()
        ]
    );
}
