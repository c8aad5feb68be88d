/* Validates and reads the records of a batch in C: the same rules as in record.py, but a hundred times as fast.

   This code does not raise errors for invalid records. It stops before the first invalid record and returns the
   position. The Python code continues there and raises the error, so all error messages are in one place.

   The bytes are not trusted. Before every read, the position is compared with the end of the record or of the buffer.
   Lengths are compared with the remaining bytes before they are added to a pointer, so nothing can overflow. The code
   does not write to the buffer, and allocates only the objects of validated records. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* With more records than this, the code releases the GIL so that other threads can run. */
#define COUNT_AT_ONCE 20000

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Span;

/* Read an unsigned number of up to bytes_max bytes; a byte at the maximum length can be at most last_max. Returns 0 if
   the number is invalid. */
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

/* Decode zigzag: the lowest bit is the sign. */
static inline int64_t
signed_of(uint64_t number)
{
    return (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
}

/* Read 32 bits in up to 5 bytes. Only four bits of the fifth byte are used. */
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

/* Read 64 bits in up to 10 bytes. Only one bit of the tenth byte is used. */
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

/* Read the length of a field, -1 for null. Returns 0 if the length exceeds the remaining bytes. */
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

/* Accept the same UTF-8 as Python: shortest forms only, no surrogates, no code point above U+10FFFF. */
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
        PyErr_Format(PyExc_ValueError, "start %zd is outside the buffer", start);
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(walk_doc,
             "walk(buffer, start, count, headers_max) -> (walked, position, delta_min, delta_max, has_null_key)\n\n"
             "Validate count records from start to the end of the buffer. Returns the number of valid records and the\n"
             "position after them. The last record is valid only if it ends at the end of the buffer.");

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

/* Create a tuple of type kind. It takes over the references to the items. If an item is NULL, a Python error is already
   set, and the result is NULL. */
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
             "Read up to count records from start. Stop after bytes_max bytes or before the first invalid record.\n"
             "Returns the records and the position after them. Each record is a tuple of type kind: offset delta,\n"
             "timestamp delta, key, value, and the position of the header count (0 without headers).");

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
        PyErr_Format(PyExc_TypeError, "%s is not a subclass of tuple", kind->tp_name);
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
    .m_doc = "Validates and reads the records of a batch in C.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__walk(void)
{
    return PyModuleDef_Init(&module);
}
