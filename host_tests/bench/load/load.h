/* What the parts of the load generator share. */
#ifndef LOAD_H
#define LOAD_H

#include "link.h"

enum { STAMP = 16, MAX_LATENCIES = 1 << 20 };

/* window: unacknowledged messages of a publisher. flight: messages that are not yet delivered, in all; bounds what a
   broker has to hold, and with it what it may drop at QoS 0. pairs: each publisher has its own subscriber.
   topics: of each publisher, in turn, with messages of `size` to `largest` bytes. mixed: every other publisher is at
   QoS 0, and all publish equally often. */
extern struct options {
    int publishers, subscribers, qos, window, flight, size, pairs, wildcard, persistent, rate, connections, messages;
    int keep_alive, patience, topics, largest, mixed;
    double seconds, warm;
} options;

extern struct tally {
    uint64_t published, asked, acknowledged, delivered, missing, repeated, wrong, ready, pongs;
} tally;

extern struct latencies {
    bool wanted;
    size_t count;
    uint32_t ns[MAX_LATENCIES];
} latencies;

/* Of this run's topics and client identifiers. */
extern char prefix[64];

/* Of what a publisher sends. */
int qos_of(int publisher);
void topic_of(const struct link *link, int topic_number, char *topic, size_t size);
void publish(struct link *link);

#endif
