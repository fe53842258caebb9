/* A host of the C interface that follows a domain clock, feeds an ingestor and reads an emitter.
 *
 *     endpoints URI USER PASSWORD
 *
 * Expects the paced domain `lab` started once, the client ingestor `in` and the client emitter `out` of the fields below. Prints CUT when
 * its connection may be cut, once, and PASS at the end. Any surprise is one line on standard error and status 1.
 */
#include "host.h"

#include <pthread.h>

#define ROWS 3
#define SECOND INT64_C(1000000000)
#define PERIOD (SECOND / 10)
#define NAME "lab"

enum { ID, MAYBE, TEXT_FIELD, TAGS, GRID, SECRET, FIELDS };

/* ---- clocks */

/* The next clock event, which must be of this kind and domain; the caller releases it. */
static nx_clock_event *clock_event(nx_session *session, nx_clock_event_kind kind) {
  nx_cancel *cancel = patience();
  nx_clock_event *event = NULL;
  const uint8_t *domain;
  size_t domain_len;

  SUCCEED(nx_session_next_clock_event(session, cancel, &event));
  /* Ticks come at any time; who waits for something else reads past them. */
  while (kind != NX_CLOCK_EVENT_TICK && nx_clock_event_kind_of(event) == NX_CLOCK_EVENT_TICK) {
    nx_clock_event_release(event);
    SUCCEED(nx_session_next_clock_event(session, cancel, &event));
  }
  nx_cancel_free(cancel);
  CHECK(nx_clock_event_kind_of(event) == kind);
  nx_clock_event_domain(event, &domain, &domain_len);
  CHECK(is_text(domain, domain_len, NAME));
  return event;
}

static void *release_clock_event(void *event) {
  nx_clock_event_release(event);
  return NULL;
}

static void projections(const nx_domain_clock *clock) {
  int64_t origin, anchor, logical, earliest, latest;
  uint64_t period, skew, wait_nanos;
  double rate;
  bool has_window, admitted;

  SUCCEED(nx_domain_clock_paced(clock, &period, &skew, &origin, &anchor, &rate));
  SUCCEED(nx_domain_clock_paced(clock, NULL, NULL, NULL, NULL, NULL));
  CHECK(period == PERIOD && skew == PERIOD / 10 && rate == 2.0);
  SUCCEED(nx_domain_clock_logical_time_at(clock, anchor + SECOND, &logical));
  CHECK(logical == origin + 2 * SECOND);
  SUCCEED(nx_domain_clock_logical_time_at(clock, anchor - SECOND, &logical));
  CHECK(logical == origin);
  SUCCEED(nx_domain_clock_wall_duration_until(clock, anchor, origin + 2 * SECOND, &wait_nanos));
  CHECK(wait_nanos == (uint64_t)SECOND);
  SUCCEED(nx_domain_clock_wall_duration_until(clock, anchor, origin, &wait_nanos));
  CHECK(wait_nanos == 0);
  SUCCEED(nx_domain_clock_admission_window(clock, anchor + SECOND, &has_window, &earliest, &latest));
  CHECK(has_window && earliest == origin && latest == origin + 2 * SECOND);
  SUCCEED(nx_domain_clock_admission_window(clock, anchor + SECOND, &has_window, NULL, NULL));
  SUCCEED(nx_domain_clock_admits(clock, anchor + SECOND, origin + PERIOD + (int64_t)skew, &admitted));
  CHECK(admitted);
  SUCCEED(nx_domain_clock_admits(clock, anchor + SECOND, origin + PERIOD + (int64_t)skew + 1, &admitted));
  CHECK(!admitted);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_domain_clock_logical_time_at(clock, INT64_MAX, &logical));
}

static void clocks(nx_session *session) {
  nx_domain_clock *clock = NULL, *kept;
  nx_clock_event *event, *added;
  nx_clock_state state;
  nx_clock_end_reason reason;
  nx_cancel *expired = NULL;
  const uint8_t *domain;
  size_t domain_len;
  uint64_t generation, tick;
  int64_t boundary, logical, utc;
  double rate;
  pthread_t thread;

  SUCCEED(nx_session_domain_clock(session, TEXT(NAME), &clock));
  CHECK(clock == NULL);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_session_domain_clock(session, TEXT("no name"), &clock));
  command(session, "ATTACH DOMAIN CLOCK;");
  SUCCEED(nx_session_domain_clock(session, TEXT(NAME), &clock));
  CHECK(clock != NULL && nx_domain_clock_state(clock) == NX_CLOCK_PACED && nx_domain_clock_generation(clock) == 1);
  nx_domain_clock_domain(clock, &domain, &domain_len);
  CHECK(is_text(domain, domain_len, NAME));
  projections(clock);

  event = clock_event(session, NX_CLOCK_EVENT_TICK);
  SUCCEED(nx_clock_event_generation(event, &generation));
  SUCCEED(nx_clock_event_tick(event, &tick, &boundary, &utc, &logical));
  CHECK(generation == 1 && tick >= 1);
  EXPECT(NX_ERROR_TYPE, nx_clock_event_state(event, &state));
  EXPECT(NX_ERROR_TYPE, nx_clock_event_paced(event, NULL, NULL, NULL, NULL, &rate));
  EXPECT(NX_ERROR_TYPE, nx_clock_event_end_reason(event, &reason));
  added = nx_clock_event_retain(event);
  CHECK(pthread_create(&thread, NULL, release_clock_event, event) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  SUCCEED(nx_clock_event_tick(added, &tick, &boundary, &utc, &logical));
  nx_clock_event_release(added);

  /* What was read never changes; a newer read has the tick. */
  kept = clock;
  SUCCEED(nx_session_domain_clock(session, TEXT(NAME), &clock));
  CHECK(nx_domain_clock_tick(clock, &tick, &boundary, &utc, &logical));
  CHECK(nx_domain_clock_tick(clock, NULL, NULL, NULL, NULL));
  nx_domain_clock_release(clock);

  command(session, "STOP;");
  event = clock_event(session, NX_CLOCK_EVENT_STATE);
  SUCCEED(nx_clock_event_state(event, &state));
  CHECK(state == NX_CLOCK_STOPPED);
  EXPECT(NX_ERROR_TYPE, nx_clock_event_tick(event, &tick, &boundary, &utc, &logical));
  nx_clock_event_release(event);
  SUCCEED(nx_session_domain_clock(session, TEXT(NAME), &clock));
  CHECK(!nx_domain_clock_tick(clock, &tick, &boundary, &utc, &logical));
  EXPECT(NX_ERROR_TYPE, nx_domain_clock_logical_time_at(clock, 0, &logical));
  EXPECT(NX_ERROR_TYPE, nx_domain_clock_paced(clock, NULL, NULL, NULL, NULL, NULL));
  nx_domain_clock_release(clock);
  CHECK(nx_domain_clock_retain(kept) != NULL);
  nx_domain_clock_release(kept);
  projections(kept);
  nx_domain_clock_release(kept);

  command(session, "START AT '2031-01-01T00:00:00Z';");
  event = clock_event(session, NX_CLOCK_EVENT_STATE);
  SUCCEED(nx_clock_event_generation(event, &generation));
  SUCCEED(nx_clock_event_paced(event, NULL, NULL, &logical, NULL, &rate));
  CHECK(generation == 2 && rate == 1.0);
  nx_clock_event_release(event);

  SUCCEED(nx_cancel_with_deadline(0, &expired));
  event = NULL;
  EXPECT(NX_ERROR_DEADLINE, nx_session_next_clock_event(session, expired, &event));
  CHECK(event == NULL);
  nx_cancel_free(expired);
  nx_clock_event_release(NULL);
  nx_domain_clock_release(NULL);
}

/* ---- fields and batches */

static nx_fields *fields(void) {
  nx_fields *made = nx_fields_new();

  SUCCEED(nx_fields_add(made, TEXT("id"), NX_TYPE_U32, 0, false, false));
  SUCCEED(nx_fields_add(made, TEXT("maybe"), NX_TYPE_I64, 0, true, false));
  SUCCEED(nx_fields_add(made, TEXT("text"), NX_TYPE_STRING, 0, false, false));
  SUCCEED(nx_fields_add(made, TEXT("tags"), NX_TYPE_LIST, 0, false, false));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_fields_add(made, TEXT("early"), NX_TYPE_U8, 0, false, false));
  SUCCEED(nx_fields_element(made, NX_TYPE_STRING, 0));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_fields_element(made, NX_TYPE_STRING, 0));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_fields_add(made, TEXT("grid"), NX_TYPE_FIXED_LIST, 0, false, false));
  SUCCEED(nx_fields_add(made, TEXT("grid"), NX_TYPE_FIXED_LIST, 2, false, false));
  SUCCEED(nx_fields_element(made, NX_TYPE_FIXED_LIST, 2));
  SUCCEED(nx_fields_element(made, NX_TYPE_I16, 0));
  SUCCEED(nx_fields_add(made, TEXT("secret"), NX_TYPE_STRING, 0, false, true));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_fields_add(made, TEXT("bad"), 17, 0, false, false));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_fields_add(made, TEXT("bad"), NX_TYPE_U8, 1, false, false));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_fields_add(made, TEXT("\xff"), NX_TYPE_U8, 0, false, false));
  nx_fields_free(NULL);
  return made;
}

static const uint32_t IDS[ROWS] = {1, 2, UINT32_MAX};
static const int64_t MAYBES[ROWS] = {INT64_MIN, 99, INT64_MAX};
static const uint8_t STATES[ROWS] = {NX_CELL_VALUE, NX_CELL_NULL, NX_CELL_VALUE};
static const uint64_t TEXT_OFFSETS[ROWS + 1] = {0, 1, 1, 4};
static const uint64_t TAG_ENDS[ROWS + 1] = {0, 2, 2, 3};
static const uint64_t TAG_OFFSETS[4] = {0, 1, 3, 6};
static const int16_t GRID_VALUES[ROWS * 4] = {1, 2, 3, 4, -1, -2, -3, -4, INT16_MIN, INT16_MAX, 0, 1};

static nx_batch *build(const nx_schema *schema) {
  nx_batch_builder *builder = NULL;
  nx_batch *batch = NULL;
  const uint8_t redacted[ROWS] = {NX_CELL_VALUE, NX_CELL_REDACTED, NX_CELL_VALUE};
  const uint64_t decreasing[ROWS + 1] = {0, 3, 2, 4};

  SUCCEED(nx_batch_builder_new(schema, ROWS, &builder));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_batch_builder_finish(builder, &batch));
  SUCCEED(nx_batch_builder_fixed(builder, ID, 0, IDS, sizeof IDS));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_batch_builder_fixed(builder, FIELDS, 0, IDS, sizeof IDS));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_batch_builder_states(builder, MAYBE, redacted, ROWS));
  SUCCEED(nx_batch_builder_states(builder, MAYBE, STATES, ROWS));
  SUCCEED(nx_batch_builder_fixed(builder, MAYBE, 0, MAYBES, sizeof MAYBES));
  EXPECT(NX_ERROR_INVALID_ARGUMENT,
      nx_batch_builder_varlen(builder, TEXT_FIELD, 0, decreasing, ROWS + 1, TEXT("text")));
  SUCCEED(nx_batch_builder_varlen(builder, TEXT_FIELD, 0, TEXT_OFFSETS, ROWS + 1, TEXT("text")));
  SUCCEED(nx_batch_builder_offsets(builder, TAGS, 0, TAG_ENDS, ROWS + 1));
  SUCCEED(nx_batch_builder_varlen(builder, TAGS, 1, TAG_OFFSETS, 4, TEXT("abbccc")));
  SUCCEED(nx_batch_builder_fixed(builder, GRID, 2, GRID_VALUES, sizeof GRID_VALUES));
  SUCCEED(nx_batch_builder_varlen(builder, SECRET, 0, TEXT_OFFSETS, ROWS + 1, TEXT("hush")));
  SUCCEED(nx_batch_builder_finish(builder, &batch));
  nx_batch_builder_free(builder);
  nx_batch_builder_free(NULL);
  return batch;
}

static void read_batch(const nx_batch *batch) {
  uint32_t id[ROWS];
  int64_t maybe[ROWS];
  int16_t grid[ROWS * 4];
  uint8_t states[ROWS], data[16];
  uint64_t offsets[ROWS + 1];
  size_t cells = 0, data_len = 0, ipc_len = 0, count = 0;
  const uint8_t *ipc = NULL;
  nx_schema *schema = NULL;

  CHECK(nx_batch_row_count(batch) == ROWS);
  SUCCEED(nx_batch_schema(batch, &schema));
  SUCCEED(nx_schema_field_count(schema, NX_PART_ROWS, &count));
  CHECK(count == FIELDS);
  nx_schema_free(schema);
  SUCCEED(nx_batch_fixed(batch, ID, 0, id, sizeof id));
  CHECK(memcmp(id, IDS, sizeof id) == 0);
  SUCCEED(nx_batch_states(batch, MAYBE, states, ROWS));
  CHECK(memcmp(states, STATES, ROWS) == 0);
  SUCCEED(nx_batch_fixed(batch, MAYBE, 0, maybe, sizeof maybe));
  CHECK(maybe[0] == MAYBES[0] && maybe[2] == MAYBES[2]);
  SUCCEED(nx_batch_varlen(batch, TEXT_FIELD, 0, NULL, 0, NULL, 0, &data_len));
  CHECK(data_len == 4);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_batch_varlen(batch, TEXT_FIELD, 0, offsets, ROWS + 1, data, 3, &data_len));
  SUCCEED(nx_batch_varlen(batch, TEXT_FIELD, 0, offsets, ROWS + 1, data, sizeof data, &data_len));
  CHECK(is_text(data, data_len, "text") && memcmp(offsets, TEXT_OFFSETS, sizeof offsets) == 0);
  SUCCEED(nx_batch_cells(batch, TAGS, 1, &cells));
  CHECK(cells == 3);
  SUCCEED(nx_batch_offsets(batch, TAGS, 0, offsets, ROWS + 1));
  CHECK(memcmp(offsets, TAG_ENDS, sizeof offsets) == 0);
  SUCCEED(nx_batch_varlen(batch, TAGS, 1, offsets, 4, data, sizeof data, &data_len));
  CHECK(is_text(data, data_len, "abbccc") && memcmp(offsets, TAG_OFFSETS, sizeof offsets) == 0);
  SUCCEED(nx_batch_cells(batch, GRID, 2, &cells));
  CHECK(cells == ROWS * 4);
  SUCCEED(nx_batch_fixed(batch, GRID, 2, grid, sizeof grid));
  CHECK(memcmp(grid, GRID_VALUES, sizeof grid) == 0);
  SUCCEED(nx_batch_varlen(batch, SECRET, 0, offsets, ROWS + 1, data, sizeof data, &data_len));
  CHECK(is_text(data, data_len, "hush"));
  EXPECT(NX_ERROR_TYPE, nx_batch_fixed(batch, TEXT_FIELD, 0, id, sizeof id));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_batch_fixed(batch, ID, 0, id, sizeof id - 1));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_batch_cells(batch, GRID, 3, &cells));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_batch_states(batch, FIELDS, states, ROWS));
  SUCCEED(nx_batch_ipc(batch, &ipc, &ipc_len));
  CHECK(ipc_len > 8 && memcmp(ipc, "\xff\xff\xff\xff", 4) == 0);
}

/* ---- producers and consumers */

static void refusals(nx_session *session, const nx_fields *described) {
  nx_producer *producer = NULL;
  nx_consumer *consumer = NULL;
  nx_cancel *cancel = patience();
  nx_open_refusal refusal;
  nx_error *error;

  error = nx_session_open_ingestor(session, TEXT(NAME), TEXT("none"), described, 1, 4096, cancel, &producer);
  CHECK(error != NULL && nx_error_kind_of(error) == NX_ERROR_REJECTED);
  CHECK(nx_error_open_refusal(error, &refusal) && refusal == NX_OPEN_ENDPOINT_NOT_FOUND);
  nx_error_free(error);
  error = nx_session_subscribe_emitter(session, TEXT("nowhere"), TEXT("out"), described, 1, 1 << 20, cancel, &consumer);
  CHECK(nx_error_open_refusal(error, &refusal) && refusal == NX_OPEN_DOMAIN_NOT_FOUND);
  nx_error_free(error);
  EXPECT(NX_ERROR_INVALID_ARGUMENT,
      nx_session_open_ingestor(session, TEXT(NAME), TEXT("in"), described, 0, 4096, cancel, &producer));
  EXPECT(NX_ERROR_INVALID_ARGUMENT,
      nx_session_open_ingestor(session, TEXT(NAME), TEXT("in"), described, 1, (UINT64_C(32) << 20) + 1, cancel, &producer));
  EXPECT(NX_ERROR_INVALID_ARGUMENT,
      nx_session_subscribe_emitter(session, TEXT(NAME), TEXT("out"), described, 1025, 1 << 20, cancel, &consumer));
  CHECK(producer == NULL && consumer == NULL);
  nx_producer_free(NULL);
  nx_consumer_free(NULL);
  nx_delivery_release(NULL);
  nx_batch_release(NULL);
  nx_submission_outcome_free(NULL);
  nx_cancel_free(cancel);
}

static nx_producer *open_producer(nx_session *session, const nx_fields *described) {
  nx_producer *producer = NULL;
  nx_cancel *cancel = patience();
  const uint8_t *digest;
  size_t digest_len;
  uint32_t batches, rows;
  uint64_t bytes, max_bytes, outstanding, timeout, backoff, longest;
  nx_ack_window window;
  nx_reopen_reason reason;
  nx_open_refusal refusal;

  SUCCEED(nx_session_open_ingestor(session, TEXT(NAME), TEXT("in"), described, 4, 1 << 20, cancel, &producer));
  nx_cancel_free(cancel);
  CHECK(nx_producer_generation(producer) == 2 && nx_producer_state(producer) == NX_ENDPOINT_ACTIVE);
  CHECK(nx_producer_admission(producer) == NX_ADMISSION_OPEN);
  nx_producer_contract(producer, &digest, &digest_len);
  CHECK(digest_len == 32);
  nx_producer_grant(producer, &batches, &bytes, &rows, &max_bytes);
  CHECK(batches == 4 && bytes == 1 << 20 && rows == 65536 && max_bytes == 1 << 20);
  nx_producer_grant(producer, NULL, NULL, NULL, NULL);
  nx_producer_policy(producer, &window, &outstanding, &timeout, &backoff, &longest);
  CHECK(window == NX_ACK_PARALLEL && outstanding == 8 && timeout == (uint64_t)(60 * SECOND));
  nx_producer_policy(producer, NULL, NULL, NULL, NULL, NULL);
  CHECK(!nx_producer_reopen_reason(producer, &reason, &refusal));
  return producer;
}

static nx_delivery *next(nx_consumer *consumer) {
  nx_delivery *delivery = NULL;
  nx_cancel *cancel = patience();

  SUCCEED(nx_consumer_next(consumer, cancel, &delivery));
  nx_cancel_free(cancel);
  return delivery;
}

static void identity_of(const nx_delivery *delivery, uint8_t identity[16], uint8_t reference[16]) {
  const uint8_t *bytes;
  size_t length;

  nx_delivery_identity(delivery, &bytes, &length);
  CHECK(length == 16);
  memcpy(identity, bytes, 16);
  nx_delivery_reference(delivery, &bytes, &length);
  CHECK(length == 16);
  memcpy(reference, bytes, 16);
}

/* Takes an outcome and checks what it is; the caller knows which one. */
static void outcome(nx_producer *producer, uint64_t submission, nx_submission_result result) {
  nx_submission_outcome *taken = NULL;
  nx_cancel *cancel = patience();
  nx_submission_refusal refusal;
  nx_batch_defect defect;
  nx_processing_failure failure;
  nx_submission_uncertainty uncertainty;
  const uint8_t *message;
  size_t message_len;

  SUCCEED(nx_producer_rejoin(producer, submission, cancel, &taken));
  CHECK(nx_submission_outcome_result(taken) == result);
  nx_submission_outcome_message(taken, &message, &message_len);
  CHECK((message_len == 0) == (result == NX_SUBMISSION_COMPLETED));
  if (result == NX_SUBMISSION_NOT_ADMITTED) {
    SUCCEED(nx_submission_outcome_refusal(taken, &refusal));
    CHECK(refusal == NX_REFUSAL_INVALID_BATCH);
    SUCCEED(nx_submission_outcome_defect(taken, &defect));
    CHECK(defect == NX_DEFECT_MALFORMED);
  } else {
    EXPECT(NX_ERROR_TYPE, nx_submission_outcome_refusal(taken, &refusal));
    EXPECT(NX_ERROR_TYPE, nx_submission_outcome_defect(taken, &defect));
  }
  if (result == NX_SUBMISSION_PROCESSING_FAILED) {
    SUCCEED(nx_submission_outcome_failure(taken, &failure));
    CHECK(failure == NX_FAILURE_REJECTED);
  } else {
    EXPECT(NX_ERROR_TYPE, nx_submission_outcome_failure(taken, &failure));
  }
  if (result == NX_SUBMISSION_OUTCOME_UNKNOWN) {
    SUCCEED(nx_submission_outcome_uncertainty(taken, &uncertainty));
    CHECK(uncertainty == NX_UNCERTAINTY_SESSION_LOST);
  } else {
    EXPECT(NX_ERROR_TYPE, nx_submission_outcome_uncertainty(taken, &uncertainty));
  }
  nx_submission_outcome_free(taken);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_producer_rejoin(producer, submission, cancel, &taken));
  nx_cancel_free(cancel);
}

static void *release_delivery(void *delivery) {
  nx_delivery_release(delivery);
  return NULL;
}

static void settle(nx_producer *producer, nx_consumer *consumer, const nx_batch *batch) {
  nx_cancel *cancel = patience(), *expired = NULL;
  nx_delivery *delivery, *again, *none = NULL;
  nx_batch *decoded = NULL, *same = NULL;
  nx_settlement settlement;
  nx_submission_outcome *taken = NULL;
  uint64_t submission = 0, pending[4];
  bool resolved[4];
  size_t count = 0, ipc_len, length;
  uint8_t first[2][16], second[2][16];
  char reason[1025];
  const uint8_t *ipc, *text;
  pthread_t thread;

  SUCCEED(nx_producer_submit(producer, batch, cancel, &submission));
  SUCCEED(nx_producer_pending(producer, pending, resolved, 4, &count));
  CHECK(count == 1 && pending[0] == submission && !resolved[0]);
  SUCCEED(nx_producer_pending(producer, NULL, NULL, 0, &count));
  CHECK(count == 1);
  SUCCEED(nx_cancel_with_deadline(0, &expired));
  EXPECT(NX_ERROR_DEADLINE, nx_producer_rejoin(producer, submission, expired, &taken));
  EXPECT(NX_ERROR_DEADLINE, nx_consumer_next(consumer, expired, &none));
  CHECK(taken == NULL && none == NULL);

  /* Retried: the same batch under another reference. */
  delivery = next(consumer);
  CHECK(nx_delivery_members(delivery) == ROWS && nx_delivery_execution_now(delivery) > 0);
  nx_delivery_source_relay(delivery, &text, &length);
  CHECK(is_text(text, length, "rows"));
  CHECK(!nx_delivery_branch_fingerprint(delivery, &text, &length));
  identity_of(delivery, first[0], first[1]);
  SUCCEED(nx_delivery_retry(delivery, cancel, &settlement));
  CHECK(settlement == NX_SETTLEMENT_CONFIRMED);
  again = next(consumer);
  identity_of(again, second[0], second[1]);
  CHECK(memcmp(first[0], second[0], 16) == 0 && memcmp(first[1], second[1], 16) != 0);
  SUCCEED(nx_delivery_ack(delivery, cancel, &settlement));
  CHECK(settlement == NX_SETTLEMENT_STALE_REFERENCE);
  nx_delivery_release(delivery);

  /* Decoded once; what is borrowed lives as long as what it was borrowed from. */
  SUCCEED(nx_delivery_batch(again, &decoded));
  SUCCEED(nx_delivery_batch(again, &same));
  CHECK(decoded == same);
  nx_batch_release(same);
  nx_delivery_ipc(again, &ipc, &ipc_len);
  CHECK(ipc_len > 0);
  read_batch(decoded);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_delivery_reject(again, NULL, 0, cancel, &settlement));
  memset(reason, 'x', sizeof reason);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_delivery_reject(again, (const uint8_t *)reason, sizeof reason, cancel, &settlement));
  EXPECT(NX_ERROR_DEADLINE, nx_delivery_ack(again, expired, &settlement));
  SUCCEED(nx_delivery_ack(again, cancel, &settlement));
  CHECK(settlement == NX_SETTLEMENT_CONFIRMED);
  outcome(producer, submission, NX_SUBMISSION_COMPLETED);
  delivery = nx_delivery_retain(again);
  CHECK(pthread_create(&thread, NULL, release_delivery, again) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  identity_of(delivery, second[0], second[1]);
  nx_delivery_release(delivery);
  read_batch(decoded);
  same = nx_batch_retain(decoded);
  nx_batch_release(decoded);
  read_batch(same);

  /* A batch that was delivered can be submitted; rejected, it fails. */
  SUCCEED(nx_producer_submit(producer, same, cancel, &submission));
  nx_batch_release(same);
  delivery = next(consumer);
  SUCCEED(nx_delivery_reject(delivery, TEXT("no"), cancel, &settlement));
  CHECK(settlement == NX_SETTLEMENT_CONFIRMED);
  nx_delivery_release(delivery);
  outcome(producer, submission, NX_SUBMISSION_PROCESSING_FAILED);

  SUCCEED(nx_producer_submit_ipc(producer, TEXT("no stream"), cancel, &submission));
  outcome(producer, submission, NX_SUBMISSION_NOT_ADMITTED);
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_producer_submit_ipc(producer, NULL, 0, cancel, &submission));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_producer_rejoin(producer, 987654, cancel, &taken));
  EXPECT(NX_ERROR_INVALID_ARGUMENT, nx_producer_release(producer, 987654, &taken));
  nx_cancel_free(expired);
  nx_cancel_free(cancel);
}

/* Loses the connection with a batch outstanding and delivered. */
static void lose(nx_session *session, nx_producer *producer, nx_consumer *consumer, const nx_batch *batch) {
  nx_cancel *cancel = patience();
  nx_delivery *delivery, *again = NULL;
  nx_settlement settlement;
  nx_domain_clock *clock = NULL;
  uint64_t submission = 0, next_submission = 0;
  uint8_t first[2][16], second[2][16];

  SUCCEED(nx_producer_submit(producer, batch, cancel, &submission));
  delivery = next(consumer);
  identity_of(delivery, first[0], first[1]);
  printf("CUT\n");
  fflush(stdout);
  nx_clock_event_release(clock_event(session, NX_CLOCK_EVENT_INTERRUPTED));
  nx_clock_event_release(clock_event(session, NX_CLOCK_EVENT_STATE));
  SUCCEED(nx_session_domain_clock(session, TEXT(NAME), &clock));
  CHECK(nx_domain_clock_generation(clock) == 2);
  nx_domain_clock_release(clock);

  CHECK(nx_producer_state(producer) == NX_ENDPOINT_INTERRUPTED);
  CHECK(nx_producer_admission(producer) == NX_ADMISSION_SUSPENDED);
  outcome(producer, submission, NX_SUBMISSION_OUTCOME_UNKNOWN);
  EXPECT(NX_ERROR_REJECTED, nx_delivery_ack(delivery, cancel, &settlement));
  nx_delivery_release(delivery);
  EXPECT(NX_ERROR_INTERRUPTED, nx_consumer_next(consumer, cancel, &again));
  again = next(consumer);
  identity_of(again, second[0], second[1]);
  CHECK(memcmp(first[0], second[0], 16) == 0 && memcmp(first[1], second[1], 16) != 0);
  SUCCEED(nx_delivery_ack(again, cancel, &settlement));
  nx_delivery_release(again);
  SUCCEED(nx_producer_submit(producer, batch, cancel, &next_submission));
  CHECK(next_submission != submission && nx_producer_state(producer) == NX_ENDPOINT_ACTIVE);
  again = next(consumer);
  SUCCEED(nx_delivery_ack(again, cancel, &settlement));
  nx_delivery_release(again);
  outcome(producer, next_submission, NX_SUBMISSION_COMPLETED);
  nx_cancel_free(cancel);
}

static void endpoints(nx_session *session) {
  nx_fields *described = fields();
  nx_producer *producer, *idle;
  nx_consumer *consumer = NULL;
  nx_schema *schema = NULL, *other = NULL;
  nx_batch *batch;
  nx_cancel *cancel = patience();
  nx_submission_outcome *taken = NULL;
  nx_delivery *delivery;
  nx_settlement settlement;
  uint64_t submission;
  nx_ack_window window;
  nx_reopen_reason reason;
  nx_open_refusal refusal;
  const uint8_t *digest;
  size_t digest_len;

  refusals(session, described);
  producer = open_producer(session, described);
  idle = open_producer(session, described);
  SUCCEED(nx_session_subscribe_emitter(session, TEXT(NAME), TEXT("out"), described, 4, 1 << 20, cancel, &consumer));
  /* The description was copied. */
  nx_fields_free(described);
  CHECK(nx_consumer_generation(consumer) == 2 && nx_consumer_state(consumer) == NX_ENDPOINT_ACTIVE);
  nx_consumer_contract(consumer, &digest, &digest_len);
  CHECK(digest_len == 32);
  nx_consumer_grant(consumer, NULL, NULL, NULL, NULL);
  nx_consumer_policy(consumer, &window, NULL, NULL, NULL, NULL);
  CHECK(window == NX_ACK_PARALLEL && !nx_consumer_reopen_reason(consumer, &reason, &refusal));

  SUCCEED(nx_consumer_schema(consumer, &other));
  nx_schema_free(other);
  SUCCEED(nx_producer_schema(producer, &schema));
  batch = build(schema);
  nx_schema_free(schema);
  read_batch(batch);
  settle(producer, consumer, batch);
  lose(session, producer, consumer, batch);

  /* A submission that is let go needs no outcome taken; closing waits until it is in. */
  SUCCEED(nx_producer_submit(producer, batch, cancel, &submission));
  nx_batch_release(batch);
  SUCCEED(nx_producer_release(producer, submission, &taken));
  CHECK(taken == NULL);
  delivery = next(consumer);
  SUCCEED(nx_delivery_ack(delivery, cancel, &settlement));
  nx_delivery_release(delivery);
  SUCCEED(nx_producer_close(producer, cancel));
  SUCCEED(nx_producer_close(producer, cancel));
  CHECK(nx_producer_state(producer) == NX_ENDPOINT_CLOSED);
  SUCCEED(nx_consumer_close(consumer, cancel));
  EXPECT(NX_ERROR_CLOSED, nx_consumer_next(consumer, cancel, &delivery));
  nx_producer_free(producer);
  nx_consumer_free(consumer);

  /* A producer outlives the session; freeing it closes it without waiting. */
  command(session, "DETACH DOMAIN CLOCK;");
  nx_session_free(session);
  nx_producer_free(idle);
  nx_cancel_free(cancel);
}

int main(int argc, char **argv) {
  nx_session *session = NULL;
  nx_cancel *cancel = patience();

  if (argc != 4) {
    fail(__LINE__, "usage: endpoints URI USER PASSWORD");
  }
  SUCCEED(nx_session_connect((const uint8_t *)argv[1], strlen(argv[1]), TEXT(NAME), (const uint8_t *)argv[2], strlen(argv[2]),
      (const uint8_t *)argv[3], strlen(argv[3]), cancel, &session));
  nx_cancel_free(cancel);
  clocks(session);
  endpoints(session);
  printf("PASS\n");
  return 0;
}
