/* Inner loops of the payload codecs as a CPython extension; portable.py has the same functions in numpy, with equal bits.
 *
 * Every function takes buffers whose lengths it checks against the sizes given, and runs without the GIL.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = 0, LEFT = 1, GRADIENT = 2, PAETH = 3 };

typedef struct {
    Py_ssize_t images, channels, height, width; /* of an 8-bit stack [images, channels, height, width] */
    int interleaved;                            /* the pixels are in memory as [images, height, width, channels] */
    int predictor, colour;                      /* colour: channels 0 and 2 are coded as differences to channel 1 */
} Frame;

static uint8_t paeth(int a, int b, int c)
{
    int estimate = a + b - c;
    int da = abs(estimate - a), db = abs(estimate - b), dc = abs(estimate - c);
    return (uint8_t)(da <= db && da <= dc ? a : db <= dc ? b : c);
}

/* r = x - prediction(left neighbour, upper neighbour, upper left neighbour), all 0 outside the image; n bytes a row */
static void predict(const uint8_t *restrict x, const uint8_t *restrict up, uint8_t *restrict r, Py_ssize_t n,
                    Py_ssize_t step, int predictor)
{
    Py_ssize_t i;
    if (predictor == NONE) {
        memcpy(r, x, (size_t)n);
    } else if (predictor == LEFT) {
        memcpy(r, x, (size_t)step);
        for (i = step; i < n; i++) r[i] = (uint8_t)(x[i] - x[i - step]);
    } else if (predictor == GRADIENT) {
        for (i = 0; i < step; i++) r[i] = (uint8_t)(x[i] - up[i]);
        for (i = step; i < n; i++) r[i] = (uint8_t)(x[i] - x[i - step] - up[i] + up[i - step]);
    } else {
        for (i = 0; i < step; i++) r[i] = (uint8_t)(x[i] - up[i]);
        for (i = step; i < n; i++) r[i] = (uint8_t)(x[i] - paeth(x[i - step], up[i], up[i - step]));
    }
}

/* running sums of bytes at distance step, onto base (or onto nothing): the serial half of LEFT and GRADIENT */
static void accumulate(const uint8_t *restrict r, const uint8_t *restrict base, uint8_t *restrict x, Py_ssize_t n,
                       Py_ssize_t step)
{
    Py_ssize_t i;
    if (step == 1) {
        uint8_t s = 0;
        for (i = 0; i < n; i++) x[i] = s = (uint8_t)(s + r[i]);
    } else if (step == 3) {
        uint8_t s0 = 0, s1 = 0, s2 = 0;
        for (i = 0; i + 2 < n; i += 3) {
            x[i] = s0 = (uint8_t)(s0 + r[i]);
            x[i + 1] = s1 = (uint8_t)(s1 + r[i + 1]);
            x[i + 2] = s2 = (uint8_t)(s2 + r[i + 2]);
        }
    } else {
        memcpy(x, r, (size_t)step);
        for (i = step; i < n; i++) x[i] = (uint8_t)(x[i - step] + r[i]);
    }
    if (base)
        for (i = 0; i < n; i++) x[i] = (uint8_t)(x[i] + base[i]);
}

static void restore(const uint8_t *restrict r, const uint8_t *restrict up, uint8_t *restrict x, Py_ssize_t n,
                    Py_ssize_t step, int predictor)
{
    Py_ssize_t i;
    if (predictor == NONE) {
        memcpy(x, r, (size_t)n);
    } else if (predictor == LEFT) {
        accumulate(r, NULL, x, n, step);
    } else if (predictor == GRADIENT) {
        /* (x - up) at i = r + (x - up) at i - step */
        accumulate(r, up, x, n, step);
    } else {
        for (i = 0; i < step; i++) x[i] = (uint8_t)(r[i] + up[i]);
        for (i = step; i < n; i++) x[i] = (uint8_t)(r[i] + paeth(x[i - step], up[i], up[i - step]));
    }
}

static void split3(const uint8_t *restrict row, uint8_t *restrict p, uint8_t *restrict q, uint8_t *restrict s,
                   Py_ssize_t width, int colour)
{
    Py_ssize_t i;
    if (colour) {
        for (i = 0; i < width; i++) {
            uint8_t green = row[3 * i + 1];
            p[i] = (uint8_t)(row[3 * i] - green);
            q[i] = green;
            s[i] = (uint8_t)(row[3 * i + 2] - green);
        }
    } else {
        for (i = 0; i < width; i++) p[i] = row[3 * i], q[i] = row[3 * i + 1], s[i] = row[3 * i + 2];
    }
}

static void join3(const uint8_t *restrict p, const uint8_t *restrict q, const uint8_t *restrict s,
                  uint8_t *restrict row, Py_ssize_t width, int colour)
{
    Py_ssize_t i;
    if (colour) {
        for (i = 0; i < width; i++) {
            uint8_t green = q[i];
            row[3 * i] = (uint8_t)(p[i] + green);
            row[3 * i + 1] = green;
            row[3 * i + 2] = (uint8_t)(s[i] + green);
        }
    } else {
        for (i = 0; i < width; i++) row[3 * i] = p[i], row[3 * i + 1] = q[i], row[3 * i + 2] = s[i];
    }
}

static void add_bytes(uint8_t *restrict x, const uint8_t *restrict y, Py_ssize_t n, int sign)
{
    Py_ssize_t i;
    if (sign > 0)
        for (i = 0; i < n; i++) x[i] = (uint8_t)(x[i] + y[i]);
    else
        for (i = 0; i < n; i++) x[i] = (uint8_t)(x[i] - y[i]);
}

/* pixels -> residual planes [images, channels, height, width]. zeros and scratch: height-independent work rows */
static void residual_frame(const uint8_t *pixels, uint8_t *planes, const Frame *f, const uint8_t *zeros,
                           uint8_t *scratch)
{
    Py_ssize_t n, c, y, i, plane = f->height * f->width, row = f->width * (f->interleaved ? f->channels : 1);
    for (n = 0; n < f->images; n++) {
        const uint8_t *in = pixels + n * plane * f->channels;
        uint8_t *out = planes + n * plane * f->channels;
        for (y = 0; y < f->height; y++) {
            if (f->interleaved) {
                const uint8_t *x = in + y * row;
                predict(x, y ? x - row : zeros, scratch, row, f->channels, f->predictor);
                uint8_t *o = out + y * f->width;
                if (f->channels == 3)
                    split3(scratch, o, o + plane, o + 2 * plane, f->width, f->colour);
                else
                    for (c = 0; c < f->channels; c++)
                        for (i = 0; i < f->width; i++) o[c * plane + i] = scratch[i * f->channels + c];
            } else {
                for (c = 0; c < f->channels; c++) {
                    const uint8_t *x = in + c * plane + y * row;
                    predict(x, y ? x - row : zeros, out + c * plane + y * row, row, 1, f->predictor);
                }
                if (f->colour) {
                    uint8_t *o = out + y * row;
                    add_bytes(o, o + plane, row, -1);
                    add_bytes(o + 2 * plane, o + plane, row, -1);
                }
            }
        }
    }
}

/* inverse of residual_frame */
static void pixels_frame(const uint8_t *planes, uint8_t *pixels, const Frame *f, const uint8_t *zeros,
                         uint8_t *scratch)
{
    Py_ssize_t n, c, y, i, plane = f->height * f->width, row = f->width * (f->interleaved ? f->channels : 1);
    for (n = 0; n < f->images; n++) {
        const uint8_t *in = planes + n * plane * f->channels;
        uint8_t *out = pixels + n * plane * f->channels;
        for (y = 0; y < f->height; y++) {
            if (f->interleaved) {
                const uint8_t *r = in + y * f->width;
                if (f->channels == 3)
                    join3(r, r + plane, r + 2 * plane, scratch, f->width, f->colour);
                else
                    for (c = 0; c < f->channels; c++)
                        for (i = 0; i < f->width; i++) scratch[i * f->channels + c] = r[c * plane + i];
                uint8_t *x = out + y * row;
                restore(scratch, y ? x - row : zeros, x, row, f->channels, f->predictor);
            } else {
                for (c = 0; c < f->channels; c++) {
                    const uint8_t *r = in + c * plane + y * row;
                    uint8_t *x = out + c * plane + y * row;
                    if (f->colour && c != 1) {
                        memcpy(scratch, r, (size_t)row);
                        add_bytes(scratch, in + plane + y * row, row, 1);
                        r = scratch;
                    }
                    restore(r, y ? x - row : zeros, x, row, 1, f->predictor);
                }
            }
        }
    }
}

/* whether the extents make sense, and the bytes of the frame */
static int frame_size(const Frame *f, Py_ssize_t *size)
{
    return f->images > 0 && f->channels > 0 && f->height > 0 && f->width > 0 && f->predictor >= NONE &&
           f->predictor <= PAETH && (!f->colour || f->channels == 3) &&
           !__builtin_mul_overflow(f->images, f->channels, size) && !__builtin_mul_overflow(*size, f->height, size) &&
           !__builtin_mul_overflow(*size, f->width, size);
}

static PyObject *frame_call(PyObject *args, const char *format,
                            void (*work)(const uint8_t *, uint8_t *, const Frame *, const uint8_t *, uint8_t *))
{
    Py_buffer src, dst;
    Frame f;
    if (!PyArg_ParseTuple(args, format, &src, &dst, &f.images, &f.channels, &f.height, &f.width, &f.interleaved,
                          &f.predictor, &f.colour))
        return NULL;
    PyObject *result = NULL;
    Py_ssize_t size = 0;
    int fits = frame_size(&f, &size) && src.len == size && dst.len == size;
    uint8_t *rows = NULL;
    size_t row = 0;
    if (fits) {
        row = (size_t)(f.width * (f.interleaved ? f.channels : 1));
        rows = calloc(2, row);
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "frame sizes do not fit the buffers");
    } else if (!rows) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
        work(src.buf, dst.buf, &f, rows, rows + row);
        Py_END_ALLOW_THREADS
        result = (Py_INCREF(Py_None), Py_None);
    }
    free(rows);
    PyBuffer_Release(&src);
    PyBuffer_Release(&dst);
    return result;
}

static PyObject *residual(PyObject *self, PyObject *args)
{
    (void)self;
    return frame_call(args, "y*w*nnnnpip:residual", residual_frame);
}

static PyObject *pixels(PyObject *self, PyObject *args)
{
    (void)self;
    return frame_call(args, "y*w*nnnnpip:pixels", pixels_frame);
}

/* byte shuffle: [count, item] -> [item, count], and back */
#define SHUFFLE(ITEM)                                                                                                 \
    static void shuffle##ITEM(const uint8_t *restrict s, uint8_t *restrict d, Py_ssize_t n)                           \
    {                                                                                                                 \
        for (int b = 0; b < ITEM; b++)                                                                                \
            for (Py_ssize_t i = 0; i < n; i++) d[b * n + i] = s[i * ITEM + b];                                        \
    }                                                                                                                 \
    static void unshuffle##ITEM(const uint8_t *restrict s, uint8_t *restrict d, Py_ssize_t n)                         \
    {                                                                                                                 \
        for (Py_ssize_t i = 0; i < n; i++)                                                                            \
            for (int b = 0; b < ITEM; b++) d[i * ITEM + b] = s[b * n + i];                                            \
    }
SHUFFLE(2)
SHUFFLE(4)
SHUFFLE(8)
SHUFFLE(16)

static PyObject *shuffle_call(PyObject *args, const char *format, int forward)
{
    Py_buffer src, dst;
    int item;
    if (!PyArg_ParseTuple(args, format, &src, &dst, &item)) return NULL;
    PyObject *result = NULL;
    if ((item != 2 && item != 4 && item != 8 && item != 16) || src.len != dst.len || src.len % item) {
        PyErr_SetString(PyExc_ValueError, "shuffle sizes do not fit the buffers");
    } else {
        Py_ssize_t n = src.len / item;
        Py_BEGIN_ALLOW_THREADS
        switch (item) {
        case 2: (forward ? shuffle2 : unshuffle2)(src.buf, dst.buf, n); break;
        case 4: (forward ? shuffle4 : unshuffle4)(src.buf, dst.buf, n); break;
        case 8: (forward ? shuffle8 : unshuffle8)(src.buf, dst.buf, n); break;
        default: (forward ? shuffle16 : unshuffle16)(src.buf, dst.buf, n);
        }
        Py_END_ALLOW_THREADS
        result = (Py_INCREF(Py_None), Py_None);
    }
    PyBuffer_Release(&src);
    PyBuffer_Release(&dst);
    return result;
}

static PyObject *shuffle(PyObject *self, PyObject *args)
{
    (void)self;
    return shuffle_call(args, "y*w*i:shuffle", 1);
}

static PyObject *unshuffle(PyObject *self, PyObject *args)
{
    (void)self;
    return shuffle_call(args, "y*w*i:unshuffle", 0);
}

/* palettes: elements [outer, channels, inner]; one palette of at most 256 bit patterns per channel */
#define SLOTS 1024

typedef struct {
    uint64_t key[SLOTS];
    int16_t slot[SLOTS]; /* -1: empty, else the number of the key in order of appearance */
    uint64_t seen[256];
    int count;
} Table;

static inline uint64_t load(const uint8_t *p, int item)
{
    switch (item) {
    case 1: return *p;
    case 2: { uint16_t v; memcpy(&v, p, 2); return v; }
    case 4: { uint32_t v; memcpy(&v, p, 4); return v; }
    default: { uint64_t v; memcpy(&v, p, 8); return v; }
    }
}

static inline int look_up(Table *t, uint64_t value, int limit)
{
    unsigned at = (unsigned)((value * UINT64_C(0x9E3779B97F4A7C15)) >> 54);
    while (t->slot[at] >= 0) {
        if (t->key[at] == value) return t->slot[at];
        at = (at + 1) & (SLOTS - 1);
    }
    if (t->count == limit) return -1;
    t->key[at] = value;
    t->seen[t->count] = value;
    return t->slot[at] = (int16_t)t->count++;
}

/* order of the palette: by value for unsigned, signed and floating types (-0.0 before 0.0, NaNs outermost) */
static uint64_t order(uint64_t bits, int item, int type)
{
    uint64_t sign = UINT64_C(1) << (8 * item - 1), all = sign | (sign - 1);
    if (type == 1) return bits ^ sign;
    if (type == 2) return (bits & sign) ? ~bits & all : bits ^ sign;
    return bits;
}

static inline __attribute__((always_inline)) int map_run(Table *t, const uint8_t *p, uint8_t *out, Py_ssize_t n, Py_ssize_t step, int item,
                                                  int limit)
{
    uint64_t last = 0;
    int index = -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint64_t value = load(p + i * step * item, item);
        if (value != last || index < 0) {
            index = look_up(t, value, limit);
            if (index < 0) return 0;
            last = value;
        }
        out[i * step] = (uint8_t)index;
    }
    return 1;
}

static int map_channel(Table *t, const uint8_t *p, uint8_t *out, Py_ssize_t outer, Py_ssize_t channels,
                       Py_ssize_t inner, int item, int limit)
{
    Py_ssize_t run = inner, runs = outer, step = 1;
    if (inner == 1) run = outer, runs = 1, step = channels; /* channels last: one long strided run */
    for (Py_ssize_t o = 0; o < runs; o++) {
        const uint8_t *from = p + o * channels * inner * item;
        uint8_t *to = out + o * channels * inner;
        int ok = item == 1   ? map_run(t, from, to, run, step, 1, limit)
                 : item == 2 ? map_run(t, from, to, run, step, 2, limit)
                 : item == 4 ? map_run(t, from, to, run, step, 4, limit)
                             : map_run(t, from, to, run, step, 8, limit);
        if (!ok) return 0;
    }
    return 1;
}

static int palette_work(const uint8_t *src, uint8_t *index, uint64_t *palettes, int *counts, Py_ssize_t outer,
                        Py_ssize_t channels, Py_ssize_t inner, int item, int type, int limit, Table *t)
{
    for (Py_ssize_t c = 0; c < channels; c++) {
        t->count = 0;
        memset(t->slot, 0xff, sizeof t->slot);
        if (!map_channel(t, src + c * inner * item, index + c * inner, outer, channels, inner, item, limit)) return 0;
        uint8_t rank[256];
        for (int i = 0; i < t->count; i++) {
            int below = 0;
            uint64_t mine = order(t->seen[i], item, type);
            for (int j = 0; j < t->count; j++) below += order(t->seen[j], item, type) < mine;
            rank[i] = (uint8_t)below;
            palettes[c * 256 + below] = t->seen[i];
        }
        counts[c] = t->count;
        for (Py_ssize_t o = 0; o < outer; o++) {
            uint8_t *at = index + (o * channels + c) * inner;
            for (Py_ssize_t i = 0; i < inner; i++) at[i] = rank[at[i]];
        }
    }
    return 1;
}

/* palette(src, index, palettes, outer, channels, inner, item, type, limit) -> counts, or None if one has too many */
static PyObject *palette(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer src, index, palettes;
    Py_ssize_t outer, channels, inner, size = 0;
    int item, type, limit;
    if (!PyArg_ParseTuple(args, "y*w*w*nnniii:palette", &src, &index, &palettes, &outer, &channels, &inner, &item,
                          &type, &limit))
        return NULL;
    PyObject *result = NULL;
    int fits = outer > 0 && channels > 0 && channels <= 4096 && inner > 0 && limit > 0 && limit <= 256 &&
               (item == 1 || item == 2 || item == 4 || item == 8) && !__builtin_mul_overflow(outer, channels, &size) &&
               !__builtin_mul_overflow(size, inner, &size) && index.len == size && src.len / item == size &&
               src.len % item == 0 && palettes.len == channels * 256 * 8;
    Table *table = fits ? malloc(sizeof *table) : NULL;
    int *counts = fits ? calloc((size_t)channels, sizeof *counts) : NULL;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "palette sizes do not fit the buffers");
    } else if (!table || !counts) {
        PyErr_NoMemory();
    } else {
        int ok;
        Py_BEGIN_ALLOW_THREADS
        ok = palette_work(src.buf, index.buf, palettes.buf, counts, outer, channels, inner, item, type, limit, table);
        Py_END_ALLOW_THREADS
        if (!ok) {
            result = (Py_INCREF(Py_None), Py_None);
        } else if ((result = PyList_New(channels))) {
            for (Py_ssize_t c = 0; c < channels; c++) {
                PyObject *number = PyLong_FromLong(counts[c]);
                if (!number) {
                    Py_CLEAR(result);
                    break;
                }
                PyList_SET_ITEM(result, c, number);
            }
        }
    }
    free(table);
    free(counts);
    PyBuffer_Release(&src);
    PyBuffer_Release(&index);
    PyBuffer_Release(&palettes);
    return result;
}

#define GATHER(TYPE)                                                                                                  \
    static void gather_##TYPE(const uint8_t *restrict index, const TYPE *restrict palette, TYPE *restrict out,        \
                              Py_ssize_t outer, Py_ssize_t channels, Py_ssize_t inner)                                \
    {                                                                                                                 \
        for (Py_ssize_t o = 0; o < outer; o++)                                                                        \
            for (Py_ssize_t c = 0; c < channels; c++, index += inner, out += inner)                                   \
                for (Py_ssize_t i = 0; i < inner; i++) out[i] = palette[c * 256 + index[i]];                          \
    }
GATHER(uint8_t)
GATHER(uint16_t)
GATHER(uint32_t)
GATHER(uint64_t)

/* gather(index, palettes, dst, outer, channels, inner, item): palettes hold 256 entries of item bytes a channel */
static PyObject *gather(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer index, palettes, dst;
    Py_ssize_t outer, channels, inner, size = 0;
    int item;
    if (!PyArg_ParseTuple(args, "y*y*w*nnni:gather", &index, &palettes, &dst, &outer, &channels, &inner, &item))
        return NULL;
    PyObject *result = NULL;
    int fits = outer > 0 && channels > 0 && channels <= 4096 && inner > 0 &&
               (item == 1 || item == 2 || item == 4 || item == 8) && !__builtin_mul_overflow(outer, channels, &size) &&
               !__builtin_mul_overflow(size, inner, &size) && index.len == size && dst.len / item == size &&
               dst.len % item == 0 && palettes.len == channels * 256 * item &&
               (uintptr_t)dst.buf % (unsigned)item == 0 && (uintptr_t)palettes.buf % (unsigned)item == 0;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "palette sizes do not fit the buffers");
    } else {
        Py_BEGIN_ALLOW_THREADS
        switch (item) {
        case 1: gather_uint8_t(index.buf, palettes.buf, dst.buf, outer, channels, inner); break;
        case 2: gather_uint16_t(index.buf, palettes.buf, dst.buf, outer, channels, inner); break;
        case 4: gather_uint32_t(index.buf, palettes.buf, dst.buf, outer, channels, inner); break;
        default: gather_uint64_t(index.buf, palettes.buf, dst.buf, outer, channels, inner);
        }
        Py_END_ALLOW_THREADS
        result = (Py_INCREF(Py_None), Py_None);
    }
    PyBuffer_Release(&index);
    PyBuffer_Release(&palettes);
    PyBuffer_Release(&dst);
    return result;
}

static PyMethodDef methods[] = {
    {"residual", residual, METH_VARARGS, "pixels -> residual planes"},
    {"pixels", pixels, METH_VARARGS, "residual planes -> pixels"},
    {"shuffle", shuffle, METH_VARARGS, "bytes of equal weight together"},
    {"unshuffle", unshuffle, METH_VARARGS, "inverse of shuffle"},
    {"palette", palette, METH_VARARGS, "distinct values and indices per channel"},
    {"gather", gather, METH_VARARGS, "indices -> values"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "edge_offload_kernels", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_edge_offload_kernels(void) { return PyModule_Create(&module); }
