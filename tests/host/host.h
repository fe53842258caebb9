/* What the hosts of the C interface share: checks that end the program with one line, and running a command. */
#ifndef HOST_H
#define HOST_H

#include "nervix_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MILLIS 120000

static inline void fail(int line, const char *what) {
  fprintf(stderr, "host: line %d: %s\n", line, what);
  exit(1);
}

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fail(__LINE__, #condition); \
    } \
  } while (0)

/* A text literal as pointer and length, without its terminator. */
#define TEXT(literal) (const uint8_t *)(literal), sizeof(literal) - 1

static inline void succeed(int line, nx_error *error) {
  if (error != NULL) {
    const uint8_t *message = NULL;
    size_t message_len = 0;
    nx_error_message(error, &message, &message_len);
    fprintf(stderr, "host: line %d: error %d: %.*s\n", line, (int)nx_error_kind_of(error), (int)message_len, (const char *)message);
    nx_error_free(error);
    exit(1);
  }
}

#define SUCCEED(call) succeed(__LINE__, (call))

/* Checks that a call failed as `kind`, that its message is one line, and frees the error. True when it names a reference. */
static inline bool expect(int line, nx_error *error, nx_error_kind kind) {
  const uint8_t *message = NULL, *reference = NULL;
  size_t message_len = 0, reference_len = 0;
  bool named;
  if (error == NULL) {
    fail(line, "the call succeeded");
  }
  nx_error_message(error, &message, &message_len);
  if (nx_error_kind_of(error) != kind) {
    fprintf(stderr, "host: line %d: error %d, not %d: %.*s\n", line, (int)nx_error_kind_of(error), (int)kind, (int)message_len,
        (const char *)message);
    exit(1);
  }
  if (message_len == 0 || memchr(message, '\n', message_len) != NULL) {
    fail(line, "an error's message is one line");
  }
  named = nx_error_execution_reference(error, &reference, &reference_len);
  if (named && (reference_len == 0 || reference_len > 128)) {
    fail(line, "a reference is 1 to 128 bytes");
  }
  nx_error_free(error);
  return named;
}

#define EXPECT(kind, call) expect(__LINE__, (call), (kind))

static inline bool is_text(const uint8_t *text, size_t text_len, const char *wanted) {
  return text_len == strlen(wanted) && memcmp(text, wanted, text_len) == 0;
}

static inline nx_cancel *patience(void) {
  nx_cancel *cancel = NULL;
  SUCCEED(nx_cancel_with_deadline(PATIENCE_MILLIS, &cancel));
  return cancel;
}

/* Prepares and runs one command once. */
static inline nx_outcome *run(nx_session *session, const char *query) {
  nx_execution *execution = NULL;
  nx_outcome *outcome = NULL;
  nx_cancel *cancel = patience();
  SUCCEED(nx_session_prepare(session, (const uint8_t *)query, strlen(query), NULL, &execution));
  SUCCEED(nx_session_execute(session, execution, cancel, &outcome));
  nx_execution_free(execution);
  nx_cancel_free(cancel);
  return outcome;
}

/* Runs one command, which must complete. */
static inline void command(nx_session *session, const char *query) {
  nx_outcome *outcome = run(session, query);
  CHECK(nx_outcome_disposition(outcome) == NX_DISPOSITION_COMPLETED);
  nx_outcome_free(outcome);
}

#endif
