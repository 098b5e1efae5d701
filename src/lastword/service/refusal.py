"""Refusals: every way in which a request is turned down, with its name and its status."""

from lastword.errors import InputError, TraceError

STATUS: dict[str, int] = {
    "two_hosts": 400,  # RFC 9112, section 3.2
    "invalid_body": 422,  # not what the schema says
    "item": 422,  # text that cannot be answered
    "near_miss": 422,  # under --strict: almost a served question
    "too_many_candidates": 422,
    "too_many_characters": 413,
    "too_many_tokens": 422,
    "body_too_large": 413,
    "batch_too_large": 413,
    "headers_too_large": 431,
    "unsupported_media_type": 415,
    "unauthorised": 401,
    "forbidden": 403,  # a host or an origin that is not ours
    "not_found": 404,
    "unknown_answer": 404,  # feedback on what is not remembered
    "repeated_feedback": 409,
    "uncertified": 409,  # feedback where there is no certificate to judge
    "unknown_model": 404,
    "no_choices": 400,  # a completion that is not a choice among answers
    "method_not_allowed": 405,
    "queue_full": 429,  # with Retry-After
    "client_left": 499,  # nobody reads this one
    "internal": 500,  # a defect: logged in full, told in short
    "model": 503,  # the model failed on this item
    "draining": 503,  # with Retry-After
    "unkept": 503,  # the disk does not take what must outlive the process
    "deadline": 504,
}


class Refusal(TraceError):
    """A request that is turned down, by a name of `STATUS`.

    `retry_after` is in seconds, and `allow` has the methods that the route takes.
    """

    def __init__(
        self, code: str, message: str, *, retry_after: int | None = None, allow: str | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.status = code, STATUS[code]
        self.retry_after, self.allow = retry_after, allow

    @property
    def headers(self) -> list[tuple[str, str]]:
        """HTTP headers: the name, when to come again, what to bring."""
        headers = [("content-type", "application/json"), ("x-refusal", self.code)]
        if self.retry_after is not None:
            headers.append(("retry-after", str(self.retry_after)))
        if self.allow is not None:
            headers.append(("allow", self.allow))
        if self.status == 401:  # the second lets a browser ask for the token, as a password
            headers.append(("www-authenticate", 'Bearer realm="lastword"'))
            headers.append(("www-authenticate", 'Basic realm="lastword: any name, the token"'))
        return headers

    @classmethod
    def of(cls, error: BaseException) -> "Refusal":
        """Return an error of the library as a refusal; an unknown one without details."""
        if isinstance(error, Refusal):
            return error
        if isinstance(error, InputError):
            return cls("item", str(error))
        if isinstance(error, TraceError):
            return cls("model", str(error))
        return cls("internal", "the service failed on this request; its log says why")
