/* The C interface of the Nervix client.
 *
 * Text and bytes travel as a pointer and a length; text is UTF-8, is never terminated and may hold NUL. Where a parameter is
 * optional, NULL with length 0 leaves it out. Each object has one function that frees or releases it, and that function
 * accepts NULL and never waits. A borrowed pointer lives as long as the object it was read from. Out-parameters are written
 * only on success. Blocking calls take an optional nx_cancel and may be made from any thread, except from one that drives
 * the async runtime this library is linked with.
 */
#ifndef NERVIX_CLIENT_H
#define NERVIX_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nx_session nx_session;
typedef struct nx_execution nx_execution;
typedef struct nx_outcome nx_outcome;
typedef struct nx_schema nx_schema;
typedef struct nx_event nx_event;
typedef struct nx_cancel nx_cancel;
typedef struct nx_error nx_error;
typedef struct nx_suggestions nx_suggestions;

typedef enum nx_error_kind {
  NX_ERROR_INVALID_ARGUMENT = 1,
  NX_ERROR_CONNECT = 2,
  NX_ERROR_TRANSPORT = 3,
  NX_ERROR_UNCERTAIN = 4,
  NX_ERROR_REJECTED = 5,
  NX_ERROR_DEADLINE = 6,
  NX_ERROR_CANCELLED = 7,
  NX_ERROR_OVERFLOW = 8,
  NX_ERROR_PROTOCOL = 9,
  NX_ERROR_TYPE = 10,
  NX_ERROR_CLOSED = 11,
  NX_ERROR_INTERRUPTED = 12,
  NX_ERROR_REOPEN_REQUIRED = 13
} nx_error_kind;

typedef enum nx_disposition {
  NX_DISPOSITION_COMPLETED = 1,
  NX_DISPOSITION_FAILED = 2,
  NX_DISPOSITION_NOT_LEADER = 3,
  NX_DISPOSITION_TRANSACTION_DETACHED = 4,
  NX_DISPOSITION_TRANSACTION_TAKEN_OVER = 5,
  NX_DISPOSITION_OUTCOME_UNKNOWN = 6,
  NX_DISPOSITION_EXECUTION_REFERENCE_CONFLICT = 7,
  NX_DISPOSITION_EXECUTION_REFERENCE_EXPIRED = 8,
  NX_DISPOSITION_PREVIEW_STALE = 9
} nx_disposition;

typedef enum nx_completion_status {
  NX_COMPLETION_READY = 1,
  NX_COMPLETION_MISSING_CONTEXT = 2,
  NX_COMPLETION_STALE_CONTEXT = 3,
  NX_COMPLETION_LOOKUP_FAILED = 4
} nx_completion_status;

typedef enum nx_completion_kind {
  NX_COMPLETION_TEXT = 1,
  NX_COMPLETION_LOCAL_DIRECTORY_LOOKUP = 2
} nx_completion_kind;

typedef enum nx_type {
  NX_TYPE_U8 = 1,
  NX_TYPE_I8 = 2,
  NX_TYPE_U16 = 3,
  NX_TYPE_I16 = 4,
  NX_TYPE_U32 = 5,
  NX_TYPE_I32 = 6,
  NX_TYPE_U64 = 7,
  NX_TYPE_I64 = 8,
  NX_TYPE_F32 = 9,
  NX_TYPE_F64 = 10,
  NX_TYPE_BOOL = 11,
  NX_TYPE_STRING = 12,
  NX_TYPE_BYTES = 13,
  NX_TYPE_DATETIME = 14,
  NX_TYPE_FIXED_LIST = 15,
  NX_TYPE_LIST = 16
} nx_type;

typedef enum nx_part {
  NX_PART_ROWS = 1,
  NX_PART_BRANCH_KEY = 2
} nx_part;

typedef enum nx_cell_state {
  NX_CELL_VALUE = 1,
  NX_CELL_NULL = 2,
  NX_CELL_REDACTED = 3
} nx_cell_state;

typedef enum nx_event_kind {
  NX_EVENT_ROWS = 1,
  NX_EVENT_DELIVERY_LOST = 2,
  NX_EVENT_ROWS_SKIPPED = 3,
  NX_EVENT_ENDED = 4,
  NX_EVENT_INTERRUPTED = 5,
  NX_EVENT_CONSUMER_OVERFLOW = 6,
  NX_EVENT_RESTORATION_FAILED = 7
} nx_event_kind;

typedef enum nx_open_refusal {
  NX_OPEN_DOMAIN_NOT_FOUND = 1,
  NX_OPEN_DOMAIN_STOPPED = 2,
  NX_OPEN_ENDPOINT_NOT_FOUND = 3,
  NX_OPEN_NOT_CLIENT_ENDPOINT = 4,
  NX_OPEN_ENDPOINT_UNAVAILABLE = 5,
  NX_OPEN_SCHEMA_MISMATCH = 6,
  NX_OPEN_TOO_MANY_ENDPOINTS = 7,
  NX_OPEN_SESSION_CAPACITY_EXHAUSTED = 8,
  NX_OPEN_NODE_CAPACITY_EXHAUSTED = 9,
  NX_OPEN_INVALID_LIMITS = 10,
  NX_OPEN_IN_TRANSACTION = 11
} nx_open_refusal;

/* Errors. A function that can fail returns NULL, or an error that its caller frees. A message is one line: the error, then each cause. */

/* What kind of failure it is; 0 for NULL. */
nx_error_kind nx_error_kind_of(const nx_error *error);
/* Borrowed from the error. Never holds a credential or a value of a sensitive field. */
void nx_error_message(const nx_error *error, const uint8_t **message, size_t *message_len);
/* True, with the reference, when the error ended a command: prepare nothing new for it, execute the same one again. */
bool nx_error_execution_reference(const nx_error *error, const uint8_t **reference, size_t *reference_len);
/* True, with the refusal, only for an open that the server refused. */
bool nx_error_open_refusal(const nx_error *error, nx_open_refusal *refusal);
/* Accepts NULL, as every free and release does. */
void nx_error_free(nx_error *error);

/* Cancellation. A token ends every blocking call that it is given to: CANCELLED once triggered, DEADLINE once its time is over.
 * Both stick to the token. Ending a wait never undoes work that a server admitted. */

/* A token without a deadline. */
nx_cancel *nx_cancel_new(void);
/* A token whose deadline is `deadline_millis` milliseconds from now on the monotonic clock; 0 has already expired. */
nx_error *nx_cancel_with_deadline(uint64_t deadline_millis, nx_cancel **out);
/* From any thread, any number of times. */
void nx_cancel_trigger(const nx_cancel *cancel);
/* A token may be freed while calls that took it are still blocked; they keep what they need of it. */
void nx_cancel_free(nx_cancel *cancel);

/* Sessions. Usable from several threads at once; commands of one session run one after the other. */

/* Opens a session with an http or https origin. `domain`, `username`, `password` and `cancel` may be absent; the credentials are both there or neither.
 * Returns once the node said who leads. Errors: INVALID_ARGUMENT, CONNECT, CANCELLED, DEADLINE. */
nx_error *nx_session_connect(const uint8_t *server, size_t server_len, const uint8_t *domain, size_t domain_len,
    const uint8_t *username, size_t username_len, const uint8_t *password, size_t password_len,
    const nx_cancel *cancel, nx_session **out);
/* Lets go of the session without waiting. What was read from it stays valid. */
void nx_session_free(nx_session *session);
/* Fixes one logical command: its text, the selected domain and a new reference. Sends nothing. */
nx_error *nx_session_prepare(nx_session *session, const uint8_t *query, size_t query_len, const nx_cancel *cancel,
    nx_execution **out);
/* Borrowed from the execution: ASCII, 1 to 128 bytes. */
void nx_execution_reference(const nx_execution *execution, const uint8_t **reference, size_t *reference_len);
void nx_execution_free(nx_execution *execution);
/* Runs the command, or recovers what it did when it was sent before. Returns an outcome for every terminal answer of the server,
 * refusals among them. After UNCERTAIN, CANCELLED or DEADLINE the command may have happened: execute the same execution again. */
nx_error *nx_session_execute(nx_session *session, const nx_execution *execution, const nx_cancel *cancel,
    nx_outcome **out);
/* Waits for the next event of any subscription of the session, through losses of its connection. */
nx_error *nx_session_next_event(nx_session *session, const nx_cancel *cancel, nx_event **out);
/* One page of completions at byte offset `cursor` of `input` (on a character boundary); 1 to 100 entries a page.
 * `continuation` is absent for the first page. */
nx_error *nx_session_suggest(const nx_session *session, const uint8_t *input, size_t input_len, size_t cursor,
    uint16_t page_size, const uint8_t *continuation, size_t continuation_len, const nx_cancel *cancel,
    nx_suggestions **out);
nx_completion_status nx_suggestions_status(const nx_suggestions *suggestions);
size_t nx_suggestions_count(const nx_suggestions *suggestions);
/* One entry: what it is, its text, and the edit (byte range of the input given, and its replacement) that applies it. */
nx_error *nx_suggestions_at(const nx_suggestions *suggestions, size_t index, nx_completion_kind *kind,
    const uint8_t **value, size_t *value_len, uint32_t *start, uint32_t *end, const uint8_t **replacement,
    size_t *replacement_len);
/* True, with a token for the next page, when there is one. */
bool nx_suggestions_continuation(const nx_suggestions *suggestions, const uint8_t **continuation,
    size_t *continuation_len);
void nx_suggestions_free(nx_suggestions *suggestions);

/* Outcomes: what a server decided about one command, whether it succeeded or not. */

nx_disposition nx_outcome_disposition(const nx_outcome *outcome);
void nx_outcome_message(const nx_outcome *outcome, const uint8_t **message, size_t *message_len);
/* True, with the reference the command ran under; false for an outcome that was decided without one. */
bool nx_outcome_execution_reference(const nx_outcome *outcome, const uint8_t **reference, size_t *reference_len);
size_t nx_outcome_diagnostic_count(const nx_outcome *outcome);
/* `start` and `end` are byte offsets into the query, written only when `has_span` is true. */
nx_error *nx_outcome_diagnostic(const nx_outcome *outcome, size_t index, const uint8_t **message,
    size_t *message_len, bool *has_span, uint32_t *start, uint32_t *end);
/* True, with the name and generation, when the command opened a subscription. */
bool nx_outcome_subscription(const nx_outcome *outcome, const uint8_t **name, size_t *name_len,
    uint64_t *generation);
/* True, with size and BLAKE3 digest (32 bytes), for a completed backup whose archive is in place. */
bool nx_outcome_backup(const nx_outcome *outcome, uint64_t *total_bytes, const uint8_t **digest,
    size_t *digest_len);
/* True, with what the restore did, once its archive was verified. A failed step leaves the steps before it applied. */
bool nx_outcome_restore(const nx_outcome *outcome, bool *dry_run, uint64_t *domains, uint64_t *resource_versions,
    uint64_t *models, bool *failed);
/* The schema of the subscription that the command opened; INVALID_ARGUMENT when it opened none. */
nx_error *nx_outcome_schema(const nx_outcome *outcome, nx_schema **out);
void nx_outcome_free(nx_outcome *outcome);

/* Schemas: the fields of a relay, and those of its branch key when it is branched. */

/* `part` is an nx_part. An unbranched schema has no key fields. */
nx_error *nx_schema_field_count(const nx_schema *schema, int32_t part, size_t *count);
/* `type` is the field's outermost type. */
nx_error *nx_schema_field(const nx_schema *schema, int32_t part, size_t index, const uint8_t **name,
    size_t *name_len, nx_type *type, bool *nullable, bool *sensitive);
/* 1 for a scalar, one more for each list around it. */
nx_error *nx_schema_field_levels(const nx_schema *schema, int32_t part, size_t index, size_t *levels);
/* Level 0 is the field's own type. `length` is the element count of a fixed list and 0 otherwise. */
nx_error *nx_schema_field_level(const nx_schema *schema, int32_t part, size_t index, size_t level, nx_type *type,
    uint32_t *length);
/* True, with the branch's name, only for a branched relay. */
bool nx_schema_branch(const nx_schema *schema, const uint8_t **name, size_t *name_len);
void nx_schema_free(nx_schema *schema);

/* Subscription events. Reference counted; frames and values borrowed from an event live as long as one reference does. */

nx_event_kind nx_event_kind_of(const nx_event *event);
/* Name and generation, borrowed from the event. */
void nx_event_subscription(const nx_event *event, const uint8_t **name, size_t *name_len, uint64_t *generation);
/* Rows of a ROWS event, the count of a DELIVERY_LOST or ROWS_SKIPPED event, 0 for any other. */
uint64_t nx_event_row_count(const nx_event *event);
/* Adds a reference and returns it. */
nx_event *nx_event_retain(nx_event *event);
/* Drops one reference, on any thread. */
void nx_event_release(nx_event *event);
/* The schema that the rows were checked against; TYPE for an event without rows, as all row accessors below. */
nx_error *nx_event_schema(const nx_event *event, nx_schema **out);
/* The verified frame the rows arrived in, borrowed from the event. */
nx_error *nx_event_frame(const nx_event *event, const uint8_t **frame, size_t *frame_len);
/* One nx_cell_state a cell; `states_len` is exactly the number of cells (the rows, or 1 for the branch key). */
nx_error *nx_event_column_states(const nx_event *event, int32_t part, size_t column, uint8_t *states,
    size_t states_len);
/* Values of 1, 2, 4 or 8 bytes in native order; `values_len` is exactly cells times width. Null and redacted cells are zero. */
nx_error *nx_event_column_fixed(const nx_event *event, int32_t part, size_t column, void *values,
    size_t values_len);
/* Text or bytes, joined, with cells + 1 offsets. With `data` NULL only `data_len` is written; a `data_capacity` too small writes
 * `data_len` and fails with INVALID_ARGUMENT. */
nx_error *nx_event_column_varlen(const nx_event *event, int32_t part, size_t column, uint64_t *offsets,
    size_t offsets_len, uint8_t *data, size_t data_capacity, size_t *data_len);
/* One text or bytes value, borrowed from the event; TYPE when it is null or redacted. */
nx_error *nx_event_cell_varlen(const nx_event *event, int32_t part, size_t row, size_t column,
    const uint8_t **value, size_t *value_len);

#ifdef __cplusplus
}
#endif

#endif /* NERVIX_CLIENT_H */
