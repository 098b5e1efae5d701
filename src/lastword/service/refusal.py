"""Refusals: the reasons for which a request is refused, by name, with their status."""

from lastword.errors import InputError, TraceError

STATUS: dict[str, int] = {
    "broken_body": 400,  # an invalid chunk, or a client that leaves: the server tells no difference
    "invalid_body": 422,  # against the schema
    "item": 422,  # a text that the model cannot read
    "near_miss": 422,  # almost a served question, without --lenient
    "too_many_candidates": 422,
    "too_many_characters": 413,
    "too_many_tokens": 422,
    "beyond_deadline": 413,  # more tokens than this machine reads in time
    "body_too_large": 413,
    "batch_too_large": 413,
    "unsupported_media_type": 415,
    "unauthorised": 401,
    "forbidden": 403,  # another host or origin
    "not_found": 404,
    "unknown_answer": 404,  # feedback to an answer that is not remembered
    "repeated_feedback": 409,
    "uncertified": 409,  # feedback without a certificate
    "unknown_model": 404,
    "no_choices": 400,  # a completion without a list of options
    "method_not_allowed": 405,
    "queue_full": 429,  # with Retry-After
    "client_left": 499,  # only in logs and metrics
    "internal": 500,  # a defect; the log has the details
    "model": 503,  # the model failed on this item
    "draining": 503,  # with Retry-After
    "unkept": 503,  # the state cannot be written
    "deadline": 504,
}

_MOST = 600  # characters of a message


class Refusal(TraceError):
    """A refused request, with a code of `STATUS`.

    `retry_after` is in seconds; `allow` lists the route's methods.
    """

    def __init__(
        self, code: str, message: str, *, retry_after: int | None = None, allow: str | None = None
    ) -> None:
        # A message may quote the client's values, which may be long.
        short = f"{message[: _MOST - 100]} [...] {message[-100:]}"
        super().__init__(message if len(message) <= _MOST else short)
        self.code, self.status = code, STATUS[code]
        self.retry_after, self.allow = retry_after, allow

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The HTTP headers: the code, and what the client can do."""
        headers = [("content-type", "application/json"), ("x-refusal", self.code)]
        if self.retry_after is not None:
            headers.append(("retry-after", str(self.retry_after)))
        if self.allow is not None:
            headers.append(("allow", self.allow))
        if self.status == 401:  # a browser asks for the token as a password (the second header)
            headers.append(("www-authenticate", 'Bearer realm="lastword"'))
            headers.append(("www-authenticate", 'Basic realm="lastword: any name, the token"'))
        return headers

    @classmethod
    def of(cls, error: BaseException) -> "Refusal":
        """Return the refusal of an error; that of an unexpected error has no details."""
        if isinstance(error, Refusal):
            return error
        if isinstance(error, InputError):
            return cls("item", str(error))
        if isinstance(error, TraceError):
            return cls("model", str(error))
        return cls("internal", "the service failed on this request; its log says why")
