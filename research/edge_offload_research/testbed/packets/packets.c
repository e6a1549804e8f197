/* A radio link for IP packets: a queue, a bandwidth, a delay and losses for each direction, between two TUN devices.
 *
 * A lane takes packets with the time of their arrival and gives them back when they are due. It reads no clock, so
 * tests pass any time. Services follow one another in exact times: a late wake-up never stretches the schedule.
 * Seconds are doubles on one monotonic clock.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* Rates count the payload of full TCP segments (timestamps on, MTU 1500), as iperf3 and the papers do. */
#define PAYLOAD_SHARE (1448.0 / 1500.0)
#define STRATA 64
#define MOST_FLYING (1 << 18)
#define BATCH 64
#define MOST_BYTES 2048

typedef struct { double start_s, bytes_per_s, delay_s; } step; /* delay_s < 0: the lane's */

typedef struct { /* as impairments.py has them, in this order */
    double delay_s, jitter_s, knot_s;
    double loss, to_bad, to_good, loss_bad;
    double reorder, reorder_s, duplicate;
    double outage_every_s, outage_s;
    int64_t queue_bytes;
} terms;

typedef struct { /* of one lane; as forwarder.py has them, in this order */
    int64_t offered, dropped, lost, delivered, duplicated, reordered, refused;
    int64_t queued_bytes, carried_bytes;
    double bytes_per_s, delay_s;
} counts;

typedef struct packet {
    struct packet *next;
    double time; /* of its arrival while it waits, of its delivery while it flies */
    uint64_t order;
    int size;
    unsigned char data[];
} packet;

typedef struct {
    terms set;
    step *steps;
    int step_count, step;
    double period_s, origin, step_began;
    packet *head, *tail;
    int serving, blackhole, bad;
    int corrupt, repeat; /* of the next packets */
    double remaining, since, ends, idle_from, last_due;
    packet **heap;
    int flying, room;
    uint64_t order, random;
    double knots[2];
    int64_t knot;
    int strata[STRATA], stratum;
    counts count;
} lane;

typedef struct { /* network byte order */
    uint32_t robot, far, server, flip;
    uint16_t far_port, server_port;
} translation;

typedef struct {
    lane lanes[2]; /* up, down */
    translation map;
    pthread_mutex_t lock;
    double late_most_s;
} emulated_link;

static double uniform(lane *l) { /* xorshift64*, [0, 1) */
    l->random ^= l->random >> 12;
    l->random ^= l->random << 25;
    l->random ^= l->random >> 27;
    return (double)((l->random * 2685821657736338717ULL) >> 11) * 0x1p-53;
}

/* ------------------------------------------------------------------ bandwidth */

static double step_length(const lane *l, int i) {
    return (i + 1 < l->step_count ? l->steps[i + 1].start_s : l->period_s) - l->steps[i].start_s;
}

static void seek(lane *l, double t) {
    while (t >= l->step_began + step_length(l, l->step)) {
        l->step_began += step_length(l, l->step);
        l->step = (l->step + 1) % l->step_count;
    }
}

/* Time at which `size` charged bytes from `t` on (not before the present step) are through; bytes through by `until`. */
static double serve(const lane *l, double t, double size, double until, double *done) {
    int i = l->step, still = 0;
    double began = l->step_began, served = 0;
    while (still <= l->step_count) {
        double length = step_length(l, i), end = fmin(began + length, until), rate = l->steps[i].bytes_per_s;
        if (end > t) {
            if (rate > 0 && size - served <= rate * (end - t)) {
                if (done) *done = size;
                return t + (size - served) / rate;
            }
            served += rate * (end - t);
            t = end;
        }
        if (end >= until) break;
        still = rate > 0 ? 0 : still + 1;
        began += length;
        i = (i + 1) % l->step_count;
    }
    if (done) *done = served;
    return INFINITY;
}

static void reckon(lane *l) {
    seek(l, l->since);
    l->ends = serve(l, l->since, l->remaining, INFINITY, NULL);
}

/* ------------------------------------------------------------------ delay and losses */

/* The next knot, of mean 0 and deviation 1: triangular, skewed to late as radio links are, and bounded, so that with
 * knots far enough apart no packet has to wait for an earlier one. Every STRATA knots hold each part of the
 * distribution once, so that half a minute shows what was set. */
static double draw_knot(lane *l) {
    if (l->stratum == STRATA) {
        for (int i = STRATA - 1; i > 0; i--) {
            int j = (int)(uniform(l) * (i + 1)), moved = l->strata[i];
            l->strata[i] = l->strata[j];
            l->strata[j] = moved;
        }
        l->stratum = 0;
    }
    return sqrt(18) * (2.0 / 3.0 - sqrt(1 - (l->strata[l->stratum++] + uniform(l)) / STRATA));
}

/* Linear between knots; the factor makes up for the variance that is lost between them. */
static double jitter(lane *l, double t) {
    if (l->set.jitter_s <= 0) return 0;
    double place = (t - l->origin) / l->set.knot_s;
    int64_t wanted = (int64_t)floor(place);
    if (wanted - l->knot > STRATA) l->knot = wanted - 2;
    while (l->knot < wanted) {
        l->knots[0] = l->knots[1];
        l->knots[1] = draw_knot(l);
        l->knot++;
    }
    double part = fmin(1, fmax(0, place - (double)l->knot));
    return l->set.jitter_s * sqrt(1.5) * ((1 - part) * l->knots[0] + part * l->knots[1]);
}

static int in_outage(const lane *l, double t) {
    if (l->set.outage_every_s <= 0) return 0;
    return fmod(t - l->origin, l->set.outage_every_s) >= l->set.outage_every_s - l->set.outage_s;
}

static int is_lost(lane *l, double t) {
    if (l->bad ? uniform(l) < l->set.to_good : uniform(l) < l->set.to_bad) l->bad = !l->bad;
    int lost = uniform(l) < (l->bad ? l->set.loss_bad : l->set.loss);
    return lost || l->blackhole || in_outage(l, t);
}

static int sooner(const packet *a, const packet *b) {
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static int push(lane *l, packet *p) {
    if (l->flying == l->room) {
        int room = l->room ? 2 * l->room : 256;
        packet **heap = room > MOST_FLYING ? NULL : realloc(l->heap, (size_t)room * sizeof *heap);
        if (!heap) return 0;
        l->heap = heap;
        l->room = room;
    }
    int i = l->flying++;
    for (int up; i > 0 && sooner(p, l->heap[up = (i - 1) / 2]); i = up) l->heap[i] = l->heap[up];
    l->heap[i] = p;
    return 1;
}

static packet *pop(lane *l) {
    packet *first = l->heap[0], *last = l->heap[--l->flying];
    int i = 0;
    for (int child; (child = 2 * i + 1) < l->flying; i = child) {
        if (child + 1 < l->flying && sooner(l->heap[child + 1], l->heap[child])) child++;
        if (!sooner(l->heap[child], last)) break;
        l->heap[i] = l->heap[child];
    }
    if (l->flying) l->heap[i] = last;
    return first;
}

static double delay_now(const lane *l) {
    double traced = l->steps[l->step].delay_s;
    return traced < 0 ? l->set.delay_s : traced;
}

static void launch(lane *l, packet *p, double t) {
    seek(l, t);
    double due = t + fmax(0, delay_now(l) + jitter(l, t));
    if (is_lost(l, t)) {
        l->count.lost++;
        free(p);
        return;
    }
    if (uniform(l) < l->set.reorder) {
        due += l->set.reorder_s;
        l->count.reordered++;
    } else {
        due = l->last_due = fmax(due, l->last_due);
    }
    if (l->corrupt) {
        l->corrupt--;
        p->data[p->size - 1] ^= 0x55;
    }
    int repeated = l->repeat ? l->repeat-- : 0;
    p->time = due;
    p->order = l->order++;
    packet *twin = NULL;
    if ((uniform(l) < l->set.duplicate || repeated) && (twin = malloc(sizeof *twin + (size_t)p->size))) {
        memcpy(twin, p, sizeof *twin + (size_t)p->size);
        twin->order = l->order++;
    }
    if (!push(l, p)) {
        l->count.dropped++;
        free(p);
    }
    if (twin && push(l, twin)) l->count.duplicated++;
    else free(twin);
}

static void advance(lane *l, double now) {
    for (;;) {
        if (!l->serving) {
            if (!l->head) return;
            l->since = fmax(l->idle_from, l->head->time);
            l->remaining = l->head->size * PAYLOAD_SHARE;
            l->serving = 1;
            reckon(l);
        }
        if (l->ends > now) return;
        packet *p = l->head;
        l->head = p->next;
        if (!l->head) l->tail = NULL;
        l->count.queued_bytes -= p->size;
        l->count.carried_bytes += (int64_t)(p->size * PAYLOAD_SHARE);
        l->idle_from = l->ends;
        l->serving = 0;
        launch(l, p, l->ends);
    }
}

/* ------------------------------------------------------------------ one lane, for tests and for the loop */

static void offer(lane *l, double now, const unsigned char *data, int size) {
    advance(l, now);
    l->count.offered++;
    packet *p = NULL;
    int fits = !l->head || l->count.queued_bytes + size <= l->set.queue_bytes;
    if (!fits || !(p = malloc(sizeof *p + (size_t)size))) {
        l->count.dropped++;
        return;
    }
    p->next = NULL;
    p->time = now;
    p->size = size;
    memcpy(p->data, data, (size_t)size);
    if (l->tail) l->tail->next = p;
    else l->head = p;
    l->tail = p;
    l->count.queued_bytes += size;
    advance(l, now);
}

static double next_time(const lane *l) {
    double next = l->serving ? l->ends : INFINITY;
    return l->flying ? fmin(next, l->heap[0]->time) : next;
}

void link_offer(emulated_link *k, int direction, double now, const unsigned char *data, int size) {
    offer(&k->lanes[direction], now, data, size);
}

/* A packet that is due by `now`: its size and when it was due; -1 where there is none. `data` has MOST_BYTES. */
int link_take(emulated_link *k, int direction, double now, unsigned char *data, double *due) {
    lane *l = &k->lanes[direction];
    advance(l, now);
    if (!l->flying || l->heap[0]->time > now) return -1;
    packet *p = pop(l);
    int size = p->size;
    memcpy(data, p->data, (size_t)size);
    *due = p->time;
    l->count.delivered++;
    free(p);
    return size;
}

emulated_link *link_new(double now, uint64_t seed) {
    emulated_link *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    pthread_mutex_init(&k->lock, NULL);
    for (int i = 0; i < 2; i++) {
        lane *l = &k->lanes[i];
        l->random = (2 * seed + (uint64_t)i + 1) * 0x9E3779B97F4A7C15ULL;
        for (int j = 0; j < 8; j++) uniform(l);
        l->origin = l->step_began = l->idle_from = now;
        l->ends = INFINITY;
        l->stratum = STRATA;
        l->knot = -2;
        for (int j = 0; j < STRATA; j++) l->strata[j] = j;
    }
    return k;
}

/* Steps and terms from now on, also for the packet in service. 0: no memory, nothing has changed. */
int link_set(emulated_link *k, int direction, double now, const step *steps, int n, double period_s, const terms *set) {
    lane *l = &k->lanes[direction];
    if (steps) {
        step *copy = malloc((size_t)n * sizeof *copy);
        if (!copy) return 0;
        memcpy(copy, steps, (size_t)n * sizeof *copy);
        pthread_mutex_lock(&k->lock);
        if (l->steps) {
            advance(l, now);
            if (l->serving && now > l->since) {
                double done = 0;
                serve(l, l->since, l->remaining, now, &done);
                l->remaining = fmax(0, l->remaining - done);
                l->since = now;
            }
        }
        free(l->steps);
        l->steps = copy;
        l->step_count = n;
        l->period_s = period_s;
        l->step = 0;
        l->step_began = l->origin = now;
        l->knot = -2;
        if (l->serving) {
            l->since = fmax(l->since, now);
            reckon(l);
        }
        l->idle_from = fmax(l->idle_from, now);
        pthread_mutex_unlock(&k->lock);
    }
    pthread_mutex_lock(&k->lock);
    l->set = *set;
    pthread_mutex_unlock(&k->lock);
    return 1;
}

void link_blackhole(emulated_link *k, int on) {
    pthread_mutex_lock(&k->lock);
    k->lanes[0].blackhole = k->lanes[1].blackhole = on;
    pthread_mutex_unlock(&k->lock);
}

/* Flip bits in so many of the next packets, deliver so many twice. */
void link_spoil(emulated_link *k, int direction, int corrupt, int repeat) {
    pthread_mutex_lock(&k->lock);
    k->lanes[direction].corrupt = corrupt;
    k->lanes[direction].repeat = repeat;
    pthread_mutex_unlock(&k->lock);
}

void link_translate(emulated_link *k, const translation *map) {
    pthread_mutex_lock(&k->lock);
    k->map = *map;
    pthread_mutex_unlock(&k->lock);
}

void link_counts(emulated_link *k, int direction, double now, counts *out) {
    pthread_mutex_lock(&k->lock);
    lane *l = &k->lanes[direction];
    advance(l, now);
    if (!l->serving) seek(l, now);
    *out = l->count;
    int i = l->step;
    double began = l->step_began;
    while (now >= began + step_length(l, i)) {
        began += step_length(l, i);
        i = (i + 1) % l->step_count;
    }
    out->bytes_per_s = l->blackhole ? 0 : l->steps[i].bytes_per_s;
    out->delay_s = l->steps[i].delay_s < 0 ? l->set.delay_s : l->steps[i].delay_s;
    pthread_mutex_unlock(&k->lock);
}

double link_late_s(emulated_link *k) { return k->late_most_s; }

void link_free(emulated_link *k) {
    if (!k) return;
    for (int i = 0; i < 2; i++) {
        lane *l = &k->lanes[i];
        for (packet *p = l->head, *next; p; p = next) {
            next = p->next;
            free(p);
        }
        while (l->flying) free(pop(l));
        free(l->heap);
        free(l->steps);
    }
    free(k);
}

/* ------------------------------------------------------------------ addresses */

static void mend(unsigned char *sum, uint32_t before, uint32_t after) { /* RFC 1624 */
    uint16_t old;
    memcpy(&old, sum, 2);
    uint32_t total = (uint16_t)~old;
    total += (uint16_t)~(before & 0xffff) + (uint16_t)~(before >> 16) + (after & 0xffff) + (after >> 16);
    while (total >> 16) total = (total & 0xffff) + (total >> 16);
    old = (uint16_t)~total;
    memcpy(sum, &old, 2);
}

static void replace(unsigned char *at, int bytes, uint32_t after, unsigned char *sum, unsigned char *inner) {
    uint32_t before = 0;
    memcpy(&before, at, (size_t)bytes);
    memcpy(at, &after, (size_t)bytes);
    if (sum) mend(sum, before, after);
    if (inner) mend(inner, before, after);
}

/* Translates packets to `far` into ones from the robot's other address to the server, and back. 0: neither. */
int link_rename(const emulated_link *k, int direction, unsigned char *data, int size) {
    const translation *m = &k->map;
    uint32_t source, target;
    if (size < 20 || data[0] >> 4 != 4) return 0;
    int head = 4 * (data[0] & 15), rest = ((data[6] & 31) << 8) | data[7];
    if (head < 20 || size < head) return 0;
    memcpy(&source, data + 12, 4);
    memcpy(&target, data + 16, 4);
    if (direction == 0 ? source != m->robot || target != m->far : source != m->server || target != (m->robot ^ m->flip))
        return 0;
    unsigned char *inner = NULL, *ports = NULL;
    if (!rest && data[9] == 6 && size >= head + 20) inner = data + head + 16;
    if (!rest && data[9] == 17 && size >= head + 8) inner = data + head + 6;
    if (inner) ports = data + head;
    if (inner && data[9] == 17 && !inner[0] && !inner[1]) inner = NULL; /* UDP without a checksum */
    replace(data + 12, 4, direction == 0 ? source ^ m->flip : m->far, data + 10, inner);
    replace(data + 16, 4, direction == 0 ? m->server : target ^ m->flip, data + 10, inner);
    if (ports) {
        unsigned char *at = ports + (direction == 0 ? 2 : 0);
        uint16_t seen, from = direction == 0 ? m->far_port : m->server_port;
        memcpy(&seen, at, 2);
        if (seen == from) replace(at, 2, direction == 0 ? m->server_port : m->far_port, NULL, inner);
    }
    return 1;
}

/* ------------------------------------------------------------------ the loop */

static double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void read_packets(emulated_link *k, int direction, int descriptor) {
    unsigned char data[MOST_BYTES];
    for (int i = 0; i < BATCH; i++) {
        ssize_t size = read(descriptor, data, sizeof data);
        if (size <= 0) return;
        if (link_rename(k, direction, data, (int)size)) offer(&k->lanes[direction], clock_s(), data, (int)size);
        else k->lanes[direction].count.refused++;
    }
}

static void write_packets(emulated_link *k, int direction, int descriptor, double now) {
    lane *l = &k->lanes[direction];
    advance(l, now);
    while (l->flying && l->heap[0]->time <= now) {
        packet *p = pop(l);
        k->late_most_s = fmax(k->late_most_s, now - p->time);
        if (write(descriptor, p->data, (size_t)p->size) == p->size) l->count.delivered++;
        else l->count.refused++;
        free(p);
    }
}

/* Forward between the robot's and the server's device until `control` gives a q; other bytes of it mean that the link
 * has changed. 0, or an errno. */
int link_run(emulated_link *k, int robot, int server, int control) {
    struct pollfd ends[3] = {{robot, POLLIN, 0}, {server, POLLIN, 0}, {control, POLLIN, 0}};
    char order;
    prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
    for (;;) {
        pthread_mutex_lock(&k->lock);
        double now = clock_s();
        write_packets(k, 0, server, now);
        write_packets(k, 1, robot, now);
        double next = fmin(next_time(&k->lanes[0]), next_time(&k->lanes[1]));
        pthread_mutex_unlock(&k->lock);
        double wait = fmin(0.9, fmax(0, next - clock_s()));
        struct timespec most = {0, (long)(wait * 1e9)};
        if (ppoll(ends, 3, &most, NULL) < 0 && errno != EINTR) return errno;
        if (ends[2].revents && (read(control, &order, 1) <= 0 || order == 'q')) return 0;
        if ((ends[0].revents | ends[1].revents) & POLLERR) return EIO;
        pthread_mutex_lock(&k->lock);
        if (ends[0].revents & POLLIN) read_packets(k, 0, robot);
        if (ends[1].revents & POLLIN) read_packets(k, 1, server);
        pthread_mutex_unlock(&k->lock);
    }
}
