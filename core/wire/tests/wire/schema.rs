//! The schema itself: nothing renumbered, nothing left out.

use std::path::Path;
use std::process::Command;

// rule: F-1
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
