//! Inputs to begin with, one list a target: frames of every kind that our own encoders write, batches, statements, and plain
//! noise for the targets that make up what they test. Without them a target would seldom get past the verifier of its format.
//!
//! The same every time.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem::discriminant;
use std::path::Path;
use std::sync::Arc;

use arbitrary::Unstructured;
use nervix_wire::types::{RowSchema, ServerBody, SubscriptionHandle};
use nervix_wire::*;

use crate::{given, publish, samples};

/// A target and what makes its seeds.
pub const TARGETS: &[(&str, fn() -> Vec<Vec<u8>>)] = &[
    ("server", server),
    ("client", client),
    ("archives", archives),
    ("rows", rows),
    ("domains", || noise(0..200, 400)),
    ("reassembler", || noise(0..200, 400)),
    ("framing", || noise(0..200, 200)),
    ("batch", batch),
    ("publish", published),
    ("lang", statements),
    ("abi", || {
        crate::abi::scenes().chain(noise(0..60, 4000)).collect()
    }),
    ("engine", || noise(0..100, 500)),
];

/// The seeds of one target.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let mut targets = TARGETS.iter().filter(|(name, _)| *name == target);
    targets.next().map_or_else(Vec::new, |(_, seeds)| seeds())
}

/// Writes the seeds of every target into a folder of its name.
pub fn write(corpus: &Path) -> std::io::Result<()> {
    for (target, seeds) in TARGETS {
        let folder = corpus.join(target);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in seeds().into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number:04}")), seed)?;
        }
    }
    Ok(())
}

/// As many bytes as asked for, that look random (splitmix64).
fn bytes(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0xa076_1d64_78bd_642f);
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    });
    words.flat_map(u64::to_le_bytes).take(length).collect()
}

fn noise(numbers: std::ops::Range<u64>, longest: usize) -> Vec<Vec<u8>> {
    let count = numbers.end as usize;
    numbers
        .map(|number| bytes(number, longest * (number as usize + 1) / count))
        .collect()
}

/// A leading byte that says what follows it.
fn tagged(tag: usize, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(tag).unwrap()];
    rest.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// Whether the sample of a number is worth an input: the first of its kind are, and then every sixteenth.
fn chosen<K: Eq + Hash>(kinds: &mut HashMap<K, usize>, kind: K) -> bool {
    let count = kinds.entry(kind).or_default();
    *count += 1;
    *count <= 24 || *count % 16 == 0
}

fn server() -> Vec<Vec<u8>> {
    let (mut frames, mut kinds) = (Vec::new(), HashMap::new());
    for message in (0..samples::SERVER_MESSAGE).map(samples::server_message) {
        let reply = match &message.body {
            ServerBody::Reply(reply) => Some(discriminant(&reply.body)),
            _ => None,
        };
        if !chosen(&mut kinds, (discriminant(&message.body), reply)) {
            continue;
        }
        frames.push(encode_server(&message).unwrap());
        if matches!(message.body, ServerBody::DomainsObserved(_)) {
            frames.push(encode_server_alternate_domain_info(&message).unwrap());
        }
    }
    frames
}

fn client() -> Vec<Vec<u8>> {
    (0..samples::CLIENT_MESSAGE)
        .map(|n| encode_client(&samples::client_message(n)).unwrap())
        .collect()
}

fn archives() -> Vec<Vec<u8>> {
    let (mut frames, mut kinds) = (Vec::new(), HashMap::new());
    macro_rules! root {
        ($count:ident, $sample:ident, $encode:ident) => {
            let numbers = (0..samples::$count).filter(|_| chosen(&mut kinds, stringify!($count)));
            frames.extend(numbers.map(|n| $encode(&samples::$sample(n)).unwrap()));
        };
    }
    root!(UPLOAD_MESSAGE, upload_message, encode_upload);
    root!(UPLOAD_REPLY, upload_reply, encode_upload_reply);
    root!(
        BACKUP_DOWNLOAD_REQUEST,
        backup_download_request,
        encode_backup_request
    );
    root!(
        BACKUP_DOWNLOAD_MESSAGE,
        backup_download_message,
        encode_backup
    );
    root!(RESTORE_MESSAGE, restore_message, encode_restore);
    root!(RESTORE_REPLY, restore_reply, encode_restore_reply);
    frames
}

/// The bytes that describe a schema in the targets `rows` and `batch`, and more to fill its fields with.
fn described(number: u64) -> (Vec<u8>, Vec<u8>) {
    let mut all = bytes(number, 2048);
    let rest = all.split_off(40);
    (all, rest)
}

fn rows() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for number in 0..200 {
        let (described, rest) = described(number);
        let schema = given::schema(&mut Unstructured::new(&described)).unwrap();
        let u = &mut Unstructured::new(&rest);
        let handle = SubscriptionHandle {
            name: "s".into(),
            generation: 1,
        };
        let key = schema
            .branch
            .as_ref()
            .map(|branch| given::cells(u, &branch.fields).unwrap());
        let rows: Vec<_> = (0..number % 4)
            .map(|_| given::cells(u, &schema.fields).unwrap())
            .collect();
        // A frame holds a row at least.
        if let Ok(frame) = encode_rows(&handle, key.as_deref(), &rows) {
            seeds.push(tagged(described.len(), &[&described, &frame]));
        }
        seeds.push(tagged(255, &[&bytes(number, 40 + number as usize)]));
    }
    seeds
}

fn stream(schema: &Arc<RowSchema>, number: u64, values: &[u8]) -> Vec<u8> {
    let mut u = Unstructured::new(&values[number as usize % 64..]);
    let built = given::batch(&mut u, schema).unwrap();
    built.stream().unwrap().to_vec()
}

fn batch() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for number in 0..200 {
        let (described, rest) = described(number);
        let schema = Arc::new(RowSchema {
            fields: given::fields(&mut Unstructured::new(&described), false).unwrap(),
            branch: None,
        });
        let stream = stream(&schema, number, &rest);
        seeds.push(tagged(described.len(), &[&described, &stream]));
        seeds.push(tagged(255, &[&bytes(number, 40 + number as usize)]));
    }
    seeds
}

fn published() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for number in 0..100 {
        seeds.push(tagged(0, &[&bytes(number, 100 + number as usize)]));
        let stream = stream(&publish::schema(), number, &bytes(number, 4096));
        seeds.push(tagged(150, &[&stream]));
    }
    let json = r#"{"a":255,"b":-128,"c":65535,"d":null,"e":18446744073709551615,"f":{"bits":"7f7fffff"},"g":1.5,"h":true,
        "i":"h\u00e9llo","j":{"hex":"00ff"},"k":9223372036854775807,"l":["x"],"m":[[1,2],[3,4]],"n":[[true,false,true]]}"#;
    for text in [json.to_owned(), format!("[{json},{json}]"), "[]".to_owned()] {
        seeds.push(tagged(255, &[text.as_bytes()]));
    }
    seeds
}

fn statements() -> Vec<Vec<u8>> {
    let statements = nervix_loopback_fuzz::fuzz::STATEMENTS;
    let together = statements.chunks(3).map(|some| some.join(";\n"));
    let alone = statements.iter().map(|&text| text.to_owned());
    alone.chain(together).map(String::into_bytes).collect()
}
