/* Extensions of this library to the C interface of the Nervix client.
 *
 * Everything here is named nxx_ and may be absent from another library of the same interface: a host looks each function up and
 * does without it. The conventions of nervix_client.h hold.
 */
#ifndef NERVIX_CLIENT_EXT_H
#define NERVIX_CLIENT_EXT_H

#include "nervix_client.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The structures of the Arrow C data interface; a host that has its own declares them under the same guard. */
struct ArrowSchema;
struct ArrowArray;

typedef struct nxx_connect_options nxx_connect_options;

/* Where an outcome came from. */
typedef enum nxx_origin {
  NXX_ORIGIN_EXECUTED = 1,
  NXX_ORIGIN_RECOVERED = 2
} nxx_origin;

/* Why a generation of a subscription ended. */
typedef enum nxx_end_reason {
  NXX_END_RELAY_REMOVED = 1,
  NXX_END_RELAY_CHANGED = 2
} nxx_end_reason;

/* Why rows were skipped. */
typedef enum nxx_skip_cause {
  NXX_SKIP_FILTER_FAILED = 1,
  NXX_SKIP_DOMAIN_TIME_UNAVAILABLE = 2,
  NXX_SKIP_ENCODING_FAILED = 3
} nxx_skip_cause;

/* What a text asks for: see nxx_statement. */
typedef enum nxx_statement_kind {
  NXX_STATEMENT_OTHER = 0,
  NXX_STATEMENT_BEGIN = 1,
  NXX_STATEMENT_COMMIT = 2,
  NXX_STATEMENT_REVERT = 3,
  NXX_STATEMENT_USE = 4,
  NXX_STATEMENT_SUBSCRIBE = 5,
  NXX_STATEMENT_UNSUBSCRIBE = 6,
  NXX_STATEMENT_ATTACH_CLOCK = 7,
  NXX_STATEMENT_DETACH_CLOCK = 8
} nxx_statement_kind;

/* What became of a transaction so far. */
typedef enum nxx_transaction_state {
  NXX_TRANSACTION_OPEN = 1,
  NXX_TRANSACTION_COMMITTING = 2,
  NXX_TRANSACTION_COMMITTED = 3,
  NXX_TRANSACTION_FAILED = 4,
  NXX_TRANSACTION_REVERTED = 5,
  NXX_TRANSACTION_EXPIRED = 6
} nxx_transaction_state;

/* Connect options: more servers to try, and how long to wait. Timeouts are milliseconds, 1 or more: `request` bounds the wait for
 * one reply, `retry` one public call with all its retries and redirects. Both are 120,000 unless set. */
nxx_connect_options *nxx_connect_options_new(void);
nx_error *nxx_connect_options_add_seed(nxx_connect_options *options, const uint8_t *server, size_t server_len);
nx_error *nxx_connect_options_request_timeout(nxx_connect_options *options, uint64_t millis);
nx_error *nxx_connect_options_retry_timeout(nxx_connect_options *options, uint64_t millis);
/* Certificate authorities of the host's own: the PEM certificates of a file, read at once and the last file counting. Only they
 * are trusted then, and the system's are not; they go for every https server that the session reaches. A session that begins
 * with http may have them, since it may be redirected to https; one that begins with https is never led to http. `path` is a
 * file's name as the system has it. INVALID_ARGUMENT names a file that cannot be read, holds no certificate, or holds one that cannot be an authority's. */
nx_error *nxx_connect_options_ca_file(nxx_connect_options *options, const uint8_t *path, size_t path_len);
void nxx_connect_options_free(nxx_connect_options *options);

/* nx_session_connect with options, which are copied; NULL options are the defaults. */
nx_error *nxx_session_connect(const uint8_t *server, size_t server_len, const uint8_t *domain, size_t domain_len,
    const uint8_t *username, size_t username_len, const uint8_t *password, size_t password_len,
    const nxx_connect_options *options, const nx_cancel *cancel, nx_session **out);

/* nx_session_prepare with more of the command given, each absent as NULL: the reference that it may have run under before (a
 * UUIDv7), `position`, the transaction position that it was first sent with then, and, for COMMIT, the preview that the
 * transaction must match: its transaction, its position and its 32-byte basis. Of a repetition everything must be as it was: the
 * text, the selected domain, the position, the preview. So with a reference, what is not given is sent without; and while the session
 * holds a transaction, what is no read and no COMMIT with a preview of that one is not sent, UNCERTAIN, for it was part of another, or
 * of none. Otherwise what is not given is as in nx_session_prepare. */
nx_error *nxx_session_prepare(nx_session *session, const uint8_t *query, size_t query_len,
    const uint8_t *reference, size_t reference_len, const uint64_t *position,
    const uint8_t *preview_transaction, size_t preview_transaction_len, uint64_t preview_position,
    const uint8_t *preview_basis, size_t preview_basis_len, const nx_cancel *cancel, nx_execution **out);

/* nx_session_prepare for a command of the domain given, whichever one is selected (of that one where `domain` is NULL); what is
 * selected stays so, but while a transaction is held that it began. With a `transaction`, the identity of one, the command is
 * first sent only while the session holds that one: afterwards it is refused, and FAILED, instead of taking effect outside of it. */
nx_error *nxx_session_prepare_in(nx_session *session, const uint8_t *domain, size_t domain_len,
    const uint8_t *transaction, size_t transaction_len, const uint8_t *query, size_t query_len, const nx_cancel *cancel, nx_execution **out);

/* nx_session_execute for a command that must not become part of a transaction: while the session holds one, a command that was never
 * sent is refused, REJECTED, and may be executed again later. */
nx_error *nxx_session_execute_outside(nx_session *session, const nx_execution *execution, const nx_cancel *cancel,
    nx_outcome **out);

/* True for the failure of an execute whose command was never sent, by this call or an earlier one. */
bool nxx_error_unsent(const nx_error *error);
/* The identity, borrowed from the error, of the transaction that the session holds, if that is why nothing was sent: see
 * nxx_session_execute_outside. False for any other failure, and nothing is written. */
bool nxx_error_held_transaction(const nx_error *error, const uint8_t **transaction, size_t *transaction_len);
/* True for the failure of an execute whose call ended because the server found a frame of it malformed or oversized (T-6): it may
 * have happened, and nobody but the host sends it again. */
bool nxx_error_condemned(const nx_error *error);

/* Whether a command was ever sent, or given its reference by the host. */
bool nxx_execution_sent(const nx_execution *execution);
/* What it was first sent with, or given: what a repetition in another session must have, beside the text, the domain and the
 * reference. Its place in a transaction, and for COMMIT the preview, borrowed from the execution. False, and nothing written, for
 * what it was sent without, and before it was sent. */
bool nxx_execution_position(const nx_execution *execution, uint64_t *position);
bool nxx_execution_preview(const nx_execution *execution, const uint8_t **transaction, size_t *transaction_len,
    uint64_t *position, const uint8_t **basis, size_t *basis_len);

/* What a text asks for, as far as a host has to keep account of it; several statements are the first COMMIT or REVERT among them.
 * `begins` says whether BEGIN is it or among them, and `name`, a part of the text, is the domain of USE or the subscription of DELETE
 * SUBSCRIPTION; empty for any other. */
nxx_statement_kind nxx_statement(const uint8_t *query, size_t query_len, bool *begins, const uint8_t **name, size_t *name_len);

/* The rows of an event, or its branch key (one row), as one Arrow struct array: a record batch. `part` is an nx_part. The host
 * calls the release callbacks of both structures; `schema` may be NULL when the host has it, since it is the same for every
 * event of a generation. A sensitive field is a nullable column of nulls whose field metadata holds `nervix.redacted` = `true`;
 * DATETIME is a timestamp in nanoseconds with the zone +00:00; the elements of lists are named item and not nullable. Both
 * structures are independent of the event. TYPE for an event without rows, and for null fixed lists so long that their place
 * in Arrow would fill the memory; INVALID_ARGUMENT for the key of an event that has none. */
nx_error *nxx_event_arrow(const nx_event *event, int32_t part, struct ArrowSchema *schema, struct ArrowArray *array);

/* What an event says besides its kind. Each is true, with the value, only for an event that carries it: the reason for ENDED,
 * the cause for ROWS_SKIPPED. The message is borrowed from the event and may be empty. */
bool nxx_event_end_reason(const nx_event *event, nxx_end_reason *reason);
bool nxx_event_skip_cause(const nx_event *event, nxx_skip_cause *cause);
void nxx_event_message(const nx_event *event, const uint8_t **message, size_t *message_len);

/* True, with the origin, when a server answered. */
bool nxx_outcome_origin(const nx_outcome *outcome, nxx_origin *origin);
/* True for a completed command that changed nothing because what it makes was there. */
bool nxx_outcome_already_existed(const nx_outcome *outcome);
/* True when the outcome was decided without asking a server. */
bool nxx_outcome_decided_locally(const nx_outcome *outcome);
/* The outcomes of a request of several statements, in written order; none for a single statement. */
size_t nxx_outcome_statement_count(const nx_outcome *outcome);
nx_error *nxx_outcome_statement(const nx_outcome *outcome, size_t index, nx_disposition *disposition, bool *already_existed,
    const uint8_t **message, size_t *message_len, size_t *diagnostic_count);
nx_error *nxx_outcome_statement_diagnostic(const nx_outcome *outcome, size_t index, size_t diagnostic,
    const uint8_t **message, size_t *message_len, bool *has_span, uint32_t *start, uint32_t *end);

/* The transaction that the session holds, or that the command ended, as the outcome reports it; true when it reports one.
 * Identity and domain are borrowed from the outcome. */
bool nxx_outcome_transaction(const nx_outcome *outcome, const uint8_t **id, size_t *id_len,
    const uint8_t **domain, size_t *domain_len, nxx_transaction_state *state, uint64_t *accepted, uint64_t *applied);
/* True, with the number of the operation from 1 and the reason, when that transaction is FAILED. */
bool nxx_outcome_transaction_failure(const nx_outcome *outcome, uint64_t *operation, const uint8_t **error, size_t *error_len);
/* True when the command was appended to a transaction: the number of its last operation, and the preview with it, for
 * nxx_session_prepare. The basis has 32 bytes. */
bool nxx_outcome_admission(const nx_outcome *outcome, uint64_t *operation, const uint8_t **transaction, size_t *transaction_len,
    uint64_t *position, const uint8_t **basis, size_t *basis_len);

/* A batch as one Arrow struct array: a record batch whose buffers are those of the delivery's stream where that is what they
 * were read from. The host calls the release callbacks of both structures. */
nx_error *nxx_batch_arrow(const nx_batch *batch, struct ArrowSchema *schema, struct ArrowArray *array);

/* A batch of exactly the fields of a schema, from an Arrow struct array whose columns have their names, order and types; nothing
 * is converted. What the Arrow schema calls nullable, the names of list elements and metadata do not matter; slices are taken as
 * they are. Everything is copied into the batch's own stream. The structures are consumed, whether the call succeeds or not.
 * INVALID_ARGUMENT names the first difference, or the column and first row of a null in a required field. */
nx_error *nxx_batch_from_arrow(const nx_schema *schema, struct ArrowSchema *arrow_schema, struct ArrowArray *array,
    nx_batch **out);

#ifdef __cplusplus
}
#endif

#endif /* NERVIX_CLIENT_EXT_H */
