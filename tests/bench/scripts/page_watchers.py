"""People who watch one run: `page_watchers.py URL,URL PATH PEOPLE SECONDS`, with the token in ELASTIC_BENCH_TOKEN.

Each asks as the app does, with the ETag of the last answer. The state is asked for 3 s after the last answer, and the
charts 9 s after. It prints as JSON the seconds of all answers, their bytes, and how many of them said "as before".
"""

import asyncio
import json
import os
import random
import sys
import time

import aiohttp

from tests.bench.support.page_runs import CHARTS

POLL_SECONDS, SLOWER = 3.0, 3

urls, path, people, seconds = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
headers = {"Authorization": f"Bearer {os.environ['ELASTIC_BENCH_TOKEN']}", "Accept-Encoding": "gzip"}
found: dict[str, list[float]] = {"overview": [], "history": []}
sizes: dict[str, int] = {"overview": 0, "history": 0}
same = {"overview": 0, "history": 0}


async def ask(session: aiohttp.ClientSession, what: str, address: str, pause: float, until: float) -> None:
    tag = ""
    while time.monotonic() < until:
        began = time.monotonic()
        async with session.get(address, headers={"If-None-Match": tag} if tag else {}) as answer:
            body = await answer.read()
            assert answer.status in (200, 304), (answer.status, body[:500])
            tag = answer.headers.get("ETag", "")
            same[what] += answer.status == 304
            sizes[what] += len(body)
        found[what].append(time.monotonic() - began)
        await asyncio.sleep(pause)


async def person(number: int, until: float) -> None:
    await asyncio.sleep(random.Random(number).uniform(0.0, POLL_SECONDS))
    url = urls[number % len(urls)]
    # A browser opens connections of its own.
    async with aiohttp.ClientSession(headers=headers, auto_decompress=False) as session:
        charts = f"{url}{path}/history?names={CHARTS}&points=500"
        await asyncio.gather(
            ask(session, "overview", url + path, POLL_SECONDS, until),
            ask(session, "history", charts, POLL_SECONDS * SLOWER, until),
        )


async def main() -> None:
    until = time.monotonic() + seconds
    await asyncio.gather(*(person(number, until) for number in range(people)))


asyncio.run(main())
print(json.dumps({"seconds": found, "bytes": sizes, "same": same}))
