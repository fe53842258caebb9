//! The schema itself: nothing renumbered, nothing left out.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::layout::TABLES;
use super::walk::{Kind, Rule};

// rule: F-1, CF-2
#[test]
fn the_schema_declares_exactly_the_facts() {
    let wire = Path::new(env!("CARGO_MANIFEST_DIR"));
    let check = wire.join("../../../shared/checks/check_schema.py");
    if !check.exists() {
        println!("the facts are not here, so the schema was not compared with them");
        return;
    }
    let mut files: Vec<_> = std::fs::read_dir(wire.join("schema"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "fbs"))
        .collect();
    files.sort();
    let output = Command::new("python3")
        .arg(check)
        .args(files)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}

/// The rules of every table's fields, as the layout has them, in words.
fn rules_of_layout() -> BTreeSet<String> {
    let mut rules = BTreeSet::new();
    for table in TABLES {
        for field in table.fields {
            for rule in field.rules {
                let rule = match rule {
                    Rule::Present => "present".to_owned(),
                    Rule::NonZero => "nonzero".to_owned(),
                    Rule::NonEmpty => "nonempty".to_owned(),
                    Rule::Length => "len".to_owned(),
                    Rule::Within(low, high) => format!("{low}..{high}"),
                    Rule::Ascending => "set".to_owned(),
                };
                rules.insert(format!("{}.{} {rule}", table.name, field.name));
            }
            if matches!(field.kind, Kind::Union(_)) {
                rules.insert(format!("{}.{} present", table.name, field.name));
            }
        }
    }
    rules
}

/// The same, as the facts have them.
fn rules_of_facts(facts: &str) -> BTreeSet<String> {
    let mut rules = BTreeSet::new();
    for line in facts.lines() {
        let Some((name, fields)) = line.strip_prefix("table ").and_then(|l| l.split_once(" ="))
        else {
            continue;
        };
        for field in fields.split_whitespace() {
            let (field_name, rest) = field.split_once(':').unwrap();
            let mut add = |rule: &str| rules.insert(format!("{name}.{field_name} {rule}"));
            let (kind, braces) = rest.split_once('{').unwrap_or((rest, ""));
            if kind.ends_with('!') {
                add("present");
            }
            for rule in braces.split(['{', '}']).filter(|rule| !rule.is_empty()) {
                match rule.split_once('=') {
                    Some((rule, _)) => add(rule),
                    // Only numbers are checked in order; the rest has an order of the server's.
                    None if rule == "set" && !rest.starts_with("[ulong]") => continue,
                    // Names of domains: see the test of archives.
                    None if rule == "asc" => continue,
                    None => add(rule),
                };
            }
        }
    }
    rules
}

// rule: F-4
#[test]
fn the_schema_has_exactly_the_value_rules_of_the_facts() {
    let facts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/spec/wire-schema.txt");
    let Ok(facts) = std::fs::read_to_string(facts) else {
        println!("the facts are not here, so the value rules were not compared with them");
        return;
    };
    assert_eq!(rules_of_layout(), rules_of_facts(&facts));
}
