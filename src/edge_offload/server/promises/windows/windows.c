/* Plans batches in the windows in which results are freshest (CPython extension). tests/server/promises has a reference in
 * Python with bit-equal plans, because all sums have the same order (compile with -ffp-contract=off).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdlib.h>

#define NEAR 1e-9
#define MOST_FRAME 9007199254740992.0 /* 2^53: whole numbers up to it are exact */
enum { MOST_ROBOTS = 1 << 16, MOST_BATCHES = 1 << 20 };

typedef struct { /* as Window in __init__.py */
    double opens, frame_interval, length, batch, interval, offset;
} Window;

/* Candidate for a batch: its sort key, the end of its window, and its frame, counted from the last requested one. */
typedef struct {
    double by, ends, frame;
    int place;
} Choice;

typedef struct {
    int size;
    double most, ends;
    const Window *robots;
    const double *takes;
    int *place; /* [largest] of the members */
    double *frame;
    char *inside; /* [robots] */
} Batch;

static int by_then_ends(const void *left, const void *right)
{
    const Choice *a = left, *b = right;
    if (a->by != b->by) return a->by < b->by ? -1 : 1;
    if (a->ends != b->ends) return a->ends < b->ends ? -1 : 1;
    return a->place - b->place;
}

static int by_then_place(const void *left, const void *right)
{
    const Choice *a = left, *b = right;
    if (a->by != b->by) return a->by < b->by ? -1 : 1;
    return a->place - b->place;
}

static double smaller(double a, double b) { return b < a ? b : a; }
static double larger(double a, double b) { return b > a ? b : a; }

static int fits(const Batch *batch, double start, const Choice *one)
{
    int size = batch->size + 1;
    return size <= smaller(batch->most, batch->robots[one->place].batch) &&
           start + batch->takes[size] <= smaller(batch->ends, one->ends) + NEAR;
}

static void add(Batch *batch, const Choice *one)
{
    batch->place[batch->size] = one->place;
    batch->frame[batch->size++] = one->frame;
    batch->inside[one->place] = 1;
    batch->most = smaller(batch->most, batch->robots[one->place].batch);
    batch->ends = smaller(batch->ends, one->ends);
}

static int in_time(const Choice *soon, int count, int place, double freed, double takes)
{
    int i;
    for (i = 0; i < count; i++)
        if (soon[i].place != place && !(soon[i].by >= freed || freed + takes <= soon[i].ends + NEAR)) return 0;
    return 1;
}

/* Returns (start, ((place, frame), ...)). */
static PyObject *make_entry(double start, const Batch *batch)
{
    PyObject *members = PyTuple_New(batch->size);
    int i;
    if (!members) return NULL;
    for (i = 0; i < batch->size; i++) {
        long long offset = (long long)batch->robots[batch->place[i]].offset;
        PyObject *one = Py_BuildValue("(iL)", batch->place[i], offset + (long long)batch->frame[i]);
        if (!one) {
            Py_DECREF(members);
            return NULL;
        }
        PyTuple_SET_ITEM(members, i, one);
    }
    return Py_BuildValue("(dN)", start, members);
}

static PyObject *packed(const Window *robots, int count, const double *takes, int largest, double start, double until,
                        double grace, double early_share)
{
    size_t room = (size_t)count, side = (size_t)largest;
    double *newest = malloc(room * sizeof *newest), *target = malloc(room * sizeof *target);
    Choice *due = malloc(room * sizeof *due), *soon = malloc(room * sizeof *soon), *early = malloc(room * sizeof *early);
    Batch batch = {.robots = robots, .takes = takes, .place = malloc(side * sizeof(int)),
                   .frame = malloc(side * sizeof(double)), .inside = calloc(room, 1)};
    PyObject *plan = PyList_New(0);
    int i, made = 0;
    if (!plan || !newest || !target || !due || !soon || !early || !batch.place || !batch.frame || !batch.inside) {
        if (plan) PyErr_NoMemory();
        Py_CLEAR(plan);
        goto out;
    }
    for (i = 0; i < count; i++) {
        newest[i] = 0.0;
        target[i] = robots[i].interval;
    }
    while (start <= until) {
        int dues = 0, soons = 0, earlies = 0;
        for (i = 0; i < count; i++) {
            const Window *robot = &robots[i];
            double taken = robot->frame_interval;
            double frame = floor((start - robot->opens) / taken + NEAR);
            double wanted = larger(newest[i] + 1, ceil(target[i] - 0.5 - NEAR));
            double ends = robot->opens + frame * taken + robot->length;
            int in_window = start + takes[1] <= ends + NEAR;
            if (frame >= wanted && in_window) {
                due[dues++] = (Choice){ends - taken * larger(0.0, frame - target[i]), ends, frame, i};
            } else {
                double following = larger(frame + 1, wanted);
                double opening = robot->opens + following * taken;
                soon[soons++] = (Choice){opening, opening + robot->length, following, i};
                if (newest[i] < frame && frame < wanted && in_window)
                    early[earlies++] = (Choice){(newest[i] - frame) / robot->interval, ends, frame, i};
            }
        }
        qsort(soon, (size_t)soons, sizeof *soon, by_then_place);
        qsort(early, (size_t)earlies, sizeof *early, by_then_ends);
        batch.size = 0;
        batch.most = largest;
        batch.ends = INFINITY;
        if (!dues) {
            double freed = start + takes[1] * (1 + grace);
            if (!(earlies && -early[0].by >= early_share && in_time(soon, soons, early[0].place, freed, takes[1]))) {
                if (!(soon[0].by > start)) break; /* too large to advance the time in double precision */
                start = soon[0].by;
                continue;
            }
            add(&batch, &early[0]);
        }
        qsort(due, (size_t)dues, sizeof *due, by_then_ends);
        for (i = 0; i < dues; i++)
            if (fits(&batch, start, &due[i])) add(&batch, &due[i]);
        for (i = 0; i < soons; i++) {
            int size = batch.size;
            if (batch.inside[soon[i].place]) continue;
            if (!fits(&batch, larger(start, soon[i].by), &soon[i])) break;
            if ((larger(0.0, soon[i].by - start) + takes[size + 1]) / (size + 1) >= takes[size] / size) break;
            add(&batch, &soon[i]);
            start = larger(start, soon[i].by);
        }
        for (i = 0; i < earlies; i++) {
            int size = batch.size;
            if (batch.inside[early[i].place] || !fits(&batch, start, &early[i])) continue;
            if (takes[size + 1] - takes[size] < -early[i].by * takes[size] / size) add(&batch, &early[i]);
        }
        PyObject *one = ++made > MOST_BATCHES ? NULL : make_entry(start, &batch);
        if (!one || PyList_Append(plan, one)) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a plan of too many batches");
            Py_XDECREF(one);
            Py_CLEAR(plan);
            goto out;
        }
        Py_DECREF(one);
        for (i = 0; i < batch.size; i++) {
            int place = batch.place[i];
            double frame = batch.frame[i];
            batch.inside[place] = 0;
            newest[place] = frame;
            target[place] = smaller(larger(target[place], frame - 0.5), frame + 0.5) + robots[place].interval;
        }
        start += takes[batch.size] * (1 + grace);
    }
out:
    free(newest), free(target), free(due), free(soon), free(early);
    free(batch.place), free(batch.frame), free(batch.inside);
    return plan;
}

static PyObject *batches(PyObject *self, PyObject *args)
{
    Py_buffer robots, table;
    double begin, until, grace, early_share;
    PyObject *plan = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*dddd", &robots, &table, &begin, &until, &grace, &early_share)) return NULL;
    Py_ssize_t count = robots.len / (Py_ssize_t)sizeof(Window), largest = table.len / (Py_ssize_t)sizeof(double), i;
    int fine = count > 0 && count <= MOST_ROBOTS && robots.len % (Py_ssize_t)sizeof(Window) == 0 && largest > 0 &&
               largest <= 1024 && table.len % (Py_ssize_t)sizeof(double) == 0 && isfinite(begin) && isfinite(until) &&
               isfinite(grace) && grace >= 0;
    double *takes = fine ? malloc(((size_t)largest + 1) * sizeof *takes) : NULL;
    if (takes) {
        takes[0] = 0.0;
        for (i = 0; i < largest; i++) {
            takes[i + 1] = ((const double *)table.buf)[i];
            fine = fine && takes[i + 1] > 0;
        }
        for (i = 0; i < count; i++) { /* guarantees that each iteration of packed() advances the time */
            const Window *robot = &((const Window *)robots.buf)[i];
            fine = fine && robot->frame_interval > 0 && robot->length > takes[1] && robot->batch >= 1 &&
                   robot->interval > 0 && isfinite(robot->opens) && fabs(robot->offset) <= MOST_FRAME;
        }
    }
    if (!fine)
        PyErr_SetString(PyExc_ValueError, "these are no windows and latencies");
    else if (!takes)
        PyErr_NoMemory();
    else
        plan = packed(robots.buf, (int)count, takes, (int)largest, begin, until, grace, early_share);
    free(takes);
    PyBuffer_Release(&robots);
    PyBuffer_Release(&table);
    return plan;
}

static PyMethodDef methods[] = {
    {"batches", batches, METH_VARARGS, "windows, latencies, begin, until, grace, share -> [(start, ((place, frame), ...))]"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "edge_offload_windows", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_edge_offload_windows(void) { return PyModule_Create(&module); }
