"""Bytes into text: by what the bytes say, by what they can be, and only then by what they look like.

UTF-8 and UTF-16 with a byte order mark are certain. Of other encodings windows-1252 (which holds Latin-1) is told
by its letters, also where single lines of it stand in UTF-8; the rest is charset-normalizer's guess, and not made
for fewer than 32 characters: over so few it was often wrong, and a wrong one turns words into others in silence.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from graphrag_milvus.builder.readers.registry import missing
from graphrag_milvus.errors import InputError

__all__ = ["UTF8", "Encoding", "decode", "encoding_of", "is_utf16", "undecodable"]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a file is encoded.

    Attributes:
        codec: its name in Python.
        label: its name for people; "" for UTF-8.
        mixed: lines of windows-1252 stand in it.
    """

    codec: str
    label: str = ""
    mixed: bool = False

    @property
    def errors(self) -> str:
        """Python's way with bytes that are not in `codec`, for `mend` to mend."""
        return "surrogateescape" if self.mixed else "strict"

    def mend(self, text: str) -> str:
        """What was decoded with `errors`, with windows-1252 in the place of what was not UTF-8."""
        return _ESCAPED.sub(_windows, text) if self.mixed else text

    def decode(self, data: bytes) -> str:
        """The text of `data`, without a byte order mark.

        Raises:
            UnicodeDecodeError: the encoding is another one.
        """
        return self.mend(data.decode(self.codec, self.errors)).removeprefix("\ufeff")


UTF8 = Encoding("utf-8-sig")

_ESCAPED = re.compile("[\udc80-\udcff]")
_HIGH = re.compile("[^\0-\x7f]")
_CONTROL = bytes([*range(7), *range(14, 27), *range(28, 32), 127])
_MOST_CONTROL = 0.01  # of the bytes of a text, and 8 of them
_SAMPLE = 1 << 18  # bytes that are looked at to guess
_TAIL = 200  # characters of a line that are kept from chunk to chunk
_FEWEST = 32  # characters beyond ASCII that a guess needs

# The letters of western Europe. Not in it, since they come from other encodings more often: the Slavic and Baltic
# ones, and signs like a superscript 3, which are letters in windows-1250.
_LETTERS = frozenset("àâäáãåæçéèêëíìîïñóòôöõøœúùûüÿßÀÂÄÁÃÅÆÇÉÈÊËÍÌÎÏÑÓÒÔÖÕØŒÚÙÛÜŸ")
_MARKS = frozenset("\xa0’‘“”„‚«»‹›–—…·•§©®™°±²µ×÷£€¢¥¡¿´¨\xad½†‡‰ªº")
_IN_WORDS = frozenset("’‘\xad·\xa0–—")  # marks that do stand between two letters
_HUNGARIAN, _NOT_HUNGARIAN = re.compile("[áéíóú]"), re.compile("[ãçâêàñ]")

_ASCII_LETTER = re.compile("[a-zA-Z]")
_ROW = re.compile("[^\0-\x7f]{3,}")
_MOST_IN_ROWS = 0.4
_SIGN_IN_WORD = re.compile(r"(?<=[^\W\d_])[±¶©®»ˇ](?=[^\W\d_])")  # windows-1250's, where ISO 8859-2 has letters
_LATIN = ["cp1250", "cp1252", "cp1254", "cp1257", "mac_roman", "cp437"]
_DENSE = ["cp1251", "koi8_r", "cp1253", "cp1255", "cp1256", "gb18030", "big5", "cp932", "euc_jp", "cp949"]


def decode(data: bytes) -> str:
    """The text that `data` is: UTF-8, or UTF-16 after a byte order mark. The mark is not part of it.

    Raises:
        InputError: it is neither, or there is a NUL in it.
    """
    _check_no_nul(data)
    try:
        text = data.decode("utf-16" if is_utf16(data) else "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(undecodable(error)) from None
    if "\0" in text:
        raise InputError(f"is binary, or UTF-32 (NUL at character {text.index(chr(0))})")
    return text


def encoding_of(chunks: Iterable[bytes], declared: str = "") -> Encoding:
    """How the bytes in `chunks` are encoded; they are gone through once, and none is kept but a sample.

    Args:
        chunks: the bytes from the first one on, in pieces of any size.
        declared: the encoding that the text names itself, believed where it is not UTF-8.

    Raises:
        InputError: they are no text, or it cannot be told in which encoding.
    """
    seen = _Seen()
    for chunk in chunks:
        seen.add(chunk)
        if seen.wide:
            return Encoding("utf-16", "utf-16")
    seen.add(b"", last=True)
    if seen.control > max(8, _MOST_CONTROL * seen.size):
        raise InputError(f"is binary, or UTF-16 without a byte order mark ({seen.control} control characters)")
    return UTF8 if not seen.invalid else _other(seen, declared)


def is_utf16(data: bytes) -> bool:
    """Whether a byte order mark says so."""
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def undecodable(error: UnicodeDecodeError) -> str:
    """What is wrong, where, and what to do."""
    name = "UTF-16, as its byte order mark says" if error.encoding.startswith("utf-16") else "UTF-8"
    if not error.encoding.startswith("utf"):
        name = error.encoding
    where = f"byte 0x{error.object[error.start]:02X} at position {error.start}"
    return f"not {name} ({where}); convert it, for example with iconv"


@dataclass(slots=True)
class _Seen:
    """What was seen of a file so far: how much in it is UTF-8, how much is not, and a sample of the latter."""

    wide: bool = False
    valid: int = 0  # characters beyond ASCII
    invalid: int = 0  # bytes
    size: int = 0  # bytes that are decoded
    control: int = 0
    first: str = ""  # where the first byte is that is not UTF-8
    tail: str = ""  # the end of the line that the next chunk goes on with
    sample: bytearray = field(default_factory=bytearray)
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("surrogateescape")
    )

    def add(self, chunk: bytes, *, last: bool = False) -> None:
        if not self.size and is_utf16(chunk):
            self.wide = True
            return
        text = self.decoder.decode(chunk, last)
        invalid = len(_ESCAPED.findall(text))
        if invalid:
            self._keep(text)
        self.tail = (self.tail + text)[-_TAIL:].rpartition("\n")[2]
        self.invalid += invalid
        self.valid += len(text) - len(text.encode("ascii", "ignore")) - invalid
        self.size += len(text.encode("utf-8", "surrogateescape"))
        self.control += len(chunk) - len(chunk.translate(None, _CONTROL))

    def _keep(self, text: str) -> None:
        if not self.first and (found := _ESCAPED.search(text)):
            place = self.size + len(text[: found.start()].encode("utf-8", "surrogateescape"))
            self.first = f"byte 0x{ord(found[0]) - 0xDC00:02X} at position {place}"
        for line in (self.tail + text).splitlines(True):
            if len(self.sample) < _SAMPLE and not line.isascii():
                self.sample += line.encode("utf-8", "surrogateescape")


def _other(seen: _Seen, declared: str) -> Encoding:
    sample = bytes(seen.sample)
    if declared and (encoding := _declared(sample, declared)):
        return encoding
    text = sample.decode("utf-8", "surrogateescape")
    apart = _is_apart(text)
    strangers = " ".join(_ESCAPED.findall(text)).encode("utf-8", "surrogateescape")
    if apart and seen.valid * 4 >= seen.invalid and _is_western(strangers):
        return Encoding("utf-8", "utf-8 and windows-1252", mixed=True)
    if apart and len(_ASCII_LETTER.findall(text)) >= len(strangers.split()) and _is_western(sample):
        return Encoding("cp1252", "windows-1252")
    return _guessed(sample, seen, _LATIN if apart else _DENSE)


def _declared(sample: bytes, name: str) -> Encoding | None:
    """The encoding of that name; ISO 8859-1 counts as windows-1252, as in every browser."""
    try:
        codec = codecs.lookup(name).name
        codec = "cp1252" if codec in ("iso8859-1", "ascii") else codec
        sample.decode(codec, "ignore")  # raises for codecs that are not of texts
    except (LookupError, ValueError):
        return None
    return None if codec.startswith("utf") else Encoding(codec, _label(codec))


def _is_apart(text: str) -> bool:
    """Whether what is not UTF-8 is single letters, as in Latin scripts; in others, and in wide codes, it is in rows."""
    in_rows = sum(len(_ESCAPED.findall(row)) for row in _ROW.findall(text))
    return in_rows <= _MOST_IN_ROWS * len(_ESCAPED.findall(text))


def _is_western(sample: bytes) -> bool:
    try:
        text = sample.decode("cp1252")
    except UnicodeDecodeError:
        return False
    # Hungarian in windows-1250: the only language with these vowels and, as it looks then, an o with a tilde.
    hungarian = "õ" in text and _HUNGARIAN.search(text) is not None and _NOT_HUNGARIAN.search(text) is None
    return not hungarian and all(_fits(text, match.start()) for match in _HIGH.finditer(text))


def _fits(text: str, place: int) -> bool:
    sign = text[place]
    if sign in _LETTERS or sign in _IN_WORDS:
        return True
    before, after = text[place - 1 : place].isalpha(), text[place + 1 : place + 2].isalpha()
    return sign in _MARKS and not (after and (before or sign in "£¥"))


def _guessed(sample: bytes, seen: _Seen, candidates: list[str]) -> Encoding:
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        raise missing("charset-normalizer", f"a text that is not UTF-8 ({seen.first})") from None
    guess = from_bytes(sample, cp_isolation=candidates).best() if seen.invalid >= _FEWEST else None
    if guess is None:
        raise InputError(f"not UTF-8 ({seen.first}), and not to be told what else; convert it, for example with iconv")
    codec = "iso8859_2" if guess.encoding == "cp1250" and _SIGN_IN_WORD.search(str(guess)) else guess.encoding
    return Encoding(codec, _label(codec))


def _label(codec: str) -> str:
    return f"windows-{codec[2:]}" if re.fullmatch(r"cp125\d", codec) else codec.replace("_", "-")


def _check_no_nul(data: bytes) -> None:
    if b"\0" in data and not is_utf16(data):
        raise InputError(f"is binary, or UTF-16 without a byte order mark (NUL at position {data.index(0)})")


def _windows(escaped: re.Match[str]) -> str:
    return bytes([ord(escaped[0]) - 0xDC00]).decode("cp1252", "replace")
