#define _GNU_SOURCE
#include "link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { READ_SIZE = 256 * 1024, MAX_EVENTS = 256 };

static int events = -1, timer = -1;
int level = 4;

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

/* Events */

void events_open(void) {
    events = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (events < 0 || timer < 0 || epoll_ctl(events, EPOLL_CTL_ADD, timer, &event) != 0)
        fail("epoll or timerfd: %s", strerror(errno));
}

static void set_timer(double interval_s) {
    struct timespec interval = {(time_t)interval_s, (long)((interval_s - (time_t)interval_s) * 1e9)};
    struct itimerspec setting = {interval, interval};
    timerfd_settime(timer, 0, &setting, NULL);
}

void events_start_timer(double interval_s) { set_timer(interval_s); }

void events_stop_timer(void) { set_timer(0); }

static void watch(struct link *link, int operation, bool writable) {
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = link};
    if (epoll_ctl(events, operation, link->fd, &event) != 0)
        fail("epoll_ctl: %s", strerror(errno));
    link->writable_watched = writable;
}

static void dispatch(struct link *link) {
    size_t at = 0;
    while (link->in_size - at >= 2) {
        size_t length = 0, body = at + 1;
        int shift = 0;
        bool whole = false;
        while (body < link->in_size && shift < 28) {
            uint8_t digit = link->in[body++];
            length |= (size_t)(digit & 127) << shift;
            shift += 7;
            if (digit < 128) {
                whole = true;
                break;
            }
        }
        if (!whole && shift == 28)
            fail("the broker sent a remaining length of more than four bytes");
        if (!whole || link->in_size - body < length)
            break;
        on_packet(link, link->in[at], link->in + body, length);
        at = body + length;
    }
    link->in_size -= at;
    memmove(link->in, link->in + at, link->in_size);
}

static void read_link(struct link *link) {
    if (link->in_capacity - link->in_size < READ_SIZE) {
        link->in_capacity = link->in_size + READ_SIZE;
        link->in = realloc(link->in, link->in_capacity);
        if (link->in == NULL)
            fail("out of memory");
    }
    ssize_t size = recv(link->fd, link->in + link->in_size, READ_SIZE, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (size <= 0) {
        epoll_ctl(events, EPOLL_CTL_DEL, link->fd, NULL);
        link->closed = true;
        return;
    }
    link->in_size += (size_t)size;
    dispatch(link);
}

void events_wait(int timeout_ms, uint64_t *ticks) {
    struct epoll_event ready[MAX_EVENTS];
    int count = epoll_wait(events, ready, MAX_EVENTS, timeout_ms);
    for (int i = 0; i < count; i++) {
        struct link *link = ready[i].data.ptr;
        if (link == NULL) {
            uint64_t expirations = 0;
            if (read(timer, &expirations, sizeof expirations) == sizeof expirations)
                *ticks += expirations;
            continue;
        }
        if (link->fd < 0)
            continue; /* closed by an event before this one */
        if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            read_link(link);
        if (!link->closed)
            link_flush(link);
    }
}

/* One link */

void link_open(struct link *link, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1;
    link->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (link->fd < 0)
        fail("socket: %s", strerror(errno));
    setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(link->fd, (struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS)
        fail("connect to port %d: %s", port, strerror(errno));
    link->closed = false;
    link->in_size = link->out_sent = link->out_size = 0;
    watch(link, EPOLL_CTL_ADD, true);
}

void link_close(struct link *link) {
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    link->closed = true;
    free(link->in);
    free(link->out);
    link->in = link->out = NULL;
    link->in_size = link->in_capacity = link->out_sent = link->out_size = link->out_capacity = 0;
}

uint8_t *link_append(struct link *link, size_t size) {
    if (link->out_sent == link->out_size)
        link->out_sent = link->out_size = 0;
    if (link->out_capacity - link->out_size < size) {
        link->out_capacity = 2 * link->out_capacity + size;
        link->out = realloc(link->out, link->out_capacity);
        if (link->out == NULL)
            fail("out of memory");
    }
    uint8_t *room = link->out + link->out_size;
    link->out_size += size;
    return room;
}

void link_flush(struct link *link) {
    bool blocked = false;
    while (link->out_sent < link->out_size && !link->closed) {
        ssize_t size = send(link->fd, link->out + link->out_sent, link->out_size - link->out_sent, MSG_NOSIGNAL);
        if (size > 0) {
            link->out_sent += (size_t)size;
        } else if (errno == EAGAIN || errno == ENOTCONN || errno == EINPROGRESS) {
            blocked = true;
            break;
        } else if (errno != EINTR) {
            return; /* the broker closed: reading says so */
        }
    }
    if (blocked != link->writable_watched && !link->closed)
        watch(link, EPOLL_CTL_MOD, blocked);
}

static size_t put_text(uint8_t *at, const char *text) {
    size_t length = strlen(text);
    at[0] = (uint8_t)(length >> 8);
    at[1] = (uint8_t)length;
    memcpy(at + 2, text, length);
    return 2 + length;
}

/* A packet of less than 16 KB. */
static void send_packet(struct link *link, uint8_t first_byte, const uint8_t *body, size_t length) {
    size_t head = length < 128 ? 2 : 3;
    uint8_t *at = link_append(link, head + length);
    at[0] = first_byte;
    at[1] = (uint8_t)(length < 128 ? length : (length & 127) | 128);
    if (head == 3)
        at[2] = (uint8_t)(length >> 7);
    memcpy(at + head, body, length);
    link_flush(link);
}

void link_connect(struct link *link, const char *client_id, int keep_alive) {
    const char *user = getenv("LOAD_USER"), *password = getenv("LOAD_PASSWORD");
    static const uint8_t stays[] = {5, 0x11, 0xFF, 0xFF, 0xFF, 0xFF}; /* Session Expiry Interval */
    uint8_t body[1024] = {0, 4, 'M', 'Q', 'T', 'T', (uint8_t)level};
    body[7] = (uint8_t)((link->clean_session ? 2 : 0) | (user ? 0x80 : 0) | (user && password ? 0x40 : 0));
    body[8] = (uint8_t)(keep_alive >> 8);
    body[9] = (uint8_t)keep_alive;
    size_t size = 10;
    if (level == 5 && link->clean_session) {
        size++;
    } else if (level == 5) {
        memcpy(body + size, stays, sizeof stays);
        size += sizeof stays;
    }
    size += put_text(body + size, client_id);
    if (user)
        size += put_text(body + size, user);
    if (user && password)
        size += put_text(body + size, password);
    send_packet(link, CONNECT, body, size);
}

void link_subscribe(struct link *link, const char *topic_filter, int qos) {
    uint8_t body[1024] = {0, 1};
    size_t size = level == 5 ? 3 : 2;
    size += put_text(body + size, topic_filter);
    body[size++] = (uint8_t)qos;
    send_packet(link, SUBSCRIBE, body, size);
}

void link_acknowledge(struct link *link, uint8_t first_byte, uint16_t packet_id) {
    uint8_t *at = link_append(link, 4);
    at[0] = first_byte;
    at[1] = 2;
    at[2] = (uint8_t)(packet_id >> 8);
    at[3] = (uint8_t)packet_id;
}

void link_say(struct link *link, uint8_t first_byte) {
    uint8_t *at = link_append(link, 2);
    at[0] = first_byte;
    at[1] = 0;
    link_flush(link);
}
