//! Reads the headers of the C interface and writes, for each function in them, its declaration and a call of it with arguments
//! made up for each parameter by its type and name. A parameter of a new shape stops the build here, so that no function is
//! left out in silence.

use std::fmt::Write as _;
use std::path::Path;

struct Parameter {
    /// As the header spells it, without its name.
    kind: String,
    name: String,
}

struct Function {
    result: String,
    name: String,
    parameters: Vec<Parameter>,
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        plain += before;
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    plain += rest;
    plain
}

/// Splits `const uint8_t **name` into its type and name.
fn parameter(text: &str) -> Parameter {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let at = text
        .rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .map_or(0, |at| at + 1);
    Parameter {
        kind: text[..at].trim().replace(" *", "*"),
        name: text[at..].to_owned(),
    }
}

fn functions(header: &str) -> Vec<Function> {
    let plain = without_comments(header);
    let lines: Vec<&str> = plain.lines().filter(|line| !line.starts_with('#')).collect();
    let mut found = Vec::new();
    for declared in lines.join("\n").split(';') {
        let Some((head, parameters)) = declared.split_once('(') else {
            continue;
        };
        if head.contains('{') {
            continue;
        }
        let head = parameter(head.rsplit('}').next().unwrap_or(head));
        let parameters = parameters.trim_end().trim_end_matches(')');
        found.push(Function {
            result: head.kind,
            name: head.name,
            parameters: parameters
                .split(',')
                .map(parameter)
                .filter(|parameter| parameter.name != "void")
                .collect(),
        });
    }
    found
}

fn rust(kind: &str) -> String {
    let scalar = |kind: &str| match kind {
        "void" => "c_void",
        "uint8_t" => "u8",
        "uint16_t" => "u16",
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        "int32_t" => "i32",
        "int64_t" => "i64",
        "size_t" => "usize",
        "double" => "f64",
        "bool" => "bool",
        // Handles and the structures of Arrow are only passed on; every other name is an enumeration.
        kind if HANDLES.contains(&kind) || kind.starts_with("struct ") => "c_void",
        kind if kind.starts_with("nx_") || kind.starts_with("nxx_") => "i32",
        other => panic!("the headers use the type {other:?}, which this does not know"),
    }
    .to_owned();
    let base = kind.trim_start_matches("const ").trim_end_matches('*');
    let pointers = kind.matches('*').count();
    let pointer = if kind.starts_with("const ") && pointers == 1 { "*const " } else { "*mut " };
    format!("{}{}", pointer.repeat(pointers), scalar(base))
}

const HANDLES: &[&str] = &[
    "nx_session", "nx_execution", "nx_outcome", "nx_schema", "nx_event", "nx_clock_event", "nx_domain_clock", "nx_cancel",
    "nx_error", "nx_suggestions", "nx_fields", "nx_producer", "nx_submission_outcome", "nx_consumer", "nx_delivery", "nx_batch",
    "nx_batch_builder", "nxx_connect_options",
];

fn handle(kind: &str) -> Option<&'static str> {
    let base = kind.trim_start_matches("const ").trim_end_matches('*');
    HANDLES.iter().copied().find(|handle| *handle == base)
}

/// The call of one function as Rust.
fn call(function: &Function) -> String {
    let (mut before, mut arguments, mut after) = (String::new(), Vec::new(), String::new());
    let name = &function.name;
    let frees = function.parameters.len() == 1
        && (name.ends_with("_free") || name.ends_with("_release"))
        && function.result == "void";
    let mut owner = "std::ptr::null()".to_owned();
    let mut skip = false;
    for (index, parameter) in function.parameters.iter().enumerate() {
        if std::mem::take(&mut skip) {
            continue;
        }
        let (kind, called) = (parameter.kind.as_str(), parameter.name.as_str());
        let next = function.parameters.get(index + 1);
        let has_length = next.is_some_and(|next| {
            next.kind.starts_with("size_t")
                && (next.name == format!("{called}_len") || next.name == format!("{called}_capacity"))
        });
        let optional_out = matches!(
            name.as_str(),
            "nx_domain_clock_paced" | "nx_domain_clock_tick" | "nx_domain_clock_admission_window" | "nx_producer_grant"
                | "nx_producer_policy" | "nx_consumer_grant" | "nx_consumer_policy"
        ) && called != "has_window";
        let v = format!("a{index}");
        match (kind, handle(kind)) {
            ("const nx_cancel*", _) if called == "cancel" && name != "nx_cancel_trigger" => {
                writeln!(before, "let {v} = play.token(u, {name:?})?;").unwrap();
                arguments.push(v);
            }
            (_, Some(of)) if kind.matches('*').count() == 1 => {
                if frees {
                    writeln!(before, "let {v} = play.take(u, {of:?})?;").unwrap();
                } else {
                    writeln!(before, "let {v} = play.any(u, {of:?})?;").unwrap();
                }
                if index == 0 {
                    owner.clone_from(&v);
                }
                arguments.push(if kind.starts_with("const ") { v } else { format!("{v}.cast_mut()") });
            }
            (_, Some(of)) => {
                writeln!(before, "let mut {v}: *mut c_void = std::ptr::null_mut();").unwrap();
                writeln!(after, "play.given({of:?}, {v});").unwrap();
                arguments.push(format!("&raw mut {v}"));
            }
            ("const uint8_t*", _) if has_length => {
                writeln!(before, "let {v} = play.text(u, {name:?}, {called:?})?;").unwrap();
                arguments.push(format!("pointer(&{v})"));
                arguments.push(format!("length(&{v})"));
                skip = true;
            }
            ("const uint8_t**", _) if has_length => {
                writeln!(before, "let (mut {v}, mut {v}_len) = (std::ptr::null_mut::<u8>(), 0_usize);").unwrap();
                writeln!(after, "play.borrowed({owner}, {v}, {v}_len);").unwrap();
                arguments.push(format!("&raw mut {v}"));
                arguments.push(format!("&raw mut {v}_len"));
                skip = true;
            }
            // Buffers that the function fills or reads, exactly as long as they say.
            ("uint8_t*" | "void*" | "uint64_t*" | "const uint64_t*" | "const void*" | "uint64_t* " , _) if has_length => {
                let width = if kind.contains("uint64_t") { 8 } else { 1 };
                writeln!(before, "let mut {v} = play.buffer(u, {owner}, {name:?}, {called:?}, {width})?;").unwrap();
                arguments.push(if kind.starts_with("const ") {
                    format!("{v}.place().cast_const().cast()")
                } else {
                    format!("{v}.place().cast()")
                });
                arguments.push(format!("{v}.count()"));
                skip = true;
            }
            ("uint64_t*", _) if called == "submissions" => {
                writeln!(before, "let mut {v} = play.buffer(u, {owner}, {name:?}, {called:?}, 8)?;").unwrap();
                writeln!(before, "let mut {v}_more = vec![0_u8; {v}.count()];").unwrap();
                arguments.push(format!("{v}.place().cast()"));
                arguments.push(format!("{v}_more.as_mut_ptr().cast()"));
                arguments.push(format!("{v}.count()"));
                let count = format!("{v}_count");
                writeln!(before, "let mut {count} = 0_usize;").unwrap();
                arguments.push(format!("&raw mut {count}"));
                break;
            }
            ("const uint64_t*", _) if called == "position" => {
                writeln!(before, "let {v}: Option<u64> = u.arbitrary()?;").unwrap();
                arguments.push(format!("{v}.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)"));
            }
            ("struct ArrowSchema*" | "struct ArrowArray*", _) => {
                let given = name.contains("from_arrow");
                let which = if kind.contains("Schema") { "schema" } else { "array" };
                let how = if given { "Arrow::some" } else { "Arrow::none" };
                if which == "array" || !given {
                    let shared = if which == "schema" { v.clone() } else { format!("a{}", index - 1) };
                    if which == "schema" {
                        writeln!(before, "let mut {v} = Arrow::none(play, u)?;").unwrap();
                    }
                    arguments.push(format!("{shared}.{which}().cast()"));
                } else {
                    writeln!(before, "let mut {v} = {how}(play, u)?;").unwrap();
                    arguments.push(format!("{v}.schema().cast()"));
                }
            }
            (_, None) if kind.ends_with('*') && !kind.starts_with("const ") && !kind.ends_with("**") => {
                let of = rust(kind.trim_end_matches('*'));
                writeln!(before, "let mut {v} = MaybeUninit::<{of}>::uninit();").unwrap();
                if optional_out {
                    writeln!(before, "let {v}_there = u.ratio(3, 4)?;").unwrap();
                    arguments.push(format!("if {v}_there {{ {v}.as_mut_ptr() }} else {{ std::ptr::null_mut() }}"));
                } else {
                    arguments.push(format!("{v}.as_mut_ptr()"));
                }
            }
            ("bool", _) => arguments.push({
                writeln!(before, "let {v}: bool = u.arbitrary()?;").unwrap();
                v
            }),
            (_, None) if !kind.contains('*') => {
                let of = rust(kind);
                writeln!(before, "let {v} = play.number(u, {owner}, {name:?}, {called:?})? as {of};").unwrap();
                arguments.push(v);
            }
            _ => panic!("{name} has the parameter {kind} {called}, which this cannot make up"),
        }
    }
    let mut body = before;
    let called = format!("{name}({})", arguments.join(", "));
    match function.result.as_str() {
        "nx_error*" => {
            writeln!(body, "let error = {called};").unwrap();
            writeln!(body, "if play.succeeded(error) {{\n{after}}}").unwrap();
        }
        "bool" => writeln!(body, "if {called} {{\n{after}}}").unwrap(),
        "void" => writeln!(body, "{called};\n{after}").unwrap(),
        result => match handle(result) {
            Some(of) => writeln!(body, "let result = {called};\n{after}play.retained({of:?}, result);").unwrap(),
            None => writeln!(body, "black_box({called});\n{after}").unwrap(),
        },
    }
    body
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let headers = ["nervix_client.h", "nervix_client_ext.h"];
    let mut all = Vec::new();
    for header in headers {
        let path = format!("../../include/{header}");
        println!("cargo:rerun-if-changed={path}");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        all.extend(functions(&text));
    }
    let mut code = String::from("extern \"C\" {\n");
    for function in &all {
        let parameters: Vec<String> = function
            .parameters
            .iter()
            .enumerate()
            .map(|(index, parameter)| format!("a{index}: {}", rust(&parameter.kind)))
            .collect();
        let result = match function.result.as_str() {
            "void" => String::new(),
            result => format!(" -> {}", rust(result)),
        };
        writeln!(code, "fn {}({}){result};", function.name, parameters.join(", ")).unwrap();
    }
    code += "}\n\n/// Every function of the headers.\npub const COUNT: usize = ";
    writeln!(code, "{};\n", all.len()).unwrap();
    code += "/// Calls the function of a number with made-up arguments.\n";
    code += "#[allow(clippy::all, unused_mut, unused_variables, unused_assignments)]\n";
    code += "unsafe fn call(play: &mut Play, u: &mut Unstructured<'_>, which: usize) -> Result<()> {\nmatch which {\n";
    for (index, function) in all.iter().enumerate() {
        writeln!(code, "// {}\n{index} => {{\n{}}}", function.name, call(function)).unwrap();
    }
    code += "_ => {}\n}\nOk(())\n}\n";
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join("abi.rs"), code).expect("OUT_DIR can be written to");
}
