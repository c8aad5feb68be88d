/* Walking and reading the records of a batch, in C: the same rule as in record.py, a hundred times as fast.

   It only ever proves. Where a record does not hold together it stops before that record and says how far it came;
   the plain code then goes on from there and says what is wrong, so there is one place that words a refusal.

   Bytes come from strangers. Every read is behind a comparison with the end of what it lies in: a number with the
   end of its record, a record with the end of the buffer. Lengths are compared with what is left, never added first,
   so nothing can wrap around. Nothing is written to, and nothing is allocated but the objects of records that have
   been walked. */

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

/* The length of a field that fits into what is left; -1 for null. */
static inline int
read_size(Span *span, int64_t *size)
{
    return read_varint(span, size) && *size >= -1 && *size <= span->end - span->at;
}

typedef struct {
    const uint8_t *at;
    int64_t size;
} Field;

static inline int
skip_field(Span *span, Field *field)
{
    if (!read_size(span, &field->size)) {
        return 0;
    }
    field->at = span->at;
    if (field->size > 0) {
        span->at += field->size;
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
        Field name, value;
        if (!skip_field(record, &name) || name.size < 0 || !is_utf8(name.at, name.at + name.size) ||
            !skip_field(record, &value)) {
            return 0;
        }
    }
    return 1;
}

typedef struct {
    int64_t delta;
    int64_t offset_delta;
    Field key;
    Field value;
    const uint8_t *headers_at;
    int64_t headers;
} Record;

static inline int
walk_record(Span *records, int64_t headers_max, Record *found)
{
    int64_t length;
    if (!read_size(records, &length) || length < 1) {
        return 0;
    }
    Span record = {records->at, records->at + length};
    records->at = record.end;
    if (*record.at++ >= 0x80) {
        return 0;
    }
    if (!read_varlong(&record, &found->delta) || !read_varint(&record, &found->offset_delta) ||
        !skip_field(&record, &found->key) || !skip_field(&record, &found->value)) {
        return 0;
    }
    found->headers_at = record.at;
    return read_varint(&record, &found->headers) && found->headers >= 0 && found->headers <= headers_max &&
           walk_headers(&record, found->headers) && record.at == record.end;
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
        Record record;
        if (!walk_record(&records, headers_max, &record) || record.offset_delta != found->walked ||
            (found->walked == count - 1 && records.at != records.end)) {
            return;
        }
        if (record.delta < found->delta_min) {
            found->delta_min = record.delta;
        }
        if (record.delta > found->delta_max) {
            found->delta_max = record.delta;
        }
        found->has_null_key |= record.key.size < 0;
        found->walked++;
        found->position = records.at - first;
    }
}

static int
is_inside(const Py_buffer *buffer, Py_ssize_t start)
{
    if (start < 0 || start > buffer->len) {
        PyErr_Format(PyExc_ValueError, "start %zd is outside of the buffer", start);
        return 0;
    }
    return 1;
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
    if (!is_inside(&buffer, start)) {
        PyBuffer_Release(&buffer);
        return NULL;
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

static PyObject *
object_of(const Field *field)
{
    if (field->size < 0) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)field->at, (Py_ssize_t)field->size);
}

/* A tuple of the given kind; its items are taken over, and any that is missing is an error that has been set. */
static PyObject *
tuple_of(PyTypeObject *kind, PyObject *items[], Py_ssize_t count)
{
    int is_whole = 1;
    for (Py_ssize_t index = 0; index < count; index++) {
        is_whole &= items[index] != NULL;
    }
    PyObject *made = is_whole ? kind->tp_alloc(kind, count) : NULL;
    for (Py_ssize_t index = 0; index < count; index++) {
        if (made != NULL) {
            PyTuple_SET_ITEM(made, index, items[index]);
        } else {
            Py_XDECREF(items[index]);
        }
    }
    return made;
}

static int
append_record(PyObject *list, PyTypeObject *kind, const Record *record, const uint8_t *first)
{
    PyObject *items[] = {
        PyLong_FromLongLong(record->offset_delta),
        PyLong_FromLongLong(record->delta),
        object_of(&record->key),
        object_of(&record->value),
        PyLong_FromSsize_t(record->headers > 0 ? record->headers_at - first : 0),
    };
    PyObject *made = tuple_of(kind, items, 5);
    if (made == NULL) {
        return 0;
    }
    int failed = PyList_Append(list, made);
    Py_DECREF(made);
    return !failed;
}

PyDoc_STRVAR(read_doc,
             "read(buffer, start, count, bytes_max, kind) -> (records, position)\n\n"
             "Up to count records from start, no more once they take bytes_max, and none from the first on that does\n"
             "not hold together; position is behind them. Each is a tuple of kind: offset delta, timestamp delta, key,\n"
             "value, and where the count of its headers is, or 0 if it has none.");

static PyObject *
read_records(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer buffer;
    Py_ssize_t start, count, bytes_max;
    PyTypeObject *kind;
    if (!PyArg_ParseTuple(arguments, "y*nnnO!", &buffer, &start, &count, &bytes_max, &PyType_Type, &kind)) {
        return NULL;
    }
    PyObject *list = NULL;
    if (!PyType_IsSubtype(kind, &PyTuple_Type)) {
        PyErr_Format(PyExc_TypeError, "%s is no kind of tuple", kind->tp_name);
    } else if (is_inside(&buffer, start)) {
        list = PyList_New(0);
    }
    if (list == NULL) {
        PyBuffer_Release(&buffer);
        return NULL;
    }
    const uint8_t *first = buffer.buf;
    const uint8_t *behind = first + start;
    Span records = {behind, first + buffer.len};
    Record record;
    while (list != NULL && PyList_GET_SIZE(list) < count && behind - first - start < bytes_max &&
           walk_record(&records, INT32_MAX, &record)) {
        if (!append_record(list, kind, &record, first)) {
            Py_CLEAR(list);
        }
        behind = records.at;
    }
    PyBuffer_Release(&buffer);
    return list == NULL ? NULL : Py_BuildValue("Nn", list, (Py_ssize_t)(behind - first));
}

static PyMethodDef methods[] = {
    {"walk", walk, METH_VARARGS, walk_doc},
    {"read", read_records, METH_VARARGS, read_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace.records._walk",
    .m_doc = "Walking and reading the records of a batch, in C.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__walk(void)
{
    return PyModuleDef_Init(&module);
}
