"""What is trained while processes are killed, by the environment. Without torch, as benches read it too.

ELASTIC_BENCH_DEVICE: where. ELASTIC_BENCH_PARAMETERS: of a GPT with AdamW, in bfloat16 on a GPU, where it has 350
million by default; 0: a model of 8 MB.
"""

import os

DEVICE = os.environ.get("ELASTIC_BENCH_DEVICE", "cpu")
ON_GPU = DEVICE.startswith("cuda")
PARAMETERS = int(os.environ.get("ELASTIC_BENCH_PARAMETERS", 350_000_000 if ON_GPU else 0))

#: Of that GPT's texts.
BATCH, TOKENS = (8, 1024) if ON_GPU else (2, 64)
