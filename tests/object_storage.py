"""S3 on this machine, for tests: moto's server, and a bucket of its own for each."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

_NUMBERS = count()


@contextmanager
def storage() -> Iterator[str]:
    """The URL of an empty bucket; every client in this process and its children finds it."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "us")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        name = f"bucket-{next(_NUMBERS)}"
        boto3.client("s3").create_bucket(Bucket=name)
        yield f"s3://{name}"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()
