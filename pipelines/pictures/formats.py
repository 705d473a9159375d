"""Which format the first bytes of a file announce: one that is read here, one that is known by name only, or none."""

import re
from typing import Literal

Format = Literal["jpeg", "png", "bmp", "gif", "webp"]

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# The sizes of the known DIB headers: "BM" alone would make a picture of many a text file.
BMP_HEADER_SIZES = (12, 16, 40, 52, 56, 64, 108, 124)


def sniff(data: bytes) -> Format | None:
    """Returns the format that the first bytes announce."""
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(PNG_SIGNATURE):
        return "png"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    if data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in BMP_HEADER_SIZES:
        return "bmp"
    return None


_TIFF = "TIFF (or a camera's raw file)"
_UNREAD: dict[bytes, str] = {
    b"II*\0": _TIFF,
    b"MM\0*": _TIFF,
    b"II+\0": _TIFF,
    b"MM\0+": _TIFF,
    b"II\xbc": "JPEG XR",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
    b"\xff\x0a": "JPEG XL",
    b"8BPS": "PSD",
    b"%PDF-": "PDF",
    b"%!PS": "PostScript",
    b"\xc5\xd0\xd3\xc6": "PostScript",
    b"\x76\x2f\x31\x01": "OpenEXR",
    b"#?RADIANCE": "Radiance HDR",
    b"DDS ": "DDS",
    b"qoif": "QOI",
    b"icns": "ICNS",
    b"gimp xcf": "XCF",
    b"\x8aMNG": "MNG",
    b"\x01\xda\x00": "SGI",
    b"\x01\xda\x01": "SGI",
    b"\x59\xa6\x6a\x95": "Sun raster",
    b"SIMPLE  =": "FITS",
    b"/* XPM */": "XPM",
    b"\xd7\xcd\xc6\x9a": "WMF",
    b"BPG\xfb": "BPG",
    b"AT&TFORM": "DjVu",
}
# Where a few bytes are too common to tell a format, the rest of its header must fit as well.
_UNREAD_PATTERNS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"P[1-7][\s#]|P[Ff]\s"), "PNM"),
    (re.compile(rb"\0\0[\x01\x02]\0[^\0]\0...\0", re.DOTALL), "ICO"),
    (re.compile(rb"\x0a[\0\x02-\x05]\x01[\x01\x02\x04\x08]", re.DOTALL), "PCX"),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<[?!].{0,1000}?)?<svg\b", re.DOTALL), "SVG"),
    (re.compile(rb"\x01\0\0\0.{36} EMF", re.DOTALL), "EMF"),
    (re.compile(rb".{128}DICM", re.DOTALL), "DICOM"),
    (re.compile(rb".{4}[\x11\x12]\xaf", re.DOTALL), "FLI"),
    (re.compile(rb"#define \w+_width "), "XBM"),
    (re.compile(rb"BLP[12]"), "BLP"),
)
_AVIF_BRANDS = (b"avif", b"avis")
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def name_unread(data: bytes) -> str:
    """Returns the name of the picture format that we know but do not read; "" if it is none that we know."""
    if data[4:8] == b"ftyp":
        return _name_of_brands(data)
    if data[-18:-2] == b"TRUEVISION-XFILE":
        return "TGA"
    by_magic = (name for magic, name in _UNREAD.items() if data.startswith(magic))
    by_pattern = (name for pattern, name in _UNREAD_PATTERNS if pattern.match(data[:1100]))
    return next(by_magic, "") or next(by_pattern, "")


def _name_of_brands(data: bytes) -> str:
    # A generic brand may come first, and the one that tells HEIF from AVIF among the compatible ones after it.
    box = data[8 : min(int.from_bytes(data[:4], "big"), 1000)]
    brands = [box[at : at + 4] for at in range(0, len(box), 4)]
    if any(brand in _AVIF_BRANDS for brand in brands):
        return "AVIF"
    return "HEIF (HEIC)" if any(brand in _HEIF_BRANDS for brand in brands) else ""
