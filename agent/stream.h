/*
 * A stream is one command: its process, three pipes, credits, and what is still owed to the host.
 *
 * Life: claimed by spawn -> STARTED or ERROR -> DATA ... -> EXITED, EOF(1), EOF(2) in any order -> free.
 * Slots are static: once a command runs, nothing here allocates, so memory pressure breaks nothing.
 */
#pragma once

#include "frame.h"

#include <sys/resource.h>

#define STREAMS_MAX 1024u

struct output {
    int fd; /* -1 after EOF */
    uint64_t credit;
    uint32_t owed; /* bytes that were in the pipe when the leader was reaped and precede EXITED */
};

struct input {
    int fd;              /* -1: /dev/null, or closed by the host or by the command */
    bool ended;          /* by the host */
    uint32_t credit;     /* what the host may still send */
    uint32_t returning;  /* taken from the host but not given back as credit yet */
    uint8_t *held;       /* STDIN_WINDOW bytes; what the pipe did not take yet is head..tail */
    uint32_t head, tail;
};

struct stream {
    uint32_t id; /* 0: the slot is free */
    pid_t pid;
    int status_fd; /* the child's report until exec closed it, then -1 */
    bool reaped, exited_sent;
    uint8_t exited[26]; /* payload of EXITED, valid once reaped */
    struct output out[2]; /* stdout, stderr */
    struct input in;
};

/*
 * spawn.c, for a START of a new id: STARTED or ERROR follows, at once or from the loop. Returns what is wrong
 * with the frame, or NULL. spawn_open: once, at start.
 */
void spawn_open(void);
const char *spawn(const struct frame *frame);

/* stream.c: the table. claim: NULL when all slots are in use. at and find: NULL when there is none. */
uint32_t stream_count(void);
struct stream *stream_claim(uint32_t id);
struct stream *stream_at(uint32_t slot);
struct stream *stream_find(uint32_t id);
uint32_t stream_slot(const struct stream *stream);
void stream_release(struct stream *stream); /* closes whatever is open */
void stream_open(void);
void stream_trim(void);
/* Sends ERROR for id. */
void stream_error(uint32_t id, enum stage stage, int error);

/* stream.c: from the host, and from the kernel. */
void stream_credit(struct stream *stream, unsigned output, uint32_t bytes);
void stream_signal(struct stream *stream, int signo, enum scope scope);
void stream_status_event(struct stream *stream);
void stream_output_event(struct stream *stream, unsigned output);
void stream_unblocked(void); /* the channel to the host has room again */
/* Any child of the agent was reaped, a leader or an orphan. */
void stream_reaped(pid_t pid, int status, const struct rusage *usage);

/*
 * input.c. DATA goes straight from the channel's buffer to the pipe; what the pipe refuses is held, at most
 * STDIN_WINDOW bytes because the host may not send more than its credit. input_open takes over fd, the
 * writing end, or returns false with errno.
 */
bool input_open(struct stream *stream, int fd);
void input_close(struct stream *stream);
void input_data(struct stream *stream, const uint8_t *bytes, uint32_t count);
void input_eof(struct stream *stream);
void input_started(struct stream *stream); /* nothing, and so no CREDIT, may precede STARTED */
void input_event(struct stream *stream);

/*
 * reap.c: the agent is the parent of every leader and of every orphan. reap_open returns the signalfd(2).
 * reap_some reaps a bounded number, so that a storm of dying orphans leaves turns for the channel, and tells
 * whether more may wait.
 */
int reap_open(void);
void reap_event(void);
bool reap_some(void);
