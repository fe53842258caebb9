//! What must hold after a call, whatever it was given.

use super::arguments::Arguments;
use super::memory::{Memory, Pair};
use super::table::{Object, FUNCTIONS};
use super::{count_call, Function, Gives, Held, Play, Takes};

/// What stands behind a parameter.
pub enum Given {
    Handle(Object, u64),
    /// A place for a new handle.
    Made(Object, Memory),
    Read(Memory),
    Filled(Memory),
    /// Places for a pointer and a length.
    Borrowed(Memory, Memory),
    Number(u64),
    Place(Memory),
    PlaceOf(&'static [i32], Memory),
    Pending(Memory, Memory),
    /// Structures, and whether the schema is passed.
    Arrow(Pair, bool),
}

/// Succeeds with NULL where there is nothing to hand out.
const MAY_BE_NULL: [&str; 2] = ["nx_session_domain_clock", "nx_producer_release"];

/// Places that a successful call leaves alone when another one says so.
const CONDITIONAL: [&str; 5] = [
    "start",
    "end",
    "earliest_center",
    "latest_center",
    "refusal",
];

const INVALID_ARGUMENT: u64 = 1;
const REJECTED: u64 = 5;

/// What an error says: its kind, and whether it names a reference and a refusal.
fn read_error(error: u64) -> (u64, bool, bool) {
    let call = |name, arguments: &[u64]| (Function::named(name).call)(arguments);
    let kind = call("nx_error_kind_of", &[error]);
    assert!((1..=13).contains(&kind), "the kind of an error is {kind}");
    let (mut text, mut length) = (Memory::place(8, 0), Memory::place(8, 0));
    call(
        "nx_error_message",
        &[error, text.address(), length.address()],
    );
    // SAFETY: the message is borrowed from the error, which is not freed yet.
    let message =
        unsafe { std::slice::from_raw_parts(text.number() as *const u8, length.number() as usize) };
    let message = std::str::from_utf8(message).expect("a message is UTF-8");
    assert!(
        !message.is_empty() && !message.contains(char::is_control),
        "{message:?}"
    );
    assert!(!message.contains("a defect of it"), "{message}");
    let mut refusal = Memory::place(4, 0);
    let refused = call("nx_error_open_refusal", &[error, refusal.address()]) != 0;
    assert_eq!(refused, !refusal.is_untouched());
    assert!(!refused || kind == REJECTED && (1..=11).contains(&refusal.number()));
    let named = call(
        "nx_error_execution_reference",
        &[error, text.address(), length.address()],
    ) != 0;
    assert!(!named || (1..=128).contains(&length.number()));
    (kind, named, refused)
}

fn is_counted(object: Object) -> bool {
    let mut functions = FUNCTIONS.iter();
    functions.any(|function| function.retains() && function.takes(&Takes::Handle(object)))
}

impl Play<'_> {
    /// Takes a new reference to an object.
    fn take(&mut self, object: Object, address: u64) -> &mut Held {
        self.last = Some(object);
        let known = |held: &Held| held.object == object && held.address == address && !held.lent;
        if let Some(at) = self.held.iter().position(known) {
            assert!(is_counted(object), "{object:?} handed out twice");
            self.held[at].references += 1;
            return &mut self.held[at];
        }
        self.held.push(Held::new(object, address));
        self.held.last_mut().unwrap()
    }

    /// Whether the call had something to say.
    pub fn judge(
        &mut self,
        function: &'static Function,
        result: u64,
        arguments: Arguments,
    ) -> bool {
        let complete = arguments.complete;
        let owner = match arguments.given.first() {
            Some(Given::Handle(_, address)) => *address,
            _ => 0,
        };
        let succeeded = match &function.gives {
            Gives::Error => {
                assert!(
                    result != 0 || !arguments.refused,
                    "{} accepts what nothing accepts",
                    function.name
                );
                result == 0
            }
            Gives::Truth => result != 0,
            Gives::OneOf(values) => {
                let number = result as i32;
                let known = values.contains(&number);
                let of_nothing = matches!(arguments.given.first(), Some(Given::Handle(_, 0)));
                assert!(
                    known != of_nothing && (known || number == 0),
                    "{} returns {number}",
                    function.name
                );
                complete
            }
            Gives::Handle(object) => {
                if function.retains() {
                    assert_eq!(result, owner, "{}", function.name);
                } else {
                    assert_ne!(result, 0, "{}", function.name);
                }
                if result != 0 {
                    let object = *object;
                    self.take(object, result);
                }
                complete
            }
            Gives::Nothing | Gives::Number => complete,
        };
        if matches!(function.gives, Gives::Error) && !succeeded {
            self.failed(function, result, &arguments);
        }
        if function.name == "nx_cancel_trigger" {
            self.held
                .iter_mut()
                .filter(|held| held.address == owner)
                .for_each(|held| held.ends = true);
        }
        count_call(function, complete, complete && succeeded);
        let fails = matches!(function.gives, Gives::Error | Gives::Truth) && !succeeded;
        let rows = arguments.number(function, "rows");
        let millis = arguments.number(function, "deadline_millis");
        let mut texts = Vec::new();
        for ((name, _), given) in function.takes.iter().zip(arguments.given) {
            match given {
                Given::Made(object, place) => {
                    assert!(
                        !fails || place.is_untouched(),
                        "{} fails and writes {name}",
                        function.name
                    );
                    if fails || place.is_null() {
                        continue;
                    }
                    match place.number() {
                        0 => assert!(
                            MAY_BE_NULL.contains(&function.name),
                            "{} hands out NULL",
                            function.name
                        ),
                        address => {
                            let held = self.take(object, address);
                            held.rows = rows.unwrap_or(0);
                            held.ends = millis.is_some_and(|millis| millis <= 5);
                        }
                    }
                }
                Given::Filled(place) => {
                    assert!(
                        !fails || place.is_untouched(),
                        "{} fails and writes {name}",
                        function.name
                    );
                }
                Given::Borrowed(pointer, length) => {
                    let untouched = pointer.is_untouched() && length.is_untouched();
                    assert!(
                        !fails || untouched,
                        "{} fails and writes {name}",
                        function.name
                    );
                    if !fails && !pointer.is_null() && !length.is_null() {
                        self.borrowed(function, name, owner, pointer.number(), length.number());
                    }
                }
                Given::Place(place) => self.written(function, name, &place, fails),
                Given::PlaceOf(values, place) => {
                    self.written(function, name, &place, fails || owner == 0);
                    let known = values.contains(&(place.number() as u32 as i32));
                    assert!(
                        known || place.is_untouched(),
                        "{} writes {} to {name}",
                        function.name,
                        place.number()
                    );
                }
                Given::Pending(submissions, resolved) => {
                    assert!(!fails || submissions.is_untouched() && resolved.is_untouched());
                }
                Given::Arrow(mut pair, with_schema) => {
                    let takes = function.takes(&Takes::HandleOut(Object::Batch));
                    match (takes, fails) {
                        (true, _) => self.consumed(pair, with_schema, &arguments.passed),
                        (false, true) => {
                            assert!(pair.is_consumed(), "{} fails and exports", function.name)
                        }
                        (false, false) => {
                            if let Some(rows) = pair.import(with_schema) {
                                self.rows = Some(rows);
                            }
                        }
                    }
                }
                // What is lent may be a part of it.
                Given::Read(text) => texts.push(text),
                Given::Handle(..) | Given::Number(_) => {}
            }
        }
        complete && succeeded
    }

    /// Structures that are given up are given up, whether the call succeeds or not.
    fn consumed(&self, mut pair: Pair, with_schema: bool, passed: &[u64]) {
        let with_array = passed.contains(&pair.array());
        assert!(
            !(with_schema && with_array) || pair.is_consumed(),
            "structures are left to the host"
        );
    }

    fn failed(&mut self, function: &Function, error: u64, arguments: &Arguments) {
        let (kind, named, refused) = read_error(error);
        let name = function.name;
        assert!(
            !arguments.foreign || kind == INVALID_ARGUMENT,
            "{name} blocks a thread of a runtime"
        );
        if let (
            "nx_session_execute" | "nxx_session_execute_outside",
            [_, Given::Handle(_, execution), ..],
        ) = (name, arguments.given.as_slice())
        {
            assert!(
                named || *execution == 0,
                "an execute fails without its reference"
            );
        }
        let opens = ["nx_session_open_ingestor", "nx_session_subscribe_emitter"].contains(&name);
        assert!(opens || !refused, "{name} is refused like an open");
        let is_error = |held: &Held| held.object == Object::Error;
        if self.held.iter().filter(|held| is_error(held)).count() > 4 {
            let oldest = self.held.iter().position(is_error).unwrap();
            self.let_go(oldest);
        }
        self.take(Object::Error, error);
    }

    fn written(&mut self, function: &Function, name: &str, place: &Memory, fails: bool) {
        if place.is_null() {
            return;
        }
        // The length that would have been enough is worth knowing.
        assert!(
            !fails || place.is_untouched() || name == "data_len",
            "{} fails and writes {name}",
            function.name
        );
        if fails {
            return;
        }
        let must = matches!(function.gives, Gives::Error) && !CONDITIONAL.contains(&name);
        assert!(
            !must || !place.is_untouched(),
            "{} succeeds and leaves {name}",
            function.name
        );
        if place.value().len() == 1 && !place.is_untouched() {
            assert!(
                place.number() <= 1,
                "{} writes {} to {name}",
                function.name,
                place.number()
            );
        }
        if name == "submission" {
            self.submissions.push(place.number());
        }
    }

    /// Reads what was lent out, and remembers it.
    fn borrowed(&mut self, function: &Function, name: &str, owner: u64, address: u64, length: u64) {
        // A call that cannot fail may have had nothing to say without its object.
        // SAFETY: the library promises that so many bytes can be read.
        let bytes = match length {
            0 => &[],
            length => unsafe { std::slice::from_raw_parts(address as *const u8, length as usize) },
        };
        let of_delivery = function.name.starts_with("nx_delivery_");
        let exactly = match name {
            "digest" | "fingerprint" | "basis" => Some(32),
            "identity" => Some(16),
            "reference" if of_delivery => Some(16),
            _ => None,
        };
        if let (Some(exactly), true) = (exactly, owner != 0) {
            assert_eq!(length, exactly, "{} lends {name}", function.name);
        }
        let is_text = exactly.is_none() && !["ipc", "frame", "value"].contains(&name);
        assert!(
            !is_text || std::str::from_utf8(bytes).is_ok(),
            "{}: {name} is not UTF-8",
            function.name
        );
        match name {
            "ipc" => self.stream = bytes.to_vec(),
            "reference" if !of_delivery => self.reference = bytes.to_vec(),
            _ => {}
        }
        if let Some(held) = self.held.iter_mut().find(|held| held.address == owner) {
            if held.borrowed.len() < 8 {
                held.borrowed.push((address as usize, bytes.to_vec()));
            }
        }
    }
}
