/* The walk over the records of a batch, in C: the same rule as walk_records in record.py, a hundred times as fast.

   It only ever proves. Where a record does not hold together it stops before that record and says how far it came;
   the plain walk then goes on from there and says what is wrong, so there is one place that words a refusal.

   Bytes come from strangers. Every read is behind a comparison with the end of what it lies in: a number with the
   end of its record, a record with the end of the buffer. Lengths are compared with what is left, never added first,
   so nothing can wrap around. Nothing is allocated and nothing is written to. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* More records than this take longer than it takes to let another thread run meanwhile. */
#define COUNT_AT_ONCE 20000

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Span;

/* An unsigned number of up to bytes_max bytes, whose last may be at most last_max; 0 if there is none. */
static int
read_long_number(Span *span, int bytes_max, uint8_t last_max, uint64_t *number)
{
    uint64_t value = 0;
    for (int index = 0; index < bytes_max; index++) {
        if (span->at == span->end) {
            return 0;
        }
        uint8_t byte = *span->at++;
        value |= (uint64_t)(byte & 0x7F) << (7 * index);
        if (byte < 0x80) {
            *number = value;
            return index < bytes_max - 1 || byte <= last_max;
        }
    }
    return 0;
}

static inline int
read_number(Span *span, int bytes_max, uint8_t last_max, uint64_t *number)
{
    if (span->at < span->end && *span->at < 0x80) {
        *number = *span->at++;
        return 1;
    }
    return read_long_number(span, bytes_max, last_max, number);
}

/* Zigzag: the lowest bit is the sign. */
static inline int64_t
signed_of(uint64_t number)
{
    return (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
}

/* 32 bits in up to 5 bytes: of the fifth, four bits count. */
static inline int
read_varint(Span *span, int64_t *value)
{
    uint64_t number;
    if (!read_number(span, 5, 0x0F, &number)) {
        return 0;
    }
    *value = signed_of(number);
    return 1;
}

/* 64 bits in up to 10 bytes: of the tenth, one bit counts. */
static inline int
read_varlong(Span *span, int64_t *value)
{
    uint64_t number;
    if (!read_number(span, 10, 0x01, &number)) {
        return 0;
    }
    *value = signed_of(number);
    return 1;
}

/* The length of a field that fits into what is left; negative for null. */
static inline int
read_size(Span *span, int64_t *size)
{
    return read_varint(span, size) && *size <= span->end - span->at;
}

static inline int
skip_field(Span *span, int64_t *size)
{
    if (!read_size(span, size)) {
        return 0;
    }
    if (*size > 0) {
        span->at += *size;
    }
    return 1;
}

/* UTF-8 as Python reads it: shortest forms only, no surrogates, nothing above U+10FFFF. */
static int
is_utf8(const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        uint8_t lead = *at++;
        if (lead < 0x80) {
            continue;
        }
        int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || end - at < more) {
            return 0;
        }
        uint8_t lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        uint8_t highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (*at < lowest || *at > highest) {
            return 0;
        }
        for (int index = 1; index < more; index++) {
            if ((at[index] & 0xC0) != 0x80) {
                return 0;
            }
        }
        at += more;
    }
    return 1;
}

static int
walk_headers(Span *record, int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        int64_t size;
        if (!read_size(record, &size) || size < 0 || !is_utf8(record->at, record->at + size)) {
            return 0;
        }
        record->at += size;
        if (!skip_field(record, &size)) {
            return 0;
        }
    }
    return 1;
}

/* One record whose offset delta must be index; its timestamp delta and whether its key is null. */
static inline int
walk_record(Span *records, int64_t index, int64_t headers_max, int64_t *delta, int *key_is_null)
{
    int64_t length, offset_delta, key_size, value_size, headers;
    if (!read_size(records, &length) || length < 1) {
        return 0;
    }
    Span record = {records->at, records->at + length};
    records->at = record.end;
    if (*record.at++ >= 0x80) {
        return 0;
    }
    if (!read_varlong(&record, delta) || !read_varint(&record, &offset_delta) || offset_delta != index ||
        !skip_field(&record, &key_size) || !skip_field(&record, &value_size) ||
        !read_varint(&record, &headers) || headers < 0 || headers > headers_max ||
        !walk_headers(&record, headers)) {
        return 0;
    }
    *key_is_null = key_size < 0;
    return record.at == record.end;
}

typedef struct {
    Py_ssize_t walked;
    Py_ssize_t position;
    int64_t delta_min;
    int64_t delta_max;
    int has_null_key;
} Found;

static void
walk_records(const uint8_t *first, Py_ssize_t size, Py_ssize_t count, int64_t headers_max, Found *found)
{
    Span records = {first + found->position, first + size};
    while (found->walked < count) {
        int64_t delta;
        int key_is_null;
        if (!walk_record(&records, found->walked, headers_max, &delta, &key_is_null) ||
            (found->walked == count - 1 && records.at != records.end)) {
            return;
        }
        if (delta < found->delta_min) {
            found->delta_min = delta;
        }
        if (delta > found->delta_max) {
            found->delta_max = delta;
        }
        found->has_null_key |= key_is_null;
        found->walked++;
        found->position = records.at - first;
    }
}

PyDoc_STRVAR(walk_doc,
             "walk(buffer, start, count, headers_max) -> (walked, position, delta_min, delta_max, has_null_key)\n\n"
             "Walk count records from start to the buffer's end. walked are right, and position is behind them; the\n"
             "last one counts only if it ends where the buffer does.");

static PyObject *
walk(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer buffer;
    Py_ssize_t start, count, headers_max;
    if (!PyArg_ParseTuple(arguments, "y*nnn", &buffer, &start, &count, &headers_max)) {
        return NULL;
    }
    if (start < 0 || start > buffer.len) {
        PyBuffer_Release(&buffer);
        return PyErr_Format(PyExc_ValueError, "start %zd is outside of the buffer", start);
    }
    Found found = {0, start, INT64_MAX, INT64_MIN, 0};
    if (count > COUNT_AT_ONCE) {
        Py_BEGIN_ALLOW_THREADS
        walk_records(buffer.buf, buffer.len, count, headers_max, &found);
        Py_END_ALLOW_THREADS
    } else {
        walk_records(buffer.buf, buffer.len, count, headers_max, &found);
    }
    PyBuffer_Release(&buffer);
    return Py_BuildValue("nnLLN", found.walked, found.position, (long long)found.delta_min,
                         (long long)found.delta_max, PyBool_FromLong(found.has_null_key));
}

static PyMethodDef methods[] = {
    {"walk", walk, METH_VARARGS, walk_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.records._walk",
    .m_doc = "The walk over the records of a batch, in C.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__walk(void)
{
    return PyModuleDef_Init(&module);
}
