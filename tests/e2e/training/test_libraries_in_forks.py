"""Libraries with threads or much native code: each is imported and used in a forked rank, and torch after it.

They are no requirements of the project, and what is missing is skipped. Install them where the tests run:

    pip install pyarrow pandas polars numba scikit-learn opencv-python-headless faiss-cpu onnxruntime \
        xgboost lightgbm jax tensorflow grpcio transformers tokenizers lightning
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.reports import read_cold_start
from airflow_elastic.spec.run import RestartPolicy, Workers
from tests.support.driving import driving, left_over, training

BEFORE = """
import sys
assert "torch" in sys.modules, "it is no fork"
"""

AFTER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
ones = torch.ones(300, 300)
assert (ones @ ones).mean().item() == 300
data = DataLoader(TensorDataset(torch.arange(64)), batch_size=4, num_workers=2)
assert sum(int(batch[0].sum()) for batch in data) == 2016
with open(sys.argv[1], "a") as file:
    file.write("done\\n")
"""

#: For libraries that learn from numbers.
POINTS = """
import numpy
x = numpy.random.rand(1000, 4)
y = x.sum(axis=1)
"""


@dataclass(frozen=True)
class Library:
    """One of them: its module, what `pip` calls it, and a few lines that import and use it."""

    module: str
    package: str
    use: str

    def __str__(self) -> str:
        return self.module


LIBRARIES = [
    Library(
        "pyarrow",
        "pyarrow",
        """
import pyarrow
table = pyarrow.table({"key": [1, 2] * 50_000, "value": list(range(100_000))})
sums = table.group_by("key").aggregate([("value", "sum")])
assert sum(sums["value_sum"].to_pylist()) == 4_999_950_000
""",
    ),
    Library(
        "pandas",
        "pandas",
        """
import pandas
frame = pandas.DataFrame({"key": [1, 2] * 50_000, "value": range(100_000)})
assert frame.groupby("key")["value"].sum().sum() == 4_999_950_000
""",
    ),
    Library(
        "polars",
        "polars",
        """
import polars
frame = polars.DataFrame({"key": [1, 2] * 50_000, "value": range(100_000)}).lazy()
assert frame.group_by("key").agg(polars.col("value").sum()).collect()["value"].sum() == 4_999_950_000
""",
    ),
    Library(
        "cv2",
        "opencv-python-headless",
        """
import cv2, numpy
image = cv2.resize(numpy.full((1080, 1920, 3), 7, numpy.uint8), (960, 540))
assert cv2.GaussianBlur(image, (9, 9), 0).mean() == 7
""",
    ),
    Library(
        "faiss",
        "faiss-cpu",
        """
import faiss, numpy
points = numpy.random.rand(5000, 16).astype("float32")
index = faiss.IndexFlatL2(16)
index.add(points)
assert (index.search(points, 1)[1][:, 0] == numpy.arange(5000)).all()
""",
    ),
    Library(
        "onnxruntime",
        "onnxruntime",
        """
import numpy, onnxruntime
from onnxruntime.datasets import get_example
session = onnxruntime.InferenceSession(get_example("sigmoid.onnx"), providers=["CPUExecutionProvider"])
x = numpy.random.rand(3, 4, 5).astype("float32")
(y,) = session.run(None, {session.get_inputs()[0].name: x})
assert numpy.allclose(y, 1 / (1 + numpy.exp(-x)))
""",
    ),
    Library(
        "numba",
        "numba",
        """
import numba
@numba.njit(parallel=True)
def total(count):
    found = 0
    for number in numba.prange(count):
        found += number
    return found
assert total(1000) == 499_500
""",
    ),
    Library(
        "xgboost",
        "xgboost",
        f"""{POINTS}
import xgboost
data = xgboost.DMatrix(x, label=y)
model = xgboost.train({{"nthread": 2, "objective": "reg:squarederror"}}, data, 20)
assert ((model.predict(data) - y) ** 2).mean() < y.var() / 2
""",
    ),
    Library(
        "lightgbm",
        "lightgbm",
        f"""{POINTS}
import lightgbm
model = lightgbm.train({{"num_threads": 2, "verbose": -1}}, lightgbm.Dataset(x, y), 20)
assert ((model.predict(x) - y) ** 2).mean() < y.var() / 2
""",
    ),
    Library(
        "sklearn",
        "scikit-learn",
        f"""{POINTS}
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
assert HistGradientBoostingRegressor(max_iter=20).fit(x, y).score(x, y) > 0.5
assert RandomForestRegressor(n_estimators=10, n_jobs=2).fit(x, y).score(x, y) > 0.5
""",
    ),
    Library(
        "jax",
        "jax",
        """
import jax
assert jax.jit(lambda one: one @ one)(jax.numpy.ones((64, 64))).mean() == 64
""",
    ),
    Library(
        "tensorflow",
        "tensorflow",
        """
import tensorflow
product = tensorflow.function(lambda one: one @ one)(tensorflow.ones((64, 64)))
assert float(tensorflow.reduce_mean(product)) == 64
""",
    ),
    Library(
        "grpc",
        "grpcio",
        """
import grpc
from concurrent.futures import ThreadPoolExecutor
direct = [("grpc.enable_http_proxy", 0)]
method = grpc.unary_unary_rpc_method_handler(lambda data, _: 2 * data)
server = grpc.server(
    ThreadPoolExecutor(2), [grpc.method_handlers_generic_handler("service", {"double": method})]
)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}", direct) as channel:
    assert channel.unary_unary("/service/double")(b"ab", timeout=60) == b"abab"
server.stop(None).wait()
""",
    ),
    Library(
        "transformers",
        "transformers",
        """
import transformers, torch
small = transformers.BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
found = transformers.BertModel(small)(torch.ones(1, 4, dtype=torch.long))
assert found.last_hidden_state.shape == (1, 4, 32)
""",
    ),
    Library(
        "tokenizers",
        "tokenizers",
        """
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(["red green blue"] * 1000, trainers.BpeTrainer(vocab_size=60, show_progress=False))
assert [one.tokens for one in tokenizer.encode_batch(["red blue"] * 1000)] == [["red", "blue"]] * 1000
""",
    ),
    Library(
        "lightning",
        "lightning",
        """
import lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, _):
        return self.layer(batch[0]).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(8, 2)), batch_size=2)
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(Model(), data)
assert trainer.global_step == 4
""",
    ),
]


@pytest.mark.slow
@pytest.mark.real_start
@pytest.mark.parametrize("library", LIBRARIES, ids=str)
async def test_it_works_in_a_fork(library: Library, tmp_path: Path) -> None:
    """At the first attempt, and so that the agent finds nothing to blame on the fork."""
    # An import here would start the library's threads in the process of all tests.
    if importlib.util.find_spec(library.module) is None:
        pytest.skip(f"needs `pip install {library.package}`")
    (tmp_path / "train.py").write_text(BEFORE + library.use + AFTER)
    told = tmp_path / "told"
    spec = training(
        command=(str(tmp_path / "train.py"), str(told)),
        workers=Workers(1),
        env={"OMP_NUM_THREADS": "2"},  # so that there are threads
        restart=RestartPolicy(backoff_limit=0),
    )
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert len(state.attempts) == 1
    assert read_cold_start(driven.run.store) is None
    assert told.read_text() == "done\n"
    assert left_over(tmp_path / "run") == []
