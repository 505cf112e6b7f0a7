/*
 * The agent's buffers: address space reserved once, at start, so that no guest pressure can refuse it later;
 * pages cost something only while they are used.
 */
#pragma once

#include "base.h"

/*
 * Reserves size bytes or ends the agent. Forked children get a copy only if inherited is true: what they do
 * not get costs no page faults at fork, and they see nothing of other commands.
 */
uint8_t *lazy_map(size_t size, bool inherited);

/* Gives most of the first *used bytes back and makes *used 0; cheap when they are few. */
void lazy_trim(uint8_t *buffer, size_t *used);
