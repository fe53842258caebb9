/* A host of the C interface in which eight threads use one session at once.
 *
 *     threads URI USER PASSWORD ROUNDS
 *
 * Expects the paced domain `lab`, started, with the relay `rows`, the client ingestor `in` and the client emitter `out` of one field, `id`
 * U32. Threads hand references to each other and release what others retained, cancel what others wait for, and let go of everything in
 * no order at the end. Prints BUSY, and PASS at the end. Any surprise is one line on standard error and status 1.
 */
#include "host.h"

#include <pthread.h>

#define THREADS 8
#define NAME "lab"
#define MOMENT_MILLIS 20

static nx_session *session;
static nx_producer *producer;
static nx_consumer *consumer;
static nx_batch *batch;
static nx_execution *execution;
static unsigned long rounds;

/* What threads hand to each other: one reference of each kind, and the token that each of them waits under. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static nx_event *an_event;
static nx_clock_event *a_clock_event;
static nx_domain_clock *a_clock;
static nx_delivery *a_delivery;
static nx_batch *a_batch;
static nx_cancel *tokens[THREADS];
static pthread_barrier_t start;

/* Puts a reference where the next thread finds it, and gives the one that was there. */
#define SWAP(type, place, reference) \
  do { \
    type *before; \
    pthread_mutex_lock(&lock); \
    before = (place); \
    (place) = (reference); \
    pthread_mutex_unlock(&lock); \
    (reference) = before; \
  } while (0)

/* Whether a call succeeded. What another thread or the clock may do to it is no surprise. */
static bool done(nx_error *error) {
  nx_error_kind kind;
  if (error == NULL) {
    return true;
  }
  kind = nx_error_kind_of(error);
  if (kind == NX_ERROR_CANCELLED || kind == NX_ERROR_DEADLINE) {
    nx_error_free(error);
    return false;
  }
  succeed(__LINE__, error);
  return false;
}

static const nx_cancel *wait_as(size_t thread) {
  nx_cancel *token = NULL;
  SUCCEED(nx_cancel_with_deadline(MOMENT_MILLIS, &token));
  SWAP(nx_cancel, tokens[thread], token);
  nx_cancel_free(token);
  return tokens[thread];
}

static void cancel_another(size_t thread, unsigned long round) {
  if (round % 3 == 0) {
    pthread_mutex_lock(&lock);
    if (tokens[(thread + 1) % THREADS] != NULL) {
      nx_cancel_trigger(tokens[(thread + 1) % THREADS]);
    }
    pthread_mutex_unlock(&lock);
  }
}

static void events(size_t thread) {
  nx_event *event = NULL;
  const uint8_t *frame;
  size_t frame_len;
  if (!done(nx_session_next_event(session, wait_as(thread), &event))) {
    return;
  }
  if (nx_event_kind_of(event) == NX_EVENT_ROWS) {
    CHECK(nx_event_row_count(event) > 0);
    SUCCEED(nx_event_frame(event, &frame, &frame_len));
    CHECK(frame_len > 8 && memcmp(frame + 4, "NXSM", 4) == 0);
  }
  CHECK(nx_event_retain(event) != NULL);
  nx_event_release(event);
  SWAP(nx_event, an_event, event);
  nx_event_release(event);
}

static void clocks(size_t thread) {
  nx_clock_event *event = NULL;
  nx_domain_clock *clock = NULL;
  int64_t logical;
  if (done(nx_session_next_clock_event(session, wait_as(thread), &event))) {
    CHECK(nx_clock_event_retain(event) != NULL);
    nx_clock_event_release(event);
    SWAP(nx_clock_event, a_clock_event, event);
    nx_clock_event_release(event);
  }
  SUCCEED(nx_session_domain_clock(session, TEXT(NAME), &clock));
  CHECK(clock != NULL);
  SUCCEED(nx_domain_clock_logical_time_at(clock, 0, &logical));
  CHECK(nx_domain_clock_retain(clock) != NULL);
  nx_domain_clock_release(clock);
  SWAP(nx_domain_clock, a_clock, clock);
  nx_domain_clock_release(clock);
}

static void commands(size_t thread) {
  nx_execution *own = NULL;
  nx_outcome *outcome = NULL;
  SUCCEED(nx_session_prepare(session, TEXT("SHOW CLUSTER STATUS;"), NULL, &own));
  if (done(nx_session_execute(session, own, wait_as(thread), &outcome))) {
    CHECK(nx_outcome_disposition(outcome) == NX_DISPOSITION_COMPLETED);
    nx_outcome_free(outcome);
  }
  nx_execution_free(own);
  /* One that all threads run has one outcome, which each of them owns. */
  outcome = NULL;
  if (done(nx_session_execute(session, execution, wait_as(thread), &outcome))) {
    CHECK(nx_outcome_disposition(outcome) == NX_DISPOSITION_COMPLETED);
    nx_outcome_free(outcome);
  }
}

static void submissions(size_t thread) {
  uint64_t submission = 0;
  nx_submission_outcome *outcome = NULL;
  if (!done(nx_producer_submit(producer, batch, wait_as(thread), &submission))) {
    return;
  }
  if (!done(nx_producer_rejoin(producer, submission, wait_as(thread), &outcome))) {
    SUCCEED(nx_producer_release(producer, submission, &outcome));
  }
  nx_submission_outcome_free(outcome);
}

static void deliveries(size_t thread) {
  nx_delivery *delivery = NULL;
  nx_batch *own = NULL;
  nx_settlement settlement;
  uint32_t id = 0;
  if (!done(nx_consumer_next(consumer, wait_as(thread), &delivery))) {
    return;
  }
  SUCCEED(nx_delivery_batch(delivery, &own));
  CHECK(nx_delivery_retain(delivery) != NULL);
  nx_delivery_release(delivery);
  SWAP(nx_delivery, a_delivery, delivery);
  if (delivery != NULL) {
    /* It is settled by another thread than the one that read it. */
    SUCCEED(nx_delivery_ack(delivery, NULL, &settlement));
    CHECK(settlement == NX_SETTLEMENT_CONFIRMED);
  }
  nx_delivery_release(delivery);
  /* The batch outlives its delivery, whoever releases that. */
  CHECK(nx_batch_row_count(own) >= 1);
  if (nx_batch_row_count(own) == 1) {
    SUCCEED(nx_batch_fixed(own, 0, 0, &id, sizeof id));
    CHECK(id == 7);
  }
  CHECK(nx_batch_retain(own) != NULL);
  nx_batch_release(own);
  SWAP(nx_batch, a_batch, own);
  nx_batch_release(own);
}

static void *work(void *index) {
  static void (*const parts[])(size_t) = {events, clocks, commands, submissions, deliveries};
  size_t thread = (size_t)(uintptr_t)index;
  unsigned long round;
  pthread_barrier_wait(&start);
  for (round = 0; round < rounds; round++) {
    parts[(round + thread) % (sizeof parts / sizeof parts[0])](thread);
    cancel_another(thread, round + thread);
  }
  return NULL;
}

static void *let_go(void *index) {
  pthread_barrier_wait(&start);
  switch ((uintptr_t)index) {
    case 0: nx_session_free(session); break;
    case 1: nx_producer_free(producer); break;
    case 2: nx_consumer_free(consumer); break;
    case 3: nx_execution_free(execution); break;
    case 4: nx_delivery_release(a_delivery); break;
    case 5: nx_event_release(an_event); break;
    case 6: nx_batch_release(batch); break;
    default: nx_domain_clock_release(a_clock); break;
  }
  return NULL;
}

static void all(void *(*what)(void *)) {
  pthread_t threads[THREADS];
  uintptr_t index;
  CHECK(pthread_barrier_init(&start, NULL, THREADS) == 0);
  for (index = 0; index < THREADS; index++) {
    CHECK(pthread_create(&threads[index], NULL, what, (void *)index) == 0);
  }
  for (index = 0; index < THREADS; index++) {
    CHECK(pthread_join(threads[index], NULL) == 0);
  }
  pthread_barrier_destroy(&start);
}

int main(int argc, char **argv) {
  nx_fields *fields = nx_fields_new();
  nx_schema *schema = NULL;
  nx_batch_builder *builder = NULL;
  nx_cancel *cancel = patience();
  uint32_t id = 7;
  size_t thread;

  CHECK(argc == 5);
  rounds = strtoul(argv[4], NULL, 10);
  SUCCEED(nx_session_connect((const uint8_t *)argv[1], strlen(argv[1]), TEXT(NAME), (const uint8_t *)argv[2], strlen(argv[2]),
      (const uint8_t *)argv[3], strlen(argv[3]), cancel, &session));
  SUCCEED(nx_fields_add(fields, TEXT("id"), NX_TYPE_U32, 0, false, false));
  SUCCEED(nx_session_open_ingestor(session, TEXT(NAME), TEXT("in"), fields, 4, 1 << 20, cancel, &producer));
  SUCCEED(nx_session_subscribe_emitter(session, TEXT(NAME), TEXT("out"), fields, 4, 1 << 20, cancel, &consumer));
  nx_fields_free(fields);
  SUCCEED(nx_producer_schema(producer, &schema));
  SUCCEED(nx_batch_builder_new(schema, 1, &builder));
  SUCCEED(nx_batch_builder_fixed(builder, 0, 0, &id, sizeof id));
  SUCCEED(nx_batch_builder_finish(builder, &batch));
  nx_batch_builder_free(builder);
  nx_schema_free(schema);
  command(session, "ATTACH DOMAIN CLOCK;");
  command(session, "CREATE SUBSCRIPTION s TO rows DROPPING;");
  SUCCEED(nx_session_prepare(session, TEXT("SHOW CLUSTER STATUS;"), NULL, &execution));
  printf("BUSY\n");
  fflush(stdout);
  all(work);
  for (thread = 0; thread < THREADS; thread++) {
    nx_cancel_free(tokens[thread]);
  }
  nx_batch_release(a_batch);
  nx_clock_event_release(a_clock_event);
  nx_cancel_free(cancel);
  all(let_go);
  printf("PASS\n");
  return 0;
}
