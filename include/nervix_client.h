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
typedef struct nx_clock_event nx_clock_event;
typedef struct nx_domain_clock nx_domain_clock;
typedef struct nx_cancel nx_cancel;
typedef struct nx_error nx_error;
typedef struct nx_suggestions nx_suggestions;
typedef struct nx_fields nx_fields;
typedef struct nx_producer nx_producer;
typedef struct nx_submission_outcome nx_submission_outcome;
typedef struct nx_consumer nx_consumer;
typedef struct nx_delivery nx_delivery;
typedef struct nx_batch nx_batch;
typedef struct nx_batch_builder nx_batch_builder;

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

typedef enum nx_clock_event_kind {
  NX_CLOCK_EVENT_STATE = 1,
  NX_CLOCK_EVENT_TICK = 2,
  NX_CLOCK_EVENT_ENDED = 3,
  NX_CLOCK_EVENT_INTERRUPTED = 4,
  NX_CLOCK_EVENT_RESTORATION_FAILED = 5
} nx_clock_event_kind;

typedef enum nx_clock_state {
  NX_CLOCK_STOPPED = 1,
  NX_CLOCK_UNINSTALLED = 2,
  NX_CLOCK_UNPACED = 3,
  NX_CLOCK_PACED = 4
} nx_clock_state;

typedef enum nx_clock_end_reason {
  NX_CLOCK_END_DOMAIN_REMOVED = 1
} nx_clock_end_reason;

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

typedef enum nx_endpoint_state {
  NX_ENDPOINT_ACTIVE = 1,
  NX_ENDPOINT_INTERRUPTED = 2,
  NX_ENDPOINT_RESTORING = 3,
  NX_ENDPOINT_REOPEN_REQUIRED = 4,
  NX_ENDPOINT_CLOSED = 5
} nx_endpoint_state;

typedef enum nx_reopen_reason {
  NX_REOPEN_DOMAIN_STOPPED = 1,
  NX_REOPEN_ENDPOINT_REMOVED = 2,
  NX_REOPEN_SCHEMA_CHANGED = 3,
  NX_REOPEN_CONTRACT_CHANGED = 4,
  NX_REOPEN_GENERATION_CHANGED = 5,
  NX_REOPEN_PROTOCOL_VIOLATED = 6,
  NX_REOPEN_REFUSED = 7
} nx_reopen_reason;

typedef enum nx_ack_window {
  NX_ACK_SEQUENTIAL = 1,
  NX_ACK_PARALLEL = 2
} nx_ack_window;

typedef enum nx_admission {
  NX_ADMISSION_OPEN = 1,
  NX_ADMISSION_SUSPENDED = 2
} nx_admission;

typedef enum nx_submission_result {
  NX_SUBMISSION_NOT_ADMITTED = 1,
  NX_SUBMISSION_COMPLETED = 2,
  NX_SUBMISSION_PROCESSING_FAILED = 3,
  NX_SUBMISSION_OUTCOME_UNKNOWN = 4
} nx_submission_result;

typedef enum nx_submission_refusal {
  NX_REFUSAL_INVALID_BATCH = 1,
  NX_REFUSAL_SUSPENDED = 2,
  NX_REFUSAL_BUSY = 3,
  NX_REFUSAL_DRAINING = 4,
  NX_REFUSAL_PRODUCER_ENDED = 5,
  NX_REFUSAL_CREDIT_EXCEEDED = 6
} nx_submission_refusal;

typedef enum nx_batch_defect {
  NX_DEFECT_MALFORMED = 1,
  NX_DEFECT_UNEXPECTED_MESSAGE = 2,
  NX_DEFECT_COMPRESSED = 3,
  NX_DEFECT_SCHEMA_MISMATCH = 4,
  NX_DEFECT_NOT_ONE_BATCH = 5,
  NX_DEFECT_TOO_MANY_ROWS = 6,
  NX_DEFECT_TOO_LARGE = 7,
  NX_DEFECT_INVALID_DATA = 8
} nx_batch_defect;

typedef enum nx_processing_failure {
  NX_FAILURE_ACK_TIMED_OUT = 1,
  NX_FAILURE_REJECTED = 2
} nx_processing_failure;

typedef enum nx_submission_uncertainty {
  NX_UNCERTAINTY_INTERRUPTED = 1,
  NX_UNCERTAINTY_OWNER_LOST = 2,
  NX_UNCERTAINTY_SESSION_LOST = 3
} nx_submission_uncertainty;

typedef enum nx_settlement {
  NX_SETTLEMENT_CONFIRMED = 1,
  NX_SETTLEMENT_STALE_REFERENCE = 2,
  NX_SETTLEMENT_WRONG_CONSUMER = 3,
  NX_SETTLEMENT_INVALID_REASON = 4,
  NX_SETTLEMENT_CONSUMER_ENDED = 5
} nx_settlement;

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

/* Domain clocks. A session follows the clock of a domain after ATTACH DOMAIN CLOCK; and until DETACH DOMAIN CLOCK;. Instants are
 * signed nanoseconds since the Unix epoch, UTC. Events are coalesced a domain: the newest state and the newest tick. */

/* Waits for the next event of any followed clock, through losses of the connection. A session that follows none waits. */
nx_error *nx_session_next_clock_event(nx_session *session, const nx_cancel *cancel, nx_clock_event **out);
nx_clock_event_kind nx_clock_event_kind_of(const nx_clock_event *event);
void nx_clock_event_domain(const nx_clock_event *event, const uint8_t **domain, size_t *domain_len);
/* For STATE and TICK; TYPE otherwise. */
nx_error *nx_clock_event_generation(const nx_clock_event *event, uint64_t *generation);
/* For STATE; TYPE otherwise. */
nx_error *nx_clock_event_state(const nx_clock_event *event, nx_clock_state *state);
/* For the STATE of a paced clock; TYPE otherwise. */
nx_error *nx_clock_event_paced(const nx_clock_event *event, uint64_t *period_nanos, uint64_t *skew_nanos,
    int64_t *logical_origin, int64_t *utc_anchor, double *time_rate);
/* For TICK; TYPE otherwise. Tick ids are one-based and may skip. */
nx_error *nx_clock_event_tick(const nx_clock_event *event, uint64_t *tick_id, int64_t *logical_boundary,
    int64_t *authority_utc, int64_t *serving_logical);
/* For ENDED; TYPE otherwise. */
nx_error *nx_clock_event_end_reason(const nx_clock_event *event, nx_clock_end_reason *reason);
nx_clock_event *nx_clock_event_retain(nx_clock_event *event);
void nx_clock_event_release(nx_clock_event *event);
/* The newest clock that the session knows, without waiting; NULL on success when it follows none of the domain. */
nx_error *nx_session_domain_clock(const nx_session *session, const uint8_t *domain, size_t domain_len,
    nx_domain_clock **out);
void nx_domain_clock_domain(const nx_domain_clock *clock, const uint8_t **domain, size_t *domain_len);
uint64_t nx_domain_clock_generation(const nx_domain_clock *clock);
nx_clock_state nx_domain_clock_state(const nx_domain_clock *clock);
/* TYPE for a clock that is not paced. Any out-parameter may be NULL. */
nx_error *nx_domain_clock_paced(const nx_domain_clock *clock, uint64_t *period_nanos, uint64_t *skew_nanos,
    int64_t *logical_origin, int64_t *utc_anchor, double *time_rate);
/* True, with the tick, when one of this generation was accepted. Any out-parameter may be NULL. */
bool nx_domain_clock_tick(const nx_domain_clock *clock, uint64_t *tick_id, int64_t *logical_boundary,
    int64_t *authority_utc, int64_t *serving_logical);
/* TYPE for a clock without time; INVALID_ARGUMENT when the result does not fit into 64 bits. */
nx_error *nx_domain_clock_logical_time_at(const nx_domain_clock *clock, int64_t utc, int64_t *logical);
/* 0 when the target has come. */
nx_error *nx_domain_clock_wall_duration_until(const nx_domain_clock *clock, int64_t utc, int64_t target,
    uint64_t *wait_nanos);
/* `has_window` is false for an unpaced clock, and nothing else is written then. Either center may be NULL. */
nx_error *nx_domain_clock_admission_window(const nx_domain_clock *clock, int64_t utc, bool *has_window,
    int64_t *earliest_center, int64_t *latest_center);
/* Whether the event lies within the skew of a center that is still kept. */
nx_error *nx_domain_clock_admits(const nx_domain_clock *clock, int64_t utc, int64_t event, bool *admitted);
nx_domain_clock *nx_domain_clock_retain(nx_domain_clock *clock);
void nx_domain_clock_release(nx_domain_clock *clock);

/* Expected fields of an endpoint, in order. Used by one thread at a time; an open copies the list. */

nx_fields *nx_fields_new(void);
/* Starts a field. A list type is completed with nx_fields_element until a scalar; at most 32 lists. `length` is the element count
 * of a FIXED_LIST and 0 for every other type. */
nx_error *nx_fields_add(nx_fields *fields, const uint8_t *name, size_t name_len, int32_t type, uint32_t length,
    bool nullable, bool sensitive);
/* The element type of the list that was added last. */
nx_error *nx_fields_element(nx_fields *fields, int32_t type, uint32_t length);
void nx_fields_free(nx_fields *fields);

/* Producers hand batches to an ingestor. Each batch holds credit, one of the granted batches and the bytes of its Arrow IPC stream,
 * from its submission until its outcome is taken. */

/* REJECTED with a refusal (nx_error_open_refusal) when the server refuses. Credit is 1 to 1,024 batches and 1 to 32 MiB. */
nx_error *nx_session_open_ingestor(const nx_session *session, const uint8_t *domain, size_t domain_len,
    const uint8_t *ingestor, size_t ingestor_len, const nx_fields *fields, uint32_t batches, uint64_t bytes,
    const nx_cancel *cancel, nx_producer **out);
nx_error *nx_producer_schema(const nx_producer *producer, nx_schema **out);
uint64_t nx_producer_generation(const nx_producer *producer);
/* 32 bytes, borrowed from the producer. */
void nx_producer_contract(const nx_producer *producer, const uint8_t **digest, size_t *digest_len);
/* Any out-parameter may be NULL. */
void nx_producer_grant(const nx_producer *producer, uint32_t *batches, uint64_t *bytes, uint32_t *max_batch_rows,
    uint64_t *max_batch_bytes);
/* `outstanding` is 1 for SEQUENTIAL. Any out-parameter may be NULL. */
void nx_producer_policy(const nx_producer *producer, nx_ack_window *window, uint64_t *outstanding,
    uint64_t *ack_timeout_nanos, uint64_t *retry_backoff_nanos, uint64_t *retry_max_backoff_nanos);
nx_admission nx_producer_admission(const nx_producer *producer);
nx_endpoint_state nx_producer_state(const nx_producer *producer);
/* True only in state REOPEN_REQUIRED; `refusal` is written only for REFUSED. */
bool nx_producer_reopen_reason(const nx_producer *producer, nx_reopen_reason *reason, nx_open_refusal *refusal);
/* Waits for credit and for restoration, then returns the identity of the submission. CANCELLED and DEADLINE mean that nothing
 * was submitted. */
nx_error *nx_producer_submit(const nx_producer *producer, const nx_batch *batch, const nx_cancel *cancel,
    uint64_t *submission);
/* The same for an Arrow IPC stream of the host, which the server judges. */
nx_error *nx_producer_submit_ipc(const nx_producer *producer, const uint8_t *ipc, size_t ipc_len,
    const nx_cancel *cancel, uint64_t *submission);
/* Waits for an outcome and takes it. Ended by its token, it leaves the submission where it is. */
nx_error *nx_producer_rejoin(const nx_producer *producer, uint64_t submission, const nx_cancel *cancel,
    nx_submission_outcome **out);
/* Submissions whose outcome was not taken, oldest first. `count` is always their number; either buffer may be NULL. */
nx_error *nx_producer_pending(const nx_producer *producer, uint64_t *submissions, bool *resolved, size_t capacity,
    size_t *count);
/* Lets a submission go: hands out its outcome when there is one, otherwise NULL, and its credit returns when it arrives. */
nx_error *nx_producer_release(const nx_producer *producer, uint64_t submission, nx_submission_outcome **out);
/* Waits until the server released the producer, every outcome in. Ended by its token, it goes on in the background. */
nx_error *nx_producer_close(const nx_producer *producer, const nx_cancel *cancel);
/* Closes without waiting. */
void nx_producer_free(nx_producer *producer);
nx_submission_result nx_submission_outcome_result(const nx_submission_outcome *outcome);
void nx_submission_outcome_message(const nx_submission_outcome *outcome, const uint8_t **message,
    size_t *message_len);
/* For NOT_ADMITTED; TYPE otherwise, as the three below for other results. */
nx_error *nx_submission_outcome_refusal(const nx_submission_outcome *outcome, nx_submission_refusal *refusal);
/* For NOT_ADMITTED with INVALID_BATCH. */
nx_error *nx_submission_outcome_defect(const nx_submission_outcome *outcome, nx_batch_defect *defect);
nx_error *nx_submission_outcome_failure(const nx_submission_outcome *outcome, nx_processing_failure *failure);
nx_error *nx_submission_outcome_uncertainty(const nx_submission_outcome *outcome,
    nx_submission_uncertainty *uncertainty);
void nx_submission_outcome_free(nx_submission_outcome *outcome);

/* Consumers take batches from an emitter. A delivery is one attempt: releasing it settles nothing, and what was not settled comes
 * again under its identity. */

nx_error *nx_session_subscribe_emitter(const nx_session *session, const uint8_t *domain, size_t domain_len,
    const uint8_t *emitter, size_t emitter_len, const nx_fields *fields, uint32_t batches, uint64_t bytes,
    const nx_cancel *cancel, nx_consumer **out);
nx_error *nx_consumer_schema(const nx_consumer *consumer, nx_schema **out);
uint64_t nx_consumer_generation(const nx_consumer *consumer);
void nx_consumer_contract(const nx_consumer *consumer, const uint8_t **digest, size_t *digest_len);
void nx_consumer_grant(const nx_consumer *consumer, uint32_t *batches, uint64_t *bytes, uint32_t *max_batch_rows,
    uint64_t *max_batch_bytes);
void nx_consumer_policy(const nx_consumer *consumer, nx_ack_window *window, uint64_t *outstanding,
    uint64_t *ack_timeout_nanos, uint64_t *retry_backoff_nanos, uint64_t *retry_max_backoff_nanos);
nx_endpoint_state nx_consumer_state(const nx_consumer *consumer);
bool nx_consumer_reopen_reason(const nx_consumer *consumer, nx_reopen_reason *reason, nx_open_refusal *refusal);
/* One delivery. INTERRUPTED once after an attachment ended; the next call reads on. REOPEN_REQUIRED when the handle is over. */
nx_error *nx_consumer_next(const nx_consumer *consumer, const nx_cancel *cancel, nx_delivery **out);
/* Waits until the server released the consumer, which revokes every unsettled delivery. */
nx_error *nx_consumer_close(const nx_consumer *consumer, const nx_cancel *cancel);
void nx_consumer_free(nx_consumer *consumer);
/* 16 bytes, the same for every attempt. */
void nx_delivery_identity(const nx_delivery *delivery, const uint8_t **identity, size_t *identity_len);
/* 16 bytes, new for every attempt. */
void nx_delivery_reference(const nx_delivery *delivery, const uint8_t **reference, size_t *reference_len);
void nx_delivery_source_relay(const nx_delivery *delivery, const uint8_t **name, size_t *name_len);
/* True, with 32 bytes, for rows of a concrete branch. */
bool nx_delivery_branch_fingerprint(const nx_delivery *delivery, const uint8_t **fingerprint,
    size_t *fingerprint_len);
uint32_t nx_delivery_members(const nx_delivery *delivery);
/* Domain time when the batch was prepared. */
int64_t nx_delivery_execution_now(const nx_delivery *delivery);
/* The Arrow IPC stream, borrowed from the delivery. */
void nx_delivery_ipc(const nx_delivery *delivery, const uint8_t **ipc, size_t *ipc_len);
/* A reference to the decoded batch, the same object at every call. PROTOCOL when it is not what was agreed. */
nx_error *nx_delivery_batch(const nx_delivery *delivery, nx_batch **out);
/* UNCERTAIN when the answer was lost; REJECTED, with nothing sent, when the attachment that delivered it has ended. */
nx_error *nx_delivery_ack(const nx_delivery *delivery, const nx_cancel *cancel, nx_settlement *settlement);
nx_error *nx_delivery_retry(const nx_delivery *delivery, const nx_cancel *cancel, nx_settlement *settlement);
/* `reason` is 1 to 1,024 bytes of UTF-8 without sensitive values. */
nx_error *nx_delivery_reject(const nx_delivery *delivery, const uint8_t *reason, size_t reason_len,
    const nx_cancel *cancel, nx_settlement *settlement);
nx_delivery *nx_delivery_retain(nx_delivery *delivery);
void nx_delivery_release(nx_delivery *delivery);

/* Batches of rows, column by column. Level 0 of a column is the field itself and has one cell a row; each list adds a level. */

size_t nx_batch_row_count(const nx_batch *batch);
nx_error *nx_batch_schema(const nx_batch *batch, nx_schema **out);
/* The delivery's own stream, or the canonical one of a built batch, borrowed from the batch. */
nx_error *nx_batch_ipc(const nx_batch *batch, const uint8_t **ipc, size_t *ipc_len);
/* The number of cells at a level. */
nx_error *nx_batch_cells(const nx_batch *batch, size_t column, size_t level, size_t *cells);
/* One a row: value or null. */
nx_error *nx_batch_states(const nx_batch *batch, size_t column, uint8_t *states, size_t states_len);
/* Only for LIST levels; cells + 1 offsets from 0. */
nx_error *nx_batch_offsets(const nx_batch *batch, size_t column, size_t level, uint64_t *offsets,
    size_t offsets_len);
/* Only for the innermost level; native order. */
nx_error *nx_batch_fixed(const nx_batch *batch, size_t column, size_t level, void *values, size_t values_len);
nx_error *nx_batch_varlen(const nx_batch *batch, size_t column, size_t level, uint64_t *offsets, size_t offsets_len,
    uint8_t *data, size_t data_capacity, size_t *data_len);
nx_batch *nx_batch_retain(nx_batch *batch);
void nx_batch_release(nx_batch *batch);
/* For `rows` rows of a schema. A builder is used by one thread at a time and copies every buffer. */
nx_error *nx_batch_builder_new(const nx_schema *schema, size_t rows, nx_batch_builder **out);
nx_error *nx_batch_builder_states(nx_batch_builder *builder, size_t column, const uint8_t *states,
    size_t states_len);
nx_error *nx_batch_builder_offsets(nx_batch_builder *builder, size_t column, size_t level, const uint64_t *offsets,
    size_t offsets_len);
nx_error *nx_batch_builder_fixed(nx_batch_builder *builder, size_t column, size_t level, const void *values,
    size_t values_len);
nx_error *nx_batch_builder_varlen(nx_batch_builder *builder, size_t column, size_t level, const uint64_t *offsets,
    size_t offsets_len, const uint8_t *data, size_t data_len);
/* On success the builder is empty again, for another batch of as many rows; on failure what was set stays. */
nx_error *nx_batch_builder_finish(nx_batch_builder *builder, nx_batch **out);
void nx_batch_builder_free(nx_batch_builder *builder);

#ifdef __cplusplus
}
#endif

#endif /* NERVIX_CLIENT_H */
