//! Reads the headers of the C interface into a table for the target `abi`: of each function what it gives and takes, and a way
//! to call it. A function or a parameter of a shape that this does not know stops the build, so that none is left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

const HEADERS: [&str; 2] = ["nervix_client.h", "nervix_client_ext.h"];

/// A type as the header spells it, and a name.
struct Named {
    kind: String,
    name: String,
}

struct Function {
    head: Named,
    parameters: Vec<Named>,
}

#[derive(Default)]
struct Header {
    /// Objects behind handles.
    objects: Vec<String>,
    enumerations: BTreeMap<String, Vec<i32>>,
    functions: Vec<Function>,
}

fn without_comments(text: &str) -> String {
    let (mut rest, mut plain) = (text, String::new());
    while let Some((before, after)) = rest.split_once("/*") {
        plain += before;
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    plain += rest;
    let lines = plain
        .lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with("extern \"C\""));
    lines.collect::<Vec<_>>().join(" ")
}

/// Splits `const uint8_t **name`.
fn named(text: &str) -> Named {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let at = text.rfind([' ', '*']).map_or(0, |at| at + 1);
    Named {
        kind: text[..at].replace(" *", "*").trim().to_owned(),
        name: text[at..].to_owned(),
    }
}

impl Header {
    /// One declaration, without its semicolon.
    fn declared(&mut self, text: &str) {
        let text = text.trim_start_matches('}').trim();
        if let Some(body) = text.strip_prefix("typedef enum ") {
            let (name, body) = body.split_once('{').expect("an enumeration has a body");
            let values = body.trim_end_matches(|c| c != '}').trim_end_matches('}');
            let values = values.split(',').map(|entry| {
                let value = entry.split('=').nth(1).expect("an enumerator has a value");
                value.trim().parse().expect("and it is a number")
            });
            self.enumerations
                .insert(name.trim().to_owned(), values.collect());
        } else if let Some(object) = text.strip_prefix("typedef struct ") {
            let (object, _) = object.split_once(' ').expect("an object has a name");
            self.objects.push(object.to_owned());
        } else if let Some((head, parameters)) = text.split_once('(') {
            let parameters = parameters.trim_end_matches(')').split(',').map(named);
            self.functions.push(Function {
                head: named(head),
                parameters: parameters.filter(|one| one.name != "void").collect(),
            });
        } else {
            assert!(
                text.is_empty() || text.starts_with("struct Arrow"),
                "the headers have the declaration {text:?}, which this does not know"
            );
        }
    }

    fn object(&self, base: &str) -> Option<String> {
        let found = self.objects.iter().find(|object| *object == base)?;
        Some(format!("Object::{}", camel(found)))
    }

    /// A type as Rust has it.
    fn rust(&self, kind: &str) -> String {
        let base = kind.trim_start_matches("const ").trim_end_matches('*');
        let scalar = match base {
            "uint8_t" => "u8",
            "uint16_t" => "u16",
            "uint32_t" => "u32",
            "uint64_t" => "u64",
            "int32_t" => "i32",
            "int64_t" => "i64",
            "size_t" => "usize",
            "double" => "f64",
            "bool" => "bool",
            _ if self.enumerations.contains_key(base) => "i32",
            _ if base == "void" || base.starts_with("struct ") || self.object(base).is_some() => {
                "c_void"
            }
            _ => panic!("the headers have the type {kind:?}, which this does not know"),
        };
        let pointers = "*mut ".repeat(kind.matches('*').count());
        format!("{pointers}{scalar}")
    }

    /// What a function returns, as the target tells results apart.
    fn gives(&self, kind: &str) -> String {
        match kind {
            "nx_error*" => "Gives::Error".to_owned(),
            "bool" => "Gives::Truth".to_owned(),
            "void" => "Gives::Nothing".to_owned(),
            _ => match (self.enumerations.get(kind), kind.strip_suffix('*')) {
                (Some(values), _) => format!("Gives::OneOf(&{values:?})"),
                (None, None) => "Gives::Number".to_owned(),
                (None, Some(base)) => {
                    let object = self.object(base).expect("only handles are returned");
                    format!("Gives::Handle({object})")
                }
            },
        }
    }

    /// What a parameter takes, and how many of the declared ones it stands for.
    fn takes(&self, parameters: &[Named]) -> (String, usize) {
        let Named { kind, name } = &parameters[0];
        let next = parameters.get(1).map(|next| next.name.as_str());
        let sized = next.is_some_and(|next| {
            next == format!("{name}_len") || next == format!("{name}_capacity")
        });
        if let Some(object) = kind.strip_suffix("**").and_then(|base| self.object(base)) {
            return (format!("Takes::HandleOut({object})"), 1);
        }
        let pointed = kind.strip_suffix('*');
        let base = pointed.map(|base| base.trim_start_matches("const "));
        if let Some(object) = base.and_then(|base| self.object(base)) {
            return (format!("Takes::Handle({object})"), 1);
        }
        if let Some(values) = base.and_then(|base| self.enumerations.get(base)) {
            return (format!("Takes::PlaceOf(&{values:?})"), 1);
        }
        let takes = match kind.as_str() {
            "const uint8_t*" if sized => return ("Takes::Text".to_owned(), 2),
            "const uint8_t**" if sized => return ("Takes::Borrowed".to_owned(), 2),
            "const void*" if sized => return ("Takes::Read(1)".to_owned(), 2),
            "const uint64_t*" if sized => return ("Takes::Read(8)".to_owned(), 2),
            "uint8_t*" | "void*" if sized => return ("Takes::Fill(1)".to_owned(), 2),
            "uint64_t*" if sized => return ("Takes::Fill(8)".to_owned(), 2),
            "uint64_t*" if next == Some("resolved") => return ("Takes::Pending".to_owned(), 3),
            "const uint64_t*" => "Takes::Optional",
            "struct ArrowSchema*" => "Takes::ArrowSchema",
            "struct ArrowArray*" => "Takes::ArrowArray",
            "bool*" => "Takes::Place(1)",
            "uint32_t*" => "Takes::Place(4)",
            "uint64_t*" | "int64_t*" | "size_t*" | "double*" => "Takes::Place(8)",
            _ if !kind.contains('*') => "Takes::Number",
            _ => panic!("the headers have the parameter {kind} {name}, which this does not know"),
        };
        (takes.to_owned(), 1)
    }

    fn table(&self) -> String {
        let mut code = String::from("/// What handles stand for.\n#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]\n");
        let objects = self.objects.iter().map(|object| camel(object));
        let objects = objects.collect::<Vec<_>>().join(", ");
        writeln!(code, "pub enum Object {{ {objects} }}\n").unwrap();
        code += "extern \"C\" {\n";
        for function in &self.functions {
            let parameters = function.parameters.iter().enumerate();
            let parameters = parameters.map(|(at, one)| format!("a{at}: {}", self.rust(&one.kind)));
            let parameters = parameters.collect::<Vec<_>>().join(", ");
            let result = match function.head.kind.as_str() {
                "void" => String::new(),
                kind => format!(" -> {}", self.rust(kind)),
            };
            writeln!(code, "    fn {}({parameters}){result};", function.head.name).unwrap();
        }
        code += "}\n\n/// Every function of the headers.\npub static FUNCTIONS: &[Function] = &[\n";
        for function in &self.functions {
            let Named { kind, name } = &function.head;
            let mut takes = String::new();
            let mut rest = function.parameters.as_slice();
            while let Some(first) = rest.first() {
                let (kind, count) = self.takes(rest);
                write!(takes, "(\"{}\", {kind}), ", first.name).unwrap();
                rest = &rest[count..];
            }
            let arguments = function.parameters.iter().enumerate();
            let arguments = arguments.map(|(at, one)| match one.kind.as_str() {
                "bool" => format!("a[{at}] & 1 != 0"),
                kind => format!("a[{at}] as {}", self.rust(kind)),
            });
            let arguments = arguments.collect::<Vec<_>>().join(", ");
            let a = if arguments.is_empty() { "_" } else { "a" };
            let result = if kind == "void" { "; 0" } else { " as u64" };
            writeln!(code, "    Function {{\n        name: \"{name}\",\n        gives: {},\n        takes: &[{takes}],", self.gives(kind)).unwrap();
            writeln!(
                code,
                "        call: |{a}| unsafe {{ {name}({arguments}){result} }},\n    }},"
            )
            .unwrap();
        }
        code + "];\n"
    }
}

/// `nx_batch_builder` as `BatchBuilder`.
fn camel(object: &str) -> String {
    let words = object.split('_').skip(1);
    let words = words.map(|word| word[..1].to_uppercase() + &word[1..]);
    words.collect()
}

/// The declarations of a text: what ends with a semicolon outside of braces.
fn declarations(text: &str) -> Vec<String> {
    let (mut found, mut current, mut depth) = (Vec::new(), String::new(), 0);
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ';' if depth == 0 => {
                found.push(std::mem::take(&mut current));
                continue;
            }
            _ => {}
        }
        current.push(c);
    }
    found
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let mut header = Header::default();
    for file in HEADERS {
        let path = format!("../../include/{file}");
        println!("cargo:rerun-if-changed={path}");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        for declaration in declarations(&without_comments(&text)) {
            header.declared(declaration.trim());
        }
    }
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join("abi.rs"), header.table()).expect("OUT_DIR can be written");
}
