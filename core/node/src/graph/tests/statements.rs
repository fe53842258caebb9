use nervix_wire::types::{DomainPace, DomainStatus, PacedDomain, SubscriptionEndReason};

use super::*;

const SCHEMA: &str = "CREATE SCHEMA s (a U8, k STRING)";
const KEY: &str = "CREATE SCHEMA key (k STRING)";
const BRANCH: &str = "CREATE BRANCH b SCHEMA key TTL 10m";

#[test]
fn the_scenarios_load_as_they_stand() {
    for (folder, name) in [
        ("../../tests/probes/scenarios", "rows.nspl"),
        ("../../tests/probes/scenarios", "keys.nspl"),
        ("../../tests/probes/scenarios", "lists.nspl"),
        ("../../tests/probes/scenarios", "many.nspl"),
        ("src/graph/testdata", "io.nspl"),
        ("src/graph/testdata", "clock.nspl"),
    ] {
        let mut world = World::new();
        assert_eq!(
            load(&mut world, &file(folder, name)).as_deref(),
            Some("conformance"),
            "{name}"
        );
        let domains = world.domains();
        assert_eq!(domains.len(), 1);
        assert_eq!(domains[0].status, DomainStatus::Running);
        assert_eq!(domains[0].start_version, 1);
    }
}

/// A graph with a timestamp field, an error route and flushes by time, as a paced simulation has.
#[test]
fn endpoints_with_error_routes_load() {
    let mut world = World::new();
    load(
        &mut world,
        "CREATE PACED DOMAIN d WITH PERIOD 100ms SKEW 100ms;
         USE d;
         CREATE SCHEMA reading (id STRING, sensor STRING, occurred_at DATETIME, value I64);
         CREATE SCHEMA observed (id STRING, sensor STRING, occurred_at DATETIME, admitted_at DATETIME, source STRING, value I64);
         CREATE SCHEMA rejected (id STRING, occurred_at DATETIME, error_code STRING, error_message STRING);
         CREATE SCHEMA sensor (sensor STRING);
         CREATE BRANCH by_sensor SCHEMA sensor TTL 10m;
         CREATE RELAY readings SCHEMA observed BRANCHED BY by_sensor;
         CREATE RELAY rejections SCHEMA rejected UNBRANCHED CAPACITY 1;
         CREATE INGESTOR simulated FROM CLIENT SCHEMA reading
             MODE ACK PARALLEL MAX 8 ACK TIMEOUT 30s RETRY POLICY BACKOFF 100ms MAX 2s ON QUIESCE SUSPEND
           TIMESTAMP AT occurred_at
           TO readings INHERIT ALL SET source = 'at', admitted_at = now()
           BRANCHED BY by_sensor SET sensor = message.sensor
           FLUSH EACH 100ms MAX BATCH SIZE 1MiB
           ON MESSAGE ERROR SEND TO rejections SET id = input.id, occurred_at = input.occurred_at,
             error_code = error.code, error_message = error.message
           ON GENERAL ERROR LOG;
         CREATE EMITTER notices FROM rejections TO CLIENT SCHEMA rejected
             MODE ACK SEQUENTIAL ACK TIMEOUT 30s RETRY POLICY BACKOFF 100ms MAX 2s
           INHERIT ALL BATCH MAX MESSAGES 64 MAX SIZE 64KiB FLUSH EACH 100ms MAX BATCH SIZE 64KiB
           ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
         START AT NOW TIME RATE 4.0;",
    );
    let shown = done(&mut world, "SHOW INGESTORS");
    assert_eq!(
        shown,
        "simulated source=CLIENT schema=reading relay=readings status=running"
    );
}

#[test]
fn show_create_answers_with_a_statement_that_makes_the_same() {
    let mut world = World::new();
    load(&mut world, &file("src/graph/testdata", "io.nspl"));
    let mut again = World::new();
    for (kind, name) in [
        ("DOMAIN", "conformance"),
        ("SCHEMA", "typed_in_row"),
        ("SCHEMA", "typed_out_row"),
        ("SCHEMA", "tenant_key"),
        ("BRANCH", "by_tenant"),
        ("RELAY", "typed_rows"),
        ("INGESTOR", "typed_in"),
        ("EMITTER", "typed_out"),
    ] {
        let show = format!("SHOW CREATE {kind} {name};");
        let at = |world: &mut World, query: &str| {
            let result = world.execute(NOW, &cluster(), Some("conformance"), query);
            assert_ne!(
                result.disposition,
                Disposition::Failed,
                "{query}: {}",
                result.message
            );
            result.message
        };
        let text = at(&mut world, &show);
        at(&mut again, &text);
        assert_eq!(at(&mut again, &show), text);
    }
}

#[test]
fn domains_are_listed_with_their_pace_status_and_generation() {
    let mut world = World::new();
    let created = run(
        &mut world,
        "CREATE PACED DOMAIN p WITH PERIOD 100ms SKEW 10ms",
    );
    assert!(created.domains_changed);
    done(&mut world, "CREATE UNPACED DOMAIN d");
    assert!(run(&mut world, "START").domains_changed);
    assert!(run(&mut world, "STOP").domains_changed);
    assert!(run(&mut world, "START").domains_changed);
    assert!(!run(&mut world, "SHOW INGESTORS").domains_changed);
    let domains = world.domains();
    assert_eq!(domains[0].domain, "d");
    assert_eq!(domains[0].start_version, 2);
    assert_eq!(domains[0].status, DomainStatus::Running);
    assert_eq!(domains[1].start_version, 0);
    assert_eq!(domains[1].status, DomainStatus::Stopped);
    assert_eq!(
        domains[1].pace,
        DomainPace::PacedDomain(PacedDomain {
            period_nanos: 100_000_000,
            skew_nanos: 10_000_000
        })
    );
    assert!(run(&mut world, "DROP DOMAIN p").domains_changed);
    assert!(world.has_domain("d"));
    assert!(!world.has_domain("p"));
}

#[test]
fn describing_a_domain_says_what_its_clock_is() {
    let mut world = World::new();
    load(&mut world, &file("src/graph/testdata", "clock.nspl"));
    let later = Now(NOW.0 + 500_000_000);
    let text = world
        .execute(later, &cluster(), None, "DESCRIBE DOMAIN conformance")
        .message;
    for line in [
        "status: running",
        "pace: paced",
        "time rate: 2.0",
        "logical origin: 2030-01-01T00:00:00Z",
        "utc anchor: 2026-01-01T00:00:00Z",
        "time: 2030-01-01T00:00:01Z",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn what_exists_is_created_again_only_if_asked_not_to() {
    let mut world = world(&[SCHEMA]);
    assert_eq!(
        fails(&mut world, SCHEMA),
        (
            "the schema `s` already exists".to_string(),
            Some("s".to_string())
        )
    );
    for query in [
        "CREATE IF NOT EXISTS SCHEMA s (other U8)",
        "CREATE IF NOT EXISTS UNPACED DOMAIN d",
    ] {
        let result = run(&mut world, query);
        assert_eq!(
            result.disposition,
            Disposition::Completed {
                already_existed: true
            }
        );
        assert!(!result.domains_changed);
    }
    let created = run(&mut world, "CREATE IF NOT EXISTS SCHEMA t (a U8)");
    assert_eq!(
        created.disposition,
        Disposition::Completed {
            already_existed: false
        }
    );
    assert_eq!(
        done(&mut world, "SHOW CREATE SCHEMA s"),
        format!("{SCHEMA};")
    );
}

#[test]
fn a_malformed_statement_has_one_diagnostic_where_something_is_missing() {
    let result = run(&mut world(&[]), "CREATE RELAY;");
    assert_eq!(result.disposition, Disposition::Failed);
    let spans: Vec<_> = result
        .diagnostics
        .iter()
        .map(|diagnostic| diagnostic.span)
        .collect();
    assert_eq!(spans, [Some(SourceSpan { start: 12, end: 12 })]);
    assert!(result.message.contains("a name"), "{}", result.message);
}

#[test]
fn what_does_not_fit_is_refused_where_it_stands() {
    let mut world = world(&[
        SCHEMA,
        KEY,
        BRANCH,
        "CREATE SCHEMA lists (l VEC<U8>)",
        "CREATE RELAY flat SCHEMA s UNBRANCHED",
        "CREATE RELAY tall SCHEMA s BRANCHED BY b",
        "CREATE SCHEMA secret (a U8, k STRING SENSITIVE)",
        "CREATE RELAY secrets SCHEMA secret UNBRANCHED",
    ]);
    let ingestor = |construction: &str| {
        format!(
            "CREATE INGESTOR i FROM CLIENT SCHEMA s MODE ACK SEQUENTIAL ACK TIMEOUT 1s RETRY POLICY BACKOFF 1s MAX 1s \
             ON QUIESCE SUSPEND TIMESTAMP NOW TO {construction} FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG"
        )
    };
    let emitter = |relay: &str, construction: &str| {
        format!(
            "CREATE EMITTER e FROM {relay} TO CLIENT SCHEMA s MODE ACK SEQUENTIAL ACK TIMEOUT 1s RETRY POLICY BACKOFF 1s \
             MAX 1s {construction} BATCH MAX MESSAGES 1 MAX SIZE 1KiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG"
        )
    };
    for (query, offending) in [
        (
            "CREATE RELAY r SCHEMA nothing UNBRANCHED".to_string(),
            "nothing",
        ),
        (
            "CREATE RELAY r SCHEMA s BRANCHED BY nothing".to_string(),
            "nothing",
        ),
        ("CREATE BRANCH c SCHEMA lists TTL 1s".to_string(), "lists"),
        ("CREATE SCHEMA t (a U8, b U8, a U16)".to_string(), "a"),
        (
            "CREATE SCHEMA t (huge ARRAY<U8, 1000, 1000>)".to_string(),
            "huge",
        ),
        ("DROP RELAY nothing".to_string(), "nothing"),
        ("DROP SCHEMA key".to_string(), "key"),
        ("DROP BRANCH b".to_string(), "b"),
        ("SHOW CREATE RELAY nothing".to_string(), "nothing"),
        ("DESCRIBE EMITTER nothing".to_string(), "nothing"),
        ("DESCRIBE DOMAIN nothing".to_string(), "nothing"),
        ("DROP DOMAIN nothing".to_string(), "nothing"),
        ("ALTER SCHEMA s DROP nothing".to_string(), "nothing"),
        (ingestor("nothing INHERIT ALL"), "nothing"),
        (ingestor("flat INHERIT a, nothing"), "nothing"),
        (ingestor("flat INHERIT a"), "flat"),
        (ingestor("flat INHERIT ALL SET nothing = 1"), "nothing"),
        (ingestor("flat INHERIT ALL SET a = 256"), "256"),
        (ingestor("flat INHERIT ALL SET a = 'x'"), "'x'"),
        (ingestor("flat INHERIT ALL SET a = NULL"), "NULL"),
        (
            ingestor("flat INHERIT ALL SET a = error.code"),
            "error.code",
        ),
        (
            ingestor("flat INHERIT ALL BRANCHED BY b SET k = input.k"),
            "b",
        ),
        (ingestor("flat INHERIT ALL WHERE a"), "a"),
        (ingestor("tall INHERIT ALL"), "tall"),
        (ingestor("tall INHERIT ALL BRANCHED BY b SET k = a"), "a"),
        (emitter("secrets", "INHERIT ALL"), "s"),
        (
            emitter("secrets", "INHERIT ALL EXCEPT k SET k = input.k"),
            "input.k",
        ),
        (emitter("flat, flat", "INHERIT ALL"), "flat"),
    ] {
        let (message, covered) = fails(&mut world, &query);
        assert_eq!(covered.as_deref(), Some(offending), "{query}: {message}");
    }
    done(
        &mut world,
        &ingestor("tall INHERIT ALL BRANCHED BY b SET k = message.k WHERE input.a > 3"),
    );
    done(
        &mut world,
        &emitter(
            "secrets",
            "INHERIT ALL EXCEPT k SET k = leak_sensitive(input.k)",
        ),
    );
    for query in ["DROP RELAY tall", "DROP RELAY secrets"] {
        assert!(fails(&mut world, query).0.contains("is used by"));
    }
    for query in [
        "DROP EMITTER e",
        "DROP RELAY secrets",
        "DROP INGESTOR i",
        "DROP RELAY tall",
        "DROP BRANCH b",
        "DROP SCHEMA key",
    ] {
        done(&mut world, query);
    }
}

#[test]
fn endpoints_are_described_with_what_runs_in_them() {
    let mut world = World::new();
    load(&mut world, &file("src/graph/testdata", "io.nspl"));
    let describe = |world: &mut World, query: &str| {
        world
            .execute(NOW, &cluster(), Some("conformance"), query)
            .message
    };
    let ingestor = describe(&mut world, "DESCRIBE INGESTOR typed_in");
    for line in [
        "source: CLIENT",
        "schema: typed_in_row",
        "owner: node-1",
        "status: running",
        "admission: open",
        "producers: 0",
        "outstanding batches: 0",
    ] {
        assert!(
            ingestor.lines().any(|found| found == line),
            "{line}\n{ingestor}"
        );
    }
    let emitter = describe(&mut world, "DESCRIBE EMITTER typed_out");
    for line in ["consumers: 0", "retained batches: 0"] {
        assert!(
            emitter.lines().any(|found| found == line),
            "{line}\n{emitter}"
        );
    }
    assert_eq!(
        describe(&mut world, "SHOW CLUSTER STATUS"),
        "node node-1 http://127.0.0.1:1 running leader"
    );
}

#[test]
fn subscriptions_end_with_their_relay_and_with_its_rows() {
    let setup = [
        SCHEMA,
        KEY,
        BRANCH,
        "CREATE SCHEMA t (a U8)",
        "CREATE RELAY r SCHEMA s BRANCHED BY b",
        "CREATE RELAY other SCHEMA t UNBRANCHED",
    ];
    for (query, ends) in [
        ("DROP RELAY r", Some(SubscriptionEndReason::RelayRemoved)),
        ("DROP DOMAIN d", Some(SubscriptionEndReason::RelayRemoved)),
        (
            "ALTER RELAY r SET SCHEMA t",
            Some(SubscriptionEndReason::RelayChanged),
        ),
        (
            "ALTER RELAY r SET UNBRANCHED",
            Some(SubscriptionEndReason::RelayChanged),
        ),
        (
            "ALTER SCHEMA s ADD c U8",
            Some(SubscriptionEndReason::RelayChanged),
        ),
        (
            "ALTER SCHEMA key ADD c U8 OPTIONAL",
            Some(SubscriptionEndReason::RelayChanged),
        ),
        ("ALTER RELAY r SET CAPACITY 7", None),
        ("ALTER SCHEMA t ADD b U8", None),
        ("STOP", None),
    ] {
        let mut world = world(&setup);
        done(&mut world, "START");
        let opened = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r");
        let result = run(&mut world, query);
        let ended: Vec<_> = result
            .ended
            .iter()
            .map(|(id, reason, _)| (*id, *reason))
            .collect();
        assert_eq!(
            ended,
            ends.map(|reason| (opened.id, reason))
                .into_iter()
                .collect::<Vec<_>>(),
            "{query}: {}",
            result.message
        );
        assert_eq!(world.unsubscribe(opened.id), ends.is_none(), "{query}");
        assert!(!world.unsubscribe(opened.id));
    }
}

#[test]
fn an_alteration_that_endpoints_do_not_survive_changes_nothing() {
    let mut world = World::new();
    load(&mut world, &file("src/graph/testdata", "io.nspl"));
    let opened = world
        .subscribe("conformance", "CREATE SUBSCRIPTION n TO typed_rows")
        .unwrap();
    let query = "ALTER SCHEMA typed_in_row DROP u8v";
    let result = world.execute(NOW, &cluster(), Some("conformance"), query);
    assert_eq!(result.disposition, Disposition::Failed);
    assert!(
        result.message.contains("would no longer fit"),
        "{}",
        result.message
    );
    assert_eq!(result.diagnostics, []);
    assert!(result.ended.is_empty());
    assert!(world.unsubscribe(opened.id));
}

// rule: L-2
#[test]
fn requests_of_their_own_and_several_statements_are_no_command() {
    let mut world = world(&[]);
    for (query, names) in [
        ("USE d", "domain"),
        ("LIST DOMAINS", "ListDomainsRequest"),
        ("CREATE SUBSCRIPTION n TO r", "SubscribeRequest"),
        ("DELETE SUBSCRIPTION n", "UnsubscribeRequest"),
        ("ATTACH DOMAIN CLOCK", "AttachDomainClockRequest"),
        ("DETACH DOMAIN CLOCK", "DetachDomainClockRequest"),
        ("UPLOAD RESOURCE x VERSION '/x'", "UploadResource"),
        ("RESTORE CLUSTER FROM '/x'", "RestoreBackup"),
        ("START; STOP", "one at a time"),
        ("", "no statement"),
    ] {
        let (message, _) = fails(&mut world, query);
        assert!(message.contains(names), "{query}: {message}");
    }
    let result = world.execute(NOW, &cluster(), None, SCHEMA);
    assert_eq!(result.disposition, Disposition::Failed);
    assert!(result.message.contains("USE"), "{}", result.message);
    let result = world.execute(NOW, &cluster(), Some("gone"), SCHEMA);
    assert!(result.message.contains("`gone`"), "{}", result.message);
}

#[test]
fn what_this_node_cannot_do_it_says() {
    let mut world = world(&[]);
    for query in [
        "BEGIN",
        "COMMIT",
        "REVERT",
        "SHOW TRANSACTIONS",
        "DESCRIBE TRANSACTION",
    ] {
        let (message, _) = fails(&mut world, query);
        assert!(message.contains("a session's matter"), "{message}");
    }
    let (message, _) = fails(&mut world, "BACKUP CLUSTER TO '/x'");
    assert!(
        message.ends_with("is not supported by this node yet"),
        "{message}"
    );
}

#[test]
fn a_domain_starts_and_stops_once_a_generation() {
    let mut world = world(&[]);
    assert!(fails(&mut world, "STOP").0.contains("not running"));
    assert!(fails(&mut world, "START TIME RATE 2.0")
        .0
        .contains("unpaced"));
    assert!(fails(&mut world, "START AT NOW").0.contains("unpaced"));
    done(&mut world, "START");
    assert!(fails(&mut world, "START").0.contains("generation 1"));
    done(&mut world, "STOP");
    assert!(done(&mut world, "START").contains("generation 2"));
}

#[test]
fn followers_serve_the_reads_of_the_table_alone() {
    for query in [
        "SHOW CLUSTER STATUS",
        "show transactions;",
        "SHOW CREATE RELAY r",
        "SHOW CREATE",
        "SHOW UDFS",
        "SHOW PLACEMENTS",
        "SHOW RELAY r MATERIALIZED STATE",
        "LOOKUP x",
        "DESCRIBE DOMAIN",
        "DESCRIBE RESOURCE x",
        "DESCRIBE ENDPOINT x",
        "DESCRIBE RELAY r",
        "DESCRIBE INGESTOR i",
        "// reads\n DESCRIBE EMITTER e;",
        "DESCRIBE WINDOW PROCESSOR w",
    ] {
        assert!(World::served_by_any_node(query), "{query}");
    }
    for query in [
        "CREATE RELAY;",
        "START",
        "SHOW INGESTORS",
        "DESCRIBE TRANSACTION",
        "DESCRIBE SCHEMA s",
        "SHOW CLUSTER",
        "'broken",
        "",
    ] {
        assert!(!World::served_by_any_node(query), "{query}");
    }
}
