/*
 * The channel to the host. From it, on fd 0: bytes to frames to the streams they concern (channel_*).
 *
 * To it, on fd 1 (out_*): small frames gather in a queue that is flushed once per turn of the loop, so that a
 * short command costs the host one or two reads. Large DATA goes from the read buffer to the pipe in one
 * writev(2). Only what a full pipe refuses is copied to the queue, and while it is there (out_blocked) no
 * command's output is read: the command blocks on its own pipe and the queue stays bounded.
 */
#pragma once

#include "frame.h"

/*
 * Makes the buffers and sends HELLO. listener is the seccomp listener, or -1. Until the host has answered with CONFINED nothing is
 * started; then the agent's copy of the listener is closed.
 */
void channel_open(int listener);
/* Takes what the pipe holds. The host's end being closed ends the agent. */
void channel_read(void);
/* Acts on the frames that are whole; true when it stopped because the output queue is full. */
bool channel_process(void);

void out_frame(uint32_t stream, enum kind kind, const void *payload, uint32_t length);
void out_data(uint32_t stream, uint8_t fd, const uint8_t *bytes, uint32_t count);
/*
 * Writes what the pipe takes. The host's end being closed ends the agent. STARTED and EOF alone are held for
 * up to a millisecond, because most often output or EXITED follow at once and every write wakes the host;
 * returns the milliseconds after which to call again, or -1.
 */
int out_flush(void);
void out_open(void);
/* The loop saw something on fd 1: room, or that the host closed its end. */
void out_event(void);
/* The pipe is full: wait for EPOLLOUT and read no output until then. */
bool out_blocked(void);
/* So much is waiting that no further host frames may be answered. */
bool out_full(void);

/* Give memory back to the kernel; for when the agent is idle. */
void channel_trim(void);
void out_trim(void);
