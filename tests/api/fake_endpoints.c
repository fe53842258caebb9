/* Clocks, producers, consumers and batches of the library without a server; part of fake_library.c.
 *
 * Commands: `ATTACH DOMAIN CLOCK;` and `DETACH ...` follow the clock of the selected domain or not (`attach-waits`: the next attach takes
 * effect and then waits for its token); `clock-state GENERATION STATE`, `clock-tick GENERATION ID`, `clock-interrupted`,
 * `clock-failed`, `clock-ended` queue a clock event of the selected domain. `outcome ID RESULT CAUSE` resolves a submission; `deliver ROWS`
 * queues a delivery, `interrupt` an interruption; `settle N` answers settlements with N (`settle-waits`: the next one takes effect
 * and then waits for its token); `reopen REASON` ends every handle. A producer has credit for two batches. Domain time is UTC.
 */

struct nx_clock_event {
  struct head head;
  int kind;
  char domain[64];
  uint64_t generation;
  int state;
  uint64_t tick;
  struct nx_clock_event *next;
};
struct nx_domain_clock {
  struct head head;
  char domain[64];
  uint64_t generation;
  int state;
  uint64_t tick;
};
struct nx_fields {
  struct head head;
  int levels;
};
struct nx_producer {
  struct head head;
  bool closed;
};
struct nx_submission_outcome {
  struct head head;
  int result;
  int cause;
};
struct nx_consumer {
  struct head head;
  bool closed;
};
struct nx_delivery {
  struct head head;
  uint8_t identity[16];
  uint32_t rows;
  bool settled;
  struct nx_delivery *next;
};
struct nx_batch {
  struct head head;
  size_t rows;
};
struct nx_batch_builder {
  struct head head;
  size_t rows;
};

enum { CREDIT = 2, SUBMISSIONS = 4096 };

static struct {
  bool followed;
  bool attach_waits;
  uint64_t generation;
  int state;
  uint64_t tick;
  nx_clock_event *events;
} the_clock;
static struct {
  bool held;
  bool resolved;
  int result;
  int cause;
} submissions[SUBMISSIONS];
static uint64_t last_submission;
static int reopen_reason;
static nx_delivery *deliveries;
static uint32_t last_delivery;
static bool interrupted;
static int settlement_answer = NX_SETTLEMENT_CONFIRMED;
static bool settle_waits;

static void clock_event(const char *domain, int kind, uint64_t generation, int state, uint64_t tick) {
  nx_clock_event *event = made(CLOCK_EVENT, sizeof *event), **end;
  event->kind = kind;
  strcpy(event->domain, domain);
  event->generation = generation;
  event->state = state;
  event->tick = tick;
  pthread_mutex_lock(&lock);
  if (kind == NX_CLOCK_EVENT_STATE) {
    the_clock.generation = generation;
    the_clock.state = state;
    the_clock.tick = 0;
  } else if (kind == NX_CLOCK_EVENT_TICK) {
    the_clock.tick = tick;
  } else if (kind == NX_CLOCK_EVENT_ENDED) {
    the_clock.followed = false;
  }
  for (end = &the_clock.events; *end != NULL; end = &(*end)->next) {
  }
  *end = event;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

/* Carries out a command of this part. Returns the disposition that it ends with, or 0 for a command of another part. */
static int endpoint_command(nx_session *session, const char *command, const nx_cancel *cancel, nx_error **error) {
  char word[64] = "";
  unsigned long long first = 0, second = 0, third = 0;
  sscanf(command, "%63s %llu %llu %llu", word, &first, &second, &third);
  if (strcmp(word, "USE") == 0) {
    sscanf(command, "%*s %63[^;]", session->domain);
  } else if (strcmp(word, "ATTACH") == 0) {
    bool waits = the_clock.attach_waits;
    if (the_clock.followed) {
      return NX_DISPOSITION_FAILED;
    }
    the_clock.followed = true;
    the_clock.attach_waits = false;
    if (the_clock.state == 0) {
      the_clock.generation = 1;
      the_clock.state = NX_CLOCK_PACED;
    }
    if (waits) {
      *error = wait_for_token(cancel, true);
    }
  } else if (strcmp(word, "DETACH") == 0) {
    the_clock.followed = false;
  } else if (strcmp(word, "attach-waits") == 0) {
    the_clock.attach_waits = true;
  } else if (strcmp(word, "clock-state") == 0) {
    clock_event(session->domain, NX_CLOCK_EVENT_STATE, first, (int)second, 0);
  } else if (strcmp(word, "clock-tick") == 0) {
    clock_event(session->domain, NX_CLOCK_EVENT_TICK, first, 0, second);
  } else if (strcmp(word, "clock-interrupted") == 0) {
    clock_event(session->domain, NX_CLOCK_EVENT_INTERRUPTED, 0, 0, 0);
  } else if (strcmp(word, "clock-failed") == 0) {
    clock_event(session->domain, NX_CLOCK_EVENT_RESTORATION_FAILED, 0, 0, 0);
  } else if (strcmp(word, "clock-ended") == 0) {
    clock_event(session->domain, NX_CLOCK_EVENT_ENDED, 0, 0, 0);
  } else if (strcmp(word, "outcome") == 0) {
    if (first >= SUBMISSIONS) {
      abort();
    }
    pthread_mutex_lock(&lock);
    submissions[first].resolved = true;
    submissions[first].result = (int)second;
    submissions[first].cause = (int)third;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
  } else if (strcmp(word, "deliver") == 0) {
    nx_delivery *delivery = made(DELIVERY, sizeof *delivery), **end;
    delivery->rows = (uint32_t)first;
    delivery->identity[15] = (uint8_t)++last_delivery;
    pthread_mutex_lock(&lock);
    for (end = &deliveries; *end != NULL; end = &(*end)->next) {
    }
    *end = delivery;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
  } else if (strcmp(word, "interrupt") == 0) {
    pthread_mutex_lock(&lock);
    interrupted = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
  } else if (strcmp(word, "settle") == 0) {
    settlement_answer = (int)first;
  } else if (strcmp(word, "settle-waits") == 0) {
    settle_waits = true;
  } else if (strcmp(word, "reopen") == 0) {
    pthread_mutex_lock(&lock);
    reopen_reason = (int)first;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
  } else {
    return 0;
  }
  return NX_DISPOSITION_COMPLETED;
}

nx_error *nx_session_next_clock_event(nx_session *session, const nx_cancel *cancel, nx_clock_event **out) {
  int code;
  (void)session;
  pthread_mutex_lock(&lock);
  while ((code = over(cancel)) == 0 && the_clock.events == NULL) {
    pause_for(cancel);
  }
  if (code == 0) {
    *out = the_clock.events;
    the_clock.events = the_clock.events->next;
  }
  pthread_mutex_unlock(&lock);
  return code == 0 ? NULL : fail(code, false);
}
nx_clock_event_kind nx_clock_event_kind_of(const nx_clock_event *event) { return (nx_clock_event_kind)event->kind; }
void nx_clock_event_domain(const nx_clock_event *event, const uint8_t **domain, size_t *domain_len) {
  text(event->domain, domain, domain_len);
}
nx_error *nx_clock_event_generation(const nx_clock_event *event, uint64_t *generation) {
  if (event->kind != NX_CLOCK_EVENT_STATE && event->kind != NX_CLOCK_EVENT_TICK) {
    return fail(NX_ERROR_TYPE, false);
  }
  *generation = event->generation;
  return NULL;
}
nx_error *nx_clock_event_state(const nx_clock_event *event, nx_clock_state *state) {
  if (event->kind != NX_CLOCK_EVENT_STATE) {
    return fail(NX_ERROR_TYPE, false);
  }
  *state = (nx_clock_state)event->state;
  return NULL;
}
static nx_error *pacing(int state, uint64_t *period, uint64_t *skew, int64_t *origin, int64_t *anchor, double *rate) {
  if (state != NX_CLOCK_PACED) {
    return fail(NX_ERROR_TYPE, false);
  }
  *period = 100000000;
  *skew = 10000000;
  *origin = 0;
  *anchor = 0;
  *rate = 1.0;
  return NULL;
}
nx_error *nx_clock_event_paced(const nx_clock_event *event, uint64_t *period_nanos, uint64_t *skew_nanos,
    int64_t *logical_origin, int64_t *utc_anchor, double *time_rate) {
  return pacing(event->state, period_nanos, skew_nanos, logical_origin, utc_anchor, time_rate);
}
nx_error *nx_clock_event_tick(const nx_clock_event *event, uint64_t *tick_id, int64_t *logical_boundary,
    int64_t *authority_utc, int64_t *serving_logical) {
  if (event->kind != NX_CLOCK_EVENT_TICK) {
    return fail(NX_ERROR_TYPE, false);
  }
  *tick_id = event->tick;
  *logical_boundary = (int64_t)(event->tick - 1) * 100000000;
  *authority_utc = *serving_logical = *logical_boundary + 1;
  return NULL;
}
nx_error *nx_clock_event_end_reason(const nx_clock_event *event, nx_clock_end_reason *reason) {
  if (event->kind != NX_CLOCK_EVENT_ENDED) {
    return fail(NX_ERROR_TYPE, false);
  }
  *reason = NX_CLOCK_END_DOMAIN_REMOVED;
  return NULL;
}
nx_clock_event *nx_clock_event_retain(nx_clock_event *event) { return retained(event); }
void nx_clock_event_release(nx_clock_event *event) { unmade(event, CLOCK_EVENT); }

nx_error *nx_session_domain_clock(const nx_session *session, const uint8_t *domain, size_t domain_len, nx_domain_clock **out) {
  nx_domain_clock *clock;
  (void)session;
  if (domain_len == 0) {
    return fail(NX_ERROR_INVALID_ARGUMENT, false);
  }
  *out = NULL;
  if (!the_clock.followed) {
    return NULL;
  }
  clock = made(CLOCK, sizeof *clock);
  memcpy(clock->domain, domain, domain_len);
  clock->generation = the_clock.generation;
  clock->state = the_clock.state;
  clock->tick = the_clock.tick;
  *out = clock;
  return NULL;
}
void nx_domain_clock_domain(const nx_domain_clock *clock, const uint8_t **domain, size_t *domain_len) {
  text(clock->domain, domain, domain_len);
}
uint64_t nx_domain_clock_generation(const nx_domain_clock *clock) { return clock->generation; }
nx_clock_state nx_domain_clock_state(const nx_domain_clock *clock) { return (nx_clock_state)clock->state; }
nx_error *nx_domain_clock_paced(const nx_domain_clock *clock, uint64_t *period_nanos, uint64_t *skew_nanos,
    int64_t *logical_origin, int64_t *utc_anchor, double *time_rate) {
  return pacing(clock->state, period_nanos, skew_nanos, logical_origin, utc_anchor, time_rate);
}
bool nx_domain_clock_tick(const nx_domain_clock *clock, uint64_t *tick_id, int64_t *logical_boundary, int64_t *authority_utc,
    int64_t *serving_logical) {
  if (clock->tick == 0) {
    return false;
  }
  *tick_id = clock->tick;
  *logical_boundary = (int64_t)(clock->tick - 1) * 100000000;
  *authority_utc = *serving_logical = *logical_boundary + 1;
  return true;
}
static nx_error *timeless(const nx_domain_clock *clock) {
  if (clock->head.references <= 0) {
    bad_frees++;
  }
  return clock->state == NX_CLOCK_PACED || clock->state == NX_CLOCK_UNPACED ? NULL : fail(NX_ERROR_TYPE, false);
}
nx_error *nx_domain_clock_logical_time_at(const nx_domain_clock *clock, int64_t utc, int64_t *logical) {
  *logical = utc;
  return timeless(clock);
}
nx_error *nx_domain_clock_wall_duration_until(const nx_domain_clock *clock, int64_t utc, int64_t target, uint64_t *wait_nanos) {
  *wait_nanos = target > utc ? (uint64_t)target - (uint64_t)utc : 0;
  return timeless(clock);
}
nx_error *nx_domain_clock_admission_window(const nx_domain_clock *clock, int64_t utc, bool *has_window, int64_t *earliest_center,
    int64_t *latest_center) {
  *has_window = clock->state == NX_CLOCK_PACED;
  if (*has_window) {
    *latest_center = utc / 100000000 * 100000000;
    *earliest_center = *latest_center - 255 * 100000000LL;
  }
  return timeless(clock);
}
nx_error *nx_domain_clock_admits(const nx_domain_clock *clock, int64_t utc, int64_t event, bool *admitted) {
  *admitted = clock->state == NX_CLOCK_UNPACED || event <= utc;
  return timeless(clock);
}
nx_domain_clock *nx_domain_clock_retain(nx_domain_clock *clock) { return retained(clock); }
void nx_domain_clock_release(nx_domain_clock *clock) { unmade(clock, CLOCK); }

nx_fields *nx_fields_new(void) { return made(FIELDS, sizeof(nx_fields)); }
nx_error *nx_fields_add(nx_fields *fields, const uint8_t *name, size_t name_len, int32_t type, uint32_t length, bool nullable,
    bool sensitive) {
  (void)name, (void)type, (void)length, (void)nullable, (void)sensitive;
  fields->levels = 1;
  return name_len == 0 ? fail(NX_ERROR_INVALID_ARGUMENT, false) : NULL;
}
nx_error *nx_fields_element(nx_fields *fields, int32_t type, uint32_t length) {
  (void)type, (void)length;
  return ++fields->levels > 33 ? fail(NX_ERROR_INVALID_ARGUMENT, false) : NULL;
}
void nx_fields_free(nx_fields *fields) { unmade(fields, FIELDS); }

static nx_error *opened(const uint8_t *name, size_t name_len, uint32_t batches, uint64_t bytes, const nx_cancel *cancel) {
  int code;
  pthread_mutex_lock(&lock);
  code = over(cancel);
  pthread_mutex_unlock(&lock);
  if (code != 0) {
    return fail(code, false);
  }
  if (batches == 0 || bytes == 0) {
    return fail(NX_ERROR_INVALID_ARGUMENT, false);
  }
  return name_len == 7 && memcmp(name, "refused", 7) == 0 ? fail(NX_ERROR_REJECTED, false) : NULL;
}
static void contract(const uint8_t **digest, size_t *digest_len) {
  static const uint8_t zeros[32];
  *digest = zeros;
  *digest_len = sizeof zeros;
}
static void grant(uint32_t *batches, uint64_t *bytes, uint32_t *max_batch_rows, uint64_t *max_batch_bytes) {
  *batches = CREDIT;
  *bytes = 1024;
  *max_batch_rows = 16;
  *max_batch_bytes = 512;
}
static void policy(nx_ack_window *window, uint64_t *outstanding, uint64_t *timeout, uint64_t *backoff, uint64_t *longest) {
  *window = NX_ACK_PARALLEL;
  *outstanding = 8;
  *timeout = 60;
  *backoff = 1;
  *longest = 2;
}
static nx_endpoint_state endpoint_state(bool closed) {
  return closed ? NX_ENDPOINT_CLOSED : reopen_reason != 0 ? NX_ENDPOINT_REOPEN_REQUIRED : NX_ENDPOINT_ACTIVE;
}
static bool reopened(nx_reopen_reason *reason, nx_open_refusal *refusal) {
  if (reopen_reason == 0) {
    return false;
  }
  *reason = (nx_reopen_reason)reopen_reason;
  if (reopen_reason == NX_REOPEN_REFUSED) {
    *refusal = NX_OPEN_SCHEMA_MISMATCH;
  }
  return true;
}

nx_error *nx_session_open_ingestor(const nx_session *session, const uint8_t *domain, size_t domain_len, const uint8_t *ingestor,
    size_t ingestor_len, const nx_fields *fields, uint32_t batches, uint64_t bytes, const nx_cancel *cancel, nx_producer **out) {
  nx_error *error = opened(ingestor, ingestor_len, batches, bytes, cancel);
  (void)session, (void)domain, (void)domain_len, (void)fields;
  if (error == NULL) {
    *out = made(PRODUCER, sizeof(nx_producer));
  }
  return error;
}
nx_error *nx_producer_schema(const nx_producer *producer, nx_schema **out) {
  (void)producer;
  *out = made(SCHEMA, sizeof(nx_schema));
  return NULL;
}
uint64_t nx_producer_generation(const nx_producer *producer) {
  (void)producer;
  return 1;
}
void nx_producer_contract(const nx_producer *producer, const uint8_t **digest, size_t *digest_len) {
  (void)producer;
  contract(digest, digest_len);
}
void nx_producer_grant(const nx_producer *producer, uint32_t *batches, uint64_t *bytes, uint32_t *max_batch_rows,
    uint64_t *max_batch_bytes) {
  (void)producer;
  grant(batches, bytes, max_batch_rows, max_batch_bytes);
}
void nx_producer_policy(const nx_producer *producer, nx_ack_window *window, uint64_t *outstanding, uint64_t *ack_timeout_nanos,
    uint64_t *retry_backoff_nanos, uint64_t *retry_max_backoff_nanos) {
  (void)producer;
  policy(window, outstanding, ack_timeout_nanos, retry_backoff_nanos, retry_max_backoff_nanos);
}
nx_admission nx_producer_admission(const nx_producer *producer) {
  (void)producer;
  return NX_ADMISSION_OPEN;
}
nx_endpoint_state nx_producer_state(const nx_producer *producer) { return endpoint_state(producer->closed); }
bool nx_producer_reopen_reason(const nx_producer *producer, nx_reopen_reason *reason, nx_open_refusal *refusal) {
  (void)producer;
  return reopened(reason, refusal);
}
nx_error *nx_producer_submit(const nx_producer *producer, const nx_batch *batch, const nx_cancel *cancel, uint64_t *submission) {
  int code, held, index;
  if (batch->head.references <= 0) {
    bad_frees++;
  }
  pthread_mutex_lock(&lock);
  for (;;) {
    held = 0;
    for (index = 0; index < SUBMISSIONS; index++) {
      held += submissions[index].held;
    }
    code = over(cancel);
    if (code == 0 && producer->closed) {
      code = NX_ERROR_CLOSED;
    }
    if (code == 0 && reopen_reason != 0) {
      code = NX_ERROR_REOPEN_REQUIRED;
    }
    if (code != 0 || held < CREDIT) {
      break;
    }
    pause_for(cancel);
  }
  if (code == 0) {
    *submission = ++last_submission;
    if (last_submission >= SUBMISSIONS) {
      abort(); /* Rather than write behind them. */
    }
    submissions[last_submission].held = true;
  }
  pthread_mutex_unlock(&lock);
  return code == 0 ? NULL : fail(code, false);
}
nx_error *nx_producer_submit_ipc(const nx_producer *producer, const uint8_t *ipc, size_t ipc_len, const nx_cancel *cancel,
    uint64_t *submission) {
  nx_batch *batch;
  nx_error *error;
  (void)ipc;
  if (ipc_len == 0) {
    return fail(NX_ERROR_INVALID_ARGUMENT, false);
  }
  batch = made(BATCH, sizeof *batch);
  error = nx_producer_submit(producer, batch, cancel, submission);
  nx_batch_release(batch);
  return error;
}
static nx_submission_outcome *taken(uint64_t submission) {
  nx_submission_outcome *outcome = made(SUBMISSION_OUTCOME, sizeof *outcome);
  outcome->result = submissions[submission].result;
  outcome->cause = submissions[submission].cause;
  return outcome;
}
nx_error *nx_producer_rejoin(const nx_producer *producer, uint64_t submission, const nx_cancel *cancel,
    nx_submission_outcome **out) {
  int code;
  (void)producer;
  pthread_mutex_lock(&lock);
  for (;;) {
    code = over(cancel);
    if (submission >= SUBMISSIONS || !submissions[submission].held) {
      code = NX_ERROR_INVALID_ARGUMENT;
    }
    if (code != 0 || submissions[submission].resolved) {
      break;
    }
    pause_for(cancel);
  }
  if (code == 0) {
    submissions[submission].held = false;
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  if (code == 0) {
    *out = taken(submission);
  }
  return code == 0 ? NULL : fail(code, false);
}
nx_error *nx_producer_pending(const nx_producer *producer, uint64_t *identities, bool *resolved, size_t capacity, size_t *count) {
  uint64_t index;
  (void)producer;
  *count = 0;
  pthread_mutex_lock(&lock);
  for (index = 0; index < SUBMISSIONS; index++) {
    if (submissions[index].held) {
      if (*count < capacity) {
        identities[*count] = index;
        resolved[*count] = submissions[index].resolved;
      }
      ++*count;
    }
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}
nx_error *nx_producer_release(const nx_producer *producer, uint64_t submission, nx_submission_outcome **out) {
  bool held, resolved;
  (void)producer;
  pthread_mutex_lock(&lock);
  held = submission < SUBMISSIONS && submissions[submission].held;
  resolved = held && submissions[submission].resolved;
  if (held) {
    submissions[submission].held = false;
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  if (!held) {
    return fail(NX_ERROR_INVALID_ARGUMENT, false);
  }
  *out = resolved ? taken(submission) : NULL;
  return NULL;
}
nx_error *nx_producer_close(const nx_producer *producer, const nx_cancel *cancel) {
  int code;
  ((nx_producer *)producer)->closed = true;
  pthread_mutex_lock(&lock);
  code = over(cancel);
  pthread_mutex_unlock(&lock);
  return code == 0 ? NULL : fail(code, false);
}
void nx_producer_free(nx_producer *producer) { unmade(producer, PRODUCER); }
nx_submission_result nx_submission_outcome_result(const nx_submission_outcome *outcome) {
  return (nx_submission_result)outcome->result;
}
void nx_submission_outcome_message(const nx_submission_outcome *outcome, const uint8_t **message, size_t *message_len) {
  text(outcome->result == NX_SUBMISSION_COMPLETED ? "" : "why not", message, message_len);
}
static nx_error *cause(const nx_submission_outcome *outcome, bool there, int value, int *place) {
  if (outcome->head.references <= 0) {
    bad_frees++;
  }
  if (!there) {
    return fail(NX_ERROR_TYPE, false);
  }
  *place = value;
  return NULL;
}
nx_error *nx_submission_outcome_refusal(const nx_submission_outcome *outcome, nx_submission_refusal *refusal) {
  /* A cause of ten and more is that defect of an invalid batch. */
  int value = outcome->cause >= 10 ? NX_REFUSAL_INVALID_BATCH : outcome->cause;
  return cause(outcome, outcome->result == NX_SUBMISSION_NOT_ADMITTED, value, (int *)refusal);
}
nx_error *nx_submission_outcome_defect(const nx_submission_outcome *outcome, nx_batch_defect *defect) {
  return cause(outcome, outcome->cause >= 10, outcome->cause - 10, (int *)defect);
}
nx_error *nx_submission_outcome_failure(const nx_submission_outcome *outcome, nx_processing_failure *failure) {
  return cause(outcome, outcome->result == NX_SUBMISSION_PROCESSING_FAILED, outcome->cause, (int *)failure);
}
nx_error *nx_submission_outcome_uncertainty(const nx_submission_outcome *outcome, nx_submission_uncertainty *uncertainty) {
  return cause(outcome, outcome->result == NX_SUBMISSION_OUTCOME_UNKNOWN, outcome->cause, (int *)uncertainty);
}
void nx_submission_outcome_free(nx_submission_outcome *outcome) { unmade(outcome, SUBMISSION_OUTCOME); }

nx_error *nx_session_subscribe_emitter(const nx_session *session, const uint8_t *domain, size_t domain_len, const uint8_t *emitter,
    size_t emitter_len, const nx_fields *fields, uint32_t batches, uint64_t bytes, const nx_cancel *cancel, nx_consumer **out) {
  nx_error *error = opened(emitter, emitter_len, batches, bytes, cancel);
  (void)session, (void)domain, (void)domain_len, (void)fields;
  if (error == NULL) {
    *out = made(CONSUMER, sizeof(nx_consumer));
  }
  return error;
}
nx_error *nx_consumer_schema(const nx_consumer *consumer, nx_schema **out) {
  (void)consumer;
  *out = made(SCHEMA, sizeof(nx_schema));
  return NULL;
}
uint64_t nx_consumer_generation(const nx_consumer *consumer) {
  (void)consumer;
  return 1;
}
void nx_consumer_contract(const nx_consumer *consumer, const uint8_t **digest, size_t *digest_len) {
  (void)consumer;
  contract(digest, digest_len);
}
void nx_consumer_grant(const nx_consumer *consumer, uint32_t *batches, uint64_t *bytes, uint32_t *max_batch_rows,
    uint64_t *max_batch_bytes) {
  (void)consumer;
  grant(batches, bytes, max_batch_rows, max_batch_bytes);
}
void nx_consumer_policy(const nx_consumer *consumer, nx_ack_window *window, uint64_t *outstanding, uint64_t *ack_timeout_nanos,
    uint64_t *retry_backoff_nanos, uint64_t *retry_max_backoff_nanos) {
  (void)consumer;
  policy(window, outstanding, ack_timeout_nanos, retry_backoff_nanos, retry_max_backoff_nanos);
}
nx_endpoint_state nx_consumer_state(const nx_consumer *consumer) { return endpoint_state(consumer->closed); }
bool nx_consumer_reopen_reason(const nx_consumer *consumer, nx_reopen_reason *reason, nx_open_refusal *refusal) {
  (void)consumer;
  return reopened(reason, refusal);
}
nx_error *nx_consumer_next(const nx_consumer *consumer, const nx_cancel *cancel, nx_delivery **out) {
  int code;
  pthread_mutex_lock(&lock);
  for (;;) {
    code = over(cancel);
    if (consumer->closed) {
      code = NX_ERROR_CLOSED;
    } else if (reopen_reason != 0) {
      code = NX_ERROR_REOPEN_REQUIRED;
    } else if (interrupted) {
      interrupted = false;
      code = NX_ERROR_INTERRUPTED;
    }
    if (code != 0 || deliveries != NULL) {
      break;
    }
    pause_for(cancel);
  }
  if (code == 0) {
    *out = deliveries;
    deliveries = deliveries->next;
  }
  pthread_mutex_unlock(&lock);
  return code == 0 ? NULL : fail(code, false);
}
nx_error *nx_consumer_close(const nx_consumer *consumer, const nx_cancel *cancel) {
  int code;
  pthread_mutex_lock(&lock);
  ((nx_consumer *)consumer)->closed = true;
  code = over(cancel);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return code == 0 ? NULL : fail(code, false);
}
void nx_consumer_free(nx_consumer *consumer) { unmade(consumer, CONSUMER); }

void nx_delivery_identity(const nx_delivery *delivery, const uint8_t **identity, size_t *identity_len) {
  *identity = delivery->identity;
  *identity_len = 16;
}
void nx_delivery_reference(const nx_delivery *delivery, const uint8_t **reference, size_t *reference_len) {
  *reference = delivery->identity;
  *reference_len = 16;
}
void nx_delivery_source_relay(const nx_delivery *delivery, const uint8_t **name, size_t *name_len) {
  (void)delivery;
  text("relay", name, name_len);
}
bool nx_delivery_branch_fingerprint(const nx_delivery *delivery, const uint8_t **fingerprint, size_t *fingerprint_len) {
  (void)delivery;
  contract(fingerprint, fingerprint_len);
  return true;
}
uint32_t nx_delivery_members(const nx_delivery *delivery) { return delivery->rows; }
int64_t nx_delivery_execution_now(const nx_delivery *delivery) {
  (void)delivery;
  return -1;
}
void nx_delivery_ipc(const nx_delivery *delivery, const uint8_t **ipc, size_t *ipc_len) {
  if (delivery->head.references <= 0) {
    bad_frees++;
  }
  text("the stream", ipc, ipc_len);
}
nx_error *nx_delivery_batch(const nx_delivery *delivery, nx_batch **out) {
  *out = made(BATCH, sizeof(nx_batch));
  (*out)->rows = delivery->rows;
  return NULL;
}
static nx_error *settle(const nx_delivery *delivery, const nx_cancel *cancel, nx_settlement *settlement) {
  bool waits = settle_waits;
  int code;
  if (delivery->head.references <= 0) {
    bad_frees++;
  }
  settle_waits = false;
  if (waits) {
    ((nx_delivery *)delivery)->settled = true;
    return wait_for_token(cancel, false);
  }
  pthread_mutex_lock(&lock);
  code = over(cancel);
  executed++;
  pthread_mutex_unlock(&lock);
  if (code != 0) {
    return fail(code, false);
  }
  if (settlement_answer >= 100) {
    return fail(settlement_answer - 100, false);
  }
  *settlement = delivery->settled ? NX_SETTLEMENT_STALE_REFERENCE : (nx_settlement)settlement_answer;
  ((nx_delivery *)delivery)->settled = true;
  return NULL;
}
nx_error *nx_delivery_ack(const nx_delivery *delivery, const nx_cancel *cancel, nx_settlement *settlement) {
  return settle(delivery, cancel, settlement);
}
nx_error *nx_delivery_retry(const nx_delivery *delivery, const nx_cancel *cancel, nx_settlement *settlement) {
  return settle(delivery, cancel, settlement);
}
nx_error *nx_delivery_reject(const nx_delivery *delivery, const uint8_t *reason, size_t reason_len, const nx_cancel *cancel,
    nx_settlement *settlement) {
  (void)reason;
  return reason_len == 0 || reason_len > 1024 ? fail(NX_ERROR_INVALID_ARGUMENT, false) : settle(delivery, cancel, settlement);
}
nx_delivery *nx_delivery_retain(nx_delivery *delivery) { return retained(delivery); }
void nx_delivery_release(nx_delivery *delivery) { unmade(delivery, DELIVERY); }

size_t nx_batch_row_count(const nx_batch *batch) { return batch->rows; }
nx_error *nx_batch_schema(const nx_batch *batch, nx_schema **out) {
  (void)batch;
  *out = made(SCHEMA, sizeof(nx_schema));
  return NULL;
}
nx_error *nx_batch_ipc(const nx_batch *batch, const uint8_t **ipc, size_t *ipc_len) {
  if (batch->head.references <= 0) {
    bad_frees++;
  }
  text("the stream", ipc, ipc_len);
  return NULL;
}
nx_error *nx_batch_cells(const nx_batch *batch, size_t column, size_t level, size_t *cells) {
  (void)column, (void)level;
  *cells = batch->rows;
  return NULL;
}
nx_error *nx_batch_states(const nx_batch *batch, size_t column, uint8_t *states, size_t states_len) {
  size_t row;
  (void)batch;
  for (row = 0; row < states_len; row++) {
    states[row] = column == 1 && row % 2 == 1 ? NX_CELL_NULL : NX_CELL_VALUE;
  }
  return NULL;
}
nx_error *nx_batch_offsets(const nx_batch *batch, size_t column, size_t level, uint64_t *offsets, size_t offsets_len) {
  (void)batch, (void)column, (void)level, (void)offsets, (void)offsets_len;
  return fail(NX_ERROR_TYPE, false);
}
nx_error *nx_batch_fixed(const nx_batch *batch, size_t column, size_t level, void *values, size_t values_len) {
  size_t row;
  (void)batch, (void)level;
  if (column != 0) {
    return fail(NX_ERROR_TYPE, false);
  }
  for (row = 0; row < values_len / 4; row++) {
    ((uint32_t *)values)[row] = (uint32_t)row + 1;
  }
  return NULL;
}
nx_error *nx_batch_varlen(const nx_batch *batch, size_t column, size_t level, uint64_t *offsets, size_t offsets_len, uint8_t *data,
    size_t data_capacity, size_t *data_len) {
  const char *word = column == 1 ? "name" : "\xff";
  size_t row;
  (void)level, (void)offsets_len;
  *data_len = batch->rows * strlen(word);
  if (data == NULL) {
    return NULL;
  }
  if (data_capacity < *data_len) {
    return fail(NX_ERROR_INVALID_ARGUMENT, false);
  }
  for (row = 0; row <= batch->rows; row++) {
    offsets[row] = row * strlen(word);
    if (row < batch->rows) {
      memcpy(data + row * strlen(word), word, strlen(word));
    }
  }
  return NULL;
}
nx_batch *nx_batch_retain(nx_batch *batch) { return retained(batch); }
void nx_batch_release(nx_batch *batch) { unmade(batch, BATCH); }
nx_error *nx_batch_builder_new(const nx_schema *schema, size_t rows, nx_batch_builder **out) {
  if (schema->head.references <= 0) {
    bad_frees++;
  }
  *out = made(BUILDER, sizeof(nx_batch_builder));
  (*out)->rows = rows;
  return NULL;
}
nx_error *nx_batch_builder_states(nx_batch_builder *builder, size_t column, const uint8_t *states, size_t states_len) {
  (void)column, (void)states;
  return states_len == builder->rows ? NULL : fail(NX_ERROR_INVALID_ARGUMENT, false);
}
nx_error *nx_batch_builder_offsets(nx_batch_builder *builder, size_t column, size_t level, const uint64_t *offsets,
    size_t offsets_len) {
  (void)builder, (void)column, (void)level, (void)offsets, (void)offsets_len;
  return NULL;
}
nx_error *nx_batch_builder_fixed(nx_batch_builder *builder, size_t column, size_t level, const void *values, size_t values_len) {
  (void)column, (void)level, (void)values;
  return values_len == builder->rows * 4 ? NULL : fail(NX_ERROR_INVALID_ARGUMENT, false);
}
nx_error *nx_batch_builder_varlen(nx_batch_builder *builder, size_t column, size_t level, const uint64_t *offsets,
    size_t offsets_len, const uint8_t *data, size_t data_len) {
  (void)column, (void)level, (void)data;
  return offsets_len == builder->rows + 1 && offsets[builder->rows] == data_len ? NULL : fail(NX_ERROR_INVALID_ARGUMENT, false);
}
nx_error *nx_batch_builder_finish(nx_batch_builder *builder, nx_batch **out) {
  *out = made(BATCH, sizeof(nx_batch));
  (*out)->rows = builder->rows;
  return NULL;
}
void nx_batch_builder_free(nx_batch_builder *builder) { unmade(builder, BUILDER); }
