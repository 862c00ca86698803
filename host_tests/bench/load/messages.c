/* The messages of the load generator: made, acknowledged, and every delivery checked. */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options options = {.publishers = 1, .subscribers = 1, .window = 100, .flight = 4000, .size = 64, .seconds = 1,
                          .warm = 0.1, .connections = 2000, .messages = 10000, .keep_alive = 60, .patience = 10,
                          .topics = 1};
struct tally tally;
struct latencies latencies;
char prefix[64];

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* What the options say of a message */

int qos_of(int publisher) { return options.mixed && publisher % 2 == 0 ? 0 : options.qos; }

/* Each topic has a size of its own, so that sizes change from message to message. */
static size_t size_of(int topic_number) {
    return (size_t)(options.size + topic_number * 37 % (options.largest - options.size + 1));
}

/* What comes */

static uint64_t get(const uint8_t *at, int size) {
    uint64_t value = 0;
    while (size--)
        value = value << 8 | *at++;
    return value;
}

static void put(uint8_t *at, uint64_t value, int size) {
    while (size--)
        at[size] = (uint8_t)value, value >>= 8;
}

static void on_message(struct link *link, uint8_t first_byte, const uint8_t *body, size_t length) {
    int qos = first_byte >> 1 & 3, topic_number;
    size_t at = length < 2 ? length : 2 + get(body, 2);
    size_t head = at + (qos ? 2 : 0);
    if (level == 5 && head < length)
        head += 1 + body[head]; /* properties, less than 128 bytes of them */
    if (link->publishes || head + STAMP > length) {
        tally.wrong++;
        return;
    }
    int publisher = (int)get(body + head, 2);
    topic_number = (int)get(body + head + 2, 2);
    if (publisher >= options.publishers || (options.pairs && publisher != link->index) ||
        topic_number >= options.topics || qos != qos_of(publisher) || head + size_of(topic_number) != length) {
        tally.wrong++;
        return;
    }
    uint16_t packet_id = qos ? (uint16_t)get(body + at, 2) : 0;
    if (qos == 1)
        link_acknowledge(link, PUBACK, packet_id);
    else if (qos == 2)
        link_acknowledge(link, PUBREC, packet_id);
    if (qos == 2 && link->ids[packet_id] == RECEIVED) {
        tally.repeated++;
        return;
    }
    link->ids[packet_id] = qos == 2 ? RECEIVED : FREE;
    uint32_t number = (uint32_t)get(body + head + 4, 4);
    uint32_t *expected = &link->expected[publisher * options.topics + topic_number];
    if (number < *expected) {
        tally.repeated++;
        return;
    }
    tally.missing += number - *expected;
    tally.delivered++;
    *expected = number + 1;
    if (latencies.wanted && latencies.count < MAX_LATENCIES)
        latencies.ns[latencies.count++] = (uint32_t)(now_ns() - get(body + head + 8, 8));
}

static void on_acknowledgement(struct link *link, uint8_t first_byte, uint16_t packet_id) {
    uint8_t *state = &link->ids[packet_id];
    if (first_byte == PUBREL && !link->publishes) {
        *state = FREE;
        link_acknowledge(link, PUBCOMP, packet_id);
    } else if (first_byte == PUBREC && *state == SENT && options.qos == 2) {
        *state = RELEASED;
        link_acknowledge(link, PUBREL, packet_id);
    } else if ((first_byte == PUBACK && *state == SENT && options.qos == 1) ||
               (first_byte == PUBCOMP && *state == RELEASED)) {
        *state = FREE;
        link->unacknowledged--;
        tally.acknowledged++;
    } else {
        tally.wrong++;
    }
}

void topic_of(const struct link *link, int topic_number, char *topic, size_t size) {
    if (options.topics > 1)
        snprintf(topic, size, "%s/%d-%d", prefix, link->index, topic_number);
    else if (options.pairs || options.wildcard)
        snprintf(topic, size, "%s/%d", prefix, link->index);
    else
        snprintf(topic, size, "%s/all", prefix);
}

/* Whether an acknowledgement says yes; with MQTT 5 it may say more. */
static bool is_yes(const uint8_t *body, size_t length) {
    return length == 2 || (level == 5 && length > 2 && body[2] < 0x80);
}

void on_packet(struct link *link, uint8_t first_byte, const uint8_t *body, size_t length) {
    size_t properties = level == 5 ? 1 : 0; /* at least, in what has some */
    if ((first_byte & 0xF0) == PUBLISH) {
        on_message(link, first_byte, body, length);
    } else if (is_yes(body, length) && (first_byte == PUBACK || first_byte == PUBREC || first_byte == PUBREL ||
                                        first_byte == PUBCOMP)) {
        on_acknowledgement(link, first_byte, (uint16_t)get(body, 2));
    } else if (first_byte == CONNACK && length >= 2 + properties && (level == 5 || length == 2) && body[1] == 0) {
        tally.ready++;
    } else if (first_byte == CONNACK && length >= 2) {
        fail("the broker refused the connection with return code %d", body[1]);
    } else if (first_byte == SUBACK && length == 3 + properties && body[length - 1] == options.qos) {
        tally.ready++;
    } else if (first_byte == PINGRESP) {
        tally.pongs++;
    } else {
        fail("the broker sent an unexpected packet: first byte 0x%02x, %zu bytes", first_byte, length);
    }
}

/* What goes */

/* The PUBLISH that all messages of a topic are copies of; packet_id and the first bytes of the payload differ. */
struct template {
    uint8_t *packet;
    size_t size;
    uint32_t next_sequence;
};

static void make_template(struct link *link, int topic_number) {
    char topic[96];
    int qos = qos_of(link->index);
    topic_of(link, topic_number, topic, sizeof topic);
    size_t topic_length = strlen(topic);
    size_t length = 2 + topic_length + (qos ? 2 : 0) + (level == 5 ? 1 : 0) + size_of(topic_number);
    size_t head = length < 128 ? 2 : length < 16384 ? 3 : 4;
    struct template *template = &link->templates[topic_number];
    uint8_t *at = template->packet = malloc(head + length);
    if (at == NULL)
        fail("out of memory");
    template->size = head + length;
    *at++ = (uint8_t)(PUBLISH | qos << 1);
    for (size_t rest = length; head > 1; head--, rest >>= 7)
        *at++ = (uint8_t)((rest & 127) | (head > 2 ? 128 : 0));
    put(at, topic_length, 2);
    memcpy(at + 2, topic, topic_length);
    memset(at + 2 + topic_length, 'x', length - 2 - topic_length);
    if (level == 5)
        at[length - size_of(topic_number) - 1] = 0;
}

void publish(struct link *link) {
    if (link->templates == NULL && (link->templates = calloc((size_t)options.topics, sizeof *link->templates)) == NULL)
        fail("out of memory");
    int topic_number = link->topic_number++;
    if (link->topic_number == options.topics)
        link->topic_number = 0;
    struct template *template = &link->templates[topic_number];
    if (template->packet == NULL)
        make_template(link, topic_number);
    uint8_t *at = link_append(link, template->size);
    memcpy(at, template->packet, template->size);
    at += template->size - size_of(topic_number);
    if (qos_of(link->index)) {
        do
            link->last_id = (uint16_t)(link->last_id == 65535 ? 1 : link->last_id + 1);
        while (link->ids[link->last_id] != FREE);
        link->ids[link->last_id] = SENT;
        link->unacknowledged++;
        tally.asked++;
        put(at - (level == 5 ? 3 : 2), link->last_id, 2);
    }
    put(at, (uint64_t)link->index, 2);
    put(at + 2, (uint64_t)topic_number, 2);
    put(at + 4, template->next_sequence++, 4);
    put(at + 8, options.rate ? now_ns() : 0, 8);
    tally.published++;
}
