//! Random schemas and rows go in as JSON and as Arrow IPC, through frames, and come out as what they were.

use arrow_ipc::writer::StreamWriter;
use proptest::prelude::*;
use serde_json::{json, Map, Value as Json};

use super::super::fields::arrow_schema;
use super::super::json as json_rows;
use super::*;
use crate::lang::ast::{Field, FieldType, Model, Name, Scalar, Schema};
use crate::lang::Span;

/// A value as the control endpoint takes it, and as the probe prints it.
type Told = (Json, String);

fn types() -> impl Strategy<Value = FieldType> {
    let scalar = proptest::sample::select(Scalar::ALL.to_vec()).prop_map(FieldType::Scalar);
    scalar.prop_recursive(3, 4, 1, |element| {
        (element, proptest::option::of(1..4_u32)).prop_map(|(element, length)| match length {
            Some(length) => FieldType::FixedList {
                element: Box::new(element),
                length,
            },
            None => FieldType::List(Box::new(element)),
        })
    })
}

fn told_list(elements: Vec<Told>) -> Told {
    let (values, shown): (Vec<Json>, Vec<String>) = elements.into_iter().unzip();
    (Json::Array(values), format!("[{}]", shown.join(",")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn told(field_type: &FieldType) -> BoxedStrategy<Told> {
    macro_rules! integer {
        ($native:ty, $word:literal) => {
            prop_oneof![any::<$native>(), Just(<$native>::MIN), Just(<$native>::MAX)]
                .prop_map(|value| (json!(value), format!("{}:{value}", $word)))
                .boxed()
        };
    }
    let scalar = match field_type {
        FieldType::List(element) => {
            return proptest::collection::vec(told(element), 0..4)
                .prop_map(told_list)
                .boxed()
        }
        FieldType::FixedList { element, length } => {
            return proptest::collection::vec(told(element), *length as usize)
                .prop_map(told_list)
                .boxed()
        }
        FieldType::Scalar(scalar) => *scalar,
    };
    match scalar {
        Scalar::U8 => integer!(u8, "u8"),
        Scalar::I8 => integer!(i8, "i8"),
        Scalar::U16 => integer!(u16, "u16"),
        Scalar::I16 => integer!(i16, "i16"),
        Scalar::U32 => integer!(u32, "u32"),
        Scalar::I32 => integer!(i32, "i32"),
        Scalar::U64 => integer!(u64, "u64"),
        Scalar::I64 => integer!(i64, "i64"),
        Scalar::Datetime => integer!(i64, "datetime"),
        // Every bit pattern, NaNs with payloads and both zeros among them; and finite numbers as numbers.
        Scalar::F32 => (any::<u32>(), any::<bool>())
            .prop_map(|(bits, plain)| {
                let value = f32::from_bits(bits);
                let told = if plain && value.is_finite() {
                    serde_json::from_str(&format!("{value:e}")).unwrap()
                } else {
                    json!({"bits": format!("{bits:08x}")})
                };
                (told, format!("f32:{bits:08x}"))
            })
            .boxed(),
        Scalar::F64 => (any::<u64>(), any::<bool>())
            .prop_map(|(bits, plain)| {
                let value = f64::from_bits(bits);
                let told = if plain && value.is_finite() {
                    serde_json::from_str(&format!("{value:e}")).unwrap()
                } else {
                    json!({"bits": format!("{bits:016x}")})
                };
                (told, format!("f64:{bits:016x}"))
            })
            .boxed(),
        Scalar::Bool => any::<bool>()
            .prop_map(|value| (json!(value), format!("bool:{value}")))
            .boxed(),
        Scalar::String => any::<String>()
            .prop_map(|value| (json!(value), format!("str:{}", hex(value.as_bytes()))))
            .boxed(),
        Scalar::Bytes => any::<Vec<u8>>()
            .prop_map(|value| {
                (
                    json!({"hex": hex(&value)}),
                    format!("bytes:{}", hex(&value)),
                )
            })
            .boxed(),
    }
}

fn field(index: usize) -> impl Strategy<Value = Field> {
    (types(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        move |(field_type, optional, sensitive)| Field {
            name: Name {
                text: format!("f{index}"),
                span: Span::default(),
            },
            field_type,
            optional,
            sensitive,
        },
    )
}

fn row(fields: &[Field]) -> impl Strategy<Value = Vec<Told>> {
    fields
        .iter()
        .map(|field| {
            if field.optional {
                prop_oneof![
                    3 => told(&field.field_type),
                    1 => Just((Json::Null, "null".to_string())),
                ]
                .boxed()
            } else {
                told(&field.field_type)
            }
        })
        .collect::<Vec<_>>()
}

fn tables() -> impl Strategy<Value = (Vec<Field>, Vec<Vec<Told>>)> {
    (1..6_usize)
        .prop_flat_map(|count| (0..count).map(field).collect::<Vec<_>>())
        .prop_flat_map(|fields| {
            let rows = proptest::collection::vec(row(&fields), 1..6);
            (Just(fields), rows)
        })
}

proptest! {
    // rule: R-2, R-3, R-4, R-5
    #[test]
    fn rows_arrive_as_they_were_published((fields, rows) in tables()) {
        let schema = Model::Schema(Schema {
            name: Name { text: "s".to_string(), span: Span::default() },
            fields: fields.clone(),
        });
        let mut world = world(&[&format!("CREATE {schema}"), "CREATE RELAY r SCHEMA s UNBRANCHED"]);
        let opened = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r");
        let objects: Vec<Json> = rows
            .iter()
            .map(|row| {
                let object: Map<String, Json> = fields
                    .iter()
                    .zip(row)
                    .map(|(field, (value, _))| (field.name.text.clone(), value.clone()))
                    .collect();
                Json::Object(object)
            })
            .collect();
        let expected: Vec<String> = rows
            .iter()
            .map(|row| {
                let cells: Vec<String> = fields
                    .iter()
                    .zip(row)
                    .map(|(field, (_, shown))| {
                        format!("{}={}", field.name.text, if field.sensitive { "redacted" } else { shown })
                    })
                    .collect();
                format!("ROW [] {}", cells.join(" "))
            })
            .collect();
        let objects = Json::Array(objects);
        let published = world.publish_json(NOW, "d", "r", &objects).unwrap();
        prop_assert_eq!(row_lines(delivery_to(&published, opened.id), &opened.schema), expected.clone());

        let batch = json_rows::batch(&fields, &arrow_schema(&fields), &objects).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let published = world.publish_ipc(NOW, "d", "r", &writer.into_inner().unwrap()).unwrap();
        prop_assert_eq!(row_lines(delivery_to(&published, opened.id), &opened.schema), expected);
    }
}
