//! Making up what a function is called with: what makes sense most of the time, and anything that a host may pass otherwise.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use arbitrary::{Result, Unstructured};
use arrow_array::Array;
use nervix_wire::types::RowSchema;

use super::memory::{Memory, Pair};
use super::promises::Given;
use super::table::Object;
use super::{Function, Held, Play, Takes, Wish, Wishes, MAY_PANIC};
use crate::given;

pub const STATEMENTS: &[&str] = &[
    "SHOW CLUSTER STATUS",
    "LIST DOMAINS",
    "CREATE SUBSCRIPTION s TO r",
    "CREATE SUBSCRIPTION t TO r WHERE id > 1 DELIVERY DROPPING",
    "CREATE SUBSCRIPTION u TO q",
    "CREATE SUBSCRIPTION v TO r WHERE 1 / (id - id) > 0",
    "DROP RELAY q",
    "DELETE SUBSCRIPTION s",
    "ATTACH DOMAIN CLOCK",
    "DETACH DOMAIN CLOCK",
    "USE d",
    "USE p",
    "BEGIN",
    "COMMIT",
    "REVERT",
    "CREATE SCHEMA other (a U8); CREATE SCHEMA row (a U8)",
    "CREATE IF NOT EXISTS SCHEMA key (name STRING)",
    "START",
    "STOP",
    "DROP RELAY r",
    "DROP DOMAIN p",
    "DESCRIBE TRANSACTION",
    "SHOW TRANSACTIONS",
    "SHOW NONSENSE",
];

const AUTHORITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/abi/ca.pem");

/// What a call is made with: the arguments as they are passed, and what stands behind each parameter.
#[derive(Default)]
pub struct Arguments {
    pub passed: Vec<u64>,
    pub given: Vec<Given>,
    /// Something was passed that no call accepts.
    pub refused: bool,
    /// The calling thread drives a runtime.
    pub foreign: bool,
    /// Every object that the call works on was there.
    pub complete: bool,
}

impl Arguments {
    /// The number given for a parameter.
    pub fn number(&self, function: &Function, name: &str) -> Option<u64> {
        let at = function.takes.iter().position(|(one, _)| *one == name)?;
        match self.given.get(at) {
            Some(Given::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// The bytes given for a parameter.
    pub fn bytes(&self, function: &Function, name: &str) -> Option<&[u8]> {
        let at = function.takes.iter().position(|(one, _)| *one == name)?;
        match self.given.get(at) {
            Some(Given::Read(memory)) => Some(memory.value()),
            _ => None,
        }
    }
}

impl Play<'_> {
    /// Calls a function, and says whether it had something to say.
    pub fn call(
        &mut self,
        u: &mut Unstructured<'_>,
        function: &'static Function,
        wishes: &Wishes,
    ) -> Result<bool> {
        let mut arguments = Arguments {
            complete: true,
            ..Arguments::default()
        };
        if function.frees() {
            let Some((_, Takes::Handle(object))) = function.takes.first() else {
                unreachable!("what frees takes a handle");
            };
            let here = |held: &Held| held.object == *object && !held.lent;
            let found: Vec<usize> = (0..self.held.len())
                .filter(|at| here(&self.held[*at]))
                .collect();
            if found.is_empty() || u.ratio(1, 10)? {
                (function.call)(&[0]);
            } else {
                self.let_go(*u.choose(&found)?);
                super::count_call(function, true, true);
            }
            return Ok(true);
        }
        for (name, takes) in function.takes {
            let wish = wishes.iter().find(|(wanted, _)| wanted == name);
            self.argument(
                u,
                function,
                (name, takes),
                wish.map(|(_, wish)| wish),
                &mut arguments,
            )?;
        }
        let foreign = self.wild && function.blocks() && u.ratio(1, 50)?;
        let entered = foreign.then(|| runtime().enter());
        let timer = self.timer(u, function, &arguments)?;
        let began = Instant::now();
        MAY_PANIC.set(
            function.takes(&Takes::ArrowArray) && function.takes(&Takes::HandleOut(Object::Batch)),
        );
        let result = (function.call)(&arguments.passed);
        MAY_PANIC.set(false);
        if function.blocks() {
            self.patience = self.patience.saturating_sub(began.elapsed());
        }
        drop(entered);
        if let Some(timer) = timer {
            timer.join().unwrap();
        }
        arguments.refused |= foreign;
        arguments.foreign = foreign;
        Ok(self.judge(function, result, arguments))
    }

    /// Triggers the token of a call that would wait without an end.
    fn timer(
        &mut self,
        u: &mut Unstructured<'_>,
        function: &Function,
        arguments: &Arguments,
    ) -> Result<Option<std::thread::JoinHandle<()>>> {
        if !function.blocks() {
            return Ok(None);
        }
        let at = function
            .takes
            .iter()
            .position(|(_, takes)| matches!(takes, Takes::Handle(Object::Cancel)));
        let Some(Given::Handle(_, address)) = at.and_then(|at| arguments.given.get(at)) else {
            return Ok(None);
        };
        let address = *address;
        let held = self
            .held
            .iter_mut()
            .find(|held| held.object == Object::Cancel && held.address == address);
        let Some(held) = held.filter(|held| !held.ends) else {
            return Ok(None);
        };
        held.ends = true;
        let wait = Duration::from_micros(u.int_in_range(0..=2000)?);
        let trigger = Function::named("nx_cancel_trigger").call;
        Ok(Some(std::thread::spawn(move || {
            std::thread::sleep(wait);
            trigger(&[address]);
        })))
    }

    /// One of several; the first where nothing is made up.
    fn one<T: Clone>(&self, u: &mut Unstructured<'_>, from: &[T]) -> Result<T> {
        match self.wild {
            true => Ok(u.choose(from)?.clone()),
            false => Ok(from[0].clone()),
        }
    }

    fn sometimes(&self, u: &mut Unstructured<'_>, one_in: u8) -> Result<bool> {
        Ok(self.wild && u.ratio(1, one_in)?)
    }

    fn argument(
        &mut self,
        u: &mut Unstructured<'_>,
        function: &'static Function,
        (name, takes): (&str, &Takes),
        wish: Option<&Wish<'_>>,
        arguments: &mut Arguments,
    ) -> Result<()> {
        let odd = usize::from(self.sometimes(u, 8)?);
        let place = |play: &Self, u: &mut Unstructured<'_>, width| -> Result<Memory> {
            Ok(match play.sometimes(u, 30)? {
                true => Memory::null(),
                false => Memory::place(width, odd),
            })
        };
        let given = match takes {
            Takes::Handle(object) => {
                let address = self.handle(u, function, *object)?;
                arguments.complete &= address != 0
                    || (*object == Object::Cancel || *object == Object::ConnectOptions);
                arguments.passed.push(address);
                Given::Handle(*object, address)
            }
            Takes::HandleOut(object) => {
                let mut place = place(self, u, 8)?;
                arguments.passed.push(place.address());
                arguments.refused |= place.is_null();
                Given::Made(*object, place)
            }
            Takes::Text => {
                let text = match wish {
                    Some(Wish::Text(text)) => Some(text.to_vec()),
                    _ => self.text(u, function, name, arguments)?,
                };
                let mut text = text.map_or_else(Memory::null, |text| Memory::holding(&text, odd));
                let mut length = text.value().len() as u64;
                if self.sometimes(u, 40)? {
                    arguments.refused = true;
                    length = u64::MAX - u64::from(u.arbitrary::<u8>()?);
                }
                arguments.passed.extend([text.address(), length]);
                Given::Read(text)
            }
            Takes::Read(width) => {
                let bytes = match wish {
                    Some(Wish::Text(text)) => text.to_vec(),
                    _ => self.content(u, function, name, *width, arguments)?,
                };
                let mut memory = Memory::holding(&bytes, odd);
                if self.sometimes(u, 40)? {
                    memory = Memory::null();
                }
                arguments
                    .passed
                    .extend([memory.address(), (memory.value().len() / width) as u64]);
                Given::Read(memory)
            }
            Takes::Fill(width) => {
                let count = self.room(u, function, name, arguments)?;
                let mut memory = Memory::place(count * width, odd);
                if self.sometimes(u, 20)? {
                    memory = Memory::null();
                }
                arguments.passed.extend([memory.address(), count as u64]);
                Given::Filled(memory)
            }
            Takes::Borrowed => {
                let (mut pointer, mut length) = (place(self, u, 8)?, place(self, u, 8)?);
                arguments
                    .passed
                    .extend([pointer.address(), length.address()]);
                Given::Borrowed(pointer, length)
            }
            Takes::Number => {
                let number = match wish {
                    Some(Wish::Number(number)) => *number,
                    _ => self.number(u, function, name, arguments)?,
                };
                arguments.passed.push(number);
                Given::Number(number)
            }
            Takes::Optional => {
                let mut memory = Memory::null();
                if self.sometimes(u, 2)? {
                    memory = Memory::holding(&u.int_in_range(0..=3_u64)?.to_ne_bytes(), odd);
                }
                arguments.passed.push(memory.address());
                Given::Read(memory)
            }
            Takes::Place(width) => {
                let mut place = place(self, u, *width)?;
                arguments.passed.push(place.address());
                Given::Place(place)
            }
            Takes::PlaceOf(values) => {
                let mut place = place(self, u, 4)?;
                arguments.passed.push(place.address());
                Given::PlaceOf(values, place)
            }
            Takes::Pending => {
                let capacity = self.one(u, &[4, 0, 1, 100])?;
                let (mut submissions, mut resolved) =
                    (place(self, u, 8 * capacity)?, place(self, u, capacity)?);
                arguments.passed.extend([
                    submissions.address(),
                    resolved.address(),
                    capacity as u64,
                ]);
                Given::Pending(submissions, resolved)
            }
            // The schema comes first and brings its array.
            Takes::ArrowSchema => {
                let mut pair = match function.takes(&Takes::HandleOut(Object::Batch)) {
                    true => self.pair(u)?,
                    false => Pair::empty(),
                };
                let without = self.sometimes(u, 8)?;
                arguments
                    .passed
                    .push(if without { 0 } else { pair.schema() });
                Given::Arrow(pair, !without)
            }
            Takes::ArrowArray => {
                let Some(Given::Arrow(pair, _)) = arguments.given.last_mut() else {
                    unreachable!("a schema comes before its array");
                };
                let without = self.wild && u.ratio(1, 30)?;
                arguments
                    .passed
                    .push(if without { 0 } else { pair.array() });
                arguments.refused |= without;
                Given::Number(u64::from(!without))
            }
        };
        arguments.given.push(given);
        Ok(())
    }

    fn handle(
        &mut self,
        u: &mut Unstructured<'_>,
        function: &Function,
        object: Object,
    ) -> Result<u64> {
        if object == Object::Cancel && function.blocks() {
            return self.token(u, function);
        }
        let of = |held: &&Held| held.object == object;
        let found: Vec<u64> = self
            .held
            .iter()
            .filter(of)
            .map(|held| held.address)
            .collect();
        if found.is_empty() || self.sometimes(u, 15)? {
            return Ok(0);
        }
        match self.wild && u.arbitrary()? {
            true => Ok(*u.choose(&found)?),
            false => Ok(found[found.len() - 1]),
        }
    }

    /// A token for a call that may wait: one that ends soon, one that ended, or one that `timer` ends.
    fn token(&mut self, u: &mut Unstructured<'_>, function: &Function) -> Result<u64> {
        if self.wild && u.ratio(1, 3)? {
            let own = |held: &&Held| held.object == Object::Cancel && (held.ends || !held.lent);
            let found: Vec<u64> = self
                .held
                .iter()
                .filter(own)
                .map(|held| held.address)
                .collect();
            if !found.is_empty() {
                return Ok(*u.choose(&found)?);
            }
        }
        let waits = function.name.contains("_next");
        let millis = match self.wild {
            _ if self.patience.is_zero() => 0,
            true if waits => u.int_in_range(0..=2)?,
            true => *u.choose(&[0, 1, 100, 100, 100])?,
            false if waits => self.patience.as_millis().min(40) as u64,
            false => self.patience.as_millis() as u64,
        };
        let mut token = Memory::place(8, 0);
        let error = (Function::named("nx_cancel_with_deadline").call)(&[millis, token.address()]);
        assert_eq!(error, 0);
        let mut held = Held::new(Object::Cancel, token.number());
        held.ends = true;
        self.held.push(held);
        Ok(token.number())
    }

    fn text(
        &mut self,
        u: &mut Unstructured<'_>,
        function: &Function,
        name: &str,
        arguments: &Arguments,
    ) -> Result<Option<Vec<u8>>> {
        let several = |texts: &[&str]| -> Vec<Vec<u8>> {
            texts.iter().map(|text| text.as_bytes().to_vec()).collect()
        };
        let uri = self.node.uri();
        let (some, free) = match name {
            // Names that would be looked up outside of this machine are none of them.
            "server" => (
                several(&[
                    uri,
                    &format!("{uri}/"),
                    "http://127.0.0.1:1",
                    "https://127.0.0.1:1",
                    "",
                    "127.0.0.1:1",
                    "http://",
                    "ftp://a",
                    "http://u:p@127.0.0.1:1",
                ]),
                false,
            ),
            "path" => (
                several(&[AUTHORITY, "/", "/dev/null", "no such file", ""]),
                false,
            ),
            "domain" if function.name.contains("connect") => {
                (several(&["d", "p", "nowhere", ""]), true)
            }
            "domain" => (several(&["d", "p", "nowhere"]), true),
            "ingestor" => (several(&["i", "e", "r"]), true),
            "emitter" => (several(&["e", "i", "r"]), true),
            "query" => (several(STATEMENTS), true),
            "input" => (
                several(&["SHOW ", "CREATE SUBSCRIPTION s TO ", "é", ""]),
                true,
            ),
            "name" => (several(&["id", "name", "x"]), true),
            "reason" => (several(&["no", ""]), true),
            "reference" => (vec![self.reference.clone()], true),
            "preview_transaction" => (several(&["t"]), true),
            "preview_basis" => (vec![vec![1; 32]], true),
            "ipc" => (vec![self.stream.clone()], true),
            "states" => (vec![self.content(u, function, name, 1, arguments)?], true),
            // As long as the offsets before it say.
            "data" => {
                let end = arguments
                    .bytes(function, "offsets")
                    .and_then(|offsets| offsets.last_chunk());
                let end = end.map_or(0, |end| u64::from_ne_bytes(*end)).min(64);
                (vec![vec![b'x'; end as usize]], true)
            }
            "username" | "password" | "continuation" | "transaction" => (several(&["a"]), true),
            _ => panic!("{}: nothing is known of the text {name}", function.name),
        };
        let optional = matches!(
            name,
            "username"
                | "password"
                | "continuation"
                | "reference"
                | "transaction"
                | "preview_transaction"
                | "preview_basis"
        ) || name == "domain"
            && ["connect", "prepare"]
                .iter()
                .any(|what| function.name.contains(what));
        if optional && (!self.wild || u.ratio(2, 3)?) || self.sometimes(u, 20)? {
            return Ok(None);
        }
        let mut text = self.one(u, &some)?;
        if free && self.sometimes(u, 6)? {
            match u.arbitrary()? {
                true => given::damage(u, &mut text)?,
                false => {
                    let length = u.int_in_range(0..=20)?;
                    text = u.bytes(length)?.to_vec();
                }
            }
        }
        Ok(Some(text))
    }

    fn number(
        &mut self,
        u: &mut Unstructured<'_>,
        function: &Function,
        name: &str,
        arguments: &Arguments,
    ) -> Result<u64> {
        if self.sometimes(u, 10)? {
            return u.arbitrary();
        }
        Ok(match name {
            "part" => self.one(u, &[1, 1, 2, 2, 0, 3])?,
            "type" => self.one(u, &(1..=17).collect::<Vec<_>>())?,
            "length" => self.one(u, &[0, 1, 2])?,
            "column" => self.one(u, &[0, 1, 2, 3, 4, 5, 6, 7])?,
            "index" => self.one(u, &[0, 0, 0, 1, 2, 3])?,
            "level" | "row" | "diagnostic" | "preview_position" => self.one(u, &[0, 0, 1, 2])?,
            "rows" => self.one(u, &[0, 1, 2, 3])?,
            "batches" => self.one(u, &[4, 1, 0, 1024, 1025])?,
            "bytes" => self.one(u, &[1 << 20, 1 << 25, 1 << 18, 0])?,
            "deadline_millis" => self.one(u, &[0, 1, 2])?,
            "millis" => self.one(u, &[20, 1, 0])?,
            "page_size" => self.one(u, &[1, 10, 100, 101])?,
            "cursor" => {
                let end = arguments.bytes(function, "input").map_or(0, <[u8]>::len) as u64;
                self.one(u, &[end, 0, 1])?
            }
            "submission" => match self.submissions.is_empty() {
                true => 0,
                false => self.one(u, &self.submissions)?,
            },
            "nullable" | "sensitive" => self.one(u, &[0, 1])?,
            "utc" | "event" | "target" => {
                let now = std::time::SystemTime::UNIX_EPOCH
                    .elapsed()
                    .map_or(0, |now| now.as_nanos() as u64);
                match self.wild {
                    true => now.wrapping_add_signed(u.int_in_range(-5_000_000..=5_000_000)?),
                    false => now,
                }
            }
            _ => panic!("{}: nothing is known of the number {name}", function.name),
        })
    }

    /// How many cells the buffers of a call are about.
    fn cells(&self, function: &Function, arguments: &Arguments) -> usize {
        let Some(Given::Handle(object, address)) = arguments.given.first() else {
            return 0;
        };
        let number = |name| arguments.number(function, name);
        match object {
            _ if *address == 0 => 0,
            Object::Event if number("part") == Some(2) => 1,
            Object::Event => (Function::named("nx_event_row_count").call)(&[*address]) as usize,
            Object::Batch => {
                let mut cells = Memory::place(8, 0);
                let (column, level) = (number("column").unwrap_or(0), number("level").unwrap_or(0));
                let error = (Function::named("nx_batch_cells").call)(&[
                    *address,
                    column,
                    level,
                    cells.address(),
                ]);
                (Function::named("nx_error_free").call)(&[error]);
                if error == 0 {
                    cells.number() as usize
                } else {
                    0
                }
            }
            Object::BatchBuilder => {
                let held = self.held.iter().find(|held| held.address == *address);
                held.map_or(0, |held| held.rows as usize)
            }
            _ => 0,
        }
    }

    /// How many elements a buffer is given that is written to.
    fn room(
        &mut self,
        u: &mut Unstructured<'_>,
        function: &Function,
        name: &str,
        arguments: &Arguments,
    ) -> Result<usize> {
        let cells = self.cells(function, arguments);
        if self.sometimes(u, 6)? {
            return u.int_in_range(0..=40);
        }
        Ok(match name {
            "states" => cells,
            "offsets" => cells + 1,
            "values" => cells * self.one(u, &[1, 2, 4, 8])?,
            "data" => self.one(u, &[256, 0, 3])?,
            _ => panic!("{}: nothing is known of the buffer {name}", function.name),
        })
    }

    /// What a builder is given.
    fn content(
        &mut self,
        u: &mut Unstructured<'_>,
        function: &Function,
        name: &str,
        width: usize,
        arguments: &Arguments,
    ) -> Result<Vec<u8>> {
        let mut cells = self.cells(function, arguments).min(50);
        if self.sometimes(u, 4)? {
            cells = u.int_in_range(0..=6)?;
        }
        Ok(match name {
            "states" => (0..cells)
                .map(|_| u.int_in_range(1..=2))
                .collect::<Result<_>>()?,
            "offsets" => {
                let mut end = u64::from(self.sometimes(u, 30)?);
                let mut all = end.to_ne_bytes().to_vec();
                for _ in 0..cells {
                    end = match self.sometimes(u, 30)? {
                        true => u.arbitrary()?,
                        false => end.wrapping_add(u.int_in_range(0..=2)?),
                    };
                    all.extend(end.to_ne_bytes());
                }
                all
            }
            "values" => {
                let mut values = vec![0; cells * self.one(u, &[1, 2, 4, 8])?];
                u.fill_buffer(&mut values)?;
                if u.arbitrary()? {
                    values.iter_mut().for_each(|value| *value &= 1);
                }
                values
            }
            _ => panic!(
                "{}: nothing is known of the content of {name} ({width} wide)",
                function.name
            ),
        })
    }

    /// Rows for `nxx_batch_from_arrow`: those that were read last, a part of them, others, or something spoilt.
    fn pair(&mut self, u: &mut Unstructured<'_>) -> Result<Pair> {
        let mut rows = self.rows.clone();
        if rows.is_none() || self.sometimes(u, 4)? {
            let schema = RowSchema {
                fields: given::fields(u, false)?,
                branch: None,
            };
            rows = Some(given::batch(u, &schema.into())?.to_arrow().unwrap());
        }
        let mut rows = rows.unwrap();
        if self.sometimes(u, 3)? {
            let offset = u.int_in_range(0..=rows.len())?;
            let length = u.int_in_range(0..=rows.len() - offset)?;
            rows = rows.slice(offset, length);
        }
        let mut pair = Pair::of(&rows);
        if self.sometimes(u, 4)? {
            pair.spoil(u)?;
        }
        Ok(pair)
    }
}

/// A runtime for a thread to drive while it calls the library.
fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    })
}
