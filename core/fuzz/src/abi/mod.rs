//! The C interface under calls in any order: handles of the right type and alive, or NULL; lengths that are true, or refused;
//! everything else made up. Whatever happens, each call keeps the promises of the header: an error or a result and never both,
//! places written only on success, borrowed memory that stays as it is for as long as its object lives. Some inputs use two
//! threads. At the end every handle is given back, and the sanitizer finds what stays behind.
//!
//! Owns the order of calls and the handles. `table` is made out of the headers by build.rs: a new function is called from then
//! on, and one whose parameters are of a new shape stops the build.

mod arguments;
mod memory;
mod promises;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use arrow_array::StructArray;
use nervix_loopback_fuzz::fuzz::Node;

extern crate nervix_client_ffi as _;

mod table {
    use std::ffi::c_void;

    use super::{Function, Gives, Takes};

    include!(concat!(env!("OUT_DIR"), "/abi.rs"));
}

use table::{Object, FUNCTIONS};

/// What a function returns.
#[derive(Debug)]
pub enum Gives {
    Nothing,
    /// NULL for success.
    Error,
    Truth,
    Number,
    OneOf(&'static [i32]),
    Handle(Object),
}

/// What a parameter takes, or two or three of them that belong together.
#[derive(Debug)]
pub enum Takes {
    Handle(Object),
    HandleOut(Object),
    /// A pointer and a length.
    Text,
    /// Places for a pointer and a length.
    Borrowed,
    /// A buffer of elements so wide, and how many: to read from, and to write to.
    Read(usize),
    Fill(usize),
    Number,
    /// A number or nothing.
    Optional,
    /// A place so wide.
    Place(usize),
    PlaceOf(&'static [i32]),
    /// Two buffers and their one capacity.
    Pending,
    ArrowSchema,
    ArrowArray,
}

pub struct Function {
    pub name: &'static str,
    gives: Gives,
    takes: &'static [(&'static str, Takes)],
    call: fn(&[u64]) -> u64,
}

impl Function {
    fn named(name: &str) -> &'static Self {
        let found = FUNCTIONS.iter().find(|function| function.name == name);
        found.unwrap_or_else(|| panic!("the headers have no {name}"))
    }

    /// Gives a handle back.
    fn frees(&self) -> bool {
        let ends = self.name.ends_with("_free") || self.name.ends_with("_release");
        ends && self.takes.len() == 1
    }

    fn retains(&self) -> bool {
        self.name.ends_with("_retain")
    }

    /// Waits under a token.
    fn blocks(&self) -> bool {
        self.takes.len() > 1 && self.takes(&Takes::Handle(Object::Cancel))
    }

    fn takes(&self, wanted: &Takes) -> bool {
        let mut takes = self.takes.iter();
        takes.any(|(_, takes)| format!("{takes:?}") == format!("{wanted:?}"))
    }
}

/// How often a function was called with every object that it works on, and how often it had something to say then.
struct Count {
    called: AtomicU32,
    succeeded: AtomicU32,
}

static COUNTS: [Count; 256] = [const {
    Count {
        called: AtomicU32::new(0),
        succeeded: AtomicU32::new(0),
    }
}; 256];

fn count(function: &Function) -> &'static Count {
    let at = FUNCTIONS.iter().position(|one| one.name == function.name);
    &COUNTS[at.unwrap()]
}

/// A handle, and what is known of it.
struct Held {
    object: Object,
    address: u64,
    references: usize,
    /// Another thread uses it, or it is another thread's: not to be freed here.
    lent: bool,
    /// A token that ends every wait soon.
    ends: bool,
    /// The rows of a builder.
    rows: u64,
    /// What was read from it, and where.
    borrowed: Vec<(usize, Vec<u8>)>,
}

impl Held {
    fn new(object: Object, address: u64) -> Self {
        Self {
            object,
            address,
            references: 1,
            lent: false,
            ends: false,
            rows: 0,
            borrowed: Vec::new(),
        }
    }

    /// Borrowed memory is as it was, until the object goes.
    fn check(&self) {
        for (address, copy) in &self.borrowed {
            // SAFETY: the library promises that it lives as long as the object.
            let now = unsafe { std::slice::from_raw_parts(*address as *const u8, copy.len()) };
            assert_eq!(now, copy, "what was borrowed from {:?}", self.object);
        }
    }
}

/// What a call is to be given for the parameter of a name.
enum Wish<'a> {
    Text(&'a [u8]),
    Number(u64),
}

type Wishes<'a> = [(&'a str, Wish<'a>)];

const SCENE: &[(&str, &str)] = &[
    ("", "CREATE UNPACED DOMAIN d"),
    ("d", "CREATE SCHEMA row (id U32, name STRING, flag BOOL, raw BYTES OPTIONAL, tags VEC<STRING>, \
        grid ARRAY<I16, 2> OPTIONAL, secret STRING SENSITIVE)"),
    ("d", "CREATE SCHEMA sent (id U32, name STRING, flag BOOL, raw BYTES OPTIONAL, tags VEC<STRING>, \
        grid ARRAY<I16, 2> OPTIONAL)"),
    ("d", "CREATE SCHEMA key (name STRING)"),
    ("d", "CREATE BRANCH b SCHEMA key TTL 5m"),
    ("d", "CREATE RELAY r SCHEMA row BRANCHED BY b"),
    ("d", "CREATE INGESTOR i FROM CLIENT SCHEMA row MODE ACK PARALLEL MAX 8 ACK TIMEOUT 50ms RETRY POLICY BACKOFF 1ms MAX 10ms \
        ON QUIESCE SUSPEND TIMESTAMP NOW TO r INHERIT ALL BRANCHED BY b SET name = message.name FLUSH IMMEDIATE \
        ON MESSAGE ERROR LOG ON GENERAL ERROR LOG"),
    ("d", "CREATE EMITTER e FROM r TO CLIENT SCHEMA sent MODE ACK PARALLEL MAX 8 ACK TIMEOUT 60s \
        RETRY POLICY BACKOFF 1ms MAX 10ms INHERIT ALL EXCEPT secret BATCH MAX MESSAGES 16 MAX SIZE 256KiB FLUSH IMMEDIATE \
        ON MESSAGE ERROR LOG ON GENERAL ERROR LOG"),
    ("d", "CREATE RELAY q SCHEMA key UNBRANCHED"),
    ("d", "START"),
    ("", "CREATE PACED DOMAIN p WITH PERIOD 1ms SKEW 1ms"),
    ("p", "START"),
];

/// The fields that the ingestor and the emitter of the scene have, but for the last one of the ingestor: name, types from the
/// outermost, whether null and whether sensitive.
const FIELDS: &[(&str, &[(u64, u64)], bool, bool)] = &[
    ("id", &[(5, 0)], false, false),
    ("name", &[(12, 0)], false, false),
    ("flag", &[(11, 0)], false, false),
    ("raw", &[(13, 0)], true, false),
    ("tags", &[(16, 0), (12, 0)], false, false),
    ("grid", &[(15, 2), (4, 0)], true, false),
    ("secret", &[(12, 0)], false, true),
];

/// One thread's calls and handles.
struct Play<'n> {
    node: &'n Node,
    held: Vec<Held>,
    /// The object that was handed out last.
    last: Option<Object>,
    /// Whether arguments are made up; otherwise they are the first ones that make sense.
    wild: bool,
    /// What is left of the time for waiting.
    patience: Duration,
    submissions: Vec<u64>,
    /// The last execution reference, stream and rows that were read, to be passed back.
    reference: Vec<u8>,
    stream: Vec<u8>,
    rows: Option<StructArray>,
}

impl<'n> Play<'n> {
    fn new(node: &'n Node) -> Self {
        Self {
            node,
            held: Vec::new(),
            last: None,
            wild: false,
            patience: Duration::from_millis(300),
            submissions: Vec::new(),
            reference: Vec::new(),
            stream: Vec::new(),
            rows: None,
        }
    }

    fn step(&mut self, name: &str, wishes: &Wishes) -> bool {
        let nothing = &mut Unstructured::new(&[]);
        let done = self.call(nothing, Function::named(name), wishes);
        matches!(done, Ok(true))
    }

    fn command(&mut self, domain: &str, query: &str) {
        self.command_by("nx_session_execute", domain, query);
    }

    fn command_by(&mut self, execute: &str, domain: &str, query: &str) {
        let domain = Wish::Text(domain.as_bytes());
        let query = Wish::Text(query.as_bytes());
        self.step(
            "nxx_session_prepare_in",
            &[("domain", domain), ("query", query)],
        );
        self.step(execute, &[]);
    }

    fn fields(&mut self, fields: &[(&str, &[(u64, u64)], bool, bool)]) {
        self.step("nx_fields_new", &[]);
        for (name, types, nullable, sensitive) in fields {
            for (depth, (kind, length)) in types.iter().enumerate() {
                let (kind, length) = (Wish::Number(*kind), Wish::Number(*length));
                let wishes = [
                    ("type", kind),
                    ("length", length),
                    ("name", Wish::Text(name.as_bytes())),
                    ("nullable", Wish::Number(u64::from(*nullable))),
                    ("sensitive", Wish::Number(u64::from(*sensitive))),
                ];
                let name = if depth == 0 {
                    "nx_fields_add"
                } else {
                    "nx_fields_element"
                };
                self.step(name, &wishes);
            }
        }
    }

    /// Two rows for the ingestor, column by column.
    fn batch(&mut self) {
        self.step("nx_producer_schema", &[]);
        self.step("nx_batch_builder_new", &[("rows", Wish::Number(2))]);
        let at = |column| ("column", Wish::Number(column));
        let level = |level| ("level", Wish::Number(level));
        let numbers = |numbers: &[u64]| -> Vec<u8> {
            numbers
                .iter()
                .flat_map(|number| number.to_ne_bytes())
                .collect()
        };
        let fixed = |play: &mut Self, column, inner, values: &[u8]| {
            let wishes = [at(column), level(inner), ("values", Wish::Text(values))];
            play.step("nx_batch_builder_fixed", &wishes);
        };
        let texts = |play: &mut Self, column, inner, ends: &[u64], data: &[u8]| {
            let ends = numbers(ends);
            let (ends, data) = (Wish::Text(&ends), Wish::Text(data));
            let wishes = [at(column), level(inner), ("offsets", ends), ("data", data)];
            play.step("nx_batch_builder_varlen", &wishes);
        };
        fixed(self, 0, 0, &[1, 0, 0, 0, 2, 0, 0, 0]);
        texts(self, 1, 0, &[0, 1, 2], b"aa");
        fixed(self, 2, 0, &[0, 1]);
        texts(self, 3, 0, &[0, 0, 3], b"raw");
        self.step(
            "nx_batch_builder_states",
            &[at(3), ("states", Wish::Text(&[2, 1]))],
        );
        let lists = numbers(&[0, 2, 3]);
        self.step(
            "nx_batch_builder_offsets",
            &[at(4), level(0), ("offsets", Wish::Text(&lists))],
        );
        texts(self, 4, 1, &[0, 1, 1, 3], b"xyz");
        fixed(self, 5, 1, &[1, 0, 2, 0, 3, 0, 4, 0]);
        texts(self, 6, 0, &[0, 2, 4], b"s1s2");
        self.step("nx_batch_builder_finish", &[]);
    }

    fn holds(&self, object: Object) -> bool {
        self.held.iter().any(|held| held.object == object)
    }

    /// Gets hold of every kind of object, but for what is left out.
    fn begin(&mut self, without: u8) {
        let part = |bit: u8| without & (1 << bit) == 0;
        self.step("nxx_connect_options_new", &[]);
        for name in [
            "nxx_connect_options_request_timeout",
            "nxx_connect_options_retry_timeout",
        ] {
            self.step(name, &[("millis", Wish::Number(200))]);
        }
        if part(7) {
            self.step("nx_session_connect", &[]);
        }
        if !self.step("nxx_session_connect", &[]) {
            return;
        }
        let credit = || {
            [
                ("batches", Wish::Number(4)),
                ("bytes", Wish::Number(1 << 20)),
            ]
        };
        if part(0) {
            self.command("d", "CREATE SUBSCRIPTION s TO r");
        }
        if part(1) {
            self.command("p", "ATTACH DOMAIN CLOCK");
            self.step("nx_session_domain_clock", &[("domain", Wish::Text(b"p"))]);
            self.step("nx_session_next_clock_event", &[]);
        }
        if part(2) {
            self.fields(FIELDS);
            self.step("nx_session_open_ingestor", &credit());
            self.batch();
            self.step("nx_producer_submit", &[]);
        }
        if part(3) {
            self.fields(&FIELDS[..FIELDS.len() - 1]);
            self.step("nx_session_subscribe_emitter", &credit());
            if self.holds(Object::Producer) {
                self.step("nx_consumer_next", &[]);
            }
        }
        if part(4) && self.holds(Object::Delivery) {
            self.step("nx_delivery_batch", &[]);
            self.step("nx_batch_schema", &[]);
            self.step("nx_batch_ipc", &[]);
            self.step("nxx_batch_arrow", &[]);
            self.step("nxx_batch_from_arrow", &[]);
            let at = |column| [("column", Wish::Number(column))];
            self.step("nx_batch_varlen", &at(1));
            self.step("nx_batch_fixed", &at(2));
            self.step("nx_batch_offsets", &at(4));
        }
        if part(5) && self.holds(Object::Delivery) {
            self.step("nx_delivery_ack", &[]);
            self.step("nx_producer_rejoin", &[]);
        }
        if part(0) && self.holds(Object::Producer) && self.step("nx_session_next_event", &[]) {
            let at = |column| [("column", Wish::Number(column))];
            self.step("nx_event_column_varlen", &at(1));
            self.step("nx_event_cell_varlen", &at(1));
            self.step("nx_event_column_fixed", &at(2));
            self.step("nx_event_column_states", &at(3));
            self.step("nxx_event_arrow", &[]);
        }
        if part(6) {
            let input = ("input", Wish::Text(b"SHOW "));
            self.step("nx_session_suggest", &[input, ("cursor", Wish::Number(5))]);
        }
        if part(7) {
            self.step("nx_cancel_new", &[]);
            self.step("nx_producer_schema", &[]);
            self.step("nx_batch_builder_new", &[("rows", Wish::Number(2))]);
        }
    }

    /// Some calls that are seldom made one after the other by chance.
    fn scene(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=SCENES - 1)? {
            0 => {
                let domain = *u.choose(&["d", "d", "p"])?;
                let statement = u.choose(arguments::STATEMENTS)?;
                self.step(
                    "nxx_statement",
                    &[("query", Wish::Text(statement.as_bytes()))],
                );
                self.command(domain, statement);
                self.step("nxx_execution_sent", &[]);
            }
            1 => {
                self.command("d", "CREATE IF NOT EXISTS SCHEMA key (name STRING)");
                self.step("nxx_outcome_already_existed", &[]);
                self.step("nxx_statement", &[("query", Wish::Text(b"USE d"))]);
                self.command("d", "SHOW NONSENSE");
                self.step("nx_outcome_diagnostic", &[]);
                self.step("nx_error_execution_reference", &[]);
            }
            // A transaction, and perhaps its end, which fails when somebody else was faster.
            2 => {
                let outside = "nxx_session_execute_outside";
                self.command_by(outside, "d", "BEGIN");
                // Refused while that is held.
                self.command_by(outside, "d", "CREATE SCHEMA made (a U8)");
                self.step("nxx_error_unsent", &[]);
                self.step("nxx_error_held_transaction", &[]);
                self.command("d", "CREATE SCHEMA made (a U8)");
                self.step("nxx_outcome_transaction", &[]);
                self.step("nxx_outcome_admission", &[]);
                self.step("nxx_execution_position", &[]);
                self.command("d", "CREATE SCHEMA other (a U8); CREATE SCHEMA row (a U8)");
                let second = || ("index", Wish::Number(1));
                self.step("nxx_outcome_statement", &[second()]);
                self.step("nxx_outcome_statement_diagnostic", &[second()]);
                self.command("d", "ATTACH DOMAIN CLOCK");
                self.step("nxx_outcome_decided_locally", &[]);
                if u.arbitrary()? {
                    if u.arbitrary()? {
                        let _ = self.node.execute("d", "CREATE SCHEMA made (b U8)");
                    }
                    self.command("d", "COMMIT");
                    self.step("nxx_execution_preview", &[]);
                    self.step("nxx_outcome_transaction_failure", &[]);
                }
            }
            // What becomes of a batch: of one that is none, of one whose session is lost, and of one that nobody settles.
            3 => {
                let made_up = u.bytes(4)?;
                self.step("nx_producer_submit_ipc", &[("ipc", Wish::Text(made_up))]);
                self.rejoin();
                self.step("nx_submission_outcome_refusal", &[]);
                self.step("nx_submission_outcome_defect", &[]);
            }
            4 => {
                self.step("nx_producer_submit", &[]);
                self.node.disturb(u.arbitrary()?);
                self.rejoin();
                self.step("nx_submission_outcome_uncertainty", &[]);
            }
            5 => {
                self.step("nx_producer_submit", &[]);
                self.step("nx_consumer_next", &[]);
                self.rejoin();
                self.step("nx_submission_outcome_failure", &[]);
            }
            6 => {
                self.step("nx_producer_submit", &[]);
                self.step("nx_producer_release", &[]);
                self.step("nx_consumer_next", &[]);
                let settle =
                    *u.choose(&["nx_delivery_retry", "nx_delivery_reject", "nx_delivery_ack"])?;
                self.step(settle, &[]);
                self.step("nx_delivery_branch_fingerprint", &[]);
            }
            7 => {
                self.command("d", "CREATE SUBSCRIPTION u TO q");
                self.command("d", "DROP RELAY q");
                for _ in 0..2 {
                    self.step("nx_session_next_event", &[]);
                    self.step("nxx_event_end_reason", &[]);
                }
            }
            8 => {
                self.command("d", "CREATE SUBSCRIPTION v TO r WHERE 1 / (id - id) > 0");
                self.step("nx_producer_submit", &[]);
                for _ in 0..3 {
                    self.step("nx_session_next_event", &[]);
                    self.step("nxx_event_skip_cause", &[]);
                }
            }
            9 => {
                self.command("p", "STOP");
                self.step("nx_session_next_clock_event", &[]);
                self.step("nx_clock_event_state", &[]);
                self.command("p", "START");
                for _ in 0..2 {
                    self.step("nx_session_next_clock_event", &[]);
                    self.step("nx_clock_event_paced", &[]);
                    self.step("nx_clock_event_tick", &[]);
                }
            }
            10 => {
                self.command("p", "STOP");
                self.command("p", "DROP DOMAIN p");
                for _ in 0..3 {
                    self.step("nx_session_next_clock_event", &[]);
                    self.step("nx_clock_event_end_reason", &[]);
                }
            }
            11 => {
                self.command("d", "STOP");
                self.command("d", "DROP EMITTER e");
                self.step("nx_producer_submit", &[]);
                // The first read is told of the end, the second one asks for the emitter again.
                for _ in 0..2 {
                    self.step("nx_consumer_next", &[]);
                }
                self.step("nx_producer_reopen_reason", &[]);
                self.step("nx_consumer_reopen_reason", &[]);
            }
            _ => {
                self.fields(FIELDS);
                let nowhere = ("ingestor", Wish::Text(b"nowhere"));
                self.step("nx_session_open_ingestor", &[nowhere]);
                self.step("nx_error_open_refusal", &[]);
            }
        }
        Ok(())
    }

    fn rejoin(&mut self) {
        if let Some(last) = self.submissions.last() {
            let last = ("submission", Wish::Number(*last));
            self.step("nx_producer_rejoin", &[last]);
        }
    }

    /// A function to call: often one for what was handed out last, and seldom one without an object.
    fn function(&self, u: &mut Unstructured<'_>) -> Result<&'static Function> {
        let mut function = u.choose(FUNCTIONS)?;
        if u.arbitrary()? {
            for _ in 0..3 {
                match function.takes.first() {
                    Some((_, Takes::Handle(object))) if !self.holds(*object) => {}
                    _ => break,
                }
                function = u.choose(FUNCTIONS)?;
            }
        } else {
            let of = |function: &&Function| {
                let first = function.takes.first();
                matches!((first, self.last), (Some((_, Takes::Handle(object))), Some(last)) if *object == last)
            };
            let fitting: Vec<&Function> = FUNCTIONS.iter().filter(of).collect();
            if !fitting.is_empty() {
                function = *u.choose(&fitting)?;
            }
        }
        Ok(function)
    }

    fn go_on(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        self.patience = Duration::from_millis(100);
        for _ in 0..CALLS {
            if u.is_empty() {
                break;
            }
            match u.int_in_range(0..=59)? {
                0 => self.node.disturb(u.arbitrary()?),
                1..=4 => self.scene(u)?,
                _ => {
                    let function = self.function(u)?;
                    self.wild = true;
                    self.call(u, function, &[])?;
                    self.wild = false;
                }
            }
        }
        Ok(())
    }

    /// Gives every reference back, in an order that the input chooses.
    fn end(&mut self, u: &mut Unstructured<'_>) {
        self.held.retain(|held| !held.lent);
        while !self.held.is_empty() {
            let at = u.choose_index(self.held.len()).unwrap_or(0);
            self.let_go(at);
        }
    }

    /// Gives one reference back.
    fn let_go(&mut self, at: usize) {
        let held = &mut self.held[at];
        held.check();
        let mut functions = FUNCTIONS.iter().filter(|function| function.frees());
        let free = functions.find(|function| match function.takes {
            [(_, Takes::Handle(object))] => *object == held.object,
            _ => false,
        });
        (free.expect("every object is given back somehow").call)(&[held.address]);
        held.references -= 1;
        if held.references == 0 {
            self.held.swap_remove(at);
        }
    }

    /// The handles that another thread may use at the same time: with references of its own where they are counted.
    fn lend(&mut self) -> Vec<Held> {
        let mut lent = Vec::new();
        for held in &mut self.held {
            let (object, address) = (held.object, held.address);
            let retain = FUNCTIONS.iter().find(|function| {
                matches!(function.gives, Gives::Handle(given) if given == object)
                    && function.retains()
            });
            if let Some(retain) = retain {
                (retain.call)(&[address]);
                lent.push(Held::new(object, address));
            } else if matches!(
                object,
                Object::Session | Object::Producer | Object::Consumer | Object::Cancel
            ) {
                held.lent = true;
                let mut other = Held::new(object, address);
                (other.lent, other.ends) = (true, held.ends);
                lent.push(other);
            }
        }
        lent
    }
}

const SCENES: u8 = 13;

/// An input for each scene, and for the ways it may go on.
pub fn scenes() -> impl Iterator<Item = Vec<u8>> {
    let each = (0..SCENES).flat_map(|scene| (0..4).map(move |way| (scene, way)));
    each.map(|(scene, way)| {
        let mut input = vec![0, 0, 1, 1, scene];
        input.extend([way & 1, way >> 1, 0, 0]);
        input
    })
}

/// The most calls of a thread.
const CALLS: usize = 150;

thread_local! {
    /// The reader of Arrow's structures trusts that they fit together, and panics where the library says that they do not.
    static MAY_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// A panic is a finding, also where the library keeps it from its host.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !MAY_PANIC.get() {
                before(panic);
                std::process::abort();
            }
        }));
    });
}

/// A node that a closed connection does not kill, as it would this process: libFuzzer's main function leaves SIGPIPE as it is,
/// and the library must look after its own threads.
fn node() -> Node {
    // SAFETY: the sets are this function's own, and filled before they are read.
    unsafe {
        let (mut pipe, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        let node = Node::start(SCENE).unwrap();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        node
    }
}

fn played(data: &[u8]) -> Result<()> {
    let (head, data) = data.split_at(data.len().min(3));
    let &[some, others, threads] = head else {
        return Ok(());
    };
    let node = node();
    let mut play = Play::new(&node);
    play.begin(some & others);
    let (mine, others) = match threads % 4 {
        0 => data.split_at(data.len() / 2),
        _ => (data, [].as_slice()),
    };
    let mine = &mut Unstructured::new(mine);
    if others.is_empty() {
        let _ = play.go_on(mine);
    } else {
        let mut other = Play::new(&node);
        other.held = play.lend();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let others = &mut Unstructured::new(others);
                let _ = other.go_on(others);
                other.end(others);
            });
            let _ = play.go_on(mine);
        });
        play.held.iter_mut().for_each(|held| held.lent = false);
    }
    play.end(mine);
    Ok(())
}

/// Two bytes say together which objects are not there from the start, the third whether there are two threads.
pub fn run(data: &[u8]) {
    watch_panics();
    let _ = played(data);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    assert!(open < 500, "{open} descriptors are open");
}

fn count_call(function: &Function, complete: bool, succeeded: bool) {
    let count = count(function);
    if complete {
        count.called.fetch_add(1, Ordering::Relaxed);
    }
    if succeeded {
        count.succeeded.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the scene has no occasion for.
const NEVER: &[&str] = &[
    "nx_outcome_backup",
    "nx_outcome_restore",
    "nxx_error_condemned",
];

/// Whether inputs together call every function of the headers with the objects that it works on, and with success. Says how
/// often. What waits is ended soon, so that a slow machine may need the inputs more than once.
pub fn reach_every_function(inputs: &[Vec<u8>]) -> bool {
    let reached = |function: &Function| {
        let count = count(function);
        let called = count.called.load(Ordering::Relaxed);
        let succeeded = count.succeeded.load(Ordering::Relaxed);
        let fine = called > 0 && (succeeded > 0 || NEVER.contains(&function.name));
        (called, succeeded, fine)
    };
    for _ in 0..5 {
        inputs.iter().for_each(|input| run(input));
        if FUNCTIONS.iter().all(|function| reached(function).2) {
            break;
        }
    }
    for function in FUNCTIONS {
        let (called, succeeded, fine) = reached(function);
        let note = if fine { "" } else { ": not reached" };
        println!("{:40} {called:6} {succeeded:6}{note}", function.name);
    }
    FUNCTIONS.iter().all(|function| reached(function).2)
}
