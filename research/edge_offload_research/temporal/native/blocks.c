/* Blocks of the temporal codec as a CPython extension; blocks.py holds the same functions in numpy, bit for bit.
 *
 * Every function takes buffers whose lengths it checks against the sizes given, and runs without the GIL.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Py_ssize_t images, channels, height, width; /* of an 8-bit stack [images, channels, height, width] */
    int interleaved;                            /* the pixels are in memory as [images, height, width, channels] */
} Frame;

/* temporal residuals with blocks of BLOCK x BLOCK pixels in which the gradient foretells more than the reference does */
#define BLOCK 16

static unsigned effort(const uint8_t *r, Py_ssize_t n)
{
    unsigned sum = 0;
    for (Py_ssize_t i = 0; i < n; i++) sum += (unsigned)abs((int8_t)r[i]);
    return sum;
}

/* temporal[] takes the blocks of spatial[] that are smaller; choice [images, rows of blocks, columns] says which */
static void blend_frame(uint8_t *temporal, const uint8_t *spatial, uint8_t *choice, const Frame *f)
{
    Py_ssize_t plane = f->height * f->width;
    for (Py_ssize_t n = 0; n < f->images; n++)
        for (Py_ssize_t y = 0; y < f->height; y += BLOCK)
            for (Py_ssize_t x = 0; x < f->width; x += BLOCK) {
                Py_ssize_t rows = f->height - y < BLOCK ? f->height - y : BLOCK;
                Py_ssize_t columns = f->width - x < BLOCK ? f->width - x : BLOCK;
                Py_ssize_t start = n * f->channels * plane + y * f->width + x;
                unsigned in_time = 0, in_space = 0;
                for (Py_ssize_t c = 0; c < f->channels; c++)
                    for (Py_ssize_t i = 0; i < rows; i++) {
                        in_time += effort(temporal + start + c * plane + i * f->width, columns);
                        in_space += effort(spatial + start + c * plane + i * f->width, columns);
                    }
                *choice++ = in_space < in_time;
                if (in_space >= in_time) continue;
                for (Py_ssize_t c = 0; c < f->channels; c++)
                    for (Py_ssize_t i = 0; i < rows; i++) {
                        Py_ssize_t at = start + c * plane + i * f->width;
                        memcpy(temporal + at, spatial + at, (size_t)columns);
                    }
            }
}

static void restore_row(const uint8_t *restrict r, const uint8_t *restrict up, const uint8_t *restrict reference,
                        const uint8_t *restrict choice, uint8_t *restrict x, Py_ssize_t n, Py_ssize_t step)
{
    for (Py_ssize_t first = 0; first < n; first += BLOCK * step) {
        Py_ssize_t i = first, end = n - first < BLOCK * step ? n : first + BLOCK * step;
        if (!*choice++) {
            for (; i < end; i++) x[i] = (uint8_t)(r[i] + reference[i]);
            continue;
        }
        for (; i < step; i++) x[i] = (uint8_t)(r[i] + up[i]);
        for (; i < end; i++) x[i] = (uint8_t)(r[i] + x[i - step] + up[i] - up[i - step]);
    }
}

/* inverse of blend_frame, in the order of the pixels: residuals, reference and choice -> pixels; zeros: one row */
static void unblend_frame(const uint8_t *residuals, const uint8_t *reference, const uint8_t *choice, uint8_t *pixels,
                          const Frame *f, const uint8_t *zeros)
{
    Py_ssize_t step = f->interleaved ? f->channels : 1, channels = f->interleaved ? 1 : f->channels;
    Py_ssize_t row = f->width * step, down = (f->height + BLOCK - 1) / BLOCK, across = (f->width + BLOCK - 1) / BLOCK;
    for (Py_ssize_t n = 0; n < f->images; n++)
        for (Py_ssize_t c = 0; c < channels; c++)
            for (Py_ssize_t y = 0; y < f->height; y++) {
                Py_ssize_t at = ((n * channels + c) * f->height + y) * row;
                restore_row(residuals + at, y ? pixels + at - row : zeros, reference + at,
                            choice + (n * down + y / BLOCK) * across, pixels + at, row, step);
            }
}

/* whether the extents make sense, and the bytes of the frame */
static int frame_size(const Frame *f, Py_ssize_t *size)
{
    return f->images > 0 && f->channels > 0 && f->height > 0 && f->width > 0 &&
           !__builtin_mul_overflow(f->images, f->channels, size) && !__builtin_mul_overflow(*size, f->height, size) &&
           !__builtin_mul_overflow(*size, f->width, size);
}

static Py_ssize_t block_count(const Frame *f)
{
    return f->images * ((f->height + BLOCK - 1) / BLOCK) * ((f->width + BLOCK - 1) / BLOCK);
}

/* blend(temporal, spatial, choice, images, channels, height, width) */
static PyObject *blend(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer temporal, spatial, choice;
    Frame f = {0};
    if (!PyArg_ParseTuple(args, "w*y*w*nnnn:blend", &temporal, &spatial, &choice, &f.images, &f.channels, &f.height,
                          &f.width))
        return NULL;
    PyObject *result = NULL;
    Py_ssize_t size = 0;
    if (!frame_size(&f, &size) || temporal.len != size || spatial.len != size || choice.len != block_count(&f)) {
        PyErr_SetString(PyExc_ValueError, "frame sizes do not fit the buffers");
    } else {
        Py_BEGIN_ALLOW_THREADS
        blend_frame(temporal.buf, spatial.buf, choice.buf, &f);
        Py_END_ALLOW_THREADS
        result = (Py_INCREF(Py_None), Py_None);
    }
    PyBuffer_Release(&temporal);
    PyBuffer_Release(&spatial);
    PyBuffer_Release(&choice);
    return result;
}

/* unblend(residuals, reference, choice, pixels, images, channels, height, width, interleaved) */
static PyObject *unblend(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer residuals, reference, choice, out;
    Frame f = {0};
    if (!PyArg_ParseTuple(args, "y*y*y*w*nnnnp:unblend", &residuals, &reference, &choice, &out, &f.images, &f.channels,
                          &f.height, &f.width, &f.interleaved))
        return NULL;
    PyObject *result = NULL;
    Py_ssize_t size = 0;
    int fits = frame_size(&f, &size) && residuals.len == size && reference.len == size && out.len == size &&
               choice.len == block_count(&f);
    size_t row = fits ? (size_t)(f.width * (f.interleaved ? f.channels : 1)) : 1;
    uint8_t *zeros = calloc(1, row);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "frame sizes do not fit the buffers");
    } else if (!zeros) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
        unblend_frame(residuals.buf, reference.buf, choice.buf, out.buf, &f, zeros);
        Py_END_ALLOW_THREADS
        result = (Py_INCREF(Py_None), Py_None);
    }
    free(zeros);
    PyBuffer_Release(&residuals);
    PyBuffer_Release(&reference);
    PyBuffer_Release(&choice);
    PyBuffer_Release(&out);
    return result;
}

static PyMethodDef methods[] = {
    {"blend", blend, METH_VARARGS, "temporal residuals, spatial ones where those are smaller"},
    {"unblend", unblend, METH_VARARGS, "inverse of blend"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "edge_offload_blocks", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_edge_offload_blocks(void) { return PyModule_Create(&module); }
