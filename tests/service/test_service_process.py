"""The service as a process: it takes its token from the environment, answers, and stops."""

import json
import os
import signal

import httpx
import pytest

pytestmark = pytest.mark.slow
COMMAND = ("-m", "lastword", "serve", "--model", "lastword/demo-organism", "--host", "0.0.0.0")
PATIENCE_SECONDS = 60


def test_the_token_comes_from_the_environment_and_other_hosts_need_one(forks):
    with forks.start(*COMMAND, "--port", "0", env=os.environ | {"LASTWORD_TOKEN": "me"}) as process:
        loading, started = (json.loads(process.stderr.readline()) for _ in range(2))
        assert loading["event"] == "loading" and loading["model"] == "lastword/demo-organism"
        url = started["address"].replace("0.0.0.0", "127.0.0.1") + "/v1/model"
        with httpx.Client(timeout=PATIENCE_SECONDS, trust_env=False) as http:
            assert http.get(url).status_code == 401
            answer = http.get(url, headers={"authorization": "Bearer me"}).json()
            assert answer["model"] == "lastword/demo-organism"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        events = [json.loads(line) for line in process.stderr]
    assert events[-1] == events[-1] | {"event": "stopped", "unanswered": 0}
    refused = forks.run(*COMMAND)
    assert refused.returncode == 1 and "LASTWORD_TOKEN" in refused.stderr
    assert refused.stderr.count("\n") == 1
