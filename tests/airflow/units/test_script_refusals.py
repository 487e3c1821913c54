"""What a task's function uses and workers cannot have is refused by its name and line, with what to do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from airflow_elastic.decorators.script.extract import Script, _extracted
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.validation import MOST_SCRIPT_BYTES

TASK = "@task.elastic_train(workers=2)\n"


def made(text: str, file: str = "/nowhere/a_dag.py", *, wrapped: bool = False) -> Script | None:
    """What comes of the first task in a file."""
    functions = (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    task = next(one for one in functions if any("elastic" in ast.unparse(d) for d in one.decorator_list))
    return _extracted(text, file, task.name, task.decorator_list[0].lineno, wrapped)


def refused(text: str, file: str = "/nowhere/a_dag.py", *, wrapped: bool = False) -> list[str]:
    """The problems of the first task in a file."""
    with pytest.raises(SpecError) as error:
        made(text, file, wrapped=wrapped)
    return [str(problem) for problem in error.value.problems]


#: Files, in which `@` is the task's decorator, and what is told of them.
REFUSED = {
    "from airflow.sdk import Variable\n@\ndef f():\n    print(Variable.get('a'))": (
        "a_dag.py:4: f uses Variable, and this cannot go to workers: it is from airflow.sdk.Variable, and workers "
        "have no Airflow: pass the value as an argument of the task"
    ),
    "from airflow.sdk import Variable\nA = Variable.get('a')\ndef g():\n    return A\n@\ndef f():\n    g()": (
        "a_dag.py:7: f uses g, which uses A, which uses Variable, and this"
    ),
    "@\ndef f():\n    from airflow.sdk import Variable as V": "a_dag.py:3: f uses V, and this cannot",
    "import airflow_elastic.operators as o\n@\ndef f():\n    o.x": "it is from airflow_elastic.operators",
    "from airflow_elastic import sensors\n@\ndef f():\n    sensors.x": "it is from airflow_elastic.sensors",
    "from . import x\n@\ndef f():\n    x()": "a_dag.py:4: f uses x, and this cannot go to workers: a relative",
    "import os\nA = os.environ['A']\n@\ndef f():\n    A": "f uses A, which uses os.environ, and this cannot",
    "from os import environ as e\nA = e['A']\n@\ndef f():\n    A": "A, which uses os.environ",
    "import datetime as d\nA = d.datetime.now()\n@\ndef f():\n    A": "which uses datetime.datetime.now",
    "import numpy as np\nA = np.random.rand()\n@\ndef f():\n    A": "which uses numpy.random.rand",
    "A = open('x').read()\n@\ndef f():\n    A": "A, which uses open, and this cannot go to workers: workers",
    "from pathlib import Path\nA = Path(__file__).parent\n@\ndef f():\n    A": (
        "f uses A, which uses __file__, and this cannot go to workers: workers have the script at another path"
    ),
    "with open('x') as A:\n    @\n    def f():\n        A": "a `with` block gives it its value",
    "for A in range(2):\n    @\n    def f():\n        A": (
        "a_dag.py:4: f uses A, and this cannot go to workers: a loop around the function gives it its value; pass"
    ),
    "def make(A):\n    @\n    def f():\n        A": (
        "it is a parameter of the function make around it; pass it as an argument of the task"
    ),
    "def make():\n    A = 1\n    @\n    def f():\n        nonlocal A\n        A = 2": "with `nonlocal`",
    "from x import *\n@\ndef f():\n    A": "only an `import *` can give it a value: import it by its name",
    "@\ndef f():\n    A": "a_dag.py:3: f uses A, and this cannot go to workers: nothing in the file",
    "@\ndef f(x=A):\n    pass": "a_dag.py:2: f uses A",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a as A\n@\ndef f():\n    A": (
        "it is imported for type checkers only; import it inside the function"
    ),
    "@\ndef f(ds):\n    pass": "a_dag.py:2: f has the parameter ds, which Airflow fills in",
    "@\nasync def f():\n    pass": "a_dag.py:2: f is async: use a plain `def`",
    "@\ndef f():\n    yield 1": "a_dag.py:3: f yields values",
    "@\ndef f(a, /):\n    pass": "f cannot take a by its name",
    "@\ndef f(*a):\n    pass": "f cannot take a by its name",
    "@\ndef f():\n    g()\ndef g():\n    f()": (
        "f uses g, which uses f, and this cannot go to workers: it is the task itself"
    ),
    "A = 1\ndef g():\n    return A\ndef make():\n    A = 2\n    @\n    def f():\n        g() + A": "two things of this",
    "@\ndef f():\n    import airflow_elastic.runtime as e\n    return e.init()": "f trains here and returns a value",
    "import airflow_elastic.runtime as e\n@\ndef f():\n    e.init()\n    return 1": "a_dag.py:4: f trains here",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_workers_cannot_have_is_refused_with_its_line(text: str) -> None:
    assert REFUSED[text] in "; ".join(refused(text.replace("@\n", TASK) + "\n"))


def test_all_problems_are_told_at_once_in_the_order_of_their_lines() -> None:
    told = refused(f"from airflow.sdk import dag\n{TASK}def f(ti):\n    A\n    dag()\n    B\n")
    assert [one.split(" ")[0] for one in told] == ["a_dag.py:3:", "a_dag.py:4:", "a_dag.py:5:", "a_dag.py:6:"]


@pytest.mark.parametrize(
    "text",
    [
        f"{TASK}def f():\n    return ['train.py']\n",
        f"from airflow.sdk import Variable as V\n{TASK}def f(ds, **context):\n    if ds:\n        return V.get('a')\n",
    ],
)
def test_a_function_that_returns_a_value_stays_a_function_that_airflow_calls(text: str) -> None:
    assert made(text) is None


@pytest.mark.parametrize("end", ["return", "return None", "pass", "def g():\n        return 1", "lambda: 1"])
def test_a_function_that_returns_nothing_is_the_script(end: str) -> None:
    assert made(f"{TASK}def f():\n    {end}\n") is not None


def test_a_module_beside_the_dag_is_refused_and_an_installed_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("A = 1\n")
    file = str(tmp_path / "a_dag.py")
    told = refused(f"{TASK}def f():\n    import mine\n", file)
    assert told == [
        f"a_dag.py:3: f uses mine, and this cannot go to workers: it is from mine, and workers have no "
        f"{tmp_path / 'mine.py'}. Move what you need into this file, or install it there as a package. If a folder "
        "of the workers has it, give that folder in `env`, as PYTHONPATH"
    ]
    assert made(f"import numpy as np\n{TASK}def f():\n    np.zeros(1)\n    import pytest, json, mime\n", file)


def test_annotations_never_keep_a_function_from_workers() -> None:
    text = (
        "from airflow.sdk import Context\nfrom typing import TYPE_CHECKING, Any\n"
        "if TYPE_CHECKING:\n    import torch\n"
        f"{TASK}def f(a: Any, b: Context = None) -> None:\n    c: torch.Tensor = 1\n    print(a, c)\n"
    )
    script = made(text)
    assert script is not None
    assert "from __future__ import annotations" in script.text
    assert "from typing import Any" in script.text
    assert "airflow" not in script.text
    assert "torch\n" not in script.text


def test_imports_for_type_checkers_are_never_run() -> None:
    text = f"""from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from airflow.sdk import Context as A
else:
    A = object
{TASK}def f():
    if TYPE_CHECKING:
        from airflow.sdk import DAG
    print(A)
"""
    script = made(text)
    assert script is not None
    assert "A = object" in script.text


def test_a_logger_of_the_file_does_not_take_the_dag_along() -> None:
    text = (
        "import logging\nfrom airflow.sdk import DAG\nlog = logging.getLogger(__name__)\nlog.setLevel(20)\n"
        f"dag = DAG('a')\nlog.info('made %s', dag)\n{TASK}def f():\n    log.info('at work')\n"
    )
    script = made(text)
    assert script is not None
    assert "log.setLevel(20)" in script.text
    assert "made %s" not in script.text


def test_other_decorators_stay_where_they_wrap_the_function() -> None:
    text = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n@setup\n"
        f"{TASK}@record\ndef f():\n    pass\n"
    )
    wrapped, plain = made(text, wrapped=True), made(text)
    assert wrapped is not None
    assert plain is not None
    assert "@record\ndef f():" in wrapped.text
    assert "task" not in wrapped.text.replace("task.py", "")
    assert "setup" not in wrapped.text
    assert "record" not in plain.text
    unknown = refused("@ours_elastic\n@record\ndef f():\n    pass\n", wrapped=True)
    assert "and none of them is called elastic_train" in unknown[0]


def test_more_than_the_journal_takes_is_refused() -> None:
    text = f"A = '{'a' * MOST_SCRIPT_BYTES}'\n{TASK}def f():\n    A\n"
    assert "bytes of f: given 262" in refused(text)[0]


def test_a_file_that_was_moved_gives_the_same_script() -> None:
    text = f"A = 1\n{TASK}def f():\n    A\n"
    assert made(text, "/bundles/1/a_dag.py") == made(text, "/bundles/2/b_dag.py")
