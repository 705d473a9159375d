"""Picture files as people have them, decoded inside a served model as the build does it: upright, opaque, 8-bit RGB.

Stored pictures need none of this. Exif orientation is read by the graph itself, because no decoder of TensorFlow does,
and a model server runs nothing else. It is heeded where the build heeds it: in JPEG, PNG and WebP files.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from trainer.reading.images import ACCURATE

Tensor = Any
JPEG, PNG, GIF, WEBP, BMP, OTHER = range(6)
APP1, SCAN = 0xE1, 0xDA
ORIENTATION_TAG = 0x0112
EXIF_PREFIX = b"Exif\0\0"
HEAD = 32


def decode_raw(data: Tensor) -> Tensor:
    """The picture in the bytes of a JPEG, PNG, GIF (first frame), WebP or BMP file as uint8 RGB [height, width, 3]."""
    picture = tf.switch_case(
        _format(data),
        {
            JPEG: lambda: tf.io.decode_jpeg(data, channels=3, dct_method=ACCURATE),
            PNG: lambda: _opaque(_decode_png(data)),
            GIF: lambda: tf.io.decode_gif(data)[0],
            WEBP: lambda: _opaque(tf.io.decode_webp(data)[0]),
            BMP: lambda: _opaque(tf.io.decode_bmp(data)),
            OTHER: lambda: tf.io.decode_image(data, channels=3, expand_animations=False),  # says what it would take
        },
    )
    return tf.ensure_shape(orient(picture, exif_orientation(data)), [None, None, 3])


def orient(picture: Tensor, orientation: Tensor) -> Tensor:
    """The picture turned upright: 5 to 8 are mirrored along the diagonal, then rows and columns are flipped."""
    turned = tf.cond(orientation >= 5, lambda: tf.transpose(picture, [1, 0, 2]), lambda: picture)
    rows = tf.reduce_any(tf.equal(orientation, [3, 4, 7, 8]))
    columns = tf.reduce_any(tf.equal(orientation, [2, 3, 6, 7]))
    turned = tf.cond(rows, lambda: tf.reverse(turned, [0]), lambda: turned)
    return tf.cond(columns, lambda: tf.reverse(turned, [1]), lambda: turned)


def exif_orientation(data: Tensor) -> Tensor:
    """The orientation 1..8 that a picture file asks for; 1 if it does not, or not in a valid way."""
    content = tf.cast(tf.io.decode_raw(data, tf.uint8), tf.int32)
    finders = {JPEG: _find_in_jpeg, PNG: _find_in_png, WEBP: _find_in_webp}
    begin = tf.switch_case(
        _format(data), {kind: partial(finders.get(kind, _nowhere), data, content) for kind in range(OTHER + 1)}
    )
    prefixed = tf.strings.substr(data, tf.maximum(begin, 0), len(EXIF_PREFIX)) == EXIF_PREFIX
    begin = tf.where((begin >= 0) & prefixed, begin + len(EXIF_PREFIX), begin)
    return tf.cond(begin >= 0, lambda: _read_orientation(content, begin), lambda: tf.constant(1))


def _format(data: Tensor) -> Tensor:
    """The number of the format that the first bytes tell."""
    head = _head(data)
    starts = [
        tf.strings.substr(head, 0, 3) == b"\xff\xd8\xff",
        tf.strings.substr(head, 0, 8) == b"\x89PNG\r\n\x1a\n",
        tf.strings.substr(head, 0, 4) == b"GIF8",
        (tf.strings.substr(head, 0, 4) == b"RIFF") & (tf.strings.substr(head, 8, 4) == b"WEBP"),
        tf.strings.substr(head, 0, 2) == b"BM",
        True,
    ]
    return tf.argmax(tf.stack(starts), output_type=tf.int32)


def _head(data: Tensor) -> Tensor:
    """The first bytes, and zeros for those that a short file lacks: a piece from behind the end would be an error."""
    return tf.strings.join([tf.strings.substr(data, 0, HEAD), b"\0" * HEAD])


def _decode_png(data: Tensor) -> Tensor:
    """The picture in 8 bits with the channels it has: asked for 4, TensorFlow makes up a wrong alpha below 8 bits."""

    def from_deep() -> Tensor:
        deep = tf.io.decode_png(data, dtype=tf.uint16)
        return tf.cast((tf.cast(deep, tf.int32) + 128) // 257, tf.uint8)  # round(v / 257)

    is_deep = tf.strings.substr(_head(data), 24, 1) == b"\x10"
    return tf.cond(is_deep, from_deep, lambda: tf.io.decode_png(data))


def _opaque(picture: Tensor) -> Tensor:
    """RGB from grey or RGB, with or without alpha, over white; what it is, is known only when the graph runs."""
    channels = tf.shape(picture)[2]
    colours = tf.cond(channels <= 2, lambda: tf.tile(picture[:, :, :1], [1, 1, 3]), lambda: picture[:, :, :3])
    return tf.cond(channels % 2 == 0, lambda: _over_white(colours, picture[:, :, -1:]), lambda: colours)


def _over_white(colours: Tensor, alpha: Tensor) -> Tensor:
    share = tf.cast(alpha, tf.float32) / 255.0
    return tf.cast(tf.round(tf.cast(colours, tf.float32) * share + 255.0 * (1.0 - share)), tf.uint8)


def _nowhere(data: Tensor, content: Tensor) -> Tensor:
    return tf.constant(-1)


def _walk(data: Tensor, begin: int, look: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], *, header: int) -> Tensor:
    """Where the Exif block begins, going from block to block; -1 when there is none, or the file breaks off before.

    `look` tells of the block at a place: whether it is the one, where its content begins, and where the next block is.
    """
    end = tf.strings.length(data)

    def go_on(at: Tensor, found: Tensor) -> Tensor:
        return (found < 0) & (at >= 0) & (at + header <= end)

    def step(at: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        wanted, start, following = look(at)
        return tf.where(following > at, following, -1), tf.where(wanted, start, found)

    _, found = tf.while_loop(go_on, step, (tf.constant(begin), tf.constant(-1)))
    return found


def _find_in_jpeg(data: Tensor, content: Tensor) -> Tensor:
    def look(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        marker = content[at + 1]
        is_exif = (marker == APP1) & (tf.strings.substr(data, at + 4, 6) == EXIF_PREFIX)
        is_segment = (content[at] == 0xFF) & (marker != SCAN)
        return is_exif, at + 4, tf.where(is_segment, at + 2 + _number(content, at + 2, 2, big=True), -1)

    return _walk(data, 2, look, header=4)


def _find_in_png(data: Tensor, content: Tensor) -> Tensor:
    def look(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        name = tf.strings.substr(data, at + 4, 4)
        following = at + 12 + _number(content, at, 4, big=True)
        return name == b"eXIf", at + 8, following

    return _walk(data, 8, look, header=8)


def _find_in_webp(data: Tensor, content: Tensor) -> Tensor:
    def look(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = _number(content, at + 4, 4, big=False)
        return tf.strings.substr(data, at, 4) == b"EXIF", at + 8, at + 8 + size + size % 2

    return _walk(data, 12, look, header=8)


def _number(content: Tensor, at: Tensor, length: int, *, big: Tensor) -> Tensor:
    """The unsigned number in `length` bytes; 0 for bytes that the file does not have, and at most 2**31 - 1."""
    places = at + tf.range(length)
    inside = (places >= 0) & (places < tf.size(content))
    values = tf.where(inside, tf.gather(content, tf.where(inside, places, 0)), 0)
    values = tf.where(big, tf.reverse(values, [0]), values)
    values = tf.minimum(values, [255, 255, 255, 127][:length])  # an offset beyond 2 GB leads nowhere anyway
    return tf.reduce_sum(values * [256**place for place in range(length)])


def _read_orientation(content: Tensor, begin: Tensor) -> Tensor:
    """The orientation in the TIFF block at `begin`."""
    mark = content[begin : begin + 4]
    little = tf.reduce_all(tf.equal(_padded(mark), [0x49, 0x49, 0x2A, 0]))
    big = tf.reduce_all(tf.equal(_padded(mark), [0x4D, 0x4D, 0, 0x2A]))
    directory = begin + _number(content, begin + 4, 4, big=big)
    count = _number(content, directory, 2, big=big)
    room = tf.maximum((tf.size(content) - directory) // 12, 0)
    entries = directory + 2 + 12 * tf.range(tf.minimum(count, room))
    tags = tf.map_fn(lambda at: _number(content, at, 2, big=big), entries)
    found = tf.where(tf.equal(tags, ORIENTATION_TAG))
    valid = (little | big) & (tf.size(found) > 0)
    return tf.cond(valid, lambda: _value(content, entries[tf.cast(found[0, 0], tf.int32)], big), lambda: tf.constant(1))


def _value(content: Tensor, entry: Tensor, big: Tensor) -> Tensor:
    kind = _number(content, entry + 2, 2, big=big)
    short, long = _number(content, entry + 8, 2, big=big), _number(content, entry + 8, 4, big=big)
    value = tf.where(kind == 3, short, tf.where(kind == 4, long, 1))
    return tf.where((value >= 1) & (value <= 8), value, 1)


def _padded(values: Tensor) -> Tensor:
    return tf.pad(values, [[0, 4 - tf.size(values)]])
