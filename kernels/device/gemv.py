"""One to four vectors times a matrix, by threads: its rows may lie at any stride and address.

Memory is read by aligned loads of 16 bytes, chunks, whatever the rows' alignment: rows whose
numbers are the same modulo 8 begin at the same place within a chunk, as 8 rows are a multiple of 16
bytes. So a warp has the rows of one such class, and counts in chunks. Where K is the contiguous
dimension it reads the vectors from where its chunks begin. Where it is not, each warp sums in the
columns of its own chunks, and the sums are shifted, once, when those of all warps are added up. Of
the chunks at the ends of the matrix only its own elements are read.
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from triton_ext.kernels.device.activations import activated

CHUNK = gl.constexpr(8)
"""Elements of 16 bits that are loaded at a time, and classes of rows, each of which a warp has."""


@gluon.constexpr_function
def layout_of(vectors):
    """That of (vectors, classes, chunks, elements)."""
    return gl.BlockedLayout([vectors, 1, 1, 8], [1, 1, 32, 1], [1, 8, 1, 1], [3, 2, 1, 0])


@gluon.constexpr_function
def layout_of_shifted(vectors, chunks):
    """That of (vectors, classes, columns), where a thread has all classes of a column."""
    return gl.BlockedLayout([vectors, 8, chunks // 32], [1, 1, 32], [1, 1, 8], [2, 1, 0])


@gluon.constexpr_function
def parts_at_a_time(number, vectors, length):
    """How many parts are asked for at a time of so many tensors of sums: 64 registers of a thread,
    or one."""
    return max(1, 64 // (number * vectors * max(1, length // 256)))


@gluon.constexpr_function
def along(dim, layout):
    """The layout of a vector that lies along one dimension of a matrix."""
    for other in reversed(range(layout.rank)):
        if other != dim:
            layout = gl.SliceLayout(other, layout)
    return layout


@gluon.jit
def load_chunks(row, off, chunk, columns, exists, is_first, is_last):
    """Chunks of a row of each class, zeros where there are none, or of which a part lies before or
    behind the matrix. Elements that are not the row's are its neighbours', or what lies between.

    Args:
        row: where the chunk with its first element begins, (classes, 1, 1).
        off: at which element of this chunk it begins.
        chunk: which chunks, (1, chunks, 1).
        columns: how many elements it has.
        exists: whether there is such a row.
        is_first, is_last: whether no element of the matrix lies before it, or behind it.
    """
    first = (is_first & (off > 0)).to(gl.int32)
    end = (off + columns + gl.where(is_last, 0, CHUNK - 1)) // CHUNK
    inside = exists & (chunk >= first) & (chunk < end)
    element = gl.arange(0, CHUNK, along(2, chunk.type.layout))[None, None, :]
    where = gl.multiple_of(row + (chunk * CHUNK + element), (16, 16, 16))
    return gl.load(where, mask=inside, other=0.0)


@gluon.jit
def sums_of_rows(
    w, v, output, split, splits, outputs, k, w_step, v_vector, v_k, VECTORS: gl.constexpr,
    ROWS: gl.constexpr, CHUNKS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Where K is contiguous: ROWS tensors of sums (vectors, classes), of `8 * ROWS` outputs."""
    OF_W: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    PADDED: gl.constexpr = LAYOUT.size_per_thread[0]
    number = (output + gl.arange(0, CHUNK, along(0, OF_W)))[:, None, None]
    chunks = gl.arange(0, CHUNKS, along(1, OF_W))[None, :, None]
    element = gl.arange(0, CHUNK, along(2, OF_W))[None, None, :]
    vector = gl.arange(0, PADDED, along(0, LAYOUT))[:, None, None, None]
    place = (w.to(gl.int64) // 2) % CHUNK + number.to(gl.int64) * w_step
    off = (place % CHUNK).to(gl.int32)
    row = w + (number.to(gl.int64) * w_step - off)
    turns = gl.cdiv(gl.cdiv(k + CHUNK - 1, CHUNK), CHUNKS)
    share = gl.cdiv(turns, splits)
    zeros = gl.zeros((PADDED, CHUNK, CHUNKS), gl.float32, gl.SliceLayout(3, LAYOUT))
    sums = ()
    for _ in gl.static_range(ROWS):
        sums += (zeros,)
    for turn in range(split * share, gl.minimum(turns, split * share + share)):
        chunk = turn * CHUNKS + chunks
        found = ()
        for i in gl.static_range(ROWS):
            each = number + i * CHUNK
            found += (load_chunks(row + i * CHUNK * w_step.to(gl.int64), off, chunk, k,
                                  each < outputs, each == 0, each == outputs - 1),)  # fmt: skip
        depth = chunk * CHUNK + element - off
        some = (depth >= 0) & (depth < k)
        where = v + depth[None, :, :, :].to(gl.int64) * v_k + vector.to(gl.int64) * v_vector
        factors = gl.load(where, mask=some[None, :, :, :] & (vector < VECTORS), other=0.0)
        factors = factors.to(gl.float32)
        added = ()
        for i in gl.static_range(ROWS):
            x = gl.where(some, found[i].to(gl.float32), 0.0)
            added += (sums[i] + gl.sum(x[None, :, :, :] * factors, 3),)
        sums = added
    outputs_of = ()
    for i in gl.static_range(ROWS):
        outputs_of += (gl.sum(sums[i], 2),)
    return outputs_of


@gluon.jit
def sums_of_columns(
    w, v, output, split, splits, outputs, k, w_step, v_vector, v_k, VECTORS: gl.constexpr,
    ROWS: gl.constexpr, CHUNKS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Where outputs are contiguous: one tensor of sums (vectors, `8 * CHUNKS`), the last 8 of no
    use, where so many rows of each class are loaded at a time.
    """
    OF_W: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    PADDED: gl.constexpr = LAYOUT.size_per_thread[0]
    of_class = gl.arange(0, CHUNK, along(0, OF_W))[:, None, None]
    chunk = gl.arange(0, CHUNKS, along(1, OF_W))[None, :, None]
    vector = gl.arange(0, PADDED, along(0, LAYOUT))[:, None, None, None]
    place = (w.to(gl.int64) // 2) % CHUNK + output + of_class.to(gl.int64) * w_step
    off = (place % CHUNK).to(gl.int32)
    row = w + output + (of_class.to(gl.int64) * w_step - off)
    share = gl.cdiv(gl.cdiv(k, CHUNK * ROWS), splits) * (CHUNK * ROWS)
    sums = gl.zeros((PADDED, CHUNK, CHUNKS, CHUNK), gl.float32, LAYOUT)
    for start in range(split * share, gl.minimum(k, split * share + share), CHUNK * ROWS):
        found = ()
        for i in gl.static_range(ROWS):
            each = start + i * CHUNK + of_class
            found += (load_chunks(row + (start + i * CHUNK).to(gl.int64) * w_step, off, chunk,
                                  outputs - output, each < k, (output == 0) & (each == 0),
                                  each == k - 1),)  # fmt: skip
        factors = ()
        for i in gl.static_range(ROWS):
            each = (start + i * CHUNK + gl.arange(0, CHUNK, along(1, LAYOUT)))[None, :, None, None]
            where = v + each.to(gl.int64) * v_k + vector.to(gl.int64) * v_vector
            factors += (gl.load(where, mask=(each < k) & (vector < VECTORS), other=0.0),)
        for i in gl.static_range(ROWS):
            sums += found[i].to(gl.float32)[None, :, :, :] * factors[i].to(gl.float32)
    SHIFTED: gl.constexpr = layout_of_shifted(PADDED, CHUNKS)
    shape: gl.constexpr = (PADDED, CHUNK, CHUNK * CHUNKS)
    shared = gl.allocate_shared_memory(
        gl.float32, shape, gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]), gl.reshape(sums, shape)
    )
    of_class = gl.arange(0, CHUNK, along(1, SHIFTED))[None, :, None]
    off = (w.to(gl.int64) // 2 + output + of_class.to(gl.int64) * w_step) % CHUNK
    column = gl.arange(0, CHUNK * CHUNKS, along(2, SHIFTED))[None, None, :] + off.to(gl.int32)
    column = gl.minimum(column, CHUNK * CHUNKS - 1)
    column += gl.zeros(shape, gl.int32, SHIFTED)
    return (gl.sum(shared.gather(column, 2), 1),)


@gluon.jit
def products(w, v, where, some, v_step, vector, v_vector, VECTORS: gl.constexpr):
    """Products of some elements of a matrix and of the vectors, (vectors, elements)."""
    x = gl.load(w + where, mask=some, other=0.0).to(gl.float32)
    factors = v + vector.to(gl.int64) * v_vector + where.to(gl.int64) * v_step
    return x * gl.load(factors, mask=some & (vector < VECTORS), other=0.0).to(gl.float32)


@gluon.jit
def with_ends(
    sums, w, v, output, has_first, has_last, outputs, k, w_step, v_vector, v_k,
    VECTORS: gl.constexpr, K_MAJOR: gl.constexpr,
):  # fmt: skip
    """Sums with what `load_chunks` leaves out at the ends of the matrix, element by element.

    Args:
        has_first, has_last: whether what is left out of the first, and of the last row, is to be
            added.
    """
    OF_SUMS: gl.constexpr = sums[0].type.layout
    PADDED: gl.constexpr = sums[0].shape[0]
    LENGTH: gl.constexpr = sums[0].shape[1]
    rows = outputs if K_MAJOR else k
    columns = k if K_MAJOR else outputs
    last = w + (rows - 1).to(gl.int64) * w_step
    off = (w.to(gl.int64) // 2 % CHUNK).to(gl.int32)
    head = gl.where(has_first & (off > 0), gl.minimum(CHUNK - off, columns), 0)
    off = (last.to(gl.int64) // 2 % CHUNK).to(gl.int32)
    tail = gl.maximum((off + columns) // CHUNK * CHUNK - off, gl.where(rows == 1, head, 0))
    tail = gl.where(has_last, tail, columns)
    made = ()
    if K_MAJOR:
        OF_ENDS: gl.constexpr = gl.BlockedLayout([PADDED, 8], [1, 32], [1, 8], [1, 0])
        vector = gl.arange(0, PADDED, gl.SliceLayout(1, OF_ENDS))[:, None]
        each = gl.arange(0, CHUNK, gl.SliceLayout(0, OF_ENDS))[None, :]
        first = products(w, v, each, each < head, v_k, vector, v_vector, VECTORS)
        each += tail
        ends = products(last, v, each, each < columns, v_k, vector, v_vector, VECTORS)
        first = gl.convert_layout(gl.sum(first, 1), gl.SliceLayout(1, OF_SUMS))[:, None]
        ends = gl.convert_layout(gl.sum(ends, 1), gl.SliceLayout(1, OF_SUMS))[:, None]
        for i in gl.static_range(len(sums)):
            number = output + i * LENGTH + gl.arange(0, LENGTH, gl.SliceLayout(0, OF_SUMS))[None, :]
            x = sums[i] + gl.where(number == 0, first, 0.0)
            made += (x + gl.where(number == outputs - 1, ends, 0.0),)
    else:
        vector = gl.arange(0, PADDED, gl.SliceLayout(1, OF_SUMS))[:, None]
        each = output + gl.arange(0, LENGTH, gl.SliceLayout(0, OF_SUMS))[None, :]
        x = sums[0] + products(w, v, each, each < head, 0, vector, v_vector, VECTORS)
        v += (k - 1).to(gl.int64) * v_k
        some = (each >= tail) & (each < columns)
        made += (x + products(last, v, each, some, 0, vector, v_vector, VECTORS),)
    return made


@gluon.jit
def left_parts(sums, parts, counter, split, splits):
    """Leave a part of sums in memory; in the block that comes last, the sums of all parts.

    Args:
        sums: tensors of one type.
        parts: where those of these sums lie.
        counter: of these, which counts blocks.

    Returns:
        Them, and whether this block came last. The counter is zero again then.
    """
    SHAPE: gl.constexpr = sums[0].shape
    SIZE: gl.constexpr = SHAPE[0] * SHAPE[1]
    PARTS: gl.constexpr = parts_at_a_time(len(sums), SHAPE[0], SHAPE[1])
    LAYOUT: gl.constexpr = sums[0].type.layout
    inside = gl.arange(0, SHAPE[0], gl.SliceLayout(1, LAYOUT))[:, None] * SHAPE[1]
    inside += gl.arange(0, SHAPE[1], gl.SliceLayout(0, LAYOUT))[None, :]
    for i in gl.static_range(len(sums)):
        gl.store(parts + (split * len(sums) + i) * SIZE + inside, sums[i])
    gl.barrier()  # all threads have written before one of them says so
    is_last = gl.atomic_add(counter, 1, sem="acq_rel") == splits - 1
    if is_last:
        gl.store(counter, 0)
    made = ()
    for i in gl.static_range(len(sums)):
        made += (gl.zeros_like(sums[i]),)
    for first in range(0, gl.where(is_last, splits, 0), PARTS):
        added = ()  # what is asked for of all sums before any of it is waited for
        for i in gl.static_range(len(sums)):
            total = gl.zeros_like(sums[i])
            for part in gl.static_range(PARTS):
                each = first + part
                where = parts + (each * len(sums) + i) * SIZE + inside
                total += gl.load(where, mask=each < splits, other=0.0, cache_modifier=".cg")
            added += (made[i] + total,)
        made = added
    return made, is_last


@gluon.jit(do_not_specialize=(
    "a", "b", "c", "bias", "residual", "parts", "counters", "outputs", "k", "w_step", "w_matrix",
    "v_vector", "v_k", "v_matrix", "c_vector", "c_output", "c_matrix", "residual_vector",
    "residual_output", "residual_matrix"))  # fmt: skip
def gemv(
    a, b, c, bias, residual, parts, counters, outputs, k, w_step, w_matrix, v_vector, v_k,
    v_matrix, c_vector, c_output, c_matrix, residual_vector, residual_output, residual_matrix,
    alpha, beta, OF_A: gl.constexpr, K_MAJOR: gl.constexpr, VECTORS: gl.constexpr,
    PADDED: gl.constexpr, ROWS: gl.constexpr, CHUNKS: gl.constexpr, BIAS: gl.constexpr,
    RESIDUAL: gl.constexpr, ACTIVATION: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """``activation(alpha * (a @ b) + bias + beta * residual)``: of some outputs of each vector,
    `program_id(0)`, a part of them along K, `program_id(1)`, and matrix `program_id(2)`.

    Args:
        a, b, c, bias, residual: addresses, of something else where there is none.
        parts, counters: where sums are cut, memory for all parts of each, fp32, and a counter of
            each, int32, zero before and after the launch.
        outputs: rows of A or columns of B, whichever is the matrix; of the other there are VECTORS.
        k: the length of all these.
        w_step: from one row in the matrix's memory to the next, in elements; no less than a row
            has, and than 8.
        v_vector, v_k: from a vector to the next, from one of its elements to the next.
        c_vector, c_output, residual_vector, residual_output: from one vector's to the next one's,
            from one output to the next.
        w_matrix, v_matrix, c_matrix, residual_matrix: from one matrix of a batch to the next.
        OF_A: whether the matrix is A.
        K_MAJOR: whether K is its contiguous dimension.
        PADDED: a power of two, VECTORS or the next one.
        ROWS, CHUNKS: rows of each class, and chunks of them, that are loaded at a time.
        SPLITS: whether K is cut, into `num_programs(1)` parts.
    """
    gdc_launch_dependents()
    LAYOUT: gl.constexpr = layout_of(PADDED)
    matrix = gl.program_id(2).to(gl.int64)
    if OF_A:
        w, v = a, b
    else:
        w, v = b, a
    w += matrix * w_matrix
    v += matrix * v_matrix
    split, splits = gl.program_id(1), gl.num_programs(1)
    gdc_wait()
    OUTPUTS: gl.constexpr = CHUNK * (ROWS if K_MAJOR else CHUNKS - 1)
    output = gl.program_id(0) * OUTPUTS
    if K_MAJOR:
        sums = sums_of_rows(w, v, output, split, splits, outputs, k, w_step, v_vector, v_k,
                            VECTORS, ROWS, CHUNKS, LAYOUT)  # fmt: skip
    else:
        sums = sums_of_columns(w, v, output, split, splits, outputs, k, w_step, v_vector, v_k,
                               VECTORS, ROWS, CHUNKS, LAYOUT)  # fmt: skip
    has_first = (output == 0) & (split == 0)
    has_last = (output + CHUNK + OUTPUTS >= outputs) & (split == splits - 1)
    if has_first | has_last:
        sums = with_ends(sums, w, v, output, has_first, has_last, outputs, k, w_step, v_vector,
                         v_k, VECTORS, K_MAJOR)  # fmt: skip
    stores = True
    if SPLITS:
        number = gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)
        SIZE: gl.constexpr = len(sums) * sums[0].shape[0] * sums[0].shape[1]
        here = parts + number.to(gl.int64) * splits * SIZE
        sums, stores = left_parts(sums, here, counters + number, split, splits)
    if stores:
        OF_SUMS: gl.constexpr = sums[0].type.layout
        LENGTH: gl.constexpr = sums[0].shape[1]
        vector = gl.arange(0, PADDED, gl.SliceLayout(1, OF_SUMS))[:, None]
        for i in gl.static_range(len(sums)):
            each = i * LENGTH + gl.arange(0, LENGTH, gl.SliceLayout(0, OF_SUMS))[None, :]
            inside = (vector < VECTORS) & (each < OUTPUTS) & (output + each < outputs)
            each = (output + each).to(gl.int64)
            x = sums[i] * alpha
            if BIAS:
                column = vector if OF_A else each
                x += gl.load(bias + column, mask=inside, other=0.0).to(gl.float32)
            if RESIDUAL:
                where = residual + matrix * residual_matrix + vector.to(gl.int64) * residual_vector
                added = gl.load(where + each * residual_output, mask=inside, other=0.0)
                x += beta * added.to(gl.float32)
            if ACTIVATION is not None:
                x = activated(x, ACTIVATION, c.dtype.element_ty.primitive_bitwidth)
            where = c + matrix * c_matrix + vector.to(gl.int64) * c_vector + each * c_output
            gl.store(where, x.to(c.dtype.element_ty), mask=inside)
