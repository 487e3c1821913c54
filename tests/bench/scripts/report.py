"""What a run of two workers with four ranks each reports in the middle of its training."""

import time

from airflow_elastic.spec.status import Progress, RankReport, Stretch


def report(attempt: int, ranks: int = 8) -> Progress:
    now = time.time()
    return Progress(
        attempt=attempt,
        at=now,
        step=1200,
        moved_at=now,
        total_steps=100_000,
        epoch=3,
        samples=614_400,
        samples_per_second=5120.0,
        loss=1.234567,
        metrics={"accuracy": 0.71, "learning_rate": 0.0003},
        world_size=ranks,
        attached=True,
        stretches=(Stretch(1, ranks, 2, now - 140, now - 130, now, 0, 1200, 120.0, 2.5, 0.4),),
        ranks=tuple(RankReport(r, f"node-{r // 4}", 1200, now, 0.1, 1.234567, 3 << 30) for r in range(ranks)),
    )
