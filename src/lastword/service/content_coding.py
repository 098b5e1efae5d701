"""A body's content coding: none, or zstd (RFC 8878)."""

import sys

from lastword.service.refusal import Refusal

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_WINDOW_LOG = 23  # the largest window in HTTP is 8 MiB (RFC 9659)


def decoded(body: bytes, coding: str, limit: int) -> bytes:
    """Return the decoded body; refuse more than `limit` bytes, or what is not one whole frame."""
    if coding.lower() != "zstd":
        what = f"a body in the content-encoding {coding!r:.40} is not read here; send it plain"
        raise Refusal("unsupported_media_type", f"{what} (typesafe-sdk: compression=False)")
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
    frame = zstd.ZstdDecompressor(options=options)
    try:
        plain: bytes = frame.decompress(body, max_length=limit + 1)
    except zstd.ZstdError as error:
        raise Refusal("invalid_body", f"the body is not zstd: {error}") from error
    if len(plain) > limit:
        raise Refusal("body_too_large", f"the body has more than {limit} bytes, decompressed")
    if not frame.eof or frame.unused_data:
        raise Refusal("invalid_body", "the body is not one whole zstd frame")
    return plain
