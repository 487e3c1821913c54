"""The line of the script that failed."""

from __future__ import annotations

import pytest

from airflow_elastic.core.overview.failing_line import failing_line, with_line

IN_THE_SCRIPT = """Traceback (most recent call last):
  File "/work/jobs/train.py", line 46, in <module>
    check(inputs)
  File "/work/jobs/data.py", line 37, in check
    raise ValueError("bad")
ValueError: bad
"""

IN_A_LIBRARY = """Traceback (most recent call last):
  File "/work/jobs/train.py", line 46, in <module>
    model(inputs)
  File "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl
    return forward_call(*args, **kwargs)
RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""

ONE_LED_TO_ANOTHER = f"""{IN_THE_SCRIPT}
The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/work/jobs/train.py", line 60, in main
    raise RuntimeError("no batch") from error
RuntimeError: no batch
"""

OF_A_SYNTAX_ERROR = """Traceback (most recent call last):
  File "/work/jobs/train.py", line 3
    def (
        ^
SyntaxError: invalid syntax
"""


@pytest.mark.parametrize(
    ("traceback", "place"),
    [
        (IN_THE_SCRIPT, "data.py:37 in check"),
        (IN_A_LIBRARY, "train.py:46"),
        (ONE_LED_TO_ANOTHER, "train.py:60 in main"),
        (OF_A_SYNTAX_ERROR, "train.py:3"),
        ('  File "/opt/venv/lib/python3.12/runpy.py", line 88, in _run_code', "runpy.py:88 in _run_code"),
        ("Segmentation fault", None),
        ("", None),
        (None, None),
    ],
)
def test_it_is_that_of_the_own_code(traceback: str | None, place: str | None) -> None:
    assert failing_line(traceback) == place


def test_a_reason_has_the_line_before_the_error() -> None:
    reason = "rank 1 on node-1 failed: ValueError: bad; the same error at step 130 twice"
    assert with_line(reason, "ValueError: bad", IN_THE_SCRIPT) == (
        "rank 1 on node-1 failed at data.py:37 in check: ValueError: bad; the same error at step 130 twice"
    )
    for other in ("node-1 was lost", "rank 1 on node-1 failed: exit code 1"):
        assert with_line(other, "ValueError: bad", IN_THE_SCRIPT) == other
    assert with_line(reason, None, IN_THE_SCRIPT) == with_line(reason, "ValueError: bad", None) == reason
