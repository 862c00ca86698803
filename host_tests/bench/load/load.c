/* The load generator of the broker's bench: one thread, one epoll, and every delivery checked.

   load MODE PORT PID KEY=VALUE...        PID: of the broker, whose CPU time the kernel tells
   modes: flow     publishers and subscribers for `seconds`, after `warm` seconds that do not count
          connect  `connections` at once
          offline  `messages` for a subscriber that is away, then its return
   LOAD_USER and LOAD_PASSWORD in the environment go into every CONNECT.

   The result is one JSON object on standard output. CPU time is the broker's process CPU clock (clock_getcpuclockid:
   all its threads, also ended ones; exact when it sleeps, else to a tick); memory is its resident set. A message
   carries its publisher's number, its own number and the time it was made: a gap, a repetition, a message of the wrong
   size or QoS, an acknowledgement nobody waits for are counted, and the bench takes no figure from such a run. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { OUT_AHEAD = 64 * 1024 };

static int port;
static pid_t broker;
static clockid_t broker_clock;
static struct link *publishers, *subscribers;

static double now(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) != 0)
        fail("the broker (process %d) is gone", (int)broker);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static long resident_bytes(void) {
    char path[64];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)broker);
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1)
        fail("cannot read %s", path);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Progress */

/* How many subscribers a message has. */
static uint64_t fan_out(void) { return options.pairs ? 1 : (uint64_t)options.subscribers; }

static bool may_publish(const struct link *link) {
    return link->out_size - link->out_sent <= OUT_AHEAD &&
           (qos_of(link->index) == 0 || link->unacknowledged < options.window);
}

/* Publish as much as windows and what is on its way allow; `most` in all. */
static void fill(uint64_t most) {
    uint64_t on_the_way = tally.published * fan_out() - tally.delivered - tally.missing;
    uint64_t allowed = (uint64_t)options.flight * fan_out();
    static int turn; /* of the publishers that publish equally often */
    while (options.mixed && most > 0 && on_the_way < allowed && may_publish(&publishers[turn])) {
        publish(&publishers[turn]);
        turn = (turn + 1) % options.publishers;
        most--;
        on_the_way += fan_out();
    }
    bool more = !options.mixed;
    while (more && most > 0 && on_the_way < allowed) {
        more = false;
        for (int i = 0; i < options.publishers && most > 0 && on_the_way < allowed; i++) {
            struct link *link = &publishers[i];
            if (!may_publish(link))
                continue;
            publish(link);
            most--;
            on_the_way += fan_out();
            more = true;
        }
    }
    for (int i = 0; i < options.publishers; i++)
        if (publishers[i].out_sent < publishers[i].out_size && !publishers[i].writable_watched)
            link_flush(&publishers[i]);
}

static uint64_t progress(void) {
    return tally.acknowledged + tally.delivered + tally.missing + tally.repeated + tally.ready + tally.pongs;
}

static bool all_delivered(void) {
    return tally.delivered + tally.missing >= tally.published * fan_out() &&
           tally.acknowledged == tally.asked;
}

/* Dispatch until `done`. Returns false when nothing has come for `patience` seconds. */
static bool wait_for(bool (*done)(void)) {
    uint64_t before = progress(), ticks = 0;
    double since = now(CLOCK_MONOTONIC);
    while (!done()) {
        events_wait(100, &ticks);
        if (progress() != before) {
            before = progress();
            since = now(CLOCK_MONOTONIC);
        } else if (now(CLOCK_MONOTONIC) - since > options.patience) {
            return false;
        }
    }
    return true;
}

static uint64_t wanted_ready, wanted_pongs;
static bool is_ready(void) { return tally.ready >= wanted_ready; }
static bool has_answered(void) { return tally.pongs >= wanted_pongs; }

/* The brokers answer PINGREQ behind all that came before it: then the acknowledgements are counted as well. */
static void settle(struct link *links, int count) {
    wanted_pongs = tally.pongs + (uint64_t)count;
    for (int i = 0; i < count; i++)
        link_say(&links[i], PINGREQ);
    if (!wait_for(has_answered))
        fail("no PINGRESP within %d s", options.patience);
}

static struct link *make_links(int count, bool publish_too) {
    struct link *links = calloc((size_t)count, sizeof *links);
    if (links == NULL)
        fail("out of memory");
    for (int i = 0; i < count; i++) {
        links[i] = (struct link){.fd = -1, .index = i, .publishes = publish_too, .clean_session = true};
        links[i].ids = calloc(65536, 1);
        links[i].expected = calloc((size_t)(options.publishers * options.topics), sizeof *links[i].expected);
        if (links[i].ids == NULL || links[i].expected == NULL)
            fail("out of memory");
    }
    return links;
}

static void enter(struct link *link, const char *role) {
    char client_id[96];
    snprintf(client_id, sizeof client_id, "%s-%s%d", prefix + strlen("bench/"), role, link->index);
    wanted_ready = tally.ready + 1;
    link_open(link, port);
    link_connect(link, client_id, options.keep_alive);
    if (!wait_for(is_ready))
        fail("no CONNACK within %d s", options.patience);
}

static void subscribe(struct link *link) {
    char topic_filter[96];
    if (options.wildcard)
        snprintf(topic_filter, sizeof topic_filter, "%s/+", prefix);
    else
        topic_of(link, 0, topic_filter, sizeof topic_filter);
    wanted_ready = tally.ready + 1;
    link_subscribe(link, topic_filter, options.qos);
    if (!wait_for(is_ready))
        fail("no SUBACK within %d s", options.patience);
}

static struct link *leaving;
static bool has_left(void) { return leaving->closed; }

static void leave(struct link *link) {
    leaving = link;
    link_say(link, DISCONNECT);
    if (!wait_for(has_left))
        fail("the broker does not close after DISCONNECT");
    link_close(link);
}

/* Nothing of a persistent session stays behind. */
static void forget(struct link *link, const char *role) {
    link->clean_session = true;
    enter(link, role);
    leave(link);
}

static void print_tally(void) {
    printf("\"published\":%llu,\"delivered\":%llu,\"missing\":%llu,\"repeated\":%llu,\"wrong\":%llu}\n",
           (unsigned long long)tally.published, (unsigned long long)tally.delivered,
           (unsigned long long)(tally.published * fan_out() - tally.delivered), (unsigned long long)tally.repeated,
           (unsigned long long)tally.wrong);
}

/* flow */

static int compare(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static double percentile_us(double fraction) {
    return latencies.count ? latencies.ns[(size_t)((double)(latencies.count - 1) * fraction)] / 1e3 : 0;
}

/* Publish for so long, then wait until everything has come. Returns false if something never came. */
static bool flow_for(double seconds) {
    double end = now(CLOCK_MONOTONIC) + seconds;
    uint64_t ticks = 0;
    if (options.rate)
        events_start_timer(1.0 / options.rate);
    do {
        fill(options.rate ? ticks : UINT64_MAX);
        ticks = 0;
        events_wait(20, &ticks);
    } while (now(CLOCK_MONOTONIC) < end);
    events_stop_timer();
    fill(ticks); /* due before the end: all there is of a run that a busy machine slept through */
    return wait_for(all_delivered);
}

static void flow(void) {
    publishers = make_links(options.publishers, true);
    subscribers = make_links(options.subscribers, false);
    for (int i = 0; i < options.subscribers; i++) {
        subscribers[i].clean_session = !options.persistent;
        enter(&subscribers[i], "s");
        subscribe(&subscribers[i]);
    }
    for (int i = 0; i < options.publishers; i++)
        enter(&publishers[i], "p");
    bool whole = flow_for(options.warm);
    settle(subscribers, options.subscribers);
    uint64_t delivered = tally.delivered;
    double cpu = now(broker_clock), begin = now(CLOCK_MONOTONIC);
    latencies.wanted = options.rate > 0;
    double own_cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    whole = whole && flow_for(options.seconds);
    double seconds = now(CLOCK_MONOTONIC) - begin;
    own_cpu = now(CLOCK_PROCESS_CPUTIME_ID) - own_cpu;
    settle(subscribers, options.subscribers);
    cpu = now(broker_clock) - cpu;
    qsort(latencies.ns, latencies.count, sizeof *latencies.ns, compare);
    printf("{\"counted\":%llu,\"seconds\":%.6f,\"cpu_us\":%.3f,\"load_cpu_us\":%.3f,\"p50_us\":%.2f,\"p99_us\":%.2f,",
           (unsigned long long)(tally.delivered - delivered), seconds, cpu * 1e6,
           own_cpu * 1e6, percentile_us(0.5), percentile_us(0.99));
    print_tally();
    for (int i = 0; i < options.publishers; i++)
        leave(&publishers[i]);
    for (int i = 0; i < options.subscribers; i++) {
        leave(&subscribers[i]);
        if (options.persistent)
            forget(&subscribers[i], "s");
    }
}

/* connect */

static void connect_many(void) {
    enum { AT_ONCE = 50 }; /* brokers have queues of 100 connections to accept; one more would wait for seconds */
    struct link first = {.fd = -1, .index = -1, .clean_session = true};
    struct link *links = calloc((size_t)options.connections, sizeof *links);
    if (links == NULL)
        fail("out of memory");
    enter(&first, "first"); /* what a broker does once for all connections is not theirs */
    long resident = resident_bytes();
    double cpu = now(broker_clock), begin = now(CLOCK_MONOTONIC);
    uint64_t before = tally.ready;
    for (int i = 0; i < options.connections; i++) {
        char client_id[96];
        links[i] = (struct link){.fd = -1, .index = i, .clean_session = true};
        snprintf(client_id, sizeof client_id, "%s-c%d", prefix + strlen("bench/"), i);
        link_open(&links[i], port);
        link_connect(&links[i], client_id, options.keep_alive);
        wanted_ready = before + (uint64_t)(i < AT_ONCE ? 0 : i - AT_ONCE);
        if (!wait_for(is_ready))
            fail("no CONNACK within %d s", options.patience);
    }
    wanted_ready = before + (uint64_t)options.connections;
    if (!wait_for(is_ready))
        fail("no CONNACK within %d s", options.patience);
    double seconds = now(CLOCK_MONOTONIC) - begin;
    settle(&first, 1);
    cpu = now(broker_clock) - cpu;
    printf("{\"counted\":%d,\"seconds\":%.6f,\"cpu_us\":%.3f,\"resident_bytes\":%ld,", options.connections, seconds,
           cpu * 1e6, resident_bytes() - resident);
    print_tally();
    for (int i = 0; i < options.connections; i++) {
        link_say(&links[i], DISCONNECT);
        link_close(&links[i]);
    }
    leave(&first);
}

/* offline */

static bool all_acknowledged(void) {
    if (tally.published < (uint64_t)options.messages)
        fill((uint64_t)options.messages - tally.published);
    return tally.acknowledged == (uint64_t)options.messages;
}

static void offline(void) {
    options.publishers = options.subscribers = 1;
    options.flight = options.messages;
    publishers = make_links(1, true);
    subscribers = make_links(1, false);
    subscribers->clean_session = false;
    enter(subscribers, "s");
    subscribe(subscribers);
    leave(subscribers);
    enter(publishers, "p");
    double queue_cpu = now(broker_clock), begin = now(CLOCK_MONOTONIC);
    if (!wait_for(all_acknowledged))
        fail("%llu of %d messages acknowledged", (unsigned long long)tally.acknowledged, options.messages);
    double queue_seconds = now(CLOCK_MONOTONIC) - begin;
    settle(publishers, 1);
    queue_cpu = now(broker_clock) - queue_cpu;
    double cpu = now(broker_clock);
    begin = now(CLOCK_MONOTONIC);
    enter(subscribers, "s");
    bool whole = wait_for(all_delivered);
    double seconds = now(CLOCK_MONOTONIC) - begin;
    settle(subscribers, 1);
    cpu = now(broker_clock) - cpu;
    printf("{\"counted\":%llu,\"seconds\":%.6f,\"cpu_us\":%.3f,\"queue_seconds\":%.6f,\"queue_cpu_us\":%.3f,",
           (unsigned long long)tally.delivered, whole ? seconds : 0, cpu * 1e6, queue_seconds, queue_cpu * 1e6);
    print_tally();
    leave(publishers);
    leave(subscribers);
    forget(subscribers, "s");
}

/* The command line */

static void set_option(const char *argument) {
    const char *value = strchr(argument, '=');
    size_t length = value ? (size_t)(value - argument) : 0;
    struct { const char *name; int *number; double *fraction; } known[] = {
        {"publishers", &options.publishers, NULL}, {"subscribers", &options.subscribers, NULL},
        {"qos", &options.qos, NULL}, {"window", &options.window, NULL}, {"flight", &options.flight, NULL},
        {"size", &options.size, NULL}, {"pairs", &options.pairs, NULL}, {"wildcard", &options.wildcard, NULL},
        {"persistent", &options.persistent, NULL}, {"rate", &options.rate, NULL},
        {"connections", &options.connections, NULL}, {"messages", &options.messages, NULL},
        {"keep_alive", &options.keep_alive, NULL}, {"patience", &options.patience, NULL},
        {"level", &level, NULL},
        {"topics", &options.topics, NULL}, {"largest", &options.largest, NULL}, {"mixed", &options.mixed, NULL},
        {"seconds", NULL, &options.seconds}, {"warm", NULL, &options.warm}};
    for (size_t i = 0; value && i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == length && strncmp(known[i].name, argument, length) == 0) {
            if (known[i].number)
                *known[i].number = atoi(value + 1);
            else
                *known[i].fraction = atof(value + 1);
            return;
        }
    fail("unknown option %s", argument);
}

int main(int count, char **arguments) {
    if (count < 4)
        fail("usage: load flow|connect|offline PORT PID KEY=VALUE...");
    port = atoi(arguments[2]);
    broker = (pid_t)atoi(arguments[3]);
    for (int i = 4; i < count; i++)
        set_option(arguments[i]);
    if (level != 4 && level != 5)
        fail("level 4 is MQTT 3.1.1, level 5 is MQTT 5");
    if (options.largest < options.size)
        options.largest = options.size;
    if (options.topics < 1 || options.topics > 65535 || options.publishers > 65535 ||
        (options.topics > 1 && !options.wildcard))
        fail("1 to 65535 topics and publishers; many topics need a wildcard");
    if (options.size < STAMP || options.publishers < 1 || options.subscribers < 1 || options.window > 65535 ||
        (options.pairs && options.publishers != options.subscribers))
        fail("size at least %d; at least one publisher and subscriber; as many of each in pairs", STAMP);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (clock_getcpuclockid(broker, &broker_clock) != 0)
        fail("no process %d", (int)broker);
    snprintf(prefix, sizeof prefix, "bench/%d", (int)getpid());
    events_open();
    if (strcmp(arguments[1], "flow") == 0)
        flow();
    else if (strcmp(arguments[1], "connect") == 0)
        connect_many();
    else if (strcmp(arguments[1], "offline") == 0)
        offline();
    else
        fail("unknown mode %s", arguments[1]);
    return 0;
}
