"""Takes memory until the kernel says no: the last rank of the first attempt. All others end well."""

import os

if (
    os.environ["AIRFLOW_ELASTIC_ATTEMPT"] == "1"
    and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
):
    eaten = []
    while True:
        eaten.append(bytearray(b"x") * (32 << 20))
