/* A library of the client's interface without a server behind it: it counts what the host releases, and fails on request.
 *
 * Commands are words: `error N` fails with error kind N; `wait` waits for its token; `fail` ends FAILED with two diagnostics; `end N`
 * ends with disposition N; `subscribe NAME` opens a subscription; `rows NAME GENERATION COUNT`, `lost`, `ended`, `interrupted`
 * (each with NAME GENERATION COUNT) queue an event; `slow` completes after its token was triggered, which it waits for. It
 * has no
 * extension. Clocks, producers, consumers and batches: fake_endpoints.c.
 */
#include "nervix_client.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  SESSION,
  EXECUTION,
  OUTCOME,
  SCHEMA,
  EVENT,
  CANCEL,
  ERROR,
  SUGGESTIONS,
  CLOCK_EVENT,
  CLOCK,
  FIELDS,
  PRODUCER,
  SUBMISSION_OUTCOME,
  CONSUMER,
  DELIVERY,
  BATCH,
  BUILDER,
  KINDS
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static long live[KINDS];
static long bad_frees;
static long waiting;
static long executed;

static void initialise(void) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &attributes);
}

struct head {
  int kind;
  int references;
};

struct nx_error {
  struct head head;
  int code;
  bool has_reference;
};
struct nx_cancel {
  struct head head;
  bool triggered;
  bool has_deadline;
  struct timespec deadline;
};
struct nx_execution {
  struct head head;
  char text[256];
};
struct nx_outcome {
  struct head head;
  int disposition;
  char subscription[64];
};
struct nx_schema {
  struct head head;
};
struct nx_event {
  struct head head;
  int kind;
  char name[64];
  uint64_t generation;
  uint64_t count;
  struct nx_event *next;
};
struct nx_session {
  struct head head;
  char domain[64];
};
struct nx_suggestions {
  struct head head;
};

static struct nx_event *queue;

static void *made(int kind, size_t size) {
  struct head *head = calloc(1, size);
  pthread_once(&once, initialise);
  head->kind = kind;
  head->references = 1;
  pthread_mutex_lock(&lock);
  live[kind]++;
  pthread_mutex_unlock(&lock);
  return head;
}

static void unmade(void *object, int kind) {
  struct head *head = object;
  if (head == NULL) {
    return;
  }
  pthread_mutex_lock(&lock);
  if (head->kind != kind || head->references <= 0) {
    bad_frees++;
  } else if (--head->references == 0) {
    live[kind]--; /* The memory stays, so that a second free is seen. */
  }
  pthread_mutex_unlock(&lock);
}

static void *retained(void *object) {
  struct head *head = object;
  pthread_mutex_lock(&lock);
  head->references++;
  pthread_mutex_unlock(&lock);
  return object;
}

long fake_live(int kind) { return live[kind]; }
long fake_bad_frees(void) { return bad_frees; }
long fake_waiting(void) { return waiting; }
long fake_executed(void) { return executed; }

static nx_error *fail(int code, bool has_reference) {
  nx_error *error = made(ERROR, sizeof *error);
  error->code = code;
  error->has_reference = has_reference;
  return error;
}

static void text(const char *value, const uint8_t **out, size_t *length) {
  *out = (const uint8_t *)value;
  *length = strlen(value);
}

nx_error_kind nx_error_kind_of(const nx_error *error) { return error == NULL ? 0 : (nx_error_kind)error->code; }
void nx_error_message(const nx_error *error, const uint8_t **message, size_t *message_len) {
  (void)error;
  text("the fake failed: as it was told", message, message_len);
}
bool nx_error_execution_reference(const nx_error *error, const uint8_t **reference, size_t *reference_len) {
  if (error->has_reference) {
    text("reference-1", reference, reference_len);
  }
  return error->has_reference;
}
bool nx_error_open_refusal(const nx_error *error, nx_open_refusal *refusal) {
  if (error->code == NX_ERROR_REJECTED) {
    *refusal = NX_OPEN_DOMAIN_STOPPED;
    return true;
  }
  return false;
}
void nx_error_free(nx_error *error) { unmade(error, ERROR); }

nx_cancel *nx_cancel_new(void) { return made(CANCEL, sizeof(nx_cancel)); }
nx_error *nx_cancel_with_deadline(uint64_t deadline_millis, nx_cancel **out) {
  nx_cancel *cancel = made(CANCEL, sizeof *cancel);
  cancel->has_deadline = true;
  clock_gettime(CLOCK_MONOTONIC, &cancel->deadline);
  cancel->deadline.tv_sec += (time_t)(deadline_millis / 1000);
  cancel->deadline.tv_nsec += (long)(deadline_millis % 1000) * 1000000;
  if (cancel->deadline.tv_nsec >= 1000000000) {
    cancel->deadline.tv_sec++;
    cancel->deadline.tv_nsec -= 1000000000;
  }
  *out = cancel;
  return NULL;
}
void nx_cancel_trigger(const nx_cancel *cancel) {
  pthread_mutex_lock(&lock);
  if (cancel->head.references <= 0) {
    bad_frees++;
  }
  ((nx_cancel *)cancel)->triggered = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}
void nx_cancel_free(nx_cancel *cancel) { unmade(cancel, CANCEL); }

/* With the lock held: why a call with this token ends now, or 0. */
static int over(const nx_cancel *cancel) {
  struct timespec now;
  if (cancel == NULL) {
    return 0;
  }
  if (cancel->triggered) {
    return NX_ERROR_CANCELLED;
  }
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (cancel->has_deadline && (now.tv_sec > cancel->deadline.tv_sec ||
                               (now.tv_sec == cancel->deadline.tv_sec && now.tv_nsec >= cancel->deadline.tv_nsec))) {
    return NX_ERROR_DEADLINE;
  }
  return 0;
}

/* With the lock held: waits until something changes or the deadline is over. */
static void pause_for(const nx_cancel *cancel) {
  waiting++;
  if (cancel != NULL && cancel->has_deadline) {
    pthread_cond_timedwait(&changed, &lock, &cancel->deadline);
  } else {
    pthread_cond_wait(&changed, &lock);
  }
  waiting--;
}

static nx_error *wait_for_token(const nx_cancel *cancel, bool has_reference) {
  int code;
  pthread_mutex_lock(&lock);
  while ((code = over(cancel)) == 0) {
    pause_for(cancel);
  }
  pthread_mutex_unlock(&lock);
  return fail(code, has_reference);
}

#include "fake_endpoints.c"

nx_error *nx_session_connect(const uint8_t *server, size_t server_len, const uint8_t *domain, size_t domain_len,
    const uint8_t *username, size_t username_len, const uint8_t *password, size_t password_len,
    const nx_cancel *cancel, nx_session **out) {
  (void)password_len, (void)username_len;
  if ((username == NULL) != (password == NULL)) {
    return fail(NX_ERROR_INVALID_ARGUMENT, false);
  }
  if (server_len == 11 && memcmp(server, "http://wait", 11) == 0) {
    return wait_for_token(cancel, false);
  }
  *out = made(SESSION, sizeof(nx_session));
  if (domain != NULL && domain_len < sizeof (*out)->domain) {
    memcpy((*out)->domain, domain, domain_len);
  }
  return NULL;
}
void nx_session_free(nx_session *session) { unmade(session, SESSION); }

nx_error *nx_session_prepare(nx_session *session, const uint8_t *query, size_t query_len, const nx_cancel *cancel,
    nx_execution **out) {
  nx_execution *execution;
  (void)session, (void)cancel;
  if (query_len == 0 || query_len >= 256) {
    return fail(NX_ERROR_INVALID_ARGUMENT, false);
  }
  execution = made(EXECUTION, sizeof *execution);
  memcpy(execution->text, query, query_len);
  *out = execution;
  return NULL;
}
void nx_execution_reference(const nx_execution *execution, const uint8_t **reference, size_t *reference_len) {
  (void)execution;
  text("reference-1", reference, reference_len);
}
void nx_execution_free(nx_execution *execution) { unmade(execution, EXECUTION); }

nx_error *nx_session_execute(nx_session *session, const nx_execution *execution, const nx_cancel *cancel,
    nx_outcome **out) {
  static const struct {
    const char *word;
    int kind;
  } events[] = {{"rows", NX_EVENT_ROWS}, {"lost", NX_EVENT_DELIVERY_LOST}, {"skipped", NX_EVENT_ROWS_SKIPPED},
      {"ended", NX_EVENT_ENDED}, {"interrupted", NX_EVENT_INTERRUPTED}, {"overflow", NX_EVENT_CONSUMER_OVERFLOW},
      {"failed", NX_EVENT_RESTORATION_FAILED}, {"unheard", 99}};
  char word[64] = "", name[64] = "";
  unsigned long long first = 0, second = 0;
  size_t index;
  nx_outcome *outcome;
  nx_error *error;
  int code;
  if (session->head.references <= 0 || execution->head.references <= 0) {
    pthread_mutex_lock(&lock);
    bad_frees++;
    pthread_mutex_unlock(&lock);
  }
  pthread_mutex_lock(&lock);
  executed++;
  code = over(cancel);
  pthread_mutex_unlock(&lock);
  if (code != 0) {
    return fail(code, true);
  }
  sscanf(execution->text, "%63s", word);
  if (strcmp(word, "wait") == 0) {
    return wait_for_token(cancel, true);
  }
  if (strcmp(word, "slow") == 0) {
    nx_error_free(wait_for_token(cancel, true));
  }
  if (strcmp(word, "error") == 0) {
    sscanf(execution->text, "%*s %d", &code);
    return fail(code, true);
  }
  error = NULL;
  code = endpoint_command(session, execution->text, cancel, &error);
  if (error != NULL) {
    return error;
  }
  outcome = made(OUTCOME, sizeof *outcome);
  outcome->disposition = code != 0 ? code : NX_DISPOSITION_COMPLETED;
  if (strcmp(word, "fail") == 0) {
    outcome->disposition = NX_DISPOSITION_FAILED;
  } else if (strcmp(word, "end") == 0) {
    sscanf(execution->text, "%*s %d", &outcome->disposition);
  } else if (strcmp(word, "CREATE") == 0) {
    sscanf(execution->text, "%*s %*s %63s", outcome->subscription);
  }
  for (index = 0; index < sizeof events / sizeof events[0]; index++) {
    if (strcmp(word, events[index].word) == 0) {
      nx_event *event = made(EVENT, sizeof *event), **end;
      sscanf(execution->text, "%*s %63s %llu %llu", name, &first, &second);
      event->kind = events[index].kind;
      strcpy(event->name, name);
      event->generation = first;
      event->count = second;
      pthread_mutex_lock(&lock);
      for (end = &queue; *end != NULL; end = &(*end)->next) {
      }
      *end = event;
      pthread_cond_broadcast(&changed);
      pthread_mutex_unlock(&lock);
    }
  }
  *out = outcome;
  return NULL;
}

nx_error *nx_session_next_event(nx_session *session, const nx_cancel *cancel, nx_event **out) {
  int code;
  (void)session;
  pthread_mutex_lock(&lock);
  while ((code = over(cancel)) == 0 && queue == NULL) {
    pause_for(cancel);
  }
  if (code == 0) {
    *out = queue;
    queue = queue->next;
  }
  pthread_mutex_unlock(&lock);
  return code == 0 ? NULL : fail(code, false);
}

nx_error *nx_session_suggest(const nx_session *session, const uint8_t *input, size_t input_len, size_t cursor,
    uint16_t page_size, const uint8_t *continuation, size_t continuation_len, const nx_cancel *cancel,
    nx_suggestions **out) {
  (void)session, (void)input, (void)input_len, (void)cursor, (void)page_size, (void)continuation, (void)continuation_len;
  (void)cancel;
  *out = made(SUGGESTIONS, sizeof(nx_suggestions));
  return NULL;
}
nx_completion_status nx_suggestions_status(const nx_suggestions *suggestions) {
  (void)suggestions;
  return NX_COMPLETION_READY;
}
size_t nx_suggestions_count(const nx_suggestions *suggestions) {
  (void)suggestions;
  return 1;
}
nx_error *nx_suggestions_at(const nx_suggestions *suggestions, size_t index, nx_completion_kind *kind,
    const uint8_t **value, size_t *value_len, uint32_t *start, uint32_t *end, const uint8_t **replacement,
    size_t *replacement_len) {
  (void)suggestions, (void)index;
  *kind = NX_COMPLETION_TEXT;
  text("word", value, value_len);
  text("word ", replacement, replacement_len);
  *start = 3; /* The third byte and the end of "\u00e9 wo": characters 2 and 4. */
  *end = 5;
  return NULL;
}
bool nx_suggestions_continuation(const nx_suggestions *suggestions, const uint8_t **continuation,
    size_t *continuation_len) {
  (void)suggestions;
  text("more", continuation, continuation_len);
  return true;
}
void nx_suggestions_free(nx_suggestions *suggestions) { unmade(suggestions, SUGGESTIONS); }

nx_disposition nx_outcome_disposition(const nx_outcome *outcome) { return (nx_disposition)outcome->disposition; }
void nx_outcome_message(const nx_outcome *outcome, const uint8_t **message, size_t *message_len) {
  (void)outcome;
  text("a message", message, message_len);
}
bool nx_outcome_execution_reference(const nx_outcome *outcome, const uint8_t **reference, size_t *reference_len) {
  (void)outcome;
  text("reference-1", reference, reference_len);
  return true;
}
size_t nx_outcome_diagnostic_count(const nx_outcome *outcome) {
  return outcome->disposition == NX_DISPOSITION_FAILED ? 2 : 0;
}
nx_error *nx_outcome_diagnostic(const nx_outcome *outcome, size_t index, const uint8_t **message, size_t *message_len,
    bool *has_span, uint32_t *start, uint32_t *end) {
  (void)outcome;
  text(index == 0 ? "unexpected word" : "no place in particular", message, message_len);
  *has_span = index == 0;
  if (index == 0) {
    *start = 5;
    *end = 9;
  }
  return NULL;
}
bool nx_outcome_subscription(const nx_outcome *outcome, const uint8_t **name, size_t *name_len, uint64_t *generation) {
  if (outcome->subscription[0] == 0) {
    return false;
  }
  text(outcome->subscription, name, name_len);
  *generation = 1;
  return true;
}
bool nx_outcome_backup(const nx_outcome *outcome, uint64_t *total_bytes, const uint8_t **digest, size_t *digest_len) {
  (void)outcome, (void)total_bytes, (void)digest, (void)digest_len;
  return false;
}
bool nx_outcome_restore(const nx_outcome *outcome, bool *dry_run, uint64_t *domains, uint64_t *resource_versions,
    uint64_t *models, bool *failed) {
  (void)outcome, (void)dry_run, (void)domains, (void)resource_versions, (void)models, (void)failed;
  return false;
}
nx_error *nx_outcome_schema(const nx_outcome *outcome, nx_schema **out) {
  (void)outcome;
  *out = made(SCHEMA, sizeof(nx_schema));
  return NULL;
}
void nx_outcome_free(nx_outcome *outcome) { unmade(outcome, OUTCOME); }

/* Rows: id U32, name STRING OPTIONAL (null in every odd row), secret BYTES SENSITIVE. Branch key: tenant STRING. */
nx_error *nx_schema_field_count(const nx_schema *schema, int32_t part, size_t *count) {
  (void)schema;
  *count = part == NX_PART_ROWS ? 3 : 1;
  return NULL;
}
nx_error *nx_schema_field(const nx_schema *schema, int32_t part, size_t index, const uint8_t **name, size_t *name_len,
    nx_type *type, bool *nullable, bool *sensitive) {
  static const char *names[] = {"id", "name", "secret"};
  static const nx_type types[] = {NX_TYPE_U32, NX_TYPE_STRING, NX_TYPE_BYTES};
  (void)schema;
  text(part == NX_PART_ROWS ? names[index] : "tenant", name, name_len);
  *type = part == NX_PART_ROWS ? types[index] : NX_TYPE_STRING;
  *nullable = part == NX_PART_ROWS && index == 1;
  *sensitive = part == NX_PART_ROWS && index == 2;
  return NULL;
}
nx_error *nx_schema_field_levels(const nx_schema *schema, int32_t part, size_t index, size_t *levels) {
  (void)schema, (void)part, (void)index;
  *levels = 1;
  return NULL;
}
nx_error *nx_schema_field_level(const nx_schema *schema, int32_t part, size_t index, size_t level, nx_type *type,
    uint32_t *length) {
  const uint8_t *name;
  size_t name_len;
  bool nullable, sensitive;
  (void)level;
  *length = 0;
  return nx_schema_field(schema, part, index, &name, &name_len, type, &nullable, &sensitive);
}
bool nx_schema_branch(const nx_schema *schema, const uint8_t **name, size_t *name_len) {
  (void)schema;
  text("by_tenant", name, name_len);
  return true;
}
void nx_schema_free(nx_schema *schema) { unmade(schema, SCHEMA); }

nx_event_kind nx_event_kind_of(const nx_event *event) { return (nx_event_kind)event->kind; }
void nx_event_subscription(const nx_event *event, const uint8_t **name, size_t *name_len, uint64_t *generation) {
  text(event->name, name, name_len);
  *generation = event->generation;
}
uint64_t nx_event_row_count(const nx_event *event) { return event->count; }
nx_event *nx_event_retain(nx_event *event) { return retained(event); }
void nx_event_release(nx_event *event) { unmade(event, EVENT); }
nx_error *nx_event_schema(const nx_event *event, nx_schema **out) {
  (void)event;
  *out = made(SCHEMA, sizeof(nx_schema));
  return NULL;
}
nx_error *nx_event_frame(const nx_event *event, const uint8_t **frame, size_t *frame_len) {
  static const uint8_t bytes[] = "\x10\0\0\0NXSM and what follows";
  if (event->head.references <= 0) {
    bad_frees++;
  }
  *frame = bytes;
  *frame_len = sizeof bytes - 1;
  return NULL;
}
nx_error *nx_event_column_states(const nx_event *event, int32_t part, size_t column, uint8_t *states, size_t states_len) {
  size_t row;
  (void)event;
  for (row = 0; row < states_len; row++) {
    states[row] = part == NX_PART_BRANCH_KEY || column == 0 ? 1 : column == 1 ? 1 + row % 2 : 3;
  }
  return NULL;
}
nx_error *nx_event_column_fixed(const nx_event *event, int32_t part, size_t column, void *values, size_t values_len) {
  size_t row;
  (void)event;
  if (part != NX_PART_ROWS || column != 0) {
    return fail(NX_ERROR_TYPE, false);
  }
  for (row = 0; row < values_len / 4; row++) {
    ((uint32_t *)values)[row] = (uint32_t)row + 1;
  }
  return NULL;
}
nx_error *nx_event_column_varlen(const nx_event *event, int32_t part, size_t column, uint64_t *offsets,
    size_t offsets_len, uint8_t *data, size_t data_capacity, size_t *data_len) {
  uint64_t cells = part == NX_PART_BRANCH_KEY ? 1 : event->count, row;
  const char *word = part == NX_PART_BRANCH_KEY ? "acme" : "h\xc3\xa9";
  size_t length = 0;
  (void)offsets_len, (void)data_capacity;
  for (row = 0; row < cells; row++) {
    bool there = part == NX_PART_BRANCH_KEY || (column == 1 && row % 2 == 0);
    if (data != NULL) {
      offsets[row] = length;
      if (there) {
        memcpy(data + length, word, strlen(word));
      }
    }
    length += there ? strlen(word) : 0;
  }
  if (data != NULL) {
    offsets[cells] = length;
  }
  *data_len = length;
  return NULL;
}
nx_error *nx_event_cell_varlen(const nx_event *event, int32_t part, size_t row, size_t column, const uint8_t **value,
    size_t *value_len) {
  (void)event;
  if (part == NX_PART_ROWS && (column != 1 || row % 2 == 1)) {
    return fail(NX_ERROR_TYPE, false);
  }
  text(part == NX_PART_ROWS ? "h\xc3\xa9" : "acme", value, value_len);
  return NULL;
}
