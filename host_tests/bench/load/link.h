/* A non-blocking MQTT connection of the load generator: buffers, packets, and the event loop that moves them. */
#ifndef LINK_H
#define LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CONNECT = 0x10, CONNACK = 0x20, PUBLISH = 0x30, PUBACK = 0x40, PUBREC = 0x50, PUBREL = 0x62, PUBCOMP = 0x70,
       SUBSCRIBE = 0x82, SUBACK = 0x90, PINGREQ = 0xC0, PINGRESP = 0xD0, DISCONNECT = 0xE0 };

/* What a packet_id stands for, at the sender of a message and, QoS 2 only, at its receiver. */
enum id_state { FREE, SENT, RELEASED, RECEIVED };

/* Of the protocol: 4 for MQTT 3.1.1, or 5; then nothing has properties but a session that is to stay. */
extern int level;

struct link {
    int fd;
    int index;             /* among the publishers, or among the subscribers */
    bool publishes;
    bool clean_session;
    bool writable_watched; /* the kernel took less than there was */
    bool closed;
    uint8_t *in, *out;
    size_t in_size, in_capacity, out_sent, out_size, out_capacity;
    struct template *templates; /* of a publisher: for each topic, the PUBLISH that its messages are copies of */
    int topic_number;           /* of the next message */
    uint8_t *ids;          /* enum id_state for each packet_id */
    uint16_t last_id;
    int unacknowledged;
    uint32_t *expected; /* of a subscriber: the next number for each topic of each publisher */
};

/* The program's own: what a packet does. `body` is what follows the remaining length. */
void on_packet(struct link *link, uint8_t first_byte, const uint8_t *body, size_t length);

void events_open(void);
/* Wait at most `timeout_ms`, then read and dispatch. Adds the expirations of the timer, if one runs, to `*ticks`. */
void events_wait(int timeout_ms, uint64_t *ticks);
void events_start_timer(double interval_s);
void events_stop_timer(void);

void link_open(struct link *link, int port);
void link_close(struct link *link);
/* Room for `size` bytes at the end of what will be sent; the caller fills all of it. */
uint8_t *link_append(struct link *link, size_t size);
void link_flush(struct link *link);
void link_connect(struct link *link, const char *client_id, int keep_alive);
void link_subscribe(struct link *link, const char *topic_filter, int qos);
/* PUBACK, PUBREC, PUBREL, PUBCOMP. */
void link_acknowledge(struct link *link, uint8_t first_byte, uint16_t packet_id);
void link_say(struct link *link, uint8_t first_byte); /* PINGREQ, DISCONNECT */

/* One line on standard error; exits with 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
