/* A host of the C interface: runs commands and a subscription, checks what it reads, and releases everything it received.
 *
 *     host URI USER PASSWORD
 *
 * Expects the domain and the relay of the `rows` scenario, prints SUBSCRIBED when that scenario's three rows may be published, and
 * PASS at the end. Any surprise is one line on standard error and status 1.
 */
#include "host.h"

#include <pthread.h>
#include <unistd.h>

#define ROWS 3

static void errors_before_any_session(const char *uri) {
  nx_session *session = NULL;
  nx_cancel *expired = NULL;
  const uint8_t *server = (const uint8_t *)uri;
  size_t server_len = strlen(uri);

  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_session_connect(TEXT("no address"), NULL, 0, NULL, 0, NULL, 0, NULL, &session));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_session_connect(NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, &session));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_session_connect(TEXT("http://\xff\xfe"), NULL, 0, NULL, 0, NULL, 0, NULL, &session));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_session_connect(server, server_len, NULL, 0, TEXT("alone"), NULL, 0, NULL, &session));
  SUCCEED(nx_cancel_with_deadline(0, &expired));
  EXPECT(NX_ERROR_DEADLINE, nx_session_connect(server, server_len, NULL, 0, NULL, 0, NULL, 0, expired, &session));
  nx_cancel_free(expired);
  CHECK(session == NULL);

  /* Nothing is a legal thing to release. */
  nx_error_free(NULL);
  nx_cancel_free(NULL);
  nx_session_free(NULL);
  nx_execution_free(NULL);
  nx_outcome_free(NULL);
  nx_schema_free(NULL);
  nx_event_release(NULL);
  nx_suggestions_free(NULL);
  CHECK(nx_error_kind_of(NULL) == 0);
}

static void commands(nx_session *session) {
  nx_execution *execution = NULL;
  nx_outcome *first = NULL, *second = NULL, *failed;
  nx_cancel *cancel = patience(), *triggered = nx_cancel_new();
  const uint8_t *text, *reference, *again;
  size_t text_len, reference_len, again_len;
  uint32_t start = 99, end = 99;
  bool has_span = false;

  /* One execution, run twice, is one command: its outcome is the same. */
  SUCCEED(nx_session_prepare(session, TEXT("SHOW CREATE RELAY typed_rows;"), NULL, &execution));
  SUCCEED(nx_session_execute(session, execution, cancel, &first));
  SUCCEED(nx_session_execute(session, execution, cancel, &second));
  CHECK(nx_outcome_disposition(first) == NX_DISPOSITION_COMPLETED);
  CHECK(nx_outcome_disposition(second) == NX_DISPOSITION_COMPLETED);
  nx_execution_reference(execution, &reference, &reference_len);
  CHECK(nx_outcome_execution_reference(second, &again, &again_len));
  CHECK(reference_len == again_len && memcmp(reference, again, again_len) == 0);
  nx_outcome_message(first, &text, &text_len);
  nx_outcome_message(second, &again, &again_len);
  CHECK(text_len > 0 && text_len == again_len && memcmp(text, again, text_len) == 0);
  CHECK(nx_outcome_diagnostic_count(first) == 0);
  nx_outcome_free(first);
  nx_outcome_free(second);
  nx_execution_free(execution);

  failed = run(session, "CREATE RELAY;");
  CHECK(nx_outcome_disposition(failed) == NX_DISPOSITION_FAILED);
  CHECK(nx_outcome_diagnostic_count(failed) == 1);
  SUCCEED(nx_outcome_diagnostic(failed, 0, &text, &text_len, &has_span, &start, &end));
  CHECK(text_len > 0 && has_span && start == 12 && end == 12);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_outcome_diagnostic(failed, 1, &text, &text_len, &has_span, &start, &end));
  nx_outcome_free(failed);

  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_session_prepare(session, TEXT("\xc3("), NULL, &execution));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_session_prepare(session, NULL, 0, NULL, &execution));

  /* A command run with a token that was triggered already names its reference, and runs afterwards. */
  nx_cancel_trigger(triggered);
  SUCCEED(nx_session_prepare(session, TEXT("SHOW CREATE RELAY typed_rows;"), NULL, &execution));
  first = NULL;
  CHECK(EXPECT(NX_ERROR_CANCELLED, nx_session_execute(session, execution, triggered, &first)));
  CHECK(first == NULL);
  SUCCEED(nx_session_execute(session, execution, cancel, &first));
  CHECK(nx_outcome_disposition(first) == NX_DISPOSITION_COMPLETED);
  nx_outcome_free(first);
  nx_execution_free(execution);
  nx_cancel_free(triggered);
  nx_cancel_free(cancel);
}

static void suggestions(nx_session *session) {
  nx_suggestions *page = NULL;
  nx_cancel *cancel = patience();
  const uint8_t *value, *replacement;
  size_t value_len, replacement_len, index;
  uint32_t start, end;
  nx_completion_kind kind;

  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_session_suggest(session, TEXT("SHOW"), 5, 10, NULL, 0, cancel, &page));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_session_suggest(session, TEXT("SHOW"), 4, 0, NULL, 0, cancel, &page));
  SUCCEED(nx_session_suggest(session, TEXT("SHOW "), 5, 10, NULL, 0, cancel, &page));
  for (index = 0; index < nx_suggestions_count(page); index++) {
    SUCCEED(nx_suggestions_at(page, index, &kind, &value, &value_len, &start, &end, &replacement, &replacement_len));
    CHECK(value_len > 0 && start <= end && end <= 5);
  }
  EXPECT(NX_ERROR_INVALID_ARGUMENT,
      nx_suggestions_at(page, index, &kind, &value, &value_len, &start, &end, &replacement, &replacement_len));
  (void)nx_suggestions_continuation(page, &value, &value_len);
  nx_suggestions_free(page);
  nx_cancel_free(cancel);
}

/* The columns of the scenario's relay that the checks below name. */
enum { ID, TENANT, U8V, I8V, U16V, I16V, U32V, I32V, U64V, I64V, F32V, F64V, FLAG, TEXT_FIELD, RAW, AT, MAYBE, SECRET, FIELDS };

static void read_schema(const nx_schema *schema) {
  const uint8_t *name;
  size_t name_len, count = 0, levels = 0;
  nx_type type;
  bool nullable, sensitive;
  uint32_t length = 7;

  SUCCEED(nx_schema_field_count(schema, NX_PART_ROWS, &count));
  CHECK(count == FIELDS);
  SUCCEED(nx_schema_field_count(schema, NX_PART_BRANCH_KEY, &count));
  CHECK(count == 1);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_schema_field_count(schema, 3, &count));
  SUCCEED(nx_schema_field(schema, NX_PART_ROWS, MAYBE, &name, &name_len, &type, &nullable, &sensitive));
  CHECK(is_text(name, name_len, "maybe") && type == NX_TYPE_I64 && nullable && !sensitive);
  SUCCEED(nx_schema_field(schema, NX_PART_ROWS, SECRET, &name, &name_len, &type, &nullable, &sensitive));
  CHECK(is_text(name, name_len, "secret") && type == NX_TYPE_STRING && !nullable && sensitive);
  EXPECT(NX_ERROR_INVALID_ARGUMENT,
      nx_schema_field(schema, NX_PART_ROWS, FIELDS, &name, &name_len, &type, &nullable, &sensitive));
  SUCCEED(nx_schema_field_levels(schema, NX_PART_ROWS, ID, &levels));
  CHECK(levels == 1);
  SUCCEED(nx_schema_field_level(schema, NX_PART_ROWS, ID, 0, &type, &length));
  CHECK(type == NX_TYPE_U32 && length == 0);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_schema_field_level(schema, NX_PART_ROWS, ID, 1, &type, &length));
  CHECK(nx_schema_branch(schema, &name, &name_len) && is_text(name, name_len, "by_tenant"));
}

static const int64_t AT_VALUES[ROWS] = {INT64_MAX, INT64_MIN, 1};
static const uint32_t F32_BITS[ROWS] = {0x7f7fffff, 0x80000000, 0x3fc00000};
static const uint64_t U64_VALUES[ROWS] = {UINT64_MAX, 0, 9007199254740993};
static const int8_t I8_VALUES[ROWS] = {INT8_MAX, INT8_MIN, -1};
static const size_t TEXT_LENGTHS[ROWS] = {18, 3, 0};
static const uint8_t MAYBE_STATES[ROWS] = {NX_CELL_NULL, NX_CELL_VALUE, NX_CELL_VALUE};

/* Reads every kind of column of an event of exactly one row, the scenario's `row`th. */
static void read_row(const nx_event *event, size_t row) {
  uint32_t id = 0, bits = 0;
  uint64_t big = 0, offsets[2] = {9, 9};
  int64_t at = 0, maybe = 7;
  int8_t small = 0;
  uint8_t state = 0, data[64];
  size_t data_len = 0, value_len = 0, frame_len = 0;
  const uint8_t *value = NULL, *frame = NULL;

  SUCCEED(nx_event_frame(event, &frame, &frame_len));
  CHECK(frame_len >= 8 && memcmp(frame + 4, "NXSM", 4) == 0);
  SUCCEED(nx_event_column_fixed(event, NX_PART_ROWS, ID, &id, sizeof id));
  CHECK(id == row + 1);
  SUCCEED(nx_event_column_fixed(event, NX_PART_ROWS, I8V, &small, sizeof small));
  CHECK(small == I8_VALUES[row]);
  SUCCEED(nx_event_column_fixed(event, NX_PART_ROWS, U64V, &big, sizeof big));
  CHECK(big == U64_VALUES[row]);
  SUCCEED(nx_event_column_fixed(event, NX_PART_ROWS, F32V, &bits, sizeof bits));
  CHECK(bits == F32_BITS[row]);
  SUCCEED(nx_event_column_fixed(event, NX_PART_ROWS, AT, &at, sizeof at));
  CHECK(at == AT_VALUES[row]);
  SUCCEED(nx_event_column_states(event, NX_PART_ROWS, MAYBE, &state, 1));
  CHECK(state == MAYBE_STATES[row]);
  SUCCEED(nx_event_column_fixed(event, NX_PART_ROWS, MAYBE, &maybe, sizeof maybe));
  CHECK(state == NX_CELL_VALUE || maybe == 0);
  SUCCEED(nx_event_column_states(event, NX_PART_ROWS, SECRET, &state, 1));
  CHECK(state == NX_CELL_REDACTED);

  SUCCEED(nx_event_column_varlen(event, NX_PART_ROWS, TEXT_FIELD, NULL, 0, NULL, 0, &data_len));
  CHECK(data_len == TEXT_LENGTHS[row]);
  if (data_len > 0) {
    EXPECT(NX_ERROR_INVALID_ARGUMENT,
        nx_event_column_varlen(event, NX_PART_ROWS, TEXT_FIELD, offsets, 2, data, data_len - 1, &data_len));
    CHECK(data_len == TEXT_LENGTHS[row]);
  }
  SUCCEED(nx_event_column_varlen(event, NX_PART_ROWS, TEXT_FIELD, offsets, 2, data, sizeof data, &data_len));
  CHECK(offsets[0] == 0 && offsets[1] == data_len && data_len == TEXT_LENGTHS[row]);
  SUCCEED(nx_event_cell_varlen(event, NX_PART_ROWS, 0, TEXT_FIELD, &value, &value_len));
  CHECK(value_len == data_len && (value_len == 0 || memcmp(value, data, value_len) == 0));
  SUCCEED(nx_event_cell_varlen(event, NX_PART_BRANCH_KEY, 0, 0, &value, &value_len));
  CHECK(is_text(value, value_len, row == 1 ? "beta" : "acme"));

  EXPECT(NX_ERROR_TYPE, nx_event_cell_varlen(event, NX_PART_ROWS, 0, SECRET, &value, &value_len));
  EXPECT(NX_ERROR_TYPE, nx_event_column_fixed(event, NX_PART_ROWS, TEXT_FIELD, &big, sizeof big));
  EXPECT(NX_ERROR_TYPE, nx_event_column_varlen(event, NX_PART_ROWS, ID, NULL, 0, NULL, 0, &data_len));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_event_column_fixed(event, NX_PART_ROWS, FIELDS, &big, sizeof big));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_event_column_fixed(event, NX_PART_ROWS, U64V, &big, sizeof big - 1));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_event_column_states(event, NX_PART_ROWS, MAYBE, &state, 2));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_event_cell_varlen(event, NX_PART_ROWS, 1, TEXT_FIELD, &value, &value_len));
}

static void *release_event(void *event) {
  nx_event_release(event);
  return NULL;
}

static void *trigger_soon(void *cancel) {
  usleep(50000);
  nx_cancel_trigger(cancel);
  return NULL;
}

/* Opens the subscription and collects the scenario's rows, each event holding the one reference that was handed out. */
static void subscription(nx_session *session, nx_event *events[ROWS]) {
  nx_outcome *outcome = run(session, "CREATE SUBSCRIPTION host TO typed_rows;");
  nx_schema *schema = NULL;
  nx_event *none = NULL;
  nx_cancel *cancel = NULL, *expired = NULL, *forever = nx_cancel_new();
  pthread_t thread;
  const uint8_t *name;
  size_t name_len, row;
  uint64_t generation = 0, seen;

  CHECK(nx_outcome_disposition(outcome) == NX_DISPOSITION_COMPLETED);
  CHECK(nx_outcome_subscription(outcome, &name, &name_len, &generation));
  CHECK(is_text(name, name_len, "host") && generation != 0);
  SUCCEED(nx_outcome_schema(outcome, &schema));
  nx_outcome_free(outcome);
  read_schema(schema);
  nx_schema_free(schema);

  SUCCEED(nx_cancel_with_deadline(0, &expired));
  EXPECT(NX_ERROR_DEADLINE, nx_session_next_event(session, expired, &none));
  nx_cancel_free(expired);
  CHECK(pthread_create(&thread, NULL, trigger_soon, forever) == 0);
  EXPECT(NX_ERROR_CANCELLED, nx_session_next_event(session, forever, &none));
  EXPECT(NX_ERROR_CANCELLED, nx_session_next_event(session, forever, &none));
  CHECK(pthread_join(thread, NULL) == 0);
  nx_cancel_free(forever);
  CHECK(none == NULL);

  printf("SUBSCRIBED\n");
  fflush(stdout);
  cancel = patience();
  for (row = 0; row < ROWS; row++) {
    SUCCEED(nx_session_next_event(session, cancel, &events[row]));
    CHECK(nx_event_kind_of(events[row]) == NX_EVENT_ROWS);
    CHECK(nx_event_row_count(events[row]) == 1);
    nx_event_subscription(events[row], &name, &name_len, &seen);
    CHECK(is_text(name, name_len, "host") && seen == generation);
    read_row(events[row], row);
  }
  nx_cancel_free(cancel);

  outcome = run(session, "DELETE SUBSCRIPTION host;");
  CHECK(nx_outcome_disposition(outcome) == NX_DISPOSITION_COMPLETED);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_outcome_schema(outcome, &schema));
  nx_outcome_free(outcome);
}

int main(int argc, char **argv) {
  nx_session *session = NULL;
  nx_event *events[ROWS] = {NULL};
  nx_schema *schema = NULL;
  nx_cancel *cancel;
  size_t row;

  if (argc != 4) {
    fail(__LINE__, "usage: host URI USER PASSWORD");
  }
  errors_before_any_session(argv[1]);
  cancel = patience();
  SUCCEED(nx_session_connect((const uint8_t *)argv[1], strlen(argv[1]), TEXT("conformance"), (const uint8_t *)argv[2], strlen(argv[2]),
      (const uint8_t *)argv[3], strlen(argv[3]), cancel, &session));
  nx_cancel_free(cancel);
  commands(session);
  suggestions(session);
  subscription(session, events);

  /* Events outlive the session; a reference added is one more to release, on any thread. */
  nx_session_free(session);
  for (row = 0; row < ROWS; row++) {
    pthread_t thread;
    nx_event *added = nx_event_retain(events[row]);
    CHECK(added != NULL);
    CHECK(pthread_create(&thread, NULL, release_event, events[row]) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    read_row(added, row);
    SUCCEED(nx_event_schema(added, &schema));
    nx_event_release(added);
    read_schema(schema);
    nx_schema_free(schema);
  }
  printf("PASS\n");
  return 0;
}
